/* Elements of casts, copies, gates, pools and averages, of the loss and its gradient, of sums over
 * images, of unscaling, SGD and Adam, and of sums over ranks: one thread computes one element. */
#include "audit_kernels.h"

enum { THREADS = LS_THREADS(64), LOSS_THREADS = LS_THREADS(256) };

LS_DEVICE audit_position in_position(const ls_audit_op &op, int64_t i)
{
    return audit_position_of(i, op.in_height, op.in_width, op.in_channels, op.in_block);
}

LS_DEVICE audit_position out_position(const ls_audit_op &op, int64_t i)
{
    return audit_position_of(i, op.out_height, op.out_width, op.out_channels, op.out_block);
}

/* ---- order and type -------------------------------------------------------------------------- */

/* A byte is normalised by three operations of f32: the errors of the quotient b/255 and of the
 * difference pass through the division, whose own is that of the result. */
LS_DEVICE double image_at(const ls_audit_op &op, int64_t i, double *bound)
{
    audit_position p = in_position(op, i);
    int64_t height = op.in_height, width = op.in_width;
    if (op.stem_blocks) { /* two rows and columns in one, with a border of three */
        int pixel = p.c / op.plain_channels;
        height = 2 * height - 6;
        width = 2 * width - 6;
        p.y = 2 * p.y + pixel / 2 - 3;
        p.x = 2 * p.x + pixel % 2 - 3;
        p.c = pixel < 4 ? p.c % op.plain_channels : op.plain_channels;
    }
    if (p.c >= op.plain_channels || p.y < 0 || p.y >= height || p.x < 0 || p.x >= width) {
        return 0;
    }
    int64_t from = ((p.n * op.plain_channels + p.c) * height + p.y) * width + p.x;
    double value = audit_value(op.x, op.x_type, from);
    if (op.x_type != LS_AUDIT_U8) {
        return value;
    }
    double mean = (double)op.x_mean[p.c], deviation = (double)op.x_deviation[p.c];
    double share = value / 255, off = share - mean;
    *bound = 2 * LS_AUDIT_U * (share + 2 * fabs(off)) / deviation; /* 2: their products */
    return off / deviation;
}

/* 4x4 taps of 2x2 pixels are 8x8 taps, of which the parameter has 7x7. */
LS_DEVICE double stem_weight_at(const ls_audit_op &op, int64_t i)
{
    int64_t channel = i % op.in_channels, tap = i / op.in_channels % 16;
    int64_t o = i / op.in_channels / 16, pixel = channel / op.plain_channels;
    int64_t c = channel % op.plain_channels;
    int64_t y = tap / 4 * 2 + pixel / 2, x = tap % 4 * 2 + pixel % 2;
    return pixel < 4 && y < 7 && x < 7 ? audit_value(op.weight.data, op.weight.type,
                                                     ((o * op.plain_channels + c) * 7 + y) * 7 + x)
                                       : 0;
}

LS_DEVICE double weight_at(const ls_audit_op &op, int64_t i)
{
    if (op.stem_blocks) {
        return stem_weight_at(op, i);
    }
    int taps = op.kernel * op.kernel;
    int64_t c = i % op.in_channels, tap = i / op.in_channels % taps, o = i / op.in_channels / taps;
    return c < op.plain_channels ? audit_value(op.weight.data, op.weight.type,
                                               (o * op.plain_channels + c) * taps + tap)
                                 : 0;
}

LS_DEVICE double stem_unpacked_at(const ls_audit_op &op, int64_t i)
{
    int64_t x = i % 7, y = i / 7 % 7, c = i / 49 % op.plain_channels,
            o = i / 49 / op.plain_channels;
    int64_t pixel = 2 * (y % 2) + x % 2, tap = 4 * (y / 2) + x / 2;
    return audit_value(op.dw, op.type,
                       (o * 16 + tap) * op.in_channels + pixel * op.plain_channels + c);
}

