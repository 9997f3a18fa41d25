/* What other programs take of a machine, from two readings. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "harness/machine/machine.h"
#include "kernels/core/clock.h"
#include "suite/unit/run_suite.h"

START_TEST(what_others_take_is_held_against_our_cores_only)
{
    static const struct {
        double others_s, seconds;
        int processors, cores;
        double taken;
    } rows[] = {
        {0, 10, 2, 2, 0},    /* an idle machine */
        {10, 10, 2, 2, 1},   /* one of two */
        {40, 10, 2, 2, 2},   /* never more than there are */
        {40, 10, 8, 2, 0},   /* four busy of six that we may not use */
        {70, 10, 8, 2, 1},   /* seven busy: one of ours */
        {-0.1, 10, 2, 2, 0}, /* ticks are rounded */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_machine_load_times from = {
            .others_s = 5, .processors = rows[i].processors, .at_ns = 1000000000};
        ls_machine_load_times to = from;
        to.others_s += rows[i].others_s;
        to.at_ns += (int64_t)(rows[i].seconds * 1e9);
        /* 1e-12: a few roundings of numbers up to 75 */
        ck_assert_double_eq_tol(ls_machine_load_taken(&from, &to, rows[i].cores), rows[i].taken,
                                1e-12);
        ck_assert(
            isnan(ls_machine_load_taken(&from, &from, rows[i].cores))); /* no time has passed */
        to.others_s = NAN;
        ck_assert(isnan(ls_machine_load_taken(&from, &to, rows[i].cores)));
    }
}
END_TEST

/* 0.3 s of our own work: on an idle machine others took nothing; on a busy one no more than the
 * processors gave in addition to ours. */
START_TEST(our_own_work_is_not_others)
{
    ls_machine_load_times from, to;
    ls_machine_load(&from);
    volatile double sum = 0;
    while (ls_clock_ns() - from.at_ns < 300000000) {
        sum += 1;
    }
    ls_machine_load(&to);
    ck_assert_int_ge(to.processors, 1);
    double seconds = (double)(to.at_ns - from.at_ns) * 1e-9;
    double all_s = to.processors * seconds;
    /* 0.05: ticks are hundredths of a second on each processor, read a moment apart */
    ck_assert_double_le(to.others_s - from.others_s, all_s + 0.05);
    ck_assert_double_ge(to.others_s - from.others_s, -0.05);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("load");
    TCase *tests = tcase_create("load");
    tcase_add_test(tests, what_others_take_is_held_against_our_cores_only);
    tcase_add_test(tests, our_own_work_is_not_others);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
