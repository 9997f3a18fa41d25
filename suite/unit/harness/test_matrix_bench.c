/* Which jobs a bench is made of. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/matrix.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"

static ls_matrix_bench usual(int ranks, ls_profile profile)
{
    ls_matrix_bench bench = {.profile = profile,
                             .ranks = ranks,
                             .sim_nodes = 2,
                             .level_count = 4,
                             .level = {0, 1, 2, 3},
                             .bucket_count = 4,
                             .bucket_mb = {1, 5, 25, LS_BUCKET_DELAYED},
                             .arch = "resnet18",
                             .image_size = 64,
                             .batch_size = 8,
                             .cores = 2,
                             .data = "synthetic",
                             .seed = 7};
    return bench;
}

/* Every way trains the same images a step on the same cores, once in each round; the first job is
 * the matrix's row. */
TEST(baselines_share_images_and_cores)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, LS_PROFILE_BASELINES);
    ls_matrix_bench_jobs(&bench, &matrix);
    ck_assert_int_eq(matrix.count, LS_MATRIX_ROUNDS * (LS_WAYS - 1));
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *spec = &matrix.spec[i];
        ck_assert_int_eq(spec->way, 1 + i % (LS_WAYS - 1));
        ck_assert_int_eq(spec->repeat, i / (LS_WAYS - 1));
        ck_assert_int_eq(spec->steps, matrix.spec[0].steps);
        ck_assert_int_ge(spec->steps, 6 + 1); /* one is audited */
        ck_assert_int_eq(spec->level, 0);     /* fp16 is emulated on a CPU */
        ck_assert_int_eq(spec->world * spec->batch_size, 16);
        ck_assert_int_eq(spec->world * spec->threads, 2);
        ck_assert_int_eq(ls_matrix_is_row(spec), i == 0);
        ck_assert_int_eq(strstr(spec->extra, "-parallel") != NULL, ls_spec_is_team(spec));
        ck_assert_ptr_nonnull(strstr(spec->extra, "--workers=4"));
        bool first = spec->repeat == 0; /* its first step's gradient is checked */
        ck_assert_str_eq(spec->dump_steps, first ? "1" : "");
        ck_assert_int_eq(spec->followed, first && spec->world == 1);
        int parts = spec->way == LS_WAY_REPLICAS ? 2 : spec->way == LS_WAY_PIPELINE ? 4 : 1;
        ck_assert_int_eq(spec->parts, spec->world == 1 ? parts : 0);
    }
    ls_matrix_free(&matrix);
    ls_text_put(bench.half, sizeof bench.half, "bf16");
    ls_matrix_bench_jobs(&bench, &matrix);
    ck_assert_int_eq(matrix.spec[0].level, 1);
    for (int i = 0; i < matrix.count; i++) { /* every rank's branches, where there are others */
        const ls_spec *spec = &matrix.spec[i];
        bool first = spec->repeat == 0;
        ck_assert_int_eq(spec->followed, first);
        ck_assert_int_eq(strstr(spec->extra, "--dump-ranks=branches") != NULL,
                         first && spec->world > 1);
    }
    ls_matrix_free(&matrix);
}

static const ls_spec *of_role(const ls_matrix *matrix, ls_role role, int level, int world)
{
    for (int i = 0; i < matrix->count; i++) {
        const ls_spec *spec = &matrix->spec[i];
        if (spec->role == role && spec->level == level && spec->world == world) {
            return spec;
        }
    }
    return NULL;
}

