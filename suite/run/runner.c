#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "headline.h"
#include "run.h"
#include "harness/report/report.h"
#include "harness/run/manifest.h"
#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/usage.h"
#include "reference/options/options.h"
#include "suite/judge/diagnose.h"
#include "suite/judge/judges.h"
#include "suite/observe/observe.h"
#include "suite/run/command_line.h"

void ls_runner_plan(ls_run *run)
{
    for (int c = 0; c < run->cases.count; c++) { /* evidence is cheap and finds faults early */
        const ls_case *row = &run->cases.row[c];
        for (int j = 0; j < row->job_count; j++) {
            /* cases that fit a budget are in their order, each with all its jobs */
            if (row->job[j].role == LS_ROLE_EVIDENCE || run->budget_s > 0) {
                ls_matrix_add(&run->jobs, &row->job[j]);
            }
        }
    }
    for (int i = 0; i < run->bench.count; i++) {
        ls_matrix_add(&run->jobs, &run->bench.spec[i]);
    }
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *row = &run->cases.row[c];
        for (int j = 0; j < row->job_count; j++) {
            ls_matrix_add(&run->jobs, &row->job[j]);
        }
    }
    size_t cases = (size_t)run->cases.count + 1, jobs = (size_t)run->jobs.count + 1;
    run->case_job = ls_list_make(cases, sizeof *run->case_job);
    run->verdict = ls_list_make(cases, sizeof *run->verdict);
    run->judged = ls_list_make(cases, sizeof *run->judged);
    run->done = ls_list_make(jobs, sizeof *run->done);
    run->kept = ls_list_make(jobs, sizeof *run->kept);
    run->record = ls_list_make(jobs, sizeof *run->record);
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *row = &run->cases.row[c];
        for (int j = 0; j < row->job_count; j++) {
            run->case_job[c][j] = ls_matrix_add(&run->jobs, &row->job[j]);
        }
    }
}

void ls_runner_print_size(const ls_run *run, FILE *to)
{
    int left = 0;
    double seconds = 0;
    for (int i = 0; i < run->jobs.count; i++) {
        if (!run->kept[i]) {
            left++;
            seconds += ls_matrix_estimate_at(&run->jobs.spec[i], &run->site);
        }
    }
    for (int c = 0; c < run->cases.count; c++) {
        seconds += run->judged[c] ? 0 : ls_budget_judging_s(&run->cases.row[c]);
    }
    fprintf(to, "%d cases, ", run->cases.count);
    if (left < run->jobs.count) {
        fprintf(to, "%d of %d jobs left (%d are done)", left, run->jobs.count,
                run->jobs.count - left);
    } else {
        fprintf(to, "%d jobs", left);
    }
    bool minutes = seconds >= 90;
    fprintf(to, ", about %.0f %s", minutes ? seconds / 60 : seconds, minutes ? "min" : "s");
    if (run->site.start_s > 0) {
        fprintf(to, " (a rank starts in %.2f s)", run->site.start_s);
    }
}

void ls_runner_print_plan(const ls_run *run, FILE *to)
{
    int rows = 0, compared = 0, judging = 0;
    for (int i = 0; i < run->jobs.count; i++) {
        bool row = ls_matrix_is_row(&run->jobs.spec[i]);
        bool baseline = ls_spec_is_baseline(&run->jobs.spec[i]);
        rows += !run->kept[i] && row;
        compared += !run->kept[i] && baseline;
        judging += !run->kept[i] && !row && !baseline;
    }
    fprintf(to, "%s\n", run->where);
    ls_runner_print_size(run, to);
    fprintf(to, "\n");
    if (rows > 0) {
        fprintf(to, "%d rows of the matrix, %d jobs they are compared with, %d that judge them\n",
                rows, compared, judging);
    }
    fprintf(to, "\n");
    fprintf(to,
            "  # role           network    px batch what                            steps   s\n");
    for (int i = 0; i < run->jobs.count; i++) {
        if (run->kept[i]) {
            continue;
        }
        const ls_spec *spec = &run->jobs.spec[i];
        char label[64];
        ls_matrix_label(spec, label);
        fprintf(to, "%3d %-14s %-9s %3d %5d %-31.31s %5d %3.0f\n", i + 1,
                ls_spec_role_name(spec->role), spec->arch, spec->image_size, spec->batch_size,
                label, spec->warmup_steps + spec->steps, ls_matrix_estimate_at(spec, &run->site));
    }
}

