/* What became of a rank's training backward passes: a step of an optimizer, or nothing. */
#ifndef LS_OBSERVE_FATE_H
#define LS_OBSERVE_FATE_H

#include "trace.h"

/* Backward passes that belong together: up to a step, or up to where they were cleared. */
typedef struct ls_fate {
    bool stepped;      /* an optimizer was asked to step by them; false: thrown away */
    bool other;        /* thrown away, and of another purpose than to be stepped by */
    bool first;        /* of the passes before the first step (a warm-up), finite */
    bool local;        /* within no_sync() */
    int passes;        /* backward calls */
    int64_t step;      /* of the record; those of the job's end: one more */
    double by;         /* what the script multiplied the losses by; NaN: different numbers */
    bool loss_finite;  /* of all of them */
    int finite;        /* the gradients: 1, 0 or -1: not known; of several that were thrown away,
                          some of which are known, as those are */
    bool scaled;       /* a GradScaler scaled one */
    const char *at;    /* of the last backward */
    const char *gone;  /* what stepped by them, or cleared them */
    const char *input; /* digest of what the model was given last, or "" */
    const ls_call *halved; /* a sum over ranks in f16 or bf16 between backward and step, or NULL */
} ls_fate;

typedef struct ls_fates {
    int count, capacity;
    ls_fate *item;
    ls_call *tail; /* the calls of the job's end, to which `halved` may point */
} ls_fates;

/* Other purposes are known by: the inputs of the step that follows (a step to a neighbour of the
 * weights first), gradients that the script makes a step's of by itself, and a place whose passes
 * no step ever uses. Passes of forwards in eval mode, or for gradients of inputs, are left out. */
void ls_fate_read(const ls_observe_rank *rank, ls_fates *out);
void ls_fate_free(ls_fates *fates);

#endif
