/* Batch norms: the statistics of every channel in FP64, over all ranks that share them, and
 * elements of the outputs of forward and backward. The statistics of forward are kept for backward,
 * which reads the same input. */
#include "audit_kernels.h"

enum {
    LANES = LS_THREADS(16), /* consecutive channels of a block */
    ROWS = LS_THREADS(8),   /* parts of the rows that a block processes at a time */
    THREADS = LANES * ROWS,
    MOST_PARTS = LS_THREADS(8) * 64, /* of the rows */
    VALUES = 4,                      /* sums per channel and part */
    AHEAD = 4,                       /* rows of a thread whose loads are under way together */
    MERGE_ROWS = LS_THREADS(32),     /* parts that are merged at a time */
    CHANNEL_THREADS = LS_THREADS(32),
    SAMPLE_THREADS = LS_THREADS(64),
};

/* ---- the gradient that comes ----------------------------------------------------------------- */

/* The gradient that the operation uses: the sum of both contributions in f32, gated, and rounded if
 * it is stored. */
LS_DEVICE double gradient_at(const ls_audit_op &op, ls_audit_type type, int64_t i)
{
    if (!audit_open(op, i)) {
        return 0;
    }
    double g = audit_value(op.dy, type, i);
    if (op.dy2 != NULL) {
        float sum = (float)g + (float)audit_value(op.dy2, type, i);
        g = op.g != NULL ? audit_round(type, (double)sum) : (double)sum;
    }
    return g;
}

/* ---- sums over rows -------------------------------------------------------------------------- */

enum { MOMENTS, BACK };

LS_DEVICE int channel_of(const ls_audit_op &op, int64_t i)
{
    return audit_channel(op.in_channels, op.in_block, (int64_t)op.in_height * op.in_width, i);
}

/* The rows of a channel, one after the other: the place of the next, and its pixel. */
typedef struct row_walk {
    int64_t at;
    int pixel;
} row_walk;

LS_DEVICE int64_t next_row(const ls_audit_op &op, row_walk *walk)
{
    int64_t i = walk->at;
    int pixels = op.in_height * op.in_width;
    walk->at += op.in_block;
    if (++walk->pixel == pixels) {
        walk->at += (int64_t)(op.in_channels - op.in_block) * pixels;
        walk->pixel = 0;
    }
    return i;
}

/* gradient_at of elements i[COUNT], whose loads are under way together. */
template <ls_audit_type TYPE, int COUNT>
LS_DEVICE void gradients_at(const ls_audit_op &op, const int64_t *i, double *g)
{
    if (op.mask == NULL || op.dy2 != NULL) {
        for (int u = 0; u < COUNT; u++) {
            g[u] = gradient_at(op, TYPE, i[u]);
        }
        return;
    }
    bool open[COUNT];
    for (int u = 0; u < COUNT; u++) {
        open[u] = audit_open(op, i[u]);
        g[u] = audit_value(op.dy, TYPE, i[u]);
    }
    for (int u = 0; u < COUNT; u++) {
        g[u] = open[u] ? g[u] : 0;
    }
}

/* The next COUNT rows. MOMENTS: the distance from `middle`, and its square. BACK: g, g^2, g*xhat
 * and its square, of statistics middle and inv_std. */
template <ls_audit_type TYPE, int WHAT, int COUNT>
LS_DEVICE void add_rows_of(double *sum, const ls_audit_op &op, const void *x, double middle,
                           double inv_std, row_walk *walk)
{
    int64_t i[COUNT];
    double value[COUNT], g[COUNT] = {};
    for (int u = 0; u < COUNT; u++) {
        i[u] = next_row(op, walk);
        value[u] = audit_value(x, TYPE, i[u]);
    }
    if (WHAT == BACK) {
        gradients_at<TYPE, COUNT>(op, i, g);
    }
    for (int u = 0; u < COUNT; u++) {
        double off = value[u] - middle;
        if (WHAT == MOMENTS) {
            sum[0] += off;
            sum[1] += off * off;
        } else {
            double weighted = g[u] * (off * inv_std);
            sum[0] += g[u];
            sum[1] += g[u] * g[u];
            sum[2] += weighted;
            sum[3] += weighted * weighted;
        }
    }
}

