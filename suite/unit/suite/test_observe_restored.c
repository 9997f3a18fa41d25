/* What checkpoint.resume says of rates and batches after an optimizer's state was loaded. */
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
     CALLS_HINT,
     "number of ranks once more after the state was loaded, which holds it scaled already | "
     "train.py:12"},
    {NAMED("0.4", "0"), OTHER, {STEP("0.8"), STEP("0.8")}, CALLS_HINT, "| train.py:13"},
    {NAMED("0.2", "1"), BUILT, {SCHEDULED("0.4"), STEP("0.1")}, CALLS_HINT, "once more"},
    /* as the file has it */
    {NAMED("0.2", "0"), OTHER, {STEP("0.2"), STEP("0.2")}, LS_PASS, "restored"},
    /* of a job of one rank */
    {NAMED("0.1", "0"), OTHER, {STEP("0.2"), STEP("0.2")}, LS_PASS, "restored"},
    /* a rate that was lowered since: scaled already, or by one rank */
    {NAMED("0.03", "0"), OTHER, {STEP("0.06"), STEP("0.06")}, LS_WEAK, "one rank"},
    /* the file is written again, and scaled again when it is loaded the next time */
    {NAMED("0.03", "0"), SAVE, {STEP("0.06"), STEP("0.06")}, CALLS_HINT, "once more"},
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

ROWS_TEST(a_rate_after_a_resume_is_judged, rates)
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
    calls_end(&job, "checkpoint.resume", rates[_i].code, rates[_i].words);
}

/* ---- a course that begins anew ----------------------------------------------------------------
 */

#define LOADED(numbers)                                                                    \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3],\"numbers\":{" numbers "}}"

/* The rate of the file is 0.2; those of the steps after it was loaded. */
static const struct {
    const char *numbers, *step[6];
    ls_verdict_code code;
    const char *words;
} courses[] = {
    {"\"iter_num\":40",
     {STEP("0.02"), STEP("0.1"), STEP("0.18"), STEP("0.26"), STEP("0.25"), STEP("0.24")},
     LS_WEAK,
     "0.2 and iter_num 40"},
    {"\"iter_num\":40",
     {STEP("0.19"), STEP("0.18"), STEP("0.17"), STEP("0.16"), STEP("0.15"), STEP("0.14")},
     LS_PASS,
     ""},
    /* still within the warm-up; no count in the file; lower, and it stays so; a jump */
    {"\"iter_num\":4",
     {STEP("0.21"), STEP("0.22"), STEP("0.23"), STEP("0.24"), STEP("0.25"), STEP("0.26")},
     LS_PASS,
     ""},
    {"",
     {STEP("0.02"), STEP("0.1"), STEP("0.18"), STEP("0.26"), STEP("0.3"), STEP("0.3")},
     LS_PASS,
     ""},
    {"\"iter_num\":40",
     {STEP("0.02"), STEP("0.03"), STEP("0.04"), STEP("0.05"), STEP("0.06"), STEP("0.07")},
     LS_PASS,
     ""},
    {"\"step\":40", /* counted anew: another training */
     {STEP("0.02"), STEP("0.1"), STEP("0.18"), STEP("0.26"), STEP("0.25"), STEP("0.24")},
     LS_PASS,
     ""},
    {"\"iter_num\":40",
     {STEP("0.02"), STEP("0.3"), STEP("0.3"), STEP("0.3"), STEP("0.3"), STEP("0.3")},
     LS_PASS,
     ""},
};

ROWS_TEST(a_course_that_begins_anew_is_caught, courses)
{
    calls_job job;
    calls_open_with(&job, 1, "");
    LS_TEXT(load, 400, LOADED("%s"), courses[_i].numbers);
    calls_event(&job, -1, load);
    calls_event(&job, -1, MODEL);
    calls_event(&job, -1, RESTORE);
    calls_event(&job, -1, UNNAMED("0.2", "0"));
    for (int i = 0; i < 6; i++) {
        calls_step(&job, courses[_i].step[i]);
    }
    calls_event(
        &job, -1,
        "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":6,\"path\":\"next.pt\",\"what\":{"
        "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"numbers\":{\"iter_num\":46,\"step\":6}}");
    calls_end(&job, "checkpoint.resume", courses[_i].code, courses[_i].words);
}

