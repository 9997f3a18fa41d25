#include "nccl_internal.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/cuda/check.h"

/* ---- errors ---------------------------------------------------------------------------------- */

ls_status ls_nccl_status_of(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
    case ncclInProgress:
        return LS_OK;
    case ncclUnhandledCudaError: /* includes missing memory and refused calls */
        return ls_cuda_is_lost() ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
    case ncclSystemError:
    case ncclInternalError:
    case ncclRemoteError:
        return LS_ERR_PEER_LOST;
    default:
        return LS_ERR_INFRA;
    }
}

const char *ls_nccl_last_words(void)
{
    const char *text = ncclGetLastError(NULL); /* unused: it has no communicator (api/comms) */
    return text != NULL ? text : "";
}

ls_status ls_nccl_check(const ls_comm *comm, ncclResult_t result, const char *call)
{
    if (ls_nccl_status_of(result) == LS_OK) {
        return LS_OK;
    }
    const char *words = ls_nccl_last_words();
    ls_log_error("nccl '%s': %s: %s%s%s", comm != NULL ? comm->name : "", call,
                 ncclGetErrorString(result), words[0] != '\0' ? ": " : "", words);
    return ls_nccl_status_of(result);
}

ls_status ls_nccl_check_cuda(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) {
        return LS_OK;
    }
    ls_log_error("nccl: %s: %s", call, cudaGetErrorString(error));
    return ls_cuda_is_fatal(error) ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}

/* ---- the communicator's state ---------------------------------------------------------------- */

void ls_nccl_pause(int64_t begun_ns)
{
    enum { EAGER_NS = 2000000, NAP_NS = 50000 };
    if (ls_clock_ns() - begun_ns < EAGER_NS) {
        sched_yield();
        return;
    }
    const struct timespec nap = {0, NAP_NS};
    (void)ppoll(NULL, 0, &nap, NULL); /* there is no descriptor to wait for */
}

static ncclResult_t state_of(ls_comm *comm, bool *aborted)
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
    ncclResult_t state = state_of(comm, aborted);
    while (state == ncclInProgress && ls_clock_ns() < deadline_ns) {
        if (polls && ls_nccl_poll_peers(comm, begun_ns) != LS_OK) {
            *aborted = true;
            return ncclRemoteError;
        }
        ls_nccl_pause(begun_ns);
        state = state_of(comm, aborted);
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

/* Runs on its own thread: ncclCommAbort stops the kernels and then waits until all graphs that hold
 * operations of this communicator have been destroyed, which the caller does. */
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

/* NCCL does not report which rank is missing. So at a deadline each rank adds a mark to the store,
 * waits a moment for ranks whose clocks started a little later, and names those without a mark: ";
 * not heard of: rank 1, rank 5". */
static void name_silent(ls_comm *comm, char *text, size_t text_bytes)
{
    enum { MOST = 16 };
    static const int64_t longest_ns = 2000000000;
    int64_t moment_ns = (int64_t)(comm->timeout_s * 0.25e9); /* in proportion to the deadline */
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

ls_status ls_nccl_fail(ls_comm *comm, const ls_nccl_slot *slot, ls_status status, const char *why)
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

void ls_nccl_release(ls_comm *comm, ls_nccl_slot *slot)
{
    slot->next = comm->spare;
    comm->spare = slot;
}

/* cudaEventQuery while a stream of the process may be capturing, which is forbidden unless this
 * thread is in relaxed mode. */
static cudaError_t query(cudaEvent_t event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t answer = cudaEventQuery(event);
    if (answer == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* cleared: "not ready" must not surface as an error of a later
                                     call */
    }
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return answer;
}

static ls_status check_state(ls_comm *comm)
{
    bool aborted = false;
    ncclResult_t state = state_of(comm, &aborted);
    if (aborted) {
        return LS_ERR_PEER_LOST;
    }
    ls_status status = ls_nccl_status_of(state);
    return status == LS_OK ? LS_OK
                           : ls_nccl_fail(comm, comm->running, status, ncclGetErrorString(state));
}

/* Removes finished operations from the list. */
static ls_status reap(ls_comm *comm)
{
    while (comm->running != NULL) {
        ls_nccl_slot *oldest = comm->running;
        cudaError_t answer = query(oldest->event);
        if (answer == cudaErrorNotReady) {
            break;
        }
        if (answer != cudaSuccess) {
            return ls_nccl_fail(comm, oldest,
                                ls_cuda_is_fatal(answer) ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA,
                                cudaGetErrorString(answer));
        }
        LS_TRY(check_state(comm)); /* only now: an operation that fails ends, too */
        oldest->ended = true;
        comm->running_count--;
        comm->running = oldest->next;
        if (comm->running == NULL) {
            comm->running_end = &comm->running;
        }
        if (oldest->waited) {
            ls_nccl_release(comm, oldest);
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
    return status == LS_OK ? LS_OK : ls_nccl_fail(comm, comm->running, status, why);
}

ls_status ls_nccl_fail_late(ls_comm *comm, const ls_nccl_slot *slot, const char *what)
{
    char why[224], silent[128];
    name_silent(comm, silent, sizeof silent);
    snprintf(why, sizeof why, "%s by the deadline (--timeout)%s", what, silent);
    return ls_nccl_fail(comm, slot, LS_ERR_PEER_LOST, why);
}

ls_status ls_nccl_poll(ls_comm *comm)
{
    if (comm->failed != LS_OK) {
        return comm->failed;
    }
    LS_TRY(check_state(comm));
    LS_TRY(reap(comm));
    const ls_nccl_slot *oldest = comm->running;
    if (oldest != NULL &&
        ls_clock_ms_between(oldest->begun_ns, ls_clock_ns()) > comm->timeout_s * 1e3) {
        return ls_nccl_fail_late(comm, oldest, "not done");
    }
    return oldest != NULL ? ls_nccl_poll_peers(comm, oldest->begun_ns) : LS_OK;
}

ls_status ls_nccl_blame(const ls_comm *comm, ncclResult_t result)
{
    static const int64_t moment_ns = 1000000000;
    ls_status status = ls_nccl_status_of(result);
    if (status != LS_ERR_PEER_LOST || result == ncclRemoteError) {
        return status;
    }
    int rank = -1;
    int64_t begun_ns = ls_clock_ns();
    while (comm->store != NULL && ls_clock_ns() - begun_ns < moment_ns) {
        if (ls_store_who_left(comm->store, &rank) != LS_OK || rank >= 0) {
            return LS_ERR_PEER_LOST;
        }
        ls_nccl_pause(begun_ns);
    }
    return LS_ERR_INFRA;
}
