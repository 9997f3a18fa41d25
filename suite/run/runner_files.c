/* The folder of a run: how it is made, resumed and finished. */
#include "runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/path.h"
#include "harness/machine/machine.h"
#include "harness/report/report.h"
#include "kernels/core/text.h"
#include "kernels/core/log.h"
#include "reference/options/options.h"
#include "run.h"
#include "headline.h"

static void add_libraries(const ls_run *run, cJSON *machine)
{
    for (int i = 0; i < run->jobs.count; i++) {
        const ls_record *record = &run->record[i];
        if (record->rank == NULL || record->world < 1 || record->rank[0].start == NULL) {
            continue;
        }
        static const char *const names[] = {"device",      "libraries", "engine",
                                            "engine_text", "transport", "version"};
        cJSON *out = cJSON_AddObjectToObject(machine, "loaded");
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            const char *text = ls_json_string(record->rank[0].start, names[n], NULL);
            if (text != NULL) {
                cJSON_AddStringToObject(out, names[n], text);
            }
        }
        const cJSON *versions = cJSON_GetObjectItemCaseSensitive(record->rank[0].start, "versions");
        if (versions != NULL) {
            cJSON_AddItemToObject(out, "versions", cJSON_Duplicate(versions, true));
        }
        if (record->world > 1) {
            return; /* has everything: an engine too */
        }
        if (i + 1 < run->jobs.count) {
            cJSON_DeleteItemFromObjectCaseSensitive(machine, "loaded");
        }
    }
}

static void add_created(const ls_run *run, cJSON *root)
{
    char path[700], text[32];
    ls_text_put(path, sizeof path, "%s/run.json", run->directory);
    cJSON *old = NULL;
    if (access(path, R_OK) == 0 && ls_json_read_file(path, &old) == LS_OK) {
        cJSON_AddStringToObject(root, "created", ls_json_string(old, "created", ""));
        cJSON_Delete(old);
        return;
    }
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cJSON_AddStringToObject(root, "created", text);
}

/* The packages that set-up installed in this tree: a line each in a file next to the program. */
static cJSON *installed_packages(void)
{
    char path[1024];
    cJSON *list = cJSON_CreateArray();
    ls_path_program(path, sizeof path);
    ls_text_add(path, sizeof path, "/installed");
    char *text = ls_text_read(path), *rest = NULL;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        cJSON_AddItemToArray(list, cJSON_CreateString(line));
    }
    free(text);
    return list;
}

static ls_status write_run(const ls_run *run, const ls_headline *headline)
{
    cJSON *root = cJSON_CreateObject();
    LS_ASSERT(root != NULL);
    cJSON_AddNumberToObject(root, "schema", 1);
    cJSON_AddStringToObject(root, "title", run->title);
    cJSON_AddStringToObject(root, "label", run->label);
    cJSON_AddStringToObject(root, "command", run->command);
    add_created(run, root);
    cJSON_AddStringToObject(root, "version", LS_VERSION);
    cJSON_AddStringToObject(root, "where", run->where);
    cJSON_AddItemToObject(root, "options",
                          run->options == NULL ? cJSON_CreateObject()
                                               : cJSON_Duplicate(run->options, true));
    const cJSON *member;
    cJSON_ArrayForEach(member, run->measured)
    {
        cJSON_AddItemToObject(root, member->string, cJSON_Duplicate(member, true));
    }
    cJSON *machine = ls_machine_fingerprint();
    add_libraries(run, machine);
    cJSON_AddItemToObject(root, "machine", machine);
    if (run->gpus != NULL) {
        cJSON_AddItemToObject(root, "gpus", cJSON_Duplicate(run->gpus, true));
        cJSON_AddItemToObject(root, "findings", ls_findings_json(&run->findings));
    }
    cJSON_AddStringToObject(root, "commit", run->commit);
    cJSON_AddBoolToObject(root, "dirty", run->dirty);
    cJSON_AddItemToObject(root, "installed", installed_packages());
    if (headline != NULL) {
        cJSON_AddItemToObject(root, "headline", ls_headline_json(headline));
    }
    char path[700];
    ls_text_put(path, sizeof path, "%s/run.json", run->directory);
    ls_status status = ls_json_write_file(path, root);
    cJSON_Delete(root);
    return status;
}

/* results/latest, a link to results/runs/<run>. Failing to make it is no error. */
static void link_latest(const ls_run *run)
{
    char link[700], target[700];
    ls_text_put(link, sizeof link, "%s", run->directory);
    char *name = strrchr(link, '/');
    *name = '\0';
    char *folder = strrchr(link, '/');
    if (folder == NULL || strcmp(folder, "/runs") != 0) {
        return; /* OUT= is another folder */
    }
    ls_text_put(target, sizeof target, "runs/%s", name + 1);
    ls_text_put(folder, sizeof link - (size_t)(folder - link), "/latest");
    (void)unlink(link);
    if (symlink(target, link) != 0) {
        ls_log_warn("cannot link %s: %s", link, strerror(errno));
    }
}

