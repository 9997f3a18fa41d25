/* The amp library's optimizers, parameter groups and what it keeps for each parameter. */
#include "amp_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "reference/state/optim.h"

ls_status ls_amp_add_optimizer(ls_amp *amp, int *optimizer)
{
    LS_TRY(ls_amp_refuse_open(amp, "an optimizer is added"));
    size_t count = (size_t)amp->optimizer_count;
    ls_amp_optimizer *grown = realloc(amp->optimizer, (count + 1) * sizeof *grown);
    if (grown == NULL) {
        ls_log_error("cannot allocate optimizer %zu of amp", count);
        return LS_ERR_INFRA;
    }
    amp->optimizer = grown;
    grown[count] = (ls_amp_optimizer){.held_loss = -1, .skipped_loss = -1};
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

static bool has_master(const ls_amp_slot *slot)
{
    return slot->value.data != slot->param.param.data;
}

static ls_status make_masters(const ls_amp *amp, const ls_amp_group *group)
{
    const ls_device *device = amp->device;
    for (int i = 0; i < group->count; i++) {
        const ls_amp_slot *slot = &group->slot[i];
        if (has_master(slot)) {
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
    for (int g = 0; g < owner->group_count; g++) {
        for (int i = 0; i < owner->group[g].count; i++) {
            if (owner->group[g].slot[i].param.param.data == data) {
                return true;
            }
        }
    }
    return false;
}

static ls_status check_param(const ls_amp_optimizer *owner, const ls_amp_param *param, int index)
{
    const ls_amp_param *one = &param[index];
    if (!is_float(one->param.dtype) || !is_float(one->grad.dtype)) {
        ls_log_error("amp cannot train %s: it is %s with gradients in %s; allowed: f32, f16, bf16",
                     one->name, ls_dtype_name(one->param.dtype), ls_dtype_name(one->grad.dtype));
        return LS_ERR_USAGE;
    }
    if (one->param.count != one->grad.count || one->param.count < 0) {
        ls_log_error("%s has %lld elements and its gradient %lld", one->name,
                     (long long)one->param.count, (long long)one->grad.count);
        return LS_ERR_USAGE;
    }
    bool twice = owns(owner, one->param.data);
    for (int i = 0; i < index; i++) {
        twice = twice || param[i].param.data == one->param.data;
    }
    if (twice && one->param.count > 0) {
        ls_log_error("%s is in two parameter groups of one optimizer", one->name);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

static int moments_of(const ls_optimizer_config *config)
{
    ls_options options = {.optimizer = config->kind, .momentum = (double)config->momentum};
    return ls_optim_moment_count(&options);
}

static ls_status check_group(const ls_amp *amp, const ls_amp_optimizer *owner,
                             const ls_optimizer_config *config, const ls_amp_param *param,
                             int count)
{
    int moments = moments_of(config);
    if (moments > amp->options.moment_count) {
        ls_log_error("%s needs %d moments a parameter, amp keeps %d", ls_optim_name(config->kind),
                     moments, amp->options.moment_count);
        return LS_ERR_USAGE;
    }
    bool clips = config->kind == LS_OPTIMIZER_LAMB && config->max_grad_norm != 0.0;
    for (int g = 0; g < owner->group_count; g++) {
        const ls_optimizer_config *other = &owner->group[g].config;
        clips = clips || (other->kind == LS_OPTIMIZER_LAMB && other->max_grad_norm != 0.0);
    }
    if (clips && owner->group_count > 0) {
        ls_log_error("lamb with max_grad_norm in several groups: the norm is of all gradients, a "
                     "step sees one group; allowed: one group, or max_grad_norm 0 and clipping "
                     "through ls_amp_param_at");
        return LS_ERR_USAGE;
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(check_param(owner, param, i));
    }
    return LS_OK;
}

/* Room for every parameter in the lists of one call. */
static ls_status grow_lists(ls_amp *amp, int count)
{
    size_t slots = (size_t)(amp->slot_count + count) + 1;
    ls_amp_slot **chosen = realloc(amp->chosen, slots * sizeof(ls_amp_slot *));
    bool good = chosen != NULL;
    amp->chosen = good ? chosen : amp->chosen;
    for (size_t i = 0; i < sizeof amp->list / sizeof amp->list[0]; i++) {
        ls_tensor *list = realloc(amp->list[i], slots * sizeof *list);
        good = good && list != NULL;
        amp->list[i] = list != NULL ? list : amp->list[i];
    }
    if (!good) {
        ls_log_error("cannot allocate amp's lists of %zu parameters", slots);
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

static ls_status fill_group(ls_amp *amp, const ls_amp_param *param, ls_amp_group *group)
{
    const ls_device *device = amp->device;
    group->slot = calloc((size_t)group->count + 1, sizeof *group->slot);
    if (group->slot == NULL) {
        ls_log_error("cannot allocate a group of %d parameters", group->count);
        return LS_ERR_INFRA;
    }
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
    LS_TRY(grow_lists(amp, count));
    size_t groups = (size_t)owner->group_count;
    ls_amp_group *grown = realloc(owner->group, (groups + 1) * sizeof *grown);
    if (grown == NULL) {
        ls_log_error("cannot allocate group %zu of optimizer %d", groups, optimizer);
        return LS_ERR_INFRA;
    }
    owner->group = grown;
    grown[groups] = (ls_amp_group){.config = *config, .lr = lr, .count = count};
    ls_status status = fill_group(amp, param, &grown[groups]);
    if (status != LS_OK) {
        if (grown[groups].block != NULL) {
            amp->device->api->memory_free(amp->device->backend, grown[groups].block);
        }
        free(grown[groups].slot);
        return status;
    }
    *group = owner->group_count++;
    owner->slot_count += count;
    amp->slot_count += count;
    return LS_OK;
}

ls_status ls_amp_set_lr(ls_amp *amp, int optimizer, int group, float lr)
{
    ls_amp_optimizer *owner;
    LS_TRY(ls_amp_find_optimizer(amp, optimizer, &owner));
    if (group < 0 || group >= owner->group_count) {
        ls_log_error("optimizer %d of amp has no group %d; allowed: 0 to %d", optimizer, group,
                     owner->group_count - 1);
        return LS_ERR_USAGE;
    }
    owner->group[group].lr = lr;
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
    const ls_amp_group *group = amp->optimizer[optimizer].group;
    while (index >= group->count) {
        index -= group->count;
        group++;
    }
    ls_amp_slot *slot = &group->slot[index];
    ls_amp_view view = {
        .name = slot->param.name,
        .has_master = has_master(slot),
        .param = slot->param.param,
        .value = slot->value,
        .steps = &slot->steps,
    };
    if (slot->has_total) {
        view.grad = slot->total;
    }
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
