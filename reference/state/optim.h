/* The optimizer in the trainer: the tensors that one step reads and writes, and its constants. The
 * backend does the arithmetic (kernels.h, optimizer_step). */
#ifndef LS_OPTIM_H
#define LS_OPTIM_H

#include "memory.h"
#include "reference/options/options.h"

ls_optimizer_config ls_optim_config(const ls_options *options);
/* --clip-grad-norm and --clip-grad-value. */
ls_clip_config ls_optim_clip(const ls_options *options);
/* Whether a step measures the norm of all gradients: to clip them, or for --grad-norm. */
bool ls_optim_measures_norm(const ls_options *options);

/* One step on every parameter, each by the constants of its group (NULL: without groups), unless
 * the scale is dynamic and a gradient overflowed. */
ls_status ls_optim_step(const ls_optimizer_config *config, const uint8_t *group,
                        const ls_memory *memory, bool dynamic);
/* Sets masters to f32(parameters), for parameters that have one. Waits. */
ls_status ls_optim_make_masters(const ls_memory *memory);

#endif
