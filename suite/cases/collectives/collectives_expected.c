#include "collectives.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"

/* ---- one element ----------------------------------------------------------------------------- */

const ls_collectives_type ls_collectives_types[LS_COLLECTIVES_TYPES] = {
    {"fp32", 4, 23, 127, 1 << 19}, {"fp16", 2, 10, 15, 127}, {"bf16", 2, 7, 127, 15},
    {"int64", 8, 0, 0, 1 << 26},   {"uint8", 1, 0, 0, 0},
};

static uint64_t hash(int rank, int64_t index)
{
    uint64_t h = 2654435761ull * (uint64_t)index + 40503ull * (uint64_t)rank + 12345ull;
    h = h ^ (h >> 29);
    h = h * 0xbf58476d1ce4e5b9ull;
    return h ^ (h >> 32);
}

static int64_t element(const ls_collectives_type *t, int rank, int64_t index)
{
    uint64_t h = hash(rank, index);
    return t->limit == 0 ? (int64_t)(h & 255) : (int64_t)(h % (2 * t->limit + 1) - t->limit);
}

/* value * 2^exponent. */
typedef struct number {
    int64_t value;
    int exponent;
} number;

/* A factor of a product. */
static number factor(const ls_collectives_type *t, int rank, int64_t index)
{
    uint32_t common = (uint32_t)(hash(0, index) >> 32), own = (uint32_t)(hash(rank, index) >> 32);
    bool negative = (own & 0x100000u) != 0;
    if (t->mantissa == 0) {
        int64_t odd = 3 + 2 * (int64_t)(own % 120);
        return (number){negative && t->bytes > 1 ? -odd : odd, 0};
    }
    bool pair = (common >> (rank / 2)) % 2 == 1, even = rank % 2 == 0;
    bool three = rank < 5 && (common >> (8 + rank)) % 2 == 1;
    int64_t odd = three ? 3 : 1;
    return (number){negative ? -odd : odd, pair == even ? 1 : -1};
}

/* The bits of a number that the type holds exactly. */
static uint64_t bits_of(const ls_collectives_type *t, number n)
{
    if (t->mantissa == 0 || n.value == 0) {
        return (uint64_t)n.value;
    }
    uint64_t magnitude = (uint64_t)(n.value < 0 ? -n.value : n.value);
    int exponent = 63 - __builtin_clzll(magnitude);
    uint64_t fraction = (magnitude << (t->mantissa - exponent)) & ((1ull << t->mantissa) - 1);
    uint64_t sign = n.value < 0 ? 1ull << (8 * t->bytes - 1) : 0;
    return sign | (uint64_t)(exponent + n.exponent + t->bias) << t->mantissa | fraction;
}

/* ---- a result -------------------------------------------------------------------------------- */

bool ls_collectives_reduces(const char *op)
{
    return strstr(op, "reduce") != NULL;
}

static int member(const ls_collectives_combination *c, int rank)
{
    return c->members == NULL ? rank : c->members[rank];
}

/* Element i of the members' inputs, combined. */
static number reduced(const ls_collectives_combination *c, int64_t i)
{
    bool product = strcmp(c->redop, "prod") == 0;
    number result = {product ? 1 : 0, 0};
    for (int rank = 0; rank < c->world; rank++) {
        if (product) {
            number next = factor(c->type, member(c, rank), i);
            result.value = (int64_t)((uint64_t)result.value * (uint64_t)next.value);
            result.exponent += next.exponent;
            continue;
        }
        int64_t next = element(c->type, member(c, rank), i);
        bool first = rank == 0;
        if (strcmp(c->redop, "max") == 0) {
            result.value = first || next > result.value ? next : result.value;
        } else if (strcmp(c->redop, "min") == 0) {
            result.value = first || next < result.value ? next : result.value;
        } else {
            result.value += next;
        }
    }
    return result;
}

