/* The backend contract: a const table of functions that a compute backend (CPU, CUDA) offers to the
 * trainer. A backend is a shared object (build/lib/ls_cpu.so, ls_cuda.so) found at run time.
 *
 * Streams. Every call that takes an `ls_stream` enqueues its work there and returns; the CPU
 * backend executes at once, so its events are complete when they are recorded. Nothing between two
 * steps makes the host wait: scale, overflow flag, growth count, learning rate and step count are
 * in one `ls_step_state` in backend memory, read and written there by the kernels.
 *
 * Layout. An `ls_tensor` (parameter, gradient, running statistic, master, moment) is plain and
 * unpadded in torchvision's order of dimensions. Activations belong to the plan, in a layout of the
 * backend's choice; only `plan_export` shows them outside, as logical NCHW.
 *
 * Memory. Backend memory is allocated in few large blocks at start; the plan owns activations and
 * workspace. The creator of an object destroys it; streams outlive the work enqueued on them. */
#ifndef LS_KERNELS_H
#define LS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "kernels/core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the network, described once ------------------------------------------------------------- */

typedef enum ls_layer_kind {
    LS_LAYER_INPUT,         /* the batch: [N,channels,H,W] */
    LS_LAYER_CONV,          /* no bias; square kernel */
    LS_LAYER_BATCH_NORM,    /* over N,H,W; training statistics */
    LS_LAYER_RELU,          /* a branch: output > 0 */
    LS_LAYER_MAX_POOL,      /* a branch: first maximum in row order; padding never wins */
    LS_LAYER_ADD,           /* input[0] + input[1] */
    LS_LAYER_SHORTCUT_PAD,  /* CIFAR option A: every `stride`-th pixel, zero channels at the end up
                               to `channels` (He et al. 2015, section 4.2) */
    LS_LAYER_AVG_POOL,      /* global: [N,C,H,W] -> [N,C,1,1] */
    LS_LAYER_LINEAR,        /* [N,C] -> [N,channels], weight [channels,C], bias [channels] */
    LS_LAYER_CROSS_ENTROPY, /* softmax cross entropy in f32, mean over the N samples; the last of a
                               whole network. ls_plan_options.label_smoothing */
    /* A network cut into stages, each with a plan of its own (plan_edges): */
    LS_LAYER_ENTRY, /* in the place of the input: an activation that another stage has computed */
    LS_LAYER_EXIT,  /* in the place of cross entropy: what it reads goes to the next stage */
} ls_layer_kind;

/* One layer, in order of execution; layer 0 is the input. */
typedef struct ls_layer {
    ls_layer_kind kind;
    int input[2];                  /* indices of the layers read; -1: unused */
    int channels;                  /* output channels (classes, for linear and cross entropy) */
    int kernel, stride, pad;       /* conv, max pool; stride also for the padded shortcut */
    int weight, bias;              /* indices into ls_network.param; -1: none */
    int running_mean, running_var; /* indices into ls_network.buffer; -1: none */
    float epsilon, momentum;       /* batch norm: 1e-5 and 0.1 in torchvision */
    int branch;    /* relu, max pool: number in order of execution, from 0; else -1 */
    char name[48]; /* "layer1.0.conv1"; relu and add: "layer1.0.relu1", "layer1.0.add" */
} ls_layer;

typedef enum ls_param_role {
    LS_PARAM_CONV_WEIGHT,   /* [out, in, k, k] */
    LS_PARAM_NORM_WEIGHT,   /* [channels] */
    LS_PARAM_NORM_BIAS,     /* [channels] */
    LS_PARAM_LINEAR_WEIGHT, /* [out, in] */
    LS_PARAM_LINEAR_BIAS,   /* [out] */
} ls_param_role;

typedef struct ls_param {
    char name[64]; /* torchvision's: "layer1.0.conv1.weight" */
    ls_param_role role;
    ls_shape shape;
} ls_param;

typedef enum ls_buffer_role {
    LS_BUFFER_RUNNING_MEAN,
    LS_BUFFER_RUNNING_VAR,
    LS_BUFFER_BATCHES_TRACKED, /* one I64; counted by the trainer, unknown to kernels */
} ls_buffer_role;

