/* The interposer before the emulated NCCL: programs of this build that train and that try every
 * collective, and calls in groups and in a capture, are seen and judged. */
#include <nccl.h>
#include <cuda_runtime_api.h>
#include <poll.h>
#include <signal.h>

#include "suite/observe/rules/rules.h"
#include "suite/unit/run_suite.h"
#include "emulated_run.h"

/* Runs a program's command line with the interposer before NCCL; returns its exit code. */
static int run_observed(const char *environment, const char *command)
{
    char text[8 * PATH_MAX];
    snprintf(text, sizeof text,
             "rm -f '%s'/*.jsonl; cd '%s' && LS_OBSERVE_DIR='%s' LS_RUN_DIR='%s' "
             "LS_LIB_DIR='%s/emulated/lib' "
             "ASAN_OPTIONS=\"$ASAN_OPTIONS:verify_asan_link_order=0\" "
             "LD_PRELOAD='%s/lib/ls_nccl_interpose.so' %s timeout 60 "
             "%s >'%s/log' 2>&1",
             folder, build, folder, folder, build, build, environment, command, folder);
    return exit_code(system(text));
}

/* `state`: as `lockstep observe` leaves it of a job that ended so. */
static void expect_of(ls_observe_judge *rule, int world, ls_record_state state,
                      ls_verdict_code code, const char *text)
{
    ls_observe_trace trace = {.world = world};
    ls_observe_finding finding = {0};
    snprintf(trace.record.directory, sizeof trace.record.directory, "%s", folder);
    trace.record.state = state;
    rule(&trace, &finding);
    ck_assert_msg(finding.verdict.code == code && strstr(finding.verdict.evidence, text) != NULL,
                  "%d: %s", (int)finding.verdict.code, finding.verdict.evidence);
}

static void expect(ls_observe_judge *rule, int world, ls_verdict_code code, const char *text)
{
    expect_of(rule, world, LS_RECORD_UNKNOWN, code, text);
}

#define TRAIN                                                                            \
    "./lockstep-launch --nproc-per-node 2 -- ./lockstep-train --device cuda -a resnet8 " \
    "--image-size 8 -b 2 --loss-scale 128 --print-freq 0 "

TEST(a_training_is_seen_and_right)
{
    ck_assert_int_eq(run_observed("LS_OBSERVE_EVERY=2", TRAIN "--steps 8 --cuda-graph off"), 0);
    expect(ls_rules_collectives_sum, 2, LS_PASS, " elements of ");
    expect(ls_rules_collectives_order, 2, LS_PASS, " calls were the same");
    ck_assert(says("sums.rank1.jsonl", "\"failed\":0,\"unfinished\":0"));
    ck_assert(!says("log", "observe"));
}

/* Nothing is enqueued into a capture: the emulation would put it into every launch. */
TEST(captured_steps_are_left_alone)
{
    ck_assert_int_eq(run_observed("LS_OBSERVE_EVERY=1", TRAIN "--steps 4 --cuda-graph on"), 0);
    expect(ls_rules_collectives_sum, 2, LS_PASS, " elements of ");
    ck_assert(says("sums.rank0.jsonl", "\"captured\":true"));
    ck_assert(!says("sums.rank0.jsonl", "\"event\":\"end\",\"sampled\":0"));
    ck_assert(!says("sums.rank0.jsonl", "\"captured\":0,"));
}

TEST(a_wrong_sum_is_caught)
{
    ck_assert_int_eq(run_observed("LS_OBSERVE_EVERY=2 LS_EMULATED_SUM_WRONG=0",
                                  TRAIN "--steps 8 --cuda-graph off"),
                     0);
    expect(ls_rules_collectives_sum, 2, LS_FAIL, "all_reduce sum of ");
    expect(ls_rules_collectives_sum, 2, LS_FAIL, "element 0 on rank 0 is ");
    expect(ls_rules_collectives_order, 2, LS_PASS, " calls were the same");
}

/* Each operation of the engine in each type, in place and not: whole numbers, then values that
 * round at every addition, infinities and NaNs. */
