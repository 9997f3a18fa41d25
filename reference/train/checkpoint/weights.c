#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "reference/files/pth_state.h"
#include "reference/files/strict_reader.h"

static ls_status write_entry(const ls_trainer *trainer, const ls_tensor *to,
                             const ls_safetensors_entry *entry, float *scratch)
{
    return ls_device_write_float(&trainer->device, to, entry->dtype, entry->data, scratch);
}

/* A file being read: how its names begin, and what has been taken of it. */
typedef struct source {
    ls_strict_reader reader;
    bool of_run;                /* a dump or a checkpoint: it holds much that is not for starting */
    const char *param, *buffer; /* prefixes; buffer NULL: it holds no running statistics */
    int masters, buffers;
} source;

static const ls_safetensors_entry *find(const source *from, const char *prefix, const char *name)
{
    LS_TEXT(full, 160, "%s%s", prefix, name);
    return ls_safetensors_find(from->reader.file, full);
}

static void find_prefixes(source *from, const ls_network *network)
{
    /* Of a dump the statistics from before its step: its parameters are from before it, too. */
    static const char *const kinds[] = {"last_buffer/", "buffer/"};
    from->of_run = find(from, "param/", network->param[0].name) != NULL;
    from->param = from->of_run ? "param/" : "";
    from->buffer = NULL;
    for (int i = 0; i < network->buffer_count; i++) {
        for (int k = 0; k < (from->of_run ? 2 : 1) && from->buffer == NULL; k++) {
            const char *prefix = from->of_run ? kinds[k] : "";
            from->buffer = find(from, prefix, network->buffer[i].name) != NULL ? prefix : NULL;
        }
    }
}

/* A half parameter's master, which it is rounded from, where the file holds it. */
static ls_status find_param(source *from, const ls_param *param, const ls_safetensors_entry **out)
{
    LS_TEXT(name, 160, "%s%s", from->param, param->name);
    LS_TRY(ls_strict_reader_tensor(&from->reader, name, LS_F32, true, &param->shape, out));
    if (from->of_run && find(from, "master/", param->name) != NULL) {
        snprintf(name, sizeof name, "master/%s", param->name);
        LS_TRY(ls_strict_reader_tensor(&from->reader, name, LS_F32, true, &param->shape, out));
        from->masters++;
    }
    return ls_strict_reader_finite(&from->reader, *out);
}

/* *out NULL: a counter that the file leaves out, as files of weights do. */
static ls_status find_buffer(source *from, const ls_buffer *buffer,
                             const ls_safetensors_entry **out)
{
    bool counter = buffer->role == LS_BUFFER_BATCHES_TRACKED;
    ls_shape shape = {.rank = counter ? 0 : 1, .dim = {counter ? 0 : buffer->count}};
    char name[160];
    *out = NULL;
    if (counter && find(from, from->buffer, buffer->name) == NULL) {
        return LS_OK;
    }
    snprintf(name, sizeof name, "%s%s", from->buffer, buffer->name);
    LS_TRY(ls_strict_reader_tensor(&from->reader, name, counter ? LS_I64 : LS_F32, !counter, &shape,
                                   out));
    from->buffers++;
    return LS_OK;
}

/* One pass checks, the second (scratch given) writes. */
static ls_status init_pass(source *from, ls_trainer *trainer, float *scratch)
{
    const ls_memory *memory = &trainer->memory;
    const ls_safetensors_entry *entry = NULL;
    from->masters = from->buffers = 0;
    for (int i = 0; i < memory->param_count; i++) {
        LS_TRY(find_param(from, &memory->network->param[i], &entry));
        if (scratch != NULL) {
            LS_TRY(write_entry(trainer, &memory->param[i], entry, scratch));
        }
    }
    for (int i = 0; from->buffer != NULL && i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        LS_TRY(find_buffer(from, buffer, &entry));
        if (scratch == NULL || entry == NULL) {
            continue;
        }
        if (buffer->role == LS_BUFFER_BATCHES_TRACKED) {
            memcpy(memory->tracked, entry->data, sizeof *memory->tracked);
        } else {
            LS_TRY(write_entry(trainer, &memory->buffer[i], entry, scratch));
        }
    }
    return LS_OK;
}

static ls_status check_strangers(const source *from, const ls_network *network)
{
    const ls_safetensors *file = from->reader.file;
    const char *format = ls_safetensors_metadata_of(file, "format", "");
    bool foreign = strcmp(format, LS_PTH_STATE_FORMAT) == 0;
    for (int i = 0; i < ls_safetensors_count(file) && (!from->of_run || foreign); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        bool of_network = !foreign || strncmp(entry->name, "param/", 6) == 0 ||
                          strncmp(entry->name, "buffer/", 7) == 0;
        if (of_network && !ls_strict_reader_has_seen(&from->reader, entry)) {
            return ls_log_fail(LS_ERR_USAGE, "%s: %s is no parameter or buffer of %s",
                               from->reader.path, entry->name, network->arch);
        }
    }
    return LS_OK;
}

static void report(const source *from, const ls_trainer *trainer)
{
    char unused[512];
    const char *format = ls_safetensors_metadata_of(from->reader.file, "format", "");
    if (trainer->world.rank == 0 && strcmp(format, LS_CHECKPOINT_FORMAT) == 0) {
        ls_strict_reader_warn_unverified(&from->reader);
    }
    if (from->of_run && trainer->world.rank == 0) {
        ls_strict_reader_unused(&from->reader, unused, sizeof unused);
        const char *more = ls_safetensors_metadata_of(from->reader.file, "unused", "");
        ls_text_add(unused, sizeof unused, "%s%s", unused[0] != '\0' && more[0] != '\0' ? ", " : "",
                    more);
        ls_log_note("--init %s: takes %d parameters (%d of them from masters) and %d running "
                    "statistics; not used: %s",
                    from->reader.path, trainer->memory.param_count, from->masters, from->buffers,
                    unused[0] != '\0' ? unused : "nothing");
    }
}

ls_status ls_weights_load(ls_trainer *trainer, const char *path)
{
    source from = {.of_run = false};
    ls_status status = LS_OK;
    float *scratch = malloc((size_t)trainer->memory.largest * sizeof *scratch);
    LS_TRY_MEMORY(scratch != NULL, "memory to read %s", path);
    LS_TRY_GOTO(status, ls_strict_reader_open(path, &from.reader), free);
    find_prefixes(&from, &trainer->network);
    LS_TRY_GOTO(status, init_pass(&from, trainer, NULL), close);
    LS_TRY_GOTO(status, check_strangers(&from, &trainer->network), close);
    LS_TRY_GOTO(status, init_pass(&from, trainer, scratch), close);
    report(&from, trainer);
close:
    ls_strict_reader_close(&from.reader);
free:
    free(scratch);
    return status;
}
