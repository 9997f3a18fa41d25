/* Checks of a caller's arguments that all backends share: counts of tensors, numbers of branches
 * and layers, sizes of buffers. Every error is logged with the given and the expected value. */
#ifndef LS_PLAN_CHECK_H
#define LS_PLAN_CHECK_H

#include "lowered.h"

/* plan_bind: every parameter has its count of values and of gradients; else LS_ERR_USAGE. */
ls_status ls_plan_check_binding(const ls_network *network, const ls_plan_binding *binding);

/* plan_export: the slot that `index` means. LS_ERR_USAGE if there is no such branch or `bytes`
 * is not the size of the result, LS_ERR_UNSUPPORTED for a layer whose output is not stored. */
ls_status ls_plan_check_export(const ls_lower *lower, ls_export what, int index, int64_t bytes,
                               int *slot);

/* plan_force: the operation of that branch. LS_ERR_USAGE if it cannot be forced or, unless host is
 * NULL, `bytes` is not the size of its decisions: one bit per element of a ReLU, one int32 per
 * output of a pool. */
ls_status ls_plan_check_force(const ls_lower *lower, int branch, const void *host, int64_t bytes,
                              const ls_op **out);

#endif
