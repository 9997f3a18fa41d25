/* Unscaling and one step of every optimizer in FP64, and how far f32 arithmetic may be from it
 * (interval.h). Written from the papers' and the libraries' formulas, apart from kernels/math/:
 *
 *   SGD    torch.optim.SGD: d = g + wd p; buf = d at first, then momentum buf + (1 - dampening) d;
 *          d = d + momentum buf (Nesterov) or buf; p -= lr d
 *   Adam   g += wd p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *          p -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)        Kingma and Ba 2015
 *   AdamW  p -= lr wd p, then Adam without decay                        Loshchilov and Hutter 2019
 *   LAMB   Apex's FusedLAMB (csrc/multi_tensor_lamb.cu)                 You et al. 2019
 *   LARS   Apex's LARC around SGD (apex/parallel/LARC.py)               You et al. 2017
 *
 * Gradients may be clipped first: g *= min(1, clip_norm / (|all g| + 1e-6)), or g to -clip_value ..
 * clip_value (torch.nn.utils.clip_grad_norm_ and clip_grad_value_; Pascanu et al. 2013). */
#ifndef LS_ORACLE_UPDATE_H
#define LS_ORACLE_UPDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef enum ls_update_kind {
    LS_UPDATE_SGD,
    LS_UPDATE_ADAM,
    LS_UPDATE_ADAMW,
    LS_UPDATE_LAMB,
    LS_UPDATE_LARS,
    LS_UPDATE_KINDS,
} ls_update_kind;

/* Common mistakes. A dump that follows one of them and not the right rule has its cause there. */
typedef enum ls_update_mistake {
    LS_UPDATE_RIGHT,
    LS_UPDATE_EPSILON_INSIDE,       /* Adam, LAMB: inside the root */
    LS_UPDATE_EPSILON_FIRST,        /* added before the correction of the second moment */
    LS_UPDATE_DECAY_WITHOUT_LR,     /* AdamW */
    LS_UPDATE_DECAY_AFTER_MOMENTUM, /* SGD */
    LS_UPDATE_FIRST_DAMPED,         /* SGD: the first buffer, multiplied by momentum */
    LS_UPDATE_NO_RATIO,             /* LAMB */
    LS_UPDATE_RATIO_WITHOUT_DECAY,  /* LARS: no decay in the ratio's denominator */
    LS_UPDATE_CLIP_EACH,            /* clip_norm: each tensor by its own norm */
} ls_update_mistake;

/* How results round in a type: half the distance from 1 to the next number, and what a result near
 * zero may lose. */
typedef struct ls_update_unit {
    double u, eta;
} ls_update_unit;

typedef struct ls_update_rule {
    ls_update_kind kind;
    int64_t step; /* t: 1 for the first step that is taken */
    double lr, weight_decay;
    double momentum, dampening; /* SGD, LARS */
    bool nesterov;
    double beta1, beta2, epsilon; /* Adam, AdamW, LAMB; LARS: epsilon of the ratio */
    bool uncorrected;             /* Adam, LAMB: without bias correction */
    ls_update_mistake mistake;    /* LS_UPDATE_RIGHT except in a diagnosis */
    bool l2, nvlamb;              /* LAMB: decay joins the gradient; a ratio without decay too */
    double max_grad_norm;         /* LAMB; 0: none */
    double clip_norm, clip_value; /* gradients are clipped before the step; 0: not. Not with LAMB */
    double grad_squares;   /* LAMB, clip_norm: of all tensors together (ls_update_squares), before
                              clipping */
    int64_t grad_elements; /* the number of elements in grad_squares */
    double trust;          /* LARS */
    bool clip;             /* LARS: LARC's clip mode */
    bool amsgrad;          /* Adam, AdamW: the highest second moment so far is in the root */
    ls_update_unit unit;   /* of the type that the subject computes in; {0}: f32 */
    bool any_form;         /* Adam, AdamW: bounds hold for the forms that libraries choose, too: a
                              mean as a + (1 - b) (g - a), decay as p (1 - lr wd), corrections of
                              bias in f32 on a device, factors that join the divisor */
} ls_update_rule;

/* One tensor; holds values before the step on input, after it on output. Errors: bounds on f32's
 * deviation, 0 for the subject's own numbers. moment[1] is NULL for SGD and LARS. */
typedef struct ls_update_tensor {
    int64_t count;
    const double *grad; /* unscaled */
    double *value, *value_error;
    double *moment[2], *moment_error[2];
    double *highest, *highest_error; /* amsgrad */
    const double *grad_error;        /* of the gradient; NULL: none */
} ls_update_tensor;

/* LS_ERR_INFRA without memory. */
ls_status ls_update_step(const ls_update_rule *rule, ls_update_tensor *tensor);
double ls_update_squares(const double *value, int64_t count);
/* By the name on the command line, "adamw"; LS_UPDATE_KINDS for an unknown one. */
ls_update_kind ls_update_find(const char *name);
/* The number of moments, and torch.optim's names for them. */
int ls_update_moments(const ls_update_rule *rule);
const char *ls_update_moment_name(ls_update_kind kind, int moment);
/* Whether the formula has the number of the step: it corrects the bias of its moments. */
bool ls_update_counts_steps(ls_update_kind kind);
const char *ls_update_label(ls_update_kind kind); /* "AdamW" */
double ls_update_epsilon(ls_update_kind kind);    /* default of --eps */

#endif
