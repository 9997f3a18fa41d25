/* What timed jobs are compared with, from an invented run whose every step time is known: the same
 * world without reduction, one rank with DDP, the global batch on one rank, memory, repeated runs.
 */
#include <limits.h>
#include <sys/stat.h>

#include "harness/report/figures.h"
#include "harness/report/page.h"
#include "harness/report/page.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

typedef struct timed {
    const char *id, *role, *level;
    int world, batch_size;
    double step_ms;
    bool checked;
    double activation_bytes, rss_bytes;
    int bucket_mb, nodes; /* 0: 25 MB, one node */
    double second_half;   /* its steps take that much longer; 0: they do not */
    int slow_step;        /* it takes three times as long; 0: none does */
    double data_ms;       /* of a step; 0: not reported */
    int bad_images;       /* of every step and rank, and of a validation */
} timed;

enum { WARMUP = 2, MB = 1000000 };
enum { STEPS = 16 };
static int steps;

/* 1 % up and down: an interval needs values that differ. */
static double step_ms(const timed *job, int step)
{
    double drift = job->second_half > 0 && step > (WARMUP + steps) / 2 ? job->second_half : 1;
    double slow = step == job->slow_step ? 3 : 1;
    return slow * drift * job->step_ms * (step % 2 == 0 ? 0.99 : 1.01);
}

/* Without reduction rank 0 takes its time and the others are through early: its last steps, alone
 * on the machine, take a tenth. */
static void write_rank(const timed *job, int rank)
{
    LS_TEXT(name, 100, "jobs/%s/rank%d.jsonl", job->id, rank);
    FILE *file = create(name);
    bool no_comm = strcmp(job->role, "no_comm") == 0;
    fprintf(file,
            "{\"event\":\"start\",\"threads\":1,\"activation_bytes\":%g,\"workspace_bytes\":%d,"
            "\"memory\":{\"parameters\":%d,\"gradients\":%d,\"masters\":%d,\"moments\":0,"
            "\"buffers\":0},\"options\":{\"opt-level\":\"%s\"%s}}\n",
            job->activation_bytes, 100 * MB, 20 * MB, 20 * MB, 40 * MB, job->level,
            strcmp(job->role, "loader") == 0 ? ",\"workers\":3" : "");
    double at_ms = 1500; /* since the start of the launcher: the first step ends 100 ms later */
    for (int step = 1; step <= steps; step++) {
        double ms = step == 1 ? 100 : step_ms(job, step);
        if (no_comm && rank == 0 && step > 12) {
            ms /= 10;
        } else if (no_comm && rank > 0) {
            ms *= 0.75; /* ends before rank 0's thirteenth */
        }
        at_ms += ms;
        fprintf(file,
                "{\"event\":\"step\",\"step\":%d,\"loss\":1.%c,\"images\":%d,\"at_ns\":%.0f,"
                "\"ms\":{\"total\":%.6f,\"comm\":30,\"comm_exposed\":%d,\"instrument\":%d",
                step, job->level[1], job->batch_size, 1e9 + at_ms * 1e6, ms, 12 + 10 * rank,
                step == 1 ? 40 : 0);
        if (job->data_ms > 0) {
            fprintf(file, ",\"data\":%g", job->data_ms);
        }
        fprintf(file, "}");
        if (job->bad_images > 0) {
            fprintf(file, ",\"bad_images\":%d", job->bad_images);
        }
        fprintf(file, "}\n");
    }
    if (job->bad_images > 0) { /* over all ranks, in the events of each */
        fprintf(file,
                "{\"event\":\"epoch\",\"epoch\":1,\"step\":%d,\"val\":{\"images\":90,"
                "\"bad_images\":%d}}\n",
                steps, job->bad_images);
    }
    fprintf(file, "{\"event\":\"end\"}\n");
    fclose(file);
}

