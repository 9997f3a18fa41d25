#include "run.h"

#include <stdio.h>
#include <string.h>

#include "harness/run/job.h"
#include "kernels/core/path.h"
#include "kernels/core/plain.h"
#include "kernels/core/text.h"

enum { LAST_LINES = 10 };

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

/* The plainest job: one rank, one step, the options that a subject must accept. It has a folder of
 * its own: reports do not list it. */
static ls_status probe(ls_run *run, ls_record *out)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    spec.threads = 0;
    spec.deterministic = false;
    spec.steps = 1;
    LS_TEXT(directory, 700, "%s/start", run->directory);
    ls_matrix_site site = run->site;
    site.run_directory = directory;
    LS_TEXT(jobs, 720, "%s/jobs", directory);
    LS_TRY(ls_path_make_folder(jobs));
    ls_job job;
    LS_TRY(ls_matrix_job(&spec, &site, &job));
    ls_outcome outcome = {0};
    bool resumed;
    ls_status status = ls_job_run(&job, NULL, NULL, &outcome, &resumed);
    run->stopped = run->stopped || outcome.state == LS_OUTCOME_STOPPED;
    ls_outcome_free(&outcome);
    if (status == LS_OK) {
        status = ls_record_read(job.directory, LS_RECORD_STRICT, out);
    }
    ls_job_free(&job);
    return status;
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
    if (status == LS_ERR_USAGE) { /* no such program: the line is logged */
        ls_text_put(run->unstarted, sizeof run->unstarted,
                    "the subject does not start: '%s' cannot be run", run->site.subject);
        return LS_OK;
    }
    run->started = status != LS_OK || run->stopped || !left_early(first);
    if (run->started) {
        return status;
    }
    ls_record job;
    LS_TRY(probe(run, &job));
    if (left_early(&job)) {
        remember(run, &job);
    }
    run->started = run->unstarted[0] == '\0';
    ls_record_free(&job);
    return LS_OK;
}
