/* Captured work, and graphs of it. */
#include <stdlib.h>
#include <string.h>

#include "stream.h"

struct CUgraph_st {
    queue work;
};

struct CUgraphExec_st {
    queue work;
};

/* ---- capture --------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    emulate_streams *all = emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (s == &all->null_stream) {
        return emulate_leave(cudaErrorStreamCaptureUnsupported);
    }
    if (all->capture != NULL) {
        return emulate_leave(s->capture != NULL ? cudaErrorIllegalState
                                                : cudaErrorStreamCaptureUnsupported);
    }
    capture *one = calloc(1, sizeof *one);
    one->id = ++all->captures;
    one->mode = mode;
    one->thread = pthread_self();
    one->forks = 1;
    one->stream[0] = s;
    memset(s->clock, 0, sizeof s->clock);
    s->behind_kernel = false;
    s->capture = one;
    s->fork = 0;
    all->capture = one;
    return emulate_leave(cudaSuccess);
}

bool emulate_unrecorded(const char *what)
{
    const char *set = getenv("LS_EMULATED_UNRECORDED"), *rank = getenv("RANK");
    size_t length = strlen(what);
    if (set == NULL || strncmp(set, what, length) != 0) {
        return false;
    }
    return set[length] == '\0' ||
           (set[length] == ':' && strcmp(set + length + 1, rank != NULL ? rank : "0") == 0);
}

static cudaError_t unjoined(const capture *one)
{
    if (emulate_unrecorded("end")) {
        return cudaErrorStreamCaptureUnjoined;
    }
    for (int i = 1; i < one->forks; i++) {
        if (one->stream[0]->clock[i] < one->stream[i]->clock[i]) {
            return cudaErrorStreamCaptureUnjoined;
        }
    }
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    emulate_streams *all = emulate_enter();
    cudaStream_t s = emulate_named(stream);
    capture *one = s->capture;
    *out = NULL;
    if (one == NULL) {
        return emulate_leave(cudaErrorIllegalState);
    }
    if (s != one->stream[0]) {
        return emulate_leave(emulate_spoil(one, cudaErrorStreamCaptureUnmatched));
    }
    if (one->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(one->thread, pthread_self())) {
        return emulate_leave(emulate_spoil(one, cudaErrorStreamCaptureWrongThread));
    }
    cudaError_t error = one->spoilt ? cudaErrorStreamCaptureInvalidated : unjoined(one);
    for (int i = 0; i < one->forks; i++) {
        one->stream[i]->capture = NULL;
        one->stream[i]->behind_kernel = false;
    }
    all->capture = NULL;
    if (error == cudaSuccess) {
        cudaGraph_t graph = calloc(1, sizeof *graph);
        graph->work = one->work;
        *out = graph;
    } else {
        emulate_clear(&one->work);
    }
    free(one);
    return emulate_leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out)
{
    emulate_enter();
    capture *one = emulate_named(stream)->capture;
    *out = one == NULL   ? cudaStreamCaptureStatusNone
           : one->spoilt ? cudaStreamCaptureStatusInvalidated
                         : cudaStreamCaptureStatusActive;
    return emulate_leave(cudaSuccess);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void copy_work(queue *to, const queue *from)
{
    for (const node *one = from->first; one != NULL; one = one->next) {
        node *copy = emulate_node(one->bytes);
        memcpy(copy, one, sizeof *copy + one->bytes);
        emulate_append(to, copy);
    }
}

/* Moves the work into an order that is drawn among those that keep what was captured: each fork's
 * work in turn, behind the work of others that it waits for. Equal graphs get equal orders on all
 * ranks, so that their collectives meet. */
static void draw_order(queue *work, uint64_t seed)
{
    queue fork[MOST_FORKS] = {0}, drawn = {0};
    uint64_t done[MOST_FORKS] = {0};
    for (node *one = work->first, *next; one != NULL; one = next) {
        next = one->next;
        emulate_append(&fork[one->fork], one);
    }
    for (;;) {
        int ready[MOST_FORKS], count = 0;
        for (int f = 0; f < MOST_FORKS; f++) {
            bool waits = fork[f].first == NULL;
            for (int i = 0; i < MOST_FORKS && !waits; i++) {
                waits = i != f && fork[f].first->clock[i] > done[i];
            }
            if (!waits) {
                ready[count++] = f;
            }
        }
        if (count == 0) {
            break;
        }
        int f = ready[emulate_draw(&seed, (uint64_t)count)];
        node *one = fork[f].first;
        fork[f].first = one->next;
        fork[f].end = fork[f].first == NULL ? &fork[f].first : fork[f].end;
        done[f]++;
        emulate_append(&drawn, one);
    }
    *work = drawn;
    if (drawn.first == NULL) {
        work->end = &work->first;
    }
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    if (out == NULL || graph == NULL ||
        (flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority) != 0) {
        return emulate_error(cudaErrorInvalidValue);
    }
    if (emulate_unrecorded("instantiate")) {
        return emulate_error(cudaErrorNotSupported);
    }
    *out = calloc(1, sizeof **out);
    copy_work(&(*out)->work, &graph->work);
    if (emulate_late_seed() != 0) {
        draw_order(&(*out)->work, emulate_late_seed());
    }
    return cudaSuccess;
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
    emulate_enter();
    cudaStream_t s = emulate_named(stream);
    if (s->capture != NULL) {
        return emulate_leave(emulate_spoil(s->capture, cudaErrorStreamCaptureUnsupported));
    }
    queue launched = {0};
    s->behind_kernel = false;
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
    if (!emulate_late()) {
        emulate_drain(s, NULL, 0);
    }
    return emulate_leave(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == NULL) {
        return emulate_error(cudaErrorInvalidValue);
    }
    emulate_clear(&graph->work);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    if (graph == NULL) {
        return emulate_error(cudaErrorInvalidValue);
    }
    emulate_clear(&graph->work);
    free(graph);
    return cudaSuccess;
}
