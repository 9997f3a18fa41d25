/* Mixed precision around any backward pass: Apex's amp as a library, for several models, optimizers
 * and losses. reference/examples has two programs that train through it.
 *
 * One iteration (apex/amp/handle.py@scale_loss):
 *
 *     ls_amp_begin(amp, loss, optimizers, count, delay, &state);
 *         backward of loss * state->loss_scale, the product in f32: it overwrites
 *         ls_amp_param.grad, the ranks reduce it, ls_amp_ready reports each parameter
 *     ls_amp_end(amp);
 *         unscales, checks for inf and NaN, updates the scale of that loss
 *     ls_amp_step(amp, optimizer, &skipped);
 *     ls_amp_zero_grad(amp, optimizer);
 *
 * Owners. Parameters and the gradients that backward writes are the caller's tensors, in backend
 * memory, and outlive the handle. Masters, unscaled gradients, gradients held back and moments are
 * the handle's, allocated once for each parameter group. Each loss has its scale, flags and counts
 * in an ls_step_state of its own in backend memory.
 *
 * Waits. ls_amp_end copies that state to the host and waits for it once, as Apex reads its flag:
 * one loss's flag decides for several optimizers, so the host must know it before they step. One
 * thread at a time may use a handle.
 *
 * Shared with the trainer. The trainer has one loss and one optimizer, leaves every decision to the
 * device and never waits, which lets it record a whole step as a CUDA graph and enqueue the next
 * step while the device is at this one. ls_amp_end would end both. So the trainer and this library
 * share what each decision consists of (amp_scale.h: state, unscaling, update, what ends a run; the
 * backend's optimizer_step), and not the blocks around it.
 *
 * A usage error (LS_ERR_USAGE, one line that names the allowed values) changes nothing. */
#ifndef LS_AMP_H
#define LS_AMP_H

#include <cjson/cJSON.h>

#include "reference/state/device.h"
#include "reference/options/precision.h"

typedef struct ls_amp ls_amp;

/* Receives warnings: Apex's line for a skipped step, and the entries that a state dict has too many
 * or too few. `line` has no newline. */
typedef void ls_amp_warning(void *context, const char *line);

typedef struct ls_amp_options {
    bool enabled;            /* false: S is 1, no gradient is checked, no step is skipped */
    bool masters;            /* half parameters get f32 masters (master_weights) */
    int loss_count;          /* num_losses, at least 1: independent scales */
    ls_scaler_config scaler; /* of every loss */
    float initial_scale;     /* of every loss; clamped to [min_scale, max_scale] when dynamic */
    int moment_count;        /* f32 moments per parameter: 0, 1 (momentum) or 2 (Adam) */
    int verbosity;           /* 0: no line for a skipped step; 1: one each */
    ls_amp_warning *warn;    /* NULL: ls_log_warn */
    void *context;
} ls_amp_options;

/* Types and scaler of `precision`, one loss, one moment, verbosity 1. */
ls_amp_options ls_amp_defaults(const ls_precision *precision);

/* LS_ERR_USAGE: no loss, or a scale that is not a positive finite number. */
ls_status ls_amp_create(const ls_device *device, const ls_amp_options *options, ls_amp **out);
void ls_amp_destroy(ls_amp *amp);

/* ---- optimizers and parameter groups --------------------------------------------------------- */

/* A parameter of a model and where its gradient is written: f32, f16 or bf16 each, equal counts. */
typedef struct ls_amp_param {
    char name[64];
    ls_tensor param, grad;
} ls_amp_param;

/* An optimizer without parameters; *optimizer is its number, from 0. */
ls_status ls_amp_add_optimizer(ls_amp *amp, int *optimizer);
/* A parameter group with rules and learning rate of its own, at any time between two blocks (also
 * in the middle of accumulation: the others keep what they have). With options.masters each half
 * parameter gets a master, f32(parameter) of this moment (apex/amp/_process_optimizer.py). *group
 * is its number in that optimizer, from 0.
 * LS_ERR_USAGE: an open block, a type that is no float of 4 or 2 bytes, counts that differ, a
 * parameter that another group of this optimizer has, moments that the rule needs and the handle
 * does not keep, LAMB's max_grad_norm in more than one group (Apex once clipped each by its own
 * norm: NVIDIA/apex PR 819). LS_ERR_INFRA: no memory. */
ls_status ls_amp_add_group(ls_amp *amp, int optimizer, const ls_optimizer_config *config, float lr,
                           const ls_amp_param *param, int count, int *group);
ls_status ls_amp_set_lr(ls_amp *amp, int optimizer, int group, float lr);
/* Backward writes this parameter's gradient elsewhere from now on, as after the first step of a
 * reducer that rebuilds its buckets: same type and count. LS_ERR_USAGE: an open block. */
