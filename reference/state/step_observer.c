#include "step_observer.h"

#include <stddef.h>

void ls_step_observers_add(ls_step_observers *observers, const ls_step_observer *observer)
{
    LS_ASSERT(observers->count < LS_STEP_OBSERVERS);
    observers->item[observers->count++] = observer;
}

/* Calls `callback` of each observer that has it. */
#define CALL_EACH(observers, callback, ...)                                               \
    for (int i = 0; (observers) != NULL && i < (observers)->count; i++) {                 \
        const ls_step_observer *one = (observers)->item[i];                               \
        LS_TRY(one->callback == NULL ? LS_OK : one->callback(one->context, __VA_ARGS__)); \
    }                                                                                     \
    return LS_OK

ls_status ls_step_observers_batch(const ls_step_observers *observers, int micro_step,
                                  const struct ls_loader_batch *batch)
{
    CALL_EACH(observers, batch, micro_step, batch);
}

ls_status ls_step_observers_before(const ls_step_observers *observers, ls_step_stage stage,
                                   int micro_step)
{
    CALL_EACH(observers, before, stage, micro_step);
}

ls_status ls_step_observers_after(const ls_step_observers *observers, ls_step_stage stage,
                                  int micro_step)
{
    CALL_EACH(observers, after, stage, micro_step);
}

ls_status ls_step_observers_gradient(const ls_step_observers *observers, ls_step_gradient point,
                                     int micro_step, int param)
{
    CALL_EACH(observers, gradient, point, micro_step, param);
}

ls_status ls_step_observers_bucket(const ls_step_observers *observers, ls_step_bucket point,
                                   int index, const ls_tensor *whole)
{
    CALL_EACH(observers, bucket, point, index, whole);
}

ls_stream *ls_step_observers_bucket_stream(const ls_step_observers *observers)
{
    for (int i = 0; observers != NULL && i < observers->count; i++) {
        if (observers->item[i]->bucket_stream != NULL) {
            return observers->item[i]->bucket_stream;
        }
    }
    return NULL;
}
