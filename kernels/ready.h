/* Reports the gradients that a backward pass has finished, in the order that every backend keeps
 * (kernels.h, ls_grad_ready). A fused pass may finish a parameter early; its report then waits for
 * the parameters before it. */
#ifndef LS_READY_H
#define LS_READY_H

#include "kernels.h"

typedef struct ls_ready {
    int count;    /* parameters */
    int *order;   /* [count] in order of report: last layer first */
    bool *done;   /* [count] by parameter: set by the operation that computed the gradient */
    int reported; /* how many of order[] in this pass */
} ls_ready;

/* `network`: one that ls_lower_create accepts. LS_ERR_INFRA without memory. */
ls_status ls_ready_create(const ls_network *network, ls_ready *out);
void ls_ready_free(ls_ready *ready);
/* Before each backward pass: marks every gradient as not done. */
void ls_ready_begin(ls_ready *ready);
/* Calls `report` (unless NULL) for the finished gradients that come next in the order. */
ls_status ls_ready_report(ls_ready *ready, ls_grad_ready *report, void *context);

#endif