ls_status ls_amp_set_grad(ls_amp *amp, int optimizer, int group, int index, ls_tensor grad);

/* One parameter as the optimizer sees it (Apex's master_params, and what a checkpoint holds). */
typedef struct ls_amp_view {
    const char *name;
    bool has_master;
    ls_tensor param; /* the model's */
    ls_tensor value; /* what the step changes: the master, else the parameter */
    bool has_grad;
    ls_tensor grad; /* f32, unscaled, valid with has_grad; clip it here, before the step. Its memory
                       stays and keeps the last block's values until the next block */
    ls_tensor moment[2]; /* data NULL beyond options.moment_count */
    int64_t *steps;      /* steps this parameter has really taken */
} ls_amp_view;

int ls_amp_param_count(const ls_amp *amp, int optimizer); /* of all groups together */
/* Groups in the order they were added. index: 0 to ls_amp_param_count - 1. */
ls_amp_view ls_amp_param_at(const ls_amp *amp, int optimizer, int index);
/* The model's weights have been loaded or changed by hand: masters = f32(parameter) again. Apex
 * leaves them stale, and the next step undoes the load (apex/amp/_process_optimizer.py). */
ls_status ls_amp_weights_changed(ls_amp *amp, int optimizer);

/* ---- an iteration ---------------------------------------------------------------------------- */

/* Opens the block of one loss. `optimizer`: the numbers of all optimizers that own a parameter
 * which this backward reaches. *state: that loss's state in backend memory, for
 * ls_plan_binding.state or to copy to the host. `delay` (delay_unscale): the block holds its
 * gradients back, adding them still scaled and in their own type, and the next block without it
 * unscales the sums at once (as apex/amp/handle.py@scale_loss): one check, one update, half sums
 * where gradients are half. LS_ERR_USAGE: a block is already open; no such loss or optimizer; an
 * optimizer named twice; one that holds back gradients of another loss, whose scale may differ. */
ls_status ls_amp_begin(ls_amp *amp, int loss, const int *optimizer, int count, bool delay,
                       ls_step_state **state);
/* Backward has enqueued (and the ranks have reduced) the gradient of parameter `index` of a group.
 * Without this call a block changes nothing of the parameter's gradient. */
ls_status ls_amp_ready(ls_amp *amp, int optimizer, int group, int index);
/* Closes the block: adds gradient / S in f32 to the parameter's gradient since ls_amp_zero_grad.
 * inf or NaN in a gradient makes the next step of every optimizer of the block a skip, halves S and
 * restarts its count (apex/amp/scaler.py@LossScaler.update_scale; numerics.md section 2.6). A
 * static scale of 1 without masters is Apex's short circuit: it neither checks nor counts.
 * LS_ERR_USAGE: no open block. LS_ERR_NON_FINITE: S is below its floor, or LS_AMP_STREAK_MAX
 * overflows came in a row. */
ls_status ls_amp_end(ls_amp *amp);
/* Drops an open block with its gradients, as if its backward had not run. */
void ls_amp_cancel(ls_amp *amp);
/* Steps every parameter that has a gradient, unless a block since the last step overflowed: then
 * nothing changes, gradients are dropped (Apex keeps those of f32 parameters, infinities included:
 * apex/amp/handle.py@patch_step), and *skipped is true. Gradients of masters are dropped after a
 * step, those of f32 parameters stay until ls_amp_zero_grad. LS_ERR_USAGE: an open block; gradients
 * that are held back and still scaled. LS_ERR_NON_FINITE: a parameter, master or moment is not
 * finite after the step. */
ls_status ls_amp_step(ls_amp *amp, int optimizer, bool *skipped);
ls_status ls_amp_zero_grad(ls_amp *amp, int optimizer);
/* The same for one parameter, as when a model zeroes its own. */
ls_status ls_amp_zero_param(ls_amp *amp, int optimizer, int group, int index);

/* ---- state dict ------------------------------------------------------------------------------ */

/* S of a loss for the next step; waits. */
ls_status ls_amp_loss_scale(const ls_amp *amp, int loss, float *out);
/* {"loss_scaler0": {"loss_scale": 65536, "unskipped": 0}, ...}, one entry a loss, as Apex's
 * amp.state_dict(). The caller frees it. */
ls_status ls_amp_state_dict(const ls_amp *amp, cJSON **out);
/* Entries go by the number in their key (Apex: by their place). More entries than losses: the
 * others are ignored; fewer: the other scales stay; both give a warning. LS_ERR_USAGE, before any
 * entry is applied: a key that is not loss_scaler<i>, a scale that is not positive and finite, a
 * count that is not a whole number from 0 to 2^31 - 1, an open block. */
ls_status ls_amp_load_state_dict(ls_amp *amp, const cJSON *state);

#endif
