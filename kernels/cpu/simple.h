/* Operations without parameters. */
#ifndef LS_CPU_SIMPLE_H
#define LS_CPU_SIMPLE_H

#include "plan_data.h"

void ls_simple_forward(ls_plan *plan, const ls_op *op);
/* Also adds the two contributions to an output's gradient where there are two; for a product only
 * that. */
void ls_simple_backward(ls_plan *plan, const ls_op *op);

#endif
