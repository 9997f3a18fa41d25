#include "buckets.h"

#include <stdlib.h>

#include "kernels/core/digest.h"
#include "kernels/core/log.h"
#include "reference/model/model.h"

/* Order in which the remaining open buckets are closed (apex/parallel/distributed.py: half, float,
 * double). */
static const ls_dtype closing_order[] = {LS_F16, LS_BF16, LS_F32, LS_F64};
enum { TYPES = sizeof closing_order / sizeof closing_order[0] };

static ls_status allocate(int count, ls_bucket_layout *out)
{
    size_t room = count > 0 ? (size_t)count : 1;
    *out = (ls_bucket_layout){.bucket = calloc(room, sizeof *out->bucket),
                              .member = calloc(room, sizeof *out->member),
                              .bucket_of = calloc(room, sizeof *out->bucket_of),
                              .offset = calloc(room, sizeof *out->offset)};
    if (out->bucket == NULL || out->member == NULL || out->bucket_of == NULL ||
        out->offset == NULL) {
        ls_log_error("cannot allocate a bucket layout of %d parameters", count);
        ls_buckets_free(out);
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

void ls_buckets_free(ls_bucket_layout *layout)
{
    free(layout->bucket);
    free(layout->member);
    free(layout->bucket_of);
    free(layout->offset);
    *layout = (ls_bucket_layout){0};
}

/* Appends a bucket of `count` members. */
static void append(ls_bucket_layout *layout, const ls_bucket_item *item, const int *member,
                   int count)
{
    int number = layout->bucket_count++;
    ls_bucket *bucket = &layout->bucket[number];
    *bucket = (ls_bucket){item[member[0]].dtype, layout->member_count, count, 0, 0};
    for (int i = 0; i < count; i++) {
        int index = member[i];
        layout->member[layout->member_count++] = index;
        layout->bucket_of[index] = number;
        layout->offset[index] = bucket->elements;
        bucket->elements += item[index].elements;
    }
    bucket->bytes = bucket->elements * (int64_t)ls_dtype_bytes(bucket->dtype);
}

/* The open bucket of one type, and that type's index in the list of limits. */
typedef struct open_bucket {
    int *member;
    int count, limit;
    int64_t filled;
} open_bucket;

static int type_number(ls_dtype dtype)
{
    for (int type = 0; type < TYPES; type++) {
        if (closing_order[type] == dtype) {
            return type;
        }
    }
    LS_ASSERT(!"a gradient is f16, bf16, f32 or f64");
    return -1;
}

static void close_bucket(ls_bucket_layout *layout, const ls_bucket_item *item, open_bucket *open)
{
    append(layout, item, open->member, open->count);
    open->count = 0;
    open->filled = 0;
    open->limit++;
}

static void fill(const ls_bucket_item *item, int count, const int *order, ls_bucket_unit unit,
                 const int64_t *limit, int limit_count, open_bucket *open, ls_bucket_layout *out)
{
    for (int i = 0; i < count; i++) {
        int index = order != NULL ? order[i] : i;
        LS_ASSERT(index >= 0 && index < count);
        if (item[index].alone) {
            append(out, item, &index, 1);
            continue;
        }
        open_bucket *mine = &open[type_number(item[index].dtype)];
        mine->member[mine->count++] = index;
        mine->filled += item[index].elements *
                        (unit == LS_BUCKET_BYTES ? (int64_t)ls_dtype_bytes(item[index].dtype) : 1);
        int64_t cap = limit[mine->limit < limit_count ? mine->limit : limit_count - 1];
        if (cap > 0 && mine->filled >= cap) {
            close_bucket(out, item, mine);
        }
    }
    for (int type = 0; type < TYPES; type++) {
        if (open[type].count > 0) {
            close_bucket(out, item, &open[type]);
        }
    }
}

static int compare_smallest(const void *left, const void *right)
{
    const int *a = left, *b = right; /* {smallest index, bucket} */
    return (a[0] > b[0]) - (a[0] < b[0]);
}

/* Sorts the buckets by their smallest index. */
static ls_status sort_buckets(const ls_bucket_item *item, int count, ls_bucket_layout *layout)
{
    ls_bucket_layout sorted;
    LS_TRY(allocate(count, &sorted));
    int(*key)[2] = calloc((size_t)layout->bucket_count + 1, sizeof *key);
    if (key == NULL) {
        ls_log_error("cannot allocate %d sort keys", layout->bucket_count);
        ls_buckets_free(&sorted);
        return LS_ERR_INFRA;
    }
    for (int b = 0; b < layout->bucket_count; b++) {
        key[b][0] = layout->member[layout->bucket[b].first]; /* filled in index order */
        key[b][1] = b;
    }
    qsort(key, (size_t)layout->bucket_count, sizeof *key, compare_smallest);
    for (int b = 0; b < layout->bucket_count; b++) {
        const ls_bucket *from = &layout->bucket[key[b][1]];
        append(&sorted, item, &layout->member[from->first], from->count);
    }
    free(key);
    ls_buckets_free(layout);
    *layout = sorted;
    return LS_OK;
}

ls_status ls_buckets_assign(const ls_bucket_item *item, int count, const int *order,
                            ls_bucket_unit unit, const int64_t *limit, int limit_count,
                            ls_bucket_layout *out)
{
    LS_ASSERT(limit_count > 0);
    int *room = calloc((size_t)count * TYPES + 1, sizeof *room);
    LS_TRY_MEMORY(room != NULL, "open buckets of %d parameters", count);
    open_bucket open[TYPES] = {{0}};
    for (int type = 0; type < TYPES; type++) {
        open[type].member = room + (size_t)type * (size_t)count;
    }
    ls_bucket_layout layout;
    ls_status status;
    LS_TRY_GOTO(status, allocate(count, &layout), free_room);
    fill(item, count, order, unit, limit, limit_count, open, &layout);
    if (order == NULL) {
        LS_TRY_GOTO(status, sort_buckets(item, count, &layout), free_layout);
    }
    *out = layout;
    goto free_room;
free_layout:
    ls_buckets_free(&layout);
free_room:
    free(room);
    return status;
}

/* ---- the layouts of a run -------------------------------------------------------------------- */

void ls_buckets_items(const ls_network *network, const ls_precision *precision,
                      ls_bucket_item *item)
{
    for (int p = 0; p < network->param_count; p++) {
        const ls_param *param = &network->param[p];
        item[p] = (ls_bucket_item){ls_precision_reduced(precision, param->role),
                                   ls_shape_count(&param->shape), false};
    }
}

static ls_status assign_by_rule(const ls_dialect_rules *rules, const ls_bucket_item *item,
                                int count, const int *order, ls_bucket_layout *out)
{
    return ls_buckets_assign(item, count, order, rules->unit, rules->limit, rules->limit_count,
                             out);
}

ls_status ls_buckets_first(const ls_dialect_rules *rules, const ls_network *network,
                           const ls_bucket_item *item, ls_bucket_layout *out)
{
    static const int64_t no_limit = 0;
    int count = network->param_count;
    int *order = calloc((size_t)count + 1, sizeof *order);
    LS_TRY_MEMORY(order != NULL, "the order of %d parameters", count);
    bool delayed = rules->delay || rules->first == LS_FIRST_DELAYED;
    ls_status status;
    if (delayed) { /* parameter order, types in the order of closing_order */
        for (int p = 0; p < count; p++) {
            order[p] = p;
        }
        status = ls_buckets_assign(item, count, order, rules->unit, &no_limit, 1, out);
    } else {
        ls_model_backward_order(network, order);
        if (rules->first == LS_FIRST_FINAL) {
            status = assign_by_rule(rules, item, count, order, out);
        } else {
            status = ls_buckets_assign(item, count, order, rules->unit, &no_limit, 1, out);
        }
    }
    free(order);
    if (status == LS_OK) {
        out->delayed = delayed;
    }
    return status;
}

ls_status ls_buckets_rebuild(const ls_dialect_rules *rules, const ls_network *network,
                             const ls_bucket_item *item, const int *ready_order,
                             ls_bucket_layout *out)
{
    LS_ASSERT(rules->rebuild && !rules->delay);
    return assign_by_rule(rules, item, network->param_count, ready_order, out);
}

/* ---- as numbers ------------------------------------------------------------------------------ */

enum { HEAD = 2 }; /* delayed, bucket_count */

int ls_buckets_vector_length(int param_count)
{
    return HEAD + 2 * param_count;
}

void ls_buckets_to_vector(const ls_bucket_layout *layout, int32_t *vector)
{
    int count = layout->member_count;
    vector[0] = layout->delayed;
    vector[1] = layout->bucket_count;
    for (int i = 0; i < count; i++) {
        vector[HEAD + i] = i < layout->bucket_count ? layout->bucket[i].count : 0;
        vector[HEAD + count + i] = layout->member[i];
    }
}

static ls_status broken(const char *source, const char *reason, int value)
{
    return ls_log_fail(LS_ERR_USAGE, "bucket layout from %s: %s (%d)", source, reason, value);
}

static ls_status check_vector(const int32_t *vector, const ls_bucket_item *item, int param_count,
                              const char *source, bool *seen)
{
    const int32_t *size = vector + HEAD, *member = size + param_count;
    int buckets = vector[1], next = 0;
    if ((vector[0] != 0 && vector[0] != 1) || buckets < 0 || buckets > param_count) {
        return broken(source, "impossible number of buckets", buckets);
    }
    for (int b = 0; b < buckets; b++) {
        if (size[b] < 1 || size[b] > param_count - next) {
            return broken(source, "impossible number of parameters in a bucket", size[b]);
        }
        for (int i = 0; i < size[b]; i++) {
            int index = member[next + i];
            if (index < 0 || index >= param_count || seen[index]) {
                return broken(source, "parameter unknown or there twice", index);
            }
            seen[index] = true;
            if (item[index].dtype != item[member[next]].dtype) {
                return broken(source, "parameters of two types in one bucket", b);
            }
        }
        next += size[b];
    }
    if (next != param_count) {
        return broken(source, "parameters without a bucket", param_count - next);
    }
    return LS_OK;
}

ls_status ls_buckets_from_vector(const int32_t *vector, const ls_bucket_item *item, int param_count,
                                 const char *source, ls_bucket_layout *out)
{
    bool *seen = calloc((size_t)param_count + 1, sizeof *seen);
    LS_TRY_MEMORY(seen != NULL, "%d marks", param_count);
    ls_status status = check_vector(vector, item, param_count, source, seen);
    free(seen);
    LS_TRY(status);
    ls_bucket_layout layout;
    LS_TRY(allocate(param_count, &layout));
    layout.delayed = vector[0] == 1;
    const int32_t *size = vector + HEAD, *member = size + param_count;
    for (int b = 0; b < vector[1]; b++) {
        append(&layout, item, member, size[b]);
        member += size[b];
    }
    *out = layout;
    return LS_OK;
}

uint64_t ls_buckets_digest(const ls_bucket_layout *layout)
{
    int32_t head[HEAD] = {layout->delayed, layout->bucket_count};
    uint64_t digest = ls_digest_update(LS_DIGEST_START, head, sizeof head);
    for (int b = 0; b < layout->bucket_count; b++) {
        int32_t bucket[2] = {(int32_t)layout->bucket[b].dtype, layout->bucket[b].count};
        digest = ls_digest_update(digest, bucket, sizeof bucket);
    }
    for (int i = 0; i < layout->member_count; i++) {
        int32_t index = layout->member[i];
        digest = ls_digest_update(digest, &index, sizeof index);
    }
    return digest;
}
