/* Files that a job saved or loaded, as its events describe them. */
#ifndef LS_OBSERVE_SAVED_H
#define LS_OBSERVE_SAVED_H

#include "trace.h"

/* Whether `what` of a save or a load has that part: "model", "optimizer", ... */
bool ls_saved_has(const ls_event *event, const char *part);
/* The first load_state_dict of a rank into `what`: "model", "scaler", ...; NULL: none. */
const ls_event *ls_saved_restored(const ls_observe_rank *rank, const char *what);
/* Steps done at a save, a load or a restore. */
int64_t ls_saved_step(const ls_event *event);
/* Files that the ranks write at the same step are one checkpoint in parts. */
bool ls_saved_checkpoint_has(const ls_observe_trace *trace, int64_t step, const char *part);
/* Saves of all ranks with that part. */
int ls_saved_count(const ls_observe_trace *trace, const char *part);
/* Whether the events say what files hold; else the verdict is set. */
bool ls_saved_concerns(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
