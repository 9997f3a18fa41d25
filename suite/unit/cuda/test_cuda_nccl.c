/* The NCCL engine on NCCL emulated between processes: every operation, type and size, order between
 * streams, graphs, registered memory, ranks that share a device, and the errors a rank sees when
 * another is late, gone, or calls another operation. */
#include <pthread.h>

#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "reference/comm/exercise.h"
#include "cuda_memory.h"
#include "use_emulation.h"
#include "suite/unit/harness/world.h"
#include "suite/unit/run_suite.h"

typedef struct peer {
    ls_exercise_peer at;
    ls_backend backend;
    ls_store *store;
} peer;

static ls_status try_open(peer *self, const char *name, bool oversubscribe, double timeout_s,
                          ls_comm *other)
{
    ls_comm_options options = {.rank = self->at.rank,
                               .world = self->at.members.count,
                               .store = self->store,
                               .name = name,
                               .timeout_s = timeout_s,
                               .backend_api = &CUDA_MEMORY,
                               .backend = &self->backend,
                               .oversubscribe = oversubscribe,
                               .other = other};
    return self->at.api->open(&options, &self->at.comm);
}

/* Everything except the communicator. */
static void join(peer *self, int rank, int world, int port, int device)
{
    *self = (peer){.at = {.rank = rank, .members = ls_pattern_all(world)}, .backend = {device}};
    ls_store_options where = {.rank = rank,
                              .world = world,
                              .address = "127.0.0.1",
                              .port = port,
                              .run_id = "test_cuda_nccl",
                              .timeout_s = 10};
    RANK_CHECK(ls_store_open(&where, &self->store) == LS_OK);
    RANK_CHECK(cudaSetDevice(device) == cudaSuccess);
    RANK_CHECK(ls_comm_load("nccl", &self->at.api) == LS_OK);
    self->at.backend_api = &CUDA_MEMORY;
    self->at.backend = &self->backend;
    RANK_CHECK(CUDA_MEMORY.stream_create(&self->backend, &self->at.stream) == LS_OK);
}

static void open_peer(peer *self, int rank, int world, int port, double timeout_s)
{
    join(self, rank, world, port, rank);
    RANK_CHECK(try_open(self, "test", false, timeout_s, NULL) == LS_OK);
}

static void close_peer(peer *self)
{
    self->at.api->close(self->at.comm);
    ls_store_close(self->store, 5.0);
}

static void *take(peer *self, int64_t bytes)
{
    void *memory = NULL;
    RANK_CHECK(CUDA_MEMORY.memory_alloc(&self->backend, bytes, "test", &memory) == LS_OK);
    return memory;
}

/* Enqueues: memory[count] = value everywhere. */
static void put(peer *self, int32_t *memory, int count, int32_t value)
{
    int32_t host[64];
    LS_ASSERT(count <= 64);
    for (int i = 0; i < count; i++) {
        host[i] = value;
    }
    RANK_CHECK(CUDA_MEMORY.copy_in(&self->backend, self->at.stream, memory, host,
                                   count * (int64_t)sizeof *host) == LS_OK);
    RANK_CHECK(CUDA_MEMORY.stream_wait(self->at.stream) == LS_OK);
}

static void expect(peer *self, const int32_t *memory, int count, int32_t value)
{
    int32_t host[64];
    RANK_CHECK(CUDA_MEMORY.copy_out(&self->backend, self->at.stream, host, memory,
                                    count * (int64_t)sizeof *host) == LS_OK);
    RANK_CHECK(CUDA_MEMORY.stream_wait(self->at.stream) == LS_OK);
    for (int i = 0; i < count; i++) {
        RANK_CHECK(host[i] == value);
    }
}

static ls_comm_op sum_of(int32_t *memory, int count)
{
    return (ls_comm_op){.kind = LS_COMM_ALL_REDUCE,
                        .buffer = memory,
                        .count = count,
                        .dtype = LS_I32,
                        .label = "sum"};
}

static int seconds_since(int64_t begun_ns)
{
    return (int)(ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3);
}

/* ---- every operation ------------------------------------------------------------------------- */

