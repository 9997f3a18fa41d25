#include "example.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "reference/state/digest.h"
#include "reference/state/optim.h"
#include "reference/train/ways/join.h"
#include "reference/train/step/step.h"

/* ---- start and end --------------------------------------------------------------------------- */

ls_status ls_example_check(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    const struct {
        bool given;
        const char *option;
    } rows[] = {
        {options->save[0] != '\0', "--save"},
        {options->save_dir[0] != '\0', "--save-dir"},
        {options->resume[0] != '\0', "--resume"},
        {options->init[0] != '\0', "--init"},
        {options->force_branches[0] != '\0', "--force-branches"},
        {options->aux_head.count > 0, "--aux-head"},
        {options->fault.step > 0, "--fault-at"},
        {options->audit, "--audit"},
        {options->trace, "--trace"},
        {options->no_reduce, "--no-reduce"},
        {options->no_sync != LS_UNSET, "--no-sync"},
        {options->join != LS_JOIN_NONE, "--join"},
        {options->no_pad, "--no-pad"},
        {options->rank_steps.count > 0, "--steps-of-rank"},
        {options->resident > 0, "--resident"},
        {options->cudnn_benchmark, "--cudnn-benchmark"},
        {options->fuse, "--fuse"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (options->example != LS_EXAMPLE_NONE && rows[i].given) {
            ls_log_error("%s is not offered with --example", rows[i].option);
            return ls_setup_unsupported(trainer, rows[i].option, "not with --example");
        }
    }
    return LS_OK;
}

/* Lists that the library's tensors replaced belong to the model's memory and go with it. */
static void close_example(ls_example *example)
{
    for (int i = 0; i < example->model_count; i++) {
        ls_dump_discard(example->model[i].dump);
    }
    if (!example->trainer->stuck) {
        ls_amp_destroy(example->amp);
    }
    free(example);
}

ls_status ls_example_run(ls_trainer *trainer, ls_example_page *page, ls_step_summary *summary)
{
    *summary = (ls_step_summary){0};
    ls_example *example = calloc(1, sizeof *example);
    LS_MEMORY(example != NULL);
    example->trainer = trainer;
    example->options = trainer->options;
    example->summary = summary;
    ls_status status = page(example);
    if (status != LS_OK) {
        ls_join_abandon(trainer);
    }
    close_example(example);
    return status;
}

/* ---- models, amp, parameter groups ----------------------------------------------------------- */

/* --overflow-as VALUE@MODEL/PARAM names a gradient of one model; VALUE alone means the first. */
static void take_overflow(ls_example *example, ls_example_model *model)
{
    const ls_options *given = &example->options;
    const ls_network *network = &model->trainer->network;
    ls_options *own = &model->trainer->options;
    const char *name = model->trainer->model, *param = given->overflow_as.param;
    size_t length = strlen(name);
    bool mine = param[0] == '\0' && example->model_count == 0;
    bool named = strncmp(param, name, length) == 0 && param[length] == '/';
    for (int i = 0; named && i < network->param_count; i++) {
        mine = mine || strcmp(param + length + 1, network->param[i].name) == 0;
    }
    own->overflow_at.count = mine ? given->overflow_at.count : 0;
    snprintf(own->overflow_as.param, sizeof own->overflow_as.param, "%s",
             named ? param + length + 1 : "");
    example->overflows = example->overflows || mine;
}

ls_status ls_example_open_model(ls_example *example, const char *name, const char *arch,
                                int batches, ls_example_model **out)
{
    LS_ASSERT(example->model_count < LS_EXAMPLE_MODELS);
    ls_example_model *model = &example->model[example->model_count];
    *model = (ls_example_model){
        .example = example, .trainer = example->trainer, .batches = batches, .optimizer = -1};
    if (example->model_count == 0) {
        model->trainer->model = name; /* the trainer has opened it */
    } else {
        LS_TRY(ls_setup_further(example->trainer, name, arch, &model->trainer));
    }
    model->trainer->options.accumulate = batches;
    model->clock =
        (ls_step_clock){.device = &model->trainer->device, .loader = model->trainer->loader};
    take_overflow(example, model);
    example->model_count++;
    *out = model;
    return LS_OK;
}

ls_status ls_example_open_amp(ls_example *example, int losses)
{
    const ls_trainer *trainer = example->trainer;
    if (!example->overflows) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--overflow-as: no parameter %s; allowed: names such as %s/fc.bias",
                           example->options.overflow_as.param, trainer->model);
    }
    ls_amp_options options = ls_amp_defaults(&trainer->precision);
    options.loss_count = example->loss_count = losses;
    options.moment_count =
        ls_optimizers_moments(example->options.optimizer, example->options.momentum);
    return ls_amp_create(&trainer->device, &options, &example->amp);
}

