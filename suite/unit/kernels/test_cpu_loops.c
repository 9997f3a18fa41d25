/* The loops of the CPU backend, every vector variant against plain double: batch norm, pooling,
 * conversions. */
#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/loops.h"
#include "suite/inside/kernel.h"
#include "suite/unit/run_suite.h"

/* Each variant that runs here, each type, blocks and counts that leave rests. */

static const ls_loops *variant(int index)
{
#if defined(__x86_64__)
    if (index == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &ls_loops_avx2;
    }
    if (index == 2 && __builtin_cpu_supports("avx512bw")) {
        return &ls_loops_avx512;
    }
#endif
    return index == 0 ? &ls_loops_plain : NULL;
}

static const int lanes_of[] = {4, 8, 16};
static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
static const ls_kernel_rounding roundings[] = {LS_KERNEL_ROUND_F32, LS_KERNEL_ROUND_F16,
                                               LS_KERNEL_ROUND_BF16};
enum { PIXELS_MAX = 600, COUNT_MAX = PIXELS_MAX * 16 };

static ls_tensor loop_tensor(ls_dtype type, int64_t count)
{
    ls_tensor t = {calloc((size_t)count + 1, 4), type, count};
    ck_assert_ptr_nonnull(t.data);
    return t;
}

static void loop_fill(const ls_tensor *t, uint64_t stream, double offset)
{
    for (int64_t i = 0; i < t->count; i++) {
        ls_kernel_subject_put(t, i, offset + (double)ls_rng_normal(5, stream, (uint64_t)i));
    }
}

/* Units of rounding that a result of a few operations may be off, and the type's own. */
static void loop_close(double got, double wanted, double scale, ls_kernel_rounding type,
                       const char *what)
{
    double unit = type == LS_KERNEL_ROUND_F32   ? 0x1p-24
                  : type == LS_KERNEL_ROUND_F16 ? 0x1p-11
                                                : 0x1p-8;
    double limit = (unit + 8 * 0x1p-24) * (fabs(wanted) + scale);
    ck_assert_msg(fabs(got - wanted) <= limit, "%s: %.9g, %.9g wanted", what, got, wanted);
}

