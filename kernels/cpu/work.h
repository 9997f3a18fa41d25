/* Engines, layouts of activations and memory of a plan's operations. */
#ifndef LS_CPU_WORK_H
#define LS_CPU_WORK_H

#include "plan_data.h"

/* LS_ERR_INFRA without memory, LS_ERR_UNSUPPORTED if oneDNN has no engine for a layer. After a
 * failure ls_work_destroy frees what exists. */
ls_status ls_work_create(ls_plan *plan);
void ls_work_destroy(ls_plan *plan);
void ls_work_describe(const ls_plan *plan, char *text, size_t bytes);

#endif
