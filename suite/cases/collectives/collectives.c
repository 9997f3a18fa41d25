/* The engine's collectives, tried by lockstep-collectives (reference/comm/exercise.h) in one job
 * per world; a row judges one operation and type in it. Operators other than the sum are in
 * collectives_redop.c, groups of ranks in collectives_groups.c. */
#include "collectives.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"

enum { COUNTS = 7, ABSENT = 1 };

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

/* ---- results --------------------------------------------------------------------------------- */

/* One operation, "all_reduce", on one type. */
struct trial {
    const char *op;
    const ls_collectives_type *type;
    int combinations; /* of count, place and alignment, per rank */
};

static const char *redop_of(const struct trial *trial)
{
    return ls_collectives_reduces(trial->op) ? "sum" : "none";
}

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct trial *trial = row->data;
    int64_t results = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events =
            ls_collectives_events_of(job, rank, trial->op, redop_of(trial), trial->type->name);
        int count = cJSON_GetArraySize(events);
        if (count != trial->combinations) {
            ls_verdict_fail(out, "rank=%d tried %d combinations, expected %d", rank, count,
                            trial->combinations);
        }
        ls_collectives_combination c = {.op = trial->op,
                                        .redop = redop_of(trial),
                                        .type = trial->type,
                                        .rank = rank,
                                        .world = job->world};
        ls_collectives_check_events(events, c, rank, &results, out);
        cJSON_Delete(events);
    }
    if (results == 0) {
        ls_verdict_set(out, LS_WEAK, "no element was checked");
    }
    ls_verdict_pass(out, results,
                    "%d combinations of size, place and alignment, %" PRId64
                    " elements of %d ranks exact",
                    trial->combinations, results, job->world);
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

/* Sums that round: some order of the ranks explains every element, and where the result is
 * everywhere its bits are the same everywhere. */
static void judge_rough(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct trial *trial = row->data;
    int64_t checked = 0, telling = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    cJSON *first = ls_collectives_events_of(job, 0, trial->op, redop_of(trial), trial->type->name);
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events =
            ls_collectives_events_of(job, rank, trial->op, redop_of(trial), trial->type->name);
        const cJSON *event;
        int index = 0;
        if (cJSON_GetArraySize(events) != cJSON_GetArraySize(first)) {
            ls_verdict_fail(out, "rank=%d tried %d combinations, rank 0 tried %d", rank,
                            cJSON_GetArraySize(events), cJSON_GetArraySize(first));
        }
        cJSON_ArrayForEach(event, events)
        {
            const cJSON *other = cJSON_GetArrayItem(first, index++);
            ls_collectives_check_counts(rank, event, out);
            checked += ls_json_integer(event, "checked", 0);
            telling += ls_json_integer(event, "telling", 0);
            if (strcmp(trial->op, "all_reduce") == 0 &&
                strcmp(ls_json_string(event, "digest", ""), ls_json_string(other, "digest", "?")) !=
                    0) {
                char place[128];
                ls_verdict_fail(out, "rank=%d %s: other bits than rank 0", rank,
                                ls_collectives_place(event, place, sizeof place));
            }
        }
        cJSON_Delete(events);
    }
    cJSON_Delete(first);
    if (checked == 0 || (job->world > 2 && telling == 0)) {
        ls_verdict_set(out, LS_WEAK,
                       "no element would differ if rounded once at the "
                       "end");
    }
    ls_verdict_pass(out, checked,
                    "%" PRId64 " elements rounded once per addition (%" PRId64
                    " would differ if rounded once at the end)",
                    checked, telling);
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

/* No rank leaves before the last has come; ranks of one machine share the clock. */
static void judge_barrier(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    cJSON *events[16] = {NULL};
    LS_ASSERT(job->world <= 16);
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        events[rank] = ls_collectives_events(job, rank, "\"barrier\"", "begin_ns");
    }
    int count = cJSON_GetArraySize(events[0]), late = 0;
    for (int i = 0; i < count; i++) {
        double last_begin = 0, first_end = 1e300, first_begin = 1e300;
        int last_rank = -1, first_rank = -1;
        for (int rank = 0; rank < job->world; rank++) {
            const cJSON *event = cJSON_GetArrayItem(events[rank], i);
            double begin = ls_json_number(event, "begin_ns", 1e300);
            double end = ls_json_number(event, "end_ns", 0);
            first_begin = begin < first_begin ? begin : first_begin;
            last_rank = begin > last_begin ? rank : last_rank;
            last_begin = begin > last_begin ? begin : last_begin;
            first_rank = end < first_end ? rank : first_rank;
            first_end = end < first_end ? end : first_end;
        }
        late += last_begin - first_begin >
                2e5; /* a rank had to wait 0.2 ms: the barrier shows something */
        if (first_end < last_begin) {
            ls_verdict_fail(out, "barrier %d: rank=%d left %.3f ms before rank %d came", i,
                            first_rank, (last_begin - first_end) * 1e-6, last_rank);
        }
    }
    for (int rank = 0; rank < job->world; rank++) {
        cJSON_Delete(events[rank]);
    }
    if (late == 0) {
        ls_verdict_set(out, LS_WEAK, "no rank was late to any of %d barriers", count);
    }
    ls_verdict_pass(out, count, "no rank left any of %d barriers early; at %d a rank was late",
                    count, late);
}

static const ls_tol spare_s = LS_TOL(
    5, "on top of the deadline of 0.4 s: closing, and the turns of other processes on a machine "
       "with more ranks than cores");

/* Which ranks cannot do their part without rank 1: all, but for a gather, where rank 0 only gives.
 */
