/* Rules of an optimizer's settings, of lengths of schedules and of averages, on invented jobs:
 * mistakes and the right practices that look like them. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

#define GROUPS(a, b) "!;" ADAM_OF(a, b)
#define ADAM_OF(a, b)                                                                              \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.adamw.AdamW\","              \
    "\"rule\":\"adamw\",\"at\":\"train.py:7\",\"state\":0,\"set_at\":\"train.py:19\",\"groups\":[" \
    "{\"params\":["                                                                                \
    "\"fc.weight\",\"head.weight\"]," a "},{\"params\":[\"fc.bias\"]," b "}]}"
#define ALIKE GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.1")
#define ADAM ADAM_OF("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.1")
#define APART GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.01")

/* The rates of the groups in each of four steps. */
static const calls_row rates[] = {
    {ALIKE ";F b O{\"lr\":[0.4,0.1]}; F b O{\"lr\":[0.3,0.1]}; F b O{\"lr\":[0.2,0.1]}; F b "
           "O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_FAIL, "some parameter groups only"},
    {ALIKE ";F b O{\"lr\":[0.4,0.4]}; F b O{\"lr\":[0.3,0.3]}; F b O{\"lr\":[0.2,0.2]}; F b "
           "O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
    /* frozen by a rate of 0 */
    {ALIKE
     ";F b O{\"lr\":[0.4,0]}; F b O{\"lr\":[0.3,0]}; F b O{\"lr\":[0.2,0]}; F b O{\"lr\":[0.1,0]}",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
    /* a mark of the script's own */
    {GROUPS("\"lr\":0.1,\"built_lr\":0.1",
            "\"lr\":0.1,\"built_lr\":0.1,\"own\":{\"fix_lr\":null}") ";F b O{\"lr\":[0.4,0.1]}; F "
                                                                     "b O{\"lr\":[0.3,0.1]}; F b "
                                                                     "O{\"lr\":[0.2,0.1]}; F b "
                                                                     "O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
    /* names, by which a script may choose */
    {GROUPS(
         "\"lr\":0.1,\"built_lr\":0.1,\"own\":{\"name\":\"encoder\"}",
         "\"lr\":0.1,\"built_lr\":0.1,\"own\":{\"name\":\"predictor\"}") ";F b "
                                                                         "O{\"lr\":[0.4,0.1]}; F b "
                                                                         "O{\"lr\":[0.3,0.1]}; F b "
                                                                         "O{\"lr\":[0.2,0.1]}; F b "
                                                                         "O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_WEAK, "some parameter groups only"},
    /* a schedule with a rate for each group */
    {ALIKE ";F b O{\"lr\":[0.4,0.1]} L{\"optimizer\":0,\"lr\":[0.3,0.1]}; F b O{\"lr\":[0.3,0.1]} "
           "L{\"optimizer\":0,\"lr\":[0.2,0.1]}; F b O{\"lr\":[0.2,0.1]} "
           "L{\"optimizer\":0,\"lr\":[0.1,0.1]}; F b O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
    {APART ";F b O{\"lr\":[0.4,0.4]}; F b O{\"lr\":[0.3,0.3]}; F b O{\"lr\":[0.2,0.2]}; F b "
           "O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_FAIL, "writes one rate over those of the groups | train.py:19"},
    {APART ";F b O{\"lr\":[0,0]}; F b O{\"lr\":[0.3,0.03]}; F b O{\"lr\":[0.2,0.02]}; F b "
           "O{\"lr\":[0.1,0.01]}",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
    {ALIKE
     ";F b O{\"lr\":[0.1,0.1]}; F b O{\"lr\":[0.1,0.1],\"unread\":\"defaults\"}; F b "
     "O{\"lr\":[0.1,0.1],\"unread\":\"defaults\"}; F b O{\"lr\":[0.1,0.1],\"unread\":\"defaults\"}",
     "optimizer.settings", LS_FAIL, "each parameter group has its own | train.py:19"},
    {ALIKE ";F b O{\"lr\":[0.1,0.1]}; F b O{\"lr\":[0.2,0.2],\"unread\":\"lr\"}; F b "
           "O{\"lr\":[0.3,0.3],\"unread\":\"lr\"}; F b O{\"lr\":[0.3,0.3],\"unread\":\"lr\"}",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
};

CALLS_TEST(rates_reach_their_groups, rates)

#define TWO_SPARED(a, b, words)                                                         \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.adamw.AdamW\"," \
    "\"rule\":\"adamw\",\"at\":\"train.py:7\",\"state\":0,\"groups\":[" a "," b "]" words "}"
#define TWO(a, b) TWO_SPARED(a, b, "")

static const calls_row groups[] = {
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0.1}",
         "{\"params\":[\"fc.bias\"],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0}",
         "{\"params\":[\"fc.bias\"],\"weight_decay\":0.1}") "; 4x F b O",
     "optimizer.settings", LS_FAIL, "exchanged"},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\",\"fc.bias\"],\"weight_decay\":0.1}",
         "{\"params\":[],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_WEAK,
     "catches nothing"}, /* as a filter by norms alone does in a model without any */
    {TWO_SPARED("{\"params\":[\"fc.weight\",\"head.weight\",\"fc.bias\"],\"weight_decay\":0.1}",
                "{\"params\":[],\"weight_decay\":0}",
                ",\"spared\":{\"words\":[\"Bias\",\"bias.\"],\"at\":\"train.py:5\"}") "; 4x F b O",
     "optimizer.settings", LS_FAIL, "catches nothing"},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0.1}",
         "{\"params\":[],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_PASS, "2 parameter groups"}, /* a model without biases and norms */
    {TWO("{\"params\":[],\"weight_decay\":0.1}", "{\"params\":[\"fc.weight\",\"head.weight\",\"fc."
                                                 "bias\"],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_FAIL, "nothing decays"},
    {TWO("{\"params\":[\"fc.weight\"],\"weight_decay\":0.1,\"own\":{\"weight_decay_rate\":0.5}}",
         "{\"params\":[\"fc.bias\",\"head.weight\"],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_FAIL, "call it 'weight_decay'"},
    {TWO("{\"params\":[\"fc.weight\"],\"weight_decay\":0.1,\"own\":{\"lr_scale\":0.5}}",
         "{\"params\":[\"fc.bias\",\"head.weight\"],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_PASS, "2 parameter groups"},
};

CALLS_TEST(decay_is_of_some, groups)

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
static const calls_row rebuilt[] = {
    {"!;" NUMBERED("0", "adam", "7") ";" NUMBERED(
         "1", "adam",
         "7") "; 2x F b O; 2x F b O{\"optimizer\":1};" PASS_OF("0", "0", "1",
                                                               "2") ";" PASS_OF("0", "1", "3", "4"),
     "optimizer.settings", LS_FAIL, "begin anew"},
    {"!;" NUMBERED("0", "adam", "7") ";" NUMBERED(
         "1", "adam",
         "7") "; 2x F b O; 2x F b O{\"optimizer\":1};" PASS_OF("0", "0", "1",
                                                               "2") ";" PASS_OF("1", "0", "3", "4"),
     "optimizer.settings", LS_WEAK, "begin anew"}, /* another training, by the same function */
    {"!;" NUMBERED("0", "sgd", "7") ";" NUMBERED(
         "1", "sgd",
         "7") "; 2x F b O; 2x F b O{\"optimizer\":1};" PASS_OF("0", "0", "1",
                                                               "2") ";" PASS_OF("0", "1", "3", "4"),
     "optimizer.settings", LS_PASS, "2 optimizers"}, /* without momentum there is nothing to lose */
    {"!;" NUMBERED("0", "adam", "7") ";" NUMBERED(
         "1", "adam",
         "9") "; 2x F b O; 2x F b O{\"optimizer\":1};" PASS_OF("0", "0", "1",
                                                               "2") ";" PASS_OF("0", "1", "3", "4"),
     "optimizer.settings", LS_PASS, "2 optimizers"},
};

CALLS_TEST(moments_last, rebuilt)

/* ---- lengths --------------------------------------------------------------------------------- */

#define SCHEDULE(class, members)                                                                   \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"" class "\",\"at\":\"train.py:9\","        \
                                                                "\"step\":0,\"holds\":[]," members \
                                                                "}"

#define STOPPED                                                                     \
    "{\"event\":\"data\",\"loader\":0,\"pass\":1,\"trained\":true,\"whole\":false," \
    "\"batch\":4,\"count\":8,\"steps\":[7,12]}"

/* Twelve steps of two passes on two ranks; what each calls. */
static const calls_row spans[] = {
    {ALIKE ";" SCHEDULE("CosineAnnealingLR",
                        "\"span\":12,\"base\":0.1") "; 12x F b O Z "
                                                    "L{\"optimizer\":0,\"schedule\":0}"
                                                    ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                        "0", "1", "7", "12"),
     "order.schedule", LS_PASS, "12 calls"},
    {ALIKE ";" SCHEDULE("CosineAnnealingLR",
                        "\"span\":2,\"base\":0.1") "; 12x F b O Z "
                                                   "L{\"optimizer\":0,\"schedule\":0}"
                                                   ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                       "0", "1", "7", "12"),
     "order.schedule", CALLS_HINT, "epochs, and it is stepped with each batch"},
    {ALIKE ";" SCHEDULE("CosineAnnealingLR",
                        "\"span\":5,\"base\":0.1") "; 12x F b O Z "
                                                   "L{\"optimizer\":0,\"schedule\":0}"
                                                   ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                       "0", "1", "7", "12"),
     "order.schedule", LS_WEAK, "rises again"},
    {ALIKE ";" SCHEDULE("OneCycleLR",
                        "\"span\":24,\"base\":0.1") "; 12x F b O Z "
                                                    "L{\"optimizer\":0,\"schedule\":0}"
                                                    ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                        "0", "1", "7", "12"),
     "order.schedule", CALLS_HINT, "steps of all ranks together"},
    {ALIKE ";" SCHEDULE("OneCycleLR", "\"span\":24,\"base\":0.1") "; 12x F b O Z "
                                                                  "L{\"optimizer\":0,\"schedule\":"
                                                                  "0};" PASS_OF("0", "0", "1",
                                                                                "6") ";" STOPPED,
     "order.schedule", LS_PASS, "12 calls"}, /* it was stopped in the middle of a pass */
    {ALIKE ";" SCHEDULE("OneCycleLR",
                        "\"span\":36,\"base\":0.1") "; 12x F b{\"sync\":false} F "
                                                    "b{\"sync\":false} F b O Z "
                                                    "L{\"optimizer\":0,\"schedule\":0}"
                                                    ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                        "0", "1", "7", "12"),
     "order.schedule", CALLS_HINT, "stepped once for several of them"},
    {ALIKE ";" SCHEDULE("LambdaLR",
                        "\"span\":48,\"base\":0.1") "; 12x F b O Z "
                                                    "L{\"optimizer\":0,\"schedule\":0}"
                                                    ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                        "0", "1", "7", "12"),
     "order.schedule", CALLS_HINT, "samples of a rank"},
    {ALIKE ";" SCHEDULE("LambdaLR",
                        "\"span\":17,\"base\":0.1") "; 12x F b O Z "
                                                    "L{\"optimizer\":0,\"schedule\":0}"
                                                    ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                        "0", "1", "7", "12"),
     "order.schedule", LS_PASS, "12 calls"}, /* longer than the job, by nothing that is known */
    {ALIKE ";" SCHEDULE(
         "LambdaLR",
         "\"span\":72,\"base\":0.1") "; 12x " /* as Accelerate's example */
                                     "F b{\"sync\":false} F b{\"sync\":false} F b O Z "
                                     "L{\"optimizer\":0,\"schedule\":0,\"times\":2,\"at\":\"train."
                                     "py:70 (accelerate/scheduler.py:80)\"};" PASS_OF(
                                         "0", "0", "1", "6") ";" PASS_OF("0", "1", "7", "12"),
     "order.schedule", LS_WEAK, "once for each rank"},
    {ALIKE ";" SCHEDULE(
         "LambdaLR", "\"span\":null,\"base\":0.1") "; 12x F b O Z "
                                                   "L{\"optimizer\":0,\"schedule\":0,\"lr\":[0.01]}"
                                                   ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF(
                                                       "0", "1", "7", "12"),
     "order.schedule", CALLS_HINT, "its function returns a rate"},
    {ALIKE ";" SCHEDULE(
         "LambdaLR", "\"span\":null,\"base\":1") "; 12x F b O Z "
                                                 "L{\"optimizer\":0,\"schedule\":0,\"lr\":[0.01]}"
                                                 ";" PASS_OF("0", "0", "1",
                                                             "6") ";" PASS_OF("0", "1", "7", "12"),
     "order.schedule", LS_PASS, "12 calls"},
};

CALLS_TEST(lengths_are_counted, spans)

/* A warm-up of two calls, then a cosine: the span of the cosine and of both; `early`: a break may
 * leave the loop. */
#define SEQUENCE(span, whole, early)                                                              \
    ALIKE "; "                                                                                    \
          "{\"event\":\"schedule\",\"schedule\":1,\"class\":\"LinearLR\",\"span\":null,\"at\":"   \
          "\"train.py:13\"}; "                                                                    \
          "{\"event\":\"schedule\",\"schedule\":2,\"class\":\"CosineAnnealingLR\",\"span\":" span \
          ",\"at\":\"train.py:14\"}; "                                                            \
          "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"SequentialLR\",\"span\":" whole     \
          ",\"base\":0.1,\"holds\":[1,2],\"at\":\"train.py:15\",\"stops_early\":" early           \
          "}; 12x F b O Z L{\"optimizer\":0,\"schedule\":0};" PASS_OF("0", "0", "1", "12")

static const calls_row sequences[] = {
    {SEQUENCE("10", "12", "false"), "order.schedule", LS_PASS, "12 calls"},
    {SEQUENCE("12", "14", "false"), "order.schedule", CALLS_HINT, "not taken off"},
    {SEQUENCE("15", "17", "false"), "order.schedule", LS_PASS,
     "12 calls"}, /* a job that ends early */
    {SEQUENCE("12", "14", "true"), "order.schedule", LS_WEAK, "it stops 2 calls before"},
};

CALLS_TEST(a_warm_up_is_taken_off, sequences)

/* ---- windows --------------------------------------------------------------------------------- */

#define MICRO "F b{\"sync\":false} "

/* Passes of eight batches in windows of three: what the first step of the second one takes. */
#define WINDOWS(first)                                         \
    ALIKE "; 2x " MICRO MICRO "F b O Z;" first ";" MICRO MICRO \
          "F b O Z;" PASS_OF("0", "0", "1", "3") ";" PASS_OF("0", "1", "3", "4")
#undef COUNT
#define COUNT "32"

static const calls_row windows[] = {
    {WINDOWS(MICRO MICRO MICRO MICRO "F b O Z"), "reduction.micro", LS_FAIL,
     "come on top of the next"},
    {WINDOWS(MICRO MICRO "Z " MICRO MICRO "F b O Z"), "reduction.micro", LS_SKIP,
     ""}, /* left out */
    {WINDOWS(MICRO MICRO "F b O Z"), "reduction.micro", LS_SKIP, ""},
};

CALLS_TEST(windows_end_with_the_pass, windows)

/* ---- averages -------------------------------------------------------------------------------- */

#define AVERAGE(share)                                                                 \
    "A{\"call\":\"average\",\"average\":0,\"what\":\"update\",\"at\":\"train.py:30\"," \
    "\"share\":" share "}"

static const calls_row averages[] = {
    {ALIKE "; 4x F b O Z " AVERAGE("0.01"), "optimizer.average", LS_PASS, "updated 4 times"},
    {ALIKE "; 4x F b " AVERAGE("0.01") " F b O Z " AVERAGE("0.02"), "optimizer.average", LS_FAIL,
     "with every batch .. up to 2 times between one step and the next, in 3 of 5 cases"},
    {ALIKE "; 4x F b O Z " AVERAGE("0"), "optimizer.average", LS_FAIL, "never moves"},
    {ALIKE "; 4x F b O Z " AVERAGE("0.99"), "optimizer.average", LS_FAIL, "exchanged"},
    {ALIKE "; 4x F b O Z " AVERAGE("0.5"), "optimizer.average", LS_PASS, "updated 4 times"},
    {ALIKE "; 4x F b O Z " AVERAGE("0.5") " A{\"call\":\"average\",\"average\":1,\"what\":"
                                          "\"stale\",\"norms\":4,\"at\":\"train.py:40\"}",
     "optimizer.average", LS_FAIL, "running statistics are buffers .. of its 4 norms"},
    {ALIKE "; 3x F b " AVERAGE("0.01") " F b O Z " AVERAGE("0.02"), "optimizer.average", LS_PASS,
     "6 times"},
    {ALIKE "; 2x F b O Z " AVERAGE("0") "; F b O Z", "optimizer.average", LS_PASS, "2 times"},
    {ALIKE "; 3x F b O Z " AVERAGE("0"), "optimizer.average", LS_FAIL,
     "stays where it is in 3 updates that were looked at"},
    {ALIKE "; 3x F b O Z " AVERAGE("2e-7"), "optimizer.average", LS_PASS, "3 times"},
    {ALIKE "; 3x F b O Z " AVERAGE("0.9e-7"), "optimizer.average", LS_FAIL, "never moves"},
    {ALIKE "; 2x F b O Z " AVERAGE("0.99"), "optimizer.average", LS_PASS, "2 times"},
    {ALIKE "; 3x F b O Z " AVERAGE("0.71"), "optimizer.average", LS_FAIL,
     "each update takes an average of weights 0.71 of the way"},
    {ALIKE "; 2x F b O Z " AVERAGE("0.99") "; F b O Z " AVERAGE("0.7"), "optimizer.average",
     LS_PASS, ""},
    {ALIKE "; 2x F b O Z " AVERAGE("0") "; F b O Z " AVERAGE("0.1"), "optimizer.average", LS_PASS,
     ""},
    {ALIKE "; 4x (0: F b O Z; 1: F b O Z " AVERAGE("0") ")", "optimizer.average", LS_FAIL,
     "train.py:30"},
    {ALIKE "; 4x F b O Z", "optimizer.average", LS_SKIP, "no AveragedModel"},
};

CALLS_TEST(averages_follow, averages)

/* ---- others ---------------------------------------------------------------------------------- */

#define REGION "{\"event\":\"autocast\",\"device\":\"cuda\",\"at\":\"train.py:19\"}"
#define PLAIN "F{\"autocast\":null,\"type\":\"f32\"} "

static const calls_row others[] = {
    {"!;" REGION "; 4x F{\"autocast\":null,\"type\":\"bf16\"} b O Z", "precision.autocast", LS_SKIP,
     "the model itself is in half"},
    {ALIKE "; 3x " PLAIN "b N O Z; 0: " PLAIN "b N O Z; 1: " PLAIN
           "b N{\"limit\":0,\"at\":\"train.py:53\"} O Z",
     "optimizer.clip", LS_FAIL, "1 of 8 calls clip to 0 .. train.py:53"},
    {ALIKE "; 2x " PLAIN "b N{\"group\":1,\"optimizer\":0} O Z", "optimizer.clip", CALLS_HINT,
     "all 2 calls clip the parameters of group 1 alone: 2 others .. (param_groups[1])"},
    {ALIKE "; " PLAIN "b N{\"group\":0,\"optimizer\":0} O Z", "optimizer.clip", NO_HINT, ""},
    {ALIKE "; 2x " PLAIN "b N{\"group\":0,\"optimizer\":0,\"limit\":null} O Z", "optimizer.clip",
     NO_HINT, ""},
    {ALIKE "; 2x " PLAIN "b N{\"group\":0,\"optimizer\":0} O Z; " PLAIN "b N O Z", "optimizer.clip",
     NO_HINT, ""},
    {APART "; 2x " PLAIN "b N{\"group\":0,\"optimizer\":0} O Z", "optimizer.clip", LS_WEAK, ""},
    {"!;" REGION "; 4x " PLAIN "b O Z", "precision.autocast", LS_FAIL,
     "autocast is asked for cuda, where no parameter is, and none of 8 .. train.py:19"},
    {"!;" REGION "; 4x F{\"autocast\":\"bf16\",\"type\":\"bf16\"} b O Z", "precision.autocast",
     LS_PASS, ""},
    {"!;{\"event\":\"autocast\",\"device\":\"cuda\",\"at\":\"train.py:9 (y/z.py:19)\"}; 4x " PLAIN
     "b O Z",
     "precision.autocast", LS_SKIP, ""},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1,\"loss_gathered\":\"train.py:18\"} O Z",
     "gradient.loss", LS_FAIL, "new tensors without a graph | train.py:18"},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1,\"loss_given\":\"probabilities\"} O Z",
     "gradient.loss", LS_FAIL, "softmax before cross_entropy"},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1} O Z", "gradient.loss", LS_PASS, "4 losses"},
    {ALIKE "; 4x " PLAIN "b N{\"limit\":0,\"optimizer\":0} O Z", "optimizer.clip", LS_FAIL,
     "leave no gradient"},
    {ALIKE "; 4x " PLAIN "b N{\"group\":0,\"optimizer\":0} O Z", "optimizer.clip", CALLS_HINT,
     "clip the parameters of group 0 alone"},
    {ALIKE "; 4x " PLAIN "b N{\"group\":0,\"optimizer\":0} N{\"group\":1,\"optimizer\":0} O Z",
     "optimizer.clip", LS_WEAK, "no detailed step"},
};

