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
    double bytes;    /* as nccl-tests counts them: the larger of input and result */
    double us;       /* mean of the iterations */
    double algbw_gb_s,
        busbw_gb_s; /* 10^9 bytes; NAN where nothing is sent: one rank, no elements */
} ls_exercise_result;

bool ls_exercise_can_be_in_place(ls_comm_kind kind);
/* Returns the engine's error, or LS_ERR_INFRA without memory; a wrong result is not an error. */
ls_status ls_exercise_run(const ls_exercise_peer *peer, const ls_exercise *what,
                          ls_exercise_result *out);

/* A round robin by the circle method: in round 0 .. ls_exercise_rounds(world) - 1 of a pass every
 * rank meets another, and over all rounds each one of the others once. With an odd world one rank
 * of a round waits: -1. Which pairs share a round is another matter in each pass. */
int ls_exercise_rounds(int world);
int ls_exercise_partner(int world, int pass, int round, int rank);

/* Process groups: communicators over some of a job's ranks, all at work at the same time. As in
 * torch's new_group, a group's ranks count from 0 in ascending order of their ranks in the world,
 * however they were listed. A rank is in one group or in none. */

typedef struct ls_rank_groups {
    int count; /* 0: none, all ranks are together */
    ls_pattern_members group[LS_PATTERN_WORLD_MAX];
} ls_rank_groups;

/* "0,1;2,3": ranks of the world divided by commas, groups by semicolons. LS_ERR_USAGE, logged with
 * the text, for anything else, an empty group, a rank that the world does not have, and one that is
 * listed twice. */
ls_status ls_arguments_read_groups(const char *text, int world, ls_rank_groups *out);
/* Groups of `size` consecutive ranks. LS_ERR_USAGE, logged, unless `size` divides `world`. */
ls_status ls_arguments_groups_of_size(int size, int world, ls_rank_groups *out);
/* The group that `rank` of the world is in, and its rank there; -1: in none. */
int ls_arguments_find_group(const ls_rank_groups *groups, int rank, int *rank_in_group);

/* What each collective of lockstep-collectives was given and gave, for the rules of `lockstep
 * observe`: LS_RUN_DIR/sums.rank<k>.jsonl, in the form that the observer writes underneath NCCL
 * (suite/observe/events.md, "Collectives underneath"). Only with LS_OBSERVE_DIR, and on other
 * engines than NCCL. */

typedef struct ls_exercise_journal ls_exercise_journal;

/* rank: of the job; own: of the communicator, whose ranks are members[world] of the job. *out NULL
 * where nothing is to be written. */
ls_status ls_exercise_journal_open(const char *run_directory, int rank, const char *engine, int own,
                                   int world, const int *members, ls_exercise_journal **out);
void ls_exercise_journal_close(ls_exercise_journal *journal); /* NULL is allowed */
/* Of an operation: kind, count, dtype, root and redop; input and buffer are on the host, and NULL
 * where this rank has none. The first and last elements of every part. */
ls_status ls_exercise_journal_add(ls_exercise_journal *journal, const ls_comm_op *what);

/* The command line of lockstep-collectives. */

enum {
    LS_ARGUMENTS_KINDS = 9,
    LS_ARGUMENTS_REDOPS = 4,
    LS_ARGUMENTS_DTYPES = 7,
    LS_ARGUMENTS_COUNTS = 32,
    LS_ARGUMENTS_TIMEOUT_MOST_S = 1000000,
};

typedef struct ls_arguments {
    int kind_count, redop_count, dtype_count, count_count;
    ls_comm_kind kind[LS_ARGUMENTS_KINDS];
    ls_comm_redop redop[LS_ARGUMENTS_REDOPS];
    ls_dtype dtype[LS_ARGUMENTS_DTYPES];
    const char *counts; /* parsed once the world is known */
    int64_t count[LS_ARGUMENTS_COUNTS];
    ls_pattern_kind data;
    bool in_place[2]; /* out of place, in place */
    int offset_max, iterations, barriers, absent, group_size;
    int pairs;                   /* passes; 0: no pairs */
    const char *groups, *redops; /* as given; NULL: not */
    bool headline;
    double timeout_s;
    const char *comm, *device;
} ls_arguments;

/* Fills in defaults and the given options; an unusable one, or two that contradict each other, ends
 * the program with LS_ERR_USAGE or returns it, logged. */
ls_status ls_arguments_read(int argc, char **argv, ls_arguments *out);
/* Parses `counts` into count[]. LS_ERR_USAGE, logged. */
ls_status ls_arguments_read_counts(ls_arguments *given, int world);

#endif