LOOP_TEST(every_operation_is_right, 2)
{
    static const char command[] =
        "./lockstep-launch --nproc-per-node 3 -- ./lockstep-collectives --device cuda --comm nccl "
        "--dtypes fp32,fp16,bf16,fp64,int64,int32,uint8 --counts 1,255,257,1024 -o all --data %s";
    static const struct {
        const char *data, *seen[3];
    } runs[] = {{"exact",
                 {"all_reduce\",\"elements\":1024,\"type\":\"i64",
                  "reduce_scatter\",\"elements\":257,\"type\":\"u8",
                  "broadcast\",\"elements\":255,\"type\":\"i32"}},
                {"rough",
                 {"all_reduce\",\"elements\":1024,\"type\":\"bf16",
                  "all_gather\",\"elements\":1024,\"type\":\"f16",
                  "reduce\",\"elements\":257,\"type\":\"f32"}}};
    char text[sizeof command + 8];
    snprintf(text, sizeof text, command, runs[_i].data);
    ck_assert_int_eq(run_observed("LS_OBSERVE_EVERY=1", text), 0);
    expect(ls_rules_collectives_sum, 3, LS_PASS, " elements of ");
    expect(ls_rules_collectives_order, 3, LS_PASS, " calls were the same");
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(says("sums.rank2.jsonl", runs[_i].seen[i]), "%s", runs[_i].seen[i]);
    }
}

TEST(an_error_of_its_own_is_one_line)
{
    ck_assert_int_eq(
        run_observed("LS_OBSERVE_DIR=/nonexistent", TRAIN "--steps 2 --cuda-graph off"), 0);
    char *log = read_file("log");
    const char *first = strstr(log, "lockstep observe: ");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_nonnull(strstr(first, "/nonexistent: "));
    free(log);
    ck_assert_int_eq(run_observed("LS_OBSERVE_DIR=", TRAIN "--steps 2 --cuda-graph off"), 0);
    ck_assert(!says("log", "lockstep observe"));
    expect(ls_rules_collectives_sum, 2, LS_SKIP, "NCCL was not looked at");
}

/* ---- groups and captures, called as a program does ------------------------------------------- */

