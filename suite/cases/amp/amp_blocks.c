/* Several backward passes before one step (apex/amp/_process_optimizer.py, delay_unscale of
 * apex/amp/handle.py@scale_loss): sums of unscaled gradients in f32, and the delayed unscale that
 * sums scaled ones in their own type. */
#include <math.h>

#include "amp_rows.h"
#include "toy_script.h"

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

void ls_amp_block_cases(const ls_case_settings *settings, ls_case_list *list)
{
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
}