/* ---- judging --------------------------------------------------------------------------------- */

/* Whether the last step that a rank reports was taken, or changed something although it says that
 * it was skipped: then no row of overflows ended the run. */
static bool ends_taken(const ls_record *job)
{
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (rank->step_count == 0) {
            continue;
        }
        const ls_record_step *last = &rank->step[rank->step_count - 1];
        ls_verdict seen = {.code = LS_PASS};
        if (rank->step_count > 1) {
            ls_judge_training_skip(last - 1, last, k, &seen);
        }
        if (!last->skipped || seen.code == LS_FAIL) {
            return true;
        }
    }
    return false;
}

static void judge_jobs(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    for (int j = 0; j < row->job_count && !row->judges_outcome; j++) {
        if (ls_verdict_of_outcome(&job[j], out) || ls_protocol_breaks(&job[j], &row->job[j], out)) {
            if (job[j].code == LS_ERR_NON_FINITE && ends_taken(&job[j]) &&
                strcmp(row->job[j].loss_scale, "dynamic") == 0 && out->cause[0] == '\0') {
                ls_verdict_cause(out,
                                 "a step with inf or NaN in its gradients was taken: the check "
                                 "missed it, or each rank decides by itself before the reduction");
            }
            if (out->code == LS_CRASH && out->cause[0] == '\0') {
                ls_diagnose_endings_waits(&job[j], out->cause, (int)sizeof out->cause);
            }
            return;
        }
    }
    if (row->job_count == 0) { /* calls the library itself */
        row->judge(row, NULL, out);
        return;
    }
    if (job[0].state == LS_RECORD_TIMED_OUT || job[0].state == LS_RECORD_NOT_STARTED ||
        job[0].state == LS_RECORD_STOPPED ||
        (job[0].code == LS_ERR_UNSUPPORTED && !row->judges_refusal)) {
        (void)ls_verdict_of_outcome(&job[0], out);
        return;
    }
    for (int j = 0; j < row->job_count; j++) {
        if (job[j].world < 1) {
            ls_verdict_fail(out, "the job has no ranks' records");
            return;
        }
    }
    row->judge(row, job, out);
    for (int j = 0; j < row->job_count && ls_verdict_good(out->code); j++) {
        ls_judge_training_steps(&job[j], out);
    }
}

/* By rules that know neither the case nor, but for the one that runs it again, the network: FAIL
 * where one of them fails in one of the case's jobs. The evidence has the ids of all that do. */
static void judge_observed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char ids[400] = "";
    int read = 0, passed = 0, failed = 0;
    for (int j = 0; j < row->job_count; j++) {
        ls_observe_trace *trace = NULL;
        ls_observe_result result;
        if (ls_observe_read(job[j].directory, &trace) != LS_OK) {
            continue;
        }
        for (int other = 0; other < row->job_count; other++) {
            (void)(other != j && ls_observe_continue(trace, job[other].directory));
        }
        ls_observe_judge_all(trace, &result);
        read++;
        for (int i = 0; i < result.count; i++) {
            const ls_observe_finding *found = &result.finding[i];
            passed += found->verdict.code == LS_PASS;
            if (found->verdict.code != LS_FAIL) {
                continue;
            }
            if (strstr(ids, found->rule->id) == NULL) {
                ls_text_add(ids, sizeof ids, "%s%s", failed > 0 ? " " : "", found->rule->id);
            }
            if (failed++ == 0) {
                ls_verdict_cause(out, "%s: %s", found->rule->id,
                                 found->verdict.cause[0] != '\0' ? found->verdict.cause
                                                                 : found->verdict.evidence);
            }
        }
        ls_observe_result_free(&result);
        ls_observe_free(trace);
    }
    if (failed > 0) {
        ls_verdict_fail(out, "%s", ids);
    } else if (read < row->job_count || read == 0) {
        ls_verdict_set(out, LS_SKIP, "%d of %d jobs left events", read, row->job_count);
    }
    ls_verdict_pass(out, passed, "no rule of observe fails, %d pass", passed);
}

