/* Jobs on other machines, with a shell script in place of ssh and of srun: it runs the command it
 * is given here, so that everything but the network is the real thing. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "harness/hosts/probe.h"
#include "harness/hosts/remote.h"
#include "harness/run/job.h"
#include "harness/run/matrix.h"
#include "kernels/core/clock.h"
#include "suite/suite.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* ssh's last word is a line for the remote shell, the one before it the host. */
static const char fake_ssh[] =
    "#!/bin/sh\n"
    "[ \"$1 $2 $3\" = '-T -o BatchMode=yes' ] || exit 97\n"
    "while [ \"$1\" != -- ]; do shift; done\n"
    "export SSH_CONNECTION='10.0.0.9 1 127.0.0.1 22' LS_NODE_ADDR=127.0.0.1\n"
    "case $2 in\n"
    "gone) echo 'ssh: connect to host gone port 22: Connection refused' >&2; exit 255 ;;\n"
    "empty) echo 'sh: 1: exec: lockstep-launch: not found' >&2; exit 127 ;;\n"
    "esac\n"
    "exec sh -c \"$3\"\n";
/* srun's words are the command itself. */
static const char fake_srun[] = "#!/bin/sh\n"
                                "for word; do case $word in -*) shift ;; *) break ;; esac; done\n"
                                "exec \"$@\"\n";
static const char fake_scontrol[] = "#!/bin/sh\n[ \"$*\" = 'show hostnames n[1-2]' ] || exit 1\n"
                                    "echo n1; echo n2\n";

