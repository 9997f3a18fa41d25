#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "reference/files/strict_reader.h"

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

static bool has_any_buffer(const ls_strict_reader *reader, const ls_network *network)
{
    for (int i = 0; i < network->buffer_count; i++) {
        if (ls_safetensors_find(reader->file, network->buffer[i].name) != NULL) {
            return true;
        }
    }
    return false;
}

/* A dump of a step holds its parameters as param/<name>, beside much that is not for starting. */
static bool is_dump(const ls_strict_reader *reader, const ls_network *network)
{
    char name[sizeof network->param[0].name + 8];
    snprintf(name, sizeof name, "param/%s", network->param[0].name);
    return ls_safetensors_find(reader->file, name) != NULL;
}

/* One pass checks, the second (scratch given) writes. Counters may be absent: files of weights drop
 * them. */
static ls_status init_pass(ls_strict_reader *reader, ls_trainer *trainer, bool dump, bool buffers,
                           float *scratch)
{
    const ls_memory *memory = &trainer->memory;
    const ls_safetensors_entry *entry = NULL;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        char name[sizeof param->name + 8];
        snprintf(name, sizeof name, "%s%s", dump ? "param/" : "", param->name);
        LS_TRY(ls_strict_reader_tensor(reader, name, LS_F32, true, &param->shape, &entry));
        if (scratch != NULL) {
            LS_TRY(write_any_float(trainer, &memory->param[i], entry, scratch));
        }
    }
    for (int i = 0; buffers && i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        if (buffer->role != LS_BUFFER_BATCHES_TRACKED) {
            ls_shape shape = {.rank = 1, .dim = {buffer->count}};
            LS_TRY(ls_strict_reader_tensor(reader, buffer->name, LS_F32, true, &shape, &entry));
            if (scratch != NULL) {
                LS_TRY(write_any_float(trainer, &memory->buffer[i], entry, scratch));
            }
        } else if (ls_safetensors_find(reader->file, buffer->name) != NULL) {
            ls_shape scalar = {0};
            LS_TRY(ls_strict_reader_tensor(reader, buffer->name, LS_I64, false, &scalar, &entry));
            if (scratch != NULL) {
                memcpy(memory->tracked, entry->data, sizeof *memory->tracked);
            }
        }
    }
    return LS_OK;
}

ls_status ls_weights_load(ls_trainer *trainer, const char *path)
{
    ls_strict_reader reader;
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
    LS_TRY_GOTO(status, ls_strict_reader_open(path, &reader), free);
    bool buffers = has_any_buffer(&reader, &trainer->network);
    bool dump = is_dump(&reader, &trainer->network);
    LS_TRY_GOTO(status, init_pass(&reader, trainer, dump, buffers, NULL), close);
    for (int i = 0; i < ls_safetensors_count(reader.file) && !dump; i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(reader.file, i);
        if (!ls_strict_reader_has_seen(&reader, entry)) {
            ls_log_error("%s: %s is no parameter or buffer of %s", path, entry->name,
                         trainer->network.arch);
            status = LS_ERR_USAGE;
            goto close;
        }
    }
    status = init_pass(&reader, trainer, dump, buffers, scratch);
close:
    ls_strict_reader_close(&reader);
free:
    free(scratch);
    return status;
}
