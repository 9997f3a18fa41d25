/* Which jobs a bench is made of, and how a spec becomes a command. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/process/proc_isolated.h"
#include "harness/run/matrix_bench.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/json.h"
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

static int count_of(const ls_matrix *matrix, int level, double bucket_mb, int world, int nodes)
{
    int count = 0;
    for (int i = 0; i < matrix->count; i++) {
        const ls_spec *spec = &matrix->spec[i];
        count += spec->role == LS_ROLE_THROUGHPUT && spec->level == level &&
                 spec->bucket_mb == bucket_mb && spec->world == world && spec->nodes == nodes;
    }
    return count;
}

START_TEST(quick_varies_one_factor_at_a_time)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(8, LS_PROFILE_QUICK);
    ls_matrix_bench_jobs(&bench, &matrix);
    for (int level = 0; level < 4; level++) {
        ck_assert_int_eq(count_of(&matrix, level, 25, 8, 1), 1);
    }
    ck_assert_int_eq(count_of(&matrix, 2, 1, 8, 1), 1);
    ck_assert_int_eq(count_of(&matrix, 2, 5, 8, 1), 1);
    ck_assert_int_eq(count_of(&matrix, 2, LS_BUCKET_DELAYED, 8, 1), 1);
    for (int world = 1; world < 8; world *= 2) {
        ck_assert_int_eq(count_of(&matrix, 2, 25, world, 1), 1);
    }
    ck_assert_int_eq(count_of(&matrix, 2, 25, 8, 2), 1);
    int rows = 0;
    for (int i = 0; i < matrix.count; i++) {
        rows += ls_matrix_is_row(&matrix.spec[i]);
    }
    ck_assert_int_eq(rows, 12); /* 11 timed and the phases job */
    ck_assert_int_eq(matrix.count - rows, 4);
    ls_matrix_free(&matrix);
}
END_TEST

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

START_TEST(what_a_row_is_compared_with_differs_in_one_thing)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(8, LS_PROFILE_QUICK);
    ls_matrix_bench_jobs(&bench, &matrix);
    const ls_spec *row = of_role(&matrix, LS_ROLE_THROUGHPUT, 2, 8);
    const ls_spec *twin = of_role(&matrix, LS_ROLE_NO_COMM, 2, 8);
    ck_assert(twin != NULL && strstr(twin->extra, "--no-reduce") != NULL);
    ck_assert_int_eq(twin->steps, row->steps);
    ck_assert_int_eq(twin->batch_size, row->batch_size);
    ck_assert_str_eq(twin->dump_steps, "");
    const ls_spec *alone = of_role(&matrix, LS_ROLE_THROUGHPUT, 2, 1);
    const ls_spec *self = of_role(&matrix, LS_ROLE_DDP_WORLD1, 2, 1);
    ck_assert(self != NULL && strstr(self->extra, "--comm=self") != NULL);
    ck_assert(strstr(alone->extra, "--comm") == NULL);
    ck_assert_int_eq(self->steps, alone->steps);
    const ls_spec *strong = of_role(&matrix, LS_ROLE_STRONG_SCALING, 2, 1);
    ck_assert_int_eq(strong->batch_size, 8 * row->batch_size);
    ls_matrix_free(&matrix);
}
END_TEST

START_TEST(every_run_of_the_curves_has_its_own_options)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, LS_PROFILE_QUICK);
    ls_matrix_bench_jobs(&bench, &matrix);
    const ls_spec *curves = of_role(&matrix, LS_ROLE_CURVES, -1, LS_MATRIX_BAND_RUNS + 3);
    ck_assert_ptr_nonnull(curves);
    ck_assert_str_eq(curves->each,
                     "--opt-level=O0 --seed=7|--opt-level=O0 --seed=8|--opt-level=O0 --seed=9|"
                     "--opt-level=O0 --seed=10|--opt-level=O0 --seed=11|--opt-level=O0 --seed=12|"
                     "--opt-level=O0 --seed=13|--opt-level=O0 --seed=14|--opt-level=O0 --seed=15|"
                     "--opt-level=O0 --seed=16|"
                     "--opt-level=O1 --loss-scale=dynamic --init-scale=1024|"
                     "--opt-level=O2 --loss-scale=dynamic --init-scale=1024|"
                     "--opt-level=O3 --loss-scale=128");
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
END_TEST

/* Twice, on as many GPUs of one machine as have a rank; none without a GPU or on several hosts. */
START_TEST(every_gpu_computes_the_same_twice)
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
END_TEST

START_TEST(rated_steps_depend_on_no_machine)
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
END_TEST

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

START_TEST(full_covers_every_pair_and_not_the_product)
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
END_TEST

START_TEST(the_middle_is_a_point_of_every_sweep)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(4, LS_PROFILE_QUICK);
    ls_matrix_bench_jobs(&bench, &matrix);
    unsigned joined = 0;
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *spec = &matrix.spec[i];
        if (spec->role == LS_ROLE_THROUGHPUT && spec->level == 2 && spec->bucket_mb == 25 &&
            spec->world == 4 && spec->nodes == 1) {
            joined = spec->sweep;
        }
    }
    ck_assert_uint_eq(joined, LS_SWEEP_LEVEL | LS_SWEEP_BUCKET | LS_SWEEP_WORLD | LS_SWEEP_NODES);
    ls_matrix_free(&matrix);
}
END_TEST

/* Three hosts of two ranks: a world that fits one host stays there, a larger one spans hosts. */
START_TEST(hosts_are_filled_one_by_one)
{
    ls_matrix matrix = {.count = 0};
    ls_matrix_bench bench = usual(6, LS_PROFILE_QUICK);
    bench.hosts = 3;
    bench.sim_nodes = 1;
    ls_matrix_bench_jobs(&bench, &matrix);
    ck_assert_int_eq(count_of(&matrix, 2, 25, 1, 1), 1);
    ck_assert_int_eq(count_of(&matrix, 2, 25, 2, 1), 1);
    ck_assert_int_eq(count_of(&matrix, 2, 25, 4, 2), 1);
    for (int level = 0; level < 4; level++) {
        ck_assert_int_eq(count_of(&matrix, level, 25, 6, 3), 1);
    }
    for (int i = 0; i < matrix.count; i++) {
        const ls_spec *spec = &matrix.spec[i];
        char label[64];
        ls_matrix_label(spec, label);
        ck_assert_int_eq(spec->real_nodes, spec->nodes > 1);
        ck_assert_ptr_null(strstr(label, "sim."));
    }
    ls_matrix_free(&matrix);
}
END_TEST

START_TEST(a_choice_of_levels_and_buckets_is_kept)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(2, LS_PROFILE_QUICK);
    bench.level_count = 1;
    bench.level[0] = 1;
    bench.bucket_count = 1;
    bench.bucket_mb[0] = 5;
    ls_matrix_bench_jobs(&bench, &matrix);
    ck_assert_int_gt(matrix.count, 0);
    for (int i = 0; i < matrix.count; i++) {
        ck_assert_int_eq(matrix.spec[i].level, 1);
        ck_assert(matrix.spec[i].bucket_mb == 5);
    }
    ls_matrix_free(&matrix);
}
END_TEST

