/* Whether a timed job's numbers can be quoted: every step has a time, the two halves of its window
 * agree, its loss is finite, and small runs of its level end where runs of O0 end. Oversubscribed
 * timings gate nothing. */
#include "suite/cases/rows.h"
#include "kernels/core/sort.h"

#include <math.h>
#include <string.h>

#include "harness/report/stats.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

static const ls_tol halves = LS_TOL(
    0.1, "a drift of a tenth inside one window means heating, another job or warm-up: the median "
         "is then no property of the setting");

static double median(const double *value, int count)
{
    double *copy = ls_list_make(1, (size_t)count * sizeof *copy);
    memcpy(copy, value, (size_t)count * sizeof *copy);
    double middle = ls_sort_median(copy, count);
    free(copy);
    return middle;
}

/* rank 0's times after the warm-up, but for audited steps: all ranks wait for each other in every
 * step. */
static void judge_window(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_record_rank *rank = &job->rank[0];
    double *ms = ls_list_make((size_t)rank->step_count + 1, sizeof *ms);
    int count = 0;
    for (int i = row->job[0].warmup_steps; i < rank->step_count; i++) {
        const ls_record_step *step = &rank->step[i];
        ms[count] = step->total_ms;
        count += !step->audited;
        if (!(step->total_ms > 0)) {
            ls_verdict_fail(out, "step %d has no time", (int)step->step);
        }
    }
    if (count < 2) {
        ls_verdict_set(out, LS_WEAK, "%d timed steps cannot be halved", count);
        free(ms);
        return;
    }
    double first = median(ms, count / 2), second = median(ms + count - count / 2, count / 2);
    free(ms);
    if (out->code != LS_PASS) {
        return;
    }
    double drift = fabs(first - second) / (first < second ? first : second);
    const char *text = "medians of the two halves: %.1f and %.1f ms per step";
    if (ls_json_bool(ls_record_facts(job), "oversubscribed", false)) {
        ls_verdict_pass(
            out, count,
            "medians of the two halves: %.1f and %.1f ms per step; more ranks than cores: gates "
            "nothing",
            first, second);
    } else if (drift > halves.value) {
        ls_verdict_measured(out, drift, halves.value, "of the median", halves.why);
        ls_verdict_set(out, LS_WEAK, text, first, second);
    } else {
        ls_verdict_measured(out, drift, halves.value, "of the median", halves.why);
        ls_verdict_pass(out, count, text, first, second);
    }
}

static void judge_finite(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int expected = row->job[0].warmup_steps + row->job[0].steps;
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (rank->step_count != expected) {
            ls_verdict_fail(out, "rank=%d took %d steps of %d", k, rank->step_count, expected);
        }
        for (int i = 0; i < rank->step_count; i++) {
            if (!isfinite(rank->step[i].loss)) {
                ls_verdict_fail(out, "rank=%d step %d: the loss is not finite", k,
                                (int)rank->step[i].step);
            }
        }
    }
    ls_verdict_pass(out, (int64_t)expected * job->world, "loss finite over %d steps on %d ranks",
                    expected, job->world);
}

/* ---- the band of O0 -------------------------------------------------------------------------- */

enum { BAND_MAX = 64 };

static const ls_tol band = LS_TOL(
    0.999, "a level that trains as O0 does is outside the band of repeated O0 runs once in a "
           "thousand choices of their seeds");
static const ls_tol learnt =
    LS_TOL(0.9, "a curve that has not fallen by a tenth says nothing about how a level trains");

static double mean_loss(const ls_record_rank *rank, int from, int count)
{
    double sum = 0;
    for (int i = from; i < from + count; i++) {
        sum += rank->step[i].loss / count;
    }
    return sum;
}

/* Every rank of the job is a run of its own, at the level in its start event. */
static void judge_band(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    double ends[BAND_MAX], level_end = NAN, first = 0;
    int count = 0;
    LS_TEXT(wanted, 8, "O%d", *(const int *)row->data);
    for (int k = 0; k < job->world && count < BAND_MAX; k++) {
        const ls_record_rank *rank = &job->rank[k];
        const cJSON *options = ls_json_get(rank->start, "options");
        const char *level = ls_json_string(options, "opt-level", "");
        int last = rank->step_count / 10;
        if (rank->step_count != row->job[0].steps || last < 1) {
            ls_verdict_fail(out, "run %d took %d steps of %d", k, rank->step_count,
                            row->job[0].steps);
            return;
        }
        double end = mean_loss(rank, rank->step_count - last, last);
        if (strcmp(level, "O0") == 0) {
            first += mean_loss(rank, 0, last);
            ends[count++] = end;
        } else if (strcmp(level, wanted) == 0) {
            level_end = end;
        }
    }
    ls_stats_interval within = ls_stats_prediction(ends, count, band.value);
    if (!isfinite(within.low) || !(within.value < learnt.value * first / count)) {
        ls_verdict_set(out, LS_WEAK, "%d O0 runs went from a loss of %.3f to %.3f: %s", count,
                       first / count, within.value, learnt.why);
        return;
    }
    double away = fabs(level_end - within.value), limit = within.high - within.value;
    ls_verdict_measured(out, away, limit, "of loss", band.why);
    if (!(away <= limit)) {
        ls_verdict_fail(out, "%s ends at a loss of %.4f, outside [%.4f, %.4f] of %d O0 runs",
                        wanted, level_end, within.low, within.high, count);
    } else {
        ls_verdict_pass(out, 1 + count,
                        "%s ends at a loss of %.4f, %d O0 runs at %.4f [%.4f, %.4f]", wanted,
                        level_end, count, within.value, within.low, within.high);
    }
}

/* O3 has no masters, and claims no such thing. */
static void add_band(const ls_case_settings *settings, ls_case_list *list, const ls_spec *spec)
{
    static const int levels[] = {1, 2};
    for (int i = 0; i < 2; i++) {
        LS_TEXT(option, 32, "--opt-level=O%d", levels[i]);
        if (strstr(spec->each, option) != NULL) {
            ls_rows_specs(list, settings,
                          &(ls_row){.requirement = "T3", .judge = judge_band, .data = &levels[i]},
                          spec, 1, "training.timed.band.o%d", levels[i]);
        }
    }
}

void ls_performance_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_row window = {.requirement = "P1",
                                  .judge = judge_window,
                                  .counts = LS_COUNTS_SPEED},
                        finite = {.requirement = "T2", .judge = judge_finite};
    for (int i = 0; settings->bench != NULL && i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        if (spec->role == LS_ROLE_CURVES) {
            add_band(settings, list, spec);
        }
        if (ls_spec_has_rate(spec)) {
            char id[64];
            ls_timed_id(spec, id);
            if (spec->way == LS_WAY_NONE) { /* ways run in rounds too short to be halved, and are
                                               compared round by round */
                ls_rows_specs(list, settings, &window, spec, 1, "performance.timed.%s", id);
            }
            ls_rows_specs(list, settings, &finite, spec, 1, "training.timed.%s", id);
        }
    }
}
