/* IEEE binary16 and bfloat16 against f32, one value at a time. Rounding is to nearest, ties to
 * even; overflow gives inf, subnormals are kept, a NaN stays a (quiet) NaN. Inline because the
 * elementwise bodies in kernels/math/ are built from these on every backend. */
#ifndef LS_CORE_HALF_H
#define LS_CORE_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define LS_HALF_FN static inline __host__ __device__
#else
#define LS_HALF_FN static inline
#endif

LS_HALF_FN uint32_t ls_half_bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

LS_HALF_FN float ls_half_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LS_HALF_FN float ls_half_fp16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) { /* inf, NaN */
        return ls_half_f32_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude >= 0x0400u) { /* normal: rebias the exponent from 15 to 127 */
        return ls_half_f32_of_bits(sign | ((magnitude << 13) + (112u << 23)));
    }
    /* subnormal: magnitude * 2^-24, exact in f32 */
    float value = (float)magnitude * 5.9604644775390625e-8f;
    return ls_half_f32_of_bits(sign | ls_half_bits_of_f32(value));
}

LS_HALF_FN uint16_t ls_half_f32_to_fp16(float value)
{
    uint32_t bits = ls_half_bits_of_f32(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { /* NaN: quiet, top bits of the payload kept */
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and more round to inf */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude >= 0x38800000u) { /* normal: 2^-14 and more */
        uint32_t odd = (magnitude >> 13) & 1u;
        return (uint16_t)(sign | ((magnitude - (112u << 23) + 0x0fffu + odd) >> 13));
    }
    if (magnitude < 0x33000000u) { /* below 2^-25 rounds to zero; 2^-25 itself ties to even, zero */
        return (uint16_t)sign;
    }
    /* subnormal: shift the significand (with its hidden bit) to units of 2^-24 */
    uint32_t exponent = magnitude >> 23;
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - exponent; /* 14 to 24 */
    uint32_t quotient = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1u);
    uint32_t tie = 1u << (shift - 1u);
    if (rest > tie || (rest == tie && (quotient & 1u) != 0)) {
        quotient++;
    }
    return (uint16_t)(sign | quotient);
}

LS_HALF_FN float ls_half_bf16_to_f32(uint16_t half)
{
    return ls_half_f32_of_bits((uint32_t)half << 16);
}

LS_HALF_FN uint16_t ls_half_f32_to_bf16(float value)
{
    uint32_t bits = ls_half_bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x0040u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