typedef struct ls_buffer {
    char name[64]; /* "bn1.running_mean" */
    ls_buffer_role role;
    int64_t count; /* channels; 1 for the counter */
} ls_buffer;

typedef struct ls_network {
    char arch[32]; /* "resnet50" */
    int num_classes;
    int layer_count, param_count, buffer_count, branch_count;
    ls_layer *layer;
    ls_param *param;   /* torchvision's registration order */
    ls_buffer *buffer; /* registration order */
} ls_network;

/* ---- the state of a step, in backend memory -------------------------------------------------- */

/* Only kernels write it during a run; the trainer copies it out for events. */
typedef struct ls_step_state {
    float loss_scale;        /* S of the current step */
    float inv_loss_scale;    /* f32(1/S) */
    float lr;                /* of the current step */
    float loss;              /* this rank's mean loss of the last forward, unscaled */
    int32_t overflow;        /* not 0: a gradient of this step is inf or NaN */
    int32_t skipped;         /* the last optimizer call changed nothing */
    int32_t growth_count;    /* clean steps since the scale last changed */
    int32_t overflow_streak; /* overflows in a row */
    int32_t first_bad_grad;  /* lowest index in the checked list with a non-finite element, or -1 */
    int32_t first_bad_state; /* lowest index of a parameter, master or moment that is not finite
                                after a step, or -1 */
    int32_t floor_reached;   /* an overflow would have taken S below its floor */
    /* Samples of all forwards so far, modulo 2^32, whose class has the largest logit, and one of
     * the five largest; of equal logits the class with the lower number comes first. NaN is the
     * largest. */
    uint32_t top1;
    int64_t step_count; /* optimizer steps taken (not skipped); 1 after the first */
    uint32_t top5;
    float grad_norm; /* as the last clip found it */
} ls_step_state;

/* ---- handles --------------------------------------------------------------------------------- */

typedef struct ls_backend ls_backend; /* one device or one set of cores */
typedef struct ls_stream ls_stream;
typedef struct ls_event ls_event;
typedef struct ls_plan ls_plan;
typedef struct ls_graph ls_graph; /* work recorded from a stream, for repeated launches */

typedef struct ls_backend_options {
    int device_index; /* LOCAL_RANK's accelerator; ignored by the CPU */
    int threads;      /* CPU threads of this rank; 0: cores / ranks on this machine */
    int local_ranks;  /* ranks sharing this machine */
    int local_rank;
    bool deterministic; /* only engines whose result repeats bit for bit */
    bool tf32;          /* allow TF32 products under f32 */
    bool emulate_half;  /* CPU: convert operands of half type to f32 also where it has units for
                           the type */
    bool native_half;   /* CPU: use its units for half types also where f32 is faster */
    bool oversubscribe; /* with fewer devices than local_ranks, share them: the device is
                           device_index modulo their number. Otherwise that is LS_ERR_INFRA */
} ls_backend_options;

/* The device and libraries in use, for records. */
typedef struct ls_backend_info {
    char device[96];     /* "AMD EPYC 9654, AVX-512" or "NVIDIA H200 (GPU-uuid)" */
    char libraries[512]; /* "oneDNN 2.6.3 (/usr/lib/...so.2); libgomp ..." */
    int threads;
    bool host_memory; /* backend memory may be read and written by the host directly */
    bool f16_emulated, bf16_emulated; /* 16-bit storage, f32 arithmetic: the speed does not
                                         represent half-precision units */
    char half_units[64];              /* "bf16 on AVX512-BF16"; "": none */
    /* CPU: how products of the type are computed, and why so: "bf16 on AMX", "bf16 emulated: this
     * CPU has neither AMX nor AVX512-BF16"; CUDA: "" */
    char f16_products[128], bf16_products[128];
} ls_backend_info;

/* ---- plans ----------------------------------------------------------------------------------- */

/* SyncBN's collective, provided by the trainer. Gathers `count` floats from each rank of the group,
 * in group order, into all[group_size][count]; both are backend memory, valid on `stream` at
 * return. */
typedef struct ls_norm_sync {
    int group_size; /* ranks that share statistics */
    void *context;
    ls_status (*all_gather)(void *context, ls_stream *stream, const float *mine, float *all,
                            int64_t count);
} ls_norm_sync;

