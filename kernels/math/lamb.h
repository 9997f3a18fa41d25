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

#include "rule.h"

enum {
    LS_LAMB_DECAYS_GRAD = 1,   /* L2 mode with weight_decay not 0 */
    LS_LAMB_DECAYS_UPDATE = 2, /* decoupled, with weight_decay not 0 */
};

/* Constants of a step, computed in double and rounded once. */
typedef struct ls_lamb_rule {
    uint32_t flags;
    float divisor; /* c */
    float weight_decay;
    float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
    float bias1, bias2; /* 1 - beta^t */
} ls_lamb_rule;

LS_HALF_FN ls_lamb_rule ls_lamb_prepare(const ls_optimizer_config *config, float lr, int64_t step,
                                        double grad_squares)
{
    ls_lamb_rule rule;
    double norm = sqrt(grad_squares);
    bool clips = LS_PLANT(lamb_norm_not_clipped, config->max_grad_norm, 0.0) > 0.0 &&
                 !(norm <= config->max_grad_norm);
    bool decays = config->weight_decay != 0.0;
    (void)lr;
    rule.flags = !decays ? 0 : config->l2 ? LS_LAMB_DECAYS_GRAD : LS_LAMB_DECAYS_UPDATE;
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

/* The direction of the step, from the moments of this step. */
LS_RULE_FN float ls_lamb_direction(const ls_lamb_rule *rule, float p, float m, float v)
{
    float denominator =
        ls_rounded_add(ls_rounded_sqrt(ls_rounded_div(v, rule->bias2)), rule->epsilon);
    float update = ls_rounded_div(ls_rounded_div(m, rule->bias1), denominator);
    return (rule->flags & LS_LAMB_DECAYS_UPDATE) != 0
               ? ls_rounded_add(update, ls_rounded_mul(rule->weight_decay, p))
               : update;
}

LS_RULE_FN float ls_lamb_update(const ls_lamb_rule *rule, float p, float g, float *m, float *v)
{
    g = ls_rounded_div(g, rule->divisor);
    if ((rule->flags & LS_LAMB_DECAYS_GRAD) != 0) {
        g = ls_rounded_add(g, ls_rounded_mul(rule->weight_decay, p));
    }
    *m = ls_rounded_add(ls_rounded_mul(rule->beta1, *m), ls_rounded_mul(rule->one_minus_beta1, g));
    *v = ls_rounded_add(ls_rounded_mul(rule->beta2, *v),
                        ls_rounded_mul(ls_rounded_mul(rule->one_minus_beta2, g), g));
    return ls_lamb_direction(rule, p, *m, *v);
}

LS_HALF_FN ls_rule_tensor ls_lamb_tensor(const ls_optimizer_config *config, float lr,
                                         double value_squares, double update_squares)
{
    ls_rule_tensor tensor;
    bool adapts =
        LS_PLANT(lamb_no_trust_ratio, config->nvlamb || config->weight_decay != 0.0, false);
    adapts = LS_PLANT(lamb_adapts_without_decay, adapts, true);
    tensor.scales = adapts && value_squares > 0.0 && update_squares > 0.0;
    tensor.ratio =
        tensor.scales ? (float)((double)lr * sqrt(value_squares) / sqrt(update_squares)) : lr;
    return tensor;
}

LS_RULE_FN float ls_lamb_step(const ls_lamb_rule *rule, const ls_rule_tensor *tensor, float p,
                              float g, float *m, float *v)
{
    (void)g;
    return ls_rounded_sub(p, ls_rounded_mul(tensor->ratio, ls_lamb_direction(rule, p, *m, *v)));
}

#endif