START_TEST(equal_specs_are_one_job_and_different_ones_are_not)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_spec a = ls_matrix_spec(LS_ROLE_EVIDENCE), b = a;
    b.sweep = LS_SWEEP_LEVEL;
    ck_assert_int_eq(ls_matrix_add(&matrix, &a), 0);
    ck_assert_int_eq(ls_matrix_add(&matrix, &b), 0);
    ck_assert_uint_eq(matrix.spec[0].sweep, LS_SWEEP_LEVEL);
    ls_spec different[8];
    for (int i = 0; i < 8; i++) {
        different[i] = a;
    }
    different[0].seed = 1;
    different[1].bucket_mb = LS_BUCKET_DELAYED;
    different[2].world = 2;
    different[3].sync_bn = true;
    different[4].repeat = 1;
    different[5].wrap = LS_WRAP_ALONE;
    ls_text_put(different[6].extra, sizeof different[6].extra, "--nesterov");
    ls_text_put(different[7].half, sizeof different[7].half, "bf16");
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(ls_matrix_add(&matrix, &different[i]), i + 1);
    }
    ls_matrix_free(&matrix);
}
END_TEST

static bool has_argument(const ls_job *job, const char *text)
{
    for (int i = 0; i < job->command.count; i++) {
        if (strcmp(job->command.word[i], text) == 0) {
            return true;
        }
    }
    return false;
}

START_TEST(a_command_has_the_factors_and_no_placeholder)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.level = 2;
    spec.world = 4;
    spec.nodes = 2;
    spec.bucket_mb = 5;
    ls_text_put(spec.extra, sizeof spec.extra, "--save={self}/c --resume={job:abc}/c");
    ls_text_put(spec.data, sizeof spec.data, "batches:{run}/b");
    ls_matrix_site site = {
        .subject = "python3 t.py", .run_directory = "/r", .device = "cpu", .cores = 2};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert_str_eq(job.command.word[0], "python3");
    ck_assert_str_eq(job.command.word[1], "t.py");
    ck_assert(has_argument(&job, "--opt-level=O2"));
    ck_assert(has_argument(&job, "--bucket-cap-mb=5"));
    ck_assert(has_argument(&job, "--device=cpu"));
    ck_assert(has_argument(&job, "--resume=/r/jobs/abc/c"));
    ck_assert(has_argument(&job, "--data=batches:/r/b"));
    char save[700];
    ls_text_put(save, sizeof save, "--save=%s/c", job.directory);
    ck_assert(has_argument(&job, save));
    ck_assert_int_eq(job.world, 4);
    ck_assert_int_eq(job.local_nodes, 2);
    ck_assert_str_eq(ls_json_string(job.facts, "level", ""), "O2");
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false));
    ls_job_free(&job);
}
END_TEST

/* A script has the folders as variables: no part of their names is run or split. */
START_TEST(a_script_takes_any_folder)
{
    static const char run[] = "/r/q';echo ran;'$(echo ran) `echo ran` \"* ;";
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.wrap = LS_WRAP_SHELL;
    spec.script = "S={self}/a; printf '<%s>' $S {run}/b --c={job:abc}/c \"$0\"; exit";
    ls_matrix_site site = {.subject = "t", .run_directory = run, .device = "cpu", .cores = 2};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert_str_eq(job.command.word[0], "sh");
    int code;
    char *said = ls_proc_isolated_output(job.command.word, 10, &code);
    LS_TEXT(wanted, 2000, "<%s/a><%s/b><--c=%s/jobs/abc/c><t>", job.directory, run, run);
    ck_assert_int_eq(code, 0);
    ck_assert_str_eq(said, wanted);
    free(said);
    ls_job_free(&job);
}
END_TEST

START_TEST(timed_steps_can_be_halved_and_keep_the_time)
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
END_TEST

/* Rows and baselines, each from its first timed step on, each with a seed of its own, also where
 * two runs differ in theirs only; nothing else, and no other subject. */
START_TEST(timed_jobs_of_ours_are_audited_each_in_other_steps)
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
END_TEST

/* ---- whole plans ----------------------------------------------------------------------------- */

/* One line for each job: role, level, bucket, world, nodes (real ones with an r), threads, warm-up
 * and timed steps, batch, learning rate, scale, dumps (followed with an f, on resident batches with
 * an r, engines chosen by time with an e), sweeps, further options. */
static char *plan_text(const ls_matrix *matrix)
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
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
    fclose(to);
    return text;
}

