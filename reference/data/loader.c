#include "loader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/core/digest.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "dataset.h"
#include "transform.h"

/* A ring of slots, one micro-batch each: the caller reads one while threads fill the others. Items
 * are claimed in order of batch and item, so that all threads work on the batch that is needed
 * next. */
enum { SLOTS = 3, WORKERS_MAX = 256, LIMIT_S = 600 };

typedef struct slot {
    int64_t batch; /* the micro-batch in this slot, from 0 */
    int64_t epoch;
    int64_t *index; /* [items] */
    bool *bad;      /* [items] */
    void *images;   /* bytes or f32 */
    int64_t *target;
    int left; /* items not yet filled */
    ls_status
        status;      /* of the lowest failed item, which does not depend on the number of threads */
    int failed_item; /* or, where none failed, the lowest bad one: `why` is of it */
    char why[LS_DATASET_WHY];
} slot;

struct ls_loader {
    ls_dataset *dataset;
    ls_loader_options options;
    size_t image_values;
    int64_t first_batch, taken; /* taken: batches given to the caller */
    int slot_count;
    slot slots[SLOTS];

    pthread_mutex_t mutex; /* guards everything below, and the slots' counters and errors */
    pthread_cond_t work, ready;
    int64_t next_batch; /* relative to first_batch: the next batch to claim */
    int next_item;
    int in_flight; /* items being filled */
    bool paused, closing;
    ls_status plan_status; /* of the plan call that failed; ends the loader */
    int worker_count;
    pthread_t workers[WORKERS_MAX];
    void *scratch;   /* the caller's, without workers */
    int bad_batches; /* that were taken */
    ls_loader_memory memory;
};

/* ---- filling --------------------------------------------------------------------------------- */

typedef struct claim {
    slot *slot;
    int item;
} claim;

/* Whether the slot of the next batch is free: its reader has released it. */
static bool can_claim(const ls_loader *loader)
{
    int64_t held = loader->taken > 0 ? loader->taken - 1 : 0;
    return loader->plan_status == LS_OK && loader->next_batch < held + loader->slot_count;
}

/* With the mutex held, or without workers. */
static ls_status take_claim(ls_loader *loader, claim *out)
{
    slot *slot = &loader->slots[loader->next_batch % loader->slot_count];
    if (loader->next_item == 0) {
        slot->batch = loader->first_batch + loader->next_batch;
        slot->left = loader->dataset->items;
        slot->status = LS_OK;
        slot->failed_item = loader->dataset->items;
        memset(slot->bad, 0, (size_t)loader->dataset->items * sizeof *slot->bad);
        loader->plan_status =
            loader->dataset->plan(loader->dataset, slot->batch, &slot->epoch, slot->index);
        LS_TRY(loader->plan_status);
    }
    *out = (claim){slot, loader->next_item++};
    if (loader->next_item == loader->dataset->items) {
        loader->next_item = 0;
        loader->next_batch++;
    }
    return LS_OK;
}

static ls_status fill_claim(const ls_loader *loader, const claim *claim, void *scratch, char *why)
{
    const slot *slot = claim->slot;
    size_t first = (size_t)claim->item * loader->image_values;
    bool bytes = loader->dataset->bytes;
    why[0] = '\0';
    ls_dataset_item item = {
        .batch = slot->batch,
        .epoch = slot->epoch,
        .index = slot->index[claim->item],
        .input = bytes ? NULL : (float *)slot->images + first,
        .bytes = bytes ? (uint8_t *)slot->images + first : NULL,
        .target = slot->target + claim->item,
        .bad = slot->bad + claim->item,
        .scratch = scratch,
        .why = why,
    };
    return loader->dataset->fill(loader->dataset, &item);
}

/* With the mutex held, or without workers. */
static void finish_claim(const claim *claim, ls_status status, const char *why)
{
    slot *slot = claim->slot;
    slot->left--;
    bool first = claim->item < slot->failed_item;
    if (status != LS_OK ? first || slot->status == LS_OK
                        : slot->bad[claim->item] && first && slot->status == LS_OK) {
        slot->status = status;
        slot->failed_item = claim->item;
        memcpy(slot->why, why, sizeof slot->why);
    }
}

