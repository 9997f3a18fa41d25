#include "status.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

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
