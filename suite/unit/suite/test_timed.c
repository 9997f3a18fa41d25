/* Two gradients compared part by part: each planted fault is found, with its kind and position;
 * differences from the order of sums are not faults. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/run/matrix.h"
#include "kernels/core/text.h"
#include "kernels/core/rng.h"
#include "reference/files/safetensors.h"
#include "suite/cases/rows.h"
#include "suite/cases/gradients/timed_parts.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

enum { TENSORS = 4 };

static const struct tensor {
    const char *name;
    int64_t count;
    double size; /* of one element */
} tensor[TENSORS] = {
    {"grad/conv1.weight", 1000, 1},
    {"grad/bn1.weight", 64, 0.1},
    {"grad/fc.weight", 641, 0.01},
    {"grad/fc.bias", 10, 0.1},
};

typedef enum plant {
    CLEAN,
    DOUBLED,      /* fc.weight, whose norm is a hundredth of the whole */
    BIAS_ZEROED,  /* fc.bias */
    BLOCK_ZEROED, /* conv1.weight 128..191 */
    LAST_ZEROED,  /* the last 8 of conv1.weight */
    ALL_SUMMED,   /* everything twice */
    NOT_FINITE,
    MISSING,
} plant;

/* noise: relative error of each element, normal */
static float value_of(int t, int64_t i, double noise, plant planted)
{
    double value = tensor[t].size * (double)ls_rng_normal(1, (uint64_t)t, (uint64_t)i);
    value *= 1 + noise * (double)ls_rng_normal(2, (uint64_t)t, (uint64_t)i);
    bool conv = t == 0;
    if ((planted == BIAS_ZEROED && t == 3) ||
        (planted == BLOCK_ZEROED && conv && i >= 128 && i < 192) ||
        (planted == LAST_ZEROED && conv && i >= 992)) {
        return 0;
    }
    if (planted == ALL_SUMMED || (planted == DOUBLED && t == 2)) {
        value *= 2;
    }
    return planted == NOT_FINITE && conv && i == 7 ? INFINITY : (float)value;
}

/* A job's folder, and one in it for the dumps. */
static ls_record make_folder(int world)
{
    ls_record record = {.world = world};
    fake_folder(record.directory, sizeof record.directory);
    LS_TEXT(path, 600, "%s/dump", record.directory);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    return record;
}

static ls_safetensors_writer *open_dump(const ls_record *record, int rank)
{
    ls_safetensors_writer *writer = NULL;
    LS_TEXT(path, 600, "%s/dump/step000001.rank%d.safetensors", record->directory, rank);
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    return writer;
}

static ls_record make(double noise, plant planted)
{
    ls_record record = make_folder(1);
    ls_safetensors_writer *writer = open_dump(&record, 0);
    float value[1000];
    for (int t = 0; t < TENSORS; t++) {
        ls_shape shape = {1, {tensor[t].count}};
        for (int64_t i = 0; i < tensor[t].count; i++) {
            value[i] = value_of(t, i, noise, planted);
        }
        if (planted != MISSING || t != 1) {
            ls_safetensors_add_copy(writer, tensor[t].name, LS_F32, &shape, value);
        }
    }
    uint8_t branch[2] = {3, planted == LAST_ZEROED ? 4 : 5}; /* a turned one, for same_forward */
    ls_shape bits = {1, {2}};
    ls_safetensors_add_copy(writer, "branch/000", LS_U8, &bits, branch);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    return record;
}

static void drop(ls_record *record)
{
    ls_path_remove_tree(record->directory);
    ls_record_free(record);
}

static bool compare(plant planted, double noise, ls_timed_parts *parts, ls_verdict *verdict)
{
    ls_record subject = make(noise, planted), reference = make(0, CLEAN);
    memset(verdict, 0, sizeof *verdict);
    bool good = ls_timed_parts_measure(&subject, &reference, 1, 1, parts, verdict);
    drop(&subject);
    drop(&reference);
    return good;
}

/* Errors of a thousandth: no part is off by more than a hundredth, though blocks and edges have few
 * elements. */
