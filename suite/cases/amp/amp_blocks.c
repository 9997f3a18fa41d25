/* Several backward passes before one step (apex/amp/_process_optimizer.py, delay_unscale of
 * apex/amp/handle.py@scale_loss): sums of unscaled gradients in
 * f32, and the delayed unscale that sums scaled ones in their own type. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "amp_rows.h"
#include "toy.h"

static const int only[] = {0};

/* m0 = m(1), SGD without momentum, rate 1: what a step takes off is the gradient. */
static bool open_with(ls_toy *toy, const ls_amp_options *options, ls_verdict *out)
{
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    if (!ls_toy_open(toy, options, out)) {
        return false;
    }
    ls_toy_optimizer(toy);
    ls_toy_make(toy, 0, 1);
    ls_toy_own(toy, 0, 0, &sgd, 1.0f);
    return true;
}

static bool open_level(ls_toy *toy, int level, float scale, ls_verdict *out)
{
    ls_amp_options options = ls_toy_options(level, 2, scale);
    return open_with(toy, &options, out);
}

/* A block that gives both elements of one weight (w < 0: of both weights) the same gradient. */
static ls_status block(ls_toy *toy, int loss, int w, float grad, bool delay)
{
    float both[2] = {grad, grad};
    ls_toy_begin(toy, loss, only, 1, delay);
    for (int i = 0; i < 2; i++) {
        if (w < 0 || w == i) {
            ls_toy_give(toy, 0, i, both);
        }
    }
    return ls_toy_end(toy);
}

static void good_block(ls_toy *toy, int loss, int w, float grad, bool delay)
{
    ls_status status = block(toy, loss, w, grad, delay);
    ls_toy_must(toy, status, "block");
}

/* FAIL unless the unscaled gradients of w0 and w1 are these; NaN: there must be none. */
static void expect_grad(ls_toy *toy, float w0, float w1, const char *when, ls_verdict *out)
{
    float expected[2] = {w0, w1};
    for (int w = 0; w < 2; w++) {
        ls_amp_view view = ls_toy_view(toy, 0, w);
        float seen[2] = {NAN, NAN};
        if (view.has_grad) {
            ls_inside_read(&toy->device, &view.grad, seen);
        }
        bool none = isnan(expected[w]) && !view.has_grad;
        if (!none && !(seen[0] == expected[w] && seen[1] == expected[w])) {
            ls_verdict_fail(out, "%s: the gradient of w%d is %.9g, %.9g, expected %.9g", when, w,
                            (double)seen[0], (double)seen[1], (double)expected[w]);
        }
    }
}

/* 1 + 2^-12 + 2^-12: an fp16 sum would stay 1. */
static const float small = 0.000244140625f;

static void check_small_terms(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, false);
    good_block(&toy, 0, -1, small, false);
    good_block(&toy, 0, -1, small, false);
    expect_grad(&toy, 1.00048828125f, 1.00048828125f, "1 + 2^-12 + 2^-12", out);
    ls_toy_close(&toy);
}

static void check_sum(int level, ls_verdict *out)
{
    static const float expected[4] = {-6.0f, -5.0f, -5.0f, -4.0f};
    ls_toy toy;
    if (!open_level(&toy, level, 4.0f, out)) {
        return;
    }
    for (int i = 1; i <= 3; i++) {
        good_block(&toy, 0, -1, i == 3 ? 4.0f : (float)i, false);
    }
    expect_grad(&toy, 7.0f, 7.0f, "1 + 2 + 4", out);
    ls_toy_step(&toy, 0);
    ls_toy_expect(&toy, 0, expected, "a step on 1 + 2 + 4", out);
    ls_toy_close(&toy);
}

static void check_sum_o0(ls_verdict *out)
{
    check_sum(0, out);
}

static void check_sum_o1(ls_verdict *out)
{
    check_sum(1, out);
}

static void check_sum_o2(ls_verdict *out)
{
    check_sum(2, out);
}

static void check_sum_o3(ls_verdict *out)
{
    check_sum(3, out);
}

/* Apex lost the first gradients here (NVIDIA/apex PR 748): masters and a static scale of 1. */
static void check_static_one(ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 1, 1.0f);
    options.scaler.dynamic = false;
    if (!open_with(&toy, &options, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, false);
    good_block(&toy, 0, -1, 2.0f, false);
    expect_grad(&toy, 3.0f, 3.0f, "static scale 1 with masters", out);
    good_block(&toy, 0, 1, 4.0f, false);
    expect_grad(&toy, 3.0f, 7.0f, "a block that reaches only w1", out);
    ls_toy_close(&toy);
}

