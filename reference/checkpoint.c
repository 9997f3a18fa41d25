#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/core/digest.h"
#include "../kernels/core/half.h"
#include "../kernels/core/log.h"
#include "safetensors.h"

#define FORMAT "lockstep-checkpoint"
#define VERSION "1"

uint64_t ls_checkpoint_bucket_rule(const ls_trainer *trainer)
{
    const ls_dialect_rules *rules = &trainer->rules;
    int64_t numbers[] = {rules->delay,
                         rules->unit,
                         rules->limit_count,
                         rules->limit[0],
                         rules->limit_count > 1 ? rules->limit[1] : 0,
                         rules->first,
                         rules->rebuild,
                         trainer->precision.product,
                         trainer->precision.norm,
                         trainer->precision.allreduce_fp32,
                         trainer->precision.compress,
                         trainer->precision.compress ? (int64_t)trainer->precision.compress_type
                                                     : 0};
    return ls_digest_update(LS_DIGEST_START, numbers, sizeof numbers);
}

/* ---- saving -------------------------------------------------------------------------------------
 */

static ls_status add_tensor(ls_trainer *trainer, ls_safetensors_writer *writer, const char *name,
                            const ls_tensor *tensor, const ls_shape *shape, void *scratch)
{
    LS_TRY(
        ls_device_read(&trainer->device, scratch, tensor->data, (int64_t)ls_tensor_bytes(tensor)));
    return ls_safetensors_add_copy(writer, name, tensor->dtype, shape, scratch);
}

static ls_status add_params(ls_trainer *trainer, ls_safetensors_writer *writer, void *scratch)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        char name[160];
        snprintf(name, sizeof name, "param/%s", param->name);
        LS_TRY(add_tensor(trainer, writer, name, &memory->param[i], &param->shape, scratch));
        if (memory->master != NULL && memory->master[i].data != NULL) {
            snprintf(name, sizeof name, "master/%s", param->name);
            LS_TRY(add_tensor(trainer, writer, name, &memory->master[i], &param->shape, scratch));
        }
        for (int m = 0; m < memory->moment_count; m++) {
            snprintf(name, sizeof name, "state/%s/%s", param->name,
                     ls_memory_moment_name(trainer->options.optimizer, m));
            LS_TRY(
                add_tensor(trainer, writer, name, &memory->moment[m][i], &param->shape, scratch));
        }
    }
    return LS_OK;
}

/* Adds one rank's buffers, which lie at `base` as this rank's lie in its own block. */
static ls_status add_buffers(ls_trainer *trainer, ls_safetensors_writer *writer, int rank,
                             const char *base)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        char name[160];
        if (rank == 0) {
            snprintf(name, sizeof name, "buffer/%s", buffer->name);
        } else {
            snprintf(name, sizeof name, "rank%d/buffer/%s", rank, buffer->name);
        }
        if (buffer->role == LS_BUFFER_BATCHES_TRACKED) {
            ls_shape scalar = {0};
            LS_TRY(ls_safetensors_add_copy(writer, name, LS_I64, &scalar, memory->tracked));
        } else {
            ls_shape shape = {.rank = 1, .dim = {buffer->count}};
            int64_t offset =
                (char *)memory->buffer[i].data - (char *)memory->block[LS_MEMORY_BUFFER];
            LS_TRY(ls_safetensors_add_copy(writer, name, memory->buffer[i].dtype, &shape,
                                           base + offset));
        }
    }
    return LS_OK;
}

static bool has_local_norm(const ls_trainer *trainer)
{
    return trainer->engine != NULL && trainer->world.world > 1 && trainer->norm_comm == NULL;
}