static void judge_absent(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const char *name = row->data;
    char op[48], log[700];
    double longest_s = 0;
    if (ls_collectives_ended_otherwise(row, job, out)) {
        return;
    }
    ls_text_put(op, sizeof op, "\"op\":\"%s\"", name);
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events = ls_collectives_events(job, rank, "\"absent\"", op);
        const cJSON *event = cJSON_GetArrayItem(events, 0);
        int status = ls_json_int(event, "status", -1);
        double seconds = ls_json_number(event, "seconds", 1e9);
        bool gives_only = strcmp(name, "gather") == 0 && rank == 0;
        /* NCCL's sender of a reduction may finish before its peer has read what it sent */
        const char *engine = ls_json_string(job->rank[rank].start, "engine", "");
        gives_only = gives_only || (strcmp(name, "reduce") == 0 && rank == 0 && status == 0 &&
                                    strcmp(engine, "nccl") == 0);
        int want = rank == ABSENT || gives_only ? 0 : LS_ERR_PEER_LOST;
        if (status != want || (want != 0 && !(seconds >= 0.4 && seconds <= 0.4 + spare_s.value))) {
            ls_verdict_fail(out,
                            "rank=%d: status %d after %.2f s, expected %d at the deadline of 0.4 s",
                            rank, status, seconds, want);
        }
        longest_s = want != 0 && seconds > longest_s ? seconds : longest_s;
        cJSON_Delete(events);
        ls_text_put(log, sizeof log, "%s/rank%d.log", job->directory, rank);
        LS_TEXT(wanted, 64, "without/%s'", name);
        char *text = want == 0 ? NULL : ls_text_read(log);
        const char *at = text == NULL ? NULL : strstr(text, wanted);
        bool named = at != NULL && strstr(at, "rank 1") != NULL &&
                     strstr(at, "rank 1") < at + strcspn(at, "\n");
        if (want != 0 && !named) {
            ls_verdict_fail(out, "rank=%d does not say that it waited for rank 1", rank);
        }
        free(text);
    }
    ls_verdict_pass(out, job->world, "the others gave up after %.2f s and named rank 1", longest_s);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define JOB LS_COLLECTIVES_JOB

#define OUTCOME .inside = true, .judges_outcome = true

static const struct trial large_sums = {"all_reduce", &ls_collectives_types[0], 2};

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

/* Where rows are added. */
typedef struct adder {
    const ls_case_settings *settings;
    ls_case_list *list;
} adder;

static const struct trial *keep(adder to, const char *op, const ls_collectives_type *t,
                                int combinations)
{
    struct trial *trial = ls_rows_memory(to.list, sizeof *trial);
    *trial = (struct trial){op, t, combinations};
    return trial;
}

/* `...`: "ID: JOBS" by printf, and its arguments. */
#define ADD(to, number, function, lines, what, ...)                                            \
    ls_rows_format(                                                                            \
        (to).list, (to).settings,                                                              \
        &(const ls_row){                                                                       \
            .requirement = number, .judge = function, .data = what, .script = lines, OUTCOME}, \
        "collectives." __VA_ARGS__)

static void add_operation(adder to, const struct operation *op)
{
    for (int i = 0; i < LS_COLLECTIVES_TYPES; i++) {
        const ls_collectives_type *t = &ls_collectives_types[i];
        const struct trial *trial = keep(to, op->name, t, COUNTS * 2 * (op->in_place ? 2 : 1));
        for (int w = 0; w < WORLDS; w++) {
            ADD(to, "X1", judge_exact, exact_script, trial, "%s.%s.w%d: " JOB "w%d", op->id,
                t->name, worlds[w], worlds[w]);
        }
        if (op->alone) {
            ADD(to, "X2", judge_exact, self_script, trial, "%s.%s.self: " JOB "w1", op->id,
                t->name);
            ADD(to, "X2", judge_exact, alone_script, trial, "%s.%s.alone: " JOB "w1", op->id,
                t->name);
        }
        for (int w = 0; w < 2 && op->sums && t->mantissa > 0; w++) {
            ADD(to, "X3", judge_rough, rough_script, trial, "rough.%s.%s.w%d: " JOB "w%d", op->id,
                t->name, worlds[w], worlds[w]);
        }
    }
}

/* Large results: rings and trees of whole megabytes, whole segments and several to a chunk. */
static void add_large(adder to, int world)
{
    static const int large[] = {0, 3, 4}, wide_types[] = {1, 3, 4};
    for (int i = 0; i < 3; i++) {
        const struct operation *op = &operations[large[i]];
        const ls_collectives_type *t = &ls_collectives_types[wide_types[i]];
        ADD(to, "X1", judge_exact, large_script, keep(to, op->name, &ls_collectives_types[0], 1),
            "large.%s.w%d: " JOB "w%d", op->id, world, world);
        ADD(to, "X1", judge_exact, large_types_script, keep(to, "all_reduce", t, 1),
            "large.%s.w%d: " JOB "w%d", t->name, world, world);
    }
}

void ls_collectives_cases(const ls_case_settings *settings, ls_case_list *list)
{
    adder to = {settings, list};
    LS_ROWS(list, settings, rows);
    for (int o = 0; o < OPERATIONS; o++) {
        add_operation(to, &operations[o]);
    }
    add_large(to, 2);
    add_large(to, 3);
    for (int w = 0; w < 2; w++) {
        ls_case *row =
            ADD(to, "X6", judge_twice, rough_script, "shared memory",
                "transports.w%d: " JOB "w%d | " JOB "w%d", worlds[w], worlds[w], worlds[w]);
        row->job[1].script = rough_tcp_script;
    }
    for (int o = 0; o < ALL; o++) {
        ADD(to, "X5", judge_absent, absent_script, operations[o].name, "absent.%s: " JOB "w3",
            operations[o].id);
    }
}
