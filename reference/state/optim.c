#include "optim.h"

#include <stdlib.h>

#include "kernels/core/log.h"

int ls_optim_moment_count(const ls_options *options)
{
    switch (options->optimizer) {
    case LS_OPTIMIZER_SGD:
        return options->momentum != 0.0 ? 1 : 0;
    case LS_OPTIMIZER_LARS:
        return 1;
    case LS_OPTIMIZER_ADAM:
    case LS_OPTIMIZER_ADAMW:
    case LS_OPTIMIZER_LAMB:
        return 2;
    }
    LS_ASSERT(false);
    return 0;
}

ls_optimizer_config ls_optim_config(const ls_options *options)
{
    return (ls_optimizer_config){
        .kind = options->optimizer,
        .momentum = options->momentum,
        .weight_decay = options->weight_decay,
        .nesterov = options->nesterov,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .epsilon = options->epsilon,
        .max_grad_norm = options->max_grad_norm,
        .trust = options->trust,
    };
}

const char *ls_optim_name(ls_optimizer_kind kind)
{
    static const char *const names[] = {"sgd", "adam", "adamw", "lamb", "lars"};
    LS_ASSERT(kind >= LS_OPTIMIZER_SGD && kind <= LS_OPTIMIZER_LARS);
    return names[kind];
}

ls_status ls_optim_step(const ls_optimizer_config *config, const ls_memory *memory, bool dynamic)
{
    int count = memory->param_count;
    ls_optimizer_args args = {
        .value = {.count = count, .tensor = memory->value},
        .grad = {.count = count, .tensor = memory->unscaled},
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
