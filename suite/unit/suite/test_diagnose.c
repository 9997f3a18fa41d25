/* Each mistake, planted in a right gradient, is named; noise alone is not explained. */
#include "kernels/core/rng.h"
#include "reference/files/safetensors.h"
#include "reference/oracle/oracle.h"
#include "suite/judge/diagnose.h"
#include "suite/unit/run_suite.h"

enum { WORLD = 2, RANKS = 3, BATCH = 4, SIZE = 16, CLASSES = 10, PIXELS = BATCH * 3 * SIZE * SIZE };

static const double noise_share = 1e-5;

/* --clip-grad-norm and --clip-grad-value of the dump; 0: not given. */
static double clip[2];

static int ranks = WORLD; /* of the next scene */

typedef struct scene {
    ls_evidence e;
    ls_dumpfile *file[1];
    int batch[RANKS];
    float *input[RANKS];
    int64_t *target[RANKS];
    double *moment, *noise;
    char path[128];
    ls_oracle_result right;
} scene;

/* A dump that holds the momentum buffer and lr, for the models that read them. */
static void write_moment(scene *s)
{
    ls_safetensors_writer *writer;
    snprintf(s->path, sizeof s->path, "/tmp/ls_diagnose_XXXXXX");
    int descriptor = mkstemp(s->path);
    ck_assert_int_ge(descriptor, 0);
    close(descriptor);
    ck_assert_int_eq(ls_safetensors_create(s->path, &writer), LS_OK);
    ls_safetensors_metadata(writer, "lr", "0.5");
    for (int i = 0; i < 2; i++) {
        ls_safetensors_metadata(writer, i == 0 ? "clip_grad_norm" : "clip_grad_value", "%.17g",
                                clip[i]);
    }
    for (int p = 0; p < s->e.net.param_count; p++) {
        const ls_nettab_param *param = &s->e.net.param[p];
        char name[128];
        snprintf(name, sizeof name, "state/%s/momentum_buffer", param->name);
        float *copy = malloc((size_t)param->count * sizeof *copy);
        for (int64_t i = 0; i < param->count; i++) {
            copy[i] = (float)s->moment[param->offset + i];
        }
        ls_shape shape = {1, {param->count}};
        ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape, copy), LS_OK);
        free(copy);
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    ck_assert_int_eq(ls_dumpfile_open(s->path, &s->file[0]), LS_OK);
    s->e.file = s->file;
}

static double former_grad(int64_t i)
{
    return 0.1 * ls_rng_normal(8, 0, (uint64_t)i);
}

static double former_param(const scene *s, int64_t i)
{
    return s->e.param[i] * (1 + 0.1 * ls_rng_normal(9, 0, (uint64_t)i));
}

/* Moves the dump to <folder>/step000002.rank0.safetensors and adds one of the previous step. */
static void keep_former(scene *s, const char *folder)
{
    ls_safetensors_writer *writer;
    char path[128], name[128];
    snprintf(path, sizeof path, "%s/step000001.rank0.safetensors", folder);
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    for (int p = 0; p < 2 * s->e.net.param_count; p++) {
        const ls_nettab_param *param = &s->e.net.param[p / 2];
        snprintf(name, sizeof name, "%s/%s", p % 2 == 0 ? "param" : "grad", param->name);
        float *copy = malloc((size_t)param->count * sizeof *copy);
        for (int64_t i = 0; i < param->count; i++) {
            int64_t at = param->offset + i;
            copy[i] = (float)(p % 2 == 0 ? former_param(s, at) : former_grad(at));
        }
        ls_shape shape = {1, {param->count}};
        ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape, copy), LS_OK);
        free(copy);
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    ls_dumpfile_close(s->file[0]);
    snprintf(path, sizeof path, "%s/step000002.rank0.safetensors", folder);
    ck_assert_int_eq(rename(s->path, path), 0);
    snprintf(s->path, sizeof s->path, "%s", path);
    ck_assert_int_eq(ls_dumpfile_open(s->path, &s->file[0]), LS_OK);
}

static void drop_former(const char *folder)
{
    char path[128];
    for (int step = 1; step <= 2; step++) {
        snprintf(path, sizeof path, "%s/step%06d.rank0.safetensors", folder, step);
        unlink(path);
    }
    rmdir(folder);
}

