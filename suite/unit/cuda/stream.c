/* Streams as queues of work; events; capture and graphs. Work runs as soon as it is enqueued or,
 * with LS_EMULATED_LATE, as late as the order of streams and events allows: when somebody waits. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulate.h"

enum { MOST_FORKS = 8 };

typedef struct node {
    struct node *next;
    emulate_work *work; /* NULL: records or waits for `event` */
    cudaEvent_t event;
    uint64_t generation;
    bool records, external; /* external: in a graph, for what happens outside of it */
    size_t bytes;
    _Alignas(16) unsigned char arguments[];
} node;

typedef struct queue {
    node *first, **end;
} queue;

/* A capture under way. clock[i] of a stream: how much of fork i's work comes before what it records
 * next. */
typedef struct capture {
    uint64_t id;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool spoilt;
    int forks;
    cudaStream_t stream[MOST_FORKS]; /* [0]: where it began */
    queue work;
} capture;

struct CUstream_st {
    queue work;
    bool running;
    capture *capture;
    int fork;
    uint64_t clock[MOST_FORKS];
    cudaStream_t next;
};

struct CUevent_st {
    unsigned flags;
    cudaStream_t stream; /* where last recorded */
    uint64_t recorded, done;
    double ms;
    uint64_t capture_id; /* not 0: last recorded inside that capture */
    uint64_t clock[MOST_FORKS];
};

struct CUgraph_st {
    queue work;
};

struct CUgraphExec_st {
    queue work;
};

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct CUstream_st null_stream;
    cudaStream_t first;
    uint64_t captures;
    capture *capture; /* at most one at a time */
} all = {.once = PTHREAD_ONCE_INIT};

static void queue_clear(queue *work)
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

static void enter(void)
{
    pthread_once(&all.once, prepare);
    pthread_mutex_lock(&all.lock);
}

static cudaError_t leave(cudaError_t error)
{
    pthread_mutex_unlock(&all.lock);
    return error == cudaSuccess ? error : emulate_error(error);
}

static bool late(void)
{
    const char *set = getenv("LS_EMULATED_LATE");
    return set != NULL && strcmp(set, "1") == 0;
}

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static bool known(cudaStream_t stream)
{
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        if (s == stream) {
            return true;
        }
    }
    return false;
}

static cudaStream_t named(cudaStream_t stream)
{
    if (stream == NULL || stream == cudaStreamLegacy) {
        return &all.null_stream;
    }
    if (!known(stream)) {
        emulate_abort("a stream that is not there (destroyed?)");
    }
    return stream;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Runs work of the stream until it is empty, or until `event` has reached `generation`. */
static bool drain(cudaStream_t stream, cudaEvent_t event, uint64_t generation)
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
            if (known(one->event->stream)) {
                drain(one->event->stream, one->event, one->generation);
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
    enter();
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        drain(s, NULL, 0);
    }
    leave(cudaSuccess);
}

static node *node_create(size_t bytes)
{
    node *one = calloc(1, sizeof *one + bytes);
    if (one == NULL) {
        emulate_abort("no memory for work of %zu bytes", bytes);
    }
    one->bytes = bytes;
    return one;
}

static void append(queue *work, node *one)
{
    if (work->end == NULL) {
        work->end = &work->first;
    }
    one->next = NULL;
    *work->end = one;
    work->end = &one->next;
}

static cudaError_t spoil(capture *one, cudaError_t error)
{
    one->spoilt = true;
    return error;
}

/* Under the lock. Takes the node. */
static cudaError_t enqueue(cudaStream_t stream, node *one)
{
    capture *taking = stream->capture;
    if (taking != NULL) {
        if (taking->spoilt) {
            free(one);
            return cudaErrorStreamCaptureInvalidated;
        }
        stream->clock[stream->fork]++;
        append(&taking->work, one);
        return cudaSuccess;
    }
    if (stream == &all.null_stream && all.capture != NULL &&
        all.capture->mode != cudaStreamCaptureModeRelaxed) {
        free(one);
        return spoil(all.capture, cudaErrorStreamCaptureImplicit);
    }
    append(&stream->work, one);
    if (!late()) {
        drain(stream, NULL, 0);
    }
    return cudaSuccess;
}

