/* The kernels without statistics on the emulation against plain loops: exact wherever every
 * operation is rounded separately. */
#include "kernels/cuda/ops.h"
#include "suite/unit/run_suite.h"

#include "place.h"

static const ls_dtype TYPES[] = {LS_F32, LS_F16, LS_BF16};

static double *filled(place *p, ls_dtype type, uint64_t number, int64_t count, int off)
{
    double *value = place_normal(number, count, 0, 1);
    *p = place_make_off(type, count, off);
    place_fill(p, value);
    return value;
}

/* want[count] is rounded to the place's type. */
static void check_exact(const char *what, const place *p, const double *want)
{
    double *have = place_read(p);
    for (int64_t i = 0; i < p->count; i++) {
        double rounded = place_rounded(p->type, want[i]);
        PLACE_CHECK(place_same(have[i], rounded) && signbit(have[i]) == signbit(rounded),
                    "%s[%lld] is %.9g, not %.9g", what, (long long)i, have[i], rounded);
    }
    free(have);
}

/* f32 operations. */
static double plus(double a, double b)
{
    return (double)((float)a + (float)b);
}

static bool bit(const uint32_t *mask, int64_t i)
{
    return (mask[i / 32] >> (i % 32) & 1) != 0;
}

/* ---- sums, gates ----------------------------------------------------------------------------- */

static const int64_t COUNTS[] = {1, 7, 8, 9, 31, 33, 2049, 5000};
enum { COUNT_COUNT = sizeof COUNTS / sizeof COUNTS[0] };

static void check_add(ls_dtype type, int64_t count, bool two, bool relu, bool given)
{
    place x, residual, y = place_make(type, count), mask = place_make(LS_I32, (count + 31) / 32);
    double *a = filled(&x, type, 1, count, 0), *b = filled(&residual, type, 2, count, 0);
    double *want = malloc((size_t)count * sizeof *want);
    uint32_t *bits = calloc(1, mask.bytes);
    a[0] = (double)NAN;
    a[count / 2] = b[count / 2] = count > 1 ? -0.0 : a[0];
    place_fill(&x, a);
    place_fill(&residual, b);
    for (int64_t i = 0; i < count; i++) {
        bits[i / 32] |= (uint32_t)(i % 3 == 0) << (i % 32);
    }
    if (given) {
        place_put(&mask, bits);
    }
    ck_assert_int_eq(ls_simple_add(place_stream, type, x.data, two ? residual.data : NULL, y.data,
                                   relu ? mask.data : NULL, relu, given, count),
                     LS_OK);
    for (int64_t i = 0; i < count; i++) {
        want[i] = two ? plus(a[i], b[i]) : a[i];
        if (given) {
            want[i] = bit(bits, i) ? want[i] : 0;
        } else if (relu) {
            want[i] = want[i] <= 0 ? 0 : place_rounded(type, want[i]);
        }
    }
    double *have = place_read(&y);
    for (int64_t i = 0; i < count; i++) {
        PLACE_CHECK(place_same(have[i], place_rounded(type, want[i])), "y[%lld] is %g, not %g",
                    (long long)i, have[i], want[i]);
    }
    if (relu && !given) {
        place_get(&mask, bits);
        for (int64_t i = 0; i < count; i++) {
            PLACE_CHECK(bit(bits, i) == (have[i] > 0), "bit %lld for %g", (long long)i, have[i]);
        }
    }
    free(have);
    free(a);
    free(b);
    free(want);
    free(bits);
    place_free(&x);
    place_free(&residual);
    place_free(&y);
    place_free(&mask);
}

LOOP_TEST(add, 3)
{
    for (int n = 0; n < COUNT_COUNT; n++) {
        for (int f = 0; f < 6; f++) {
            check_add(TYPES[_i], COUNTS[n], f % 2 == 1, f >= 2, f >= 4);
        }
    }
}

