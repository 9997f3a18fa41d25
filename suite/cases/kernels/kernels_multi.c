/* Operations over lists of tensors: conversion of every 16-bit pattern, sums and factors equal to
 * f32 arithmetic bit for bit at awkward counts, and a non-finite element seen wherever it stands.
 */
#include "suite/cases/rows.h"

#include <math.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/list.h"
#include "kernels/core/rng.h"
#include "reference/state/device.h"

enum { TAKEN = 8 };

typedef struct bench { /* an open backend and what was taken of its memory */
    ls_device device;
    void *base[TAKEN];
    int taken;
    ls_verdict *out;
} bench;

typedef struct operation { /* a row */
    const char *name;
    void (*judge)(bench *b, const struct operation *o);
    ls_dtype type;
    int64_t n; /* what the judge says */
} operation;

static void must(bench *b, ls_status status, const char *what)
{
    if (status != LS_OK) {
        ls_verdict_fail(b->out, "%s: %s", what, ls_status_name(status));
    }
}

/* Backend memory, `skew` bytes behind an allocation: tensors in an arena need not be aligned to
 * more than their elements. */
static ls_tensor take(bench *b, ls_dtype type, int64_t count, int64_t skew)
{
    ls_tensor t = {NULL, type, count};
    LS_ASSERT(b->taken < TAKEN);
    void **base = &b->base[b->taken++];
    must(b,
         b->device.api->memory_alloc(b->device.backend, (int64_t)ls_tensor_bytes(&t) + skew + 64,
                                     "a judged operation", base),
         "allocation");
    t.data = *base == NULL ? NULL : (char *)*base + skew;
    return t;
}

static void put(bench *b, const ls_tensor *t, const void *host)
{
    must(b,
         b->device.api->copy_in(b->device.backend, b->device.stream, t->data, host,
                                (int64_t)ls_tensor_bytes(t)),
         "copy in");
    must(b, b->device.api->stream_wait(b->device.stream), "copy in");
}

static void get(bench *b, const ls_tensor *t, void *host)
{
    must(b, ls_device_read(&b->device, host, t->data, (int64_t)ls_tensor_bytes(t)), "copy out");
}

static void drop(bench *b)
{
    while (b->taken > 0) {
        b->device.api->memory_free(b->device.backend, b->base[--b->taken]);
        b->base[b->taken] = NULL;
    }
}

static void judge_operation(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const operation *o = row->data;
    ls_backend_options options = {.threads = 2, .local_ranks = 1};
    bench b = {.out = out};
    if (ls_device_open(row->device, &options, &b.device) != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "no backend %s", row->device);
        return;
    }
    o->judge(&b, o);
    drop(&b);
    ls_device_close(&b.device);
}

/* ---- conversion ------------------------------------------------------------------------------ */

enum { PATTERNS = 65536, CUT = 7 /* shorter than the shortest vector of 8 */ };

/* IEEE binary16 and bfloat16 by their definition, not by the code that is judged. */
static double value_of(uint16_t bits, bool bf16)
{
    int exponent_bits = bf16 ? 8 : 5, mantissa_bits = 15 - exponent_bits;
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    int mantissa = bits & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double sign = bits >> 15 != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    double unit = ldexp(1, (exponent > 0 ? exponent : 1) - bias - mantissa_bits);
    return sign * unit * (double)(mantissa + (exponent > 0 ? 1 << mantissa_bits : 0));
}

/* Converts in tensors of `length` elements (0: all in one): shorter than a vector they take the way
 * of what is left over behind the last whole one. */
static void convert(bench *b, ls_tensor to, ls_tensor from, int64_t length)
{
    for (int64_t at = 0, n; at < from.count; at += n) {
        n = length == 0 || from.count - at < length ? from.count - at : length;
        ls_tensor a = {(char *)to.data + at * (int64_t)ls_dtype_bytes(to.dtype), to.dtype, n};
        ls_tensor c = {(char *)from.data + at * (int64_t)ls_dtype_bytes(from.dtype), from.dtype, n};
        must(b, b->device.api->convert(b->device.backend, b->device.stream, a, c, 1), "convert");
    }
}

