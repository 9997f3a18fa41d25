#include "optim.h"

#include <math.h>

ls_optimizer_config ls_optim_config(const ls_options *options)
{
    ls_optimizer_config config = {
        .kind = options->optimizer,
        .momentum = options->momentum,
        .weight_decay = options->weight_decay,
        .nesterov = options->nesterov,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .epsilon = options->epsilon,
        .max_grad_norm = options->max_grad_norm,
        .trust = options->trust,
        .clip = options->larc_clip,
        .unfused = options->unfused,
    };
    const ls_groups *groups = &options->groups;
    config.group_count = groups->count > 0 ? groups->count + 1 : 0;
    config.group[0] = (ls_optimizer_group){options->weight_decay, 1};
    for (int g = 0; g < groups->count; g++) {
        const ls_groups_rule *rule = &groups->rule[g];
        config.group[g + 1] = (ls_optimizer_group){isnan(rule->weight_decay) ? options->weight_decay
                                                                             : rule->weight_decay,
                                                   rule->lr_factor};
    }
    return config;
}

ls_clip_config ls_optim_clip(const ls_options *options)
{
    return (ls_clip_config){.max_norm = options->clip_grad_norm,
                            .max_value = options->clip_grad_value};
}

bool ls_optim_measures_norm(const ls_options *options)
{
    return options->clip_grad_norm > 0 || options->clip_grad_value > 0 || options->grad_norm;
}

ls_status ls_optim_step(const ls_optimizer_config *config, const uint8_t *group,
                        const ls_memory *memory, bool dynamic)
{
    int count = memory->param_count;
    ls_optimizer_args args = {
        .value = {.count = count, .tensor = memory->value},
        .grad = {.count = count, .tensor = memory->unscaled},
        .group = group,
    };
    if (memory->moment_count > 0) {
        args.moment1 = (ls_tensor_list){.count = count, .tensor = memory->moment[0]};
    }
    if (memory->moment_count > 1) {
        args.moment2 = (ls_tensor_list){.count = count, .tensor = memory->moment[1]};
    }
    if (memory->master != NULL) {
        args.copy = (ls_tensor_list){.count = count, .tensor = memory->param};
    }
    const ls_device *device = memory->device;
    return device->api->optimizer_step(device->backend, device->stream, config, &args, dynamic,
                                       memory->state);
}

ls_status ls_optim_make_masters(const ls_memory *memory)
{
    const ls_device *device = memory->device;
    for (int i = 0; memory->master != NULL && i < memory->param_count; i++) {
        if (memory->master[i].data != NULL) {
            LS_TRY(device->api->convert(device->backend, device->stream, memory->master[i],
                                        memory->param[i], 1.0f));
        }
    }
    return device->api->stream_wait(device->stream);
}
