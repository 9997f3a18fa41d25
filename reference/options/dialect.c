#include "precision.h"

#include <math.h>

#include "kernels/core/plant.h"

enum {
    APEX_MESSAGE_ELEMENTS = 10000000, /* message_size: apex/parallel/distributed.py */
    TORCH_CAP_MIB = 25,               /* bucket_cap_mb: torch/nn/parallel/distributed.py */
    TORCH_FIRST_MIB = 1,              /* first bucket: torch/csrc/distributed/c10d/reducer.hpp */
};
static const float apex_max_scale = 16777216.0f; /* 2^24: apex/amp/frontend.py@initialize */

void ls_dialect_average(const ls_options *options, int world, ls_dialect_rules *out)
{
    bool torch = options->dialect == LS_DIALECT_TORCH;
    bool kept = options->comm_hook == LS_COMM_HOOK_SUM || options->comm_hook == LS_COMM_HOOK_NOOP;
    out->average = options->comm_hook != LS_COMM_HOOK_NONE
                       ? (kept ? LS_AVERAGE_NONE : LS_AVERAGE_PRE)
                   : options->average != LS_AVERAGE_DIALECT ? options->average
                   : torch                                  ? LS_AVERAGE_PRE
                                                            : LS_AVERAGE_POST;
    if (out->average == LS_AVERAGE_PRE) {
        out->pre_factor = 1.0 / world;
        out->post_factor = 1.0;
        return;
    }
    out->pre_factor = 1.0 / options->predivide;
    out->post_factor = out->average == LS_AVERAGE_POST
                           ? LS_PLANT(postdivide_wrong, options->predivide, 1.0) / world
                           : 1.0;
}

static void resolve_limits(const ls_options *options, ls_dialect_rules *out)
{
    bool torch = options->dialect == LS_DIALECT_TORCH;
    if (options->message_size > 0 || (!torch && options->bucket_cap_mb <= 0)) {
        out->unit = LS_BUCKET_ELEMENTS;
        out->limit_count = 1;
        out->limit[0] = options->message_size > 0 ? options->message_size : APEX_MESSAGE_ELEMENTS;
        return;
    }
    const int64_t mib = INT64_C(1) << 20;
    double cap_mb = options->bucket_cap_mb > 0 ? options->bucket_cap_mb : TORCH_CAP_MIB;
    int64_t cap = (int64_t)(fmin(cap_mb, 0x1p40) * (double)mib); /* above: one bucket, too */
    cap = cap < 1 ? 1 : cap;
    out->unit = LS_BUCKET_BYTES;
    out->limit_count = 0;
    if (torch) {
        out->limit[out->limit_count++] = cap < TORCH_FIRST_MIB * mib ? cap : TORCH_FIRST_MIB * mib;
    }
    out->limit[out->limit_count++] = cap;
}

void ls_dialect_resolve(const ls_options *options, int world, ls_dialect_rules *out)
{
    bool torch = options->dialect == LS_DIALECT_TORCH;
    *out = (ls_dialect_rules){
        .dialect = options->dialect,
        .delay = options->delay_allreduce,
        .first = torch ? LS_FIRST_PER_TYPE : LS_FIRST_DELAYED,
        .rebuild = true,
        .start_buffers = torch,
        .broadcast_buffers =
            LS_PLANT(buffers_not_broadcast, true, false) &&
            (options->broadcast_buffers == LS_UNSET ? torch
                                                    : options->broadcast_buffers == LS_TRUE),
        .unused = torch ? LS_UNUSED_NEXT_FORWARD : LS_UNUSED_END_OF_BACKWARD,
        .max_scale = LS_PLANT(ceiling_ignored, torch, true) ? INFINITY : apex_max_scale,
    };
    /* --find-unused: what arrives differs from step to step; torch does not rebuild either */
    if (options->delay_allreduce || options->deterministic || options->find_unused) {
        out->first = LS_FIRST_FINAL;
        out->rebuild = false;
    }
    ls_dialect_average(options, world, out);
    resolve_limits(options, out);
}

const char *ls_dialect_name(ls_dialect dialect)
{
    return dialect == LS_DIALECT_TORCH ? "torch" : "apex";
}

const char *ls_dialect_average_name(ls_average average)
{
    static const char *const names[] = {
        [LS_AVERAGE_POST] = "post", [LS_AVERAGE_PRE] = "pre", [LS_AVERAGE_NONE] = "none"};
    return names[average];
}