/* Every 16-bit pattern to f32: exact, NaN stays NaN. In tensors of n elements; 0: all in one. */
static void judge_widen(bench *b, const operation *o)
{
    uint16_t *bits = ls_list_make(PATTERNS, sizeof *bits);
    float *wide = ls_list_make(PATTERNS, sizeof *wide);
    for (int i = 0; i < PATTERNS; i++) {
        bits[i] = (uint16_t)i;
    }
    ls_tensor from = take(b, o->type, PATTERNS, 0), to = take(b, LS_F32, PATTERNS, 4);
    put(b, &from, bits);
    convert(b, to, from, o->n);
    get(b, &to, wide);
    for (int i = 0; i < PATTERNS; i++) {
        double want = value_of((uint16_t)i, o->type == LS_BF16);
        bool same = isnan(want) ? isnan((double)wide[i]) : (double)wide[i] == want;
        if (!same) {
            ls_verdict_fail(b->out, "pattern 0x%04x became %.9g, it is %.9g", (unsigned)i,
                            (double)wide[i], want);
        }
    }
    ls_verdict_pass(b->out, PATTERNS, "%d patterns", (int)PATTERNS);
    free(bits);
    free(wide);
}

/* The f32 values that matter for rounding to 16 bits: each representable one, the middle between it
 * and the next, and the f32 neighbours of both. */
static int64_t edges(bool bf16, float *value)
{
    int64_t count = 0;
    for (int i = 0; i < PATTERNS; i++) {
        double low = value_of((uint16_t)i, bf16), high = value_of((uint16_t)(i + 1), bf16);
        if (!isfinite(low)) {
            continue;
        }
        /* the largest value's next one would be a power of two: that is where overflow begins */
        bool last = !isfinite(high);
        double below = i > 0 && last ? value_of((uint16_t)(i - 1), bf16) : high;
        double middle = last ? low + (low - below) / 2 : low + (high - low) / 2;
        float around[2] = {(float)low, (float)middle};
        for (int k = 0; k < 2; k++) {
            value[count++] = around[k];
            value[count++] = nextafterf(around[k], INFINITY);
            value[count++] = nextafterf(around[k], -INFINITY);
        }
    }
    return count;
}

/* Nearest, ties to the even pattern, by search in the table of values. */
static uint16_t nearest(float x, bool bf16)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double size = fabs((double)x);
    uint16_t infinite = bf16 ? 0x7f80 : 0x7c00;
    uint16_t low = 0, high = infinite;
    while (high - low > 1) { /* value(low) <= size; patterns of one sign are in order */
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (middle != infinite && value_of(middle, bf16) <= size) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = value_of(low, bf16);
    double step = value_of((uint16_t)(low == infinite - 1 ? low : low + 1), bf16) - below;
    step = low == infinite - 1 ? below - value_of((uint16_t)(low - 1), bf16) : step;
    double rest = size - below;
    bool up = rest > step / 2 || (rest == step / 2 && (low & 1) != 0);
    return (uint16_t)(sign | (up ? low + 1 : low));
}

static void judge_narrow(bench *b, const operation *o)
{
    bool bf16 = o->type == LS_BF16;
    float *wide = ls_list_make(6 * PATTERNS, sizeof *wide);
    uint16_t *bits = ls_list_make(6 * PATTERNS, sizeof *bits);
    int64_t count = edges(bf16, wide);
    ls_tensor from = take(b, LS_F32, count, 4), to = take(b, o->type, count, 2);
    put(b, &from, wide);
    convert(b, to, from, o->n);
    get(b, &to, bits);
    for (int64_t i = 0; i < count; i++) {
        uint16_t want = nearest(wide[i], bf16);
        if (bits[i] != want) {
            ls_verdict_fail(b->out, "%.9g (%a) became 0x%04x, nearest even is 0x%04x",
                            (double)wide[i], (double)wide[i], (unsigned)bits[i], (unsigned)want);
        }
    }
    ls_verdict_pass(b->out, count, "%lld values around every tie", (long long)count);
    free(wide);
    free(bits);
}

static const int64_t counts[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1023, 4097};
enum { COUNTS = sizeof counts / sizeof *counts, LARGEST = 4097 };

