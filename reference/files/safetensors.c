#include "safetensors.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"

enum {
    LENGTH_BYTES = 8,
    HEADER_BYTES_MAX = 100000000, /* the format's own limit */
    DATA_ALIGN = 8,               /* largest element; the header is padded with spaces up to it */
    DIGITS = 16,                  /* of a digest */
};

/* Digests of a lasting file, in its metadata. XXH64, in hexadecimal: */
#define TENSORS \
    "xxh64_tensors"           /* of each tensor's data, one after the other in the order of data */
#define HEADER "xxh64_header" /* of the header without these digits, which it follows */

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct write_entry {
    char *name;
    ls_dtype dtype;
    ls_shape shape;
    const void *data;
    void *copy; /* data if the writer owns it, else NULL */
} write_entry;

struct ls_safetensors_writer {
    char *path;
    cJSON *metadata;
    write_entry *entry;
    int count, room;
    bool lasting;
};

ls_status ls_safetensors_create(const char *path, ls_safetensors_writer **out)
{
    if (strlen(path) + 16 >= PATH_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "path too long: %.100s...", path);
    }
    ls_safetensors_writer *writer = ls_list_make(1, sizeof *writer);
    writer->path = strdup(path);
    writer->metadata = cJSON_CreateObject();
    LS_MEMORY(writer->path != NULL && writer->metadata != NULL);
    *out = writer;
    return LS_OK;
}

void ls_safetensors_metadata(ls_safetensors_writer *writer, const char *name, const char *format,
                             ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    LS_ASSERT(length >= 0);
    cJSON_DeleteItemFromObjectCaseSensitive(writer->metadata, name);
    cJSON_AddStringToObject(writer->metadata, name, text);
    free(text);
}

void ls_safetensors_lasting(ls_safetensors_writer *writer)
{
    writer->lasting = true;
}

static write_entry *add_entry(ls_safetensors_writer *writer, const char *name, ls_dtype dtype,
                              const ls_shape *shape, const void *data)
{
    LS_ASSERT(strcmp(name, "__metadata__") != 0);
    writer->entry =
        ls_list_grow(writer->entry, writer->count, &writer->room, sizeof *writer->entry);
    write_entry *entry = &writer->entry[writer->count++];
    *entry = (write_entry){strdup(name), dtype, *shape, data, NULL};
    LS_MEMORY(entry->name != NULL);
    return entry;
}

void ls_safetensors_add(ls_safetensors_writer *writer, const char *name, ls_dtype dtype,
                        const ls_shape *shape, const void *host_data)
{
    add_entry(writer, name, dtype, shape, host_data);
}

static size_t entry_bytes(const write_entry *entry)
{
    return (size_t)ls_shape_count(&entry->shape) * ls_dtype_bytes(entry->dtype);
}

ls_status ls_safetensors_add_copy(ls_safetensors_writer *writer, const char *name, ls_dtype dtype,
                                  const ls_shape *shape, const void *host_data)
{
    size_t bytes = (size_t)ls_shape_count(shape) * ls_dtype_bytes(dtype);
    void *copy = malloc(bytes > 0 ? bytes : 1);
    LS_TRY_MEMORY(copy != NULL, "%zu bytes for %s of %s", bytes, name, writer->path);
    memcpy(copy, host_data, bytes);
    add_entry(writer, name, dtype, shape, copy)->copy = copy;
    return LS_OK;
}

/* Largest elements first, so that every tensor is aligned to its element without gaps, which the
 * format forbids; tensors of equal size keep the order in which they were added. */
static int *data_order(const ls_safetensors_writer *writer)
{
    int *order = ls_list_make((size_t)writer->count + 1, sizeof *order);
    int next = 0;
    for (size_t bytes = DATA_ALIGN; bytes > 0; bytes /= 2) {
        for (int i = 0; i < writer->count; i++) {
            if (ls_dtype_bytes(writer->entry[i].dtype) == bytes) {
                order[next++] = i;
            }
        }
    }
    LS_ASSERT(next == writer->count);
    return order;
}

static void put_digest(char *text, uint64_t digest)
{
    snprintf(text, DIGITS + 1, "%016llx", (unsigned long long)digest);
}

