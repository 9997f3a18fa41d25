/* A plan on a GPU: the network lowered to operations (kernels/lowered.h), each with its engine, its
 * kept values and its part of a few blocks of device memory that are allocated once. work.c assigns
 * them, bind.c converts the caller's tensors, batch.c copies images to the device, plan.c runs the
 * operations. Forward and backward can be recorded into a graph: they allocate nothing, wait for
 * nothing and read no result on the host. */
#ifndef LS_CUDA_PLAN_INTERNAL_H
#define LS_CUDA_PLAN_INTERNAL_H

#include "kernels/core/arena.h"
#include "kernels/entries.h"
#include "kernels/lowered.h"
#include "kernels/plan_check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/conv/conv.h"
#include "kernels/cuda/ops.h"

enum { LS_PLAN_TEXT_BYTES = 1 << 17 }; /* of the description of engines */

/* Data of one operation: plan->work[i] belongs to lower.op[i]. */
typedef struct ls_work {
    ls_conv *conv;    /* LS_OP_CONV */
    float *sums;      /* LS_OP_CONV: of the result's channels, if a norm reads it and plans fuse */
    float *gate_sums; /* LS_OP_CONV: LS_CONV_GATE_LISTS of the input's channels, if it may gate, for
                         each norm (ls_gate_sums) */
    ls_linear *linear; /* LS_OP_LINEAR */
    uint32_t *mask;    /* operations that end with a ReLU: 1 for open elements of `out` */
    uint8_t *tap;      /* pool: the chosen position of each output */
    bool forced;       /* mask or tap was set by plan_force */
    ls_norm_kept kept[2];
    ls_norm_call call;   /* norms: the arguments of their kernels, complete after plan_bind */
    const void *operand; /* products: the weight in their order, packed or the parameter itself */
    const void *bias;    /* linear: the bias, in the same way */
    void *packed,
        *packed_bias; /* memory for packed copies, if the parameter itself cannot be used */
    void *dw;         /* products: where the gradient of the weight is written, packed_dw or the
                         bound tensor itself */
    void *packed_dw;  /* memory for it in the product's order */
} ls_work;

/* Weights, or gradients of weights, that one launch converts. */
typedef struct ls_weight_table {
    ls_weight *at;   /* [count], device memory */
    ls_weight *host; /* the same, as last uploaded */
    int count;
    int64_t most; /* elements of the largest */
} ls_weight_table;

/* The batch in one slot. The copying stream fills it; the computing stream has finished with it
 * when forward has packed the images and copied the classes. */
typedef struct ls_batch {
    void *images;    /* NCHW in the slots' format */
    int64_t *target; /* [N] */
    cudaEvent_t loaded, used;
    void *host_images; /* pinned, for images in pageable memory; NULL until the first such batch */
    int64_t *host_target;
} ls_batch;

struct ls_plan {
    ls_backend *backend;
    const ls_network *network; /* borrowed: lives as long as the plan */
    ls_plan_options options;
    ls_norm_sync sync;
    bool has_sync;
    ls_lower lower;
    bool stem_blocks; /* the image is stored in blocks of 2x2 pixels (ops.h) */
    ls_work *work;    /* [lower.op_count] */
    /* device memory */
    ls_arena activations;        /* slots, masks, taps */
    ls_arena gradients;          /* of activations */
    ls_arena weights;            /* packed weights and their packed gradients */
    ls_arena norms;              /* kept values, partial sums, messages; kept values of the loss */
    void **slot_at;              /* [slot_count] */
    float *partial, *mine, *all; /* of norms, shared by all of them */
    float *ones;                 /* [of the most channels] if a convolution may gate (gate.c) */
    float *logits;               /* [N][classes] */
    float *row;                /* loss: maximum and sum per sample, [N][2]; its class's place, [N];
                                  logits' mean distance from the maximum, [N] */
    int64_t *target;           /* [N], of the last forward */
    ls_weight_table packing;   /* weights, once per step */
    ls_weight_table unpacking; /* gradients, in the order of backward; a group in one launch */
    int computed, unpacked;    /* of unpacking.at[], in this backward */
    cudaEvent_t tables_read;   /* recorded when a table has been read */
    void *workspace;           /* of products */
    int64_t workspace_bytes;
    bool early;     /* ls_norm_early */
    void *exported; /* for plan_export and plan_force; grows */
    int64_t exported_bytes;
    ls_batch *batch; /* [batch_count] */
    int batch_count;
    ls_image_format format; /* of images in slots */
    ls_plan_tensors bound;
    ls_plan_ready ready;
    bool evaluates; /* plan_evaluate */
    bool forward_done;
    float loss_factor;       /* of the backward that is being enqueued (plan_backward) */
    ls_observe_fn *observer; /* or NULL */
    void *observer_context;
    char *fusions, *engines, *applied; /* [LS_PLAN_TEXT_BYTES] */
    /* Called when a pass has been enqueued (cuda_bound.c measures them), or NULL; pass is an
     * ls_pass_kind. */
    ls_status (*on_pass)(void *context, const ls_op *op, int pass);
    void *on_pass_context;
};

