/* Clipping of unscaled gradients as torch.nn.utils does it:
 *
 *   clip_grad_norm_    grad *= min(1, max_norm / (norm + 1e-6)), norm of all gradients as one
 * vector clip_grad_value_   grad = min(max(grad, -max_value), max_value)
 *
 * The sum of squares is in double, the factor is rounded once. A NaN stays one. */
#ifndef LS_MATH_CLIP_H
#define LS_MATH_CLIP_H

#include "rule.h"

/* squares: of all gradients. */
LS_HALF_FN float ls_clip_factor(const ls_clip_config *config, double squares,
                                const ls_step_state *state)
{
    /* a common mistake: the norm of gradients that are still scaled */
    (void)state;
    double norm = sqrt(squares) * LS_PLANT(clipped_before_unscaling, 1.0, state->loss_scale);
    double factor = config->max_norm / (norm + 1e-6);
    return config->max_norm == 0.0 || factor >= 1.0 ? 1.0f : (float)factor;
}

LS_RULE_FN float ls_clip_apply(float grad, float factor, float max_value)
{
    float least = LS_PLANT(value_clipped_above_only, -max_value, -INFINITY);
    grad = ls_rounded_mul(grad, factor);
    if (max_value == 0.0f) {
        return grad;
    }
    return grad > max_value ? max_value : grad < least ? least : grad;
}

#endif
