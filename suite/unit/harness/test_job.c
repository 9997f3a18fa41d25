/* A job: what its ranks find, what its record says however it ends, and that a finished one is not
 * run again. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/job.h"
#include "kernels/core/json.h"
#include "suite/unit/run_suite.h"

/* A job of `sh -c script` in a fresh folder under /tmp. */
static ls_job make_job(const char *script, int world, int nodes)
{
    ls_job job = {.id = "test",
                  .label = "a test",
                  .world = world,
                  .local_nodes = nodes,
                  .limit_s = 20,
                  .grace_s = 3};
    char folder[] = "/tmp/ls_job_XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(job.directory, sizeof job.directory, "%s/jobs/test", folder);
    ls_words_add(&job.command, "sh");
    ls_words_add(&job.command, "-c");
    ls_words_add(&job.command, "%s", script);
    job.facts = cJSON_CreateObject();
    cJSON_AddStringToObject(job.facts, "role", "evidence");
    return job;
}

static void remove_job(ls_job *job)
{
    char path[600];
    static const char *const names[] = {"job.json",  "rank0.log",   "rank1.log",   "rank2.log",
                                        "rank3.log", "rank0.jsonl", "rank1.jsonl", "count"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", job->directory, names[i]);
        unlink(path);
    }
    for (int up = 0; up < 3; up++) { /* test, jobs, the fresh folder */
        rmdir(job->directory);
        *strrchr(job->directory, '/') = '\0';
    }
    ls_job_free(job);
}

static void read_text(const ls_job *job, const char *name, char *text, size_t text_bytes)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", job->directory, name);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "%s is not there", path);
    text[fread(text, 1, text_bytes - 1, file)] = '\0';
    fclose(file);
}

static cJSON *read_record(const ls_job *job)
{
    char path[600];
    cJSON *root = NULL;
    snprintf(path, sizeof path, "%s/job.json", job->directory);
    ck_assert_int_eq(ls_json_read_file(path, &root), LS_OK);
    ck_assert_int_eq(ls_json_integer(root, "schema", 0), 2);
    ck_assert_str_eq(ls_json_string(root, "id", ""), "test");
    return root;
}

