/* The functions that a caller would reach without this library. dlsym(RTLD_NEXT) sees only what the
 * program itself loaded: a framework that Python loads has its libraries to itself (RTLD_LOCAL), so
 * the search begins at the library that holds the caller. */
#include "interpose.h"

#include <dlfcn.h>
#include <stdio.h>

enum { REALS_MAX = 8, SITES_MAX = 64 };

static struct {
    pthread_mutex_t lock;
    int count, sites, next_site;
    ls_real real[REALS_MAX];
    struct {
        const void *address;
        const ls_real *real;
    } site[SITES_MAX];
} process_state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const names[LS_REAL_COUNT] = {
#define LS_INTERPOSE_NCCL(name) [LS_REAL_##name] = #name,
#define LS_INTERPOSE_CUDA(name) [LS_REAL_##name] = #name,
#include "interpose.def"
#undef LS_INTERPOSE_NCCL
#undef LS_INTERPOSE_CUDA
};

/* Whether a symbol is this library's own. */
static bool is_ours(void *symbol)
{
    Dl_info of, mine;
    return dladdr(symbol, &of) != 0 && dladdr(&process_state, &mine) != 0 &&
           of.dli_fbase == mine.dli_fbase;
}

static void *find(void *library, const char *name)
{
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL || is_ours(symbol)) {
        symbol = dlsym(RTLD_NEXT, name);
    }
    return symbol == NULL || is_ours(symbol) ? NULL : symbol;
}

/* CUDA's runtime may be linked statically where the caller is: another copy of it works on the same
 * streams, events and memory, which belong to the device's one primary context. */
static void find_cuda(ls_real *real, void *library)
{
    static const char *const files[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
    real->has_cuda = true;
    for (int i = LS_REAL_FIRST_OF_CUDA; i < LS_REAL_COUNT; i++) {
        real->function[i] = find(library, names[i]);
        real->has_cuda = real->has_cuda && real->function[i] != NULL;
    }
    for (size_t k = 0; k < 2 * sizeof files / sizeof *files && !real->has_cuda; k++) {
        int loaded = k < sizeof files / sizeof *files ? RTLD_NOLOAD : 0;
        void *runtime = dlopen(files[k % (sizeof files / sizeof *files)], RTLD_LAZY | loaded);
        real->has_cuda = runtime != NULL;
        for (int i = LS_REAL_FIRST_OF_CUDA; i < LS_REAL_COUNT && runtime != NULL; i++) {
            real->function[i] = dlsym(runtime, names[i]);
            real->has_cuda = real->has_cuda && real->function[i] != NULL;
        }
    }
}

static const ls_real *make(void *base, const char *path)
{
    ls_real *real = &process_state.real[process_state.count];
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD); /* kept: the functions stay valid */
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    real->base = base;
    for (int i = 0; i < LS_REAL_FIRST_OF_CUDA; i++) {
        real->function[i] = find(library, names[i]);
    }
    /* one library for all of them: a mixture of two would be worse than none */
    for (int i = 0; i < LS_REAL_FIRST_OF_CUDA; i++) {
        if (real->function[LS_REAL_ncclGroupEnd] == NULL && nccl != NULL) {
            real->function[i] = dlsym(nccl, names[i]);
        }
    }
    find_cuda(real, library);
    process_state.count++;
    return real;
}

static const ls_real *search(const void *caller)
{
    static const ls_real none;
    Dl_info at;
    if (dladdr(caller, &at) == 0) {
        return process_state.count > 0 ? &process_state.real[0] : &none;
    }
    for (int i = 0; i < process_state.count; i++) {
        if (process_state.real[i].base == at.dli_fbase) {
            return &process_state.real[i];
        }
    }
    return process_state.count < REALS_MAX ? make(at.dli_fbase, at.dli_fname) : &none;
}

const ls_real *ls_interpose_real(const void *caller)
{
    const ls_real *real = NULL;
    pthread_mutex_lock(&process_state.lock);
    for (int i = 0; i < process_state.sites && real == NULL; i++) {
        if (process_state.site[i].address == caller) {
            real = process_state.site[i].real;
        }
    }
    if (real == NULL) {
        real = search(caller);
        int site = process_state.next_site++ % SITES_MAX;
        process_state.site[site].address = caller;
        process_state.site[site].real = real;
        process_state.sites += process_state.sites < SITES_MAX;
    }
    pthread_mutex_unlock(&process_state.lock);
    return real;
}
