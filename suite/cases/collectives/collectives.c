/* The engine's collectives, tried by lockstep-collectives (reference/comm/exercise.h) in one job
 * per world; a row judges one operation and type in it. What a result must be is computed here once
 * more from the definition in reference/comm/pattern.h, sharing no code with the program: the
 * digests of its results must be those of ours. */
#include "collectives.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/digest.h"

enum { COUNTS = 7, ABSENT = 1 };

#define COUNTS_TEXT "0,1,3,W-1,W+1,1023,33001"
/* In the memory of the device that the subject trains on. */
#define FIND "D=cpu; E=gloo; case \" $* \" in *\" --device=cuda \"*) D=cuda; E=nccl ;; esac; "
#define RUN FIND "exec {bin}/lockstep-collectives --device=$D "

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

/* ---- what must come out ---------------------------------------------------------------------- */

typedef struct type {
    const char *name;
    int bytes, mantissa, bias; /* mantissa 0: an integer */
    uint64_t limit;            /* of one element; 0: modulo 256 */
} type;

static const type types[] = {{"fp32", 4, 23, 127, 1 << 19},
                             {"fp16", 2, 10, 15, 127},
                             {"bf16", 2, 7, 127, 15},
                             {"int64", 8, 0, 0, 1 << 26},
                             {"uint8", 1, 0, 0, 0}};
enum { TYPES = sizeof types / sizeof *types };

static int64_t element(const type *t, int rank, int64_t index)
{
    uint64_t h = 2654435761ull * (uint64_t)index + 40503ull * (uint64_t)rank + 12345ull;
    h = h ^ (h >> 29);
    h = h * 0xbf58476d1ce4e5b9ull;
    h = h ^ (h >> 32);
    return t->limit == 0 ? (int64_t)(h & 255) : (int64_t)(h % (2 * t->limit + 1) - t->limit);
}

/* The bits of an integer that the type holds exactly. */
static uint64_t bits_of(const type *t, int64_t value)
{
    if (t->mantissa == 0 || value == 0) {
        return (uint64_t)value;
    }
    uint64_t magnitude = (uint64_t)(value < 0 ? -value : value);
    int exponent = 63 - __builtin_clzll(magnitude);
    uint64_t fraction = (magnitude << (t->mantissa - exponent)) & ((1ull << t->mantissa) - 1);
    uint64_t sign = value < 0 ? 1ull << (8 * t->bytes - 1) : 0;
    return sign | (uint64_t)(exponent + t->bias) << t->mantissa | fraction;
}

/* One event's combination. */
typedef struct combination {
    const char *op;
    const type *type;
    int64_t count;
    int rank, world, root;
} combination;

static int64_t value_of(const combination *c, int64_t i)
{
    int64_t sum = 0, mine = c->rank * c->count;
    bool scattered = strcmp(c->op, "reduce_scatter") == 0;
    if (strcmp(c->op, "broadcast") == 0) {
        return element(c->type, c->root, i);
    }
    if (strcmp(c->op, "scatter") == 0) {
        return element(c->type, c->root, mine + i);
    }
    if (strcmp(c->op, "send") == 0) {
        return element(c->type, (c->rank + c->world - 1) % c->world, i);
    }
    if (strstr(c->op, "gather") != NULL) {
        return element(c->type, (int)(i / c->count), i % c->count);
    }
    for (int rank = 0; rank < c->world; rank++) {
        sum += element(c->type, rank, scattered ? mine + i : i);
    }
    return sum;
}

static uint64_t expected_digest(const combination *c)
{
    bool at_root = strcmp(c->op, "reduce") == 0 || strcmp(c->op, "gather") == 0;
    int64_t elements = strstr(c->op, "gather") != NULL ? c->count * c->world : c->count;
    elements = at_root && c->rank != c->root ? 0 : elements;
    uint64_t digest = LS_DIGEST_START;
    for (int64_t i = 0; i < elements; i++) {
        uint64_t bits = bits_of(c->type, value_of(c, i));
        digest = ls_digest_update(digest, &bits, (size_t)c->type->bytes); /* little-endian */
    }
    return digest;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The events of a rank that contain both texts, as a JSON array; the caller frees it. A job writes
 * a thousand and more, most of which a row need not parse. */
static cJSON *events_of(const ls_record *job, int rank, const char *event, const char *also)
{
    LS_TEXT(path, 700, "%s/rank%d.jsonl", job->directory, rank);
    cJSON *found = cJSON_CreateArray();
    char *text = ls_text_read(path), *rest = NULL;
    LS_ASSERT(found != NULL);
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strstr(line, event) != NULL && strstr(line, also) != NULL) {
            cJSON *parsed = ls_json_parse(line, NULL);
            if (parsed != NULL) {
                cJSON_AddItemToArray(found, parsed);
            }
        }
    }
    free(text);
    return found;
}