/* Every rank's block of buffers, at rank 0, in host memory: malloc'ed [world or 1][bytes]. */
static ls_status gather_buffers(ls_trainer *trainer, char **out)
{
    const ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    int64_t bytes = memory->bytes[LS_MEMORY_BUFFER];
    bool root = trainer->world.rank == 0;
    bool gathers = has_local_norm(trainer);
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
        LS_TRY_GOTO(status, ls_comm_run(trainer->engine, trainer->comm, &op, device->stream), free);
    }
    if (root) {
        host = malloc((size_t)total + 1);
        if (host == NULL) {
            ls_log_error("cannot allocate %lld bytes for buffers", (long long)total);
            status = LS_ERR_INFRA;
        } else if (total > 0) {
            status = ls_device_read(device, host, all, total);
        }
    }
free:
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

static ls_status add_state(ls_safetensors_writer *writer, const ls_step_state *state, int64_t step)
{
    ls_shape scalar = {0};
    LS_TRY(
        ls_safetensors_add_copy(writer, "scaler/loss_scale", LS_F32, &scalar, &state->loss_scale));
    LS_TRY(ls_safetensors_add_copy(writer, "scaler/growth_count", LS_I32, &scalar,
                                   &state->growth_count));
    LS_TRY(ls_safetensors_add_copy(writer, "scaler/overflow_streak", LS_I32, &scalar,
                                   &state->overflow_streak));
    LS_TRY(ls_safetensors_add_copy(writer, "optimizer/step_count", LS_I64, &scalar,
                                   &state->step_count));
    return ls_safetensors_add_copy(writer, "data/step", LS_I64, &scalar, &step);
}

static ls_status add_layout(ls_trainer *trainer, ls_safetensors_writer *writer)
{
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    int length = ls_buckets_vector_length(trainer->memory.param_count);
    int32_t *vector = malloc((size_t)length * sizeof *vector);
    if (vector == NULL) {
        ls_log_error("cannot allocate the bucket layout");
        return LS_ERR_INFRA;
    }
    ls_buckets_to_vector(ls_ddp_layout(trainer->ddp), vector);
    ls_shape shape = {.rank = 1, .dim = {length}};
    ls_status status = ls_safetensors_add_copy(writer, "ddp/layout", LS_I32, &shape, vector);
    free(vector);
    return status;
}

static ls_status add_metadata(const ls_trainer *trainer, ls_safetensors_writer *writer,
                              int64_t step)
{
    const ls_options *options = &trainer->options;
    const ls_scaler_config *scaler = &trainer->precision.scaler;
    cJSON *json = ls_options_json(options);
    char *text = json == NULL ? NULL : cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (text == NULL) {
        ls_log_error("cannot allocate the options of a checkpoint");
        return LS_ERR_INFRA;
    }
    ls_safetensors_metadata(writer, "format", FORMAT);
    ls_safetensors_metadata(writer, "version", VERSION);
    ls_safetensors_metadata(writer, "arch", "%s", options->arch);
    ls_safetensors_metadata(writer, "num_classes", "%d", options->num_classes);
    ls_safetensors_metadata(writer, "opt_level", "%s", ls_options_level_name(options->opt_level));
    ls_safetensors_metadata(writer, "half", "%s", ls_dtype_label(options->half));
    ls_safetensors_metadata(writer, "optimizer", "%s", ls_optim_name(options->optimizer));
    ls_safetensors_metadata(writer, "world_size", "%d", trainer->world.world);
    ls_safetensors_metadata(writer, "step", "%lld", (long long)step);
    ls_safetensors_metadata(writer, "scaler", "%s", scaler->dynamic ? "dynamic" : "static");
    ls_safetensors_metadata(writer, "min_loss_scale", "%.9g", (double)scaler->min_scale);
    ls_safetensors_metadata(writer, "max_loss_scale", "%.9g", (double)scaler->max_scale);
    ls_safetensors_metadata(writer, "growth_interval", "%d", (int)scaler->growth_interval);
    ls_safetensors_metadata(writer, "settled", "%s",
                            trainer->ddp == NULL || ls_ddp_settled(trainer->ddp) ? "true"
                                                                                 : "false");
    ls_safetensors_metadata(writer, "bucket_rule", "%016llx",
                            (unsigned long long)ls_checkpoint_bucket_rule(trainer));
    ls_safetensors_metadata(writer, "options", "%s", text);
    ls_safetensors_metadata(
        writer, "options_digest", "%016llx",
        (unsigned long long)ls_digest_update(LS_DIGEST_START, text, strlen(text)));
    free(text);
    return LS_OK;
}

