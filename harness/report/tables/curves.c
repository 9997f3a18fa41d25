#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/figures.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

enum { JOBS_MAX = 64, SCALE_JOBS_MAX = 4, POINTS_MAX = 400, BINS_MAX = 20 };

/* ---- loss ------------------------------------------------------------------------------------ */

/* A point per bin of steps: single steps of a batch of 16 are mostly noise. */
static void write_reference(FILE *table, const ls_report_band *band, int bin)
{
    for (int from = 0; from < band->steps; from += bin) {
        int to = from + bin < band->steps ? from + bin : band->steps, count = 0;
        double value[LS_REPORT_BAND_RUNS];
        for (int k = 0; k < band->job->record->world; k++) {
            if (strcmp(band->job->record->rank[k].level, "O0") == 0) {
                value[count++] = ls_report_loss_mean(&band->job->record->rank[k], from, to);
            }
        }
        ls_stats_interval point = ls_report_loss_predict(value, count);
        fprintf(table, "%g\t%.6g\t%.6g\t%.6g\t0\n", (from + to + 1) / 2.0, point.value, point.low,
                point.high);
    }
    fprintf(table, "\n\n");
}

static void write_level(FILE *table, const ls_report_band *band, int index, int bin)
{
    const ls_record_rank *rank = &band->job->record->rank[band->rank[index]];
    for (int from = 0; from < band->steps; from += bin) {
        int to = from + bin < band->steps ? from + bin : band->steps;
        fprintf(table, "%g\t%.6g\tNaN\tNaN\t%d\n", (from + to + 1) / 2.0,
                ls_report_loss_mean(rank, from, to), atoi(band->level[index] + 1));
    }
    fprintf(table, "\n\n");
}

static ls_status write_band(const ls_report_run *run, const ls_report_band *band)
{
    ls_table_head head = {0};
    char sentence[320];
    int bin = (band->steps + BINS_MAX - 1) / BINS_MAX;
    ls_text_add(head.title, sizeof head.title, "%s", ls_report_loss_sentence(band, sentence));
    ls_text_add(head.caption, sizeof head.caption,
                "Training loss of %s, one process per curve, means of %d steps. O0: mean of %d "
                "runs that differ in their seed; grey: where one more O0 run would be, 95 %% "
                "(Student's prediction). The other levels: one run each, with the first O0 "
                "run's seed; the end is the mean of the last %d of %d steps.",
                band->job->spec->arch, bin, band->runs, band->last, band->steps);
    ls_text_add(head.blocks, sizeof head.blocks, " \"O0, mean of %d\"", band->runs);
    for (int i = 0; i < band->level_count; i++) {
        ls_text_add(head.blocks, sizeof head.blocks, " \"%s\"", band->level[i]);
    }
    FILE *table = ls_table_begin(run, "loss_curves", &head,
                                 "loss: cross entropy (nats), mean over a bin of steps; low, high: "
                                 "95 % of one more O0 run; NaN without a band",
                                 "1 step  2 loss  3 low  4 high  5 level");
    LS_TRY_FILE(table);
    write_reference(table, band, bin);
    for (int i = 0; i < band->level_count; i++) {
        write_level(table, band, i, bin);
    }
    return ls_file_close(table, "loss_curves");
}

/* One point per bin of `bin` steps (1 for short runs), so that long curves stay readable. */
static void write_loss_block(FILE *table, const ls_report_run *run, const ls_report_job *job)
{
    const ls_report_job *repeats[LS_REPORT_REPEATS];
    bool reference = job->spec->level == 0;
    int repeat_count = reference ? ls_report_loss_repeats(run, job, repeats) : 0;
    int steps = ls_report_loss_steps(job), bin = (steps + POINTS_MAX - 1) / POINTS_MAX;
    for (int from = 0; from < steps; from += bin) {
        double mean = 0, low = NAN, high = NAN;
        int to = from + bin < steps ? from + bin : steps;
        for (int i = from; i < to; i++) {
            mean += ls_report_loss_at(job, i) / (to - from);
            for (int r = 0; repeat_count > 1 && r < repeat_count; r++) {
                low = fmin(low, ls_report_loss_at(repeats[r], i));
                high = fmax(high, ls_report_loss_at(repeats[r], i));
            }
        }
        fprintf(table, "%lld\t%.6g\t%.6g\t%.6g\t%d\n",
                (long long)job->record->rank[0].step[to - 1].step, mean, low, high,
                job->spec->level);
    }
    fprintf(table, "\n\n");
}

static void add_block(ls_table_head *head, const char *name)
{
    char plain[96];
    ls_text_add(head->blocks, sizeof head->blocks, " \"%s\"",
                ls_table_plain(name, plain, sizeof plain));
}