/* There and back at awkward counts; what stands behind the last element must stay. */
static void judge_lengths(bench *b, const operation *o)
{
    const ls_backend_api *api = b->device.api;
    int64_t compared = 0;
    for (int k = 0; k < COUNTS; k++) {
        float wide[LARGEST + 1], back[LARGEST + 1];
        int64_t n = counts[k];
        for (int64_t i = 0; i <= n; i++) {
            wide[i] = ls_rng_normal(32, (uint64_t)k, (uint64_t)i);
            back[i] = -7;
        }
        ls_tensor from = take(b, LS_F32, n + 1, 4), to = take(b, LS_F32, n + 1, 0);
        ls_tensor half = take(b, o->type, n, 2);
        put(b, &from, wide);
        put(b, &to, back);
        ls_tensor part_from = {from.data, LS_F32, n}, part_to = {to.data, LS_F32, n};
        must(b, api->convert(b->device.backend, b->device.stream, half, part_from, 0.25f),
             "convert");
        must(b, api->convert(b->device.backend, b->device.stream, part_to, half, 4), "convert");
        get(b, &to, back);
        for (int64_t i = 0; i <= n; i++, compared++) {
            bool bf16 = o->type == LS_BF16;
            double want = i == n ? -7 : 4 * value_of(nearest(wide[i] * 0.25f, bf16), bf16);
            if ((double)back[i] != want) {
                ls_verdict_fail(b->out, "%lld elements there and back: [%lld] is %.9g, not %.9g",
                                (long long)n, (long long)i, (double)back[i], want);
                break;
            }
        }
        drop(b);
    }
    ls_verdict_pass(b->out, compared, "%lld values there and back", (long long)compared);
}

/* ---- sums and factors ------------------------------------------------------------------------ */

static void fill(float *value, int64_t count, uint64_t stream)
{
    for (int64_t i = 0; i < count; i++) {
        value[i] = ls_rng_normal(31, stream, (uint64_t)i);
    }
}

static void compare(bench *b, const char *what, int64_t count, const float *seen, const float *want)
{
    for (int64_t i = 0; i < count; i++) {
        if (seen[i] != want[i]) {
            ls_verdict_fail(b->out, "%s of %lld elements: [%lld] is %.9g, f32 gives %.9g", what,
                            (long long)count, (long long)i, (double)seen[i], (double)want[i]);
            return;
        }
    }
}

/* The first tensor n bytes off alignment. */
static void judge_sums(bench *b, const operation *o)
{
    const ls_backend_api *api = b->device.api;
    ls_backend *backend = b->device.backend;
    ls_stream *stream = b->device.stream;
    static const float factor = 0.333333343f;
    int64_t compared = 0;
    for (int k = 0; k < COUNTS; k++) {
        float x[LARGEST], y[LARGEST], want[LARGEST], seen[LARGEST];
        int64_t n = counts[k];
        fill(x, n, 1);
        fill(y, n, 2);
        ls_tensor a = take(b, LS_F32, n, o->n), c = take(b, LS_F32, n, 0);
        put(b, &a, x);
        put(b, &c, y);
        must(b, api->accumulate(backend, stream, c, a, false), "accumulate");
        get(b, &c, seen);
        for (int64_t i = 0; i < n; i++) {
            want[i] = y[i] + x[i];
        }
        compare(b, "accumulate", n, seen, want);
        must(b, api->accumulate(backend, stream, c, a, true), "accumulate");
        get(b, &c, seen);
        compare(b, "first accumulate", n, seen, x);
        must(b, api->scale(backend, stream, a, factor), "scale");
        get(b, &a, seen);
        for (int64_t i = 0; i < n; i++) {
            want[i] = x[i] * factor;
        }
        compare(b, "scale", n, seen, want);
        compared += 3 * n;
        drop(b);
    }
    ls_verdict_pass(b->out, compared, "%lld sums and products", (long long)compared);
}

/* ---- unscale and look ------------------------------------------------------------------------ */

enum { LISTED = 3 };

typedef struct checked { /* three tensors: the first of one element, the last the awkward one */
    ls_tensor from[LISTED], to[LISTED], state;
} checked;

static void make_checked(bench *b, ls_dtype type, int64_t count, checked *c)
{
    const int64_t sizes[LISTED] = {1, 33, count};
    for (int k = 0; k < LISTED; k++) {
        c->from[k] = take(b, type, sizes[k], k == 1 ? (int64_t)ls_dtype_bytes(type) : 0);
        c->to[k] = take(b, LS_F32, sizes[k], k == 2 ? 4 : 0);
    }
    c->state = take(b, LS_F32, sizeof(ls_step_state) / sizeof(float), 0);
}

static uint32_t bits_of(ls_dtype type, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return type == LS_F32   ? bits
           : type == LS_F16 ? ls_half_f32_to_fp16(value)
                            : ls_half_f32_to_bf16(value);
}

/* Fills the tensors with ordinary values, and element `at` of tensor `which` with `odd` (which -1:
 * none); unscales by 1/128; gives the state. */
