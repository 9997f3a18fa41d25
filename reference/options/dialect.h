/* What sets Apex's DistributedDataParallel and torch's apart (numerics.md section 6), resolved once
 * from the options: `--dialect` sets every rule, single options override. Sources of the rules:
 * apex/parallel/distributed.py, apex/amp/scaler.py; torch/nn/parallel/distributed.py,
 * torch/csrc/distributed/c10d/reducer.cpp, torch/amp/grad_scaler.py. */
#ifndef LS_DIALECT_H
#define LS_DIALECT_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

typedef enum ls_bucket_unit { LS_BUCKET_ELEMENTS, LS_BUCKET_BYTES } ls_bucket_unit;

/* Which buckets iteration 1 uses. */
typedef enum ls_first_layout {
    LS_FIRST_DELAYED,  /* apex: one reduction per type, parameter order, at the end of backward */
    LS_FIRST_PER_TYPE, /* torch: one bucket per type, backward order, begun when its last gradient
                          is there */
    LS_FIRST_FINAL,    /* the layout of all iterations: --delay-allreduce and --deterministic */
} ls_first_layout;

/* When a parameter that got no gradient is noticed; it is LS_ERR_USAGE naming the parameter either
 * way. */
typedef enum ls_unused_rule {
    LS_UNUSED_END_OF_BACKWARD, /* apex */
    LS_UNUSED_NEXT_FORWARD,    /* torch */
} ls_unused_rule;

/* The iteration of a start, from 1, after which the buckets are rebuilt, once: both dialects move
 * to the order in which the gradients of their first backward became ready. */
enum { LS_DIALECT_REBUILD_AFTER = 1 };

typedef struct ls_dialect_rules {
    ls_dialect dialect;
    /* the arithmetic of a reduction (apex/parallel/distributed.py@allreduce_bucket), in order:
     *   1. cast to the type reduced; 2. multiply by f32(pre_factor); 3. sum;
     *   4. multiply by f32(post_factor); 5. cast back. A factor of exactly 1 is no operation. */
    ls_average average; /* of --comm-hook what the hook does: sum and noop are none, others pre */
    double pre_factor;  /* pre: 1/W; post and none: 1/predivide */
    double post_factor; /* post: predivide/W; pre and none: 1 */
    /* buckets */
    bool delay; /* everything at the end of backward, one bucket per type, parameter order */
    ls_bucket_unit unit;
    int limit_count;  /* 1 or 2; the last limit repeats */
    int64_t limit[2]; /* elements or bytes as reduced; a bucket closes when it reaches its limit */
    ls_first_layout first;
    bool rebuild; /* after LS_DIALECT_REBUILD_AFTER, by rank 0's ready order; sent to all ranks */
    /* state shared between ranks */
    bool start_buffers;     /* rank 0 sends buffers too at the start (parameters: always) */
    bool broadcast_buffers; /* rank 0's buffers before a forward that follows a synchronised
                               backward */
    ls_unused_rule unused;
    float max_scale; /* of a dynamic loss scale; INFINITY: growth to inf is refused */
} ls_dialect_rules;

/* `world` >= 1. Cannot fail: the options were checked when they were parsed. */
void ls_dialect_resolve(const ls_options *options, int world, ls_dialect_rules *out);
/* The average over another number of ranks: sets average, pre_factor and post_factor. */
void ls_dialect_average(const ls_options *options, int world, ls_dialect_rules *out);
const char *ls_dialect_name(ls_dialect dialect);         /* "apex", "torch" */
const char *ls_dialect_average_name(ls_average average); /* "post", "pre", "none" */

#endif
