/* Process groups: communicators over some of a job's ranks, all at work at the same time. As in
 * torch's new_group, a group's ranks count from 0 in ascending order of their ranks in the world,
 * however they were listed. A rank is in one group or in none. */
#ifndef LS_RANK_GROUPS_H
#define LS_RANK_GROUPS_H

#include "pattern.h"

typedef struct ls_rank_groups {
    int count; /* 0: none, all ranks are together */
    ls_pattern_members group[LS_PATTERN_WORLD_MAX];
} ls_rank_groups;

/* "0,1;2,3": ranks of the world divided by commas, groups by semicolons. LS_ERR_USAGE, logged with
 * the text, for anything else, an empty group, a rank that the world does not have, and one that is
 * listed twice. */
ls_status ls_rank_groups_read(const char *text, int world, ls_rank_groups *out);
/* Groups of `size` consecutive ranks. LS_ERR_USAGE, logged, unless `size` divides `world`. */
ls_status ls_rank_groups_of_size(int size, int world, ls_rank_groups *out);
/* The group that `rank` of the world is in, and its rank there; -1: in none. */
int ls_rank_groups_find(const ls_rank_groups *groups, int rank, int *rank_in_group);

#endif
