#include "world.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"

enum { DEFAULT_PORT = 29500 /* torchrun's and torch.distributed's default */ };

/* The variables in which one launcher passes a process its rank. */
typedef struct names {
    const char *launcher;
    const char *rank, *world, *local_rank, *local_world, *node;
} names;

static const char *value_of(const char *name)
{
    const char *value = name == NULL ? NULL : getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* A whole decimal number in low..high; absent: fallback. */
static ls_status number_of(const char *name, int low, int high, int fallback, int *out)
{
    const char *text = value_of(name);
    if (text == NULL) {
        *out = fallback;
        return LS_OK;
    }
    int64_t value = 0;
    if (!ls_text_integer(text, low, high, &value)) {
        return ls_log_fail(LS_ERR_USAGE, "%s=%s: expected a whole number from %d to %d", name, text,
                           low, high);
    }
    *out = (int)value;
    return LS_OK;
}

static ls_status copy_text(const char *name, const char *text, char *to, size_t to_bytes)
{
    if (snprintf(to, to_bytes, "%s", text) >= (int)to_bytes) {
        return ls_log_fail(LS_ERR_USAGE, "%s is longer than %zu bytes", name, to_bytes - 1);
    }
    return LS_OK;
}

void ls_world_first_host(const char *list, char *host, int host_bytes)
{
    const char *bracket = strchr(list, '[');
    const char *comma = strchr(list, ',');
    if (bracket == NULL || (comma != NULL && comma < bracket)) {
        size_t length = comma == NULL ? strlen(list) : (size_t)(comma - list);
        snprintf(host, (size_t)host_bytes, "%.*s", (int)length, list);
        return;
    }
    size_t digits = strcspn(bracket + 1, "-,]");
    snprintf(host, (size_t)host_bytes, "%.*s%.*s", (int)(bracket - list), list, (int)digits,
             bracket + 1);
}

static ls_status read_place(const names *from, ls_world *out)
{
    if (value_of(from->rank) == NULL || value_of(from->world) == NULL) {
        bool has_rank = value_of(from->rank) != NULL;
        return ls_log_fail(LS_ERR_USAGE, "%s is set but %s is not: a rank needs both",
                           has_rank ? from->rank : from->world,
                           has_rank ? from->world : from->rank);
    }
    LS_TRY(number_of(from->world, 1, INT_MAX / 2, 1, &out->world));
    LS_TRY(number_of(from->rank, 0, INT_MAX / 2, 0, &out->rank));
    if (out->rank >= out->world) {
        return ls_log_fail(LS_ERR_USAGE, "%s=%d is outside the world: %s=%d allows 0 to %d",
                           from->rank, out->rank, from->world, out->world, out->world - 1);
    }
    LS_TRY(number_of(from->local_world, 1, out->world, out->world, &out->local_world));
    LS_TRY(number_of(from->local_rank, 0, INT_MAX / 2, out->rank % out->local_world,
                     &out->local_rank));
    if (out->local_rank >= out->local_world) {
        return ls_log_fail(LS_ERR_USAGE, "%s=%d is outside its machine: %s=%d allows 0 to %d",
                           from->local_rank, out->local_rank, from->local_world, out->local_world,
                           out->local_world - 1);
    }
    bool simulated = value_of("LS_NODE_ADDR") != NULL; /* the launcher plays nodes on one machine */
    out->machine_rank = simulated ? out->rank : out->local_rank;
    out->machine_world = simulated ? out->world : out->local_world;
    return number_of(from->node, 0, INT_MAX / 2, out->rank / out->local_world, &out->node);
}

/* Where rank 0's store listens. torchrun always says; mpirun and srun leave it to the user. */
static ls_status read_meeting_place(ls_world *out)
{
    bool torchrun = strcmp(out->launcher, "torchrun") == 0;
    const char *address = value_of("MASTER_ADDR");
    char host[256];
    if (address == NULL && strcmp(out->launcher, "srun") == 0 &&
        value_of("SLURM_STEP_NODELIST") != NULL) {
        ls_world_first_host(value_of("SLURM_STEP_NODELIST"), host, sizeof host);
        address = host;
    } else if (address == NULL && !torchrun && out->local_world == out->world) {
        address = "127.0.0.1";
    }
    if (address == NULL) {
        return ls_log_fail(LS_ERR_USAGE,
                           "MASTER_ADDR is not set: %d ranks need the address of rank 0",
                           out->world);
    }
    LS_TRY(copy_text("MASTER_ADDR", address, out->address, sizeof out->address));
    if (value_of("MASTER_PORT") == NULL && torchrun) {
        return ls_log_fail(LS_ERR_USAGE,
                           "MASTER_PORT is not set: %d ranks need the port of rank 0's store",
                           out->world);
    }
    if (value_of("MASTER_PORT") == NULL) {
        ls_log_note("MASTER_PORT is not set, taking %d", DEFAULT_PORT);
    }
    LS_TRY(number_of("MASTER_PORT", 1, 65535, DEFAULT_PORT, &out->port));
    const char *agent = value_of("TORCHELASTIC_USE_AGENT_STORE");
    out->probe = agent != NULL && strcmp(agent, "True") == 0;
    const char *id_names[] = {"LS_TOKEN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"};
    for (size_t i = 0; i < sizeof id_names / sizeof id_names[0]; i++) {
        if (value_of(id_names[i]) != NULL) {
            return copy_text(id_names[i], value_of(id_names[i]), out->run_id, sizeof out->run_id);
        }
    }
    if (out->rank == 0) {
        ls_log_note("no LS_TOKEN, TORCHELASTIC_RUN_ID or SLURM_JOB_ID: the store takes any peer");
    }
    return LS_OK;
}

ls_status ls_world_read(ls_world *out)
{
    /* SLURM_PROCID alone is also set in a batch script's shell, where no step of several tasks
     * runs. */
    static const names launchers[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"},
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID"},
    };
    ls_world world = {.world = 1, .local_world = 1, .machine_world = 1, .launcher = "none"};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const names *from = &launchers[i];
        bool srun = strcmp(from->launcher, "srun") == 0;
        bool found = srun ? value_of(from->rank) != NULL && value_of(from->world) != NULL
                          : value_of(from->rank) != NULL || value_of(from->world) != NULL;
        if (found) {
            world.launcher = from->launcher;
            LS_TRY(read_place(from, &world));
            break;
        }
    }
    if (world.world > 1) {
        LS_TRY(read_meeting_place(&world));
    }
    int share = 0;
    LS_TRY(number_of("LS_OVERSUBSCRIBE", 0, 1, 0, &share));
    world.oversubscribe = share == 1;
    if (value_of("LS_RUN_DIR") != NULL) {
        LS_TRY(
            copy_text("LS_RUN_DIR", value_of("LS_RUN_DIR"), world.run_dir, sizeof world.run_dir));
    }
    *out = world;
    return LS_OK;
}
