/* lockstep-collectives: one rank of a job that checks every collective of an engine on data whose
 * result is known (comm/exercise.h), in the manner of nccl-tests. It is started like the trainer.
 * Writes LS_RUN_DIR/rank<k>.jsonl: `start`; per combination `collective`; `barrier`, with clocks
 * that all ranks of a machine share; `absent`; `end`. Exit code 1 if an element was wrong.
 *
 * With groups (comm/exercise.h) each has a communicator of its own, and all are tried at the
 * same time; ranks and roots of events are then those within the group, and data is that of the
 * ranks of the world, so that another group's result is wrong. A rank in no group waits until all
 * are done. With --pairs, `pair` per pass and round: the computation of this rank, and its exchange
 * with another.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/machine/machine.h"
#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/plant.h"
#include "kernels/core/usage.h"
#include "kernels/core/text.h"
#include "reference/comm/exercise.h"
#include "reference/state/device.h"
#include "reference/options/world.h"

typedef struct program {
    ls_arguments given;
    ls_world world;
    ls_store *store;
    ls_device device; /* memory of the buffers, unless it is the host's */
    ls_rank_groups groups;
    int group; /* of this rank; -1: none, it only waits */
    ls_exercise_peer peer;
    int events; /* file descriptor, -1: none */
    char events_path[600];
    int64_t wrong, guards, combinations;
    int64_t begun_ns, done_ns, all_done_ns; /* its group's work, and that of all groups */
} program;

/* ---- events ---------------------------------------------------------------------------------- */

static ls_status write_event(program *p, cJSON *event)
{
    ls_status status = LS_OK;
    if (p->events >= 0) {
        status = ls_json_append_line(p->events, p->events_path, event);
    }
    cJSON_Delete(event);
    return status;
}

static cJSON *event_named(const char *name)
{
    cJSON *event = cJSON_CreateObject();
    LS_MEMORY(event != NULL);
    cJSON_AddStringToObject(event, "event", name);
    return event;
}

static bool waits_only(const program *p)
{
    return p->group < 0;
}

static void add_group(const program *p, cJSON *event)
{
    if (p->groups.count == 0) {
        return;
    }
    cJSON_AddNumberToObject(event, "groups", p->groups.count);
    if (waits_only(p)) {
        cJSON_AddNullToObject(event, "group");
        return;
    }
    cJSON_AddNumberToObject(event, "group", p->group);
    cJSON_AddNumberToObject(event, "group_rank", p->peer.rank);
    cJSON *ranks = cJSON_CreateIntArray(p->peer.members.rank, p->peer.members.count);
    LS_MEMORY(ranks != NULL);
    cJSON_AddItemToObject(event, "group_ranks", ranks);
}

static void add_engine(const program *p, cJSON *event)
{
    char text[256] = "";
    const ls_comm_api *api = p->peer.api;
    const char *transport = api->transport != NULL ? api->transport(p->peer.comm) : NULL;
    api->describe(text, (int)sizeof text);
    cJSON_AddStringToObject(event, "engine", api->name);
    cJSON_AddStringToObject(event, "engine_text", text);
    if (transport != NULL) {
        cJSON_AddStringToObject(event, "transport", transport);
    }
    cJSON_AddStringToObject(event, "device",
                            p->device.api != NULL ? p->device.info.device : "host memory");
}

static ls_status open_events(program *p)
{
    p->events = -1;
    if (p->world.run_dir[0] == '\0') {
        return LS_OK;
    }
    LS_TRY(ls_path_make_last(p->world.run_dir));
    snprintf(p->events_path, sizeof p->events_path, "%s/rank%d.jsonl", p->world.run_dir,
             p->world.rank);
    p->events = ls_file_open_to_write(p->events_path, O_TRUNC | O_APPEND);
    if (p->events < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", p->events_path, strerror(errno));
    }
    cJSON *event = event_named("start");
    cJSON_AddNumberToObject(event, "schema", 1);
    cJSON_AddStringToObject(event, "program", "lockstep-collectives");
    cJSON_AddNumberToObject(event, "rank", p->world.rank);
    cJSON_AddNumberToObject(event, "world", p->world.world);
    add_group(p, event);
    if (!waits_only(p)) {
        add_engine(p, event);
    }
    return write_event(p, event);
}

