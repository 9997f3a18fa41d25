/* One folder of a job, read strictly (for judging) and leniently (for reporting). */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/core/path.h"
#include "suite/unit/suite/suite_fake.h"
#include "suite/unit/run_suite.h"

static char folder[64];

static void write_events(const char *text)
{
    fake_folder(folder, sizeof folder);
    FILE *file = fake_open(folder, "rank0.jsonl");
    fputs(text, file);
    fclose(file);
}

static ls_record read_as(ls_record_mode mode)
{
    ls_record record;
    ck_assert_int_eq(ls_record_read(folder, mode, &record), LS_OK);
    return record;
}

static void check_steps(const char *text, int strict_steps, int lenient_steps, bool broken)
{
    write_events(text);
    ls_record strict = read_as(LS_RECORD_STRICT), lenient = read_as(LS_RECORD_LENIENT);
    ck_assert_int_eq(strict.rank[0].step_count, strict_steps);
    ck_assert_int_ne(strict.broken[0], '\0');
    ck_assert_int_eq(lenient.rank[0].step_count, lenient_steps);
    ck_assert_int_eq(lenient.broken[0] != '\0', broken);
    ls_record_free(&strict);
    ls_record_free(&lenient);
    ls_path_remove_tree(folder);
}

#define START \
    "{\"event\":\"start\",\"schema\":1,\"options\":{\"opt-level\":\"O2\"},\"threads\":3}\n"
#define STEP(number) "{\"event\":\"step\",\"step\":" #number ",\"loss\":1,\"ms\":{\"total\":5}}\n"

START_TEST(a_cut_last_line_ends_only_the_strict_reading)
{
    check_steps(START STEP(1) "{\"event\":\"st", 1, 1, false);
}
END_TEST

START_TEST(a_gap_in_the_steps_ends_only_the_strict_reading)
{
    check_steps(START STEP(1) STEP(3) STEP(4), 1, 3, false);
}
END_TEST

START_TEST(a_line_that_is_no_json_ends_both)
{
    check_steps(START STEP(1) "epoch 1\n" STEP(2), 1, 1, true);
}
END_TEST

START_TEST(without_any_file_only_lenient_reading_has_a_record)
{
    write_events("");
    char path[128];
    ls_text_put(path, sizeof path, "%s/rank0.jsonl", folder);
    ck_assert_int_eq(unlink(path), 0);
    ls_record record;
    ck_assert_int_eq(ls_record_read(folder, LS_RECORD_STRICT, &record), LS_ERR_USAGE);
    record = read_as(LS_RECORD_LENIENT);
    ck_assert_int_eq(record.state, LS_RECORD_UNKNOWN);
    ck_assert_int_eq(record.spec.role, LS_ROLE_UNKNOWN);
    ck_assert_int_eq(record.world, 0);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}
END_TEST

/* The number of ranks decides how many files are read. */
START_TEST(a_world_that_is_none_is_refused)
{
    static const char *const worlds[] = {"2e9", "1e300", "-1", "1.5", "1025", "\"2\"", "null"};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        write_events(START STEP(1));
        FILE *file = fake_open(folder, "job.json");
        fprintf(file,
                "{\"facts\":{\"world\":%s,\"batch_size\":2e9,\"image_size\":1e300,\"steps\":-1},"
                "\"outcome\":{\"first_rank\":1e300,\"code\":-1e300}}",
                worlds[i]);
        fclose(file);
        ls_record record;
        ck_assert_int_eq(ls_record_read(folder, LS_RECORD_STRICT, &record), LS_ERR_USAGE);
        record = read_as(LS_RECORD_LENIENT);
        ck_assert_int_eq(record.world, 0);
        ck_assert_int_eq(record.spec.world, 0);
        ck_assert_int_eq(record.spec.batch_size, 0);
        ck_assert_int_eq(record.spec.image_size, 0);
        ck_assert_int_eq(record.spec.steps, 0);
        ck_assert_int_eq(record.first_rank, -1);
        ls_record_free(&record);
        ls_path_remove_tree(folder);
    }
}
END_TEST

START_TEST(events_are_summed_up_by_rank)
{
    write_events(
        START "{\"event\":\"buckets\",\"buckets\":[{\"bytes\":100},{\"bytes\":20}]}\n" STEP(
            1) "{\"event\":\"graph\",\"step\":1,\"cuda_graph\":\"no room\"}\n"
               "{\"event\":\"audit\",\"elements\":8,\"bad\":0}\n"
               "{\"event\":\"audit\",\"elements\":8,\"bad\":1}\n"
               "{\"event\":\"audit\",\"elements\":0,\"bad\":0}\n"
               "{\"event\":\"audit\",\"elements\":8,\"bad\":0,\"unaudited\":\"update\"}\n");
    ls_record record = read_as(LS_RECORD_STRICT);
    const ls_record_rank *rank = &record.rank[0];
    ck_assert_str_eq(record.broken, "");
    ck_assert_str_eq(rank->level, "O2");
    ck_assert_int_eq(rank->threads, 3);
    ck_assert_str_eq(rank->no_graph, "no room");
    ck_assert(rank->reduced_bytes == 120);
    ck_assert_int_eq(rank->audits, 4);
    ck_assert_int_eq(rank->bad_audits, 3);
    ck_assert(rank->step[0].total_ms == 5);
    ck_assert(isnan(rank->step[0].lr));
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}
END_TEST

static ls_status count_event(void *context, const cJSON *event, int line)
{
    (void)line;
    *(int *)context += ls_json_int(event, "step", 0);
    return LS_OK;
}

/* Its time is in the step of the other ranks, too, which wait for it. */
START_TEST(a_step_that_one_rank_audits_is_audited_on_all)
{
    write_events(START STEP(1) STEP(2));
    char path[128];
    snprintf(path, sizeof path, "%s/rank1.jsonl", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, START "%s", STEP(1) "{\"event\":\"step\",\"step\":2,\"audited\":true}\n");
    fclose(file);
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_str_eq(record.broken, "");
    ck_assert_int_eq(record.world, 2);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert(!record.rank[rank].step[0].audited);
        ck_assert(record.rank[rank].step[1].audited);
    }
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}
END_TEST

START_TEST(events_of_one_name_are_visited)
{
    int sum = 0;
    write_events(START STEP(1) STEP(2) "{\"event\":\"trace\",\"step\":40}\n");
    ls_record record = read_as(LS_RECORD_STRICT);
    ck_assert_int_eq(ls_record_each_event(&record, 0, "step", count_event, &sum), LS_OK);
    ck_assert_int_eq(sum, 3);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("record");
    TCase *tests = tcase_create("record");
    tcase_add_test(tests, a_cut_last_line_ends_only_the_strict_reading);
    tcase_add_test(tests, a_gap_in_the_steps_ends_only_the_strict_reading);
    tcase_add_test(tests, a_line_that_is_no_json_ends_both);
    tcase_add_test(tests, without_any_file_only_lenient_reading_has_a_record);
    tcase_add_test(tests, a_world_that_is_none_is_refused);
    tcase_add_test(tests, events_are_summed_up_by_rank);
    tcase_add_test(tests, a_step_that_one_rank_audits_is_audited_on_all);
    tcase_add_test(tests, events_of_one_name_are_visited);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
