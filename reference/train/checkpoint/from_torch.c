#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"

/* A file being read, and what has been taken of it. */
typedef struct source {
    ls_strict_reader *reader;
    ls_trainer *trainer;
    float *scratch; /* [largest parameter]; NULL: only checks */
    int params, moments, buffers;
} source;

static const char *metadata(const source *from, const char *name)
{
    return ls_safetensors_metadata_of(from->reader->file, name, "");
}

/* *out NULL: absent. */
static ls_status find(source *from, const char *name, const ls_shape *shape,
                      const ls_safetensors_entry **out)
{
    *out = NULL;
    if (ls_safetensors_find(from->reader->file, name) == NULL) {
        return LS_OK;
    }
    return ls_strict_reader_tensor(from->reader, name, LS_F32, true, shape, out);
}

static ls_status write_tensor(const source *from, const ls_tensor *to,
                              const ls_safetensors_entry *entry)
{
    return from->scratch == NULL ? LS_OK
                                 : ls_device_write_float(&from->trainer->device, to, entry->dtype,
                                                         entry->data, from->scratch);
}

static ls_status take_param(source *from, int index)
{
    const ls_memory *memory = &from->trainer->memory;
    const ls_param *param = &memory->network->param[index];
    const ls_safetensors_entry *entry = NULL;
    LS_TEXT(name, 160, "param/%s", param->name);
    LS_TRY(ls_strict_reader_tensor(from->reader, name, LS_F32, true, &param->shape, &entry));
    LS_TRY(ls_strict_reader_finite(from->reader, entry));
    LS_TRY(write_tensor(from, &memory->param[index], entry));
    if (memory->master != NULL && memory->master[index].data != NULL) {
        LS_TRY(write_tensor(from, &memory->master[index], entry));
    }
    from->params++;
    for (int m = 0; m < memory->moment_count; m++) {
        snprintf(name, sizeof name, "state/%s/%s", param->name,
                 ls_optimizers_moment_name(from->trainer->options.optimizer, m));
        LS_TRY(find(from, name, &param->shape, &entry));
        if (entry != NULL) {
            LS_TRY(ls_strict_reader_finite(from->reader, entry));
            LS_TRY(write_tensor(from, &memory->moment[m][index], entry));
            from->moments++;
        }
    }
    return LS_OK;
}

static ls_status take_buffer(source *from, int index)
{
    const ls_memory *memory = &from->trainer->memory;
    const ls_buffer *buffer = &memory->network->buffer[index];
    const ls_safetensors_entry *entry = NULL;
    LS_TEXT(name, 160, "buffer/%s", buffer->name);
    if (buffer->role != LS_BUFFER_BATCHES_TRACKED) {
        ls_shape shape = {.rank = 1, .dim = {buffer->count}};
        LS_TRY(ls_strict_reader_tensor(from->reader, name, LS_F32, true, &shape, &entry));
        from->buffers++;
        return write_tensor(from, &memory->buffer[index], entry);
    }
    if (ls_safetensors_find(from->reader->file, name) != NULL) {
        const ls_shape scalar = {0};
        LS_TRY(ls_strict_reader_tensor(from->reader, name, LS_I64, false, &scalar, &entry));
        from->buffers++;
        if (from->scratch != NULL) {
            memcpy(memory->tracked, entry->data, sizeof *memory->tracked);
        }
    }
    return LS_OK;
}

/* Moments that the file lacks are 0, as in a run that begins. */
static ls_status clear_moments(source *from)
{
    const ls_memory *memory = &from->trainer->memory;
    memset(from->scratch, 0, (size_t)memory->largest * sizeof *from->scratch);
    for (int i = 0; i < memory->param_count; i++) {
        for (int m = 0; m < memory->moment_count; m++) {
            LS_TRY(
                ls_device_write_f32(&from->trainer->device, &memory->moment[m][i], from->scratch));
        }
    }
    return LS_OK;
}

static ls_status take_all(source *from)
{
    from->params = from->moments = from->buffers = 0;
    for (int i = 0; i < from->trainer->memory.param_count; i++) {
        LS_TRY(take_param(from, i));
    }
    for (int i = 0; i < from->trainer->memory.buffer_count; i++) {
        LS_TRY(take_buffer(from, i));
    }
    return LS_OK;
}

/* ---- the scaler, the epoch, the score -------------------------------------------------------- */

static ls_status take_number(source *from, const char *name, ls_dtype dtype, void *out)
{
    const ls_shape scalar = {0};
    const ls_safetensors_entry *entry = NULL;
    if (ls_safetensors_find(from->reader->file, name) != NULL) {
        LS_TRY(ls_strict_reader_tensor(from->reader, name, dtype, false, &scalar, &entry));
        memcpy(out, entry->data, ls_dtype_bytes(dtype));
    }
    return LS_OK;
}

static ls_status take_state(source *from, ls_step_state *state)
{
    const ls_precision *precision = &from->trainer->precision;
    float scale = 0;
    int32_t clean = 0;
    *state = ls_amp_scale_start(precision->initial_scale);
    /* torch's SGD counts no steps; after 0 of them momentum would be the gradient alone (sgd.h) */
    state->step_count = from->moments > 0 ? LS_PLANT(pth_first_step, 1, 0) : 0;
    LS_TRY(take_number(from, "optimizer/step_count", LS_I64, &state->step_count));
    LS_TRY(take_number(from, "scaler/loss_scale", LS_F32, &scale));
    LS_TRY(take_number(from, "scaler/growth_count", LS_I32, &clean));
    if (precision->scaler.dynamic && scale > 0) {
        state->loss_scale = scale;
        state->inv_loss_scale = 1.0f / scale;
        state->growth_count = clean;
    }
    return LS_OK;
}

