/* Observers of a training step: dump, audit, phase times and injected faults subscribe to one step
 * and are called on the host while it is enqueued, at each of its moments and in the order of
 * subscription. A step without observers calls nothing. A status other than LS_OK ends the step. */
#ifndef LS_STEP_OBSERVER_H
#define LS_STEP_OBSERVER_H

#include "kernels/kernels.h"

struct ls_loader_batch;

/* The stages are those of numerics.md section 2; each begins, and ends unless it fails. */
typedef enum ls_step_moment {
    LS_STEP_BATCH,   /* a micro-step has its batch */
    LS_STEP_FORWARD, /* in every micro-step, as backward */
    LS_STEP_FORWARD_END,
    LS_STEP_BACKWARD, /* of loss * S; full buckets begin to be reduced */
    LS_STEP_BACKWARD_END,
    LS_STEP_FINISH, /* waits for every bucket, averages */
    LS_STEP_FINISH_END,
    LS_STEP_UNSCALE, /* by 1/S into f32; checks for inf and NaN */
    LS_STEP_UNSCALE_END,
    LS_STEP_CLIP, /* by norm or by value; nothing where neither is asked for */
    LS_STEP_CLIP_END,
    LS_STEP_OPTIMIZER, /* steps every parameter, or none after an overflow */
    LS_STEP_OPTIMIZER_END,
    LS_STEP_SCALER, /* moves S */
    LS_STEP_SCALER_END,
    LS_STEP_REPACK, /* weights as products take them */
    LS_STEP_REPACK_END,
    LS_STEP_GRADIENT_COMPUTED, /* of a parameter, in every micro-step */
    LS_STEP_GRADIENT_STAGED,   /* accumulated, in the reduced type, not reduced yet */
    LS_STEP_GRADIENT_READY,    /* handed to the reduction; full buckets have begun */
    LS_STEP_BUCKET_FULL,       /* before predivision: this rank's elements */
    LS_STEP_BUCKET_BEGINS,     /* its reduction is about to begin */
    LS_STEP_BUCKET_REDUCED,    /* on bucket_stream, if an observer has one */
    LS_STEP_BUCKET_AVERAGED,   /* before gradients are converted back to their own type */
} ls_step_moment;

typedef struct ls_step_event {
    ls_step_moment at;
    int micro_step;
    int index;                           /* of the parameter or the bucket */
    const struct ls_loader_batch *batch; /* LS_STEP_BATCH */
    const ls_tensor *bucket;             /* LS_STEP_BUCKET_... */
} ls_step_event;

typedef struct ls_step_observer {
    void *context;
    ls_status (*on)(void *context, const ls_step_event *event);
    /* A stream that only waits for reductions: an event recorded there marks the end of a
     * reduction, not the later moment at which the computing stream waits for it. At most one
     * observer of a step has one; the others NULL. */
    ls_stream *bucket_stream;
} ls_step_observer;

enum { LS_STEP_OBSERVERS = 4 };

typedef struct ls_step_observers {
    const ls_step_observer *item[LS_STEP_OBSERVERS]; /* borrowed until the step is enqueued */
    int count;
    ls_stream *bucket_stream; /* NULL: none has one */
} ls_step_observers;

static inline void ls_step_observers_add(ls_step_observers *observers,
                                         const ls_step_observer *observer)
{
    LS_ASSERT(observers->count < LS_STEP_OBSERVERS);
    observers->item[observers->count++] = observer;
    if (observer->bucket_stream != NULL) {
        observers->bucket_stream = observer->bucket_stream;
    }
}

static inline ls_status ls_step_observers_call(const ls_step_observers *observers,
                                               const ls_step_event *event)
{
    for (int i = 0; i < observers->count; i++) {
        LS_TRY(observers->item[i]->on(observers->item[i]->context, event));
    }
    return LS_OK;
}

#endif
