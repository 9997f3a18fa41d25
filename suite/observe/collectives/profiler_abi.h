/* NCCL's profiler interface, versions 4 and 5, in our own declarations: layouts as NCCL 2.28.9
 * reads them (src/include/plugin/profiler/profiler_v4.h, profiler_v5.h, nccl_profiler.h; the
 * documentation is ext-profiler/README.md there). 2.27 looks for version 4, 2.28 and 2.29 for 5
 * first, 2.30 for 6 first and then 5; older ones find nothing here and go on without a profiler.
 *
 * What NCCL promises: `init` is called for each communicator, `startEvent` with an event whose
 * parent is the handle that the plugin gave that parent. `stopEvent` of a collective only says that
 * it is enqueued; when it ran can be seen by the events of its kernel's channels (KERNEL), which
 * come from another thread, after that stop. Every call returns ncclSuccess, which is 0. */
#ifndef LS_PROFILER_ABI_H
#define LS_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds of events: bits of the mask that init gives back, values of `type`. */
enum {
    LS_PROFILER_GROUP = 1 << 0,
    LS_PROFILER_COLLECTIVE = 1 << 1,
    LS_PROFILER_P2P = 1 << 2,
    LS_PROFILER_KERNEL = 1 << 6,          /* one channel of a collective's kernel */
    LS_PROFILER_COLLECTIVE_CALL = 1 << 9, /* version 5: the user's call, parent of COLLECTIVE */
    LS_PROFILER_P2P_CALL = 1 << 10,
};

/* A state that recordEventState reports: a channel's kernel has ended; the only one read here. */
enum { LS_PROFILER_KERNEL_STOPPED = 22 };

typedef struct ls_profiler_kernel {
    uint8_t channel;
    uint64_t gpu_ns; /* the device's global timer at the start */
} ls_profiler_kernel;

typedef struct ls_profiler_collective {
    uint64_t sequence; /* of this function on this communicator */
    const char *function;
    const void *send;
    void *receive;
    size_t count;
    int root;
    const char *type;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
} ls_profiler_collective;

typedef struct ls_profiler_p2p {
    const char *function;
    void *buffer;
    const char *type;
    size_t count;
    int peer;
    uint8_t channels;
} ls_profiler_p2p;

typedef struct ls_profiler_event_v4 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        ls_profiler_collective collective;
        ls_profiler_p2p p2p;
        ls_profiler_kernel kernel;
    } of;
} ls_profiler_event_v4;

typedef struct ls_profiler_event_v5 {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *function;
            size_t count;
            const char *type;
            int root;
            void *stream;
            bool captured; /* into a graph */
        } collective_call;
        struct {
            const char *function;
            size_t count;
            const char *type;
            void *stream;
            bool captured;
        } p2p_call;
        ls_profiler_collective collective;
        ls_profiler_p2p p2p;
        ls_profiler_kernel kernel;
        struct {
            ls_profiler_collective collective;
            void *group;
        } whole; /* of a collective; the group is not read */
    } of;
} ls_profiler_event_v5;

typedef union ls_profiler_state {
    size_t bytes;    /* of a step of the network's thread */
    int appended;    /* of its control */
    void *data;      /* of a network plugin */
    uint64_t gpu_ns; /* of a channel's kernel: the device's global timer at its end */
} ls_profiler_state;

/* NCCL's logger; not called here. */
typedef void ls_profiler_log(int level, unsigned long flags, const char *file, int line,
                             const char *format, ...);

typedef struct ls_profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks,
                int rank, ls_profiler_log *log);
    int (*start)(void *context, void **handle, ls_profiler_event_v4 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, ls_profiler_state *arguments);
    int (*finalize)(void *context);
} ls_profiler_v4;

typedef struct ls_profiler_v5 {
    const char *name;
    int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                int rank, ls_profiler_log *log);
    int (*start)(void *context, void **handle, ls_profiler_event_v5 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, ls_profiler_state *arguments);
    int (*finalize)(void *context);
} ls_profiler_v5;

#endif
