/* What every backend's plan takes from its caller: the tensors it is bound to, and the checks of
 * counts, branch and layer numbers and buffer sizes. An error is logged with the value given and
 * the one required. */
#ifndef LS_PLAN_CHECK_H
#define LS_PLAN_CHECK_H

#include "lowered.h"

/* A plan's own copy of its binding (kernels.h, ls_plan_binding). */
typedef struct ls_plan_tensors {
    ls_tensor *param, *grad; /* [param_count] */
    ls_tensor *buffer;       /* [buffer_count] */
    ls_step_state *state;    /* NULL until bound */
} ls_plan_tensors;

/* Allocates the arrays; LS_ERR_INFRA without memory (then free it all the same). */
ls_status ls_plan_tensors_create(const ls_network *network, ls_plan_tensors *out);
void ls_plan_tensors_free(ls_plan_tensors *tensors);
/* plan_bind. LS_ERR_USAGE where a parameter has another number of values or gradients. */
ls_status ls_plan_tensors_bind(const ls_network *network, const ls_plan_binding *binding,
                               ls_plan_tensors *tensors);

/* plan_export: the slot that `index` means. LS_ERR_USAGE if there is no such branch or `bytes`
 * is not the size of the result, LS_ERR_UNSUPPORTED for a layer whose output is not stored. */
ls_status ls_plan_check_export(const ls_lower *lower, ls_export what, int index, int64_t bytes,
                               int *slot);

/* plan_force: the operation of that branch. LS_ERR_USAGE if it cannot be forced or, unless host is
 * NULL, `bytes` is not the size of its decisions: one bit per element of a ReLU, one int32 per
 * output of a pool. */
ls_status ls_plan_check_force(const ls_lower *lower, int branch, const void *host, int64_t bytes,
                              const ls_op **out);

/* engines_import. Copies the choice of the line "name: choice" at *rest and moves *rest behind it;
 * LS_ERR_USAGE for any other line. And: LS_ERR_USAGE where lines are left. */
ls_status ls_plan_take_line(const char *name, const char **rest, char *choice, size_t bytes);
ls_status ls_plan_lines_end(const char *rest);

/* Reports the gradients that a backward pass has finished, in the order that every backend keeps
 * (kernels.h, ls_grad_ready). A fused pass may finish a parameter early; its report then waits for
 * the parameters before it. */
typedef struct ls_plan_ready {
    int count;     /* parameters */
    int *order;    /* [count] in order of report: last layer first */
    bool *closing; /* [count] in order of report: those before it may wait for it; initially all */
    bool *done;    /* [count] by parameter: set by the operation that computed the gradient */
    int reported;  /* how many of order[] in this pass */
} ls_plan_ready;

/* `network`: one that ls_lower_create accepts. LS_ERR_INFRA without memory. */
ls_status ls_plan_ready_create(const ls_network *network, ls_plan_ready *out);
void ls_plan_ready_free(ls_plan_ready *ready);
/* Reports of a group (ls_plan_binding) wait for the last of it; those of others that come between
 * wait, too. NULL: none waits. */
void ls_plan_ready_group(ls_plan_ready *ready, const int *group);
/* Before each backward pass: marks every gradient as not done. */
void ls_plan_ready_begin(ls_plan_ready *ready);
/* How many of order[] the next call below will have reported. */
int ls_plan_ready_due(const ls_plan_ready *ready);
/* Calls `report` (unless NULL) for the finished gradients that come next in the order. */
ls_status ls_plan_ready_report(ls_plan_ready *ready, ls_grad_ready *report, void *context);

#endif
