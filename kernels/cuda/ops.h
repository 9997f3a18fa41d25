/* The CUDA backend's own kernels, as functions that launch them on a stream and return: one .cu
 * file per family. Nothing here allocates, synchronises or reads a result on the host, so all of it
 * can be recorded into a graph; results never depend on the order in which blocks run (no floating
 * point atomics).
 *
 * Activations are NHWC: element (n,h,w,c) at ((n*H + h)*W + w)*channels + c, 16-byte aligned.
 * `rows` is N*H*W. The only padded one is the image (input.cu). Arithmetic is f32, sums over many
 * elements are f32 within a thread and wider or compensated beyond it, and every stored value is
 * rounded once, to nearest even. Every launcher returns LS_ERR_INFRA or LS_ERR_DEVICE_LOST when the
 * launch fails. */
#ifndef LS_CUDA_OPS_H
#define LS_CUDA_OPS_H

#include <cuda_runtime_api.h>

#include "kernels/entries.h"

#ifdef __CUDACC__ /* also called by kernels */
#define LS_OPS_INLINE static __host__ __device__ inline
#else
#define LS_OPS_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- input.cu, weights.cu -------------------------------------------------------------------- */

/* Stored channels of an image of 3: 16 bytes a pixel, as tensor cores require. */
int ls_input_stored_channels(ls_dtype type, int channels);
/* NCHW of `format` to NHWC of `type`, normalised; the padding channels are 0. Bytes have 3
 * channels. */
ls_status ls_input_pack(cudaStream_t stream, ls_dtype type, void *to, const void *from,
                        const ls_image_format *format, int images, int channels, int height,
                        int width);

/* The image as blocks of 2x2 pixels with a border of 3 (kernels.h, ls_observed, stem_blocks), which
 * the stem of 7x7 and stride 2 reads as one of 4x4 and stride 1. 12 channels are padded to 16: 32
 * bytes of half. */
enum { LS_INPUT_BLOCK_CHANNELS = 16 };
/* Blocks in `pixels` of height or width, an even number. */
LS_OPS_INLINE int ls_input_blocks(int pixels)
{
    return pixels / 2 + 3;
}
/* ls_input_pack of 3 channels to [images][blocks][blocks][LS_INPUT_BLOCK_CHANNELS]. */
ls_status ls_input_pack_blocks(cudaStream_t stream, ls_dtype type, void *to, const void *from,
                               const ls_image_format *format, int images, int height, int width);

/* One weight of a product: as a parameter (torchvision's order) and in the product's order. */
typedef struct ls_weight {
    ls_tensor plain; /* [out][in][kernel][kernel], f32 or half */
    void *packed;    /* [out][kernel][kernel][stored_in] of the activation's type, zero-padded */
    int out, in, stored_in, kernel;
    bool stem_blocks; /* of the 7x7 stem over blocks: [out][4][4][LS_INPUT_BLOCK_CHANNELS] */
} ls_weight;

LS_OPS_INLINE int64_t ls_weight_packed_count(const ls_weight *weight)
{
    int side = weight->stem_blocks ? 4 : weight->kernel;
    return (int64_t)weight->out * side * side * weight->stored_in;
}

/* Packs all of them in one launch; `weight` is device memory. most: the largest count of packed
 * elements. */
ls_status ls_weights_pack(cudaStream_t stream, ls_dtype type, const ls_weight *weight, int count,
                          int64_t most);
/* Unpacks gradients in the same way: from packed (of `type`) to plain, rounded to plain's type. */
ls_status ls_weights_unpack(cudaStream_t stream, ls_dtype type, const ls_weight *gradient,
                            int count, int64_t most);

/* ---- norm.cu --------------------------------------------------------------------------------- */

/* Values of one batch norm, kept from forward to backward; device memory, [channels] each, 16-byte
 * aligned. */
typedef struct ls_norm_kept {
    float *mean, *inv_std; /* of the batch, over all ranks that share statistics */
    float *scale,
        *bias;   /* y = (x - mean) * scale + bias; the bias compensates the rounding of the mean */
    float *back; /* [4][channels]: a, b and c of dx = a*g + (b + c*(x - mean)), written by backward;
                    the rounding error of the mean, written by forward */
    float *count; /* [1]: values per channel, over all ranks that share statistics */
    /* f16, of an output that only the next convolution computes, relu(half_scale * x + half_bias);
     * scale and bias above then are these two, moved to the mean. NULL: of any other */
    uint16_t *half_scale, *half_bias;
} ls_norm_kept;

