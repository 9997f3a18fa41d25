/* Opening distributes the unique id through the store and starts a non-blocking communicator with a
 * deadline; closing finalizes it, then destroys it. */
#include "nccl_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"

/* Time for an aborted communicator's threads and kernels to end. Together with the rest of a failed
 * rank's shutdown it is less than the launcher's grace of 5 s. */
enum { END_S = 2 };

void ls_nccl_describe(char *text, int bytes)
{
    int version = 0;
    Dl_info where = {0};
    void *symbol = NULL;
    ncclResult_t (*function)(int *) = ncclGetVersion;
    (void)ncclGetVersion(&version);
    memcpy(&symbol, &function, sizeof symbol); /* ISO C has no cast from a function to void * */
    (void)dladdr(symbol, &where);
    snprintf(text, (size_t)bytes, "NCCL %d.%d.%d (built with %d.%d.%d), %s", version / 10000,
             version / 100 % 100, version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
             where.dli_fname != NULL ? where.dli_fname : "path unknown");
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Rank 0 creates the id, the others read it from the store under the communicator's name. */
static ls_status exchange_id(ls_comm *comm, ncclUniqueId *id)
{
    char key[80];
    snprintf(key, sizeof key, "nccl/%s/id", comm->name);
    if (comm->rank == 0) {
        LS_TRY(ls_nccl_check(comm, ncclGetUniqueId(id), "ncclGetUniqueId"));
        return comm->store == NULL ? LS_OK : ls_store_set(comm->store, key, id, sizeof *id);
    }
    void *value = NULL;
    size_t bytes = 0;
    LS_TRY(ls_store_get(comm->store, key, comm->open_s, &value, &bytes));
    if (bytes != sizeof *id) {
        ls_log_error("nccl '%s': the id of rank 0 has %zu bytes, expected %zu", comm->name, bytes,
                     sizeof *id);
        free(value);
        return LS_ERR_INFRA;
    }
    memcpy(id, value, sizeof *id);
    free(value);
    return LS_OK;
}

static ls_status connect_ranks(ls_comm *comm, const ls_comm_options *options, int max_ctas)
{
    ncclUniqueId id;
    bool aborted = false;
    LS_TRY(exchange_id(comm, &id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const char *blocking = getenv("LS_NCCL_BLOCKING");
    config.blocking = blocking != NULL && strcmp(blocking, "1") == 0;
    config.commName = comm->name;
    if (max_ctas > 0) {
        config.maxCTAs = max_ctas;
        config.minCTAs = options->deterministic ? max_ctas : 1;
    }
    int64_t begun_ns = ls_clock_ns();
    ncclResult_t result =
        ncclCommInitRankConfig(&comm->native, comm->world, id, comm->rank, &config);
    if (result == ncclSuccess || result == ncclInProgress) {
        result = ls_nccl_settle(comm, begun_ns + (int64_t)(comm->open_s * 1e9), comm->world > 1,
                                &aborted);
    }
    if (aborted) {
        return comm->failed;
    }
    if (result == ncclInProgress) {
        return ls_log_fail(LS_ERR_RENDEZVOUS,
                           "nccl '%s': rank %d of %d found not all of its peers in %g s: %s",
                           comm->name, comm->rank, comm->world, comm->open_s, ls_nccl_last_words());
    }
    ls_status status = ls_nccl_check(comm, result, "ncclCommInitRankConfig");
    return status == LS_OK ? LS_OK : ls_nccl_blame(comm, result);
}

static ls_status create_stream(ls_comm *comm)
{
    int least = 0, greatest = 0;
    void *token = NULL;
    /* higher than the computing stream's, because other work waits for reductions */
    LS_NCCL_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    LS_NCCL_CUDA(cudaStreamCreateWithPriority(&comm->stream, cudaStreamNonBlocking, greatest));
    LS_NCCL_CUDA(cudaEventCreateWithFlags(&comm->order, cudaEventDisableTiming));
    LS_TRY(comm->backend_api->memory_alloc(comm->backend, sizeof *comm->token, "barrier", &token));
    comm->token = token;
    return LS_OK;
}

static void init_lock(ls_comm *comm)
{
    pthread_condattr_t monotonic;
    (void)pthread_mutex_init(&comm->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&comm->abort_ended, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

ls_status ls_nccl_open(const ls_comm_options *options, ls_comm **out)
{
    if (options->backend_api == NULL || options->backend_api->stream_native == NULL) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "nccl '%s': works in device memory only (--device cuda; engine of the CPU: "
            "gloo)",
            options->name);
    }
    LS_ASSERT(options->world == 1 || options->store != NULL);
    ls_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "nccl '%s': no memory", options->name);
    }
    init_lock(comm);
    comm->rank = options->rank;
    comm->world = options->world;
    comm->store = options->store;
    comm->timeout_s = options->timeout_s;
    comm->open_s = options->open_s > 0 ? options->open_s : options->timeout_s;
    comm->backend_api = options->backend_api;
    comm->backend = options->backend;
    comm->running_end = &comm->running;
    snprintf(comm->name, sizeof comm->name, "%s", options->name);
    int max_ctas = 0;
    ls_status status = ls_nccl_check_cuda(cudaGetDevice(&comm->device), "cudaGetDevice");
    status = status == LS_OK ? ls_nccl_topology(comm, options, &max_ctas) : status;
    status = status == LS_OK ? create_stream(comm) : status;
    status = status == LS_OK ? connect_ranks(comm, options, max_ctas) : status;
    status = status == LS_OK ? ls_nccl_network_check(comm) : status;
    if (status != LS_OK) {
        comm->failed = status;
        ls_nccl_close(comm);
        return status;
    }
    comm->other = options->other;
    if (comm->other != NULL) {
        comm->other->other = comm;
    }
    *out = comm;
    return LS_OK;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Waits until the stream is empty. */
static ls_status drain(ls_comm *comm)
{
    int64_t begun_ns = ls_clock_ns();
    for (;;) {
        cudaError_t answer = cudaStreamQuery(comm->stream);
        if (answer != cudaErrorNotReady) {
            return ls_nccl_check_cuda(answer, "cudaStreamQuery");
        }
        (void)cudaGetLastError(); /* cleared: "not ready" must not surface as an error of a later
                                     call */
        if (comm->failed == LS_OK) {
            LS_TRY(ls_nccl_poll(comm));
        } else if (ls_clock_ms_between(begun_ns, ls_clock_ns()) > END_S * 1e3) {
            return LS_ERR_PEER_LOST;
        }
        ls_nccl_pause(begun_ns);
    }
}

/* Regular end: all ranks call this after their last operation. */
static ls_status finalize(ls_comm *comm)
{
    bool aborted = false;
    LS_TRY(drain(comm));
    ls_nccl_memory_deregister(comm);
    int64_t begun_ns = ls_clock_ns();
    ncclResult_t result = ncclCommFinalize(comm->native);
    if (result == ncclSuccess || result == ncclInProgress) {
        result = ls_nccl_settle(comm, begun_ns + (int64_t)(comm->timeout_s * 1e9), false, &aborted);
    }
    if (aborted) {
        return LS_ERR_PEER_LOST;
    }
    if (result == ncclInProgress) {
        ls_log_warn("nccl '%s': not finalized in %g s, aborted", comm->name, comm->timeout_s);
        return LS_ERR_PEER_LOST;
    }
    LS_TRY(ls_nccl_check(comm, result, "ncclCommFinalize"));
    LS_TRY(ls_nccl_check(comm, ncclCommDestroy(comm->native), "ncclCommDestroy"));
    comm->native = NULL;
    return LS_OK;
}

/* Waits up to END_S for the aborting thread; true once it has ended. */
static bool abort_ends(ls_comm *comm)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_S;
    pthread_mutex_lock(&comm->lock);
    int waited = 0;
    while (!comm->abort_over && waited == 0) {
        waited = pthread_cond_timedwait(&comm->abort_ended, &comm->lock, &until);
    }
    bool over = comm->abort_over;
    pthread_mutex_unlock(&comm->lock);
    return over;
}

static void free_slots(ls_nccl_slot *slot)
{
    while (slot != NULL) {
        ls_nccl_slot *next = slot->next;
        (void)cudaEventDestroy(slot->event);
        free(slot);
        slot = next;
    }
}

void ls_nccl_close(ls_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    if (comm->other != NULL) {
        comm->other->other = NULL;
    }
    if (comm->native != NULL && comm->failed == LS_OK && !comm->aborted) {
        comm->failed = finalize(comm);
    }
    if (comm->native != NULL) {
        ls_nccl_abort(comm);
        if (!abort_ends(comm)) {
            /* its thread still uses comm; the process is about to end */
            ls_log_warn("nccl '%s': not aborted in %d s, left as it is", comm->name, END_S);
            return;
        }
    }
    if (comm->stream != NULL) {
        (void)drain(comm);
        (void)cudaStreamDestroy(comm->stream);
    }
    if (comm->order != NULL) {
        (void)cudaEventDestroy(comm->order);
    }
    if (comm->token != NULL) {
        comm->backend_api->memory_free(comm->backend, comm->token);
    }
    free_slots(comm->running);
    free_slots(comm->spare);
    while (comm->registered != NULL) { /* the communicator that knew them is gone */
        ls_nccl_registration *next = comm->registered->next;
        free(comm->registered);
        comm->registered = next;
    }
    (void)pthread_cond_destroy(&comm->abort_ended);
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm);
}
