#include "tables_band.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tables.h"
#include "kernels/core/text.h"

enum { RUNS_MAX = 64, BINS_MAX = 20 };

static const double CONFIDENCE = 0.95;

static double mean_loss(const ls_record_rank *rank, int from, int to)
{
    double sum = 0;
    for (int i = from; i < to; i++) {
        sum += rank->step[i].loss / (to - from);
    }
    return sum;
}

/* A cross entropy is never below zero, whatever Student's interval says. */
static ls_stats_interval predict(const double *value, int count)
{
    ls_stats_interval out = ls_stats_prediction(value, count, CONFIDENCE);
    out.low = out.low < 0 ? 0 : out.low;
    return out;
}

static const ls_report_job *curves_of(const ls_report_run *run)
{
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *job = &run->job[j];
        if (job->spec->role == LS_ROLE_CURVES && job->record->state == LS_RECORD_DONE &&
            job->record->world > 0 && job->record->world <= RUNS_MAX) {
            return job;
        }
    }
    return NULL;
}

bool ls_tables_band_read(const ls_report_run *run, ls_tables_band *out)
{
    ls_tables_band band = {.job = curves_of(run)};
    double ends[RUNS_MAX] = {0};
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
        double end = mean_loss(rank, band.steps - band.last, band.steps);
        if (strcmp(rank->level, "O0") == 0) {
            ends[band.runs++] = end;
        } else if (band.level_count < LS_TABLES_BAND_LEVELS) {
            band.rank[band.level_count] = k;
            band.level[band.level_count] = rank->level;
            band.level_end[band.level_count++] = end;
        }
    }
    band.end = predict(ends, band.runs);
    for (int i = 0; i < band.level_count; i++) {
        band.inside[i] = band.level_end[i] >= band.end.low && band.level_end[i] <= band.end.high;
    }
    *out = band;
    return isfinite(band.end.low);
}

static void append_levels(const ls_tables_band *band, bool inside, char *text, int bytes)
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

const char *ls_tables_band_sentence(const ls_tables_band *band, char *text)
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
                band->level_count == 0 ? "No other level is held against" : "", band->runs,
                band->end.low, band->end.high);
    return text;
}

/* A point per bin of steps: single steps of a batch of 16 are mostly noise. */
static void write_reference(FILE *table, const ls_tables_band *band, int bin)
{
    for (int from = 0; from < band->steps; from += bin) {
        int to = from + bin < band->steps ? from + bin : band->steps, count = 0;
        double value[RUNS_MAX];
        for (int k = 0; k < band->job->record->world; k++) {
            if (strcmp(band->job->record->rank[k].level, "O0") == 0) {
                value[count++] = mean_loss(&band->job->record->rank[k], from, to);
            }
        }
        ls_stats_interval point = predict(value, count);
        fprintf(table, "%g\t%.6g\t%.6g\t%.6g\t0\n", (from + to + 1) / 2.0, point.value, point.low,
                point.high);
    }
    fprintf(table, "\n\n");
}

static void write_level(FILE *table, const ls_tables_band *band, int index, int bin)
{
    const ls_record_rank *rank = &band->job->record->rank[band->rank[index]];
    for (int from = 0; from < band->steps; from += bin) {
        int to = from + bin < band->steps ? from + bin : band->steps;
        fprintf(table, "%g\t%.6g\tNaN\tNaN\t%d\n", (from + to + 1) / 2.0, mean_loss(rank, from, to),
                atoi(band->level[index] + 1));
    }
    fprintf(table, "\n\n");
}

ls_status ls_tables_band_write(const ls_report_run *run, const ls_tables_band *band)
{
    ls_tables_head head = {0};
    char sentence[320];
    int bin = (band->steps + BINS_MAX - 1) / BINS_MAX;
    ls_text_add(head.title, sizeof head.title, "%s", ls_tables_band_sentence(band, sentence));
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
    FILE *table =
        ls_tables_begin(run, "loss_curves", &head,
                        "loss: cross entropy (nats), mean over a bin of steps; low, high: "
                        "95 % of one more O0 run; NaN without a band",
                        "1 step  2 loss  3 low  4 high  5 level");
    if (table == NULL) {
        return LS_ERR_INFRA;
    }
    write_reference(table, band, bin);
    for (int i = 0; i < band->level_count; i++) {
        write_level(table, band, i, bin);
    }
    return ls_tables_end(table, "loss_curves");
}
