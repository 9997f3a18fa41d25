/* Streams as queues of work, which runs when it is enqueued or, with LS_EMULATED_LATE, as late as
 * the order of streams and events allows: when a caller waits. */
#include "stream.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static emulate_streams all = {.once = PTHREAD_ONCE_INIT};

void emulate_clear(queue *work)
{
    while (work->first != NULL) {
        node *one = work->first;
        work->first = one->next;
        free(one);
    }
    work->end = &work->first;
}

static void prepare(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&all.lock, &attributes);
    all.null_stream.work.end = &all.null_stream.work.first;
    all.first = &all.null_stream;
}

emulate_streams *emulate_enter(void)
{
    pthread_once(&all.once, prepare);
    pthread_mutex_lock(&all.lock);
    return &all;
}

cudaError_t emulate_leave(cudaError_t error)
{
    pthread_mutex_unlock(&all.lock);
    return error == cudaSuccess ? error : emulate_error(error);
}

bool emulate_late(void)
{
    const char *set = getenv("LS_EMULATED_LATE");
    return set != NULL && set[0] >= '1' && set[0] <= '9';
}

uint64_t emulate_late_seed(void)
{
    const char *set = getenv("LS_EMULATED_LATE");
    uint64_t seed = emulate_late() ? strtoull(set, NULL, 10) : 0;
    return seed > 1 ? seed : 0;
}

uint64_t emulate_draw(uint64_t *state, uint64_t limit)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15); /* SplitMix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % limit;
}

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

bool emulate_known(cudaStream_t stream)
{
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        if (s == stream) {
            return true;
        }
    }
    return false;
}

cudaStream_t emulate_named(cudaStream_t stream)
{
    if (stream == NULL || stream == cudaStreamLegacy) {
        return &all.null_stream;
    }
    if (!emulate_known(stream)) {
        emulate_abort("a stream that is not there (destroyed?)");
    }
    return stream;
}

/* ---- running --------------------------------------------------------------------------------- */

bool emulate_drain(cudaStream_t stream, cudaEvent_t event, uint64_t generation)
{
    if (stream->running) {
        return false;
    }
    stream->running = true;
    while (stream->work.first != NULL && (event == NULL || event->done < generation)) {
        node *one = stream->work.first;
        if (one->work != NULL) {
            emulate_memory_open();
            bool done = one->work(one->arguments);
            emulate_memory_close();
            if (!done) {
                break;
            }
        } else if (one->records) {
            one->event->done = one->generation;
            one->event->ms = now_ms();
        } else if (one->event->done < one->generation) {
            if (emulate_known(one->event->stream)) {
                emulate_drain(one->event->stream, one->event, one->generation);
            }
            if (one->event->done < one->generation) {
                break;
            }
        }
        stream->work.first = one->next;
        if (one->next == NULL) {
            stream->work.end = &stream->work.first;
        }
        free(one);
    }
    stream->running = false;
    return stream->work.first == NULL;
}

void emulate_progress(void)
{
    emulate_enter();
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        emulate_drain(s, NULL, 0);
    }
    emulate_leave(cudaSuccess);
}

node *emulate_node(size_t bytes)
{
    node *one = calloc(1, sizeof *one + bytes);
    if (one == NULL) {
        emulate_abort("no memory for work of %zu bytes", bytes);
    }
    one->bytes = bytes;
    return one;
}

void emulate_append(queue *work, node *one)
{
    if (work->end == NULL) {
        work->end = &work->first;
    }
    one->next = NULL;
    *work->end = one;
    work->end = &one->next;
}

cudaError_t emulate_spoil(capture *one, cudaError_t error)
{
    one->spoilt = true;
    return error;
}

/* With a seed: every fourth time, on average, all work of a stream that is drawn. */
static void run_drawn(void)
{
    uint64_t seed = emulate_late_seed(), count = 0;
    if (seed != all.seed) {
        all.seed = all.random = seed;
    }
    if (seed == 0 || emulate_draw(&all.random, 4) != 0) {
        return;
    }
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        count++;
    }
    cudaStream_t s = all.first;
    for (uint64_t i = emulate_draw(&all.random, count); i > 0; i--) {
        s = s->next;
    }
    emulate_drain(s, NULL, 0);
}