static void make_inputs(scene *s)
{
    for (int rank = 0; rank < RANKS; rank++) {
        s->input[rank] = malloc(PIXELS * sizeof(float));
        s->target[rank] = malloc(BATCH * sizeof(int64_t));
        for (int i = 0; i < PIXELS; i++) {
            s->input[rank][i] = ls_rng_normal(1, (uint64_t)rank, (uint64_t)i);
        }
        for (int i = 0; i < BATCH; i++) {
            s->target[rank][i] = ls_rng_below(2, (uint64_t)rank, (uint64_t)i, CLASSES);
        }
    }
}

static scene *make(int stat_ranks)
{
    scene *s = calloc(1, sizeof *s);
    ck_assert_int_eq(ls_nettab_build("resnet8", CLASSES, SIZE, SIZE, &s->e.net), LS_OK);
    int64_t elements = s->e.net.elements;
    s->e.world = ranks;
    s->e.param = malloc((size_t)elements * sizeof(double));
    s->e.grad = malloc((size_t)elements * sizeof(double));
    s->moment = malloc((size_t)elements * sizeof(double));
    s->noise = malloc((size_t)s->e.net.param_count * sizeof(double));
    for (int p = 0; p < s->e.net.param_count; p++) {
        const ls_nettab_param *param = &s->e.net.param[p];
        const ls_nettab_node *node = &s->e.net.node[param->node];
        bool norm = node->kind == LS_NETTAB_NORM;
        double spread = norm ? 0.2 : sqrt(2.0 * node->channels / (double)param->count);
        for (int64_t i = 0; i < param->count; i++) {
            s->e.param[param->offset + i] = (norm && p == node->weight ? 1.0 : 0.0) +
                                            spread * ls_rng_normal(3, (uint64_t)p, (uint64_t)i);
            s->moment[param->offset + i] = 0.05 * ls_rng_normal(4, (uint64_t)p, (uint64_t)i);
        }
    }
    make_inputs(s);
    s->batch[0] = s->batch[1] = s->batch[2] = BATCH;
    s->e.step = (ls_oracle_step){.net = &s->e.net,
                                 .world = ranks,
                                 .accumulate = 1,
                                 .batch = s->batch,
                                 .stat_ranks = stat_ranks,
                                 .input = (const float *const *)s->input,
                                 .target = (const int64_t *const *)s->target,
                                 .param = s->e.param,
                                 .half = LS_BITS_F16,
                                 .loss_scale = 128,
                                 .predivide = 1};
    write_moment(s);
    const ls_oracle_mode mode = {.rank_grads = true, .keep_branches = true};
    ck_assert_int_eq(ls_oracle_run(&s->e.step, &mode, &s->right), LS_OK);
    memcpy(s->e.grad, s->right.grad, (size_t)elements * sizeof(double));
    return s;
}

static void drop(scene *s)
{
    ls_oracle_free(&s->e.net, &s->right);
    for (int rank = 0; rank < RANKS; rank++) {
        free(s->input[rank]);
        free(s->target[rank]);
    }
    ls_dumpfile_close(s->file[0]);
    unlink(s->path);
    free(s->e.param);
    free(s->e.grad);
    free(s->moment);
    free(s->noise);
    free(s);
}

/* The gradient is that of another step. */
static void take(scene *s, const ls_oracle_step *step, const ls_oracle_mode *mode)
{
    ls_oracle_result other;
    ck_assert_int_eq(ls_oracle_run(step, mode, &other), LS_OK);
    memcpy(s->e.grad, other.grad, (size_t)s->e.net.elements * sizeof(double));
    ls_oracle_free(step->net, &other);
}

/* The same step with batch norms over other ranks, and other weights. */
static void take_of(scene *s, int stat_ranks, const double *param)
{
    ls_oracle_step step = s->e.step;
    step.stat_ranks = stat_ranks;
    step.param = param;
    take(s, &step, &(ls_oracle_mode){.rank_grads = true, .forced = &s->right.branches});
}

/* So much of other values is added to the gradient. */
static void add(scene *s, double share, const double *values)
{
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        s->e.grad[i] += share * values[i];
    }
}

