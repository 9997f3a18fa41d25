/* The amp library's steps: one call of the backend for all parameters of a group that have been
 * stepped equally often, or a skip. */
#include "amp_private.h"

#include "kernels/core/log.h"

enum { VALUE, GRAD, MOMENT1, MOMENT2, COPY };

void ls_amp_drop(ls_amp_slot *slot)
{
    slot->has_total = slot->has_held = slot->ready = false;
}

static ls_status refuse_held(const ls_amp *amp, int optimizer)
{
    if (amp->optimizer[optimizer].held_loss >= 0) {
        ls_log_error(
            "optimizer %d would step on gradients that are still scaled; allowed: after a block of "
            "loss %d without delay, or after ls_amp_zero_grad",
            optimizer, amp->optimizer[optimizer].held_loss);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

/* The parameters with a gradient that have taken `steps` steps; returns how many. */
static int choose(ls_amp *amp, const ls_amp_group *group, int64_t steps)
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

/* One call; the state it reads is written here and nobody else's. */
static ls_status step_chosen(ls_amp *amp, const ls_amp_group *group, int count, int64_t steps)
{
    const ls_device *device = amp->device;
    ls_step_state *at = &amp->state[amp->options.loss_count];
    ls_step_state state = ls_amp_scale_start(1.0f);
    state.lr = group->lr;
    state.step_count = steps;
    int moments = amp->options.moment_count;
    ls_optimizer_args args = {
        .value = {count, amp->list[VALUE]},
        .grad = {count, amp->list[GRAD]},
        .moment1 = {moments > 0 ? count : 0, amp->list[MOMENT1]},
        .moment2 = {moments > 1 ? count : 0, amp->list[MOMENT2]},
        .copy = {count, amp->list[COPY]},
    };
    LS_TRY(
        device->api->copy_in(device->backend, device->stream, at, &state, (int64_t)sizeof state));
    LS_TRY(device->api->optimizer_step(device->backend, device->stream, &group->config, &args,
                                       false, at));
    LS_TRY(ls_device_read(device, &state, at, (int64_t)sizeof state));
    for (int i = 0; i < count; i++) {
        amp->chosen[i]->steps++;
    }
    if (state.first_bad_state >= 0 && state.first_bad_state < count) {
        ls_log_error("%s (its value, master or moment) is not finite after its step %lld; learning "
                     "rate %g",
                     amp->chosen[state.first_bad_state]->param.name, (long long)steps + 1,
                     (double)group->lr);
        return LS_ERR_NON_FINITE;
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

/* From the most to the least often stepped, so that nobody is stepped twice. */
static ls_status step_group(ls_amp *amp, const ls_amp_group *group)
{
    int64_t steps = next_steps(group, INT64_MAX);
    bool clips = group->config.kind == LS_OPTIMIZER_LAMB && group->config.max_grad_norm != 0.0;
    if (clips && next_steps(group, steps) >= 0) {
        ls_log_error("lamb with max_grad_norm: parameters of one group have taken %lld and %lld "
                     "steps, and one call cannot take the norm of both; allowed: max_grad_norm 0",
                     (long long)steps, (long long)next_steps(group, steps));
        return LS_ERR_USAGE;
    }
    while (steps >= 0) {
        int count = choose(amp, group, steps);
        LS_TRY(step_chosen(amp, group, count, steps));
        steps = next_steps(group, steps);
    }
    return LS_OK;
}

/* Gradients of masters are cleared by the step, all of them by a skip. */
static void clear(const ls_amp_optimizer *owner, bool all)
{
    for (int g = 0; g < owner->group_count; g++) {
        for (int i = 0; i < owner->group[g].count; i++) {
            ls_amp_slot *slot = &owner->group[g].slot[i];
            if (all || slot->value.data != slot->param.param.data) {
                slot->has_total = false;
            }
        }
    }
}

static ls_status skip(ls_amp *amp, ls_amp_optimizer *owner)
{
    float scale = 0.0f;
    LS_TRY(ls_amp_loss_scale(amp, owner->skipped_loss, &scale));
    if (amp->options.verbosity > 0) { /* Apex's words; the scale is the reduced one already */
        ls_amp_say(amp,
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
    LS_TRY(refuse_held(amp, optimizer));
    bool skips = owner->skipped_loss >= 0;
    if (skips) {
        LS_TRY(skip(amp, owner));
    } else {
        for (int g = 0; g < owner->group_count; g++) {
            LS_TRY(step_group(amp, &owner->group[g]));
        }
        clear(owner, false);
    }
    *skipped = skips;
    return LS_OK;
}

ls_status ls_amp_zero_grad(ls_amp *amp, int optimizer)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    LS_TRY(ls_amp_refuse_open(amp, "gradients are zeroed"));
    for (int g = 0; g < owner->group_count; g++) {
        for (int i = 0; i < owner->group[g].count; i++) {
            ls_amp_drop(&owner->group[g].slot[i]);
        }
    }
    owner->held_loss = -1;
    return LS_OK;
}

ls_status ls_amp_zero_param(ls_amp *amp, int optimizer, int group, int index)
{
    ls_amp_slot *slot;
    LS_TRY(ls_amp_find(amp, optimizer, group, index, &slot));
    LS_TRY(ls_amp_refuse_open(amp, "a gradient is zeroed"));
    ls_amp_drop(slot);
    ls_amp_optimizer *owner = &amp->optimizer[optimizer];
    bool holds = false;
    for (int g = 0; g < owner->group_count; g++) {
        for (int i = 0; i < owner->group[g].count; i++) {
            holds = holds || owner->group[g].slot[i].has_held;
        }
    }
    owner->held_loss = holds ? owner->held_loss : -1;
    return LS_OK;
}
