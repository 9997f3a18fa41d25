/* Rules of what lies between a backward and a step, of schedules, of statistics and averages, and
 * of steps that never ended, on invented jobs: mistakes and the right practices that look like
 * them.
 */
#include "kernels/core/rng.h"
#include "observe_calls.h"
#include "reference/files/safetensors.h"
#include "suite/unit/run_suite.h"

#define TWO_PLACES(times)                       \
#times "x F S B K P L{\"schedule\":0} Z L{" \
           "\"schedule\":0,\"at\":\"train.py:40\"};"

/* Calls of each of four steps, the rule, the verdict, words of the finding. */
#define VALUE(loss, value, better, lr)                                            \
    "<\"loss\":" loss                                                             \
    ",> F b O L{\"schedule\":0,\"class\":\"ReduceLROnPlateau\",\"metric\":" value \
    ",\"better\":\"" better "\",\"lr\":[" lr "]} Z"
#define VALUES(better, lr, loss, last, lr_last)                                             \
    VALUE("3", "-2", better, "0.4")                                                         \
    ";" VALUE("2.9", "-1.9", better, "0.4") ";" VALUE("2.8", "-1.8", better, lr) ";" VALUE( \
        "2.7", "-1.7", better, lr) ";" VALUE(loss, last, better, lr_last)

static const calls_row rows[] = {
    /* gradients that are cleared before any step */
    {"4x F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z", "order.zero", CALLS_HINT,
     "zero_grad() for every batch"},
    {"4x F{\"input\":\"1\"} S B F{\"input\":\"2\",\"left\":0} S B K P Z", "order.zero", CALLS_HINT,
     "train.py:20"}, /* by hand: a forward finds none */
    {"4x F{\"input\":\"1\"} S B{\"at\":\"train.py:30\",\"sync\":false} Z F{\"input\":\"2\"} S B K "
     "P Z",
     "order.zero", LS_WEAK, "zero_grad() for every batch"},
    {"4x F{\"input\":\"1\"} S B F{\"input\":\"2\"} S B K P Z", "order.zero", LS_PASS, "4 steps"},
    {"4x F S B Z F S B K P Z", "order.zero", LS_PASS, "4 steps"}, /* sharpness-aware */
    {"4x F{\"input\":\"1\",\"input_grad\":true} S B Z F{\"input\":\"2\"} S B K P Z", "order.zero",
     LS_PASS, "4 steps"}, /* adversarial training */
    {"4x F{\"input\":\"1\"} S B{\"at\":\"train.py:30\"} Z F{\"input\":\"2\"} S B K P Z",
     "order.zero", LS_PASS, "4 steps"},
    {"4x F S B Z K P", "order.zero", LS_FAIL, "train.py:26"},
    /* clips */
    {"4x F S N B K P Z", "order.clip", LS_FAIL, "before backward()"},
    {"4x F S B K P N Z", "order.clip", LS_FAIL, "after the step"},
    {"4x F S B N Z F S B K P Z", "order.clip", LS_FAIL, "cleared before their optimizer steps"},
    {"4x F S B U N K P Z", "order.clip", LS_PASS, "4 calls"},
    {"4x F S B N F S B N K P Z", "order.clip", LS_PASS, "8 calls"},
    {"4x F S B U N{\"params\":0,\"norm\":0} K P Z", "order.clip", LS_FAIL, "norm of 0"},
    {"4x F S N{\"limit\":null} B U N K P Z", "order.clip", LS_PASS, "8 calls"},
    /* schedules */
    {"4x F S B K P L{\"schedule\":0} Z L{\"schedule\":0,\"at\":\"train.py:40\"}", "order.schedule",
     CALLS_HINT,
     "rank 0: StepLR.step() is called in two places between one optimizer.step() and the next, 3 "
     "of "
     "3 times | the schedule is stepped twice a step: it runs at twice its speed | train.py:40"},
    {"F S B K P L{\"schedule\":0} Z; " TWO_PLACES(4) "F S B K P Z", "order.schedule", CALLS_HINT,
     "4 of 5 times"},
    {"F S B K P L{\"schedule\":0} Z; " TWO_PLACES(3) "F S B K P Z", "order.schedule", NO_HINT, ""},
    {TWO_PLACES(2) "F S B K P Z", "order.schedule", CALLS_HINT, "2 of 2 times"},
    {TWO_PLACES(1) "F S B K P Z", "order.schedule", NO_HINT, ""},
    {"4x F S B K P L{\"schedule\":0,\"at\":\"train.py:70 (accelerate/scheduler.py:1)\"} "
     "L{\"schedule\":0,\"at\":\"train.py:70 (accelerate/scheduler.py:1)\",\"lr\":[0.2]} Z",
     "order.schedule", LS_PASS, "8 calls"}, /* as often as there are ranks */
    {"4x F S B K P L{\"schedule\":0} L{\"schedule\":0,\"lr\":[0.2]} Z", "order.schedule", LS_WEAK,
     "rank 0: a schedule is stepped 2 times between one optimizer.step() and the next, in 3 of 3 "
     "cases | the schedule runs at 2 times its speed .. | train.py:27"},
    {"4x F S B L{\"schedule\":0} F S B L{\"schedule\":0,\"lr\":[0.2]} K P Z "
     "L{\"schedule\":1,\"at\":\"train.py:9\"}",
     "order.schedule", LS_FAIL,
     "rank 0: StepLR.step() before the first optimizer.step(): the first value of the schedule is "
     "never used | the schedule is stepped with every batch, the optimizer with every 2 | "
     "train.py:27"},
    {"F S B L{\"schedule\":0,\"epoch\":0} K P Z; 3x F S B "
     "L{\"schedule\":0,\"lr\":[0.2],\"epoch\":1} K P Z",
     "order.schedule", LS_PASS, "4 calls"}, /* from a count of -1 */
    {"F S B L{\"schedule\":0,\"epoch\":1} K P Z; 3x F S B "
     "L{\"schedule\":0,\"lr\":[0.2],\"epoch\":2} K P Z",
     "order.schedule", LS_FAIL, "never used"},
    {"4x F S B K P Z F S B L{\"schedule\":0} F S B L{\"schedule\":0,\"lr\":[0.2]} K P Z",
     "order.schedule", LS_WEAK,
     "in 4 of 4 cases | the schedule is stepped with every batch, the optimizer with every 2"},
    {"4x F S B K P L{\"schedule\":0} Z L{\"schedule\":1,\"at\":\"train.py:40\"}", "order.schedule",
     LS_PASS, "8 calls"},
    {"4x F S B K P L{\"schedule\":0,\"class\":\"ReduceLROnPlateau\"} Z "
     "L{\"schedule\":0,\"class\":\"ReduceLROnPlateau\",\"at\":\"train.py:40\"}",
     "order.schedule", LS_PASS, "8 calls"},
    /* a measured value that gets worse each time while training improves; not each time, where it
     * does not improve, and where the rate stays */
    {VALUES("min", "0.2", "2.0", "-1.6", "0.1"), "order.schedule", CALLS_HINT,
     "rank 0: ReduceLROnPlateau in mode min is given a value that grows in each of 5 calls, while "
     "the training's loss goes from 3 to 2: it has cut the rate from 0.4 to 0.1 | .. does not fit"},
    {"5x F b O L{\"schedule\":-1,\"metric\":1,\"better\":\"min\"} Z", "order.schedule", NO_HINT,
     ""},
    {VALUES("max", "0.2", "2.0", "-2.4", "0.1"), "order.schedule", NO_HINT, ""},
    {VALUES("min", "0.2", "2.0", "-2.1", "0.1"), "order.schedule", NO_HINT, ""},
    {VALUES("min", "0.2", "2.99", "-1.6", "0.1"), "order.schedule", NO_HINT, ""},
    {VALUES("min", "0.4", "2.0", "-1.6", "0.4"), "order.schedule", NO_HINT, ""},
};

