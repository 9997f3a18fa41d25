/* Which jobs of a run are compared with each other, and with what result, over jobs in memory: for
 * each kind of pair, everything in which the two may not differ; and the speed of one job. */
#include "harness/report/figures.h"
#include "harness/report/job.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"

enum { STEPS = 3, JOBS = 4 };

/* A checked job of O2 on `world` ranks, all of whose steps take as long. */
typedef struct played {
    ls_report_job job;
    ls_record record;
    ls_record_rank rank;
    double step_ms[STEPS], images_per_s[STEPS];
} played;

static played jobs[JOBS];

static ls_report_job *play(int index, ls_role role, int world, int batch_size, double step_ms)
{
    played *p = &jobs[index];
    double rate = world * batch_size / step_ms * 1000;
    *p =
        (played){.record = {.id = "job", .world = world, .state = LS_RECORD_DONE, .checked = true}};
    p->record.rank = &p->rank;
    p->rank.threads = 2;
    ls_spec *spec = &p->record.spec;
    spec->role = role;
    spec->world = world;
    spec->nodes = 1;
    spec->level = 2;
    spec->batch_size = batch_size;
    spec->image_size = 32;
    spec->bucket_mb = 25;
    ls_text_put(spec->arch, sizeof spec->arch, "resnet20");
    ls_text_put(spec->half, sizeof spec->half, "fp16");
    for (int i = 0; i < STEPS; i++) {
        p->step_ms[i] = step_ms;
        p->images_per_s[i] = rate;
    }
    p->job = (ls_report_job){.record = &p->record, .spec = spec};
    p->job.speed = (ls_report_speed){.count = STEPS,
                                     .step_ms = p->step_ms,
                                     .images_per_s = p->images_per_s,
                                     .rate = {rate, rate, rate},
                                     .step = {step_ms, step_ms, step_ms},
                                     .efficiency = {0.5, 0.5, 0.5}};
    return &p->job;
}

/* The run of these jobs in this order. */
static ls_report_run run_of(ls_report_job *list, const int *order, int count)
{
    ls_report_run run = {.job_count = count, .job = list};
    for (int i = 0; i < count; i++) {
        list[i] = jobs[order[i]].job;
    }
    return run;
}

/* One thing in which a job differs from the one that fits. */
static void change(played *p, int what)
{
    ls_spec *spec = &p->record.spec;
    spec->role = what == 'r' ? LS_ROLE_PHASES : spec->role;
    spec->arch[6] = what == 'a' ? '3' : spec->arch[6];
    spec->level = what == 'l' ? 3 : spec->level;
    spec->half[0] = what == 'h' ? 'b' : spec->half[0];
    spec->image_size += what == 'i';
    spec->world += what == 'w';
    spec->batch_size += (what == 'b') - (what == 'B');
    spec->bucket_mb = what == 'm' ? 1 : spec->bucket_mb;
    spec->nodes = what == 'n' ? 2 : spec->nodes;
    p->record.state = what == 's' ? LS_RECORD_FAILED : p->record.state;
    p->record.checked = p->record.checked && what != 'c';
    p->job.speed.count = what == 't' ? 0 : p->job.speed.count;
    p->job.speed.rate.value = what == 'f' ? NAN : p->job.speed.rate.value;
}

static void check_near(double value, double want)
{
    /* 1e-12: a few roundings of numbers near 1 */
    ck_assert_double_eq_tol(value, want, 1e-12);
}

