/* Process groups: every group's results, roots and barriers are its own, also while another group
 * has lost a rank; and which options lockstep-collectives refuses. The groups of a layout are
 * written down here once more, as torch's new_group has them: in ascending order. */
#include "collectives.h"

#include <inttypes.h>
#include <string.h>

enum { GROUPS = 4, RANKS = 5 };

typedef struct layout {
    const char *name, *script;
    int world, count;
    int size[GROUPS], member[GROUPS][RANKS];
} layout;

#define RUN LS_COLLECTIVES_RUN
#define TRIED \
    "--ops=all --redop=sum,max,prod --dtypes=fp32,fp16 --counts=0,1,3,1023,33001 --barriers=9 "
enum { COUNTS = 5, TYPES = 2, PLACES = 2, LARGE_COUNTS = 2 };

static const layout layouts[] = {
    {"size1", RUN TRIED "--group-size=1", 2, 2, {1, 1}, {{0}, {1}}},
    {"size2", RUN TRIED "--group-size=2", 4, 2, {2, 2}, {{0, 1}, {2, 3}}},
    {"size3", RUN TRIED "--group-size=3", 3, 1, {3}, {{0, 1, 2}}},
    {"crossed", RUN TRIED "'--groups=2,0;3,1'", 4, 2, {2, 2}, {{0, 2}, {1, 3}}},
    {"uneven", RUN TRIED "'--groups=4,3,1;0'", 5, 2, {3, 1}, {{1, 3, 4}, {0}}}, /* rank 2 waits */
    {"without-host", RUN TRIED "--groups=2,1", 3, 1, {2}, {{1, 2}}}, /* rank 0 has the store */
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static const char *const redops[] = {"sum", "max", "prod"};
static const struct operation {
    const char *name;
    bool in_place;
} operations[] = {
    {"all_reduce", true}, {"reduce_scatter", true}, {"all_gather", true},
    {"broadcast", true},  {"reduce", true},         {"gather", true},
    {"scatter", true},    {"send", false},          {"all_to_all", false},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* The group that a rank is in, -1: none, and its rank there. */
static int group_of(const layout *l, int rank, int *place)
{
    for (int g = 0; g < l->count; g++) {
        for (int k = 0; k < l->size[g]; k++) {
            if (l->member[g][k] == rank) {
                *place = k;
                return g;
            }
        }
    }
    return -1;
}

/* The start event says which ranks this one works with. */
static void check_start(const layout *l, const ls_record *job, int rank, ls_verdict *out)
{
    int place = -1, group = group_of(l, rank, &place);
    const cJSON *start = job->rank[rank].start;
    const cJSON *ranks = cJSON_GetObjectItem(start, "group_ranks");
    bool same = ls_json_int(start, "groups", -1) == l->count &&
                ls_json_int(start, "group", -1) == group &&
                ls_json_int(start, "group_rank", -1) == place &&
                cJSON_GetArraySize(ranks) == (group < 0 ? 0 : l->size[group]);
    for (int k = 0; same && group >= 0 && k < l->size[group]; k++) {
        const cJSON *member = cJSON_GetArrayItem(ranks, k);
        same = cJSON_IsNumber(member) && member->valueint == l->member[group][k];
    }
    if (!same) {
        ls_verdict_fail(out, "rank=%d does not say that it is rank %d of group %d of %d", rank,
                        place, group, l->count);
    }
}

static ls_collectives_combination combination_of(const layout *l, int group, int place,
                                                 const char *op, const char *redop,
                                                 const ls_collectives_type *type)
{
    return (ls_collectives_combination){.op = op,
                                        .redop = redop,
                                        .type = type,
                                        .rank = place,
                                        .world = group < 0 ? 0 : l->size[group],
                                        .members = group < 0 ? NULL : l->member[group]};
}

static int64_t check_results(const layout *l, const ls_record *job, int rank, ls_verdict *out)
{
    int64_t checked = 0;
    int place = -1, group = group_of(l, rank, &place);
    for (int k = 0; k < OPERATIONS * TYPES; k++) {
        const struct operation *op = &operations[k / TYPES];
        bool reduces = ls_collectives_reduces(op->name);
        bool none = group < 0 || (l->size[group] == 1 && strcmp(op->name, "send") == 0);
        for (int r = 0; r < (reduces ? 3 : 1); r++) {
            checked += ls_collectives_check(job, rank,
                                            combination_of(l, group, place, op->name,
                                                           reduces ? redops[r] : "none",
                                                           &ls_collectives_types[k % TYPES]),
                                            none ? 0 : COUNTS * (op->in_place ? PLACES : 1), out);
        }
    }
    return checked;
}

static void conclude(const layout *l, int64_t checked, ls_verdict *out)
{
    if (checked == 0) {
        ls_verdict_set(out, LS_WEAK, "no element was checked");
    }
    ls_verdict_pass(out, checked, "%" PRId64 " elements of %d groups exact", checked, l->count);
}

static void judge_groups(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const layout *l = row->data;
    int64_t checked = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        check_start(l, job, rank, out);
        checked += check_results(l, job, rank, out);
    }
    conclude(l, checked, out);
}

/* Only all_reduce, of sizes that go directly and around a ring. */
static void judge_large(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const layout *l = row->data;
    int64_t checked = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        int place = -1, group = group_of(l, rank, &place);
        checked += ls_collectives_check(
            job, rank,
            combination_of(l, group, place, "all_reduce", "sum", &ls_collectives_types[0]),
            LARGE_COUNTS, out);
    }
    conclude(l, checked, out);
}

