#include "nccl_emulated.h"

#include <math.h>
#include <stdlib.h>
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

static uint64_t combine_integers(ncclRedOp_t redop, uint64_t a, uint64_t b)
{
    int64_t x = (int64_t)a, y = (int64_t)b;
    switch (redop) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return x > y ? a : b;
    case ncclMin:
        return x < y ? a : b;
    default:
        return a + b;
    }
}

static float combine_f32(ncclRedOp_t redop, float a, float b)
{
    return redop == ncclProd  ? a * b
           : redop == ncclMax ? fmaxf(a, b)
           : redop == ncclMin ? fminf(a, b)
                              : a + b;
}

static number combine(ncclRedOp_t redop, ncclDataType_t type, number a, number b)
{
    switch (type) {
    case ncclUint8:
        a.u8 = (uint8_t)combine_integers(redop, a.u8, b.u8);
        return a;
    case ncclInt32:
        a.u32 = (uint32_t)combine_integers(redop, (uint64_t)(int64_t)(int32_t)a.u32,
                                           (uint64_t)(int64_t)(int32_t)b.u32);
        return a;
    case ncclInt64:
        a.u64 = combine_integers(redop, a.u64, b.u64);
        return a;
    case ncclFloat16:
        a.u16 = ls_half_f32_to_fp16(
            combine_f32(redop, ls_half_fp16_to_f32(a.u16), ls_half_fp16_to_f32(b.u16)));
        return a;
    case ncclBfloat16:
        a.u16 = ls_half_f32_to_bf16(
            combine_f32(redop, ls_half_bf16_to_f32(a.u16), ls_half_bf16_to_f32(b.u16)));
        return a;
    case ncclFloat32:
        a.f32 = combine_f32(redop, a.f32, b.f32);
        return a;
    default:
        a.f64 = redop == ncclProd  ? a.f64 * b.f64
                : redop == ncclMax ? fmax(a.f64, b.f64)
                : redop == ncclMin ? fmin(a.f64, b.f64)
                                   : a.f64 + b.f64;
        return a;
    }
}

/* LS_EMULATED_SUM_WRONG=I: the element whose f32 sums have a bit flipped; -1: none. */
static int64_t wrong_element(ncclDataType_t type)
{
    const char *index = getenv("LS_EMULATED_SUM_WRONG");
    return index != NULL && type == ncclFloat32 ? strtoll(index, NULL, 10) : -1;
}

void sum_ring(ncclRedOp_t redop, ncclDataType_t type, int world, const void *const *term, int first,
              size_t at, size_t count, void *to)
{
    size_t bytes = sum_type_bytes(type);
    int64_t wrong = wrong_element(type);
    for (size_t i = at; i < at + count; i++) {
        number sum;
        memcpy(&sum, (const char *)term[first] + i * bytes, bytes);
        for (int k = 1; k < world; k++) {
            number next;
            memcpy(&next, (const char *)term[(first + k) % world] + i * bytes, bytes);
            sum = combine(redop, type, sum, next);
        }
        sum.u32 ^= (int64_t)i == wrong ? UINT32_C(1) << 21 : 0;
        memcpy((char *)to + i * bytes, &sum, bytes);
    }
}
