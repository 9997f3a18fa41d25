/* The rules of precision, data, modes, checkpoints and the order of calls on invented jobs: right
 * practices pass, mistakes are caught with their cause, and where nothing shows it they say so. */
#include <math.h>

#include "kernels/core/rng.h"
#include "observe_calls.h"
#include "reference/files/safetensors.h"
#include "suite/observe/speed.h"
#include "suite/unit/run_suite.h"

static const char *const families[] = {"scaler.", "precision.",  "data.",
                                       "mode.",   "checkpoint.", "order."};

static void judge_clean(calls_job *job)
{
    calls_judge(job);
    calls_expect_clean(job, families, (int)(sizeof families / sizeof *families));
}

static void repeat(calls_job *job, int times, const char *calls)
{
    for (int i = 0; i < times; i++) {
        calls_step(job, calls);
    }
}

/* A job of steps and one more event, judged by one rule. */
static void expect_of_event(const char *event, const char *steps, const char *id,
                            ls_verdict_code code, const char *words)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, event);
    repeat(&job, 3, steps);
    calls_judge(&job);
    calls_expect(&job, id, code, words);
    calls_close(&job);
}

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
    {"F b O Z", "precision.autocast", LS_FAIL, "f16 without a loss scale"},
    {"F{\"autocast\":null,\"type\":\"f32\"} S B K P Z", "precision.autocast", LS_WEAK,
     "could not be seen"},
    {"F{\"autocast\":null} S B K P Z", "precision.autocast", LS_PASS, "opens autocast itself"},
    {"F{\"type\":\"f32\"} S B K P Z", "precision.products", LS_UNSUPPORTED, "computed again"},
    {"F{\"sync\":false} S B F{\"autocast\":null} S B K P Z", "precision.autocast", LS_FAIL,
     "one of the two branches"},
    {"F S B{\"autocast\":\"f16\"} K P Z", "precision.autocast", LS_PASS, "before backward()"},
    {"F b O{\"stale_casts\":false} Z", "precision.autocast", LS_FAIL, "without a loss scale"},
    {"F b O{\"stale_casts\":true} Z", "precision.autocast", LS_FAIL, "stays open over steps"},
    {"F S{\"type\":\"f16\"} B K P Z", "precision.loss", LS_FAIL, "from f16 outputs"},
    {"F{\"autocast\":\"bf16\"} b{\"type\":\"bf16\"} O Z", "precision.loss", LS_PASS, "in f32"},
};

START_TEST(precision_is_judged)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 3, precise[_i].calls);
    calls_judge(&job);
    calls_expect(&job, precise[_i].id, precise[_i].code, precise[_i].words);
    calls_close(&job);
}
END_TEST

/* Under autocast parameters are to be in f32; all in half, or with an optimizer that may hold
 * copies, is a practice. */
START_TEST(models_cast_under_autocast_are_weak)
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
        repeat(&job, 2, step);
        calls_judge(&job);
        calls_expect(&job, "precision.params", one[i].code, one[i].words);
        calls_close(&job);
    }
}
END_TEST

static const char half[] = "\"params\":[[\"fc.weight\",8,\"f16\",true]],";

START_TEST(half_models_are_named)
{
    calls_job job;
    calls_open_with(&job, 2, half);
    repeat(&job, 2, "F{\"autocast\":null} b{\"type\":\"f16\"} O Z");
    calls_judge(&job);
    calls_expect(&job, "precision.params", LS_WEAK, "held in f16 without f32 copies");
    calls_expect(&job, "precision.loss", LS_WEAK, "the loss is f16");
    calls_close(&job);
    calls_open_with(&job, 2, half);
    calls_event(&job, -1, "{\"event\":\"scaler\",\"scaler\":0,\"enabled\":true}");
    calls_step(&job, "F S B K P Z");
    calls_judge(&job);
    calls_expect(&job, "precision.params", LS_FAIL, "Attempting to unscale FP16 gradients");
    calls_close(&job);
}
END_TEST

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

START_TEST(gradients_show_the_arithmetic)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, shown[_i].calls);
    calls_step_of(&job, -1, "\"detail\":true,", shown[_i].calls);
    write_again(&job, shown[_i].error);
    calls_judge(&job);
    calls_expect(&job, shown[_i].id, shown[_i].code, shown[_i].words);
    calls_close(&job);
}
END_TEST

/* ---- data ------------------------------------------------------------------------------------ */

/* A pass of a rank: its class of sampler, members in place of the usual ones, its indices. */
typedef struct drawing {
    const char *sampler, *members;
    int length, count, first, stride,
        mix; /* index i: (first + stride * (i * mix % count)) % length */
} drawing;

static void write_pass(calls_job *job, int rank, const drawing *d)
{
    char line[4000];
    ls_text_put(line, sizeof line,
                "{\"event\":\"data\",%s\"loader\":0,\"pass\":0,\"at\":\"train.py:18\","
                "\"sampler\":\"%s\",\"replicas\":2,\"sampler_rank\":%d,\"shuffle\":true,"
                "\"drop_last\":false,\"sampler_epoch\":0,\"length\":%d,\"batch\":2,\"workers\":0,"
                "\"count\":%d,\"whole\":true,\"order\":\"%d.%d.%d\",\"modulus\":1,"
                "\"trained\":true,\"kept\":[",
                d->members, d->sampler, rank, d->length, d->count, d->first, d->stride, d->mix);
    for (int i = 0; i < d->count; i++) {
        ls_text_add(line, sizeof line, "%s%d", i > 0 ? "," : "",
                    (d->first + d->stride * (i * d->mix % d->count)) % d->length);
    }
    ls_text_add(line, sizeof line, "]}");
    calls_event(job, rank, line);
}

static const char distributed[] = "DistributedSampler";

/* Samples of eight indices, the same on both ranks. */
#define CONTENT                                                                              \
    "\"content\":[[0,\"a\"],[1,\"b\"],[2,\"c\"],[3,\"d\"],[4,\"e\"],[5,\"f\"],[6,\"g\"],[7," \
    "\"h\"]],"

