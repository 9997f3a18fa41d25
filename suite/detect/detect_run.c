#include "detect_internal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"

extern char **environ;

static const double grace_s = 10; /* the run ends its own jobs within 5 s after TERM */

/* This process's environment without LS_PLANT, plus `plant` and `engines` ("NAME=value") unless
 * NULL, and `more`. Only the list is malloc'ed, not its strings. */
static char **environment_with(char *plant, char *engines, const ls_words *more)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL) {
        count++;
    }
    char **out = ls_list_make(count + 3 + (size_t)more->count, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        bool library = engines != NULL && strncmp(environ[i], "LS_LIB_DIR=", 11) == 0;
        if (!library && strncmp(environ[i], "LS_PLANT=", 9) != 0) {
            out[kept++] = environ[i];
        }
    }
    if (plant != NULL) {
        out[kept++] = plant;
    }
    if (engines != NULL) {
        out[kept++] = engines;
    }
    for (int i = 0; i < more->count; i++) {
        out[kept++] = more->word[i];
    }
    return out;
}

static ls_status take_verdict(void *context, const cJSON *line, int line_number)
{
    (void)line_number;
    ls_detect_outcome *out = context;
    if (out->claim_only && !ls_json_bool(line, "in_claim", false)) {
        return LS_OK;
    }
    out->verdict = ls_list_grow(out->verdict, out->count, &out->capacity, sizeof *out->verdict);
    ls_detect_verdict *v = &out->verdict[out->count++];
    memset(v, 0, sizeof *v);
    ls_text_put(v->case_id, sizeof v->case_id, "%s", ls_json_string(line, "case", ""));
    ls_text_put(v->code, sizeof v->code, "%s", ls_verdict_name(ls_verdict_code_in(line)));
    ls_text_put(v->evidence, sizeof v->evidence, "%s", ls_json_string(line, "evidence", ""));
    ls_text_put(v->cause, sizeof v->cause, "%s", ls_json_string(line, "cause", ""));
    return LS_OK;
}

/* The path of a bench's verdicts: in the one folder that it has made in `directory`; "" for none.
 */
static void find_verdicts(const char *directory, char *path, size_t bytes)
{
    DIR *list = ls_path_open_folder(directory);
    path[0] = '\0';
    for (const char *entry; (entry = ls_path_next(&list)) != NULL;) {
        LS_TEXT(found, 700, "%s/%s/verdicts.jsonl", directory, entry);
        if (entry[0] != '.' && access(found, R_OK) == 0) {
            ls_text_put(path, bytes, "%s", found);
        }
    }
}

static void arguments_of(const ls_detect_child *child, char *seed, ls_words *bench, char **argv)
{
    int count = 0;
    argv[count++] = (char *)(uintptr_t)child->program;
    if (child->bench != NULL) {
        ls_words_add(bench, "bench");
        ls_words_add(bench, "PROFILE=smoke");
        ls_words_add(bench, "DEVICE=cpu");
        ls_words_add(bench, "OUT=%s", child->directory);
        ls_words_split(bench, child->bench);
        for (int i = 0; i < bench->count; i++) {
            argv[count++] = bench->word[i];
        }
        return;
    }
    argv[count++] = "conform";
    argv[count++] = child->engines != NULL ? "--device=cuda" : "--device=cpu";
    argv[count++] = "--gate=manners";
    argv[count++] = "--seed";
    argv[count++] = seed;
    argv[count++] = "--out";
    argv[count++] = (char *)(uintptr_t)child->directory;
    argv[count++] = "--overwrite"; /* one that was stopped: a fault is run as a whole */
    if (child->subject != NULL) {
        argv[count++] = "--subject";
        argv[count++] = (char *)(uintptr_t)child->subject;
    }
    if (child->case_id != NULL) {
        argv[count++] = "--case";
        argv[count++] = (char *)(uintptr_t)child->case_id;
    }
    if (child->list != NULL) {
        argv[count++] = "--list-file";
        argv[count++] = (char *)(uintptr_t)child->list;
    }
    if (child->fail_early) {
        argv[count++] = "--fail-early";
    }
}

