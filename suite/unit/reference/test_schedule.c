/* Schedules against values that torch.optim.lr_scheduler printed and Apex's ImageNet script
 * (examples/imagenet/main_amp.py). */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "reference/options/schedule.h"
#include "suite/unit/run_suite.h"

/* Half a unit of the eighth decimal, to which the goldens were printed. */
static const double printed = 0.5e-8 * 1.0001;

static ls_schedule parse(const char *text)
{
    ls_schedule schedule;
    ck_assert_msg(ls_schedule_parse(text, &schedule) == LS_OK, "%s", text);
    return schedule;
}

TEST(warmup_and_cosine)
{
    static const double want[] = {.005, .104,      .203,      .302,      .401,
                                  .5,   .48776413, .45225425, .39694631, .32725425,
                                  .25,  .17274575, .10305369, .04774575, .01223587};
    ls_schedule schedule = parse("warmup:5s:0.01,cosine:10s");
    for (int i = 0; i < 15; i++) {
        double lr = ls_schedule_lr(&schedule, 0.5, i + 1, 0);
        ck_assert_double_le(fabs(lr - want[i]), printed);
    }
    ck_assert(ls_schedule_lr(&schedule, 0.5, 16, 0) == 0.0);
    ck_assert(ls_schedule_lr(&schedule, 0.5, 1000, 0) == 0.0);
    /* the same in epochs of one step */
    ls_schedule epochs = parse("warmup:5,cosine:10");
    ck_assert(ls_schedule_lr(&epochs, 0.5, 9, 1) == ls_schedule_lr(&schedule, 0.5, 9, 0));
}

/* base * gamma^floor(e/30): rates change exactly at the first step of epochs 30 and 60. */
TEST(steps)
{
    ls_schedule schedule = parse("step:30:0.1");
    const int64_t epoch = 7;
    ck_assert(ls_schedule_lr(&schedule, 0.1, 1, epoch) == 0.1);
    ck_assert(ls_schedule_lr(&schedule, 0.1, 30 * epoch, epoch) == 0.1);
    ck_assert(ls_schedule_lr(&schedule, 0.1, 30 * epoch + 1, epoch) == 0.1 * pow(0.1, 1));
    ck_assert(ls_schedule_lr(&schedule, 0.1, 60 * epoch + 1, epoch) == 0.1 * pow(0.1, 2));
    ls_schedule many = parse("multistep:30,60,80:0.5");
    ck_assert(ls_schedule_lr(&many, 1.0, 30 * epoch, epoch) == 1.0);
    ck_assert(ls_schedule_lr(&many, 1.0, 30 * epoch + 1, epoch) == 0.5);
    ck_assert(ls_schedule_lr(&many, 1.0, 80 * epoch, epoch) == 0.25);
    ck_assert(ls_schedule_lr(&many, 1.0, 80 * epoch + 1, epoch) == 0.125);
    ls_schedule constant = parse("constant");
    ck_assert(ls_schedule_lr(&constant, 0.3, 1000000, 0) == 0.3);
}

TEST(imagenet)
{
    ls_schedule schedule = parse("imagenet");
    const int64_t epoch = 100;
    const double ulp = 4e-16; /* two roundings of numbers up to 1 */
    /* step 1 of epoch 0: (1 + 1 + 0)/(5*100); step 100 of epoch 4: (1 + 100 + 400)/500 */
    ck_assert_double_le(fabs(ls_schedule_lr(&schedule, 1, 1, epoch) - 2.0 / 500), ulp);
    ck_assert_double_le(fabs(ls_schedule_lr(&schedule, 1, 500, epoch) - 501.0 / 500), ulp);
    ck_assert(ls_schedule_lr(&schedule, 1, 501, epoch) == 1.0);
    ck_assert(ls_schedule_lr(&schedule, 1, 3000, epoch) == 1.0);
    ck_assert_double_le(fabs(ls_schedule_lr(&schedule, 1, 3001, epoch) - 0.1), ulp);
    ck_assert_double_le(fabs(ls_schedule_lr(&schedule, 1, 6001, epoch) - 0.01), ulp);
    ck_assert_double_le(fabs(ls_schedule_lr(&schedule, 1, 8001, epoch) - 0.001), ulp);
}

/* 1,000 steps: the rate that the optimizer gets, an f32, is torch's. */
TEST(rates_are_those_of_torch)
{
    static const struct {
        const char *text;
        double base;
        int64_t steps_per_epoch;
        int64_t step[40];
        double rate[40];
    } rows[] = {
#include "schedule_goldens.inc"
    };
    ck_assert_uint_eq(sizeof rows / sizeof rows[0] * 40, 1000);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_schedule schedule = parse(rows[i].text);
        for (int k = 0; k < 40; k++) {
            double have =
                ls_schedule_lr(&schedule, rows[i].base, rows[i].step[k], rows[i].steps_per_epoch);
            ck_assert_msg((float)have == (float)rows[i].rate[k],
                          "%s, step %lld: %.17g, torch %.17g", rows[i].text,
                          (long long)rows[i].step[k], have, rows[i].rate[k]);
        }
    }
}

TEST(linear_scaling)
{
    ck_assert(ls_schedule_base_lr(0.1, false, 8192) == 0.1);
    ck_assert(ls_schedule_base_lr(0.1, true, 256) == 0.1);
    ck_assert(ls_schedule_base_lr(0.5, true, 8192) == 16.0);
}

