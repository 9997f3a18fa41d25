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
    static const char *const name[] = {
        [LS_COMM_ALL_REDUCE] = "all_reduce",
        [LS_COMM_BROADCAST] = "broadcast",
        [LS_COMM_ALL_GATHER] = "all_gather",
        [LS_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [LS_COMM_REDUCE] = "reduce",
        [LS_COMM_GATHER] = "gather",
        [LS_COMM_SCATTER] = "scatter",
        [LS_COMM_SEND] = "send",
        [LS_COMM_RECV] = "recv",
        [LS_COMM_BARRIER] = "barrier",
    };
    return (unsigned)kind < sizeof name / sizeof *name ? name[kind] : "unknown operation";
}
