/* `lockstep-collectives` as it is run: the rows of its table, every event of two ranks, barriers
 * that one of them reaches late. Runs the built programs in the folder above this one. */
#include <sys/wait.h>

#include "kernels/core/status.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"

/* A quotient in another order. */
static const double rate_limit = 1e-12;

static char folder[] = "/tmp/test_collectives.XXXXXX";

/* Runs one rank, or two where `launcher`; their output goes to `folder`/said. The exit status. */
static int try(const char *launcher, const char *run_dir, const char *arguments)
{
    char path[2][1024] = {""}, command[4000];
    ck_assert(launcher == NULL || ls_path_find("lockstep-launch", path[0], sizeof path[0]));
    ck_assert(ls_path_find("lockstep-collectives", path[1], sizeof path[1]));
    ls_text_put(command, sizeof command,
                "unset RANK WORLD_SIZE LS_NODE_ADDR; LS_RUN_DIR=%s %s %s %s --device=cpu %s "
                ">%s/said 2>&1",
                run_dir, path[0], launcher != NULL ? launcher : "", path[1], arguments, folder);
    int state = system(command);
    ck_assert(WIFEXITED(state));
    return WEXITSTATUS(state);
}

static void run(const char *launcher, const char *run_dir, const char *arguments)
{
    int status = try(launcher, run_dir, arguments);
    ck_assert_msg(status == 0, "%s: status %d", arguments, status);
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
    static const char *const volatile_keys[] = {"engine_text", "transport",  "us",
                                                "algbw_gb_s",  "busbw_gb_s", "begun_ns",
                                                "done_ns",     "all_done_ns"};
    LS_TEXT(path, 300, "%s/run/rank%d.jsonl", folder, rank);
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
    "--ops=gather,send --dtypes=int64,fp16 --counts=W+1,W-1 --offsets=1 --iters=2 --barriers=5",
    "--ops=all_reduce,all_gather --dtypes=bf16,int32,fp32 --counts=5 --data=rough --in-place=yes",
    "--ops=all_to_all,reduce --redop=max,prod --dtypes=uint8,fp32 --counts=3 --group-size=2",
    "--ops=none",
};

TEST(events_of_two_ranks)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(run_dir, 300, "%s/run", folder); /* the first job makes it */
    for (size_t k = 0; k < sizeof jobs / sizeof jobs[0]; k++) {
        run("--nproc-per-node=2", run_dir, jobs[k]);
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
    golden_check("suite/unit/reference/expected/collectives.jsonl", golden_sections(text, 0));
}

