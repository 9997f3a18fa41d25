/* The folder of an observed job: which of its folders holds the job, how the job ended, its
 * judgement. */
#include "observe_parts.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/plain.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/pass.h"

/* ---- which folder ---------------------------------------------------------------------------- */

/* A file rank<k>.jsonl, also where those of lower ranks are missing: they may be on other nodes. */
static bool is_events(const char *name, int *rank)
{
    int end = 0;
    return sscanf(name, "rank%9d.jsonl%n", rank, &end) == 1 && end > 0 && name[end] == '\0';
}

/* The first line of a file of events, without a message where it is none: judging says so. */
static cJSON *read_start(const char *path)
{
    enum { MOST = 1 << 20 };
    ls_lines lines;
    char *line = NULL;
    size_t bytes;
    bool whole;
    ls_status status = ls_lines_open(path, MOST, &lines);
    LS_THEN(status, ls_lines_next(&lines, &line, &bytes, &whole));
    cJSON *start = status == LS_OK && line != NULL ? ls_json_parse(line, NULL) : NULL;
    ls_lines_close(&lines);
    return start;
}

/* The ranks that the folder's events tell of: the largest world of a start event, or the files;
 * 0: there are none. *observed: the attach module wrote them. */
static int count_ranks(const char *directory, bool *observed)
{
    int world = 0;
    DIR *entries = ls_path_open_folder(directory);
    *observed = false;
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        int rank;
        if (!is_events(e, &rank) || rank >= LS_HOSTS_RANKS_MAX) {
            continue;
        }
        LS_TEXT(path, PATH_MAX, "%s/%s", directory, e);
        cJSON *start = read_start(path);
        int said = ls_json_int(start, "world", 1);
        said = said > LS_HOSTS_RANKS_MAX ? LS_HOSTS_RANKS_MAX : said;
        *observed = *observed || ls_json_int(start, "observed", 0) == 1;
        world = rank + 1 > world ? rank + 1 : world;
        world = said > world ? said : world;
        cJSON_Delete(start);
    }
    return world;
}

bool ls_observe_run_is_job(const char *directory)
{
    bool observed;
    return count_ranks(directory, &observed) > 0 && observed;
}

bool ls_observe_run_is_run(const char *directory)
{
    LS_TEXT(path, PATH_MAX, "%s/run.json", directory);
    cJSON *run = NULL;
    bool is = access(path, R_OK) == 0 && ls_json_read_file(path, &run) == LS_OK &&
              cJSON_IsObject(ls_json_get(run, "observed"));
    cJSON_Delete(run);
    return is;
}

const char *const ls_observe_run_jobs[] = {"observed", "subject"};

/* One of these names; NULL: neither holds events. */
static const char *choose_job(const char *directory)
{
    for (int i = 0; i < 2; i++) {
        LS_TEXT(path, PATH_MAX, "%s/jobs/%s", directory, ls_observe_run_jobs[i]);
        bool observed;
        if (count_ranks(path, &observed) > 0) {
            return ls_observe_run_jobs[i];
        }
    }
    return NULL;
}

/* ---- while it runs ------------------------------------------------------------------------------
 */

/* The call of that number, and what the rank's last event was. */
typedef struct last_seen {
    int number;
    char call[160], event[80];
} last_seen;

static ls_status keep_last(void *context, const cJSON *event, int line)
{
    last_seen *seen = context;
    const char *name = ls_json_string(event, "event", "");
    (void)line;
    if (strcmp(name, "call") != 0) {
        int64_t step = ls_json_integer(event, "step", -1);
        LS_TEXT(of, 40, " %lld", (long long)step);
        ls_text_put(seen->event, sizeof seen->event, "%.30s%s", name, step >= 0 ? of : "");
    } else if (ls_json_int(event, "number", 0) == seen->number) {
        const char *op = ls_json_string(event, "op", ""), *at = ls_json_string(event, "at", "");
        ls_text_put(seen->call, sizeof seen->call, "%.40s%s%.40s%s%.60s",
                    ls_json_string(event, "call", ""), op[0] != '\0' ? " " : "", op,
                    at[0] != '\0' ? " at " : "", at);
    }
    return LS_OK;
}

