#include <math.h>

#include "harness/report/figures.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

enum { JOBS_MAX = 256 };

static const char *const ROW_UNITS =
    "img_s images/s over all ranks, median of the steady window with 95 % interval low to high "
    "(4 or 5 steps: their range; NaN: fewer); ms and comm_exposed: of the slowest rank's steps, "
    "comm_exposed waited for reductions after backward; efficiency = img_s / ideal_img_s; "
    "ideal_img_s = world * img_s at world 1; strong_efficiency: the same against one rank with the "
    "whole global batch; "
    "exposed_vs_no_comm: ms, step less that of the same world without reduction, with interval; "
    "checked 1: the job passed its checks";
static const char *const ROW_COLUMNS =
    "1 place  2 level  3 world  4 nodes  5 simulated  6 bucket_mb  7 img_s  8 low  9 high  "
    "10 ms_p50  11 ms_p90  12 ms_p99  13 comm_exposed_ms  14 efficiency  15 ideal_img_s  16 "
    "checked  "
    "17 oversubscribed  18 half_emulated  19 label  20 job  21 strong_efficiency  "
    "22 exposed_vs_no_comm_ms  23 low  24 high";

static void write_row(FILE *table, const ls_report_run *run, const ls_report_job *job, double place,
                      const char *label)
{
    const ls_report_speed *speed = &job->speed;
    char id[128], name[96];
    double low = isfinite(speed->rate.low) ? speed->rate.low : NAN;
    double high = isfinite(speed->rate.high) ? speed->rate.high : NAN;
    const ls_report_job *base;
    ls_stats_interval strong = ls_report_compare_strong(run, job, &base);
    ls_stats_interval against = ls_report_compare_exposed_ms(run, job);
    fprintf(
        table,
        "%g\t%d\t%d\t%d\t%d\t%g\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%.4g\t%.6g\t%d\t%d\t%d\t"
        "\"%s\"\t\"%s\"\t%.4g\t%.6g\t%.6g\t%.6g\n",
        place, job->spec->level, job->spec->world, job->spec->nodes,
        ls_spec_is_simulated(job->spec), job->spec->bucket_mb, speed->rate.value, low, high,
        speed->step.value, speed->p90_ms, speed->p99_ms, ls_report_speed_exposed_ms(run, job),
        speed->efficiency.value, speed->rate.value / speed->efficiency.value, job->record->checked,
        job->record->oversubscribed, job->record->half_emulated,
        ls_table_plain(label, name, sizeof name), ls_table_plain(job->record->id, id, sizeof id),
        strong.value, against.value, against.low, against.high);
}

static void describe_levels(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                            ls_table_head *head)
{
    char a[24], b[24];
    (void)run;
    const ls_report_job *half = ls_report_compare_fastest(jobs, count, true), *full = NULL;
    for (int i = 0; i < count; i++) {
        full = ls_report_job_is_result(jobs[i]) && jobs[i]->spec->level == 0 ? jobs[i] : full;
    }
    char *title = head->title;
    if (half == NULL || full == NULL) {
        const ls_report_job *only = half != NULL ? half : full;
        if (only == NULL) {
            ls_text_add(title, sizeof head->title, "No throughput by opt level passed its checks");
        } else {
            ls_text_add(title, sizeof head->title, "%s: %.3g images/s on %d %s",
                        ls_report_job_level(only, a), only->speed.rate.value, only->spec->world,
                        ls_report_job_ranks(only));
        }
    } else {
        bool half_wins = half->speed.rate.value > full->speed.rate.value;
        ls_stats_interval ratio =
            half_wins ? ls_report_compare_ratio(half, full) : ls_report_compare_ratio(full, half);
        ls_report_job_level(half, a);
        ls_report_job_level(full, b);
        if (!isfinite(ratio.low)) {
            ls_text_add(title, sizeof head->title, "Too few steps to compare %s and %s", b, a);
        } else if (!ls_report_compare_is_resolved(ratio)) {
            ls_text_add(title, sizeof head->title,
                        "%s and the fastest half level, %s, cannot be distinguished", b, a);
        } else if (half_wins) {
            ls_text_add(title, sizeof head->title, "%s is %.2f x %s", a, ratio.value, b);
        } else {
            ls_text_add(title, sizeof head->title, "%s is %.2f x the fastest half level, %s", b,
                        ratio.value, a);
        }
    }
}