static void write_job(const timed *job)
{
    LS_TEXT(name, 100, "jobs/%s/job.json", job->id);
    FILE *file = create(name);
    fprintf(file,
            "{\"label\":\"%s\",\"facts\":{\"role\":\"%s\",\"arch\":\"resnet18\",\"image_size\":32,"
            "\"batch_size\":%d,\"level\":\"%s\",\"half\":\"fp16\",\"world\":%d,\"nodes\":%d,"
            "\"bucket_mb\":%d,\"warmup_steps\":%d,\"checked\":%s,\"oversubscribed\":%s,"
            "\"sweep\":[%s]},\"outcome\":{\"state\":\"done\",\"first_rank\":-1,"
            "\"started_ns\":1e9,\"seconds\":3,\"ranks\":[",
            job->id, job->role, job->batch_size, job->level, job->world,
            job->nodes > 0 ? job->nodes : 1, job->bucket_mb > 0 ? job->bucket_mb : 25, WARMUP,
            job->checked ? "true" : "false", job->world > 2 ? "true" : "false",
            job->nodes > 0                  ? "\"nodes\""
            : job->bucket_mb > 0            ? "\"bucket\""
            : job->world == 1               ? "\"world\""
            : strcmp(job->level, "O2") == 0 ? "\"level\",\"world\",\"bucket\""
                                            : "\"level\",\"world\"");
    for (int k = 0; k < job->world; k++) {
        fprintf(file, "%s{\"rank\":%d,\"code\":0,\"rss_bytes_max\":%g}", k > 0 ? "," : "", k,
                job->rss_bytes);
    }
    fprintf(file, "]}}\n");
    fclose(file);
    for (int k = 0; k < job->world; k++) {
        write_rank(job, k);
    }
}

/* Of the curves: the losses of all are equal until the last four steps. */
enum { CURVE_STEPS = 46, CURVE_END = 42 };

static double falling(int step)
{
    return 2.3 - 0.01 * step;
}

/* Ten O0 runs that end at 1.00, 1.01, ..., 1.09, an O1 run inside and an O2 run outside. */
static void write_curves(void)
{
    write_text("jobs/curves/job.json",
               "{\"facts\":{\"role\":\"curves\",\"arch\":\"resnet8\",\"world\":12},"
               "\"outcome\":{\"state\":\"done\",\"ranks\":[]}}\n");
    for (int k = 0; k < 12; k++) {
        LS_TEXT(name, 40, "jobs/curves/rank%d.jsonl", k);
        FILE *file = create(name);
        fprintf(file, "{\"event\":\"start\",\"options\":{\"opt-level\":\"%s\"}}\n",
                k < 10    ? "O0"
                : k == 10 ? "O1"
                          : "O2");
        double end = k < 10 ? 1 + 0.01 * k : k == 10 ? 1.05 : 1.5;
        for (int step = 1; step <= CURVE_STEPS; step++) {
            fprintf(file, "{\"event\":\"step\",\"step\":%d,\"loss\":%g}\n", step,
                    step <= CURVE_END ? falling(step) : end);
        }
        fclose(file);
    }
}

static const timed usual_jobs[] = {
    {"o2.w4", "throughput", "O2", 4, 8, 100, true, 8 * MB, 300 * MB},
    {"o2.w4.no_comm", "no_comm", "O2", 4, 8, 80, false, 8 * MB, 200 * MB},
    {"o2.w1", "throughput", "O2", 1, 8, 49, true, 8 * MB, 300 * MB},
    {"o2.w1.ddp_world1", "ddp_world1", "O2", 1, 8, 50, true, 8 * MB, 198 * MB},
    {"o2.w1.strong_scaling", "strong_scaling", "O2", 1, 32, 200, true, 32 * MB, 230 * MB},
    {"o1.w4", "throughput", "O1", 4, 8, 100, true, 8 * MB, 300 * MB},
    {"o0.w4", "throughput", "O0", 4, 8, 150, true, 8 * MB, 300 * MB},
    {"o2.b1", "throughput", "O2", 4, 8, 120, true, 8 * MB, 300 * MB, .bucket_mb = 1},
    {"o2.n2", "throughput", "O2", 8, 8, 110, true, 8 * MB, 300 * MB, .nodes = 2},
};
enum { O2_W4, NO_COMM, O2_W1, WITH_DDP, STRONG, O1_W4, O0_W4, O2_B1, O2_N2, JOBS };
static timed jobs[JOBS];

