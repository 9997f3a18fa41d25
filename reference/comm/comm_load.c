#include "comm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"

ls_status ls_comm_load(const char *name, const ls_comm_api **out)
{
    if (strcmp(name, "self") == 0) {
        *out = ls_comm_load_self();
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

/* ---- the engine of a world of one ------------------------------------------------------------ */

/* In a world of one every reduction has one term, so an operation is at most a copy, complete when
 * `begin` returns. The host never touches a device buffer: if input and buffer differ, the backend
 * copies. */

struct ls_comm {
    uint64_t number;
    const ls_backend_api *backend_api;
    ls_backend *backend;
    atomic_bool aborted; /* abort may come from any thread */
};

static void describe(char *text, int bytes)
{
    snprintf(text, (size_t)bytes, "self (a world of one, built in)");
}

static ls_status open_self(const ls_comm_options *options, ls_comm **out)
{
    if (options->world != 1 || options->rank != 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "engine 'self' is for a world of one, not for rank %d of %d (engines for more:"
            " gloo, nccl)",
            options->rank, options->world);
    }
    ls_comm *comm = calloc(1, sizeof *comm);
    LS_MEMORY(comm != NULL);
    comm->backend_api = options->backend_api;
    comm->backend = options->backend;
    *out = comm;
    return LS_OK;
}

/* Copies through the host if there is a backend, whose memory the host may not be able to read. */
static ls_status copy(ls_comm *comm, const ls_comm_op *op, ls_event *after)
{
    size_t bytes = (size_t)op->count * ls_dtype_bytes(op->dtype);
    if (op->input == NULL || op->input == op->buffer || bytes == 0) {
        return LS_OK;
    }
    if (comm->backend_api == NULL) {
        memmove(op->buffer, op->input, bytes);
        return LS_OK;
    }
    const ls_backend_api *api = comm->backend_api;
    ls_stream *stream = NULL;
    void *host = malloc(bytes);
    LS_TRY_MEMORY(host != NULL, "%zu bytes of '%s'", bytes, op->label != NULL ? op->label : "");
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, api->stream_create(comm->backend, &stream), free_host);
    LS_TRY_GOTO(status, after != NULL ? api->event_wait(after) : LS_OK, destroy);
    LS_TRY_GOTO(status, api->copy_out(comm->backend, stream, host, op->input, (int64_t)bytes),
                destroy);
    LS_TRY_GOTO(status, api->copy_in(comm->backend, stream, op->buffer, host, (int64_t)bytes),
                destroy);
    status = api->stream_wait(stream);
destroy:
    api->stream_destroy(stream);
free_host:
    free(host);
    return status;
}

static ls_status begin(ls_comm *comm, const ls_comm_op *op, ls_event *after, ls_comm_handle *handle)
{
    if (comm->aborted) {
        return LS_ERR_PEER_LOST;
    }
    LS_TRY(ls_comm_check(op, 1));
    if (op->kind == LS_COMM_SEND || op->kind == LS_COMM_RECV) {
        return ls_log_fail(LS_ERR_USAGE, "%s '%s': a world of one has no peer",
                           ls_comm_kind_name(op->kind), op->label != NULL ? op->label : "");
    }
    int64_t now_ns = ls_clock_ns();
    *handle = (ls_comm_handle){
        .op = *op, .number = comm->number++, .begun_ns = now_ns, .started_ns = now_ns};
    LS_TRY(copy(comm, op, after));
    handle->finished_ns = ls_clock_ns();
    return LS_OK;
}

static ls_status wait_self(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream)
{
    (void)handle;
    (void)stream;
    return comm->aborted ? LS_ERR_PEER_LOST : LS_OK;
}

static ls_status poll_self(ls_comm *comm)
{
    return comm->aborted ? LS_ERR_PEER_LOST : LS_OK;
}

static void abort_self(ls_comm *comm)
{
    comm->aborted = true;
}

static void close_self(ls_comm *comm)
{
    free(comm);
}

const ls_comm_api *ls_comm_load_self(void)
{
    static const ls_comm_api table = {
        .abi = LS_COMM_ABI,
        .name = "self",
        .describe = describe,
        .open = open_self,
        .begin = begin,
        .wait = wait_self,
        .poll = poll_self,
        .abort = abort_self,
        .close = close_self,
    };
    return &table;
}
