/* What timed jobs are compared with, from an invented run whose every step time is known: the same
 * world without reduction, one rank with DDP, the global batch on one rank, memory, repeated runs.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/report/figures.h"
#include "harness/report/job.h"
#include "kernels/core/text.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"

static char scratch[256];

typedef struct timed {
    const char *id, *role, *level;
    int world, batch_size;
    double step_ms;
    bool checked;
    double activation_bytes, rss_bytes;
} timed;

enum { STEPS = 16, WARMUP = 2, MB = 1000000 };

static FILE *open_in(const char *folder, const char *name)
{
    char path[600];
    ls_text_put(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    return file;
}

/* 1 % up and down: an interval needs values that differ. */
static double step_ms(const timed *job, int step)
{
    return job->step_ms * (step % 2 == 0 ? 0.99 : 1.01);
}

/* Without reduction rank 0 takes its time and the others are through early: its last steps, alone
 * on the machine, take a tenth. */
static void write_rank(const char *folder, const timed *job, int rank)
{
    char name[32];
    ls_text_put(name, sizeof name, "rank%d.jsonl", rank);
    FILE *file = open_in(folder, name);
    bool no_comm = strcmp(job->role, "no_comm") == 0;
    fprintf(file,
            "{\"event\":\"start\",\"threads\":1,\"activation_bytes\":%g,\"workspace_bytes\":%d,"
            "\"memory\":{\"parameters\":%d,\"gradients\":%d,\"masters\":%d,\"moments\":0,"
            "\"buffers\":0},\"options\":{\"opt-level\":\"%s\"}}\n",
            job->activation_bytes, 100 * MB, 20 * MB, 20 * MB, 40 * MB, job->level);
    double at_ms = 1500; /* since the start of the launcher: the first step ends 100 ms later */
    for (int step = 1; step <= STEPS; step++) {
        double ms = step == 1 ? 100 : step_ms(job, step);
        if (no_comm && rank == 0 && step > 12) {
            ms /= 10;
        } else if (no_comm && rank > 0) {
            ms *= 0.75; /* ends before rank 0's thirteenth */
        }
        at_ms += ms;
        fprintf(file,
                "{\"event\":\"step\",\"step\":%d,\"loss\":1,\"images\":%d,\"at_ns\":%.0f,"
                "\"ms\":{\"total\":%.6f,\"comm\":30,\"comm_exposed\":%d,\"instrument\":%d}}\n",
                step, job->batch_size, 1e9 + at_ms * 1e6, ms, 12 + 10 * rank, step == 1 ? 40 : 0);
    }
    fprintf(file, "{\"event\":\"end\"}\n");
    fclose(file);
}

static void write_job(const timed *job)
{
    char folder[512];
    ls_text_put(folder, sizeof folder, "%s/jobs/%s", scratch, job->id);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    FILE *file = open_in(folder, "job.json");
    fprintf(file,
            "{\"label\":\"%s\",\"facts\":{\"role\":\"%s\",\"arch\":\"resnet18\",\"image_size\":32,"
            "\"batch_size\":%d,\"level\":\"%s\",\"half\":\"fp16\",\"world\":%d,\"nodes\":1,"
            "\"bucket_mb\":25,\"warmup_steps\":%d,\"checked\":%s,\"oversubscribed\":%s,"
            "\"sweep\":[\"level\",\"world\"]},\"outcome\":{\"state\":\"done\",\"first_rank\":-1,"
            "\"started_ns\":1e9,\"seconds\":3,\"ranks\":[",
            job->id, job->role, job->batch_size, job->level, job->world, WARMUP,
            job->checked ? "true" : "false", job->world > 2 ? "true" : "false");
    for (int k = 0; k < job->world; k++) {
        fprintf(file, "%s{\"rank\":%d,\"code\":0,\"rss_bytes_max\":%g}", k > 0 ? "," : "", k,
                job->rss_bytes);
    }
    fprintf(file, "]}}\n");
    fclose(file);
    for (int k = 0; k < job->world; k++) {
        write_rank(folder, job, k);
    }
}

/* Ten O0 runs that end at 1.00, 1.01, ..., 1.09, an O1 run inside and an O2 run outside. */
static void write_curves(void)
{
    char folder[512], name[32];
    ls_text_put(folder, sizeof folder, "%s/jobs/curves", scratch);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    FILE *file = open_in(folder, "job.json");
    fprintf(file, "{\"facts\":{\"role\":\"curves\",\"arch\":\"resnet8\",\"world\":12},"
                  "\"outcome\":{\"state\":\"done\",\"ranks\":[]}}\n");
    fclose(file);
    for (int k = 0; k < 12; k++) {
        ls_text_put(name, sizeof name, "rank%d.jsonl", k);
        file = open_in(folder, name);
        fprintf(file, "{\"event\":\"start\",\"options\":{\"opt-level\":\"%s\"}}\n",
                k < 10    ? "O0"
                : k == 10 ? "O1"
                          : "O2");
        double end = k < 10 ? 1 + 0.01 * k : k == 10 ? 1.05 : 1.5;
        for (int step = 1; step <= 40; step++) {
            fprintf(file, "{\"event\":\"step\",\"step\":%d,\"loss\":%g}\n", step,
                    step <= 36 ? 2.3 : end);
        }
        fclose(file);
    }
}

