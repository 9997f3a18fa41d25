/* The dynamic loss scaler on ls_step_state, one thread's work (numerics.md section 2.6; the
 * order of apex/amp/scaler.py@LossScaler.update_scale, growth at >= instead of ==). */
#ifndef LS_MATH_SCALER_H
#define LS_MATH_SCALER_H

#include "kernels/core/plant.h"
#include "kernels/kernels.h"
#include "rounded.h"

/* Without --min-loss-scale a run ends where S would fall below 2^-24, the least fp16 subnormal. */
#define LS_SCALER_FLOOR 5.9604644775390625e-8f

/* f32(1/S), computed as in torch's GradScaler. */
LS_HALF_FN float ls_scaler_inverse(float scale)
{
    return (float)(1.0 / (double)scale);
}

/* On overflow under a dynamic scale, S is multiplied by backoff_factor (not below min_scale, if
 * set) and the count restarts. Otherwise the count goes up, and at growth_interval clean steps S
 * grows, but not past max_scale and not to inf. A static scale only counts. floor_reached refers to
 * this update only. */
LS_HALF_FN void ls_scaler_update(const ls_scaler_config *config, ls_step_state *state)
{
    float scale = state->loss_scale;
    state->floor_reached = 0;
    if (config->dynamic && state->overflow != 0) {
        float next = ls_rounded_mul(scale, config->backoff_factor);
        float least = config->min_scale > 0.0f ? config->min_scale : LS_SCALER_FLOOR;
        state->floor_reached = next < least ? 1 : 0;
        scale = config->min_scale > 0.0f && next < least ? least : next;
        state->growth_count = LS_PLANT(count_survives_overflow, 0, state->growth_count);
        state->overflow_streak++;
    } else {
        if (state->growth_count < INT32_MAX) {
            state->growth_count++;
        }
        state->overflow_streak = 0;
        if (config->dynamic && state->growth_count >= config->growth_interval) {
            float next = ls_rounded_mul(scale, config->growth_factor);
            if (ls_rounded_non_finite(next) == 0) {
                scale = next < config->max_scale ? next : config->max_scale;
            }
            state->growth_count = LS_PLANT(count_survives_growth, 0, state->growth_count);
        }
    }
    state->loss_scale = scale;
    state->inv_loss_scale =
        LS_PLANT(stale_inverse, ls_scaler_inverse(scale), state->inv_loss_scale);
}

#endif
