#include "headline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "command_line.h"

static bool is_timed(const ls_case *row)
{
    for (int j = 0; j < row->job_count; j++) {
        if (row->job[j].role != LS_ROLE_EVIDENCE) {
            return true;
        }
    }
    return false;
}

void ls_verdicts_repeat(const ls_run *run, int index, char *text, size_t bytes)
{
    const ls_case *row = &run->cases.row[index];
    if (is_timed(row)) { /* a case of this run's own matrix */
        ls_text_put(text, bytes, "%s", run->command);
        return; /* the command is this commit's already */
    }
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "--case");
    ls_words_add(&words, "%s", row->id);
    ls_words_add(&words, "--seed");
    ls_words_add(&words, "%llu", (unsigned long long)run->seed);
    ls_words_add(&words, "--device");
    ls_words_add(&words, "%s", run->site.device);
    if (run->site.subject != NULL) {
        ls_words_add(&words, "--subject");
        ls_words_add(&words, "%s", run->site.subject);
    }
    char *line = ls_command_line("conform", &words);
    ls_text_put(text, bytes, "%s", line);
    free(line);
    ls_words_free(&words);
    if (run->commit[0] != '\0') {
        ls_text_add(text, bytes, "    # %.7s", run->commit);
    }
}

static cJSON *to_json(const ls_run *run, int index)
{
    const ls_case *row = &run->cases.row[index];
    const ls_verdict *v = &run->verdict[index];
    cJSON *out = cJSON_CreateObject();
    LS_MEMORY(out != NULL);
    char family[LS_CASE_ID_BYTES], repeat[1200];
    ls_text_put(family, sizeof family, "%.*s", (int)strcspn(row->id, "."), row->id);
    cJSON_AddNumberToObject(out, "schema", 1);
    cJSON_AddStringToObject(out, "case", row->id);
    cJSON_AddStringToObject(out, "family", family);
    cJSON_AddStringToObject(out, "kind", row->kind == LS_INSIDE ? "inside" : "protocol");
    cJSON_AddStringToObject(out, "requirement", row->requirement);
    cJSON_AddBoolToObject(out, "in_claim", ls_headline_in_claim(run, index));
    if (ls_headline_not_offered(run, index)) {
        cJSON_AddTrueToObject(out, "not_offered");
    }
    if (ls_headline_is_manners(run, row)) {
        cJSON_AddTrueToObject(out, "manners");
    }
    cJSON_AddStringToObject(out, "verdict", ls_verdict_name(v->code));
    if (run->judged[index]) {
        cJSON_AddNumberToObject(out, "compared", (double)v->compared);
    }
    cJSON_AddNumberToObject(out, "seconds", v->seconds);
    cJSON *jobs = cJSON_AddArrayToObject(out, "jobs");
    for (int j = 0; j < row->job_count; j++) {
        cJSON_AddItemToArray(jobs, cJSON_CreateString(run->jobs.id[run->case_job[index][j]]));
    }
    cJSON_AddStringToObject(out, "evidence", v->evidence);
    if (v->measured) {
        ls_json_add_number(out, "value", v->value);
        ls_json_add_number(out, "limit", v->limit);
        cJSON_AddStringToObject(out, "unit", v->unit);
        cJSON_AddStringToObject(out, "limit_from", v->limit_from);
    }
    if (v->code != LS_PASS) {
        if (v->cause[0] != '\0') {
            cJSON_AddStringToObject(out, "cause", v->cause);
        }
        ls_verdicts_repeat(run, index, repeat, sizeof repeat);
        cJSON_AddStringToObject(out, "repeat", repeat);
    }
    const struct ls_select_line *waiver = ls_select_find(&run->waivers, row->id);
    if (v->code == LS_WAIVED && waiver != NULL) {
        cJSON_AddStringToObject(out, "waiver", waiver->reason);
    }
    return out;
}

