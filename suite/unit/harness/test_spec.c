/* Roles by name, and a spec that comes back from the facts of job.json as it was written. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/matrix.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"

START_TEST(every_role_has_its_own_name)
{
    for (int i = 0; i < LS_ROLE_COUNT; i++) {
        ck_assert_int_eq(ls_spec_role_of(ls_spec_role_name((ls_role)i)), i);
    }
    ck_assert_int_eq(ls_spec_role_of("no such role"), LS_ROLE_UNKNOWN);
}
END_TEST

START_TEST(names_of_schema_1_are_read)
{
    ck_assert_int_eq(ls_spec_role_of("twin"), LS_ROLE_NO_COMM);
    ck_assert_int_eq(ls_spec_role_of("self"), LS_ROLE_DDP_WORLD1);
    ck_assert_int_eq(ls_spec_role_of("strong"), LS_ROLE_STRONG_SCALING);
    ck_assert_str_eq(ls_spec_role_name(LS_ROLE_NO_COMM), "no_comm");
}
END_TEST

START_TEST(a_spec_comes_back_from_its_facts)
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
    ck_assert_int_eq(read.role, spec.role);
    ck_assert_str_eq(read.arch, spec.arch);
    ck_assert_str_eq(read.half, spec.half);
    ck_assert_str_eq(read.dialect, spec.dialect);
    ck_assert_int_eq(read.image_size, spec.image_size);
    ck_assert_int_eq(read.batch_size, spec.batch_size);
    ck_assert_int_eq(read.level, spec.level);
    ck_assert_int_eq(read.world, spec.world);
    ck_assert_int_eq(read.nodes, spec.nodes);
    ck_assert_int_eq(read.real_nodes, spec.real_nodes);
    ck_assert(read.bucket_mb == spec.bucket_mb);
    ck_assert_int_eq(read.sync_bn, spec.sync_bn);
    ck_assert_int_eq(read.accumulate, spec.accumulate);
    ck_assert_int_eq(read.threads, spec.threads);
    ck_assert_int_eq(read.warmup_steps, spec.warmup_steps);
    ck_assert_int_eq(read.steps, spec.steps);
    ck_assert_uint_eq(read.sweep, spec.sweep);
    cJSON_Delete(facts);
}
END_TEST

START_TEST(absent_facts_have_no_level_and_no_bucket_size)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("spec");
    TCase *tests = tcase_create("spec");
    tcase_add_test(tests, every_role_has_its_own_name);
    tcase_add_test(tests, names_of_schema_1_are_read);
    tcase_add_test(tests, a_spec_comes_back_from_its_facts);
    tcase_add_test(tests, absent_facts_have_no_level_and_no_bucket_size);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
