/* Does the suite notice? Planted faults (kernels/core/plant.h, suite/plants.txt), each run against
 * the case that must catch it, then against the must-pass list; and clean passes, which must raise
 * nothing. */
#ifndef LS_DETECT_H
#define LS_DETECT_H

#include "suite/run/command_line.h"
#include "suite/suite.h"

/* One line of suite/plants.txt, or of suite/peers/wrong/expected.txt. */
typedef struct ls_detect_plant {
    char name[48];                  /* of LS_PLANT(name, ...), or of suite/plants/<name>.patch */
    char wish[64];                  /* for the environment: the name, "@step" and ":rank" */
    char case_id[LS_CASE_ID_BYTES]; /* the case that must catch it */
    char requirement[8];
    char cause[128]; /* a pattern that the printed cause must match; "-": none is expected */
    char sentence[240];
    bool patch;         /* a tree of its own, build/patched/<name>, and its build */
    bool device;        /* a patch of a CUDA kernel: judged on the emulation in that build */
    bool foreign;       /* a wrong trainer: "foreign.<script>" */
    char script[1100];  /* of a foreign one */
    char subject[1600]; /* its command, once an interpreter is known */
} ls_detect_plant;

typedef struct ls_detect_list {
    int count, capacity;
    ls_detect_plant *plant;
} ls_detect_list;

/* Reads suite/plants.txt; patches are those that lie in suite/plants/ beside it. LS_ERR_USAGE for a
 * line that is not five fields (named). */
ls_status ls_detect_read(const char *path, ls_detect_list *out);
/* Calls `visit` with every line of the file, counted from 1, which it may change, until one fails.
 * `what` is for the message where the file cannot be read: LS_ERR_USAGE. */
typedef ls_status ls_detect_line(char *line, const char *path, int number, ls_detect_list *out);
ls_status ls_detect_read_lines(const char *path, const char *what, ls_detect_line *visit,
                               ls_detect_list *out);
/* An empty entry at the end. */
ls_detect_plant *ls_detect_append(ls_detect_list *list);
/* Appends the wrong trainers of suite/peers/wrong/expected.txt, script<TAB>case<TAB>sentence, and
 * <TAB>a pattern of the printed cause where one is expected, whose scripts lie beside it.
 * LS_ERR_USAGE for a line of another form or a script that is not there. */
ls_status ls_detect_read_foreign(const char *path, ls_detect_list *out);
void ls_detect_free(ls_detect_list *list);
/* Every fault names a case that exists and, planted ones, that case's requirement; no name twice.
 * Logs what is wrong; LS_ERR_CHECK. */
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
    const char *subject;   /* another trainer's command, or NULL */
    const char *case_id;   /* one case, or NULL */
    const char *list;      /* a list of cases, or NULL */
    const char *engines;   /* of --device cuda: the folder of its libraries; NULL: the CPU */
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
    bool refused; /* a foreign trainer whose PyTorch lacks what the case needs: nothing shown */
    bool stale;   /* kept, but another cause is expected now: the named case is asked again */
    double seconds;
    ls_detect_verdict by;     /* the verdict that caught it */
    int others, others_asked; /* of a full run: cases of the list that saw it, of how many */
} ls_detect_result;

typedef struct ls_detect_summary {
    int faults, caught, by_named, causes_right;
    int clean, clean_failed;
    int foreign, foreign_caught, foreign_refused, foreign_not_run, foreign_causes_right;
    int right, right_failed; /* the right foreign trainer: cases, and those that it did not pass */
    double seconds;
} ls_detect_summary;

/* Results of an earlier start, in <directory>/faults/. */
ls_status ls_detect_keep(const char *directory, bool full, const ls_detect_plant *plant,
                         const ls_detect_result *result);
/* True when there is one of the same question. False with result->stale, and what other cases saw,
 * where only the expected cause is another one. */
bool ls_detect_kept(const char *directory, bool full, const ls_detect_plant *plant,
                    ls_detect_result *result);

/* What a run without a fault gave. */
typedef struct ls_detect_clean {
    const char *name;           /* of its file */
    const char *subject;        /* "": our own trainer */
    char alarm[512], where[96]; /* evidence and case; "": none */
    bool refused;
    int cases;
} ls_detect_clean;
ls_status ls_detect_keep_clean(const char *directory, const ls_detect_clean *clean);
/* name and subject are given; true when there is a result of them. */
bool ls_detect_kept_clean(const char *directory, ls_detect_clean *clean);

/* Where foreign trainers are run. */
typedef struct ls_detect_place {
    const char *program, *directory; /* lockstep; the run's folder */
    const char *python;
    uint64_t seed;
    bool full;
} ls_detect_place;
/* A wrong trainer against its case; keeps the result unless a signal stopped it. A timeout catches
 * nothing: a framework takes its time on a busy machine. */
ls_status ls_detect_run_foreign(const ls_detect_place *place, const ls_detect_plant *plant,
                                ls_detect_result *result, bool *stopped);
/* The right trainer, suite/peers/pytorch_train.py, against the case of a wrong one: it must pass.
 * Counts in the summary and prints; an earlier start's result is taken. */
ls_status ls_detect_run_right(const ls_detect_place *place, const ls_detect_plant *wrong,
                              ls_detect_summary *summary, bool *stopped);

/* One line while it runs; tables/detect.tsv and detect.md at the end. */
void ls_detect_print_foreign(const ls_detect_summary *summary, FILE *to);
void ls_detect_print_result(const ls_detect_plant *plant, const ls_detect_result *result, FILE *to);
ls_status ls_detect_write_tables(const char *directory, const ls_detect_list *list,
                                 const ls_detect_result *result, const ls_detect_summary *summary);
/* tables of a full run: matrix.tsv, one row a fault, one column a case, from faults/<name>.jsonl.
 */
ls_status ls_detect_write_matrix(const char *directory, const ls_detect_list *list);

/* `lockstep detect`: 0 good, 1 a fault was missed or a clean pass raised an alarm. */
int ls_detect_main(int count, char **argument);

#endif