static void allocate_list(ls_tensor **list, int count)
{
    *list = *list != NULL ? *list : calloc((size_t)count, sizeof **list);
    LS_MEMORY(*list != NULL);
}

/* Digests and dumps find masters, unscaled gradients and moments where the trainer's own are. */
static void show_tensors(ls_example_model *model)
{
    ls_memory *memory = &model->trainer->memory;
    const ls_options *given = &model->example->options;
    memory->moment_count = ls_optimizers_moments(given->optimizer, given->momentum);
    for (int m = 0; m < memory->moment_count; m++) {
        allocate_list(&memory->moment[m], memory->param_count);
    }
    if (model->trainer->precision.masters) {
        allocate_list(&memory->master, memory->param_count);
    }
    for (int i = 0; i < memory->param_count; i++) {
        ls_amp_view view = ls_amp_param_at(model->example->amp, model->optimizer, model->first + i);
        memory->unscaled[i] = view.grad;
        memory->value[i] = view.value;
        if (view.has_master) {
            memory->master[i] = view.value;
        }
        for (int m = 0; m < memory->moment_count; m++) {
            memory->moment[m][i] = view.moment[m];
        }
    }
}

ls_status ls_example_add_group(ls_example_model *model, int optimizer,
                               const ls_optimizer_config *config, double rate)
{
    ls_example *example = model->example;
    const ls_memory *memory = &model->trainer->memory;
    ls_amp_param *param = calloc((size_t)memory->param_count, sizeof *param);
    LS_MEMORY(param != NULL);
    for (int i = 0; i < memory->param_count; i++) {
        snprintf(param[i].name, sizeof param[i].name, "%.12s/%.50s", model->trainer->model,
                 memory->network->param[i].name);
        param[i].param = memory->param[i];
        param[i].grad = memory->grad[i];
    }
    model->optimizer = optimizer;
    model->first = ls_amp_param_count(example->amp, optimizer);
    model->rate = rate;
    model->trainer->options.weight_decay = config->weight_decay; /* for the dump's metadata */
    ls_status status = ls_amp_add_group(example->amp, optimizer, config, 0, param,
                                        memory->param_count, &model->group);
    free(param);
    if (optimizer >= example->optimizer_count) {
        example->optimizer_count = optimizer + 1;
    }
    LS_TRY(status);
    show_tensors(model);
    return LS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

bool ls_example_goes_on(const ls_example *example)
{
    return example->step < example->trainer->last_step;
}

static float lr_of(const ls_example_model *model)
{
    return (float)((double)model->example->lr * model->rate);
}

ls_status ls_example_begin_step(ls_example *example)
{
    const ls_trainer *trainer = example->trainer;
    example->step++;
    example->images = 0;
    LS_PLANT_STEP(example->step);
    example->lr = (float)ls_schedule_lr(&trainer->schedule, trainer->base_lr, example->step,
                                        trainer->steps_per_epoch);
    for (int i = 0; i < example->loss_count; i++) {
        LS_TRY(ls_amp_loss_scale(example->amp, i, &example->loss_scale[i]));
    }
    for (int i = 0; i < example->model_count; i++) {
        ls_example_model *model = &example->model[i];
        model->backwards = 0;
        model->loss = 0;
        LS_TRY(ls_amp_set_lr(example->amp, model->optimizer, model->group, lr_of(model)));
    }
    return LS_OK;
}

ls_status ls_example_next_batch(ls_example *example)
{
    LS_TRY(ls_loader_next(example->trainer->loader, &example->batch));
    example->images += example->batch.images;
    return LS_OK;
}

/* `index`: of a parameter, at moments that have one. */
static ls_status notify(const ls_example_model *model, ls_step_moment at, int index)
{
    return ls_step_observers_call(&model->observers,
                                  &(ls_step_event){.at = at,
                                                   .micro_step = model->backwards,
                                                   .index = index,
                                                   .batch = &model->example->batch});
}

/* The gradient of one parameter has been enqueued (kernels.h, ls_grad_ready). */
static ls_status take_gradient(void *context, int param)
{
    ls_example_model *model = context;
    ls_ddp *ddp = model->trainer->ddp;
    LS_TRY(notify(model, LS_STEP_GRADIENT_COMPUTED, param));
    LS_TRY(ddp != NULL ? ls_ddp_stage(ddp, param, &model->trainer->memory.grad[param]) : LS_OK);
    if (model->batches == 1) { /* a dump has room for what one reduction takes */
        LS_TRY(notify(model, LS_STEP_GRADIENT_STAGED, param));
    }
    return ddp != NULL ? ls_ddp_ready(ddp, param) : LS_OK;
}

static ls_status backward(ls_example_model *model)
{
    ls_trainer *trainer = model->trainer;
    const ls_device *device = &trainer->device;
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_begin(trainer->ddp, &model->observers));
    }
    LS_TRY(device->api->plan_backward(trainer->plan, device->stream, 1.0f / (float)model->batches,
                                      take_gradient, model));
    if (trainer->ddp != NULL) {
        LS_TRY(ls_ddp_finish(trainer->ddp));
    }
    for (int i = 0; i < trainer->memory.param_count; i++) {
        LS_TRY(ls_amp_ready(model->example->amp, model->optimizer, model->group, i));
    }
    return LS_OK;
}

