/* Schedules against values that torch.optim.lr_scheduler printed and Apex's ImageNet script
 * (examples/imagenet/main_amp.py). */
#include "kernels/core/digest.h"
#include "reference/options/schedule.h"
#include "suite/unit/run_suite.h"

static ls_schedule parse(const char *text)
{
    ls_schedule schedule;
    ck_assert_msg(ls_schedule_parse(text, &schedule) == LS_OK, "%s", text);
    return schedule;
}

TEST(after_the_end_and_in_epochs)
{
    ls_schedule schedule = parse("warmup:5s:0.01,cosine:10s"), epochs = parse("warmup:5,cosine:10");
    ck_assert(ls_schedule_lr(&schedule, 0.5, 16, 0) == 0.0);
    ck_assert(ls_schedule_lr(&schedule, 0.5, 1000, 0) == 0.0);
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

/* The rates that the optimizer gets, f32, are torch's in every step, by their digest
 * (suite/peers/schedule_goldens.py with torch 2.15.0, which prints the rates of a text). */
static const struct rates {
    const char *text;
    double base;
    int64_t steps_per_epoch, steps;
    uint64_t digest;
} rates[] = {
    {"step:30s:0.1", 0.1, 0, 400, 0x66ad948d271218d1},
    {"step:7s:0.97", 0.4, 0, 400, 0x56b7f31359e05b39},
    {"step:100s:0.5", 1.6, 0, 400, 0x9b33c84a5e8d09b5},
    {"multistep:100s,150s:0.1", 0.1, 0, 400, 0x1f95314606427605},
    {"multistep:3s,7s,9s,300s:0.25", 0.5, 0, 400, 0x79ce9088d16f0a7c},
    {"cosine:400s", 0.1, 0, 401, 0x9031892089438bf3},
    {"cosine:90s", 0.5, 0, 91, 0x0705de56d0ac7cf8},
    {"cosine:333s", 3.2, 0, 334, 0x94ac59632039f5d7},
    {"polynomial:400s:1.0", 0.1, 0, 450, 0x28312c42e1ea15f2},
    {"polynomial:90s:2.0", 0.5, 0, 450, 0xe02e8ad8a15f53a9},
    {"polynomial:333s:0.9", 3.2, 0, 450, 0x9306f116e8cf6229},
    {"polynomial:200s:2.5", 10.0, 0, 450, 0x1fe7afdf303de362},
    {"polynomial:120s", 0.3, 0, 200, 0x7d654aca34fd639c},
    {"warmup:50s:0.01,constant", 0.1, 0, 400, 0x27d242b89426f3b7},
    {"warmup:7s:0.3,constant", 0.5, 0, 400, 0xb3a0906a9c7781ed},
    {"warmup:333s:0.001,constant", 2.0, 0, 400, 0x9090ed15c93912c9},
    {"warmup:25s,cosine:300s", 0.5, 0, 326, 0xb661e462387ec686},
    {"warmup:5s:0.1,step:30s:0.1", 0.1, 0, 200, 0xdc673571162159e9},
    {"warmup:12s,polynomial:200s:2.0", 9.0, 0, 300, 0xdf1fa362f9b354eb},
    {"step:3:0.1", 0.1, 40, 700, 0x4707694644c6807d},
    {"cosine:9", 0.1, 37, 334, 0xb099f24c59dfddd0},
    {"warmup:2,polynomial:10:1.5", 1.0, 20, 300, 0xfca8f059d77f019c},
    {"imagenet", 0.1, 100, 9000, 0xbb89774813ceab49},
    {"imagenet", 0.8, 37, 3330, 0x014a5c891f80e040},
    {"imagenet", 0.3, 5005, 450450, 0xba54deb55bf628b8},
};

ROWS_TEST(rates_are_those_of_torch, rates)
{
    const struct rates *row = &rates[_i];
    ls_schedule schedule = parse(row->text);
    uint64_t digest = LS_DIGEST_START;
    for (int64_t step = 1; step <= row->steps; step++) {
        float rate = (float)ls_schedule_lr(&schedule, row->base, step, row->steps_per_epoch);
        digest = ls_digest_update(digest, &rate, sizeof rate);
    }
    ck_assert_msg(digest == row->digest, "%s: other rates than torch's", row->text);
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
         {.kind = LS_SCHEDULE_MULTISTEP, .length_count = 16, .gamma = 0.25}},
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
            double count = want->length_count == 16 ? k + 1 : want->length[k].count;
            ck_assert_msg(have.length[k].count == count &&
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

/* Between bars. */
TEST(refusals)
{
    static const char wrong[] =
        "|linear|step|step:|step:30|step:30:|step:0:0.1|step:-1:0.1|step:30:2|step:30:0.1x|"
        "step:1.5s:0.1|step:10,20:0.1|multistep:20,10:0.1|multistep:10,20s:0.1|cosine|cosine:0|"
        "cosine:nan|warmup:5|warmup:5,|warmup:,cosine:3|warmup:cosine:3|warmup:5:2,cosine:3|"
        "warmup:5,imagenet|constant |cosine:10:1|cosine:1.5e12|warmup:5:constant|"
        "multistep:10,10:0.1|multistep:20,10|multistep:1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,"
        "17:0.5|multistep:1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,";
    char text[sizeof wrong], *rest = memcpy(text, wrong, sizeof wrong);
    int count = 0;
    for (char *one; (one = strsep(&rest, "|")) != NULL; count++) {
        ls_schedule schedule;
        ck_assert_msg(ls_schedule_parse(one, &schedule) == LS_ERR_USAGE, "'%s'", one);
    }
    ck_assert_int_eq(count, 31);
}

TEST_MAIN("schedule")