void ls_runner_judge(ls_run *run, int index)
{
    const ls_case *row = &run->cases.row[index];
    ls_verdict *out = &run->verdict[index];
    ls_record job[LS_CASE_JOBS_MAX];
    for (int j = 0; j < row->job_count; j++) {
        job[j] = run->record[run->case_job[index][j]];
    }
    memset(out, 0, sizeof *out);
    int64_t begin_ns = ls_clock_ns();
    if (run->by_observe) {
        judge_observed(row, job, out);
    } else {
        judge_jobs(row, job, out);
    }
    ls_verdict_close(out);
    ls_verdict_check_lack(job, row->job_count, row->takes_disk, out);
    out->seconds = ls_clock_ms_between(begin_ns, ls_clock_ns()) * 1e-3;
    if (!ls_verdict_good(out->code) && ls_select_find(&run->waivers, row->id) != NULL) {
        out->code = LS_WAIVED;
    }
    run->judged[index] = true;
}

static bool jobs_done(const ls_run *run, int index)
{
    for (int j = 0; j < run->cases.row[index].job_count; j++) {
        if (!run->done[run->case_job[index][j]]) {
            return false;
        }
    }
    return true;
}

static bool someone_needs(const ls_run *run, int job)
{
    for (int c = 0; c < run->cases.count; c++) {
        for (int j = 0; j < run->cases.row[c].job_count && !run->judged[c]; j++) {
            if (run->case_job[c][j] == job) {
                return true;
            }
        }
    }
    return false;
}

/* Removes the dumps (100 MB and more for large networks) of a job when all cases that read them
 * have passed. Those of a failure are kept for inspection. */
static bool keeps_dumps(const ls_run *run, int job)
{
    if (run->keeps_dumps) {
        return true;
    }
    for (int c = 0; c < run->cases.count; c++) {
        for (int j = 0; j < run->cases.row[c].job_count; j++) {
            bool settled = run->judged[c] && ls_verdict_good(run->verdict[c].code);
            if (!settled && run->case_job[c][j] == job &&
                run->cases.row[c].counts != LS_COUNTS_SPEED) {
                return true;
            }
        }
    }
    return false;
}

/* What `lockstep judge` needs to know of a job whose dumps it does not find: job.json says so
 * before they go. */
static ls_status note_removed(const char *job)
{
    cJSON *root = NULL;
    LS_TEXT(path, 800, "%s/job.json", job);
    LS_TRY(ls_json_read_file(path, &root));
    cJSON_DeleteItemFromObjectCaseSensitive(root, "dumps_removed");
    cJSON_AddStringToObject(root, "dumps_removed", "all cases that read them had passed");
    return ls_json_write_and_free(path, root);
}

static void drop_dumps(const ls_run *run)
{
    for (int i = 0; i < run->jobs.count; i++) {
        ls_role role = run->jobs.spec[i].role;
        bool large = role == LS_ROLE_THROUGHPUT || role == LS_ROLE_REFERENCE;
        if ((!large && run->bench_run) || !run->done[i] || keeps_dumps(run, i)) {
            continue;
        }
        LS_TEXT(job, 700, "%s/jobs/%s", run->directory, run->jobs.id[i]);
        LS_TEXT(folder, 800, "%s/dump", job);
        if (access(folder, F_OK) == 0 && note_removed(job) == LS_OK) {
            ls_path_remove_tree(folder);
        }
    }
}

static ls_status judge_what_is_ready(ls_run *run)
{
    for (int c = 0; c < run->cases.count && !run->stopped; c++) {
        run->stopped = ls_proc_caught_signal() != 0;
        if (run->stopped || run->judged[c] || !jobs_done(run, c)) {
            continue;
        }
        ls_progress_note("judging %s", run->cases.row[c].id);
        ls_runner_judge(run, c);
        LS_TRY(ls_verdicts_append(run, c));
        ls_progress_clear();
        ls_verdicts_print(run, c, stdout);
    }
    drop_dumps(run);
    return LS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct tick {
    ls_run *run;
    int index;
} tick;

static void on_tick(void *context)
{
    const tick *t = context;
    ls_progress_job(t->run, t->index);
}

/* Calls the preparations of the job's cases, each once. */
static ls_status prepare(const ls_run *run, int index)
{
    ls_case_prepare *last = NULL;
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *row = &run->cases.row[c];
        for (int j = 0; j < row->job_count && row->prepare != last; j++) {
            if (run->case_job[c][j] == index && row->prepare != NULL) {
                last = row->prepare;
                LS_TRY(row->prepare(row, &run->jobs.spec[index], run->directory));
            }
        }
    }
    return LS_OK;
}

/* Whether the subject has refused an option of the job before. Cases about how a job ends see it
 * end. */
