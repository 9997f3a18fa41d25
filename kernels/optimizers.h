/* The optimizers of kernels/optimizers.def by name, for options, records and checkpoints. */
#ifndef LS_OPTIMIZERS_H
#define LS_OPTIMIZERS_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *ls_optimizers_name(ls_optimizer_kind kind); /* "sgd" */
/* LS_OPTIMIZER_KINDS for a name that none has. */
ls_optimizer_kind ls_optimizers_find(const char *name);
/* Moments kept per parameter, and those of them that a step uses: LARS keeps its buffer without
 * momentum, too. */
int ls_optimizers_moments(ls_optimizer_kind kind, double momentum);
int ls_optimizers_moments_used(const ls_optimizer_config *config);
/* The lists of a step without the moments that it does not use. Wrong counts or types are a bug. */
ls_optimizer_args ls_optimizers_args(const ls_optimizer_config *config,
                                     const ls_optimizer_args *args);
/* torch.optim's name of a moment, counted from 0: "exp_avg". */
const char *ls_optimizers_moment_name(ls_optimizer_kind kind, int moment);
/* Whether it has the constant that `option` sets: "betas", "trust", ... */
bool ls_optimizers_takes(ls_optimizer_kind kind, const char *option);
/* `standard` where the optimizer has no default of its own. */
double ls_optimizers_epsilon(ls_optimizer_kind kind, double standard);

#ifdef __cplusplus
}
#endif
#endif
