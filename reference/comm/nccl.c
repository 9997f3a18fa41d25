/* The GPU engine: NCCL under our contract. `begin` enqueues on the communicator's own stream behind
 * what the caller's event stands for; `wait` makes the caller's stream wait, never the host. So a
 * step with its reductions can be recorded into a graph, and a lost peer shows as a device that
 * never finishes: whoever waits for the device asks ls_nccl_poll, which looks at NCCL's own error
 * and at the oldest operation's deadline. */
#include "nccl.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/cuda/check.h"

/* ---- the communicator's state ---------------------------------------------------------------- */

void ls_nccl_pause(int64_t begun_ns)
{
    enum { EAGER_NS = 2000000, NAP_NS = 50000 };
    if (ls_clock_ns() - begun_ns < EAGER_NS) {
        sched_yield();
        return;
    }
    const struct timespec nap = {0, NAP_NS};
    (void)ppoll(NULL, 0, &nap, NULL); /* what we wait for has no descriptor */
}

ncclResult_t ls_nccl_state(ls_comm *comm, bool *aborted)
{
    ncclResult_t state = ncclInvalidUsage;
    pthread_mutex_lock(&comm->lock);
    *aborted = comm->aborted;
    if (!comm->aborted) {
        ncclResult_t asked = ncclCommGetAsyncError(comm->native, &state);
        state = asked != ncclSuccess ? asked : state;
    }
    pthread_mutex_unlock(&comm->lock);
    return state;
}

ncclResult_t ls_nccl_settle(ls_comm *comm, int64_t deadline_ns, bool polls, bool *aborted)
{
    int64_t begun_ns = ls_clock_ns();
    ncclResult_t state = ls_nccl_state(comm, aborted);
    while (state == ncclInProgress && ls_clock_ns() < deadline_ns) {
        if (polls && ls_nccl_poll_peers(comm, begun_ns) != LS_OK) {
            *aborted = true;
            return ncclRemoteError;
        }
        ls_nccl_pause(begun_ns);
        state = ls_nccl_state(comm, aborted);
    }
    return state;
}

