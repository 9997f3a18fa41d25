/* How fast an observed job trained: a summary, no verdict. */
#ifndef LS_OBSERVE_SPEED_H
#define LS_OBSERVE_SPEED_H

#include <stdio.h>

#include "suite/observe/trace/trace.h"

/* Of a rank's steady steps: the third and later ones that were not looked at in detail. Shares are
 * parts of the steps' own time, without the attach module's. NaN: not known. */
typedef struct ls_observe_speed_rank {
    int steps;
    double images_per_s;
    double step_ms_p50, step_ms_p90;
    double data, forward, backward, optimizer; /* shares */
} ls_observe_speed_rank;

typedef struct ls_observe_speed {
    int ranks;           /* that have steady steps */
    int steps;           /* least of them */
    double images_per_s; /* of all ranks together */
    double step_ms_p50;  /* of the slowest rank, as are the others */
    double step_ms_p90;
    double data, forward, backward, optimizer;
    double instrument;           /* the attach module's share of the job, most of all ranks */
    int slowest;                 /* rank with the greatest median of its own work: forward, data,
                                    optimizer; -1: none. Backward holds the wait for others. */
    double slowest_ms, other_ms; /* its own work in a step, and the median of all ranks' */
    int rank_count;
    ls_observe_speed_rank *rank; /* [rank_count] */
} ls_observe_speed;

void ls_observe_speed_read(const ls_observe_trace *trace, ls_observe_speed *out);
void ls_observe_speed_free(ls_observe_speed *speed);
/* Some lines for the report; one that says why, where there are no steady steps. */
void ls_observe_speed_print(const ls_observe_speed *speed, FILE *out);

#endif
