/* Batch norm's kernels on the emulation against plain loops in double: every type and form, awkward
 * sizes, large means, ranks that share statistics, and equal bits in any order of blocks. */
#include "kernels/cuda/ops.h"
#include "suite/unit/run_suite.h"

#include "place.h"

/* One rounding of f32. */
#define ULP (1.0 / 16777216.0)
/* An output is the result of five f32 operations on rounded coefficients, which include the
 * statistics' own rounding (sums of at most 256 values in f32 each, 2^-24 * sqrt(256) of a
 * deviation): 32 roundings of the size of its terms. */
#define TERMS_LIMIT (32.0 * ULP)
/* A sum of n products in f32 in runs of at most 256: 16 roundings of the sum of their magnitudes.
 */
#define SUM_LIMIT (16.0 * ULP)

typedef struct form {
    bool relu, residual, dual, two, store, in_place;
    bool sums; /* statistics come from a product's sums */
} form;

typedef struct shape {
    int64_t rows;
    int channels, processors;
    double mean; /* of x, in standard deviations */
} shape;

/* All data of one rank. */
typedef struct rank {
    int64_t count;
    ls_norm_call call;
    place x, residual, y, mask, dy, dy2, g, dx, dx2, partial, mine, all;
    double *x_value, *residual_value, *dy_value, *dy2_value;
    place sums[2];
    place kept[2], parameter[2][6]; /* weight, bias, mean, var, weight_grad, bias_grad */
    double *parameter_value[2][4];
} rank;

static double *filled(place *p, ls_dtype type, uint64_t number, int64_t count, double mean,
                      double deviation)
{
    double *value = place_normal(number, count, mean, deviation);
    *p = place_make(type, count);
    place_fill(p, value);
    return value;
}

static ls_norm_side make_side(rank *r, int k, ls_dtype parameters, int channels)
{
    static const double mean[4] = {1, 0.25, 0, 1}, deviation[4] = {0.3, 0.5, 0.5, 0};
    float *kept;
    r->kept[k] = place_make(LS_F32, 8 * (int64_t)channels + 1);
    kept = r->kept[k].data;
    for (int i = 0; i < 6; i++) {
        if (i < 4) { /* equal on all ranks */
            r->parameter_value[k][i] =
                filled(&r->parameter[k][i], parameters, (uint64_t)(900 + 10 * k + i), channels,
                       mean[i], deviation[i]);
        } else {
            r->parameter[k][i] = place_make(parameters, channels);
        }
    }
    return (ls_norm_side){
        .kept = {.mean = kept,
                 .inv_std = kept + channels,
                 .scale = kept + 2 * channels,
                 .bias = kept + 3 * channels,
                 .back = kept + 4 * channels,
                 .count = kept + 8 * channels},
        .weight = place_tensor(&r->parameter[k][0]),
        .bias = place_tensor(&r->parameter[k][1]),
        .running_mean = place_tensor(&r->parameter[k][2]),
        .running_var = place_tensor(&r->parameter[k][3]),
        .weight_grad = place_tensor(&r->parameter[k][4]),
        .bias_grad = place_tensor(&r->parameter[k][5]),
        .epsilon = 1e-5f,
        .momentum = 0.1f,
    };
}

/* What a product says of x or of the residual: sums that have been rounded to f32 once. */
static void take_sums(rank *r, int k, int channels)
{
    const double *value = k == 0 ? r->x_value : r->residual_value;
    double *sum = calloc(2 * (size_t)channels, sizeof *sum);
    for (int64_t i = 0; i < r->count; i++) {
        sum[i % channels] += value[i];
        sum[channels + i % channels] += value[i] * value[i];
    }
    place_fill(&r->sums[k], sum);
    r->call.sum[k] = r->sums[k].data;
    r->call.squares[k] = r->call.sum[k] + channels;
    free(sum);
}

