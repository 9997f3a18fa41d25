/* Shared by stream.c, event.c and graph.c: queues of work, and the one lock around them. */
#ifndef LS_EMULATED_STREAM_H
#define LS_EMULATED_STREAM_H

#include <pthread.h>

#include "emulate.h"

enum { MOST_FORKS = 8 };

typedef struct node {
    struct node *next;
    emulate_work *work; /* NULL: records or waits for `event` */
    cudaEvent_t event;
    uint64_t generation;
    bool records, external;     /* external: in a graph, for an event outside it */
    int fork;                   /* captured: of which stream, ... */
    uint64_t clock[MOST_FORKS]; /* ... and how much of each fork's work comes before, with itself */
    size_t bytes;
    _Alignas(16) unsigned char arguments[];
} node;

typedef struct queue {
    node *first, **end;
} queue;

/* A capture in progress. clock[i] of a stream: how much of fork i's work precedes its next recorded
 * operation. */
typedef struct capture {
    uint64_t id;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool spoilt;
    int forks;
    cudaStream_t stream[MOST_FORKS]; /* [0]: its origin */
    queue work;
} capture;

struct CUstream_st {
    queue work;
    bool running;
    bool behind_kernel; /* what was enqueued or recorded last is a kernel of launch.h */
    capture *capture;
    int fork;
    uint64_t clock[MOST_FORKS];
    cudaStream_t next;
};

struct CUevent_st {
    unsigned flags;
    cudaStream_t stream; /* of the last record */
    uint64_t recorded, done;
    double ms;
    uint64_t capture_id; /* not 0: last recorded within that capture */
    uint64_t clock[MOST_FORKS];
};

typedef struct emulate_streams {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct CUstream_st null_stream;
    cudaStream_t first;
    uint64_t captures;
    uint64_t seed, random; /* of drawn runs */
    capture *capture;      /* at most one at a time */
} emulate_streams;

/* Takes the lock (recursively); all functions below need it. */
emulate_streams *emulate_enter(void);
/* Releases it; the error is kept for cudaGetLastError, and returned. */
cudaError_t emulate_leave(cudaError_t error);
/* Lets other threads and processes run, without the lock. */
void emulate_yield(void);
/* Whether work runs only when a caller waits for it. */
bool emulate_late(void);
/* The seed of LS_EMULATED_LATE, or 0. */
uint64_t emulate_late_seed(void);
/* A whole number below `limit`; the next state. */
uint64_t emulate_draw(uint64_t *state, uint64_t limit);

bool emulate_known(cudaStream_t stream);
/* The stream behind the caller's handle; aborts if there is none. */
cudaStream_t emulate_named(cudaStream_t stream);
/* Runs work of the stream until it is empty, or until `event` has reached `generation`; returns
 * whether it is empty. */
bool emulate_drain(cudaStream_t stream, cudaEvent_t event, uint64_t generation);

node *emulate_node(size_t bytes);
void emulate_append(queue *work, node *one);
void emulate_clear(queue *work);
/* Appends the node to the stream or to its capture, and takes ownership. */
cudaError_t emulate_enqueue_node(cudaStream_t stream, node *one);

/* emulate_enqueue of a kernel; `early`: aborts unless it comes directly behind another. */
cudaError_t emulate_enqueue_kernel(cudaStream_t stream, const char *name, bool early,
                                   emulate_work *work, const void *arguments, size_t bytes);

/* Invalidates the capture; returns `error`. */
cudaError_t emulate_spoil(capture *one, cudaError_t error);
/* Whether a capture forbids the calling thread to call functions that might wait. */
bool emulate_forbidden(void);

#endif
