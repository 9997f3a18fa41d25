/* Rules of an optimizer's settings, of lengths of schedules and of averages, on invented jobs:
 * mistakes and the right practices that look like them. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

#define GROUPS(a, b) "!;" ADAM_OF(a, b)
#define ADAM_OF(a, b) ADAM_NUMBERED("0", a, b)
#define ADAM_NUMBERED(number, a, b)                                                                \
    "{\"event\":\"optimizer\",\"optimizer\":" number ",\"class\":\"torch.optim.adamw.AdamW\","     \
    "\"rule\":\"adamw\",\"at\":\"train.py:7\",\"state\":0,\"set_at\":\"train.py:19\",\"groups\":[" \
    "{\"params\":["                                                                                \
    "\"fc.weight\",\"head.weight\"]," a "},{\"params\":[\"fc.bias\"]," b "}]}"
#define ALIKE GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.1")
#define ADAM ADAM_OF("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.1")
#define APART GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.01")

/* Steps at two rates; four in which the first falls and the second is the constructor's. */
#define AT(one, other) "F b O{\"lr\":[" one "," other "]};"
#define FALLING(other) AT("0.4", other) AT("0.3", other) AT("0.2", other) AT("0.1", other)
#define OWN(mark) "\"lr\":0.1,\"built_lr\":0.1,\"own\":{" mark "}"
#define TURNED(rate) "F b O{\"lr\":[" rate ",0.1]} L{\"optimizer\":0,\"lr\":[" rate ",0.1]};"
#define UNREAD(what) "F b O{\"lr\":[0.1,0.1],\"unread\":\"" what "\"};"
#define FROM_FILE(which) "; {\"event\":\"restore\",\"what\":\"optimizer\"," which "\"step\":0};"
#define ONE_STAYS                                                                            \
    "the rate of parameter group 0 changes, that of group 1 (1 parameters) stays at 0.1 in " \
    "all 4 steps | the script sets the rate of some parameter groups only"
#define ONE_RATE                                                                            \
    "parameter groups 0 and 1 were built with rates 0.1 and 0.01, and step at one rate in " \
    "all 4 steps | "
#define RIGHT "2 parameter groups of 1 optimizers"

/* The rates of the groups in each of four steps. */
static const calls_row rates[] = {
    {ALIKE ";" FALLING("0.1"), "optimizer.settings", CALLS_HINT, ONE_STAYS " .. | train.py:24 |"},
    {GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0.1,\"built_lr\":0.2") ";" FALLING("0.2"),
     "optimizer.settings", LS_WEAK, "stays at 0.2 in all 4 steps"},
    /* an optimizer without a number has no steps */
    {"!;" ADAM_NUMBERED("null", "\"built_lr\":0.1", "\"built_lr\":0.1") ";" FALLING("0.1"),
     "optimizer.settings", LS_PASS, RIGHT},
    {ALIKE ";" AT("0.1", "0.4") AT("0.1", "0.3") AT("0.1", "0.2") AT("0.1", "0.1"),
     "optimizer.settings", CALLS_HINT,
     "of parameter group 1 changes, that of group 0 (2 parameters)"},
    {ALIKE ";" AT("0.4", "0.1") AT("0.3", "0.1") "F b O{\"lr\":[0.2,0.1],\"times\":2};",
     "optimizer.settings", CALLS_HINT, "in all 4 steps"},
    {ALIKE ";" AT("0.4", "0.1") AT("0.3", "0.1") AT("0.2", "0.1"), "optimizer.settings", LS_PASS,
     RIGHT},
    {ALIKE ";" FALLING("0.3"), "optimizer.settings", LS_PASS, RIGHT}, /* set once, on purpose */
    {ALIKE ";" AT("0.4", "0.4") AT("0.3", "0.3") AT("0.2", "0.2") AT("0.1", "0.1"),
     "optimizer.settings", LS_PASS, RIGHT},
    {ALIKE FROM_FILE("\"which\":0,") FALLING("0.1"), "optimizer.settings", LS_PASS, RIGHT},
    {ALIKE FROM_FILE("") FALLING("0.1"), "optimizer.settings", LS_PASS, RIGHT},
    {ALIKE FROM_FILE("\"which\":1,") FALLING("0.1"), "optimizer.settings", CALLS_HINT, ONE_STAYS},
    {ALIKE "; {\"event\":\"restore\",\"what\":\"model\",\"step\":0};" FALLING("0.1"),
     "optimizer.settings", CALLS_HINT, ONE_STAYS},
    /* frozen by a rate of 0, or without parameters that are trained */
    {GROUPS("\"lr\":0.1,\"built_lr\":0.1", "\"lr\":0,\"built_lr\":0") ";" FALLING("0"),
     "optimizer.settings", LS_PASS, RIGHT},
    {"!\"params\":[[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,\"f32\",false]],;" ADAM
     ";" FALLING("0.1"),
     "optimizer.settings", LS_PASS, RIGHT},
    {"!\"params\":[[\"fc.weight\",8,\"f32\",false],[\"fc.bias\",2,\"f32\",true]],;" ADAM
     ";" FALLING("0.1"),
     "optimizer.settings", LS_PASS, RIGHT},
    /* a mark of the script's own: a key, another number; the same one */
    {GROUPS("\"lr\":0.1,\"built_lr\":0.1", OWN("\"fix_lr\":null")) ";" FALLING("0.1"),
     "optimizer.settings", LS_PASS, RIGHT},
    {GROUPS(OWN("\"fix\":0,\"a\":\"x\""), OWN("\"fix\":1,\"a\":\"y\"")) ";" FALLING("0.1"),
     "optimizer.settings", LS_PASS, RIGHT},
    {GROUPS(OWN("\"fix\":1"), OWN("\"fix\":1")) ";" FALLING("0.1"), "optimizer.settings",
     CALLS_HINT, ONE_STAYS},
    /* names, by which a script may choose */
    {GROUPS(OWN("\"name\":\"encoder\""), OWN("\"name\":\"predictor\"")) ";" FALLING("0.1"),
     "optimizer.settings", LS_WEAK, ONE_STAYS},
    /* a schedule with a rate for each group */
    {ALIKE ";" TURNED("0.4") TURNED("0.3") TURNED("0.2") TURNED("0.1"), "optimizer.settings",
     LS_PASS, RIGHT},
    /* groups that were built apart */
    {APART ";" AT("0.4", "0.4") AT("0.3", "0.3") AT("0.2", "0.2") AT("0.1", "0.1"),
     "optimizer.settings", CALLS_HINT,
     ONE_RATE "the script writes one rate over those of the groups | train.py:19"},
    {APART "; 3x F b O{\"lr\":[0.1,0.1]}; F b O{\"lr\":[0.1,0.1]} L{\"optimizer\":0}",
     "optimizer.settings", CALLS_HINT,
     ONE_RATE "the schedule is given one rate .. | train.py:27 |"},
    {APART "; 3x F b O{\"lr\":[0,0]}; F b O{\"lr\":[0.1,0.1]}", "optimizer.settings", LS_PASS,
     RIGHT},
    {APART "; 2x F b O{\"lr\":[0,0]}; 2x F b O{\"lr\":[0.1,0.1]}", "optimizer.settings", CALLS_HINT,
     ONE_RATE},
    {GROUPS("\"lr\":0.1,\"built_lr\":0", "\"lr\":0.1,\"built_lr\":0.1") "; 4x F b "
                                                                        "O{\"lr\":[0.1,0.1]}",
     "optimizer.settings", LS_PASS, RIGHT},
    {APART ";" AT("0", "0") AT("0.3", "0.03") AT("0.2", "0.02") AT("0.1", "0.01"),
     "optimizer.settings", LS_PASS, RIGHT},
    /* set where no step reads it */
    {ALIKE ";" AT("0.1", "0.1") UNREAD("defaults") UNREAD("defaults"), "optimizer.settings",
     LS_FAIL,
     "optimizer.defaults['lr'] is changed, and the rate stays at 0.1 in all 3 steps | .. each "
     "parameter group has its own | train.py:19"},
    {ALIKE ";" UNREAD("lr") UNREAD("lr") UNREAD("lr"), "optimizer.settings", CALLS_HINT,
     "an attribute lr of the optimizer is changed, and the rate stays at 0.1 in all 3 steps"},
    {ALIKE ";" AT("0.1", "0.1") UNREAD("defaults"), "optimizer.settings", LS_PASS, RIGHT},
    {ALIKE ";" AT("0.1", "0.1") AT("0.2", "0.1") UNREAD("lr") UNREAD("lr"), "optimizer.settings",
     CALLS_HINT, ONE_STAYS},
    {ALIKE ";F b O{\"lr\":[0.1,0.1]}; F b O{\"lr\":[0.2,0.2],\"unread\":\"lr\"}; F b "
           "O{\"lr\":[0.3,0.3],\"unread\":\"lr\"}",
     "optimizer.settings", LS_PASS, RIGHT},
};