/* As nccl-tests has it. */
static const char *redop_of(const ls_exercise *what)
{
    return ls_comm_kind_reduces(what->kind) ? ls_comm_redop_name(what->redop) : "none";
}

static ls_status write_collective(program *p, const ls_exercise *what,
                                  const ls_exercise_result *result)
{
    cJSON *event = event_named("collective");
    LS_TEXT(digest, 24, "%016llx", (unsigned long long)result->digest);
    cJSON_AddStringToObject(event, "op", ls_comm_kind_name(what->kind));
    cJSON_AddStringToObject(event, "dtype", ls_dtype_label(what->dtype));
    cJSON_AddStringToObject(event, "redop", redop_of(what));
    cJSON_AddStringToObject(event, "data", what->data == LS_PATTERN_ROUGH ? "rough" : "exact");
    cJSON_AddNumberToObject(event, "count", (double)what->count);
    cJSON_AddNumberToObject(event, "bytes", result->bytes);
    cJSON_AddNumberToObject(event, "root", what->root);
    cJSON_AddBoolToObject(event, "in_place", what->in_place);
    cJSON_AddNumberToObject(event, "offset", what->offset);
    cJSON_AddNumberToObject(event, "iterations", what->iterations);
    cJSON_AddNumberToObject(event, "checked", (double)result->checked);
    cJSON_AddNumberToObject(event, "wrong", (double)result->wrong);
    cJSON_AddNumberToObject(event, "telling", (double)result->telling);
    cJSON_AddNumberToObject(event, "guards", (double)result->guards);
    cJSON_AddStringToObject(event, "digest", digest);
    cJSON_AddNumberToObject(event, "us", result->us);
    ls_json_add_number(event, "algbw_gb_s", result->algbw_gb_s);
    ls_json_add_number(event, "busbw_gb_s", result->busbw_gb_s);
    return write_event(p, event);
}

/* ---- combinations ---------------------------------------------------------------------------- */

/* The table has one row for each combination: the first group's. */
static bool prints(const program *p)
{
    return p->events < 0 && p->group == 0 && p->peer.rank == 0;
}

static ls_status try_one(program *p, const ls_exercise *what)
{
    ls_exercise_result result;
    LS_TRY(ls_exercise_run(&p->peer, what, &result));
    p->wrong += result.wrong;
    p->guards += result.guards;
    p->combinations++;
    if (result.wrong + result.guards > 0) {
        ls_log_error("%s (%s) of %lld %s%s, offset %d: %lld of %lld elements wrong, %lld bytes "
                     "next to them changed",
                     ls_comm_kind_name(what->kind), redop_of(what), (long long)what->count,
                     ls_dtype_label(what->dtype), what->in_place ? ", in place" : "", what->offset,
                     (long long)result.wrong, (long long)result.checked, (long long)result.guards);
    }
    if (prints(p)) {
        LS_TEXT(algbw, 32, "%.3f", result.algbw_gb_s);
        LS_TEXT(busbw, 32, "%.3f", result.busbw_gb_s);
        bool sent = !isnan(result.algbw_gb_s);
        printf("%14s %12.0f %10lld %5s %5s %4d %5s %10.1f %8s %8s %6lld\n",
               ls_comm_kind_name(what->kind), result.bytes, (long long)what->count,
               ls_dtype_label(what->dtype), redop_of(what), what->root,
               what->in_place ? "in" : "out", result.us, sent ? algbw : "-", sent ? busbw : "-",
               (long long)result.wrong);
        fflush(stdout);
    }
    return write_collective(p, what, &result);
}

static ls_status try_type(program *p, ls_comm_kind kind, ls_comm_redop redop, ls_dtype dtype)
{
    const ls_arguments *given = &p->given;
    for (int c = 0; c < given->count_count; c++) {
        for (int place = 0; place < 2; place++) {
            if (!given->in_place[place] || (place == 1 && !ls_exercise_can_be_in_place(kind))) {
                continue;
            }
            for (int offset = 0; offset <= given->offset_max; offset++) {
                ls_exercise what = {.kind = kind,
                                    .redop = redop,
                                    .dtype = dtype,
                                    .data = given->data,
                                    .count = given->count[c],
                                    .root = c % p->peer.members.count,
                                    .in_place = place == 1,
                                    .offset = offset,
                                    .iterations = given->iterations};
                LS_TRY(try_one(p, &what));
            }
        }
    }
    return LS_OK;
}