typedef struct ls_plan_options {
    int batch, height, width;      /* the batch this plan is for; 3 channels */
    ls_dtype activation;           /* LS_F32, LS_F16, LS_BF16: products take operands of this type,
                                      accumulate in f32 and store results in it, rounded once */
    const ls_norm_sync *norm_sync; /* NULL: statistics of this rank's batch */
    bool forced_branches; /* plan_force may be called. ReLUs are then passes of their own (more time
                             and memory); without forced branches the results are the same bits */
    bool benchmark;       /* time the engines of products and take the fastest */
    /* Let a product also compute what the operation next to it needs, where an engine can and gives
     * the right results on exact data; f16, not with a deterministic backend. Else not used. */
    bool fuse;
    /* Of the loss, as torch.nn.CrossEntropyLoss has it: E in 0 .. 1. The target's class counts 1 -
     * E
     * + E/classes, every other one E/classes; 0: the plain cross entropy, bit for bit */
    double label_smoothing;
    /* A plan of the same network, batch and backend whose packed weights this one uses; it lives
     * longer and alone takes plan_params_changed. Where plan_edges is offered; NULL: its own */
    const ls_plan *weights_of;
} ls_plan_options;

/* An activation between two stages and its gradient, in backend memory and in a layout that the
 * EXIT of one stage and the ENTRY of the next share; a stage has one of each. */
typedef struct ls_plan_edge {
    void *activation; /* read after EXIT's forward, written before ENTRY's */
    void *gradient;   /* written before EXIT's backward, read after ENTRY's */
    int64_t bytes;    /* of each */
} ls_plan_edge;

typedef struct ls_plan_info {
    int64_t activation_bytes, workspace_bytes;
    double flops;  /* of one forward and backward, products only (2 per multiply-add) */
    char *fusions; /* text, one line each: layers fused into one pass, engine of a layer; owned by
                      the plan */
    /* CPU, half types on units for them: "bf16 on AMX", or "bf16: 97 % of the products' operations
     * on AMX, 3 % in f32", by the names of the implementations; else "" or NULL. Owned by the plan
     */
    const char *products;
    const char *layout; /* CPU: of activations, "channels last" or "blocks of 16 channels"; NULL */
    const char
        *applied; /* text, "layer1.0.bn1,layer1.0.bn2": batch norms that the next product applies
                     with scale and bias in f16 (ls_observed_norm); owned by the plan; NULL: none
                   */
} ls_plan_info;

/* The tensors of a plan. The arrays are copied, the tensors are not. Types:
 *   param: f32 or the half type, as the opt level stores it; converted to `activation` for products
 *          once per `plan_params_changed`; batch norm computes in f32 whatever the type.
 *   grad:  where backward writes each parameter's gradient, f32 or half. With half activations a
 *          product's gradient is rounded to the activation type even if `grad` is f32 (O1).
 *   buffer: running statistics, f32 or half (entries of counters are ignored, data may be NULL). */
typedef struct ls_plan_binding {
    const ls_tensor *param;  /* [param_count] */
    const ls_tensor *grad;   /* [param_count]; overwritten by each backward, never added to */
    const ls_tensor *buffer; /* [buffer_count] */
    ls_step_state *state;    /* backend memory */
    /* [param_count]: gradients of one number are reduced together. A backend that can finish them
     * together reports all of a number once the last of them is there. NULL: each by itself. */
    const int *group;
} ls_plan_binding;

/* Called on the host by plan_backward when the gradient of `param` has been enqueued, or later with
 * those of its group (ls_plan_binding); each parameter once, in the order in which backward reaches
 * them (within a layer: bias before weight for linear, weight before bias for batch norm). A
 * failure ends the backward with that status. */
typedef ls_status ls_grad_ready(void *context, int param);

typedef enum ls_export {
    LS_EXPORT_LOGITS,     /* F32 [N,classes] */
    LS_EXPORT_RELU_BITS,  /* index = branch number; U8, bit i%8 of byte i/8 = output element i > 0,
                             NCHW order; ceil(count/8) bytes */
    LS_EXPORT_POOL_INDEX, /* index = branch number; I32 NCHW, h*W+w in the input plane */
    LS_EXPORT_ACTIVATION, /* index = layer; F32 NCHW; LS_ERR_UNSUPPORTED if fusion removes it */
} ls_export;