/* A parameter that only the first loss reaches keeps its gradient. */
static void check_untouched(ls_verdict *out)
{
    for (int level = 0; level < 4; level++) {
        ls_toy toy;
        if (!open_level(&toy, level, 4.0f, out)) {
            return;
        }
        good_block(&toy, 0, 0, 1.0f, false);
        expect_grad(&toy, 1.0f, NAN, "the first block", out);
        good_block(&toy, 1, 1, 2.0f, false);
        expect_grad(&toy, 1.0f, 2.0f, "the second block", out);
        ls_toy_close(&toy);
    }
}

/* Each loss unscales by its own S. */
static void check_two_scales(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    ls_toy_load_scale(&toy, 1, 1024.0f, 0);
    good_block(&toy, 0, -1, 1.0f, false);
    good_block(&toy, 1, -1, 2.0f, false);
    expect_grad(&toy, 3.0f, 3.0f, "scales 4 and 1024", out);
    ls_toy_close(&toy);
}

/* An overflow in micro-step `bad` of two: one skip, S halves at once, so that a second micro-step
 * uses the smaller one. */
static void overflow_in(int bad, ls_verdict *out)
{
    static const float start[4] = {1.0f, 2.0f, 2.0f, 3.0f};
    ls_toy toy;
    if (!open_level(&toy, 2, 1024.0f, out)) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        good_block(&toy, 0, -1, i == bad ? INFINITY : 1.0f, false);
    }
    ls_toy_expect_scale(&toy, 0, 512.0f, bad == 0 ? 1 : 0, "after both micro-steps", out);
    if (!ls_toy_step(&toy, 0)) {
        ls_verdict_fail(out, "micro-step %d overflowed, but the step was taken", bad + 1);
    }
    ls_toy_expect(&toy, 0, start, "the skipped step", out);
    good_block(&toy, 0, -1, 1.0f, false);
    if (ls_toy_step(&toy, 0)) {
        ls_verdict_fail(out, "one overflow skipped two steps");
    }
    ls_toy_close(&toy);
}

static void check_overflow_first(ls_verdict *out)
{
    overflow_in(0, out);
}

static void check_overflow_last(ls_verdict *out)
{
    overflow_in(1, out);
}

/* Two overflows before one step: a quarter of S, one skip. */
static void check_overflow_twice(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 1024.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, INFINITY, false);
    good_block(&toy, 0, -1, NAN, false);
    ls_toy_expect_scale(&toy, 0, 256.0f, 0, "two overflows", out);
    bool first = ls_toy_step(&toy, 0);
    good_block(&toy, 0, -1, 1.0f, false);
    bool second = ls_toy_step(&toy, 0);
    if (!first || second) {
        ls_verdict_fail(out, "first step %s, second step %s; expected skipped, taken",
                        first ? "skipped" : "taken", second ? "skipped" : "taken");
    }
    ls_toy_close(&toy);
}

/* ---- delayed unscale ------------------------------------------------------------------------- */

/* The half gradient's sum is an fp16 sum (2^-12 is lost beside 1), the f32 gradient's is not. */
static void check_half_sum(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, true);
    good_block(&toy, 0, -1, small, true);
    good_block(&toy, 0, -1, small, false);
    expect_grad(&toy, 1.00048828125f, 1.0f, "1 + 2^-12 + 2^-12, delayed", out);
    ls_toy_close(&toy);
}

/* Ties to even in the half sum: 2048 + 1 is 2048, 2050 + 1 is 2052. */
static void check_half_ties(ls_verdict *out)
{
    static const float first[2] = {512.0f, 512.5f}, expected[2] = {512.0f, 513.0f};
    for (int i = 0; i < 2; i++) {
        ls_toy toy;
        if (!open_level(&toy, 2, 4.0f, out)) {
            return;
        }
        good_block(&toy, 0, -1, first[i], true);
        good_block(&toy, 0, -1, .25f, false);
        expect_grad(&toy, first[i] + .25f, expected[i], "a tie in the half sum", out);
        ls_toy_close(&toy);
    }
}

