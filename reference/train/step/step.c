#include "step.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "reference/train/ways/team.h"

static ls_status observe(const ls_step *step, ls_step_moment at, int param)
{
    return ls_step_observers_call(&step->observers, &(ls_step_event){.at = at,
                                                                     .micro_step = step->micro,
                                                                     .index = param,
                                                                     .batch = &step->batch.host});
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* A device's queue is finite (about a thousand launches, which a deep network's step or a few
 * micro-steps have), and a launch that finds it full waits inside the driver, where no lost peer
 * ends the wait. So the host waits here, for the step before; the device has this forward to do
 * meanwhile. */
static ls_status throttle(ls_step *step)
{
    ls_step_record *older = ls_step_record_of(step->history, step->record->step - 1);
    return step->recorded ? LS_OK : ls_step_record_arrive(step->history, older);
}

static ls_status forward(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    const ls_device *device = &trainer->device;
    const ls_feed_batch *batch = &step->batch;
    if (trainer->team != NULL) {
        return ls_team_forward(trainer->team, &batch->host, step->record->host->loss);
    }
    LS_TRY(batch->slot >= 0
               ? device->api->plan_forward_loaded(trainer->plan, device->stream, batch->slot)
               : device->api->plan_forward(trainer->plan, device->stream, batch->host.input,
                                           batch->host.target));
    LS_TRY(throttle(step));
    if (trainer->options.accumulate == 1) {
        return LS_OK;
    }
    return device->api->copy_out(device->backend, device->stream,
                                 &step->record->host->loss[step->micro],
                                 &trainer->memory.state->loss, (int64_t)sizeof(float));
}

/* The micro-steps whose sum is reduced: the last, or with --no-sync False each. */
static bool is_synchronised(const ls_step *step)
{
    const ls_options *options = &step->trainer->options;
    return step->micro == options->accumulate - 1 ||
           LS_PLANT(no_sync_always, options->no_sync == LS_FALSE, false);
}

/* What is accumulated: in the reduced type, and handed to the reduction. */
static ls_status stage_gradient(ls_step *step, int param, const ls_tensor *from)
{
    ls_trainer *trainer = step->trainer;
    ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_stage(trainer->ddp, param, from));
    } else if (memory->sum != NULL) {
        LS_TRY(device->api->convert(device->backend, device->stream, memory->reduced[param], *from,
                                    1.0f));
    }
    LS_TRY(observe(step, LS_STEP_GRADIENT_STAGED, param));
    LS_TRY(trainer->ddp != NULL ? ls_ddp_ready(trainer->ddp, param) : LS_OK);
    return observe(step, LS_STEP_GRADIENT_READY, param);
}

/* The gradient of one parameter has been enqueued (kernels.h, ls_grad_ready): it is accumulated
 * and, in a synchronised micro-step, staged in the reduced type and handed to the reduction. */
static ls_status take_gradient(void *context, int param)
{
    ls_step *step = context;
    ls_trainer *trainer = step->trainer;
    ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    const ls_tensor *from = &memory->grad[param];
    int micro = step->micro;
    LS_TRY(observe(step, LS_STEP_GRADIENT_COMPUTED, param));
    if (memory->sum != NULL) {
        LS_TRY(device->api->accumulate(
            device->backend, device->stream, memory->sum[param], *from,
            LS_PLANT(accumulate_keeps_last, micro == 0, true) &&
                LS_PLANT(no_zero_grad, true, step->record->step == trainer->first_step)));
        from = &memory->sum[param];
    }
    return is_synchronised(step) ? stage_gradient(step, param, from) : LS_OK;
}

/* A team's parts are the micro-steps; calls come from its threads, one at a time. */
static ls_status observe_part(void *context, int part, int param)
{
    const ls_step *step = context;
    return ls_step_observers_call(
        &step->observers,
        &(ls_step_event){.at = LS_STEP_GRADIENT_COMPUTED, .micro_step = part, .index = param});
}

static ls_status backward_team(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    const ls_memory *memory = &trainer->memory;
    LS_TRY(ls_team_backward(trainer->team, observe_part, step));
    for (int i = trainer->network.param_count - 1; i >= 0; i--) {
        const ls_tensor *from = memory->sum != NULL ? &memory->sum[i] : &memory->grad[i];
        if (trainer->options.data_parallel > 1) {
            LS_TRY(observe(step, LS_STEP_GRADIENT_COMPUTED, i));
        }
        LS_TRY(stage_gradient(step, i, from));
    }
    return LS_OK;
}
static ls_status backward(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    const ls_device *device = &trainer->device;
    float factor = 1.0f / (float)trainer->options.accumulate;
    if (trainer->team != NULL) {
        return backward_team(step);
    }
    if (trainer->ddp != NULL && is_synchronised(step)) {
        bool last = step->micro == trainer->options.accumulate - 1;
        LS_TRY(ls_ddp_begin(trainer->ddp, last ? &step->observers : NULL));
    }
    if (ls_aux_head_is_used(trainer, step->record->step)) {
        LS_TRY(ls_aux_head_backward(trainer, step->batch.host.target, factor, take_gradient, step));
    }
    return device->api->plan_backward(trainer->plan, device->stream,
                                      LS_PLANT(accumulate_not_divided, factor, 1.0f), take_gradient,
                                      step);
}