/* Adds rounding noise of a correct subject to what the test planted, and asks for the cause. */
static const char *ask(scene *s, char *text, int bytes)
{
    double off2 = 0, all2 = 0;
    for (int p = 0; p < s->e.net.param_count; p++) {
        const ls_nettab_param *param = &s->e.net.param[p];
        double sum2 = 0;
        for (int64_t i = 0; i < param->count; i++) {
            double *grad = &s->e.grad[param->offset + i];
            double right = s->right.grad[param->offset + i];
            *grad += noise_share * 0.1 * *grad * ls_rng_normal(5, (uint64_t)p, (uint64_t)i);
            sum2 += right * right;
            off2 += (*grad - right) * (*grad - right);
        }
        all2 += sum2;
        s->noise[p] = noise_share * sqrt(sum2 / (double)param->count);
    }
    ls_diagnose_wrong wrong = {.evidence = &s->e,
                               .expected = s->right.grad,
                               .rank_grad = s->right.rank_grad,
                               .branches = &s->right.branches,
                               .noise = s->noise,
                               .error = sqrt(off2 / all2),
                               .limit = noise_share};
    ck_assert_int_eq(ls_diagnose_gradient(&wrong, text, bytes), LS_OK);
    return text;
}

/* The line is `words`, but for its residual. */
static void expect(scene *s, const char *words)
{
    char text[320];
    ask(s, text, sizeof text);
    char *residual = strstr(text, " (residual"),
         *end = residual == NULL ? NULL : strchr(residual, ')');
    if (end != NULL) {
        memmove(residual, end + 1, strlen(end));
    }
    ck_assert_str_eq(text, words);
    drop(s);
}

static const struct factor {
    double factor;
    int ranks, accumulate;
    double divisor; /* of the average; 0: the ranks */
    const char *words;
} factors[] = {
    {2, 2, 1, 0, "every gradient is 2.000 x the expected one: summed over ranks, not averaged"},
    {0.5, 2, 1, 0, "every gradient is 0.500 x the expected one: averaged over ranks twice"},
    {128, 2, 1, 0, "every gradient is 128.000 x the expected one: not unscaled"},
    {256, 2, 1, 0, "every gradient is 256.000 x the expected one: neither averaged nor unscaled"},
    {1.0 / 128, 2, 1, 0,
     "every gradient is 0.007812 x the expected one: unscaled twice, or the loss was not scaled"},
    {-1, 2, 1, 0, "every gradient is -1.000 x the expected one: the sign is turned"},
    {2, 3, 1, 0, "every gradient is 2.000 x the expected one: counted twice"},
    {1.5, 2, 1, 3,
     "every gradient is 1.500 x the expected one: divided by the number of ranks that have a "
     "batch, not of all"},
    {3, 2, 1, 3, "every gradient is 3.000 x the expected one: summed over ranks, not averaged"},
    {4, 2, 4, 0, "every gradient is 4.000 x the expected one: micro-steps summed, not averaged"},
    {0.25, 2, 4, 0, "every gradient is 0.250 x the expected one: micro-steps averaged twice"},
    {2.018, 2, 1, 0, "every gradient is 2.018 x the expected one: summed over ranks, not averaged"},
    {2.022, 2, 1, 0, "every gradient is 2.022 x the expected one"},
    {1.37, 2, 1, 0, "every gradient is 1.370 x the expected one"},
    {0, 2, 1, 0, "every gradient is zero: nothing arrived there"},
};

ROWS_TEST(factors_are_named, factors)
{
    const struct factor *row = &factors[_i];
    ranks = row->ranks;
    scene *s = make(1);
    s->e.step.accumulate = row->accumulate;
    s->e.step.divisor = row->divisor;
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        s->e.grad[i] *= row->factor;
    }
    expect(s, row->words);
}

/* Gradients that were clipped to a norm or to values, before they were reported or, divided by the
 * loss scale of 128, while still scaled. */
