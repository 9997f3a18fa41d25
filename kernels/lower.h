/* Lowers a network to the operations of lowered.h. */
#ifndef LS_LOWER_H
#define LS_LOWER_H

#include "lowered.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the layers can be lowered with activations of that type; `why` receives the reason. */
bool ls_lower_supports(const ls_network *network, ls_dtype activation, char *why, size_t why_bytes);
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