/* Each gradient is finite in fp16, their half sum is not: an overflow only where it is delayed. */
static void check_half_overflow(ls_verdict *out)
{
    for (int delayed = 0; delayed < 2; delayed++) {
        ls_toy toy;
        if (!open_level(&toy, 2, 4.0f, out)) {
            return;
        }
        good_block(&toy, 0, -1, 10000.0f, delayed != 0);
        good_block(&toy, 0, -1, 10000.0f, false);
        ls_toy_expect_scale(&toy, 0, delayed ? 2.0f : 4.0f, delayed ? 0 : 2,
                            delayed ? "40000 + 40000 in fp16" : "20000 in f32", out);
        if (ls_toy_step(&toy, 0) != (delayed != 0)) {
            ls_verdict_fail(out, "40000 + 40000 %s: the step was %s",
                            delayed ? "in fp16" : "in f32", delayed ? "taken" : "skipped");
        }
        ls_toy_close(&toy);
    }
}

/* Delayed micro-steps count nothing and change no scale. */
static void check_count(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, true);
    good_block(&toy, 0, -1, INFINITY, true);
    ls_toy_expect_scale(&toy, 0, 4.0f, 0, "two delayed blocks, one infinite", out);
    good_block(&toy, 0, -1, 1.0f, false);
    ls_toy_expect_scale(&toy, 0, 2.0f, 0, "the block that unscales", out);
    if (!ls_toy_step(&toy, 0)) {
        ls_verdict_fail(out, "an overflow of a delayed block was not seen");
    }
    good_block(&toy, 0, -1, 1.0f, true);
    good_block(&toy, 0, -1, 1.0f, false);
    ls_toy_expect_scale(&toy, 0, 2.0f, 1, "a delayed and a last block", out);
    ls_toy_close(&toy);
}

/* What only a delayed block reached is unscaled with the rest. */
static void check_only_delayed(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, 0, 3.0f, true);
    expect_grad(&toy, NAN, NAN, "a delayed block alone", out);
    good_block(&toy, 0, 1, 5.0f, false);
    expect_grad(&toy, 3.0f, 5.0f, "w0 only in the delayed block", out);
    ls_toy_close(&toy);
}

/* Undelayed, delayed, undelayed: Apex adds scaled to unscaled here. */
static void check_mixed(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 1, 8.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, false);
    good_block(&toy, 0, -1, 2.0f, true);
    good_block(&toy, 0, -1, 4.0f, false);
    expect_grad(&toy, 7.0f, 7.0f, "1, 2 delayed, 4", out);
    ls_toy_close(&toy);
}

static void expect_refusal(ls_status status, int lines, const char *what, ls_verdict *out)
{
    if (status != LS_ERR_USAGE || lines != 1) {
        ls_verdict_fail(out, "%s: %s, %d lines; expected a usage error of one line", what,
                        ls_status_name(status), lines);
    }
}

/* A step on gradients that are still scaled, or a block that would unscale them by another S. */
static void check_refused(ls_verdict *out)
{
    static const float start[4] = {1.0f, 2.0f, 2.0f, 3.0f}, end[4] = {-1.0f, 0.0f, 0.0f, 1.0f};
    ls_toy toy;
    char text[400];
    bool skipped;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, true);
    ls_inside_ear ear = ls_inside_hear();
    ls_status status = ls_amp_step(toy.amp, 0, &skipped);
    expect_refusal(status, ls_inside_heard(&ear, text, (int)sizeof text), "a step", out);
    ear = ls_inside_hear();
    status = ls_amp_begin(toy.amp, 1, only, 1, false, &toy.state);
    expect_refusal(status, ls_inside_heard(&ear, text, (int)sizeof text), "another loss", out);
    ls_amp_cancel(toy.amp);
    ls_toy_expect(&toy, 0, start, "after two refusals", out);
    good_block(&toy, 0, -1, 1.0f, false);
    ls_toy_step(&toy, 0);
    ls_toy_expect(&toy, 0, end, "the block that unscales both", out);
    ls_toy_close(&toy);
}

/* Zeroing drops what is held back. */
static void check_zero(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 8.0f, true);
    ls_toy_zero(&toy, 0);
    good_block(&toy, 1, -1, 1.0f, false);
    expect_grad(&toy, 1.0f, 1.0f, "zeroed behind a delayed block", out);
    ls_toy_close(&toy);
}

