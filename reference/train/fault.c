#include "fault.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/plant.h"

void ls_fault_point(const ls_trainer *trainer, int64_t step, ls_fault_phase phase)
{
    const ls_fault_at *at = &trainer->options.fault;
    if (at->step == 0 || at->rank != trainer->world.rank || at->phase != phase ||
        (phase != LS_FAULT_JOIN && at->step != step)) {
        return;
    }
    if (at->how == LS_FAULT_EXIT) {
        _exit(0);
    }
    (void)raise(at->how == LS_FAULT_KILL ? SIGKILL : SIGSTOP);
}

bool ls_fault_overflows(const ls_trainer *trainer, int64_t step)
{
    for (int i = 0; i < trainer->options.overflow_count; i++) {
        const ls_overflow_at *at = &trainer->options.overflow[i];
        if (at->step == step && (at->rank < 0 || at->rank == trainer->world.rank)) {
            return true;
        }
    }
    return false;
}

ls_status ls_fault_overflow(const ls_trainer *trainer, const ls_tensor *grad)
{
    const ls_overflow_as *as = &trainer->options.overflow_as;
    int64_t at = as->place == 'f' ? 0 : as->place == 'm' ? grad->count / 2 : grad->count - 1;
    int64_t bytes = (int64_t)ls_dtype_bytes(grad->dtype);
    ls_tensor one = {(char *)grad->data + at * bytes, grad->dtype, 1};
    return ls_device_write_f32(&trainer->device, &one, &as->value);
}

/* ---- in a step ------------------------------------------------------------------------------- */

static ls_status act_before(void *context, ls_step_stage stage, int micro_step)
{
    const ls_fault *fault = context;
    (void)micro_step;
    switch (stage) {
    case LS_STEP_FORWARD:
        ls_fault_point(fault->trainer, fault->step, LS_FAULT_FORWARD);
        break;
    case LS_STEP_BACKWARD:
        ls_fault_point(fault->trainer, fault->step, LS_FAULT_BACKWARD);
        break;
    case LS_STEP_UNSCALE:
        ls_fault_point(fault->trainer, fault->step, LS_FAULT_OPTIMIZER);
        break;
    default:
        break;
    }
    return LS_OK;
}

static ls_status act_on_gradient(void *context, ls_step_gradient point, int micro_step, int param)
{
    ls_fault *fault = context;
    const ls_trainer *trainer = fault->trainer;
    const ls_overflow_as *as = &trainer->options.overflow_as;
    int micro = as->micro < 0 ? trainer->options.accumulate - 1 : as->micro;
    if (point == LS_STEP_GRADIENT_READY && param == trainer->network.param_count / 2) {
        /* the buckets before are being reduced */
        ls_fault_point(trainer, fault->step, LS_FAULT_REDUCTION);
    }
    if (point == LS_STEP_GRADIENT_COMPUTED && fault->overflows && micro_step == micro &&
        (as->param[0] == '\0' || strcmp(as->param, trainer->network.param[param].name) == 0)) {
        fault->overflows = false;
        return ls_fault_overflow(trainer, &trainer->memory.grad[param]);
    }
    return LS_OK;
}

/* Planted faults between unscaling and the optimizer. */
static ls_status act_after(void *context, ls_step_stage stage, int micro_step)
{
    const ls_fault *fault = context;
    const ls_trainer *trainer = fault->trainer;
    const ls_device *device = &trainer->device;
    (void)micro_step;
    if (stage == LS_STEP_UNSCALE && LS_PLANT(flipped_exponent_bit, false, true)) {
        uint32_t *at = (uint32_t *)trainer->memory.unscaled[4].data + 3, bits = 0;
        LS_TRY(ls_device_read(device, &bits, at, (int64_t)sizeof bits));
        bits ^= 1u << 27;
        LS_TRY(
            device->api->copy_in(device->backend, device->stream, at, &bits, (int64_t)sizeof bits));
    }
    if (stage == LS_STEP_UNSCALE && LS_PLANT(skip_per_rank, false, true)) {
        int32_t *at = &trainer->memory.state->overflow, overflow = 0;
        LS_TRY(ls_device_read(device, &overflow, at, (int64_t)sizeof overflow));
        overflow &= ls_fault_overflows(trainer, fault->step);
        LS_TRY(device->api->copy_in(device->backend, device->stream, at, &overflow,
                                    (int64_t)sizeof overflow));
    }
    return LS_OK;
}

void ls_fault_begin(ls_fault *fault, const ls_trainer *trainer, int64_t step,
                    ls_step_observers *observers)
{
    *fault = (ls_fault){.trainer = trainer,
                        .step = step,
                        .overflows = ls_fault_overflows(trainer, step),
                        .observer = {.context = fault,
                                     .before = act_before,
                                     .after = act_after,
                                     .gradient = act_on_gradient}};
    bool planted =
        LS_PLANT(flipped_exponent_bit, false, true) || LS_PLANT(skip_per_rank, false, true);
    if (fault->overflows || trainer->options.fault.step == step || planted) {
        ls_step_observers_add(observers, &fault->observer);
    }
}
