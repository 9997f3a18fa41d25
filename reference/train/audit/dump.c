#include "dump.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/data/loader.h"
#include "reference/model/model.h"
#include "reference/files/safetensors.h"
#include "reference/train/ways/team.h"

/* One ReLU or max-pool. */
typedef struct branch {
    ls_layer_kind kind;
    ls_layer_extent extent; /* of one image */
    int64_t bytes;          /* of one micro-step */
    char *data;             /* [accumulate][bytes] */
} branch;

struct ls_dump {
    const ls_trainer *trainer;
    int64_t step;
    ls_safetensors_writer *writer;
    float loss_scale, inv_loss_scale;
    bool stepped;    /* the step is over */
    bool light;      /* only what decides branches */
    float *input;    /* [accumulate][batch][3][size][size] */
    int64_t *target; /* [accumulate][batch] */
    float *logits;   /* [accumulate][batch][classes] */
    float *scratch;  /* [largest tensor] */
    branch *branch;  /* [branch_count] */
    ls_step_clock *clock;
    ls_step_observer observer;
};

bool ls_dump_wants(const ls_trainer *trainer, int64_t step)
{
    return (trainer->world.rank == 0 || trainer->options.dump_ranks != LS_DUMP_RANK_0) &&
           ls_options_listed(&trainer->options.dump_steps, step, trainer->world.rank);
}

static void free_dump(ls_dump *dump)
{
    for (int k = 0; k < dump->trainer->network.branch_count; k++) {
        free(dump->branch[k].data);
    }
    free(dump->branch);
    free(dump->input);
    free(dump->target);
    free(dump->logits);
    free(dump->scratch);
    free(dump);
}

void ls_dump_discard(ls_dump *dump)
{
    if (dump == NULL) {
        return;
    }
    ls_safetensors_discard(dump->writer);
    free_dump(dump);
}

static void size_branches(ls_dump *dump)
{
    const ls_trainer *trainer = dump->trainer;
    const ls_network *network = &trainer->network;
    size_t parts = (size_t)trainer->options.accumulate;
    ls_layer_extent *extent = ls_list_make((size_t)network->layer_count, sizeof *extent);
    dump->branch = ls_list_make((size_t)network->branch_count + 1, sizeof *dump->branch);
    ls_model_extents(network, trainer->options.image_size, extent);
    for (int l = 0; l < network->layer_count; l++) {
        const ls_layer *layer = &network->layer[l];
        if (layer->branch < 0) {
            continue;
        }
        branch *branch = &dump->branch[layer->branch];
        int64_t count = (int64_t)trainer->options.batch_size * extent[l].channels *
                        extent[l].height * extent[l].width;
        branch->kind = layer->kind;
        branch->extent = extent[l];
        branch->bytes =
            layer->kind == LS_LAYER_RELU ? (count + 7) / 8 : count * (int64_t)sizeof(int32_t);
        branch->data = ls_list_make(parts, (size_t)branch->bytes);
    }
    free(extent);
}

static void allocate(ls_dump *dump)
{
    const ls_options *options = &dump->trainer->options;
    size_t images = (size_t)options->accumulate * (size_t)options->batch_size;
    size_t pixels = 3 * (size_t)options->image_size * (size_t)options->image_size;
    dump->input = ls_list_make(images * pixels, sizeof *dump->input);
    dump->target = ls_list_make(images, sizeof *dump->target);
    dump->logits = ls_list_make(images * (size_t)options->num_classes, sizeof *dump->logits);
    dump->scratch = ls_list_make((size_t)dump->trainer->memory.largest, sizeof *dump->scratch);
    size_branches(dump);
}

/* Adds a device tensor in its own type. After the step nothing changes before the file is written,
 * so that what the host can read needs no copy. */
static ls_status add_tensor(ls_dump *dump, const char *name, const ls_tensor *tensor,
                            const ls_shape *shape)
{
    const ls_device *device = &dump->trainer->device;
    if (dump->stepped && device->info.host_memory) {
        ls_safetensors_add(dump->writer, name, tensor->dtype, shape, tensor->data);
        return LS_OK;
    }
    LS_TRY(ls_device_read(device, dump->scratch, tensor->data, (int64_t)ls_tensor_bytes(tensor)));
    return ls_safetensors_add_copy(dump->writer, name, tensor->dtype, shape, dump->scratch);
}

