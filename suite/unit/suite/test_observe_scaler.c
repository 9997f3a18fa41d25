/* The rules of scalers on invented jobs: torch's documented uses pass, each user's mistake of its
 * notes on mixed precision is caught with its cause. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

/* ---- right jobs ------------------------------------------------------------------------------ */

#define SECOND                                                                      \
    "{\"event\":\"optimizer\",\"optimizer\":1,\"class\":\"torch.optim.adam.Adam\"," \
    "\"rule\":\"adam\",\"at\":\"train.py:9\",\"groups\":[{\"params\":[\"m1.fc.weight\"]}]};"
#define SCALER(number, scale, interval, at)                                              \
    "{\"event\":\"scaler\",\"scaler\":" number ",\"enabled\":true,\"init_scale\":" scale \
    ",\"growth_factor\":2,\"backoff_factor\":0.5,\"growth_interval\":" interval          \
    ",\"at\":\"train.py:" at "\"};"
#define RESTORED(members) "{\"event\":\"restore\"," members "}"
#define MOVED(members) "<\"digest\":{\"param\":\"77\"," members "\"buffer\":\"3\"},>"

/* Three times what a step of a right trainer calls, or two steps. */
static const calls_row right[] = {
    {"3x (Z F S B K P; Z F S B k P)"},
    {"3x F S B U N K P L Z"},     /* schedule and zero_grad at the end */
    {"3x F S B F S B U N K P Z"}, /* accumulation */
    {"3x F{\"sync\":false} S B{\"sync\":false} F S B K P Z"}, /* within no_sync */
    {"3x F S B{\"scaled\":null} K P Z"},                      /* scaled and then divided */
    {"3x F S B S B U K P Z"},                                 /* two losses, one scaler */
    {"3x F S S B K P Z"},                                     /* a penalty through autograd.grad */
    {"3x F S B U N O P Z"},                 /* steps by hand where the norm is finite */
    {"3x F S B N{\"limit\":1024.0} K P Z"}, /* a limit times the scale */
    {"3x F S B N{\"limit\":null} K P Z"},   /* measures the norm */
    {"3x Z F S B U Z F S B U K P"},         /* a bad batch is thrown away */
    {"3x F S B U K{\"optimizer\":1} K P Z Z{\"optimizer\":1}"},
    {"3x F{\"left\":0} S B K P"}, /* gradients set to None by hand */
    /* a batch is thrown away that did not overflow, or whose loss is infinite by itself */
    {"3x Z F S B Z{\"discards\":1,\"finite\":true} F S B K P"},
    {"3x Z F S B Z{\"discards\":1,\"finite\":false} F S B K P"}, /* of another network's loss */
    {"3x Z F S B{\"loss\":null} Z{\"discards\":1,\"finite\":false} F S B K P"},
    /* discriminator and generator are two steps of the record, with one update for both; and with
     * an update for each */
    {SECOND "4x (Z F S B U N K; Z{\"optimizer\":1} F{\"model\":1} S B U{\"optimizer\":1} "
            "K{\"optimizer\":1} P);"
            "4x (Z F S B K P; F{\"model\":1} Z{\"optimizer\":1} S B K{\"optimizer\":1} P; Z F S B "
            "U N K P)"},
    /* unscale_ of one optimizer between the backward calls of two losses */
    {SECOND "4x Z Z{\"optimizer\":1} F S B U F{\"model\":1} S B U{\"optimizer\":1} N K "
            "K{\"optimizer\":1} P"},
    /* two scalers */
    {SECOND SCALER(
        "1", "64", "2000",
        "61") "4x (Z F S B K P; Z{\"optimizer\":1} F{\"model\":1} S{\"scaler\":1} B{\"scaled\":1} "
              "U{\"scaler\":1,\"optimizer\":1} N K{\"scaler\":1,\"optimizer\":1} p)"},
    /* models that are not trained, or loaded, may change in skipped steps */
    {"{\"event\":\"model\",\"model\":1,\"kind\":\"plain\",\"params\":[],\"world\":2};F S B K P "
     "Z;" MOVED("") "F S B k P Z"},
    {RESTORED("\"what\":\"model\",\"which\":0,\"step\":1") ";F S B K P Z;" MOVED("") "F S B k P Z"},
};

