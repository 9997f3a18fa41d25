#include "headline.h"

#include <math.h>
#include <string.h>

#include "harness/report/report.h"
#include "harness/report/stats.h"
#include "harness/run/manifest.h"

/* Checks first whether the run is whole; *summary stays where there is no baseline. */
static ls_status read_baseline(const char *baseline, cJSON **summary)
{
    ls_archive archive;
    if (baseline[0] == '\0') {
        return LS_OK;
    }
    LS_TRY(ls_archive_open(baseline, &archive));
    ls_status status = ls_report_diff_check(archive.folder);
    LS_THEN(status, ls_report_diff_read(archive.folder, summary));
    ls_archive_close(&archive);
    return status;
}

ls_status ls_speed_check_baseline(const char *baseline)
{
    cJSON *summary = NULL;
    ls_status status = read_baseline(baseline, &summary);
    cJSON_Delete(summary);
    return status;
}

/* A row is below when the upper end of its ratio to the baseline is below this. */
static const ls_tol least_ratio = LS_TOL(
    0.97, "intervals hold for the steps of one run, and starting the same job again moves its "
          "median too: by 0.2 % on a tuned machine (MLPerf v4.0), by a few per cent where the "
          "machine does other things");

static void add_row(cJSON *rows, const cJSON *of, const char *value, const char *why)
{
    cJSON *row = ls_json_append_object(rows);
    cJSON_AddStringToObject(row, "label", ls_json_string(of, "label", "?"));
    ls_json_add_number(row, "images_per_s", ls_json_number(of, "images_per_s", NAN));
    cJSON_AddStringToObject(row, "value", value);
    cJSON_AddStringToObject(row, "why", why);
}

/* A row that was compared with nothing. */
static void add_lone_row(cJSON *rows, const cJSON *row, bool baseline)
{
    const char *reason = ls_json_string(row, "not_a_result", "?");
    bool crowded = ls_json_bool(row, "oversubscribed", false);
    add_row(rows, row, "no baseline",
            reason[0] != '\0'                  ? reason
            : !baseline                        ? "BASELINE=<run> compares with an earlier one"
            : crowded                          ? "more ranks than devices or cores gate nothing"
            : ls_json_bool(row, "weak", false) ? "a drifting window gates nothing"
                                               : "the baseline has no result for it");
}

/* Every row of a run whose baseline ran on something else. */
static void add_incomparable(const cJSON *now, const char *why, cJSON *rows, ls_speed_verdict *out)
{
    const cJSON *row;
    ls_json_each(row, now) {
        add_row(rows, row, "not comparable", why);
    }
    ls_text_put(out->value, sizeof out->value, "not comparable");
    ls_text_put(out->why, sizeof out->why, "%s", why);
}

static void compare(const cJSON *before, const cJSON *now, cJSON *rows, ls_speed_verdict *out)
{
    int compared = 0, below = 0, unsure = 0;
    ls_stats_interval worst = {INFINITY, NAN, NAN};
    const cJSON *a, *b;
    char label[80] = "";
    ls_json_each(b, now) {
        bool paired = false;
        ls_json_each(a, before) {
            if (!ls_report_diff_same_job(a, b) || !ls_report_diff_decides(a) ||
                !ls_report_diff_decides(b)) {
                continue;
            }
            ls_stats_interval ratio = ls_stats_ratio_of(ls_stats_read_json(b, "images_per_s"),
                                                        ls_stats_read_json(a, "images_per_s"));
            char sentence[128];
            ls_stats_sentence(ratio, sentence, sizeof sentence);
            add_row(rows, b,
                    ratio.high < least_ratio.value ? "below"
                    : isfinite(ratio.high)         ? "within"
                                                   : "no baseline",
                    sentence);
            paired = true;
            compared++;
            below += ratio.high < least_ratio.value;
            unsure += !isfinite(ratio.high);
            if (ratio.value < worst.value) {
                worst = ratio;
                ls_text_put(label, sizeof label, "%s", ls_json_string(b, "label", "?"));
            }
        }
        if (!paired) {
            add_lone_row(rows, b, before != NULL);
        }
    }
    if (before == NULL) {
        return;
    }
    if (compared == unsure) {
        ls_text_put(out->why, sizeof out->why,
                    compared == 0
                        ? "no job of both runs has a result; drifting windows and timings of more "
                          "ranks than cores gate nothing"
                        : "too few steps for an interval");
        return;
    }
    out->below = below > 0;
    ls_text_put(out->value, sizeof out->value, "%s", out->below ? "below" : "within");
    ls_text_put(out->why, sizeof out->why,
                "worst of %d: %s, %.3f of the baseline [%.3f, %.3f], limit %.2f from the baseline "
                "less what runs of one job differ by",
                compared, label, worst.value, worst.low, worst.high, least_ratio.value);
    if (below > 1) {
        ls_text_add(out->why, sizeof out->why, "; %d rows are below", below);
    }
}

