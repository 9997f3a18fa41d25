#include "resume.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "checkpoint.h"
#include "reference/files/strict_reader.h"

static ls_status check_metadata(const ls_strict_reader *reader, const ls_trainer *trainer)
{
    const ls_options *options = &trainer->options;
    const char *format = ls_safetensors_metadata_of(reader->file, "format", "");
    if (strcmp(format, LS_CHECKPOINT_FORMAT) != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--resume %s: its format is '%s', not " LS_CHECKPOINT_FORMAT
                           "; --init starts from a dump or plain weights",
                           reader->path, format);
    }
    LS_TRY(ls_strict_reader_metadata(reader, "version", LS_CHECKPOINT_VERSION));
    LS_TRY(ls_strict_reader_metadata(reader, "arch", "%s", options->arch));
    LS_TRY(ls_strict_reader_metadata(reader, "num_classes", "%d", options->num_classes));
    LS_TRY(ls_strict_reader_metadata(reader, "opt_level", "%s",
                                     ls_options_level_name(options->opt_level)));
    LS_TRY(ls_strict_reader_metadata(reader, "half", "%s", ls_dtype_label(options->half)));
    LS_TRY(ls_strict_reader_metadata(reader, "optimizer", "%s",
                                     ls_optimizers_name(options->optimizer)));
    return ls_strict_reader_metadata(reader, "scaler", "%s",
                                     trainer->precision.scaler.dynamic ? "dynamic" : "static");
}

/* What may differ between a run and its continuation, but not without being said: one line each. */
static void tell_differences(const ls_strict_reader *reader, const ls_trainer *trainer)
{
    static const char *const own[] = {"steps",        "epochs",     "save",           "resume",
                                      "init",         "threads",    "workers",        "dump-steps",
                                      "dump-ranks",   "digest",     "trace",          "overflow-at",
                                      "audit",        "print-freq", "timeout",        "comm",
                                      "digest-every", "cuda-graph", "cudnn-benchmark"};
    cJSON *theirs = cJSON_Parse(ls_safetensors_metadata_of(reader->file, "options", ""));
    cJSON *ours = ls_options_json(&trainer->options);
    for (const cJSON *item = theirs == NULL ? NULL : theirs->child; item != NULL;
         item = item->next) {
        bool expected = false;
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
            expected = expected || strcmp(own[i], item->string) == 0;
        }
        const cJSON *mine = cJSON_GetObjectItemCaseSensitive(ours, item->string);
        if (expected || mine == NULL) {
            continue;
        }
        char *was = cJSON_PrintUnformatted(item), *is = cJSON_PrintUnformatted(mine);
        if (was != NULL && is != NULL && strcmp(was, is) != 0) {
            ls_log_warn("%s: --%s was %s, now %s", reader->path, item->string, was, is);
        }
        free(was);
        free(is);
    }
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
}

/* Of a checkpoint of a world of another size rank 0's part is used. */
static void tell_other_world(const ls_strict_reader *reader, const ls_trainer *trainer)
{
    const char *saved = ls_safetensors_metadata_of(reader->file, "world_size", "1");
    char unused[256];
    if (atoi(saved) != trainer->world.world) {
        ls_strict_reader_unused(reader, unused, sizeof unused);
        ls_log_warn("%s: saved by %s ranks, this run has %d: rank 0's running statistics go to "
                    "all, buckets are laid out anew; not used: %s",
                    reader->path, saved, trainer->world.world,
                    unused[0] != '\0' ? unused : "nothing else");
    }
}

typedef ls_status visit_tensor(void *context, const ls_tensor *to,
                               const ls_safetensors_entry *entry);

static ls_status visit_nothing(void *context, const ls_tensor *to,
                               const ls_safetensors_entry *entry)
{
    (void)context, (void)to, (void)entry;
    return LS_OK;
}