/* Before the model's first forward of a step. */
static ls_status begin_model(ls_example_model *model)
{
    ls_trainer *trainer = model->trainer;
    int64_t step = model->example->step;
    model->observers = (ls_step_observers){0};
    ls_fault_begin(&model->fault, trainer, step, &model->observers);
    if (trainer->rules.broadcast_buffers && step > 1) {
        LS_TRY(ls_setup_broadcast(trainer, LS_MEMORY_BUFFER, 0));
    }
    if (!ls_dump_wants(trainer, step)) {
        return LS_OK;
    }
    return ls_dump_begin(trainer, step, &model->clock, &model->observers, &model->dump);
}

ls_status ls_example_backward(ls_example_model *model, ls_step_state *scaled, float *loss)
{
    ls_trainer *trainer = model->trainer;
    const ls_device *device = &trainer->device;
    const ls_loader_batch *batch = &model->example->batch;
    float mean;
    if (trainer->memory.state != scaled) {
        trainer->memory.state = scaled;
        LS_TRY(ls_setup_bind(trainer));
    }
    if (model->backwards == 0) {
        LS_TRY(begin_model(model));
    }
    (*trainer->memory.tracked)++;
    LS_TRY(notify(model, LS_STEP_BATCH, 0));
    LS_TRY(device->api->plan_forward(trainer->plan, device->stream, batch->input, batch->target));
    LS_TRY(ls_device_read(device, &mean, &scaled->loss, (int64_t)sizeof mean));
    LS_TRY(notify(model, LS_STEP_FORWARD_END, 0));
    LS_TRY(backward(model));
    model->backwards++;
    model->loss += mean / (float)model->batches;
    *loss += mean / (float)model->batches;
    return LS_OK;
}

/* ---- the record ------------------------------------------------------------------------------ */

static ls_status read_state(const ls_example_model *model, bool skipped, ls_step_state *out)
{
    const ls_memory *memory = &model->trainer->memory;
    LS_TRY(ls_device_read(memory->device, out, memory->state, (int64_t)sizeof *out));
    out->skipped = skipped;
    out->step_count = *ls_amp_param_at(model->example->amp, model->optimizer, model->first).steps;
    return LS_OK;
}

/* The digests of all models, one after the other. */
static ls_status add_digests(const ls_example_model *model, const ls_step_state *state,
                             ls_events_step *event)
{
    ls_digest_set own;
    LS_TRY(ls_digest_compute(&model->trainer->memory, state, model->trainer->options.digest, &own));
    for (int i = 0; i < LS_DIGEST_GROUPS; i++) {
        event->digest.given[i] = own.given[i];
        event->digest.value[i] =
            (event->digest.value[i] ^ own.value[i]) * UINT64_C(0x100000001b3); /* FNV's */
    }
    return LS_OK;
}