LS_DEVICE double unpacked_at(const ls_audit_op &op, int64_t i)
{
    if (op.stem_blocks) {
        return stem_unpacked_at(op, i);
    }
    int taps = op.kernel * op.kernel;
    int64_t tap = i % taps, c = i / taps % op.plain_channels, o = i / taps / op.plain_channels;
    return audit_value(op.dw, op.type, (o * taps + tap) * op.in_channels + c);
}

/* ---- sums, gates, windows -------------------------------------------------------------------- */

LS_DEVICE double bias_at(const ls_audit_op &op, int64_t i, double *bound)
{
    audit_sum sum = {};
    for (int64_t n = 0; n < op.images; n++) {
        audit_add(&sum, audit_value(op.dy, op.type, n * op.out_channels + i));
    }
    *bound = audit_bound(op.images, sum, false);
    return sum.sum;
}

LS_DEVICE double added_at(const ls_audit_op &op, int64_t i, double *bound)
{
    double value = audit_value(op.x, op.type, i);
    if (op.residual != NULL) {
        value += audit_value(op.residual, op.type, i);
        *bound = LS_AUDIT_U * fabs(value);
    }
    if (op.relu && op.given) {
        return audit_open(op, i) ? value : 0;
    }
    return op.relu && value <= 0 ? 0 : value;
}

LS_DEVICE double gated_at(const ls_audit_op &op, int64_t i, double *bound)
{
    double value = audit_value(op.dy, op.type, i);
    if (op.dy2 != NULL) {
        value += audit_value(op.dy2, op.type, i);
        *bound = LS_AUDIT_U * fabs(value);
    }
    return audit_open(op, i) ? value : 0;
}

/* The first maximum of a window in row order; a NaN wins; *tap: its position. */
LS_DEVICE double pooled_at(const ls_audit_op &op, int64_t i, int *tap)
{
    audit_position p = out_position(op, i);
    double most = -(double)INFINITY;
    *tap = -1;
    for (int t = 0; t < op.kernel * op.kernel; t++) {
        int y = p.y * op.stride - op.pad + t / op.kernel;
        int x = p.x * op.stride - op.pad + t % op.kernel;
        if (y < 0 || y >= op.in_height || x < 0 || x >= op.in_width ||
            (op.given && t != op.tap[i])) {
            continue;
        }
        double value = audit_value(op.x, op.type, audit_in_index(op, p.n, y, x, p.c));
        if (*tap < 0 || value > most || (isnan(value) && !isnan(most))) {
            most = value;
            *tap = t;
        }
    }
    return most;
}

LS_DEVICE double pool_back_at(const ls_audit_op &op, int64_t i, double *bound)
{
    audit_position p = in_position(op, i);
    audit_sum sum = {};
    for (int t = 0; t < op.kernel * op.kernel; t++) {
        int y = p.y + op.pad - t / op.kernel, x = p.x + op.pad - t % op.kernel;
        if (y < 0 || y % op.stride != 0 || y / op.stride >= op.out_height || x < 0 ||
            x % op.stride != 0 || x / op.stride >= op.out_width) {
            continue;
        }
        int64_t from = audit_out_index(op, p.n, y / op.stride, x / op.stride, p.c);
        if (op.tap[from] == t) {
            audit_add(&sum, audit_value(op.dy, op.type, from));
        }
    }
    *bound = audit_bound((double)op.kernel * op.kernel, sum, false);
    return sum.sum;
}

LS_DEVICE double shortcut_at(const ls_audit_op &op, int64_t i)
{
    audit_position p = out_position(op, i);
    return p.c < op.in_channels
               ? audit_value(op.x, op.type,
                             audit_in_index(op, p.n, p.y * op.stride, p.x * op.stride, p.c))
               : 0;
}

