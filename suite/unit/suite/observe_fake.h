/* Invented observed jobs: a small model trained on two ranks with right arithmetic in f32, or with
 * one fault, written as the attach module writes it (suite/observe/events.md). */
#ifndef LS_OBSERVE_FAKE_H
#define LS_OBSERVE_FAKE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"
#include "suite/observe/observe.h"

typedef enum fake_fault {
    FAULT_NONE,
    /* replicas */
    FAULT_PLAIN_SEEDS, /* no wrapper, a seed for each rank */
    FAULT_START,       /* the wrapper did not send a tensor */
    FAULT_SKIPS,       /* rank 1 does not take step 2 */
    FAULT_BEHIND,      /* rank 1 changes a parameter between steps */
    FAULT_BEHIND_ONE,  /* the same, and rank 0 has no samples of the second one */
    FAULT_STATE,       /* rank 1 loses its momentum */
    FAULT_RATE,        /* rank 1 steps at half the rate */
    FAULT_RATE_BUILT,  /* the same, as its optimizer was built */
    FAULT_IDLE,        /* the rate is 0 from step 2 on */
    FAULT_BUFFERS,
    /* reduction */
    FAULT_SUM,
    FAULT_OWN,
    FAULT_ONE_OWN, /* the bias alone is not reduced */
    FAULT_NO_SYNC,
    FAULT_NO_SYNC_STEPS,   /* around the backward of each second step */
    FAULT_NO_SYNC_FORWARD, /* around the forward alone */
    FAULT_BYPASSED,        /* the module inside the wrapper is called */
    FAULT_FROZEN,          /* FAULT_ONE_OWN, of a bias that was frozen when the model was wrapped */
    FAULT_NO_WRAPPER,
    FAULT_DIVIDED,
    FAULT_LEFT,
    FAULT_ELEMENT, /* one element of one tensor of rank 1 is off by 2^-18 of its bound's base */
    FAULT_HOOK_NOOP,
    FAULT_HOOK_UNKNOWN, /* sends signs */
    FAULT_HOOK_OTHER,   /* sends 0.7 times the mean */
    FAULT_REDUCED_ZERO,
    FAULT_HOOK_MEAN, /* one of the user's own that is right */
    FAULT_HOOK_SUM,
    FAULT_HOOK_SUM_DIVIDED, /* right: the loss is divided by the number of ranks */
    FAULT_REDUCED_AGAIN,
    FAULT_MULTIPLIED, /* the same without a collective */
    FAULT_LOSS_DIVIDED,
    FAULT_MICRO_SUMMED,
    FAULT_LOSS_BY_RANKS,  /* divided by the number of ranks, as the script's text says */
    FAULT_MICRO_TRAINER,  /* summed by a library that calls backward */
    FAULT_MICRO_RANKS,    /* and times the number of ranks */
    FAULT_MICRO_TIMES,    /* the same by the script itself */
    FAULT_MICRO_TWICE,    /* divided by the number of micro-steps twice */
    FAULT_TIMES_RANKS,    /* the loss is multiplied by the number of ranks */
    FAULT_TERMS,          /* means over unequal numbers of terms */
    FAULT_TERMS_EQUAL,    /* right */
    FAULT_TERMS_SUM,      /* right: sums, times the ranks, divided by the number of all terms */
    FAULT_TERMS_INVERSE,  /* the same, not times the ranks */
    FAULT_TERMS_MASKED,   /* the same of half of the terms, whose number the script summed */
    FAULT_TERMS_PARTS,    /* a part of the loss is such a sum */
    FAULT_PARTS_WEIGHED,  /* and it has a weight */
    FAULT_PARTS_HALVED,   /* which is no whole number */
    FAULT_PARTS_OF_RANKS, /* right: the same times the ranks */
    FAULT_TERMS_UNTOLD,   /* masked terms, and nothing tells of that sum */
    FAULT_TERMS_COUNTED,  /* means over unequal numbers, which the script summed */
    FAULT_MICRO_OTHER,    /* the loss is divided by twice the number of micro-steps */
    FAULT_MICRO_TAIL,     /* step 2 has one less, and divides by the number of a whole window */
    FAULT_TAIL_GIVEN,     /* the same, and a library calls backward */
    FAULT_TAIL_LIBRARY,   /* which divides */
    /* without a wrapper, gradients reduced by the script: */
    FAULT_HAND,      /* right */
    FAULT_HAND_SENT, /* right: equal from the first step on, not before */
    FAULT_HAND_SEEDS,
    FAULT_HAND_BEHIND,
    FAULT_HAND_PART, /* the bias is left out */
    FAULT_HAND_SUM,
    FAULT_HAND_PART_SUM,    /* the same, and the bias is left out */
    FAULT_HAND_SUM_DIVIDED, /* right */
    FAULT_HAND_SUM_OF_SUMS, /* may be right */
    FAULT_HAND_DIVIDED,
    FAULT_HAND_SAME_DATA,
    FAULT_HAND_PARTS,    /* right: the same, and each rank has classes that no model has */
    FAULT_HAND_SHARES,   /* one batch, of which each rank computes a part */
    FAULT_HAND_STAGES,   /* each rank a part of the model */
    FAULT_HAND_AVERAGES, /* parameters, after the step */
    FAULT_HAND_LOSS,     /* the loss, before backward */
    FAULT_HAND_OWN,      /* FAULT_HAND_PART, and the ranks start with biases of their own */
    FAULT_HAND_THRICE,   /* divided by the number of ranks three times */
    FAULT_HAND_SIGNS,    /* may be right: the signs of gradients are summed */
    FAULT_HAND_SHARDED,  /* right: each rank is given its part by a sharded optimizer */
    FAULT_HAND_OVERFLOW, /* right: an element of rank 1 is infinite */
    FAULT_HAND_DRIFT,    /* equal gradients, and each rank a factor of its own */
    FAULT_HAND_SCALED,   /* FAULT_HAND_PART, and then each rank a factor of its own */
    FAULT_HAND_NORM, /* each rank has a weight of its own, and the bias, a norm's, is left out */
    FAULT_HAND_NORM_WITHIN, /* the same, and gradients of the head are made equal */
    FAULT_HAND_LAST,
    FAULT_OVERFLOW,      /* the same with the wrapper */
    FAULT_OVERFLOW_HALF, /* right where the mean is sent as f16, whose range the sum leaves */
    FAULT_OVERFLOW_LOST, /* one is NaN, and its mean is a number */
    FAULT_SAME_DATA,
    FAULT_UNUSED,
    FAULT_UNUSED_ALLOWED,
    /* optimizer */
    FAULT_TWICE,
    FAULT_TWO_CALLS,
    FAULT_NO_DECAY,
    FAULT_COUPLED,
    FAULT_OTHER_RATE, /* 1.5 times the one reported */
    FAULT_NO_STEP,
    FAULT_STATE_LOST,   /* at every step */
    FAULT_SETTING,      /* twice the decay from step 2 on */
    FAULT_SETTING_SAID, /* the same, and the calls report it */
    FAULT_UNKNOWN_RULE,
    FAULT_STILL_SCALED,
    FAULT_UNSCALED_TWICE,
    FAULT_ZEROED,
    FAULT_ZEROED_BY_HAND, /* and zero_grad() comes before the backward */
    FAULT_FACTOR,         /* the script divides by three: allowed, not judged */
    FAULT_ULPS,           /* an element is one place off in step 1 and two in step 2 */
    FAULT_SCALE,          /* right: the script multiplies the loss and divides the gradients */
    FAULT_SCALE_NEXT,     /* in step 1 it divides by twice that, which multiplies the next loss */
    FAULT_WITHIN,         /* no FAULT: steps in hooks of the backward pass */
    FAULT_UNCLIPPED,
    FAULT_OTHER_NORM,
    FAULT_REMADE,       /* what is clipped is not what backward gave */
    FAULT_REMADE_APART, /* the same; what backward gave has other shapes on rank 1 */
    FAULT_LOST_PARAM,
    FAULT_MOVED_PARAM, /* in no group either, and the script moves it itself */
    FAULT_TAKEN_AWAY,  /* right: the script takes its gradient away before it clips */
    FAULT_FOREIGN,
    FAULT_SCHEDULE,    /* of another optimizer */
    FAULT_RATE_SET,    /* of this one, and the script writes over what it gave */
    FAULT_CLIP_EACH,   /* after each micro-step */
    FAULT_VALUE,       /* right: clipped by value */
    FAULT_MAX,         /* right: clipped by the largest element */
    FAULT_VALUE_OTHER, /* to 1.5 times the limit */
    FAULT_VALUE_NORM,  /* right: by value, then by norm */
    FAULT_OWNED,       /* right: an optimizer has all parameters, and the state of its own */
    /* the ranks' optimizers hold other parameters: */
    FAULT_DEALT,       /* right: state of their own */
    FAULT_PARTS_WHOLE, /* right: clipped by one norm */
    FAULT_PARTS,
    /* the step is by another gradient than the one it was given */
    FAULT_NEGATED,
    FAULT_STEP_SCALED,
    FAULT_STEP_UNCLIPPED,
    FAULT_NESTEROV, /* in place of plain momentum */
    /* gradient */
    FAULT_BACKWARD, /* a factor 2 in one tensor */
    FAULT_SHORT,    /* 0.85 times one tensor's: less than half types may be off */
    FAULT_NO_AGAIN,
    FAULT_SAME_BITS,   /* no FAULT: gradients to the bit those in f32, none in FP64 */
    FAULT_OTHER_BITS,  /* of one tensor they are not, and FP64 is missing */
    FAULT_HOOKED,      /* FAULT_BACKWARD of a hook */
    FAULT_HALVED,      /* a hook halves one tensor */
    FAULT_CLIPPED,     /* a hook clips what autograd gave */
    FAULT_CLIPPED_ONE, /* the largest element of one tensor, to the second one's size */
    FAULT_CLIPPED_TWO, /* the two largest, to one size */
    FAULT_CHANGED,     /* a hook on an output */
    FAULT_DROPPED,     /* a checkpoint draws again */
    FAULT_EXCLUDED,    /* one tensor is used outside, too */
    /* precision */
    FAULT_HALF,        /* parameters in bf16 */
    FAULT_STILL,       /* the same with one tensor of zeros, without a gradient */
    FAULT_LOST,        /* the same at a rate that rounding swallows */
    FAULT_LOST_SHARDS, /* and each rank holds a part of each */
    FAULT_LARGE,       /* the same with one tensor so large that it swallows its steps */
} fake_fault;

