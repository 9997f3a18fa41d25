#define _GNU_SOURCE
#include "usage.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "json.h"
#include "log.h"

/* Whether the address space has no room for the 8 MB of a thread's stack. */
static bool is_exhausted(void)
{
    enum { STACK_BYTES = 8 << 20 };
    void *room = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool none = room == MAP_FAILED;
    if (!none) {
        munmap(room, STACK_BYTES);
    }
    return none;
}

static void on_crash(int signal, siginfo_t *info, void *context)
{
    static const char line[] = "error: no memory: a crash where less than 8 MB are left\n";
    (void)context;
    if (is_exhausted()) {
        ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
        (void)written;
        _exit(LS_ERR_INFRA);
    }
    (void)sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    if (info->si_code <= 0) { /* another process sent it; else the instruction is tried again */
        raise(signal);
    }
}

static void on_exit_code(int code, void *running)
{
    if (code == EXIT_FAILURE && *(const bool *)running) {
        ls_log_error("a library has ended this program: its reason is in the line above");
        _exit(LS_ERR_INFRA);
    }
}

void ls_program_main(int (*run)(int argc, char **argv), int argc, char **argv)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
    bool running = true;
    struct sigaction before, caught = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) {
        if (sigaction(crashes[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) {
            (void)sigaction(crashes[i], &caught, NULL); /* else it is a sanitizer's */
        }
    }
    (void)on_exit(on_exit_code, &running);
    ls_json_need_memory();
    int code = run(argc, argv);
    running = false;
    exit(code); /* here, where `running` still is */
}