static ls_status append(const ls_run *run, int index, int descriptor, const char *path)
{
    cJSON *line = to_json(run, index);
    ls_status status = ls_json_append_line(descriptor, path, line);
    cJSON_Delete(line);
    return status;
}

ls_status ls_verdicts_append(const ls_run *run, int index)
{
    LS_TEXT(path, 700, "%s/verdicts.jsonl", run->directory);
    int descriptor = ls_file_open_to_write(path, O_APPEND);
    if (descriptor < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", path, strerror(errno));
    }
    ls_status status = append(run, index, descriptor, path);
    close(descriptor);
    return status;
}

ls_status ls_verdicts_write(const ls_run *run)
{
    LS_TEXT(path, 700, "%s/verdicts.jsonl", run->directory);
    ls_file_draft draft;
    int error = ls_file_draft_open(path, &draft);
    if (error != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", path, strerror(error));
    }
    ls_status status = LS_OK;
    for (int c = 0; c < run->cases.count && status == LS_OK; c++) {
        status = append(run, c, draft.descriptor, path);
    }
    return ls_file_draft_close(&draft, status, false);
}

/* What its jobs dumped went when it had passed: they run again. */
static void remove_jobs(const ls_run *run, int index)
{
    for (int j = 0; j < run->cases.row[index].job_count; j++) {
        LS_TEXT(path, 700, "%s/jobs/%s/job.json", run->directory,
                run->jobs.id[run->case_job[index][j]]);
        (void)unlink(path);
    }
}

static ls_status take_over(void *context, const cJSON *value, int line_number)
{
    (void)line_number;
    ls_run *run = context;
    const char *id = ls_json_string(value, "case", "");
    ls_verdict_code code = ls_verdict_code_of(ls_json_string(value, "verdict", ""));
    int64_t compared = ls_json_integer(value, "compared", 0);
    for (int c = 0; c < run->cases.count; c++) {
        /* only what passed: a failure is tried again, and its jobs may have to run for that */
        if (strcmp(run->cases.row[c].id, id) != 0 || !ls_verdict_good(code)) {
            continue;
        }
        if (code == LS_PASS && compared <= 0) { /* as of an older version */
            remove_jobs(run, c);
            continue;
        }
        ls_verdict *v = &run->verdict[c];
        memset(v, 0, sizeof *v);
        v->code = code;
        v->compared = compared;
        v->seconds = ls_json_number(value, "seconds", 0);
        ls_text_put(v->evidence, sizeof v->evidence, "%s", ls_json_string(value, "evidence", ""));
        ls_verdict_cause(v, "%s", ls_json_string(value, "cause", ""));
        v->measured = ls_json_get(value, "limit") != NULL;
        v->value = ls_json_number(value, "value", 0);
        v->limit = ls_json_number(value, "limit", 0);
        ls_text_put(v->unit, sizeof v->unit, "%s", ls_json_string(value, "unit", ""));
        ls_text_put(v->limit_from, sizeof v->limit_from, "%s",
                    ls_json_string(value, "limit_from", ""));
        run->judged[c] = true;
    }
    return LS_OK;
}

ls_status ls_verdicts_read_back(ls_run *run)
{
    LS_TEXT(path, 700, "%s/verdicts.jsonl", run->directory);
    return access(path, R_OK) == 0 ? ls_json_each_line(path, take_over, run) : LS_OK;
}

void ls_verdicts_print(const ls_run *run, int index, FILE *to)
{
    const ls_case *row = &run->cases.row[index];
    const ls_verdict *v = &run->verdict[index];
    if (v->code == LS_PASS) {
        return;
    }
    const char *how = v->code == LS_WAIVED                  ? "ok"
                      : ls_headline_not_offered(run, index) ? "not offered"
                                                            : "not ok";
    fprintf(to, "%s %d - %s # %s %.2fs %s\n", how, index + 1, row->id, ls_verdict_name(v->code),
            v->seconds, v->evidence);
    fflush(to);
}