static ls_status write_file(ls_trainer *trainer, int64_t step, const char *path,
                            const char *buffers)
{
    ls_safetensors_writer *writer = NULL;
    ls_step_state state;
    ls_status status = LS_OK;
    void *scratch = malloc((size_t)trainer->memory.largest * sizeof(float));
    if (scratch == NULL) {
        ls_log_error("cannot allocate memory for a checkpoint");
        return LS_ERR_INFRA;
    }
    LS_TRY_GOTO(status, ls_safetensors_create(path, &writer), free);
    LS_TRY_GOTO(
        status,
        ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state),
        discard);
    LS_TRY_GOTO(status, add_metadata(trainer, writer, step), discard);
    LS_TRY_GOTO(status, add_params(trainer, writer, scratch), discard);
    LS_TRY_GOTO(status, add_state(writer, &state, step), discard);
    LS_TRY_GOTO(status, add_layout(trainer, writer), discard);
    for (int rank = 0; rank < (has_local_norm(trainer) ? trainer->world.world : 1); rank++) {
        LS_TRY_GOTO(status,
                    add_buffers(trainer, writer, rank,
                                buffers + rank * trainer->memory.bytes[LS_MEMORY_BUFFER]),
                    discard);
    }
    status = ls_safetensors_finish(writer);
    goto free;
discard:
    ls_safetensors_discard(writer);
free:
    free(scratch);
    return status;
}

ls_status ls_checkpoint_save(ls_trainer *trainer, int64_t step, const char *path)
{
    char *buffers = NULL;
    LS_TRY(gather_buffers(trainer, &buffers));
    ls_status status = LS_OK;
    if (trainer->world.rank == 0) {
        status = write_file(trainer, step, path, buffers);
    }
    free(buffers);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------
 */

static void shape_text(const ls_shape *shape, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (int i = 0; i < shape->rank && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld", i == 0 ? "" : ",",
                                 (long long)shape->dim[i]);
    }
    if (used < text_bytes) {
        snprintf(text + used, text_bytes - used, "]");
    }
}

static bool same_shape(const ls_shape *a, const ls_shape *b)
{
    bool same = a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) {
        same = a->dim[i] == b->dim[i];
    }
    return same;
}

/* What is wrong with a file's tensor against what the run needs, NULL when nothing is. any_float:
 * the type may be any of f32, f16, bf16. */
static const char *mismatch(const ls_safetensors_entry *entry, ls_dtype dtype, bool any_float,
                            const ls_shape *shape, char *text, size_t text_bytes)
{
    if (entry == NULL) {
        return "is missing";
    }
    if (!same_shape(&entry->shape, shape)) {
        char has[96], wants[96];
        shape_text(&entry->shape, has, sizeof has);
        shape_text(shape, wants, sizeof wants);
        snprintf(text, text_bytes, "has shape %s, this run needs %s", has, wants);
        return text;
    }
    bool is_float = entry->dtype == LS_F32 || entry->dtype == LS_F16 || entry->dtype == LS_BF16;
    if (any_float ? !is_float : entry->dtype != dtype) {
        snprintf(text, text_bytes, "has type %s, this run needs %s", ls_dtype_name(entry->dtype),
                 any_float ? "F32, F16 or BF16" : ls_dtype_name(dtype));
        return text;
    }
    return NULL;
}

/* A file being checked against the run: every tensor that is needed is asked for once, so that what
 * is left over is unknown. */
