/* Compares forced branches with those that FP64 would take: counts the turned ones, and finds those
 * that are not near-ties (numerics.md section 4, point 2). */
#ifndef LS_ORACLE_TIES_H
#define LS_ORACLE_TIES_H

#include "oracle_step.h"
#include "planes.h"

/* To be called before forward of a ReLU or max-pool with forced branches: adds to result->turned
 * and the violations, and fills branch_rms. `in` is x64, the input of the layer. */
ls_status ls_ties_check(const ls_oracle_step *step, const ls_oracle_mode *mode,
                        const ls_nettab_node *node, const ls_planes *in, ls_oracle_result *result);

#endif