static ls_status try_all(program *p)
{
    if (prints(p)) {
        LS_TEXT(group, 64, " of group 0 of %d", p->groups.count);
        const char *why = ls_bus_why_cpu(p->given.device == NULL ? "auto" : p->given.device);
        printf("# %s, %d ranks%s on %s%s\n", p->peer.api->name, p->peer.members.count,
               p->groups.count > 0 ? group : "",
               p->device.api != NULL ? p->device.info.device : "the CPU: ",
               p->device.api != NULL ? "" : why);
        if (p->peer.members.count == 1) {
            printf("# %s of one: nothing is sent, so no bandwidth is reported\n",
                   p->groups.count > 0 ? "group" : "world");
        }
        printf("#           op    size (B)      count  type redop root place         us    algbw"
               "    busbw  wrong   (GB/s = 10^9)\n");
    }
    for (int k = 0; k < p->given.kind_count; k++) {
        ls_comm_kind kind = p->given.kind[k];
        int redop_count = ls_comm_kind_reduces(kind) ? p->given.redop_count : 1;
        if (kind == LS_COMM_SEND && p->peer.members.count == 1) {
            continue;
        }
        for (int r = 0; r < redop_count; r++) {
            ls_comm_redop redop = ls_comm_kind_reduces(kind) ? p->given.redop[r] : LS_COMM_SUM;
            for (int t = 0; t < p->given.dtype_count; t++) {
                if (ls_pattern_has(p->given.data, p->given.dtype[t])) {
                    LS_TRY(try_type(p, kind, redop, p->given.dtype[t]));
                }
            }
        }
    }
    return LS_OK;
}

static ls_status try_headline(program *p)
{
    ls_exercise what = {.kind = LS_COMM_ALL_REDUCE,
                        .dtype = LS_F16,
                        .data = LS_PATTERN_EXACT,
                        .count = 25600000, /* 51.2 MB */
                        .in_place = true,
                        .iterations = p->given.iterations};
    return p->given.headline ? try_one(p, &what) : LS_OK;
}

/* Work that a core does without memory or network; 512 pages: milliseconds. */
static uint64_t dawdle(int pages)
{
    static const char page[4096];
    uint64_t digest = LS_DIGEST_START;
    for (int i = 0; i < pages; i++) {
        digest = ls_digest_update(digest, page, sizeof page);
    }
    return digest;
}

static ls_status try_barriers(program *p)
{
    ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "all here"};
    for (int i = 0; i < p->given.barriers; i++) {
        cJSON *event = event_named("barrier");
        bool late = i % p->peer.members.count == p->peer.rank;
        cJSON_AddNumberToObject(event, "late", late && dawdle(512) != 0);
        int64_t begin_ns = ls_clock_ns();
        ls_status status = ls_comm_run(p->peer.api, p->peer.comm, &barrier, NULL);
        if (status != LS_OK) {
            cJSON_Delete(event);
            return status;
        }
        cJSON_AddNumberToObject(event, "begin_ns", (double)begin_ns);
        cJSON_AddNumberToObject(event, "end_ns", (double)ls_clock_ns());
        LS_TRY(write_event(p, event));
    }
    return LS_OK;
}

/* A communicator of `world` ranks, in which this one is `rank`. */
static ls_status open_comm_of(const program *p, const char *name, double timeout_s, int rank,
                              int world, ls_comm **out)
{
    ls_comm_options where = {.rank = rank,
                             .world = world,
                             .store = p->store,
                             .name = name,
                             .timeout_s = timeout_s,
                             .one_host = p->world.local_world == p->world.world,
                             .backend_api = p->device.api,
                             .backend = p->device.backend,
                             .open_s = timeout_s + 30, /* a GPU's engine takes longer to open */
                             .oversubscribe = p->world.oversubscribe};
    return p->peer.api->open(&where, out);
}