static ls_step_state run_checked(bench *b, ls_dtype type, checked *c, int which, int64_t at,
                                 uint32_t odd, float *last)
{
    size_t bytes = ls_dtype_bytes(type);
    for (int k = 0; k < LISTED; k++) {
        unsigned char host[LARGEST * 4];
        for (int64_t i = 0; i < c->from[k].count; i++) {
            uint32_t bits =
                bits_of(type, (float)((int)ls_rng_below(33, (uint64_t)k, (uint64_t)i, 201) - 100));
            bits = k == which && i == at ? odd : bits;
            memcpy(host + (size_t)i * bytes, &bits, bytes);
        }
        put(b, &c->from[k], host);
    }
    ls_step_state state = {0};
    state.loss_scale = 128;
    state.inv_loss_scale = 1.0f / 128;
    state.overflow = 1; /* left over from the step before: must be cleared */
    put(b, &c->state, &state);
    must(b,
         b->device.api->unscale_check(b->device.backend, b->device.stream,
                                      (ls_tensor_list){LISTED, c->to},
                                      (ls_tensor_list){LISTED, c->from}, c->state.data),
         "unscale");
    get(b, &c->state, &state);
    get(b, &c->to[LISTED - 1], last);
    return state;
}

/* Gradients of one type, the last tensor of n elements. */
static void judge_unscale(bench *b, const operation *o)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    ls_dtype type = o->type;
    int64_t count = o->n;
    checked c;
    make_checked(b, type, count, &c);
    float last[LARGEST];
    ls_step_state state = run_checked(b, type, &c, -1, 0, 0, last);
    if (state.overflow != 0) {
        ls_verdict_fail(b->out, "%lld finite elements: an overflow is seen", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        float want = (float)((int)ls_rng_below(33, LISTED - 1, (uint64_t)i, 201) - 100) / 128;
        if (last[i] != want) {
            ls_verdict_fail(b->out, "element %lld of %lld is %.9g after unscaling, not %.9g",
                            (long long)i, (long long)count, (double)last[i], (double)want);
            break;
        }
    }
    int64_t step = count > 130 ? count / 61 : 1, places = 0;
    for (int64_t at = 0; at < count;
         places++, at += at + step < count || at == count - 1 ? step : count - 1 - at) {
        int which = at == 0 ? 0 : LISTED - 1;
        float value = odd[at % 3];
        state = run_checked(b, type, &c, which, which == 0 ? 0 : at, bits_of(type, value), last);
        if (state.overflow == 0 || state.first_bad_grad != which) {
            ls_verdict_fail(b->out, "%g at element %lld of %lld, tensor %d: %s, tensor %d",
                            (double)value, (long long)at, (long long)count, which,
                            state.overflow != 0 ? "seen" : "not seen", (int)state.first_bad_grad);
            break;
        }
    }
    ls_verdict_pass(b->out, count + places, "%lld elements, an overflow at %lld places",
                    (long long)count, (long long)places);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const operation conversions[] = {
    {"fp16-to-f32", judge_widen, LS_F16, 0},         {"f32-to-fp16", judge_narrow, LS_F16, 0},
    {"fp16-to-f32.cut", judge_widen, LS_F16, CUT},   {"f32-to-fp16.cut", judge_narrow, LS_F16, CUT},
    {"lengths.fp16", judge_lengths, LS_F16, 0},      {"bf16-to-f32", judge_widen, LS_BF16, 0},
    {"f32-to-bf16", judge_narrow, LS_BF16, 0},       {"bf16-to-f32.cut", judge_widen, LS_BF16, CUT},
    {"f32-to-bf16.cut", judge_narrow, LS_BF16, CUT}, {"lengths.bf16", judge_lengths, LS_BF16, 0},
};
static const operation sums[] = {
    {"skew0", judge_sums, LS_F32, 0},
    {"skew4", judge_sums, LS_F32, 4},
    {"skew8", judge_sums, LS_F32, 8},
    {"skew12", judge_sums, LS_F32, 12},
};

void ls_kernels_multi_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    static const char *const names[] = {"f32", "fp16", "bf16"};
    static const int lengths[] = {1, 17, 64, 127, 1023};
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "K7", .judge = judge_operation}),
                 "kernels.convert.%s", conversions);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "K8", .judge = judge_operation}),
                 "kernels.sums.%s", sums);
    for (int i = 0; i < 15; i++) {
        operation *unscaled = ls_rows_memory(list, sizeof *unscaled);
        const ls_row row = {.requirement = "K9", .judge = judge_operation, .data = unscaled};
        *unscaled = (operation){"", judge_unscale, types[i / 5], lengths[i % 5]};
        ls_rows_format(list, settings, &row, "kernels.unscale.%s.n%d", names[i / 5],
                       lengths[i % 5]);
    }
}