/* Two passes of two ranks, a rule and what it says. `same`: ranks have equal inputs. */
static const struct {
    drawing zero, one;
    int mix; /* of the second pass; 0: none */
    bool same;
    const char *id;
    ls_verdict_code code;
    const char *words;
} drawings[] = {
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     7,
     false,
     "data.disjoint",
     LS_PASS,
     "2 passes"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     7,
     false,
     "data.covered",
     LS_PASS,
     "2 whole passes"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     7,
     false,
     "data.shuffled",
     LS_PASS,
     "1 passes"},
    {{distributed, "", 39, 20, 0, 2, 3},
     {distributed, "", 39, 20, 1, 2, 3},
     7,
     false,
     "data.disjoint",
     LS_PASS,
     "2 passes"}, /* padded: 0 is drawn twice */
    {{distributed, "", 41, 20, 0, 2, 3},
     {distributed, "", 41, 20, 1, 2, 3},
     7,
     false,
     "data.covered",
     LS_PASS,
     "2 whole"}, /* drop_last */
    {{distributed, "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     {distributed, "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     7,
     true,
     "data.disjoint",
     LS_FAIL,
     "rank=0 on ranks 0 and 1"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "\"sampler_epoch\":4,", 40, 20, 0, 2, 9},
     7,
     false,
     "data.disjoint",
     LS_FAIL,
     "set_epoch was called with different values"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 0, 2, 9},
     7,
     false,
     "data.disjoint",
     LS_FAIL,
     "different seeds"},
    {{distributed, "\"replicas\":4,", 80, 20, 0, 4, 3},
     {distributed, "\"replicas\":4,", 80, 20, 1, 4, 3},
     7,
     false,
     "data.covered",
     LS_FAIL,
     "num_replicas=4"},
    {{"RandomSampler", "", 20, 20, 0, 1, 3},
     {"RandomSampler", "", 20, 20, 0, 1, 7},
     9,
     false,
     "data.disjoint",
     LS_WEAK,
     "if all ranks open the same data"},
    {{"RandomSampler", CONTENT, 20, 20, 0, 1, 3},
     {"RandomSampler", CONTENT, 20, 20, 0, 1, 7},
     9,
     false,
     "data.disjoint",
     LS_FAIL,
     "no DistributedSampler"},
    {{"RandomSampler", "", 20, 20, 0, 1, 3},
     {"RandomSampler", "", 20, 20, 0, 1, 3},
     9,
     true,
     "data.disjoint",
     LS_FAIL,
     "no DistributedSampler"},
    {{"RandomSampler", "", 20, 20, 0, 1, 3},
     {"RandomSampler", "", 20, 20, 0, 1, 3},
     9,
     false,
     "data.disjoint",
     LS_WEAK,
     "data set of its own"},
    {{"RandomSampler", "", 20, 20, 0, 1, 3},
     {"RandomSampler", "", 24, 24, 0, 1, 7},
     9,
     false,
     "data.disjoint",
     LS_SKIP,
     "different lengths"},
    {{"WeightedRandomSampler", "", 11, 20, 0, 1, 3},
     {"WeightedRandomSampler", "", 11, 20, 0, 1, 7},
     9,
     false,
     "data.disjoint",
     LS_SKIP,
     "with replacement"},
    {{"RASampler", "", 60, 20, 0, 2, 3},
     {"RASampler", "", 60, 20, 0, 3, 3},
     7,
     false,
     "data.disjoint",
     LS_WEAK,
     "(RASampler)"},
    {{"OwnSampler", "", 40, 20, 0, 1, 3},
     {"OwnSampler", "", 40, 20, 20, 1, 3},
     7,
     false,
     "data.disjoint",
     LS_PASS,
     "2 passes"},
    {{"OwnSampler", "", 40, 10, 0, 1, 3},
     {"OwnSampler", "", 40, 10, 20, 1, 3},
     7,
     false,
     "data.covered",
     LS_SKIP,
     "script's own"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     3,
     false,
     "data.shuffled",
     LS_FAIL,
     "set_epoch was not called"},
    {{distributed, "\"shuffle\":false,", 40, 20, 0, 2, 3},
     {distributed, "\"shuffle\":false,", 40, 20, 1, 2, 3},
     3,
     false,
     "data.shuffled",
     LS_WEAK,
     "not shuffled: every epoch has the same batches"},
    {{distributed, "\"shuffle\":false,", 40, 20, 0, 2, 3},
     {distributed, "\"shuffle\":false,", 40, 20, 1, 2, 3},
     7,
     false,
     "data.shuffled",
     LS_SKIP,
     "not asked to shuffle"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     0,
     false,
     "data.shuffled",
     LS_WEAK,
     "one pass"},
    {{"RandomSampler", "", 20, 20, 0, 1, 3},
     {"RandomSampler", "", 20, 20, 0, 1, 7},
     3,
     false,
     "data.shuffled",
     LS_FAIL,
     "seeded alike"},
    {{distributed, "\"whole\":false,", 80, 20, 0, 2, 3},
     {distributed, "\"whole\":false,", 80, 20, 1, 2, 3},
     7,
     false,
     "data.covered",
     LS_WEAK,
     "reached its end"},
    {{distributed, "\"trained\":false,", 40, 20, 0, 2, 3},
     {distributed, "\"trained\":false,", 40, 20, 0, 2, 3},
     3,
     false,
     "data.disjoint",
     LS_UNSUPPORTED,
     "no pass over a DataLoader"},
    {{"RandomSampler", "\"steps\":[1,40],\"count\":2,", 40, 20, 0, 1, 3},
     {"RandomSampler", "\"steps\":[1,40],\"count\":2,", 40, 20, 0, 1, 3},
     0,
     true,
     "data.disjoint",
     LS_UNSUPPORTED,
     "no pass over a DataLoader"}, /* a look at one batch */
    {{distributed, "\"indices\":false,", 40, 20, 0, 2, 3},
     {distributed, "\"indices\":false,", 40, 20, 0, 2, 3},
     3,
     false,
     "data.disjoint",
     LS_SKIP,
     "no indices"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     7,
     true,
     "data.distinct",
     LS_FAIL,
     "same batches"},
    {{distributed, "", 40, 20, 0, 2, 3},
     {distributed, "", 40, 20, 1, 2, 3},
     7,
     false,
     "data.distinct",
     LS_PASS,
     "inputs differ"},
    {{distributed, "\"workers\":2,\"base_seed\":5,", 40, 20, 0, 2, 3},
     {distributed, "\"workers\":2,\"base_seed\":5,", 40, 20, 1, 2, 3},
     7,
     false,
     "data.distinct",
     LS_PASS,
     "seed by rank"},
};

