#include "step_loop.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/plant.h"
#include "aux_head.h"
#include "fault.h"
#include "force_branches.h"
#include "setup.h"

/* ---- backward's gradients -------------------------------------------------------------------- */

/* Whether this gradient is the one that --overflow-at and --overflow-as mean. */
static bool is_poisoned(const ls_step_loop *loop, int param)
{
    const ls_options *options = &loop->trainer->options;
    const ls_overflow_as *as = &options->overflow_as;
    int micro = as->micro < 0 ? options->accumulate - 1 : as->micro;
    return loop->poisons && loop->micro == micro &&
           (as->param[0] == '\0' ||
            strcmp(as->param, loop->trainer->network.param[param].name) == 0);
}

/* The gradient of one parameter has been enqueued (kernels.h, ls_grad_ready). */
static ls_status take_gradient(void *context, int param)
{
    ls_step_loop *loop = context;
    ls_trainer *trainer = loop->trainer;
    ls_memory *memory = &trainer->memory;
    const ls_backend_api *api = trainer->device.api;
    bool last = loop->micro == trainer->options.accumulate - 1;
    const ls_tensor *from = &memory->grad[param];
    if (is_poisoned(loop, param)) {
        loop->poisons = false;
        LS_TRY(ls_fault_overflow(trainer, from));
    }
    if (memory->sum != NULL) {
        LS_TRY(api->accumulate(
            trainer->device.backend, trainer->device.stream, memory->sum[param], *from,
            LS_PLANT(accumulate_keeps_last, loop->micro == 0, true) &&
                LS_PLANT(no_zero_grad, true, loop->now->step == trainer->first_step)));
        from = &memory->sum[param];
    }
    if (!last) {
        return LS_OK;
    }
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_stage(trainer->ddp, param, from));
    } else if (memory->sum != NULL) {
        LS_TRY(api->convert(trainer->device.backend, trainer->device.stream, memory->reduced[param],
                            *from, 1.0f));
    }
    if (loop->dump != NULL) {
        int64_t begun_ns = ls_step_instrument_begin(loop);
        LS_TRY(ls_dump_local(loop->dump, param));
        ls_step_instrument_end(loop, begun_ns);
    }
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_ready(trainer->ddp, param));
    }
    if (param == trainer->network.param_count / 2) { /* the buckets before are being reduced */
        ls_fault_point(trainer, loop->now->step, LS_FAULT_REDUCTION);
    }
    return LS_OK;
}

/* ---- one step -------------------------------------------------------------------------------- */

static ls_status begin_dump(ls_step_loop *loop, int64_t step)
{
    if (!ls_dump_wants(loop->trainer, step)) {
        return LS_OK;
    }
    int64_t begun_ns = ls_step_instrument_begin(loop);
    LS_TRY(ls_dump_begin(loop->trainer, step, &loop->dump));
    LS_TRY(ls_dump_buffers(loop->dump));
    ls_step_instrument_end(loop, begun_ns);
    return LS_OK;
}

static ls_status dump_batch(ls_step_loop *loop)
{
    if (loop->dump == NULL) {
        return LS_OK;
    }
    int64_t begun_ns = ls_step_instrument_begin(loop);
    LS_TRY(ls_dump_batch(loop->dump, loop->micro, &loop->batch.host));
    ls_step_instrument_end(loop, begun_ns);
    return LS_OK;
}

static ls_status dump_forward(ls_step_loop *loop)
{
    if (loop->dump == NULL) {
        return LS_OK;
    }
    int64_t begun_ns = ls_step_instrument_begin(loop);
    LS_TRY(ls_dump_forward(loop->dump, loop->micro));
    ls_step_instrument_end(loop, begun_ns);
    return LS_OK;
}

/* What comes before a micro-step on the host. */
static ls_status prepare_micro_step(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_record *record = loop->now;
    LS_TRY(ls_feed_take(loop->feed, &loop->batch));
    record->ms[LS_EVENTS_MS_DATA] += loop->batch.waited_ms;
    record->images += loop->batch.host.images;
    (*trainer->memory.tracked)++;
    LS_TRY(dump_batch(loop));
    return ls_force_branches_micro_step(trainer, record->step, loop->micro);
}

static ls_status forward(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    const ls_device *device = &trainer->device;
    ls_step_record *record = loop->now;
    LS_TRY(ls_phase_timer_at(record->marks, LS_PHASE_TIMER_FORWARD));
    record->forward_ns[0] = ls_clock_ns();
    if (loop->batch.slot >= 0) {
        LS_TRY(device->api->plan_forward_loaded(trainer->plan, device->stream, loop->batch.slot));
    } else {
        LS_TRY(device->api->plan_forward(trainer->plan, device->stream, loop->batch.host.input,
                                         loop->batch.host.target));
    }
    record->forward_ns[1] = ls_clock_ns();
    record->ms[LS_EVENTS_MS_FORWARD] +=
        ls_clock_ms_between(record->forward_ns[0], record->forward_ns[1]);
    return LS_OK;
}

