#include "dumpfile.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "bits.h"

struct ls_dumpfile {
    char path[1024];
    unsigned char *data;
    size_t bytes;
    cJSON *header;
    int count;
    ls_dumpfile_entry *entry;
};

static int64_t element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2},
                 {"I64", 8}, {"I32", 4}, {"U8", 1},  {"BOOL", 1}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(dtype, types[i].name) == 0) {
            return types[i].bytes;
        }
    }
    return 0;
}

static ls_status broken(const ls_dumpfile *file, const char *what, const char *name)
{
    return ls_log_fail(LS_ERR_USAGE, "%s is not a whole safetensors file: %s%s%s", file->path, what,
                       name[0] != '\0' ? " in " : "", name);
}

static ls_status read_entry(const ls_dumpfile *file, const cJSON *item, size_t data_start,
                            ls_dumpfile_entry *entry)
{
    *entry = (ls_dumpfile_entry){.name = item->string, .count = 1};
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    snprintf(entry->dtype, sizeof entry->dtype, "%s", ls_json_string(item, "dtype", "none"));
    int64_t bytes = element_bytes(entry->dtype);
    if (bytes == 0) {
        return broken(file, "unknown dtype", entry->name);
    }
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > LS_DUMPFILE_RANK_MAX) {
        return broken(file, "no usable shape", entry->name);
    }
    int64_t room = (int64_t)(file->bytes - data_start);
    const cJSON *dim;
    cJSON_ArrayForEach(dim, shape)
    {
        double size = cJSON_IsNumber(dim) ? dim->valuedouble : -1;
        if (!(size >= 0) || size > (double)room ||
            (size > 0 && entry->count > room / (int64_t)size)) {
            return broken(file, "a dimension that does not fit the file", entry->name);
        }
        entry->dim[entry->rank++] = (int64_t)size;
        entry->count *= (int64_t)size;
    }
    double from = -1, to = -1;
    if (cJSON_IsArray(offsets) && cJSON_GetArraySize(offsets) == 2) {
        from = cJSON_GetArrayItem(offsets, 0)->valuedouble;
        to = cJSON_GetArrayItem(offsets, 1)->valuedouble;
    }
    if (!(from >= 0) || !(to <= (double)room) || to - from != (double)(entry->count * bytes)) {
        return broken(file, "offsets that fit neither shape nor file", entry->name);
    }
    entry->data = file->data + data_start + (size_t)from;
    return LS_OK;
}

static ls_status read_header(ls_dumpfile *file)
{
    if (file->bytes < 8) {
        return broken(file, "shorter than its first 8 bytes", "");
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | file->data[i];
    }
    if (length > file->bytes - 8) {
        return broken(file, "the header is longer than the file", "");
    }
    file->header = cJSON_ParseWithLength((const char *)file->data + 8, length);
    if (!cJSON_IsObject(file->header)) {
        return broken(file, "the header is not a JSON object", "");
    }
    int members = cJSON_GetArraySize(file->header);
    file->entry = calloc((size_t)members + 1, sizeof *file->entry);
    LS_TRY_MEMORY(file->entry != NULL, "%d entries for %s", members, file->path);
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header)
    {
        if (strcmp(item->string, "__metadata__") != 0) {
            LS_TRY(read_entry(file, item, 8 + (size_t)length, &file->entry[file->count]));
            file->count++;
        }
    }
    return LS_OK;
}

ls_status ls_dumpfile_open(const char *path, ls_dumpfile **out)
{
    ls_dumpfile *file = calloc(1, sizeof *file);
    LS_TRY_MEMORY(file != NULL, "a reader for %s", path);
    snprintf(file->path, sizeof file->path, "%s", path);
    ls_status status;
    char *data = NULL;
    LS_TRY_GOTO(status, ls_file_read(path, ls_file_most(), &data, &file->bytes), close_file);
    file->data = (unsigned char *)data;
    LS_TRY_GOTO(status, read_header(file), close_file);
    *out = file;
    return LS_OK;
close_file:
    ls_dumpfile_close(file);
    return status;
}

