/* A job: what its ranks find, what its record says however it ends, and that a finished one is not
 * run again. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>

#include "kernels/core/cores.h"
#include "harness/hosts/supervise.h"
#include "harness/machine/machine.h"
#include "harness/run/job.h"
#include "kernels/core/clock.h"
#include "kernels/core/json.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/played_ssh.h"
#include "suite/unit/run_suite.h"

static ls_outcome outcome; /* of the last job */
static bool resumed;

static ls_status run_job(const ls_job *job)
{
    return ls_job_run(job, NULL, NULL, &outcome, &resumed);
}

/* A job of `sh -c script` in the test's folder. */
static ls_job make_job(const char *script, int world, int nodes)
{
    ls_job job = {.id = "test",
                  .label = "a test",
                  .world = world,
                  .local_nodes = nodes,
                  .limit_s = 20,
                  .grace_s = 3};
    snprintf(job.directory, sizeof job.directory, "%s/jobs/test", played);
    ls_words_add(&job.command, "sh");
    ls_words_add(&job.command, "-c");
    ls_words_add(&job.command, "%s", script);
    job.facts = cJSON_CreateObject();
    cJSON_AddStringToObject(job.facts, "role", "evidence");
    return job;
}

static void assert_file(const ls_job *job, const char *name, const char *wanted)
{
    LS_TEXT(path, 600, "%s/%s", job->directory, name);
    char *text = ls_text_read(path);
    ck_assert_pstr_eq(text, wanted);
    free(text);
}

