#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/digest.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "reference/train/evaluate.h"
#include "reference/train/fault.h"
#include "reference/train/ways/join.h"
#include "reference/train/journal.h"
#include "reference/train/uneven.h"

#define VERSION "1"

/* ---- the tensors of a run, for saving, checking and loading ---------------------------------- */

typedef ls_status visit_tensor(void *context, const char *name, const ls_tensor *tensor,
                               const ls_shape *shape);

static ls_status each_param(const ls_trainer *trainer, visit_tensor *visit, void *context)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        LS_TEXT(name, 160, "param/%s", param->name);
        LS_TRY(visit(context, name, &memory->param[i], &param->shape));
        if (memory->master != NULL && memory->master[i].data != NULL) {
            snprintf(name, sizeof name, "master/%s", param->name);
            LS_TRY(visit(context, name, &memory->master[i], &param->shape));
        }
        for (int m = 0; m < memory->moment_count; m++) {
            snprintf(name, sizeof name, "state/%s/%s", param->name,
                     ls_optimizers_moment_name(trainer->options.optimizer, m));
            LS_TRY(visit(context, name, &memory->moment[m][i], &param->shape));
        }
    }
    return LS_OK;
}

/* Of one rank: "buffer/<name>" of rank 0, else "rank3/buffer/<name>". */
static ls_status each_buffer(const ls_trainer *trainer, int rank, visit_tensor *visit,
                             void *context)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        bool counter = buffer->role == LS_BUFFER_BATCHES_TRACKED;
        ls_shape shape = {.rank = counter ? 0 : 1, .dim = {counter ? 0 : buffer->count}};
        ls_tensor tensor = counter ? (ls_tensor){memory->tracked, LS_I64, 1} : memory->buffer[i];
        char of_rank[24] = "", name[160];
        if (rank > 0) {
            snprintf(of_rank, sizeof of_rank, "rank%d/", rank);
        }
        snprintf(name, sizeof name, "%sbuffer/%s", of_rank, buffer->name);
        LS_TRY(visit(context, name, &tensor, &shape));
    }
    return LS_OK;
}

static const struct {
    const char *name;
    ls_dtype dtype;
    size_t offset; /* in ls_step_state */
} SCALARS[] = {
    {"scaler/loss_scale", LS_F32, offsetof(ls_step_state, loss_scale)},
    {"scaler/growth_count", LS_I32, offsetof(ls_step_state, growth_count)},
    {"scaler/overflow_streak", LS_I32, offsetof(ls_step_state, overflow_streak)},
    {"optimizer/step_count", LS_I64, offsetof(ls_step_state, step_count)},
};
enum {
    SCALAR_COUNT = sizeof SCALARS / sizeof SCALARS[0],
    EPOCH_COUNTS = 4, /* images, top1, top5, bad */
};

/* ---- saving ---------------------------------------------------------------------------------- */

typedef struct saver {
    ls_trainer *trainer;
    const char *path;
    ls_safetensors_writer *writer;
    void *scratch;       /* [largest parameter] */
    const char *buffers; /* of the rank that is saved, as this rank's lie in its own block */
    int64_t tracked;     /* batches that it has seen */
    int spoilt;          /* running statistics that are not finite */
} saver;

/* Borrowed where the host can read the device, else copied. */
static ls_status save_param(void *context, const char *name, const ls_tensor *tensor,
                            const ls_shape *shape)
{
    const saver *to = context;
    const ls_device *device = &to->trainer->device;
    const void *host = tensor->data;
    if (!device->info.host_memory) {
        LS_TRY(ls_device_read(device, to->scratch, tensor->data, (int64_t)ls_tensor_bytes(tensor)));
        host = to->scratch;
    }
    int64_t found = ls_dtype_non_finite(tensor->dtype, host, tensor->count);
    if (found >= 0) { /* every step has looked for these: the memory was changed since */
        return ls_log_fail(LS_ERR_NON_FINITE, "%s: not saved: %s is not finite at element %lld",
                           to->path, name, (long long)found);
    }
    if (device->info.host_memory) {
        ls_safetensors_add(to->writer, name, tensor->dtype, shape, host);
        return LS_OK;
    }
    return ls_safetensors_add_copy(to->writer, name, tensor->dtype, shape, host);
}