static void exercise(const peer *self, ls_exercise what, bool both_places)
{
    for (int place = 0; place <= (both_places && ls_exercise_can_be_in_place(what.kind)); place++) {
        ls_exercise_result result;
        what.in_place = place == 1;
        RANK_CHECK(ls_exercise_run(&self->at, &what, &result) == LS_OK);
        RANK_CHECK(result.wrong == 0 && result.guards == 0);
        /* two terms have one order */
        RANK_CHECK(what.data == LS_PATTERN_EXACT || self->at.members.count < 3 ||
                   result.checked == 0 || result.telling > 0);
    }
}

static int every_operation(int rank, int world, int port, void *context)
{
    static const ls_comm_kind kinds[] = {
        LS_COMM_ALL_REDUCE,     LS_COMM_BROADCAST, LS_COMM_ALL_GATHER,
        LS_COMM_REDUCE_SCATTER, LS_COMM_REDUCE,    LS_COMM_GATHER,
        LS_COMM_SCATTER,        LS_COMM_SEND,      LS_COMM_ALL_TO_ALL};
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16, LS_F64, LS_I64, LS_I32, LS_U8};
    static const int64_t counts[] = {0, 1, 3, 1023};
    peer self;
    (void)context;
    open_peer(&self, rank, world, port, 20);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (kinds[k] == LS_COMM_SEND && world == 1) {
            continue; /* no destination */
        }
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                int redops = ls_comm_kind_reduces(kinds[k]) ? LS_COMM_PROD : LS_COMM_SUM;
                for (int redop = LS_COMM_SUM; redop <= redops; redop++) {
                    exercise(&self,
                             (ls_exercise){.kind = kinds[k],
                                           .redop = (ls_comm_redop)redop,
                                           .dtype = types[t],
                                           .count = counts[c],
                                           .root = (int)c % world,
                                           .offset = (int)t % 2,
                                           .iterations = 1},
                             true);
                }
            }
        }
    }
    static const ls_comm_kind sums[] = {LS_COMM_ALL_REDUCE, LS_COMM_REDUCE_SCATTER, LS_COMM_REDUCE};
    for (int k = 0; k < 3 * 3 * 4; k++) {
        exercise(&self,
                 (ls_exercise){.kind = sums[k / 3 % 3],
                               .redop = (ls_comm_redop)(k / 9),
                               .dtype = types[k % 3],
                               .data = LS_PATTERN_ROUGH,
                               .count = 40009, /* more than a ring of the network holds */
                               .root = world - 1,
                               .iterations = 1},
                 true);
    }
    exercise(
        &self,
        (ls_exercise){.kind = LS_COMM_ALL_REDUCE, .dtype = LS_F16, .count = 4096, .iterations = 3},
        true);
    close_peer(&self);
    return 0;
}

/* Input at the start of the buffer, where NCCL would have it at the rank's part. */
static int input_at_start(int rank, int world, int port, void *context)
{
    enum { COUNT = 5 };
    peer self;
    (void)context;
    open_peer(&self, rank, world, port, 20);
    int32_t *memory = take(&self, world * COUNT * (int64_t)sizeof *memory);
    ls_comm_op op = {.buffer = memory, .count = COUNT, .dtype = LS_I32, .root = world - 1};
    put(&self, memory, COUNT, 100 + rank);
    op.kind = LS_COMM_ALL_GATHER;
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    for (int from = 0; from < world; from++) {
        expect(&self, memory + from * COUNT, COUNT, 100 + from);
    }
    for (int part = 0; part < world; part++) {
        put(&self, memory + part * COUNT, COUNT, 10 * part);
    }
    op.kind = LS_COMM_REDUCE_SCATTER;
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    expect(&self, memory, COUNT, 10 * rank * world);
    for (int part = 0; part < world; part++) {
        put(&self, memory + part * COUNT, COUNT, 7 * part);
    }
    op.kind = LS_COMM_SCATTER;
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    expect(&self, memory, COUNT, 7 * rank);
    put(&self, memory, COUNT, 3 * rank);
    op.kind = LS_COMM_GATHER;
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    for (int from = 0; rank == op.root && from < world; from++) {
        expect(&self, memory + from * COUNT, COUNT, 3 * from);
    }
    op.kind = LS_COMM_ALL_TO_ALL; /* never in place; the next operation works */
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_ERR_USAGE);
    op.kind = LS_COMM_BARRIER;
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    close_peer(&self);
    return 0;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Work is enqueued on the caller's stream before and after, and runs as late as possible: only
 * begin and wait determine the order. */
