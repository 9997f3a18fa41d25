/* A test says its name once, and the program runs all of its tests in their order:
 *
 *     TEST(name) { ... }
 *     ROWS_TEST(name, rows) { ... rows[_i] ... }   once for each element of the array
 *     LOOP_TEST(name, count) { ... _i ... }        _i from 0 to count - 1
 *     RANGE_TEST(name, from, to) { ... _i ... }    _i from `from` to `to` - 1
 *
 *     TEST_MAIN("core", .timeout_s = 60, .before = make_folder)
 *
 * Programs with several cases, each with its fixture, use Check's own macros and run_suite.
 *
 * What this header and the others of suite/unit include, a test does not include again. */
#ifndef LS_UNIT_RUN_SUITE_H
#define LS_UNIT_RUN_SUITE_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANGE_TEST(name, from, to)                                            \
    static void name##_fn(int _i);                                            \
    static const TTest name##_ttest = {#name, name##_fn, __FILE__, __LINE__}; \
    static __attribute__((constructor)) void name##_add(void)                 \
    {                                                                         \
        const test_entry entry = {&name##_ttest, (int)(from), (int)(to)};     \
        test_list[test_count++] = entry;                                      \
    }                                                                         \
    static void name##_fn(int _i CK_ATTRIBUTE_UNUSED)
#define LOOP_TEST(name, count) RANGE_TEST(name, 0, count)
#define TEST(name) LOOP_TEST(name, 1)
#define ROWS_TEST(name, rows) LOOP_TEST(name, sizeof(rows) / sizeof *(rows))

typedef struct test_entry {
    const TTest *test;
    int from, to;
} test_entry;

/* Filled before main. */
static test_entry test_list[200];
static int test_count;

typedef struct test_program {
    const char *name;
    double timeout_s;                     /* of each test; 0: Check's */
    void (*before)(void), (*after)(void); /* each test, in its process */
    void (*begin)(void), (*end)(void);    /* all tests, in this process */
} test_program;

/* Runs and frees the suite; returns main's exit code. CK_VERBOSITY=verbose lists every test. */
static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static inline int run_tests(const test_program *program)
{
    Suite *suite = suite_create(program->name);
    TCase *tests = tcase_create(program->name);
    if (program->timeout_s > 0) {
        tcase_set_timeout(tests, program->timeout_s);
    }
    tcase_add_checked_fixture(tests, program->before, program->after);
    tcase_add_unchecked_fixture(tests, program->begin, program->end);
    for (int i = 0; i < test_count; i++) {
        tcase_add_loop_test(tests, test_list[i].test, test_list[i].from, test_list[i].to);
    }
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

/* What main returns. */
#define RUN_TESTS(...) run_tests(&(test_program){__VA_ARGS__})
#define TEST_MAIN(...)                              \
    int main(void)                                  \
    {                                               \
        const test_program program = {__VA_ARGS__}; \
        return run_tests(&program);                 \
    }

#endif
