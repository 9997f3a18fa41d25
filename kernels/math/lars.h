/* LARS as Apex's LARC around SGD (apex/parallel/LARC.py; You et al. 2017), norms of one tensor:
 *     a = trust |p| / (|g| + weight_decay |p| + eps), in clip mode min(a / lr, 1)
 *     g = (g + weight_decay * p) * a,  where both norms are not 0; else g stays, without decay
 * and then a step of SGD that does not decay. */
#ifndef LS_MATH_LARS_H
#define LS_MATH_LARS_H

#include "rule.h"
#include "sgd.h"

typedef ls_sgd_rule ls_lars_rule; /* of the SGD step, which does not decay */

LS_HALF_FN ls_lars_rule ls_lars_prepare(const ls_optimizer_config *config, float lr, int64_t step,
                                        double grad_squares)
{
    ls_lars_rule rule = ls_sgd_prepare(config, lr, step, grad_squares);
    rule.flags &= ~(uint32_t)LS_SGD_DECAYS;
    return rule;
}

LS_HALF_FN ls_rule_tensor ls_lars_tensor(const ls_optimizer_config *config, float lr,
                                         double value_squares, double grad_squares)
{
    ls_rule_tensor tensor;
    double value = sqrt(value_squares);
    double ratio =
        config->trust * value /
        (sqrt(grad_squares) + LS_PLANT(lars_decay_outside_norm, config->weight_decay, 0.0) * value +
         config->epsilon);
    if (LS_PLANT(lars_ratio_never_clipped, LS_PLANT(lars_ratio_clipped, config->clip, true),
                 false)) {
        ratio = ratio < (double)lr ? ratio / (double)lr : 1.0;
    }
    tensor.scales = value_squares > 0.0 && grad_squares > 0.0;
    tensor.ratio = (float)ratio;
    return tensor;
}

LS_RULE_FN float ls_lars_step(const ls_lars_rule *rule, const ls_rule_tensor *tensor, float p,
                              float g, float *buf, float *unused)
{
    float decayed = ls_rounded_add(g, ls_rounded_mul(rule->weight_decay, p));
    float scaled = tensor->scales ? ls_rounded_mul(decayed, tensor->ratio) : g;
    return ls_sgd_step(rule, tensor, p, scaled, buf, unused);
}

#endif
