/* LAMB and LARS, which need norms of whole tensors. */
#ifndef LS_CPU_MULTI_NORM_H
#define LS_CPU_MULTI_NORM_H

#include "multi_variant.h"

/* One step. *first_bad: as in ls_step_state. `rule`: all constants that do not depend on a norm;
 * number: of the step, from 1. LS_ERR_INFRA without memory. */
ls_status ls_multi_norm_step(const ls_multi_variant *variant, int threads,
                             const ls_optimizer_config *config, const ls_optimizer_args *args,
                             const ls_multi_rule *rule, int64_t number, int32_t *first_bad);

#endif
