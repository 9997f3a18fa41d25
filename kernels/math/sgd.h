/* One element of torch.optim.SGD (dampening 0), each operation rounded (facts: PyTorch's SGD):
 *     d = g + weight_decay * p;  buf = d on the first step, else momentum * buf + d;
 *     d = d + momentum * buf (Nesterov) or buf;  p = p - lr * d
 * lr multiplies outside the buffer. A rule whose factor is 0 is left out, as torch leaves it out: 0
 * * inf would be NaN. */
#ifndef LS_MATH_SGD_H
#define LS_MATH_SGD_H

#include <stdbool.h>

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
    float d = rule.decays ? ls_rounded_add(g, ls_rounded_mul(weight_decay, p)) : g;
    if (rule.has_buf) {
        float next = rule.first ? d : ls_rounded_add(ls_rounded_mul(momentum, *buf), d);
        *buf = next;
        d = rule.nesterov ? ls_rounded_add(d, ls_rounded_mul(momentum, next)) : next;
    }
    return ls_rounded_sub(p, ls_rounded_mul(lr, d));
}

#endif
