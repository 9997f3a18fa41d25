/* A lowered network: the fused operations on stored activations that every backend runs. lower.c
 * makes the operations and slots from the list of layers and decides which layers share a pass;
 * grad_layout.c walks the backward pass and assigns memory to the gradient of each activation. The
 * cost of an operation and the layout of its values in memory are up to the backend. */
#ifndef LS_LOWERED_H
#define LS_LOWERED_H

#include <stddef.h>

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stored activation: the output of one layer, and the memory of its gradient if it has one. */
typedef struct ls_slot {
    int layer, channels, height, width;
    int64_t count; /* elements, N x C x H x W */
    size_t bytes;  /* in memory, in the backend's layout; its gradient needs the same */
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
    LS_OP_ENTRY, /* nothing in forward; joins the gradients of its readers */
    LS_OP_EXIT,  /* nothing; its dx comes from the next stage */
} ls_op_kind;

enum { LS_NO_BUFFER = -1 };

/* An operation. Gradients are indices into ls_lower.grad[]. */
typedef struct ls_op {
    ls_op_kind kind;
    int layer;             /* the layer that has the parameters and sizes */
    int in, residual, out; /* slots; residual: second operand of an add or a norm; -1: none */
    bool relu;
    int norm[2]; /* layers of the batch norms; [1] only if `dual`; -1: none */
    bool dual;   /* the residual passes through norm[1] first */
    /* backward */
    int dy[2];    /* contributions to the gradient of `out`; dy[1] may be absent */
    int g;        /* their sum, masked by the ReLU; may be dy[0] */
    bool store_g; /* g must be written to memory */
    int dx;       /* gradient of `in`; absent where nothing reads it; may be g */
    int dx2;      /* dual: gradient of `residual`; may be g */
    bool onto;    /* dx already holds another contribution; add to it */
} ls_op;

typedef struct ls_grad_buffer {
    size_t bytes, offset; /* in one block of ls_lower.gradient_bytes */
    int references;       /* readers to come, while the layout is computed */
} ls_grad_buffer;

typedef struct ls_lower {
    const ls_network *network; /* borrowed */
    ls_plan_options options;
    int slot_count, op_count, grad_count;
    ls_slot *slot;
    ls_op *op;
    ls_grad_buffer *grad;
    int *slot_of_layer;    /* -1: not stored, because the layer is fused */
    size_t gradient_bytes; /* of the block that holds all gradients of activations */
} ls_lower;

/* Bytes that the backend needs for [N,channels,height,width] of the plan's type. */
typedef size_t ls_lower_slot_bytes(void *context, const ls_plan_options *options, int channels,
                                   int height, int width, bool is_input);

/* Whether the backend's product can add its dx to the values already in the buffer and round the
 * sum once. Asked for convolutions whose input has a second reader, reached first by backward. */
typedef bool ls_lower_adds(void *context, const ls_lower *lower, const ls_op *op);

/* Properties of a backend that the lowering depends on. */
typedef struct ls_lower_backend {
    ls_lower_slot_bytes *slot_bytes;
    ls_lower_adds *adds; /* NULL: no product does */
    bool gates_twice;    /* dual norm: recompute the ReLU mask in both backward passes; the masked
                            gradient is not stored */
    bool by_channels;    /* a norm writes dx of some channels before it reads dy of the others */
    void *context;
} ls_lower_backend;

/* grad_layout.c: memory for the gradients of activations; a stretch of it is reused once its last
 * reader has run. */
/* Walks the backward pass of `lower`; fills the backward members of its operations, lower->grad and
 * lower->gradient_bytes. LS_ERR_INFRA without memory. */
ls_status ls_grad_layout_choose(ls_lower *lower, const ls_lower_backend *backend);

/* Whether the layers can be lowered with activations of that type; `why` receives the reason. */
bool ls_lower_supports(const ls_network *network, ls_dtype activation, char *why, size_t why_bytes);
/* Whether only one convolution reads the image, of 7x7, stride 2 and padding 3 over 3 channels of
 * even height and width. With a row and a column of zeros its kernel is one of 4x4, stride 1 and no
 * padding, over blocks of 2x2 pixels as channels: the stem of ResNet on ImageNet. */
bool ls_lower_stem_blocks(const ls_network *network, const ls_plan_options *options);
/* Operations, slots and the layout of gradients. LS_ERR_USAGE if an image is too small for a
 * kernel, LS_ERR_UNSUPPORTED for an unknown kind of layer. */
ls_status ls_lower_create(const ls_network *network, const ls_plan_options *options,
                          const ls_lower_backend *backend, ls_lower *out);
void ls_lower_free(ls_lower *lower);
/* order[param_count]: parameters in the order in which backward reports them (kernels.h,
 * ls_grad_ready), last layer first. A fused pass may finish a parameter earlier; its report then
 * waits for its turn. */
void ls_lower_ready_order(const ls_network *network, int *order);
/* The ReLU or max pool with that number if it is a pass of its own, else NULL. */
ls_op *ls_lower_op_of_branch(const ls_lower *lower, int branch);
/* The layer of that kind and branch number, or -1. */
int ls_lower_layer_of_branch(const ls_network *network, int branch, ls_layer_kind kind);
/* The operation that writes a slot, or NULL (the image's). */
const ls_op *ls_lower_writer(const ls_lower *lower, int slot);
/* How many operands of operations it is. */
int ls_lower_readers(const ls_lower *lower, int slot);
/* What an observer sees of an operation: its kind in forward; and its geometry, without operands
 * and with the channels of the layer. */
ls_observed_kind ls_lower_observed_kind(const ls_op *op);
ls_observed ls_lower_observed(const ls_lower *lower, ls_observed_kind kind, const ls_op *op);
/* Flops of one operation, forward and backward, 2 per multiply-add; 0 for all but products. */
double ls_lower_product_flops(const ls_lower *lower, const ls_op *op);
/* The same of the whole network. */
double ls_lower_flops(const ls_lower *lower);

/* Describes the backend's engine for a product in one line, without a newline. */
typedef void ls_lower_engine(const void *context, const ls_op *op, char *line, size_t bytes);
/* One line per product, as `engine` describes it, and one per pass of a norm. */
void ls_lower_describe(const ls_lower *lower, ls_lower_engine *engine, const void *context,
                       char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
