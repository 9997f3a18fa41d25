/* LAMB and LARS, which need norms of whole tensors. */
#ifndef LS_CPU_MULTI_NORM_H
#define LS_CPU_MULTI_NORM_H

#include "multi_variant.h"

/* One step; sets first_bad_state. LS_ERR_INFRA without memory. */
ls_status ls_multi_norm_step(const ls_multi_variant *variant, int threads,
                             const ls_optimizer_config *config, const ls_optimizer_args *args,
                             ls_step_state *state);

#endif
