/* CORRECT, MANNERS, SPEED, MACHINE, which open every report and are never mixed. */
#ifndef LS_HEADLINE_H
#define LS_HEADLINE_H

#include "run.h"

/* SPEED: this run's throughput against an earlier run's (BASELINE=). */
typedef struct ls_speed_verdict {
    bool below;   /* a baseline was given and missed */
    bool unshown; /* a baseline was given, and no row could be compared with it */
    char value[24], why[700];
} ls_speed_verdict;

typedef enum ls_headline_correct {
    LS_CORRECT_YES,
    LS_CORRECT_NO,
    LS_CORRECT_NOT_SHOWN
} ls_headline_correct;

typedef struct ls_headline {
    ls_headline_correct correct;
    /* of the cases that decide: LS_OK where all passed, LS_ERR_INFRA where nothing failed but
     * machine, disk or port, else LS_ERR_CHECK */
    ls_status status;
    int selected, claim_cases; /* cases of the claim: in this run, and in all */
    int manners, manners_passed;
    bool manners_decide; /* the exit code */
    char correct_why[320], manners_why[160], machine_value[24], machine_why[400];
    ls_speed_verdict speed;
    int passed, failed; /* cases: inside the claim everything but PASS and WAIVED fails */
} ls_headline;

/* Cases of a claim are of CORRECT or of MANNERS; those outside it are counted only. */
typedef struct ls_headline_count_of {
    int all, good, ours, code[LS_VERDICT_CODES];
} ls_headline_count_of;

typedef struct ls_headline_counts {
    ls_headline_count_of correct, manners, outside;
    int not_offered; /* of the claim where offered; in none of the above */
} ls_headline_counts;

/* Adds a case. */
void ls_headline_count(ls_headline_counts *to, ls_verdict_code code, bool in_claim, bool manners,
                       bool inside);
/* Fills what `out` says of cases. */
void ls_headline_cases(const ls_headline_counts *counts, const char *claim, int claim_cases,
                       bool gate_manners, ls_headline *out);
/* From the verdicts, summary.json (tables are written) and the machine. */
void ls_headline_decide(const ls_run *run, ls_headline *out);
/* Whether a case that the claim has "where offered" ended as UNSUPPORTED: then it is not of the
 * claim.
 */
bool ls_headline_not_offered(const ls_run *run, int index);
/* Whether the case, as it ended, is of the run's claim. */
bool ls_headline_in_claim(const ls_run *run, int index);
/* Whether the case's requirement is marked (manners): about how a trainer answers a request that it
 * cannot fulfil, not about training. */
bool ls_headline_is_manners(const ls_run *run, const ls_case *row);
/* 0: all selected cases of the claim that decide passed, and SPEED is not below the baseline. */
int ls_headline_exit(const ls_headline *headline);
/* {"correct":{"value":"yes","why":...,"selected":76,"claim_cases":76},
 * "manners":{"value":"21 of 21","why","passed":21,"cases":21,"decide":false}, ...}; without cases
 * of manners not that member. */
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

/* ---- speed.c ------------------------------------------------------------------------------- */

/* LS_ERR_USAGE when `baseline` is neither a run's folder with a summary.json nor such a file. */
ls_status ls_speed_check_baseline(const char *baseline);
/* A timed job is below when its whole interval is under the baseline's whole interval;
 * oversubscribed jobs and figures without a result gate nothing, and runs on other machines,
 * devices or libraries (harness/report/report.h) are "not comparable". Among three or more GPUs
 * `why` names the slowest, with its distance to the median of the others. Adds each row's own
 * verdict,
 * {"label", "images_per_s", "value", "why"}, to run->measured as "speed". */
void ls_speed_decide(const ls_run *run, ls_speed_verdict *out);

#endif
