/* One run of cases in a process of its own, with or without a fault. */
#ifndef LS_DETECT_RUN_H
#define LS_DETECT_RUN_H

#include "suite/suite.h"

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

#endif
