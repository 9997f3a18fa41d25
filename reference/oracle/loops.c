#include "loops.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"

/* The most multiply-adds for the CPU: about 10 s at 2 * 10^9 a second. Below that, devices are left
 * to the jobs that train on them. */
static const double worth_a_device = 2e10;

static bool cpu_ready(char *why, int why_bytes)
{
    snprintf(why, (size_t)why_bytes, "the CPU");
    return true;
}

const ls_loops *ls_loops_cpu(void)
{
    static const ls_loops cpu = {
        .abi = LS_LOOPS_ABI,
        .name = "cpu",
        .ready = cpu_ready,
        .products_forward = ls_products_forward,
        .products_input_grad = ls_products_input_grad,
        .products_weight_grad = ls_products_weight_grad,
        .norm_forward = ls_norm_forward,
        .norm_backward = ls_norm_backward,
    };
    return &cpu;
}

/* LS_LIB_DIR, or lib/ next to the program (for tests: next to its folder). */
static bool library_path(char *path, size_t bytes)
{
    static const char *const way[] = {"/lib", "/../lib"};
    const char *folder = getenv("LS_LIB_DIR");
    char program[PATH_MAX];
    if (folder != NULL) {
        return snprintf(path, bytes, "%s/ls_oracle_cuda.so", folder) < (int)bytes &&
               access(path, F_OK) == 0;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) {
        return false;
    }
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    LS_ASSERT(slash != NULL);
    *slash = '\0';
    for (size_t i = 0; i < sizeof way / sizeof way[0]; i++) {
        int length_all = snprintf(path, bytes, "%s%s/ls_oracle_cuda.so", program, way[i]);
        if (length_all < (int)bytes && access(path, F_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* NULL with the reason in why. The library stays loaded, because a device's context is created
 * once. */
static const ls_loops *load_device(char *why, int why_bytes)
{
    char path[PATH_MAX];
    ls_loops_entry_fn *entry = NULL;
    if (!library_path(path, sizeof path)) {
        snprintf(why, (size_t)why_bytes, "ls_oracle_cuda.so is not built");
        return NULL;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, LS_LOOPS_ENTRY) : NULL;
    if (symbol == NULL) {
        snprintf(why, (size_t)why_bytes, "%s", dlerror());
        return NULL;
    }
    memcpy(&entry, &symbol, sizeof symbol); /* ISO C has no cast from void * to a function */
    const ls_loops *loops = entry();
    if (loops->abi != LS_LOOPS_ABI) {
        snprintf(why, (size_t)why_bytes, "ls_oracle_cuda.so was built for another version");
        return NULL;
    }
    return loops->ready(why, why_bytes) ? loops : NULL;
}

ls_status ls_loops_choose(double multiply_adds, const ls_loops **out)
{
    const char *asked = getenv("LS_ORACLE");
    char why[256] = "";
    bool device = asked != NULL && strcmp(asked, "cuda") == 0;
    if (asked != NULL && !device && strcmp(asked, "cpu") != 0 && asked[0] != '\0') {
        return ls_log_fail(LS_ERR_USAGE, "LS_ORACLE=%s: where the judge runs; allowed: cpu, cuda",
                           asked);
    }
    bool free_choice = asked == NULL || asked[0] == '\0';
    const ls_loops *loops = NULL;
    if (device || (free_choice && multiply_adds > worth_a_device)) {
        loops = load_device(why, (int)sizeof why);
    }
    if (device && loops == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "LS_ORACLE=cuda: %s", why);
    }
    *out = loops != NULL ? loops : ls_loops_cpu();
    return LS_OK;
}
