/* One iteration with the amp library: the block of a loss, which unscales its gradients and updates
 * its scale, and the steps of the optimizers (apex/amp/handle.py@scale_loss,
 * apex/amp/_process_optimizer.py). A step is one call of the backend for all parameters of a group
 * that have taken equally many steps, or it is skipped. */
#include "amp_internal.h"

#include "kernels/core/log.h"
#include "kernels/core/plant.h"

/* Of the open block's loss. */
static const ls_amp_scale *scale_of(const ls_amp *amp)
{
    return &amp->scale[LS_PLANT(one_scale_for_all_losses, amp->open_loss, 0)];
}

static ls_status check_begin(const ls_amp *amp, int loss, const int *optimizer, int count)
{
    LS_TRY(ls_amp_refuse_open(amp, "a block is opened"));
    LS_TRY(ls_amp_check_loss(amp, loss));
    for (int i = 0; i < count; i++) {
        ls_amp_optimizer *owner;
        LS_TRY(ls_amp_find_optimizer(amp, optimizer[i], &owner));
        for (int k = 0; k < i; k++) {
            if (optimizer[k] == optimizer[i]) {
                return ls_log_fail(LS_ERR_USAGE,
                                   "optimizer %d stands twice in the block of loss %d",
                                   optimizer[i], loss);
            }
        }
        if (owner->held_loss >= 0 && owner->held_loss != loss) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "optimizer %d holds back gradients at the scale of loss %d; a block of loss %d "
                "would unscale them by its own; allowed: loss %d, or ls_amp_zero_grad first",
                optimizer[i], owner->held_loss, loss, owner->held_loss);
        }
    }
    return LS_OK;
}

ls_status ls_amp_begin(ls_amp *amp, int loss, const int *optimizer, int count, bool delay,
                       ls_step_state **state)
{
    LS_TRY(check_begin(amp, loss, optimizer, count));
    for (int i = 0; i < count; i++) {
        amp->optimizer[optimizer[i]].in_block = true;
    }
    amp->open_loss = loss;
    amp->delay = LS_PLANT(delay_unscale_ignored, delay, false);
    *state = scale_of(amp)->state;
    return LS_OK;
}

ls_status ls_amp_ready(ls_amp *amp, int optimizer, int group, int index)
{
    ls_amp_slot *slot;
    LS_TRY(ls_amp_find(amp, optimizer, group, index, &slot));
    if (amp->open_loss < 0 || !amp->optimizer[optimizer].in_block) {
        return ls_log_fail(LS_ERR_USAGE,
                           "the gradient of %s came outside a block of its optimizer %d",
                           slot->param.name, optimizer);
    }
    slot->ready = true;
    return LS_OK;
}

/* held = round(held + grad), the sum of two gradients in the type they have. */
static ls_status hold(ls_amp *amp, ls_amp_slot *slot)
{
    const ls_backend_api *api = amp->device->api;
    ls_backend *backend = amp->device->backend;
    ls_stream *stream = amp->device->stream;
    if (!slot->ready || (!amp->delay && !slot->has_held)) {
        return LS_OK;
    }
    /* f32 holds the sum of two half values well enough for one rounding (24 >= 2 * 11 bits) */
    LS_TRY(api->accumulate(backend, stream, slot->fresh,
                           slot->has_held ? slot->held : slot->param.grad, true));
    if (slot->has_held) {
        LS_TRY(api->accumulate(backend, stream, slot->fresh, slot->param.grad, false));
    }
    LS_TRY(api->convert(backend, stream, slot->held, slot->fresh, 1.0f));
    slot->has_held = true;
    return LS_OK;
}

/* Adds up what the block's optimizers hold back. */
static ls_status hold_all(ls_amp *amp)
{
    for (int i = 0; i < amp->optimizer_count; i++) {
        ls_amp_optimizer *owner = &amp->optimizer[i];
        for (int k = 0; owner->in_block && k < owner->slot_count; k++) {
            LS_TRY(hold(amp, owner->slot[k]));
            owner->held_loss = owner->slot[k]->has_held ? amp->open_loss : owner->held_loss;
        }
    }
    return LS_OK;
}

/* Lists the parameters that this block unscales, from what and to where; returns how many. */
static int choose_fresh(ls_amp *amp)
{
    int count = 0;
    for (int i = 0; i < amp->optimizer_count; i++) {
        ls_amp_optimizer *owner = &amp->optimizer[i];
        for (int k = 0; owner->in_block && k < owner->slot_count; k++) {
            ls_amp_slot *slot = owner->slot[k];
            if (slot->ready || slot->has_held) {
                slot->has_total = LS_PLANT(second_loss_overwrites, slot->has_total, false);
                amp->chosen[count] = slot;
                amp->list[0][count] = slot->has_total ? slot->fresh : slot->total;
                amp->list[1][count] = slot->has_held ? slot->held : slot->param.grad;
                count++;
            }
        }
    }
    return count;
}

