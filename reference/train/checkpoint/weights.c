/* Values of files that are no checkpoint of this run: --init, and --resume of a script's file. */
#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"

/* A file being read: how its names begin, and what has been taken of it. */
typedef struct source {
    ls_safetensors *file;
    ls_trainer *trainer;
    bool resumes;               /* masters and moments, too */
    bool of_run;                /* a dump, a checkpoint or a script's: it holds more */
    const char *param, *buffer; /* prefixes; buffer NULL: it holds no running statistics */
    float *scratch;             /* [largest parameter]; NULL: only checks */
    int masters, moments, buffers;
} source;

static const char *metadata(const source *from, const char *name)
{
    return ls_safetensors_metadata_of(from->file, name, "");
}

static const ls_safetensors_entry *find(const source *from, const char *prefix, const char *name)
{
    LS_TEXT(full, 160, "%s%s", prefix, name);
    return ls_safetensors_find(from->file, full);
}

static bool has_format(const source *from, const char *format)
{
    return strcmp(metadata(from, "format"), format) == 0;
}

static void find_prefixes(source *from)
{
    /* Of a dump the statistics from before its step: its parameters are from before it, too. */
    static const char *const kinds[] = {"last_buffer/", "buffer/"};
    const ls_network *network = &from->trainer->network;
    from->of_run = from->resumes || find(from, "param/", network->param[0].name) != NULL;
    from->param = from->of_run ? "param/" : "";
    from->buffer = from->resumes ? "buffer/" : NULL;
    for (int i = 0; i < network->buffer_count; i++) {
        for (int k = 0; k < (from->of_run ? 2 : 1) && from->buffer == NULL; k++) {
            const char *prefix = from->of_run ? kinds[k] : "";
            from->buffer = find(from, prefix, network->buffer[i].name) != NULL ? prefix : NULL;
        }
    }
}

/* *out is a tensor of the file, of any float type and finite. */
static ls_status find_finite(source *from, const char *name, const ls_shape *shape,
                             const ls_safetensors_entry **out)
{
    LS_TRY(ls_safetensors_require(from->file, name, LS_F32, true, shape, out));
    return ls_safetensors_require_finite(from->file, *out);
}

static ls_status write_tensor(const source *from, const ls_tensor *to,
                              const ls_safetensors_entry *entry)
{
    return from->scratch == NULL || to->data == NULL
               ? LS_OK
               : ls_device_write_float(&from->trainer->device, to, entry->dtype, entry->data,
                                       from->scratch);
}

/* Of a half parameter the master, which it is rounded from, where the file holds it. */
static ls_status take_param(source *from, int index)
{
    const ls_memory *memory = &from->trainer->memory;
    const ls_param *param = &memory->network->param[index];
    const ls_safetensors_entry *entry = NULL;
    LS_TEXT(name, 160, "%s%s", from->param, param->name);
    LS_TRY(ls_safetensors_require(from->file, name, LS_F32, true, &param->shape, &entry));
    if (from->of_run && find(from, "master/", param->name) != NULL) {
        ls_text_put(name, sizeof name, "master/%s", param->name);
        from->masters++;
    }
    LS_TRY(find_finite(from, name, &param->shape, &entry));
    LS_TRY(write_tensor(from, &memory->param[index], entry));
    if (from->resumes && memory->master != NULL) {
        LS_TRY(write_tensor(from, &memory->master[index], entry));
    }
    for (int m = 0; from->resumes && m < memory->moment_count; m++) {
        ls_text_put(name, sizeof name, "state/%s/%s", param->name,
                    ls_optimizers_moment_name(from->trainer->options.optimizer, m));
        if (ls_safetensors_find(from->file, name) != NULL) {
            LS_TRY(find_finite(from, name, &param->shape, &entry));
            LS_TRY(write_tensor(from, &memory->moment[m][index], entry));
            from->moments++;
        }
    }
    return LS_OK;
}

/* A counter may be left out, as files of weights do. */
static ls_status take_buffer(source *from, int index)
{
    const ls_memory *memory = &from->trainer->memory;
    const ls_buffer *buffer = &memory->network->buffer[index];
    bool counter = buffer->role == LS_BUFFER_BATCHES_TRACKED;
    ls_shape shape = {.rank = counter ? 0 : 1, .dim = {counter ? 0 : buffer->count}};
    const ls_safetensors_entry *entry = NULL;
    LS_TEXT(name, 160, "%s%s", from->buffer, buffer->name);
    if (counter && ls_safetensors_find(from->file, name) == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_safetensors_require(from->file, name, counter ? LS_I64 : LS_F32, !counter, &shape,
                                  &entry));
    from->buffers++;
    if (counter && from->scratch != NULL) {
        memcpy(memory->tracked, entry->data, sizeof *memory->tracked);
    }
    return counter ? LS_OK : write_tensor(from, &memory->buffer[index], entry);
}

static ls_status take_all(source *from)
{
    const ls_memory *memory = &from->trainer->memory;
    from->masters = from->moments = from->buffers = 0;
    for (int i = 0; i < memory->param_count; i++) {
        LS_TRY(take_param(from, i));
    }
    for (int i = 0; from->buffer != NULL && i < memory->buffer_count; i++) {
        LS_TRY(take_buffer(from, i));
    }
    return LS_OK;
}

/* The second pass, which writes. */
static ls_status write_all(source *from)
{
    const ls_memory *memory = &from->trainer->memory;
    ls_status status = LS_OK;
    from->scratch = ls_list_make((size_t)memory->largest, sizeof *from->scratch);
    /* moments that the file lacks are 0, as in a run that begins */
    for (int m = 0; from->resumes && m < memory->moment_count; m++) {
        for (int i = 0; i < memory->param_count; i++) {
            LS_THEN(status, ls_device_write_f32(&from->trainer->device, &memory->moment[m][i],
                                                from->scratch));
        }
    }
    LS_THEN(status, take_all(from));
    free(from->scratch);
    return status;
}

