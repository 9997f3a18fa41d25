/* What the author of a case reads. A case is a row: an id that repeats it, the requirement it
 * shows, the jobs whose records it needs and the function that judges them. Rows are made by the
 * families in suite/cases/, each from a table; the runner starts each job once, whoever needs it.
 */
#ifndef LS_SUITE_H
#define LS_SUITE_H

#include <stdbool.h>
#include <stdint.h>

#include "harness/run/matrix.h"
#include "harness/run/record.h"

/* A tolerance is a value and a sentence that says where it comes from; without the sentence (a
 * literal of more than 20 characters) it does not compile. */
typedef struct ls_tol {
    double value;
    const char *why;
} ls_tol;

#define LS_TOL(number, sentence)                                                      \
    {                                                                                 \
        (number), (sentence "") + 0 * sizeof(struct {                                 \
                                      _Static_assert(sizeof(sentence "") > 20,        \
                                                     "a tolerance needs a sentence"); \
                                      int needs_a_sentence;                           \
                                  })                                                  \
    }

/* The closed set. Inside a claim everything but PASS and WAIVED fails. */
typedef enum ls_verdict_code {
    LS_PASS,
    LS_WEAK,   /* the evidence does not carry */
    LS_SKIP,   /* not judged: the run was stopped before its jobs had run */
    LS_WAIVED, /* would not pass, and lists/waivers.txt says why that is accepted */
    LS_FAIL,
    LS_CRASH,
    LS_TIMEOUT,
    LS_UNSUPPORTED, /* the subject refused with exit code 4, or left out what the case needs */
    LS_INFRA,       /* machine, disk, port: not the subject */
    LS_VERDICT_CODES,
} ls_verdict_code;

typedef struct ls_verdict {
    ls_verdict_code code;
    char evidence[512]; /* one line: what was seen */
    char cause[320];    /* one line, "" where none fits */
    bool measured;      /* value, limit, unit and limit_from say something */
    double value, limit;
    char unit[24], limit_from[240];
    double seconds; /* of judging */
} ls_verdict;

typedef enum ls_case_kind { LS_PROTOCOL, LS_INSIDE } ls_case_kind;

enum { LS_CASE_JOBS_MAX = 4, LS_CASE_ID_BYTES = 96 };

typedef struct ls_case ls_case;

/* A row of kind LS_INSIDE may have no job: it is then judged at once, with job = NULL, and calls
 * our parts through their headers. job[i]: the record of row->job[i]. The runner has judged the
 * outcome already, and calls this only when every job is done, unless the row says that it judges
 * outcomes itself. Fills `out`, which comes as PASS with empty texts. */
typedef void ls_case_judge(const ls_case *row, const ls_record *job, ls_verdict *out);

struct ls_case {
    char id[LS_CASE_ID_BYTES]; /* "gradients.o2.w4.b0.1mb": stable, unique, family first */
    char requirement[8];       /* "G1" in requirements.txt */
    ls_case_kind kind;
    int job_count;
    ls_spec job[LS_CASE_JOBS_MAX];
    bool judges_outcome; /* the case is about how a job ends */
    bool judges_refusal; /* and exit code 4 is one of the ways */
    int number[4];       /* the family's own: what its table says beyond the jobs */
    char text[128];
    ls_case_judge *judge;
};

typedef struct ls_case_list {
    int count, capacity;
    ls_case *row;
} ls_case_list;

/* What the rows depend on. */
typedef struct ls_case_settings {
    uint64_t seed;
    const char *device; /* of cases without jobs; NULL: "cpu" */
    /* NULL, or the bench's throughput jobs: families add rows that judge them */
    const ls_matrix *bench;
} ls_case_settings;

/* suite/cases/<family>.c */
void ls_gradients_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_gradients_timed_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_scaler_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_ddp_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_statistics_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_opt_levels_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_options_cases(ls_case_list *list);
void ls_masters_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_schedule_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_optim_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_accumulation_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_amp_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_casts_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_checkpoint_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_collectives_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_data_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_syncbn_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_unused_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_faults_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_launch_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_subject_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_init_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_events_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_explained_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_wire_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_small_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_network_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_training_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_audit_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_sdc_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_performance_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_kernels_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_kernels_exact_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_kernels_multi_cases(const ls_case_settings *settings, ls_case_list *list);

/* suite/cases/rows.c: the tools of the families. */
/* All cases of all families; free with ls_rows_free. */
void ls_rows_all(const ls_case_settings *settings, ls_case_list *list);
void ls_rows_free(ls_case_list *list);
/* Makes the row one without a job that calls the backend of the device in row->text, with two
 * numbers of its family's table. */
void ls_rows_inside(const ls_case_settings *settings, ls_case *row, int first, int second);
/* Drops the rows of kind LS_INSIDE. */
void ls_rows_keep_protocol(ls_case_list *list);
/* A row with its id (printf style), requirement and judge; no jobs yet. Valid until the next row.
 */
ls_case *ls_rows_add(ls_case_list *list, ls_case_judge *judge, const char *requirement,
                     const char *id_format, ...) __attribute__((format(printf, 4, 5)));
/* The usual evidence job: resnet20 at 16 pixels, batch 4 (64 values per channel in the last batch
 * norm), 2 steps, both dumped by every rank, static scale 128 where the level is half. */
ls_spec ls_rows_evidence(const ls_case_settings *settings, int level, int world, int nodes,
                         double bucket_mb);
/* ".b0.1mb", ".delay"; "" for the dialect's own rule. text[24]. */
void ls_rows_bucket_id(double bucket_mb, char *text);

/* suite/judge/verdict.c */
const char *ls_verdict_name(ls_verdict_code code);
bool ls_verdict_good(ls_verdict_code code); /* PASS, WAIVED */
/* Sets code and evidence (printf style); the first bad one stays. */
void ls_verdict_set(ls_verdict *verdict, ls_verdict_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ls_verdict_measured(ls_verdict *verdict, double value, double limit, const char *unit,
                         const char *limit_from);
/* True when the job's end decides the case: CRASH with rank and signal, TIMEOUT, UNSUPPORTED,
 * INFRA. */
bool ls_verdict_of_outcome(const ls_record *record, ls_verdict *out);

#endif