static void add_digests_of_tensors(const ls_safetensors_writer *writer, const int *order)
{
    char *text = ls_list_make((size_t)writer->count + 1, DIGITS);
    for (int i = 0; i < writer->count; i++) {
        const write_entry *entry = &writer->entry[order[i]];
        put_digest(text + i * DIGITS, ls_digest_xxh64(0, entry->data, entry_bytes(entry)));
    }
    cJSON_AddStringToObject(writer->metadata, TENSORS, text);
    cJSON_AddStringToObject(writer->metadata, HEADER,
                            "0123456789abcdef"); /* make_header fills it in */
    free(text);
}

/* Place of the digits of HEADER in the header's text, NULL if it has none. */
static char *header_digits(const char *header, size_t length)
{
    static const char mark[] = "\"" HEADER "\":\"";
    char *found = memmem(header, length, mark, sizeof mark - 1);
    size_t rest = found == NULL ? 0 : length - (size_t)(found - header) - (sizeof mark - 1);
    return rest >= DIGITS ? found + sizeof mark - 1 : NULL;
}

static uint64_t digest_around(const char *header, size_t length, const char *digits)
{
    const char *after = digits + DIGITS;
    uint64_t before = ls_digest_xxh64(0, header, (size_t)(digits - header));
    return ls_digest_xxh64(before, after, length - (size_t)(after - header));
}

/* Header text, padded to DATA_ALIGN with spaces as the format's own writer does; malloc'ed. */
static char *make_header(const ls_safetensors_writer *writer, const int *order, size_t *length)
{
    cJSON *root = cJSON_CreateObject();
    LS_MEMORY(root != NULL);
    if (writer->lasting) {
        add_digests_of_tensors(writer, order);
    }
    cJSON_AddItemReferenceToObject(root, "__metadata__", writer->metadata);
    double offset = 0;
    for (int i = 0; i < writer->count; i++) {
        const write_entry *entry = &writer->entry[order[i]];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "dtype", ls_dtype_name(entry->dtype));
        cJSON *shape = cJSON_AddArrayToObject(item, "shape");
        for (int d = 0; d < entry->shape.rank; d++) {
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry->shape.dim[d]));
        }
        cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(offset));
        offset += (double)entry_bytes(entry);
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(offset));
        cJSON_AddItemToObject(root, entry->name, item);
    }
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    LS_MEMORY(text != NULL);
    size_t used = strlen(text), padded = (used + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    text = realloc(text, padded + 1);
    LS_MEMORY(text != NULL);
    memset(text + used, ' ', padded - used);
    text[padded] = '\0';
    char *digits = writer->lasting ? header_digits(text, padded) : NULL;
    if (digits != NULL) {
        char hex[DIGITS + 1];
        put_digest(hex, digest_around(text, padded, digits));
        memcpy(digits, hex, DIGITS);
    }
    *length = padded;
    return text;
}

