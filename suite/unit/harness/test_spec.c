/* Roles by name, and a spec that comes back from the facts of job.json as it was written. */
#include <stddef.h>

#include "harness/run/matrix.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"

TEST(every_role_has_its_own_name)
{
    for (int i = 0; i < LS_ROLE_COUNT; i++) {
        ck_assert_int_eq(ls_spec_role_of(ls_spec_role_name((ls_role)i)), i);
    }
    ck_assert_int_eq(ls_spec_role_of("no such role"), LS_ROLE_UNKNOWN);
}

TEST(names_of_schema_1_are_read)
{
    ck_assert_int_eq(ls_spec_role_of("twin"), LS_ROLE_NO_COMM);
    ck_assert_int_eq(ls_spec_role_of("self"), LS_ROLE_DDP_WORLD1);
    ck_assert_int_eq(ls_spec_role_of("strong"), LS_ROLE_STRONG_SCALING);
    ck_assert_str_eq(ls_spec_role_name(LS_ROLE_NO_COMM), "no_comm");
}

TEST(a_spec_comes_back_from_its_facts)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_STRONG_SCALING), read;
    ls_text_put(spec.arch, sizeof spec.arch, "resnet50");
    ls_text_put(spec.half, sizeof spec.half, "bf16");
    ls_text_put(spec.dialect, sizeof spec.dialect, "torch");
    spec.image_size = 224;
    spec.batch_size = 7;
    spec.level = 2;
    spec.world = 8;
    spec.nodes = 2;
    spec.real_nodes = true;
    spec.bucket_mb = LS_BUCKET_DELAYED;
    spec.sync_bn = true;
    spec.accumulate = 3;
    spec.threads = 5;
    spec.warmup_steps = 2;
    spec.steps = 40;
    spec.sweep = LS_SWEEP_BUCKET | LS_SWEEP_NODES;
    cJSON *facts = ls_spec_facts(&spec);
    ls_spec_read(facts, &read);
    ck_assert(read.world == 8 && read.nodes == 2 && read.real_nodes && read.sync_bn);
    cJSON *again = ls_spec_facts(&read); /* every member; as it is written: below */
    ck_assert(cJSON_Compare(facts, again, true));
    cJSON_Delete(again);
    cJSON_Delete(facts);
}

TEST(absent_facts_have_no_level_and_no_bucket_size)
{
    ls_spec spec = ls_matrix_spec(LS_ROLE_EVIDENCE), read;
    spec.level = -1;
    cJSON *facts = ls_spec_facts(&spec);
    ls_spec_read(facts, &read);
    ck_assert_int_eq(read.level, -1);
    ck_assert(read.bucket_mb == LS_BUCKET_OWN);
    cJSON_Delete(facts);
    ls_spec_read(NULL, &read);
    ck_assert_int_eq(read.role, LS_ROLE_UNKNOWN);
    ck_assert_int_eq(read.level, -1);
    ck_assert_int_eq(read.world, 0);
    ck_assert_str_eq(read.arch, "");
}

