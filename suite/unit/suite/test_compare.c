/* The comparison on dumps that this test writes: steps of a subject whose rounding noise is not the
 * ideal's must pass at every level, and each planted error must fail, with its cause where one is
 * promised. */
#include <cjson/cJSON.h>
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/half.h"
#include "kernels/core/path.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "reference/oracle/ideal_error.h"
#include "reference/oracle/oracle.h"
#include "reference/files/safetensors.h"
#include "suite/judge/compare.h"
#include "suite/judge/judges.h"
#include "suite/unit/run_suite.h"

enum { WORLD = 2, BATCH = 4, SIZE = 16, CLASSES = 10 };

/* The planted faults. */
typedef enum plant {
    CLEAN,
    DOUBLED,
    ZERO_BLOCK,
    RANK_MISSING,
    TURNED_BRANCH,
    EDGE_NOT_REDUCED,
    ONE_RANK_DIFFERS,
    WRONG_STEP,
    WRONG_LOSS,
    WRONG_LOGITS,
    ELEMENT_OFF, /* by 16 units of f32: seen by local/ alone */
    EXACT,       /* FP64 given as half: nothing was rounded */
    SKIPPED_BUT_MOVED,
    SKIPPED,
    SKIPPED_FINITE,
    UNSCALED_TWICE,
    MOMENTUM_OFF,     /* of the running statistics: 0.11 */
    BIASED_VARIANCE,  /* n/(n-1) is missing: 1 + 1/64 in the last batch norms */
    OTHER_STATISTICS, /* rank 1 holds rank 0's */
    COUNTER_OFF,
} plant;

typedef struct subject {
    ls_nettab net;
    ls_oracle_step step;
    int batch[WORLD];
    float *input[WORLD];
    int64_t *target[WORLD];
    double *param;
    ls_oracle_result result;
    float *local[WORLD];
    float *grad;
    const char *level;
    char folder[64];
    char path[WORLD][128];
} subject;

/* Parameters in the type that the level holds. */
static ls_bits_type held_type(const subject *s, int param)
{
    bool norm = s->net.node[s->net.param[param].node].kind == LS_NETTAB_NORM;
    return s->step.level == 3 || (s->step.level == 2 && !norm) ? LS_BITS_F16 : LS_BITS_F32;
}

static void make_data(subject *s)
{
    for (int rank = 0; rank < WORLD; rank++) {
        int64_t values = BATCH * 3 * SIZE * SIZE;
        s->input[rank] = malloc((size_t)values * sizeof(float));
        s->target[rank] = malloc(BATCH * sizeof(int64_t));
        for (int64_t i = 0; i < values; i++) {
            s->input[rank][i] = ls_rng_normal(1, (uint64_t)rank, (uint64_t)i);
        }
        for (int64_t i = 0; i < BATCH; i++) {
            s->target[rank][i] = ls_rng_below(2, (uint64_t)rank, (uint64_t)i, CLASSES);
        }
    }
    s->param = malloc((size_t)s->net.elements * sizeof(double));
    for (int k = 0; k < s->net.param_count; k++) {
        const ls_nettab_param *param = &s->net.param[k];
        const ls_nettab_node *node = &s->net.node[param->node];
        bool norm = node->kind == LS_NETTAB_NORM;
        double spread = norm ? 0.2 : sqrt(2.0 * node->channels / (double)param->count);
        for (int64_t i = 0; i < param->count; i++) {
            double value = (norm && k == node->weight ? 1.0 : 0.0) +
                           spread * ls_rng_normal(3, (uint64_t)k, (uint64_t)i);
            s->param[param->offset + i] = ls_bits_round(held_type(s, k), value);
        }
    }
}

/* A correct subject: at O0 f32 sums of the ranks' gradients with f32 noise; else an ideal with
 * other noise. */
static void run_subject(subject *s)
{
    ls_oracle_mode mode = {.ideal = true, .noise_seed = 11, .keep_branches = true};
    ck_assert_int_eq(ls_oracle_run(&s->step, &mode, &s->result), LS_OK);
    s->grad = malloc((size_t)s->net.elements * sizeof(float));
    ls_oracle_mode ranks_mode = {.forced = &s->result.branches, .rank_grads = true};
    ls_oracle_result ranks;
    ck_assert_int_eq(ls_oracle_run(&s->step, &ranks_mode, &ranks), LS_OK);
    for (int rank = 0; rank < WORLD; rank++) {
        s->local[rank] = malloc((size_t)s->net.elements * sizeof(float));
        memcpy(s->local[rank], ranks.rank_grad + rank * s->net.elements,
               (size_t)s->net.elements * sizeof(float));
    }
    for (int64_t i = 0; i < s->net.elements; i++) {
        s->grad[i] = (float)s->result.grad[i];
        if (s->step.level == 0) {
            s->grad[i] = (s->local[0][i] + s->local[1][i]) * 0.5f;
        }
    }
    ls_oracle_free(&s->net, &ranks);
}

/* Of each level one, for all tests; and the oracle's results for it. */
static subject *made[4];
static char cache[] = "/tmp/ls_compare_cache_XXXXXX";

static subject *run_level(const char *level)
{
    subject *s = calloc(1, sizeof *s);
    s->level = level;
    s->batch[0] = s->batch[1] = BATCH;
    ck_assert_int_eq(ls_nettab_build("resnet8", CLASSES, SIZE, SIZE, &s->net), LS_OK);
    s->step = (ls_oracle_step){.net = &s->net,
                               .world = WORLD,
                               .accumulate = 1,
                               .batch = s->batch,
                               .stat_ranks = 1,
                               .input = (const float *const *)s->input,
                               .target = (const int64_t *const *)s->target,
                               .level = level[1] - '0',
                               .half = LS_BITS_F16,
                               .loss_scale = 128,
                               .predivide = 1};
    make_data(s);
    s->step.param = s->param;
    run_subject(s);
    return s;
}

static const char *const levels[] = {"O0", "O1", "O2", "O3"};

static void run_levels(void)
{
    ck_assert_ptr_nonnull(mkdtemp(cache));
    for (int i = 0; i < 4; i++) {
        made[i] = run_level(levels[i]);
    }
    /* OpenMP's threads end: the tests' processes, which are forked, have none of them */
    ck_assert_int_eq(omp_pause_resource_all(omp_pause_hard), 0);
}

static void free_levels(void)
{
    for (int i = 0; i < 4; i++) {
        for (int rank = 0; rank < WORLD; rank++) {
            free(made[i]->input[rank]);
            free(made[i]->target[rank]);
            free(made[i]->local[rank]);
        }
        free(made[i]->param);
        free(made[i]->grad);
        ls_oracle_free(&made[i]->net, &made[i]->result);
        free(made[i]);
    }
    ls_path_remove_tree(cache);
}

