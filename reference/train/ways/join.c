#include "join.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "reference/comm/comm.h"
#include "reference/train/fault.h"

enum {
    LINGER_S = 10, /* rank 0 serves stragglers of a good end */
    ABORT_S = 2,   /* for a device to drop aborted work; below the launcher's grace */
};

static ls_status open_comm(ls_trainer *trainer, const char *name, int rank, int world,
                           ls_comm **out)
{
    ls_comm_options options = {
        .rank = rank,
        .world = world,
        .store = trainer->store,
        .name = name,
        .timeout_s = trainer->options.timeout_s,
        .backend_api = trainer->device.api,
        .backend = trainer->device.backend,
        .deterministic = trainer->options.deterministic,
        .oversubscribe = trainer->world.oversubscribe,
        .other = trainer->comm,
        .one_host = trainer->world.local_world == trainer->world.world,
    };
    return trainer->engine->open(&options, out);
}

/* SyncBN's statistics (kernels.h, ls_norm_sync). */
static ls_status gather_statistics(void *context, ls_stream *stream, const float *mine, float *all,
                                   int64_t count)
{
    ls_trainer *trainer = context;
    ls_comm_op op = {.kind = LS_COMM_ALL_GATHER,
                     .buffer = all,
                     .input = mine,
                     .count = count,
                     .dtype = LS_F32,
                     .label = "batch norm statistics"};
    ls_comm_handle handle;
    LS_TRY(trainer->device.api->event_record(trainer->norm_event, stream));
    LS_TRY(trainer->engine->begin(trainer->norm_comm, &op, trainer->norm_event, &handle));
    return trainer->engine->wait(trainer->norm_comm, &handle, stream);
}

/* The engine of this run, or NULL where nothing is reduced. */
static ls_status choose_engine(const ls_trainer *trainer, const char **name)
{
    const char *asked = trainer->options.comm;
    bool alone = trainer->world.world == 1;
    bool cpu = strcmp(trainer->device.api->name, "cpu") == 0;
    LS_REFUSE_IF(strcmp(asked, "self") == 0 && !alone,
                 "--comm self: allowed in a world of one; this one has %d ranks",
                 trainer->world.world);
    const char *backend = trainer->options.dist_backend;
    if (strcmp(asked, "auto") == 0 && strcmp(backend, "auto") != 0 && !alone) {
        if (cpu && strcmp(backend, "nccl") == 0 && trainer->world.rank == 0) {
            ls_log_warn("--dist-backend nccl reduces GPU memory, and this run's device is a CPU: "
                        "gloo is taken");
        }
        asked = cpu ? "gloo" : backend;
    }
    *name = asked;
    if (strcmp(asked, "auto") == 0) {
        *name = alone ? NULL : cpu ? "gloo" : "nccl";
    } else if (strcmp(asked, "gloo") == 0 && !cpu) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "--comm gloo: reduces host memory, and the %s backend's tensors are not there "
            "(its engine: nccl)",
            trainer->device.api->name);
    } else if (strcmp(asked, "nccl") == 0 && cpu) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--comm nccl: reduces GPU memory; the CPU's engine is gloo");
    }
    return LS_OK;
}

/* The wait hook (kernels.h): ends a wait for the device when a peer is lost. */
static ls_status on_wait(void *context, double waited_s)
{
    ls_trainer *trainer = context;
    ls_comm *comms[] = {trainer->comm, trainer->norm_comm};
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        if (comms[i] != NULL && trainer->engine->poll_peers != NULL) {
            LS_TRY(
                trainer->engine->poll_peers(comms[i], ls_clock_ns() - (int64_t)(waited_s * 1e9)));
        }
    }
    if (waited_s <= trainer->options.timeout_s) {
        return LS_OK;
    }
    return ls_log_fail(
        LS_ERR_PEER_LOST,
        "the device has not ended its work in %.3g s (--timeout): a rank that it waits for "
        "may be lost",
        waited_s);
}