static void *run_worker(void *opaque)
{
    ls_loader *loader = opaque;
    void *scratch = NULL;
    char why[LS_DATASET_WHY] = "";
    ls_status status = LS_OK;
    if (loader->dataset->scratch_create != NULL) {
        status = loader->dataset->scratch_create(loader->dataset, &scratch);
    }
    pthread_mutex_lock(&loader->mutex);
    if (status != LS_OK) {
        loader->plan_status = status;
        pthread_cond_broadcast(&loader->ready);
    }
    while (!loader->closing) {
        claim claim;
        if (loader->paused || !can_claim(loader)) {
            pthread_cond_wait(&loader->work, &loader->mutex);
            continue;
        }
        if (take_claim(loader, &claim) != LS_OK) {
            pthread_cond_broadcast(&loader->ready);
            continue;
        }
        loader->in_flight++;
        pthread_mutex_unlock(&loader->mutex);
        status = fill_claim(loader, &claim, scratch, why);
        pthread_mutex_lock(&loader->mutex);
        loader->in_flight--;
        finish_claim(&claim, status, why);
        if (claim.slot->left == 0 || loader->paused) {
            pthread_cond_broadcast(&loader->ready);
        }
    }
    pthread_mutex_unlock(&loader->mutex);
    if (scratch != NULL) {
        loader->dataset->scratch_destroy(scratch);
    }
    return NULL;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static ls_status open_dataset(const ls_loader_options *asked, ls_dataset **out)
{
    static const char batches[] = "batches:";
    ls_loader_options settled = *asked, *options = &settled;
    if (settled.largest_batch < settled.batch_size) {
        settled.largest_batch = settled.batch_size;
    }
    if (strcmp(options->data, "synthetic") == 0) {
        return ls_dataset_synthetic_open(options, out);
    }
    if (strncmp(options->data, batches, sizeof batches - 1) == 0) {
        return ls_dataset_batches_open(options, options->data + sizeof batches - 1, out);
    }
    return ls_dataset_cifar_classes(options->data) > 0
               ? ls_dataset_cifar_open(options, options->data, out)
               : ls_dataset_folder_open(options, options->data, out);
}

static ls_status take_plain(void *context, int64_t bytes, void **out)
{
    (void)context;
    *out = malloc((size_t)bytes);
    LS_TRY_MEMORY(*out != NULL, "%lld bytes for a batch of the loader", (long long)bytes);
    return LS_OK;
}

static void give_plain(void *context, void *memory)
{
    (void)context;
    free(memory);
}

static ls_status allocate_slots(ls_loader *loader)
{
    const ls_loader_options *options = &loader->options;
    size_t batch = (size_t)options->batch_size;
    for (int i = 0; i < loader->slot_count; i++) {
        slot *slot = &loader->slots[i];
        size_t value = loader->dataset->bytes ? 1 : sizeof(float);
        int64_t bytes = (int64_t)(batch * loader->image_values * value);
        LS_TRY(loader->memory.alloc(loader->memory.context, bytes, &slot->images));
        slot->target = malloc(batch * sizeof *slot->target);
        slot->index = malloc(batch * sizeof *slot->index);
        slot->bad = calloc(batch, sizeof *slot->bad);
        LS_MEMORY(slot->target != NULL && slot->index != NULL && slot->bad != NULL);
    }
    return LS_OK;
}

static ls_status start_workers(ls_loader *loader)
{
    if (loader->options.workers == 0 && loader->dataset->scratch_create != NULL) {
        return loader->dataset->scratch_create(loader->dataset, &loader->scratch);
    }
    for (int i = 0; i < loader->options.workers; i++) {
        int error = pthread_create(&loader->workers[i], NULL, run_worker, loader);
        if (error != 0) {
            return ls_log_fail(LS_ERR_INFRA, "cannot start loader thread %d of %d: %s", i + 1,
                               loader->options.workers, strerror(error));
        }
        loader->worker_count++;
    }
    return LS_OK;
}

ls_status ls_loader_open(const ls_loader_options *options, ls_loader **out)
{
    LS_ASSERT(options->batch_size > 0 && options->image_size > 0 && options->num_classes > 0);
    LS_ASSERT(options->accumulate > 0 && options->first_step > 0);
    LS_ASSERT(options->rank >= 0 && options->rank < options->world);
    int64_t images = options->first_step;
    int largest = options->largest_batch, own = options->batch_size;
    int batch = largest > own ? largest : own;
    if (__builtin_mul_overflow(images, options->accumulate, &images) ||
        __builtin_mul_overflow(images, options->world, &images) ||
        __builtin_mul_overflow(images, batch, &images)) {
        return ls_log_fail(LS_ERR_USAGE, "step %lld of %d ranks: more images than can be numbered",
                           (long long)options->first_step, options->world);
    }
    if (options->workers < 0 || options->workers > WORKERS_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "--workers %d: 0 to %d threads", options->workers,
                           WORKERS_MAX);
    }
    ls_dataset *dataset;
    LS_TRY(open_dataset(options, &dataset));
    ls_loader *loader = calloc(1, sizeof *loader);
    LS_MEMORY(loader != NULL);
    loader->dataset = dataset;
    loader->options = *options;
    loader->options.data = NULL; /* borrowed for this call only */
    loader->options.memory = NULL;
    loader->memory = options->memory != NULL ? *options->memory
                                             : (ls_loader_memory){NULL, take_plain, give_plain};
    loader->image_values = 3 * (size_t)options->image_size * (size_t)options->image_size;
    loader->first_batch = (options->first_step - 1) * options->accumulate;
    loader->slot_count = options->workers == 0 ? 1 : SLOTS;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    ls_status status = allocate_slots(loader);
    LS_THEN(status, start_workers(loader));
    if (status != LS_OK) {
        ls_loader_close(loader);
        return status;
    }
    *out = loader;
    return LS_OK;
}

