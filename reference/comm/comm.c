#include "comm.h"

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
