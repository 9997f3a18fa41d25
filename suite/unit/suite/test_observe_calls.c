/* The rules of precision, modes, the order of calls and speed on invented jobs: right practices
 * pass, mistakes are caught with their cause, and where nothing shows it they say so. */
#include <math.h>

#include "kernels/core/rng.h"
#include "observe_calls.h"
#include "reference/files/safetensors.h"
#include "suite/commands/observe_parts.h"
#include "suite/unit/run_suite.h"

/* ---- precision ------------------------------------------------------------------------------- */

/* Calls of each step, the rule, the verdict, words of the finding. */
static const struct {
    const char *calls, *id;
    ls_verdict_code code;
    const char *words;
} precise[] = {
    {"F S B K P Z", "precision.autocast", LS_PASS, "6 of 6 training forwards"},
    {"F S B K P Z", "precision.products", LS_PASS, "6 of 6 training forwards gave half"},
    {"F S B K P Z", "precision.loss", LS_PASS, "6 of 6 losses in f32"},
    {"F S B K P Z", "precision.params", LS_PASS, "3 trainable parameters in f32"},
    {"F{\"autocast\":null,\"type\":\"f32\"} b O Z", "precision.autocast", LS_SKIP, "in f32"},
    {"F{\"autocast\":\"bf16\",\"type\":\"bf16\"} b O Z", "precision.autocast", LS_PASS, "6 of 6"},
    {"F b O Z", "precision.autocast", CALLS_HINT, "f16 without a loss scale"},
    {"F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", "precision.autocast", LS_WEAK,
     "could not be seen"},
    {"F{\"autocast\":null} S B K P Z", "precision.autocast", LS_PASS, "opens autocast itself"},
    {"F{\"type\":\"f32\"} S B K P Z", "precision.products", LS_UNSUPPORTED, "computed again"},
    {"F{\"sync\":false} S B F{\"autocast\":null} S B K P Z", "precision.autocast", LS_FAIL,
     "one of the two branches"},
    {"F S B{\"autocast\":\"f16\"} K P Z", "precision.autocast", LS_PASS, "before backward()"},
    {"F b O{\"stale_casts\":false} Z", "precision.autocast", CALLS_HINT, "without a loss scale"},
    {"F b O{\"stale_casts\":true} Z", "precision.autocast", LS_FAIL, "stays open over steps"},
    {"F S{\"type\":\"f16\"} B K P Z", "precision.loss", LS_FAIL, "from f16 outputs"},
    {"F S{\"type\":\"f16\",\"plain\":true} B K P Z", "precision.loss", LS_WEAK, "the loss is f16"},
    {"F{\"autocast\":\"bf16\"} b{\"type\":\"bf16\"} O Z", "precision.loss", LS_PASS, "in f32"},
};

ROWS_TEST(precision_is_judged, precise)
{
    calls_job job;
    calls_open(&job, 2);
    calls_repeat(&job, 3, precise[_i].calls);
    calls_end(&job, precise[_i].id, precise[_i].code, precise[_i].words);
}

/* Under autocast parameters are to be in f32; all in half, or with an optimizer that may hold
 * copies, is a practice. */
TEST(models_cast_under_autocast_are_weak)
{
    static const struct {
        const char *autocast, *kind, *rule;
        ls_verdict_code code;
        const char *words;
    } one[] = {
        {"\"bf16\"", "torch.optim.adamw.AdamW", "adamw", LS_WEAK,
         "cast to bf16, not by autocast alone: an update below 1/256 of a value is lost, and "
         "moments are in bf16 | train.py:3"},
        {"null", "torch.optim.adamw.AdamW", "adamw", LS_PASS, "as the job asked"},
        {"\"bf16\"", "torchao.optim.adam.AdamW", "", LS_PASS, "as the job asked"},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        calls_job job;
        calls_open_with(&job, 2,
                        "\"cast_at\":\"train.py:3\","
                        "\"params\":[[\"fc.weight\",8,\"bf16\",true]],");
        LS_TEXT(optimizer, 300,
                "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"%s\",\"rule\":\"%s\","
                "\"groups\":[{\"params\":[\"fc.weight\"],\"lr\":0.1}]}",
                one[i].kind, one[i].rule);
        calls_event(&job, -1, optimizer);
        LS_TEXT(step, 100, "F{\"autocast\":%s,\"type\":\"bf16\"} b O Z", one[i].autocast);
        calls_repeat(&job, 2, step);
        calls_end(&job, "precision.params", one[i].code, one[i].words);
    }
}

