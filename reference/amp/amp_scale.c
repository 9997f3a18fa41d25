#include "amp_scale.h"

#include "kernels/core/log.h"

void ls_amp_scale_create(const ls_device *device, ls_step_state *state,
                         const ls_scaler_config *config, float initial_scale, bool widens,
                         ls_amp_scale *out)
{
    *out = (ls_amp_scale){
        .device = device,
        .state = state,
        .config = *config,
        .unscales = config->dynamic || initial_scale != 1.0f || widens,
    };
}

void ls_amp_scale_of(const ls_memory *memory, const ls_precision *precision, ls_amp_scale *out)
{
    bool widens = memory->master != NULL;
    for (int i = 0; i < memory->param_count; i++) {
        widens = widens || memory->grad[i].dtype != LS_F32;
    }
    ls_amp_scale_create(memory->device, memory->state, &precision->scaler, precision->initial_scale,
                        widens, out);
}

ls_step_state ls_amp_scale_start(float initial_scale)
{
    return (ls_step_state){
        .loss_scale = initial_scale,
        .inv_loss_scale = (float)(1.0 / (double)initial_scale),
        .first_bad_grad = -1,
        .first_bad_state = -1,
    };
}

ls_status ls_amp_scale_write(const ls_amp_scale *scale, const ls_step_state *state)
{
    const ls_device *device = scale->device;
    LS_TRY(device->api->copy_in(device->backend, device->stream, scale->state, state,
                                (int64_t)sizeof *state));
    return device->api->stream_wait(device->stream);
}

ls_status ls_amp_scale_unscale(const ls_amp_scale *scale, ls_tensor_list to, ls_tensor_list from)
{
    const ls_device *device = scale->device;
    if (!scale->unscales) {
        return LS_OK;
    }
    return device->api->unscale_check(device->backend, device->stream, to, from, scale->state);
}

ls_status ls_amp_scale_update(const ls_amp_scale *scale)
{
    const ls_device *device = scale->device;
    return device->api->scaler_update(device->backend, device->stream, &scale->config,
                                      scale->state);
}

const char *ls_amp_scale_param_name(const void *context, int index)
{
    const ls_network *network = context;
    bool known = index >= 0 && index < network->param_count;
    return known ? network->param[index].name : "a tensor without a name";
}

static const char *no_name(const void *context, int index)
{
    (void)context, (void)index;
    return "a tensor without a name";
}

ls_status ls_amp_scale_judge(const ls_amp_scale *scale, ls_amp_scale_name *name,
                             const void *context, const ls_step_state *state, int64_t step)
{
    ls_amp_scale_name *name_of = name != NULL ? name : no_name;
    if (state->first_bad_state >= 0) {
        return ls_log_fail(
            LS_ERR_NON_FINITE,
            "step %lld: %s (its value, master or moment) is not finite after the step; loss "
            "scale %g, learning rate %g",
            (long long)step, name_of(context, state->first_bad_state), (double)state->loss_scale,
            (double)state->lr);
    }
    if (!scale->config.dynamic) {
        return LS_OK;
    }
    if (state->floor_reached != 0) {
        return ls_log_fail(
            LS_ERR_NON_FINITE,
            "step %lld: an overflow took the loss scale to %g, past its floor; first gradient "
            "with inf or NaN: %s",
            (long long)step, (double)state->loss_scale, name_of(context, state->first_bad_grad));
    }
    if (state->overflow_streak >= LS_AMP_STREAK_MAX) {
        return ls_log_fail(
            LS_ERR_NON_FINITE,
            "step %lld: %d overflows in a row, loss scale now %g; first gradient with inf or "
            "NaN: %s",
            (long long)step, (int)state->overflow_streak, (double)state->loss_scale,
            name_of(context, state->first_bad_grad));
    }
    return LS_OK;
}
