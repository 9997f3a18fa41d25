/* What callers of a plan may get wrong, whichever backend it is: counts of tensors, numbers of
 * branches and layers, sizes of buffers. Everything but LS_OK is logged with what was given and
 * what it should have been. */
#ifndef LS_PLAN_CHECK_H
#define LS_PLAN_CHECK_H

#include "lower.h"

/* plan_bind: every parameter has its count of values and of gradients; else LS_ERR_USAGE. */
ls_status ls_plan_check_binding(const ls_network *network, const ls_plan_binding *binding);

/* plan_export: the slot that `index` means. LS_ERR_USAGE where there is no such branch or `bytes`
 * is not the size of the result, LS_ERR_UNSUPPORTED for a layer whose output is not stored. */
ls_status ls_plan_check_export(const ls_lower *lower, ls_export what, int index, int64_t bytes,
                               int *slot);

/* plan_force: the pass of that branch. LS_ERR_USAGE where the plan cannot be forced there, or
 * `bytes` is not the size of what is given for it (unless host is NULL): a bit or an int32 an
 * element. */
ls_status ls_plan_check_force(const ls_lower *lower, int branch, const void *host, int64_t bytes,
                              const ls_op **out);

#endif
