/* The emulation itself: the behaviour of kernels, streams and graphs, and what it refuses. */
#include "kernels/cuda/element.h"
#include "suite/unit/run_suite.h"

#include <signal.h>
#include <sys/wait.h>

static cudaStream_t stream;

/* A call of the runtime, or a launch. */
static void must(int status)
{
    ck_assert_int_eq(status, 0);
}

template <typename T> static T *device(int64_t count)
{
    void *memory = NULL;
    must(cudaMalloc(&memory, (size_t)count * sizeof(T)));
    must(cudaMemset(memory, 0, (size_t)count * sizeof(T)));
    must(cudaStreamSynchronize(NULL)); /* the call itself does not make the host wait */
    return (T *)memory;
}

template <typename T> static void read_back(T *to, const T *from, int64_t count)
{
    must(cudaMemcpyAsync(to, from, (size_t)count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
}

static void set_up(void)
{
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

static void tear_down(void)
{
    cudaStreamDestroy(stream);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The sum of each block's elements, by warps and then through shared memory. */
template <typename T> LS_KERNEL block_sum(const T *from, int count, T *out)
{
    LS_SHARED(T, part, 32);
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    T sum = at < count ? from[at] : 0;
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, (unsigned)step);
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        T all = 0;
        for (unsigned i = 0; i < blockDim.x / 32; i++) {
            all += part[i];
        }
        out[blockIdx.x] = all;
    }
}

LS_KERNEL fill(int *to, int count)
{
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (at < count) {
        to[at] = at;
    }
}

static ls_status launch_sum(const int *from, int count, int *out)
{
    LS_LAUNCH(block_sum<int>, ls_launch_blocks(count, 256), 256, stream, from, count, out);
    return LS_OK;
}

static ls_status launch_fill(int *to, int count)
{
    LS_LAUNCH(fill, ls_launch_blocks(count, 128), 128, stream, to, count);
    return LS_OK;
}

TEST(blocks_sum_by_shuffles_and_barriers)
{
    enum { COUNT = 1000 };
    int *values = device<int>(COUNT), *sums = device<int>(4), host[4], expected[4] = {0};
    must(launch_fill(values, COUNT));
    must(launch_sum(values, COUNT, sums));
    read_back(host, sums, 4);
    for (int i = 0; i < COUNT; i++) {
        expected[i / 256] += i;
    }
    for (int b = 0; b < 4; b++) {
        ck_assert_int_eq(host[b], expected[b]);
    }
}

/* Each thread but three passes its predecessor's number on, through shared memory that is written
 * after a barrier; `barrier`: and read after another. */
LS_KERNEL pass_on(int *to, int barrier)
{
    LS_SHARED(int, number, 64);
    int at = (int)threadIdx.x;
    number[at] = -1;
    __syncthreads();
    number[at] = at;
    if (barrier) {
        __syncthreads();
    }
    to[at] = at > 1 && at < (int)blockDim.x - 1 ? number[at - 1] : at;
}

static ls_status launch_pass_on(int *to, int barrier)
{
    LS_LAUNCH(pass_on, 1, 64, stream, to, barrier);
    return LS_OK;
}

static bool passed_on(const char *order, int barrier)
{
    int *numbers = device<int>(64), host[64];
    bool right = true;
    setenv("LS_EMULATED_ORDER", order, 1);
    must(launch_pass_on(numbers, barrier));
    read_back(host, numbers, 64);
    unsetenv("LS_EMULATED_ORDER");
    for (int at = 0; at < 64; at++) {
        right = right && host[at] == (at > 1 && at < 63 ? at - 1 : at);
    }
    cudaFree(numbers);
    return right;
}

/* A barrier that is missing shows in drawn orders, also where neither direction shows it. */
TEST(order_shows_a_missing_barrier)
{
    int wrong = 0;
    for (int seed = 0; seed < 50; seed++) {
        char order[16];
        snprintf(order, sizeof order, "%d", seed);
        ck_assert(passed_on(order, 1));
        wrong += !passed_on(order, 0);
    }
    ck_assert(passed_on("forward", 1) && passed_on("backward", 1));
    ck_assert(passed_on("forward", 0) && passed_on("backward", 0));
    ck_assert_int_eq(wrong, 50);
}

LS_KERNEL votes(unsigned *ballot, int *partner, int *best)
{
    int lane = (int)threadIdx.x;
    unsigned bits = __ballot_sync(0xffffffffu, lane % 3 == 0);
    int other = __shfl_xor_sync(0xffffffffu, lane, 5);
    if (lane < 8) { /* half a warp may synchronise by itself */
        other += 100 * __shfl_sync(0xffu, lane, 7);
    }
    ballot[lane] = bits;
    partner[lane] = other;
    atomicMax(best, lane);
}

static ls_status launch_votes(unsigned *ballot, int *partner, int *best)
{
    LS_LAUNCH(votes, 1, 32, stream, ballot, partner, best);
    return LS_OK;
}

TEST(lanes_vote_and_exchange)
{
    unsigned *ballot = device<unsigned>(32), bits[32], expected = 0;
    int *partner = device<int>(32), *best = device<int>(1), other[32], most;
    must(launch_votes(ballot, partner, best));
    read_back(bits, ballot, 32);
    read_back(other, partner, 32);
    read_back(&most, best, 1);
    for (unsigned i = 0; i < 32; i += 3) {
        expected |= 1u << i;
    }
    for (int i = 0; i < 32; i++) {
        ck_assert_uint_eq(bits[i], expected);
        ck_assert_int_eq(other[i], (i ^ 5) + (i < 8 ? 700 : 0));
    }
    ck_assert_int_eq(most, 31);
}

template <typename T> LS_KERNEL twice(T *values)
{
    enum { LANES = ls_element_lanes<T>::value };
    float v[LANES];
    T *mine = values + threadIdx.x * LANES;
    ls_element_load(v, mine);
    for (int i = 0; i < LANES; i++) {
        v[i] *= 2;
    }
    ls_element_store(mine, v);
}

static ls_status launch_twice(ls_dtype type, void *values)
{
    LS_BY_ELEMENT(type, T, LS_LAUNCH(twice<T>, 1, 4, stream, (T *)values));
    return LS_OK;
}

TEST(elements_of_every_type)
{
    static const uint16_t one[] = {0x3c00, 0x3f80}, two[] = {0x4000, 0x4000};
    for (int half = 0; half < 2; half++) {
        uint16_t *values = device<uint16_t>(32), host[32];
        for (int i = 0; i < 32; i++) {
            host[i] = one[half];
        }
        must(cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice));
        must(launch_twice(half == 0 ? LS_F16 : LS_BF16, values));
        read_back(host, values, 32);
        for (int i = 0; i < 32; i++) {
            ck_assert_uint_eq(host[i], two[half]);
        }
    }
}

/* ---- what it refuses: in a child, which must abort and name the kernel ----------------------- */

LS_KERNEL half_waits(int *out)
{
    if (threadIdx.x < 32) {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

LS_KERNEL some_return(int *out)
{
    if (threadIdx.x > 40) {
        return;
    }
    __syncthreads();
    out[threadIdx.x] = 1;
}

LS_KERNEL divergent(int *out)
{
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
    } else {
        out[threadIdx.x] = (int)__ballot_sync(0xffffffffu, 1);
    }
}

LS_KERNEL lonely(int *out)
{
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
    } else {
        __syncthreads();
    }
}

LS_KERNEL beyond_shared(int *out)
{
    LS_SHARED(int, part, 32);
    int *next = part + 1; /* not by the array: a sanitizer would see it before the emulation does */
    next[threadIdx.x] = 1;
    out[0] = part[0];
}

LS_KERNEL unaligned(int *out)
{
    ls_vector_store(out + 1, ls_vector_load(out));
}

LS_KERNEL reads_too_early(int *out)
{
    int before = out[threadIdx.x];
    ls_launch_wait();
    out[threadIdx.x] = before + 1;
}

LS_KERNEL writes_too_early(int *out)
{
    out[threadIdx.x] = 1;
    ls_launch_wait();
}

LS_KERNEL some_wait(int *out)
{
    if (threadIdx.x > 40) {
        return;
    }
    ls_launch_wait();
    out[threadIdx.x] = 1;
}

LS_KERNEL next_too_early(int *out)
{
    ls_launch_next();
    ls_launch_wait();
    out[threadIdx.x] = 1;
}

LS_KERNEL wait_then_next(int *out)
{
    unsigned to = (blockIdx.x * blockDim.x + threadIdx.x) % 64;
    ls_launch_wait();
    ls_launch_next();
    out[to] += 1;
}

static ls_status launch_early(int which, int *out)
{
    if (which < 4) {
        LS_LAUNCH(wait_then_next, 1, 64, stream, out);
    }
    switch (which) {
    case 0:
        LS_LAUNCH_BEHIND(true, reads_too_early, 2, 64, stream, out);
        break;
    case 1:
        LS_LAUNCH_BEHIND(true, writes_too_early, 2, 64, stream, out);
        break;
    case 2:
        LS_LAUNCH_BEHIND(true, some_wait, 2, 64, stream, out);
        break;
    case 3:
        LS_LAUNCH_BEHIND(true, next_too_early, 2, 64, stream, out);
        break;
    default:
        cudaMemsetAsync(out, 0, 64 * sizeof *out, stream);
        LS_LAUNCH_BEHIND(true, wait_then_next, 2, 64, stream, out);
    }
    return LS_OK;
}

static ls_status launch_bad(int which, int *out)
{
    switch (which) {
    case 0:
        LS_LAUNCH(half_waits, 1, 64, stream, out);
        break;
    case 1:
        LS_LAUNCH(some_return, 1, 64, stream, out);
        break;
    case 2:
        LS_LAUNCH(divergent, 1, 32, stream, out);
        break;
    case 3:
        LS_LAUNCH(lonely, 1, 64, stream, out);
        break;
    case 4:
        LS_LAUNCH(beyond_shared, 1, 32, stream, out);
        break;
    case 5:
        LS_LAUNCH(unaligned, 1, 1, stream, out);
        break;
    default:
        return launch_early(which - 6, out);
    }
    return LS_OK;
}

LOOP_TEST(wrong_kernels_abort, 11)
{
    static const char *const expected[][2] = {
        {"kernel half_waits", "returns while 32 threads wait in __syncthreads"},
        {"kernel some_return", "__syncthreads"},
        {"kernel divergent", "__ballot_sync with mask ffffffff meets lane 0 in __shfl_xor_sync"},
        {"kernel lonely", "deadlock: waits in __shfl_xor_sync"},
        {"kernel beyond_shared", "wrote outside a shared array of 128 bytes"},
        {"kernel unaligned", "not aligned to 16"},
        {"kernel reads_too_early", "touches memory of the device before ls_launch_wait"},
        {"kernel writes_too_early", "touches memory of the device before ls_launch_wait"},
        {"kernel some_wait", "returns without ls_launch_wait"},
        {"kernel next_too_early", "ls_launch_next before ls_launch_wait"},
        {"kernel wait_then_next", "not directly behind a kernel"},
    };
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        launch_bad(_i, device<int>(64));
        _exit(0);
    }
    close(pipes[1]);
    char text[1024] = "";
    size_t length = 0;
    ssize_t got;
    while ((got = read(pipes[0], text + length, sizeof text - 1 - length)) > 0) {
        length += (size_t)got;
    }
    close(pipes[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %d: %s", status,
                  text);
    ck_assert_msg(strstr(text, expected[_i][0]) != NULL && strstr(text, expected[_i][1]) != NULL,
                  "%s", text);
}

/* Early starts keep the order of the stream, recorded or not. */
static ls_status launch_chain(int *out)
{
    LS_LAUNCH(wait_then_next, 2, 32, stream, out);
    for (int i = 0; i < 3; i++) {
        LS_LAUNCH_BEHIND(true, wait_then_next, 2, 32, stream, out);
    }
    LS_LAUNCH_BEHIND(false, reads_too_early, 1, 64, stream, out);
    return LS_OK;
}

TEST(early_kernels_wait)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *values = device<int>(64), host[64];
    cudaMemsetAsync(values, 0, sizeof host, stream);
    must(launch_chain(values));
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    must(launch_chain(values));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        must(cudaGraphLaunch(exec, stream));
    }
    read_back(host, values, 64);
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq(host[i], 15);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

