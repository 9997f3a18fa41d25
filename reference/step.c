#include "step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/core/clock.h"
#include "../kernels/core/log.h"
#include "../kernels/core/plant.h"
#include "aux.h"
#include "dump.h"
#include "fault.h"
#include "follow.h"
#include "setup.h"

/* What is known of one step before its event is written. Where the device works ahead of the host,
 * the state arrives later than the rest and the event is written one step late. */
typedef struct record {
    bool pending;
    int64_t step, images;
    float lr;
    float *loss;         /* [accumulate], copied from the device */
    ls_step_state state; /* after the step, copied from the device */
    ls_event *arrived;
    ls_digest_set digest;
    double ms[LS_EVENTS_MS_COUNT];
    int64_t ended_ns;
} record;

enum { RECORDS = 2, SPANS_FIXED = 3 };

typedef struct loop {
    ls_trainer *trainer;
    record record[RECORDS];
    ls_step_summary *summary;
    float loss_scale;      /* of the step whose event comes next */
    int64_t ended_ns;      /* when the last step ended */
    int64_t instrument_ns; /* since then, spent on digests and dumps */
    int64_t printed_ns;    /* and the step that was printed then */
    int64_t printed_step;
    ls_dump *dump;                         /* of the step that is running, or NULL */
    int64_t step;                          /* that is running */
    int micro;                             /* and its micro-step */
    bool poisons;                          /* --overflow-at names this step and rank */
    int64_t forward_ns[2], backward_ns[2]; /* of the last micro-step: from, to */
    ls_events_span *span;                  /* [SPANS_FIXED + param_count], for --trace */
} loop;

/* ---- time that does not count ---------------------------------------------------------------- */

static int64_t instrument_begin(loop *loop)
{
    ls_loader_pause(loop->trainer->loader, true);
    return ls_clock_ns();
}

static void instrument_end(loop *loop, int64_t begun_ns)
{
    ls_loader_pause(loop->trainer->loader, false);
    loop->instrument_ns += ls_clock_ns() - begun_ns;
}

/* ---- backward's gradients -------------------------------------------------------------------- */

static bool overflows_here(const ls_trainer *trainer, int64_t step)
{
    for (int i = 0; i < trainer->options.overflow_count; i++) {
        const ls_overflow_at *at = &trainer->options.overflow[i];
        if (at->step == step && (at->rank < 0 || at->rank == trainer->world.rank)) {
            return true;
        }
    }
    return false;
}

/* Whether this gradient is the one that --overflow-at and --overflow-as mean. */
static bool is_poisoned(const loop *loop, int param)
{
    const ls_options *options = &loop->trainer->options;
    const ls_overflow_as *as = &options->overflow_as;
    int micro = as->micro < 0 ? options->accumulate - 1 : as->micro;
    return loop->poisons && loop->micro == micro &&
           (as->param[0] == '\0' ||
            strcmp(as->param, loop->trainer->network.param[param].name) == 0);
}

static ls_status poison(const ls_trainer *trainer, const ls_tensor *grad)
{
    const ls_overflow_as *as = &trainer->options.overflow_as;
    int64_t at = as->place == 'f' ? 0 : as->place == 'm' ? grad->count / 2 : grad->count - 1;
    int64_t bytes = (int64_t)ls_dtype_bytes(grad->dtype);
    ls_tensor one = {(char *)grad->data + at * bytes, grad->dtype, 1};
    return ls_device_write_f32(&trainer->device, &one, &as->value);
}

/* The gradient of one parameter has been enqueued (kernels.h, ls_grad_ready). */
static ls_status take_gradient(void *context, int param)
{
    loop *loop = context;
    ls_trainer *trainer = loop->trainer;
    ls_memory *memory = &trainer->memory;
    const ls_backend_api *api = trainer->device.api;
    bool last = loop->micro == trainer->options.accumulate - 1;
    const ls_tensor *from = &memory->grad[param];
    if (is_poisoned(loop, param)) {
        loop->poisons = false;
        LS_TRY(poison(trainer, from));
    }
    if (memory->sum != NULL) {
        LS_TRY(api->accumulate(
            trainer->device.backend, trainer->device.stream, memory->sum[param], *from,
            LS_PLANT(accumulate_keeps_last, loop->micro == 0, true) &&
                LS_PLANT(no_zero_grad, true, loop->step == trainer->first_step)));
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
        int64_t begun_ns = instrument_begin(loop);
        LS_TRY(ls_dump_local(loop->dump, param));
        instrument_end(loop, begun_ns);
    }
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_ready(trainer->ddp, param));
    }
    if (param == trainer->network.param_count / 2) { /* the buckets before are being reduced */
        ls_fault_point(trainer, loop->step, LS_FAULT_REDUCTION);
    }
    return LS_OK;
}

