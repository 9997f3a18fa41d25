#include "comm.h"

#include "kernels/core/log.h"

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
        [LS_COMM_ALL_TO_ALL] = "all_to_all",
    };
    return (unsigned)kind < sizeof name / sizeof *name ? name[kind] : "unknown operation";
}

const char *ls_comm_redop_name(ls_comm_redop redop)
{
    static const char *const name[] = {[LS_COMM_SUM] = "sum",
                                       [LS_COMM_MAX] = "max",
                                       [LS_COMM_MIN] = "min",
                                       [LS_COMM_PROD] = "prod"};
    return (unsigned)redop < sizeof name / sizeof *name ? name[redop] : "unknown operator";
}

bool ls_comm_kind_reduces(ls_comm_kind kind)
{
    return kind == LS_COMM_ALL_REDUCE || kind == LS_COMM_REDUCE_SCATTER || kind == LS_COMM_REDUCE;
}

ls_status ls_comm_check(const ls_comm_op *op, int world)
{
    const char *kind = ls_comm_kind_name(op->kind), *label = op->label != NULL ? op->label : "";
    const char *redop = ls_comm_redop_name(op->redop);
    bool scaled = op->factor != 0.0f && op->factor != 1.0f;
    if (op->redop != LS_COMM_SUM && !ls_comm_kind_reduces(op->kind)) {
        return ls_log_fail(LS_ERR_USAGE, "%s '%s': nothing is reduced, so no operator %s", kind,
                           label, redop);
    }
    if (scaled && (op->kind != LS_COMM_ALL_REDUCE || op->redop != LS_COMM_SUM)) {
        return ls_log_fail(LS_ERR_USAGE, "%s '%s' by %s: only an all_reduce's sum takes a factor",
                           kind, label, redop);
    }
    if (op->kind != LS_COMM_ALL_TO_ALL) {
        return LS_OK;
    }
    uintptr_t bytes = (uintptr_t)world * (uintptr_t)op->count * ls_dtype_bytes(op->dtype);
    uintptr_t input = (uintptr_t)op->input, buffer = (uintptr_t)op->buffer;
    if (bytes > 0 && (op->input == NULL || (input < buffer + bytes && buffer < input + bytes))) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s '%s': input and buffer overlap; it works out of place only", kind,
                           label);
    }
    return LS_OK;
}