/* A score in percent, as a share of integers: to eight digits. */
static void take_progress(const source *from)
{
    ls_trainer *trainer = from->trainer;
    int64_t epochs = 0;
    double percent = strtod(metadata(from, "best_percent"), NULL);
    (void)ls_text_integer(metadata(from, "epoch"), 0, 1000000000, &epochs);
    trainer->resumed_epochs = epochs;
    if (metadata(from, "best_percent")[0] != '\0' && percent >= 0 && percent <= 100) {
        const int64_t whole = 100000000;
        trainer->best =
            (ls_trainer_best){1, whole, (int64_t)(percent / 100.0 * (double)whole + 0.5)};
    }
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void warn_difference(const source *from, const char *name, double now)
{
    const char *was = metadata(from, name);
    char option[32];
    if (was[0] != '\0' && (float)strtod(was, NULL) != (float)now) {
        ls_text_put(option, sizeof option, "%s", name);
        for (char *c = option; *c != '\0'; c++) {
            *c = *c == '_' ? '-' : *c;
        }
        ls_log_warn("%s: --%s was %s, now %g", from->reader->path, option, was, now);
    }
}

static void report(const source *from, const ls_step_state *state)
{
    const ls_trainer *trainer = from->trainer;
    const ls_safetensors *file = from->reader->file;
    char taken[200] = "", lacks[300] = "", unused[512];
    int moments = trainer->memory.moment_count * trainer->memory.param_count;
    const char *epoch = metadata(from, "epoch"), *best = metadata(from, "best_percent");
    bool scaled = ls_safetensors_find(file, "scaler/loss_scale") != NULL;
    if (trainer->world.rank != 0) {
        return;
    }
    if (epoch[0] != '\0') {
        ls_text_add(taken, sizeof taken, ", epoch %s", epoch);
    }
    if (best[0] != '\0') {
        ls_text_add(taken, sizeof taken, ", best top-1 %.2f %%", strtod(best, NULL));
    }
    ls_log_note("--resume %s: takes %d parameters, %d running statistics, %d moments%s; loss scale "
                "%g",
                from->reader->path, from->params, from->buffers, from->moments, taken,
                (double)state->loss_scale);
    if (from->moments < moments) {
        ls_text_add(lacks, sizeof lacks, ", %d moments, which are 0", moments - from->moments);
    }
    if (trainer->precision.scaler.dynamic && !scaled) {
        ls_text_add(lacks, sizeof lacks, ", the loss scale, which starts anew");
    }
    if (trainer->memory.master != NULL) {
        ls_text_add(lacks, sizeof lacks, ", masters, made from its parameters");
    }
    if (epoch[0] == '\0') {
        ls_text_add(lacks, sizeof lacks, ", the epoch, so that the run starts at step 1");
    }
    ls_log_warn("%s: not bit for bit: it lacks the place in an epoch, the layout of buckets, other "
                "ranks' statistics%s",
                from->reader->path, lacks);
    ls_strict_reader_unused(from->reader, unused, sizeof unused);
    ls_text_add(unused, sizeof unused, "%s%s",
                unused[0] != '\0' && metadata(from, "unused")[0] != '\0' ? ", " : "",
                metadata(from, "unused"));
    if (unused[0] != '\0') {
        ls_log_note("%s: not used: %s", from->reader->path, unused);
    }
    warn_difference(from, "lr", trainer->options.lr);
    warn_difference(from, "momentum", trainer->options.momentum);
    warn_difference(from, "weight_decay", trainer->options.weight_decay);
}

static ls_status check_members(const source *from)
{
    const char *arch = metadata(from, "arch");
    const ls_safetensors *file = from->reader->file;
    if (arch[0] != '\0' && strcmp(arch, from->trainer->options.arch) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s: arch is '%s' there and '%s' here", from->reader->path,
                           arch, from->trainer->options.arch);
    }
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        bool of_network =
            strncmp(entry->name, "param/", 6) == 0 || strncmp(entry->name, "buffer/", 7) == 0;
        if (of_network && !ls_strict_reader_has_seen(from->reader, entry)) {
            return ls_log_fail(LS_ERR_USAGE, "%s: %s is no parameter or buffer of %s",
                               from->reader->path, entry->name + strcspn(entry->name, "/") + 1,
                               from->trainer->network.arch);
        }
    }
    return LS_OK;
}

ls_status ls_from_torch_load(ls_strict_reader *reader, ls_trainer *trainer, ls_step_state *state)
{
    source from = {.reader = reader, .trainer = trainer};
    ls_step_state read;
    LS_TRY(take_all(&from));
    LS_TRY(check_members(&from));
    LS_TRY(take_state(&from, &read));
    from.scratch = malloc((size_t)trainer->memory.largest * sizeof *from.scratch);
    LS_TRY_MEMORY(from.scratch != NULL, "memory to read %s", reader->path);
    ls_status status = clear_moments(&from);
    LS_THEN(status, take_all(&from));
    free(from.scratch);
    if (status == LS_OK) {
        take_progress(&from);
        report(&from, &read);
        *state = read;
    }
    return status;
}
