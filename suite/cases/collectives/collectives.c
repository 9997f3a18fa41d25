/* The engine's collectives, tried by lockstep-collectives (reference/comm/exercise.h) in one job
 * per world; a row judges one operation and type in it, or one operation and operator other than
 * the sum over all types: factors of a product are such that none can be missing or taken twice
 * unseen (reference/comm/pattern.h). Groups of ranks are in collectives_groups.c. */
#include "collectives.h"

#include <inttypes.h>
#include <string.h>

enum { COUNTS = 7, ABSENT = 1, ROUGH = 2 * 2 /* counts and places */ };

#define COUNTS_TEXT "0,1,3,W-1,W+1,1023,33001"
#define RUN LS_COLLECTIVES_RUN

static const int worlds[] = {2, 3, 5};
enum { WORLDS = 3 };

static const char exact_script[] =
    RUN "--dtypes=fp32,fp16,bf16,int64,uint8 --offsets=1 --barriers=15 --counts=" COUNTS_TEXT;
static const char rough_script[] =
    RUN "--data=rough --dtypes=fp32,fp16,bf16 --ops=all_reduce,reduce_scatter,reduce "
        "--counts=1023,33001";
static const char rough_tcp_script[] =
    "export LS_SHM=0; " RUN "--data=rough --dtypes=fp32,fp16,bf16 "
    "--ops=all_reduce,reduce_scatter,reduce --counts=1023,33001";
static const char large_script[] =
    RUN "--ops=all_reduce,reduce,broadcast --in-place=yes --counts=1600003";
static const char large_tcp_script[] =
    "export LS_SHM=0; " RUN "--ops=all_reduce --in-place=yes --counts=33001,3200003";
static const char large_types_script[] =
    RUN "--ops=all_reduce --dtypes=fp16,int64,uint8 --in-place=yes --counts=3200003";
/* One rank that may not share is enough: all go over TCP. */
static const char forbidden_script[] = "[ $RANK != 1 ] || export LS_SHM=0; " RUN
                                       "--ops=all_reduce --in-place=yes --counts=33001,1600003";
static const char printed_script[] =
    "export LS_RUN_DIR=; " RUN "--ops=all_reduce,all_gather,broadcast --in-place=yes "
    "--counts=200000,1600003 --iters=2";
static const char absent_script[] = RUN "--ops=none --absent=1 --timeout=0.4";
static const char self_script[] =
    RUN "--comm=self --dtypes=fp32,fp16,bf16,int64,uint8 --offsets=1 --counts=" COUNTS_TEXT;
static const char alone_script[] =
    RUN "--comm=$E --dtypes=fp32,fp16,bf16,int64,uint8 --offsets=1 --counts=" COUNTS_TEXT;

#define OPERATORS "--redop=max,min,prod "
#define REDUCED                                         \
    "--ops=all_reduce,reduce_scatter,reduce " OPERATORS \
    "--dtypes=fp32,fp16,bf16,int64,uint8 --offsets=1 --counts=" COUNTS_TEXT
static const char redop_script[] = RUN REDUCED;
static const char redop_tcp_script[] = "export LS_SHM=0; " RUN "--ops=all_reduce " OPERATORS
                                       "--dtypes=fp32,fp16,bf16,int64,uint8 --counts=33001,800003";
static const char redop_self_script[] = RUN "--comm=self " REDUCED;
static const char redop_alone_script[] = RUN "--comm=$E " REDUCED;
static const char redop_rough_script[] =
    RUN "--data=rough --ops=all_reduce,reduce_scatter,reduce " OPERATORS
        "--dtypes=fp32,fp16,bf16 --counts=1023,33001";

/* ---- results --------------------------------------------------------------------------------- */

