/* The multi-tensor operations of the backend contract on the CPU: one pass over all tensors of a
 * list, whose concatenation is split among the threads. The operations are elementwise, and norms
 * are summed in a fixed order, so no value depends on the number of threads, on the cuts, or on the
 * vector instructions in use. */
#ifndef LS_CPU_MULTI_H
#define LS_CPU_MULTI_H

#include "kernels/entries.h"
#include "backend.h"
#include "multi_variant.h"

/* The widest variant up to `widest` that this machine can run. */
const ls_multi_variant *ls_multi_choose(ls_isa widest);

/* The table's entries, with the variant and the number of threads as arguments. */
void ls_multi_convert_with(const ls_multi_variant *variant, int threads, ls_tensor to,
                           ls_tensor from, float factor);
void ls_multi_accumulate_with(const ls_multi_variant *variant, int threads, ls_tensor sum,
                              ls_tensor from, bool first);
void ls_multi_unscale_check_with(const ls_multi_variant *variant, int threads, ls_tensor_list to,
                                 ls_tensor_list from, ls_step_state *state);
ls_status ls_multi_optimizer_step_with(const ls_multi_variant *variant, int threads,
                                       const ls_optimizer_config *config,
                                       const ls_optimizer_args *args, bool dynamic,
                                       ls_step_state *state);

#endif
