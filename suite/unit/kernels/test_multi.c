/* The multi-tensor operations of the CPU backend: the scaler, every position of a non-finite value,
 * guards around every buffer, and the same bits from every vector variant and number of threads. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/unit/run_suite.h"
#include "multi_pool.h"

/* ---- scaler ---------------------------------------------------------------------------------- */

static const ls_scaler_config APEX = {.dynamic = true,
                                      .growth_factor = 2.0f,
                                      .backoff_factor = 0.5f,
                                      .growth_interval = 2000,
                                      .min_scale = 0.0f,
                                      .max_scale = 16777216.0f};

static void update(const ls_scaler_config *config, ls_step_state *state, bool overflow)
{
    state->overflow = overflow ? 1 : 0;
    ls_multi_scaler_update(NULL, NULL, config, state);
}

TEST(scaler_sequence)
{
    ls_step_state s = fresh_state(65536.0f, 0.1f);
    update(&APEX, &s, true);
    ck_assert_float_eq(s.loss_scale, 32768.0f);
    ck_assert_float_eq(s.inv_loss_scale, 1.0f / 32768.0f);
    ck_assert_int_eq(s.growth_count, 0);
    ck_assert_int_eq(s.overflow_streak, 1);
    update(&APEX, &s, true);
    ck_assert_int_eq(s.overflow_streak, 2);
    for (int i = 1; i < 2000; i++) {
        update(&APEX, &s, false);
        ck_assert_float_eq(s.loss_scale, 16384.0f);
        ck_assert_int_eq(s.growth_count, i);
    }
    ck_assert_int_eq(s.overflow_streak, 0);
    update(&APEX, &s, false);
    ck_assert_float_eq(s.loss_scale, 32768.0f);
    ck_assert_int_eq(s.growth_count, 0);
    s = fresh_state(65536.0f, 0.1f);
    for (int i = 0; i < 24000; i++) {
        update(&APEX, &s, false);
    }
    ck_assert_float_eq(s.loss_scale, 16777216.0f);
    ck_assert_float_eq(s.inv_loss_scale, 1.0f / 16777216.0f);
    /* an overflow one short of the interval restarts the count */
    s = fresh_state(65536.0f, 0.1f);
    s.growth_count = 1999;
    update(&APEX, &s, true);
    ck_assert_int_eq(s.growth_count, 0);
    update(&APEX, &s, false);
    ck_assert_float_eq(s.loss_scale, 32768.0f);
    /* a restored count above the interval grows at once (>=) */
    s.growth_count = 2500;
    update(&APEX, &s, false);
    ck_assert_float_eq(s.loss_scale, 65536.0f);
    /* torch's reference sequence: growth 2, backoff 1/4, interval 2, S = 4 */
    ls_scaler_config torch = {true, 2.0f, 0.25f, 2, 0.0f, INFINITY};
    s = fresh_state(4.0f, 0.1f);
    update(&torch, &s, false);
    ck_assert(s.loss_scale == 4.0f && s.growth_count == 1);
    update(&torch, &s, false);
    ck_assert(s.loss_scale == 8.0f && s.growth_count == 0);
    update(&torch, &s, true);
    ck_assert(s.loss_scale == 2.0f && s.growth_count == 0);
}

