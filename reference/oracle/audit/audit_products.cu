/* Elements of convolutions and linear layers, and of the gradients of both: one block sums one
 * element. */
#include "audit_kernels.h"

enum { THREADS = LS_THREADS(32), MOST_PARTS = 64, PIXELS_WORTH_A_PART = 4096 };

LS_DEVICE void add_sum(audit_sum *to, const audit_sum &more)
{
    to->sum += more.sum;
    to->square += more.square;
    to->size += more.size;
    to->loose += more.loose;
}

/* Sums over the block; every thread receives them and must call this. */
LS_DEVICE audit_sum block_sum(audit_sum mine)
{
    LS_SHARED(audit_sum, part, THREADS);
    __syncthreads();
    part[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            add_sum(&part[threadIdx.x], part[threadIdx.x + half]);
        }
    }
    __syncthreads();
    return part[0];
}

LS_DEVICE double product_bound(const ls_audit_op &op, double n, audit_sum s)
{
    bool half = op.type != LS_AUDIT_F32;
    double bound = audit_bound(n, s, half || op.tf32) + s.loose;
    /* TF32 keeps 10 bits of both factors, possibly truncated: 2^-10 of a product each */
    return op.tf32 && !half ? bound + ldexp(1.0, -9) * (fabs(s.sum) + 8 * sqrt(s.square)) : bound;
}

/* The weight [out][in][tap] of a product: packed as [out][tap][in] of the activations' type, or the
 * parameter itself, which is rounded to that type. */
typedef struct weights {
    const void *data;
    ls_audit_type type;
    int64_t out, in, tap; /* from one to the next */
} weights;

LS_DEVICE weights weights_of(const ls_audit_op &op)
{
    int64_t taps = (int64_t)op.kernel * op.kernel;
    if (op.w != NULL) {
        return weights{op.w, op.type, taps * op.in_channels, 1, op.in_channels};
    }
    return weights{op.weight.data, op.weight.type, taps * op.in_channels, taps, 1};
}

LS_DEVICE double rounded_at(ls_audit_type type, const void *data, ls_audit_type stored, int64_t i)
{
    double value = audit_value(data, stored, i);
    return stored == type ? value : audit_round(type, value);
}

/* The output relu(half_scale * x + half_bias) of the batch norm before a product that computes it.
 * The product of two f16 is exact in f32, so the sum alone is rounded, to f32 or at once to f16:
 * where 2u of it (an engine may truncate) decide between two f16, either is right, and *half_width
 * is half their distance, else 0. */
LS_DEVICE double applied_at(const ls_audit_op &op, int c, double x, double *half_width)
{
    const ls_audit_norm &n = op.norm[0];
    double z = x * audit_value(n.half_scale.data, n.half_scale.type, c) +
               audit_value(n.half_bias.data, n.half_bias.type, c);
    double reach = 2 * LS_AUDIT_U * fabs(z);
    double low = z - reach <= 0 ? 0 : audit_round(op.type, z - reach);
    double high = z + reach <= 0 ? 0 : audit_round(op.type, z + reach);
    *half_width = (high - low) / 2;
    return low + *half_width;
}

LS_DEVICE void add_applied(audit_sum *sum, const ls_audit_op &op, int64_t at, const weights &w,
                           int64_t first)
{
    for (int c = (int)threadIdx.x; c < op.in_channels; c += THREADS) {
        double weight = rounded_at(op.type, w.data, w.type, first + c * w.in), half_width;
        double x = applied_at(op, c, audit_value(op.x, op.type, at + c), &half_width);
        audit_add(sum, x * weight);
        sum->loose += half_width * fabs(weight);
    }
}

/* Adds `channels` products: of the activations in one pixel, from `at` on, and of weights. */
template <ls_audit_type TYPE>
LS_DEVICE void add_channels_of(audit_sum *sum, const void *data, int channels, int block,
                               int64_t pixels, int64_t at, const weights &w, int64_t first,
                               int64_t next)
{
    for (int k = 0; k < channels; k += block) {
        for (int c = (int)threadIdx.x; c < block; c += THREADS) {
            int64_t i = first + (k + c) * next;
            double weight = w.type == TYPE
                                ? audit_value(w.data, TYPE, i)
                                : audit_round(TYPE, audit_value(w.data, LS_AUDIT_F32, i));
            audit_add(sum, audit_value(data, TYPE, at + k * pixels + c) * weight);
        }
    }
}