static ls_status finish(ls_step *step)
{
    return step->trainer->ddp != NULL ? ls_ddp_finish(step->trainer->ddp) : LS_OK;
}

static ls_status unscale(ls_step *step)
{
    ls_memory *memory = &step->trainer->memory;
    ls_tensor_list unscaled = {memory->param_count, memory->unscaled};
    ls_tensor_list grads = {memory->param_count, memory->grad};
    return ls_amp_scale_unscale(&step->trainer->amp, unscaled, grads);
}

static ls_status clip(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    const ls_device *device = &trainer->device;
    const ls_memory *memory = &trainer->memory;
    const ls_clip_config config = ls_optim_clip(&trainer->options);
    if (!ls_optim_measures_norm(&trainer->options)) {
        return LS_OK;
    }
    return device->api->clip(device->backend, device->stream, &config,
                             (ls_tensor_list){memory->param_count, memory->unscaled},
                             trainer->amp.config.dynamic, memory->state);
}

static ls_status optimize(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    LS_TRY(ls_optim_step(&trainer->optimizer, trainer->group, &trainer->memory,
                         trainer->amp.config.dynamic));
    return LS_PLANT(masters_rounded, LS_OK, ls_optim_make_masters(&trainer->memory));
}

static ls_status update_scale(ls_step *step)
{
    return ls_amp_scale_update(&step->trainer->amp);
}

static ls_status repack(ls_step *step)
{
    const ls_device *device = &step->trainer->device;
    if (step->trainer->team != NULL) {
        return ls_team_params_changed(step->trainer->team);
    }
    return device->api->plan_params_changed(step->trainer->plan, device->stream);
}

/* ---- the step -------------------------------------------------------------------------------- */

typedef struct stage {
    ls_step_moment begin; /* its end is the next in the list of moments */
    const char *name;     /* for a profiler */
    ls_status (*run)(ls_step *step);
    int times; /* 1, but for planted faults that forget a stage or run it twice */
} stage;

enum { STAGES = 8, MICRO_STAGES = 2 /* the first, in every micro-step */ };

/* Runs stages `from` to `to` - 1 of a step of numerics.md section 2. */
static ls_status run_stages(ls_step *step, int from, int to)
{
    const stage list[STAGES] = {
        {LS_STEP_FORWARD, "forward", forward, 1},
        {LS_STEP_BACKWARD, "backward", backward, 1},
        {LS_STEP_FINISH, "finish", finish, 1},
        {LS_STEP_UNSCALE, "unscale", unscale, LS_PLANT(unscale_twice, 1, 2)},
        {LS_STEP_CLIP, "clip", clip, LS_PLANT(clip_forgotten, 1, 0)},
        {LS_STEP_OPTIMIZER, "optimizer", optimize, 1},
        {LS_STEP_SCALER, "scaler", update_scale,
         LS_PLANT(update_twice, LS_PLANT(update_forgotten, 1, 0), 2)},
        {LS_STEP_REPACK, "repack", repack,
         LS_PLANT(stale_weight_cache, LS_PLANT(stale_cast_after_20, 1, ls_plant_now <= 20), 0)},
    };
    ls_status status = LS_OK;
    for (const stage *stage = list + from; stage < list + to && status == LS_OK; stage++) {
        ls_device_range_push(&step->trainer->device, stage->name);
        status = observe(step, stage->begin, 0);
        for (int i = 0; i < stage->times && status == LS_OK; i++) {
            status = stage->run(step);
        }
        status = status == LS_OK ? observe(step, stage->begin + 1, 0) : status;
        ls_device_range_pop(&step->trainer->device); /* also after a failed recording */
    }
    return status;
}

static ls_status run_all_stages(void *context)
{
    return run_stages(context, 0, STAGES);
}

/* ---- before the stages ----------------------------------------------------------------------- */

/* --force-branches: the first step takes the ReLU and max-pool decisions of another run's dump, so
 * that two precisions can be compared without the branches that rounding turns (numerics.md section
 * 4). LS_ERR_USAGE where the dump lacks a branch, or has one of another size. `part` of `parts`:
 * which of the micro-steps that the dump holds. */
