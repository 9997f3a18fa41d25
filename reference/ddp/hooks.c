#include "ddp.h"

#include "kernels/core/plant.h"

/* default_hooks.allreduce_hook: divides, then sums. fp16_compress_hook and bf16_compress_hook are
 * the same on a buffer that is cast already: it is divided, and summed, in the 16-bit type, so that
 * a gradient which the type cannot hold is infinite although its part of the average could be held.
 * (torch divides by the world; 1 / world is an f32 value here: for a world that is no power of two
 * the results may be a unit in the last place apart, as those of torch's own reducer are.) */
static ls_status divide_and_sum(void *context, const ls_ddp_bucket *bucket)
{
    float factor = LS_PLANT(hook_not_divided, 1.0f / (float)bucket->world, 1.0f);
    (void)context;
    if (LS_PLANT(compressed_after_division, false, bucket->buffer.dtype != LS_F32)) {
        factor = 1.0f;
    }
    LS_TRY(ls_ddp_hook_scale(bucket, factor));
    return ls_ddp_hook_sum(bucket, 1.0f);
}

/* A custom hook that only all-reduces: the sum is the gradient. */
static ls_status sum(void *context, const ls_ddp_bucket *bucket)
{
    (void)context;
    return ls_ddp_hook_sum(bucket, 1.0f);
}

/* debugging_hooks.noop_hook: each rank keeps its own gradient. */
static ls_status keep(void *context, const ls_ddp_bucket *bucket)
{
    (void)context, (void)bucket;
    return LS_PLANT(noop_hook_sums, LS_OK, ls_ddp_hook_sum(bucket, 1.0f));
}

const ls_ddp_hook *ls_hooks_builtin(ls_comm_hook hook)
{
    static const ls_ddp_hook hooks[] = {
        [LS_COMM_HOOK_ALLREDUCE] = {.name = "allreduce", .begin = divide_and_sum},
        [LS_COMM_HOOK_FP16_COMPRESS] = {.name = "fp16_compress", .begin = divide_and_sum},
        [LS_COMM_HOOK_BF16_COMPRESS] = {.name = "bf16_compress", .begin = divide_and_sum},
        [LS_COMM_HOOK_SUM] = {.name = "sum", .begin = sum},
        [LS_COMM_HOOK_NOOP] = {.name = "noop", .begin = keep},
    };
    return hook == LS_COMM_HOOK_NONE ? NULL : &hooks[hook];
}
