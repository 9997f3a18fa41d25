/* Judges of what any subject dumps and reports about its speed; rows in subject.c. */
#ifndef LS_SUBJECT_H
#define LS_SUBJECT_H

#include "suite/cases/rows.h"

/* row->data of ls_subject_dump, or NULL. */
typedef struct ls_subject_dumped {
    int ranks;    /* that dump; 0: all */
    bool skipped; /* the step must be one that was skipped */
} ls_subject_dumped;

/* The dump of row->job[0].dump_steps by every rank: every tensor of protocol.md under
 * torchvision's name, of the network's shape, and no other dump. */
void ls_subject_dump(const ls_case *row, const ls_record *job, ls_verdict *out);
/* The digests of a dumped step are those of the tensors dumped. */
void ls_subject_digest(const ls_case *row, const ls_record *job, ls_verdict *out);
/* With a learning rate of zero no parameter changes. */
void ls_subject_still(const ls_case *row, const ls_record *job, ls_verdict *out);
/* What batches:DIR gives is what is trained on, bit for bit. */
void ls_subject_batches(const ls_case *row, const ls_record *job, ls_verdict *out);
/* What --init gives is where training starts, bit for bit. */
void ls_subject_init(const ls_case *row, const ls_record *job, ls_verdict *out);
/* subject_speed.c: a step's time and what judging took make the time between two steps' ends. */
void ls_subject_instrument(const ls_case *row, const ls_record *job, ls_verdict *out);
/* The TensorBoard file's points are what the step events say. */
void ls_subject_curves(const ls_case *row, const ls_record *job, ls_verdict *out);
/* subject_reported.c: start, layouts and end of the last job's ranks say what its steps say, of
 * which *row->data (an int; NULL: 0) at least were skipped. */
void ls_subject_whole(const ls_case *row, const ls_record *job, ls_verdict *out);
/* Which steps have a line, and whether it must say the time that is left. */
typedef struct ls_subject_lines {
    int every;
    bool left;
} ls_subject_lines;
/* The lines that rank 0 prints say what the step events say. */
void ls_subject_printed(const ls_case *row, const ls_record *job, ls_verdict *out);

#endif
