/* The bench's choice of jobs, and how long jobs take. */
#include "matrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

/* Forward multiply-adds of one image at the reference size, in 10^9, and parameters in 10^6
 * (torchvision's documentation; He et al. 2015, table 6 for the CIFAR networks). */
static const struct network {
    const char *name;
    int image_size;
    double gmacs, params_m;
} network[] = {
    {"resnet18", 224, 1.81, 11.7},  {"resnet34", 224, 3.66, 21.8},   {"resnet50", 224, 4.09, 25.6},
    {"resnet101", 224, 7.80, 44.5}, {"resnet152", 224, 11.51, 60.2}, {"resnet8", 32, 0.0125, 0.08},
    {"resnet20", 32, 0.041, 0.27},  {"resnet32", 32, 0.069, 0.46},   {"resnet44", 32, 0.098, 0.66},
    {"resnet56", 32, 0.126, 0.85},  {"resnet110", 32, 0.255, 1.7},
};

static const struct network *find_network(const char *arch)
{
    for (size_t i = 0; i < sizeof network / sizeof *network; i++) {
        if (strcmp(network[i].name, arch) == 0) {
            return &network[i];
        }
    }
    return &network[2];
}

double ls_matrix_gmacs(const char *arch, int image_size)
{
    const struct network *found = find_network(arch);
    double ratio = (double)image_size / found->image_size;
    return found->gmacs * ratio * ratio;
}

double ls_matrix_estimate_s(const ls_spec *spec, int cores)
{
    /* Fitted on 2 Zen 5 cores; see ls_matrix_bench_steps for what hangs on it. */
    const double start_s = 0.4, start_rank_s = 0.35; /* spread over the cores */
    const double core_gflop_per_s = 45;              /* whole training step, f32 */
    const double half_cost = 1.5;                    /* emulated half against f32 */
    const double rank_gb_per_s = 0.35;               /* reduction and update, per core in use */
    int used = spec->world < cores ? spec->world : cores;
    if (spec->world == 1 && spec->threads != 1) {
        used = cores;
    }
    double images = (double)spec->world * spec->batch_size * spec->accumulate;
    double gflop = images * ls_matrix_gmacs(spec->arch, spec->image_size) * 6;
    double compute_s = gflop / (core_gflop_per_s * used) * (spec->level > 0 ? half_cost : 1);
    double gradient_gb = find_network(spec->arch)->params_m * 4e-3;
    double update_s = spec->world * gradient_gb / (rank_gb_per_s * used);
    double step_s = compute_s + update_s + 0.002 * spec->world;
    double dump_s = spec->dump_steps[0] == '\0' ? 0 : 0.2 + gradient_gb * 8;
    int steps = spec->wrap == LS_WRAP_KILL ? spec->kill_step : spec->warmup_steps + spec->steps;
    return start_s + start_rank_s * spec->world / (double)used + steps * step_s + dump_s;
}

/* A rank has the same share of the cores at every world size, or worlds could not be compared. */
static int share_of_cores(const ls_matrix_bench *bench)
{
    int share = bench->cores / bench->ranks;
    return share < 1 ? 1 : share;
}

void ls_matrix_bench_steps(const ls_matrix_bench *bench, int world, int *warmup_steps, int *steps)
{
    *warmup_steps = bench->profile == LS_PROFILE_SMOKE ? 1 : 2;
    if (bench->steps > 0) {
        *steps = bench->steps;
        return;
    }
    /* Seconds of one job so that the profile keeps its time on 2 cores: smoke 3 timed jobs in a
     * minute, quick 11 in 6 minutes, beside evidence, references and the report. Never below 4
     * timed steps (two halves of two), never above 200. */
    double budget_s = bench->profile == LS_PROFILE_SMOKE   ? 6
                      : bench->profile == LS_PROFILE_QUICK ? 18
                                                           : 30;
    ls_spec one = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    ls_text_put(one.arch, sizeof one.arch, "%s", bench->arch);
    one.image_size = bench->image_size;
    one.batch_size = bench->batch_size;
    one.world = world;
    one.threads = share_of_cores(bench);
    one.level = 2;
    one.steps = 0;
    double start_s = ls_matrix_estimate_s(&one, bench->cores);
    one.steps = 1;
    double step_s = ls_matrix_estimate_s(&one, bench->cores) - start_s;
    double fit = floor((budget_s - start_s) / step_s) - *warmup_steps;
    *steps = fit < 4 ? 4 : fit > 200 ? 200 : (int)fit & ~1;
}