typedef struct reader {
    const char *path;
    ls_safetensors *file;
    int asked;
} reader;

static ls_status expect(reader *reader, const char *name, ls_dtype dtype, bool any_float,
                        const ls_shape *shape, const ls_safetensors_entry **out)
{
    char text[256];
    const ls_safetensors_entry *entry = ls_safetensors_find(reader->file, name);
    const char *why = mismatch(entry, dtype, any_float, shape, text, sizeof text);
    if (why != NULL) {
        ls_log_error("%s: %s %s", reader->path, name, why);
        return LS_ERR_USAGE;
    }
    reader->asked++;
    if (out != NULL) {
        *out = entry;
    }
    return LS_OK;
}

static ls_status expect_meta(const reader *reader, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static ls_status expect_meta(const reader *reader, const char *name, const char *format, ...)
{
    char wanted[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wanted, sizeof wanted, format, arguments);
    va_end(arguments);
    const char *has = ls_safetensors_metadata_of(reader->file, name, "");
    if (strcmp(has, wanted) != 0) {
        ls_log_error("%s: %s is '%s' there and '%s' here", reader->path, name, has, wanted);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

static ls_status check_metadata(const reader *reader, const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    LS_TRY(expect_meta(reader, "format", FORMAT));
    LS_TRY(expect_meta(reader, "version", VERSION));
    LS_TRY(expect_meta(reader, "arch", "%s", options->arch));
    LS_TRY(expect_meta(reader, "num_classes", "%d", options->num_classes));
    LS_TRY(expect_meta(reader, "opt_level", "%s", ls_options_level_name(options->opt_level)));
    LS_TRY(expect_meta(reader, "half", "%s", ls_dtype_label(options->half)));
    LS_TRY(expect_meta(reader, "optimizer", "%s", ls_optim_name(options->optimizer)));
    return expect_meta(reader, "scaler", "%s",
                       trainer->precision.scaler.dynamic ? "dynamic" : "static");
}

/* What may differ between a run and its continuation, but not without being said: one line each. */
static void tell_differences(const reader *reader, const ls_trainer *trainer)
{
    static const char *const own[] = {"steps",   "epochs",     "save",       "resume",
                                      "init",    "dump-steps", "dump-ranks", "threads",
                                      "workers", "overflow-at"};
    cJSON *theirs = cJSON_Parse(ls_safetensors_metadata_of(reader->file, "options", ""));
    cJSON *ours = ls_options_json(&trainer->options);
    for (const cJSON *item = theirs == NULL ? NULL : theirs->child; item != NULL;
         item = item->next) {
        bool expected = false;
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
            expected = expected || strcmp(own[i], item->string) == 0;
        }
        const cJSON *mine = cJSON_GetObjectItemCaseSensitive(ours, item->string);
        if (!expected && mine != NULL && !cJSON_Compare(item, mine, true)) {
            char *was = cJSON_PrintUnformatted(item), *is = cJSON_PrintUnformatted(mine);
            ls_log_warn("%s: --%s was %s, now %s", reader->path, item->string,
                        was == NULL ? "?" : was, is == NULL ? "?" : is);
            free(was);
            free(is);
        }
    }
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
}

typedef ls_status visit_tensor(void *context, const ls_tensor *to,
                               const ls_safetensors_entry *entry);

static ls_status each_param(reader *reader, const ls_trainer *trainer, visit_tensor *visit,
                            void *context)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        const ls_safetensors_entry *entry = NULL;
        char name[160];
        snprintf(name, sizeof name, "param/%s", param->name);
        LS_TRY(expect(reader, name, memory->param[i].dtype, false, &param->shape, &entry));
        LS_TRY(visit(context, &memory->param[i], entry));
        if (memory->master != NULL && memory->master[i].data != NULL) {
            snprintf(name, sizeof name, "master/%s", param->name);
            LS_TRY(expect(reader, name, LS_F32, false, &param->shape, &entry));
            LS_TRY(visit(context, &memory->master[i], entry));
        }
        for (int m = 0; m < memory->moment_count; m++) {
            snprintf(name, sizeof name, "state/%s/%s", param->name,
                     ls_memory_moment_name(trainer->options.optimizer, m));
            LS_TRY(expect(reader, name, LS_F32, false, &param->shape, &entry));
            LS_TRY(visit(context, &memory->moment[m][i], entry));
        }
    }
    return LS_OK;
}

