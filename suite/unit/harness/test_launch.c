/* `lockstep-launch` from the outside: the environment of its ranks, the failure that it reports,
 * the messages for wrong arguments. Runs the built program in the folder above this one. */
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernels/core/cores.h"
#include "harness/machine/machine.h"
#include "kernels/core/clock.h"
#include "suite/unit/run_suite.h"

enum { SAID_BYTES = 1 << 14, ARGUMENTS_MAX = 16 };

static void program_path(const char *name, char *path)
{
    char self[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(bytes, 0);
    self[bytes] = '\0';
    snprintf(path, PATH_MAX, "%s/../%s", dirname(self), name);
    ck_assert_msg(access(path, X_OK) == 0, "%s is not built", path);
}

typedef struct launched {
    pid_t pid;
    int output; /* stdout and stderr */
} launched;

static launched start(const char *program, const char *const *arguments)
{
    char path[PATH_MAX], *argv[ARGUMENTS_MAX + 2] = {(char *)program};
    int ends[2], count = 1;
    program_path(program, path);
    for (; arguments[count - 1] != NULL; count++) {
        ck_assert_int_le(count, ARGUMENTS_MAX);
        argv[count] = (char *)arguments[count - 1];
    }
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    launched self = {.pid = fork(), .output = ends[0]};
    ck_assert_int_ge(self.pid, 0);
    if (self.pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        execv(path, argv);
        _exit(126);
    }
    close(ends[1]);
    return self;
}

static launched launch(const char *const *arguments)
{
    return start("lockstep-launch", arguments);
}

/* Exit code, or 128 + signal; everything it and its ranks wrote in said[SAID_BYTES]. Ends when the
 * last of them has closed its output, so that a rank left behind would show as a time-out of the
 * test. */
static int finish(launched *self, char *said)
{
    size_t used = 0;
    ssize_t got;
    while ((got = read(self->output, said + used, SAID_BYTES - 1 - used)) > 0) {
        used += (size_t)got;
    }
    said[used] = '\0';
    close(self->output);
    int state = 0;
    ck_assert_int_eq(waitpid(self->pid, &state, 0), self->pid);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static int run(const char *const *arguments, char *said)
{
    launched self = launch(arguments);
    return finish(&self, said);
}

#define ARGUMENTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void assert_line(const char *said, const char *line)
{
    ck_assert_msg(strstr(said, line) != NULL, "'%s' is not in:\n%s", line, said);
}

TEST(environment)
{
    char said[SAID_BYTES], line[256];
    const char *script =
        "echo \"<$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK "
        "$MASTER_ADDR $LS_NODE_ADDR $NCCL_HOSTID $LS_RUN_DIR $OMP_NUM_THREADS "
        "$KEPT $TORCHELASTIC_RUN_ID>\"; [ $MASTER_PORT -gt 0 ] && [ ${#LS_TOKEN} = 32 ]";
    setenv("LS_RUN_DIR", "/run/dir", 1);
    setenv("OMP_NUM_THREADS", "7", 1);
    setenv("KEPT", "kept", 1);
    setenv("RANK", "99", 1);
    setenv("TORCHELASTIC_RUN_ID", "stale", 1);
    unsetenv("LS_TOKEN");
    ck_assert_int_eq(
        run(ARGUMENTS("--nproc-per-node", "6", "--local-nodes=3", "sh", "-c", script), said), 0);
    for (int rank = 0; rank < 6; rank++) { /* ranks of a node are contiguous */
        snprintf(line, sizeof line,
                 "<%d 6 %d 2 %d 127.0.0.1 127.0.0.%d lockstep-node-%d /run/dir 7 kept >", rank,
                 rank % 2, rank / 2, rank / 2 + 1, rank / 2);
        assert_line(said, line);
    }
    unsetenv("OMP_NUM_THREADS");
    unsetenv("LS_RUN_DIR");
    ck_assert_int_eq(run(ARGUMENTS("--nnodes=2", "--node_rank=1", "--nproc_per_node=3",
                                   "--master_addr", "10.0.0.1", "--master-port", "1234", "sh", "-c",
                                   "echo \"<$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
                                   "$GROUP_RANK $MASTER_ADDR:$MASTER_PORT $LS_TOKEN>\"; "
                                   "[ $OMP_NUM_THREADS -ge 1 ]"),
                         said),
                     0);
    for (int local = 0; local < 3; local++) {
        snprintf(line, sizeof line, "<%d 6 %d 3 1 10.0.0.1:1234 >", 3 + local, local);
        assert_line(said, line);
    }
}

TEST(token_and_port_are_shared)
{
    char said[SAID_BYTES], other[SAID_BYTES];
    unsetenv("LS_TOKEN");
    const char *script = "echo $LS_TOKEN $MASTER_PORT";
    ck_assert_int_eq(run(ARGUMENTS("--nproc-per-node=2", "sh", "-c", script), said), 0);
    size_t half = strlen(said) / 2;
    ck_assert_int_eq(strncmp(said, said + half, half), 0);
    ck_assert_int_eq(run(ARGUMENTS("sh", "-c", script), other), 0);
    ck_assert_int_ne(strncmp(said, other, 32), 0); /* drawn anew */
    setenv("LS_TOKEN", "given", 1);
    ck_assert_int_eq(run(ARGUMENTS("sh", "-c", script), other), 0);
    ck_assert_int_eq(strncmp(other, "given ", 6), 0);
}

/* A rank for each core where no GPU is. */
TEST(ranks_for_this_machine)
{
    char said[SAID_BYTES], wanted[64];
    if (access("/dev/nvidia0", F_OK) == 0) {
        return;
    }
    ck_assert_int_eq(run(ARGUMENTS("--nproc-per-node=auto", "sh", "-c",
                                   "[ $RANK = 0 ] && echo $WORLD_SIZE ranks; exit 0"),
                         said),
                     0);
    snprintf(wanted, sizeof wanted, "%d ranks\n", ls_cores_share(ls_cores_usable(), 1));
    ck_assert_str_eq(said, wanted);
}

TEST(command_is_untouched)
{
    char said[SAID_BYTES];
    ck_assert_int_eq(
        run(ARGUMENTS("--", "printf", "[%s]", "--nproc-per-node", "3", "--", "", "a b"), said), 0);
    ck_assert_str_eq(said, "[--nproc-per-node][3][--][][a b]");
    ck_assert_int_eq(run(ARGUMENTS("printf", "[%s]", "--help", "-x"), said), 0);
    ck_assert_str_eq(said, "[--help][-x]");
}

typedef struct failure {
    const char *script;
    int code;
    const char *said;
} failure;

static const failure failures[] = {
    {"[ $RANK = 1 ] && exit 7; exec sleep 30", 7, "rank 1 (pid "},
    {"[ $RANK = 2 ] && kill -9 $$; exec sleep 30", 128 + SIGKILL, "killed by signal 9 (Killed)"},
    {"[ $RANK = 0 ] && kill -SEGV $$; exit 10", 128 + SIGSEGV, "rank 0 (pid "},
    /* those who only lost their peer left before the one that was the cause */
    {"[ $RANK = 1 ] || exit 10; sleep 0.2; exit 12", 12, "rank 1 (pid "},
    {"[ $RANK = 0 ] && exit 10; exit 0", 10, "peer lost"},
    {"[ $RANK = 2 ] && exit 11; exec sleep 30", 11, "rendezvous timed out"},
    {"[ $RANK = 2 ] && exit 13; exec sleep 30", 13, "device lost"},
    {"[ $RANK = 2 ] && exit 12; exec sleep 30", 12, "non-finite state"},
    {"exit 0", 0, ""},
};

ROWS_TEST(first_failure, failures)
{
    const failure *wanted = &failures[_i];
    char said[SAID_BYTES];
    int64_t began_ns = ls_clock_ns();
    ck_assert_int_eq(
        run(ARGUMENTS("--grace=0.4", "--nproc-per-node=3", "sh", "-c", wanted->script), said),
        wanted->code);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 5000);
    assert_line(said, wanted->said);
    if (wanted->code != 0) { /* one line */
        ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
    }
}

/* The others get the grace to leave by themselves: what they still write is there. */
TEST(grace)
{
    char said[SAID_BYTES];
    ck_assert_int_eq(run(ARGUMENTS("--nproc-per-node=2", "sh", "-c",
                                   "[ $RANK = 0 ] && exit 5; sleep 0.3; echo left alone; exit 10"),
                         said),
                     5);
    assert_line(said, "left alone");
}

TEST(deadline)
{
    char said[SAID_BYTES];
    ck_assert_int_eq(run(ARGUMENTS("--timeout=0.2", "--nproc-per-node=2", "sleep", "30"), said),
                     124);
    assert_line(said, "0.2 s");
}

/* A signal goes on to the ranks, which may still say goodbye; those that announce the end of a
 * job's time leave it to the ranks how they leave. */
LOOP_TEST(signals_are_forwarded, 5)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    bool ends = _i < 3;
    char said[SAID_BYTES], ready[12];
    launched self = launch(ARGUMENTS("--nproc-per-node=2", "sh", "-c",
                                     "trap 'echo goodbye; exit 0' INT TERM HUP; "
                                     "trap 'echo saved; exit 14' USR1 USR2; echo ready; "
                                     "while :; do sleep 0.05; done"));
    for (size_t used = 0; used < sizeof ready;) { /* "ready\n" twice */
        ssize_t got = read(self.output, ready + used, sizeof ready - used);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
    }
    kill(self.pid, signals[_i]);
    ck_assert_int_eq(finish(&self, said), ends ? 128 + signals[_i] : 14);
    assert_line(said, ends ? "goodbye" : "saved");
    assert_line(said, ends ? "stopped by signal" : "stopped by a signal, its state saved");
}