/* ---- streams and graphs ---------------------------------------------------------------------- */

LS_KERNEL add_one(int *to)
{
    to[threadIdx.x] += 1;
}

static ls_status launch_add(int *to, cudaStream_t where)
{
    LS_LAUNCH(add_one, 1, 8, where, to);
    return LS_OK;
}

TEST(graph_replays_what_was_recorded)
{
    cudaStream_t side;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *values = device<int>(8), host[8];
    void *pinned = NULL;
    must(cudaHostAlloc(&pinned, sizeof host, 0));
    memset(pinned, 0, sizeof host);
    must(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    must(cudaEventCreate(&fork));
    must(cudaEventCreate(&join));

    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    must(cudaMemcpyAsync(values, pinned, sizeof host, cudaMemcpyHostToDevice, stream));
    must(launch_add(values, stream));
    must(cudaEventRecord(fork, stream));
    must(cudaStreamWaitEvent(side, fork, 0));
    must(launch_add(values, side));
    must(cudaEventRecord(join, side));
    must(cudaStreamWaitEvent(stream, join, 0));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    read_back(host, values, 8);
    ck_assert_int_eq(host[3], 0); /* recorded, not executed */

    for (int start = 0; start < 3; start++) {
        for (int i = 0; i < 8; i++) {
            ((int *)pinned)[i] = 10 * start;
        }
        must(cudaGraphLaunch(exec, stream));
        read_back(host, values, 8);
        ck_assert_int_eq(host[7], 10 * start + 2);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(side);
}

TEST(capture_refuses_what_a_graph_cannot_hold)
{
    cudaStream_t side;
    cudaEvent_t fork;
    cudaGraph_t graph;
    void *memory = NULL;
    must(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    must(cudaEventCreate(&fork));
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ck_assert_int_eq(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);

    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);

    int *values = device<int>(8);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    must(cudaEventRecord(fork, stream));
    must(cudaStreamWaitEvent(side, fork, 0));
    must(launch_add(values, side));
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    cudaGetLastError();
    must(launch_add(values, side));
    cudaEventDestroy(fork);
    cudaStreamDestroy(side);
}

/* With LS_EMULATED_LATE work waits until it is needed, and events order streams. */
TEST(late_work_keeps_the_order_of_events)
{
    setenv("LS_EMULATED_LATE", "1", 1);
    cudaStream_t side;
    cudaEvent_t ready;
    int *values = device<int>(8), host[8];
    must(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    must(cudaEventCreate(&ready));
    must(launch_add(values, side));
    must(cudaEventRecord(ready, side));
    read_back(host, values, 8);
    ck_assert_int_eq(host[0], 0); /* nothing waited for the other stream */
    must(cudaStreamWaitEvent(stream, ready, 0));
    read_back(host, values, 8);
    ck_assert_int_eq(host[0], 1);
    cudaEventDestroy(ready);
    cudaStreamDestroy(side);
    unsetenv("LS_EMULATED_LATE");
}

LS_KERNEL copy_eight(int *to, const int *from)
{
    to[threadIdx.x] = from[threadIdx.x];
}

static ls_status launch_copy(int *to, const int *from, cudaStream_t where)
{
    LS_LAUNCH(copy_eight, 1, 8, where, to, from);
    return LS_OK;
}

/* A branch that reads what the stream has written, and is waited for by a later copy; `forks`,
 * `joins`: behind an event each. Whether all was in order. */
static bool branch_is_ordered(int seed, bool recorded, bool forks, bool joins)
{
    cudaStream_t side;
    cudaEvent_t fork, join;
    int *values = device<int>(8), *read = device<int>(8), *seen = device<int>(8), host[8];
    char late[16];
    snprintf(late, sizeof late, "%d", seed);
    must(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    must(cudaEventCreate(&fork));
    must(cudaEventCreate(&join));
    setenv("LS_EMULATED_LATE", late, 1);
    if (recorded) {
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        /* into the capture, but not behind the first addition */
        must(cudaEventRecord(fork, stream));
        must(cudaStreamWaitEvent(side, fork, 0));
    }
    must(launch_add(values, stream));
    must(launch_add(values, stream));
    if (forks) {
        must(cudaEventRecord(fork, stream));
        must(cudaStreamWaitEvent(side, fork, 0));
    }
    must(launch_copy(read, values, side));
    must(cudaEventRecord(join, side));
    if (joins) {
        must(cudaStreamWaitEvent(stream, join, 0));
    }
    must(launch_copy(seen, read, stream));
    must(cudaStreamWaitEvent(stream, join, 0));
    if (recorded) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        must(cudaStreamEndCapture(stream, &graph));
        must(cudaGraphInstantiate(&exec, graph, 0));
        must(cudaGraphLaunch(exec, stream));
        cudaGraphDestroy(graph);
        cudaGraphExecDestroy(exec);
    }
    read_back(host, seen, 8);
    unsetenv("LS_EMULATED_LATE");
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(side);
    return host[0] == 2;
}

/* Drawn orders of streams, and of a graph's branches, show both waits if they are missing. */
LOOP_TEST(drawn_runs_show_a_missing_wait, 2)
{
    int no_fork = 0, no_join = 0;
    for (int seed = 2; seed < 52; seed++) {
        ck_assert(branch_is_ordered(seed, _i == 1, true, true));
        no_fork += !branch_is_ordered(seed, _i == 1, false, true);
        no_join += !branch_is_ordered(seed, _i == 1, true, false);
    }
    ck_assert_int_gt(no_fork, 5);
    ck_assert_int_gt(no_join, 5);
}

TEST(wrong_calls_are_errors)
{
    int *values = device<int>(8), host[8] = {0};
    ck_assert_int_eq(cudaMemcpyAsync(values, host, 64, cudaMemcpyHostToDevice, stream),
                     cudaErrorInvalidValue); /* beyond the end */
    ck_assert_int_eq(cudaMemcpyAsync(host, host, 8, cudaMemcpyDeviceToHost, stream),
                     cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFree(host), cudaErrorInvalidValue);
    must(cudaFree(values));
    ck_assert_int_eq(cudaMemcpyAsync(values, host, 8, cudaMemcpyHostToDevice, stream),
                     cudaErrorInvalidValue); /* freed */
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidValue);
}

/* A host access to device memory faults if the guard is on. */
TEST(device_memory_is_out_of_reach)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        setenv("LS_EMULATED_GUARD", "1", 1);
        int *values = device<int>(8), host[8];
        cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost);
        _exit(host[0] + *(volatile int *)values);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %d", status);
}

TEST_MAIN("cuda_launch", 0, set_up, tear_down, NULL, NULL)