static bool is_refused(ls_run *run, int index, const ls_job *job)
{
    for (int c = 0; c < run->cases.count; c++) {
        for (int j = 0; j < run->cases.row[c].job_count && run->cases.row[c].judges_outcome; j++) {
            if (run->case_job[c][j] == index) {
                return false;
            }
        }
    }
    return ls_refusals_foretell(&run->refusals, job, &run->record[index]);
}

/* Where the first rank's start event says that its command can be a fork server: on a CPU, since a
 * device's context does not outlive a fork. */
static void start_fork_server(ls_run *run, const ls_record *job)
{
    bool offered = job->world > 0 && job->rank[0].start != NULL &&
                   ls_json_bool(job->rank[0].start, "fork_server", false);
    if (offered && !run->forks && strcmp(run->site.device, "cpu") == 0 && run->site.hosts == NULL) {
        run->forks = true;
        if (ls_fork_server_open(run->site.subject, &run->fork_server) == LS_OK) {
            run->site.fork_server = &run->fork_server;
        }
    }
}

ls_status ls_runner_run_job(ls_run *run, int index)
{
    ls_spec *spec = &run->jobs.spec[index];
    ls_job job;
    LS_TRY(ls_matrix_job(spec, &run->site, &job));
    if (is_refused(run, index, &job)) {
        run->done[index] = true;
        ls_job_free(&job);
        return LS_OK;
    }
    ls_status status = prepare(run, index);
    ls_outcome outcome = {0};
    bool resumed = false;
    tick context = {run, index};
    run->job_ns = ls_clock_ns();
    ls_progress_job(run, index);
    LS_THEN(status, ls_job_run(&job, on_tick, &context, &outcome, &resumed));
    bool stopped = outcome.state == LS_OUTCOME_STOPPED;
    ls_outcome_free(&outcome);
    if (status == LS_OK && !stopped) {
        status = ls_record_read(job.directory, LS_RECORD_STRICT, &run->record[index]);
        run->done[index] = status == LS_OK;
        run->resumed_jobs += resumed;
        if (run->site.subject != NULL && status == LS_OK) {
            ls_refusals_learn(&run->refusals, &job, &run->record[index]);
            start_fork_server(run, &run->record[index]);
        }
    }
    run->stopped = run->stopped || stopped;
    ls_job_free(&job);
    return status;
}

static bool failed_early(const ls_run *run)
{
    for (int c = 0; c < run->cases.count && run->fail_early; c++) {
        if (run->judged[c] && !ls_verdict_good(run->verdict[c].code) &&
            ls_select_find(&run->claim, run->cases.row[c].id) != NULL) {
            return true;
        }
    }
    return false;
}

/* Its cases have been judged; the report reads the record. */
static bool is_judged(const ls_run *run, int index)
{
    LS_TEXT(path, 700, "%s/jobs/%s/job.json", run->directory, run->jobs.id[index]);
    return !someone_needs(run, index) && access(path, R_OK) == 0;
}

static ls_status look_back(ls_run *run)
{
    LS_TRY(ls_verdicts_read_back(run));
    for (int i = 0; i < run->jobs.count; i++) {
        run->kept[i] = is_judged(run, i);
        if (!run->kept[i]) {
            ls_job job;
            LS_TRY(ls_matrix_job(&run->jobs.spec[i], &run->site, &job));
            run->kept[i] = ls_job_is_done(&job);
            ls_job_free(&job);
        }
    }
    return LS_OK;
}

ls_status ls_runner_look_back(ls_run *run)
{
    LS_TEXT(path, 700, "%s/run.json", run->directory);
    enum {
        READ = LS_MANIFEST_VERDICTS | LS_MANIFEST_RECORDS | LS_MANIFEST_DUMPS | LS_MANIFEST_REST
    };
    LS_TRY(access(path, F_OK) == 0 ? ls_manifest_check(run->directory, READ) : LS_OK);
    return look_back(run);
}

