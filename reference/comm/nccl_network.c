/* The network that NCCL uses between hosts. No call returns it, so it is read from NCCL's own log
 * ("NCCL INFO Using network IB"), which goes to a file of the run's folder unless the
 * user has asked for NCCL's log elsewhere. */
#include "nccl_parts.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/path.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

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