/* The images of a batch on the host. */
typedef struct ls_image_format {
    ls_dtype type; /* LS_F32: [N,3,H,W], normalised. LS_U8: the same order; byte b of channel c
                      stands for (b / 255 - mean[c]) / deviation[c], as torchvision's ToTensor and
                      Normalize compute it: each operation rounded to f32 */
    float mean[3], deviation[3]; /* LS_U8 */
} ls_image_format;

/* ---- observing a plan ------------------------------------------------------------------------ */

/* One operation as it is enqueued. Below, "type" is that of activations. */
typedef enum ls_observed_kind {
    LS_OBSERVED_IMAGE,     /* y = x, NCHW of x_format -> of type, rounded; channels beyond are 0 */
    LS_OBSERVED_WEIGHT,    /* w = weight[0], [out][in][k][k] -> [out][k][k][in] of type, rounded */
    LS_OBSERVED_CONV,      /* y = x * w [+ bias]; linear: of 1x1 images */
    LS_OBSERVED_CONV_DATA, /* dx from dy and w; added to dy2, in place, where that is there; gated
                              where `normed` is there */
    LS_OBSERVED_CONV_WEIGHTS, /* dw, [out][k][k][in] of type, from x and dy; where NULL,
                                 weight_grad, [out][in][k][k], rounded to type */
    LS_OBSERVED_UNPACK,       /* weight_grad, [out][in][k][k], = dw */
    LS_OBSERVED_BIAS,         /* bias_grad[0] = sum of dy over images, rounded to type */
    LS_OBSERVED_NORM,         /* y = relu(norm(x) [+ residual | + norm(residual)]); mask; or, with
                                 y NULL, norm[0].half_scale and half_bias */
    LS_OBSERVED_NORM_BACK,    /* g = gated(dy [+ dy2]); parameters' gradients; dx, dx2 */
    LS_OBSERVED_ADD,          /* y = [relu](x [+ residual]); mask where relu */
    LS_OBSERVED_GATE,         /* g = gated(dy [+ dy2]) */
    LS_OBSERVED_POOL,         /* y = max over windows; tap */
    LS_OBSERVED_POOL_BACK,    /* dx from dy by tap */
    LS_OBSERVED_SHORTCUT,     /* y = every stride-th pixel of x; further channels are 0 */
    LS_OBSERVED_SHORTCUT_BACK,
    LS_OBSERVED_AVERAGE, /* y = mean of x over pixels */
    LS_OBSERVED_AVERAGE_BACK,
    LS_OBSERVED_LOSS,      /* state->loss from x and target */
    LS_OBSERVED_LOSS_BACK, /* dx = (softmax(x) - classes' weights) / images * loss scale *
                              plan_backward's factor */
    LS_OBSERVED_KINDS,
} ls_observed_kind;

/* Of one batch norm, values of its channels. */
typedef struct ls_observed_norm {
    int layer;
    ls_tensor weight, bias, running_mean, running_var, weight_grad, bias_grad;
    const float *mean, *inv_std; /* of the batch, kept for backward */
    /* of the operation's type, [channels]: the product that reads the norm's output computes it, as
     * relu(half_scale * x + half_bias) rounded to type, and NORM does not. NULL: NORM does */
    const void *half_scale, *half_bias;
    float epsilon, momentum;
} ls_observed_norm;

/* Operands and results in backend memory, NULL where there is none. Activations are stored as
 * [N][C/block][H][W][block]: NHWC where block = C. The image-side geometry is in_*, the other
 * out_*, in backward too; channels are those stored, of the image and its weights `plain_channels`
 * of them are real.
 *
 * stem_blocks: the first convolution, of 7x7, stride 2, padding 3, is computed as one of 4x4,
 * stride 1, no padding (ls_lower_stem_blocks), and that is its geometry here. With P plain
 * channels, channel (2 dy + dx) P + c of stored pixel (Y, X) is channel c of the image at
 * (2Y + dy - 3, 2X + dx - 3), 0 outside; of tap (a, b) of the weight it is tap (2a + dy, 2b + dx),
 * 0 beyond 7x7, where gradients are dropped; channels from 4 P on are 0. */