/* ---- one step -------------------------------------------------------------------------------- */

static ls_status dump_batch(loop *loop, const ls_loader_batch *batch)
{
    if (loop->dump == NULL) {
        return LS_OK;
    }
    int64_t begun_ns = instrument_begin(loop);
    LS_TRY(ls_dump_batch(loop->dump, loop->micro, batch));
    instrument_end(loop, begun_ns);
    return LS_OK;
}

static ls_status dump_forward(loop *loop)
{
    if (loop->dump == NULL) {
        return LS_OK;
    }
    int64_t begun_ns = instrument_begin(loop);
    LS_TRY(ls_dump_forward(loop->dump, loop->micro));
    instrument_end(loop, begun_ns);
    return LS_OK;
}

/* Batch, forward, backward. */
static ls_status run_micro_step(loop *loop, record *record)
{
    ls_trainer *trainer = loop->trainer;
    const ls_backend_api *api = trainer->device.api;
    ls_stream *stream = trainer->device.stream;
    int accumulate = trainer->options.accumulate;
    ls_loader_batch batch;

    int64_t begun_ns = ls_clock_ns();
    LS_TRY(ls_loader_next(trainer->loader, &batch));
    record->ms[LS_EVENTS_MS_DATA] += ls_clock_ms_between(begun_ns, ls_clock_ns());
    record->images += batch.images;
    LS_TRY(dump_batch(loop, &batch));
    LS_TRY(ls_follow_micro_step(trainer, record->step, loop->micro));

    ls_fault_point(trainer, record->step, LS_FAULT_FORWARD);
    loop->forward_ns[0] = ls_clock_ns();
    LS_TRY(api->plan_forward(trainer->plan, stream, batch.input, batch.target));
    loop->forward_ns[1] = ls_clock_ns();
    record->ms[LS_EVENTS_MS_FORWARD] +=
        ls_clock_ms_between(loop->forward_ns[0], loop->forward_ns[1]);
    (*trainer->memory.tracked)++;
    LS_TRY(api->copy_out(trainer->device.backend, stream, &record->loss[loop->micro],
                         &trainer->memory.state->loss, (int64_t)sizeof(float)));
    LS_TRY(dump_forward(loop));

    if (trainer->ddp != NULL && loop->micro == accumulate - 1) {
        LS_TRY(ls_ddp_begin(trainer->ddp));
    }
    ls_fault_point(trainer, record->step, LS_FAULT_BACKWARD);
    int64_t instrument_ns = loop->instrument_ns;
    loop->backward_ns[0] = ls_clock_ns();
    if (ls_aux_is_used(trainer, record->step)) {
        LS_TRY(
            ls_aux_backward(trainer, batch.target, 1.0f / (float)accumulate, take_gradient, loop));
    }
    LS_TRY(api->plan_backward(trainer->plan, stream,
                              LS_PLANT(accumulate_not_divided, 1.0f / (float)accumulate, 1.0f),
                              take_gradient, loop));
    loop->backward_ns[1] = ls_clock_ns();
    record->ms[LS_EVENTS_MS_BACKWARD] +=
        ls_clock_ms_between(loop->backward_ns[0], loop->backward_ns[1]) -
        (double)(loop->instrument_ns - instrument_ns) * 1e-6;
    return LS_OK;
}

/* After iteration 1 the gradients may move to the layout that rank 0's order has made. */
static ls_status rebuild_buckets(loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    bool changed = false;
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_ddp_rebuild(trainer->ddp, &changed));
    if (!changed) {
        return LS_OK;
    }
    LS_TRY(ls_setup_bind(trainer));
    return ls_events_write_buckets(trainer->events, step + 1, ls_ddp_layout(trainer->ddp),
                                   &trainer->network);
}

