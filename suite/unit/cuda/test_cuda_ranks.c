/* Trainers of several ranks on emulated devices: their weights stay equal bit for bit, however the
 * step is launched and the buckets are cut; ranks share a device only if that is allowed; a rank
 * that loses a peer reports it. */
#include <poll.h>
#include <signal.h>

#include "kernels/core/clock.h"
#include "suite/unit/run_suite.h"
#include "emulated_run.h"

/* A small network, three steps. `environment`: "A=1 B=2". Returns the launcher's exit code. */
static int train(const char *environment, const char *launch, const char *options)
{
    char command[8 * PATH_MAX];
    snprintf(command, sizeof command,
             "rm -f '%s'/rank*.jsonl; LS_RUN_DIR='%s' LS_LIB_DIR='%s/emulated/lib' %s timeout 60 "
             "'%s/lockstep-launch' %s -- '%s/lockstep-train' --device cuda -a resnet8 --image-size "
             "8 -b 2 --steps 3 --loss-scale 128 --print-freq 0 %s > '%s/log' 2>&1",
             folder, folder, build, environment, build, launch, build, options, folder);
    return exit_code(system(command));
}

static int steps_of(const char *name)
{
    char *text = read_file(name);
    int steps = 0;
    for (const char *at = text; (at = strstr(at, "{\"event\":\"step\"")) != NULL; at++) {
        steps++;
    }
    free(text);
    return steps;
}

/* The digests of parameters, masters, moments and scaler of all steps of a rank, concatenated; with
 * local statistics the buffers differ between ranks. */
static char *weights_of(int rank)
{
    static const char *const keys[] = {"\"param\":\"", "\"master\":\"", "\"state\":\"",
                                       "\"scaler\":\""};
    char name[32];
    snprintf(name, sizeof name, "rank%d.jsonl", rank);
    char *text = read_file(name), *out = calloc(strlen(text) + 1, 1);
    for (char *at = text; (at = strstr(at, "{\"event\":\"step\"")) != NULL; at++) {
        size_t line = strcspn(at, "\n");
        for (int k = 0; k < 4; k++) {
            const char *from = strstr(at, keys[k]);
            if (from != NULL && from < at + line) {
                strncat(out, from, strlen(keys[k]) + 16);
            }
        }
    }
    free(text);
    return out;
}

/* Checks that all ranks have the same; the caller frees it. */
static char *equal_weights(int world)
{
    char *first = weights_of(0);
    ck_assert_uint_gt(strlen(first), 3 * 3 * 16);
    for (int rank = 1; rank < world; rank++) {
        char *other = weights_of(rank);
        ck_assert_str_eq(first, other);
        free(other);
    }
    return first;
}

/* Two ranks add two numbers: neither graph nor delay nor bucket can change a bit. */
TEST(two_ranks_hold_the_same_bits)
{
    static const struct {
        const char *environment, *options;
    } ways[] = {
        {"", "--cuda-graph on"},
        {"LS_EMULATED_LATE=1 LS_EMULATED_GUARD=1", "--cuda-graph off"},
        {"LS_EMULATED_LATE=1", "--cuda-graph on --bucket-cap-mb 0.02 --dialect apex"},
        {"LS_EMULATED_DEVICES=1 LS_OVERSUBSCRIBE=1", ""},
        {"NCCL_LOCAL_REGISTER=0", ""},
    };
    char *wanted = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char options[160];
        snprintf(options, sizeof options, "--opt-level O2 --deterministic %s", ways[i].options);
        ck_assert_msg(train(ways[i].environment, "--nproc-per-node 2", options) == 0, "%s %s",
                      ways[i].environment, ways[i].options);
        char *got = equal_weights(2);
        ck_assert_msg(wanted == NULL || strcmp(wanted, got) == 0, "%s %s: other bits",
                      ways[i].environment, ways[i].options);
        free(wanted);
        wanted = got;
    }
    free(wanted);
    ck_assert(says("rank0.jsonl", "\"NCCL_ALGO\":\"Ring\""));
    ck_assert(says("log", "are not registered: NCCL skipped it"));
}