/* The table of one rank and of rank 0 of two; digits of times and rates as '#'. */
TEST(rows_of_the_table)
{
    static const char *const launchers[] = {NULL, "--nproc-per-node=2", NULL, NULL};
    static const char *const arguments[] = {
        "--ops=reduce_scatter,reduce,send --counts=0,1099 --dtypes=fp64",
        "--ops=reduce_scatter,reduce,send --counts=0,1099 --dtypes=fp64", "",
        "--ops=all --in-place=no --dtypes=uint8,bf16 --counts=1"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(said, 300, "%s/said", folder);
    for (int k = 0; k < 4; k++) {
        run(launchers[k], "", arguments[k]);
        char *table = ls_text_read(said), *rest = NULL;
        for (char *line = strtok_r(table, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            enum { TIMES = 62, TIMES_END = 91 };
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

#define ALLOWED_COUNTS ": allowed: at most 32 whole numbers, W-1 or W+1, comma between"

#define ALLOWED_GROUPS \
    "; allowed: ranks of this world, 0 to 0, each in one group or in none, such as 0,1;2,3"

TEST(limits_of_arguments)
{
    static const struct {
        const char *argument, *said; /* NULL: taken */
    } rows[] = {
        {"--iters=0", NULL},
        {"--iters=1000000", NULL},
        {"--iters=1000001", "--iters '1000001': allowed: 0 to 1000000"},
        {"--barriers=1000001", "--barriers '1000001': allowed: 0 to 1000000"},
        {"--offsets=16", NULL},
        {"--offsets=17", "--offsets '17': allowed: 0 to 16"},
        {"--absent=16", "--absent '16': allowed: 0 to 15"},
        {"--absent=15",
         "--absent 15: allowed: a rank of this world, which has 1; at least 2 are needed"},
        {"--timeout=1000000", NULL},
        {"--timeout=0.5", NULL},
        {"--timeout=1000001", "--timeout '1000001': allowed: above 0, at most 1000000 s"},
        {"--timeout=0", "--timeout '0': allowed: above 0, at most 1000000 s"},
        {"--timeout=5s", "--timeout '5s': allowed: above 0, at most 1000000 s"},
        {"--counts=1099511627776", NULL},
        {"--counts=0", NULL},
        {"--counts=1099511627777", "--counts '1099511627777'" ALLOWED_COUNTS},
        {"--counts=9223372036854775808", "--counts '9223372036854775808'" ALLOWED_COUNTS},
        {"--counts=-1", "--counts '-1'" ALLOWED_COUNTS},
        {"--counts=1,", "--counts '1,'" ALLOWED_COUNTS},
        {"--counts=W+1x", "--counts 'W+1x'" ALLOWED_COUNTS},
        {"--counts=1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5", NULL},
        {"--counts=1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6",
         "--counts '1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,"
         "6'" ALLOWED_COUNTS},
        {"--in-place=maybe", "--in-place 'maybe': allowed: no|yes|both"},
        {"--data=x", "--data 'x': allowed: exact|rough"},
        {"--comm=x", "--comm 'x': allowed: self|gloo|nccl"},
        {"--device=x", "--device 'x': allowed: auto|cpu|cuda"},
        {"--ops=al",
         "--ops 'al': allowed: all, none, or some of all_reduce, reduce_scatter, all_gather, "
         "broadcast, reduce, gather, scatter, send, all_to_all"},
        {"--ops=send,send",
         "--ops 'send,send': allowed: all, none, or some of all_reduce, reduce_scatter, "
         "all_gather, broadcast, reduce, gather, scatter, send, all_to_all"},
        {"--ops=reduce --redop=all", NULL},
        {"--ops=all -o min,prod", NULL},
        {"--redop=sum", "--redop sum: none of --ops reduces; all_reduce, reduce_scatter and "
                        "reduce do"},
        {"--redop=al", "--redop 'al': allowed: all, or some of sum, max, min, prod"},
        {"--redop=", "--redop '': allowed: all, or some of sum, max, min, prod"},
        {"--group-size=1", NULL},
        {"--group-size=17", "--group-size '17': allowed: 1 to 16"},
        {"--group-size=0", "--group-size '0': allowed: 1 to 16"},
        {"--group-size=2", "--group-size 2: allowed: a divisor of the number of ranks, which is 1"},
        {"--groups=0", NULL},
        {"--groups=0 --group-size=1", "--groups 0 and --group-size 1: give one of them"},
        {"--groups=1", "--groups '1': a rank is not of this world" ALLOWED_GROUPS},
        {"--groups=", "--groups '': a group is empty" ALLOWED_GROUPS},
        {"'--groups=0;'", "--groups '0;': a group is empty" ALLOWED_GROUPS},
        {"--groups=00x", "--groups '00x': not a list of ranks" ALLOWED_GROUPS},
        {"--groups=99999999999999999999",
         "--groups '99999999999999999999': not a list of ranks" ALLOWED_GROUPS},
        {"--ops=send --in-place=yes", "--in-place yes: none of --ops works in place"},
        {"--in-place=yes", NULL},
        {"--dtypes=fp32,fp3",
         "--dtypes 'fp32,fp3': allowed: some of fp32, fp16, bf16, fp64, int64, int32, uint8"},
        {"x", "unexpected argument 'x'"},
    };
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(path, 300, "%s/said", folder);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        LS_TEXT(arguments, 300, "--ops=none %s", rows[i].argument);
        int status = try(NULL, "", arguments);
        char *said = ls_text_read(path), *error = strstr(said, "error: ");
        LS_TEXT(line, 400, "error: %s\n", rows[i].said);
        ck_assert_msg(status == (rows[i].said == NULL ? 0 : LS_ERR_USAGE), "%s: status %d: %s",
                      arguments, status, said);
        ck_assert(rows[i].said != NULL || error == NULL);
        if (rows[i].said != NULL) {
            ck_assert_ptr_nonnull(error);
            ck_assert_str_eq(error, line);
        }
        free(said);
    }
    ls_path_remove_tree(folder);
}

TEST_MAIN("collectives", .timeout_s = 40)
