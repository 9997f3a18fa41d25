/* Commands that measure say of how much, and do not end well where that is nothing. */
#include "reference/files/safetensors.h"
#include "suite/commands/bounds_internal.h"
#include "suite/commands/turns.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"
#include "suite/unit/golden.h"
#include "suite/unit/caught.h"

/* An interpreter that has PyTorch, as it says, and trains with steps of that "ms". */
static int run_versus(const char *environment, const char *only, const char *ms, char *said,
                      size_t bytes)
{
    char folder[64], program[1024], command[2400], path[128];
    fake_folder(folder, sizeof folder);
    FILE *python = fake_open(folder, "python");
    fprintf(python,
            "#!/bin/sh\n[ \"$1\" != -c ] || exit 0\n"
            "for word; do case $word in --steps=*) steps=${word#*=} ;; esac; done\n"
            "{ echo '{\"event\":\"start\",\"schema\":1}'\n"
            "for step in $(seq \"$steps\"); do\n"
            "    echo '{\"event\":\"step\",\"step\":'$step',\"ms\":{%s}}'\n"
            "done; } >\"$LS_RUN_DIR/rank$RANK.jsonl\"\n",
            ms);
    fclose(python);
    ls_text_put(path, sizeof path, "%s/python", folder);
    ck_assert_int_eq(chmod(path, 0755), 0);
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command,
                "cd %s && %s %s/../lockstep versus --pairs 1 --python ./python --only %s --out out "
                "2>&1",
                folder, environment, program, only);
    int code = shell_says(command, said, bytes);
    ls_path_remove_tree(folder);
    return code;
}

TEST(a_peer_without_times_is_no_comparison)
{
    char said[4000];
    int code = run_versus("", "resnet18.32.b32.t2", "", said, sizeof said);
    ck_assert_msg(code == LS_ERR_CHECK && strstr(said, "a timed step has no \"ms\"") != NULL, "%s",
                  said);
    ck_assert_msg(strstr(said, "0 settings compared") != NULL, "%s", said);
    code = run_versus("", "resnet18.32.b32.t2", "\"total\":9.0", said, sizeof said);
    ck_assert_msg(code == 0 && strstr(said, "1 settings compared, 0 left out") != NULL, "%s", said);
}

TEST(settings_that_are_all_left_out_show_nothing)
{
    char said[4000];
    int code =
        run_versus("ONEDNN_MAX_CPU_ISA=AVX2", "resnet18.64.b32.t2.bf16.o2", "", said, sizeof said);
    ck_assert_msg(code == LS_ERR_INFRA && strstr(said, "0 settings compared, 1 left out") != NULL,
                  "%s", said);
}

/* `lockstep ab`: of each side only steps count which it ran alone; what is said of two. */

/* A trainer whose steps take $MS as it says, and 500 the one in which it was stopped. */
static const char trainer[] =
    "#!/bin/sh\n"
    "for word; do case $word in --steps=*) steps=${word#*=} ;; esac; done\n"
    "[ \"$LATE\" != yes ] || exec sh -c 'sleep 0.1; echo {} >\"$LS_RUN_DIR/rank$RANK.jsonl\"'\n"
    "trap 'ms=500' CONT\n"
    "exec >>\"$LS_RUN_DIR/rank$RANK.jsonl\"\n"
    "echo '{\"event\":\"start\",\"schema\":1}'\n"
    "ms=$MS step=0\n"
    "while [ $step -lt $steps ]; do\n"
    "    step=$((step + 1))\n"
    "    sleep 0.02\n"
    "    [ \"$step.$RANK\" != \"$DIES\" ] || { echo lost >&2; exit 7; }\n"
    "    echo '{\"event\":\"step\",\"step\":'$step',\"loss\":1.5,\"loss_bits\":\"0x3fc00000\",'\\\n"
    "        '\"digest\":{\"grad\":\"'$GRAD'\"},\"ms\":{\"total\":'$ms'}}'\n"
    "    ms=$MS\n"
    "done\n";