ls_status ls_detect_run(const ls_detect_child *child, ls_detect_outcome *out)
{
    char *argv[20] = {NULL};
    ls_words bench = {0}, more = {0};
    *out = (ls_detect_outcome){.claim_only = child->bench != NULL};
    LS_TEXT(plant, 96, "LS_PLANT=%s", child->wish == NULL ? "" : child->wish);
    LS_TEXT(seed, 32, "%llu", (unsigned long long)child->seed);
    LS_TEXT(log, 700, "%s.log", child->directory);
    LS_TEXT(verdicts, 700, "%s/verdicts.jsonl", child->directory);
    (void)unlink(verdicts); /* of an earlier run */
    if (child->bench != NULL) {
        ls_path_remove_tree(child->directory);
    }
    arguments_of(child, seed, &bench, argv);
    LS_TEXT(engines, 1400, "LS_LIB_DIR=%s", child->engines == NULL ? "" : child->engines);
    if (child->environment != NULL) {
        ls_words_split(&more, child->environment);
    }
    char **environment = environment_with(child->wish == NULL ? NULL : plant,
                                          child->engines == NULL ? NULL : engines, &more);
    ls_proc_spec spec = {.argv = argv, .environment = environment, .log_path = log};
    ls_proc process = {0};
    int64_t begun_ns = ls_clock_ns();
    ls_status status = ls_proc_start(&spec, &process);
    ls_words_free(&bench);
    ls_words_free(&more);
    free(environment);
    LS_TRY(status);
    int ended = ls_proc_wait_any(&process, 1, begun_ns + (int64_t)(child->limit_s * 1e9));
    out->timed_out = ended == -1;
    out->stopped = ended == -2;
    if (ended < 0) {
        ls_proc_end_all(&process, 1, grace_s);
    }
    out->code = process.code;
    out->seconds = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    if (child->bench != NULL) {
        find_verdicts(child->directory, verdicts, sizeof verdicts);
    }
    return access(verdicts, R_OK) == 0 ? ls_json_each_line(verdicts, take_verdict, out) : LS_OK;
}

void ls_detect_outcome_free(ls_detect_outcome *outcome)
{
    free(outcome->verdict);
    memset(outcome, 0, sizeof *outcome);
}

static ls_verdict_code code_of(const ls_detect_verdict *verdict)
{
    return ls_verdict_code_of(verdict->code);
}

const ls_detect_verdict *ls_detect_alarm(const ls_detect_outcome *outcome)
{
    const ls_detect_verdict *other = NULL;
    for (int i = 0; i < outcome->count; i++) {
        const ls_detect_verdict *v = &outcome->verdict[i];
        if (code_of(v) == LS_FAIL || code_of(v) == LS_WEAK) {
            return v;
        }
        other = other == NULL && !ls_verdict_good(code_of(v)) ? v : other;
    }
    return outcome->code != 0 ? other : NULL;
}

/* The verdict of the case written for a fault: the expected one where it is among several, as of
 * the jobs of a bench. NULL: the run has none. */
static const ls_detect_verdict *verdict_of(const ls_detect_plant *plant,
                                           const ls_detect_outcome *outcome)
{
    const ls_detect_verdict *found = NULL;
    LS_TEXT(jobs, LS_CASE_ID_BYTES + 2, "%s.*", plant->case_id);
    for (int i = 0; i < outcome->count; i++) {
        const ls_detect_verdict *v = &outcome->verdict[i];
        bool named = strcmp(v->case_id, plant->case_id) == 0 || ls_text_matches(jobs, v->case_id);
        bool better = found == NULL || strcmp(found->code, plant->expected) != 0;
        found = named && better ? v : found;
    }
    return found;
}

void ls_detect_judge(const ls_detect_plant *plant, const ls_detect_outcome *outcome,
                     ls_detect_result *result)
{
    const ls_detect_verdict *by = verdict_of(plant, outcome);
    bool shown = false;
    if (by != NULL) {
        bool as_expected = strcmp(by->code, plant->expected) == 0;
        ls_verdict_code code = code_of(by);
        bool judged = ls_verdict_good(code) || code == LS_FAIL || code == LS_WEAK;
        /* an exception of Python's ends a job with 1, as a check that failed does */
        bool ended = judged && ls_text_matches("rank=* exit code *", by->evidence);
        shown = !ended && (as_expected || (judged && outcome->code < LS_ERR_INFRA));
        result->by = *by;
        /* where no cause is printed, the evidence says it */
        result->cause_given = by->cause[0] != '\0';
        result->cause_right =
            ls_text_matches(plant->cause, result->cause_given ? by->cause : by->evidence);
        result->caught = as_expected && (result->cause_right || strcmp(plant->cause, "-") == 0);
    }
    result->not_run = !shown && !result->caught;
    if (result->not_run) {
        if (by != NULL) {
            ls_text_put(result->why, sizeof result->why, "%s: %s", by->code, by->evidence);
        } else {
            ls_text_put(result->why, sizeof result->why, "%s, exit code %d",
                        outcome->timed_out ? "it did not end" : "no verdict", outcome->code);
        }
    }
}

