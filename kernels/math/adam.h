/* One element of torch.optim.Adam and AdamW (no amsgrad), each operation rounded:
 *     Adam: g += weight_decay * p.   AdamW: p *= 1 - lr * weight_decay.
 *     m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 * eps stands outside the root, after the bias correction; t counts from 1. Apex's FusedAdam is the
 * same formula (csrc/multi_tensor_adam.cu), its divisions in another place. */
#ifndef LS_MATH_ADAM_H
#define LS_MATH_ADAM_H

#include "rule.h"

enum {
    LS_ADAM_DECAYS = 1,    /* Adam with weight_decay not 0 */
    LS_ADAM_DECOUPLED = 2, /* AdamW */
};

/* Constants of a step, computed in double and rounded once. */
typedef struct ls_adam_rule {
    uint32_t flags;
    float weight_decay;
    float shrink; /* 1 - lr * weight_decay */
    float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
    float step_size;  /* lr / (1 - beta1^t) */
    float root_bias2; /* sqrt(1 - beta2^t) */
} ls_adam_rule;

LS_HALF_FN ls_adam_rule ls_adam_prepare(const ls_optimizer_config *config, float lr, int64_t step,
                                        double grad_squares)
{
    ls_adam_rule rule;
    bool decoupled = LS_PLANT(adamw_is_adam, config->kind == LS_OPTIMIZER_ADAMW, false);
    (void)grad_squares;
    rule.flags = decoupled ? LS_ADAM_DECOUPLED : config->weight_decay != 0.0 ? LS_ADAM_DECAYS : 0;
    double beta1 = LS_PLANT(adam_betas_float, config->beta1, (double)(float)config->beta1);
    double beta2 = LS_PLANT(adam_betas_float, config->beta2, (double)(float)config->beta2);
    bool uncorrected = LS_PLANT(adam_no_bias_correction, config->uncorrected, true);
    double bias1 = uncorrected ? 1.0 : 1.0 - pow(beta1, (double)step);
    double bias2 = uncorrected ? 1.0 : 1.0 - pow(beta2, (double)step);
    rule.weight_decay = (float)config->weight_decay;
    rule.shrink =
        (float)(1.0 - LS_PLANT(adamw_decay_without_lr, (double)lr, 1.0) * config->weight_decay);
    rule.beta1 = (float)beta1;
    rule.one_minus_beta1 = (float)(1.0 - beta1);
    rule.beta2 = (float)beta2;
    rule.one_minus_beta2 = (float)(1.0 - beta2);
    rule.epsilon = (float)config->epsilon;
    rule.step_size = (float)((double)lr / bias1);
    rule.root_bias2 = (float)sqrt(bias2);
    return rule;
}

LS_RULE_FN float ls_adam_step(const ls_adam_rule *rule, const ls_rule_tensor *tensor, float p,
                              float g, float *m, float *v)
{
    (void)tensor;
    if ((rule->flags & LS_ADAM_DECAYS) != 0) {
        g = ls_rounded_add(g, ls_rounded_mul(rule->weight_decay, p));
    }
    if ((rule->flags & LS_ADAM_DECOUPLED) != 0) {
        p = ls_rounded_mul(p, rule->shrink);
    }
    float next_m =
        ls_rounded_add(ls_rounded_mul(rule->beta1, *m), ls_rounded_mul(rule->one_minus_beta1, g));
    float next_v = ls_rounded_add(ls_rounded_mul(rule->beta2, *v),
                                  ls_rounded_mul(ls_rounded_mul(rule->one_minus_beta2, g), g));
    *m = next_m;
    *v = next_v;
    float denominator =
        ls_rounded_add(ls_rounded_div(ls_rounded_sqrt(next_v), rule->root_bias2), rule->epsilon);
    denominator = LS_PLANT(adam_epsilon_inside, denominator,
                           ls_rounded_sqrt(next_v + rule->epsilon) / rule->root_bias2);
    denominator = LS_PLANT(adam_epsilon_first, denominator,
                           (ls_rounded_sqrt(next_v) + rule->epsilon) / rule->root_bias2);
    return ls_rounded_sub(p, ls_rounded_mul(rule->step_size, ls_rounded_div(next_m, denominator)));
}

#endif