static number value_of(const ls_collectives_combination *c, int64_t i)
{
    int64_t mine = c->rank * c->count;
    if (strcmp(c->op, "broadcast") == 0) {
        return (number){element(c->type, member(c, c->root), i), 0};
    }
    if (strcmp(c->op, "scatter") == 0) {
        return (number){element(c->type, member(c, c->root), mine + i), 0};
    }
    if (strcmp(c->op, "send") == 0) {
        return (number){element(c->type, member(c, (c->rank + c->world - 1) % c->world), i), 0};
    }
    if (ls_collectives_reduces(c->op)) {
        return reduced(c, strcmp(c->op, "reduce_scatter") == 0 ? mine + i : i);
    }
    int from = member(c, (int)(i / c->count)); /* all_gather, gather, all_to_all */
    bool transposed = strcmp(c->op, "all_to_all") == 0;
    return (number){element(c->type, from, (transposed ? mine : 0) + i % c->count), 0};
}

static uint64_t digest_of(const ls_collectives_combination *c)
{
    bool at_root = strcmp(c->op, "reduce") == 0 || strcmp(c->op, "gather") == 0;
    bool parts = strstr(c->op, "gather") != NULL || strcmp(c->op, "all_to_all") == 0;
    int64_t elements = parts ? c->count * c->world : c->count;
    elements = at_root && c->rank != c->root ? 0 : elements;
    uint64_t digest = LS_DIGEST_START;
    for (int64_t i = 0; i < elements; i++) {
        uint64_t bits = bits_of(c->type, value_of(c, i));
        digest = ls_digest_update(digest, &bits, (size_t)c->type->bytes); /* little-endian */
    }
    return digest;
}

/* ---- events ---------------------------------------------------------------------------------- */

cJSON *ls_collectives_events(const ls_record *job, int rank, const char *event, const char *also)
{
    LS_TEXT(path, 700, "%s/rank%d.jsonl", job->directory, rank);
    cJSON *found = cJSON_CreateArray();
    char *text = ls_text_read(path), *rest = NULL;
    LS_MEMORY(found != NULL);
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

cJSON *ls_collectives_events_of(const ls_record *job, int rank, const char *op, const char *redop,
                                const char *dtype)
{
    LS_TEXT(members, 96, "\"op\":\"%s\",\"dtype\":\"%s\",\"redop\":\"%s\"", op, dtype, redop);
    return ls_collectives_events(job, rank, "\"event\":\"collective\"", members);
}

const char *ls_collectives_place(const cJSON *event, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "%s (%s) of %" PRId64 " %s, root %d, %s, offset %d",
                ls_json_string(event, "op", "?"), ls_json_string(event, "redop", "?"),
                ls_json_integer(event, "count", -1), ls_json_string(event, "dtype", "?"),
                ls_json_int(event, "root", -1),
                ls_json_bool(event, "in_place", false) ? "in place" : "out of place",
                ls_json_int(event, "offset", -1));
    return text;
}

void ls_collectives_check_counts(int rank, const cJSON *event, ls_verdict *out)
{
    char place[128];
    int64_t wrong = ls_json_integer(event, "wrong", -1);
    int64_t guards = ls_json_integer(event, "guards", -1);
    if (wrong != 0 || guards != 0) {
        ls_verdict_fail(out,
                        "rank=%d %s: %" PRId64 " of %" PRId64 " elements wrong, %" PRId64
                        " bytes next to them changed",
                        rank, ls_collectives_place(event, place, sizeof place), wrong,
                        ls_json_integer(event, "checked", -1), guards);
    }
}

