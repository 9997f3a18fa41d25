/* Opening sets what NCCL reads at its first call, distributes the unique id through the store and
 * starts a non-blocking communicator with a deadline; closing finalizes it, then destroys it.
 * Memory for the communicator. */
#include "nccl_internal.h"

#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

/* ---- the network between hosts --------------------------------------------------------------- */

/* The network that NCCL uses between hosts. No call returns it, so it is read from NCCL's own log
 * ("NCCL INFO Using network IB"), which goes to a file of the run's folder unless the
 * user has asked for NCCL's log elsewhere. */

static bool asked_for(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

/* Before NCCL's first call: has it write what it finds to <LS_RUN_DIR>/nccl.<name>.rank<k>.log. */
static void network_log(ls_comm *comm)
{
    const char *folder = getenv("LS_RUN_DIR");
    if (folder == NULL || strchr(folder, '%') != NULL || /* NCCL would replace it */
        asked_for("NCCL_DEBUG") || asked_for("NCCL_DEBUG_FILE")) {
        return;
    }
    ls_text_put(comm->log, sizeof comm->log, "%s/nccl.%s.rank%d.log", folder, comm->name,
                comm->rank);
    (void)setenv("NCCL_DEBUG", "INFO", 1);
    (void)setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 0);
    (void)setenv("NCCL_DEBUG_FILE", comm->log, 1);
}

/* The last "Using network NAME" of the log; false: none. */
static bool read_network(const char *log, char *name, size_t bytes)
{
    static const char before[] = "Using network ";
    char *text = ls_text_read(log);
    bool found = false;
    for (const char *at = text; at != NULL && (at = strstr(at, before)) != NULL;) {
        at += sizeof before - 1;
        ls_text_put(name, bytes, "%.*s", (int)strcspn(at, " \n"), at);
        found = true;
    }
    free(text);
    return found;
}

/* The first port of a host adapter that is up: "mlx5_0, port 1". */
static bool find_adapter(char *name, size_t bytes)
{
    LS_TEXT(folder, 400, "%s/class/infiniband", ls_path_sysfs());
    DIR *adapters = opendir(folder);
    bool found = false;
    const struct dirent *entry;
    while (adapters != NULL && !found && (entry = readdir(adapters)) != NULL) {
        for (int port = 1; port <= 2 && !found && entry->d_name[0] != '.'; port++) {
            LS_TEXT(path, 800, "%s/%s/ports/%d/state", folder, entry->d_name, port);
            char *state = access(path, R_OK) == 0 ? ls_text_read(path) : NULL;
            found = state != NULL && strstr(state, "ACTIVE") != NULL;
            free(state);
            if (found) {
                ls_text_put(name, bytes, "%s, port %d", entry->d_name, port);
            }
        }
    }
    if (adapters != NULL) {
        closedir(adapters);
    }
    return found;
}

/* LS_ERR_INFRA if it uses sockets although an InfiniBand or RoCE port is up, and neither NCCL_NET
 * nor NCCL_IB_DISABLE is set. Reads the log; without one LS_OK. */
static ls_status network_check(ls_comm *comm)
{
    char adapter[300];
    if (comm->log[0] == '\0' || !read_network(comm->log, comm->network, sizeof comm->network) ||
        strcmp(comm->network, "Socket") != 0 || asked_for("NCCL_NET") ||
        asked_for("NCCL_IB_DISABLE") || !find_adapter(adapter, sizeof adapter)) {
        return LS_OK;
    }
    return ls_log_fail(LS_ERR_INFRA,
                       "nccl '%s': rank %d uses TCP sockets between hosts, but InfiniBand or RoCE "
                       "is up (%s): see %s for NCCL's reason; NCCL_NET=Socket allows sockets",
                       comm->name, comm->rank, adapter, comm->log);
}

const char *ls_nccl_network(const ls_comm *comm)
{
    return comm->network[0] != '\0' ? comm->network : NULL;
}

/* ---- who shares a device --------------------------------------------------------------------- */

