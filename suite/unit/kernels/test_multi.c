/* The multi-tensor operations of the CPU backend: the scaler, every position of a non-finite value,
 * guards around every buffer, and the same bits from every vector variant and number of threads; of
 * optimizers the rounding of each operation, masters and their copies. */
#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/multi/multi_variant.h"
#include "kernels/entries.h"
#include "kernels/math/scaler.h"
#include "suite/inside/kernel.h"
#include "suite/unit/run_suite.h"

/* ---- tensors: many sizes and alignments in one poisoned and guarded block -------------------- */

enum { GUARD = 64, LARGE = 1000003 };

static const int64_t SIZES[] = {17, 0, 1, 7, 8, 15, 16, 64, LARGE, 3, 511, 512, 513};
enum { TENSORS = sizeof SIZES / sizeof SIZES[0] };

/* A list of tensors in one poisoned block: GUARD bytes before and after each, data one element off
 * alignment for every second tensor. */
typedef struct pool {
    unsigned char *block, *used; /* used: 1 where a tensor's byte is */
    size_t bytes;
    ls_tensor tensor[TENSORS];
} pool;

static pool pool_make(ls_dtype type, int64_t largest)
{
    pool p = {0};
    size_t each = ls_dtype_bytes(type);
    for (int i = 0; i < TENSORS; i++) {
        p.bytes += 2 * GUARD + (size_t)SIZES[i] * each + 64;
    }
    p.block = aligned_alloc(64, (p.bytes + 63) / 64 * 64);
    p.used = calloc(p.bytes, 1);
    ck_assert(p.block != NULL && p.used != NULL);
    memset(p.block, 0xA5, p.bytes);
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = SIZES[i] < largest ? SIZES[i] : largest;
        at = (at + GUARD + 63) / 64 * 64 + (i % 2 != 0 ? each : 0);
        p.tensor[i] = (ls_tensor){p.block + at, type, count};
        memset(p.used + at, 1, (size_t)count * each);
        at += (size_t)count * each;
    }
    ck_assert_uint_le(at + GUARD, p.bytes);
    return p;
}

/* Nothing outside of the tensors was written. */
static void pool_free(pool *p)
{
    for (size_t i = 0; i < p->bytes; i++) {
        if (p->used[i] == 0 && p->block[i] != 0xA5) {
            ck_abort_msg("a byte outside every tensor was written, offset %zu", i);
        }
    }
    free(p->block);
    free(p->used);
}

static ls_tensor_list pool_list(const pool *p)
{
    return (ls_tensor_list){TENSORS, p->tensor};
}

static void set(ls_tensor tensor, int64_t i, float value)
{
    ls_kernel_subject_put(&tensor, i, (double)value);
}

static float get(ls_tensor tensor, int64_t i)
{
    return (float)ls_kernel_subject_get(&tensor, i);
}

/* Values over many binades, subnormals of every type among them. */
static void pool_fill(pool *p, uint64_t stream, float scale)
{
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < p->tensor[t].count; i++) {
            ls_rng_block block = ls_rng_philox(5, stream + (uint64_t)t, (uint64_t)i);
            float value = (float)(int32_t)block.word[0] * 4.656612873e-10f * scale;
            set(p->tensor[t], i, ldexpf(value, -(int)(block.word[1] % 30)));
        }
    }
}

static const ls_multi_variant *variant_at(int i)
{
    static const ls_isa isa[] = {LS_ISA_PLAIN, LS_ISA_AVX2, LS_ISA_AVX512};
    return ls_multi_choose(isa[i]);
}

static ls_step_state fresh_state(float scale, float lr)
{
    return (ls_step_state){.loss_scale = scale,
                           .inv_loss_scale = ls_scaler_inverse(scale),
                           .lr = lr,
                           .first_bad_grad = -1,
                           .first_bad_state = -1};
}

/* A backend for one call with that variant and so many threads. */
static ls_backend *at_work(const ls_multi_variant *variant, int threads)
{
    static ls_backend backend;
    backend = (ls_backend){.threads = threads, .multi = variant};
    return &backend;
}

