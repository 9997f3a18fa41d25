/* Finds the wrong elements of a gradient and describes their position in a few words. */
#ifndef LS_DIAGNOSE_PLACE_H
#define LS_DIAGNOSE_PLACE_H

#include "diagnose_wrong.h"

typedef struct ls_diagnose_place {
    int64_t count;  /* of the wrong elements */
    int64_t *index; /* [count] in the whole gradient, ascending; owned */
    int tensors;    /* that contain wrong elements */
    bool most;      /* more than half of all elements */
    bool pattern;   /* `text` says more than "n elements" */
    char text[160]; /* "the last 3 elements of 21 tensors", "layer1.0.bn1.weight" */
} ls_diagnose_place;

/* An element is wrong if its error is more than four times its tensor's `noise`. LS_ERR_INFRA
 * without memory. */
ls_status ls_diagnose_place_find(const ls_diagnose_wrong *wrong, ls_diagnose_place *out);
void ls_diagnose_place_free(ls_diagnose_place *place);

#endif