/* prefix: "buffer/" or "rank3/buffer/". */
static ls_status each_buffer(reader *reader, const ls_trainer *trainer, const char *prefix,
                             visit_tensor *visit, void *context)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        bool counter = buffer->role == LS_BUFFER_BATCHES_TRACKED;
        ls_shape shape = {.rank = counter ? 0 : 1, .dim = {counter ? 0 : buffer->count}};
        ls_tensor to = memory->buffer[i];
        const ls_safetensors_entry *entry = NULL;
        char name[160];
        snprintf(name, sizeof name, "%s%s", prefix, buffer->name);
        LS_TRY(expect(reader, name, to.dtype, false, &shape, &entry));
        if (counter) {
            to.data = memory->tracked;
        }
        LS_TRY(visit(context, &to, entry));
    }
    return LS_OK;
}

static ls_status visit_nothing(void *context, const ls_tensor *to,
                               const ls_safetensors_entry *entry)
{
    (void)context, (void)to, (void)entry;
    return LS_OK;
}

static ls_status visit_load(void *context, const ls_tensor *to, const ls_safetensors_entry *entry)
{
    ls_trainer *trainer = context;
    if (to->data == trainer->memory.tracked) {
        memcpy(trainer->memory.tracked, entry->data, sizeof *trainer->memory.tracked);
        return LS_OK;
    }
    LS_TRY(trainer->device.api->copy_in(trainer->device.backend, trainer->device.stream, to->data,
                                        entry->data, entry->bytes));
    return trainer->device.api->stream_wait(trainer->device.stream);
}

static ls_status read_scalar(reader *reader, const char *name, ls_dtype dtype, void *out)
{
    ls_shape scalar = {0};
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(expect(reader, name, dtype, false, &scalar, &entry));
    memcpy(out, entry->data, ls_dtype_bytes(dtype));
    return LS_OK;
}

static ls_status read_state(reader *reader, const ls_trainer *trainer, ls_step_state *state,
                            int64_t *step)
{
    *state = ls_amp_initial_state(&trainer->precision);
    float scale = 0.0f;
    LS_TRY(read_scalar(reader, "scaler/loss_scale", LS_F32, &scale));
    LS_TRY(read_scalar(reader, "scaler/growth_count", LS_I32, &state->growth_count));
    LS_TRY(read_scalar(reader, "scaler/overflow_streak", LS_I32, &state->overflow_streak));
    LS_TRY(read_scalar(reader, "optimizer/step_count", LS_I64, &state->step_count));
    LS_TRY(read_scalar(reader, "data/step", LS_I64, step));
    if (!(scale > 0.0f) || isinf(scale) || *step < 0 || state->growth_count < 0) {
        ls_log_error("%s: loss scale %g, growth count %d, step %lld: not a state of a run",
                     reader->path, (double)scale, (int)state->growth_count, (long long)*step);
        return LS_ERR_USAGE;
    }
    if (trainer->precision.scaler.dynamic) {
        state->loss_scale = scale;
        state->inv_loss_scale = 1.0f / scale;
    }
    return LS_OK;
}

