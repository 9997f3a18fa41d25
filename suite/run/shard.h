/* Shares of a list, for machines that run it side by side. */
#ifndef LS_SHARD_H
#define LS_SHARD_H

#include "suite/suite.h"

/* Keeps share `share` (from 0) of `shares`: cases that need the same job stay together, so that no
 * job runs twice, and shares are balanced by the estimate of their jobs on 2 cores. The shares of a
 * list are disjoint and hold all of it, on every machine alike. */
void ls_shard_keep(ls_case_list *cases, int share, int shares);
/* Seconds of the rows' jobs on 2 cores, each job once. */
double ls_shard_estimate_s(const ls_case_list *cases);

#endif
