#include "buckets.h"

#include <stdlib.h>

#include "kernels/core/digest.h"
#include "kernels/core/log.h"
#include "reference/model/model.h"

/* Order in which the remaining open buckets are closed (apex/parallel/distributed.py: half, float,
 * double). */
static const ls_dtype closing_order[] = {LS_F16, LS_BF16, LS_F32, LS_F64};
enum { TYPES = sizeof closing_order / sizeof closing_order[0] };

static void allocate(int count, ls_bucket_layout *out)
{
    size_t room = count > 0 ? (size_t)count : 1;
    *out = (ls_bucket_layout){.bucket = calloc(room, sizeof *out->bucket),
                              .member = calloc(room, sizeof *out->member),
                              .bucket_of = calloc(room, sizeof *out->bucket_of),
                              .offset = calloc(room, sizeof *out->offset)};
    LS_MEMORY(out->bucket != NULL && out->member != NULL && out->bucket_of != NULL &&
              out->offset != NULL);
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
        int index = order[i];
        LS_ASSERT(index >= 0 && index < count);
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

void ls_buckets_assign(const ls_bucket_item *item, int count, const int *order, ls_bucket_unit unit,
                       const int64_t *limit, int limit_count, ls_bucket_layout *out)
{
    LS_ASSERT(limit_count > 0);
    int *room = calloc((size_t)count * TYPES + 1, sizeof *room);
    LS_MEMORY(room != NULL);
    open_bucket open[TYPES] = {{0}};
    for (int type = 0; type < TYPES; type++) {
        open[type].member = room + (size_t)type * (size_t)count;
    }
    allocate(count, out);
    fill(item, count, order, unit, limit, limit_count, open, out);
    free(room);
}

/* ---- the layouts of a run -------------------------------------------------------------------- */

void ls_buckets_items(const ls_network *network, const ls_precision *precision,
                      ls_bucket_item *item)
{
    for (int p = 0; p < network->param_count; p++) {
        const ls_param *param = &network->param[p];
        item[p] = (ls_bucket_item){ls_precision_reduced(precision, param->role),
                                   ls_shape_count(&param->shape)};
    }
}

void ls_buckets_first(const ls_dialect_rules *rules, const ls_network *network,
                      const ls_bucket_item *item, ls_bucket_layout *out)
{
    static const int64_t no_limit = 0;
    int count = network->param_count;
    int *order = calloc((size_t)count + 1, sizeof *order);
    LS_MEMORY(order != NULL);
    bool delayed = rules->delay || rules->first == LS_FIRST_DELAYED;
    bool final = !delayed && rules->first == LS_FIRST_FINAL;
    ls_model_backward_order(network, order);
    for (int p = 0; p < count && delayed; p++) { /* types in the order of closing_order */
        order[p] = p;
    }
    ls_buckets_assign(item, count, order, rules->unit, final ? rules->limit : &no_limit,
                      final ? rules->limit_count : 1, out);
    free(order);
    out->delayed = delayed;
}

void ls_buckets_rebuild(const ls_dialect_rules *rules, const ls_network *network,
                        const ls_bucket_item *item, const int *ready_order, ls_bucket_layout *out)
{
    LS_ASSERT(rules->rebuild && !rules->delay);
    ls_buckets_assign(item, network->param_count, ready_order, rules->unit, rules->limit,
                      rules->limit_count, out);
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
    LS_MEMORY(seen != NULL);
    ls_status status = check_vector(vector, item, param_count, source, seen);
    free(seen);
    LS_TRY(status);
    allocate(param_count, out);
    out->delayed = vector[0] == 1;
    const int32_t *size = vector + HEAD, *member = size + param_count;
    for (int b = 0; b < vector[1]; b++) {
        append(out, item, member, size[b]);
        member += size[b];
    }
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