static void describe_buckets(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                             ls_table_head *head)
{
    const ls_report_job *best[JOBS_MAX], *fastest = NULL, *slowest = NULL;
    int best_count = ls_report_compare_best_buckets(run, best, JOBS_MAX, &fastest), shown = 0;
    char *title = head->title, text[24], other[24];
    int bytes = sizeof head->title;
    for (int i = 0; i < count; i++) {
        shown += ls_report_job_is_result(jobs[i]);
        if (ls_report_job_is_result(jobs[i]) &&
            (slowest == NULL || jobs[i]->speed.rate.value < slowest->speed.rate.value)) {
            slowest = jobs[i];
        }
    }
    if (shown < 2) {
        ls_text_add(title, bytes, "Bucket sizes: fewer than two jobs passed their checks");
    } else if (best_count == shown) {
        ls_text_add(title, bytes, "No bucket size can be distinguished from the others");
    } else {
        for (int i = 0; i < best_count; i++) {
            const char *joint = i == 0 ? "" : i == best_count - 1 ? " and " : ", ";
            ls_text_add(title, bytes, "%s%s", joint, ls_report_job_bucket(best[i], text));
        }
        if (best_count > 1) {
            ls_text_add(title, bytes, " cannot be distinguished; %s is",
                        ls_report_job_bucket(fastest, text));
        } else {
            ls_text_add(title, bytes, " is fastest:");
        }
        ls_text_add(title, bytes, " %.2f x as fast as %s",
                    fastest->speed.rate.value / slowest->speed.rate.value,
                    ls_report_job_bucket(slowest, other));
    }
}

static void describe_scaling(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                             ls_table_head *head)
{
    const ls_report_job *largest = ls_report_compare_largest(jobs, count);
    char level[24];
    int bytes = sizeof head->title;
    if (largest == NULL) {
        ls_text_add(head->title, bytes,
                    "Scaling: no checked job with more than one rank has a base");
    } else {
        const ls_report_job *base;
        ls_stats_interval strong = ls_report_compare_strong(run, largest, &base);
        ls_text_add(head->title, bytes, "%d ranks give %.2f x one rank at %s: efficiency %.2f",
                    largest->spec->world, largest->speed.efficiency.value * largest->spec->world,
                    ls_report_job_level(largest, level), largest->speed.efficiency.value);
        if (base != NULL) {
            ls_text_add(head->title, bytes, ", %.2f with the same %d images in all", strong.value,
                        base->spec->batch_size);
        }
        ls_report_compare_note_threads(run, largest, head->caption, sizeof head->caption);
    }
}

/* ---- the three tables ------------------------------------------------------------------------ */

static const char *label_scaling(const ls_report_job *job, char text[64])
{
    char level[24];
    ls_text_put(text, 64, "%s", ls_report_job_level(job, level));
    if (job->spec->nodes > 1) {
        ls_text_add(text, 64, ", %d%s nodes", job->spec->nodes,
                    ls_spec_is_simulated(job->spec) ? " simulated" : "");
    }
    return text;
}

/* The table of the jobs that are points of the sweeps. `describe` appends to the empty title and,
 * if it must, to the caption. */
static ls_status
write_sweep(const ls_report_run *run, const char *name, unsigned sweep,
            void (*describe)(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                             ls_table_head *head),
            const char *(*label)(const ls_report_job *job, char *text), const char *caption)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, sweep, jobs, JOBS_MAX);
    ls_table_head head = {0};
    ls_text_put(head.caption, sizeof head.caption, "%s", caption);
    describe(run, jobs, count, &head);
    ls_table_add_marks(run, jobs, count, head.title);
    FILE *table = ls_table_begin(run, name, &head, ROW_UNITS, ROW_COLUMNS);
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        char text[64];
        int place = (sweep & LS_SWEEP_WORLD) != 0 ? jobs[i]->spec->world : i;
        write_row(table, run, jobs[i], place, label(jobs[i], text));
    }
    return ls_file_close(table, name);
}

ls_status ls_tables_speed_write_levels(const ls_report_run *run)
{
    return write_sweep(
        run, "throughput_by_level", LS_SWEEP_LEVEL, describe_levels, ls_report_job_level,
        "Images per second of the whole world by opt level, median of the steady window; bars "
        "span the 95 % interval; hollow: its checks did not pass.");
}

ls_status ls_tables_speed_write_buckets(const ls_report_run *run)
{
    return write_sweep(
        run, "throughput_by_bucket", LS_SWEEP_BUCKET, describe_buckets, ls_report_job_bucket,
        "Throughput (left, with its 95 % interval) and exposed communication (right) by bucket "
        "size: bars show the wait after backward, diamonds the step minus that of the same "
        "world without reduction, with its interval. Delayed: one reduction per type at the end.");
}

ls_status ls_tables_speed_write_scaling(const ls_report_run *run)
{
    return write_sweep(
        run, "scaling", LS_SWEEP_WORLD | LS_SWEEP_NODES, describe_scaling, label_scaling,
        "Weak scaling (batch per rank fixed): images per second by number of ranks, against "
        "that many times one rank, which ran while the other cores were idle; open squares: the "
        "same ranks split over nodes.");
}