static void write_script(const char *name, const char *text)
{
    LS_TEXT(path, 300, "%s/%s", scratch, name);
    write_text(name, text);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

static void set_up(void)
{
    char path[4096];
    open_scratch();
    write_script("ssh", fake_ssh);
    write_script("srun", fake_srun);
    write_script("scontrol", fake_scontrol);
    snprintf(path, sizeof path, "%s:%s", scratch, getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("LS_TOKEN", "stale", 1);
    unsetenv("LS_SSH");
}

static ls_status probe_hosts(const char *list, ls_hosts *hosts, char *said)
{
    ls_probe found[8];
    char results[300];
    snprintf(results, sizeof results, "%s/results/runs", scratch);
    ls_probe_question question = {.folder = results, .device = "cpu", .ranks = 2};
    if (list != NULL) {
        ck_assert_int_eq(ls_hosts_parse_list(list, hosts), LS_OK);
    }
    catch_lines();
    ls_status status = ls_probe_hosts(hosts, &question, found);
    ls_text_put(said, 2048, "%s", caught_text());
    if (status == LS_OK) {
        ck_assert_str_eq(found[1].device, "cpu");
        ck_assert_int_ge(found[1].cores, 1);
    }
    /* nothing is left behind */
    ck_assert_int_eq(rmdir(results), 0);
    return status;
}

static void assert_line(const char *said, const char *line)
{
    ck_assert_msg(strstr(said, line) != NULL, "'%s' is not in:\n%s", line, said);
}

TEST(probing)
{
    ls_hosts hosts;
    char said[2048];
    ck_assert_int_eq(probe_hosts("a,b", &hosts, said), LS_OK);
    ck_assert_str_eq(said, "");
    ck_assert_str_eq(hosts.master_address, "127.0.0.1"); /* no resolver knows a */
    ck_assert_int_eq(hosts.port_count, LS_HOSTS_PORTS_MAX);
    ck_assert_int_eq(probe_hosts("a,gone,empty", &hosts, said), LS_ERR_INFRA);
    assert_line(said, "host gone cannot be reached: ssh: connect to host gone port 22: Connection "
                      "refused\n");
    assert_line(said, "host empty cannot run /");
    int lines = 0;
    for (const char *c = said; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    ck_assert_int_eq(lines, 2);
    setenv("LS_SSH", "/nonexistent/ssh -x", 1);
    ck_assert_int_eq(probe_hosts("a,b", &hosts, said), LS_ERR_INFRA);
    assert_line(said, "/nonexistent/ssh");
}

static ls_outcome run(ls_hosts *hosts, const char *script, double limit_s, ls_job *job)
{
    char said[2048];
    if (hosts->count == 0) {
        ck_assert_int_eq(probe_hosts("a,b", hosts, said), LS_OK);
    }
    *job = (ls_job){.id = "test",
                    .world = 4,
                    .hosts = hosts,
                    .host_count = 2,
                    .limit_s = limit_s,
                    .grace_s = 0.5};
    snprintf(job->directory, sizeof job->directory, "%s/job", scratch);
    ls_words_add(&job->command, "sh");
    ls_words_add(&job->command, "-c");
    ls_words_add(&job->command, "%s", script);
    ls_outcome outcome;
    bool resumed;
    ck_assert_int_eq(ls_job_run(job, NULL, NULL, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(outcome.rank_count, 4);
    ls_job_free(job);
    return outcome;
}

static void check_environment(ls_hosts *hosts, const char *address)
{
    ls_job job;
    setenv("OMP_NUM_THREADS", "7", 1); /* the nodes have cores of their own */
    setenv("NCCL_DEBUG", "WARN", 1);
    ls_outcome outcome =
        run(hosts,
            "echo \"<$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
            "$NCCL_DEBUG $LS_RUN_DIR ${#LS_TOKEN} it's>\"; pwd; [ $OMP_NUM_THREADS != 7 ] && "
            "[ $LS_TOKEN != stale ] && ! tr '\\0' '\\n' </proc/$PPID/cmdline | grep -q $LS_TOKEN",
            20, &job);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    ls_outcome_free(&outcome);
    char here[512];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    for (int rank = 0; rank < 4; rank++) {
        char path[600], wanted[1200];
        snprintf(path, sizeof path, "%s/rank%d.log", job.directory, rank);
        char *text = ls_text_read(path);
        snprintf(wanted, sizeof wanted, "<%d 4 %d 2 %d %s WARN %s 32 it's>\n%s\n", rank, rank % 2,
                 rank / 2, address, job.directory, here);
        ck_assert_ptr_nonnull(text);
        ck_assert_str_eq(text, wanted);
        free(text);
    }
}

TEST(environment)
{
    ls_hosts hosts = {.count = 0};
    check_environment(&hosts, "127.0.0.1");
}

TEST(slurm)
{
    ls_hosts hosts;
    char said[2048];
    setenv("SLURM_JOB_ID", "1", 1);
    setenv("SLURM_JOB_NODELIST", "n[1-2]", 1);
    ck_assert_int_eq(ls_hosts_read_slurm(&hosts), LS_OK);
    ck_assert_int_eq(hosts.count, 2);
    ck_assert_int_eq(probe_hosts(NULL, &hosts, said), LS_OK);
    check_environment(&hosts, "n1");
    setenv("SLURM_JOB_NODELIST", "x", 1);
    ck_assert_int_eq(ls_hosts_read_slurm(&hosts), LS_ERR_INFRA);
}

typedef struct ending {
    const char *script;
    double limit_s;
    ls_outcome_state state;
    int first_rank, code, signal;
} ending;

static const ending endings[] = {
    {"exit 0", 20, LS_OUTCOME_DONE, -1, 0, 0},
    {"[ $RANK = 3 ] && exit 12; sleep 0.1; exit 10", 20, LS_OUTCOME_FAILED, 3, 12, 0},
    /* a rank that waits for its dead peer is ended by its launcher or hung up on */
    {"[ $RANK = 2 ] && kill -9 $$; exec sleep 60", 20, LS_OUTCOME_KILLED, 2, 128 + SIGKILL,
     SIGKILL},
    {"[ $RANK = 0 ] && exit 10; sleep 0.3; [ $RANK = 3 ] && kill -SEGV $$; exit 10", 20,
     LS_OUTCOME_KILLED, 3, 128 + SIGSEGV, SIGSEGV},
    {"exec sleep 60", 0.5, LS_OUTCOME_TIMED_OUT, -1, 0, 0},
    /* the connection to the second host: its launcher stands for it here */
    {"[ $RANK = 3 ] && kill -9 $PPID; exec sleep 60", 20, LS_OUTCOME_FAILED, 2, LS_ERR_INFRA, 0},
};

ROWS_TEST(record_of_each_ending, endings)
{
    const ending *wanted = &endings[_i];
    ls_hosts hosts = {.count = 0};
    ls_job job;
    int64_t began_ns = ls_clock_ns();
    char script[512];
    snprintf(script, sizeof script, "echo $$ >>%s/pids; %s", scratch, wanted->script);
    ls_outcome outcome = run(&hosts, script, wanted->limit_s, &job);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 20e3);
    ck_assert_int_eq(outcome.state, wanted->state);
    ck_assert_int_eq(outcome.first_rank, wanted->first_rank);
    ck_assert_int_eq(outcome.code, wanted->code);
    ck_assert_int_eq(outcome.signal, wanted->signal);
    if (wanted->state == LS_OUTCOME_DONE) {
        ck_assert_int_gt(outcome.rank[3].rss_bytes_max, 100000);
    }
    ls_outcome_free(&outcome);
    /* no process is left */
    char path[300];
    snprintf(path, sizeof path, "%s/pids", scratch);
    FILE *pids = fopen(path, "re");
    ck_assert_ptr_nonnull(pids);
    int pid;
    while (fscanf(pids, "%d", &pid) == 1) {
        struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
        ck_assert(ended.fd < 0 || poll(&ended, 1, 5000) == 1);
        if (ended.fd >= 0) {
            close(ended.fd);
        }
    }
    fclose(pids);
}

/* What a case says of a job whose ranks could not be started, or whose host left without a word. */
static void assert_reason(const ls_job *job, const char *reason)
{
    ls_record record;
    ls_verdict verdict = {.code = LS_PASS};
    ck_assert_int_eq(ls_record_read(job->directory, LS_RECORD_STRICT, &record), LS_OK);
    ck_assert(ls_verdict_of_outcome(&record, &verdict));
    ck_assert_int_eq(verdict.code, LS_INFRA);
    assert_line(verdict.evidence, reason);
    ls_record_free(&record);
}

TEST(evidence_of_the_matrix)
{
    ls_hosts hosts;
    ls_job job;
    ls_outcome outcome;
    bool resumed;
    char said[2048];
    ck_assert_int_eq(probe_hosts("a,b", &hosts, said), LS_OK);
    write_script("trainer", "#!/bin/sh\nulimit -f\n"); /* in units of 512 bytes */
    char subject[300];
    ls_text_put(subject, sizeof subject, "%s/trainer", scratch);
    ls_matrix_site site = {
        .subject = subject, .run_directory = scratch, .device = "cpu", .cores = 2, .hosts = &hosts};
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE);
    spec.world = spec.nodes = 2;
    spec.real_nodes = true;
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert_int_eq(ls_job_run(&job, NULL, NULL, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    ls_outcome_free(&outcome);
    char path[600], wanted[32];
    ls_text_put(path, sizeof path, "%s/rank1.log", job.directory);
    ls_text_put(wanted, sizeof wanted, "%lld\n", (long long)job.file_bytes_max / 512);
    char *text = ls_text_read(path);
    ck_assert_ptr_nonnull(text);
    ck_assert_str_eq(text, wanted);
    free(text);
    ls_job_free(&job);
    /* a trainer that is not there */
    site.subject = "/nonexistent/trainer";
    ck_assert_int_eq(ls_matrix_job(&spec, &site, &job), LS_OK);
    ck_assert_int_eq(ls_job_run(&job, NULL, NULL, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_NOT_STARTED);
    ls_outcome_free(&outcome);
    assert_reason(
        &job, "host a: lockstep-launch: error: cannot run '/nonexistent/trainer': no such program");
    ls_job_free(&job);
}

/* A host that could be reached when the run began cannot be any more. */
TEST(a_host_that_is_lost)
{
    ls_hosts hosts;
    ls_job job;
    char said[2048];
    ck_assert_int_eq(probe_hosts("a,b", &hosts, said), LS_OK);
    ls_text_put(hosts.host[1].name, sizeof hosts.host[1].name, "gone");
    ls_outcome outcome = run(&hosts, "exec sleep 60", 20, &job);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_FAILED);
    ck_assert_int_eq(outcome.first_rank, 2);
    ls_outcome_free(&outcome);
    assert_reason(&job, "host gone ended without a report (exit code 255): ssh: connect to host "
                        "gone port 22: Connection refused");
}

/* ---- the other end of the line --------------------------------------------------------------- */

typedef struct launched {
    pid_t pid;
    int input, output;
} launched;

static launched launch(const char *order)
{
    char path[1024];
    int in[2], out[2];
    ls_remote_launcher(NULL, path, sizeof path);
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    launched self = {.pid = fork(), .input = in[1], .output = out[0]};
    if (self.pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        execl(path, path, "--env-from-stdin", "--nproc-per-node=2", "sh", "-c",
              "echo ready; exec sleep 60", NULL);
        _exit(126);
    }
    close(in[0]);
    close(out[1]);
    ck_assert_int_eq(write(self.input, order, strlen(order)), (ssize_t)strlen(order));
    return self;
}

static int finish(launched *self, char *said, size_t bytes)
{
    size_t used = 0;
    ssize_t got;
    while ((got = read(self->output, said + used, bytes - 1 - used)) > 0) {
        used += (size_t)got;
    }
    said[used] = '\0';
    close(self->output);
    int state;
    ck_assert_int_eq(waitpid(self->pid, &state, 0), self->pid);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

TEST(hung_up)
{
    char said[4096], byte;
    launched self = launch("{\"schema\":1,\"environment\":{\"LS_TOKEN\":\"x\"}}\n\n\n");
    for (int i = 0; i < 12; i++) { /* "ready\n" twice */
        ck_assert_int_eq(read(self.output, &byte, 1), 1);
    }
    int64_t began_ns = ls_clock_ns();
    close(self.input);
    ck_assert_int_eq(finish(&self, said, sizeof said), 128 + SIGHUP);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 8000);
    assert_line(said, "the bench has ended: its ranks are ended");
    assert_line(said, "\"state\":\"stopped\"");
}

TEST_MAIN("remote", .timeout_s = 60, .before = set_up, .after = close_scratch)