static void make(rank *r, int number, int group, ls_dtype type, const shape *s, const form *f)
{
    const ls_norm_call sized = {.channels = s->channels, .dual = f->dual};
    int64_t count = s->rows * s->channels, message = ls_norm_gathered(&sized);
    *r = (rank){.count = count};
    r->x_value = filled(&r->x, type, (uint64_t)(10 * number + 1), count, s->mean, 1);
    r->residual_value = filled(&r->residual, type, (uint64_t)(10 * number + 2), count, 0.5, 2);
    r->dy_value = filled(&r->dy, type, (uint64_t)(10 * number + 3), count, 0.1, 1);
    r->dy2_value = filled(&r->dy2, type, (uint64_t)(10 * number + 4), count, 0, 1);
    r->y = place_make(type, count);
    r->mask = place_make(LS_I32, (count + 31) / 32);
    r->g = place_make(type, count);
    r->dx = place_make(type, count);
    r->dx2 = place_make(type, count);
    r->partial =
        place_make(LS_U8, (int64_t)ls_norm_partial_bytes(s->rows, s->channels, s->processors));
    r->mine = place_make(LS_F32, message);
    r->all = place_make(LS_F32, group * message);
    r->call = (ls_norm_call){.type = type,
                             .rows = s->rows,
                             .channels = s->channels,
                             .processors = s->processors,
                             .relu = f->relu,
                             .dual = f->dual,
                             .x = r->x.data,
                             .residual = f->residual ? r->residual.data : NULL,
                             .y = r->y.data,
                             .mask = f->relu ? r->mask.data : NULL,
                             .dy = r->dy.data,
                             .dy2 = f->two ? r->dy2.data : NULL,
                             .g = !f->store     ? NULL
                                  : f->in_place ? r->dy.data
                                                : r->g.data,
                             .partial = r->partial.data,
                             .mine = r->mine.data,
                             .all = r->all.data,
                             .group = group};
    r->call.dx = f->in_place ? f->store ? r->call.g : r->dy.data : r->dx.data;
    r->call.dx2 = f->dual ? r->dx2.data : NULL;
    for (int k = 0; k < 2; k++) {
        r->call.side[k] = make_side(r, k, type == LS_F16 ? LS_F16 : LS_F32, s->channels);
        r->sums[k] = place_make(LS_F32, 2 * (int64_t)s->channels);
        if (f->sums) {
            take_sums(r, k, s->channels);
        }
    }
}

static void drop(rank *r)
{
    place *all[] = {&r->x, &r->residual, &r->y,   &r->mask,    &r->dy,   &r->dy2,
                    &r->g, &r->dx,       &r->dx2, &r->partial, &r->mine, &r->all};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        place_free(all[i]);
    }
    for (int k = 0; k < 2; k++) {
        place_free(&r->kept[k]);
        place_free(&r->sums[k]);
        for (int i = 0; i < 6; i++) {
            place_free(&r->parameter[k][i]);
        }
        for (int i = 0; i < 4; i++) {
            free(r->parameter_value[k][i]);
        }
    }
    free(r->x_value);
    free(r->residual_value);
    free(r->dy_value);
    free(r->dy2_value);
}

/* Emulates an all-gather. */
static void gather(rank *r, int group)
{
    ck_assert_int_eq(cudaStreamSynchronize(place_stream), cudaSuccess);
    for (int to = 0; to < group; to++) {
        for (int from = 0; from < group; from++) {
            cudaMemcpy((char *)r[to].all.data + (size_t)from * r[from].mine.bytes,
                       r[from].mine.data, r[from].mine.bytes, cudaMemcpyDeviceToDevice);
        }
    }
}

static void run_forward(rank *r, int group)
{
    for (int i = 0; i < group; i++) {
        ck_assert_int_eq(ls_norm_statistics(place_stream, &r[i].call), LS_OK);
    }
    if (group > 1) {
        gather(r, group);
    }
    for (int i = 0; i < group; i++) {
        ck_assert_int_eq(ls_norm_finish(place_stream, &r[i].call), LS_OK);
        ck_assert_int_eq(ls_norm_apply(place_stream, &r[i].call), LS_OK);
    }
}