typedef struct fake_job {
    fake_fault fault;
    const char *rule; /* "sgd", "adam", "adamw" */
    int world, micro;
    double scale, clip; /* 0: no scaler, no clipping */
    const char *hook;   /* or NULL */
    const char *autocast;
} fake_job;

enum { FAKE_TENSORS = 3, FAKE_ELEMENTS = 288, FAKE_STEPS = 4, FAKE_RANKS = 4 };

static const char *const fake_name[FAKE_TENSORS] = {"fc.weight", "fc.bias", "head.weight"};
static const int fake_count[FAKE_TENSORS] = {FAKE_ELEMENTS, 8, 16};

/* One tensor of one rank. */
typedef struct fake_tensor {
    float param[FAKE_ELEMENTS], next[FAKE_ELEMENTS];
    float first[FAKE_ELEMENTS], second[FAKE_ELEMENTS];
    float next_first[FAKE_ELEMENTS], next_second[FAKE_ELEMENTS];
    double local[FAKE_ELEMENTS], sizes[FAKE_ELEMENTS];
    float sum[FAKE_ELEMENTS]; /* of the rank, as it accumulates */
    float reduced[FAKE_ELEMENTS], grad[FAKE_ELEMENTS], clipped[FAKE_ELEMENTS];
    float used[FAKE_ELEMENTS], before[FAKE_ELEMENTS]; /* before: the last step's used */
} fake_tensor;

typedef struct fake_state {
    const fake_job *job;
    char folder[64];
    fake_tensor at[FAKE_RANKS][FAKE_TENSORS];
    double norm; /* of the step's gradients */
    FILE *file[FAKE_RANKS];
} fake_state;

static const double FAKE_NORM = 0.25; /* of FAULT_VALUE_NORM */
static const double fake_lr = 0.125, fake_decay = 0.01, fake_momentum = 0.9;

static inline bool fake_is(const fake_state *s, fake_fault fault)
{
    return s->job->fault == fault;
}

/* By the number of a whole window, by whomever. */
static inline bool fake_has_tail(const fake_state *s)
{
    return s->job->fault >= FAULT_MICRO_TAIL && s->job->fault <= FAULT_TAIL_LIBRARY;
}

static inline bool fake_is_hand(const fake_state *s)
{
    return s->job->fault >= FAULT_HAND && s->job->fault < FAULT_HAND_LAST;
}

static inline bool fake_is_half(const fake_state *s)
{
    return s->job->fault >= FAULT_HALF && s->job->fault <= FAULT_LARGE;
}

static inline bool fake_deals(const fake_state *s)
{
    return s->job->fault >= FAULT_DEALT && s->job->fault <= FAULT_PARTS;
}

/* Detailed steps. */
static inline int fake_details(const fake_state *s)
{
    return fake_is(s, FAULT_LARGE) ? 3 : 2;
}

/* What multiplies the losses: of a scaler, or the script's own. */
static inline double fake_scale(const fake_state *s)
{
    return s->job->scale != 0                                        ? s->job->scale
           : fake_is(s, FAULT_SCALE) || fake_is(s, FAULT_SCALE_NEXT) ? 64
                                                                     : 1;
}

static inline bool fake_is_behind(const fake_state *s)
{
    return fake_is(s, FAULT_BEHIND) || fake_is(s, FAULT_BEHIND_ONE) ||
           fake_is(s, FAULT_HAND_BEHIND);
}

static inline bool fake_is_remade(const fake_state *s)
{
    return fake_is(s, FAULT_REMADE) || fake_is(s, FAULT_REMADE_APART);
}

/* In no group of the optimizer. */
static inline bool fake_is_out(const fake_state *s, int t)
{
    return (fake_is(s, FAULT_LOST_PARAM) || fake_is(s, FAULT_MOVED_PARAM)) && t == 2;
}

static inline bool fake_is_unclipped(const fake_state *s, int t)
{
    return fake_is_out(s, t) || (fake_is(s, FAULT_TAKEN_AWAY) && t == 2);
}

static inline double fake_rate(const fake_state *s)
{
    return fake_is(s, FAULT_LOST) || fake_is(s, FAULT_LOST_SHARDS) ? fake_lr / 1024 : fake_lr;
}

