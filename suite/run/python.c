#include "run.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

static const double import_limit_s = 120; /* importing torch on a machine that others use too */

static bool has_torch(const char *python)
{
    static const char check[] =
        "import sys, numpy, torch\n"
        "v = torch.__version__.split('.')\n"
        "sys.exit((int(v[0]), int(v[1])) < (1, 13) or not torch.distributed.is_available())\n";
    char *argv[] = {(char *)(uintptr_t)python, "-c", (char *)(uintptr_t)check, NULL};
    ls_proc_spec spec = {.argv = argv, .environment = environ, .log_path = "/dev/null"};
    ls_proc process = {0};
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return false;
    }
    if (ls_proc_wait_any(&process, 1, ls_clock_after(import_limit_s)) < 0) {
        ls_proc_end_all(&process, 1, 1);
        return false;
    }
    return process.code == 0;
}

bool ls_python_find(const char *asked, char *python, size_t bytes, char *why, size_t why_bytes)
{
    const char *candidate[] = {asked != NULL ? asked : "python3",
                               asked != NULL ? NULL : "/usr/bin/python3"};
    for (int i = 0; i < 2 && candidate[i] != NULL; i++) {
        if (ls_path_check_program(candidate[i], why, why_bytes) != 0) {
            continue;
        }
        if (has_torch(candidate[i])) {
            ls_text_put(python, bytes, "%s", candidate[i]);
            return true;
        }
        ls_text_put(why, why_bytes, "not an interpreter with numpy and PyTorch 1.13 or later");
    }
    return false;
}