/* Adds one tensor per parameter as "<prefix>/<name><suffix>"; entries without data are left out. */
static ls_status add_params(ls_dump *dump, const char *prefix, const ls_tensor *list,
                            const char *suffix)
{
    const ls_network *network = &dump->trainer->network;
    for (int i = 0; list != NULL && i < network->param_count; i++) {
        LS_TEXT(name, 160, "%s/%s%s", prefix, network->param[i].name, suffix);
        if (list[i].data != NULL) {
            LS_TRY(add_tensor(dump, name, &list[i], &network->param[i].shape));
        }
    }
    return LS_OK;
}

static ls_status add_moments(ls_dump *dump, const char *prefix)
{
    const ls_memory *memory = &dump->trainer->memory;
    for (int m = 0; m < memory->moment_count; m++) {
        LS_TEXT(suffix, 40, "/%s", ls_optimizers_moment_name(dump->trainer->options.optimizer, m));
        LS_TRY(add_params(dump, prefix, memory->moment[m], suffix));
    }
    return LS_OK;
}

static ls_status add_buffers(ls_dump *dump, const char *prefix)
{
    const ls_memory *memory = &dump->trainer->memory;
    for (int i = 0; i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        LS_TEXT(name, 160, "%s/%s", prefix, buffer->name);
        if (buffer->role == LS_BUFFER_BATCHES_TRACKED) {
            ls_shape scalar = {0};
            LS_TRY(ls_safetensors_add_copy(dump->writer, name, LS_I64, &scalar, memory->tracked));
        } else {
            ls_shape shape = {.rank = 1, .dim = {buffer->count}};
            LS_TRY(add_tensor(dump, name, &memory->buffer[i], &shape));
        }
    }
    return LS_OK;
}

static ls_status make_folder(const ls_trainer *trainer, int64_t step, char *path, size_t path_bytes)
{
    const char *run_dir = trainer->world.run_dir, *model = trainer->model;
    int length = snprintf(path, path_bytes, "%s/dump%s%s", run_dir, model != NULL ? "/" : "",
                          model != NULL ? model : "");
    if (length >= (int)path_bytes) {
        return ls_log_fail(LS_ERR_INFRA, "path too long: %s/dump", run_dir);
    }
    LS_TRY(ls_path_make_folder(path));
    snprintf(path + length, path_bytes - (size_t)length, "/step%06lld.rank%d.safetensors",
             (long long)step, trainer->world.rank);
    return LS_OK;
}

/* ---- in a step ------------------------------------------------------------------------------- */

static ls_status take_batch(ls_dump *dump, int micro_step, const ls_loader_batch *batch)
{
    const ls_options *options = &dump->trainer->options;
    bool team = dump->trainer->team != NULL; /* it has all parts in one batch */
    size_t images = (size_t)options->batch_size * (team ? (size_t)options->accumulate : 1);
    LS_ASSERT(batch->images == (int)images);
    micro_step = team ? 0 : micro_step;
    size_t values = images * 3 * (size_t)options->image_size * (size_t)options->image_size;
    ls_loader_floats(batch, options->image_size, dump->input + (size_t)micro_step * values);
    memcpy(dump->target + (size_t)micro_step * images, batch->target,
           images * sizeof *dump->target);
    return LS_OK;
}

static ls_status export_part(const ls_trainer *trainer, int micro_step, ls_export what, int index,
                             void *host, int64_t bytes)
{
    return trainer->team != NULL
               ? ls_team_export(trainer->team, micro_step, what, index, host, bytes)
               : trainer->device.api->plan_export(trainer->plan, trainer->device.stream, what,
                                                  index, host, bytes);
}