TEST(every_run_of_the_curves_has_its_own_options)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, LS_PROFILE_QUICK);
    ls_matrix_bench_jobs(&bench, &matrix);
    const ls_spec *curves = of_role(&matrix, LS_ROLE_CURVES, -1, LS_MATRIX_BAND_RUNS + 3);
    ck_assert_ptr_nonnull(curves);
    ck_assert_str_eq(curves->each,
                     "--opt-level=O0 --seed=7|--opt-level=O0 --seed=8|--opt-level=O0 "
                     "--seed=9|--opt-level=O0 --seed=10|--opt-level=O0 --seed=11|--opt-level=O0 "
                     "--seed=12|--opt-level=O0 --seed=13|--opt-level=O0 --seed=14|--opt-level=O0 "
                     "--seed=15|--opt-level=O0 --seed=16|--opt-level=O1 --loss-scale=dynamic "
                     "--init-scale=1024|--opt-level=O2 --loss-scale=dynamic "
                     "--init-scale=1024|--opt-level=O3 --loss-scale=128");
    ls_matrix_site site = {.subject = "t", .run_directory = "/r", .device = "cpu", .cores = 2};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(curves, &site, &job), LS_OK);
    ck_assert_str_eq(job.command.word[0], "sh");
    const char *script = job.command.word[2];
    ck_assert_ptr_nonnull(strstr(script, " 0) set -- \"$@\" --opt-level=O0 --seed=7 ;;"));
    ck_assert_ptr_nonnull(strstr(script, " 9) set -- \"$@\" --opt-level=O0 --seed=16 ;;"));
    ck_assert_ptr_nonnull(strstr(script, " 12) set -- \"$@\" --opt-level=O3"));
    ls_job_free(&job);
    ls_matrix_free(&matrix);
}

/* bf16 needs no loss scale; O0 has no half type. */
TEST(half_levels_of_the_other_type)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, LS_PROFILE_QUICK);
    ls_text_put(bench.half, sizeof bench.half, "bf16");
    ls_matrix_bench_jobs(&bench, &matrix);
    int half = 0, single = 0;
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *spec = &matrix.spec[i];
        if (spec->role != LS_ROLE_THROUGHPUT) {
            continue;
        }
        ck_assert_str_eq(spec->half, spec->level > 0 ? "bf16" : "fp16");
        ck_assert_str_eq(spec->loss_scale, "");
        ck_assert_msg(strstr(spec->extra, "scale") == NULL, "%s", spec->extra);
        half += spec->level > 0;
        single += spec->level == 0;
    }
    ck_assert_int_gt(half, 3);
    ck_assert_int_gt(single, 0);
    const ls_spec *curves = of_role(&matrix, LS_ROLE_CURVES, -1, LS_MATRIX_BAND_RUNS + 3);
    ck_assert_ptr_nonnull(strstr(curves->each, "|--opt-level=O1 --half=bf16|--opt-level=O2 "
                                               "--half=bf16|--opt-level=O3 --half=bf16"));
    ls_matrix_free(&matrix);
}

/* Twice, on as many GPUs of one machine as have a rank; none without a GPU or on several hosts. */
TEST(every_gpu_computes_the_same_twice)
{
    static const struct {
        int ranks, gpus, hosts, world;
    } machines[] = {{8, 4, 0, 4}, {2, 4, 1, 2}, {8, 0, 0, 0}, {8, 4, 2, 0}};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        ls_matrix matrix = {0, 0, NULL, NULL};
        ls_matrix_bench bench = usual(machines[m].ranks, LS_PROFILE_QUICK);
        int count = 0;
        bench.gpus = machines[m].gpus;
        bench.hosts = machines[m].hosts;
        ls_matrix_bench_jobs(&bench, &matrix);
        for (int i = 0; i < matrix.count; i++) {
            const ls_spec *spec = &matrix.spec[i];
            if (spec->role == LS_ROLE_SDC) {
                ck_assert_int_eq(spec->repeat, count++);
                ck_assert_int_eq(spec->world, machines[m].world);
                ck_assert_int_eq(spec->batch_size, bench.batch_size);
                ck_assert_int_eq(spec->image_size, bench.image_size);
                ck_assert_str_eq(spec->arch, bench.arch);
                ck_assert_uint_eq(spec->seed, bench.seed);
            }
        }
        ck_assert_int_eq(count, machines[m].world > 0 ? 2 : 0);
        ls_matrix_free(&matrix);
    }
}

