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
static const calls_row precise[] = {
    {"3x F S B K P Z", "precision.autocast", LS_PASS, "6 of 6 training forwards"},
    {"3x F S B K P Z", "precision.products", LS_PASS, "6 of 6 training forwards gave half"},
    {"3x F S B K P Z", "precision.loss", LS_PASS, "6 of 6 losses in f32"},
    {"3x F S B K P Z", "precision.params", LS_PASS, "3 trainable parameters in f32"},
    {"3x F{\"autocast\":null,\"type\":\"f32\"} b O Z", "precision.autocast", LS_SKIP, "in f32"},
    {"3x F{\"autocast\":\"bf16\",\"type\":\"bf16\"} b O Z", "precision.autocast", LS_PASS,
     "6 of 6"},
    {"3x F b O Z", "precision.autocast", CALLS_HINT,
     "f16 without a loss scale .. 6 training forwards under f16 autocast, and no enabled"},
    {"3x F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", "precision.autocast", LS_WEAK,
     "could not be seen"},
    {"3x F{\"autocast\":null} S B K P Z", "precision.autocast", LS_PASS, "opens autocast itself"},
    {"3x F{\"type\":\"f32\"} S B K P Z", "precision.products", LS_UNSUPPORTED, "computed again"},
    {"3x F{\"sync\":false} S B F{\"autocast\":null} S B K P Z", "precision.autocast", LS_FAIL,
     "one of the two branches"},
    {"3x F S B{\"autocast\":\"f16\"} K P Z", "precision.autocast", LS_PASS, "before backward()"},
    {"3x F b O{\"stale_casts\":false} Z", "precision.autocast", CALLS_HINT, "without a loss scale"},
    {"3x F b O{\"stale_casts\":true} Z", "precision.autocast", LS_FAIL, "stays open over steps"},
    {"3x F S{\"type\":\"f16\"} B K P Z", "precision.loss", LS_FAIL, "from f16 outputs"},
    {"3x F S{\"type\":\"f16\",\"plain\":true} B K P Z", "precision.loss", LS_WEAK,
     "the loss is f16"},
    {"3x F{\"autocast\":\"bf16\"} b{\"type\":\"bf16\"} O Z", "precision.loss", LS_PASS,
     "0 of 6 losses in f32 .. compute the loss in f32"},
    {"2x F S B K P Z; F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", "precision.autocast",
     LS_PASS, "4 of 6 training forwards under autocast |  |  | "},
    {"F S B K P Z; 2x F S B{\"autocast\":\"f16\",\"at\":\"train.py:33\"} K P Z; F S "
     "B{\"autocast\":\"f16\"} K "
     "P Z",
     "precision.autocast", LS_PASS, "train.py:33 | end the autocast region"},
    {"3x F{\"sync\":false} S B F{\"autocast\":null,\"at\":\"train.py:52\"} S B K P Z",
     "precision.autocast", LS_FAIL,
     "in no_sync() run under autocast, those outside it do not .. train.py:52"},
    {"3x F{\"sync\":false,\"autocast\":null,\"at\":\"train.py:51\"} S B F S B K P Z",
     "precision.autocast", LS_FAIL,
     "outside no_sync() run under autocast, those in it do not .. train.py:51"},
    {"F{\"sync\":false} S B F S B K P Z; 2x F{\"sync\":false,\"autocast\":null} S B F S B K P Z",
     "precision.autocast", LS_PASS, "8 of 12"},
    {"F{\"sync\":false} S B F S B K P Z; 2x F{\"sync\":false} S B F{\"autocast\":null} S B K P Z",
     "precision.autocast", LS_PASS, "8 of 12"},
    {"2x F{\"sync\":false,\"autocast\":null} S B K P Z; 2x F S B K P Z", "precision.autocast",
     LS_PASS, "4 of 8"},
    {"2x F b O Z; 0: F b O Z; 1: F b O{\"stale_casts\":true,\"at\":\"train.py:34\"} Z",
     "precision.autocast", LS_FAIL, "1 of 6 steps are taken within .. train.py:34"},
    {"2x F S B K P Z; F{\"type\":\"f32\"} S B K P Z", "precision.products", LS_PASS, "4 of 6"},
    {"2x F S B K P Z; 0: F S B K P Z; 1: F S{\"type\":\"f16\",\"at\":\"train.py:35\"} B K P Z",
     "precision.loss", LS_FAIL, "rank 1, step 3: the loss is f16, as 1 of 6 losses are .. :35"},
    {"3x F S{\"type\":\"f16\",\"plain\":true} S{\"type\":\"f16\"} B K P Z", "precision.loss",
     LS_FAIL, "12 of 12"},
    {"3x F S B{\"type\":\"f16\"} K P Z", "precision.loss", LS_PASS, "6 of 6 losses in f32"},
    {"3x F{\"autocast\":\"bf16\"} b{\"type\":\"f16\",\"loss\":null} O Z", "precision.loss", LS_WEAK,
     "no backward of a scalar"},
};

CALLS_TEST(precision_is_judged, precise)

/* Under autocast parameters are to be in f32; all in half, or with an optimizer that may hold
 * copies, is a practice. */
#define CAST(class, rule, autocast)                                                                \
    "!\"cast_at\":\"train.py:3\",\"params\":[[\"fc.weight\",8,\"bf16\",true]],;"                   \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"" class "\",\"rule\":\"" rule "\","      \
                                                                  "\"groups\":[{\"params\":[\"fc." \
                                                                  "weight\"],\"lr\":0.1}]};"       \
                                                                  "2x F{\"autocast\":" autocast    \
                                                                  ",\"type\":\"bf16\"} b O Z"
#define MIXED                                                                                     \
    "!\"params\":[[\"a\",8,\"f16\",false],[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,\"f16\"," \
    "true],[\"b\",2,\"f32\",true"                                                                 \
    "]],;"
#define HALF "!\"params\":[[\"fc.weight\",8,\"f16\",true]],;"

static const calls_row casts[] = {
    {CAST("torch.optim.adamw.AdamW", "adamw", "\"bf16\""), "precision.params", LS_WEAK,
     "cast to bf16, not by autocast alone: an update below 1/256 of a value is lost, and moments "
     "are in bf16 | train.py:3"},
    {CAST("torch.optim.adamw.AdamW", "adamw", "null"), "precision.params", LS_PASS,
     "as the job asked"},
    {CAST("torchao.optim.adam.AdamW", "", "\"bf16\""), "precision.params", LS_PASS,
     "as the job asked"},
    {HALF "2x F{\"autocast\":null} b{\"type\":\"f16\"} O Z", "precision.params", LS_WEAK,
     "held in f16 without f32 copies"},
    {HALF "2x F{\"autocast\":null} b{\"type\":\"f16\"} O Z", "precision.loss", LS_WEAK,
     "the loss is f16"},
    {HALF "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true}; F S B K P Z", "precision.params",
     LS_FAIL,
     "1 of 1 trainable parameters are f16 under a GradScaler: fc.weight .. Attempting to unscale"},
    {MIXED "2x F b O Z", "precision.params", LS_WEAK, "1 of 3 trainable parameters are f16"},
    {MIXED "2x F b O Z", "precision.autocast", CALLS_HINT, "f16 without a loss scale"},
    {MIXED "2x F b{\"type\":\"f16\"} O Z", "precision.loss", LS_FAIL, "4 of 4"},
};

