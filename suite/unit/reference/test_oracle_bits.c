/* The oracle's rounding: every value of both half types, their midpoints and the neighbours of
 * those. */
#include <stdint.h>

#include "reference/oracle/bits.h"
#include "suite/unit/run_suite.h"

typedef struct half_type {
    ls_bits_type type;
    double (*value_of)(uint16_t bits);
    int infinity; /* bits of +inf */
} half_type;

static const half_type types[] = {
    {LS_BITS_F16, ls_bits_of_fp16, 0x7c00},
    {LS_BITS_BF16, ls_bits_of_bf16, 0x7f80},
};

static bool same(double a, double b)
{
    return a == b && signbit(a) == signbit(b);
}

LOOP_TEST(every_value_is_its_own, 2)
{
    const half_type *t = &types[_i];
    for (int bits = 0; bits < 65536; bits++) {
        double value = t->value_of((uint16_t)bits);
        double rounded = ls_bits_round(t->type, value);
        ck_assert_msg(isnan(value) ? isnan(rounded) : same(rounded, value), "bits %04x", bits);
    }
}

/* Between two neighbours: the midpoint goes to the even one, any other value to the nearer. The
 * largest finite value's upper neighbour is the power of two that overflows. */
LOOP_TEST(midpoints_go_to_even, 2)
{
    const half_type *t = &types[_i];
    for (int bits = 0; bits < t->infinity; bits++) {
        double low = t->value_of((uint16_t)bits), high = t->value_of((uint16_t)(bits + 1));
        double next = isinf(high) ? 2 * low - t->value_of((uint16_t)(bits - 1)) : high;
        double middle = low + (next - low) / 2; /* exact in double */
        for (int sign = -1; sign <= 1; sign += 2) {
            double even = (bits & 1) == 0 ? low : high;
            ck_assert_msg(same(ls_bits_round(t->type, sign * middle), sign * even), "%04x", bits);
            ck_assert(same(ls_bits_round(t->type, sign * nextafter(middle, 0)), sign * low));
            ck_assert(
                same(ls_bits_round(t->type, sign * nextafter(middle, INFINITY)), sign * high));
        }
    }
}

/* Just above a midpoint of fp16 by less than f32 can hold: through f32 it would become a tie. */
TEST(one_rounding_not_two)
{
    double above = 1 + 0x1p-11 + 0x1p-40;
    ck_assert_double_eq(ls_bits_round(LS_BITS_F16, above), 1 + 0x1p-10);
    ck_assert_double_eq(ls_bits_round(LS_BITS_F16, (double)(float)above), 1.0);
    above = 1 + 0x1p-8 + 0x1p-40;
    ck_assert_double_eq(ls_bits_round(LS_BITS_BF16, above), 1 + 0x1p-7);
}

/* f32 against the processor's own conversion, at random bits of double. */
TEST(single_as_the_processor)
{
    uint64_t state = 1;
    for (int i = 0; i < 1000000; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        /* exponents -160 to 140: subnormals, normal values, overflow */
        double value = ldexp((double)(int64_t)state * 0x1p-63, (int)(state >> 33) % 300 - 160);
        ck_assert(same(ls_bits_round(LS_BITS_F32, value), (double)(float)value));
    }
    ck_assert(isinf(ls_bits_round(LS_BITS_F32, 0x1.ffffffp127)));
    ck_assert(isnan(ls_bits_round(LS_BITS_F32, NAN)));
    ck_assert(same(ls_bits_round(LS_BITS_F32, -0.0), -0.0));
    ck_assert(same(ls_bits_round(LS_BITS_F16, -0x1p-60), -0.0));
    ck_assert(same(ls_bits_round(LS_BITS_F16, 5e-324), 0.0));
    ck_assert(isinf(ls_bits_round(LS_BITS_F16, 65520.0)));
    ck_assert_double_eq(ls_bits_round(LS_BITS_F16, nextafter(65520.0, 0)), 65504.0);
}

TEST_MAIN("oracle_bits")