CALLS_TEST(calls_are_judged, rows)

/* What a script may do once in a while: leave out a batch, end an epoch. */
static const calls_row rarely[] = {
    {"2x F S B K P Z; F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z; 2x F S B K P Z",
     "order.zero", LS_PASS, "5 steps"},
    {"2x F S B K P Z; F S B K P N Z; 2x F S B K P Z", "order.clip", LS_PASS,
     "1 calls"}, /* a look at the norm */
    {"2x F S B K P Z; F S B Z K P; 2x F S B K P Z", "order.zero", LS_WEAK, "2 of 10 steps"},
    {"2x F S B U N K P Z; F S B U N Z F S B U N K P Z; 2x F S B U N K P Z", "order.clip", LS_PASS,
     "6 calls"},
    {"2x F S B K P L{\"schedule\":0} Z; F S B K P L{\"schedule\":0} Z "
     "L{\"schedule\":0,\"at\":\"train.py:40\"}; 2x F S B K P L{\"schedule\":0} Z",
     "order.schedule", LS_PASS, "6 calls"},
};

CALLS_TEST(what_happens_once_is_no_fault, rarely)

/* Backward passes that reach no step. G: a step; X: one that is thrown away, and its gradients hold
 * an infinity; Y: they are finite. Of losses times a scale of the script's own. */
#define IN(n, by) "F{\"input\":\"" n "\"} b{\"multiplied\":" by "} "
#define X(n, by) IN(n, by) "Z{\"finite\":false} "
#define Y(n) IN(n, "1") "Z{\"finite\":true} "
#define LOST(n) "F{\"input\":\"" n "\"} b{\"loss\":null} Z{\"finite\":false} "
#define G(by) IN("9", by) "O Z;"
/* a backward to outputs that were made without autograd, and are chosen by it */
#define BARE(n) "F{\"grad\":false,\"input\":\"" n "\"} b Z " IN(n "0", "1") "O Z;"
/* two networks of one optimizer: before the second one's backward it has no gradients */
#define TOGETHER                                                                                   \
    "!;{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"at\":\"train.py:6\",\"name\":\"G\","    \
    "\"params\":[[\"m1.fc.weight\",8,\"f32\",true]],\"buffers\":[],\"world\":2};"                  \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\",\"fc.bias\"," \
    "\"head.weight\",\"m1.fc.weight\"]}]};"
#define EACH(n)                                                                               \
    "F{\"input\":\"" n "\",\"left\":0} b{\"sync\":false} F{\"model\":1,\"input\":\"" n "0\"," \
    "\"left\":0} b{\"at\":\"train.py:60\"} O Z;"
#define HALF "A{\"type\":\"f16\"} "
#define CLIP_INF "N{\"norm\":null} "
#define REST(calls) "{\"event\":\"unfinished\",\"calls\":[" calls "]}"
#define PASS_(finite)                                                                     \
    "{\"call\":\"forward\",\"model\":0,\"grad\":true,\"training\":true,\"input\":\"5\"}," \
    "{\"call\":\"backward\",\"loss\":1,\"scaled\":null,\"at\":\"train.py:21\"},"          \
    "{\"call\":\"zero_grad\",\"finite\":" finite "}"
static const calls_row unused[] = {
    {"4x " G("1") "3x F S B K P Z", "gradient.used", LS_PASS, "7 backward passes reach a step"},
    {"2x " G("1") X("1", "1") X("2", "1") X("3", "1") X("4", "1") G("1"), "gradient.used", LS_FAIL,
     "4 of 7 backward passes reach no step of an optimizer: their losses are finite .. "
     "train.py:21"},
    {G("64") X("1", "64") X("2", "64") X("3", "64") X("4", "64") G("64"), "gradient.used", LS_FAIL,
     "the loss is multiplied by 64, which is not lowered"},
    {G("64") X("1", "64") X("2", "64") X("3", "64") G("64"), "gradient.used", LS_WEAK, "3 of 5"},
    {"2x " G("1") IN("1", "1") HALF "Z{\"finite\":false} " IN("2", "1") HALF
     "Z{\"finite\":false} " G("1") "4x " G("1"),
     "gradient.used", LS_FAIL, "summed over the ranks in f16 .. train.py:28"},
    {G("1") LOST("1") LOST("2") G("1"), "gradient.used", LS_FAIL,
     "2 of 4 .. losses are not finite"},
    {G("1") REST(PASS_("false") "," PASS_("false") "," PASS_("false") "," PASS_("false")),
     "gradient.used", LS_FAIL, "4 of 5"},
    {"2x " G("1") "1: " Y("1") G("1") "0: " G("1") "0: " G("1"), "gradient.used", LS_FAIL,
     "rank 0 steps by a gradient that rank 1 throws away"},
    {"2x " G("1") "1: " Y("1") G("1") "0: " G("1"), "gradient.used", LS_FAIL, "throws away"},
    {"2x " G("1") "1: " G("1"), "gradient.used", LS_PASS, ""},
    {"2x " G("1") IN("1", "1") CLIP_INF "O Z; 2x F b{\"loss\":null} O Z", "gradient.used", LS_FAIL,
     "none of the 2 losses after it is a number .. train.py:24"},
    /* one in four, or finite: it is counted */
    {"3x " G("1") X("1", "1") G("1"), "gradient.used", LS_WEAK,
     "1 of 5 backward passes reach no step of an optimizer, 1 with gradients that are not finite"},
    {"3x " G("1") Y("1") Y("2") Y("3") Y("4") G("1"), "gradient.used", LS_WEAK, "4 of 8"},
    /* a warm-up; the same inputs again; gradients that the script makes of them; forwards in eval
     * mode; other places; an own scale that is lowered */
    {Y("1") Y("2") Y("3") G("1"), "gradient.used", LS_PASS, "1 backward passes"},
    {"3x " Y("9") G("1"), "gradient.used", LS_PASS, "3 backward passes"},
    {TOGETHER EACH("1") EACH("2") EACH("3") EACH("4"), "gradient.used", LS_PASS, "8 backward"},
    {BARE("1") BARE("2") BARE("3") BARE("4"), "order.zero", NO_HINT, ""},
    {"3x F{\"input\":\"1\"} F{\"input\":\"2\",\"input_grad\":true} b O Z", "gradient.used", LS_PASS,
     "3 backward passes"}, /* two networks, one behind the other */
    {"3x F{\"input\":\"2\",\"input_grad\":true} b O Z", "gradient.used", LS_WEAK,
     "no training backward"},
    {"3x (" Y("1") Y("2") "O Z)", "gradient.used", LS_SKIP, "by itself"},
    {G("1") "F{\"training\":false} b Z{\"finite\":true} F b O Z", "gradient.used", LS_PASS, "2"},
    {G("1") "F b{\"at\":\"train.py:60\"} Z{\"finite\":true} F b O Z", "gradient.used", LS_PASS,
     "2"},
    {G("64") X("1", "64") X("2", "64") X("3", "32") G("16"), "gradient.used", LS_PASS,
     "for 3 overflows"},
    /* the law of order.zero: the script itself counts the batches of its steps */
    {"3x F{\"input\":\"1\"} b{\"multiplied\":0.5} Z F{\"input\":\"2\"} b{\"multiplied\":0.5} O Z",
     "order.zero", LS_FAIL, "each loss is divided by 2, their number"},
    /* an own scale: how it grows, backs off, and on all ranks */
    {"2x " G("64") X("1", "64") G("32") "3x " G("32") "3x " G("64"), "scaler.trace", LS_PASS,
     "followed over 10 steps, 1 overflows, 1 growths"},
    {X("0", "64") G("32") "3x " G("32"), "scaler.trace", LS_PASS,
     "over 5 steps, 1 overflows, 0 growths"},
    {X("0", "64") G("32") "3x " G("32") "4x " G("64") "7x " G("128") G("256"), "scaler.trace",
     LS_FAIL, "grows to 256 after 7 good steps, before after 4 .. train.py:21"},
    {X("0", "64") G("32") "3x " G("32") "4x " G("64") "5x " G("128") G("256"), "scaler.trace",
     LS_PASS, "3 growths"},
    {X("0", "64") G("32") G("64") X("1", "64") X("2", "64") X("3", "64") X("4", "64") X("5", "64")
         X("6", "64") X("7", "64") X("8", "64") X("10", "64") G("64"),
     "scaler.trace", LS_FAIL, "9 overflows in a row at a loss scale of 64"},
    {X("0", "64") G("32") IN("1", "32") CLIP_INF "O Z;" G("16"), "scaler.trace", LS_FAIL,
     "the loss scale goes from 32 to 16 .. train.py:24"},
    {X("0", "64") G("32") "0: " G("32") "1: " G("16"), "scaler.trace", LS_FAIL,
     "32 on rank 0 and 16 on rank 1"},
    {"2x " G("2") "2x " G("4") G("8"), "scaler.trace", LS_SKIP, "no enabled GradScaler"},
    {X("0", "64") G("32") G("7") G("32"), "scaler.trace", LS_SKIP, "no enabled GradScaler"},
};

