/* Rules of what lies between a backward and a step, of schedules, of statistics and averages, and
 * of steps that never ended, on invented jobs: mistakes and the right practices that look like
 * them.
 */
#include "kernels/core/rng.h"
#include "observe_calls.h"
#include "reference/files/safetensors.h"
#include "suite/unit/run_suite.h"

/* Calls of each of four steps, the rule, the verdict, words of the finding. */
static const struct {
    const char *calls, *id;
    ls_verdict_code code;
    const char *words;
} rows[] = {
    /* gradients that are cleared before any step */
    {"F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z", "order.zero", CALLS_HINT,
     "zero_grad() for every batch"},
    {"F{\"input\":\"1\"} S B F{\"input\":\"2\",\"left\":0} S B K P Z", "order.zero", CALLS_HINT,
     "train.py:20"}, /* by hand: a forward finds none */
    {"F{\"input\":\"1\"} S B{\"at\":\"train.py:30\",\"sync\":false} Z F{\"input\":\"2\"} S B K P Z",
     "order.zero", LS_WEAK, "zero_grad() for every batch"},
    {"F{\"input\":\"1\"} S B F{\"input\":\"2\"} S B K P Z", "order.zero", LS_PASS, "4 steps"},
    {"F S B Z F S B K P Z", "order.zero", LS_PASS, "4 steps"}, /* sharpness-aware */
    {"F{\"input\":\"1\",\"input_grad\":true} S B Z F{\"input\":\"2\"} S B K P Z", "order.zero",
     LS_PASS, "4 steps"}, /* adversarial training */
    {"F{\"input\":\"1\"} S B{\"at\":\"train.py:30\"} Z F{\"input\":\"2\"} S B K P Z", "order.zero",
     LS_PASS, "4 steps"},
    {"F S B Z K P", "order.zero", LS_FAIL, "train.py:26"},
    /* clips */
    {"F S N B K P Z", "order.clip", LS_FAIL, "before backward()"},
    {"F S B K P N Z", "order.clip", LS_FAIL, "after the step"},
    {"F S B N Z F S B K P Z", "order.clip", LS_FAIL, "cleared before their optimizer steps"},
    {"F S B U N K P Z", "order.clip", LS_PASS, "4 calls"},
    {"F S B N F S B N K P Z", "order.clip", LS_PASS, "8 calls"},
    {"F S B U N{\"params\":0,\"norm\":0} K P Z", "order.clip", LS_FAIL, "norm of 0"},
    {"F S N{\"limit\":null} B U N K P Z", "order.clip", LS_PASS, "8 calls"},
    /* schedules */
    {"F S B K P L{\"schedule\":0} Z L{\"schedule\":0,\"at\":\"train.py:40\"}", "order.schedule",
     CALLS_HINT, "twice its speed"},
    {"F S B K P L{\"schedule\":0,\"at\":\"train.py:70 (accelerate/scheduler.py:1)\"} "
     "L{\"schedule\":0,\"at\":\"train.py:70 (accelerate/scheduler.py:1)\",\"lr\":[0.2]} Z",
     "order.schedule", LS_PASS, "8 calls"}, /* as often as there are ranks */
    {"F S B K P L{\"schedule\":0} L{\"schedule\":0,\"lr\":[0.2]} Z", "order.schedule", LS_WEAK,
     "2 times its speed"},
    {"F S B L{\"schedule\":0} F S B L{\"schedule\":0,\"lr\":[0.2]} K P Z "
     "L{\"schedule\":1,\"at\":\"train.py:9\"}",
     "order.schedule", LS_FAIL, "before optimizer.step()"},
    {"F S B K P Z F S B L{\"schedule\":0} F S B L{\"schedule\":0,\"lr\":[0.2]} K P Z",
     "order.schedule", LS_WEAK, "with every batch, the optimizer with every 2"},
    {"F S B K P L{\"schedule\":0} Z L{\"schedule\":1,\"at\":\"train.py:40\"}", "order.schedule",
     LS_PASS, "8 calls"},
    {"F S B K P L{\"schedule\":0,\"class\":\"ReduceLROnPlateau\"} Z "
     "L{\"schedule\":0,\"class\":\"ReduceLROnPlateau\",\"at\":\"train.py:40\"}",
     "order.schedule", LS_PASS, "8 calls"},
};