CALLS_TEST(casts_are_judged, casts)

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
    /* 0.9883 times these: just below the limit, and just above it */
    {"F{\"type\":\"f32\"} S B K P Z", 1.013e-5, "precision.products", LS_PASS, "as half products"},
    {"F{\"type\":\"f32\"} S B K P Z", 1.011e-5, "precision.products", LS_FAIL, "leaves autocast"},
    {"F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", 1.013e-5, "precision.autocast", LS_PASS,
     "opens autocast itself"},
    {"F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", 1.011e-5, "precision.autocast", LS_FAIL,
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

#define LOOKS "F{\"grad\":false,\"training\":false} "
#define EVAL "F{\"training\":false} S B K P Z"
#define LEARNED "F S B K P Z"
#define LEARNS LEARNED "; "

/* Another model, which its own optimizer steps; then the first one predicts, with autograd. */
#define SECOND                                                                                    \
    "{\"event\":\"model\",\"model\":1,\"kind\":\"plain\",\"name\":\"New\",\"params\":[[\"m1.w\"," \
    "4,"                                                                                          \
    "\"f32\",true]]}; "                                                                           \
    "{\"event\":\"optimizer\",\"optimizer\":1,\"groups\":[{\"params\":[\"m1.w\"]}]}; "
#define PREDICTS(optimizer) \
    "2x (E F{\"training\":false} F{\"model\":1} b O{\"optimizer\":" optimizer "} Z)"

#define EVAL_ON_ONE(times)                                                          \
    "0: F S B K P Z; 1: F S B K P E F{\"grad\":false,\"training\":false} Z; " times \
    "x (0: F S B K P Z; 1: F{\"training\":false} S B K P Z)"

static const calls_row modes[] = {
    {SECOND "2x F S B K P Z; " PREDICTS("1"), "mode.training", NO_HINT, ""},
    {SECOND "2x F S B K P Z; " PREDICTS("0"), "mode.training", CALLS_HINT, "2 of 4"},
    {"2x F S B K P E F{\"grad\":false,\"training\":false} T Z; 2x F S B K P Z", "mode.training",
     LS_PASS, "training mode in 4 training forwards |  |  | "},
    {"2x F S B K P E F{\"grad\":false,\"training\":false} Z; 2x F{\"training\":false} S B K P Z",
     "mode.training", LS_FAIL,
     "rank 0, from step 3 on: Net is trained in eval mode (2 of 4 training forwards) | "
     "model.eval() for the validation, and no model.train() after it .. | train.py:40 | call"},
    {"2x F S B K P Z; 2x E F{\"training\":false} S B K P Z", "mode.training", CALLS_HINT,
     "rank 0, from step 3 on: Net is trained in eval mode (2 of 4 training forwards)"},
    {"F S B K P Z; E T F S B K P Z; F{\"training\":false} S B K P Z", "mode.training", LS_WEAK,
     "rank 0: Net is trained in eval mode (1 of 3 training forwards) without a validation before"},
    {"E F{\"training\":false} S B K P Z; 2x F{\"training\":false} S B K P Z", "mode.training",
     LS_WEAK, "(3 of 3 training forwards)"},
    {"0: F S B K P Z; 1: E F{\"grad\":false,\"training\":false} F{\"training\":false} S B K P Z",
     "mode.training", CALLS_HINT, "rank 1, from step 1 on: Net is trained in eval mode (1 of 1"},
    /* on one rank alone, in as many forwards */
    {EVAL_ON_ONE("4"), "mode.training", LS_FAIL,
     "rank 1, from step 2 on: Net is trained in eval mode (4 of 5"},
    {EVAL_ON_ONE("3"), "mode.training", CALLS_HINT, "(3 of 4"},
    {EVAL_ON_ONE("4") "; 0: F S B K P Z; 1: F S B K P Z F S B", "mode.training", CALLS_HINT,
     "(4 of 7"},
    {"2x E F{\"grad\":false,\"training\":false} F{\"training\":false} S B K P Z; 2x "
     "F{\"training\":false} S B K P Z",
     "mode.training", CALLS_HINT, "train.py:40"},
    /* each validation: never left; left some steps later; behind one step; once, at the end */
    {LEARNS "2x E " LOOKS EVAL, "mode.training", LS_FAIL,
     "from step 2 on: Net is trained in eval mode (2 of 3 .. | train.py:40"},
    {"2x {\"event\":\"validated\",\"model\":0}; " LEARNS "2x E " EVAL, "mode.training", LS_FAIL,
     ""},
    {"2x (" LEARNS "E " LOOKS EVAL "; " EVAL " T); " LEARNED, "mode.training", LS_FAIL,
     "(4 of 7 training"},
    {"2x (" LEARNS "E " LOOKS EVAL " T); " LEARNED, "mode.training", CALLS_HINT,
     "(2 of 5 training"},
    {LEARNS "E " LOOKS "T " LEARNS "2x E " LOOKS EVAL, "mode.training", CALLS_HINT, ""},
    {"2x E F{\"training\":false} T F S B K P Z; 2x F S B K P Z", "mode.training", LS_PASS,
     "training mode in"}, /* a validation with autograd on */
    {"4x E F{\"training\":false,\"input_grad\":true} B T F S B K P Z", "mode.training", LS_PASS,
     "training mode in"}, /* an attack, for the gradient of the input */
    {"4x F{\"training\":false} S B K P Z", "mode.training", LS_WEAK,
     "meant in fine-tuning with frozen norms |  | train.py:20 | if it is not meant"},
    {"4x F{\"eval_norms\":2} S B K P Z", "mode.training", LS_PASS,
     "training mode in 4 training forwards of Net, with norms in eval mode from the first one on "
     "(frozen) |  |  | "},
    {"2x F{\"eval_norms\":2} S B K P Z; 2x F S B K P Z", "mode.training", LS_PASS, "(frozen)"},
    {"2x F S B K P Z; 2x F{\"eval_norms\":1,\"at\":\"train.py:31\"} S B K P Z", "mode.training",
     LS_PASS,
     "Net in training mode, some of its norms in eval mode later |  | train.py:31 | from here on "
     "norms are in eval mode while the model is trained: if they are not frozen on purpose"},
    {"4x F S B K P Z", "mode.statistics", LS_PASS, "moved in 3 of 3 training steps |"},
    {"2x F S B K P Z; 2x <\"digest\":{\"param\":\"1\",\"buffer\":\"9\"},> F S B K P Z",
     "mode.statistics", LS_PASS, "moved in 2 of 3 training steps"},
    {"2x <\"digest\":{\"param\":\"1\"},> F S B K P Z", "mode.statistics", LS_WEAK,
     "no two steps have digests of the buffers"},
    {"4x F{\"eval_norms\":2} S B K P Z", "mode.statistics", LS_SKIP, "no training forward"},
};

CALLS_TEST(modes_are_judged, modes)

#define TRAINED \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"]}]};"
#define CONVERT "{\"event\":\"convert\",\"converted\":2,\"at\":\"train.py:4\"};"
/* A network without dropout and batch norms is the same in both modes. */
#define WITHOUT                                        \
    "!\"bn\":0,\"dropout\":0,\"buffers\":[],;" TRAINED \
    "F b O E F{\"grad\":false,\"training\":false} Z; F{\"training\":false} b O Z"

static const calls_row norms[] = {
    {WITHOUT, "mode.training", LS_PASS, "training forwards"},
    {WITHOUT, "mode.statistics", LS_SKIP, "no training forward"},
    {"3x <\"digest\":{\"param\":\"1\",\"buffer\":\"9\"},> F S B K P Z", "mode.statistics", LS_FAIL,
     "the running statistics of model 0 are the same after all of 4 detailed steps, although all "
     "its norms are in training mode | running statistics do not move"},
    {CONVERT "3x F S B K P Z", "mode.sync_bn", LS_FAIL,
     "convert_sync_batchnorm converted 2 modules, but the model that is trained has 2 BatchNorm "
     "modules and no SyncBatchNorm | another model was converted .. | train.py:4 | model"},
    {"{\"event\":\"convert\",\"converted\":1,\"at\":\"train.py:3\"};" CONVERT "3x F S B K P Z",
     "mode.sync_bn", LS_FAIL, "converted 3 modules, but .. | train.py:4 |"},
    {CONVERT "{\"event\":\"convert\",\"converted\":0,\"at\":\"train.py:3\"}; 3x F S B K P Z",
     "mode.sync_bn", LS_FAIL, "converted 2 modules, but .. | train.py:4 |"},
    {"{\"event\":\"convert\",\"converted\":0}; 3x F S B K P Z", "mode.sync_bn", LS_SKIP,
     "not called"},
    {"!\"sync_bn\":1,;" CONVERT TRAINED "3x F b O Z", "mode.sync_bn", LS_PASS,
     "1 SyncBatchNorm modules in the model, 2 others"},
    {"3x F S B K P Z", "mode.sync_bn", LS_SKIP, "not called"},
};

CALLS_TEST(norms_are_judged, norms)

/* Models without parameters, or without what the rule is about, and buffers that stay a rank's. */
#define EMPTY(model) "!" model ";" CONVERT TRAINED "2x F b O Z"

static const calls_row empty[] = {
    {EMPTY(""), "order.zero", LS_PASS, "between 2 steps"},
    {EMPTY("\"params\":[],"), "order.zero", LS_UNSUPPORTED, "0 tensors"},
    {EMPTY("\"params\":[],"), "precision.params", LS_WEAK, "nothing was compared: 0 trainable"},
    {EMPTY("\"bn\":0,"), "mode.sync_bn", LS_WEAK, "nothing was compared: 0 SyncBatchNorm"},
    {EMPTY(""), "replicas.buffers", LS_SKIP, "broadcast_buffers is off"},
    {EMPTY("\"broadcast_buffers\":true,"), "replicas.buffers", LS_UNSUPPORTED,
     "no model has digests"},
};

CALLS_TEST(nothing_to_compare_is_no_pass, empty)

/* ---- order ----------------------------------------------------------------------------------- */

static const calls_row orders[] = {
    {"3x F S B K P A Z", "order.collectives", LS_PASS, "3 collectives"},
    {"3x F S B K P Z", "order.collectives", LS_SKIP, "no collective"},
    {"3x (0: F S B K P A A Z; 1: F S B K P A Z)", "order.collectives", LS_WEAK,
     "step 1, collective 2 of the script: rank 0 all_reduce sum of 4 f32 (train.py:28), rank 1 "
     "none "
     "| a collective depends on a value of the rank's own"},
    {"3x (0: F S B K P A Z; 1: F S B K P A A Z; 2: F S B K P A Z)", "order.collectives", LS_WEAK,
     "rank 0 none, rank 1 all_reduce sum of 4 f32 (train.py:28) .. | train.py:28", 3},
    {"3x (0: F S B K P A Z; 1: F S B K P A{\"elements\":8} Z)", "order.collectives", LS_WEAK,
     "step 1, collective 1 of the script: rank 0 all_reduce sum of 4 f32 (train.py:28), rank 1 "
     "all_reduce sum of 8 f32 (train.py:28) | the ranks come to the same call with other tensors"},
    {"3x (0: F S B K P A Z; 1: F S B K P A{\"type\":\"f16\"} Z)", "order.collectives", LS_WEAK,
     "rank 1 all_reduce sum of 4 f16"},
    {"3x (0: F S B K P A Z; 1: F S B K P A{\"reduce\":\"max\"} Z)", "order.collectives", LS_WEAK,
     "rank 1 all_reduce max of 4 f32"},
    {"3x (0: F S B K P A{\"times\":3} Z; 1: F S B K P A A{\"times\":2} Z)", "order.collectives",
     LS_PASS, "9 collectives of the script, the same on 2 ranks"},
    {"3x (0: F S B K P A{\"ranks\":1} Z; 1: F S B K P Z)", "order.collectives", LS_SKIP, ""},
    {"3x (0: F S B K P A Z; 1: F S B K P A{\"elements\":8,\"at\":\"train.py:29\"} Z)",
     "order.collectives", LS_WEAK, "rank's own"},
    {"3x (0: F S B K P A{\"op\":\"send\"} Z; 1: F S B K P A{\"op\":\"recv\"} Z)",
     "order.collectives", LS_SKIP, "no collective"},
    {"3x (0: F S B K P A{\"op\":\"all_gather\"} Z; 1: F S B K P "
     "A{\"op\":\"all_gather\",\"elements\":8} Z)",
     "order.collectives", LS_PASS, "3 collectives"},
    {"3x F S B K P Z", "order.steps", LS_PASS, "3 steps on each of 2"},
    {"3x F S B K P L Z", "order.schedule", LS_PASS, "3 calls"},
    {"3x F S B k P L Z", "order.schedule", LS_PASS,
     "3 calls after the optimizer's, 3 of them on skipped steps |  | train.py:27 | the schedule "
     "goes "
     "on in 3 skipped steps"},
    {"3x F S B L K P Z", "order.schedule", LS_FAIL,
     "rank 0: StepLR.step() before the first optimizer.step()"},
    {"3x (0: F S B L{\"class\":\"ReduceLROnPlateau\"} K P Z; 1: F S B K P Z)", "order.schedule",
     LS_PASS, ""},
    {"3x F S B K P Z", "order.schedule", LS_SKIP, "no schedule"},
    {"3x F S B K P Z", "order.zero", LS_PASS, "3 steps"},
    {"3x (0: Z F S B K P; 1: F Z S B K P)", "order.zero", LS_PASS, "3 steps"},
    {"3x F{\"left\":0} S B K P", "order.zero", LS_PASS, "3 steps"},
    {"3x F S B K P", "order.zero", LS_WEAK, "zero_grad() is missing"},
    {"3x F S B Z K P", "order.zero", LS_FAIL, "between backward and step"},
    {"3x F S B K P N Z", "order.clip", LS_FAIL, "after the step has no effect"},
    {"3x (0: F S B K P N{\"limit\":null} Z; 1: F S B U N K P Z)", "order.clip", LS_PASS, "3 calls"},
    {"3x F S B U N{\"norm\":0} K P Z", "order.clip", LS_FAIL, "norm of 0"},
    {"3x F S B K P Z", "order.clip", LS_SKIP, "not clipped"},
};

CALLS_TEST(orders_are_judged, orders)

static const calls_row right[] = {
    /* a forward of a detailed step finds no gradient that is not zero: the script clears them by
     * means that no call shows, and later steps are right, too */
    {"2x F{\"left\":0} S B K P; 3x F S B K P", "order.zero", LS_PASS, "some by hand"},
    /* a schedule that is wound forward before training, as jobs do that go on */
    {"L{\"at\":\"train.py:15\",\"times\":40} F S B K P L Z; F S B K P L Z", "order.schedule",
     LS_PASS, "42 calls"},
    {"!\"bn\":0,\"sync_bn\":2,;" CONVERT TRAINED "F{\"autocast\":null,\"type\":\"f32\"} b O Z",
     "mode.sync_bn", LS_PASS, "2 SyncBatchNorm modules in the model, 0 others"},
};

CALLS_CLEAN_TEST(right_jobs_pass, right)

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
        calls_script(&job, "F S B K P; <\"detail\":true,> F S B K P; 2x F S B K P");
        write_gradients(&job, left < 2 ? (float)left : INFINITY);
        calls_end(&job, "order.zero", left > 0 ? LS_FAIL : LS_PASS,
                  left > 0 ? "zero_grad() is missing" : "some by hand");
    }
}