static const timed jobs[] = {
    {"o2.w4", "throughput", "O2", 4, 8, 100, true, 8 * MB, 300 * MB},
    {"o2.w4.no_comm", "no_comm", "O2", 4, 8, 80, false, 8 * MB, 200 * MB},
    {"o2.w1", "throughput", "O2", 1, 8, 49, true, 8 * MB, 300 * MB},
    {"o2.w1.ddp_world1", "ddp_world1", "O2", 1, 8, 50, true, 8 * MB, 198 * MB},
    {"o2.w1.strong_scaling", "strong_scaling", "O2", 1, 32, 200, true, 32 * MB, 230 * MB},
    {"o1.w4", "throughput", "O1", 4, 8, 100, true, 8 * MB, 300 * MB},
};

static void open_scratch(void)
{
    char folder[300];
    const char *base = getenv("TMPDIR");
    ls_text_put(scratch, sizeof scratch, "%.100s/ls_compare_XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(scratch));
    ls_text_put(folder, sizeof folder, "%s/jobs", scratch);
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    FILE *file = open_in(scratch, "run.json");
    fprintf(file,
            "{\"machine\":{\"cores\":2,\"memory_available_bytes\":4e9},\"roofline\":["
            "{\"when\":\"before\",\"arch\":\"resnet18\",\"image_size\":32,\"batch_size\":8,"
            "\"threads\":1,\"images_per_s\":200},{\"when\":\"before\",\"arch\":\"resnet18\","
            "\"image_size\":32,\"batch_size\":8,\"threads\":2,\"images_per_s\":300},"
            "{\"when\":\"after\",\"arch\":\"resnet18\",\"image_size\":32,\"batch_size\":8,"
            "\"threads\":2,\"images_per_s\":400}],\"rates\":[{\"when\":\"before\",\"threads\":2,"
            "\"copy_bytes_per_s\":2e10,\"matrix_flop_per_s\":1e11}]}\n");
    fclose(file);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        write_job(&jobs[i]);
    }
    write_curves();
}

static void close_scratch(void)
{
    ls_path_remove_tree(scratch);
}

static ls_report_run run;

static const ls_report_job *job_of(const char *id)
{
    for (int j = 0; j < run.job_count; j++) {
        if (strcmp(run.job[j].record->id, id) == 0) {
            return &run.job[j];
        }
    }
    ck_abort_msg("no job %s", id);
    return NULL;
}

static bool is_said(const char *words)
{
    bool found = false;
    cJSON *list = ls_report_compare_sentences(&run);
    const cJSON *sentence;
    cJSON_ArrayForEach(sentence, list)
    {
        found = found || strstr(sentence->valuestring, words) != NULL;
    }
    cJSON_Delete(list);
    return found;
}

/* What the steps of +-1 % leave of a median of medians. */
static const double SLACK = 0.011;

START_TEST(exposed_by_no_comm_is_the_difference_of_steps)
{
    const ls_report_job *job = job_of("o2.w4");
    ls_stats_interval by_no_comm = ls_report_compare_exposed_ms(&run, job);
    ck_assert_double_eq_tol(by_no_comm.value, 20, SLACK * 180);
    ck_assert(by_no_comm.low <= by_no_comm.value && by_no_comm.value <= by_no_comm.high);
    /* of the rank whose step it is a part of; the other ranks wait longer */
    ck_assert_int_eq(job->speed.slowest_rank, 0);
    ck_assert_double_eq(ls_report_speed_exposed_ms(&run, job), 12);
    ck_assert(is_said("12.00 ms are spent waiting"));
    ck_assert(is_said("more than the wait"));
    ck_assert(
        isnan(ls_report_compare_exposed_ms(&run, job_of("o1.w4")).value)); /* has no baseline */
}
END_TEST

START_TEST(no_comm_steps_count_while_all_its_ranks_run)
{
    const ls_report_job *no_comm = job_of("o2.w4.no_comm");
    ck_assert_int_eq(no_comm->speed.slowest_rank, 0);
    ck_assert_int_lt(no_comm->speed.count,
                     STEPS - WARMUP); /* the quick steps at its end are left out */
    ck_assert_double_eq_tol(no_comm->speed.step.value, 80, SLACK * 80);
}
END_TEST

START_TEST(ddp_of_one_is_a_ratio_of_speeds)
{
    const ls_report_job *with, *without;
    ls_stats_interval ratio = ls_report_compare_ddp(&run, &with, &without);
    ck_assert_str_eq(with->record->id, "o2.w1.ddp_world1");
    ck_assert_str_eq(without->record->id, "o2.w1");
    ck_assert_double_eq_tol(ratio.value, 49.0 / 50, 2 * SLACK);
    ck_assert(is_said("DDP on one rank (O2): 0.9"));
}
END_TEST

