/* Finds ranks that share a device, before the first call of NCCL, and sets the variables that NCCL
 * reads then. A variable set by the user is left alone, except the host id of a rank that shares
 * its device: NCCL refuses ranks with the same host id and the same device ("Duplicate GPU
 * detected"). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <dirent.h>

#include "nccl_internal.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"

enum {
    SHARED_CTAS = 2, /* thread blocks of a rank that shares its device: the kernels of all ranks
                        must fit on it at once, because each waits for the others */
    PINNED_CTAS =
        16, /* in deterministic mode: the number that 8 GPUs of a node need to saturate NVLink */
    DEVICE_BYTES = 96,
};

/* "<boot id> <PCI address>": equal text means the same device of the same machine, by the
 * comparison of NCCL up to 2.29, for which parts of a GPU (MIG) have one address too. */
static ls_status describe_device(const ls_comm *comm, char device[DEVICE_BYTES])
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
    snprintf(device, DEVICE_BYTES, "%s %s", boot, address);
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

static neighbours count_neighbours(const ls_comm *comm, char (*device)[DEVICE_BYTES])
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

static ls_status gather_devices(ls_comm *comm, char (*device)[DEVICE_BYTES])
{
    char key[80];
    LS_TRY(describe_device(comm, device[comm->rank]));
    if (comm->world == 1) {
        return LS_OK;
    }
    snprintf(key, sizeof key, "nccl/%s/device/%d", comm->name, comm->rank);
    LS_TRY(ls_store_set(comm->store, key, device[comm->rank], strlen(device[comm->rank])));
    for (int rank = 0; rank < comm->world; rank++) {
        void *value = NULL;
        size_t bytes = 0;
        snprintf(key, sizeof key, "nccl/%s/device/%d", comm->name, rank);
        LS_TRY(ls_store_get(comm->store, key, comm->open_s, &value, &bytes));
        snprintf(device[rank], DEVICE_BYTES, "%s", (const char *)value);
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

ls_status ls_nccl_topology(ls_comm *comm, const ls_comm_options *options, int *max_ctas)
{
    char(*device)[DEVICE_BYTES] = calloc((size_t)comm->world, sizeof *device);
    if (device == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "nccl '%s': no memory for %d ranks", comm->name,
                           comm->world);
    }
    ls_status status = gather_devices(comm, device);
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
        ls_nccl_network_log(comm);
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

/* The network that NCCL uses between hosts. No call returns it, so it is read from NCCL's own log
 * ("NCCL INFO Using network IB"), which goes to a file of the run's folder unless the
 * user has asked for NCCL's log elsewhere. */

static bool asked_for(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

void ls_nccl_network_log(ls_comm *comm)
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

ls_status ls_nccl_network_check(ls_comm *comm)
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
