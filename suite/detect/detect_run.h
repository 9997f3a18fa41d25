/* One run of cases in a process of its own, with or without a fault. */
#ifndef LS_DETECT_RUN_H
#define LS_DETECT_RUN_H

#include "suite/suite.h"
#include "detect_plants.h"

/* One verdict that a run of cases wrote. */
typedef struct ls_detect_verdict {
    char case_id[LS_CASE_ID_BYTES], code[16], evidence[512], cause[320];
} ls_detect_verdict;

typedef struct ls_detect_outcome {
    int count, capacity;
    ls_detect_verdict *verdict;
    double seconds;
    bool timed_out, stopped;
    int code; /* exit code of the run */
} ls_detect_outcome;

/* The run: `lockstep conform` of one build. */
typedef struct ls_detect_child {
    const char *program;   /* build/planted/lockstep */
    const char *wish;      /* NULL: no fault */
    const char *directory; /* --out; the log is <directory>.log */
    const char *subject;   /* another trainer's command, or NULL */
    const char *case_id;   /* one case, or NULL */
    const char *list;      /* a list of cases, or NULL */
    const char *engines;   /* folder of the libraries for --device cuda; NULL: the CPU */
    uint64_t seed;
    bool fail_early;
    double limit_s;
} ls_detect_child;

/* Runs it and reads its verdicts. LS_ERR_INFRA when it could not be started. */
ls_status ls_detect_run(const ls_detect_child *child, ls_detect_outcome *out);
void ls_detect_outcome_free(ls_detect_outcome *outcome);
/* The first verdict against the subject: FAIL, CRASH, TIMEOUT or WEAK. NULL: none; UNSUPPORTED,
 * INFRA and SKIP do not count. */
const ls_detect_verdict *ls_detect_catch(const ls_detect_outcome *outcome);

/* The result of one fault, <run>/faults/<name>.json. */
typedef struct ls_detect_result {
    bool done, caught, by_named, cause_given, cause_right;
    bool refused; /* a foreign trainer whose PyTorch lacks a feature that the case needs */
    bool stale;   /* kept, but the expected cause has changed: the named case runs again */
    double seconds;
    ls_detect_verdict by;     /* the verdict that caught it */
    int others, others_asked; /* of a full run: cases of the list that caught it, and cases run */
} ls_detect_result;

typedef struct ls_detect_summary {
    int faults, caught, by_named, causes_right;
    int clean, clean_failed;
    int foreign, foreign_caught, foreign_refused, foreign_not_run, foreign_causes_right;
    int right, right_failed; /* the right foreign trainer: its cases, and those it failed */
    double seconds;
} ls_detect_summary;

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
    bool refused;
    int cases;
} ls_detect_clean;
ls_status ls_detect_keep_clean(const char *directory, const ls_detect_clean *clean);
/* Reads the result for `name` and `subject` of *clean; false when there is none. */
bool ls_detect_kept_clean(const char *directory, ls_detect_clean *clean);

#endif