static ls_status each_param(ls_strict_reader *reader, const ls_trainer *trainer,
                            visit_tensor *visit, void *context)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        const ls_safetensors_entry *entry = NULL;
        char name[160];
        snprintf(name, sizeof name, "param/%s", param->name);
        LS_TRY(ls_strict_reader_tensor(reader, name, memory->param[i].dtype, false, &param->shape,
                                       &entry));
        LS_TRY(visit(context, &memory->param[i], entry));
        if (LS_PLANT(resume_no_masters, true, visit == visit_nothing) && memory->master != NULL &&
            memory->master[i].data != NULL) {
            snprintf(name, sizeof name, "master/%s", param->name);
            LS_TRY(ls_strict_reader_tensor(reader, name, LS_F32, false, &param->shape, &entry));
            LS_TRY(visit(context, &memory->master[i], entry));
        }
        for (int m = 0; m < memory->moment_count; m++) {
            snprintf(name, sizeof name, "state/%s/%s", param->name,
                     ls_optimizers_moment_name(trainer->options.optimizer, m));
            LS_TRY(ls_strict_reader_tensor(reader, name, LS_F32, false, &param->shape, &entry));
            if (LS_PLANT(resume_no_momentum, true, false)) {
                LS_TRY(visit(context, &memory->moment[m][i], entry));
            }
        }
    }
    return LS_OK;
}

/* prefix: "buffer/" or "rank3/buffer/". */
static ls_status each_buffer(ls_strict_reader *reader, const ls_trainer *trainer,
                             const char *prefix, visit_tensor *visit, void *context)
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
        LS_TRY(ls_strict_reader_tensor(reader, name, to.dtype, false, &shape, &entry));
        if (counter) {
            to.data = memory->tracked;
        }
        LS_TRY(visit(context, &to, entry));
    }
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

static ls_status read_scalar(ls_strict_reader *reader, const char *name, ls_dtype dtype, void *out)
{
    ls_shape scalar = {0};
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(ls_strict_reader_tensor(reader, name, dtype, false, &scalar, &entry));
    memcpy(out, entry->data, ls_dtype_bytes(dtype));
    return LS_OK;
}

static ls_status read_state(ls_strict_reader *reader, const ls_trainer *trainer,
                            ls_step_state *state, int64_t *step)
{
    *state = ls_amp_scale_start(trainer->precision.initial_scale);
    float scale = 0.0f;
    LS_TRY(read_scalar(reader, "scaler/loss_scale", LS_F32, &scale));
    LS_TRY(read_scalar(reader, "scaler/growth_count", LS_I32, &state->growth_count));
    LS_TRY(read_scalar(reader, "scaler/overflow_streak", LS_I32, &state->overflow_streak));
    LS_TRY(read_scalar(reader, "optimizer/step_count", LS_I64, &state->step_count));
    LS_TRY(read_scalar(reader, "data/step", LS_I64, step));
    if (!(scale > 0.0f) || isinf(scale) || *step < 0 || state->growth_count < 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: loss scale %g, growth count %d, step %lld: not a state of a run",
                           reader->path, (double)scale, (int)state->growth_count, (long long)*step);
    }
    state->growth_count = LS_PLANT(resume_no_growth_count, state->growth_count, 0);
    state->step_count = LS_PLANT(resume_no_step_count, state->step_count, 0);
    if (trainer->precision.scaler.dynamic && LS_PLANT(resume_no_scale, true, false)) {
        state->loss_scale = scale;
        state->inv_loss_scale = 1.0f / scale;
    }
    return LS_OK;
}