typedef struct ls_observed {
    ls_observed_kind kind;
    int layer; /* of the network; -1: several */
    ls_dtype type;
    int images, in_channels, plain_channels, in_height, in_width;
    int out_channels, out_height, out_width, kernel, stride, pad;
    int in_block, out_block;
    bool relu, dual, given; /* given: mask or tap are read, not written */
    bool stem_blocks;       /* IMAGE, WEIGHT, CONV, CONV_WEIGHTS, UNPACK */
    const void *x, *residual;
    ls_image_format x_format; /* IMAGE */
    void *y;
    void *w; /* [out][k][k][in] of type, as products take it; NULL: they take it in an order of
                the engine's, rounded to type, from `weight` and `plain_bias` */
    const void *bias; /* of type */
    void *mask;       /* bit i%32 of word i/32: y[i] > 0; NULL: y says so itself */
    void *tap;        /* bytes: ky*kernel + kx of the choice; of a given ReLU: 1 where open */
    const void *dy, *dy2;
    void *g; /* NORM_BACK: NULL where it is not stored; may be dx, dy or dy2 */
    void *dx, *dx2, *dw;
    ls_tensor weight, plain_bias, weight_grad, bias_grad; /* as bound */
    ls_observed_norm norm[2];                             /* [1] where dual */
    int norm_group;                                       /* ranks that share statistics */
    /* CONV_DATA: the input of the batch norm norm[0], whose ReLU the result has passed: dx is 0
     * where relu(norm(x)), computed once more from mean, inv_std, weight and bias, is 0. The
     * NORM_BACK that follows has no mask then. With `residual` the ReLU is that of the sum with it,
     * or, dual, with the output of norm[1] of it. NULL: not gated. Where norm[0] has half_scale, by
     * half_scale * x + half_bias; and x of CONV and CONV_WEIGHTS is then that norm's input */
    const void *normed;
    const int64_t *target;
    const ls_step_state *state;
} ls_observed;

/* Called on the host before (`after` false) and after each operation has been enqueued on `stream`:
 * work that it enqueues before finds the operands, work after it the results. */
typedef ls_status ls_observe_fn(void *context, ls_stream *stream, const ls_observed *what,
                                bool after);

/* ---- multi-tensor operations ----------------------------------------------------------------- */

typedef enum ls_optimizer_kind {
#define LS_OPTIMIZER(KIND, ...) LS_OPTIMIZER_##KIND,
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    LS_OPTIMIZER_KINDS,
} ls_optimizer_kind;

/* What a group of parameters has of its own (torch.optim's param_groups). */
typedef struct ls_optimizer_group {
    double weight_decay;
    double lr_factor; /* of the state's lr, the product rounded to f32 */
} ls_optimizer_group;
enum { LS_OPTIMIZER_GROUPS_MAX = 10 };

/* Constants of a step; lr and step count come from the state. Formulas: SGD, Adam and AdamW as in
 * torch.optim, which FusedAdam equals; LAMB as in Apex's FusedLAMB (csrc/multi_tensor_lamb.cu);
 * LARS as in Apex's LARC around SGD (apex/parallel/LARC.py), its ratio not clipped unless `clip`.
 * Constants are double and rounded when a step uses them: 0.999 as float differs from torch's. */
typedef struct ls_optimizer_config {
    ls_optimizer_kind kind;
    double momentum; /* SGD, LARS: first step buf = d, later buf = momentum*buf + d */
    double weight_decay;
    bool nesterov;        /* SGD, LARS */
    double beta1, beta2;  /* Adam, AdamW, LAMB */
    double epsilon;       /* Adam, AdamW, LAMB; LARS: in the ratio's denominator */
    bool uncorrected;     /* Adam, AdamW, LAMB: no bias correction */
    bool l2;              /* LAMB: decay joins the gradient (adam_w_mode off) */
    bool nvlamb;          /* LAMB: the trust ratio applies even if weight_decay is 0 */
    double max_grad_norm; /* LAMB: of all gradients as one vector; 0: not clipped */
    double trust;         /* LARS: 0.02 in Apex */
    int group_count;      /* 0: one group, with weight_decay and lr */
    ls_optimizer_group group[LS_OPTIMIZER_GROUPS_MAX];
    bool clip; /* LARS: LARC's clip mode, the ratio at most lr */
    /* SGD, Adam, AdamW with f32 values: a pass for each operation on each tensor, as torch.optim
     * with foreach=False makes them; the same bits. LS_ERR_UNSUPPORTED where that is not offered */
    bool unfused;
} ls_optimizer_config;