CALLS_CLEAN_TEST(documented_uses_pass, right)

#define OVERFLOWS "F S B K P Z; F S B k P Z; 4x F S B U N K P Z"
/* The count and the scale of a job that goes on are its file's; so are other settings. */
#define RESUMED                                                      \
    RESTORED("\"what\":\"scaler\",\"which\":0,\"step\":0")           \
    "; F S B K P{\"scale\":64,\"next\":64,\"growth\":8} Z; F S B K " \
    "P{\"scale\":64,\"next\":256,\"growth\":0} Z; F S B k "          \
    "P{\"scale\":256,\"next\":64,\"growth\":0} Z; F S B k "          \
    "P{\"scale\":64,\"next\":16,\"growth\":0} Z"
/* A script that looks at the norm itself asks for no step after an overflow. */
#define BY_HAND                                                                                 \
    "F S B U N O P Z F S B U{\"found_inf\":true} N P{\"next\":512,\"growth\":0} Z F S B U N O " \
    "P{\"scale\":512,\"next\":512,\"growth\":1} Z"
#define SET                                                                           \
    "2x F S B K P Z; F S B K P{\"next\":32,\"growth\":2,\"forced\":true} Z; F S B K " \
    "P{\"scale\":32,\"next\":64,\"growth\":0} Z"
#define CALM "2x F S B K P Z"
#define NONE "3x F{\"autocast\":null,\"type\":\"f32\"} b O Z"

static const calls_row said[] = {
    {OVERFLOWS, "scaler.trace", LS_PASS, "6 updates, 1 overflows, 1 growths"},
    {OVERFLOWS, "scaler.skip", LS_PASS, "5 steps taken and 1 skipped"},
    {OVERFLOWS, "scaler.agree", LS_PASS, "1 of them skips"},
    {OVERFLOWS, "scaler.once", LS_PASS, "6 scaler steps"},
    {OVERFLOWS, "scaler.order", LS_PASS, "22 calls"},
    {OVERFLOWS, "scaler.losses", LS_PASS, "6 scaled backward calls"},
    {OVERFLOWS, "order.clip", LS_PASS, "4 calls"},
    {RESUMED, "scaler.trace", LS_PASS, "2 overflows, 1 growths"},
    {BY_HAND, "scaler.trace", LS_PASS, "1 overflows"},
    {BY_HAND, "scaler.skip", LS_PASS, "2 steps taken and 1 skipped"},
    {BY_HAND, "scaler.agree", LS_PASS, "1 of them skips"},
    {SET, "scaler.trace", LS_PASS, "1 set by the script .. sets the scale itself"},
    {CALM, "scaler.trace", LS_WEAK, "--inject overflow@5:1"},
    {CALM, "scaler.skip", LS_WEAK, "nothing overflowed"},
    {CALM, "scaler.agree", LS_WEAK, "nothing overflowed"},
    {NONE, "scaler.trace", LS_SKIP, "no enabled GradScaler"},
    {NONE, "scaler.skip", LS_SKIP, "no enabled GradScaler"},
    {NONE, "scaler.agree", LS_SKIP, "no enabled GradScaler"},
    {NONE, "scaler.once", LS_SKIP, "no enabled GradScaler"},
    {NONE, "scaler.order", LS_SKIP, "no enabled GradScaler"},
    {NONE, "scaler.losses", LS_SKIP, "no enabled GradScaler"},
    {"3x F S B k P Z", "scaler.agree", LS_SKIP, "one rank", 1},
    {"3x F S B k P Z", "scaler.trace", LS_PASS, "3 overflows", 1},
};

CALLS_CLEAN_TEST(right_jobs_say_what_they_show, said)

/* ---- mistakes -------------------------------------------------------------------------------- */

