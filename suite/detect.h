/* Does the suite notice? Planted faults (kernels/core/plant.h, suite/plants.txt), each run against
 * the case that must catch it, then against the must-pass list; and clean passes, which must raise
 * nothing. */
#ifndef LS_DETECT_H
#define LS_DETECT_H

#include "commands.h"

/* One line of suite/plants.txt. */
typedef struct ls_detect_plant {
    char name[48];                  /* of LS_PLANT(name, ...), or of suite/plants/<name>.patch */
    char wish[64];                  /* for the environment: the name, "@step" and ":rank" */
    char case_id[LS_CASE_ID_BYTES]; /* the case that must catch it */
    char requirement[8];
    char cause[128]; /* a pattern that the printed cause must match; "-": none is expected */
    char sentence[240];
    bool patch; /* a tree of its own, build/patched/<name>, and its build */
} ls_detect_plant;

typedef struct ls_detect_list {
    int count, capacity;
    ls_detect_plant *plant;
} ls_detect_list;

/* Reads suite/plants.txt; patches are those that lie in suite/plants/ beside it. LS_ERR_USAGE for a
 * line that is not five fields (named). */
ls_status ls_detect_read(const char *path, ls_detect_list *out);
void ls_detect_free(ls_detect_list *list);
/* Every fault names a case that exists and that case's requirement; no name twice. Logs what is
 * wrong; LS_ERR_CHECK. */
ls_status ls_detect_check(const ls_detect_list *list, const ls_case_list *cases);

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

/* What is run: `lockstep conform` of one build. */
typedef struct ls_detect_child {
    const char *program;   /* build/planted/lockstep */
    const char *wish;      /* NULL: no fault */
    const char *directory; /* --out; its log is beside it */
    const char *case_id;   /* one case, or NULL */
    const char *list;      /* a list of cases, or NULL */
    uint64_t seed;
    bool fail_early;
    double limit_s;
} ls_detect_child;

/* Runs it and reads its verdicts back. LS_ERR_INFRA where it could not be run at all. */
ls_status ls_detect_run(const ls_detect_child *child, ls_detect_outcome *out);
void ls_detect_outcome_free(ls_detect_outcome *outcome);
/* The first verdict that says that something is wrong with the subject: FAIL, CRASH, TIMEOUT or
 * WEAK. UNSUPPORTED, INFRA and SKIP show nothing. NULL: none. */
const ls_detect_verdict *ls_detect_catch(const ls_detect_outcome *outcome);

/* What became of one fault, kept in <run>/faults/<name>.json. */
typedef struct ls_detect_result {
    bool done, caught, by_named, cause_given, cause_right;
    double seconds;
    ls_detect_verdict by;     /* the verdict that caught it */
    int others, others_asked; /* of a full run: cases of the list that saw it, of how many */
} ls_detect_result;

typedef struct ls_detect_summary {
    int faults, caught, by_named, causes_right;
    int clean, clean_failed;
    double seconds;
} ls_detect_summary;

/* One line while it runs; tables/detect.tsv and detect.md at the end. */
void ls_detect_print_result(const ls_detect_plant *plant, const ls_detect_result *result, FILE *to);
ls_status ls_detect_write_tables(const char *directory, const ls_detect_list *list,
                                 const ls_detect_result *result, const ls_detect_summary *summary);
/* tables of a full run: matrix.tsv, one row a fault, one column a case, from faults/<name>.jsonl.
 */
ls_status ls_detect_write_matrix(const char *directory, const ls_detect_list *list);

#endif