static void judge_barriers(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const layout *l = row->data;
    int barriers = 0, late = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int g = 0; g < l->count; g++) {
        barriers += ls_collectives_barriers(job, l->member[g], l->size[g], &late, out);
    }
    if (late == 0) {
        ls_verdict_set(out, LS_WEAK, "no rank was late to any of %d barriers", barriers);
    }
    ls_verdict_pass(out, barriers, "no rank left any of %d barriers of %d groups early", barriers,
                    l->count);
}

/* From the end events, whose times are of one clock: no rank goes on before all groups are done;
 * groups of equal size, two ranks and more, work at the same time: none begins after another is
 * done. */
static void judge_together(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const layout *l = row->data;
    double begun[GROUPS], done[GROUPS], last_done = 0, first_released = 1e300;
    int first_rank = -1;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int g = 0; g < GROUPS; g++) {
        begun[g] = 1e300;
        done[g] = 0;
    }
    for (int rank = 0; rank < job->world; rank++) {
        int place, g = group_of(l, rank, &place);
        cJSON *events = ls_collectives_events(job, rank, "\"event\":\"end\"", "all_done_ns");
        const cJSON *end = cJSON_GetArrayItem(events, 0);
        double own_begun = ls_json_number(end, "begun_ns", -1);
        double own_done = ls_json_number(end, "done_ns", -1);
        double released = ls_json_number(end, "all_done_ns", -1);
        if (own_begun < 0 || own_done < own_begun || released < own_done) {
            ls_verdict_fail(out, "rank=%d has no times of its group in order", rank);
        }
        if (g >= 0) {
            begun[g] = own_begun < begun[g] ? own_begun : begun[g];
            done[g] = own_done > done[g] ? own_done : done[g];
            last_done = own_done > last_done ? own_done : last_done;
        }
        first_rank = released < first_released ? rank : first_rank;
        first_released = released < first_released ? released : first_released;
        cJSON_Delete(events);
    }
    if (first_released < last_done) {
        ls_verdict_fail(out, "rank=%d went on %.3f ms before all groups were done", first_rank,
                        (last_done - first_released) * 1e-6);
    }
    for (int g = 0; g < l->count * l->count; g++) {
        int a = g / l->count, b = g % l->count;
        if (l->size[a] > 1 && l->size[a] == l->size[b] && begun[b] > done[a]) {
            ls_verdict_fail(out, "group %d began %.3f ms after group %d was done", b,
                            (begun[b] - done[a]) * 1e-6, a);
        }
    }
    ls_verdict_pass(out, job->world, "%d groups began together, and every rank waited for the last",
                    l->count);
}

/* ---- a lost rank ----------------------------------------------------------------------------- */

static const layout lost = {"lost", RUN "--ops=none --timeout=1.5 --absent=3 '--groups=4,3,1;0,2'",
                            5,      2,
                            {3, 2}, {{1, 3, 4}, {0, 2}}};
enum { ABSENT = 3 };
static const double lost_s = 1.5; /* --timeout of the job */

/* Without one rank its group fails at the deadline, that of the first of its ranks, which gives up
 * for the others, too; the other group's operation works. Which rank is named is judged where all
 * ranks are together. */
static void judge_lost(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const char *name = row->data;
    double longest_s = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    LS_TEXT(wanted, 96, "without/%s of group 0'", name);
    for (int rank = 0; rank < job->world; rank++) {
        int place, group = group_of(&lost, rank, &place);
        int want = group == 0 && rank != ABSENT ? LS_ERR_PEER_LOST : LS_OK;
        double seconds;
        ls_collectives_absent(job, rank, name, want, lost_s, &seconds, out);
        longest_s = want != LS_OK && seconds > longest_s ? seconds : longest_s;
        if (want != LS_OK && !ls_collectives_names(job, rank, wanted, "")) {
            ls_verdict_fail(out, "rank=%d does not name its group and the operation", rank);
        }
    }
    if (longest_s < lost_s) {
        ls_verdict_fail(out, "group 0 gave up after %.2f s, before the deadline of 1.5 s",
                        longest_s);
    }
    ls_verdict_pass(out, job->world, "group 0 gave up after %.2f s, group 1 went on", longest_s);
}

/* ---- refused --------------------------------------------------------------------------------- */