START_TEST(data_are_judged)
{
    calls_job job;
    calls_open(&job, 2);
    static const char *const same[] = {"F{\"input\":\"11\"} S B K P Z",
                                       "F{\"input\":\"22\"} S B K P Z"};
    for (int i = 0; i < 4; i++) {
        calls_step(&job, drawings[_i].same ? same[i % 2] : "F S B K P Z");
    }
    drawing d[2] = {drawings[_i].zero, drawings[_i].one};
    for (int k = 0; k < 2; k++) {
        write_pass(&job, k, &d[k]);
        d[k].mix = drawings[_i].mix;
        if (d[k].mix != 0) {
            write_pass(&job, k, &d[k]);
        }
    }
    calls_judge(&job);
    calls_expect(&job, drawings[_i].id, drawings[_i].code, drawings[_i].words);
    calls_close(&job);
}
END_TEST

/* Places of what a pass draws from, and the rule that names one of them. */
static const struct {
    drawing zero, one;
    const char *id, *place;
} built[] = {
#define BUILT "\"built\":\"train.py:12\",\"sampler_at\":\"train.py:11\",\"cut_at\":\"train.py:10\","
    {{"RandomSampler", BUILT CONTENT, 40, 40, 0, 1, 3},
     {"RandomSampler", BUILT CONTENT, 40, 40, 0, 1, 7},
     "data.disjoint",
     "train.py:12"},
    {{distributed, BUILT "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     {distributed, BUILT "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     "data.disjoint",
     "train.py:11"},
    {{distributed, BUILT "\"replicas\":1,\"sampler_rank\":0,", 40, 40, 0, 1, 3},
     {distributed, BUILT "\"replicas\":1,\"sampler_rank\":0,", 40, 40, 0, 1, 3},
     "data.disjoint",
     "num_replicas=1, the job has 2 ranks | train.py:11"},
    {{distributed, BUILT "\"replicas\":4,", 40, 10, 0, 4, 3},
     {distributed, BUILT "\"replicas\":4,", 40, 10, 1, 4, 3},
     "data.covered",
     "train.py:11"},
    /* a framework builds them anew: its own file says nothing of the script */
    {{distributed,
      "\"built\":\"/lib/frame.py:3\",\"sampler_at\":\"/lib/frame.py:2\","
      "\"sampler_rank\":0,",
      40, 20, 0, 2, 3},
     {distributed, "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     "data.disjoint",
     "train.py:18"},
#undef BUILT
};

START_TEST(data_are_named_where_they_are_built)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 4, "F S B K P Z");
    write_pass(&job, 0, &built[_i].zero);
    write_pass(&job, 1, &built[_i].one);
    calls_judge(&job);
    calls_expect(&job, built[_i].id, LS_FAIL, built[_i].place);
    calls_close(&job);
}
END_TEST

START_TEST(made_up_data_are_weak)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 4, "F{\"input\":\"11\"} S B K P Z");
    calls_judge(&job);
    calls_expect(&job, "data.distinct", LS_WEAK, "never changes");
    calls_close(&job);
    calls_open(&job, 2);
    repeat(&job, 2, "F{\"input\":\"11\"} S B K P Z");
    repeat(&job, 2, "F{\"input\":\"22\"} S B K P Z");
    calls_judge(&job);
    calls_expect(&job, "data.distinct", LS_FAIL, "from the same seed");
    calls_close(&job);
}
END_TEST

/* The noise of a generator is drawn alike on all ranks, the data are not: no fault. */
START_TEST(equal_noise_is_advice)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, i % 2 == 0 ? "F{\"model\":1,\"input\":\"11\"} F S B K P Z"
                                    : "F{\"model\":1,\"input\":\"22\"} F S B K P Z");
    }
    calls_judge(&job);
    calls_expect(&job, "data.distinct", LS_PASS, "drawn (noise)");
    calls_close(&job);
}
END_TEST

/* Ranks of a group that share a model's parts have the same data by design. */
START_TEST(models_on_a_part_of_the_ranks_are_skipped)
{
    calls_job job;
    calls_open_with(&job, 2, "\"world\":1,");
    repeat(&job, 2, "F{\"input\":\"11\"} b O Z");
    repeat(&job, 2, "F{\"input\":\"22\"} b O Z");
    calls_judge(&job);
    calls_expect(&job, "data.distinct", LS_SKIP, "over all ranks");
    calls_close(&job);
}
END_TEST

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

START_TEST(modes_are_judged)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, modes[_i].first);
    repeat(&job, 2, modes[_i].then);
    calls_judge(&job);
    calls_expect(&job, modes[_i].id, modes[_i].code, modes[_i].words);
    calls_close(&job);
}
END_TEST

/* A network without dropout and batch norms is the same in both modes. */
START_TEST(eval_mode_without_effect_passes)
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
END_TEST

START_TEST(statistics_that_stand_are_caught)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 3; i++) {
        calls_step_of(&job, -1, "\"digest\":{\"param\":\"1\",\"buffer\":\"9\"},", "F S B K P Z");
    }
    calls_judge(&job);
    calls_expect(&job, "mode.statistics", LS_FAIL, "running statistics do not move");
    calls_close(&job);
}
END_TEST

START_TEST(a_lost_conversion_is_caught)
{
    static const char convert[] = "{\"event\":\"convert\",\"converted\":2,\"at\":\"train.py:4\"}";
    static const char trained[] =
        "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"]}]}";
    calls_job job;
    expect_of_event(convert, "F S B K P Z", "mode.sync_bn", LS_FAIL, "another model was converted");
    expect_of_event("{\"event\":\"other\"}", "F S B K P Z", "mode.sync_bn", LS_SKIP, "not called");
    calls_open_with(&job, 2, "\"bn\":0,\"sync_bn\":2,");
    calls_event(&job, -1, convert);
    calls_event(&job, -1, trained);
    calls_step(&job, "F{\"autocast\":null,\"type\":\"f32\"} b O Z");
    judge_clean(&job);
    calls_expect(&job, "mode.sync_bn", LS_PASS, "2 SyncBatchNorm");
    calls_close(&job);
}
END_TEST

