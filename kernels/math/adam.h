/* One element of torch.optim.Adam and AdamW (no amsgrad), each operation rounded:
 *     Adam: g += weight_decay * p.   AdamW: p *= 1 - lr * weight_decay.
 *     m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *     p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 * eps stands outside the root, after the bias correction; t counts from 1. Apex's FusedAdam is the
 * same formula (csrc/multi_tensor_adam.cu), its divisions in another place. */
#ifndef LS_MATH_ADAM_H
#define LS_MATH_ADAM_H

#include "kernels/core/plant.h"
#include "kernels/kernels.h"
#include "rounded.h"

/* Constants of a step, computed in double and rounded once. */
typedef struct ls_adam_rule {
    bool decoupled; /* AdamW */
    bool decays;    /* Adam with weight_decay not 0 */
    float weight_decay;
    float shrink; /* 1 - lr * weight_decay */
    float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
    float step_size;  /* lr / (1 - beta1^t) */
    float root_bias2; /* sqrt(1 - beta2^t) */
} ls_adam_rule;

/* `step` is t, 1 for the first. */
LS_HALF_FN ls_adam_rule ls_adam_prepare(const ls_optimizer_config *config, float lr, int64_t step)
{
    ls_adam_rule rule;
    double beta1 = LS_PLANT(adam_betas_float, config->beta1, (double)(float)config->beta1);
    double beta2 = LS_PLANT(adam_betas_float, config->beta2, (double)(float)config->beta2);
    bool uncorrected = LS_PLANT(adam_no_bias_correction, config->uncorrected, true);
    double bias1 = uncorrected ? 1.0 : 1.0 - pow(beta1, (double)step);
    double bias2 = uncorrected ? 1.0 : 1.0 - pow(beta2, (double)step);
    rule.decoupled = LS_PLANT(adamw_is_adam, config->kind == LS_OPTIMIZER_ADAMW, false);
    rule.decays = !rule.decoupled && config->weight_decay != 0.0;
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

/* Returns the new parameter; *m and *v are the moments, zero before the first step. */
LS_HALF_FN float ls_adam_step(const ls_adam_rule *rule, float p, float g, float *m, float *v)
{
    if (rule->decays) {
        g = ls_rounded_add(g, ls_rounded_mul(rule->weight_decay, p));
    }
    if (rule->decoupled) {
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