int64_t ls_collectives_check(const ls_record *job, int rank, ls_collectives_combination c,
                             int expected, ls_verdict *out)
{
    char place[128], digest[24] = "";
    int64_t last_count = -1, checked = 0;
    int last_root = -1;
    cJSON *events = ls_collectives_events_of(job, rank, c.op, c.redop, c.type->name);
    const cJSON *event;
    if (cJSON_GetArraySize(events) != expected) {
        ls_verdict_fail(out, "rank=%d tried %d combinations of %s (%s), %s, expected %d", rank,
                        cJSON_GetArraySize(events), c.op, c.redop, c.type->name, expected);
    }
    ls_json_each(event, events) {
        c.count = ls_json_integer(event, "count", 0);
        c.root = ls_json_int(event, "root", 0);
        if (c.count != last_count || c.root != last_root) {
            ls_text_put(digest, sizeof digest, "%016" PRIx64, digest_of(&c));
            last_count = c.count;
            last_root = c.root;
        }
        ls_collectives_check_counts(rank, event, out);
        checked += ls_json_integer(event, "checked", 0);
        if (strcmp(ls_json_string(event, "digest", ""), digest) != 0) {
            ls_verdict_fail(out, "rank=%d %s: result has digest %s, expected %s", rank,
                            ls_collectives_place(event, place, sizeof place),
                            ls_json_string(event, "digest", "none"), digest);
        }
    }
    cJSON_Delete(events);
    return checked;
}

int ls_collectives_barriers(const ls_record *job, const int *member, int size, int *late,
                            ls_verdict *out)
{
    enum { RANKS = 16 };
    cJSON *events[RANKS] = {NULL};
    LS_ASSERT(size <= RANKS);
    for (int k = 0; k < size; k++) {
        events[k] = ls_collectives_events(job, member[k], "\"barrier\"", "begin_ns");
    }
    int count = cJSON_GetArraySize(events[0]);
    for (int i = 0; i < count; i++) {
        double last_begin = 0, first_end = 1e300, first_begin = 1e300;
        int last_rank = -1, first_rank = -1;
        for (int k = 0; k < size; k++) {
            const cJSON *event = cJSON_GetArrayItem(events[k], i);
            double begin = ls_json_number(event, "begin_ns", 1e300);
            double end = ls_json_number(event, "end_ns", 0);
            first_begin = begin < first_begin ? begin : first_begin;
            last_rank = begin > last_begin ? member[k] : last_rank;
            last_begin = begin > last_begin ? begin : last_begin;
            first_rank = end < first_end ? member[k] : first_rank;
            first_end = end < first_end ? end : first_end;
        }
        /* a rank had to wait 0.2 ms: the barrier shows something */
        *late += last_begin - first_begin > 2e5;
        if (first_end < last_begin) {
            ls_verdict_fail(out, "barrier %d: rank=%d left %.3f ms before rank %d came", i,
                            first_rank, (last_begin - first_end) * 1e-6, last_rank);
        }
    }
    for (int k = 0; k < size; k++) {
        cJSON_Delete(events[k]);
    }
    return count;
}

static const ls_tol spare_s =
    LS_TOL(5, "on top of the deadline: closing, and the turns of other processes on a machine with "
              "more ranks than cores");

void ls_collectives_absent(const ls_record *job, int rank, const char *op, int want,
                           double deadline_s, double *seconds, ls_verdict *out)
{
    LS_TEXT(named, 48, "\"op\":\"%s\"", op);
    cJSON *events = ls_collectives_events(job, rank, "\"absent\"", named);
    const cJSON *event = cJSON_GetArrayItem(events, 0);
    int status = ls_json_int(event, "status", -1);
    *seconds = ls_json_number(event, "seconds", 1e9);
    if (status != want || (want != 0 && !(*seconds <= deadline_s + spare_s.value))) {
        ls_verdict_fail(out, "rank=%d: status %d after %.2f s, expected %d%s", rank, status,
                        *seconds, want, want != 0 ? " at the deadline" : "");
    }
    cJSON_Delete(events);
}

bool ls_collectives_names(const ls_record *job, int rank, const char *text, const char *named)
{
    LS_TEXT(path, 700, "%s/rank%d.log", job->directory, rank);
    char *log = ls_text_read(path), *at = log == NULL ? NULL : strstr(log, text);
    if (at != NULL) {
        at[strcspn(at, "\n")] = '\0';
    }
    bool found = at != NULL && strstr(at, named) != NULL;
    free(log);
    return found;
}