/* The level's, with a gradient and a folder for one test. */
static subject *make_subject(const char *level)
{
    subject *s = malloc(sizeof *s);
    *s = *made[level[1] - '0'];
    size_t bytes = (size_t)s->net.elements * sizeof *s->grad;
    s->grad = memcpy(malloc(bytes), s->grad, bytes);
    snprintf(s->folder, sizeof s->folder, "/tmp/ls_compare_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(s->folder));
    return s;
}

static void free_subject(subject *s)
{
    ls_path_remove_tree(s->folder);
    free(s->grad);
    free(s);
}

static const ls_nettab_param *param_named(const subject *s, const char *name)
{
    int index = ls_nettab_find_param(&s->net, name);
    ck_assert_int_ge(index, 0);
    return &s->net.param[index];
}

/* Changes the gradient as the broken subject would have it. */
static void plant_gradient(subject *s, plant planted)
{
    const ls_nettab_param *conv = param_named(s, "layer2.0.conv2.weight");
    const ls_nettab_param *last = param_named(s, "layer3.0.conv1.weight");
    for (int64_t i = 0; i < s->net.elements; i++) {
        if (planted == DOUBLED) {
            s->grad[i] *= 2;
        } else if (planted == RANK_MISSING) {
            s->grad[i] = s->local[0][i];
        } else if (planted == EXACT) {
            s->grad[i] = (s->local[0][i] + s->local[1][i]) * 0.5f;
        } else if (planted == UNSCALED_TWICE) {
            s->grad[i] /= 128;
        }
    }
    if (planted == ZERO_BLOCK) {
        memset(s->grad + conv->offset + 640, 0, 64 * sizeof(float));
    } else if (planted == EDGE_NOT_REDUCED) {
        int64_t at = last->offset + last->count - 8;
        memcpy(s->grad + at, s->local[1] + at, 8 * sizeof(float));
    } else if (planted == ELEMENT_OFF) {
        s->grad[conv->offset + 77] *= 1 + 0x1p-20f;
    }
}

static void add_half_or_float(ls_safetensors_writer *writer, const char *name, ls_bits_type type,
                              const ls_shape *shape, const double *value)
{
    if (type == LS_BITS_F32) {
        float *copy = malloc((size_t)ls_shape_count(shape) * sizeof *copy);
        for (int64_t i = 0; i < ls_shape_count(shape); i++) {
            copy[i] = (float)value[i];
        }
        ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, shape, copy), LS_OK);
        free(copy);
        return;
    }
    uint16_t *copy = malloc((size_t)ls_shape_count(shape) * sizeof *copy);
    for (int64_t i = 0; i < ls_shape_count(shape); i++) {
        copy[i] = ls_half_f32_to_fp16((float)value[i]);
    }
    ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F16, shape, copy), LS_OK);
    free(copy);
}

/* First step of SGD, momentum 0.9, weight decay 1e-4, lr 0.05, in f32. */
static void add_params(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
{
    for (int k = 0; k < s->net.param_count; k++) {
        const ls_nettab_param *param = &s->net.param[k];
        ls_shape shape = {.rank = 1, .dim = {param->count}};
        const double *value = s->param + param->offset;
        float *grad = malloc((size_t)param->count * sizeof *grad);
        double *next = malloc((size_t)param->count * sizeof *next);
        memcpy(grad, s->grad + param->offset, (size_t)param->count * sizeof *grad);
        for (int64_t i = 0; i < param->count; i++) {
            float lr = planted == WRONG_STEP && k == 3 && i == 5 ? 0.0501f : 0.05f;
            float p = (float)value[i], d = grad[i] + 1e-4f * p;
            next[i] = planted == SKIPPED || planted == SKIPPED_FINITE ? p : p - lr * d;
        }
        if (planted == ONE_RANK_DIFFERS && rank == 1 && k == 5) {
            grad[1] = nextafterf(grad[1], 1);
        }
        if (planted == SKIPPED || planted == SKIPPED_BUT_MOVED) {
            grad[0] = INFINITY;
        }
        char name[96];
        snprintf(name, sizeof name, "param/%s", param->name);
        add_half_or_float(writer, name, held_type(s, k), &shape, value);
        snprintf(name, sizeof name, "next/%s", param->name);
        add_half_or_float(writer, name, s->step.level == 3 ? LS_BITS_F16 : LS_BITS_F32, &shape,
                          next);
        snprintf(name, sizeof name, "grad/%s", param->name);
        ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape, grad), LS_OK);
        snprintf(name, sizeof name, "local/%s", param->name);
        if (s->step.level == 0) {
            ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape,
                                                     s->local[rank] + param->offset),
                             LS_OK);
        }
        free(grad);
        free(next);
    }
}

/* This rank's bits of each ReLU, NCHW. */
static void add_branches(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
{
    for (int b = 0; b < s->net.branch_count; b++) {
        const ls_nettab_node *node = &s->net.node[s->net.branch_node[b]];
        int64_t plane = node->height * node->width, channels = node->channels;
        int64_t count = BATCH * channels * plane, bytes = (count + 7) / 8;
        const uint8_t *open = s->result.branches.open[b] + rank * count;
        uint8_t *bits = calloc((size_t)bytes, 1);
        for (int64_t i = 0; i < count; i++) {
            int64_t n = i / (channels * plane), c = i / plane % channels, p = i % plane;
            bits[i / 8] |= (uint8_t)(open[(n * plane + p) * channels + c] << (i % 8));
        }
        if (planted == TURNED_BRANCH && b == 2 && rank == 1) {
            bits[17] ^= 0xff; /* of eight neighbours some are far from a tie */
        }
        char name[32];
        snprintf(name, sizeof name, "branch/%03d", b);
        ls_shape shape = {.rank = 1, .dim = {bytes}};
        ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_U8, &shape, bits), LS_OK);
        free(bits);
    }
}

static void add_one(ls_safetensors_writer *writer, const char *prefix, const char *norm,
                    const char *what, const ls_shape *shape, const double *value)
{
    char name[128];
    snprintf(name, sizeof name, "%s/%s.%s", prefix, norm, what);
    add_half_or_float(writer, name, LS_BITS_F32, shape, value);
}

