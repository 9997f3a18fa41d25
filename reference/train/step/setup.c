#include "step.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/machine/machine.h"
#include "kernels/core/cores.h"
#include "kernels/optimizers.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "reference/ddp/ddp.h"
#include "reference/options/world.h"
#include "reference/train/ways/join.h"
#include "reference/train/evaluate.h"
#include "reference/train/journal.h"
#include "reference/train/checkpoint/checkpoint.h"
#include "reference/train/ways/team.h"
#include "reference/train/uneven.h"

/* ---- options and place ----------------------------------------------------------------------- */

ls_status ls_setup_unsupported(ls_trainer *trainer, const char *option, const char *why)
{
    if (trainer->events == NULL) {
        LS_TRY(
            ls_events_open(trainer->world.run_dir, trainer->world.rank, false, &trainer->events));
    }
    LS_TRY(ls_events_write_unsupported(trainer->events, option, why));
    return LS_ERR_UNSUPPORTED;
}

/* More loader threads than cores take turns. */
static void warn_of_workers(const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    ls_cores cores = ls_cores_read();
    int ranks = trainer->world.local_world;
    int threads = ls_options_workers(options, ranks) * ranks;
    if (options->workers_given && trainer->world.local_rank == 0 && threads > cores.usable) {
        char text[64];
        ls_log_warn("--workers %d: %d loader threads on this machine's %s take turns",
                    options->workers, threads, ls_cores_text(&cores, text, sizeof text));
    }
}

ls_status ls_setup_read(int argc, char **argv, ls_trainer *trainer)
{
    const char *option = NULL, *why = NULL;
    ls_status status = ls_options_parse(argc, argv, &trainer->options, &option, &why);
    if (status != LS_OK && status != LS_ERR_UNSUPPORTED) {
        return status;
    }
    if (status == LS_OK) { /* of what is refused only the refusal is reported */
        LS_TRY(ls_dist_apply(&trainer->options, argv));
    }
    LS_TRY(ls_dist_stand_for("--local-rank", trainer->options.local_rank, "LOCAL_RANK"));
    LS_TRY(ls_world_read(&trainer->world));
    LS_TRY(ls_save_block_signals(trainer));
    if (status == LS_ERR_UNSUPPORTED) {
        return ls_setup_unsupported(trainer, option, why);
    }
    ls_options *options = &trainer->options;
    LS_TRY(ls_options_resolve(options, trainer->world.rank, trainer->world.world,
                              trainer->world.run_dir));
    warn_of_workers(trainer);
    options->workers = ls_options_workers(options, trainer->world.local_world);
    ls_dialect_resolve(options, trainer->world.world, &trainer->rules);
    ls_precision_resolve(options, &trainer->rules, &trainer->precision);
    LS_TRY(ls_schedule_parse(options->schedule, &trainer->schedule));
    trainer->optimizer = ls_optim_config(options);
    int ranks = LS_PLANT(lr_scaled_by_rank_batch, trainer->world.world, 1);
    int64_t images = ls_options_images(options, ranks) * options->accumulate;
    trainer->base_lr =
        ls_schedule_base_lr(options->lr, options->lr_scaling == LS_LR_SCALING_LINEAR, images);
    return LS_OK;
}

/* ---- network and device ---------------------------------------------------------------------- */

static ls_status check_overflow_as(const ls_trainer *trainer)
{
    const char *name = trainer->options.overflow_as.param;
    if (trainer->options.example != LS_EXAMPLE_NONE) {
        return LS_OK; /* MODEL/NAME: checked when all its models are there */
    }
    for (int i = 0; i < trainer->network.param_count; i++) {
        if (name[0] == '\0' || strcmp(name, trainer->network.param[i].name) == 0) {
            return LS_OK;
        }
    }
    return ls_log_fail(LS_ERR_USAGE,
                       "--overflow-as: %s has no parameter %s; allowed: names such as %s",
                       trainer->network.arch, name, trainer->network.param[0].name);
}