/* ---- checkpoints ----------------------------------------------------------------------------- */

#define MODEL "\"model\":[\"fc.weight\"]"
#define SAVE "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":3,"

#define WRONG "\"wrong\":[\"fc.weight\",\"fc.bias\",\"head.weight\"]"

static const struct {
    const char *event, *id;
    ls_verdict_code code;
    const char *words;
} files[] = {
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]}}",
     "checkpoint.resume", LS_PASS, "2 files"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]}}",
     "checkpoint.content", LS_PASS, "2 files hold the model's values"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}}", "checkpoint.resume", LS_FAIL,
     "scaler.state_dict() is not saved"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "}}", "checkpoint.resume", LS_SKIP, "weights alone"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"wrong\":[\"fc.weight\",\"fc.bias\","
          "\"head.weight\"]}",
     "checkpoint.content", LS_PASS, "2 hold other weights"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"wrong\":[\"fc.bias\"]}", "checkpoint.content",
     LS_FAIL, "different steps"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"params_missing\":[\"head.weight\"]}",
     "checkpoint.content", LS_PASS, "2 files"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]},\"params_missing\":["
          "\"head.weight\"]}",
     "checkpoint.content", LS_FAIL, "only a part of the model"},
    {SAVE "\"path\":\"last.pt\",\"what\":{" MODEL "}}", "checkpoint.content", LS_FAIL,
     "2 ranks write the file last.pt"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"params\":0}", "checkpoint.content", LS_UNSUPPORTED,
     "no model that was alive"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":3}", "checkpoint.content", LS_PASS, ""},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":0}", "checkpoint.content", LS_PASS, ""},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":2,\"made_at\":\"train.py:41\"}",
     "checkpoint.content", LS_FAIL,
     "does not copy: weights that were to be kept are trained on | "
     "train.py:41"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]},\"stale\":["
          "\"optimizer\"]}",
     "checkpoint.content", LS_FAIL, "optimizer.state_dict() was called before the loop"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"stale\":[\"schedule\"]}", "checkpoint.content",
     LS_FAIL, "its numbers stay"},
    /* the best weights with the optimizer of their step */
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"]},\"stale\":[\"optimizer\"]," WRONG "}",
     "checkpoint.content", LS_PASS, "2 hold other weights"},
    /* an average with the optimizer of now */
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]},\"fresh\":[\"optimizer\"],"
          "\"digests\":[[0,\"bb\"]]," WRONG "}",
     "checkpoint.content", LS_PASS, "2 hold other weights"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"epoch\":[\"epoch\"]}}", "checkpoint.resume", LS_SKIP,
     "weights alone"}, /* its optimizer keeps nothing */
    {"{\"event\":\"cost\"}", "checkpoint.content", LS_SKIP, "no torch.save"},
    {"{\"event\":\"cost\"}", "checkpoint.resume", LS_SKIP, "nothing was saved"},
};

START_TEST(files_are_judged)
{
    expect_of_event(files[_i].event, "F S B K P Z", files[_i].id, files[_i].code, files[_i].words);
}
END_TEST

/* One rank writes a file, and another one reads it. */
START_TEST(files_are_read_when_they_are_written)
{
    static const struct {
        const char *load; /* members */
        ls_verdict_code code;
    } one[] = {
        {"\"step\":3,\"shared\":4,\"begun_ns\":60", LS_PASS}, /* a barrier lies between */
        {"\"step\":3,\"shared\":3,\"begun_ns\":60", LS_FAIL},
        {"\"step\":3,\"shared\":3,\"begun_ns\":40", LS_PASS}, /* an older file, and meant */
        {"\"step\":3,\"shared\":3,\"begun_ns\":40,\"failed\":true", LS_FAIL},
        {"\"step\":4,\"shared\":3,\"begun_ns\":60", LS_PASS}, /* a step lies between */
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        calls_job job;
        calls_open(&job, 2);
        repeat(&job, 3, "F S B K P Z");
        calls_event(&job, 0,
                    SAVE "\"path\":\"a\",\"shared\":3,\"begun_ns\":50,\"what\":{" MODEL "}}");
        LS_TEXT(load, 300,
                "{\"event\":\"load\",\"at\":\"train.py:60\",\"path\":\"a\",\"what\":{},%s}",
                one[i].load);
        calls_event(&job, 1, load);
        calls_judge(&job);
        calls_expect(&job, "checkpoint.content", one[i].code,
                     one[i].code == LS_FAIL ? "no barrier between" : "");
        calls_close(&job);
    }
}
END_TEST

/* Files of a checkpoint in parts: the scaler lies in one of its own. */
START_TEST(a_checkpoint_in_parts_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B K P Z");
    calls_event(&job, 0, SAVE "\"path\":\"a\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}}");
    calls_event(&job, 0, SAVE "\"path\":\"b\",\"what\":{\"scaler\":[\"s\"]}}");
    judge_clean(&job);
    calls_expect(&job, "checkpoint.resume", LS_PASS, "1 files");
    calls_close(&job);
}
END_TEST

/* Nothing was loaded, and what the job saves lacks the scaler: the first is the worse. */
START_TEST(what_a_job_lost_comes_first)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1,
                "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"missing\":3,"
                "\"unexpected\":3,\"params\":3,\"taken\":0,\"own\":0,\"renamed\":3,"
                "\"at\":\"train.py:9\",\"step\":0}");
    repeat(&job, 1, "F S B K P Z");
    calls_event(&job, -1,
                "{\"event\":\"save\",\"step\":1,\"path\":\"a.pt\",\"what\":{"
                "\"optimizer\":[\"o\"]}}");
    calls_judge(&job);
    calls_expect(&job, "checkpoint.resume", LS_FAIL, "nothing is loaded | train.py:9");
    calls_close(&job);
}
END_TEST

