/* Passes over data: one iteration of the script over a loader, as its event describes it. */
#ifndef LS_OBSERVE_PASS_H
#define LS_OBSERVE_PASS_H

#include "trace.h"

/* Whether a backward ran in it; false for NULL. */
bool ls_pass_is_trained(const ls_event *pass);
/* Whether it went over samples without any backward. */
bool ls_pass_is_validation(const ls_event *pass);
/* The steps that were open at its first and its last batch; NaN, which compares false with every
 * number, where the event does not hold them. */
double ls_pass_first_step(const ls_event *pass);
double ls_pass_last_step(const ls_event *pass);
/* The steps between them, those included, that the rank has closed: [*count], or NULL. */
const ls_observe_step *ls_pass_steps(const ls_observe_rank *rank, const ls_event *pass, int *count);
/* The trained pass of that number, from 0; NULL: there are fewer. */
const ls_event *ls_pass_trained(const ls_observe_rank *rank, int index);
/* Whether the rank trains on a data set of the same length: most likely the same data. */
bool ls_pass_is_over_training_data(const ls_observe_rank *rank, const ls_event *pass);
/* Whether each of `world` ranks draws a part of what the loader holds: by torch's own sampler, or
 * as the counts of a whole pass show. */
bool ls_pass_is_divided(const ls_event *pass, int world);

#endif