static void write_run(void)
{
    open_scratch();
    write_text("run.json",
               "{\"machine\":{\"cores\":2,\"memory_available_bytes\":4e9},\"roofline\":["
               "{\"when\":\"before\",\"arch\":\"resnet18\",\"image_size\":32,\"batch_size\":8,"
               "\"threads\":1,\"images_per_s\":200},{\"when\":\"before\",\"arch\":\"resnet18\","
               "\"image_size\":32,\"batch_size\":8,\"threads\":2,\"images_per_s\":300},"
               "{\"when\":\"after\",\"arch\":\"resnet18\",\"image_size\":32,\"batch_size\":8,"
               "\"threads\":2,\"images_per_s\":400}],\"rates\":[{\"when\":\"before\",\"threads\":2,"
               "\"copy_bytes_per_s\":2e10,\"matrix_flop_per_s\":1e11}]}\n");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        write_job(&jobs[i]);
    }
    write_curves();
}

static ls_report_run run;

static const ls_report_job *find_job(const char *id)
{
    for (int j = 0; j < run.job_count; j++) {
        if (strcmp(run.job[j].record->id, id) == 0) {
            return &run.job[j];
        }
    }
    ck_abort_msg("no job %s", id);
    return NULL;
}

/* In a sentence of a list, which is freed. */
static bool is_among(cJSON *list, const char *words)
{
    bool found = false;
    const cJSON *sentence;
    ls_json_each(sentence, list) {
        found = found || strstr(sentence->valuestring, words) != NULL;
    }
    cJSON_Delete(list);
    return found;
}

static bool is_said(const char *words)
{
    return is_among(ls_report_compare_sentences(&run), words);
}

/* What the steps of +-1 % leave of a median of medians. */
static const double SLACK = 0.011;

TEST(exposed_by_no_comm_is_the_difference_of_steps)
{
    const ls_report_job *job = find_job("o2.w4");
    ls_stats_interval by_no_comm = ls_report_compare_exposed_ms(&run, job);
    ck_assert_double_eq_tol(by_no_comm.value, 20, SLACK * 180);
    ck_assert(by_no_comm.low <= by_no_comm.value && by_no_comm.value <= by_no_comm.high);
    /* of the rank whose step it is a part of; the other ranks wait longer */
    ck_assert_int_eq(job->speed.slowest_rank, 0);
    ck_assert_double_eq(ls_report_speed_exposed_ms(&run, job), 12);
    ck_assert(is_said("12.00 ms are spent waiting"));
    ck_assert(is_said("more than the wait"));
    ck_assert(
        isnan(ls_report_compare_exposed_ms(&run, find_job("o1.w4")).value)); /* has no baseline */
}

TEST(no_comm_steps_count_while_all_its_ranks_run)
{
    const ls_report_job *no_comm = find_job("o2.w4.no_comm");
    ck_assert_int_eq(no_comm->speed.slowest_rank, 0);
    ck_assert_int_lt(no_comm->speed.count,
                     steps - WARMUP); /* the quick steps at its end are left out */
    ck_assert_double_eq_tol(no_comm->speed.step.value, 80, SLACK * 80);
}

TEST(ddp_of_one_is_a_ratio_of_speeds)
{
    const ls_report_job *with, *without;
    ls_stats_interval ratio = ls_report_compare_ddp(&run, &with, &without);
    ck_assert_str_eq(with->record->id, "o2.w1.ddp_world1");
    ck_assert_str_eq(without->record->id, "o2.w1");
    ck_assert_double_eq_tol(ratio.value, 49.0 / 50, 2 * SLACK);
    ck_assert(is_said("DDP on one rank (O2): 0.9"));
}