static ls_status begin_dump(loop *loop, int64_t step)
{
    if (!ls_dump_wants(loop->trainer, step)) {
        return LS_OK;
    }
    int64_t begun_ns = instrument_begin(loop);
    LS_TRY(ls_dump_begin(loop->trainer, step, &loop->dump));
    instrument_end(loop, begun_ns);
    return LS_OK;
}

static ls_status dump_buffers(loop *loop)
{
    if (loop->dump == NULL) {
        return LS_OK;
    }
    int64_t begun_ns = instrument_begin(loop);
    LS_TRY(ls_dump_buffers(loop->dump));
    instrument_end(loop, begun_ns);
    return LS_OK;
}

/* One whole step up to the point where everything is enqueued. */
static ls_status run_step(loop *loop, int64_t step, record *record)
{
    ls_trainer *trainer = loop->trainer;
    ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    record->step = loop->step = step;
    record->images = 0;
    memset(record->ms, 0, sizeof record->ms);
    record->lr =
        (float)ls_schedule_lr(&trainer->schedule, trainer->base_lr,
                              step - LS_PLANT(schedule_waits_on_skip, 0, loop->summary->skipped),
                              trainer->steps_per_epoch);
    LS_PLANT_STEP(step);
    LS_TRY(begin_dump(loop, step));
    if (LS_PLANT(rate_set_once, true, step == trainer->first_step)) {
        LS_TRY(device->api->copy_in(device->backend, device->stream, &memory->state->lr,
                                    &record->lr, (int64_t)sizeof record->lr));
    }
    /* Before a forward that follows a synchronised one: the first micro-step of every step but the
     * first (torch/nn/parallel/distributed.py, broadcast_buffers). */
    if (trainer->rules.broadcast_buffers && step > 1) {
        LS_TRY(ls_setup_broadcast_buffers(trainer));
    }
    LS_TRY(dump_buffers(loop));
    loop->poisons = overflows_here(trainer, step);
    for (loop->micro = 0; loop->micro < trainer->options.accumulate; loop->micro++) {
        LS_TRY(run_micro_step(loop, record));
    }
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_finish(trainer->ddp));
        ls_ddp_times times = ls_ddp_times_of(trainer->ddp);
        record->ms[LS_EVENTS_MS_COMM] = (double)times.comm_ns * 1e-6;
        record->ms[LS_EVENTS_MS_COMM_EXPOSED] = (double)times.exposed_ns * 1e-6;
    }
    ls_fault_point(trainer, step, LS_FAULT_OPTIMIZER);
    int64_t begun_ns = ls_clock_ns();
    ls_tensor_list unscaled = {memory->param_count, memory->unscaled};
    ls_tensor_list grads = {memory->param_count, memory->grad};
    LS_TRY(ls_amp_scale_unscale(&trainer->amp, unscaled, grads));
    if (LS_PLANT(unscale_twice, false, true)) {
        LS_TRY(ls_amp_scale_unscale(&trainer->amp, unscaled, grads));
    }
    if (LS_PLANT(flipped_exponent_bit, false, true)) {
        ((uint32_t *)memory->unscaled[4].data)[3] ^= 1u << 27;
    }
    if (LS_PLANT(skip_per_rank, false, true)) {
        memory->state->overflow &= overflows_here(trainer, step);
    }
    LS_TRY(ls_optim_step(&trainer->optimizer, memory, trainer->amp.config.dynamic));
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
    record->ms[LS_EVENTS_MS_OPTIMIZER] = ls_clock_ms_between(begun_ns, ls_clock_ns());
    LS_TRY(device->api->copy_out(device->backend, device->stream, &record->state, memory->state,
                                 (int64_t)sizeof record->state));
    LS_TRY(device->api->event_record(record->arrived, device->stream));
    record->pending = true;
    return LS_OK;
}

/* ---- what is told about it ------------------------------------------------------------------- */

static float mean_loss(const loop *loop, const record *record)
{
    double sum = 0.0;
    int count = loop->trainer->options.accumulate;
    for (int i = 0; i < count; i++) {
        sum += (double)record->loss[i];
    }
    return count == 1 ? record->loss[0] : (float)(sum / count);
}

