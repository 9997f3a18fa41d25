/* What a rank was doing when its process ended: the calls of the step that it did not close
 * (events.md, "The open step"). */
#ifndef LS_OBSERVE_OPEN_STEP_H
#define LS_OBSERVE_OPEN_STEP_H

#include "trace.h"

/* Reads open.rank<k> into rank->open; leaves it NULL where there is none, or where the step was
 * closed after all. */
void ls_open_step_read(const char *directory, int k, ls_observe_rank *rank);
void ls_open_step_free(ls_observe_rank *rank);
/* The step of that number, closed or open, or NULL. */
const ls_observe_step *ls_open_step_of(const ls_observe_rank *rank, int64_t number);

#endif