/* After a signal --grace counts where it is longer. */
TEST(grace_after_a_signal)
{
    char said[SAID_BYTES], byte;
    launched self = launch(ARGUMENTS("--grace=20", "--nproc-per-node=1", "sh", "-c",
                                     "trap 'sleep 6; echo late; exit 0' TERM; echo; "
                                     "while :; do sleep 0.05; done"));
    ck_assert_int_eq(read(self.output, &byte, 1), 1);
    kill(self.pid, SIGTERM);
    ck_assert_int_eq(finish(&self, said), 128 + SIGTERM);
    assert_line(said, "late");
}

/* Killed outright: its ranks die with it, and finish() would not return otherwise. */
TEST(launcher_dies)
{
    char said[SAID_BYTES], byte;
    launched self = launch(ARGUMENTS("--nproc-per-node=2", "sh", "-c", "echo; exec sleep 30"));
    ck_assert_int_eq(read(self.output, &byte, 1), 1);
    ck_assert_int_eq(read(self.output, &byte, 1), 1);
    kill(self.pid, SIGKILL);
    ck_assert_int_eq(finish(&self, said), 128 + SIGKILL);
}

TEST(log_directory)
{
    char said[SAID_BYTES], folder[] = "/tmp/ls_launch_XXXXXX", path[64], text[32] = "";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(run(ARGUMENTS("--log-dir", folder, "--nproc-per-node=2", "sh", "-c",
                                   "echo rank $RANK; echo error >&2"),
                         said),
                     0);
    ck_assert_str_eq(said, "");
    for (int rank = 0; rank < 2; rank++) {
        char wanted[32];
        snprintf(path, sizeof path, "%s/rank%d.log", folder, rank);
        snprintf(wanted, sizeof wanted, "rank %d\nerror\n", rank);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(read(fd, text, sizeof text), (ssize_t)strlen(wanted));
        ck_assert_mem_eq(text, wanted, strlen(wanted));
        close(fd);
        unlink(path);
    }
    rmdir(folder);
}

