#include "amp.h"

#include "../kernels/core/log.h"

void ls_amp_create(ls_memory *memory, const ls_precision *precision, ls_amp *out)
{
    bool widen = memory->master != NULL;
    for (int i = 0; i < memory->param_count; i++) {
        widen = widen || memory->grad[i].dtype != LS_F32;
    }
    *out = (ls_amp){
        .memory = memory,
        .config = precision->scaler,
        .unscales = precision->scaler.dynamic || precision->initial_scale != 1.0f || widen,
    };
}

ls_step_state ls_amp_initial_state(const ls_precision *precision)
{
    return (ls_step_state){
        .loss_scale = precision->initial_scale,
        .inv_loss_scale = 1.0f / precision->initial_scale,
        .first_bad_grad = -1,
        .first_bad_state = -1,
    };
}

ls_status ls_amp_write_state(const ls_amp *amp, const ls_step_state *state)
{
    const ls_device *device = amp->memory->device;
    LS_TRY(device->api->copy_in(device->backend, device->stream, amp->memory->state, state,
                                (int64_t)sizeof *state));
    return device->api->stream_wait(device->stream);
}

ls_status ls_amp_unscale(const ls_amp *amp)
{
    ls_memory *memory = amp->memory;
    const ls_device *device = memory->device;
    if (!amp->unscales) {
        return LS_OK;
    }
    ls_tensor_list to = {.count = memory->param_count, .tensor = memory->unscaled};
    ls_tensor_list from = {.count = memory->param_count, .tensor = memory->grad};
    return device->api->unscale_check(device->backend, device->stream, to, from, memory->state);
}

ls_status ls_amp_update(const ls_amp *amp)
{
    const ls_device *device = amp->memory->device;
    return device->api->scaler_update(device->backend, device->stream, &amp->config,
                                      amp->memory->state);
}

static const char *param_name(const ls_amp *amp, int32_t index)
{
    bool known = index >= 0 && index < amp->memory->param_count;
    return known ? amp->memory->network->param[index].name : "a tensor without a name";
}

ls_status ls_amp_judge(const ls_amp *amp, const ls_step_state *state, int64_t step)
{
    if (state->first_bad_state >= 0) {
        ls_log_error(
            "step %lld: %s (its value, master or moment) is not finite after the step; loss "
            "scale %g, learning rate %g",
            (long long)step, param_name(amp, state->first_bad_state), (double)state->loss_scale,
            (double)state->lr);
        return LS_ERR_NON_FINITE;
    }
    if (!amp->config.dynamic) {
        return LS_OK;
    }
    if (state->floor_reached != 0) {
        ls_log_error(
            "step %lld: an overflow took the loss scale to %g, past its floor; first gradient "
            "with inf or NaN: %s",
            (long long)step, (double)state->loss_scale, param_name(amp, state->first_bad_grad));
        return LS_ERR_NON_FINITE;
    }
    if (state->overflow_streak >= LS_AMP_STREAK_MAX) {
        ls_log_error(
            "step %lld: %d overflows in a row, loss scale now %g; first gradient with inf or "
            "NaN: %s",
            (long long)step, (int)state->overflow_streak, (double)state->loss_scale,
            param_name(amp, state->first_bad_grad));
        return LS_ERR_NON_FINITE;
    }
    return LS_OK;
}