CALLS_TEST(what_reaches_no_step_is_counted, unused)

/* The second of two ranks, at the limit and one beyond it. */
static const calls_row limits[] = {
    {"F S B K P Z; F S B Z{\"at\":\"train.py:31\"} K P", "order.zero", LS_FAIL,
     "rank 0, step 2: the gradients were cleared after the backward and before the optimizer's "
     "step; so in 2 of 4 steps of all ranks .. train.py:31"},
    {"F S B K P Z; 0: F S B K P Z; 1: F S B Z K P", "order.zero", LS_WEAK,
     "rank 1, step 2: .. so in 1 of 4 steps"},
    {"2x F S B K P Z; F S B Z{\"at\":\"train.py:31\"} K P; 2x F S B Z K P", "order.zero", LS_FAIL,
     "step 3 .. so in 6 of 10 steps .. train.py:31"},
    {"2x (0: F S B K P Z; 1: F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B Z F{\"input\":\"3\"} "
     "S B K P Z)",
     "order.zero", CALLS_HINT,
     "rank 1: in 2 of 2 steps gradients of other batches (2 in the last of them) were cleared"},
    {"F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z", "order.zero", LS_PASS, "1 steps"},
    {"2x (F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z; F S B K P Z)", "order.zero",
     CALLS_HINT, "in 2 of 4 steps"},
    {"2x (F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z; F S B K P Z); F S B K P Z",
     "order.zero", NO_HINT, ""},
    {"2x (F{\"input\":\"1\"} S B{\"at\":\"train.py:30\",\"sync\":false} Z F{\"input\":\"2\"} S B K "
     "P Z; F S B K "
     "P Z)",
     "order.zero", LS_WEAK, "in 2 of 4 steps"},
    {"2x (F{\"input\":\"1\"} S B{\"at\":\"train.py:30\",\"sync\":false} Z F{\"input\":\"2\"} S B K "
     "P Z; F S B K "
     "P Z); F S B K P Z",
     "order.zero", LS_PASS, "5 steps"},
    {"2x (F{\"input\":\"1\"} S B{\"times\":3} Z F{\"input\":\"2\"} S B K P Z)", "order.zero",
     CALLS_HINT, "(3 in the last of them)"},
    {"2x (F{\"input\":\"\"} S B Z F{\"input\":\"2\"} S B K P Z)", "order.zero", NO_HINT, ""},
    {"2x (F{\"input\":\"1\"} S B Z F{\"input\":\"\"} S B K P Z)", "order.zero", NO_HINT, ""},
    /* clips */
    {"2x (0: F S B U N K P Z; 1: F S N B K P Z)", "order.clip", LS_FAIL,
     "rank 1, step 1: gradients were clipped to 1 before a backward had computed them; so in 2 of "
     "2 calls .. before backward()"},
    {"F S N B K P Z", "order.clip", LS_PASS, "1 calls"},
    {"F S N{\"times\":2} B K P Z", "order.clip", LS_FAIL, "so in 2 of 2 calls"},
    {"F S B U N K P Z; 7x F S N{\"limit\":2} B K P Z", "order.clip", LS_FAIL,
     "step 2: gradients were clipped to 2 .. so in 7 of 8 calls"},
    {"F S B U N K P Z; 6x F S N B K P Z", "order.clip", LS_PASS, "7 calls"},
    {"2x F S N B K P Z; 3x F S B K P N Z", "order.clip", LS_FAIL,
     "after the optimizer had stepped by them; so in 5 of 5 calls"},
    {"3x F S N B K P Z; 2x F S B K P N Z", "order.clip", LS_FAIL, "before a backward .. 5 of 5"},
    {"4x Z F S B K P N", "order.clip", LS_FAIL, "after the optimizer had stepped .. 4 of 4 calls"},
    {"4x F S B N Z F S B K P Z", "order.clip", LS_FAIL,
     "step 1: gradients were clipped to 1 and cleared before their optimizer stepped; so in 4"},
    {"2x F S B U N{\"norm\":0,\"at\":\"train.py:53\"} K P Z; F S B U N K P Z", "order.clip",
     LS_FAIL, "rank 0: 2 of 3 calls returned a norm of 0: they clipped nothing .. train.py:53"},
    {"2x F S B U N{\"norm\":0} K P Z; 2x F S B U N K P Z", "order.clip", LS_PASS, "4 calls"},
    {"F S B U N{\"norm\":0} K P Z", "order.clip", LS_PASS, "1 calls"},
    {"2x F S B U N{\"norm\":0,\"how\":\"value\"} K P Z", "order.clip", LS_PASS, "2 calls"},
    {"F S B U N{\"norm\":0,\"times\":2} K P Z", "order.clip", LS_FAIL, "2 of 2 calls returned"},
    {"2x F S B U N{\"params\":0} N{\"at\":\"train.py:53\"} K P Z", "order.clip", LS_PASS,
     "4 calls"},
};

CALLS_TEST(what_happens_often_enough_is_a_fault, limits)

/* ---- two networks in turn -------------------------------------------------------------------- */

