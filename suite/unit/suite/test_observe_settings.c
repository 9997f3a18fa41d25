/* Rules of an optimizer's settings, of lengths of schedules and of averages, on invented jobs:
 * mistakes and the right practices that look like them. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

#define GROUPS(a, b)                                                                               \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.adamw.AdamW\","              \
    "\"rule\":\"adamw\",\"at\":\"train.py:7\",\"state\":0,\"set_at\":\"train.py:19\",\"groups\":[" \
    "{\"params\":["                                                                                \
    "\"fc.weight\",\"head.weight\"]," a "},{\"params\":[\"fc.bias\"]," b "}]}"
#define ALIKE GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.1")
#define APART GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.01")

static void open_job(calls_job *job, const char *optimizer)
{
    calls_open_with(job, 2, "");
    calls_event(job, -1, optimizer);
}

/* The rates of the groups in each of four steps, or "" of the usual ones; the verdict. */
static const struct {
    const char *optimizer;
    const char *calls[4];
    ls_verdict_code code;
    const char *words;
} rates[] = {
    {ALIKE,
     {"F b O{\"lr\":[0.4,0.1]}", "F b O{\"lr\":[0.3,0.1]}", "F b O{\"lr\":[0.2,0.1]}",
      "F b O{\"lr\":[0.1,0.1]}"},
     LS_FAIL,
     "some parameter groups only"},
    {ALIKE,
     {"F b O{\"lr\":[0.4,0.4]}", "F b O{\"lr\":[0.3,0.3]}", "F b O{\"lr\":[0.2,0.2]}",
      "F b O{\"lr\":[0.1,0.1]}"},
     LS_PASS,
     "2 parameter groups"},
    /* frozen by a rate of 0 */
    {ALIKE,
     {"F b O{\"lr\":[0.4,0]}", "F b O{\"lr\":[0.3,0]}", "F b O{\"lr\":[0.2,0]}",
      "F b O{\"lr\":[0.1,0]}"},
     LS_PASS,
     "2 parameter groups"},
    /* a mark of the script's own */
    {GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.1,\"own\":{\"fix_lr\":null}"),
     {"F b O{\"lr\":[0.4,0.1]}", "F b O{\"lr\":[0.3,0.1]}", "F b O{\"lr\":[0.2,0.1]}",
      "F b O{\"lr\":[0.1,0.1]}"},
     LS_PASS,
     "2 parameter groups"},
    /* names, by which a script may choose */
    {GROUPS("\"lr\":0.1,\"built_lr\":0.1,\"own\":{\"name\":\"encoder\"}",
            "\"lr\":0.1,\"built_lr\":0.1,\"own\":{\"name\":\"predictor\"}"),
     {"F b O{\"lr\":[0.4,0.1]}", "F b O{\"lr\":[0.3,0.1]}", "F b O{\"lr\":[0.2,0.1]}",
      "F b O{\"lr\":[0.1,0.1]}"},
     LS_WEAK,
     "some parameter groups only"},
    /* a schedule with a rate for each group */
    {ALIKE,
     {"F b O{\"lr\":[0.4,0.1]} L{\"optimizer\":0,\"lr\":[0.3,0.1]}",
      "F b O{\"lr\":[0.3,0.1]} L{\"optimizer\":0,\"lr\":[0.2,0.1]}",
      "F b O{\"lr\":[0.2,0.1]} L{\"optimizer\":0,\"lr\":[0.1,0.1]}", "F b O{\"lr\":[0.1,0.1]}"},
     LS_PASS,
     "2 parameter groups"},
    {APART,
     {"F b O{\"lr\":[0.4,0.4]}", "F b O{\"lr\":[0.3,0.3]}", "F b O{\"lr\":[0.2,0.2]}",
      "F b O{\"lr\":[0.1,0.1]}"},
     LS_FAIL,
     "writes one rate over those of the groups | train.py:19"},
    {APART,
     {"F b O{\"lr\":[0,0]}", "F b O{\"lr\":[0.3,0.03]}", "F b O{\"lr\":[0.2,0.02]}",
      "F b O{\"lr\":[0.1,0.01]}"},
     LS_PASS,
     "2 parameter groups"},
    {ALIKE,
     {"F b O{\"lr\":[0.1,0.1]}", "F b O{\"lr\":[0.1,0.1],\"unread\":\"defaults\"}",
      "F b O{\"lr\":[0.1,0.1],\"unread\":\"defaults\"}",
      "F b O{\"lr\":[0.1,0.1],\"unread\":\"defaults\"}"},
     LS_FAIL,
     "each parameter group has its own | train.py:19"},
    {ALIKE,
     {"F b O{\"lr\":[0.1,0.1]}", "F b O{\"lr\":[0.2,0.2],\"unread\":\"lr\"}",
      "F b O{\"lr\":[0.3,0.3],\"unread\":\"lr\"}", "F b O{\"lr\":[0.3,0.3],\"unread\":\"lr\"}"},
     LS_PASS,
     "2 parameter groups"},
};