LS_DEVICE void add_channels(audit_sum *sum, ls_audit_type type, const void *data, int channels,
                            int block, int64_t pixels, int64_t at, const weights &w, int64_t first,
                            int64_t next)
{
    if (type == LS_AUDIT_F32) {
        add_channels_of<LS_AUDIT_F32>(sum, data, channels, block, pixels, at, w, first, next);
    } else if (type == LS_AUDIT_F16) {
        add_channels_of<LS_AUDIT_F16>(sum, data, channels, block, pixels, at, w, first, next);
    } else {
        add_channels_of<LS_AUDIT_BF16>(sum, data, channels, block, pixels, at, w, first, next);
    }
}

/* y: over taps and input channels. */
LS_DEVICE audit_sum forward_terms(const ls_audit_op &op, int64_t index)
{
    audit_position p =
        audit_position_of(index, op.out_height, op.out_width, op.out_channels, op.out_block);
    weights w = weights_of(op);
    audit_sum sum = {};
    for (int tap = 0; tap < op.kernel * op.kernel; tap++) {
        int y = p.y * op.stride - op.pad + tap / op.kernel;
        int x = p.x * op.stride - op.pad + tap % op.kernel;
        if (y < 0 || y >= op.in_height || x < 0 || x >= op.in_width) {
            continue;
        }
        if (op.norm[0].half_scale.data != NULL) {
            add_applied(&sum, op, audit_in_index(op, p.n, y, x, 0), w, p.c * w.out + tap * w.tap);
        } else {
            add_channels(&sum, op.type, op.x, op.in_channels, op.in_block,
                         (int64_t)op.in_height * op.in_width, audit_in_index(op, p.n, y, x, 0), w,
                         p.c * w.out + tap * w.tap, w.in);
        }
    }
    return sum;
}

/* dx: over taps and output channels. */
LS_DEVICE audit_sum data_terms(const ls_audit_op &op, int64_t index)
{
    audit_position p =
        audit_position_of(index, op.in_height, op.in_width, op.in_channels, op.in_block);
    weights w = weights_of(op);
    audit_sum sum = {};
    for (int tap = 0; tap < op.kernel * op.kernel; tap++) {
        int y = p.y + op.pad - tap / op.kernel, x = p.x + op.pad - tap % op.kernel;
        if (y >= 0 && y % op.stride == 0 && y / op.stride < op.out_height && x >= 0 &&
            x % op.stride == 0 && x / op.stride < op.out_width) {
            add_channels(&sum, op.type, op.dy, op.out_channels, op.out_block,
                         (int64_t)op.out_height * op.out_width,
                         audit_out_index(op, p.n, y / op.stride, x / op.stride, 0), w,
                         p.c * w.in + tap * w.tap, w.out);
        }
    }
    return sum;
}

/* Whether a gradient passes the ReLU behind the batch norm op.norm[0]: 1 or 0; -1 near a tie, where
 * either is right; -2: the norm's output is not a number.
 *
 * The engine computes the output z = (x - mean) * inv_std * weight + bias once more, in f32, from
 * the kept mean and, in some order, factors and offset that were rounded to f32. Against z from the
 * kept mean and inv_std, with s = (x - mean) * inv_std * weight: inv_std, the factor, the
 * difference, two products and the sum cost u of s each; the offset and the sum u of the bias each;
 * the offset also makes up for the rounding of the mean, u of |mean| * inv_std * weight, rounded
 * once more. Where forward computed half_scale * x + half_bias, the engine gets half_scale and the
 * offset half_bias + mean * half_scale, rounded to f32: less than that. */
LS_DEVICE double normed_again(const ls_audit_op &op, int side, const void *x, int64_t index,
                              double *tie)
{
    const ls_audit_norm &n = op.norm[side];
    int c = audit_channel(op.in_channels, op.in_block, (int64_t)op.in_height * op.in_width, index);
    double mean = audit_value(n.mean.data, n.mean.type, c);
    double factor = audit_value(n.inv_std.data, n.inv_std.type, c) *
                    audit_value(n.weight.data, n.weight.type, c);
    double bias = audit_value(n.bias.data, n.bias.type, c);
    if (n.half_scale.data != NULL) { /* mean and offset are rounded to f32, nothing else is */
        factor = audit_value(n.half_scale.data, n.half_scale.type, c);
        bias = audit_value(n.half_bias.data, n.half_bias.type, c) + mean * factor;
    }
    double scaled = (audit_value(x, op.type, index) - mean) * factor;
    *tie += LS_AUDIT_U * (6 * fabs(scaled) + 2 * fabs(bias) + 2 * fabs(mean * factor));
    return scaled + bias;
}

