#include "pattern.h"

#include <math.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/status.h"

static uint64_t mix(int rank, int64_t index)
{
    uint64_t h = UINT64_C(2654435761) * (uint64_t)index + UINT64_C(40503) * (uint64_t)rank + 12345;
    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return h ^ h >> 32;
}

ls_pattern_members ls_pattern_all(int world)
{
    ls_pattern_members all = {.count = world};
    LS_ASSERT(world <= LS_PATTERN_WORLD_MAX);
    for (int rank = 0; rank < world; rank++) {
        all.rank[rank] = rank;
    }
    return all;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* A number that the type holds, or, of integers, its low bits. */
static void put_number(ls_dtype dtype, int64_t integer, double f64, char *to)
{
    float f32 = (float)f64;
    int32_t i32 = (int32_t)integer;
    uint8_t u8 = (uint8_t)integer;
    uint16_t fp16 = ls_half_f32_to_fp16(f32), bf16 = ls_half_f32_to_bf16(f32);
    const void *from[] = {[LS_F32] = &f32,     [LS_F16] = &fp16, [LS_BF16] = &bf16, [LS_F64] = &f64,
                          [LS_I64] = &integer, [LS_I32] = &i32,  [LS_U8] = &u8};
    memcpy(to, from[dtype], ls_dtype_bytes(dtype));
}

static int64_t exact(ls_dtype dtype, int rank, int64_t index)
{
    static const uint64_t limit[] = {
        [LS_F32] = 1 << 19, [LS_F16] = 127,     [LS_BF16] = 15, [LS_F64] = 1 << 26,
        [LS_I64] = 1 << 26, [LS_I32] = 1 << 26, [LS_U8] = 0};
    uint64_t h = mix(rank, index);
    if (dtype == LS_U8) {
        return (int64_t)(h % 256);
    }
    return (int64_t)(h % (2 * limit[dtype] + 1)) - (int64_t)limit[dtype];
}

/* The magnitude of a float's factor is odd * 2^exponent. */
typedef struct factor {
    int64_t odd; /* with the sign */
    int exponent;
} factor;

static factor factor_of(ls_dtype dtype, int rank, int64_t index)
{
    enum { RANKS_WITH_THREE = 5, SIGN = 20 }; /* 3^5 has the 8 bits of bf16 */
    uint64_t g = mix(0, index) >> 32, h = mix(rank, index) >> 32;
    bool negative = (h >> SIGN & 1) != 0, integer = dtype >= LS_I64;
    factor result = {.odd = 1, .exponent = (g >> (rank / 2) & 1) == (rank & 1) ? -1 : 1};
    if (integer) {
        result = (factor){.odd = 3 + 2 * (int64_t)(h % 120)};
        negative = negative && dtype != LS_U8;
    } else if (rank < RANKS_WITH_THREE && (g >> (8 + rank) & 1) != 0) {
        result.odd = 3;
    }
    result.odd = negative ? -result.odd : result.odd;
    return result;
}

/* The product of exact factors: for integers modulo 2^64, and then the type's. */
static void put_product(ls_dtype dtype, factor product, char *to)
{
    put_number(dtype, product.odd, ldexp((double)product.odd, product.exponent), to);
}

static float narrowed(ls_dtype dtype, float value)
{
    switch (dtype) {
    case LS_F16:
        return ls_half_fp16_to_f32(ls_half_f32_to_fp16(value));
    case LS_BF16:
        return ls_half_bf16_to_f32(ls_half_f32_to_bf16(value));
    default:
        return value;
    }
}

/* Values that a sum must preserve; the first eight of every 64 elements. */
static float special(ls_dtype dtype, int rank, int which)
{
    float largest = dtype == LS_F16 ? 65504.0f : dtype == LS_BF16 ? 0x1.fep127f : 0x1.fffffep127f;
    float smallest = dtype == LS_F16 ? 0x1p-24f : dtype == LS_BF16 ? 0x1p-133f : 0x1p-149f;
    switch (which) {
    case 0:
        return rank == 0 ? INFINITY : 1.0f;
    case 1:
        return rank == 0 ? INFINITY : rank == 1 ? -INFINITY : 0.0f;
    case 2:
        return rank == 0 ? NAN : 1.0f;
    case 3:
        return largest; /* overflows */
    case 4:
        return -0.0f;
    case 5:
        return smallest;
    case 6:
        return rank == 0 ? 3.0f : rank == 1 ? -3.0f : 0.0f;
    default:
        return rank == 0 ? largest : rank == 1 ? -largest : smallest;
    }
}

static float rough(ls_dtype dtype, int rank, int64_t index)
{
    if (index % 64 < 8) {
        return special(dtype, rank, (int)(index % 64));
    }
    uint64_t h = mix(rank, index);
    float fraction = 1.0f + (float)(h & 0xffffff) * 0x1p-24f;
    float value = ldexpf(fraction, (int)(h >> 24 & 7) - 2);
    return narrowed(dtype, (h >> 27 & 3) == 0 ? -value : value);
}

static float get_float(ls_dtype dtype, const char *from)
{
    float value;
    uint16_t half;
    if (dtype == LS_F32) {
        memcpy(&value, from, sizeof value);
        return value;
    }
    memcpy(&half, from, sizeof half);
    return dtype == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half);
}

bool ls_pattern_has(ls_pattern_kind kind, ls_dtype dtype)
{
    return kind != LS_PATTERN_ROUGH || dtype == LS_F32 || dtype == LS_F16 || dtype == LS_BF16;
}