/* One pass over all tensors; LAMB and LARS take one more for norms. All lists have the same count
 * and the same order. */
typedef struct ls_optimizer_args {
    ls_tensor_list value;   /* f32 masters if there are any, else the parameters (f32; half in O3:
                               read as f32, stepped, rounded once) */
    ls_tensor_list grad;    /* unscaled, f32 */
    ls_tensor_list moment1; /* f32; momentum buffer or first moment; count 0: unused */
    ls_tensor_list moment2; /* f32; second moment; count 0: unused */
    ls_tensor_list copy;  /* model copies of the masters, written as round(value); count 0: none; an
                             entry with the same data as value is skipped */
    const uint8_t *group; /* host, of each value, below group_count; NULL: all of group 0 */
} ls_optimizer_args;

/* math/clip.h. Both 0: the norm is measured and nothing is clipped. */
typedef struct ls_clip_config {
    double max_norm;  /* of all gradients as one vector; 0: any */
    double max_value; /* of each element; 0: any */
} ls_clip_config;

typedef struct ls_scaler_config {
    bool dynamic;
    float growth_factor, backoff_factor; /* 2 and 1/2 */
    int32_t growth_interval;             /* 2000 */
    float min_scale;                     /* 0: none (2^-24 is then the floor that ends a run) */
    float max_scale; /* 2^24 in dialect apex; inf in dialect torch: growth to inf
                        is refused */
} ls_scaler_config;

/* ---- the table ------------------------------------------------------------------------------- */

enum { LS_BACKEND_ABI = 24 };

