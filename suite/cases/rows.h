/* The tools with which a family makes its cases. A family is a table of rows:
 *
 *     {"events.trace.o0.w2", "Q32", judge_trace, "resnet8 O0 w2 b0.05 steps=7 --trace", &data},
 *
 * an id, the requirement it shows, the judge, the jobs whose records the judge reads, and what the
 * table says beyond that. */
#ifndef LS_ROWS_H
#define LS_ROWS_H

#include "suite/suite.h"

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
 *   batches=at@2:1,4:0     overflow.h's batches and network: kind, and STEP:RANK,... that are odd
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

#endif