TEST(epochs_need_data_that_ends)
{
    static const char *const by_epochs[] = {"imagenet", "step:30:0.1", "warmup:5,constant",
                                            "warmup:5,cosine:10s", "cosine:10"};
    static const char *const by_steps[] = {"constant", "step:30s:0.1", "warmup:5s,cosine:10s"};
    for (size_t i = 0; i < 5; i++) {
        ls_schedule schedule = parse(by_epochs[i]);
        ck_assert_int_eq(ls_schedule_check(&schedule, 0), LS_ERR_USAGE);
        ck_assert_int_eq(ls_schedule_check(&schedule, 1), LS_OK);
    }
    for (size_t i = 0; i < 3; i++) {
        ls_schedule schedule = parse(by_steps[i]);
        ck_assert_int_eq(ls_schedule_check(&schedule, 0), LS_OK);
    }
}

/* The whole schedule that a text stands for, at both ends of what each number may be. */
TEST(every_field_is_read)
{
    static const struct {
        const char *text;
        ls_schedule want;
    } rows[] = {
        {"constant", {.kind = LS_SCHEDULE_CONSTANT}},
        {"imagenet", {.kind = LS_SCHEDULE_IMAGENET}},
        {"cosine:0.5", {.kind = LS_SCHEDULE_COSINE, .length_count = 1, .length = {{0.5, false}}}},
        {"cosine:1e12s", {.kind = LS_SCHEDULE_COSINE, .length_count = 1, .length = {{1e12, true}}}},
        {"step:30:0",
         {.kind = LS_SCHEDULE_STEP, .length_count = 1, .length = {{30, false}}, .gamma = 0}},
        {"warmup:2.5,step:7s:1",
         {.kind = LS_SCHEDULE_STEP,
          .warmup = true,
          .warmup_length = {2.5, false},
          .warmup_start = 0.01,
          .length_count = 1,
          .length = {{7, true}},
          .gamma = 1}},
        {"warmup:3s:0,constant",
         {.kind = LS_SCHEDULE_CONSTANT, .warmup = true, .warmup_length = {3, true}}},
        {"warmup:3s:1,constant",
         {.kind = LS_SCHEDULE_CONSTANT,
          .warmup = true,
          .warmup_length = {3, true},
          .warmup_start = 1}},
        {"multistep:1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16:0.25",
         {.kind = LS_SCHEDULE_MULTISTEP,
          .length_count = 16,
          .length = {{1},
                     {2},
                     {3},
                     {4},
                     {5},
                     {6},
                     {7},
                     {8},
                     {9},
                     {10},
                     {11},
                     {12},
                     {13},
                     {14},
                     {15},
                     {16}},
          .gamma = 0.25}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_schedule have = parse(rows[i].text);
        const ls_schedule *want = &rows[i].want;
        ck_assert_msg(have.kind == want->kind && have.warmup == want->warmup &&
                          have.warmup_length.count == want->warmup_length.count &&
                          have.warmup_length.in_steps == want->warmup_length.in_steps &&
                          have.warmup_start == want->warmup_start &&
                          have.length_count == want->length_count && have.gamma == want->gamma,
                      "%s", rows[i].text);
        for (int k = 0; k < want->length_count; k++) {
            ck_assert_msg(have.length[k].count == want->length[k].count &&
                              have.length[k].in_steps == want->length[k].in_steps,
                          "%s: length %d", rows[i].text, k);
        }
    }
}

/* With a start whose share of the warm-up rounds: at its end the rate is the base's to the bit. */
TEST(warmup_ends_at_the_base)
{
    ls_schedule schedule = parse("warmup:3s:0.2,constant");
    ck_assert(ls_schedule_lr(&schedule, 1, 1, 0) == 0.2);
    ck_assert_double_lt(ls_schedule_lr(&schedule, 1, 3, 0), 0.74);
    ck_assert(0.2 + (1 - 0.2) * 3 / 3 != 1);
    ck_assert(ls_schedule_lr(&schedule, 1, 4, 0) == 1);
}

TEST(refusals)
{
    static const char *const wrong[] = {"",
                                        "linear",
                                        "step",
                                        "step:",
                                        "step:30",
                                        "step:30:",
                                        "step:0:0.1",
                                        "step:-1:0.1",
                                        "step:30:2",
                                        "step:30:0.1x",
                                        "step:1.5s:0.1",
                                        "step:10,20:0.1",
                                        "multistep:20,10:0.1",
                                        "multistep:10,20s:0.1",
                                        "cosine",
                                        "cosine:0",
                                        "cosine:nan",
                                        "warmup:5",
                                        "warmup:5,",
                                        "warmup:,cosine:3",
                                        "warmup:cosine:3",
                                        "warmup:5:2,cosine:3",
                                        "warmup:5,imagenet",
                                        "constant ",
                                        "cosine:10:1",
                                        "cosine:1.5e12",
                                        "warmup:5:constant",
                                        "multistep:10,10:0.1",
                                        "multistep:20,10",
                                        "multistep:1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17:0.5",
                                        "multistep:1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ls_schedule schedule;
        ck_assert_msg(ls_schedule_parse(wrong[i], &schedule) == LS_ERR_USAGE, "'%s'", wrong[i]);
    }
}

TEST_MAIN("schedule")