static ls_status backward(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    const ls_device *device = &trainer->device;
    ls_step_record *record = loop->now;
    float factor = 1.0f / (float)trainer->options.accumulate;
    int64_t instrument_ns = loop->instrument_ns;
    LS_TRY(ls_phase_timer_at(record->marks, LS_PHASE_TIMER_BACKWARD));
    record->backward_ns[0] = ls_clock_ns();
    if (ls_aux_head_is_used(trainer, record->step)) {
        LS_TRY(ls_aux_head_backward(trainer, loop->batch.host.target, factor, take_gradient, loop));
    }
    LS_TRY(device->api->plan_backward(trainer->plan, device->stream,
                                      LS_PLANT(accumulate_not_divided, factor, 1.0f), take_gradient,
                                      loop));
    record->backward_ns[1] = ls_clock_ns();
    record->ms[LS_EVENTS_MS_BACKWARD] +=
        ls_clock_ms_between(record->backward_ns[0], record->backward_ns[1]) -
        (double)(loop->instrument_ns - instrument_ns) * 1e-6;
    return LS_OK;
}

/* A device's queue is finite (about a thousand launches, which a deep network's step or a few
 * micro-steps have), and a launch that finds it full waits inside the driver, where nobody looks
 * after the peers that the device may be waiting for. So the host waits here, where somebody does;
 * the device has a forward to do meanwhile. */
static ls_status stay_near(ls_step_loop *loop)
{
    return loop->recorded ? LS_OK
                          : ls_step_arrive(loop, ls_step_record_of(loop, loop->now->step - 1));
}

static ls_status run_micro_step(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    const ls_device *device = &trainer->device;
    ls_step_record *record = loop->now;
    int accumulate = trainer->options.accumulate;
    ls_fault_point(trainer, record->step, LS_FAULT_FORWARD);
    ls_device_range_push(device, "forward");
    ls_status status = forward(loop);
    ls_device_range_pop(device); /* also where a recording fails: the step comes again */
    LS_TRY(status);
    LS_TRY(stay_near(loop));
    if (accumulate > 1) {
        LS_TRY(device->api->copy_out(device->backend, device->stream,
                                     &record->host->loss[loop->micro], &trainer->memory.state->loss,
                                     (int64_t)sizeof(float)));
    }
    LS_TRY(dump_forward(loop));
    if (trainer->ddp != NULL && loop->micro == accumulate - 1) {
        LS_TRY(ls_ddp_begin(trainer->ddp));
    }
    ls_fault_point(trainer, record->step, LS_FAULT_BACKWARD);
    ls_device_range_push(device, "backward");
    status = backward(loop);
    ls_device_range_pop(device);
    return status;
}

/* ---- the optimizer's part -------------------------------------------------------------------- */

/* Faults that reach into memory, which may be the device's. */
static ls_status plant_in_memory(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    const ls_device *device = &trainer->device;
    if (LS_PLANT(flipped_exponent_bit, false, true)) {
        uint32_t *at = (uint32_t *)trainer->memory.unscaled[4].data + 3, bits = 0;
        LS_TRY(ls_device_read(device, &bits, at, (int64_t)sizeof bits));
        bits ^= 1u << 27;
        LS_TRY(
            device->api->copy_in(device->backend, device->stream, at, &bits, (int64_t)sizeof bits));
    }
    if (LS_PLANT(skip_per_rank, false, true)) {
        int32_t *at = &trainer->memory.state->overflow, overflow = 0;
        LS_TRY(ls_device_read(device, &overflow, at, (int64_t)sizeof overflow));
        overflow &= ls_fault_overflows(trainer, loop->now->step);
        LS_TRY(device->api->copy_in(device->backend, device->stream, at, &overflow,
                                    (int64_t)sizeof overflow));
    }
    return LS_OK;
}

static ls_status optimize(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    ls_tensor_list unscaled = {memory->param_count, memory->unscaled};
    ls_tensor_list grads = {memory->param_count, memory->grad};
    LS_TRY(ls_audit_unscale(loop->audit, false));
    LS_TRY(ls_amp_scale_unscale(&trainer->amp, unscaled, grads));
    LS_TRY(ls_audit_unscale(loop->audit, true));
    if (LS_PLANT(unscale_twice, false, true)) {
        LS_TRY(ls_amp_scale_unscale(&trainer->amp, unscaled, grads));
    }
    LS_TRY(plant_in_memory(loop));
    LS_TRY(ls_audit_update(loop->audit, false));
    LS_TRY(ls_optim_step(&trainer->optimizer, memory, trainer->amp.config.dynamic));
    LS_TRY(ls_audit_update(loop->audit, true));
    if (LS_PLANT(masters_rounded, false, true)) {
        LS_TRY(ls_optim_make_masters(memory));
    }
    if (LS_PLANT(update_forgotten, true, false)) {
        LS_TRY(ls_amp_scale_update(&trainer->amp));
    }
    if (LS_PLANT(update_twice, false, true)) {
        LS_TRY(ls_amp_scale_update(&trainer->amp));
    }
    if (LS_PLANT(stale_weight_cache, true, false)) {
        LS_TRY(device->api->plan_params_changed(trainer->plan, device->stream));
    }
    return LS_OK;
}