/* Running statistics of a first step: from 0 and 1, with the subject's batch statistics. */
static void add_buffers(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
{
    double momentum = planted == MOMENTUM_OFF ? 0.11 : 0.1;
    int from = planted == OTHER_STATISTICS ? 0 : rank;
    for (int i = 0; i < s->net.node_count; i++) {
        const ls_nettab_node *node = &s->net.node[i];
        if (node->kind != LS_NETTAB_NORM) {
            continue;
        }
        const double *mean = s->result.stats + ls_oracle_stats_of(&s->step, i);
        const double *variance = mean + WORLD * node->channels;
        double old[2][64], new[2][64], count = BATCH * node->height * node->width;
        double unbiased = planted == BIASED_VARIANCE ? 1 : count / (count - 1);
        for (int c = 0; c < node->channels; c++) {
            old[0][c] = 0;
            old[1][c] = 1;
            new[0][c] = momentum *mean[from * node->channels + c];
            new[1][c] = 1 - momentum + momentum *unbiased *variance[from * node->channels + c];
        }
        char norm[64];
        snprintf(
            norm, sizeof norm, "%.*s",
            (int)(strrchr(s->net.param[node->weight].name, '.') - s->net.param[node->weight].name),
            s->net.param[node->weight].name);
        ls_shape shape = {.rank = 1, .dim = {node->channels}}, scalar = {0};
        add_one(writer, "last_buffer", norm, "running_mean", &shape, old[0]);
        add_one(writer, "last_buffer", norm, "running_var", &shape, old[1]);
        add_one(writer, "buffer", norm, "running_mean", &shape, new[0]);
        add_one(writer, "buffer", norm, "running_var", &shape, new[1]);
        char name[128];
        int64_t counter[] = {7, planted == COUNTER_OFF ? 7 : 8};
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%sbuffer/%s.num_batches_tracked", k == 0 ? "last_" : "",
                     norm);
            ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_I64, &scalar, &counter[k]),
                             LS_OK);
        }
    }
}

static float loss_of(const float *logits, const int64_t *target)
{
    double loss = 0;
    for (int n = 0; n < BATCH; n++) {
        double sum = 0;
        for (int c = 0; c < CLASSES; c++) {
            sum += exp(logits[n * CLASSES + c]);
        }
        loss += (log(sum) - logits[n * CLASSES + target[n]]) / BATCH;
    }
    return (float)loss;
}

static void add_results(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
{
    float logits[BATCH * CLASSES];
    for (int i = 0; i < BATCH * CLASSES; i++) {
        logits[i] = (float)s->result.logits[rank * BATCH * CLASSES + i];
    }
    logits[3] += planted == WRONG_LOGITS ? 0.1f : 0;
    float loss = loss_of(logits, s->target[rank]);
    loss *= planted == WRONG_LOSS ? 1.00001f : 1;
    ls_shape input = {.rank = 4, .dim = {BATCH, 3, SIZE, SIZE}},
             target = {.rank = 1, .dim = {BATCH}};
    ls_shape rows = {.rank = 2, .dim = {BATCH, CLASSES}}, scalar = {0};
    ls_status status = ls_safetensors_add_copy(writer, "input", LS_F32, &input, s->input[rank]);
    status |= ls_safetensors_add_copy(writer, "target", LS_I64, &target, s->target[rank]);
    status |= ls_safetensors_add_copy(writer, "logits", LS_F32, &rows, logits);
    status |= ls_safetensors_add_copy(writer, "loss", LS_F32, &scalar, &loss);
    ck_assert_int_eq(status, LS_OK);
}

static void write_dump(subject *s, plant planted, bool branches, int rank)
{
    ls_safetensors_writer *writer;
    snprintf(s->path[rank], sizeof s->path[rank], "%s/rank%d", s->folder, rank);
    ck_assert_int_eq(ls_safetensors_create(s->path[rank], &writer), LS_OK);
    add_results(s, writer, planted, rank);
    add_params(s, writer, planted, rank);
    if (branches) {
        add_branches(s, writer, planted, rank);
    }
    add_buffers(s, writer, planted, rank);
    bool skipped = planted == SKIPPED || planted == SKIPPED_FINITE || planted == SKIPPED_BUT_MOVED;
    ls_safetensors_metadata(writer, "step", "1");
    ls_safetensors_metadata(writer, "opt_level", "%s", s->level);
    ls_safetensors_metadata(writer, "world_size", "%d", WORLD);
    ls_safetensors_metadata(writer, "loss_scale", "128");
    ls_safetensors_metadata(writer, "skipped", "%s", skipped ? "true" : "false");
    ls_safetensors_metadata(writer, "lr", "%.9g", (double)0.05f);
    ls_safetensors_metadata(writer, "optimizer", "sgd");
    ls_safetensors_metadata(writer, "momentum", "0.9");
    ls_safetensors_metadata(writer, "weight_decay", "1e-4");
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

static ls_compare_verdict judge(const char *level, plant planted, bool branches)
{
    subject *s = make_subject(level);
    plant_gradient(s, planted);
    const char *path[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        write_dump(s, planted, branches, rank);
        path[rank] = s->path[rank];
    }
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict verdict;
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &verdict), LS_OK);
    free_subject(s);
    return verdict;
}

START_TEST(clean_subjects_pass)
{
    ls_compare_verdict v = judge(levels[_i], CLEAN, true);
    ck_assert_msg(v.code == LS_COMPARE_PASS, "%s: %s", levels[_i], v.evidence);
    ck_assert(v.next_judged && v.buffers_judged);
    ck_assert_int_eq(v.reduce_judged, _i == 0);
    ck_assert_double_gt(v.error, 0);
}
END_TEST

typedef struct plant_row {
    plant planted;
    const char *tensor, *evidence, *cause; /* "" where none is promised */
    bool single_only;                      /* half has no local/ here */
} plant_row;

static const plant_row plants[] = {
    {DOUBLED, "fc.bias", "rel=", "every gradient is 2.000 x the expected one", false},
    {ZERO_BLOCK, "layer2.0.conv2.weight", "elements 640..703", "weight[640..703] alone is zero",
     false},
    {RANK_MISSING, "fc.bias", "rel=", "1.000 x rank 0's", false},
    {TURNED_BRANCH, "", "branch/002", "", false},
    {EDGE_NOT_REDUCED, "layer3.0.conv1.weight", "elements 18424..18431", "1.000 x rank 1's", false},
    {ONE_RANK_DIFFERS, "layer1.0.bn1.bias", "rank=1", "ranks apply different gradients", false},
    {WRONG_STEP, "layer1.0.conv1.weight", "next/", "", false},
    {WRONG_LOSS, "", "cross entropy", "", false},
    {WRONG_LOGITS, "", "logits rel=", "", false},
    {ELEMENT_OFF, "layer2.0.conv2.weight", "element 77", "", true},
    {SKIPPED_BUT_MOVED, "conv1.weight", "a skipped step", "", false},
    {MOMENTUM_OFF, "", "running_mean after the step", "", false},
    {BIASED_VARIANCE, "", "running_var after the step", "", false},
    {OTHER_STATISTICS, "", "running_mean after the step", "", false},
    {COUNTER_OFF, "", "num_batches_tracked went from 7 to 7 in 1", "", false},
    {UNSCALED_TWICE, "fc.bias", "rel=", "unscaled twice", false},
};