static const struct {
    ls_profile profile;
    int ranks, hosts, sim_nodes, gpus, cores, steps, buckets, batch;
    bool device;
    const char *plan;
} plans[] = {
    {LS_PROFILE_SMOKE, 4, 0, 2, 0, 2, 0, 4, 8, false,
     "throu O0 25 w4 n1 t1 1+5 x8 0.01 - 1 1 \n"
     "throu O2 25 w1 n1 t1 1+13 x8 0.01 dynamic 1f 4 --init-scale=1024\n"
     "throu O2 25 w4 n1 t1 1+5 x8 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"},
    {LS_PROFILE_QUICK, 6, 0, 2, 0, 2, 0, 4, 8, false,
     "throu O0 25 w6 n1 t1 2+11 x8 0.01 - 1 1 \n"
     "throu O1 25 w6 n1 t1 2+11 x8 0.01 dynamic 1f 1 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 25 w6 n1 t1 2+11 x8 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O2 25 w6 n1 t1 2+11 x8 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O3 25 w6 n1 t1 2+11 x8 0.01 128 1f 1 --dump-ranks=branches\n"
     "throu O2 1 w6 n1 t1 2+11 x8 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 5 w6 n1 t1 2+11 x8 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 0 w6 n1 t1 2+11 x8 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 25 w1 n1 t1 2+38 x8 0.01 dynamic 1f 4 --init-scale=1024\n"
     "ddp_w O2 25 w1 n1 t1 2+38 x8 0.01 dynamic -f 0 --init-scale=1024 --comm=self\n"
     "stron O2 25 w1 n1 t1 2+7 x48 0.01 dynamic -f 0 --init-scale=1024\n"
     "throu O2 25 w2 n1 t1 2+38 x8 0.01 dynamic 1f 4 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 25 w4 n1 t1 2+18 x8 0.01 dynamic 1f 4 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 25 w6 n2 t1 2+11 x8 0.01 dynamic 1f 8 --init-scale=1024 --dump-ranks=branches\n"
     "phase O2 25 w6 n1 t1 1+2 x8 0.05 128 -f 0 --trace\n"
     "curve O-1 -1 w13 n1 t1 0+40 x16 0.05 - - 0 \n"},
    {LS_PROFILE_RATED, 8, 2, 1, 8, 64, 0, 4, 8, true,
     "throu O0 25 w8 n2r t16 4+26 x8 0.01 - -fre 1 \n"
     "throu O1 25 w8 n2r t16 4+26 x8 0.01 dynamic -fre 1 --init-scale=1024\n"
     "throu O2 25 w8 n2r t16 4+26 x8 0.01 dynamic -fre 15 --init-scale=1024\n"
     "no_co O2 25 w8 n2r t16 4+26 x8 0.01 dynamic -fre 0 --init-scale=1024 --no-reduce\n"
     "throu O3 25 w8 n2r t16 4+26 x8 0.01 128 -fre 1 \n"
     "throu O2 1 w8 n2r t16 4+26 x8 0.01 dynamic -fre 2 --init-scale=1024\n"
     "throu O2 5 w8 n2r t16 4+26 x8 0.01 dynamic -fre 2 --init-scale=1024\n"
     "throu O2 0 w8 n2r t16 4+26 x8 0.01 dynamic -fre 2 --init-scale=1024\n"
     "throu O2 25 w1 n1 t16 4+26 x8 0.01 dynamic -fre 4 --init-scale=1024\n"
     "ddp_w O2 25 w1 n1 t16 4+26 x8 0.01 dynamic -fre 0 --init-scale=1024 --comm=self\n"
     "stron O2 25 w1 n1 t16 4+26 x64 0.01 dynamic -fre 0 --init-scale=1024\n"
     "throu O2 25 w2 n1 t16 4+26 x8 0.01 dynamic -fre 4 --init-scale=1024\n"
     "throu O2 25 w4 n1 t16 4+26 x8 0.01 dynamic -fre 12 --init-scale=1024\n"
     "loade O2 25 w8 n2r t16 4+26 x8 0.01 dynamic -fe 0 --init-scale=1024 --workers=15\n"
     "phase O2 25 w8 n2r t16 1+2 x8 0.05 128 -fre 0 --trace\n"
     "curve O-1 -1 w13 n1 t1 0+40 x16 0.05 - - 0 \n"},
    {LS_PROFILE_QUICK, 1, 0, 2, 1, 16, 10, 3, 2, true,
     "throu O0 25 w1 n1 t16 4+11 x2 0.01 - -fre 1 \n"
     "throu O1 25 w1 n1 t16 4+11 x2 0.01 dynamic -fre 1 --init-scale=1024\n"
     "throu O2 25 w1 n1 t16 4+11 x2 0.01 dynamic -fre 15 --init-scale=1024\n"
     "throu O3 25 w1 n1 t16 4+11 x2 0.01 128 -fre 1 \n"
     "throu O2 1 w1 n1 t16 4+11 x2 0.01 dynamic -fre 2 --init-scale=1024\n"
     "throu O2 5 w1 n1 t16 4+11 x2 0.01 dynamic -fre 2 --init-scale=1024\n"
     "loade O2 25 w1 n1 t16 4+11 x2 0.01 dynamic -fe 0 --init-scale=1024 --workers=15\n"
     "ddp_w O2 25 w1 n1 t16 4+11 x2 0.01 dynamic -fre 0 --init-scale=1024 --comm=self\n"
     "phase O2 25 w1 n1 t16 1+2 x2 0.05 128 -fre 0 --trace\n"
     "curve O-1 -1 w13 n1 t1 0+40 x16 0.05 - - 0 \n"
     "sdc O2 -1 w1 n1 t0 0+20 x2 0.01 128 - 0 --digest=param\n"
     "sdc O2 -1 w1 n1 t0 0+20 x2 0.01 128 - 0 --digest=param again\n"},
    {LS_PROFILE_FULL, 6, 0, 2, 0, 8, 0, 3, 4, false,
     "throu O0 25 w6 n1 t1 2+110 x4 0.01 - 1 1 \n"
     "no_co O0 25 w6 n1 t1 2+110 x4 0.01 - - 0  --no-reduce\n"
     "throu O1 25 w6 n1 t1 2+110 x4 0.01 dynamic 1f 1 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O1 25 w6 n1 t1 2+110 x4 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O2 25 w6 n1 t1 2+110 x4 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O2 25 w6 n1 t1 2+110 x4 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O3 25 w6 n1 t1 2+110 x4 0.01 128 1f 1 --dump-ranks=branches\n"
     "no_co O3 25 w6 n1 t1 2+110 x4 0.01 128 -f 0  --no-reduce\n"
     "throu O2 1 w6 n1 t1 2+110 x4 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 5 w6 n1 t1 2+110 x4 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 25 w1 n1 t1 2+114 x4 0.01 dynamic 1f 4 --init-scale=1024\n"
     "ddp_w O2 25 w1 n1 t1 2+114 x4 0.01 dynamic -f 0 --init-scale=1024 --comm=self\n"
     "stron O2 25 w1 n1 t1 2+34 x24 0.01 dynamic -f 0 --init-scale=1024\n"
     "throu O2 25 w2 n1 t1 2+114 x4 0.01 dynamic 1f 4 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O2 25 w2 n1 t1 2+114 x4 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "stron O2 25 w2 n1 t1 2+58 x12 0.01 dynamic -f 0 --init-scale=1024\n"
     "throu O2 25 w4 n1 t1 2+112 x4 0.01 dynamic 1f 4 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O2 25 w4 n1 t1 2+112 x4 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O2 25 w6 n2 t1 2+110 x4 0.01 dynamic 1f 8 --init-scale=1024 --dump-ranks=branches\n"
     "throu O0 1 w2 n2 t1 2+114 x4 0.01 - 1 0 \n"
     "throu O1 5 w4 n2 t1 2+112 x4 0.01 dynamic 1f 0 --init-scale=1024 --dump-ranks=branches\n"
     "throu O3 1 w4 n2 t1 2+112 x4 0.01 128 1f 0 --dump-ranks=branches\n"
     "throu O3 5 w2 n1 t1 2+114 x4 0.01 128 1f 0 --dump-ranks=branches\n"
     "throu O0 5 w4 n1 t1 2+112 x4 0.01 - 1 0 \n"
     "throu O1 1 w2 n1 t1 2+114 x4 0.01 dynamic 1f 0 --init-scale=1024 --dump-ranks=branches\n"
     "throu O0 25 w1 n1 t1 2+114 x4 0.01 - 1 0 \n"
     "throu O1 25 w1 n1 t1 2+114 x4 0.01 dynamic 1f 0 --init-scale=1024\n"
     "throu O3 25 w1 n1 t1 2+114 x4 0.01 128 1f 0 \n"
     "phase O2 25 w6 n1 t1 1+2 x4 0.05 128 -f 0 --trace\n"
     "curve O-1 -1 w13 n1 t1 0+40 x16 0.05 - - 0 \n"},
};

START_TEST(the_whole_plan)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = usual(plans[_i].ranks, plans[_i].profile);
    bench.hosts = plans[_i].hosts;
    bench.sim_nodes = plans[_i].sim_nodes;
    bench.gpus = plans[_i].gpus;
    bench.cores = plans[_i].cores;
    bench.steps = plans[_i].steps;
    bench.bucket_count = plans[_i].buckets;
    bench.batch_size = plans[_i].batch;
    bench.device = plans[_i].device;
    ls_text_put(bench.files, sizeof bench.files, "%s", plans[_i].device ? "/files" : "");
    ls_matrix_bench_jobs(&bench, &matrix);
    char *text = plan_text(&matrix);
    ck_assert_str_eq(text, plans[_i].plan);
    for (int i = 0; i < matrix.count; i++) { /* the same for all jobs */
        const ls_spec *spec = &matrix.spec[i];
        bool curves = spec->role == LS_ROLE_CURVES;
        ck_assert_str_eq(spec->arch, curves ? "resnet8" : "resnet18");
        ck_assert_int_eq(spec->image_size, curves ? 16 : 64);
        ck_assert_uint_eq(spec->seed, 7);
        ck_assert_str_eq(spec->data, spec->role == LS_ROLE_LOADER ? "/files" : "synthetic");
        ck_assert_int_eq(spec->gpus, bench.device && !curves ? bench.gpus : 0);
        ck_assert_int_eq(spec->deterministic, spec->role == LS_ROLE_SDC);
        ck_assert_int_eq(spec->wrap,
                         curves || spec->role == LS_ROLE_SDC ? LS_WRAP_EACH : LS_WRAP_NONE);
    }
    free(text);
    ls_matrix_free(&matrix);
}
END_TEST

