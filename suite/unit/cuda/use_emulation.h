/* Test helper: makes both backends and the engines load from the emulation's folder. */
#ifndef LS_UNIT_USE_EMULATION_H
#define LS_UNIT_USE_EMULATION_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/path.h"

/* Call it before anything is loaded. */
static inline void use_emulation(void)
{
    char program[PATH_MAX], folder[PATH_MAX + 32];
    ls_path_program(program, sizeof program);
    snprintf(folder, sizeof folder, "%s/../emulated/lib", program);
    setenv("LS_LIB_DIR", folder, 1);
}

#endif