START_TEST(plants_are_caught)
{
    const plant_row *row = &plants[_i / 2];
    const char *level = _i % 2 == 0 ? "O0" : "O2";
    if (row->single_only && _i % 2 == 1) {
        return;
    }
    ls_compare_verdict v = judge(level, row->planted, true);
    ck_assert_msg(v.code == LS_COMPARE_FAIL, "%s: %s", level, v.evidence);
    ck_assert_msg(strstr(v.evidence, row->evidence) != NULL, "%s: %s", level, v.evidence);
    ck_assert_msg(strstr(v.cause, row->cause) != NULL, "%s: '%s' (%s)", level, v.cause, v.evidence);
    ck_assert_msg(row->tensor[0] == '\0' || strcmp(v.tensor, row->tensor) == 0, "%s: tensor %s: %s",
                  level, v.tensor, v.evidence);
}
END_TEST

START_TEST(weak_evidence_is_not_a_pass)
{
    ls_compare_verdict v = judge("O2", EXACT, true);
    ck_assert_msg(v.code == LS_COMPARE_WEAK, "%s", v.evidence);
    ck_assert_ptr_nonnull(strstr(v.evidence, "half was not in use"));
    v = judge("O2", SKIPPED, true);
    ck_assert_msg(v.code == LS_COMPARE_WEAK, "%s", v.evidence);
    ck_assert_ptr_nonnull(strstr(v.evidence, "no step taken"));
    ck_assert(v.next_judged && v.elements == made[2]->net.elements); /* none of them moved */
    v = judge("O2", SKIPPED_FINITE, true);
    ck_assert_msg(v.code == LS_COMPARE_WEAK, "%s", v.evidence);
    ck_assert_ptr_nonnull(strstr(v.evidence, "no step taken, though the gradient is finite"));
}
END_TEST

/* Without records the whole gradient only, on FP64's own branches; a doubled one is still seen. */
START_TEST(coarse_without_records)
{
    ls_compare_verdict v = judge("O0", CLEAN, false);
    ck_assert(v.coarse);
    ck_assert_msg(v.code != LS_COMPARE_FAIL, "%s", v.evidence);
    v = judge("O0", DOUBLED, false);
    ck_assert_msg(v.code == LS_COMPARE_FAIL, "%s", v.evidence);
}
END_TEST

/* What a job's command says that its dumps do not. */
static const struct facts_row {
    const char *extra, *dialect;
    ls_compare_facts facts;
} facts_rows[] = {
    {"", "apex", {0}},
    {"", "torch", {.dialect_torch = true, .sends_buffers = true}},
    {"--broadcast-buffers=False", "torch", {.dialect_torch = true}},
    {"--broadcast-buffers=True", "apex", {.sends_buffers = true}},
    {"--predivide=2.5", "apex", {.predivide = 2.5}},
    {"--allreduce-fp32", "apex", {.reduce = "fp32"}},
    {"--compress=fp16", "apex", {.reduce = "fp16"}},
    {"--comm-hook=bf16_compress", "apex", {.reduce = "bf16"}},
    {"--comm-hook=powersgd", "apex", {0}},
    {"--join=initial", "apex", {.joins = true, .divisor = 3}},
    {"--join=actual", "apex", {.joins = true}},
    {"--no-sync=False", "apex", {.reduces_each = true}},
    {"--nesterov", "apex", {.nesterov = true}},
    {"--fuse", "apex", {.fused = true}},
};

START_TEST(options_become_facts)
{
    const struct facts_row *row = &facts_rows[_i];
    for (int more = 0; more < 2; more++) {
        ls_spec spec = {.world = 3, .half = "bf16", .sync_bn = more == 1, .fuse = more == 1};
        snprintf(spec.extra, sizeof spec.extra, "%s", row->extra);
        snprintf(spec.dialect, sizeof spec.dialect, "%s", row->dialect);
        snprintf(spec.arch, sizeof spec.arch, "%s", more == 1 ? "resnet20" : "");
        ls_compare_facts got, want = row->facts;
        want.half = spec.half;
        want.sync_bn = more == 1;
        want.fused = want.fused || more == 1;
        want.arch = more == 1 ? spec.arch : NULL;
        ls_judge_gradients_facts(&spec, &got);
        ck_assert((got.reduce == NULL) == (want.reduce == NULL) &&
                  (want.reduce == NULL || strcmp(got.reduce, want.reduce) == 0));
        got.reduce = want.reduce;
        ck_assert_mem_eq(&got, &want, sizeof got);
    }
}
END_TEST

/* What the report and `lockstep bounds` read. */
START_TEST(the_record_holds_the_verdict)
{
    subject *s = make_subject("O2");
    const char *path[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        write_dump(s, CLEAN, true, rank);
        path[rank] = s->path[rank];
    }
    char json[96];
    snprintf(json, sizeof json, "%s/compare.json", s->folder);
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict v;
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, json, &v), LS_OK);
    char *text = ls_text_read(json);
    cJSON *root = cJSON_Parse(text);
    const struct {
        const char *group, *name;
        double value;
    } numbers[] = {{NULL, "schema", 1},
                   {NULL, "step", 1},
                   {"whole", "e", v.error},
                   {"whole", "r", v.ideal},
                   {"whole", "limit", v.limit},
                   {"ratios", "whole", v.ratio[LS_COMPARE_WHOLE]},
                   {"ratios", "tensor", v.ratio[LS_COMPARE_TENSOR]},
                   {"ratios", "small", v.ratio[LS_COMPARE_SMALL]},
                   {"ratios", "block", v.ratio[LS_COMPARE_BLOCK]},
                   {"ratios", "edge", v.ratio[LS_COMPARE_EDGE]},
                   {"ratios", "logits", v.logits_ratio},
                   {"ratios", "reduce", v.reduce_ratio},
                   {"ratios", "next", v.next_ratio},
                   {"ratios", "buffer", v.buffer_ratio},
                   {"prices", "whole", v.ideal_error[LS_COMPARE_WHOLE]},
                   {"prices", "edge", v.ideal_error[LS_COMPARE_EDGE]},
                   {NULL, "tie_ratio", v.tie_ratio},
                   {NULL, "branches", (double)v.forced},
                   {NULL, "branches_turned", (double)v.turned}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const cJSON *in =
            numbers[i].group == NULL ? root : cJSON_GetObjectItem(root, numbers[i].group);
        const cJSON *found = cJSON_GetObjectItem(in, numbers[i].name);
        /* printed with 10 digits */
        ck_assert_msg(cJSON_IsNumber(found) &&
                          fabs(found->valuedouble - numbers[i].value) <= 1e-9 * numbers[i].value,
                      "%s %s", numbers[i].group, numbers[i].name);
    }
    static const char *const words[][2] = {{"reference", "FP64 oracle on the subject's branches"},
                                           {"level", "O2"},
                                           {"half", "fp16"},
                                           {"verdict", "PASS"},
                                           {"cause", ""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const cJSON *found = cJSON_GetObjectItem(root, words[i][0]);
        ck_assert(cJSON_IsString(found));
        ck_assert_str_eq(found->valuestring, words[i][1]);
    }
    ck_assert_str_eq(cJSON_GetObjectItem(root, "evidence")->valuestring, v.evidence);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(root, "reduce_judged")) &&
              cJSON_IsTrue(cJSON_GetObjectItem(root, "next_judged")) &&
              cJSON_IsTrue(cJSON_GetObjectItem(root, "buffers_judged")));
    const cJSON *tensors = cJSON_GetObjectItem(root, "tensors"), *tensor = tensors->child;
    ck_assert_int_eq(cJSON_GetArraySize(tensors), s->net.param_count);
    ck_assert_str_eq(cJSON_GetObjectItem(tensor, "name")->valuestring, "fc.bias");
    ck_assert_double_eq(cJSON_GetObjectItem(tensor, "elements")->valuedouble, 10);
    double r = cJSON_GetObjectItem(tensor, "r")->valuedouble;
    ck_assert_double_gt(r, 0);
    ck_assert_double_lt(cJSON_GetObjectItem(tensor, "e")->valuedouble, 8 * r);
    /* printed with 10 digits */
    ck_assert_double_eq_tol(cJSON_GetObjectItem(tensor, "limit")->valuedouble, 8 * r, 1e-9 * r);
    cJSON_Delete(root);
    free(text);
    free_subject(s);
}
END_TEST