void ls_observe_run_describe(const char *directory, int rank, char *text, size_t bytes)
{
    last_seen seen = {0};
    LS_TEXT(open_path, PATH_MAX, "%s/open.rank%d", directory, rank);
    LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", directory, rank);
    char *open_step = access(open_path, R_OK) == 0 ? ls_text_read(open_path) : NULL;
    const char *calls = open_step == NULL ? NULL : strchr(open_step, '\n');
    size_t used = calls == NULL ? 0 : strlen(calls);
    if (used > 5) { /* the last number and its space */
        seen.number = (int)strtol(calls + used - 5, NULL, 16);
    }
    (void)ls_json_each_line(path, keep_last, &seen);
    if (seen.call[0] != '\0') {
        ls_text_put(text, bytes, "in step %lld after %s", atoll(open_step), seen.call);
    } else {
        ls_text_put(text, bytes, "after '%s'", seen.event);
    }
    free(open_step);
}

/* ---- how it ended ---------------------------------------------------------------------------- */

/* When it ended, on which clock, and whether a signal asked it to: rules/stall.c. */
static void add_end(cJSON *outcome, const ls_proc *ended)
{
    char *boot = ls_text_read("/proc/sys/kernel/random/boot_id");
    if (boot != NULL) {
        boot[strcspn(boot, "\n")] = '\0';
    }
    cJSON_AddNumberToObject(outcome, "ended_ns", (double)ended->ended_ns);
    cJSON_AddStringToObject(outcome, "boot", boot != NULL ? boot : "");
    cJSON_AddNumberToObject(outcome, "asked", ended->asked);
    free(boot);
}

ls_status ls_observe_run_record(const char *directory, const char *program, const ls_proc *ended)
{
    bool observed;
    cJSON *job = cJSON_CreateObject();
    LS_MEMORY(job != NULL);
    LS_TEXT(path, PATH_MAX, "%s/job.json", directory);
    cJSON_AddNumberToObject(job, "schema", 2);
    cJSON_AddStringToObject(job, "label", program);
    cJSON *facts = cJSON_AddObjectToObject(job, "facts");
    cJSON_AddNumberToObject(facts, "world", count_ranks(directory, &observed));
    if (ended != NULL) {
        cJSON *outcome = cJSON_AddObjectToObject(job, "outcome");
        cJSON_AddStringToObject(outcome, "state",
                                ended->signal != 0 ? "killed"
                                : ended->code == 0 ? "done"
                                                   : "failed");
        cJSON_AddNumberToObject(outcome, "first_rank", -1);
        cJSON_AddNumberToObject(outcome, "code", ended->code);
        cJSON_AddNumberToObject(outcome, "signal", ended->signal);
        cJSON_AddNumberToObject(outcome, "seconds",
                                ls_clock_ms_between(ended->started_ns, ended->ended_ns) * 1e-3);
        add_end(outcome, ended);
    }
    return ls_json_write_and_free(path, job);
}

/* ---- judging --------------------------------------------------------------------------------- */

/* A process made backward passes, and nothing that is judged (attach/lockstep_attach/hub.py). The
 * exit code is the job's own, but where what is not shown fails, too. */
static ls_status explain_by_hand(const char *directory, ls_observe_headline *out)
{
    cJSON *run = NULL;
    ls_observe_gate gate = {0};
    LS_TEXT(path, PATH_MAX, "%s/run.json", directory);
    LS_TRY(ls_json_read_file(path, &run));
    const cJSON *options = ls_json_get(run, "observed");
    (void)ls_observe_gate_read(ls_json_string(options, "gate", "fail"), &gate);
    cJSON_Delete(run);
    *out = (ls_observe_headline){.correct = LS_CORRECT_NOT_SHOWN,
                                 .code = gate.all ? LS_ERR_CHECK : LS_OK};
    ls_log_note("%s: the job trains by hand: it makes backward passes, and no optimizer of "
                "torch.optim, no DistributedDataParallel and no process group of several ranks. "
                "Nothing was judged",
                directory);
    return LS_OK;
}

