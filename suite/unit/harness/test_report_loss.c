/* Losses in a report: where a job ends, the interval predicted for another, and the band of O0 runs
 * with the levels compared with it. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "harness/report/figures.h"
#include "harness/report/job.h"
#include "kernels/core/text.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

static const struct {
    int world, steps[3], fewest;
    double end, third; /* where the loss ended; that of the third step */
} curves[] = {
    {0, {0}, 0, NAN, NAN},         {1, {0}, 0, NAN, NAN},       {1, {1}, 1, 0, NAN},
    {1, {4}, 4, 1.5, 2},           {1, {5}, 5, 2, 2},           {1, {6}, 6, 3, 2},
    {1, {59}, 59, 56, 2},          {1, {60}, 60, 56.5, 2},      {2, {9, 7}, 7, 54, 52},
    {3, {2, 9, 9}, 2, 100.5, NAN}, {3, {9, 9, 8}, 8, 105, 102},
};

ROWS_TEST(losses_at_the_end, curves)
{
    ls_report_job job = job_of(curves[_i].world, curves[_i].steps);
    ck_assert_int_eq(ls_report_loss_steps(&job), curves[_i].fewest);
    ck_assert_msg(same_number(ls_report_loss_end(&job), curves[_i].end), "%g",
                  ls_report_loss_end(&job));
    ck_assert_msg(same_number(ls_report_loss_at(&job, 2), curves[_i].third), "%g",
                  ls_report_loss_at(&job, 2));
    drop_job(&job);
}

TEST(losses_are_not_below_zero)
{
    const double value[] = {0.1, 0.2, 0.9}, high[] = {5, 5.5, 6};
    ls_stats_interval low = ls_report_loss_predict(value, 3),
                      usual = ls_report_loss_predict(high, 3);
    ck_assert(low.low == 0 && low.high > 1);
    ck_assert(usual.low > 0 && usual.low < 5);
    ck_assert(isnan(ls_report_loss_predict(value, 2).low));
    static const int last[][2] = {{0, 0},  {1, 1},  {5, 5},  {6, 5},
                                  {50, 5}, {59, 5}, {60, 6}, {99, 9}};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        ck_assert_int_eq(ls_report_loss_last(last[i][0]), last[i][1]);
    }
}

/* Runs of 20 steps, of which the last two count: the levels, and where each ends. */
static const struct {
    const char *levels; /* a digit each */
    double end[12];
    const char *text; /* NULL: no band */
} bands[] = {
    {"00", {1, 1}, NULL},
    {"001", {1, 1, 1}, NULL},
    {"000", {1, 1, 1}, "No other level is compared with the band of 3 O0 runs [1.000, 1.000]"},
    {"0001", {1, 1, 1, 1}, "O1 (1.000) stays inside the band of 3 O0 runs [1.000, 1.000]"},
    {"1000", {1.25, 1, 1, 1}, "O1 (1.250) ends outside the band of 3 O0 runs [1.000, 1.000]"},
    {"00012",
     {1, 1, 1, 1, 1},
     "O1 (1.000) and O2 (1.000) stay inside the band of 3 O0 runs "
     "[1.000, 1.000]"},
    {"000123",
     {1, 1, 1, 0.75, 2, 3},
     "O1 (0.750), O2 (2.000) and O3 (3.000) end outside the band of "
     "3 O0 runs [1.000, 1.000]"},
    {"0100230",
     {1, 1, 1, 1, 0.5, 0.625, 1},
     "O2 (0.500) and O3 (0.625) end outside, O1 (1.000) stays inside the band of 4 O0 runs [1.000, "
     "1.000]"},
    {"000111122223",
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, /* one more than there is room for */
     "O1 (1.000), O1 (1.000), O1 (1.000), O1 (1.000), O2 (1.000), O2 (1.000), O2 (1.000) and O2 "
     "(1.000) stay inside the band of 3 O0 runs [1.000, 1.000]"},
};

static ls_report_job curves_job(const char *levels, const double *end)
{
    static const int steps[12] = {20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20};
    int world = (int)strlen(levels);
    ls_report_job job = job_of(world, steps);
    job.record->state = LS_RECORD_DONE;
    job.record->spec.role = LS_ROLE_CURVES;
    for (int k = 0; k < world; k++) {
        ls_record_rank *rank = &job.record->rank[k];
        ls_text_put(rank->level, sizeof rank->level, "O%c", levels[k]);
        rank->step[17].loss = 77; /* before the end */
        rank->step[18].loss = end[k] - 0.25;
        rank->step[19].loss = end[k] + 0.25;
    }
    return job;
}

ROWS_TEST(bands_in_words, bands)
{
    char text[320];
    ls_report_band band;
    ls_report_job job = curves_job(bands[_i].levels, bands[_i].end);
    ls_report_run run = {.job_count = 1, .job = &job};
    bool found = ls_report_loss_read_band(&run, &band);
    ck_assert(found == (bands[_i].text != NULL));
    if (found) {
        ck_assert_str_eq(ls_report_loss_sentence(&band, text), bands[_i].text);
        ck_assert(band.job == &job && band.steps == 20 && band.last == 2);
        for (int i = 0, k = 0; i < band.level_count; i++, k++) {
            k += (int)strspn(bands[_i].levels + k, "0");
            ck_assert_int_eq(band.rank[i], k);
            ck_assert_str_eq(band.level[i], job.record->rank[k].level);
            ck_assert(band.level_end[i] == bands[_i].end[k]);
            ck_assert(band.inside[i] == (bands[_i].end[k] == 1));
        }
    }
    drop_job(&job);
}

TEST(curves_that_are_no_band)
{
    enum { STATE, ROLE, EMPTY, SHORT, NO_STEPS, FEW_STEPS, ALL };
    static const double ends[] = {1, 1, 1, 1};
    for (int change = 0; change < ALL; change++) {
        ls_report_band band = {.steps = -1};
        ls_report_job job = curves_job("0001", ends);
        ls_report_run run = {.job_count = 1, .job = &job};
        job.record->state = change == STATE ? LS_RECORD_KILLED : LS_RECORD_DONE;
        job.record->spec.role = change == ROLE ? LS_ROLE_REFERENCE : LS_ROLE_CURVES;
        job.record->world = change == EMPTY ? 0 : 4;
        job.record->rank[2].step_count = change == SHORT ? 19 : 20;
        for (int k = 0; k < 4 && change >= NO_STEPS; k++) {
            job.record->rank[k].step_count = change == NO_STEPS ? 0 : 9;
        }
        ck_assert_msg(ls_report_loss_read_band(&run, &band) == (change == FEW_STEPS), "%d", change);
        if (change == FEW_STEPS) {
            ck_assert(band.last == 1 && band.end.value == 8 + 100 * 1.0);
        } else {
            ck_assert_int_eq(band.steps, -1); /* nothing is written */
        }
        job.record->world = 4;
        drop_job(&job);
    }
    ls_report_run none = {0};
    ls_report_band band;
    ck_assert(!ls_report_loss_read_band(&none, &band));
}

TEST_MAIN("report_loss", .timeout_s = 60)
