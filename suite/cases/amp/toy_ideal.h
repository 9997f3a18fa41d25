/* A toy model of our own, in doubles: SGD with momentum, every operation rounded to f32 as torch's
 * would be, and the half weight rounded on the bits of the double. */
#ifndef LS_TOY_IDEAL_H
#define LS_TOY_IDEAL_H

#include "toy.h"

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
void ls_toy_ideal_expect(ls_toy *toy, int model, const ls_toy_ideal *ideal, const char *when,
                         ls_verdict *verdict);
/* `count` blocks of loss 0, at S = 4, that reach models 0 (and 1), on both sides. */
void ls_toy_ideal_blocks(ls_toy *toy, ls_toy_ideal *ideal, int models, int count);
/* The nearest fp16, on the bits of the double. */
double ls_toy_ideal_half(double value);

#endif