static ls_status force(const ls_trainer *trainer, const ls_safetensors *dump, const char *path,
                       int part, int parts)
{
    for (int k = 0; k < trainer->network.branch_count; k++) {
        LS_TEXT(name, 32, "branch/%03d", k);
        const ls_safetensors_entry *entry = ls_safetensors_find(dump, name);
        LS_REFUSE_IF(entry == NULL, "--force-branches: %s has no %s", path, name);
        int64_t bytes = entry->bytes / parts;
        LS_TRY(trainer->device.api->plan_force(trainer->plan, trainer->device.stream, k,
                                               (const char *)entry->data + part * bytes, bytes));
    }
    return LS_OK;
}

/* Uses the computed branches again. */
static ls_status unforce_branches(const ls_trainer *trainer)
{
    for (int k = 0; k < trainer->network.branch_count; k++) {
        LS_TRY(trainer->device.api->plan_force(trainer->plan, trainer->device.stream, k, NULL, 0));
    }
    return LS_OK;
}

static ls_status open_forced(const ls_trainer *trainer, int rank, char *path, size_t bytes,
                             ls_safetensors **out)
{
    int length = snprintf(path, bytes, "%s/step%06d.rank%d.safetensors",
                          trainer->options.force_branches, 1, rank);
    LS_ASSERT(length < (int)bytes);
    return ls_safetensors_open(path, out);
}

/* Forces every branch at step 1, lets go of them after it. Micro-step m of rank k follows that of
 * rank k of the other run where its dump holds as many (A, --accumulate), else rank k*A+m. */
static ls_status force_branches(const ls_trainer *trainer, int64_t step, int micro_step)
{
    const ls_options *options = &trainer->options;
    int count = options->accumulate, rank = trainer->world.rank;
    if (options->force_branches[0] == '\0' || step > 2) {
        return LS_OK;
    }
    if (step == 2) {
        return micro_step == 0 ? unforce_branches(trainer) : LS_OK;
    }
    char path[PATH_MAX];
    ls_safetensors *dump = NULL;
    LS_TRY(open_forced(trainer, rank, path, sizeof path, &dump));
    bool same = atoi(ls_safetensors_metadata_of(dump, "accumulate", "1")) == count;
    if (!same) {
        ls_safetensors_close(dump);
        LS_TRY(open_forced(trainer, rank * count + micro_step, path, sizeof path, &dump));
    }
    ls_status status = force(trainer, dump, path, same ? micro_step : 0, same ? count : 1);
    ls_safetensors_close(dump);
    return status;
}

static ls_status begin_micro_step(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    ls_step_record *record = step->record;
    LS_TRY(ls_feed_take(step->feed, &step->batch));
    record->ms[LS_EVENTS_MS_DATA] += step->batch.waited_ms;
    record->images += step->batch.host.images;
    record->bad_images += step->batch.host.bad_images;
    (*trainer->memory.tracked) += trainer->options.model_parallel ? trainer->options.accumulate : 1;
    LS_TRY(observe(step, LS_STEP_BATCH, 0));
    return force_branches(trainer, record->step, step->micro);
}

static ls_status begin_dump(ls_step *step)
{
    ls_step_clock *clock = &step->history->clock;
    if (!ls_dump_wants(step->trainer, step->record->step) || step->record->round.joined) {
        return LS_OK;
    }
    int64_t since_ns = ls_step_clock_stop(clock);
    LS_TRY(ls_dump_begin(step->trainer, step->record->step, clock, &step->observers, &step->dump));
    ls_step_clock_resume(clock, since_ns);
    return LS_OK;
}

/* The learning rate and, in torch's dialect, rank 0's running statistics (with --join those of the
 * last rank that has a batch); then the observers of
 * this step. The timer comes first, so that no phase holds what the others do around it. */