/* All but the last sweep. */
static void run_backward(rank *r, int group)
{
    for (int i = 0; i < group; i++) {
        ck_assert_int_eq(ls_norm_sums(place_stream, &r[i].call), LS_OK);
    }
    if (group > 1) {
        gather(r, group);
    }
    for (int i = 0; i < group; i++) {
        ck_assert_int_eq(ls_norm_back_finish(place_stream, &r[i].call), LS_OK);
    }
}

/* ---- the same in double ---------------------------------------------------------------------- */

typedef struct moments {
    double mean, var, inv_std, count;
} moments;

static const double *input(const rank *r, int k)
{
    return k == 0 ? r->x_value : r->residual_value;
}

static moments moments_of(const rank *r, int group, int k, int c)
{
    moments m = {0};
    for (int i = 0; i < group; i++) {
        for (int64_t j = c; j < r[i].count; j += r->call.channels) {
            m.mean += input(&r[i], k)[j];
            m.count += 1;
        }
    }
    m.mean /= m.count;
    for (int i = 0; i < group; i++) {
        for (int64_t j = c; j < r[i].count; j += r->call.channels) {
            double off = input(&r[i], k)[j] - m.mean;
            m.var += off * off / m.count;
        }
    }
    m.inv_std = 1 / sqrt(m.var + (double)r->call.side[k].epsilon);
    return m;
}

static double half_ulp(ls_dtype type, double value)
{
    double unit = type == LS_F16 ? 1.0 / 2048 : type == LS_BF16 ? 1.0 / 256 : ULP;
    double least = type == LS_F16 ? 0x1p-25 : 0; /* of subnormals */
    return unit * fabs(value) > least ? unit * fabs(value) : least;
}

static void check_near(const char *what, ls_dtype type, double have, double want, double limit,
                       int64_t at)
{
    limit += half_ulp(type, want) + half_ulp(type, limit);
    PLACE_CHECK(fabs(have - want) <= limit, "%s[%lld] is %.9g, not %.9g +- %.2g", what,
                (long long)at, have, want, limit);
}

/* Values of channel c of rank r forward; the mask must match the stored output. */
static void check_outputs(const rank *r, int c, const moments *m, const double *y,
                          const uint32_t *mask)
{
    const ls_norm_call *call = &r->call;
    for (int64_t i = c; i < r->count; i += call->channels) {
        double want = 0, size = 0;
        for (int k = 0; k < 2; k++) {
            double value = input(r, k)[i];
            if (k == 1 && call->residual == NULL) {
                break;
            }
            if (k == 0 || call->dual) {
                double weight = r->parameter_value[k][0][c], bias = r->parameter_value[k][1][c];
                double part = (value - m[k].mean) * m[k].inv_std * weight;
                value = part + bias;
                size += fabs(part) + fabs(bias) + fabs(weight);
            }
            want += value;
            size += fabs(value);
        }
        want = call->relu && want < 0 ? 0 : want;
        check_near("y", call->type, y[i], want, TERMS_LIMIT * size, i);
        if (call->relu) {
            PLACE_CHECK((mask[i / 32] >> (i % 32) & 1) == (y[i] > 0 ? 1u : 0u),
                        "bit %lld of the mask is wrong for %g", (long long)i, y[i]);
            PLACE_CHECK(y[i] >= 0, "y[%lld] is %g after ReLU", (long long)i, y[i]);
        }
    }
}

