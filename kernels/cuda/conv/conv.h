/* Convolution through the cuDNN backend (graph) API, and the inner product through cuBLASLt. Both
 * take operands of one type, accumulate in f32 and round the result once; engines that do otherwise
 * are refused (numerics.md section 1). */
#ifndef LS_CUDA_CONV_H
#define LS_CUDA_CONV_H

#include "kernels/cuda/backend.h"

struct ls_conv_plan;
typedef struct ls_conv ls_conv;
typedef struct ls_linear ls_linear;

typedef struct ls_conv_shape {
    int batch, in_channels /* as stored */, in_height, in_width;
    int out_channels, out_height, out_width, kernel, stride, pad;
} ls_conv_shape;

/* A fused pass does the work of a plain one and more. */
typedef enum ls_conv_pass {
    LS_CONV_FORWARD,
    LS_CONV_BACKWARD_DATA,
    LS_CONV_BACKWARD_WEIGHTS,
    LS_CONV_FORWARD_SUMS, /* forward -> GenStats: also the sums of y and of y^2, per channel */
    LS_CONV_DATA_GATED,   /* backward data, through the ReLU of the batch norm before it, with the
                             sums of that norm's gradient */
    LS_CONV_DATA_JOINED, /* the same at the end of a residual block: onto a second gradient, through
                            the ReLU of norm + residual */
    LS_CONV_DATA_JOINED_TWICE, /* of two norms' sum, with the sums of both norms' gradients */
    LS_CONV_FORWARD_APPLIED,   /* forward with sums, of relu(scale * x + bias) in place of x */
    LS_CONV_WEIGHTS_APPLIED,   /* backward weights, of the same */
    LS_CONV_PASSES,
    LS_CONV_PLAIN_PASSES = LS_CONV_FORWARD_SUMS,
} ls_conv_pass;

/* How the gradient of the input is written. */
typedef enum ls_conv_dx {
    LS_CONV_DX_NONE,    /* not computed */
    LS_CONV_DX_WRITTEN, /* overwrites the buffer */
    LS_CONV_DX_ADDED,   /* added to the values in the buffer; the sum is rounded once */
} ls_conv_dx;

/* The stem as a product over blocks of pixels (ls_lower_stem_blocks; ops.h, input.cu). */
ls_conv_shape ls_conv_stem_blocks(const ls_conv_shape *stem);
/* Whether there is an engine for LS_CONV_DX_ADDED; LS_CUDNN_ADD=0 in the environment: never. */
bool ls_conv_adds(ls_backend *backend, const ls_conv_shape *shape, ls_dtype type);
/* Creates plans for forward, backward data (unless LS_CONV_DX_NONE) and backward weights. Equal
 * shapes share plans within a backend. LS_ERR_UNSUPPORTED if no engine is left, with the layer's
 * name and the reasons for each refusal. */
ls_status ls_conv_create(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                         ls_dtype type, ls_conv_dx dx, ls_conv **out);
void ls_conv_destroy(ls_conv *conv);
/* The largest workspace of the three passes; one workspace serves all convolutions of a stream. */
int64_t ls_conv_workspace_bytes(const ls_conv *conv);
/* x, y: NHWC; w, dw: [out][kernel][kernel][in]; all of the given type and 16-byte aligned. The
 * workspace (here and below) is 256-byte aligned. Calls are cheaper with unchanged pointers. */
ls_status ls_conv_forward(ls_conv *conv, ls_stream *stream, const void *x, const void *w, void *y,
                          void *workspace);
ls_status ls_conv_backward_data(ls_conv *conv, ls_stream *stream, void *dx, const void *w,
                                const void *dy, void *workspace);
ls_status ls_conv_backward_weights(ls_conv *conv, ls_stream *stream, void *dw, const void *x,
                                   const void *dy, void *workspace);

/* Decides whether a fused plan is used, by what it and the plain one compute (fuse.h): sets its
 * admission. An error is the device's. */
typedef ls_status ls_conv_admit_fn(ls_backend *backend, const char *layer,
                                   const struct ls_conv_plan *plain, struct ls_conv_plan *fused);

/* Looks for an engine for a fused pass and asks `admit`, for equal shapes once; ls_conv_fuses then
 * says whether the pass is in use. Without an engine, or where both were timed and fusing takes
 * longer than the plain pass and the sweep it saves, the plain pass stays, silently. */
ls_status ls_conv_fuse(ls_conv *conv, ls_conv_pass pass, ls_conv_admit_fn *admit);
bool ls_conv_fuses(const ls_conv *conv, ls_conv_pass pass);
/* Floats from one list of values per channel to the next, so that each is 16-byte aligned. */
int64_t ls_conv_sums_step(int channels);
/* LS_CONV_FORWARD_SUMS: y and the sums of y and of y^2 per channel, in f32 (cuDNN's GenStats), so
 * that the statistics of a batch norm need no sweep over y. sums: float
 * [2][ls_conv_sums_step(out_channels)], 16-byte aligned. */
ls_status ls_conv_forward_sums(ls_conv *conv, ls_stream *stream, const void *x, const void *w,
                               void *y, float *sums, void *workspace);