ROWS_TEST(rates_reach_their_groups, rates)
{
    calls_job job;
    open_job(&job, rates[_i].optimizer);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, rates[_i].calls[i]);
    }
    calls_end(&job, "optimizer.settings", rates[_i].code, rates[_i].words);
}

#define TWO_SPARED(a, b, words)                                                       \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.adamw.AdamW\"," \
    "\"rule\":\"adamw\",\"at\":\"train.py:7\",\"state\":0,\"groups\":[" a "," b "]" words "}"
#define TWO(a, b) TWO_SPARED(a, b, "")

static const struct {
    const char *optimizer;
    ls_verdict_code code;
    const char *words;
} groups[] = {
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0.1}",
         "{\"params\":[\"fc.bias\"],\"weight_decay\":0}"),
     LS_PASS, "2 parameter groups"},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0}",
         "{\"params\":[\"fc.bias\"],\"weight_decay\":0.1}"),
     LS_FAIL, "exchanged"},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\",\"fc.bias\"],\"weight_decay\":0.1}",
         "{\"params\":[],\"weight_decay\":0}"),
     LS_WEAK, "catches nothing"}, /* as a filter by norms alone does in a model without any */
    {TWO_SPARED("{\"params\":[\"fc.weight\",\"head.weight\",\"fc.bias\"],\"weight_decay\":0.1}",
                "{\"params\":[],\"weight_decay\":0}",
                ",\"spared\":{\"words\":[\"Bias\",\"bias.\"],\"at\":\"train.py:5\"}"),
     LS_FAIL, "catches nothing"},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0.1}",
         "{\"params\":[],\"weight_decay\":0}"),
     LS_PASS, "2 parameter groups"}, /* a model without biases and norms */
    {TWO("{\"params\":[],\"weight_decay\":0.1}",
         "{\"params\":[\"fc.weight\",\"head.weight\",\"fc.bias\"],\"weight_decay\":0}"),
     LS_FAIL, "nothing decays"},
    {TWO("{\"params\":[\"fc.weight\"],\"weight_decay\":0.1,\"own\":{\"weight_decay_rate\":0.5}}",
         "{\"params\":[\"fc.bias\",\"head.weight\"],\"weight_decay\":0}"),
     LS_FAIL, "call it 'weight_decay'"},
    {TWO("{\"params\":[\"fc.weight\"],\"weight_decay\":0.1,\"own\":{\"lr_scale\":0.5}}",
         "{\"params\":[\"fc.bias\",\"head.weight\"],\"weight_decay\":0}"),
     LS_PASS, "2 parameter groups"},
};

ROWS_TEST(decay_is_of_some, groups)
{
    calls_job job;
    open_job(&job, groups[_i].optimizer);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, "F b O");
    }
    calls_end(&job, "optimizer.settings", groups[_i].code, groups[_i].words);
}

#define NUMBERED(number, rule, at)                                                           \
    "{\"event\":\"optimizer\",\"optimizer\":" number ",\"class\":\"torch.optim.sgd.SGD\","   \
    "\"rule\":\"" rule "\",\"at\":\"train.py:" at "\",\"state\":0,\"groups\":[{\"params\":[" \
    "\"fc.weight\",\"fc.bias\",\"head.weight\"],\"lr\":0.1,\"built_lr\":0.1,\"momentum\":0}]}"