ROWS_TEST(calls_are_judged, rows)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, rows[_i].calls);
    }
    calls_end(&job, rows[_i].id, rows[_i].code, rows[_i].words);
}

/* What a script may do once in a while: leave out a batch, end an epoch. */
static const struct {
    const char *usual, *once, *id;
    ls_verdict_code code;
    const char *words;
} rarely[] = {
    {"F S B K P Z", "F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z", "order.zero", LS_PASS,
     "5 steps"},
    {"F S B K P Z", "F S B K P N Z", "order.clip", LS_PASS, "1 calls"}, /* a look at the norm */
    {"F S B K P Z", "F S B Z K P", "order.zero", LS_WEAK, "2 of 10 steps"},
    {"F S B U N K P Z", "F S B U N Z F S B U N K P Z", "order.clip", LS_PASS, "6 calls"},
    {"F S B K P L{\"schedule\":0} Z",
     "F S B K P L{\"schedule\":0} Z L{\"schedule\":0,\"at\":\"train.py:40\"}", "order.schedule",
     LS_PASS, "6 calls"},
};

ROWS_TEST(what_happens_once_is_no_fault, rarely)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 5; i++) {
        calls_step(&job, i == 2 ? rarely[_i].once : rarely[_i].usual);
    }
    calls_end(&job, rarely[_i].id, rarely[_i].code, rarely[_i].words);
}

/* ---- two networks in turn -------------------------------------------------------------------- */

static void write_samples(const calls_job *job, int step, const char *const *group, int count,
                          const double *values)
{
    LS_TEXT(folder, 100, "%s/samples", job->folder);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    for (int k = 0; k < job->world; k++) {
        ls_safetensors_writer *w = NULL;
        LS_TEXT(path, 200, "%s/step%06d.rank%d.safetensors", folder, step, k);
        ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
        for (int g = 0; g < count; g++) {
            bool local = strcmp(group[g], "local") == 0 || strcmp(group[g], "since") == 0;
            double exact[2] = {values[g] + (local ? 2 * k - 1 : 0), -4};
            float rounded[2] = {(float)exact[0], (float)exact[1]};
            ls_shape shape = {1, {2}};
            LS_TEXT(name, 64, "%s/fc.bias", group[g]);
            ck_assert_int_eq(ls_safetensors_add_copy(w, name, local ? LS_F64 : LS_F32, &shape,
                                                     local ? (void *)exact : (void *)rounded),
                             LS_OK);
        }
        ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
    }
}

static void open_two(calls_job *job)
{
    calls_open_with(job, 2, "");
    calls_event(job, -1,
                "{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"at\":\"train.py:6\",\"name\":"
                "\"G\",\"params\":[[\"m1.fc.weight\",8,\"f32\",true]],\"buffers\":[],"
                "\"world\":2}");
    calls_event(job, -1,
                "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\","
                "\"fc.bias\",\"head.weight\"]}]}");
    calls_event(job, -1,
                "{\"event\":\"optimizer\",\"optimizer\":1,\"groups\":[{\"params\":["
                "\"m1.fc.weight\"]}]}");
}

