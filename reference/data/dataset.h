/* The source of a loader's images. A dataset plans each micro-batch in order (which images it has)
 * and fills its items in any order from any thread; the contents of an item depend only on the
 * plan. */
#ifndef LS_DATASET_H
#define LS_DATASET_H

#include "loader_options.h"

enum { LS_DATASET_WHY = 1536 };

/* One item to fill: an image, or a whole micro-batch if `items` is 1. */
typedef struct ls_dataset_item {
    int64_t batch; /* micro-batch from 0: (step - 1) * accumulate + micro-batch of the step */
    int64_t epoch;
    int64_t index;   /* from plan */
    float *input;    /* [3,H,W], or [batch,3,H,W] */
    int64_t *target; /* one class, or [batch] */
    void *scratch;   /* this thread's, from scratch_create */
    char *why; /* [LS_DATASET_WHY]: the message of a failure, empty if it is already logged. The
                  loader logs it when the batch is requested, so that a batch loaded ahead but never
                  requested causes no message */
} ls_dataset_item;

typedef struct ls_dataset ls_dataset;
struct ls_dataset {
    int items;               /* per micro-batch */
    int64_t steps_per_epoch; /* 0: no end */
    /* Writes the epoch and the index of each item; one caller at a time, batches in increasing
     * order. */
    ls_status (*plan)(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index);
    ls_status (*fill)(const ls_dataset *dataset, const ls_dataset_item *item);
    ls_status (*scratch_create)(const ls_dataset *dataset, void **out); /* NULL: none needed */
    void (*scratch_destroy)(void *scratch);
    void (*destroy)(ls_dataset *dataset);
};

#endif