LOOP_TEST(gate, 3)
{
    ls_dtype type = TYPES[_i];
    for (int n = 0; n < COUNT_COUNT; n++) {
        for (int f = 0; f < 8; f++) { /* two, masked, in place of dy or of dy2 */
            bool two = f % 2 == 1, masked = f / 2 % 2 == 1;
            int64_t count = COUNTS[n];
            place dy, dy2, g = place_make(type, count),
                           mask = place_make(LS_I32, (count + 31) / 32);
            double *a = filled(&dy, type, 3, count, 0), *b = filled(&dy2, type, 4, count, 0);
            uint32_t *bits = calloc(1, mask.bytes);
            double *want = malloc((size_t)count * sizeof *want);
            for (int64_t i = 0; i < count; i++) {
                bits[i / 32] |= (uint32_t)(i % 5 != 0) << (i % 32);
                want[i] = two ? plus(a[i], b[i]) : a[i];
                want[i] = !masked || bit(bits, i) ? want[i] : 0;
            }
            place_put(&mask, bits);
            place *to = f < 4 ? &g : two ? &dy2 : &dy;
            ck_assert_int_eq(ls_simple_gate(place_stream, type, dy.data, two ? dy2.data : NULL,
                                            masked ? mask.data : NULL, to->data, count),
                             LS_OK);
            check_exact("g", to, want);
            free(a);
            free(b);
            free(bits);
            free(want);
            place_free(&dy);
            place_free(&dy2);
            place_free(&g);
            place_free(&mask);
        }
    }
}

/* ---- shortcut, average ----------------------------------------------------------------------- */

/* An operation and its gradient: operands with their values, results with the expected ones. */
typedef struct both_ways {
    place x, dy, y, dx;
    double *a, *b, *want, *back;
} both_ways;

static both_ways both_ways_make(ls_dtype type, uint64_t number, int64_t inputs, int64_t outputs)
{
    both_ways w = {.y = place_make(type, outputs), .dx = place_make(type, inputs)};
    w.a = filled(&w.x, type, number, inputs, 0);
    w.b = filled(&w.dy, type, number + 1, outputs, 0);
    w.want = calloc((size_t)outputs, sizeof *w.want);
    w.back = calloc((size_t)inputs, sizeof *w.back);
    return w;
}

static void both_ways_check(both_ways *w)
{
    check_exact("y", &w->y, w->want);
    check_exact("dx", &w->dx, w->back);
    free(w->a);
    free(w->b);
    free(w->want);
    free(w->back);
    place_free(&w->x);
    place_free(&w->dy);
    place_free(&w->y);
    place_free(&w->dx);
}

LOOP_TEST(shortcut, 3)
{
    static const int size[][6] = {/* N H W C stride out */
                                  {2, 7, 5, 3, 2, 7},
                                  {1, 8, 8, 16, 2, 32},
                                  {3, 1, 1, 1, 1, 2}};
    ls_dtype type = TYPES[_i];
    for (size_t n = 0; n < sizeof size / sizeof size[0]; n++) {
        int N = size[n][0], H = size[n][1], W = size[n][2], C = size[n][3], s = size[n][4];
        int D = size[n][5], oh = (H + s - 1) / s, ow = (W + s - 1) / s;
        both_ways w = both_ways_make(type, 5, (int64_t)N * H * W * C, (int64_t)N * oh * ow * D);
        for (int i = 0; i < N * oh * ow; i++) {
            int image = i / (oh * ow), row = i / ow % oh * s, column = i % ow * s;
            for (int c = 0; c < C; c++) {
                int from = ((image * H + row) * W + column) * C + c;
                w.want[i * D + c] = w.a[from];
                w.back[from] = w.b[i * D + c];
            }
        }
        ls_simple_shortcut(place_stream, type, w.x.data, w.y.data, N, H, W, C, s, D);
        ls_simple_shortcut_back(place_stream, type, w.dy.data, w.dx.data, N, H, W, C, s, D);
        both_ways_check(&w);
    }
}

