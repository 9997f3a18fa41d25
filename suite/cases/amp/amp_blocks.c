/* Several backward passes before one step (apex/amp/_process_optimizer.py, delay_unscale of
 * apex/amp/handle.py@scale_loss): sums of unscaled gradients in f32, and the delayed unscale that
 * sums scaled ones in their own type. */
#include <math.h>

#include "toy.h"

/* m0 = m(1), SGD without momentum, rate 1: what a step takes off is the gradient. */
#define AT(o, s)                                                                                  \
    {                                                                                             \
        .level = (o), .losses = 2, .scale = (s), .models = 1, .rule = {.kind = LS_OPTIMIZER_SGD}, \
        .lr = 1                                                                                   \
    }
#define EVERY_LEVEL .levels = 0xf

#define SMALL 0.000244140625f /* 2^-12: 1 + 2^-12 + 2^-12 is 1 in fp16 */
#define SUM_OF_BOTH 1.00048828125f

#define SUM_OF_THREE                                                                            \
    OPS({BLOCK(0, BOTH, 1)}, {BLOCK(0, BOTH, 2)}, {BLOCK(0, BOTH, 4)}, {GRAD(7, 7)}, {STEP(0)}, \
        {WEIGHTS(0, -6, -5, -5, -4)})

static const ls_toy_script scripts[] = {
    {"accumulate.small-terms", "A3", AT(2, 4), "an f32 sum of 1 and 2^-12 loses nothing",
     OPS({BLOCK(0, BOTH, 1)}, {BLOCK(0, BOTH, SMALL), TIMES(2)}, {GRAD(SUM_OF_BOTH, SUM_OF_BOTH)})},
    {"accumulate.sum.o0", "A3", AT(0, 4), "1 + 2 + 4 is 7", SUM_OF_THREE},
    {"accumulate.sum.o1", "A3", AT(1, 4), "1 + 2 + 4 is 7", SUM_OF_THREE},
    {"accumulate.sum.o2", "A3", AT(2, 4), "1 + 2 + 4 is 7", SUM_OF_THREE},
    {"accumulate.sum.o3", "A3", AT(3, 4), "1 + 2 + 4 is 7", SUM_OF_THREE},
    /* Apex lost the first gradients here (NVIDIA/apex PR 748): masters and a static scale of 1. */
    {"accumulate.static-one",
     "A3",
     {.level = 2, .fixed = true, .scale = 1, .models = 1, .lr = 1},
     "static 1 with masters loses no gradient",
     OPS({BLOCK(0, BOTH, 1)}, {BLOCK(0, BOTH, 2)}, {GRAD(3, 3)}, {BLOCK(0, W1, 4)}, {GRAD(3, 7)})},
    {"accumulate.untouched", "A3", AT(0, 4), "a gradient of the first loss stays, O0 to O3",
     OPS({BLOCK(0, W0, 1)}, {GRAD(1, NAN)}, {BLOCK(1, W1, 2)}, {GRAD(1, 2)}), EVERY_LEVEL},
    {"accumulate.two-scales", "A3", AT(2, 4), "each loss unscales by its own S",
     OPS({LOAD("{\"loss_scaler0\":{\"loss_scale\":4,\"unskipped\":0},"
               "\"loss_scaler1\":{\"loss_scale\":1024,\"unskipped\":0}}")},
         {BLOCK(0, BOTH, 1)}, {BLOCK(1, BOTH, 2)}, {GRAD(3, 3)})},
    /* an overflow in one of two micro-steps halves S at once: a second one uses the smaller S */
    {"accumulate.overflow-first", "A3", AT(2, 1024), "one skip, S halved at once",
     OPS({BLOCK(0, BOTH, INFINITY)}, {BLOCK(0, BOTH, 1)}, {SCALE(0, 512, 1)}, {SKIP(0)},
         {WEIGHTS(0, 1, 2, 2, 3)}, {BLOCK(0, BOTH, 1)}, {STEP(0)})},
    {"accumulate.overflow-last", "A3", AT(2, 1024), "one skip, S halved",
     OPS({BLOCK(0, BOTH, 1)}, {BLOCK(0, BOTH, INFINITY)}, {SCALE(0, 512, 0)}, {SKIP(0)},
         {WEIGHTS(0, 1, 2, 2, 3)}, {BLOCK(0, BOTH, 1)}, {STEP(0)})},
    {"accumulate.overflow-twice", "A3", AT(2, 1024), "one skip, a quarter of S",
     OPS({BLOCK(0, BOTH, INFINITY)}, {BLOCK(0, BOTH, NAN)}, {SCALE(0, 256, 0)}, {SKIP(0)},
         {BLOCK(0, BOTH, 1)}, {STEP(0)})},
    {"accumulate.cancel", "A3", AT(2, 4), "a block that is given up leaves no trace",
     OPS({BLOCK(0, BOTH, 1)}, {BEGIN(0, 1)}, {GIVE(W0, 1, 1)}, {CANCEL}, {BLOCK(0, W1, 1)},
         {GRAD(1, 2)}, {SCALE(0, 4, 2)})},

    /* the half gradient's sum is an fp16 sum, the f32 gradient's is not */
    {"delay.half-sum", "A4", AT(2, 4), "half gradients are summed in half, f32 ones in f32",
     OPS({DELAYED(0, BOTH, 1)}, {DELAYED(0, BOTH, SMALL)}, {BLOCK(0, BOTH, SMALL)},
         {GRAD(SUM_OF_BOTH, 1)})},
    /* ties to even in the half sum: 2048 + 1 is 2048, 2050 + 1 is 2052 */
    {"delay.half-ties", "A4", AT(2, 4), "each half sum is rounded to nearest even",
     OPS({DELAYED(0, BOTH, 512)}, {BLOCK(0, BOTH, .25f)}, {GRAD(512.25f, 512)}, {AGAIN},
         {DELAYED(0, BOTH, 512.5f)}, {BLOCK(0, BOTH, .25f)}, {GRAD(512.75f, 513)})},
    /* each gradient is finite in fp16, their half sum is not: an overflow only where it is delayed
     */
    {"delay.half-overflow", "A4", AT(2, 4), "40000 + 40000 overflows only in fp16",
     OPS({BLOCK(0, BOTH, 10000), TIMES(2)}, {SCALE(0, 4, 2)}, {STEP(0)}, {AGAIN},
         {DELAYED(0, BOTH, 10000)}, {BLOCK(0, BOTH, 10000)}, {SCALE(0, 2, 0)}, {SKIP(0)})},
    {"delay.count", "A4", AT(2, 4), "one check and one count, at the block that unscales",
     OPS({DELAYED(0, BOTH, 1)}, {DELAYED(0, BOTH, INFINITY)}, {SCALE(0, 4, 0)}, {BLOCK(0, BOTH, 1)},
         {SCALE(0, 2, 0)}, {SKIP(0)}, {DELAYED(0, BOTH, 1)}, {BLOCK(0, BOTH, 1)},
         {SCALE(0, 2, 1)})},
    {"delay.only", "A4", AT(2, 4), "what only a delayed block reached is unscaled",
     OPS({DELAYED(0, W0, 3)}, {GRAD(NAN, NAN)}, {BLOCK(0, W1, 5)}, {GRAD(3, 5)})},
    /* Apex adds scaled to unscaled here */
    {"delay.mixed", "A4", AT(1, 8), "scaled sums are kept apart from unscaled ones",
     OPS({BLOCK(0, BOTH, 1)}, {DELAYED(0, BOTH, 2)}, {BLOCK(0, BOTH, 4)}, {GRAD(7, 7)})},
    {"delay.refused", "A4", AT(2, 4), "no step and no other loss while sums are scaled",
     OPS({DELAYED(0, BOTH, 1)}, {STEP(0), REFUSED("still scaled")},
         {BEGIN(1, 1), REFUSED("scale of loss 0")}, {CANCEL}, {WEIGHTS(0, 1, 2, 2, 3)},
         {BLOCK(0, BOTH, 1)}, {STEP(0)}, {WEIGHTS(0, -1, 0, 0, 1)})},
    {"delay.zero", "A4", AT(2, 4), "zeroing drops what is held back",
     OPS({DELAYED(0, BOTH, 8)}, {ZERO(0)}, {BLOCK(1, BOTH, 1)}, {GRAD(1, 1)})},
    /* what the other parameter holds back stays: with both zeroed there is nothing left to refuse
     */
    {"delay.zero-one", "A4", AT(2, 4), "zeroing one of two leaves the other held back",
     OPS({DELAYED(0, BOTH, 1)}, {ZERO_PARAM(W0)}, {STEP(0), REFUSED("still scaled")},
         {BEGIN(1, 1), REFUSED("scale of loss 0")}, {CANCEL}, {ZERO_PARAM(W1)}, {STEP(0)})},
};

