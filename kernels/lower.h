/* A network as a list of fused operations on stored activations, the same for every backend:
 * lower.c makes operations and slots from the list of layers and decides what is one pass, place.c
 * walks the backward pass and gives every gradient of an activation its place. What an operation
 * costs and how its numbers lie in memory is the backend's business. */
#ifndef LS_LOWER_H
#define LS_LOWER_H

#include <stddef.h>

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stored activation: the output of one layer. */
typedef struct ls_slot {
    int layer, channels, height, width;
    int64_t count; /* elements, N x C x H x W */
    size_t bytes;  /* in memory, as the backend lays it out; its gradient takes the same */
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

enum { LS_NO_BUFFER = -1 };

/* Buffers of gradients are numbers of ls_lower.grad[]. */
typedef struct ls_op {
    ls_op_kind kind;
    int layer;             /* whose parameters and sizes these are */
    int in, residual, out; /* slots; residual: second operand of an add or a norm; -1 where none */
    bool relu;
    int norm[2]; /* layers of the batch norms; [1] where `dual`; -1 where none */
    bool dual;   /* the residual passes through norm[1] first */
    /* backward */
    int dy[2];    /* contributions to the gradient of `out`; dy[1] may be absent */
    int g;        /* their sum, gated; may be dy[0] */
    bool store_g; /* g has to be written */
    int dx;       /* gradient of `in`; absent where nobody wants it; may be g */
    int dx2;      /* dual: gradient of `residual`; may be g */
    bool onto;    /* dx holds another contribution already: this one is added to it */
} ls_op;

typedef struct ls_grad_buffer {
    size_t bytes, offset; /* in one block of ls_lower.gradient_bytes */
    int references;       /* while placing */
} ls_grad_buffer;

typedef struct ls_lower {
    const ls_network *network; /* borrowed */
    ls_plan_options options;
    int slot_count, op_count, grad_count;
    ls_slot *slot;
    ls_op *op;
    ls_grad_buffer *grad;
    int *slot_of_layer;    /* -1 where fusion stores nothing */
    size_t gradient_bytes; /* of all gradients of activations at their places */
} ls_lower;

/* Bytes that the backend stores for [N,channels,height,width] of the plan's type; `context` is the
 * backend's own. */
typedef size_t ls_lower_slot_bytes(void *context, const ls_plan_options *options, int channels,
                                   int height, int width, bool is_input);

/* Whether the backend's product can add its dx to what stands there, and round the sum once. Asked
 * of convolutions whose input has another reader that backward came by first. */
typedef bool ls_lower_adds(void *context, const ls_lower *lower, const ls_op *op);

/* What a backend says of itself. */
typedef struct ls_lower_backend {
    ls_lower_slot_bytes *slot_bytes;
    ls_lower_adds *adds; /* NULL: no product does */
    bool gates_twice;    /* two joined norms can gate their gradient in both sweeps: not stored */
    void *context;
} ls_lower_backend;

/* Whether the list of layers is one that can be lowered, with activations of that type; the reason
 * in why. */
bool ls_lower_supports(const ls_network *network, ls_dtype activation, char *why, size_t why_bytes);
/* Operations, slots and places of gradients. LS_ERR_USAGE for
 * an image too small for a kernel, LS_ERR_UNSUPPORTED for a layer nobody knows. */
ls_status ls_lower_create(const ls_network *network, const ls_plan_options *options,
                          const ls_lower_backend *backend, ls_lower *out);
void ls_lower_free(ls_lower *lower);
/* Parameters in the order in which backward reports them (kernels.h, ls_grad_ready): layers
 * backwards; order[param_count]. A pass that fuses layers may be done with a parameter earlier, and
 * then it waits. */
void ls_lower_ready_order(const ls_network *network, int *order);
/* The ReLU or max pool of that number, where it is a pass of its own, else NULL. */
ls_op *ls_lower_op_of_branch(const ls_lower *lower, int branch);
/* The layer of that kind and branch number, or -1. */
int ls_lower_layer_of_branch(const ls_network *network, int branch, ls_layer_kind kind);
/* Of one operation, forward and backward, 2 per multiply-add; 0 for all but products. */
double ls_lower_product_flops(const ls_lower *lower, const ls_op *op);
/* "layer1.0.bn2 + add + relu: one pass": which layers a norm's operation takes with it. */
void ls_lower_describe_norm(const ls_lower *lower, const ls_op *op, char *text, size_t bytes);

/* What a backend says of its engine for a product, in one line without its end. */
typedef void ls_lower_engine(const void *context, const ls_op *op, char *line, size_t bytes);
/* A line per product, with the backend's words, and per norm's pass. */
void ls_lower_describe(const ls_lower *lower, ls_lower_engine *engine, const void *context,
                       char *text, size_t bytes);

/* place.c; called by ls_lower_create. */
ls_status ls_grad_layout_choose(ls_lower *lower, const ls_lower_backend *backend);

#ifdef __cplusplus
}
#endif
#endif