TEST(scaling_is_weak_and_strong_with_what_cores_allow)
{
    const ls_report_job *job = find_job("o2.w4"), *base;
    /* 4 x 8 images in 100 ms; one rank: 8 in 49 ms, and 32 in 200 ms */
    ck_assert_double_eq_tol(job->speed.efficiency.value, 0.49, 2 * SLACK);
    ls_stats_interval strong = ls_report_compare_strong(&run, job, &base);
    ck_assert_str_eq(base->record->id, "o2.w1.strong_scaling");
    ck_assert_double_eq_tol(strong.value, 0.5, 2 * SLACK);
    ck_assert_double_eq(ls_report_compare_ceiling(&run, job), 0.5);
    ck_assert_double_eq(ls_report_compare_ceiling(&run, find_job("o2.w1")), 1);
    ck_assert(is_said("share 2 cores, which limits it to 0.50"));
}

TEST(the_roofline_is_that_of_as_many_threads)
{
    /* 320 images/s against the best of the two at 2 threads; 163 against 200 at one */
    ck_assert_double_eq_tol(find_job("o2.w4")->speed.roofline_share, 0.8, SLACK);
    ck_assert_double_eq_tol(find_job("o2.w1")->speed.roofline_share, 8 / 0.049 / 200, SLACK);
    ck_assert(is_said("with 2 threads: copies 20.00 GB/s (read and written), f32 products 100.0"));
    ck_assert(is_said("differ by 1.33 x"));
}

TEST(the_first_step_is_told_without_the_judges_dump)
{
    /* 1.5 s of start, 100 ms of step, less 40 ms that were written; 1e-9: seconds from ns */
    ck_assert_double_eq_tol(find_job("o2.w4")->speed.first_step_s, 1.56, 1e-9);
}