static ls_status save_buffer(void *context, const char *name, const ls_tensor *tensor,
                             const ls_shape *shape)
{
    saver *to = context;
    const ls_memory *memory = &to->trainer->memory;
    const void *data =
        tensor->data == memory->tracked
            ? (const void *)&to->tracked
            : to->buffers + ((char *)tensor->data - (char *)memory->block[LS_MEMORY_BUFFER]);
    int64_t found = ls_dtype_non_finite(tensor->dtype, data, tensor->count);
    if (found >= 0 && to->spoilt++ == 0) { /* of a forward pass that overflowed: training goes on */
        ls_log_warn("%s: %s is not finite at element %lld: evaluation gives NaN", to->path, name,
                    (long long)found);
    }
    return ls_safetensors_add_copy(to->writer, name, tensor->dtype, shape, data);
}

static bool has_own_norm(const ls_trainer *trainer)
{
    return trainer->engine != NULL && trainer->world.world > 1 &&
           (trainer->norm_comm == NULL || trainer->options.sync_bn_group > 0);
}

/* Every rank's block of buffers, at rank 0, in host memory: malloc'ed [world or 1][bytes]. */
static ls_status gather_buffers(ls_trainer *trainer, char **out)
{
    const ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    int64_t bytes = memory->bytes[LS_MEMORY_BUFFER];
    bool root = trainer->world.rank == 0;
    bool gathers = has_own_norm(trainer);
    int64_t total = bytes * (gathers ? trainer->world.world : 1);
    void *all = memory->block[LS_MEMORY_BUFFER];
    char *host = NULL;
    ls_status status = LS_OK;
    *out = NULL;
    if (gathers) {
        all = NULL;
        if (root) {
            LS_TRY(device->api->memory_alloc(device->backend, total, "gathered buffers", &all));
        }
        ls_comm_op op = {.kind = LS_COMM_GATHER,
                         .buffer = all,
                         .input = memory->block[LS_MEMORY_BUFFER],
                         .count = bytes,
                         .dtype = LS_U8,
                         .root = 0,
                         .label = "buffers of all ranks"};
        status = ls_comm_run(trainer->engine, trainer->comm, &op, device->stream);
    }
    if (root && status == LS_OK) {
        host = ls_list_make((size_t)total + 1, 1);
        status = total > 0 ? ls_device_read(device, host, all, total) : LS_OK;
    }
    if (gathers && all != NULL) {
        device->api->memory_free(device->backend, all);
    }
    if (status != LS_OK) {
        free(host);
        return status;
    }
    *out = host;
    return LS_OK;
}

static ls_status add_state(const saver *to, int64_t step)
{
    const ls_device *device = &to->trainer->device;
    ls_shape scalar = {0};
    ls_step_state state;
    LS_TRY(ls_device_read(device, &state, to->trainer->memory.state, (int64_t)sizeof state));
    for (int i = 0; i < SCALAR_COUNT; i++) {
        LS_TRY(ls_safetensors_add_copy(to->writer, SCALARS[i].name, SCALARS[i].dtype, &scalar,
                                       (const char *)&state + SCALARS[i].offset));
    }
    return ls_safetensors_add_copy(to->writer, "data/step", LS_I64, &scalar, &step);
}

/* What the event of an epoch that has begun will say of the steps so far. */
static ls_status add_epoch(const ls_trainer *trainer, ls_safetensors_writer *writer,
                           const ls_events_score *sums)
{
    int world = trainer->world.world;
    ls_shape counts = {.rank = 2, .dim = {world, EPOCH_COUNTS}},
             losses = {.rank = 1, .dim = {world}};
    int64_t *count = ls_list_make((size_t)world * EPOCH_COUNTS, sizeof *count);
    double *loss = ls_list_make((size_t)world, sizeof *loss);
    for (int rank = 0; rank < world; rank++) {
        const int64_t of_rank[EPOCH_COUNTS] = {sums[rank].images, sums[rank].top1, sums[rank].top5,
                                               sums[rank].bad};
        memcpy(count + rank * EPOCH_COUNTS, of_rank, sizeof of_rank);
        loss[rank] = sums[rank].loss;
    }
    ls_status status = ls_safetensors_add_copy(writer, "epoch/counts", LS_I64, &counts, count);
    LS_THEN(status, ls_safetensors_add_copy(writer, "epoch/loss", LS_F64, &losses, loss));
    free(count);
    free(loss);
    return status;
}