static void write_file(const ls_job *job, const char *name, const char *text)
{
    LS_TEXT(path, 600, "%s/%s", job->directory, name);
    FILE *file = fopen(path, "w");
    ck_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static cJSON *read_record(const ls_job *job)
{
    cJSON *root = NULL;
    LS_TEXT(path, 600, "%s/job.json", job->directory);
    ck_assert_int_eq(ls_json_read_file(path, &root), LS_OK);
    ck_assert_int_eq(ls_json_integer(root, "schema", 0), 2);
    ck_assert_str_eq(ls_json_string(root, "id", ""), job->id);
    return root;
}

static void run(const ls_job *job, bool resumed_wanted)
{
    resumed = !resumed_wanted;
    ck_assert_int_eq(run_job(job), LS_OK);
    ck_assert_int_eq(resumed, resumed_wanted);
}

static void assert_ends(const ls_job *job, bool resumed_wanted, ls_outcome_state state)
{
    run(job, resumed_wanted);
    ck_assert_int_eq(outcome.state, state);
    ls_outcome_free(&outcome);
}

/* Of a job that no host or program could begin. */
static void assert_not_started(const ls_job *job, int first_rank)
{
    cJSON *root = read_record(job);
    const cJSON *record = ls_json_get(root, "outcome");
    ck_assert_str_eq(ls_json_string(record, "state", ""), "not started");
    ck_assert_int_eq(ls_json_int(record, "first_rank", 9), first_rank);
    cJSON_Delete(root);
}

typedef struct ending {
    const char *script;
    double limit_s;
    ls_outcome_state state;
    const char *name;
    int first_rank, code, signal;
} ending;

static const ending endings[] = {
    {"exit 0", 20, LS_OUTCOME_DONE, "done", -1, 0, 0},
    {"[ $RANK = 1 ] && exit 12; exit 10", 20, LS_OUTCOME_FAILED, "failed", 1, 12, 0},
    {"[ $RANK = 2 ] && kill -9 $$; sleep 0.1; exit 10", 20, LS_OUTCOME_KILLED, "killed", 2,
     128 + SIGKILL, SIGKILL},
    {"exec sleep 30", 0.2, LS_OUTCOME_TIMED_OUT, "timed out", -1, 0, 0},
};

LOOP_TEST(record_of_each_ending, 4)
{
    const ending *wanted = &endings[_i];
    ls_job job = make_job(wanted->script, 3, 1);
    job.limit_s = wanted->limit_s;
    run(&job, false);
    ck_assert_int_eq(outcome.state, wanted->state);
    ck_assert_int_eq(outcome.first_rank, wanted->first_rank);
    ck_assert_int_eq(outcome.code, wanted->code);
    ck_assert_int_eq(outcome.signal, wanted->signal);
    ck_assert_int_eq(outcome.rank_count, 3);
    ck_assert_int_gt(outcome.rss_bytes_max, 100000);
    cJSON *root = read_record(&job);
    const cJSON *record = ls_json_get(root, "outcome");
    const cJSON *ranks = ls_json_get(record, "ranks");
    ck_assert_str_eq(ls_json_string(record, "state", ""), wanted->name);
    ck_assert_int_eq(ls_json_integer(record, "first_rank", -9), wanted->first_rank);
    ck_assert_int_eq(ls_json_integer(record, "code", -9), wanted->code);
    ck_assert_int_eq(ls_json_integer(record, "signal", -9), wanted->signal);
    ck_assert_double_gt(ls_json_number(record, "seconds", -1), 0);
    ck_assert_int_eq(cJSON_GetArraySize(ranks), 3);
    if (wanted->state == LS_OUTCOME_KILLED) { /* the survivors left by themselves */
        ck_assert_int_eq(ls_json_integer(cJSON_GetArrayItem(ranks, 0), "code", -9), 10);
        ck_assert_int_eq(ls_json_integer(cJSON_GetArrayItem(ranks, 0), "signal", -9), 0);
    }
    ck_assert_str_eq(ls_json_string(ls_json_get(root, "facts"), "role", ""), "evidence");
    const cJSON *command = ls_json_get(root, "command");
    ck_assert_str_eq(cJSON_GetArrayItem(command, 2)->valuestring, wanted->script);
    cJSON_Delete(root);
    ls_outcome_free(&outcome);
    ls_job_free(&job);
}

TEST(resume)
{
    const char *script =
        "echo $RANK >> $LS_RUN_DIR/count; echo event >> $LS_RUN_DIR/rank$RANK.jsonl; "
        "[ \"$FAIL\" != yes ]";
    ls_job job = make_job(script, 1, 1);
    setenv("FAIL", "yes", 1);
    assert_ends(&job, false, LS_OUTCOME_FAILED); /* is run again, without its leftovers */
    unsetenv("FAIL");
    run(&job, false);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    int64_t rss_bytes_max = outcome.rss_bytes_max;
    ls_outcome_free(&outcome);
    assert_file(&job, "rank0.jsonl", "event\n");
    run(&job, true);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    ck_assert_int_eq(outcome.first_rank, -1);
    ck_assert_int_eq(outcome.rank_count, 1);
    ck_assert_int_eq(outcome.rss_bytes_max, rss_bytes_max);
    ls_outcome_free(&outcome);
    assert_file(&job, "count", "0\n0\n");
    ls_words_add(&job.command, "another"); /* another command is another job */
    assert_ends(&job, false, LS_OUTCOME_DONE);
    ls_job_free(&job);
}

static void count_ticks(void *context)
{
    ++*(int *)context;
}

TEST(ticks)
{
    ls_job job = make_job("sleep 1.3", 1, 1);
    int ticks = 0;
    ck_assert_int_eq(ls_job_run(&job, count_ticks, &ticks, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(ticks, 1);
    ls_outcome_free(&outcome);
    ls_job_free(&job);
}

TEST(cannot_run)
{
    ls_job job = make_job("exit 0", 3, 2); /* 3 ranks on 2 nodes */
    ck_assert_int_eq(run_job(&job), LS_ERR_USAGE);
    job.local_nodes = 1;
    ls_job elsewhere = job;
    snprintf(elsewhere.directory, sizeof elsewhere.directory, "/proc/nothing/here");
    ck_assert_int_eq(run_job(&elsewhere), LS_ERR_INFRA);
    free(job.command.word[0]);
    job.command.word[0] = strdup("/nonexistent/trainer");
    ck_assert_int_eq(run_job(&job), LS_ERR_USAGE);
    assert_not_started(&job, 0);
    ls_job_free(&job);
}

/* ---- what ranks find and what is written of them, as a whole ------------------------------------
 */

static void check_environment(const ls_job *job, int rank, const char *token, const char *want)
{
    ls_words words = ls_job_environment(job, rank, 29500, token);
    char *line = ls_words_line(&words);
    ck_assert_str_eq(line, want);
    free(line);
    ls_words_free(&words);
}

#define NEVER_RESTARTED "TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0 "

TEST(every_variable_of_a_rank)
{
    static const char *const stale[] = {
        "RANK",         "WORLD_SIZE",  "LOCAL_RANK",       "GROUP_RANK",       "MASTER_ADDR",
        "LS_NODE_ADDR", "MASTER_PORT", "LS_TOKEN",         "LOCAL_WORLD_SIZE", "TORCHELASTIC_X",
        "LS_RUN_DIR",   "NCCL_HOSTID", "LS_OVERSUBSCRIBE", "PMI_RANK",         "SLURM_PROCID"};
    ls_job job = {.world = 1, .directory = "/r", .threads = 1};
    clearenv();
    setenv("KEPT", "yes", 1);
    setenv("RANKS", "kept", 1);
    setenv("OMP_NUM_THREADS", "9", 1);
    check_environment(&job, 0, NULL,
                      "KEPT=yes RANKS=kept RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
                      "GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 " NEVER_RESTARTED
                      "LS_RUN_DIR=/r OMP_NUM_THREADS=1");
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
        setenv(stale[i], "stale", 1);
    }
    job.world = 600; /* the addresses of nodes run on after 250 */
    job.local_nodes = 300;
    job.share_devices = true;
    job.threads = 2;
    check_environment(
        &job, 499, "t",
        "KEPT=yes RANKS=kept RANK=499 WORLD_SIZE=600 LOCAL_RANK=1 "
        "LOCAL_WORLD_SIZE=2 GROUP_RANK=249 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 " NEVER_RESTARTED
        "LS_TOKEN=t LS_RUN_DIR=/r LS_NODE_ADDR=127.0.1.0 LS_OVERSUBSCRIBE=1 "
        "NCCL_HOSTID=lockstep-node-249 OMP_NUM_THREADS=2");
    ls_simnet net = {.nodes = 2};
    job.world = 4;
    job.local_nodes = 2;
    job.net = &net; /* with networks of their own */
    job.share_devices = false;
    check_environment(&job, 3, NULL,
                      "KEPT=yes RANKS=kept LS_OVERSUBSCRIBE=stale RANK=3 WORLD_SIZE=4 "
                      "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=10.213.0.1 "
                      "MASTER_PORT=29500 " NEVER_RESTARTED "LS_RUN_DIR=/r LS_NODE_ADDR=10.213.0.2 "
                      "NCCL_HOSTID=lockstep-node-1 OMP_NUM_THREADS=2");
    ls_hosts hosts = {.count = 2};
    snprintf(hosts.master_address, sizeof hosts.master_address, "10.9.8.7");
    job.hosts = &hosts;
    job.host_count = 2;
    job.local_nodes = 0;
    job.net = NULL;
    ck_assert_int_eq(ls_job_nodes(&job), 2);
    check_environment(&job, 2, NULL,
                      "KEPT=yes RANKS=kept NCCL_HOSTID=stale LS_OVERSUBSCRIBE=stale RANK=2 "
                      "WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 "
                      "MASTER_ADDR=10.9.8.7 MASTER_PORT=29500 " NEVER_RESTARTED
                      "LS_RUN_DIR=/r OMP_NUM_THREADS=2");
    job.local_nodes = 2;
    ck_assert_int_eq(ls_job_nodes(&job), 4);
}

/* 0: the cores in equal shares, at least one each; given by nobody else when it is set already. */
TEST(threads_of_a_rank)
{
    int cores = ls_cores_share(ls_cores_usable(), 1);
    for (int world = 1; world <= 4 * cores; world++) {
        ls_job job = {.world = world, .directory = "/r"};
        clearenv();
        setenv("A", "b", 1);
        LS_TEXT(want, 400,
                "A=b RANK=0 WORLD_SIZE=%d LOCAL_RANK=0 LOCAL_WORLD_SIZE=%d GROUP_RANK=0 "
                "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 " NEVER_RESTARTED
                "LS_RUN_DIR=/r OMP_NUM_THREADS=%d",
                world, world, world <= cores ? cores / world : 1);
        check_environment(&job, 0, NULL, want);
        ls_supervise_rank_info info = {.world = world, .master_address = "a", .ranks_here = world};
        ls_words words = ls_supervise_environment(&info); /* of the launcher: 0 is not asked for */
        LS_TEXT(last, 40, "OMP_NUM_THREADS=%d", world <= cores ? cores / world : 1);
        ck_assert_str_eq(words.word[words.count - 1], last);
        ls_words_free(&words);
        setenv("OMP_NUM_THREADS", "77", 1);
        words = ls_supervise_environment(&info);
        ck_assert_str_eq(words.word[1], "OMP_NUM_THREADS=77");
        ck_assert_str_eq(words.word[words.count - 1], "TORCHELASTIC_MAX_RESTARTS=0");
        ls_words_free(&words);
    }
}

static const char outcome_text[] =
    "{\"state\":\"killed\",\"first_rank\":5,\"code\":137,\"signal\":9,\"started_ns\":1000000000,"
    "\"seconds\":2.5,\"why\":\"a reason\",\"ranks\":[{\"rank\":4,\"code\":10,\"signal\":0,"
    "\"seconds\":1.5,\"user_s\":0.5,\"system_s\":0.25,\"rss_bytes_max\":4096},{\"rank\":5,"
    "\"code\":137,\"signal\":9,\"seconds\":2,\"user_s\":1,\"system_s\":2,\"rss_bytes_max\":1024}]}";

TEST(an_outcome_as_it_is_written)
{
    ls_proc ranks[] = {{.code = 10,
                        .started_ns = 1,
                        .ended_ns = 1500000001,
                        .user_s = 0.5,
                        .system_s = 0.25,
                        .rss_bytes_max = 4096},
                       {.code = 137,
                        .signal = 9,
                        .started_ns = 5,
                        .ended_ns = 2000000005,
                        .user_s = 1,
                        .system_s = 2,
                        .rss_bytes_max = 1024}};
    ls_outcome written = {.state = LS_OUTCOME_KILLED,
                          .first_rank = 1,
                          .code = 137,
                          .signal = 9,
                          .started_ns = 1000000000,
                          .ended_ns = 3500000000,
                          .why = "a reason",
                          .rank_count = 2,
                          .rank = ranks};
    cJSON *json = ls_outcome_json(&written, 4);
    char *text = cJSON_PrintUnformatted(json);
    ck_assert_str_eq(text, outcome_text);
    cJSON_free(text);
    ls_outcome read;
    ck_assert(ls_outcome_read(json, 4, 2, &read));
    ck_assert(read.state == LS_OUTCOME_KILLED && read.first_rank == 1 && read.code == 137);
    ck_assert(read.signal == 9 && read.started_ns == 0 && read.ended_ns == 2500000000);
    ck_assert(read.rank_count == 2 && read.user_s == 1.5 && read.system_s == 2.25);
    ck_assert(read.rss_bytes_max == 4096 && strcmp(read.why, "a reason") == 0);
    for (int i = 0; i < 2; i++) {
        const ls_proc *r = &read.rank[i];
        ck_assert(r->ended && r->pid == 0 && r->code == ranks[i].code);
        ck_assert(r->signal == ranks[i].signal && r->started_ns == 0);
        ck_assert(r->ended_ns == (i == 0 ? 1500000000 : 2000000000));
        ck_assert(r->user_s == ranks[i].user_s && r->system_s == ranks[i].system_s);
        ck_assert_int_eq(r->rss_bytes_max, ranks[i].rss_bytes_max);
    }
    ls_outcome_free(&read);
    ck_assert(read.rank == NULL && read.rank_count == 0);
    cJSON_Delete(json);
    written.first_rank = -1; /* of no rank, whichever is the first */
    written.why[0] = '\0';
    json = ls_outcome_json(&written, 4);
    ck_assert_int_eq(ls_json_int(json, "first_rank", 7), -1);
    ck_assert(!cJSON_HasObjectItem(json, "why"));
    cJSON_Delete(json);
}

TEST(an_outcome_that_is_none)
{
    static const struct {
        const char *from, *to; /* a change of outcome_text */
        bool read;
        int first_rank;
    } rows[] = {
        {"killed", "killed", true, 1},
        {"killed", "done", true, 1},
        {"killed", "failed", true, 1},
        {"killed", "timed out", true, 1},
        {"killed", "stopped", true, 1},
        {"killed", "not started", true, 1},
        {"killed", "another", false, 0},
        {"\"state\"", "\"x\"", false, 0},
        {"\"ranks\":[", "\"ranks\":[{},", false, 0},
        {"\"ranks\"", "\"x\"", false, 0},
        {"first_rank\":5", "first_rank\":3", false, 0},
        {"first_rank\":5", "first_rank\":4", true, 0},
        {"first_rank\":5", "first_rank\":6", false, 0},
        {"first_rank\":5", "first_rank\":-1", true, -1},
        {"first_rank\":5", "first_rank\":-3", true, -1},
        {"\"first_rank\"", "\"x\"", true, -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *found = strstr(outcome_text, rows[i].from);
        LS_TEXT(text, 600, "%.*s%s%s", (int)(found - outcome_text), outcome_text, rows[i].to,
                found + strlen(rows[i].from));
        cJSON *json = cJSON_Parse(text);
        bool read = ls_outcome_read(json, 4, 2, &outcome);
        ck_assert_msg(read == rows[i].read, "%s", text);
        if (read) {
            ck_assert_int_eq(outcome.first_rank, rows[i].first_rank);
            ls_outcome_free(&outcome);
        }
        cJSON_Delete(json);
    }
    /* members that are missing or beyond any job */
    static const char *const times[] = {"-1", "1e9", "null", "0.5"};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        LS_TEXT(text, 200, "{\"state\":\"done\",\"seconds\":%s,\"ranks\":[{}]}", times[i]);
        cJSON *json = cJSON_Parse(text);
        ck_assert(ls_outcome_read(json, 0, 1, &outcome));
        ck_assert_int_eq(outcome.ended_ns, i == 3 ? 500000000 : 0);
        ck_assert(outcome.code == 0 && outcome.signal == 0 && outcome.rank[0].ended);
        ck_assert(outcome.rank[0].code == 0 && outcome.rank[0].signal == 0);
        ck_assert(outcome.rank[0].ended_ns == 0 && outcome.rss_bytes_max == 0);
        ck_assert(outcome.user_s == 0 && outcome.system_s == 0);
        ls_outcome_free(&outcome);
        cJSON_Delete(json);
    }
}

/* Variables that a run depends on are in its record; the rest of the environment is private. */
TEST(variables_of_a_record)
{
    static const char *const names[] = {"LOCAL_X", "LS_X",     "OMP_X",  "NCCL_X", "CUDA_X",
                                        "CUDNN_X", "CUBLAS_X", "GLOO_X", "DNNL_X", "ONEDNN_X",
                                        "KMP_X",   "GOMP_X",   "MKL_X",  "LD_X",   "MALLOC_X"};
    ls_job job = make_job("exit 0", 1, 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv(names[i], "x=y", 1);
    }
    setenv("XLS_X", "x", 1);
    setenv("GROUP_RANKS", "x", 1);
    run(&job, false);
    cJSON *root = read_record(&job);
    const cJSON *environment = ls_json_get(root, "environment");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ck_assert_str_eq(ls_json_string(environment, names[i], "absent"), "x=y");
    }
    static const char *const own[][2] = {{"RANK", "0"},       {"WORLD_SIZE", "1"},
                                         {"GROUP_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"},
                                         {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"},
                                         {"LS_TOKEN", "-"},   {"XLS_X", "-"},
                                         {"PATH", "-"},       {"GROUP_RANKS", "-"}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        ck_assert_str_eq(ls_json_string(environment, own[i][0], "-"), own[i][1]);
    }
    ck_assert_str_eq(ls_json_string(environment, "LS_RUN_DIR", ""), job.directory);
    ck_assert_str_eq(ls_json_string(root, "label", ""), "a test");
    const cJSON *command = ls_json_get(root, "command");
    ck_assert_int_eq(cJSON_GetArraySize(command), 3);
    ck_assert_str_eq(cJSON_GetArrayItem(command, 0)->valuestring, "sh");
    cJSON_Delete(root);
    ls_outcome_free(&outcome);
    ls_job_free(&job);
}

/* Equal in every word and in its number of ranks, well ended, or it is run again. */
TEST(a_job_that_is_done)
{
    ls_job job = make_job("exit 0", 2, 1);
    ls_words_add(&job.command, "x\ny"); /* its words are read back without what would hide */
    ck_assert(!ls_job_is_done(&job));
    assert_ends(&job, false, LS_OUTCOME_DONE);
    ck_assert(ls_job_is_done(&job));
    job.command.word[3][0] = 'z';
    ck_assert(!ls_job_is_done(&job));
    job.command.word[3][0] = 'x';
    job.command.word[0][0] = 'z';
    ck_assert(!ls_job_is_done(&job));
    job.command.word[0][0] = 's';
    job.command.count--;
    ck_assert(!ls_job_is_done(&job));
    job.command.count++;
    job.world = 1;
    ck_assert(!ls_job_is_done(&job));
    job.world = 2;
    ck_assert(ls_job_is_done(&job));
    write_file(&job, "job.json", "{");
    ck_assert(!ls_job_is_done(&job));
    ls_job_free(&job);
}

TEST(jobs_that_are_none)
{
#define RANKS(ranks, nodes) \
#ranks " ranks on " #nodes " nodes, allowed: 1 to 1024 ranks, equally many on each node"
    static const struct {
        int world, local_nodes, hosts, host_count;
        const char *directory;
        bool command;
        const char *said;
    } rows[] = {
        {0, 1, 0, 0, "/tmp", true, RANKS(0, 1)},
        {-1, 1, 0, 0, "/tmp", true, RANKS(-1, 1)},
        {1025, 1, 0, 0, "/tmp", true, RANKS(1025, 1)},
        {3, 2, 0, 0, "/tmp", true, RANKS(3, 2)},
        {3, 2, 1, 1, "/tmp", true, RANKS(3, 2)},
        {2, 1, 1, 2, "/tmp", true, "2 hosts of 1"},
        {2, 1, 1, -1, "/tmp", true, "-1 hosts of 1"},
        {2, 1, 1, 0, "/tmp", true, "0 hosts of 1"},
        {1024, 1, 0, 0, "tmp", true, "no command, or directory 'tmp' is not absolute"},
        {1, 1, 1, 1, "tmp", true, "no command, or directory 'tmp' is not absolute"},
        {1, 1, 0, 0, "/tmp", false, "no command, or directory '/tmp' is not absolute"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_hosts hosts = {.count = rows[i].hosts};
        ls_job job = {.id = "j", .world = rows[i].world, .local_nodes = rows[i].local_nodes};
        job.hosts = rows[i].hosts > 0 ? &hosts : NULL;
        job.host_count = rows[i].host_count;
        snprintf(job.directory, sizeof job.directory, "%s", rows[i].directory);
        if (rows[i].command) {
            ls_words_add(&job.command, "true");
        }
        catch_lines();
        ck_assert_int_eq(run_job(&job), LS_ERR_USAGE);
        LS_TEXT(want, 200, "error: job j: %s\n", rows[i].said);
        ck_assert_str_eq(caught_lines(), want);
        ls_job_free(&job);
    }
}

/* Files of an earlier attempt go, of every rank, and what is in their way is named. */
TEST(leftovers)
{
    ls_job job = make_job("[ $RANK = 0 ] || exit 0; ls $LS_RUN_DIR | tr '\\n' ' '", 2, 1);
    assert_ends(&job, false, LS_OUTCOME_DONE);
    static const char *const names[] = {"rank0.jsonl", "rank1.jsonl", "rank1.log", "count"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        write_file(&job, names[i], "old\n");
    }
    ls_words_add(&job.command, "another");
    assert_ends(&job, false, LS_OUTCOME_DONE);
    LS_TEXT(log, 600, "%s/rank0.log", job.directory);
    char *text = ls_text_read(log);
    ck_assert_ptr_null(strstr(text, "jsonl"));
    ck_assert_ptr_nonnull(strstr(text, "count"));
    ck_assert_ptr_eq(strchr(text, 'c'), strrchr(text, 'c')); /* once */
    free(text);
    assert_file(&job, "rank1.log", "");
    ls_words_add(&job.command, "another");
    LS_TEXT(path, 600, "%s/rank1.jsonl", job.directory);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(run_job(&job), LS_ERR_INFRA);
    ls_job_free(&job);
}

/* A folder as long as a job may have, and a command of one word. */
TEST(a_long_folder)
{
    char name[201];
    ls_job job = make_job("true", 1, 1);
    ls_words_free(&job.command);
    memset(name, 'x', sizeof name);
    name[200] = '\0';
    ls_text_put(job.directory, sizeof job.directory, "%s/%s/%s/%.57s", played, name, name, name);
    play_program("run", "#!/bin/sh\necho \"$RANK\"\n");
    ls_words_add(&job.command, "%s/run", played);
    assert_ends(&job, false, LS_OUTCOME_DONE);
    assert_ends(&job, true, LS_OUTCOME_DONE);
    write_file(&job, "rank0.jsonl", "");
    ls_words_add(&job.command, "another"); /* the leftovers go */
    assert_ends(&job, false, LS_OUTCOME_DONE);
    assert_file(&job, "rank0.jsonl", NULL);
    assert_file(&job, "rank0.log", "0\n");
    ls_job_free(&job);
}

/* Readers load logs and events whole, so no more than 256 MB of each are kept. */
TEST(records_that_are_cut)
{
    static const struct {
        const char *name;
        int64_t bytes, kept;
    } rows[] = {{"rank0.jsonl", 268435457, 268435456},
                {"rank1.log", 314572800, 268435456},
                {"rank1.jsonl", 268435456, 268435456},
                {"rank2.jsonl", 400000000, 400000000}}; /* of no rank */
    char script[600] = "[ $RANK = 0 ] || exit 0", path[600];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_text_add(script, sizeof script, "; truncate -s %lld $LS_RUN_DIR/%s",
                    (long long)rows[i].bytes, rows[i].name);
    }
    ls_job job = make_job(script, 2, 1);
    catch_lines();
    assert_ends(&job, false, LS_OUTCOME_DONE);
    const char *said = caught_text();
    LS_TEXT(want, 2000,
            "test_job: warning: %s/rank0.jsonl had 256 MB and was truncated to 256\n"
            "test_job: warning: %s/rank1.log had 300 MB and was truncated to 256\n",
            job.directory, job.directory);
    ck_assert_str_eq(said, want);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", job.directory, rows[i].name);
        ck_assert_int_eq(stat(path, &status), 0);
        ck_assert_int_eq(status.st_size, rows[i].kept);
    }
    ls_job_free(&job);
}

/* Each rank enters the network of its node. */
TEST(networks_of_nodes)
{
    static const char nsenter[] = "#!/bin/sh\necho \"$1 $2 $RANK $MASTER_ADDR $LS_NODE_ADDR\"\n"
                                  "shift 2\nexec \"$@\"\n";
    static const ls_simnet net = {.nodes = 2, .owner = 12};
    play_program("nsenter", nsenter);
    ls_job job = make_job("echo it ran", 4, 2);
    job.net = &net;
    assert_ends(&job, false, LS_OUTCOME_DONE);
    for (int rank = 0; rank < 4; rank++) {
        LS_TEXT(name, 32, "rank%d.log", rank);
        LS_TEXT(want, 200, "--net=/run/netns/ls-12-%d -- %d 10.213.0.1 10.213.0.%d\nit ran\n",
                rank / 2, rank, rank / 2 + 1);
        assert_file(&job, name, want);
    }
    ls_job_free(&job);
}

/* In a network of its own, whose loopback is down: several ranks cannot meet; one need not, and
 * those with networks of nodes do not ask. */
TEST(without_a_loopback)
{
    static const struct {
        int world;
        bool net;
        ls_status status;
    } rows[] = {{2, false, LS_ERR_INFRA}, {1, false, LS_OK}, {2, true, LS_OK}};
    static const ls_simnet net = {.nodes = 2, .owner = 12};
    play_program("nsenter", "#!/bin/sh\nshift 2\nexec \"$@\"\n");
    bool may = geteuid() == 0 && unshare(CLONE_NEWNET) == 0;
    for (int i = 0; i < 3 && may; i++) {
        ls_job job = make_job("exit 0", rows[i].world, rows[i].net ? 2 : 1);
        job.net = rows[i].net ? &net : NULL;
        catch_lines();
        ck_assert_int_eq(run_job(&job), rows[i].status);
        const char *said = caught_lines(), *want = "error: ranks on this machine cannot meet: ";
        if (rows[i].status == LS_OK) {
            ck_assert_str_eq(said, "");
            ls_outcome_free(&outcome);
        } else {
            ck_assert_int_eq(strncmp(said, want, strlen(want)), 0);
        }
        ls_job_free(&job);
    }
}

/* ---- on other machines: two hosts of two ranks with played launchers ------------------------- */

/* What a launcher reports of its ranks: {state, first rank, code, signal, seconds of both}. */
#define REPORT(first, state, failed, code, signal, a_s, b_s)                                \
    "{\"event\":\"node\",\"outcome\":{\"state\":\"" state "\",\"first_rank\":" #failed      \
    ",\"code\":" #code ",\"signal\":" #signal ",\"ranks\":[{\"rank\":" #first               \
    ",\"code\":1,\"signal\":2,\"seconds\":" #a_s ",\"user_s\":0.5,\"system_s\":1,"          \
    "\"rss_bytes_max\":100},{\"code\":3,\"signal\":4,\"seconds\":" #b_s ",\"user_s\":0.25," \
    "\"system_s\":2,\"rss_bytes_max\":200}]}}\n"
#define AT_A(...) REPORT(0, __VA_ARGS__)
#define AT_B(...) REPORT(2, __VA_ARGS__)
#define A_IS_DONE AT_A("done", -1, 0, 0, 1, 1)
#define B_IS_DONE AT_B("done", -1, 0, 0, 1, 1)
/* lost its peer (10) or never found it (11) */
#define VICTIM(x, rank, code, seconds) AT_##x("failed", rank, code, 0, seconds, seconds)

#define ENDS(state, first_rank, code, signal) LS_OUTCOME_##state, first_rank, code, signal

static const struct {
    const char *a, *b; /* what the launchers write */
    ls_outcome_state state;
    int first_rank, code, signal;
    const char *ends; /* how b's channel ends; NULL: as it should */
    bool lost[2];     /* hosts without a report of their ranks */
    const char *why;  /* NULL: "" */
} put_together[] = {
    {A_IS_DONE, B_IS_DONE, ENDS(DONE, -1, 0, 0)},
    /* the first in time, of equals */
    {AT_A("failed", 0, 12, 0, 9, 0), AT_B("failed", 3, 14, 0, 1, 4), ENDS(FAILED, 3, 14, 0)},
    {AT_A("failed", 1, 12, 0, 9, 2), AT_B("failed", 2, 14, 0, 8, 0), ENDS(FAILED, 1, 12, 0)},
    {VICTIM(A, 0, 10, 4), VICTIM(B, 3, 11, 9), ENDS(FAILED, 0, 10, 0)},
    {VICTIM(A, 0, 10, 9), VICTIM(B, 3, 11, 4), ENDS(FAILED, 3, 11, 0)},
    /* one that failed by itself goes before those that lost it */
    {VICTIM(A, 0, 10, 1), AT_B("failed", 2, 12, 0, 9, 9), ENDS(FAILED, 2, 12, 0)},
    {VICTIM(A, 0, 11, 1), AT_B("killed", 2, 137, 9, 9, 9), ENDS(KILLED, 2, 137, 9)},
    {AT_A("failed", 1, 12, 0, 9, 9), VICTIM(B, 2, 10, 1), ENDS(FAILED, 1, 12, 0)},
    {AT_A("killed", 1, 137, 9, 9, 9), VICTIM(B, 2, 11, 1), ENDS(KILLED, 1, 137, 9)},
    {AT_A("killed", 1, 10, 9, 9, 9), VICTIM(B, 2, 11, 1), ENDS(KILLED, 1, 10, 9)},
    /* ranks that this program ended are no failure */
    {AT_A("stopped", 0, 12, 0, 1, 1), B_IS_DONE, ENDS(DONE, -1, 0, 0)},
    {A_IS_DONE, AT_B("failed", -1, 12, 0, 1, 1), ENDS(DONE, -1, 0, 0)},
    /* hosts that start no rank */
    {"lockstep-launch: error: no\n" AT_A("not started", -1, 2, 0, 0, 0), B_IS_DONE,
     ENDS(NOT_STARTED, 0, LS_ERR_INFRA, 0), .why = "host a: lockstep-launch: error: no"},
    {VICTIM(A, 1, 11, 1), AT_B("not started", 2, 2, 7, 0, 0), ENDS(NOT_STARTED, 2, LS_ERR_INFRA, 0),
     .why = "host b: "},
    {AT_A("failed", 1, 12, 0, 99, 99), "x\n" AT_B("not started", -1, 2, 0, 0, 0),
     ENDS(FAILED, 1, 12, 0)},
    {"x\n" AT_A("not started", -1, 2, 0, 0, 0), "y\n" AT_B("not started", -1, 2, 0, 0, 0),
     ENDS(NOT_STARTED, 0, LS_ERR_INFRA, 0), .why = "host a: x"},
    {"x\n" AT_A("not started", -1, 2, 0, 0, 0), AT_B("killed", 2, 137, 9, 99, 99),
     ENDS(NOT_STARTED, 0, LS_ERR_INFRA, 0), .why = "host a: x"},
    {"x\n" AT_A("not started", -1, 2, 0, 0, 0), VICTIM(B, 2, 10, 0),
     ENDS(NOT_STARTED, 0, LS_ERR_INFRA, 0), .why = "host a: x"},
    /* channels that end without a report */
    {A_IS_DONE, "1\nrefused\n", ENDS(FAILED, 2, LS_ERR_INFRA, 0), .ends = "exit 255",
     .lost = {false, true}, .why = "host b ended without a report (exit code 255): refused"},
    {A_IS_DONE, "", ENDS(FAILED, 2, LS_ERR_INFRA, 0), .ends = "exit 0", .lost = {false, true},
     .why = "host b ended without a report (exit code 0)"},
    {"", B_IS_DONE, ENDS(FAILED, 0, LS_ERR_INFRA, 0), .lost = {true, false},
     .why = "host a ended without a report (exit code 0)"},
    {VICTIM(A, 0, 10, 1), "", ENDS(FAILED, 2, LS_ERR_INFRA, 0), .ends = "kill -9 $$",
     .lost = {false, true}, .why = "host b ended without a report (signal 9)"},
    {AT_A("failed", 0, 12, 0, 99, 99), "", ENDS(FAILED, 0, 12, 0), .ends = "exit 1",
     .lost = {false, true}},
    {"x\n", VICTIM(B, 2, 10, 0), ENDS(FAILED, 0, LS_ERR_INFRA, 0), .lost = {true, false},
     .why = "host a ended without a report (exit code 0): x"},
    {"x\n", AT_B("failed", 3, 12, 0, 9, 0), ENDS(FAILED, 3, 12, 0), .lost = {true, false}},
    {A_IS_DONE, "{\"event\":\"node\",\"outcome\":{\"state\":\"done\",\"ranks\":[{}]}}\n",
     ENDS(FAILED, 2, LS_ERR_INFRA, 0), .ends = "exit 4", .lost = {false, true},
     .why = "host b ended without a report (exit code 4)"},
    {A_IS_DONE, "{\"event\":\"node\"}\n", ENDS(FAILED, 2, LS_ERR_INFRA, 0), .ends = "exit 4",
     .lost = {false, true}, .why = "host b ended without a report (exit code 4)"},
    /* hung up at the deadline and when this program is stopped: the hosts are not to blame */
    {A_IS_DONE, "x\n", ENDS(TIMED_OUT, -1, 0, 0), .ends = "cat", .lost = {false, true}},
    {A_IS_DONE, AT_B("stopped", 2, 137, 9, 1, 1), ENDS(TIMED_OUT, -1, 0, 0),
     .ends = "cat; cat \"$here/b.says\""},
    {AT_A("failed", 0, 12, 0, 9, 9), "x\n", ENDS(STOPPED, 0, 12, 0), .ends = "kill $PPID; cat",
     .lost = {false, true}},
};

static ls_hosts hosts;
static ls_job job;

static void play_hosts(void)
{
    hosts = (ls_hosts){.count = 2,
                       .host = {{.name = "a"}, {.name = "b"}},
                       .master_address = "m",
                       .port_count = 2,
                       .port = {29501, 29502}};
    job = (ls_job){
        .id = "t", .world = 4, .hosts = &hosts, .host_count = 2, .limit_s = 20, .grace_s = 0.25};
    ls_text_put(job.directory, sizeof job.directory, "%s/", played);
    for (int i = 0; i < 200; i++) { /* as long as a folder may be */
        ls_text_add(job.directory, sizeof job.directory, "./");
    }
    ls_text_add(job.directory, sizeof job.directory, "job");
    ls_words_add(&job.command, "sh");
    ls_words_add(&job.command, "it's");
}

ROWS_TEST(reports_of_the_hosts, put_together)
{
    play_hosts();
    /* b has begun before a ends */
    play_host("a", put_together[_i].a, "until [ -s \"$here/b.order\" ]; do sleep 0.01; done");
    play_host("b", put_together[_i].b, put_together[_i].ends != NULL ? put_together[_i].ends : "");
    ck_assert_int_eq(mkdir(job.directory, 0700), 0);
    play_file("job/node0", ".log", "an earlier attempt's\n" A_IS_DONE);
    play_file("job/node1", ".log", "an earlier attempt's\n" B_IS_DONE);
    if (put_together[_i].state == LS_OUTCOME_TIMED_OUT) {
        job.limit_s = 0.2;
    }
    ck_assert_int_eq(ls_proc_catch_signals(), LS_OK);
    int64_t began_ns = ls_clock_ns();
    catch_lines();
    ck_assert_int_eq(run_job(&job), LS_OK);
    const char *said = caught_text(), *why = put_together[_i].why;
    why = why != NULL ? why : "";
    LS_TEXT(want, 400, "error: job t: %s\n", why);
    if (why[0] == '\0' && !put_together[_i].lost[0]) {
        ck_assert_str_eq(said, "");
    } else if (why[0] != '\0') {
        ck_assert_ptr_nonnull(strstr(said, want));
    }
    ck_assert(!resumed);
    ck_assert_str_eq(outcome.why, why);
    ck_assert_int_eq(outcome.state, put_together[_i].state);
    ck_assert_int_eq(outcome.first_rank, put_together[_i].first_rank);
    ck_assert_int_eq(outcome.code, put_together[_i].code);
    ck_assert_int_eq(outcome.signal, put_together[_i].signal);
    ck_assert(began_ns <= outcome.started_ns && outcome.started_ns < outcome.ended_ns);
    ck_assert_int_le(outcome.ended_ns, ls_clock_ns());
    ck_assert_int_eq(outcome.rank_count, 4);
    int reports = 0;
    for (int i = 0; i < 4; i++) {
        const ls_proc *rank = &outcome.rank[i];
        bool lost = put_together[_i].lost[i / 2];
        ck_assert(rank->ended && rank->pid == 0 && rank->started_ns == 0);
        ck_assert_int_eq(rank->code, lost ? LS_ERR_INFRA : i % 2 == 0 ? 1 : 3);
        ck_assert_int_eq(rank->signal, lost ? 0 : i % 2 == 0 ? 2 : 4);
        ck_assert_double_eq(rank->user_s, lost ? 0 : i % 2 == 0 ? 0.5 : 0.25);
        if (lost) { /* as long as its channel */
            ck_assert(0 < rank->ended_ns &&
                      rank->ended_ns <= outcome.ended_ns - outcome.started_ns);
        }
        reports += !lost;
    }
    ck_assert_double_eq(outcome.user_s, reports * 0.375);
    ck_assert_double_eq(outcome.system_s, reports * 1.5);
    ck_assert_int_eq(outcome.rss_bytes_max, 200);
    ls_outcome_free(&outcome);
    cJSON *root = read_record(&job);
    const cJSON *record = ls_json_get(root, "outcome");
    ck_assert_int_eq(ls_json_int(record, "first_rank", 9), put_together[_i].first_rank);
    ck_assert_str_eq(ls_json_string(record, "why", ""), why);
    const cJSON *environment = ls_json_get(root, "environment");
    ck_assert_str_eq(ls_json_string(environment, "RANK", ""), "0"); /* rank 0's */
    ck_assert_str_eq(ls_json_string(environment, "MASTER_ADDR", ""), "m");
    ck_assert_str_eq(ls_json_string(environment, "MASTER_PORT", ""), "0"); /* the launchers' */
    cJSON_Delete(root);
    ls_job_free(&job);
}

/* No host is asked when the environment does not fit into an order, with the end of its line, and
 * the record says so. */
TEST(an_environment_that_is_too_large)
{
    static char large[66000];
    play_hosts();
    memset(large, 'x', sizeof large - 1);
    setenv("LS_LARGE", large, 1);
    catch_lines();
    ck_assert_int_eq(run_job(&job), LS_ERR_INFRA);
    const char *said = caught_lines();
    int bytes = 0;
    ck_assert_int_eq(sscanf(said, "error: the environment for other machines has %d bytes", &bytes),
                     1);
    ck_assert_ptr_nonnull(strstr(said, " bytes, allowed: 59999\n"));
    large[sizeof large - 1 - (size_t)(bytes - 60000)] = '\0'; /* one more than allowed */
    setenv("LS_LARGE", large, 1);
    catch_lines();
    ck_assert_int_eq(run_job(&job), LS_ERR_INFRA);
    ck_assert_ptr_nonnull(strstr(caught_lines(), "has 60000 bytes, allowed: 59999\n"));
    assert_not_started(&job, -1);
    ls_job_free(&job);
}

/* After a failure the others have the grace and one second to report before they are hung up. */
TEST(a_report_within_the_grace)
{
    play_hosts();
    play_host("a", AT_A("failed", 0, 12, 0, 0, 0), "exit 12");
    play_host("b", "", "timeout 0.5 cat; [ $? = 0 ] || cat \"$here/late\"");
    play_file("late", "", B_IS_DONE);
    ck_assert_int_eq(run_job(&job), LS_OK);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_FAILED);
    ck_assert_int_eq(outcome.first_rank, 0);
    ck_assert_int_eq(outcome.rank[3].code, 3); /* as reported */
    ls_outcome_free(&outcome);
    ls_job_free(&job);
}

