/* Which type everything has: opt level, half type and overrides (numerics.md section 1;
 * apex/amp/frontend.py). The one place that knows; trainer, buckets, checkpoint and
 * `explain` ask here. */
#ifndef LS_PRECISION_H
#define LS_PRECISION_H

#include <stdbool.h>

#include "dialect.h"
#include "options.h"

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