static ls_status add_layout(ls_trainer *trainer, ls_safetensors_writer *writer)
{
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    int length = ls_buckets_vector_length(trainer->memory.param_count);
    int32_t *vector = ls_list_make((size_t)length, sizeof *vector);
    ls_buckets_to_vector(ls_ddp_layout(trainer->ddp), vector);
    ls_shape shape = {.rank = 1, .dim = {length}};
    ls_status status = ls_safetensors_add_copy(writer, "ddp/layout", LS_I32, &shape, vector);
    free(vector);
    return status;
}

/* How products of half type are computed. */
static const char *half_math(const ls_trainer *trainer)
{
    const ls_backend_info *info = &trainer->device.info;
    return ls_device_emulates(info, trainer->precision.half) ? "emulated in fp32"
           : info->half_units[0] != '\0'                     ? info->half_units
                                                             : "on a GPU";
}

/* Of the activations, "" where there is one. */
static const char *layout_of(const ls_trainer *trainer)
{
    ls_plan_info info = {0};
    if (trainer->plan != NULL) {
        trainer->device.api->plan_info(trainer->plan, &info);
    }
    return info.layout != NULL ? info.layout : "";
}

static ls_status add_metadata(const ls_trainer *trainer, ls_safetensors_writer *writer,
                              int64_t step)
{
    const ls_options *options = &trainer->options;
    const ls_scaler_config *scaler = &trainer->precision.scaler;
    cJSON *json = ls_options_json(options);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    LS_MEMORY(text != NULL);
    ls_safetensors_metadata(writer, "format", LS_CHECKPOINT_FORMAT);
    ls_safetensors_metadata(writer, "version", VERSION);
    ls_safetensors_metadata(writer, "arch", "%s", options->arch);
    ls_safetensors_metadata(writer, "num_classes", "%d", options->num_classes);
    ls_safetensors_metadata(writer, "opt_level", "%s", ls_options_level_name(options->opt_level));
    ls_safetensors_metadata(writer, "half", "%s", ls_dtype_label(options->half));
    if (trainer->precision.activation != LS_F32) {
        ls_safetensors_metadata(writer, "half_math", "%s", half_math(trainer));
    }
    if (layout_of(trainer)[0] != '\0') {
        ls_safetensors_metadata(writer, "layout", "%s", layout_of(trainer));
    }
    ls_safetensors_metadata(writer, "optimizer", "%s", ls_optimizers_name(options->optimizer));
    ls_safetensors_metadata(writer, "world_size", "%d", trainer->world.world);
    ls_safetensors_metadata(writer, "step", "%lld", (long long)step);
    ls_safetensors_metadata(writer, "schedule", "%s", options->schedule);
    ls_safetensors_metadata(writer, "seed", "%llu", (unsigned long long)options->seed);
    if (trainer->steps_per_epoch > 0) {
        int64_t epoch = step / trainer->steps_per_epoch;
        ls_safetensors_metadata(writer, "epoch", "%lld", (long long)epoch);
        ls_safetensors_metadata(writer, "steps_per_epoch", "%lld",
                                (long long)trainer->steps_per_epoch);
    }
    if (trainer->best.step > 0) {
        ls_safetensors_metadata(writer, "best_step", "%lld", (long long)trainer->best.step);
        ls_safetensors_metadata(writer, "best_images", "%lld", (long long)trainer->best.images);
        ls_safetensors_metadata(writer, "best_top1", "%lld", (long long)trainer->best.top1);
    }
    ls_safetensors_metadata(writer, "scaler", "%s", scaler->dynamic ? "dynamic" : "static");
    ls_safetensors_metadata(writer, "min_loss_scale", "%.9g", (double)scaler->min_scale);
    ls_safetensors_metadata(writer, "max_loss_scale", "%.9g", (double)scaler->max_scale);
    ls_safetensors_metadata(writer, "growth_interval", "%d", (int)scaler->growth_interval);
    ls_safetensors_metadata(writer, "settled", "%s",
                            trainer->ddp == NULL || ls_ddp_settled(trainer->ddp) ? "true"
                                                                                 : "false");
    ls_safetensors_metadata(writer, "bucket_rule", "%016llx",
                            (unsigned long long)ls_agree_bucket_rule(trainer));
    ls_safetensors_metadata(writer, "options", "%s", text);
    ls_safetensors_metadata(
        writer, "options_digest", "%016llx",
        (unsigned long long)ls_digest_update(LS_DIGEST_START, text, strlen(text)));
    free(text);
    return LS_OK;
}