static ls_status write_file(const ls_safetensors_writer *writer, int descriptor, const char *path)
{
    int *order = data_order(writer);
    size_t length = 0;
    char *header = make_header(writer, order, &length);
    unsigned char prefix[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) {
        prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    ls_status status = ls_file_write(descriptor, path, prefix, sizeof prefix);
    LS_THEN(status, ls_file_write(descriptor, path, header, length));
    for (int i = 0; i < writer->count && status == LS_OK; i++) {
        const write_entry *entry = &writer->entry[order[i]];
        status = ls_file_write(descriptor, path, entry->data, entry_bytes(entry));
    }
    free(header);
    free(order);
    return status;
}

int ls_safetensors_try_create(const char *path)
{
    ls_file_draft draft;
    int error = ls_file_draft_open(path, &draft);
    if (error == 0) {
        (void)ls_file_draft_close(&draft, LS_ERR_CHECK, false);
    }
    return error;
}

ls_status ls_safetensors_finish(ls_safetensors_writer *writer)
{
    ls_file_draft draft;
    ls_status status = LS_OK;
    int error = ls_file_draft_open(writer->path, &draft);
    if (error != 0) {
        status = ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", writer->path, strerror(error));
    } else {
        status = write_file(writer, draft.descriptor, writer->path);
        status = ls_file_draft_close(&draft, status, writer->lasting);
    }
    ls_safetensors_discard(writer);
    return status;
}

void ls_safetensors_discard(ls_safetensors_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    for (int i = 0; i < writer->count; i++) {
        free(writer->entry[i].name);
        free(writer->entry[i].copy);
    }
    free(writer->entry);
    cJSON_Delete(writer->metadata);
    free(writer->path);
    free(writer);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct ls_safetensors {
    char *path;
    char *data;
    size_t bytes;
    cJSON *header;
    ls_safetensors_entry *entry; /* in the header's order */
    ls_safetensors_entry **by_name;
    int count;
    void *owner; /* of what another format held */
    void (*close_owner)(void *owner);
};

static ls_status broken(const char *path, const char *format, ...) LS_PRINTF(2, 3);
static ls_status broken(const char *path, const char *format, ...)
{
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return ls_log_fail(LS_ERR_USAGE, "%s is not a whole safetensors file: %s", path, reason);
}

static ls_status read_file(ls_safetensors *file)
{
    ls_file_source source;
    ls_status status = ls_file_load(file->path, ls_file_most(), &source, &file->data, &file->bytes);
    if (status != LS_OK) {
        return ls_log_fail(source.descriptor < 0 ? LS_ERR_USAGE : status, "%s", source.why);
    }
    if (file->bytes < LENGTH_BYTES) {
        return broken(file->path, "it has %zu bytes", file->bytes);
    }
    return LS_OK;
}

static ls_status parse_header(ls_safetensors *file, size_t *data_start)
{
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | (unsigned char)file->data[i];
    }
    if (length > HEADER_BYTES_MAX) {
        return broken(file->path, "a header of %llu bytes; at most %d are allowed",
                      (unsigned long long)length, HEADER_BYTES_MAX);
    }
    if (length > file->bytes - LENGTH_BYTES) {
        return broken(file->path, "a header of %llu bytes in a file of %zu",
                      (unsigned long long)length, file->bytes);
    }
    file->header = cJSON_ParseWithLength(file->data + LENGTH_BYTES, (size_t)length);
    if (!cJSON_IsObject(file->header)) {
        return broken(file->path, "its header is not a JSON object");
    }
    *data_start = LENGTH_BYTES + (size_t)length;
    return LS_OK;
}

static bool dtype_of_name(const char *name, ls_dtype *out)
{
    for (int dtype = LS_F32; dtype <= LS_U8; dtype++) {
        if (strcmp(ls_dtype_name((ls_dtype)dtype), name) == 0) {
            *out = (ls_dtype)dtype;
            return true;
        }
    }
    return false;
}

/* A whole number from 0 to 2^53, the range that a JSON number holds exactly. */
static bool whole_number(const cJSON *value, int64_t *out)
{
    return cJSON_IsNumber(value) && ls_json_whole(value->valuedouble, 0, INT64_C(1) << 53, out);
}

/* Parses a shape and computes its bytes; false for an invalid shape or an overflow. */
static bool parse_shape(const cJSON *array, ls_dtype dtype, ls_shape *shape, int64_t *bytes)
{
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > LS_RANK_MAX) {
        return false;
    }
    int64_t product = (int64_t)ls_dtype_bytes(dtype);
    shape->rank = 0;
    const cJSON *dim;
    ls_json_each(dim, array) {
        int64_t size;
        if (!whole_number(dim, &size) || __builtin_mul_overflow(product, size, &product)) {
            return false;
        }
        shape->dim[shape->rank++] = size;
    }
    *bytes = product;
    return true;
}