typedef struct mistake {
    const char *argument[6];
    const char *said;
} mistake;

static const mistake mistakes[] = {
    {{"--nproc-per-node", "0", "true"}, "--nproc-per-node '0': allowed: 1 to 1024"},
    {{"--nproc-per-node", "two", "true"}, "--nproc-per-node 'two': allowed: 1 to 1024"},
    {{"--nproc-per-node=3", "--local-nodes=2", "true"}, "cannot be split evenly"},
    {{"--nnodes=2", "--node-rank=2", "true"}, "--node-rank 2: allowed: 0 to 1"},
    {{"--nnodes=2", "true"}, "needs --master-addr and --master-port"},
    {{"--master-port", "65536", "true"}, "--master-port '65536': allowed: 1 to 65535"},
    {{"--grace", "-1", "true"}, "--grace '-1': allowed: 0 to 1e6 seconds"},
    {{"--timeout", "nan", "true"}, "--timeout 'nan': allowed: 0 to 1e6 seconds"},
    {{"--nproc-per-node=2"}, "no command"},
    {{"--node-rnk", "1", "true"}, "unknown option '--node-rnk'; did you mean --node-rank?"},
    {{"--log-dir"}, "--log-dir needs a value: DIR"},
    {{"--env-from-stdin=1", "true"}, "--env-from-stdin takes no value"},
    {{"--bogus", "true"}, "--bogus"},
    {{"--nnodes=2", "--master-addr=localhost", "--master-port=1", "true"},
     "--nnodes 2 with --master-addr localhost, a loopback"},
    {{"--local-nodes=2", "--nnodes=2", "true"}, "--local-nodes 2 simulates nodes on one machine"},
    {{"--nproc-per-node=1024", "--nnodes=2", "--master-addr=a", "--master-port=1", "true"},
     "1024 x 2 ranks: allowed: at most 1024"},
    {{"/nonexistent/trainer", "--steps"}, "cannot run '/nonexistent/trainer'"},
};

