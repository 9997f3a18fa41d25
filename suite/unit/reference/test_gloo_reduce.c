/* The Gloo engine's two operands: every type and operator against plain expressions, at any
 * alignment, NaN and signed zeros included; a rank's place in groups of the world. */
#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "reference/comm/exercise.h"
#include "suite/unit/run_suite.h"

enum { COUNT = 1009 };

static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16, LS_F64, LS_I64, LS_I32, LS_U8};
enum { TYPES = sizeof types / sizeof *types };

typedef union number {
    unsigned char bytes[8];
    float f32;
    uint16_t half;
    double f64;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
} number;

/* Any bits; one float in eight is a special value. */
static number any(ls_dtype dtype, uint64_t stream, int i)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1.0, -1.0, 65504.0};
    ls_rng_block words = ls_rng_philox(11, stream, (uint64_t)i);
    number n;
    memcpy(n.bytes, words.word, sizeof n.bytes);
    double value = special[words.word[2] % 8];
    if (dtype < LS_I64 && words.word[3] % 8 == 0) {
        n.f64 = value;
        n.f32 = dtype == LS_F32 ? (float)value : n.f32;
        n.half = dtype == LS_F16    ? ls_half_f32_to_fp16((float)value)
                 : dtype == LS_BF16 ? ls_half_f32_to_bf16((float)value)
                                    : n.half;
    }
    return n;
}

static double double_of(ls_dtype dtype, number n)
{
    return dtype == LS_F32    ? (double)n.f32
           : dtype == LS_F16  ? (double)ls_half_fp16_to_f32(n.half)
           : dtype == LS_BF16 ? (double)ls_half_bf16_to_f32(n.half)
                              : n.f64;
}

/* A product of floats narrower than 64 bits is exact in double, and a sum as if it were. */
static bool float_is_right(ls_comm_redop redop, ls_dtype dtype, number a, number b, number got)
{
    double x = double_of(dtype, a), y = double_of(dtype, b), have = double_of(dtype, got), want;
    if (redop == LS_COMM_PROD || redop == LS_COMM_SUM) {
        want = redop == LS_COMM_PROD ? x * y : x + y;
        want = dtype == LS_F64 ? want : (double)(float)want;
        want = dtype == LS_F16    ? (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)want))
               : dtype == LS_BF16 ? (double)ls_half_bf16_to_f32(ls_half_f32_to_bf16((float)want))
                                  : want;
    } else if (isnan(x) || isnan(y)) {
        want = NAN;
    } else if (x == y) {
        bool negative = redop == LS_COMM_MAX ? signbit(x) && signbit(y) : signbit(x) || signbit(y);
        want = x == 0 ? (negative ? -0.0 : 0.0) : x;
    } else {
        want = (redop == LS_COMM_MAX) == (x > y) ? x : y;
    }
    return isnan(want) ? isnan(have) : have == want && signbit(have) == signbit(want);
}

static bool is_right(ls_comm_redop redop, ls_dtype dtype, number a, number b, number got)
{
    if (dtype < LS_I64) {
        return float_is_right(redop, dtype, a, b, got);
    }
    int64_t x = dtype == LS_I64 ? a.i64 : dtype == LS_I32 ? a.i32 : a.u8;
    int64_t y = dtype == LS_I64 ? b.i64 : dtype == LS_I32 ? b.i32 : b.u8;
    int64_t want = redop == LS_COMM_PROD               ? (int64_t)((uint64_t)x * (uint64_t)y)
                   : redop == LS_COMM_SUM              ? (int64_t)((uint64_t)x + (uint64_t)y)
                   : (redop == LS_COMM_MAX) == (x > y) ? x
                                                       : y;
    return dtype == LS_I64   ? got.i64 == want
           : dtype == LS_I32 ? got.i32 == (int32_t)(uint32_t)(uint64_t)want
                             : got.u8 == (uint8_t)want;
}