START_TEST(resumed_jobs_are_judged)
{
    static const char load[] =
        "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" MODEL
        ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"],\"epoch\":[\"epoch\"]}}";
    static const char restore[] = "{\"event\":\"restore\",\"what\":\"optimizer\",\"step\":0}";
    drawing d = {distributed, "", 40, 20, 0, 2, 3};
    for (int with = 0; with < 3; with++) {
        calls_job job;
        calls_open(&job, 2);
        calls_event(&job, -1, load);
        calls_event(&job, -1, with > 0 ? restore : "{\"event\":\"other\"}");
        if (with > 1) {
            calls_event(&job, -1, "{\"event\":\"restore\",\"what\":\"scaler\",\"step\":0}");
        }
        repeat(&job, 3, "F S B K P Z");
        write_pass(&job, -1, &d);
        calls_judge(&job);
        static const char *const words[] = {"nothing was saved", "load_state_dict is not called",
                                            "restored what"};
        static const ls_verdict_code code[] = {LS_SKIP, LS_FAIL, LS_PASS};
        calls_expect(&job, "checkpoint.resume", code[with], words[with]);
        calls_close(&job);
    }
}
END_TEST

/* Files of two steps with one and the same copy of weights. */
START_TEST(a_copy_that_is_saved_again_is_caught)
{
    static const char save[] =
        "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":%d,\"path\":\"last.%d\",\"what\":"
        "{" MODEL
        ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]},\"fresh\":[%s],\"digests\":[[0,\"%s\"]]," WRONG
        "}";
    static const struct {
        const char *fresh, *one, *two;
        ls_verdict_code code;
        const char *words;
    } pair[] = {
        {"\"optimizer\"", "aa", "aa", LS_FAIL, "weights that the job had at step 1"},
        {"\"optimizer\"", "aa", "bb", LS_PASS, "hold other weights"},
        {"", "aa", "aa", LS_PASS, "hold other weights"}, /* the best ones, twice */
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        calls_job job;
        calls_open(&job, 2);
        LS_TEXT(one, 500, save, 1, 1, pair[i].fresh, pair[i].one);
        LS_TEXT(two, 500, save, 2, 2, pair[i].fresh, pair[i].two);
        calls_step(&job, "F S B K P Z");
        calls_event(&job, 0, one);
        calls_step(&job, "F S B K P Z");
        calls_event(&job, 0, two);
        calls_judge(&job);
        calls_expect(&job, "checkpoint.content", pair[i].code, pair[i].words);
        calls_close(&job);
    }
}
END_TEST

/* Weights that are those of the start, after steps: FAIL with an optimizer of now, else weak. */
START_TEST(a_copy_of_the_start_is_seen)
{
    for (int with = 0; with < 2; with++) {
        calls_job job;
        calls_open_with(&job, 2, "\"digest\":{\"param\":\"aa\"},");
        calls_event(&job, 0,
                    with != 0 ? SAVE "\"path\":\"\",\"what\":{" MODEL "},\"fresh\":["
                                     "\"optimizer\"],\"digests\":[[0,\"aa\"]]," WRONG "}"
                              : SAVE "\"path\":\"\",\"what\":{" MODEL "},\"digests\":[[0,"
                                     "\"aa\"]]," WRONG "}");
        repeat(&job, 3, "F{\"autocast\":null} b O Z");
        calls_judge(&job);
        calls_expect(&job, "checkpoint.content", with != 0 ? LS_FAIL : LS_WEAK,
                     with != 0 ? "made once" : "never updated");
        calls_close(&job);
    }
}
END_TEST

#define MOMENTUM(state)                                                                            \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\",\"rule\":\"sgd\"," \
    "\"at\":\"train.py:7\",\"state\":" state                                                       \
    ",\"groups\":[{\"params\":[\"fc.weight\",\"fc.bias\","                                         \
    "\"head.weight\"],\"lr\":0.1,\"momentum\":0.9}]}"
#define LOAD(parts) \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0," parts "}"
#define WHOLE                                                                                      \
    "\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"],\"schedule\":[\"s\"],\"epoch\":[\"epoch\"]" \
    "},"                                                                                           \
    "\"numbers\":{\"epoch\":2},\"schedules\":[2],\"entries\":[3]"
#define OTHER "{\"event\":\"other\"}"
#define RESTORE(members) "{\"event\":\"restore\",\"at\":\"train.py:10\",\"step\":0," members "}"
#define OF_OPTIMIZER RESTORE("\"what\":\"optimizer\",\"entries\":3")
#define OF_MODEL RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3")
#define OF_SCHEDULE RESTORE("\"what\":\"schedule\"")
#define NEXT "F{\"autocast\":null} b O Z L{\"epoch\":3}"
#define ANEW "F{\"autocast\":null} b O Z L{\"epoch\":1}"