TEST(the_largest_batch_is_arithmetic_that_a_larger_job_confirms)
{
    ls_report_batch batch;
    const ls_report_job *larger;
    double predicted, seen, input = 3 * 32 * 32 * 4;
    ck_assert(ls_report_memory_largest_batch(&run, find_job("o2.w4"), &batch));
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

TEST(the_band_says_who_is_inside)
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

/* A job takes other times; what a report then says is in report_words.txt. */
static const struct {
    int job;
    double step_ms; /* 0: all as they are; below 0: it is not checked */
    int steps;      /* 0: 16 */
    double second_half;
} changes[] = {
    {0, 0, 0, 0},        {NO_COMM, 88, 0, 0},  {NO_COMM, 120, 0, 0}, {NO_COMM, 100, 0, 0},
    {NO_COMM, 95, 0, 0}, {NO_COMM, 80, 5, 0},  {WITH_DDP, 45, 0, 0}, {WITH_DDP, 49, 0, 0},
    {O2_W4, 0, 0, 0},    {O2_W4, 100, 5, 0},   {O1_W4, 0, 0, 0},     {O2_W4, 40, 0, 0},
    {O2_N2, 130, 0, 0},  {O2_W4, 100, 0, 1.2}, {O2_B1, -1, 0, 0},    {O2_B1, 100, 0, 0},
    {O1_W4, 150, 0, 0},  {O0_W4, 100, 0, 0},   {O0_W4, 80, 0, 0},    {O0_W4, 150, 5, 0},
    {O2_B1, 0, 0, 0},
};

static void write_again(int job, double ms, int count, double second_half)
{
    ls_report_load_free(&run);
    close_scratch();
    steps = count > 0 ? count : steps;
    jobs[job].step_ms = ms > 0 ? ms : jobs[job].step_ms;
    jobs[job].checked = jobs[job].checked && ms >= 0;
    jobs[job].second_half = second_half;
    write_run();
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
}

/* The job of O1 becomes that which reads files, to be compared with O2's 100 ms. */
LOOP_TEST(images_from_files, 4)
{
    static const struct {
        double step_ms, data_ms;
        int needed;
        const char *said;
    } rows[] = {
        {125, 25, 4,
         "compared with rows whose batches stay on the GPU: slower by 20.0 % [20.0, 20.0]; a step "
         "waits 20 % of its time for 3 workers per rank, and about 4 would keep up."},
        {400, 300, 12,
         "waits 75 % of its time for 3 workers per rank, and about 12 would keep up."},
        {125, 2, 3, "waits 2 % of its time for 3 workers per rank."},
        {100, 0, 3, "waits 0 % of its time for 3 workers per rank."},
    };
    jobs[O1_W4].role = "loader";
    jobs[O1_W4].level = "O2";
    jobs[O1_W4].data_ms = rows[_i].data_ms;
    write_again(O1_W4, rows[_i].step_ms, 0, 0);
    ls_report_loader loader;
    ck_assert(ls_report_compare_loader(&run, &loader));
    ck_assert_str_eq(loader.reading->record->id, "o1.w4");
    ck_assert_str_eq(loader.resident->record->id, "o2.w4");
    ck_assert_double_eq_tol(loader.ratio.value, 100 / rows[_i].step_ms, 2 * SLACK);
    ck_assert_int_eq(loader.workers, 3);
    ck_assert_int_eq(loader.workers_needed, rows[_i].needed);
    ck_assert_msg(is_said(rows[_i].said), "%s", cJSON_Print(ls_report_compare_sentences(&run)));
    cJSON *all = ls_report_compare_json(&run);
    const cJSON *entry = ls_json_get(all, "loader");
    ck_assert_double_eq(ls_json_number(entry, "ratio", 0), loader.ratio.value);
    ck_assert_double_eq(ls_json_number(entry, "waited_share", -1), loader.waited);
    ck_assert_int_eq(ls_json_int(entry, "workers", 0), 3);
    ck_assert_int_eq(ls_json_int(entry, "workers_needed", 0), rows[_i].needed);
    cJSON_Delete(all);
    jobs[O1_W4].checked = false; /* no result: nothing is compared */
    write_again(O1_W4, 0, 0, 0);
    ck_assert(!ls_report_compare_loader(&run, &loader));
    ck_assert(!is_said("Images from files"));
}

TEST(bad_pictures_are_counted)
{
    ck_assert(!is_said("Bad pictures"));
    jobs[O1_W4].bad_images = 2;
    jobs[O0_W4].bad_images = 1;
    write_again(O1_W4, 0, 0, 0);
    char *all = cJSON_Print(ls_report_compare_sentences(&run));
    ck_assert_msg(is_said("Bad pictures: of 512 images that job o1.w4 trained on, 128 could not be "
                          "read and others took their places; 2 did not count in validation (the "
                          "most of 2 jobs that had some)."),
                  "%s", all);
    cJSON_free(all);
}

TEST(fused_products)
{
    jobs[O1_W4].role = "unfused";
    jobs[O1_W4].level = "O2";
    write_again(O1_W4, 125, 0, 0);
    const ls_report_job *with, *without;
    ls_stats_interval ratio = ls_report_compare_fused(&run, &with, &without);
    ck_assert_str_eq(with->record->id, "o2.w4");
    ck_assert_str_eq(without->record->id, "o1.w4");
    ck_assert_double_eq_tol(ratio.value, 1.25, 2 * SLACK);
    ck_assert_msg(is_said("compared with the same job without: faster by 25.0 % [25.0, 25.0]."),
                  "%s", cJSON_Print(ls_report_compare_sentences(&run)));
    cJSON *all = ls_report_compare_json(&run);
    ck_assert_double_eq(ls_json_number(all, "fused_ratio", 0), ratio.value);
    cJSON_Delete(all);
    jobs[O1_W4].checked = false; /* no result: nothing is compared */
    write_again(O1_W4, 0, 0, 0);
    (void)ls_report_compare_fused(&run, &with, &without);
    ck_assert_ptr_null(with);
    ck_assert(!is_said("Fused products"));
}

/* One step of 14 takes 303 ms, the others 99 or 101. */
TEST(tails_are_percentiles)
{
    jobs[O2_W4].slow_step = 9;
    write_again(O2_W4, 0, 0, 0);
    const ls_report_job *job = find_job("o2.w4");
    ck_assert_double_eq_tol(job->speed.step.value, 100, 1.1);
    ck_assert_double_eq_tol(job->speed.p90_ms, 101, 0.1);
    ck_assert_double_eq_tol(job->speed.p99_ms, 303 - 0.13 * 202, 0.1); /* rank 12.87 from 0 */
}

TEST(all_of_it_word_for_word)
{
    golden_check("suite/unit/harness/expected/report_compare.txt", golden_report(scratch, true));
}

/* Prints a line that `text`, which is what was printed, lacks. */
static void print_new(FILE *to, char *const *text, const char *name, const char *words)
{
    LS_TEXT(line, 1200, "%s: %s\n", name, words);
    fflush(to);
    fputs(strstr(*text, line) == NULL ? line : "", to);
}

/* Comparisons, advice and titles of tables after each of the changes above, as a whole. */
TEST(all_words_that_follow)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        memcpy(jobs, usual_jobs, sizeof jobs);
        steps = STEPS;
        write_again(changes[i].job, changes[i].step_ms, changes[i].steps, changes[i].second_half);
        fprintf(to, "==== %s %g ms, %d steps, second half x %g\n", jobs[changes[i].job].id,
                changes[i].step_ms, steps, changes[i].second_half);
        cJSON *lists[] = {ls_report_compare_sentences(&run), ls_report_advice_make(&run)};
        for (int l = 0; l < 2; l++) {
            const cJSON *sentence;
            ls_json_each(sentence, lists[l]) {
                print_new(to, &text, l == 0 ? "compared" : "advice", sentence->valuestring);
            }
            cJSON_Delete(lists[l]);
        }
        ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
        for (int t = 0; ls_tables_name(t) != NULL; t++) {
            ls_table_head head;
            ck_assert_int_eq(ls_table_read_head(scratch, ls_tables_name(t), &head), LS_OK);
            print_new(to, &text, ls_tables_name(t), head.title);
        }
    }
    fclose(to);
    golden_check("suite/unit/harness/expected/report_words.txt", golden_short(text, 1));
}

