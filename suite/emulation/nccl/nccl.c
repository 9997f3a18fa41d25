#include "nccl_emulated.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "suite/emulation/runtime/emulate.h"

enum { HOLDS = 3, CALLS_MAX = 256 };
static const uint64_t MAGIC = UINT64_C(0x4c434e5f4c504d45);

static struct {
    pthread_mutex_t lock;
    char words[512];
    uint64_t host; /* as in NCCL, determined once per process */
    bool host_known;
    ncclComm_t first;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A group call of this thread. */
static _Thread_local struct {
    int depth, count;
    ncclResult_t error;
    ncclComm_t comm[CALLS_MAX];
    cudaStream_t stream[CALLS_MAX];
    call call[CALLS_MAX];
} group;

ncclResult_t nccl_warn(ncclResult_t result, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&all.lock);
    vsnprintf(all.words, sizeof all.words, format, list);
    pthread_mutex_unlock(&all.lock);
    va_end(list);
    return result;
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return all.words;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
    return (int)result >= 0 && result < ncclNumResults ? text[result] : "unknown result code";
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    return net_create(id->internal, sizeof id->internal) ? ncclSuccess : ncclSystemError;
}

/* The one line of NCCL's log that is read here; the network is LS_EMULATED_NETWORK, or sockets. */
static void log_network(void)
{
    const char *debug = getenv("NCCL_DEBUG"), *path = getenv("NCCL_DEBUG_FILE");
    const char *network = getenv("LS_EMULATED_NETWORK");
    FILE *to = debug != NULL && path != NULL ? fopen(path, "a") : NULL;
    if (to != NULL) {
        fprintf(to, "host:1:1 [0] NCCL INFO Using network %s\n",
                network != NULL ? network : "Socket");
        fclose(to);
    }
}

/* ---- a communicator's life ------------------------------------------------------------------- */

static uint64_t host_hash(void)
{
    pthread_mutex_lock(&all.lock);
    if (!all.host_known) {
        char name[256] = "";
        const char *given = getenv("NCCL_HOSTID");
        if (given == NULL) {
            (void)gethostname(name, sizeof name - 1);
            given = name;
        }
        all.host = UINT64_C(14695981039346656037);
        for (const char *at = given; *at != '\0'; at++) {
            all.host = (all.host ^ (unsigned char)*at) * UINT64_C(1099511628211);
        }
        all.host_known = true;
    }
    pthread_mutex_unlock(&all.lock);
    return all.host;
}

static bool known(ncclComm_t comm)
{
    return comm != NULL && comm->magic == MAGIC;
}

