/* The toy models of Apex's tests/L0/run_amp around the amp library: m(u) has
 * w0 = [u, u+1] in f32 and w1 = [u+1, u+2] in fp16, its loss is the sum of w0 * w1, so that each is
 * the gradient of the other. Every number of the golden tables is exact in fp16. */
#ifndef LS_TOY_H
#define LS_TOY_H

#include "reference/amp/amp.h"
#include "suite/cases/rows.h"
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

/* ---- scripts ----------------------------------------------------------------------------------
 */

/* Cases of the amp library as scripts: an operation after the other, each with what must come of
 * it,
 *
 *     {"accumulate.sum", "A3", {.level = 2, ...}, "1 + 2 is 3",
 *      OPS({BLOCK(0, BOTH, 1)}, {BLOCK(0, BOTH, 2)}, {GRAD(3, 3)}, {STEP(0)})},
 *
 * and an operation that must be refused says by which words: {STEP(0), REFUSED("still scaled")}. */
typedef enum ls_toy_kind {
    LS_TOY_END, /* of the script */
    LS_TOY_AGAIN,
    LS_TOY_BEGIN,
    LS_TOY_GIVE,
    LS_TOY_END_BLOCK,
    LS_TOY_CANCEL,
    LS_TOY_BLOCK,
    LS_TOY_ROUND,
    LS_TOY_STEP,
    LS_TOY_ZERO,
    LS_TOY_ZERO_PARAM,
    LS_TOY_WRITE,
    LS_TOY_CHANGED,
    LS_TOY_LOAD,
    LS_TOY_CALL,
    LS_TOY_CREATE,
    LS_TOY_EXPECT_GRAD,
    LS_TOY_EXPECT_WEIGHTS,
    LS_TOY_EXPECT_SCALE,
    LS_TOY_EXPECT_STATE,
    LS_TOY_EXPECT_SAID,
    LS_TOY_EXPECT_DICT,
} ls_toy_kind;

typedef ls_status ls_toy_call(ls_toy *toy);

typedef struct ls_toy_op {
    ls_toy_kind kind;
    int loss, model, weight;
    unsigned models, optimizers; /* a bit each */
    bool delay, skipped;
    int count;
    float value[4];
    ls_toy_poison poison; /* value 0: none */
    const char *text;
    ls_toy_call *call;
    ls_status status;  /* with `names`: how it must fail */
    const char *names; /* words that must all stand in its one line, divided by '|' */
    int times;         /* 0: once */
} ls_toy_op;

typedef struct ls_toy_script {
    const char *id, *requirement; /* id without "amp." */
    ls_toy_setup setup;
    const char *shows; /* the evidence of a pass */
    const ls_toy_op *op;
    unsigned levels; /* runs at each of these, a bit each; 0: at setup.level */
} ls_toy_script;

void ls_toy_script_cases(const ls_case_settings *settings, ls_case_list *list,
                         const ls_toy_script *script, size_t count);

#define OPS(...)        \
    (const ls_toy_op[]) \
    {                   \
        __VA_ARGS__,    \
        {               \
            LS_TOY_END  \
        }               \
    }

enum { W0, W1, BOTH = -1 };

/* The toy is closed and opened anew. */
#define AGAIN .kind = LS_TOY_AGAIN
/* The block of a loss, for a mask of optimizers. */
#define BEGIN(l, o) .kind = LS_TOY_BEGIN, .loss = (l), .optimizers = (o)
#define END_BLOCK .kind = LS_TOY_END_BLOCK
#define CANCEL .kind = LS_TOY_CANCEL
/* The two elements of a gradient of m0. */
#define GIVE(w, a, b) .kind = LS_TOY_GIVE, .weight = (w), .value = {(a), (b)}
/* A block for optimizer 0 in which both elements of m0's w (W0, W1, BOTH) have that gradient. */
#define BLOCK(l, w, g) .kind = LS_TOY_BLOCK, .loss = (l), .weight = (w), .value = {(g), (g)}
#define DELAYED(l, w, g) BLOCK(l, w, g), .delay = true
/* A block with the backward of a mask of models. */
#define ROUND(l, o, m) .kind = LS_TOY_ROUND, .loss = (l), .optimizers = (o), .models = (m)
#define POISON(m, w, v) .poison = {(m), (w), (v)}
#define STEP(o) .kind = LS_TOY_STEP, .optimizers = 1u << (o)
#define SKIP(o) STEP(o), .skipped = true
#define ZERO(o) .kind = LS_TOY_ZERO, .optimizers = 1u << (o)
#define ZERO_PARAM(w) .kind = LS_TOY_ZERO_PARAM, .weight = (w)
/* Sets a weight of m0; CHANGED reports that to the library. */
#define WRITE(w, a, b) .kind = LS_TOY_WRITE, .weight = (w), .value = {(a), (b)}
#define CHANGED .kind = LS_TOY_CHANGED
#define LOAD(json) .kind = LS_TOY_LOAD, .text = (json)
/* Another handle, at that scale and for so many losses. */
#define CREATE(s, n) .kind = LS_TOY_CREATE, .value = {(s)}, .count = (n)
#define CALL(function) .kind = LS_TOY_CALL, .call = (function)

/* m0's unscaled gradients, both elements of w0 and of w1; NAN: there is none. */
#define GRAD(a, b) .kind = LS_TOY_EXPECT_GRAD, .value = {(a), (b)}
#define WEIGHTS(m, a, b, c, d) .kind = LS_TOY_EXPECT_WEIGHTS, .model = (m), .value = {a, b, c, d}
/* A loss's scale and its count of clean blocks. */
#define SCALE(l, s, n) .kind = LS_TOY_EXPECT_SCALE, .loss = (l), .value = {(s)}, .count = (n)
/* First element of a moment of m0, and its steps. */
#define STATE(w, m, n) .kind = LS_TOY_EXPECT_STATE, .weight = (w), .value = {(m)}, .count = (n)
/* Lines of warnings so far, and words of all of them. */
#define SAID(n, words) .kind = LS_TOY_EXPECT_SAID, .count = (n), .text = (words)
#define DICT(json) .kind = LS_TOY_EXPECT_DICT, .text = (json)

#define FAILS(code, words) .status = (code), .names = (words)
#define REFUSED(words) FAILS(LS_ERR_USAGE, words)
#define TIMES(n) .times = (n)

#endif
