/* What the files of `lockstep observe` share: the folder of an observed job, its judgement, its
 * report. The folder:
 *
 *   jobs/observed/   events and samples of the attach module (LS_OBSERVE_DIR), job.json
 *   jobs/subject/    those of a trainer that speaks the subject protocol (LS_RUN_DIR), judged where
 *                    the attach module wrote nothing
 *   run.json         options, command, headline; "observed" names the options
 *   verdicts.jsonl   a line per rule
 *   summary.json     what was seen, what it cost, speed
 *   report.md, report.html, junit.xml
 *   later/N/         the same of the command's N-th job, from 2 on (LS_OBSERVE_LATER) */
#ifndef LS_OBSERVE_PARTS_H
#define LS_OBSERVE_PARTS_H

#include <stdbool.h>
#include <stdio.h>

#include "harness/process/proc.h"
#include "kernels/core/json.h"
#include "suite/observe/observe.h"
#include "suite/observe/trace/trace.h"
#include "suite/run/headline.h"
#include "suite/run/run.h"

#define LS_OBSERVE_LATER "later"
enum { LS_OBSERVE_JOBS = 9 }; /* of a command that are observed */

/* What decides the exit code next to laws that fail. */
typedef struct ls_observe_gate {
    bool all;   /* laws that could not be shown */
    bool hints; /* hints */
} ls_observe_gate;

/* What the verdicts say of the claims any-ddp and any-amp: of laws alone. */
typedef struct ls_observe_headline {
    ls_headline_correct correct;
    char why[512];
    bool ddp, amp;                /* the claims that concern the job */
    bool whole;                   /* the job ended well and was seen to its end */
    int passed, inside;           /* laws in them */
    int failed, open, unreadable; /* FAIL and the like; WEAK and UNSUPPORTED; INFRA */
    int hints;                    /* that were found */
    int code; /* that the rules alone ask for: 0, 1 (a law failed, or what the gate names), 3
                 (samples could not be read) */
} ls_observe_headline;

/* observe_verdicts.c */
/* "fail", "all", "hints" or "all,hints"; false: another text. */
bool ls_observe_gate_read(const char *text, ls_observe_gate *out);
/* Whether the rule's verdict counts: a law whose claim concerns the job, as the rule does. */
void ls_observe_verdicts_decide(const ls_observe_trace *trace, const ls_observe_result *result,
                                ls_observe_gate gate, ls_observe_headline *out);
/* The same of a run that was judged: from its lines of verdicts.jsonl and run.json's CORRECT. */
void ls_observe_verdicts_recall(const cJSON *verdicts, const cJSON *correct, ls_observe_gate gate,
                                ls_observe_headline *out);
/* The lines of verdicts.jsonl, as a list: one of each rule, behind them the hints of rules that
 * also have proof ("observe.<rule>.hint"); and the file. */
cJSON *ls_observe_verdicts_make(const ls_observe_headline *headline,
                                const ls_observe_result *result, const char *job,
                                ls_observe_gate gate);
ls_status ls_observe_verdicts_write(const char *directory, const cJSON *verdicts);

/* observe_summary.c: what was seen of the job, what could not be, cost and speed: the member
 * "observed" of summary.json. */
cJSON *ls_observe_summary_make(const ls_observe_trace *trace);

/* observe_report.c. A report says what is in these three, so that it can be made again from the
 * folder (`lockstep report DIR`). */
typedef struct ls_observe_report {
    cJSON *run;      /* run.json */
    cJSON *verdicts; /* the lines of verdicts.jsonl */
    cJSON *seen;     /* "observed" of summary.json */
} ls_observe_report;

void ls_observe_report_free(ls_observe_report *report);
/* What the folder's files hold; the caller frees it, also where it fails. */
ls_status ls_observe_report_read(const char *directory, ls_observe_report *out);
/* report.md, report.html and junit.xml, from the folder's files. */
ls_status ls_observe_report_write(const char *directory);
/* For a terminal of 80 columns: failures, hints, counts, headlines; `verbose`: also what passed,
 * what was not shown and what was seen. `directory`: where the report is; NULL: nowhere. */
void ls_observe_report_print(const ls_observe_report *report, const char *directory, bool verbose,
                             FILE *to);
/* The same, from the folder's files. */
ls_status ls_observe_report_terminal(const char *directory, FILE *to);

/* To standard error, while the job runs: a law that fails in its steps up to this one, and, of all
 * verdicts, the names of those that follow from it. */
void ls_observe_report_live(const cJSON *verdict, const cJSON *all_verdicts, int64_t step);
/* The table of laws and hints, for a terminal of 80 columns. */
void ls_observe_report_rules(FILE *to);

/* Scalars for TensorBoard. Of NULL, all but begin do nothing. */
typedef struct ls_observe_board ls_observe_board;
/* Makes the folder `to`, and that of rank 0 in it. */
ls_status ls_observe_board_begin(const char *to, ls_observe_board **out);
/* The run's folder, whose jobs' events are read; it is to live as long. */
void ls_observe_board_watch(ls_observe_board *board, const char *directory);
/* Writes the rest. False: not all could be written. */
bool ls_observe_board_end(ls_observe_board *board);

/* observe_live.c: the laws while the job runs. */
enum { LS_OBSERVE_LIVE_NOTIFIED = 64 }; /* more than there are laws */
typedef struct ls_observe_live {
    const char *directory;   /* the run's folder */
    const char *notify;      /* a command for the shell, or NULL */
    bool stop;               /* end the job where a law fails */
    ls_observe_board *board; /* is given what has come, too; or NULL */
    int64_t begun_ns, done_ns;
    int64_t next, judged;   /* steps: judge when there are so many; were judged */
    double spent_s, last_s; /* of processor time */
    int limit_s;            /* of the judgement that runs */
    bool running;
    ls_proc_isolated process;
    cJSON *said; /* a member for each law that was said */
    int notified;
    ls_proc command[LS_OBSERVE_LIVE_NOTIFIED];
} ls_observe_live;
/* `directory` and `command` are to live as long. */
ls_observe_live ls_observe_live_begin(const char *directory, bool stop, const char *command);
/* The watch of ls_waiting. */
bool ls_observe_live_watch(void *live);
void ls_observe_live_end(void *live);

/* observe_run.c: a job's folder. */
extern const char *const ls_observe_run_jobs[2]; /* the folders in jobs/, as above */
/* Whether the folder holds events of the attach module. */
bool ls_observe_run_is_job(const char *directory);
/* What a rank of a running job was doing last: "in step 7 after forward at train.py:31". */
void ls_observe_run_describe(const char *directory, int rank, char *text, size_t bytes);
/* Whether it is the folder of `lockstep observe`, with run.json. */
bool ls_observe_run_is_run(const char *directory);
/* Writes the job's job.json. `ended`: NULL where another launcher ran it. */
ls_status ls_observe_run_record(const char *directory, const char *program, const ls_proc *ended);
/* Judges the job in a folder of `lockstep observe` and writes its report; prints it to `to`.
 * LS_ERR_USAGE, logged with the likely reasons, where no rank
 * has written events. */
ls_status ls_observe_run_judge(const char *directory, bool verbose, FILE *to,
                               ls_observe_headline *out);
/* Prints the verdicts on a job's folder elsewhere, and writes nothing. */
ls_status ls_observe_run_print(const char *directory, bool verbose, FILE *to,
                               ls_observe_headline *out);

#endif