TEST(noise_is_measured)
{
    ls_timed_parts parts;
    ls_verdict verdict;
    ck_assert(compare(CLEAN, 1e-3, &parts, &verdict));
    ck_assert(parts.finite);
    for (int p = 0; p < LS_COMPARE_PARTS; p++) {
        double error = parts.worst[p].error;
        /* a tenth of the noise to ten times it: the largest of many parts, none of them far off */
        ck_assert_msg(error > 1e-4 && error < 1e-2, "kind %d: %g", p, error);
    }
    ck_assert(compare(CLEAN, 0, &parts, &verdict));
    ck_assert(parts.worst[LS_COMPARE_WHOLE].error == 0);
}

static const struct expected {
    plant planted;
    ls_compare_part part;
    const char *name;
    int64_t from;
    double error, factor;
} expected[] = {
    {DOUBLED, LS_COMPARE_TENSOR, "fc.weight", 0, 1, 2},
    {BIAS_ZEROED, LS_COMPARE_SMALL, "fc.bias", 0, 1, 0},
    {BLOCK_ZEROED, LS_COMPARE_BLOCK, "conv1.weight", 128, 1, 0.936},
    {LAST_ZEROED, LS_COMPARE_EDGE, "conv1.weight", 992, 1, 0.992},
    {ALL_SUMMED, LS_COMPARE_WHOLE, "every gradient", 0, 1, 2},
};

ROWS_TEST(faults_are_found, expected)
{
    const struct expected *e = &expected[_i];
    ls_timed_parts parts;
    ls_verdict verdict;
    ck_assert(compare(e->planted, 1e-3, &parts, &verdict));
    const ls_timed_part *worst = &parts.worst[e->part];
    ck_assert_str_eq(worst->tensor, e->name);
    ck_assert_int_eq(worst->from, e->from);
    /* 0.35: the norm of eight normal values scatters by a quarter, and the usual norm is the scale
     */
    ck_assert_msg(fabs(worst->error - e->error) < 0.35, "%g", worst->error);
    /* 0.05: a zeroed block takes its share of the norm, 64 in 1000, as chance has it */
    ck_assert_msg(fabs(worst->factor - e->factor) < 0.05, "%g", worst->factor);
    if (e->planted == DOUBLED) { /* and the whole norm would not have seen it */
        ck_assert(parts.worst[LS_COMPARE_WHOLE].error < 0.01);
    }
}

TEST(what_cannot_be_compared)
{
    ls_timed_parts parts;
    ls_verdict verdict;
    ck_assert(compare(NOT_FINITE, 0, &parts, &verdict));
    ck_assert(!parts.finite);
    ls_record full = make(0, CLEAN), lacking = make(0, MISSING);
    memset(&verdict, 0, sizeof verdict);
    ck_assert(!ls_timed_parts_measure(&full, &lacking, 1, 1, &parts, &verdict));
    ck_assert_int_eq(verdict.code, LS_FAIL);
    ck_assert_ptr_nonnull(strstr(verdict.evidence, "bn1.weight"));
    memset(&verdict, 0, sizeof verdict);
    ck_assert(!ls_timed_parts_measure(&full, &full, 2, 1, &parts, &verdict));
    ck_assert_int_eq(verdict.code, LS_FAIL);
    drop(&full);
    drop(&lacking);
}

TEST(forwards_are_told_apart)
{
    ls_record a = make(0, CLEAN), b = make(1e-3, CLEAN), c = make(0, LAST_ZEROED);
    char text[120];
    ck_assert(ls_timed_parts_same_forward(&a, &b, text, sizeof text));
    ck_assert(!ls_timed_parts_same_forward(&a, &c, text, sizeof text));
    ck_assert_str_eq(text, "rank=0: branch/000");
    drop(&a);
    drop(&b);
    drop(&c);
}

