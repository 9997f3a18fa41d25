/* Lacks of a machine: what a job's end and its logs say of them, what a program does without memory
 * or threads, and that a verdict then blames the machine. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "harness/run/record.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/usage.h"
#include "suite/suite.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* Rank 1 of two ends like this; the other one lost it (code 10). */
static const struct {
    int code, signal;
    const char *log;
    int end_code; /* -1: no end event */
    long kills;
    bool takes_disk, lacks;
} ends[] = {
    {3, 0, "error: cannot start loader thread 2 of 2: Resource temporarily unavailable\n", 3, 0, 0,
     1},
    {3, 0, "error: a reason of its own\n", 3, 0, 0, 1},
    {3, 0, "", -1, 0, 0, 1},
    {3, 0, "", 10, 0, 0, 0},                       /* its event says another code */
    {3, 0, "x.tmp: File too large\n", 3, 0, 1, 0}, /* what the case makes itself */
    {3, 0, "x: Cannot allocate memory\n", 3, 0, 1, 1},
    {3, 0, "x: No space left on device\n", 3, 0, 0, 1},
    {1, 0, "libgomp: Thread creation failed: Resource temporarily unavailable\n", -1, 0, 0, 1},
    {1, 0, "  File \"t.py\", line 3\nMemoryError\n", -1, 0, 0, 1},
    {1, 0, "OSError: [Errno 24] Too many open files: 'x'\nTraceback ends\n", -1, 0, 0, 1},
    {1, 0, "torch.OutOfMemoryError: CUDA out of memory.\n", -1, 0, 0, 1},
    {1, 0, "AssertionError\n", -1, 0, 0, 0},
    {134, 6, "terminate called after throwing an instance of 'std::bad_alloc'\n", -1, 0, 0, 1},
    {135, 7, "DataLoader worker is killed by signal: insufficient shared memory (shm)\n", -1, 0, 0,
     1},
    {139, 11, "", -1, 0, 0, 0},
    {137, 9, "", -1, 0, 0, 0},
    {137, 9, "", -1, 2, 0, 1},
    {127, 0, "error while loading shared libraries: failed to map segment\n", -1, 0, 0, 1},
    {126, 0, "", -1, 0, 0, 1},
    {0, 0, "warning: Cannot allocate memory for a cache\n", 0, 0, 0, 0}, /* and it went on */
};

ROWS_TEST(a_lack_is_not_the_subjects, ends)
{
    static const ls_verdict_code before[] = {LS_FAIL, LS_CRASH,       LS_TIMEOUT, LS_WEAK,
                                             LS_PASS, LS_UNSUPPORTED, LS_SKIP};
    ls_record_rank ranks[2] = {{.code = 10, .end_code = -1},
                               {.code = ends[_i].code,
                                .signal = ends[_i].signal,
                                .ended = ends[_i].end_code >= 0,
                                .end_code = ends[_i].end_code}};
    ls_record job = {
        .state = LS_RECORD_FAILED, .world = 2, .rank = ranks, .memory_kills = ends[_i].kills};
    ls_text_put(job.directory, sizeof job.directory, "%s", scratch);
    write_text("rank0.log", "error: a peer was lost\n");
    write_text("rank1.log", ends[_i].log);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        ls_verdict verdict = {.code = before[i], .evidence = "as judged"};
        ls_verdict_check_lack(&job, 1, ends[_i].takes_disk, &verdict);
        bool changed = ends[_i].lacks && i < 4;
        ck_assert_msg(verdict.code == (changed ? LS_INFRA : before[i]), "%s", verdict.evidence);
        ck_assert_msg((strncmp(verdict.evidence, "rank=1 ", 7) == 0) == changed, "%s",
                      verdict.evidence);
    }
}

TEST(kills_of_both_hierarchies_are_counted)
{
    setenv("LS_SYSFS", scratch, 1);
    setenv("LS_PROCFS", scratch, 1);
    ck_assert_int_eq(ls_record_kills(), 0);
    write_text("self/cgroup", "4:memory:/m\n0::/a/b\n");
    write_text("fs/cgroup/memory/m/memory.oom_control",
               "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    write_text("fs/cgroup/a/memory.events", "low 0\noom 5\noom_kill 4\noom_group_kill 0\n");
    ck_assert_int_eq(ls_record_kills(), 6);
}

/* ---- a program without memory ---------------------------------------------------------------- */

static void use_up(void)
{
    const struct rlimit none = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_AS, &none);
}

static int grow_list(int count, char **argument)
{
    (void)count;
    (void)argument;
    use_up();
    (void)ls_list_make(64 << 20, 1);
    return 0;
}

static int grow_json(int count, char **argument)
{
    cJSON *list = cJSON_CreateArray();
    (void)count;
    (void)argument;
    use_up();
    for (int i = 0; i < 10 << 20; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateString("a string that takes some memory"));
    }
    return 0;
}

static int leave_as_a_library(int count, char **argument)
{
    (void)count;
    (void)argument;
    exit(1);
}

static int crash_without_memory(int count, char **argument)
{
    (void)count;
    (void)argument;
    use_up();
    return raise(SIGSEGV);
}

static int crash(int count, char **argument)
{
    (void)count;
    (void)argument;
    return raise(SIGSEGV);
}

static int read_without_descriptors(int count, char **argument)
{
    const struct rlimit none = {3, 3};
    (void)count;
    setrlimit(RLIMIT_NOFILE, &none);
    return ls_text_read(argument[0]) == NULL ? LS_ERR_CHECK : 0; /* not: a file that is not there */
}

static int fail_a_check(int count, char **argument)
{
    (void)count;
    return ls_text_read(argument[0]) == NULL ? 0 : LS_ERR_CHECK;
}

static const struct {
    int (*run)(int count, char **argument);
    int code, signal;
} programs[] = {
    {grow_list, LS_ERR_INFRA, 0},
    {grow_json, LS_ERR_INFRA, 0},
    {leave_as_a_library, LS_ERR_INFRA, 0},
    {crash_without_memory, LS_ERR_INFRA, 0},
    {crash, 0, SIGSEGV},
    {read_without_descriptors, LS_ERR_INFRA, 0},
    {fail_a_check, LS_ERR_CHECK, 0},
};

ROWS_TEST(a_program_that_lacks_something_ends_with_3, programs)
{
    char *self[] = {"/proc/self/status", NULL};
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        ls_program_main(programs[_i].run, 1, self);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(programs[_i].signal != 0
                      ? WIFSIGNALED(status) && WTERMSIG(status) == programs[_i].signal
                      : WIFEXITED(status) && WEXITSTATUS(status) == programs[_i].code,
                  "status 0x%x", status);
}

TEST_MAIN("lack", .before = open_scratch, .after = close_scratch)
