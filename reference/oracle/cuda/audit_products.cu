/* Elements of convolutions and linear layers, and of the gradients of both: one block sums one
 * element. */
#include "audit_kernels.h"

enum { THREADS = 32, MOST_PARTS = 64, PIXELS_WORTH_A_PART = 4096 };

/* Sums over the block; every thread receives them and must call this. */
LS_DEVICE audit_sum block_sum(audit_sum mine)
{
    LS_SHARED(audit_sum, part, THREADS);
    __syncthreads();
    part[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            part[threadIdx.x].sum += part[threadIdx.x + half].sum;
            part[threadIdx.x].square += part[threadIdx.x + half].square;
            part[threadIdx.x].size += part[threadIdx.x + half].size;
        }
    }
    __syncthreads();
    return part[0];
}

LS_DEVICE double product_bound(const ls_audit_op &op, double n, audit_sum s)
{
    bool half = op.type != LS_AUDIT_F32;
    double bound = audit_bound(n, s, half || op.tf32);
    /* TF32 keeps 10 bits of both factors, possibly truncated: 2^-10 of a product each */
    return op.tf32 && !half ? bound + ldexp(1.0, -9) * (fabs(s.sum) + 8 * sqrt(s.square)) : bound;
}

/* y[pixel][o]: over taps and input channels. */
LS_DEVICE audit_sum forward_terms(const ls_audit_op &op, int64_t index)
{
    int o = (int)(index % op.out_channels);
    int64_t pixel = index / op.out_channels, n = pixel / op.out_width / op.out_height;
    int y0 = (int)(pixel / op.out_width % op.out_height) * op.stride - op.pad;
    int x0 = (int)(pixel % op.out_width) * op.stride - op.pad;
    int terms = op.kernel * op.kernel * op.in_channels;
    audit_sum sum = {};
    for (int i = (int)threadIdx.x; i < terms; i += THREADS) {
        int c = i % op.in_channels, tap = i / op.in_channels;
        int y = y0 + tap / op.kernel, x = x0 + tap % op.kernel;
        if (y >= 0 && y < op.in_height && x >= 0 && x < op.in_width) {
            int64_t from = ((n * op.in_height + y) * op.in_width + x) * op.in_channels + c;
            audit_add(&sum, audit_value(op.x, op.type, from) *
                                audit_value(op.w, op.type, (int64_t)o * terms + i));
        }
    }
    return sum;
}

/* dx[pixel][c]: over taps and output channels. */
LS_DEVICE audit_sum data_terms(const ls_audit_op &op, int64_t index)
{
    int c = (int)(index % op.in_channels), taps = op.kernel * op.kernel;
    int64_t pixel = index / op.in_channels, n = pixel / op.in_width / op.in_height;
    int y0 = (int)(pixel / op.in_width % op.in_height) + op.pad;
    int x0 = (int)(pixel % op.in_width) + op.pad;
    audit_sum sum = {};
    for (int i = (int)threadIdx.x; i < taps * op.out_channels; i += THREADS) {
        int o = i % op.out_channels, tap = i / op.out_channels;
        int y = y0 - tap / op.kernel, x = x0 - tap % op.kernel;
        if (y >= 0 && y % op.stride == 0 && y / op.stride < op.out_height && x >= 0 &&
            x % op.stride == 0 && x / op.stride < op.out_width) {
            int64_t from = ((n * op.out_height + y / op.stride) * op.out_width + x / op.stride) *
                               op.out_channels +
                           o;
            audit_add(&sum, audit_value(op.dy, op.type, from) *
                                audit_value(op.w, op.type,
                                            ((int64_t)o * taps + tap) * op.in_channels + c));
        }
    }
    return sum;
}

LS_KERNEL element_kernel(ls_audit_op op, ls_audit_draw draw, int64_t total, ls_audit_sample *sample)
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
    if (forward && op.bias != NULL && index >= 0) {
        audit_add(&sum, audit_value(op.bias, op.type, index % op.out_channels));
        n += 1;
    }
    if (!forward && op.dy2 != NULL && index >= 0) { /* the convolution adds to dx */
        audit_add(&sum, audit_value(op.dy2, op.type, index));
        n += 1;
    }
    sample[blockIdx.x].index = index;
    sample[blockIdx.x].wanted = sum.sum;
    sample[blockIdx.x].bound = product_bound(op, n, sum);
}