TEST(facts_as_they_are_written)
{
    static const struct {
        int level, nodes;
        bool real_nodes;
        double bucket_mb;
        unsigned sweep;
        const char *level_text, *bucket, *simulated, *sweep_text;
    } rows[] = {
        {-1, 1, false, LS_BUCKET_OWN, 0, "", "", "false", ""},
        {0, 2, false, LS_BUCKET_DELAYED, LS_SWEEP_LEVEL, "\"level\":\"O0\",", "\"bucket_mb\":0,",
         "true", "\"level\""},
        {1, 2, true, 0.5, LS_SWEEP_BUCKET, "\"level\":\"O1\",", "\"bucket_mb\":0.5,", "false",
         "\"bucket\""},
        {2, 3, false, 1, LS_SWEEP_WORLD, "\"level\":\"O2\",", "\"bucket_mb\":1,", "true",
         "\"world\""},
        {3, 1, true, 25, 15, "\"level\":\"O3\",", "\"bucket_mb\":25,", "false",
         "\"level\",\"bucket\",\"world\",\"nodes\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_spec spec = ls_matrix_spec(LS_ROLE_NO_COMM);
        spec.level = rows[i].level;
        spec.nodes = rows[i].nodes;
        spec.real_nodes = rows[i].real_nodes;
        spec.bucket_mb = rows[i].bucket_mb;
        spec.sweep = rows[i].sweep;
        spec.sync_bn = i == 0;
        spec.threads = 6;
        spec.resident = i == 1 ? 8 : 0;
        spec.warmup_steps = 7;
        LS_TEXT(want, 600,
                "{\"role\":\"no_comm\",\"arch\":\"resnet20\",\"image_size\":16,\"batch_size\":4,"
                "%s\"half\":\"fp16\",\"world\":1,\"nodes\":%d,\"simulated\":%s,%s"
                "\"dialect\":\"apex\",\"sync_bn\":%s,\"accumulate\":1,\"threads\":6,%s"
                "\"warmup_steps\":7,\"steps\":3,\"sweep\":[%s]}",
                rows[i].level_text, rows[i].nodes, rows[i].simulated, rows[i].bucket,
                i == 0 ? "true" : "false", i == 1 ? "\"resident\":8," : "", rows[i].sweep_text);
        cJSON *facts = ls_spec_facts(&spec);
        char *text = cJSON_PrintUnformatted(facts);
        ck_assert_str_eq(text, want);
        cJSON_free(text);
        cJSON_Delete(facts);
    }
}

/* Counts of a file from 0 to the most that a job can have; any other is as if it were missing. */
TEST(counts_have_limits)
{
    static const struct {
        const char *name;
        size_t offset;
        int most, missing;
    } rows[] = {
        {"image_size", offsetof(ls_spec, image_size), 32768, 0},
        {"batch_size", offsetof(ls_spec, batch_size), 1048576, 0},
        {"world", offsetof(ls_spec, world), 1024, 0},
        {"nodes", offsetof(ls_spec, nodes), 1024, 1},
        {"accumulate", offsetof(ls_spec, accumulate), 1048576, 1},
        {"threads", offsetof(ls_spec, threads), 1048576, 0},
        {"resident", offsetof(ls_spec, resident), 1048576, 0},
        {"warmup_steps", offsetof(ls_spec, warmup_steps), 536870912, 0},
        {"steps", offsetof(ls_spec, steps), 536870912, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct {
            double value;
            int read;
        } values[] = {{0, 0},
                      {1, 1},
                      {-1, rows[i].missing},
                      {rows[i].most, rows[i].most},
                      {rows[i].most + 1.0, rows[i].missing}};
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            cJSON *facts = cJSON_CreateObject();
            ls_spec read;
            cJSON_AddNumberToObject(facts, rows[i].name, values[v].value);
            ls_spec_read(facts, &read);
            ck_assert_msg(*(int *)((char *)&read + rows[i].offset) == values[v].read, "%s %g",
                          rows[i].name, values[v].value);
            cJSON_Delete(facts);
        }
    }
}

TEST(facts_that_are_none)
{
    static const struct {
        const char *facts;
        int level;
        bool real_nodes, sync_bn;
        unsigned sweep;
    } rows[] = {
        {"{\"level\":\"O0\",\"sync_bn\":true}", 0, false, true, 0},
        {"{\"level\":\"O3\",\"nodes\":2}", 3, true, false, 0},
        {"{\"level\":\"O4\",\"nodes\":2,\"simulated\":true}", -1, false, false, 0},
        {"{\"level\":\"O/\",\"nodes\":1}", -1, false, false, 0},
        {"{\"level\":\"o1\",\"sweep\":[\"nodes\",\"level\",1,\"Level\",null]}", -1, false, false,
         LS_SWEEP_NODES | LS_SWEEP_LEVEL},
        {"{\"level\":\"O11\",\"sweep\":[\"world\"]}", -1, false, false, LS_SWEEP_WORLD},
        {"{\"level\":\"O\",\"sweep\":\"world\"}", -1, false, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *facts = cJSON_Parse(rows[i].facts);
        ls_spec read;
        ck_assert_ptr_nonnull(facts);
        ls_spec_read(facts, &read);
        ck_assert_int_eq(read.level, rows[i].level);
        ck_assert_int_eq(read.real_nodes, rows[i].real_nodes);
        ck_assert_int_eq(read.sync_bn, rows[i].sync_bn);
        ck_assert_uint_eq(read.sweep, rows[i].sweep);
        ck_assert_str_eq(read.half, "fp16"); /* what is missing */
        ck_assert_str_eq(read.dialect, "apex");
        ck_assert(read.bucket_mb == LS_BUCKET_OWN && read.kill_rank == -1 && read.world == 0);
        ck_assert(read.accumulate == 1 && read.steps == 0 && read.threads == 0);
        cJSON_Delete(facts);
    }
}

/* What each role is measured for. */
TEST(traits_of_every_role)
{
    static const struct {
        const char *name;
        bool timed, has_rate, baseline;
    } rows[LS_ROLE_COUNT] = {
        [LS_ROLE_EVIDENCE] = {"evidence", false, false, false},
        [LS_ROLE_THROUGHPUT] = {"throughput", true, true, false},
        [LS_ROLE_PHASES] = {"phases", false, false, false},
        [LS_ROLE_REFERENCE] = {"reference", false, false, false},
        [LS_ROLE_NO_COMM] = {"no_comm", true, false, true},
        [LS_ROLE_DDP_WORLD1] = {"ddp_world1", true, true, true},
        [LS_ROLE_STRONG_SCALING] = {"strong_scaling", true, true, true},
        [LS_ROLE_LOADER] = {"loader", true, true, true},
        [LS_ROLE_UNFUSED] = {"unfused", true, true, true},
        [LS_ROLE_WAY] = {"way", true, true, true},
        [LS_ROLE_CURVES] = {"curves", false, false, true},
        [LS_ROLE_SDC] = {"sdc", false, false, true},
        [LS_ROLE_UNKNOWN] = {"", false, false, false},
    };
    for (int i = 0; i < LS_ROLE_COUNT; i++) {
        ls_spec spec = {.role = (ls_role)i};
        ck_assert_str_eq(ls_spec_role_name((ls_role)i), rows[i].name);
        ck_assert_int_eq(ls_spec_is_timed(&spec), rows[i].timed);
        ck_assert_int_eq(ls_spec_has_rate(&spec), rows[i].has_rate);
        ck_assert_int_eq(ls_spec_is_baseline(&spec), rows[i].baseline);
    }
    static const char *const levels[] = {"", "O0", "O1", "O2", "O3"};
    for (int level = -1; level < 4; level++) {
        ck_assert_str_eq(ls_spec_level_name(level), levels[level + 1]);
    }
}

TEST_MAIN("spec")
