/* Rates of collectives: nccl-tests' columns, worked out once more from each event's size and time.
 */
#include "collectives.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