/* Neither checks nor multiplies by 1/S: Apex's short circuit. */
static ls_status widen(const ls_amp *amp, int count)
{
    const ls_device *device = amp->device;
    for (int i = 0; i < count; i++) {
        LS_TRY(device->api->convert(device->backend, device->stream, amp->list[0][i],
                                    amp->list[1][i], 1.0f));
    }
    return LS_OK;
}

/* Adds the block's gradients to those of earlier blocks (the stash of
 * apex/amp/_process_optimizer.py). */
static ls_status add_up(ls_amp *amp, int count)
{
    const ls_device *device = amp->device;
    for (int i = 0; i < count; i++) {
        ls_amp_slot *slot = amp->chosen[i];
        if (slot->has_total) {
            LS_TRY(device->api->accumulate(device->backend, device->stream, slot->total,
                                           slot->fresh, false));
        }
        slot->has_total = true;
        slot->has_held = false;
    }
    return LS_OK;
}

static ls_status unscale(ls_amp *amp)
{
    const ls_amp_scale *scale = LS_PLANT(unscaled_by_first_loss, scale_of(amp), amp->scale);
    int count = choose_fresh(amp);
    ls_tensor_list to = {count, amp->list[0]}, from = {count, amp->list[1]};
    LS_TRY(scale->unscales ? ls_amp_scale_unscale(scale, to, from) : widen(amp, count));
    return add_up(amp, count);
}

static const char *chosen_name(const void *context, int index)
{
    const ls_amp *amp = context;
    bool known = index >= 0 && index < amp->slot_count;
    return known ? amp->chosen[index]->param.name : "a tensor without a name";
}

/* An overflow makes every optimizer of the block skip; a skip that is already due stays. */
static ls_status decide(ls_amp *amp)
{
    const ls_amp_scale *scale = scale_of(amp);
    if (!scale->unscales) {
        return LS_OK;
    }
    ls_step_state state;
    LS_TRY(ls_amp_scale_update(scale));
    LS_TRY(ls_device_read(amp->device, &state, scale->state, (int64_t)sizeof state));
    for (int i = 0; i < amp->optimizer_count; i++) {
        ls_amp_optimizer *owner = &amp->optimizer[i];
        bool skips = state.overflow != 0 && scale->config.dynamic &&
                     LS_PLANT(overflow_skips_all, owner->in_block, true) &&
                     LS_PLANT(only_first_optimizer_skips, true, i == 0);
        if (skips && owner->skipped_loss < 0) {
            owner->skipped_loss = amp->open_loss;
        }
    }
    amp->block_count++;
    return ls_amp_scale_judge(scale, chosen_name, amp, &state, amp->block_count);
}

void ls_amp_cancel(ls_amp *amp)
{
    for (int i = 0; i < amp->optimizer_count; i++) {
        ls_amp_optimizer *owner = &amp->optimizer[i];
        for (int k = 0; owner->in_block && k < owner->slot_count; k++) {
            owner->slot[k]->ready = false;
        }
        owner->in_block = false;
    }
    amp->open_loss = -1;
}

ls_status ls_amp_end(ls_amp *amp)
{
    if (amp->open_loss < 0) {
        return ls_log_fail(LS_ERR_USAGE, "ls_amp_end without an open block");
    }
    ls_status status = hold_all(amp);
    if (status == LS_OK && !amp->delay) {
        status = unscale(amp);
        for (int i = 0; i < amp->optimizer_count; i++) {
            ls_amp_optimizer *owner = &amp->optimizer[i];
            owner->held_loss = owner->in_block ? -1 : owner->held_loss;
        }
        LS_THEN(status, decide(amp));
    }
    ls_amp_cancel(amp);
    return status;
}

/* ---- the optimizer's step -------------------------------------------------------------------- */

enum { VALUE, GRAD, MOMENT1, MOMENT2, COPY };

/* The parameters with a gradient that have taken `steps` steps; returns how many. */
static int choose_equal(ls_amp *amp, const ls_amp_group *group, int64_t steps)
{
    int count = 0;
    for (int i = 0; i < group->count; i++) {
        ls_amp_slot *slot = &group->slot[i];
        if (slot->has_total && slot->steps == steps) {
            amp->chosen[count] = slot;
            amp->list[VALUE][count] = slot->value;
            amp->list[GRAD][count] = slot->total;
            amp->list[MOMENT1][count] = slot->moment[0];
            amp->list[MOMENT2][count] = slot->moment[1];
            amp->list[COPY][count] = slot->param.param;
            count++;
        }
    }
    return count;
}

