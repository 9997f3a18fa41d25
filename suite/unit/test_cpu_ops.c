/* Single operations of the CPU backend: convolution and linear on integers, where every partial sum
 * is exact and the answer must be equal to the last bit; every vector variant of the loops against
 * plain double; SyncBN over two plans against one plan of both batches. */
#include <pthread.h>

#include "../../kernels/cpu/conv.h"
#include "../../kernels/cpu/loops.h"
#include "cpu_subject.h"

/* ---- products: integers of -4 to 4, at most 9*64*16 = 9216 products of at most 16 to a sum: exact
 * in f32, and small enough for the sums to be exact in any order
 * ------------------------------------------- */

static float small_integer(uint64_t stream, int64_t i)
{
    return (float)((int)ls_rng_below(11, stream, (uint64_t)i, 9) - 4);
}

/* Block and index of logical NCHW elements. */
static int64_t blocked(int64_t i, int channels, int pixels, int block)
{
    int64_t p = i % pixels, c = i / pixels % channels, n = i / pixels / channels;
    return ((n * (channels / block) + c / block) * pixels + p) * block + c % block;
}

typedef struct product_case {
    int batch, in, height, width, out, kernel, stride, pad;
} product_case;

static const product_case products[] = {
    {1, 3, 9, 7, 16, 7, 2, 3},  {3, 3, 5, 5, 24, 3, 1, 1},   {2, 16, 7, 5, 32, 3, 2, 1},
    {3, 24, 5, 6, 24, 3, 1, 1}, {1, 64, 3, 3, 16, 1, 1, 0},  {2, 32, 5, 5, 64, 1, 2, 0},
    {4, 64, 1, 1, 64, 3, 1, 1}, {2, 32, 2, 2, 32, 3, 1, 1},  {3, 32, 2, 2, 64, 3, 2, 1},
    {3, 16, 2, 2, 48, 1, 2, 0}, {2, 64, 1, 1, 128, 1, 1, 0}, {1, 5, 4, 4, 7, 3, 1, 1},
    {2, 16, 4, 4, 16, 5, 1, 2}, {2, 8, 2, 1, 8, 3, 1, 1},    {1, 16, 1, 1, 16, 3, 2, 1},
    {3, 40, 3, 2, 16, 3, 2, 1},
};

typedef struct wide_shape {
    ls_dnn_shape s;
    int in_block, out_block, in_pixels, out_pixels;
    int64_t in, out, weight;
} wide_shape;

static int block_for(int channels)
{
    int widest = ls_dnn_block();
    return channels % widest == 0 ? widest : widest >= 8 && channels % 8 == 0 ? 8 : 1;
}

static wide_shape shape_of(const product_case *c)
{
    int height = (c->height + 2 * c->pad - c->kernel) / c->stride + 1;
    int width = (c->width + 2 * c->pad - c->kernel) / c->stride + 1;
    wide_shape w = {.s = {c->batch, c->in, c->height, c->width, c->out, height, width, c->kernel,
                          c->stride, c->pad, false},
                    .in_block = block_for(c->in),
                    .out_block = block_for(c->out),
                    .in_pixels = c->height * c->width,
                    .out_pixels = height * width};
    w.in = (int64_t)c->batch * c->in * w.in_pixels;
    w.out = (int64_t)c->batch * c->out * w.out_pixels;
    w.weight = (int64_t)c->out * c->in * c->kernel * c->kernel;
    return w;
}

/* Calls visit for each product of the convolution with the logical indices of its three parts. */
typedef void visit_product(double *const *value, int64_t in, int64_t weight, int64_t out);

static void each_product(const wide_shape *w, double *const *value, visit_product *visit)
{
    const ls_dnn_shape *s = &w->s;
    for (int64_t o = 0; o < w->out; o++) {
        int ow = (int)(o % s->out_width), oh = (int)(o / s->out_width % s->out_height);
        int64_t oc = o / w->out_pixels % s->out_channels, n = o / w->out_pixels / s->out_channels;
        for (int64_t ic = 0; ic < s->in_channels; ic++) {
            for (int tap = 0; tap < s->kernel * s->kernel; tap++) {
                int h = oh * s->stride - s->pad + tap / s->kernel;
                int x = ow * s->stride - s->pad + tap % s->kernel;
                if (h >= 0 && h < s->in_height && x >= 0 && x < s->in_width) {
                    visit(value, ((n * s->in_channels + ic) * s->in_height + h) * s->in_width + x,
                          (oc * s->in_channels + ic) * s->kernel * s->kernel + tap, o);
                }
            }
        }
    }
}