/* Finds ranks that share a device, before the first call of NCCL, and sets the variables that NCCL
 * reads then. A variable set by the user is left alone, except the host id of a rank that shares
 * its device: NCCL refuses ranks with the same host id and the same device ("Duplicate GPU
 * detected"). */

enum {
    SHARED_CTAS = 2, /* thread blocks of a rank that shares its device: the kernels of all ranks
                        must fit on it at once, because each waits for the others */
    PINNED_CTAS =
        16, /* in deterministic mode: the number that 8 GPUs of a node need to saturate NVLink */
    TEXT_BYTES = 96,
};

/* "<boot id> <PCI address>": equal text means the same device of the same machine, by the
 * comparison of NCCL up to 2.29, for which parts of a GPU (MIG) have one address too. */
static ls_status describe_device(const ls_comm *comm, char device[TEXT_BYTES])
{
    char boot[40] = "unknown", address[32];
    LS_NCCL_CUDA(cudaDeviceGetPCIBusId(address, (int)sizeof address, comm->device));
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        if (fscanf(file, "%39s", boot) != 1) {
            snprintf(boot, sizeof boot, "unknown");
        }
        fclose(file);
    }
    snprintf(device, TEXT_BYTES, "%s %s", boot, address);
    return LS_OK;
}

typedef struct neighbours {
    int same_machine; /* ranks with my boot id */
    int devices;      /* different devices among those */
    bool any_shared;  /* any two ranks of the job share one */
} neighbours;

static bool same_machine(const char *a, const char *b)
{
    size_t length = strcspn(a, " ");
    return strncmp(a, b, length + 1) == 0;
}

static neighbours count_neighbours(const ls_comm *comm, char (*device)[TEXT_BYTES])
{
    neighbours out = {0};
    const char *mine = device[comm->rank];
    for (int i = 0; i < comm->world; i++) {
        bool first = true;
        for (int k = 0; k < i && first; k++) {
            first = strcmp(device[k], device[i]) != 0;
        }
        bool here = same_machine(mine, device[i]);
        out.any_shared = out.any_shared || !first;
        out.same_machine += here;
        out.devices += here && first;
    }
    return out;
}

/* Publishes this rank's text under nccl/<name>/<what>/<rank> and reads those of all. */
static ls_status exchange_texts(ls_comm *comm, const char *what, double limit_s,
                                char (*text)[TEXT_BYTES])
{
    for (int rank = -1; comm->world > 1 && rank < comm->world; rank++) {
        int of = rank < 0 ? comm->rank : rank;
        void *value = NULL;
        size_t bytes = 0;
        LS_TEXT(key, 96, "nccl/%s/%s/%d", comm->name, what, of);
        if (rank < 0) {
            LS_TRY(ls_store_set(comm->store, key, text[of], strlen(text[of])));
            continue;
        }
        LS_TRY(ls_store_get(comm->store, key, limit_s, &value, &bytes));
        snprintf(text[of], TEXT_BYTES, "%s", bytes > 0 ? (const char *)value : "");
        free(value);
    }
    return LS_OK;
}

/* Ranks on one device communicate over sockets, as if each had its own machine; nothing else works
 * there. The id is unique on the machine and equal for all communicators of this process. */
