/* What stream.c, event.c and graph.c share: work in queues, and the one lock around them. */
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

typedef struct emulate_streams {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct CUstream_st null_stream;
    cudaStream_t first;
    uint64_t captures;
    capture *capture; /* at most one at a time */
} emulate_streams;

/* Takes the lock, which may be held already; all below need it held. */
emulate_streams *emulate_enter(void);
/* Gives it back; the error is kept for cudaGetLastError, and returned. */
cudaError_t emulate_leave(cudaError_t error);
/* Lets other threads and processes go on, without the lock. */
void emulate_yield(void);
/* Whether work waits until somebody waits for it. */
bool emulate_late(void);

bool emulate_known(cudaStream_t stream);
/* The stream that a caller means; aborts where there is none. */
cudaStream_t emulate_named(cudaStream_t stream);
/* Runs work of the stream until it is empty, or until `event` has reached `generation`; whether it
 * is empty. */
bool emulate_drain(cudaStream_t stream, cudaEvent_t event, uint64_t generation);

node *emulate_node(size_t bytes);
void emulate_append(queue *work, node *one);
void emulate_clear(queue *work);
/* Takes the node: to the stream, or into its capture. */
cudaError_t emulate_enqueue_node(cudaStream_t stream, node *one);

/* The capture cannot be ended well any more; returns `error`. */
cudaError_t emulate_spoil(capture *one, cudaError_t error);
/* Whether a capture forbids the calling thread what might wait. */
bool emulate_forbidden(void);

#endif
