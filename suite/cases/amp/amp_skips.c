/* What a skipped step does and does not, and what counts (apex/amp/handle.py@patch_step,
 * apex/amp/scaler.py@LossScaler.update_scale). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "amp_rows.h"
#include "toy.h"

static const int first_only[] = {0}, both[] = {0, 1};

/* m0 and m1, each with an optimizer of its own where there are two. */
static bool open_with(ls_toy *toy, const ls_amp_options *options, int optimizers,
                      const ls_optimizer_config *rule, ls_verdict *out)
{
    if (!ls_toy_open(toy, options, out)) {
        return false;
    }
    for (int i = 0; i < optimizers; i++) {
        ls_toy_optimizer(toy);
    }
    for (int m = 0; m < 2; m++) {
        ls_toy_make(toy, m, (float)m + 1);
        ls_toy_own(toy, optimizers == 2 ? m : 0, m, rule, .25f);
    }
    return true;
}

static bool open_level(ls_toy *toy, int level, int optimizers, float momentum, ls_verdict *out)
{
    ls_amp_options options = ls_toy_options(level, 2, 1024.0f);
    ls_optimizer_config sgd = ls_toy_sgd(momentum);
    return open_with(toy, &options, optimizers, &sgd, out);
}

static ls_toy_poison infinite(int model, int weight)
{
    return (ls_toy_poison){model, weight, INFINITY};
}

static bool one_block(ls_toy *toy, int loss, const int *optimizer, int count, unsigned models,
                      ls_toy_poison poison)
{
    ls_toy_begin(toy, loss, optimizer, count, false);
    ls_toy_backward(toy, models, 1.0f, poison);
    return ls_toy_end(toy) == LS_OK;
}

/* Overflow, no step called, zeroed, a clean block: that block's step is still the skip. */
static void check_pending(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 1, 0.0f, out)) {
        return;
    }
    one_block(&toy, 0, first_only, 1, 3u, infinite(0, 0));
    ls_toy_zero(&toy, 0);
    one_block(&toy, 0, first_only, 1, 3u, ls_toy_clean);
    bool pending = ls_toy_step(&toy, 0);
    bool next = ls_toy_iterate(&toy, 0, 0, 3u, ls_toy_clean);
    if (!pending || next) {
        ls_verdict_fail(out, "steps behind the overflow: %s, %s; expected skipped, taken",
                        pending ? "skipped" : "taken", next ? "skipped" : "taken");
    }
    ls_toy_close(&toy);
}

/* Nobody zeroes behind a skip: no infinity may reach a weight (in Apex it does). */
static void stale(int level, int weight, ls_verdict *out)
{
    ls_toy toy, plain;
    float expected[4];
    if (!open_level(&toy, level, 1, 0.0f, out)) {
        return;
    }
    if (!open_level(&plain, level, 1, 0.0f, out)) {
        ls_toy_close(&toy);
        return;
    }
    one_block(&toy, 0, first_only, 1, 3u, infinite(0, weight));
    ls_toy_step(&toy, 0);
    one_block(&toy, 0, first_only, 1, 3u, ls_toy_clean);
    ls_toy_step(&toy, 0);
    one_block(&plain, 0, first_only, 1, 3u, ls_toy_clean);
    ls_toy_step(&plain, 0);
    ls_toy_weights(&plain, 0, expected);
    ls_toy_expect(&toy, 0, expected, "a clean step behind a skip, nothing zeroed", out);
    ls_toy_close(&toy);
    ls_toy_close(&plain);
}

static void check_stale_o1(ls_verdict *out)
{
    stale(1, 0, out);
    stale(1, 1, out);
}

static void check_stale_o2(ls_verdict *out)
{
    stale(2, 0, out);
    stale(2, 1, out);
}

/* One block of two optimizers: an overflow in the second one's parameters skips both. */
static void check_both(ls_verdict *out)
{
    for (int bad = 0; bad < 2; bad++) {
        ls_toy toy;
        if (!open_level(&toy, 2, 2, 0.0f, out)) {
            return;
        }
        one_block(&toy, 0, both, 2, 3u, infinite(bad, 1));
        for (int o = 0; o < 2; o++) {
            if (!ls_toy_step(&toy, o)) {
                ls_verdict_fail(out, "overflow in optimizer %d's gradients: %d stepped", bad, o);
            }
        }
        ls_toy_close(&toy);
    }
}

/* An optimizer that the overflowing block does not list steps. */
static void check_listed(ls_verdict *out)
{
    ls_toy toy;
    static const int second_only[] = {1};
    if (!open_level(&toy, 2, 2, 0.0f, out)) {
        return;
    }
    one_block(&toy, 0, first_only, 1, 1u, infinite(0, 0));
    one_block(&toy, 1, second_only, 1, 2u, ls_toy_clean);
    bool first = ls_toy_step(&toy, 0), second = ls_toy_step(&toy, 1);
    if (!first || second) {
        ls_verdict_fail(out, "optimizer 0 %s, optimizer 1 %s; expected skipped, taken",
                        first ? "skipped" : "taken", second ? "skipped" : "taken");
    }
    ls_toy_close(&toy);
}