static ls_status explain_nothing(const char *directory, ls_observe_headline *out)
{
    bool failed = false;
    LS_TEXT(by_hand, PATH_MAX, "%s/jobs/observed/by_hand", directory);
    if (access(by_hand, F_OK) == 0) {
        return explain_by_hand(directory, out);
    }
    for (int i = 0; i < 2; i++) { /* the folder has no events, but how its job ended */
        LS_TEXT(path, PATH_MAX, "%s/jobs/%s/job.json", directory, ls_observe_run_jobs[i]);
        cJSON *job = NULL;
        if (access(path, R_OK) == 0 && ls_json_read_file(path, &job) == LS_OK) {
            const cJSON *outcome = ls_json_get(job, "outcome");
            failed = failed || ls_json_int(outcome, "code", 0) != 0;
        }
        cJSON_Delete(job);
    }
    if (failed) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: the job failed before a process had wrapped a model, joined a "
                           "group of ranks or stepped an optimizer: nothing was judged",
                           directory);
    }
    return ls_log_fail(
        LS_ERR_USAGE,
        "%s: no process wrote events, so nothing was judged. Either the command runs no training "
        "in PyTorch (a model in DistributedDataParallel, a process group of several ranks or a "
        "step of an optimizer), or its Python did not see the variables PYTHONPATH and "
        "LS_OBSERVE_DIR: python -S, -E or -I ignores them, and env -i, sudo, ssh, a container or "
        "a scheduler does not pass them on (--attach-only prints them, to be set there)",
        directory);
}

/* run.json's "where" and "headline". */
static void add_headline(cJSON *run, const ls_observe_headline *headline, const cJSON *seen)
{
    static const char *const words[] = {"yes", "no", "not shown"};
    const char *device = ls_json_string(seen, "device", "");
    int world = ls_json_int(seen, "world", 0);
    LS_TEXT(where, 200, "%d %s%s%s", world, world == 1 ? "rank" : "ranks",
            device[0] == '\0' ? "" : " on ", device);
    const char *versions[][2] = {
        {ls_json_bool(seen, "attached", true) ? "backend" : "engine", ", "},
        {"torch", ", torch "},
        {"python", ", Python "}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const char *value = ls_json_string(seen, versions[i][0], "");
        ls_text_add(where, sizeof where, "%s%s", value[0] == '\0' ? "" : versions[i][1], value);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(run, "where");
    cJSON_AddStringToObject(run, "where", where);
    cJSON_DeleteItemFromObjectCaseSensitive(run, "headline");
    cJSON *correct = cJSON_AddObjectToObject(cJSON_AddObjectToObject(run, "headline"), "correct");
    cJSON_AddStringToObject(correct, "value", words[headline->correct]);
    cJSON_AddStringToObject(correct, "why", headline->why);
    cJSON_AddNumberToObject(correct, "selected", headline->inside);
    cJSON_AddNumberToObject(correct, "claim_cases", headline->inside);
    cJSON_AddNumberToObject(correct, "hints", headline->hints);
    cJSON_AddBoolToObject(correct, "whole", headline->whole);
}

static ls_status write_summary(const char *directory, const ls_observe_report *report)
{
    static const char *const copied[] = {"title", "label",  "version", "command", "created",
                                         "where", "commit", "options", "headline"};
    cJSON *summary = cJSON_CreateObject();
    LS_TEXT(path, PATH_MAX, "%s/summary.json", directory);
    LS_MEMORY(summary != NULL);
    cJSON_AddNumberToObject(summary, "schema", 2);
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        const cJSON *member = ls_json_get(report->run, copied[i]);
        if (member != NULL) {
            cJSON_AddItemToObject(summary, copied[i], cJSON_Duplicate(member, true));
        }
    }
    cJSON_AddItemToObject(summary, "observed", cJSON_Duplicate(report->seen, true));
    return ls_json_write_and_free(path, summary);
}

/* Whether the folder of a run holds an observed job, written before *limit and after *newest (ns,
 * when its events were last written): it is the newest now. */
static void take_newer(const char *run, int64_t limit, int64_t *newest, char *path)
{
    enum { MOST_MB = 64 };
    struct stat status;
    LS_TEXT(folder, PATH_MAX, "%s/jobs/observed", run);
    LS_TEXT(events, PATH_MAX, "%s/rank0.jsonl", folder);
    if (stat(events, &status) != 0 || status.st_size >> 20 >= MOST_MB) {
        return;
    }
    int64_t ns = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec;
    if (ns > *newest && ns < limit) {
        *newest = ns;
        ls_text_put(path, PATH_MAX, "%s", folder);
    }
}

