/* SPEED against a former run: values within the band, below it, and values that do not gate. */
#include "suite/run/headline.h"
#include "suite/run/run.h"
#include "suite/unit/harness/scratch.h"
#include "suite/unit/run_suite.h"

/* One row of 100 images/s times `factor`, with an interval of +-`spread` of it. */
static const char *machine = "\"machine\":{\"cpu\":\"C\",\"cores\":2},"
                             "\"options\":{\"device\":\"cpu\"}";

static void write_summary(const char *name, double factor, double spread, const char *reason,
                          bool oversubscribed)
{
    LS_TEXT(path, 100, "%s/summary.json", name);
    FILE *file = create(path);
    double rate = 100 * factor;
    fprintf(file,
            "{%s,\"throughput\":[{\"label\":\"O2, 2 ranks\",\"arch\":\"resnet18\",\"level\":\"O2\","
            "\"half\":\"fp16\",\"dialect\":\"apex\",\"image_size\":64,\"batch_size\":8,\"world\":2,"
            "\"nodes\":1,\"bucket_mb\":25,\"images_per_s\":%g,\"images_per_s_low\":%g,"
            "\"images_per_s_high\":%g,\"not_a_result\":\"%s\",\"oversubscribed\":%s}]}\n",
            machine, rate, rate * (1 - spread), rate * (1 + spread), reason,
            oversubscribed ? "true" : "false");
    fclose(file);
}

static char row_value[24]; /* of the only row */
static const char *baseline = "before/summary.json";

static ls_speed_verdict decide(void)
{
    ls_run run;
    memset(&run, 0, sizeof run);
    run.bench_run = true;
    run.measured = cJSON_CreateObject();
    ls_text_put(run.directory, sizeof run.directory, "%s/now", scratch);
    ls_text_put(run.baseline, sizeof run.baseline, "%s/%s", scratch, baseline);
    ck_assert_int_eq(ls_speed_check_baseline(run.baseline), LS_OK);
    ls_speed_verdict out;
    memset(&out, 0, sizeof out);
    ls_speed_decide(&run, &out);
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(run.measured, "speed");
    ck_assert_int_eq(cJSON_GetArraySize(rows), 1);
    ls_text_put(row_value, sizeof row_value, "%s",
                ls_json_string(cJSON_GetArrayItem(rows, 0), "value", ""));
    cJSON_Delete(run.measured);
    return out;
}

TEST(equal_is_within_and_slower_is_below)
{
    static const struct {
        double factor;
        bool below;
    } rows[] = {{1, false}, {1.2, false}, {0.98, false}, {0.9, true}, {0.5, true}};
    write_summary("before", 1, 0.01, "", false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_summary("now", rows[i].factor, 0.01, "", false);
        ls_speed_verdict out = decide();
        ck_assert_int_eq(out.below, rows[i].below);
        ck_assert_str_eq(out.value, rows[i].below ? "below" : "within");
        ck_assert_str_eq(row_value, out.value);
        ck_assert_msg(strstr(out.why, "limit 0.97") != NULL, "%s", out.why);
    }
}

/* Read when it is checked, and again at the run's end. */
TEST(a_baseline_may_be_an_archive)
{
    LS_TEXT(line, 300,
            "cd %s && echo {} >before/verdicts.jsonl && tar -C before -cJf before.tar.xz . && rm "
            "-r before",
            scratch);
    write_summary("before", 1, 0.01, "", false);
    write_summary("now", 0.9, 0.01, "", false);
    write_text("before/run.json", "{\"headline\":{},\"machine\":{\"cpu\":\"C\",\"cores\":2}}\n");
    ck_assert_int_eq(system(line), 0);
    baseline = "before.tar.xz";
    ls_speed_verdict out = decide();
    ck_assert_str_eq(out.value, "below");
    ck_assert(out.below);
}

TEST(noise_does_not_make_a_row_slower)
{
    write_summary("before", 1, 0.2, "", false);
    write_summary("now", 0.9, 0.2, "", false);
    ls_speed_verdict out = decide();
    ck_assert(!out.below);
    ck_assert_str_eq(out.value, "within");
}

TEST(what_is_no_result_gates_nothing)
{
    write_summary("before", 1, 0.01, "", false);
    write_summary("now", 0.5, 0.01, "its checks did not pass", false);
    ck_assert_str_eq(decide().value, "no baseline");
    write_summary("now", 0.5, 0.01, "", true);
    ls_speed_verdict out = decide();
    ck_assert_str_eq(out.value, "no baseline");
    ck_assert_str_eq(row_value, "no baseline");
    ck_assert(!out.below && out.unshown);
}

/* A run on something else is neither slower nor as fast; an unknown machine is another one. */
#define ON(cpu, cores, rest, options)                                                             \
    "\"machine\":{\"cpu\":\"" cpu "\",\"cores\":" cores rest "},\"options\":{\"device\":" options \
    "}"
