/* Which gradients of parameters a backward pass is done with, told to the caller in the order that
 * every backend keeps (kernels.h, ls_grad_ready). A pass that fuses layers may be done with a
 * parameter earlier; then it waits for those before it. */
#ifndef LS_READY_H
#define LS_READY_H

#include "kernels.h"

typedef struct ls_ready {
    int count;  /* parameters */
    int *order; /* [count] as they are told: layers backwards */
    bool *done; /* [count] by parameter: set by whoever computed the gradient */
    int told;   /* how many of order[] in this pass */
} ls_ready;

/* Of a network that can be lowered (ls_lower_create). LS_ERR_INFRA without memory. */
ls_status ls_ready_create(const ls_network *network, ls_ready *out);
void ls_ready_free(ls_ready *ready);
/* Before each backward pass: none is done. */
void ls_ready_begin(ls_ready *ready);
/* Calls tell (unless NULL) for each that is done and has only told ones before it. */
ls_status ls_ready_report(ls_ready *ready, ls_grad_ready *tell, void *context);

#endif