/* After forward of a micro-step: logits and branches. */
static ls_status take_forward(ls_dump *dump, int micro_step)
{
    const ls_trainer *trainer = dump->trainer;
    int64_t values = (int64_t)trainer->options.batch_size * trainer->options.num_classes;
    LS_TRY(export_part(trainer, micro_step, LS_EXPORT_LOGITS, 0, dump->logits + micro_step * values,
                       values * (int64_t)sizeof *dump->logits));
    for (int k = 0; k < trainer->network.branch_count; k++) {
        const branch *branch = &dump->branch[k];
        ls_export what = branch->kind == LS_LAYER_RELU ? LS_EXPORT_RELU_BITS : LS_EXPORT_POOL_INDEX;
        LS_TRY(export_part(trainer, micro_step, what, k, branch->data + micro_step * branch->bytes,
                           branch->bytes));
    }
    return LS_OK;
}

/* memory->reduced[param] is complete and not reduced yet. */
static ls_status take_local(ls_dump *dump, int param)
{
    if (dump->light) {
        return LS_OK;
    }
    const ls_memory *memory = &dump->trainer->memory;
    const ls_param *about = &dump->trainer->network.param[param];
    LS_TEXT(name, 160, "local/%s", about->name);
    LS_TRY(ls_device_read_f32(&dump->trainer->device, &memory->reduced[param], dump->scratch));
    for (int64_t i = 0; i < memory->reduced[param].count; i++) {
        dump->scratch[i] *= dump->inv_loss_scale;
    }
    return ls_safetensors_add_copy(dump->writer, name, LS_F32, &about->shape, dump->scratch);
}

static bool clips(const ls_dump *dump)
{
    const ls_options *options = &dump->trainer->options;
    return options->clip_grad_norm > 0 || options->clip_grad_value > 0;
}

/* Gradients that are about to be clipped: those of the dump are the ones before. */
static ls_status take_gradients(ls_dump *dump)
{
    return clips(dump) && !dump->light
               ? add_params(dump, "grad", dump->trainer->memory.unscaled, "")
               : LS_OK;
}

static ls_status observe(void *context, const ls_step_event *event)
{
    ls_dump *dump = context;
    if (event->at != LS_STEP_BATCH && event->at != LS_STEP_FORWARD_END &&
        event->at != LS_STEP_GRADIENT_STAGED && event->at != LS_STEP_CLIP) {
        return LS_OK;
    }
    if (event->at == LS_STEP_GRADIENT_STAGED &&
        event->micro_step < dump->trainer->options.accumulate - 1) {
        return LS_OK; /* not the step's last reduction */
    }
    int64_t since_ns = ls_step_clock_stop(dump->clock);
    if (event->at == LS_STEP_FORWARD_END && dump->trainer->team != NULL) {
        for (int part = 0; part < event->micro_step; part++) {
            LS_TRY(take_forward(dump, part));
        }
    }
    LS_TRY(event->at == LS_STEP_BATCH         ? take_batch(dump, event->micro_step, event->batch)
           : event->at == LS_STEP_FORWARD_END ? take_forward(dump, event->micro_step)
           : event->at == LS_STEP_CLIP        ? take_gradients(dump)
                                              : take_local(dump, event->index));
    ls_step_clock_resume(dump->clock, since_ns);
    return LS_OK;
}