static ls_status add_all(saver *to, int64_t step, const char *buffers, const ls_events_score *sums)
{
    ls_trainer *trainer = to->trainer;
    const ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    int ranks = has_own_norm(trainer) ? trainer->world.world : 1;
    LS_TRY(device->api->stream_wait(device->stream));
    for (int i = 0; LS_PLANT(checkpoint_rounds_masters, 0, 1) && i < memory->param_count; i++) {
        LS_TRY(memory->master == NULL || memory->master[i].data == NULL
                   ? LS_OK
                   : device->api->convert(device->backend, device->stream, memory->master[i],
                                          memory->param[i], 1.0f));
    }
    LS_TRY(add_metadata(trainer, to->writer, step));
    LS_TRY(each_param(trainer, save_param, to));
    LS_TRY(add_state(to, step));
    LS_TRY(add_layout(trainer, to->writer));
    LS_TRY(add_epoch(trainer, to->writer, sums));
    for (int rank = 0; rank < ranks; rank++) {
        to->buffers = buffers + rank * memory->bytes[LS_MEMORY_BUFFER];
        to->tracked = ls_uneven_tracked(trainer, rank);
        LS_TRY(each_buffer(trainer, rank, save_buffer, to));
    }
    return LS_OK;
}

static ls_status write_file(ls_trainer *trainer, int64_t step, const char *path,
                            const char *buffers, const ls_events_score *sums)
{
    saver to = {.trainer = trainer, .path = path};
    to.scratch = ls_list_make((size_t)trainer->memory.largest, sizeof(float));
    ls_status status = ls_safetensors_create(path, &to.writer);
    if (status == LS_OK) {
        ls_safetensors_lasting(to.writer);
        status = add_all(&to, step, buffers, sums);
        if (status == LS_OK) {
            ls_fault_point(trainer, step, LS_FAULT_SAVE);
            status = ls_safetensors_finish(to.writer);
        } else {
            ls_safetensors_discard(to.writer);
        }
    }
    free(to.scratch);
    return status;
}