static void norm_case(const ls_loops *loops, int k, int block, int pixels)
{
    ls_dtype type = types[k];
    int64_t count = (int64_t)pixels * block;
    ls_plane plane = {pixels, block, block, 1};
    ls_tensor x = loop_tensor(type, count), r = loop_tensor(type, count);
    ls_tensor y = loop_tensor(type, count), dy = loop_tensor(type, count);
    ls_tensor dy2 = loop_tensor(type, count), g = loop_tensor(type, count);
    loop_fill(&x, 1, 2);
    loop_fill(&r, 2, 0);
    loop_fill(&dy, 3, 0.25);
    loop_fill(&dy2, 4, 0);
    double mean[16], m2[16], sum[16], sum_x[16], sum_x2[16];
    loops->norm_stats(type, x.data, &plane, mean, m2);
    ls_lane_coef coef, coef2;
    ls_lane_back back;
    for (int l = 0; l < 16; l++) {
        int c = l % block;
        coef.mean[l] = (float)mean[c];
        coef.scale[l] = 0.5f + 0.125f * (float)c;
        coef.bias[l] = 0.25f * (float)(c - 4);
        coef2.mean[l] = 0.5f;
        coef2.scale[l] = 2;
        coef2.bias[l] = 0.125f * (float)c;
        back.mean[l] = coef.mean[l];
        back.a[l] = 0.75f;
        back.b[l] = 0.125f * (float)c;
        back.c[l] = -0.5f;
    }
    for (int mode = 0; mode < 3; mode++) { /* no residual, plain residual, normalised residual */
        ls_norm_apply apply = {x.data, mode > 0 ? r.data : NULL,  y.data,
                               &coef,  mode == 2 ? &coef2 : NULL, true};
        loops->norm_apply(type, &apply, &plane);
        ls_norm_sums sums = {.dy = dy.data,
                             .dy2 = mode > 0 ? dy2.data : NULL,
                             .x = x.data,
                             .y = y.data,
                             .x2 = mode == 2 ? r.data : NULL,
                             .g = mode > 0 ? g.data : NULL,
                             .coef = &coef,
                             .coef2 = &coef2,
                             .gate = mode == 0 ? LS_GATE_INPUT : LS_GATE_OUTPUT,
                             .sum = sum,
                             .sum_x = sum_x,
                             .sum_x2 = sum_x2};
        loops->norm_sums(type, &sums, &plane);
        double want[3][16] = {{0}}, size[3][16] = {{0}}, plane_mean[16] = {0};
        for (int64_t i = 0; i < count; i++) {
            int c = (int)(i % block);
            double v = ls_kernel_subject_get(&x, i), residual = ls_kernel_subject_get(&r, i);
            double out = (v - (double)coef.mean[c]) * (double)coef.scale[c] + (double)coef.bias[c];
            double extra = mode == 0   ? 0
                           : mode == 1 ? residual
                                       : (residual - 0.5) * 2 + (double)coef2.bias[c];
            double got = ls_kernel_subject_get(&y, i), sumup = out + extra;
            loop_close(got, sumup > 0 ? sumup : 0, fabs(out) + fabs(extra) + 2, roundings[k],
                       "apply");
            double gradient =
                ls_kernel_subject_get(&dy, i) + (mode > 0 ? ls_kernel_subject_get(&dy2, i) : 0);
            gradient = got > 0 ? ls_kernel_interpreter_round(gradient, roundings[k]) : 0;
            if (mode > 0) {
                ck_assert(ls_kernel_subject_get(&g, i) == gradient);
            }
            double term[3] = {gradient, gradient * (v - (double)coef.mean[c]),
                              gradient * (residual - 0.5)};
            for (int s = 0; s < 3; s++) {
                want[s][c] += term[s];
                size[s][c] += fabs(term[s]);
            }
            plane_mean[c] += v / pixels;
        }
        const double *got[3] = {sum, sum_x, sum_x2};
        for (int c = 0; c < block; c++) {
            for (int s = 0; s < (mode == 2 ? 3 : 2); s++) {
                /* up to 16 additions in f32 between flushes, each half a unit of a part of the sum
                 */
                ck_assert_msg(fabs(got[s][c] - want[s][c]) <= 16 * 0x1p-24 * size[s][c],
                              "%s: sum %d of channel %d: %g, %g wanted", loops->name, s, c,
                              got[s][c], want[s][c]);
            }
            ck_assert(fabs(mean[c] - plane_mean[c]) <= 16 * 0x1p-24 * (1 + fabs(plane_mean[c])));
        }
        ls_norm_dx dx = {mode > 0 ? g.data : dy.data,
                         x.data,
                         y.data,
                         &coef,
                         &back,
                         mode > 0 ? LS_GATE_NONE : LS_GATE_INPUT};
        ls_tensor before = loop_tensor(type, count);
        memcpy(before.data, y.data, ls_tensor_bytes(&y));
        loops->norm_dx(type, &dx, &plane);
        for (int64_t i = 0; i < count; i++) {
            int c = (int)(i % block);
            double gradient = mode > 0 ? ls_kernel_subject_get(&g, i)
                              : ls_kernel_subject_get(&before, i) > 0
                                  ? ls_kernel_subject_get(&dy, i)
                                  : 0;
            double centred = ls_kernel_subject_get(&x, i) - (double)coef.mean[c];
            double wanted = 0.75 * gradient - 0.5 * centred + (double)back.b[c];
            loop_close(ls_kernel_subject_get(&y, i), wanted, fabs(gradient) + fabs(centred) + 2,
                       roundings[k], "dx");
        }
        free(before.data);
    }
    ls_tensor all[] = {x, r, y, dy, dy2, g};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i].data);
    }
}