CALLS_TEST(rates_reach_their_groups, rates)

#define TWO_SPARED(a, b, words)                                                         \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.adamw.AdamW\"," \
    "\"rule\":\"adamw\",\"at\":\"train.py:7\",\"state\":0,\"groups\":[" a "," b "]" words "}"
#define TWO(a, b) TWO_SPARED(a, b, "")

#define WITH(params) "{\"params\":[" params "],\"weight_decay\":0.1}"
#define WITHOUT(params) "{\"params\":[" params "],\"weight_decay\":0}"
#define SPARED(words) ",\"spared\":{\"words\":[" words "],\"at\":\"train.py:5\"}"
#define OF_MODEL(members, groups)                                                          \
    "!" members ";{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.adamw." \
    "AdamW\",\"rule\":\"adamw\",\"at\":\"train.py:7\",\"groups\":[" groups "]}; 4x F b O"
#define NORMS(a, b) OF_MODEL("\"norm_params\":[\"head.weight\"],", a "," b)
#define CALLED(name, value, class)                                                                \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"" class                               \
        "\",\"rule\":\"adamw\",\""                                                                \
        "at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\"],\"lr\":0.1},{\"params\":[\"" \
        "fc.bias\"],\"lr\":0.1,\"weight_decay\":0.1,\"own\":{\"" name "\":" value "}}]}; 4x F b O"
#define TORCH "torch.optim.adamw.AdamW"
#define PARTED(biases, others, without)                                                   \
    "with decay are " biases " norms and biases and " others " other parameters, without" \
    " it " without " | "