/* Rank 0 has one less, rank 1 one more, of what is theirs alone. */
static void write_samples(const calls_job *job, int step, double local, double since,
                          double reduced, double used, double again)
{
    const struct {
        const char *name;
        bool own;
        double first;
    } group[] = {{"local", true, local},
                 {"since", true, since},
                 {"reduced", false, reduced},
                 {"again/local", true, again},
                 {"used", false, used != 0 ? used : reduced}};
    LS_TEXT(folder, 100, "%s/samples", job->folder);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    for (int k = 0; k < job->world; k++) {
        ls_safetensors_writer *w = NULL;
        LS_TEXT(path, 200, "%s/step%06d.rank%d.safetensors", folder, step, k);
        ck_assert_int_eq(ls_safetensors_create(path, &w), LS_OK);
        for (int g = 0; g < 5; g++) {
            double exact[2] = {group[g].first + (group[g].own ? 2 * k - 1 : 0), -4};
            float rounded[2] = {(float)exact[0], (float)exact[1]};
            ls_shape shape = {1, {2}};
            LS_TEXT(name, 64, "%s/fc.bias", group[g].name);
            if (group[g].first != 0) {
                ck_assert_int_eq(
                    ls_safetensors_add_copy(w, name, group[g].own ? LS_F64 : LS_F32, &shape,
                                            group[g].own ? (void *)exact : (void *)rounded),
                    LS_OK);
            }
        }
        ck_assert_int_eq(ls_safetensors_finish(w), LS_OK);
    }
}

#define NETWORKS                                                                                   \
    "!;{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"at\":\"train.py:6\",\"name\":\"G\","    \
    "\"params\":[[\"m1.fc.weight\",8,\"f32\",true]],\"buffers\":[],\"world\":2};"                  \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\",\"fc.bias\"," \
    "\"head.weight\"]}]};"                                                                         \
    "{\"event\":\"optimizer\",\"optimizer\":1,\"groups\":[{\"params\":[\"m1.fc.weight\"]}]};"

#define DETAIL "<\"detail\":true,> "
#define THROWN                                                                            \
    "F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z;" DETAIL                       \
    "F{\"input\":\"1\"} S B Z F{\"input\":\"2\"} S B K P Z; 2x F{\"input\":\"1\"} S B Z " \
    "F{\"input\":\"2\"} S B K P Z"
#define COPIES                                                                               \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"copies_at\":\"train.py:44\",\"groups\":[{" \
    "\"params\":[\"fc.bias\"]}]};"
#define LATE(calls) calls ";" DETAIL calls
#define BY_HAND(calls)                                                                        \
    "!\"kind\":\"plain\",;{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[" \
    "\"fc.bias\"]}]};" LATE(calls)
#define NEVER(more)                                                                          \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[\"fc.weight\"" more \
    "]}]};{\"event\":\"idle\",\"at\":\"train.py:8\",\"params\":[\"fc.bias\"],\"steps\":8};"
#define HOLDS(params) \
    "!;{\"event\":\"optimizer\",\"optimizer\":0,\"groups\":[{\"params\":[" params "]}]};"
#define REPLACED(first, second)    \
    HOLDS("\"head.weight\",\"?\"") \
    "F b O{\"bare_foreign\":" first "} Z;" DETAIL "F b O{\"bare_foreign\":" second "} Z;"
#define COVERED(members) \
    "!" members "\"params\":[[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,\"f32\",true]],;"
#define OTHER "O{\"optimizer\":1} Z{\"optimizer\":1}"

#define ONE(reached) "b{\"at\":\"train.py:60\",\"reached\":" reached "} "
#define TWO(reached) "b{\"at\":\"train.py:70\",\"reached\":" reached "} "
#define Z1 "Z{\"optimizer\":1} "
#define O1 "O{\"optimizer\":1} "

/* Calls of the steps of optimizer 0 and of optimizer 1, whose parameters each backward reaches: no
 * verdict without a detailed step, and no hint either. */
#define UNMIXED(calls)                                               \
    {NETWORKS calls, "reduction.left", LS_WEAK, "no detailed step"}, \
    {                                                                \
        NETWORKS calls, "reduction.left", NO_HINT, ""                \
    }

static const calls_row mixtures[] = {
    /* a generator (1) and a discriminator (0): as it should be, cleared at the end only, and
     * without detach() */
    UNMIXED("4x (Z F " ONE("1") "O; " Z1 "F " TWO("3") O1 ")"),
    {NETWORKS "4x (F " ONE("1") "O Z; F " TWO("3") O1 Z1 ")", "reduction.left", LS_WEAK,
     "3 steps, the first of them step 3, are made by two losses: that of train.py:60, and what "
     "train.py:70 left"},
    {NETWORKS "3x (F " ONE("1") "O Z; F " TWO("3") O1 Z1 ")", "reduction.left", LS_WEAK,
     "2 steps, the first of them step 3"},
    UNMIXED("2x (F " ONE("1") "O Z; F " TWO("3") O1 Z1 ")"),
    {NETWORKS "4x (Z " Z1 "F " ONE("3") "O; F " TWO("3") O1 ")", "reduction.left", CALLS_HINT,
     "4 steps, the first of them step 2, are made by two losses: that of train.py:70, and what "
     "train.py:60 left"},
    {NETWORKS "2x (Z " Z1 "F " ONE("3") "O; F " TWO("3") O1 ")", "reduction.left", CALLS_HINT,
     "2 steps, the first of them step 2"},
    UNMIXED("Z " Z1 "F " ONE("3") "O; F " TWO("3") O1),
    {NETWORKS "4x (Z " Z1 "F " ONE("3") "O; Z F " TWO("3") O1 ")", "reduction.left", CALLS_HINT,
     "4 steps, the first of them step 2"},
    /* its own zero_grad clears what the other's loss left */
    UNMIXED("4x (Z " Z1 "F " ONE("3") "O; " Z1 "F " TWO("3") O1 ")"),
    UNMIXED("4x (F " ONE("3") O1 "; Z F " TWO("1") "O)"),
    /* its loss in two parts, of which one reaches the other network */
    {NETWORKS "4x (Z " Z1 "F " ONE("3") "O; F " TWO("3") TWO("2") O1 ")", "reduction.left",
     CALLS_HINT, "4 steps, the first of them step 2"},
    {NETWORKS "4x (Z " Z1 "F " ONE("3") "O; F " TWO("2") TWO("3") O1 ")", "reduction.left",
     CALLS_HINT, "4 steps, the first of them step 2"},
    /* a part that two tasks share (1), stepped once for both: the other task is the other's alone
     */
    UNMIXED("4x (Z " Z1 "F " ONE("3") "O; F " TWO("2") O1 ")"),
    /* the later one trains a third part, too, which is stepped after it */
    {NETWORKS "4x (Z " Z1 "F " ONE("3") "O; F " TWO("7") O1 "O{\"optimizer\":2})", "reduction.left",
     LS_WEAK, "of train.py:70, and what train.py:60 left"},
    /* both backward calls at one place; both before the first step */
    UNMIXED("4x (F " ONE("1") "O Z; F " ONE("3") O1 Z1 ")"),
    UNMIXED("4x (F " ONE("3") TWO("3") "O " O1 "Z " Z1 "; F " ONE("3") TWO("3") "O " O1 "Z " Z1
                                                                                ")"),
};

CALLS_TEST(two_losses_of_two_networks, mixtures)