static ls_status parse_entry(const ls_safetensors *file, const cJSON *item, size_t data_start,
                             ls_safetensors_entry *out)
{
    const char *name = item->string;
    const cJSON *dtype = ls_json_get(item, "dtype");
    const cJSON *offsets = ls_json_get(item, "data_offsets");
    ls_safetensors_entry entry = {.name = name};
    int64_t begin, end;
    if (!cJSON_IsString(dtype) || !dtype_of_name(dtype->valuestring, &entry.dtype)) {
        return broken(file->path,
                      "tensor '%s' has type %s; known: F32, F16, BF16, F64, I64, I32, U8", name,
                      cJSON_IsString(dtype) ? dtype->valuestring : "(none)");
    }
    if (!parse_shape(ls_json_get(item, "shape"), entry.dtype, &entry.shape, &entry.bytes)) {
        return broken(file->path, "tensor '%s' has no shape of at most %d dimensions", name,
                      LS_RANK_MAX);
    }
    if (cJSON_GetArraySize(offsets) != 2 || !whole_number(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !whole_number(cJSON_GetArrayItem(offsets, 1), &end) || end < begin) {
        return broken(file->path, "tensor '%s' has no data_offsets", name);
    }
    if ((uint64_t)end > file->bytes - data_start) {
        return broken(file->path, "tensor '%s' ends at byte %lld of %zu: the file is cut", name,
                      (long long)end, file->bytes - data_start);
    }
    if (end - begin != entry.bytes) {
        return broken(file->path, "tensor '%s' has %lld bytes where its shape takes %lld", name,
                      (long long)(end - begin), (long long)entry.bytes);
    }
    if ((data_start + (size_t)begin) % ls_dtype_bytes(entry.dtype) != 0) {
        return broken(file->path, "tensor '%s' is not aligned to its elements", name);
    }
    entry.data = file->data + data_start + begin;
    *out = entry;
    return LS_OK;
}

static int compare_name(const void *left, const void *right)
{
    const ls_safetensors_entry *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static int compare_place(const void *left, const void *right)
{
    const ls_safetensors_entry *const *a = left, *const *b = right;
    const char *x = (*a)->data, *y = (*b)->data;
    if (x != y) {
        return x < y ? -1 : 1;
    }
    return ((*a)->bytes > (*b)->bytes) - ((*a)->bytes < (*b)->bytes);
}

static ls_status sort_names(ls_safetensors *file)
{
    size_t count = (size_t)file->count;
    qsort(file->by_name, count, sizeof *file->by_name, compare_name);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0) {
            return ls_log_fail(LS_ERR_USAGE, "%s: two tensors are named '%s'", file->path,
                               file->by_name[i]->name);
        }
    }
    return LS_OK;
}

/* Checks that data covers the rest of the file without gaps and overlaps, and that names are
 * unique. Leaves by_name sorted. */
static ls_status check_cover(ls_safetensors *file, size_t data_start)
{
    size_t count = (size_t)file->count;
    qsort(file->by_name, count, sizeof *file->by_name, compare_place);
    const char *next = file->data + data_start;
    for (size_t i = 0; i < count; i++) {
        const ls_safetensors_entry *entry = file->by_name[i];
        if (entry->data != (const void *)next) {
            return broken(file->path, "tensor '%s' %s", entry->name,
                          (const char *)entry->data < next ? "overlaps another"
                                                           : "leaves a gap before it");
        }
        next += entry->bytes;
    }
    if (next != file->data + file->bytes) {
        return broken(file->path, "%zu bytes after the last tensor",
                      (size_t)(file->data + file->bytes - next));
    }
    return sort_names(file);
}

static ls_status parse_entries(ls_safetensors *file, size_t data_start)
{
    size_t room = (size_t)cJSON_GetArraySize(file->header) + 1;
    file->entry = ls_list_make(room, sizeof *file->entry);
    file->by_name = ls_list_make(room, sizeof *file->by_name);
    const cJSON *item;
    ls_json_each(item, file->header) {
        if (strcmp(item->string, "__metadata__") == 0) {
            continue;
        }
        LS_TRY(parse_entry(file, item, data_start, &file->entry[file->count]));
        file->by_name[file->count] = &file->entry[file->count];
        file->count++;
    }
    return check_cover(file, data_start);
}

bool ls_safetensors_has_digests(const ls_safetensors *file)
{
    return file->owner != NULL || ls_safetensors_metadata_of(file, TENSORS, NULL) != NULL ||
           ls_safetensors_metadata_of(file, HEADER, NULL) != NULL;
}

/* The header's text first: it holds the others. Either name shows that the file has digests, so
 * that damage to one of them does not hide it. */