#define UNEVEN(steps)    \
    "F S B K P Z;" steps \
    "0: =RandomSampler 20 20 0 1 3 \"built\":\"train.py:12\",; 1: =RandomSampler 24 24 0 1 3 "
#define STREAM(given, last)                                                                   \
    "=_InfiniteConstantSampler 20 0 0 1 1 \"indices\":false,\"length\":null,\"given\":" given \
    ",\"steps\":[1," last "],\"built\":\"train.py:12\","
#define STREAMS(zero, one) "3x F S B K P Z; 0: " STREAM(zero, "3") "; 1: " STREAM(one, "2")
#define HANGS "F S B K P A Z; 0: F S B K P A Z; 1: F S B K P Z; 0: F S B K P A Z"

#define THIRD                                                                    \
    "{\"event\":\"unfinished\",\"calls\":[{\"call\":\"backward\",\"sync\":true," \
    "\"at\":\"train.py:21\"}]}"

#define OF(given, whole)                                                                      \
    "{\"event\":\"data\",\"loader\":0,\"trained\":true,\"at\":\"train.py:13\",\"length\":20," \
    "\"count\":20,\"batch\":4,\"steps\":[1,1],\"given\":" given ",\"whole\":" whole "}"
#define STOPPED "\x1b" /* first */