static bool is_on_gpu(const ls_record *job)
{
    const cJSON *word;
    ls_json_each(word, cJSON_GetObjectItem(job->job, "command")) {
        if (cJSON_IsString(word) && strcmp(word->valuestring, "--device=cuda") == 0) {
            return true;
        }
    }
    return false;
}

bool ls_collectives_ended_otherwise(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    for (int i = 0; i < row->job_count; i++) {
        bool checked = job[i].state == LS_RECORD_FAILED && job[i].code == LS_ERR_CHECK;
        if (!checked && ls_verdict_of_outcome(&job[i], out)) {
            return true;
        }
        for (int rank = 0; is_on_gpu(&job[i]) && rank < job[i].world; rank++) {
            const char *engine = ls_json_string(job[i].rank[rank].start, "engine", "nccl");
            if (strcmp(engine, "gloo") == 0) {
                ls_verdict_fail(out, "rank=%d of a job on a GPU took the CPU's engine", rank);
            }
        }
    }
    return false;
}

/* ---- rates ------------------------------------------------------------------------------------
 */

/* Rates of collectives: nccl-tests' columns, worked out once more from each event's size and time.
 */

static const ls_tol printed =
    LS_TOL(1e-12, "doubles printed with 15 digits or more, and three operations in double");

static const ls_tol least_us = LS_TOL(
    0.5, "us: no two processes pass anything on in less than a few cache misses, one of them "
         "having slept; in ms or s the same figure is a thousand times smaller");

typedef struct context {
    int rank, world;
    int64_t compared, absent; /* rates; collectives that send something and have none */
    ls_verdict *out;
} context;

/* Every rank has a part of its own, on one side. */
static bool has_parts(const char *op)
{
    return strstr(op, "gather") != NULL || strstr(op, "scatter") != NULL ||
           strcmp(op, "all_to_all") == 0;
}

static int bytes_of(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"fp32", 4}, {"fp16", 2}, {"bf16", 2}, {"int64", 8}, {"uint8", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, dtype) == 0) {
            return types[i].bytes;
        }
    }
    return 0;
}

/* What each byte of the larger side crosses the wires, per rank: nccl-tests, doc/PERFORMANCE.md. */
static double bus_factor(const char *op, int world)
{
    double others = (double)(world - 1) / world;
    return strcmp(op, "all_reduce") == 0 ? 2 * others : has_parts(op) ? others : 1;
}

static bool close_to(double got, double want)
{
    return fabs(got - want) <= printed.value * fabs(want);
}

static ls_status visit(void *opaque, const cJSON *event, int line)
{
    context *c = opaque;
    (void)line;
    double us = ls_json_number(event, "us", 0);
    const char *op = ls_json_string(event, "op", "");
    double bytes = ls_json_number(event, "count", 0) *
                   bytes_of(ls_json_string(event, "dtype", "")) * (has_parts(op) ? c->world : 1);
    double algbw = bytes / us * 1e-3, busbw = algbw * bus_factor(op, c->world);
    double reported = ls_json_number(event, "bytes", NAN);
    double reported_algbw = ls_json_number(event, "algbw_gb_s", NAN);
    double reported_busbw = ls_json_number(event, "busbw_gb_s", NAN);
    bool sent = bytes > 0 && c->world > 1,
         rated = us > 0 && !isnan(reported_algbw + reported_busbw);
    if (!sent && (!isnan(reported_algbw) || !isnan(reported_busbw))) {
        ls_verdict_fail(c->out,
                        "rank=%d %s of %.0f bytes in a world of %d reports algbw %.6g, busbw %.6g "
                        "GB/s: nothing is sent",
                        c->rank, op, bytes, c->world, reported_algbw, reported_busbw);
    }
    c->compared += sent && rated;
    c->absent += sent && !rated;
    if (!sent || !rated) {
        return LS_OK;
    }
    if (us < least_us.value) {
        ls_verdict_fail(c->out, "rank=%d %s of %.0f bytes reports %.3g us", c->rank, op, bytes, us);
    }
    if (!close_to(reported, bytes) || !close_to(reported_algbw, algbw) ||
        !close_to(reported_busbw, busbw)) {
        ls_verdict_fail(c->out,
                        "rank=%d %s: %.0f bytes, algbw %.6g, busbw %.6g GB/s in %.6g us; expected "
                        "%.0f, %.6g, %.6g",
                        c->rank, op, reported, reported_algbw, reported_busbw, us, bytes, algbw,
                        busbw);
    }
    return LS_OK;
}