static ls_status assign_groups(ls_trainer *trainer)
{
    if (trainer->options.groups.count == 0) {
        return LS_OK;
    }
    trainer->group = ls_list_make((size_t)trainer->network.param_count, 1);
    return ls_groups_assign(&trainer->options.groups, &trainer->network, trainer->group);
}

/* The first line that the trainer prints: a run that meant a GPU shows at once that it has none. */
static void print_device(const ls_trainer *trainer)
{
    const ls_backend_info *info = &trainer->device.info;
    if (trainer->world.rank != 0) {
        return;
    }
    printf("device: %s", info->device);
    if (strcmp(trainer->device.api->name, "cpu") == 0) {
        char text[64];
        ls_cores cores = ls_cores_read();
        printf(", %d thread%s a rank on %s; %s", info->threads, info->threads == 1 ? "" : "s",
               ls_cores_text(&cores, text, sizeof text), ls_bus_why_cpu(trainer->options.device));
    }
    printf("\n");
    fflush(stdout);
}

ls_status ls_setup_device(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    LS_TRY(ls_model_build(options->arch, options->num_classes, options->image_size,
                          &trainer->network));
    int params = trainer->network.param_count;
    if (options->aux_head.count > 0) {
        ls_aux_head_extend(&trainer->network);
    }
    trainer->trunk = trainer->network;
    trainer->trunk.param_count = params;
    LS_TRY(check_overflow_as(trainer));
    LS_TRY(assign_groups(trainer));
    int sharing = options->data_parallel; /* each replica's device has as many cores */
    int threads =
        options->threads > 0 && options->threads < sharing ? 1 : options->threads / sharing;
    ls_backend_options backend = {
        .device_index = options->gpu >= 0 ? options->gpu : trainer->world.machine_rank,
        .threads = threads,
        .local_ranks = trainer->world.machine_world * sharing,
        .local_rank = trainer->world.machine_rank,
        .deterministic = options->deterministic,
        .tf32 = options->tf32,
        .emulate_half = options->half_math == LS_HALF_EMULATED,
        .native_half = options->half_math == LS_HALF_NATIVE,
        .oversubscribe = trainer->world.oversubscribe,
    };
    LS_TRY(ls_device_open(options->device, &backend, &trainer->device));
    print_device(trainer);
    bool cpu = strcmp(trainer->device.api->name, "cpu") == 0;
    if (LS_PLANT(gpu_ignored_silently, cpu, false) && options->gpu >= 0 &&
        trainer->world.rank == 0) {
        ls_log_warn("--gpu %d is not used: this run's device is a CPU, whose cores the ranks of a "
                    "machine share",
                    options->gpu);
    }
    if (options->half_math == LS_HALF_NATIVE &&
        ls_device_emulates(&trainer->device.info, options->half)) {
        ls_log_error("--half-math native: processor and library offer no units for %s; allowed: "
                     "auto, emulated",
                     ls_dtype_label(options->half));
        return ls_setup_unsupported(trainer, "--half-math", "no units for the type");
    }
    if (ls_team_devices(options) > 1 && !ls_team_offered(&trainer->device)) {
        const char *name = options->model_parallel ? "--model-parallel" : "--data-parallel";
        ls_log_error("%s is offered on a CPU: a device of the %s backend has a process of its own",
                     name, trainer->device.api->name);
        return ls_setup_unsupported(trainer, name, "each device has a process of its own");
    }
    if (options->unfused && !trainer->device.info.host_memory) {
        ls_log_error("--unfused is offered on a CPU: the %s backend's update is one kernel",
                     trainer->device.api->name);
        return ls_setup_unsupported(trainer, "--unfused", "the device's update is one kernel");
    }
    if (options->resident > 0 && trainer->device.api->batch_load == NULL) {
        ls_log_error("--resident is not offered: the %s backend computes where its batches are",
                     trainer->device.api->name);
        return ls_setup_unsupported(trainer, "--resident", "the device computes on host memory");
    }
    return LS_OK;
}

/* ---- memory and plan ------------------------------------------------------------------------- */