static ls_status open_comm(const program *p, const char *name, double timeout_s, ls_comm **out)
{
    bool apart = LS_PLANT(groups_ignored, p->groups.count > 0, false);
    LS_TEXT(group, 64, "%s of group %d", name, p->group);
    return open_comm_of(p, apart ? group : name, timeout_s, apart ? p->peer.rank : p->world.rank,
                        apart ? p->peer.members.count : p->world.world, out);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

enum { PROBE_PAGES = 1 << 13 }; /* tens of milliseconds */

/* A pair of a round, seen by one of the two. */
static ls_exercise_peer pair_of(const program *p, int other, ls_comm *comm)
{
    ls_exercise_peer peer = p->peer;
    int me = p->world.rank, low = me < other ? me : other, high = me < other ? other : me;
    peer.rank = me == high;
    peer.members = (ls_pattern_members){.count = 2, .rank = {low, high}};
    peer.comm = comm;
    peer.journal = NULL;
    return peer;
}

/* All at the same time: every rank computes, then exchanges with its partner of the round. */
static ls_status meet(program *p, int pass, int round, ls_comm *const *comm)
{
    int other = ls_exercise_partner(p->world.world, pass, round, p->world.rank);
    ls_exercise_result result = {.us = NAN};
    ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "a round"};
    LS_TRY(ls_comm_run(p->peer.api, p->peer.comm, &barrier, NULL));
    int64_t begin_ns = ls_clock_ns();
    bool done = dawdle(PROBE_PAGES) != 0;
    double probe_ms = ls_clock_ms_between(begin_ns, ls_clock_ns());
    if (other >= 0) {
        ls_exercise_peer peer = pair_of(p, other, comm[other]);
        ls_exercise what = {.kind = LS_COMM_ALL_REDUCE,
                            .redop = LS_COMM_SUM,
                            .dtype = LS_F32,
                            .data = LS_PATTERN_EXACT,
                            .count = p->given.count[0],
                            .in_place = true,
                            .iterations = p->given.iterations};
        LS_TRY(ls_exercise_run(&peer, &what, &result));
        p->wrong += result.wrong;
        p->guards += result.guards;
    }
    cJSON *event = event_named("pair");
    cJSON_AddNumberToObject(event, "pass", pass);
    cJSON_AddNumberToObject(event, "round", round);
    cJSON_AddNumberToObject(event, "other", other);
    cJSON_AddNumberToObject(event, "bytes", result.bytes);
    cJSON_AddNumberToObject(event, "wrong", (double)result.wrong);
    ls_json_add_number(event, "us", result.us);
    ls_json_add_number(event, "probe_ms", done ? probe_ms : NAN);
    return write_event(p, event);
}

static ls_status try_pairs(program *p)
{
    int world = p->world.world, rounds = ls_exercise_rounds(world);
    if (p->given.pairs == 0 || world < 2) {
        return LS_OK;
    }
    ls_comm **comm = ls_list_make((size_t)world, sizeof *comm); /* with each */
    ls_status status = LS_OK;
    for (int round = 0; round < rounds && status == LS_OK; round++) {
        int me = p->world.rank, other = ls_exercise_partner(world, 0, round, me);
        LS_TEXT(name, 40, "pair %d %d", me < other ? me : other, me < other ? other : me);
        if (other >= 0) {
            status = open_comm_of(p, name, p->given.timeout_s, me > other, 2, &comm[other]);
        }
    }
    for (int i = 0; i < p->given.pairs * rounds && status == LS_OK; i++) {
        status = meet(p, i / rounds, i % rounds, comm);
    }
    if (status == LS_OK) { /* a rank that has all it waits for may not close before its partner */
        ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "all pairs"};
        status = ls_comm_run(p->peer.api, p->peer.comm, &barrier, NULL);
    }
    for (int other = 0; other < world; other++) {
        if (comm[other] != NULL) {
            p->peer.api->close(comm[other]);
        }
    }
    free(comm);
    return status;
}

/* Zeroed memory that the engine can access. */
static ls_status take_memory(const program *p, size_t floats, float **out)
{
    void *memory = NULL;
    if (p->device.api != NULL) {
        LS_TRY(p->device.api->memory_alloc(p->device.backend, (int64_t)(floats * sizeof **out),
                                           "exercise", &memory));
    } else {
        memory = calloc(floats, sizeof **out);
        LS_MEMORY(memory != NULL);
    }
    *out = memory;
    return LS_OK;
}

static void give_memory(const program *p, float *memory)
{
    if (p->device.api != NULL) {
        p->device.api->memory_free(p->device.backend, memory);
    } else {
        free(memory);
    }
}

