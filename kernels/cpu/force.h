/* Forced branches: ReLUs and max pools whose decisions were given by plan_force. */
#ifndef LS_CPU_FORCE_H
#define LS_CPU_FORCE_H

#include "plan_data.h"

void ls_force_relu(const ls_plan *plan, const ls_op *op);
void ls_force_relu_back(const ls_plan *plan, const ls_op *op, const void *gradient);
void ls_force_pool(const ls_plan *plan, const ls_op *op);

#endif