TEST(scaler_ends)
{
    /* growth to inf is refused, the count restarts */
    ls_scaler_config torch = {true, 2.0f, 0.5f, 1, 0.0f, INFINITY};
    ls_step_state s = fresh_state(0x1p127f, 0.1f);
    update(&torch, &s, false);
    ck_assert_float_eq(s.loss_scale, 0x1p127f);
    ck_assert_int_eq(s.growth_count, 0);
    /* the floor without a minimum is 2^-24: reached it may be, passed not */
    s = fresh_state(0x1p-23f, 0.1f);
    update(&APEX, &s, true);
    ck_assert_float_eq(s.loss_scale, 0x1p-24f);
    ck_assert_int_eq(s.floor_reached, 0);
    update(&APEX, &s, true);
    ck_assert_int_eq(s.floor_reached, 1);
    ls_scaler_config least = APEX;
    least.min_scale = 128.0f;
    s = fresh_state(200.0f, 0.1f);
    update(&least, &s, true);
    ck_assert_float_eq(s.loss_scale, 128.0f);
    ck_assert_float_eq(s.inv_loss_scale, 1.0f / 128.0f);
    ck_assert_int_eq(s.floor_reached, 1);
    update(&least, &s, false);
    ck_assert_int_eq(s.floor_reached, 0);
    s = fresh_state(256.0f, 0.1f);
    update(&least, &s, true);
    ck_assert_float_eq(s.loss_scale, 128.0f);
    ck_assert_int_eq(s.floor_reached, 0);
    /* the reciprocal is rounded from double */
    s = fresh_state(3.0f, 0.1f);
    ls_scaler_config fixed = {.dynamic = false};
    for (int i = 0; i < 2500; i++) {
        update(&fixed, &s, i % 2 == 0);
        ck_assert_float_eq(s.loss_scale, 3.0f);
    }
    ck_assert_float_eq(s.inv_loss_scale, (float)(1.0 / 3.0));
    ck_assert_int_eq(s.growth_count, 2500);
    ck_assert_int_eq(s.overflow_streak, 0);
}

/* ---- unscale --------------------------------------------------------------------------------- */

/* A non-finite element at the position given, nothing else wrong: found, at the right tensor, and
 * the values are from * inv all the same. */
static void check_bad_at(const ls_multi_variant *variant, int threads, pool *from, pool *to,
                         int tensor, int64_t at, float bad)
{
    float kept = get(from->tensor[tensor], at);
    set(from->tensor[tensor], at, bad);
    ls_step_state state = fresh_state(1024.0f, 0.1f);
    state.overflow = 0;
    ls_multi_unscale_check(at_work(variant, threads), NULL, pool_list(to), pool_list(from), &state);
    ck_assert_msg(state.overflow == 1, "%s: %g at %lld of tensor %d not seen", variant->name,
                  (double)bad, (long long)at, tensor);
    ck_assert_int_eq(state.first_bad_grad, tensor);
    if (isinf(bad)) {
        ck_assert_float_eq(get(to->tensor[tensor], at), bad);
    } else {
        ck_assert_float_nan(get(to->tensor[tensor], at));
    }
    ls_tensor_list none = {0, NULL}; /* the same when it only looks */
    state.overflow = 0;
    ls_multi_unscale_check(at_work(variant, threads), NULL, none, pool_list(from), &state);
    ck_assert_int_eq(state.overflow, 1);
    ck_assert_int_eq(state.first_bad_grad, tensor);
    set(from->tensor[tensor], at, kept);
    ls_multi_unscale_check(at_work(variant, threads), NULL, none, pool_list(from), &state);
    ck_assert_int_eq(state.overflow, 0);
    ck_assert_int_eq(state.first_bad_grad, -1);
}

LOOP_TEST(non_finite_everywhere, 3)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    ls_dtype type = types[_i];
    pool from = pool_make(type, 600), to = pool_make(LS_F32, 600);
    pool_fill(&from, 1, 1.0f);
    for (int v = 0; v < 3; v++) {
        for (int t = 0; t < TENSORS; t++) {
            int64_t count = from.tensor[t].count;
            for (int64_t i = 0; i<count; i += count> 100 ? 37 : 1) {
                check_bad_at(variant_at(v), 1, &from, &to, t, i, i % 2 == 0 ? INFINITY : NAN);
                check_bad_at(variant_at(v), 1, &from, &to, t, count - 1 - i, -INFINITY);
            }
        }
    }
    pool_check_guards(&from);
    pool_check_guards(&to);
    pool_free(&from);
    pool_free(&to);
    from = pool_make(type, LARGE);
    to = pool_make(LS_F32, LARGE);
    pool_fill(&from, 1, 1.0f);
    check_bad_at(variant_at(2), 2, &from, &to, 8, LARGE - 1, NAN);
    check_bad_at(variant_at(2), 2, &from, &to, 8, 0, INFINITY);
    check_bad_at(variant_at(2), 2, &from, &to, 12, 512, NAN);
    /* two bad tensors: the lower one is named, whichever thread meets it */
    set(from.tensor[12], 3, INFINITY);
    set(from.tensor[6], 14, NAN);
    for (int threads = 1; threads <= 2; threads++) {
        ls_step_state state = fresh_state(1.0f, 0.1f);
        ls_multi_unscale_check(at_work(variant_at(2), threads), NULL, pool_list(&to),
                               pool_list(&from), &state);
        ck_assert_int_eq(state.first_bad_grad, 6);
    }
    pool_check_guards(&to);
    pool_free(&from);
    pool_free(&to);
}

