/* Elements of the trainer's operations between backward and the next step: unscaling, SGD and Adam,
 * and sums over ranks. */
#include "audit_kernels.h"

enum { THREADS = LS_THREADS(64) };

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