/* The same verdict from kept results, and a damaged one is computed again. */
START_TEST(results_are_kept)
{
    subject *s = make_subject("O2");
    char own[96], line[400];
    snprintf(own, sizeof own, "%s/cache", s->folder);
    const char *path[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        write_dump(s, CLEAN, true, rank);
        path[rank] = s->path[rank];
    }
    ls_compare_facts facts = {.arch = "resnet8", .cache = own};
    ls_compare_verdict v[3];
    for (int i = 0; i < 3; i++) {
        memset(&v[i], 0, sizeof v[i]);
        ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &v[i]), LS_OK);
        ck_assert_str_eq(v[i].evidence, v[0].evidence);
        snprintf(line, sizeof line,
                 "test $(ls %s | wc -l) = 2 && for f in %s/*; do printf X | dd of=$f bs=1 seek=999 "
                 "conv=notrunc status=none; done",
                 own, own);
        ck_assert(i != 1 || system(line) == 0);
    }
    snprintf(line, sizeof line, "rm -r %s", own);
    ck_assert_int_eq(system(line), 0);
    free_subject(s);
}
END_TEST

/* ---- dumps that leave something out, or hold what they should not ---------------------------- */

/* A change of a dump's header; the data stay. */
typedef void edit(cJSON *header);

static void rewrite(const char *path, edit *change)
{
    static char data[4 << 20];
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    uint64_t length;
    memcpy(&length, data, 8);
    cJSON *header = cJSON_ParseWithLength(data + 8, length);
    ck_assert(bytes < sizeof data && header != NULL);
    change(header);
    char *text = cJSON_PrintUnformatted(header), pad[8] = "       ";
    uint64_t padded = (strlen(text) + 7) / 8 * 8;
    file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    fwrite(&padded, 1, 8, file);
    fwrite(text, 1, strlen(text), file);
    fwrite(pad, 1, padded - strlen(text), file);
    fwrite(data + 8 + length, 1, bytes - 8 - length, file);
    ck_assert_int_eq(fclose(file), 0);
    cJSON_free(text);
    cJSON_Delete(header);
}

static void drop(cJSON *header, const char *name)
{
    ck_assert(cJSON_HasObjectItem(header, name));
    cJSON_DeleteItemFromObjectCaseSensitive(header, name);
}

static void drop_all(cJSON *header, const char *prefix)
{
    for (cJSON *item = header->child, *next; item != NULL; item = next) {
        next = item->next;
        if (strncmp(item->string, prefix, strlen(prefix)) == 0) {
            cJSON_Delete(cJSON_DetachItemViaPointer(header, item));
        }
    }
}

static void set_metadata(cJSON *header, const char *name, const char *value)
{
    cJSON *metadata = cJSON_GetObjectItem(header, "__metadata__");
    cJSON_DeleteItemFromObject(metadata, name);
    if (value != NULL) {
        cJSON_AddStringToObject(metadata, name, value);
    }
}

/* `name` gets another type; its bytes are then as many elements more or fewer. */
static void retype(cJSON *header, const char *name, const char *dtype, int64_t factor,
                   int64_t divisor)
{
    cJSON *entry = cJSON_GetObjectItem(header, name), *shape = cJSON_GetObjectItem(entry, "shape");
    cJSON *first = cJSON_GetArrayItem(shape, 0);
    cJSON_ReplaceItemInObject(entry, "dtype", cJSON_CreateString(dtype));
    cJSON_SetNumberValue(first, first->valuedouble * (double)factor / (double)divisor);
}

static void add_copy_of(cJSON *header, const char *from, const char *name)
{
    cJSON_AddItemToObject(header, name, cJSON_Duplicate(cJSON_GetObjectItem(header, from), true));
}

static void next_unknown(cJSON *header)
{
    add_copy_of(header, "next/fc.bias", "next/zzz");
}

static void next_unknown_with_all(cJSON *header)
{
    add_copy_of(header, "next/fc.bias", "next/zzz");
    add_copy_of(header, "param/fc.bias", "param/zzz");
    add_copy_of(header, "grad/fc.bias", "grad/zzz");
}

static void next_one_missing(cJSON *header)
{
    drop(header, "next/layer1.0.conv1.weight");
}

static void next_missing(cJSON *header)
{
    drop_all(header, "next/");
}

static void next_in_bytes(cJSON *header)
{
    retype(header, "next/fc.bias", "U8", 4, 1);
}

static void next_of_integers(cJSON *header)
{
    retype(header, "next/fc.bias", "I32", 1, 1);
}

static void state_of_one(cJSON *header)
{
    add_copy_of(header, "grad/fc.bias", "state/fc.bias/momentum_buffer");
}

static void local_one_missing(cJSON *header)
{
    drop(header, "local/fc.bias");
}

static void buffer_one_missing(cJSON *header)
{
    drop(header, "buffer/bn1.running_var");
}

static void buffer_unknown(cJSON *header)
{
    add_copy_of(header, "buffer/bn1.running_var", "buffer/bn9.running_var");
}

static void counter_missing(cJSON *header)
{
    drop(header, "buffer/bn1.num_batches_tracked");
}

static void branch_one_missing(cJSON *header)
{
    drop(header, "branch/000");
}

static void branch_unknown(cJSON *header)
{
    add_copy_of(header, "branch/000", "branch/007");
}