/* Without the job of the curves the levels are compared with the one O0 job of the sweep. */
TEST(one_run_is_no_band)
{
    char folder[300];
    ls_text_put(folder, sizeof folder, "%s/jobs/curves", scratch);
    ls_path_remove_tree(folder);
    ls_report_load_free(&run);
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
    ck_assert(is_among(ls_report_advice_make(&run),
                       "Loss at the end: O1 1.100 (+10.0 % of O0), O2 1.200 (+20.0 % of O0); "
                       "there is one O0 run (1.000) and so no band:"));
    /* the O1 job as another O0 job: the band is [1.0, 1.1] */
    static const struct {
        double loss;
        const char *said;
    } ends[] = {{1.2, "O2 1.200 is above"},
                {1.1, "O2 1.100 is inside"},
                {1.0, "O2 1.000 is inside"},
                {0.9, "O2 0.900 is below"}};
    find_job("o1.w4")->record->spec.level = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        for (int k = 0; k < 4; k++) {
            for (int step = 0; step < steps; step++) {
                find_job("o2.w4")->record->rank[k].step[step].loss = ends[i].loss;
            }
        }
        LS_TEXT(said, 200,
                "Loss at the end: %s the band of 2 O0 runs [1.000, 1.100] (another O0 run would "
                "fall inside it 33 %% of the time).",
                ends[i].said);
        ck_assert_msg(is_among(ls_report_advice_make(&run), said), "%s", said);
    }
}

TEST(jobs_are_put_into_words)
{
    char text[160];
    write_again(O2_W4, 100, 5, 0);
    const ls_report_job *job = find_job("o2.w4");
    ck_assert_str_eq(ls_report_lines_rate(job, text), "316.8 [?]");
    ck_assert_str_eq(ls_report_lines_marks(&run, job, text), "oversubscribed, only 3 steps");
    ck_assert_str_eq(ls_report_lines_rate(find_job("curves"), text), "-");
    job->record->spec.bucket_mb = LS_BUCKET_OWN;
    ck_assert_str_eq(ls_report_job_bucket(job, text), "-");
    job->record->spec.bucket_mb = LS_BUCKET_DELAYED;
    ck_assert_str_eq(ls_report_job_bucket(job, text), "delayed");
    job->record->spec.bucket_mb = 2.5;
    ck_assert_str_eq(ls_report_job_bucket(job, text), "2.5 MB");
}