TEST(unscale_values)
{
    pool from = pool_make(LS_F16, 600), to = pool_make(LS_F32, 600);
    pool_fill(&from, 3, 60000.0f);
    ls_step_state state = fresh_state(3.0f, 0.1f);
    ls_multi_unscale_check(at_work(variant_at(2), 1), NULL, pool_list(&to), pool_list(&from),
                           &state);
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < from.tensor[t].count; i++) {
            volatile float product = get(from.tensor[t], i) * state.inv_loss_scale;
            ck_assert_float_eq(get(to.tensor[t], i), product);
        }
    }
    ck_assert_int_eq(state.overflow, 0);
    /* a half result that overflows is flagged where the incoming value was finite */
    uint16_t half = ls_half_f32_to_fp16(60000.0f);
    ls_tensor one = {&half, LS_F16, 1};
    state.inv_loss_scale = 2.0f;
    ls_multi_unscale_check(at_work(variant_at(2), 1), NULL, (ls_tensor_list){1, &one},
                           (ls_tensor_list){1, &one}, &state);
    ck_assert_int_eq(state.overflow, 1);
    ck_assert_int_eq(half, 0x7c00);
    pool_free(&from);
    pool_free(&to);
}

/* A list larger than a cache is written past it, to aligned and unaligned tensors, with a rest. */
LOOP_TEST(unscale_of_a_large_list, 3)
{
    enum { LONG = (8 << 20) + 21, SHORT = 37 };
    const int64_t count[] = {SHORT, LONG};
    uint16_t *halves = calloc(SHORT + LONG, sizeof *halves);
    float *block = aligned_alloc(64, (SHORT + LONG + 64) * sizeof *block);
    ck_assert(halves != NULL && block != NULL);
    for (int64_t i = 0; i < SHORT + LONG; i++) {
        halves[i] = ls_half_f32_to_bf16(ls_rng_uniform(5, 1, (uint64_t)i) - 0.5f);
    }
    for (int misaligned = 0; misaligned < 2; misaligned++) {
        ls_tensor from[2], to[2];
        for (int t = 0; t < 2; t++) {
            from[t] = (ls_tensor){halves + t * SHORT, LS_BF16, count[t]};
            to[t] =
                (ls_tensor){block + (t == 0 ? LONG + misaligned : misaligned), LS_F32, count[t]};
        }
        ls_step_state state = fresh_state(3.0f, 0.1f);
        ls_multi_unscale_check(at_work(variant_at(_i), 2), NULL, (ls_tensor_list){2, to},
                               (ls_tensor_list){2, from}, &state);
        for (int t = 0; t < 2; t++) {
            const float *seen = to[t].data;
            const uint16_t *half = from[t].data;
            int64_t i = 0;
            while (i < count[t] &&
                   seen[i] == ls_rounded_mul(ls_half_bf16_to_f32(half[i]), state.inv_loss_scale)) {
                i++;
            }
            ck_assert_msg(i == count[t], "misaligned %d, tensor %d: wrong from element %lld on",
                          misaligned, t, (long long)i);
        }
        ck_assert_int_eq(state.overflow, 0);
        uint16_t kept = halves[SHORT + LONG - 1];
        halves[SHORT + LONG - 1] = 0x7f80; /* the last element of the rest is infinite */
        ls_multi_unscale_check(at_work(variant_at(_i), 2), NULL, (ls_tensor_list){2, to},
                               (ls_tensor_list){2, from}, &state);
        ck_assert_int_eq(state.overflow, 1);
        ck_assert_int_eq(state.first_bad_grad, 1);
        halves[SHORT + LONG - 1] = kept;
    }
    free(halves);
    free(block);
}