static const struct {
    ls_matrix_bench bench;
    const char *plan;
} chosen[] = {
    /* worlds that are no powers of two, levels without O2 and O0, buckets as near to 25 MB */
    {{.profile = LS_PROFILE_QUICK,
      .ranks = 10,
      .hosts = 2,
      .level_count = 2,
      .level = {3, 1, 2, 0},
      .bucket_count = 2,
      .bucket_mb = {30, 20, 25},
      .steps = 1},
     "throu O3 30 w10 n2r t1 2+2 x1 0.01 128 1f 1 --dump-ranks=branches\n"
     "throu O1 30 w10 n2r t1 2+2 x1 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O1 30 w10 n2r t1 2+2 x1 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O1 20 w10 n2r t1 2+2 x1 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O1 30 w1 n1 t1 2+2 x1 0.01 dynamic 1f 4 --init-scale=1024\n"
     "ddp_w O1 30 w1 n1 t1 2+2 x1 0.01 dynamic -f 0 --init-scale=1024 --comm=self\n"
     "stron O1 30 w1 n1 t1 2+2 x10 0.01 dynamic -f 0 --init-scale=1024\n"
     "throu O1 30 w2 n1 t1 2+2 x1 0.01 dynamic 1f 4 --init-scale=1024 --dump-ranks=branches\n"
     "throu O1 30 w4 n1 t1 2+2 x1 0.01 dynamic 1f 4 --init-scale=1024 --dump-ranks=branches\n"
     "throu O1 30 w5 n1 t1 2+2 x1 0.01 dynamic 1f 12 --init-scale=1024 --dump-ranks=branches\n"
     "phase O1 30 w10 n2r t1 1+2 x1 0.05 128 -f 0 --trace\n"},
    {{.profile = LS_PROFILE_QUICK,
      .ranks = 2,
      .level_count = 3,
      .level = {3, 0, 1, 2},
      .bucket_count = 2,
      .bucket_mb = {30, 20.5, 25},
      .steps = 13},
     "throu O3 20.5 w2 n1 t1 2+14 x1 0.01 128 1f 1 --dump-ranks=branches\n"
     "throu O0 20.5 w2 n1 t1 2+14 x1 0.01 - 1 1 \n"
     "throu O1 20.5 w2 n1 t1 2+14 x1 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O1 20.5 w2 n1 t1 2+14 x1 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O1 30 w2 n1 t1 2+14 x1 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O1 20.5 w1 n1 t1 2+14 x1 0.01 dynamic 1f 4 --init-scale=1024\n"
     "ddp_w O1 20.5 w1 n1 t1 2+14 x1 0.01 dynamic -f 0 --init-scale=1024 --comm=self\n"
     "stron O1 20.5 w1 n1 t1 2+14 x2 0.01 dynamic -f 0 --init-scale=1024\n"
     "phase O1 20.5 w2 n1 t1 1+2 x1 0.05 128 -f 0 --trace\n"
     "curve O-1 -1 w12 n1 t1 0+200 x16 0.05 - - 0 \n"},
    /* steps that are given, up to where a job is audited twice */
    {{.profile = LS_PROFILE_SMOKE, .ranks = 1, .level_count = 1, .level = {0}, .steps = 14},
     "throu O0 0 w1 n1 t2 1+16 x1 0.01 - 1 15 \n"},
    {{.profile = LS_PROFILE_SMOKE, .ranks = 1, .level_count = 1, .level = {2}, .steps = 12},
     "throu O0 0 w1 n1 t2 1+13 x1 0.01 - 1 1 \n"
     "throu O2 0 w1 n1 t2 1+13 x1 0.01 dynamic 1f 15 --init-scale=1024\n"},
    /* and those that fit: at least 4, at most 200 */
    {{.profile = LS_PROFILE_SMOKE, .ranks = 16, .level_count = 1, .level = {2}, .batch_size = 64},
     "throu O0 0 w16 n1 t1 1+5 x64 0.01 - 1 1 \n"
     "throu O2 0 w1 n1 t1 1+5 x64 0.01 dynamic 1f 4 --init-scale=1024\n"
     "throu O2 0 w16 n1 t1 1+5 x64 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"},
    {{.profile = LS_PROFILE_FULL, .ranks = 1, .level_count = 1, .level = {2}, .cores = 64},
     "throu O2 0 w1 n1 t64 2+202 x1 0.01 dynamic 1f 15 --init-scale=1024\n"
     "ddp_w O2 0 w1 n1 t64 2+202 x1 0.01 dynamic -f 0 --init-scale=1024 --comm=self\n"
     "phase O2 0 w1 n1 t64 1+2 x1 0.05 128 -f 0 --trace\n"},
    /* every pair without simulated nodes; O0 alone */
    {{.profile = LS_PROFILE_FULL,
      .ranks = 2,
      .sim_nodes = 1,
      .level_count = 2,
      .level = {0, 2},
      .bucket_count = 2,
      .bucket_mb = {25, 1},
      .steps = 4},
     "throu O0 25 w2 n1 t1 2+5 x1 0.01 - 1 1 \n"
     "no_co O0 25 w2 n1 t1 2+5 x1 0.01 - - 0  --no-reduce\n"
     "throu O2 25 w2 n1 t1 2+5 x1 0.01 dynamic 1f 15 --init-scale=1024 --dump-ranks=branches\n"
     "no_co O2 25 w2 n1 t1 2+5 x1 0.01 dynamic -f 0 --init-scale=1024 --no-reduce\n"
     "throu O2 1 w2 n1 t1 2+5 x1 0.01 dynamic 1f 2 --init-scale=1024 --dump-ranks=branches\n"
     "throu O2 25 w1 n1 t1 2+5 x1 0.01 dynamic 1f 4 --init-scale=1024\n"
     "ddp_w O2 25 w1 n1 t1 2+5 x1 0.01 dynamic -f 0 --init-scale=1024 --comm=self\n"
     "stron O2 25 w1 n1 t1 2+5 x2 0.01 dynamic -f 0 --init-scale=1024\n"
     "throu O0 25 w1 n1 t1 2+5 x1 0.01 - 1 0 \n"
     "throu O0 1 w2 n1 t1 2+5 x1 0.01 - 1 0 \n"
     "phase O2 25 w2 n1 t1 1+2 x1 0.05 128 -f 0 --trace\n"
     "curve O-1 -1 w11 n1 t1 0+200 x16 0.05 - - 0 \n"},
    {{.profile = LS_PROFILE_QUICK, .ranks = 1, .level_count = 1, .level = {0}, .steps = 4},
     "throu O0 0 w1 n1 t2 2+5 x1 0.01 - 1 15 \n"
     "ddp_w O0 0 w1 n1 t2 2+5 x1 0.01 - - 0  --comm=self\n"
     "phase O0 0 w1 n1 t2 1+2 x1 0.05 - - 0 --trace\n"
     "curve O-1 -1 w10 n1 t1 0+200 x16 0.05 - - 0 \n"},
};

START_TEST(plans_of_other_choices)
{
    ls_matrix matrix = {0, 0, NULL, NULL};
    ls_matrix_bench bench = chosen[_i].bench;
    ls_text_put(bench.arch, sizeof bench.arch, "resnet18");
    ls_text_put(bench.data, sizeof bench.data, "/images");
    bench.image_size = 64;
    bench.batch_size = bench.batch_size > 0 ? bench.batch_size : 1;
    bench.cores = bench.cores > 0 ? bench.cores : 2;
    bench.bucket_count = bench.bucket_count > 0 ? bench.bucket_count : 1;
    ls_matrix_bench_jobs(&bench, &matrix);
    char *text = plan_text(&matrix);
    ck_assert_str_eq(text, chosen[_i].plan);
    for (int i = 0; i < matrix.count; i++) {
        ck_assert_str_eq(matrix.spec[i].data, "/images");
    }
    free(text);
    ls_matrix_free(&matrix);
    ck_assert(matrix.spec == NULL && matrix.id == NULL && matrix.count == 0);
    ck_assert_int_eq(matrix.capacity, 0); /* it can be filled again */
}
END_TEST

/* ---- names, estimates and commands ------------------------------------------------------------
 */

