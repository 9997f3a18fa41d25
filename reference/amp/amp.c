#include "amp_private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/log.h"

ls_amp_options ls_amp_defaults(const ls_precision *precision)
{
    return (ls_amp_options){
        .enabled = true,
        .masters = precision->masters,
        .loss_count = 1,
        .scaler = precision->scaler,
        .initial_scale = precision->initial_scale,
        .moment_count = 1,
        .verbosity = 1,
    };
}

void ls_amp_say(const ls_amp *amp, const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (amp->options.tell != NULL) {
        amp->options.tell(amp->options.context, line);
    } else {
        ls_log_warn("%s", line);
    }
}

ls_status ls_amp_find_optimizer(const ls_amp *amp, int optimizer, ls_amp_optimizer **out)
{
    if (optimizer < 0 || optimizer >= amp->optimizer_count) {
        ls_log_error("amp has no optimizer %d; allowed: 0 to %d", optimizer,
                     amp->optimizer_count - 1);
        return LS_ERR_USAGE;
    }
    *out = &amp->optimizer[optimizer];
    return LS_OK;
}

ls_status ls_amp_find(const ls_amp *amp, int optimizer, int group, int index, ls_amp_slot **out)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    if (group < 0 || group >= owner->group_count) {
        ls_log_error("optimizer %d of amp has no group %d; allowed: 0 to %d", optimizer, group,
                     owner->group_count - 1);
        return LS_ERR_USAGE;
    }
    if (index < 0 || index >= owner->group[group].count) {
        ls_log_error("group %d of optimizer %d has no parameter %d; allowed: 0 to %d", group,
                     optimizer, index, owner->group[group].count - 1);
        return LS_ERR_USAGE;
    }
    *out = &owner->group[group].slot[index];
    return LS_OK;
}

ls_status ls_amp_refuse_open(const ls_amp *amp, const char *what)
{
    if (amp->open_loss >= 0) {
        ls_log_error("%s inside the block of loss %d; allowed: after ls_amp_end", what,
                     amp->open_loss);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

static bool is_scale(float scale)
{
    return scale > 0.0f && isfinite(scale);
}

static ls_status check_options(const ls_amp_options *options)
{
    if (options->loss_count < 1) {
        ls_log_error("amp for %d losses; allowed: 1 and more", options->loss_count);
        return LS_ERR_USAGE;
    }
    if (!is_scale(options->initial_scale)) {
        ls_log_error("a loss scale of %g; allowed: positive and finite",
                     (double)options->initial_scale);
        return LS_ERR_USAGE;
    }
    if (options->moment_count < 0 || options->moment_count > LS_AMP_MOMENTS) {
        ls_log_error("%d moments a parameter; allowed: 0 to %d", options->moment_count,
                     (int)LS_AMP_MOMENTS);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

/* What the options mean: without amp a static scale of 1; a dynamic scale starts inside its limits
 * (Apex lets a minimum above the start raise S at the first overflow:
 * apex/amp/scaler.py@LossScaler). */
static ls_amp_options settle(const ls_amp_options *options)
{
    ls_amp_options out = *options;
    if (!out.enabled) {
        out.masters = false;
        out.scaler.dynamic = false;
        out.initial_scale = 1.0f;
    }
    if (out.scaler.dynamic) {
        out.initial_scale =
            fmaxf(fminf(out.initial_scale, out.scaler.max_scale), out.scaler.min_scale);
    }
    return out;
}

static ls_status create_scales(ls_amp *amp)
{
    const ls_device *device = amp->device;
    const ls_amp_options *options = &amp->options;
    int states = options->loss_count + 1; /* and the optimizer's */
    void *memory = NULL;
    amp->scale = calloc((size_t)options->loss_count, sizeof *amp->scale);
    if (amp->scale == NULL) {
        ls_log_error("cannot allocate %d loss scales", options->loss_count);
        return LS_ERR_INFRA;
    }
    LS_TRY(device->api->memory_alloc(device->backend, states * (int64_t)sizeof *amp->state,
                                     "states of amp's losses", &memory));
    amp->state = memory;
    ls_step_state start = ls_amp_scale_start(options->initial_scale);
    for (int i = 0; i < options->loss_count; i++) {
        ls_amp_scale_create(device, &amp->state[i], &options->scaler, options->initial_scale,
                            options->masters, &amp->scale[i]);
        LS_TRY(ls_amp_scale_write(&amp->scale[i], &start));
    }
    return LS_OK;
}

ls_status ls_amp_create(const ls_device *device, const ls_amp_options *options, ls_amp **out)
{
    LS_TRY(check_options(options));
    ls_amp *amp = calloc(1, sizeof *amp);
    if (amp == NULL) {
        ls_log_error("cannot allocate amp");
        return LS_ERR_INFRA;
    }
    amp->device = device;
    amp->options = settle(options);
    amp->open_loss = -1;
    ls_status status = create_scales(amp);
    if (status != LS_OK) {
        ls_amp_destroy(amp);
        return status;
    }
    *out = amp;
    return LS_OK;
}

void ls_amp_destroy(ls_amp *amp)
{
    if (amp == NULL) {
        return;
    }
    const ls_device *device = amp->device;
    for (int i = 0; i < amp->optimizer_count; i++) {
        for (int g = 0; g < amp->optimizer[i].group_count; g++) {
            device->api->memory_free(device->backend, amp->optimizer[i].group[g].block);
            free(amp->optimizer[i].group[g].slot);
        }
        free(amp->optimizer[i].group);
    }
    free(amp->optimizer);
    free(amp->chosen);
    for (size_t i = 0; i < sizeof amp->list / sizeof amp->list[0]; i++) {
        free(amp->list[i]);
    }
    if (amp->state != NULL) {
        device->api->memory_free(device->backend, amp->state);
    }
    free(amp->scale);
    free(amp);
}
