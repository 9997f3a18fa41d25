/* The parts of `lockstep detect`: planted faults and wrong trainers, runs against them, and the
 * results.
 */
#ifndef LS_DETECT_INTERNAL_H
#define LS_DETECT_INTERNAL_H

#include <stdio.h>

#include "suite/suite.h"

/* `lockstep detect`: runs each planted fault (kernels/core/plant.h, suite/plants.txt) against the
 * case that must catch it, then against the must-pass list; and clean passes, which must raise no
 * alarm.
 *
 * 0 good, 1 a fault was missed or a clean pass raised an alarm. */
int ls_detect_main(int count, char **argument);

/* ---- detect_plants.c: the list of planted faults, suite/plants.txt --------------------------- */

/* One line of suite/plants.txt, or one row of a wrong trainer (suite/peers/mistakes.py). */
typedef struct ls_detect_plant {
    char name[48];        /* of LS_PLANT(name, ...), or of suite/plants/<name>.patch */
    char wish[64];        /* value of LS_PLANT: the name, "@step" and ":rank" */
    char environment[96]; /* of the case's jobs: "LS_NAME=value", blank between; "" */
    char bench[96]; /* variables of the bench whose timed jobs it is in, in a full run or by name;
                       "": it is in the jobs of the case */
    char case_id[LS_CASE_ID_BYTES]; /* the case that must catch it, */
    char expected[16];              /* and its verdict: FAIL where the line names none */
    char requirement[8];
    char cause[128]; /* a glob that the printed cause must match; "-": none is expected */
    char sentence[240];
    bool patch;   /* a patched tree, build/patched/<name>, with its own build */
    bool device;  /* of the CUDA backend, named "cuda_...": judged on the emulation of its build */
    bool avx512;  /* of code for that instruction set, named "avx512_..." */
    bool native;  /* of code for a processor's units for bf16, named "native_..." */
    bool foreign; /* a wrong trainer, named "foreign.<row>" */
    const char *base;   /* of a foreign trainer: the script in suite/peers that it changes */
    char script[1100];  /* its script and the arguments of that */
    char subject[1600]; /* its command, after an interpreter was found */
} ls_detect_plant;

typedef struct ls_detect_list {
    int count, capacity;
    ls_detect_plant *plant;
} ls_detect_list;

/* Reads suite/plants.txt. A fault is a patch if suite/plants/<name>.patch exists. LS_ERR_USAGE,
 * with the line, for a line that does not have five fields. */
ls_status ls_detect_read(const char *path, ls_detect_list *out);
/* Calls `visit` with every line of the file, numbered from 1, until one call fails; `visit` may
 * modify the line. LS_ERR_USAGE, with the description `what`, when the file cannot be read. */
typedef ls_status ls_detect_line(char *line, const char *path, int number, ls_detect_list *out);
/* Appends an empty entry. */
void ls_detect_free(ls_detect_list *list);
/* Checks that each fault names an existing case and, for a planted one, that case's requirement,
 * and that names are unique. Logs each error; LS_ERR_CHECK. */
ls_status ls_detect_check(const ls_detect_list *list, const ls_case_list *cases);

/* ---- detect_run.c: a run of cases in a process of its own, and kept results ------------------ */

/* One verdict that a run of cases wrote. */
typedef struct ls_detect_verdict {
    char case_id[LS_CASE_ID_BYTES], code[16], evidence[512], cause[320];
} ls_detect_verdict;

typedef struct ls_detect_outcome {
    int count, capacity;
    ls_detect_verdict *verdict;
    double seconds;
    bool timed_out, stopped, claim_only; /* claim_only: verdicts outside the claim are left out */
    int code;                            /* exit code of the run */
} ls_detect_outcome;

/* The run: `lockstep conform` of one build, or `lockstep bench`. */
typedef struct ls_detect_child {
    const char *program;     /* build/planted/lockstep */
    const char *wish;        /* NULL: no fault */
    const char *directory;   /* --out; the log is <directory>.log */
    const char *subject;     /* another trainer's command, or NULL */
    const char *bench;       /* variables of a smoke bench ("NGPUS=2 BATCH=32"), or NULL */
    const char *case_id;     /* one case, or NULL */
    const char *list;        /* a list of cases, or NULL */
    const char *environment; /* "NAME=value", blank between, or NULL */
    const char *engines;     /* folder of the libraries for --device cuda; NULL: the CPU */
    uint64_t seed;
    bool fail_early;
    double limit_s;
} ls_detect_child;

