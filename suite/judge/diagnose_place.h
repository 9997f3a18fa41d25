/* Which elements of a gradient are wrong, and how their places are said in a few words. */
#ifndef LS_DIAGNOSE_PLACE_H
#define LS_DIAGNOSE_PLACE_H

#include "diagnose.h"

typedef struct ls_diagnose_place {
    int64_t count;  /* of the wrong elements */
    int64_t *index; /* [count] in the whole gradient, ascending; owned */
    int tensors;    /* that hold any */
    bool most;      /* more than half of all elements */
    bool pattern;   /* the words say more than "n elements" */
    char text[160]; /* "the last 3 elements of 21 tensors", "layer1.0.bn1.weight" */
} ls_diagnose_place;

/* An element is wrong when it is four times farther off than `noise` of its tensor. LS_ERR_INFRA
 * without memory. */
ls_status ls_diagnose_place_find(const ls_diagnose_wrong *wrong, ls_diagnose_place *out);
void ls_diagnose_place_free(ls_diagnose_place *place);

#endif
