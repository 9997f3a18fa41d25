/* The audit of a step on the CPU: clean steps pass at every level, type, batch and block of
 * channels, at awkward sizes and with ranks; a wrong first or last element of any output of any
 * operation is found, and nothing else. */
#include "suite/unit/cuda/emulated_run.h"
#include "suite/unit/run_suite.h"
#include "audit_bench.h"
#include "suite/unit/caught.h"

/* ---- wrong elements -------------------------------------------------------------------------- */

static const char *const wrong_runs[] = {
    "--threads=1 --arch=resnet18 --image-size=33 --opt-level=O0",
    "--threads=1 --arch=resnet8 --image-size=9 --opt-level=O2 --half=bf16",
    "--threads=1 --arch=resnet8 --image-size=8 --opt-level=O1 --loss-scale=128",
    "--threads=1 --arch=resnet8 --image-size=8 --opt-level=O3 --loss-scale=128",
    "--threads=1 --arch=resnet18 --image-size=33 --opt-level=O1 --loss-scale=128 "
    "--force-branches=given",
};
enum { WRONG_RUNS = sizeof wrong_runs / sizeof wrong_runs[0] };

LOOP_TEST(wrong_elements_are_found_and_no_others, 2 * WRONG_RUNS)
{
    find_wrong_elements("cpu", wrong_runs[_i / 2], _i % 2 == 1, NULL);
}

/* But two that a CPU's plan lacks: products read the parameter, and write its gradient. */
TEST(every_kind_is_observed)
{
    int done[KINDS] = {0};
    find_wrong_elements("cpu", wrong_runs[1], false, done);
    find_wrong_elements("cpu", wrong_runs[WRONG_RUNS - 1], false, done);
    for (int k = 0; k < KINDS; k++) {
        ck_assert_msg((done[k] > 0) != (k == LS_OBSERVED_WEIGHT || k == LS_OBSERVED_UNPACK),
                      "kind %d was observed in %d runs", k, done[k]);
    }
}

LOOP_TEST(sums_over_ranks, SUMS)
{
    check_sum("cpu", "--threads=1 --arch=resnet8 --image-size=8 --opt-level=O2 --half=bf16", _i);
}

/* ---- wrong unscaled gradients and updates -----------------------------------------------------
 */

static const struct update {
    const char *options;
    int outputs; /* of the optimizer */
} updates[] = {
    {"--threads=1 --arch=resnet8 --image-size=8 --opt-level=O0 --momentum=0 --loss-scale=8", 1},
    {"--threads=1 --arch=resnet8 --image-size=8 --opt-level=O1 --loss-scale=128 --nesterov", 2},
    {"--threads=1 --arch=resnet8 --image-size=8 --opt-level=O2 --loss-scale=128", 3},
    {"--threads=1 --arch=resnet8 --image-size=8 --opt-level=O2 --loss-scale=128 --optimizer=adamw",
     4},
    {"--threads=1 --arch=resnet8 --image-size=8 --opt-level=O3 --loss-scale=128 --optimizer=adam",
     3},
};

static void notify(bench *b, ls_step_moment at)
{
    const ls_step_event event = {.at = at};
    ck_assert_int_eq(b->audit->observer.on(b->audit->observer.context, &event), LS_OK);
}

/* One element of each result is wrong, of one parameter. */
LOOP_TEST(wrong_updates_are_found, 2 * (int)(sizeof updates / sizeof updates[0]))
{
    enum { PARAM = 3 };
    const struct update *row = &updates[_i / 2];
    bench *b = calloc(1, sizeof *b);
    open_bench(b, "cpu", row->options);
    b->last = _i % 2 == 1;
    ls_trainer *t = &b->trainer;
    ls_memory *memory = &t->memory;
    begin_step(b, ls_audit_observe, b->audit);
    int first = b->audit->count;
    ls_tensor_list unscaled = {memory->param_count, memory->unscaled};
    ls_tensor_list grads = {memory->param_count, memory->grad};
    notify(b, LS_STEP_UNSCALE);
    ck_assert_int_eq(ls_amp_scale_unscale(&t->amp, unscaled, grads), LS_OK);
    float was = make_wrong(b, &memory->unscaled[PARAM]);
    notify(b, LS_STEP_UNSCALE_END);
    ls_tensor one = edge_of(b, &memory->unscaled[PARAM]);
    ck_assert_int_eq(ls_device_write_f32(&t->device, &one, &was), LS_OK);
    int middle = b->audit->count, wrong = 0;
    notify(b, LS_STEP_OPTIMIZER);
    ck_assert_int_eq(ls_optim_step(&t->optimizer, NULL, memory, t->amp.config.dynamic), LS_OK);
    make_wrong(b, &memory->value[PARAM]);
    for (int k = 0; k < memory->moment_count; k++) {
        make_wrong(b, &memory->moment[k][PARAM]);
    }
    if (memory->master != NULL && memory->param[PARAM].data != memory->value[PARAM].data) {
        make_wrong(b, &memory->param[PARAM]);
    }
    notify(b, LS_STEP_OPTIMIZER_END);
    end_step(b);
    for (int i = first; i < b->audit->count; i++) {
        bool mine = strcmp(b->audit->name[i].operation, t->network.param[PARAM].name) == 0;
        ck_assert_msg((b->audit->found[i].bad > 0) == mine, "%s, %s: %lld wrong",
                      b->audit->name[i].operation, b->audit->name[i].output,
                      (long long)b->audit->found[i].bad);
        wrong += mine && i >= middle;
    }
    ck_assert_int_eq(middle - first, memory->param_count);
    ck_assert_int_eq(wrong, row->outputs);
    close_bench(b);
    free(b);
}