/* ---- skipped steps, counts, limits of the scale ---------------------------------------------- */

/* apex/amp/handle.py@patch_step, apex/amp/scaler.py@LossScaler.update_scale. */

/* m0 and m1, SGD without momentum, rate 1/4. */
#define MODELS .models = 2, .lr = .25f
#define SKIPS(o)                                         \
    {                                                    \
        .level = (o), .losses = 2, .scale = 1024, MODELS \
    }
#define TWO_OPTIMIZERS                                                  \
    {                                                                   \
        .level = 2, .losses = 2, .scale = 1024, .optimizers = 2, MODELS \
    }
#define LIMITS(start, low, high)                                                                \
    {                                                                                           \
        .level = 2, .scale = (start), .lowest = (low), .highest = (high), .interval = 1, MODELS \
    }
#define ENDS(start, low, high)                                                   \
    {                                                                            \
        .level = 2, .scale = (start), .lowest = (low), .highest = (high), MODELS \
    }

/* Masks of optimizers and models. */
enum { FIRST = 1, SECOND = 2, ALL = 3 };

/* A clean step, and one that overflows. */
#define STEPPED(l)                     \
    {ROUND(l, FIRST, ALL)}, {STEP(0)}, \
    {                                  \
        ZERO(0)                        \
    }