static bool reduces(const ls_trainer *trainer)
{
    return trainer->engine != NULL && !trainer->options.no_reduce;
}

static ls_status create_memory(ls_trainer *trainer)
{
    const ls_network *network = &trainer->network;
    const ls_precision *precision = &trainer->precision;
    size_t params = (size_t)network->param_count, buffers = (size_t)network->buffer_count;
    ls_dtype *types = ls_list_make((3 * params + buffers), sizeof *types);
    ls_dtype *grad = types + params, *reduced = grad + params, *buffer = reduced + params;
    for (size_t i = 0; i < params; i++) {
        ls_param_role role = network->param[i].role;
        types[i] = ls_precision_param(precision, role);
        grad[i] = ls_precision_grad(precision, role);
        reduced[i] = reduces(trainer) ? ls_precision_reduced(precision, role) : grad[i];
    }
    for (size_t i = 0; i < buffers; i++) {
        buffer[i] = ls_precision_buffer(precision, network->buffer[i].role);
    }
    bool amp = trainer->options.example != LS_EXAMPLE_NONE; /* the library owns what it steps */
    ls_memory_options options = {
        .network = network,
        .param_type = types,
        .grad_type = grad,
        .reduced_type = reduced,
        .buffer_type = buffer,
        .masters = precision->masters && !amp,
        .moment_count =
            amp ? 0 : ls_optimizers_moments(trainer->options.optimizer, trainer->options.momentum),
        .sums = trainer->options.accumulate > 1 && trainer->options.data_parallel == 1 && !amp,
        .engine = reduces(trainer) ? trainer->engine : NULL,
        .comm = trainer->comm,
    };
    ls_status status = ls_memory_create(&trainer->device, &options, &trainer->memory);
    free(types);
    return status;
}

/* Tensor cores take products in multiples of 8 of half type; the classifier's sizes are those that
 * a run chooses. The networks' channels are multiples of 8. */
static void warn_of_sizes(const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    enum { UNIT = 8 };
    char sizes[128] = "";
    if (options->num_classes % UNIT != 0) {
        ls_text_add(sizes, sizeof sizes, "--num-classes %d", options->num_classes);
    }
    if (options->batch_size % UNIT != 0) {
        ls_text_add(sizes, sizeof sizes, "%s--batch-size %d", sizes[0] != '\0' ? " and " : "",
                    options->batch_size);
    }
    if (sizes[0] != '\0' && trainer->world.rank == 0 && !trainer->device.info.host_memory &&
        LS_PLANT(cuda_odd_sizes_not_said, trainer->precision.activation != LS_F32, false)) {
        ls_log_warn("%s: not a multiple of %d, which tensor cores take; the classifier's products "
                    "are slower or padded",
                    sizes, (int)UNIT);
    }
}

static ls_status create_plan(ls_trainer *trainer)
{
    const ls_device *device = &trainer->device;
    ls_plan_options options = {
        .batch = trainer->options.batch_size,
        .height = trainer->options.image_size,
        .width = trainer->options.image_size,
        .activation = trainer->precision.activation,
        .norm_sync = LS_PLANT(sync_bn_forgotten, trainer->norm_comm != NULL, false)
                         ? &trainer->norm_sync
                         : NULL,
        .forced_branches = trainer->options.force_branches[0] != '\0',
        .fuse = trainer->options.fuse,
        .label_smoothing = trainer->options.label_smoothing,
    };
    char why[256] = "";
    if (!device->api->supports(device->backend, &trainer->trunk, &options, why, (int)sizeof why)) {
        ls_log_error("the %s backend cannot run %s like this: %s", device->api->name,
                     trainer->network.arch, why);
        return ls_setup_unsupported(trainer, "--arch", why);
    }
    if (ls_team_devices(&trainer->options) > 1) {
        return ls_team_create(trainer, &options);
    }
    char *engines = NULL;
    if (trainer->options.engines[0] != '\0' && device->api->engines_export == NULL) {
        return ls_setup_unsupported(trainer, "--engines", "this device has no choice of engines");
    }
    LS_TRY(ls_engines_recall(trainer, &engines));
    options.benchmark = trainer->options.cudnn_benchmark && engines == NULL;
    ls_status status =
        device->api->plan_create(device->backend, &trainer->trunk, &options, &trainer->plan);
    LS_THEN(status, ls_engines_settle(trainer, engines));
    free(engines);
    return status;
}

