/* One element of torch.optim.SGD (dampening 0), each operation rounded:
 *     d = g + weight_decay * p;  buf = d on the first step, else momentum * buf + d;
 *     d = d + momentum * buf (Nesterov) or buf;  p = p - lr * d
 * lr multiplies outside the buffer. A rule whose factor is 0 is left out, as torch leaves it out: 0
 * * inf would be NaN. */
#ifndef LS_MATH_SGD_H
#define LS_MATH_SGD_H

#include <stdbool.h>

#include "kernels/core/plant.h"
#include "rounded.h"

/* Constant over a call; loops specialise on it. */
typedef struct ls_sgd_rule {
    bool decays;  /* weight_decay is not 0 */
    bool has_buf; /* momentum is not 0 */
    bool first;   /* no step was taken before: buf is written, not read */
    bool nesterov;
} ls_sgd_rule;

/* Returns the new parameter; *buf is the momentum buffer, untouched without momentum. */
LS_HALF_FN float ls_sgd_step(ls_sgd_rule rule, float lr, float momentum, float weight_decay,
                             float p, float g, float *buf)
{
    bool decays = LS_PLANT(decay_after_momentum, rule.decays, false);
    float d = decays ? ls_rounded_add(g, ls_rounded_mul(weight_decay, p)) : g;
    if (rule.has_buf) {
        float start = LS_PLANT(dampened_first_step, d, ls_rounded_mul(1.0f - momentum, d));
        float next = rule.first ? start : ls_rounded_add(ls_rounded_mul(momentum, *buf), d);
        next = LS_PLANT(dampened_later, next,
                        ls_rounded_add(ls_rounded_mul(momentum, *buf), (1.0f - momentum) * d));
        *buf = LS_PLANT(momentum_in_half, next, ls_half_fp16_to_f32(ls_half_f32_to_fp16(next)));
        bool nesterov = LS_PLANT(nesterov_ignored, rule.nesterov, false);
        d = nesterov ? ls_rounded_add(d, ls_rounded_mul(momentum, next)) : next;
    }
    d = LS_PLANT(decay_after_momentum, d, d + weight_decay * p);
    return ls_rounded_sub(p, ls_rounded_mul(lr, d));
}

#endif
