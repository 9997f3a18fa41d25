#include "shard.h"

#include <stdlib.h>
#include <string.h>

#include "harness/run/matrix.h"

enum { CORES = 2 };

static const double judging_s = 0.2; /* of a case, without its jobs */

typedef struct need {
    char id[96]; /* of a job */
    int row;     /* of a case that needs it */
    const ls_spec *spec;
} need;

/* Cases connected by common jobs. */
typedef struct group {
    int first; /* row */
    double seconds;
    int share;
} group;

static int by_id(const void *left, const void *right)
{
    const need *a = left, *b = right;
    int order = strcmp(a->id, b->id);
    return order != 0 ? order : (a->row > b->row) - (a->row < b->row);
}

static int by_seconds(const void *left, const void *right)
{
    const group *a = left, *b = right;
    int order = (a->seconds < b->seconds) - (a->seconds > b->seconds);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

static need *list_needs(const ls_case_list *cases, int *count)
{
    need *list = calloc((size_t)cases->count * LS_CASE_JOBS_MAX + 1, sizeof *list);
    LS_ASSERT(list != NULL);
    *count = 0;
    for (int c = 0; c < cases->count; c++) {
        for (int j = 0; j < cases->row[c].job_count; j++) {
            need *n = &list[(*count)++];
            ls_matrix_id(&cases->row[c].job[j], n->id);
            n->row = c;
            n->spec = &cases->row[c].job[j];
        }
    }
    qsort(list, (size_t)*count, sizeof *list, by_id);
    return list;
}

static int root_of(int *parent, int row)
{
    while (parent[row] != row) {
        parent[row] = parent[parent[row]];
        row = parent[row];
    }
    return row;
}

/* parent[row] leads to the lowest row of its group. */
static void join(const need *list, int count, int *parent)
{
    for (int i = 1; i < count; i++) {
        if (strcmp(list[i].id, list[i - 1].id) == 0) {
            int a = root_of(parent, list[i - 1].row), b = root_of(parent, list[i].row);
            parent[a > b ? a : b] = a > b ? b : a;
        }
    }
}

/* The cost of each group, group[root].seconds. */
static void weigh(const ls_case_list *cases, const need *list, int count, int *parent,
                  group *groups)
{
    for (int c = 0; c < cases->count; c++) {
        groups[c].first = c;
        groups[root_of(parent, c)].seconds += judging_s;
    }
    for (int i = 0; i < count; i++) {
        if (i == 0 || strcmp(list[i].id, list[i - 1].id) != 0) {
            groups[root_of(parent, list[i].row)].seconds +=
                ls_matrix_estimate_s(list[i].spec, CORES);
        }
    }
}

/* Assigns the heaviest group first, each to the lightest share: share_of[first row]. */
static void deal(group *groups, int count, int shares, int *share_of)
{
    double *filled = calloc((size_t)shares, sizeof *filled);
    LS_ASSERT(filled != NULL);
    qsort(groups, (size_t)count, sizeof *groups, by_seconds);
    for (int g = 0; g < count && groups[g].seconds > 0; g++) {
        int least = 0;
        for (int s = 1; s < shares; s++) {
            least = filled[s] < filled[least] ? s : least;
        }
        filled[least] += groups[g].seconds;
        share_of[groups[g].first] = least;
    }
    free(filled);
}

void ls_shard_keep(ls_case_list *cases, int share, int shares)
{
    if (shares <= 1) {
        return;
    }
    int count, kept = 0;
    need *list = list_needs(cases, &count);
    size_t rows = (size_t)cases->count + 1;
    int *parent = calloc(rows, sizeof *parent), *share_of = calloc(rows, sizeof *share_of);
    group *groups = calloc(rows, sizeof *groups);
    LS_ASSERT(parent != NULL && share_of != NULL && groups != NULL);
    for (int c = 0; c < cases->count; c++) {
        parent[c] = c;
    }
    join(list, count, parent);
    weigh(cases, list, count, parent, groups);
    deal(groups, cases->count, shares, share_of);
    for (int c = 0; c < cases->count; c++) {
        if (share_of[root_of(parent, c)] == share) {
            cases->row[kept++] = cases->row[c];
        }
    }
    cases->count = kept;
    free(groups);
    free(share_of);
    free(parent);
    free(list);
}

double ls_shard_estimate_s(const ls_case_list *cases)
{
    int count;
    need *list = list_needs(cases, &count);
    double seconds = judging_s * cases->count;
    for (int i = 0; i < count; i++) {
        if (i == 0 || strcmp(list[i].id, list[i - 1].id) != 0) {
            seconds += ls_matrix_estimate_s(list[i].spec, CORES);
        }
    }
    free(list);
    return seconds;
}