static void to_out(double *const *v, int64_t in, int64_t weight, int64_t out)
{
    v[2][out] += v[0][in] * v[1][weight];
}

static void to_in(double *const *v, int64_t in, int64_t weight, int64_t out)
{
    v[0][in] += v[2][out] * v[1][weight];
}

static void to_weight(double *const *v, int64_t in, int64_t weight, int64_t out)
{
    v[1][weight] += v[0][in] * v[2][out];
}

enum { IN, WEIGHT, OUT, PARTS };

typedef struct product_test {
    ls_backend *backend;
    const ls_backend_api *api;
    ls_conv *conv;
    wide_shape w;
    ls_dtype type;
    ls_tensor data[PARTS]; /* in and out in the blocked layout, weight plain */
    void *packed, *scratch;
} product_test;

static void product_open(product_test *t, const product_case *c, ls_dtype type)
{
    memset(t, 0, sizeof *t);
    t->api = ls_backend_entry();
    ls_backend_options options = {.threads = 2, .local_ranks = 1};
    ck_assert_int_eq(t->api->open(&options, &t->backend), LS_OK);
    t->w = shape_of(c);
    t->type = type;
    ck_assert_int_eq(ls_conv_create(t->backend, "conv", &t->w.s, t->w.in_block, t->w.out_block,
                                    type, true, &t->conv),
                     LS_OK);
    int64_t count[PARTS] = {t->w.in, t->w.weight, t->w.out};
    for (int k = 0; k < PARTS; k++) {
        t->data[k] = (ls_tensor){NULL, k == WEIGHT ? LS_F32 : type, count[k]};
        ck_assert_int_eq(t->api->memory_alloc(t->backend, (int64_t)ls_tensor_bytes(&t->data[k]),
                                              "part", &t->data[k].data),
                         LS_OK);
    }
    ck_assert_int_eq(t->api->memory_alloc(t->backend, (int64_t)ls_conv_weight_bytes(t->conv),
                                          "packed", &t->packed),
                     LS_OK);
    ck_assert_int_eq(t->api->memory_alloc(t->backend, (int64_t)ls_conv_scratch_bytes(t->conv),
                                          "scratch", &t->scratch),
                     LS_OK);
    ls_conv_place(t->conv, t->packed, t->scratch);
}

static void product_close(product_test *t)
{
    for (int k = 0; k < PARTS; k++) {
        t->api->memory_free(t->backend, t->data[k].data);
    }
    t->api->memory_free(t->backend, t->packed);
    t->api->memory_free(t->backend, t->scratch);
    ls_conv_destroy(t->conv);
    t->api->close(t->backend);
}

static int64_t memory_index(const product_test *t, int part, int64_t i)
{
    const wide_shape *w = &t->w;
    return part == WEIGHT ? i
           : part == IN   ? blocked(i, w->s.in_channels, w->in_pixels, w->in_block)
                          : blocked(i, w->s.out_channels, w->out_pixels, w->out_block);
}

/* Fills two of the parts with integers, poisons the third; exact[third] is what has to come. */
static void product_fill(product_test *t, int third, double **exact, visit_product *visit)
{
    for (int k = 0; k < PARTS; k++) {
        exact[k] = net_doubles(t->data[k].count);
        for (int64_t i = 0; i < t->data[k].count; i++) {
            exact[k][i] = k == third ? 0 : (double)small_integer((uint64_t)k, i);
            subject_write(&t->data[k], memory_index(t, k, i), k == third ? -777 : exact[k][i]);
        }
    }
    each_product(&t->w, exact, visit);
}

static void product_compare(product_test *t, int third, double **exact, rounding type)
{
    for (int64_t i = 0; i < t->data[third].count; i++) {
        double got = subject_read(&t->data[third], memory_index(t, third, i));
        double wanted = net_round(exact[third][i], type);
        ck_assert_msg(got == wanted, "part %d, element %lld: %g, %g wanted", third, (long long)i,
                      got, wanted);
    }
    for (int k = 0; k < PARTS; k++) {
        free(exact[k]);
    }
}

