#include "comm.h"

#include <string.h>

#include "kernels/core/log.h"
#include "self.h"

ls_status ls_comm_load(const char *name, const ls_comm_api **out)
{
    if (strcmp(name, "self") == 0) {
        *out = ls_self_entry();
        return LS_OK;
    }
    if (strcmp(name, "gloo") != 0 && strcmp(name, "nccl") != 0) {
        ls_log_error("engine '%s' is not known, allowed: self, gloo, nccl", name);
        return LS_ERR_USAGE;
    }
    ls_comm_entry_fn *entry = NULL;
    LS_TRY(ls_load_symbol(name, LS_COMM_ENTRY, &entry));
    const ls_comm_api *api = entry();
    LS_TRY(ls_load_same_abi(name, api->abi, LS_COMM_ABI));
    *out = api;
    return LS_OK;
}

ls_status ls_comm_run(const ls_comm_api *api, ls_comm *comm, const ls_comm_op *op,
                      ls_stream *stream)
{
    ls_comm_handle handle;
    if (stream != NULL && api->begin_after != NULL) {
        LS_TRY(api->begin_after(comm, stream));
    }
    LS_TRY(api->begin(comm, op, NULL, &handle));
    return api->wait(comm, &handle, stream);
}

const char *ls_comm_kind_name(ls_comm_kind kind)
{
    switch (kind) {
    case LS_COMM_ALL_REDUCE:
        return "all_reduce";
    case LS_COMM_BROADCAST:
        return "broadcast";
    case LS_COMM_ALL_GATHER:
        return "all_gather";
    case LS_COMM_REDUCE_SCATTER:
        return "reduce_scatter";
    case LS_COMM_REDUCE:
        return "reduce";
    case LS_COMM_GATHER:
        return "gather";
    case LS_COMM_SCATTER:
        return "scatter";
    case LS_COMM_SEND:
        return "send";
    case LS_COMM_RECV:
        return "recv";
    case LS_COMM_BARRIER:
        return "barrier";
    }
    return "unknown operation";
}