static void check_forward(rank *r, int group)
{
    int sides = r->call.dual ? 2 : 1;
    for (int i = 0; i < group; i++) {
        double *y = place_read(&r[i].y), *running[2][2] = {{NULL}};
        uint32_t *mask = malloc(r[i].mask.bytes + 4);
        place_get(&r[i].mask, mask);
        for (int k = 0; k < sides; k++) {
            running[k][0] = place_read(&r[i].parameter[k][2]);
            running[k][1] = place_read(&r[i].parameter[k][3]);
        }
        for (int c = 0; c < r->call.channels; c++) {
            moments m[2];
            for (int k = 0; k < sides; k++) {
                m[k] = moments_of(r, group, k, c);
                double unbiased = m[k].count > 1 ? m[k].count / (m[k].count - 1) : 1;
                double mean = 0.9 * r[i].parameter_value[k][2][c] + 0.1 * m[k].mean;
                double var = 0.9 * r[i].parameter_value[k][3][c] + 0.1 * m[k].var * unbiased;
                ls_dtype type = r[i].parameter[k][2].type;
                check_near("running mean", type, running[k][0][c], mean,
                           TERMS_LIMIT * (fabs(m[k].mean) + sqrt(m[k].var) + 1), c);
                check_near("running var", type, running[k][1][c], var,
                           TERMS_LIMIT * (m[k].var * unbiased + 1), c);
            }
            check_outputs(&r[i], c, m, y, mask);
        }
        for (int k = 0; k < sides; k++) {
            free(running[k][0]);
            free(running[k][1]);
        }
        free(y);
        free(mask);
    }
}

/* The summed and gated gradient, rounded if it is stored. */
static double *gated(const rank *r)
{
    double *g = malloc(((size_t)r->count + 1) * sizeof *g);
    uint32_t *mask = malloc(r->mask.bytes + 4);
    place_get(&r->mask, mask);
    for (int64_t i = 0; i < r->count; i++) {
        bool open = !r->call.relu || (mask[i / 32] >> (i % 32) & 1) != 0;
        double sum = r->dy_value[i] + (r->call.dy2 != NULL ? r->dy2_value[i] : 0);
        g[i] = open ? place_rounded(r->call.type, sum) : 0;
    }
    free(mask);
    return g;
}

/* Sums of one channel over all ranks, and the sums of their terms' magnitudes. */
typedef struct back_sums {
    double g, gx, g_size, gx_size;
} back_sums;

static back_sums sums_of(const rank *r, double *const *g, int group, int k, int c, double mean)
{
    back_sums s = {0};
    for (int i = 0; i < group; i++) {
        for (int64_t j = c; j < r[i].count; j += r->call.channels) {
            double product = g[i][j] * (input(&r[i], k)[j] - mean);
            s.g += g[i][j];
            s.gx += product;
            s.g_size += fabs(g[i][j]);
            s.gx_size += fabs(product);
        }
    }
    return s;
}

static void check_backward(rank *r, int group, double *const *g)
{
    for (int i = 0; i < group; i++) {
        for (int k = 0; k < (r->call.dual ? 2 : 1); k++) {
            double *weight = place_read(&r[i].parameter[k][4]);
            double *bias = place_read(&r[i].parameter[k][5]);
            place at = k == 0 ? r[i].dx : r[i].dx2;
            at.data = k == 0 ? r[i].call.dx : r[i].call.dx2;
            double *dx = place_read(&at);
            ls_dtype type = r[i].parameter[k][4].type;
            for (int c = 0; c < r->call.channels; c++) {
                moments m = moments_of(r, group, k, c);
                back_sums own = sums_of(&r[i], &g[i], 1, k, c, m.mean);
                back_sums all = sums_of(r, g, group, k, c, m.mean);
                double factor = r[i].parameter_value[k][0][c] * m.inv_std;
                check_near("bias grad", type, bias[c], own.g, SUM_LIMIT * own.g_size, c);
                /* the mean is a sum of deviations, too */
                double moved = SUM_LIMIT * (own.gx_size + own.g_size * sqrt(m.var));
                check_near("weight grad", type, weight[c], own.gx * m.inv_std,
                           (moved + TERMS_LIMIT * fabs(own.gx)) * m.inv_std, c);
                for (int64_t j = c; j < r[i].count; j += r->call.channels) {
                    double off = input(&r[i], k)[j] - m.mean;
                    double share = off * m.inv_std * m.inv_std * factor / m.count;
                    double want = factor * (g[i][j] - all.g / m.count) - share * all.gx;
                    double size = fabs(factor * g[i][j]) + fabs(share * all.gx) +
                                  fabs(factor) * all.g_size / m.count + fabs(share) * all.gx_size;
                    check_near("dx", r->call.type, dx[j], want, TERMS_LIMIT * size, j);
                }
            }
            free(weight);
            free(bias);
            free(dx);
        }
    }
}