static void product_check(const product_case *c, ls_dtype type, rounding round)
{
    product_test t;
    product_open(&t, c, type);
    double *exact[PARTS];
    product_fill(&t, OUT, exact, to_out);
    ck_assert_int_eq(ls_conv_pack(t.conv, &t.data[WEIGHT]), LS_OK);
    ck_assert_int_eq(ls_conv_forward(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
    product_compare(&t, OUT, exact, round);
    product_fill(&t, IN, exact, to_in);
    ck_assert_int_eq(ls_conv_backward_data(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
    product_compare(&t, IN, exact, round);
    product_fill(&t, WEIGHT, exact, to_weight);
    ck_assert_int_eq(
        ls_conv_backward_weights(t.conv, t.data[IN].data, t.data[OUT].data, &t.data[WEIGHT]),
        LS_OK);
    product_compare(&t, WEIGHT, exact, round);
    product_close(&t);
}

START_TEST(products_are_exact)
{
    product_check(&products[_i], LS_F32, ROUND_NONE);
}
END_TEST

START_TEST(half_products_round_once)
{
    product_check(&products[_i], LS_F16, ROUND_F16);
    product_check(&products[_i], LS_BF16, ROUND_BF16);
}
END_TEST

/* A weight that the half type cannot hold is rounded before it is multiplied, not after. */
START_TEST(weights_round_before_the_product)
{
    product_case one = {1, 16, 4, 4, 16, 1, 1, 0};
    product_test t;
    product_open(&t, &one, LS_BF16);
    float *weight = t.data[WEIGHT].data;
    for (int64_t i = 0; i < t.data[WEIGHT].count; i++) {
        weight[i] = i % 16 == 0 ? 1.0f + 0x1p-9f : 0.0f; /* rounds to 1 in bf16 */
    }
    for (int64_t i = 0; i < t.data[IN].count; i++) {
        subject_write(&t.data[IN], memory_index(&t, IN, i), 0x1.fep8);
    }
    ck_assert_int_eq(ls_conv_pack(t.conv, &t.data[WEIGHT]), LS_OK);
    ck_assert_int_eq(ls_conv_forward(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
    for (int64_t i = 0; i < t.data[OUT].count; i++) {
        ck_assert(subject_read(&t.data[OUT], i) == 0x1.fep8);
    }
    product_close(&t);
}
END_TEST

/* ---- loops: each variant that runs here, each type, blocks and counts that leave rests
 * -------------- */

static const ls_loops *variant(int index)
{
    if (index == 0) {
        return ls_loops_plain();
    }
    if (index == 1) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? ls_loops_avx2()
                                                                               : NULL;
    }
    return __builtin_cpu_supports("avx512bw") ? ls_loops_avx512() : NULL;
}

static const int lanes_of[] = {4, 8, 16};
static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
static const rounding roundings[] = {ROUND_F32, ROUND_F16, ROUND_BF16};
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
        subject_write(t, i, offset + (double)ls_rng_normal(5, stream, (uint64_t)i));
    }
}

/* Units of rounding that a result of a few operations may be off, and the type's own. */
static void loop_close(double got, double wanted, double scale, rounding type, const char *what)
{
    double unit = type == ROUND_F32 ? 0x1p-24 : type == ROUND_F16 ? 0x1p-11 : 0x1p-8;
    double limit = (unit + 8 * 0x1p-24) * (fabs(wanted) + scale);
    ck_assert_msg(fabs(got - wanted) <= limit, "%s: %.9g, %.9g wanted", what, got, wanted);
}

static void norm_case(const ls_loops *loops, int k, int block, int pixels)
{
    ls_dtype type = types[k];
    int64_t count = (int64_t)pixels * block;
    ls_tensor x = loop_tensor(type, count), r = loop_tensor(type, count);
    ls_tensor y = loop_tensor(type, count), dy = loop_tensor(type, count);
    ls_tensor dy2 = loop_tensor(type, count), g = loop_tensor(type, count);
    loop_fill(&x, 1, 2);
    loop_fill(&r, 2, 0);
    loop_fill(&dy, 3, 0.25);
    loop_fill(&dy2, 4, 0);
    double mean[16], m2[16], sum[16], sum_x[16], sum_x2[16];
    loops->norm_stats(type, x.data, count, block, mean, m2);
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
        loops->norm_apply(type, &apply, count);
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
        loops->norm_sums(type, &sums, count, block);
        double want[3][16] = {{0}}, size[3][16] = {{0}}, plane_mean[16] = {0};
        for (int64_t i = 0; i < count; i++) {
            int c = (int)(i % block);
            double v = subject_read(&x, i), residual = subject_read(&r, i);
            double out = (v - (double)coef.mean[c]) * (double)coef.scale[c] + (double)coef.bias[c];
            double extra = mode == 0   ? 0
                           : mode == 1 ? residual
                                       : (residual - 0.5) * 2 + (double)coef2.bias[c];
            double got = subject_read(&y, i), sumup = out + extra;
            loop_close(got, sumup > 0 ? sumup : 0, fabs(out) + fabs(extra) + 2, roundings[k],
                       "apply");
            double gradient = subject_read(&dy, i) + (mode > 0 ? subject_read(&dy2, i) : 0);
            gradient = got > 0 ? net_round(gradient, roundings[k]) : 0;
            if (mode > 0) {
                ck_assert(subject_read(&g, i) == gradient);
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
        loops->norm_dx(type, &dx, count);
        for (int64_t i = 0; i < count; i++) {
            int c = (int)(i % block);
            double gradient = mode > 0                       ? subject_read(&g, i)
                              : subject_read(&before, i) > 0 ? subject_read(&dy, i)
                                                             : 0;
            double centred = subject_read(&x, i) - (double)coef.mean[c];
            double wanted = 0.75 * gradient - 0.5 * centred + (double)back.b[c];
            loop_close(subject_read(&y, i), wanted, fabs(gradient) + fabs(centred) + 2,
                       roundings[k], "dx");
        }
        free(before.data);
    }
    ls_tensor all[] = {x, r, y, dy, dy2, g};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i].data);
    }
}

START_TEST(norm_loops)
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
END_TEST

/* Ties, NaN, -inf and borders of a max pool; values are small integers so that ties are many. */
static void pool_case(const ls_loops *loops, int k, int block, const ls_pool_shape *shape)
{
    ls_pool_shape s = *shape;
    s.block = block;
    ls_tensor x = loop_tensor(types[k], (int64_t)s.in_height * s.in_width * block);
    ls_tensor y = loop_tensor(types[k], (int64_t)s.out_height * s.out_width * block);
    ls_tensor dx = loop_tensor(types[k], x.count);
    uint8_t *tap = calloc((size_t)y.count, 1);
    double *want = net_doubles(x.count);
    for (int64_t i = 0; i < x.count; i++) {
        double v = (double)(int)ls_rng_below(3, 1, (uint64_t)i, 4) - 3;
        subject_write(&x, i, i % 37 == 36 ? -INFINITY : v);
    }
    subject_write(&x, x.count / 2, NAN);
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
            double v = subject_read(&x, at);
            if (best < 0 || v > subject_read(&x, best) || v != v) {
                best = at;
                best_tap = t;
            }
        }
        double got = subject_read(&y, o), wanted = subject_read(&x, best);
        ck_assert(got == wanted || (got != got && wanted != wanted));
        ck_assert_int_eq(tap[o], best_tap);
        subject_write(&y, o, (double)small_integer(9, o));
        want[best] += subject_read(&y, o);
    }
    loops->pool_back(types[k], &s, y.data, tap, dx.data);
    for (int64_t i = 0; i < x.count; i++) {
        ck_assert(subject_read(&dx, i) == want[i]);
    }
    free(x.data);
    free(y.data);
    free(dx.data);
    free(tap);
    free(want);
}