static void *abort_native(void *context)
{
    ls_comm *comm = context;
    (void)cudaSetDevice(comm->device);
    (void)ncclCommAbort(comm->native);
    pthread_mutex_lock(&comm->lock);
    comm->abort_over = true;
    pthread_cond_broadcast(&comm->abort_ended);
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* On a thread of its own: ncclCommAbort tells the kernels to leave and then waits, also for graphs
 * that hold operations of this communicator to be destroyed, which is up to our caller. */
void ls_nccl_abort(ls_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    if (!comm->aborted && comm->native != NULL) {
        comm->aborted = true;
        if (pthread_create(&comm->abort_thread, NULL, abort_native, comm) != 0) {
            ls_log_warn("nccl '%s': no thread to abort it", comm->name);
            comm->abort_over = true;
        } else {
            (void)pthread_detach(comm->abort_thread);
        }
    }
    pthread_mutex_unlock(&comm->lock);
}

/* NCCL does not say who did not come. So at a deadline each rank leaves a mark in the store, gives
 * the others, whose clocks began a little later, a moment to do the same, and names those that have
 * not: "; not heard of: rank 1, rank 5". */
static void name_silent(ls_comm *comm, char *text, size_t text_bytes)
{
    enum { MOST = 16 };
    static const int64_t longest_ns = 2000000000;
    int64_t moment_ns = (int64_t)(comm->timeout_s * 0.25e9); /* of the deadline's own size */
    char key[96];
    int silent[MOST], count = 0;
    int64_t begun_ns = ls_clock_ns(), marks = 0;
    text[0] = '\0';
    snprintf(key, sizeof key, "nccl/%s/late/%d", comm->name, comm->rank);
    if (comm->store == NULL || ls_store_add(comm->store, key, 1, &marks) != LS_OK) {
        return;
    }
    do {
        count = 0;
        for (int rank = 0; rank < comm->world && count < MOST; rank++) {
            snprintf(key, sizeof key, "nccl/%s/late/%d", comm->name, rank);
            if (ls_store_add(comm->store, key, 0, &marks) != LS_OK) {
                return;
            }
            silent[count] = rank;
            count += marks == 0;
        }
        ls_nccl_pause(begun_ns);
    } while (count > 0 &&
             ls_clock_ns() - begun_ns < (moment_ns < longest_ns ? moment_ns : longest_ns));
    for (int i = 0, used = 0; i < count && used < (int)text_bytes; i++) {
        used += snprintf(text + used, text_bytes - (size_t)used, "%s%d",
                         i == 0 ? "; not heard of: rank " : ", rank ", silent[i]);
    }
}

/* Says once what has failed, and aborts. slot NULL: between operations. */
static ls_status fail(ls_comm *comm, const ls_nccl_slot *slot, ls_status status, const char *why)
{
    if (comm->failed != LS_OK) {
        return comm->failed;
    }
    comm->failed = status;
    const char *words = ls_nccl_last_words();
    const char *colon = words[0] != '\0' ? ": " : "";
    if (slot == NULL && comm->number == 0) {
        ls_log_error("nccl '%s': failed before its first operation: %s%s%s", comm->name, why, colon,
                     words);
    } else if (slot == NULL) {
        int64_t since_ns = comm->waiting_ns != 0 ? comm->waiting_ns : ls_clock_ns();
        ls_log_error("nccl '%s': failed in a recorded step or between operations, after %" PRIu64
                     " of them and %.3g s of waiting: %s%s%s",
                     comm->name, comm->number, ls_clock_ms_between(since_ns, ls_clock_ns()) * 1e-3,
                     why, colon, words);
    } else {
        ls_log_error("nccl '%s': %s, operation %" PRIu64 " '%s' of %" PRId64
                     " bytes, failed after %.3g s: %s%s%s",
                     comm->name, ls_comm_kind_name(slot->kind), slot->number, slot->label,
                     slot->bytes, ls_clock_ms_between(slot->begun_ns, ls_clock_ns()) * 1e-3, why,
                     colon, words);
    }
    ls_nccl_abort(comm);
    return status;
}

/* ---- operations that run --------------------------------------------------------------------- */

static void release(ls_comm *comm, ls_nccl_slot *slot)
{
    slot->next = comm->spare;
    comm->spare = slot;
}

static ls_status take_slot(ls_comm *comm, const ls_comm_op *op, ls_nccl_slot **out)
{
    ls_nccl_slot *slot = comm->spare;
    if (slot != NULL) {
        comm->spare = slot->next;
    } else {
        slot = calloc(1, sizeof *slot);
        if (slot == NULL) {
            ls_log_error("nccl '%s': no memory for an operation", comm->name);
            return LS_ERR_INFRA;
        }
        ls_status status =
            ls_nccl_check_cuda(cudaEventCreateWithFlags(&slot->event, cudaEventDisableTiming),
                               "cudaEventCreateWithFlags");
        if (status != LS_OK) {
            free(slot);
            return status;
        }
    }
    cudaEvent_t event = slot->event;
    *slot = (ls_nccl_slot){.event = event,
                           .kind = op->kind,
                           .number = comm->number++,
                           .bytes = op->count * (int64_t)ls_dtype_bytes(op->dtype),
                           .begun_ns = ls_clock_ns()};
    snprintf(slot->label, sizeof slot->label, "%s", op->label != NULL ? op->label : "");
    *out = slot;
    return LS_OK;
}

/* Asks for an event while any stream of the process may be captured: a query is forbidden then
 * unless this thread says that it knows what it does. */
static cudaError_t query(cudaEvent_t event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t answer = cudaEventQuery(event);
    if (answer == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* not an error: nobody shall find it as one */
    }
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return answer;
}

/* Takes the operations that have ended off the list. */
static ls_status reap(ls_comm *comm)
{
    while (comm->running != NULL) {
        ls_nccl_slot *oldest = comm->running;
        cudaError_t answer = query(oldest->event);
        if (answer == cudaErrorNotReady) {
            break;
        }
        if (answer != cudaSuccess) {
            return fail(comm, oldest, ls_cuda_is_fatal(answer) ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA,
                        cudaGetErrorString(answer));
        }
        oldest->ended = true;
        comm->running_count--;
        comm->running = oldest->next;
        if (comm->running == NULL) {
            comm->running_end = &comm->running;
        }
        if (oldest->waited) {
            release(comm, oldest);
        }
    }
    return LS_OK;
}

ls_status ls_nccl_poll_peers(ls_comm *comm, int64_t begun_ns)
{
    enum { POLL_NS = 500000000 };
    int64_t now_ns = ls_clock_ns();
    int rank = -1;
    if (comm->failed != LS_OK || comm->store == NULL || now_ns - begun_ns < POLL_NS ||
        now_ns - comm->peers_polled_ns < POLL_NS) {
        return comm->failed;
    }
    comm->peers_polled_ns = now_ns;
    ls_status status = ls_store_who_left(comm->store, &rank);
    char why[64] = "rank 0 has left";
    if (status == LS_OK && rank >= 0) {
        snprintf(why, sizeof why, "rank %d of the job has left", rank);
        status = LS_ERR_PEER_LOST;
    }
    return status == LS_OK ? LS_OK : fail(comm, comm->running, status, why);
}

static ls_status fail_late(ls_comm *comm, const ls_nccl_slot *slot, const char *what)
{
    char why[224], silent[128];
    name_silent(comm, silent, sizeof silent);
    snprintf(why, sizeof why, "%s by the deadline (--timeout)%s", what, silent);
    return fail(comm, slot, LS_ERR_PEER_LOST, why);
}

ls_status ls_nccl_poll(ls_comm *comm)
{
    bool aborted = false;
    if (comm->failed != LS_OK) {
        return comm->failed;
    }
    ncclResult_t state = ls_nccl_state(comm, &aborted);
    if (aborted) {
        return LS_ERR_PEER_LOST;
    }
    if (ls_nccl_status_of(state) != LS_OK) {
        return fail(comm, comm->running, ls_nccl_status_of(state), ncclGetErrorString(state));
    }
    LS_TRY(reap(comm));
    const ls_nccl_slot *oldest = comm->running;
    if (oldest != NULL &&
        ls_clock_ms_between(oldest->begun_ns, ls_clock_ns()) > comm->timeout_s * 1e3) {
        return fail_late(comm, oldest, "not done");
    }
    return oldest != NULL ? ls_nccl_poll_peers(comm, oldest->begun_ns) : LS_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

static ls_status enqueue(ls_comm *comm, const ls_comm_op *op, ls_nccl_slot *slot)
{
    bool aborted = false;
    pthread_mutex_lock(&comm->lock);
    aborted = comm->aborted;
    ncclResult_t result = aborted ? ncclSuccess : ls_nccl_issue(comm, op);
    pthread_mutex_unlock(&comm->lock);
    if (!aborted && result == ncclInProgress) {
        int64_t deadline_ns = slot->begun_ns + (int64_t)(comm->timeout_s * 1e9);
        result = ls_nccl_settle(comm, deadline_ns, true, &aborted);
    }
    if (aborted) {
        return comm->failed != LS_OK ? comm->failed : LS_ERR_PEER_LOST;
    }
    if (result == ncclInProgress) {
        return fail_late(comm, slot, "not enqueued");
    }
    result = result == ncclSuccess ? ls_nccl_issue_rest(comm, op) : result;
    if (result != ncclSuccess) {
        return fail(comm, slot, ls_nccl_blame(comm, result), ncclGetErrorString(result));
    }
    return LS_OK;
}

/* A device's queue holds about a thousand launches, and one that finds it full waits inside the
 * driver, where nobody looks after the others. Batch norms that share statistics have a few
 * launches for each operation, so the host stays that much nearer to the device. */
static ls_status stay_near(ls_comm *comm)
{
    enum { AHEAD_MOST = 64 };
    int64_t begun_ns = ls_clock_ns();
    LS_TRY(ls_nccl_poll(comm));
    while (comm->running_count >= AHEAD_MOST) {
        ls_nccl_pause(begun_ns);
        LS_TRY(ls_nccl_poll(comm));
    }
    return LS_OK;
}

static ls_status begin(ls_comm *comm, const ls_comm_op *op, ls_event *after, ls_comm_handle *handle)
{
    LS_ASSERT(op->count >= 0 && op->root >= 0 && op->root < comm->world);
    LS_TRY(stay_near(comm));
    if (after != NULL) {
        LS_NCCL_CUDA(cudaStreamWaitEvent(comm->stream, comm->backend_api->event_native(after), 0));
    }
    ls_nccl_slot *slot = NULL;
    LS_TRY(take_slot(comm, op, &slot));
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    ls_status status =
        ls_nccl_check_cuda(cudaStreamIsCapturing(comm->stream, &capture), "cudaStreamIsCapturing");
    slot->captured = capture != cudaStreamCaptureStatusNone;
    if (status == LS_OK) {
        status = enqueue(comm, op, slot);
    }
    if (status == LS_OK) {
        status = ls_nccl_check_cuda(cudaEventRecord(slot->event, comm->stream), "cudaEventRecord");
    }
    if (status != LS_OK) {
        release(comm, slot);
        return status;
    }
    if (!slot->captured) {
        *comm->running_end = slot;
        comm->running_end = &slot->next;
        comm->running_count++;
    }
    *handle = (ls_comm_handle){
        .op = *op, .number = slot->number, .begun_ns = slot->begun_ns, .engine = slot};
    return LS_OK;
}

/* The host waits for an operation, with an eye on what may have become of the others. */
static ls_status wait_on_host(ls_comm *comm, const ls_nccl_slot *slot)
{
    int64_t begun_ns = ls_clock_ns();
    LS_ASSERT(!slot->captured);
    for (;;) {
        LS_TRY(ls_nccl_poll(comm));
        if (slot->ended) {
            return LS_OK;
        }
        ls_nccl_pause(begun_ns);
    }
}

/* Whether the operation went with a recording that has ended before it was waited for: a whole one
 * waits for all that it has begun. */
static ls_status is_dropped(const ls_comm *comm, const ls_nccl_slot *slot, bool *dropped)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    LS_NCCL_CUDA(slot->captured ? cudaStreamIsCapturing(comm->stream, &capture) : cudaSuccess);
    *dropped = slot->captured && capture == cudaStreamCaptureStatusNone;
    return LS_OK;
}

static ls_status wait_nccl(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream)
{
    ls_nccl_slot *slot = handle->engine;
    LS_ASSERT(slot != NULL);
    bool dropped = false;
    ls_status status = comm->failed;
    if (status == LS_OK) {
        status = is_dropped(comm, slot, &dropped);
    }
    if (status == LS_OK && stream != NULL && !dropped) {
        cudaStream_t native = comm->backend_api->stream_native(stream);
        status =
            ls_nccl_check_cuda(cudaStreamWaitEvent(native, slot->event, 0), "cudaStreamWaitEvent");
    }
    if (status == LS_OK && !dropped && (stream == NULL || handle->op.kind == LS_COMM_BARRIER)) {
        status = wait_on_host(comm, slot);
    }
    handle->engine = NULL;
    handle->finished_ns = ls_clock_ns();
    slot->waited = true;
    if (slot->captured || slot->ended) {
        release(comm, slot);
    }
    return status;
}

static ls_status poll_peers(ls_comm *comm, int64_t begun_ns)
{
    comm->waiting_ns = begun_ns;
    ls_status status = ls_nccl_poll(comm);
    status = status == LS_OK ? ls_nccl_poll_peers(comm, begun_ns) : status;
    if (status == LS_OK && ls_clock_ms_between(begun_ns, ls_clock_ns()) > comm->timeout_s * 1e3) {
        status = fail_late(comm, NULL, "the device's work, or an answer, has not come");
    }
    comm->waiting_ns = 0;
    return status;
}

static ls_status begin_after(ls_comm *comm, ls_stream *stream)
{
    LS_NCCL_CUDA(cudaEventRecord(comm->order, comm->backend_api->stream_native(stream)));
    LS_NCCL_CUDA(cudaStreamWaitEvent(comm->stream, comm->order, 0));
    return LS_OK;
}

const ls_comm_api *ls_comm_entry(void);
const ls_comm_api *ls_comm_entry(void)
{
    static const ls_comm_api table = {
        .abi = LS_COMM_ABI,
        .name = "nccl",
        .describe = ls_nccl_describe,
        .open = ls_nccl_open,
        .begin = begin,
        .wait = wait_nccl,
        .poll = ls_nccl_poll,
        .abort = ls_nccl_abort,
        .close = ls_nccl_close,
        .begin_after = begin_after,
        .poll_peers = poll_peers,
        .memory_alloc = ls_nccl_memory_alloc,
        .memory_free = ls_nccl_memory_free,
    };
    return &table;
}
