#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/path.h"
#include "kernels/core/plain.h"

enum { LAST_LINES = 10 };

/* The plainest job: one rank, one step, the options that a subject must accept. It has a folder of
 * its own, <directory>/jobs, which no report lists. */
typedef struct plain {
    ls_record record; /* to be freed */
    double seconds;
    bool stopped;
} plain;

static ls_status run_plain(const ls_matrix_site *site, const char *directory, plain *out)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    spec.level = 0;
    spec.threads = 0;
    spec.deterministic = false;
    spec.steps = 1;
    spec.limit_s = 20;
    ls_matrix_site here = *site;
    here.run_directory = directory;
    memset(out, 0, sizeof *out);
    LS_TEXT(jobs, 720, "%s/jobs", directory);
    LS_TRY(ls_path_make_folder(jobs));
    ls_job job;
    LS_TRY(ls_matrix_job(&spec, &here, &job));
    ls_outcome outcome = {0};
    bool resumed;
    ls_status status = ls_job_run(&job, NULL, NULL, &outcome, &resumed);
    out->seconds = ls_clock_ms_between(outcome.started_ns, outcome.ended_ns) * 1e-3;
    out->stopped = outcome.state == LS_OUTCOME_STOPPED;
    ls_outcome_free(&outcome);
    if (status == LS_OK) {
        status = ls_record_read(job.directory, LS_RECORD_STRICT, &out->record);
    }
    ls_job_free(&job);
    return status;
}

/* ---- how long it takes ----------------------------------------------------------------------- */

/* The start-up that an interrupted run measured: it goes on with the same cases. */
static double measured_before(const char *directory)
{
    LS_TEXT(path, 700, "%s/run.json", directory);
    cJSON *run = NULL;
    if (access(path, R_OK) != 0 || ls_json_read_file(path, &run) != LS_OK) {
        return 0;
    }
    double start_s = ls_json_number(run, "start_s", 0);
    cJSON_Delete(run);
    return start_s;
}

ls_status ls_start_measure(ls_matrix_site *site)
{
    char folder[] = "/tmp/lockstep-start-XXXXXX";
    site->start_s = measured_before(site->run_directory);
    if (site->start_s > 0 || site->hosts != NULL || mkdtemp(folder) == NULL) {
        return LS_OK; /* on other machines it is as estimated */
    }
    plain job;
    ls_status status = run_plain(site, folder, &job);
    site->start_s = ceil(1000 * job.seconds) / 1000; /* is read back as it is */
    if (status == LS_OK) {
        ls_record_free(&job.record);
    }
    ls_path_remove_tree(folder);
    return status == LS_ERR_USAGE ? status : LS_OK;
}

/* ---- whether it starts ----------------------------------------------------------------------- */

/* No rank wrote an event before it left with an exit code that a shell, an interpreter or a usage
 * error gives. */
static bool left_early(const ls_record *job)
{
    bool code = job->code == LS_ERR_CHECK || job->code == LS_ERR_USAGE || job->code == 126 ||
                job->code == 127;
    for (int k = 0; k < job->world; k++) {
        if (job->rank[k].has_events) {
            return false;
        }
    }
    return job->state == LS_RECORD_FAILED && code;
}

static void print_log(const ls_record *job, const char *log)
{
    char lines[8192];
    ls_record_last_lines(job, 0, LAST_LINES, lines, sizeof lines);
    printf("the subject does not start: exit code %d before its first event; the end of %s:\n",
           job->code, log);
    char *rest = NULL;
    for (char *line = strtok_r(lines, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char shown[400];
        ls_plain_copy(shown, sizeof shown, line);
        printf("    %s\n", shown);
    }
}

static void remember(ls_run *run, const ls_record *job)
{
    char line[160];
    LS_TEXT(log, 1024, "%s/rank0.log", job->directory);
    ls_record_last_line(job, 0, line, (int)sizeof line);
    ls_progress_clear();
    print_log(job, log);
    ls_text_put(run->unstarted, sizeof run->unstarted,
                "the subject does not start: exit code %d before its first event: %s; log: %s",
                job->code, line, log);
}

ls_status ls_start_check(ls_run *run, const ls_record *first, ls_status status)
{
    if (run->site.subject == NULL || run->started) {
        return status;
    }
    if (status == LS_ERR_USAGE) { /* the line is logged */
        ls_words words = {0};
        char why[400] = "";
        ls_words_split(&words, run->site.subject);
        (void)ls_path_check_program(words.count > 0 ? words.word[0] : "", why, sizeof why);
        ls_text_put(run->unstarted, sizeof run->unstarted,
                    "the subject does not start: '%s' cannot be run: %s", run->site.subject, why);
        ls_words_free(&words);
        return LS_OK;
    }
    run->started = status != LS_OK || run->stopped || !left_early(first);
    if (run->started) {
        return status;
    }
    plain job;
    LS_TEXT(directory, 700, "%s/start", run->directory);
    LS_TRY(run_plain(&run->site, directory, &job));
    run->stopped = run->stopped || job.stopped;
    if (left_early(&job.record)) {
        remember(run, &job.record);
    }
    run->started = run->unstarted[0] == '\0';
    ls_record_free(&job.record);
    return LS_OK;
}

/* ---- interpreters of trainers ---------------------------------------------------------------- */

static const double import_limit_s = 120; /* importing torch on a machine that others use too */

static bool has_torch(const char *python)
{
    static const char check[] =
        "import sys, numpy, torch\n"
        "v = torch.__version__.split('.')\n"
        "sys.exit((int(v[0]), int(v[1])) < (1, 13) or not torch.distributed.is_available())\n";
    char *argv[] = {(char *)(uintptr_t)python, "-c", (char *)(uintptr_t)check, NULL};
    ls_proc_spec spec = {.argv = argv, .environment = environ, .log_path = "/dev/null"};
    ls_proc process = {0};
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return false;
    }
    if (ls_proc_wait_any(&process, 1, ls_clock_after(import_limit_s)) < 0) {
        ls_proc_end_all(&process, 1, 1);
        return false;
    }
    return process.code == 0;
}

bool ls_start_find_python(const char *asked, char *python, size_t bytes, char *why,
                          size_t why_bytes)
{
    const char *candidate[] = {asked != NULL ? asked : "python3",
                               asked != NULL ? NULL : "/usr/bin/python3"};
    for (int i = 0; i < 2 && candidate[i] != NULL; i++) {
        if (ls_path_check_program(candidate[i], why, why_bytes) != 0) {
            continue;
        }
        if (has_torch(candidate[i])) {
            ls_text_put(python, bytes, "%s", candidate[i]);
            return true;
        }
        ls_text_put(why, why_bytes, "not an interpreter with numpy and PyTorch 1.13 or later");
    }
    return false;
}
