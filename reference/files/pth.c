#include "pth.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"

enum {
    PICKLE_BYTES_MAX = 4 << 20, /* a ResNet-152 with Adam's state: 0.4 MB */
    WHY_BYTES = 400,
};

/* Storages by their classes. */
static const struct storage_type {
    const char *name;
    int bytes; /* of an element */
    bool usable;
    ls_dtype dtype;
} types[] = {
    {"torch.FloatStorage", 4, true, LS_F32},     {"torch.HalfStorage", 2, true, LS_F16},
    {"torch.BFloat16Storage", 2, true, LS_BF16}, {"torch.DoubleStorage", 8, true, LS_F64},
    {"torch.LongStorage", 8, true, LS_I64},      {"torch.IntStorage", 4, true, LS_I32},
    {"torch.ByteStorage", 1, true, LS_U8},       {"torch.ShortStorage", 2, false, LS_U8},
    {"torch.CharStorage", 1, false, LS_U8},      {"torch.BoolStorage", 1, false, LS_U8},
};
enum { TYPES = sizeof types / sizeof *types };

typedef struct storage {
    const struct storage_type *type;
    const unsigned char *data;
    int64_t count;
} storage;

struct ls_pth {
    char *path;
    unsigned char *data;
    size_t bytes;
    ls_zip zip;
    bool *verified; /* [zip.count] */
    char folder[256];
    ls_pickle *pickle;
    void **made; /* storages, tensors, copies */
    int made_count, made_room;
    size_t copied; /* bytes of copies */
};

static void *keep(ls_pth *pth, void *memory)
{
    LS_MEMORY(memory != NULL);
    pth->made = ls_list_grow(pth->made, pth->made_count, &pth->made_room, sizeof *pth->made);
    pth->made[pth->made_count++] = memory;
    return memory;
}