ls_status ls_join_all(ls_trainer *trainer, const char *key, bool mine, bool polls, int *rank)
{
    enum { AGAINST = 1 << 20 }; /* more than there are ranks: a vote counts those against, too */
    static const struct timespec nap = {0, 200000};
    char votes[64], who[64], number[16];
    int64_t sum = 0, begun_ns = ls_clock_ns();
    void *text = NULL;
    size_t bytes = 0;
    *rank = mine ? -1 : trainer->world.rank;
    if (trainer->store == NULL || trainer->world.world == 1) {
        return LS_OK;
    }
    snprintf(votes, sizeof votes, "%s/votes", key);
    snprintf(who, sizeof who, "%s/who", key);
    int length = snprintf(number, sizeof number, "%d", trainer->world.rank);
    if (!mine) { /* before it votes: when all have voted, it stands there */
        LS_TRY(ls_store_set(trainer->store, who, number, (size_t)length));
    }
    LS_TRY(ls_store_add(trainer->store, votes, mine ? 1 : AGAINST + 1, &sum));
    while (sum % AGAINST < trainer->world.world) {
        double waited_s = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
        int left = -1;
        (void)ppoll(NULL, 0, &nap, NULL); /* what we wait for has no descriptor */
        ls_status peers =
            polls ? on_wait(trainer, waited_s) : ls_store_who_left(trainer->store, &left);
        /* asked last: who has left may have voted before */
        LS_TRY(ls_store_add(trainer->store, votes, 0, &sum));
        if (sum % AGAINST == trainer->world.world) {
            break;
        }
        LS_TRY(peers);
        if (left >= 0 || waited_s > trainer->options.timeout_s) {
            return ls_log_fail(LS_ERR_PEER_LOST, "%s: not all ranks have answered in %.3g s%s", key,
                               waited_s, left >= 0 ? ": one has left the job" : " (--timeout)");
        }
    }
    if (sum >= AGAINST) {
        LS_TRY(ls_store_get(trainer->store, who, -1, &text, &bytes));
        *rank = atoi(text);
        free(text);
    }
    return LS_OK;
}

void ls_join_release(ls_trainer *trainer)
{
    if (trainer->gathered_bytes > 0) {
        trainer->device.api->memory_free(trainer->device.backend, trainer->gathered);
        trainer->gathered_bytes = 0;
    }
}

ls_status ls_join_gather(ls_trainer *trainer, const char *label, const void *own, int64_t bytes,
                         void *all)
{
    const ls_device *device = &trainer->device;
    int64_t whole = bytes * trainer->world.world;
    if (trainer->engine == NULL) {
        memcpy(all, own, (size_t)bytes);
        return LS_OK;
    }
    if (whole > trainer->gathered_bytes) { /* kept: --join gathers in every step */
        ls_join_release(trainer);
        LS_TRY(device->api->memory_alloc(device->backend, whole, label, &trainer->gathered));
        trainer->gathered_bytes = whole;
    }
    char *mine = (char *)trainer->gathered + bytes * trainer->world.rank;
    ls_comm_op op = {.kind = LS_COMM_ALL_GATHER,
                     .buffer = trainer->gathered,
                     .input = mine,
                     .count = bytes,
                     .dtype = LS_U8,
                     .label = label};
    ls_status status = device->api->copy_in(device->backend, device->stream, mine, own, bytes);
    LS_THEN(status, device->api->stream_wait(device->stream));
    LS_THEN(status, ls_comm_run(trainer->engine, trainer->comm, &op, device->stream));
    LS_THEN(status, ls_device_read(device, all, trainer->gathered, whole));
    return status;
}

static void hook_waits(ls_trainer *trainer, bool on)
{
    const ls_device *device = &trainer->device;
    if (device->api != NULL && device->api->set_wait_hook != NULL) {
        device->api->set_wait_hook(device->backend, on ? on_wait : NULL, trainer);
    }
}

