/* What follows from the options: the dialect's rules, and which type everything has. */
#ifndef LS_PRECISION_H
#define LS_PRECISION_H

#include "options.h"

/* What sets Apex's DistributedDataParallel and torch's apart (numerics.md section 6), resolved once
 * from the options: `--dialect` sets every rule, single options override. Sources of the rules:
 * apex/parallel/distributed.py, apex/amp/scaler.py; torch/nn/parallel/distributed.py,
 * torch/csrc/distributed/c10d/reducer.cpp, torch/amp/grad_scaler.py. */

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

/* Which type everything has: opt level, half type and overrides (numerics.md section 1;
 * apex/amp/frontend.py). The one place that knows; trainer, buckets, checkpoint and
 * `explain` ask here. */

typedef struct ls_precision {
    ls_opt_level level;
    ls_dtype half;       /* LS_F16 or LS_BF16 */
    ls_dtype activation; /* ls_plan_options.activation: f32 at O0, else half */
    ls_dtype product; /* weights of convolutions and linear layers and linear biases, as the model
                         holds them */
    ls_dtype norm;    /* batch norm weight, bias and running statistics, as the model holds them */
    bool masters; /* half parameters have f32 masters, made as f32(half(p)); f32 ones are their own
                   */
    bool allreduce_fp32;     /* half gradients are reduced in f32 */
    ls_dtype compress;       /* type that f32 gradients are reduced in; LS_F32: their own */
    ls_scaler_config scaler; /* max_scale is INFINITY in dialect torch unless given */
    float initial_scale;     /* S of step 1; clamped to [min_scale, max_scale] when dynamic */
} ls_precision;

/* Cannot fail: the options were checked when they were parsed. */
void ls_precision_resolve(const ls_options *options, const ls_dialect_rules *rules,
                          ls_precision *out);
/* The type the model holds: parameters, running statistics (the batch counter is LS_I64). */
ls_dtype ls_precision_param(const ls_precision *precision, ls_param_role role);
ls_dtype ls_precision_buffer(const ls_precision *precision, ls_buffer_role role);
/* The type backward writes a parameter's gradient in: the parameter's own. */
ls_dtype ls_precision_grad(const ls_precision *precision, ls_param_role role);
/* The type that gradient has in its bucket, on the wire and in the sum. */
ls_dtype ls_precision_reduced(const ls_precision *precision, ls_param_role role);
/* Whether a parameter has a master of its own, apart from the model's copy. */
bool ls_precision_has_master(const ls_precision *precision, ls_param_role role);

#endif