/* Apex's line, once a skipped step, with the loss and the scale it has now. */
static void check_message(ls_verdict *out)
{
    static const char expected[] =
        "Gradient overflow.  Skipping step, loss scaler 1 reducing loss scale to 512";
    ls_toy toy;
    if (!open_level(&toy, 2, 1, 0.0f, out)) {
        return;
    }
    ls_toy_iterate(&toy, 0, 0, 3u, ls_toy_clean);
    ls_toy_iterate(&toy, 1, 0, 3u, infinite(0, 0));
    ls_toy_iterate(&toy, 1, 0, 3u, ls_toy_clean);
    if (toy.said_count != 1 || strcmp(toy.said[0], expected) != 0) {
        ls_verdict_fail(out, "%d lines: \"%s\"", toy.said_count, toy.said[0]);
    }
    ls_toy_close(&toy);
}

static void check_silent(ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 2, 1024.0f);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    options.verbosity = 0;
    if (!open_with(&toy, &options, 1, &sgd, out)) {
        return;
    }
    ls_toy_iterate(&toy, 1, 0, 3u, infinite(0, 0));
    if (toy.said_count != 0) {
        ls_verdict_fail(out, "verbosity 0, yet \"%s\"", toy.said[0]);
    }
    ls_toy_close(&toy);
}

/* Finite, however large: 65504 in fp16, and f32 gradients whose sum is beyond f32. */
static void check_large(ls_verdict *out)
{
    static const float half[2] = {65504.0f, -65504.0f}, full[2] = {3e38f, 3e38f};
    ls_toy toy;
    ls_amp_options options = ls_toy_options(1, 1, 1.0f);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    if (!open_with(&toy, &options, 1, &sgd, out)) {
        return;
    }
    ls_toy_begin(&toy, 0, first_only, 1, false);
    ls_toy_give(&toy, 0, 0, full);
    ls_toy_give(&toy, 0, 1, half);
    if (ls_toy_end(&toy) != LS_OK || ls_toy_step(&toy, 0)) {
        ls_verdict_fail(out, "finite gradients (65504, 3e38) were taken for an overflow");
    }
    ls_toy_close(&toy);
}

/* ---- what counts ----------------------------------------------------------------------------- */

static void check_shared(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 2, 0.0f, out)) {
        return;
    }
    static const int second_only[] = {1};
    one_block(&toy, 0, first_only, 1, 1u, ls_toy_clean);
    one_block(&toy, 0, second_only, 1, 2u, ls_toy_clean);
    ls_toy_expect_scale(&toy, 0, 1024.0f, 2, "two blocks of one scale", out);
    ls_toy_expect_scale(&toy, 1, 1024.0f, 0, "no block of that one", out);
    ls_toy_close(&toy);
}

/* Static 1 without masters: nothing is looked at and nothing counted; an infinity goes through. */
static void check_short_circuit(ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(0, 1, 1.0f);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    if (!open_with(&toy, &options, 1, &sgd, out)) {
        return;
    }
    ls_toy_iterate(&toy, 0, 0, 3u, ls_toy_clean);
    ls_toy_expect_scale(&toy, 0, 1.0f, 0, "the short circuit", out);
    one_block(&toy, 0, first_only, 1, 3u, infinite(0, 0));
    char text[400];
    bool skipped = true;
    ls_inside_ear ear = ls_inside_hear();
    ls_status status = ls_amp_step(toy.amp, 0, &skipped);
    ls_inside_heard(&ear, text, (int)sizeof text);
    if (status != LS_ERR_NON_FINITE || strstr(text, "m0.w0") == NULL) {
        ls_verdict_fail(out, "an infinite weight: %s, \"%s\"", ls_status_name(status), text);
    }
    ls_toy_close(&toy);
}

/* A static scale never changes, never skips, and counts for ever. */
static void check_static(ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(3, 1, 128.0f);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    options.scaler.growth_interval = 3;
    if (!open_with(&toy, &options, 1, &sgd, out)) {
        return;
    }
    for (int i = 0; i < 10; i++) {
        one_block(&toy, 0, first_only, 1, 3u, i == 4 ? infinite(0, 0) : ls_toy_clean);
        ls_toy_zero(&toy, 0);
    }
    ls_toy_expect_scale(&toy, 0, 128.0f, 10, "10 blocks at static 128", out);
    if (ls_toy_step(&toy, 0)) {
        ls_verdict_fail(out, "a static scale skipped a step");
    }
    ls_toy_close(&toy);
}

/* ---- limits of the scale --------------------------------------------------------------------- */

