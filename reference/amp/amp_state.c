/* The amp library's state dict, in Apex's form (apex/amp/frontend.py@state_dict), checked before
 * anything is applied. */
#include "amp_internal.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"

ls_status ls_amp_loss_scale(const ls_amp *amp, int loss, float *out)
{
    LS_TRY(ls_amp_check_loss(amp, loss));
    ls_step_state state;
    LS_TRY(ls_device_read(amp->device, &state, &amp->state[loss], (int64_t)sizeof state));
    *out = state.loss_scale;
    return LS_OK;
}

ls_status ls_amp_state_dict(const ls_amp *amp, cJSON **out)
{
    cJSON *json = cJSON_CreateObject();
    for (int i = 0; i < amp->options.loss_count; i++) {
        char key[32];
        ls_step_state state;
        ls_status status =
            ls_device_read(amp->device, &state, &amp->state[i], (int64_t)sizeof state);
        if (status != LS_OK) {
            cJSON_Delete(json);
            return status;
        }
        snprintf(key, sizeof key, "loss_scaler%d", i);
        cJSON *entry = cJSON_AddObjectToObject(json, key);
        cJSON_AddNumberToObject(entry, "loss_scale", (double)state.loss_scale);
        cJSON_AddNumberToObject(entry, "unskipped", state.growth_count);
    }
    *out = json;
    return LS_OK;
}

typedef struct entry {
    int loss;
    float scale;
    int32_t unskipped;
} entry;

/* The <i> of loss_scaler<i>. */
static ls_status read_key(const char *key, int *loss)
{
    static const char prefix[] = "loss_scaler";
    size_t length = sizeof prefix - 1;
    const char *digits = key != NULL ? key + length : "";
    bool good = key != NULL && strncmp(key, prefix, length) == 0 && *digits != '\0' &&
                strspn(digits, "0123456789") == strlen(digits) && strlen(digits) < 10;
    if (!good) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "amp's state dict has the key \"%s\"; allowed: loss_scaler0, loss_scaler1, ...",
            key != NULL ? key : "");
    }
    *loss = (int)strtol(digits, NULL, 10);
    return LS_OK;
}

static ls_status read_entry(const cJSON *item, entry *out)
{
    LS_TRY(read_key(item->string, &out->loss));
    double scale = ls_json_number(item, "loss_scale", NAN);
    double unskipped = ls_json_number(item, "unskipped", NAN);
    out->scale = (float)scale;
    if (!(out->scale > 0.0f) || !isfinite(out->scale)) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "amp's state dict: %s has the loss scale %g; allowed: positive and finite",
            item->string, scale);
    }
    int64_t count;
    if (!ls_json_whole(unskipped, 0, INT32_MAX, &count)) {
        return ls_log_fail(LS_ERR_USAGE,
                           "amp's state dict: %s has unskipped %g; allowed: 0 to %d, whole",
                           item->string, unskipped, INT32_MAX);
    }
    out->unskipped = (int32_t)count;
    return LS_OK;
}

/* The counts of overflows start again: Apex's form does not hold them. */
static ls_status apply(ls_amp *amp, const entry *from)
{
    ls_step_state state = ls_amp_scale_start(from->scale);
    state.growth_count = from->unskipped;
    ls_amp_scale *scale = &amp->scale[from->loss];
    scale->unscales = scale->config.dynamic || from->scale != 1.0f || amp->options.masters;
    return ls_amp_scale_write(scale, &state);
}

ls_status ls_amp_load_state_dict(ls_amp *amp, const cJSON *state)
{
    LS_TRY(ls_amp_refuse_open(amp, "a state dict is loaded"));
    int entries = cJSON_GetArraySize(state);
    entry read;
    for (int i = 0; i < entries; i++) {
        LS_TRY(read_entry(cJSON_GetArrayItem(state, i), &read));
    }
    if (entries != amp->options.loss_count) {
        ls_amp_warn(amp, "Warning: state_dict contains %d entries, while %d loss_scalers are used",
                    entries, amp->options.loss_count);
    }
    for (int i = 0; i < entries; i++) {
        LS_TRY(read_entry(cJSON_GetArrayItem(state, i), &read));
        if (read.loss < amp->options.loss_count) {
            LS_TRY(apply(amp, &read));
        } else {
            ls_amp_warn(amp, "Skipping loss_scaler[%d], since num_losses was set to %d", read.loss,
                        amp->options.loss_count);
        }
    }
    return LS_OK;
}
