/* What the files of this family share. Their jobs are lockstep-collectives (reference/comm); what a
 * result must be is computed here once more from the definition in reference/comm/pattern.h,
 * sharing no code with the program: the digests of its results must be those of ours. */
#ifndef LS_COLLECTIVES_H
#define LS_COLLECTIVES_H

#include "suite/cases/rows.h"

/* In the memory of the device that the subject trains on. */
#define LS_COLLECTIVES_FIND \
    "D=cpu; E=gloo; for A; do case $A in --device=cuda) D=cuda; E=nccl ;; esac; done; "
#define LS_COLLECTIVES_RUN LS_COLLECTIVES_FIND "exec {bin}/lockstep-collectives --device=$D "
#define LS_COLLECTIVES_JOB "collectives O0 image=1 batch=1 steps=1 dump-ranks=0 shell "

/* Adds a row: `...` is "ID: JOBS" by printf, and its arguments. */
#define LS_COLLECTIVES_ADD(number, function, lines, what, ...) \
    ls_rows_format(list, settings,                             \
                   &(const ls_row){.requirement = number,      \
                                   .judge = function,          \
                                   .data = what,               \
                                   .script = lines,            \
                                   .inside = true,             \
                                   .judges_outcome = true},    \
                   "collectives." __VA_ARGS__)

/* ---- collectives_expected.c ------------------------------------------------------------------ */

typedef struct ls_collectives_type {
    const char *name;
    int bytes, mantissa, bias; /* mantissa 0: an integer */
    uint64_t limit;            /* of one element; 0: modulo 256 */
} ls_collectives_type;

enum { LS_COLLECTIVES_TYPES = 5, LS_COLLECTIVES_HALF_TYPES = 3 /* the first: that round */ };
extern const ls_collectives_type ls_collectives_types[LS_COLLECTIVES_TYPES];

/* One event's combination. */
typedef struct ls_collectives_combination {
    const char *op, *redop; /* "all_reduce", "max"; "none" where nothing is reduced */
    const ls_collectives_type *type;
    int64_t count;
    int rank, world, root; /* in the communicator */
    const int *members;    /* its ranks in the world, whose data is theirs; NULL: 0, 1, ... */
} ls_collectives_combination;

bool ls_collectives_reduces(const char *op);
/* The events of a rank that contain both texts, as a JSON array; the caller frees it. A job writes
 * a thousand and more, most of which a row need not parse. */
cJSON *ls_collectives_events(const ls_record *job, int rank, const char *event, const char *also);
/* Those of one operation, operator and type, as in ls_collectives_combination. */
cJSON *ls_collectives_events_of(const ls_record *job, int rank, const char *op, const char *redop,
                                const char *dtype);
/* "all_reduce (sum) of 3 fp32, root 0, in place, offset 1" */
const char *ls_collectives_place(const cJSON *event, char *text, size_t bytes);
/* Fails where an element was wrong or a guard changed. */
void ls_collectives_check_counts(int rank, const cJSON *event, ls_verdict *out);
/* Compares each event of a rank that tried a combination with its digest; `c` says all but count
 * and root. FAIL unless there are `expected`. Returns how many elements were checked. */
int64_t ls_collectives_check(const ls_record *job, int rank, ls_collectives_combination c,
                             int expected, ls_verdict *out);
/* No rank of a group leaves a barrier before the last has come; ranks of one machine share the
 * clock. Returns the number of barriers; adds to *late those that a rank had to wait at. */
int ls_collectives_barriers(const ls_record *job, const int *member, int size, int *late,
                            ls_verdict *out);
/* A rank ended an operation that another did not join with the status `want`, and if that is an
 * error no later after its deadline than processes take. *seconds: how long it took. */
void ls_collectives_absent(const ls_record *job, int rank, const char *op, int want,
                           double deadline_s, double *seconds, ls_verdict *out);
/* The line of a rank's log that says `text` says `named`, too. */
bool ls_collectives_names(const ls_record *job, int rank, const char *text, const char *named);
/* Whether the job's end decides: a program that found something wrong leaves with 1, and its events
 * say what. Fails, too, where a job on a GPU was not tried with the GPU's engine. */
bool ls_collectives_ended_otherwise(const ls_case *row, const ls_record *job, ls_verdict *out);

/* The rates in every event follow from its bytes and its time, as nccl-tests has it. */
void ls_collectives_rates(const ls_case *row, const ls_record *job, ls_verdict *out);
/* So do the rows of the table that rank 0 prints where no events are asked for. */
void ls_collectives_printed(const ls_case *row, const ls_record *job, ls_verdict *out);

#endif