#define LOADED(text) ",\"loaded\":{" text "}"
static const struct {
    const char *before, *now;
    const char *decides, *remarks; /* "": none */
} machines[] = {
    {ON("C", "2", "", "\"cpu\""), ON("C", "2", "", "\"cpu\""), "", ""},
    {ON("C", "2", "", "\"cpu\""), ON("C", "1", "", "\"cpu\""), "1 core against 2 cores", ""},
    {ON("C", "2", "", "\"cpu\""), ON("C", "0.5", "", "\"cpu\""), "0.5 cores against 2 cores", ""},
    {ON("C", "2", "", "\"cpu\""), ON("D", "2", "", "\"cpu\""), "CPU D against C", ""},
    {ON("C", "2", "", "\"cpu\""), ON("C", "2", "", "\"cuda\""), "device cuda against cpu", ""},
    {ON("C", "2", ",\"gpus\":[{}]", "\"cuda\""), ON("C", "2", ",\"gpus\":[{},{}]", "\"cuda\""),
     "GPUs: 2 against 1", ""},
    {ON("C", "2", LOADED("\"device\":\"H100 (GPU-1)\""), "\"cuda\""),
     ON("C", "2", LOADED("\"device\":\"H200 (GPU-2)\""), "\"cuda\""), "device H200 against H100",
     ""},
    {ON("C", "2", LOADED("\"device\":\"H100 (GPU-1)\""), "\"cuda\""),
     ON("C", "2", LOADED("\"device\":\"H100 (GPU-2)\""), "\"cuda\""), "", ""},
    {ON("C", "2", ",\"driver\":\"575.1\"", "\"cuda\""), ON("C", "2", "", "\"cuda\""),
     "driver unknown against 575.1", ""},
    {ON("C", "2", LOADED("\"libraries\":\"oneDNN 2.6 (/a/b.so); OpenMP 1\""), "\"cpu\""),
     ON("C", "2", LOADED("\"libraries\":\"oneDNN 3.0 (/a/b.so); OpenMP 1\""), "\"cpu\""),
     "libraries: oneDNN 3.0; OpenMP 1 against oneDNN 2.6; OpenMP 1", ""},
    {ON("C", "2", LOADED("\"libraries\":\"oneDNN 2.6 (/a/b.so); OpenMP 1\""), "\"cpu\""),
     ON("C", "2", LOADED("\"libraries\":\"oneDNN 2.6 (/c/b.so); OpenMP 1\""), "\"cpu\""), "", ""},
    {ON("C", "2", LOADED("\"engine_text\":\"Gloo 1, TCP, /a.so\""), "\"cpu\""),
     ON("C", "2", LOADED("\"engine_text\":\"Gloo 2, TCP, /a.so\""), "\"cpu\""),
     "engine: Gloo 2, TCP against Gloo 1, TCP", ""},
    {ON("C", "2", LOADED("\"engine_text\":\"Gloo 1, TCP, /a.so\""), "\"cpu\""), /* one rank */
     ON("C", "2", "", "\"cpu\""), "", ""},
    {"\"machine\":{}", ON("C", "2", "", "\"cpu\""),
     "2 cores against unknown; CPU C against unknown; device cpu against unknown", ""},
    {ON("C", "2", "", "\"cpu\",\"nodes\":[{\"cpu\":\"C\",\"cores\":4}]"),
     ON("C", "2", "", "\"cpu\",\"nodes\":[{\"cpu\":\"C\",\"cores\":1}]"),
     "nodes: C with 1 core against C with 4 cores", ""},
    {ON("C", "2", ",\"kernel\":\"6.1\"", "\"cpu\""), ON("C", "2", ",\"kernel\":\"6.2\"", "\"cpu\""),
     "", "kernel 6.2 against 6.1"},
    {ON("C", "2", ",\"memory_bytes\":16.1e9", "\"cpu\""),
     ON("C", "2", ",\"memory_bytes\":32e9", "\"cpu\""), "", "memory 32 GB against 16 GB"},
    {ON("C", "2", ",\"environment\":{\"LS_SHM\":\"0\"}", "\"cpu\""), ON("C", "2", "", "\"cpu\""),
     "", "variables: unknown against LS_SHM=0"},
};

ROWS_TEST(runs_on_something_else_are_not_comparable, machines)
{
    bool same = machines[_i].decides[0] == '\0';
    machine = machines[_i].before;
    write_summary("before", 1, 0.01, "", false);
    machine = machines[_i].now;
    write_summary("now", 0.5, 0.01, "", false);
    ls_speed_verdict out = decide();
    ck_assert_str_eq(out.value, same ? "below" : "not comparable");
    ck_assert_str_eq(row_value, out.value);
    ck_assert_msg(out.below == same && out.unshown == !same, "%s", out.why);
    if (!same) {
        ck_assert_str_eq(out.why, machines[_i].decides);
    }
    ck_assert_msg(strstr(out.why, machines[_i].remarks) != NULL, "%s", out.why);
    ls_headline headline = {.status = LS_OK, .speed = out};
    ck_assert_int_eq(ls_headline_exit(&headline), LS_ERR_CHECK);
}

TEST(a_baseline_that_is_none_is_refused)
{
    char path[300];
    ls_text_put(path, sizeof path, "%s/nothing", scratch);
    ck_assert_int_eq(ls_speed_check_baseline(path), LS_ERR_USAGE);
    ck_assert_int_eq(ls_speed_check_baseline(""), LS_OK);
}

TEST_MAIN("speed", .before = open_scratch, .after = close_scratch)