LS_DEVICE double shortcut_back_at(const ls_audit_op &op, int64_t i)
{
    audit_position p = in_position(op, i);
    int y = p.y / op.stride, x = p.x / op.stride;
    bool taken = p.y % op.stride == 0 && p.x % op.stride == 0 && y < op.out_height &&
                 x < op.out_width && p.c < op.out_channels;
    return taken ? audit_value(op.dy, op.type, audit_out_index(op, p.n, y, x, p.c)) : 0;
}

LS_DEVICE double average_at(const ls_audit_op &op, int64_t i, double *bound)
{
    int64_t n = i / op.out_channels;
    int pixels = op.in_height * op.in_width;
    audit_sum sum = {};
    int64_t plane = audit_plane(op.in_channels, op.in_block, pixels, n, (int)(i % op.in_channels));
    for (int p = 0; p < pixels; p++) {
        audit_add(&sum, audit_value(op.x, op.type, plane + (int64_t)p * op.in_block));
    }
    *bound = (audit_bound(pixels, sum, false) + 2 * LS_AUDIT_U * fabs(sum.sum)) / pixels;
    return sum.sum / pixels;
}

LS_DEVICE double average_back_at(const ls_audit_op &op, int64_t i, double *bound)
{
    audit_position p = in_position(op, i);
    int pixels = op.in_height * op.in_width;
    double value = audit_value(op.dy, op.type, p.n * op.in_channels + p.c) / pixels;
    *bound = 2 * LS_AUDIT_U * fabs(value);
    return value;
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* For one image: the largest logit, and the logarithm of the sum of exponentials relative to it. */
LS_DEVICE double log_sum(const ls_audit_op &op, int64_t n, double *most)
{
    double sum = 0;
    *most = audit_value(op.x, op.type, n * op.in_channels);
    for (int c = 1; c < op.in_channels; c++) {
        double value = audit_value(op.x, op.type, n * op.in_channels + c);
        *most = value > *most || isnan(value) ? value : *most;
    }
    for (int c = 0; c < op.in_channels; c++) {
        sum += exp(audit_value(op.x, op.type, n * op.in_channels + c) - *most);
    }
    return log(sum);
}

LS_DEVICE double mean_logit(const ls_audit_op &op, int64_t n)
{
    double sum = 0;
    for (int c = 0; c < op.in_channels; c++) {
        sum += audit_value(op.x, op.type, n * op.in_channels + c);
    }
    return sum / op.in_channels;
}

/* One block, whose threads sum in `part`. A logit's distance from the largest costs its rounding in
 * the exponent; expf and logf have errors of at most 2 ulp (CUDA's programming guide, table of
 * functions). */
LS_KERNEL loss_kernel(LS_BLOCK ls_audit_op op, ls_audit_sample *sample)
{
    LS_SHARED(double, part, 2 * LOSS_THREADS);
    double sum = 0, error = 0, most;
    for (int64_t n = threadIdx.x; n < op.images; n += LOSS_THREADS) {
        double beyond = log_sum(op, n, &most);
        int64_t wanted = op.target[n];
        bool known = wanted >= 0 && wanted < op.in_channels;
        double distance =
            known ? most - audit_value(op.x, op.type, n * op.in_channels + wanted) : (double)NAN;
        if (op.smoothing != 0) { /* the weights cost their rounding, too */
            double others = most - mean_logit(op, n);
            distance = (1 - op.smoothing) * distance + op.smoothing * others;
            error += LS_AUDIT_U * (8 + 2 * fabs(beyond) + 2 * distance);
        }
        sum += beyond + distance;
        error += LS_AUDIT_U * (16 + 4 * fabs(beyond) + 4 * distance);
    }
    part[threadIdx.x] = sum;
    part[LOSS_THREADS + threadIdx.x] = error;
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    for (int i = 1; i < LOSS_THREADS; i++) {
        sum += part[i];
        error += part[LOSS_THREADS + i];
    }
    for (int i = 0; i < LS_AUDIT_SAMPLES; i++) {
        sample[i].index = i == 0 ? 0 : -1;
    }
    sample[0].wanted = sum / op.images;
    sample[0].bound = error / op.images;
}

LS_DEVICE double loss_back_at(const ls_audit_op &op, int64_t i, double *bound)
{
    int64_t n = i / op.in_channels;
    double most, beyond = log_sum(op, n, &most);
    double distance = most - audit_value(op.x, op.type, i);
    double p = exp(-distance - beyond), scale = (double)*op.loss_scale * op.factor / op.images;
    double wanted = op.smoothing / op.in_channels; /* a weight is rounded, but for 0 and 1 */
    wanted += i % op.in_channels == op.target[n] ? 1 - op.smoothing : 0;
    double value = (p - wanted) * scale;
    *bound = LS_AUDIT_U * (p * fabs(scale) * (24 + 2 * distance) + 6 * fabs(value) +
                           (op.smoothing != 0 ? wanted * fabs(scale) : 0));
    return value;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

LS_DEVICE double element_at(const ls_audit_op &op, int output, int64_t i, double *bound)
{
    int tap = 0;
    double value;
    switch (op.kind) {
    case LS_AUDIT_IMAGE:
        return image_at(op, i, bound);
    case LS_AUDIT_WEIGHT:
        return weight_at(op, i);
    case LS_AUDIT_UNPACK:
        return unpacked_at(op, i);
    case LS_AUDIT_BIAS:
        return bias_at(op, i, bound);
    case LS_AUDIT_ADD:
        return added_at(op, i, bound);
    case LS_AUDIT_GATE:
        return gated_at(op, i, bound);
    case LS_AUDIT_POOL:
        value = pooled_at(op, i, &tap);
        if (output > 0 && isnan(value)) {
            *bound = (double)INFINITY; /* backends differ in which of several NaN they take */
        }
        return output == 0 ? value : (double)tap;
    case LS_AUDIT_POOL_BACK:
        return pool_back_at(op, i, bound);
    case LS_AUDIT_SHORTCUT:
        return shortcut_at(op, i);
    case LS_AUDIT_SHORTCUT_BACK:
        return shortcut_back_at(op, i);
    case LS_AUDIT_AVERAGE:
        return average_at(op, i, bound);
    case LS_AUDIT_AVERAGE_BACK:
        return average_back_at(op, i, bound);
    default:
        return loss_back_at(op, i, bound);
    }
}

LS_KERNEL simple_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int64_t total,
                        ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x), output = (int)blockIdx.y;
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    ls_audit_sample *to = &sample[output * LS_AUDIT_SAMPLES + i];
    to->index = audit_index(draw, output, i, total, 1);
    to->bound = 0;
    to->wanted = to->index < 0 ? 0 : element_at(op, output, to->index, &to->bound);
}

