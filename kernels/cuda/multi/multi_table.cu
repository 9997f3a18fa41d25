/* Tables of tensor lists stay on the device after their first use: nothing is uploaded twice, so
 * calls with the same lists can be recorded into a graph. */
#include "kernels/cuda/launch.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/cuda/backend.h"
#include "multi_lists.h"
#include "kernels/cuda/ops.h"

typedef struct kept_table {
    struct kept_table *next;
    ls_multi_table device; /* its pointers point into `memory` */
    void *memory;          /* device memory */
    bool norms;
    ls_multi_entry *entry; /* the host's copy, which identifies the list */
} kept_table;

struct ls_multi_tables {
    kept_table *first;
};

struct ls_multi_tables *ls_multi_tables_create(void)
{
    return (struct ls_multi_tables *)calloc(1, sizeof(struct ls_multi_tables));
}

static void free_table(kept_table *table)
{
    ls_cuda_give(table->memory);
    free(table->entry);
    free(table);
}

void ls_multi_tables_destroy(struct ls_multi_tables *tables)
{
    if (tables == NULL) {
        return;
    }
    for (kept_table *table = tables->first; table != NULL;) {
        kept_table *next = table->next;
        free_table(table);
        table = next;
    }
    free(tables);
}

ls_multi_view ls_multi_view_of(ls_tensor tensor)
{
    LS_ASSERT(tensor.dtype == LS_F32 || tensor.dtype == LS_F16 || tensor.dtype == LS_BF16);
    uintptr_t quad = tensor.dtype == LS_F32 ? 16 : 8, at = (uintptr_t)tensor.data;
    ls_multi_view view;
    view.data = tensor.data;
    view.type = tensor.dtype;
    view.parts = at % quad == 0 ? 1 : at % (quad / 2) == 0 ? 2 : 4;
    return view;
}

static int64_t chunks_of(int64_t count)
{
    return (count + LS_MULTI_CHUNK - 1) / LS_MULTI_CHUNK;
}

static bool is_whole(const ls_multi_entry *entry)
{
    bool whole = true;
    for (int k = 0; k < LS_MULTI_LISTS; k++) {
        const ls_multi_view *view = &entry->view[k];
        bool any = k == LS_MULTI_FROM || k == LS_MULTI_COPY;
        whole =
            whole && (view->data == NULL || (view->parts == 1 && (any || view->type == LS_F32)));
    }
    return whole;
}

/* list[LS_MULTI_LISTS]; a missing one has count 0. The caller frees the entries; NULL without
 * memory. */
static ls_multi_entry *make_entries(const ls_tensor_list *list, const uint8_t *group, int count)
{
    ls_multi_entry *entry = (ls_multi_entry *)calloc((size_t)count + 1, sizeof *entry);
    int64_t chunk = 0;
    for (int i = 0; entry != NULL && i < count; i++) {
        for (int k = 0; k < LS_MULTI_LISTS; k++) {
            if (list[k].count == 0) {
                continue;
            }
            LS_ASSERT(list[k].count == count);
            LS_ASSERT(list[k].tensor[i].count == list[LS_MULTI_FROM].tensor[i].count);
            /* skip an optimizer's copy that is the value itself */
            if (k != LS_MULTI_COPY || list[k].tensor[i].data != list[0].tensor[i].data) {
                entry[i].view[k] = ls_multi_view_of(list[k].tensor[i]);
            }
        }
        entry[i].group = group != NULL ? group[i] : 0;
        entry[i].count = list[LS_MULTI_FROM].tensor[i].count;
        entry[i].whole = is_whole(&entry[i]);
        entry[i].first_chunk = (int32_t)chunk;
        entry[i].chunks = (int32_t)chunks_of(entry[i].count);
        chunk += chunks_of(entry[i].count);
    }
    LS_ASSERT(chunk < INT32_MAX / LS_MULTI_SPLIT);
    return entry;
}

/* Bytes of each part of a table's memory, multiples of 16. */
typedef struct table_bytes {
    size_t entries, chunks, sums, own, all;
} table_bytes;