static ls_status open_store(ls_trainer *trainer)
{
    bool alone = trainer->world.world == 1;
    ls_store_options options = {
        .rank = trainer->world.rank,
        .world = trainer->world.world,
        .address = alone ? "127.0.0.1" : trainer->world.address,
        .port = alone ? 0 : trainer->world.port,
        .probe = trainer->world.probe,
        .run_id = trainer->world.run_id,
        .timeout_s = trainer->options.timeout_s,
    };
    return ls_store_open(&options, &trainer->store);
}

/* ---- a trial recording ----------------------------------------------------------------------- */

/* Records a small reduction and discards the graph. */
static ls_status record_sum(const ls_trainer *trainer, const ls_comm_op *op, ls_event *event)
{
    const ls_device *device = &trainer->device;
    ls_comm_handle handle;
    ls_graph *graph = NULL;
    LS_TRY(device->api->graph_begin(device->stream));
    ls_status status = device->api->event_record(event, device->stream);
    LS_THEN(status, trainer->engine->begin(trainer->comm, op, event, &handle));
    LS_THEN(status, trainer->engine->wait(trainer->comm, &handle, device->stream));
    ls_status ended = device->api->graph_end(device->stream, &graph);
    if (graph != NULL) {
        device->api->graph_destroy(graph);
    }
    return status != LS_OK ? status : ended;
}

/* Whether the operations of the engine, which is open, can be recorded into graphs on all ranks;
 * reports it and sets trainer->unrecorded if not. The communicator may be unusable then. */
static ls_status try_recording(ls_trainer *trainer)
{
    const ls_device *device = &trainer->device;
    ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE, .count = 1, .dtype = LS_F32, .label = "trial"};
    ls_event *event = NULL;
    int failed_rank = -1;
    ls_status status;
    if (trainer->options.graph == LS_GRAPH_OFF || device->api->graph_begin == NULL ||
        trainer->engine->begin_after == NULL) {
        return LS_OK;
    }
    LS_TRY(device->api->memory_alloc(device->backend, sizeof(float), "a trial", &op.buffer));
    status = device->api->event_create(device->backend, &event);
    /* connections are made by an operation that is executed, and nothing is under way then */
    LS_THEN(status, ls_comm_run(trainer->engine, trainer->comm, &op, device->stream));
    LS_THEN(status, device->api->stream_wait(device->stream));
    const ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "before a trial"};
    LS_THEN(status, ls_comm_run(trainer->engine, trainer->comm, &barrier, device->stream));
    bool works = status == LS_OK && record_sum(trainer, &op, event) == LS_OK;
    LS_THEN(status, ls_join_all(trainer, "graph/engine", works, false, &failed_rank));
    trainer->unrecorded = status == LS_OK && failed_rank >= 0;
    if (trainer->unrecorded && failed_rank == trainer->world.rank) {
        ls_log_warn("rank %d could not record a reduction: all ranks go on without graphs",
                    failed_rank);
    }
    if (event != NULL) {
        device->api->event_destroy(event);
    }
    device->api->memory_free(device->backend, op.buffer);
    return status;
}

/* ---- engines --------------------------------------------------------------------------------- */

/* A communicator whose trial failed takes no further operations, on this rank or another: then all
 * ranks open a new one. */
static ls_status open_gradients(ls_trainer *trainer)
{
    int rank = trainer->world.rank, world = trainer->world.world;
    LS_TRY(open_comm(trainer, "gradients", rank, world, &trainer->comm));
    LS_TRY(try_recording(trainer));
    if (!trainer->unrecorded) {
        return LS_OK;
    }
    trainer->engine->abort(trainer->comm);
    trainer->engine->close(trainer->comm);
    trainer->comm = NULL;
    return open_comm(trainer, "gradients, not recorded", rank, world, &trainer->comm);
}