/* A rank's part in an operation without rank `absent`, on a communicator of its own. In another
 * group, which is whole, the operation must work. */
static ls_status run_without(program *p, ls_comm_kind kind, const char *name)
{
    enum { COUNT = 1 << 16 };
    float *memory = NULL;
    ls_comm *comm = NULL;
    int world = p->peer.members.count;
    int absent = p->given.absent; /* its rank in the communicator; 0 if it is in another */
    bool here = p->world.rank != absent;
    if (p->groups.count > 0 && ls_arguments_find_group(&p->groups, absent, &absent) != p->group) {
        absent = 0;
    }
    bool to_absent = kind == LS_COMM_RECV || kind == LS_COMM_SEND || kind == LS_COMM_BROADCAST ||
                     kind == LS_COMM_SCATTER;
    LS_TRY(open_comm(p, name, p->given.timeout_s, &comm));
    LS_TRY(take_memory(p, (size_t)world * COUNT * 2, &memory));
    ls_comm_op op = {.kind = kind,
                     .buffer = memory,
                     .input = memory + (size_t)world * COUNT,
                     .count = COUNT,
                     .dtype = LS_F32,
                     .root = to_absent ? absent : (absent + 1) % world,
                     .label = "absent rank"};
    int64_t begin_ns = ls_clock_ns();
    ls_status seen = here ? ls_comm_run(p->peer.api, comm, &op, NULL) : LS_OK;
    cJSON *event = event_named("absent");
    cJSON_AddStringToObject(event, "op", ls_comm_kind_name(kind));
    cJSON_AddBoolToObject(event, "here", here);
    cJSON_AddNumberToObject(event, "root", op.root);
    cJSON_AddNumberToObject(event, "status", seen);
    cJSON_AddNumberToObject(event, "seconds", ls_clock_ms_between(begin_ns, ls_clock_ns()) * 1e-3);
    ls_status status = write_event(p, event);
    if (status == LS_OK) { /* no rank closes before the last has seen the failure */
        status = ls_store_barrier(p->store, name, 10 * p->given.timeout_s + 10);
    }
    p->peer.api->abort(comm);
    p->peer.api->close(comm);
    give_memory(p, memory);
    return status;
}

/* Sends and receives have two ends, of which only the absent one is tried without: ranks of groups
 * that are whole only wait, as do those in no group. */
static ls_status try_without(program *p, ls_comm_kind kind)
{
    int unused;
    bool pair = kind == LS_COMM_SEND || kind == LS_COMM_RECV;
    bool other = p->groups.count > 0 &&
                 ls_arguments_find_group(&p->groups, p->given.absent, &unused) != p->group;
    LS_TEXT(name, 64, "without/%s", ls_comm_kind_name(kind));
    if (waits_only(p) || (pair && other)) {
        return ls_store_barrier(p->store, name, 10 * p->given.timeout_s + 10);
    }
    return run_without(p, kind, name);
}

static ls_status try_absent(program *p)
{
    static const ls_comm_kind each[] = {
        LS_COMM_ALL_REDUCE, LS_COMM_REDUCE_SCATTER, LS_COMM_ALL_GATHER, LS_COMM_BROADCAST,
        LS_COMM_REDUCE,     LS_COMM_GATHER,         LS_COMM_SCATTER,    LS_COMM_SEND,
        LS_COMM_RECV,       LS_COMM_BARRIER,        LS_COMM_ALL_TO_ALL};
    if (p->given.absent < 0) {
        return LS_OK;
    }
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        LS_TRY(try_without(p, each[i]));
    }
    return LS_OK;
}

/* Waits until the first `groups` groups are done, however long it takes: a rank that fails leaves,
 * and the launcher ends the others. */
static ls_status wait_for_groups(program *p, int groups)
{
    char name[LS_PATTERN_WORLD_MAX][24];
    const char *key[LS_PATTERN_WORLD_MAX];
    int count = 0;
    for (int g = 0; g < groups; g++) {
        for (int k = 0; k < p->groups.group[g].count; k++) {
            ls_text_put(name[count], sizeof name[count], "groups/done/%d",
                        p->groups.group[g].rank[k]);
            key[count] = name[count];
            count++;
        }
    }
    if (count == 0 || p->store == NULL) {
        return LS_OK;
    }
    return ls_store_wait(p->store, key, count, LS_ARGUMENTS_TIMEOUT_MOST_S);
}