LOOP_TEST(average, 3)
{
    static const int size[][3] = {{2, 49, 64}, {3, 35, 3}, {1, 1, 8}, {2, 6, 2049}, {5, 50, 4}};
    ls_dtype type = TYPES[_i];
    for (size_t n = 0; n < sizeof size / sizeof size[0]; n++) {
        int N = size[n][0], P = size[n][1], C = size[n][2];
        both_ways w = both_ways_make(type, 7, (int64_t)N * P * C, (int64_t)N * C);
        for (int i = 0; i < N * C; i++) {
            for (int p = 0; p < P; p++) {
                int64_t at = ((int64_t)(i / C) * P + p) * C + i % C;
                w.want[i] += w.a[at];
                w.back[at] = (double)((float)w.b[i] / (float)P);
            }
            w.want[i] /= P;
        }
        ls_simple_average(place_stream, type, w.x.data, w.y.data, N, P, C);
        ls_simple_average_back(place_stream, type, w.dy.data, w.dx.data, N, P, C);
        both_ways_check(&w);
    }
}

/* ---- pool ------------------------------------------------------------------------------------ */

static const ls_pool_shape POOLS[] = {
    /* N C H W -> oh ow, kernel stride pad */
    {2, 3, 7, 5, 4, 3, 3, 2, 1},  {1, 64, 8, 9, 4, 5, 3, 2, 1}, {2, 8, 6, 6, 3, 3, 2, 2, 0},
    {1, 10, 5, 7, 5, 7, 3, 1, 1}, {3, 1, 1, 1, 1, 1, 3, 2, 1},  {1, 4, 9, 4, 3, 2, 5, 3, 2},
};
enum { POOL_COUNT = sizeof POOLS / sizeof POOLS[0] };

static int64_t nhwc(int n, int h, int w, int c, int H, int W, int C)
{
    return (((int64_t)n * H + h) * W + w) * C + c;
}

/* Output element i: the tap of the first maximum or, with `given`, the one in *tap. */
static double window(const ls_pool_shape *s, const double *x, int64_t i, uint8_t *tap, bool given)
{
    int c = (int)(i % s->channels), ow = (int)(i / s->channels % s->out_width);
    int oh = (int)(i / s->channels / s->out_width % s->out_height);
    int n = (int)(i / s->channels / s->out_width / s->out_height);
    double best = -INFINITY;
    bool found = false;
    for (int k = 0; k < s->kernel * s->kernel; k++) {
        int h = oh * s->stride - s->pad + k / s->kernel,
            w = ow * s->stride - s->pad + k % s->kernel;
        if (h < 0 || h >= s->height || w < 0 || w >= s->width) {
            continue;
        }
        double value = x[nhwc(n, h, w, c, s->height, s->width, s->channels)];
        if (given ? *tap == k : !found || value > best || isnan(value)) {
            best = value;
            *tap = (uint8_t)k;
        }
        found = true;
    }
    return best;
}