static void put(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t index, char *to)
{
    if (kind == LS_PATTERN_EXACT) {
        int64_t value = exact(dtype, rank, index);
        put_number(dtype, value, (double)value, to);
    } else if (kind == LS_PATTERN_FACTORS) {
        put_product(dtype, factor_of(dtype, rank, index), to);
    } else {
        put_number(dtype, 0, (double)rough(dtype, rank, index), to);
    }
}

/* ---- whole buffers --------------------------------------------------------------------------- */

void ls_pattern_fill(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t first, int64_t count,
                     void *data)
{
    size_t bytes = ls_dtype_bytes(dtype);
    LS_ASSERT(ls_pattern_has(kind, dtype));
    for (int64_t i = 0; i < count; i++) {
        put(kind, dtype, rank, first + i, (char *)data + (size_t)i * bytes);
    }
}

int64_t ls_pattern_count_wrong(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t first,
                               int64_t count, const void *data)
{
    size_t bytes = ls_dtype_bytes(dtype);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        char wanted[LS_PATTERN_BYTES_MAX];
        put(kind, dtype, rank, first + i, wanted);
        wrong += memcmp((const char *)data + (size_t)i * bytes, wanted, bytes) != 0;
    }
    return wrong;
}

static bool same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || ls_half_bits_of_f32(a) == ls_half_bits_of_f32(b);
}

/* What two values give, before it is rounded to the type; `to` is a partial result. */
static float combined(ls_comm_redop redop, float to, float value)
{
    switch (redop) {
    case LS_COMM_SUM:
        return to + value;
    case LS_COMM_PROD:
        return to * value;
    case LS_COMM_MAX:
        return isnan(to) || to > value ? to : value;
    case LS_COMM_MIN:
        return isnan(to) || to < value ? to : value;
    }
    return NAN;
}

/* Whether `got` is what the members' elements give in rank order, starting at any of them. */
static bool is_rounded_result(ls_dtype dtype, ls_comm_redop redop, int count, const float *term,
                              float got)
{
    for (int start = 0; start < count; start++) {
        float result = term[start];
        for (int k = 1; k < count; k++) {
            result = narrowed(dtype, combined(redop, result, term[(start + k) % count]));
        }
        if (same_float(result, got)) {
            return true;
        }
    }
    return false;
}

/* Leaves out the NaNs; false if there are none, or nothing else. */
static bool leave_numbers(int *count, float *term)
{
    int numbers = 0;
    for (int k = 0; k < *count; k++) {
        if (!isnan(term[k])) {
            term[numbers++] = term[k];
        }
    }
    bool some = numbers > 0 && numbers < *count;
    *count = some ? numbers : *count;
    return some;
}

static bool wrong_rough_result(ls_dtype dtype, ls_comm_redop redop,
                               const ls_pattern_members *members, bool nan_lost, int64_t index,
                               const char *data, int64_t *telling)
{
    float term[LS_PATTERN_WORLD_MAX], got = get_float(dtype, data);
    double whole = 0;
    int count = members->count;
    bool rounds = redop == LS_COMM_SUM || redop == LS_COMM_PROD;
    for (int k = 0; k < count; k++) {
        term[k] = rough(dtype, members->rank[k], index);
        whole = k == 0 ? term[0] : redop == LS_COMM_SUM ? whole + term[k] : whole * term[k];
    }
    bool wrong = !is_rounded_result(dtype, redop, count, term, got);
    if (rounds) {
        *telling += !is_rounded_result(dtype, redop, count, term, narrowed(dtype, (float)whole));
    } else if (leave_numbers(&count, term)) {
        *telling += 1;
        wrong = wrong && !(nan_lost && is_rounded_result(dtype, redop, count, term, got));
    }
    return wrong;
}

static void put_result(ls_pattern_kind kind, ls_dtype dtype, ls_comm_redop redop,
                       const ls_pattern_members *members, int64_t index, char *to)
{
    factor product = {.odd = 1};
    int64_t result = 0;
    for (int k = 0; k < members->count; k++) {
        int rank = members->rank[k];
        if (kind == LS_PATTERN_FACTORS) {
            factor next = factor_of(dtype, rank, index);
            product.odd = (int64_t)((uint64_t)product.odd * (uint64_t)next.odd);
            product.exponent += next.exponent;
            continue;
        }
        int64_t value = exact(dtype, rank, index);
        bool first = k == 0;
        result = first                                        ? value
                 : redop == LS_COMM_SUM                       ? result + value
                 : (redop == LS_COMM_MAX) == (value > result) ? value
                                                              : result;
    }
    if (kind == LS_PATTERN_FACTORS) {
        put_product(dtype, product, to);
    } else {
        put_number(dtype, result, (double)result, to);
    }
}

int64_t ls_pattern_count_wrong_results(ls_pattern_kind kind, ls_dtype dtype, ls_comm_redop redop,
                                       const ls_pattern_members *members, bool nan_lost,
                                       int64_t first, int64_t count, const void *data,
                                       int64_t *telling)
{
    size_t bytes = ls_dtype_bytes(dtype);
    int64_t wrong = 0;
    LS_ASSERT(members->count <= LS_PATTERN_WORLD_MAX && ls_pattern_has(kind, dtype));
    LS_ASSERT(kind == LS_PATTERN_ROUGH || (kind == LS_PATTERN_FACTORS) == (redop == LS_COMM_PROD));
    for (int64_t i = 0; i < count; i++) {
        const char *at = (const char *)data + (size_t)i * bytes;
        if (kind == LS_PATTERN_ROUGH) {
            wrong += wrong_rough_result(dtype, redop, members, nan_lost, first + i, at, telling);
            continue;
        }
        char wanted[LS_PATTERN_BYTES_MAX];
        put_result(kind, dtype, redop, members, first + i, wanted);
        wrong += memcmp(at, wanted, bytes) != 0;
    }
    return wrong;
}
