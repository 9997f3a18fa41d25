/* `lockstep plan`: the model against sums by hand, and a whole plan of an invented run. */
#include "kernels/core/json.h"
#include "suite/commands/commands.h"
#include "suite/commands/cluster/plan_internal.h"
#include "suite/unit/caught.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* Sums of a few doubles; JSON keeps 15 digits. */
static const double rounded = 1e-9;

static void near(double value, double expected)
{
    ck_assert_msg(fabs(value - expected) <= rounded * (1 + fabs(expected)), "%.12g, not %.12g",
                  value, expected);
}

/* ---- the model ------------------------------------------------------------------------------- */

TEST(reductions_by_hand)
{
    /* 1 GB/s and 10 us between nodes, 100 GB/s and 1 us in them; 8 MB take 8 and 0.08 ms */
    const ls_plan_cluster cluster = {{1e9, 10e-6}, {100e9, 1e-6}, 8},
                          flat = {{1e9, 10e-6}, {1, 1}, 1};
    const struct {
        const ls_plan_cluster *cluster;
        ls_plan_way way;
        int gpus;
        double ms;
    } rows[] = {
        {&flat, LS_PLAN_RING, 1, 0},
        {&flat, LS_PLAN_TREE, 1, 0},
        {&cluster, LS_PLAN_HIERARCHICAL, 1, 0},
        {&flat, LS_PLAN_RING, 2, 2 * 0.01 + 8},
        {&flat, LS_PLAN_RING, 4, 6 * 0.01 + 12},
        {&flat, LS_PLAN_TREE, 4, 4 * 0.01 + 16},
        {&flat, LS_PLAN_TREE, 5, 6 * 0.01 + 16},
        {&cluster, LS_PLAN_RING, 8, 14 * 0.001 + 0.14},
        {&cluster, LS_PLAN_TREE, 8, 14 * 0.001 + 0.16},
        {&cluster, LS_PLAN_RING, 16, 2 * 0.01 + 28 * 0.001 + 15},
        {&cluster, LS_PLAN_TREE, 32, 4 * 0.01 + 14 * 0.001 + 16},
        {&cluster, LS_PLAN_HIERARCHICAL, 32, 14 * 0.001 + 0.14 + 6 * 0.01 + 12},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        near(ls_plan_model_reduce_ms(rows[i].cluster, rows[i].way, rows[i].gpus, 8e6), rows[i].ms);
    }
    /* a thousand nodes: of few bytes the messages count, and a tree has fewer */
    near(ls_plan_model_reduce_ms(&cluster, LS_PLAN_HIERARCHICAL, 8192, 0), 14 * 0.001 + 20 * 0.01);
}

