#include "bounds_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "reference/files/safetensors.h"

#define CONV "layer2.0.conv1.weight" /* in every network, tens of blocks large */

const ls_bounds_plant ls_bounds_plants[] = {
    {"all-doubled", LS_COMPARE_WHOLE, NULL, false},
    {"tensor-doubled", LS_COMPARE_TENSOR, "grad/" CONV, false},
    {"tensor-plus-10%", LS_COMPARE_TENSOR, "grad/" CONV, true},
    {"tensor-not-reduced", LS_COMPARE_TENSOR, "grad/" CONV, false},
    {"bias-zeroed", LS_COMPARE_SMALL, "grad/fc.bias", false},
    {"64-zeroed", LS_COMPARE_BLOCK, "grad/" CONV, false},
    {"last-8-zeroed", LS_COMPARE_EDGE, "grad/" CONV, false},
    {"logits-plus-10%", LS_BOUNDS_LOGITS, "logits", false},
    {"64-branches-turned", LS_BOUNDS_TIE, "branch/000", false},
    {"element-off", LS_BOUNDS_REDUCE, "grad/" CONV, false},
    {"step-off", LS_BOUNDS_NEXT, "next/" CONV, false},
    {"statistics-plus-10%", LS_BOUNDS_BUFFER, "buffer/bn1.running_mean", false},
};
const int ls_bounds_plant_count = sizeof ls_bounds_plants / sizeof *ls_bounds_plants;

static bool is(const ls_bounds_plant *plant, const char *name)
{
    return strcmp(plant->name, name) == 0;
}

/* Changes `value`, the tensor's bytes in the copy. `local`: rank 0's gradient before reduction. */
static void change(const ls_bounds_plant *plant, const ls_safetensors_entry *entry,
                   const ls_safetensors_entry *local, void *value)
{
    float *f = value;
    int64_t count = entry->bytes / (int64_t)sizeof *f;
    if (is(plant, "64-branches-turned")) {
        for (int64_t i = 0; i < 8 && i < entry->bytes; i++) {
            ((uint8_t *)value)[i] ^= 0xff;
        }
    } else if (is(plant, "step-off") && entry->dtype != LS_F32) {
        ((uint16_t *)value)[5] ^= 1u << 5; /* 32 units in the last place */
    } else if (is(plant, "step-off") || is(plant, "element-off")) {
        f[5] *= 1 + 0x1p-4f;
    } else if (is(plant, "tensor-not-reduced")) {
        memcpy(value, local->data, (size_t)entry->bytes);
    } else if (is(plant, "last-8-zeroed")) {
        memset(f + count - 8, 0, 8 * sizeof *f);
    } else if (is(plant, "64-zeroed")) {
        memset(f + 128, 0, 64 * sizeof *f);
    } else if (entry->dtype == LS_F16 || entry->dtype == LS_BF16) {
        for (int64_t i = 0; i < entry->bytes / 2; i++) { /* half buffers of O3: about as much */
            ((uint16_t *)value)[i] ^= entry->dtype == LS_F16 ? 1u << 7 : 1u << 4;
        }
    } else {
        float factor = is(plant, "bias-zeroed") ? 0 : strstr(plant->name, "10%") != NULL ? 1.1f : 2;
        for (int64_t i = 0; i < count; i++) {
            f[i] *= factor;
        }
    }
}

/* The data follows the header without gaps, as the format requires, and begins with the lowest
 * entry. */
static const char *data_begin(const ls_safetensors *file)
{
    const char *lowest = ls_safetensors_at(file, 0)->data;
    for (int i = 1; i < ls_safetensors_count(file); i++) {
        const char *data = ls_safetensors_at(file, i)->data;
        lowest = data < lowest ? data : lowest;
    }
    return lowest;
}

static ls_status plant_file(const ls_bounds_plant *plant, const ls_safetensors *first,
                            const char *path, const char *copy, int *changed)
{
    ls_safetensors *file = NULL;
    char *data = NULL;
    size_t bytes = 0;
    uint64_t header = 0;
    LS_TRY(ls_safetensors_open(path, &file));
    ls_status status;
    LS_TRY_GOTO(status, ls_file_read(path, LS_FILE_TEXT_BYTES, &data, &bytes), close_file);
    memcpy(&header, data, sizeof header);
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(file, i);
        bool chosen = plant->tensor == NULL ? strncmp(entry->name, "grad/", 5) == 0
                                            : strcmp(entry->name, plant->tensor) == 0;
        if (chosen) {
            ptrdiff_t at = (const char *)entry->data - data_begin(file);
            ++*changed;
            change(plant, entry, ls_safetensors_find(first, "local/" CONV),
                   data + sizeof header + header + at);
        }
    }
    FILE *out = ls_file_create(copy);
    if (out != NULL) {
        (void)fwrite(data, 1, bytes, out);
    }
    status = out == NULL ? LS_ERR_INFRA : ls_file_close(out, copy);
    free(data);
close_file:
    ls_safetensors_close(file);
    return status;
}

ls_status ls_bounds_plant_write(const ls_bounds_plant *plant, int world, const char *const *path,
                                const char *const *copy)
{
    if (is(plant, "tensor-not-reduced") && world == 1) {
        return LS_ERR_UNSUPPORTED;
    }
    ls_safetensors *first = NULL;
    LS_TRY(ls_safetensors_open(path[0], &first));
    ls_status status = LS_OK;
    for (int rank = 0, changed = 0; rank < world && status == LS_OK; rank++) {
        status = plant_file(plant, first, path[rank], copy[rank], &changed);
        if (status == LS_OK && changed == 0) {
            status = ls_log_fail(LS_ERR_CHECK, "%s has no tensor for the fault %s: nothing planted",
                                 path[rank], plant->name);
        }
    }
    ls_safetensors_close(first);
    return status;
}