ls_status ls_runner_run(ls_run *run)
{
    run->started_ns = ls_clock_ns();
    LS_TRY(judge_what_is_ready(run)); /* cases without jobs */
    bool cut = false;
    for (int i = 0; i < run->jobs.count && !run->stopped; i++) {
        if (is_judged(run, i)) {
            run->done[i] = true;
            run->resumed_jobs++;
            continue;
        }
        if (!ls_budget_allows(run, i)) {
            cut = true;
            continue;
        }
        LS_TRY(ls_start_check(run, &run->record[i], ls_runner_run_job(run, i)));
        if (run->unstarted[0] != '\0') {
            break;
        }
        if (!run->stopped) {
            ls_progress_done(run, i);
            LS_TRY(judge_what_is_ready(run));
        }
        if (failed_early(run)) {
            printf("FAIL_EARLY=1: %d jobs were not run\n", run->jobs.count - i - 1);
            break;
        }
    }
    ls_progress_clear();
    if (cut && !run->stopped) {
        ls_budget_cut(run);
    }
    int unstarted = 0;
    for (int c = 0; c < run->cases.count; c++) {
        if (!run->judged[c] && run->unstarted[0] != '\0') {
            ls_verdict_set(&run->verdict[c], LS_INFRA, "%s", run->unstarted);
            if (unstarted++ == 0) { /* all the others say the same */
                ls_verdicts_print(run, c, stdout);
            }
        } else if (!run->judged[c]) {
            ls_verdict_set(&run->verdict[c], LS_SKIP, "its jobs were not run");
        }
    }
    return LS_OK;
}

void ls_runner_free(ls_run *run)
{
    if (run->forks) {
        ls_fork_server_close(&run->fork_server);
    }
    for (int i = 0; i < run->jobs.count; i++) {
        if (run->record[i].rank != NULL) {
            ls_record_free(&run->record[i]);
        }
    }
    free(run->record);
    free(run->refusals.one);
    free(run->case_job);
    free(run->done);
    free(run->kept);
    free(run->judged);
    free(run->verdict);
    ls_matrix_free(&run->jobs);
    ls_matrix_free(&run->bench);
    ls_rows_free(&run->cases);
    ls_select_free(&run->claim);
    ls_select_free(&run->waivers);
    ls_select_free(&run->manners);
    cJSON_Delete(run->options);
    cJSON_Delete(run->measured);
    cJSON_Delete(run->gpus);
    free(run->command);
    free(run->go_on);
    ls_gpus_end(run);
    ls_findings_free(&run->findings);
}

/* ---- the folder of a run: how it is made, resumed and finished ------------------------------- */

/* What the jobs loaded: of the last job that loaded an engine, or of this run before it was
 * resumed. */
static void add_libraries(const ls_run *run, const cJSON *before, cJSON *machine)
{
    for (int i = 0; i < run->jobs.count; i++) {
        const ls_record *record = &run->record[i];
        if (record->rank == NULL || record->world < 1 || record->rank[0].start == NULL) {
            continue;
        }
        static const char *const names[] = {"device",      "half_units", "libraries", "engine",
                                            "engine_text", "transport",  "version"};
        cJSON *out = cJSON_AddObjectToObject(machine, "loaded");
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            const char *text = ls_json_string(record->rank[0].start, names[n], NULL);
            if (text != NULL) {
                cJSON_AddStringToObject(out, names[n], text);
            }
        }
        const cJSON *versions = ls_json_get(record->rank[0].start, "versions");
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
    const cJSON *old = ls_json_get(ls_json_get(before, "machine"), "loaded");
    if (old != NULL && !cJSON_HasObjectItem(machine, "loaded")) {
        cJSON_AddItemToObject(machine, "loaded", cJSON_Duplicate(old, true));
    }
}