/* Whose buffers this rank continues with, and how many ranks the file has them of. */
static void choose_buffers(const ls_strict_reader *reader, const ls_trainer *trainer, char *prefix,
                           size_t prefix_bytes, int *ranks)
{
    long saved = strtol(ls_safetensors_metadata_of(reader->file, "world_size", "1"), NULL, 10);
    char probe[160];
    snprintf(probe, sizeof probe, "rank1/buffer/%s",
             trainer->network.buffer_count > 0 ? trainer->network.buffer[0].name : "");
    *ranks = ls_safetensors_find(reader->file, probe) != NULL ? (int)saved : 1;
    int rank = saved == trainer->world.world && *ranks > 1
                   ? LS_PLANT(resume_rank0_buffers, trainer->world.rank, 0)
                   : 0;
    if (rank == 0) {
        snprintf(prefix, prefix_bytes, "buffer/");
    } else {
        snprintf(prefix, prefix_bytes, "rank%d/buffer/", rank);
    }
}

/* Tensors that nobody asked for; other ranks' buffers belong to the file. */
static ls_status check_leftovers(const ls_strict_reader *reader, int saved_ranks)
{
    for (int i = 0; i < ls_safetensors_count(reader->file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(reader->file, i);
        int rank = 0, used = 0;
        bool others = sscanf(entry->name, "rank%d/%n", &rank, &used) == 1 && used > 0 &&
                      rank >= 0 && rank < saved_ranks;
        if (!others && !ls_strict_reader_has_seen(reader, entry)) {
            return ls_log_fail(LS_ERR_USAGE, "%s: %s has no place in this run", reader->path,
                               entry->name);
        }
    }
    return LS_OK;
}

/* The layout's entry, where this run may use it; NULL otherwise. */
static ls_status read_layout(ls_strict_reader *reader, const ls_trainer *trainer,
                             const ls_safetensors_entry **out)
{
    *out = NULL;
    if (ls_safetensors_find(reader->file, "ddp/layout") == NULL) {
        return LS_OK;
    }
    ls_shape shape = {.rank = 1, .dim = {ls_buckets_vector_length(trainer->memory.param_count)}};
    const ls_safetensors_entry *entry = NULL;
    LS_TRY(ls_strict_reader_tensor(reader, "ddp/layout", LS_I32, false, &shape, &entry));
    char rule[24], world[16];
    snprintf(rule, sizeof rule, "%016llx", (unsigned long long)ls_checkpoint_bucket_rule(trainer));
    snprintf(world, sizeof world, "%d", trainer->world.world);
    bool same = strcmp(rule, ls_safetensors_metadata_of(reader->file, "bucket_rule", "")) == 0 &&
                strcmp(world, ls_safetensors_metadata_of(reader->file, "world_size", "")) == 0;
    *out = same && trainer->ddp != NULL ? entry : NULL;
    return LS_OK;
}

static ls_status load_checked(ls_strict_reader *reader, ls_trainer *trainer, ls_step_state *state,
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
    LS_TRY(each_buffer(reader, trainer, "buffer/", visit_nothing, NULL));
    LS_TRY(each_buffer(reader, trainer, prefix, visit_nothing, NULL));
    LS_TRY(check_leftovers(reader, ranks));
    if (layout != NULL) {
        bool settled =
            strcmp(ls_safetensors_metadata_of(reader->file, "settled", "true"), "true") == 0;
        LS_TRY(ls_ddp_adopt(trainer->ddp, layout->data, settled, reader->path));
    }
    LS_TRY(each_param(reader, trainer, visit_load, trainer));
    LS_TRY(each_buffer(reader, trainer, prefix, visit_load, trainer));
    if (trainer->world.rank == 0) {
        tell_differences(reader, trainer);
        tell_other_world(reader, trainer);
    }
    return LS_OK;
}

ls_status ls_resume_load(ls_trainer *trainer, const char *path, ls_step_state *state, int64_t *step)
{
    ls_strict_reader reader;
    LS_TRY(ls_strict_reader_open(path, &reader));
    ls_step_state read_state_value;
    int64_t read_step = 0;
    ls_status status = load_checked(&reader, trainer, &read_state_value, &read_step);
    if (status == LS_OK) {
        *state = read_state_value;
        *step = read_step;
    }
    ls_strict_reader_close(&reader);
    return status;
}
