/* Which jobs a bench is made of, and how a spec becomes a command. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "harness/process/proc_isolated.h"
#include "harness/run/matrix_bench.h"
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
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