ls_status ls_setup_bind(ls_trainer *trainer)
{
    if (trainer->team != NULL) {
        return ls_team_bind(trainer->team);
    }
    const ls_bucket_layout *layout = trainer->ddp != NULL ? ls_ddp_layout(trainer->ddp) : NULL;
    int *together = ls_list_make((size_t)trainer->network.param_count, sizeof *together);
    ls_plan_binding binding = {
        .param = trainer->memory.param,
        .grad = trainer->memory.grad,
        .buffer = trainer->memory.buffer,
        .state = trainer->memory.state,
        /* without a reduction during backward, all at its end */
        .group = layout != NULL && !layout->delayed ? layout->bucket_of : together,
    };
    ls_status status = trainer->device.api->plan_bind(trainer->plan, &binding);
    free(together);
    return status;
}

ls_status ls_setup_memory(ls_trainer *trainer)
{
    LS_REFUSE_IF(trainer->options.aux_head.count > 0 && trainer->engine == NULL,
                 "--aux-head: unused parameters are the reducer's matter; there is none in a "
                 "world of one without --comm self");
    LS_TRY(create_memory(trainer));
    ls_amp_scale_of(&trainer->memory, &trainer->precision, &trainer->amp);
    if (reduces(trainer)) {
        ls_ddp_options options = {
            .rules = &trainer->rules,
            .precision = &trainer->precision,
            .memory = &trainer->memory,
            .engine = trainer->engine,
            .comm = trainer->comm,
            .rank = trainer->world.rank,
            .world = trainer->world.world,
            .find_unused = trainer->options.find_unused,
        };
        LS_TRY(ls_ddp_create(&options, &trainer->ddp));
        const ls_ddp_hook *hook = ls_ddp_builtin_hook(trainer->options.comm_hook);
        LS_TRY(hook != NULL ? ls_ddp_register_hook(trainer->ddp, hook) : LS_OK);
    }
    LS_TRY(ls_graph_check(trainer));
    warn_of_sizes(trainer);
    LS_TRY(create_plan(trainer));
    return ls_setup_bind(trainer);
}

/* ---- values of the first step ---------------------------------------------------------------- */

/* From the seed. Ranks start unlike on purpose, as in Apex's ImageNet script: only a broadcast that
 * works makes them equal. */
static ls_status make_values(ls_trainer *trainer)
{
    const ls_memory *memory = &trainer->memory;
    uint64_t seed = trainer->options.seed + (uint64_t)trainer->world.rank;
    float *value = ls_list_make((size_t)memory->largest, sizeof *value);
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < memory->param_count; i++) {
        ls_model_init_param(&trainer->network, i, seed, value);
        status = ls_device_write_f32(&trainer->device, &memory->param[i], value);
    }
    for (int i = 0; status == LS_OK && i < memory->buffer_count; i++) {
        if (trainer->network.buffer[i].role != LS_BUFFER_BATCHES_TRACKED) {
            ls_model_init_buffer(&trainer->network, i, value);
            status = ls_device_write_f32(&trainer->device, &memory->buffer[i], value);
        }
    }
    free(value);
    return status;
}

ls_status ls_setup_broadcast(ls_trainer *trainer, ls_memory_kind kind, int root)
{
    return trainer->engine == NULL
               ? LS_OK
               : ls_memory_broadcast(&trainer->memory, trainer->engine, trainer->comm, kind, root);
}