static ls_status record_model(ls_example_model *model, bool skipped, bool hashes,
                              ls_events_step *event)
{
    ls_trainer *trainer = model->trainer;
    ls_step_state state;
    LS_TRY(read_state(model, skipped, &state));
    if (hashes) {
        LS_TRY(add_digests(model, &state, event));
    }
    if (model->dump != NULL) {
        ls_dump_result result = {.loss = model->loss, .after = state, .lr = lr_of(model)};
        ls_dump *dump = model->dump;
        model->dump = NULL;
        LS_TRY(ls_dump_finish(dump, &result));
    }
    return trainer->device.api->plan_params_changed(trainer->plan, trainer->device.stream);
}

/* The gradients move to the buckets of rank 0's order. */
static ls_status rebuild_buckets(ls_example_model *model)
{
    ls_trainer *trainer = model->trainer;
    bool changed = false;
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_ddp_rebuild(trainer->ddp, &changed));
    if (!changed) {
        return LS_OK;
    }
    for (int i = 0; i < trainer->memory.param_count; i++) {
        LS_TRY(ls_amp_set_grad(model->example->amp, model->optimizer, model->group, i,
                               trainer->memory.grad[i]));
    }
    show_tensors(model);
    return ls_setup_bind(trainer);
}

static void print_step(const ls_example *example, const ls_events_step *event)
{
    const ls_trainer *trainer = example->trainer;
    int frequency = trainer->options.print_freq;
    if (trainer->world.rank != 0 || frequency == 0 ||
        (event->step % frequency != 0 && event->step != 1 && event->step != trainer->last_step)) {
        return;
    }
    printf("step %lld/%lld  lr %g", (long long)event->step, (long long)trainer->last_step,
           (double)event->lr);
    for (int i = 0; i < event->loss_count; i++) {
        printf("  loss %d %.4f  scale %g", i, (double)event->losses[i].loss,
               (double)event->losses[i].loss_scale_next);
    }
    printf("%s\n", event->skipped ? "  (skipped)" : "");
    fflush(stdout);
}

ls_status ls_example_end_step(ls_example *example, const float *loss, const bool *skipped)
{
    ls_trainer *trainer = example->trainer;
    ls_events_loss losses[LS_EXAMPLE_LOSSES];
    ls_events_step event = {.step = example->step,
                            .skipped = true,
                            .lr = example->lr,
                            .images = example->images,
                            .loss_count = example->loss_count,
                            .losses = losses,
                            .optimizer_count = example->optimizer_count,
                            .optimizer_skipped = skipped};
    for (int i = 0; i < example->loss_count; i++) {
        losses[i] = (ls_events_loss){.loss = loss[i], .loss_scale = example->loss_scale[i]};
        LS_TRY(ls_amp_loss_scale(example->amp, i, &losses[i].loss_scale_next));
        event.loss += loss[i];
    }
    event.loss_scale = losses[0].loss_scale;
    event.loss_scale_next = losses[0].loss_scale_next;
    for (int i = 0; i < example->optimizer_count; i++) {
        event.skipped = event.skipped && skipped[i];
    }
    bool hashes =
        ls_events_enabled(trainer->events) && trainer->options.digest != LS_DIGEST_NONE &&
        (example->step % trainer->options.digest_every == 0 || example->step == trainer->last_step);
    if (trainer->engine != NULL) {
        LS_TRY(trainer->engine->poll(trainer->comm));
    }
    for (int i = 0; i < example->model_count; i++) {
        ls_example_model *model = &example->model[i];
        LS_TRY(record_model(model, skipped[model->optimizer], hashes, &event));
    }
    LS_TRY(ls_events_write_step(trainer->events, &event));
    print_step(example, &event);
    example->summary->last = example->step;
    example->summary->skipped += event.skipped;
    for (int i = 0; example->step == LS_DIALECT_REBUILD_AFTER && i < example->model_count; i++) {
        LS_TRY(rebuild_buckets(&example->model[i]));
    }
    return LS_OK;
}
