/* Ranks that are forked from a process which has loaded their framework, in place of ranks that
 * each load it again: importing PyTorch takes longer than a small job. The fork server is the
 * command itself, without options and with LS_FORK_SERVER=1: what would run the rank waits for
 * requests on its standard input, a socket, and forks (suite/peers/fork_server.py; protocol.md). A
 * rank is forked twice, so that this program, which adopts orphans, becomes its parent: it is
 * waited for, signalled and killed as any other. */
#ifndef LS_FORK_SERVER_H
#define LS_FORK_SERVER_H

#include <stdbool.h>

#include "kernels/core/text.h"
#include "proc.h"

typedef struct ls_fork_server {
    ls_words command; /* what it was started with: ranks have these words and options behind them */
    ls_proc process;
    int socket; /* -1: none runs, and every rank is started by exec */
} ls_fork_server;

/* Starts one: `command` is the words of a command, separated by blanks. It loads while the caller
 * goes on. */
ls_status ls_fork_server_open(const char *command, ls_fork_server *out);
void ls_fork_server_close(ls_fork_server *server);

/* Starts what `spec` says, as ls_proc_start does. False where the server cannot: it does not run,
 * the spec is of another command or wants its own terminal, descriptor or folder.
 * A server that fails is closed. To be called between ls_proc_orphans_begin and _end. */
bool ls_fork_server_start(ls_fork_server *server, const ls_proc_spec *spec, ls_proc *out);

#endif