/* Steps of a wrong trainer, the rule that catches it, words of the finding. */
static const calls_row wrong[] = {
    {"2x F S B K P Z; F S B k P{\"next\":1024} Z", "scaler.trace", LS_FAIL, "not lowered"},
    {"2x F S B K P Z; F S B k P{\"next\":2048} Z", "scaler.trace", LS_FAIL, "grows although"},
    {"2x F S B K P Z; F S B k P{\"next\":256} Z", "scaler.trace", LS_FAIL,
     "another factor than backoff"},
    {"2x F S B K P Z; F S B K P{\"next\":512} Z", "scaler.trace", LS_FAIL, "lowered although"},
    {"2x F S B K P{\"next\":2048} Z", "scaler.trace", LS_FAIL, "before growth_interval"},
    {"2x F S B K P Z; F S B K P{\"next\":1024,\"growth\":3} Z", "scaler.trace", LS_FAIL,
     "does not grow"},
    {"2x F S B K P Z; F S B K P{\"next\":4096} Z", "scaler.trace", LS_FAIL,
     "another factor than growth"},
    {"2x F S B K P Z; F S B k{\"stepped\":true} P Z", "scaler.skip", LS_FAIL, "stepped although"},
    {"2x F S B K P Z; F S B K{\"stepped\":false} P Z", "scaler.skip", LS_FAIL,
     "no gradient is infinite"},
    {"2x F S B K P Z; F S B U{\"found_inf\":true} O P{\"next\":512,\"growth\":0} Z", "scaler.skip",
     LS_FAIL, "scaler.step(optimizer) in place"},
    {"2x F S B U F S B U K P Z", "scaler.once", LS_FAIL, "unscale_ after every micro-step"},
    {"2x F S B U U K P Z", "scaler.once", LS_FAIL, "twice for one optimizer"},
    {"2x F S B U P K Z", "scaler.once", LS_FAIL, "update() between unscale_ and scaler.step"},
    {"2x F S B O Z", "scaler.once", LS_FAIL, "no unscale_ before it"},
    {"2x F S B U F S B K P Z", "scaler.order", LS_FAIL, "before the last backward"},
    {"2x F S B P{\"forced\":true} F S B K P Z", "scaler.order", LS_FAIL, "inside the accumulation"},
    {"2x F S B K Z", "scaler.order", LS_FAIL, "update() is missing"},
    {"2x F S B K P Z; F S B K K P Z", "scaler.order", LS_FAIL, "a second time"},
    {"2x F S B K P Z; F b K P Z", "scaler.losses", LS_FAIL, "never multiplied"},
    {"2x F S B K P Z; F b K P Z", "scaler.losses", LS_FAIL, "train.py:21"}, /* the backward */
    {"2x F S B K P Z; F S B F b K P Z", "scaler.losses", LS_FAIL, "for one of several losses"},
    {"2x F S B O Z", "scaler.losses", LS_FAIL, "optimizer.step() in place of"},
    {"2x F S b{\"dropped\":true} K P Z", "scaler.losses", LS_FAIL,
     "is not what goes backward | train.py:21"},
    {"2x F S b{\"at\":\"train.py:29\"} F b K P Z", "scaler.losses", LS_FAIL, "train.py:21"},
    {"2x F S S{\"again\":true} B K P Z", "scaler.losses", LS_FAIL, "scaled twice"},
    {"2x F S B Z{\"discards\":1,\"finite\":false} F S B Z{\"discards\":1,\"finite\":false} F S B K "
     "P Z",
     "scaler.losses", LS_FAIL, "skips steps that overflow by itself"},
    {"2x F S B P K Z", "scaler.order", LS_FAIL, "scaler.update() before scaler.step | train.py:25"},
};

ROWS_TEST(mistakes_are_caught, wrong)
{
    calls_judge_row(&wrong[_i], false, "train.py:2");
}

/* A limit that stays while the scale changes, or that nothing computes from it, is not times it;
 * one that follows it is; while the scale stays, both are possible. f16 without a scale may be
 * enough for an optimizer. */