/* The pair of a job on 4 ranks, 10 ms a step with 8 images each: without reduction, 8 ms. */
TEST(with_the_job_without_reduction)
{
    static const char changes[] = "-ralhiwbBstmncf", fit[] = "-mncf";
    for (int i = 0; changes[i] != '\0'; i++) {
        for (int first = 0; first < 2; first++) {
            ls_report_job list[JOBS];
            (void)play(0, LS_ROLE_THROUGHPUT, 4, 8, 10);
            (void)play(1, LS_ROLE_NO_COMM, 4, 8, 8);
            change(&jobs[1], changes[i]);
            ls_report_run run = run_of(list, (int[]){first, !first}, 2);
            list[2] = *play(2, LS_ROLE_NO_COMM, 4, 8, 4);
            ls_stats_interval exposed = ls_report_compare_exposed_ms(&run, &jobs[0].job);
            bool fits = strchr(fit, changes[i]) != NULL;
            ck_assert_msg(isfinite(exposed.value) == fits, "%c", changes[i]);
            if (fits) {
                check_near(exposed.value, 2);
            }
        }
    }
    ls_report_job
        list[JOBS]; /* a job without a time has no comparison; the first that fits counts */
    (void)play(0, LS_ROLE_NO_COMM, 4, 8, 8);
    (void)play(1, LS_ROLE_NO_COMM, 4, 8, 4);
    ls_report_job *job = play(2, LS_ROLE_THROUGHPUT, 4, 8, 10);
    ls_report_run run = run_of(list, (int[]){0, 1, 2}, 3);
    check_near(ls_report_compare_exposed_ms(&run, job).value, 2);
    job->speed.count = 0;
    ck_assert_double_nan(ls_report_compare_exposed_ms(&run, job).value);
}

/* The interval is that of the ratio of the steps, turned round. */
TEST(the_interval_of_what_is_exposed)
{
    enum { MANY = 40 };
    static double with[MANY], without[MANY];
    ls_report_job list[JOBS];
    (void)play(0, LS_ROLE_THROUGHPUT, 4, 8, 10);
    (void)play(1, LS_ROLE_NO_COMM, 4, 8, 8);
    for (int i = 0; i < MANY; i++) {
        with[i] = 10 + 0.01 * (i % 7);
        without[i] = 8 + 0.01 * (i % 5);
    }
    jobs[0].job.speed.step_ms = with;
    jobs[1].job.speed.step_ms = without;
    jobs[0].job.speed.count = jobs[1].job.speed.count = MANY;
    ls_report_run run = run_of(list, (int[]){0, 1}, 2);
    ls_stats_interval exposed = ls_report_compare_exposed_ms(&run, &jobs[0].job);
    ls_stats_interval ratio = ls_stats_ratio(without, MANY, with, MANY, "job");
    ck_assert_double_lt(ratio.low, ratio.high);
    ck_assert_double_eq(exposed.value, 10 * (1 - ratio.value));
    ck_assert_double_eq(exposed.low, 10 * (1 - ratio.high));
    ck_assert_double_eq(exposed.high, 10 * (1 - ratio.low));
}

/* One rank with DDP, 10 ms, and without, 8 ms. */
TEST(with_one_rank_without_ddp)
{
    static const char changes[] = "-ralhiwbBmstcfn", fit[] = "-";
    for (int of = 0; of < 2; of++) { /* which of the two is changed */
        for (int i = 0; changes[i] != '\0'; i++) {
            for (int first = 0; first < 2; first++) {
                ls_report_job list[JOBS];
                const ls_report_job *with = &list[3], *without = &list[3];
                (void)play(0, LS_ROLE_DDP_WORLD1, 1, 8, 10);
                (void)play(1, LS_ROLE_THROUGHPUT, 1, 8, 8);
                change(&jobs[of], changes[i]);
                ls_report_run run = run_of(list, (int[]){first, !first}, 2);
                list[2] = *play(2, of == 0 ? LS_ROLE_DDP_WORLD1 : LS_ROLE_THROUGHPUT, 1, 8, 5);
                ls_stats_interval ratio = ls_report_compare_ddp(&run, &with, &without);
                bool fits = strchr(fit, changes[i]) != NULL;
                ck_assert_msg((with != NULL) == fits, "%d %c", of, changes[i]);
                ck_assert((without != NULL) == fits && isfinite(ratio.value) == fits);
                if (fits) {
                    ck_assert(with == &list[first] && without == &list[!first]);
                    check_near(ratio.value, 0.8);
                }
            }
        }
    }
}