/* Of jobs that failed. */
static const calls_row failed[] = {
    {HANGS "; 1: {\"event\":\"attach\",\"error\":\"no DTensor\",\"quiet\":true,\"at\":\"\"}",
     "order.steps", LS_UNSUPPORTED, "rank 1 was not seen to its end: no DTensor"},
    {HANGS "; 0: {\"event\":\"attach\",\"error\":\"no DTensor\",\"quiet\":true,\"at\":\"\"}",
     "order.steps", LS_FAIL, "rank 1 ended after step 2"},
    {HANGS, "order.collectives", LS_FAIL,
     "step 2, collective 1 of the script: rank 0 all_reduce sum of 4 f32 (train.py:28), rank 1 "
     "none "
     "| a collective depends on a value of the rank's own"},
    {HANGS, "order.steps", LS_FAIL, "rank 1 ended after step 2, rank 0 after step 3"},
    {UNEVEN("1: F S B K P Z;"), "order.steps", LS_FAIL,
     "rank 0 ended after step 1, rank 1 after step 2 | uneven inputs: rank 0 drew 20 samples in a "
     "pass, rank 1 drew 24 | train.py:12"},
    {STREAMS("3", "2"), "order.steps", LS_FAIL, "0 drew 3 batches .. rank 1 drew 2 .. train.py:12"},
    {STREAMS("3", "3"), "order.steps", LS_PASS, ""},
    /* one more, which all ranks agreed to leave out */
    {"3x F S B K P Z; 0: " STREAM("4", "3") "; 1: " STREAM("3", "3"), "order.steps", LS_PASS, ""},
    /* as many batches of 2, of another number of samples */
    {"F S B K P Z; 1: F S B K P Z; 0: =RandomSampler 20 19 0 1 3 ; 1: =RandomSampler 20 20 0 1 3 ",
     "order.steps", LS_FAIL, "rank 0 left the loop, or died, while the others went on"},
    {"F S B K P Z; 1: F S B K P Z; 0: =RandomSampler 20 18 0 1 3 ; 1: =RandomSampler 20 19 0 1 3 ",
     "order.steps", LS_FAIL, "rank 0 drew 18 samples in a pass, rank 1 drew 19"},
    /* rank 1 did not end its second step */
    {UNEVEN(""), "order.steps", LS_FAIL,
     "the job failed after step 1, where the data of a rank had ended | uneven inputs: rank 0 drew "
     "20 samples in a pass, rank 1 drew 24 | train.py:12"},
    /* a rank that is in its third step, and one that is not, or is too */
    {"2x F S B K P Z; 0: " THIRD, "order.steps", LS_FAIL,
     "behind step 2: rank 0 was in backward() of the next one, rank 1 had ended .. train.py:21"},
    {"2x F S B K P Z; " THIRD, "order.steps", LS_PASS, ""},
    /* the same of jobs that somebody stopped, where each rank ends as the signal finds it */
    {STOPPED HANGS "; 0: F S B K P A Z", "order.steps", LS_WEAK,
     "rank 1 ended after step 2, rank 0 after step 4, where somebody stopped the job |"},
    {STOPPED UNEVEN("1: F S B K P Z;"), "order.steps", LS_FAIL, "uneven inputs"},
    {STOPPED "F S B K P Z; 1: F S B K P Z; 0: " OF("4", "true") "; 1: " OF("5", "false"),
     "order.steps", LS_WEAK, ""},
    {STOPPED "2x F S B K P Z; 0: " THIRD, "order.steps", LS_WEAK,
     "the job was stopped behind step 2: rank 0 was in backward() of the next one, rank 1 had "
     "ended |"},
};

ROWS_TEST(failed_jobs_name_the_difference, failed)
{
    calls_job job;
    bool stopped = strncmp(failed[_i].script, STOPPED, 1) == 0;
    calls_open(&job, 2);
    calls_script(&job, failed[_i].script + stopped);
    calls_fail(&job, stopped);
    calls_judge(&job);
    calls_expect_parts(&job, failed[_i].id, failed[_i].code, failed[_i].words);
    calls_close(&job);
}

#define LATER_BY_TWO                                                                               \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\",\"fc."      \
    "bias\"]}]};"                                                                                  \
    "{\"event\":\"optimizer\",\"optimizer\":1,\"groups\":[{\"params\":[\"head.weight\"]}]};"       \
    "{\"event\":\"held\",\"optimizer\":1,\"groups\":[{\"params\":[\"head.weight\"]},{\"params\":[" \
    "\"fc."                                                                                        \
    "bias\"]}]};"
#define BY_TWO                                                                               \
    "{\"event\":\"optimizer\",\"optimizer\":1,\"class\":\"torch.optim.adam.Adam\",\"rule\":" \
    "\"adam\",\"at\":\"train.py:9\",\"groups\":[{\"params\":[\"head.weight\"]}]};"
#define APART                                                                                      \
    "F S B K P Z; 1: <\"digest\":{\"param\":\"77\",\"state\":\"2\",\"buffer\":\"3\"},> F S B K P " \
    "Z; 0: F S B K P Z"

#define MOVED(step) \
    "{\"event\":\"moved\",\"model\":0,\"at\":\"train.py:9\",\"type\":\"f32\",\"step\":" step "}; "

#define RAISED(last)                                                                          \
    "{\"event\":\"data\",\"loader\":0,\"trained\":true,\"at\":\"train.py:13\",\"length\":20," \
    "\"count\":20,\"batch\":4,\"given\":1,\"whole\":false,\"raised\":\"ValueError: "          \
    "x\",\"steps\":[1," last "]}"

