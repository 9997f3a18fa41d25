#include "nccl_emulated.h"

#include <string.h>

#include "kernels/core/half.h"

size_t sum_type_bytes(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    default:
        return 0; /* not used here */
    }
}

typedef union number {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32; /* integers wrap */
    uint64_t u64;
    float f32;
    double f64;
} number;

static number add(ncclDataType_t type, number a, number b)
{
    switch (type) {
    case ncclUint8:
        a.u8 = (uint8_t)(a.u8 + b.u8);
        return a;
    case ncclInt32:
        a.u32 += b.u32;
        return a;
    case ncclInt64:
        a.u64 += b.u64;
        return a;
    case ncclFloat16:
        a.u16 = ls_half_f32_to_fp16(ls_half_fp16_to_f32(a.u16) + ls_half_fp16_to_f32(b.u16));
        return a;
    case ncclBfloat16:
        a.u16 = ls_half_f32_to_bf16(ls_half_bf16_to_f32(a.u16) + ls_half_bf16_to_f32(b.u16));
        return a;
    case ncclFloat32:
        a.f32 += b.f32;
        return a;
    default:
        a.f64 += b.f64;
        return a;
    }
}

void sum_ring(ncclDataType_t type, int world, const void *const *term, int first, size_t at,
              size_t count, void *to)
{
    size_t bytes = sum_type_bytes(type);
    for (size_t i = at; i < at + count; i++) {
        number sum;
        memcpy(&sum, (const char *)term[first] + i * bytes, bytes);
        for (int k = 1; k < world; k++) {
            number next;
            memcpy(&next, (const char *)term[(first + k) % world] + i * bytes, bytes);
            sum = add(type, sum, next);
        }
        memcpy((char *)to + i * bytes, &sum, bytes);
    }
}
