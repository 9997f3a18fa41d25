/* Going through the calls of a rank in order, with what is known before each of them. */
#ifndef LS_OBSERVE_CALLS_H
#define LS_OBSERVE_CALLS_H

#include "trace.h"

/* Indices from there on are not followed. */
enum { LS_CALLS_OPTIMIZERS = 16, LS_CALLS_SCALERS = 8 };

/* The gradients that an optimizer may step by: of backward calls since they were cleared, or since
 * its last attempt to step. Which of several optimizers a backward feeds is not recorded: it counts
 * for all of them. */
typedef struct ls_calls_grad {
    int scaled;                  /* backward calls of a scaler's own result */
    int derived;                 /* of tensors that may be computed from such a result */
    int plain;                   /* of others */
    int unscaled;                /* calls of unscale_ by the script */
    int after_unscale;           /* scaled backward calls since the last of them */
    int unscale_update;          /* updates of the scaler before it */
    int forwards, half_forwards; /* training forwards; of them, those under f16 autocast */
    unsigned by;                 /* scalers of those scaled */
    const ls_call *plain_call;   /* the last of those, or NULL */
    const ls_call *update;       /* of the scaler since the first scaled backward, or NULL */
} ls_calls_grad;

typedef struct ls_calls_optimizer {
    unsigned shares; /* optimizers that have a parameter in common with this one, itself included */
    unsigned models; /* whose parameters it has */
    ls_calls_grad grad;
    int attempts;           /* to step, in vain or not */
    int backwards;          /* since the last attempt */
    bool cleared;           /* gradients, since the last attempt */
    bool by_hand;           /* so, but no zero_grad was seen: a forward found none */
    int left;               /* most gradients that a forward of its models found since then */
    int found;              /* by unscale_ since the scaler's last update: 1, 0 or -1: not asked */
    bool stepped;           /* by its scaler, since that was updated */
    const ls_call *attempt; /* the last one, or NULL */
    const ls_call *clear;   /* the last zero_grad that reached it, or NULL */
} ls_calls_optimizer;

typedef struct ls_calls_scaler {
    bool enabled;
    unsigned optimizers; /* those that the rank ever steps or unscales with it */
    double scale;
    int updates, steps;
    int backwards; /* scaled and derived, since the last update */
    int found;     /* since the last update: 1, 0 or -1: not asked */
    const ls_call *update;
} ls_calls_scaler;

typedef struct ls_calls {
    const ls_observe_rank *rank;
    const ls_observe_step *step;
    const ls_call *call;
    int step_index, call_index;
    int scales;          /* calls of scaler.scale since the last backward */
    unsigned optimizers; /* that ever step, or are stepped by a scaler */
    ls_calls_optimizer optimizer[LS_CALLS_OPTIMIZERS];
    ls_calls_scaler scaler[LS_CALLS_SCALERS];
} ls_calls;

/* ls_calls_start(&calls, rank); while (ls_calls_next(&calls)) { ... calls.call ... } : what the
 * struct holds is the state before that call; after the last one, at the end. ls_calls_each does
 * the same. */
void ls_calls_start(ls_calls *calls, const ls_observe_rank *rank);
bool ls_calls_next(ls_calls *calls);
ls_calls ls_calls_begin(const ls_observe_rank *rank);
#define ls_calls_each(calls, rank) \
    for (ls_calls calls = ls_calls_begin(rank); ls_calls_next(&calls);)

/* The state of the call's optimizer or scaler; NULL: none, or beyond the limits. */
ls_calls_optimizer *ls_calls_optimizer_of(ls_calls *calls, const ls_call *call);
ls_calls_scaler *ls_calls_scaler_of(ls_calls *calls, const ls_call *call);
/* The scaler whose only optimizer is that one; NULL: it has none, or its scaler steps others. */
const ls_calls_scaler *ls_calls_sole_scaler(const ls_calls *calls, int optimizer);
/* Whether the call asks an optimizer to step: a scaler's step, or one outside any scaler. */
bool ls_calls_is_attempt(const ls_call *call);
/* Backward calls that an optimizer may step by: since its gradients were cleared, or since its last
 * attempt. */
int ls_calls_pending(const ls_calls_optimizer *optimizer);
/* The optimizers that have parameters of a model; of -1: all. */
unsigned ls_calls_optimizers_of(const ls_calls *calls, int model);
/* A member that is true or false: 1 or 0; -1: it is neither. */
int ls_calls_flag_of(const ls_call *call, ls_event_member member);
#define ls_calls_flag(call, name) ls_calls_flag_of((call), LS_BOOL(name))
const char *ls_calls_text_of(const ls_call *call, ls_event_member member);
#define ls_calls_text(call, name) \
    ls_calls_text_of((call), LS_TEXT_MEMBER(name)) /* "" where absent */
long long ls_calls_step(const ls_calls *calls);    /* number of the step */
/* The rate of a group, of an optimizer's or a schedule's step; NaN: not known. */
double ls_calls_rate(const ls_call *call, int group);
/* A forward that is followed by a backward: with autograd on. */
bool ls_calls_is_training(const ls_call *call);
/* Whether an enabled scaler scaled a loss or stepped an optimizer on any rank. */
bool ls_calls_use_scaler(const ls_observe_trace *trace);
/* Whether a model is replicated over a part of the ranks only: which, is not recorded. */
bool ls_calls_in_part(const ls_observe_trace *trace);
/* Whether a collective puts values of ranks together: barriers and broadcasts do not, nor do votes
 * on what a callback has decided. */
bool ls_calls_combine(const ls_call *call);
int ls_calls_count(unsigned mask); /* of its bits */
/* Of findings on several passes, models or files: the worst, of equals the first. */
void ls_calls_keep_worst(ls_observe_finding *out, const ls_observe_finding *one);

/* ---- what a job loses by its GradScaler: parts of the rule scaler.trace ---------------------- */

/* Fails where an optimizer is stepped by one scaler after another that were built on one line: the
 * scale and the count of clean steps are lost each time. Scalers that step an optimizer in turn are
 * not that, nor is one whose state was loaded. True: each was for one step, which is sure. */
bool ls_scaler_lost_scale(const ls_observe_trace *trace, ls_observe_finding *out);
/* Names jobs that lose many of their steps to the loss scale; adds to a finding that is no FAIL
 * yet.
 */
void ls_scaler_lost_steps(const ls_observe_trace *trace, ls_observe_finding *out);

/* ---- lengths of schedules: parts of rules ---------------------------------------------------- */

/* Whether another schedule steps the one of that event. */
bool ls_spans_held(const ls_observe_rank *rank, const ls_event *schedule);
/* Schedules that are made for a number of calls, against the calls, steps and batches that the job
 * made. For jobs that ended by themselves: adds to a finding that is no FAIL yet. */
void ls_spans_judge(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