static int order_of_streams(int rank, int world, int port, void *context)
{
    enum { COUNT = 16, BUCKETS = 5, BYTES = COUNT * (int)sizeof(int32_t) };
    peer self;
    (void)context;
    open_peer(&self, rank, world, port, 20);
    ls_event *event[BUCKETS];
    ls_comm_handle handle[BUCKETS];
    int32_t *bucket = take(&self, BUCKETS * BYTES), *copy = take(&self, BUCKETS * BYTES);
    cudaStream_t stream = CUDA_MEMORY.stream_native(self.at.stream);
    for (int step = 0; step < 3; step++) {
        for (int b = 0; b < BUCKETS; b++) {
            int32_t *at = bucket + b * COUNT;
            if (step == 0) {
                RANK_CHECK(CUDA_MEMORY.event_create(&self.backend, &event[b]) == LS_OK);
            }
            RANK_CHECK(cudaMemsetAsync(at, b + 1 + step, BYTES, stream) == cudaSuccess);
            RANK_CHECK(CUDA_MEMORY.event_record(event[b], self.at.stream) == LS_OK);
            ls_comm_op op = sum_of(at, COUNT);
            RANK_CHECK(self.at.api->begin(self.at.comm, &op, event[b], &handle[b]) == LS_OK);
            RANK_CHECK(handle[b].number == (uint64_t)(step * BUCKETS + b));
        }
        for (int b = 0; b < BUCKETS; b++) {
            RANK_CHECK(self.at.api->wait(self.at.comm, &handle[b], self.at.stream) == LS_OK);
            RANK_CHECK(cudaMemcpyAsync(copy + b * COUNT, bucket + b * COUNT, BYTES,
                                       cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
        }
        RANK_CHECK(self.at.api->poll(self.at.comm) == LS_OK);
        for (int b = 0; b < BUCKETS; b++) {
            expect(&self, copy + b * COUNT, COUNT, world * 0x01010101 * (b + 1 + step));
        }
    }
    close_peer(&self);
    return 0;
}

/* More operations than the engine allows the host to be ahead; the first wait comes after the last
 * begin. */
static int far_ahead(int rank, int world, int port, void *context)
{
    enum { OPERATIONS = 150 };
    peer self;
    ls_comm_handle handle[OPERATIONS];
    (void)context;
    open_peer(&self, rank, world, port, 20);
    int32_t *sum = take(&self, OPERATIONS * (int)sizeof *sum);
    for (int i = 0; i < OPERATIONS; i++) {
        put(&self, sum + i, 1, i + rank);
    }
    for (int i = 0; i < OPERATIONS; i++) {
        ls_comm_op op = sum_of(sum + i, 1);
        RANK_CHECK(self.at.api->begin(self.at.comm, &op, NULL, &handle[i]) == LS_OK);
    }
    for (int i = 0; i < OPERATIONS; i++) {
        RANK_CHECK(self.at.api->wait(self.at.comm, &handle[i], self.at.stream) == LS_OK);
    }
    for (int i = 0; i < OPERATIONS; i++) {
        expect(&self, sum + i, 1, world * i + world * (world - 1) / 2);
    }
    close_peer(&self);
    return 0;
}

/* Operations of two communicators that know each other run one after the other, in the order in
 * which they are begun: rank 1 does not begin `first` for a while, so that the later operation of
 * rank 0 must not run, although rank 1 would take part in it. */
static int follow(int rank, int world, int port, void *context)
{
    peer self;
    ls_comm_handle handle[2];
    (void)context;
    open_peer(&self, rank, world, port, 20);
    ls_comm *first = self.at.comm, *second = NULL;
    RANK_CHECK(try_open(&self, "norm", false, 20, rank == 0 ? first : NULL) == LS_OK);
    second = self.at.comm;
    int32_t *one = take(&self, 4), *two = take(&self, 4);
    ls_comm_op sum = sum_of(one, 1), other = sum_of(two, 1);
    cudaStream_t stream = CUDA_MEMORY.stream_native(self.at.stream);
    put(&self, one, 1, 1);
    put(&self, two, 1, 1);
    RANK_CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    if (rank == 0) {
        RANK_CHECK(self.at.api->begin(first, &sum, NULL, &handle[0]) == LS_OK);
    }
    RANK_CHECK(self.at.api->begin(second, &other, NULL, &handle[1]) == LS_OK);
    RANK_CHECK(self.at.api->wait(second, &handle[1], self.at.stream) == LS_OK);
    if (rank != 0) {
        int64_t begun_ns = ls_clock_ns();
        while (ls_clock_ms_between(begun_ns, ls_clock_ns()) < 300) {
            RANK_CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
        }
        RANK_CHECK(self.at.api->begin(first, &sum, NULL, &handle[0]) == LS_OK);
    }
    RANK_CHECK(self.at.api->wait(first, &handle[0], self.at.stream) == LS_OK);
    expect(&self, one, 1, world);
    expect(&self, two, 1, world);
    self.at.api->close(first); /* in either order */
    close_peer(&self);
    return 0;
}

/* A whole step recorded once and launched repeatedly: each launch sums the buffer's current
 * contents, also with a second, concurrent communicator. */
static int graph(int rank, int world, int port, void *context)
{
    enum { COUNT = 8 };
    peer self;
    ls_event *event = NULL;
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t launched = NULL;
    ls_comm_handle handle[2];
    (void)context;
    open_peer(&self, rank, world, port, 20);
    ls_comm *first = self.at.comm, *second = NULL;
    RANK_CHECK(try_open(&self, "norm", false, 20, first) == LS_OK);
    second = self.at.comm;
    int32_t *in = take(&self, COUNT * 4), *sum = take(&self, COUNT * 4);
    int32_t *all = take(&self, world * COUNT * 4);
    cudaStream_t stream = CUDA_MEMORY.stream_native(self.at.stream);
    RANK_CHECK(CUDA_MEMORY.event_create(&self.backend, &event) == LS_OK);
    ls_comm_op reduce = sum_of(sum, COUNT), gather = sum_of(all, COUNT);
    gather.kind = LS_COMM_ALL_GATHER;
    gather.input = in;
    /* one before, still running when the capture begins */
    RANK_CHECK(self.at.api->begin(first, &reduce, NULL, &handle[0]) == LS_OK);
    RANK_CHECK(self.at.api->wait(first, &handle[0], self.at.stream) == LS_OK);
    RANK_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    RANK_CHECK(cudaMemcpyAsync(sum, in, COUNT * 4, cudaMemcpyDeviceToDevice, stream) ==
               cudaSuccess);
    RANK_CHECK(CUDA_MEMORY.event_record(event, self.at.stream) == LS_OK);
    RANK_CHECK(self.at.api->begin(first, &reduce, event, &handle[0]) == LS_OK);
    RANK_CHECK(self.at.api->begin(second, &gather, event, &handle[1]) == LS_OK);
    RANK_CHECK(self.at.api->wait(second, &handle[1], self.at.stream) == LS_OK);
    RANK_CHECK(self.at.api->wait(first, &handle[0], self.at.stream) == LS_OK);
    RANK_CHECK(cudaStreamEndCapture(stream, &recorded) == cudaSuccess);
    RANK_CHECK(cudaGraphInstantiate(&launched, recorded, 0) == cudaSuccess);
    for (int launch = 1; launch <= 3; launch++) {
        put(&self, in, COUNT, 10 * launch + rank);
        RANK_CHECK(cudaGraphLaunch(launched, stream) == cudaSuccess);
        expect(&self, sum, COUNT, 10 * launch * world + world * (world - 1) / 2);
        for (int from = 0; from < world; from++) {
            expect(&self, all + from * COUNT, COUNT, 10 * launch + from);
        }
        RANK_CHECK(ls_comm_run(self.at.api, first, &reduce, NULL) == LS_OK); /* between launches */
    }
    RANK_CHECK(cudaGraphExecDestroy(launched) == cudaSuccess);
    RANK_CHECK(cudaGraphDestroy(recorded) == cudaSuccess);
    self.at.api->close(first);
    close_peer(&self);
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* refuse: the last rank's NCCL does not register, so no rank may. */
static int memory(int rank, int world, int port, void *context)
{
    bool refuse = *(bool *)context;
    peer self;
    void *arena = NULL;
    if (refuse && rank == world - 1) {
        setenv("NCCL_LOCAL_REGISTER", "0", 1);
    }
    open_peer(&self, rank, world, port, 20);
    RANK_CHECK(self.at.api->memory_alloc(self.at.comm, 4096, "gradients", &arena) == LS_OK);
    int32_t *at = arena;
    expect(&self, at, 64, 0);
    put(&self, at + 3, 10, rank + 1);
    ls_comm_op op = sum_of(at + 3, 10);
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    expect(&self, at + 3, 10, world * (world + 1) / 2);
    expect(&self, at + 13, 10, 0);
    close_peer(&self); /* the memory is not registered any more: freeing it is allowed */
    self.at.api->memory_free(arena);
    return 0;
}

/* Separate hosts, like the launcher's simulated nodes: nothing is registered. */
static int apart(int rank, int world, int port, void *context)
{
    peer self;
    char host[32];
    void *arena = NULL;
    (void)context;
    snprintf(host, sizeof host, "lockstep-node-%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    if (rank == 1) {
        setenv("NCCL_GRAPH_REGISTER", "1", 1); /* the user's value is kept */
    }
    open_peer(&self, rank, world, port, 20);
    RANK_CHECK(strcmp(getenv("NCCL_LOCAL_REGISTER"), "0") == 0);
    RANK_CHECK(strcmp(getenv("NCCL_GRAPH_REGISTER"), rank == 1 ? "1" : "0") == 0);
    RANK_CHECK(self.at.api->memory_alloc(self.at.comm, 4096, "gradients", &arena) == LS_OK);
    int32_t *at = arena;
    put(&self, at, 10, rank + 1);
    ls_comm_op op = sum_of(at, 10);
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    expect(&self, at, 10, world * (world + 1) / 2);
    close_peer(&self);
    self.at.api->memory_free(arena);
    return 0;
}

/* The network between hosts: sockets are refused where an adapter's port is up, unless the user
 * asks for them. Blocking communicators connect, too. */
static const struct network {
    const char *used, *state, *asked, *blocking;
    ls_status status;
} networks[] = {
    {"Socket", "4: ACTIVE\n", NULL, "0", LS_ERR_INFRA},
    {"Socket", "4: ACTIVE\n", "Socket", "0", LS_OK},
    {"Socket", "1: DOWN\n", NULL, "0", LS_OK},
    {"Socket", NULL, NULL, "1", LS_OK},
    {"IB", "4: ACTIVE\n", NULL, "1", LS_OK},
    {"AWS Libfabric", "4: ACTIVE\n", NULL, "0", LS_OK},
};

static int network(int rank, int world, int port, void *context)
{
    const struct network *n = context;
    peer self;
    char folder[] = "/tmp/lockstep-network-XXXXXX";
    RANK_CHECK(mkdtemp(folder) != NULL);
    LS_TEXT(adapter, 200, "%s/class/infiniband/mlx5_0/ports/2", folder);
    LS_TEXT(state, 300, "%s/state", adapter);
    LS_TEXT(host, 32, "lockstep-node-%d", rank);
    LS_TEXT(log, 200, "%s/nccl.test.rank%d.log", folder, rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("LS_RUN_DIR", folder, 1);
    setenv("LS_SYSFS", folder, 1);
    setenv("LS_EMULATED_NETWORK", n->used, 1);
    setenv("LS_NCCL_BLOCKING", n->blocking, 1);
    if (n->asked != NULL) {
        setenv("NCCL_NET", n->asked, 1);
    }
    if (n->state != NULL) {
        RANK_CHECK(ls_path_make_folder(adapter) == LS_OK);
        RANK_CHECK(ls_file_replace(state, n->state, strlen(n->state)) == LS_OK);
    }
    join(&self, rank, world, port, rank);
    RANK_CHECK(try_open(&self, "test", false, 20, NULL) == n->status);
    RANK_CHECK(access(log, R_OK) == 0);
    if (n->status == LS_OK) {
        const char *said = self.at.api->transport(self.at.comm);
        RANK_CHECK(said != NULL && strncmp(n->used, said, strlen(said)) == 0);
        close_peer(&self);
    } else {
        ls_store_close(self.store, 5.0);
    }
    ls_path_remove_tree(folder);
    return 0;
}

/* ---- who shares a device --------------------------------------------------------------------- */

static int shared_device(int rank, int world, int port, void *context)
{
    bool allowed = *(bool *)context;
    peer self;
    join(&self, rank, world, port, 0);
    ls_status status = try_open(&self, "test", allowed, 10, NULL);
    if (!allowed) {
        RANK_CHECK(status == LS_ERR_INFRA && getenv("NCCL_HOSTID") == NULL);
        RANK_CHECK(ls_store_barrier(self.store, "seen", 10) == LS_OK);
        ls_store_close(self.store, 5.0);
        return 0;
    }
    RANK_CHECK(status == LS_OK);
    RANK_CHECK(strncmp(getenv("NCCL_HOSTID"), "lockstep-", 9) == 0);
    RANK_CHECK(strcmp(getenv("NCCL_SOCKET_IFNAME"), "lo") == 0);
    RANK_CHECK(strcmp(getenv("NCCL_NET"), "Socket") == 0);
    RANK_CHECK(getenv("NCCL_LOCAL_REGISTER") == NULL); /* sockets register nothing */
    int32_t *at = take(&self, 64);
    put(&self, at, 4, rank);
    ls_comm_op op = sum_of(at, 4);
    RANK_CHECK(ls_comm_run(self.at.api, self.at.comm, &op, NULL) == LS_OK);
    expect(&self, at, 4, world * (world - 1) / 2);
    close_peer(&self);
    return 0;
}

static int pinned(int rank, int world, int port, void *context)
{
    peer self;
    char text[256];
    (void)context;
    setenv("NCCL_PROTO", "LL", 1); /* the user's value is kept */
    join(&self, rank, world, port, rank);
    ls_comm_options options = {.rank = rank,
                               .world = world,
                               .store = self.store,
                               .name = "test",
                               .timeout_s = 10,
                               .backend_api = &CUDA_MEMORY,
                               .backend = &self.backend,
                               .deterministic = true};
    RANK_CHECK(self.at.api->open(&options, &self.at.comm) == LS_OK);
    RANK_CHECK(strcmp(getenv("NCCL_ALGO"), "Ring") == 0);
    RANK_CHECK(strcmp(getenv("NCCL_PROTO"), "LL") == 0);
    RANK_CHECK(getenv("NCCL_HOSTID") == NULL);
    self.at.api->describe(text, (int)sizeof text);
    RANK_CHECK(strncmp(text, "NCCL 2.", 7) == 0 && strstr(text, ".so") != NULL);
    close_peer(&self);
    return 0;
}

/* ---- ranks that are late, gone or wrong ------------------------------------------------------ */

/* All ranks but 0 choose how the job fails; rank 0 waits for them. */
typedef enum wrong {
    LATE_TO_OPEN,
    REFUSED_TO_OPEN, /* by the last rank's machine */
    LATE,
    KILLED,
    KILLED_SILENTLY,
    OTHER_COUNT,
    OTHER_KIND,
    ABORTED
} wrong;

static bool is_killed(wrong how)
{
    return how == KILLED || how == KILLED_SILENTLY;
}

static void *abort_comm(void *context)
{
    peer *self = context;
    self->at.api->abort(self->at.comm);
    return NULL;
}

/* The survivor: waits through a stream, as a step does, or on the host. */
static ls_status wait_for_others(peer *self, int32_t *at)
{
    ls_comm_op op = sum_of(at, 10);
    ls_comm_handle handle;
    LS_TRY(self->at.api->begin(self->at.comm, &op, NULL, &handle));
    LS_TRY(self->at.api->wait(self->at.comm, &handle, self->at.stream));
    cudaStream_t stream = CUDA_MEMORY.stream_native(self->at.stream);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
        LS_TRY(self->at.api->poll(self->at.comm));
    }
    return self->at.api->poll(self->at.comm); /* it may have failed since the last one */
}

static int goes_wrong(int rank, int world, int port, void *context)
{
    wrong how = *(wrong *)context;
    double timeout_s = how == LATE || how == LATE_TO_OPEN ? 0.5 : 20;
    peer self;
    join(&self, rank, world, port, rank);
    int64_t begun_ns = ls_clock_ns();
    if (how == LATE_TO_OPEN) {
        ls_status status = rank == 0 ? try_open(&self, "test", false, timeout_s, NULL) : LS_OK;
        RANK_CHECK(rank != 0 || status == LS_ERR_RENDEZVOUS);
        RANK_CHECK(ls_store_barrier(self.store, "seen", 10) == LS_OK);
        ls_store_close(self.store, 5.0);
        return 0;
    }
    if (how == REFUSED_TO_OPEN) {
        bool refused = rank == world - 1;
        if (refused) {
            setenv("LS_EMULATED_NO_SHM", "1", 1);
        }
        ls_status status = try_open(&self, "test", false, timeout_s, NULL);
        RANK_CHECK(status == (refused ? LS_ERR_INFRA : LS_ERR_PEER_LOST));
        RANK_CHECK(seconds_since(begun_ns) < 10);
        ls_store_close(self.store, 1.0);
        return 0;
    }
    RANK_CHECK(try_open(&self, "test", false, timeout_s, NULL) == LS_OK);
    int32_t *at = take(&self, 64 * 4);
    ls_status status = LS_OK;
    pthread_t thread;
    if (rank == 0) {
        if (how == ABORTED) {
            RANK_CHECK(pthread_create(&thread, NULL, abort_comm, &self) == 0);
        }
        status = wait_for_others(&self, at);
        RANK_CHECK(how != ABORTED || pthread_join(thread, NULL) == 0);
    } else if (is_killed(how)) {
        raise(SIGKILL);
    } else if (how == OTHER_COUNT || how == OTHER_KIND) {
        ls_comm_op op = sum_of(at, how == OTHER_COUNT ? 12 : 10);
        op.kind = how == OTHER_KIND ? LS_COMM_BROADCAST : op.kind;
        status = ls_comm_run(self.at.api, self.at.comm, &op, NULL);
    }
    if (rank == 0 || how == OTHER_COUNT) {
        ls_status wanted =
            how == OTHER_COUNT || how == OTHER_KIND ? LS_ERR_INFRA : LS_ERR_PEER_LOST;
        RANK_CHECK(status == wanted || (wanted == LS_ERR_INFRA && status == LS_ERR_PEER_LOST));
        RANK_CHECK(self.at.api->poll(self.at.comm) != LS_OK);
        RANK_CHECK(seconds_since(begun_ns) < 10);
        ls_comm_op op = sum_of(at, 1);
        ls_comm_handle handle;
        RANK_CHECK(self.at.api->begin(self.at.comm, &op, NULL, &handle) != LS_OK);
    }
    if (is_killed(how)) { /* the store of a world of two cannot end regularly */
        self.at.api->close(self.at.comm);
        return 0;
    }
    RANK_CHECK(ls_store_barrier(self.store, "seen", 10) == LS_OK);
    self.at.api->abort(self.at.comm);
    close_peer(&self);
    return 0;
}

/* ---- the runs -------------------------------------------------------------------------------- */

static void run(int world, world_function *function, void *context)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(world, function, context, code), 0);
}

RANGE_TEST(test_every_operation, 1, 4)
{
    run(_i, every_operation, NULL);
}

RANGE_TEST(test_input_at_start, 1, 4)
{
    run(_i, input_at_start, NULL);
}

LOOP_TEST(test_order, 2)
{
    setenv("LS_EMULATED_LATE", _i == 0 ? "0" : "1", 1);
    run(2, order_of_streams, NULL);
    run(2, far_ahead, NULL);
    run(3, graph, NULL);
    run(2, follow, NULL);
}

TEST(test_apart)
{
    run(3, apart, NULL);
}

ROWS_TEST(test_network, networks)
{
    struct network n = networks[_i];
    run(2, network, &n);
}

LOOP_TEST(test_memory, 2)
{
    bool refuse = _i == 1;
    run(2, memory, &refuse);
    run(1, memory, &refuse);
}

LOOP_TEST(test_places, 2)
{
    bool allowed = _i == 1;
    run(2, shared_device, &allowed);
    run(2, pinned, NULL);
}

RANGE_TEST(test_goes_wrong, LATE_TO_OPEN, ABORTED + 1)
{
    wrong how = (wrong)_i;
    int code[WORLD_MAX];
    setenv("LS_EMULATED_SILENT", how == KILLED_SILENTLY ? "1" : "0", 1);
    int failed = world_run(2, goes_wrong, &how, code);
    if (is_killed(how)) {
        ck_assert_int_eq(code[0], 0);
        ck_assert_int_eq(code[1], 128 + SIGKILL);
    } else {
        ck_assert_int_eq(failed, 0);
    }
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("nccl", .timeout_s = 60);
}
