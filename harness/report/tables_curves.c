#include "tables_curves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tables_band.h"
#include "trace.h"
#include "kernels/core/text.h"

enum { JOBS_MAX = 64, SCALE_JOBS_MAX = 4, POINTS_MAX = 400, BAND_JOBS_MAX = 32 };

static int steps_of(const ls_report_job *job)
{
    int steps = job->record->world > 0 ? job->record->rank[0].step_count : 0;
    for (int k = 1; k < job->record->world; k++) {
        steps = job->record->rank[k].step_count < steps ? job->record->rank[k].step_count : steps;
    }
    return steps;
}

double ls_tables_curves_loss_at(const ls_report_job *job, int index)
{
    double sum = 0;
    for (int k = 0; k < job->record->world; k++) {
        sum +=
            index < job->record->rank[k].step_count ? job->record->rank[k].step[index].loss : NAN;
    }
    return job->record->world > 0 ? sum / job->record->world : NAN;
}

/* How many steps the end of a curve is averaged over. */
static int last_of(int steps)
{
    int last = steps / 10 > 5 ? steps / 10 : 5;
    return last > steps ? steps : last;
}

double ls_tables_curves_final_loss(const ls_report_job *job)
{
    int steps = steps_of(job), last = last_of(steps);
    double sum = 0;
    for (int i = steps - last; i < steps; i++) {
        sum += ls_tables_curves_loss_at(job, i);
    }
    return last > 0 ? sum / last : NAN;
}

static const ls_report_job *reference_of(const ls_report_run *run)
{
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    for (int i = 0; i < count; i++) {
        if (jobs[i]->spec->level == 0) {
            return jobs[i];
        }
    }
    return NULL;
}

/* Two O0 jobs of the same training but for seed, bucket size or place: equal up to what repeats
 * differ by. */
static int repeats_of(const ls_report_run *run, const ls_report_job *reference,
                      const ls_report_job **repeats)
{
    int count = 0;
    for (int j = 0; reference != NULL && j < run->job_count && count < BAND_JOBS_MAX; j++) {
        const ls_report_job *job = &run->job[j];
        bool same = job->spec->level == 0 && strcmp(job->spec->arch, reference->spec->arch) == 0 &&
                    job->spec->world == reference->spec->world &&
                    job->spec->batch_size == reference->spec->batch_size &&
                    job->spec->image_size == reference->spec->image_size &&
                    job->record->state == LS_RECORD_DONE &&
                    job->spec->sync_bn == reference->spec->sync_bn &&
                    steps_of(job) == steps_of(reference);
        if (same) {
            repeats[count++] = job;
        }
    }
    return count;
}

int ls_tables_curves_band(const ls_report_run *run, double *low, double *high)
{
    const ls_report_job *repeats[BAND_JOBS_MAX];
    int count = repeats_of(run, reference_of(run), repeats);
    *low = *high = NAN;
    for (int i = 0; i < count; i++) {
        *low = fmin(*low, ls_tables_curves_final_loss(repeats[i]));
        *high = fmax(*high, ls_tables_curves_final_loss(repeats[i]));
    }
    return count;
}

/* One point per bin of `bin` steps (1 for short runs), so that long curves stay readable. */
static void write_loss_block(FILE *table, const ls_report_run *run, const ls_report_job *job)
{
    const ls_report_job *repeats[BAND_JOBS_MAX];
    bool reference = job->spec->level == 0;
    int repeat_count = reference ? repeats_of(run, job, repeats) : 0;
    int steps = steps_of(job), bin = (steps + POINTS_MAX - 1) / POINTS_MAX;
    for (int from = 0; from < steps; from += bin) {
        double mean = 0, low = NAN, high = NAN;
        int to = from + bin < steps ? from + bin : steps;
        for (int i = from; i < to; i++) {
            mean += ls_tables_curves_loss_at(job, i) / (to - from);
            for (int r = 0; repeat_count > 1 && r < repeat_count; r++) {
                low = fmin(low, ls_tables_curves_loss_at(repeats[r], i));
                high = fmax(high, ls_tables_curves_loss_at(repeats[r], i));
            }
        }
        fprintf(table, "%lld\t%.6g\t%.6g\t%.6g\t%d\n",
                (long long)job->record->rank[0].step[to - 1].step, mean, low, high,
                job->spec->level);
    }
    fprintf(table, "\n\n");
}