ls_status ls_checkpoint_save(ls_trainer *trainer, int64_t step, const char *path)
{
    char *buffers = NULL;
    ls_events_score *sums = ls_list_make((size_t)trainer->world.world, sizeof *sums);
    ls_status status = LS_OK;
    if (trainer->steps_per_epoch > 0) { /* other data have no epochs */
        status = ls_join_gather(trainer, "sums of an epoch", &trainer->epoch, (int64_t)sizeof *sums,
                                sums);
    }
    LS_THEN(status, gather_buffers(trainer, &buffers));
    LS_THEN(status, ls_uneven_gather_tracked(trainer));
    if (status == LS_OK && trainer->world.rank == 0) {
        status = write_file(trainer, step, path, buffers, sums);
    } else if (status == LS_OK) {
        ls_fault_point(trainer, step, LS_FAULT_SAVE);
    }
    LS_THEN(status, ls_journal_saved(trainer, step, path));
    free(buffers);
    free(sums);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

static const char *text_of(const ls_safetensors *file, const char *name)
{
    return ls_safetensors_metadata_of(file, name, "");
}

typedef struct source {
    ls_safetensors *file;
    ls_trainer *trainer;
    bool finite; /* what is checked must be */
} source;

static ls_status check_tensor(void *context, const char *name, const ls_tensor *tensor,
                              const ls_shape *shape)
{
    const source *from = context;
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(ls_safetensors_require(from->file, name, tensor->dtype, false, shape, &entry));
    return from->finite ? ls_safetensors_require_finite(from->file, entry) : LS_OK;
}

static ls_status load_tensor(void *context, const char *name, const ls_tensor *tensor,
                             const ls_shape *shape)
{
    const source *from = context;
    const ls_device *device = &from->trainer->device;
    const ls_safetensors_entry *entry = NULL;
    if ((LS_PLANT(resume_no_masters, false, true) && strncmp(name, "master/", 7) == 0) ||
        (LS_PLANT(resume_no_momentum, false, true) && strncmp(name, "state/", 6) == 0)) {
        return LS_OK;
    }
    LS_TRY(ls_safetensors_require(from->file, name, tensor->dtype, false, shape, &entry));
    if (tensor->data == from->trainer->memory.tracked) {
        memcpy(tensor->data, entry->data, (size_t)entry->bytes);
        return LS_OK;
    }
    LS_TRY(device->api->copy_in(device->backend, device->stream, tensor->data, entry->data,
                                entry->bytes));
    return device->api->stream_wait(device->stream);
}

static ls_status check_metadata(const ls_safetensors *file, const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    const char *format = text_of(file, "format");
    LS_REFUSE_IF(strcmp(format, LS_CHECKPOINT_FORMAT) != 0,
                 "--resume %s: its format is '%s', not " LS_CHECKPOINT_FORMAT
                 "; --init starts from a dump or plain weights",
                 ls_safetensors_path(file), format);
    LS_TRY(ls_safetensors_require_metadata(file, "version", VERSION));
    LS_TRY(ls_safetensors_require_metadata(file, "arch", "%s", options->arch));
    LS_TRY(ls_safetensors_require_metadata(file, "num_classes", "%d", options->num_classes));
    LS_TRY(ls_safetensors_require_metadata(file, "opt_level", "%s",
                                           ls_options_level_name(options->opt_level)));
    LS_TRY(ls_safetensors_require_metadata(file, "half", "%s", ls_dtype_label(options->half)));
    LS_TRY(ls_safetensors_require_metadata(file, "optimizer", "%s",
                                           ls_optimizers_name(options->optimizer)));
    return ls_safetensors_require_metadata(
        file, "scaler", "%s", trainer->precision.scaler.dynamic ? "dynamic" : "static");
}

/* Warns of each setting that differs, other than those that may. */
static void warn_differences(const ls_safetensors *file, const ls_trainer *trainer)
{
    cJSON *theirs = cJSON_Parse(text_of(file, "options"));
    cJSON *ours = ls_options_json(&trainer->options);
    for (int i = 0; i < LS_OPTIONS_ROWS; i++) {
        const char *name = ls_options_table[i].name;
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(theirs, name);
        const cJSON *mine = cJSON_GetObjectItemCaseSensitive(ours, name);
        if (ls_options_table[i].differs != LS_OPTIONS_EQUAL || item == NULL || mine == NULL) {
            continue;
        }
        char *was = cJSON_PrintUnformatted(item), *is = cJSON_PrintUnformatted(mine);
        if (was != NULL && is != NULL && strcmp(was, is) != 0) {
            ls_log_warn("%s: --%s was %s, now %s", ls_safetensors_path(file), name, was, is);
        }
        free(was);
        free(is);
    }
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
}

/* Sums of other units, or in another layout, have another order: the run goes on, but not with the
 * same bits. */
static void warn_other_order(const ls_safetensors *file, const char *key, const char *now,
                             const char *what)
{
    const char *saved = text_of(file, key);
    if (now[0] != '\0' && saved[0] != '\0' && strcmp(saved, now) != 0) {
        ls_log_warn("%s: its %s were %s, now %s: the steps that follow are not those of an "
                    "uninterrupted run bit for bit",
                    ls_safetensors_path(file), what, saved, now);
    }
}

/* Of a checkpoint of a world of another size rank 0's part is used. */
static void warn_other_world(const ls_safetensors *file, const ls_trainer *trainer)
{
    const char *saved = ls_safetensors_metadata_of(file, "world_size", "1");
    char unused[256];
    if (atoi(saved) != trainer->world.world) {
        ls_safetensors_unused(file, unused, sizeof unused);
        ls_log_warn("%s: saved by %s ranks, this run has %d: rank 0's running statistics go to "
                    "all, buckets are laid out anew; not used: %s",
                    ls_safetensors_path(file), saved, trainer->world.world,
                    unused[0] != '\0' ? unused : "nothing else");
    }
}

static ls_status read_scalar(ls_safetensors *file, const char *name, ls_dtype dtype, void *out)
{
    ls_shape scalar = {0};
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(ls_safetensors_require(file, name, dtype, false, &scalar, &entry));
    memcpy(out, entry->data, ls_dtype_bytes(dtype));
    return LS_OK;
}

static ls_status read_state(ls_safetensors *file, const ls_trainer *trainer, ls_step_state *state,
                            int64_t *step)
{
    ls_step_state start = ls_amp_scale_start(trainer->precision.initial_scale);
    *state = start;
    for (int i = 0; i < SCALAR_COUNT; i++) {
        LS_TRY(read_scalar(file, SCALARS[i].name, SCALARS[i].dtype,
                           (char *)state + SCALARS[i].offset));
    }
    LS_TRY(read_scalar(file, "data/step", LS_I64, step));
    const int64_t most = INT64_C(1) << 50; /* as of --steps */
    float scale = state->loss_scale;
    LS_REFUSE_IF(
        !(scale > 0.0f) || isinf(scale) || *step < 0 || *step > most || state->growth_count < 0,
        "%s: loss scale %g, growth count %d, step %lld: not a state of a run",
        ls_safetensors_path(file), (double)scale, (int)state->growth_count, (long long)*step);
    state->growth_count = LS_PLANT(resume_no_growth_count, state->growth_count, 0);
    state->step_count = LS_PLANT(resume_no_step_count, state->step_count, 0);
    bool continues = trainer->precision.scaler.dynamic && LS_PLANT(resume_no_scale, true, false);
    state->loss_scale = continues ? scale : start.loss_scale;
    state->inv_loss_scale = continues ? 1.0f / scale : start.inv_loss_scale;
    return LS_OK;
}

/* The rank whose buffers this one continues with; *ranks: of how many the file has them. */
static int choose_buffers(const ls_safetensors *file, const ls_trainer *trainer, int *ranks)
{
    long saved = strtol(ls_safetensors_metadata_of(file, "world_size", "1"), NULL, 10);
    LS_TEXT(probe, 160, "rank1/buffer/%s",
            trainer->network.buffer_count > 0 ? trainer->network.buffer[0].name : "");
    *ranks = ls_safetensors_find(file, probe) != NULL ? (int)saved : 1;
    return saved == trainer->world.world && *ranks > 1
               ? LS_PLANT(resume_rank0_buffers, trainer->world.rank, 0)
               : 0;
}

/* Refuses tensors that were not asked for; other ranks' buffers belong to the file. */
static ls_status check_leftovers(const ls_safetensors *file, int saved_ranks)
{
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        int rank = 0, used = 0;
        bool others = sscanf(entry->name, "rank%d/%n", &rank, &used) == 1 && used > 0 &&
                      rank >= 0 && rank < saved_ranks;
        LS_REFUSE_IF(!others && !entry->seen, "%s: %s has no place in this run",
                     ls_safetensors_path(file), entry->name);
    }
    return LS_OK;
}

