/* Observers of a training step: dump, audit, phase times and injected faults subscribe to one step
 * (ls_step_observers_add) and are called on the host while it is enqueued, each callback in the
 * order of subscription. A callback that is NULL is not called; a step without observers calls
 * nothing. A status other than LS_OK ends the step with it. */
#ifndef LS_STEP_OBSERVER_H
#define LS_STEP_OBSERVER_H

#include "kernels/kernels.h"

struct ls_loader_batch;

/* A step of numerics.md section 2. The first two run once per micro-step. */
typedef enum ls_step_stage {
    LS_STEP_FORWARD,
    LS_STEP_BACKWARD,  /* of loss * S; full buckets begin to be reduced */
    LS_STEP_FINISH,    /* waits for every bucket, averages */
    LS_STEP_UNSCALE,   /* by 1/S into f32; looks for inf and NaN */
    LS_STEP_OPTIMIZER, /* steps every parameter, or none after an overflow */
    LS_STEP_SCALER,    /* moves S */
    LS_STEP_REPACK,    /* weights as products take them */
} ls_step_stage;

typedef enum ls_step_gradient {
    LS_STEP_GRADIENT_COMPUTED, /* by backward, in every micro-step */
    LS_STEP_GRADIENT_STAGED,   /* accumulated, in the reduced type, still this rank's */
    LS_STEP_GRADIENT_READY,    /* handed to the reduction; full buckets have begun */
} ls_step_gradient;

typedef enum ls_step_bucket {
    LS_STEP_BUCKET_FULL,     /* before predivision: this rank's elements */
    LS_STEP_BUCKET_BEGINS,   /* its reduction is about to begin */
    LS_STEP_BUCKET_REDUCED,  /* on bucket_stream, where there is one */
    LS_STEP_BUCKET_AVERAGED, /* before gradients are converted back to their own type */
} ls_step_bucket;

typedef struct ls_step_observer {
    void *context;
    /* A micro-step's batch, before its forward. */
    ls_status (*batch)(void *context, int micro_step, const struct ls_loader_batch *batch);
    /* Around a stage; `after` only where the stage succeeded. */
    ls_status (*before)(void *context, ls_step_stage stage, int micro_step);
    ls_status (*after)(void *context, ls_step_stage stage, int micro_step);
    ls_status (*gradient)(void *context, ls_step_gradient point, int micro_step, int param);
    ls_status (*bucket)(void *context, ls_step_bucket point, int index, const ls_tensor *whole);
    /* A stream that does nothing but wait for reductions, so that what is recorded there shows when
     * they ended, not when the computing stream came to wait; NULL: not wanted. One observer of a
     * step may have one. */
    ls_stream *bucket_stream;
} ls_step_observer;

enum { LS_STEP_OBSERVERS = 4 };

typedef struct ls_step_observers {
    const ls_step_observer *item[LS_STEP_OBSERVERS]; /* borrowed until the step is enqueued */
    int count;
} ls_step_observers;

void ls_step_observers_add(ls_step_observers *observers, const ls_step_observer *observer);

/* For the step and the reducer. `observers` may be NULL. */
ls_status ls_step_observers_batch(const ls_step_observers *observers, int micro_step,
                                  const struct ls_loader_batch *batch);
ls_status ls_step_observers_before(const ls_step_observers *observers, ls_step_stage stage,
                                   int micro_step);
ls_status ls_step_observers_after(const ls_step_observers *observers, ls_step_stage stage,
                                  int micro_step);
ls_status ls_step_observers_gradient(const ls_step_observers *observers, ls_step_gradient point,
                                     int micro_step, int param);
ls_status ls_step_observers_bucket(const ls_step_observers *observers, ls_step_bucket point,
                                   int index, const ls_tensor *whole);
ls_stream *ls_step_observers_bucket_stream(const ls_step_observers *observers);

#endif