/* SyncBN's communicator, of the ranks that share statistics: groups of consecutive ranks. */
static ls_status open_norm(ls_trainer *trainer)
{
    int world = trainer->world.world, rank = trainer->world.rank;
    int size = trainer->options.sync_bn_group > 0 ? trainer->options.sync_bn_group : world;
    char name[32];
    if (!trainer->options.sync_bn || size == 1) {
        return LS_OK;
    }
    snprintf(name, sizeof name, "norm%d", rank / size);
    LS_TRY(trainer->device.api->event_create(trainer->device.backend, &trainer->norm_event));
    LS_TRY(open_comm(trainer, name, rank % size, size, &trainer->norm_comm));
    trainer->norm_sync =
        (ls_norm_sync){.group_size = size, .context = trainer, .all_gather = gather_statistics};
    return LS_OK;
}

static ls_status meet(ls_trainer *trainer)
{
    const char *name = NULL;
    ls_fault_point(trainer, 0, LS_FAULT_JOIN);
    LS_TRY(choose_engine(trainer, &name));
    if (name == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_comm_load(name, &trainer->engine));
    if (strcmp(name, "self") != 0) {
        LS_TRY(open_store(trainer));
        ls_fault_point(trainer, 0, LS_FAULT_MEET);
        LS_TRY(ls_agree_on_run(trainer));
        LS_TRY(ls_agree_on_libraries(trainer));
    }
    LS_TRY(open_gradients(trainer));
    LS_TRY(open_norm(trainer));
    hook_waits(trainer, true);
    return LS_OK;
}

ls_status ls_join_open(ls_trainer *trainer)
{
    ls_status status = meet(trainer);
    return status == LS_ERR_PEER_LOST ? LS_ERR_RENDEZVOUS : status; /* all ranks have met, or not */
}

/* The wait hook after an abort: ends the wait at ABORT_S. */
static ls_status on_abort_wait(void *context, double waited_s)
{
    bool *late = context;
    *late = waited_s > ABORT_S;
    return *late ? LS_ERR_PEER_LOST : LS_OK;
}

void ls_join_abandon(ls_trainer *trainer)
{
    const ls_device *device = &trainer->device;
    ls_comm *comms[] = {trainer->comm, trainer->norm_comm};
    bool late = false;
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        if (comms[i] != NULL) { /* all, before anything is waited for */
            trainer->engine->abort(comms[i]);
        }
    }
    if (!trainer->stuck && device->api != NULL && device->api->set_wait_hook != NULL) {
        device->api->set_wait_hook(device->backend, on_abort_wait, &late);
        (void)device->api->stream_wait(device->stream);
        device->api->set_wait_hook(device->backend, NULL, NULL);
        trainer->stuck = late;
    }
}

ls_status ls_join_finish(ls_trainer *trainer)
{
    if (trainer->store == NULL) {
        return LS_OK;
    }
    ls_fault_point(trainer, 0, LS_FAULT_END);
    /* The engine notices at once when a rank has died; the store then keeps the first that is
     * through from closing connections under the last. */
    ls_comm_op op = {.kind = LS_COMM_BARRIER, .label = "end of training"};
    LS_TRY(ls_comm_run(trainer->engine, trainer->comm, &op, trainer->device.stream));
    return ls_store_barrier(trainer->store, "end of training", trainer->options.timeout_s);
}

void ls_join_close(ls_trainer *trainer, bool failed)
{
    ls_comm **comms[] = {&trainer->norm_comm, &trainer->comm};
    hook_waits(trainer, false);
    if (failed) {
        ls_join_abandon(trainer);
    }
    for (size_t i = 0; !trainer->stuck && i < sizeof comms / sizeof comms[0]; i++) {
        if (*comms[i] != NULL) {
            trainer->engine->close(*comms[i]);
            *comms[i] = NULL;
        }
    }
    if (trainer->norm_event != NULL && !trainer->stuck) {
        trainer->device.api->event_destroy(trainer->norm_event);
        trainer->norm_event = NULL;
    }
    if (trainer->store != NULL) {
        ls_store_close(trainer->store, failed ? 1.0 : LINGER_S);
        trainer->store = NULL;
    }
}
