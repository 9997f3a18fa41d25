/* The tools with which a family makes its cases. A family is a table of rows:
 *
 *     {"events.trace.o0.w2", "Q32", judge_trace, "resnet8 O0 w2 b0.05 steps=7 --trace", &data},
 *
 * an id, the requirement it shows, the judge, the jobs whose records the judge reads, and what the
 * table says beyond that. */
#ifndef LS_ROWS_H
#define LS_ROWS_H

#include "suite/suite.h"
#include "reference/data/loader.h"

/* What families.def names: adds the family's cases. */
typedef void ls_family_cases(const ls_case_settings *settings, ls_case_list *list);
#define LS_FAMILY(folder, name, counts) ls_family_cases ls_##name##_cases;
#include "families.def"
#undef LS_FAMILY

typedef struct ls_row {
    const char *id; /* may hold choices: ls_rows_table */
    const char *requirement;
    ls_case_judge *judge;
    const char *jobs; /* ls_rows_spec, several divided by " | "; NULL: none, the row is inside */
    const void *data; /* the family's own: a static table, or memory of ls_rows_memory */
    const char *script;
    ls_case_prepare *prepare;
    ls_case_counts counts; /* LS_COUNTS_RULE: as families.def says */
    bool judges_outcome, judges_refusal, takes_disk, inside; /* as in ls_case */
} ls_row;

/* Adds every row of a table. An id may hold choices, and then stands for a case of each:
 * "moves.o[0|1].w[2|3]" is four. $1 in `jobs` is what was chosen from the first pair of brackets;
 * in [o2=O2 bf16|off=] the id gets what is in front of the '=', and $1 what is behind it. */
void ls_rows_table(ls_case_list *list, const ls_case_settings *settings, const ls_row *rows,
                   size_t count);
#define LS_ROWS(list, settings, rows) \
    ls_rows_table(list, settings, rows, sizeof(rows) / sizeof *(rows))
/* Adds one row whose id and jobs are made by printf: "gradients.%s.w3: resnet20 O%d w3"; without
 * ": " there are no jobs. `row` says the rest. */
