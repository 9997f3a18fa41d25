/* The audit of a step on the emulated device: a clean step passes at every level; a wrong first or
 * last element of any output of any operation is found, and nothing else; convolution engines with
 * a mistake end a run with exit code 1, by name. */
#include "suite/unit/reference/audit_bench.h"
#include "suite/unit/run_suite.h"
#include "emulated_run.h"
#include "use_emulation.h"
#include "suite/unit/caught.h"

/* These runs cover all kinds of operations, and all types. */
static const char *const runs[] = {
    "--arch=resnet18 --image-size=33 --opt-level=O0",
    "--arch=resnet8 --image-size=8 --opt-level=O2 --half=bf16",
    "--arch=resnet8 --image-size=8 --opt-level=O1 --loss-scale=128",
    "--arch=resnet8 --image-size=8 --opt-level=O3 --loss-scale=128",
    "--arch=resnet18 --image-size=32 --opt-level=O1 --loss-scale=16", /* the stem over blocks */
    "--arch=resnet8 --image-size=8 --opt-level=O2 --loss-scale=128 --fuse",
};
enum { RUNS = sizeof runs / sizeof runs[0] };

LOOP_TEST(wrong_elements_are_found_and_no_others, 2 * RUNS)
{
    find_wrong_elements("cuda", runs[_i / 2], _i % 2 == 1, NULL);
}

/* The room for verdicts grows with the micro-steps of a step. */
RANGE_TEST(many_micro_steps_have_room, 1, RUNS)
{
    enum { MICRO_STEPS = 200 };
    bench b;
    char options[160];
    snprintf(options, sizeof options, "%s --accumulate=%d", runs[_i], MICRO_STEPS);
    open_bench(&b, "cuda", options);
    begin_step(&b, ls_audit_observe, b.audit);
    end_step(&b);
    ck_assert_int_gt(b.audit->count, 0);
    ck_assert_int_ge(b.audit->most, MICRO_STEPS * b.audit->count);
    close_bench(&b);
}

RANGE_TEST(a_clean_step_is_silent, 1, RUNS)
{
    bench *b = calloc(1, sizeof *b);
    open_bench(b, "cuda", runs[_i]);
    begin_step(b, ls_audit_observe, b->audit);
    end_step(b);
    ck_assert_int_gt(b->audit->count, 80);
    ck_assert_int_eq(ls_audit_judge(b->audit, 1, 1.0), LS_OK);
    close_bench(b);
    free(b);
}

LOOP_TEST(sums_over_ranks, SUMS)
{
    check_sum("cuda", runs[1], _i);
}

/* ---- which steps ----------------------------------------------------------------------------- */

TEST(one_step_of_every_period)
{
    ls_options options;
    ls_options_defaults(&options);
    ck_assert(!ls_audit_due(&options, 5)); /* no --audit */
    options.audit = true;
    for (uint64_t seed = 0; seed < 20; seed++) {
        for (int64_t every = 3; every < 40; every += 6) {
            int due = 0;
            options.audit_seed = seed;
            options.audit_every = every;
            for (int64_t i = 1; i <= 4 * every; i++) {
                due += ls_audit_due(&options, i);
                ck_assert(!ls_audit_due(&options, i) || (i - 1) % every >= 2);
            }
            ck_assert_int_eq(due, 4);
        }
    }
    options.audit_every = 1;
    ck_assert(ls_audit_due(&options, 1) && ls_audit_due(&options, 2));
}

/* ---- whole runs ------------------------------------------------------------------------------ */

/* Returns the exit code; output in `log`. */
static int train(const char *environment, const char *options, char *log, size_t bytes)
{
    char command[4 * PATH_MAX];
    snprintf(command, sizeof command,
             "%s timeout 60 '%s/lockstep-train' -a resnet8 --image-size 16 -b 2 --loss-scale 128 "
             "--print-freq 0 %s 2>&1",
             environment, build, options);
    return shell_says(command, log, bytes);
}

