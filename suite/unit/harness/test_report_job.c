/* A job in words: how it ended, which gradient checks it has, why a figure is no result; numbers.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "harness/report/job.h"
#include "harness/report/lines.h"
#include "kernels/core/text.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

/* How a job ended, in words; code 12: a state that is not finite. */
static const struct {
    ls_record_state state;
    int rank, code, signal;
    const char *text;
} endings[] = {
    {LS_RECORD_DONE, 1, 2, 3, "done"},
    {LS_RECORD_FAILED, 2, 12, 0, "FAIL rank 2, exit code 12 (non-finite state)"},
    {LS_RECORD_FAILED, 0, 2, 0, "FAIL rank 0, exit code 2 (usage)"},
    {LS_RECORD_FAILED, -1, 2, 0, "FAIL"},
    {LS_RECORD_KILLED, 0, 137, 9, "CRASH rank 0, signal 9"},
    {LS_RECORD_KILLED, -1, 137, 9, "CRASH"},
    {LS_RECORD_TIMED_OUT, 1, 2, 3, "TIMEOUT"},
};

ROWS_TEST(endings_in_words, endings)
{
    char text[96];
    ls_report_job job = job_of(0, NULL);
    job.record->state = endings[_i].state;
    job.record->first_rank = endings[_i].rank;
    job.record->code = endings[_i].code;
    job.record->signal = endings[_i].signal;
    ck_assert_str_eq(ls_report_job_state(&job, text), endings[_i].text);
    drop_job(&job);
}

static const struct {
    int check;
    bool audited;
    const char *text;
} checks[] = {
    {0, false, ""},
    {1, false, "FP64 oracle"},
    {2, false, "FP64 oracle on the GPU"},
    {3, false, "FP64 samples"},
    {4, false, "FP32 step 1"},
    {5, false, ""},
    {-1, false, ""},
    {0, true, "FP64 samples"},
    {4, true, "FP64 samples, FP32 step 1"},
    {5, true, "FP64 samples"},
    {1, true, "FP64 samples, FP64 oracle"},
};

ROWS_TEST(gradient_checks_in_words, checks)
{
    char text[64];
    ls_report_job job = job_of(0, NULL);
    job.record->gradient_check = checks[_i].check;
    job.record->audited = checks[_i].audited;
    ck_assert_str_eq(ls_report_job_gradient_checks(&job, text), checks[_i].text);
    drop_job(&job);
}

/* Why a figure is no result: of a job that ended so, with so many measured steps. */
static const struct {
    ls_record_state state;
    int count;
    bool checked, judged;
    double rate;
    const char *text;
} reasons[] = {
    {LS_RECORD_DONE, 1, true, true, 5, ""},
    {LS_RECORD_DONE, 1, true, true, NAN, "WEAK mine"},
    {LS_RECORD_DONE, 1, false, true, 5, "WEAK mine"},
    {LS_RECORD_DONE, 0, true, true, 5, "no step after the warm-up has a time"},
    {LS_RECORD_KILLED, 1, true, true, 5, "CRASH"},
};

ROWS_TEST(reasons_in_words, reasons)
{
    char text[160];
    ls_report_job job = job_of(0, NULL);
    job.record->state = reasons[_i].state;
    job.record->first_rank = -1;
    job.record->checked = reasons[_i].checked;
    job.record->judged = reasons[_i].judged;
    job.speed.count = reasons[_i].count;
    job.speed.rate.value = reasons[_i].rate;
    ls_text_put(job.record->id, sizeof job.record->id, "j");
    ls_report_verdict verdict[] = {
        {.code = LS_PASS, .id = "good", .json = cJSON_Parse("{\"jobs\":[\"j\"]}")},
        {.code = LS_FAIL, .id = "other", .json = cJSON_Parse("{\"jobs\":[\"i\",7]}")},
        {.code = LS_WEAK, .id = "mine", .json = cJSON_Parse("{\"jobs\":[\"i\",\"j\"]}")},
        {.code = LS_FAIL, .id = "later", .json = cJSON_Parse("{\"jobs\":[\"j\"]}")}};
    ls_report_run run = {.verdict_count = 4, .verdict = verdict};
    ck_assert_str_eq(ls_report_job_reason(&run, &job, text), reasons[_i].text);
    run.verdict_count = 2;
    if (strcmp(reasons[_i].text, "WEAK mine") == 0) {
        ck_assert_str_eq(ls_report_job_reason(&run, &job, text), "its checks did not pass");
        job.record->judged = false;
        ck_assert_str_eq(ls_report_job_reason(&run, &job, text), "not checked");
    }
    for (int v = 0; v < 4; v++) {
        cJSON_Delete(verdict[v].json);
    }
    drop_job(&job);
}

static const struct {
    double value;
    const char *text;
} numbers[] = {
    {NAN, "-"},
    {INFINITY, "-"},
    {0, "0"},
    {1000, "1000"},
    {999.96, "1000.0"},
    {1000.5, "1000"},
    {99.96, "99.96"},
    {100, "100.0"},
    {10, "10.00"},
    {9.99, "9.990"},
    {1, "1.000"},
    {0.01, "0.010"},
    {0.00999, "0.00999"},
    {1e-9, "1e-09"},
    {-0.5, "-0.500"},
    {-123.45, "-123.5"},
    {-0.001234, "-0.00123"},
    {1e7, "10000000"},
};

ROWS_TEST(numbers_have_four_digits, numbers)
{
    char text[32];
    ck_assert_str_eq(ls_report_lines_number(numbers[_i].value, text), numbers[_i].text);
}

TEST_MAIN("report_job", .timeout_s = 60)