static void check_near(double seconds, double want)
{
    /* 1e-9: the same sums in another order */
    ck_assert_double_eq_tol(seconds, want, 1e-9);
}

START_TEST(bucket_sizes_have_names)
{
    static const struct {
        double bucket_mb;
        const char *text;
    } rows[] = {{LS_BUCKET_DELAYED, "delayed"},
                {LS_BUCKET_OWN, "own rule"},
                {25, "25 MB"},
                {0.5, "0.5 MB"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[24];
        ls_matrix_bucket_text(rows[i].bucket_mb, text);
        ck_assert_str_eq(text, rows[i].text);
    }
}
END_TEST

static const struct {
    ls_spec spec;
    const char *label, *id; /* without the digest */
} named[] = {
    {{.arch = "resnet18", .level = 2, .world = 4, .nodes = 1, .bucket_mb = 25, .steps = 3},
     "O2, 4 ranks, 25 MB",
     "resnet18.o2.w4.b25mb.s3-"},
    {{.arch = "resnet18", .level = 0, .half = "bf16", .world = 1, .nodes = 1, .warmup_steps = 2},
     "O0, 1 rank, delayed",
     "resnet18.o0.w1.delay.s2-"},
    {{.arch = "resnet101xyz", .level = 3, .half = "bf16", .world = 1, .nodes = 1, .bucket_mb = -1},
     "O3 bf16, 1 rank, own rule",
     "resnet101x.o3.w1.own.s0-"},
    {{.level = -1, .half = "bf16", .world = 4, .nodes = 2, .bucket_mb = 1, .sync_bn = true},
     "no level, 4 ranks, 2 sim. nodes, 1 MB, SyncBN",
     ".o.w4.n2.b1mb.sync.s0-"},
    {{.role = LS_ROLE_NO_COMM, .world = 4, .nodes = 2, .real_nodes = true, .bucket_mb = 0.5},
     "O0, 4 ranks, 2 nodes, 0.5 MB, not reduced",
     ".o0.w4.n2.b0.5mb.s0-"},
    {{.role = LS_ROLE_DDP_WORLD1, .level = 1, .world = 1, .nodes = 1},
     "O1, 1 rank, delayed, DDP",
     ".o1.w1.delay.s0-"},
    {{.role = LS_ROLE_STRONG_SCALING, .world = 2, .nodes = 1},
     "O0, 2 ranks, delayed, same total",
     ".o0.w2.delay.s0-"},
    {{.role = LS_ROLE_CURVES, .level = -1, .world = 13, .nodes = 1},
     "13 single runs, for their loss",
     ".o.w13.delay.s0-"},
    {{.role = LS_ROLE_SDC, .level = 2, .world = 8, .nodes = 1},
     "8 x the same alone, for the bits",
     ".o2.w8.delay.s0-"},
    {{.role = LS_ROLE_SDC, .level = 2, .world = 8, .nodes = 1, .repeat = 1},
     "8 x the same alone, for the bits, again",
     ".o2.w8.delay.s0-"},
    /* cut to what a table has room for */
    {{.level = 3, .half = "bf16", .world = 1000000, .nodes = 1000, .bucket_mb = 1.23457e-10},
     "O3 bf16, 1000000 ranks, 1000 sim. nodes, 1.23457e-10 MB",
     ".o3.w1000000.n1000.b1.23457e-10mb.s0-"},
    {{.level = 3,
      .half = "bf16",
      .world = 1000000,
      .nodes = 1000,
      .bucket_mb = 1.23457e-10,
      .sync_bn = true},
     "O3 bf16, 1000000 ranks, 1000 sim. nodes, 1.23457e-10 MB, SyncBN",
     ".o3.w1000000.n1000.b1.23457e-10mb.sync.s0-"},
    {{.role = LS_ROLE_STRONG_SCALING, .world = 100000000, .nodes = 1000, .bucket_mb = 1.23457e-10},
     "O0, 100000000 ranks, 1000 sim. nodes, 1.23457e-10 MB, same tota",
     ".o0.w100000000.n1000.b1.23457e-10mb.s0-"},
    {{.role = LS_ROLE_STRONG_SCALING,
      .level = 1,
      .half = "bf16",
      .world = 2147483647,
      .nodes = 1,
      .bucket_mb = 0.000123457},
     "O1 bf16, 2147483647 ranks, 0.000123457 MB, same total",
     ".o1.w2147483647.b0.000123457mb.s0-"},
};

START_TEST(jobs_have_names)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        char label[80], id[96];
        size_t length = strlen(named[i].id);
        ls_matrix_label(&named[i].spec, label);
        ls_matrix_id(&named[i].spec, id);
        ck_assert_str_eq(label, named[i].label);
        ck_assert_msg(strncmp(id, named[i].id, length) == 0, "%s is not %s", id, named[i].id);
        ck_assert_uint_eq(strlen(id), length + 8);
        ck_assert_uint_eq(strspn(id + length, "0123456789abcdef"), 8);
    }
}
END_TEST

/* Every member that changes the job changes its id; where it runs and what it is for do not. */
START_TEST(an_id_follows_from_the_job)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE), other[32];
    char ids[32][96];
    int count = 0;
    spec.dump_steps[0] = '1';
    spec.world = 2;
    for (int i = 0; i < 32; i++) {
        other[i] = spec;
    }
    count++; /* the first is the same */
    ls_text_put(other[count++].arch, 32, "resnet8");
    other[count++].image_size = 17;
    other[count++].batch_size = 0;
    other[count++].warmup_steps = 1;
    other[count++].level = 1;
    other[count++].level = -1;
    other[count++].loss_scale[0] = '2';
    other[count++].bucket_mb = 0;
    other[count++].dialect[0] = 't';
    other[count++].half[0] = 'b';
    other[count++].sync_bn = true;
    other[count++].accumulate = 2;
    other[count++].lr = 0.06;
    other[count++].data[0] = 'x';
    other[count++].seed = 1;
    other[count++].dump_steps[0] = '2';
    other[count++].dump_all = true;
    other[count++].deterministic = false;
    other[count++].threads = 0;
    other[count++].extra[0] = 'x';
    other[count++].world = 1;
    other[count++].nodes = 2;
    other[count++].real_nodes = true;
    other[count++].wrap = LS_WRAP_ALONE;
    other[count++].wrap = LS_WRAP_EACH;
    other[count++].kill_rank = 0;
    other[count++].kill_step = 1;
    other[count++].role = LS_ROLE_PHASES;
    other[count++].repeat = 1;
    other[count++].script = "x";
    for (int i = 0; i < count; i++) {
        ls_matrix_id(&other[i], ids[i]);
        for (int k = 0; k < i; k++) {
            ck_assert_msg(strcmp(ids[k], ids[i]) != 0, "%d and %d are %s", k, i, ids[i]);
        }
    }
    other[0] = spec;
    other[0].role = LS_ROLE_THROUGHPUT;
    other[0].limit_s = other[0].grace_s = 7;
    other[0].sweep = 15;
    other[0].followed = true;
    ls_text_put(other[0].each, 1024, "of another wrapper");
    char id[96];
    ls_matrix_id(&other[0], id);
    ck_assert_str_eq(id, ids[0]);
    other[0].wrap = other[1].wrap = LS_WRAP_EACH;
    other[1] = other[0];
    ls_text_put(other[1].each, 1024, "different options");
    ls_matrix_id(&other[0], ids[0]);
    ls_matrix_id(&other[1], ids[1]);
    ck_assert_str_ne(ids[0], ids[1]);
}
END_TEST

/* The model's figures, worked out by hand in each row: (images * GFLOP / (45 * cores in use) * 1.5
 * of half + ranks * GB / (0.35 * cores) + 0.002 * ranks) * steps + dump, and the start. */
