#include "precision.h"

#include <math.h>
#include "kernels/core/plant.h"

/* Factors and window of both dialects: apex/amp/scaler.py, torch/amp/grad_scaler.py. */
static void resolve_scaler(const ls_options *options, const ls_dialect_rules *rules,
                           ls_precision *out)
{
    /* bf16 has f32's range: scaling is off unless asked for (numerics.md section 1) */
    bool dynamic =
        (options->opt_level == LS_O1 || options->opt_level == LS_O2) && options->half == LS_F16;
    if (options->loss_scale_given) {
        dynamic = options->loss_scale_dynamic;
    }
    out->scaler = (ls_scaler_config){
        .dynamic = dynamic,
        .growth_factor = 2.0f,
        .backoff_factor = LS_PLANT(backoff_by_four, 0.5f, 0.25f),
        .growth_interval = options->growth_interval + LS_PLANT(growth_window_off_by_one, 0, 1),
        .min_scale = LS_PLANT(floor_ignored, options->min_loss_scale, 0.0f),
        .max_scale = options->max_loss_scale > 0 ? options->max_loss_scale : rules->max_scale,
    };
    if (!dynamic) {
        out->initial_scale = options->loss_scale_given ? options->loss_scale : 1.0f;
        return;
    }
    out->initial_scale =
        fmaxf(fminf(options->init_scale, out->scaler.max_scale), out->scaler.min_scale);
}

/* Of f32 gradients: a hook's, or that of --compress. */
static ls_dtype compressed_type(const ls_options *options)
{
    return options->comm_hook == LS_COMM_HOOK_FP16_COMPRESS   ? LS_F16
           : options->comm_hook == LS_COMM_HOOK_BF16_COMPRESS ? LS_BF16
                                                              : options->compress;
}

void ls_precision_resolve(const ls_options *options, const ls_dialect_rules *rules,
                          ls_precision *out)
{
    bool half_model = options->opt_level == LS_O2 || options->opt_level == LS_O3;
    bool norm_f32 = LS_PLANT(norm_params_f32_at_o3, options->opt_level != LS_O3, true) &&
                    LS_PLANT(norm_params_half_at_o2, true, options->opt_level < LS_O2);
    bool masters = options->opt_level == LS_PLANT(no_masters, LS_O2, LS_O3 + 1);
    if (options->keep_batchnorm_fp32 != LS_UNSET) {
        norm_f32 = options->keep_batchnorm_fp32 == LS_TRUE;
    }
    if (options->master_weights != LS_UNSET) {
        masters = options->master_weights == LS_TRUE;
    }
    *out = (ls_precision){
        .level = options->opt_level,
        .half = options->half,
        .activation =
            options->opt_level == LS_O0 ? LS_F32 : LS_PLANT(silent_fp32, options->half, LS_F32),
        .product = half_model ? options->half : LS_F32,
        .norm = half_model && !norm_f32 ? options->half : LS_F32,
        .masters = half_model && masters,
        .allreduce_fp32 = options->allreduce_fp32,
        .compress = compressed_type(options),
    };
    resolve_scaler(options, rules, out);
}

ls_dtype ls_precision_param(const ls_precision *precision, ls_param_role role)
{
    bool norm = role == LS_PARAM_NORM_WEIGHT || role == LS_PARAM_NORM_BIAS;
    return norm ? precision->norm : precision->product;
}

ls_dtype ls_precision_buffer(const ls_precision *precision, ls_buffer_role role)
{
    return role == LS_BUFFER_BATCHES_TRACKED ? LS_I64 : precision->norm;
}

ls_dtype ls_precision_grad(const ls_precision *precision, ls_param_role role)
{
    return ls_precision_param(precision, role);
}

ls_dtype ls_precision_reduced(const ls_precision *precision, ls_param_role role)
{
    ls_dtype made = ls_precision_grad(precision, role);
    if (made == LS_F32) {
        return LS_PLANT(compress_ignored, precision->compress, LS_F32);
    }
    return LS_PLANT(allreduce_fp32_ignored, precision->allreduce_fp32, false) ? LS_F32 : made;
}

bool ls_precision_has_master(const ls_precision *precision, ls_param_role role)
{
    return precision->masters && ls_precision_param(precision, role) != LS_F32;
}
