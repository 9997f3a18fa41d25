/* The amp library's handle, its optimizers and parameter groups, and the memory of each parameter.
 */
#include "amp_internal.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "kernels/optimizers.h"
#include "reference/state/optim.h"

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

void ls_amp_warn(const ls_amp *amp, const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (amp->options.warn != NULL) {
        amp->options.warn(amp->options.context, line);
    } else {
        ls_log_warn("%s", line);
    }
}

/* LS_ERR_USAGE unless the number is one of `count`. */
static ls_status check_number(const char *what, int number, int count)
{
    if (number < 0 || number >= count) {
        return ls_log_fail(LS_ERR_USAGE, "amp has no %s %d; allowed: 0 to %d", what, number,
                           count - 1);
    }
    return LS_OK;
}

ls_status ls_amp_check_loss(const ls_amp *amp, int loss)
{
    return check_number("loss", loss, amp->options.loss_count);
}

ls_status ls_amp_find_optimizer(const ls_amp *amp, int optimizer, ls_amp_optimizer **out)
{
    LS_TRY(check_number("optimizer", optimizer, amp->optimizer_count));
    *out = &amp->optimizer[optimizer];
    return LS_OK;
}

static ls_status find_group(const ls_amp *amp, int optimizer, int group, ls_amp_group **out)
{
    LS_TRY(check_number("optimizer", optimizer, amp->optimizer_count));
    LS_TRY(check_number("group of that optimizer", group, amp->optimizer[optimizer].group_count));
    *out = &amp->optimizer[optimizer].group[group];
    return LS_OK;
}

ls_status ls_amp_find(const ls_amp *amp, int optimizer, int group, int index, ls_amp_slot **out)
{
    ls_amp_group *owner = NULL;
    LS_TRY(find_group(amp, optimizer, group, &owner));
    LS_TRY(check_number("parameter of that group", index, owner->count));
    *out = &owner->slot[index];
    return LS_OK;
}

ls_status ls_amp_refuse_open(const ls_amp *amp, const char *what)
{
    if (amp->open_loss >= 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s inside the block of loss %d; allowed: after ls_amp_end", what,
                           amp->open_loss);
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
        return ls_log_fail(LS_ERR_USAGE, "amp for %d losses; allowed: 1 and more",
                           options->loss_count);
    }
    if (!is_scale(options->initial_scale)) {
        return ls_log_fail(LS_ERR_USAGE, "a loss scale of %g; allowed: positive and finite",
                           (double)options->initial_scale);
    }
    if (options->moment_count < 0 || options->moment_count > LS_AMP_MOMENTS) {
        return ls_log_fail(LS_ERR_USAGE, "%d moments a parameter; allowed: 0 to %d",
                           options->moment_count, (int)LS_AMP_MOMENTS);
    }
    return LS_OK;
}

/* The options in effect: without amp a static scale of 1; a dynamic scale starts within its limits
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
    LS_MEMORY(amp->scale != NULL);
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
    LS_MEMORY(amp != NULL);
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
        free(amp->optimizer[i].slot);
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

/* ---- optimizers ------------------------------------------------------------------------------ */

/* Grows *array, a pointer to elements of `bytes`, to `count` of them. */
static void grow(void *array, size_t count, size_t bytes)
{
    void *memory;
    memcpy(&memory, array, sizeof memory);
    memory = realloc(memory, count * bytes);
    LS_MEMORY(memory != NULL);
    memcpy(array, &memory, sizeof memory);
}

ls_status ls_amp_add_optimizer(ls_amp *amp, int *optimizer)
{
    LS_TRY(ls_amp_refuse_open(amp, "an optimizer is added"));
    grow(&amp->optimizer, (size_t)amp->optimizer_count + 1, sizeof *amp->optimizer);
    amp->optimizer[amp->optimizer_count] = (ls_amp_optimizer){.held_loss = -1, .skipped_loss = -1};
    *optimizer = amp->optimizer_count++;
    return LS_OK;
}

/* ---- memory of a group ----------------------------------------------------------------------- */

/* Hands out pieces of one block; with base NULL it only counts. */
typedef struct carver {
    char *base;
    int64_t used;
} carver;

