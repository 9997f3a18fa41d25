#include "feed.h"

#include <stdlib.h>

#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "reference/data/transform.h"
#include "journal.h"
#include "uneven.h"

enum { SLOTS = 2 };

struct ls_feed {
    const ls_trainer *trainer;
    int slots;       /* 0: the plan reads the loader's memory */
    int64_t number;  /* of the micro-batch that is taken next, from 0 over all resumes */
    int64_t end;     /* one beyond the last */
    ls_status ahead; /* of the batch that is on its way */
    ls_feed_batch next;
    uint64_t *resident; /* [slots] digests of batches that stay on the device; NULL: none */
};

int ls_feed_slots(const ls_trainer *trainer)
{
    if (trainer->device.api->batch_load == NULL) {
        return 0;
    }
    return trainer->options.resident > 0 ? trainer->options.resident : SLOTS;
}

ls_status ls_feed_slots_create(const ls_trainer *trainer)
{
    ls_image_format format = {.type = ls_loader_gives_bytes(trainer->loader) ? LS_U8 : LS_F32};
    ls_transform_statistics(format.mean, format.deviation);
    return trainer->device.api->batch_slots(
        trainer->plan,
        ls_feed_slots(trainer) + (trainer->evaluate != NULL ? LS_FEED_VALIDATION_SLOTS : 0),
        &format);
}

static int slot_of(const ls_feed *feed, int64_t number)
{
    return (int)(number % feed->slots);
}

/* Starts the copy of the loader's next batch. A loader's error is kept until that batch is taken,
 * because the step before it has yet to be reported. */
static ls_status send(ls_feed *feed, int64_t number)
{
    const ls_trainer *trainer = feed->trainer;
    int64_t begun_ns = ls_clock_ns();
    feed->next = (ls_feed_batch){.slot = slot_of(feed, number)};
    feed->ahead = ls_loader_next(trainer->loader, &feed->next.host);
    if (feed->ahead != LS_OK) {
        return LS_OK;
    }
    const ls_loader_batch *host = &feed->next.host;
    LS_TRY(ls_journal_batch(trainer, LS_JOURNAL_TRAINING, host, host->images));
    LS_TRY(trainer->device.api->batch_load(
        trainer->plan, feed->next.slot,
        host->bytes != NULL ? (const void *)host->bytes : host->input, host->target));
    feed->next.waited_ms = ls_clock_ms_between(begun_ns, ls_clock_ns());
    return LS_OK;
}

/* All of them, before the first step. */
static ls_status settle(ls_feed *feed)
{
    const ls_trainer *trainer = feed->trainer;
    feed->resident = ls_list_make((size_t)feed->slots, sizeof *feed->resident);
    for (int i = 0; i < feed->slots; i++) {
        LS_TRY(send(feed, i));
        LS_TRY(feed->ahead);
        if (trainer->options.audit) {
            feed->resident[i] = ls_loader_digest(0, &feed->next.host, trainer->options.image_size);
        }
        LS_TRY(trainer->device.api->batch_loaded(trainer->plan, i));
    }
    return LS_OK;
}

ls_status ls_feed_open(const ls_trainer *trainer, ls_feed **out)
{
    ls_feed *feed = ls_list_make(1, sizeof *feed);
    int accumulate = trainer->options.accumulate;
    feed->trainer = trainer;
    feed->slots = ls_feed_slots(trainer);
    feed->number = ls_uneven_own(trainer, trainer->first_step - 1) * accumulate;
    feed->end = ls_uneven_own(trainer, trainer->last_step) * accumulate;
    bool resident = trainer->options.resident > 0;
    ls_status status = feed->slots > 0 ? ls_feed_slots_create(trainer) : LS_OK;
    if (feed->slots > 0 && (resident || feed->number < feed->end)) {
        LS_THEN(status, resident ? settle(feed) : send(feed, feed->number));
    }
    if (status != LS_OK) {
        ls_feed_close(feed);
        return status;
    }
    *out = feed;
    return LS_OK;
}

void ls_feed_close(ls_feed *feed)
{
    if (feed != NULL) {
        free(feed->resident);
    }
    free(feed);
}

ls_status ls_feed_take(ls_feed *feed, ls_feed_batch *out)
{
    const ls_trainer *trainer = feed->trainer;
    if (feed->slots == 0) {
        int64_t begun_ns = ls_clock_ns();
        *out = (ls_feed_batch){.slot = -1};
        LS_TRY(ls_loader_next(trainer->loader, &out->host));
        LS_TRY(LS_PLANT(batch_dropped_after_20, LS_OK,
                        feed->number >= 20 ? ls_loader_next(trainer->loader, &out->host) : LS_OK));
        out->waited_ms = ls_clock_ms_between(begun_ns, ls_clock_ns());
        LS_TRY(ls_journal_batch(trainer, LS_JOURNAL_TRAINING, &out->host, out->host.images));
    } else if (trainer->options.resident > 0) {
        int slot = slot_of(feed, feed->number);
        *out = (ls_feed_batch){
            .host = {.images = trainer->options.batch_size, .digest = feed->resident[slot]},
            .slot = slot};
    } else {
        LS_TRY(feed->ahead);
        *out = feed->next;
    }
    feed->number++;
    return LS_OK;
}

ls_status ls_feed_ahead(ls_feed *feed)
{
    const ls_trainer *trainer = feed->trainer;
    if (feed->slots == 0 || trainer->options.resident > 0 || feed->number >= feed->end) {
        return LS_OK;
    }
    /* the loader's next batch may go where the copy of this one still reads */
    LS_TRY(trainer->device.api->batch_loaded(trainer->plan, feed->next.slot));
    return send(feed, feed->number);
}