typedef struct ls_norm_side {
    ls_norm_kept kept;
    ls_tensor weight, bias, running_mean, running_var, weight_grad, bias_grad; /* f32 or half */
    float epsilon, momentum;
} ls_norm_side;

/* One fused operation: y = relu(norm0(x) + (residual | norm1(residual))). */
typedef struct ls_norm_call {
    ls_dtype type;
    int64_t rows;
    int channels, processors;
    bool relu, dual;
    ls_norm_side side[2];
    const void *x, *residual; /* residual NULL: none */
    void *y;
    uint32_t *mask; /* relu: bit i%32 of word i/32 is y[i] > 0 in NHWC order; NULL without relu */
    /* backward */
    const void *dy, *dy2; /* contributions to the gradient of y; dy2 may be NULL */
    void *g;              /* their sum, gated by mask, rounded to type; NULL: not stored */
    /* per side, of a product that has gated dy and summed it: sums of g and of g*(x - mean),
     * [channels]; then g is dy, and no sweep gates or sums. NULL: the sweep does */
    const float *gated[2], *gated_x[2];
    void *dx, *dx2; /* of x and, dual, of residual; NULL: not computed; may be g */
    /* per side, of a product that has also summed its result: the sums of x (or of residual) and of
     * its squares, [channels]; NULL: the statistics sweep over x */
    const float *sum[2], *squares[2];
    /* shared */
    float *partial;    /* ls_norm_partial_bytes */
    float *mine, *all; /* [ls_norm_gathered] of this rank, and of each of `group` ranks in order */
    int group;         /* ranks that share statistics; 1: this rank only */
    bool early;        /* kernels behind the first start early (launch.h); ls_norm_waits */
} ls_norm_call;

/* Whether the code that this device runs waits where an early start requires it: compiled for
 * compute capability 9.0 or newer. */
ls_status ls_norm_waits(bool *waits);
size_t ls_norm_partial_bytes(int64_t rows, int channels, int processors);
/* Floats that a rank sends forward, and again backward: a message for each side. */
int64_t ls_norm_gathered(const ls_norm_call *call);

/* Forward: statistics of each side, and from them coefficients and running statistics; then one
 * sweep that normalises, adds and gates. If group > 1, the statistics go into `mine`, and the
 * finish makes the rest of them after the group's gather; otherwise it does nothing, and neither
 * mine nor all is needed. */
ls_status ls_norm_statistics(cudaStream_t stream, const ls_norm_call *call);
ls_status ls_norm_finish(cudaStream_t stream, const ls_norm_call *call);
ls_status ls_norm_apply(cudaStream_t stream, const ls_norm_call *call);
/* In place of the first two: coefficients from the running statistics, which stay as they are. */
ls_status ls_norm_use_running(cudaStream_t stream, const ls_norm_call *call);
/* Backward: sums of g and g*(x - mean) of both sides (g is stored on the way), and from them the
 * parameters' gradients, which are of this rank's images only, and the coefficients of dx; if
 * group > 1, the latter are made by the finish, from the gathered sums. With `gated` only the sums
 * are read, and g is there. Then one sweep that writes
 * dx and dx2. Without g that sweep gates dy again; dy2 needs g. */
ls_status ls_norm_sums(cudaStream_t stream, const ls_norm_call *call);
ls_status ls_norm_back_finish(cudaStream_t stream, const ls_norm_call *call);
ls_status ls_norm_back_apply(cudaStream_t stream, const ls_norm_call *call);

/* ---- fuse.cu: integers on which products in f16 are exact (fuse.h) ----------------------------
 */

/* 8 to 15. */
ls_status ls_fuse_fill(cudaStream_t stream, uint16_t *x, int64_t count);
/* w[out][taps][in]. Per tap and output the inputs' weights of -most to most cancel; at tap `centre`
 * each fourth output's sum is 0, the next one's `unit`, then 4 and 8 times that, with both signs.
 */
ls_status ls_fuse_fill_weight(cudaStream_t stream, uint16_t *w, int out, int taps, int in,
                              int centre, int most, int unit);
/* Integers of -most to most in a half type; most is at most 2048, in bf16 256. */
ls_status ls_fuse_fill_integers(cudaStream_t stream, ls_dtype type, uint16_t *to, int64_t count,
                                int most);