static ls_status refuse(const ls_pth *pth, const char *format, ...) LS_PRINTF(2, 3);
static ls_status refuse(const ls_pth *pth, const char *format, ...)
{
    char reason[WHY_BYTES + 100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return ls_log_fail(LS_ERR_USAGE, "%s is not a state dict of torch.save: %s", pth->path, reason);
}

/* ---- the archive ----------------------------------------------------------------------------- */

/* torch.save before 1.6: pickles one after the other, the first a number of ten bytes. */
static bool is_legacy(const unsigned char *data, size_t bytes)
{
    static const unsigned char magic[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c,
                                          0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    return bytes >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
}

bool ls_pth_is(const void *data, size_t bytes)
{
    return ls_zip_is(data, bytes) || is_legacy(data, bytes);
}

/* An entry of the archive's folder, its checksum verified. NULL: absent, or *damaged. */
static const ls_zip_entry *find_entry(ls_pth *pth, const char *name, bool *damaged)
{
    LS_TEXT(full, 600, "%s/%s", pth->folder, name);
    const ls_zip_entry *entry = ls_zip_find(&pth->zip, full);
    *damaged = false;
    if (entry != NULL && !pth->verified[entry - pth->zip.entry]) {
        *damaged = LS_PLANT(pth_damage_unseen, !ls_zip_verify(entry), false);
        pth->verified[entry - pth->zip.entry] = !*damaged;
    }
    return *damaged ? NULL : entry;
}

/* The one folder with a data.pkl. */
static ls_status find_folder(ls_pth *pth)
{
    int found = 0;
    for (int i = 0; i < pth->zip.count; i++) {
        const char *name = pth->zip.entry[i].name, *slash = strchr(name, '/');
        if (slash != NULL && strcmp(slash, "/data.pkl") == 0) {
            found++;
            ls_text_put(pth->folder, sizeof pth->folder, "%.*s", (int)(slash - name), name);
            if (strlen(pth->folder) != (size_t)(slash - name)) {
                return refuse(pth, "the name of its folder is too long");
            }
        }
    }
    return found == 1 ? LS_OK : refuse(pth, "it has %d files data.pkl, not one", found);
}

static ls_status check_order_of_bytes(ls_pth *pth)
{
    bool damaged;
    const ls_zip_entry *order = find_entry(pth, "byteorder", &damaged);
    if (order != NULL && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0)) {
        return refuse(pth, "its byte order is %.*s, not little",
                      order->bytes < 20 ? (int)order->bytes : 20, (const char *)order->data);
    }
    return LS_OK;
}

/* ---- storages and tensors -------------------------------------------------------------------- */

static bool is_text(const ls_pickle_value *value, const char *text)
{
    return ls_pickle_is(value, LS_PICKLE_TEXT) && value->bytes == strlen(text) &&
           memcmp(value->text, text, value->bytes) == 0;
}

/* ('storage', class, key, location, elements) */
static const void *find_storage(void *context, ls_pickle *pickle, const ls_pickle_value *id)
{
    ls_pth *pth = context;
    if (!ls_pickle_is(id, LS_PICKLE_TUPLE) || id->count < 5 || !is_text(id->item[0], "storage") ||
        !ls_pickle_is(id->item[1], LS_PICKLE_NAME) || !ls_pickle_is(id->item[2], LS_PICKLE_TEXT) ||
        !ls_pickle_is(id->item[4], LS_PICKLE_INTEGER)) {
        ls_pickle_refuse(pickle, "its pickle has a persistent id that is no storage");
        return NULL;
    }
    const struct storage_type *type = NULL;
    for (int i = 0; i < TYPES; i++) {
        type = strcmp(types[i].name, id->item[1]->text) == 0 ? &types[i] : type;
    }
    if (type == NULL) {
        ls_pickle_refuse(pickle, "a storage of the class %s", id->item[1]->text);
        return NULL;
    }
    bool damaged;
    LS_TEXT(name, 300, "data/%s", id->item[2]->text);
    const ls_zip_entry *entry = find_entry(pth, name, &damaged);
    int64_t count = id->item[4]->integer;
    if (damaged) {
        ls_pickle_refuse(pickle, "%s is damaged: it has another CRC-32", name);
        return NULL;
    }
    if (entry == NULL) {
        ls_pickle_refuse(pickle, "it has no %s", name);
        return NULL;
    }
    if (count < 0 || (uint64_t)count != entry->bytes / (size_t)type->bytes ||
        entry->bytes % (size_t)type->bytes != 0) {
        ls_pickle_refuse(pickle, "%s has %zu bytes where %lld elements of %s were expected", name,
                         entry->bytes, (long long)count, type->name);
        return NULL;
    }
    storage *made = keep(pth, malloc(sizeof *made));
    *made = (storage){type, entry->data, count};
    return made;
}

/* What a tensor reads of its storage: sizes and steps, checked. */
typedef struct view {
    const storage *from;
    int rank;
    int64_t offset, count, dim[LS_RANK_MAX], step[LS_RANK_MAX];
    bool contiguous;
} view;

static bool read_sizes(const ls_pickle_value *tuple, int rank, int64_t *out)
{
    for (int i = 0; i < rank; i++) {
        if (!ls_pickle_is(tuple->item[i], LS_PICKLE_INTEGER) || tuple->item[i]->integer < 0) {
            return false;
        }
        out[i] = tuple->item[i]->integer;
    }
    return true;
}

/* The elements lie inside of the storage, and there are not more than it has. */
static bool check_view(view *v)
{
    int64_t last = v->offset, expected = 1;
    v->count = 1;
    v->contiguous = true;
    for (int i = v->rank - 1; i >= 0; i--) {
        int64_t way;
        v->contiguous = v->contiguous && (v->step[i] == expected || v->dim[i] <= 1);
        if (__builtin_mul_overflow(expected, v->dim[i] > 0 ? v->dim[i] : 1, &expected) ||
            __builtin_mul_overflow(v->count, v->dim[i], &v->count) ||
            __builtin_mul_overflow(v->step[i], v->dim[i] > 0 ? v->dim[i] - 1 : 0, &way) ||
            __builtin_add_overflow(last, way, &last)) {
            return false;
        }
    }
    return v->count == 0 ? v->offset <= v->from->count
                         : last < v->from->count && v->count <= v->from->count;
}

/* Row by row of the last dimension. */
static void copy_view(const view *v, unsigned char *to)
{
    int bytes = v->from->type->bytes;
    int64_t at[LS_RANK_MAX] = {0};
    for (int64_t i = 0; i < v->count; i++) {
        int64_t from = v->offset;
        for (int d = 0; d < v->rank; d++) {
            from += at[d] * v->step[d];
        }
        memcpy(to + i * bytes, v->from->data + from * bytes, (size_t)bytes);
        for (int d = v->rank - 1; d >= 0 && ++at[d] == v->dim[d]; d--) {
            at[d] = 0;
        }
    }
}

/* In the file's memory where it lies there as it is used, else a copy; NULL, refused, where copies
 * grow beyond the file: views of one storage, over and over. */
static const void *data_of(ls_pth *pth, ls_pickle *pickle, const view *v)
{
    size_t bytes = (size_t)v->from->type->bytes;
    const unsigned char *data = v->from->data + v->offset * (int64_t)bytes;
    if (v->contiguous && (uintptr_t)data % bytes == 0) {
        return data;
    }
    size_t all = (size_t)v->count * bytes;
    if (all > pth->bytes - pth->copied) {
        ls_pickle_refuse(pickle, "its tensors take more than the file's %zu bytes", pth->bytes);
        return NULL;
    }
    pth->copied += all;
    unsigned char *copy = keep(pth, malloc(all + 1));
    copy_view(v, copy);
    return copy;
}

/* (storage, offset, sizes, steps, requires_grad, hooks, ...) */
static const void *make_tensor(void *context, ls_pickle *pickle, const ls_pickle_value *of)
{
    ls_pth *pth = context;
    if (of->count < 4 || !ls_pickle_is(of->item[0], LS_PICKLE_STORED) ||
        !ls_pickle_is(of->item[1], LS_PICKLE_INTEGER) ||
        !ls_pickle_is(of->item[2], LS_PICKLE_TUPLE) ||
        !ls_pickle_is(of->item[3], LS_PICKLE_TUPLE) || of->item[2]->count != of->item[3]->count) {
        ls_pickle_refuse(pickle, "its pickle makes a tensor of something else than a storage");
        return NULL;
    }
    view v = {.from = of->item[0]->made, .offset = of->item[1]->integer};
    if (v.from == NULL) {
        return NULL;
    }
    ls_pth_tensor *tensor = keep(pth, calloc(1, sizeof *tensor));
    tensor->type = v.from->type->name;
    tensor->dtype = v.from->type->dtype;
    if (!v.from->type->usable || of->item[2]->count > LS_RANK_MAX) {
        return tensor;
    }
    v.rank = (int)of->item[2]->count;
    if (v.offset < 0 || !read_sizes(of->item[2], v.rank, v.dim) ||
        !read_sizes(of->item[3], v.rank, v.step) || !check_view(&v)) {
        ls_pickle_refuse(pickle, "a tensor reaches beyond its storage of %lld elements",
                         (long long)v.from->count);
        return NULL;
    }
    tensor->shape.rank = v.rank;
    memcpy(tensor->shape.dim, v.dim, sizeof v.dim);
    tensor->data = data_of(pth, pickle, &v);
    tensor->usable = tensor->data != NULL;
    return tensor;
}

/* ---- opening --------------------------------------------------------------------------------- */

static ls_status read_pickle(ls_pth *pth)
{
    bool damaged;
    char why[WHY_BYTES] = "";
    const ls_pickle_hooks hooks = {pth, find_storage, make_tensor};
    const ls_zip_entry *entry = find_entry(pth, "data.pkl", &damaged);
    if (entry == NULL) {
        return refuse(pth, "data.pkl is damaged: it has another CRC-32");
    }
    if (entry->bytes > PICKLE_BYTES_MAX) {
        return refuse(pth, "a pickle of %zu bytes; at most %d are read", entry->bytes,
                      (int)PICKLE_BYTES_MAX);
    }
    pth->pickle = ls_pickle_read(entry->data, entry->bytes, &hooks, why, sizeof why);
    return pth->pickle != NULL ? LS_OK : refuse(pth, "%s", why);
}

static ls_status read_all(ls_pth *pth)
{
    char why[WHY_BYTES] = "";
    if (is_legacy(pth->data, pth->bytes)) {
        return refuse(pth,
                      "PyTorch before 1.6 wrote it; torch.save(torch.load(OLD), NEW) in a later "
                      "one writes the format that is read");
    }
    if (!ls_zip_open(pth->data, pth->bytes, &pth->zip, why, sizeof why)) {
        return refuse(pth, "%s", why);
    }
    pth->verified = ls_list_make((size_t)pth->zip.count + 1, sizeof *pth->verified);
    LS_TRY(find_folder(pth));
    LS_TRY(check_order_of_bytes(pth));
    return read_pickle(pth);
}

ls_status ls_pth_open(const char *path, void *data, size_t bytes, ls_pth **out)
{
    ls_pth *pth = ls_list_make(1, sizeof *pth);
    pth->data = data;
    pth->bytes = bytes;
    pth->path = strdup(path);
    LS_MEMORY(pth->path != NULL);
    ls_status status = read_all(pth);
    if (status != LS_OK) {
        ls_pth_close(pth);
        return status;
    }
    *out = pth;
    return LS_OK;
}

void ls_pth_close(ls_pth *pth)
{
    if (pth == NULL) {
        return;
    }
    for (int i = 0; i < pth->made_count; i++) {
        free(pth->made[i]);
    }
    free(pth->made);
    ls_pickle_close(pth->pickle);
    ls_zip_close(&pth->zip);
    free(pth->verified);
    free(pth->data);
    free(pth->path);
    free(pth);
}

const ls_pickle_value *ls_pth_root(const ls_pth *pth)
{
    return ls_pickle_root(pth->pickle);
}

const ls_pth_tensor *ls_pth_tensor_of(const ls_pickle_value *value)
{
    return ls_pickle_is(value, LS_PICKLE_TENSOR) ? value->made : NULL;
}

bool ls_pth_number(const ls_pickle_value *value, double *out)
{
    const ls_pth_tensor *tensor = ls_pth_tensor_of(value);
    if (tensor != NULL && tensor->usable) {
        return ls_safetensors_scalar(tensor->dtype, &tensor->shape, tensor->data, out);
    }
    if (ls_pickle_is(value, LS_PICKLE_INTEGER) || ls_pickle_is(value, LS_PICKLE_NUMBER)) {
        *out = value->number;
        return true;
    }
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct written {
    const void *data;
    size_t bytes;
} written;

struct ls_pth_writer {
    unsigned char *pickle;
    size_t bytes, room;
    written *tensor; /* data/<k> */
    int tensors, tensor_room;
};

static void put(ls_pth_writer *to, const void *data, size_t bytes)
{
    while (to->bytes + bytes > to->room) {
        to->room = to->room == 0 ? 4096 : 2 * to->room;
        to->pickle = realloc(to->pickle, to->room);
        LS_MEMORY(to->pickle != NULL);
    }
    memcpy(to->pickle + to->bytes, data, bytes);
    to->bytes += bytes;
}

static void put_code(ls_pth_writer *to, int code)
{
    unsigned char byte = (unsigned char)code;
    put(to, &byte, 1);
}

/* Little-endian. */
static void put_number(ls_pth_writer *to, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        put_code(to, (int)(number >> (8 * i) & 255));
    }
}

static void put_name(ls_pth_writer *to, const char *name)
{
    put_code(to, 'c');
    put(to, name, strlen(name));
    put_code(to, '\n');
}

ls_pth_writer *ls_pth_create(void)
{
    ls_pth_writer *writer = ls_list_make(1, sizeof *writer);
    put_number(writer, 0x0280, 2); /* protocol 2, torch's */
    return writer;
}

static void put_text(ls_pth_writer *to, const char *text)
{
    if (text != NULL) {
        put_code(to, 'X');
        put_number(to, strlen(text), 4);
        put(to, text, strlen(text));
    }
}

void ls_pth_begin_dict(ls_pth_writer *writer, const char *key)
{
    put_text(writer, key);
    put(writer, "}(", 2);
}

void ls_pth_begin_ordered(ls_pth_writer *writer, const char *key)
{
    put_text(writer, key);
    put_name(writer, "collections\nOrderedDict");
    put(writer, ")R(", 3);
}

void ls_pth_end_dict(ls_pth_writer *writer)
{
    put_code(writer, 'u');
}

void ls_pth_begin_list(ls_pth_writer *writer, const char *key)
{
    put_text(writer, key);
    put(writer, "](", 2);
}

void ls_pth_end_list(ls_pth_writer *writer)
{
    put_code(writer, 'e');
}

void ls_pth_put_text(ls_pth_writer *writer, const char *key, const char *text)
{
    put_text(writer, key);
    put_text(writer, text);
}

void ls_pth_put_integer(ls_pth_writer *writer, const char *key, int64_t number)
{
    put_text(writer, key);
    put(writer, "\x8a\x08", 2);
    put_number(writer, (uint64_t)number, 8);
}

void ls_pth_put_number(ls_pth_writer *writer, const char *key, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_text(writer, key);
    put_code(writer, 'G');
    put_number(writer, __builtin_bswap64(bits), 8);
}

void ls_pth_put_bool(ls_pth_writer *writer, const char *key, bool is)
{
    put_text(writer, key);
    put_code(writer, is ? 0x88 : 0x89);
}

static void put_sizes(ls_pth_writer *writer, const int64_t *size, int count)
{
    put_code(writer, '(');
    for (int i = 0; i < count; i++) {
        ls_pth_put_integer(writer, NULL, size[i]);
    }
    put_code(writer, 't');
}

void ls_pth_put_tensor(ls_pth_writer *writer, const char *key, ls_dtype dtype,
                       const ls_shape *shape, const void *data)
{
    const struct storage_type *type = types;
    while (!type->usable || type->dtype != dtype) {
        type++;
        LS_ASSERT(type < types + TYPES);
    }
    int64_t count = ls_shape_count(shape), step[LS_RANK_MAX + 1];
    step[shape->rank] = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        step[i] = step[i + 1] * (shape->dim[i] > 0 ? shape->dim[i] : 1);
    }
    writer->tensor =
        ls_list_grow(writer->tensor, writer->tensors, &writer->tensor_room, sizeof *writer->tensor);
    writer->tensor[writer->tensors] = (written){data, (size_t)(count * type->bytes)};
    LS_TEXT(file, 16, "%d", writer->tensors++);
    LS_TEXT(class, 40, "torch\n%s", type->name + strlen("torch."));
    put_text(writer, key);
    put_name(writer, "torch._utils\n_rebuild_tensor_v2");
    put(writer, "((", 2);
    put_text(writer, "storage");
    put_name(writer, class);
    put_text(writer, file);
    put_text(writer, "cpu");
    ls_pth_put_integer(writer, NULL, count);
    put(writer, "tQ", 2);
    ls_pth_put_integer(writer, NULL, 0);
    put_sizes(writer, shape->dim, shape->rank);
    put_sizes(writer, step + 1, shape->rank);
    ls_pth_put_bool(writer, NULL, false);
    put_name(writer, "collections\nOrderedDict");
    put(writer, ")RtR", 4);
}