TEST(buckets_beside_backward)
{
    const ls_plan_parts parts = {1, 50, 100, 10, 4, 1, 0, 0};
    const ls_plan_parts halves = {1, 50, 100, 10, 4, 0.5, 0, 0}; /* two micro-steps */
    const ls_plan_parts shared = {1, 50, 100, 10, 4, 1, 15, 0};  /* 15 ms a byte */
    const struct {
        const ls_plan_parts *parts;
        double ready[2], reduce_ms;
        int count;
        double backward_ms, exposed_ms;
    } rows[] = {
        {&parts, {0, 0}, 30, 0, 100, 0},
        {&parts, {0.5, 1}, 30, 2, 100, 30},  /* 50 to 80, 100 to 130 */
        {&parts, {0.5, 1}, 60, 2, 100, 70},  /* 50 to 110 to 170 */
        {&parts, {0.5, 0.6}, 10, 2, 100, 0}, /* all hidden */
        {&parts, {1, 1}, 30, 2, 100, 60},    /* delayed */
        {&halves, {0.5, 1}, 60, 2, 100, 95}, /* 75 to 135 to 195 */
        {&shared, {0.5, 1}, 30, 2, 115, 30}, /* 65 are done at 80 */
        {&shared, {0.5, 1}, 300, 2, 52.6315789473684 + 50, 547.368421052632 + 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ls_plan_bucket bucket[2] = {{rows[i].ready[0], 1, rows[i].reduce_ms},
                                          {rows[i].ready[1], 1, rows[i].reduce_ms}};
        ls_plan_step step = ls_plan_model_step(rows[i].parts, bucket, rows[i].count);
        near(step.backward_ms, rows[i].backward_ms);
        near(step.exposed_ms, rows[i].exposed_ms);
        near(step.step_ms, 65 + step.backward_ms + step.exposed_ms);
    }
}

TEST(link_from_times)
{
    const ls_plan_time time[] = {{1, 1e6, 4 + 2}, {1, 8e6, 4 + 16}, {3, 9e6, 12 + 18}};
    ls_plan_fit fit;
    ck_assert(ls_plan_model_fit(time, 3, 2, &fit)); /* 4 ms a message, 0.5 GB/s */
    near(fit.link.bytes_per_s, 0.5e9);
    near(fit.link.message_s, 2e-3);
    ck_assert(ls_plan_model_fit(time, 3, 4, &fit)); /* six messages, of each byte 1.5 times */
    near(fit.link.bytes_per_s, 0.75e9);
    near(fit.link.message_s, 4e-3 / 6);
    ck_assert_int_eq(fit.count, 3);
    near(fit.error, 0);
    const ls_plan_time slower[] = {{1, 1e6, 1}, {1, 1e7, 20}}; /* no message takes less than none */
    ck_assert(ls_plan_model_fit(slower, 2, 2, &fit));
    near(fit.link.message_s, 0);
    ck_assert(fit.error > 0.2 && fit.error < 0.5);
    ck_assert(!ls_plan_model_fit(time, 1, 2, &fit));
    const ls_plan_time equal[] = {{1, 1e6, 1}, {2, 2e6, 2}},
                       bytes_less[] = {{1, 1e6, 9}, {1, 2e6, 1}};
    ck_assert(!ls_plan_model_fit(equal, 2, 2, &fit));
    ck_assert(!ls_plan_model_fit(bytes_less, 2, 2, &fit));
    ck_assert(!ls_plan_model_fit(NULL, 0, 2, &fit));
}

/* ---- a whole plan ---------------------------------------------------------------------------- */

enum { STEPS = 6 };

typedef struct made {
    const char *id, *role;
    double bucket_mb;
    const char *bytes; /* of its buckets, as a real run of resnet18 with 10 classes had them */
    double backward_ms, comm_ms, exposed_ms, total_ms;
} made;

/* A message of 2 ranks takes 10 ms, a byte 2 ns: 44.7 MB 89.453136 ms. */
static const made jobs[] = {
    {"b25", "throughput", 25, "28872744,15853824", 100, 109.453136, 41.707648, 205},
    {"b5", "throughput", 5, "9461800,9441280,9969664,7084032,6037504,2732288", 100, 149.453136, 20,
     190},
    {"alone", "no_comm", 25, NULL, 90, 0, 0, 160},
    {"traced", "phases", 25, "28872744,15853824", 100, 109.453136, 41.707648, 205},
};

static void write_rank(const made *job, int rank, const char *bytes)
{
    LS_TEXT(path, 100, "jobs/%s/rank%d.jsonl", job->id, rank);
    FILE *to = create(path);
    fputs("{\"event\":\"start\",\"schema\":1,\"engine\":\"gloo\"}\n", to);
    if (bytes != NULL) {
        fputs("{\"event\":\"buckets\",\"iteration\":2,\"buckets\":[", to);
        for (const char *at = bytes; at != NULL; at = strchr(at, ',')) {
            at += *at == ',';
            fprintf(to, "%s{\"bytes\":%.*s}", at == bytes ? "" : ",", (int)strcspn(at, ","), at);
        }
        fputs("]}\n", to);
    }
    double late_ms = strcmp(job->id, "b25") == 0 && rank == 0 ? 20 : 0; /* rank 1 is late */
    for (int step = 1; step <= STEPS; step++) {
        if (strcmp(job->id, "traced") == 0) { /* full at 0.3 and 1 of backward, 5000 to 5100 ms */
            fprintf(to,
                    "{\"event\":\"trace\",\"step\":%d,\"spans\":[{\"name\":\"forward\","
                    "\"lane\":\"compute\",\"from_ns\":1,\"to_ns\":2},{\"name\":\"backward\","
                    "\"lane\":\"compute\",\"from_ns\":5e9,\"to_ns\":5.1e9},{\"name\":\"optimizer\","
                    "\"lane\":\"compute\",\"from_ns\":6e9,\"to_ns\":7e9},{\"name\":\"bucket 0\","
                    "\"lane\":\"communication\",\"from_ns\":5.03e9,\"to_ns\":5.09e9},"
                    "{\"name\":\"bucket 1\",\"lane\":\"communication\",\"from_ns\":%s,"
                    "\"to_ns\":5.2e9}]}\n",
                    step, step == 1 ? "5.0905e9" : "5.1e9"); /* which waited in step 1 */
        }
        fprintf(to,
                "{\"event\":\"step\",\"step\":%d,\"images\":8,\"ms\":{\"total\":%g,\"data\":0,"
                "\"forward\":50,\"backward\":%g,\"comm\":%.9g,\"comm_exposed\":%.9g,"
                "\"optimizer\":10}}\n",
                step, job->total_ms + late_ms, job->backward_ms, job->comm_ms,
                job->exposed_ms + late_ms);
    }
    ck_assert_int_eq(fclose(to), 0);
}

static void write_run(const char *bytes_of_b25)
{
    write_text("run.json", "{}\n");
    for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
        LS_TEXT(path, 100, "jobs/%s/job.json", jobs[j].id);
        LS_TEXT(text, 600,
                "{\"label\":\"%s\",\"facts\":{\"role\":\"%s\",\"arch\":\"resnet18\","
                "\"image_size\":64,\"batch_size\":8,\"level\":\"O0\",\"world\":2,\"nodes\":2,"
                "\"bucket_mb\":%g,\"steps\":%d},\"outcome\":{\"state\":\"done\",\"ranks\":[]}}\n",
                jobs[j].id, jobs[j].role, jobs[j].bucket_mb, STEPS);
        write_text(path, text);
        for (int rank = 0; rank < 2; rank++) {
            write_rank(&jobs[j], rank, j == 0 ? bytes_of_b25 : jobs[j].bytes);
        }
    }
}