ls_status ls_fuse_ones(cudaStream_t stream, float *to, int64_t count);
/* [channels] of a batch norm: means of 0, 5, 18 and 37, with both signs; scales of 1, -1, 2 and
 * -1/2; biases of -3 to 3. The second norm of a pair has other values in each channel. */
ls_status ls_fuse_fill_norm(cudaStream_t stream, float *mean, float *scale, float *bias,
                            int channels, bool second);
/* Its input: the channel's mean and -7 to 8 more. */
ls_status ls_fuse_fill_normed(cudaStream_t stream, uint16_t *x, const float *mean, int64_t rows,
                              int channels, bool second);
/* A batch norm's input and coefficients; mean NULL: the output is x itself; x NULL: 0. */
typedef struct ls_fuse_normed {
    const uint16_t *x;
    const float *mean, *scale, *bias;
} ls_fuse_normed;
/* g = g where the sum of both outputs, (x - mean) * scale + bias, is above 0, else 0. */
ls_status ls_fuse_gate(cudaStream_t stream, uint16_t *g, ls_fuse_normed first,
                       ls_fuse_normed second, int64_t rows, int channels);
/* Adds to list[4][channels] the sums of g, of its squares, of g*(x - mean) and of its squares; g
 * and x are integers. */
ls_status ls_fuse_gate_sums(cudaStream_t stream, const uint16_t *g, const uint16_t *x,
                            const float *mean, int64_t rows, int channels,
                            unsigned long long *list);
/* x[rows][channels], scale and bias of a batch norm whose output relu(scale * x + bias) is integers
 * up to 29, many of them 0. Pairs of channels have outputs alike. In one of four x is about 1007
 * and scale * x is odd and above 2048, where f16 has no odd numbers. */
ls_status ls_fuse_fill_applied(cudaStream_t stream, uint16_t *x, uint16_t *scale, uint16_t *bias,
                               int64_t rows, int channels);
/* y = relu(scale * x + bias) as a convolution that applies a norm computes it (ls_conv_applied);
 * mask as in ls_norm_call, or NULL. */
ls_status ls_fuse_apply(cudaStream_t stream, const uint16_t *x, const uint16_t *scale,
                        const uint16_t *bias, uint16_t *y, uint32_t *mask, int64_t rows,
                        int channels);
/* *first (device) becomes the first row in which two matrices of f16 differ, or stays. */
ls_status ls_fuse_differ(cudaStream_t stream, const uint16_t *a, const uint16_t *b, int64_t rows,
                         int channels, unsigned *first);

/* A gradient that is added to another, of integers (conv_trial.h). */

struct ls_conv_shape;
/* Of `samples` elements of dx, drawn alike in every call: before + the gradient of the input,
 * rounded once. dy and dx are NHWC, w[out][taps][in]. */
ls_status ls_conv_onto_wanted(cudaStream_t stream, ls_dtype type, const struct ls_conv_shape *shape,
                              const uint16_t *dy, const uint16_t *w, const uint16_t *before,
                              int samples, uint16_t *wanted);
/* Adds to *count (device) how many of them differ in dx[total]. */
ls_status ls_conv_onto_differing(cudaStream_t stream, ls_dtype type, int64_t total,
                                 const uint16_t *dx, const uint16_t *wanted, int samples,
                                 unsigned *count);

/* ---- simple.cu: no parameters ---------------------------------------------------------------- */

/* y = relu(x [+ residual]); mask as in ls_norm_call; relu false: only the sum, mask NULL. With
 * `given` the mask is read, not written: an open element keeps its value, whatever its sign. */
ls_status ls_simple_add(cudaStream_t stream, ls_dtype type, const void *x, const void *residual,
                        void *y, uint32_t *mask, bool relu, bool given, int64_t count);
/* g = (dy [+ dy2]), gated by mask unless it is NULL. g may be dy or dy2. */
ls_status ls_simple_gate(cudaStream_t stream, ls_dtype type, const void *dy, const void *dy2,
                         const uint32_t *mask, void *g, int64_t count);
/* CIFAR option A: every stride-th pixel, zero channels at the end. */
ls_status ls_simple_shortcut(cudaStream_t stream, ls_dtype type, const void *x, void *y, int images,
                             int height, int width, int channels, int stride, int out_channels);