#define PASS_OF(loader, pass, first, last)                                                \
    "{\"event\":\"data\",\"loader\":" loader ",\"pass\":" pass ",\"at\":\"train.py:15\"," \
    "\"trained\":true,\"whole\":true,\"batch\":4,\"count\":" COUNT                        \
    ",\"length\":64,\"steps\":[" first "," last "]}"
#define COUNT "8"

/* Two optimizers for two steps each: built on which lines, of which rule, with which loader. */
static const struct {
    const char *first, *second, *data;
    ls_verdict_code code;
    const char *words;
} rebuilt[] = {
    {NUMBERED("0", "adam", "7"), NUMBERED("1", "adam", "7"), PASS_OF("0", "1", "3", "4"), LS_FAIL,
     "begin anew"},
    {NUMBERED("0", "adam", "7"), NUMBERED("1", "adam", "7"), PASS_OF("1", "0", "3", "4"), LS_WEAK,
     "begin anew"}, /* another training, by the same function */
    {NUMBERED("0", "sgd", "7"), NUMBERED("1", "sgd", "7"), PASS_OF("0", "1", "3", "4"), LS_PASS,
     "2 optimizers"}, /* without momentum there is nothing to lose */
    {NUMBERED("0", "adam", "7"), NUMBERED("1", "adam", "9"), PASS_OF("0", "1", "3", "4"), LS_PASS,
     "2 optimizers"},
};

ROWS_TEST(moments_last, rebuilt)
{
    calls_job job;
    open_job(&job, rebuilt[_i].first);
    calls_event(&job, -1, rebuilt[_i].second);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, i < 2 ? "F b O" : "F b O{\"optimizer\":1}");
    }
    calls_event(&job, -1, PASS_OF("0", "0", "1", "2"));
    calls_event(&job, -1, rebuilt[_i].data);
    calls_end(&job, "optimizer.settings", rebuilt[_i].code, rebuilt[_i].words);
}

/* ---- lengths --------------------------------------------------------------------------------- */

#define SCHEDULE(class, members)                                                                   \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"" class "\",\"at\":\"train.py:9\","        \
                                                                "\"step\":0,\"holds\":[]," members \
                                                                "}"