static int plan(const char *options)
{
    LS_TEXT(line, 600, "%s %s", scratch, options);
    ls_words words = {0, 0, NULL};
    ls_words_split(&words, line);
    int code = ls_plan_main(words.count, words.word);
    ls_words_free(&words);
    return code;
}

static double number(const cJSON *json, const char *name)
{
    return ls_json_number(json, name, NAN);
}

TEST(plan_of_a_run)
{
    cJSON *json = NULL;
    write_run(jobs[0].bytes);
    LS_TEXT(options, 300, "--gpus 2 --buckets 5,100 --out %s/out", scratch);
    ck_assert_int_eq(plan(options), LS_OK);
    LS_TEXT(path, 300, "%s/out/plan.json", scratch);
    ck_assert_int_eq(ls_json_read_file(path, &json), LS_OK);
    ck_assert_str_eq(ls_json_string(json, "job", ""), "b25");
    near(number(ls_json_get(json, "between"), "bytes_per_s"), 0.5e9);
    near(number(ls_json_get(json, "between"), "message_s"), 5e-3);
    near(number(json, "backward_ms"), 90);
    near(number(json, "rest_ms"), 225 - 50 - 100 - 10 - 61.707648);
    /* Of 109.45 ms 47.75 are hidden and take 10 ms of backward: bucket 0, full at 27 of 90 ms of
     * work, runs 67.75 ms, meanwhile backward loses 14.8 of them. */
    double hidden = 1 - 61.707648 / 109.453136, lost_ms = 10 / hidden * 28872744 / 44726568;
    const cJSON *two = cJSON_GetArrayItem(ls_json_get(json, "points"), 1);
    double step_ms = 50 + 10 + 3.292352 + 90 + lost_ms + 41.707648 + 20;
    near(number(ls_json_get(two, "bucket_step_ms"), "own"), step_ms);
    near(number(json, "modelled_step_ms"), step_ms);
    near(number(json, "waited_ms"), 20);
    near(number(two, "gpus"), 2);
    ck_assert(number(two, "step_ms") <= step_ms);
    near(number(two, "images_per_s"), 16e3 / number(two, "step_ms"));
    near(number(cJSON_GetArrayItem(ls_json_get(json, "points"), 0), "step_ms"), 153.292352);
    cJSON_Delete(json);
    char *table = read_text("out/tables/plan.tsv");
    ck_assert(strstr(table, "\n1\t52.19\t52.19\t1.0000\t1.0000\tNaN\n") != NULL);
    free(table);
}

