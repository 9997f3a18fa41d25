/* The data of a plan: a lowered network (kernels/lowered.h) with its engines and memory. work.c
 * chooses the engine of each operation and the layout of activations, plan.c owns the plan and runs
 * it. */
#ifndef LS_CPU_PLAN_PARTS_H
#define LS_CPU_PLAN_PARTS_H

#include "kernels/core/arena.h"
#include "kernels/lowered.h"
#include "kernels/plan_check.h"
#include "backend.h"
#include "conv.h"
#include "loops.h"

/* Statistics of one batch norm, kept from forward to backward. */
typedef struct ls_norm {
    int layer;
    float *inv_std;     /* [C] 1 / sqrt(variance + epsilon) */
    float *mean_error;  /* [C] the mean as rounded to f32, minus the mean */
    double count;       /* values per channel, over all ranks that share statistics */
    ls_lane_coef *coef; /* [C/B] */
    ls_lane_back *back; /* [C/B] */
} ls_norm;

/* Data of one operation: plan->work[i] belongs to lower.op[i]. */
typedef struct ls_work {
    ls_conv *conv;   /* convolution and linear */
    ls_norm norm[2]; /* [1] where the operation is dual */
    uint8_t *tap; /* pool: the chosen position of each output; ReLU of a plan with forced_branches:
                     1 where open; in the slot's order */
    size_t tap_offset;
    bool forced; /* tap was set by plan_force */
} ls_work;

/* Layout of one stored activation: plan->layout[i] belongs to lower.slot[i]. */
typedef struct ls_layout {
    int block;     /* channels stored together: [N][C/block][H][W][block] */
    bool last;     /* channels last: block is C, whatever C is */
    size_t offset; /* in plan->activations */
} ls_layout;

enum { LS_PLAN_TEXT_BYTES = 65536 }; /* of each description */

struct ls_plan {
    ls_backend *backend;
    const ls_network *network; /* borrowed: lives as long as the plan */
    ls_plan_options options;
    ls_norm_sync sync;
    bool has_sync;
    ls_lower lower;
    ls_work *work;        /* [lower.op_count] */
    ls_layout *layout;    /* [lower.slot_count] */
    ls_arena activations; /* slots, taps */
    ls_arena gradients;
    ls_arena packed; /* weights of products */
    ls_arena norms;  /* statistics and coefficients */
    char *scratch;   /* of products; each one uses it in turn */
    size_t scratch_bytes;
    double *partial[3]; /* [N][C] per plane: mean and m2, or sums of gradients */
    float *gathered;    /* SyncBN: mine, then all */
    float *row_scale;   /* loss: maximum and log of the sum per sample, [N][2] */
    int64_t *target;    /* [N], of the last forward */
    float *logits;      /* [N][classes] f32 */
    ls_plan_tensors bound;
    ls_plan_ready ready;
    bool evaluates; /* plan_evaluate */
    bool forward_done;
    float loss_factor; /* of the backward that runs */
    char *fusions, *choices;
    char products[160], layout_name[40];
    ls_observe_fn *observer; /* NULL: none */
    void *observer_context;
};

static inline void *ls_plan_at(const ls_plan *plan, int slot)
{
    return ls_arena_at(&plan->activations, plan->layout[slot].offset);
}

static inline void *ls_plan_grad(const ls_plan *plan, int buffer)
{
    return ls_arena_at(&plan->gradients, plan->lower.grad[buffer].offset);
}

static inline ls_work *ls_plan_work(const ls_plan *plan, const ls_op *op)
{
    return &plan->work[op - plan->lower.op];
}

static inline int ls_plan_pixels(const ls_slot *slot)
{
    return slot->height * slot->width;
}

/* The planes of a slot (loops.h): one for each image and block of channels that a loop takes. */
typedef struct ls_field {
    int channels, blocks, images;
    int64_t planes; /* images x blocks */
    ls_plane plane;
    int64_t image_step, block_step; /* elements from one to the next */
} ls_field;

/* Blocks of a strip: a pixel's whole row where there is room, but so many strips that the threads
 * share them out evenly, or have four each. */
static inline int ls_plan_strip(int blocks, int block, int images, int threads)
{
    int strips = (blocks * block + LS_LOOPS_STRIP - 1) / LS_LOOPS_STRIP;
    while (strips < blocks && images * strips % threads != 0 && images * strips < 4 * threads) {
        strips++;
    }
    return (blocks + strips - 1) / strips;
}