LOOP_TEST(clipping_is_named, 4)
{
    static const char *const words[] = {
        "every gradient is 0.500 x the expected one: clipped before it was reported",
        "every gradient is 0.500 x the expected one: clipped while still scaled, to the limit "
        "divided by the scale",
        "22851 elements of 23 tensors are limited to 0.01: clipped before it was reported",
        "22851 elements of 23 tensors are limited to 0.01: clipped while still scaled, to the "
        "value divided by the scale"};
    bool by_value = _i >= 2, scaled = _i % 2 == 1;
    scene *s = make(1);
    double norm = ls_diagnose_fit_norm(s->e.net.elements, s->e.grad);
    drop(s);
    clip[by_value] = (by_value ? 0.01 : norm / 2) * (scaled ? 128 : 1);
    s = make(1);
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        double grad = s->e.grad[i];
        s->e.grad[i] = by_value ? fmax(-0.01, fmin(grad, 0.01)) : grad / 2;
    }
    expect(s, words[_i]);
}

/* Weights of known vectors, where there is one way to have them. */
TEST(fits_have_one_solution)
{
    const double a[] = {1, 0, 2, 0.5}, b[] = {1000, 3000, 0, 2000}, c[] = {0, 0, 0, 1e-3};
    double same[4], value[4], weight[3];
    for (int i = 0; i < 4; i++) {
        value[i] = 2 * a[i] - 0.5 * b[i] + 3 * c[i];
        same[i] = a[i] * (1 + 1e-9 * i);
    }
    const double *basis[] = {a, b, c}, *dependent[] = {a, b, same}, *itself[] = {value, a};
    const double rest = 1e-9; /* of FP64's rounding, where the vectors are a million apart */
    ck_assert_double_le(ls_diagnose_fit(4, value, 3, basis, weight), rest);
    ck_assert_double_eq_tol(weight[0], 2, rest);
    ck_assert_double_eq_tol(weight[1], -0.5, rest);
    ck_assert_double_eq_tol(weight[2], 3, 1e3 * rest);
    ck_assert(isinf(ls_diagnose_fit(4, value, 3, dependent, weight)));
    ck_assert(isinf(ls_diagnose_fit(4, value, LS_DIAGNOSE_FIT_MAX + 1, basis, weight)));
    ck_assert_double_le(ls_diagnose_fit(4, value, 2, itself, weight), rest);
    ck_assert_double_eq_tol(weight[1], 0, rest);
}

/* Sums of the ranks' gradients. */
static const struct ranked {
    double share[RANKS]; /* of each rank's own */
    int ranks;
    bool clips; /* each is clipped to a tenth of rank 0's norm */
    const char *words;
} ranked[] = {
    {{0, 1}, 2, false, "every gradient is 1.000 x rank 1's: it was not reduced"},
    {{0.75, 0.25},
     2,
     false,
     "every gradient is 0.750 x rank 0's + 0.250 x rank 1's: the ranks have unequal weights"},
    {{0.5, 64},
     2,
     false,
     "every gradient is 0.500 x rank 0's + 64.000 x rank 1's: shares that came after unscaling: "
     "the reduction was not awaited"},
    {{1 / 3.0, 0, 1 / 3.0},
     3,
     false,
     "every gradient is 0.333 x rank 0's + 0.333 x rank 2's: a rank is missing from the reduction"},
    {{0, 0, 0.01}, 3, false, ""},
    {{0.5, 0.5},
     2,
     true,
     "every gradient is 0.050000 x rank 0's + 0.052027 x rank 1's: each rank's was clipped by its "
     "own norm, before the reduction"},
};

ROWS_TEST(ranks_are_named, ranked)
{
    const struct ranked *row = &ranked[_i];
    ranks = row->ranks;
    scene *s = make(1);
    int64_t elements = s->e.net.elements;
    double norm[RANKS] = {0};
    for (int64_t i = 0; i < row->ranks * elements; i++) {
        double own = (double)s->right.rank_grad[i];
        norm[i / elements] += own * own;
    }
    if (row->clips) {
        drop(s);
        clip[0] = sqrt(norm[0]) / 10;
        s = make(1);
    }
    for (int64_t i = 0; i < elements; i++) {
        s->e.grad[i] = 0;
        for (int k = 0; k < row->ranks; k++) {
            double share = row->clips ? clip[0] / sqrt(norm[k]) : 1;
            s->e.grad[i] += row->share[k] * share * (double)s->right.rank_grad[k * elements + i];
        }
    }
    expect(s, row->words);
}

