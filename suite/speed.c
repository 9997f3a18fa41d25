#include "speed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../harness/text.h"
#include "../kernels/core/log.h"

static void summary_path(const char *where, char *path, size_t bytes)
{
    struct stat info;
    bool folder = stat(where, &info) == 0 && S_ISDIR(info.st_mode);
    ls_text_put(path, bytes, folder ? "%s/summary.json" : "%s", where);
}

ls_status ls_speed_check_baseline(const char *baseline)
{
    char path[800];
    summary_path(baseline, path, sizeof path);
    if (baseline[0] != '\0' && access(path, R_OK) != 0) {
        ls_log_error("BASELINE=%s: neither a run's folder with a summary.json nor such a file",
                     baseline);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

/* The job's own figure: the same network, batch, level, ranks, nodes and buckets. */
static bool same_job(const cJSON *a, const cJSON *b)
{
    static const char *const texts[] = {"arch", "level", "half", "dialect"};
    static const char *const numbers[] = {"image_size", "batch_size", "world", "nodes",
                                          "bucket_mb"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(ls_json_string(a, texts[i], ""), ls_json_string(b, texts[i], "")) != 0) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (ls_json_number(a, numbers[i], -1) != ls_json_number(b, numbers[i], -1)) {
            return false;
        }
    }
    return true;
}

static bool is_result(const cJSON *row)
{
    return ls_json_string(row, "not_a_result", "?")[0] == '\0' &&
           !ls_json_bool(row, "oversubscribed", false) &&
           ls_json_number(row, "images_per_s", 0) > 0;
}

static void compare(const cJSON *before, const cJSON *now, ls_headline *out)
{
    int compared = 0;
    double worst = INFINITY;
    const cJSON *a, *b;
    char label[80] = "";
    cJSON_ArrayForEach(b, now)
    {
        cJSON_ArrayForEach(a, before)
        {
            if (!same_job(a, b) || !is_result(a) || !is_result(b)) {
                continue;
            }
            compared++;
            double ratio =
                ls_json_number(b, "images_per_s", 0) / ls_json_number(a, "images_per_s", 1);
            out->below = out->below || ls_json_number(b, "images_per_s_high", INFINITY) <
                                           ls_json_number(a, "images_per_s_low", 0);
            if (ratio < worst) {
                worst = ratio;
                ls_text_put(label, sizeof label, "%s", ls_json_string(b, "label", "?"));
            }
        }
    }
    if (compared == 0) {
        ls_text_put(out->speed_why, sizeof out->speed_why,
                    "no job of the baseline has a result here");
        return;
    }
    ls_text_put(out->speed_value, sizeof out->speed_value, "%s", out->below ? "below" : "within");
    ls_text_put(out->speed_why, sizeof out->speed_why, "worst of %d: %s, %+.1f %% to the baseline",
                compared, label, (worst - 1) * 100);
}

void ls_speed_decide(const ls_run *run, ls_headline *out)
{
    ls_text_put(out->speed_value, sizeof out->speed_value, "no baseline");
    ls_text_put(out->speed_why, sizeof out->speed_why, "%s",
                run->bench_run ? "BASELINE=<run> compares with an earlier one"
                               : "nothing was timed");
    char path[800];
    cJSON *before = NULL, *now = NULL;
    summary_path(run->baseline, path, sizeof path);
    if (run->baseline[0] == '\0' || ls_json_read_file(path, &before) != LS_OK) {
        return;
    }
    summary_path(run->directory, path, sizeof path);
    if (ls_json_read_file(path, &now) == LS_OK) {
        compare(cJSON_GetObjectItemCaseSensitive(before, "throughput"),
                cJSON_GetObjectItemCaseSensitive(now, "throughput"), out);
        cJSON_Delete(now);
    }
    cJSON_Delete(before);
}