/* Whose buffers this rank continues with, and how many ranks the file has them of. */
static void choose_buffers(const reader *reader, const ls_trainer *trainer, char *prefix,
                           size_t prefix_bytes, int *ranks)
{
    long saved = strtol(ls_safetensors_metadata_of(reader->file, "world_size", "1"), NULL, 10);
    char probe[160];
    snprintf(probe, sizeof probe, "rank1/buffer/%s",
             trainer->network.buffer_count > 0 ? trainer->network.buffer[0].name : "");
    *ranks = ls_safetensors_find(reader->file, probe) != NULL ? (int)saved : 1;
    int rank = saved == trainer->world.world && *ranks > 1 ? trainer->world.rank : 0;
    if (rank == 0) {
        snprintf(prefix, prefix_bytes, "buffer/");
    } else {
        snprintf(prefix, prefix_bytes, "rank%d/buffer/", rank);
    }
}

/* Tensors that nobody asked for; other ranks' buffers belong to the file and are counted here. */
static ls_status check_leftovers(const reader *reader, int known)
{
    if (ls_safetensors_count(reader->file) == known) {
        return LS_OK;
    }
    ls_log_error("%s: holds %d tensors, this run knows %d", reader->path,
                 ls_safetensors_count(reader->file), known);
    return LS_ERR_USAGE;
}

/* The layout's entry, where this run may use it; NULL otherwise. */
static ls_status read_layout(reader *reader, const ls_trainer *trainer,
                             const ls_safetensors_entry **out)
{
    *out = NULL;
    if (ls_safetensors_find(reader->file, "ddp/layout") == NULL) {
        return LS_OK;
    }
    ls_shape shape = {.rank = 1, .dim = {ls_buckets_vector_length(trainer->memory.param_count)}};
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(expect(reader, "ddp/layout", LS_I32, false, &shape, &entry));
    char rule[24], world[16];
    snprintf(rule, sizeof rule, "%016llx", (unsigned long long)ls_checkpoint_bucket_rule(trainer));
    snprintf(world, sizeof world, "%d", trainer->world.world);
    bool same = strcmp(rule, ls_safetensors_metadata_of(reader->file, "bucket_rule", "")) == 0 &&
                strcmp(world, ls_safetensors_metadata_of(reader->file, "world_size", "")) == 0;
    *out = same && trainer->ddp != NULL ? entry : NULL;
    return LS_OK;
}

static ls_status load_checked(reader *reader, ls_trainer *trainer, ls_step_state *state,
                              int64_t *step)
{
    char prefix[32];
    int ranks = 1;
    const ls_safetensors_entry *layout = NULL;
    LS_TRY(check_metadata(reader, trainer));
    LS_TRY(each_param(reader, trainer, visit_nothing, NULL));
    LS_TRY(read_state(reader, trainer, state, step));
    LS_TRY(read_layout(reader, trainer, &layout));
    choose_buffers(reader, trainer, prefix, sizeof prefix, &ranks);
    int known = reader->asked + ranks * trainer->network.buffer_count;
    LS_TRY(each_buffer(reader, trainer, prefix, visit_nothing, NULL));
    LS_TRY(check_leftovers(reader, known));
    if (layout != NULL) {
        bool settled =
            strcmp(ls_safetensors_metadata_of(reader->file, "settled", "true"), "true") == 0;
        LS_TRY(ls_ddp_adopt(trainer->ddp, layout->data, settled, reader->path));
    }
    LS_TRY(each_param(reader, trainer, visit_load, trainer));
    LS_TRY(each_buffer(reader, trainer, prefix, visit_load, trainer));
    if (trainer->world.rank == 0) {
        tell_differences(reader, trainer);
    }
    return LS_OK;
}

ls_status ls_checkpoint_load(ls_trainer *trainer, const char *path, ls_step_state *state,
                             int64_t *step)
{
    reader reader = {.path = path};
    LS_TRY(ls_safetensors_open(path, &reader.file));
    ls_step_state read_state_value;
    int64_t read_step = 0;
    ls_status status = load_checked(&reader, trainer, &read_state_value, &read_step);
    if (status == LS_OK) {
        *state = read_state_value;
        *step = read_step;
    }
    ls_safetensors_close(reader.file);
    return status;
}

