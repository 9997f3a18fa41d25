/* A plan on a GPU: the network lowered to operations (kernels/lower.h), each with its engine, its
 * kept values and its place in a few blocks of device memory that are allocated once. work.c makes
 * and places them, bind.c knows the caller's tensors, batch.c brings images to the device, plan.c
 * runs. What forward and backward do can be recorded into a graph: they allocate nothing, wait for
 * nothing and read no result on the host. */
#ifndef LS_CUDA_PLAN_H
#define LS_CUDA_PLAN_H

#include "kernels/core/arena.h"
#include "kernels/entries.h"
#include "kernels/lower.h"
#include "kernels/ready.h"
#include "backend.h"
#include "conv.h"
#include "ops.h"

enum { LS_PLAN_TEXT_BYTES = 1 << 17 }; /* of what is told about engines */

/* Of one operation, plan->work[] beside lower.op[]. */
typedef struct ls_work {
    ls_conv *conv;     /* LS_OP_CONV */
    ls_linear *linear; /* LS_OP_LINEAR */
    uint32_t *mask;    /* operations that end with a ReLU: which elements of `out` are open */
    uint8_t *tap;      /* pool: the chosen position of each output */
    bool forced;       /* mask or tap is given */
    ls_norm_kept kept[2];
    ls_norm_call call;   /* norms: all of it, from plan_bind on */
    const void *operand; /* products: the weight as they take it, packed or the parameter itself */
    const void *bias;    /* linear: the same */
    void *packed, *packed_bias; /* room for them where the parameter will not do */
} ls_work;

/* A batch on the device. The copying stream fills it; the computing stream has done with it when
 * forward has packed the images and copied the classes. */
typedef struct ls_batch {
    float *input;    /* NCHW */
    int64_t *target; /* [N] */
    cudaEvent_t loaded, used;
    float *host_input; /* pinned, for images in pageable memory; NULL until there are such */
    int64_t *host_target;
} ls_batch;