/* Checks common to most calls. */
static ncclResult_t ready(ncclComm_t comm, const char *name)
{
    if (!known(comm)) {
        return nccl_warn(ncclInvalidArgument, "%s : not a communicator", name);
    }
    if (atomic_load(&comm->error) != ncclSuccess) {
        return (ncclResult_t)atomic_load(&comm->error);
    }
    if (comm->hold > 0 || !comm->joined) {
        return nccl_warn(
            ncclInvalidArgument,
            "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    return ncclSuccess;
}

static ncclResult_t join(ncclComm_t comm)
{
    if (!net_all_joined(&comm->net)) {
        return ncclInProgress;
    }
    const net_member *mine = net_member_of(&comm->net, comm->rank);
    for (int rank = 0; rank < comm->world; rank++) {
        const net_member *other = net_member_of(&comm->net, rank);
        if (rank != comm->rank && other->host == mine->host &&
            strcmp(other->device, mine->device) == 0) {
            return nccl_warn(ncclInvalidUsage,
                             "Duplicate GPU detected : rank %d and rank %d both on CUDA "
                             "device %s",
                             comm->rank, rank, mine->device);
        }
    }
    comm->joined = true;
    return ncclSuccess;
}

/* Progress in the background, one step per query. */
static ncclResult_t go_on(ncclComm_t comm)
{
    if (comm->hold > 0 && --comm->hold > 0) {
        return ncclInProgress;
    }
    while (comm->waiting != NULL) {
        batch *now = comm->waiting;
        comm->waiting = now->next;
        now->next = comm->all;
        comm->all = now;
        if (work_enqueue(now) != cudaSuccess) {
            return ncclUnhandledCudaError;
        }
    }
    if (!comm->joined) {
        return join(comm);
    }
    if (comm->finalizing && !net_all_final(&comm->net)) {
        return ncclInProgress;
    }
    return ncclSuccess;
}

static ncclResult_t state_of(ncclComm_t comm)
{
    if (atomic_load(&comm->error) == ncclSuccess) {
        ncclResult_t now = go_on(comm);
        if (now != ncclSuccess) {
            if (now != ncclInProgress) {
                atomic_store(&comm->error, (int)now);
            }
            return now;
        }
        emulate_progress();
    }
    return (ncclResult_t)atomic_load(&comm->error);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    if (!known(comm) || out == NULL) {
        return nccl_warn(ncclInvalidArgument, "ncclGetAsyncError : not a communicator");
    }
    *out = state_of(comm);
    return ncclSuccess;
}

/* The end of a call: at once, or in the background. */
static ncclResult_t answer(ncclComm_t comm)
{
    comm->hold = HOLDS;
    ncclResult_t state = ncclInProgress;
    while (comm->blocking && state == ncclInProgress) {
        state = state_of(comm);
    }
    return state;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (out == NULL || world < 1 || world > NET_RANKS_MAX || rank < 0 || rank >= world ||
        group.depth > 0) {
        return nccl_warn(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, world);
    }
    if (config != NULL &&
        (config->magic != 0xcafebeef || config->size != sizeof *config ||
         (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs > config->maxCTAs))) {
        return nccl_warn(ncclInvalidArgument, "ncclConfig_t argument not initialized via "
                                              "NCCL_CONFIG_INITIALIZER, or wrong");
    }
    if (memchr(id.internal, '\0', sizeof id.internal) == NULL ||
        strncmp(id.internal, "/proc/", 6) != 0) {
        return nccl_warn(ncclInvalidArgument, "not a unique id");
    }
    log_network();
    net_member me = {.host = host_hash()};
    ncclComm_t comm = calloc(1, sizeof *comm);
    comm->magic = MAGIC;
    comm->rank = rank;
    comm->world = world;
    comm->blocking = config == NULL || config->blocking != 0;
    if (cudaGetDevice(&comm->device) != cudaSuccess ||
        cudaDeviceGetPCIBusId(me.device, (int)sizeof me.device, comm->device) != cudaSuccess) {
        free(comm);
        return nccl_warn(ncclUnhandledCudaError, "no device");
    }
    if (getenv("LS_EMULATED_NO_SHM") != NULL) {
        free(comm);
        return nccl_warn(ncclSystemError, "Error while creating shared memory segment: %s",
                         strerror(ENOSPC));
    }
    if (!net_join(&comm->net, id.internal, rank, world, &me)) {
        free(comm);
        return nccl_warn(ncclSystemError, "rank %d cannot join: %s", rank, strerror(errno));
    }
    pthread_mutex_lock(&all.lock); /* graphs may hold it for ever: it is not freed */
    comm->next = all.first;
    all.first = comm;
    pthread_mutex_unlock(&all.lock);
    *out = comm;
    return answer(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t state = ready(comm, "ncclCommFinalize");
    if (state != ncclSuccess) {
        return state;
    }
    if (group.depth > 0) {
        emulate_abort("ncclCommFinalize: a ncclGroupEnd is missing");
    }
    if (comm->finalizing) {
        return nccl_warn(ncclInvalidArgument, "ncclCommFinalize: called twice");
    }
    comm->finalizing = true;
    net_set_state(&comm->net, NET_FINAL);
    return answer(comm);
}

static void end(ncclComm_t comm, net_state state)
{
    net_set_state(&comm->net, state);
    comm->magic = 0;
    net_leave(&comm->net);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t state = ready(comm, "ncclCommDestroy");
    if (state != ncclSuccess) {
        return state;
    }
    if (group.depth > 0) {
        emulate_abort("ncclCommDestroy: a ncclGroupEnd is missing");
    }
    if (comm->registered != NULL) {
        emulate_abort("ncclCommDestroy: %zu bytes are still registered", comm->registered->bytes);
    }
    end(comm, NET_LEFT);
    return ncclSuccess;
}

/* From any thread. Work on the device ends at its next step. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!known(comm)) {
        return nccl_warn(ncclInvalidArgument, "ncclCommAbort : not a communicator");
    }
    atomic_store(&comm->aborted, true);
    emulate_progress();
    net_set_state(&comm->net, NET_ABORTED);
    comm->magic = 0;
    return ncclSuccess;
}

/* ---- calls ----------------------------------------------------------------------------------- */

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

/* The calls on one communicator become one batch. */
static ncclResult_t close_group(void)
{
    ncclResult_t result = group.error;
    for (int i = 0; i < group.count && result == ncclSuccess; i++) {
        ncclComm_t comm = group.comm[i];
        if (comm == NULL) {
            continue; /* already in a batch */
        }
        batch *one = calloc(1, sizeof *one + (size_t)group.count * sizeof *one->call);
        one->comm = comm;
        one->stream = group.stream[i];
        for (int k = i; k < group.count; k++) {
            if (group.comm[k] == comm) {
                if (group.stream[k] != one->stream) {
                    emulate_abort("a group with calls on two streams of one communicator");
                }
                one->call[one->count++] = group.call[k];
                group.comm[k] = NULL;
            }
        }
        comm->waiting = one;
        ncclResult_t state = answer(comm);
        result = state != ncclSuccess ? state : result;
    }
    group.count = 0;
    group.error = ncclSuccess;
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0) {
        return nccl_warn(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    }
    return --group.depth > 0 ? ncclSuccess : close_group();
}

static bool overlap(const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

/* Buffers must be in device memory and aligned to the type, and separate or in place as nccl.h
 * defines. */
static ncclResult_t check_buffers(ncclComm_t comm, const call *c)
{
    size_t type = sum_type_bytes(c->type), part = (size_t)c->count * type;
    size_t world = (size_t)comm->world, rank = (size_t)comm->rank;
    bool root = comm->rank == c->root;
    bool reads = (c->kind != CALL_BROADCAST || root) && c->kind != CALL_RECEIVE;
    bool writes = (c->kind != CALL_REDUCE || root) && c->kind != CALL_SEND;
    size_t in = reads ? (c->kind == CALL_REDUCE_SCATTER ? world * part : part) : 0;
    size_t out = writes ? (c->kind == CALL_ALL_GATHER ? world * part : part) : 0;
    if (c->root < 0 || c->root >= comm->world || type == 0 || c->redop > ncclMin) {
        return nccl_warn(ncclInvalidArgument, "invalid root %d, type %d or operator %d", c->root,
                         (int)c->type, (int)c->redop);
    }
    if ((in > 0 && (!emulate_is_device(c->input, in) || (uintptr_t)c->input % type != 0)) ||
        (out > 0 && (!emulate_is_device(c->output, out) || (uintptr_t)c->output % type != 0))) {
        return nccl_warn(ncclInvalidArgument,
                         "sendbuff %p of %zu or recvbuff %p of %zu bytes is not a valid "
                         "pointer",
                         (const void *)c->input, in, (void *)c->output, out);
    }
    const unsigned char *place = c->kind == CALL_ALL_GATHER       ? c->output + rank * part
                                 : c->kind == CALL_REDUCE_SCATTER ? c->output - rank * part
                                                                  : c->output;
    if (c->input != place && overlap(c->input, in, c->output, out)) {
        return nccl_warn(ncclInvalidUsage, "sendbuff and recvbuff overlap");
    }
    return ncclSuccess;
}

static ncclResult_t issue(const char *name, ncclComm_t comm, cudaStream_t stream, call c)
{
    (void)ncclGroupStart();
    ncclResult_t state = ready(comm, name);
    if (state == ncclSuccess && group.count == CALLS_MAX) {
        state = nccl_warn(ncclInvalidUsage, "more than %d calls in a group", CALLS_MAX);
    }
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (state == ncclSuccess && emulate_unrecorded("nccl") &&
        cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
        capture != cudaStreamCaptureStatusNone) {
        state = nccl_warn(ncclUnhandledCudaError, "%s : cannot be captured", name);
        atomic_store(&comm->error, (int)state);
    }
    if (state == ncclSuccess && comm->finalizing) {
        state = nccl_warn(ncclInvalidUsage, "%s : the communicator is finalized", name);
    }
    if (state == ncclSuccess) {
        state = check_buffers(comm, &c);
    }
    bool pair = c.kind == CALL_SEND || c.kind == CALL_RECEIVE;
    if (state == ncclSuccess && pair && c.root == comm->rank) {
        state = nccl_warn(ncclInvalidUsage, "%s : to itself", name);
    }
    if (state != ncclSuccess) {
        group.error = state;
    } else if (c.count > 0 || pair) { /* collectives without elements are dropped */
        group.comm[group.count] = comm;
        group.stream[group.count] = stream;
        group.call[group.count++] = c;
    }
    ncclResult_t ended = ncclGroupEnd();
    return state != ncclSuccess ? state : ended;
}

ncclResult_t ncclAllReduce(const void *input, void *output, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return issue("AllReduce", comm, stream,
                 (call){CALL_ALL_REDUCE, input, output, count, type, 0, op});
}

ncclResult_t ncclReduceScatter(const void *input, void *output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return issue("ReduceScatter", comm, stream,
                 (call){CALL_REDUCE_SCATTER, input, output, count, type, 0, op});
}

ncclResult_t ncclReduce(const void *input, void *output, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return issue("Reduce", comm, stream, (call){CALL_REDUCE, input, output, count, type, root, op});
}

ncclResult_t ncclAllGather(const void *input, void *output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return issue("AllGather", comm, stream,
                 (call){CALL_ALL_GATHER, input, output, count, type, 0, ncclSum});
}

ncclResult_t ncclBroadcast(const void *input, void *output, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return issue("Broadcast", comm, stream,
                 (call){CALL_BROADCAST, input, output, count, type, root, ncclSum});
}

ncclResult_t ncclSend(const void *input, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return issue("Send", comm, stream, (call){CALL_SEND, input, NULL, count, type, peer, ncclSum});
}

ncclResult_t ncclRecv(void *output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return issue("Recv", comm, stream,
                 (call){CALL_RECEIVE, NULL, output, count, type, peer, ncclSum});
}

/* ---- memory ---------------------------------------------------------------------------------- */

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    return cudaMalloc(out, bytes) == cudaSuccess
               ? ncclSuccess
               : nccl_warn(ncclUnhandledCudaError, "no device memory");
}

ncclResult_t ncclMemFree(void *memory)
{
    pthread_mutex_lock(&all.lock);
    for (ncclComm_t comm = all.first; comm != NULL; comm = comm->next) {
        for (registration *r = comm->registered; r != NULL && comm->magic == MAGIC; r = r->next) {
            if (r->memory == memory) {
                emulate_abort("ncclMemFree: the memory is still registered");
            }
        }
    }
    pthread_mutex_unlock(&all.lock);
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    const char *wanted = getenv("NCCL_LOCAL_REGISTER");
    ncclResult_t state = ready(comm, "ncclCommRegister");
    *handle = NULL;
    if (state != ncclSuccess) {
        return state;
    }
    if (!emulate_is_device(memory, bytes)) {
        return nccl_warn(ncclInvalidArgument, "ncclCommRegister: not device memory");
    }
    if (wanted != NULL && strcmp(wanted, "0") == 0) {
        return ncclSuccess; /* skipped: no handle */
    }
    registration *one = calloc(1, sizeof *one);
    *one = (registration){memory, bytes, comm->registered};
    comm->registered = one;
    *handle = one;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    for (registration **r = &comm->registered; *r != NULL; r = &(*r)->next) {
        if (*r == handle) {
            registration *one = *r;
            *r = one->next;
            free(one);
            return ncclSuccess;
        }
    }
    return nccl_warn(ncclInvalidArgument, "ncclCommDeregister: not a registration");
}
