/* Which gradients are reduced together, and in which order. A layout is a list of buckets; a bucket
 * holds gradients of one type (the type of the reduction) and closes with the parameter that
 * reaches its limit. Within a bucket gradients are plain and unpadded in the order of `member`.
 * Buckets are begun strictly in the order of the list. Rules:
 * torch/csrc/distributed/c10d/reducer.cpp, apex/parallel/distributed.py, numerics.md sections 2 and
 * 6. */
#ifndef LS_BUCKETS_H
#define LS_BUCKETS_H

#include <stdbool.h>
#include <stdint.h>

#include "reference/options/precision.h"

/* The input of a layout: one entry per parameter of the network, by parameter index. */
typedef struct ls_bucket_item {
    ls_dtype dtype; /* type of the reduction */
    int64_t elements;
} ls_bucket_item;

typedef struct ls_bucket {
    ls_dtype dtype;
    int first, count;        /* members: layout->member[first .. first+count-1] */
    int64_t elements, bytes; /* bytes in the type of the reduction */
} ls_bucket;

typedef struct ls_bucket_layout {
    bool delayed; /* buckets begin only after backward */
    int bucket_count;
    int member_count;  /* = number of parameters: each is a member of exactly one bucket */
    ls_bucket *bucket; /* [bucket_count] */
    int *member;       /* [member_count] parameter indices */
    int *bucket_of;    /* [member_count] by parameter index: its bucket */
    int64_t *offset;   /* [member_count] by parameter index: elements before it in its bucket */
} ls_bucket_layout;

/* The generic algorithm (torch/csrc/distributed/c10d/reducer.cpp). `order`[count] are item indices
 * in the order in which gradients become ready; buckets are in closing order, and the open ones are
 * closed at the end in the order f16, bf16, f32, f64. Each type steps through the limits on its
 * own; the last limit repeats; a limit of 0 is none. */
void ls_buckets_assign(const ls_bucket_item *item, int count, const int *order, ls_bucket_unit unit,
                       const int64_t *limit, int limit_count, ls_bucket_layout *out);
void ls_buckets_free(ls_bucket_layout *layout);

/* item[param_count] of a network at a precision. */
void ls_buckets_items(const ls_network *network, const ls_precision *precision,
                      ls_bucket_item *item);
/* The layout of iteration 1: final for --delay-allreduce and --deterministic (then from the
 * network's backward order), else one bucket per type, depending on the dialect. */
void ls_buckets_first(const ls_dialect_rules *rules, const ls_network *network,
                      const ls_bucket_item *item, ls_bucket_layout *out);
/* The layout of later iterations, from this rank's ready order [param_count] of iteration 1; the
 * ranks use rank 0's. Call it only if rules->rebuild. */
void ls_buckets_rebuild(const ls_dialect_rules *rules, const ls_network *network,
                        const ls_bucket_item *item, const int *ready_order, ls_bucket_layout *out);

/* A layout as numbers, for rank 0's broadcast and the checkpoint. The length depends only on the
 * number of parameters, so every rank knows it in advance (Apex's own broadcast has a variable
 * length: apex/parallel/distributed.py): [delayed, bucket_count, sizes[param_count] padded with 0,
 * members[param_count]]. */
int ls_buckets_vector_length(int param_count);
void ls_buckets_to_vector(const ls_bucket_layout *layout, int32_t *vector);
/* Checks that every parameter occurs once and that no bucket mixes types; otherwise LS_ERR_USAGE
 * with the reason (`source` names the origin of the numbers in the message). */
ls_status ls_buckets_from_vector(const int32_t *vector, const ls_bucket_item *item, int param_count,
                                 const char *source, ls_bucket_layout *out);
/* Fingerprint of the vector and the bucket types. */
uint64_t ls_buckets_digest(const ls_bucket_layout *layout);

#endif