typedef struct ls_backend_api {
    int abi;          /* LS_BACKEND_ABI */
    const char *name; /* "cpu", "cuda" */

    /* Opens the device. LS_ERR_INFRA, with a logged line that names the missing part. */
    ls_status (*open)(const ls_backend_options *options, ls_backend **out);
    void (*close)(ls_backend *backend);
    void (*describe)(ls_backend *backend, ls_backend_info *out);
    /* False, with one line in why[why_bytes], if this backend cannot run that network with those
     * options. */
    bool (*supports)(ls_backend *backend, const ls_network *network, const ls_plan_options *options,
                     char *why, int why_bytes);

    /* Backend memory, 64-byte aligned (CUDA: 256) and zeroed. `purpose` is for the message. */
    ls_status (*memory_alloc)(ls_backend *backend, int64_t bytes, const char *purpose, void **out);
    void (*memory_free)(ls_backend *backend, void *memory);
    /* Host to backend and back. copy_out is complete after stream_wait or event_wait. */
    ls_status (*copy_in)(ls_backend *backend, ls_stream *stream, void *to, const void *host,
                         int64_t bytes);
    ls_status (*copy_out)(ls_backend *backend, ls_stream *stream, void *host, const void *from,
                          int64_t bytes);

    ls_status (*stream_create)(ls_backend *backend, ls_stream **out);
    void (*stream_destroy)(ls_stream *stream);
    ls_status (*stream_wait)(ls_stream *stream); /* the host waits; device errors surface here */
    ls_status (*event_create)(ls_backend *backend, ls_event **out);
    void (*event_destroy)(ls_event *event);
    ls_status (*event_record)(ls_event *event, ls_stream *stream);
    ls_status (*event_wait)(ls_event *event);                      /* the host waits */
    ls_status (*stream_after)(ls_stream *stream, ls_event *event); /* the stream waits */

    ls_status (*plan_create)(ls_backend *backend, const ls_network *network,
                             const ls_plan_options *options, ls_plan **out);
    void (*plan_destroy)(ls_plan *plan);
    void (*plan_info)(ls_plan *plan, ls_plan_info *out);
    ls_status (*plan_bind)(ls_plan *plan, const ls_plan_binding *binding);
    /* Marks converted and reordered weights as stale. Once per step. */
    ls_status (*plan_params_changed)(ls_plan *plan, ls_stream *stream);
    /* input: host f32 NCHW; target: host, N class indices (NULL: of a stage that has no such end).
     * Updates running statistics; writes state->loss. The host arrays may be reused at return on
     * the CPU, after an event on CUDA. */
    ls_status (*plan_forward)(ls_plan *plan, ls_stream *stream, const float *input,
                              const int64_t *target);
    /* Whether later forwards are those of torch's eval(): batch norms take the running statistics
     * and leave them as they are, and no backward may follow. A plan begins with false. Not with an
     * observer, nor while a graph is recorded. */
    void (*plan_evaluate)(ls_plan *plan, bool evaluate);
    /* Gradients of loss * S * factor, S = state->loss_scale, the product taken in f32 before any
     * cast (factor: 1, or 1/A with accumulation over A micro-steps). */
    ls_status (*plan_backward)(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                               void *context);
    /* Copies results of the last forward to host memory; waits for the stream. */
    ls_status (*plan_export)(ls_plan *plan, ls_stream *stream, ls_export what, int index,
                             void *host, int64_t bytes);

    /* Later forwards and backwards take the decisions of ReLU or max-pool number `branch` from
     * `host` (host memory, copied), in the format that plan_export writes for LS_EXPORT_RELU_BITS
     * or LS_EXPORT_POOL_INDEX. An open ReLU passes its input on whatever its sign, a closed one
     * outputs 0. host NULL: the values decide again. Needs ls_plan_options.forced_branches.
     * LS_ERR_USAGE for a wrong size, or an index outside its window. */
    ls_status (*plan_force)(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                            int64_t bytes);

    /* From now on the observer is called around each operation of the plan; NULL removes it. Not
     * while a graph is recorded. */
    void (*plan_observe)(ls_plan *plan, ls_observe_fn *observer, void *context);

    /* tensor *= factor in f32, stored in its own type (rounded once). */
    ls_status (*scale)(ls_backend *backend, ls_stream *stream, ls_tensor tensor, float factor);
    /* to = round(from * factor); same count, any of f32, f16, bf16 on either side. */
    ls_status (*convert)(ls_backend *backend, ls_stream *stream, ls_tensor to, ls_tensor from,
                         float factor);
    /* sum(f32) += from; with `first` sum = from. */
    ls_status (*accumulate)(ls_backend *backend, ls_stream *stream, ls_tensor sum, ls_tensor from,
                            bool first);
    /* to(f32) = from * state->inv_loss_scale for every tensor, in one pass; `to` may be `from`.
     * Clears state->overflow and first_bad_grad first, and sets both if an element of `from` is not
     * finite (or one of `to`, when it is not f32). With to.count == 0 it only checks. */
    ls_status (*unscale_check)(ls_backend *backend, ls_stream *stream, ls_tensor_list to,
                               ls_tensor_list from, ls_step_state *state);
    /* Clips gradients (f32) in place and sets grad_norm, that of before. With `dynamic` and
     * state->overflow they stay as they are, and the norm is NaN. LS_ERR_INFRA without memory. */
    ls_status (*clip)(ls_backend *backend, ls_stream *stream, const ls_clip_config *config,
                      ls_tensor_list grad, bool dynamic, ls_step_state *state);
    /* Steps unless dynamic and state->overflow; sets skipped, step_count, first_bad_state. */
    ls_status (*optimizer_step)(ls_backend *backend, ls_stream *stream,
                                const ls_optimizer_config *config, const ls_optimizer_args *args,
                                bool dynamic, ls_step_state *state);
    /* numerics.md section 2.6: on overflow halve the scale and restart the count, after
     * growth_interval (>=) clean steps double it; static: only counts change. Writes loss_scale,
     * inv_loss_scale, growth_count, overflow_streak, floor_reached. */
    ls_status (*scaler_update)(ls_backend *backend, ls_stream *stream,
                               const ls_scaler_config *config, ls_step_state *state);

    /* Where a stage's plan meets the next one; NULL: the backend runs whole networks only, and
     * `supports` refuses ENTRY and EXIT. */
    void (*plan_edges)(ls_plan *plan, ls_plan_edge *entry, ls_plan_edge *exit);

    /* ---- of asynchronous devices; all NULL on the CPU ---- */

    /* Host memory that the device can copy from and to while it computes. */
    ls_status (*host_alloc)(ls_backend *backend, int64_t bytes, const char *purpose, void **out);
    void (*host_free)(ls_backend *backend, void *memory);
    /* Between begin and end, work enqueued on `stream`, and on streams that wait for it, is
     * recorded instead of executed. Nothing in between may wait, allocate or read on the host; if
     * that happens, or a call fails, the whole recording is discarded, and after graph_end the
     * streams work as before. */
    ls_status (*graph_begin)(ls_stream *stream);
    ls_status (*graph_end)(ls_stream *stream, ls_graph **out);
    ls_status (*graph_launch)(ls_graph *graph, ls_stream *stream);
    void (*graph_destroy)(ls_graph *graph);
    /* Milliseconds on the device between two completed events. */
    ls_status (*event_ms)(ls_event *from, ls_event *to, double *ms);
    /* The library's own handle (cudaStream_t, cudaEvent_t), for engines that enqueue there. */
    void *(*stream_native)(ls_stream *stream);
    void *(*event_native)(ls_event *event);

    /* Batches in backend memory, in slots of the plan (2 with images of f32 unless batch_slots sets
     * something else; with bytes plan_forward is LS_ERR_USAGE). batch_load copies one while
     * `stream` computes; images, in the slots' format, and target may be reused once batch_loaded
     * has returned. plan_forward_loaded makes the stream wait for that copy. */
    ls_status (*batch_slots)(ls_plan *plan, int slots, const ls_image_format *format);
    ls_status (*batch_load)(ls_plan *plan, int slot, const void *images, const int64_t *target);
    ls_status (*batch_loaded)(ls_plan *plan, int slot); /* the host waits for the copy */
    ls_status (*plan_forward_loaded)(ls_plan *plan, ls_stream *stream, int slot);
    /* Around the launch of a graph that holds plan_forward_loaded, whose waits are not captured,
     * because each launch reads another copy: the stream waits for the slot's copy; and the slot
     * may be loaded again once the stream has come here. */
    ls_status (*batch_wait)(ls_plan *plan, ls_stream *stream, int slot);
    ls_status (*batch_release)(ls_plan *plan, ls_stream *stream, int slot);
    /* The engines chosen for products as text, a line each, and the choice of another rank taken
     * over. The text belongs to the plan. */
    ls_status (*engines_export)(ls_plan *plan, const char **text);
    ls_status (*engines_import)(ls_plan *plan, const char *text);

    /* The device may be waiting for another rank, which may be dead. So while the host waits for
     * the device (event_wait, stream_wait, plan_export, ...), `on_wait` is called again and again
     * with the seconds waited so far; a status other than LS_OK ends the wait with that status.
     * There is one hook; NULL removes it. */
    void (*set_wait_hook)(ls_backend *backend, ls_status (*on_wait)(void *context, double waited_s),
                          void *context);

    /* Names the host's work between push and pop for an attached profiler. */
    void (*range_push)(ls_backend *backend, const char *name);
    void (*range_pop)(ls_backend *backend);
} ls_backend_api;

/* The only symbol that a backend's shared object exports. */
#define LS_BACKEND_ENTRY "ls_backend_entry"
typedef const ls_backend_api *ls_backend_entry_fn(void);

/* ---- finding a backend (kernels/load.c, in the program) -------------------------------------- */

/* Loads <program's folder>/lib/ls_<name>.so (or $LS_LIB_DIR/ls_<name>.so) and checks the ABI. The
 * table is valid until the process ends. LS_ERR_INFRA, with the loader's own text, if it cannot be
 * loaded. */
ls_status ls_load_backend(const char *name, const ls_backend_api **out);
/* The same search for any engine: copies the address of symbol `entry` of ls_<name>.so to the
 * pointer (to data or to a function) that `out` points to. */
ls_status ls_load_symbol(const char *name, const char *entry, void *out);
/* LS_ERR_INFRA when ls_<name>.so was built for another version of the table. */
ls_status ls_load_same_abi(const char *name, int abi, int wanted);

#ifdef __cplusplus
}
#endif
#endif
