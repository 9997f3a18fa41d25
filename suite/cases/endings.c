#include "rows.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/path.h"
#include "suite/judge/diagnose.h"

bool ls_endings_says(const ls_record *job, int rank, const char *text)
{
    LS_TEXT(path, 700, "%s/rank%d.log", job->directory, rank);
    char *log = ls_text_read(path);
    bool found = log != NULL && strstr(log, text) != NULL;
    free(log);
    return found;
}

static void check_rank(const ls_ending *want, const ls_record *job, int rank, ls_verdict *out)
{
    char line[160];
    const ls_record_rank *got = &job->rank[rank];
    bool killed = want->code[rank] == LS_ENDINGS_KILLED;
    bool any = want->code[rank] == LS_ENDINGS_ANY;
    bool good = killed ? got->signal == 9 : got->signal == 0 && got->code == want->code[rank];
    ls_record_last_line(job, rank, line, (int)sizeof line);
    if (!any && !good) {
        ls_verdict_fail(out, "rank=%d left with code %d, signal %d, expected %s %d: %s", rank,
                        got->code, got->signal, killed ? "signal" : "code",
                        killed ? 9 : want->code[rank], line);
    }
    if (want->text != NULL && (want->says >> rank & 1) != 0 &&
        !ls_endings_says(job, rank, want->text)) {
        ls_verdict_fail(out, "rank=%d does not say '%s': %s", rank, want->text, line);
    }
    if (want->unwritten && got->has_events) {
        ls_verdict_fail(out, "rank=%d has written events", rank);
    }
    if (want->unstepped && got->step_count > 0) {
        ls_verdict_fail(out, "rank=%d has taken a step", rank);
    }
}

static void check_leftovers(const ls_record *job, ls_verdict *out)
{
    static const char *const what[] = {"", "/dump", "/keep"};
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        LS_TEXT(path, 900, "%s%s", job->directory, what[i]);
        DIR *folder = ls_path_open_folder(path);
        for (const char *entry; (entry = ls_path_next(&folder)) != NULL;) {
            if (strstr(entry, ".tmp") != NULL) {
                ls_verdict_fail(out, "%s was left behind", entry);
            }
        }
    }
}

static void check_kept(const ls_record *job, const char *name, ls_verdict *out)
{
    LS_TEXT(path, 700, "%s/%s", job->directory, name);
    char *text = ls_text_read(path);
    if (text == NULL || strcmp(text, "old\n") != 0) {
        ls_verdict_fail(out, "the older %s is not what it was", name);
    }
    free(text);
}

void ls_endings_judge(const ls_ending *want, const ls_record *job, ls_verdict *out)
{
    char path[700], line[200];
    struct stat status;
    if (job->state != LS_RECORD_DONE && job->state != LS_RECORD_FAILED &&
        job->state != LS_RECORD_KILLED) {
        (void)ls_verdict_of_outcome(job, out);
        return;
    }
    LS_ASSERT(job->world <= LS_ENDINGS_RANKS);
    for (int rank = 0; rank < job->world; rank++) {
        check_rank(want, job, rank, out);
    }
    if (out->code == LS_FAIL) {
        ls_diagnose_endings_codes(job, out->cause, (int)sizeof out->cause);
    }
    if (want->absent != NULL) {
        ls_text_put(path, sizeof path, "%s/%s", job->directory, want->absent);
        if (stat(path, &status) == 0) {
            ls_verdict_fail(out, "%s was left behind", want->absent);
        }
    }
    if (want->clean) {
        check_leftovers(job, out);
    }
    if (want->kept != NULL) {
        check_kept(job, want->kept, out);
    }
    int speaker = want->says == 0 ? 0 : __builtin_ctz(want->says);
    ls_record_last_line(job, speaker, line, (int)sizeof line);
    ls_verdict_pass(out, job->world, "%s", line[0] == '\0' ? "as expected" : line);
}

void ls_endings_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_endings_judge(row->data, &job[row->job_count - 1], out);
}