struct trial {
    const char *op;                  /* "all_reduce"; NULL: all that reduce */
    const ls_collectives_type *type; /* NULL: all types */
    int combinations;                /* of count, place and alignment, per type and rank */
    const char *redop;               /* "max"; NULL: the sum, where the operation reduces */
};

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct trial *trial = row->data;
    const char *usual = ls_collectives_reduces(trial->op) ? "sum" : "none";
    int types = trial->type != NULL ? 1 : LS_COLLECTIVES_TYPES;
    int64_t results = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        for (int t = 0; t < types; t++) {
            ls_collectives_combination c = {.op = trial->op,
                                            .redop = trial->redop != NULL ? trial->redop : usual,
                                            .type =
                                                types > 1 ? &ls_collectives_types[t] : trial->type,
                                            .rank = rank,
                                            .world = job->world};
            results += ls_collectives_check(job, rank, c, trial->combinations, out);
        }
    }
    if (results == 0) {
        ls_verdict_set(out, LS_WEAK, "no element was checked");
    }
    ls_verdict_pass(out, results,
                    "%d combinations of size, place and alignment of %d types, %" PRId64
                    " elements of %d ranks exact",
                    trial->combinations, types, results, job->world);
}

/* The same over TCP, where only one rank forbids shared memory or all do. */
static void judge_exact_tcp(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    judge_exact(row, job, out);
    for (int rank = 0; rank < job->world; rank++) {
        const char *transport = ls_json_string(job->rank[rank].start, "transport", "TCP");
        const char *engine = ls_json_string(job->rank[rank].start, "engine", "");
        if (strcmp(engine, "gloo") == 0 && strcmp(transport, "TCP") != 0) {
            ls_verdict_fail(out, "rank=%d says transport %s where LS_SHM=0 forbids it", rank,
                            transport);
        }
    }
}

/* One operation and type of a rough trial on all ranks; returns how many elements were checked. */
static int64_t check_rough(const ls_record *job, const struct trial *trial, const char *op,
                           const char *type, int64_t *telling, ls_verdict *out)
{
    int64_t checked = 0;
    const char *redop = trial->redop != NULL ? trial->redop : "sum";
    cJSON *first = ls_collectives_events_of(job, 0, op, redop, type);
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events = ls_collectives_events_of(job, rank, op, redop, type);
        const cJSON *event;
        int index = 0;
        if (cJSON_GetArraySize(events) != trial->combinations) {
            ls_verdict_fail(out, "rank=%d tried %d combinations of %s, %s, expected %d", rank,
                            cJSON_GetArraySize(events), op, type, trial->combinations);
        }
        ls_json_each(event, events) {
            char place[128];
            const cJSON *other = cJSON_GetArrayItem(first, index++);
            ls_collectives_check_counts(rank, event, out);
            checked += ls_json_integer(event, "checked", 0);
            *telling += ls_json_integer(event, "telling", 0);
            if (strcmp(op, "all_reduce") == 0 &&
                strcmp(ls_json_string(event, "digest", ""), ls_json_string(other, "digest", "?")) !=
                    0) {
                ls_verdict_fail(out, "rank=%d %s: other bits than rank 0", rank,
                                ls_collectives_place(event, place, sizeof place));
            }
        }
        cJSON_Delete(events);
    }
    cJSON_Delete(first);
    return checked;
}

/* Rough data: sums and products round once per addition or multiplication, in an order of the ranks
 * that explains every element; a NaN among the values makes maximum and minimum NaN (with NCCL it
 * may be lost: comm.h). An all_reduce has the same bits on every rank. `telling`: elements that
 * would show it. */
