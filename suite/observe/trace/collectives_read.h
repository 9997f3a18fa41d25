/* The collectives that the libraries of collectives/ saw underneath a job (events.md,
 * "Collectives underneath"), read for the rules that judge them. */
#ifndef LS_COLLECTIVES_READ_H
#define LS_COLLECTIVES_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

/* A call, or a sample of one, as its rank saw it. Words that no reader knows are kept. */
typedef struct ls_collectives_call {
    char op[20], type[12], reduce[12]; /* "all_reduce", "f32", "sum" */
    int64_t elements, number;
    int root;       /* -1: has none */
    uint64_t chain; /* hash of all calls of the communicator up to this; 0: not given */
    int rank, job;  /* in the communicator, and the job's */
} ls_collectives_call;

enum { LS_COLLECTIVES_PIECES = 8 };

typedef struct ls_collectives_sample {
    ls_collectives_call call;
    int comm; /* index */
    int part, width, pieces;
    int64_t piece[LS_COLLECTIVES_PIECES];
    int64_t bytes;                  /* of `sent` and `received`, where it has them */
    unsigned char *sent, *received; /* or NULL */
} ls_collectives_sample;

/* A process: one file. */
typedef struct ls_collectives_process {
    int job;       /* its rank in the job */
    char boot[40]; /* which kernel's clock its times are of; "": not known */
    bool ended;    /* as programs do, not killed */
    bool cut;      /* it had more calls than lines are written for */
    int64_t ended_ns;
    double stall_s; /* that it ran with */
} ls_collectives_process;

/* A rank of a communicator. */
typedef struct ls_collectives_member {
    int rank, process;   /* process: index */
    int64_t calls;       /* the highest number that it entered, and one */
    int count, capacity; /* of entered_ns */
    int64_t *entered_ns; /* by number; 0: not seen, or recorded into a graph */
    bool closed;         /* it destroyed or aborted its communicator, after `calls` */
    int64_t closed_ns;
    double running_s; /* NCCL reported a kernel that was running after so long; 0: none */
    ls_collectives_call running; /* the call of that kernel; its type is not known */
} ls_collectives_member;

/* A communicator as the interposer numbers its calls, or one function of one as NCCL does. */
typedef struct ls_collectives_comm {
    uint64_t id;
    char op[20]; /* "": the interposer's; "*": a communicator of NCCL's, whose calls are not here */
    int world;
    int count, capacity; /* of calls: call[i].number is i, or rank is -1 where it was not seen */
    ls_collectives_call *call; /* as the first rank that made it */
    int member_count, member_capacity;
    ls_collectives_member *member;
    ls_collectives_call ended; /* by the first rank that did; elements: how many calls; job -1 */
} ls_collectives_comm;

/* Two ranks that disagree. */
typedef struct ls_collectives_mismatch {
    bool found, at_end; /* at_end: the totals differ; elements is how many calls there were */
    int comm;
    ls_collectives_call first, second;
} ls_collectives_mismatch;

typedef struct ls_collectives {
    int files;
    int64_t compared;
    bool keeps_nan;   /* a maximum or minimum with a NaN is one: NCCL drops it */
    int64_t captured; /* samples that a graph's capture left out */
    int process_count, process_capacity;
    ls_collectives_process *process;
    int comm_count, comm_capacity;
    ls_collectives_comm *comm;
    int sample_count, sample_capacity;
    ls_collectives_sample *sample;    /* sorted by communicator, number, rank */
    ls_collectives_mismatch mismatch; /* the earliest */
    char broken[320];                 /* a file that cannot be read to its end, or "" */
} ls_collectives;

/* Reads all files of a folder; none of them is no error. */
void ls_collectives_read(const char *directory, ls_collectives *out);
void ls_collectives_free(ls_collectives *collectives);

#endif
