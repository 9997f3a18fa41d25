/* The linear layer with its bias, and softmax cross entropy. */
#ifndef LS_CPU_LOSS_H
#define LS_CPU_LOSS_H

#include "plan_data.h"

ls_status ls_loss_linear_forward(ls_plan *plan, const ls_op *op);
ls_status ls_loss_linear_backward(ls_plan *plan, const ls_op *op);
/* LS_ERR_USAGE for a target that is not a class. */
ls_status ls_loss_forward(ls_plan *plan, const ls_op *op, const int64_t *target);
/* factor: as in plan_backward. */
void ls_loss_backward(ls_plan *plan, const ls_op *op, float factor);

#endif