/* A job with samples of a detailed step: of each group the first element, of two; 0: no group. */
static const struct {
    calls_row row;
    int step;
    struct {
        double local, since, reduced, used; /* used 0: as reduced */
        double again;
    } first;
} sampled[] = {
    /* calls of the steps of optimizer 0 and of optimizer 1 */
    {{NETWORKS "F b O; F b{\"at\":\"train.py:70\"} " OTHER "; " DETAIL
               "F b O; F b{\"at\":\"train.py:70\"} " OTHER
               "; F b O; F b{\"at\":\"train.py:70\"} " OTHER,
      "reduction.left", LS_FAIL,
      "step 3, rank 0: 1 parameters hold a gradient that was there before the step's own backward, "
      "and it stays in the sum: fc.bias | no zero_grad .. | train.py:21 | call"},
     3,
     {.local = 2, .reduced = 3}},
    {{NETWORKS "F b O; F b{\"at\":\"train.py:70\"} " OTHER "; " DETAIL
               "F b O; F b{\"at\":\"train.py:70\"} " OTHER
               "; F b O; F b{\"at\":\"train.py:70\"} " OTHER,
      "reduction.left", LS_PASS, "looked at 2 times in steps after the first |"},
     3,
     {.local = 2, .reduced = 2}},
    {{NETWORKS "F b O Z; F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER "; " DETAIL
               "F b O Z; F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER
               "; F b O Z; F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER,
      "reduction.left", LS_WEAK,
      "step 3, rank 0: 1 parameters hold what the backward at train.py:70 left before the step's "
      "own: fc.bias | gradients of another loss .. | train.py:21 | if"},
     3,
     {.local = 2, .reduced = 3}},
    {{NETWORKS "F b O Z; F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER "; " DETAIL
               "F b O Z; F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER
               "; F b O Z; F{\"left\":0} b{\"at\":\"train.py:70\"} " OTHER,
      "reduction.mean", LS_WEAK, "look at more steps in detail: --every 10"},
     3,
     {.local = 2, .reduced = 3}},
    {{NETWORKS "F b O Z; F{\"left\":0} b " OTHER "; " DETAIL "F b O Z; F{\"left\":0} b " OTHER
               "; F b O Z; F{\"left\":0} b " OTHER,
      "reduction.left", LS_PASS, ""},
     3,
     {.local = 2, .reduced = 3}}, /* collected */
    {{NETWORKS "Z F{\"left\":0} b O; F b{\"at\":\"train.py:70\"} " OTHER " Z; " DETAIL
               "Z F{\"left\":0} b O; F b{\"at\":\"train.py:70\"} " OTHER
               " Z; Z F{\"left\":0} b O; F b{\"at\":\"train.py:70\"} " OTHER " Z",
      "reduction.left", LS_PASS, ""},
     3,
     {.local = 2, .reduced = 2}},
    /* of the other network: what the first one left may stay there */
    {{NETWORKS "Z F{\"left\":0} b O;" DETAIL "F b " OTHER "; Z F{\"left\":0} b O; F b " OTHER,
      "reduction.left", LS_PASS, ""},
     2,
     {2}},
    /* one parameter gets gradients, one does not, as it is asked for; no model is called */
    {{COVERED("\"find_unused\":true,") "F b O Z;" DETAIL "F b O Z", "reduction.covered", LS_PASS,
      "1 parameters get gradients, 1 may be unused and are |  |  | never trained: fc.weight"},
     2,
     {2}},
    {{COVERED("\"static_graph\":true,") "F b O Z;" DETAIL "F b O Z", "reduction.covered", LS_PASS,
      "1 parameters get gradients, 1 may be unused"},
     2,
     {2}},
    {{COVERED("") "b O Z;" DETAIL "b O Z", "reduction.covered", LS_PASS,
      "1 parameters get gradients, 0 may be unused and are |  |  | "},
     2,
     {2}},
    /* an optimizer that never steps: its parameter gets gradients, or is stepped by another one */
    {{NEVER("") "F b O Z;" DETAIL "F b O Z; 10x F b O Z", "optimizer.covered", CALLS_HINT,
      "never asked to step in 12 steps of others, and 1 of its parameters get gradients: fc.bias"},
     2,
     {2}},
    {{NEVER("") "F b O Z;" DETAIL "F b O Z; 9x F b O Z", "optimizer.covered", CALLS_HINT,
      "1 trainable parameters get gradients and are in no group"},
     2,
     {2}},
    {{NEVER(",\"fc.bias\"") "F b O Z;" DETAIL "F b O Z; 10x F b O Z", "optimizer.covered", LS_WEAK,
      ""},
     2,
     {2}},
    /* one of two parameters of a module; the head that another one took the place of */
    {{HOLDS("\"fc.weight\"") "F b O Z;" DETAIL "F b O Z; 10x F b O Z", "optimizer.covered", LS_FAIL,
      "1 trainable parameters get gradients and are in no group of an optimizer: fc.bias | these "
      "were not given to the optimizer"},
     2,
     {2}},
    {{HOLDS("\"fc.weight\"") "F b O Z;" DETAIL "F b O Z; 9x F b O Z", "optimizer.covered",
      CALLS_HINT, ""},
     2,
     {2}},
    {{HOLDS("\"head.weight\"") "F b O Z;" DETAIL "F b O Z; 10x F b O Z", "optimizer.covered",
      CALLS_HINT, "these were not given"},
     2,
     {2}},
    {{REPLACED("1", "1") "10x F b O Z", "optimizer.covered", LS_FAIL,
      "in no group of an optimizer: fc.bias; its groups hold others, of no model | the optimizer "
      "was "
      "made before these parameters were replaced"},
     2,
     {2}},
    {{REPLACED("0", "1") "10x F b O Z", "optimizer.covered", CALLS_HINT, "were replaced"}, 2, {2}},
    {{REPLACED("1", "null") "10x F b O Z", "optimizer.covered", CALLS_HINT, "were replaced"},
     2,
     {2}},
    {{REPLACED("1", "1") "9x F b O Z", "optimizer.covered", CALLS_HINT, "were replaced"}, 2, {2}},
    /* a gradient of the script's own making, as of samples that it clips one by one, is not the
     * last batch's; and the mean of a step is that of the passes since its gradients were cleared
     */
    {{THROWN, "order.zero", CALLS_HINT, "for every batch"}, 2, {7, 2, 2}},
    {{THROWN, "order.zero", LS_PASS, ""}, 2, {7, 2, 2, 5}},
    /* copies of gradients that no step uses */
    {{COPIES THROWN, "order.zero", LS_WEAK, "the script copies gradients at train.py:44"}, 2, {2}},
    {{COPIES THROWN, "order.zero", CALLS_HINT, "before any optimizer had stepped by them |"},
     2,
     {7, 2, 2}},
    {{THROWN, "reduction.mean", LS_PASS,
      "4 elements of 1 detailed steps .. | train.py:21 | all 2 backward passes of a step reduce"},
     2,
     {7, 2, 2}},
    {{THROWN, "reduction.mean", LS_PASS, "of 1 detailed steps"}, 2, {7, 2, 2, 5}},
    /* passes of a step that come after its reduction: what the calls say of a wrong mean */
    {{LATE("F b F{\"sync\":false} b{\"sync\":false,\"no_sync\":\"train.py:57\"} O Z"),
      "reduction.mean", LS_FAIL,
      "+- 8.3e-07; so in 1 of 1 tensors: fc.bias | no_sync() around the last backward of the step "
      ".. "
      "train.py:57"},
     2,
     {.local = 2, .reduced = 2.25}},
    {{LATE("F b b{\"at\":\"train.py:22\"} O Z"), "reduction.mean", LS_FAIL,
      "+- 1.4e-06; so in 1 of 1 tensors: fc.bias | 2 backward passes of 1 forwards .. train.py:22"},
     2,
     {.local = 2, .reduced = 2.25}},
    {{LATE("F b{\"sync\":false} F{\"sync\":false} b{\"at\":\"train.py:23\"} O Z"), "reduction.mean",
      LS_FAIL,
      "in 1 of 1 tensors: fc.bias | whether gradients are reduced .. changes between a forward and "
      "this backward .. train.py:21"},
     2,
     {.local = 2, .reduced = 2.25}},
    {{LATE("F b{\"sync\":false} F b O Z"), "reduction.mean", LS_FAIL,
      "only the last of 2 micro-steps counts | train.py:26"},
     2,
     {.local = 5, .reduced = 2, .again = 2}},
    /* what comes before the script's own reduction */
    {{BY_HAND("F b N A O Z"), "reduction.mean", LS_FAIL,
      "before the script reduces them (train.py:28): the mean is not that of the gradients | "
      "train.py:23"},
     2,
     {.local = 2, .reduced = 2.25}},
    {{BY_HAND("F b U A N O Z"), "reduction.mean", LS_FAIL,
      "unscale_ comes before the script reduces the gradients (train.py:28) .. | train.py:22"},
     2,
     {.local = 2, .reduced = 2.25}},
};