static const calls_row groups[] = {
    {TWO(WITH("\"fc.weight\",\"head.weight\""), WITHOUT("\"fc.bias\"")) "; 4x F b O",
     "optimizer.settings", LS_PASS, RIGHT},
    {TWO(WITHOUT("\"fc.weight\",\"head.weight\""), WITH("\"fc.bias\"")) "; 4x F b O",
     "optimizer.settings", CALLS_HINT,
     PARTED("1", "0", "0 and 2") "the groups are exchanged .. | train.py:7 | choose"},
    {NORMS(WITHOUT("\"fc.weight\""), WITH("\"fc.bias\",\"head.weight\"")), "optimizer.settings",
     CALLS_HINT, PARTED("2", "0", "0 and 1") "the groups are exchanged"},
    /* norms decay, biases do not, as some choose */
    {NORMS(WITHOUT("\"fc.weight\",\"fc.bias\""), WITH("\"head.weight\"")), "optimizer.settings",
     LS_PASS, RIGHT},
    {NORMS(WITHOUT("\"fc.weight\",\"head.weight\""), WITH("\"fc.bias\"")), "optimizer.settings",
     LS_PASS, RIGHT},
    {TWO(WITH("\"fc.weight\",\"head.weight\",\"fc.bias\""), WITHOUT("")) "; 4x F b O",
     "optimizer.settings", LS_WEAK,
     "catches nothing"}, /* as a filter by norms alone does in a model without any */
    {NORMS(WITH("\"fc.weight\",\"head.weight\",\"fc.bias\""), WITHOUT("")), "optimizer.settings",
     CALLS_HINT, PARTED("2", "1", "0 and 0") "the group without decay is empty"},
    {NORMS(WITH("\"fc.weight\",\"head.weight\""), WITHOUT("")), "optimizer.settings", LS_WEAK,
     "is empty, and 1 parameters of norms decay: its filter may not know .. | train.py:7 | choose"},
    {TWO_SPARED(WITH("\"fc.weight\",\"head.weight\",\"fc.bias\""), WITHOUT(""),
                SPARED("\"Bias\",\"bias.\"")) "; 4x F b O",
     "optimizer.settings", CALLS_HINT, "catches nothing"},
    /* a list that was made for another model; one that knows this one's norms; none of norms */
    {NORMS(WITH("\"fc.weight\",\"head.weight\""),
           WITHOUT("\"fc.bias\"") "]" SPARED("\"bias\",\"LayerNorm.weight\"") ",\"x\":["),
     "optimizer.settings", CALLS_HINT,
     "\"LayerNorm.weight\" is in no parameter's name, and 1 parameters of norms are in the group "
     "with decay | the list .. | train.py:5 | choose"},
    {NORMS(WITHOUT("\"fc.weight\",\"head.weight\""),
           WITH("\"fc.bias\"") "]" SPARED("\"LayerNorm.weight\"") ",\"x\":["),
     "optimizer.settings", LS_PASS, RIGHT},
    {TWO("{\"params\":[\"fc.weight\",\"head.weight\"],\"weight_decay\":0.1}",
         "{\"params\":[],\"weight_decay\":0}") "; 4x F b O",
     "optimizer.settings", LS_PASS, RIGHT}, /* a model without biases and norms */
    {TWO(WITH(""), WITHOUT("\"fc.weight\",\"head.weight\",\"fc.bias\"")) "; 4x F b O",
     "optimizer.settings", CALLS_HINT, PARTED("0", "0", "1 and 2") "the group with decay is empty"},
    {TWO(WITH(""), WITHOUT("\"fc.bias\"")) "; 4x F b O", "optimizer.settings", LS_PASS, RIGHT},
    {TWO("{\"params\":[\"fc.weight\"]}", WITHOUT("\"head.weight\",\"fc.bias\"")) "; 4x F b O",
     "optimizer.settings", LS_PASS, RIGHT},
    {TWO("{\"params\":[]}", WITH("\"head.weight\",\"fc.bias\"")) "; 4x F b O", "optimizer.settings",
     LS_PASS, RIGHT},
    /* prompts of a frozen model */
    {OF_MODEL("\"params\":[[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,\"f32\",false]],",
              WITH("") "," WITHOUT("\"fc.weight\"")),
     "optimizer.settings", LS_WEAK, "nothing decays"},
    /* words that are no optimizer's */
    {CALLED("weight_decay_rate", "0.5", TORCH), "optimizer.settings", CALLS_HINT,
     "parameter group 1 has 'weight_decay_rate': 0.5, which no step reads: its weight_decay is 0.1 "
     ".. | train.py:7 | call it 'weight_decay'"},
    {CALLED("Learning-Rate", "0.5", TORCH), "optimizer.settings", CALLS_HINT,
     "which no step reads: its lr is 0.1 .. call it 'lr'"},
    {CALLED("weightDecay", "0.1", TORCH), "optimizer.settings", LS_PASS, RIGHT},
    {CALLED("weightDecay", "\"0.5\"", TORCH), "optimizer.settings", LS_PASS, RIGHT},
    {CALLED("weightDecay", "0.5", "apex.AdamW"), "optimizer.settings", LS_PASS, RIGHT},
    {CALLED("weight_decay_rate_of_all", "0.5", TORCH), "optimizer.settings", LS_PASS, RIGHT},
    {CALLED("lr_scale", "0.5", TORCH), "optimizer.settings", LS_PASS, RIGHT},
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

#define BUILT(number, members, group)                                                        \
    "{\"event\":\"optimizer\",\"optimizer\":" number "," members "\"rule\":\"adam\",\"at\":" \
    "\"train.py:7\",\"state\":0,\"groups\":[{" group                                         \
    "\"params\":[\"fc.weight\"],\"built_lr\":0.1}]}"
#define IN_TURN(members, group, passes)                                          \
    "!;" BUILT("0", "", "") ";" BUILT("1", members, group) "; 2x F b O; 2x F b " \
                                                           "O{\"optimizer\":1};" passes
#define EACH PASS_OF("0", "0", "1", "2") ";" PASS_OF("0", "1", "3", "4")
#define TWO_BUILT "2 optimizers in turn, each built on the same line .. | train.py:7 | build"
#define OF_TWO "2 parameter groups of 2 optimizers"

/* Two optimizers for two steps each: how the second one is built, and the passes. */
static const calls_row rebuilt[] = {
    {IN_TURN("", "", EACH), "optimizer.settings", CALLS_HINT, TWO_BUILT},
    {"!;" BUILT("0", "", "") ";" BUILT("1", "", "") ";" BUILT(
         "2", "", "") "; F b O; F b O"
                      "{\"optimizer\":1}; F b O{\"optimizer\":2};" PASS_OF(
                          "0", "0", "1", "1") ";" PASS_OF("0", "1", "2", "2") ";" PASS_OF("0", "2",
                                                                                          "3", "3"),
     "optimizer.settings", CALLS_HINT, "3 optimizers in turn"},
    /* another training, by the same function; after several passes; of data that are not known */
    {IN_TURN("", "", PASS_OF("0", "0", "1", "2") ";" PASS_OF("1", "0", "3", "4")),
     "optimizer.settings", LS_WEAK, TWO_BUILT},
    {IN_TURN("", "",
             PASS_OF("0", "0", "1", "1") ";" PASS_OF("0", "1", "2", "2") ";" PASS_OF("0", "2", "3",
                                                                                     "4")),
     "optimizer.settings", LS_WEAK, TWO_BUILT},
    {IN_TURN("", "", PASS_OF("0", "0", "1", "1") ";" PASS_OF("0", "1", "3", "4")),
     "optimizer.settings", LS_WEAK, TWO_BUILT},
    {IN_TURN("", "", PASS_OF("0", "0", "1", "2") ";" PASS_OF("0", "1", "4", "4")),
     "optimizer.settings", LS_WEAK, TWO_BUILT},
    /* of which none steps */
    {"!;" BUILT("0", "", "") ";" BUILT("1", "", "") "; 4x F b O;" EACH, "optimizer.settings",
     LS_WEAK, TWO_BUILT},
    {"!;" NUMBERED("0", "sgd", "7") ";" NUMBERED("1", "sgd",
                                                 "7") "; 2x F b O; 2x F b O{\"optimizer\":1};" EACH,
     "optimizer.settings", LS_PASS, OF_TWO}, /* without momentum there is nothing to lose */
    {IN_TURN("\"rule\":\"sgd\",", "", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {"!;" BUILT("0", "", "\"momentum\":0.9,") ";" BUILT(
         "1", "\"rule\":\"sgd\",",
         "\"momentum\":0.9,") "; 2x F b O; 2x F b O{\"optimizer\":1};" EACH,
     "optimizer.settings", CALLS_HINT, TWO_BUILT},
    {IN_TURN("\"at\":\"train.py:9\",", "", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("\"state\":3,", "", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "", EACH FROM_FILE("\"which\":1,")), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "\"params\":[\"fc.bias\"],", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "\"built_lr\":0.2,", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "\"weight_decay\":0.2,", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "\"betas\":[0.9,0.99],", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "\"momentum\":0.9,", EACH), "optimizer.settings", LS_PASS, OF_TWO},
    {IN_TURN("", "\"params\":[\"fc.weight\"],\"built_lr\":0.1},{", EACH), "optimizer.settings",
     LS_PASS, "3 parameter groups of 2 optimizers"},
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

#define SPAN(class, span, base, call)                                                            \
    ALIKE ";" SCHEDULE(class,                                                                    \
                       "\"span\":" span                                                          \
                       ",\"base\":" base) "; 12x F b O Z L{\"optimizer\":0,\"schedule\":0" call  \
                                          "};" PASS_OF("0", "0", "1", "6") ";" PASS_OF("0", "1", \
                                                                                       "7", "12")

/* A LambdaLR of an optimizer at 0.1: the rates of its first four steps, of the next and the last.
 */
#define RATED(rate) \
    "; 4x F b O{\"lr\":[" rate "]} Z L{\"optimizer\":0,\"schedule\":0,\"lr\":[" rate "]}"
#define FACTORS_OF(base, first, second, third)                                                \
    ALIKE ";" SCHEDULE("LambdaLR", "\"span\":null,\"base\":" base) RATED(first) RATED(second) \
        RATED(third) ";" PASS_OF("0", "0", "1", "6") ";" PASS_OF("0", "1", "7", "12")
#define FACTORS(first, second, third) FACTORS_OF("0.1", first, second, third)

#define EARLY_IN(times, step, share)                                               \
    "{\"event\":\"averaged\",\"step\":" step ",\"average\":0,\"early\":true" times \
    ",\"share\":" share ",\"bound\":1e-5};"
#define EARLY(step, share) EARLY_IN("", step, share)
#define OFTEN(step) EARLY_IN(",\"early_times\":3", step, "0.1")
#define TWICE(step) EARLY_IN(",\"early_times\":2", step, "0")

/* Twelve steps of two passes on two ranks; what each calls. */
static const calls_row spans[] = {
    {SPAN("CosineAnnealingLR", "12", "0.1", ""), "order.schedule", LS_PASS, "12 calls"},
    {SPAN("CosineAnnealingLR", "2", "0.1", ""), "order.schedule", CALLS_HINT,
     "epochs, and it is stepped with each batch"},
    {SPAN("CosineAnnealingLR", "5", "0.1", ""), "order.schedule", LS_WEAK, "rises again"},
    {SPAN("OneCycleLR", "24", "0.1", ""), "order.schedule", CALLS_HINT,
     "steps of all ranks together"},
    {SPAN("OneCycleLR", "24", "0.1,\"stops_early\":true", ""), "order.schedule", LS_WEAK,
     "steps of all ranks together; or the job ended before its time"},
    {ALIKE ";" SCHEDULE("OneCycleLR", "\"span\":24,\"base\":0.1") "; 12x F b O Z "
                                                                  "L{\"optimizer\":0,\"schedule\":"
                                                                  "0}",
     "order.schedule", LS_WEAK, "or the job ended before"}, /* no pass says that it was whole */
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
    {SPAN("LambdaLR", "48", "0.1", ""), "order.schedule", CALLS_HINT, "samples of a rank"},
    {SPAN("LambdaLR", "17", "0.1", ""), "order.schedule", LS_PASS,
     "12 calls"}, /* longer than the job, by nothing that is known */
    {ALIKE ";" SCHEDULE(
         "LambdaLR",
         "\"span\":72,\"base\":0.1") "; 12x " /* as Accelerate's example */
                                     "F b{\"sync\":false} F b{\"sync\":false} F b O Z "
                                     "L{\"optimizer\":0,\"schedule\":0,\"times\":2,\"at\":\"train."
                                     "py:70 (accelerate/scheduler.py:80)\"};" PASS_OF(
                                         "0", "0", "1", "6") ";" PASS_OF("0", "1", "7", "12"),
     "order.schedule", LS_WEAK, "once for each rank"},
    {FACTORS("0.01", "0.01", "0.01"), "order.schedule", CALLS_HINT, "its function returns a rate"},
    {FACTORS("0.005", "0.01", "0.005"), "order.schedule", LS_FAIL,
     "the highest rate that a LambdaLR gives is 0.01, 0.1 times the optimizer's: as the square of "
     "that, 0.1, is | its function returns a rate .. | train.py:9"},
    {FACTORS("0.01", "0.01", "0.005"), "order.schedule", CALLS_HINT, ""},
    {FACTORS("0.005", "0.01", "0.01"), "order.schedule", CALLS_HINT, ""},
    {FACTORS("0.005", "0.0099", "0.005"), "order.schedule", CALLS_HINT, ""},
    {FACTORS_OF("0.04", "0.001", "0.0015", "0.001"), "order.schedule", LS_FAIL, "0.0375 times"},
    {FACTORS_OF("0.06", "0.001", "0.0033", "0.001"), "order.schedule", CALLS_HINT, "0.055 times"},
    {FACTORS("0.1", "0.01", "0.005"), "order.schedule", LS_PASS, "12 calls"}, /* it began higher */
    {SPAN("LambdaLR", "null", "1", ",\"lr\":[0.01]"), "order.schedule", LS_PASS, "12 calls"},
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
#define WEIGHED(by) "F b{\"multiplied\":" by "} "
#define THIRD WEIGHED("0.3333333333333333")
#define FIFTH WEIGHED("0.2")

/* Passes of eight batches in windows of three: what the first step of the second one takes. */
#define BY_SAMPLER(pass, first, last)                                                     \
    "{\"event\":\"data\",\"loader\":0,\"pass\":" pass ",\"trained\":true,\"whole\":true," \
    "\"given\":8,\"count\":30,\"steps\":[" first "," last "]}"
#define WINDOWS_OF(usual, first)                  \
    ALIKE "; 2x " usual "O Z;" first "O Z;" usual \
          "O Z;" PASS_OF("0", "0", "1", "3") ";" PASS_OF("0", "1", "3", "4")
#define WINDOWS(first) WINDOWS_OF(MICRO MICRO "F b ", first)
#define THIRDS(first) WINDOWS_OF(THIRD THIRD THIRD, first)
#undef COUNT
#define COUNT "32"

static const calls_row windows[] = {
    {WINDOWS(MICRO MICRO MICRO MICRO "F b "), "reduction.micro", CALLS_HINT,
     "come on top of the next"},
    {THIRDS(THIRD THIRD THIRD THIRD THIRD), "reduction.micro", LS_FAIL,
     "losses are divided for a mean of each window"},
    {THIRDS(WEIGHED("0.5") WEIGHED("0.5") THIRD THIRD THIRD), "reduction.micro", LS_FAIL, "5/3"},
    {WINDOWS(WEIGHED("0.5") WEIGHED("0.5") THIRD THIRD THIRD), "reduction.micro", CALLS_HINT,
     "5/3"},
    {ALIKE "; 2x " THIRD THIRD THIRD "O Z; 0: " THIRD THIRD THIRD
           "O Z; 1: " THIRD THIRD THIRD THIRD THIRD "O Z; " THIRD THIRD THIRD
           "O Z;" BY_SAMPLER("0", "1", "3") ";" BY_SAMPLER("1", "3", "4"),
     "reduction.micro", LS_FAIL, "5/3"}, /* batches of a sampler's own, on one rank */
    /* a mean of what it takes; left out */
    {THIRDS(FIFTH FIFTH FIFTH FIFTH FIFTH), "reduction.micro", NO_HINT, ""},
    {WINDOWS(MICRO MICRO "Z " MICRO MICRO "F b "), "reduction.micro", LS_SKIP, ""},
    {WINDOWS(MICRO MICRO "F b "), "reduction.micro", LS_SKIP, ""},
};

CALLS_TEST(windows_end_with_the_pass, windows)

/* ---- averages -------------------------------------------------------------------------------- */

#define AVERAGE(share)                                                                 \
    "A{\"call\":\"average\",\"average\":0,\"what\":\"update\",\"at\":\"train.py:30\"," \
    "\"share\":" share "}"

static const calls_row averages[] = {
    {ALIKE "; 4x F b O Z " AVERAGE("0.01"), "optimizer.average", LS_PASS, "updated 4 times"},
    {ALIKE "; 4x F b " AVERAGE("0.01") " F b O Z " AVERAGE("0.02"), "optimizer.average", CALLS_HINT,
     "with every batch .. up to 2 times between one step and the next, in 3 of 5 cases"},
    {ALIKE "; 4x F b O Z " AVERAGE("0"), "optimizer.average", CALLS_HINT, "never moves"},
    {ALIKE "; 4x F b O Z " AVERAGE("0.99"), "optimizer.average", CALLS_HINT, "exchanged"},
    {ALIKE "; 4x F b O Z " AVERAGE("0.5"), "optimizer.average", LS_PASS, "updated 4 times"},
    {ALIKE "; 4x F b O Z " AVERAGE("0.5") " A{\"call\":\"average\",\"average\":1,\"what\":"
                                          "\"stale\",\"norms\":4,\"at\":\"train.py:40\"}",
     "optimizer.average", CALLS_HINT, "running statistics are buffers .. of its 4 norms"},
    {ALIKE "; 4x F b O Z A{\"call\":\"average\",\"average\":1,\"what\":\"stale\",\"norms\":4,"
           "\"unmoved\":true,\"at\":\"train.py:40\"}",
     "optimizer.average", LS_FAIL,
     "of its 4 norms .. | the average takes parameters() only .. train.py:40"},
    {ALIKE "; 3x F b " AVERAGE("0.01") " F b O Z " AVERAGE("0.02"), "optimizer.average", LS_PASS,
     "6 times"},
    {ALIKE "; 2x F b O Z " AVERAGE("0") "; F b O Z", "optimizer.average", LS_PASS, "2 times"},
    {ALIKE "; 3x F b O Z " AVERAGE("0"), "optimizer.average", CALLS_HINT,
     "stays where it is in 3 updates that were looked at"},
    {ALIKE "; 3x F b O Z " AVERAGE("2e-7"), "optimizer.average", LS_PASS, "3 times"},
    {ALIKE "; 3x F b O Z " AVERAGE("0.9e-7"), "optimizer.average", CALLS_HINT, "never moves"},
    {ALIKE "; 2x F b O Z " AVERAGE("0.99"), "optimizer.average", LS_PASS, "2 times"},
    {ALIKE "; 3x F b O Z " AVERAGE("0.71"), "optimizer.average", CALLS_HINT,
     "each update takes an average of weights 0.71 of the way"},
    {ALIKE "; 2x F b O Z " AVERAGE("0.99") "; F b O Z " AVERAGE("0.7"), "optimizer.average",
     LS_PASS, ""},
    {ALIKE "; 2x F b O Z " AVERAGE("0") "; F b O Z " AVERAGE("0.1"), "optimizer.average", LS_PASS,
     ""},
    {ALIKE "; 4x (0: F b O Z; 1: F b O Z " AVERAGE("0") ")", "optimizer.average", CALLS_HINT,
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
    /* a model whole; the other group is of none */
    {"!;{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"built_lr\":0.1,\"params\":"
     "[\"fc.weight\",\"fc.bias\",\"head.weight\"]},{\"built_lr\":0.1,\"params\":[\"?\"]}]};"
     "2x " PLAIN "b N{\"group\":0,\"optimizer\":0} O Z",
     "optimizer.clip", NO_HINT, ""},
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
    {ALIKE "; 3x " PLAIN "b O Z; " EARLY("1", "0.05") EARLY("2", "0.05") EARLY("3", "0.05"),
     "optimizer.average", CALLS_HINT,
     "several times between one optimizer's step and the next, in 3 steps"},
    {ALIKE "; 3x " PLAIN "b O Z; " TWICE("1") TWICE("2") TWICE("3"), "optimizer.average",
     CALLS_HINT, "several times between one optimizer's step and the next, in 3 steps"},
    {ALIKE "; 3x " PLAIN "b O Z; " OFTEN("2") OFTEN("3"), "optimizer.average", CALLS_HINT,
     "several times between one optimizer's step and the next, in 2 steps"},
    {ALIKE "; 3x " PLAIN "b O Z; " OFTEN("2"), "optimizer.average", NO_HINT, ""},
    {ALIKE "; 3x " PLAIN "b O Z; " TWICE("2") TWICE("3"), "optimizer.average", NO_HINT, ""},
    {ALIKE "; 3x " PLAIN "b O Z; " EARLY("1", "0.05") EARLY("2", "0.05") EARLY("3", "0"),
     "optimizer.average", NO_HINT, ""}, /* before the step alone */
    {ALIKE "; 3x " PLAIN "b O Z; " EARLY("1", "-0.05") EARLY("2", "-0.05") EARLY("3", "-0.01"),
     "optimizer.average", CALLS_HINT,
     "moves away from the weights .. in all 3 steps .. wrong sign"},
    {ALIKE "; 3x " PLAIN "b O Z; " EARLY("1", "-0.05") EARLY("2", "-0.05") EARLY("3", "-0.000001"),
     "optimizer.average", NO_HINT, ""}, /* one by rounding */
    {ALIKE "; 4x " PLAIN "b O Z; " EARLY("1", "-0.05") EARLY("2", "-0.05") EARLY("3", "-0.01")
         EARLY("4", "0.01"),
     "optimizer.average", NO_HINT, ""},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1,\"loss_gathered\":\"train.py:18\"} O Z",
     "gradient.loss", CALLS_HINT, "new tensors without a graph | train.py:18"},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1,\"loss_gathered\":\"train.py:18\"} O Z",
     "gradient.loss", LS_PASS, NULL}, /* the others hold no more */
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1} O Z", "gradient.loss", NO_HINT, ""},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1,\"loss_given\":\"probabilities\"} O Z",
     "gradient.loss", CALLS_HINT, "step 1: the softmax of the result of a softmax"},
    {ALIKE "; 4x " PLAIN "b{\"loss_times\":1,\"loss_given\":\"softmax\"} O Z", "gradient.loss",
     LS_FAIL,
     "step 1: a cross entropy is given the result of a softmax | softmax before cross_entropy .. | "
     "train.py:21 | give"},
    {ALIKE "; 2x " PLAIN "b{\"loss_times\":1} O Z; " PLAIN "b{\"loss_given\":\"crossed\"} O Z",
     "gradient.loss", LS_FAIL, "step 3: outputs of N x 1 are compared with N targets"},
    {ALIKE "; 2x " PLAIN "b O Z", "gradient.loss", LS_WEAK, "no loss's graph"},
    {ALIKE "; 2x " PLAIN "b{\"loss_times\":1,\"times\":3} O Z", "gradient.loss", LS_PASS,
     "6 losses"},
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
#define LOADER(number, trained) \
    "{\"event\":\"data\",\"loader\":" number ",\"steps\":[1,4],\"trained\":" trained "}"
#define PASSES(one, other) ",\"loaders\":[0,1]};" LOADER("0", one) ";" LOADER("1", other)
#define STEPS PLAIN "b{\"loss_times\":1} O Z F{\"grad\":false,\"training\":false}"

#define SCORE(by, mode) \
    MISUSE("\"kind\":\"score\",\"what\":\"Stopper\",\"by\":\"" by "\",\"mode\":\"" mode "\"")
#define APART_OF(passes)                                        \
    MISUSE_OF("\"kind\":\"normalized_apart\",\"one\":\"0.5 "    \
              "1\",\"other\":\"none\",\"other_at\":\"a.py:3\"", \
              passes)

/* Of what nothing refuses: the event, and the rule that it breaks. */
static const calls_row misuses[] = {
    {MISUSE("\"kind\":\"target_0_ahead\""), "gradient.loss", LS_WEAK,
     "rank 0: the target of a cross entropy is the model's own input .. the token that it sees | "
     "train.py:9 | the target"},
    {MISUSE("\"kind\":\"target_2_ahead\""), "gradient.loss", CALLS_HINT, "shifted twice"},
    {MISUSE("\"kind\":\"labels_of_padding\",\"count\":40"), "gradient.loss", CALLS_HINT,
     "rank 0: of 40 labels where the attention mask is 0, none is -100: they are trained on |"},
    {MISUSE("\"kind\":\"kl_of_probabilities\""), "gradient.loss", LS_FAIL,
     "given probabilities where .. softmax in place of log_softmax"},
    {MISUSE("\"kind\":\"kl_of_scores\""), "gradient.loss", LS_WEAK, "no log_softmax"},
    {MISUSE("\"kind\":\"kl_to_logarithms\""), "gradient.loss", LS_FAIL, "log_target"},
    {MISUSE("\"kind\":\"end_as_padding\",\"one\":2,\"count\":8"), "gradient.loss", CALLS_HINT,
     "token 2 is padding and stands for itself, too: in 8 places .. does not learn to end"},
    {MISUSE("\"kind\":\"of_a_later_module\""), "gradient.loss", LS_PASS,
     "4 losses, and no mistake"},
    {MISUSE("\"kind\":\"dropout_in_eval\""), "validation.mode", LS_FAIL, "does not reach it"},
    {MISUSE("\"kind\":\"attention_in_eval\""), "validation.mode", LS_FAIL,
     "rank 0: attention drops out .. eval() does not reach | train.py:9 | dropout_p=self.p if"},
    {MISUSE("\"kind\":\"noise_in_eval\",\"name\":\"torch\""), "validation.mode", CALLS_HINT,
     "draw random numbers for each sample (torch) between a batch and its forward"},
    {MISUSE("\"kind\":\"choice_in_eval\",\"name\":\"random\""), "validation.mode", CALLS_HINT,
     "for a whole batch (random) .. layers that are skipped"},
    {ALIKE "; 1: {\"event\":\"misuse\",\"kind\":\"dropout_in_eval\"}; 4x " STEPS, "validation.mode",
     LS_FAIL, "rank 1: a dropout is on"},
    {MISUSE(
         "\"kind\":\"integers_in_half\",\"name\":\"bf16\",\"count\":32,\"one\":257,\"other\":256"),
     "precision.integers", LS_FAIL,
     "rank 0: of consecutive whole numbers that become bf16 32 equal the one before: 257 is 256 | "
     "positions, or counts, become half .. train.py:9 | compute with them in f32"},
    {MISUSE("\"kind\":\"angles_in_half\",\"name\":\"bf16\",\"by\":\"0.09\""), "precision.integers",
     LS_FAIL,
     "rank 0: a sine or cosine of angles is off by 0.09: .. rounded to bf16 .. train.py:9"},
    {MISUSE("\"kind\":\"target_2_ahead\""), "precision.integers", LS_SKIP, "cast no whole numbers"},
    {MISUSE("\"kind\":\"frozen_by_name\",\"name\":\"require_grad\",\"part\":\"stem\""),
     "optimizer.covered", LS_FAIL,
     "rank 0: require_grad of stem is set, which nothing reads: it is trained |"},
    {MISUSE("\"kind\":\"vectors_alone\",\"count\":3"), "optimizer.covered", CALLS_HINT,
     "rank 0: norms and biases alone are trained: all 3 matrices that an optimizer has are frozen "
     "|"},
    {MISUSE("\"kind\":\"targets_of_others\",\"count\":16"), "gradient.loss", LS_FAIL,
     "rank 0: 16 rows have targets among .. | the targets do not follow the order"},
    {MISUSE("\"kind\":\"targets_first\",\"count\":16"), "gradient.loss", CALLS_HINT,
     "rank 0: 16 rows have the targets 0, 1, .. where they are in the order of ranks |"},
    {MISUSE("\"kind\":\"weights_of_classes\",\"weights\":10,\"samples\":99"), "data.covered",
     LS_FAIL, "has 10 weights for 99 samples: it draws the first 10 only |"},
    {APART_OF(PASSES("true", "false")), "validation.alike", LS_WEAK,
     "of one kind are normalized by 0.5 1 (a.py:3) and by none (train.py:9) |"},
    {APART_OF(PASSES("false", "true")), "validation.alike", LS_WEAK, "by 0.5 1"},
    {APART_OF(PASSES("true", "true")), "validation.alike", LS_PASS, "no difference seen"},
    {APART_OF(PASSES("false", "false")), "validation.alike", LS_PASS, "no difference seen"},
    {APART_OF(",\"loaders\":[0,2]};" LOADER("0", "true") ";" LOADER("1", "false")),
     "validation.alike", LS_PASS, "no difference seen"},
    {APART_OF(",\"loaders\":[-1,1]};" LOADER("-1", "true") ";" LOADER("1", "false")),
     "validation.alike", LS_PASS, "no difference seen"},
    /* what is held out is not looked at; and one pass alone */
    {APART_OF(",\"loaders\":[0,1]};" LOADER("0", "true") ";{\"event\":\"data\",\"loader\":1,"
                                                         "\"trained\":false}"),
     "validation.alike", LS_PASS, "no difference seen"},
    {APART_OF(",\"loaders\":[0,1]};" LOADER("0", "true")), "validation.alike", LS_SKIP, "no pass"},
    {MISUSE_OF("\"kind\":\"transform_replaced\"", PASSES("true", "false")), "data.once", CALLS_HINT,
     "share one data set"},
    {MISUSE_OF("\"kind\":\"transform_replaced\"", PASSES("true", "true")), "data.once", LS_PASS,
     ""},
    {MISUSE_OF("\"kind\":\"transform_replaced\"", ",\"loaders\":[0]};" LOADER("0", "true")),
     "data.once", CALLS_HINT, "share one data set"},
    {MISUSE_OF("\"kind\":\"transform_replaced\"", ",\"loaders\":[0]};" LOADER("0", "false")),
     "data.once", LS_SKIP, ""},
    {MISUSE_OF("\"kind\":\"classes_apart\",\"name\":\"cat\",\"one\":1,\"other\":2",
               PASSES("false", "true")),
     "validation.alike", LS_WEAK, "class \"cat\" is number 1 in one data set and 2 in the other |"},
    {SCORE("val_acc", "min"), "evaluation.best", CALLS_HINT,
     "rank 0: Stopper takes the lowest \"val_acc\" for the best |"},
    {SCORE("val_loss", "max"), "evaluation.best", CALLS_HINT, "takes the highest \"val_loss\" for"},
    {SCORE("val_acc", "max"), "evaluation.best", LS_SKIP, ""},
    {SCORE("val_loss", "min"), "evaluation.best", LS_SKIP, ""},
    {SCORE("neg_acc", "min"), "evaluation.best", LS_SKIP, ""},
    {SCORE("acc_loss", "min"), "evaluation.best", LS_SKIP, ""},
    {SCORE("acc_loss", "max"), "evaluation.best", LS_SKIP, ""},
    {SCORE("acc_gap", "min"), "evaluation.best", LS_SKIP, ""},
    {SCORE("epoch", "min"), "evaluation.best", LS_SKIP, ""},
    {SCORE("epoch", "max"), "evaluation.best", LS_SKIP, ""},
    {SCORE("lower_bound", "max"), "evaluation.best", LS_SKIP, ""},
    {SCORE("metrics['val_acc1']", "min"), "evaluation.best", CALLS_HINT, "lowest"},
    {SCORE("Macro-F1", "min"), "evaluation.best", CALLS_HINT, "lowest"},
    {SCORE("accaccaccaccaccaccaccaccacc", "min"), "evaluation.best", LS_SKIP, ""},
    {SCORE("height", "min"), "evaluation.best", LS_SKIP, ""},
};

CALLS_TEST(what_nothing_refuses_is_judged, misuses)

CALLS_TEST(other_settings_are_judged, others)

/* A step of that optimizer at 0.1, and what the schedule of optimizer 0 gives. */
#define OLD(optimizer, rate)                             \
    "F b O{\"optimizer\":" optimizer ",\"lr\":[0.1]} Z " \
    "L{\"schedule\":0,\"optimizer\":0,\"lr\":[" rate "]}"

/* Steps of which every second, or every fourth, is another. */
#define TWIN(param) \
    ";{\"event\":\"idle\",\"at\":\"train.py:8\",\"params\":[\"" param "\"],\"steps\":12}; "

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
     "optimizer.covered", CALLS_HINT, "plain list"},
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
    /* one that never steps, by the schedule, and has parameters that another one steps */
    {ALIKE TWIN("fc.weight") "F b O L{\"lr\":[0.08]}; 2x F b O L{\"lr\":[0.06]}", "optimizer.rate",
     LS_FAIL,
     "the schedule gives other rates than the optimizer uses in 2 of 2 steps: it stays at 0.1 | "
     "the "
     "schedule was made for another optimizer"},
    {ALIKE TWIN("other.weight") "F b O L{\"lr\":[0.08]}; 2x F b O L{\"lr\":[0.06]}",
     "optimizer.rate", CALLS_HINT, "in 2 of 2 steps"},
    {ALIKE TWIN("fc.weight") "F b O L{\"lr\":[0.08]}; 2x F b O L{\"lr\":[0.06],\"optimizer\":0}",
     "optimizer.rate", CALLS_HINT, "in 2 of 2 steps"},
    /* built anew, and the schedule is the first one's; in turn; with a schedule of its own */
    {NUMBERED("1", "sgd",
              "7") "; 2x " OLD("0", "0.08") "; 6x (" OLD("1", "0.07") "; " OLD("1", "0.06") ")",
     "optimizer.rate", CALLS_HINT, "steps no more, and none of 12 steps of others"},
    {NUMBERED("1", "sgd", "7") "; 2x " OLD("0", "0.08") "; 11x " OLD("1", "0.07"), "optimizer.rate",
     NO_HINT, ""},
    {NUMBERED("1", "sgd", "7") "; 13x (" OLD("0", "0.08") "; " OLD("1", "0.07") ")",
     "optimizer.rate", NO_HINT, ""},
    {NUMBERED("1", "sgd", "7") "; 2x " OLD("0", "0.08") "; 6x (" OLD("1", "0.07") "; " OLD(
         "1", "0.06") " L{\"schedule\":1,\"optimizer\":1,\"lr\":[0.1]})",
     "optimizer.rate", NO_HINT, ""},
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
    {ENDS(3, "0", 6, "0.1"), "optimizer.rate", CALLS_HINT,
     "the rate is 0 in the first 3 of 9 steps | a warm-up"},
    {ENDS(2, "0", 7, "0.1"), "optimizer.rate", NO_HINT, ""},
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

/* Weights that are validated, and parts that run with autograd off. */
#define VALIDATED(weights)                                                                        \
    "; "                                                                                          \
    "{\"event\":\"validated\",\"step\":3,\"model\":0,\"at\":\"train.py:41\",\"param\":\"" weights \
    "\"};"
#define PUT_IN(weights, next) "!; 3x F b O" VALIDATED(weights "\",\"param_next\":\"" next) "F b O"
#define MOVED(weights, next) PUT_IN(weights "\",\"moved\":true,\"at\":\"train.py:42", next)
#define STARTED "!\"digest\":{\"param\":\"a0\"},; 3x F b O"
#define READ(now)                                                                        \
    "!; 8x F b O; "                                                                      \
    "{\"event\":\"detached\",\"steps\":7,\"at\":\"net.py:31\",\"read\":true,\"names\":[" \
    "\"fc.weight\",\"fc.bias\"],\"digests\":[\"b1\",\"b2\"],\"digests_now\":[\"b1\",\"" now "\"]}"
#define DETACHED(steps, now)                                                                       \
    "!; 8x F b O; {\"event\":\"detached\",\"steps\":" steps                                        \
    ",\"at\":\"net.py:31\",\"names\":[\"fc.weight\"],\"digests\":[\"b1\"],\"digests_now\":[\"" now \
    "\"]}"

#define PRODUCT(now)                                                                        \
    "!; 8x F b O; "                                                                         \
    "{\"event\":\"detached\",\"steps\":7,\"at\":\"net.py:31\",\"product\":true,\"names\":[" \
    "\"fc.weight\",\"fc.bias\"],\"digests\":[\"b1\",\"b2\"],\"digests_now\":[\"b1\",\"" now "\"]}"

#define BORN "!\"param_digests\":[\"b0\",\"a0\"],"
#define SHADOW(match, touched, held, now)                                                \
    "; {\"event\":\"shadow\",\"step\":3,\"model\":0,\"at\":\"ema.py:9\",\"name\":"       \
    "\"self.averages\",\"names\":[\"fc.bias\"],\"match\":" match ",\"touched\":" touched \
    ",\"digests\":[\"" held "\"],\"digests_now\":[\"" now "\"]}"
#define SHADOW3(match, touched, held, now)                                                \
    BORN "; 3x F b O" SHADOW(match, touched, "a0", now) SHADOW(match, touched, held, now) \
        SHADOW(match, touched, "a0", now)

static const calls_row still[] = {
    {STARTED VALIDATED("a0") "F b O" VALIDATED("a0") "F b O", "optimizer.average", CALLS_HINT,
     "all 2 validations after steps run with the weights that the model started from .. | "
     "train.py:41"},
    {STARTED VALIDATED("a0") "F b O" VALIDATED("a1") "F b O", "optimizer.average", LS_PASS,
     "2 validations"},
    {STARTED VALIDATED("a0") "F b O", "optimizer.average", LS_PASS, "1 validations"},
    {STARTED, "optimizer.average", LS_SKIP, ""},
    {PUT_IN("a9", "a9"), "optimizer.average", CALLS_HINT,
     "after 1 of 1 validations training goes on from the weights .. | train.py:41"},
    {PUT_IN("a9", "0000000000000003"), "optimizer.average", LS_PASS, "1 validations"},
    {PUT_IN("a9", "a8"), "optimizer.average", LS_PASS, ""},
    {PUT_IN("0000000000000003", "0000000000000003"), "optimizer.average", LS_PASS, ""},
    {MOVED("0000000000000003", "0000000000000003"), "optimizer.average", CALLS_HINT,
     "after 1 of 1 validations training goes on from the weights"}, /* before eval() */
    {MOVED("0000000000000003", "a8"), "optimizer.average", LS_PASS, "1 validations"},
    {SHADOW3("false", "0", "a0", "a1"), "optimizer.average", LS_FAIL,
     "self.averages is a copy of the model's weights by their names .. | ema.py:9"},
    {SHADOW3("true", "0", "a0", "a1"), "optimizer.average", LS_PASS, "looked at 6 times"},
    {SHADOW3("false", "1", "a0", "a1"), "optimizer.average", LS_PASS, ""}, /* a distance to it */
    {SHADOW3("false", "0", "a2", "a1"), "optimizer.average", LS_PASS, ""}, /* it has moved */
    {SHADOW3("false", "0", "a0", "a0"), "optimizer.average", LS_PASS, ""}, /* the weights did not */
    {BORN "; 3x F b O" SHADOW("false", "0", "a0", "a1") SHADOW("false", "0", "a0", "a1"),
     "optimizer.average", LS_PASS, "looked at 4 times"},
    {PRODUCT("b2"), "reduction.covered", LS_FAIL,
     "2 matrices that an optimizer has hold 0, get a gradient of 0 and stay as they are in 7 "
     "steps, "
     "though outputs that the loss is made of would be others: fc.weight, fc.bias | they are "
     "factors of a product .. | net.py:31 | begin with one factor of 0"},
    {PRODUCT("b3"), "reduction.covered", LS_WEAK, "no samples"},
    {DETACHED("7", "b1"), "reduction.covered", LS_FAIL,
     "1 parameters that an optimizer has never get a gradient in 7 steps .. | net.py:31"},
    {DETACHED("7", "b2"), "reduction.covered", LS_WEAK, ""},
    {READ("b2"), "reduction.covered", LS_FAIL,
     "2 parameters .. outputs that the loss is made of depend on them: fc.weight, fc.bias"},
    {READ("b3"), "reduction.covered", LS_WEAK, ""},
    {DETACHED("2", "b1"), "reduction.covered", LS_WEAK, ""},
};

CALLS_TEST(what_is_trained_moves, still)

TEST_MAIN("observe_settings", .timeout_s = 120)
