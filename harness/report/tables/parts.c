#include <math.h>
#include <string.h>

#include "harness/report/figures.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

enum { JOBS_MAX = 64, LEVELS_MAX = 8 };

/* Largest e / limit over the whole gradient and all tensors; NULL name: the whole. */
static double worst_of(const cJSON *compare, const char **name)
{
    const cJSON *whole = ls_json_get(compare, "whole"), *tensor;
    double worst = ls_json_number(whole, "e", NAN) / ls_json_number(whole, "limit", NAN);
    *name = "the whole gradient";
    ls_json_each(tensor, ls_json_get(compare, "tensors")) {
        double share = ls_json_number(tensor, "e", INFINITY) / ls_json_number(tensor, "limit", NAN);
        if (!(share <= worst)) { /* NaN and infinity win */
            worst = share;
            *name = ls_json_string(tensor, "name", "?");
        }
    }
    return worst;
}

/* Per level the judged job that came closest to its limit (or went farthest over it). */
static int select_compared(const ls_report_run *run, const ls_report_job **jobs)
{
    int count = 0;
    ls_report_each(job, run, LS_ROLE_COUNT) {
        const char *name;
        if (job->gradients == NULL) {
            continue;
        }
        int same = 0;
        while (same < count && (jobs[same]->spec->level != job->spec->level ||
                                strcmp(jobs[same]->spec->half, job->spec->half) != 0)) {
            same++;
        }
        if (same == count && count < LEVELS_MAX) {
            jobs[count++] = job;
        } else if (same < count &&
                   !(worst_of(job->gradients, &name) <= worst_of(jobs[same]->gradients, &name))) {
            jobs[same] = job;
        }
    }
    return count;
}

static void title_gradients(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                            ls_table_head *head)
{
    const char *name = "", *worst_name = "";
    const ls_report_job *worst_job = NULL;
    double worst = -1;
    int judged = 0;
    for (int j = 0; j < run->job_count; j++) {
        judged += run->job[j].gradients != NULL;
    }
    for (int i = 0; i < count; i++) {
        double share = worst_of(jobs[i]->gradients, &name);
        if (!(share <= worst)) {
            worst = share;
            worst_name = name;
            worst_job = jobs[i];
        }
    }
    char level[24], plain[96];
    if (worst_job == NULL) {
        ls_text_add(head->title, sizeof head->title, "Gradient error: no gradient was judged");
    } else if (worst <= 1) {
        ls_text_add(head->title, sizeof head->title,
                    "Gradients of %d job%s inside %s limits; closest: %s, %s, at %.2f of it",
                    judged, judged == 1 ? " are" : "s are", judged == 1 ? "its" : "their",
                    ls_report_job_level(worst_job, level),
                    ls_table_plain(worst_name, plain, sizeof plain), worst);
    } else {
        ls_text_add(head->title, sizeof head->title, "%s: %s is %.2g x its limit",
                    ls_report_job_level(worst_job, level),
                    ls_table_plain(worst_name, plain, sizeof plain), worst);
    }
}

ls_status ls_tables_parts_write_gradients(const ls_report_run *run)
{
    const ls_report_job *jobs[LEVELS_MAX];
    int count = select_compared(run, jobs);
    ls_table_head head = {0};
    title_gradients(run, jobs, count, &head);
    ls_text_add(
        head.caption, sizeof head.caption,
        "Relative error of each tensor's gradient against FP64 on the same branches (points) "
        "and its limit (line); per level the job closest to its limit.");
    for (int i = 0; i < count; i++) {
        char level[24];
        ls_text_add(head.blocks, sizeof head.blocks, " \"%s\"",
                    ls_report_job_level(jobs[i], level));
    }
    FILE *table = ls_table_begin(
        run, "gradient_error", &head,
        "e, r, limit: relative to the norm of the tensor's FP64 gradient; r: the "
        "level's ideal rounding",
        "1 place in the order judged  2 e  3 r  4 limit  5 elements  6 level  7 name");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        int place = 0;
        const cJSON *tensor;
        ls_json_each(tensor, ls_json_get(jobs[i]->gradients, "tensors")) {
            char name[96];
            fprintf(table, "%d\t%.6g\t%.6g\t%.6g\t%.0f\t%d\t\"%s\"\n", ++place,
                    ls_json_number(tensor, "e", NAN), ls_json_number(tensor, "r", NAN),
                    ls_json_number(tensor, "limit", NAN), ls_json_number(tensor, "elements", NAN),
                    jobs[i]->spec->level,
                    ls_table_plain(ls_json_string(tensor, "name", "?"), name, sizeof name));
        }
        fprintf(table, "\n\n");
    }
    return ls_file_close(table, "gradient_error");
}

static double or_zero(double value)
{
    return isfinite(value) ? value : 0;
}

static double rest_ms(const ls_report_speed *speed)
{
    double known = or_zero(speed->data_ms) + or_zero(speed->forward_ms) +
                   or_zero(speed->backward_ms) + or_zero(speed->exposed_ms) +
                   or_zero(speed->optimizer_ms);
    return fmax(0, speed->step.value - known); /* medians of parts need not add up to the median */
}