ROWS_TEST(samples_are_judged, sampled)
{
    calls_job job;
    calls_open_script(&job, 2, sampled[_i].row.script);
    write_samples(&job, sampled[_i].step, sampled[_i].first.local, sampled[_i].first.since,
                  sampled[_i].first.reduced, sampled[_i].first.used, sampled[_i].first.again);
    calls_judge(&job);
    calls_expect_parts(&job, sampled[_i].row.id, sampled[_i].row.code, sampled[_i].row.words);
    calls_close(&job);
}

/* The clip is of the network whose gradients the next zero_grad clears. */
#define CLIPS(first, second)              \
    NETWORKS "3x F b N{\"models\":" first \
             "} O Z Z{\"optimizer\":1} F{\"model\":1} b N{\"models\":" second "} " OTHER
/* Counts of batches move the digest of all buffers. */
#define MEASURED(a, b, c)                                                          \
    "<\"statistics\":{\"0\":\"" a "\"},> F S B K P Z; <\"statistics\":{\"0\":\"" b \
    "\"},> F S B K P Z; F S B K P Z; <\"statistics\":{\"0\":\"" c "\"},> F S B K P Z"
#define NOOP "{\"event\":\"hook\",\"model\":0,\"name\":\"noop_hook\",\"at\":\"train.py:8\"};"

/* A step after which the ranks differ, with members of rank 0's; what both did in the one before.
 */
#define SPLIT(zero, one, members)                           \
    "0: F b O Z " zero "; 1: F b O Z " one "; 0: <" members \
    "\"digest\":{\"param\":\"8\"},> F b O "                 \
    "Z; 1: <\"digest\":{\"param\":\"9\"},> F b O Z"
#define GIVEN(rank, what, step)                                                                \
    rank ": {\"event\":\"restore\",\"what\":\"" what "\",\"step\":" step ",\"at\":\"train.py:" \
         "10\"}"

static const calls_row others[] = {
    {CLIPS("[1]", "[0,1]"), "order.clip", LS_FAIL, "of another model"},
    {CLIPS("[0]", "[1]"), "order.clip", LS_PASS, "6 calls"},
    {NETWORKS "4x F b F{\"model\":1} b N{\"models\":[0]} Z{\"of\":\"model\",\"model\":1} O Z",
     "order.clip", LS_PASS, "4 calls"},
    {NETWORKS "4x F b F{\"model\":1} b N{\"models\":[0]} Z{\"of\":\"model\",\"model\":0} O Z",
     "order.clip", LS_FAIL, "cleared before their optimizer stepped; so in 4 of 4"},
    /* it reduces nothing; where the script calls collectives, they may */
    {NOOP "2x F S B K P Z", "reduction.mean", LS_FAIL, "noop_hook reduces nothing"},
    {NOOP "2x F S B A K P Z", "reduction.mean", LS_UNSUPPORTED, "noop_hook reduces nothing"},
    {SPLIT("L", "", "\"lr\":0.05,"), "replicas.step", LS_FAIL,
     "rank 0 alone steps its schedule: at step 2 the learning rate is 0.05 on rank 0 and 0.1 on "
     "rank 1 | train.py:27 | step"},
    {SPLIT("", "L", "\"lr\":0.05,"), "replicas.step", LS_FAIL, "rank 1 alone"},
    {SPLIT("L", "L", "\"lr\":0.05,"), "replicas.step", LS_FAIL,
     "| step 2: the learning rate is 0.05 on rank 0 and 0.1 on rank 1 | train.py:24 | compute"},
    {SPLIT("L", "L{\"times\":2}", "\"lr\":0.05,"), "replicas.step", LS_FAIL, "rank 1 alone"},
    {SPLIT("", "", "\"lr\":0.05,") ";" GIVEN("0", "optimizer", "0"), "replicas.step", LS_FAIL,
     "| rank 0 restored the optimizer from a file 1 times, rank 1 0 times | train.py:10 | call"},
    {SPLIT("", "", "") ";" GIVEN("0", "optimizer", "0"), "replicas.step", LS_FAIL,
     "| rank 0 restored the optimizer from a file 1 times, rank 1 0 times | train.py:10 | call"},
    {SPLIT("", "", "") ";" GIVEN("0", "model", "2"), "replicas.step", LS_FAIL,
     "| rank 0 restored the model from a file 1 times, rank 1 0 times |"},
    {SPLIT("", "", "") ";" GIVEN("1", "model", "2") ";" GIVEN("1", "model", "0"), "replicas.step",
     LS_FAIL, "| rank 0 restored the model from a file 0 times, rank 1 2 times |"},
    {SPLIT("", "", "") ";" GIVEN("0", "model", "3") ";" GIVEN("1", "model", "2"), "replicas.step",
     LS_FAIL, "0 times, rank 1 1 times"},
    {SPLIT("", "", "") ";" GIVEN("0", "optimizer", "2") ";" GIVEN("1", "model", "2"),
     "replicas.step", LS_FAIL, "0 times, rank 1 1 times"},
    {"F b O Z; 0: F b Z; 1: <\"skipped\":true,> F b O Z; F b O Z", "replicas.step", LS_FAIL,
     "the optimizer of rank 1 did nothing in step 2, that of rank 0 stepped |  | decide"},
    {"0: F S B k P Z; 1: F S B K P Z; F b O Z", "replicas.step", LS_FAIL,
     "the optimizer of rank 0 did nothing in step 1, that of rank 1 stepped |"},
    {"0: F b O Z; 1: F S B k P Z; F b O Z", "replicas.step", LS_FAIL,
     "did nothing in step 1, that of rank 0 stepped | train.py:24 | decide"},
    {"0: F b O L Z; 1: F b O Z; 0: <\"lr\":0.05,> F b O L Z; 1: <\"digest\":{\"param\":\"9\"},> F "
     "b O Z",
     "replicas.step", LS_FAIL,
     "after step 2 ranks 0 and 1 hold different parameters: no samples from that step on | rank 0 "
     "alone steps its schedule: at step 2 the learning rate is 0.05 on rank 0 and 0.1 on rank 1 | "
     "train.py:27"},
    {MEASURED("7", "7", "7"), "mode.statistics", LS_FAIL, "after all of 2 detailed steps"},
    {MEASURED("0", "1", "3"), "mode.statistics", LS_PASS, "moved in"},
};

CALLS_TEST(other_orders_are_judged, others)

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
#define MOVED(schedule) "{\"event\":\"schedule_moved\",\"schedule\":" schedule "}; "