/* An optimizer that never steps: its parameter gets gradients, or is stepped by another one. */
TEST(an_optimizer_that_never_steps_is_caught)
{
    static const char *const group[] = {"local"};
    static const double values[] = {2};
    for (int held = 0; held < 2; held++) {
        calls_job job;
        calls_open_with(&job, 2, "");
        calls_event(&job, -1,
                    held ? "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":["
                           "\"fc.weight\",\"fc.bias\"]}]}"
                         : "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":["
                           "\"fc.weight\"]}]}");
        calls_event(&job, -1,
                    "{\"event\":\"idle\",\"at\":\"train.py:8\",\"params\":[\"fc.bias\"],"
                    "\"steps\":8}");
        for (int i = 0; i < 12; i++) {
            calls_step_of(&job, -1, i == 1 ? "\"detail\":true," : "", "F b O Z");
        }
        write_samples(&job, 2, group, 1, values);
        calls_end(&job, "optimizer.covered", held ? LS_WEAK : LS_FAIL,
                  held ? "" : "never asked to step");
    }
}

#define OTHER "O{\"optimizer\":1} Z{\"optimizer\":1}"

/* Calls of the steps of optimizer 0 and of optimizer 1, what step 3 found in place. */
static const struct {
    const char *odd, *even;
    double left;
    const char *id;
    ls_verdict_code code;
    const char *words;
} turns[] = {
    {"F b O", "F b{\"at\":\"train.py:70\"} " OTHER, 1, "reduction.left", LS_FAIL,
     "steps again by old gradients"},
    {"F b O", "F b{\"at\":\"train.py:70\"} " OTHER, 0, "reduction.left", LS_PASS, ""},
    {"F b O Z", "F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER, 1, "reduction.left", LS_WEAK,
     "what the backward at train.py:70 left"},
    {"F b O Z", "F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER, 1, "reduction.mean", LS_WEAK,
     "look at more steps in detail: --every 10"},
    {"F b O Z", "F{\"left\":0} b " OTHER, 1, "reduction.left", LS_PASS, ""}, /* collected */
    {"Z F{\"left\":0} b O", "F b{\"at\":\"train.py:70\"} " OTHER " Z", 0, "reduction.left", LS_PASS,
     ""},
};

#define ONE(reached) "b{\"at\":\"train.py:60\",\"reached\":" reached "} "
#define TWO(reached) "b{\"at\":\"train.py:70\",\"reached\":" reached "} "
#define Z1 "Z{\"optimizer\":1} "
#define O1 "O{\"optimizer\":1} "

/* Calls of the steps of optimizer 0 and of optimizer 1, whose parameters each backward reaches. */
static const struct {
    const char *odd, *even;
    ls_verdict_code code;
    const char *words;
} mixtures[] = {
    /* a generator (1) and a discriminator (0): as it should be, cleared at the end only, and
     * without detach() */
    {"Z F " ONE("1") "O", Z1 "F " TWO("3") O1, LS_WEAK, ""},
    {"F " ONE("1") "O Z", "F " TWO("3") O1 Z1, LS_WEAK,
     "of train.py:60, and what train.py:70 left"},
    {"Z " Z1 "F " ONE("3") "O", "F " TWO("3") O1, CALLS_HINT,
     "of train.py:70, and what train.py:60 left"},
    /* a part that two tasks share (1), stepped once for both: the other task is the other's alone
     */
    {"Z " Z1 "F " ONE("3") "O", "F " TWO("2") O1, LS_WEAK, ""},
    /* the later one trains a third part, too, which is stepped after it */
    {"Z " Z1 "F " ONE("3") "O", "F " TWO("7") O1 "O{\"optimizer\":2}", LS_WEAK,
     "of train.py:70, and what train.py:60 left"},
    /* both backward calls at one place; both before the first step */
    {"F " ONE("1") "O Z", "F " ONE("3") O1 Z1, LS_WEAK, ""},
    {"F " ONE("3") TWO("3") "O " O1 "Z " Z1, "F " ONE("3") TWO("3") "O " O1 "Z " Z1, LS_WEAK, ""},
};

ROWS_TEST(two_losses_of_two_networks, mixtures)
{
    calls_job job;
    open_two(&job);
    for (int i = 0; i < 8; i++) {
        calls_step(&job, i % 2 == 0 ? mixtures[_i].odd : mixtures[_i].even);
    }
    calls_end(&job, "reduction.left", mixtures[_i].code, mixtures[_i].words);
}

/* A detailed step of the other network: what the first one left may stay there. */
TEST(the_other_networks_gradients_may_stay)
{
    static const char *const group[] = {"local"};
    static const double values[] = {2};
    calls_job job;
    open_two(&job);
    for (int i = 0; i < 4; i++) {
        calls_step_of(&job, -1, i == 1 ? "\"detail\":true," : "",
                      i % 2 == 0 ? "Z F{\"left\":0} b O" : "F b " OTHER);
    }
    write_samples(&job, 2, group, 1, values);
    calls_end(&job, "reduction.left", LS_PASS, "");
}

ROWS_TEST(networks_in_turn_are_judged, turns)
{
    static const char *const group[] = {"local", "reduced", "used"};
    const double values[] = {2, 2 + turns[_i].left, 2 + turns[_i].left};
    calls_job job;
    open_two(&job);
    for (int i = 0; i < 6; i++) {
        calls_step_of(&job, -1, i == 2 ? "\"detail\":true," : "",
                      i % 2 == 0 ? turns[_i].odd : turns[_i].even);
    }
    write_samples(&job, 3, group, 3, values);
    calls_end(&job, turns[_i].id, turns[_i].code, turns[_i].words);
}

/* The clip is of the network whose gradients the next zero_grad clears. */
TEST(a_clip_of_the_other_network_is_caught)
{
    static const char *const calls[] = {
        "F b N{\"models\":[1]} O Z Z{\"optimizer\":1} F{\"model\":1} b N{\"models\":[0,1]} " OTHER,
        "F b N{\"models\":[0]} O Z Z{\"optimizer\":1} F{\"model\":1} b N{\"models\":[1]} " OTHER,
    };
    for (int right = 0; right < 2; right++) {
        calls_job job;
        open_two(&job);
        for (int i = 0; i < 3; i++) {
            calls_step(&job, calls[right]);
        }
        calls_end(&job, "order.clip", right ? LS_PASS : LS_FAIL,
                  right ? "6 calls" : "of another model");
    }
}

/* A gradient of the script's own making, as of samples that it clips one by one, is not the last
 * batch's; and the mean of a step is that of the passes since its gradients were cleared. */
TEST(samples_show_what_was_thrown_away)
{
    static const char *const group[] = {"local", "since", "reduced", "used"};
    for (int own = 0; own < 2; own++) {
        const double values[] = {7, 2, 2, own ? 5 : 2};
        calls_job job;
        calls_open(&job, 2);
        for (int i = 0; i < 4; i++) {
            calls_step_of(&job, -1, i == 1 ? "\"detail\":true," : "",
                          "F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z");
        }
        write_samples(&job, 2, group, 4, values);
        calls_judge(&job);
        calls_expect(&job, "order.zero", own ? LS_PASS : CALLS_HINT, own ? "" : "for every batch");
        calls_expect(&job, "reduction.mean", LS_PASS, "of 1 detailed steps");
        calls_close(&job);
    }
}

/* It reduces nothing; where the script calls collectives, they may. */
TEST(a_hook_that_reduces_nothing)
{
    for (int own = 0; own < 2; own++) {
        calls_job job;
        calls_open(&job, 2);
        calls_event(
            &job, -1,
            "{\"event\":\"hook\",\"model\":0,\"name\":\"noop_hook\",\"at\":\"train.py:8\"}");
        calls_repeat(&job, 2, own != 0 ? "F S B A K P Z" : "F S B K P Z");
        calls_end(&job, "reduction.mean", own != 0 ? LS_UNSUPPORTED : LS_FAIL,
                  "noop_hook reduces nothing");
    }
}

#define PASS_OF(first)                                                                             \
    "{\"event\":\"data\",\"trained\":true,\"whole\":true,\"at\":\"train.py:18\",\"steps\":[" first \
    ",99]}"
#define SCHEDULE(class)                                                                     \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"" class "\",\"at\":\"train.py:8\"," \
                                                                "\"step\":0,\"holds\":[]}"
#define STEPPED_IF                                                                       \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"StepLR\",\"at\":\"train.py:8\"," \
    "\"step\":0,\"holds\":[],\"stepped_if\":true}"

/* A schedule that is built and not stepped in nine steps. */
static const struct {
    const char *event, *pass, *calls;
    ls_verdict_code code;
    const char *words;
} idle[] = {
    {SCHEDULE("StepLR"), PASS_OF("5"), "F S B K P Z", CALLS_HINT, "scheduler.step() is missing"},
    {SCHEDULE("StepLR"), PASS_OF("0"), "F S B K P Z", LS_SKIP, ""}, /* one whole pass */
    {STEPPED_IF, PASS_OF("5"), "F S B K P Z", LS_WEAK, "under a condition"},
    {SCHEDULE("StepLR") "\n{\"event\":\"schedule\",\"schedule\":1,\"class\":\"SequentialLR\","
                        "\"at\":\"train.py:9\",\"step\":0,\"holds\":[0]}",
     PASS_OF("5"), "F S B K P Z", CALLS_HINT, "train.py:9"},
    {SCHEDULE("ReduceLROnPlateau"), PASS_OF("5"), "F S B K P Z", LS_SKIP, ""},
    {SCHEDULE("StepLR"), PASS_OF("5"), "F S B K P Z L{\"schedule\":1}", LS_PASS, "9 calls"},
};

ROWS_TEST(an_idle_schedule_is_caught, idle)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, idle[_i].event);
    for (int i = 0; i < 9; i++) {
        calls_step(&job, idle[_i].calls);
    }
    calls_event(&job, -1, PASS_OF("1"));
    calls_event(&job, -1, idle[_i].pass);
    calls_end(&job, "order.schedule", idle[_i].code, idle[_i].words);
}