TEST(rated_steps_depend_on_no_machine)
{
    ls_matrix small = {0, 0, NULL, NULL}, large = small;
    ls_matrix_bench bench = usual(8, LS_PROFILE_RATED);
    ls_matrix_bench_jobs(&bench, &small);
    bench.cores = 64;
    ls_matrix_bench_jobs(&bench, &large);
    ck_assert_int_eq(small.count, large.count);
    for (int i = 0; i < small.count; i++) {
        ck_assert_int_eq(small.spec[i].steps, large.spec[i].steps);
        ck_assert_int_eq(small.spec[i].warmup_steps, large.spec[i].warmup_steps);
    }
    ls_matrix_free(&small);
    ls_matrix_free(&large);
}

static bool pair_stands(const ls_matrix *matrix, int level, double bucket_mb, int world, int nodes)
{
    for (int i = 0; i < matrix->count; i++) {
        const ls_spec *spec = &matrix->spec[i];
        if (spec->role == LS_ROLE_THROUGHPUT && (level < 0 || spec->level == level) &&
            (bucket_mb < 0 || spec->bucket_mb == bucket_mb) &&
            (world < 0 || spec->world == world) && (nodes < 0 || spec->nodes == nodes)) {
            return true;
        }
    }
    return false;
}

TEST(full_covers_every_pair_and_not_the_product)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(8, LS_PROFILE_FULL);
    ls_matrix_bench_jobs(&bench, &matrix);
    static const int worlds[] = {1, 2, 4, 8};
    for (int level = 0; level < 4; level++) {
        for (int b = 0; b < 4; b++) {
            ck_assert(pair_stands(&matrix, level, bench.bucket_mb[b], -1, -1));
        }
        for (int w = 0; w < 4; w++) {
            ck_assert(pair_stands(&matrix, level, -1, worlds[w], -1));
            for (int b = 0; b < 4 && w > 0; b++) {
                ck_assert(pair_stands(&matrix, -1, bench.bucket_mb[b], worlds[w], -1));
            }
            ck_assert(w == 0 || pair_stands(&matrix, -1, -1, worlds[w], 2));
        }
        for (int nodes = 1; nodes <= 2; nodes++) {
            ck_assert(pair_stands(&matrix, level, -1, -1, nodes));
            ck_assert(pair_stands(&matrix, -1, bench.bucket_mb[level], -1, nodes));
        }
    }
    int rows = 0;
    for (int i = 0; i < matrix.count; i++) {
        rows += matrix.spec[i].role == LS_ROLE_THROUGHPUT;
    }
    ck_assert_int_lt(rows, 32); /* the cross product has 4 * 4 * 3 * 2 + 4 */
    ls_matrix_free(&matrix);
}

TEST(timed_steps_can_be_halved_and_keep_the_time)
{
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        ls_matrix_bench bench = usual(ranks, LS_PROFILE_QUICK);
        ls_matrix matrix = {0, 0, NULL, NULL};
        ls_matrix_bench_jobs(&bench, &matrix);
        double seconds = 0;
        for (int i = 0; i < matrix.count; i++) {
            const ls_spec *spec = &matrix.spec[i];
            seconds += ls_matrix_estimate_s(spec, 2);
            int audited = !ls_spec_is_timed(spec)                 ? 0
                          : spec->steps < LS_MATRIX_AUDITED_TWICE ? 1
                                                                  : 2;
            int measured = spec->steps - audited; /* what figures are made of */
            ck_assert(spec->role == LS_ROLE_PHASES || (measured >= 4 && measured % 2 == 0));
        }
        ck_assert(seconds < 300); /* evidence, references and the report have the sixth minute */
        ls_matrix_free(&matrix);
    }
}

/* Rows and baselines, each from its first timed step on, each with a seed of its own, also where
 * two runs differ in theirs only; nothing else, and no other subject. */