static const char half[] = "\"params\":[[\"fc.weight\",8,\"f16\",true]],";

TEST(half_models_are_named)
{
    calls_job job;
    calls_open_with(&job, 2, half);
    calls_repeat(&job, 2, "F{\"autocast\":null} b{\"type\":\"f16\"} O Z");
    calls_judge(&job);
    calls_expect(&job, "precision.params", LS_WEAK, "held in f16 without f32 copies");
    calls_expect(&job, "precision.loss", LS_WEAK, "the loss is f16");
    calls_close(&job);
    calls_open_with(&job, 2, half);
    calls_event(&job, -1, "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true}");
    calls_step(&job, "F S B K P Z");
    calls_end(&job, "precision.params", LS_FAIL, "Attempting to unscale FP16 gradients");
}

/* The gradient of a step again in FP64, and what the job had: `error` relative to it. */
static void write_again(const calls_job *job, double error)
{
    LS_TEXT(folder, 100, "%s/samples", job->folder);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    for (int k = 0; k < job->world; k++) {
        static const char *const name[] = {"fc.weight", "fc.bias", "head.weight"};
        ls_safetensors_writer *w = NULL;
        LS_TEXT(path, 200, "%s/step000002.rank%d.safetensors", folder, k);
        ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
        for (int t = 0; t < 3; t++) {
            double exact[4], own[4];
            for (int i = 0; i < 4; i++) {
                exact[i] = ls_rng_normal(1, (uint64_t)t, (uint64_t)i);
                own[i] = exact[i] * (1 + error * ls_rng_normal(2, (uint64_t)t, (uint64_t)i));
            }
            ls_shape shape = {1, {4}};
            LS_TEXT(one, 64, "again/f64/%s", name[t]);
            LS_TEXT(two, 64, "again/local/%s", name[t]);
            ck_assert_int_eq(ls_safetensors_add_copy(w, one, LS_F64, &shape, exact), LS_OK);
            ck_assert_int_eq(ls_safetensors_add_copy(w, two, LS_F64, &shape, own), LS_OK);
        }
        ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
    }
}

/* What gradients show: errors of f32 and of half products. */
static const struct {
    const char *calls;
    double error;
    const char *id;
    ls_verdict_code code;
    const char *words;
} shown[] = {
    {"F{\"type\":\"f32\"} S B K P Z", 1e-3, "precision.products", LS_PASS, "as half products"},
    {"F{\"type\":\"f32\"} S B K P Z", 1e-6, "precision.products", LS_FAIL, "leaves autocast"},
    {"F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", 1e-3, "precision.autocast", LS_PASS,
     "opens autocast itself"},
    {"F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", 1e-6, "precision.autocast", LS_FAIL,
     "autocast is missing"},
};

ROWS_TEST(gradients_show_the_arithmetic, shown)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, shown[_i].calls);
    calls_step_of(&job, -1, "\"detail\":true,", shown[_i].calls);
    write_again(&job, shown[_i].error);
    calls_end(&job, shown[_i].id, shown[_i].code, shown[_i].words);
}

/* ---- modes ----------------------------------------------------------------------------------- */

