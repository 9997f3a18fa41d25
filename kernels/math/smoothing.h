/* Label smoothing of E over C classes as torch.nn.CrossEntropyLoss computes it:
 *     loss = (1 - E) * nll(target) + E * mean over classes of nll(class)
 * so the classes' weights are 1 - E + E/C for the target and E/C for every other class. */
#ifndef LS_MATH_SMOOTHING_H
#define LS_MATH_SMOOTHING_H

#include "kernels/core/half.h"
#include "kernels/core/plant.h"

typedef struct ls_smoothing {
    double amount; /* E; 0: none */
    float target,
        other; /* weights of classes in the gradient, rounded once; without smoothing 1, 0 */
} ls_smoothing;

LS_HALF_FN ls_smoothing ls_smoothing_of(double amount, int classes)
{
    ls_smoothing smoothing;
    amount = LS_PLANT(smoothing_ignored, amount, 0.0);
    /* a common mistake: the mass is shared among the others only */
    double each = amount / (double)(classes - LS_PLANT(smoothing_among_others, 0, 1));
    smoothing.amount = amount;
    smoothing.other = (float)each;
    smoothing.target = (float)(1.0 - amount + LS_PLANT(smoothing_among_others, each, 0.0));
    return smoothing;
}

/* The loss of one sample: its target's, and the mean over all classes. */
LS_HALF_FN double ls_smoothing_loss(const ls_smoothing *smoothing, double target, double mean)
{
    return (1.0 - smoothing->amount) * target + smoothing->amount * mean;
}

#endif