/* Twelve steps of two passes on two ranks; what each calls. */
static const struct {
    const char *schedule, *calls;
    bool whole;
    ls_verdict_code code;
    const char *words;
} spans[] = {
    {SCHEDULE("CosineAnnealingLR", "\"span\":12,\"base\":0.1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0}", true, LS_PASS, "12 calls"},
    {SCHEDULE("CosineAnnealingLR", "\"span\":2,\"base\":0.1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0}", true, CALLS_HINT,
     "epochs, and it is stepped with each batch"},
    {SCHEDULE("CosineAnnealingLR", "\"span\":5,\"base\":0.1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0}", true, LS_WEAK, "rises again"},
    {SCHEDULE("OneCycleLR", "\"span\":24,\"base\":0.1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0}", true, CALLS_HINT, "steps of all ranks together"},
    {SCHEDULE("OneCycleLR", "\"span\":24,\"base\":0.1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0}", false, LS_PASS,
     "12 calls"}, /* it was stopped in the middle of a pass */
    {SCHEDULE("OneCycleLR", "\"span\":36,\"base\":0.1"),
     "F b{\"sync\":false} F b{\"sync\":false} F b O Z L{\"optimizer\":0,\"schedule\":0}", true,
     CALLS_HINT, "stepped once for several of them"},
    {SCHEDULE("LambdaLR", "\"span\":48,\"base\":0.1"), "F b O Z L{\"optimizer\":0,\"schedule\":0}",
     true, CALLS_HINT, "samples of a rank"},
    {SCHEDULE("LambdaLR", "\"span\":17,\"base\":0.1"), "F b O Z L{\"optimizer\":0,\"schedule\":0}",
     true, LS_PASS, "12 calls"}, /* longer than the job, by nothing that is known */
    {SCHEDULE("LambdaLR", "\"span\":72,\"base\":0.1"), /* as Accelerate's example */
     "F b{\"sync\":false} F b{\"sync\":false} F b O Z "
     "L{\"optimizer\":0,\"schedule\":0,\"times\":2,\"at\":\"train.py:70 "
     "(accelerate/scheduler.py:80)\"}",
     true, LS_WEAK, "once for each rank"},
    {SCHEDULE("LambdaLR", "\"span\":null,\"base\":0.1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0,\"lr\":[0.01]}", true, CALLS_HINT,
     "its function returns a rate"},
    {SCHEDULE("LambdaLR", "\"span\":null,\"base\":1"),
     "F b O Z L{\"optimizer\":0,\"schedule\":0,\"lr\":[0.01]}", true, LS_PASS, "12 calls"},
};

ROWS_TEST(lengths_are_counted, spans)
{
    calls_job job;
    open_job(&job, ALIKE);
    calls_event(&job, -1, spans[_i].schedule);
    for (int i = 0; i < 12; i++) {
        calls_step(&job, spans[_i].calls);
    }
    calls_event(&job, -1, PASS_OF("0", "0", "1", "6"));
    calls_event(&job, -1,
                spans[_i].whole ? PASS_OF("0", "1", "7", "12")
                                : "{\"event\":\"data\",\"loader\":0,\"pass\":1,\"trained\":true,"
                                  "\"whole\":false,\"batch\":4,\"count\":8,\"steps\":[7,12]}");
    calls_end(&job, "order.schedule", spans[_i].code, spans[_i].words);
}

/* A warm-up of two calls, then a cosine: its length, where the job makes 12 calls. */
static const struct {
    int span, whole; /* of the cosine, and of both */
    ls_verdict_code code;
    const char *words;
    bool early; /* a break may leave the loop */
} sequences[] = {
    {10, 12, LS_PASS, "12 calls"},
    {12, 14, CALLS_HINT, "not taken off"},
    {15, 17, LS_PASS, "12 calls"}, /* a job that ends early */
    {12, 14, LS_WEAK, "it stops 2 calls before", .early = true},
};

ROWS_TEST(a_warm_up_is_taken_off, sequences)
{
    calls_job job;
    open_job(&job, ALIKE);
    LS_TEXT(parts, 500,
            "{\"event\":\"schedule\",\"schedule\":1,\"class\":\"LinearLR\",\"span\":null,"
            "\"at\":\"train.py:13\"}\n{\"event\":\"schedule\",\"schedule\":2,"
            "\"class\":\"CosineAnnealingLR\",\"span\":%d,\"at\":\"train.py:14\"}\n",
            sequences[_i].span);
    ls_text_add(parts, sizeof parts,
                "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"SequentialLR\",\"span\":%d,"
                "\"base\":0.1,\"holds\":[1,2],\"at\":\"train.py:15\",\"stops_early\":%s}",
                sequences[_i].whole, sequences[_i].early ? "true" : "false");
    calls_event(&job, -1, parts);
    for (int i = 0; i < 12; i++) {
        calls_step(&job, "F b O Z L{\"optimizer\":0,\"schedule\":0}");
    }
    calls_event(&job, -1, PASS_OF("0", "0", "1", "12"));
    calls_end(&job, "order.schedule", sequences[_i].code, sequences[_i].words);
}

/* ---- windows --------------------------------------------------------------------------------- */

#define MICRO "F b{\"sync\":false} "

/* Passes of eight batches in windows of three: what the first step of the second one takes. */
static const struct {
    const char *first;
    ls_verdict_code code;
    const char *words;
} windows[] = {
    {MICRO MICRO MICRO MICRO "F b O Z", LS_FAIL, "come on top of the next"},
    {MICRO MICRO "Z " MICRO MICRO "F b O Z", LS_SKIP, ""}, /* left out */
    {MICRO MICRO "F b O Z", LS_SKIP, ""},
};

#undef COUNT
#define COUNT "32"

ROWS_TEST(windows_end_with_the_pass, windows)
{
    calls_job job;
    open_job(&job, ALIKE);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, i == 2 ? windows[_i].first : MICRO MICRO "F b O Z");
    }
    calls_event(&job, -1, PASS_OF("0", "0", "1", "3"));
    calls_event(&job, -1, PASS_OF("0", "1", "3", "4"));
    calls_end(&job, "reduction.micro", windows[_i].code, windows[_i].words);
}

/* ---- averages -------------------------------------------------------------------------------- */

#define AVERAGE(share)                                                                 \
    "A{\"call\":\"average\",\"average\":0,\"what\":\"update\",\"at\":\"train.py:30\"," \
    "\"share\":" share "}"

static const struct {
    const char *calls;
    ls_verdict_code code;
    const char *words;
} averages[] = {
    {"F b O Z " AVERAGE("0.01"), LS_PASS, "updated 4 times"},
    {"F b " AVERAGE("0.01") " F b O Z " AVERAGE("0.02"), LS_FAIL, "with every batch"},
    {"F b O Z " AVERAGE("0"), LS_FAIL, "never moves"},
    {"F b O Z " AVERAGE("0.99"), LS_FAIL, "exchanged"},
    {"F b O Z " AVERAGE("0.5"), LS_PASS, "updated 4 times"},
    {"F b O Z " AVERAGE("0.5") " A{\"call\":\"average\",\"average\":1,\"what\":\"stale\","
                               "\"norms\":4,\"at\":\"train.py:40\"}",
     LS_FAIL, "running statistics are buffers"},
};

ROWS_TEST(averages_follow, averages)
{
    calls_job job;
    open_job(&job, ALIKE);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, averages[_i].calls);
    }
    calls_end(&job, "optimizer.average", averages[_i].code, averages[_i].words);
}

/* ---- others ---------------------------------------------------------------------------------- */

#define REGION "{\"event\":\"autocast\",\"device\":\"cuda\",\"at\":\"train.py:19\"}"
#define PLAIN "F{\"autocast\":null,\"type\":\"f32\"} "

static const struct {
    const char *event, *calls, *id;
    ls_verdict_code code;
    const char *words;
} others[] = {
    {REGION, PLAIN "b O Z", "precision.autocast", LS_FAIL, "another device type"},
    {REGION, "F{\"autocast\":\"bf16\",\"type\":\"bf16\"} b O Z", "precision.autocast", LS_PASS, ""},
    {"{\"event\":\"autocast\",\"device\":\"cuda\",\"at\":\"train.py:9 (y/z.py:19)\"}",
     PLAIN "b O Z", "precision.autocast", LS_SKIP, ""},
    {ALIKE, PLAIN "b{\"loss_times\":1,\"loss_gathered\":\"train.py:18\"} O Z", "gradient.loss",
     LS_FAIL, "new tensors without a graph | train.py:18"},
    {ALIKE, PLAIN "b{\"loss_times\":1,\"loss_given\":\"probabilities\"} O Z", "gradient.loss",
     LS_FAIL, "softmax before cross_entropy"},
    {ALIKE, PLAIN "b{\"loss_times\":1} O Z", "gradient.loss", LS_PASS, "4 losses"},
    {ALIKE, PLAIN "b N{\"limit\":0,\"optimizer\":0} O Z", "optimizer.clip", LS_FAIL,
     "leave no gradient"},
    {ALIKE, PLAIN "b N{\"group\":0,\"optimizer\":0} O Z", "optimizer.clip", CALLS_HINT,
     "clip the parameters of group 0 alone"},
    {ALIKE, PLAIN "b N{\"group\":0,\"optimizer\":0} N{\"group\":1,\"optimizer\":0} O Z",
     "optimizer.clip", LS_WEAK, "no detailed step"},
};

#define MISUSE(members) ALIKE "\n{\"event\":\"misuse\",\"at\":\"train.py:9\"," members "}"
#define PASSES(one, other)                                                                         \
    ",\"loaders\":[0,1]}\n{\"event\":\"data\",\"loader\":0,\"steps\":[1,4],\"trained\":" one "}\n" \
    "{\"event\":\"data\",\"loader\":1,\"steps\":[1,4],\"trained\":" other
#define STEPS PLAIN "b{\"loss_times\":1} O Z F{\"grad\":false,\"training\":false}"

/* Of what nothing refuses: the event, and the rule that it breaks. */
static const struct {
    const char *event, *id;
    ls_verdict_code code;
    const char *words;
} misuses[] = {
    {MISUSE("\"kind\":\"target_0_ahead\""), "gradient.loss", LS_WEAK,
     "the token that it sees | train.py:9"},
    {MISUSE("\"kind\":\"target_2_ahead\""), "gradient.loss", LS_FAIL, "shifted twice"},
    {MISUSE("\"kind\":\"labels_of_padding\",\"count\":40"), "gradient.loss", LS_FAIL,
     "of 40 labels"},
    {MISUSE("\"kind\":\"kl_of_probabilities\""), "gradient.loss", LS_FAIL, "log_softmax"},
    {MISUSE("\"kind\":\"kl_of_scores\""), "gradient.loss", LS_WEAK, "no log_softmax"},
    {MISUSE("\"kind\":\"kl_to_logarithms\""), "gradient.loss", LS_FAIL, "log_target"},
    {MISUSE("\"kind\":\"of_a_later_module\""), "gradient.loss", LS_PASS, ""},
    {MISUSE("\"kind\":\"dropout_in_eval\""), "validation.mode", LS_FAIL, "does not reach it"},
    {MISUSE("\"kind\":\"frozen_by_name\",\"name\":\"require_grad\",\"part\":\"stem\""),
     "optimizer.covered", LS_FAIL, "require_grad of stem"},
    {MISUSE("\"kind\":\"weights_of_classes\",\"weights\":10,\"samples\":99"), "data.covered",
     LS_FAIL, "10 weights for 99 samples"},
    {MISUSE("\"kind\":\"normalized_apart\",\"one\":\"0.5 1\",\"other\":\"none\"" PASSES("true",
                                                                                        "false")),
     "validation.alike", LS_WEAK, "by 0.5 1"},
    {MISUSE("\"kind\":\"normalized_apart\",\"one\":\"0.5 1\",\"other\":\"none\"" PASSES("true",
                                                                                        "true")),
     "validation.alike", LS_PASS, ""},
    {MISUSE("\"kind\":\"transform_replaced\"" PASSES("true", "false")), "data.once", CALLS_HINT,
     "share one data set"},
    {MISUSE("\"kind\":\"transform_replaced\"" PASSES("true", "true")), "data.once", LS_PASS, ""},
    {MISUSE("\"kind\":\"classes_apart\",\"name\":\"cat\",\"one\":1,\"other\":2" PASSES("false",
                                                                                       "true")),
     "validation.alike", LS_WEAK, "\"cat\" is number 1"},
    {MISUSE("\"kind\":\"score\",\"by\":\"val_acc\",\"mode\":\"min\""), "evaluation.best",
     CALLS_HINT, "lowest \"val_acc\""},
    {MISUSE("\"kind\":\"score\",\"by\":\"val_loss\",\"mode\":\"max\""), "evaluation.best",
     CALLS_HINT, "highest \"val_loss\""},
    {MISUSE("\"kind\":\"score\",\"by\":\"val_acc\",\"mode\":\"max\""), "evaluation.best", LS_SKIP,
     ""},
    {MISUSE("\"kind\":\"score\",\"by\":\"neg_acc\",\"mode\":\"min\""), "evaluation.best", LS_SKIP,
     ""},
    {MISUSE("\"kind\":\"score\",\"by\":\"acc_loss\",\"mode\":\"min\""), "evaluation.best", LS_SKIP,
     ""},
    {MISUSE("\"kind\":\"score\",\"by\":\"acc_gap\",\"mode\":\"min\""), "evaluation.best", LS_SKIP,
     ""},
    {MISUSE("\"kind\":\"score\",\"by\":\"lower_bound\",\"mode\":\"max\""), "evaluation.best",
     LS_SKIP, ""},
    {MISUSE("\"kind\":\"score\",\"by\":\"metrics['val_acc1']\",\"mode\":\"min\""),
     "evaluation.best", CALLS_HINT, "lowest"},
    {MISUSE("\"kind\":\"score\",\"by\":\"height\",\"mode\":\"min\""), "evaluation.best", LS_SKIP,
     ""},
};

ROWS_TEST(what_nothing_refuses_is_judged, misuses)
{
    calls_job job;
    open_job(&job, misuses[_i].event);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, STEPS);
    }
    calls_end(&job, misuses[_i].id, misuses[_i].code, misuses[_i].words);
}