/* ---- the state of one of several optimizers ---------------------------------------------------
 */

#define MOMENTS(number, state)                                                                 \
    "{\"event\":\"optimizer\",\"optimizer\":" number ",\"rule\":\"adam\",\"state\":" state "," \
    "\"at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\"],\"lr\":0.1}]}"

/* A file that holds one optimizer's alone says nothing of the other. */
LOOP_TEST(the_state_of_one_of_several_is_judged, 2)
{
    static const struct {
        const char *held;
        ls_verdict_code code;
        const char *words;
    } files[] = {{"\"g\",\"d\"", LS_FAIL, "the state of one of several optimizers is loaded"},
                 {"\"g\"", LS_PASS, ""}};
    calls_job job;
    calls_open_with(&job, 1, "");
    LS_TEXT(load, 300,
            "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,"
            "\"what\":{\"model\":[\"m\"],\"optimizer\":[%s]},\"entries\":[3]}",
            files[_i].held);
    calls_event(&job, -1, load);
    calls_event(&job, -1, MODEL);
    calls_event(&job, -1, RESTORE);
    calls_event(&job, -1, MOMENTS("0", "3"));
    calls_event(&job, -1, MOMENTS("1", "0"));
    calls_step(&job, "F b O O{\"optimizer\":1} Z");
    calls_step(&job, "F b O O{\"optimizer\":1} Z");
    calls_end(&job, "checkpoint.resume", files[_i].code, files[_i].words);
}

/* ---- batches that come again ------------------------------------------------------------------
 */

#define FORWARD(digest) "F{\"autocast\":null,\"input\":\"" digest "\"} b O{\"lr\":[0.2]} Z"

static const struct {
    const char *work, *path, *first[4];
    ls_verdict_code code;
    const char *words;
} batches[] = {
    {"/a/",
     "last.pt",
     {FORWARD("1"), FORWARD("2"), FORWARD("3"), FORWARD("4")},
     LS_FAIL,
     "the first 4 batches are those"},
    {"/a/", "last.pt", {FORWARD("5"), FORWARD("6"), FORWARD("7"), FORWARD("8")}, LS_PASS, ""},
    {"/a/", "last.pt", {FORWARD("1"), FORWARD("2"), FORWARD("3"), FORWARD("8")}, LS_PASS, ""},
    {"/b/", "last.pt", {FORWARD("1"), FORWARD("2"), FORWARD("3"), FORWARD("4")}, LS_PASS, ""},
    {"/a/", "other.pt", {FORWARD("1"), FORWARD("2"), FORWARD("3"), FORWARD("4")}, LS_PASS, ""},
};

/* The start event of calls_open_with has no folder: this one comes before it. */
static void open_in(calls_job *job, const char *work)
{
    calls_open_with(job, 1, "");
    rewind(job->rank[0].file);
    fprintf(
        job->rank[0].file,
        "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"rank\":0,\"local_rank\":0,\"world\":1,"
        "\"work\":\"%s\",\"options\":{}}\n"
        "{\"event\":\"model\",\"model\":0,\"kind\":\"plain\",\"at\":\"train.py:5\",\"name\":"
        "\"Net\","
        "\"params\":[[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,\"f32\",true],[\"head.weight\","
        "4,"
        "\"f32\",true]],\"buffers\":[],\"norm_params\":[]}\n",
        work);
}

/* Judges a job after the one before it; linked: it went on from that one's file. */
static void read_after(calls_job *job, const calls_job *before, bool linked)
{
    fprintf(job->rank[0].file, "{\"event\":\"end\",\"steps\":%d,\"why\":\"exit\"}\n",
            job->rank[0].step);
    fclose(job->rank[0].file);
    ck_assert_int_eq(ls_observe_read(job->folder, &job->trace), LS_OK);
    ck_assert_int_eq(ls_observe_continue(job->trace, before->folder), linked);
    ls_observe_judge_all(job->trace, &job->result);
}