/* At a block's end the residual, or the second norm's output, is added: u of each. */
LS_DEVICE int gate_of(const ls_audit_op &op, int64_t index)
{
    double tie = 0, z = normed_again(op, 0, op.normed, index, &tie);
    if (op.residual != NULL) {
        double more = op.dual ? normed_again(op, 1, op.residual, index, &tie)
                              : audit_value(op.residual, op.type, index);
        tie += LS_AUDIT_U * (fabs(z) + fabs(more));
        z += more;
    }
    return !isfinite(z) ? -2 : tie > 0 && fabs(z) <= tie ? -1 : z > 0 ? 1 : 0;
}

LS_DEVICE void gate_sample(const ls_audit_op &op, ls_audit_sample *sample)
{
    int gate = gate_of(op, sample->index);
    sample->or_zero = gate == -1;
    if (gate == -2 || !isfinite(sample->wanted)) {
        sample->bound = (double)INFINITY;
    } else if (gate == 0) {
        sample->wanted = sample->bound = 0;
    }
}

LS_KERNEL element_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int64_t total,
                         ls_audit_sample *sample)
{
    int64_t index = audit_index(draw, 0, (int)blockIdx.x, total, 1);
    bool forward = op.kind == LS_AUDIT_CONV;
    audit_sum sum = {};
    if (index >= 0) {
        sum = forward ? forward_terms(op, index) : data_terms(op, index);
    }
    sum = block_sum(sum);
    if (threadIdx.x != 0) {
        return;
    }
    double n = (double)op.kernel * op.kernel * (forward ? op.in_channels : op.out_channels);
    const void *bias = op.bias != NULL ? op.bias : op.plain_bias.data;
    if (forward && bias != NULL && index >= 0) { /* of a linear layer: one pixel */
        ls_audit_type stored = op.bias != NULL ? op.type : op.plain_bias.type;
        audit_add(&sum, rounded_at(op.type, bias, stored, index % op.out_channels));
        n += 1;
    }
    if (!forward && op.dy2 != NULL && index >= 0) { /* the convolution adds to dx */
        audit_add(&sum, audit_value(op.dy2, op.type, index));
        n += 1;
    }
    sample[blockIdx.x].index = index;
    sample[blockIdx.x].wanted = sum.sum;
    sample[blockIdx.x].bound = product_bound(op, n, sum);
    if (op.normed != NULL && index >= 0) {
        gate_sample(op, &sample[blockIdx.x]);
    }
}

/* ---- gradients of weights --------------------------------------------------------------------

 * On a device a thread sums one element over every LANES-th pixel, and neighbours of a run read
 * neighbouring values: few registers, so that many loads are under way. The CPU's thread sums a
 * whole run, whose elements share positions and values. */
enum {
    SHARE = LS_AUDIT_RUN / LS_THREADS(LS_AUDIT_RUN), /* elements of a thread */
    ACROSS = LS_AUDIT_RUN / SHARE,                   /* threads of a run */
    LANES = LS_THREADS(32),                          /* pixels that a block reads at a time */
    RUN_THREADS = LANES * ACROSS,
    AHEAD = LS_THREADS(4), /* pixels of a thread whose loads are under way together */
};

/* Consecutive elements of dw, [o][tap][c], or of the gradient itself, [o][c][tap]. */
typedef struct weight_run {
    int64_t dy[SHARE], plane[SHARE]; /* of the first image */
    int ky[SHARE], kx[SHARE];        /* tap minus padding; no element: out of reach */
    int channel[SHARE];              /* of the input */
} weight_run;

