/* Elements of tensors in kernels: float, ls_f16 and ls_bf16 as types for templates, read as float
 * and written with one rounding (to nearest even, overflow to inf, subnormals kept): on the device
 * by its own instructions, on the CPU by core/half.h. */
#ifndef LS_CUDA_ELEMENT_H
#define LS_CUDA_ELEMENT_H

#include "launch.h"

#include "kernels/core/half.h"
#include "kernels/core/tensor.h"

#ifdef LS_CUDA_EMULATED
#define LS_F16_FLOAT(bits) ls_half_fp16_to_f32(bits)
#define LS_F16_BITS(value) ls_half_f32_to_fp16(value)
#define LS_BF16_FLOAT(bits) ls_half_bf16_to_f32(bits)
#define LS_BF16_BITS(value) ls_half_f32_to_bf16(value)
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define LS_F16_FLOAT(bits) __half2float(__ushort_as_half(bits))
#define LS_F16_BITS(value) __half_as_ushort(__float2half_rn(value))
#define LS_BF16_FLOAT(bits) __bfloat162float(__ushort_as_bfloat16(bits))
#define LS_BF16_BITS(value) __bfloat16_as_ushort(__float2bfloat16_rn(value))
#endif

typedef struct ls_f16 {
    uint16_t bits;
} ls_f16;

typedef struct ls_bf16 {
    uint16_t bits;
} ls_bf16;

LS_DEVICE float ls_element_float(float value)
{
    return value;
}

LS_DEVICE float ls_element_float(ls_f16 value)
{
    return LS_F16_FLOAT(value.bits);
}

LS_DEVICE float ls_element_float(ls_bf16 value)
{
    return LS_BF16_FLOAT(value.bits);
}

LS_DEVICE void ls_element_set(float *to, float value)
{
    *to = value;
}

LS_DEVICE void ls_element_set(ls_f16 *to, float value)
{
    to->bits = LS_F16_BITS(value);
}

LS_DEVICE void ls_element_set(ls_bf16 *to, float value)
{
    to->bits = LS_BF16_BITS(value);
}

/* The same for an element of a tensor. */
LS_DEVICE float ls_element_read(const ls_tensor &tensor, int64_t i)
{
    if (tensor.dtype == LS_F32) {
        return ((const float *)tensor.data)[i];
    }
    return tensor.dtype == LS_F16 ? ls_element_float(((const ls_f16 *)tensor.data)[i])
                                  : ls_element_float(((const ls_bf16 *)tensor.data)[i]);
}

LS_DEVICE void ls_element_write(const ls_tensor &tensor, int64_t i, float value)
{
    if (tensor.dtype == LS_F32) {
        ((float *)tensor.data)[i] = value;
    } else if (tensor.dtype == LS_F16) {
        ls_element_set((ls_f16 *)tensor.data + i, value);
    } else {
        ls_element_set((ls_bf16 *)tensor.data + i, value);
    }
}

/* `value` after it was stored as a T. */
template <typename T> LS_DEVICE float ls_element_round(float value)
{
    T stored;
    ls_element_set(&stored, value);
    return ls_element_float(stored);
}

/* Elements in 16 bytes: 4 of f32, 8 of half. */
template <typename T> struct ls_element_lanes {
    enum { value = 16 / sizeof(T) };
};

/* ls_element_lanes<T> consecutive elements; the addresses are multiples of 16. */
template <typename T> LS_DEVICE void ls_element_load(float *out, const T *from)
{
    ls_vector raw = ls_vector_load(from);
    T value[ls_element_lanes<T>::value];
    memcpy(value, &raw, sizeof raw);
    for (int i = 0; i < (int)ls_element_lanes<T>::value; i++) {
        out[i] = ls_element_float(value[i]);
    }
}

template <typename T> LS_DEVICE void ls_element_store(T *to, const float *in)
{
    ls_vector raw;
    T value[ls_element_lanes<T>::value];
    for (int i = 0; i < (int)ls_element_lanes<T>::value; i++) {
        ls_element_set(&value[i], in[i]);
    }
    memcpy(&raw, value, sizeof raw);
    ls_vector_store(to, raw);
}

/* LS_BY_ELEMENT(type, T, statements): runs the statements with T as the element type of that dtype,
 * one of f32, f16 and bf16. */
#define LS_BY_ELEMENT(type, T, ...) \
    do {                            \
        switch (type) {             \
        case LS_F32: {              \
            typedef float T;        \
            __VA_ARGS__;            \
        } break;                    \
        case LS_F16: {              \
            typedef ls_f16 T;       \
            __VA_ARGS__;            \
        } break;                    \
        case LS_BF16: {             \
            typedef ls_bf16 T;      \
            __VA_ARGS__;            \
        } break;                    \
        default:                    \
            LS_ASSERT(false);       \
        }                           \
    } while (0)

/* LS_BY_PACKET(type, whole, T, V, statements): the same with V elements to a packet: 16 bytes where
 * `whole`, which may name T, says that rows consist of whole packets, else 1. */
#define LS_BY_PACKET(type, whole, T, V, ...) \
    LS_BY_ELEMENT(                           \
        type, T,                             \
        if (whole) {                         \
            enum { V = 16 / sizeof(T) };     \
            __VA_ARGS__;                     \
        } else {                             \
            enum { V = 1 };                  \
            __VA_ARGS__;                     \
        })

#endif
