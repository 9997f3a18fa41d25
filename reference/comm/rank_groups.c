#include "exercise.h"

#include <errno.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"

/* Keeps the members in ascending order. */
static void add_member(ls_pattern_members *group, int rank)
{
    int at = group->count++;
    while (at > 0 && LS_PLANT(group_in_order_of_list, group->rank[at - 1] > rank, false)) {
        group->rank[at] = group->rank[at - 1];
        at--;
    }
    group->rank[at] = rank;
}

static ls_status refuse(const char *text, const char *why, int world)
{
    return ls_log_fail(
        LS_ERR_USAGE,
        "--groups '%s': %s; allowed: ranks of this world, 0 to %d, each in one group "
        "or in none, such as 0,1;2,3",
        text, why, world - 1);
}

ls_status ls_rank_groups_read(const char *text, int world, ls_rank_groups *out)
{
    ls_rank_groups groups = {.count = 0};
    const char *at = text;
    bool begins = true; /* a group */
    LS_ASSERT(world <= LS_PATTERN_WORLD_MAX);
    for (;;) {
        char *end = NULL;
        int unused;
        if (begins && (*at == ';' || *at == '\0')) {
            return refuse(text, "a group is empty", world);
        }
        errno = 0;
        long rank = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (rank < 0 || errno != 0 || (*end != ',' && *end != ';' && *end != '\0')) {
            return refuse(text, "not a list of ranks", world);
        }
        if (rank >= world) {
            return refuse(text, "a rank is not of this world", world);
        }
        if (ls_rank_groups_find(&groups, (int)rank, &unused) >= 0) {
            return refuse(text, "a rank is listed twice", world);
        }
        groups.count += begins; /* at most one for each rank */
        add_member(&groups.group[groups.count - 1], (int)rank);
        if (*end == '\0') {
            *out = groups;
            return LS_OK;
        }
        begins = *end == ';';
        at = end + 1;
    }
}

ls_status ls_rank_groups_of_size(int size, int world, ls_rank_groups *out)
{
    LS_ASSERT(world <= LS_PATTERN_WORLD_MAX);
    if (size < 1 || world % size != 0) {
        return ls_log_fail(
            LS_ERR_USAGE, "--group-size %d: allowed: a divisor of the number of ranks, which is %d",
            size, world);
    }
    *out = (ls_rank_groups){.count = world / size};
    for (int rank = 0; rank < world; rank++) {
        add_member(&out->group[LS_PLANT(groups_strided, rank / size, rank % out->count)], rank);
    }
    return LS_OK;
}

int ls_rank_groups_find(const ls_rank_groups *groups, int rank, int *rank_in_group)
{
    for (int g = 0; g < groups->count; g++) {
        for (int k = 0; k < groups->group[g].count; k++) {
            if (groups->group[g].rank[k] == rank) {
                *rank_in_group = k;
                return g;
            }
        }
    }
    return -1;
}
