/* Values of the last forward in logical NCHW order. */
#ifndef LS_CPU_EXPORT_H
#define LS_CPU_EXPORT_H

#include "plan_data.h"

/* plan_export without its stream. */
ls_status ls_export_copy(ls_plan *plan, ls_export what, int index, void *host, int64_t bytes);

#endif