static size_t up(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static table_bytes bytes_of(int32_t entries, int32_t chunks, bool norms)
{
    table_bytes b = {};
    b.entries = up((size_t)entries * sizeof(ls_multi_entry));
    b.chunks = up((size_t)chunks * sizeof(ls_multi_chunk));
    b.sums = norms ? up((size_t)chunks * sizeof(double)) : 0;
    b.own = norms ? up((size_t)entries * sizeof(ls_rule_tensor)) : 0;
    b.all = up(sizeof(ls_multi_rule)) + b.entries + b.chunks + 2 * b.sums + b.own;
    return b;
}

/* Uploads entries and chunks; complete at return. */
static ls_status upload(kept_table *table, ls_stream *stream, const table_bytes *b)
{
    char *host = (char *)calloc(1, b->entries + b->chunks + 1);
    LS_TRY_MEMORY(host != NULL, "a table of %d tensors", table->device.entry_count);
    memcpy(host, table->entry, (size_t)table->device.entry_count * sizeof *table->entry);
    ls_multi_chunk *chunk = (ls_multi_chunk *)(host + b->entries);
    for (int32_t i = 0; i < table->device.entry_count; i++) {
        for (int32_t k = 0; k < table->entry[i].chunks; k++) {
            chunk->tensor = i;
            chunk->index = k;
            chunk++;
        }
    }
    char *to = (char *)table->memory + up(sizeof(ls_multi_rule));
    /* a large copy from pageable memory waits for the stream inside the driver, without the wait
     * hook */
    ls_status status = ls_cuda_wait_stream(stream->backend, stream->native);
    if (status == LS_OK) {
        status = ls_cuda_check(cudaMemcpyAsync(to, host, b->entries + b->chunks,
                                               cudaMemcpyHostToDevice, stream->native),
                               "upload of a table of tensors", __FILE__, __LINE__);
    }
    if (status == LS_OK) {
        status = ls_cuda_wait_stream(stream->backend, stream->native);
    }
    free(host);
    return status;
}

static void place_parts(kept_table *table, const table_bytes *b)
{
    char *at = (char *)table->memory;
    table->device.rule = (ls_multi_rule *)at;
    at += up(sizeof(ls_multi_rule));
    table->device.entry = (const ls_multi_entry *)at;
    at += b->entries;
    table->device.chunk = (const ls_multi_chunk *)at;
    at += b->chunks;
    table->device.first = (double *)at;
    table->device.second = (double *)(at + b->sums);
    table->device.own = (ls_rule_tensor *)(at + 2 * b->sums);
}

static ls_status add_table(ls_stream *stream, const ls_multi_entry *entry, int count, bool norms,
                           kept_table **out)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    LS_CUDA(cudaStreamIsCapturing(stream->native, &capture));
    if (capture != cudaStreamCaptureStatusNone) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "a list of %d tensors is used for the first time while a graph is recorded; "
            "run the step once before",
            count);
    }
    kept_table *table = (kept_table *)calloc(1, sizeof *table);
    ls_multi_entry *copy = (ls_multi_entry *)malloc(((size_t)count + 1) * sizeof *copy);
    if (table == NULL || copy == NULL) {
        free(table);
        free(copy);
        return ls_log_fail(LS_ERR_INFRA, "no memory for a table of %d tensors", count);
    }
    memcpy(copy, entry, (size_t)count * sizeof *copy);
    table->entry = copy;
    table->norms = norms;
    table->device.entry_count = count;
    table->device.chunk_count =
        count == 0 ? 0 : entry[count - 1].first_chunk + entry[count - 1].chunks;
    table_bytes b = bytes_of(count, table->device.chunk_count, norms);
    ls_status status = ls_cuda_take((int64_t)b.all, "a table of tensors", &table->memory);
    if (status == LS_OK) {
        place_parts(table, &b);
        status = upload(table, stream, &b);
    }
    if (status != LS_OK) {
        free_table(table);
        return status;
    }
    struct ls_multi_tables *tables = stream->backend->tables;
    table->next = tables->first;
    tables->first = table;
    *out = table;
    return LS_OK;
}

ls_status ls_multi_table_of(ls_stream *stream, const ls_tensor_list *list, const uint8_t *group,
                            bool norms, ls_multi_table *out)
{
    int count = list[LS_MULTI_FROM].count;
    ls_multi_entry *entry = make_entries(list, group, count);
    LS_TRY_MEMORY(entry != NULL, "a table of %d tensors", count);
    kept_table *table = stream->backend->tables->first;
    while (table != NULL && !(table->norms == norms && table->device.entry_count == count &&
                              memcmp(table->entry, entry, (size_t)count * sizeof *entry) == 0)) {
        table = table->next;
    }
    ls_status status = table != NULL ? LS_OK : add_table(stream, entry, count, norms, &table);
    free(entry);
    if (status == LS_OK) {
        *out = table->device;
    }
    return status;
}