static const struct wrong_engine {
    const char *what, *output, *options;
} wrong_engines[] = {
    {"forward:last", ": output: element"},
    {"forward:tile", ": output: element"},
    {"data:last", ": gradient of the input: element"},
    {"data:tile", ": gradient of the input: element"},
    {"weights:last", ": gradient of the weight: element"},
    {"weights:tile", ": gradient of the weight: element"},
    /* right until the plan was made and for one step: admitted, and found here */
    {"beta:stale", ": gradient of the input: element"}, /* resnet8 has joins of gradients */
    {"sums:stale", ": bn1: mean: element", "--fuse"},
    {"gate:stale", "bn1: gradient of the bias: element", "--fuse"},
    {"gate:stale", ".bn2: gradient of the bias: element", "-a resnet20 --fuse"},
    {"apply:stale", ": output: element", "--fuse --lr 0.5"},
    {"apply-weights:stale", ".conv2: gradient of the weight: element", "--fuse --lr 0.5"},
    /* the longer, the more ReLUs it decides otherwise */
    {"gate:scale", ".conv2: gradient of the input: element",
     "--fuse --steps 6 --audit 5:6 --lr 0.5"},
};

ROWS_TEST(a_wrong_engine_ends_the_run, wrong_engines)
{
    char environment[64], options[128], log[8192];
    snprintf(environment, sizeof environment, "LS_EMULATED_CONV_WRONG=%s", wrong_engines[_i].what);
    snprintf(options, sizeof options, "--device cuda --opt-level O2 --steps 3 --audit 5:3 %s",
             wrong_engines[_i].options == NULL ? "" : wrong_engines[_i].options);
    int code = train(environment, options, log, sizeof log);
    ck_assert_msg(code == 1, "exit code %d: %s", code, log);
    ck_assert_msg(strstr(log, wrong_engines[_i].output) != NULL, "%s", log);
    ck_assert_msg(strstr(log, "audit: step ") != NULL, "%s", log);
}

TEST(graphs_go_on_around_an_audited_step)
{
    char log[8192];
    int code = train("A=1", "--device cuda --opt-level O2 --steps 8 --audit 5:8 --cuda-graph on",
                     log, sizeof log);
    ck_assert_msg(code == 0, "exit code %d: %s", code, log);
    ck_assert_msg(strstr(log, "audit: 1 steps") != NULL, "%s", log);
}

/* Result and statistics of a fused product are judged one by one, in recorded and audited steps. */
TEST(fused_products_pass)
{
    char log[8192];
    for (int level = 1; level <= 3; level++) {
        char options[128];
        snprintf(options, sizeof options,
                 "--device cuda --opt-level O%d --steps 8 --audit %d:4 --cuda-graph on --fuse",
                 level, level);
        int code = train("A=1", options, log, sizeof log);
        ck_assert_msg(code == 0, "exit code %d: %s", code, log);
        ck_assert_msg(strstr(log, "audit: 2 steps") != NULL, "%s", log);
    }
}

TEST(unaudited_parts_are_named)
{
    char log[8192];
    ck_assert_int_eq(train("A=1", "--device cuda --steps 1 --audit 1:1", log, sizeof log), 0);
    ck_assert_msg(strstr(log, "not audited") == NULL, "%s", log);
    ck_assert_int_eq(
        train("A=1", "--device cuda --steps 1 --audit 1:1 --optimizer lamb", log, sizeof log), 0);
    ck_assert_msg(strstr(log, "; not audited: update\n") != NULL, "%s", log);
}

TEST(wrong_values_are_refused)
{
    char log[8192];
    ck_assert_int_eq(train("A=1", "--device cpu --steps 1 --audit 1:0", log, sizeof log), 2);
    ck_assert_msg(strstr(log, "SEED:EVERY") != NULL, "%s", log);
}

int main(void)
{
    use_emulation();
    find_build();
    return RUN_TESTS("cuda_audit", .timeout_s = 60);
}