/* LS_CONV_DATA_GATED: g = the gradient of the convolution's input where the ReLU that ends the
 * batch norm before it is open, else 0, and sums of g (cuDNN's DgradDreluBNBwdWeight), so that the
 * norm needs no sweep for its sums. Whether the ReLU is open is computed once more, in f32: where
 * ((x - mean) * inv_std) * scale + bias > 0. */
typedef struct ls_conv_gate {
    const void *x; /* the norm's input, as large as the convolution's */
    const float *mean, *inv_std, *scale, *bias; /* [in_channels], 16-byte aligned, as `sums` */
    float *sums; /* LS_CONV_GATE_LISTS of [ls_conv_sums_step(in_channels)] */
} ls_conv_gate;

enum {
    LS_CONV_GATE_SUM_X,     /* of g * (x - mean) * inv_std */
    LS_CONV_GATE_SUM,       /* of g */
    LS_CONV_GATE_LISTS = 5, /* the others: coefficients that cuDNN makes of the sums; not read */
};

/* LS_CONV_DATA_JOINED and LS_CONV_DATA_JOINED_TWICE: `other` is added to the gradient before the
 * ReLU, in f32, so that g is rounded once. Whether that is open is computed from the norm's output
 * as above, plus the residual or the second norm's output. */
typedef struct ls_conv_join {
    ls_conv_gate side[2]; /* [1]: where `twice` */
    const void *residual; /* where not; as large as x */
    const void *other;    /* may be g */
    bool twice;
} ls_conv_join;

ls_status ls_conv_backward_joined(ls_conv *conv, ls_stream *stream, void *g, const void *w,
                                  const void *dy, const ls_conv_join *join, void *workspace);

ls_status ls_conv_backward_gated(ls_conv *conv, ls_stream *stream, void *g, const void *w,
                                 const void *dy, const ls_conv_gate *gate, void *workspace);

/* relu(scale * x + bias), the output of a batch norm and ReLU, in place of an input in memory
 * (cuDNN's ConvBNfprop and ConvBNwgrad): computed in f32, rounded to f16, and 0 in the padding. */
typedef struct ls_conv_applied {
    const void *x;            /* the norm's input, as large as the convolution's */
    const void *scale, *bias; /* f16, [in_channels], 16-byte aligned */
} ls_conv_applied;

/* Tries both passes as ls_conv_fuse does, in a convolution that may gate (LS_CONV_DATA_GATED,
 * tried before): without a stored input none of the three can do without the others. */
ls_status ls_conv_fuse_applied(ls_conv *conv, ls_conv_admit_fn *admit_forward,
                               ls_conv_admit_fn *admit_weights);
/* Whether all three are in use; the first two are not without the others. */
bool ls_conv_applies(const ls_conv *conv);
/* Sums as in ls_conv_forward_sums. */
ls_status ls_conv_forward_applied(ls_conv *conv, ls_stream *stream, const ls_conv_applied *in,
                                  const void *w, void *y, float *sums, void *workspace);
ls_status ls_conv_backward_weights_applied(ls_conv *conv, ls_stream *stream, void *dw,
                                           const ls_conv_applied *in, const void *dy,
                                           void *workspace);

/* "forward eng37_k2=5 8.0 MB [tensor core]; ..." */
void ls_conv_describe(const ls_conv *conv, char *text, size_t bytes);
/* The engine that does the work of a plain pass, alone or fused: "eng37_k2=5". */
void ls_conv_engine_of(const ls_conv *conv, ls_conv_pass plain, char *text, size_t bytes);
/* The three engines as a line of text that another rank (same library, same kind of device) can
 * pass to ls_conv_choose, so that --cudnn-benchmark decides alike on all ranks; a word follows for
 * each fused pass in use: "sums=eng41" for the forward with sums, "gate=eng41" for the gated
 * gradient, "join=eng41" and "join2=eng41" for that of a block's end, "apply=eng41" and
 * "weigh=eng41" for forward and gradient of the weight that apply the norm before. ls_conv_choose
 * asks whether to admit these, as ls_conv_fuse does; without its word a fused pass is not used. */
void ls_conv_choice(const ls_conv *conv, char *text, size_t bytes);
ls_status ls_conv_choose(ls_conv *conv, const char *text);
/* To be called when a backend closes, after its convolutions and before its cuDNN handle; plans may
 * be NULL. */
void ls_conv_plans_destroy(struct ls_conv_plans *plans);

/* y[batch][out] = x[batch][in] w[out][in]^T + bias[out]; bias is of the given type too. */
ls_status ls_linear_create(ls_backend *backend, const char *name, int batch, int in, int out,
                           ls_dtype type, ls_linear **result);
void ls_linear_destroy(ls_linear *linear);
int64_t ls_linear_workspace_bytes(const ls_linear *linear);
ls_status ls_linear_forward(ls_linear *linear, ls_stream *stream, const void *x, const void *w,
                            const void *bias, void *y, void *workspace);
ls_status ls_linear_backward_data(ls_linear *linear, ls_stream *stream, void *dx, const void *w,
                                  const void *dy, void *workspace);
ls_status ls_linear_backward_weights(ls_linear *linear, ls_stream *stream, void *dw, const void *x,
                                     const void *dy, void *workspace);
void ls_linear_describe(const ls_linear *linear, char *text, size_t bytes);

#endif