/* Zeroing one parameter of two leaves what the other holds back: a step is refused until a block
 * unscales it; with both zeroed there is nothing left to refuse. */
static void check_zero_one(ls_verdict *out)
{
    ls_toy toy;
    char text[400];
    bool skipped;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, true);
    ls_toy_must(&toy, ls_amp_zero_param(toy.amp, 0, 0, 0), "zeroing the first");
    ls_inside_ear ear = ls_inside_hear();
    ls_status status = ls_amp_step(toy.amp, 0, &skipped);
    expect_refusal(status, ls_inside_heard(&ear, text, (int)sizeof text), "a step", out);
    ear = ls_inside_hear();
    status = ls_amp_begin(toy.amp, 1, only, 1, false, &toy.state);
    expect_refusal(status, ls_inside_heard(&ear, text, (int)sizeof text), "another loss", out);
    ls_amp_cancel(toy.amp);
    ls_toy_must(&toy, ls_amp_zero_param(toy.amp, 0, 0, 1), "zeroing the second");
    ls_toy_must(&toy, ls_amp_step(toy.amp, 0, &skipped), "a step without gradients");
    ls_toy_close(&toy);
}

/* A block that is given up adds nothing and counts nothing. */
static void check_cancel(ls_verdict *out)
{
    static const float ones[2] = {1.0f, 1.0f};
    ls_toy toy;
    if (!open_level(&toy, 2, 4.0f, out)) {
        return;
    }
    good_block(&toy, 0, -1, 1.0f, false);
    ls_toy_begin(&toy, 0, only, 1, false);
    ls_toy_give(&toy, 0, 0, ones);
    ls_amp_cancel(toy.amp);
    good_block(&toy, 0, 1, 1.0f, false);
    expect_grad(&toy, 1.0f, 2.0f, "a block that was given up", out);
    ls_toy_expect_scale(&toy, 0, 4.0f, 2, "two whole blocks", out);
    ls_toy_close(&toy);
}

static const ls_toy_row rows[] = {
    {"A3", "accumulate.small-terms", check_small_terms, "an f32 sum keeps 2^-12 beside 1"},
    {"A3", "accumulate.sum.o0", check_sum_o0, "1 + 2 + 4 is 7"},
    {"A3", "accumulate.sum.o1", check_sum_o1, "1 + 2 + 4 is 7"},
    {"A3", "accumulate.sum.o2", check_sum_o2, "1 + 2 + 4 is 7"},
    {"A3", "accumulate.sum.o3", check_sum_o3, "1 + 2 + 4 is 7"},
    {"A3", "accumulate.static-one", check_static_one, "static 1 with masters loses no gradient"},
    {"A3", "accumulate.untouched", check_untouched, "a gradient of the first loss stays, O0 to O3"},
    {"A3", "accumulate.two-scales", check_two_scales, "each loss unscales by its own S"},
    {"A3", "accumulate.overflow-first", check_overflow_first, "one skip, S halved at once"},
    {"A3", "accumulate.overflow-last", check_overflow_last, "one skip, S halved"},
    {"A3", "accumulate.overflow-twice", check_overflow_twice, "one skip, a quarter of S"},
    {"A3", "accumulate.cancel", check_cancel, "a block that is given up leaves no trace"},
    {"A4", "delay.half-sum", check_half_sum, "half gradients are summed in half, f32 ones in f32"},
    {"A4", "delay.half-ties", check_half_ties, "each half sum is rounded to nearest even"},
    {"A4", "delay.half-overflow", check_half_overflow, "40000 + 40000 overflows only in fp16"},
    {"A4", "delay.count", check_count, "one check and one count, at the block that unscales"},
    {"A4", "delay.only", check_only_delayed, "what only a delayed block reached is unscaled"},
    {"A4", "delay.mixed", check_mixed, "scaled sums are kept apart from unscaled ones"},
    {"A4", "delay.refused", check_refused, "no step and no other loss while sums are scaled"},
    {"A4", "delay.zero", check_zero, "zeroing drops what is held back"},
    {"A4", "delay.zero-one", check_zero_one, "zeroing one of two leaves the other held back"},
};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy_judge(&rows[row->number[0]], out);
}

void ls_amp_block_cases(ls_case_list *list)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_rows_add_inside(list, judge_row, rows[i].requirement, "amp.%s", rows[i].id)->number[0] =
            (int)i;
    }
}