/* 4 ranks with 8 images each, 10 ms; one with all 32, 20 ms: half of what four times one would be.
 */
TEST(with_one_rank_with_the_whole_batch)
{
    static const char changes[] = "-ralhiwbBstcfmn", fit[] = "-mn";
    for (int i = 0; changes[i] != '\0'; i++) {
        for (int first = 0; first < 2; first++) {
            ls_report_job list[JOBS];
            const ls_report_job *base = &list[3];
            (void)play(0, LS_ROLE_THROUGHPUT, 4, 8, 10);
            (void)play(1, LS_ROLE_STRONG_SCALING, 1, 32, 20);
            change(&jobs[1], changes[i]);
            ls_report_run run = run_of(list, (int[]){first, !first}, 2);
            list[2] = *play(2, LS_ROLE_STRONG_SCALING, 1, 32, 5);
            ls_stats_interval strong = ls_report_compare_strong(&run, &jobs[0].job, &base);
            bool fits = strchr(fit, changes[i]) != NULL;
            ck_assert_msg((base != NULL) == fits && isfinite(strong.value) == fits, "%c",
                          changes[i]);
            if (fits) {
                ck_assert_ptr_eq(base, &list[!first]);
                check_near(strong.value, 0.5);
            }
            jobs[0].record.checked = false; /* no result has none */
            ck_assert_double_nan(ls_report_compare_strong(&run, &jobs[0].job, &base).value);
            ck_assert_ptr_null(base);
        }
    }
}

