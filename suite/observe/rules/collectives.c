/* Whether the collectives underneath a job, seen without Python, did what NCCL promises: ranks
 * make the same calls in the same order, and what comes out is what all ranks sent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/collectives_read.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "reference/oracle/bits.h"
#include "rules.h"

/* By that function, where there is something to judge. */
static void judge_seen(const ls_observe_trace *trace,
                       void (*judge)(const ls_collectives *of, ls_observe_finding *out),
                       ls_observe_finding *out)
{
    ls_collectives of;
    bool shared = false;
    ls_collectives_read(trace->record.directory, &of);
    for (int i = 0; i < of.comm_count; i++) {
        shared = shared || of.comm[i].world > 1 ||
                 (of.comm[i].op[0] != '\0' && strcmp(of.comm[i].op, "*") != 0);
    }
    if (of.broken[0] != '\0') {
        ls_verdict_set(&out->verdict, LS_INFRA, "%s", of.broken);
    } else if (of.files == 0 || !shared) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       of.files == 0 ? "NCCL was not looked at" : "no communicator of two ranks");
    } else {
        judge(&of, out);
    }
    ls_collectives_free(&of);
}

/* ---- collectives.order ----------------------------------------------------------------------- */

static void describe(char *text, size_t bytes, const ls_collectives_call *call)
{
    ls_text_put(text, bytes, "%s%s%s of %lld %s", call->op, call->reduce[0] != '\0' ? " " : "",
                call->reduce, (long long)call->elements, call->type);
    if (call->root >= 0) {
        ls_text_add(text, bytes, " with root %d", call->root);
    }
}

static void fail_order(const ls_collectives *of, ls_observe_finding *out)
{
    const ls_collectives_mismatch *m = &of->mismatch;
    char first[80], second[80];
    describe(first, sizeof first, &m->first);
    describe(second, sizeof second, &m->second);
    if (m->at_end) {
        ls_verdict_fail(&out->verdict,
                        "rank %d made %lld collective calls on a communicator of %d ranks, rank "
                        "%d %lld%s",
                        m->first.job, (long long)m->first.elements, of->comm[m->comm].world,
                        m->second.job, (long long)m->second.elements,
                        m->first.elements == m->second.elements ? ", and not the same ones" : "");
    } else {
        ls_verdict_fail(&out->verdict,
                        "call %lld of a communicator is %s on rank %d, %s on rank %d",
                        (long long)m->first.number + 1, first, m->first.job, second, m->second.job);
    }
    ls_finding_explain(out, "",
                       "a rank takes another branch: a condition on the rank, on its data or on a "
                       "parameter that is used there alone",
                       "make every rank call the same collectives in the same order");
}

static void judge_order(const ls_collectives *of, ls_observe_finding *out)
{
    if (of->mismatch.found) {
        fail_order(of, out);
    } else if (of->compared == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no two ranks' calls could be compared");
    } else {
        ls_verdict_pass(&out->verdict, of->compared, "%lld calls were the same on another rank",
                        (long long)of->compared);
    }
}

void ls_rules_collectives_order(const ls_observe_trace *trace, ls_observe_finding *out)
{
    judge_seen(trace, judge_order, out);
}

/* ---- values ---------------------------------------------------------------------------------- */

typedef struct kind {
    const char *name;
    int bytes;
    bool is_float, is_signed;
    double unit;    /* half the distance from 1 to the next value */
    double least;   /* what addition may lose of small values, by each addend: see limit_of */
    double product; /* half the smallest value: what a product may lose */
    double most;    /* the largest finite value */
} kind;

/* f16: no hardware flushes its subnormals, and sums of subnormals are exact. Of the others an
 * addition at a switch or in L2 may flush subnormals to zero (PTX ISA, atom and multimem: the .f32
 * forms), which loses less than the smallest normal value each time. */