static void no_rate(cJSON *header)
{
    set_metadata(header, "lr", NULL);
}

static void rate_no_number(cJSON *header)
{
    set_metadata(header, "lr", "0.05 or so");
}

static void optimizer_unknown(cJSON *header)
{
    set_metadata(header, "optimizer", "lion");
}

static void half_betas(cJSON *header)
{
    set_metadata(header, "optimizer", "adam");
    set_metadata(header, "betas", "0.9");
}

static void later_step(cJSON *header)
{
    set_metadata(header, "step", "2"); /* and there is no state/ */
}

/* Then every value that follows is NaN, and NaN must not be what nothing is compared with. */
static void rate_nan(cJSON *header)
{
    set_metadata(header, "lr", "nan");
}

static void input_in_bytes(cJSON *header)
{
    cJSON *entry = cJSON_GetObjectItem(header, "input");
    cJSON_ReplaceItemInObject(entry, "dtype", cJSON_CreateString("U8"));
    cJSON *offsets = cJSON_GetObjectItem(entry, "data_offsets");
    cJSON_SetNumberValue(cJSON_GetArrayItem(offsets, 1),
                         cJSON_GetArrayItem(offsets, 0)->valuedouble + BATCH * 3 * SIZE * SIZE);
}

/* Pixels as targets. */
static void target_out_of_range(cJSON *header)
{
    cJSON *from = cJSON_GetObjectItem(cJSON_GetObjectItem(header, "input"), "data_offsets");
    double at = cJSON_GetArrayItem(from, 0)->valuedouble;
    const double ends[] = {at, at + BATCH * 8};
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(header, "target"), "data_offsets",
                              cJSON_CreateDoubleArray(ends, 2));
}

static void shape_of_half(cJSON *header)
{
    cJSON *shape = cJSON_GetObjectItem(cJSON_GetObjectItem(header, "grad/fc.bias"), "shape");
    cJSON_SetNumberValue(cJSON_GetArrayItem(shape, 0), 0.5);
}

static void shape_of_zeros(cJSON *header) /* the product does not fit, and is multiplied by 0 */
{
    cJSON *entry = cJSON_GetObjectItem(header, "grad/fc.bias");
    const double dims[] = {0, 1e18, 1e18, 1e300};
    cJSON_ReplaceItemInObject(entry, "shape", cJSON_CreateDoubleArray(dims, 4));
}

static void offsets_huge(cJSON *header)
{
    const double ends[] = {1e300, 1e300};
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(header, "grad/fc.bias"), "data_offsets",
                              cJSON_CreateDoubleArray(ends, 2));
}

static void misaligned(cJSON *header)
{
    cJSON *offsets =
        cJSON_GetObjectItem(cJSON_GetObjectItem(header, "grad/fc.bias"), "data_offsets");
    for (int i = 0; i < 2; i++) {
        cJSON *end = cJSON_GetArrayItem(offsets, i);
        cJSON_SetNumberValue(end, end->valuedouble - 1);
    }
}

static void named_twice(cJSON *header)
{
    add_copy_of(header, "grad/fc.bias", "next/fc.bias");
}

static void metadata_that_are_a_list(cJSON *header)
{
    cJSON *list = cJSON_CreateArray();
    cJSON_AddItemToArray(list, cJSON_CreateNumber(1));
    cJSON_ReplaceItemInObject(header, "__metadata__", list);
}

static void number_in_metadata(cJSON *header)
{
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(header, "__metadata__"), "lr",
                              cJSON_CreateNumber(0.05));
}

static void world_huge(cJSON *header)
{
    set_metadata(header, "world_size", "1e300");
}

static void group_huge(cJSON *header)
{
    set_metadata(header, "sync_bn", "true");
    set_metadata(header, "sync_bn_group", "4294967297");
}

static void state_of_a_rank(cJSON *header)
{
    add_copy_of(header, "grad/fc.bias", "next_state/fc.bias/momentum_buffer");
}

static void half_unknown(cJSON *header)
{
    set_metadata(header, "half", "fp8");
}

static void flag_unknown(cJSON *header)
{
    set_metadata(header, "skipped", "maybe");
}

static void momentum_nan(cJSON *header)
{
    set_metadata(header, "momentum", "nan");
}

static void arch_other(cJSON *header)
{
    set_metadata(header, "arch", "resnet20");
}

static void applied_inner(cJSON *header)
{
    set_metadata(header, "applied", "layer1.0.bn1,layer2.0.bn1");
}

static void applied_twice(cJSON *header)
{
    set_metadata(header, "applied", "layer1.0.bn1,layer1.0.bn1");
}

static void applied_at_a_join(cJSON *header)
{
    set_metadata(header, "applied", "layer1.0.bn2");
}

static void applied_unknown(cJSON *header)
{
    set_metadata(header, "applied", "layer1.0.bn");
}

static void applied_open_list(cJSON *header)
{
    set_metadata(header, "applied", "layer1.0.bn1,");
}

/* The factors of numerics.md section 4: an error of 0.97 of each passes, one of 1.03 fails. Each
 * element from `from` on is off by as much, which moves the part named more than others. */
static const struct bound_row {
    const char *level, *tensor; /* NULL: all */
    int from, count;            /* 0: to its end */
    ls_compare_part part;
    double factor;
} bound_rows[] = {
    {"O2", NULL, 0, 0, LS_COMPARE_WHOLE, 2},
    {"O2", "layer3.0.bn1.weight", 0, 0, LS_COMPARE_TENSOR, 4},
    {"O2", "layer1.0.bn1.bias", 0, 0, LS_COMPARE_SMALL, 8},
    {"O2", "layer3.0.conv2.weight", 640, 64, LS_COMPARE_BLOCK, 8},
    {"O2", "layer3.0.conv2.weight", 0, 8, LS_COMPARE_EDGE, 8},
    {"O0", "layer1.0.bn1.bias", 0, 0, LS_COMPARE_SMALL, 32},
    {"O0", "layer3.0.conv2.weight", 640, 64, LS_COMPARE_BLOCK, 32},
    {"O0", "layer3.0.conv2.weight", 0, 8, LS_COMPARE_EDGE, 32},
};

static void no_local(cJSON *header)
{
    drop_all(header, "local/");
}

/* Judges the level's gradient with its own rounding times that, or that added. */
static ls_compare_verdict judge_moved(const struct bound_row *row, double by)
{
    subject *s = make_subject(row->level);
    const ls_nettab_param *param = row->tensor == NULL ? NULL : param_named(s, row->tensor);
    int64_t from = param == NULL ? 0 : param->offset + row->from;
    int64_t count = param == NULL ? s->net.elements : row->count > 0 ? row->count : param->count;
    for (int64_t i = from; i < from + count; i++) {
        double exact = ((double)s->local[0][i] + (double)s->local[1][i]) / 2;
        double rounding = (double)s->grad[i] - exact;
        s->grad[i] = (float)(exact + (param == NULL ? by * rounding : by));
    }
    const char *path[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        write_dump(s, CLEAN, true, rank);
        rewrite(s->path[rank], no_local);
        path[rank] = s->path[rank];
    }
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict v;
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &v), LS_OK);
    free_subject(s);
    return v;
}