static void check_pool(ls_dtype type, const ls_pool_shape *s, bool given)
{
    int64_t outputs = (int64_t)s->images * s->out_height * s->out_width * s->channels;
    int64_t inputs = (int64_t)s->images * s->height * s->width * s->channels;
    place x, dy, y = place_make(type, outputs), taps = place_make(LS_U8, outputs);
    place dx = place_make(type, inputs);
    double *a = filled(&x, type, 9, inputs, 0), *b = filled(&dy, type, 10, outputs, 0);
    double *want = malloc((size_t)outputs * sizeof *want), *back = calloc((size_t)inputs, 8);
    uint8_t *tap = malloc((size_t)outputs), *have = malloc((size_t)outputs);
    for (int64_t i = 0; i < inputs; i++) { /* many ties, some NaN */
        a[i] = i % 29 == 3 ? (double)NAN : i % 11 == 2 ? -INFINITY : rint(a[i]);
    }
    place_fill(&x, a);
    for (int64_t i = 0; i < outputs; i++) {
        want[i] = window(s, a, i, &tap[i], false);
        if (given) { /* instead the window's last existing element */
            for (int k = 0; k < s->kernel * s->kernel; k++) {
                uint8_t other = (uint8_t)k;
                double value = window(s, a, i, &other, true);
                tap[i] = isnan(value) || value > -INFINITY ? other : tap[i];
            }
            want[i] = window(s, a, i, &tap[i], true);
        }
    }
    if (given) {
        place_put(&taps, tap);
    }
    ck_assert_int_eq(ls_pool_max(place_stream, type, s, x.data, y.data, taps.data, given), LS_OK);
    check_exact("y", &y, want);
    place_get(&taps, have);
    ck_assert_int_eq(memcmp(have, tap, (size_t)outputs), 0);
    for (int64_t i = 0; i < outputs; i++) { /* row order, because an input gathers in that order */
        int c = (int)(i % s->channels), ow = (int)(i / s->channels % s->out_width);
        int oh = (int)(i / s->channels / s->out_width % s->out_height);
        int n = (int)(i / s->channels / s->out_width / s->out_height);
        int h = oh * s->stride - s->pad + tap[i] / s->kernel;
        int w = ow * s->stride - s->pad + tap[i] % s->kernel;
        int64_t to = nhwc(n, h, w, c, s->height, s->width, s->channels);
        back[to] = plus(back[to], b[i]);
    }
    ck_assert_int_eq(ls_pool_max_back(place_stream, type, s, dy.data, taps.data, dx.data), LS_OK);
    check_exact("dx", &dx, back);
    free(a);
    free(b);
    free(want);
    free(back);
    free(tap);
    free(have);
    place_free(&x);
    place_free(&dy);
    place_free(&y);
    place_free(&taps);
    place_free(&dx);
}