static ls_outcome run(const ls_job *job, bool resumed_wanted)
{
    ls_outcome outcome;
    bool resumed = !resumed_wanted;
    ck_assert_int_eq(ls_job_run(job, NULL, NULL, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(resumed, resumed_wanted);
    return outcome;
}

START_TEST(environment)
{
    char text[512], wanted[512];
    setenv("LS_TOKEN", "stale", 1);
    setenv("RANK", "9", 1);
    setenv("INHERITED", "yes", 1);
    setenv("LS_SYSFS", "/sys", 1);
    setenv("SOME_SECRET", "x", 1);
    ls_job job = make_job("echo \"$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK "
                          "$LS_NODE_ADDR $LS_RUN_DIR $INHERITED $OMP_NUM_THREADS ${#LS_TOKEN}\"",
                          4, 2);
    job.threads = 3;
    ls_outcome outcome = run(&job, false);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    for (int rank = 0; rank < 4; rank++) {
        char name[32];
        snprintf(name, sizeof name, "rank%d.log", rank);
        read_text(&job, name, text, sizeof text);
        snprintf(wanted, sizeof wanted, "%d 4 %d 2 %d 127.0.0.%d %.400s yes 3 32\n", rank, rank % 2,
                 rank / 2, rank / 2 + 1, job.directory);
        ck_assert_str_eq(text, wanted);
    }
    cJSON *root = read_record(&job);
    const cJSON *environment = cJSON_GetObjectItemCaseSensitive(root, "environment");
    ck_assert_str_eq(ls_json_string(environment, "WORLD_SIZE", ""), "4");
    ck_assert_str_eq(ls_json_string(environment, "LS_SYSFS", ""), "/sys");
    ck_assert_str_eq(ls_json_string(environment, "LS_TOKEN", "absent"), "absent");
    ck_assert_str_eq(ls_json_string(environment, "SOME_SECRET", "absent"), "absent");
    cJSON_Delete(root);
    ls_outcome_free(&outcome);
    remove_job(&job);
}
END_TEST

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

START_TEST(record_of_each_ending)
{
    const ending *wanted = &endings[_i];
    ls_job job = make_job(wanted->script, 3, 1);
    job.limit_s = wanted->limit_s;
    ls_outcome outcome = run(&job, false);
    ck_assert_int_eq(outcome.state, wanted->state);
    ck_assert_int_eq(outcome.first_rank, wanted->first_rank);
    ck_assert_int_eq(outcome.code, wanted->code);
    ck_assert_int_eq(outcome.signal, wanted->signal);
    ck_assert_int_eq(outcome.rank_count, 3);
    ck_assert_int_gt(outcome.rss_bytes_max, 100000);
    cJSON *root = read_record(&job);
    const cJSON *record = cJSON_GetObjectItemCaseSensitive(root, "outcome");
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(record, "ranks");
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
    ck_assert_str_eq(ls_json_string(cJSON_GetObjectItemCaseSensitive(root, "facts"), "role", ""),
                     "evidence");
    const cJSON *command = cJSON_GetObjectItemCaseSensitive(root, "command");
    ck_assert_str_eq(cJSON_GetArrayItem(command, 2)->valuestring, wanted->script);
    cJSON_Delete(root);
    ls_outcome_free(&outcome);
    remove_job(&job);
}
END_TEST

START_TEST(resume)
{
    char text[64];
    const char *script =
        "echo $RANK >> $LS_RUN_DIR/count; echo event >> $LS_RUN_DIR/rank$RANK.jsonl; "
        "[ \"$FAIL\" != yes ]";
    ls_job job = make_job(script, 1, 1);
    setenv("FAIL", "yes", 1);
    ls_outcome outcome = run(&job, false); /* fails: is run again, without its leftovers */
    ck_assert_int_eq(outcome.state, LS_OUTCOME_FAILED);
    ls_outcome_free(&outcome);
    unsetenv("FAIL");
    outcome = run(&job, false);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    int64_t rss_bytes_max = outcome.rss_bytes_max;
    ls_outcome_free(&outcome);
    read_text(&job, "rank0.jsonl", text, sizeof text);
    ck_assert_str_eq(text, "event\n");
    outcome = run(&job, true);
    ck_assert_int_eq(outcome.state, LS_OUTCOME_DONE);
    ck_assert_int_eq(outcome.first_rank, -1);
    ck_assert_int_eq(outcome.rank_count, 1);
    ck_assert_int_eq(outcome.rss_bytes_max, rss_bytes_max);
    ls_outcome_free(&outcome);
    read_text(&job, "count", text, sizeof text);
    ck_assert_str_eq(text, "0\n0\n");
    ls_words_add(&job.command, "another"); /* another command is another job */
    outcome = run(&job, false);
    ls_outcome_free(&outcome);
    remove_job(&job);
}
END_TEST

static void count_ticks(void *context)
{
    ++*(int *)context;
}

START_TEST(ticks)
{
    ls_job job = make_job("sleep 1.3", 1, 1);
    ls_outcome outcome;
    bool resumed;
    int ticks = 0;
    ck_assert_int_eq(ls_job_run(&job, count_ticks, &ticks, &outcome, &resumed), LS_OK);
    ck_assert_int_eq(ticks, 1);
    ls_outcome_free(&outcome);
    remove_job(&job);
}
END_TEST

START_TEST(cannot_run)
{
    ls_outcome outcome;
    bool resumed;
    ls_job job = make_job("exit 0", 3, 2); /* 3 ranks on 2 nodes */
    ck_assert_int_eq(ls_job_run(&job, NULL, NULL, &outcome, &resumed), LS_ERR_USAGE);
    job.local_nodes = 1;
    ls_job elsewhere = job;
    snprintf(elsewhere.directory, sizeof elsewhere.directory, "/proc/nothing/here");
    ck_assert_int_eq(ls_job_run(&elsewhere, NULL, NULL, &outcome, &resumed), LS_ERR_INFRA);
    free(job.command.word[0]);
    job.command.word[0] = strdup("/nonexistent/trainer");
    ck_assert_int_eq(ls_job_run(&job, NULL, NULL, &outcome, &resumed), LS_ERR_USAGE);
    cJSON *root = read_record(&job);
    const cJSON *record = cJSON_GetObjectItemCaseSensitive(root, "outcome");
    ck_assert_str_eq(ls_json_string(record, "state", ""), "not started");
    cJSON_Delete(root);
    remove_job(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job");
    TCase *tests = tcase_create("job");
    tcase_set_timeout(tests, 40);
    tcase_add_test(tests, environment);
    tcase_add_loop_test(tests, record_of_each_ending, 0, 4);
    tcase_add_test(tests, resume);
    tcase_add_test(tests, ticks);
    tcase_add_test(tests, cannot_run);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