/* The layout's entry, where this run may use it; NULL otherwise. */
static ls_status read_layout(ls_safetensors *file, const ls_trainer *trainer,
                             const ls_safetensors_entry **out)
{
    *out = NULL;
    if (ls_safetensors_find(file, "ddp/layout") == NULL) {
        return LS_OK;
    }
    ls_shape shape = {.rank = 1, .dim = {ls_buckets_vector_length(trainer->memory.param_count)}};
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(ls_safetensors_require(file, "ddp/layout", LS_I32, false, &shape, &entry));
    LS_TEXT(rule, 24, "%016llx", (unsigned long long)ls_agree_bucket_rule(trainer));
    LS_TEXT(world, 16, "%d", trainer->world.world);
    bool same = strcmp(rule, text_of(file, "bucket_rule")) == 0 &&
                strcmp(world, text_of(file, "world_size")) == 0;
    *out = same && trainer->ddp != NULL ? entry : NULL;
    return LS_OK;
}

/* Of this rank; in another world rank 0 goes on with the sum of all. Earlier versions saved none.
 */
static ls_status read_epoch(ls_safetensors *file, const ls_trainer *trainer, ls_events_score *out)
{
    int64_t ranks = strtol(ls_safetensors_metadata_of(file, "world_size", "1"), NULL, 10);
    const ls_safetensors_entry *counts = NULL, *losses = NULL;
    ls_shape shape = {.rank = 2, .dim = {ranks, EPOCH_COUNTS}};
    *out = (ls_events_score){0};
    if (ls_safetensors_find(file, "epoch/counts") == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_safetensors_require(file, "epoch/counts", LS_I64, false, &shape, &counts));
    shape.rank = 1;
    LS_TRY(ls_safetensors_require(file, "epoch/loss", LS_F64, false, &shape, &losses));
    const int64_t *count = counts->data;
    const double *loss = losses->data;
    for (int64_t rank = 0; rank < ranks; rank++) {
        bool own =
            ranks == trainer->world.world ? rank == trainer->world.rank : trainer->world.rank == 0;
        if (own && LS_PLANT(resume_no_epoch_sums, true, false)) {
            out->images += count[rank * EPOCH_COUNTS];
            out->top1 += count[rank * EPOCH_COUNTS + 1];
            out->top5 += count[rank * EPOCH_COUNTS + 2];
            out->bad += count[rank * EPOCH_COUNTS + 3];
            out->loss += loss[rank];
        }
    }
    return LS_OK;
}

