/* One loss scale in backend memory: its first state, the unscale pass, the update, and the check of
 * a copy on the host that may end the run. The device takes all decisions (kernels.h,
 * ls_step_state); nothing here waits between two steps. The trainer has one, the amp library
 * (amp.h) one for each loss. */
#ifndef LS_AMP_SCALE_H
#define LS_AMP_SCALE_H

#include "reference/state/memory.h"
#include "reference/options/precision.h"

/* Overflows in a row that end a run (numerics.md section 2.6; Apex has no such stop). */
enum { LS_AMP_STREAK_MAX = 50 };

typedef struct ls_amp_scale {
    const ls_device *device; /* borrowed */
    ls_step_state *state;    /* backend memory, borrowed */
    ls_scaler_config config;
    bool unscales; /* false: the short circuit of apex/amp/handle.py@scale_loss */
} ls_amp_scale;

/* `widens`: there are masters, or half gradients that the optimizer takes in f32. Without them a
 * static scale of 1 is the short circuit: gradients stay as they are, unchecked. */
void ls_amp_scale_create(const ls_device *device, ls_step_state *state,
                         const ls_scaler_config *config, float initial_scale, bool widens,
                         ls_amp_scale *out);

/* The trainer's: the state of its memory; masters or half gradients widen. */
void ls_amp_scale_of(const ls_memory *memory, const ls_precision *precision, ls_amp_scale *out);

/* The state before the first step: S, 1/S, all counts 0, no flag raised. */
ls_step_state ls_amp_scale_start(float initial_scale);
ls_status ls_amp_scale_write(const ls_amp_scale *scale, const ls_step_state *state);

/* from / S -> to (f32), looking for inf and NaN in `from`; nothing under the short circuit. */
ls_status ls_amp_scale_unscale(const ls_amp_scale *scale, ls_tensor_list to, ls_tensor_list from);
/* S, 1/S and the counts of the next step (apex/amp/scaler.py@LossScaler.update_scale; growth
 * at >= instead of ==). */
ls_status ls_amp_scale_update(const ls_amp_scale *scale);

/* The name of tensor `index` of the lists. */
typedef const char *ls_amp_scale_name(const void *context, int index);
/* `context` is the ls_network. */
const char *ls_amp_scale_param_name(const void *context, int index);

/* LS_ERR_NON_FINITE with a line that names the tensor, when a copy of the state says that the run
 * is over: a value is not finite after a step, LS_AMP_STREAK_MAX overflows in a row, or S below its
 * floor. `name` NULL: no names. `step` is for the line. */
ls_status ls_amp_scale_judge(const ls_amp_scale *scale, ls_amp_scale_name *name,
                             const void *context, const ls_step_state *state, int64_t step);

#endif