static void set_shared(const neighbours *who, int world)
{
    char id[64], host[40] = "host";
    const char *node =
        getenv("LS_NODE_ADDR"); /* address of a simulated node, which may have its own network */
    (void)gethostname(host, sizeof host - 1);
    snprintf(id, sizeof id, "lockstep-%s-%ld", host, (long)getpid());
    (void)setenv("NCCL_HOSTID", id, 1);
    (void)setenv("NCCL_NET", "Socket", 0);
    (void)setenv("NCCL_MNNVL_ENABLE", "0", 0);
    (void)setenv("NCCL_MAX_CTAS", "2", 0);
    if (who->same_machine == world && (node == NULL || strncmp(node, "127.", 4) == 0)) {
        (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    }
    int version = 0;
    (void)ncclGetVersion(&version);
    if (version >= NCCL_VERSION(2, 30, 0)) {
        (void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    }
}

/* A rank that uses a network has a pool of operations in shared memory: 2048 for each of 72 local
 * ranks, 232 bytes each (proxy.h of 2.28). A container often has only 64 MiB. */
static void warn_of_shared_memory(const ls_comm *comm, const neighbours *who)
{
    enum { POOL_MIB = 33 };
    struct statvfs shm;
    if (comm->rank != 0 || statvfs("/dev/shm", &shm) != 0) {
        return;
    }
    uint64_t free_mib = (uint64_t)shm.f_bavail * shm.f_frsize >> 20;
    uint64_t wanted_mib = (uint64_t)who->same_machine * POOL_MIB;
    if (free_mib < wanted_mib) {
        ls_log_warn("nccl '%s': /dev/shm has %" PRIu64 " MiB free, and %d ranks over a network "
                    "want about %" PRIu64 " (docker: --shm-size)",
                    comm->name, free_mib, who->same_machine, wanted_mib);
    }
}

/* For ranks on several hosts, by NCCL's definition of a host: a receiver whose buffers are
 * registered with the network may hang after small operations on the same connections, such as the
 * last, small bucket of a step (NVIDIA/nccl issue 2389; fixed in 2.32's first update). */
static void set_between_hosts(void)
{
    int version = 0;
    (void)ncclGetVersion(&version);
    if (version < NCCL_VERSION(2, 33, 0)) {
        (void)setenv("NCCL_LOCAL_REGISTER", "0", 0);
        (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
    }
}

/* Sets the environment variables that NCCL reads at its first call. *max_ctas: the most thread
 * blocks an operation may have, 0 for no limit. LS_ERR_INFRA if ranks share a device without
 * options->oversubscribe. */
static ls_status set_topology(ls_comm *comm, const ls_comm_options *options, int *max_ctas)
{
    char(*device)[TEXT_BYTES] = calloc((size_t)comm->world, sizeof *device);
    LS_MEMORY(device != NULL);
    ls_status status = describe_device(comm, device[comm->rank]);
    LS_THEN(status, exchange_texts(comm, "device", comm->open_s, device));
    neighbours who = status == LS_OK ? count_neighbours(comm, device) : (neighbours){0};
    free(device);
    LS_TRY(status);
    if (who.any_shared && !options->oversubscribe) {
        return ls_log_fail(LS_ERR_INFRA,
                           "nccl '%s': ranks share a device: %d %s on this machine for %d ranks "
                           "(LS_OVERSUBSCRIBE=1 allows that)",
                           comm->name, who.devices, who.devices == 1 ? "GPU" : "GPUs",
                           who.same_machine);
    }
    *max_ctas = options->deterministic ? PINNED_CTAS : 0;
    bool apart = who.same_machine < comm->world || getenv("NCCL_HOSTID") != NULL;
    if (who.any_shared) {
        set_shared(&who, comm->world);
        *max_ctas = SHARED_CTAS;
    } else if (apart) {
        set_between_hosts();
        network_log(comm);
    }
    if (who.any_shared || apart) {
        warn_of_shared_memory(comm, &who);
    }
    if (options->deterministic) {
        (void)setenv("NCCL_ALGO", "Ring", 0);
        (void)setenv("NCCL_PROTO", "Simple", 0);
    }
    return LS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Buffers from ncclMemAlloc, registered with the communicator so that reductions run without NCCL's
 * own copy (its user guide, "User buffer registration"). Registered and other buffers must not be
 * mixed in one operation: a registration is kept only if all ranks succeeded. */

/* Returns NULL once registered, else the reason. */
static const char *register_memory(ls_comm *comm, void *memory, int64_t bytes)
{
    ls_nccl_registration *entry = calloc(1, sizeof *entry);
    LS_MEMORY(entry != NULL);
    ncclResult_t result = ncclCommRegister(comm->native, memory, (size_t)bytes, &entry->handle);
    if (result != ncclSuccess ||
        entry->handle == NULL) { /* registration is switched off: success without a handle */
        free(entry);
        return result != ncclSuccess ? ncclGetErrorString(result) : "NCCL skipped it";
    }
    entry->memory = memory;
    entry->next = comm->registered;
    comm->registered = entry;
    return NULL;
}

static void deregister_newest(ls_comm *comm)
{
    ls_nccl_registration *entry = comm->registered;
    comm->registered = entry->next;
    (void)ls_nccl_check(comm, ncclCommDeregister(comm->native, entry->handle),
                        "ncclCommDeregister");
    free(entry);
}

static void deregister_all(ls_comm *comm)
{
    while (comm->registered != NULL) {
        deregister_newest(comm);
    }
}

/* Exchanges all ranks' answers: *refused is the first rank that refused, or -1. */
static ls_status agree(ls_comm *comm, const char *mine, int *refused)
{
    char(*answer)[TEXT_BYTES] = calloc((size_t)comm->world, sizeof *answer);
    LS_MEMORY(answer != NULL);
    LS_TEXT(what, 32, "memory/%d", comm->allocations++);
    ls_text_put(answer[comm->rank], TEXT_BYTES, "%s", mine);
    ls_status status = exchange_texts(comm, what, comm->timeout_s, answer);
    *refused = -1;
    for (int rank = comm->world - 1; status == LS_OK && rank >= 0; rank--) {
        *refused = answer[rank][0] != '\0' ? rank : *refused;
    }
    free(answer);
    return status;
}

/* cudaMemset does not block the host, and our streams do not wait for the default one, so the host
 * waits until the memory is zero. */
static cudaError_t clear(void *memory, int64_t bytes)
{
    cudaError_t error = cudaMemsetAsync(memory, 0, (size_t)bytes, NULL);
    return error != cudaSuccess ? error : cudaStreamSynchronize(NULL);
}

ls_status ls_nccl_memory_alloc(ls_comm *comm, int64_t bytes, const char *purpose, void **out)
{
    void *memory = NULL;
    int refused = -1;
    const char *mine = "";
    LS_TRY(ls_nccl_poll(comm));
    ncclResult_t result = ncclMemAlloc(&memory, (size_t)bytes);
    if (result != ncclSuccess) {
        mine = ncclGetErrorString(result);
        memory = NULL;
        (void)cudaGetLastError(); /* reported here, so it must not surface at the next launch */
    }
    cudaError_t zeroed = memory == NULL ? cudaSuccess : clear(memory, bytes);
    if (zeroed != cudaSuccess) {
        (void)ncclMemFree(memory);
        return ls_nccl_check_cuda(zeroed, "clear fresh memory");
    }
    if (memory != NULL) {
        const char *refusal = register_memory(comm, memory, bytes);
        mine = refusal != NULL ? refusal : "";
    }
    bool registered = mine[0] == '\0';
    ls_status status = agree(comm, mine, &refused);
    if (refused >= 0 && comm->rank == refused) {
        ls_log_note("nccl '%s': %lld bytes of %s are not registered: %s", comm->name,
                    (long long)bytes, purpose, mine);
    }
    if (registered && (refused >= 0 || status != LS_OK)) {
        deregister_newest(comm);
    }
    if (status != LS_OK) {
        ls_nccl_memory_free(memory);
        return status;
    }
    if (memory == NULL) {
        return LS_ERR_UNSUPPORTED;
    }
    *out = memory;
    return LS_OK;
}

void ls_nccl_memory_free(void *memory)
{
    if (memory != NULL) {
        ncclResult_t result = ncclMemFree(memory);
        if (result != ncclSuccess) {
            ls_log_warn("nccl: ncclMemFree: %s", ncclGetErrorString(result));
        }
    }
}

/* ---- describing ------------------------------------------------------------------------------ */

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
    LS_MEMORY(comm != NULL);
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
    LS_THEN(status, set_topology(comm, options, &max_ctas));
    LS_THEN(status, create_stream(comm));
    LS_THEN(status, connect_ranks(comm, options, max_ctas));
    LS_THEN(status, network_check(comm));
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
    deregister_all(comm);
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