static const calls_row idle[] = {
    {SCHEDULE("StepLR") "; " MOVED("0") "8x F S B K P Z; " PASS_OF("1") "; " PASS_OF("5"),
     "order.schedule", LS_SKIP, ""},
    {SCHEDULE("StepLR") "; " MOVED("1") "8x F S B K P Z; " PASS_OF("1") "; " PASS_OF("5"),
     "order.schedule", CALLS_HINT, "never stepped"},
    {SCHEDULE("StepLR") "; 8x F S B K P Z; " PASS_OF("1") "; " PASS_OF("5"), "order.schedule",
     CALLS_HINT,
     "a StepLR is built and never stepped, in 8 steps and 2 whole passes | scheduler.step() is "
     "missing .. | train.py:8"},
    {SCHEDULE("StepLR") "; 4x F S B K P Z; 4x <\"lr\":0.2,> F S B K P Z; " PASS_OF(
         "1") "; " PASS_OF("5"),
     "order.schedule", LS_SKIP, ""}, /* a library asks it for its values */
    {SCHEDULE("StepLR") "; 7x F S B K P Z; " PASS_OF("1") "; " PASS_OF("5"), "order.schedule",
     LS_SKIP, ""},
    {SCHEDULE("StepLR") "; 50x F S B K P Z; " PASS_OF("1"), "order.schedule", LS_WEAK,
     "in 50 steps and 1 whole passes |"},
    {SCHEDULE("StepLR") "; 49x F S B K P Z; " PASS_OF("1"), "order.schedule", LS_SKIP, ""},
    {SCHEDULE("StepLR") "; 9x F S B K P Z; " PASS_OF("1") "; " PASS_OF("0"), "order.schedule",
     LS_SKIP, ""}, /* one whole pass */
    {STEPPED_IF "; 9x F S B K P Z; " PASS_OF("1") "; " PASS_OF("5"), "order.schedule", LS_WEAK,
     "in 9 steps and 2 whole passes; the script does so under a condition"},
    {SCHEDULE("StepLR") "\n{\"event\":\"schedule\",\"schedule\":1,\"class\":\"SequentialLR\","
                        "\"at\":\"train.py:9\",\"step\":0,\"holds\":[0]}; 9x F S B K P Z; " PASS_OF(
                            "1") "; " PASS_OF("5"),
     "order.schedule", CALLS_HINT, "a SequentialLR is built and never .. train.py:9"},
    {SCHEDULE("ReduceLROnPlateau") "; 9x F S B K P Z; " PASS_OF("1") "; " PASS_OF("5"),
     "order.schedule", LS_SKIP, ""},
    {SCHEDULE("StepLR") "; 9x F S B K P Z L{\"schedule\":1}; " PASS_OF("1") "; " PASS_OF("5"),
     "order.schedule", LS_PASS, "9 calls"},
};

CALLS_TEST(an_idle_schedule_is_caught, idle)

#define SPAN(class, span)                                                                   \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"" class "\",\"at\":\"train.py:8\"," \
                                                                "\"step\":0,\"holds\":[],"  \
                                                                "\"span\":" span "};"

#define LAST "L{\"schedule\":0,\"optimizer\":0} "
#define UP(rate) "F S B K P L{\"schedule\":0,\"optimizer\":0,\"lr\":[" rate "]} Z;"
#define SEVEN_UP UP("0.1") UP("0.2") UP("0.3") UP("0.34") UP("0.37") UP("0.4") UP("0.43")

/* A schedule made for so many calls, in twelve steps, after each or each fourth of them. */
#define TWICE " F S B K P L{\"schedule\":0} L{\"schedule\":0,\"lr\":[0.2]} Z"
#define PLACES " F S B K P L{\"schedule\":0} Z L{\"schedule\":0,\"at\":\"train.py:40\"}"
#define OF_LIBRARY "L{\"schedule\":0,\"at\":\"train.py:70 (accelerate/scheduler.py:1)\"} "
#define FOR_RANKS " F S B K P " OF_LIBRARY OF_LIBRARY "Z"

static const calls_row spans[] = {
    {SPAN("LinearLR", "24") "24x" TWICE, "order.schedule", LS_FAIL,
     "in 23 of 23 cases | its length is the number of the optimizer's steps: the rate comes to its "
     "end after 1/2 of them | train.py:27"},
    {SPAN("LinearLR", "48") "24x" TWICE, "order.schedule", LS_PASS, ""},
    {SPAN("LinearLR", "24") "24x" PLACES, "order.schedule", LS_FAIL,
     "in two places between one optimizer.step() and the next, 23 of 23 times; its length is the "
     "number of the optimizer's steps | the schedule is stepped twice a step .. | train.py:40"},
    {SPAN("LinearLR", "48") "24x" PLACES, "order.schedule", CALLS_HINT, "in two places"},
    {SPAN("LinearLR", "24") "24x" FOR_RANKS, "order.schedule", LS_FAIL, "end after 1/2 of them"},
    {SPAN("LinearLR", "36") "24x" FOR_RANKS, "order.schedule", LS_PASS, ""},
    {SPAN("LinearLR", "36") "24x" TWICE, "order.schedule", LS_WEAK, "runs at 2 times its speed"},
    {SPAN("LinearLR", "16") "16x" TWICE, "order.schedule", LS_WEAK, "runs at 2 times its speed"},
    {SPAN("OneCycleLR", "12") "12x F S B K P L{\"schedule\":0,\"optimizer\":0} Z", "order.schedule",
     LS_PASS, "12 calls"},
    {SPAN("OneCycleLR", "12") "3x (3x F S B K P Z; F S B K P L{\"schedule\":0,\"optimizer\":0} Z)",
     "order.schedule", CALLS_HINT,
     "a OneCycleLR of 12 steps was stepped 3 times, its optimizer 12 times | a schedule that is "
     "made for batches is stepped with each epoch .. | train.py:8"},
    {SPAN("CosineAnnealingLR",
          "13") "3x (3x F S B K P Z; F S B K P L{\"schedule\":0,\"optimizer\":0} Z)",
     "order.schedule", CALLS_HINT, "of 13 steps was stepped 3 times, its optimizer 12 times"},
    {SPAN("CosineAnnealingLR",
          "3") "3x (3x F S B K P Z; F S B K P L{\"schedule\":0,\"optimizer\":0} Z)",
     "order.schedule", LS_PASS, ""},
    {SPAN("OneCycleLR", "400") "12x F S B K P L{\"schedule\":0,\"optimizer\":0} Z",
     "order.schedule", LS_PASS, ""}, /* ended early */
    {SPAN("CosineAnnealingLR", "3") "12x F S B K P L{\"schedule\":0,\"optimizer\":0} Z",
     "order.schedule", LS_WEAK,
     "with T_max 3 was stepped 12 times: the rate rises again |  | train.py:8"},
    {SPAN("CosineAnnealingLR", "12") "12x F S B K P " LAST LAST "Z", "order.schedule", CALLS_HINT,
     "has come to 24 at the end of the job (12 steps, 12 batches, 0 passes): the rate goes through "
     "it and on | its length is counted in steps of one rank, and it is stepped once for each rank "
     "| train.py:8"},
    {SPAN("CosineAnnealingLR", "3") SPAN("CosineAnnealingLR", "12") "12x F S B K P " LAST "Z",
     "order.schedule", LS_PASS, ""}, /* built again in its place */
    {SPAN("LinearLR", "12") "12x F S B K P " LAST LAST "Z", "order.schedule", CALLS_HINT,
     "counted in steps of one rank, and it is stepped once for each rank | train.py:8"},
    {SPAN("LinearLR", "6") "12x F S B K P " LAST "Z", "order.schedule", LS_PASS, ""}, /* a floor */
    {SPAN("CosineAnnealingLR", "13") "F S B K P Z; 12x F S B " LAST "F S B " LAST "K P Z",
     "order.schedule", CALLS_HINT,
     "has come to 24 at the end of the job (13 steps, 25 batches, 0 passes) .. counted in steps of "
     "the optimizer, and it is stepped with each batch"},
    {SPAN("LambdaLR", "0,\"base\":1") SEVEN_UP UP("0.49"), "order.schedule", LS_WEAK,
     "the rate rises in all 8 calls of a LambdaLR and ends at 0.49, below half of the optimizer's "
     "1 "
     "| a warm-up that is longer than the job | train.py:8"},
    {SPAN("LambdaLR", "0,\"base\":1") SEVEN_UP UP("0.5"), "order.schedule", LS_PASS, ""},
    {SPAN("LambdaLR", "0,\"base\":1") SEVEN_UP UP("0.43"), "order.schedule", LS_PASS, ""},
    {SPAN("LambdaLR", "0,\"base\":1") SEVEN_UP, "order.schedule", LS_PASS, ""},
    {SPAN("CyclicLR", "0,\"base\":1") SEVEN_UP UP("0.49"), "order.schedule", LS_PASS, ""},
    {SPAN("StepLR", "0") "3x (3x F S B K P Z; F S B K P L{\"schedule\":0,\"optimizer\":0} Z)",
     "order.schedule", LS_PASS, ""},
};