ls_case *ls_rows_format(ls_case_list *list, const ls_case_settings *settings, const ls_row *row,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Adds a row for each element of a table of structs that begin with their name, a string: `format`
 * is as above and has one %s for the name, and the row's data is the element. */
void ls_rows_each(ls_case_list *list, const ls_case_settings *settings, const ls_row *row,
                  const char *format, const void *table, size_t count, size_t bytes);
#define LS_ROWS_EACH(list, settings, row, format, table)                              \
    ls_rows_each(list, settings, row, format, table, sizeof(table) / sizeof *(table), \
                 sizeof *(table))
/* Adds one row whose jobs are `count` specs as they are, such as the bench's. */
ls_case *ls_rows_specs(ls_case_list *list, const ls_case_settings *settings, const ls_row *row,
                       const ls_spec *jobs, int count, const char *id_format, ...)
    __attribute__((format(printf, 6, 7)));
/* Zeroed memory that is freed with the list. */
void *ls_rows_memory(ls_case_list *list, size_t bytes);

/* Text to a job, on top of the usual evidence job: resnet20 at 16 pixels, batch 4 (64 values per
 * channel in the last batch norm), one rank, 2 steps, one thread, deterministic, nothing dumped,
 * lr 0.05, the run's seed, static scale 128 where the level is half.
 *
 *   resnet8 ...            network                  w2 n2             ranks, simulated nodes
 *   O0 O1 O2 O3 no-level   opt level                b0.1 delay        bucket of MiB, or one after
 *   bf16                   instead of fp16                            the whole backward
 *   torch                  the dialect              sync              batch norm over all ranks
 *   image=64 batch=8 accumulate=2 warmup=1 steps=4 threads=0 lr=1 repeat=1
 *   limit=120 grace=2      seconds for the job, and for the others after the first failure
 *   dump=1,2               steps that are dumped, by every rank; dump-ranks=0: by rank 0 only
 *   scale=dynamic          loss scale; "scale=" leaves it to the level
 *   data=DIR               not synthetic
 *   batches=at@2:1,4:0     batches and network of an overflow: kind, and STEP:RANK,... that are odd
 *   undetermined           without --deterministic
 *   next-seed              the run's seed and one
 *   alone                  without torchrun's variables
 *   kill=1:3               SIGKILL to rank 1 at step 3
 *   shell                  the row's script starts the subject
 *   --lr=1 ...             further options, as they are; {job:0} is the folder of the row's job 0
 *
 * Returns NULL, or the word that is none of these. */
const char *ls_rows_read_spec(const ls_case_settings *settings, const char *text, ls_spec *spec);
/* The same for text of our own tables: a wrong word ends the program. */
ls_spec ls_rows_spec(const ls_case_settings *settings, const char *text);

/* Cases about how a job ends: the exit code of every rank, what its log says, what it must not have
 * written. */

enum { LS_ENDINGS_KILLED = -9, LS_ENDINGS_ANY = -1, LS_ENDINGS_RANKS = 4 };

typedef struct ls_ending {
    int code[LS_ENDINGS_RANKS]; /* of rank k; LS_ENDINGS_KILLED: by signal 9; LS_ENDINGS_ANY: not
                                   looked at */
    unsigned says;              /* ranks (a bit each) whose log must hold `text` */
    const char *text;           /* NULL: nothing is asked for */
    bool unwritten;             /* no rank may have written events */
    const char *absent;         /* a file of the job's folder that must not be there, or NULL */
    bool unstepped;             /* no rank may have taken a step */
    bool clean;                 /* no *.tmp may lie in the job's folder, its dump/ or its keep/ */
    const char *kept;           /* a file of the job's folder that must hold "old\n", or NULL */
} ls_ending;

void ls_endings_judge(const ls_ending *want, const ls_record *job, ls_verdict *out);
/* The last of the row's jobs ends as its data, an ls_ending, says. */
ls_case_judge ls_endings_row;
/* The data of such a row; of one whose single rank refuses what the text names, before it writes
 * anything. */
#define LS_ENDING(...) (&(const ls_ending){__VA_ARGS__})
#define LS_REFUSAL(text) LS_ENDING({LS_ERR_USAGE}, 1, text, true)
/* Whether a rank's log holds the text. */
bool ls_endings_says(const ls_record *job, int rank, const char *text);

/* Overflows by data, for subjects that know no --overflow-at: any network and one pixel that is
 * NaN, or a network that is certain of class 0, and batches that are right about it except on the
 * chosen ranks and steps. There every logit's gradient is (p-y)*S/N = S/N, beyond fp16's 65504 for
 * S/N of 65536 and more; everywhere else it is zero. */

/* The scale at which wrong targets overflow: S/N = 2^17; 2^16 after one overflow. */
enum { LS_OVERFLOW_SCALE = 1 << 19 };

/* True for jobs that read what ls_overflow_prepare writes. */
bool ls_overflow_wants(const ls_spec *spec);
/* Makes a job one of these, in the words of a case's table: resnet8, its batches, and its weights
 * but for "same". The spec has its world and accumulation already. False for another kind.
 *
 *   at@STEP:RANK,...   every target of these batches is wrong
 *   nan@STEP:RANK,...  one pixel of these batches is NaN
 *   spoilt@STEP:RANK,...
 *                      the same with any classes and weights by the seed: gradients are not zero,
 *                      at any scale; with accumulation a pixel of the first micro-step
 *   sum@STEP:RANK,...  black images, and one target of these batches is wrong: only the last bias
 *                      has a gradient, S/N for class 0
 * Nothing overflows in
 *   same     any classes, weights by the seed, and every micro-step of a step has the same images,
 *            so that the mean of their gradients is each one of them
 *   nearly   a network that is nearly certain, and right; for a static scale of 2^20
 *   exact    batch norms that give constants, so that every logit is a sum of 64 exact numbers, one
 *            of them large
 *   moved    the weights come with running statistics, no two alike */
bool ls_overflow_read(const char *text, ls_spec *spec);
/* {run}/overflow/init.safetensors and the batches of every step and rank of a job that wants them.
 */
ls_case_prepare ls_overflow_prepare;

/* The single-process references of the timed jobs. */

/* "o2.w8.b25mb", ".n2" with nodes, ".self", ".strong", ".no_comm" or ".loader" for what a row is
 * compared with: which distinguishes a run's timed jobs. text[64]. */
void ls_timed_id(const ls_spec *spec, char *text);
/* Opens the data of one rank of a timed job, at a step, exactly as the rank draws them. `run`: the
 * run's folder. */
ls_status ls_timed_loader(const ls_spec *spec, const char *run, int rank, int64_t step,
                          ls_loader **out);
/* row->data of a case that has a reference: the mean over its steps first_step ..
 * first_step+count-1 is the gradient. */
typedef struct ls_timed_steps {
    const ls_matrix *bench; /* of which the job is one; NULL: none */
    int first_step, count;
    int leader; /* index of the job which the reference followed, where it is not job 0; else 0 */
} ls_timed_steps;

/* The FP32 job, one process, that computes the micro-batches of the first step of `spec`, one of
 * steps->bench, and which of its steps hold them. One job serves several worlds: it never moves
 * (lr 0), so each step starts from the initial parameters. */
void ls_timed_reference(const ls_spec *spec, ls_spec *reference, ls_timed_steps *steps);
/* The same for a job that is followed: one step of W micro-batches with the
 * parameters and on the branches of step 1 of `leader`, which must have run before it. Jobs of one
 * level and world start alike and draw alike, so one reference serves them all: the leader is the
 * first of them (that the others took its branches is for the judge to see). The reference of a job
 * of one process, its own leader, has the parts of its batch as micro-batches. */
const ls_spec *ls_timed_leader(const ls_matrix *bench, const ls_spec *spec);
void ls_timed_followed(const ls_spec *leader, ls_spec *reference);
/* Writes the batches (`{run}/batches/...`) that a reference job reads, drawn by the loader exactly
 * as the ranks of the timed jobs draw theirs; row->data is an ls_timed_steps. A folder
 * that is complete is left alone; a job that reads other data needs none. */
ls_case_prepare ls_timed_prepare;

#endif