enum { COUNT = 1000, RANKS = 2 };

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* Three collectives in one group, the same again while the stream is captured, one after it. */
static void call_in_groups(ncclComm_t comm, cudaStream_t stream, float *a, float *b, float *c)
{
    cudaGraph_t graph;
    for (int captured = 0; captured <= 1; captured++) {
        CHECK(!captured ||
              cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
        CHECK(ncclGroupStart() == ncclSuccess && ncclGroupStart() == ncclSuccess);
        CHECK(ncclAllReduce(a, a, COUNT, ncclFloat32, ncclSum, comm, stream) == ncclSuccess);
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(ncclReduceScatter(b, c, COUNT, ncclFloat32, ncclSum, comm, stream) == ncclSuccess);
        CHECK(ncclAllGather(c + COUNT, c + 2 * COUNT, COUNT, ncclFloat32, comm, stream) ==
              ncclSuccess);
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(!captured || cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    }
    CHECK(ncclAllReduce(b, c, COUNT, ncclFloat32, ncclMax, comm, stream) == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaGetLastError() == cudaSuccess);
}

/* A rank's communicator and stream, and zeros on its device. */
static float *open_rank(int rank, ncclUniqueId id, size_t bytes, ncclComm_t *comm,
                        cudaStream_t *stream)
{
    char text[16];
    float *device;
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    CHECK(cudaSetDevice(rank) == cudaSuccess);
    CHECK(ncclCommInitRankConfig(comm, RANKS, id, rank, NULL) == ncclSuccess);
    CHECK(cudaStreamCreate(stream) == cudaSuccess);
    CHECK(cudaMalloc((void **)&device, bytes) == cudaSuccess);
    CHECK(cudaMemset(device, 0, bytes) == cudaSuccess);
    return device;
}

/* A peer that leaves earlier is a lost one. */
static int close_rank(ncclComm_t comm)
{
    CHECK(ncclCommFinalize(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

static int be_rank(int rank, ncclUniqueId id)
{
    float host[8 * COUNT];
    ncclComm_t comm;
    cudaStream_t stream;
    float *device = open_rank(rank, id, sizeof host, &comm, &stream);
    for (int i = 0; i < 8 * COUNT; i++) {
        host[i] = (float)(i % 97) / (float)(3 + rank);
    }
    CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaSetDevice(rank == 0 ? 3 : 0) == cudaSuccess); /* NCCL does not care, nor may we */
    call_in_groups(comm, stream, device, device + COUNT, device + 3 * COUNT);
    int now = -1;
    CHECK(cudaGetDevice(&now) == cudaSuccess && now == (rank == 0 ? 3 : 0));
    return close_rank(comm);
}

/* ---- ranks that do not do the same ----------------------------------------------------------- */

enum { FAULT_CALLS = 40, FAULT_AT = 5 };

static void rest(int ms)
{
    (void)poll(NULL, 0, ms);
}

/* What rank 1 does before call FAULT_AT, or at every call; the count that it calls with. */
static size_t misbehave(const char *fault, int call)
{
    if (strcmp(fault, "slow") == 0) {
        rest(15);
    }
    if (call != FAULT_AT) {
        return COUNT;
    }
    if (strcmp(fault, "leave") == 0) {
        exit(0);
    }
    if (strcmp(fault, "hang") == 0 || strcmp(fault, "late") == 0) {
        rest(1500);
    }
    if (strcmp(fault, "hang") == 0) {
        (void)raise(SIGKILL);
    }
    return strcmp(fault, "size") == 0 ? COUNT - 1 : COUNT;
}

/* Sums, one after the other, each waited for; rank 1 has the fault. */
static int be_unlike(const char *fault, int rank, ncclUniqueId id)
{
    ncclComm_t comm;
    cudaStream_t stream;
    float *device = open_rank(rank, id, COUNT * sizeof(float), &comm, &stream);
    for (int i = 0; i < FAULT_CALLS; i++) {
        size_t count = rank == 1 ? misbehave(fault, i) : COUNT;
        CHECK(ncclAllReduce(device, device, count, ncclFloat32, ncclSum, comm, stream) ==
              ncclSuccess);
        ncclResult_t state = ncclSuccess;
        while (cudaStreamQuery(stream) == cudaErrorNotReady && state == ncclSuccess) {
            CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
            rest(1);
        }
        CHECK(state == ncclSuccess);
    }
    return close_rank(comm);
}

static int be_ranks(const char *fault)
{
    ncclUniqueId id;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    int bad = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            exit(fault != NULL ? be_unlike(fault, rank, id) : be_rank(rank, id));
        }
    }
    for (int rank = 0, status; rank < RANKS; rank++) {
        bad += wait(&status) < 0 || exit_code(status) != 0;
    }
    return bad;
}

TEST(groups_are_copied_when_they_end)
{
    char program[PATH_MAX], command[PATH_MAX + 32];
    ls_path_program(program, sizeof program);
    snprintf(command, sizeof command, "%s/test_cuda_observe --as-ranks", program);
    ck_assert_int_eq(run_observed("LS_OBSERVE_EVERY=1", command), 0);
    expect(ls_rules_collectives_sum, 2, LS_PASS, " elements of 4 sampled calls");
    expect(ls_rules_collectives_order, 2, LS_PASS, "7 calls were the same");
    ck_assert(says("sums.rank0.jsonl",
                   "\"sampled\":4,\"captured\":3,\"busy\":0,\"failed\":0,\"unfinished\":0"));
    ck_assert_int_eq(run_observed("LS_OBSERVE_EVERY=1 LS_EMULATED_SUM_WRONG=999", command), 0);
    expect(ls_rules_collectives_sum, 2, LS_FAIL, "element 999 on rank ");
}

LOOP_TEST(ranks_that_do_not_do_the_same_are_named, 6)
{
    static const char never[] = "rank 1 never entered call 6 of a communicator of 2 ranks, "
                                "all_reduce sum of 1000 f32, which rank 0 did";
    static const struct {
        const char *fault;
        bool fails;
        ls_verdict_code stall, order;
        const char *of_stall, *of_order;
    } ways[] = {
        {"none", false, LS_PASS, LS_PASS, "all ranks entered 40 calls", "40 calls were the same"},
        {"leave", true, LS_FAIL, LS_PASS, never, "5 calls were the same"},
        {"hang", true, LS_FAIL, LS_PASS, never, "5 calls were the same"},
        {"late", false, LS_PASS, LS_PASS, "s, for rank 1 in call 6 of a", "40 calls were the same"},
        {"slow", false, LS_PASS, LS_PASS, "the others wait for rank 1: ", "40 calls were the same"},
        {"size", true, LS_PASS, LS_FAIL, "",
         "call 6 of a communicator is all_reduce sum of 1000 f32 on rank 0, all_reduce sum of 999 "
         "f32 on rank 1"},
    };
    char program[PATH_MAX], command[PATH_MAX + 32];
    ls_path_program(program, sizeof program);
    snprintf(command, sizeof command, "%s/test_cuda_observe --as-ranks %s", program,
             ways[_i].fault);
    int code = run_observed("LS_OBSERVE_STALL_S=1", command);
    ck_assert_int_eq(code != 0, ways[_i].fails);
    expect_of(ls_rules_collectives_stall, RANKS, code == 0 ? LS_RECORD_DONE : LS_RECORD_FAILED,
              ways[_i].stall, ways[_i].of_stall);
    expect(ls_rules_collectives_order, RANKS, ways[_i].order, ways[_i].of_order);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--as-ranks") == 0) {
        return be_ranks(argc > 2 ? argv[2] : NULL);
    }
    return RUN_TESTS("cuda_observe", .timeout_s = 240, .before = set_up, .after = tear_down);
}