/* Of the jobs in the folders of that one, and the later ones of their commands. */
static void take_newest(const char *parent, int64_t limit, int64_t *newest, char *path)
{
    DIR *entries = ls_path_open_folder(parent);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        LS_TEXT(run, PATH_MAX, "%s/%s", parent, e);
        if (e[0] == '.') {
            continue;
        }
        take_newer(run, limit, newest, path);
        for (int n = 2; n <= LS_OBSERVE_JOBS; n++) {
            LS_TEXT(later, PATH_MAX, "%s/" LS_OBSERVE_LATER "/%d", run, n);
            take_newer(later, limit, newest, path);
        }
    }
}

/* Looks for the job that wrote the file from which this one went on: in the folders next to that
 * of its run. */
static void find_before(ls_observe_trace *trace, const char *directory)
{
    enum { TRIED = 8 };
    char path[PATH_MAX];
    struct stat own;
    LS_TEXT(events, PATH_MAX, "%s/rank0.jsonl", directory);
    bool later = strstr(directory, "/" LS_OBSERVE_LATER "/") != NULL;
    LS_TEXT(parent, PATH_MAX, "%s/../../..%s", directory, later ? "/../.." : "");
    if (trace->world == 0 || ls_event_count(ls_trace_events(&trace->rank[0], load)) == 0 ||
        stat(events, &own) != 0) {
        return;
    }
    int64_t limit = own.st_mtim.tv_sec * INT64_C(1000000000) + own.st_mtim.tv_nsec;
    for (int i = 0; i < TRIED; i++) {
        int64_t newest = 0;
        take_newest(parent, limit, &newest, path);
        if (newest == 0 || ls_observe_continue(trace, path)) {
            return;
        }
        limit = newest;
    }
}

/* Looks for a later job of the command that went on from this one. */
static void find_after(ls_observe_trace *trace, const char *directory)
{
    static const char format[] = "/" LS_OBSERVE_LATER "/%d/jobs/observed%n";
    char first[PATH_MAX];
    int n = 1, bytes = 0;
    ls_text_put(first, sizeof first, "%s/../..", directory);
    for (const char *at = directory; (at = strstr(at, "/" LS_OBSERVE_LATER "/")) != NULL; at++) {
        if (sscanf(at, format, &n, &bytes) == 1 && at[bytes] == '\0') {
            ls_text_put(first, sizeof first, "%.*s", (int)(at - directory), directory);
        }
    }
    while (!trace->goes_on && ++n <= LS_OBSERVE_JOBS) {
        char path[PATH_MAX];
        int64_t newest = 0;
        LS_TEXT(run, PATH_MAX, "%s/" LS_OBSERVE_LATER "/%d", first, n);
        take_newer(run, INT64_MAX, &newest, path);
        if (newest > 0) {
            (void)ls_observe_goes_on(trace, path);
        }
    }
}

/* The figure of an observed job's steps: for each rank whether it holds what the others hold, which
 * steps were skipped or looked at in detail, loss, loss scale and time; where it validated and
 * saved. tables/steps.tsv, drawn by plots/steps.gp where gnuplot is there. */

enum { COLUMNS = 300, DEADLINE_S = 20 };

/* Of the steps that a column holds, the highest is shown. */
typedef enum state { UNKNOWN, EQUAL, DETAIL, SKIPPED, DIFFERENT } state;

static state state_of(const ls_observe_trace *trace, int rank, const ls_observe_step *step)
{
    const char *own = ls_trace_digest(step, LS_RECORD_PARAM);
    state found = UNKNOWN;
    for (int k = 0; k < trace->world && own != NULL; k++) {
        const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
        const char *digest =
            k == rank || other == NULL ? NULL : ls_trace_digest(other, LS_RECORD_PARAM);
        if (digest != NULL && strcmp(digest, own) != 0) {
            return DIFFERENT;
        }
        found = digest != NULL ? EQUAL : found;
    }
    return step->step->skipped ? SKIPPED : step->detail ? DETAIL : found;
}

