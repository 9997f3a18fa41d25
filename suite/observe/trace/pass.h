/* Passes over data: one iteration of the script over a loader, as its event describes it. */
#ifndef LS_OBSERVE_PASS_H
#define LS_OBSERVE_PASS_H

#include <stdint.h>
#include "event.h"
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

/* What two passes gave for the same indices, of the samples that were looked at. */
typedef struct ls_pass_common {
    int digests, equal; /* samples that both have a digest of; of them, those of one content */
    bool vary;          /* these are of several contents */
    int classes, alike; /* samples that both have a class of; of them, those of one class */
    int other;          /* and those of another content */
    bool several;       /* these are of several classes */
} ls_pass_common;

ls_pass_common ls_pass_compare(const ls_event *a, const ls_event *b);

/* What a pass over a loader gave, by content: the keys of its samples, whatever their indices. */
typedef struct ls_contents {
    int count, capacity;
    int64_t *key;    /* [count], ascending, each once */
    int repeated;    /* further times that a key came */
    int64_t modulus; /* all keys are 0 modulo it: a power of two */
} ls_contents;

/* Adds the keys of a data event; one without keys adds none. */
void ls_pass_contents_add(ls_contents *contents, const ls_event *data);
/* Those of `a` that `b` has, too; `of`: those of `a` that it could have. */
int ls_pass_contents_common(const ls_contents *a, const ls_contents *b, int *of);
void ls_pass_contents_free(ls_contents *contents);

/* What two ranks' parts (torch.utils.data.Subset) of the same data set have in common; false where
 * they are no such parts. */
bool ls_pass_parts_common(const ls_event *a, const ls_event *b, int *common, int *of);

/* Windows of an accumulation: how many backward passes each step takes. */

/* Batches of a pass that fill no window, and whose gradients the first step of the next pass takes
 * on top of its own: a law where losses are divided for the mean of each window, else a hint. */
void ls_pass_judge_windows(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
