#include "fault.h"

#include <linux/filter.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/plant.h"

/* A bit of the exponent of one f32, off by a factor of 16. */
static ls_status flip(const ls_device *device, float *at)
{
    uint32_t bits = 0;
    LS_TRY(ls_device_read(device, &bits, at, (int64_t)sizeof bits));
    bits ^= 1u << 25;
    return device->api->copy_in(device->backend, device->stream, at, &bits, (int64_t)sizeof bits);
}

/* Attaches a filter that drops every packet (SO_ATTACH_FILTER, socket(7)): data and
 * acknowledgements are lost without a reset, as on a dead link. */
static void cut_connections(void)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {1, &nothing};
    int most = (int)sysconf(_SC_OPEN_MAX);
    for (int fd = 0; fd < most; fd++) { /* what is no socket refuses it */
        (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    }
}

void ls_fault_point(const ls_trainer *trainer, int64_t step, ls_fault_phase phase)
{
    const ls_fault_at *at = &trainer->options.fault;
    if (trainer->world.restart > 0 || at->step == 0 || at->rank != trainer->world.rank ||
        at->phase != phase ||
        (phase >= LS_FAULT_FORWARD && phase < LS_FAULT_END && at->step != step)) {
        return;
    }
    switch (at->how) {
    case LS_FAULT_KILL:
        (void)raise(SIGKILL);
        break;
    case LS_FAULT_STOP:
        (void)raise(SIGSTOP);
        break;
    case LS_FAULT_EXIT:
        _exit(0);
    case LS_FAULT_SLOW:
        (void)ls_clock_poll(-1, 0, ls_clock_after(LS_FAULT_SLOW_S));
        break;
    case LS_FAULT_CUT:
        cut_connections();
        break;
    case LS_FAULT_CORRUPT:
        (void)flip(&trainer->device, (float *)trainer->memory.param[0].data + 3);
        break;
    }
}

static bool overflows(const ls_trainer *trainer, int64_t step)
{
    return ls_options_listed(&trainer->options.overflow_at, step, trainer->world.rank);
}

static ls_status overflow_one(const ls_trainer *trainer, const ls_tensor *grad)
{
    const ls_overflow_as *as = &trainer->options.overflow_as;
    int64_t at = as->place == 'f' ? 0 : as->place == 'm' ? grad->count / 2 : grad->count - 1;
    int64_t bytes = (int64_t)ls_dtype_bytes(grad->dtype);
    ls_tensor one = {(char *)grad->data + at * bytes, grad->dtype, 1};
    return ls_device_write_f32(&trainer->device, &one, &as->value);
}

/* ---- in a step ------------------------------------------------------------------------------- */

/* Whether --overflow-as means this gradient, computed in this micro-step. */
static bool is_poisoned(const ls_fault *fault, const ls_step_event *event)
{
    const ls_trainer *trainer = fault->trainer;
    const ls_overflow_as *as = &trainer->options.overflow_as;
    int micro = as->micro < 0 ? trainer->options.accumulate - 1 : as->micro;
    return fault->overflows && event->micro_step == micro &&
           (as->param[0] == '\0' ||
            strcmp(as->param, trainer->network.param[event->index].name) == 0);
}

/* Planted faults between unscaling and the optimizer. */
static ls_status plant_in_memory(const ls_fault *fault)
{
    const ls_trainer *trainer = fault->trainer;
    const ls_device *device = &trainer->device;
    if (LS_PLANT(flipped_exponent_bit, false, true)) {
        LS_TRY(flip(device, (float *)trainer->memory.unscaled[4].data + 3));
    }
    if (LS_PLANT(skip_per_rank, false, true)) {
        int32_t *at = &trainer->memory.state->overflow, overflow = 0;
        LS_TRY(ls_device_read(device, &overflow, at, (int64_t)sizeof overflow));
        overflow &= overflows(trainer, fault->step);
        LS_TRY(device->api->copy_in(device->backend, device->stream, at, &overflow,
                                    (int64_t)sizeof overflow));
    }
    return LS_OK;
}

static ls_status act(void *context, const ls_step_event *event)
{
    ls_fault *fault = context;
    const ls_trainer *trainer = fault->trainer;
    switch (event->at) {
    case LS_STEP_FORWARD:
        ls_fault_point(trainer, fault->step, LS_FAULT_FORWARD);
        return LS_OK;
    case LS_STEP_BACKWARD:
        ls_fault_point(trainer, fault->step, LS_FAULT_BACKWARD);
        return LS_OK;
    case LS_STEP_GRADIENT_READY:
        if (event->index == trainer->network.param_count / 2) { /* earlier buckets have begun */
            ls_fault_point(trainer, fault->step, LS_FAULT_REDUCTION);
        }
        return LS_OK;
    case LS_STEP_UNSCALE:
        ls_fault_point(trainer, fault->step, LS_FAULT_OPTIMIZER);
        return LS_OK;
    case LS_STEP_UNSCALE_END:
        return plant_in_memory(fault);
    case LS_STEP_GRADIENT_COMPUTED:
        if (!is_poisoned(fault, event)) {
            return LS_OK;
        }
        fault->overflows = false;
        return overflow_one(trainer, &trainer->memory.grad[event->index]);
    default:
        return LS_OK;
    }
}

void ls_fault_begin(ls_fault *fault, const ls_trainer *trainer, int64_t step,
                    ls_step_observers *observers)
{
    *fault = (ls_fault){.trainer = trainer,
                        .step = step,
                        .overflows = overflows(trainer, step),
                        .observer = {.context = fault, .on = act}};
    bool planted =
        LS_PLANT(flipped_exponent_bit, false, true) || LS_PLANT(skip_per_rank, false, true);
    if (fault->overflows || trainer->options.fault.step == step || planted) {
        ls_step_observers_add(observers, &fault->observer);
    }
}