static void make_trainer(char *folder, size_t bytes, char *path, size_t path_bytes)
{
    fake_folder(folder, bytes);
    FILE *file = fake_open(folder, "trainer");
    fputs(trainer, file);
    fclose(file);
    ls_text_put(path, path_bytes, "%s/trainer", folder);
    ck_assert_int_eq(chmod(path, 0755), 0);
}

static int count_500(const ls_turns_rank *rank)
{
    int count = 0;
    for (int i = 0; i < rank->count; i++) {
        count += rank->ms[i] == 500;
    }
    return count;
}

TEST(steps_in_which_a_side_was_stopped_do_not_count)
{
    char folder[64], path[128], command[300], said[100];
    make_trainer(folder, sizeof folder, path, sizeof path);
    const ls_turns_setting what = {.label = "turns", .arch = "x", .ranks = 2, .warmup_steps = 2};
    ls_turns turns = {.what = &what, .sides = 2, .turns = 4, .turn_steps = 3, .first = 1};
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "env");
    ls_words_add(&words, "MS=10");
    ls_words_add(&words, "%s", path);
    ls_job job[2];
    ls_turns_job(&what, folder, "a", &words, 100000, &job[0]);
    ls_turns_job(&what, folder, "b", &words, 100000, &job[1]);
    ck_assert_int_eq(ls_turns_run(job, 100000, &turns), LS_OK);
    ck_assert(turns.over && turns.outcome.state == LS_OUTCOME_DONE);
    for (int k = 0; k < 4; k++) {
        /* one where the shell was stopped between writing a step and taking the next one's time */
        ck_assert_int_le(count_500(&turns.rank[k]), 1);
        ck_assert_int_ge(turns.rank[k].count, 4 * 3);
        double ms;
        ck_assert_int_eq(ls_turns_step_ms(&turns, k / 2, 0.5, &ms), LS_OK);
        ck_assert(ms == 10);
        ls_text_put(command, sizeof command, "grep -c :500 %s/%c/rank%d.jsonl", folder, "ab"[k / 2],
                    k % 2);
        ck_assert_int_eq(shell_says(command, said, sizeof said), 0);
        ck_assert_msg(atoi(said) >= 2, "stopped %s times", said);
    }
    ls_turns_free(&turns);
    ls_job_free(&job[0]);
    ls_job_free(&job[1]);
    ls_words_free(&words);
    ls_path_remove_tree(folder);
}

static int run_ab(const char *options, char *said, size_t bytes)
{
    char folder[64], path[128], program[1024], command[2400];
    make_trainer(folder, sizeof folder, path, sizeof path);
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command,
                "cd %s && %s/../lockstep ab %s --subject ./trainer --pairs 6 --seconds 1 "
                "--image-size 8 --batch-size 1 --out out 2>&1 && cat out/*/ab.json",
                folder, program, options);
    int code = shell_says(command, said, bytes);
    ls_path_remove_tree(folder);
    return code;
}

static void check_said(const char *said, const char *wanted)
{
    ck_assert_msg(strstr(said, wanted) != NULL, "no '%s' in: %s", wanted, said);
}

TEST(a_difference_is_found_and_so_are_other_bits)
{
    char said[8000];
    int code = run_ab("--a 'MS=100 GRAD=1' --b 'MS=102 GRAD=2'", said, sizeof said);
    ck_assert_msg(code == 0, "%s", said);
    check_said(said, "speed b/a 0.9804 [0.9804, 0.9804]: b is slower by 2.0 % [2.0, 2.0]");
    check_said(said, "bits: differ from step 1 of 3 on, first in grad; losses are equal\n");
    check_said(said, "\"verdict\":\t\"slower\"");
    check_said(said, "\"a_repeats\":\ttrue");
}

TEST(a_difference_below_what_addresses_make_is_none)
{
    char said[8000];
    int code = run_ab("--a MS=100.4 --b MS=100", said, sizeof said);
    ck_assert_msg(code == 0, "%s", said);
    check_said(said, "speed b/a 1.0040 [1.0040, 1.0040]: no difference shown, none above 0.5 %");
    check_said(said, "bits: equal to the bit in 3 steps: 6 losses and digests\n");
    check_said(said, "\"verdict\":\t\"no difference shown\"");
}

