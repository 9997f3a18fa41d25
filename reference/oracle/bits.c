#include "bits.h"

#include <math.h>
#include <string.h>

#include "kernels/core/status.h"

enum { DOUBLE_MANTISSA = 52, DOUBLE_BIAS = 1023 };

typedef struct format {
    int mantissa;     /* stored bits of the significand */
    int exponent_min; /* of the smallest normal value */
    double largest;   /* finite */
    double quantum;   /* of the subnormals: 2^(exponent_min - mantissa) */
} format;

static const format formats[] = {
    [LS_BITS_F32] = {23, -126, 0x1.fffffep127, 0x1p-149},
    [LS_BITS_F16] = {10, -14, 65504.0, 0x1p-24},
    [LS_BITS_BF16] = {7, -126, 0x1.fep127, 0x1p-133},
};

/* significand / 2^drop to the nearest integer, ties to even; drop 1 to 63. */
static uint64_t shift_to_nearest(uint64_t significand, int drop)
{
    uint64_t quotient = significand >> drop;
    uint64_t rest = significand & ((UINT64_C(1) << drop) - 1);
    uint64_t tie = UINT64_C(1) << (drop - 1);
    if (rest > tie || (rest == tie && (quotient & 1) != 0)) {
        quotient++;
    }
    return quotient;
}

double ls_bits_round(ls_bits_type type, double value)
{
    if (type == LS_BITS_F64) {
        return value;
    }
    const format *to = &formats[type];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t magnitude = bits & ~(UINT64_C(1) << 63);
    int exponent = (int)(magnitude >> DOUBLE_MANTISSA) - DOUBLE_BIAS;
    if (exponent == DOUBLE_BIAS + 1) {
        return value; /* inf, NaN */
    }
    int drop = DOUBLE_MANTISSA - to->mantissa;
    double rounded;
    if (exponent >= to->exponent_min) {
        /* a carry out of the significand increments the exponent, which is then correct */
        uint64_t kept = shift_to_nearest(magnitude, drop) << drop;
        memcpy(&rounded, &kept, sizeof rounded);
        if (rounded > to->largest) {
            rounded = INFINITY;
        }
    } else {
        drop += to->exponent_min - exponent;
        uint64_t significand =
            (magnitude & ((UINT64_C(1) << DOUBLE_MANTISSA) - 1)) | (UINT64_C(1) << DOUBLE_MANTISSA);
        /* below a quarter of the quantum, including doubles' own subnormals and zero */
        rounded = drop > 60 ? 0.0 : (double)shift_to_nearest(significand, drop) * to->quantum;
    }
    return (bits >> 63) != 0 ? -rounded : rounded;
}

double ls_bits_unit(ls_bits_type type)
{
    return type == LS_BITS_F64 ? 0x1p-53 : ldexp(1.0, -formats[type].mantissa - 1);
}

double ls_bits_tiny(ls_bits_type type)
{
    return type == LS_BITS_F64 ? 0.0 : formats[type].quantum;
}

static double value_of(uint16_t bits, int mantissa, int bias)
{
    int fraction = bits & ((1 << mantissa) - 1);
    int exponent = (bits & 0x7fff) >> mantissa;
    double value;
    if (exponent == (0x7fff >> mantissa)) {
        value = fraction == 0 ? INFINITY : NAN;
    } else if (exponent == 0) {
        value = ldexp(fraction, 1 - bias - mantissa);
    } else {
        value = ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    }
    return (bits & 0x8000) != 0 ? -value : value;
}

double ls_bits_of_fp16(uint16_t bits)
{
    return value_of(bits, 10, 15);
}

double ls_bits_of_bf16(uint16_t bits)
{
    return value_of(bits, 7, 127);
}