/* Elements that a race left: one rank's own, one rank's share, nothing; the others are right. */
static void race(scene *s, int from, int to)
{
    for (int p = from; p < to; p++) {
        const ls_nettab_param *param = &s->e.net.param[p];
        for (int64_t i = param->offset; i < param->offset + param->count; i++) {
            double own = s->right.rank_grad[i], other = s->right.rank_grad[s->e.net.elements + i];
            int which = (int)((i - param->offset) * 4 / param->count);
            s->e.grad[i] = which == 0 ? own : which == 1 ? other / 2 : which == 2 ? 0 : other;
        }
    }
}

TEST(races_are_named)
{
    scene *s = make(1);
    race(s, 0, 6);
    expect(s, "layer1.0.bn1.weight and what backward reaches after it (6 of 23 tensors) is made of "
              "some ranks' shares, not everywhere the same ones: the reduction ran before every "
              "gradient was there, or was not awaited");
    s = make(1); /* most of all elements, not all */
    race(s, 5, s->e.net.param_count);
    expect(s, "72436 elements of 18 tensors are made of some ranks' shares, not everywhere the "
              "same ones: the reduction ran before every gradient was there, or was not awaited");
    s = make(1); /* the same places, and other numbers */
    race(s, 0, 6);
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        s->e.grad[i] +=
            s->e.grad[i] == s->right.grad[i] ? 0 : 0.01 * ls_rng_normal(4, 0, (uint64_t)i);
    }
    char text[320];
    ck_assert_ptr_null(strstr(ask(s, text, sizeof text), "some ranks' shares"));
    drop(s);
}

TEST(what_does_not_belong_is_named)
{
    scene *s = make(1);
    add(s, 1, s->moment);
    expect(s, "every gradient is 1.000 x the expected one + 1 x the momentum buffer: an earlier "
              "gradient was not cleared");
    s = make(1);
    add(s, 0.01, s->e.param);
    expect(s, "every gradient is 1.000 x the expected one + 0.01 x the weights: weight decay is in "
              "the gradient already");
}

TEST(places_are_named)
{
    scene *s = make(1);
    for (int p = 0; p < s->e.net.param_count; p++) { /* a vector's remainder left scaled */
        const ls_nettab_param *param = &s->e.net.param[p];
        for (int64_t i = param->count - 3; i < param->count; i++) {
            s->e.grad[param->offset + i] *= 128;
        }
    }
    expect(s, "the last 3 elements of 23 tensors are 128.000 x the expected one: not unscaled");
    s = make(1);
    for (int p = 0; p < s->e.net.param_count; p++) { /* its edge was not reduced */
        int64_t at = s->e.net.param[p].offset + s->e.net.param[p].count - 1;
        s->e.grad[at] = s->right.rank_grad[at];
    }
    expect(s, "the last 1 element of 21 tensors are 1.000 x rank 0's: it was not reduced");
    s = make(1);
    s->e.grad[s->e.net.param[3].offset + 5] *= 65536;
    expect(s, "layer1.0.conv1.weight[5] alone is 65535.948 x the expected one: a bit of its "
              "exponent is flipped");
    s = make(1);
    const ls_nettab_param *conv = &s->e.net.param[6];
    memset(s->e.grad + conv->offset + 64, 0, 64 * sizeof(double));
    expect(s, "layer1.0.conv2.weight[64..127] alone is zero: nothing arrived there");
    s = make(1);
    for (int p = 0; p < s->e.net.param_count; p++) {
        const ls_nettab_param *param = &s->e.net.param[p];
        bool norm = s->e.net.node[param->node].kind == LS_NETTAB_NORM;
        for (int64_t i = 0; norm && i < param->count; i++) {
            s->e.grad[param->offset + i] *= 2;
        }
    }
    expect(s, "the batch-norm weights and biases alone (14 of 14) are 2.000 x the expected one: "
              "summed over ranks, not averaged");
}

/* Wrong elements [from, from + count) of the tensors chosen, from the end if `from` is negative; 0:
 * all of them. */
