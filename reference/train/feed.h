/* Batches on their way from the loader to the plan. Where the device works beside the host they are
 * copied one ahead, into places of the plan that take turns; else the plan reads the loader's
 * memory. With --resident the same few batches stay on the device. */
#ifndef LS_FEED_H
#define LS_FEED_H

#include "trainer.h"

typedef struct ls_feed ls_feed;

typedef struct ls_feed_batch {
    ls_loader_batch host; /* valid until ls_feed_ahead; without data (NULL) when resident */
    int place;            /* of the plan; -1: the plan takes the host's */
    double waited_ms;     /* for the loader, and for a copy to end */
} ls_feed_batch;

/* Places of the plan that batches take turns in; 0: none. */
int ls_feed_places(const ls_trainer *trainer);
/* For the micro-steps from trainer->first_step to last_step. */
ls_status ls_feed_open(const ls_trainer *trainer, ls_feed **out);
void ls_feed_close(ls_feed *feed);
/* The batch of the micro-step that comes next. Errors of the loader surface here. */
ls_status ls_feed_take(ls_feed *feed, ls_feed_batch *out);
/* The micro-step is enqueued: the next batch may set out. Fails only where the device does. */
ls_status ls_feed_ahead(ls_feed *feed);

#endif