LOOP_TEST(pool, 3)
{
    for (int n = 0; n < POOL_COUNT; n++) {
        check_pool(TYPES[_i], &POOLS[n], false);
        check_pool(TYPES[_i], &POOLS[n], true);
    }
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* The error of f32: the difference of logits (2^-24 of their size), expf and a division (4
 * roundings at most), the sum in double. */
static void check_loss(ls_dtype type, int images, int classes, double size, double smoothing)
{
    const double ulp = 1.0 / 16777216.0;
    const float scale = 1024.0f, factor = 0.5f;
    int64_t count = (int64_t)images * classes;
    place logits, target = place_make(LS_I64, images), kept = place_make(LS_F32, count);
    place row = place_make(LS_F32, 4 * (int64_t)images), gradient = place_make(type, count);
    place state = place_make(LS_U8, (int64_t)sizeof(ls_step_state));
    double *a = place_normal(11, count, 0, size), loss = 0, limit = 0;
    int64_t *wanted = malloc((size_t)images * sizeof *wanted);
    ls_step_state s = {.loss_scale = scale};
    logits = place_make(type, count);
    place_fill(&logits, a);
    for (int n = 0; n < images; n++) {
        wanted[n] = (7 * n + 1) % classes;
    }
    place_put(&target, wanted);
    place_put(&state, &s);
    ck_assert_int_eq(ls_loss_forward(place_stream, type, logits.data, target.data, images, classes,
                                     smoothing, kept.data, row.data, state.data),
                     LS_OK);
    ck_assert_int_eq(ls_loss_backward(place_stream, type, kept.data, row.data, target.data, images,
                                      classes, smoothing, factor, state.data, gradient.data),
                     LS_OK);
    check_exact("kept", &kept, a);
    double *have = place_read(&gradient);
    for (int n = 0; n < images; n++) {
        double most = -INFINITY, sum = 0, mean = 0;
        for (int j = 0; j < classes; j++) {
            mean += a[n * classes + j] / classes;
            most = fmax(most, a[n * classes + j]);
        }
        for (int j = 0; j < classes; j++) {
            sum += exp(a[n * classes + j] - most);
        }
        for (int j = 0; j < classes; j++) {
            double off = a[n * classes + j] - most, p = exp(off) / sum;
            double weight = smoothing / classes + (j == wanted[n] ? 1 - smoothing : 0);
            double want = (p - weight) * (double)(scale * factor) / images;
            double error = ulp * (fabs(off) + 8) * p + 4 * ulp * fabs(want);
            error += smoothing > 0 ? ulp * weight : 0;          /* it is rounded, but for 0 and 1 */
            double least = type == LS_F16 ? 0x1p-25 : 0x1p-126; /* subnormals */
            double unit = type == LS_F16 ? 0x1p-11 : type == LS_BF16 ? 0x1p-8 : ulp;
            error = error * (double)(scale * factor) / images + fmax(unit * fabs(want), least);
            PLACE_CHECK(fabs(have[n * classes + j] - want) <= error,
                        "gradient[%d][%d] is %.9g, not %.9g +- %.2g", n, j, have[n * classes + j],
                        want, error);
        }
        double own = (1 - smoothing) * a[n * classes + wanted[n]] + smoothing * mean;
        own = log(sum) - (own - most);
        loss += own / images;
        limit += ulp * (8 + 4 * fabs(own)) / images;
        limit += smoothing > 0 ? ulp * (8 + 4 * (most - mean)) / images : 0;
    }
    place_get(&state, &s);
    PLACE_CHECK(fabs((double)s.loss - loss) <= limit, "loss %.9g, not %.9g", (double)s.loss, loss);
    /* a NaN among the logits, and a target that is not a class, show in the loss */
    double first = a[0];
    a[0] = (double)NAN;
    place_fill(&logits, a);
    ls_loss_forward(place_stream, type, logits.data, target.data, images, classes, smoothing,
                    kept.data, row.data, state.data);
    place_get(&state, &s);
    ck_assert(isnan(s.loss));
    a[0] = first;
    place_fill(&logits, a);
    wanted[0] = classes;
    place_put(&target, wanted);
    ls_loss_forward(place_stream, type, logits.data, target.data, images, classes, smoothing,
                    kept.data, row.data, state.data);
    place_get(&state, &s);
    ck_assert(isnan(s.loss));
    free(a);
    free(wanted);
    free(have);
    place_free(&logits);
    place_free(&target);
    place_free(&kept);
    place_free(&row);
    place_free(&gradient);
    place_free(&state);
}

LOOP_TEST(loss, 3)
{
    check_loss(TYPES[_i], 1, 2, 1, 0);
    check_loss(TYPES[_i], 5, 10, 3, 0);
    check_loss(TYPES[_i], 3, 1003, 2, 0);
    check_loss(TYPES[_i], 300, 7, 1, 0);
    check_loss(TYPES[_i], 4, 100, 1000, 0);
    check_loss(TYPES[_i], 5, 10, 3, 0.1);
    check_loss(TYPES[_i], 3, 1003, 2, 0.5);
    check_loss(TYPES[_i], 300, 7, 1, 1);
}

LOOP_TEST(bias_gradient, 3)
{
    static const int size[][2] = {{1, 1}, {5, 10}, {37, 33}, {300, 3}};
    for (size_t n = 0; n < sizeof size / sizeof size[0]; n++) {
        int images = size[n][0], classes = size[n][1];
        for (int k = 0; k < 3; k++) {
            place dy, bias = place_make(TYPES[k], classes);
            double *a = filled(&dy, TYPES[_i], 12, (int64_t)images * classes, 0);
            double *want = calloc((size_t)classes, sizeof *want);
            ls_tensor tensor = place_tensor(&bias);
            for (int64_t i = 0; i < (int64_t)images * classes; i++) {
                a[i] = rint(8 * a[i]); /* every sum is exact, in any order */
                want[i % classes] += a[i];
            }
            place_fill(&dy, a);
            for (int j = 0; j < classes; j++) {
                want[j] = place_rounded(TYPES[_i], want[j]);
            }
            ls_loss_bias_grad(place_stream, TYPES[_i], dy.data, images, classes, &tensor);
            double *have = place_read(&bias);
            for (int j = 0; j < classes; j++) {
                ck_assert(have[j] == place_rounded(TYPES[k], want[j]));
            }
            free(a);
            free(want);
            free(have);
            place_free(&dy);
            place_free(&bias);
        }
    }
}

TEST_MAIN("cuda_kernels", .timeout_s = 60, .before = place_set_up, .after = place_tear_down)
