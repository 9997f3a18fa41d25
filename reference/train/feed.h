/* Batches between the loader and the plan. To an asynchronous device they are copied one ahead,
 * into slots of the plan in turn; elsewhere the plan reads the loader's memory. With --resident the
 * same few batches stay on the device. */
#ifndef LS_FEED_H
#define LS_FEED_H

#include "trainer.h"

typedef struct ls_feed ls_feed;

typedef struct ls_feed_batch {
    ls_loader_batch host; /* valid until ls_feed_ahead; resident: without data (NULLs), with the
                             digest if steps are audited */
    int slot;             /* of the plan; -1: the plan reads `host` */
    double waited_ms;     /* for the loader, and for a copy to end */
} ls_feed_batch;

/* Of a validation, behind those of the feed. */
enum { LS_FEED_VALIDATION_SLOTS = 2 };

/* Slots of the plan in use by the feed; 0: the plan reads the host's memory. */
int ls_feed_slots(const ls_trainer *trainer);
/* The plan's slots: the feed's, then those of the validation. Where ls_feed_slots is not 0. */
ls_status ls_feed_slots_create(const ls_trainer *trainer);
/* For the micro-steps from trainer->first_step to last_step. */
ls_status ls_feed_open(const ls_trainer *trainer, ls_feed **out);
void ls_feed_close(ls_feed *feed);
/* The batch of the micro-step that comes next. Errors of the loader surface here. */
ls_status ls_feed_take(ls_feed *feed, ls_feed_batch *out);
/* The micro-step is enqueued: starts the copy of the next batch. Fails only where the device does.
 */
ls_status ls_feed_ahead(ls_feed *feed);

#endif
