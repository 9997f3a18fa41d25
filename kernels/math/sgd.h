/* One element of torch.optim.SGD (dampening 0), each operation rounded:
 *     d = g + weight_decay * p;  buf = d on the first step, else momentum * buf + d;
 *     d = d + momentum * buf (Nesterov) or buf;  p = p - lr * d
 * lr multiplies outside the buffer. A term whose factor is 0 is left out, as in torch: its product
 * with an infinity would be NaN. */
#ifndef LS_MATH_SGD_H
#define LS_MATH_SGD_H

#include "rule.h"

enum {
    LS_SGD_DECAYS = 1, /* weight_decay is not 0 */
    LS_SGD_FIRST = 2,  /* no step was taken before: buf is written, not read */
    LS_SGD_NESTEROV = 4,
};

typedef struct ls_sgd_rule {
    uint32_t flags;
    float lr, momentum, weight_decay;
} ls_sgd_rule;

LS_HALF_FN ls_sgd_rule ls_sgd_prepare(const ls_optimizer_config *config, float lr, int64_t step,
                                      double grad_squares)
{
    ls_sgd_rule rule;
    (void)grad_squares;
    bool decays =
        config->weight_decay != 0.0 && LS_PLANT(no_decay_after_50, true, ls_plant_now <= 50);
    rule.flags = decays ? LS_SGD_DECAYS : 0;
    if (config->momentum != 0.0) {
        rule.flags |= (step == 1 ? LS_SGD_FIRST : 0) | (config->nesterov ? LS_SGD_NESTEROV : 0);
    }
    rule.lr = lr;
    rule.momentum = (float)config->momentum;
    rule.weight_decay = (float)config->weight_decay;
    return rule;
}

/* buf: the momentum buffer, NULL without momentum. */
LS_RULE_FN float ls_sgd_step(const ls_sgd_rule *rule, const ls_rule_tensor *tensor, float p,
                             float g, float *buf, float *unused)
{
    float momentum = rule->momentum, weight_decay = rule->weight_decay;
    bool decays = LS_PLANT(decay_after_momentum, (rule->flags & LS_SGD_DECAYS) != 0, false);
    float d = decays ? ls_rounded_add(g, ls_rounded_mul(weight_decay, p)) : g;
    (void)tensor;
    (void)unused;
    if (buf != NULL) {
        float start = LS_PLANT(dampened_first_step, d, ls_rounded_mul(1.0f - momentum, d));
        float next = (rule->flags & LS_SGD_FIRST) != 0
                         ? start
                         : ls_rounded_add(ls_rounded_mul(momentum, *buf), d);
        next = LS_PLANT(dampened_later, next,
                        ls_rounded_add(ls_rounded_mul(momentum, *buf), (1.0f - momentum) * d));
        *buf = LS_PLANT(momentum_in_half, next, ls_half_fp16_to_f32(ls_half_f32_to_fp16(next)));
        bool nesterov = LS_PLANT(nesterov_ignored, (rule->flags & LS_SGD_NESTEROV) != 0, false);
        d = nesterov ? ls_rounded_add(d, ls_rounded_mul(momentum, next)) : next;
    }
    d = LS_PLANT(decay_after_momentum, d, d + weight_decay * p);
    return ls_rounded_sub(p, ls_rounded_mul(rule->lr, d));
}

#endif