ROWS_TEST(other_settings_are_judged, others)
{
    calls_job job;
    open_job(&job, others[_i].event);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, others[_i].calls);
    }
    calls_end(&job, others[_i].id, others[_i].code, others[_i].words);
}

/* Steps of which every second, or every fourth, is another. */
static const struct {
    const char *event, *usual, *other;
    int each, steps;
    const char *id;
    ls_verdict_code code;
    const char *words;
} longer[] = {
    {ALIKE, "F S B k P Z F S B k P Z", "F S B K P Z", 2, 24, "scaler.skip", CALLS_HINT,
     "24 of 36 steps are skipped"},
    {ALIKE, "F S B K P Z", "F S B k P Z", 4, 24, "scaler.skip", LS_PASS, "skipped"},
    {ALIKE, "F S B k P Z", "F S B k P Z", 2, 60, "scaler.skip", CALLS_HINT,
     "overflow at any scale"},
    {ALIKE, "F S B{\"penalty\":true} K P Z", "F S B K P Z", 2, 8, "scaler.losses", LS_FAIL,
     "still times the loss scale"},
    {ALIKE, "F S B{\"added\":true} K P Z", "F S B K P Z", 2, 8, "scaler.losses", LS_FAIL,
     "added after scaler.scale"},
    {"{\"event\":\"hidden\",\"model\":0,\"at\":\"train.py:5\",\"names\":[\"blocks.0.weight\"],"
     "\"count\":1}",
     "F b O Z", "F b O Z", 2, 8, "optimizer.covered", LS_FAIL, "plain list"},
    {NUMBERED("1", "sgd", "7"), "F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.05]}",
     "F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.02]}", 2, 8, "optimizer.rate", CALLS_HINT,
     "made for another optimizer"},
    {NUMBERED("1", "sgd", "7"), "F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.05]}",
     "F b O{\"optimizer\":1,\"lr\":[0.05]} Z L{\"lr\":[0.1]}", 2, 8, "optimizer.rate", LS_PASS,
     ""}, /* one that holds the other steps in its place */
};