static ls_tensor carve(carver *from, ls_dtype dtype, int64_t count)
{
    ls_tensor tensor = {from->base == NULL ? NULL : from->base + from->used, dtype, count};
    /* 256: what CUDA's vector loads and the backends' own blocks are aligned to */
    from->used += ((int64_t)ls_tensor_bytes(&tensor) + 255) / 256 * 256;
    return tensor;
}

static void carve_slot(carver *from, const ls_amp_options *options, ls_amp_slot *slot)
{
    int64_t count = slot->param.param.count;
    bool half = slot->param.param.dtype != LS_F32;
    slot->value = half && options->masters ? carve(from, LS_F32, count) : slot->param.param;
    slot->total = carve(from, LS_F32, count);
    slot->fresh = carve(from, LS_F32, count);
    slot->held = carve(from, slot->param.grad.dtype, count);
    for (int m = 0; m < options->moment_count; m++) {
        slot->moment[m] = carve(from, LS_F32, count);
    }
}

static int64_t carve_group(const ls_amp *amp, ls_amp_group *group, void *base)
{
    carver from = {base, 0};
    for (int i = 0; i < group->count; i++) {
        carve_slot(&from, &amp->options, &group->slot[i]);
    }
    return from.used;
}

bool ls_amp_has_master(const ls_amp_slot *slot)
{
    return slot->value.data != slot->param.param.data;
}

static ls_status make_masters(const ls_amp *amp, const ls_amp_group *group)
{
    const ls_device *device = amp->device;
    for (int i = 0; i < group->count; i++) {
        const ls_amp_slot *slot = &group->slot[i];
        if (ls_amp_has_master(slot)) {
            LS_TRY(device->api->convert(device->backend, device->stream, slot->value,
                                        slot->param.param, 1.0f));
        }
    }
    return device->api->stream_wait(device->stream);
}

/* ---- adding a group -------------------------------------------------------------------------- */

static bool is_float(ls_dtype dtype)
{
    return dtype == LS_F32 || dtype == LS_F16 || dtype == LS_BF16;
}

static bool owns(const ls_amp_optimizer *owner, const void *data)
{
    for (int i = 0; i < owner->slot_count; i++) {
        if (owner->slot[i]->param.param.data == data) {
            return true;
        }
    }
    return false;
}

static ls_status check_param(const ls_amp_optimizer *owner, const ls_amp_param *param, int index)
{
    const ls_amp_param *one = &param[index];
    if (!is_float(one->param.dtype) || !is_float(one->grad.dtype)) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "amp cannot train %s: it is %s with gradients in %s; allowed: f32, f16, bf16",
            one->name, ls_dtype_name(one->param.dtype), ls_dtype_name(one->grad.dtype));
    }
    if (one->param.count != one->grad.count || one->param.count < 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s has %lld elements and its gradient %lld", one->name,
                           (long long)one->param.count, (long long)one->grad.count);
    }
    bool twice = owns(owner, one->param.data);
    for (int i = 0; i < index; i++) {
        twice = twice || param[i].param.data == one->param.data;
    }
    if (twice && one->param.count > 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s is in two parameter groups of one optimizer",
                           one->name);
    }
    return LS_OK;
}

static ls_status check_group(const ls_amp *amp, const ls_amp_optimizer *owner,
                             const ls_optimizer_config *config, const ls_amp_param *param,
                             int count)
{
    int moments = ls_optimizers_moments(config->kind, config->momentum);
    if (moments > amp->options.moment_count) {
        return ls_log_fail(LS_ERR_USAGE, "%s needs %d moments a parameter, amp keeps %d",
                           ls_optimizers_name(config->kind), moments, amp->options.moment_count);
    }
    bool clips = config->kind == LS_OPTIMIZER_LAMB && config->max_grad_norm != 0.0;
    for (int g = 0; g < owner->group_count; g++) {
        const ls_optimizer_config *other = &owner->group[g].config;
        clips = clips || (other->kind == LS_OPTIMIZER_LAMB && other->max_grad_norm != 0.0);
    }
    if (clips && owner->group_count > 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "lamb with max_grad_norm in several groups: the norm is of all gradients, a "
            "step sees one group; allowed: one group, or max_grad_norm 0 and clipping "
            "through ls_amp_param_at");
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(check_param(owner, param, i));
    }
    return LS_OK;
}