static inline double fake_rate_of(const fake_state *s, int rank)
{
    bool half = fake_is(s, FAULT_RATE) || fake_is(s, FAULT_RATE_BUILT);
    return fake_rate(s) * (half && rank == 1 ? 0.5 : 1);
}

/* Every gradient stays on its rank. */
static inline bool fake_keeps_own(const fake_state *s)
{
    return fake_is(s, FAULT_OWN) || fake_is(s, FAULT_NO_SYNC) || fake_is(s, FAULT_NO_WRAPPER) ||
           fake_is(s, FAULT_NO_SYNC_STEPS) || fake_is(s, FAULT_NO_SYNC_FORWARD) ||
           fake_is(s, FAULT_BYPASSED) || fake_is(s, FAULT_HAND_STAGES) ||
           fake_is(s, FAULT_HAND_AVERAGES) || fake_is(s, FAULT_HAND_LOSS);
}

static inline bool fake_by_value(const fake_state *s)
{
    return fake_is(s, FAULT_VALUE) || fake_is(s, FAULT_VALUE_OTHER);
}

/* Parameters that each rank draws for itself. */
static inline bool fake_seeds_ranks(const fake_state *s)
{
    return fake_is(s, FAULT_PLAIN_SEEDS) || fake_is(s, FAULT_HAND_SEEDS) ||
           fake_is(s, FAULT_HAND_STAGES);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static inline bool fake_has_norm(const fake_state *s)
{
    return fake_is(s, FAULT_HAND_NORM) || fake_is(s, FAULT_HAND_NORM_WITHIN);
}

static inline void fake_backward(fake_state *s, int step)
{
    double scale = fake_scale(s);
    for (int k = 0; k < s->job->world; k++) {
        for (int t = 0; t < FAKE_TENSORS; t++) {
            fake_tensor *x = &s->at[k][t];
            for (int i = 0; i < fake_count[t]; i++) {
                x->local[i] = x->sizes[i] = x->sum[i] = 0;
                for (int m = 0; m < s->job->micro; m++) {
                    bool same = fake_is(s, FAULT_SAME_DATA) || fake_is(s, FAULT_HAND_SAME_DATA) ||
                                fake_is(s, FAULT_HAND_PARTS) || fake_is(s, FAULT_HAND_DRIFT) ||
                                (fake_is(s, FAULT_HAND_NORM_WITHIN) && t == 2);
                    int seed = same ? 0 : k;
                    float g = (float)scale * 0.1f *
                              ls_rng_normal((uint64_t)(100 * step + 10 * m + seed), (uint64_t)t,
                                            (uint64_t)i);
                    g = fake_is(s, FAULT_STILL) && t == 2 ? 0 : g;
                    x->local[i] += g;
                    x->sizes[i] += fabs(g);
                    x->sum[i] += g;
                }
                bool over = fake_is(s, FAULT_HAND_OVERFLOW) || fake_is(s, FAULT_OVERFLOW) ||
                            fake_is(s, FAULT_OVERFLOW_LOST);
                if (over && k == 1 && t == 2 && i == 5 && step == 2) {
                    x->sum[i] = fake_is(s, FAULT_OVERFLOW_LOST) ? NAN : INFINITY;
                    x->local[i] = x->sizes[i] = x->sum[i];
                }
            }
        }
    }
}

static inline float fake_mean(const fake_state *s, int t, int i)
{
    float sum = 0, by = 1.0f / (float)s->job->world;
    for (int k = 0; k < s->job->world; k++) {
        sum += s->at[k][t].sum[i] * by;
    }
    return sum;
}

static inline void fake_reduce(fake_state *s, int step)
{
    for (int k = 0; k < s->job->world; k++) {
        for (int t = 0; t < FAKE_TENSORS; t++) {
            fake_tensor *x = &s->at[k][t];
            for (int i = 0; i < fake_count[t]; i++) {
                float mean = fake_mean(s, t, i);
                bool one = fake_is(s, FAULT_ONE_OWN) || fake_is(s, FAULT_HAND_PART) ||
                           fake_is(s, FAULT_HAND_OWN) || fake_is(s, FAULT_HAND_SCALED) ||
                           fake_is(s, FAULT_FROZEN) || fake_is(s, FAULT_HAND_PART_SUM);
                bool own = fake_keeps_own(s) || (one && t == 1) || (fake_has_norm(s) && t < 2);
                bool sum = fake_is(s, FAULT_SUM) || fake_is(s, FAULT_HOOK_SUM) ||
                           fake_is(s, FAULT_HOOK_SUM_DIVIDED) || fake_is(s, FAULT_HAND_SUM) ||
                           fake_is(s, FAULT_HAND_PART_SUM) || fake_is(s, FAULT_HAND_SUM_DIVIDED) ||
                           fake_is(s, FAULT_HAND_SUM_OF_SUMS);
                bool twice = fake_is(s, FAULT_DIVIDED) || fake_is(s, FAULT_HAND_DIVIDED);
                x->reduced[i] =
                    own                      ? x->sum[i]
                    : sum                    ? mean * (float)s->job->world
                    : twice                  ? mean / (float)s->job->world
                    : fake_is(s, FAULT_LEFT) ? mean + x->before[i]
                    : fake_is(s, FAULT_HOOK_UNKNOWN) || fake_is(s, FAULT_HAND_SIGNS)
                        ? copysignf(0.1f, mean)
                    : fake_is(s, FAULT_HAND_SHARDED)  ? mean * (float)(t % s->job->world == k)
                    : fake_is(s, FAULT_OVERFLOW_LOST) ? fminf(mean, 1)
                    : fake_is(s, FAULT_HAND_THRICE) ? mean / (float)(s->job->world * s->job->world)
                    : fake_is(s, FAULT_OVERFLOW_HALF) ? mean / (float)(fabsf(mean) * 2 < 65504)
                    : fake_is(s, FAULT_HOOK_OTHER)    ? 0.7f * mean
                    : fake_is(s, FAULT_REDUCED_ZERO)  ? 0
                                                      : mean;
                if (fake_is(s, FAULT_ELEMENT) && k == 1 && t == 2 && i == 5 && step == 2) {
                    x->reduced[i] += ldexpf(fabsf(mean) + 0.1f, -18);
                }
            }
        }
    }
}

/* Unscales, clips and hands over, of every rank. */
static inline void fake_prepare(fake_state *s, int step)
{
    double scale = fake_scale(s);
    for (int k = 0; k < s->job->world; k++) {
        double squares = 0, most = 0;
        for (int t = 0; t < FAKE_TENSORS; t++) {
            fake_tensor *x = &s->at[k][t];
            for (int i = 0; i < fake_count[t]; i++) {
                float inverse = fake_is(s, FAULT_STILL_SCALED) ? 1 : (float)(1 / scale);
                x->grad[i] = x->reduced[i] * inverse;
                x->grad[i] *= fake_is(s, FAULT_UNSCALED_TWICE) ? inverse : 1;
                float limit = fake_is(s, FAULT_VALUE_NORM) ? (float)s->job->clip : INFINITY;
                float within = fmaxf(-limit, fminf(limit, x->grad[i]));
                squares += fake_is_unclipped(s, t) ? 0 : (double)within * within;
                most = fmax(most, fabs(x->grad[i]));
            }
        }
        s->norm = (float)sqrt(squares) * (fake_is(s, FAULT_OTHER_NORM) ? 3 : 1);
        s->norm = fake_is(s, FAULT_MAX) ? most : s->norm;
        double by = s->job->clip != 0 ? fmin(1, s->job->clip / (s->norm + 1e-6)) : 1;
        by = fake_is(s, FAULT_UNCLIPPED) ? 1 : by;
        by = fake_is(s, FAULT_VALUE_NORM) ? FAKE_NORM / (s->norm + 1e-6) : by;
        by *= fake_is(s, FAULT_CLIP_EACH) ? 0.75 : 1;
        for (int t = 0; t < FAKE_TENSORS; t++) {
            fake_tensor *x = &s->at[k][t];
            for (int i = 0; i < fake_count[t]; i++) {
                float limit = (float)s->job->clip * (fake_is(s, FAULT_VALUE_OTHER) ? 1.5f : 1);
                x->clipped[i] = fake_by_value(s) ? fmaxf(-limit, fminf(limit, x->grad[i]))
                                                 : x->grad[i] * (float)by;
                x->clipped[i] = fake_is(s, FAULT_VALUE_NORM)
                                    ? fmaxf(-limit, fminf(limit, x->grad[i])) * (float)by
                                    : x->clipped[i];
                x->clipped[i] *= fake_is_remade(s) && i % 2 == 1 ? 0.5f : 1;
                bool zero = fake_is(s, FAULT_ZEROED) || fake_is(s, FAULT_ZEROED_BY_HAND);
                x->used[i] = zero ? 0 : x->clipped[i];
                x->used[i] /= fake_is(s, FAULT_FACTOR) ? 3 : 1;
                x->used[i] /= fake_is(s, FAULT_SCALE_NEXT) && step == 1 ? 2 : 1;
                bool again = fake_is(s, FAULT_REDUCED_AGAIN) || fake_is(s, FAULT_MULTIPLIED);
                x->used[i] *= again ? (float)s->job->world : 1;
                x->used[i] *= k != 1                          ? 1
                              : fake_is(s, FAULT_HAND_DRIFT)  ? 0.5f
                              : fake_is(s, FAULT_HAND_SCALED) ? 0.3f
                                                              : 1;
            }
        }
    }
}

/* Of an element in the upper half between two powers of two. */
static inline void fake_move_places(fake_state *s, int places)
{
    for (int k = 0; k < s->job->world && fake_is(s, FAULT_ULPS); k++) {
        float *used = s->at[k][0].used;
        int i = 0, power;
        while (frexpf(fabsf(used[i]), &power) < 0.76f) {
            i++;
        }
        for (int p = 0; p < places; p++) {
            used[i] = nextafterf(used[i], INFINITY);
        }
    }
}

static inline void fake_sgd(fake_tensor *x, int i, int step, double lr, double decay, bool nesterov)
{
    float d = x->used[i] + (float)decay * x->param[i];
    x->next_first[i] = step == 1 ? d : (float)fake_momentum * x->first[i] + d;
    d = nesterov ? d + (float)fake_momentum * x->next_first[i] : x->next_first[i];
    x->next[i] = x->param[i] - (float)lr * d;
}

static inline void fake_adam(fake_tensor *x, int i, int step, double lr, double decay,
                             bool decoupled)
{
    float p = x->param[i], g = x->used[i];
    if (decoupled) {
        p *= (float)(1 - lr * decay);
    } else {
        g += (float)decay * p;
    }
    x->next_first[i] = x->first[i] + 0.1f * (g - x->first[i]);
    x->next_second[i] = 0.999f * x->second[i] + 0.001f * (g * g);
    double one = 1 - pow(0.9, step), two = sqrt(1 - pow(0.999, step));
    float below = sqrtf(x->next_second[i]) / (float)two + 1e-8f;
    x->next[i] = p - (float)(lr / one) * (x->next_first[i] / below);
}

static inline void fake_update(const fake_state *s, fake_tensor *x, int i, int step, double lr)
{
    bool other = (fake_is(s, FAULT_SETTING) || fake_is(s, FAULT_SETTING_SAID)) && step > 1;
    double decay = fake_is(s, FAULT_NO_DECAY) ? 0 : fake_decay * (other ? 2 : 1);
    bool decoupled = (strcmp(s->job->rule, "adamw") == 0) != fake_is(s, FAULT_COUPLED);
    if (fake_is(s, FAULT_STATE_LOST)) {
        x->first[i] = x->second[i] = 0;
    }
    if (strcmp(s->job->rule, "sgd") == 0) {
        fake_sgd(x, i, step, lr, decay, fake_is(s, FAULT_NESTEROV));
    } else {
        fake_adam(x, i, step, lr, decay, decoupled);
    }
}

static inline float fake_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static inline void fake_step(fake_state *s, int step)
{
    for (int k = 0; k < s->job->world; k++) {
        double lr = fake_rate_of(s, k);
        lr *= fake_is(s, FAULT_OTHER_RATE) ? 1.5 : 1;
        for (int t = 0; t < FAKE_TENSORS; t++) {
            fake_tensor *x = &s->at[k][t];
            for (int i = 0; i < fake_count[t]; i++) {
                float first = x->first[i], second = x->second[i], param = x->param[i];
                float used = x->used[i];
                x->used[i] *= fake_is(s, FAULT_NEGATED)       ? -1
                              : fake_is(s, FAULT_STEP_SCALED) ? (float)s->job->scale
                                                              : 1;
                x->used[i] = fake_is(s, FAULT_STEP_UNCLIPPED) ? x->grad[i] : x->used[i];
                fake_update(s, x, i, step, lr);
                x->used[i] = used;
                if (fake_is(s, FAULT_TWICE)) {
                    x->param[i] = x->next[i];
                    x->first[i] = x->next_first[i];
                    x->second[i] = x->next_second[i];
                    fake_update(s, x, i, step + 1, lr);
                }
                x->param[i] = param;
                x->first[i] = first;
                x->second[i] = second;
                bool stays =
                    fake_is(s, FAULT_NO_STEP) || (fake_is(s, FAULT_SKIPS) && k == 1 && step == 2) ||
                    ((fake_is(s, FAULT_LOST_PARAM) || fake_is(s, FAULT_TAKEN_AWAY)) && t == 2);
                x->next[i] = stays ? param : x->next[i];
                x->next[i] = fake_is_half(s) ? fake_bf16(x->next[i]) : x->next[i];
                x->next_first[i] = stays ? first : x->next_first[i];
                x->next_first[i] *= fake_is(s, FAULT_STATE) && k == 1 && step == 2 ? 0 : 1;
            }
        }
    }
}

static inline void fake_advance(fake_state *s, int step)
{
    for (int k = 0; k < s->job->world; k++) {
        for (int t = 0; t < FAKE_TENSORS; t++) {
            fake_tensor *x = &s->at[k][t];
            memcpy(x->param, x->next, sizeof x->param);
            memcpy(x->first, x->next_first, sizeof x->first);
            memcpy(x->second, x->next_second, sizeof x->second);
            memcpy(x->before, x->used, sizeof x->before);
            x->param[0] += fake_is_behind(s) && k == 1 && step == 1 ? 0.5f : 0;
        }
    }
}

/* ---- samples --------------------------------------------------------------------------------- */

static inline void fake_add(ls_safetensors_writer *w, const char *group, int t, const char *last,
                            ls_dtype type, const void *data, int count)
{
    LS_TEXT(name, 100, "%s/%s%s%s", group, fake_name[t], last[0] == '\0' ? "" : "/", last);
    ls_shape shape = {1, {count}};
    LS_ASSERT(ls_safetensors_add_copy(w, name, type, &shape, data) == LS_OK);
}

/* Values of a parameter, in its own type. */
static inline void fake_add_param(const fake_state *s, ls_safetensors_writer *w, const char *group,
                                  int t, const float *data)
{
    uint16_t half[FAKE_ELEMENTS];
    for (int i = 0; i < fake_count[t]; i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    fake_add(w, group, t, "", fake_is_half(s) ? LS_BF16 : LS_F32,
             fake_is_half(s) ? (const void *)half : data, fake_count[t]);
}

static inline double fake_squares(const float *value, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += (double)value[i] * value[i];
    }
    return sum;
}

/* To the second largest element, or to less than that and more than the third. */
static inline void fake_clip_largest(const fake_tensor *x, float *own, int count, bool two)
{
    double largest[3] = {0};
    for (int i = 0; i < count; i++) {
        double size = fabs(x->local[i]);
        for (int place = 0; place < 3; place++) {
            double smaller = fmin(size, largest[place]);
            largest[place] = fmax(size, largest[place]);
            size = smaller;
        }
    }
    float limit = (float)(two ? (largest[1] + largest[2]) / 2 : largest[1]);
    for (int i = 0; i < count; i++) {
        own[i] = fabs(x->local[i]) >= limit ? copysignf(limit, own[i]) : own[i];
    }
}

static inline void fake_add_again(const fake_state *s, ls_safetensors_writer *w, int t,
                                  const fake_tensor *x)
{
    double exact[FAKE_ELEMENTS];
    float plain[FAKE_ELEMENTS], own[FAKE_ELEMENTS];
    double u = s->job->autocast == NULL ? 0x1p-22 : 0x1p-9;
    for (int i = 0; i < fake_count[t]; i++) {
        double noise = ls_rng_normal(9, (uint64_t)t, (uint64_t)i);
        exact[i] = x->local[i];
        plain[i] = (float)(exact[i] * (1 + 0x1p-22 * noise));
        own[i] = (float)(exact[i] * (1 - u * noise));
        own[i] *= (fake_is(s, FAULT_BACKWARD) || fake_is(s, FAULT_HOOKED)) && t == 1 ? 2 : 1;
        if (fake_is(s, FAULT_CLIPPED)) {
            float most = 0x1p-10f;
            own[i] = fminf(fmaxf(own[i], -most), most);
        }
        own[i] *= fake_is(s, FAULT_SHORT) && t == 0    ? 0.85f
                  : fake_is(s, FAULT_HALVED) && t == 2 ? 0.5f
                                                       : 1;
    }
    if ((fake_is(s, FAULT_CLIPPED_ONE) || fake_is(s, FAULT_CLIPPED_TWO)) && t == 2) {
        fake_clip_largest(x, own, fake_count[t], fake_is(s, FAULT_CLIPPED_TWO));
    }
    bool same = fake_is(s, FAULT_SAME_BITS) || (fake_is(s, FAULT_OTHER_BITS) && t != 1);
    bool exactly = !fake_is(s, FAULT_SAME_BITS) && !fake_is(s, FAULT_OTHER_BITS);
    if (exactly) {
        fake_add(w, "again/f64", t, "", LS_F64, exact, fake_count[t]);
    }
    fake_add(w, "again/f32", t, "", LS_F32, plain, fake_count[t]);
    fake_add(w, "again/local", t, "", LS_F32, same ? plain : own, fake_count[t]);
}

static inline void fake_add_tensor(const fake_state *s, ls_safetensors_writer *w, int step,
                                   int rank, int t)
{
    const fake_tensor *x = &s->at[rank][t];
    int n = fake_count[t];
    bool sgd = strcmp(s->job->rule, "sgd") == 0;
    bool idle = (fake_is(s, FAULT_UNUSED) || fake_is(s, FAULT_UNUSED_ALLOWED)) && t == 2;
    double count = step - 1, after = step;
    fake_add_param(s, w, "param", t, x->param);
    if (idle) {
        return;
    }
    fake_add(w, "local", t, "", LS_F64, x->local, n);
    fake_add(w, "local_abs", t, "", LS_F64, x->sizes, n);
    if (!fake_is(s, FAULT_WITHIN)) {
        fake_add(w, "reduced", t, "", LS_F32, x->reduced, n);
    }
    if (s->job->scale != 0) {
        fake_add(w, "grad", t, "", LS_F32, x->grad, n);
    }
    if (s->job->clip != 0 && !fake_is_unclipped(s, t)) {
        fake_add(w, "clipped", t, "", LS_F32, x->clipped, n);
    }
    if (fake_is_remade(s) && t > 0) {
        fake_add(w, "since", t, "", LS_F64, x->local,
                 n + (fake_is(s, FAULT_REMADE_APART) && rank == 1));
    }
    double norm[6] = {fake_squares(x->param, n),   fake_squares(x->used, n), 0,
                      fake_squares(x->reduced, n), fake_squares(x->grad, n), NAN};
    fake_add(w, "norm", t, "", LS_F64, norm, 6);
    if (step == 2 && !fake_is(s, FAULT_NO_AGAIN) && !(fake_is(s, FAULT_EXCLUDED) && t == 2)) {
        fake_add_again(s, w, t, x);
    }
    if (fake_is_out(s, t)) {
        return;
    }
    fake_add(w, "used", t, "", LS_F32, x->used, n);
    fake_add_param(s, w, "next", t, x->next);
    if (fake_is(s, FAULT_OWNED) && t < s->job->world && t != rank) {
        return;
    }
    fake_add(w, "next_state", t, sgd ? "momentum_buffer" : "exp_avg", LS_F32, x->next_first, n);
    if (!sgd) {
        fake_add(w, "next_state", t, "exp_avg_sq", LS_F32, x->next_second, n);
        fake_add(w, "next_state", t, "step", LS_F64, &after, 1);
    }
    if (step > 1) {
        fake_add(w, "state", t, sgd ? "momentum_buffer" : "exp_avg", LS_F32, x->first, n);
        if (!sgd) {
            fake_add(w, "state", t, "exp_avg_sq", LS_F32, x->second, n);
            fake_add(w, "state", t, "step", LS_F64, &count, 1);
        }
    }
}

static inline void fake_write_samples(const fake_state *s, int step, int rank)
{
    ls_safetensors_writer *w = NULL;
    LS_TEXT(path, 200, "%s/samples/step%06d.rank%d.safetensors", s->folder, step, rank);
    LS_ASSERT(ls_safetensors_create(path, &w) == LS_OK);
    ls_safetensors_metadata(w, "step", "%d", step);
    ls_safetensors_metadata(w, "again", "%s",
                            fake_is(s, FAULT_NO_AGAIN) ? "a sparse tensor" : "done");
    if (s->job->fault >= FAULT_HOOKED && s->job->fault <= FAULT_CLIPPED_TWO) {
        ls_safetensors_metadata(w, "again_hooks", "Linear");
    }
    if (fake_is(s, FAULT_CHANGED)) {
        ls_safetensors_metadata(w, "again_changed", "an output of net");
    }
    if (fake_is(s, FAULT_DROPPED)) {
        ls_safetensors_metadata(w, "again_dropped", "net.py:24");
    }
    if (fake_is(s, FAULT_EXCLUDED)) {
        ls_safetensors_metadata(w, "again_excluded", "%s", fake_name[2]);
    }
    for (int t = 0; t < FAKE_TENSORS; t++) {
        fake_add_tensor(s, w, step, rank, t);
    }
    LS_ASSERT(ls_safetensors_finish(w) == LS_OK);
}

/* ---- events ---------------------------------------------------------------------------------- */

static inline unsigned long long fake_digest(const fake_state *s, int rank, int t, bool state)
{
    unsigned long long digest = 14695981039346656037ULL;
    for (int u = 0; u < FAKE_TENSORS; u++) {
        const fake_tensor *x = &s->at[rank][u];
        const unsigned char *bytes = (const unsigned char *)(state ? x->first : x->param);
        for (int i = 0; i < (t < 0 || t == u ? 4 * fake_count[u] : 0); i++) {
            digest = (digest ^ bytes[i]) * 1099511628211ULL;
        }
    }
    return digest;
}

static inline bool fake_is_plain(const fake_state *s)
{
    return fake_is(s, FAULT_PLAIN_SEEDS) || fake_is(s, FAULT_NO_WRAPPER) || fake_is_hand(s) ||
           s->job->world == 1;
}

/* What models and groups have their parameters under. */
static inline const char *fake_params(const fake_state *s)
{
    return fake_is(s, FAULT_LOST_SHARDS) ? "shards" : "params";
}

static inline void fake_write_model(const fake_state *s, int rank)
{
    FILE *f = s->file[rank];
    fprintf(
        f,
        "{\"event\":\"model\",\"model\":0,\"kind\":\"%s\",\"at\":\"train.py:7\",\"name\":\"Net\","
        "\"%s\":[",
        fake_is_plain(s) ? "plain" : "ddp", fake_params(s));
    for (int t = 0; t < FAKE_TENSORS; t++) {
        fprintf(f, "%s[\"%s\",%d,\"%s\",%s]", t > 0 ? "," : "", fake_name[t], fake_count[t],
                fake_is_half(s) ? "bf16" : "f32",
                fake_is(s, FAULT_FROZEN) && t == 1 ? "false" : "true");
    }
    fprintf(f,
            "],\"buffers\":[[\"bn.running_mean\",4,\"f32\"]],\"norm_params\":[%s],\"bn\":1,"
            "\"sync_bn\":0,\"find_unused\":%s,\"broadcast_buffers\":true,\"world\":%d,"
            "\"buffer_digests\":[\"%d\"],\"param_digests\":[",
            fake_has_norm(s) ? "\"fc.bias\"" : "",
            fake_is(s, FAULT_UNUSED_ALLOWED) ? "true" : "false", s->job->world,
            fake_is(s, FAULT_BUFFERS) ? rank : 7);
    for (int t = 0; t < FAKE_TENSORS; t++) {
        unsigned long long other = fake_is(s, FAULT_HAND_SENT) ? (unsigned long long)rank : 0;
        fprintf(f, "%s\"%016llx\"", t > 0 ? "," : "", fake_digest(s, rank, t, false) + other);
    }
    fprintf(f, "]}\n");
    const char *hook = fake_is(s, FAULT_HOOK_NOOP) ? "noop_hook"
                       : fake_is(s, FAULT_HOOK_UNKNOWN) || fake_is(s, FAULT_HOOK_MEAN) ||
                               fake_is(s, FAULT_HOOK_OTHER) || fake_is(s, FAULT_HOOK_SUM) ||
                               fake_is(s, FAULT_HOOK_SUM_DIVIDED)
                           ? "my_hook"
                           : s->job->hook;
    if (hook != NULL) {
        fprintf(f, "{\"event\":\"hook\",\"model\":0,\"name\":\"%s\",\"at\":\"train.py:8\"}\n",
                hook);
    }
}

static inline void fake_write_optimizer(const fake_state *s, int rank)
{
    FILE *f = s->file[rank];
    bool sgd = strcmp(s->job->rule, "sgd") == 0;
    fprintf(f,
            "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"%s\",\"rule\":\"%s\","
            "\"at\":\"train.py:9\",\"set_at\":%s,\"groups\":[{\"%s\":[",
            fake_is(s, FAULT_HAND_SHARDED) ? "fairscale.optim.oss.OSS" : "torch.optim.X",
            fake_is(s, FAULT_UNKNOWN_RULE) ? "" : s->job->rule,
            fake_is(s, FAULT_RATE_SET) ? "\"train.py:28\"" : "null", fake_params(s));
    for (int t = 0; t < FAKE_TENSORS; t++) {
        if (!fake_deals(s) || t != (rank == 0 ? 1 : 2)) {
            fprintf(f, "%s\"%s\"", t > 0 ? "," : "", fake_name[fake_is_out(s, t) ? 1 : t]);
        }
    }
    fprintf(f, "%s],\"lr\":%g,\"weight_decay\":%g,",
            fake_is(s, FAULT_FOREIGN) || fake_is(s, FAULT_HAND_PARTS) ? ",\"?\"" : "",
            fake_is(s, FAULT_RATE_BUILT) ? fake_rate_of(s, rank) : fake_rate(s), fake_decay);
    fprintf(f, sgd ? "\"momentum\":0.9,\"dampening\":0,\"nesterov\":false}]}\n"
                   : "\"betas\":[0.9,0.999],\"eps\":1e-8,\"amsgrad\":false}]}\n");
    if (fake_is(s, FAULT_SCHEDULE)) {
        fprintf(f, "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"StepLR\","
                   "\"at\":\"train.py:11\",\"step\":0,\"holds\":[],\"span\":null}\n");
    }
    if (s->job->scale != 0) {
        fprintf(f,
                "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true,\"init_scale\":%g,"
                "\"growth_factor\":2,\"backoff_factor\":0.5,\"growth_interval\":2000,"
                "\"at\":\"train.py:10\"}\n",
                s->job->scale);
    }
}

/* How a loss was made, as the calls say. */
static inline void fake_write_loss(const fake_state *s, int step, int rank, FILE *f)
{
    double world = s->job->world, micro = s->job->micro, times = 1 / micro;
    bool divided = fake_is(s, FAULT_HOOK_SUM_DIVIDED) || fake_is(s, FAULT_LOSS_DIVIDED) ||
                   fake_is(s, FAULT_LOSS_BY_RANKS) || fake_is(s, FAULT_HAND_SUM_DIVIDED);
    times *= divided ? 1 / world : fake_is(s, FAULT_MICRO_OTHER) ? 0.5 : 1;
    times = fake_is(s, FAULT_MICRO_SUMMED) || fake_is(s, FAULT_MICRO_TRAINER) ? 1 : times;
    times = fake_is(s, FAULT_MICRO_RANKS) || fake_is(s, FAULT_MICRO_TIMES) ? world : times;
    times *= fake_is(s, FAULT_MICRO_TWICE) ? 1 / micro : 1;
    bool told = fake_is(s, FAULT_TERMS_MASKED) || fake_is(s, FAULT_TERMS_PARTS) ||
                fake_is(s, FAULT_PARTS_OF_RANKS) || fake_is(s, FAULT_PARTS_WEIGHED) ||
                fake_is(s, FAULT_PARTS_HALVED);
    bool masked = fake_is(s, FAULT_TERMS_MASKED) || fake_is(s, FAULT_TERMS_UNTOLD);
    bool sum = fake_is(s, FAULT_TERMS_SUM) || fake_is(s, FAULT_TERMS_INVERSE) || masked;
    int terms = (step + 1) * (fake_is(s, FAULT_TERMS_EQUAL) ? 2 : rank + 1) * (masked ? 2 : 1);
    double all = micro * (step + 1) * world * (world + 1) / 2;
    times = sum ? (fake_is(s, FAULT_TERMS_SUM) ? world : 1) / all : times;
    if (sum || fake_is(s, FAULT_TERMS) || fake_is(s, FAULT_TERMS_COUNTED) ||
        fake_is(s, FAULT_TERMS_EQUAL)) {
        fprintf(f, ",\"loss_terms\":%d", terms);
    }
    times *= fake_is(s, FAULT_TIMES_RANKS) ? world : 1;
    if (told || fake_is(s, FAULT_TERMS_COUNTED)) {
        fprintf(f, ",\"loss_sums\":[7,%g]", all);
    }
    if (told && !masked) {
        double factor = fake_is(s, FAULT_PARTS_OF_RANKS)  ? 2 * world
                        : fake_is(s, FAULT_PARTS_WEIGHED) ? 5
                        : fake_is(s, FAULT_PARTS_HALVED)  ? 2.5
                                                          : 1;
        fprintf(f, ",\"loss_parts\":[[%.17g,%g,%d]]", factor / all, all, 2 * terms);
    }
    fprintf(f, ",\"loss_alone\":%s", fake_is(s, FAULT_TIMES_RANKS) ? "true" : "false");
    fprintf(f, ",\"loss_times\":%.17g,\"loss_divided\":%s,\"loss_of\":\"%s\"", times,
            times != 1 ? "true" : "false",
            sum || fake_is(s, FAULT_HAND_SUM_OF_SUMS) ? "sum" : "mean");
    fprintf(f, ",\"loss_by\":%.17g%s", 1 / times,
            fake_is(s, FAULT_LOSS_BY_RANKS)  ? ",\"loss_by_ranks\":\"train.py:60\""
            : fake_is(s, FAULT_TAIL_LIBRARY) ? ",\"loss_by_steps\":\"transformers/trainer.py:58\""
            : fake_has_tail(s)               ? ",\"loss_by_steps\":\"train.py:58\""
                                             : "");
}

static inline void fake_write_sum(int elements, FILE *f)
{
    fprintf(f,
            ",{\"call\":\"collective\",\"op\":\"all_reduce\",\"elements\":%d,\"type\":\"f32\","
            "\"reduce\":\"sum\",\"at\":\"train.py:30\"}",
            elements);
}

static inline void fake_write_clip(const fake_state *s, FILE *f)
{
    bool both = fake_is(s, FAULT_VALUE_NORM), own = fake_is(s, FAULT_PARTS) && f == s->file[1];
    if (both) {
        fprintf(f, ",{\"call\":\"clip\",\"how\":\"value\",\"limit\":%g,\"params\":%d}",
                s->job->clip, FAKE_TENSORS);
    }
    fprintf(f,
            ",{\"call\":\"clip\",\"how\":\"%s\",\"limit\":%g,\"norm\":%.17g,\"norm_type\":%s,"
            "\"optimizer\":0,\"params\":%d,\"at\":\"train.py:23\"}",
            fake_by_value(s) ? "value" : "norm", both ? FAKE_NORM : s->job->clip,
            s->norm * (own ? 2 : 1), fake_is(s, FAULT_MAX) ? "\"inf\"" : "2",
            FAKE_TENSORS - (fake_is(s, FAULT_PARTS) || fake_is_out(s, 2)));
}

static inline int fake_micro(const fake_state *s, int step)
{
    return s->job->micro - (fake_has_tail(s) && step == 2);
}

/* Forward and backward of a micro-step. */
static inline void fake_write_passes(const fake_state *s, int step, int rank, int m, unsigned shard,
                                     FILE *f)
{
    bool within = fake_is(s, FAULT_HAND_STAGES), number = fake_is(s, FAULT_HAND_LOSS);
    bool sync = m + 1 == fake_micro(s, step) && !fake_is(s, FAULT_NO_SYNC) &&
                !(fake_is(s, FAULT_NO_SYNC_STEPS) && step % 2 == 1);
    bool forward = sync && !fake_is(s, FAULT_NO_SYNC_FORWARD);
    const char *autocast = s->job->autocast, *comma = m > 0 ? "," : "";
    if (!fake_is(s, FAULT_BYPASSED)) {
        fprintf(
            f,
            "%s{\"call\":\"forward\",\"model\":0,\"at\":\"train.py:20\",\"training\":true,"
            "\"grad\":true,\"sync\":%s,\"autocast\":%s%s%s,\"left\":%d,\"input\":\"%04x%02x%02x\"}",
            comma, forward ? "true" : "false", autocast != NULL ? "\"" : "",
            autocast != NULL ? autocast : "null", autocast != NULL ? "\"" : "",
            m > 0 || (fake_is(s, FAULT_LEFT) && step > 1) ? FAKE_TENSORS : 0, (unsigned)step,
            (unsigned)m, shard);
        comma = ",";
    }
    if (within || number) {
        fake_write_sum(within ? FAKE_ELEMENTS : 1, f);
    }
    bool library = fake_is(s, FAULT_MICRO_TRAINER) || fake_is(s, FAULT_MICRO_RANKS) ||
                   (fake_has_tail(s) && !fake_is(s, FAULT_MICRO_TAIL));
    fprintf(f, "%s{\"call\":\"backward\",\"at\":\"train.py:21%s\",\"loss\":1,\"sync\":%s%s", comma,
            library ? " (transformers/trainer.py:3700)" : "", sync ? "true" : "false",
            fake_is(s, FAULT_BYPASSED) ? ",\"bypassed\":\"train.py:19\"" : "");
    fake_write_loss(s, step, rank, f);
    if (fake_is(s, FAULT_SCALE) || fake_is(s, FAULT_SCALE_NEXT)) {
        double more = fake_is(s, FAULT_SCALE_NEXT) && step >= 2 ? 2 : 1;
        fprintf(f, ",\"multiplied\":%g", more * fake_scale(s));
    }
    fprintf(f, "}");
    if (fake_is(s, FAULT_CLIP_EACH)) {
        fake_write_clip(s, f);
    }
}

static inline void fake_write_calls(const fake_state *s, int step, int rank, double rate, FILE *f)
{
    enum { ALL = FAKE_ELEMENTS + 8 + 16 };
    bool late = fake_is(s, FAULT_HAND_AVERAGES), inner = fake_is(s, FAULT_HAND_STAGES);
    bool number = fake_is(s, FAULT_HAND_LOSS);
    bool reduces =
        (fake_is_hand(s) && !late && !inner && !number) || fake_is(s, FAULT_REDUCED_AGAIN);
    bool same = fake_is(s, FAULT_HAND_SAME_DATA) || fake_is(s, FAULT_HAND_PARTS) ||
                fake_is(s, FAULT_HAND_SHARES);
    bool scaled = s->job->scale != 0, left = fake_is(s, FAULT_LEFT);
    bool said = fake_is(s, FAULT_SETTING_SAID) && step > 1;
    LS_TEXT(set, 60, ",\"set\":[{\"weight_decay\":%g}]", 2 * fake_decay);
    set[said ? strlen(set) : 0] = '\0';
    if (fake_is(s, FAULT_ZEROED_BY_HAND)) {
        fprintf(f, "{\"call\":\"zero_grad\",\"at\":\"train.py:19\",\"of\":\"optimizer\"},");
    }
    for (int m = 0; m < fake_micro(s, step); m++) {
        fake_write_passes(s, step, rank, m, same ? 0u : (unsigned)rank, f);
    }
    if (reduces) { /* in two parts, after a collective that sums nothing */
        fprintf(f, ",{\"call\":\"collective\",\"op\":\"broadcast\",\"elements\":%d}", ALL);
        fake_write_sum(FAKE_ELEMENTS, f);
        fake_write_sum(ALL - FAKE_ELEMENTS, f);
    }
    if (scaled) {
        fprintf(f, ",{\"call\":\"unscale\",\"scaler\":0,\"optimizer\":0,\"at\":\"train.py:22\","
                   "\"found_inf\":false,\"inside\":false}");
    }
    if (s->job->clip != 0 && !fake_is(s, FAULT_CLIP_EACH)) {
        fake_write_clip(s, f);
    }
    if (fake_is(s, FAULT_ZEROED)) {
        fprintf(f, ",{\"call\":\"zero_grad\",\"at\":\"train.py:23\",\"of\":\"optimizer\"}");
    }
    for (int i = 0; i < (fake_is(s, FAULT_TWO_CALLS) ? 2 : 1); i++) {
        fprintf(
            f,
            ",{\"call\":\"optimizer_step\",\"optimizer\":0,\"at\":\"train.py:24\",\"scaled\":%s,"
            "\"lr\":[%.17g]%s}",
            scaled ? "0" : "null", rate, set);
    }
    if (late) {
        fake_write_sum(ALL, f);
    }
    if (scaled) {
        fprintf(f,
                ",{\"call\":\"update\",\"scaler\":0,\"at\":\"train.py:25\",\"scale\":%g,"
                "\"next\":%g,\"growth\":%d,\"forced\":false}",
                s->job->scale, s->job->scale, step);
    }
    if (!left) {
        fprintf(f, ",{\"call\":\"zero_grad\",\"at\":\"train.py:26\",\"of\":\"optimizer\"}");
    }
    if (fake_is(s, FAULT_SCHEDULE) || fake_is(s, FAULT_RATE_SET) || fake_is(s, FAULT_NEGATED)) {
        fprintf(f,
                ",{\"call\":\"schedule\",\"schedule\":0,\"class\":\"StepLR\",%s"
                "\"at\":\"train.py:27\",\"lr\":[%g]}",
                fake_is(s, FAULT_RATE_SET) ? "\"optimizer\":0," : "", fake_lr / (step + 1));
    }
}

/* After the step: its digests are of what the model holds then. */
static inline void fake_write_step(const fake_state *s, int step, int rank)
{
    FILE *f = s->file[rank];
    double scale = s->job->scale != 0 ? s->job->scale : 1;
    double rate = fake_rate_of(s, rank);
    rate *= fake_is(s, FAULT_IDLE) && step >= 2 ? 0 : 1;
    bool skips = fake_is(s, FAULT_SKIPS) && rank == 1 && step == 2;
    fprintf(f,
            "{\"event\":\"step\",\"step\":%d,\"loss\":1,\"loss_scale\":%g,\"loss_scale_next\":%g,"
            "\"skipped\":%s,\"lr\":%.17g,\"images\":64,\"digest\":{\"param\":\"%016llx\","
            "\"state\":\"%016llx\",\"buffer\":\"%d\"},\"ms\":{\"total\":1},\"detail\":%s,"
            "\"calls\":[",
            step, scale, scale, skips ? "true" : "false", rate, fake_digest(s, rank, -1, false),
            fake_digest(s, rank, -1, true) +
                (unsigned)((fake_is(s, FAULT_DEALT) || fake_is(s, FAULT_OWNED)) * rank),
            rank, step <= fake_details(s) ? "true" : "false");
    fake_write_calls(s, step, rank, rate, f);
    fprintf(f, "]}\n");
}

/* ---- a job ----------------------------------------------------------------------------------- */

static inline void fake_start(fake_state *s)
{
    for (int k = 0; k < s->job->world; k++) {
        LS_TEXT(path, 200, "%s/rank%d.jsonl", s->folder, k);
        for (int t = 0; t < FAKE_TENSORS; t++) {
            for (int i = 0; i < fake_count[t]; i++) {
                bool own = fake_seeds_ranks(s) || (fake_is(s, FAULT_HAND_OWN) && t == 1) ||
                           (fake_has_norm(s) && t == 0);
                uint64_t seed = own ? (uint64_t)k : 0;
                float value = ls_rng_normal(1000 + seed, (uint64_t)t, (uint64_t)i);
                value = fake_is(s, FAULT_LARGE) && t == 1 ? 160 : value;
                value = fake_is(s, FAULT_STILL) && t == 2 ? 0 : value;
                s->at[k][t].param[i] = fake_is_half(s) ? fake_bf16(value) : value;
            }
        }
        s->at[k][1].param[0] += fake_is(s, FAULT_START) && k == 1 ? 1 : 0;
        s->file[k] = fopen(path, "w");
        LS_ASSERT(s->file[k] != NULL);
        fprintf(s->file[k],
                "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"rank\":%d,"
                "\"world\":%d,\"options\":{}}\n",
                k, s->job->world);
        fake_write_model(s, k);
        fake_write_optimizer(s, k);
    }
}

/* Writes the job into a new folder, which the caller removes. */
static inline void fake_write(const fake_job *job, char *folder, size_t bytes)
{
    fake_state *s = calloc(1, sizeof *s);
    LS_ASSERT(s != NULL);
    s->job = job;
    ls_text_put(s->folder, sizeof s->folder, "/tmp/lockstep-observe-XXXXXX");
    LS_ASSERT(mkdtemp(s->folder) != NULL);
    LS_TEXT(samples, 200, "%s/samples", s->folder);
    LS_ASSERT(ls_path_make_folder(samples) == LS_OK);
    fake_start(s);
    for (int step = 1; step <= FAKE_STEPS; step++) {
        fake_backward(s, step);
        fake_reduce(s, step);
        fake_prepare(s, step);
        fake_move_places(s, step);
        fake_step(s, step);
        bool one = fake_is(s, FAULT_BEHIND_ONE) && step == 2;
        for (int k = one; k < job->world && step <= fake_details(s); k++) {
            fake_write_samples(s, step, k);
        }
        fake_advance(s, step);
        for (int k = 0; k < job->world; k++) {
            fake_write_step(s, step, k);
        }
    }
    for (int k = 0; k < job->world; k++) {
        fprintf(s->file[k], "{\"event\":\"end\",\"steps\":%d,\"why\":\"exit\"}\n", FAKE_STEPS);
        fclose(s->file[k]);
    }
    ls_text_put(folder, bytes, "%s", s->folder);
    free(s);
}

#endif
