#include "world.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "harness/hosts/launchers.h"
#include "kernels/core/text.h"

enum { DEFAULT_PORT = 29500 /* torchrun's and torch.distributed's default */ };

/* A whole decimal number in low..high; absent: fallback. */
static ls_status number_of(const char *name, int low, int high, int fallback, int *out)
{
    const char *text = ls_launchers_value(name);
    if (text == NULL) {
        *out = fallback;
        return LS_OK;
    }
    int64_t value = 0;
    LS_REFUSE_IF(!ls_text_integer(text, low, high, &value),
                 "%s=%s: expected a whole number from %d to %d", name, text, low, high);
    *out = (int)value;
    return LS_OK;
}

static ls_status copy_text(const char *name, const char *text, char *to, size_t to_bytes)
{
    LS_REFUSE_IF(snprintf(to, to_bytes, "%s", text) >= (int)to_bytes, "%s is longer than %zu bytes",
                 name, to_bytes - 1);
    return LS_OK;
}

/* First host of a Slurm node list ("gpu[03-07,9],login" -> "gpu03"). */
static void first_host(const char *list, char *host, size_t bytes)
{
    const char *bracket = strchr(list, '[');
    const char *comma = strchr(list, ',');
    if (bracket == NULL || (comma != NULL && comma < bracket)) {
        size_t length = comma == NULL ? strlen(list) : (size_t)(comma - list);
        ls_text_put(host, bytes, "%.*s", (int)length, list);
        return;
    }
    size_t digits = strcspn(bracket + 1, "-,]");
    ls_text_put(host, bytes, "%.*s%.*s", (int)(bracket - list), list, (int)digits, bracket + 1);
}

/* Whether a launcher has set its variables. Slurm's rank 0 alone is a batch script's shell, in
 * which no step of several tasks runs; PMI_SIZE belongs to two launchers. */
static bool is_found(const ls_launcher *one)
{
    const char *rank = ls_launchers_value(one->rank), *world = ls_launchers_value(one->world);
    bool shell = strcmp(one->name, "srun") == 0 && rank != NULL && strcmp(rank, "0") == 0;
    bool found = rank != NULL ? world != NULL || !shell : world != NULL;
    for (int i = 0; rank == NULL && world != NULL && i < LS_LAUNCHERS; i++) {
        const ls_launcher *other = &ls_launchers[i];
        bool shares = other->world != NULL && strcmp(other->world, one->world) == 0;
        found = found && !(shares && ls_launchers_value(other->rank) != NULL);
    }
    return found;
}