static inline ls_field ls_plan_field(const ls_plan *plan, int slot)
{
    const ls_slot *s = &plan->lower.slot[slot];
    int step = plan->layout[slot].block, lanes = plan->backend->loops->lanes;
    int block = step > lanes ? lanes : step, blocks = s->channels / block;
    bool gaps = step > block;
    int strip =
        gaps ? ls_plan_strip(blocks, block, plan->options.batch, plan->backend->threads) : 1;
    return (ls_field){.channels = s->channels,
                      .blocks = blocks,
                      .images = plan->options.batch,
                      .planes = (int64_t)plan->options.batch * blocks,
                      .plane = {ls_plan_pixels(s), block, step, strip},
                      .image_step = (int64_t)s->channels * ls_plan_pixels(s),
                      .block_step = gaps ? block : (int64_t)block * ls_plan_pixels(s)};
}

/* First element of plane `i`: image i / blocks, block i % blocks. */
static inline int64_t ls_plan_plane_at(const ls_field *f, int64_t i)
{
    return i / f->blocks * f->image_step + i % f->blocks * f->block_step;
}

/* Position in memory of logical NCHW element `index`. */
static inline int64_t ls_plan_stored_index(const ls_plan *plan, int slot, int64_t index)
{
    const ls_slot *s = &plan->lower.slot[slot];
    int block = plan->layout[slot].block;
    int64_t pixels = ls_plan_pixels(s), pixel = index % pixels;
    int64_t channel = index / pixels % s->channels;
    int64_t image = index / pixels / s->channels;
    int64_t plane = image * (s->channels / block) + channel / block;
    return (plane * pixels + pixel) * block + channel % block;
}

/* cpu_bound.c: ls_cpu_convolutions_ms of an existing plan, whose values it overwrites; NaN where
 * the plan converts operands. */
ls_status ls_cpu_plan_convolutions_ms(ls_plan *plan, int repeats, double *ms_median);

/* plan.c: plan_edges. */
void ls_plan_edges(ls_plan *plan, ls_plan_edge *entry, ls_plan_edge *exit);

/* work.c */
/* LS_ERR_INFRA without memory, LS_ERR_UNSUPPORTED if oneDNN has no engine for a layer. After a
 * failure ls_work_destroy frees what exists. */
ls_status ls_work_create(ls_plan *plan);
void ls_work_destroy(ls_plan *plan);
void ls_work_describe(const ls_plan *plan, char *text, size_t bytes);
/* ls_plan_info's `products`; "" where they run in f32. */
void ls_work_describe_units(const ls_plan *plan, char *text, size_t bytes);

/* ls_plan_info's `layout`. */
void ls_work_name_layout(const ls_plan *plan, char *text, size_t bytes);

/* work.c: engines_export and engines_import; a line for each convolution. */
ls_status ls_work_export_choices(ls_plan *plan, const char **text);
ls_status ls_work_import_choices(ls_plan *plan, const char *text);

/* norm.c: batch norm with the addition and the ReLU that follow it; `stream` is for SyncBN. */
ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);

/* simple.c: operations without parameters. */
ls_status ls_simple_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
/* g, where it is stored: the sum of the contributions to an output's gradient, gated by the ReLU.
 */
ls_status ls_simple_join(ls_plan *plan, ls_stream *stream, const ls_op *op);
/* dx from g; nothing for an operation that only joins. */
ls_status ls_simple_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);

/* loss.c: the linear layer's bias, and softmax cross entropy. */
ls_status ls_loss_linear_forward(ls_plan *plan, const ls_op *op);
ls_status ls_loss_bias_grad(ls_plan *plan, ls_stream *stream, const ls_op *op);
/* LS_ERR_USAGE for a target that is not a class. */
ls_status ls_loss_forward(ls_plan *plan, const ls_op *op);
ls_status ls_loss_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);

/* observe.c. ls_observe_run executes one operation, or one part of its backward, and calls the
 * plan's observer, if any, before and after it; ls_observe_image makes one of these calls. */
typedef ls_status ls_observe_execute_fn(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_observe_run(ls_plan *plan, ls_stream *stream, ls_observed_kind kind, const ls_op *op,
                         ls_observe_execute_fn *execute);
ls_status ls_observe_image(ls_plan *plan, ls_stream *stream, const float *images, bool after);

/* export.c: ReLUs and max pools whose decisions were given by plan_force. */
void ls_export_forced_relu(const ls_plan *plan, const ls_op *op);
void ls_export_forced_relu_back(const ls_plan *plan, const ls_op *op, const void *gradient);
void ls_export_forced_pool(const ls_plan *plan, const ls_op *op);

#endif