static ls_status write_entry(ls_zip_writer *zip, int descriptor, const char *path, const char *name,
                             const void *data, size_t bytes)
{
    unsigned char header[LS_ZIP_HEADER_BYTES];
    LS_TEXT(full, 80, "archive/%s", name);
    size_t length = ls_zip_begin(zip, full, bytes, ls_zip_crc(0, data, bytes), header);
    LS_TRY(ls_file_write(descriptor, path, header, length));
    return ls_file_write(descriptor, path, data, bytes);
}

static ls_status write_archive(const ls_pth_writer *writer, int descriptor, const char *path)
{
    ls_zip_writer zip = {0};
    ls_status status =
        write_entry(&zip, descriptor, path, "data.pkl", writer->pickle, writer->bytes);
    LS_THEN(status, write_entry(&zip, descriptor, path, "byteorder", "little", 6));
    for (int i = 0; i < writer->tensors && status == LS_OK; i++) {
        LS_TEXT(name, 32, "data/%d", i);
        status = write_entry(&zip, descriptor, path, name, writer->tensor[i].data,
                             writer->tensor[i].bytes);
    }
    LS_THEN(status, write_entry(&zip, descriptor, path, "version", "3\n", 2));
    size_t bytes = 0;
    unsigned char *end = ls_zip_finish(&zip, &bytes);
    LS_THEN(status, ls_file_write(descriptor, path, end, bytes));
    free(end);
    return status;
}

ls_status ls_pth_finish(ls_pth_writer *writer, const char *path)
{
    ls_file_draft draft;
    ls_status status = LS_OK;
    put_code(writer, '.');
    int error = ls_file_draft_open(path, &draft);
    if (error != 0) {
        status = ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", path, strerror(error));
    } else {
        status = write_archive(writer, draft.descriptor, path);
        status = ls_file_draft_close(&draft, status, true);
    }
    free(writer->pickle);
    free(writer->tensor);
    free(writer);
    return status;
}