static bool is_same(const char *name, const char *other)
{
    const char *a = ls_launchers_value(name), *b = ls_launchers_value(other);
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

static bool is_same_place(const ls_launcher *one, const ls_launcher *other)
{
    return is_same(one->rank, other->rank) && is_same(one->world, other->world);
}

/* The first launcher found; of those that agree with it, the first that also says which rank of its
 * machine this is. NULL: none. */
static const ls_launcher *find_launcher(void)
{
    const ls_launcher *first = NULL;
    for (int i = 0; i < LS_LAUNCHERS; i++) {
        const ls_launcher *one = &ls_launchers[i];
        if (!is_found(one)) {
            continue;
        }
        first = first == NULL ? one : first;
        if (ls_launchers_value(one->local_rank) != NULL &&
            (one == first || is_same_place(one, first))) {
            return one;
        }
    }
    return first;
}

/* Another launcher's world of several ranks is this one, or holds the launcher that made this one;
 * of a world of one that is never so. */
static ls_status check_others(const ls_launcher *from, const ls_world *world)
{
    bool nested =
        strcmp(from->name, "torchrun") == 0 && (ls_launchers_value("TORCHELASTIC_RUN_ID") != NULL ||
                                                ls_launchers_value("LS_TOKEN") != NULL);
    for (const ls_launcher *other = ls_launchers_next_world(NULL); other != NULL;
         other = ls_launchers_next_world(other)) {
        bool differs = other != from && !is_same_place(from, other);
        LS_REFUSE_IF(differs && (world->world == 1 || !(nested || other->outer)),
                     "%s=%d and %s=%d, but %s=%s and %s=%s: which rank of how many this "
                     "is contradicts; unset those that do not hold",
                     from->rank, world->rank, from->world, world->world, other->rank,
                     ls_launchers_value(other->rank), other->world,
                     ls_launchers_value(other->world));
    }
    return LS_OK;
}

static ls_status read_place(const ls_launcher *from, ls_world *out)
{
    LS_REFUSE_IF(from->world == NULL,
                 "%s=%s is set by %s, which does not pass the number of ranks: set RANK, "
                 "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset it for a world of one",
                 from->rank, ls_launchers_value(from->rank), from->name);
    if (ls_launchers_value(from->rank) == NULL || ls_launchers_value(from->world) == NULL) {
        bool has_rank = ls_launchers_value(from->rank) != NULL;
        return ls_log_fail(LS_ERR_USAGE, "%s is set but %s is not: a rank needs both",
                           has_rank ? from->rank : from->world,
                           has_rank ? from->world : from->rank);
    }
    LS_TRY(number_of(from->world, 1, INT_MAX / 2, 1, &out->world));
    LS_TRY(number_of(from->rank, 0, INT_MAX / 2, 0, &out->rank));
    LS_REFUSE_IF(out->rank >= out->world, "%s=%d is outside the world: %s=%d allows 0 to %d",
                 from->rank, out->rank, from->world, out->world, out->world - 1);
    LS_TRY(number_of(from->local_world, 1, out->world, out->world, &out->local_world));
    LS_TRY(number_of(from->local_rank, 0, INT_MAX / 2, out->rank % out->local_world,
                     &out->local_rank));
    LS_REFUSE_IF(out->local_rank >= out->local_world,
                 "%s=%d is outside its machine: %s=%d allows 0 to %d", from->local_rank,
                 out->local_rank, from->local_world, out->local_world, out->local_world - 1);
    bool simulated =
        ls_launchers_value("LS_NODE_ADDR") != NULL; /* the launcher plays nodes on one machine */
    out->machine_rank = simulated ? out->rank : out->local_rank;
    out->machine_world = simulated ? out->world : out->local_world;
    return number_of(from->node, 0, INT_MAX / 2, out->rank / out->local_world, &out->node);
}

/* Refuses a loopback where ranks are on other machines; simulated nodes are on this one. On rank
 * 0's own machine its name may be one: the store listens at all addresses. */
static ls_status check_loopback(const ls_world *world)
{
    bool srun = strcmp(world->launcher, "srun") == 0;
    bool resolve = world->node > 0 && strcmp(world->launcher, "torchrun") != 0;
    const char *name = ls_launchers_value("SLURM_STEP_NUM_NODES") != NULL ? "SLURM_STEP_NUM_NODES"
                                                                          : "SLURM_NNODES";
    int nodes = 1;
    LS_TRY(number_of(srun ? name : NULL, 1, INT_MAX, 1, &nodes));
    if (ls_launchers_value("LS_NODE_ADDR") != NULL ||
        (nodes == 1 && world->local_world == world->world) ||
        !ls_launchers_is_loopback(world->address, resolve)) {
        return LS_OK;
    }
    return ls_log_fail(LS_ERR_USAGE,
                       "MASTER_ADDR=%s is a loopback, at which each machine meets itself, but only "
                       "%d of %d ranks are on this one; allowed: an address of rank 0's machine "
                       "(nodes on one machine: lockstep-launch --local-nodes)",
                       world->address, nodes > 1 ? world->world / nodes : world->local_world,
                       world->world);
}

/* Where rank 0's store listens. torchrun always says; mpirun and srun leave it to the user. */
static ls_status read_meeting_place(ls_world *out)
{
    bool torchrun = strcmp(out->launcher, "torchrun") == 0;
    const char *address = ls_launchers_value("MASTER_ADDR");
    char host[256];
    if (address == NULL && strcmp(out->launcher, "srun") == 0 &&
        ls_launchers_value("SLURM_STEP_NODELIST") != NULL) {
        first_host(ls_launchers_value("SLURM_STEP_NODELIST"), host, sizeof host);
        address = host;
    } else if (address == NULL && !torchrun && out->local_world == out->world) {
        address = "127.0.0.1";
    }
    LS_REFUSE_IF(address == NULL, "MASTER_ADDR is not set: %d ranks need the address of rank 0",
                 out->world);
    LS_TRY(copy_text("MASTER_ADDR", address, out->address, sizeof out->address));
    LS_REFUSE_IF(ls_launchers_value("MASTER_PORT") == NULL && torchrun,
                 "MASTER_PORT is not set: %d ranks need the port of rank 0's store", out->world);
    if (ls_launchers_value("MASTER_PORT") == NULL) {
        ls_log_note("MASTER_PORT is not set, taking %d", DEFAULT_PORT);
    }
    LS_TRY(number_of("MASTER_PORT", 1, 65535, DEFAULT_PORT, &out->port));
    LS_TRY(check_loopback(out));
    const char *agent = ls_launchers_value("TORCHELASTIC_USE_AGENT_STORE");
    out->probe = agent != NULL && strcmp(agent, "True") == 0;
    const char *id_names[] = {"LS_TOKEN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"};
    for (size_t i = 0; i < sizeof id_names / sizeof id_names[0]; i++) {
        const char *id = ls_launchers_value(id_names[i]);
        if (id != NULL) { /* a rank of an earlier start has no part in this one; %.0d: not 0 */
            LS_TEXT(whole, 300, "%s%s%.0d", id, out->restart > 0 ? "." : "", out->restart);
            return copy_text(id_names[i], whole, out->run_id, sizeof out->run_id);
        }
    }
    if (out->rank == 0) {
        ls_log_note("no LS_TOKEN, TORCHELASTIC_RUN_ID or SLURM_JOB_ID: the store takes any peer");
    }
    return LS_OK;
}

ls_status ls_world_read(ls_world *out)
{
    ls_world world = {.world = 1, .local_world = 1, .machine_world = 1, .launcher = "none"};
    const ls_launcher *from = find_launcher();
    if (from != NULL) {
        world.launcher = from->name;
        LS_TRY(read_place(from, &world));
        LS_TRY(check_others(from, &world));
    }
    LS_TRY(number_of("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0, &world.restart));
    if (world.world > 1) {
        LS_TRY(read_meeting_place(&world));
    }
    int share = 0;
    LS_TRY(number_of("LS_OVERSUBSCRIBE", 0, 1, 0, &share));
    world.oversubscribe = share == 1;
    if (ls_launchers_value("LS_RUN_DIR") != NULL) {
        LS_TRY(copy_text("LS_RUN_DIR", ls_launchers_value("LS_RUN_DIR"), world.run_dir,
                         sizeof world.run_dir));
    }
    *out = world;
    return LS_OK;
}