/* One call of the backend; it reads a state of its own, written here. */
static ls_status step_chosen(ls_amp *amp, const ls_amp_optimizer *owner, const ls_amp_group *group,
                             int count, int64_t steps)
{
    const ls_device *device = amp->device;
    ls_step_state *at = &amp->state[amp->options.loss_count];
    ls_step_state state = ls_amp_scale_start(1.0f);
    state.lr = LS_PLANT(group_takes_first_rate, group, owner->group)->lr;
    const ls_optimizer_config *config =
        &LS_PLANT(group_takes_first_decay, group, owner->group)->config;
    state.step_count = steps;
    int moments = amp->options.moment_count;
    (void)owner;
    ls_optimizer_args args = {
        .value = {count, amp->list[VALUE]},
        .grad = {count, amp->list[GRAD]},
        .moment1 = {moments > 0 ? count : 0, amp->list[MOMENT1]},
        .moment2 = {moments > 1 ? count : 0, amp->list[MOMENT2]},
        .copy = {count, amp->list[COPY]},
    };
    LS_TRY(
        device->api->copy_in(device->backend, device->stream, at, &state, (int64_t)sizeof state));
    LS_TRY(device->api->optimizer_step(device->backend, device->stream, config, &args, false, at));
    LS_TRY(ls_device_read(device, &state, at, (int64_t)sizeof state));
    for (int i = 0; i < count; i++) {
        amp->chosen[i]->steps++;
    }
    if (state.first_bad_state >= 0 && state.first_bad_state < count) {
        return ls_log_fail(
            LS_ERR_NON_FINITE,
            "%s (its value, master or moment) is not finite after its step %lld; learning "
            "rate %g",
            amp->chosen[state.first_bad_state]->param.name, (long long)steps + 1,
            (double)group->lr);
    }
    return LS_OK;
}

/* The highest count of steps below `below` among the parameters that have a gradient; -1: none. */
static int64_t next_steps(const ls_amp_group *group, int64_t below)
{
    int64_t highest = -1;
    for (int i = 0; i < group->count; i++) {
        const ls_amp_slot *slot = &group->slot[i];
        if (slot->has_total && slot->steps < below && slot->steps > highest) {
            highest = slot->steps;
        }
    }
    return highest;
}

/* From the most to the least steps taken, so that no parameter is stepped twice. */
static ls_status step_group(ls_amp *amp, const ls_amp_optimizer *owner, const ls_amp_group *group)
{
    int64_t steps = next_steps(group, INT64_MAX);
    bool clips = group->config.kind == LS_OPTIMIZER_LAMB && group->config.max_grad_norm != 0.0;
    if (clips && next_steps(group, steps) >= 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "lamb with max_grad_norm: parameters of one group have taken %lld and %lld "
            "steps, and one call cannot take the norm of both; allowed: max_grad_norm 0",
            (long long)steps, (long long)next_steps(group, steps));
    }
    while (steps >= 0) {
        int count = choose_equal(amp, group, steps);
        LS_TRY(step_chosen(amp, owner, group, count, steps));
        steps = next_steps(group, steps);
    }
    return LS_OK;
}

/* A step drops the gradients of masters, a skip (`all`) those of f32 parameters, too. */
static void clear(const ls_amp_optimizer *owner, bool all)
{
    for (int i = 0; i < owner->slot_count; i++) {
        if (all || ls_amp_has_master(owner->slot[i])) {
            owner->slot[i]->has_total = false;
        }
    }
}

static ls_status skip(ls_amp *amp, ls_amp_optimizer *owner)
{
    float scale = 0.0f;
    LS_TRY(ls_amp_loss_scale(amp, owner->skipped_loss, &scale));
    if (amp->options.verbosity > 0) { /* Apex's words, with the reduced scale */
        ls_amp_warn(amp,
                    "Gradient overflow.  Skipping step, loss scaler %d reducing loss scale to %g",
                    owner->skipped_loss, (double)scale);
    }
    owner->skipped_loss = -1;
    clear(owner, true);
    return LS_OK;
}

ls_status ls_amp_step(ls_amp *amp, int optimizer, bool *skipped)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    LS_TRY(ls_amp_refuse_open(amp, "an optimizer steps"));
    if (owner->held_loss >= 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "optimizer %d would step on gradients that are still scaled; allowed: after a block of "
            "loss %d without delay, or after ls_amp_zero_grad",
            optimizer, owner->held_loss);
    }
    bool skips = owner->skipped_loss >= 0;
    if (skips) {
        LS_TRY(skip(amp, owner));
    } else {
        for (int g = 0; g < owner->group_count; g++) {
            LS_TRY(step_group(amp, owner, &owner->group[g]));
        }
        clear(owner, false);
    }
    *skipped = skips;
    return LS_OK;
}

static void drop(ls_amp_slot *slot)
{
    slot->has_total = slot->has_held = slot->ready = false;
}

ls_status ls_amp_zero_grad(ls_amp *amp, int optimizer)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    LS_TRY(ls_amp_refuse_open(amp, "gradients are zeroed"));
    for (int i = 0; i < owner->slot_count; i++) {
        drop(owner->slot[i]);
    }
    owner->held_loss = -1;
    return LS_OK;
}

ls_status ls_amp_zero_param(ls_amp *amp, int optimizer, int group, int index)
{
    ls_amp_slot *slot;
    LS_TRY(ls_amp_find(amp, optimizer, group, index, &slot));
    LS_TRY(ls_amp_refuse_open(amp, "a gradient is zeroed"));
    drop(slot);
    ls_amp_optimizer *owner = &amp->optimizer[optimizer];
    bool holds = false;
    for (int i = 0; i < owner->slot_count; i++) {
        holds = holds || owner->slot[i]->has_held;
    }
    owner->held_loss = holds ? owner->held_loss : -1;
    return LS_OK;
}