cudaError_t emulate_enqueue(cudaStream_t stream, emulate_work *work, const void *arguments,
                            size_t bytes)
{
    enter();
    node *one = node_create(bytes);
    one->work = work;
    memcpy(one->arguments, arguments, bytes);
    return leave(enqueue(named(stream), one));
}

/* What the calling thread has declared with cudaThreadExchangeStreamCaptureMode. */
static _Thread_local enum cudaStreamCaptureMode declared = cudaStreamCaptureModeGlobal;

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode before = declared;
    declared = *mode;
    *mode = before;
    return cudaSuccess;
}

static bool forbidden(void)
{
    return all.capture != NULL && declared != cudaStreamCaptureModeRelaxed &&
           (all.capture->mode == cudaStreamCaptureModeGlobal ||
            (all.capture->mode == cudaStreamCaptureModeThreadLocal &&
             pthread_equal(all.capture->thread, pthread_self())));
}

cudaError_t emulate_not_capturing(void)
{
    enter();
    cudaError_t error =
        forbidden() ? spoil(all.capture, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
    return leave(error);
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    if (out == NULL || flags > cudaStreamNonBlocking) {
        return emulate_error(cudaErrorInvalidValue);
    }
    enter();
    cudaStream_t stream = calloc(1, sizeof *stream);
    stream->work.end = &stream->work.first;
    stream->next = all.first->next;
    all.first->next = stream;
    *out = stream;
    return leave(cudaSuccess);
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

static void finish(cudaStream_t stream)
{
    while (!drain(stream, NULL, 0)) { /* another process's turn */
        pthread_mutex_unlock(&all.lock);
        emulate_progress();
        sched_yield();
        pthread_mutex_lock(&all.lock);
    }
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    enter();
    if (stream == NULL || !known(stream) || stream == &all.null_stream) {
        return leave(cudaErrorInvalidResourceHandle);
    }
    if (stream->capture != NULL) {
        return leave(spoil(stream->capture, cudaErrorStreamCaptureUnsupported));
    }
    drain(stream, NULL, 0); /* what waits for a lost peer is dropped */
    for (cudaStream_t *s = &all.first; *s != NULL; s = &(*s)->next) {
        if (*s == stream) {
            *s = stream->next;
            break;
        }
    }
    queue_clear(&stream->work);
    free(stream);
    return leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    enter();
    cudaStream_t s = named(stream);
    if (s->capture != NULL || forbidden()) {
        return leave(spoil(all.capture, cudaErrorStreamCaptureUnsupported));
    }
    finish(s);
    return leave(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    enter();
    cudaStream_t s = named(stream);
    if (s->capture != NULL || forbidden()) {
        return leave(spoil(all.capture, cudaErrorStreamCaptureUnsupported));
    }
    emulate_progress();
    return leave(s->work.first == NULL ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    enter();
    if (all.capture != NULL) {
        return leave(spoil(all.capture, cudaErrorStreamCaptureUnsupported));
    }
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        finish(s);
    }
    return leave(cudaSuccess);
}

/* ---- events ---------------------------------------------------------------------------------- */

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
    enter();
    for (cudaStream_t s = all.first; s != NULL; s = s->next) {
        for (node *one = s->work.first; one != NULL; one = one->next) {
            if (one->event == event) {
                drain(s, NULL, 0);
                break;
            }
        }
    }
    free(event);
    return leave(cudaSuccess);
}

/* A node that stands for the event's newest record, or makes one, at each launch of the graph. */
static cudaError_t add_external(cudaStream_t stream, cudaEvent_t event, bool records)
{
    node *one = node_create(0);
    one->event = event;
    one->records = records;
    one->external = true;
    return enqueue(stream, one);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    enter();
    cudaStream_t s = named(stream);
    if (event == NULL || flags > cudaEventRecordExternal) {
        return leave(event == NULL ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
    }
    if (flags == cudaEventRecordExternal) {
        return leave(s->capture != NULL ? add_external(s, event, true) : cudaErrorIllegalState);
    }
    if (s->capture != NULL) {
        if (s->capture->spoilt) {
            return leave(cudaErrorStreamCaptureInvalidated);
        }
        event->capture_id = s->capture->id;
        memcpy(event->clock, s->clock, sizeof event->clock);
        return leave(cudaSuccess);
    }
    node *one = node_create(0);
    one->event = event;
    one->records = true;
    one->generation = ++event->recorded;
    event->stream = s;
    event->capture_id = 0;
    return leave(enqueue(s, one));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

static cudaError_t wait_captured(cudaStream_t stream, cudaEvent_t event)
{
    capture *one = all.capture;
    if (one == NULL || one->id != event->capture_id) {
        return cudaErrorCapturedEvent;
    }
    if (stream->capture == NULL) {
        if (stream == &all.null_stream || one->forks == MOST_FORKS) {
            return spoil(one, cudaErrorStreamCaptureImplicit);
        }
        memset(stream->clock, 0, sizeof stream->clock);
        stream->capture = one;
        stream->fork = one->forks;
        one->stream[one->forks++] = stream;
    }
    for (int i = 0; i < MOST_FORKS; i++) {
        if (event->clock[i] > stream->clock[i]) {
            stream->clock[i] = event->clock[i];
        }
    }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    enter();
    cudaStream_t s = named(stream);
    if (event == NULL || flags > cudaEventWaitExternal) {
        return leave(event == NULL ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
    }
    if (flags == cudaEventWaitExternal) {
        return leave(s->capture != NULL ? add_external(s, event, false) : cudaErrorIllegalState);
    }
    if (event->capture_id != 0) {
        return leave(wait_captured(s, event));
    }
    if (s->capture != NULL) {
        return leave(event->recorded == 0 ? cudaSuccess
                                          : spoil(s->capture, cudaErrorStreamCaptureIsolation));
    }
    node *one = node_create(0);
    one->event = event;
    one->generation = event->recorded;
    return leave(enqueue(s, one));
}

static cudaError_t ask_event(cudaEvent_t event)
{
    if (event == NULL) {
        return cudaErrorInvalidResourceHandle;
    }
    if (event->capture_id != 0) {
        return all.capture != NULL ? spoil(all.capture, cudaErrorCapturedEvent)
                                   : cudaErrorCapturedEvent;
    }
    return forbidden() ? spoil(all.capture, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    enter();
    cudaError_t error = ask_event(event);
    if (error == cudaSuccess) {
        emulate_progress();
        error = event->done >= event->recorded ? cudaSuccess : cudaErrorNotReady;
    }
    return leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    enter();
    cudaError_t error = ask_event(event);
    uint64_t generation = error == cudaSuccess ? event->recorded : 0;
    while (error == cudaSuccess && event->done < generation) {
        if (known(event->stream)) {
            drain(event->stream, event, generation);
        }
        if (event->done < generation) {
            pthread_mutex_unlock(&all.lock);
            emulate_progress();
            sched_yield();
            pthread_mutex_lock(&all.lock);
        }
    }
    return leave(error);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    enter();
    cudaError_t error = ask_event(start);
    error = error == cudaSuccess ? ask_event(end) : error;
    if (error != cudaSuccess) {
        return leave(error);
    }
    if (((start->flags | end->flags) & cudaEventDisableTiming) != 0 || start->recorded == 0 ||
        end->recorded == 0) {
        return leave(cudaErrorInvalidResourceHandle);
    }
    if (start->done < start->recorded || end->done < end->recorded) {
        return leave(cudaErrorNotReady);
    }
    *ms = (float)(end->ms - start->ms);
    return leave(cudaSuccess);
}

/* ---- capture and graphs ---------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    enter();
    cudaStream_t s = named(stream);
    if (s == &all.null_stream) {
        return leave(cudaErrorStreamCaptureUnsupported);
    }
    if (all.capture != NULL) {
        return leave(s->capture != NULL ? cudaErrorIllegalState
                                        : cudaErrorStreamCaptureUnsupported);
    }
    capture *one = calloc(1, sizeof *one);
    one->id = ++all.captures;
    one->mode = mode;
    one->thread = pthread_self();
    one->forks = 1;
    one->stream[0] = s;
    memset(s->clock, 0, sizeof s->clock);
    s->capture = one;
    s->fork = 0;
    all.capture = one;
    return leave(cudaSuccess);
}

static cudaError_t unjoined(const capture *one)
{
    for (int i = 1; i < one->forks; i++) {
        if (one->stream[0]->clock[i] < one->stream[i]->clock[i]) {
            return cudaErrorStreamCaptureUnjoined;
        }
    }
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    enter();
    cudaStream_t s = named(stream);
    capture *one = s->capture;
    *out = NULL;
    if (one == NULL) {
        return leave(cudaErrorIllegalState);
    }
    if (s != one->stream[0]) {
        return leave(spoil(one, cudaErrorStreamCaptureUnmatched));
    }
    if (one->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(one->thread, pthread_self())) {
        return leave(spoil(one, cudaErrorStreamCaptureWrongThread));
    }
    cudaError_t error = one->spoilt ? cudaErrorStreamCaptureInvalidated : unjoined(one);
    for (int i = 0; i < one->forks; i++) {
        one->stream[i]->capture = NULL;
    }
    all.capture = NULL;
    if (error == cudaSuccess) {
        cudaGraph_t graph = calloc(1, sizeof *graph);
        graph->work = one->work;
        *out = graph;
    } else {
        queue_clear(&one->work);
    }
    free(one);
    return leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out)
{
    enter();
    capture *one = named(stream)->capture;
    *out = one == NULL   ? cudaStreamCaptureStatusNone
           : one->spoilt ? cudaStreamCaptureStatusInvalidated
                         : cudaStreamCaptureStatusActive;
    return leave(cudaSuccess);
}

static void copy_work(queue *to, const queue *from)
{
    for (const node *one = from->first; one != NULL; one = one->next) {
        node *copy = node_create(one->bytes);
        memcpy(copy, one, sizeof *copy + one->bytes);
        append(to, copy);
    }
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    if (out == NULL || graph == NULL ||
        (flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority) != 0) {
        return emulate_error(cudaErrorInvalidValue);
    }
    *out = calloc(1, sizeof **out);
    copy_work(&(*out)->work, &graph->work);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags)
{
    return cudaGraphInstantiate(out, graph, flags);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    size_t there = 0;
    for (const node *one = graph->work.first; one != NULL; one = one->next) {
        there++;
    }
    *count = there;
    return nodes == NULL ? cudaSuccess : emulate_error(cudaErrorNotSupported);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    (void)stream;
    return graph != NULL ? cudaSuccess : emulate_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    if (graph == NULL) {
        return emulate_error(cudaErrorInvalidValue);
    }
    enter();
    cudaStream_t s = named(stream);
    if (s->capture != NULL) {
        return leave(spoil(s->capture, cudaErrorStreamCaptureUnsupported));
    }
    queue launched = {0};
    copy_work(&launched, &graph->work);
    for (node *one = launched.first; one != NULL; one = one->next) {
        if (one->external && one->records) {
            one->event->recorded++;
            one->event->stream = s;
            one->event->capture_id = 0;
        }
        if (one->external) {
            one->generation = one->event->recorded;
        }
    }
    if (launched.first != NULL) {
        *s->work.end = launched.first;
        s->work.end = launched.end;
    }
    if (!late()) {
        drain(s, NULL, 0);
    }
    return leave(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == NULL) {
        return emulate_error(cudaErrorInvalidValue);
    }
    queue_clear(&graph->work);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    if (graph == NULL) {
        return emulate_error(cudaErrorInvalidValue);
    }
    queue_clear(&graph->work);
    free(graph);
    return cudaSuccess;
}
