/* A small subject whose dumps the comparison reads: steps of resnet8 with two ranks, with rounding
 * noise that is not the ideal's, and with planted faults. */
#ifndef LS_COMPARE_SUBJECT_H
#define LS_COMPARE_SUBJECT_H

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
#include "reference/files/safetensors.h"
#include "reference/oracle/oracle.h"
#include "suite/judge/compare.h"
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
    bool has_local; /* at O0: half has none here */
    char folder[64];
    char path[WORLD][128];
} subject;

/* Parameters in the type that the level holds. */
static inline ls_bits_type held_type(const subject *s, int param)
{
    bool norm = s->net.node[s->net.param[param].node].kind == LS_NETTAB_NORM;
    return s->step.level == 3 || (s->step.level == 2 && !norm) ? LS_BITS_F16 : LS_BITS_F32;
}

static inline void make_data(subject *s)
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
static inline void run_subject(subject *s)
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

static inline subject *run_level(const char *level)
{
    subject *s = calloc(1, sizeof *s);
    s->level = level;
    s->has_local = level[1] == '0';
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

static inline void run_levels(void)
{
    ck_assert_ptr_nonnull(mkdtemp(cache));
    for (int i = 0; i < 4; i++) {
        made[i] = run_level(levels[i]);
    }
    /* OpenMP's threads end: the tests' processes, which are forked, have none of them */
    ck_assert_int_eq(omp_pause_resource_all(omp_pause_hard), 0);
}

static inline void free_levels(void)
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
static inline subject *make_subject(const char *level)
{
    subject *s = malloc(sizeof *s);
    *s = *made[level[1] - '0'];
    size_t bytes = (size_t)s->net.elements * sizeof *s->grad;
    s->grad = memcpy(malloc(bytes), s->grad, bytes);
    snprintf(s->folder, sizeof s->folder, "/tmp/ls_compare_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(s->folder));
    return s;
}

static inline void free_subject(subject *s)
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
static inline void plant_gradient(subject *s, plant planted)
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

static inline void add_half_or_float(ls_safetensors_writer *writer, const char *name,
                                     ls_bits_type type, const ls_shape *shape, const double *value)
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
static inline void add_params(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
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
        if (s->has_local) {
            ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape,
                                                     s->local[rank] + param->offset),
                             LS_OK);
        }
        free(grad);
        free(next);
    }
}

/* This rank's bits of each ReLU, NCHW. */
static inline void add_branches(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
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

static inline void add_one(ls_safetensors_writer *writer, const char *prefix, const char *norm,
                           const char *what, const ls_shape *shape, const double *value)
{
    char name[128];
    snprintf(name, sizeof name, "%s/%s.%s", prefix, norm, what);
    add_half_or_float(writer, name, LS_BITS_F32, shape, value);
}

/* Running statistics of a first step: from 0 and 1, with the subject's batch statistics. */
static inline void add_buffers(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
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

static inline float loss_of(const float *logits, const int64_t *target)
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

static inline void add_results(subject *s, ls_safetensors_writer *writer, plant planted, int rank)
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

static inline void write_dump(subject *s, plant planted, bool branches, int rank)
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

/* Both ranks' dumps with that fault, path[WORLD] then. */
static inline void write_dumps(subject *s, plant planted, bool branches, const char **path)
{
    for (int rank = 0; rank < WORLD; rank++) {
        write_dump(s, planted, branches, rank);
        path[rank] = s->path[rank];
    }
}

static inline ls_compare_verdict compare(const char *const *path, const ls_compare_facts *facts,
                                         ls_status status)
{
    ls_compare_verdict verdict = {0};
    ck_assert_int_eq(ls_compare_step(facts, WORLD, path, NULL, &verdict), status);
    return verdict;
}

#endif