/* A schedule made for so many calls, in twelve steps, after every so many of them. */
static const struct {
    const char *class;
    int span, every;
    ls_verdict_code code;
    const char *words;
} spans[] = {
    {"OneCycleLR", 12, 1, LS_PASS, "12 calls"},
    {"OneCycleLR", 12, 4, CALLS_HINT, "stepped with each epoch"},
    {"CosineAnnealingLR", 13, 4, CALLS_HINT, "of 13 steps was stepped 3 times"},
    {"CosineAnnealingLR", 3, 4, LS_PASS, ""},
    {"OneCycleLR", 400, 1, LS_PASS, ""}, /* ended early */
    {"CosineAnnealingLR", 3, 1, LS_WEAK, "rises again"},
    {"StepLR", 0, 4, LS_PASS, ""},
};

ROWS_TEST(schedules_are_stepped_as_they_are_made, spans)
{
    calls_job job;
    calls_open(&job, 2);
    LS_TEXT(event, 300,
            "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"%s\",\"at\":\"train.py:8\","
            "\"step\":0,\"holds\":[],\"span\":%d}",
            spans[_i].class, spans[_i].span);
    calls_event(&job, -1, event);
    for (int i = 0; i < 12; i++) {
        calls_step(&job, (i + 1) % spans[_i].every == 0
                             ? "F S B K P L{\"schedule\":0,\"optimizer\":0} Z"
                             : "F S B K P Z");
    }
    calls_end(&job, "order.schedule", spans[_i].code, spans[_i].words);
}