static ls_status finish_step(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_record *record = loop->now;
    LS_TRY(ls_phase_timer_at(record->marks, LS_PHASE_TIMER_WAIT));
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_finish(trainer->ddp));
        ls_ddp_times times = ls_ddp_times_of(trainer->ddp);
        record->ms[LS_EVENTS_MS_COMM] = (double)times.comm_ns * 1e-6;
        record->ms[LS_EVENTS_MS_COMM_EXPOSED] = (double)times.exposed_ns * 1e-6;
    }
    LS_TRY(ls_phase_timer_at(record->marks, LS_PHASE_TIMER_OPTIMIZER));
    ls_fault_point(trainer, record->step, LS_FAULT_OPTIMIZER);
    int64_t begun_ns = ls_clock_ns();
    ls_device_range_push(&trainer->device, "optimizer");
    ls_status status = optimize(loop);
    ls_device_range_pop(&trainer->device);
    LS_TRY(status);
    record->ms[LS_EVENTS_MS_OPTIMIZER] = ls_clock_ms_between(begun_ns, ls_clock_ns());
    return ls_phase_timer_at(record->marks, LS_PHASE_TIMER_END);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ls_status run_whole_step(void *context)
{
    LS_TRY(run_micro_step(context));
    return finish_step(context);
}

static ls_status enqueue_pieces(ls_step_loop *loop)
{
    loop->recorded = false;
    for (loop->micro = 0; loop->micro < loop->trainer->options.accumulate; loop->micro++) {
        if (loop->micro > 0) {
            LS_TRY(ls_feed_ahead(loop->feed));
        }
        LS_TRY(prepare_micro_step(loop));
        LS_TRY(run_micro_step(loop));
    }
    return finish_step(loop);
}

static ls_status enqueue_graph(ls_step_loop *loop)
{
    const char *why = NULL;
    loop->micro = 0;
    loop->recorded = true;
    LS_TRY(prepare_micro_step(loop));
    LS_TRY(
        ls_graph_step(loop->graphs, loop->now->step, loop->batch.slot, run_whole_step, loop, &why));
    if (why == NULL) {
        return LS_OK;
    }
    loop->recorded = false;
    LS_TRY(ls_events_write_graph(loop->trainer->events, loop->now->step, why));
    return run_whole_step(loop);
}

/* Learning rate and, in torch's dialect, rank 0's running statistics. */
static ls_status begin_step(ls_step_loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    const ls_device *device = &trainer->device;
    ls_step_host *host = loop->now->host;
    host->lr =
        (float)ls_schedule_lr(&trainer->schedule, trainer->base_lr,
                              step - LS_PLANT(schedule_waits_on_skip, 0, loop->summary->skipped),
                              trainer->steps_per_epoch);
    if (LS_PLANT(rate_set_once, true, step == trainer->first_step)) {
        LS_TRY(device->api->copy_in(device->backend, device->stream, &trainer->memory.state->lr,
                                    &host->lr, (int64_t)sizeof host->lr));
    }
    /* Before a forward that follows a synchronised one: the first micro-step of every step but the
     * first (torch/nn/parallel/distributed.py, broadcast_buffers). */
    if (trainer->rules.broadcast_buffers && step > 1) {
        LS_TRY(ls_setup_broadcast_buffers(trainer));
    }
    return begin_dump(loop, step);
}

ls_status ls_step_enqueue(ls_step_loop *loop, int64_t step, ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    const ls_device *device = &trainer->device;
    char name[32];
    loop->now = record;
    record->step = step;
    record->images = 0;
    record->has_ended = false;
    memset(record->ms, 0, sizeof record->ms);
    LS_PLANT_STEP(step);
    if (trainer->ddp != NULL) {
        ls_ddp_observe(trainer->ddp, ls_phase_timer_observer(record->marks));
    }
    snprintf(name, sizeof name, "step %lld", (long long)step);
    ls_device_range_push(device, name);
    LS_TRY(begin_step(loop, step));
    loop->poisons = ls_fault_overflows(trainer, step);
    LS_TRY(ls_audit_begin(loop->audit, step));
    LS_TRY(ls_graph_takes(loop->graphs, step) ? enqueue_graph(loop) : enqueue_pieces(loop));
    LS_TRY(ls_audit_end(loop->audit));
    LS_TRY(device->api->copy_out(device->backend, device->stream, &record->host->state,
                                 trainer->memory.state, (int64_t)sizeof record->host->state));
    LS_TRY(device->api->event_record(record->arrived, device->stream));
    ls_device_range_pop(device);
    record->pending = true;
    return LS_OK;
}