static const kind kinds[] = {
    {"f16", 2, true, true, 0x1p-11, 0, 0x1p-25, 65504},
    {"bf16", 2, true, true, 0x1p-8, 0x1p-126, 0x1p-134, 0x1.fep127},
    {"f32", 4, true, true, 0x1p-24, 0x1p-126, 0x1p-150, 0x1.fffffep127},
    {"f64", 8, true, true, 0x1p-53, 0x1p-1022, 0x1p-1074, 0x1.fffffffffffffp1023},
    {.name = "i8", .bytes = 1, .is_signed = true},
    {.name = "u8", .bytes = 1},
    {.name = "i32", .bytes = 4, .is_signed = true},
    {.name = "u32", .bytes = 4},
    {.name = "i64", .bytes = 8, .is_signed = true},
    {.name = "u64", .bytes = 8},
};

static const kind *kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

/* The integer of little-endian bytes, extended to 64 bits. */
static uint64_t integer_at(const kind *of, const unsigned char *bytes)
{
    uint64_t value = 0;
    for (int i = of->bytes - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    int unused = 64 - 8 * of->bytes;
    return of->is_signed ? (uint64_t)((int64_t)(value << unused) >> unused) : value;
}

static double float_at(const kind *of, const unsigned char *bytes)
{
    float single;
    double value;
    uint16_t half = (uint16_t)(bytes[0] | bytes[1] << 8);
    if (of->bytes == 2) {
        return strcmp(of->name, "f16") == 0 ? ls_bits_of_fp16(half) : ls_bits_of_bf16(half);
    }
    if (of->bytes == 4) {
        memcpy(&single, bytes, sizeof single);
        return (double)single;
    }
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* ---- one element ----------------------------------------------------------------------------- */

typedef enum answer { RIGHT, WRONG, OPEN } answer; /* OPEN: any value may have come out */

/* What an element of all ranks is, and what came out on one. */
typedef struct element {
    const kind *kind;
    const char *reduce;
    int count;                        /* ranks */
    const unsigned char *const *sent; /* of each of them */
    const unsigned char *got;
    bool keeps_nan;
    long double expected, limit; /* of floats, for the sentence */
} element;

/* Integers are added and multiplied modulo 2^bits, so the order does not matter. */
static answer judge_integer(element *e)
{
    uint64_t result = integer_at(e->kind, e->sent[0]), got = integer_at(e->kind, e->got);
    for (int i = 1; i < e->count; i++) {
        uint64_t x = integer_at(e->kind, e->sent[i]);
        bool more = e->kind->is_signed ? (int64_t)x > (int64_t)result : x > result;
        if (strcmp(e->reduce, "sum") == 0) {
            result += x;
        } else if (strcmp(e->reduce, "prod") == 0) {
            result *= x;
        } else if (more == (strcmp(e->reduce, "max") == 0)) {
            result = x;
        }
    }
    int unused = 64 - 8 * e->kind->bytes;
    e->expected = e->kind->is_signed ? (long double)((int64_t)(result << unused) >> unused)
                                     : (long double)(result << unused >> unused);
    return result << unused == got << unused ? RIGHT : WRONG;
}

/* Errors of a sum: W addends have W-1 additions in any order or tree, each rounded to the type with
 * a relative error of at most u, so the result is within ((1+u)^(W-1) - 1) sum|x| of the exact sum
 * (Higham 2002, 4.2), or closer where some are added in a wider type. An average multiplies each
 * addend by 1/W in the type (NCCL user guide, ncclAvg; 1/W is rounded too): two factors more and
 * what a product loses below the smallest value. Last, the exact sum's own rounding in 64 bits. */
static long double limit_of(const element *e, long double size, bool average)
{
    int roundings = e->count - 1 + (average ? 2 : 0);
    long double relative = expm1l(roundings * log1pl((long double)e->kind->unit));
    long double absolute =
        e->count * (long double)(e->kind->least + (average ? 2 * e->kind->product : 0));
    return relative * size + absolute + e->count * 0x1p-63L * size;
}

static answer judge_sum(element *e, bool average)
{
    long double sum = 0, size = 0;
    double got = float_at(e->kind, e->got);
    bool finite = true;
    for (int i = 0; i < e->count; i++) {
        double x = float_at(e->kind, e->sent[i]);
        finite = finite && isfinite(x);
        sum += (long double)x;
        size += fabsl((long double)x);
    }
    e->expected = average ? sum / e->count : sum;
    if (!finite) { /* inf or NaN stays inf or NaN */
        e->limit = 0;
        return isfinite(got) ? WRONG : RIGHT;
    }
    e->limit = limit_of(e, average ? size / e->count : size, average);
    if (size + limit_of(e, size, false) > (long double)e->kind->most) {
        return OPEN; /* some orders of these additions overflow */
    }
    return isfinite(got) && fabsl((long double)got - e->expected) <= e->limit ? RIGHT : WRONG;
}

/* Products of numbers that some order takes out of the type's normal range are left open. */
static answer judge_product(element *e)
{
    long double product = 1, most = 1, least = 1;
    double got = float_at(e->kind, e->got);
    bool finite = true;
    for (int i = 0; i < e->count; i++) {
        long double x = (long double)float_at(e->kind, e->sent[i]);
        finite = finite && isfinite(x);
        product *= x;
        most *= fmaxl(1, fabsl(x));
        least *= fminl(1, fabsl(x));
    }
    long double normal = (long double)e->kind->product / (long double)e->kind->unit;
    e->expected = product;
    e->limit = limit_of(e, fabsl(product), false);
    if (!finite || most > (long double)e->kind->most / 2 || !(least > 2 * normal)) {
        return OPEN;
    }
    return fabsl((long double)got - product) <= e->limit ? RIGHT : WRONG;
}

/* With a NaN among them NCCL gives either; -0 and 0 are equal. */
static answer judge_extreme(element *e, bool greatest)
{
    double best = float_at(e->kind, e->sent[0]), got = float_at(e->kind, e->got);
    bool none = isnan(best);
    for (int i = 1; i < e->count; i++) {
        double x = float_at(e->kind, e->sent[i]);
        none = none || isnan(x);
        best = (x > best) == greatest ? x : best;
    }
    e->expected = (long double)best;
    e->limit = 0;
    if (none && e->keeps_nan) {
        e->expected = (long double)NAN;
        return isnan(got) ? RIGHT : WRONG;
    }
    return none ? OPEN : got == best ? RIGHT : WRONG;
}

static answer judge_element(element *e)
{
    if (!e->kind->is_float) {
        return judge_integer(e);
    }
    if (strcmp(e->reduce, "prod") == 0) {
        return judge_product(e);
    }
    if (ls_text_choice(e->reduce, "max|min") >= 0) {
        return judge_extreme(e, e->reduce[1] == 'a');
    }
    return judge_sum(e, strcmp(e->reduce, "avg") == 0);
}

/* ---- collectives.sum ------------------------------------------------------------------------- */

typedef struct tally {
    int64_t calls, elements, open;
    int partial;       /* samples of calls that some rank has none of */
    char unknown[120]; /* what is not judged, by name */
} tally;

static bool reduces(const ls_collectives_call *call)
{
    return ls_text_choice(call->op, "all_reduce|reduce|reduce_scatter") >= 0;
}

/* Whether the rules know the operator and the type; those of created operators multiply by a number
 * of the rank's own, and f8 types round as the device likes. */
static bool is_known(const ls_collectives_call *call)
{
    const kind *of = kind_of(call->type);
    return !reduces(call) ||
           (of != NULL && ls_text_choice(call->reduce, "sum|prod|max|min|avg") >= 0 &&
            (of->is_float || strcmp(call->reduce, "avg") != 0));
}

static void note_unknown(tally *t, const ls_collectives_call *call)
{
    LS_TEXT(name, 40, "%s of %s", call->reduce, call->type);
    if (strstr(t->unknown, name) == NULL && strlen(t->unknown) + sizeof name < sizeof t->unknown) {
        ls_text_add(t->unknown, sizeof t->unknown, "%s%s", t->unknown[0] != '\0' ? ", " : "", name);
    }
}

/* Position in the call's buffer part of the i-th sampled element. */
static int64_t position(const ls_collectives_sample *sample, int i)
{
    return sample->piece[i / sample->width] + i % sample->width;
}

static int elements_of(const ls_collectives_sample *sample)
{
    return sample->width * sample->pieces;
}

/* What is to blame does not depend on how it shows. */
static void blame_call(ls_observe_finding *out)
{
    ls_finding_explain(out, "",
                       "something wrote to a buffer while the collective ran, or NCCL, a device or "
                       "the network changed a value",
                       "let no other stream write a collective's buffers before the work after it; "
                       "then suspect NCCL_ALGO, NCCL_PROTO, the link and the device of that rank");
}

static void fail_reduction(const ls_collectives *of, const ls_collectives_sample *at, int index,
                           const element *e, ls_observe_finding *out)
{
    char text[80];
    bool is_float = e->kind->is_float;
    uint64_t whole = integer_at(e->kind, e->got);
    long double got = is_float             ? (long double)float_at(e->kind, e->got)
                      : e->kind->is_signed ? (long double)(int64_t)whole
                                           : (long double)whole;
    describe(text, sizeof text, &at->call);
    ls_verdict_fail(&out->verdict,
                    "call %lld of a communicator of %d ranks, %s: element %lld on rank %d is "
                    "%.9Lg, what its ranks sent gives %.9Lg (limit %.2Lg)",
                    (long long)at->call.number + 1, of->comm[at->comm].world, text,
                    (long long)position(at, index), at->call.job, got, e->expected, e->limit);
    ls_verdict_measured(&out->verdict, (double)fabsl(got - e->expected), (double)e->limit, "",
                        "the rounding of each operation in the type, in any order");
    blame_call(out);
}

static void fail_copy(const ls_collectives *of, const ls_collectives_sample *from,
                      const ls_collectives_sample *to, ls_observe_finding *out)
{
    char text[80];
    int64_t bytes = to->bytes / elements_of(to), i = 0;
    while (to->received[i] == from->sent[i]) {
        i++;
    }
    describe(text, sizeof text, &to->call);
    ls_verdict_fail(&out->verdict,
                    "call %lld of a communicator of %d ranks, %s: element %lld on rank %d is not "
                    "the one that rank %d sent",
                    (long long)to->call.number + 1, of->comm[to->comm].world, text,
                    (long long)position(to, (int)(i / (bytes > 0 ? bytes : 1))), to->call.job,
                    from->call.job);
    blame_call(out);
}

/* The samples of one call, [count], sorted by rank; all of them say the same of it. */
typedef struct group {
    const ls_collectives_sample *sample;
    int count, world;
} group;

static bool agree(const group *g)
{
    for (int i = 1; i < g->count; i++) {
        const ls_collectives_sample *a = &g->sample[0], *b = &g->sample[i];
        if (strcmp(a->call.op, b->call.op) != 0 || strcmp(a->call.type, b->call.type) != 0 ||
            a->call.elements != b->call.elements || a->part != b->part || a->width != b->width ||
            a->pieces != b->pieces || a->call.rank == b->call.rank) {
            return false;
        }
    }
    return true;
}

/* What came out of a reduction on one rank. */
static void judge_received(const ls_collectives *of, const group *g,
                           const ls_collectives_sample *at, const unsigned char **sent, tally *t,
                           ls_observe_finding *out)
{
    const kind *kind = kind_of(at->call.type);
    for (int i = 0; i < elements_of(at) && out->verdict.code != LS_FAIL; i++) {
        for (int k = 0; k < g->count; k++) {
            sent[k] = g->sample[k].sent + (int64_t)i * kind->bytes;
        }
        element e = {.kind = kind,
                     .reduce = at->call.reduce,
                     .count = g->count,
                     .sent = sent,
                     .keeps_nan = of->keeps_nan,
                     .got = at->received + (int64_t)i * kind->bytes};
        answer a = judge_element(&e);
        t->elements += a != OPEN;
        t->open += a == OPEN;
        if (a == WRONG) {
            fail_reduction(of, at, i, &e, out);
        }
    }
}

static void judge_reduction(const ls_collectives *of, const group *g, tally *t,
                            ls_observe_finding *out)
{
    const kind *kind = kind_of(g->sample[0].call.type);
    const unsigned char **sent = ls_list_make((size_t)g->count, sizeof *sent);
    bool whole = g->count == g->world;
    for (int k = 0; k < g->count; k++) {
        const ls_collectives_sample *one = &g->sample[k];
        whole = whole && one->sent != NULL && one->bytes == (int64_t)elements_of(one) * kind->bytes;
    }
    for (int k = 0; k < g->count && whole && out->verdict.code != LS_FAIL; k++) {
        if (g->sample[k].received != NULL) {
            judge_received(of, g, &g->sample[k], sent, t, out);
        }
    }
    t->calls += whole;
    t->partial += !whole;
    free(sent);
}

/* A copy has the bits of what its one sender sent, whatever the type. */
static void judge_copy(const ls_collectives *of, const group *g, tally *t, ls_observe_finding *out)
{
    const ls_collectives_sample *from = NULL;
    for (int k = 0; k < g->count; k++) {
        from = g->sample[k].sent != NULL ? &g->sample[k] : from;
    }
    for (int k = 0; k < g->count && from != NULL && out->verdict.code != LS_FAIL; k++) {
        const ls_collectives_sample *to = &g->sample[k];
        if (to->received == NULL || to->bytes != from->bytes || elements_of(to) < 1) {
            continue;
        }
        t->elements += elements_of(to);
        if (memcmp(to->received, from->sent, (size_t)to->bytes) != 0) {
            fail_copy(of, from, to, out);
        }
    }
    t->calls += from != NULL;
    t->partial += from == NULL;
}

static void judge_group(const ls_collectives *of, const group *g, tally *t, ls_observe_finding *out)
{
    if (g->world < 2 || !agree(g)) {
        return; /* that they differ is for collectives.order */
    }
    if (!is_known(&g->sample[0].call)) {
        note_unknown(t, &g->sample[0].call);
    } else if (reduces(&g->sample[0].call)) {
        judge_reduction(of, g, t, out);
    } else {
        judge_copy(of, g, t, out);
    }
}

static void conclude(const ls_collectives *of, const tally *t, ls_observe_finding *out)
{
    if (t->elements > 0) {
        ls_verdict_pass(&out->verdict, t->elements, "%lld elements of %lld sampled calls%s%s",
                        (long long)t->elements, (long long)t->calls,
                        t->unknown[0] != '\0' ? "; not judged: " : "", t->unknown);
    } else if (t->unknown[0] != '\0') {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "not judged: %s", t->unknown);
    } else {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "no sampled call is whole: %d lack a rank, %lld elements are beyond the "
                       "type's range, %lld calls were captured into graphs",
                       t->partial, (long long)t->open, (long long)of->captured);
    }
}

static void judge_sums(const ls_collectives *of, ls_observe_finding *out)
{
    tally t = {0};
    for (int i = 0, end; i < of->sample_count && out->verdict.code != LS_FAIL; i = end) {
        const ls_collectives_sample *first = &of->sample[i];
        for (end = i + 1; end < of->sample_count && of->sample[end].comm == first->comm &&
                          of->sample[end].call.number == first->call.number;
             end++) {
        }
        group g = {first, end - i, of->comm[first->comm].world};
        judge_group(of, &g, &t, out);
    }
    conclude(of, &t, out);
}

void ls_rules_collectives_sum(const ls_observe_trace *trace, ls_observe_finding *out)
{
    judge_seen(trace, judge_sums, out);
}