TEST(a_difference_that_counts)
{
    static const struct {
        ls_stats_interval ratio;
        bool resolved;
    } rows[] = {
        {{1.5, 1.25, 1.75}, true},      {{1.5, 1, 1.75}, false},     {{0.5, 0.25, 0.75}, true},
        {{0.5, 0.25, 1}, false},        {{1, 0.5, 1.5}, false},      {{1.0625, 1.03125, 2}, true},
        {{1.0078125, 1.001, 2}, false}, {{0.984375, 0, 0.99}, true}, {{0.9921875, 0, 0.995}, false},
        {{1.5, NAN, NAN}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_msg(ls_report_compare_is_resolved(rows[i].ratio) == rows[i].resolved, "%zu", i);
    }
}

TEST(the_fastest_and_the_largest)
{
    const ls_report_job *list[] = {
        play(0, LS_ROLE_THROUGHPUT, 1, 8, 8), play(1, LS_ROLE_THROUGHPUT, 2, 8, 8),
        play(2, LS_ROLE_THROUGHPUT, 4, 8, 16), play(3, LS_ROLE_THROUGHPUT, 4, 8, 8)};
    ck_assert_ptr_eq(ls_report_compare_fastest(list, 3, false), list[1]); /* the first of two */
    ck_assert_ptr_eq(ls_report_compare_fastest(list, 1, true), list[0]);
    ck_assert_ptr_null(ls_report_compare_fastest(list, 0, false));
    jobs[1].record.spec.level = 0;
    ck_assert_ptr_eq(ls_report_compare_fastest(list, 3, false), list[1]);
    ck_assert_ptr_eq(ls_report_compare_fastest(list, 3, true), list[2]);
    jobs[2].record.spec.level = 1;
    ck_assert_ptr_eq(ls_report_compare_fastest(list, 3, true), list[2]);
    jobs[1].record.checked = false;
    ck_assert_ptr_eq(ls_report_compare_fastest(list, 2, false), list[0]);
    /* with a world of one to compare with, on one node, at least two ranks */
    ck_assert_ptr_eq(ls_report_compare_largest(list, 3), list[2]);
    ck_assert_ptr_eq(ls_report_compare_largest(list, 4), list[2]);
    jobs[2].record.spec.nodes = 2;
    ck_assert_ptr_null(ls_report_compare_largest(list, 3));
    jobs[1].record.checked = true;
    ck_assert_ptr_eq(ls_report_compare_largest(list, 3), list[1]);
    ck_assert_ptr_eq(ls_report_compare_largest(list, 4), list[3]);
    jobs[3].job.speed.efficiency.value = NAN;
    ck_assert_ptr_eq(ls_report_compare_largest(list, 4), list[1]);
    ck_assert_ptr_null(ls_report_compare_largest(list, 1));
    ck_assert_ptr_eq(ls_report_compare_largest(list + 1, 1), list[1]);
}

/* Sizes of buckets that differ from the fastest by nothing that counts. */
TEST(the_best_buckets)
{
    ls_report_job list[JOBS];
    const ls_report_job *best[JOBS], *fastest;
    static const double step_ms[] = {10, 10.05, 11, 10};
    for (int i = 0; i < JOBS; i++) {
        (void)play(i, LS_ROLE_THROUGHPUT, 2, 8, step_ms[i]);
        jobs[i].record.spec.level = i % 2;
        jobs[i].record.spec.sweep = i < 3 ? LS_SWEEP_BUCKET : LS_SWEEP_LEVEL;
    }
    ls_report_run run = run_of(list, (int[]){0, 1, 2, 3}, 4);
    ck_assert_int_eq(ls_report_compare_best_buckets(&run, best, JOBS, &fastest), 3);
    ck_assert_ptr_eq(fastest, &list[0]); /* three steps have no interval: nothing is resolved */
    static double many[3][40];
    for (int i = 0; i < 3; i++) {
        for (int s = 0; s < 40; s++) {
            many[i][s] = 16000 / step_ms[i] + s % 3;
        }
        list[i].speed.images_per_s = many[i];
        list[i].speed.count = 40;
    }
    ck_assert_int_eq(ls_report_compare_best_buckets(&run, best, JOBS, &fastest), 2);
    ck_assert(best[0] == &list[0] && best[1] == &list[1] && fastest == &list[0]);
    ck_assert_int_eq(ls_report_compare_best_buckets(&run, best, 1, &fastest), 1);
    ck_assert_ptr_eq(best[0], &list[0]);
    jobs[0].record.checked = false;
    ck_assert_int_eq(ls_report_compare_best_buckets(&run, best, JOBS, &fastest), 1);
    ck_assert_ptr_eq(best[0], &list[1]);
    run.job_count = 0;
    ck_assert_int_eq(ls_report_compare_best_buckets(&run, best, JOBS, &fastest), 0);
    ck_assert_ptr_null(fastest);
}

/* What cores allow: 4 ranks of 2 threads, and one rank alone with more. */
TEST(threads_of_a_world_and_of_one)
{
    static const struct {
        int cores, alone, each, threads;
        double ceiling;
        const char *note;
    } rows[] = {
        {8, 2, 2, 8, 1, ""},
        {4, 2, 2, 4, 0.5, ""},
        {7, 2, 2, 7, 0.875, ""},
        {0, 2, 2, 8, 1, ""}, /* not known */
        {8, 8, 2, 8, 1,
         "note. One rank alone computed with 8 threads, each of 4 with 2: the same cores, so the "
         "ideal line is out of reach."},
        {8, 2, 0, 0, 1, ""},
        {8, 2, 1, 4, 1,
         "note. One rank alone computed with 2 threads, each of 4 with 1: the same cores, so the "
         "ideal line is out of reach."},
        {8, 1, 2, 8, 1, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_report_job list[JOBS];
        char text[300] = "note.";
        (void)play(0, LS_ROLE_THROUGHPUT, 1, 8, 8);
        ls_report_job *job = play(1, LS_ROLE_THROUGHPUT, 4, 8, 8);
        jobs[0].rank.threads = rows[i].alone;
        jobs[1].rank.threads = rows[i].each;
        ls_report_run run = run_of(list, (int[]){1, 0}, 2);
        run.record = cJSON_CreateObject();
        cJSON *machine = cJSON_AddObjectToObject(run.record, "machine");
        if (rows[i].cores > 0) {
            cJSON_AddNumberToObject(machine, "cores", rows[i].cores);
        }
        ck_assert_int_eq(ls_report_speed_threads(&run, job), rows[i].threads);
        ck_assert_double_eq(ls_report_compare_ceiling(&run, job), rows[i].ceiling);
        ls_report_compare_note_threads(&run, job, text, sizeof text);
        ck_assert_str_eq(text, rows[i].note[0] == '\0' ? "note." : rows[i].note);
        jobs[0].job.speed.count = 0; /* nothing to compare with */
        list[1] = jobs[0].job;
        ls_text_put(text, sizeof text, "note.");
        ls_report_compare_note_threads(&run, job, text, sizeof text);
        ck_assert_str_eq(text, "note.");
        jobs[1].record.world = 0; /* no rank left anything */
        ck_assert_double_eq(ls_report_compare_ceiling(&run, job), 1);
        cJSON_Delete(run.record);
    }
}

/* One rank, equal in all but its bucket size at most; equal in that too, if there is one. */
TEST(with_a_world_of_one)
{
    static const char changes[] = "-ralhiwbBstcfmn", fit[] = "-cfmn";
    for (int i = 0; changes[i] != '\0'; i++) {
        ls_report_job list[JOBS];
        ls_report_job *job = play(0, LS_ROLE_THROUGHPUT, 4, 8, 10);
        (void)play(1, LS_ROLE_THROUGHPUT, 1, 8, 8);
        change(&jobs[1], changes[i]);
        ls_report_run run = run_of(list, (int[]){1, 0}, 2);
        list[2] = *play(2, LS_ROLE_THROUGHPUT, 1, 8, 8);
        const ls_report_job *base = ls_report_speed_base(&run, job);
        bool fits = strchr(fit, changes[i]) != NULL;
        ck_assert_msg(base == (fits ? &list[0] : NULL), "%c", changes[i]);
        run.job_count = 3; /* the same bucket size goes first, else the first of all */
        base = ls_report_speed_base(&run, job);
        ck_assert_msg(base == &list[fits && changes[i] != 'm' ? 0 : 2], "%c", changes[i]);
        jobs[2].record.spec.bucket_mb = jobs[1].record.spec.bucket_mb = 5;
        base = ls_report_speed_base(&run, job);
        ck_assert_msg(base == &list[fits ? 0 : 2], "%c", changes[i]);
    }
}

/* ---- the speed of one job ------------------------------------------------------------------- */

/* Warm-up, then steps of 8 ms; one is skipped, one audited, one has no time, one fewer images. */
static const ls_record_step six[] = {
    {.step = 4, .total_ms = 100, .at_ns = 2e9, .instrument_ms = 250, .skipped = true},
    {.step = 5, .total_ms = 8},
    {.step = 6, .total_ms = 9, .skipped = true},
    {.step = 7, .total_ms = 9, .audited = true},
    {.step = 8, .total_ms = 8, .images = 4},
    {.step = 9, .total_ms = 0},
};

static void play_steps(ls_report_job list[1], int world)
{
    (void)play(0, LS_ROLE_THROUGHPUT, world, 8, 1);
    jobs[0].record.world = 1; /* of one of them there is a record */
    jobs[0].record.spec.warmup_steps = 1;
    jobs[0].record.started_ns = 500000000;
    jobs[0].rank.step = (ls_record_step *)(uintptr_t)six;
    jobs[0].rank.step_count = 6;
    list[0] = jobs[0].job;
    list[0].speed = (ls_report_speed){.count = 0};
}

TEST(the_window_of_a_job)
{
    ls_report_job list[1];
    play_steps(list, 1);
    ls_report_run run = {.job_count = 1, .job = list};
    ls_report_speed_compute(&run);
    const ls_report_speed *speed = &list[0].speed;
    ck_assert(speed->count == 2 && speed->first == 5 && speed->last == 8);
    ck_assert(speed->warmup_count == 1 && speed->skipped_count == 1 && speed->audited_count == 1);
    ck_assert(speed->step_ms[0] == 8 && speed->step_ms[1] == 8);
    ck_assert(speed->images_per_s[0] == 1000 && speed->images_per_s[1] == 500);
    check_near(speed->step.value, 8);
    check_near(speed->rate.value, 750);
    check_near(speed->first_step_s, 1.25); /* less what was written */
    ck_assert(speed->efficiency.value == 1 && isnan(speed->roofline_share));
    ls_report_speed_free(&list[0].speed);
}

#define BOUND(more, rate) \
    "{\"arch\":\"resnet20\",\"image_size\":32,\"batch_size\":8," more "\"images_per_s\":" #rate "}"

/* Measured rates of the arithmetic, and the share of the job's 750 images/s in the one that fits.
 */
TEST(the_roofline_that_fits)
{
    static const struct {
        const char *bounds;
        int world; /* of 2 threads each; 750 images/s in all */
        double share;
        bool native; /* half is bf16, on the processor's units */
    } rows[] = {
        {BOUND("", 1500), 1, 0.5},
        {BOUND("", 1500), 2, 0.25},              /* of one rank */
        {BOUND("\"threads\":4,", 1500), 2, 0.5}, /* of all */
        {BOUND("\"threads\":2,", 1500), 2, NAN},
        {BOUND("\"threads\":2,", 1500), 1, 0.5},
        {BOUND("\"threads\":2,\"type\":\"bf16\",", 3000), 1, NAN}, /* half in f32 */
        {BOUND("\"threads\":2,\"type\":\"bf16\",", 3000), 1, 0.25, .native = true},
        {BOUND("\"threads\":2,", 1500), 1, NAN, .native = true},
        {BOUND("\"level\":\"O2\",", 3000), 1, 0.25},
        {BOUND("\"level\":\"O1\",", 3000), 1, NAN},
        {BOUND("\"arch\":1,", 3000), 1, 0.25}, /* the first counts */
        {"{\"arch\":\"resnet32\",\"image_size\":32,\"batch_size\":8,\"images_per_s\":900}", 1, NAN},
        {"{\"arch\":\"resnet20\",\"image_size\":33,\"batch_size\":8,\"images_per_s\":900}", 1, NAN},
        {"{\"arch\":\"resnet20\",\"image_size\":32,\"batch_size\":9,\"images_per_s\":900}", 1, NAN},
        {BOUND("", 1500) "," BOUND("", 3000) "," BOUND("", 2000), 1, 0.25}, /* the best */
        {BOUND("", 750), 1, 1},
        {BOUND("", 749), 1, NAN}, /* measured under other load */
        {"", 1, NAN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_report_job list[1];
        play_steps(list, rows[i].world);
        jobs[0].record.half_emulated = !rows[i].native;
        ls_text_put(jobs[0].record.spec.half, sizeof jobs[0].record.spec.half, "%s",
                    rows[i].native ? "bf16" : "fp16");
        ls_report_run run = {.job_count = 1, .job = list};
        LS_TEXT(record, 600, "{\"machine\":{\"cores\":64},\"roofline\":[%s]}", rows[i].bounds);
        run.record = cJSON_Parse(record);
        ck_assert_ptr_nonnull(run.record);
        ls_report_speed_compute(&run);
        double share = list[0].speed.roofline_share;
        ck_assert_msg(isnan(share) == isnan(rows[i].share), "%s: %g", record, share);
        if (!isnan(share)) {
            check_near(share, rows[i].share);
        }
        ls_report_speed_free(&list[0].speed);
        cJSON_Delete(run.record);
    }
}

TEST_MAIN("report_pairs")
