#include "detect_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/text.h"
#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"

extern char **environ;

static const double grace_s = 10; /* the run ends its own jobs within 5 s after TERM */

/* This process's environment without LS_PLANT, plus `plant` and `engines` ("NAME=value") unless
 * NULL. Only the list is malloc'ed, not its strings. */
static char **environment_with(char *plant, char *engines)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL) {
        count++;
    }
    char **out = calloc(count + 3, sizeof *out);
    LS_ASSERT(out != NULL);
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
    return out;
}

static ls_status take_verdict(void *context, const cJSON *line, int line_number)
{
    (void)line_number;
    ls_detect_outcome *out = context;
    out->verdict = ls_list_grow(out->verdict, out->count, &out->capacity, sizeof *out->verdict);
    ls_detect_verdict *v = &out->verdict[out->count++];
    memset(v, 0, sizeof *v);
    ls_text_put(v->case_id, sizeof v->case_id, "%s", ls_json_string(line, "case", ""));
    ls_text_put(v->code, sizeof v->code, "%s", ls_json_string(line, "verdict", ""));
    ls_text_put(v->evidence, sizeof v->evidence, "%s", ls_json_string(line, "evidence", ""));
    ls_text_put(v->cause, sizeof v->cause, "%s", ls_json_string(line, "cause", ""));
    return LS_OK;
}

static void arguments_of(const ls_detect_child *child, char *seed, char **argv)
{
    int count = 0;
    argv[count++] = (char *)(uintptr_t)child->program;
    argv[count++] = "conform";
    argv[count++] = child->engines != NULL ? "--device=cuda" : "--device=cpu";
    argv[count++] = "--seed";
    argv[count++] = seed;
    argv[count++] = "--out";
    argv[count++] = (char *)(uintptr_t)child->directory;
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
    char plant[96], engines[1400], seed[32], log[700], verdicts[700];
    char *argv[20] = {NULL};
    memset(out, 0, sizeof *out);
    ls_text_put(plant, sizeof plant, "LS_PLANT=%s", child->wish == NULL ? "" : child->wish);
    ls_text_put(seed, sizeof seed, "%llu", (unsigned long long)child->seed);
    ls_text_put(log, sizeof log, "%s.log", child->directory);
    ls_text_put(verdicts, sizeof verdicts, "%s/verdicts.jsonl", child->directory);
    (void)unlink(verdicts); /* of an earlier run */
    arguments_of(child, seed, argv);
    ls_text_put(engines, sizeof engines, "LS_LIB_DIR=%s",
                child->engines == NULL ? "" : child->engines);
    char **environment = environment_with(child->wish == NULL ? NULL : plant,
                                          child->engines == NULL ? NULL : engines);
    ls_proc_spec spec = {.argv = argv, .environment = environment, .log_path = log};
    ls_proc process;
    memset(&process, 0, sizeof process);
    int64_t begun_ns = ls_clock_ns();
    ls_status status = ls_proc_start(&spec, &process);
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
    return access(verdicts, R_OK) == 0 ? ls_json_each_line(verdicts, take_verdict, out) : LS_OK;
}

void ls_detect_outcome_free(ls_detect_outcome *outcome)
{
    free(outcome->verdict);
    memset(outcome, 0, sizeof *outcome);
}

const ls_detect_verdict *ls_detect_catch(const ls_detect_outcome *outcome)
{
    static const ls_verdict_code against[] = {LS_FAIL, LS_CRASH, LS_TIMEOUT, LS_WEAK};
    for (int i = 0; i < outcome->count; i++) {
        for (size_t k = 0; k < sizeof against / sizeof *against; k++) {
            if (strcmp(outcome->verdict[i].code, ls_verdict_name(against[k])) == 0) {
                return &outcome->verdict[i];
            }
        }
    }
    return NULL;
}