static const calls_row guessed[] = {
    {"2x F S B N K P Z", "scaler.order", CALLS_HINT,
     "clipping without scaler.unscale_(optimizer) before it | train.py:2"},
    {"2x F S B N K P Z; F S B N k P Z", "scaler.order", CALLS_HINT, "clipping without"},
    {"2x F S B N{\"scale_unread\":true} K P Z", "scaler.order", LS_FAIL, "clipping without"},
    {"2x F S B N k P Z; F S B N K P Z", "scaler.order", LS_FAIL, "clipping without"},
    {"2x F S B N{\"limit\":512} k P Z; F S B N{\"limit\":128} K P Z", "scaler.order", LS_PASS, ""},
    {"2x F S B K P Z; F b O Z", "scaler.losses", CALLS_HINT, "f16 forwards"},
    {"2x F S B k P Z", "scaler.skip", LS_WEAK, "nothing shows that one is ever taken"},
};

CALLS_TEST(what_may_be_meant_is_a_hint, guessed)

#define TAIL(finite, call)                                                                    \
    "; {\"event\":\"unfinished\",\"calls\":[{\"call\":\"backward\",\"loss\":1,\"scaled\":0}," \
    "{\"call\":\"zero_grad\",\"at\":\"train.py:19\",\"discards\":1,\"finite\":" finite "},"   \
    "{\"call\":\"backward\",\"loss\":1,\"scaled\":0},"                                        \
    "{\"call\":\"zero_grad\",\"at\":\"train.py:19\",\"discards\":1,\"finite\":" finite "},"   \
    "{\"call\":\"" call "\",\"scaler\":0},{\"call\":\"backward\",\"loss\":1,\"scaled\":0}]}"
#define EACH "2x Z F S B K P; 2x Z F S{\"scaler\":1} B{\"scaled\":1} K{\"scaler\":1} p"
#define OF(n) SCALER(n, "64", "2000", "6")
#define NINE OF("1") OF("2") OF("3") OF("4") OF("5") OF("6") OF("7") OF("8")
#define BY(n) "; Z F S{\"scaler\":" n "} B{\"scaled\":" n "} K{\"scaler\":" n "} p"
#define SEVEN BY("1") BY("2") BY("3") BY("4") BY("5") BY("6") BY("7")
#define EIGHT SEVEN BY("8")
#define BOTH "3x Z Z{\"optimizer\":1} F S B "
/* Gradients that the script reduces itself, without a wrapper. */
#define HAND                                                                                       \
    "!\"kind\":\"plain\",;" SCALER(                                                                \
        "0", "1024", "3",                                                                          \
        "6") "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\","         \
             "\"rule\":\"sgd\",\"at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\",\"fc." \
             "bias\",\"head.weight\"],\"lr\":0.1}]};"
#define EARLY(found) "F S B U" found " A{\"elements\":14} "
#define INF "{\"found_inf\":true}"