static const struct place_row {
    const char *name; /* the whole name, or what it ends with; "": any */
    int norm, first;  /* 1: batch norms', 0: others', -1: any; first in backward order */
    int from, count;
    const char *text;
    bool pattern, most;
} place_rows[] = {
    {"fc.bias", -1, 0, 3, 1, "fc.bias[3] alone", true, false},
    {"fc.bias", -1, 0, 0, 5, "fc.bias[0..4] alone", true, false},
    {"fc.bias", -1, 0, 0, 6, "fc.bias alone", true, false},
    {"layer3.0.conv2.weight", -1, 0, 0, 0, "layer3.0.conv2.weight alone", true, false},
    {".weight", -1, 0, -2, 2, "the last 2 elements of 15 tensors", true, false},
    {".weight", -1, 0, 0, 1, "the first 1 element of 15 tensors", true, false},
    {"conv2.weight", -1, 0, 0, 64, "the first 64 elements of 3 tensors", true, false},
    {"conv2.weight", -1, 0, -64, 64, "the last 64 elements of 3 tensors", true, false},
    {"conv2.weight", -1, 0, 0, 65, "195 elements of 3 tensors", false, false},
    {"conv2.weight", -1, 0, 100, 3, "9 elements of 3 tensors", false, false},
    {".weight", 1, 0, 0, 0, "the batch-norm weights alone (7 of 7)", true, false},
    {".bias", 1, 0, 0, 0, "the batch-norm biases alone (7 of 7)", true, false},
    {"", 1, 0, 0, 0, "the batch-norm weights and biases alone (14 of 14)", true, false},
    {"", 0, 0, 0, 0, "74810 elements of 9 tensors", false, true},
    {".weight", 0, 0, 0, 0, "the convolution and linear weights alone (8 of 8)", true, true},
    {".bias", -1, 0, 0, 0, "the biases alone (8 of 8)", true, false},
    {"", -1, 3, 0, 0, "layer3.0.bn2.bias and what backward reaches after it (20 of 23 tensors)",
     true, true},
    {"", -1, 19, 0, 0, "layer1.0.conv1.weight and what backward reaches after it (4 of 23 tensors)",
     true, false},
    {"", -1, 20, 0, 0, "464 elements of 3 tensors", false, false},
    {"", -1, 0, 0, 0, "75290 elements of 23 tensors", false, true},
    {"", -1, 99, 0, 0, "", false, false},
};

static bool is_chosen(const ls_nettab *net, const struct place_row *row, int order)
{
    int params[LS_NETTAB_PARAMS_MAX];
    ls_evidence_backward_order(net, params);
    const ls_nettab_param *param = &net->param[params[order]];
    size_t length = strlen(param->name), ends = strlen(row->name);
    bool norm = net->node[param->node].kind == LS_NETTAB_NORM;
    return order >= row->first && (row->norm < 0 || row->norm == norm) && length >= ends &&
           strcmp(param->name + length - ends, row->name) == 0;
}

ROWS_TEST(places_have_names, place_rows)
{
    const struct place_row *row = &place_rows[_i];
    ls_evidence e = {0};
    ck_assert_int_eq(ls_nettab_build("resnet8", CLASSES, SIZE, SIZE, &e.net), LS_OK);
    double noise[LS_NETTAB_PARAMS_MAX];
    double *expected = calloc((size_t)e.net.elements, sizeof *expected);
    e.grad = calloc((size_t)e.net.elements, sizeof *e.grad);
    int params[LS_NETTAB_PARAMS_MAX], tensors = 0;
    int64_t wrong = 0;
    ls_evidence_backward_order(&e.net, params);
    for (int64_t i = 0; i < e.net.elements; i++) {
        e.grad[i] = 4; /* at the limit */
    }
    for (int p = 0; p < e.net.param_count; p++) {
        noise[p] = 1;
        const ls_nettab_param *param = &e.net.param[params[p]];
        int64_t from = row->from < 0 ? param->count + row->from : row->from;
        int64_t count = row->count == 0 ? param->count : row->count;
        tensors += is_chosen(&e.net, row, p);
        for (int64_t i = from; i < from + count && is_chosen(&e.net, row, p); i++, wrong++) {
            e.grad[param->offset + i] = i % 2 == 0 ? 4.1 : -4.1;
        }
    }
    ls_diagnose_wrong w = {.evidence = &e, .expected = expected, .noise = noise};
    ls_diagnose_place place;
    ls_diagnose_place_find(&w, &place);
    ck_assert_msg(strcmp(place.text, row->text) == 0, "row %d: '%s'", _i, place.text);
    ck_assert(place.pattern == row->pattern && place.most == row->most);
    ck_assert(place.count == wrong && place.tensors == tensors);
    for (int64_t i = 0; i < place.count; i++) {
        ck_assert_double_gt(fabs(e.grad[place.index[i]]), 4);
    }
    ls_diagnose_place_free(&place);
    free(expected);
    free(e.grad);
}

