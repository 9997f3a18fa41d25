/* A plan: the network lowered to operations on placed memory. lower.c makes operations and slots
 * from layers (and fuses), place.c decides where every gradient lies, plan.c owns it all and runs
 * it. */
#ifndef LS_CPU_PLAN_H
#define LS_CPU_PLAN_H

#include "../core/arena.h"
#include "backend.h"
#include "conv.h"
#include "loops.h"

/* A stored activation: the output of one layer. */
typedef struct ls_slot {
    int layer, channels, height, width, block;
    int64_t count; /* elements, N x C x H x W */
    size_t offset; /* in plan->activations */
    bool wants_gradient;
} ls_slot;

typedef enum ls_op_kind {
    LS_OP_CONV,
    LS_OP_LINEAR,
    LS_OP_NORM, /* batch norm [+ residual or a second batch norm] [+ ReLU] */
    LS_OP_RELU,
    LS_OP_ADD, /* [+ ReLU] */
    LS_OP_POOL,
    LS_OP_SHORTCUT,
    LS_OP_AVERAGE,
    LS_OP_LOSS,
} ls_op_kind;

/* Statistics of one batch norm, kept from forward to backward. */
typedef struct ls_norm {
    int layer;
    float *inv_std;     /* [C] 1 / sqrt(variance + epsilon) */
    float *mean_error;  /* [C] the mean as rounded to f32, minus the mean */
    double count;       /* values per channel, over all ranks that share statistics */
    ls_lane_coef *coef; /* [C/B] */
    ls_lane_back *back; /* [C/B] */
} ls_norm;

enum { LS_NO_BUFFER = -1 };

/* Buffers of gradients are numbers of plan->grad[]. */
typedef struct ls_op {
    ls_op_kind kind;
    int layer;             /* whose parameters and sizes these are */
    int in, residual, out; /* slots; residual: second operand of an add or a norm; -1 where none */
    bool relu;
    ls_conv *conv;
    ls_norm norm[2]; /* [1] where `dual` */
    bool dual;       /* the residual passes through norm[1] first */
    uint8_t *tap; /* pool: the chosen position of each output; ReLU of a plan whose branches can be
                     forced: 1 where open; in the slot's order */
    size_t tap_offset;
    bool forced; /* tap is given */
    /* backward */
    int dy[2];    /* contributions to the gradient of `out`; dy[1] may be absent */
    int g;        /* their sum, gated; may be dy[0] */
    bool store_g; /* g has to be written */
    int dx;       /* gradient of `in`; absent where nobody wants it; may be g */
    int dx2;      /* dual: gradient of `residual`; may be g */
} ls_op;

typedef struct ls_grad_buffer {
    size_t bytes, offset; /* in plan->gradients */
    int references;       /* while placing */
} ls_grad_buffer;

struct ls_plan {
    ls_backend *backend;
    const ls_network *network; /* borrowed: lives as long as the plan */
    ls_plan_options options;
    ls_norm_sync sync;
    bool has_sync;
    int slot_count, op_count, grad_count;
    ls_slot *slot;
    ls_op *op;
    ls_grad_buffer *grad;
    int *slot_of_layer;   /* -1 where fusion stores nothing */
    ls_arena activations; /* slots, taps */
    ls_arena gradients;
    ls_arena packed; /* weights of products */
    ls_arena norms;  /* statistics and coefficients */
    char *scratch;   /* of products; one after the other */
    size_t scratch_bytes;
    double *partial[3]; /* [N][C] per plane: mean and m2, or sums of gradients */
    float *gathered;    /* SyncBN: mine, then all */
    float *row_scale;   /* loss: maximum and log of the sum per sample, [N][2] */
    int64_t *target;    /* [N] */
    float *logits;      /* [N][classes] f32 */
    ls_tensor *param, *param_grad, *buffer; /* bound; NULL before */
    ls_step_state *state;
    int *ready_order; /* parameters in the order in which backward reaches them */
    bool *ready;      /* [param_count] */
    int ready_count;
    bool forward_done;
    char *fusions;
};

static inline void *ls_plan_at(const ls_plan *plan, int slot)
{
    return ls_arena_at(&plan->activations, plan->slot[slot].offset);
}

static inline void *ls_plan_grad(const ls_plan *plan, int buffer)
{
    return ls_arena_at(&plan->gradients, plan->grad[buffer].offset);
}

static inline int ls_plan_pixels(const ls_slot *slot)
{
    return slot->height * slot->width;
}

/* Position in memory of logical NCHW element `index`. */
static inline int64_t ls_plan_stored_index(const ls_slot *slot, int64_t index)
{
    int64_t pixels = ls_plan_pixels(slot), pixel = index % pixels;
    int64_t channel = index / pixels % slot->channels;
    int64_t image = index / pixels / slot->channels;
    int64_t plane = image * (slot->channels / slot->block) + channel / slot->block;
    return (plane * pixels + pixel) * slot->block + channel % slot->block;
}

/* lower.c: fills slots and operations; sizes of activations. */
ls_status ls_lower_network(ls_plan *plan);
void ls_lower_describe(const ls_plan *plan, char *text, size_t bytes);
/* Whether the list of layers is one that can be lowered; the reason in why. */
bool ls_lower_supports(const ls_network *network, char *why, size_t why_bytes);
/* place.c: walks the backward pass and gives every gradient a place; fills dy, g, dx, dx2. */
ls_status ls_place_gradients(ls_plan *plan);
/* norm.c */
ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, ls_op *op);
ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, ls_op *op);
/* simple.c: everything without parameters. */
void ls_simple_forward(ls_plan *plan, ls_op *op);
void ls_simple_backward(ls_plan *plan, ls_op *op);
/* loss.c: linear with its bias, and softmax cross entropy. */
ls_status ls_loss_linear_forward(ls_plan *plan, ls_op *op);
ls_status ls_loss_linear_backward(ls_plan *plan, ls_op *op);
ls_status ls_loss_forward(ls_plan *plan, ls_op *op, const int64_t *target);
void ls_loss_backward(ls_plan *plan, ls_op *op, float factor);
/* export.c */
ls_status ls_export_copy(ls_plan *plan, ls_export what, int index, void *host, int64_t bytes);

/* force.c */
void ls_force_relu(const ls_plan *plan, const ls_op *op);
void ls_force_relu_back(const ls_plan *plan, const ls_op *op, const void *gradient);
void ls_force_pool(const ls_plan *plan, const ls_op *op);
ls_status ls_force_branch(ls_plan *plan, int branch, const void *host, int64_t bytes);

/* The plan_* entries of the table are in plan.c. */
ls_status ls_plan_create(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, ls_plan **out);
void ls_plan_destroy(ls_plan *plan);
void ls_plan_describe(ls_plan *plan, ls_plan_info *out);
ls_status ls_plan_bind(ls_plan *plan, const ls_plan_binding *binding);
ls_status ls_plan_params_changed(ls_plan *plan, ls_stream *stream);
ls_status ls_plan_forward(ls_plan *plan, ls_stream *stream, const float *input,
                          const int64_t *target);
ls_status ls_plan_backward(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                           void *context);
ls_status ls_plan_export(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes);
ls_status ls_plan_force(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                        int64_t bytes);

#endif