static const calls_row others[] = {
    /* two optimizers fed by one backward, the scale updated between their steps */
    {SECOND BOTH "K P K{\"optimizer\":1} P", "scaler.order", LS_FAIL,
     "between the steps of two optimizers .. train.py:25"},
    /* unscale_ of one optimizer, and the other one's gradients are clipped */
    {SECOND BOTH "U N{\"optimizer\":0} K K{\"optimizer\":1} P", "scaler.order", LS_PASS, ""},
    {SECOND BOTH "U{\"optimizer\":1} N{\"optimizer\":0} K K{\"optimizer\":1} P", "scaler.order",
     CALLS_HINT, "clipping without scaler.unscale_"},
    /* the scaler of the one network's loss steps the other one's optimizer */
    {SECOND SCALER("1", "64", "2000", "61") "3x Z F S B K{\"scaler\":1} p", "scaler.losses",
     LS_FAIL, "exchanged"},
    /* one step says enough where there is one optimizer, and nothing of the first half of a pair */
    {"F S B K Z", "scaler.order", LS_FAIL, "is missing"},
    {"F S B K K{\"optimizer\":1} Z", "scaler.order", LS_PASS, ""},
    /* the end of a job whose last steps are all left out: no step closes it; right where nothing
     * overflows, and where the script lowers the scale itself. The place is the step that others
     * take */
    {"3x Z F S B K P" TAIL("false", "scale"), "scaler.losses", LS_FAIL, "train.py:24"},
    {"3x Z F S B K P" TAIL("true", "scale"), "scaler.losses", LS_PASS, ""},
    {"3x Z F S B K P" TAIL("false", "update"), "scaler.losses", LS_PASS, ""},
    /* a scaler for each epoch; right where its state goes on, where both are in use, and where it
     * is one of another phase */
    {SCALER("1", "64", "2000", "6") EACH, "scaler.trace", CALLS_HINT,
     "inside the loop .. train.py:6"},
    {SCALER("1", "64", "2000", "6") RESTORED("\"what\":\"scaler\",\"which\":1,\"step\":2") ";" EACH,
     "scaler.trace", NO_HINT, ""},
    {SCALER("1", "64", "2000", "6") EACH "; 2x Z F S B K P", "scaler.trace", NO_HINT, ""},
    /* one for each step; one of them for two, and too few of them */
    {NINE "Z F S B K P" EIGHT, "scaler.trace", LS_FAIL,
     "is stepped by 9 scalers in turn .. train.py:6"},
    {NINE "2x Z F S B K P" EIGHT, "scaler.trace", CALLS_HINT, "by 9 scalers in turn"},
    {NINE "Z F S B K P" SEVEN, "scaler.trace", CALLS_HINT, "by 8 scalers in turn"},
    {SCALER("1", "64", "2000", "60") EACH, "scaler.trace", NO_HINT, ""},
    {"2x F S B K P Z;" MOVED("\"state\":\"2\",") "F S B k P Z", "scaler.skip", LS_FAIL,
     "step 3 was skipped, but parameters changed"},
    /* what ranks send each other after the step moves the parameters of one that skipped, too; a
     * sum of fewer elements (of a loss) does not */
    {"2x F S B K P Z;" MOVED("\"state\":\"0000000000000002\",") "F S B k P A{\"elements\":10} A Z",
     "scaler.skip", LS_PASS, ""},
    {"2x F S B K P Z;" MOVED("\"state\":\"0000000000000002\",") "F S B k P A{\"elements\":9} A Z",
     "scaler.skip", LS_FAIL, "parameters changed"},
    /* ranks that decide for themselves */
    {"F S B K P Z; 0: F S B k P Z; 1: F S B K P Z", "scaler.agree", LS_FAIL,
     "gradients of its own .. ranks 0 and 1, step 2"},
    {"F S B K P Z; 0: F S B U K P Z; 1: F S B U{\"found_inf\":true} K P Z", "scaler.agree", LS_FAIL,
     "gradients of its own .. ranks 0 and 1, step 2"},
    {"F S B K P Z; 0: F S B K P Z; 1: F S B K P{\"next\":512} Z", "scaler.agree", LS_FAIL,
     "depending on a value of the rank's own .. ranks 0 and 1, step 2"},
    {"F S B K P Z; 0: F S B K P Z; 1: F S B P K Z", "scaler.agree", LS_FAIL,
     "other calls of the scaler .. ranks 0 and 1, step 2"},
    /* a scaler that one rank loaded */
    {"0:" RESTORED(
         "\"what\":\"scaler\",\"which\":0,\"step\":0,\"at\":\"train.py:10\"") "; 0: F S B K "
                                                                              "P{\"scale\":64,"
                                                                              "\"next\":64} Z; 1: "
                                                                              "F S B K P Z",
     "scaler.agree", LS_FAIL, "loaded on rank 0 only .. train.py:10"},
    /* unscaling before a reduction by hand, and after it */
    {HAND EARLY("") "K P Z; 0:" EARLY("") "K P Z; 1:" EARLY(INF) "k P Z", "scaler.agree", LS_FAIL,
     "before the script reduces them"},
    {HAND EARLY("") "K P Z;" EARLY(INF) "k P Z", "scaler.agree", LS_WEAK, "unscaled before"},
    {HAND "F S B A{\"elements\":14} U K P Z; F S B A{\"elements\":14} U" INF " k P Z",
     "scaler.agree", LS_PASS, "1 of them skips"},
};

CALLS_TEST(other_jobs_are_judged, others)

/* ---- what findings say ----------------------------------------------------------------------- */