static const struct {
    const char *first, *then, *id;
    ls_verdict_code code;
    const char *words;
} modes[] = {
    {"F S B K P E F{\"grad\":false,\"training\":false} T Z", "F S B K P Z", "mode.training",
     LS_PASS, "training mode in"},
    {"F S B K P E F{\"grad\":false,\"training\":false} Z", "F{\"training\":false} S B K P Z",
     "mode.training", LS_FAIL, "no model.train() after it"},
    {"E F{\"grad\":false,\"training\":false} F{\"training\":false} S B K P Z",
     "F{\"training\":false} S B K P Z", "mode.training", LS_FAIL, "train.py:40"},
    {"E F{\"training\":false} T F S B K P Z", "F S B K P Z", "mode.training", LS_PASS,
     "training mode in"}, /* a validation with autograd on */
    {"E F{\"training\":false,\"input_grad\":true} B T F S B K P Z",
     "E F{\"training\":false,\"input_grad\":true} B T F S B K P Z", "mode.training", LS_PASS,
     "training mode in"}, /* an attack, for the gradient of the input */
    {"F{\"training\":false} S B K P Z", "F{\"training\":false} S B K P Z", "mode.training", LS_WEAK,
     "frozen norms"},
    {"F{\"eval_norms\":2} S B K P Z", "F{\"eval_norms\":2} S B K P Z", "mode.training", LS_PASS,
     "(frozen)"},
    {"F S B K P Z", "F{\"eval_norms\":2} S B K P Z", "mode.training", LS_PASS,
     "not frozen on purpose"},
    {"F S B K P Z", "F S B K P Z", "mode.statistics", LS_PASS, "moved in 3 of 3"},
    {"F{\"eval_norms\":2} S B K P Z", "F{\"eval_norms\":2} S B K P Z", "mode.statistics", LS_SKIP,
     "no training forward"},
};

ROWS_TEST(modes_are_judged, modes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_repeat(&job, 2, modes[_i].first);
    calls_repeat(&job, 2, modes[_i].then);
    calls_end(&job, modes[_i].id, modes[_i].code, modes[_i].words);
}

/* A network without dropout and batch norms is the same in both modes. */
TEST(eval_mode_without_effect_passes)
{
    calls_job job;
    calls_open_with(&job, 2, "\"bn\":0,\"dropout\":0,\"buffers\":[],");
    calls_event(
        &job, -1,
        "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"]}]}");
    calls_step(&job, "F b O E F{\"grad\":false,\"training\":false} Z");
    calls_step(&job, "F{\"training\":false} b O Z");
    calls_judge(&job);
    calls_expect(&job, "mode.training", LS_PASS, "training forwards");
    calls_expect(&job, "mode.statistics", LS_SKIP, "no training forward");
    calls_close(&job);
}

TEST(statistics_that_stand_are_caught)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 3; i++) {
        calls_step_of(&job, -1, "\"digest\":{\"param\":\"1\",\"buffer\":\"9\"},", "F S B K P Z");
    }
    calls_end(&job, "mode.statistics", LS_FAIL, "running statistics do not move");
}

TEST(a_lost_conversion_is_caught)
{
    static const char convert[] = "{\"event\":\"convert\",\"converted\":2,\"at\":\"train.py:4\"}";
    static const char trained[] =
        "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"]}]}";
    calls_job job;
    calls_expect_of_event(convert, "F S B K P Z", "mode.sync_bn", LS_FAIL,
                          "another model was converted");
    calls_expect_of_event("{\"event\":\"other\"}", "F S B K P Z", "mode.sync_bn", LS_SKIP,
                          "not called");
    calls_open_with(&job, 2, "\"bn\":0,\"sync_bn\":2,");
    calls_event(&job, -1, convert);
    calls_event(&job, -1, trained);
    calls_step(&job, "F{\"autocast\":null,\"type\":\"f32\"} b O Z");
    calls_judge_clean(&job);
    calls_expect(&job, "mode.sync_bn", LS_PASS, "2 SyncBatchNorm");
    calls_close(&job);
}

/* Models without parameters, or without what the rule is about, and buffers that stay a rank's. */
static const struct {
    const char *model, *id;
    ls_verdict_code code;
    const char *words;
} empty[] = {
    {"", "order.zero", LS_PASS, "between 2 steps"},
    {"\"params\":[],", "order.zero", LS_UNSUPPORTED, "0 tensors"},
    {"\"params\":[],", "precision.params", LS_WEAK, "nothing was compared: 0 trainable"},
    {"\"bn\":0,", "mode.sync_bn", LS_WEAK, "nothing was compared: 0 SyncBatchNorm"},
    {"", "replicas.buffers", LS_SKIP, "broadcast_buffers is off"},
    {"\"broadcast_buffers\":true,", "replicas.buffers", LS_UNSUPPORTED, "no model has digests"},
};

