#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels.h"

static ls_status library_path(const char *name, char *path, size_t path_bytes)
{
    const char *folder = getenv("LS_LIB_DIR");
    char program[PATH_MAX];
    ls_path_program(program, sizeof program);
    /* A unit test, build/unit/test_x, uses build/lib; if neither exists, the message names the
     * folder next to the program. */
    static const char *const way[] = {"/lib", "/../lib", "/lib"};
    for (int i = 0; i < 3; i++) {
        const char *base = folder != NULL ? folder : program, *rest = folder != NULL ? "" : way[i];
        if (snprintf(path, path_bytes, "%s%s/ls_%s.so", base, rest, name) >= (int)path_bytes) {
            return ls_log_fail(LS_ERR_INFRA, "path too long: %s%s/ls_%s.so", base, rest, name);
        }
        if (folder != NULL || access(path, F_OK) == 0) {
            break;
        }
    }
    return LS_OK;
}

ls_status ls_load_symbol(const char *name, const char *entry, void *out)
{
    char path[PATH_MAX];
    LS_TRY(library_path(name, path, sizeof path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "'%s' is not available here: %s (see what `make` printed)",
                           name, dlerror());
    }
    void *symbol = dlsym(library, entry);
    if (symbol == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "%s has no symbol '%s': %s", path, entry, dlerror());
    }
    memcpy(out, &symbol, sizeof symbol); /* ISO C has no cast from void * to a function */
    return LS_OK;
}

ls_status ls_load_same_abi(const char *name, int abi, int wanted)
{
    if (abi != wanted) {
        return ls_log_fail(LS_ERR_INFRA,
                           "ls_%s.so speaks ABI %d, this program %d: rebuild with `make`", name,
                           abi, wanted);
    }
    return LS_OK;
}

ls_status ls_load_backend(const char *name, const ls_backend_api **out)
{
    ls_backend_entry_fn *entry = NULL;
    LS_TRY(ls_load_symbol(name, LS_BACKEND_ENTRY, &entry));
    const ls_backend_api *api = entry();
    LS_TRY(ls_load_same_abi(name, api->abi, LS_BACKEND_ABI));
    *out = api;
    return LS_OK;
}