static ls_status check_digests(const ls_safetensors *file, size_t data_start)
{
    char hex[DIGITS + 1] = "";
    const char *header = file->data + LENGTH_BYTES;
    size_t length = data_start - LENGTH_BYTES;
    const char *digits = header_digits(header, length);
    const char *of_tensors = ls_safetensors_metadata_of(file, TENSORS, "");
    if (LS_PLANT(checkpoint_damage_unseen, !ls_safetensors_has_digests(file), true)) {
        return LS_OK;
    }
    if (digits != NULL) {
        put_digest(hex, digest_around(header, length, digits));
    }
    if (digits == NULL || memcmp(digits, hex, DIGITS) != 0 ||
        strlen(of_tensors) != (size_t)file->count * DIGITS) {
        return broken(file->path,
                      "its header is damaged, or was written anew with an old " HEADER
                      " (%.16s; it is %s)",
                      digits == NULL ? "missing" : digits, hex);
    }
    for (int i = 0; i < file->count; i++) {
        const ls_safetensors_entry *entry = &file->entry[i];
        put_digest(hex, ls_digest_xxh64(0, entry->data, (size_t)entry->bytes));
        if (memcmp(of_tensors + i * DIGITS, hex, DIGITS) != 0) {
            return broken(file->path, "tensor '%s' is damaged: its XXH64 is %s, it was %.16s",
                          entry->name, hex, of_tensors + i * DIGITS);
        }
    }
    return LS_OK;
}

static ls_safetensors *new_file(const char *path)
{
    ls_safetensors *file = ls_list_make(1, sizeof *file);
    file->path = strdup(path);
    LS_MEMORY(file->path != NULL);
    return file;
}

ls_status ls_safetensors_open(const char *path, ls_safetensors **out)
{
    ls_safetensors *file = new_file(path);
    size_t data_start = 0;
    ls_status status = read_file(file);
    LS_THEN(status, parse_header(file, &data_start));
    LS_THEN(status, parse_entries(file, data_start));
    LS_THEN(status, check_digests(file, data_start));
    if (status != LS_OK) {
        ls_safetensors_close(file);
        return status;
    }
    *out = file;
    return LS_OK;
}

ls_status ls_safetensors_adopt(const char *path, cJSON *metadata, ls_safetensors_entry *entry,
                               int count, void *owner, void (*close_owner)(void *owner),
                               ls_safetensors **out)
{
    ls_safetensors *file = new_file(path);
    file->header = cJSON_CreateObject();
    LS_MEMORY(file->header != NULL);
    file->entry = entry;
    file->by_name = ls_list_make((size_t)count + 1, sizeof *file->by_name);
    file->count = count;
    file->owner = owner;
    file->close_owner = close_owner;
    cJSON_AddItemToObject(file->header, "__metadata__", metadata);
    for (int i = 0; i < count; i++) {
        file->by_name[i] = &entry[i];
    }
    ls_status status = sort_names(file);
    if (status != LS_OK) {
        ls_safetensors_close(file);
        return status;
    }
    *out = file;
    return LS_OK;
}

void ls_safetensors_close(ls_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->owner != NULL) {
        file->close_owner(file->owner);
    }
    free(file->data);
    cJSON_Delete(file->header);
    free(file->entry);
    free(file->by_name);
    free(file->path);
    free(file);
}

int ls_safetensors_count(const ls_safetensors *file)
{
    return file->count;
}

const ls_safetensors_entry *ls_safetensors_at(const ls_safetensors *file, int index)
{
    LS_ASSERT(index >= 0 && index < file->count);
    return &file->entry[index];
}

const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name)
{
    ls_safetensors_entry wanted = {.name = name}, *key = &wanted;
    ls_safetensors_entry **found =
        bsearch(&key, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_name);
    return found != NULL ? *found : NULL;
}

const char *ls_safetensors_metadata_of(const ls_safetensors *file, const char *name,
                                       const char *fallback)
{
    const cJSON *metadata = ls_json_get(file->header, "__metadata__");
    const cJSON *value = ls_json_get(metadata, name);
    return cJSON_IsString(value) ? value->valuestring : fallback;
}

bool ls_safetensors_metadata_at(const ls_safetensors *file, int index, const char **name,
                                const char **text)
{
    const cJSON *item;
    ls_json_each(item, ls_json_get(file->header, "__metadata__")) {
        if (cJSON_IsString(item) && index-- == 0) {
            *name = item->string;
            *text = item->valuestring;
            return true;
        }
    }
    return false;
}

bool ls_safetensors_scalar(ls_dtype dtype, const ls_shape *shape, const void *data, double *out)
{
    bool known = dtype == LS_F32 || dtype == LS_F64 || dtype == LS_I32 || dtype == LS_I64;
    if (!known || ls_shape_count(shape) != 1) {
        return false;
    }
    *out = dtype == LS_F32   ? (double)*(const float *)data
           : dtype == LS_F64 ? *(const double *)data
           : dtype == LS_I32 ? (double)*(const int32_t *)data
                             : (double)*(const int64_t *)data;
    return true;
}