LOOP_TEST(norm_loops, 9)
{
    const ls_loops *loops = variant(_i / 3);
    static const int blocks[] = {1, 8, 16}, pixels[] = {1, 2, 3, 7, 31, 64, 129, 599};
    for (size_t b = 0; loops != NULL && b < 3; b++) {
        for (size_t p = 0; p < sizeof pixels / sizeof pixels[0]; p++) {
            if (lanes_of[_i / 3] % blocks[b] == 0) {
                norm_case(loops, _i % 3, blocks[b], pixels[p]);
            }
        }
    }
}

/* Ties, NaN, -inf and borders of a max pool; values are small integers so that ties are many. */
static void pool_case(const ls_loops *loops, int k, int block, const ls_pool_shape *shape)
{
    ls_pool_shape s = *shape;
    s.block = s.step = block;
    ls_tensor x = loop_tensor(types[k], (int64_t)s.in_height * s.in_width * block);
    ls_tensor y = loop_tensor(types[k], (int64_t)s.out_height * s.out_width * block);
    ls_tensor dx = loop_tensor(types[k], x.count);
    uint8_t *tap = calloc((size_t)y.count, 1);
    double *want = calloc((size_t)x.count, sizeof *want);
    ck_assert_ptr_nonnull(want);
    for (int64_t i = 0; i < x.count; i++) {
        double v = (double)(int)ls_rng_below(3, 1, (uint64_t)i, 4) - 3;
        ls_kernel_subject_put(&x, i, i % 37 == 36 ? -INFINITY : v);
    }
    ls_kernel_subject_put(&x, x.count / 2, NAN);
    loops->pool(types[k], &s, x.data, y.data, tap);
    for (int64_t o = 0; o < y.count; o++) {
        int c = (int)(o % block), ow = (int)(o / block % s.out_width),
            oh = (int)(o / block / s.out_width);
        int64_t best = -1;
        int best_tap = -1;
        for (int t = 0; t < s.kernel * s.kernel; t++) {
            int h = oh * s.stride - s.pad + t / s.kernel, w = ow * s.stride - s.pad + t % s.kernel;
            if (h < 0 || h >= s.in_height || w < 0 || w >= s.in_width) {
                continue;
            }
            int64_t at = ((int64_t)h * s.in_width + w) * block + c;
            double v = ls_kernel_subject_get(&x, at);
            if (best < 0 || v > ls_kernel_subject_get(&x, best) || v != v) {
                best = at;
                best_tap = t;
            }
        }
        double got = ls_kernel_subject_get(&y, o), wanted = ls_kernel_subject_get(&x, best);
        ck_assert(got == wanted || (got != got && wanted != wanted));
        ck_assert_int_eq(tap[o], best_tap);
        ls_kernel_subject_put(&y, o, (double)((int)ls_rng_below(11, 9, (uint64_t)o, 9) - 4));
        want[best] += ls_kernel_subject_get(&y, o);
    }
    loops->pool_back(types[k], &s, y.data, tap, dx.data);
    for (int64_t i = 0; i < x.count; i++) {
        ck_assert(ls_kernel_subject_get(&dx, i) == want[i]);
    }
    free(x.data);
    free(y.data);
    free(dx.data);
    free(tap);
    free(want);
}

LOOP_TEST(pool_loops, 9)
{
    const ls_loops *loops = variant(_i / 3);
    static const ls_pool_shape shapes[] = {{7, 9, 4, 5, 3, 2, 1, 0, 0},
                                           {8, 8, 4, 4, 3, 2, 1, 0, 0},
                                           {5, 4, 2, 2, 2, 2, 0, 0, 0},
                                           {4, 4, 5, 5, 2, 1, 1, 0, 0},
                                           {1, 1, 1, 1, 3, 2, 1, 0, 0}};
    static const int blocks[] = {1, 8, 16};
    for (size_t b = 0; loops != NULL && b < 3; b++) {
        for (size_t p = 0; p < sizeof shapes / sizeof shapes[0]; p++) {
            if (lanes_of[_i / 3] % blocks[b] == 0) {
                pool_case(loops, _i % 3, blocks[b], &shapes[p]);
            }
        }
    }
}

