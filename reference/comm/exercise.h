/* Runs one collective and checks it: buffers with guards on both sides, data of pattern.h, time and
 * bandwidth as defined by nccl-tests (its doc/PERFORMANCE.md). Data is made and judged on the host;
 * for an engine that uses device memory it is copied there and back, including the guards. */
#ifndef LS_EXERCISE_H
#define LS_EXERCISE_H

#include "comm.h"
#include "pattern.h"

typedef struct ls_exercise_peer {
    int rank;                   /* in the communicator */
    ls_pattern_members members; /* of the communicator, this rank among them */
    const ls_comm_api *api;
    ls_comm *comm;
    const ls_backend_api *backend_api; /* NULL: buffers are in host memory */
    ls_backend *backend;
    ls_stream *stream;
    struct ls_exercise_journal *journal; /* journal.h; NULL: nothing is written */
} ls_exercise_peer;

typedef struct ls_exercise {
    ls_comm_kind
        kind; /* LS_COMM_SEND: starting with rank 0, each rank receives its left neighbour's
                 elements, then sends its own to the right; needs a world of two or more */
    ls_comm_redop redop; /* LS_COMM_SUM where nothing is reduced */
    ls_dtype dtype;
    ls_pattern_kind data; /* exact or rough; for exact products the factors are taken */
    int64_t count;        /* as in ls_comm_op */
    int root;
    bool in_place;  /* in NCCL's sense; not for send and all_to_all */
    int offset;     /* elements off a 64-byte boundary, of every buffer */
    int iterations; /* timed iterations. On the host each is judged, and from 2 on the ranks start
                       each together; on a device one is judged, and from 2 on the ranks then start
                       together and run the rest back to back, as in a step */
} ls_exercise;

typedef struct ls_exercise_result {
    int64_t checked; /* elements that must hold a result on this rank */
    int64_t wrong;   /* wrong ones among them, plus elements of the input that changed */
    int64_t telling; /* as in ls_pattern_count_wrong_results */
    int64_t guards;  /* changed bytes next to a buffer, or in a buffer that must not be written */
    uint64_t digest; /* of the bytes of the result */
    double us;       /* mean of the iterations */
    double algbw_gb_s,
        busbw_gb_s; /* 10^9 bytes; NAN where nothing is sent: one rank, no elements */
} ls_exercise_result;

bool ls_exercise_can_be_in_place(ls_comm_kind kind);
/* Returns the engine's error, or LS_ERR_INFRA without memory; a wrong result is not an error. */
ls_status ls_exercise_run(const ls_exercise_peer *peer, const ls_exercise *what,
                          ls_exercise_result *out);

#endif