int ls_detect_code(const ls_detect_summary *s)
{
    const ls_detect_count *p = &s->planted, *f = &s->foreign;
    int not_run = p->not_run + f->not_run + s->right_not_run;
    int missed = p->tried + f->tried - p->not_run - f->not_run - p->caught - f->caught;
    if (missed + s->clean_failed + s->right_failed > 0) {
        return LS_ERR_CHECK;
    }
    return not_run > 0 || p->tried + f->tried == 0 ? LS_ERR_INFRA : LS_OK;
}

/* ---- kept results ---------------------------------------------------------------------------- */

/* Another schema is one of other rules: its faults run again, as do those that were not run. */
enum { KEPT_SCHEMA = 2 };

static void path_of(const char *directory, const char *name, char *path, size_t bytes)
{
    ls_text_put(path, bytes, "%s/faults/%s.json", directory, name);
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
    LS_MEMORY(out != NULL);
    cJSON_AddNumberToObject(out, "schema", KEPT_SCHEMA);
    cJSON_AddStringToObject(out, "fault", plant->wish);
    cJSON_AddStringToObject(out, "named", plant->case_id);
    cJSON_AddStringToObject(out, "expected", plant->expected);
    cJSON_AddStringToObject(out, "pattern", plant->cause);
    cJSON_AddStringToObject(out, "subject", plant->subject);
    cJSON_AddBoolToObject(out, "full", full);
    cJSON_AddBoolToObject(out, "caught", result->caught);
    cJSON_AddBoolToObject(out, "by_named", result->caught);
    cJSON_AddBoolToObject(out, "elsewhere", result->elsewhere);
    cJSON_AddBoolToObject(out, "cause_right", result->cause_right);
    cJSON_AddBoolToObject(out, "not_run", result->not_run);
    cJSON_AddStringToObject(out, "why", result->why);
    cJSON_AddNumberToObject(out, "seconds", result->seconds);
    cJSON_AddStringToObject(out, "case", result->by.case_id);
    cJSON_AddStringToObject(out, "verdict", result->by.code);
    cJSON_AddStringToObject(out, "evidence", result->by.evidence);
    cJSON_AddStringToObject(out, "cause", result->by.cause);
    cJSON_AddNumberToObject(out, "others", result->others);
    cJSON_AddNumberToObject(out, "others_asked", result->others_asked);
    return ls_json_write_and_free(path, out);
}

static void take(const cJSON *in, ls_detect_result *out)
{
    *out = (ls_detect_result){.done = true,
                              .caught = ls_json_bool(in, "caught", false),
                              .elsewhere = ls_json_bool(in, "elsewhere", false),
                              .cause_right = ls_json_bool(in, "cause_right", false),
                              .seconds = ls_json_number(in, "seconds", 0),
                              .others = ls_json_int(in, "others", 0),
                              .others_asked = ls_json_int(in, "others_asked", 0)};
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
                equals(in, "subject", plant->subject) && ls_json_bool(in, "full", false) == full &&
                ls_json_int(in, "schema", 0) == KEPT_SCHEMA && !ls_json_bool(in, "not_run", true);
    if (same) {
        take(in, result);
        result->stale =
            !equals(in, "pattern", plant->cause) || !equals(in, "expected", plant->expected);
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
    LS_MEMORY(out != NULL);
    cJSON_AddStringToObject(out, "subject", clean->subject);
    cJSON_AddNumberToObject(out, "cases", clean->cases);
    cJSON_AddStringToObject(out, "alarm", clean->where);
    cJSON_AddStringToObject(out, "evidence", clean->alarm);
    cJSON_AddBoolToObject(out, "not_run", clean->not_run);
    return ls_json_write_and_free(path, out);
}

bool ls_detect_kept_clean(const char *directory, ls_detect_clean *clean)
{
    char path[700];
    cJSON *in = NULL;
    path_of(directory, clean->name, path, sizeof path);
    if (access(path, R_OK) != 0 || ls_json_read_file(path, &in) != LS_OK) {
        return false;
    }
    bool same = equals(in, "subject", clean->subject) && !ls_json_bool(in, "not_run", true);
    ls_text_put(clean->where, sizeof clean->where, "%s", ls_json_string(in, "alarm", "?"));
    ls_text_put(clean->alarm, sizeof clean->alarm, "%s", ls_json_string(in, "evidence", ""));
    clean->cases = ls_json_int(in, "cases", 0);
    cJSON_Delete(in);
    return same;
}