ls_status ls_tables_curves_write_loss(const ls_report_run *run)
{
    ls_report_band band;
    if (ls_report_loss_read_band(run, &band)) {
        return write_band(run, &band);
    }
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    ls_table_head head = {0};
    double low, high;
    int repeats = ls_report_loss_range(run, &low, &high);
    for (int i = 0; i < count; i++) {
        char level[24];
        add_block(&head, ls_report_job_level(jobs[i], level));
        if (i == 0) {
            ls_text_add(head.title, sizeof head.title, "Mean loss of the last %d steps of %d:",
                        ls_report_loss_last(ls_report_loss_steps(jobs[i])),
                        ls_report_loss_steps(jobs[i]));
        }
        ls_text_add(head.title, sizeof head.title, "%s %s %.3f", i == 0 ? "" : ",", level,
                    ls_report_loss_end(jobs[i]));
    }
    if (count == 0) {
        ls_text_add(head.title, sizeof head.title, "Loss: no job of the level sweep has finished");
    } else if (repeats > 1) {
        ls_text_add(head.title, sizeof head.title, " (%d O0 runs: %.3f to %.3f)", repeats, low,
                    high);
    }
    ls_text_add(head.caption, sizeof head.caption,
                "Training loss, mean over all ranks, every level from the same start and data%s.",
                repeats > 1 ? "; grey: the band of the O0 runs" : "");
    FILE *table =
        ls_table_begin(run, "loss_curves", &head,
                       "loss: mean cross entropy over the ranks (nats); low and high: least and "
                       "greatest of the O0 runs at this step; NaN without a band",
                       "1 step  2 loss  3 low  4 high  5 level");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        write_loss_block(table, run, jobs[i]);
    }
    return ls_file_close(table, "loss_curves");
}

/* ---- loss scale ------------------------------------------------------------------------------ */

static int skipped_of(const ls_report_job *job)
{
    int skipped = 0;
    for (int i = 0; job->record->world > 0 && i < job->record->rank[0].step_count; i++) {
        skipped += job->record->rank[0].step[i].skipped;
    }
    return skipped;
}

static bool scale_moves(const ls_report_job *job)
{
    for (int i = 0; job->record->world > 0 && i < job->record->rank[0].step_count; i++) {
        if (job->record->rank[0].step[i].loss_scale !=
                job->record->rank[0].step[i].loss_scale_next &&
            isfinite(job->record->rank[0].step[i].loss_scale_next)) {
            return true;
        }
    }
    return skipped_of(job) > 0;
}

/* The level sweep's jobs first; then those whose scale moved, most skipped steps first, up to the
 * room. */
static int select_scale_jobs(const ls_report_run *run, const ls_report_job **jobs)
{
    int count = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 0; j < run->job_count && count < SCALE_JOBS_MAX; j++) {
            const ls_report_job *job = &run->job[j];
            bool swept =
                (job->spec->sweep & LS_SWEEP_LEVEL) != 0 && job->spec->role == LS_ROLE_THROUGHPUT;
            bool fits = job->record->state == LS_RECORD_DONE && ls_report_loss_steps(job) > 0 &&
                        scale_moves(job) && (swept || job->spec->role != LS_ROLE_THROUGHPUT) &&
                        swept == (pass == 0);
            for (int i = 0; i < count && pass == 1;
                 i++) { /* one evidence job per level is enough */
                fits = fits && !(jobs[i]->spec->level == job->spec->level &&
                                 strcmp(jobs[i]->spec->half, job->spec->half) == 0 &&
                                 jobs[i]->spec->role != LS_ROLE_THROUGHPUT);
            }
            if (fits) {
                jobs[count++] = job;
            }
        }
    }
    return count;
}

ls_status ls_tables_curves_write_scale(const ls_report_run *run)
{
    const ls_report_job *jobs[SCALE_JOBS_MAX];
    int count = select_scale_jobs(run, jobs);
    ls_table_head head = {0};
    for (int i = 0; i < count; i++) {
        char level[24];
        add_block(&head, jobs[i]->record->label);
        ls_text_add(head.title, sizeof head.title, "%s%s %d of %d",
                    i == 0 ? "Steps skipped by overflow: " : ", ",
                    ls_report_job_level(jobs[i], level), skipped_of(jobs[i]),
                    ls_report_loss_steps(jobs[i]));
    }
    if (count == 0) {
        ls_text_add(head.title, sizeof head.title, "No loss scale moved and no step was skipped");
    }
    ls_text_add(head.caption, sizeof head.caption,
                "Loss scale used by each step's backward; a cross marks a step that overflowed and "
                "changed nothing.");
    FILE *table = ls_table_begin(run, "loss_scale", &head,
                                 "scale: factor on the loss; skipped: 1 when the step overflowed",
                                 "1 step  2 scale  3 skipped  4 level");
    LS_TRY_FILE(table);
    for (int i = 0; i < count; i++) {
        for (int s = 0; s < ls_report_loss_steps(jobs[i]); s++) {
            const ls_record_step *step = &jobs[i]->record->rank[0].step[s];
            fprintf(table, "%lld\t%.9g\t%d\t%d\n", (long long)step->step, step->loss_scale,
                    step->skipped, jobs[i]->spec->level);
        }
        fprintf(table, "\n\n");
    }
    return ls_file_close(table, "loss_scale");
}