TEST(the_command_of_a_channel)
{
    static const struct {
        const char *master_port, *local_nodes, *file_bytes;
    } rows[] = {
        {"29501", "", ""}, {"29502", " --local-nodes=2", " --file-bytes=1"}, {"29501", "", ""}};
    char launcher[1024];
    int ticks = 0;
    play_hosts();
    job.threads = 3;
    play_host("a", A_IS_DONE, "");
    play_host("b", B_IS_DONE, "");
    ls_remote_launcher(NULL, launcher, sizeof launcher);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    for (int i = 0; i < 3; i++) { /* the ports in turn */
        job.local_nodes = i == 1 ? 2 : 1;
        job.file_bytes_max = i == 1 ? 1 : 0;
        snprintf(job.directory, sizeof job.directory, "%s/job%d", played, i);
        if (i == 2) { /* the launcher waits for a sign of the bench, which comes every second */
            play_host("b", B_IS_DONE, "head -n 1");
        }
        ck_assert_int_eq(ls_job_run(&job, i == 2 ? count_ticks : NULL, &ticks, &outcome, &resumed),
                         LS_OK);
        ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
        ls_outcome_free(&outcome);
        for (int k = 0; k < 2; k++) {
            const char *host = k == 0 ? "a" : "b";
            LS_TEXT(want, 3000,
                    "-T\n-o\nBatchMode=yes\n-o\nServerAliveInterval=5\n-o\nServerAliveCountMax=3\n"
                    "-oConnectTimeout=10\n--\n%s\nexec %s --env-from-stdin --nnodes=2 "
                    "--node-rank=%d --nproc-per-node=2%s --master-addr=m --master-port=%s "
                    "--log-dir=%s --grace=0.25%s -- sh 'it'\\''s'\n",
                    host, launcher, k, rows[i].local_nodes, rows[i].master_port, job.directory,
                    rows[i].file_bytes);
            char *words = given_to(host, ".words");
            ck_assert_str_eq(words, want);
            free(words);
        }
        char *order = given_to("b", ".order");
        cJSON *sent = cJSON_Parse(order);
        const cJSON *variables = cJSON_GetObjectItem(sent, "environment");
        ck_assert_str_eq(ls_json_string(variables, "CUDA_VISIBLE_DEVICES", ""), "1");
        ck_assert_str_eq(ls_json_string(variables, "LS_RUN_DIR", ""), job.directory);
        ck_assert_str_eq(ls_json_string(variables, "OMP_NUM_THREADS", ""), "3");
        ck_assert_int_eq(strlen(ls_json_string(variables, "LS_TOKEN", "")), 32);
        cJSON_Delete(sent);
        free(order);
    }
    ck_assert_int_ge(ticks, 1);
    ls_job_free(&job);
}

TEST_MAIN("job", .timeout_s = 40, .before = play_begin, .after = play_end)
