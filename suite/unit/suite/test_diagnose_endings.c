/* Causes of a failed job from the last messages and end events of its ranks. */
#include <check.h>
#include <string.h>

#include "suite/judge/diagnose.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

static void write_log(const char *folder, int rank, const char *engine, int number,
                      const char *label, int bytes)
{
    char name[32];
    ls_text_put(name, sizeof name, "rank%d.log", rank);
    FILE *file = fake_open(folder, name);
    fprintf(file,
            "step 1/2  loss 1.2\nlockstep-train[%d]: error: %s 'gradients': all_reduce, operation "
            "%d '%s' of %d bytes, failed after 15 s, waiting for rank %d: it's late\n",
            rank, engine, number, label, bytes, 1 - rank);
    fclose(file);
}

static const char *waits(const char *engine, int number, const char *label, int bytes, char *text,
                         int text_bytes)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    const int codes[2] = {10, 10};
    fake_outcome(folder, "failed", 0, 10, 0, codes);
    write_log(folder, 0, engine, 7, "bucket 0", 4096);
    write_log(folder, 1, engine, number, label, bytes);
    ls_record record = fake_read(folder);
    ls_diagnose_endings_waits(&record, text, text_bytes);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
    return text;
}

TEST(unlike_operations_are_named)
{
    char text[320];
    waits("gloo", 7, "bucket 5", 512, text, sizeof text);
    ck_assert_msg(strstr(text, "operation 7 of 'gradients' is 'bucket 0' (4096 bytes) on rank 0, "
                               "'bucket 5' (512 bytes) on rank 1") != NULL,
                  "%s", text);
    waits("nccl", 7, "bucket 0", 512, text, sizeof text);
    ck_assert_msg(strstr(text, "different orders") != NULL, "%s", text);
    /* the same operation, then another number: no rank was in a different operation */
    ck_assert_str_eq(waits("gloo", 7, "bucket 0", 4096, text, sizeof text), "");
    ck_assert_str_eq(waits("gloo", 8, "bucket 1", 512, text, sizeof text), "");
}

LOOP_TEST(a_code_changed_on_the_way_out_is_named, 4)
{
    static const struct {
        const char *end;
        int code;
        const char *words;
    } row[] = {
        {"{\"event\":\"end\",\"step\":1,\"code\":10}\n", 3,
         "rank 0 ends with code 10 by its own end event, and its process leaves with code 3"},
        {"{\"event\":\"end\",\"step\":1,\"code\":10}\n", 10, ""},
        {"{\"event\":\"end\",\"step\":1}\n", 3, ""},
        {"", 3, ""}};
    char folder[64], text[320];
    fake_folder(folder, sizeof folder);
    const int codes[2] = {row[_i].code, 0};
    fake_outcome(folder, "failed", 0, row[_i].code, 0, codes);
    FILE *file = fake_open(folder, "rank0.jsonl");
    fprintf(file, "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{}}\n%s", row[_i].end);
    fclose(file);
    ls_record record = fake_read(folder);
    ls_diagnose_endings_codes(&record, text, sizeof text);
    ck_assert_str_eq(text, row[_i].words);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}

TEST_MAIN("diagnose_endings")