static int64_t number_of(const ls_safetensors *file, const char *name)
{
    int64_t number = 0;
    (void)ls_text_integer(ls_safetensors_metadata_of(file, name, "0"), 0, INT64_C(1) << 50,
                          &number);
    return number;
}

static ls_status read_best(const ls_safetensors *file, ls_trainer_best *out)
{
    ls_trainer_best best = {number_of(file, "best_step"), number_of(file, "best_images"),
                            number_of(file, "best_top1")};
    LS_REFUSE_IF(best.top1 > best.images || (best.step > 0 && best.images == 0),
                 "%s: best top-1 %lld of %lld pictures: no score", ls_safetensors_path(file),
                 (long long)best.top1, (long long)best.images);
    *out = LS_PLANT(best_not_resumed, best, (ls_trainer_best){0});
    return LS_OK;
}

static void note_resumed(const ls_safetensors *file, const ls_trainer_best *best, int64_t step)
{
    char line[160] = "";
    int64_t per_epoch = number_of(file, "steps_per_epoch");
    if (per_epoch > 0) {
        ls_text_add(line, sizeof line, ", epoch %lld and %lld of %lld steps",
                    (long long)(step / per_epoch), (long long)(step % per_epoch),
                    (long long)per_epoch);
    }
    if (best->step > 0) {
        ls_text_add(line, sizeof line, ", best top-1 %.2f %% after step %lld",
                    100.0 * (double)best->top1 / (double)best->images, (long long)best->step);
    }
    ls_log_note("--resume %s: step %lld%s", ls_safetensors_path(file), (long long)step, line);
}

static ls_status load_checked(ls_safetensors *file, ls_trainer *trainer, ls_step_state *state,
                              int64_t *step)
{
    source from = {file, trainer, true};
    int ranks = 1;
    const ls_safetensors_entry *layout = NULL;
    LS_TRY(check_metadata(file, trainer));
    LS_TRY(each_param(trainer, check_tensor, &from));
    LS_TRY(read_state(file, trainer, state, step));
    LS_TRY(read_layout(file, trainer, &layout));
    int rank = choose_buffers(file, trainer, &ranks);
    from.finite = false;
    LS_TRY(each_buffer(trainer, 0, check_tensor, &from));
    LS_TRY(each_buffer(trainer, rank, check_tensor, &from));
    ls_events_score epoch;
    ls_trainer_best best;
    LS_TRY(read_epoch(file, trainer, &epoch));
    LS_TRY(read_best(file, &best));
    LS_TRY(check_leftovers(file, ranks));
    if (layout != NULL) {
        bool settled = strcmp(ls_safetensors_metadata_of(file, "settled", "true"), "true") == 0;
        LS_TRY(ls_ddp_adopt(trainer->ddp, layout->data, settled, ls_safetensors_path(file)));
    }
    LS_TRY(each_param(trainer, load_tensor, &from));
    LS_TRY(each_buffer(trainer, rank, load_tensor, &from));
    trainer->epoch = epoch;
    trainer->best = best;
    if (trainer->world.rank == 0) {
        note_resumed(file, &best, *step);
        ls_safetensors_warn_unverified(file);
        warn_differences(file, trainer);
        bool half = trainer->precision.activation != LS_F32;
        warn_other_order(file, "half_math", half ? half_math(trainer) : "", "products");
        warn_other_order(file, "layout", layout_of(trainer), "activations");
        warn_other_world(file, trainer);
    }
    return LS_OK;
}

ls_status ls_checkpoint_load(ls_trainer *trainer, const char *path, ls_step_state *state,
                             int64_t *step)
{
    ls_safetensors *file = NULL;
    ls_step_state read_state_value;
    int64_t read_step = 0;
    LS_TRY(ls_pth_state_open(path, &file));
    bool of_torch = strcmp(text_of(file, "format"), LS_PTH_STATE_FORMAT) == 0;
    ls_status status = of_torch ? ls_weights_resume(file, trainer, &read_state_value)
                                : load_checked(file, trainer, &read_state_value, &read_step);
    if (status == LS_OK) {
        *state = read_state_value;
        *step = read_step;
    }
    ls_safetensors_close(file);
    return status;
}
