/* Data-parallel gradients: buckets in one flat arena, reduced in bucket order while backward goes
 * on (numerics.md section 2, points 3 and 4; rules: precision.h, buckets.h).
 *
 * In a step, on the micro-step that is synchronised:
 *   ls_ddp_begin    before backward
 *   ls_ddp_stage    a parameter's gradient is there: memory->reduced[param] gets it, converted
 *   ls_ddp_ready    it may be reduced; a full bucket begins as soon as all before it have begun
 *   ls_ddp_finish   after backward: waits for every bucket; memory->grad then holds the average
 *   ls_ddp_carry    the next micro-step is synchronised, too, and adds to that average
 *
 * Failures of a peer are LS_ERR_PEER_LOST. */
#ifndef LS_DDP_H
#define LS_DDP_H

#include "buckets.h"
#include "reference/comm/comm.h"
#include "reference/state/memory.h"
#include "reference/state/step_observer.h"

typedef struct ls_ddp ls_ddp;

typedef struct ls_ddp_options {
    const ls_dialect_rules *rules; /* borrowed, like everything here */
    const ls_precision *precision;
    ls_memory *memory;
    const ls_comm_api *engine;
    ls_comm *comm;
    int rank, world;
    bool find_unused;
} ls_ddp_options;

/* Assigns the gradients' memory for iteration 1. Bind the plan after this. */
ls_status ls_ddp_create(const ls_ddp_options *options, ls_ddp **out);
void ls_ddp_free(ls_ddp *ddp);

/* The layout in use. */
const ls_bucket_layout *ls_ddp_layout(const ls_ddp *ddp);
/* Uses a checkpoint's layout (ls_buckets_to_vector's numbers) instead; `settled`: it is final. Bind
 * the plan after this. */
ls_status ls_ddp_adopt(ls_ddp *ddp, const int32_t *vector, bool settled, const char *source);
/* Whether the layout is final. */
bool ls_ddp_settled(const ls_ddp *ddp);
/* After iteration 1, once: all ranks adopt rank 0's order of that iteration. *changed: bind the
 * plan again. Does nothing if the rules do not rebuild. */
ls_status ls_ddp_rebuild(ls_ddp *ddp, bool *changed);

/* ---- communication hooks (torch/nn/parallel/distributed.py, register_comm_hook) ----------------
 */

/* A full bucket that is handed to a hook: torch's GradBucket. */
typedef struct ls_ddp_bucket {
    int index;
    bool is_last;              /* of this layout */
    ls_tensor buffer;          /* flat: this rank's gradients, undivided, in the type reduced */
    int member_count;          /* parameters, in the order in which they lie in the buffer: */
    const int *member;         /* [member_count] */
    const ls_tensor *gradient; /* by parameter: the parts of the buffer */
    int world;
    ls_ddp *ddp; /* for the two functions below */
} ls_ddp_bucket;

/* What becomes of a full bucket, in place of the reduction. The reducer neither divides nor sums
 * then: what the hook leaves in the buffer is the gradient. */
typedef struct ls_ddp_hook {
    const char *name;
    void *context;
    /* Enqueues it all. Buckets come in their order, on all ranks alike. */
    ls_status (*begin)(void *context, const ls_ddp_bucket *bucket);
    /* The sum that `begin` asked for has arrived; enqueues the rest. NULL: there is none. */
    ls_status (*end)(void *context, const ls_ddp_bucket *bucket);
} ls_ddp_hook;

/* Once, before the first backward: LS_ERR_USAGE otherwise. The hook is copied. */
ls_status ls_ddp_register_hook(ls_ddp *ddp, const ls_ddp_hook *hook);
/* For hooks: the buffer times a factor, rounded once; nothing where it is 1. */
ls_status ls_ddp_hook_scale(const ls_ddp_bucket *bucket, float factor);
/* In `begin`, once at most: begins the sum over all ranks. It arrives in the buffer, times a factor
 * (rounded once more unless it is 1). */
ls_status ls_ddp_hook_sum(const ls_ddp_bucket *bucket, float factor);

/* ---- a step ---------------------------------------------------------------------------------- */

/* observers: of the buckets, until ls_ddp_finish; borrowed, or NULL. */
ls_status ls_ddp_begin(ls_ddp *ddp, const ls_step_observers *observers);
/* `from`: the gradient or the accumulator of `param`; not copied if it is in its bucket already. */
ls_status ls_ddp_stage(ls_ddp *ddp, int param, const ls_tensor *from);
ls_status ls_ddp_ready(ls_ddp *ddp, int param);
/* In place of a backward, on a rank without a batch: zeros of every parameter are ready. */
ls_status ls_ddp_mirror(ls_ddp *ddp);
ls_status ls_ddp_finish(ls_ddp *ddp);
/* memory->sum holds the average now, and what the next backward adds to it is reduced again. A
 * parameter that gets no gradient there contributes its sum instead of zeros. */
void ls_ddp_carry(ls_ddp *ddp);
/* Resets the reducer after a discarded recording, as if the step had not begun. */
ls_status ls_ddp_abandon(ls_ddp *ddp);

/* Of the last step: what waiting after backward cost and what the engine was busy for, over all of
 * its reductions. */
typedef struct ls_ddp_times {
    int64_t exposed_ns, comm_ns;
} ls_ddp_times;
ls_ddp_times ls_ddp_times_of(const ls_ddp *ddp);
/* From begin to result of bucket `index`, of the step's last reduction. */
void ls_ddp_bucket_span(const ls_ddp *ddp, int index, int64_t *from_ns, int64_t *to_ns);

/* The communication hooks of --comm-hook, by torch's names (ddp.h, ls_ddp_hook). What type a hook
 * gets its buckets in is precision.h's matter: f32 gradients are cast when they are staged. */

/* NULL for LS_COMM_HOOK_NONE: the reducer's own rules. */
const ls_ddp_hook *ls_ddp_builtin_hook(ls_comm_hook hook);

#endif
