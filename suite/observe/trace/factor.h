/* Which multiple of the mean of all ranks' gradients a step has: of gradients that a hook or the
 * script reduces, and of what the optimizer finds in the end. */
#ifndef LS_OBSERVE_FACTOR_H
#define LS_OBSERVE_FACTOR_H

#include "calls.h"
#include "trace.h"
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
    /* Weights of the terms that losses are made of, over all ranks and micro-steps: */
    double share;       /* their sum over the ranks' number, 1 for a mean; NaN: not known */
    double ratio;       /* the largest to the smallest, of the step where it is largest; 0: none */
    double few, many;   /* terms of these two losses */
    int64_t ratio_step; /* that step */
    int inverse;        /* steps whose losses are sums divided by the number of all terms */
    double terms;       /* that number */
    bool terms_vary;    /* from step to step */
    int parts;          /* steps in which a part of the losses is such a sum */
    double part_terms, part_weight;
    bool parts_vary;
    int uneven, counted; /* steps of means over unequal numbers with sums; one is of all terms */
    bool mixed;          /* values of ranks were put together between forward and backward */
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
/* WEAK where terms of the losses have unequal weights; leaves one that is no PASS as it is. */
void ls_factor_judge_weights(const ls_factor *factor, ls_observe_finding *out);
/* The verdict on what was added; leaves one that is no PASS as it is. */
void ls_factor_judge(const ls_factor *factor, ls_observe_finding *out);

/* Gradients beyond what a step's own backward calls gave. */

/* Whether a detailed step's gradients are more than its backward calls gave (group "local"), or the
 * optimizer used others than a multiple of what those since the last zero_grad gave ("since"): 1,
 * 0, or -1: no samples say so. Scripts also clear gradients by hand, which no call shows. */
int ls_factor_exceeds(const ls_observe_trace *trace, int rank, int64_t number, const char *group);
/* Whether the script put something else into .grad than its last passes gave, such as a sum of its
 * own of gradients that it clipped one by one: 1, 0 in all detailed steps, or -1: no samples say
 * so, as of jobs that reduce by hand. */
int ls_factor_made_by_hand(const ls_observe_trace *trace, int rank);

/* Gradients that are in place before a step's own backward: of earlier backward calls by which
 * their optimizer has stepped already, or has not yet. */
/* Of an optimizer's parameters, before the first backward of a step. */
typedef struct ls_carried {
    bool reused;  /* the optimizer has stepped by them already, or by nothing that was seen */
    bool carried; /* they are of earlier backward calls, by which it has not stepped yet */
    const char
        *from; /* the place of such a call that is not the place of the step's own, or NULL */
    int left;  /* how many its models' forwards found; -1: not known */
} ls_carried;

/* The state of each optimizer of a rank [LS_CALLS_OPTIMIZERS], owned by the caller. */
ls_carried *ls_factor_read_carried(const ls_samples *samples, int rank);
/* That of the optimizer that has the parameter. */
ls_carried ls_factor_carried_of(const ls_samples *samples, int rank, const char *name,
                                const ls_carried *all);
/* Whether the parameter's gradients may have been collected over several steps of others. */
bool ls_factor_is_carried(const ls_samples *samples, int rank, const char *name);

#endif