bool ls_safetensors_same_shape(const ls_shape *a, const ls_shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]) == 0;
}

void ls_safetensors_shape_text(const ls_shape *shape, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "[");
    for (int i = 0; i < shape->rank; i++) {
        ls_text_add(text, bytes, "%s%lld", i == 0 ? "" : ",", (long long)shape->dim[i]);
    }
    ls_text_add(text, bytes, "]");
}

const char *ls_safetensors_path(const ls_safetensors *file)
{
    return file->path;
}

/* ---- what a run requires --------------------------------------------------------------------- */

/* How a file's tensor differs from the run's requirement, or NULL. any_float: the type may be any
 * of f32, f16, bf16. */
static const char *mismatch(const ls_safetensors_entry *entry, ls_dtype dtype, bool any_float,
                            const ls_shape *shape, char *text, size_t text_bytes)
{
    if (entry == NULL) {
        return "is missing";
    }
    if (!ls_safetensors_same_shape(&entry->shape, shape)) {
        char has[96], wants[96];
        ls_safetensors_shape_text(&entry->shape, has, sizeof has);
        ls_safetensors_shape_text(shape, wants, sizeof wants);
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

void ls_safetensors_see(ls_safetensors *file, const ls_safetensors_entry *entry)
{
    file->entry[entry - file->entry].seen = true;
}

ls_status ls_safetensors_require(ls_safetensors *file, const char *name, ls_dtype dtype,
                                 bool any_float, const ls_shape *shape,
                                 const ls_safetensors_entry **out)
{
    char text[256];
    const ls_safetensors_entry *entry = ls_safetensors_find(file, name);
    const char *why = mismatch(entry, dtype, any_float, shape, text, sizeof text);
    if (why != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "%s: %s %s", file->path, name, why);
    }
    ls_safetensors_see(file, entry);
    if (out != NULL) {
        *out = entry;
    }
    return LS_OK;
}

ls_status ls_safetensors_require_finite(const ls_safetensors *file,
                                        const ls_safetensors_entry *entry)
{
    int64_t found = ls_dtype_non_finite(entry->dtype, entry->data, ls_shape_count(&entry->shape));
    return found < 0 ? LS_OK
                     : ls_log_fail(LS_ERR_USAGE, "%s: %s is not finite at element %lld", file->path,
                                   entry->name, (long long)found);
}

ls_status ls_safetensors_require_metadata(const ls_safetensors *file, const char *name,
                                          const char *format, ...)
{
    char wanted[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wanted, sizeof wanted, format, arguments);
    va_end(arguments);
    const char *has = ls_safetensors_metadata_of(file, name, "");
    return strcmp(has, wanted) == 0
               ? LS_OK
               : ls_log_fail(LS_ERR_USAGE, "%s: %s is '%s' there and '%s' here", file->path, name,
                             has, wanted);
}

void ls_safetensors_warn_unverified(const ls_safetensors *file)
{
    if (!ls_safetensors_has_digests(file)) {
        ls_log_warn("%s: it has no digests (an older version saved it): damage would go unnoticed",
                    file->path);
    }
}

static void group_of(const char *name, char group[32])
{
    int rank = 0, used = 0;
    if (sscanf(name, "rank%d/%n", &rank, &used) == 1 && used > 0) {
        ls_text_put(group, 32, "rank<k>");
    } else {
        ls_text_put(group, 32, "%.*s", (int)strcspn(name, "/"), name);
    }
}

void ls_safetensors_unused(const ls_safetensors *file, char *text, size_t bytes)
{
    char own[32], other[32];
    text[0] = '\0';
    for (int i = 0; i < file->count; i++) {
        int members = 0, before = 0;
        group_of(file->entry[i].name, own);
        for (int k = 0; k < file->count; k++) {
            group_of(file->entry[k].name, other);
            bool member = !file->entry[k].seen && strcmp(own, other) == 0;
            members += member;
            before += member && k < i;
        }
        if (!file->entry[i].seen && before == 0) {
            ls_text_add(text, bytes, "%s%s %d", text[0] == '\0' ? "" : ", ", own, members);
        }
    }
}