START_TEST(pool_loops)
{
    const ls_loops *loops = variant(_i / 3);
    static const ls_pool_shape shapes[] = {{7, 9, 4, 5, 3, 2, 1, 0},
                                           {8, 8, 4, 4, 3, 2, 1, 0},
                                           {5, 4, 2, 2, 2, 2, 0, 0},
                                           {4, 4, 5, 5, 2, 1, 1, 0},
                                           {1, 1, 1, 1, 3, 2, 1, 0}};
    static const int blocks[] = {1, 8, 16};
    for (size_t b = 0; loops != NULL && b < 3; b++) {
        for (size_t p = 0; p < sizeof shapes / sizeof shapes[0]; p++) {
            if (lanes_of[_i / 3] % blocks[b] == 0) {
                pool_case(loops, _i % 3, blocks[b], &shapes[p]);
            }
        }
    }
}
END_TEST

/* Every half value there is, both ways, and every place a rounding can tip. */
START_TEST(conversions)
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
END_TEST

/* ---- SyncBN: two ranks, each a plan with half of the batch, on threads of their own
 * ------------------ */

typedef struct meeting {
    pthread_barrier_t barrier;
    const float *mine[2];
} meeting;

typedef struct member {
    meeting *place;
    int rank;
    subject s;
} member;

