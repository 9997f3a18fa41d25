/* What checkpoint.resume says of a rate after an optimizer's state was loaded. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

#define OPTIMIZER(scaled, rate, schedules)                                                         \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\",\"rule\":\"sgd\"," \
    "\"at\":\"train.py:7\",\"state\":3,\"set_at\":\"train.py:12\",\"scaled_at\":" scaled           \
    ",\"restored\":{\"lr\":[" rate "],\"schedules\":" schedules ",\"at\":\"train.py:10\"},"        \
    "\"groups\":[{\"params\":[\"fc.weight\",\"fc.bias\",\"head.weight\"],\"lr\":0.4,"              \
    "\"built_lr\":0.1,\"momentum\":0.9}]}"
#define UNNAMED(rate, schedules) OPTIMIZER("null", rate, schedules)
#define NAMED(rate, schedules) OPTIMIZER("\"train.py:13\"", rate, schedules)
#define RESTORE                                                                                    \
    "{\"event\":\"restore\",\"what\":\"optimizer\",\"at\":\"train.py:10\",\"step\":0,\"entries\":" \
    "3}"
#define BUILT                                                                               \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"LambdaLR\",\"at\":\"train.py:14\"," \
    "\"step\":0,\"holds\":[]}"
#define SAVE                                                                                \
    "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":1,\"path\":\"last.pt\",\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]}}"
#define MODEL \
    "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"step\":0}"
#define STEP(rate) "F{\"autocast\":null} b O{\"lr\":[" rate "]} Z"
#define SCHEDULED(rate) STEP(rate) " L{\"lr\":[0.1]}"
#define OTHER "{\"event\":\"other\"}"

static const struct {
    const char *optimizer, *more, *step[2];
    ls_verdict_code code;
    const char *words;
} rates[] = {
    {UNNAMED("0.2", "0"),
     OTHER,
     {STEP("0.4"), STEP("0.4")},
     LS_FAIL,
     "number of ranks once more after the state was loaded, which holds it scaled already | "
     "train.py:12"},
    {NAMED("0.4", "0"), OTHER, {STEP("0.8"), STEP("0.8")}, LS_FAIL, "| train.py:13"},
    {NAMED("0.2", "1"), BUILT, {SCHEDULED("0.4"), STEP("0.1")}, LS_FAIL, "once more"},
    /* as the file has it */
    {NAMED("0.2", "0"), OTHER, {STEP("0.2"), STEP("0.2")}, LS_PASS, "restored"},
    /* of a job of one rank */
    {NAMED("0.1", "0"), OTHER, {STEP("0.2"), STEP("0.2")}, LS_PASS, "restored"},
    /* a rate that was lowered since: scaled already, or by one rank */
    {NAMED("0.03", "0"), OTHER, {STEP("0.06"), STEP("0.06")}, LS_WEAK, "one rank"},
    /* the file is written again, and scaled again when it is loaded the next time */
    {NAMED("0.03", "0"), SAVE, {STEP("0.06"), STEP("0.06")}, LS_FAIL, "once more"},
    {UNNAMED("0.03", "0"), SAVE, {STEP("0.06"), STEP("0.06")}, LS_PASS, ""},
    /* a warm-up by hand */
    {NAMED("0.2", "0"), OTHER, {STEP("0.4"), STEP("0.6")}, LS_PASS, ""},
    /* a rate that the script halves, with two ranks */
    {UNNAMED("0.05", "0"), OTHER, {STEP("0.025"), STEP("0.025")}, LS_PASS, ""},
    /* a schedule that is built afterwards sets the rate; or one that is stepped up to its place */
    {NAMED("0.2", "0"), BUILT, {STEP("0.4"), STEP("0.4")}, LS_PASS, ""},
    {NAMED("0.2", "1"), BUILT, {"L " STEP("0.4"), STEP("0.4")}, LS_PASS, ""},
    {NAMED("0.2", "0"), OTHER, {STEP("0.6"), STEP("0.6")}, LS_PASS, ""},
};

START_TEST(a_rate_after_a_resume_is_judged)
{
    calls_job job;
    calls_open_with(&job, 2, "");
    calls_event(&job, -1,
                "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,"
                "\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3]}");
    calls_event(&job, -1, MODEL);
    calls_event(&job, -1, RESTORE);
    calls_event(&job, -1, rates[_i].optimizer);
    calls_event(&job, -1, rates[_i].more);
    calls_step(&job, rates[_i].step[0]);
    calls_step(&job, rates[_i].step[1]);
    calls_judge(&job);
    calls_expect(&job, "checkpoint.resume", rates[_i].code, rates[_i].words);
    calls_close(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("observe_restored");
    TCase *test = tcase_create("rules");
    tcase_set_timeout(test, 120);
    tcase_add_loop_test(test, a_rate_after_a_resume_is_judged, 0,
                        (int)(sizeof rates / sizeof *rates));
    suite_add_tcase(suite, test);
    return run_suite(suite);
}
