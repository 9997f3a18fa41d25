/* How a group of ranks ended: one job, or one node's share of a job. As JSON it is part of job.json
 * and of a launcher's report. */
#ifndef LS_OUTCOME_H
#define LS_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "harness/process/proc.h"
#include "kernels/core/json.h"

typedef enum ls_outcome_state {
    LS_OUTCOME_DONE,   /* every rank exited 0 */
    LS_OUTCOME_FAILED, /* a rank exited with another code */
    LS_OUTCOME_KILLED, /* a signal that this program did not send ended a rank */
    LS_OUTCOME_TIMED_OUT,
    LS_OUTCOME_STOPPED,     /* this program was asked to stop */
    LS_OUTCOME_NOT_STARTED, /* infrastructure */
} ls_outcome_state;

typedef struct ls_outcome {
    ls_outcome_state state;
    int first_rank;   /* the first that failed, or -1. A rank that only lost its peer (codes 10 and
                         11) gives way to one that failed by itself within the grace */
    int code, signal; /* of the first that failed */
    int64_t started_ns, ended_ns;
    int64_t rss_bytes_max; /* largest peak of one rank */
    double user_s, system_s;
    long memory_kills; /* of processes, by the kernel, because a cgroup had no memory left */
    int rank_count;
    ls_proc *rank; /* malloc'ed, [rank_count] */
    char why[360]; /* the last message of a host that started no rank, was lost or had no room on
                      its own disk; or "" */
} ls_outcome;

void ls_outcome_free(ls_outcome *outcome);
/* {"state","first_rank","code","signal","seconds","memory_kills","why",
 * "ranks":[{rank,code,signal,seconds,...}]};
 * ranks are numbered from `first`. */
cJSON *ls_outcome_json(const ls_outcome *outcome, int first);
/* Parses ls_outcome_json's object. The caller frees ranks[ranks] with ls_outcome_free; times count
 * from 0. False when the object is not an outcome of that many ranks. */
bool ls_outcome_read(const cJSON *object, int first, int ranks, ls_outcome *out);
/* Fills the outcome's own sums and peaks from its ranks. */
void ls_outcome_add_up(ls_outcome *outcome);

#endif