/* Of a script's file the parameters and buffers, of plain weights everything must be used. */
static ls_status check_strangers(const source *from)
{
    bool foreign = has_format(from, LS_PTH_STATE_FORMAT);
    for (int i = 0; i < ls_safetensors_count(from->file) && (!from->of_run || foreign); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(from->file, i);
        bool of_network = !foreign || strncmp(entry->name, "param/", 6) == 0 ||
                          strncmp(entry->name, "buffer/", 7) == 0;
        if (of_network && !entry->seen) {
            size_t prefix = from->resumes ? strcspn(entry->name, "/") + 1 : 0;
            return ls_log_fail(LS_ERR_USAGE, "%s: %s is no parameter or buffer of %s",
                               ls_safetensors_path(from->file), entry->name + prefix,
                               from->trainer->network.arch);
        }
    }
    return LS_OK;
}

/* What of the file has no use, here or in itself. */
static void list_unused(const source *from, char *text, size_t bytes)
{
    const char *more = metadata(from, "unused");
    ls_safetensors_unused(from->file, text, bytes);
    ls_text_add(text, bytes, "%s%s", text[0] != '\0' && more[0] != '\0' ? ", " : "", more);
}

static void report(const source *from)
{
    char unused[512];
    if (from->trainer->world.rank != 0) {
        return;
    }
    if (has_format(from, LS_CHECKPOINT_FORMAT)) {
        ls_safetensors_warn_unverified(from->file);
    }
    if (from->of_run) {
        list_unused(from, unused, sizeof unused);
        ls_log_note("--init %s: takes %d parameters (%d of them from masters) and %d running "
                    "statistics; not used: %s",
                    ls_safetensors_path(from->file), from->trainer->memory.param_count,
                    from->masters, from->buffers, unused[0] != '\0' ? unused : "nothing");
    }
}

ls_status ls_weights_load(ls_trainer *trainer, const char *path)
{
    source from = {.trainer = trainer};
    LS_TRY(ls_pth_state_open(path, &from.file));
    find_prefixes(&from);
    ls_status status = take_all(&from);
    LS_THEN(status, check_strangers(&from));
    LS_THEN(status, write_all(&from));
    if (status == LS_OK) {
        report(&from);
    }
    ls_safetensors_close(from.file);
    return status;
}

/* ---- a script's run -------------------------------------------------------------------------- */

static ls_status take_number(source *from, const char *name, ls_dtype dtype, void *out)
{
    const ls_shape scalar = {0};
    const ls_safetensors_entry *entry = NULL;
    if (ls_safetensors_find(from->file, name) != NULL) {
        LS_TRY(ls_safetensors_require(from->file, name, dtype, false, &scalar, &entry));
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
    double percent = strtod(metadata(from, "best_percent"), NULL);
    trainer->resumed_epochs = 0;
    (void)ls_text_integer(metadata(from, "epoch"), 0, 1000000000, &trainer->resumed_epochs);
    if (metadata(from, "best_percent")[0] != '\0' && percent >= 0 && percent <= 100) {
        const int64_t whole = 100000000;
        trainer->best =
            (ls_trainer_best){1, whole, (int64_t)(percent / 100.0 * (double)whole + 0.5)};
    }
}

static void warn_differences(const source *from)
{
    const ls_options *options = &from->trainer->options;
    const struct {
        const char *name, *option;
        double now;
    } rows[] = {
        {"lr", "lr", options->lr},
        {"momentum", "momentum", options->momentum},
        {"weight_decay", "weight-decay", options->weight_decay},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *was = metadata(from, rows[i].name);
        if (was[0] != '\0' && (float)strtod(was, NULL) != (float)rows[i].now) {
            ls_log_warn("%s: --%s was %s, now %g", ls_safetensors_path(from->file), rows[i].option,
                        was, rows[i].now);
        }
    }
}

static void report_resumed(const source *from, const ls_step_state *state)
{
    const ls_trainer *trainer = from->trainer;
    const char *path = ls_safetensors_path(from->file);
    char taken[200] = "", lacks[300] = "", unused[512];
    int params = trainer->memory.param_count, moments = trainer->memory.moment_count * params;
    const char *epoch = metadata(from, "epoch"), *best = metadata(from, "best_percent");
    bool scaled = ls_safetensors_find(from->file, "scaler/loss_scale") != NULL;
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
                path, params, from->buffers, from->moments, taken, (double)state->loss_scale);
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
                path, lacks);
    list_unused(from, unused, sizeof unused);
    if (unused[0] != '\0') {
        ls_log_note("%s: not used: %s", path, unused);
    }
    warn_differences(from);
}

ls_status ls_weights_resume(ls_safetensors *file, ls_trainer *trainer, ls_step_state *state)
{
    source from = {.file = file, .trainer = trainer, .resumes = true};
    ls_step_state read;
    find_prefixes(&from);
    LS_TRY(take_all(&from));
    if (metadata(&from, "arch")[0] != '\0') {
        LS_TRY(ls_safetensors_require_metadata(file, "arch", "%s", trainer->options.arch));
    }
    LS_TRY(check_strangers(&from));
    LS_TRY(take_state(&from, &read));
    LS_TRY(write_all(&from));
    take_progress(&from);
    report_resumed(&from, &read);
    *state = read;
    return LS_OK;
}