static const calls_row ends[] = {
    /* rates of the ranks */
    {"2x F b O Z; 0: F b O Z; 1: F b O Z; 2: <\"lr\":0.2,> F b O Z", "optimizer.rate", LS_FAIL,
     "step 3: the rate is 0.1 on rank 0 and 0.2 on rank 2 .. train.py:24", 3},
    {"3x F S B K P Z", "optimizer.rate", LS_PASS, "3 rates equal on all ranks |"},
    {"3x F S B K P Z", "optimizer.rate", LS_SKIP, "one rank, and no schedule", 1},
    {"3x <\"lr\":null,> F S B K P Z", "optimizer.rate", LS_WEAK, "no step reports a rate"},
    {UNEVEN("1: F S B K P Z;"), "order.steps", LS_PASS, "as with join"},
    {UNEVEN("1: F S B K P Z;"), "order.steps", LS_PASS,
     "rank 0 made 1 steps, rank 1 2, and all ended well (as with join)"},
    {"F S B K P Z; 0: F S B K P Z; 2x 2: F S B K P Z", "order.steps", LS_PASS,
     "rank 1 made 1 steps, rank 2 3, and all ended well (as with join)", 3},
    /* though as much was left for it: a pass that it did not begin, or left; other data; both left
     */
    {"F S B K P Z; 1: F S B K P Z; 0: " OF("5", "true") "; 1: " OF("5", "true") "; 1: " OF("5",
                                                                                           "false"),
     "order.steps", LS_FAIL,
     "rank 0 made 1 steps and left the loop, rank 1 went on to step 2, and their data did not "
     "differ | a rank ends its loop by what it alone knows .. train.py:13 | make the same "
     "decision on every rank"},
    {"F S B K P Z; 1: F S B K P Z; 0: " OF("4", "false") "; 1: " OF("5", "true"), "order.steps",
     LS_FAIL, "left the loop"},
    {"F S B K P Z; 1: F S B K P Z; 0: " OF("4", "true") "; 1: " OF("5", "true"), "order.steps",
     LS_PASS, "as with join"},
    {"F S B K P Z; 1: F S B K P Z; 0: " OF("4", "false") "; 1: " OF("5", "false"), "order.steps",
     LS_PASS, "as with join"},
    /* a loader that raised, and nothing behind it; a pass with a further step */
    {"2x F S B K P Z; 1: " RAISED("1"), "order.steps", LS_FAIL,
     "rank 1: step 2 is the last of all ranks: ValueError: x | the loader raised, the script "
     "caught "
     "it, and the training ended with exit code 0 | train.py:13"},
    {"3x F S B K P Z; 1: " RAISED("1"), "order.steps", LS_PASS, ""},
    {"!", "order.steps", LS_WEAK, "no step was seen"},
    /* within join() a rank whose data have ended makes no steps: how a job ended that a scheduler
     * started, only its ranks say */
    {APART, "replicas.step", LS_FAIL, NULL},
    {APART "; 0: F S B K P Z", "replicas.step", LS_UNSUPPORTED, ""},
    {MOVED("1") APART, "replicas.step", LS_FAIL, "converted after step 1 .. train.py:9"},
    {MOVED("2") APART, "replicas.step", LS_FAIL, NULL},
    {MOVED("1") APART "; 0: F S B K P Z", "replicas.step", LS_UNSUPPORTED, "as with join() |  |"},
    {"!\"unfrozen\":[[\"head.weight\",\"train.py:4\"],[\"fc.bias\",\"train.py:3\"]],;" BY_TWO
     "F b O Z",
     "optimizer.frozen", LS_FAIL, "1 parameters were frozen .. trained: head.weight .. train.py:4"},
    {"F b O Z; "
     "{\"event\":\"replaced\",\"optimizer\":0,\"params\":[[\"fc.weight\",\"train.py:4\"]]}",
     "optimizer.frozen", LS_FAIL,
     "1 parameters took the place of an optimizer's and are in none: fc.weight | the optimizer was "
     "built before parameters were replaced .. train.py:4"},
    {BY_TWO "F b O Z; {\"event\":\"freed\",\"optimizer\":0,\"count\":3,\"among\":5}",
     "optimizer.frozen", LS_FAIL,
     "3 of an optimizer's 5 parameters hold no memory .. built behind a forward .. train.py:"},
    {"F b O Z F b O Z; {\"event\":\"froze\",\"model\":0,\"at\":\"train.py:30\",\"step\":2,"
     "\"names\":[\"fc.weight\"]}",
     "optimizer.frozen", LS_FAIL,
     "1 parameters are trained in 2 forwards, until the model's first train() (train.py:30, step "
     "2) "
     "freezes them: fc.weight | a train() of the model's own modules .. train.py:"},
    {"F b O Z; {\"event\":\"froze\",\"model\":0,\"at\":\"train.py:30\",\"step\":1,"
     "\"names\":[\"fc.weight\"]}",
     "optimizer.frozen", LS_SKIP, ""},
    {"F b O Z F b O Z; {\"event\":\"froze\",\"model\":1,\"at\":\"train.py:30\",\"step\":2,"
     "\"names\":[\"m1.fc.weight\"]}",
     "optimizer.frozen", LS_SKIP, ""},
    {"F b O Z; {\"event\":\"bare\",\"optimizer\":0,\"steps\":8,\"count\":4}", "optimizer.frozen",
     LS_FAIL,
     "in 8 steps, each behind a backward, none of the 4 parameters .. nothing is trained | the "
     "optimizer was built before the model was wrapped .. train.py:"},
    {"F b O Z; {\"event\":\"bare\",\"optimizer\":0,\"steps\":8,\"count\":4}; "
     "{\"event\":\"bare\",\"optimizer\":0,\"steps\":8,\"count\":4,\"later\":true}",
     "optimizer.frozen", LS_SKIP, ""},
    {BY_TWO "F b O Z; {\"event\":\"bare\",\"optimizer\":0,\"steps\":8,\"count\":4}",
     "optimizer.frozen", LS_SKIP, ""},
    {"!\"unfrozen\":[[\"fc.bias\",\"train.py:4\"]],;" BY_TWO "F b O Z", "optimizer.frozen", LS_SKIP,
     ""},
    {"F b O Z; {\"event\":\"untied\",\"at\":\"train.py:8\",\"names\":[\"emb.weight\","
     "\"head.weight\"]}",
     "optimizer.frozen", LS_FAIL,
     "emb.weight and head.weight were one Parameter, are two of equal values since .. train.py:8"},
    {"F b O Z; {\"event\":\"untied\",\"at\":\"train.py:8\",\"names\":[\"emb.weight\","
     "\"head.weight\"],\"equal\":false}",
     "optimizer.frozen", LS_FAIL, "were one Parameter, are two since, and both are trained"},
    {"!\"params\":[[\"fc.weight\",8,\"f32\",false],[\"fc.bias\",2,\"f32\",true]],; F S B K P Z",
     "optimizer.frozen", LS_PASS, "1 frozen"},
    /* two optimizers of one parameter: the second of them is named, and only where both step */
    {BY_TWO "3x F b O Z", "optimizer.covered", LS_PASS, ""},
    {BY_TWO "3x F b O O{\"optimizer\":1} Z", "order.zero", LS_PASS, ""},
    {LATER_BY_TWO "3x F b O O{\"optimizer\":1} Z", "optimizer.covered", LS_WEAK, "fc.bias"},
    {BY_TWO "3x F b O O{\"optimizer\":1} Z", "optimizer.covered", LS_WEAK,
     "two optimizers step 1 parameters in one step: head.weight .. each step moves them twice, by "
     "one gradient | train.py:9"},
    {"{\"event\":\"attach\",\"error\":\"the closure of a LBFGS computes\"}; 3x O F b", "order.zero",
     LS_UNSUPPORTED, "closure"},
};

CALLS_TEST(other_orders_are_judged, ends)

/* ---- replicas -------------------------------------------------------------------------------- */