TEST(references)
{
    ls_matrix bench = {0};
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    for (int i = 0; i < 3; i++) {
        spec.level = i == 2 ? 1 : 2;
        spec.followed = true;
        spec.world = 4;
        spec.bucket_mb = i + 1;
        ls_matrix_add(&bench, &spec);
    }
    ck_assert_ptr_eq(ls_timed_leader(&bench, &bench.spec[1]), &bench.spec[0]);
    ck_assert_ptr_eq(ls_timed_leader(&bench, &bench.spec[2]), &bench.spec[2]);
    ls_spec reference;
    char id[96];
    ls_timed_followed(&bench.spec[0], &reference);
    ls_matrix_id(&bench.spec[0], id);
    ck_assert(reference.level == 0 && reference.world == 1 && reference.accumulate == 4);
    ck_assert_ptr_nonnull(strstr(reference.extra, id));
    ck_assert_str_eq(reference.data, "batches:{run}/batches/world4");
    /* one process whose batch three devices share: its parts, of as many classes */
    spec.role = LS_ROLE_WAY;
    spec.world = 1;
    spec.batch_size = 12;
    spec.parts = 3;
    spec.num_classes = 7;
    ls_matrix_add(&bench, &spec);
    ck_assert_ptr_eq(ls_timed_leader(&bench, &bench.spec[3]), &bench.spec[3]);
    ls_timed_followed(&bench.spec[3], &reference);
    ck_assert(reference.world == 1 && reference.accumulate == 3 && reference.batch_size == 4);
    ck_assert_int_eq(reference.num_classes, 7);
    ck_assert_str_eq(reference.data, "batches:{run}/batches/parts3");
    ls_matrix_free(&bench);
}

/* ---- the order of sums ----------------------------------------------------------------------- */

/* Two jobs of two ranks that differ in buckets, as their dumps and events show them. */
typedef struct job {
    const char *start;             /* rank 0's start event */
    const char *loss;              /* rank 1's, as bits */
    double local_noise, sum_noise; /* of each element, normal */
    bool branch_turned;            /* rank 1's */
} job;

#define CPU "{\"host_memory\":true,\"options\":{\"deterministic\":false}}"
#define GPU "{\"host_memory\":false,\"options\":{\"deterministic\":false}}"
#define GPU_REPEATS "{\"host_memory\":false,\"options\":{\"deterministic\":true}}"

