/* Cases of the amp library as scripts: an operation after the other, each with what must come of
 * it,
 *
 *     {"accumulate.sum", "A3", {.level = 2, ...}, "1 + 2 is 3",
 *      OPS({BLOCK(0, BOTH, 1)}, {BLOCK(0, BOTH, 2)}, {GRAD(3, 3)}, {STEP(0)})},
 *
 * and an operation that must be refused says by which words: {STEP(0), REFUSED("still scaled")}. */
#ifndef LS_TOY_SCRIPT_H
#define LS_TOY_SCRIPT_H

#include "suite/cases/rows.h"
#include "toy.h"

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