static void add_created(const cJSON *before, cJSON *root)
{
    char text[32];
    if (before != NULL) {
        cJSON_AddStringToObject(root, "created", ls_json_string(before, "created", ""));
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
    cJSON *root = cJSON_CreateObject(), *before = NULL;
    LS_TEXT(path, 700, "%s/run.json", run->directory);
    if (access(path, R_OK) == 0) {
        (void)ls_json_read_file(path, &before);
    }
    LS_MEMORY(root != NULL);
    cJSON_AddNumberToObject(root, "schema", 1);
    cJSON_AddStringToObject(root, "title", run->title);
    cJSON_AddStringToObject(root, "label", run->label);
    cJSON_AddStringToObject(root, "command", run->command == NULL ? "" : run->command);
    add_created(before, root);
    cJSON_AddStringToObject(root, "version", LS_VERSION);
    cJSON_AddStringToObject(root, "where", run->where);
    cJSON_AddItemToObject(root, "options",
                          run->options == NULL ? cJSON_CreateObject()
                                               : cJSON_Duplicate(run->options, true));
    if (run->site.start_s > 0) {
        cJSON_AddNumberToObject(root, "start_s", run->site.start_s);
    }
    const cJSON *member;
    ls_json_each(member, run->measured) {
        cJSON_AddItemToObject(root, member->string, cJSON_Duplicate(member, true));
    }
    cJSON *machine = ls_machine_fingerprint();
    add_libraries(run, before, machine);
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
    cJSON_Delete(before);
    return ls_json_write_and_free(path, root);
}

void ls_runner_link_latest(const char *directory)
{
    LS_TEXT(link, 700, "%s", directory);
    char *name = strrchr(link, '/');
    *name = '\0';
    char *folder = strrchr(link, '/');
    if (folder == NULL || strcmp(folder, "/runs") != 0) {
        return; /* OUT= is another folder */
    }
    LS_TEXT(target, 700, "runs/%s", name + 1);
    ls_text_put(folder, sizeof link - (size_t)(folder - link), "/latest");
    (void)unlink(link);
    if (symlink(target, link) != 0) {
        ls_log_warn("cannot link %s: %s", link, strerror(errno));
    }
}

ls_status ls_runner_open(ls_run *run)
{
    LS_TEXT(folder, 700, "%s/jobs", run->directory);
    LS_TRY(ls_path_make_chosen(folder, LS_COMMAND_OUT_HINT));
    char tree[1024]; /* or where it was installed */
    if (!ls_path_find("suite", tree, sizeof tree)) {
        ls_path_program(tree, sizeof tree);
    }
    ls_machine_commit(tree, run->commit, (int)sizeof run->commit, &run->dirty);
    run->swapped_pages = ls_machine_swapped_pages();
    ls_machine_load(&run->load);
    LS_TRY(look_back(run));
    ls_manifest_remove(run->directory);
    LS_TRY(write_run(run, NULL));
    ls_runner_link_latest(run->directory);
    return LS_OK;
}

bool ls_runner_was_finished(const char *directory)
{
    LS_TEXT(path, 700, "%s/run.json", directory);
    cJSON *run = NULL;
    bool finished = ls_json_read_file(path, &run) == LS_OK && ls_json_get(run, "headline") != NULL;
    cJSON_Delete(run);
    return finished;
}

/* Facts that judging adds to job.json: the report prints a figure as a result only if its checks
 * passed. */
static ls_status mark_checked(const ls_run *run, int index)
{
    LS_TEXT(folder, 700, "%s/jobs/%s", run->directory, run->jobs.id[index]);
    LS_TEXT(path, 800, "%s/job.json", folder);
    if (!ls_spec_has_rate(&run->jobs.spec[index]) || access(path, R_OK) != 0) {
        return LS_OK;
    }
    ls_record record;
    LS_TRY(ls_record_read(folder, LS_RECORD_LENIENT, &record));
    cJSON *facts = ls_json_get(record.job, "facts");
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
    (void)ls_report_junit(run->directory); /* what was judged until here */
    printf("stopped with %d of %d jobs left; to go on: %s\n", left, run->jobs.count, run->go_on);
    return ls_proc_stopped_code();
}

ls_status ls_runner_report(const char *directory)
{
    char plots[1024], here[512];
    if (!ls_path_find("plots", plots, sizeof plots)) {
        plots[0] = '\0';
    }
    ls_runner_link_latest(directory);
    LS_TRY(ls_report_write(directory, plots));
    LS_TRY(ls_report_terminal(directory, stdout));
    size_t length = getcwd(here, sizeof here) == NULL ? 0 : strlen(here);
    bool inside = length > 0 && strncmp(directory, here, length) == 0 && directory[length] == '/';
    printf("\nreport: %s/report.html\n", directory + (inside ? length + 1 : 0));
    return LS_OK;
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
    if (mark_all_checked(run) != LS_OK ||
        write_run(run, NULL) != LS_OK || /* with what was loaded */
        ls_report_tables(run->directory) != LS_OK) {
        return LS_ERR_INFRA;
    }
    ls_gpus_end(run);
    ls_gpus_compare_bits(run);
    ls_headline_decide(run, &headline);
    if (write_run(run, &headline) != LS_OK) {
        return LS_ERR_INFRA;
    }
    if (ls_runner_report(run->directory) != LS_OK ||
        ls_manifest_write(run->directory, LS_MANIFEST_ALL) != LS_OK) {
        return LS_ERR_INFRA;
    }
    if (!run->bench_run) {
        printf("%d passed, %d failed\n", headline.passed, headline.failed);
    }
    return ls_headline_exit(&headline);
}
