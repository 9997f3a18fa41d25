#include "status.h"

#include <stdio.h>
#include <stdlib.h>

const char *ls_status_name(ls_status status)
{
    switch (status) {
    case LS_OK:
        return "ok";
    case LS_ERR_CHECK:
        return "check failed";
    case LS_ERR_USAGE:
        return "usage";
    case LS_ERR_INFRA:
        return "infrastructure";
    case LS_ERR_UNSUPPORTED:
        return "not supported";
    case LS_ERR_PEER_LOST:
        return "peer lost";
    case LS_ERR_RENDEZVOUS:
        return "rendezvous timed out";
    case LS_ERR_NON_FINITE:
        return "non-finite state";
    case LS_ERR_DEVICE_LOST:
        return "device lost";
    }
    return "unknown status";
}

void ls_status_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "lockstep: internal error: %s:%d: assertion failed: %s\n", file, line,
            condition);
    abort();
}
