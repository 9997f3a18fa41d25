/* Forced branches: ReLUs and max pools whose decisions were given by plan_force. */
#ifndef LS_CPU_FORCE_H
#define LS_CPU_FORCE_H

#include "plan_data.h"

void ls_force_relu(const ls_plan *plan, const ls_op *op);
void ls_force_relu_back(const ls_plan *plan, const ls_op *op, const void *gradient);
void ls_force_pool(const ls_plan *plan, const ls_op *op);
/* plan_force without its stream. */
ls_status ls_force_branch(ls_plan *plan, int branch, const void *host, int64_t bytes);

#endif