CALLS_TEST(schedules_are_stepped_as_they_are_made, spans)

#define AVERAGE(what) "A{\"call\":\"average\",\"average\":0,\"what\":\"" what "\"}"

#define EIGHTH(what) "A{\"call\":\"average\",\"average\":7,\"what\":\"" what "\"}"

/* An average of weights on two ranks: the calls of rank 0 and those of rank 1. */
static const calls_row averages[] = {
    {"4x (0: F S B K P Z " AVERAGE("update")
         AVERAGE("forward") "; 1: F S B K P Z " AVERAGE("update") AVERAGE("forward") ")",
     "replicas.average", LS_PASS, "updated 4 times"},
    {"4x (0: F S B K P Z " AVERAGE("update")
         AVERAGE("forward") "; 1: F S B K P Z " AVERAGE("forward") ")",
     "replicas.average", LS_FAIL,
     "rank 1 runs an average of weights that it updated 0 times, rank 0 4 times"},
    {"4x (0: F S B K P Z "
     "A{\"call\":\"average\",\"average\":0,\"what\":\"update\",\"at\":\"ema.py:7\"} " AVERAGE(
         "forward") "; 1: F S B K P Z " AVERAGE("forward") ")",
     "replicas.average", LS_FAIL, "ema.py:7"},
    {"4x (0: F S B K P Z " AVERAGE("update") AVERAGE("forward") "; 1: F S B K P Z)",
     "replicas.average", LS_PASS, ""},
    {"4x (0: F S B K P Z " AVERAGE("update") AVERAGE("forward") "; 1: F S B K P Z " AVERAGE(
         "forward") "); 1: F S B K P Z " AVERAGE("update") AVERAGE("update"),
     "replicas.average", LS_FAIL,
     "rank 1 runs an average of weights that it updated 2 times, "
     "rank 0 4 times"},
    {"4x (F S B K P Z " AVERAGE("forward") "); 0: F S B K P Z " AVERAGE("update")
         AVERAGE("update") "; 1: F S B K P Z " AVERAGE("update") AVERAGE("update"),
     "replicas.average", LS_FAIL,
     "rank 2 runs an average of weights that it updated 0 times, "
     "rank 0 2 times",
     3},
    {"3x (0: F S B K P Z " AVERAGE("update") AVERAGE("forward") "; 1: F S B K P Z " AVERAGE(
         "update") AVERAGE("forward") "); 0: F S B K P Z " AVERAGE("update"),
     "replicas.average", LS_PASS, "updated 4 times"}, /* one that ended before the last */
    {"1: F S B K P Z " EIGHTH("update") EIGHTH("update")
         EIGHTH("forward") "; 0: F S B K P Z " EIGHTH("forward"),
     "replicas.average", LS_FAIL,
     "rank 0 runs an average of weights that it updated 0 times, "
     "rank 1 2 times"},
    {"4x (0: F S B K P Z; 1: F S B K P Z)", "replicas.average", LS_SKIP, "no AveragedModel"},
};

CALLS_TEST(averages_are_kept_where_they_run, averages)

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

static const struct {
    const char *zero, *one, *id;
    bool fails;
    const char *words;
} opens[] = {
    {"0001 0002 ", "0001 0001 ", "order.steps", true,
     "in step 4: rank 0 was in backward() at train.py:21, rank 1 in a forward at train.py:20 | "},
    {"0001 0002 0003 ", "0001 0002 0004 ", "order.collectives", true,
     "step 4, collective 1 of the script: rank 0 all_reduce sum of 8 f32 (train.py:30), rank 1 "
     "all_reduce sum of 9 f32 (train.py:31)"},
    {"0001 0002 0003 0004 ", "0001 0002 0004 0003 ", "order.steps", true,
     "in step 4: rank 0 was in all_reduce at train.py:30, rank 1 in all_reduce at train.py:31 | "},
    {"0001 0002 0003 ", "0001 0002 ", "order.collectives", false, ""}, /* rank 1 died before it */
    {"0001 0002 0005 ", "0001 0002 0006 ", "order.collectives", true,
     "rank 0 broadcast of 8 f32 with root 0 (train.py:33), rank 1 broadcast of 8 f32 with root 1"},
    {"0001 0002 ", "0001 ", "order.steps", false, ""},
    {"", "", "order.steps", false, ""},
};

#define CALL(number, members) "{\"event\":\"call\",\"number\":" number "," members "};"
#define SUM(number, elements, at)                                                       \
    CALL(number, "\"call\":\"collective\",\"op\":\"all_reduce\",\"elements\":" elements \
                 ",\"type\":\"f32\",\"reduce\":\"sum\",\"at\":\"train.py:" at "\"")
#define SENT(number, root)                                                                       \
    CALL(number, "\"call\":\"collective\",\"op\":\"broadcast\",\"elements\":8,\"type\":\"f32\"," \
                 "\"root\":" root ",\"at\":\"train.py:33\"")

ROWS_TEST(open_steps_are_compared, opens)
{
    calls_job job;
    calls_open(&job, 2);
    calls_script(
        &job,
        "3x F S B K P A Z;" CALL("1", "\"call\":\"forward\",\"model\":0,\"at\":\"train.py:20\"")
            CALL("2", "\"call\":\"backward\",\"sync\":true,\"at\":\"train.py:21\"")
                SUM("3", "8", "30") SUM("4", "9", "31") SENT("5", "0") SENT("6", "1"));
    write_open(&job, 0, 4, opens[_i].zero);
    write_open(&job, 1, 4, opens[_i].one);
    calls_fail(&job, false);
    calls_end(&job, opens[_i].id, opens[_i].fails ? LS_FAIL : LS_PASS, opens[_i].words);
}

TEST_MAIN("observe_order", .timeout_s = 120)