#define AVERAGE(what) "A{\"call\":\"average\",\"average\":0,\"what\":\"" what "\"}"

/* An average of weights on two ranks: the calls of rank 0 and those of rank 1. */
static const struct {
    const char *zero, *one;
    ls_verdict_code code;
    const char *words;
} averages[] = {
    {"F S B K P Z " AVERAGE("update") AVERAGE("forward"),
     "F S B K P Z " AVERAGE("update") AVERAGE("forward"), LS_PASS, "updated 4 times"},
    {"F S B K P Z " AVERAGE("update") AVERAGE("forward"), "F S B K P Z " AVERAGE("forward"),
     LS_FAIL, "updated on some ranks"},
    {"F S B K P Z "
     "A{\"call\":\"average\",\"average\":0,\"what\":\"update\",\"at\":\"ema.py:7\"} " AVERAGE(
         "forward"),
     "F S B K P Z " AVERAGE("forward"), LS_FAIL, "ema.py:7"},
    {"F S B K P Z " AVERAGE("update") AVERAGE("forward"), "F S B K P Z", LS_PASS, ""},
    {"F S B K P Z", "F S B K P Z", LS_SKIP, "no AveragedModel"},
};

ROWS_TEST(averages_are_kept_where_they_run, averages)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 4; i++) {
        calls_step_of(&job, 0, "", averages[_i].zero);
        calls_step_of(&job, 1, "", averages[_i].one);
    }
    calls_end(&job, "replicas.average", averages[_i].code, averages[_i].words);
}

/* ---- causes ---------------------------------------------------------------------------------- */

/* Passes of a step that come after its reduction: what the calls say of a wrong mean. */
static const struct {
    const char *calls, *words;
} late[] = {
    {"F b F{\"sync\":false} b{\"sync\":false,\"no_sync\":\"train.py:57\"} O Z", "train.py:57"},
    {"F b b{\"at\":\"train.py:22\"} O Z", "2 backward passes of 1 forwards"},
    {"F b b{\"at\":\"train.py:22\"} O Z", "train.py:22"},
};

ROWS_TEST(passes_after_the_reduction_are_named, late)
{
    static const char *const group[] = {"local", "reduced", "used"};
    static const double values[] = {2, 2.25, 2.25};
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, late[_i].calls);
    calls_step_of(&job, -1, "\"detail\":true,", late[_i].calls);
    write_samples(&job, 2, group, 3, values);
    calls_end(&job, "reduction.mean", LS_FAIL, late[_i].words);
}