/* If one rank cannot record a step, no rank launches it: the emulated NCCL refuses operations that
 * are in a graph on one rank only. */
LOOP_TEST(all_record_or_none, 2)
{
    static const struct {
        const char *environment, *options;
    } ways[] = {
        {"", "--cuda-graph off"},
        {"LS_EMULATED_UNRECORDED=weights:1", ""},
        {"LS_EMULATED_UNRECORDED=end:0 LS_EMULATED_LATE=1", ""},
        {"LS_EMULATED_UNRECORDED=data", ""},
    };
    char *wanted = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char options[160];
        snprintf(options, sizeof options,
                 "--opt-level O2 --deterministic --steps 5 --bucket-cap-mb 0.02 %s %s",
                 _i == 0 ? "" : "--sync-bn", ways[i].options);
        ck_assert_msg(train(ways[i].environment, "--nproc-per-node 2", options) == 0, "%s %s",
                      ways[i].environment, ways[i].options);
        char *got = equal_weights(2);
        ck_assert_msg(wanted == NULL || strcmp(wanted, got) == 0, "%s: other bits",
                      ways[i].environment);
        free(wanted);
        wanted = got;
        ck_assert_int_eq(says("rank1.jsonl", "not be recorded"), i > 0);
    }
    free(wanted);
    ck_assert_int_eq(train(ways[1].environment, "--nproc-per-node 2", "--steps 4 --cuda-graph on"),
                     3);
    ck_assert(says("log", "[0]: error: --cuda-graph on: step 3 could not be recorded on rank 1"));
}

/* An engine that cannot be recorded on one rank: all ranks detect it before the first step, and
 * start again with communicators that were never recorded. */
LOOP_TEST(an_engine_that_cannot_be_recorded, 2)
{
    static const char *const ways[] = {"", "LS_EMULATED_UNRECORDED=nccl:1",
                                       "LS_EMULATED_UNRECORDED=nccl LS_EMULATED_LATE=1"};
    char *wanted = NULL;
    const char *sync = _i == 0 ? "" : "--sync-bn";
    char options[96];
    for (int i = 0; i < 3; i++) {
        snprintf(options, sizeof options, "--opt-level O2 --deterministic --steps 5 %s", sync);
        ck_assert_msg(train(ways[i], "--nproc-per-node 2", options) == 0, "%s", ways[i]);
        char *got = equal_weights(2);
        ck_assert_msg(wanted == NULL || strcmp(wanted, got) == 0, "%s: other bits", ways[i]);
        free(wanted);
        wanted = got;
        ck_assert_int_eq(says("rank0.jsonl", "\"cuda_graph\":true"), i == 0);
        ck_assert_int_eq(says("rank0.jsonl", "\"the engine's operations cannot be recorded\""),
                         i > 0);
    }
    free(wanted);
    ck_assert_int_eq(train(ways[1], "--nproc-per-node 2", "--cuda-graph on"), 2);
    ck_assert(says("log", "[0]: error: --cuda-graph on: a step cannot be recorded: the engine's"));
}

/* Statistics over all ranks: running statistics are equal too, and part of the graph. Kernels of a
 * norm that start early, all but those behind a message, change no bit. */
LOOP_TEST(shared_statistics_are_equal, 2)
{
    const char *launch = _i == 0 ? "--nproc-per-node 3" : "--nproc-per-node 4 --local-nodes 2";
    const char *options = _i == 0 ? "--opt-level O1 --sync-bn --cuda-graph on"
                                  : "--opt-level O1 --sync-bn --accumulate 2 --dialect torch "
                                    "--broadcast-buffers";
    int world = _i == 0 ? 3 : 4;
    ck_assert_int_eq(train("LS_PDL=1", launch, options), 0);
    char *early = equal_weights(world);
    ck_assert_int_eq(train("", launch, options), 0);
    char *usual = equal_weights(world);
    ck_assert_str_eq(early, usual);
    free(early);
    free(usual);
    ck_assert(_i == 0 || says("rank2.jsonl", "\"NCCL_HOSTID\":\"lockstep-node-1\""));
    ck_assert_int_eq(steps_of("rank2.jsonl"), 3);
}

