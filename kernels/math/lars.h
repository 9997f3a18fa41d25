/* LARS as Apex's LARC around SGD (apex/parallel/LARC.py; You et al. 2017), norms of one tensor:
 *     a = trust |p| / (|g| + weight_decay |p| + eps), in clip mode min(a / lr, 1)
 *     g = (g + weight_decay * p) * a,  where both norms are not 0; else g stays, without decay
 * and then a step of SGD that does not decay. */
#ifndef LS_MATH_LARS_H
#define LS_MATH_LARS_H

#include "kernels/core/plant.h"
#include "kernels/kernels.h"
#include "rounded.h"

typedef struct ls_lars_rule {
    bool scales; /* both norms are not 0 */
    float weight_decay, ratio;
} ls_lars_rule;

LS_HALF_FN ls_lars_rule ls_lars_prepare(const ls_optimizer_config *config, float lr,
                                        double value_squares, double grad_squares)
{
    ls_lars_rule rule;
    double value = sqrt(value_squares);
    double ratio =
        config->trust * value /
        (sqrt(grad_squares) + LS_PLANT(lars_decay_outside_norm, config->weight_decay, 0.0) * value +
         config->epsilon);
    if (LS_PLANT(lars_ratio_clipped, config->clip, true)) {
        ratio = ratio < (double)lr ? ratio / (double)lr : 1.0;
    }
    rule.scales = value_squares > 0.0 && grad_squares > 0.0;
    rule.weight_decay = (float)config->weight_decay;
    rule.ratio = (float)ratio;
    return rule;
}

LS_HALF_FN float ls_lars_grad(const ls_lars_rule *rule, float p, float g)
{
    float decayed = ls_rounded_add(g, ls_rounded_mul(rule->weight_decay, p));
    return rule->scales ? ls_rounded_mul(decayed, rule->ratio) : g;
}

#endif