/* Runs it and reads its verdicts. LS_ERR_INFRA when it could not be started. */
ls_status ls_detect_run(const ls_detect_child *child, ls_detect_outcome *out);
void ls_detect_outcome_free(ls_detect_outcome *outcome);
/* Of a run without a fault, what is not as it must: a FAIL or WEAK, else, where the run did not end
 * with 0, another verdict but PASS and WAIVED. NULL: none. */
const ls_detect_verdict *ls_detect_alarm(const ls_detect_outcome *outcome);

/* The result of one fault, <run>/faults/<name>.json. It is caught where the case written for it has
 * the expected verdict with the expected cause. What crashed, hung, was refused or did not run has
 * shown nothing (not_run), unless that is the expected verdict; all else is missed. */
typedef struct ls_detect_result {
    bool done, caught, cause_given, cause_right;
    bool elsewhere; /* missed, and another case fails: that one is `by` */
    bool not_run;
    char why[200]; /* it was not run */
    bool stale;    /* kept, but the expected cause has changed: the named case runs again */
    double seconds;
    ls_detect_verdict by;     /* the verdict of the named case, or of another that fails */
    int others, others_asked; /* of a full run: cases of the list that fail, and cases run */
} ls_detect_result;
/* Judges the run of the case written for a fault; sets all but `done`, `stale`, seconds and others.
 */
void ls_detect_judge(const ls_detect_plant *plant, const ls_detect_outcome *outcome,
                     ls_detect_result *result);

/* Of planted faults, or of wrong trainers. */
typedef struct ls_detect_count {
    int tried, caught, elsewhere, causes_right, not_run;
    int left_out; /* this machine lacks what they need */
} ls_detect_count;

typedef struct ls_detect_summary {
    ls_detect_count planted, foreign;
    int clean, clean_failed;
    /* the right foreign trainer: its cases, those it failed, those not run */
    int right, right_failed, right_not_run;
    double seconds;
} ls_detect_summary;
/* 0: all that was tried is caught, and clean passes are silent; LS_ERR_CHECK: not; LS_ERR_INFRA:
 * nothing was missed, but something, or all, was not run. */
int ls_detect_code(const ls_detect_summary *summary);

/* Writes the result to <directory>/faults/<name>.json. */
ls_status ls_detect_keep(const char *directory, bool full, const ls_detect_plant *plant,
                         const ls_detect_result *result);
/* Reads the result of an earlier start. False when there is none for the same fault, case and
 * subject. When only the expected cause has changed: false, with result->stale and the counts of
 * other cases. */
bool ls_detect_kept(const char *directory, bool full, const ls_detect_plant *plant,
                    ls_detect_result *result);

/* The result of a run without a fault. */
typedef struct ls_detect_clean {
    const char *name;           /* of its file in <directory>/faults/ */
    const char *subject;        /* "": lockstep-train */
    char alarm[512], where[96]; /* evidence and case of an alarm; "": none */
    bool not_run;
    int cases;
} ls_detect_clean;
ls_status ls_detect_keep_clean(const char *directory, const ls_detect_clean *clean);
/* Reads the result for `name` and `subject` of *clean; false when there is none. */
bool ls_detect_kept_clean(const char *directory, ls_detect_clean *clean);

/* Wrong trainers in another framework, and the right ones. */

/* Appends the wrong trainers of suite/peers, whose rows mistakes.py there explains. LS_ERR_USAGE
 * for a malformed row. */
ls_status ls_detect_read_foreign(const char *peers, ls_detect_list *out);
/* The trainer in suite/peers that a wrong one was made from. */
const char *ls_detect_right_of(const ls_detect_plant *wrong);
/* Its command, by that interpreter. */
void ls_detect_right_command(const ls_detect_plant *wrong, const char *python, char *text,
                             size_t bytes);
/* Judges its run against a case, which it must pass. An alarm needs a FAIL or WEAK: all else was
 * not run. */
void ls_detect_judge_right(const ls_detect_outcome *outcome, ls_detect_clean *clean);

/* ---- detect_table.c: printed and written results --------------------------------------------- */

/* The summary of the faults and of the foreign trainers, and the line of one fault. */
void ls_detect_print_summary(const ls_detect_summary *summary, FILE *to);
void ls_detect_print_result(const ls_detect_plant *plant, const ls_detect_result *result, FILE *to);
/* Writes detect.tsv and detect.md. */
ls_status ls_detect_write_tables(const char *directory, const ls_detect_list *list,
                                 const ls_detect_result *result, const ls_detect_summary *summary);
/* Writes matrix.tsv of a full run, a row per fault and a column per case, from faults/<name>.jsonl.
 */
ls_status ls_detect_write_matrix(const char *directory, const ls_detect_list *list);

#endif