#define TRAINS(names) \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[" names "]}]};"
#define SYNCED "!\"bn\":0,\"sync_bn\":2,;" TRAINED
#define HELD(norms)                                                  \
    "!\"bn\":" norms ",\"buffers\":[[\"book\",8,\"f32\"]],;" TRAINED \
    "F b O Z; 0: F b O Z; 2: F b O "                                 \
    "Z;" OFF("1", "{\"buffer\":\"9\"}")
#define OFF(rank, digests) rank ": <\"digest\":" digests ",> F b O Z;"
/* Steps of ranks without the wrapper: some, and one behind which rank 1 holds these. */
#define BY_HAND(norms, steps, digests)                                                        \
    "!\"kind\":\"plain\",\"bn\":" norms ",\"buffers\":[[\"book\",8,\"f32\"]],;" TRAINED steps \
    "x F b O Z; 0: F b O Z;" OFF("1", "{" digests "}")
#define STEPPED "\"param\":\"0000000000000003\",\"buffer\":"
#define PUT_IN "0: <\"moved\":true,\"digest\":{\"param\":\"9\"},> F b O Z; 1: F b O Z;"
#define HEAD(rank, digest)                                                                     \
    rank ": "                                                                                  \
         "{\"event\":\"model\",\"model\":1,\"kind\":\"plain\",\"at\":\"train.py:6\",\"name\":" \
         "\"Head\","                                                                           \
         "\"params\":[[\"m1.w\",4,\"f32\",true]],\"param_digests\":[\"" digest "\"]};"
#define HEADS HEAD("0", "a") HEAD("1", "a") HEAD("2", "b")
#define SHARDED "!\"kind\":\"plain\",\"name\":\"FSDP\",;" TRAINED "F b O Z"

#define LATER "{\"event\":\"hook\",\"model\":0,\"name\":\"post_localSGD_hook\"};"
#define RATED(rank, rate)                                                                      \
    rank ": {\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"]," \
         "\"lr\":" rate "}]};"
#define ALONE(rate, replicas)                                                   \
    "!\"kind\":\"plain\",;" RATED("0", "0.1")                                   \
        RATED("1", rate) "0: =RandomSampler 20 20 0 1 3 \"replicas\":" replicas \
                         ",; 1: =RandomSampler 20 20 0 1 3 "                    \
                         "\"replicas\":" replicas ",;"

/* The ranks' models begin with other values, and `made` of all numbers are shared behind a step. */
#define BEGINS(rank, digest, kind)                                               \
    rank ": {\"event\":\"model\",\"model\":0,\"kind\":\"" kind "\",\"world\":2," \
         "\"params\":[[\"fc.weight\",4,\"f32\",true]],\"param_digests\":[\"" digest "\"]};"
#define SEEDED(one, other, made) \
    ALONE("0.1", "1")            \
    BEGINS("0", one, "plain") BEGINS("1", other, "plain") "F b O Z; A" made " F b O Z"
#define MANY "{\"elements\":240}"
/* Steps of a plain model, then one of a model in DistributedDataParallel. */
#define WARMING(before)                                                                     \
    "!\"kind\":\"plain\",;{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"params\":[]}" \
    ";" before
#define WARMED(before) WARMING(before) "; F{\"model\":1} b O Z"

/* Ranks that begin apart with a weight and a bias. */
#define LARGE         \
    ALONE("0.1", "1") \
    LARGE_OF("0", "1") LARGE_OF("1", "2")
#define LARGE_OF(rank, digest)                                                              \
    rank ": {\"event\":\"model\",\"model\":0,\"kind\":\"plain\",\"world\":2,\"params\":[["  \
         "\"fc.weight\",16,\"f32\",true],[\"fc.bias\",2,\"f32\",true]],\"param_digests\":[" \
         "\"" digest "\",\"0\"]};"
/* Two steps of a model in DistributedDataParallel, then steps of another one on data that are
 * divided among that many ranks. */
#define BEHIND(replicas, word, made)                                                    \
    "!;{\"event\":\"model\",\"model\":1,\"kind\":\"plain\",\"params\":[]};2x F b O Z;"  \
    "{\"event\":\"data\",\"replicas\":" replicas ",\"" word "\":true,\"steps\":[3,4]};" \
    "F{\"model\":1} b O Z; A" made " "

#define COPIED(equal) "F b O{\"copies\":[2," equal ",\"fc.bias\"]} Z"