START_TEST(scaling_is_weak_and_strong_with_what_cores_allow)
{
    const ls_report_job *job = job_of("o2.w4"), *base;
    /* 4 x 8 images in 100 ms; one rank: 8 in 49 ms, and 32 in 200 ms */
    ck_assert_double_eq_tol(job->speed.efficiency.value, 0.49, 2 * SLACK);
    ls_stats_interval strong = ls_report_compare_strong(&run, job, &base);
    ck_assert_str_eq(base->record->id, "o2.w1.strong_scaling");
    ck_assert_double_eq_tol(strong.value, 0.5, 2 * SLACK);
    ck_assert_double_eq(ls_report_compare_ceiling(&run, job), 0.5);
    ck_assert_double_eq(ls_report_compare_ceiling(&run, job_of("o2.w1")), 1);
    ck_assert(is_said("share 2 cores, which limits it to 0.50"));
}
END_TEST

START_TEST(the_roofline_is_that_of_as_many_threads)
{
    /* 320 images/s against the best of the two at 2 threads; 163 against 200 at one */
    ck_assert_double_eq_tol(job_of("o2.w4")->speed.roofline_share, 0.8, SLACK);
    ck_assert_double_eq_tol(job_of("o2.w1")->speed.roofline_share, 8 / 0.049 / 200, SLACK);
    ck_assert(is_said("with 2 threads: copies 20.00 GB/s (read and written), f32 products 100.0"));
    ck_assert(is_said("differ by 1.33 x"));
}
END_TEST

START_TEST(the_first_step_is_told_without_the_judges_dump)
{
    /* 1.5 s of start, 100 ms of step, less 40 ms that were written; 1e-9: seconds from ns */
    ck_assert_double_eq_tol(job_of("o2.w4")->speed.first_step_s, 1.56, 1e-9);
}
END_TEST

START_TEST(the_largest_batch_is_arithmetic_that_a_larger_job_confirms)
{
    ls_report_batch batch;
    const ls_report_job *larger;
    double predicted, seen, input = 3 * 32 * 32 * 4;
    ck_assert(ls_report_memory_largest_batch(&run, job_of("o2.w4"), &batch));
    /* reported: 180 MB and 8 MB of activations; a job that dumps nothing held 10 MB more */
    ck_assert_double_eq(batch.room_bytes, 1e9);
    ck_assert_double_eq(batch.fixed_bytes, 190.0 * MB);
    ck_assert_double_eq(batch.image_bytes, MB + 3 * input);
    ck_assert_double_eq(batch.largest, floor((1e9 - 190.0 * MB) / (MB + 3 * input)));
    ck_assert(ls_report_memory_check(&run, &larger, &predicted, &seen));
    ck_assert_double_eq(seen, 230.0 * MB);
    ck_assert_double_eq(predicted, 190.0 * MB + 32 * (MB + 3 * input));
    ck_assert(is_said("computed, not run"));
}
END_TEST

START_TEST(the_band_says_who_is_inside)
{
    ls_report_band band;
    char text[320];
    ck_assert(ls_report_loss_read_band(&run, &band));
    ck_assert_int_eq(band.runs, 10);
    ck_assert_double_eq_tol(band.end.value, 1.045, 1e-9); /* a sum of ten */
    /* s of 0.00 ... 0.09 is 0.030277, t of 9 degrees 2.262157 */
    ck_assert_double_eq_tol(band.end.high, 1.045 + 2.262157 * 0.030277 * sqrt(1.1), 1e-4);
    ls_report_loss_sentence(&band, text);
    ck_assert_str_eq(text,
                     "O2 (1.500) ends outside, O1 (1.050) stays inside the band of 10 O0 runs "
                     "[0.973, 1.117]");
}
END_TEST

static void read_run(void)
{
    open_scratch();
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
}

static void drop_run(void)
{
    ls_report_load_free(&run);
    close_scratch();
}

int main(void)
{
    Suite *suite = suite_create("report_compare");
    TCase *tests = tcase_create("report_compare");
    tcase_add_checked_fixture(tests, read_run, drop_run);
    tcase_add_test(tests, exposed_by_no_comm_is_the_difference_of_steps);
    tcase_add_test(tests, no_comm_steps_count_while_all_its_ranks_run);
    tcase_add_test(tests, ddp_of_one_is_a_ratio_of_speeds);
    tcase_add_test(tests, scaling_is_weak_and_strong_with_what_cores_allow);
    tcase_add_test(tests, the_roofline_is_that_of_as_many_threads);
    tcase_add_test(tests, the_first_step_is_told_without_the_judges_dump);
    tcase_add_test(tests, the_largest_batch_is_arithmetic_that_a_larger_job_confirms);
    tcase_add_test(tests, the_band_says_who_is_inside);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
