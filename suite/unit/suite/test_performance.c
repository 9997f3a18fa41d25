/* The judges of timed jobs, on records whose losses and times are known. */
#include "kernels/core/text.h"
#include "suite/cases/rows.h"
#include "suite/suite.h"
#include "suite/unit/run_suite.h"

enum { RUNS = 11, STEPS = 40 };

/* Ten O0 runs that end at 1.00 to 1.09 and a run of O2, each in a rank of its own. */
typedef struct curves {
    ls_case_list rows;
    ls_record record;
    ls_record_rank rank[RUNS];
    ls_record_step step[RUNS][STEPS];
} curves;

static curves fixture;

static void set_curve(int run, double first, double end)
{
    for (int i = 0; i < STEPS; i++) {
        fixture.step[run][i] = (ls_record_step){.step = i + 1, .loss = i < 30 ? first : end};
    }
}

static void open_curves(void)
{
    memset(&fixture, 0, sizeof fixture);
    ls_matrix bench = {.count = 0};
    ls_spec spec = ls_matrix_spec(LS_ROLE_CURVES);
    ls_text_put(spec.each, sizeof spec.each, "--opt-level=O0|--opt-level=O2");
    spec.steps = STEPS;
    ls_matrix_add(&bench, &spec);
    ls_case_settings settings = {.seed = 7, .bench = &bench};
    ls_performance_cases(&settings, &fixture.rows);
    ls_matrix_free(&bench);
    fixture.record.state = LS_RECORD_DONE;
    fixture.record.world = RUNS;
    fixture.record.rank = fixture.rank;
    for (int run = 0; run < RUNS; run++) {
        fixture.rank[run].start = cJSON_Parse(run < 10 ? "{\"options\":{\"opt-level\":\"O0\"}}"
                                                       : "{\"options\":{\"opt-level\":\"O2\"}}");
        fixture.rank[run].step_count = STEPS;
        fixture.rank[run].step = fixture.step[run];
        set_curve(run, 2.3, 1 + 0.01 * run);
    }
}

static void close_curves(void)
{
    for (int run = 0; run < RUNS; run++) {
        cJSON_Delete(fixture.rank[run].start);
    }
    ls_rows_free(&fixture.rows);
}

static ls_verdict judge(void)
{
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    ck_assert_int_eq(fixture.rows.count, 1); /* a row for each level that has a run, O0 apart */
    const ls_case *row = &fixture.rows.row[0];
    ck_assert_str_eq(row->id, "training.timed.band.o2");
    row->judge(row, &fixture.record, &verdict);
    return verdict;
}

TEST(a_level_that_ends_where_o0_ends_passes)
{
    set_curve(10, 2.3, 1.05);
    ls_verdict verdict = judge();
    ck_assert_int_eq(verdict.code, LS_PASS);
    /* s = 0.030277, t of 9 degrees at 0.9995: 4.780913 (tables), sqrt(1.1); 1e-4: their digits */
    ck_assert_double_eq_tol(verdict.limit, 4.780913 * 0.030277 * sqrt(1.1), 1e-4);
    ck_assert_double_eq_tol(verdict.value, 0.005, 1e-9); /* of a mean of ten */
}

TEST(a_level_that_ends_elsewhere_fails)
{
    static const double ends[] = {1.3, 0.8, 2.3, NAN};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        set_curve(10, 2.3, ends[i]);
        ck_assert_int_eq(judge().code, LS_FAIL);
    }
}

TEST(curves_that_do_not_fall_show_nothing)
{
    for (int run = 0; run < RUNS; run++) {
        set_curve(run, 2.3, 2.29 + 0.001 * run);
    }
    ck_assert_int_eq(judge().code, LS_WEAK);
}

TEST(a_run_that_stopped_early_fails)
{
    fixture.rank[3].step_count = STEPS - 1;
    ck_assert_int_eq(judge().code, LS_FAIL);
}

/* Steps of 10 ms after a warm-up of 4; the second half takes `later` ms, one step in it `audited`.
 */
static ls_verdict judge_window(double later, double audited)
{
    ls_case_list rows = {0};
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    ls_matrix bench = {.count = 0};
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    spec.warmup_steps = 4;
    ls_matrix_add(&bench, &spec);
    ls_performance_cases(&(ls_case_settings){.seed = 7, .bench = &bench}, &rows);
    ck_assert_str_eq(rows.row[0].id, "performance.timed.o0.w1");
    fixture.rank[0].step_count = 4 + 6;
    for (int i = 0; i < 10; i++) {
        fixture.step[0][i].total_ms = i < 4 ? 100 : i < 7 ? 10 : later;
    }
    fixture.step[0][8].audited = audited > 0;
    fixture.step[0][8].total_ms = audited > 0 ? audited : later;
    rows.row[0].judge(&rows.row[0], &fixture.record, &verdict);
    ls_matrix_free(&bench);
    ls_rows_free(&rows);
    return verdict;
}

/* 5 % apart, which an audited step of any time does not change. */
TEST(an_audited_step_is_in_neither_half_of_a_window)
{
    ck_assert_int_eq(judge_window(10.5, 0).code, LS_PASS);
    ck_assert_int_eq(judge_window(13, 0).code, LS_WEAK);
    static const double audited[] = {0.01, 10.5, 1e6};
    for (size_t i = 0; i < sizeof audited / sizeof *audited; i++) {
        ls_verdict verdict = judge_window(10.5, audited[i]);
        ck_assert_int_eq(verdict.code, LS_PASS);
        /* 1e-9: a few roundings of a quotient of doubles */
        ck_assert_double_eq_tol(verdict.value, 0.05, 1e-9);
        ck_assert_int_eq(judge_window(13, audited[i]).code, LS_WEAK);
    }
}

TEST_MAIN("performance", .before = open_curves, .after = close_curves)