void ls_collectives_rates(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    context c = {.world = job->world, .out = out};
    if (ls_verdict_of_outcome(job, out)) {
        return;
    }
    for (c.rank = 0; c.rank < job->world; c.rank++) {
        if (ls_record_each_event(job, c.rank, "collective", visit, &c) != LS_OK) {
            ls_verdict_fail(out, "rank=%d: its events cannot be read", c.rank);
        }
    }
    if (c.compared == 0 || c.absent > 0) {
        ls_verdict_set(out, LS_WEAK, "%lld of %lld collectives that send something report no rate",
                       (long long)c.absent, (long long)(c.absent + c.compared));
    }
    ls_verdict_pass(out, c.compared, "%lld rates of %d ranks follow from size and time",
                    (long long)c.compared, job->world);
}

/* ---- the printed table ----------------------------------------------------------------------- */

static const ls_tol columns =
    LS_TOL(0.00051, "GB/s have three decimals; a time has one, of a microsecond, which the "
                    "tolerance counts besides");

/* One row: operation, bytes, elements, type, operator, root, place, us, algbw, busbw, wrong. */
static bool check_row(const char *line, int world, ls_verdict *out)
{
    char op[24], dtype[16], redop[8], place[8];
    double bytes, count, us, algbw, busbw;
    int root;
    long long wrong;
    if (sscanf(line, "%23s %lf %lf %15s %7s %d %7s %lf %lf %lf %lld", op, &bytes, &count, dtype,
               redop, &root, place, &us, &algbw, &busbw, &wrong) != 11) {
        return false;
    }
    double want_bytes = count * bytes_of(dtype) * (has_parts(op) ? world : 1);
    double want = bytes / us * 1e-3, wide = want * 0.05 / us + columns.value;
    double factor = bus_factor(op, world);
    if (bytes != want_bytes || fabs(algbw - want) > wide ||
        fabs(busbw - want * factor) > wide * fmax(factor, 1) || wrong != 0 ||
        strcmp(redop, ls_collectives_reduces(op) ? "sum" : "none") != 0) {
        ls_verdict_fail(
            out,
            "%s (%s) of %.0f %s prints %.0f bytes, %.1f us, algbw %.3f, busbw %.3f, %lld "
            "wrong; expected %.0f bytes, %.3f and %.3f GB/s, 0 wrong",
            op, redop, count, dtype, bytes, us, algbw, busbw, wrong, want_bytes, want,
            want * factor);
    }
    return true;
}

void ls_collectives_printed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { ROWS = 6 };
    char path[700], *rest = NULL;
    int rows = 0;
    (void)row;
    if (job->state != LS_RECORD_DONE) {
        (void)ls_verdict_of_outcome(job, out);
        return;
    }
    ls_text_put(path, sizeof path, "%s/rank0.log", job->directory);
    char *text = ls_text_read(path);
    char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest);
    for (; line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        rows += check_row(line, job->world, out);
    }
    free(text);
    if (rows != ROWS) {
        ls_verdict_fail(out, "%d rows are printed, expected %d", rows, (int)ROWS);
    }
    ls_verdict_pass(out, rows, "%d printed rows follow from size and time", rows);
}