ROWS_TEST(wrong_arguments, mistakes)
{
    char said[SAID_BYTES];
    ck_assert_int_eq(run(mistakes[_i].argument, said), 2);
    assert_line(said, mistakes[_i].said);
}

/* A rank that is stopped is named after 10 s, and again at the deadline. */
TEST(a_stopped_rank_is_waited_for)
{
    char said[SAID_BYTES];
    ck_assert_int_eq(run(ARGUMENTS("--timeout=15", "--nproc-per-node=2", "sh", "-c",
                                   "[ $RANK = 0 ] || kill -STOP $$; exec sleep 60"),
                         said),
                     124);
    char *line = strstr(said, "lockstep-launch: waiting for 1");
    char *end = strstr(said, "ended after the deadline of 15 s: rank 1 (pid ");
    ck_assert_msg(line != NULL && end != NULL && line < end, "%s", said);
    ck_assert_msg(strstr(line + 20, "waiting for") == NULL, "%s", said); /* once */
    assert_line(line, " s (limit 15 s): rank 1 (pid ");
    assert_line(end, ", sh) is stopped by a signal: `kill -CONT ");
}

/* Ranks that only take long are not waited for. */
TEST(a_long_job_is_quiet)
{
    char said[SAID_BYTES];
    ck_assert_int_eq(run(ARGUMENTS("--nproc-per-node=2", "sleep", "12"), said), 0);
    ck_assert_str_eq(said, "");
}

/* Under mpiexec: a world of one is refused, and ranks of a larger one have one place only. */
TEST(another_launchers_rank)
{
    char said[SAID_BYTES];
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "2", 1);
    ck_assert_int_eq(run(ARGUMENTS("true"), said), 2);
    assert_line(said, "PMI_RANK=1 and PMI_SIZE=2, but --nproc-per-node 1 and --nnodes 1 start a "
                      "world of one");
    ck_assert_int_eq(
        run(ARGUMENTS("--nproc-per-node=2", "sh", "-c", "echo \"<$PMI_RANK$PMI_SIZE>\""), said), 0);
    assert_line(said, "<>");
}

