/* A fresh folder of this process, and shell commands on what lies in it. */
#ifndef LS_UNIT_DATA_ROOT_H
#define LS_UNIT_DATA_ROOT_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"

static char ROOT[64];

static inline void make_root(void)
{
    snprintf(ROOT, sizeof ROOT, "/tmp/ls_test_data_XXXXXX");
    LS_ASSERT(mkdtemp(ROOT) != NULL);
}

static inline void remove_root(void)
{
    ls_path_remove_tree(ROOT);
}

/* Each %s of the format, at most five, is the argument. */
static inline void shell(const char *format, const char *argument)
{
    char command[1600];
    snprintf(command, sizeof command, format, argument, argument, argument, argument, argument);
    ck_assert_int_eq(system(command), 0);
}

#endif
