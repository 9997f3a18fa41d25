/* Functions that every backend defines under the same name, for its table (kernels.h,
 * ls_backend_api). */
#ifndef LS_ENTRIES_H
#define LS_ENTRIES_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* plan.c */
ls_status ls_plan_create(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, ls_plan **out);
void ls_plan_destroy(ls_plan *plan);
void ls_plan_describe(ls_plan *plan, ls_plan_info *out);
ls_status ls_plan_bind(ls_plan *plan, const ls_plan_binding *binding);
ls_status ls_plan_params_changed(ls_plan *plan, ls_stream *stream);
ls_status ls_plan_forward(ls_plan *plan, ls_stream *stream, const float *input,
                          const int64_t *target);
void ls_plan_evaluate(ls_plan *plan, bool evaluate);
ls_status ls_plan_backward(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                           void *context);

/* export.c: plan_export and plan_force. */
ls_status ls_export_copy(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes);
ls_status ls_export_force(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                          int64_t bytes);

/* observe.c: plan_observe. */
void ls_observe_set(ls_plan *plan, ls_observe_fn *observer, void *context);

/* multi.c, multi.cu. Types other than f32, f16 and bf16 are a bug. */
ls_status ls_multi_scale(ls_backend *backend, ls_stream *stream, ls_tensor tensor, float factor);
ls_status ls_multi_convert(ls_backend *backend, ls_stream *stream, ls_tensor to, ls_tensor from,
                           float factor);
ls_status ls_multi_accumulate(ls_backend *backend, ls_stream *stream, ls_tensor sum, ls_tensor from,
                              bool first);
ls_status ls_multi_unscale_check(ls_backend *backend, ls_stream *stream, ls_tensor_list to,
                                 ls_tensor_list from, ls_step_state *state);
ls_status ls_multi_clip(ls_backend *backend, ls_stream *stream, const ls_clip_config *config,
                        ls_tensor_list grad, bool dynamic, ls_step_state *state);
/* LS_ERR_INFRA without memory for the norms of LAMB and LARS. */
ls_status ls_multi_optimizer_step(ls_backend *backend, ls_stream *stream,
                                  const ls_optimizer_config *config, const ls_optimizer_args *args,
                                  bool dynamic, ls_step_state *state);
ls_status ls_multi_scaler_update(ls_backend *backend, ls_stream *stream,
                                 const ls_scaler_config *config, ls_step_state *state);

/* The members of ls_backend_api that these functions fill. */
#define LS_ENTRIES                                                                                 \
    .plan_create = ls_plan_create, .plan_destroy = ls_plan_destroy, .plan_info = ls_plan_describe, \
    .plan_bind = ls_plan_bind, .plan_params_changed = ls_plan_params_changed,                      \
    .plan_forward = ls_plan_forward, .plan_evaluate = ls_plan_evaluate,                            \
    .plan_backward = ls_plan_backward, .plan_export = ls_export_copy,                              \
    .plan_force = ls_export_force, .plan_observe = ls_observe_set, .scale = ls_multi_scale,        \
    .convert = ls_multi_convert, .accumulate = ls_multi_accumulate,                                \
    .unscale_check = ls_multi_unscale_check, .clip = ls_multi_clip,                                \
    .optimizer_step = ls_multi_optimizer_step, .scaler_update = ls_multi_scaler_update

#ifdef __cplusplus
}
#endif
#endif