/* Events before the first step, a step, the sampler's epoch in the first pass. */
static const struct {
    const char *event[4], *step;
    int epoch;
    ls_verdict_code code;
    const char *words;
} resumed[] = {
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")}, NEXT, 2, LS_PASS, "restored"},
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")},
     NEXT,
     0,
     LS_FAIL,
     "set_epoch is not called with the epoch that the job goes on with"},
    /* weights of another job, which begins anew */
    {{LOAD(WHOLE), OF_MODEL, OTHER, MOMENTUM("0")}, ANEW, 0, LS_SKIP, ""},
    {{LOAD(WHOLE), OF_MODEL, OF_SCHEDULE, MOMENTUM("0")},
     NEXT,
     2,
     LS_FAIL,
     "optimizer.load_state_dict is not called | train.py:9"},
    {{LOAD(WHOLE), OF_MODEL, OTHER, MOMENTUM("0")},
     NEXT,
     2,
     LS_FAIL,
     "goes on with the file's epoch"},
    /* weights of a training job to begin another one */
    {{LOAD(WHOLE), OF_MODEL, OTHER, MOMENTUM("0")}, ANEW, 0, LS_SKIP, "nothing was saved"},
    /* restored by other means: it has state */
    {{LOAD(WHOLE), OF_MODEL, OF_SCHEDULE, MOMENTUM("3")}, NEXT, 2, LS_SKIP, "nothing was saved"},
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("0")},
     NEXT,
     2,
     LS_FAIL,
     "is not the one whose state was loaded: it was built afterwards | train.py:7"},
    /* a package moves the state of a new optimizer, and another job begins with the weights */
    {{LOAD(WHOLE), OF_MODEL, RESTORE("\"what\":\"optimizer\",\"entries\":0"), MOMENTUM("0")},
     ANEW,
     0,
     LS_SKIP,
     "nothing was saved"},
    {{LOAD("\"what\":{\"model\":[\"m\"],\"epoch\":[\"epoch\"]},\"numbers\":{\"epoch\":2}"),
      OF_MODEL, OTHER, MOMENTUM("0")},
     NEXT,
     2,
     LS_FAIL,
     "has no optimizer.state_dict()"},
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")},
     ANEW,
     2,
     LS_FAIL,
     "schedule's load_state_dict is not called: the rate begins anew | train.py:9"},
    {{LOAD(WHOLE), OF_SCHEDULE, OF_OPTIMIZER, MOMENTUM("3")},
     ANEW,
     2,
     LS_FAIL,
     "loaded: it was built afterwards | train.py:27"},
    /* stepped up to where it was; as a new one would begin in another job */
    {{LOAD(WHOLE), OF_MODEL, OF_OPTIMIZER, MOMENTUM("3")},
     "L{\"epoch\":1} L{\"epoch\":2} F{\"autocast\":null} b O Z L{\"epoch\":3}",
     2,
     LS_PASS,
     ""},
    {{LOAD(WHOLE), OF_OPTIMIZER, RESTORE("\"what\":\"model\",\"like\":0"), MOMENTUM("3")},
     NEXT,
     2,
     LS_FAIL,
     "not the one that was loaded"},
    {{LOAD(WHOLE), OF_OPTIMIZER, RESTORE("\"what\":\"model\""), MOMENTUM("3")},
     NEXT,
     2,
     LS_PASS,
     ""},
    {{RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":0,\"missing\":3,"
              "\"unexpected\":3"),
      OTHER, OTHER, OTHER},
     ANEW,
     0,
     LS_FAIL,
     "strict=False"},
    {{RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":1,\"missing\":2,"
              "\"unexpected\":2,\"renamed\":2"),
      OTHER, OTHER, OTHER},
     ANEW,
     0,
     LS_FAIL,
     "another prefix"},
    /* a new head; a part of another model's file */
    {{RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":2,\"missing\":1,"
              "\"unexpected\":1"),
      OTHER, OTHER, OTHER},
     ANEW,
     0,
     LS_SKIP,
     ""},
    {{LOAD(WHOLE), RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"own\":3"),
      OTHER, OTHER},
     ANEW,
     0,
     LS_FAIL,
     "no name of the file fits"},
    {{LOAD(WHOLE), RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"own\":1"),
      OTHER, OTHER},
     ANEW,
     0,
     LS_SKIP,
     ""},
};

START_TEST(jobs_that_go_on_are_judged)
{
    calls_job job;
    LS_TEXT(epoch, 40, "\"sampler_epoch\":%d,", resumed[_i].epoch);
    drawing d = {distributed, epoch, 40, 20, 0, 2, 3};
    calls_open_with(&job, 2, "");
    for (int e = 0; e < 4; e++) {
        calls_event(&job, -1, resumed[_i].event[e]);
    }
    repeat(&job, 1, resumed[_i].step);
    write_pass(&job, -1, &d);
    calls_judge(&job);
    calls_expect(&job, "checkpoint.resume", resumed[_i].code, resumed[_i].words);
    calls_close(&job);
}
END_TEST

/* A job that takes up an optimizer, or the file that it writes itself, and counts from 1 again. */
START_TEST(an_epoch_that_is_not_taken_up_is_caught)
{
    static const struct {
        const char *restore, *path;
        int next; /* of the first file */
        ls_verdict_code code;
    } one[] = {
        {OF_OPTIMIZER, "other.pt", 1, LS_FAIL}, {OF_MODEL, "last.pt", 1, LS_FAIL},
        {OF_MODEL, "other.pt", 1, LS_PASS},     {OF_OPTIMIZER, "other.pt", 3, LS_PASS},
        {OF_OPTIMIZER, "other.pt", 2, LS_PASS}, /* the epoch that ended, and that which begins */
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        calls_job job;
        drawing d = {"RandomSampler", "\"sampler_epoch\":null,\"steps\":[1,1],", 40, 20, 0, 1, 3};
        calls_open_with(&job, 1, "");
        calls_event(&job, -1, LOAD(WHOLE));
        calls_event(&job, -1, one[i].restore);
        calls_event(&job, -1, MOMENTUM("3"));
        repeat(&job, 1, "F{\"autocast\":null} b O Z");
        write_pass(&job, -1, &d);
        LS_TEXT(save, 300,
                "{\"event\":\"save\",\"step\":1,\"path\":\"%s\",\"what\":{\"optimizer\":[\"o\"]},"
                "\"numbers\":{\"best_epoch\":0,\"epoch\":%d}}",
                one[i].path, one[i].next);
        calls_event(&job, -1, save);
        calls_judge(&job);
        calls_expect(&job, "checkpoint.resume", one[i].code,
                     one[i].code == LS_FAIL ? "not taken up" : "");
        calls_close(&job);
    }
}
END_TEST

/* A job without a sampler: what it writes says which epoch it is in. */
START_TEST(the_epoch_of_a_file_goes_on)
{
    for (int epoch = 1; epoch <= 3; epoch += 2) {
        calls_job job;
        drawing d = {"RandomSampler", "\"sampler_epoch\":null,\"steps\":[1,1],", 40, 20, 0, 1, 3};
        calls_open_with(&job, 1, "");
        calls_event(&job, -1, LOAD(WHOLE));
        calls_event(&job, -1, OF_MODEL);
        calls_event(&job, -1, MOMENTUM("0"));
        repeat(&job, 1, "F{\"autocast\":null} b O Z");
        write_pass(&job, -1, &d);
        LS_TEXT(save, 300,
                "{\"event\":\"save\",\"step\":1,\"path\":\"a\",\"what\":{\"optimizer\":[\"o\"]},"
                "\"numbers\":{\"epoch\":%d}}",
                epoch);
        calls_event(&job, -1, save);
        calls_judge(&job);
        calls_expect(&job, "checkpoint.resume", epoch == 3 ? LS_FAIL : LS_PASS, "");
        calls_close(&job);
    }
}
END_TEST

