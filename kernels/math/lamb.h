/* One element of Apex's FusedLAMB (csrc/multi_tensor_lamb.cu; You et al. 2019), rounded at
 * each operation:
 *     g = g / c, c = G / max_grad_norm where the norm G of all gradients is above it, else 1
 *     L2 mode: g += weight_decay * p
 *     m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     u = (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps);  else u += weight_decay * p
 *     p -= ratio * u,  ratio = lr |p| / |u| where (nvlamb or weight_decay) and both norms are not
 * 0, else lr The norms are those of one tensor, |p| before the step. u is worked out twice, for its
 * norm and for the step, so that the gradient stays as it is (Apex overwrites it). */
#ifndef LS_MATH_LAMB_H
#define LS_MATH_LAMB_H

#include "kernels/core/plant.h"
#include "kernels/kernels.h"
#include "rounded.h"

/* Constants of a step, computed in double and rounded once. */
typedef struct ls_lamb_rule {
    bool decays_grad;   /* L2 mode with weight_decay not 0 */
    bool decays_update; /* decoupled, with weight_decay not 0 */
    float divisor;      /* c */
    float weight_decay;
    float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
    float bias1, bias2; /* 1 - beta^t */
} ls_lamb_rule;

/* grad_squares: the sum of the squares of all gradients; `step` is t, 1 for the first. */
LS_HALF_FN ls_lamb_rule ls_lamb_prepare(const ls_optimizer_config *config, double grad_squares,
                                        int64_t step)
{
    ls_lamb_rule rule;
    double norm = sqrt(grad_squares);
    bool clips = LS_PLANT(lamb_norm_not_clipped, config->max_grad_norm, 0.0) > 0.0 &&
                 !(norm <= config->max_grad_norm);
    bool decays = config->weight_decay != 0.0;
    rule.decays_grad = decays && config->l2;
    rule.decays_update = decays && !config->l2;
    rule.divisor = clips ? (float)(norm / config->max_grad_norm) : 1.0f;
    rule.weight_decay = (float)config->weight_decay;
    rule.beta1 = (float)config->beta1;
    rule.one_minus_beta1 = (float)(1.0 - config->beta1);
    rule.beta2 = (float)config->beta2;
    rule.one_minus_beta2 = (float)(1.0 - config->beta2);
    rule.epsilon = (float)config->epsilon;
    rule.bias1 = config->uncorrected ? 1.0f : (float)(1.0 - pow(config->beta1, (double)step));
    rule.bias2 = config->uncorrected ? 1.0f : (float)(1.0 - pow(config->beta2, (double)step));
    return rule;
}

LS_HALF_FN void ls_lamb_moments(const ls_lamb_rule *rule, float p, float g, float *m, float *v)
{
    g = ls_rounded_div(g, rule->divisor);
    if (rule->decays_grad) {
        g = ls_rounded_add(g, ls_rounded_mul(rule->weight_decay, p));
    }
    *m = ls_rounded_add(ls_rounded_mul(rule->beta1, *m), ls_rounded_mul(rule->one_minus_beta1, g));
    *v = ls_rounded_add(ls_rounded_mul(rule->beta2, *v),
                        ls_rounded_mul(ls_rounded_mul(rule->one_minus_beta2, g), g));
}

/* u, from the moments of this step. */
LS_HALF_FN float ls_lamb_update(const ls_lamb_rule *rule, float p, float m, float v)
{
    float denominator =
        ls_rounded_add(ls_rounded_sqrt(ls_rounded_div(v, rule->bias2)), rule->epsilon);
    float update = ls_rounded_div(ls_rounded_div(m, rule->bias1), denominator);
    return rule->decays_update ? ls_rounded_add(update, ls_rounded_mul(rule->weight_decay, p))
                               : update;
}

LS_HALF_FN float ls_lamb_ratio(const ls_optimizer_config *config, float lr, double value_squares,
                               double update_squares)
{
    bool adapts =
        LS_PLANT(lamb_no_trust_ratio, config->nvlamb || config->weight_decay != 0.0, false);
    adapts = LS_PLANT(lamb_adapts_without_decay, adapts, true);
    if (!adapts || !(value_squares > 0.0) || !(update_squares > 0.0)) {
        return lr;
    }
    return (float)((double)lr * sqrt(value_squares) / sqrt(update_squares));
}

#endif