static const calls_row replicas[] = {
    {SYNCED "3x F b O Z", "replicas.buffers", LS_PASS,
     "equal on 2 ranks after 3 of 3 steps, the last among them"},
    {SYNCED "F b O Z; 0: F b O Z; 2: F b O Z;" OFF("1", "{\"buffer\":\"9\"}"), "replicas.buffers",
     LS_FAIL,
     "after step 2 ranks 0 and 1 hold different statistics of SyncBatchNorm |  | train.py:5", 3},
    {SHARDED "; F b N O Z", "optimizer.clip", LS_UNSUPPORTED, "a part of the gradients"},
    {SYNCED "2x F b O Z; 0: F b O Z;" OFF("1", "{}"), "replicas.buffers", LS_WEAK,
     "equal on 2 ranks after 2 of 3 steps, up to step 2: of step 3, the last one, not all ranks"},
    {HELD("0"), "replicas.buffers", LS_WEAK,
     "after step 2 ranks 0 and 1 hold other buffers, which are no statistics of a norm", 3},
    {HELD("1"), "replicas.buffers", LS_SKIP, "a rank's own", 3},
    {HELD("0,\"broadcast_buffers\":true"), "replicas.buffers", CALLS_HINT,
     "after step 2 ranks 0 and 1 hold other buffers, which are no statistics of a norm | each rank "
     "moves a buffer by its own samples, and rank 0's replaces it",
     3},
    {BY_HAND("0", "2", STEPPED "\"9\""), "replicas.buffers", CALLS_HINT,
     "after step 3 ranks 0 and 1 hold other buffers, which are no statistics of a norm | each rank "
     "moves a buffer by its own samples: ranks with the same parameters are different functions | "
     "train.py:5 | all_reduce"},
    {BY_HAND("0", "2", STEPPED "\"0000000000000003\""), "replicas.buffers", NO_HINT, ""},
    {BY_HAND("0", "2", "\"param\":\"9\",\"buffer\":\"9\""), "replicas.buffers", NO_HINT, ""},
    {BY_HAND("1", "2", STEPPED "\"9\""), "replicas.buffers", NO_HINT, ""},
    {BY_HAND("0", "1", STEPPED "\"9\""), "replicas.buffers", NO_HINT, ""},
    {"!;" TRAINED "F b O Z; 0: F b O Z; 1: F b O Z;" OFF("2", "{\"param\":\"9\"}"), "replicas.step",
     LS_FAIL, "after step 2 ranks 0 and 2 hold different parameters: no samples from that", 3},
    {"!;" TRAINED "F b O Z; 0: F b O Z;" OFF("1", "{}") "0: F b O Z;" OFF("1", "{\"param\":\"9\"}"),
     "replicas.step", LS_FAIL, "between steps 1 and 3 ranks 0 and 1 hold different parameters"},
    {"!;" TRAINED "3x F b O Z", "replicas.step", LS_PASS, "equal on 2 ranks after 3 of 3 steps"},
    /* each rank holds other classes, in no model */
    {"!;{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\",\"?\"]}]}"
     ";" OFF("1", "{\"state\":\"9\"}") "0: F b O Z",
     "replicas.state", LS_UNSUPPORTED, "or that no model has; of what several hold"},
    /* rank 0 puts other parameters in behind a step; both do, or nothing does */
    {"!;" TRAINED "2x F b O Z;" PUT_IN, "replicas.step", LS_PASS,
     "after 2 of 3 steps, up to step 2: behind the last one, some ranks alone put other "
     "parameters in"},
    {"!;" TRAINED "2x F b O Z;" PUT_IN "F b O Z", "replicas.step", LS_PASS, "after 3 of 4"},
    {"!;" TRAINED "F b O Z;" PUT_IN OFF("1", "{\"param\":\"9\"}") "0: F b O Z", "replicas.step",
     LS_FAIL, "ranks 0 and 1 hold different parameters"},
    {"!;" TRAINED "2x F b O Z;"
     "0: <\"moved\":true,\"digest\":{\"param\":\"9\"},> F b O Z;"
     "1: <\"moved\":true,\"digest\":{\"param\":\"8\"},> F b O Z",
     "replicas.step", LS_FAIL, "after step 3"},
    /* one rank alone has freed a model by then */
    {"!;" TRAINED "2x F b O Z; 0: <\"digested\":2,\"digest\":{\"param\":\"9\"},> F b O Z;"
     "1: F b O Z; F b O Z",
     "replicas.step", LS_PASS, "after 3 of 4"},
    {"!;" TRAINED "2x F b O Z; 0: <\"digested\":2,\"digest\":{\"state\":\"9\"},> F b O Z;"
     "1: F b O Z; F b O Z",
     "replicas.state", LS_PASS, "after 3 of 4"},
    /* a model that is outside, trained or not */
    {"!;" HEADS TRAINS("\"fc.weight\",\"m1.w\"") "F b O Z", "replicas.start", LS_FAIL,
     "rank 2 starts with other values than rank 0 in 1 of Head's parameters: m1.w | this model is "
     "outside DistributedDataParallel, and each rank drew its values from a seed of its own | "
     "train.py:6",
     3},
    {"!;" HEADS TRAINED "F b O Z", "replicas.start", LS_WEAK, "no model has values of its start",
     3},
    {"!;" HEADS TRAINED "2x (0: F b O Z; 1: F b O Z;" OFF("2", "{\"param\":\"9\"}") ")",
     "replicas.step", LS_WEAK,
     "a model that is not trained differs by rank, and digests are of all models: samples of the "
     "others are equal after 0 detailed steps",
     3},
    /* in DistributedDataParallel, whatever its name */
    {"!\"name\":\"Pipeline\",;" TRAINED "F b O Z", "replicas.step", LS_PASS, ""},
    {SHARDED, "replicas.step", LS_UNSUPPORTED, "each rank holds a part of the model"},
    {SHARDED, "reduction.mean", LS_UNSUPPORTED, "gradients are not averaged as"},
    {"!;" TRAINED LATER "F b O Z", "reduction.mean", LS_UNSUPPORTED,
     "post_localSGD_hook: gradients are not averaged as DistributedDataParallel does"},
    {"!;" TRAINED LATER OFF("1", "{\"param\":\"9\"}") "0: F b O Z", "replicas.step", LS_UNSUPPORTED,
     "post_localSGD_hook: replicas differ between two averagings on purpose"},
/* nothing reduces a gradient, and a sum makes the ranks equal again: as many elements, or less;
 * a step that reduces; ranks that never meet */
#define OWN_STEPS \
    "2x (0: F b{\"sync\":false} O Z;" OFF("1", "{\"param\":\"9\",\"state\":\"9\"}") ");"
#define AVERAGED_STEPS(elements) \
    OWN_STEPS "F b{\"sync\":false} O Z A{\"elements\":" elements "};" OWN_STEPS
#define AVERAGED(elements) "!;" TRAINED AVERAGED_STEPS(elements)
#define OWN_REDUCED "2x (0: F b O Z;" OFF("1", "{\"param\":\"9\",\"state\":\"9\"}") ");"
    {AVERAGED("8"), "replicas.step", LS_UNSUPPORTED,
     "the script averages parameters from time to time: replicas differ between two averagings"},
    {AVERAGED("8"), "replicas.state", LS_UNSUPPORTED, "between two averagings"},
    {AVERAGED("8"), "reduction.mean", LS_UNSUPPORTED, "averages parameters after the step"},
    {AVERAGED("7"), "replicas.step", LS_FAIL, "after step 1 ranks 0 and 1 hold different"},
    {"!;" TRAINED "F b O Z;" AVERAGED_STEPS("8"), "reduction.mean", LS_UNSUPPORTED,
     "averages parameters after the step"},
    {"!;" TRAINED OWN_REDUCED "F b O Z A{\"elements\":8};", "replicas.step", LS_FAIL,
     "after step 1"},
    {"!;" TRAINED OWN_STEPS OWN_STEPS, "replicas.step", LS_FAIL, "after step 1"},
    {"!;" TRAINED OWN_STEPS, "reduction.mean", LS_WEAK, ""},
#undef AVERAGED
#undef AVERAGED_STEPS
#undef OWN_REDUCED
#undef OWN_STEPS
    /* a second step by one gradient, and by none */
    {"!;" TRAINED "2x F b O O Z", "optimizer.step", LS_FAIL, "steps twice after one backward pass"},
    {"!;" TRAINED "2x F b O Z O Z", "optimizer.step", LS_WEAK, "no detailed step"},
    /* copies of parameters are stepped: made before a file was read, or taken over in no step */
    {COPIED("0") "; " COPIED("2"), "optimizer.step", LS_FAIL,
     "steps copies of 2 parameters, of which 2 hold other values than the model before the first "
     "step (fc.bias), and none by step 2 | the copies were made before the model had its weights: "
     "the first step puts older ones in their place | train.py:7 |"},
    {"{\"event\":\"load\",\"at\":\"train.py:9\"}; " COPIED("1") "; " COPIED("2"), "optimizer.step",
     LS_FAIL, "older ones in their place | train.py:9 |"},
    {COPIED("0") "; " COPIED("0"), "optimizer.step", LS_WEAK, "no detailed step"},
    {COPIED("2") "; " COPIED("0") "; " COPIED("2"), "optimizer.step", LS_WEAK, "no detailed step"},
    {"F b O Z; " COPIED("0") "; " COPIED("2"), "optimizer.step", LS_WEAK, "no detailed step"},
    /* more steps in detail would show no more */
    {"{\"event\":\"attach\",\"error\":\"backward came first\",\"quiet\":false}; 2x b O Z",
     "reduction.left", LS_WEAK,
     "no training forward of a known model was seen (backward came first) |  |  |"},
    {"{\"event\":\"attach\",\"error\":\"backward came first\",\"quiet\":false}; 2x "
     "F{\"grad\":false} b O Z",
     "reduction.left", LS_WEAK, "no training forward of a known model was seen"},
    {"2x b O Z", "reduction.left", LS_WEAK, "| look at more steps in detail"},
    {"2x F{\"training\":false} b O Z", "reduction.left", LS_WEAK,
     "no detailed step after the first; all forwards with autograd are in eval mode |  |  |"},
    {"!\"params\":[],\"parts\":4,;2x F b O Z", "reduction.left", LS_WEAK,
     "no detailed step after the first; each rank holds a part of the parameters |  |  |"},
    {"!\"world\":4,;" TRAINED OFF("1", "{\"param\":\"9\"}") "0: F b O Z", "replicas.step",
     LS_UNSUPPORTED, "a model is replicated over 4 of 2 ranks: which, is not known"},
    {"!;{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"ZeroRedundancyOptimizer\",\"groups\":["
     "]};"
     "F b O Z",
     "replicas.state", LS_UNSUPPORTED, "ZeroRedundancyOptimizer: each rank holds a part of the"},
    /* a search by rank: rates of their own, and nothing shared */
    {ALONE("0.2", "1") "2x F b O Z", "replicas.step", LS_UNSUPPORTED, "an ensemble, or a search"},
    {ALONE("0.2", "1") "2x F b O Z", "reduction.mean", LS_UNSUPPORTED, "an ensemble, or a search"},
    {ALONE("0.2", "1") "2x F b O Z", "optimizer.rate", LS_UNSUPPORTED, "an ensemble, or a search"},
    {ALONE("0.1", "1") "2x F b O Z", "replicas.step", LS_PASS, ""},
    {ALONE("0.2", "2") "2x F b O Z", "replicas.step", LS_PASS, ""},
    {ALONE("0.2", "1") "2x F b A O Z", "replicas.step", LS_PASS, ""},
    {ALONE("0.2", "1") "F b L O Z; F b O Z", "replicas.step", LS_PASS, ""},
    {ALONE("0.2", "1") "1: {\"event\":\"restore\",\"what\":\"optimizer\"}; F b O Z",
     "replicas.step", LS_PASS, ""},
    {ALONE("0.2", "1") "1: {\"event\":\"restore\",\"what\":\"optimizer\",\"step\":1}; F b O Z",
     "replicas.step", LS_UNSUPPORTED, "an ensemble, or a search"},
    {SEEDED("1", "2", MANY), "replicas.step", LS_UNSUPPORTED, "an ensemble, or a search"},
    {SEEDED("1", "2", MANY), "order.collectives", LS_UNSUPPORTED, "an ensemble, or a search"},
    {SEEDED("1", "1", MANY), "replicas.step", LS_PASS, ""},
    {SEEDED("1", "2", "{\"elements\":8}"), "replicas.step", LS_PASS, ""},
    {SEEDED("1", "2", "{\"elements\":9}"), "replicas.step", LS_UNSUPPORTED, ""},
    {ALONE("0.2", "1") "F b O Z; A{\"elements\":14} F b O Z", "replicas.step", LS_PASS, ""},
    {ALONE("0.2", "1") "F b O Z; A{\"elements\":8} A{\"elements\":2} A F b O Z", "replicas.step",
     LS_PASS, ""},
    {ALONE("0.2", "1") "F b O Z; A A F b O Z", "replicas.step", LS_UNSUPPORTED, ""},
    {ALONE("0.2", "1") "F b O Z; A{\"elements\":14,\"reduce\":\"\"} F b O Z", "replicas.step",
     LS_UNSUPPORTED, ""},
    {ALONE("0.2", "1") "F b O Z; A{\"elements\":1} F b O Z", "replicas.step", LS_UNSUPPORTED, ""},
    {SEEDED("1", "2", MANY) "; F A" MANY " b O Z", "replicas.step", LS_PASS, ""},
    /* as many results as a parameter has elements; several of those */
    {LARGE "F b O Z; A{\"elements\":16} F b O Z", "replicas.step", LS_UNSUPPORTED,
     "an ensemble, or a search"},
    {LARGE "F b O Z; A{\"elements\":16,\"times\":2} F b O Z", "replicas.step", LS_PASS, ""},
    {LARGE "F b O Z; A{\"elements\":18} F b O Z", "replicas.step", LS_PASS, ""},
    /* members behind a model in DistributedDataParallel; what is divided, or not shared */
    {BEHIND("1", "trained", MANY) "F{\"model\":1} b O Z", "replicas.step", LS_UNSUPPORTED,
     "an ensemble, or a search"},
    {BEHIND("1", "trained", MANY) "F{\"model\":1} b O Z", "reduction.mean", LS_UNSUPPORTED,
     "an ensemble, or a search"},
    {BEHIND("2", "trained", MANY) "F{\"model\":1} b O Z", "replicas.step", LS_PASS, ""},
    {BEHIND("1", "indices", MANY) "F{\"model\":1} b O Z", "replicas.step", LS_PASS, ""},
    {BEHIND("1", "trained", "{\"elements\":8}") "F{\"model\":1} b O Z", "replicas.step", LS_PASS,
     ""},
    {BEHIND("1", "trained", MANY) "F{\"model\":1} b A O Z", "replicas.step", LS_PASS, ""},
    {BEHIND("1", "trained", MANY) "F b O Z", "replicas.step", LS_PASS, ""},
    {WARMED("0: F b O Z"), "replicas.step", LS_UNSUPPORTED, "a rank trained alone before"},
    {WARMED("0: F b O Z; 0: F b O Z; 1: F b O Z"), "reduction.mean", LS_UNSUPPORTED,
     "trained alone before"},
    {WARMING("0: F b O Z; 1: F{\"model\":1} b O Z"), "reduction.mean", LS_UNSUPPORTED,
     "trained alone before"}, /* as far as a job has come that goes on */
    {WARMED("F b O Z"), "replicas.step", LS_PASS, ""},
};