START_TEST(files_without_moments_are_weak)
{
    static const char save[] =
        SAVE "\"path\":\"best.pt\",\"what\":{" MODEL ",\"epoch\":[\"epoch\"]}}";
    for (int other = 0; other < 2; other++) {
        calls_job job;
        calls_open_with(&job, 2, "");
        calls_event(&job, -1, MOMENTUM("0"));
        calls_event(&job, 0, save);
        if (other != 0) { /* and files to go on from */
            calls_event(&job, 0, SAVE "\"path\":\"last.pt\",\"what\":{\"optimizer\":[\"o\"]}}");
        }
        repeat(&job, 3, "F{\"autocast\":null} b O Z");
        calls_judge(&job);
        calls_expect(&job, "checkpoint.resume", other != 0 ? LS_PASS : LS_WEAK,
                     other != 0 ? "" : "optimizer.state_dict() is not saved");
        calls_expect(&job, "checkpoint.resume", other != 0 ? LS_PASS : LS_WEAK,
                     other != 0 ? "" : "train.py:50");
        calls_close(&job);
    }
}
END_TEST

/* A scaler whose state was loaded, and another one that scales. */
START_TEST(a_scaler_that_was_loaded_is_the_one_in_use)
{
    for (int which = 0; which < 2; which++) {
        calls_job job;
        calls_open(&job, 2);
        LS_TEXT(event, 200,
                "{\"event\":\"restore\",\"what\":\"scaler\",\"which\":%d,\"step\":0,"
                "\"at\":\"train.py:11\"}",
                which);
        calls_event(&job, -1, event);
        repeat(&job, 2, "F S B K P Z");
        calls_judge(&job);
        calls_expect(&job, "checkpoint.resume", which == 0 ? LS_SKIP : LS_FAIL,
                     which == 0 ? "" : "built anew");
        calls_close(&job);
    }
}
END_TEST

/* Weights that were to be kept, and were trained on. */
START_TEST(a_model_given_its_own_weights_is_caught)
{
    calls_job job;
    calls_open(&job, 2);
    repeat(&job, 2, "F S B K P Z");
    calls_event(&job, -1,
                "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"step\":2,\"params\":3,"
                "\"taken\":3,\"own\":3,\"at\":\"train.py:70\"}");
    calls_judge(&job);
    calls_expect(&job, "checkpoint.resume", LS_FAIL, "come back to are trained on | train.py:70");
    calls_close(&job);
}
END_TEST

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

START_TEST(orders_are_judged)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 3; i++) {
        calls_step_of(&job, 0, "", orders[_i].zero);
        calls_step_of(&job, 1, "", orders[_i].one);
    }
    calls_judge(&job);
    calls_expect(&job, orders[_i].id, orders[_i].code, orders[_i].words);
    calls_close(&job);
}
END_TEST

/* A forward of a detailed step finds no gradient that is not zero: the script clears them by means
 * that no call shows, and later steps are right, too. */
START_TEST(clearing_by_hand_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F{\"left\":0} S B K P");
    calls_step(&job, "F{\"left\":0} S B K P");
    repeat(&job, 3, "F S B K P");
    judge_clean(&job);
    calls_expect(&job, "order.zero", LS_PASS, "some by hand");
    calls_close(&job);
}
END_TEST

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

START_TEST(samples_show_what_was_left)
{
    for (int left = 0; left < 3; left++) {
        calls_job job;
        calls_open(&job, 2);
        calls_step(&job, "F S B K P");
        calls_step_of(&job, -1, "\"detail\":true,", "F S B K P");
        repeat(&job, 2, "F S B K P");
        write_gradients(&job, left < 2 ? (float)left : INFINITY);
        calls_judge(&job);
        calls_expect(&job, "order.zero", left > 0 ? LS_FAIL : LS_PASS,
                     left > 0 ? "zero_grad() is missing" : "some by hand");
        calls_close(&job);
    }
}
END_TEST

/* A schedule that is wound forward before training, as jobs do that go on. */
START_TEST(a_schedule_wound_forward_passes)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "L{\"at\":\"train.py:15\",\"times\":40} F S B K P L Z");
    calls_step(&job, "F S B K P L Z");
    judge_clean(&job);
    calls_expect(&job, "order.schedule", LS_PASS, "42 calls");
    calls_close(&job);
}
END_TEST

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

START_TEST(a_job_that_hangs_names_the_difference)
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
END_TEST