ls_status ls_runner_open(ls_run *run)
{
    char folder[700];
    ls_text_put(folder, sizeof folder, "%s/jobs", run->directory);
    LS_TRY(ls_path_make_folder(folder));
    char program[1024];
    ls_path_program(program, sizeof program);
    ls_machine_commit(program, run->commit, (int)sizeof run->commit, &run->dirty);
    run->swapped_pages = ls_machine_swapped_pages();
    ls_load_read(&run->load);
    LS_TRY(ls_runner_look_back(run));
    LS_TRY(write_run(run, NULL));
    link_latest(run);
    return LS_OK;
}

/* Facts that judging adds to job.json: the report prints a figure as a result only if its checks
 * passed. */
static ls_status mark_checked(const ls_run *run, int index)
{
    char folder[700], path[800];
    ls_text_put(folder, sizeof folder, "%s/jobs/%s", run->directory, run->jobs.id[index]);
    ls_text_put(path, sizeof path, "%s/job.json", folder);
    if (!ls_spec_has_rate(&run->jobs.spec[index]) || access(path, R_OK) != 0) {
        return LS_OK;
    }
    ls_record record;
    LS_TRY(ls_record_read(folder, LS_RECORD_LENIENT, &record));
    cJSON *facts = cJSON_GetObjectItemCaseSensitive(record.job, "facts");
    static const char *const added[] = {"checked", "rung", "audited"};
    for (size_t i = 0; i < sizeof added / sizeof *added; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(facts, added[i]);
    }
    bool checked = ls_headline_job_checked(run, index);
    cJSON_AddBoolToObject(facts, "checked", checked);
    if (checked && ls_headline_job_gradient_check(run, index) > 0) {
        cJSON_AddNumberToObject(facts, "rung", ls_headline_job_gradient_check(run, index));
    }
    if (checked && ls_headline_job_audited(&record)) {
        cJSON_AddBoolToObject(facts, "audited", true);
    }
    ls_status status = record.job == NULL ? LS_ERR_INFRA : ls_json_write_file(path, record.job);
    ls_record_free(&record);
    return status;
}

static ls_status mark_all_checked(const ls_run *run)
{
    for (int i = 0; i < run->jobs.count; i++) {
        LS_TRY(mark_checked(run, i));
    }
    return LS_OK;
}

static int stop_here(const ls_run *run)
{
    int left = 0;
    for (int i = 0; i < run->jobs.count; i++) {
        left += !run->done[i];
    }
    printf("stopped with %d of %d jobs left; to resume: ", left, run->jobs.count);
    if (run->bench_run) {
        printf("make bench RESUME=%s\n", run->directory);
    } else {
        printf("%s\n", run->command);
    }
    return 128 + 2; /* as after SIGINT */
}

int ls_runner_finish(ls_run *run)
{
    if (ls_verdicts_write(run) != LS_OK) {
        return LS_ERR_INFRA;
    }
    if (run->stopped) {
        return stop_here(run);
    }
    ls_headline headline;
    if (mark_all_checked(run) != LS_OK || ls_report_tables(run->directory) != LS_OK) {
        return LS_ERR_INFRA;
    }
    ls_gpus_end(run);
    ls_gpus_compare_bits(run);
    ls_headline_decide(run, &headline);
    if (write_run(run, &headline) != LS_OK) {
        return LS_ERR_INFRA;
    }
    char plots[1024], text[700];
    if (!ls_path_find("plots", plots, sizeof plots)) {
        plots[0] = '\0';
    }
    if (ls_report_write(run->directory, plots) != LS_OK ||
        ls_report_terminal(run->directory, stdout) != LS_OK) {
        return LS_ERR_INFRA;
    }
    char here[512];
    size_t length = getcwd(here, sizeof here) == NULL ? 0 : strlen(here);
    bool inside =
        length > 0 && strncmp(run->directory, here, length) == 0 && run->directory[length] == '/';
    ls_text_put(text, sizeof text, "%s/report.html", run->directory + (inside ? length + 1 : 0));
    printf("\nreport: %s\n", text);
    if (!run->bench_run) {
        printf("%d passed, %d failed\n", headline.passed, headline.failed);
    }
    if (headline.only_infrastructure) {
        return LS_ERR_INFRA;
    }
    return headline.correct == LS_CORRECT_YES && !headline.speed.below ? 0 : 1;
}