void ls_dumpfile_close(ls_dumpfile *file)
{
    if (file == NULL) {
        return;
    }
    free(file->data);
    cJSON_Delete(file->header);
    free(file->entry);
    free(file);
}

const char *ls_dumpfile_path(const ls_dumpfile *file)
{
    return file->path;
}

int ls_dumpfile_count(const ls_dumpfile *file)
{
    return file->count;
}

const ls_dumpfile_entry *ls_dumpfile_at(const ls_dumpfile *file, int index)
{
    return &file->entry[index];
}

const ls_dumpfile_entry *ls_dumpfile_find(const ls_dumpfile *file, const char *name)
{
    for (int i = 0; i < file->count; i++) {
        if (strcmp(file->entry[i].name, name) == 0) {
            return &file->entry[i];
        }
    }
    return NULL;
}

const ls_dumpfile_entry *ls_dumpfile_findf(const ls_dumpfile *file, const char *format, ...)
{
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    return ls_dumpfile_find(file, name);
}

const char *ls_dumpfile_text(const ls_dumpfile *file, const char *name, const char *fallback)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    return ls_json_string(metadata, name, fallback);
}

double ls_dumpfile_number(const ls_dumpfile *file, const char *name, double fallback)
{
    const char *text = ls_dumpfile_text(file, name, NULL);
    if (text == NULL) {
        return fallback;
    }
    char *end;
    double value = strtod(text, &end);
    return end == text ? fallback : value;
}

bool ls_dumpfile_flag(const ls_dumpfile *file, const char *name, bool fallback)
{
    const char *text = ls_dumpfile_text(file, name, NULL);
    if (text == NULL) {
        return fallback;
    }
    return strcmp(text, "1") == 0 || strcmp(text, "true") == 0 || strcmp(text, "True") == 0;
}

#define READ_AS(type, convert)                                                      \
    for (int64_t i = 0; i < entry->count; i++) {                                    \
        type element;                                                               \
        memcpy(&element, entry->data + (size_t)i * sizeof element, sizeof element); \
        value[i] = convert(element);                                                \
    }

void ls_dumpfile_read(const ls_dumpfile_entry *entry, double *value)
{
    if (strcmp(entry->dtype, "F64") == 0) {
        READ_AS(double, (double))
    } else if (strcmp(entry->dtype, "F32") == 0) {
        READ_AS(float, (double))
    } else if (strcmp(entry->dtype, "F16") == 0) {
        READ_AS(uint16_t, ls_bits_of_fp16)
    } else if (strcmp(entry->dtype, "BF16") == 0) {
        READ_AS(uint16_t, ls_bits_of_bf16)
    } else if (strcmp(entry->dtype, "I64") == 0) {
        READ_AS(int64_t, (double))
    } else if (strcmp(entry->dtype, "I32") == 0) {
        READ_AS(int32_t, (double))
    } else {
        READ_AS(uint8_t, (double))
    }
}

void ls_dumpfile_read_f32(const ls_dumpfile_entry *entry, float *value)
{
    if (strcmp(entry->dtype, "F32") == 0) {
        memcpy(value, entry->data, (size_t)entry->count * sizeof *value);
    } else if (strcmp(entry->dtype, "F64") == 0) {
        READ_AS(double, (float))
    } else if (strcmp(entry->dtype, "BF16") == 0) {
        READ_AS(uint16_t, (float)ls_bits_of_bf16)
    } else {
        READ_AS(uint16_t, (float)ls_bits_of_fp16)
    }
}

bool ls_dumpfile_read_i64(const ls_dumpfile_entry *entry, int64_t *value)
{
    if (strcmp(entry->dtype, "I64") == 0) {
        READ_AS(int64_t, (int64_t))
    } else if (strcmp(entry->dtype, "I32") == 0) {
        READ_AS(int32_t, (int64_t))
    } else if (strcmp(entry->dtype, "U8") == 0 || strcmp(entry->dtype, "BOOL") == 0) {
        READ_AS(uint8_t, (int64_t))
    } else {
        return false;
    }
    return true;
}
