/* Wrong trainers in another framework: mistakes that users make in their own scripts, each run as a
 * subject against the case that must catch it, and the right trainer against the same cases. */
#include "detect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/text.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"

extern char **environ;

/* A framework to load on every rank of each job, on a machine that others use too. */
static const double foreign_limit_s = 900, import_limit_s = 120;

/* ---- suite/peers/wrong/expected.txt ---------------------------------------------------------- */

static ls_status read_line(char *line, const char *path, int number, ls_detect_list *out)
{
    if (line[0] == '\0' || line[0] == '#') {
        return LS_OK;
    }
    char *script = line, *case_id = strchr(line, '\t');
    char *sentence = case_id == NULL ? NULL : strchr(case_id + 1, '\t');
    char *cause = sentence == NULL ? NULL : strchr(sentence + 1, '\t');
    size_t length = case_id == NULL ? 0 : (size_t)(case_id - script);
    if (sentence == NULL || length < 4 || strncmp(case_id - 3, ".py", 3) != 0) {
        ls_log_error("%s:%d: expected script.py<TAB>case<TAB>sentence[<TAB>cause]", path, number);
        return LS_ERR_USAGE;
    }
    *case_id++ = '\0';
    *sentence++ = '\0';
    if (cause != NULL) {
        *cause++ = '\0';
    }
    ls_detect_plant *plant = ls_detect_append(out);
    plant->foreign = true;
    ls_text_put(plant->name, sizeof plant->name, "foreign.%.*s", (int)length - 3, script);
    ls_text_put(plant->wish, sizeof plant->wish, "%s", plant->name);
    ls_text_put(plant->case_id, sizeof plant->case_id, "%s", case_id);
    ls_text_put(plant->cause, sizeof plant->cause, "%s", cause == NULL ? "-" : cause);
    ls_text_put(plant->sentence, sizeof plant->sentence, "%s", sentence);
    ls_text_put(plant->script, sizeof plant->script, "%.*s%s",
                (int)(strlen(path) - strlen("expected.txt")), path, script);
    if (access(plant->script, R_OK) != 0) {
        ls_log_error("%s:%d: there is no %s", path, number, plant->script);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

ls_status ls_detect_read_foreign(const char *path, ls_detect_list *out)
{
    return ls_detect_read_lines(path, "the list of wrong trainers", read_line, out);
}

/* ---- the interpreter ------------------------------------------------------------------------- */

static bool has_torch(const char *python)
{
    static const char check[] =
        "import sys, numpy, torch\n"
        "v = torch.__version__.split('.')\n"
        "sys.exit((int(v[0]), int(v[1])) < (1, 13) or not torch.distributed.is_available())\n";
    char *argv[] = {(char *)(uintptr_t)python, "-c", (char *)(uintptr_t)check, NULL};
    ls_proc_spec spec = {.argv = argv, .environment = environ, .log_path = "/dev/null"};
    ls_proc process;
    memset(&process, 0, sizeof process);
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return false;
    }
    if (ls_proc_wait_any(&process, 1, ls_clock_ns() + (int64_t)(import_limit_s * 1e9)) < 0) {
        ls_proc_end_all(&process, 1, 1);
        return false;
    }
    return process.code == 0;
}

static bool is_program(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* In $PATH, or by its path: a program that is not there must not be an error of its own. */
static bool is_there(const char *program)
{
    const char *path = strchr(program, '/') == NULL ? getenv("PATH") : NULL;
    bool found = path == NULL && is_program(program);
    while (path != NULL && !found) {
        char whole[1200];
        size_t length = strcspn(path, ":");
        ls_text_put(whole, sizeof whole, "%.*s/%s", (int)length, path, program);
        found = is_program(whole);
        path = path[length] == ':' ? path + length + 1 : NULL;
    }
    return found;
}

bool ls_detect_python(const char *asked, char *python, size_t bytes)
{
    const char *candidate[] = {asked != NULL ? asked : "python3",
                               asked != NULL ? NULL : "/usr/bin/python3"};
    for (int i = 0; i < 2 && candidate[i] != NULL; i++) {
        if (is_there(candidate[i]) && has_torch(candidate[i])) {
            ls_text_put(python, bytes, "%s", candidate[i]);
            return true;
        }
    }
    return false;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static bool is_code(const ls_detect_verdict *verdict, ls_verdict_code code)
{
    return strcmp(verdict->code, ls_verdict_name(code)) == 0;
}

static ls_status run(const ls_detect_place *place, const char *name, const char *subject,
                     const char *case_id, ls_detect_outcome *out)
{
    char directory[700];
    ls_text_put(directory, sizeof directory, "%s/faults/%s", place->directory, name);
    ls_detect_child child = {.program = place->program,
                             .directory = directory,
                             .subject = subject,
                             .case_id = case_id,
                             .seed = place->seed,
                             .limit_s = foreign_limit_s};
    return ls_detect_run(&child, out);
}

static void drop_folder(const ls_detect_place *place, const char *name)
{
    char directory[700];
    ls_text_put(directory, sizeof directory, "%s/faults/%s", place->directory, name);
    ls_path_remove_tree(directory);
}

ls_status ls_detect_run_foreign(const ls_detect_place *place, const ls_detect_plant *plant,
                                ls_detect_result *result, bool *stopped)
{
    ls_detect_outcome outcome;
    LS_TRY(run(place, plant->name, plant->subject, plant->case_id, &outcome));
    const ls_detect_verdict *by = ls_detect_catch(&outcome);
    *result = (ls_detect_result){.done = !outcome.stopped, .seconds = outcome.seconds};
    if (by != NULL && !is_code(by, LS_TIMEOUT)) {
        result->by = *by;
        result->caught = true;
        result->by_named = strcmp(by->case_id, plant->case_id) == 0;
        result->cause_given = by->cause[0] != '\0';
        result->cause_right = result->cause_given && ls_text_matches(plant->cause, by->cause);
    }
    result->refused =
        !result->caught && outcome.count > 0 && is_code(&outcome.verdict[0], LS_UNSUPPORTED);
    *stopped = outcome.stopped;
    ls_detect_outcome_free(&outcome);
    if (*stopped) {
        return LS_OK;
    }
    if (result->caught || result->refused) {
        drop_folder(place, plant->name);
    }
    return ls_detect_keep(place->directory, place->full, plant, result);
}

/* PASS in every case, or UNSUPPORTED. */
static void judge_right(const ls_detect_outcome *outcome, ls_detect_clean *clean)
{
    clean->cases = outcome->count;
    clean->refused = false;
    clean->where[0] = clean->alarm[0] = '\0';
    for (int i = 0; i < outcome->count && clean->where[0] == '\0'; i++) {
        const ls_detect_verdict *v = &outcome->verdict[i];
        if (is_code(v, LS_UNSUPPORTED)) {
            clean->refused = true;
        } else if (!is_code(v, LS_PASS)) {
            ls_text_put(clean->where, sizeof clean->where, "%s", v->case_id);
            ls_text_put(clean->alarm, sizeof clean->alarm, "%s: %s", v->code, v->evidence);
        }
    }
    if (outcome->count == 0) {
        ls_text_put(clean->where, sizeof clean->where, "(no case)");
        ls_text_put(clean->alarm, sizeof clean->alarm, "exit code %d after %.0f s", outcome->code,
                    outcome->seconds);
    }
}

ls_status ls_detect_run_right(const ls_detect_place *place, const ls_detect_plant *wrong,
                              ls_detect_summary *summary, bool *stopped)
{
    char name[128], subject[1600];
    const char *folder = strstr(wrong->script, "wrong/");
    ls_text_put(subject, sizeof subject, "%s %.*spytorch_train.py", place->python,
                (int)(folder - wrong->script), wrong->script);
    ls_text_put(name, sizeof name, "clean-foreign-%s", wrong->case_id);
    ls_detect_clean clean = {.name = name, .subject = subject};
    if (!ls_detect_kept_clean(place->directory, &clean)) {
        ls_detect_outcome outcome;
        LS_TRY(run(place, name, subject, wrong->case_id, &outcome));
        judge_right(&outcome, &clean);
        *stopped = outcome.stopped;
        ls_detect_outcome_free(&outcome);
        if (*stopped) {
            return LS_OK;
        }
        LS_TRY(ls_detect_keep_clean(place->directory, &clean));
    }
    bool good = clean.where[0] == '\0';
    if (good) {
        drop_folder(place, name);
    }
    printf("clean  pytorch_train.py %-34s %s%s\n", wrong->case_id,
           !good           ? "ALARM: "
           : clean.refused ? "not offered by this PyTorch"
                           : "pass",
           clean.alarm);
    fflush(stdout);
    summary->right += !clean.refused;
    summary->right_failed += !good;
    return LS_OK;
}
