/* f32 arithmetic where every operation is rounded by itself: no fused multiply-add. The elementwise
 * bodies of this folder are written with these, so that the CPU's vector variants, CUDA and torch's
 * order of operations give the same bits. (A NaN's payload is not part of that promise.)
 *
 * On CUDA the intrinsics forbid contraction. In C, GCC does not contract under
 * -std=c11, and clang obeys the pragma. */
#ifndef LS_MATH_ROUNDED_H
#define LS_MATH_ROUNDED_H

#include <math.h>

#include "kernels/core/half.h"
#include "kernels/core/plant.h"

#if defined(__clang__) && !defined(__CUDACC__)
#pragma STDC FP_CONTRACT OFF
#elif !defined(__CUDACC__) && !defined(__STRICT_ANSI__)
#error "compile with -std=c11: GNU modes contract a * b + c into one rounding"
#endif

LS_HALF_FN float ls_rounded_add(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

LS_HALF_FN float ls_rounded_sub(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fsub_rn(a, b);
#else
    return a - b;
#endif
}

LS_HALF_FN float ls_rounded_mul(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

LS_HALF_FN float ls_rounded_div(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

LS_HALF_FN float ls_rounded_sqrt(float a)
{
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(a);
#else
    return sqrtf(a);
#endif
}

/* 1 for inf and NaN, else 0; works on the bits, so that no compiler option can optimise it away. */
LS_HALF_FN uint32_t ls_rounded_non_finite(float value)
{
    uint32_t bits = ls_half_bits_of_f32(value);
    return (bits & LS_PLANT(nan_not_seen, 0x7f800000u, 0x7fffffffu)) == 0x7f800000u ? 1u : 0u;
}

#endif