/* ---- --init -------------------------------------------------------------------------------------
 */

static ls_status write_any_float(ls_trainer *trainer, const ls_tensor *to,
                                 const ls_safetensors_entry *entry, float *scratch)
{
    const uint16_t *half = entry->data;
    const float *from = entry->data;
    if (entry->dtype != LS_F32) {
        for (int64_t i = 0; i < to->count; i++) {
            scratch[i] = entry->dtype == LS_F16 ? ls_half_fp16_to_f32(half[i])
                                                : ls_half_bf16_to_f32(half[i]);
        }
        from = scratch;
    }
    return ls_device_write_f32(&trainer->device, to, from);
}

static bool has_any_buffer(const reader *reader, const ls_network *network)
{
    for (int i = 0; i < network->buffer_count; i++) {
        if (ls_safetensors_find(reader->file, network->buffer[i].name) != NULL) {
            return true;
        }
    }
    return false;
}

/* One pass checks, the second (scratch given) writes. Counters may be absent: files of weights drop
 * them. */
static ls_status init_pass(reader *reader, ls_trainer *trainer, bool buffers, float *scratch)
{
    const ls_memory *memory = &trainer->memory;
    const ls_safetensors_entry *entry = NULL;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        LS_TRY(expect(reader, param->name, LS_F32, true, &param->shape, &entry));
        if (scratch != NULL) {
            LS_TRY(write_any_float(trainer, &memory->param[i], entry, scratch));
        }
    }
    for (int i = 0; buffers && i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        if (buffer->role != LS_BUFFER_BATCHES_TRACKED) {
            ls_shape shape = {.rank = 1, .dim = {buffer->count}};
            LS_TRY(expect(reader, buffer->name, LS_F32, true, &shape, &entry));
            if (scratch != NULL) {
                LS_TRY(write_any_float(trainer, &memory->buffer[i], entry, scratch));
            }
        } else if (ls_safetensors_find(reader->file, buffer->name) != NULL) {
            ls_shape scalar = {0};
            LS_TRY(expect(reader, buffer->name, LS_I64, false, &scalar, &entry));
            if (scratch != NULL) {
                memcpy(memory->tracked, entry->data, sizeof *memory->tracked);
            }
        }
    }
    return LS_OK;
}

static bool is_known(const ls_network *network, const char *name)
{
    for (int i = 0; i < network->param_count; i++) {
        if (strcmp(network->param[i].name, name) == 0) {
            return true;
        }
    }
    for (int i = 0; i < network->buffer_count; i++) {
        if (strcmp(network->buffer[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

ls_status ls_checkpoint_init(ls_trainer *trainer, const char *path)
{
    reader reader = {.path = path};
    ls_status status = LS_OK;
    int64_t largest = trainer->memory.largest;
    for (int i = 0; i < trainer->network.buffer_count; i++) {
        int64_t count = trainer->network.buffer[i].count;
        largest = count > largest ? count : largest;
    }
    float *scratch = malloc((size_t)largest * sizeof *scratch);
    if (scratch == NULL) {
        ls_log_error("cannot allocate memory to read %s", path);
        return LS_ERR_INFRA;
    }
    LS_TRY_GOTO(status, ls_safetensors_open(path, &reader.file), free);
    bool buffers = has_any_buffer(&reader, &trainer->network);
    LS_TRY_GOTO(status, init_pass(&reader, trainer, buffers, NULL), close);
    for (int i = 0; i < ls_safetensors_count(reader.file); i++) {
        const char *name = ls_safetensors_at(reader.file, i)->name;
        if (!is_known(&trainer->network, name)) {
            ls_log_error("%s: %s is no parameter or buffer of %s", path, name,
                         trainer->network.arch);
            status = LS_ERR_USAGE;
            goto close;
        }
    }
    status = init_pass(&reader, trainer, buffers, scratch);
close:
    ls_safetensors_close(reader.file);
free:
    free(scratch);
    return status;
}
