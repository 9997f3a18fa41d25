/* Counts of executed lines for processes that end with _exit or become another program: libgcov
 * writes them from exit handlers alone. Built by suite/mutate/build.sh, twice: with FLUSH_LIBRARY
 * as a library that replaces both functions, and without it as an object of each program and shared
 * library, whose copy of libgcov it makes known. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void flush_fn(void);
void flush_add(flush_fn *dump, flush_fn *reset);
void flush_remove(flush_fn *dump);

#ifdef FLUSH_LIBRARY
enum { COPIES = 64 };
static struct {
    flush_fn *dump, *reset;
} copy[COPIES];

void flush_add(flush_fn *dump, flush_fn *reset)
{
    for (int i = 0; i < COPIES; i++) {
        if (copy[i].dump == NULL) {
            copy[i].dump = dump;
            copy[i].reset = reset;
            return;
        }
    }
}

void flush_remove(flush_fn *dump)
{
    for (int i = 0; i < COPIES; i++) {
        copy[i].dump = copy[i].dump == dump ? NULL : copy[i].dump;
    }
}

static void dump_all(void)
{
    for (int i = 0; i < COPIES; i++) {
        if (copy[i].dump != NULL) {
            copy[i].dump();
        }
    }
}

static void reset_all(void)
{
    for (int i = 0; i < COPIES; i++) {
        if (copy[i].dump != NULL) {
            copy[i].reset();
        }
    }
}

void _exit(int code)
{
    dump_all();
    for (;;) {
        syscall(SYS_exit_group, code);
    }
}

int execvpe(const char *file, char *const argument[], char *const environment[])
{
    int (*original)(const char *, char *const[], char *const[]);
    *(void **)&original = dlsym(RTLD_NEXT, "execvpe");
    dump_all();
    int result = original(file, argument, environment); /* it could not be started */
    reset_all();
    return result;
}
#else
void __gcov_dump(void);
void __gcov_reset(void);

__attribute__((constructor)) static void add(void)
{
    flush_add(__gcov_dump, __gcov_reset);
}

__attribute__((destructor)) static void take_away(void)
{
    flush_remove(__gcov_dump);
}
#endif