TEST(timed_jobs_of_ours_are_audited_each_in_other_steps)
{
    enum { MOST = 128 };
    char seeds[MOST][32];
    int count = 0;
    for (unsigned run = 7; run < 9; run++) {
        ls_matrix_bench bench = usual(8, LS_PROFILE_QUICK);
        ls_matrix matrix = {0, 0, NULL, NULL};
        bench.seed = run;
        ls_matrix_bench_jobs(&bench, &matrix);
        for (int i = 0; i < matrix.count; i++) {
            const ls_spec *spec = &matrix.spec[i];
            ls_matrix_site site = {.run_directory = "/nowhere", .device = "cpu", .cores = 2};
            ls_job job;
            ck_assert_int_eq(ls_matrix_job(spec, &site, &job), LS_OK);
            const char *found = NULL;
            for (int k = 0; k < job.command.count; k++) {
                found =
                    strncmp(job.command.word[k], "--audit=", 8) == 0 ? job.command.word[k] : found;
            }
            ck_assert((found != NULL) == ls_spec_is_timed(spec));
            int seed_bytes = 0, every = 0, from = 0;
            if (found != NULL) {
                ck_assert_int_eq(sscanf(found, "--audit=%*u%n:%d:%d", &seed_bytes, &every, &from),
                                 2);
                ck_assert_int_eq(every, spec->steps < 16 ? spec->steps : spec->steps / 2);
                ck_assert_int_eq(from, spec->warmup_steps + 1);
                ls_text_put(seeds[count], 32, "%.*s", seed_bytes, found);
                for (int k = 0; k < count; k++) {
                    ck_assert_str_ne(seeds[k], seeds[count]);
                }
                ck_assert_int_lt(++count, MOST);
            }
            ls_job_free(&job);
        }
        ls_matrix_free(&matrix);
    }
    ck_assert_int_ge(count, 2 * 14);
}

/* ---- whole plans ----------------------------------------------------------------------------- */

/* One line for each job: role, level, bucket, world, nodes (real ones with an r), threads, warm-up
 * and timed steps, batch, learning rate, scale, dumps (followed with an f, on resident batches with
 * an r, engines chosen by time with an e), sweeps, further options. */
static void print_plan(FILE *to, const ls_matrix *matrix)
{
    for (int i = 0; i < matrix->count; i++) {
        const ls_spec *s = &matrix->spec[i];
        fprintf(to, "%.5s O%d %g w%d n%d%s t%d %d+%d x%d %g %s %s%s%s%s %u %s%s\n",
                ls_spec_role_name(s->role), s->level, s->bucket_mb, s->world, s->nodes,
                s->real_nodes ? "r" : "", s->threads, s->warmup_steps, s->steps, s->batch_size,
                s->lr, s->loss_scale[0] == '\0' ? "-" : s->loss_scale,
                s->dump_steps[0] == '\0' ? "-" : s->dump_steps, s->followed ? "f" : "",
                s->resident > 0 ? "r" : "", s->engines ? "e" : "", s->sweep, s->extra,
                s->repeat > 0 ? " again" : "");
    }
}

/* All levels and the usual buckets. */
#define USUAL(of, ranks_, hosts_, nodes, gpus_, cores_, steps_, buckets, batch)                   \
    {                                                                                             \
        .profile = LS_PROFILE_##of, .ranks = ranks_, .hosts = hosts_, .sim_nodes = nodes,         \
        .gpus = gpus_, .cores = cores_, .steps = steps_, .level_count = 4, .level = {0, 1, 2, 3}, \
        .bucket_count = buckets, .bucket_mb = {1, 5, 25}, .batch_size = batch,                    \
        .device = gpus_ > 0, .data = "synthetic"                                                  \
    }