static ls_status resume_values(ls_trainer *trainer, ls_step_state *state)
{
    int64_t step = 0;
    LS_TRY(ls_checkpoint_load(trainer, trainer->options.resume, state, &step));
    trainer->first_step = step + LS_PLANT(resume_repeats_step, 1, 0);
    if (trainer->options.init[0] != '\0' && trainer->world.rank == 0) {
        ls_log_warn("--init %s is not used: --resume continues with the checkpoint's parameters",
                    trainer->options.init);
    }
    LS_TRY(ls_setup_bind(trainer)); /* the checkpoint's layout moved the gradients */
    ls_digest_set digests;
    LS_TRY(ls_digest_compute(&trainer->memory, state, LS_DIGEST_ALL, &digests));
    static const ls_digest_group equal[] = {LS_DIGEST_GROUP_PARAM, LS_DIGEST_GROUP_MASTER,
                                            LS_DIGEST_GROUP_STATE, LS_DIGEST_GROUP_SCALER};
    uint64_t whole = 0;
    for (size_t i = 0; i < sizeof equal / sizeof equal[0]; i++) {
        whole = (whole ^ digests.value[equal[i]]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return ls_agree_on(trainer, "contents of --resume", whole);
}

ls_status ls_setup_values(ls_trainer *trainer)
{
    ls_step_state state = ls_amp_scale_start(trainer->precision.initial_scale);
    trainer->first_step = 1;
    if (trainer->options.resume[0] != '\0') {
        LS_TRY(resume_values(trainer, &state));
    } else {
        LS_TRY(make_values(trainer));
        if (trainer->options.init[0] != '\0') {
            LS_TRY(ls_weights_load(trainer, trainer->options.init));
        }
        if (LS_PLANT(masters_before_broadcast, false, true)) {
            LS_TRY(ls_optim_make_masters(&trainer->memory));
        }
        if (LS_PLANT(no_initial_broadcast, true, false)) {
            LS_TRY(ls_setup_broadcast(trainer, LS_MEMORY_PARAM, 0));
        }
        if (trainer->rules.start_buffers) {
            LS_TRY(ls_setup_broadcast(trainer, LS_MEMORY_BUFFER, 0));
        }
        if (LS_PLANT(masters_before_broadcast, true, false)) {
            LS_TRY(ls_optim_make_masters(&trainer->memory));
        }
    }
    LS_TRY(ls_amp_scale_write(&trainer->amp, &state));
    if (trainer->team != NULL) {
        return ls_team_params_changed(trainer->team);
    }
    return trainer->device.api->plan_params_changed(trainer->plan, trainer->device.stream);
}

/* ---- further models -------------------------------------------------------------------------- */

ls_status ls_setup_further(ls_trainer *trainer, const char *name, const char *arch,
                           ls_trainer **out)
{
    enum { SEEDS_APART = 1000 }; /* more than there are ranks, which count on from the seed */
    ls_trainer *last = trainer;
    while (last->further != NULL) {
        last = last->further;
    }
    ls_trainer *model = ls_list_make(1, sizeof *model);
    *model = *trainer;
    model->model = name;
    model->further = NULL;
    model->plan = NULL;
    model->ddp = NULL;
    memset(&model->memory, 0, sizeof model->memory);
    memset(&model->network, 0, sizeof model->network);
    model->options.seed = last->options.seed + SEEDS_APART;
    snprintf(model->options.arch, sizeof model->options.arch, "%s", arch);
    last->further = model;
    LS_TRY(ls_model_build(arch, model->options.num_classes, model->options.image_size,
                          &model->network));
    model->trunk = model->network;
    LS_TRY(ls_setup_memory(model));
    LS_TRY(ls_setup_values(model));
    *out = model;
    return LS_OK;
}

/* ---- data ------------------------------------------------------------------------------------ */

static ls_status write_start(ls_trainer *trainer)
{
    char engine[256] = "";
    ls_plan_info plan;
    trainer->device.api->plan_info(trainer->plan, &plan);
    if (trainer->team != NULL) {
        ls_team_add_info(trainer->team, &plan);
    }
    if (trainer->engine != NULL) {
        trainer->engine->describe(engine, (int)sizeof engine);
    }
    cJSON *memory = ls_memory_json(&trainer->memory);
    int64_t elements = 0;
    for (int i = 0; i < trainer->memory.param_count; i++) {
        elements += trainer->memory.param[i].count;
    }
    ls_events_start start = {
        .rank = trainer->world.rank,
        .world = trainer->world.world,
        .local_rank = trainer->world.local_rank,
        .local_world = trainer->world.local_world,
        .node = trainer->world.node,
        .backend = trainer->device.api->name,
        .info = &trainer->device.info,
        .engine = trainer->engine != NULL ? trainer->engine->name : "none",
        .engine_text = trainer->engine != NULL ? engine : NULL,
        .transport = trainer->engine != NULL && trainer->engine->transport != NULL
                         ? trainer->engine->transport(trainer->comm)
                         : NULL,
        .options = &trainer->options,
        .first_step = trainer->first_step,
        .restart = trainer->world.restart,
        .param_elements = elements,
        .network_digest = ls_agree_network_digest(&trainer->network),
        .fusions = plan.fusions,
        .products = plan.products,
        .layout = plan.layout,
        .activation_bytes = plan.activation_bytes,
        .workspace_bytes = plan.workspace_bytes,
        .memory = memory,
        .tells_graph = trainer->device.api->graph_begin != NULL,
        .no_graph = ls_graph_refused(trainer),
    };
    ls_status status = ls_events_write_start(trainer->events, &start);
    cJSON_Delete(memory);
    LS_TRY(status);
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    return ls_events_write_buckets(trainer->events, trainer->first_step,
                                   ls_ddp_layout(trainer->ddp), &trainer->network);
}

static ls_status open_board(ls_trainer *trainer)
{
    char path[sizeof trainer->world.run_dir + 16];
    if (trainer->world.rank != 0 || trainer->world.run_dir[0] == '\0') {
        return LS_OK;
    }
    snprintf(path, sizeof path, "%s/tensorboard", trainer->world.run_dir);
    return ls_tensorboard_open(path, &trainer->board);
}

static ls_status take_pinned(void *context, int64_t bytes, void **out)
{
    const ls_device *device = context;
    return device->api->host_alloc(device->backend, bytes, "the loader's batches", out);
}

static void give_pinned(void *context, void *memory)
{
    const ls_device *device = context;
    device->api->host_free(device->backend, memory);
}

/* A file that counts epochs: where a run goes on shows when the length of an epoch is known. */
static ls_status skip_epochs(ls_trainer *trainer)
{
    if (trainer->resumed_epochs == 0) {
        return LS_OK;
    }
    if (trainer->steps_per_epoch == 0) {
        if (trainer->world.rank == 0) {
            ls_log_warn("--resume %s: epoch %lld of data without epochs: the run starts at step 1",
                        trainer->options.resume, (long long)trainer->resumed_epochs);
        }
        return LS_OK;
    }
    trainer->first_step = trainer->resumed_epochs * trainer->steps_per_epoch + 1;
    trainer->best.step = trainer->best.step > 0 ? trainer->first_step - 1 : 0;
    return LS_OK;
}

/* Where the run begins, and so where this rank's batches go on, may show only when the length of an
 * epoch is known. */
static ls_status place_loader(ls_trainer *trainer, ls_loader_options *options)
{
    int64_t first = ls_uneven_own(trainer, trainer->first_step - 1) + 1;
    first = LS_PLANT(resume_restarts_data, first, 1);
    if (first == options->first_step || trainer->options.resident > 0) {
        return LS_OK;
    }
    options->first_step = first;
    ls_loader_close(trainer->loader);
    trainer->loader = NULL;
    return ls_loader_open(options, &trainer->loader);
}

ls_status ls_setup_data(ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    ls_loader_memory pinned = {&trainer->device, take_pinned, give_pinned};
    int largest_batch = options->batch_size;
    for (int rank = 0; rank < trainer->world.world; rank++) {
        int batch = ls_options_batch(options, rank);
        largest_batch = batch > largest_batch ? batch : largest_batch;
    }
    ls_loader_options loader = {
        .data = options->data,
        .rank = LS_PLANT(same_data_everywhere, trainer->world.rank, 0),
        .world = trainer->world.world,
        .batch_size = options->batch_size * (trainer->team != NULL ? options->accumulate : 1),
        .largest_batch = largest_batch * (trainer->team != NULL ? options->accumulate : 1),
        .image_size = options->image_size,
        .num_classes = options->num_classes,
        .accumulate = trainer->team != NULL ? 1 : options->accumulate,
        .seed = options->seed,
        .workers = options->workers,
        /* the feed's slots take them, and the device normalises; examples have no feed */
        .bytes = trainer->device.api->batch_load != NULL && options->example == LS_EXAMPLE_NONE,
        .skips_bad = options->on_bad_image == LS_ON_BAD_IMAGE_SKIP,
        .no_pad = options->no_pad,
        .first_step = LS_PLANT(resume_restarts_data, trainer->first_step, 1),
        .memory = trainer->device.api->host_alloc != NULL ? &pinned : NULL,
    };
    if (options->resident > 0) {
        loader.first_step = 1; /* the same few batches, wherever the run begins */
    }
    int64_t most = 0;
    LS_TRY(ls_loader_open(&loader, &trainer->loader));
    LS_TRY(ls_uneven_plan(trainer, &most));
    LS_TRY(skip_epochs(trainer));
    LS_TRY(place_loader(trainer, &loader));
    LS_TRY(ls_uneven_open(trainer));
    LS_TRY(ls_schedule_check(&trainer->schedule, trainer->steps_per_epoch));
    LS_TRY(ls_evaluate_open(trainer, loader.memory, &trainer->evaluate));
    if (trainer->evaluate != NULL && options->model_parallel) {
        ls_log_error(
            "--model-parallel validates nothing; give --steps, or --data the folder train");
        return ls_setup_unsupported(trainer, "--model-parallel", "stages validate nothing");
    }
    int64_t by_epochs = options->epochs * trainer->steps_per_epoch;
    trainer->last_step = options->steps > 0 ? options->steps : by_epochs;
    if (by_epochs > 0 && by_epochs < trainer->last_step) {
        trainer->last_step = by_epochs;
    }
    if (most > 0 && most < trainer->last_step) {
        trainer->last_step = most;
    }
    LS_TRY(ls_mllog_run_open(trainer));
    /* only now: bad input of any kind leaves nothing behind */
    LS_TRY(ls_events_open(trainer->world.run_dir, trainer->world.rank, options->resume[0] != '\0',
                          &trainer->events));
    LS_TRY(write_start(trainer));
    LS_TRY(ls_journal_open(trainer));
    return open_board(trainer);
}

static void free_model(ls_trainer *model)
{
    ls_team_free(model->team);
    if (model->plan != NULL) {
        model->device.api->plan_destroy(model->plan);
    }
    ls_ddp_free(model->ddp);
    ls_memory_free(&model->memory);
    ls_model_free(&model->network);
    free(model->group);
}

void ls_setup_close(ls_trainer *trainer, bool failed)
{
    bool on_device = trainer->device.api != NULL && !trainer->device.info.host_memory;
    ls_tensorboard_close(trainer->board);
    ls_mllog_close(trainer->mllog);
    ls_join_close(trainer, failed); /* first: its threads still hold buckets after a failure, and a
                                       device that waits for a lost peer frees no memory */
    if (trainer->stuck || (failed && on_device)) {
        /* freeing device memory waits for all streams, and after a failure an engine's may never
         * end; the process is about to end without exit handlers */
        ls_events_close(trainer->events);
        return;
    }
    ls_evaluate_close(trainer->evaluate);
    ls_uneven_close(trainer);
    ls_join_release(trainer);
    if (trainer->loader != NULL) {
        ls_loader_close(trainer->loader);
    }
    for (ls_trainer *model = trainer->further, *next; model != NULL; model = next) {
        next = model->further;
        free_model(model);
        free(model);
    }
    free_model(trainer);
    ls_events_close(trainer->events);
    ls_device_close(&trainer->device);
}