ls_status ls_audit_simple(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                          int outputs, int64_t total, const audit_room *room)
{
    if (op->kind == LS_AUDIT_LOSS) {
        LS_LAUNCH(loss_kernel, 1, LOSS_THREADS, stream, *op, room->sample);
        return LS_OK;
    }
    LS_LAUNCH(simple_kernel, dim3(ls_launch_blocks(LS_AUDIT_SAMPLES, THREADS), (unsigned)outputs),
              THREADS, stream, *op, draw, total, room->sample);
    return LS_OK;
}

/* ---- the trainer's operations ---------------------------------------------------------------- */

/* The audited values of a parameter, in the order of outputs(). */
typedef struct stepped {
    double value, moment[2], value_bound, moment_bound[2];
} stepped;

LS_DEVICE double rate_of(const ls_audit_rule &rule)
{
    return (double)(float)((double)*rule.lr * rule.lr_factor);
}

LS_DEVICE bool skips(const ls_audit_rule &rule)
{
    return rule.dynamic && *rule.overflow != 0;
}

/* torch.optim.SGD; every f32 operation costs half an ulp of its result. */
LS_DEVICE stepped sgd_at(const ls_audit_op &op, int64_t i)
{
    const ls_audit_rule &r = op.rule;
    stepped s = {};
    double p = audit_value(op.value.data, op.value.type, i), lr = rate_of(r);
    double g = audit_value(op.unscaled.data, op.unscaled.type, i);
    double decay = (double)(float)r.weight_decay, momentum = (double)(float)r.momentum;
    double d = r.weight_decay != 0 ? g + decay * p : g, size = fabs(g) + fabs(decay * p);
    if (r.momentum != 0) {
        double old = *r.step_count == 0
                         ? 0
                         : momentum * audit_value(op.moment[0].data, op.moment[0].type, i);
        s.moment[0] = d + old;
        size += fabs(old);
        s.moment_bound[0] = 4 * LS_AUDIT_U * size;
        d = r.nesterov ? d + momentum * s.moment[0] : s.moment[0];
        size *= r.nesterov ? 2 : 1;
    }
    s.value = p - lr * d;
    s.value_bound = LS_AUDIT_U * (8 * lr * size + fabs(s.value));
    return s;
}