struct ls_plan {
    ls_backend *backend;
    const ls_network *network; /* borrowed: lives as long as the plan */
    ls_plan_options options;
    ls_norm_sync sync;
    bool has_sync;
    ls_lower lower;
    ls_work *work; /* [lower.op_count] */
    /* device memory */
    ls_arena activations;  /* slots, masks, taps */
    ls_arena gradients;    /* of activations */
    ls_arena weights;      /* packed ones, and one packed gradient after the other */
    ls_arena norms;        /* kept values, partial sums, messages; what the loss keeps */
    void **slot_at;        /* [slot_count] */
    void *packed_gradient; /* of the layer that backward is at, where it is not written in place */
    float *partial, *mine, *all; /* of norms, one after the other */
    float *logits;               /* [N][classes] */
    float *row;                  /* loss: maximum and log of the sum per sample, [N][2] */
    int64_t *target;             /* [N], of the last forward */
    ls_weight *table;            /* [table_count] weights that are packed once per step */
    ls_weight *host_table;       /* the same, as it was uploaded last */
    int table_count;
    int64_t table_most; /* elements of the largest */
    cudaEvent_t packed; /* the table has been read */
    void *workspace;    /* of products */
    int64_t workspace_bytes;
    void *exported; /* for plan_export and plan_force; grows */
    int64_t exported_bytes;
    ls_batch *batch; /* [batch_count] */
    int batch_count;
    ls_tensor *param, *param_grad, *buffer; /* bound */
    ls_step_state *state;
    ls_ready ready;
    bool forward_done;
    ls_watch_fn *watcher; /* NULL: nobody */
    void *watcher_context;
    char *fusions, *choices;
    /* Called behind what an operation has enqueued, by who measures (cuda_bound.c); NULL: nobody.
     */
    ls_status (*mark)(void *context, const ls_op *op, int pass); /* pass: ls_cuda_pass_kind */
    void *mark_context;
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
/* A line per product and per fused pass. */
void ls_work_describe(const ls_plan *plan, char *text, size_t bytes);
/* Channels in memory: more than there are for the image. */
int ls_work_stored_channels(const ls_plan *plan, int slot);
/* The largest workspace of all products, allocated; engines may have changed. */
ls_status ls_work_reserve_workspace(ls_plan *plan);

/* choose.c: the table's plan_choices and plan_choose. */
ls_status ls_choose_text(ls_plan *plan, const char **text);
ls_status ls_choose_take(ls_plan *plan, const char *text);

/* bind.c */
ls_status ls_bind_create(ls_plan *plan);
void ls_bind_destroy(ls_plan *plan);
ls_status ls_bind_tensors(ls_plan *plan, const ls_plan_binding *binding);
/* Weights as products want them, in one launch. */
ls_status ls_bind_pack(ls_plan *plan, cudaStream_t stream);
/* Where a product writes the gradient of its weight, and afterwards its way to the bound tensor. */
void *ls_bind_gradient(const ls_plan *plan, const ls_op *op);
ls_status ls_bind_store_gradient(ls_plan *plan, cudaStream_t stream, const ls_op *op);

/* batch.c */
ls_status ls_batch_places(ls_plan *plan, int places);
void ls_batch_destroy(ls_plan *plan);
ls_status ls_batch_load(ls_plan *plan, int place, const float *input, const int64_t *target);
ls_status ls_batch_wait(ls_plan *plan, int place);
/* The stream waits for a place's copy; and: the place is free once the stream has come here. */
ls_status ls_batch_after(ls_plan *plan, ls_stream *stream, int place);
ls_status ls_batch_free(ls_plan *plan, ls_stream *stream, int place);
/* The stream waits for the copy, packs the images, takes the classes and gives the place back;
 * recorded into a graph, only what is in between. */
ls_status ls_batch_take(ls_plan *plan, ls_stream *stream, int place);

/* norm.c, simple.c: one operation. */
void ls_norm_prepare(ls_plan *plan, const ls_op *op);
ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_simple_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_simple_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);
/* g = the sum of both contributions, where there are two. */
ls_status ls_simple_join(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_pool_shape ls_simple_pool_shape(const ls_plan *plan, const ls_op *op);

/* watch.c: tells the watcher, if there is one, of the operation before and after it is enqueued.
 * factor: of the loss's gradient. */
ls_status ls_watch_tell(ls_plan *plan, ls_stream *stream, ls_watch_kind kind, const ls_op *op,
                        float factor, bool after);
ls_status ls_watch_tell_weights(ls_plan *plan, ls_stream *stream, bool after);
ls_status ls_watch_tell_image(ls_plan *plan, ls_stream *stream, const float *images, bool after);
void ls_watch_set(ls_plan *plan, ls_watch_fn *watcher, void *context);

/* export.c, force.c */
ls_status ls_export_copy(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes);
/* Device memory of that size for exports, kept for the next one. */
ls_status ls_export_room(ls_plan *plan, int64_t bytes, void **out);
ls_status ls_force_branch(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                          int64_t bytes);

/* plan.c: the plan_* entries of the table that not every backend has (entries.h). */
bool ls_plan_supports(ls_backend *backend, const ls_network *network,
                      const ls_plan_options *options, char *why, int why_bytes);
ls_status ls_plan_places(ls_plan *plan, int places);
ls_status ls_plan_load(ls_plan *plan, int place, const float *input, const int64_t *target);
ls_status ls_plan_loaded(ls_plan *plan, int place);
ls_status ls_plan_forward_loaded(ls_plan *plan, ls_stream *stream, int place);
ls_status ls_plan_take(ls_plan *plan, ls_stream *stream, int place);
ls_status ls_plan_give(ls_plan *plan, ls_stream *stream, int place);
ls_status ls_plan_choices(ls_plan *plan, const char **text);
ls_status ls_plan_choose(ls_plan *plan, const char *text);

#endif