static void add_block(ls_tables_head *head, const char *name)
{
    char plain[96];
    ls_text_add(head->blocks, sizeof head->blocks, " \"%s\"",
                ls_tables_plain(name, plain, sizeof plain));
}

ls_status ls_tables_curves_write_loss(const ls_report_run *run)
{
    ls_tables_band band;
    if (ls_tables_band_read(run, &band)) {
        return ls_tables_band_write(run, &band);
    }
    const ls_report_job *jobs[JOBS_MAX];
    int count = ls_report_job_select(run, LS_ROLE_THROUGHPUT, LS_SWEEP_LEVEL, jobs, JOBS_MAX);
    ls_tables_head head = {0};
    double low, high;
    int repeats = ls_tables_curves_band(run, &low, &high);
    for (int i = 0; i < count; i++) {
        char level[24];
        add_block(&head, ls_report_job_level(jobs[i], level));
        if (i == 0) {
            ls_text_add(head.title, sizeof head.title,
                        "Mean loss of the last %d steps of %d:", last_of(steps_of(jobs[i])),
                        steps_of(jobs[i]));
        }
        ls_text_add(head.title, sizeof head.title, "%s %s %.3f", i == 0 ? "" : ",", level,
                    ls_tables_curves_final_loss(jobs[i]));
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
        ls_tables_begin(run, "loss_curves", &head,
                        "loss: mean cross entropy over the ranks (nats); low and high: least and "
                        "greatest of the O0 runs at this step; NaN without a band",
                        "1 step  2 loss  3 low  4 high  5 level");
    if (table == NULL) {
        return LS_ERR_INFRA;
    }
    for (int i = 0; i < count; i++) {
        write_loss_block(table, run, jobs[i]);
    }
    return ls_tables_end(table, "loss_curves");
}

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
            bool fits = job->record->state == LS_RECORD_DONE && steps_of(job) > 0 &&
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
    ls_tables_head head = {0};
    for (int i = 0; i < count; i++) {
        char level[24];
        add_block(&head, jobs[i]->record->label);
        ls_text_add(head.title, sizeof head.title, "%s%s %d of %d",
                    i == 0 ? "Steps skipped by overflow: " : ", ",
                    ls_report_job_level(jobs[i], level), skipped_of(jobs[i]), steps_of(jobs[i]));
    }
    if (count == 0) {
        ls_text_add(head.title, sizeof head.title, "No loss scale moved and no step was skipped");
    }
    ls_text_add(head.caption, sizeof head.caption,
                "Loss scale used by each step's backward; a cross marks a step that overflowed and "
                "changed nothing.");
    FILE *table = ls_tables_begin(run, "loss_scale", &head,
                                  "scale: factor on the loss; skipped: 1 when the step overflowed",
                                  "1 step  2 scale  3 skipped  4 level");
    if (table == NULL) {
        return LS_ERR_INFRA;
    }
    for (int i = 0; i < count; i++) {
        for (int s = 0; s < steps_of(jobs[i]); s++) {
            const ls_record_step *step = &jobs[i]->record->rank[0].step[s];
            fprintf(table, "%lld\t%.9g\t%d\t%d\n", (long long)step->step, step->loss_scale,
                    step->skipped, jobs[i]->spec->level);
        }
        fprintf(table, "\n\n");
    }
    return ls_tables_end(table, "loss_scale");
}

/* The part of a rank's communication that runs while the same rank computes, in ns. Spans of one
 * lane do not overlap each other. */
static int64_t hidden_ns(const ls_trace_span *spans, int count, const ls_trace_span *communication)
{
    int64_t hidden = 0;
    for (int i = 0; i < count; i++) {
        if (spans[i].communication || spans[i].rank != communication->rank) {
            continue;
        }
        int64_t from =
            spans[i].from_ns > communication->from_ns ? spans[i].from_ns : communication->from_ns;
        int64_t to = spans[i].to_ns < communication->to_ns ? spans[i].to_ns : communication->to_ns;
        hidden += to > from ? to - from : 0;
    }
    return hidden;
}

