/* The host's waits for the device. With a wait hook they poll and call it, so that it can end the
 * wait when a rank is lost; without one the driver waits. */
#include <sched.h>

#include "kernels/core/clock.h"
#include "backend.h"

enum { POLL_NS = 1000000 }; /* between two calls of the hook, which costs time */

static ls_status ask(cudaError_t answer, const char *call, bool *done)
{
    if (answer == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* cleared: "not ready" must not surface as an error of a later
                                     call */
        *done = false;
        return LS_OK;
    }
    *done = true;
    return ls_cuda_check(answer, call, __FILE__, __LINE__);
}

/* Either event or stream is given. */
static ls_status wait_polling(ls_backend *backend, cudaEvent_t event, cudaStream_t stream)
{
    int64_t start = ls_clock_ns(), last = start;
    for (;;) {
        bool done;
        LS_TRY(event != NULL ? ask(cudaEventQuery(event), "wait for an event", &done)
                             : ask(cudaStreamQuery(stream), "wait for a stream", &done));
        if (done) {
            return LS_OK;
        }
        int64_t now = ls_clock_ns();
        if (now - last >= POLL_NS) {
            last = now;
            LS_TRY(backend->on_wait(backend->on_wait_context, (double)(now - start) * 1e-9));
            sched_yield();
        }
    }
}

ls_status ls_cuda_wait_event(ls_backend *backend, cudaEvent_t event)
{
    if (backend->on_wait == NULL) {
        LS_CUDA(cudaEventSynchronize(event));
        return LS_OK;
    }
    return wait_polling(backend, event, NULL);
}

ls_status ls_cuda_wait_stream(ls_backend *backend, cudaStream_t stream)
{
    if (backend->on_wait == NULL) {
        LS_CUDA(cudaStreamSynchronize(stream));
        return LS_OK;
    }
    return wait_polling(backend, NULL, stream);
}

/* ---- events inside graphs -------------------------------------------------------------------- */

ls_status ls_cuda_mark_event(cudaStream_t stream, cudaEvent_t event)
{
    enum cudaStreamCaptureStatus capture;
    LS_CUDA(cudaStreamIsCapturing(stream, &capture));
    LS_CUDA(cudaEventRecordWithFlags(event, stream,
                                     capture == cudaStreamCaptureStatusActive
                                         ? cudaEventRecordExternal
                                         : cudaEventRecordDefault));
    return LS_OK;
}
