/* `lockstep layers --predict`: its whole text and its table of passes for two small networks. */
#include <check.h>
#include <stdlib.h>

#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/golden.h"
#include "suite/unit/run_suite.h"

static const struct {
    const char *arguments, *expected;
} rows[] = {
    {"--arch resnet18 --image-size 64 --batch 32 --out /dev/stdout", "predict_f16.txt"},
    {"--arch resnet8 --image-size 32 --batch 512 --type tf32", "predict_tf32.txt"},
    {"--arch resnet50 --type bf16 --batch 400", "predict_bf16.txt"},
};

START_TEST(a_prediction_is_printed)
{
    char command[2600], folder[1024], expected[256], line[1024], all[1 << 15] = "";
    ls_path_program(folder, sizeof folder);
    ls_text_put(command, sizeof command, "%s/../lockstep layers --predict H200 %s 2>&1", folder,
                rows[_i].arguments);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) {
        ls_text_add(all, sizeof all, "%s", line);
    }
    ck_assert_int_eq(pclose(pipe), 0);
    ls_text_put(expected, sizeof expected, "suite/unit/suite/expected/%s", rows[_i].expected);
    golden_check(expected, strdup(all));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layers");
    TCase *tests = tcase_create("layers");
    tcase_add_loop_test(tests, a_prediction_is_printed, 0, sizeof rows / sizeof *rows);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
