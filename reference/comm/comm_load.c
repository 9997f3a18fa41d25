#include "comm.h"

#include <string.h>

#include "kernels/core/log.h"

ls_status ls_comm_load(const char *name, const ls_comm_api **out)
{
    if (strcmp(name, "self") == 0) {
        *out = ls_self_entry();
        return LS_OK;
    }
    if (strcmp(name, "gloo") != 0 && strcmp(name, "nccl") != 0) {
        return ls_log_fail(LS_ERR_USAGE, "engine '%s' is not known, allowed: self, gloo, nccl",
                           name);
    }
    ls_comm_entry_fn *entry = NULL;
    LS_TRY(ls_load_symbol(name, LS_COMM_ENTRY, &entry));
    const ls_comm_api *api = entry();
    LS_TRY(ls_load_same_abi(name, api->abi, LS_COMM_ABI));
    *out = api;
    return LS_OK;
}
