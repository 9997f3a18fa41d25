#include "detect_keep.h"

#include <string.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "kernels/core/log.h"

static void path_of(const char *directory, const char *name, char *path, size_t bytes)
{
    ls_text_put(path, bytes, "%s/faults/%s.json", directory, name);
}

static ls_status write_and_free(const char *path, cJSON *out)
{
    ls_status status = ls_json_write_file(path, out);
    cJSON_Delete(out);
    return status;
}

static bool equals(const cJSON *in, const char *name, const char *value)
{
    return strcmp(ls_json_string(in, name, ""), value) == 0;
}

/* ---- faults ---------------------------------------------------------------------------------- */

ls_status ls_detect_keep(const char *directory, bool full, const ls_detect_plant *plant,
                         const ls_detect_result *result)
{
    char path[700];
    path_of(directory, plant->name, path, sizeof path);
    cJSON *out = cJSON_CreateObject();
    LS_ASSERT(out != NULL);
    cJSON_AddNumberToObject(out, "schema", 1);
    cJSON_AddStringToObject(out, "fault", plant->wish);
    cJSON_AddStringToObject(out, "named", plant->case_id);
    cJSON_AddStringToObject(out, "pattern", plant->cause);
    cJSON_AddStringToObject(out, "subject", plant->subject);
    cJSON_AddBoolToObject(out, "full", full);
    cJSON_AddBoolToObject(out, "caught", result->caught);
    cJSON_AddBoolToObject(out, "by_named", result->by_named);
    cJSON_AddBoolToObject(out, "cause_right", result->cause_right);
    cJSON_AddBoolToObject(out, "refused", result->refused);
    cJSON_AddNumberToObject(out, "seconds", result->seconds);
    cJSON_AddStringToObject(out, "case", result->by.case_id);
    cJSON_AddStringToObject(out, "verdict", result->by.code);
    cJSON_AddStringToObject(out, "evidence", result->by.evidence);
    cJSON_AddStringToObject(out, "cause", result->by.cause);
    cJSON_AddNumberToObject(out, "others", result->others);
    cJSON_AddNumberToObject(out, "others_asked", result->others_asked);
    return write_and_free(path, out);
}

static void take(const cJSON *in, ls_detect_result *out)
{
    *out = (ls_detect_result){.done = true,
                              .caught = ls_json_bool(in, "caught", false),
                              .by_named = ls_json_bool(in, "by_named", false),
                              .cause_right = ls_json_bool(in, "cause_right", false),
                              .refused = ls_json_bool(in, "refused", false),
                              .seconds = ls_json_number(in, "seconds", 0),
                              .others = (int)ls_json_integer(in, "others", 0),
                              .others_asked = (int)ls_json_integer(in, "others_asked", 0)};
    ls_detect_verdict *by = &out->by;
    ls_text_put(by->case_id, sizeof by->case_id, "%s", ls_json_string(in, "case", ""));
    ls_text_put(by->code, sizeof by->code, "%s", ls_json_string(in, "verdict", ""));
    ls_text_put(by->evidence, sizeof by->evidence, "%s", ls_json_string(in, "evidence", ""));
    ls_text_put(by->cause, sizeof by->cause, "%s", ls_json_string(in, "cause", ""));
    out->cause_given = by->cause[0] != '\0';
}

bool ls_detect_kept(const char *directory, bool full, const ls_detect_plant *plant,
                    ls_detect_result *result)
{
    char path[700];
    cJSON *in = NULL;
    path_of(directory, plant->name, path, sizeof path);
    if (access(path, R_OK) != 0 || ls_json_read_file(path, &in) != LS_OK) {
        return false;
    }
    bool same = equals(in, "fault", plant->wish) && equals(in, "named", plant->case_id) &&
                equals(in, "subject", plant->subject) && ls_json_bool(in, "full", false) == full;
    if (same) {
        take(in, result);
        result->stale = !equals(in, "pattern", plant->cause);
        same = result->done = !result->stale;
    }
    cJSON_Delete(in);
    return same;
}

/* ---- runs without a fault -------------------------------------------------------------------- */

ls_status ls_detect_keep_clean(const char *directory, const ls_detect_clean *clean)
{
    char path[700];
    path_of(directory, clean->name, path, sizeof path);
    cJSON *out = cJSON_CreateObject();
    LS_ASSERT(out != NULL);
    cJSON_AddStringToObject(out, "subject", clean->subject);
    cJSON_AddNumberToObject(out, "cases", clean->cases);
    cJSON_AddStringToObject(out, "alarm", clean->where);
    cJSON_AddStringToObject(out, "evidence", clean->alarm);
    cJSON_AddBoolToObject(out, "refused", clean->refused);
    return write_and_free(path, out);
}

bool ls_detect_kept_clean(const char *directory, ls_detect_clean *clean)
{
    char path[700];
    cJSON *in = NULL;
    path_of(directory, clean->name, path, sizeof path);
    if (access(path, R_OK) != 0 || ls_json_read_file(path, &in) != LS_OK) {
        return false;
    }
    bool same = equals(in, "subject", clean->subject);
    ls_text_put(clean->where, sizeof clean->where, "%s", ls_json_string(in, "alarm", "?"));
    ls_text_put(clean->alarm, sizeof clean->alarm, "%s", ls_json_string(in, "evidence", ""));
    clean->refused = ls_json_bool(in, "refused", false);
    clean->cases = (int)ls_json_integer(in, "cases", 0);
    cJSON_Delete(in);
    return same;
}