/* Room for one more group of `count` parameters. */
static void grow_lists(ls_amp *amp, ls_amp_optimizer *owner, int count)
{
    size_t slots = (size_t)(amp->slot_count + count) + 1;
    grow(&owner->group, (size_t)owner->group_count + 1, sizeof *owner->group);
    grow(&owner->slot, (size_t)(owner->slot_count + count) + 1, sizeof *owner->slot);
    grow(&amp->chosen, slots, sizeof *amp->chosen);
    for (size_t i = 0; i < sizeof amp->list / sizeof amp->list[0]; i++) {
        grow(&amp->list[i], slots, sizeof *amp->list[i]);
    }
}

static ls_status fill_group(ls_amp *amp, const ls_amp_param *param, ls_amp_group *group)
{
    const ls_device *device = amp->device;
    group->slot = calloc((size_t)group->count + 1, sizeof *group->slot);
    LS_MEMORY(group->slot != NULL);
    for (int i = 0; i < group->count; i++) {
        group->slot[i].param = param[i];
    }
    int64_t bytes = carve_group(amp, group, NULL);
    LS_TRY(device->api->memory_alloc(device->backend, bytes > 0 ? bytes : 1,
                                     "masters, gradients and moments of a parameter group",
                                     &group->block));
    carve_group(amp, group, group->block);
    return make_masters(amp, group);
}

ls_status ls_amp_add_group(ls_amp *amp, int optimizer, const ls_optimizer_config *config, float lr,
                           const ls_amp_param *param, int count, int *group)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    LS_TRY(ls_amp_refuse_open(amp, "a parameter group is added"));
    LS_TRY(check_group(amp, owner, config, param, count));
    grow_lists(amp, owner, count);
    ls_amp_group *added = &owner->group[owner->group_count];
    *added = (ls_amp_group){.config = *config, .lr = lr, .count = count};
    ls_status status = fill_group(amp, param, added);
    if (status != LS_OK) {
        if (added->block != NULL) {
            amp->device->api->memory_free(amp->device->backend, added->block);
        }
        free(added->slot);
        return status;
    }
    for (int i = 0; i < count; i++) {
        owner->slot[owner->slot_count++] = &added->slot[i];
    }
    *group = owner->group_count++;
    amp->slot_count += count;
    return LS_OK;
}

ls_status ls_amp_set_lr(ls_amp *amp, int optimizer, int group, float lr)
{
    ls_amp_group *found = NULL;
    LS_TRY(find_group(amp, optimizer, group, &found));
    found->lr = lr;
    return LS_OK;
}

ls_status ls_amp_set_grad(ls_amp *amp, int optimizer, int group, int index, ls_tensor grad)
{
    ls_amp_slot *slot;
    LS_TRY(ls_amp_find(amp, optimizer, group, index, &slot));
    LS_TRY(ls_amp_refuse_open(amp, "a gradient is moved"));
    LS_ASSERT(grad.dtype == slot->param.grad.dtype && grad.count == slot->param.grad.count);
    slot->param.grad = grad;
    return LS_OK;
}

/* ---- looking at parameters ------------------------------------------------------------------- */

int ls_amp_param_count(const ls_amp *amp, int optimizer)
{
    LS_ASSERT(optimizer >= 0 && optimizer < amp->optimizer_count);
    return amp->optimizer[optimizer].slot_count;
}

ls_amp_view ls_amp_param_at(const ls_amp *amp, int optimizer, int index)
{
    LS_ASSERT(index >= 0 && index < ls_amp_param_count(amp, optimizer));
    ls_amp_slot *slot = amp->optimizer[optimizer].slot[index];
    ls_amp_view view = {
        .name = slot->param.name,
        .has_master = ls_amp_has_master(slot),
        .param = slot->param.param,
        .value = slot->value,
        .has_grad = slot->has_total,
        .grad = slot->total,
        .steps = &slot->steps,
    };
    memcpy(view.moment, slot->moment, sizeof view.moment);
    return view;
}

ls_status ls_amp_weights_changed(ls_amp *amp, int optimizer)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    for (int g = 0; g < owner->group_count; g++) {
        LS_TRY(make_masters(amp, &owner->group[g]));
    }
    return LS_OK;
}

/* ---- the state dict -------------------------------------------------------------------------- */

/* The amp library's state dict, in Apex's form (apex/amp/frontend.py@state_dict), checked before
 * anything is applied. */

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