#define MISUSE_OF(members, more) \
    ALIKE ";{\"event\":\"misuse\",\"at\":\"train.py:9\"," members more "; 4x " STEPS
#define MISUSE(members) MISUSE_OF(members, "}")
#define PASSES(one, other)                                                                   \
    ",\"loaders\":[0,1]}; {\"event\":\"data\",\"loader\":0,\"steps\":[1,4],\"trained\":" one \
    "}; {\"event\":\"data\",\"loader\":1,\"steps\":[1,4],\"trained\":" other "}"
#define STEPS PLAIN "b{\"loss_times\":1} O Z F{\"grad\":false,\"training\":false}"

/* Of what nothing refuses: the event, and the rule that it breaks. */
static const calls_row misuses[] = {
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
    {MISUSE_OF("\"kind\":\"normalized_apart\",\"one\":\"0.5 1\",\"other\":\"none\"",
               PASSES("true", "false")),
     "validation.alike", LS_WEAK, "by 0.5 1"},
    {MISUSE_OF("\"kind\":\"normalized_apart\",\"one\":\"0.5 1\",\"other\":\"none\"",
               PASSES("true", "true")),
     "validation.alike", LS_PASS, ""},
    {MISUSE_OF("\"kind\":\"transform_replaced\"", PASSES("true", "false")), "data.once", CALLS_HINT,
     "share one data set"},
    {MISUSE_OF("\"kind\":\"transform_replaced\"", PASSES("true", "true")), "data.once", LS_PASS,
     ""},
    {MISUSE_OF("\"kind\":\"classes_apart\",\"name\":\"cat\",\"one\":1,\"other\":2",
               PASSES("false", "true")),
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

CALLS_TEST(what_nothing_refuses_is_judged, misuses)

CALLS_TEST(other_settings_are_judged, others)

/* Steps of which every second, or every fourth, is another. */
static const calls_row longer[] = {
    {ADAM "; 12x (F S B k P Z F S B k P Z; F S B K P Z)", "scaler.skip", CALLS_HINT,
     "24 of 36 steps are skipped"},
    {ADAM "; 6x (F S B K P Z; F S B k P Z; 2x F S B K P Z)", "scaler.skip", LS_PASS, "skipped"},
    {ADAM "; 60x F S B k P Z", "scaler.skip", CALLS_HINT, "overflow at any scale"},
    {ADAM "; 4x (F S B{\"penalty\":true} K P Z; F S B K P Z)", "scaler.losses", LS_FAIL,
     "still times the loss scale"},
    {ADAM "; 4x (F S B{\"added\":true} K P Z; F S B K P Z)", "scaler.losses", LS_FAIL,
     "added after scaler.scale"},
    {"{\"event\":\"hidden\",\"model\":0,\"at\":\"train.py:5\",\"names\":[\"blocks.0.weight\"],"
     "\"count\":1}; 8x F b O Z",
     "optimizer.covered", LS_FAIL, "plain list"},
    {NUMBERED("1", "sgd", "7") "; 4x (F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.05]}; F b "
                               "O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.02]})",
     "optimizer.rate", CALLS_HINT,
     "the optimizer of a StepLR never steps, and none of 7 steps of others is at a rate that it"},
    {NUMBERED("1", "sgd", "7") "; 2x F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.05]}",
     "optimizer.rate", NO_HINT, ""},
    {NUMBERED("1", "sgd", "7") "; 3x F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.05]}",
     "optimizer.rate", CALLS_HINT, "none of 2 steps"},
    {NUMBERED("1", "sgd", "7") "; 3x F b O{\"optimizer\":1,\"lr\":[0.1,0.05]} Z L{\"lr\":[0.05]}",
     "optimizer.rate", NO_HINT, ""},
    {NUMBERED("1", "sgd", "7") "; 4x (F b O{\"optimizer\":1,\"lr\":[0.1]} Z L{\"lr\":[0.05]}; F b "
                               "O{\"optimizer\":1,\"lr\":[0.05]} Z L{\"lr\":[0.1]})",
     "optimizer.rate", LS_PASS, ""}, /* one that holds the other steps in its place */
};

CALLS_TEST(steps_that_differ_are_judged, longer)

/* Rates of 12 steps: the first four, and those behind. */
#define FALLS(rate)                                                                                \
    ALIKE "; "                                                                                     \
          "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"StepLR\",\"step\":0,\"at\":\"train." \
          "py:13\"}; 4x F b O{\"lr\":[0.1]} Z; 8x F b O{\"lr\":[" rate "]} L{\"schedule\":0} Z"

#define ENDS(a, high, b, low) \
    ALIKE "; " #a "x F b O{\"lr\":[" high "]} Z; " #b "x F b O{\"lr\":[" low "]} Z"
#define GIVES(a, given, b, next, c)                                                                \
    ALIKE "; F b O{\"lr\":[" a "]} L{\"lr\":[" given "]} Z; F b O{\"lr\":[" b "]} L{\"lr\":[" next \
          "]} Z; F b O{\"lr\":[" c "]} Z"

static const calls_row falls[] = {
    {ENDS(6, "0.1", 3, "0"), "optimizer.rate", CALLS_HINT,
     "the rate is 0 in the last 3 of 9 steps"},
    {ENDS(7, "0.1", 2, "0"), "optimizer.rate", NO_HINT, ""},
    {ENDS(26, "0.1", 3, "0"), "optimizer.rate", CALLS_HINT, "the last 3 of 29 steps"},
    {ENDS(27, "0.1", 3, "0"), "optimizer.rate", NO_HINT, ""},
    {ENDS(15, "0.1", 8, "1e-5"), "optimizer.rate", CALLS_HINT,
     "in the last 8 of 23 steps the rate is below 0.0001 of the highest one, 0.1"},
    {ENDS(16, "0.1", 8, "1e-5"), "optimizer.rate", NO_HINT, ""},
    {ENDS(15, "0.1", 8, "1.1e-5"), "optimizer.rate", NO_HINT, ""},
    {ENDS(4, "0.1", 7, "1e-5"), "optimizer.rate", NO_HINT, ""},
    {ENDS(4, "0.1", 8, "1e-5,0.1"), "optimizer.rate", NO_HINT, ""},
    {ENDS(4, "0.1", 8, "1e-5,null"), "optimizer.rate", NO_HINT, ""},
    {ENDS(4, "0", 8, "0"), "optimizer.rate", NO_HINT, ""},
    {ALIKE "; 4x F b O{\"lr\":[0.1]} Z; 3x (2x F b O{\"lr\":[0]} Z; F b Z)", "optimizer.rate",
     CALLS_HINT, "the rate is 0 in the last 6 of 13 steps"},
    /* what a schedule gave, and what the steps used */
    {GIVES("0.1", "0.05", "0.1", "0.02", "0.1"), "optimizer.rate", CALLS_HINT,
     "the schedule gives other rates than the optimizer uses in 2 of 2 steps: it stays at 0.1"},
    {GIVES("0.1", "0.05", "0.1", "0.05", "0.1"), "optimizer.rate", NO_HINT, ""},
    {GIVES("0.1", "0.05", "0.050000004", "0.02", "0.3"), "optimizer.rate", LS_PASS,
     "3 rates equal on all ranks; 1 of 2 are those of the schedule, others are set by the script"},
    {GIVES("0.1", "0.05", "0.05", "0.02", "0.020000002"), "optimizer.rate", LS_PASS,
     "2 of 2 are those of the schedule |"},
    {GIVES("0.1", "0.05", "0.05", "0.02", "0.020000008"), "optimizer.rate", LS_PASS, "1 of 2"},
    {FALLS("1e-8"), "optimizer.rate", CALLS_HINT,
     "of epochs that is stepped with each batch | train.py:13"},
    {FALLS("1e-4"), "optimizer.rate", LS_PASS, ""},
};

CALLS_TEST(a_rate_of_next_to_nothing_is_caught, falls)

TEST_MAIN("observe_settings", .timeout_s = 120)