START_TEST(estimates_follow_the_model)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet18");
    spec.image_size = 112;
    spec.batch_size = 10;
    spec.steps = 4;
    spec.warmup_steps = 1;
    double step = 10 * 1.81 / 4 * 6 / 45 + 11.7e-3 * 4 / 0.35 + 0.002, start = 0.4 + 0.35;
    check_near(ls_matrix_estimate_s(&spec, 4), start + 5 * step);
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1");
    check_near(ls_matrix_estimate_s(&spec, 4), start + 5 * step + 0.2 + 11.7e-3 * 4 * 8);
    spec.dump_steps[0] = '\0';
    spec.threads = 0; /* one rank that uses all cores */
    step = 10 * 1.81 / 4 * 6 / (45 * 4) + 11.7e-3 * 4 / (0.35 * 4) + 0.002;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.4 + 0.35 / 4 + 5 * step);
    spec.level = 1; /* half is emulated; 8 ranks on 4 cores; accumulation */
    spec.world = 8;
    spec.accumulate = 3;
    step = 8 * 3 * 10 * 1.81 / 4 * 6 / (45 * 4) * 1.5 + 8 * 11.7e-3 * 4 / (0.35 * 4) + 0.016;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.4 + 0.35 * 2 + 5 * step);
    spec.nodes = 2;
    spec.real_nodes = true; /* as many cores again */
    step = 8 * 3 * 10 * 1.81 / 4 * 6 / (45 * 8) * 1.5 + 11.7e-3 * 4 / 0.35 + 0.016;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.4 + 0.35 + 5 * step);
    spec.role = LS_ROLE_THROUGHPUT; /* an audited step costs two more, two of them four */
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 7 * step);
    spec.steps = 15;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 18 * step);
    spec.steps = 16;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 21 * step);
    spec.steps = 1;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 2 * step);
    spec.wrap = LS_WRAP_KILL;
    spec.kill_step = 6;
    check_near(ls_matrix_estimate_s(&spec, 4), 0.75 + 6 * step);
    /* with a start-up that was measured: in turns where there are more ranks than cores */
    ls_matrix_site site = {.cores = 2};
    check_near(ls_matrix_estimate_at(&spec, &site), ls_matrix_estimate_s(&spec, 2));
    site.start_s = 0.5;
    check_near(ls_matrix_estimate_at(&spec, &site),
               1 + 0.24 + ls_matrix_estimate_s(&spec, 2) - 0.4 - 0.35 * 2);
    site.start_s = 5;
    double steps_s = ls_matrix_estimate_s(&spec, 2) - 0.4 - 0.35 * 2;
    check_near(ls_matrix_estimate_at(&spec, &site), 10 + 0.24 + steps_s);
    spec.real_nodes = false;
    steps_s = ls_matrix_estimate_s(&spec, 2) - 0.4 - 0.35 * 4;
    check_near(ls_matrix_estimate_at(&spec, &site), 20 + 0.24 + steps_s);
    spec.world = 1;
    spec.steps = 10000; /* something else ends it */
    check_near(ls_matrix_estimate_at(&spec, &site), 5 + 0.03 + 3);
}
END_TEST

/* By a network's multiply-adds and parameters; an unknown one counts as resnet50. */
/* On GPUs: what one GPU's ranks compute, 15 s of start, a second for each audited step, 5 s for a
 * dump. */
START_TEST(estimates_of_gpus)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_matrix_site site = {.cores = 4, .start_s = 10};
    ls_text_put(spec.arch, sizeof spec.arch, "resnet50");
    spec.image_size = 224;
    spec.batch_size = 256;
    spec.world = 8;
    spec.gpus = 8;
    spec.steps = 8;
    spec.warmup_steps = 2;
    double single = 256 * 4.09 * 6 / 20e3, half = 256 * 4.09 * 6 / 100e3;
    check_near(ls_matrix_estimate_s(&spec, 4), 15 + 10 * (single + 0.01));
    check_near(ls_matrix_estimate_at(&spec, &site), 15 + 10 * (single + 0.01));
    spec.level = 1;
    spec.accumulate = 2;
    check_near(ls_matrix_estimate_s(&spec, 4), 15 + 10 * (2 * half + 0.01));
    spec.gpus = 3; /* three ranks on one */
    check_near(ls_matrix_estimate_s(&spec, 4), 15 + 30 * (2 * half + 0.01));
    spec.real_nodes = true;
    spec.nodes = 2;
    check_near(ls_matrix_estimate_s(&spec, 4), 15 + 20 * (2 * half + 0.01));
    ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "1");
    spec.role = LS_ROLE_THROUGHPUT;
    check_near(ls_matrix_estimate_s(&spec, 4), 15 + 20 * (2 * half + 0.01) + 1 + 5);
    spec.steps = 16;
    check_near(ls_matrix_estimate_s(&spec, 4), 15 + 36 * (2 * half + 0.01) + 2 + 5);
}
END_TEST

/* Half of a profile's time for the steps of a job on a GPU, 20 to 200; 8 on an emulated one. */
START_TEST(steps_of_gpus)
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
END_TEST

/* Where batches stay on the device, the first step is dumped by a job that loads it. */
START_TEST(first_steps_of_timed_jobs)
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
END_TEST

START_TEST(estimates_know_the_networks)
{
    static const struct {
        const char *arch;
        int image_size;
        double gmacs, params_m;
    } rows[] = {
        {"resnet18", 224, 1.81, 11.7},   {"resnet34", 224, 3.66, 21.8},
        {"resnet50", 224, 4.09, 25.6},   {"resnet101", 224, 7.80, 44.5},
        {"resnet152", 224, 11.51, 60.2}, {"resnet8", 32, 0.0125, 0.08},
        {"resnet20", 32, 0.041, 0.27},   {"resnet32", 32, 0.069, 0.46},
        {"resnet44", 32, 0.098, 0.66},   {"resnet56", 32, 0.126, 0.85},
        {"resnet110", 32, 0.255, 1.7},   {"vgg", 224, 4.09, 25.6},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
        ls_text_put(spec.arch, sizeof spec.arch, "%s", rows[i].arch);
        spec.image_size = rows[i].image_size;
        spec.batch_size = spec.steps = 1;
        check_near(ls_matrix_estimate_s(&spec, 1),
                   0.4 + 0.35 + rows[i].gmacs * 6 / 45 + rows[i].params_m * 4e-3 / 0.35 + 0.002);
    }
}
END_TEST

static const struct {
    ls_spec spec;
    const char *options; /* without the program */
} commands[] = {
    {{.arch = "a", .level = -1, .half = "fp16", .dialect = "apex", .bucket_mb = -1, .data = "d"},
     "-a a --image-size=0 --num-classes=10 --steps=0 --lr=0 --data=d --seed=0 --device=cuda"},
    {{.arch = "a",
      .image_size = 9,
      .batch_size = 1,
      .half = "bf16",
      .dialect = "torch",
      .loss_scale = "128",
      .sync_bn = true,
      .accumulate = 2,
      .warmup_steps = 2,
      .steps = 3,
      .seed = 18446744073709551615u,
      .data = "d",
      .dump_steps = "1,3",
      .dump_all = true,
      .world = 2,
      .threads = 1,
      .deterministic = true,
      .lr = 0.1,
      .extra = " x  y "},
     "-a a --image-size=9 -b 1 --num-classes=10 --steps=5 --opt-level=O0 --half=bf16 "
     "--loss-scale=128 --delay-allreduce --dialect=torch --sync-bn --accumulate=2 --lr=0.1 "
     "--data=d --seed=18446744073709551615 --dump-steps=1,3 --dump-ranks=all --deterministic "
     "--threads=1 x y --device=cuda"},
    {{.arch = "a",
      .level = 2,
      .half = "fp16",
      .dialect = "apex",
      .bucket_mb = 0.5,
      .data = "d",
      .accumulate = 1,
      .dump_steps = "2",
      .dump_all = true,
      .world = 1},
     "-a a --image-size=0 --num-classes=10 --steps=0 --opt-level=O2 --bucket-cap-mb=0.5 --lr=0 "
     "--data=d --seed=0 --dump-steps=2 --device=cuda"},
    {{.arch = "a",
      .level = -1,
      .half = "fp16",
      .dialect = "apex",
      .bucket_mb = -1,
      .data = "d",
      .dump_all = true,
      .world = 2,
      .role = LS_ROLE_THROUGHPUT,
      .steps = 20,
      .warmup_steps = 4},
     "-a a --image-size=0 --num-classes=10 --steps=24 --lr=0 --data=d --seed=0 --device=cuda"},
};

