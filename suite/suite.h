/* What a case and its verdict are. A case is a row: an id that repeats it, the requirement it
 * shows, the jobs whose records it needs and the function that judges them. The families in
 * suite/cases/ make them from tables, with the tools of suite/cases/rows.h; the runner starts each
 * job once, however many cases need it. */
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

typedef struct ls_verdict {
    ls_verdict_code code;
    int64_t compared;   /* elements, digests, steps, calls, ...: what ls_verdict_pass counted */
    char evidence[512]; /* one line: the observed values */
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
 * outcomes itself. Fills `out`, which comes without bad news, with empty texts and nothing
 * compared: that is no PASS. */
typedef void ls_case_judge(const ls_case *row, const ls_record *job, ls_verdict *out);

/* Makes what a job of the row reads, before it starts; called for each of the row's jobs that has
 * to run. A file that is there already is made again, or left as it is. */
typedef ls_status ls_case_prepare(const ls_case *row, const ls_spec *job,
                                  const char *run_directory);

/* What a case contributes to whether a timed job's figures may be quoted. */
typedef enum ls_case_counts {
    LS_COUNTS_RULE,      /* the jobs that it reads must pass it */
    LS_COUNTS_GRADIENTS, /* as RULE; on evidence jobs it also shows that gradients of their level
                            are right, which every timed job of the level needs */
    LS_COUNTS_TIMED,     /* as RULE; it compares the timed job's own first gradient with FP32 */
    LS_COUNTS_BITS,      /* as RULE; it compares the bits of all devices in two equal jobs */
    LS_COUNTS_SPEED,     /* nothing: a slow job may be right */
} ls_case_counts;

struct ls_case {
    char id[LS_CASE_ID_BYTES]; /* "gradients.o2.w4.b0.1mb": stable, unique, family first */
    char requirement[8];       /* "G1" in requirements.txt */
    const char *source;        /* the file that holds its row, from the repository's root */
    ls_case_counts counts;
    ls_case_kind kind;
    int job_count;
    ls_spec job[LS_CASE_JOBS_MAX];
    bool judges_outcome; /* the case is about how a job ends */
    bool judges_refusal; /* and exit code 4 is one of the ways */
    bool takes_disk;     /* it lets a disk be full: a lack of that is no lack of the machine */
    ls_case_judge *judge;
    ls_case_prepare *prepare; /* or NULL */
    char device[16];          /* that a case without jobs calls: "cpu", "cuda" */
    const void *data;         /* the family's own: what its table says beyond the jobs */
};

typedef struct ls_case_list {
    int count, capacity;
    ls_case *row;
    struct ls_case_memory *memory; /* of data, freed with the list */
} ls_case_list;

/* What the rows depend on. */
typedef struct ls_case_settings {
    uint64_t seed;
    const char *device; /* of cases without jobs; NULL: "cpu" */
    /* Jobs run on a CPU that has units for products of these types, slow ones too: families add
     * rows that ask for them. */
    bool bf16_units, fp16_units;
    /* NULL, or the bench's throughput jobs: families add rows that judge them */
    const ls_matrix *bench;
} ls_case_settings;

/* Frees the rows and their data. */
void ls_rows_free(ls_case_list *list);
/* Drops the rows of kind LS_INSIDE. */
void ls_rows_keep_protocol(ls_case_list *list);

/* suite/judge/verdict.c */
/* Sets code and evidence (printf style); the first bad one stays. Never LS_PASS: that is what
 * ls_verdict_pass is for. */
void ls_verdict_set(ls_verdict *verdict, ls_verdict_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with LS_FAIL. */
void ls_verdict_fail(ls_verdict *verdict, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The only way to a PASS: sets the evidence while nothing bad was seen, the last line of a judge,
 * without a condition. `compared`: how many things it has compared, as it counted them; those of
 * several calls add up. 0 in any of them is WEAK. */
void ls_verdict_pass(ls_verdict *verdict, int64_t compared, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What every caller of a judge does with its verdict: a judge that concluded nothing is WEAK. */
void ls_verdict_close(ls_verdict *verdict);
/* Sets the cause; the last one stays. */
void ls_verdict_cause(ls_verdict *verdict, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ls_verdict_measured(ls_verdict *verdict, double value, double limit, const char *unit,
                         const char *limit_from);
/* The same for the worst of several values: a NaN, or the largest. True for one within the limit.
 */
bool ls_verdict_worst(ls_verdict *verdict, double value, const ls_tol *limit, const char *unit);
/* True when the job's end decides the case: CRASH with rank and signal, TIMEOUT, UNSUPPORTED,
 * INFRA. */
bool ls_verdict_of_outcome(const ls_record *record, ls_verdict *out);
/* Of a case that its judge, of whatever family, has decided: where it blames the subject and a rank
 * of one of its `count` jobs ended for a lack of the machine (lack.h), it becomes INFRA. */
void ls_verdict_check_lack(const ls_record *job, int count, bool takes_disk, ls_verdict *out);

#endif
