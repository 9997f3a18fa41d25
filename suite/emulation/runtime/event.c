/* Events: points of streams that others can wait for, and the time between two of them. */
#include <stdlib.h>
#include <string.h>

#include "stream.h"

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    *out = calloc(1, sizeof **out);
    (*out)->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == NULL) {
        return emulate_error(cudaErrorInvalidResourceHandle);
    }
    emulate_streams *all = emulate_enter();
    for (cudaStream_t s = all->first; s != NULL; s = s->next) {
        for (node *one = s->work.first; one != NULL; one = one->next) {
            if (one->event == event) {
                emulate_drain(s, NULL, 0);
                break;
            }
        }
    }
    free(event);
    return emulate_leave(cudaSuccess);
}

/* A node that waits for the event's newest record, or records it, at each launch of the graph. */
static cudaError_t add_external(cudaStream_t stream, cudaEvent_t event, bool records)
{
    node *one = emulate_node(0);
    one->event = event;
    one->records = records;
    one->external = true;
    return emulate_enqueue_node(stream, one);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (event == NULL || flags > cudaEventRecordExternal) {
        return emulate_leave(event == NULL ? cudaErrorInvalidResourceHandle
                                           : cudaErrorInvalidValue);
    }
    if (flags == cudaEventRecordExternal) {
        return emulate_leave(s->capture != NULL ? add_external(s, event, true)
                                                : cudaErrorIllegalState);
    }
    if (s->capture != NULL) {
        if (s->capture->spoilt) {
            return emulate_leave(cudaErrorStreamCaptureInvalidated);
        }
        event->capture_id = s->capture->id;
        memcpy(event->clock, s->clock, sizeof event->clock);
        return emulate_leave(cudaSuccess);
    }
    node *one = emulate_node(0);
    one->event = event;
    one->records = true;
    one->generation = ++event->recorded;
    event->stream = s;
    event->capture_id = 0;
    return emulate_leave(emulate_enqueue_node(s, one));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

static cudaError_t wait_captured(emulate_streams *all, cudaStream_t stream, cudaEvent_t event)
{
    capture *one = all->capture;
    if (one == NULL || one->id != event->capture_id) {
        return cudaErrorCapturedEvent;
    }
    if (stream->capture == NULL) {
        if (stream == &all->null_stream || one->forks == MOST_FORKS) {
            return emulate_spoil(one, cudaErrorStreamCaptureImplicit);
        }
        memset(stream->clock, 0, sizeof stream->clock);
        stream->capture = one;
        stream->fork = one->forks;
        one->stream[one->forks++] = stream;
    }
    stream->behind_kernel = false;
    for (int i = 0; i < MOST_FORKS; i++) {
        if (event->clock[i] > stream->clock[i]) {
            stream->clock[i] = event->clock[i];
        }
    }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    emulate_streams *all = emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (event == NULL || flags > cudaEventWaitExternal) {
        return emulate_leave(event == NULL ? cudaErrorInvalidResourceHandle
                                           : cudaErrorInvalidValue);
    }
    if (flags == cudaEventWaitExternal) {
        return emulate_leave(s->capture != NULL ? add_external(s, event, false)
                                                : cudaErrorIllegalState);
    }
    if (event->capture_id != 0) {
        return emulate_leave(wait_captured(all, s, event));
    }
    if (s->capture != NULL) {
        return emulate_leave(event->recorded == 0
                                 ? cudaSuccess
                                 : emulate_spoil(s->capture, cudaErrorStreamCaptureIsolation));
    }
    node *one = emulate_node(0);
    one->event = event;
    one->generation = event->recorded;
    return emulate_leave(emulate_enqueue_node(s, one));
}

static cudaError_t ask_event(const emulate_streams *all, cudaEvent_t event)
{
    if (event == NULL) {
        return cudaErrorInvalidResourceHandle;
    }
    if (event->capture_id != 0) {
        return all->capture != NULL ? emulate_spoil(all->capture, cudaErrorCapturedEvent)
                                    : cudaErrorCapturedEvent;
    }
    return emulate_forbidden() ? emulate_spoil(all->capture, cudaErrorStreamCaptureUnsupported)
                               : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emulate_streams *all = emulate_enter();
    cudaError_t error = ask_event(all, event);
    if (error == cudaSuccess) {
        emulate_progress();
        error = event->done >= event->recorded ? cudaSuccess : cudaErrorNotReady;
    }
    return emulate_leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulate_streams *all = emulate_enter();
    cudaError_t error = ask_event(all, event);
    uint64_t generation = error == cudaSuccess ? event->recorded : 0;
    while (error == cudaSuccess && event->done < generation) {
        if (emulate_known(event->stream)) {
            emulate_drain(event->stream, event, generation);
        }
        if (event->done < generation) {
            emulate_yield();
        }
    }
    return emulate_leave(error);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    emulate_streams *all = emulate_enter();
    cudaError_t error = ask_event(all, start);
    error = error == cudaSuccess ? ask_event(all, end) : error;
    if (error != cudaSuccess) {
        return emulate_leave(error);
    }
    if (((start->flags | end->flags) & cudaEventDisableTiming) != 0 || start->recorded == 0 ||
        end->recorded == 0) {
        return emulate_leave(cudaErrorInvalidResourceHandle);
    }
    if (start->done < start->recorded || end->done < end->recorded) {
        return emulate_leave(cudaErrorNotReady);
    }
    *ms = (float)(end->ms - start->ms);
    return emulate_leave(cudaSuccess);
}