/* torch.optim.Adam and AdamW. */
LS_DEVICE stepped adam_at(const ls_audit_op &op, int64_t i)
{
    const ls_audit_rule &r = op.rule;
    stepped s = {};
    double t = (double)(*r.step_count + 1), lr = rate_of(r);
    double p = audit_value(op.value.data, op.value.type, i);
    double g = audit_value(op.unscaled.data, op.unscaled.type, i), size = fabs(g);
    if (r.decoupled) {
        p *= 1 - lr * r.weight_decay;
    } else if (r.weight_decay != 0) {
        size += fabs(r.weight_decay * p);
        g += r.weight_decay * p;
    }
    double m = r.beta1 * audit_value(op.moment[0].data, op.moment[0].type, i);
    double v = r.beta2 * audit_value(op.moment[1].data, op.moment[1].type, i);
    double m_size = fabs(m) + (1 - r.beta1) * size;
    s.moment[0] = m + (1 - r.beta1) * g;
    s.moment[1] = v + (1 - r.beta2) * g * g;
    s.moment_bound[0] = 6 * LS_AUDIT_U * m_size;
    /* squares of small gradients fall below f32's smallest value: 2^-148 */
    s.moment_bound[1] = LS_AUDIT_U * (8 * v + 12 * (1 - r.beta2) * size * size) + ldexp(1.0, -148);
    double bias1 = r.uncorrected ? 1 : 1 - pow(r.beta1, t);
    double root2 = r.uncorrected ? 1 : sqrt(1 - pow(r.beta2, t));
    double root = sqrt(s.moment[1]) / root2, below = root + r.epsilon;
    double low = s.moment[1] - s.moment_bound[1];
    double off = (root - sqrt(low > 0 ? low : 0) / root2) + 8 * LS_AUDIT_U * below;
    double update = lr / bias1 * s.moment[0] / below;
    s.value = p - update;
    s.value_bound = 8 * LS_AUDIT_U * (fabs(update) + fabs(p)) +
                    lr / bias1 * s.moment_bound[0] / below +
                    (off < below / 2 ? 2 * fabs(update) * off / below : (double)INFINITY);
    return s;
}

/* Output `output`: 0 value, 1 copy, 2 and 3 moments; unscaling has one. */
LS_DEVICE double step_at(const ls_audit_op &op, int output, int64_t i, double *bound)
{
    const ls_audit_tensor *old = output < 2 ? &op.value : &op.moment[output - 2];
    if (op.kind == LS_AUDIT_UNSCALE) {
        return audit_value(op.grad.data, op.grad.type, i) * (double)*op.rule.inv_scale;
    }
    if (skips(op.rule)) {
        old = output == 1 ? &op.copy : old;
        return audit_value(old->data, old->type, i);
    }
    stepped s = op.kind == LS_AUDIT_SGD ? sgd_at(op, i) : adam_at(op, i);
    *bound = output < 2 ? s.value_bound : s.moment_bound[output - 2];
    /* a half copy is made from the value in f32 */
    *bound += output == 1 ? LS_AUDIT_U * fabs(s.value) : 0;
    return output < 2 ? s.value : s.moment[output - 2];
}