static void read_run(void)
{
    memcpy(jobs, usual_jobs, sizeof jobs);
    steps = STEPS;
    write_run();
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
}

static void drop_run(void)
{
    ls_report_load_free(&run);
    close_scratch();
}

/* ---- differences of two runs ----------------------------------------------------------------- */

#define ROW                                                                          \
    "\"arch\":\"resnet18\",\"level\":\"O2\",\"half\":\"fp16\",\"dialect\":\"apex\"," \
    "\"image_size\":64,\"batch_size\":8,\"world\":2,\"nodes\":1,\"bucket_mb\":25"
#define RATE "\"not_a_result\":\"\",\"images_per_s\":100"

/* A row of a summary, ROW with these members instead; whether it is the same job as ROW with
 * RATE, and whether its speed decides. */
static const struct {
    const char *members;
    bool same, decides;
} rows[] = {
    {RATE, true, true},
    {"\"arch\":\"resnet34\"," RATE, false, true},
    {"\"level\":\"O1\"," RATE, false, true},
    {"\"half\":\"bf16\"," RATE, false, true},
    {"\"dialect\":\"torch\"," RATE, false, true},
    {"\"image_size\":65," RATE, false, true},
    {"\"batch_size\":9," RATE, false, true},
    {"\"world\":3," RATE, false, true},
    {"\"nodes\":2," RATE, false, true},
    {"\"bucket_mb\":24," RATE, false, true},
    {"\"bucket_mb\":null," RATE, false, true},
    {"\"label\":\"x\"," RATE, true, true},
    {"\"oversubscribed\":true," RATE, true, false},
    {"\"weak\":true," RATE, true, false},
    {"\"not_a_result\":\"\",\"images_per_s\":0", true, false},
    {"\"not_a_result\":\"\",\"images_per_s\":0.5", true, true},
    {"\"not_a_result\":\"\"", true, false},
    {"\"not_a_result\":\"WEAK\",\"images_per_s\":1", true, false},
    {"\"images_per_s\":1", true, false},
};

/* The first of two equal members counts. */
static cJSON *read_row(const char *members)
{
    LS_TEXT(text, 800, "{%s," ROW "}", members);
    cJSON *row = cJSON_Parse(text);
    ck_assert_ptr_nonnull(row);
    return row;
}

ROWS_TEST(rows_of_the_same_job, rows)
{
    cJSON *usual = read_row(RATE), *row = read_row(rows[_i].members);
    ck_assert_msg(ls_report_diff_same_job(usual, row) == rows[_i].same &&
                      ls_report_diff_same_job(row, usual) == rows[_i].same,
                  "%s", rows[_i].members);
    ck_assert_msg(ls_report_diff_decides(row) == rows[_i].decides, "%s", rows[_i].members);
    cJSON_Delete(usual);
    cJSON_Delete(row);
}

/* Speeds of A and B with intervals, of jobs that decide or not, of one that either lacks, cases of
 * every change. */
