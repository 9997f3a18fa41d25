/* A fresh folder of this process, and shell commands on what lies in it. */
#ifndef LS_UNIT_DATA_ROOT_H
#define LS_UNIT_DATA_ROOT_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"

static char ROOT[64];

static inline void make_root(void)
{
    snprintf(ROOT, sizeof ROOT, "/tmp/ls_test_data_XXXXXX");
    LS_ASSERT(mkdtemp(ROOT) != NULL);
}

static inline int run_in_root(Suite *suite)
{
    int failed = run_suite(suite);
    ls_path_remove_tree(ROOT);
    return failed;
}

/* Each %s of the format, at most five, is the argument. */
static inline void shell(const char *format, const char *argument)
{
    char command[1600];
    snprintf(command, sizeof command, format, argument, argument, argument, argument, argument);
    ck_assert_int_eq(system(command), 0);
}

#endif