/* ---- channels last ----------------------------------------------------------------------------
 */

enum { GAP = 3, SENTINEL = 77 }; /* blocks of other channels between two pixels, and their value */

/* The same plane with `GAP` blocks after each pixel. */
static ls_tensor spread_out(const ls_tensor *t, int block)
{
    ls_tensor wide = loop_tensor(t->dtype, t->count * (1 + GAP));
    for (int64_t i = 0; i < wide.count; i++) {
        ls_kernel_subject_put(&wide, i, SENTINEL);
    }
    for (int64_t i = 0; i < t->count; i++) {
        ls_kernel_subject_put(&wide, i / block * block * (1 + GAP) + i % block,
                              ls_kernel_subject_get(t, i));
    }
    return wide;
}

/* Whether the spread plane has the same bits, and nothing else was written; frees both. */
static void same_spread(ls_tensor *wide, ls_tensor *narrow, int block, const char *what)
{
    ls_tensor wanted = spread_out(narrow, block);
    ck_assert_msg(memcmp(wide->data, wanted.data, ls_tensor_bytes(&wanted)) == 0, "%s", what);
    free(wanted.data);
    free(wide->data);
    free(narrow->data);
}

enum { ONE, TWO, THREE, FOUR, OPERANDS };

typedef struct operands {
    ls_tensor t[OPERANDS];
} operands;

static operands operands_make(ls_dtype type, int64_t count)
{
    operands o;
    for (int i = 0; i < OPERANDS; i++) {
        o.t[i] = loop_tensor(type, count);
        loop_fill(&o.t[i], (uint64_t)i + 20, 0.5);
    }
    return o;
}

enum { BLOCKS = 3, ROW = BLOCKS * LS_LOOPS_LANES };

/* All loops over a plane, from block `first` on; results are in the operands and in sums[5][ROW].
 * A strip has no averages. */
static void run_all(const ls_loops *loops, operands *o, const ls_plane *plane, int first,
                    double *sums)
{
    ls_dtype type = o->t[ONE].dtype;
    ls_lane_coef coefs[BLOCKS], *coef = coefs + first;
    ls_lane_back backs[BLOCKS], *back = backs + first;
    for (int i = 0; i < ROW; i++) {
        int b = i / LS_LOOPS_LANES, l = i % LS_LOOPS_LANES;
        float value = 0.5f + 0.125f * (float)(l % plane->block + b);
        coefs[b].mean[l] = coefs[b].scale[l] = backs[b].a[l] = value;
        coefs[b].bias[l] = backs[b].mean[l] = backs[b].b[l] = backs[b].c[l] = 0.25f;
    }
    char *one, *two, *three, *four, **data[] = {&one, &two, &three, &four};
    for (int i = 0; i < OPERANDS; i++) {
        *data[i] = (char *)o->t[i].data + (size_t)(first * plane->block) * ls_dtype_bytes(type);
    }
    sums += first * plane->block;
    loops->norm_stats(type, one, plane, sums, sums + ROW);
    ls_norm_apply apply = {one, two, three, coef, coef, true};
    loops->norm_apply(type, &apply, plane);
    ls_norm_sums all = {.dy = two,
                        .dy2 = four,
                        .x = one,
                        .x2 = three,
                        .y = three,
                        .g = four,
                        .coef = coef,
                        .coef2 = coef,
                        .gate = LS_GATE_OUTPUT,
                        .sum = sums + 2 * ROW,
                        .sum_x = sums + 3 * ROW,
                        .sum_x2 = sums + 4 * ROW};
    loops->norm_sums(type, &all, plane);
    ls_norm_dx dx = {four, one, three, coef, back, LS_GATE_INPUT};
    loops->norm_dx(type, &dx, plane);
    if (plane->blocks == 1) {
        loops->average(type, two, four, plane);
        loops->average_back(type, one, two, plane);
    }
}

