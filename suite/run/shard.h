/* Shares of a list, for several machines that run it together. */
#ifndef LS_SHARD_H
#define LS_SHARD_H

#include "suite/suite.h"

/* Keeps share `share` (from 0) of `shares`. Cases that need the same job stay together, so that no
 * job runs twice; shares are balanced by the estimate of their jobs on 2 cores. The shares of a
 * list are disjoint and complete, and the same on every machine. */
void ls_shard_keep(ls_case_list *cases, int share, int shares);
/* Seconds of the rows' jobs on 2 cores, each job once. */
double ls_shard_estimate_s(const ls_case_list *cases);

#endif
