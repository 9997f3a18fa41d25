/* The last line of each test program's main. */
#ifndef LS_UNIT_RUN_SUITE_H
#define LS_UNIT_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

/* Runs and frees the suite; returns main's exit code. CK_VERBOSITY=verbose lists every test. */
static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