static ls_status begin_step(ls_step *step, int64_t ticks)
{
    ls_trainer *trainer = step->trainer;
    const ls_device *device = &trainer->device;
    ls_step_host *host = step->record->host;
    int64_t number = step->record->step;
    host->lr = (float)ls_schedule_lr(&trainer->schedule, trainer->base_lr, ticks,
                                     trainer->steps_per_epoch);
    if (LS_PLANT(rate_set_once, true, number == trainer->first_step)) {
        LS_TRY(device->api->copy_in(device->backend, device->stream, &trainer->memory.state->lr,
                                    &host->lr, (int64_t)sizeof host->lr));
    }
    /* Before a forward that follows a synchronised one: the first micro-step of every step but the
     * first (torch/nn/parallel/distributed.py, broadcast_buffers). */
    if (trainer->rules.broadcast_buffers && number > 1) {
        LS_TRY(ls_setup_broadcast(trainer, LS_MEMORY_BUFFER, step->record->round.source));
    }
    step->observers = (ls_step_observers){0};
    ls_step_record_observe(step->record, &step->observers);
    LS_TRY(begin_dump(step));
    LS_TRY(ls_audit_begin(step->audit, number, &step->observers));
    ls_fault_begin(&step->fault, trainer, number, &step->observers);
    return LS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* --no-sync False: a micro-step before the last is reduced, too, and the next one adds to the
 * average, as backward adds to .grad, which holds it. */
static ls_status reduce_so_far(ls_step *step)
{
    ls_trainer *trainer = step->trainer;
    const ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    LS_TRY(run_stages(step, MICRO_STAGES, MICRO_STAGES + 1));
    for (int i = 0; i < memory->param_count && LS_PLANT(average_not_carried, true, false); i++) {
        LS_TRY(device->api->accumulate(device->backend, device->stream, memory->sum[i],
                                       memory->grad[i],
                                       LS_PLANT(average_added_to_sum, true, false)));
    }
    if (trainer->ddp != NULL) {
        ls_ddp_carry(trainer->ddp);
    }
    /* the next forward follows a synchronised one, as a step's first does (begin_step) */
    bool broadcasts = trainer->rules.broadcast_buffers;
    return LS_PLANT(buffers_sent_once_a_step, broadcasts, false)
               ? ls_setup_broadcast(trainer, LS_MEMORY_BUFFER, step->record->round.source)
               : LS_OK;
}

static ls_status enqueue_pieces(ls_step *step)
{
    step->recorded = false;
    /* a team takes all parts at once */
    int last = step->trainer->options.accumulate - 1;
    for (step->micro = step->trainer->team != NULL ? last : 0; step->micro <= last; step->micro++) {
        if (step->micro > 0 && step->trainer->team == NULL) {
            LS_TRY(ls_feed_ahead(step->feed));
        }
        LS_TRY(begin_micro_step(step));
        LS_TRY(run_stages(step, 0, MICRO_STAGES));
        if (step->micro < last && is_synchronised(step)) {
            LS_TRY(reduce_so_far(step));
        }
    }
    return run_stages(step, MICRO_STAGES, STAGES);
}

/* Of a rank without a batch: the reductions that the others' micro-steps have, with zeros, and the
 * update by what they average. */
static ls_status enqueue_mirror(ls_step *step)
{
    ls_ddp *ddp = step->trainer->ddp;
    int last = step->trainer->options.accumulate - 1;
    step->recorded = false;
    LS_TRY(throttle(step));
    for (step->micro = 0; step->micro <= last; step->micro++) {
        if (!is_synchronised(step)) {
            continue;
        }
        LS_TRY(ls_ddp_begin(ddp, step->micro == last ? &step->observers : NULL));
        LS_TRY(ls_ddp_mirror(ddp));
        if (step->micro < last) {
            LS_TRY(reduce_so_far(step));
        }
    }
    return LS_PLANT(joined_rank_stands_still, run_stages(step, MICRO_STAGES, STAGES),
                    run_stages(step, MICRO_STAGES, MICRO_STAGES + 1));
}

static ls_status enqueue_graph(ls_step *step)
{
    const char *why = NULL;
    step->micro = 0;
    step->recorded = true;
    LS_TRY(begin_micro_step(step));
    LS_TRY(ls_graph_step(step->graphs, step->record->step, step->batch.slot, run_all_stages, step,
                         &why));
    if (why == NULL) {
        return LS_OK;
    }
    step->recorded = false;
    LS_TRY(ls_events_write_graph(step->trainer->events, step->record->step, why));
    return run_all_stages(step);
}

ls_status ls_step_enqueue(ls_step *step, int64_t number, int64_t ticks)
{
    ls_trainer *trainer = step->trainer;
    const ls_device *device = &trainer->device;
    ls_step_record *record = ls_step_record_of(step->history, number);
    step->record = record;
    record->step = number;
    record->images = 0;
    record->bad_images = 0;
    record->has_ended = false;
    memset(record->ms, 0, sizeof record->ms);
    LS_PLANT_STEP(number);
    LS_TEXT(name, 32, "step %lld", (long long)number);
    ls_device_range_push(device, name);
    LS_TRY(ls_uneven_agree(trainer, number, &record->round));
    LS_TRY(begin_step(step, ticks));
    LS_TRY(record->round.joined                   ? enqueue_mirror(step)
           : ls_graph_takes(step->graphs, number) ? enqueue_graph(step)
                                                  : enqueue_pieces(step));
    LS_TRY(ls_audit_end(step->audit));
    LS_TRY(device->api->copy_out(device->backend, device->stream, &record->host->state,
                                 trainer->memory.state, (int64_t)sizeof record->host->state));
    LS_TRY(device->api->event_record(record->arrived, device->stream));
    ls_device_range_pop(device);
    record->pending = true;
    return LS_OK;
}