ls_status ls_dump_begin(const ls_trainer *trainer, int64_t step, ls_step_clock *clock,
                        ls_step_observers *observers, ls_dump **out)
{
    char path[PATH_MAX];
    ls_status status;
    ls_step_state state;
    LS_TRY(make_folder(trainer, step, path, sizeof path));
    ls_dump *dump = ls_list_make(1, sizeof *dump);
    dump->trainer = trainer;
    dump->step = step;
    dump->clock = clock;
    dump->observer = (ls_step_observer){.context = dump, .on = observe};
    dump->light = trainer->world.rank != 0 && trainer->options.dump_ranks == LS_DUMP_BRANCHES;
    allocate(dump);
    status = ls_safetensors_create(path, &dump->writer);
    LS_THEN(status,
            ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    if (!dump->light) {
        LS_THEN(status, add_params(dump, "param", trainer->memory.param, ""));
        LS_THEN(status, add_params(dump, "master", trainer->memory.master, ""));
        LS_THEN(status, add_moments(dump, "state"));
        LS_THEN(status, add_buffers(dump, "last_buffer"));
    }
    if (status != LS_OK) {
        ls_dump_discard(dump);
        return status;
    }
    dump->loss_scale = state.loss_scale;
    dump->inv_loss_scale = state.inv_loss_scale;
    ls_step_observers_add(observers, &dump->observer);
    *out = dump;
    return LS_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* [A, dims...] where there is accumulation, else [dims...]. */
static ls_shape with_micro_steps(const ls_dump *dump, int rank, const int64_t *dim)
{
    ls_shape shape = {0};
    if (dump->trainer->options.accumulate > 1) {
        shape.dim[shape.rank++] = dump->trainer->options.accumulate;
    }
    for (int i = 0; i < rank; i++) {
        shape.dim[shape.rank++] = dim[i];
    }
    return shape;
}

static void add_batches(ls_dump *dump)
{
    const ls_options *options = &dump->trainer->options;
    int64_t batch = options->batch_size, size = options->image_size;
    ls_shape input = with_micro_steps(dump, 4, (const int64_t[]){batch, 3, size, size});
    ls_shape target = with_micro_steps(dump, 1, &batch);
    ls_shape logits = with_micro_steps(dump, 2, (const int64_t[]){batch, options->num_classes});
    ls_safetensors_add(dump->writer, "input", LS_F32, &input, dump->input);
    ls_safetensors_add(dump->writer, "target", LS_I64, &target, dump->target);
    ls_safetensors_add(dump->writer, "logits", LS_F32, &logits, dump->logits);
    for (int k = 0; k < dump->trainer->network.branch_count; k++) {
        const branch *branch = &dump->branch[k];
        bool relu = branch->kind == LS_LAYER_RELU;
        LS_TEXT(name, 32, "branch/%03d", k);
        ls_shape shape =
            relu ? with_micro_steps(dump, 1, &branch->bytes)
                 : with_micro_steps(dump, 4,
                                    (const int64_t[]){batch, branch->extent.channels,
                                                      branch->extent.height, branch->extent.width});
        ls_safetensors_add(dump->writer, name, relu ? LS_U8 : LS_I32, &shape, branch->data);
    }
}

static void add_metadata(ls_dump *dump, const ls_dump_result *result)
{
    const ls_trainer *trainer = dump->trainer;
    const ls_options *options = &trainer->options;
    ls_safetensors_writer *writer = dump->writer;
    ls_safetensors_metadata(writer, "step", "%lld", (long long)dump->step);
    ls_safetensors_metadata(writer, "rank", "%d", trainer->world.rank);
    ls_safetensors_metadata(writer, "world_size", "%d", trainer->world.world);
    ls_safetensors_metadata(writer, "arch", "%s", options->arch);
    ls_safetensors_metadata(writer, "num_classes", "%d", options->num_classes);
    ls_safetensors_metadata(writer, "opt_level", "%s", ls_options_level_name(options->opt_level));
    ls_safetensors_metadata(writer, "half", "%s", ls_dtype_label(options->half));
    ls_safetensors_metadata(writer, "loss_scale", "%.9g", (double)dump->loss_scale);
    ls_safetensors_metadata(writer, "loss_scale_next", "%.9g", (double)result->after.loss_scale);
    ls_safetensors_metadata(writer, "skipped", "%s", result->after.skipped != 0 ? "true" : "false");
    ls_safetensors_metadata(writer, "lr", "%.9g", (double)result->lr);
    ls_safetensors_metadata(writer, "optimizer", "%s", ls_optimizers_name(options->optimizer));
    ls_safetensors_metadata(writer, "label_smoothing", "%.17g", options->label_smoothing);
    ls_safetensors_metadata(writer, "momentum", "%.9g", options->momentum);
    ls_safetensors_metadata(writer, "weight_decay", "%.9g", options->weight_decay);
    ls_safetensors_metadata(writer, "nesterov", "%s", options->nesterov ? "true" : "false");
    ls_safetensors_metadata(writer, "betas", "%.17g,%.17g", options->beta1, options->beta2);
    ls_safetensors_metadata(writer, "eps", "%.9g", options->epsilon);
    ls_safetensors_metadata(writer, "max_grad_norm", "%.9g", options->max_grad_norm);
    ls_safetensors_metadata(writer, "trust", "%.9g", options->trust);
    ls_safetensors_metadata(writer, "larc_clip", "%s", options->larc_clip ? "true" : "false");
    ls_safetensors_metadata(writer, "clip_grad_norm", "%.17g", options->clip_grad_norm);
    ls_safetensors_metadata(writer, "clip_grad_value", "%.17g", options->clip_grad_value);
    ls_safetensors_metadata(writer, "accumulate", "%d", options->accumulate);
    if (options->data_parallel > 1) {
        ls_safetensors_metadata(writer, "replicas", "%d", options->data_parallel);
    }
    ls_safetensors_metadata(writer, "optimizer_steps", "%lld", (long long)result->after.step_count);
    ls_safetensors_metadata(writer, "dialect", "%s", ls_dialect_name(options->dialect));
    ls_safetensors_metadata(writer, "average", "%s",
                            ls_dialect_average_name(trainer->rules.average));
    ls_safetensors_metadata(writer, "predivide", "%.9g", options->predivide);
    ls_safetensors_metadata(writer, "sync_bn", "%s", trainer->norm_comm != NULL ? "true" : "false");
    ls_safetensors_metadata(writer, "sync_bn_group", "%d",
                            trainer->norm_comm != NULL ? trainer->norm_sync.group_size : 1);
    ls_safetensors_metadata(writer, "reduced_type", "%s",
                            ls_dtype_label(trainer->memory.reduced[0].dtype));
    ls_plan_info plan;
    trainer->device.api->plan_info(trainer->plan, &plan);
    const char *applied = LS_PLANT(applied_claimed, plan.applied, "layer1.0.bn1");
    if (applied != NULL) {
        ls_safetensors_metadata(writer, "applied", "%s", applied);
    }
}

/* Rates and decays of parameters that are not those of all. */
static void add_group_metadata(ls_dump *dump, const ls_dump_result *result)
{
    const ls_trainer *trainer = dump->trainer;
    const ls_optimizer_config *config = &trainer->optimizer;
    for (int i = 0; trainer->group != NULL && i < trainer->network.param_count; i++) {
        const ls_optimizer_group *group = &config->group[trainer->group[i]];
        LS_TEXT(decay, 96, "weight_decay/%s", trainer->network.param[i].name);
        LS_TEXT(lr, 96, "lr/%s", trainer->network.param[i].name);
        if (trainer->group[i] > 0) {
            ls_safetensors_metadata(dump->writer, decay, "%.17g", group->weight_decay);
            ls_safetensors_metadata(dump->writer, lr, "%.17g",
                                    (double)result->lr * group->lr_factor);
        }
    }
}

ls_status ls_dump_finish(ls_dump *dump, const ls_dump_result *result)
{
    const ls_memory *memory = &dump->trainer->memory;
    ls_shape scalar = {0};
    dump->stepped = true;
    ls_status status = dump->trainer->device.api->stream_wait(dump->trainer->device.stream);
    add_batches(dump);
    LS_THEN(status, ls_safetensors_add_copy(dump->writer, "loss", LS_F32, &scalar, &result->loss));
    if (!dump->light) {
        LS_THEN(status, clips(dump) ? LS_OK : add_params(dump, "grad", memory->unscaled, ""));
        LS_THEN(status, add_buffers(dump, "buffer"));
        LS_THEN(status, add_params(dump, "next", memory->value, ""));
        LS_THEN(status, add_moments(dump, "next_state"));
    }
    if (status != LS_OK) {
        ls_dump_discard(dump);
        return status;
    }
    add_metadata(dump, result);
    add_group_metadata(dump, result);
    status = ls_safetensors_finish(dump->writer);
    free_dump(dump);
    return status;
}
