#include "report.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "stats.h"

ls_status ls_report_diff_read(const char *where, cJSON **summary)
{
    struct stat info;
    bool folder = stat(where, &info) == 0 && S_ISDIR(info.st_mode);
    LS_TEXT(path, PATH_MAX, folder ? "%s/summary.json" : "%s", where);
    if (stat(path, &info) != 0) {
        return ls_log_fail(LS_ERR_USAGE,
                           "'%s' is neither a run's folder with a summary.json nor such a file",
                           where);
    }
    return ls_json_read_file(path, summary);
}

bool ls_report_diff_same_job(const cJSON *x, const cJSON *y)
{
    static const char *const TEXTS[] = {"arch", "level", "half", "dialect"};
    static const char *const NUMBERS[] = {"image_size", "batch_size", "world", "nodes",
                                          "bucket_mb"};
    bool same = true;
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        same =
            same && strcmp(ls_json_string(x, TEXTS[i], ""), ls_json_string(y, TEXTS[i], "")) == 0;
    }
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        same = same && ls_json_number(x, NUMBERS[i], -1) == ls_json_number(y, NUMBERS[i], -1);
    }
    return same;
}

static ls_stats_interval rate_of(const cJSON *row)
{
    bool result = ls_json_string(row, "not_a_result", "?")[0] == '\0';
    return result ? ls_stats_read_json(row, "images_per_s") : (ls_stats_interval){NAN, NAN, NAN};
}

static bool either(const cJSON *x, const cJSON *y, const char *name)
{
    return ls_json_bool(x, name, false) || ls_json_bool(y, name, false);
}

static void print_pair(const cJSON *x, const cJSON *y, FILE *to)
{
    char sentence[128];
    ls_stats_interval before = rate_of(x), after = rate_of(y);
    fprintf(to, "%.78s\n    ", ls_json_string(y, "label", "?"));
    if (isnan(before.value) || isnan(after.value)) {
        const cJSON *row = isnan(before.value) ? x : y;
        fprintf(to, "no result in %s: %s\n", isnan(before.value) ? "A" : "B",
                ls_json_string(row, "not_a_result", "its summary does not say"));
        return;
    }
    bool crowded = either(x, y, "oversubscribed"), weak = either(x, y, "weak");
    ls_stats_sentence(ls_stats_ratio_of(after, before), sentence, sizeof sentence);
    fprintf(to, "%.4g -> %.4g images/s, %s%s\n", before.value, after.value, sentence,
            crowded && weak ? " (oversubscribed, weak)"
            : crowded       ? " (oversubscribed)"
            : weak          ? " (weak)"
                            : "");
}

static const cJSON *pair_of(const cJSON *summary, const cJSON *row)
{
    const cJSON *other;
    cJSON_ArrayForEach(other, cJSON_GetObjectItemCaseSensitive(summary, "throughput"))
    {
        if (ls_report_diff_same_job(other, row)) {
            return other;
        }
    }
    return NULL;
}

static void print_lone(const cJSON *summary, const cJSON *other, const char *name, FILE *to)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(summary, "throughput"))
    {
        if (pair_of(other, row) == NULL) {
            fprintf(to, "%.60s\n    only in %s\n", ls_json_string(row, "label", "?"), name);
        }
    }
}

ls_status ls_report_diff(const char *a, const char *b, FILE *to)
{
    cJSON *before = NULL, *after = NULL;
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_report_diff_read(a, &before), done);
    LS_TRY_GOTO(status, ls_report_diff_read(b, &after), done);
    fprintf(to, "A: %s\n   %s, %s\nB: %s\n   %s, %s\n", a, ls_json_string(before, "where", "?"),
            ls_json_string(before, "commit", "?"), b, ls_json_string(after, "where", "?"),
            ls_json_string(after, "commit", "?"));
    int paired = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(after, "throughput"))
    {
        const cJSON *pair = pair_of(before, row);
        if (pair != NULL) {
            print_pair(pair, row, to);
            paired++;
        }
    }
    print_lone(before, after, "A", to);
    print_lone(after, before, "B", to);
    if (paired == 0) {
        ls_log_error("%s and %s have no throughput job in common", a, b);
        status = LS_ERR_USAGE;
    }
done:
    cJSON_Delete(before);
    cJSON_Delete(after);
    return status;
}