static const ls_matrix_bench planned[] = {
    USUAL(SMOKE, 4, 0, 2, 0, 2, 0, 4, 8),
    USUAL(QUICK, 6, 0, 2, 0, 2, 0, 4, 8),
    USUAL(RATED, 8, 2, 1, 8, 64, 0, 4, 8),
    USUAL(QUICK, 1, 0, 2, 1, 16, 10, 3, 2),
    USUAL(FULL, 6, 0, 2, 0, 8, 0, 3, 4),
    /* worlds that are no powers of two, levels without O2 and O0, buckets as near to 25 MB */
    {.profile = LS_PROFILE_QUICK,
     .ranks = 10,
     .hosts = 2,
     .level_count = 2,
     .level = {3, 1, 2, 0},
     .bucket_count = 2,
     .bucket_mb = {30, 20, 25},
     .steps = 1},
    {.profile = LS_PROFILE_QUICK,
     .ranks = 2,
     .level_count = 3,
     .level = {3, 0, 1, 2},
     .bucket_count = 2,
     .bucket_mb = {30, 20.5, 25},
     .steps = 13},
    /* steps that are given, up to where a job is audited twice */
    {.profile = LS_PROFILE_SMOKE, .ranks = 1, .level_count = 1, .level = {0}, .steps = 14},
    {.profile = LS_PROFILE_SMOKE, .ranks = 1, .level_count = 1, .level = {2}, .steps = 12},
    /* and those that fit: at least 4, at most 200 */
    {.profile = LS_PROFILE_SMOKE, .ranks = 16, .level_count = 1, .level = {2}, .batch_size = 64},
    {.profile = LS_PROFILE_FULL, .ranks = 1, .level_count = 1, .level = {2}, .cores = 64},
    /* every pair without simulated nodes; O0 alone */
    {.profile = LS_PROFILE_FULL,
     .ranks = 2,
     .sim_nodes = 1,
     .level_count = 2,
     .level = {0, 2},
     .bucket_count = 2,
     .bucket_mb = {25, 1},
     .steps = 4},
    {.profile = LS_PROFILE_QUICK, .ranks = 1, .level_count = 1, .level = {0}, .steps = 4},
};

TEST(whole_plans_word_for_word)
{
    char *all = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&all, &bytes);
    for (size_t p = 0; p < sizeof planned / sizeof *planned; p++) {
        ls_matrix matrix = {0, 0, NULL, NULL};
        ls_matrix_bench bench = planned[p];
        ls_text_put(bench.arch, sizeof bench.arch, "resnet18");
        if (bench.data[0] == '\0') {
            ls_text_put(bench.data, sizeof bench.data, "/images");
        }
        ls_text_put(bench.files, sizeof bench.files, "%s", bench.device ? "/files" : "");
        bench.image_size = 64;
        bench.seed = 7;
        bench.batch_size = bench.batch_size > 0 ? bench.batch_size : 1;
        bench.cores = bench.cores > 0 ? bench.cores : 2;
        bench.bucket_count = bench.bucket_count > 0 ? bench.bucket_count : 1;
        ls_matrix_bench_jobs(&bench, &matrix);
        fprintf(to, "==== plan %zu\n", p);
        print_plan(to, &matrix);
        for (int i = 0; i < matrix.count; i++) { /* the same for all jobs */
            const ls_spec *spec = &matrix.spec[i];
            bool curves = spec->role == LS_ROLE_CURVES;
            ck_assert_str_eq(spec->arch, curves ? "resnet8" : "resnet18");
            ck_assert_int_eq(spec->image_size, curves ? 16 : 64);
            ck_assert_uint_eq(spec->seed, 7);
            ck_assert_str_eq(spec->data, spec->role == LS_ROLE_LOADER ? "/files"
                                         : spec->role == LS_ROLE_SDC  ? "synthetic"
                                                                      : bench.data);
            ck_assert_int_eq(spec->gpus, bench.device && !curves ? bench.gpus : 0);
            ck_assert_int_eq(spec->deterministic, spec->role == LS_ROLE_SDC);
            ck_assert_int_eq(spec->wrap,
                             curves || spec->role == LS_ROLE_SDC ? LS_WRAP_EACH : LS_WRAP_NONE);
        }
        ls_matrix_free(&matrix);
        ck_assert(matrix.spec == NULL && matrix.id == NULL && matrix.count == 0);
        ck_assert_int_eq(matrix.capacity, 0); /* it can be filled again */
    }
    fclose(to);
    golden_check("suite/unit/harness/expected/plans.txt", golden_short(all, 1));
}

