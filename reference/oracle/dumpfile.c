#include "dumpfile.h"

#include <math.h>
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
    const ls_dumpfile_entry **by_name; /* sorted */
    char *why;                         /* while it is opened: [LS_DUMPFILE_WHY] */
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
    snprintf(file->why, LS_DUMPFILE_WHY, "%s is not a whole safetensors file: %s%s%s", file->path,
             what, name[0] != '\0' ? " in " : "", name);
    return LS_ERR_USAGE;
}

static bool whole(const cJSON *value, int64_t most, int64_t *out)
{
    return cJSON_IsNumber(value) && ls_json_whole(value->valuedouble, 0, most, out);
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
    int64_t room = (int64_t)(file->bytes - data_start), from, to;
    const cJSON *dim;
    cJSON_ArrayForEach(dim, shape)
    {
        int64_t *size = &entry->dim[entry->rank++];
        if (!whole(dim, room, size) || (*size > 0 && entry->count > room / *size)) {
            return broken(file, "a dimension that does not fit the file", entry->name);
        }
        entry->count *= *size;
    }
    entry->bytes = entry->count * bytes; /* at most 8 x the file */
    if (!cJSON_IsArray(offsets) || !whole(cJSON_GetArrayItem(offsets, 0), room, &from) ||
        !whole(cJSON_GetArrayItem(offsets, 1), room, &to) || cJSON_GetArraySize(offsets) != 2 ||
        to - from != entry->bytes) {
        return broken(file, "offsets that fit neither shape nor file", entry->name);
    }
    if ((data_start + (size_t)from) % (size_t)bytes != 0) {
        return broken(file, "data that are not aligned to their elements", entry->name);
    }
    entry->data = file->data + data_start + (size_t)from;
    return LS_OK;
}

static int compare_name(const void *left, const void *right)
{
    const ls_dumpfile_entry *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static ls_status sort_names(ls_dumpfile *file)
{
    for (int i = 0; i < file->count; i++) {
        file->by_name[i] = &file->entry[i];
    }
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
    for (int i = 1; i < file->count; i++) {
        if (compare_name(&file->by_name[i - 1], &file->by_name[i]) == 0) {
            return broken(file, "a name that stands twice", file->by_name[i]->name);
        }
    }
    return LS_OK;
}

/* The format has text only: a number there would count as missing. */
static ls_status check_metadata(const ls_dumpfile *file)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__"), *one;
    if (metadata != NULL && !cJSON_IsObject(metadata)) {
        return broken(file, "metadata that are no object", "");
    }
    cJSON_ArrayForEach(one, metadata)
    {
        if (!cJSON_IsString(one)) {
            return broken(file, "metadata that are no text", one->string);
        }
    }
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
    file->by_name = calloc((size_t)members + 1, sizeof *file->by_name);
    LS_MEMORY(file->entry != NULL && file->by_name != NULL);
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header)
    {
        if (strcmp(item->string, "__metadata__") != 0) {
            LS_TRY(read_entry(file, item, 8 + (size_t)length, &file->entry[file->count]));
            file->count++;
        }
    }
    LS_TRY(check_metadata(file));
    return sort_names(file);
}

ls_status ls_dumpfile_try(const char *path, char why[LS_DUMPFILE_WHY], ls_dumpfile **out)
{
    ls_dumpfile *file = calloc(1, sizeof *file);
    LS_MEMORY(file != NULL);
    snprintf(file->path, sizeof file->path, "%s", path);
    file->why = why;
    char *data = NULL;
    ls_file_source source;
    ls_status status = ls_file_load(path, ls_file_most(), &source, &data, &file->bytes);
    if (status != LS_OK) {
        snprintf(why, LS_DUMPFILE_WHY, "%.*s", LS_DUMPFILE_WHY - 1, source.why);
    } else {
        file->data = (unsigned char *)data;
        status = read_header(file);
    }
    if (status != LS_OK) {
        ls_dumpfile_close(file);
        return status;
    }
    *out = file;
    return LS_OK;
}

ls_status ls_dumpfile_open(const char *path, ls_dumpfile **out)
{
    char why[LS_DUMPFILE_WHY] = "";
    ls_status status = ls_dumpfile_try(path, why, out);
    return status == LS_OK || why[0] == '\0' ? status : ls_log_fail(status, "%s", why);
}

void ls_dumpfile_close(ls_dumpfile *file)
{
    if (file == NULL) {
        return;
    }
    free(file->data);
    cJSON_Delete(file->header);
    free(file->entry);
    free(file->by_name);
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
    const ls_dumpfile_entry wanted = {.name = name}, *key = &wanted;
    const ls_dumpfile_entry **found =
        bsearch(&key, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
    return found != NULL ? *found : NULL;
}

bool ls_dumpfile_has(const ls_dumpfile *file, const char *prefix)
{
    bool found = false;
    for (int i = 0; i < file->count && !found; i++) {
        found = strncmp(file->entry[i].name, prefix, strlen(prefix)) == 0;
    }
    return found;
}

bool ls_dumpfile_floats(const ls_dumpfile_entry *entry, int64_t count)
{
    return entry != NULL && entry->count == count && strchr("FB", entry->dtype[0]) != NULL &&
           strcmp(entry->dtype, "BOOL") != 0;
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

bool ls_dumpfile_equal(const ls_dumpfile_entry *a, const ls_dumpfile_entry *b)
{
    return a != NULL && b != NULL && strcmp(a->dtype, b->dtype) == 0 && a->count == b->count &&
           memcmp(a->data, b->data, (size_t)a->bytes) == 0;
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
    return end == text || *end != '\0' ? NAN : value;
}

int64_t ls_dumpfile_integer(const ls_dumpfile *file, const char *name, int64_t fallback)
{
    const int64_t most = INT64_C(1) << 53;
    int64_t value = INT64_MIN;
    bool absent = ls_dumpfile_text(file, name, NULL) == NULL;
    (void)ls_json_whole(ls_dumpfile_number(file, name, 0), -most, most, &value);
    return absent ? fallback : value;
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
#define READ_ANY_AS(type)                           \
    if (strcmp(entry->dtype, "F64") == 0) {         \
        READ_AS(double, (type))                     \
    } else if (strcmp(entry->dtype, "F32") == 0) {  \
        READ_AS(float, (type))                      \
    } else if (strcmp(entry->dtype, "F16") == 0) {  \
        READ_AS(uint16_t, (type)ls_bits_of_fp16)    \
    } else if (strcmp(entry->dtype, "BF16") == 0) { \
        READ_AS(uint16_t, (type)ls_bits_of_bf16)    \
    } else if (strcmp(entry->dtype, "I64") == 0) {  \
        READ_AS(int64_t, (type))                    \
    } else if (strcmp(entry->dtype, "I32") == 0) {  \
        READ_AS(int32_t, (type))                    \
    } else {                                        \
        READ_AS(uint8_t, (type))                    \
    }

void ls_dumpfile_read(const ls_dumpfile_entry *entry, double *value)
{
    READ_ANY_AS(double)
}

void ls_dumpfile_read_f32(const ls_dumpfile_entry *entry, float *value)
{
    READ_ANY_AS(float)
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