ls_status ls_simple_shortcut_back(cudaStream_t stream, ls_dtype type, const void *dy, void *dx,
                                  int images, int height, int width, int channels, int stride,
                                  int out_channels);
/* Copies a multiple of 16 bytes; both addresses aligned to 16. */
ls_status ls_simple_copy(cudaStream_t stream, void *to, const void *from, int64_t bytes);
/* y[row][j] = sums[row][j] + bias[j], rounded to `type`; bias is of it, too. */
ls_status ls_simple_bias(cudaStream_t stream, ls_dtype type, const float *sums, const void *bias,
                         void *y, int rows, int columns);
/* [N,H,W,C] -> [N,C], the mean in f32. */
ls_status ls_simple_average(cudaStream_t stream, ls_dtype type, const void *x, void *y, int images,
                            int pixels, int channels);
ls_status ls_simple_average_back(cudaStream_t stream, ls_dtype type, const void *dy, void *dx,
                                 int images, int pixels, int channels);

/* ---- pool.cu --------------------------------------------------------------------------------- */

typedef struct ls_pool_shape {
    int images, channels, height, width, out_height, out_width, kernel, stride, pad;
} ls_pool_shape;

/* First maximum in row order; a NaN wins, padding never does. tap[NHWC of the output]: ky*kernel +
 * kx of the choice. With `given` the taps are read instead. */
ls_status ls_pool_max(cudaStream_t stream, ls_dtype type, const ls_pool_shape *shape, const void *x,
                      void *y, uint8_t *tap, bool given);
/* Each input element gathers from its windows in row order, without atomics. */
ls_status ls_pool_max_back(cudaStream_t stream, ls_dtype type, const ls_pool_shape *shape,
                           const void *dy, const uint8_t *tap, void *dx);

/* ---- loss.cu --------------------------------------------------------------------------------- */

/* Mean over N of the cross entropy of softmax(logits), f32; keeps max and sum of exponentials per
 * sample in row[N][2], and behind them in [N] how many classes come before the target and in [N]
 * the mean distance of a logit from the max; the logits as f32 in kept[N][classes]; the loss in
 * state->loss, and adds to top1 and top5. smoothing: ls_plan_options.label_smoothing. */
ls_status ls_loss_forward(cudaStream_t stream, ls_dtype type, const void *logits,
                          const int64_t *target, int images, int classes, double smoothing,
                          float *kept, float *row, ls_step_state *state);
/* (p - weights of the classes) / N * (S * factor) in f32, rounded to type once. */
ls_status ls_loss_backward(cudaStream_t stream, ls_dtype type, const float *kept, const float *row,
                           const int64_t *target, int images, int classes, double smoothing,
                           float factor, const ls_step_state *state, void *gradient);
/* bias_grad[j] = sum over rows of dy[row][j], rounded to `type` and then to bias_grad's own. */
ls_status ls_loss_bias_grad(cudaStream_t stream, ls_dtype type, const void *dy, int images,
                            int classes, const ls_tensor *bias_grad);

/* ---- multi_table.cu; the entries of multi.cu: entries.h -------------------------------------- */

struct ls_multi_tables *ls_multi_tables_create(void);
void ls_multi_tables_destroy(struct ls_multi_tables *tables);

/* ---- export.cu: for records and judges, not for speed ---------------------------------------- */

/* NHWC of `type` to f32 NCHW, both device. */
ls_status ls_export_plain(cudaStream_t stream, ls_dtype type, const void *from, float *to,
                          int images, int channels, int stored, int height, int width);
/* The same of an image of 3 channels in blocks. */
ls_status ls_export_blocks(cudaStream_t stream, ls_dtype type, const void *from, float *to,
                           int images, int height, int width);
/* The mask in NHWC order to bytes in NCHW order (LS_EXPORT_RELU_BITS), and back (`packing`). */
ls_status ls_export_mask(cudaStream_t stream, uint32_t *mask, uint8_t *bits, int images,
                         int channels, int height, int width, bool packing);
/* Taps to I32 indices in the input plane, NCHW (LS_EXPORT_POOL_INDEX), and back; *outside (device)
 * becomes 1 if an index is outside its window. */
ls_status ls_export_taps(cudaStream_t stream, const ls_pool_shape *shape, uint8_t *tap,
                         int32_t *index, bool packing, int32_t *outside);

#ifdef __cplusplus
}
#endif
#endif