/* A block of each rank: step, steps in it, state, loss, loss scale, longest ms. */
static void write_rank(const ls_observe_trace *trace, int rank, FILE *to)
{
    const ls_observe_rank *r = &trace->rank[rank];
    int width = (r->step_count + COLUMNS - 1) / COLUMNS;
    for (int i = 0; i < r->step_count; i += width) {
        state worst = UNKNOWN;
        double loss = NAN, scale = NAN, ms = NAN;
        int last = i + width < r->step_count ? i + width : r->step_count;
        for (int n = i; n < last; n++) {
            const ls_record_step *step = r->step[n].step;
            state one = state_of(trace, rank, &r->step[n]);
            worst = one > worst ? one : worst;
            loss = isfinite(step->loss) ? step->loss : loss;
            scale = step->loss_scale;
            ms = fmax(ms, step->total_ms);
        }
        fprintf(to, "%lld\t%d\t%d\t%g\t%g\t%g\n", (long long)r->step[i].step->step, last - i,
                (int)worst, loss, scale, ms);
    }
    fputs(r->step_count == 0 ? "NaN\tNaN\tNaN\tNaN\tNaN\tNaN\n\n\n" : "\n\n", to);
}

/* The last block: step, and 1: a validation, 2: a save, 3: a restore. */
static void write_marks(const ls_observe_rank *rank, FILE *to)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, data)) {
        if (ls_pass_is_validation(event)) {
            fprintf(to, "%g\t1\n", ls_pass_first_step(event));
        }
    }
    ls_event_each(event, ls_trace_events(rank, save)) {
        fprintf(to, "%g\t2\n", ls_event_number(event, step, NAN));
    }
    ls_event_each(event, ls_trace_events(rank, restore)) {
        fprintf(to, "%g\t3\n", ls_event_number(event, step, NAN));
    }
    fputs("NaN\tNaN\n", to);
}

static ls_status write_table(const ls_observe_trace *trace, const char *path)
{
    FILE *to = ls_file_create(path);
    LS_TRY_FILE(to);
    for (int k = 0; k < trace->world; k++) {
        write_rank(trace, k, to);
    }
    write_marks(&trace->rank[0], to);
    return ls_file_close(to, path);
}

static void draw_steps(const ls_observe_trace *trace, const char *directory)
{
    char scripts[PATH_MAX], world[16];
    LS_TEXT(tables, PATH_MAX, "%s/tables", directory);
    LS_TEXT(plots, PATH_MAX, "%s/plots", directory);
    LS_TEXT(table, PATH_MAX, "%s/tables/steps.tsv", directory);
    LS_TEXT(output, PATH_MAX, "%s/plots/steps.svg", directory);
    LS_TEXT(log, PATH_MAX, "%s/plots/gnuplot.log", directory);
    ls_text_put(world, sizeof world, "%d", trace->world);
    (void)unlink(output);
    if (!ls_path_find("plots", scripts, sizeof scripts) || ls_path_make_folder(tables) != LS_OK ||
        ls_path_make_folder(plots) != LS_OK || write_table(trace, table) != LS_OK) {
        return; /* the report is whole without it */
    }
    char *argv[] = {"gnuplot", "-c", "steps.gp", table, output, "svg", world, NULL};
    const ls_proc_spec spec = {
        .argv = argv, .environment = environ, .log_path = log, .directory = scripts};
    ls_proc process = {0};
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return;
    }
    if (ls_proc_wait_any(&process, 1, ls_clock_after(DEADLINE_S)) < 0) {
        ls_proc_end_all(&process, 1, 1);
        process.code = 1;
    }
    if (process.code != 0) {
        (void)unlink(output);
    }
}

/* Judges a job's folder; `report->run` is there, the rest is filled. `figures`: the folder where
 * its steps are drawn, or NULL. */
static ls_status judge(const char *directory, const char *job, const char *figures,
                       ls_observe_report *report, ls_observe_headline *out)
{
    const cJSON *options = ls_json_get(report->run, "observed");
    ls_observe_gate gate;
    (void)ls_observe_gate_read(ls_json_string(options, "gate", "fail"), &gate);
    ls_observe_trace *trace = NULL;
    ls_observe_result result = {0, NULL};
    LS_TRY(ls_observe_read(directory, &trace));
    find_before(trace, directory);
    find_after(trace, directory);
    ls_observe_judge_all(trace, &result);
    ls_observe_verdicts_decide(trace, &result, gate, out);
    report->seen = ls_observe_summary_make(trace);
    report->verdicts = ls_observe_verdicts_make(out, &result, job, gate);
    add_headline(report->run, out, report->seen);
    if (figures != NULL) {
        draw_steps(trace, figures);
    }
    ls_observe_result_free(&result);
    ls_observe_free(trace);
    return LS_OK;
}

/* What was seen of NCCL lies in LS_OBSERVE_DIR, also of a trainer that speaks the protocol: it gets
 * a second name next to the events that are judged. */
