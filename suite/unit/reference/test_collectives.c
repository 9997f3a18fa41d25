/* `lockstep-collectives` as it is run: the rows of its table, every event of two ranks, barriers
 * that one of them reaches late. Runs the built programs in the folder above this one. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/status.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"

/* A quotient in another order. */
static const double rate_limit = 1e-12;

static char folder[] = "/tmp/test_collectives.XXXXXX";

/* Runs one rank, or two where `launcher`; their output goes to `folder`/said. */
static void run(const char *launcher, const char *run_dir, const char *arguments)
{
    char path[2][1024] = {""}, command[4000];
    ck_assert(launcher == NULL || ls_path_find("lockstep-launch", path[0], sizeof path[0]));
    ck_assert(ls_path_find("lockstep-collectives", path[1], sizeof path[1]));
    ls_text_put(command, sizeof command,
                "unset RANK WORLD_SIZE LS_NODE_ADDR; LS_RUN_DIR=%s %s %s %s --device=cpu %s "
                ">%s/said 2>&1",
                run_dir, path[0], launcher != NULL ? launcher : "", path[1], arguments, folder);
    int state = system(command);
    ck_assert_msg(state == 0, "%s: state %d", command, state);
}

static double number_of(const cJSON *event, const char *key)
{
    const cJSON *value = cJSON_GetObjectItem(event, key);
    ck_assert_msg(cJSON_IsNumber(value), "%s", key);
    return value->valuedouble;
}

/* The events of a rank; what is of this machine or this moment is judged and left out. */
static cJSON *events_of(int rank)
{
    static const char *const volatile_keys[] = {"engine_text", "transport", "us", "algbw_gb_s",
                                                "busbw_gb_s"};
    LS_TEXT(path, 300, "%s/rank%d.jsonl", folder, rank);
    char *text = ls_text_read(path), *rest = NULL;
    ck_assert_ptr_nonnull(text);
    cJSON *events = cJSON_CreateArray();
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        cJSON *event = ls_json_parse(line, NULL);
        ck_assert_msg(event != NULL, "%s", line);
        const char *name = ls_json_string(event, "event", "");
        if (strcmp(name, "start") == 0) {
            ck_assert_ptr_nonnull(strstr(ls_json_string(event, "engine_text", ""), "Gloo"));
            ck_assert_str_ne(ls_json_string(event, "transport", ""), "");
        } else if (strcmp(name, "collective") == 0) {
            double us = number_of(event, "bytes") / number_of(event, "algbw_gb_s") * 1e-3;
            ck_assert_double_eq_tol(number_of(event, "us") / us, 1, rate_limit);
            ck_assert(number_of(event, "busbw_gb_s") <= number_of(event, "algbw_gb_s"));
        }
        for (size_t k = 0; k < sizeof volatile_keys / sizeof volatile_keys[0]; k++) {
            cJSON_DeleteItemFromObject(event, volatile_keys[k]);
        }
        cJSON_AddItemToArray(events, event);
    }
    free(text);
    return events;
}

/* No rank leaves a barrier before the last has come; the clock is one for all. */
static void judge_barriers(cJSON *const rank[2])
{
    for (int i = 0; i < cJSON_GetArraySize(rank[0]); i++) {
        cJSON *event[2] = {cJSON_GetArrayItem(rank[0], i), cJSON_GetArrayItem(rank[1], i)};
        for (int k = 0; k < 2 && strcmp(ls_json_string(event[k], "event", ""), "barrier") == 0;
             k++) {
            ck_assert(number_of(event[k], "begin_ns") > 0);
            ck_assert(number_of(event[k], "end_ns") > number_of(event[0], "begin_ns"));
            ck_assert(number_of(event[k], "end_ns") > number_of(event[1], "begin_ns"));
        }
        for (int k = 0; k < 2; k++) {
            cJSON_DeleteItemFromObject(event[k], "begin_ns");
            cJSON_DeleteItemFromObject(event[k], "end_ns");
        }
    }
}

static const char *const jobs[] = {
    "--ops=gather,send --dtypes=int64,fp16 --counts=W+1,W-1 "
    "--offsets=1 --iters=2 --barriers=5",
    "--ops=all_reduce,all_gather --dtypes=bf16,int32,fp32 --counts=5 --data=rough "
    "--in-place=yes",
    "--ops=none",
};

START_TEST(events_of_two_ranks)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t k = 0; k < sizeof jobs / sizeof jobs[0]; k++) {
        run("--nproc-per-node=2", folder, jobs[k]);
        cJSON *rank[2] = {events_of(0), events_of(1)};
        ck_assert_int_eq(cJSON_GetArraySize(rank[0]), cJSON_GetArraySize(rank[1]));
        judge_barriers(rank);
        fprintf(to, "==== %s\n", jobs[k]);
        for (int r = 0; r < 2; r++) {
            const cJSON *event;
            cJSON_ArrayForEach(event, rank[r])
            {
                char *line = cJSON_PrintUnformatted(event);
                fprintf(to, "%d %s\n", r, line);
                cJSON_free(line);
            }
            cJSON_Delete(rank[r]);
        }
    }
    fclose(to);
    ls_path_remove_tree(folder);
    golden_check("suite/unit/reference/expected/collectives.jsonl", text);
}
END_TEST

/* The table of one rank and of rank 0 of two; digits of times and rates as '#'. */
START_TEST(rows_of_the_table)
{
    static const char *const launchers[] = {NULL, "--nproc-per-node=2"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(said, 300, "%s/said", folder);
    for (int k = 0; k < 2; k++) {
        run(launchers[k], "", "--ops=reduce_scatter,reduce,send --counts=0,1099 --dtypes=fp64");
        char *table = ls_text_read(said), *rest = NULL;
        for (char *line = strtok_r(table, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            enum { TIMES = 56, TIMES_END = 85 };
            bool row = line[0] != '#' && strlen(line) > TIMES_END;
            fprintf(to, row ? "%.*s | %s\n" : "%.*s%s\n", row ? TIMES : 200, line,
                    row ? line + TIMES_END : "");
        }
        free(table);
    }
    fclose(to);
    ls_path_remove_tree(folder);
    golden_check("suite/unit/reference/expected/collectives.txt", text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collectives");
    TCase *tests = tcase_create("collectives");
    tcase_set_timeout(tests, 40);
    tcase_add_test(tests, events_of_two_ranks);
    tcase_add_test(tests, rows_of_the_table);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
