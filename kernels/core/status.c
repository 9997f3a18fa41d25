#define _GNU_SOURCE
#include "status.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ls_status_name(ls_status status)
{
    static const char *const name[] = {
        [LS_OK] = "ok",
        [LS_ERR_CHECK] = "check failed",
        [LS_ERR_USAGE] = "usage",
        [LS_ERR_INFRA] = "infrastructure",
        [LS_ERR_UNSUPPORTED] = "not supported",
        [LS_ERR_PEER_LOST] = "peer lost",
        [LS_ERR_RENDEZVOUS] = "rendezvous timed out",
        [LS_ERR_NON_FINITE] = "non-finite state",
        [LS_ERR_DEVICE_LOST] = "device lost",
        [LS_STOPPED] = "stopped by a signal, state saved",
        [LS_ERR_UNEVEN] = "uneven inputs",
    };
    bool known = (unsigned)status < sizeof name / sizeof *name && name[status] != NULL;
    return known ? name[status] : "unknown status";
}

void ls_status_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "lockstep: internal error: %s:%d: assertion failed: %s\n", file, line,
            condition);
    abort();
}

/* Not exit(): what it would run may need memory, too. One write(2), as in log.c. */
static void end_without(const char *what, const char *why)
{
    char line[600];
    int length = snprintf(line, sizeof line, "%.100s: error: %.400s%s%s\n",
                          program_invocation_short_name, what, why[0] == '\0' ? "" : ": ", why);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written;
    _exit(LS_ERR_INFRA);
}

void ls_status_no_memory(const char *file, int line)
{
    char what[300];
    snprintf(what, sizeof what, "no memory for what %.200s:%d allocates", file, line);
    end_without(what, "");
    abort(); /* not reached */
}

void ls_status_check_lack(const char *what)
{
    if (errno == ENOMEM || errno == EMFILE || errno == ENFILE) {
        end_without(what, strerror(errno));
    }
}