static void judge_rough(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const char *const ops[] = {"all_reduce", "reduce_scatter", "reduce"};
    const struct trial *trial = row->data;
    int64_t checked = 0, telling = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int o = 0; o < 3; o++) {
        for (int t = 0; t < LS_COLLECTIVES_HALF_TYPES; t++) {
            const ls_collectives_type *type = &ls_collectives_types[t];
            if ((trial->op == NULL || strcmp(trial->op, ops[o]) == 0) &&
                (trial->type == NULL || trial->type == type)) {
                checked += check_rough(job, trial, ops[o], type->name, &telling, out);
            }
        }
    }
    bool rounds = trial->redop == NULL || strcmp(trial->redop, "prod") == 0;
    const char *shown = rounds ? "would differ if rounded once at the end" : "had a NaN";
    if (checked == 0 || (telling == 0 && (!rounds || job->world > 2))) {
        ls_verdict_set(out, LS_WEAK, "no element %s", shown);
    }
    ls_verdict_pass(out, checked, "%" PRId64 " elements, of which %" PRId64 " %s", checked, telling,
                    shown);
}

/* How the large sums of a job went. */
static bool went_through(const ls_record *job, const char *transport)
{
    cJSON *starts = ls_collectives_events(job, 0, "\"start\"", "transport");
    const char *seen = ls_json_string(cJSON_GetArrayItem(starts, 0), "transport", "");
    bool same = strcmp(seen, transport) == 0;
    cJSON_Delete(starts);
    return same;
}

/* Two runs of the same sums. With a transport as data the first job uses it and the second one TCP
 * (Gloo; an engine with a single transport is run twice in the same way). */
static void judge_twice(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const char *transport = row->data;
    int compared = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    bool gloo = strcmp(ls_json_string(job->rank[0].start, "engine", ""), "gloo") == 0;
    if (transport != NULL && gloo &&
        (!went_through(&job[0], transport) || !went_through(&job[1], "TCP"))) {
        ls_verdict_set(out, LS_WEAK, "the two jobs did not use %s and TCP", transport);
        return;
    }
    for (int rank = 0; rank < job[0].world; rank++) {
        cJSON *a = ls_collectives_events(&job[0], rank, "\"collective\"", "digest");
        cJSON *b = ls_collectives_events(&job[1], rank, "\"collective\"", "digest");
        for (int i = 0; i < cJSON_GetArraySize(a); i++) {
            const cJSON *one = cJSON_GetArrayItem(a, i), *two = cJSON_GetArrayItem(b, i);
            char place[128];
            compared++;
            if (strcmp(ls_json_string(one, "digest", ""), ls_json_string(two, "digest", "?")) !=
                0) {
                ls_verdict_fail(out, "rank=%d %s: other bits in the other job", rank,
                                ls_collectives_place(one, place, sizeof place));
            }
        }
        cJSON_Delete(a);
        cJSON_Delete(b);
    }
    if (compared == 0) {
        ls_verdict_fail(out, "no result to compare");
    }
    ls_verdict_pass(out, compared, "%d results have the same bits in both jobs", compared);
}

/* ---- barriers and missing ranks -------------------------------------------------------------- */

static void judge_barrier(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    int late = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    int count = ls_collectives_barriers(job, all, job->world, &late, out);
    if (late == 0) {
        ls_verdict_set(out, LS_WEAK, "no rank was late to any of %d barriers", count);
    }
    ls_verdict_pass(out, count, "no rank left any of %d barriers early; at %d a rank was late",
                    count, late);
}

/* Which ranks cannot do their part without rank 1: all, but for a gather, where rank 0 only gives.
 */
