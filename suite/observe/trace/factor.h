/* Which multiple of the mean of all ranks' gradients a step has: of gradients that a hook or the
 * script reduces, and of what the optimizer finds in the end. */
#ifndef LS_OBSERVE_FACTOR_H
#define LS_OBSERVE_FACTOR_H

#include "samples.h"

typedef struct ls_multiple {
    double value; /* of the last step that has one; NaN: none */
    bool changes; /* from step to step */
} ls_multiple;

typedef struct ls_factor {
    int steps;                 /* that have one */
    int unfit;                 /* whose reduced gradients are no multiple of the mean */
    ls_multiple reduced, used; /* used: but for what unscaling and clipping multiply by */
    int micro;                 /* backward passes at the same place */
    int world;
    double loss_times;   /* what the script multiplied its losses by; NaN: not known */
    const char *loss_of; /* "mean", "sum" or "" */
    bool loss_divided;
    double loss_by;            /* the product of what they were divided by */
    const char *loss_by_ranks; /* where the script's text divides by the number of ranks, or "" */
    const char *loss_by_steps; /* the same, by the number of micro-steps */
    double loss_count, loss_first; /* of a sum */
    int64_t step;
    const ls_call *collective, *backward, *optimizer; /* of rank 0, or NULL */
    const ls_call *loss_reduced; /* a collective on what goes backward, or NULL */
    const ls_event *hook;        /* the event of a hook that is not one of torch's, or NULL */
    bool ddp;
} ls_factor;

/* Takes a detailed step that all ranks have samples of. */
void ls_factor_add(ls_factor *factor, const ls_samples *samples);
/* The multiple that the optimizer finds, but for unscaling and clipping; NaN: not known. */
double ls_factor_final(const ls_factor *factor);
/* Within the roundings of a reduction. */
bool ls_factor_is_near(double value, double wanted);
/* The verdict on what was added; leaves one that is no PASS as it is. */
void ls_factor_judge(const ls_factor *factor, ls_observe_finding *out);

#endif