static const mistake wrong_collectives[] = {
    {{"--ops", "all_reduce,sum"}, "--ops 'all_reduce,sum': allowed: all, none, or some of"},
    {{"--ops", ""}, "--ops '': allowed: all, none, or some of"},
    {{"--dtypes", "fp32,fp8"}, "--dtypes 'fp32,fp8': allowed: some of fp32, fp16, bf16,"},
    {{"--dtypes", "fp3"}, "--dtypes 'fp3': allowed: some of fp32, fp16, bf16,"},
    {{"--offsets", "17"}, "--offsets '17': allowed: 0 to 16"},
    {{"--iters", "-1"}, "--iters '-1': allowed: 0 to 1000000"},
    {{"--in-place", "maybe"}, "maybe"},
    {{"--timeout", "0"}, "--timeout '0': allowed: above 0, at most"},
    {{"--timeout", "1h"}, "--timeout '1h': allowed: above 0, at most"},
    {{"--counts", "1,,2"}, "--counts '1,,2': allowed: at most"},
    {{"--counts", "W-2"}, "--counts 'W-2': allowed: at most"},
    {{"--counts", "-1"}, "--counts '-1': allowed: at most"},
    {{"--counts", "1 2"}, "--counts '1 2': allowed: at most"},
    {{"--counts", "1099511627777"}, "--counts '1099511627777': allowed: at most"},
    {{"--comm", "nccl", "--device", "cpu"},
     "--comm nccl works in GPU memory: not with --device cpu"},
    {{"--comm", "gloo", "--ops", "reduce,gather,scater"}, "--ops 'reduce,gather,scater': allowed"},
    {{"all_reduce"}, "unexpected argument 'all_reduce'"},
};

ROWS_TEST(collectives_wrong_arguments, wrong_collectives)
{
    char said[SAID_BYTES];
    launched self = start("lockstep-collectives", wrong_collectives[_i].argument);
    ck_assert_int_eq(finish(&self, said), 2);
    assert_line(said, wrong_collectives[_i].said);
}

/* Every combination of what is named, in a row each: operations, types, counts and offsets. */
LOOP_TEST(collectives_try_every_combination, 3)
{
    static const char *const lists[][7] = {
        {"--ops=all_reduce,broadcast", "--dtypes=fp32,int64", "--counts=3,W+1,W-1", "--offsets=1",
         "--in-place=no", "--device=cpu", NULL},
        {"--ops=gather", "--counts=5", "--in-place=yes", "--data=exact", "--comm=self",
         "--device=cpu", NULL},
        {"--ops=none", "--device=cpu", NULL},
    };
    static const int counts[] = {3, 2, 0};
    char said[SAID_BYTES], op[32], dtype[16], redop[8], place[8], *rest = NULL;
    char algbw[16], busbw[16];
    double bytes, us;
    int count, root, wrong, row = 0;
    unsetenv("RANK"); /* a world of one */
    unsetenv("WORLD_SIZE");
    unsetenv("LS_RUN_DIR");
    launched self = start("lockstep-collectives", lists[_i]);
    ck_assert_msg(finish(&self, said) == 0, "%s", said);
    assert_line(said, "# world of one: nothing is sent, so no bandwidth is reported");
    for (char *line = strtok_r(said, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] == '#') {
            continue;
        }
        ck_assert_int_eq(sscanf(line, "%31s %lf %d %15s %7s %d %7s %lf %15s %15s %d", op, &bytes,
                                &count, dtype, redop, &root, place, &us, algbw, busbw, &wrong),
                         11);
        bool first = _i == 0;
        ck_assert_str_eq(op, !first ? "gather" : row < 12 ? "all_reduce" : "broadcast");
        ck_assert_str_eq(dtype, first && row / 6 % 2 == 1 ? "int64" : "fp32");
        ck_assert_int_eq(count, first ? counts[row / 2 % 3] : 5);
        ck_assert_double_eq(bytes, count * (first && row / 6 % 2 == 1 ? 8 : 4));
        ck_assert_str_eq(redop, first && row < 12 ? "sum" : "none");
        ck_assert_str_eq(place, first ? "out" : "in");
        ck_assert(root == 0 && wrong == 0);
        ck_assert_msg(strcmp(algbw, "-") == 0 && strcmp(busbw, "-") == 0, "%s %s", algbw, busbw);
        row++;
    }
    ck_assert_int_eq(row, _i == 0 ? 2 * 2 * 3 * 2 : _i == 1 ? 1 : 0);
}

TEST_MAIN("launch", .timeout_s = 40)