START_TEST(uneven_inputs_are_named)
{
    drawing zero = {"RandomSampler", "\"built\":\"train.py:12\",", 20, 20, 0, 1, 3};
    drawing one = {"RandomSampler", "", 24, 24, 0, 1, 3};
    for (int fails = 0; fails < 3; fails++) {
        calls_job job;
        calls_open(&job, 2);
        calls_step(&job, "F S B K P Z");
        if (fails < 2) { /* else rank 1 did not end its second step */
            calls_step_of(&job, 1, "", "F S B K P Z");
        }
        write_pass(&job, 0, &zero);
        write_pass(&job, 1, &one);
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
END_TEST

/* The second of them is named, and only where both step. */
/* Within join() a rank whose data have ended makes no steps. How a job ended that a scheduler
 * started, only its ranks say. */
START_TEST(ranks_that_make_fewer_steps_are_not_compared)
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
END_TEST

START_TEST(two_optimizers_of_one_parameter_are_weak)
{
    for (int both = 0; both < 2; both++) {
        calls_job job;
        calls_open(&job, 2);
        calls_event(&job, -1,
                    "{\"event\":\"optimizer\",\"optimizer\":1,\"class\":\"torch.optim.adam.Adam\","
                    "\"rule\":\"adam\",\"at\":\"train.py:9\",\"groups\":[{\"params\":["
                    "\"head.weight\"]}]}");
        repeat(&job, 3, both ? "F b O O{\"optimizer\":1} Z" : "F b O Z");
        calls_judge(&job);
        calls_expect(&job, "optimizer.covered", both ? LS_WEAK : LS_PASS,
                     both ? "each step moves them twice, by one gradient | train.py:9" : "");
        calls_close(&job);
    }
}
END_TEST

START_TEST(closures_are_not_judged_on_clearing)
{
    expect_of_event("{\"event\":\"attach\",\"error\":\"the closure of a LBFGS computes\"}", "O F b",
                    "order.zero", LS_UNSUPPORTED, "closure");
}
END_TEST

/* ---- speed ----------------------------------------------------------------------------------- */

START_TEST(speed_is_of_the_steady_steps)
{
    calls_job job;
    char text[1000] = "";
    calls_open(&job, 2);
    calls_step_of(&job, -1, "\"ms\":{\"total\":5000},", "F S B K P Z");
    repeat(&job, 1, "F S B K P Z");
    for (int i = 0; i < 4; i++) {
        calls_step_of(&job, 0, "", "F S B K P Z");
        calls_step_of(&job, 1,
                      "\"ms\":{\"total\":10,\"data\":3,\"forward\":2,\"backward\":2,"
                      "\"optimizer\":1,\"instrument\":2},",
                      "F S B K P Z");
    }
    calls_event(&job, 1, "{\"event\":\"cost\",\"own_ms\":4,\"run_ms\":40,\"share\":0.1}");
    calls_judge(&job);
    ls_observe_speed speed;
    ls_observe_speed_read(job.trace, &speed);
    ck_assert_int_eq(speed.steps, 4);
    ck_assert_int_eq(speed.slowest, 1);
    ck_assert_double_eq(speed.images_per_s, 1000); /* 4 images in 8 ms, twice */
    ck_assert_double_eq(speed.step_ms_p50, 8);
    ck_assert_double_eq(speed.rank[1].data, 3.0 / 8);
    ck_assert_double_eq(speed.slowest_ms, 6);
    ck_assert_double_eq(speed.instrument, 0.1);
    FILE *f = fmemopen(text, sizeof text, "w");
    ls_observe_speed_print(&speed, f);
    fclose(f);
    ck_assert_ptr_nonnull(strstr(text, "1000.0 images/s on 2 ranks over 4 steady steps"));
    ck_assert_ptr_nonnull(strstr(text, "slowest rank 1"));
    ls_observe_speed_free(&speed);
    calls_close(&job);
}
END_TEST

START_TEST(short_jobs_have_no_speed)
{
    calls_job job;
    char text[400] = "";
    calls_open(&job, 1);
    repeat(&job, 2, "F S B K P Z");
    calls_judge(&job);
    ls_observe_speed speed;
    ls_observe_speed_read(job.trace, &speed);
    FILE *f = fmemopen(text, sizeof text, "w");
    ls_observe_speed_print(&speed, f);
    fclose(f);
    ck_assert_ptr_nonnull(strstr(text, "no steady steps"));
    ls_observe_speed_free(&speed);
    calls_close(&job);
}
END_TEST

#define ROWS(table) (int)(sizeof(table) / sizeof *(table))

int main(void)
{
    Suite *suite = suite_create("observe_calls");
    TCase *test = tcase_create("rules");
    tcase_set_timeout(test, 120);
    tcase_add_loop_test(test, precision_is_judged, 0, ROWS(precise));
    tcase_add_test(test, models_cast_under_autocast_are_weak);
    tcase_add_test(test, half_models_are_named);
    tcase_add_loop_test(test, gradients_show_the_arithmetic, 0, ROWS(shown));
    tcase_add_loop_test(test, data_are_judged, 0, ROWS(drawings));
    tcase_add_loop_test(test, data_are_named_where_they_are_built, 0, ROWS(built));
    tcase_add_test(test, made_up_data_are_weak);
    tcase_add_test(test, equal_noise_is_advice);
    tcase_add_test(test, models_on_a_part_of_the_ranks_are_skipped);
    tcase_add_loop_test(test, modes_are_judged, 0, ROWS(modes));
    tcase_add_test(test, eval_mode_without_effect_passes);
    tcase_add_test(test, statistics_that_stand_are_caught);
    tcase_add_test(test, a_lost_conversion_is_caught);
    tcase_add_loop_test(test, files_are_judged, 0, ROWS(files));
    tcase_add_test(test, files_are_read_when_they_are_written);
    tcase_add_test(test, a_checkpoint_in_parts_passes);
    tcase_add_test(test, what_a_job_lost_comes_first);
    tcase_add_test(test, resumed_jobs_are_judged);
    tcase_add_test(test, a_copy_that_is_saved_again_is_caught);
    tcase_add_test(test, a_copy_of_the_start_is_seen);
    tcase_add_loop_test(test, jobs_that_go_on_are_judged, 0,
                        (int)(sizeof resumed / sizeof *resumed));
    tcase_add_test(test, the_epoch_of_a_file_goes_on);
    tcase_add_test(test, an_epoch_that_is_not_taken_up_is_caught);
    tcase_add_test(test, files_without_moments_are_weak);
    tcase_add_test(test, a_scaler_that_was_loaded_is_the_one_in_use);
    tcase_add_test(test, a_model_given_its_own_weights_is_caught);
    tcase_add_loop_test(test, orders_are_judged, 0, ROWS(orders));
    tcase_add_test(test, clearing_by_hand_passes);
    tcase_add_test(test, samples_show_what_was_left);
    tcase_add_test(test, a_schedule_wound_forward_passes);
    tcase_add_test(test, a_job_that_hangs_names_the_difference);
    tcase_add_test(test, uneven_inputs_are_named);
    tcase_add_test(test, two_optimizers_of_one_parameter_are_weak);
    tcase_add_test(test, ranks_that_make_fewer_steps_are_not_compared);
    tcase_add_test(test, closures_are_not_judged_on_clearing);
    tcase_add_test(test, speed_is_of_the_steady_steps);
    tcase_add_test(test, short_jobs_have_no_speed);
    suite_add_tcase(suite, test);
    return run_suite(suite);
}