/* The engines that rank 0 reads are those of all ranks: untimed they would take the slow engine 15.
 * If rank 0 cannot read them, no rank waits. */
TEST(kept_engines_are_shared)
{
    static const char *const launch = "--nproc-per-node 2";
    char options[2 * PATH_MAX], command[2 * PATH_MAX];
    ck_assert_int_eq(train("", launch, "--opt-level O2"), 0);
    ck_assert(says("rank1.jsonl", "eng15"));
    snprintf(options, sizeof options, "--opt-level O2 --cudnn-benchmark --engines '%s/engines'",
             folder);
    ck_assert_int_eq(train("", launch, options), 0);
    /* whichever were fastest: an engine that neither the heuristics nor a timing takes */
    snprintf(command, sizeof command, "sed -Ei 's/eng[0-9_k=]+/eng30/g' '%s/engines'", folder);
    ck_assert_int_eq(exit_code(system(command)), 0);
    snprintf(options, sizeof options, "--opt-level O2 --engines '%s/engines'", folder);
    ck_assert_int_eq(train("", launch, options), 0);
    free(equal_weights(2));
    ck_assert(says("rank1.jsonl", "eng30"));
    ck_assert(!says("rank1.jsonl", "eng15") && !says("rank1.jsonl", "eng21"));
    ck_assert(!says("rank1.jsonl", "best of "));
    snprintf(command, sizeof command, "echo other >'%s/engines'", folder);
    ck_assert_int_eq(exit_code(system(command)), 0);
    int64_t begun_ns = ls_clock_ns();
    ck_assert_int_eq(train("", launch, options), 2);
    ck_assert(ls_clock_ms_between(begun_ns, ls_clock_ns()) < 30e3);
    ck_assert(says("log", "not a file of engines"));
}

/* All ranks fuse what rank 0 fuses, by the same engines; with shared statistics too. */
LOOP_TEST(fused_products_are_shared, 2)
{
    static const char *const launch = "--nproc-per-node 2";
    char options[256];
    static const char *const passes[] = {"forward with sums eng",
                                         "gated backward data with sums eng"};
    snprintf(options, sizeof options, "--opt-level O2 --fuse --cuda-graph on --audit 1:2 %s",
             _i == 0 ? "" : "--sync-bn --cudnn-benchmark");
    ck_assert_int_eq(train("", launch, options), 0);
    free(equal_weights(2));
    char *first = read_file("rank0.jsonl"), *second = read_file("rank1.jsonl");
    for (int i = 0; i < 2; i++) {
        const char *wanted = strstr(first, passes[i]), *got = strstr(second, passes[i]);
        ck_assert(wanted != NULL && got != NULL);
        size_t whole = strlen(passes[i]);
        ck_assert(strncmp(wanted, got, strcspn(wanted + whole, " ") + whole) == 0);
    }
    free(first);
    free(second);
    /* an engine that rank 0 lacks is used by none */
    ck_assert_int_eq(train("LS_EMULATED_UNFUSED=all:0", launch, options), 0);
    free(equal_weights(2));
    ck_assert(!says("rank0.jsonl", "forward with sums"));
    ck_assert(!says("rank1.jsonl", "forward with sums"));
    ck_assert(!says("rank0.jsonl", "gated backward data"));
    ck_assert(!says("rank1.jsonl", "gated backward data"));
}

/* Every sample has the same weight in statistics over ranks with different batch sizes, for the
 * judge and for the trainer. */