TEST(another_step_is_named)
{
    scene *s = make(WORLD);
    take_of(s, 1, s->e.param);
    expect(
        s,
        "the gradient is that of batch-norm statistics of each rank alone: SyncBN was not in use");
    s = make(1);
    take_of(s, WORLD, s->e.param);
    expect(
        s,
        "the gradient is that of batch-norm statistics over all ranks: SyncBN was not requested");
    s = make(1);
    double *before = malloc((size_t)s->e.net.elements * sizeof *before);
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        before[i] = s->e.param[i] + 0.5 * s->moment[i];
    }
    take_of(s, 1, before);
    free(before);
    expect(s, "the gradient is that of the weights of the step before");
}

LOOP_TEST(batch_norms_are_named, 8)
{
    static const struct {
        ls_norm_form form;
        int stat_ranks;
        const char *words;
    } row[] = {{LS_NORM_EPSILON_1E3, 1,
                "the gradient is that of batch norm with an epsilon of 1e-3, not 1e-5"},
               {LS_NORM_EPSILON_NONE, 1, "the gradient is that of batch norm without its epsilon"},
               {LS_NORM_EPSILON_OUTSIDE, 1,
                "the gradient is that of batch norm with epsilon added to the deviation"},
               {LS_NORM_MOMENTS_IN_HALF, 1,
                "the gradient is that of batch norm with mean and variance kept in half"},
               {LS_NORM_VARIANCES_AVERAGED, WORLD,
                "the gradient is that of SyncBN that averages the ranks' variances and forgets the "
                "distance of their means"},
               {LS_NORM_OWN_SUMS, WORLD,
                "the gradient is that of SyncBN whose backward sums over each rank's own batch"},
               {LS_NORM_OWN_MOMENTS, WORLD,
                "the gradient is that of SyncBN that normalises by each rank's own moments, "
                "backward by sums of all ranks"},
               {LS_NORM_OWN_MOMENTS_COUNT, WORLD,
                "the gradient is that of SyncBN that normalises by each rank's own moments, "
                "backward by sums of all ranks over one rank's count"}};
    scene *s = make(row[_i].stat_ranks);
    ls_oracle_mode mode = {.forced = &s->right.branches, .norm = row[_i].form};
    take(s, &s->e.step, &mode);
    expect(s, row[_i].words);
}

TEST(shortcuts_are_named)
{
    scene *s = make(1);
    ls_nettab *net = malloc(sizeof *net);
    *net = s->e.net;
    for (int i = 0; i < net->node_count; i++) {
        net->node[i].pad -= net->node[i].kind == LS_NETTAB_SHORTCUT;
    }
    ls_oracle_step step = s->e.step;
    step.net = net;
    ls_oracle_mode mode = {.forced = &s->right.branches};
    take(s, &step, &mode);
    free(net);
    expect(s, "the gradient is that of shortcuts that take the odd pixels, not the even ones");
}

/* Another gradient and other weights in a dump of the step before. */
TEST(the_step_before_is_named)
{
    scene *s = make(1);
    char folder[] = "/tmp/ls_diagnose_XXXXXX", text[320];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    keep_former(s, folder);
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        s->e.grad[i] += (double)(float)former_grad(i);
    }
    ask(s, text, sizeof text);
    ck_assert_msg(strstr(text, "1 x the step before's: it was not cleared") != NULL, "%s", text);
    memcpy(s->e.grad, s->right.grad, (size_t)s->e.net.elements * sizeof(double));
    ask(s, text, sizeof text);
    ck_assert_str_eq(text, "");
    double *cast = malloc((size_t)s->e.net.elements * sizeof *cast);
    for (int p = 0; p < s->e.net.param_count; p++) {
        const ls_nettab_param *param = &s->e.net.param[p];
        bool norm = s->e.net.node[param->node].kind == LS_NETTAB_NORM;
        for (int64_t i = param->offset; i < param->offset + param->count; i++) {
            cast[i] = norm ? s->e.param[i] : (double)(float)former_param(s, i);
        }
    }
    take_of(s, 1, cast);
    free(cast);
    ask(s, text, sizeof text);
    ck_assert_msg(strstr(text, "their cast copies are stale") != NULL, "%s", text);
    drop_former(folder);
    drop(s);
}