/* Every rank says why. */
#define REFUSED(id, lines, world, says)                                                        \
    {                                                                                          \
        "collectives.refused." id, "X10", ls_endings_row, LS_COLLECTIVES_JOB "w" #world,       \
            LS_ENDING({2, 2, 2}, (1u << world) - 1, says, true), lines, .inside = true,        \
                                                                        .judges_outcome = true \
    }

static const ls_row refused[] = {
    REFUSED("groups-twice", RUN "'--groups=0,1;1,2'", 3,
            "--groups '0,1;1,2': a rank is listed twice; allowed"),
    REFUSED("groups-repeated", RUN "--groups=1,1", 2,
            "--groups '1,1': a rank is listed twice; allowed"),
    REFUSED("groups-unknown", RUN "'--groups=0,1;2'", 2,
            "--groups '0,1;2': a rank is not of this world; allowed: ranks of this world, 0 to 1"),
    REFUSED("groups-empty", RUN "'--groups=0;;1'", 2, "--groups '0;;1': a group is empty; allowed"),
    REFUSED("groups-open", RUN "'--groups=0,1;'", 2, "--groups '0,1;': a group is empty; allowed"),
    REFUSED("groups-none", RUN "--groups=", 2, "--groups '': a group is empty; allowed"),
    REFUSED("groups-text", RUN "--groups=0,x", 2, "--groups '0,x': not a list of ranks; allowed"),
    REFUSED("groups-negative", RUN "--groups=0,-1", 2,
            "--groups '0,-1': not a list of ranks; allowed"),
    REFUSED("groups-comma", RUN "--groups=0,1,", 2,
            "--groups '0,1,': not a list of ranks; allowed"),
    REFUSED("size-rest", RUN "--group-size=2", 3,
            "--group-size 2: allowed: a divisor of the number of ranks, which is 3"),
    REFUSED("size-large", RUN "--group-size=4", 2,
            "--group-size 4: allowed: a divisor of the number of ranks, which is 2"),
    REFUSED("size-zero", RUN "--group-size=0", 2, "--group-size '0': allowed: 1 to 16"),
    REFUSED("size-text", RUN "--group-size=two", 2, "--group-size 'two': allowed: 1 to 16"),
    REFUSED("size-and-groups", RUN "--group-size=1 --groups=0,1", 2,
            "--groups 0,1 and --group-size 1: give one of them"),
    REFUSED("absent-outside", RUN "--groups=0,1 --absent=2", 3,
            "--absent 2: it is in no group; allowed: a rank of a group with others"),
    REFUSED("absent-alone", RUN "--group-size=1 --absent=1", 2,
            "--absent 1: it is alone in its group; allowed: a rank of a group with others"),
    REFUSED("redop-unknown", RUN "--redop=avg", 2,
            "--redop 'avg': allowed: all, or some of sum, max, min, prod"),
    REFUSED("redop-twice", RUN "-o max,max", 2, "--redop 'max,max': allowed: all, or some of"),
    REFUSED("redop-unused", RUN "--ops=gather,all_to_all --redop=max", 2,
            "--redop max: none of --ops reduces; all_reduce, reduce_scatter and reduce do"),
    REFUSED("in-place-unused", RUN "--ops=all_to_all,send --in-place=yes", 2,
            "--in-place yes: none of --ops works in place"),
};

/* ---- the table ------------------------------------------------------------------------------- */

void ls_collectives_groups_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const char large_script[] =
        RUN "--ops=all_reduce --in-place=yes --iters=3 --counts=1023,400003 --group-size=2";
    static const layout *const pairs = &layouts[1];
    static const struct {
        const char *op, *id;
    } without[] = {{"all_reduce", "all-reduce"}, {"reduce_scatter", "reduce-scatter"},
                   {"all_gather", "all-gather"}, {"broadcast", "broadcast"},
                   {"barrier", "barrier"},       {"all_to_all", "all-to-all"}};
    for (int i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        LS_COLLECTIVES_ADD("X9", judge_groups, l->script, l,
                           "groups.%s.w%d: " LS_COLLECTIVES_JOB "w%d", l->name, l->world, l->world);
        LS_COLLECTIVES_ADD("X9", judge_together, l->script, l,
                           "groups.%s.together.w%d: " LS_COLLECTIVES_JOB "w%d", l->name, l->world,
                           l->world);
        if (l->size[0] > 1) { /* in a group of one no rank can be late */
            LS_COLLECTIVES_ADD("X9", judge_barriers, l->script, l,
                               "groups.%s.barrier.w%d: " LS_COLLECTIVES_JOB "w%d", l->name,
                               l->world, l->world);
        }
    }
    LS_COLLECTIVES_ADD("X9", judge_large, large_script, pairs,
                       "groups.large.w4: " LS_COLLECTIVES_JOB "w4");
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        LS_COLLECTIVES_ADD("X9", judge_lost, lost.script, without[i].op,
                           "groups.lost.%s: " LS_COLLECTIVES_JOB "w5", without[i].id);
    }
    LS_ROWS(list, settings, refused);
}
