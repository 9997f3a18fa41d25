/* Plans of the CUDA backend on the emulated device, for their tests. */
#ifndef LS_UNIT_CUDA_PLAN_H
#define LS_UNIT_CUDA_PLAN_H

#include "suite/unit/kernels/cpu_plan.h"
#include "use_emulation.h"

/* A plan's options for the trainer's opt level O<opt_level>. */
static inline ls_kernel_subject_options cuda_level(int opt_level, ls_dtype half)
{
    ls_kernel_subject_options o = {.device = "cuda"};
    o.activation = opt_level == 0 ? LS_F32 : half;
    if (opt_level >= 2) {
        o.param_type = o.grad_type = half;
    }
    if (opt_level == 3) {
        o.norm_type = o.buffer_type = half;
    }
    return o;
}

static inline double cuda_scale(const ls_kernel_subject_options *o)
{
    return o->activation == LS_F32 ? 1 : 128;
}

static inline void cuda_make(ls_kernel_subject *s, const ls_kernel_net *n, const int *size,
                             ls_kernel_subject_options o)
{
    plan_make(s, n, size[0], size[1], size[2], o);
    ck_assert_int_eq(ls_kernel_subject_set_scale(s, (float)cuda_scale(&o)), LS_OK);
}

#endif