/* Under the lock. Takes ownership of the node. */
cudaError_t emulate_enqueue_node(cudaStream_t stream, node *one)
{
    capture *taking = stream->capture;
    stream->behind_kernel = false;
    if (taking != NULL) {
        if (taking->spoilt) {
            free(one);
            return cudaErrorStreamCaptureInvalidated;
        }
        stream->clock[stream->fork]++;
        one->fork = stream->fork;
        memcpy(one->clock, stream->clock, sizeof one->clock);
        emulate_append(&taking->work, one);
        return cudaSuccess;
    }
    if (stream == &all.null_stream && all.capture != NULL &&
        all.capture->mode != cudaStreamCaptureModeRelaxed) {
        free(one);
        return emulate_spoil(all.capture, cudaErrorStreamCaptureImplicit);
    }
    emulate_append(&stream->work, one);
    if (!emulate_late()) {
        emulate_drain(stream, NULL, 0);
    }
    run_drawn();
    return cudaSuccess;
}

static cudaError_t enqueue(cudaStream_t stream, emulate_work *work, const void *arguments,
                           size_t bytes)
{
    node *one = emulate_node(bytes);
    one->work = work;
    memcpy(one->arguments, arguments, bytes);
    return emulate_enqueue_node(stream, one);
}

cudaError_t emulate_enqueue(cudaStream_t stream, emulate_work *work, const void *arguments,
                            size_t bytes)
{
    emulate_enter();
    return emulate_leave(enqueue(emulate_named(stream), work, arguments, bytes));
}

cudaError_t emulate_enqueue_kernel(cudaStream_t stream, const char *name, bool early,
                                   emulate_work *work, const void *arguments, size_t bytes)
{
    emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (early && !s->behind_kernel) {
        emulate_abort("kernel %s is launched to start early, but not directly behind a kernel",
                      name);
    }
    cudaError_t error = enqueue(s, work, arguments, bytes);
    s->behind_kernel = true;
    return emulate_leave(error);
}

/* The mode that the calling thread has set with cudaThreadExchangeStreamCaptureMode. */
static _Thread_local enum cudaStreamCaptureMode declared = cudaStreamCaptureModeGlobal;

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode before = declared;
    declared = *mode;
    *mode = before;
    return cudaSuccess;
}

bool emulate_forbidden(void)
{
    return all.capture != NULL && declared != cudaStreamCaptureModeRelaxed &&
           (all.capture->mode == cudaStreamCaptureModeGlobal ||
            (all.capture->mode == cudaStreamCaptureModeThreadLocal &&
             pthread_equal(all.capture->thread, pthread_self())));
}

cudaError_t emulate_not_capturing(void)
{
    emulate_enter();
    cudaError_t error = emulate_forbidden()
                            ? emulate_spoil(all.capture, cudaErrorStreamCaptureUnsupported)
                            : cudaSuccess;
    return emulate_leave(error);
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    if (out == NULL || flags > cudaStreamNonBlocking) {
        return emulate_error(cudaErrorInvalidValue);
    }
    emulate_enter();
    cudaStream_t stream = calloc(1, sizeof *stream);
    stream->work.end = &stream->work.first;
    stream->next = all.first->next;
    all.first->next = stream;
    *out = stream;
    return emulate_leave(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

void emulate_yield(void)
{
    pthread_mutex_unlock(&all.lock);
    emulate_progress();
    sched_yield();
    pthread_mutex_lock(&all.lock);
}

static void finish(cudaStream_t stream)
{
    while (!emulate_drain(stream, NULL, 0)) {
        emulate_yield();
    }
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulate_enter();
    if (stream == NULL || !emulate_known(stream) || stream == &all.null_stream) {
        return emulate_leave(cudaErrorInvalidResourceHandle);
    }
    if (stream->capture != NULL) {
        return emulate_leave(emulate_spoil(stream->capture, cudaErrorStreamCaptureUnsupported));
    }
    emulate_drain(stream, NULL, 0); /* drops work that waits for a lost peer */
    for (cudaStream_t *s = &all.first; *s != NULL; s = &(*s)->next) {
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    }
    emulate_clear(&stream->work);
    free(stream);
    return emulate_leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (s->capture != NULL || emulate_forbidden()) {
        return emulate_leave(emulate_spoil(all.capture, cudaErrorStreamCaptureUnsupported));
    }
    finish(s);
    return emulate_leave(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (s->capture != NULL || emulate_forbidden()) {
        return emulate_leave(emulate_spoil(all.capture, cudaErrorStreamCaptureUnsupported));
    }
    emulate_progress();
    return emulate_leave(s->work.first == NULL ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    emulate_enter();
    if (all.capture != NULL) {
        return emulate_leave(emulate_spoil(all.capture, cudaErrorStreamCaptureUnsupported));
    }
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        finish(s);
    }
    return emulate_leave(cudaSuccess);
}
