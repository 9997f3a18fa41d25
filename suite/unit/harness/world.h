/* Test helper: a world of forked ranks around one store. Each rank runs a function and leaves with
 * its result as exit code. */
#ifndef LS_UNIT_WORLD_H
#define LS_UNIT_WORLD_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/store/store.h"
#include "kernels/core/clock.h"
#include "kernels/core/status.h"

enum { WORLD_MAX = 8, WORLD_LIMIT_S = 30 };

/* A condition inside a rank: says what failed and leaves with code 1. */
#define RANK_CHECK(condition)                                                           \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: rank %s: %s\n", __FILE__, __LINE__, getenv("RANK"), \
                    #condition);                                                        \
            _exit(LS_ERR_CHECK);                                                        \
        }                                                                               \
    } while (0)

static inline ls_store_options world_store(int rank, int world, int port, double timeout_s)
{
    return (ls_store_options){.rank = rank,
                              .world = world,
                              .address = "127.0.0.1",
                              .port = port,
                              .run_id = "secret",
                              .timeout_s = timeout_s};
}

typedef int world_function(int rank, int world, int port, void *context);

/* 0: any port. */
static inline struct sockaddr_in world_loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Free when asked; nothing listens on it. */
static inline int world_free_port(void)
{
    struct sockaddr_in at = world_loopback(0);
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    LS_ASSERT(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    LS_ASSERT(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    close(fd);
    return ntohs(at.sin_port);
}

static inline pid_t world_fork(int rank, int world, int port, world_function *function,
                               void *context)
{
    fflush(NULL);
    pid_t pid = fork();
    LS_ASSERT(pid >= 0);
    if (pid == 0) {
        char text[16];
        snprintf(text, sizeof text, "%d", rank);
        setenv("RANK", text, 1);
        signal(SIGALRM, SIG_DFL); /* Check's own handler would end the whole test */
        alarm(WORLD_LIMIT_S);
        _exit(function(rank, world, port, context));
    }
    return pid;
}

/* Exit code of the child, or 128 + signal. */
static inline int world_join(pid_t pid)
{
    int state = 0;
    LS_ASSERT(waitpid(pid, &state, 0) == pid);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* Runs all ranks around this port; code[world] gets their exit codes. Returns how many are not 0.
 */
static inline int world_run_at(int port, int world, world_function *function, void *context,
                               int *code)
{
    pid_t pid[WORLD_MAX];
    int failed = 0;
    LS_ASSERT(world <= WORLD_MAX);
    for (int rank = 0; rank < world; rank++) {
        pid[rank] = world_fork(rank, world, port, function, context);
    }
    for (int rank = 0; rank < world; rank++) {
        code[rank] = world_join(pid[rank]);
        failed += code[rank] != 0;
    }
    return failed;
}

static inline int world_run(int world, world_function *function, void *context, int *code)
{
    return world_run_at(world_free_port(), world, function, context, code);
}

#endif
