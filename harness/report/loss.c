#include "figures.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"

enum { JOBS_MAX = 64 };

static const double CONFIDENCE = 0.95;

double ls_report_loss_mean(const ls_record_rank *rank, int from, int to)
{
    double sum = 0;
    for (int i = from; i < to; i++) {
        sum += rank->step[i].loss / (to - from);
    }
    return sum;
}

/* A cross entropy is never below zero, whatever Student's interval says. */
ls_stats_interval ls_report_loss_predict(const double *value, int count)
{
    ls_stats_interval out = ls_stats_prediction(value, count, CONFIDENCE);
    out.low = out.low < 0 ? 0 : out.low;
    return out;
}

static const ls_report_job *curves_of(const ls_report_run *run)
{
    ls_report_each(job, run, LS_ROLE_CURVES) {
        if (job->record->state == LS_RECORD_DONE && job->record->world > 0 &&
            job->record->world <= LS_REPORT_BAND_RUNS) {
            return job;
        }
    }
    return NULL;
}

bool ls_report_loss_read_band(const ls_report_run *run, ls_report_band *out)
{
    ls_report_band band = {.job = curves_of(run)};
    double ends[LS_REPORT_BAND_RUNS] = {0};
    if (band.job == NULL) {
        return false;
    }
    band.steps = band.job->record->rank[0].step_count;
    band.last = band.steps / 10 > 0 ? band.steps / 10 : 1;
    for (int k = 0; k < band.job->record->world; k++) {
        const ls_record_rank *rank = &band.job->record->rank[k];
        if (rank->step_count != band.steps || band.steps == 0) {
            return false;
        }
        double end = ls_report_loss_mean(rank, band.steps - band.last, band.steps);
        if (strcmp(rank->level, "O0") == 0) {
            ends[band.runs++] = end;
        } else if (band.level_count < LS_REPORT_BAND_LEVELS) {
            band.rank[band.level_count] = k;
            band.level[band.level_count] = rank->level;
            band.level_end[band.level_count++] = end;
        }
    }
    band.end = ls_report_loss_predict(ends, band.runs);
    for (int i = 0; i < band.level_count; i++) {
        band.inside[i] = band.level_end[i] >= band.end.low && band.level_end[i] <= band.end.high;
    }
    *out = band;
    return isfinite(band.end.low);
}

static void append_levels(const ls_report_band *band, bool inside, char *text, int bytes)
{
    int total = 0, said = 0;
    for (int i = 0; i < band->level_count; i++) {
        total += band->inside[i] == inside;
    }
    for (int i = 0; i < band->level_count; i++) {
        if (band->inside[i] == inside) {
            ls_text_add(text, bytes, "%s%s (%.3f)",
                        said == 0           ? ""
                        : said == total - 1 ? " and "
                                            : ", ",
                        band->level[i], band->level_end[i]);
            said++;
        }
    }
    if (total > 0) {
        ls_text_add(text, bytes, inside ? " stay%s inside" : " end%s outside",
                    total == 1 ? "s" : "");
    }
}

const char *ls_report_loss_sentence(const ls_report_band *band, char *text)
{
    enum { BYTES = 320 };
    bool inside = false, outside = false;
    text[0] = '\0';
    for (int i = 0; i < band->level_count; i++) {
        inside = inside || band->inside[i];
        outside = outside || !band->inside[i];
    }
    append_levels(band, false, text, BYTES);
    ls_text_add(text, BYTES, "%s", inside && outside ? ", " : "");
    append_levels(band, true, text, BYTES);
    ls_text_add(text, BYTES, "%s the band of %d O0 runs [%.3f, %.3f]",
                band->level_count == 0 ? "No other level is compared with" : "", band->runs,
                band->end.low, band->end.high);
    return text;
}

/* ---- the level sweep ------------------------------------------------------------------------- */

int ls_report_loss_steps(const ls_report_job *job)
{
    int steps = job->record->world > 0 ? job->record->rank[0].step_count : 0;
    for (int k = 1; k < job->record->world; k++) {
        steps = job->record->rank[k].step_count < steps ? job->record->rank[k].step_count : steps;
    }
    return steps;
}

double ls_report_loss_at(const ls_report_job *job, int index)
{
    double sum = 0;
    for (int k = 0; k < job->record->world; k++) {
        sum +=
            index < job->record->rank[k].step_count ? job->record->rank[k].step[index].loss : NAN;
    }
    return job->record->world > 0 ? sum / job->record->world : NAN;
}

int ls_report_loss_last(int steps)
{
    int last = steps / 10 > 5 ? steps / 10 : 5;
    return last > steps ? steps : last;
}

double ls_report_loss_end(const ls_report_job *job)
{
    int steps = ls_report_loss_steps(job), last = ls_report_loss_last(steps);
    double sum = 0;
    for (int i = steps - last; i < steps; i++) {
        sum += ls_report_loss_at(job, i);
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

int ls_report_loss_repeats(const ls_report_run *run, const ls_report_job *reference,
                           const ls_report_job **repeats)
{
    int count = 0;
    for (int j = 0; reference != NULL && j < run->job_count && count < LS_REPORT_REPEATS; j++) {
        const ls_report_job *job = &run->job[j];
        bool same = job->spec->level == 0 && strcmp(job->spec->arch, reference->spec->arch) == 0 &&
                    job->spec->world == reference->spec->world &&
                    job->spec->batch_size == reference->spec->batch_size &&
                    job->spec->image_size == reference->spec->image_size &&
                    job->record->state == LS_RECORD_DONE &&
                    job->spec->sync_bn == reference->spec->sync_bn &&
                    ls_report_loss_steps(job) == ls_report_loss_steps(reference);
        if (same) {
            repeats[count++] = job;
        }
    }
    return count;
}

int ls_report_loss_range(const ls_report_run *run, double *low, double *high)
{
    const ls_report_job *repeats[LS_REPORT_REPEATS];
    int count = ls_report_loss_repeats(run, reference_of(run), repeats);
    *low = *high = NAN;
    for (int i = 0; i < count; i++) {
        *low = fmin(*low, ls_report_loss_end(repeats[i]));
        *high = fmax(*high, ls_report_loss_end(repeats[i]));
    }
    return count;
}