static void write_dump(const ls_record *record, int rank, const job *j)
{
    ls_safetensors_writer *writer = open_dump(record, rank);
    enum { COUNT = 4096 };
    static float local[COUNT], grad[COUNT];
    for (uint64_t i = 0; rank == 0 && i < COUNT; i++) {
        double value = (double)ls_rng_normal(1, 0, i);
        local[i] = (float)(value * (1 + j->local_noise * (double)ls_rng_normal(1, 1, i)));
        grad[i] = (float)(value * (1 + j->sum_noise * (double)ls_rng_normal(1, 2, i)));
    }
    ls_shape shape = {1, {COUNT}}, bits = {1, {1}};
    uint8_t branch = rank == 1 && j->branch_turned ? 4 : 5;
    ls_safetensors_add_copy(writer, "branch/000", LS_U8, &bits, &branch);
    if (rank == 0) {
        ls_safetensors_add_copy(writer, "local/conv1.weight", LS_F32, &shape, local);
        ls_safetensors_add_copy(writer, "grad/conv1.weight", LS_F32, &shape, grad);
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

static ls_record make_job(const job *j)
{
    ls_record record = make_folder(2);
    record.rank = calloc(2, sizeof *record.rank);
    for (int rank = 0; rank < 2; rank++) {
        write_dump(&record, rank, j);
        ls_record_rank *r = &record.rank[rank];
        r->start = cJSON_Parse(j->start);
        r->step_count = 1;
        r->step = calloc(1, sizeof *r->step);
        r->step->step = 1;
        ls_text_put(r->step->loss_bits, sizeof r->step->loss_bits, "%s",
                    rank == 1 ? j->loss : "40000000");
    }
    return record;
}

static const struct order {
    job subject;
    int level;
    ls_verdict_code code;
    const char *evidence;
} orders[] = {
    {{CPU, "3f800000", 0, 1e-8, false}, 0, LS_PASS, "same local"},
    {{CPU, "3f800000", 0, 1e-6, false}, 0, LS_FAIL, "whole gradient"},
    {{CPU, "3f800000", 1e-7, 1e-8, false}, 0, LS_FAIL, "local gradient of conv1.weight"},
    {{CPU, "3f800001", 0, 0, false}, 0, LS_FAIL, "rank=1: the loss"},
    {{GPU_REPEATS, "3f800000", 1e-7, 1e-8, false}, 0, LS_FAIL, "local gradient of conv1.weight"},
    {{GPU, "3f800000", 0, 1e-6, false}, 0, LS_FAIL, "whole gradient"},
    {{GPU, "3f800001", 0, 1e-6, false}, 0, LS_PASS, "nearly the same local"},
    {{GPU, "3f800000", 1e-6, 1e-6, false}, 0, LS_PASS, "nearly the same local"},
    {{GPU, "3f800000", 1e-6, 1e-4, false}, 0, LS_FAIL, "whole gradient"},
    {{GPU, "3f800000", 1e-3, 1e-4, false}, 0, LS_FAIL, "local gradients"},
    {{GPU, "3f800000", 1e-6, 1e-6, true}, 0, LS_WEAK, "rank=1: branch/000"},
    {{GPU, "3f800000", 1e-3, 1e-3, false}, 2, LS_PASS, "nearly the same local"},
    {{GPU, "3f800000", 1e-3, 1e-2, false}, 2, LS_FAIL, "whole gradient"},
};

ROWS_TEST(order_is_judged, orders)
{
    const struct order *o = &orders[_i];
    job clean = {o->subject.start, "3f800000", 0, 0, false};
    ls_matrix jobs = {0};
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet18");
    ls_text_put(spec.half, sizeof spec.half, "fp16");
    spec.image_size = 64;
    spec.batch_size = 8;
    spec.level = o->level;
    spec.world = 2;
    spec.followed = true;
    for (int i = 0; i < 2; i++) {
        spec.bucket_mb = i + 1;
        ls_matrix_add(&jobs, &spec);
    }
    ls_case_settings settings = {.bench = &jobs};
    ls_case_list list = {0, 0, NULL};
    ls_gradients_timed_cases(&settings, &list);
    const ls_case *row = NULL;
    for (int i = 0; i < list.count; i++) {
        row = strncmp(list.row[i].id, "gradients.order.", 16) == 0 ? &list.row[i] : row;
    }
    ck_assert_ptr_nonnull(row);
    ls_record record[2] = {make_job(&o->subject), make_job(&clean)};
    ls_verdict verdict = {0};
    row->judge(row, record, &verdict);
    ck_assert_msg(verdict.code == o->code && strstr(verdict.evidence, o->evidence) != NULL,
                  "%d: %s", (int)verdict.code, verdict.evidence);
    drop(&record[0]);
    drop(&record[1]);
    ls_rows_free(&list);
    ls_matrix_free(&jobs);
}

/* A device's library takes other engines for the deterministic reference than for the timed job, so
 * that branches turn at O0 too; the CPU's kernels are the same in both. */
LOOP_TEST(o0_is_followed_on_a_device, 2)
{
    bool device = _i == 1;
    ls_matrix jobs = {0};
    ls_matrix_bench bench = {.profile = LS_PROFILE_SMOKE,
                             .ranks = 3,
                             .sim_nodes = 1,
                             .level_count = 1,
                             .level = {0},
                             .bucket_count = 1,
                             .bucket_mb = {25},
                             .arch = "resnet8",
                             .image_size = 224,
                             .batch_size = 1,
                             .device = device,
                             .cores = 2,
                             .data = "synthetic"};
    ls_matrix_bench_jobs(&bench, &jobs);
    ls_case_settings settings = {.bench = &jobs};
    ls_case_list list = {0, 0, NULL};
    ls_gradients_timed_cases(&settings, &list);
    const ls_case *row = fake_case(&list, "gradients.timed.o0.w3.b25mb");
    ck_assert_ptr_nonnull(row);
    char id[96];
    ls_matrix_id(&row->job[0], id);
    ck_assert(device == (strstr(row->job[0].extra, "--dump-ranks=branches") != NULL));
    ck_assert(device == (strstr(row->job[1].extra, "--force-branches") != NULL));
    ck_assert(device == (strstr(row->job[1].extra, id) != NULL));
    ls_rows_free(&list);
    ls_matrix_free(&jobs);
}

TEST_MAIN("timed")