TEST(plan_with_links)
{
    cJSON *json = NULL;
    write_run(jobs[0].bytes);
    write_text("link/rank0.jsonl",
               "{\"event\":\"start\",\"world\":2}\n"
               "{\"event\":\"collective\",\"op\":\"all_reduce\",\"bytes\":1000,\"us\":7}\n"
               "{\"event\":\"collective\",\"op\":\"all_gather\",\"bytes\":4000000,\"us\":7}\n"
               "{\"event\":\"collective\",\"op\":\"all_reduce\",\"bytes\":1000000,\"us\":2000}\n"
               "{\"event\":\"collective\",\"op\":\"all_reduce\",\"bytes\":8000000,\"us\":9000}\n");
    const struct {
        const char *options;
        double bytes_per_s, message_s, inside_s;
    } rows[] = {
        {"--link 1Gbit,1ms", 0.95 * 125e6, 2e-3, 2e-3}, /* Gloo's messages cross twice */
        {"--link 300Mbit,50us", 0.95 * 37.5e6, 100e-6, 100e-6},
        {"--link 25GB/s,5us --gpus-per-node 8 --intra 400GB/s,3us", 25e9, 10e-6, 6e-6},
        {"--link 200MB/s,5us", 200e6, 10e-6, 10e-6},
        {"--link LINK", 1e9, 0.5e-3, 0.5e-3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool folder = strstr(rows[i].options, "LINK") != NULL;
        LS_TEXT(link, 300, "--link %s/link", scratch);
        LS_TEXT(options, 700, "%s --gpus 9 --batch 16 --fixed 20 --out %s/out",
                folder ? link : rows[i].options, scratch);
        ck_assert_int_eq(plan(options), LS_OK);
        LS_TEXT(path, 300, "%s/out/plan.json", scratch);
        ck_assert_int_eq(ls_json_read_file(path, &json), LS_OK);
        near(number(ls_json_get(json, "between"), "bytes_per_s"), rows[i].bytes_per_s);
        near(number(ls_json_get(json, "between"), "message_s"), rows[i].message_s);
        near(number(ls_json_get(json, "inside"), "message_s"), rows[i].inside_s);
        const cJSON *points = ls_json_get(json, "points");
        ck_assert_int_eq(cJSON_GetArraySize(points), 5); /* 1, 2, 4, 8, 9 */
        near(number(cJSON_GetArrayItem(points, 4), "gpus"), 9);
        /* 20 ms stay, 120 of forward and backward double */
        near(number(cJSON_GetArrayItem(points, 0), "step_ms"), 20 + 240 + 10 + 3.292352);
        cJSON_Delete(json);
    }
}

static void refuse(const char *options, int code, const char *words)
{
    catch_lines();
    int got = plan(options);
    const char *text = caught_text();
    ck_assert_msg(got == code && strstr(text, words) != NULL, "%s: code %d: %s", options, got,
                  text);
}

TEST(plans_that_are_refused)
{
    write_run(jobs[0].bytes);
    static const struct {
        const char *options, *words;
    } rows[] = {
        {"--link 1Gbit", "--link '1Gbit': allowed: a rate in Gbit, Mbit, GB/s or MB/s and"},
        {"--link 1Gbit,1s", "--link '1Gbit,1s': allowed"},
        {"--link 0Gbit,1ms", "--link '0Gbit,1ms': allowed"},
        {"--link infGbit,1ms", "--link 'infGbit,1ms': allowed"},
        {"--link 1Gbit,1ms,", "--link '1Gbit,1ms,': allowed"},
        {"--link 5furlong,1ms", "such as 25Gbit,10us, or a folder that lockstep-collectives wrote"},
        {"--gpus-per-node 8 --intra 5,5us", "--intra '5,5us': allowed"},
        {"--gpus-per-node 8", "--intra and --gpus-per-node of 2 and more need each other"},
        {"--intra 400GB/s,3us", "--intra and --gpus-per-node of 2 and more need each other"},
        {"--gpus 0", "--gpus '0': allowed: a whole number from 1 to 1048576"},
        {"--gpus-per-node 0", "--gpus-per-node '0': allowed: a whole number from 1 to 1024"},
        {"--batch 0", "--batch '0': allowed: a whole number from 1 to 65536"},
        {"--fixed 5", "--fixed '5': allowed: with --batch, ms below 140"},
        {"--batch 4 --fixed 140", "--fixed '140': allowed: with --batch, ms below 140"},
        {"--batch 4 --fixed 5x", "--fixed '5x': allowed"},
        {"--buckets 5,", "--buckets '5,': allowed: up to 15 sizes in MiB, such as 1,25"},
        {"--buckets 0", "--buckets '0': allowed"},
        {"--buckets 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "allowed: up to 15 sizes"},
        {"--job b7", "--job 'b7': allowed: b5, b25"},
        {"--link /", "/rank0.jsonl"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        refuse(rows[i].options, i + 1 < sizeof rows / sizeof *rows ? LS_ERR_USAGE : LS_ERR_INFRA,
               rows[i].words);
    }
    write_text("one/rank0.jsonl", "{\"event\":\"start\",\"world\":2}\n");
    LS_TEXT(options, 300, "--link %s/one", scratch);
    refuse(options, LS_ERR_USAGE, "0 times of all_reduce among 2 ranks; needed: two sizes");
    write_run("28872744,15853825"); /* a byte more than the network has */
    refuse("", LS_ERR_UNSUPPORTED, "b25: 1 of its 2 buckets are those of its network");
    LS_TEXT(command, 300, "rm -r %s/jobs/b25 %s/jobs/traced", scratch, scratch);
    ck_assert_int_eq(system(command), 0);
    refuse("", LS_ERR_USAGE, "--link is missing: b5 has no reductions with buckets of two sizes");
    LS_TEXT(rest, 300, "rm -r %s/jobs/b5", scratch);
    ck_assert_int_eq(system(rest), 0);
    refuse("", LS_ERR_USAGE, "has no timed job whose events, or whose phases job's, have times");
}

TEST_MAIN("plan", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