ROWS_TEST(nothing_to_compare_is_no_pass, empty)
{
    calls_job job;
    calls_open_with(&job, 2, empty[_i].model);
    calls_event(&job, -1, "{\"event\":\"convert\",\"converted\":2,\"at\":\"train.py:4\"}");
    calls_event(
        &job, -1,
        "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"]}]}");
    calls_repeat(&job, 2, "F b O Z");
    calls_end(&job, empty[_i].id, empty[_i].code, empty[_i].words);
}

/* ---- order ----------------------------------------------------------------------------------- */

static const struct {
    const char *zero, *one, *id;
    ls_verdict_code code;
    const char *words;
} orders[] = {
    {"F S B K P A Z", "F S B K P A Z", "order.collectives", LS_PASS, "3 collectives"},
    {"F S B K P Z", "F S B K P Z", "order.collectives", LS_SKIP, "no collective"},
    {"F S B K P A A Z", "F S B K P A Z", "order.collectives", LS_WEAK, "rank's own"},
    {"F S B K P A Z", "F S B K P A{\"elements\":8} Z", "order.collectives", LS_WEAK, "of 8 f32"},
    {"F S B K P A Z", "F S B K P A{\"elements\":8} Z", "order.collectives", LS_WEAK,
     "in another order"},
    {"F S B K P A Z", "F S B K P A{\"elements\":8,\"at\":\"train.py:29\"} Z", "order.collectives",
     LS_WEAK, "rank's own"},
    {"F S B K P A{\"op\":\"send\"} Z", "F S B K P A{\"op\":\"recv\"} Z", "order.collectives",
     LS_SKIP, "no collective"},
    {"F S B K P A{\"op\":\"all_gather\"} Z", "F S B K P A{\"op\":\"all_gather\",\"elements\":8} Z",
     "order.collectives", LS_PASS, "3 collectives"},
    {"F S B K P Z", "F S B K P Z", "order.steps", LS_PASS, "3 steps on each of 2"},
    {"F S B K P L Z", "F S B K P L Z", "order.schedule", LS_PASS, "3 calls"},
    {"F S B k P L Z", "F S B k P L Z", "order.schedule", LS_PASS, "3 skipped steps"},
    {"F S B L K P Z", "F S B L K P Z", "order.schedule", LS_FAIL, "before optimizer.step()"},
    {"F S B L{\"class\":\"ReduceLROnPlateau\"} K P Z", "F S B K P Z", "order.schedule", LS_PASS,
     ""},
    {"F S B K P Z", "F S B K P Z", "order.schedule", LS_SKIP, "no schedule"},
    {"F S B K P Z", "F S B K P Z", "order.zero", LS_PASS, "3 steps"},
    {"Z F S B K P", "F Z S B K P", "order.zero", LS_PASS, "3 steps"},
    {"F{\"left\":0} S B K P", "F{\"left\":0} S B K P", "order.zero", LS_PASS, "3 steps"},
    {"F S B K P", "F S B K P", "order.zero", LS_WEAK, "zero_grad() is missing"},
    {"F S B Z K P", "F S B Z K P", "order.zero", LS_FAIL, "between backward and step"},
    {"F S B K P N Z", "F S B K P N Z", "order.clip", LS_FAIL, "after the step has no effect"},
    {"F S B K P N{\"limit\":null} Z", "F S B U N K P Z", "order.clip", LS_PASS, "3 calls"},
    {"F S B U N{\"norm\":0} K P Z", "F S B U N{\"norm\":0} K P Z", "order.clip", LS_FAIL,
     "norm of 0"},
    {"F S B K P Z", "F S B K P Z", "order.clip", LS_SKIP, "not clipped"},
};

ROWS_TEST(orders_are_judged, orders)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 3; i++) {
        calls_step_of(&job, 0, "", orders[_i].zero);
        calls_step_of(&job, 1, "", orders[_i].one);
    }
    calls_end(&job, orders[_i].id, orders[_i].code, orders[_i].words);
}

/* A forward of a detailed step finds no gradient that is not zero: the script clears them by means
 * that no call shows, and later steps are right, too. */