/* The phases jobs; without any, the throughput jobs of the level sweep that report phases. */
static int select_phases(const ls_report_run *run, const ls_report_job **jobs)
{
    int count = ls_report_job_select(run, LS_ROLE_PHASES, 0, jobs, JOBS_MAX);
    if (count > 0) {
        return count;
    }
    count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    int kept = 0;
    for (int i = 0; i < count; i++) {
        if (isfinite(jobs[i]->speed.backward_ms)) {
            jobs[kept++] = jobs[i];
        }
    }
    return kept;
}

ls_status ls_tables_parts_write_phases(const ls_report_run *run)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = select_phases(run, jobs);
    ls_table_head head = {0};
    if (count == 0) {
        ls_text_add(head.title, sizeof head.title,
                    "Time of a step by phase: no job reported its phases");
    } else {
        const ls_report_job *job = jobs[0];
        for (int i = 1; i < count; i++) {
            job = jobs[i]->spec->world >= job->spec->world ? jobs[i]
                                                           : job; /* of equals the highest level */
        }
        char level[24];
        double total = job->speed.step.value;
        ls_text_add(head.title, sizeof head.title,
                    "%s on %d %s: backward takes %.0f %% of a step, waiting for reductions %.0f %%",
                    ls_report_job_level(job, level), job->spec->world, ls_report_job_ranks(job),
                    100 * or_zero(job->speed.backward_ms) / total,
                    100 * or_zero(job->speed.exposed_ms) / total);
        ls_table_add_marks(run, jobs, count, head.title);
    }
    ls_text_add(head.caption, sizeof head.caption,
                "Median time of each part of the slowest rank's steps; communication (thin bar) "
                "overlaps backward, and only its exposed part lengthens the step.");
    FILE *table =
        ls_table_begin(run, "step_phases", &head,
                       "ms per step, medians of the slowest rank; communication overlaps backward",
                       "1 place  2 data  3 forward  4 backward  5 exposed communication  "
                       "6 optimizer  7 rest  8 communication in all  9 level  10 label");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        const ls_report_speed *speed = &jobs[i]->speed;
        char label[96], level[24], bucket[24];
        ls_report_job_level(jobs[i], level);
        ls_report_job_bucket(jobs[i], bucket);
        snprintf(label, sizeof label, "%s, %d %s, %s%s", level, jobs[i]->spec->world,
                 ls_report_job_ranks(jobs[i]), bucket,
                 ls_spec_is_simulated(jobs[i]->spec) ? ", simulated nodes" : "");
        fprintf(table, "%d\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g\t%d\t\"%s\"\n", i,
                or_zero(speed->data_ms), or_zero(speed->forward_ms), or_zero(speed->backward_ms),
                or_zero(speed->exposed_ms), or_zero(speed->optimizer_ms), rest_ms(speed),
                speed->comm_ms, jobs[i]->spec->level, label);
    }
    return ls_file_close(table, "step_phases");
}

ls_status ls_tables_parts_write_memory(const ls_report_run *run)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    ls_table_head head = {0};
    double least = INFINITY, greatest = 0;
    for (int i = 0; i < count; i++) {
        least = fmin(least, ls_report_job_peak_bytes(jobs[i]));
        greatest = fmax(greatest, ls_report_job_peak_bytes(jobs[i]));
    }
    if (greatest > 0) {
        ls_text_add(head.title, sizeof head.title,
                    "Peak memory of one rank: %.0f MB to %.0f MB over the levels", least / 1e6,
                    greatest / 1e6);
    } else {
        ls_text_add(head.title, sizeof head.title,
                    "Memory: no job of the level sweep reported its peak");
    }
    double kind[LS_REPORT_KINDS];
    if (count > 0) {
        ls_report_memory(&jobs[0]->record->rank[0], kind);
    }
    bool by_kind = count > 0 && isfinite(kind[LS_REPORT_ACTIVATIONS]);
    ls_text_add(
        head.caption, sizeof head.caption,
        by_kind ? "Largest resident memory of any rank by opt level (black mark; with program, "
                  "libraries "
                  "and the dumps for the judge), and the trainer's own allocations (stack)."
                : "Largest resident memory of any rank by opt level, code and libraries included.");
    FILE *table =
        ls_table_begin(run, "memory", &head,
                       "MB = 10^6 bytes, of one rank: the largest peak of any; NaN: not reported",
                       "1 place  2 level  3 peak  4 parameters  5 masters  6 moments  7 gradients  "
                       "8 activations  9 workspace  10 label");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        char level[24];
        fprintf(table, "%d\t%d\t%.6g", i, jobs[i]->spec->level,
                ls_report_job_peak_bytes(jobs[i]) / 1e6);
        ls_report_memory(&jobs[i]->record->rank[0], kind);
        for (int k = 0; k < LS_REPORT_KINDS; k++) {
            fprintf(table, "\t%.6g", kind[k] / 1e6);
        }
        fprintf(table, "\t\"%s\"\n", ls_report_job_level(jobs[i], level));
    }
    return ls_file_close(table, "memory");
}