void ls_loader_close(ls_loader *loader)
{
    if (loader == NULL) {
        return;
    }
    pthread_mutex_lock(&loader->mutex);
    loader->closing = true;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < loader->worker_count; i++) {
        pthread_join(loader->workers[i], NULL);
    }
    if (loader->scratch != NULL) {
        loader->dataset->scratch_destroy(loader->scratch);
    }
    for (int i = 0; i < loader->slot_count; i++) {
        if (loader->slots[i].images != NULL) {
            loader->memory.free(loader->memory.context, loader->slots[i].images);
        }
        free(loader->slots[i].target);
        free(loader->slots[i].index);
        free(loader->slots[i].bad);
    }
    pthread_cond_destroy(&loader->work);
    pthread_cond_destroy(&loader->ready);
    pthread_mutex_destroy(&loader->mutex);
    loader->dataset->destroy(loader->dataset);
    free(loader);
}

/* ---- the caller's side ----------------------------------------------------------------------- */

static struct timespec deadline(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += LIMIT_S;
    return at;
}

/* Fills the next batch in the calling thread. */
static ls_status fill_here(ls_loader *loader)
{
    char why[LS_DATASET_WHY];
    for (int i = 0; i < loader->dataset->items; i++) {
        claim claim;
        LS_TRY(take_claim(loader, &claim));
        finish_claim(&claim, fill_claim(loader, &claim, loader->scratch, why), why);
    }
    return LS_OK;
}