static const ls_tol neighbours = LS_TOL(
    0.02,
    "39 machines with one H100 each agree within 0.11 % on ResNet-50 but for one that is 3.8 % "
    "slow, which a limit of 5 % does not see (Lambda's published table)");

/* Compares the GPUs of this run with each other, which needs no baseline. The slowest is always
 * named, but gates nothing. */
static void compare_neighbours(const cJSON *gpus, cJSON *rows, ls_speed_verdict *out)
{
    const cJSON *gpu, *worst = NULL;
    int figures = 0;
    ls_json_each(gpu, gpus) {
        double behind = ls_json_number(gpu, "behind", NAN);
        figures += isfinite(behind);
        if (isfinite(behind) && (worst == NULL || behind > ls_json_number(worst, "behind", NAN))) {
            worst = gpu;
        }
    }
    if (figures < 3) {
        return;
    }
    double behind = ls_json_number(worst, "behind", NAN);
    bool baseline = strcmp(out->value, "no baseline") != 0;
    LS_TEXT(before, sizeof out->why, "%s", out->why);
    ls_text_put(out->why, sizeof out->why,
                "worst: GPU %d, %.1f %% under its neighbours, limit %.0f %% from the run's other "
                "GPUs%s%s",
                ls_json_int(worst, "gpu", 0), 100 * fmax(behind, 0), 100 * neighbours.value,
                baseline ? "; " : "", baseline ? before : "");
    bool below = behind > neighbours.value;
    cJSON *all = cJSON_CreateObject();
    cJSON_AddStringToObject(all, "label", "GPUs of this run");
    add_row(rows, all, below ? "below" : "within", out->why);
    cJSON_Delete(all);
    if (below || !baseline) {
        ls_text_put(out->value, sizeof out->value, "%s", below ? "below" : "within");
    }
}

void ls_speed_decide(const ls_run *run, ls_speed_verdict *out)
{
    ls_text_put(out->value, sizeof out->value, "no baseline");
    ls_text_put(out->why, sizeof out->why, "%s",
                run->bench_run ? "BASELINE=<run> compares with an earlier one"
                               : "nothing was timed");
    cJSON *before = NULL, *now = NULL;
    if (!run->bench_run || ls_report_diff_read(run->directory, &now) != LS_OK) {
        return;
    }
    cJSON *rows = cJSON_AddArrayToObject(run->measured, "speed");
    (void)read_baseline(run->baseline, &before);
    const cJSON *timed = ls_json_get(now, "throughput");
    ls_comparable machines = ls_report_diff_comparable(before, now);
    if (before != NULL && !machines.same) {
        add_incomparable(timed, machines.decides, rows, out);
    } else {
        compare(ls_json_get(before, "throughput"), timed, rows, out);
    }
    out->unshown = run->baseline[0] != '\0' && strcmp(out->value, "within") != 0 && !out->below;
    if (before != NULL && machines.remarks[0] != '\0') {
        ls_text_add(out->why, sizeof out->why, "; also differ, without deciding: %s",
                    machines.remarks);
    }
    compare_neighbours(ls_json_get(now, "gpus"), rows, out);
    cJSON_Delete(before);
    cJSON_Delete(now);
}