ROWS_TEST(steps_that_differ_are_judged, longer)
{
    calls_job job;
    calls_open(&job, 2);
    calls_event(&job, -1, longer[_i].event);
    for (int i = 0; i < longer[_i].steps; i++) {
        calls_step(&job, i % longer[_i].each == 1 ? longer[_i].other : longer[_i].usual);
    }
    calls_end(&job, longer[_i].id, longer[_i].code, longer[_i].words);
}

/* Rates of 12 steps: the first four, and those behind. */
TEST(a_rate_of_next_to_nothing_is_caught)
{
    static const char *const behind[] = {"F b O{\"lr\":[1e-8]} L{\"schedule\":0} Z",
                                         "F b O{\"lr\":[1e-4]} L{\"schedule\":0} Z"};
    for (int k = 0; k < 2; k++) {
        calls_job job;
        open_job(&job, ALIKE);
        calls_event(&job, -1,
                    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"StepLR\",\"step\":0,"
                    "\"at\":\"train.py:13\"}");
        for (int i = 0; i < 12; i++) {
            calls_step(&job, i < 4 ? "F b O{\"lr\":[0.1]} Z" : behind[k]);
        }
        calls_end(&job, "optimizer.rate", k == 0 ? CALLS_HINT : LS_PASS,
                  k == 0 ? "of epochs that is stepped with each batch | train.py:13" : "");
    }
}

TEST_MAIN("observe_settings", .timeout_s = 120)
