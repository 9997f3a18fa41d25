#include "fault.h"

#include <signal.h>
#include <unistd.h>

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