/* The elements of run `number` from its element `first` on. */
LS_DEVICE weight_run run_of(const ls_audit_op &op, ls_audit_draw draw, int number, int first,
                            int64_t total)
{
    weight_run run;
    int64_t of_in = (int64_t)op.in_height * op.in_width;
    int64_t of_out = (int64_t)op.out_height * op.out_width;
    int taps = op.kernel * op.kernel;
    for (int j = 0; j < SHARE; j++) {
        int64_t drawn =
            audit_index(draw, 0, number * LS_AUDIT_RUN + first + j, total, LS_AUDIT_RUN);
        int64_t index = drawn < 0 ? 0 : drawn;
        int tap = (int)(op.dw != NULL ? index / op.in_channels % taps : index % taps);
        int c = (int)(op.dw != NULL ? index % op.in_channels : index / taps % op.in_channels);
        int o = (int)(index / taps / op.in_channels);
        run.ky[j] = drawn < 0 ? -(1 << 30) : tap / op.kernel - op.pad;
        run.kx[j] = tap % op.kernel - op.pad;
        run.plane[j] = audit_plane(op.in_channels, op.in_block, of_in, 0, c);
        run.channel[j] = c;
        run.dy[j] = audit_plane(op.out_channels, op.out_block, of_out, 0, o);
    }
    return run;
}

/* A pixel of the output, and where its image begins in x and in dy. */
typedef struct pixel_walk {
    unsigned y, x;
    int64_t in, out;
} pixel_walk;

LS_DEVICE pixel_walk walk_from(const ls_audit_op &op, int64_t pixel)
{
    int64_t of_out = (int64_t)op.out_height * op.out_width, image = pixel / of_out;
    unsigned within = (unsigned)(pixel % of_out), width = (unsigned)op.out_width;
    return pixel_walk{within / width, within % width,
                      image * op.in_channels * op.in_height * op.in_width,
                      image * op.out_channels * of_out};
}

/* LANES pixels further: `rows` rows and `columns` columns. */
LS_DEVICE void walk_on(pixel_walk *walk, const ls_audit_op &op, unsigned rows, unsigned columns)
{
    unsigned width = (unsigned)op.out_width, height = (unsigned)op.out_height;
    walk->x += columns;
    walk->y += rows + (walk->x >= width);
    walk->x -= walk->x >= width ? width : 0;
    for (; walk->y >= height; walk->y -= height) {
        walk->in += (int64_t)op.in_channels * op.in_height * op.in_width;
        walk->out += (int64_t)op.out_channels * op.out_height * op.out_width;
    }
}

/* APPLIED: the values of x are a norm's input, whose output is the operand. */
template <bool APPLIED>
LS_DEVICE void add_terms(audit_sum *sum, const ls_audit_op &op, const weight_run &run,
                         const double *value, const double *g, const bool *inside)
{
    for (int j = 0; j < SHARE; j++) {
        if (!APPLIED) {
            audit_add(&sum[j], inside[j] ? value[j] * g[j] : 0);
        } else if (inside[j]) {
            double half_width, applied = applied_at(op, run.channel[j], value[j], &half_width);
            audit_add(&sum[j], applied * g[j]);
            sum[j].loose += half_width * fabs(g[j]);
        }
    }
}

/* Values that do not exist are read from the first place: no load waits for a decision. */
template <ls_audit_type TYPE, bool APPLIED>
LS_DEVICE void add_pixels(audit_sum *sum, const ls_audit_op &op, const weight_run &run,
                          int64_t from, int64_t to)
{
    unsigned rows = LANES / (unsigned)op.out_width, columns = LANES % (unsigned)op.out_width;
    pixel_walk walk = walk_from(op, from);
    for (int64_t p = from; p < to; p += LANES * AHEAD) {
        double value[AHEAD][SHARE], g[AHEAD][SHARE];
        bool inside[AHEAD][SHARE];
        for (int u = 0; u < AHEAD; u++) {
            bool there = p + LANES * u < to;
            int64_t at_dy =
                walk.out + (int64_t)(walk.y * (unsigned)op.out_width + walk.x) * op.out_block;
            for (int j = 0; j < SHARE; j++) {
                unsigned y = walk.y * (unsigned)op.stride + (unsigned)run.ky[j];
                unsigned x = walk.x * (unsigned)op.stride + (unsigned)run.kx[j];
                bool in = there && y < (unsigned)op.in_height && x < (unsigned)op.in_width;
                int64_t at =
                    walk.in + run.plane[j] + (int64_t)(y * (unsigned)op.in_width + x) * op.in_block;
                inside[u][j] = in;
                value[u][j] = audit_value(op.x, TYPE, in ? at : 0);
                g[u][j] = j > 0 && run.dy[j] == run.dy[j - 1] /* most of a run share it */
                              ? g[u][j - 1]
                              : audit_value(op.dy, TYPE, there ? at_dy + run.dy[j] : 0);
            }
            walk_on(&walk, op, rows, columns);
        }
        for (int u = 0; u < AHEAD; u++) {
            add_terms<APPLIED>(sum, op, run, value[u], g[u], inside[u]);
        }
    }
}