static ls_status gather(void *context, ls_stream *stream, const float *mine, float *all,
                        int64_t count)
{
    (void)stream;
    member *m = context;
    m->place->mine[m->rank] = mine;
    pthread_barrier_wait(&m->place->barrier);
    for (int r = 0; r < 2; r++) {
        memcpy(all + r * count, m->place->mine[r], (size_t)count * sizeof *all);
    }
    pthread_barrier_wait(&m->place->barrier);
    return LS_OK;
}

static void *member_step(void *context)
{
    member *m = context;
    subject_step(&m->s);
    return NULL;
}

START_TEST(sync_norm_is_one_batch)
{
    net n;
    net_start(&n);
    int x = net_relu(&n, net_norm(&n, net_conv(&n, 0, 16, 3, 1, 1)));
    x = net_block(&n, x, 32, 2, 0);
    net_finish(&n, x, 5);
    subject whole;
    subject_make(&whole, &n, 6, 9, 9, SUBJECT_F32);
    subject_step(&whole);
    meeting place;
    pthread_barrier_init(&place.barrier, NULL, 2);
    member m[2];
    ls_norm_sync sync[2];
    for (int r = 0; r < 2; r++) {
        m[r].place = &place;
        m[r].rank = r;
        sync[r] = (ls_norm_sync){2, &m[r], gather};
        subject_options o = {.threads = 1, .sync = &sync[r]};
        subject_make(&m[r].s, &n, 3, 9, 9, o);
        memcpy(m[r].s.input, whole.input + r * 3 * 3 * 81, 3 * 3 * 81 * sizeof(float));
        memcpy(m[r].s.target, whole.target + 3 * r, 3 * sizeof(int64_t));
    }
    pthread_t thread[2];
    for (int r = 0; r < 2; r++) {
        pthread_create(&thread[r], NULL, member_step, &m[r]);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(thread[r], NULL);
    }
    for (int b = 0; b < n.network.buffer_count; b++) {
        for (int64_t i = 0; i < m[0].s.buffer[b].count; i++) {
            double one = subject_read(&m[0].s.buffer[b], i),
                   all = subject_read(&whole.buffer[b], i);
            ck_assert(one == subject_read(&m[1].s.buffer[b], i)); /* the same bits on every rank */
            ck_assert(fabs(one - all) <= 160 * 0x1p-24 * (fabs(all) + 1));
        }
    }
    double difference = 0, size = 0;
    for (int p = 0; p < n.network.param_count; p++) {
        for (int64_t i = 0; i < whole.grad[p].count; i++) {
            double mean = (subject_read(&m[0].s.grad[p], i) + subject_read(&m[1].s.grad[p], i)) / 2;
            double all = subject_read(&whole.grad[p], i);
            difference += (mean - all) * (mean - all);
            size += all * all;
        }
    }
    /* both are f32 through eight layers with their own order of sums; local statistics give 0.1 and
     * more */
    ck_assert_msg(sqrt(difference / size) <= 160 * 0x1p-24, "%g", sqrt(difference / size));
    for (int r = 0; r < 2; r++) {
        subject_free(&m[r].s);
    }
    subject_free(&whole);
    pthread_barrier_destroy(&place.barrier);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu ops");
    TCase *c = tcase_create("ops");
    tcase_set_timeout(c, 60);
    int count = sizeof products / sizeof products[0];
    tcase_add_loop_test(c, products_are_exact, 0, count);
    tcase_add_loop_test(c, half_products_round_once, 0, count);
    tcase_add_test(c, weights_round_before_the_product);
    tcase_add_loop_test(c, norm_loops, 0, 9);
    tcase_add_loop_test(c, pool_loops, 0, 9);
    tcase_add_loop_test(c, conversions, 0, 3);
    tcase_add_test(c, sync_norm_is_one_batch);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}