static const char *place_of(const cJSON *event, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "%s of %" PRId64 " %s, root %d, %s, offset %d",
                ls_json_string(event, "op", "?"), ls_json_integer(event, "count", -1),
                ls_json_string(event, "dtype", "?"), ls_json_int(event, "root", -1),
                ls_json_bool(event, "in_place", false) ? "in place" : "out of place",
                ls_json_int(event, "offset", -1));
    return text;
}

static void check_counts(int rank, const cJSON *event, ls_verdict *out)
{
    char place[128];
    int64_t wrong = ls_json_integer(event, "wrong", -1);
    int64_t guards = ls_json_integer(event, "guards", -1);
    if (wrong != 0 || guards != 0) {
        ls_verdict_fail(out,
                        "rank=%d %s: %" PRId64 " of %" PRId64 " elements wrong, %" PRId64
                        " bytes next to them changed",
                        rank, place_of(event, place, sizeof place), wrong,
                        ls_json_integer(event, "checked", -1), guards);
    }
}

/* A program that found something wrong leaves with 1: its events say what. */
static bool ended_otherwise(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    for (int i = 0; i < row->job_count; i++) {
        bool checked = job[i].state == LS_RECORD_FAILED && job[i].code == LS_ERR_CHECK;
        if (!checked && ls_verdict_of_outcome(&job[i], out)) {
            return true;
        }
    }
    return false;
}