static inline ls_work *ls_plan_work(const ls_plan *plan, const ls_op *op)
{
    return &plan->work[op - plan->lower.op];
}

static inline void *ls_plan_at(const ls_plan *plan, int slot)
{
    return plan->slot_at[slot];
}

/* NULL for LS_NO_BUFFER. */
static inline void *ls_plan_grad(const ls_plan *plan, int buffer)
{
    return buffer == LS_NO_BUFFER ? NULL
                                  : ls_arena_at(&plan->gradients, plan->lower.grad[buffer].offset);
}

static inline bool ls_plan_is_product(const ls_op *op)
{
    return op->kind == LS_OP_CONV || op->kind == LS_OP_LINEAR;
}

/* work.c */
ls_status ls_work_create(ls_plan *plan);
void ls_work_destroy(ls_plan *plan);
/* One line per product and per fused pass. */
void ls_work_describe(const ls_plan *plan, char *text, size_t bytes);
/* Whether the plan stores the image in blocks and `op` is the convolution that reads it. */
bool ls_work_reads_blocks(const ls_plan *plan, const ls_op *op);
/* Channels in memory: more than the layer's for the image. */
int ls_work_stored_channels(const ls_plan *plan, int slot);
/* Allocates the largest workspace of all products; to be called again after engines change. */
ls_status ls_work_reserve_workspace(ls_plan *plan);

/* gate.c: with --fuse, gradients of a convolution's input that pass the ReLU before it and sum for
 * its batch norm, or for the two of a block's end (LS_CONV_DATA_GATED, LS_CONV_DATA_JOINED). */
/* The batch norm whose ReLU ends in the convolution's input, with no other reader; else NULL. */
const ls_op *ls_gate_norm(const ls_plan *plan, const ls_op *conv);
/* The pass that the convolution may use for it: with --fuse, in f16, behind such a norm, or behind
 * a block's end if its gradient is the last contribution. LS_CONV_BACKWARD_DATA: none. */
ls_conv_pass ls_gate_pass(const ls_plan *plan, const ls_op *conv);
/* The norm operation for which the convolution gates and sums, or NULL. */
const ls_op *ls_gate_used(const ls_plan *plan, const ls_op *conv);
/* LS_CONV_GATE_LISTS for one of its norms. */
float *ls_gate_sums(const ls_plan *plan, const ls_op *conv, int side);
/* The convolution that gates and sums for the norm, or NULL. */
const ls_op *ls_gate_conv(const ls_plan *plan, const ls_op *norm);
/* Fills plan->ones. */
ls_status ls_gate_create(ls_plan *plan);
ls_status ls_gate_backward(ls_plan *plan, ls_stream *stream, const ls_op *conv);