LS_DEVICE const void *norm_input(const ls_audit_op &op, int side)
{
    return side == 0 ? op.x : op.residual;
}

/* The first value of a channel, which its moments are about: of a channel that is constant, both
 * are exactly 0. */
LS_DEVICE double pivot_of(const ls_audit_op &op, int side, int c)
{
    int64_t pixels = (int64_t)op.in_height * op.in_width;
    return audit_value(norm_input(op, side), op.type,
                       audit_plane(op.in_channels, op.in_block, pixels, 0, c));
}

/* The rows [from, to) of channel c. */
template <ls_audit_type TYPE, int WHAT>
LS_DEVICE void add_rows(double *sum, const ls_audit_op &op, int side, int c, int64_t from,
                        int64_t to)
{
    const void *x = norm_input(op, side);
    const double *stats = op.norm[side].stats;
    double middle = WHAT == MOMENTS ? pivot_of(op, side, c) : stats[c];
    double inv_std = WHAT == MOMENTS ? 0 : stats[op.in_channels + c];
    int64_t pixels = (int64_t)op.in_height * op.in_width, row = from;
    int64_t plane = audit_plane(op.in_channels, op.in_block, pixels, from / pixels, c);
    row_walk walk = {plane + from % pixels * op.in_block, (int)(from % pixels)};
    for (; row + AHEAD <= to; row += AHEAD) {
        add_rows_of<TYPE, WHAT, AHEAD>(sum, op, x, middle, inv_std, &walk);
    }
    for (; row < to; row++) {
        add_rows_of<TYPE, WHAT, 1>(sum, op, x, middle, inv_std, &walk);
    }
}

/* Sums of [rows][LANES] threads over the rows; every thread of the block must call this. The first
 * LANES threads receive them. part[VALUES][rows * LANES] */
LS_DEVICE void fold_rows(double *part, double *sum, int rows)
{
    int thread = (int)threadIdx.x;
    for (int k = 0; k < VALUES; k++) {
        part[k * rows * LANES + thread] = sum[k];
    }
    for (int half = rows / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int k = 0; k < VALUES && thread < half * LANES; k++) {
            part[k * rows * LANES + thread] += part[k * rows * LANES + thread + half * LANES];
        }
    }
    for (int k = 0; k < VALUES && thread < LANES; k++) {
        sum[k] = part[k * rows * LANES + thread];
    }
}

/* partial[part of the rows][channel][VALUES] */
template <ls_audit_type TYPE, int WHAT>
LS_KERNEL rows_kernel(LS_BLOCK ls_audit_op op, int side, int parts, double *partial)
{
    LS_SHARED(double, shared, VALUES *THREADS);
    int c = (int)(blockIdx.x * LANES + threadIdx.x % LANES), channels = op.in_channels;
    int64_t rows = (int64_t)op.images * op.in_height * op.in_width;
    int part = (int)(blockIdx.y * ROWS + threadIdx.x / LANES), all = parts * ROWS;
    double sum[VALUES] = {};
    if (c < channels) {
        add_rows<TYPE, WHAT>(sum, op, side, c, rows * part / all, rows * (part + 1) / all);
    }
    fold_rows(shared, sum, ROWS);
    for (int k = 0; k < VALUES && c < channels && threadIdx.x < LANES; k++) {
        partial[((int64_t)blockIdx.y * channels + c) * VALUES + k] = sum[k];
    }
}

/* to[VALUES][channels] = sums over parts. */
LS_KERNEL merge_kernel(LS_BLOCK int channels, int parts, const double *partial, double *to)
{
    LS_SHARED(double, shared, VALUES *MERGE_ROWS *LANES);
    int c = (int)(blockIdx.x * LANES + threadIdx.x % LANES);
    double sum[VALUES] = {};
    for (int part = (int)threadIdx.x / LANES; part < parts && c < channels; part += MERGE_ROWS) {
        for (int k = 0; k < VALUES; k++) {
            sum[k] += partial[((int64_t)part * channels + c) * VALUES + k];
        }
    }
    fold_rows(shared, sum, MERGE_ROWS);
    for (int k = 0; k < VALUES && c < channels && threadIdx.x < LANES; k++) {
        to[(int64_t)k * channels + c] = sum[k];
    }
}