/* Waits until the threads have filled relative batch loader->taken, and releases the one before. */
static ls_status wait_for_batch(ls_loader *loader)
{
    struct timespec limit = deadline();
    int64_t wanted = loader->taken;
    ls_status status = LS_OK;
    pthread_mutex_lock(&loader->mutex);
    LS_ASSERT(!loader->paused);
    loader->taken++;
    pthread_cond_broadcast(&loader->work);
    slot *slot = &loader->slots[wanted % loader->slot_count];
    while (status == LS_OK && (loader->next_batch <= wanted || slot->left > 0)) {
        if (loader->plan_status != LS_OK) {
            status = loader->plan_status;
        } else if (pthread_cond_timedwait(&loader->ready, &loader->mutex, &limit) == ETIMEDOUT) {
            status = ls_log_fail(
                LS_ERR_INFRA, "the loader's threads have not filled micro-batch %lld within %d s",
                (long long)(loader->first_batch + wanted), LIMIT_S);
        }
    }
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

/* The first batches with bad pictures are worth a line each. */
static void warn_of_bad(ls_loader *loader, const slot *slot, int bad)
{
    enum { LINES_MAX = 10 };
    if (bad == 0 || loader->bad_batches == LINES_MAX) {
        return;
    }
    loader->bad_batches++;
    ls_log_warn("%d of %d pictures of a batch %s; the first: %s%s", bad, loader->dataset->items,
                loader->options.validates ? "do not count" : "were replaced", slot->why,
                loader->bad_batches == LINES_MAX ? " (later ones are only counted)" : "");
}

ls_status ls_loader_next(ls_loader *loader, ls_loader_batch *out)
{
    const slot *slot = &loader->slots[loader->taken % loader->slot_count];
    if (loader->worker_count > 0) {
        LS_TRY(wait_for_batch(loader));
    } else {
        LS_TRY(fill_here(loader));
        loader->taken++;
    }
    if (slot->status != LS_OK) {
        if (slot->why[0] != '\0') {
            ls_log_error("%s", slot->why);
        }
        return slot->status;
    }
    int bad = 0;
    for (int i = 0; i < loader->dataset->items; i++) {
        bad += slot->bad[i];
    }
    warn_of_bad(loader, slot, bad);
    *out = (ls_loader_batch){
        .input = loader->dataset->bytes ? NULL : slot->images,
        .bytes = loader->dataset->bytes ? slot->images : NULL,
        .target = slot->target,
        .index = loader->dataset->items == loader->options.batch_size ? slot->index : NULL,
        .bad = slot->bad,
        .bad_images = LS_PLANT(bad_images_not_counted, bad, 0),
        .images = loader->options.batch_size,
        .epoch = slot->epoch,
    };
    return LS_OK;
}

/* ---- what a batch holds ---------------------------------------------------------------------- */

static int64_t values_of(const ls_loader_batch *batch, int image_size)
{
    return (int64_t)batch->images * 3 * image_size * image_size;
}

bool ls_loader_gives_bytes(const ls_loader *loader)
{
    return loader->dataset->bytes;
}

void ls_loader_floats(const ls_loader_batch *batch, int image_size, float *out)
{
    int64_t values = values_of(batch, image_size);
    if (batch->bytes == NULL) {
        memcpy(out, batch->input, (size_t)values * sizeof *out);
    } else {
        ls_transform_normalise(batch->bytes, 0, values, (int64_t)image_size * image_size, out);
    }
}

static uint64_t digest_bytes(uint64_t digest, const ls_loader_batch *batch, int image_size)
{
    enum { PART = 4096 };
    float part[PART];
    ls_digest_parts parts = ls_digest_xxh64_begin(digest);
    int64_t values = values_of(batch, image_size), at = 0;
    for (;; at += PART) {
        int64_t count = values - at < PART ? values - at : PART;
        ls_transform_normalise(batch->bytes + at, at, count, (int64_t)image_size * image_size,
                               part);
        if (count < PART) {
            return ls_digest_xxh64_end(&parts, part, (size_t)count * sizeof *part);
        }
        ls_digest_xxh64_add(&parts, part, sizeof part);
    }
}

uint64_t ls_loader_digest(uint64_t digest, const ls_loader_batch *batch, int image_size)
{
    size_t values = (size_t)values_of(batch, image_size);
    digest = batch->bytes != NULL ? digest_bytes(digest, batch, image_size)
                                  : ls_digest_xxh64(digest, batch->input, values * sizeof(float));
    return ls_digest_xxh64(digest, batch->target, (size_t)batch->images * sizeof(int64_t));
}

int64_t ls_loader_images(const ls_loader *loader)
{
    return loader->dataset->images;
}

int64_t ls_loader_pictures(const ls_loader *loader)
{
    return loader->dataset->pictures;
}

int64_t ls_loader_steps_per_epoch(const ls_loader *loader)
{
    return loader->dataset->steps_per_epoch;
}

void ls_loader_pause(ls_loader *loader, bool paused)
{
    struct timespec limit = deadline();
    pthread_mutex_lock(&loader->mutex);
    loader->paused = paused;
    pthread_cond_broadcast(&loader->work);
    int error = 0;
    while (paused && loader->in_flight > 0 && error != ETIMEDOUT) {
        error = pthread_cond_timedwait(&loader->ready, &loader->mutex, &limit);
    }
    pthread_mutex_unlock(&loader->mutex);
}