/* Runs of dw[o][tap][c]: blockIdx.x is the run, blockIdx.y the part of the pixels. */
LS_KERNEL weights_kernel(ls_audit_op op, ls_audit_draw draw, int64_t total, int parts,
                         audit_sum *partial)
{
    audit_sum sum[LS_AUDIT_RUN] = {};
    int64_t o[LS_AUDIT_RUN], c[LS_AUDIT_RUN];
    int ky[LS_AUDIT_RUN], kx[LS_AUDIT_RUN];
    int64_t pixels = (int64_t)op.images * op.out_height * op.out_width;
    for (int j = 0; j < LS_AUDIT_RUN; j++) {
        int64_t index =
            audit_index(draw, 0, (int)blockIdx.x * LS_AUDIT_RUN + j, total, LS_AUDIT_RUN);
        int64_t tap = index / op.in_channels % (op.kernel * op.kernel);
        c[j] = index % op.in_channels;
        o[j] = index < 0 ? -1 : index / op.in_channels / (op.kernel * op.kernel);
        ky[j] = (int)tap / op.kernel - op.pad;
        kx[j] = (int)tap % op.kernel - op.pad;
    }
    int64_t from = pixels * blockIdx.y / parts, to = pixels * (blockIdx.y + 1) / parts;
    for (int64_t p = from + threadIdx.x; p < to; p += THREADS) {
        int64_t n = p / op.out_width / op.out_height;
        int y0 = (int)(p / op.out_width % op.out_height) * op.stride;
        int x0 = (int)(p % op.out_width) * op.stride;
        for (int j = 0; j < LS_AUDIT_RUN; j++) {
            int y = y0 + ky[j], x = x0 + kx[j];
            if (o[j] >= 0 && y >= 0 && y < op.in_height && x >= 0 && x < op.in_width) {
                int64_t at = ((n * op.in_height + y) * op.in_width + x) * op.in_channels + c[j];
                audit_add(&sum[j], audit_value(op.x, op.type, at) *
                                       audit_value(op.dy, op.type, p * op.out_channels + o[j]));
            }
        }
    }
    for (int j = 0; j < LS_AUDIT_RUN; j++) {
        audit_sum whole = block_sum(sum[j]);
        if (threadIdx.x == 0) {
            partial[(int64_t)blockIdx.y * LS_AUDIT_SAMPLES + blockIdx.x * LS_AUDIT_RUN + j] = whole;
        }
    }
}

LS_KERNEL merge_kernel(ls_audit_op op, ls_audit_draw draw, int64_t total, int parts,
                       const audit_sum *partial, ls_audit_sample *sample)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= LS_AUDIT_SAMPLES) {
        return;
    }
    audit_sum sum = {};
    for (int p = 0; p < parts; p++) {
        audit_sum part = partial[(int64_t)p * LS_AUDIT_SAMPLES + i];
        sum.sum += part.sum;
        sum.square += part.square;
        sum.size += part.size;
    }
    double n = (double)op.images * op.out_height * op.out_width;
    sample[i].index = audit_index(draw, 0, i, total, LS_AUDIT_RUN);
    sample[i].wanted = sum.sum;
    sample[i].bound = product_bound(op, n, sum);
}

static ls_status weights(cudaStream_t stream, const ls_audit_op *op, ls_audit_draw draw,
                         int64_t total, const audit_room *room)
{
    int64_t pixels = (int64_t)op->images * op->out_height * op->out_width;
    int64_t worth = (pixels + PIXELS_WORTH_A_PART - 1) / PIXELS_WORTH_A_PART;
    int parts = worth < MOST_PARTS ? (int)worth : MOST_PARTS;
    audit_sum *partial = (audit_sum *)room->partial;
    LS_ASSERT((int64_t)sizeof *partial * parts * LS_AUDIT_SAMPLES <=
              (int64_t)sizeof(double) * AUDIT_PARTIAL);
    LS_LAUNCH(weights_kernel, dim3(LS_AUDIT_SAMPLES / LS_AUDIT_RUN, (unsigned)parts), THREADS,
              stream, *op, draw, total, parts, partial);
    LS_LAUNCH(merge_kernel, ls_launch_blocks(LS_AUDIT_SAMPLES, THREADS), THREADS, stream, *op, draw,
              total, parts, partial, room->sample);
    return LS_OK;
}

ls_status ls_audit_products(cudaStream_t stream, const ls_audit_op *op, ls_audit_draw draw,
                            const audit_room *room)
{
    int64_t in = (int64_t)op->images * op->in_height * op->in_width * op->in_channels;
    int64_t out = (int64_t)op->images * op->out_height * op->out_width * op->out_channels;
    if (op->kind == LS_AUDIT_CONV_WEIGHTS) {
        int64_t total = (int64_t)op->out_channels * op->kernel * op->kernel * op->in_channels;
        return weights(stream, op, draw, total, room);
    }
    LS_LAUNCH(element_kernel, LS_AUDIT_SAMPLES, THREADS, stream, *op, draw,
              op->kind == LS_AUDIT_CONV ? out : in, room->sample);
    return LS_OK;
}