TEST(a_schedule_of_one_rank_is_named)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step_of(&job, 0, "", "F b O L Z");
    calls_step_of(&job, 1, "", "F b O Z");
    calls_step_of(&job, 0, "\"lr\":0.05,", "F b O L Z");
    calls_step_of(&job, 1, "\"digest\":{\"param\":\"9\"},", "F b O Z");
    calls_judge(&job);
    calls_expect(&job, "replicas.step", LS_FAIL, "rank 0 alone steps its schedule");
    calls_expect(&job, "replicas.step", LS_FAIL, "train.py:27");
    calls_close(&job);
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Counts of batches move the digest of all buffers. */
TEST(statistics_are_told_from_counts)
{
    for (int still = 0; still < 2; still++) {
        calls_job job;
        calls_open(&job, 2);
        for (int i = 0; i < 4; i++) {
            LS_TEXT(members, 100, "\"statistics\":{\"0\":\"%d\"},", still ? 7 : i);
            calls_step_of(&job, -1, i == 2 ? "" : members, "F S B K P Z");
        }
        calls_end(&job, "mode.statistics", still ? LS_FAIL : LS_PASS,
                  still ? "after all of 2 detailed steps" : "moved in");
    }
}

/* ---- a step that never ended ----------------------------------------------------------------- */

/* What the module leaves in memory of a killed process. */
static void write_open(const calls_job *job, int rank, int step, const char *numbers)
{
    LS_TEXT(path, 200, "%s/open.rank%d", job->folder, rank);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "%10d\n%s", step, numbers);
    fputc('\0', f);
    fputs("0003 0003 ", f); /* of a longer step before it */
    fclose(f);
}

static void write_failure(const calls_job *job)
{
    LS_TEXT(path, 200, "%s/job.json", job->folder);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "{\"schema\":1,\"facts\":{\"world\":2},\"outcome\":{\"state\":\"failed\","
               "\"first_rank\":1,\"code\":1,\"signal\":0,\"seconds\":9,\"ranks\":[{\"rank\":0,"
               "\"code\":1,\"signal\":0},{\"rank\":1,\"code\":1,\"signal\":0}]}}\n");
    fclose(f);
}

static const struct {
    const char *zero, *one, *id;
    bool fails;
    const char *words;
} opens[] = {
    {"0001 0002 ", "0001 0001 ", "order.steps", true, "only some ranks make this backward"},
    {"0001 0002 0003 ", "0001 0002 0004 ", "order.collectives", true, "of 9 f32 (train.py:31)"},
    {"0001 0002 0003 0004 ", "0001 0002 0004 0003 ", "order.steps", true,
     "only some ranks make this collective"},
    {"0001 0002 0003 ", "0001 0002 ", "order.collectives", false, ""}, /* rank 1 died before it */
    {"0001 0002 0005 ", "0001 0002 0006 ", "order.collectives", true, "with root 1"},
    {"0001 0002 ", "0001 ", "order.steps", false, ""},
    {"", "", "order.steps", false, ""},
};

ROWS_TEST(open_steps_are_compared, opens)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 3; i++) {
        calls_step(&job, "F S B K P A Z");
    }
    calls_event(&job, -1,
                "{\"event\":\"call\",\"number\":1,\"call\":\"forward\",\"model\":0,"
                "\"at\":\"train.py:20\"}");
    calls_event(&job, -1,
                "{\"event\":\"call\",\"number\":2,\"call\":\"backward\",\"sync\":true,"
                "\"at\":\"train.py:21\"}");
    for (int n = 3; n < 5; n++) {
        LS_TEXT(line, 300,
                "{\"event\":\"call\",\"number\":%d,\"call\":\"collective\",\"op\":\"all_reduce\","
                "\"elements\":%d,\"type\":\"f32\",\"reduce\":\"sum\",\"at\":\"train.py:%d\"}",
                n, n == 3 ? 8 : 9, n == 3 ? 30 : 31);
        calls_event(&job, -1, line);
    }
    for (int n = 5; n < 7; n++) {
        LS_TEXT(line, 300,
                "{\"event\":\"call\",\"number\":%d,\"call\":\"collective\",\"op\":\"broadcast\","
                "\"elements\":8,\"type\":\"f32\",\"root\":%d,\"at\":\"train.py:33\"}",
                n, n - 5);
        calls_event(&job, -1, line);
    }
    write_open(&job, 0, 4, opens[_i].zero);
    write_open(&job, 1, 4, opens[_i].one);
    write_failure(&job);
    calls_end(&job, opens[_i].id, opens[_i].fails ? LS_FAIL : LS_PASS, opens[_i].words);
}

TEST_MAIN("observe_order", .timeout_s = 120)
