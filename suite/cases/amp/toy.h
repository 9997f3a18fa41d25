/* The toy models of Apex's tests/L0/run_amp around the amp library: m(u) has
 * w0 = [u, u+1] in f32 and w1 = [u+1, u+2] in fp16, its loss is the sum of w0 * w1, so that each is
 * the gradient of the other. Every number of the golden tables is exact in fp16. */
#ifndef LS_TOY_H
#define LS_TOY_H

#include "reference/amp/amp.h"
#include "suite/inside/inside.h"

enum { LS_TOY_MODELS = 3, LS_TOY_WIDTH = 2, LS_TOY_SAID = 8 };

typedef struct ls_toy_model {
    ls_tensor weight[2], grad[2]; /* w0 f32, w1 fp16; gradients in the same types */
    int optimizer, group;         /* -1: no optimizer's */
} ls_toy_model;

typedef struct ls_toy {
    ls_device device;
    ls_amp *amp;
    ls_toy_model model[LS_TOY_MODELS];
    ls_step_state *state; /* of the open block */
    ls_verdict *verdict;  /* borrowed: a call that fails and should not is a FAIL */
    char said[LS_TOY_SAID][160];
    int said_count;
} ls_toy;

/* A handle and what it trains. A zeroed field takes the value in brackets. */
typedef struct ls_toy_setup {
    int level;           /* O0 to O3: masters at O2; dynamic at O1 and O2, else static */
    bool fixed;          /* static whatever the level */
    int losses;          /* [1] */
    float scale;         /* [4] */
    float lowest;        /* [none] */
    float highest;       /* [2^24: Apex's default max_loss_scale] */
    int interval;        /* [2000] */
    bool disabled, mute; /* enabled false, verbosity 0 */
    int models;          /* m(1), m(2), ... [none, and no optimizer either] */
    int unowned;         /* of these, the last ones no optimizer owns */
    int optimizers;      /* [1] 2: one each */
    ls_optimizer_config rule;
    int moments; /* [1] */
    float lr;    /* of all groups */
} ls_toy_setup;

/* Opens device and library and makes the models; false with the verdict set. `toy` must stay where
 * it is. */
bool ls_toy_open(ls_toy *toy, const ls_toy_setup *setup, ls_verdict *verdict);
void ls_toy_close(ls_toy *toy);
/* FAIL unless `status` is LS_OK. */
void ls_toy_must(ls_toy *toy, ls_status status, const char *call);

/* The library's options of a setup. */
ls_amp_options ls_toy_options(const ls_toy_setup *setup);
/* Makes m(u), not owned by an optimizer. */
void ls_toy_make(ls_toy *toy, int model, float u);
int ls_toy_optimizer(ls_toy *toy);
/* A group of its own for that model. */
void ls_toy_own(ls_toy *toy, int optimizer, int model, const ls_optimizer_config *config, float lr);

/* Where a gradient becomes inf or NaN: model -1 nowhere. */
typedef struct ls_toy_poison {
    int model, weight;
    float value;
} ls_toy_poison;

void ls_toy_begin(ls_toy *toy, int loss, const int *optimizer, int count, bool delay);
/* Gradients of the models of the mask, times S, one rounding in w1's type. */
void ls_toy_backward(ls_toy *toy, unsigned models, ls_toy_poison poison);
/* This gradient, times S and rounded once in the weight's type, for one weight. */
void ls_toy_give(ls_toy *toy, int model, int weight, const float grad[LS_TOY_WIDTH]);
/* Returns whether the step was skipped. */
bool ls_toy_step(ls_toy *toy, int optimizer);
void ls_toy_zero(ls_toy *toy, int optimizer);
/* One whole iteration: a block, one backward, a step, zero. Returns whether it was skipped. */
bool ls_toy_iterate(ls_toy *toy, int loss, int optimizer, unsigned models, ls_toy_poison poison);

/* w0[0], w0[1], w1[0], w1[1] as the model holds them. */
void ls_toy_weights(ls_toy *toy, int model, float out[4]);
/* FAIL unless model's weights are `expected`; `when` says at which point. */
void ls_toy_expect(ls_toy *toy, int model, const float expected[4], const char *when);
/* FAIL unless loss's scale and count of clean blocks are these. */
void ls_toy_expect_scale(ls_toy *toy, int loss, float scale, int unskipped, const char *when);
/* Loads a state dict from its JSON text. */
ls_status ls_toy_load(ls_toy *toy, const char *text);
/* View of w0 (0) or w1 (1) of a model. */
ls_amp_view ls_toy_view(ls_toy *toy, int model, int weight);

extern const ls_toy_poison ls_toy_clean;

/* m(u) in doubles: SGD with momentum, every operation rounded to f32 as torch's would be, and the
 * half weight rounded on the bits of the double. */
typedef struct ls_toy_ideal {
    double value[2][2], copy[2][2], buffer[2][2], total[2][2];
    bool masters, started;
    double lr, momentum, decay;
} ls_toy_ideal;

ls_toy_ideal ls_toy_ideal_make(double u, bool masters, double lr, double momentum, double decay);
/* Adds the gradient of one backward at that scale. */
void ls_toy_ideal_backward(ls_toy_ideal *ideal, double scale);
void ls_toy_ideal_step(ls_toy_ideal *ideal);
void ls_toy_ideal_zero(ls_toy_ideal *ideal);
/* FAIL unless the model has the ideal's weights. */
void ls_toy_ideal_expect(ls_toy *toy, int model, const ls_toy_ideal *ideal, const char *when);
/* `count` blocks of loss 0, at S = 4, that reach models 0 (and 1), on both sides. */
void ls_toy_ideal_blocks(ls_toy *toy, ls_toy_ideal *ideal, int models, int count);
/* The nearest fp16, on the bits of the double. */
double ls_toy_ideal_half(double value);

#endif
