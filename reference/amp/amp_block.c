/* The amp library's blocks: what happens between the scaled loss and the optimizer's step
 * (apex/amp/handle.py@scale_loss, apex/amp/_process_optimizer.py). */
#include "amp_private.h"

#include "kernels/core/log.h"

static ls_status check_begin(const ls_amp *amp, int loss, const int *optimizer, int count)
{
    LS_TRY(ls_amp_refuse_open(amp, "a block is opened"));
    if (loss < 0 || loss >= amp->options.loss_count) {
        ls_log_error("amp has no loss %d; allowed: 0 to %d", loss, amp->options.loss_count - 1);
        return LS_ERR_USAGE;
    }
    for (int i = 0; i < count; i++) {
        ls_amp_optimizer *owner;
        LS_TRY(ls_amp_find_optimizer(amp, optimizer[i], &owner));
        for (int k = 0; k < i; k++) {
            if (optimizer[k] == optimizer[i]) {
                ls_log_error("optimizer %d stands twice in the block of loss %d", optimizer[i],
                             loss);
                return LS_ERR_USAGE;
            }
        }
        if (owner->held_loss >= 0 && owner->held_loss != loss) {
            ls_log_error(
                "optimizer %d holds back gradients at the scale of loss %d; a block of loss %d "
                "would unscale them by its own; allowed: loss %d, or ls_amp_zero_grad first",
                optimizer[i], owner->held_loss, loss, owner->held_loss);
            return LS_ERR_USAGE;
        }
    }
    return LS_OK;
}

ls_status ls_amp_begin(ls_amp *amp, int loss, const int *optimizer, int count, bool delay,
                       const ls_step_state **state)
{
    LS_TRY(check_begin(amp, loss, optimizer, count));
    for (int i = 0; i < count; i++) {
        amp->optimizer[optimizer[i]].in_block = true;
    }
    amp->open_loss = loss;
    amp->delay = delay;
    *state = &amp->state[loss];
    return LS_OK;
}

ls_status ls_amp_ready(ls_amp *amp, int optimizer, int group, int index)
{
    ls_amp_slot *slot;
    LS_TRY(ls_amp_find(amp, optimizer, group, index, &slot));
    if (amp->open_loss < 0 || !amp->optimizer[optimizer].in_block) {
        ls_log_error("the gradient of %s came outside a block of its optimizer %d",
                     slot->param.name, optimizer);
        return LS_ERR_USAGE;
    }
    slot->ready = true;
    return LS_OK;
}

/* Visits the parameters of the block's optimizers. */
typedef ls_status visit_slot(ls_amp *amp, ls_amp_optimizer *owner, ls_amp_slot *slot,
                             void *context);

static ls_status each_slot(ls_amp *amp, visit_slot *visit, void *context)
{
    for (int i = 0; i < amp->optimizer_count; i++) {
        ls_amp_optimizer *owner = &amp->optimizer[i];
        for (int g = 0; owner->in_block && g < owner->group_count; g++) {
            for (int k = 0; k < owner->group[g].count; k++) {
                LS_TRY(visit(amp, owner, &owner->group[g].slot[k], context));
            }
        }
    }
    return LS_OK;
}

/* held = round(held + grad), the sum of two gradients in the type they have. */
static ls_status hold(ls_amp *amp, ls_amp_optimizer *owner, ls_amp_slot *slot, void *context)
{
    const ls_backend_api *api = amp->device->api;
    ls_backend *backend = amp->device->backend;
    ls_stream *stream = amp->device->stream;
    (void)context;
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
    owner->held_loss = amp->open_loss;
    return LS_OK;
}

/* The parameters that this block unscales, from what and to where. */
static ls_status choose(ls_amp *amp, ls_amp_optimizer *owner, ls_amp_slot *slot, void *context)
{
    int *count = context;
    (void)owner;
    if (slot->ready || slot->has_held) {
        amp->chosen[*count] = slot;
        amp->list[0][*count] = slot->has_total ? slot->fresh : slot->total;
        amp->list[1][*count] = slot->has_held ? slot->held : slot->param.grad;
        (*count)++;
    }
    return LS_OK;
}

/* Without a look and without 1/S: Apex's short circuit. */
static ls_status widen(const ls_amp *amp, int count)
{
    const ls_device *device = amp->device;
    for (int i = 0; i < count; i++) {
        LS_TRY(device->api->convert(device->backend, device->stream, amp->list[0][i],
                                    amp->list[1][i], 1.0f));
    }
    return LS_OK;
}

/* Adds what the block made to what was there (the stash of apex/amp/_process_optimizer.py). */
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
    const ls_amp_scale *scale = &amp->scale[amp->open_loss];
    int count = 0;
    LS_TRY(each_slot(amp, choose, &count));
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

/* The flag decides for all optimizers of the block; a skip that is due already stays as it is. */
static ls_status decide(ls_amp *amp)
{
    const ls_amp_scale *scale = &amp->scale[amp->open_loss];
    if (!scale->unscales) {
        return LS_OK;
    }
    ls_step_state state;
    LS_TRY(ls_amp_scale_update(scale));
    LS_TRY(ls_device_read(amp->device, &state, scale->state, (int64_t)sizeof state));
    for (int i = 0; i < amp->optimizer_count; i++) {
        ls_amp_optimizer *owner = &amp->optimizer[i];
        bool skips = owner->in_block && state.overflow != 0 && scale->config.dynamic;
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
        for (int g = 0; owner->in_block && g < owner->group_count; g++) {
            for (int k = 0; k < owner->group[g].count; k++) {
                owner->group[g].slot[k].ready = false;
            }
        }
        owner->in_block = false;
    }
    amp->open_loss = -1;
}

ls_status ls_amp_end(ls_amp *amp)
{
    if (amp->open_loss < 0) {
        ls_log_error("ls_amp_end without an open block");
        return LS_ERR_USAGE;
    }
    ls_status status = each_slot(amp, hold, NULL);
    if (status == LS_OK && !amp->delay) {
        status = unscale(amp);
        for (int i = 0; i < amp->optimizer_count; i++) {
            ls_amp_optimizer *owner = &amp->optimizer[i];
            owner->held_loss = owner->in_block ? -1 : owner->held_loss;
        }
        if (status == LS_OK) {
            status = decide(amp);
        }
    }
    ls_amp_cancel(amp);
    return status;
}