/* `which`: the existing outputs, four bits each, the first lowest. */
LS_KERNEL step_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int64_t total, unsigned which,
                      ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x), output = (int)blockIdx.y;
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    ls_audit_sample *to = &sample[output * LS_AUDIT_SAMPLES + i];
    to->index = audit_index(draw, 0, i, total, 1);
    to->bound = 0;
    to->wanted =
        to->index < 0 ? 0 : step_at(op, (int)(which >> 4 * output & 15u), to->index, &to->bound);
}

ls_status ls_audit_steps(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                         const audit_room *room)
{
    const bool has[4] = {true, op->copy.data != NULL, op->moment[0].data != NULL,
                         op->moment[1].data != NULL};
    unsigned which = 0, outputs = 0;
    for (unsigned k = 0; k < (op->kind == LS_AUDIT_UNSCALE ? 1 : 4); k++) {
        if (has[k]) {
            which |= k << 4 * outputs++;
        }
    }
    int64_t total = op->kind == LS_AUDIT_UNSCALE ? op->unscaled.count : op->value.count;
    LS_LAUNCH(step_kernel, dim3(ls_launch_blocks(LS_AUDIT_SAMPLES, THREADS), outputs), THREADS,
              stream, *op, draw, total, which, room->sample);
    return LS_OK;
}

/* ---- over ranks ------------------------------------------------------------------------------ */

LS_KERNEL pick_kernel(LS_BLOCK ls_audit_tensor tensor, ls_audit_draw draw, double *mine,
                      ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i < LS_AUDIT_SAMPLES) {
        int64_t index = audit_index(draw, 0, i, tensor.count, 1);
        sample[i].index = index;
        mine[i] = index < 0 ? 0 : audit_value(tensor.data, tensor.type, index);
    }
}

ls_status ls_audit_pick(void *stream, ls_audit_tensor tensor, ls_audit_draw draw, double *mine,
                        ls_audit_sample *sample)
{
    LS_LAUNCH(pick_kernel, ls_launch_blocks(LS_AUDIT_SAMPLES, THREADS), THREADS,
              (audit_stream)stream, tensor, draw, mine, sample);
    return LS_OK;
}

/* Each addition in the reduced type costs half an ulp of its result, which is at most the sum of
 * magnitudes; so do both multiplications. If that sum exceeds the type's range, a partial sum may
 * too, depending on the order, whatever the total is: an infinite result is then no evidence. */
LS_KERNEL total_kernel(LS_BLOCK ls_audit_tensor tensor, const double *all, int world, double before,
                       double behind, ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    double sum = 0, size = 0;
    for (int rank = 0; rank < world; rank++) {
        double value = all[(int64_t)rank * LS_AUDIT_SAMPLES + i] * before;
        sum += value;
        size += fabs(value);
    }
    double steps = world - 1 + (before != 1 ? 1 : 0);
    sample[i].wanted = sum * behind;
    sample[i].bound = (steps * audit_ulp(tensor.type, size) / 2 +
                       (behind != 1 ? audit_ulp(tensor.type, sum * behind) / 2 / behind : 0)) *
                      behind;
    bool finite =
        sample[i].index < 0 || isfinite(audit_value(tensor.data, tensor.type, sample[i].index));
    if (!finite && size >= audit_overflow(tensor.type)) {
        sample[i].bound = (double)INFINITY;
    }
}

ls_status ls_audit_total(audit_stream stream, ls_audit_tensor tensor, const double *all, int world,
                         double before, double behind, ls_audit_sample *sample)
{
    LS_LAUNCH(total_kernel, ls_launch_blocks(LS_AUDIT_SAMPLES, THREADS), THREADS, stream, tensor,
              all, world, before, behind, sample);
    return LS_OK;
}