TEST(a_rank_that_dies_ends_both)
{
    char said[8000];
    int code = run_ab("--a MS=1 --b 'MS=1 DIES=10.1' --ranks 2", said, sizeof said);
    ck_assert_msg(code == LS_ERR_INFRA, "%d: %s", code, said);
    check_said(said, "side b, pair 1, block ");
    check_said(said, ": rank 1 ended with code 7: lost; see ");
    code = run_ab("--a MS=1 --b LATE=yes", said, sizeof said);
    ck_assert_msg(code == LS_ERR_INFRA, "%d: %s", code, said);
    check_said(said, "bits.b/rank0.jsonl: 0 step events instead of 3");
}

/* A fault whose tensor the dump lacks would be a clean step that "passes with a fault". */
TEST(a_fault_that_changes_nothing_is_an_error)
{
    char from[128], to[128];
    ls_text_put(from, sizeof from, "%s/from.safetensors", folder);
    ls_text_put(to, sizeof to, "%s/to.safetensors", folder);
    ls_safetensors_writer *writer = NULL;
    const float value[8] = {1};
    const ls_shape shape = {1, {8}};
    ck_assert_int_eq(ls_safetensors_create(from, &writer), LS_OK);
    ls_safetensors_add(writer, "grad/fc.bias", LS_F32, &shape, value);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    const char *path = from, *copy = to;
    for (int p = 0; p < ls_bounds_plant_count; p++) {
        const ls_bounds_plant *plant = &ls_bounds_plants[p];
        bool there = plant->tensor == NULL || strcmp(plant->tensor, "grad/fc.bias") == 0;
        ls_status status = ls_bounds_plant_write(plant, 1, &path, &copy);
        ls_status absent =
            strcmp(plant->name, "tensor-not-reduced") == 0 ? LS_ERR_UNSUPPORTED : LS_ERR_CHECK;
        ck_assert_msg(status == (there ? LS_OK : absent), "%s: %d", plant->name, (int)status);
    }
}

/* Those of the batches before the clock starts, too: every picture that was taken is counted. */
TEST(bad_pictures_are_counted_among_all)
{
    char program[1024], command[2400], said[2000];
    ls_path_program(program, sizeof program);
    ls_text_put(command, sizeof command,
                "cd %s && PATH=%s/..:$PATH && lockstep data make a --images 1 && "
                "for one in $(ls a/*/*.jpg | head -n 9); do echo x >$one; done && "
                "lockstep data time a --batches 1 --batch-size 10 --workers 0 --skip 2>messages",
                folder, program);
    ck_assert_int_eq(shell_says(command, said, sizeof said), 0);
    ck_assert_msg(strstr(said, "\n27 of 30 pictures could not be read\n") != NULL, "%s", said);
}

/* `lockstep layers`: --predict, its whole text and its table of passes for three networks; a step
 * on this CPU, whose table and sums agree. */

static const struct {
    const char *arguments, *expected;
} rows[] = {
    {"--arch resnet18 --image-size 64 --batch 32 --out /dev/stdout", "predict_f16.txt"},
    {"--arch resnet8 --image-size 32 --batch 512 --type tf32", "predict_tf32.txt"},
    {"--arch resnet50 --type bf16 --batch 400", "predict_bf16.txt"},
};

ROWS_TEST(a_prediction_is_printed, rows)
{
    char command[2600], folder[1024], expected[256], all[1 << 15];
    ls_path_program(folder, sizeof folder);
    ls_text_put(command, sizeof command, "%s/../lockstep layers --predict H200 %s 2>&1", folder,
                rows[_i].arguments);
    ck_assert_int_eq(shell_says(command, all, sizeof all), 0);
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

TEST_MAIN("shown", .timeout_s = 280, .before = fake_begin, .after = fake_end)