/* Groups begin together. */
static ls_status begin_group(program *p)
{
    if (p->groups.count > 0 && p->store != NULL) {
        LS_TRY(ls_store_barrier(p->store, "groups/open", p->given.timeout_s + 60));
    }
    LS_TRY(wait_for_groups(p, LS_PLANT(groups_in_turn, 0, p->group > 0 ? p->group : 0)));
    p->begun_ns = ls_clock_ns();
    return LS_OK;
}

/* Nothing that follows begins before all groups are done. */
static ls_status end_group(program *p)
{
    LS_TEXT(done, 24, "groups/done/%d", p->world.rank);
    p->done_ns = ls_clock_ns();
    if (p->groups.count > 0 && p->store != NULL && !waits_only(p)) {
        LS_TRY(ls_store_set(p->store, done, "", 0));
    }
    LS_TRY(wait_for_groups(p, LS_PLANT(groups_not_awaited, p->groups.count, 0)));
    p->all_done_ns = ls_clock_ns();
    return LS_OK;
}

/* ---- start and end --------------------------------------------------------------------------- */

static ls_status on_wait(void *context, double waited_s)
{
    program *p = context;
    (void)waited_s; /* every operation has a deadline of its own */
    return p->peer.comm != NULL ? p->peer.api->poll(p->peer.comm) : LS_OK;
}

static ls_status open_device(program *p)
{
    const char *device = ls_bus_choose(p->given.device == NULL ? "auto" : p->given.device);
    if (strcmp(device, "cpu") == 0) { /* host memory needs no backend */
        return LS_OK;
    }
    ls_backend_options options = {.device_index = p->world.machine_rank,
                                  .local_ranks = p->world.machine_world,
                                  .local_rank = p->world.machine_rank,
                                  .oversubscribe = p->world.oversubscribe};
    LS_TRY(ls_device_open(device, &options, &p->device));
    if (p->device.api->set_wait_hook != NULL) {
        p->device.api->set_wait_hook(p->device.backend, on_wait, p);
    }
    p->peer.backend_api = p->device.api;
    p->peer.backend = p->device.backend;
    p->peer.stream = p->device.stream;
    return LS_OK;
}

static ls_status check_engine(const program *p, const char *engine)
{
    bool device = p->device.api != NULL;
    if ((strcmp(engine, "gloo") == 0 && device) || (strcmp(engine, "nccl") == 0 && !device)) {
        return ls_log_fail(LS_ERR_USAGE, "--comm %s works in %s memory: not with --device %s",
                           engine, device ? "host" : "GPU", device ? "cuda" : "cpu");
    }
    return LS_OK;
}

/* Which ranks this one works with. */
static ls_status choose_group(program *p)
{
    const ls_arguments *given = &p->given;
    int world = p->world.world;
    if (given->pairs > 0 && given->kind_count == 0 && !given->headline) { /* a sum of two each */
        p->peer.members = (ls_pattern_members){.count = 1, .rank = {p->world.rank}};
        p->peer.rank = p->world.rank;
        return LS_OK;
    }
    if (world > LS_PATTERN_WORLD_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "%d ranks: sums are exact for up to %d", world,
                           LS_PATTERN_WORLD_MAX);
    }
    if (given->groups != NULL) {
        LS_TRY(ls_arguments_read_groups(given->groups, world, &p->groups));
    } else if (given->group_size > 0) {
        LS_TRY(ls_arguments_groups_of_size(given->group_size, world, &p->groups));
    } else {
        p->peer.members = ls_pattern_all(world);
        p->peer.rank = p->world.rank;
        return LS_OK;
    }
    p->group = ls_arguments_find_group(&p->groups, p->world.rank, &p->peer.rank);
    if (!waits_only(p)) {
        p->peer.members = p->groups.group[p->group];
    }
    return LS_OK;
}

/* Someone must miss the absent rank. */
static ls_status check_absent(const program *p)
{
    int absent = p->given.absent, world = p->world.world, unused;
    if (absent < 0) {
        return LS_OK;
    }
    if (world == 1 || absent >= world) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--absent %d: allowed: a rank of this world, which has %d%s", absent,
                           world, world == 1 ? "; at least 2 are needed" : "");
    }
    if (p->groups.count == 0) {
        return LS_OK;
    }
    int group = ls_arguments_find_group(&p->groups, absent, &unused);
    if (group < 0 || p->groups.group[group].count == 1) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--absent %d: it is %s; allowed: a rank of a group with others", absent,
                           group < 0 ? "in no group" : "alone in its group");
    }
    return LS_OK;
}

