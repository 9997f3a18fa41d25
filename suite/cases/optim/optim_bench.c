#include "optim_bench.h"

#include <string.h>

ls_status ls_optim_bench_open(ls_optim_bench *b)
{
    ls_backend_options options = {.threads = 2, .local_ranks = 1};
    memset(b, 0, sizeof *b);
    LS_TRY(ls_device_open("auto", &options, &b->device));
    void *state = NULL;
    ls_status status =
        b->device.api->memory_alloc(b->device.backend, sizeof *b->state, "state", &state);
    b->state = state;
    return status;
}

void ls_optim_bench_close(ls_optim_bench *b)
{
    if (b->device.api == NULL) {
        return;
    }
    for (int k = 0; k < LS_OPTIM_BENCH_LISTS; k++) {
        if (b->block[k] != NULL) {
            b->device.api->memory_free(b->device.backend, b->block[k]);
        }
    }
    b->device.api->memory_free(b->device.backend, b->state);
    ls_device_close(&b->device);
}

ls_status ls_optim_bench_make_list(ls_optim_bench *b, int k, int tensors, const int64_t *count,
                                   ls_dtype dtype)
{
    int64_t elements = LS_OPTIM_BENCH_GUARD, bytes = (int64_t)ls_dtype_bytes(dtype);
    for (int i = 0; i < tensors; i++) {
        elements += count[i] + LS_OPTIM_BENCH_GUARD;
    }
    LS_TRY(
        b->device.api->memory_alloc(b->device.backend, elements * bytes, "a list", &b->block[k]));
    char *at = (char *)b->block[k] + LS_OPTIM_BENCH_GUARD * bytes;
    for (int i = 0; i < tensors; i++) {
        b->list[k][i] = (ls_tensor){.data = at, .dtype = dtype, .count = count[i]};
        at += (count[i] + LS_OPTIM_BENCH_GUARD) * bytes;
    }
    b->tensors = tensors;
    return LS_OK;
}

static ls_optimizer_args args_of(const ls_optim_bench *b)
{
    ls_optimizer_args args = {0};
    ls_tensor_list *list[LS_OPTIM_BENCH_LISTS] = {&args.value, &args.grad, &args.moment1,
                                                  &args.moment2, &args.copy};
    for (int k = 0; k < LS_OPTIM_BENCH_LISTS; k++) {
        if (b->block[k] != NULL) {
            *list[k] = (ls_tensor_list){.count = b->tensors, .tensor = b->list[k]};
        }
    }
    return args;
}

ls_status ls_optim_bench_write_state(ls_optim_bench *b, const ls_step_state *state)
{
    LS_TRY(b->device.api->copy_in(b->device.backend, b->device.stream, b->state, state,
                                  (int64_t)sizeof *state));
    return b->device.api->stream_wait(b->device.stream);
}

ls_status ls_optim_bench_step(ls_optim_bench *b, const ls_optimizer_config *config, bool dynamic)
{
    ls_optimizer_args args = args_of(b);
    return b->device.api->optimizer_step(b->device.backend, b->device.stream, config, &args,
                                         dynamic, b->state);
}