static int parts_for(int64_t rows)
{
    int64_t worth = (rows + 63) / 64;
    return worth < MOST_PARTS ? (int)worth : MOST_PARTS;
}

/* to[VALUES][channels] = sums over the rows of this rank. */
template <int WHAT>
static ls_status sum_rows(audit_stream stream, const ls_audit_op *op, int side, double *to,
                          const audit_room *room)
{
    int64_t rows = (int64_t)op->images * op->in_height * op->in_width;
    int parts = parts_for(rows);
    while (parts > 1 && (int64_t)parts * op->in_channels * VALUES > AUDIT_PARTIAL) {
        parts /= 2;
    }
    LS_ASSERT((int64_t)parts * op->in_channels * VALUES <= AUDIT_PARTIAL);
    auto *kernel = op->type == LS_AUDIT_F32   ? rows_kernel<LS_AUDIT_F32, WHAT>
                   : op->type == LS_AUDIT_F16 ? rows_kernel<LS_AUDIT_F16, WHAT>
                                              : rows_kernel<LS_AUDIT_BF16, WHAT>;
    unsigned blocks = ls_launch_blocks(op->in_channels, LANES);
    LS_LAUNCH(kernel, dim3(blocks, (unsigned)parts), THREADS, stream, *op, side, parts,
              room->partial);
    LS_LAUNCH(merge_kernel, blocks, MERGE_ROWS * LANES, stream, op->in_channels, parts,
              room->partial, to);
    return LS_OK;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* The moments about each channel's pivot become its mean and its squared distances from that; the
 * number of rows follows. */
LS_KERNEL center_kernel(LS_BLOCK ls_audit_op op, int side, double *moment)
{
    int c = (int)(blockIdx.x * CHANNEL_THREADS + threadIdx.x), channels = op.in_channels;
    double rows = (double)op.images * op.in_height * op.in_width;
    if (c >= channels) {
        return;
    }
    double off = moment[c] / rows, squares = moment[channels + c] - moment[c] * off;
    moment[c] = pivot_of(op, side, c) + off;
    moment[channels + c] = squares < 0 ? 0 : squares; /* not a number stays what it is */
    if (c == 0) {
        moment[2 * channels] = rows;
    }
}

/* stats from each rank's mean[channels], squared distances[channels] and rows. */
LS_KERNEL finish_kernel(LS_BLOCK ls_audit_op op, int side, const double *of_rank, int64_t stride)
{
    int c = (int)(blockIdx.x * CHANNEL_THREADS + threadIdx.x), channels = op.in_channels;
    if (c >= channels) {
        return;
    }
    double middle = 0, squares = 0, rows = 0;
    for (int r = 0; r < op.group; r++) {
        rows += of_rank[r * stride + 2 * channels];
    }
    for (int r = 0; r < op.group; r++) {
        middle += of_rank[r * stride + c] * (of_rank[r * stride + 2 * channels] / rows);
    }
    for (int r = 0; r < op.group; r++) {
        double off = of_rank[r * stride + c] - middle;
        squares +=
            of_rank[r * stride + channels + c] + of_rank[r * stride + 2 * channels] * off * off;
    }
    double *stats = op.norm[side].stats;
    stats[c] = middle;
    stats[channels + c] = 1 / sqrt(squares / rows + op.norm[side].epsilon);
    if (c == 0) {
        stats[2 * channels] = rows;
    }
}

static ls_status statistics(audit_stream stream, const ls_audit_op *op, int side,
                            const audit_room *room)
{
    int64_t channels = op->in_channels, stride = 2 * channels + 1;
    unsigned blocks = ls_launch_blocks(channels, CHANNEL_THREADS);
    const double *of_rank = room->channel; /* means, squared distances, rows */
    LS_TRY(sum_rows<MOMENTS>(stream, op, side, room->channel, room));
    LS_LAUNCH(center_kernel, blocks, CHANNEL_THREADS, stream, *op, side, room->channel);
    if (op->group > 1) {
        of_rank = room->gathered;
        LS_TRY(op->gather(op->gather_context, room->channel, room->gathered, stride));
    }
    LS_LAUNCH(finish_kernel, blocks, CHANNEL_THREADS, stream, *op, side, of_rank, stride);
    return LS_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

LS_DEVICE double rows_of_group(const ls_audit_op &op, int side)
{
    return op.norm[side].stats[2 * op.in_channels];
}

/* Of f32 sums over all rows: the relative error of a sum of squares, which is also the error of a
 * mean in standard deviations. 16 sqrt(n) u: see audit.h. */
LS_DEVICE double sums_error(const ls_audit_op &op, int side)
{
    return 16 * sqrt(rows_of_group(op, side)) * LS_AUDIT_U;
}

LS_DEVICE double normed(const ls_audit_op &op, int side, int64_t i, double *bound)
{
    const ls_audit_norm &n = op.norm[side];
    int c = channel_of(op, i);
    double mean = n.stats[c], inv_std = n.stats[op.in_channels + c];
    double weight = audit_value(n.weight.data, n.weight.type, c);
    double bias = audit_value(n.bias.data, n.bias.type, c);
    double x = audit_value(side == 0 ? op.x : op.residual, op.type, i);
    double scaled = (x - mean) * inv_std * weight, error = sums_error(op, side);
    *bound += fabs(weight) * error + fabs(scaled) * (error + 6 * LS_AUDIT_U) +
              2 * LS_AUDIT_U * (fabs(bias) + fabs(mean * inv_std * weight));
    return scaled + bias;
}

LS_DEVICE double forward_at(const ls_audit_op &op, int64_t i, double *bound)
{
    double value = normed(op, 0, i, bound), other = 0;
    if (op.dual) {
        other = normed(op, 1, i, bound);
    } else if (op.residual != NULL) {
        other = audit_value(op.residual, op.type, i);
    }
    value += other;
    *bound += 2 * LS_AUDIT_U * (fabs(value) + fabs(other));
    if (op.relu && op.given) {
        return audit_open(op, i) ? value : 0;
    }
    return op.relu && value <= 0 ? 0 : value;
}

/* half_scale = weight * inv_std, or half_bias = bias - mean * half_scale, with what the statistics
 * may be off: either f16 that scale may have been rounded to is right there. f32 costs 2u of a
 * factor and of each term. */
LS_DEVICE double half_at(const ls_audit_norm &n, bool bias, int c, double mean, double inv_std,
                         double error, double mean_error, double *bound)
{
    double scale = audit_value(n.weight.data, n.weight.type, c) * inv_std;
    double off = (error + 4 * LS_AUDIT_U) * fabs(scale);
    if (!bias) {
        *bound = off;
        return scale;
    }
    double low = audit_round(n.half_scale.type, scale - off);
    double high = audit_round(n.half_scale.type, scale + off), middle = (low + high) / 2;
    double offset = audit_value(n.bias.data, n.bias.type, c);
    *bound = fabs(mean) * fabs(high - low) / 2 + mean_error * fmax(fabs(low), fabs(high)) +
             2 * LS_AUDIT_U * (fabs(offset) + fabs(mean * middle));
    return offset - mean * middle;
}

/* The stored values of a channel after forward: 0 mean, 1 inv_std, 2 running_mean, 3 running_var,
 * 4 half_scale, 5 half_bias. */
LS_DEVICE double kept_at(const ls_audit_op &op, int side, int what, int c, double *bound)
{
    const ls_audit_norm &n = op.norm[side];
    double mean = n.stats[c], inv_std = n.stats[op.in_channels + c], error = sums_error(op, side);
    double rows = rows_of_group(op, side);
    double variance = 1 / (inv_std * inv_std) - n.epsilon;
    double mean_error = error / inv_std + 2 * LS_AUDIT_U * fabs(mean);
    if (what == 0) {
        *bound = mean_error;
        return mean;
    }
    if (what == 1) {
        *bound = (error + 2 * LS_AUDIT_U) * inv_std;
        return inv_std;
    }
    if (what >= 4) {
        return half_at(n, what == 5, c, mean, inv_std, error, mean_error, bound);
    }
    const ls_audit_tensor &t = what == 2 ? n.running_mean : n.running_var;
    double old = audit_value(t.data, t.type, c);
    double fresh = what == 2 ? mean : variance * (rows > 1 ? rows / (rows - 1) : 1);
    /* 1/inv_std^2 - epsilon loses digits of a small variance: 2^-50 of the subtracted value */
    double fresh_error = what == 2 ? mean_error : 2 * error * fresh + ldexp(fresh + n.epsilon, -50);
    *bound = n.momentum * fresh_error + 4 * LS_AUDIT_U * (fabs(old) + n.momentum * fabs(fresh));
    return old + n.momentum * (fresh - old);
}

/* blockIdx.y: the output, in the order of outputs(): y, then `kept` of each side, the last of the
 * four; without y the four and what the next product computes y from. */
LS_KERNEL forward_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int64_t total, int kept,
                         ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * SAMPLE_THREADS + threadIdx.x), output = (int)blockIdx.y;
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    ls_audit_sample *to = &sample[output * LS_AUDIT_SAMPLES + i];
    to->index = audit_index(draw, output, i, output == 0 ? total : op.in_channels, 1);
    to->bound = 0;
    if (op.y == NULL) {
        to->index = audit_index(draw, output, i, op.in_channels, 1);
        to->wanted = to->index < 0 ? 0 : kept_at(op, 0, output, (int)to->index, &to->bound);
        return;
    }
    to->wanted = to->index < 0 ? 0
                 : output == 0 ? forward_at(op, to->index, &to->bound)
                               : kept_at(op, (output - 1) / kept, 4 - kept + (output - 1) % kept,
                                         (int)to->index, &to->bound);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Lists of a side's sums, [channels] each: of this rank, and of all ranks (the mean over rows). */
typedef struct back_sums {
    const double *own;           /* g, g^2, g*xhat, (g*xhat)^2 */
    const double *all;           /* g and g*xhat of each rank */
    int64_t stride, of_weighted; /* from rank to rank; from g to g*xhat */
} back_sums;

LS_DEVICE audit_sum list_sum(const double *list, int64_t channels, int c, int first)
{
    audit_sum s = {};
    s.sum = list[first * channels + c];
    s.square = list[(first + 1) * channels + c];
    s.size = (double)INFINITY; /* unknown: the walk's bound applies */
    return s;
}

/* 0 weight_grad, 1 bias_grad. */
LS_DEVICE double parameter_at(const ls_audit_op &op, const back_sums &sums, int side, int what,
                              int c, double *bound)
{
    double rows = (double)op.images * op.in_height * op.in_width;
    double error = sums_error(op, side);
    audit_sum plain = list_sum(sums.own, op.in_channels, c, 0);
    audit_sum weighted = list_sum(sums.own, op.in_channels, c, 2);
    if (what == 1) {
        *bound = audit_bound(rows, plain, false) + 2 * LS_AUDIT_U * fabs(plain.sum);
        return plain.sum;
    }
    /* an error in xhat of error and error*|xhat| moves each term */
    *bound = audit_bound(rows, weighted, false) + (error + 4 * LS_AUDIT_U) * fabs(weighted.sum) +
             error * fabs(plain.sum) +
             2 * LS_AUDIT_U * fabs(op.norm[side].stats[c]) *
                 op.norm[side].stats[op.in_channels + c] * fabs(plain.sum);
    return weighted.sum;
}

/* dx of `side`: scale * (g - mean(g) - xhat * mean(g * xhat)). */
LS_DEVICE double back_at(const ls_audit_op &op, const back_sums &sums, int side, int64_t i,
                         double *bound)
{
    const ls_audit_norm &n = op.norm[side];
    int c = channel_of(op, i);
    double rows = rows_of_group(op, side);
    double scale = audit_value(n.weight.data, n.weight.type, c) * n.stats[op.in_channels + c];
    double g = gradient_at(op, op.type, i), error = sums_error(op, side);
    double x = audit_value(side == 0 ? op.x : op.residual, op.type, i);
    double xhat = (x - n.stats[c]) * n.stats[op.in_channels + c];
    double mean_g = 0, mean_gx = 0;
    for (int r = 0; r < op.group; r++) {
        mean_g += sums.all[r * sums.stride + c] / rows;
        mean_gx += sums.all[r * sums.stride + sums.of_weighted + c] / rows;
    }
    audit_sum plain = list_sum(sums.own, op.in_channels, c, 0);
    audit_sum weighted = list_sum(sums.own, op.in_channels, c, 2);
    /* other ranks' sums have about the same error as this rank's, in proportion to their rows */
    double all = rows / ((double)op.images * op.in_height * op.in_width);
    double off_g = all * audit_bound(rows, plain, false) / rows;
    double off_gx = all * audit_bound(rows, weighted, false) / rows;
    double terms = fabs(g) + fabs(mean_g) + fabs(xhat * mean_gx);
    double mean_size = fabs(n.stats[c]) * n.stats[op.in_channels + c];
    *bound = fabs(scale) * ((3 * error + 8 * LS_AUDIT_U) * terms + off_g + fabs(xhat) * off_gx +
                            (error + 2 * LS_AUDIT_U * mean_size) * (fabs(mean_gx) + fabs(mean_g)));
    return scale * (g - mean_g - xhat * mean_gx);
}

/* `output` in the order of outputs(); what: 0 g, 1 dx of a side, 2 and 3 its parameters. */
LS_KERNEL back_kernel(LS_BLOCK ls_audit_op op, ls_audit_draw draw, int output, int side, int what,
                      back_sums sums, int64_t total, ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * SAMPLE_THREADS + threadIdx.x);
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    ls_audit_sample *to = &sample[output * LS_AUDIT_SAMPLES + i];
    to->index = audit_index(draw, output, i, what < 2 ? total : op.in_channels, 1);
    to->bound = 0;
    to->wanted = to->index < 0 ? 0
                 : what == 0   ? gradient_at(op, op.type, to->index)
                 : what == 1   ? back_at(op, sums, side, to->index, &to->bound)
                               : parameter_at(op, sums, side, what - 2, (int)to->index, &to->bound);
}