static ls_status write_trace(loop *loop, const record *record)
{
    ls_trainer *trainer = loop->trainer;
    if (!trainer->options.trace) {
        return LS_OK;
    }
    char(*name)[24] = calloc((size_t)trainer->memory.param_count, sizeof *name);
    if (name == NULL) {
        ls_log_error("cannot allocate a trace event");
        return LS_ERR_INFRA;
    }
    int count = 0;
    loop->span[count++] =
        (ls_events_span){"forward", false, loop->forward_ns[0], loop->forward_ns[1]};
    loop->span[count++] =
        (ls_events_span){"backward", false, loop->backward_ns[0], loop->backward_ns[1]};
    int64_t optimizer_ns = (int64_t)(record->ms[LS_EVENTS_MS_OPTIMIZER] * 1e6);
    loop->span[count++] =
        (ls_events_span){"optimizer", false, record->ended_ns - optimizer_ns, record->ended_ns};
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        ls_events_span *span = &loop->span[count++];
        snprintf(name[b], sizeof name[b], "bucket %d", b);
        *span = (ls_events_span){.name = name[b], .communication = true};
        ls_ddp_bucket_span(trainer->ddp, b, &span->from_ns, &span->to_ns);
    }
    ls_status status = ls_events_write_trace(trainer->events, record->step, loop->span, count);
    free(name);
    return status;
}

static void print_step(loop *loop, const record *record, float loss)
{
    ls_trainer *trainer = loop->trainer;
    int frequency = trainer->options.print_freq;
    bool due = frequency > 0 && (record->step % frequency == 0 || record->step == 1 ||
                                 record->step == trainer->last_step);
    if (trainer->world.rank != 0 || !due) {
        return;
    }
    double seconds = (double)(record->ended_ns - loop->printed_ns) * 1e-9;
    double images =
        (double)(record->step - loop->printed_step) * (double)record->images * trainer->world.world;
    printf("step %lld/%lld  loss %.4f  lr %g  scale %g%s  %.1f img/s\n", (long long)record->step,
           (long long)trainer->last_step, (double)loss, (double)record->lr,
           (double)record->state.loss_scale, record->state.skipped != 0 ? " (skipped)" : "",
           images / seconds);
    fflush(stdout);
    loop->printed_ns = record->ended_ns;
    loop->printed_step = record->step;
}

/* Writes a step's event once its state is on the host, and decides whether the run goes on. */
static ls_status tell_step(loop *loop, record *record)
{
    ls_trainer *trainer = loop->trainer;
    if (!record->pending) {
        return LS_OK;
    }
    record->pending = false;
    LS_TRY(trainer->device.api->event_wait(record->arrived));
    ls_events_step event = {
        .step = record->step,
        .loss = mean_loss(loop, record),
        .loss_scale = loop->loss_scale,
        .loss_scale_next = record->state.loss_scale,
        .skipped = record->state.skipped != 0,
        .lr = record->lr,
        .images = record->images,
        .at_ns = record->ended_ns,
    };
    memcpy(event.digest_given, record->digest.given, sizeof event.digest_given);
    memcpy(event.digest, record->digest.value, sizeof event.digest);
    for (int i = 0; i < LS_EVENTS_MS_COUNT; i++) {
        event.ms_given[i] = true;
        event.ms[i] = record->ms[i];
    }
    LS_TRY(ls_events_write_step(trainer->events, &event));
    ls_tensorboard_scalars scalars = {
        .loss = event.loss,
        .lr = event.lr,
        .loss_scale = event.loss_scale,
        .images_per_s = (float)(1e3 * (double)event.images * trainer->world.world /
                                record->ms[LS_EVENTS_MS_TOTAL]),
    };
    LS_TRY(ls_tensorboard_write(trainer->board, record->step, &scalars));
    print_step(loop, record, event.loss);
    loop->loss_scale = record->state.loss_scale;
    loop->summary->last = record->step;
    loop->summary->skipped += event.skipped;
    return ls_amp_scale_judge(&trainer->amp, ls_amp_scale_param_name, &trainer->network,
                              &record->state, record->step);
}