ROWS_TEST(replicas_are_compared, replicas)
{
    calls_job job;
    calls_open_script(&job, replicas[_i].world == 0 ? 2 : replicas[_i].world, replicas[_i].script);
    calls_judge(&job);
    calls_expect_finding(calls_find(&job, replicas[_i].id), replicas[_i].code, replicas[_i].words);
    calls_close(&job);
}

/* Jobs that go on: whether steps are compared yet. */
#define KEPT(steps) "!;" TRAINED "2x F b O Z; " steps "x F b{\"sync\":false} O Z"

static const struct {
    const char *script;
    bool compared;
} running[] = {
    {"!;" TRAINED "3x F b O Z", true},
    {"!\"kind\":\"plain\",;" TRAINED "3x F b O Z", false},
    {"!;{\"event\":\"join\",\"at\":\"train.py:9\"};" TRAINED "3x F b O Z", false},
    {KEPT("1"), false},
    {KEPT("64"), false},
    {KEPT("65"), true},
    {BEHIND("1", "trained", MANY) "F{\"model\":1} b O Z", false},
    {BEHIND("1", "trained", MANY) "F b O Z", true}, /* the wrapped one is trained again */
    {BEHIND("1", "trained", MANY) "F{\"model\":1,\"training\":false} b O Z; F b O Z", true},
};

ROWS_TEST(running_jobs_are_compared, running)
{
    calls_job job;
    ls_observe_result now = {0};
    bool found = false;
    calls_open_script(&job, 2, running[_i].script);
    calls_judge(&job);
    ls_live_judge(job.trace, &now);
    for (int i = 0; i < now.count; i++) {
        found = found || strcmp(now.finding[i].rule->id, "replicas.step") == 0;
    }
    ck_assert_int_eq(found, running[_i].compared);
    ls_observe_result_free(&now);
    calls_close(&job);
}

/* ---- speed ----------------------------------------------------------------------------------- */

TEST(speed_is_of_the_steady_steps)
{
    calls_job job;
    calls_open(&job, 2);
    calls_script(&job,
                 "<\"ms\":{\"total\":5000},> F S B K P Z; F S B K P Z; 4x (0: F S B K P Z; 1: "
                 "<\"ms\":{\"total\":18,\"data\":4,\"forward\":2,\"backward\":2,\"optimizer\":1,"
                 "\"instrument\":2},> F S B K P Z)");
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
    calls_script(&job, "2x F S B K P Z");
    calls_judge(&job);
    cJSON *seen = ls_observe_summary_make(job.trace);
    ck_assert_ptr_null(cJSON_GetObjectItem(seen, "speed"));
    cJSON_Delete(seen);
    calls_close(&job);
}

TEST_MAIN("observe_calls", .timeout_s = 120)