static void run_seed(int seed, ls_dtype type, const shape *s, const form *f, int group)
{
    rank r[3];
    double *g[3];
    for (int i = 0; i < group; i++) { /* unequal numbers of images */
        shape own = *s;
        own.rows += i;
        make(&r[i], 3 * seed + i, group, type, &own, f);
    }
    run_forward(r, group);
    check_forward(r, group);
    for (int i = 0; i < group; i++) {
        g[i] = gated(&r[i]);
    }
    run_backward(r, group);
    for (int i = 0; i < group; i++) {
        place stored = r[i].g;
        stored.data = r[i].call.g;
        double *have = f->store ? place_read(&stored) : NULL;
        for (int64_t j = 0; f->store && j < r[i].count; j++) {
            PLACE_CHECK(have[j] == g[i][j], "g[%lld] is %g, not %g", (long long)j, have[j],
                        g[i][j]);
        }
        free(have);
        ck_assert_int_eq(ls_norm_back_apply(place_stream, &r[i].call), LS_OK);
    }
    check_backward(r, group, g);
    for (int i = 0; i < group; i++) {
        free(g[i]);
        drop(&r[i]);
    }
}

static void run_case(ls_dtype type, const shape *s, const form *f, int group)
{
    run_seed(0, type, s, f, group);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const ls_dtype TYPES[] = {LS_F32, LS_F16, LS_BF16};

static const form FORMS[] = {
    {.relu = false},
    {.relu = true},
    {.relu = true, .in_place = true},
    {.relu = true, .two = true, .store = true},
    {.relu = true, .residual = true, .store = true, .in_place = true},
    {.relu = true, .residual = true, .two = true, .store = true},
    {.relu = true, .residual = true, .dual = true, .two = true, .store = true},
    {.relu = true, .residual = true, .dual = true, .store = true, .in_place = true},
    {.residual = true, .dual = true},
    {.residual = true, .store = true, .two = true, .in_place = true},
};
enum { FORM_COUNT = sizeof FORMS / sizeof FORMS[0] };

/* One row, one channel, 7x5 pixels, channels of every alignment, one more than 2048; blocks that
 * end in the middle of a tile, and more of them than a merge has lanes. */
static const shape SHAPES[] = {
    {1, 3, 4, 0},    {35, 1, 4, 0},   {35, 3, 2, 0},   {49, 10, 3, 0},
    {3, 2049, 2, 0}, {70, 16, 1, 0},  {1, 8, 132, 0},  {333, 24, 2, 0},
    {3, 2048, 3, 0}, {130, 40, 5, 0}, {517, 64, 7, 0}, {1100, 33, 132, 0},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof SHAPES[0] };
/* Of packets, too: two columns, the second narrow, with more blocks than a merge has lanes. */
static const shape MANY_BLOCKS = {4300, 72, 132, 0};

LOOP_TEST(shapes_and_forms, SHAPE_COUNT)
{
    /* every shape with every form; the types alternate */
    const shape *s = &SHAPES[_i];
    for (int i = 0; i < FORM_COUNT; i++) {
        run_case(TYPES[(i + _i) % 3], s, &FORMS[i], 1);
    }
}

TEST(large_means)
{
    static const shape large[] = {{777, 16, 4, 1000}, {333, 3, 4, -1000}, {64, 64, 1, 1000}};
    for (int i = 0; i < FORM_COUNT; i++) {
        run_case(LS_F32, &large[i % 3], &FORMS[i], 1);
    }
}

LOOP_TEST(ranks_share_statistics, 4)
{
    static const shape shared[] = {{40, 16, 3, 0}, {7, 3, 1, 0}, {1, 8, 2, 0}, {90, 8, 2, 1000}};
    for (int i = 0; i < FORM_COUNT; i++) {
        run_case(_i == 3 ? LS_F32 : TYPES[i % 3], &shared[_i], &FORMS[i], 3);
    }
}

/* Means of two deviations: with those of x squared, sums that are rounded once leave 1/deviation an
 * error of (1 + 3 * 4) / 2 roundings, within TERMS_LIMIT. */
LOOP_TEST(statistics_from_a_products_sums, 20)
{
    static const shape summed[] = {{70, 16, 4, 2}, {333, 8, 2, -2}, {40, 3, 1, 0.5}};
    for (int i = 0; i < FORM_COUNT; i++) {
        form f = FORMS[i];
        f.sums = true;
        run_seed(_i, TYPES[i % 3], &summed[(_i + i) % 3], &f, i % 2 == 0 ? 1 : 3);
    }
}

static unsigned char *add_bits(unsigned char *bits, const place *p, size_t *bytes)
{
    bits = realloc(bits, *bytes + p->bytes);
    ck_assert_ptr_nonnull(bits);
    place_get(p, bits + *bytes);
    *bytes += p->bytes;
    return bits;
}

/* All output bits as one array; of two ranks if they share statistics. */
static unsigned char *run_bits(ls_dtype type, const shape *s, const form *f, int group,
                               size_t *bytes)
{
    rank r[2];
    unsigned char *bits = NULL;
    *bytes = 0;
    for (int i = 0; i < group; i++) {
        make(&r[i], i, group, type, s, f);
    }
    run_forward(r, group);
    run_backward(r, group);
    for (int i = 0; i < group; i++) {
        ck_assert_int_eq(ls_norm_back_apply(place_stream, &r[i].call), LS_OK);
        const place *out[] = {&r[i].y, &r[i].mask, &r[i].g, &r[i].dy, &r[i].dx, &r[i].dx2};
        for (size_t k = 0; k < sizeof out / sizeof out[0]; k++) {
            bits = add_bits(bits, out[k], bytes);
        }
        for (int side = 0; side < 2; side++) {
            bits = add_bits(bits, &r[i].kept[side], bytes);
            for (int k = 2; k < 6; k++) {
                bits = add_bits(bits, &r[i].parameter[side][k], bytes);
            }
        }
        drop(&r[i]);
    }
    return bits;
}

static void expect_bits(const unsigned char *bits, size_t bytes, ls_dtype type, const shape *s,
                        const form *f, int group, const char *how)
{
    size_t again;
    unsigned char *other = run_bits(type, s, f, group, &again);
    ck_assert_uint_eq(bytes, again);
    ck_assert_msg(memcmp(bits, other, bytes) == 0, "%lldx%d, %d ranks: other bits %s",
                  (long long)s->rows, s->channels, group, how);
    free(other);
}

static bool is_large(const shape *s)
{
    return s->rows * s->channels >= 4000;
}

/* Backwards, and in 50 (large shapes: 2) drawn orders of blocks and threads. */
LOOP_TEST(order_of_blocks_is_nothing, SHAPE_COUNT)
{
    const shape *s = &SHAPES[_i];
    size_t bytes;
    unsigned char *first = run_bits(LS_F16, s, &FORMS[6], 1, &bytes);
    int seeds = is_large(s) ? 2 : 50;
    for (int seed = -1; seed < seeds; seed++) {
        char order[16];
        snprintf(order, sizeof order, seed < 0 ? "backward" : "%d", seed);
        setenv("LS_EMULATED_ORDER", order, 1);
        expect_bits(first, bytes, LS_F16, s, &FORMS[6], 1, order);
        unsetenv("LS_EMULATED_ORDER");
    }
    free(first);
}

/* Each block of 128 rows has one gradient that is not 0: in block b < 16 a large one (2^60 and
 * more, from the eighth on 2^100), in block b + 16 the same with the other sign and, of the first
 * eight, its last bit flipped, 2^37; 3 and 5 in the last two. Added by halves, the lanes leave
 * these last bits alone; 3 and 5 are lost to the large ones whose lanes they share. In other orders
 * the last bits are lost to 2^100. */
static double *cancelling_gradients(int64_t rows, int channels)
{
    double *dy = calloc((size_t)(rows * channels), sizeof *dy);
    ck_assert_ptr_nonnull(dy);
    for (int64_t b = 0; 128 * b < rows; b++) {
        for (int c = 0; c < channels; c++) {
            double large = ldexp(1 + (double)((7 * (b % 16) + c) % 16) / 16, b % 16 < 8 ? 60 : 100);
            double moved = b % 16 < 8 ? 0x1p37 : 0;
            dy[128 * b * channels + c] = b < 16 ? large : b < 32 ? moved - large : b == 32 ? 3 : 5;
        }
    }
    return dy;
}

TEST(lanes_are_added_by_halves)
{
    rank r;
    make(&r, 0, 1, LS_F32, &MANY_BLOCKS, &(form){0});
    free(r.dy_value);
    r.dy_value = cancelling_gradients(MANY_BLOCKS.rows, MANY_BLOCKS.channels);
    place_fill(&r.dy, r.dy_value);
    run_forward(&r, 1);
    run_backward(&r, 1);
    double *bias = place_read(&r.parameter[0][5]);
    for (int c = 0; c < MANY_BLOCKS.channels; c++) {
        PLACE_CHECK(bias[c] == 8 * 0x1p37, "the sum of channel %d is %g", c, bias[c]);
    }
    free(bias);
    drop(&r);
}

/* A NaN or inf affects only its own channel; ReLU passes the NaN and blocks its gradient. */
TEST(non_finite_stays_in_its_channel)
{
    static const shape cases[] = {{50, 16, 2, 0}, {50, 3, 2, 0}};
    const form *f = &FORMS[6];
    for (int n = 0; n < 4; n++) {
        rank r;
        const shape *s = &cases[n / 2];
        make(&r, 0, 1, LS_F32, s, f);
        r.x_value[7 * s->channels + 1] = n % 2 == 0 ? (double)NAN : (double)INFINITY;
        place_fill(&r.x, r.x_value);
        run_forward(&r, 1);
        run_backward(&r, 1);
        ck_assert_int_eq(ls_norm_back_apply(place_stream, &r.call), LS_OK);
        double *y = place_read(&r.y), *dx = place_read(&r.dx), *dx2 = place_read(&r.dx2);
        uint32_t *mask = malloc(r.mask.bytes + 4);
        place_get(&r.mask, mask);
        for (int64_t i = 0; i < r.count; i++) {
            bool bad = i % s->channels == 1;
            ck_assert_int_eq(isfinite(y[i]), !bad);
            ck_assert_int_eq(isfinite(dx[i]), !bad);
            ck_assert(isfinite(dx2[i])); /* closed gates give 0 */
            ck_assert(!bad || (mask[i / 32] >> (i % 32) & 1) == 0);
        }
        free(y);
        free(dx);
        free(dx2);
        free(mask);
        drop(&r);
    }
}

TEST_MAIN("cuda_norm", .timeout_s = 60, .before = place_set_up, .after = place_tear_down)