START_TEST(every_option_of_a_command)
{
    ls_matrix_site site = {
        .subject = "a trainer", .run_directory = "/r", .device = "cuda", .cores = 2};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&commands[_i].spec, &site, &job), LS_OK);
    char *line = ls_words_line(&job.command);
    LS_TEXT(want, 600, "a trainer %s", commands[_i].options);
    ck_assert_str_eq(line, want);
    free(line);
    ls_job_free(&job);
    /* our own trainer: digests of every 50th step on a GPU, and audits, in timed jobs only */
    site.subject = NULL;
    ck_assert_int_eq(ls_matrix_job(&commands[_i].spec, &site, &job), LS_OK);
    line = ls_words_line(&job.command);
    const char *rest = strstr(line, "/lockstep-train ");
    bool timed = commands[_i].spec.role == LS_ROLE_THROUGHPUT;
    ls_matrix_audit audit = ls_matrix_audit_of(&commands[_i].spec);
    ls_text_put(want, sizeof want, "/lockstep-train %s", commands[_i].options);
    if (timed) {
        ls_text_add(want, sizeof want, " --digest-every=50 --audit=%u:10:5", audit.seed);
    }
    ck_assert_ptr_nonnull(rest);
    ck_assert_str_eq(rest, want);
    free(line);
    ls_job_free(&job);
    site.device = "cpu";
    ck_assert_int_eq(ls_matrix_job(&commands[_i].spec, &site, &job), LS_OK);
    ck_assert(!has_argument(&job, "--digest-every=50"));
    ls_job_free(&job);
}
END_TEST

#define EACH                                                                  \
    "k=$RANK; mkdir -p \"$LS_RUN_DIR/run$k\" && "                             \
    "ln -sf \"run$k/rank0.jsonl\" \"$LS_RUN_DIR/rank$k.jsonl\" || exit 3; "   \
    "LS_RUN_DIR=$LS_RUN_DIR/run$k; export LS_RUN_DIR; unset RANK WORLD_SIZE " \
    "LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT; case $k in"

static const struct {
    ls_spec spec;
    int devices, words;
    const char *line[16]; /* before the options */
} wrapped[] = {
    {{.wrap = LS_WRAP_NONE}, 2, 1, {"t"}},
    {{.wrap = LS_WRAP_ALONE},
     2,
     16,
     {"env", "-u", "RANK", "-u", "WORLD_SIZE", "-u", "LOCAL_RANK", "-u", "LOCAL_WORLD_SIZE", "-u",
      "GROUP_RANK", "-u", "MASTER_ADDR", "-u", "MASTER_PORT", "t"}},
    {{.wrap = LS_WRAP_KILL, .kill_rank = 1, .kill_step = 3},
     2,
     4,
     {"sh", "-c",
      "IFS=; if [ \"$RANK\" = 1 ]; then (while kill -0 $$; do grep -q '\"step\": *3,' "
      "\"$LS_RUN_DIR/rank1.jsonl\" && kill -9 $$; sleep 0.05; done) >/dev/null 2>&1 & fi; "
      "exec \"$0\" \"$@\"",
      "t"}},
    {{.wrap = LS_WRAP_EACH, .each = "--a|--b c"},
     0,
     4,
     {"sh", "-c",
      "IFS=; " EACH " 0) set -- \"$@\" --a ;; 1) set -- \"$@\" --b c ;; esac; exec \"$0\" \"$@\"",
      "t"}},
    {{.wrap = LS_WRAP_EACH},
     1,
     4,
     {"sh", "-c",
      "IFS=; g=$((RANK % 1)); v=${CUDA_VISIBLE_DEVICES:-}; [ -z \"$v\" ] || "
      "g=$(echo \"$v\" | cut -d, -f$((g + 1))); CUDA_VISIBLE_DEVICES=$g; "
      "export CUDA_VISIBLE_DEVICES; " EACH " esac; exec \"$0\" \"$@\"",
      "t"}},
    {{.wrap = LS_WRAP_EACH},
     3,
     4,
     {"sh", "-c",
      "IFS=; g=$((RANK % 3)); v=${CUDA_VISIBLE_DEVICES:-}; [ -z \"$v\" ] || "
      "g=$(echo \"$v\" | cut -d, -f$((g + 1))); CUDA_VISIBLE_DEVICES=$g; "
      "export CUDA_VISIBLE_DEVICES; " EACH " esac; exec \"$0\" \"$@\"",
      "t"}},
    {{.wrap = LS_WRAP_SHELL, .script = "x {self}y{run {job:a"}, 2, 4, {"sh", "-c", NULL, "t"}},
};

START_TEST(every_wrapper_of_a_command)
{
    ls_matrix_site site = {
        .subject = "t", .run_directory = "/r", .device = "cpu", .devices = wrapped[_i].devices};
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&wrapped[_i].spec, &site, &job), LS_OK);
    ck_assert_int_gt(job.command.count, wrapped[_i].words);
    for (int k = 0; k < wrapped[_i].words; k++) {
        const char *want = wrapped[_i].line[k];
        LS_TEXT(script, 300, "IFS=; self=%s; run=/r; x \"$self\"y{run \"$run\"/jobs/a",
                job.directory);
        ck_assert_str_eq(job.command.word[k], want == NULL ? script : want);
    }
    ck_assert_str_eq(job.command.word[wrapped[_i].words], "-a");
    ls_job_free(&job);
}
END_TEST

/* Our own programs are those next to this one. */
START_TEST(folders_of_programs)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    ls_spec spec = ls_matrix_spec(LS_ROLE_REFERENCE);
    ls_matrix_site site = {.run_directory = "/r", .device = "cpu", .cores = 2};
    ls_text_put(spec.extra, sizeof spec.extra, "--a={bin}/b --c={run}{bin} --d={self}/e");
    ls_job job;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    LS_TEXT(first, 1100, "%s/lockstep-train", program);
    LS_TEXT(a, 1100, "--a=%s/b", program);
    LS_TEXT(c, 1100, "--c=/r%s", program);
    LS_TEXT(d, 1100, "--d=%s/e", job.directory);
    ck_assert_str_eq(job.command.word[0], first);
    ck_assert_str_eq(job.command.word[job.command.count - 4], a);
    ck_assert_str_eq(job.command.word[job.command.count - 3], c);
    ck_assert_str_eq(job.command.word[job.command.count - 2], d);
    ls_job_free(&job);
}
END_TEST