static void take_step(int variant, const ls_optimizer_config *config, const ls_optimizer_args *args,
                      bool dynamic, ls_step_state *state)
{
    ls_backend *backend = at_work(variant_at(variant), 1);
    ck_assert_int_eq(ls_multi_optimizer_step(backend, NULL, config, args, dynamic, state), LS_OK);
}

/* ---- scaler ---------------------------------------------------------------------------------- */

#define APEX(least)                                                                           \
    {                                                                                         \
        .dynamic = true, .growth_factor = 2, .backoff_factor = 0.5f, .growth_interval = 2000, \
        .min_scale = (least), .max_scale = 0x1p24f                                            \
    }

/* What the must-pass cases scaler.machine.* leave out. */
static const struct scaler_run {
    ls_scaler_config config;
    float scale; /* at the start, with `count` clean steps behind it */
    int count;
    struct {
        int times; /* updates; 0: no more */
        bool overflow;
        float scale; /* after them */
        int count, streak, floor;
    } leg[5];
} scaler_runs[] = {
    {APEX(0),
     65536,
     0,
     {{1, true, 32768, 0, 1, 0},
      {1, true, 16384, 0, 2, 0},
      {1999, false, 16384, 1999, 0, 0},
      {1, false, 32768, 0, 0, 0}}},
    {APEX(0), 65536, 0, {{24000, false, 0x1p24f, 0, 0, 0}}},
    /* an overflow one short of the interval restarts the count */
    {APEX(0), 65536, 1999, {{1, true, 32768, 0, 1, 0}, {1, false, 32768, 1, 0, 0}}},
    /* torch's reference sequence */
    {{true, 2, 0.25f, 2, 0, INFINITY},
     4,
     0,
     {{1, false, 4, 1, 0, 0}, {1, false, 8, 0, 0, 0}, {1, true, 2, 0, 1, 0}}},
    /* the floor without a minimum is 2^-24: reached it may be, passed not */
    {APEX(0), 0x1p-23f, 0, {{1, true, 0x1p-24f, 0, 1, 0}, {1, true, 0x1p-25f, 0, 2, 1}}},
    {APEX(128), 200, 0, {{1, true, 128, 0, 1, 1}, {1, false, 128, 1, 0, 0}}},
    {APEX(128), 256, 0, {{1, true, 128, 0, 1, 0}}},
    {{.dynamic = false}, 3, 0, {{2499, false, 3, 2499, 0, 0}, {1, true, 3, 2500, 0, 0}}},
};

ROWS_TEST(scaler, scaler_runs)
{
    const struct scaler_run *run = &scaler_runs[_i];
    ls_step_state s = fresh_state(run->scale, 0.1f);
    s.growth_count = run->count;
    for (int k = 0; run->leg[k].times > 0; k++) {
        for (int i = 0; i < run->leg[k].times; i++) {
            s.overflow = run->leg[k].overflow ? 1 : 0;
            ls_multi_scaler_update(NULL, NULL, &run->config, &s);
        }
        ck_assert_float_eq(s.loss_scale, run->leg[k].scale);
        ck_assert_float_eq(s.inv_loss_scale, (float)(1.0 / (double)s.loss_scale));
        ck_assert_int_eq(s.growth_count, run->leg[k].count);
        ck_assert_int_eq(s.overflow_streak, run->leg[k].streak);
        ck_assert_int_eq(s.floor_reached, run->leg[k].floor);
    }
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
    pool_free(&from);
    pool_free(&to);
}

TEST(unscale_values)
{
    pool from = pool_make(LS_F16, 600), to = pool_make(LS_F32, 600);
    pool_fill(&from, 3, 60000.0f);
    ls_step_state state = fresh_state(3.0f, 0.1f);
    ls_backend *backend = at_work(variant_at(2), 1);
    ls_multi_unscale_check(backend, NULL, pool_list(&to), pool_list(&from), &state);
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
    ls_tensor_list list = {1, &one};
    ls_multi_unscale_check(backend, NULL, list, list, &state);
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
    pool value = pool_make(LS_F32, 600), grad = pool_make(LS_F32, 600);
    pool moment = pool_make(LS_F32, 600), copy = pool_make(LS_F16, 600);
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
    take_step(2, &config, &args, true, &state);
    ck_assert_int_eq(state.skipped, 1);
    ck_assert_int_eq(state.step_count, 5);
    ck_assert_int_eq(state.first_bad_state, -1);
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_eq(before[i], each[i]->block, each[i]->bytes);
    }
    /* a static scale is never skipped: the NaN arrives, and is named */
    take_step(2, &config, &args, false, &state);
    ck_assert_int_eq(state.skipped, 0);
    ck_assert_int_eq(state.step_count, 6);
    ck_assert_int_eq(state.first_bad_state, 4);
    ck_assert_float_nan(get(value.tensor[4], 2));
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_ne(before[i], each[i]->block, each[i]->bytes);
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