LOOP_TEST(two_operands, 4 * TYPES)
{
    ls_comm_redop redop = (ls_comm_redop)(LS_COMM_SUM + _i / TYPES);
    ls_dtype dtype = types[_i % TYPES];
    size_t bytes = ls_dtype_bytes(dtype);
    unsigned char to[COUNT * 8 + 1], from[COUNT * 8 + 1];
    for (int i = 0; i < COUNT; i++) { /* one byte off any alignment */
        memcpy(to + 1 + (size_t)i * bytes, any(dtype, 1, i).bytes, bytes);
        memcpy(from + 1 + (size_t)i * bytes, any(dtype, 2, i).bytes, bytes);
    }
    ls_gloo_reduce(redop, dtype, to + 1, from + 1, COUNT);
    for (int i = 0; i < COUNT; i++) {
        number got = {{0}}, a = any(dtype, 1, i), b = any(dtype, 2, i), given = {{0}};
        memcpy(got.bytes, to + 1 + (size_t)i * bytes, bytes);
        memcpy(given.bytes, from + 1 + (size_t)i * bytes, bytes);
        ck_assert(memcmp(given.bytes, b.bytes, bytes) == 0);
        ck_assert_msg(is_right(redop, dtype, a, b, got), "%s, %s, element %d: %g and %g give %g",
                      ls_comm_redop_name(redop), ls_dtype_label(dtype), i, double_of(dtype, a),
                      double_of(dtype, b), double_of(dtype, got));
    }
}

/* The bits of a maximum and a minimum do not depend on the order, NaN's included. */
TEST(extremes_have_no_order)
{
    for (int k = 0; k < 2 * TYPES; k++) {
        ls_comm_redop redop = k < TYPES ? LS_COMM_MAX : LS_COMM_MIN;
        ls_dtype dtype = types[k % TYPES];
        for (int i = 0; i < COUNT; i++) {
            number a = any(dtype, 1, i), b = any(dtype, 2, i), c = a, d = b;
            ls_gloo_reduce(redop, dtype, a.bytes, b.bytes, 1);
            ls_gloo_reduce(redop, dtype, d.bytes, c.bytes, 1);
            ck_assert(memcmp(a.bytes, d.bytes, ls_dtype_bytes(dtype)) == 0);
        }
    }
}

/* ---- groups of ranks ------------------------------------------------------------------------- */

TEST(texts_of_groups)
{
    ls_rank_groups groups;
    int place = -1;
    ck_assert_int_eq(ls_arguments_read_groups("4,3,1;0", 6, &groups), LS_OK);
    ck_assert_int_eq(groups.count, 2);
    ck_assert_int_eq(groups.group[0].count, 3);
    ck_assert_int_eq(groups.group[1].count, 1);
    static const int groups_of[] = {1, 0, -1, 0, 0, -1}, places[] = {0, 0, -1, 1, 2, -1};
    for (int rank = 0; rank < 6; rank++) {
        place = -1;
        ck_assert_int_eq(ls_arguments_find_group(&groups, rank, &place), groups_of[rank]);
        ck_assert_int_eq(place, places[rank]);
    }
    ck_assert_int_eq(ls_arguments_read_groups("0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15", 16, &groups),
                     LS_OK);
    ck_assert_int_eq(groups.count, 16);
    char wrong[] = "|;|0;|;0|0;;1|0,|,0|0,,1|0,0|0,1;1|6|-1|+1| 1|1 |x|0x1|0.5|0:1|"
                   "99999999999999999999|0;1;2;3;4;5;";
    int count = 0;
    for (char *rest = wrong, *one; (one = strsep(&rest, "|")) != NULL; count++) {
        groups.count = 77;
        ck_assert_msg(ls_arguments_read_groups(one, 6, &groups) == LS_ERR_USAGE, "'%s'", one);
        ck_assert_int_eq(groups.count, 77);
    }
    ck_assert_int_eq(count, 21);
    ck_assert_int_eq(
        ls_arguments_read_groups("0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;0", 16, &groups),
        LS_ERR_USAGE);
}

TEST(sizes_of_groups)
{
    ls_rank_groups groups;
    int place = -1;
    for (int size = 1; size <= 7; size++) {
        bool divides = 6 % size == 0;
        ck_assert_int_eq(ls_arguments_groups_of_size(size, 6, &groups),
                         divides ? LS_OK : LS_ERR_USAGE);
        for (int rank = 0; rank < 6 && divides; rank++) {
            ck_assert_int_eq(ls_arguments_find_group(&groups, rank, &place), rank / size);
            ck_assert_int_eq(place, rank % size);
        }
        ck_assert(!divides || groups.count == 6 / size);
    }
    ck_assert_int_eq(ls_arguments_groups_of_size(0, 6, &groups), LS_ERR_USAGE);
    ck_assert_int_eq(ls_arguments_groups_of_size(-2, 6, &groups), LS_ERR_USAGE);
}

TEST_MAIN("gloo reduce")