static void limits(float start, float lowest, float highest, const float *expected, int overflows,
                   ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 1, start);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    options.scaler.min_scale = lowest;
    options.scaler.max_scale = highest;
    options.scaler.growth_interval = 1;
    if (!open_with(&toy, &options, 1, &sgd, out)) {
        return;
    }
    ls_toy_expect_scale(&toy, 0, expected[0], 0, "at the start", out);
    for (int i = 0; i < 3; i++) {
        bool bad = i < overflows;
        ls_toy_iterate(&toy, 0, 0, 3u, bad ? infinite(0, 1) : ls_toy_clean);
        char when[32];
        snprintf(when, sizeof when, "after block %d", i + 1);
        ls_toy_expect_scale(&toy, 0, expected[i + 1], 0, when, out);
    }
    ls_toy_close(&toy);
}

static void check_highest(ls_verdict *out)
{
    static const float expected[4] = {1024.0f, 1024.0f, 1024.0f, 1024.0f};
    limits(65536.0f, 0.0f, 1024.0f, expected, 0, out);
}

static void check_lowest(ls_verdict *out)
{
    static const float expected[4] = {2048.0f, 4096.0f, 4096.0f, 4096.0f};
    limits(1024.0f, 2048.0f, 4096.0f, expected, 0, out);
}

static void check_below_one(ls_verdict *out)
{
    static const float expected[4] = {2.0f, 1.0f, .5f, .25f};
    limits(2.0f, 0.0f, 16777216.0f, expected, 3, out);
}

/* The overflow that ends the run: which one, and what is said. */
static void ends(float start, float lowest, float highest, int expected, const char *names,
                 ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 1, start);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    options.scaler.min_scale = lowest;
    options.scaler.max_scale = highest;
    if (!open_with(&toy, &options, 1, &sgd, out)) {
        return;
    }
    int at = 0;
    char text[400] = "";
    for (int i = 1; i <= 60 && at == 0; i++) {
        ls_toy_begin(&toy, 0, first_only, 1, false);
        ls_toy_backward(&toy, 3u, 1.0f, infinite(0, 0));
        ls_inside_ear ear = ls_inside_hear();
        ls_status status = ls_toy_end(&toy);
        ls_inside_heard(&ear, text, (int)sizeof text);
        at = status == LS_ERR_NON_FINITE ? i : 0;
        if (at == 0) {
            ls_toy_step(&toy, 0);
            ls_toy_zero(&toy, 0);
        }
    }
    if (at != expected || strstr(text, names) == NULL || strstr(text, "m0.w0") == NULL) {
        ls_verdict_fail(out, "overflow %d ended the run, expected %d with \"%s\": %s", at, expected,
                        names, text);
    }
    ls_toy_close(&toy);
}

static void check_floor(ls_verdict *out)
{
    ends(1024.0f, 256.0f, 1024.0f, 3, "past its floor", out);
}

/* 2^-24 is the last scale without a minimum: from 2^-20 the fifth overflow goes below it. */
static void check_floor_none(ls_verdict *out)
{
    ends(9.5367431640625e-7f, 0.0f, 1024.0f, 5, "past its floor", out);
}

static void check_streak(ls_verdict *out)
{
    ends(1.2676506002282294e30f, 0.0f, INFINITY, 50, "50 overflows in a row", out); /* 2^100 */
}

static const ls_toy_row rows[] = {
    {"A5", "skip.pending", check_pending, "a skip waits for the next step, whatever is zeroed"},
    {"A5", "skip.stale.o1", check_stale_o1, "nothing infinite is left for the next step"},
    {"A5", "skip.stale.o2", check_stale_o2, "nothing infinite is left for the next step"},
    {"A5", "skip.both-optimizers", check_both, "every optimizer of the block skips"},
    {"A5", "skip.only-listed", check_listed, "an optimizer of another block steps"},
    {"A5", "skip.message", check_message, "one line, with the loss and the reduced scale"},
    {"A5", "skip.silent", check_silent, "verbosity 0 says nothing"},
    {"A5", "skip.finite", check_large, "65504 and a sum beyond f32 are no overflow"},
    {"A5", "count.shared", check_shared, "a shared scale counts blocks, not steps"},
    {"A5", "count.short-circuit", check_short_circuit, "nothing looked at, nothing counted"},
    {"A5", "count.static", check_static, "128 stays, 10 counted, nothing skipped"},
    {"S5", "limit.highest", check_highest, "clamped at the start, and never passed"},
    {"S5", "limit.lowest", check_lowest, "the minimum holds from the start"},
    {"S5", "limit.below-one", check_below_one, "1 is no floor"},
    {"S5", "limit.floor", check_floor, "an overflow at the minimum ends the run"},
    {"S5", "limit.floor-none", check_floor_none, "without a minimum the floor is 2^-24"},
    {"S5", "limit.streak", check_streak, "the 50th overflow in a row ends the run"},
};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy_judge(&rows[row->number[0]], out);
}

void ls_amp_skip_cases(ls_case_list *list)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_rows_add_inside(list, judge_row, rows[i].requirement, "amp.%s", rows[i].id)->number[0] =
            (int)i;
    }
}
