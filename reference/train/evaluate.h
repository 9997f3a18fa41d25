/* Validation: the pictures of a second folder, resized and cropped at the centre, through the
 * network as torch's eval() leaves it. Each picture counts once over all ranks: rank r of W takes
 * pictures r, r + W, ..., whose last batch is filled up with pictures that do not count. Loss and
 * places are computed here, in double, from the exported logits. */
#ifndef LS_EVALUATE_H
#define LS_EVALUATE_H

#include "trainer.h"

typedef struct ls_evaluate ls_evaluate;

/* The folder and its loader, with memory for batches (NULL: malloc's); *out NULL where the run
 * validates nothing. LS_ERR_USAGE for a folder
 * whose classes are not those of the training's. After the training's loader. */
ls_status ls_evaluate_open(const ls_trainer *trainer, const ls_loader_memory *memory,
                           ls_evaluate **out);
void ls_evaluate_close(ls_evaluate *evaluate); /* NULL is allowed */

int64_t ls_evaluate_pictures(const ls_evaluate *evaluate); /* of all ranks */

/* Whether the run validates after that step: the last of every --eval-every epochs, and the last of
 * the run. */
bool ls_evaluate_due(const ls_trainer *trainer, int64_t step);
/* What is told at the end of an epoch. Without images: there was none. */
typedef struct ls_evaluate_report {
    int64_t step;
    ls_events_score train;        /* of the steps since the last one, of all ranks */
    ls_events_score val, val_own; /* of all ranks, equal on all of them; of this rank */
    double seconds;               /* of the validation */
} ls_evaluate_report;

/* Validates; all ranks call it. Nothing may be on the device, and where buffers are broadcast
 * before a forward, they have been. Fills `val` and `seconds`. LS_ERR_PEER_LOST where a rank has
 * left. */
ls_status ls_evaluate_run(ls_trainer *trainer, ls_evaluate_report *report);
/* Writes the event, and on rank 0 the curves' points and a line for the terminal. */
ls_status ls_evaluate_publish(const ls_trainer *trainer, const ls_evaluate_report *report);

/* Adds one picture: logits[classes], its class, whose label is smoothed for the loss. Of equal
 * logits the class with the lower number comes first; NaN is the largest. */
void ls_evaluate_add(ls_events_score *sums, const float *logits, int classes, int64_t target,
                     double smoothing);
/* The sum of every rank's, in order of rank; errors as ls_join_gather. */
ls_status ls_evaluate_sum(ls_trainer *trainer, const char *label, const ls_events_score *own,
                          ls_events_score *all);

#endif