static void join_collectives(const char *directory, const char *job)
{
    LS_TEXT(folder, PATH_MAX, "%s/jobs/observed", directory);
    DIR *entries = strcmp(job, "observed") == 0 ? NULL : ls_path_open_folder(folder);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        if (ls_text_matches("sums.rank*.jsonl", e) ||
            ls_text_matches("collectives.rank*.jsonl", e)) {
            LS_TEXT(from, PATH_MAX, "%s/jobs/observed/%s", directory, e);
            LS_TEXT(path, PATH_MAX, "%s/jobs/%s/%s", directory, job, e);
            int error = ls_file_second_name(from, path);
            if (error != 0) {
                ls_log_warn("cannot link %s: %s; its collectives are not judged", path,
                            strerror(error));
            }
        }
    }
}

static ls_status judge_run(const char *directory, const char *job, ls_observe_report *report,
                           ls_observe_headline *out)
{
    LS_TEXT(job_directory, PATH_MAX, "%s/jobs/%s", directory, job);
    LS_TEXT(path, PATH_MAX, "%s/job.json", job_directory);
    if (access(path, R_OK) != 0) { /* a scheduler ran it */
        LS_TRY(ls_observe_run_record(job_directory, job, NULL));
    }
    join_collectives(directory, job);
    ls_text_put(path, sizeof path, "%s/run.json", directory);
    LS_TRY(ls_json_read_file(path, &report->run));
    LS_TRY(judge(job_directory, job, directory, report, out));
    LS_TRY(ls_json_write_file(path, report->run));
    LS_TRY(ls_observe_verdicts_write(directory, report->verdicts));
    LS_TRY(write_summary(directory, report));
    return ls_observe_report_write(directory);
}

ls_status ls_observe_run_print(const char *directory, bool verbose, FILE *to,
                               ls_observe_headline *out)
{
    ls_observe_report report = {cJSON_CreateObject(), NULL, NULL};
    const char *slash = strrchr(directory, '/');
    LS_MEMORY(report.run != NULL);
    LS_TEXT(title, 200, "Lockstep, observed job %s", slash == NULL ? directory : slash + 1);
    ls_plain_replace(title, sizeof title);
    cJSON_AddStringToObject(report.run, "title", title);
    ls_status status = judge(directory, "job", NULL, &report, out);
    if (status == LS_OK) {
        ls_observe_report_print(&report, NULL, verbose, to);
    }
    ls_observe_report_free(&report);
    return status;
}

/* Whether the run was judged and its samples were deleted since: another judgement would say less.
 */
static bool is_thinned(const char *directory, const char *job)
{
    LS_TEXT(path, PATH_MAX, "%s/jobs/observed/samples", directory);
    return strcmp(job, "observed") == 0 && access(path, F_OK) != 0 &&
           ls_runner_was_finished(directory);
}

/* What was said of it then. */
static ls_status print_again(const char *directory, bool verbose, FILE *to,
                             ls_observe_headline *out)
{
    ls_observe_report report = {NULL, NULL, NULL};
    ls_status status = ls_observe_report_read(directory, &report);
    ls_log_note("%s: as it was judged; its samples were deleted then (--keep keeps them)",
                directory);
    if (status == LS_OK) {
        const cJSON *options = ls_json_get(report.run, "observed");
        const cJSON *headline = ls_json_get(report.run, "headline");
        ls_observe_gate gate;
        (void)ls_observe_gate_read(ls_json_string(options, "gate", "fail"), &gate);
        headline = ls_json_get(headline, "correct");
        ls_observe_verdicts_recall(report.verdicts, headline, gate, out);
        ls_observe_report_print(&report, directory, verbose, to);
    }
    ls_observe_report_free(&report);
    return status;
}

ls_status ls_observe_run_judge(const char *directory, bool verbose, FILE *to,
                               ls_observe_headline *out)
{
    ls_observe_report report = {NULL, NULL, NULL};
    const char *job = choose_job(directory);
    if (job == NULL) {
        return explain_nothing(directory, out);
    }
    if (is_thinned(directory, job)) {
        return print_again(directory, verbose, to, out);
    }
    ls_status status = judge_run(directory, job, &report, out);
    if (status == LS_OK) {
        ls_observe_report_print(&report, directory, verbose, to);
    }
    ls_observe_report_free(&report);
    return status;
}