/* apply.c: with --fuse, batch norms and ReLUs that the convolution behind them applies. */
/* The norm that the convolution applies in this forward and its backward, or NULL. */
const ls_op *ls_apply_norm(const ls_plan *plan, const ls_op *conv);
/* The convolution that applies the norm in training, or NULL. */
const ls_op *ls_apply_conv(const ls_plan *plan, const ls_op *norm);
ls_status ls_apply_forward(ls_plan *plan, ls_stream *stream, const ls_op *conv);
ls_status ls_apply_weights(ls_plan *plan, ls_stream *stream, const ls_op *conv, void *workspace);
/* The names of all such norms, separated by commas. */
void ls_apply_describe(const ls_plan *plan, char *text, size_t bytes);
/* Computes output and mask of the norm that writes this slot, if a convolution has applied it. */
ls_status ls_apply_store(ls_plan *plan, ls_stream *stream, int slot);

/* engines.c: the table's engines_export and engines_import. */
ls_status ls_engines_export(ls_plan *plan, const char **text);
ls_status ls_engines_import(ls_plan *plan, const char *text);

/* bind.c */
ls_status ls_bind_create(ls_plan *plan);
void ls_bind_destroy(ls_plan *plan);
ls_status ls_bind_tensors(ls_plan *plan, const ls_plan_binding *binding);
/* Converts weights to the products' order in one launch. */
ls_status ls_bind_pack(ls_plan *plan, cudaStream_t stream);
/* Whether the gradient of the product's weight has to be converted to the bound tensor. */
bool ls_bind_packs_gradient(const ls_plan *plan, const ls_op *op);
/* Converts unpacking.at[plan->unpacked .. plan->computed - 1] in one launch. */
ls_status ls_bind_unpack(ls_plan *plan, cudaStream_t stream);

/* batch.c: the batch_* entries of the table; and what forward does with a slot: the stream waits
 * for the copy, packs the images, copies the classes and releases the slot. Captured into a graph,
 * without the wait and the release. */
ls_status ls_batch_slots(ls_plan *plan, int slots, const ls_image_format *format);
void ls_batch_destroy(ls_plan *plan);
ls_status ls_batch_load(ls_plan *plan, int slot, const void *images, const int64_t *target);
ls_status ls_batch_loaded(ls_plan *plan, int slot);
ls_status ls_batch_wait(ls_plan *plan, ls_stream *stream, int slot);
ls_status ls_batch_release(ls_plan *plan, ls_stream *stream, int slot);
ls_status ls_batch_unpack(ls_plan *plan, ls_stream *stream, int slot);

/* norm.c, simple.c: one operation. */
/* Whether kernels of a batch norm that follow another start early (launch.h): with LS_PDL=1 in the
 * environment, where device and code allow it; a warning where they do not. */
ls_status ls_norm_early(const ls_plan *plan, bool *early);
void ls_norm_prepare(ls_plan *plan, const ls_op *op);
ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_simple_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_simple_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);
/* g = the sum of both contributions, if there are two. */
ls_status ls_simple_join(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_pool_shape ls_simple_pool_shape(const ls_plan *plan, const ls_op *op);

/* observe.c. ls_observe_run enqueues one operation, or one part of its backward, and calls the
 * plan's observer, if any, before and after it; the three below make one of these calls. */
typedef ls_status ls_observe_enqueue_fn(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_observe_run(ls_plan *plan, ls_stream *stream, ls_observed_kind kind, const ls_op *op,
                         ls_observe_enqueue_fn *enqueue);
ls_status ls_observe_weights(ls_plan *plan, ls_stream *stream, bool after);
/* Of each gradient that ls_bind_unpack converts next, or has converted. */
ls_status ls_observe_gradients(ls_plan *plan, ls_stream *stream, bool after);
ls_status ls_observe_image(ls_plan *plan, ls_stream *stream, const void *images, bool after);

/* export.c: device memory of that size for exports, kept for the next one. */
ls_status ls_export_room(ls_plan *plan, int64_t bytes, void **out);

/* plan.c: entries of the table that only some backends have (entries.h). */
bool ls_plan_supports(ls_backend *backend, const ls_network *network,
                      const ls_plan_options *options, char *why, int why_bytes);
ls_status ls_plan_forward_loaded(ls_plan *plan, ls_stream *stream, int slot);

#endif