static void add_job(const ls_matrix_bench *bench, ls_matrix *matrix, int level, double bucket_mb,
                    int world, int nodes, unsigned sweep)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    ls_text_put(spec.arch, sizeof spec.arch, "%s", bench->arch);
    spec.image_size = bench->image_size;
    spec.batch_size = bench->batch_size;
    spec.level = level;
    spec.bucket_mb = bucket_mb;
    spec.world = world;
    spec.threads = share_of_cores(bench);
    spec.nodes = nodes;
    spec.seed = bench->seed;
    spec.sweep = sweep;
    spec.lr = 0.01; /* 8 images a rank are noisy, and the curves should be worth looking at */
    /* A fresh network overflows at the dynamic start of 65536 and takes no step then (numerics.md
     * 4). */
    if (level == 1 || level == 2) {
        ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "dynamic");
        ls_text_put(spec.extra, sizeof spec.extra, "--init-scale=1024");
    } else if (level == 3) {
        ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "128");
    }
    ls_text_put(spec.data, sizeof spec.data, "%s", bench->data);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1");
    ls_matrix_bench_steps(bench, world, &spec.warmup_steps, &spec.steps);
    ls_matrix_add(matrix, &spec);
}

static bool has_level(const ls_matrix_bench *bench, int level)
{
    for (int i = 0; i < bench->level_count; i++) {
        if (bench->level[i] == level) {
            return true;
        }
    }
    return false;
}

/* The middle of the cross: O2 and 25 MB, or the nearest that was asked for. */
static int middle_level(const ls_matrix_bench *bench)
{
    return has_level(bench, 2) ? 2 : bench->level[bench->level_count - 1];
}

static double middle_bucket(const ls_matrix_bench *bench)
{
    double best = bench->bucket_mb[0];
    for (int i = 1; i < bench->bucket_count; i++) {
        if (fabs(bench->bucket_mb[i] - 25) < fabs(best - 25)) {
            best = bench->bucket_mb[i];
        }
    }
    return best;
}

static void add_phases(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_PHASES);
    spec.threads = share_of_cores(bench);
    ls_text_put(spec.arch, sizeof spec.arch, "%s", bench->arch);
    spec.image_size = bench->image_size;
    spec.batch_size = bench->batch_size;
    spec.level = middle_level(bench);
    spec.bucket_mb = middle_bucket(bench);
    spec.world = bench->ranks;
    spec.seed = bench->seed;
    spec.warmup_steps = 1;
    spec.steps = 2;
    ls_text_put(spec.extra, sizeof spec.extra, "--trace");
    if (spec.level > 0) {
        ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "128");
    }
    ls_text_put(spec.data, sizeof spec.data, "%s", bench->data);
    ls_matrix_add(matrix, &spec);
}

void ls_matrix_bench_jobs(const ls_matrix_bench *bench, ls_matrix *matrix)
{
    int level = middle_level(bench);
    double bucket = middle_bucket(bench);
    int ranks = bench->ranks;
    if (bench->profile == LS_PROFILE_FULL) {
        /* Levels x buckets, levels x worlds, buckets x nodes: every pair of settings stands
         * somewhere. */
        for (int l = 0; l < bench->level_count; l++) {
            for (int b = 0; b < bench->bucket_count; b++) {
                add_job(bench, matrix, bench->level[l], bench->bucket_mb[b], ranks, 1, 0);
            }
            for (int world = 1; world < ranks; world *= 2) {
                double cap = bench->bucket_mb[(l + world) % bench->bucket_count];
                add_job(bench, matrix, bench->level[l], cap, world, 1, 0);
            }
        }
    }
    if (bench->profile == LS_PROFILE_SMOKE) {
        add_job(bench, matrix, 0, bucket, ranks, 1, LS_SWEEP_LEVEL);
        add_job(bench, matrix, level, bucket, 1, 1, LS_SWEEP_WORLD);
        add_job(bench, matrix, level, bucket, ranks, 1, 15);
        return;
    }
    for (int l = 0; l < bench->level_count; l++) {
        add_job(bench, matrix, bench->level[l], bucket, ranks, 1, LS_SWEEP_LEVEL);
    }
    for (int b = 0; b < bench->bucket_count; b++) {
        add_job(bench, matrix, level, bench->bucket_mb[b], ranks, 1, LS_SWEEP_BUCKET);
    }
    for (int world = 1; world < ranks; world *= 2) {
        add_job(bench, matrix, level, bucket, world, 1, LS_SWEEP_WORLD);
    }
    add_job(bench, matrix, level, bucket, ranks, 1, LS_SWEEP_WORLD | LS_SWEEP_NODES);
    if (bench->sim_nodes > 1 && ranks % bench->sim_nodes == 0 && ranks > 1) {
        add_job(bench, matrix, level, bucket, ranks, bench->sim_nodes, LS_SWEEP_NODES);
    }
    if (bench->profile == LS_PROFILE_FULL && bench->sim_nodes > 1 && ranks > 1) {
        for (int b = 0; b < bench->bucket_count; b++) {
            add_job(bench, matrix, level, bench->bucket_mb[b], ranks, bench->sim_nodes, 0);
        }
    }
    add_phases(bench, matrix);
}