/* Two micro-steps with other shares than their own; the batch's halves are the micro-steps. */
static const struct micro {
    double share[2];
    const char *words;
} micros[] = {
    {{0, 1}, "every gradient is 0.500 x that of the last micro-step alone: the sum is overwritten"},
    {{1, 0.001}, "every gradient has 0.001 of the share of micro-step 1: its loss is missing"},
    {{1 / 128.0, 1},
     "every gradient has 0.007813 of the share of micro-step 0: its loss was not scaled"},
    {{1, 2},
     "every gradient has 2 of the share of micro-step 1: its loss was unscaled by another scale "
     "than its own"},
    {{1, 1.3}, ""},
};

ROWS_TEST(micro_steps_are_named, micros)
{
    const struct micro *row = &micros[_i];
    scene *s = make(1);
    int halves[WORLD] = {BATCH / 2, BATCH / 2};
    const float *input[2][WORLD];
    const int64_t *target[2][WORLD];
    ls_oracle_step both = s->e.step;
    ls_oracle_result one[2], right;
    both.batch = halves;
    for (int m = 0; m < 2; m++) {
        ls_oracle_step half = both;
        for (int rank = 0; rank < WORLD; rank++) {
            input[m][rank] = s->input[rank] + m * PIXELS / 2;
            target[m][rank] = s->target[rank] + m * BATCH / 2;
        }
        half.input = input[m];
        half.target = target[m];
        ck_assert_int_eq(ls_oracle_run(&half, &(ls_oracle_mode){0}, &one[m]), LS_OK);
    }
    both.accumulate = 2;
    ls_oracle_mode own = {.keep_branches = true, .rank_grads = true};
    ck_assert_int_eq(ls_oracle_run(&both, &own, &right), LS_OK);
    ls_oracle_free(&s->e.net, &s->right);
    s->right = right;
    s->e.step = both;
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        s->e.grad[i] = (row->share[0] * one[0].grad[i] + row->share[1] * one[1].grad[i]) / 2;
    }
    for (int m = 0; m < 2; m++) {
        ls_oracle_free(&s->e.net, &one[m]);
    }
    expect(s, row->words);
}

/* A step that computes in another type than its level says, or at O0 in one. */
static const struct fewer {
    int level;
    ls_bits_type half;
    const char *words;
} fewer[] = {
    {0, LS_BITS_F16,
     "the gradient errs as a step with 10 bits (fp16, TF32) would (9e-04 against 9e-04): something "
     "computes with fewer bits than the level says"},
    {0, LS_BITS_BF16,
     "the gradient errs as a step with 7 bits (bf16) would (7e-03 against 7e-03): something "
     "computes with fewer bits than the level says"},
    {2, LS_BITS_BF16,
     "the gradient errs as a step with 7 bits (bf16) would (7e-03 against 7e-03): something "
     "computes with fewer bits than the level says"},
    {2, LS_BITS_F16, ""},
};

ROWS_TEST(fewer_bits_are_named, fewer)
{
    scene *s = make(1);
    s->e.step.level = fewer[_i].level;
    ls_oracle_step step = s->e.step;
    step.level = step.level == 0 ? 1 : step.level;
    step.half = fewer[_i].half;
    ls_oracle_mode mode = {.ideal = true, .noise_seed = 3, .forced = &s->right.branches};
    take(s, &step, &mode);
    expect(s, fewer[_i].words);
}

TEST(noise_is_not_explained)
{
    scene *s = make(1);
    for (int64_t i = 0; i < s->e.net.elements; i++) {
        s->e.grad[i] = 5 * ls_rng_normal(6, 0, (uint64_t)i);
    }
    char text[320];
    ck_assert_str_eq(ask(s, text, sizeof text), "");
    drop(s);
    s = make(1); /* right: nothing to explain */
    ck_assert_str_eq(ask(s, text, sizeof text), "");
    drop(s);
}

TEST_MAIN("diagnose", .timeout_s = 60)