TEST(clearing_by_hand_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F{\"left\":0} S B K P");
    calls_step(&job, "F{\"left\":0} S B K P");
    calls_repeat(&job, 3, "F S B K P");
    calls_judge_clean(&job);
    calls_expect(&job, "order.zero", LS_PASS, "some by hand");
    calls_close(&job);
}

/* Samples of step 2: the mean of the ranks' gradients, and `left` of the step before on top. */
static void write_gradients(const calls_job *job, float left)
{
    LS_TEXT(folder, 100, "%s/samples", job->folder);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    for (int k = 0; k < job->world; k++) {
        ls_safetensors_writer *w = NULL;
        LS_TEXT(path, 200, "%s/step000002.rank%d.safetensors", folder, k);
        ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
        double local[2] = {1 + 2 * k, -4};
        float reduced[2] = {2 + left, -4 + left};
        ls_shape shape = {1, {2}};
        ck_assert_int_eq(ls_safetensors_add_copy(w, "local/fc.bias", LS_F64, &shape, local), LS_OK);
        ck_assert_int_eq(ls_safetensors_add_copy(w, "reduced/fc.bias", LS_F32, &shape, reduced),
                         LS_OK);
        ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
    }
}

TEST(samples_show_what_was_left)
{
    for (int left = 0; left < 3; left++) {
        calls_job job;
        calls_open(&job, 2);
        calls_step(&job, "F S B K P");
        calls_step_of(&job, -1, "\"detail\":true,", "F S B K P");
        calls_repeat(&job, 2, "F S B K P");
        write_gradients(&job, left < 2 ? (float)left : INFINITY);
        calls_end(&job, "order.zero", left > 0 ? LS_FAIL : LS_PASS,
                  left > 0 ? "zero_grad() is missing" : "some by hand");
    }
}

/* A schedule that is wound forward before training, as jobs do that go on. */
TEST(a_schedule_wound_forward_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "L{\"at\":\"train.py:15\",\"times\":40} F S B K P L Z");
    calls_step(&job, "F S B K P L Z");
    calls_judge_clean(&job);
    calls_expect(&job, "order.schedule", LS_PASS, "42 calls");
    calls_close(&job);
}

/* What the launcher leaves of a job that failed. */
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

TEST(a_job_that_hangs_names_the_difference)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B K P A Z");
    calls_step_of(&job, 0, "", "F S B K P A Z");
    calls_step_of(&job, 1, "", "F S B K P Z");
    calls_step_of(&job, 0, "", "F S B K P A Z");
    write_failure(&job);
    calls_judge(&job);
    calls_expect(&job, "order.collectives", LS_FAIL, "wait for it for ever");
    calls_expect(&job, "order.steps", LS_FAIL, "rank 1 ended after step 2, rank 0 after step 3");
    calls_close(&job);
}

TEST(uneven_inputs_are_named)
{
    calls_drawing zero = {"RandomSampler", "\"built\":\"train.py:12\",", 20, 20, 0, 1, 3};
    calls_drawing one = {"RandomSampler", "", 24, 24, 0, 1, 3};
    for (int fails = 0; fails < 3; fails++) {
        calls_job job;
        calls_open(&job, 2);
        calls_step(&job, "F S B K P Z");
        if (fails < 2) { /* else rank 1 did not end its second step */
            calls_step_of(&job, 1, "", "F S B K P Z");
        }
        calls_write_pass(&job, 0, &zero);
        calls_write_pass(&job, 1, &one);
        if (fails) {
            write_failure(&job);
        }
        calls_judge(&job);
        calls_expect(&job, "order.steps", fails ? LS_FAIL : LS_PASS,
                     fails ? "uneven inputs: rank 0 drew 20" : "as with join");
        calls_expect(&job, "order.steps", fails ? LS_FAIL : LS_PASS, fails ? "train.py:12" : "");
        calls_close(&job);
    }
}

/* The second of them is named, and only where both step. */
/* Within join() a rank whose data have ended makes no steps. How a job ended that a scheduler
 * started, only its ranks say. */