LOOP_TEST(planes_with_gaps, 9)
{
    const ls_loops *loops = variant(_i / 3);
    static const int pixels[] = {1, 2, 7, 64, 129};
    for (size_t p = 0; loops != NULL && p < sizeof pixels / sizeof pixels[0]; p++) {
        int block = loops->lanes;
        ls_plane plane = {pixels[p], block, block, 1};
        ls_plane gaps = {pixels[p], block, block * (1 + GAP), 1};
        operands narrow = operands_make(types[_i % 3], plane.pixels * block), wide;
        for (int i = 0; i < OPERANDS; i++) {
            wide.t[i] = spread_out(&narrow.t[i], block);
        }
        double sums[2][5 * ROW] = {{0}};
        run_all(loops, &narrow, &plane, 0, sums[0]);
        run_all(loops, &wide, &gaps, 0, sums[1]);
        ck_assert(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
        for (int i = 0; i < OPERANDS; i++) {
            same_spread(&wide.t[i], &narrow.t[i], block, "a plane with gaps");
        }
    }
}

/* A strip is its blocks, bit for bit. */
LOOP_TEST(strips, 9)
{
    const ls_loops *loops = variant(_i / 3);
    static const int pixels[] = {1, 2, 7, 64, 129};
    for (size_t p = 0; loops != NULL && p < sizeof pixels / sizeof pixels[0]; p++) {
        int block = loops->lanes;
        ls_plane strip = {pixels[p], block, block * BLOCKS, BLOCKS}, plane = strip;
        plane.blocks = 1;
        operands whole = operands_make(types[_i % 3], pixels[p] * strip.step);
        operands single = operands_make(types[_i % 3], pixels[p] * strip.step);
        double sums[2][5 * ROW] = {{0}};
        run_all(loops, &whole, &strip, 0, sums[0]);
        for (int b = 0; b < BLOCKS; b++) {
            run_all(loops, &single, &plane, b, sums[1]);
        }
        ck_assert(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
        ck_assert(memcmp(whole.t[THREE].data, single.t[THREE].data,
                         (size_t)(pixels[p] * strip.step) * ls_dtype_bytes(types[_i % 3])) == 0);
        for (int i = 0; i < OPERANDS; i++) {
            free(whole.t[i].data);
            free(single.t[i].data);
        }
    }
}

/* Statistics of a strip are merged from parts: of values far from zero, as exact as of a plane. */
LOOP_TEST(strips_in_parts, 3)
{
    const ls_loops *loops = variant(_i);
    enum { PIXELS = 3000 };
    if (loops == NULL) {
        return;
    }
    int channels = loops->lanes * BLOCKS;
    ls_tensor x = loop_tensor(LS_F32, PIXELS * channels);
    loop_fill(&x, 41, 0);
    float *value = x.data;
    double mean[ROW], m2[ROW];
    ls_plane strip = {PIXELS, loops->lanes, channels, BLOCKS};
    for (int64_t i = 0; i < x.count; i++) {
        value[i] += 1000 + (float)(i % channels);
    }
    loops->norm_stats(LS_F32, x.data, &strip, mean, m2);
    for (int c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (int p = 0; p < PIXELS; p++) {
            sum += (double)value[p * channels + c];
        }
        for (int p = 0; p < PIXELS; p++) {
            double off = (double)value[p * channels + c] - sum / PIXELS;
            squares += off * off;
        }
        /* sums of 16 f32 deviations below 100, each rounded to 2^-24 of it; parts add in double */
        ck_assert_double_le(fabs(mean[c] - sum / PIXELS), 1e-5);
        /* the same of their squares, relative to their sum */
        ck_assert_double_le(fabs(m2[c] / squares - 1), 1e-5);
    }
    free(x.data);
}

/* A max pool and its gradient, with and without gaps. */
LOOP_TEST(pools_with_gaps, 9)
{
    const ls_loops *loops = variant(_i / 3);
    enum { IN = 8, OUT = 4 };
    if (loops == NULL) {
        return;
    }
    int block = loops->lanes;
    ls_pool_shape plane = {IN, IN, OUT, OUT, 3, 2, 1, block, block}, gaps = plane;
    gaps.step = block * (1 + GAP);
    ls_dtype type = types[_i % 3];
    ls_tensor x = loop_tensor(type, IN * IN * block), y = loop_tensor(type, OUT * OUT * block);
    ls_tensor dx = loop_tensor(type, x.count), tap = loop_tensor(LS_U8, y.count);
    loop_fill(&x, 31, 0);
    ls_tensor wide_x = spread_out(&x, block), wide_y = spread_out(&y, block);
    ls_tensor wide_dx = spread_out(&dx, block);
    uint8_t *wide_tap = calloc((size_t)wide_y.count, 1);
    loops->pool(type, &plane, x.data, y.data, tap.data);
    loops->pool(type, &gaps, wide_x.data, wide_y.data, wide_tap);
    loops->pool_back(type, &plane, y.data, tap.data, dx.data);
    loops->pool_back(type, &gaps, wide_y.data, wide_tap, wide_dx.data);
    for (int64_t i = 0; i < y.count; i++) {
        int64_t at = i / block * gaps.step + i % block;
        ck_assert_int_eq(wide_tap[at], ((uint8_t *)tap.data)[i]);
    }
    same_spread(&wide_x, &x, block, "the input of a pool");
    same_spread(&wide_y, &y, block, "the output of a pool");
    same_spread(&wide_dx, &dx, block, "the gradient of a pool");
    free(tap.data);
    free(wide_tap);
}

/* Every half value there is, both ways, and every place a rounding can tip. */
LOOP_TEST(conversions, 3)
{
    const ls_loops *loops = variant(_i);
    if (loops == NULL) {
        return;
    }
    enum { ALL = 65536 };
    uint16_t *half = malloc(ALL * sizeof *half), *back = malloc(ALL * sizeof *back);
    float *wide = malloc(ALL * sizeof *wide);
    for (int k = 1; k < 3; k++) {
        for (int i = 0; i < ALL; i++) {
            half[i] = (uint16_t)i;
        }
        loops->widen(types[k], half, wide, ALL);
        for (int i = 0; i < ALL; i++) {
            float one = k == 1 ? ls_half_fp16_to_f32(half[i]) : ls_half_bf16_to_f32(half[i]);
            ck_assert((wide[i] != wide[i] && one != one) || memcmp(&wide[i], &one, 4) == 0);
        }
        for (int64_t start = 0; start < 16; start++) {
            for (int i = 0; i < ALL; i++) { /* bit patterns spread over all exponents */
                uint32_t bits =
                    ((uint32_t)i << 16) ^ ls_rng_below(1, (uint64_t)start, (uint64_t)i, ALL);
                if (start < 4) { /* ties and their neighbours of both types */
                    bits =
                        ((uint32_t)i << 16) | (uint32_t[]){0x8000, 0x7fff, 0x1000, 0x3000}[start];
                }
                wide[i] = ls_half_f32_of_bits(bits);
            }
            loops->narrow(types[k], wide, back, ALL);
            for (int i = 0; i < ALL; i++) {
                uint16_t one = k == 1 ? ls_half_f32_to_fp16(wide[i]) : ls_half_f32_to_bf16(wide[i]);
                ck_assert_msg(back[i] == one || wide[i] != wide[i], "%s: %a becomes %04x, not %04x",
                              loops->name, (double)wide[i], back[i], one);
            }
        }
    }
    free(half);
    free(back);
    free(wide);
}

TEST_MAIN("cpu loops", .timeout_s = 60)