/* A run that an earlier version began goes on: its jobs keep their ids, and their audits. */
START_TEST(ids_are_those_of_earlier_versions)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    static const char *const ids[] = {
        "resnet20.o0.w1.own.s3-ffd45202",
        "resnet20.o0.w1.own.s3-5edfbfd5",
        "resnet20.o0.w2.n2.own.s3-1ac99435",
        "resnet20.o0.w2.n2.own.s3-92daad08",
    };
    for (int i = 0; i < 4; i++) {
        char id[96];
        if (i == 1) { /* what each rank does, and a script */
            spec.wrap = LS_WRAP_EACH;
            ls_text_put(spec.each, sizeof spec.each, "--a|--b");
            spec.script = "x";
        } else if (i == 2) {
            spec.role = LS_ROLE_PHASES;
            spec.nodes = spec.world = 2;
        } else if (i == 3) {
            spec.real_nodes = true;
        }
        ls_matrix_id(&spec, id);
        ck_assert_str_eq(id, ids[i]);
    }
    ck_assert_uint_eq(ls_matrix_audit_of(&spec).seed, 0x92daad08);
}
END_TEST

/* What else a job has of its spec and its site. */
START_TEST(every_member_of_a_job)
{
    static ls_hosts hosts;
    static const ls_simnet net = {.text = "1gbit"};
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.world = 6;
    spec.threads = 3;
    spec.level = 1;
    ls_matrix_site site = {.run_directory = "/r",
                           .device = "cpu",
                           .cores = 5,
                           .net = &net,
                           .share_devices = true,
                           .half_emulated = true,
                           .gpus = (struct ls_watch_gpu *)&hosts, /* only passed on */
                           .hosts = &hosts};
    ls_job job;
    char id[96];
    ls_matrix_id(&spec, id);
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    LS_TEXT(directory, 200, "/r/jobs/%s", id);
    ck_assert_str_eq(job.id, id);
    ck_assert_str_eq(job.directory, directory);
    ck_assert_str_eq(job.label, "O1, 6 ranks, own rule");
    ck_assert(job.world == 6 && job.local_nodes == 1 && job.host_count == 1 && job.threads == 3);
    ck_assert(job.net == NULL && job.hosts == &hosts && job.gpus == site.gpus && job.share_devices);
    check_near(job.limit_s, 60 + 10 * ls_matrix_estimate_s(&spec, 5));
    ck_assert_int_eq(job.file_bytes_max, INT64_C(4) << 30);
    ck_assert(job.grace_s == 5);
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false)); /* 6 ranks on 5 cores */
    ck_assert(ls_json_bool(job.facts, "half_emulated", false));
    ck_assert(!cJSON_HasObjectItem(job.facts, "link"));
    ls_job_free(&job);
    site.subject = "t";
    site.cores = 6;
    site.share_devices = false;
    spec.nodes = 2;
    spec.level = 0;
    spec.role = LS_ROLE_REFERENCE;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(job.local_nodes == 2 && job.host_count == 1 && job.net == &net);
    ck_assert_str_eq(ls_json_string(job.facts, "link", ""), "1gbit");
    ck_assert(!ls_json_bool(job.facts, "oversubscribed", true));
    ck_assert(!ls_json_bool(job.facts, "half_emulated", true));
    check_near(job.limit_s, 240 + 10 * ls_matrix_estimate_s(&spec, 6));
    ck_assert(job.file_bytes_max == 0 && !job.share_devices);
    ls_job_free(&job);
    site.devices = 2;
    spec.limit_s = 0.5;
    spec.grace_s = 0.25;
    spec.real_nodes = true;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(job.local_nodes == 1 && job.host_count == 2 && job.net == NULL);
    ck_assert(job.limit_s == 0.5 && job.grace_s == 0.25);
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false)); /* 3 ranks on 2 devices */
    ck_assert(!cJSON_HasObjectItem(job.facts, "link"));
    ls_job_free(&job);
    site.devices = 3;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(!ls_json_bool(job.facts, "oversubscribed", true));
    ls_job_free(&job);
    site.devices = 1;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false));
    ls_job_free(&job);
    site.devices = 3;
    site.oversubscribed = true;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert(ls_json_bool(job.facts, "oversubscribed", false));
    ls_job_free(&job);
}
END_TEST

/* What a spec of a role is without further choices. */
START_TEST(a_spec_begins_with_the_defaults)
{
    for (int role = 0; role < LS_ROLE_COUNT; role++) {
        ls_spec s = ls_matrix_spec((ls_role)role);
        bool exact = role == LS_ROLE_EVIDENCE || role == LS_ROLE_REFERENCE;
        ck_assert(s.role == (ls_role)role && s.image_size == 16 && s.batch_size == 4);
        ck_assert(s.level == 0 && s.world == 1 && s.nodes == 1 && s.bucket_mb == LS_BUCKET_OWN);
        ck_assert(s.accumulate == 1 && s.steps == 3 && s.lr == 0.05 && s.kill_rank == -1);
        ck_assert(s.threads == exact && s.deterministic == exact && s.warmup_steps == 0);
        ck_assert_str_eq(s.arch, "resnet20");
        ck_assert_str_eq(s.half, "fp16");
        ck_assert_str_eq(s.dialect, "apex");
        ck_assert_str_eq(s.data, "synthetic");
        ck_assert_int_eq(ls_matrix_is_row(&s),
                         role == LS_ROLE_THROUGHPUT || role == LS_ROLE_PHASES);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("matrix");
    TCase *tests = tcase_create("matrix");
    tcase_add_test(tests, quick_varies_one_factor_at_a_time);
    tcase_add_test(tests, timed_jobs_of_ours_are_audited_each_in_other_steps);
    tcase_add_test(tests, what_a_row_is_compared_with_differs_in_one_thing);
    tcase_add_test(tests, every_run_of_the_curves_has_its_own_options);
    tcase_add_test(tests, full_covers_every_pair_and_not_the_product);
    tcase_add_test(tests, hosts_are_filled_one_by_one);
    tcase_add_test(tests, every_gpu_computes_the_same_twice);
    tcase_add_test(tests, rated_steps_depend_on_no_machine);
    tcase_add_test(tests, the_middle_is_a_point_of_every_sweep);
    tcase_add_test(tests, a_choice_of_levels_and_buckets_is_kept);
    tcase_add_test(tests, equal_specs_are_one_job_and_different_ones_are_not);
    tcase_add_test(tests, a_command_has_the_factors_and_no_placeholder);
    tcase_add_test(tests, a_script_takes_any_folder);
    tcase_add_test(tests, timed_steps_can_be_halved_and_keep_the_time);
    tcase_add_loop_test(tests, the_whole_plan, 0, (int)(sizeof plans / sizeof *plans));
    tcase_add_test(tests, bucket_sizes_have_names);
    tcase_add_test(tests, jobs_have_names);
    tcase_add_test(tests, an_id_follows_from_the_job);
    tcase_add_test(tests, estimates_follow_the_model);
    tcase_add_test(tests, estimates_of_gpus);
    tcase_add_loop_test(tests, steps_of_gpus, 0, 8);
    tcase_add_test(tests, first_steps_of_timed_jobs);
    tcase_add_test(tests, estimates_know_the_networks);
    tcase_add_test(tests, every_member_of_a_job);
    tcase_add_test(tests, a_spec_begins_with_the_defaults);
    tcase_add_loop_test(tests, every_option_of_a_command, 0,
                        (int)(sizeof commands / sizeof *commands));
    tcase_add_loop_test(tests, every_wrapper_of_a_command, 0,
                        (int)(sizeof wrapped / sizeof *wrapped));
    tcase_add_loop_test(tests, plans_of_other_choices, 0, (int)(sizeof chosen / sizeof *chosen));
    tcase_add_test(tests, folders_of_programs);
    tcase_add_test(tests, ids_are_those_of_earlier_versions);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