/* Memory and engine, for a rank that works. */
static ls_status open_engine(program *p)
{
    bool alone = p->world.world == 1;
    LS_TRY(open_device(p));
    const char *among = p->device.api != NULL ? "nccl" : "gloo";
    const char *engine = p->given.comm != NULL ? p->given.comm : alone ? "self" : among;
    LS_TRY(check_engine(p, engine));
    return ls_comm_load(engine, &p->peer.api);
}

static ls_status join(program *p)
{
    bool alone = p->world.world == 1;
    LS_TRY(choose_group(p));
    LS_TRY(check_absent(p));
    LS_TRY(waits_only(p) ? LS_OK : open_engine(p));
    if (!alone) {
        ls_store_options where = {.rank = p->world.rank,
                                  .world = p->world.world,
                                  .address = p->world.address,
                                  .port = p->world.port,
                                  .probe = p->world.probe,
                                  .run_id = p->world.run_id,
                                  .timeout_s = 60};
        LS_TRY(ls_store_open(&where, &p->store));
    }
    if (!waits_only(p)) {
        LS_TRY(open_comm(p, "collectives", alone ? 60 : p->given.timeout_s + 30, &p->peer.comm));
    }
    LS_TRY(waits_only(p) ? LS_OK
                         : ls_exercise_journal_open(
                               p->world.run_dir, p->world.rank, p->peer.api->name, p->peer.rank,
                               p->peer.members.count, p->peer.members.rank, &p->peer.journal));
    return open_events(p);
}

static ls_status run(program *p)
{
    LS_TRY(begin_group(p));
    if (!waits_only(p)) {
        LS_TRY(try_all(p));
        LS_TRY(try_headline(p));
        LS_TRY(try_barriers(p));
        LS_TRY(try_pairs(p));
    }
    LS_TRY(end_group(p));
    LS_TRY(try_absent(p));
    cJSON *event = event_named("end");
    cJSON_AddNumberToObject(event, "combinations", (double)p->combinations);
    cJSON_AddNumberToObject(event, "wrong", (double)p->wrong);
    if (p->groups.count > 0) {
        cJSON_AddNumberToObject(event, "begun_ns", (double)p->begun_ns);
        cJSON_AddNumberToObject(event, "done_ns", (double)p->done_ns);
        cJSON_AddNumberToObject(event, "all_done_ns", (double)p->all_done_ns);
    }
    LS_TRY(write_event(p, event));
    if (p->store != NULL) {
        LS_TRY(ls_store_barrier(p->store, "end", 60));
    }
    return p->wrong + p->guards > 0 ? LS_ERR_CHECK : LS_OK;
}

static int run_program(int argc, char **argv)
{
    program p = {.events = -1};
    ls_file_survive_limit();
    LS_TRY(ls_arguments_read(argc, argv, &p.given));
    ls_status status = ls_world_read(&p.world);
    LS_THEN(status, ls_arguments_read_counts(&p.given, p.world.world));
    LS_THEN(status, join(&p));
    LS_THEN(status, run(&p));
    ls_exercise_journal_close(p.peer.journal);
    if (p.device.api != NULL && p.device.api->set_wait_hook != NULL) {
        p.device.api->set_wait_hook(p.device.backend, NULL, NULL);
    }
    if (p.peer.comm != NULL) {
        p.peer.api->close(p.peer.comm);
    }
    /* If the device may wait for a lost peer, it is not closed: freeing its memory, which its
     * libraries' exit handlers do too, could wait for ever. */
    bool stuck = p.device.api != NULL && status != LS_OK && status != LS_ERR_CHECK;
    if (!stuck) {
        ls_device_close(&p.device);
    }
    if (p.store != NULL) {
        ls_store_close(p.store, 1.0);
    }
    if (p.events >= 0) {
        close(p.events);
    }
    if (stuck) {
        fflush(NULL);
        _exit((int)status);
    }
    return (int)status;
}

int main(int argc, char **argv)
{
    ls_program_main(run_program, argc, argv);
}
