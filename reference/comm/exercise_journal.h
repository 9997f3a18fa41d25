/* What each collective of lockstep-collectives was given and gave, for the rules of `lockstep
 * observe`: LS_RUN_DIR/sums.rank<k>.jsonl, in the form that the observer writes underneath NCCL
 * (suite/observe/events.md, "Collectives underneath"). Only with LS_OBSERVE_DIR, and on other
 * engines than NCCL. */
#ifndef LS_EXERCISE_JOURNAL_H
#define LS_EXERCISE_JOURNAL_H

#include "comm.h"

typedef struct ls_exercise_journal ls_exercise_journal;

/* rank: of the job; own: of the communicator, whose ranks are members[world] of the job. *out NULL
 * where nothing is to be written. */
ls_status ls_exercise_journal_open(const char *run_directory, int rank, const char *engine, int own,
                                   int world, const int *members, ls_exercise_journal **out);
void ls_exercise_journal_close(ls_exercise_journal *journal); /* NULL is allowed */
/* Of an operation: kind, count, dtype, root and redop; input and buffer are on the host, and NULL
 * where this rank has none. The first and last elements of every part. */
ls_status ls_exercise_journal_add(ls_exercise_journal *journal, const ls_comm_op *what);

#endif