TEST(ranks_that_make_fewer_steps_are_not_compared)
{
    const char *other = "\"digest\":{\"param\":\"77\",\"state\":\"2\",\"buffer\":\"3\"},";
    calls_job job;
    for (int uneven = 0; uneven < 2; uneven++) {
        calls_open(&job, 2);
        calls_step(&job, "F S B K P Z");
        calls_step_of(&job, 1, other, "F S B K P Z");
        calls_step_of(&job, 0, "", "F S B K P Z");
        if (uneven) {
            calls_step_of(&job, 0, "", "F S B K P Z");
        }
        calls_judge(&job);
        ck_assert_int_eq(calls_find(&job, "replicas.step")->verdict.code,
                         uneven ? LS_UNSUPPORTED : LS_FAIL);
        calls_close(&job);
    }
}

TEST(two_optimizers_of_one_parameter_are_weak)
{
    for (int both = 0; both < 2; both++) {
        calls_job job;
        calls_open(&job, 2);
        calls_event(&job, -1,
                    "{\"event\":\"optimizer\",\"optimizer\":1,\"class\":\"torch.optim.adam.Adam\","
                    "\"rule\":\"adam\",\"at\":\"train.py:9\",\"groups\":[{\"params\":["
                    "\"head.weight\"]}]}");
        calls_repeat(&job, 3, both ? "F b O O{\"optimizer\":1} Z" : "F b O Z");
        calls_end(&job, "optimizer.covered", both ? LS_WEAK : LS_PASS,
                  both ? "each step moves them twice, by one gradient | train.py:9" : "");
    }
}

TEST(closures_are_not_judged_on_clearing)
{
    calls_expect_of_event("{\"event\":\"attach\",\"error\":\"the closure of a LBFGS computes\"}",
                          "O F b", "order.zero", LS_UNSUPPORTED, "closure");
}

/* ---- speed ----------------------------------------------------------------------------------- */

TEST(speed_is_of_the_steady_steps)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step_of(&job, -1, "\"ms\":{\"total\":5000},", "F S B K P Z");
    calls_repeat(&job, 1, "F S B K P Z");
    for (int i = 0; i < 4; i++) {
        calls_step_of(&job, 0, "", "F S B K P Z");
        calls_step_of(&job, 1,
                      "\"ms\":{\"total\":18,\"data\":4,\"forward\":2,\"backward\":2,"
                      "\"optimizer\":1,\"instrument\":2},",
                      "F S B K P Z");
    }
    calls_event(&job, 1, "{\"event\":\"cost\",\"own_ms\":4,\"run_ms\":40,\"share\":0.1}");
    calls_judge(&job);
    cJSON *seen = ls_observe_summary_make(job.trace);
    const cJSON *speed = cJSON_GetObjectItem(seen, "speed");
    ck_assert_int_eq(ls_json_int(speed, "ranks", 0), 2);
    ck_assert_int_eq(ls_json_int(speed, "steps_measured", 0), 4);
    ck_assert_int_eq(ls_json_int(speed, "slowest_rank", -1), 1);
    ck_assert_double_eq(ls_json_number(speed, "samples_per_s", 0), 750); /* 4 in 8 ms and 16 */
    ck_assert_double_eq(ls_json_number(speed, "step_ms_p50", 0), 16);
    ck_assert_double_eq(ls_json_number(speed, "data_share", 0), 0.25);
    ck_assert_double_eq(ls_json_number(speed, "optimizer_share", 0), 0.0625);
    ck_assert_double_eq(ls_json_number(speed, "slowest_own_ms", 0), 7);
    const cJSON *cost = cJSON_GetObjectItem(seen, "cost");
    ck_assert_double_eq(ls_json_number(cost, "share", 0), 0.1);
    cJSON_Delete(seen);
    calls_close(&job);
}

TEST(short_jobs_have_no_speed)
{
    calls_job job;
    calls_open(&job, 1);
    calls_repeat(&job, 2, "F S B K P Z");
    calls_judge(&job);
    cJSON *seen = ls_observe_summary_make(job.trace);
    ck_assert_ptr_null(cJSON_GetObjectItem(seen, "speed"));
    cJSON_Delete(seen);
    calls_close(&job);
}

TEST_MAIN("observe_calls", .timeout_s = 120)
