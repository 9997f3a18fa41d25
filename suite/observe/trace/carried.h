/* Gradients that are in place before a step's own backward: of earlier backward calls by which
 * their optimizer has stepped already, or has not yet. */
#ifndef LS_OBSERVE_CARRIED_H
#define LS_OBSERVE_CARRIED_H

#include "calls.h"
#include "samples.h"

/* Of an optimizer's parameters, before the first backward of a step. */
typedef struct ls_carried {
    bool reused;  /* the optimizer has stepped by them already, or by nothing that was seen */
    bool carried; /* they are of earlier backward calls, by which it has not stepped yet */
    const char
        *from; /* the place of such a call that is not the place of the step's own, or NULL */
    int left;  /* how many its models' forwards found; -1: not known */
} ls_carried;

/* The state of each optimizer of a rank [LS_CALLS_OPTIMIZERS], owned by the caller. */
ls_carried *ls_carried_read(const ls_samples *samples, int rank);
/* That of the optimizer that has the parameter. */
ls_carried ls_carried_of(const ls_samples *samples, int rank, const char *name,
                         const ls_carried *all);
/* Whether the parameter's gradients may have been collected over several steps of others. */
bool ls_carried_is(const ls_samples *samples, int rank, const char *name);

#endif