/* Digests and dump of the step that has just been enqueued; both need its state on the host. */
static ls_status instrument(loop *loop, record *record)
{
    ls_trainer *trainer = loop->trainer;
    bool hashes = ls_events_enabled(trainer->events) && trainer->options.digest != LS_DIGEST_NONE;
    memset(&record->digest, 0, sizeof record->digest);
    if (!hashes && loop->dump == NULL) {
        return LS_OK;
    }
    int64_t begun_ns = instrument_begin(loop);
    LS_TRY(trainer->device.api->event_wait(record->arrived));
    if (hashes) {
        LS_TRY(ls_digest_compute(&trainer->memory, &record->state, trainer->options.digest,
                                 &record->digest));
    }
    if (loop->dump != NULL) {
        ls_dump_result result = {
            .loss = mean_loss(loop, record), .after = record->state, .lr = record->lr};
        ls_dump *dump = loop->dump;
        loop->dump = NULL;
        ls_fault_point(trainer, record->step, LS_FAULT_DUMP);
        LS_TRY(ls_dump_finish(dump, &result));
    }
    instrument_end(loop, begun_ns);
    return LS_OK;
}

/* One step and what belongs to it; `record` is this step's, `older` the one before. */
static ls_status do_step(loop *loop, int64_t step, record *record, struct record *older)
{
    ls_trainer *trainer = loop->trainer;
    LS_TRY(run_step(loop, step, record));
    record->ended_ns = ls_clock_ns();
    record->ms[LS_EVENTS_MS_INSTRUMENT] = (double)loop->instrument_ns * 1e-6;
    record->ms[LS_EVENTS_MS_TOTAL] =
        ls_clock_ms_between(loop->ended_ns, record->ended_ns) - record->ms[LS_EVENTS_MS_INSTRUMENT];
    loop->ended_ns = record->ended_ns;
    loop->instrument_ns = 0;
    if (trainer->engine != NULL) {
        LS_TRY(trainer->engine->poll(trainer->comm));
    }
    LS_TRY(instrument(loop, record));
    LS_TRY(write_trace(loop, record));
    LS_TRY(tell_step(loop, older));
    if (trainer->device.info.host_memory) {
        LS_TRY(tell_step(loop, record));
    }
    return step == 1 ? rebuild_buckets(loop, step) : LS_OK;
}

static ls_status open_loop(loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_state state;
    for (int i = 0; i < RECORDS; i++) {
        loop->record[i].loss = calloc((size_t)trainer->options.accumulate, sizeof(float));
        if (loop->record[i].loss == NULL) {
            ls_log_error("cannot allocate the losses of a step");
            return LS_ERR_INFRA;
        }
        LS_TRY(
            trainer->device.api->event_create(trainer->device.backend, &loop->record[i].arrived));
    }
    size_t spans = SPANS_FIXED + (size_t)trainer->memory.param_count;
    loop->span = calloc(spans, sizeof *loop->span);
    if (loop->span == NULL) {
        ls_log_error("cannot allocate the spans of a step");
        return LS_ERR_INFRA;
    }
    LS_TRY(ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    loop->loss_scale = state.loss_scale;
    loop->ended_ns = loop->printed_ns = ls_clock_ns();
    loop->printed_step = trainer->first_step - 1;
    loop->summary->last = trainer->first_step - 1;
    return LS_OK;
}

static void close_loop(loop *loop)
{
    ls_dump_discard(loop->dump);
    for (int i = 0; i < RECORDS; i++) {
        free(loop->record[i].loss);
        if (loop->record[i].arrived != NULL) {
            loop->trainer->device.api->event_destroy(loop->record[i].arrived);
        }
    }
    free(loop->span);
}

ls_status ls_step_run(ls_trainer *trainer, ls_step_summary *summary)
{
    *summary = (ls_step_summary){0};
    loop loop = {.trainer = trainer, .summary = summary};
    ls_status status = open_loop(&loop);
    record *now = &loop.record[0], *older = &loop.record[1];
    for (int64_t step = trainer->first_step; status == LS_OK && step <= trainer->last_step;
         step++) {
        status = do_step(&loop, step, now, older);
        record *swap = now;
        now = older;
        older = swap;
    }
    if (status == LS_OK) {
        status = tell_step(&loop, older);
    }
    close_loop(&loop);
    return status;
}