static void write_pair(void)
{
    static const char *const speeds[][3] = {
        {"\"world\":1", "100,\"images_per_s_low\":100,\"images_per_s_high\":100",
         "50,\"images_per_s_low\":50,\"images_per_s_high\":50"},
        {"\"world\":2", "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "49,\"images_per_s_low\":48,\"images_per_s_high\":49.5"},
        {"\"world\":3,\"weak\":true", "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "40,\"images_per_s_low\":39,\"images_per_s_high\":41"},
        {"\"world\":4,\"oversubscribed\":true",
         "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "99.5,\"images_per_s_low\":98,\"images_per_s_high\":101"},
        {"\"world\":5,\"weak\":true,\"oversubscribed\":true", "10", "11"},
        {"\"world\":6", "10", "9"},
        {"\"world\":7", "10,\"not_a_result\":\"FAIL x\"", "9"},
        {"\"world\":8", "10", "9,\"not_a_result\":\"not checked\""},
        {"\"world\":9", "10", ""},
        {"\"world\":10", "", "10"},
    };
    static const char *const words[] = {"PASS", "FAIL", "CRASH", "TIMEOUT", "WEAK", "WAIVED", ""};
    char cases[8000];
    for (int run = 0; run < 2; run++) {
        char summary[6000] = "{\"where\":\"here\",\"commit\":\"abc\",\"machine\":{\"cpu\":\"C\","
                             "\"cores\":2},\"options\":{\"device\":\"cpu\"},\"throughput\":[";
        int count = 0;
        for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
            if (speeds[i][1 + run][0] != '\0') {
                ls_text_add(summary, sizeof summary,
                            "%s{%s,\"label\":\"job %zu of run %d\",\"images_per_s\":%s,"
                            "\"not_a_result\":\"\"," ROW "}",
                            count++ > 0 ? "," : "", speeds[i][0], i, run, speeds[i][1 + run]);
            }
        }
        ls_text_add(summary, sizeof summary, "]}\n");
        cases[0] = '\0';
        for (int i = 0; i < 7 * 7; i++) {
            const char *word = words[run == 0 ? i / 7 : i % 7];
            const char *place = i % 3 == 0   ? "\"in_claim\":true"
                                : i % 3 == 1 ? "\"in_claim\":false"
                                             : "\"in_claim\":true,\"manners\":true";
            if (word[0] != '\0') {
                ls_text_add(cases, sizeof cases,
                            "{\"case\":\"c%d\",%s,\"verdict\":\"%s\",\"evidence\":\"e%d\"}\n", i,
                            place, word, i);
            }
        }
        write_text(run == 0 ? "a/summary.json" : "b/summary.json", summary);
        write_text(run == 0 ? "a/verdicts.jsonl" : "b/verdicts.jsonl", cases);
        write_text(run == 0 ? "a/run.json" : "b/run.json",
                   "{\"headline\":{\"manners\":{\"decide\":false}}}\n");
    }
}

TEST(differences_word_for_word)
{
    static const double gates[] = {NAN, 0.5, 0.499, 0.6};
    char *text = NULL, here[PATH_MAX];
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    golden_variants gated = {0};
    write_pair();
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(scratch), 0); /* paths are a part of the text */
    for (int i = 0; i < 4; i++) {
        LS_TEXT(title, 20, "gate %g", gates[i]);
        char *said = NULL;
        size_t length = 0;
        FILE *one = open_memstream(&said, &length);
        int status = (int)ls_report_diff("a", i == 3 ? "b/summary.json" : "b", gates[i], one);
        fprintf(one, "status %d\n", status);
        fclose(one);
        golden_variant(to, &gated, title, said);
    }
    golden_variants_free(&gated);
    /* nothing in common, cases alone, speed alone */
    write_text("c/run.json", "{\"headline\":{}}\n");
    write_text("d/run.json", "{\"headline\":{}}\n");
    write_text("c/summary.json", "{\"throughput\":[]}\n");
    write_text("c/verdicts.jsonl", "{\"case\":\"c1\",\"verdict\":\"PASS\"}\n");
    write_text("d/summary.json", "{}\n");
    write_text("d/verdicts.jsonl", "{\"case\":\"c2\",\"verdict\":\"PASS\"}\n");
    static const struct {
        const char *a, *b;
        double gate;
    } odd[] = {{"c", "c", NAN}, {"c", "c", 0.5}, {"c", "d", NAN}, {"d", "c", NAN}, {"d", "d", 0.5},
               {"a", "c", NAN}, {"c", "a", NAN}, {"a", "x", NAN}, {"x", "a", NAN}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        fprintf(to, "==== %s %s, gate %g\n", odd[i].a, odd[i].b, odd[i].gate);
        int status = (int)ls_report_diff(odd[i].a, odd[i].b, odd[i].gate, to);
        fprintf(to, "status %d\n", status);
    }
    ck_assert_int_eq(chdir(here), 0);
    fclose(to);
    golden_check("suite/unit/harness/expected/diff.txt", golden_short(text, 1));
}

TEST_MAIN("report_compare", .timeout_s = 60, .before = read_run, .after = drop_run)
