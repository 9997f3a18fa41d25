/* The three verdicts that every report opens with, and never mixes: CORRECT, SPEED, MACHINE. */
#ifndef LS_HEADLINE_H
#define LS_HEADLINE_H

#include "run.h"

/* SPEED: this run's throughput against an earlier run's (BASELINE=). */
typedef struct ls_speed_verdict {
    bool below; /* a baseline was given and missed */
    char value[24], why[320];
} ls_speed_verdict;

typedef enum ls_headline_correct {
    LS_CORRECT_YES,
    LS_CORRECT_NO,
    LS_CORRECT_NOT_SHOWN
} ls_headline_correct;

typedef struct ls_headline {
    ls_headline_correct correct;
    bool only_infrastructure; /* nothing failed but machine, disk or port */
    char correct_why[200], machine_value[24], machine_why[400];
    ls_speed_verdict speed;
    int passed, failed; /* cases: inside the claim everything but PASS and WAIVED fails */
} ls_headline;

/* From the verdicts, summary.json (tables are written) and the machine. */
void ls_headline_decide(const ls_run *run, ls_headline *out);
/* {"correct":{"value":"yes","why":...}, ...} */
cJSON *ls_headline_json(const ls_headline *headline);
/* Whether the figures of the timed job of that index are backed by passed cases: its own, and
 * evidence of the same level and bucket rule. */
bool ls_headline_job_checked(const ls_run *run, int job);
/* The gradient check of numerics.md section 5 that the timed shape itself passed: 4 if the job's
 * first gradient was compared with FP32 in one process; 0: none. */
int ls_headline_job_gradient_check(const ls_run *run, int job);
/* Gradient check 3, FP64 samples: whether every rank of that job had a step audited, without a
 * finding. */
bool ls_headline_job_audited(const ls_record *job);

/* speed.c. */
/* LS_ERR_USAGE when `baseline` is neither a run's folder with a summary.json nor such a file. */
ls_status ls_speed_check_baseline(const char *baseline);
/* A timed job is below when its whole interval is under the baseline's whole interval;
 * oversubscribed jobs and figures without a result gate nothing. Among three or more GPUs `why`
 * names the slowest, with its distance to the median of the others. */
void ls_speed_decide(const ls_run *run, ls_speed_verdict *out);

#endif