#define SKIPPED(l, m, w)                                       \
    {ROUND(l, FIRST, ALL), POISON(m, w, INFINITY)}, {SKIP(0)}, \
    {                                                          \
        ZERO(0)                                                \
    }

/* Nothing is zeroed behind a skip: no infinity may reach a weight (in Apex it does). */
#define STALE(w)                                                                                  \
    {ROUND(0, FIRST, ALL), POISON(0, w, INFINITY)}, {SKIP(0)}, {ROUND(0, FIRST, ALL)}, {STEP(0)}, \
    {                                                                                             \
        WEIGHTS(0, .5f, 1.25f, 1.75f, 2.5f)                                                       \
    }

#define OVERFLOWS                                     \
    {                                                 \
        ROUND(0, FIRST, ALL), POISON(0, W0, INFINITY) \
    }
#define ENDED(words)                                                                   \
    {                                                                                  \
        ROUND(0, FIRST, ALL), POISON(0, W0, INFINITY), FAILS(LS_ERR_NON_FINITE, words) \
    }

static const ls_toy_script skips[] = {
    {"skip.pending", "A5", SKIPS(2), "a skip waits for the next step, whatever is zeroed",
     OPS(OVERFLOWS, {ZERO(0)}, {ROUND(0, FIRST, ALL)}, {SKIP(0)}, STEPPED(0))},
    {"skip.stale.o1", "A5", SKIPS(1), "nothing infinite is left for the next step",
     OPS(STALE(W0), {AGAIN}, STALE(W1))},
    {"skip.stale.o2", "A5", SKIPS(2), "nothing infinite is left for the next step",
     OPS(STALE(W0), {AGAIN}, STALE(W1))},
    {"skip.both-optimizers", "A5", TWO_OPTIMIZERS, "every optimizer of the block skips",
     OPS({ROUND(0, ALL, ALL), POISON(0, W1, INFINITY)}, {SKIP(0)}, {SKIP(1)}, {AGAIN},
         {ROUND(0, ALL, ALL), POISON(1, W1, INFINITY)}, {SKIP(0)}, {SKIP(1)})},
    {"skip.only-listed", "A5", TWO_OPTIMIZERS, "an optimizer of another block steps",
     OPS({ROUND(0, FIRST, 1), POISON(0, W0, INFINITY)}, {ROUND(1, SECOND, 2)}, {SKIP(0)},
         {STEP(1)})},
    {"skip.message", "A5", SKIPS(2), "one line, with the loss and the reduced scale",
     OPS(STEPPED(0), SKIPPED(1, 0, W0), STEPPED(1),
         {SAID(1,
               "Gradient overflow.  Skipping step, loss scaler 1 reducing loss scale to 512\n")})},
    {"skip.silent",
     "A5",
     {.level = 2, .losses = 2, .scale = 1024, .mute = true, MODELS},
     "verbosity 0 says nothing",
     OPS(SKIPPED(1, 0, W0), {SAID(0, "")})},
    {"skip.finite",
     "A5",
     {.level = 1, .scale = 1, MODELS},
     "65504 and a sum beyond f32 are no overflow",
     OPS({BEGIN(0, FIRST)}, {GIVE(W0, 3e38f, 3e38f)}, {GIVE(W1, 65504, -65504)}, {END_BLOCK},
         {STEP(0)})},

    {"count.shared", "A5", TWO_OPTIMIZERS, "a shared scale counts blocks, not steps",
     OPS({ROUND(0, FIRST, 1)}, {ROUND(0, SECOND, 2)}, {SCALE(0, 1024, 2)}, {SCALE(1, 1024, 0)})},
    /* static 1 without masters; an infinity goes through */
    {"count.short-circuit",
     "A5",
     {.level = 0, .scale = 1, MODELS},
     "nothing is checked, nothing is counted",
     OPS(STEPPED(0), {SCALE(0, 1, 0)}, OVERFLOWS, {STEP(0), FAILS(LS_ERR_NON_FINITE, "m0.w0")})},
    {"count.static",
     "A5",
     {.level = 3, .scale = 128, .interval = 3, MODELS},
     "128 stays, 10 counted, nothing skipped",
     OPS({ROUND(0, FIRST, ALL), TIMES(4)}, OVERFLOWS, {ROUND(0, FIRST, ALL), TIMES(5)}, {ZERO(0)},
         {SCALE(0, 128, 10)}, {STEP(0)})},

    {"limit.highest", "S5", LIMITS(65536, 0, 1024), "clamped at the start, and never passed",
     OPS({SCALE(0, 1024, 0)}, STEPPED(0), {SCALE(0, 1024, 0)}, STEPPED(0), {SCALE(0, 1024, 0)},
         STEPPED(0), {SCALE(0, 1024, 0)})},
    {"limit.lowest", "S5", LIMITS(1024, 2048, 4096), "the minimum holds from the start",
     OPS({SCALE(0, 2048, 0)}, STEPPED(0), {SCALE(0, 4096, 0)}, STEPPED(0), {SCALE(0, 4096, 0)},
         STEPPED(0), {SCALE(0, 4096, 0)})},
    {"limit.below-one", "S5", LIMITS(2, 0, 0), "1 is no floor",
     OPS({SCALE(0, 2, 0)}, SKIPPED(0, 0, W1), {SCALE(0, 1, 0)}, SKIPPED(0, 0, W1),
         {SCALE(0, .5f, 0)}, SKIPPED(0, 0, W1), {SCALE(0, .25f, 0)})},
    {"limit.floor", "S5", ENDS(1024, 256, 1024), "an overflow at the minimum ends the run",
     OPS(SKIPPED(0, 0, W0), SKIPPED(0, 0, W0), ENDED("past its floor|m0.w0"))},
    /* 2^-24 is the last scale without a minimum: from 2^-20 the fifth overflow goes below it */
    {"limit.floor-none", "S5", ENDS(0x1p-20f, 0, 1024), "without a minimum the floor is 2^-24",
     OPS(SKIPPED(0, 0, W0), SKIPPED(0, 0, W0), SKIPPED(0, 0, W0), SKIPPED(0, 0, W0),
         ENDED("past its floor|m0.w0"))},
    {"limit.streak", "S5", ENDS(0x1p100f, 0, INFINITY), "the 50th overflow in a row ends the run",
     OPS({ROUND(0, FIRST, ALL), POISON(0, W0, INFINITY), TIMES(49)},
         ENDED("50 overflows in a row|m0.w0"))},
};

void ls_amp_blocks_cases(const ls_case_settings *settings, ls_case_list *list)
{
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
    ls_toy_script_cases(settings, list, skips, sizeof skips / sizeof *skips);
}