static void write_spans(FILE *table, const ls_trace_span *spans, int count, int64_t origin_ns)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        fprintf(table, "%d\t%d\t%.6f\t%.6f\t\"%s\"\n", spans[i].rank, spans[i].communication,
                (double)(spans[i].from_ns - origin_ns) * 1e-6,
                (double)(spans[i].to_ns - origin_ns) * 1e-6,
                ls_tables_plain(spans[i].name, name, sizeof name));
    }
}

/* Keeps the spans of the last step that is traced: caches and plans are warm there. */
static int keep_last_step(ls_trace_span *spans, int count)
{
    int64_t last = 0;
    int kept = 0;
    for (int i = 0; i < count; i++) {
        last = spans[i].step > last ? spans[i].step : last;
    }
    for (int i = 0; i < count; i++) {
        if (spans[i].step == last) {
            spans[kept++] = spans[i];
        }
    }
    return kept;
}

/* Of the phases jobs that have spans, one with the most ranks; of these the highest level. */
static const ls_report_job *read_timeline(const ls_report_run *run, ls_trace_span **spans,
                                          int *count)
{
    const ls_report_job *job = NULL;
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *candidate = &run->job[j];
        if (candidate->spec->role != LS_ROLE_PHASES || candidate->record->state != LS_RECORD_DONE ||
            (job != NULL && candidate->spec->world < job->spec->world)) {
            continue;
        }
        ls_trace_span *read = NULL;
        int read_count = ls_trace_read(candidate, &read);
        if (read_count == 0) {
            continue;
        }
        free(*spans);
        *spans = read;
        *count = keep_last_step(read, read_count);
        job = candidate;
    }
    return job;
}

static void title_timeline(const ls_report_run *run, const ls_report_job *job,
                           const ls_trace_span *spans, int count, ls_tables_head *head)
{
    int64_t total = 0, hidden = 0;
    for (int i = 0; i < count; i++) {
        if (spans[i].communication) {
            total += spans[i].to_ns - spans[i].from_ns;
            hidden += hidden_ns(spans, count, &spans[i]);
        }
    }
    char level[24], marks[160];
    ls_text_add(head->title, sizeof head->title, "One %s step on %d ranks",
                ls_report_job_level(job, level), job->spec->world);
    if (total > 0) {
        ls_text_add(head->title, sizeof head->title, ": %.0f %% of communication is hidden",
                    100 * (double)hidden / (double)total);
    }
    ls_tables_marks(run, &job, 1, marks, sizeof marks);
    ls_text_add(head->title, sizeof head->title, "%s%s%s", marks[0] ? " (" : "", marks,
                marks[0] ? ")" : "");
}

ls_status ls_tables_curves_write_timeline(const ls_report_run *run)
{
    ls_trace_span *spans = NULL;
    int count = 0;
    const ls_report_job *job = read_timeline(run, &spans, &count);
    ls_tables_head head = {0};
    if (job != NULL) {
        title_timeline(run, job, spans, count, &head);
    } else {
        ls_text_add(head.title, sizeof head.title, "Timeline: no phases job left spans");
    }
    ls_text_add(
        head.caption, sizeof head.caption,
        "Compute (upper lane of each rank) and communication (lower lane) of one step on one "
        "clock; trace.json holds all steps.");
    FILE *table =
        ls_tables_begin(run, "timeline", &head,
                        "ms since the first span of the step; lane 0 compute, 1 communication",
                        "1 rank  2 lane  3 from_ms  4 to_ms  5 name");
    if (table == NULL) {
        free(spans);
        return LS_ERR_INFRA;
    }
    int64_t origin_ns = INT64_MAX;
    for (int i = 0; i < count; i++) {
        origin_ns = spans[i].from_ns < origin_ns ? spans[i].from_ns : origin_ns;
    }
    write_spans(table, spans, count, origin_ns);
    free(spans);
    return ls_tables_end(table, "timeline");
}