/* ---- clean jobs ------------------------------------------------------------------------------ */

/* Each step draws other elements. ISA: what oneDNN may use, so that channels are stored in blocks
 * of 16, 8 or 1. */
#define SMALL "-a resnet8 --image-size 16 --steps 20 --threads 1 "
#define ODD "-a resnet18 --image-size 33 --steps 2 "
#define PAIR SMALL "-b 2 --bucket-cap-mb 0.05 "
static const struct clean {
    const char *isa;
    int ranks;
    const char *options;
} clean[] = {
    {"ALL", 1, SMALL "-b 1 --opt-level O0"},
    {"ALL", 1, SMALL "-b 3 --opt-level O1"},
    {"ALL", 1, SMALL "-b 8 --opt-level O2 --optimizer adam"},
    {"ALL", 1, SMALL "-b 3 --opt-level O3 --optimizer adamw"},
    {"ALL", 1, SMALL "-b 8 --opt-level O1 --half bf16 --optimizer adam"},
    {"ALL", 1, SMALL "-b 1 --opt-level O2 --half bf16 --nesterov"},
    {"ALL", 1, SMALL "-b 3 --opt-level O3 --half bf16 --loss-scale 1"},
    {"ALL", 1, SMALL "-b 3 --opt-level O2 --accumulate 2"},
    {"AVX2", 1, SMALL "-b 3 --opt-level O0"},
    {"AVX2", 1, SMALL "-b 3 --opt-level O2"},
    {"SSE41", 1, SMALL "-b 3 --opt-level O1"},
    {"ALL", 1, ODD "-b 8 --opt-level O0 --threads 2"},
    {"ALL", 1, ODD "-b 3 --opt-level O2 --threads 1"},
    {"AVX2", 1, ODD "-b 3 --opt-level O1 --half bf16 --threads 1"},
    {"ALL", 1, "-a resnet18 --image-size 64 --steps 2 --threads 1 -b 2 --opt-level O2 --half bf16"},
    {"ALL", 1, "-a resnet50 --image-size 65 --steps 1 --threads 1 -b 2 --opt-level O3"},
    {"ALL", 2, PAIR "--opt-level O0 --sync-bn"},
    {"ALL", 2, PAIR "--opt-level O2 --sync-bn"},
    {"ALL", 2, PAIR "--opt-level O2 --predivide 2"},
    {"ALL", 2, PAIR "--opt-level O2 --allreduce-fp32"},
    {"ALL", 2, PAIR "--opt-level O1 --dialect torch"},
    {"ALL", 2, PAIR "--opt-level O3 --half bf16 --dialect torch"},
    {"ALL", 2, PAIR "--opt-level O0 --dialect torch --compress fp16"},
};

/* In steps with an overflow, too: a dynamic loss scale starts too high. */
ROWS_TEST(clean_jobs_are_silent, clean)
{
    const struct clean *row = &clean[_i];
    char command[4 * PATH_MAX], log[8192];
    double worst = -1;
    snprintf(command, sizeof command,
             "ONEDNN_MAX_CPU_ISA=%s timeout 60 '%s/lockstep-launch' --nproc-per-node %d -- "
             "'%s/lockstep-train' --device cpu %s --audit %d:1 --print-freq 0 2>&1",
             row->isa, build, row->ranks, build, row->options, 100 + _i);
    ck_assert_msg(shell_says(command, log, sizeof log) == 0, "%s\n%s", command, log);
    const char *said = strstr(log, "the worst used ");
    ck_assert_msg(said != NULL && sscanf(said, "the worst used %lf", &worst) == 1 && worst >= 0 &&
                      worst < 1,
                  "%s\n%s", command, log);
    ck_assert_msg((strstr(log, "not audited") != NULL) ==
                      (strstr(row->options, "accumulate") != NULL ||
                       strstr(row->options, "compress") != NULL),
                  "%s\n%s", command, log);
}

int main(void)
{
    find_build();
    return RUN_TESTS("audit", .timeout_s = 60);
}