ROWS_TEST(batches_that_come_again_are_caught, batches)
{
    static const char *const earlier[] = {FORWARD("1"), FORWARD("2"), FORWARD("3"), FORWARD("4"),
                                          FORWARD("9")};
    calls_job before, job;
    open_in(&before, "/a/");
    calls_event(&before, -1, UNNAMED("0.2", "0"));
    for (int i = 0; i < 5; i++) {
        calls_step(&before, earlier[i]);
    }
    LS_TEXT(save, 300,
            "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":5,\"path\":\"%s\",\"what\":{"
            "\"model\":[\"m\"],\"optimizer\":[\"o\"]}}",
            batches[_i].path);
    calls_event(&before, -1, save);
    calls_judge(&before);
    open_in(&job, batches[_i].work);
    calls_event(&job, -1, LOADED(""));
    calls_event(&job, -1, MODEL);
    calls_event(&job, -1, RESTORE);
    calls_event(&job, -1, UNNAMED("0.2", "0"));
    for (int i = 0; i < 4; i++) {
        calls_step(&job, batches[_i].first[i]);
    }
    read_after(&job, &before,
               strcmp(batches[_i].work, "/a/") == 0 && strcmp(batches[_i].path, "last.pt") == 0);
    calls_expect(&job, "checkpoint.resume", batches[_i].code, batches[_i].words);
    calls_close(&job);
    calls_close(&before);
}

/* ---- an epoch that is trained twice ------------------------------------------------------------
 */

#define PASS(number, order, whole, first, last)                                               \
    "{\"event\":\"data\",\"loader\":0,\"pass\":" number ",\"trained\":true,\"shuffle\":true," \
    "\"whole\":" whole ",\"count\":8,\"batch\":4,\"order\":\"" order "\",\"steps\":[" first   \
    "," last "]}"

/* The second pass of the job that wrote the file after step 4, and the first one of this job. */
static const struct {
    const char *before, *now;
    ls_verdict_code code;
    const char *words;
} passes[] = {
    {PASS("1", "b", "true", "3", "4"), PASS("0", "b", "true", "1", "2"), LS_FAIL,
     "trained on twice"},
    {PASS("1", "b", "true", "3", "4"), PASS("0", "c", "true", "1", "2"), LS_PASS, ""},
    {PASS("1", "b", "true", "3", "4"), PASS("0", "a", "true", "1", "2"), LS_PASS, ""},
    {PASS("1", "b", "false", "3", "4"), PASS("0", "b", "true", "1", "2"), LS_PASS, ""},
    {PASS("1", "b", "true", "3", "8"), PASS("0", "b", "true", "1", "2"), LS_PASS, ""},
    {PASS("1", "a", "true", "3", "4"), PASS("0", "a", "true", "1", "2"), LS_PASS,
     ""}, /* never another */
};

ROWS_TEST(an_epoch_is_not_trained_twice, passes)
{
    calls_job before, job;
    open_in(&before, "/a/");
    calls_event(&before, -1, UNNAMED("0.2", "0"));
    for (int i = 0; i < 4; i++) {
        calls_step(&before, STEP("0.2"));
    }
    calls_event(&before, -1, PASS("0", "a", "true", "1", "2"));
    calls_event(&before, -1, passes[_i].before);
    calls_event(&before, -1,
                "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":4,\"path\":\"last.pt\","
                "\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"]}}");
    calls_judge(&before);
    open_in(&job, "/a/");
    calls_event(&job, -1, LOADED(""));
    calls_event(&job, -1, MODEL);
    calls_event(&job, -1, RESTORE);
    calls_event(&job, -1, UNNAMED("0.2", "0"));
    calls_step(&job, STEP("0.2"));
    calls_step(&job, STEP("0.2"));
    calls_event(&job, -1, passes[_i].now);
    read_after(&job, &before, true);
    calls_expect(&job, "checkpoint.resume", passes[_i].code, passes[_i].words);
    calls_close(&job);
    calls_close(&before);
}

TEST_MAIN("observe_restored", .timeout_s = 120)
