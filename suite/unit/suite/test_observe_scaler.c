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

/* A limit that stays while the scale changes is not times it; one that follows it is; while the
 * scale stays, both are possible. f16 without a scale may be enough for an optimizer. */
static const calls_row guessed[] = {
    {"2x F S B N K P Z", "scaler.order", CALLS_HINT,
     "clipping without scaler.unscale_(optimizer) before it | train.py:2"},
    {"2x F S B N K P Z; F S B N k P Z", "scaler.order", CALLS_HINT, "clipping without"},
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

/* ---- trainers of the protocol ---------------------------------------------------------------- */

static void write_protocol(char *folder, const char *(*line)(int step))
{
    strcpy(folder, "/tmp/lockstep-calls-XXXXXX");
    LS_ASSERT(mkdtemp(folder) != NULL);
    for (int k = 0; k < 2; k++) {
        LS_TEXT(path, 200, "%s/rank%d.jsonl", folder, k);
        FILE *f = fopen(path, "w");
        LS_ASSERT(f != NULL);
        fprintf(f,
                "{\"event\":\"start\",\"schema\":1,\"rank\":%d,\"world\":2,\"options\":{"
                "\"loss-scale\":\"dynamic\",\"growth-interval\":2,\"opt-level\":\"O1\"}}\n",
                k);
        for (int i = 1; i <= 4; i++) {
            fprintf(f, "{\"event\":\"step\",\"step\":%d,\"loss\":1,%s}\n", i, line(i));
        }
        fprintf(f, "{\"event\":\"end\",\"steps\":4}\n");
        fclose(f);
    }
}

static const char *right_scale(int step)
{
    static const char *const lines[] = {
        "\"loss_scale\":64,\"loss_scale_next\":64,\"skipped\":false",
        "\"loss_scale\":64,\"loss_scale_next\":128,\"skipped\":false",
        "\"loss_scale\":128,\"loss_scale_next\":64,\"skipped\":true",
        "\"loss_scale\":64,\"loss_scale_next\":64,\"skipped\":false"};
    return lines[step - 1];
}

static const char *late_scale(int step)
{
    return step == 2 ? "\"loss_scale\":64,\"loss_scale_next\":64,\"skipped\":false"
                     : right_scale(step);
}

TEST(trainers_of_the_protocol_are_judged)
{
    calls_job job = {0};
    for (int late = 0; late < 2; late++) {
        write_protocol(job.folder, late == 0 ? right_scale : late_scale);
        ck_assert_int_eq(ls_observe_read(job.folder, &job.trace), LS_OK);
        ls_observe_judge_all(job.trace, &job.result);
        calls_expect(&job, "scaler.trace", late == 0 ? LS_PASS : LS_FAIL,
                     late == 0 ? "1 overflows, 1 growths" : "step 2: scale 64, then 64");
        calls_expect(&job, "scaler.agree", LS_PASS, "1 of them skips");
        calls_expect(&job, "scaler.once", LS_UNSUPPORTED, "no calls");
        calls_close(&job);
    }
}

TEST_MAIN("observe_scaler", .timeout_s = 120)