/* ---- skip ------------------------------------------------------------------------------------ */

TEST(skip_changes_no_bit)
{
    pool value = pool_make(LS_F32, 600), grad = pool_make(LS_F32, 600),
         moment = pool_make(LS_F32, 600);
    pool copy = pool_make(LS_F16, 600);
    pool_fill(&value, 1, 1.0f);
    pool_fill(&grad, 100, 1.0f);
    pool_fill(&moment, 200, 1.0f);
    pool_fill(&copy, 300, 1.0f);
    set(grad.tensor[4], 2, NAN);
    ls_optimizer_args args = {
        pool_list(&value), pool_list(&grad), pool_list(&moment), {0, NULL}, pool_list(&copy)};
    ls_optimizer_config config = {
        .kind = LS_OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 1e-4f, .nesterov = true};
    pool *each[3] = {&value, &moment, &copy};
    unsigned char *before[3];
    for (int i = 0; i < 3; i++) {
        before[i] = malloc(each[i]->bytes);
        memcpy(before[i], each[i]->block, each[i]->bytes);
    }
    ls_step_state state = fresh_state(1.0f, 0.1f);
    state.overflow = 1;
    state.step_count = 5;
    ls_multi_optimizer_step(at_work(variant_at(2), 1), NULL, &config, &args, true, &state);
    ck_assert_int_eq(state.skipped, 1);
    ck_assert_int_eq(state.step_count, 5);
    ck_assert_int_eq(state.first_bad_state, -1);
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_eq(before[i], each[i]->block, each[i]->bytes);
    }
    /* a static scale is never skipped: the NaN arrives, and is named */
    ls_multi_optimizer_step(at_work(variant_at(2), 1), NULL, &config, &args, false, &state);
    ck_assert_int_eq(state.skipped, 0);
    ck_assert_int_eq(state.step_count, 6);
    ck_assert_int_eq(state.first_bad_state, 4);
    ck_assert_float_nan(get(value.tensor[4], 2));
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_ne(before[i], each[i]->block, each[i]->bytes);
        pool_check_guards(each[i]);
        free(before[i]);
        pool_free(each[i]);
    }
    pool_free(&grad);
}

/* ---- the same bits from all variants and thread counts --------------------------------------- */

typedef struct workout {
    pool value, copy, m1, m2, grad, half, sum;
    ls_step_state state;
} workout;

static void exercise(workout *w, const ls_multi_variant *variant, int threads, ls_dtype half,
                     ls_optimizer_kind kind)
{
    w->value = pool_make(LS_F32, LARGE);
    w->copy = pool_make(half, LARGE);
    w->m1 = pool_make(LS_F32, LARGE);
    w->m2 = pool_make(LS_F32, LARGE);
    w->grad = pool_make(LS_F32, LARGE);
    w->half = pool_make(half, LARGE);
    w->sum = pool_make(LS_F32, LARGE);
    pool_fill(&w->value, 1, 2.0f);
    pool_fill(&w->half, 40, 60000.0f);
    pool_fill(&w->m1, 80, 1.0f);
    for (int t = 0; t < TENSORS; t++) {
        memset(w->m2.tensor[t].data, 0, (size_t)w->m2.tensor[t].count * 4);
        ls_multi_accumulate(at_work(variant, threads), NULL, w->sum.tensor[t], w->half.tensor[t],
                            true);
        ls_multi_accumulate(at_work(variant, threads), NULL, w->sum.tensor[t], w->value.tensor[t],
                            false);
        ls_multi_convert(at_work(variant, threads), NULL, w->half.tensor[t], w->sum.tensor[t],
                         0.7f);
        ls_multi_convert(at_work(variant, threads), NULL, w->half.tensor[t], w->half.tensor[t],
                         1.1f);
    }
    w->state = fresh_state(3.0f, 0.1f);
    ls_optimizer_config config = {.kind = kind,
                                  .momentum = 0.9f,
                                  .weight_decay = 1e-2f,
                                  .nesterov = true,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .epsilon = 1e-8,
                                  .max_grad_norm = 1.0,
                                  .trust = 0.02};
    ls_optimizer_args args = {pool_list(&w->value), pool_list(&w->grad), pool_list(&w->m1),
                              pool_list(&w->m2), pool_list(&w->copy)};
    for (int i = 0; i < 2; i++) {
        ls_multi_unscale_check(at_work(variant, threads), NULL, pool_list(&w->grad),
                               pool_list(&w->half), &w->state);
        ls_multi_optimizer_step(at_work(variant, threads), NULL, &config, &args, false, &w->state);
    }
}