START_TEST(bounds_are_where_they_are_said_to_be)
{
    const struct bound_row *row = &bound_rows[_i];
    double by = 1e-4;
    for (int i = 0; i < 8; i++) { /* the ratio is nearly in proportion */
        by *= row->factor * 0.97 / judge_moved(row, by).ratio[row->part];
    }
    ls_compare_verdict below = judge_moved(row, by), above = judge_moved(row, by * 1.03 / 0.97);
    ck_assert_msg(below.code == LS_COMPARE_PASS, "row %d: %s", _i, below.evidence);
    ck_assert_msg(above.code == LS_COMPARE_FAIL && strstr(above.evidence, "limit=") != NULL,
                  "row %d: %s", _i, above.evidence);
}
END_TEST

typedef struct edit_row {
    edit *change;
    int rank;
    plant planted;
    ls_status status;
    ls_compare_code code;
    const char *evidence;
} edit_row;

static const edit_row edits[] = {
    /* what is not judged does not pass, whatever it hides */
    {next_unknown, 0, WRONG_STEP, LS_OK, LS_COMPARE_FAIL, "next/zzz"},
    {next_unknown, 0, CLEAN, LS_OK, LS_COMPARE_FAIL, "next/zzz"},
    {next_unknown_with_all, 0, CLEAN, LS_OK, LS_COMPARE_FAIL, "zzz is no tensor of resnet8"},
    {next_unknown, 1, CLEAN, LS_OK, LS_COMPARE_FAIL, "rank=1: next/zzz is no tensor"},
    {next_one_missing, 0, WRONG_STEP, LS_OK, LS_COMPARE_FAIL, "layer1.0.conv1.weight"},
    {next_one_missing, 1, CLEAN, LS_OK, LS_COMPARE_FAIL, "layer1.0.conv1.weight"},
    {next_missing, 0, WRONG_STEP, LS_OK, LS_COMPARE_FAIL, "parameters after the step differ"},
    {next_in_bytes, 0, WRONG_STEP, LS_OK, LS_COMPARE_FAIL, "fc.bias"},
    {next_of_integers, 0, CLEAN, LS_OK, LS_COMPARE_FAIL, "fc.bias"},
    {state_of_one, 0, WRONG_STEP, LS_OK, LS_COMPARE_FAIL, "momentum_buffer in state/"},
    {no_rate, 0, WRONG_STEP, LS_OK, LS_COMPARE_WEAK, "step was not judged"},
    {optimizer_unknown, 0, WRONG_STEP, LS_OK, LS_COMPARE_WEAK, "step was not judged"},
    {half_betas, 0, WRONG_STEP, LS_OK, LS_COMPARE_WEAK, "step was not judged"},
    {later_step, 0, WRONG_STEP, LS_OK, LS_COMPARE_WEAK, "moments before it (state/) are missing"},
    {rate_no_number, 0, CLEAN, LS_OK, LS_COMPARE_FAIL, "next/"},
    {rate_nan, 0, WRONG_STEP, LS_OK, LS_COMPARE_FAIL, "next/"},
    {state_of_a_rank, 1, CLEAN, LS_OK, LS_COMPARE_FAIL, "momentum_buffer differs from rank 0's"},
    {local_one_missing, 1, CLEAN, LS_OK, LS_COMPARE_FAIL, "rank=1 local/fc.bias is missing"},
    {buffer_one_missing, 1, CLEAN, LS_OK, LS_COMPARE_FAIL, "rank=1 bn1.running_var"},
    {buffer_unknown, 0, CLEAN, LS_OK, LS_COMPARE_FAIL, "buffer/bn9.running_var is no tensor"},
    {counter_missing, 0, CLEAN, LS_OK, LS_COMPARE_FAIL, "num_batches_tracked"},
    {branch_unknown, 1, CLEAN, LS_OK, LS_COMPARE_FAIL, "branch/007 is no tensor"},
    {branch_one_missing, 1, TURNED_BRANCH, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    /* what cannot be read is no dump */
    {input_in_bytes, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {target_out_of_range, 1, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {shape_of_half, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {shape_of_zeros, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {offsets_huge, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {misaligned, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {named_twice, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {number_in_metadata, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {metadata_that_are_a_list, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {world_huge, 1, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {group_huge, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {half_unknown, 1, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {flag_unknown, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {momentum_nan, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
    {arch_other, 0, CLEAN, LS_ERR_USAGE, LS_COMPARE_PASS, ""},
};

START_TEST(edited_dumps)
{
    const edit_row *row = &edits[_i];
    subject *s = make_subject("O0");
    plant_gradient(s, row->planted);
    write_dump(s, row->planted, true, 0);
    write_dump(s, row->planted, true, 1);
    rewrite(s->path[row->rank], row->change);
    const char *path[] = {s->path[0], s->path[1]};
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache};
    ls_compare_verdict v = {0};
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &v), row->status);
    ck_assert_msg(v.code == row->code && strstr(v.evidence, row->evidence) != NULL, "row %d: %s",
                  _i, v.evidence);
    free_subject(s);
}
END_TEST

/* One member of rank 0's metadata is another: what the step is then judged as. */
static const struct metadata_row {
    const char *name, *value;
    ls_status status;
    ls_compare_code code;
    const char *evidence;
} metadata_rows[] = {
    {"opt_level", "P0", LS_ERR_USAGE, 0, ""},
    {"opt_level", "O4", LS_ERR_USAGE, 0, ""},
    {"opt_level", "O00", LS_ERR_USAGE, 0, ""},
    {"opt_level", NULL, LS_ERR_USAGE, 0, ""},
    {"half", "bf16", LS_OK, LS_COMPARE_PASS, "step right"},
    {"reduced_type", "fp32", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"reduced_type", "fp16", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"reduced_type", "bf16", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"reduced_type", "fp64", LS_ERR_USAGE, 0, ""},
    {"average", "none", LS_OK, LS_COMPARE_FAIL, "rel=5.0e-01"},
    {"average", "pre", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"average", "post", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"average", "late", LS_ERR_USAGE, 0, ""},
    {"dialect", "torch", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"dialect", "horovod", LS_ERR_USAGE, 0, ""},
    {"predivide", "2", LS_OK, LS_COMPARE_PASS, "reduction right; step right"},
    {"predivide", "0", LS_ERR_USAGE, 0, ""},
    {"loss_scale", "0", LS_ERR_USAGE, 0, ""},
    {"loss_scale", "nan", LS_ERR_USAGE, 0, ""},
    {"label_smoothing", "0.5", LS_OK, LS_COMPARE_FAIL, "is not the cross entropy"},
    {"label_smoothing", "1", LS_OK, LS_COMPARE_FAIL, "is not the cross entropy"},
    {"label_smoothing", "1.1", LS_ERR_USAGE, 0, ""},
    {"label_smoothing", "-0.1", LS_ERR_USAGE, 0, ""},
    {"sync_bn", "true", LS_OK, LS_COMPARE_FAIL, "limit="},
    {"accumulate", "1", LS_OK, LS_COMPARE_PASS, "step right"},
    {"accumulate", "2", LS_ERR_USAGE, 0, ""},
    {"step", "2", LS_ERR_USAGE, 0, ""}, /* given as step 1 */
    {"optimizer_steps", "x", LS_ERR_USAGE, 0, ""},
    {"optimizer_steps", "-1", LS_OK, LS_COMPARE_WEAK, "step was not judged"},
    {"nesterov", "true", LS_OK, LS_COMPARE_FAIL, "next/"},
    {"weight_decay", "0.1", LS_OK, LS_COMPARE_FAIL, "next/"},
    {"clip_grad_norm", "0.01", LS_OK, LS_COMPARE_FAIL, "next/"},
    {"clip_grad_value", "0.001", LS_OK, LS_COMPARE_FAIL, "next/"},
    {"lr/fc.bias", "0.1", LS_OK, LS_COMPARE_FAIL, "fc.bias element 0: next/"},
    {"weight_decay/fc.weight", "0.1", LS_OK, LS_COMPARE_FAIL, "fc.weight element 0: next/"},
};

static const struct metadata_row *edited_to;

static void edit_metadata(cJSON *header)
{
    set_metadata(header, edited_to->name, edited_to->value);
}

START_TEST(metadata_decides_what_is_expected)
{
    edited_to = &metadata_rows[_i];
    subject *s = make_subject("O0");
    write_dump(s, CLEAN, true, 0);
    write_dump(s, CLEAN, true, 1);
    rewrite(s->path[0], edit_metadata);
    const char *path[] = {s->path[0], s->path[1]};
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache, .step = 1};
    ls_compare_verdict v = {0};
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &v), edited_to->status);
    ck_assert_msg(v.code == edited_to->code && strstr(v.evidence, edited_to->evidence) != NULL,
                  "row %d: %s", _i, v.evidence);
    free_subject(s);
}
END_TEST

/* Batch norms that a dump says were applied in fp16 widen the ideal, so they must be possible, and
 * asked for. */
static const struct applied_row {
    edit *change;
    const char *level, *half;
    bool fused;
    ls_status status;
} applied_rows[] = {
    {applied_inner, "O2", "fp16", true, LS_OK},
    {applied_inner, "O2", "fp16", false, LS_ERR_USAGE},
    {applied_inner, "O2", "bf16", true, LS_ERR_USAGE},
    {applied_inner, "O0", "fp16", true, LS_ERR_USAGE},
    {applied_twice, "O2", "fp16", true, LS_ERR_USAGE},
    {applied_at_a_join, "O2", "fp16", true, LS_ERR_USAGE},
    {applied_unknown, "O2", "fp16", true, LS_ERR_USAGE},
    {applied_open_list, "O2", "fp16", true, LS_ERR_USAGE},
};

START_TEST(applied_norms_must_be_possible_and_asked_for)
{
    const struct applied_row *row = &applied_rows[_i];
    subject *s = make_subject(row->level);
    plant_gradient(s, CLEAN);
    for (int rank = 0; rank < WORLD; rank++) {
        write_dump(s, CLEAN, true, rank);
        rewrite(s->path[rank], row->change);
    }
    const char *path[] = {s->path[0], s->path[1]};
    ls_compare_facts facts = {
        .arch = "resnet8", .half = row->half, .fused = row->fused, .cache = cache};
    ls_compare_verdict with = {0}, without = {0};
    ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &with), row->status);
    if (row->status == LS_OK) { /* the ideal rounds more, unless a rank does not say so */
        for (int rank = 0; rank < WORLD; rank++) {
            write_dump(s, CLEAN, true, rank);
        }
        ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &without), LS_OK);
        ck_assert_double_ne(with.ideal, without.ideal);
        rewrite(s->path[1], row->change);
        ck_assert_int_eq(ls_compare_step(&facts, WORLD, path, NULL, &with), LS_OK);
        ck_assert_double_eq(with.ideal, without.ideal);
    }
    free_subject(s);
}
END_TEST

START_TEST(unusable_dumps_are_errors)
{
    subject *s = make_subject("O0");
    write_dump(s, CLEAN, true, 0);
    write_dump(s, CLEAN, true, 1);
    const char *path[] = {s->path[0], s->path[1]};
    ls_compare_facts facts = {.arch = "resnet8", .cache = cache}, other = {.arch = "resnet20"};
    ls_compare_verdict v;
    ck_assert_int_eq(ls_compare_step(&facts, 1, path, NULL, &v), LS_ERR_USAGE);
    ck_assert_int_eq(ls_compare_step(&other, 2, path, NULL, &v), LS_ERR_USAGE);
    ck_assert_int_eq(truncate(s->path[1], 100000), 0);
    ck_assert_int_eq(ls_compare_step(&facts, 2, path, NULL, &v), LS_ERR_USAGE);
    free_subject(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compare");
    TCase *tests = tcase_create("judge");
    tcase_set_timeout(tests, 60);
    tcase_add_unchecked_fixture(tests, run_levels, free_levels);
    tcase_add_loop_test(tests, clean_subjects_pass, 0, 4);
    tcase_add_loop_test(tests, plants_are_caught, 0, 2 * (int)(sizeof plants / sizeof plants[0]));
    tcase_add_test(tests, weak_evidence_is_not_a_pass);
    tcase_add_test(tests, coarse_without_records);
    tcase_add_loop_test(tests, options_become_facts, 0,
                        (int)(sizeof facts_rows / sizeof *facts_rows));
    tcase_add_test(tests, the_record_holds_the_verdict);
    tcase_add_test(tests, results_are_kept);
    tcase_add_loop_test(tests, bounds_are_where_they_are_said_to_be, 0,
                        (int)(sizeof bound_rows / sizeof *bound_rows));
    tcase_add_loop_test(tests, edited_dumps, 0, (int)(sizeof edits / sizeof *edits));
    tcase_add_loop_test(tests, metadata_decides_what_is_expected, 0,
                        (int)(sizeof metadata_rows / sizeof *metadata_rows));
    tcase_add_loop_test(tests, applied_norms_must_be_possible_and_asked_for, 0,
                        (int)(sizeof applied_rows / sizeof *applied_rows));
    tcase_add_test(tests, unusable_dumps_are_errors);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
