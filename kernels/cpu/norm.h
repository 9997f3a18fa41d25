/* Batch norm, fused with the addition and the ReLU that follow it. `stream` is for SyncBN's
 * all-gather. */
#ifndef LS_CPU_NORM_H
#define LS_CPU_NORM_H

#include "plan_data.h"

ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, const ls_op *op);
ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, const ls_op *op);

#endif