/* Half of a profile's time for the steps of a job on a GPU, 20 to 200; 8 on an emulated one. */
LOOP_TEST(steps_of_gpus, 8)
{
    static const struct {
        const char *arch;
        ls_profile profile;
        int image_size, batch_size, gpus, given, steps;
        bool emulated;
    } rows[] = {
        /* 7.5, 15 and 3 s of 0.0728 s a step, less four that warm up, even */
        {"resnet50", LS_PROFILE_QUICK, 224, 256, 2, 0, 98, false},
        {"resnet50", LS_PROFILE_FULL, 224, 256, 2, 0, 200, false},
        {"resnet50", LS_PROFILE_SMOKE, 224, 256, 2, 0, 36, false},
        {"resnet8", LS_PROFILE_QUICK, 32, 8, 2, 0, 200, false},
        {"resnet50", LS_PROFILE_RATED, 224, 256, 2, 0, 24, false},
        {"resnet50", LS_PROFILE_QUICK, 224, 256, 2, 6, 6, false},
        {"resnet20", LS_PROFILE_QUICK, 16, 4, 2, 0, 8, true},
        {"resnet20", LS_PROFILE_QUICK, 16, 4, 2, 10, 10, true},
    };
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, rows[_i].profile);
    ls_text_put(bench.arch, sizeof bench.arch, "%s", rows[_i].arch);
    bench.image_size = rows[_i].image_size;
    bench.batch_size = rows[_i].batch_size;
    bench.gpus = rows[_i].gpus;
    bench.steps = rows[_i].given;
    bench.emulated = rows[_i].emulated;
    bench.device = true;
    ls_matrix_bench_jobs(&bench, &matrix);
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *spec = &matrix.spec[i];
        if (spec->role == LS_ROLE_THROUGHPUT) { /* the same number at all levels */
            int timed = rows[_i].steps;
            ck_assert_int_eq(spec->steps, timed + (timed + 2 < 16 ? 1 : 2));
            ck_assert_int_eq(spec->warmup_steps, 4);
            ck_assert_int_eq(spec->gpus, rows[_i].emulated ? 0 : 2);
        }
    }
    ls_matrix_free(&matrix);
}

/* Of timed jobs at O1 and above; their deterministic twins have none, and one job compares. */
LOOP_TEST(fused_products, 2)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, _i == 0 ? LS_PROFILE_SMOKE : LS_PROFILE_QUICK);
    int unfused = 0;
    bench.device = bench.fuse = true;
    ls_matrix_bench_jobs(&bench, &matrix);
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *spec = &matrix.spec[i], first = ls_matrix_first_step(spec),
                      same = ls_matrix_deterministic(spec, 2);
        char label[64];
        if (!ls_spec_is_timed(spec)) {
            continue;
        }
        bool base = spec->role == LS_ROLE_UNFUSED;
        unfused += base;
        ck_assert_int_eq(spec->fuse, spec->level > 0 && !base);
        ck_assert_int_eq(first.fuse, spec->fuse);
        ck_assert(!same.fuse);
        ls_matrix_label(spec, label);
        ck_assert_msg((strstr(label, "O2 fused, ") != NULL) == (spec->fuse && spec->level == 2) &&
                          (strstr(label, ", not fused") != NULL) == base,
                      "%s", label);
        cJSON *facts = ls_spec_facts(spec);
        ls_spec read;
        ls_spec_read(facts, &read);
        ck_assert_int_eq(read.fuse, spec->fuse);
        cJSON_Delete(facts);
        ls_job job;
        ls_matrix_site site = {.run_directory = "/run", .device = "cuda", .cores = 2};
        ck_assert_int_eq(ls_matrix_job(spec, &site, &job), LS_OK);
        bool given = false;
        for (int k = 0; k < job.command.count; k++) {
            given = given || strcmp(job.command.word[k], "--fuse") == 0;
        }
        ck_assert_int_eq(given, spec->fuse);
        ls_job_free(&job);
    }
    ck_assert_int_eq(unfused, 1);
    ls_matrix_free(&matrix);
}