/* blockIdx.x is the run, blockIdx.y the part of the pixels. */
template <ls_audit_type TYPE, bool APPLIED>
LS_KERNEL weights_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int64_t total, int parts,
                         audit_sum *partial)
{
    LS_SHARED(audit_sum, part, RUN_THREADS * SHARE);
    int thread = (int)threadIdx.x, first = thread % ACROSS * SHARE;
    audit_sum sum[SHARE] = {};
    weight_run run = run_of(op, draw, (int)blockIdx.x, first, total);
    int64_t pixels = (int64_t)op.images * op.out_height * op.out_width;
    int64_t from = pixels * blockIdx.y / parts, to = pixels * (blockIdx.y + 1) / parts;
    add_pixels<TYPE, APPLIED>(sum, op, run, from + thread / ACROSS, to);
    for (int j = 0; j < SHARE; j++) {
        part[thread * SHARE + j] = sum[j];
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half * ACROSS) {
            add_sum(&part[thread], part[thread + half * ACROSS]);
        }
    }
    for (int j = 0; j < SHARE && thread < ACROSS; j++) {
        partial[(int64_t)blockIdx.y * LS_AUDIT_SAMPLES + blockIdx.x * LS_AUDIT_RUN + first + j] =
            part[thread * SHARE + j];
    }
}

LS_KERNEL merge_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int64_t total, int parts,
                       const audit_sum *partial, ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    audit_sum sum = {};
    for (int p = 0; p < parts; p++) {
        add_sum(&sum, partial[(int64_t)p * LS_AUDIT_SAMPLES + i]);
    }
    double n = (double)op.images * op.out_height * op.out_width;
    sample[i].index = audit_index(draw, 0, i, total, LS_AUDIT_RUN);
    sample[i].wanted = sum.sum;
    sample[i].bound = product_bound(op, n, sum);
}

static ls_status weight_gradient(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                                 int64_t total, const audit_room *room)
{
    int64_t pixels = (int64_t)op->images * op->out_height * op->out_width;
    int64_t worth = (pixels + PIXELS_WORTH_A_PART - 1) / PIXELS_WORTH_A_PART;
    int parts = worth < MOST_PARTS ? (int)worth : MOST_PARTS;
    audit_sum *partial = (audit_sum *)room->partial;
    LS_ASSERT((int64_t)sizeof *partial * parts * LS_AUDIT_SAMPLES <=
              (int64_t)sizeof(double) * AUDIT_PARTIAL);
    bool applied = op->norm[0].half_scale.data != NULL;
    auto *kernel = op->type == LS_AUDIT_F32   ? weights_kernel<LS_AUDIT_F32, false>
                   : op->type == LS_AUDIT_F16 ? applied ? weights_kernel<LS_AUDIT_F16, true>
                                                        : weights_kernel<LS_AUDIT_F16, false>
                   : applied ? weights_kernel<LS_AUDIT_BF16, true>
                                              : weights_kernel<LS_AUDIT_BF16, false>;
    LS_ASSERT(!applied || op->type != LS_AUDIT_F32);
    LS_LAUNCH(kernel, dim3(LS_AUDIT_SAMPLES / LS_AUDIT_RUN, (unsigned)parts), RUN_THREADS, stream,
              *op, draw, total, parts, partial);
    LS_LAUNCH(merge_kernel, ls_launch_blocks(LS_AUDIT_SAMPLES, THREADS), THREADS, stream, *op, draw,
              total, parts, partial, room->sample);
    return LS_OK;
}

ls_status ls_audit_products(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                            const audit_room *room)
{
    int64_t in = (int64_t)op->images * op->in_height * op->in_width * op->in_channels;
    int64_t out = (int64_t)op->images * op->out_height * op->out_width * op->out_channels;
    if (op->kind == LS_AUDIT_CONV_WEIGHTS) {
        int64_t total = (int64_t)op->out_channels * op->kernel * op->kernel * op->in_channels;
        return weight_gradient(stream, op, draw, total, room);
    }
    LS_LAUNCH(element_kernel, LS_AUDIT_SAMPLES, THREADS, stream, *op, draw,
              op->kind == LS_AUDIT_CONV ? out : in, room->sample);
    return LS_OK;
}