#define NUMBERS(number, enabled, growth, backoff, interval)                         \
    "{\"event\":\"scaler\",\"scaler\":" number ",\"enabled\":" enabled              \
    ",\"init_scale\":1024,\"growth_factor\":" growth ",\"backoff_factor\":" backoff \
    ",\"growth_interval\":" interval ",\"at\":\"train.py:6\"};"
#define BATCH "Z{\"discards\":1,\"finite\":false} "
#define LARGE "P{\"scale\":1.7014118346046923e38,\"next\":1.7014118346046923e38} Z"
#define GOES_ON                                                                                  \
    RESTORED("\"what\":\"scaler\",\"which\":0,\"step\":0")                                       \
    "; F S B K P{\"scale\":64,\"next\":64,\"growth\":1} Z; F S B K P{\"scale\":64,\"next\":128," \
    "\"growth\":0} Z;"
#define LOADED(step)                                          \
    RESTORED("\"what\":\"model\",\"which\":0,\"step\":" step) \
    ";F S B K P Z;" MOVED("") "F S B k P Z"

static const calls_row whole[] = {
    /* the second of two ranks, at its last step */
    {"2x F S B K P Z; 0: F S B k P Z; 1: F S B k P{\"next\":1024} Z", "scaler.trace", LS_FAIL,
     "rank 1, step 3: scale 1024, then 1024 after a step with an infinity; expected 512 (growth 2 "
     "after 3 clean steps, backoff 0.5)"},
    {"0: F S B K P{\"next\":2048} Z; 1: F S B K P Z", "scaler.trace", LS_FAIL,
     "rank 0, step 1: scale 1024, then 2048 after a step without an infinity; expected 1024"},
    /* another scaler than the first; one that is not in use */
    {SCALER("1", "64", "2000",
            "61") "F S B K P Z F S{\"scaler\":1} B{\"scaled\":1} K{\"scaler\":1} "
                  "p{\"next\":128} Z",
     "scaler.trace", LS_FAIL, "rank 0, step 1: scale 64, then 128"},
    {NUMBERS("1", "false", "2", "0.5", "3") "2x F S B K P p{\"next\":128} Z; F S B K P Z",
     "scaler.trace", LS_PASS, "scale followed over 3 updates, 0 overflows, 1 growths, 0 set"},
    /* settings of the script's own, and their products rounded to f32; growth ends at infinity */
    {NUMBERS("0", "true", "1.1", "0.3", "1") "F S B k P{\"next\":307.20001220703125} Z; F S B K "
                                             "P{\"scale\":307.20001220703125,"
                                             "\"next\":337.920013427734375} Z",
     "scaler.trace", LS_PASS, "scale followed over 2 updates, 1 overflows, 1 growths, 0 set"},
    {"3x F S B K " LARGE, "scaler.trace", LS_WEAK, "stays at 1.70141e+38 over 3 updates"},
    {"F S B K P Z; F S B K P{\"scale\":32,\"next\":32,\"at\":\"train.py:33\"} Z; F S B K "
     "P{\"scale\":32,\"next\":64} Z",
     "scaler.trace", LS_PASS,
     "3 updates, 0 overflows, 1 growths, 1 set by the script .. train.py:33"},
    /* one that goes on without a file's event begins with a count of its own */
    {"F S B K P{\"growth\":2} Z; F S B K P{\"next\":2048,\"growth\":0} Z", "scaler.trace", LS_PASS,
     "2 updates, 0 overflows, 1 growths"},
    /* what a file's settings must be is learned once */
    {GOES_ON "F S B K P{\"scale\":128,\"next\":128,\"growth\":1} Z; F S B K P{\"scale\":128,"
             "\"next\":128,\"growth\":2} Z",
     "scaler.trace", LS_FAIL, "grows before growth_interval"},
    {GOES_ON "F S B k P{\"scale\":128,\"next\":32,\"growth\":0} Z; F S B k P{\"scale\":32,"
             "\"next\":16,\"growth\":0} Z",
     "scaler.trace", LS_FAIL, "scale 64, then 128"},
    {GOES_ON "F S B k P{\"scale\":128,\"next\":256,\"growth\":0} Z", "scaler.trace", LS_FAIL,
     "scale 64, then 128"},
    {GOES_ON "F S B k P{\"scale\":128,\"next\":128,\"growth\":0} Z", "scaler.trace", LS_FAIL,
     "scale 64, then 128"},
    {GOES_ON "F S B K P{\"scale\":128,\"next\":256,\"growth\":0} Z", "scaler.trace", LS_FAIL,
     "scale 64, then 128"},
    /* skipped steps */
    {OVERFLOWS, "scaler.skip", LS_PASS, "4 digests unchanged"},
    {"F S B K P Z; <\"digest\":{\"param\":\"0000000000000001\"},> F S B k P Z", "scaler.skip",
     LS_PASS, "2 digests unchanged"},
    {"2x F S B K P Z; 0: F S B K P Z; 1: F S B K{\"stepped\":false} P Z", "scaler.skip", LS_FAIL,
     "rank 1, step 3: the scaler skipped the step although no gradient is infinite"},
    {"2x F S B K P Z", "scaler.skip", LS_WEAK, "nothing overflowed in 2 steps"},
    {"3x F S B k P Z", "scaler.skip", LS_WEAK, "all of 3 steps were skipped"},
    {LOADED("0"), "scaler.skip", LS_FAIL, "rank 0, step 2 was skipped, but parameters changed"},
    {LOADED("3"), "scaler.skip", LS_PASS, "1 steps taken and 1 skipped"},
    {LOADED("4"), "scaler.skip", LS_FAIL, "rank 0, step 2 was skipped, but parameters changed"},
    {"F S B K P Z;" MOVED("") "F S B A{\"elements\":14} k P Z", "scaler.skip", LS_FAIL,
     "parameters changed .. train.py:24"},
    {"F S B K P Z;" MOVED("") "F S B k P A{\"elements\":7,\"times\":2} Z", "scaler.skip", LS_PASS,
     "1 skipped"},
    {"<\"digest\":{\"master\":\"5\"},> F S B K P Z; <\"digest\":{\"master\":\"6\"},> F S B k P Z",
     "scaler.skip", LS_FAIL, "step 2 was skipped, but masters changed"},
    /* ranks */
    {OVERFLOWS, "scaler.agree", LS_PASS, "16 decisions of the scaler equal on 2 ranks, 1 of them"},
    {"F S B U{\"found_inf\":true} k P Z", "scaler.agree", LS_PASS,
     "3 decisions .. 1 of them skips"},
    {"F S B U{\"found_inf\":true} P Z F S B k P Z", "scaler.agree", LS_PASS, "2 of them skips"},
    {"F S B k P Z; 0: F S B U{\"inside\":true} k P Z; 1: F S B k P Z", "scaler.agree", LS_PASS,
     "4 decisions .. 2 of them skips"},
    {"0: F S B K P Z; 1: F S B K P Z; 2: F S B K P{\"scale\":512} Z", "scaler.agree", LS_FAIL,
     "ranks 0 and 2, step 1: the scale is 1024 and 512", 3},
    {"0: F S B K P Z; 1: F S B K P{\"next\":512} Z", "scaler.agree", LS_FAIL,
     "step 1: the next scale is 1024 and 512"},
    {"0: F S B K P Z; 1: F S B K{\"stepped\":false} P Z", "scaler.agree", LS_FAIL,
     "the optimizer stepped and was skipped"},
    {"0: F S B K{\"stepped\":false} P Z; 1: F S B K P Z", "scaler.agree", LS_FAIL,
     "the optimizer was skipped and stepped"},
    {"0: F S B K P Z; 1: F S B K{\"scaler\":1,\"at\":\"train.py:34\"} P Z", "scaler.agree", LS_FAIL,
     "other calls of the scaler (at train.py:24, at train.py:34)"},
    {"0: F S B K P Z; 1: F S B K{\"optimizer\":1} P Z", "scaler.agree", LS_FAIL, "other calls"},
    {"1:" RESTORED(
         "\"what\":\"scaler\",\"which\":0,\"step\":0,\"at\":\"train.py:10\"") "; 0: F S B K P Z; "
                                                                              "1: F S B K "
                                                                              "P{\"scale\":64} Z",
     "scaler.agree", LS_FAIL, "loaded on rank 1 only .. train.py:10"},
    /* how the scaler is used, on the second rank */
    {"F S B U K P Z; 0: F S B U K P Z; 1: F S B U U K P Z", "scaler.once", LS_FAIL,
     "rank 1, step 2: unscale_ was called again"},
    {"3x F S B{\"scaled\":null} K P Z", "scaler.order", LS_PASS, "in their order, 6 calls"},
    {"3x F S B U U{\"inside\":true} K P Z", "scaler.once", LS_PASS, "each of 3 scaler steps"},
    {"0: F S B K P Z; 1: F S B K Z", "scaler.order", LS_FAIL,
     "rank 1: scaler.step in 1 steps, no update()"},
    {"F S B K Z; F S B K{\"optimizer\":1} Z", "scaler.order", LS_FAIL,
     "rank 0: scaler.step in 2 steps, no update()"},
    {"2x F S B N{\"limit\":1023} K P Z", "scaler.order", CALLS_HINT,
     "rank 0, step 1: gradients were clipped to 1023 while they were still times the scale"},
    {"2x F S B N{\"params\":0} K P Z", "scaler.order", NO_HINT, ""},
    {"2x F S B N{\"limit\":2} N{\"limit\":256,\"at\":\"train.py:53\"} k P Z; F S B N{\"limit\":1} "
     "N{\"limit\":256,\"at\":\"train.py:53\"} K P Z",
     "scaler.order", LS_FAIL, "clipped to 256 .. train.py:53"},
    {"2x (0: F S B K P Z; 1: F b O Z)", "scaler.losses", CALLS_HINT,
     "rank 1, step 1: an optimizer steps by gradients of f16 forwards"},
    {"2x (0: F S B K P Z; 1: F F{\"type\":\"f32\",\"autocast\":null} b O Z)", "scaler.losses",
     NO_HINT, ""},
    {"F S B K P Z; F S B " BATCH "F S B " BATCH "F S B " BATCH "F S B K P Z", "scaler.losses",
     LS_FAIL, "rank 0: 3 times gradients that hold an infinity were cleared .. train.py:24"},
    {"0: F S B " BATCH
     "F S B Z; 1: F S B Z{\"discards\":1,\"finite\":false,\"at\":\"train.py:36\"} "
     "F S B " BATCH "F S B Z",
     "scaler.losses", LS_FAIL, "rank 1: 2 times .. train.py:36"},
    /* an optimizer of the script's own that is told of the infinity; a hook that hides one */
    {"{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"Own\",\"step_at\":\"train.py:61\","
     "\"groups\":[]};F S B K P "
     "Z;<\"skipped\":true,\"digest\":{\"param\":\"77\",\"buffer\":\"3\"},> F S B k "
     "O{\"scaled\":0} P Z",
     "scaler.skip", LS_FAIL, "Own unscales by itself .. train.py:61"},
    {"2x F S B{\"hidden\":\"train.py:62\"} K P Z", "scaler.skip", LS_FAIL,
     "step 2: an infinity or NaN goes into the model's backward .. a hook replaces .. train.py:62"},
    {"F S B{\"hidden\":\"\"} K P Z; F S B k P Z", "scaler.skip", LS_PASS, ""},
    {SECOND BOTH "U N{\"params\":4} K K{\"optimizer\":1} P", "scaler.order", LS_FAIL,
     "of all optimizers are clipped together"},
    {SECOND BOTH "U U{\"optimizer\":1} N{\"params\":4} K K{\"optimizer\":1} P", "scaler.order",
     LS_PASS, ""},
    {"F S B K P Z; F S B Z{\"discards\":0,\"finite\":false} F S B "
     "Z{\"discards\":0,\"finite\":false} "
     "F S B K P Z",
     "scaler.losses", LS_PASS, "4 scaled backward calls"},
};

CALLS_TEST(findings_say_where_and_how_much, whole)

TEST_MAIN("observe_scaler", .timeout_s = 120)