/* One operation, "all_reduce", on one type. */
struct trial {
    const char *op;
    const type *type;
    int combinations; /* of count, place and alignment, per rank */
};

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct trial *trial = row->data;
    const type *t = trial->type;
    char op[48], dtype[48], place[128], digest[24];
    ls_text_put(op, sizeof op, "\"op\":\"%s\",\"dtype\":\"%s\"", trial->op, t->name);
    ls_text_put(dtype, sizeof dtype, "\"event\":\"collective\"");
    int64_t results = 0;
    if (ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events = events_of(job, rank, dtype, op);
        int count = cJSON_GetArraySize(events);
        if (count != trial->combinations) {
            ls_verdict_fail(out, "rank=%d tried %d combinations, expected %d", rank, count,
                            trial->combinations);
        }
        int64_t last_count = -1;
        int last_root = -1;
        const cJSON *event;
        cJSON_ArrayForEach(event, events)
        {
            combination c = {trial->op, t,          ls_json_integer(event, "count", 0),
                             rank,      job->world, ls_json_int(event, "root", 0)};
            if (c.count != last_count || c.root != last_root) {
                ls_text_put(digest, sizeof digest, "%016" PRIx64, expected_digest(&c));
                last_count = c.count;
                last_root = c.root;
            }
            check_counts(rank, event, out);
            results += ls_json_integer(event, "checked", 0);
            if (strcmp(ls_json_string(event, "digest", ""), digest) != 0) {
                ls_verdict_fail(out, "rank=%d %s: result has digest %s, expected %s", rank,
                                place_of(event, place, sizeof place),
                                ls_json_string(event, "digest", "none"), digest);
            }
        }
        cJSON_Delete(events);
    }
    if (results == 0) {
        ls_verdict_set(out, LS_WEAK, "no element was checked");
    }
    ls_verdict_pass(
        out, "%d combinations of size, place and alignment, %" PRId64 " elements of %d ranks exact",
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
    if (ended_otherwise(row, job, out)) {
        return;
    }
    LS_TEXT(op, 64, "\"op\":\"%s\",\"dtype\":\"%s\"", trial->op, trial->type->name);
    cJSON *first = events_of(job, 0, "\"data\":\"rough\"", op);
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events = events_of(job, rank, "\"data\":\"rough\"", op);
        const cJSON *event;
        int index = 0;
        if (cJSON_GetArraySize(events) != cJSON_GetArraySize(first)) {
            ls_verdict_fail(out, "rank=%d tried %d combinations, rank 0 tried %d", rank,
                            cJSON_GetArraySize(events), cJSON_GetArraySize(first));
        }
        cJSON_ArrayForEach(event, events)
        {
            const cJSON *other = cJSON_GetArrayItem(first, index++);
            check_counts(rank, event, out);
            checked += ls_json_integer(event, "checked", 0);
            telling += ls_json_integer(event, "telling", 0);
            if (strcmp(trial->op, "all_reduce") == 0 &&
                strcmp(ls_json_string(event, "digest", ""), ls_json_string(other, "digest", "?")) !=
                    0) {
                char place[128];
                ls_verdict_fail(out, "rank=%d %s: other bits than rank 0", rank,
                                place_of(event, place, sizeof place));
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
    ls_verdict_pass(out,
                    "%" PRId64 " elements rounded once per addition (%" PRId64
                    " would differ if rounded once at the end)",
                    checked, telling);
}

/* How the large sums of a job went. */
static bool went_through(const ls_record *job, const char *transport)
{
    cJSON *starts = events_of(job, 0, "\"start\"", "transport");
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
    if (ended_otherwise(row, job, out)) {
        return;
    }
    bool gloo = strcmp(ls_json_string(job->rank[0].start, "engine", ""), "gloo") == 0;
    if (transport != NULL && gloo &&
        (!went_through(&job[0], transport) || !went_through(&job[1], "TCP"))) {
        ls_verdict_set(out, LS_WEAK, "the two jobs did not use %s and TCP", transport);
        return;
    }
    for (int rank = 0; rank < job[0].world; rank++) {
        cJSON *a = events_of(&job[0], rank, "\"collective\"", "digest");
        cJSON *b = events_of(&job[1], rank, "\"collective\"", "digest");
        for (int i = 0; i < cJSON_GetArraySize(a); i++) {
            const cJSON *one = cJSON_GetArrayItem(a, i), *two = cJSON_GetArrayItem(b, i);
            char place[128];
            compared++;
            if (strcmp(ls_json_string(one, "digest", ""), ls_json_string(two, "digest", "?")) !=
                0) {
                ls_verdict_fail(out, "rank=%d %s: other bits in the other job", rank,
                                place_of(one, place, sizeof place));
            }
        }
        cJSON_Delete(a);
        cJSON_Delete(b);
    }
    if (compared == 0) {
        ls_verdict_fail(out, "no result to compare");
    }
    ls_verdict_pass(out, "%d results have the same bits in both jobs", compared);
}

/* ---- barriers and missing ranks -------------------------------------------------------------- */

/* No rank leaves before the last has come; ranks of one machine share the clock. */
static void judge_barrier(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    cJSON *events[16] = {NULL};
    LS_ASSERT(job->world <= 16);
    if (ended_otherwise(row, job, out)) {
        return;
    }
    for (int rank = 0; rank < job->world; rank++) {
        events[rank] = events_of(job, rank, "\"barrier\"", "begin_ns");
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
    ls_verdict_pass(out, "no rank left any of %d barriers early; at %d a rank was late", count,
                    late);
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
    if (ended_otherwise(row, job, out)) {
        return;
    }
    ls_text_put(op, sizeof op, "\"op\":\"%s\"", name);
    for (int rank = 0; rank < job->world; rank++) {
        cJSON *events = events_of(job, rank, "\"absent\"", op);
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
    ls_verdict_pass(out, "the others gave up after %.2f s and named rank 1", longest_s);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define JOB "collectives O0 image=1 batch=1 steps=1 dump-ranks=0 shell "

#define OUTCOME .inside = true, .judges_outcome = true

static const struct trial large_sums = {"all_reduce", &types[0], 2};

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
    bool in_place, sums;
} operations[] = {
    {"all_reduce", "all-reduce", true, true},
    {"reduce_scatter", "reduce-scatter", true, true},
    {"all_gather", "all-gather", true, false},
    {"broadcast", "broadcast", true, false},
    {"reduce", "reduce", true, true},
    {"gather", "gather", true, false},
    {"scatter", "scatter", true, false},
    {"send", "send", false, false},
    {"recv", "recv", false, false},
    {"barrier", "barrier", false, false},
};
enum { OPERATIONS = 8 /* that leave a result */, ALL = sizeof operations / sizeof *operations };

/* Where rows are added. */
typedef struct adder {
    const ls_case_settings *settings;
    ls_case_list *list;
} adder;

static const struct trial *keep(adder to, const char *op, const type *t, int combinations)
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
    for (int i = 0; i < TYPES; i++) {
        const type *t = &types[i];
        const struct trial *trial = keep(to, op->name, t, COUNTS * 2 * (op->in_place ? 2 : 1));
        for (int w = 0; w < WORLDS; w++) {
            ADD(to, "X1", judge_exact, exact_script, trial, "%s.%s.w%d: " JOB "w%d", op->id,
                t->name, worlds[w], worlds[w]);
        }
        if (op->in_place) {
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
        const type *t = &types[wide_types[i]];
        ADD(to, "X1", judge_exact, large_script, keep(to, op->name, &types[0], 1),
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