static void compare_and_free(workout *a, workout *b)
{
    pool *left[] = {&a->value, &a->copy, &a->m1, &a->m2, &a->grad, &a->half, &a->sum};
    pool *right[] = {&b->value, &b->copy, &b->m1, &b->m2, &b->grad, &b->half, &b->sum};
    for (int i = 0; i < 7; i++) {
        pool_check_guards(right[i]);
        ck_assert_msg(memcmp(left[i]->block, right[i]->block, left[i]->bytes) == 0,
                      "list %d differs between variants", i);
        pool_free(right[i]);
    }
    ck_assert_mem_eq(&a->state, &b->state, sizeof a->state);
}

LOOP_TEST(same_bits_everywhere, 2 * LS_OPTIMIZER_KINDS)
{
    ls_optimizer_kind kind = (ls_optimizer_kind)(_i / 2);
    ls_dtype half = _i % 2 == 0 ? LS_F16 : LS_BF16;
    workout first, other;
    exercise(&first, &ls_multi_plain, 1, half, kind);
    for (int v = 0; v < 3; v++) {
        for (int threads = v == 0 ? 2 : 1; threads <= 2; threads++) {
            exercise(&other, variant_at(v), threads, half, kind);
            compare_and_free(&first, &other);
        }
    }
    pool *left[] = {&first.value, &first.copy, &first.m1, &first.m2,
                    &first.grad,  &first.half, &first.sum};
    for (int i = 0; i < 7; i++) {
        pool_free(left[i]);
    }
}

/* All 65536 halves into f32 and back, through each variant: the scalar conversions are the judge.
 */
LOOP_TEST(every_half, 2)
{
    static uint16_t from[65536], back[65536];
    static float wide[65536];
    static const ls_dtype types[] = {LS_F16, LS_BF16};
    ls_dtype type = types[_i];
    for (int v = 0; v < 3; v++) {
        for (int i = 0; i < 65536; i++) {
            from[i] = (uint16_t)i;
        }
        ls_tensor a = {from, type, 65536}, b = {wide, LS_F32, 65536}, c = {back, type, 65536};
        ls_multi_convert(at_work(variant_at(v), 1), NULL, b, a, 1.0f);
        ls_multi_convert(at_work(variant_at(v), 1), NULL, c, b, 1.0f);
        for (int i = 0; i < 65536; i++) {
            float want = get(a, i);
            if (isnan(want)) {
                ck_assert(isnan(wide[i]) && isnan(get(c, i)));
            } else {
                ck_assert_uint_eq(ls_half_bits_of_f32(wide[i]), ls_half_bits_of_f32(want));
                ck_assert_uint_eq(back[i], from[i]);
            }
        }
        /* values between two halves: ties, just below, just above */
        for (int i = 0; i + 1 < 0x7c00; i++) {
            float tie = 0.5f * (get(a, i) + get(a, i + 1));
            float near[3] = {nextafterf(tie, 0.0f), tie, nextafterf(tie, INFINITY)};
            wide[i] = near[i % 3];
        }
        ls_multi_convert(at_work(variant_at(v), 1), NULL, c, b, 1.0f);
        for (int i = 0; i + 1 < 0x7c00; i++) {
            uint16_t want =
                type == LS_F16 ? ls_half_f32_to_fp16(wide[i]) : ls_half_f32_to_bf16(wide[i]);
            ck_assert_uint_eq(back[i], want);
        }
    }
}

TEST_MAIN("multi", .timeout_s = 60)
