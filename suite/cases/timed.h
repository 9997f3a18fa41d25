/* The single-process references of the timed jobs. */
#ifndef LS_TIMED_H
#define LS_TIMED_H

#include "reference/data/loader.h"
#include "rows.h"

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