static void judge_absent(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const double deadline_s = 0.4;
    const char *name = row->data;
    double longest_s = 0, seconds;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    LS_TEXT(wanted, 64, "without/%s'", name);
    for (int rank = 0; rank < job->world; rank++) {
        bool gives_only = strcmp(name, "gather") == 0 && rank == 0;
        ls_verdict sent = {.code = LS_PASS};
        /* NCCL's sender of a reduction may finish before its peer has read what it sent */
        const char *engine = ls_json_string(job->rank[rank].start, "engine", "");
        if (strcmp(name, "reduce") == 0 && rank == 0 && strcmp(engine, "nccl") == 0) {
            ls_collectives_absent(job, rank, name, 0, deadline_s, &seconds, &sent);
            gives_only = sent.code == LS_PASS;
        }
        int want = rank == ABSENT || gives_only ? 0 : LS_ERR_PEER_LOST;
        ls_collectives_absent(job, rank, name, want, deadline_s, &seconds, out);
        if (want != 0 && seconds < deadline_s) {
            ls_verdict_fail(out, "rank=%d gave up after %.2f s, before its deadline", rank,
                            seconds);
        }
        longest_s = want != 0 && seconds > longest_s ? seconds : longest_s;
        if (want != 0 && !ls_collectives_names(job, rank, wanted, "rank 1")) {
            ls_verdict_fail(out, "rank=%d does not say that it waited for rank 1", rank);
        }
    }
    ls_verdict_pass(out, job->world, "the others gave up after %.2f s and named rank 1", longest_s);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define JOB LS_COLLECTIVES_JOB

#define OUTCOME .inside = true, .judges_outcome = true

static const struct trial large_sums = {"all_reduce", &ls_collectives_types[0], 2, NULL};

static const ls_row rows[] = {
    {"collectives.barrier.w[2|3|5]", "X4", judge_barrier, JOB "w$1", .script = exact_script,
     OUTCOME},
    {"collectives.rates.w[2|3|5]", "X7", ls_collectives_rates, JOB "w$1", .script = exact_script,
     OUTCOME},
    {"collectives.printed.w[2|3|5]", "X7", ls_collectives_printed, JOB "w$1",
     .script = printed_script, OUTCOME},
    {"collectives.twice.w3", "X3", judge_twice, JOB "w3 | " JOB "w3 repeat=1",
     .script = rough_script, OUTCOME},
    {"collectives.large.tcp.w[2|3|5]", "X1", judge_exact_tcp, JOB "w$1", &large_sums,
     .script = large_tcp_script, OUTCOME},
    {"collectives.forbidden.w3", "X6", judge_exact_tcp, JOB "w3", &large_sums,
     .script = forbidden_script, OUTCOME},
};

static const struct operation {
    const char *name, *id;
    bool in_place, alone, sums; /* alone: in a world of one, too */
} operations[] = {
    {"all_reduce", "all-reduce", true, true, true},
    {"reduce_scatter", "reduce-scatter", true, true, true},
    {"all_gather", "all-gather", true, true, false},
    {"broadcast", "broadcast", true, true, false},
    {"reduce", "reduce", true, true, true},
    {"gather", "gather", true, true, false},
    {"scatter", "scatter", true, true, false},
    {"all_to_all", "all-to-all", false, true, false},
    {"send", "send", false, false, false},
    {"recv", "recv", false, false, false},
    {"barrier", "barrier", false, false, false},
};
enum { OPERATIONS = 9 /* that leave a result */, ALL = sizeof operations / sizeof *operations };

static const struct trial *keep(ls_case_list *list, const char *op, const ls_collectives_type *t,
                                int combinations, const char *redop)
{
    struct trial *trial = ls_rows_memory(list, sizeof *trial);
    *trial = (struct trial){op, t, combinations, redop};
    return trial;
}

/* One operation and type, or operator, called `name`, in every world. */
static void add_exact(const ls_case_settings *settings, ls_case_list *list, const char *requirement,
                      const struct operation *op, const char *name, const char *script,
                      const struct trial *trial)
{
    for (int w = 0; w < WORLDS; w++) {
        LS_COLLECTIVES_ADD(requirement, judge_exact, script, trial, "%s.%s.w%d: " JOB "w%d", op->id,
                           name, worlds[w], worlds[w]);
    }
}

static void add_alone(const ls_case_settings *settings, ls_case_list *list, const char *requirement,
                      const struct operation *op, const char *name, const char *self,
                      const char *alone, const struct trial *trial)
{
    LS_COLLECTIVES_ADD(requirement, judge_exact, self, trial, "%s.%s.self: " JOB "w1", op->id,
                       name);
    LS_COLLECTIVES_ADD(requirement, judge_exact, alone, trial, "%s.%s.alone: " JOB "w1", op->id,
                       name);
}

static void add_operation(const ls_case_settings *settings, ls_case_list *list,
                          const struct operation *op)
{
    for (int i = 0; i < LS_COLLECTIVES_TYPES; i++) {
        const ls_collectives_type *t = &ls_collectives_types[i];
        const struct trial *trial =
            keep(list, op->name, t, COUNTS * 2 * (op->in_place ? 2 : 1), NULL);
        add_exact(settings, list, "X1", op, t->name, exact_script, trial);
        if (op->alone) {
            add_alone(settings, list, "X2", op, t->name, self_script, alone_script, trial);
        }
        for (int w = 0; w < 2 && op->sums && t->mantissa > 0; w++) {
            LS_COLLECTIVES_ADD("X3", judge_rough, rough_script,
                               keep(list, op->name, t, ROUGH, NULL), "rough.%s.%s.w%d: " JOB "w%d",
                               op->id, t->name, worlds[w], worlds[w]);
        }
    }
}

/* Maximum, minimum and product. */
static void add_operator(const ls_case_settings *settings, ls_case_list *list, const char *redop)
{
    for (int o = 0; o < OPERATIONS; o++) {
        const struct operation *op = &operations[o];
        if (op->sums) {
            const struct trial *trial = keep(list, op->name, NULL, COUNTS * 2 * 2, redop);
            add_exact(settings, list, "X8", op, redop, redop_script, trial);
            add_alone(settings, list, "X8", op, redop, redop_self_script, redop_alone_script,
                      trial);
        }
    }
    for (int w = 0; w < 2; w++) {
        LS_COLLECTIVES_ADD("X8", judge_rough, redop_rough_script,
                           keep(list, NULL, NULL, ROUGH, redop), "rough.%s.w%d: " JOB "w%d", redop,
                           worlds[w], worlds[w]);
    }
    LS_COLLECTIVES_ADD("X8", judge_exact, redop_tcp_script,
                       keep(list, "all_reduce", NULL, ROUGH, redop), "large.tcp.%s.w3: " JOB "w3",
                       redop);
}

/* Large results: rings and trees of whole megabytes, whole segments and several to a chunk. */
static void add_large(const ls_case_settings *settings, ls_case_list *list, int world)
{
    static const int large[] = {0, 3, 4}, wide_types[] = {1, 3, 4};
    for (int i = 0; i < 3; i++) {
        const struct operation *op = &operations[large[i]];
        const ls_collectives_type *t = &ls_collectives_types[wide_types[i]];
        LS_COLLECTIVES_ADD("X1", judge_exact, large_script,
                           keep(list, op->name, &ls_collectives_types[0], 1, NULL),
                           "large.%s.w%d: " JOB "w%d", op->id, world, world);
        LS_COLLECTIVES_ADD("X1", judge_exact, large_types_script,
                           keep(list, "all_reduce", t, 1, NULL), "large.%s.w%d: " JOB "w%d",
                           t->name, world, world);
    }
}

void ls_collectives_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    for (int o = 0; o < OPERATIONS; o++) {
        add_operation(settings, list, &operations[o]);
    }
    add_large(settings, list, 2);
    add_large(settings, list, 3);
    for (int w = 0; w < 2; w++) {
        ls_case *row = LS_COLLECTIVES_ADD("X6", judge_twice, rough_script, "shared memory",
                                          "transports.w%d: " JOB "w%d | " JOB "w%d", worlds[w],
                                          worlds[w], worlds[w]);
        row->job[1].script = rough_tcp_script;
    }
    for (int o = 0; o < ALL; o++) {
        LS_COLLECTIVES_ADD("X5", judge_absent, absent_script, operations[o].name,
                           "absent.%s: " JOB "w3", operations[o].id);
    }
    add_operator(settings, list, "max");
    add_operator(settings, list, "min");
    add_operator(settings, list, "prod");
}