TEST(unlike_batches_are_audited)
{
    int code =
        train("", "--nproc-per-node 3", "--opt-level O2 --sync-bn --batch-sizes 1,2,5 --audit 1:1");
    char *log = read_file("log");
    ck_assert_msg(code == 0, "exit code %d: %s", code, log);
    ck_assert_msg(strstr(log, "audit: 3 steps") != NULL, "%s", log);
    free(log);
}

TEST(devices_are_not_shared_unasked)
{
    ck_assert_int_eq(train("LS_EMULATED_DEVICES=1", "--nproc-per-node 2", ""), 3);
    ck_assert(says("log", "LS_OVERSUBSCRIBE=1"));
    ck_assert_int_eq(train("", "--nproc-per-node 2", "--comm gloo"), 2);
    ck_assert(says("log", "its engine: nccl"));
}

/* One rank of two, started without the launcher, so that its own exit code is visible. */
static pid_t start_rank(int rank, const char *port, const char *silent, const char *graph)
{
    char program[PATH_MAX + 32], libraries[PATH_MAX + 32], log[PATH_MAX + 32], text[16];
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    snprintf(program, sizeof program, "%s/lockstep-train", build);
    snprintf(libraries, sizeof libraries, "%s/emulated/lib", build);
    snprintf(log, sizeof log, "%s/log%d", folder, rank);
    snprintf(text, sizeof text, "%d", rank);
    setenv("LS_LIB_DIR", libraries, 1);
    setenv("LS_RUN_DIR", folder, 1);
    setenv("LS_EMULATED_SILENT", silent, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    setenv("LS_TOKEN", "test", 1);
    if (freopen(log, "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
        _exit(99);
    }
    alarm(80);
    execl(program, program, "--device", "cuda", "-a", "resnet8", "--image-size", "8", "-b", "2",
          "--steps", "1000000", "--loss-scale", "128", "--cuda-graph", graph, (char *)NULL);
    _exit(99);
}

/* Whether the connection breaks (a network between them) or nothing shows (each reads the other's
 * memory): the survivor ends by itself, with the right code, within the launcher's grace. */
LOOP_TEST(a_lost_peer_is_named, 2)
{
    static const struct {
        const char *silent, *graph;
        int victim;
    } ways[] = {{"1", "on", 1}, {"0", "off", 0}};
    char port[16];
    snprintf(port, sizeof port, "%d", 21000 + (int)(getpid() % 30000));
    int victim = ways[_i].victim, survivor = 1 - victim, status = 0;
    char name[32], log[16];
    pid_t pid[2];
    for (int rank = 0; rank < 2; rank++) {
        pid[rank] = start_rank(rank, port, ways[_i].silent, ways[_i].graph);
        ck_assert_int_gt(pid[rank], 0);
    }
    snprintf(name, sizeof name, "rank%d.jsonl", survivor);
    snprintf(log, sizeof log, "log%d", survivor);
    int64_t begun_ns = ls_clock_ns();
    while (steps_of(name) < 3 && ls_clock_ms_between(begun_ns, ls_clock_ns()) < 40e3) {
        ck_assert_int_eq(waitpid(pid[survivor], &status, WNOHANG), 0);
        poll(NULL, 0, 20); /* the ranks need both cores */
    }
    ck_assert_int_eq(kill(pid[victim], SIGKILL), 0);
    begun_ns = ls_clock_ns();
    ck_assert_int_eq(waitpid(pid[survivor], &status, 0), pid[survivor]);
    double waited_s = ls_clock_ms_between(begun_ns, ls_clock_ns()) * 1e-3;
    ck_assert_int_eq(waitpid(pid[victim], NULL, 0), pid[victim]);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 10, "status %x", (unsigned)status);
    ck_assert_double_lt(waited_s, 20.0); /* 5 s is the grace; this machine may be busy */
    ck_assert(says(log, "nccl 'gradients': "));
    ck_assert(says(name, "\"code\":10"));
}

TEST_MAIN("cuda ranks", .timeout_s = 120, .before = set_up, .after = tear_down)