static ls_status back_outputs(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                              int side, int *output, back_sums sums, const audit_room *room)
{
    int64_t total = (int64_t)op->images * op->in_height * op->in_width * op->in_channels;
    bool has[4] = {side == 0 && audit_keeps_joined(op), (side == 0 ? op->dx : op->dx2) != NULL,
                   true, true};
    for (int what = 0; what < 4; what++) {
        if (has[what]) {
            LS_LAUNCH(back_kernel, ls_launch_blocks(LS_AUDIT_SAMPLES, SAMPLE_THREADS),
                      SAMPLE_THREADS, stream, *op, draw, *output, side, what, sums, total,
                      room->sample);
            ++*output;
        }
    }
    return LS_OK;
}

static ls_status backward(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                          const audit_room *room)
{
    int output = 0;
    int64_t channels = op->in_channels;
    for (int side = 0; side < (op->dual ? 2 : 1); side++) {
        LS_TRY(sum_rows<BACK>(stream, op, side, room->channel, room));
        back_sums sums = {room->channel, room->channel, 0, 2 * channels};
        if (op->group > 1) {
            sums.stride = 4 * channels;
            sums.all = room->gathered;
            LS_TRY(op->gather(op->gather_context, room->channel, room->gathered, sums.stride));
        }
        LS_TRY(back_outputs(stream, op, draw, side, &output, sums, room));
    }
    return LS_OK;
}

ls_status ls_audit_norms(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                         const audit_room *room)
{
    if (op->kind == LS_AUDIT_NORM_BACK) {
        return backward(stream, op, draw, room);
    }
    int64_t total = (int64_t)op->images * op->in_height * op->in_width * op->in_channels;
    for (int side = 0; side < (op->dual ? 2 : 1); side++) {
        LS_TRY(statistics(stream, op, side, room));
    }
    int kept = op->norm[0].mean.data != NULL ? 4 : 3; /* the CPU keeps no mean by channel */
    unsigned outputs = op->y == NULL ? 6 : 1 + (op->dual ? 2u : 1u) * (unsigned)kept;
    LS_LAUNCH(forward_kernel, dim3(ls_launch_blocks(LS_AUDIT_SAMPLES, SAMPLE_THREADS), outputs),
              SAMPLE_THREADS, stream, *op, draw, total, kept, room->sample);
    return LS_OK;
}