/* Where batches stay on the device, the first step is dumped by a job that loads it. */
TEST(first_steps_of_timed_jobs)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, LS_PROFILE_QUICK);
    char id[96], own[96], line[2048];
    ls_matrix_bench_jobs(&bench, &matrix);
    for (int i = 0; i < matrix.count; i++) { /* on a CPU it is the job itself */
        ls_spec first = ls_matrix_first_step(&matrix.spec[i]);
        ls_matrix_id(&first, id);
        ck_assert_str_eq(id, matrix.id[i]);
        ck_assert_int_eq(first.role, matrix.spec[i].role);
    }
    ls_matrix_free(&matrix);
    bench.device = true;
    ls_matrix_bench_jobs(&bench, &matrix);
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *timed = &matrix.spec[i];
        ls_spec first = ls_matrix_first_step(timed);
        ls_matrix_id(&first, id);
        if (timed->role != LS_ROLE_THROUGHPUT) {
            continue;
        }
        ck_assert_str_ne(id, matrix.id[i]);
        ls_matrix_site site = {.run_directory = "/run", .device = "cuda", .cores = 2};
        ls_job job;
        ck_assert_int_eq(ls_matrix_job(&first, &site, &job), LS_OK);
        line[0] = '\0';
        for (int k = 0; k < job.command.count; k++) {
            ls_text_add(line, sizeof line, "%s ", job.command.word[k]);
        }
        ls_job_free(&job);
        ck_assert_msg(strstr(line, "--steps=1 ") != NULL, "%s", line);
        ck_assert_msg(strstr(line, "--dump-steps=1 ") != NULL, "%s", line);
        ck_assert_msg(strstr(line, "--engines=/run/engines.txt ") != NULL, "%s", line);
        ck_assert_msg((strstr(line, "--dump-ranks=branches ") != NULL) == (first.world > 1), "%s",
                      line);
        ck_assert_msg(strstr(line, "--resident") == NULL && strstr(line, "--audit") == NULL, "%s",
                      line);
        ck_assert_int_eq(first.role, LS_ROLE_EVIDENCE);
        ck_assert_int_eq(first.sweep, 0);
        /* nothing else differs */
        ls_text_put(first.dump_steps, sizeof first.dump_steps, "%s", timed->dump_steps);
        ls_text_put(first.extra, sizeof first.extra, "%s", timed->extra);
        first.resident = timed->resident;
        first.warmup_steps = timed->warmup_steps;
        first.steps = timed->steps;
        ls_matrix_id(&first, own);
        ck_assert_str_eq(own, matrix.id[i]);
        /* the form that gives the same bits every time */
        ls_spec same = ls_matrix_deterministic(timed, 4);
        ck_assert(same.deterministic && !same.engines && same.dump_steps[0] == '\0');
        ck_assert_int_eq(same.role, LS_ROLE_EVIDENCE);
        ck_assert_int_eq(same.warmup_steps + same.resident + (int)same.sweep, 0);
        ck_assert_int_eq(same.steps, 4);
        ck_assert_str_eq(same.extra, timed->extra);
    }
    ls_matrix_free(&matrix);
}

TEST_MAIN("matrix_bench")