/* ---- optimizers: those of torch and Apex are the must-pass cases optim.golden.* -------------- */

/* momentum * buf + d in one rounding would give another value: each operation rounds by itself. */
TEST(sgd_rounds_each_operation)
{
    volatile float m = 0.9f, b = 1.0f / 3.0f, d = -0.3f, lr = 0.1f, start = 0.7f;
    volatile float product = m * b;
    volatile float next = product + d;
    volatile float move = lr * next;
    float want = start - move;
    ck_assert_float_ne(next, fmaf(m, b, d));
    for (int v = 0; v < 3; v++) {
        float p[33], g[33], buf[33];
        ls_tensor value = {p, LS_F32, 33}, grad = {g, LS_F32, 33}, moment = {buf, LS_F32, 33};
        ls_optimizer_args args = {{1, &value}, {1, &grad}, {1, &moment}, {0, NULL}, {0, NULL}};
        ls_optimizer_config config = {.kind = LS_OPTIMIZER_SGD, .momentum = m};
        ls_step_state state = fresh_state(1.0f, lr);
        state.first_bad_state = 7;
        for (int i = 0; i < 33; i++) {
            g[i] = p[i] = d;
            buf[i] = NAN; /* the first step writes the buffer and does not read it */
        }
        take_step(v, &config, &args, false, &state);
        ck_assert_int_eq(state.first_bad_state, -1);
        for (int i = 0; i < 33; i++) {
            ck_assert_float_eq(buf[i], d);
            p[i] = start;
            buf[i] = b;
        }
        take_step(v, &config, &args, false, &state);
        for (int i = 0; i < 33; i++) {
            ck_assert_float_eq(buf[i], next);
            ck_assert_float_eq(p[i], want);
        }
    }
}

TEST(masters_and_half_values)
{
    /* 1 - 1e-4 ten times: half(master) leaves 1 at the third step, pure fp16 never does. */
    float master = 1.0f, g = 1.0f;
    uint16_t model = ls_half_f32_to_fp16(1.0f), pure = model;
    ls_tensor value = {&master, LS_F32, 1}, grad = {&g, LS_F32, 1}, copy = {&model, LS_F16, 1};
    ls_tensor half = {&pure, LS_F16, 1};
    ls_optimizer_args with = {{1, &value}, {1, &grad}, {0, NULL}, {0, NULL}, {1, &copy}};
    ls_optimizer_args without = {{1, &half}, {1, &grad}, {0, NULL}, {0, NULL}, {0, NULL}};
    ls_optimizer_config config = {.kind = LS_OPTIMIZER_SGD};
    ls_step_state a = fresh_state(1.0f, 1e-4f), b = a;
    for (int t = 1; t <= 10; t++) {
        take_step(0, &config, &with, true, &a);
        take_step(0, &config, &without, true, &b);
        ck_assert_float_eq(ls_half_fp16_to_f32(pure), 1.0f);
        if (t == 2 || t == 3 || t == 10) {
            float want = t == 2 ? 1.0f : t == 3 ? 0.99951171875f : 0.9990234375f;
            ck_assert_float_eq(ls_half_fp16_to_f32(model), want);
        }
    }
    /* A copy whose data is the value's own is left alone. */
    ls_tensor same = {&master, LS_F16, 1};
    with.copy.tensor = &same;
    float before = master;
    take_step(0, &config, &with, true, &a);
    ck_assert_float_eq(master, before - 1e-4f);
    /* A finite master whose half copy overflows is a non-finite parameter. */
    with.copy.tensor = &copy;
    master = 70000.0f;
    take_step(0, &config, &with, true, &a);
    ck_assert_int_eq(a.first_bad_state, 0);
}

TEST_MAIN("multi", .timeout_s = 60)
