#include "python.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
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
    ls_proc process;
    memset(&process, 0, sizeof process);
    if (ls_proc_start(&spec, &process) != LS_OK) {
        return false;
    }
    if (ls_proc_wait_any(&process, 1, ls_clock_after(import_limit_s)) < 0) {
        ls_proc_end_all(&process, 1, 1);
        return false;
    }
    return process.code == 0;
}

static bool is_program(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* In PATH or by its path. Checked before the program is started, because a missing one would be
 * logged as an error. */
static bool exists(const char *program)
{
    const char *path = strchr(program, '/') == NULL ? getenv("PATH") : NULL;
    bool found = path == NULL && is_program(program);
    while (path != NULL && !found) {
        char whole[1200];
        size_t length = strcspn(path, ":");
        ls_text_put(whole, sizeof whole, "%.*s/%s", (int)length, path, program);
        found = is_program(whole);
        path = path[length] == ':' ? path + length + 1 : NULL;
    }
    return found;
}

bool ls_python_find(const char *asked, char *python, size_t bytes)
{
    const char *candidate[] = {asked != NULL ? asked : "python3",
                               asked != NULL ? NULL : "/usr/bin/python3"};
    for (int i = 0; i < 2 && candidate[i] != NULL; i++) {
        if (exists(candidate[i]) && has_torch(candidate[i])) {
            ls_text_put(python, bytes, "%s", candidate[i]);
            return true;
        }
    }
    return false;
}
