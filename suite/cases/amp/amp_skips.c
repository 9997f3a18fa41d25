/* What a skipped step does and does not, what counts, and the limits of the scale
 * (apex/amp/handle.py@patch_step, apex/amp/scaler.py@LossScaler.update_scale). */
#include <math.h>

#include "amp_rows.h"
#include "toy_script.h"

/* m0 and m1, SGD without momentum, rate 1/4. */
#define MODELS .models = 2, .lr = .25f
#define AT(o)                                            \
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

static const ls_toy_script scripts[] = {
    {"skip.pending", "A5", AT(2), "a skip waits for the next step, whatever is zeroed",
     OPS(OVERFLOWS, {ZERO(0)}, {ROUND(0, FIRST, ALL)}, {SKIP(0)}, STEPPED(0))},
    {"skip.stale.o1", "A5", AT(1), "nothing infinite is left for the next step",
     OPS(STALE(W0), {AGAIN}, STALE(W1))},
    {"skip.stale.o2", "A5", AT(2), "nothing infinite is left for the next step",
     OPS(STALE(W0), {AGAIN}, STALE(W1))},
    {"skip.both-optimizers", "A5", TWO_OPTIMIZERS, "every optimizer of the block skips",
     OPS({ROUND(0, ALL, ALL), POISON(0, W1, INFINITY)}, {SKIP(0)}, {SKIP(1)}, {AGAIN},
         {ROUND(0, ALL, ALL), POISON(1, W1, INFINITY)}, {SKIP(0)}, {SKIP(1)})},
    {"skip.only-listed", "A5", TWO_OPTIMIZERS, "an optimizer of another block steps",
     OPS({ROUND(0, FIRST, 1), POISON(0, W0, INFINITY)}, {ROUND(1, SECOND, 2)}, {SKIP(0)},
         {STEP(1)})},
    {"skip.message", "A5", AT(2), "one line, with the loss and the reduced scale",
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

void ls_amp_skip_cases(const ls_case_settings *settings, ls_case_list *list)
{
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
}
