/* `lockstep layers`: --predict, its whole text and its table of passes for three networks; a step
 * on this CPU, whose table and sums agree. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

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

ROWS_TEST(a_prediction_is_printed, rows)
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

static const struct {
    const char *arguments, *first, *also;
    int passes;
} measured[] = {
    /* 7 convolutions and the linear layer, of which the first has no gradient of its input: 23; 7
     * norms: 14; 2 shortcuts, an average, a loss: 8; the image; the bias's gradient; 3 of the
     * update */
    {"--type f32", "resnet8, 16 pixels, batch 3, f32 on ", "convolutions alone", 50},
    {"--type bf16 --half-math emulated", "resnet8, 16 pixels, batch 3, bf16 on ",
     "\nbf16 emulated, as asked\n", 50},
};

/* The rows of the table of all passes add up to the sums that are printed. */
ROWS_TEST(a_step_on_the_cpu, measured)
{
    char command[2600], folder[1024], line[1024], all[1 << 15] = "";
    ls_path_program(folder, sizeof folder);
    ls_text_put(command, sizeof command,
                "%s/../lockstep layers --device cpu --arch resnet8 --image-size 16 --batch 3 "
                "--threads 1 --repeats 3 --out /dev/stdout %s 2>&1",
                folder, measured[_i].arguments);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    int rows_read = 0, passes = 0;
    double ms = 0, sum_ms = -1, bytes_mb = 0, per_image = -1;
    while (fgets(line, sizeof line, pipe) != NULL) {
        double one_ms, floor_ms, mb, gflop;
        int order, share;
        char blank;
        ls_text_add(all, sizeof all, "%s", line);
        if (strchr(line, '"') != NULL && sscanf(line, "%d\t%lf\t%lf\t%lf\t%lf\t", &order, &one_ms,
                                                &floor_ms, &mb, &gflop) == 5) {
            ck_assert_int_eq(order, rows_read++);
            ck_assert(one_ms > 0 && floor_ms >= 0 && mb >= 0 && gflop >= 0);
            ms += one_ms;
            bytes_mb += mb;
        } else if (sscanf(line, "sum%c %d %lf %lf %d%% %lf", &blank, &passes, &sum_ms, &floor_ms,
                          &share, &per_image) == 6) {
            ck_assert_int_eq(passes, measured[_i].passes);
        }
    }
    ck_assert_msg(pclose(pipe) == 0, "%.1000s", all);
    ck_assert_msg(strstr(all, measured[_i].first) != NULL, "%.1000s", all);
    ck_assert_msg(strstr(all, measured[_i].also) != NULL, "%.1000s", all);
    ck_assert_msg(strstr(all, "optimizer, weights") != NULL, "%.1000s", all);
    ck_assert_int_eq(rows_read, passes);
    /* three digits of ms; one digit of MB an image, of three images */
    ck_assert_double_eq_tol(sum_ms, ms, 0.01);
    ck_assert_double_eq_tol(per_image * 3, bytes_mb, 0.2);
}

TEST_MAIN("layers", .timeout_s = 60)
