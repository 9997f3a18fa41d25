/* What checkpoint.resume says of rates and batches after an optimizer's state was loaded. */
#include "observe_calls.h"
#include "suite/observe/trace/trace.h"
#include "suite/unit/run_suite.h"

#define OPTIMIZER(scaled, rate, schedules)                                                         \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\",\"rule\":\"sgd\"," \
    "\"at\":\"train.py:7\",\"state\":3,\"set_at\":\"train.py:12\",\"scaled_at\":" scaled           \
    ",\"restored\":{\"lr\":[" rate "],\"schedules\":" schedules ",\"at\":\"train.py:10\"},"        \
    "\"groups\":[{\"params\":[\"fc.weight\",\"fc.bias\",\"head.weight\"],\"lr\":0.4,"              \
    "\"built_lr\":0.1,\"momentum\":0.9}]}"
#define UNNAMED(rate, schedules) OPTIMIZER("null", rate, schedules)
#define NAMED(rate, schedules) OPTIMIZER("\"train.py:13\"", rate, schedules)
#define TWO_GROUPS(rates)                                                                          \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\",\"rule\":\"sgd\"," \
    "\"at\":"                                                                                      \
    "\"train.py:7\",\"state\":3,\"restored\":{\"lr\":[" rates                                      \
    "],\"schedules\":0},\"groups\":[{\"params\":["                                                 \
    "\"fc.weight\"],\"built_lr\":0.1},{\"params\":[\"fc.bias\"],\"built_lr\":0.01}]}"
#define RESTORE                                                                                    \
    "{\"event\":\"restore\",\"what\":\"optimizer\",\"at\":\"train.py:10\",\"step\":0,\"entries\":" \
    "3}"
#define BUILT                                                                               \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"LambdaLR\",\"at\":\"train.py:14\"," \
    "\"step\":0,\"holds\":[]}"
#define SAVE                                                                                \
    "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":1,\"path\":\"last.pt\",\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]}}"
#define MODEL \
    "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"step\":0}"
#define STEP(rate) "F{\"autocast\":null} b O{\"lr\":[" rate "]} Z"
#define SCHEDULED(rate) STEP(rate) " L{\"lr\":[0.1]}"
#define RESUMED                                                                            \
    "!; "                                                                                  \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3]};" MODEL ";" RESTORE ";"

#define ON_BY(used, count, next) \
    "; " BUILT "; " STEP(used) " L{\"lr\":[" next "],\"epoch\":" count "}; " STEP(next)

static const calls_row rates[] = {
    {RESUMED UNNAMED("0.2", "0") "; 2x " STEP("0.4"), "checkpoint.resume", CALLS_HINT,
     "rank 0: the optimizer's state has the rate 0.2, and the first step after it was loaded uses "
     "0.4 | the rate is scaled by the number of ranks once more after the state was loaded, which "
     "holds it scaled already | train.py:12"},
    /* scaled four times before, as often as is looked for, and five times; divided, by name */
    {RESUMED UNNAMED("1.6", "0") "; 2x " STEP("3.2"), "checkpoint.resume", CALLS_HINT, "rate 1.6"},
    {RESUMED UNNAMED("3.2", "0") "; 2x " STEP("6.4"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED NAMED("0.05", "0") "; 2x " STEP("0.025"), "checkpoint.resume", CALLS_HINT,
     "uses 0.025"},
    {RESUMED UNNAMED("0.2", "0") "; " STEP("0.4"), "checkpoint.resume", CALLS_HINT, "uses 0.4"},
    {RESUMED UNNAMED("0.2", "0") "; F{\"autocast\":null} b O{\"lr\":[0.4],\"times\":2} Z",
     "checkpoint.resume", CALLS_HINT, "uses 0.4"},
    {RESUMED UNNAMED("0.2", "0") "; " STEP("0.4") " O{\"lr\":[0.8]}", "checkpoint.resume", LS_PASS,
     ""},
    {RESUMED UNNAMED("0.2", "0") "; 2x " STEP("0.4"), "checkpoint.resume", LS_PASS, "", 1},
    {RESUMED UNNAMED("0.2,0", "0") "; 2x " STEP("0.4,0"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED UNNAMED("0.2", "0") "; 2x " STEP("0.4,0.4"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED UNNAMED("0", "0") "; 2x " STEP("0"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED TWO_GROUPS("0.2,0.02") "; 2x " STEP("0.4,0.04"), "checkpoint.resume", CALLS_HINT,
     "once more"},
    {RESUMED TWO_GROUPS("0.2,0.04") "; 2x " STEP("0.4,0.08"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED TWO_GROUPS("0.2,0.02") "; 2x " STEP("0.4,0.02"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED NAMED("0.4", "0") "; 2x " STEP("0.8"), "checkpoint.resume", CALLS_HINT,
     "| train.py:13"},
    {RESUMED NAMED("0.2", "1") "; " BUILT "; " SCHEDULED("0.4") "; " STEP("0.1"),
     "checkpoint.resume", CALLS_HINT, "once more"},
    /* as the file has it */
    {RESUMED NAMED("0.2", "0") "; 2x " STEP("0.2"), "checkpoint.resume", LS_PASS, "restored"},
    /* of a job of one rank */
    {RESUMED NAMED("0.1", "0") "; 2x " STEP("0.2"), "checkpoint.resume", LS_PASS, "restored"},
    /* a rate that was lowered since: scaled already, or by one rank */
    {RESUMED NAMED("0.03", "0") "; 2x " STEP("0.06"), "checkpoint.resume", LS_WEAK,
     "rank 0: the optimizer's state has the rate 0.03, and the first step after it was loaded uses "
     "0.06: right once, where a job of one rank wrote it .. | train.py:13 | scale"},
    /* the file is written again, and scaled again when it is loaded the next time */
    {RESUMED NAMED("0.03", "0") "; " SAVE "; 2x " STEP("0.06"), "checkpoint.resume", CALLS_HINT,
     "once more"},
    {RESUMED UNNAMED("0.03", "0") "; " SAVE "; 2x " STEP("0.06"), "checkpoint.resume", LS_PASS, ""},
    /* a warm-up by hand */
    {RESUMED NAMED("0.2", "0") "; " STEP("0.4") "; " STEP("0.6"), "checkpoint.resume", LS_PASS, ""},
    /* a rate that the script halves, with two ranks */
    {RESUMED UNNAMED("0.05", "0") "; 2x " STEP("0.025"), "checkpoint.resume", LS_PASS, ""},
    /* a schedule that is built afterwards sets the rate; or one that is stepped up to its place */
    {RESUMED NAMED("0.2", "0") "; " BUILT "; 2x " STEP("0.4"), "checkpoint.resume", LS_PASS, ""},
    {RESUMED NAMED("0.2", "1") "; " BUILT "; L " STEP("0.4") "; " STEP("0.4"), "checkpoint.resume",
     LS_PASS, ""},
    {RESUMED NAMED("0.2", "0") "; 2x " STEP("0.6"), "checkpoint.resume", LS_PASS, ""},
    /* its first rate, where its calls count on: from the file's course; of one that was there, that
     * counts from 1, that goes the other way, or with the file's rate */
    {RESUMED UNNAMED("0.06", "0") ON_BY("0.1", "5", "0.04"), "checkpoint.resume", CALLS_HINT,
     "rank 0: the file has the rate 0.06, the first steps after it was loaded use 0.1, with which "
     "the schedule begins, and its first call, number 5, gives 0.04 | a schedule that is built "
     "after .. | train.py:14"},
    {RESUMED UNNAMED("0.06", "1") ON_BY("0.1", "5", "0.04"), "checkpoint.resume", NO_HINT, ""},
    {RESUMED UNNAMED("0.06", "0") ON_BY("0.1", "1", "0.04"), "checkpoint.resume", NO_HINT, ""},
    {RESUMED UNNAMED("0.06", "0") ON_BY("0.1", "5", "0.08"), "checkpoint.resume", NO_HINT, ""},
    {RESUMED UNNAMED("0.06", "0") ON_BY("0.06", "5", "0.04"), "checkpoint.resume", NO_HINT, ""},
};

CALLS_TEST(a_rate_after_a_resume_is_judged, rates)

/* ---- a course that begins anew ----------------------------------------------------------------
 */

#define LOADED(numbers)                                                                    \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3],\"numbers\":{" numbers "}}"

#define COURSE(numbers, a, b, c, d, e, f)                                                          \
    "!;" LOADED(                                                                                   \
        numbers) ";" MODEL ";" RESTORE                                                             \
                 ";" UNNAMED("0.2", "0") ";" STEP(a) ";" STEP(b) ";" STEP(c) ";" STEP(d) ";" STEP( \
                     e) ";" STEP(f) ";"                                                            \
                                    "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":6,"       \
                                    "\"path\":\"next.pt\",\"what\":{\"model\":[\"m\"],"            \
                                    "\"optimizer\":[\"o\"]},\"numbers\":{\"iter_num\":46,"         \
                                    "\"step\":6}}"

/* The rate of the file is 0.2; those of the steps after it was loaded. */
static const calls_row courses[] = {
    {COURSE("\"iter_num\":40", "0.02", "0.1", "0.18", "0.26", "0.25", "0.24"), "checkpoint.resume",
     LS_WEAK,
     "rank 0: the file has the rate 0.2 and iter_num 40; the first step after it was loaded uses "
     "0.02, and the rate climbs in 4 steps | the rate's course begins anew .. | train.py:12 | "
     "compute",
     1},
    /* half of the file's rate, and more; two rises, and one; a fall before; as high as the file's
     */
    {COURSE("\"iter_num\":40", "0.1", "0.15", "0.2", "0.1", "0.1", "0.1"), "checkpoint.resume",
     LS_WEAK, "climbs in 3 steps", 1},
    {COURSE("\"iter_num\":40", "0.11", "0.15", "0.2", "0.1", "0.1", "0.1"), "checkpoint.resume",
     LS_PASS, "", 1},
    {COURSE("\"iter_num\":40", "0.1", "0.2", "0.3", "0.1", "0.1", "0.1"), "checkpoint.resume",
     LS_PASS, "", 1},
    {COURSE("\"iter_num\":40", "0.1", "0.09", "0.1", "0.2", "0.3", "0.3"), "checkpoint.resume",
     LS_PASS, "", 1},
    {COURSE("\"iter_num\":40", "0.1", "0.12", "0.14", "0.16", "0.18", "0.19"), "checkpoint.resume",
     LS_PASS, "", 1},
    {COURSE("\"iter_num\":40", "0.19", "0.18", "0.17", "0.16", "0.15", "0.14"), "checkpoint.resume",
     LS_PASS, "", 1},
    /* still within the warm-up; no count in the file; lower, and it stays so; a jump */
    {COURSE("\"iter_num\":4", "0.21", "0.22", "0.23", "0.24", "0.25", "0.26"), "checkpoint.resume",
     LS_PASS, "", 1},
    {COURSE("\"epoch\":0,\"iter_num\":40", "0.02", "0.1", "0.18", "0.26", "0.25", "0.24"),
     "checkpoint.resume", LS_WEAK, "the rate 0.2 and iter_num 40; the first", 1},
    {COURSE("\"iter_num\":1", "0.02", "0.1", "0.18", "0.26", "0.25", "0.24"), "checkpoint.resume",
     LS_WEAK, "the rate 0.2 and iter_num 1; the first", 1},
    {COURSE("", "0.02", "0.1", "0.18", "0.26", "0.3", "0.3"), "checkpoint.resume", LS_PASS, "", 1},
    {COURSE("\"iter_num\":40", "0.02", "0.03", "0.04", "0.05", "0.06", "0.07"), "checkpoint.resume",
     LS_PASS, "", 1},
    {/* counted anew: another training */
     COURSE("\"step\":40", "0.02", "0.1", "0.18", "0.26", "0.25", "0.24"), "checkpoint.resume",
     LS_PASS, "", 1},
    {COURSE("\"iter_num\":40", "0.02", "0.3", "0.3", "0.3", "0.3", "0.3"), "checkpoint.resume",
     LS_PASS, "", 1},
};

CALLS_TEST(a_course_that_begins_anew_is_caught, courses)

/* ---- the state of one of several optimizers ---------------------------------------------------
 */

#define MOMENTS(number, state)                                                                 \
    "{\"event\":\"optimizer\",\"optimizer\":" number ",\"rule\":\"adam\",\"state\":" state "," \
    "\"at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\"],\"lr\":0.1}]}"

#define SEVERAL(held)                                                                      \
    "!; "                                                                                  \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[" held "]},\"entries\":[3]};" MODEL ";" RESTORE      \
    ";" MOMENTS("0", "3") ";" MOMENTS("1", "0") "; 2x F b O O{\"optimizer\":1} Z"

/* A file that holds one optimizer's alone says nothing of the other. */
static const calls_row several[] = {
    {SEVERAL("\"g\",\"d\""), "checkpoint.resume", LS_FAIL,
     "the state of one of several optimizers is loaded", 1},
    {SEVERAL("\"g\""), "checkpoint.resume", LS_PASS, "", 1},
};

CALLS_TEST(the_state_of_one_of_several_is_judged, several)

/* PyTorch fills an optimizer in two phases: it steps it by gradients of 0, then loads its state. */
#define PHASES(entries)                                                                          \
    "!; {\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{"    \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3]};" MOMENTS(                        \
        "0", "0") "; O Z; "                                                                      \
                  "{\"event\":\"restore\",\"what\":\"optimizer\",\"which\":0,\"at\":\"train.py:" \
                  "10\",\"step\":1,"                                                             \
                  "\"entries\":" entries                                                         \
                  "}; {\"event\":\"restore\",\"what\":\"scaler\",\"step\":1}; 2x F b O Z"

#define IN_PARTS                                                                                 \
    "!; "                                                                                        \
    "{\"event\":\"load\",\"step\":0,\"path\":\"\",\"what\":{\"other\":[\"Tensor\"]}}; " MOMENTS( \
        "0", "0") "; "
#define EMPTIED(entries)                                                 \
    "{\"event\":\"restore\",\"what\":\"optimizer\",\"entries\":" entries \
    ",\"step\":0,\"at\":\"train.py:10\"}"
#define AND_SCHEDULE "; {\"event\":\"restore\",\"what\":\"schedule\",\"step\":0}; 2x F b O Z"

static const calls_row phases[] = {
    {PHASES("3"), "checkpoint.resume", LS_PASS, "", 1},
    {PHASES("0"), "checkpoint.resume", CALLS_HINT, "begins without state", 1},
    /* of a file in parts: a state without entries, behind the weights; one with; before them */
    {IN_PARTS MODEL "; " EMPTIED("0") AND_SCHEDULE, "checkpoint.resume", CALLS_HINT,
     "rank 0: the job goes on with the schedule's state, and load_state_dict gives its optimizer "
     ".. a state without entries | the state that is loaded .. | train.py:10"},
    {IN_PARTS MODEL "; " EMPTIED("3") AND_SCHEDULE, "checkpoint.resume", NO_HINT, ""},
    {IN_PARTS EMPTIED("0") "; " MODEL AND_SCHEDULE, "checkpoint.resume", NO_HINT, ""},
};

CALLS_TEST(a_state_is_restored_in_two_phases, phases)

/* ---- batches that come again ------------------------------------------------------------------
 */

#define FORWARD(digest) "F{\"autocast\":null,\"input\":\"" digest "\"} b O{\"lr\":[0.2]} Z"

#define PASS(number, order, whole, first, last)                                               \
    "{\"event\":\"data\",\"loader\":0,\"pass\":" number ",\"trained\":true,\"shuffle\":true," \
    "\"whole\":" whole ",\"count\":8,\"batch\":4,\"order\":\"" order "\",\"steps\":[" first   \
    "," last "]}"

#define SAVED(path, step)                                                           \
    "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":" step ",\"path\":\"" path \
    "\",\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"]}}"
#define BATCHES(path) \
    FORWARD("1")      \
    ";" FORWARD("2") ";" FORWARD("3") ";" FORWARD("4") ";" FORWARD("9") ";" SAVED(path, "5")
#define PASSES(second) \
    "4x " STEP("0.2") ";" PASS("0", "a", "true", "1", "2") ";" second ";" SAVED("last.pt", "4")
#define BEGIN LOADED("") ";" MODEL ";" RESTORE ";" UNNAMED("0.2", "0") ";"

/* A pass of batches of 2 of 8 samples, and jobs of which one was cut within it. */
#define DREW_BY(batch, whole, given, used, kept, first, last)                                    \
    "{\"event\":\"data\",\"loader\":0,\"trained\":true,\"whole\":" whole                         \
    ",\"length\":8,\"count\":" given "," batch ",\"used\":" used ",\"modulus\":1,\"kept\":" kept \
    ",\"steps\":[" first "," last "]}"
#define DREW(...) DREW_BY("\"batch\":2", __VA_ARGS__)
#define CUT(kept) \
    "2x " STEP("0.2") ";" DREW("false", "4", "[0,1]", kept, "1", "3") ";" SAVED("last.pt", "2")
#define AHEAD(whole, given, used, kept) DREW(whole, given, used, kept, "1", "3")
#define CUT_AHEAD \
    "2x " STEP("0.2") ";" AHEAD("false", "6", "[1,2]", "[0,1,2,3,4,5]") ";" SAVED("last.pt", "2")
#define IN_EPOCH(epoch, whole, given, used, kept)                                                 \
    DREW_BY("\"batch\":2,\"sampler_epoch\":" epoch ",\"epoch_at\":\"train.py:33\"", whole, given, \
            used, kept, "1", "3")
#define CUT_IN(epoch)                                                                              \
    "2x " STEP("0.2") ";" IN_EPOCH(epoch, "false", "4", "[0,1]", "[0,1,2,3]") ";" SAVED("last.pt", \
                                                                                        "2")
/* A pass that goes on behind the file: after it come two more batches. */
#define CUT_BEHIND(used, more)                                               \
    "4x " STEP("0.2") ";" DREW("false", "8", used, "[0,1,2,3,4,5,6,7]", "1", \
                               "4") ";" more SAVED("last.pt", "2")
#define HOLDS(bits) \
    ";{\"event\":\"save\",\"step\":2,\"path\":\"last.pt\",\"digests\":[[0,\"" bits "\"]]}"
#define GIVEN_BITS "{\"event\":\"restore\",\"what\":\"model\",\"step\":0,\"bits\":\"55\"};"
#define OTHER_ORDER DREW("true", "8", "[2,3]", "[4,5,6,7,0,1,2,3]", "1", "3")
#define KILLED_ON(number)                                                       \
    LOADED(number)                                                              \
    ";" MODEL ";" RESTORE ";" UNNAMED("0.2", "0") ";2x " STEP("0.2") ";" SKIPS( \
        "[2,3]") ";2x " STEP("0.2") ";" SKIPS("[2,3]")
#define SKIPS(used) DREW("true", "8", used, "[1,3,5,7,0,2,4,6]", "3", "5")
#define SINGLY(whole, given, used) \
    DREW_BY("\"batch\":1,\"sampler_epoch\":1", whole, given, used, "[0,1,2,3,4,5,6,7]", "1", "3")
#define BY_TWO(whole, given, used)                                                  \
    DREW_BY("\"batch\":2,\"sampler_epoch\":1", whole ",\"length\":16", given, used, \
            "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]", "1", "3")
#define ONE_BY_ONE(whole, kept) DREW_BY("\"batch\":1", whole, "4", "[0,3]", kept, "1", "3")
#define CUT_ONES(kept) "2x " STEP("0.2") ";" ONE_BY_ONE("false", kept) ";" SAVED("last.pt", "2")
#define CUT_AT(given, used, more)                                  \
    more "2x " STEP("0.2") ";" IN_EPOCH("1", "false", given, used, \
                                        "[0,1,2,3,4,5,6,7]") ";" SAVED("last.pt", "3")
#define FIRST_THEN_CUT(first, given, used)                                                     \
    "2x " STEP("0.2") ";" IN_EPOCH("0", "true", "8", first, "[0,1,2,3,4,5,6,7]") ";" IN_EPOCH( \
        "1", "false", given, used, "[0,1,2,3,4,5,6,7]") ";" SAVED("last.pt", "3")
#define ON_AT(used) GOES_ON IN_EPOCH("1", "true", "8", used, "[0,1,2,3,4,5,6,7]")
#define SHUFFLED(whole, used)                                                                      \
    DREW_BY("\"batch\":2,\"shuffle\":true,\"sampler_epoch\":0,\"at\":\"train.py:44\"", whole, "8", \
            used, "[3,1,2,0,5,4,7,6]", "1", "3")
#define CUT_SHUFFLED(used) "3x " STEP("0.2") ";" SHUFFLED("false", used) ";" SAVED("last.pt", "3")
#define ON_SHUFFLED(counts)                           \
    LOADED(counts)                                    \
    ";" MODEL ";" RESTORE ";" UNNAMED("0.2", "0") ";" \
                                                  "2x " STEP("0.2") ";" SHUFFLED("false", "[0,3]")
/* A stream: no indices; its batches are known by their bits. */
#define STREAM(whole)                                                                 \
    "{\"event\":\"data\",\"loader\":0,\"pass\":0,\"trained\":true,\"indices\":false," \
    "\"whole\":" whole ",\"count\":8,\"batch\":2,\"at\":\"train.py:45\",\"steps\":[1,5]}"
#define STREAM_GOES_ON(counts, first)                                                              \
    LOADED(counts)                                                                                 \
    ";" MODEL ";" RESTORE ";" UNNAMED("0.2", "0") ";" FORWARD(first) ";" FORWARD("2") ";" FORWARD( \
        "3") ";" FORWARD("4") ";" STREAM("false")
#define GOES_ON BEGIN "2x " STEP("0.2") ";"
#define MARKED(event, names, marks) \
    event ",\"at\":\"train.py:10\",\"moments\":" names ",\"marks\":" marks "}"
#define WROTE(names, marks)                                                                     \
    STEP("0.2")                                                                                 \
    ";" MARKED(                                                                                 \
        "{\"event\":\"save\",\"step\":1,\"path\":\"last.pt\",\"what\":{\"optimizer\":[\"o\"]}", \
        names, marks)
#define READS(names, marks)                                                                   \
    BEGIN MARKED(                                                                             \
        "{\"event\":\"restore\",\"what\":\"optimizer\",\"which\":0,\"step\":0,\"entries\":3", \
        names, marks) ";" STEP("0.2")
#define LACKS(name, bits)                                                                     \
    STEP("0.2")                                                                               \
    "; "                                                                                      \
    "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":1,\"path\":\"last.pt\",\"what\":{}," \
    "\"lacks\":[[\"" name "\",\"" bits "\",\"f32\"]]}"
#define LEFT_AS(type, name, full)                                                           \
    BEGIN "{\"event\":\"left\",\"name\":\"" name                                            \
          "\",\"at\":\"train.py:11\",\"bits\":\"5\",\"type\":\"" type "\",\"full\":\"" full \
          "\"};" STEP("0.2")
#define LEFT(name, full) LEFT_AS("f32", name, full)

/* An optimizer of two groups, and one that is given the state of another's. */
#define GROUPED(first, second)                                                                     \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"torch.optim.sgd.SGD\",\"rule\":\"sgd\"," \
    "\"state\":3,\"groups\":[{\"params\":[\"" first                                                \
    "\"],\"weight_decay\":0.1},{\"params\":[\"" second "\"],\"weight_decay\":0}]};"
#define REGROUPED(first, second)                                                                   \
    LOADED("")                                                                                     \
    ";" MODEL ";"                                                                                  \
    "{\"event\":\"restore\",\"what\":\"optimizer\",\"at\":\"train.py:10\",\"which\":0,\"step\":0," \
    "\"entries\":3};" GROUPED(first, second) STEP("0.2")

/* A model that is given its own values next to a file's optimizer. */
#define HELD                                                                                \
    STEP("0.2")                                                                             \
    "; "                                                                                    \
    "{\"event\":\"save\",\"step\":1,\"path\":\"last.pt\",\"what\":{\"optimizer\":[\"o\"]}," \
    "\"digests\":[[0,\"9\"]]}"
#define GIVEN_OWN(bits)                                                                 \
    LOADED("")                                                                          \
    ";" RESTORE                                                                         \
    "; {\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3," \
    "\"own\":3,\"at\":\"train.py:10\",\"step\":0,\"bits\":\"" bits                      \
    "\"};" UNNAMED("0.2", "0") ";" STEP("0.2")

/* A job of one epoch, and the next one, which takes up weights and epoch and no moments. */
#define ADAM(rate)                                                                                \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"Adam\",\"rule\":\"adam\",\"state\":0,"  \
    "\"at\":\"train.py:7\",\"groups\":[{\"params\":[\"fc.weight\"],\"lr\":0.1,\"built_lr\":" rate \
    "}]};"
#define EPOCH_OF(epoch, source, steps)                                                      \
    "{\"event\":\"data\",\"trained\":true,\"whole\":true,\"length\":8,\"source\":\"" source \
    "\",\"sampler_epoch\":" epoch ",\"steps\":[" steps "]};"
#define EPOCH(epoch, source) EPOCH_OF(epoch, source, "1,2")
#define ALL_SAVED(step)                                                                            \
    "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":" step ",\"path\":\"last.pt\",\"what\":{" \
    "\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"digests\":[[0,\"55\"]],\"moments\":["              \
    "\"fc.weight\"],\"marks\":[\"1\"]}"
#define TWO_SHORT(second) \
    ADAM("0.1")           \
    "4x " STEP("0.1") ";" EPOCH_OF("0", "d", "1,1") EPOCH_OF("1", "d", second) ALL_SAVED("2")
#define FIRST_EPOCH FIRST_EPOCH_OF("0")
#define FIRST_EPOCH_OF(epoch) ADAM("0.1") "2x " STEP("0.1") ";" EPOCH(epoch, "d") ALL_SAVED("2")
#define NEXT_EPOCH(bits, built, rate, epoch, source, save)                                         \
    LOADED("")                                                                                     \
    "; {\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"step\":0," \
    "\"bits\":\"" bits "\"};" ADAM(built) "2x " STEP(rate) ";" EPOCH(epoch, source) save
/* An average that a job moved by those shares, and the next one. */
#define MOVED_BY(step, share, more)                                            \
    "{\"event\":\"averaged\",\"step\":" step ",\"average\":0,\"share\":" share \
    ",\"bound\":1e-6" more "};"
#define SHARES(bits, a, b, c) \
    MOVED_BY("1", a, ",\"bits\":\"" bits "\"") MOVED_BY("2", b, "") MOVED_BY("3", c, "")
#define AVERAGED(a, b, c, more) AVERAGED_AS("[0,\"9\"]", a, b, c, more)
#define AVERAGED_AS(held, a, b, c, more)                                                        \
    "3x " STEP("0.2") ";" SHARES("1", a, b, c) more                                             \
        "{\"event\":\"save\",\"step\":3,\"path\":\"last.pt\",\"what\":{\"optimizer\":[\"o\"]}," \
        "\"averages\":[" held "]}"
/* Behind step 2 a file with other weights, a validation with some, and training goes on. */
#define PUTS_BACK(file, own, next)                                                             \
    "2x " STEP(                                                                                \
        "0.2") ";{\"event\":\"save\",\"step\":2,\"path\":\"best.pt\",\"digests\":[[0,\"" file  \
               "\"]]};{\"event\":\"validated\",\"step\":2,\"model\":0,\"param\":\"" own        \
               "\",\"param_next\":\"" next "\"};" STEP("0.2") ";" SHARES(                      \
                   "1", "0.1", "0.1", "0.1") "{\"event\":\"save\",\"step\":3,\"path\":\"last." \
                                             "pt\",\"what\":{\"optimizer\":[\"o\"]},"          \
                                             "\"averages\":[[0,\"9\"]]}"
#define AVERAGES_ON(bits, a, b, c)                                                                \
    BEGIN "{\"event\":\"restore\",\"what\":\"model\",\"at\":\"train.py:15\",\"step\":0,\"bits\":" \
          "\"9\"};"                                                                               \
          "3x " STEP("0.2") ";" SHARES(bits, a, b, c)

#define IN_MODEL(bits)                                                                            \
    "{\"event\":\"model\",\"model\":1,\"kind\":\"plain\",\"params\":[[\"body.weight\",4,\"f32\"," \
    "true]],"                                                                                     \
    "\"digest\":{\"param\":\"" bits "\"}};"                                                       \
    "{\"event\":\"optimizer\",\"optimizer\":1,\"groups\":[{\"params\":[\"body.weight\"]}]};"

/* Values other than the file's when training begins, unlike them or those that it began with. */
#define OVERWRITTEN(name, bits, count, cosine)                                                     \
    BEGIN "{\"event\":\"overwritten\",\"name\":\"" name "\",\"full\":\"" name                      \
          "\",\"at\":\"train.py:11\",\"bits\":\"" bits "\",\"count\":" count ",\"cosine\":" cosine \
          "};" STEP("0.2")
#define OTHER(name, bits)                                               \
    "{\"event\":\"overwritten\",\"name\":\"" name "\",\"full\":\"" name \
    "\",\"at\":\"train.py:11\",\"bits\":\"" bits "\",\"count\":4,\"cosine\":0.9};"
#define OTHERS(taken, first)                                                                   \
    BEGIN "{\"event\":\"restore\",\"what\":\"model\",\"step\":0,\"params\":3,\"taken\":" taken \
          "};" OTHER("fc.bias", first) OTHER("fc.weight", "5") STEP("0.2")
#define UNLIKE(restored)                                                               \
    LOADED("")                                                                         \
    ";" MODEL ";{\"event\":\"restore\",\"what\":\"optimizer\"," restored "};" UNNAMED( \
        "0.2",                                                                         \
        "0") ";{\"event\":\"overwritten\",\"name\":\"fc.weight\",\"full\":"            \
             "\"fc.weight\",\"at\":\"train.py:11\",\"count\":256,\"cosine\":0.1};" STEP("0.2")
#define BEGAN_WITH(bits)                                                                           \
    "{\"event\":\"model\",\"model\":0,\"kind\":\"ddp\",\"params\":[[\"fc.bias\",4,\"f32\",true],[" \
    "\"fc.weight\",4,\"f32\",true]],\"param_digests\":[\"1\",\"" bits "\"]};"

/* A job whose schedule gives these rates, and the next one, of that epoch, from the file's rate. */
#define RATED(rate, next) STEP(rate) " L{\"lr\":[" next "]};"
#define SCHEDULE_OF(a, b) BUILT ";" RATED("0.1", a) RATED(a, b) EPOCH("0", "d") ALL_SAVED("2")
#define SCHEDULE_ON(more, count, file, a, b, epoch)                                             \
    LOADED("")                                                                                  \
    ";" RESTORE ";" more BUILT                                                                  \
    ";" UNNAMED(file, "1") ";" STEP(file) " L{\"lr\":[" a "],\"epoch\":" count "};" RATED(a, b) \
        EPOCH(epoch, "d")
#define STATE "{\"event\":\"restore\",\"what\":\"schedule\",\"step\":0};"

/* A job and the one that went on from its file, or from another one. */
/* A whole pass of an epoch, of steps, and one that a job goes through without a step. */
#define WHOLE(epoch, order, trained, first, last) WHOLE_OF("0", epoch, order, trained, first, last)
#define WHOLE_OF(loader, epoch, order, trained, first, last)                                \
    "{\"event\":\"data\",\"loader\":" loader ",\"at\":\"train.py:30\",\"trained\":" trained \
    ",\"shuffle\":true,\"whole\":true,\"count\":8,\"batch\":4,\"sampler_epoch\":" epoch     \
    ",\"order\":\"" order "\",\"steps\":[" first "," last "]}"
#define SKIPPED(epoch, order) WHOLE(epoch, order, "false", "1", "1") ";"
#define TWO_EPOCHS                                                     \
    "4x " STEP("0.2") ";" WHOLE("0", "a", "true", "1", "2") ";" WHOLE( \
        "1", "b", "true", "3", "4") ";" SAVED("last.pt", "4")
#define STEPS_OF(epoch) "2x " STEP("0.2") ";" WHOLE(epoch, "d", "true", "1", "2")

static const struct {
    const char *work, *before, *now;
    ls_verdict_code code;
    const char *words;
} pairs[] = {
    {"/a/", BATCHES("last.pt"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_FAIL,
     "rank 0: the first 4 batches are those with which the job that wrote last.pt began"},
    /* of three; of batches that come again by themselves; in a pass that was not whole */
    {"/a/", BATCHES("last.pt"), BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3"), LS_PASS,
     ""},
    {"/a/", BATCHES("last.pt"), BEGIN "4x " FORWARD("1"), LS_PASS, ""},
    {"/a/", BATCHES("last.pt") ";" FORWARD("1"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_PASS, ""},
    {"/a/", BATCHES("last.pt") ";" PASS("0", "a", "true", "1", "5"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_FAIL, "first 4"},
    {"/a/", BATCHES("last.pt") ";" PASS("0", "a", "true", "1", "7"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_PASS, ""},
    {"/a/", BATCHES("last.pt"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4") "; " FORWARD("5"),
     LS_PASS, ""},
    {"/a/", BATCHES("last.pt"),
     BEGIN FORWARD("5") "; " FORWARD("6") "; " FORWARD("7") "; " FORWARD("8"), LS_PASS, ""},
    {"/a/", BATCHES("last.pt"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("8"), LS_PASS, ""},
    {"/b/", BATCHES("last.pt"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_PASS, ""},
    /* digests of another version */
    {"/a/\",\"digest_bits\":64,\"backend\":\"", BATCHES("last.pt"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_PASS, ""},
    {"/a/", BATCHES("other.pt"),
     BEGIN FORWARD("1") "; " FORWARD("2") "; " FORWARD("3") "; " FORWARD("4"), LS_PASS, ""},
    /* an epoch that is trained twice: the second pass of the job that wrote the file after step 4,
     * and the first one of this job */
    {"/a/", PASSES(PASS("1", "b", "true", "3", "4")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "b", "true", "1", "2"), LS_FAIL,
     "the first pass has the order of pass 2 of the job that wrote last.pt, which was whole by "
     "then | the job goes on with the epoch that the file ended with: it is trained on twice"},
    {"/a/", PASSES(PASS("1", "b", "true", "3", "5")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "b", "true", "1", "2"), LS_FAIL, "trained on twice"},
    {"/a/", PASSES(PASS("1", "b", "true", "3", "6")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "b", "true", "1", "2"), LS_PASS, ""},
    {"/a/", PASSES(PASS("1", "b", "true", "3", "4")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "c", "true", "1", "2"), LS_PASS, ""},
    {"/a/", PASSES(PASS("1", "b", "true", "3", "4")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "a", "true", "1", "2"), LS_PASS, ""},
    {"/a/", PASSES(PASS("1", "b", "false", "3", "4")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "b", "true", "1", "2"), LS_PASS, ""},
    {"/a/", PASSES(PASS("1", "b", "true", "3", "8")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "b", "true", "1", "2"), LS_PASS, ""},
    {"/a/", PASSES(PASS("1", "a", "true", "3", "4")),
     BEGIN "2x " STEP("0.2") ";" PASS("0", "a", "true", "1", "2"), LS_PASS, ""}, /* never another */
    /* a pass that no job trains on; one that the job before did, by its epoch or order; a look at
     * the data that both take */
    {"/a/", TWO_EPOCHS, BEGIN SKIPPED("2", "c") STEPS_OF("3"), LS_FAIL,
     "with any of that epoch | the file was written at the end of a pass, and its place in the "
     "data "
     "is that of the end: the pass behind it is skipped to its end | train.py:9"},
    {"/a/", TWO_EPOCHS, BEGIN SKIPPED("1", "c") STEPS_OF("2"), LS_PASS, ""},
    {"/a/", TWO_EPOCHS, BEGIN SKIPPED("null", "c") STEPS_OF("3"), LS_PASS, ""},
    {"/a/", TWO_EPOCHS, BEGIN WHOLE_OF("null", "2", "c", "false", "1", "1") ";" STEPS_OF("3"),
     LS_PASS, ""}, /* of a loader that is not known */
    {"/a/", TWO_EPOCHS,
     BEGIN SKIPPED("2", "c") "2x " STEP("0.2") ";" WHOLE_OF("null", "3", "d", "true", "1", "2"),
     LS_PASS, ""},
    {"/a/", "4x " STEP("0.2") ";" SAVED("last.pt", "4"), BEGIN SKIPPED("2", "c") STEPS_OF("3"),
     LS_PASS, ""},
    {"/a/", TWO_EPOCHS, BEGIN SKIPPED("2", "b") STEPS_OF("2"), LS_PASS, ""},
    {"/a/", SKIPPED("0", "e") TWO_EPOCHS, BEGIN SKIPPED("2", "c") STEPS_OF("2"), LS_PASS, ""},
    /* the rest of a pass that was cut: skipped in the loop, or by the sampler; the pass anew */
    {"/a/", CUT("[0,1,2,3]"), GOES_ON DREW("true", "8", "[2,3]", "[4,5,6,7,0,1,2,3]", "1", "3"),
     LS_FAIL,
     "4 of 8 samples were trained on before last.pt was written and come again in the "
     "rest of the pass, and 4 never come | the job goes on within a pass, and draws its rest from "
     "another order than the one that was cut | train.py:9"},
    /* a pass that is not whole; of other batches; of another data set */
    {"/a/", CUT("[0,1,2,3]"), GOES_ON DREW("false", "8", "[2,3]", "[4,5,6,7,0,1,2,3]", "1", "3"),
     LS_PASS, ""},
    {"/a/", CUT("[0,1,2,3]"),
     GOES_ON DREW_BY("\"batch\":1", "true", "8", "[4,7]", "[4,5,6,7,0,1,2,3]", "1", "3"), LS_PASS,
     ""},
    {"/a/", CUT("[0,1,2,3]"),
     GOES_ON DREW("true,\"length\":9", "8", "[2,3]", "[4,5,6,7,0,1,2,3]", "1", "3"), LS_PASS, ""},
    {"/a/", CUT("[0,1,2,3]"), GOES_ON DREW("true", "4", "[0,1]", "[1,2,3,4]", "1", "3"), LS_FAIL,
     "and 3 never come"},
    /* a batch sampler of the script's own that does not say how large its batches are */
    {"/a/", CUT("[0,1,2,3]"),
     GOES_ON DREW_BY("\"given\":2", "true", "4", "[0,1]", "[1,2,3,4]", "1", "3"), LS_FAIL,
     "and 3 never come"},
    /* by the sampler's epoch, at set_epoch; the same epoch by another seed */
    {"/a/", CUT_IN("1"), GOES_ON IN_EPOCH("0", "true", "8", "[2,3]", "[4,5,6,7,0,1,2,3]"), LS_FAIL,
     "the sampler's epoch is not that of the pass that was cut: the job goes on within epoch 1, "
     "and draws its rest in the order of epoch 0 | train.py:33"},
    {"/a/", CUT_IN("1"), GOES_ON IN_EPOCH("1", "true", "8", "[2,3]", "[4,5,6,7,0,1,2,3]"), LS_FAIL,
     "from another order than the one that was cut | train.py:9"},
    {"/a/", CUT_IN("1"), GOES_ON DREW("true", "8", "[2,3]", "[4,5,6,7,0,1,2,3]", "1", "3"), LS_FAIL,
     "from another order than the one that was cut | train.py:9"},
    {"/a/", CUT("[0,1,2,3]"), GOES_ON IN_EPOCH("1", "true", "8", "[2,3]", "[4,5,6,7,0,1,2,3]"),
     LS_FAIL, "from another order than the one that was cut | train.py:9"},
    {"/a/", CUT_IN("1"), GOES_ON IN_EPOCH("1", "true", "8", "[2,3]", "[0,1,2,3,4,5,6,7]"), LS_PASS,
     ""},
    {"/a/", CUT("[0,1,2,3]"), GOES_ON DREW("true", "8", "[2,3]", "[0,1,2,3,4,5,6,7]", "1", "3"),
     LS_PASS, ""},
    {"/a/", CUT("[0,1,2,3]"), GOES_ON DREW("true", "4", "[0,1]", "[2,3,4,5]", "1", "3"), LS_PASS,
     ""}, /* as many as fill up a batch */
    {"/a/", CUT("[0,1,2,3]"), GOES_ON DREW("true", "8", "[0,3]", "[4,5,6,7,0,1,2,3]", "1", "5"),
     LS_PASS, ""},
    {"/a/", CUT("[0,0,0,1]"), GOES_ON DREW("true", "4", "[0,1]", "[0,0,1,1]", "1", "3"), LS_PASS,
     ""},
    /* drawn with replacement, before or behind the file; one sample fills up a batch */
    {"/a/", CUT_ONES("[0,0,1,1]"), GOES_ON ONE_BY_ONE("true", "[0,1,2,3]"), LS_PASS, ""},
    {"/a/", CUT_ONES("[0,0,1,2]"), GOES_ON ONE_BY_ONE("true", "[0,1,2,3]"), LS_FAIL, "3 of 8"},
    {"/a/", CUT_ONES("[0,1,2,3]"), GOES_ON ONE_BY_ONE("true", "[0,0,1,1]"), LS_PASS, ""},
    {"/a/", CUT_ONES("[0,1,2,3]"), GOES_ON ONE_BY_ONE("true", "[0,0,1,2]"), LS_FAIL, "3 of 8"},
    /* within one epoch: as many batches are left out as were trained on; fewer, all but one of a
     * step's; more; all are taken, from the first on; as many as there were steps */
    {"/a/", CUT_AT("6", "[0,2]", ""), ON_AT("[3,3]"), LS_PASS, ""},
    {"/a/", CUT_AT("6", "[0,2]", ""), ON_AT("[1,3]"), CALLS_HINT,
     "4 of 8 samples were trained on before last.pt was written and come again in the rest of "
     "the pass, and 0 never come | the job skips 1 batches of the pass that the file cut, and 3 of "
     "it were trained on"},
    {"/a/", CUT_AT("6", "[0,2]", "F b b O; "), ON_AT("[1,3]"), LS_PASS, ""},
    {"/a/", CUT_AT("8", "[1,3]", ""), ON_AT("[1,3]"), LS_PASS, ""}, /* as the pass that was cut */
    /* as the job's first pass did; the first one did not, and the one that was cut did */
    {"/a/", FIRST_THEN_CUT("[1,3]", "6", "[0,2]"), ON_AT("[1,3]"), LS_PASS, ""},
    {"/a/", FIRST_THEN_CUT("[0,3]", "8", "[1,3]"), ON_AT("[1,3]"), LS_PASS, ""},
    {"/a/", FIRST_THEN_CUT("[0,3]", "6", "[0,2]"), ON_AT("[1,3]"), CALLS_HINT, "skips 1 batches"},
    {"/a/", CUT_AT("2", "[0,0]", ""), ON_AT("[3,3]"), LS_FAIL, "and 4 never come"},
    {"/a/", "F b b O; 2x " STEP("0.2") ";" SINGLY("false", "6", "[0,5]") ";" SAVED("last.pt", "3"),
     GOES_ON SINGLY("true", "8", "[3,7]"), LS_FAIL,
     "skips 3 batches of the pass that the file cut, and 6 of"},
    {"/a/", "F b b O; 2x " STEP("0.2") ";" SINGLY("false", "6", "[0,5]") ";" SAVED("last.pt", "3"),
     GOES_ON SINGLY("true", "8", "[2,7]"), CALLS_HINT,
     "skips 2 batches of the pass that the file cut, and 6 of"},
    {"/a/", "F b b O; 2x " STEP("0.2") ";" BY_TWO("false", "12", "[0,5]") ";" SAVED("last.pt", "3"),
     GOES_ON BY_TWO("true", "16", "[3,7]"), LS_FAIL,
     "skips 3 batches of the pass that the file cut, and 6 of"},
    {"/a/", CUT_AT("6", "[0,2]", ""), ON_AT("[0,3]"), LS_PASS, ""},
    {"/a/", CUT_SHUFFLED("[0,3]"), ON_SHUFFLED("\"step\":3"), CALLS_HINT,
     "the first 8 samples of the job are those that were trained on before last.pt was written, in "
     "one "
     "order | the place"},
    {"/a/", CUT_SHUFFLED("[0,3]"), ON_SHUFFLED("\"epoch\":0"), LS_PASS, ""}, /* counts no steps */
    {"/a/", CUT_SHUFFLED("[0,2]"), ON_SHUFFLED("\"step\":3"), LS_PASS, ""},  /* too few */
    /* a stream from its begin: within the pass, counted; from elsewhere; behind its end */
    {"/a/", BATCHES("last.pt") ";" STREAM("false"), STREAM_GOES_ON("\"step\":5", "1"), CALLS_HINT,
     "the first 4 batches of the job are those that were trained on before last.pt was written, in "
     "one order | the place"},
    {"/a/", BATCHES("last.pt") ";" STREAM("false"), STREAM_GOES_ON("\"step\":5", "6"), LS_PASS, ""},
    {"/a/", BATCHES("last.pt") ";" STREAM("false"), STREAM_GOES_ON("\"epoch\":0", "1"), LS_PASS,
     ""},
    {"/a/", BATCHES("last.pt") ";" STREAM("true"), STREAM_GOES_ON("\"step\":5", "1"), LS_PASS, ""},
    /* a job that trained on behind the file, in that pass; in a next one, too; with two backward
     * passes for each batch; of a file of that path that holds what was given, and other weights */
    {"/a/", CUT_BEHIND("[0,3]", ""), GOES_ON OTHER_ORDER, LS_FAIL,
     "4 of 8 samples were trained on before last.pt was written and come again in the rest of the "
     "pass, and 4 never come | the job goes on within a pass"},
    {"/a/", CUT_BEHIND("[0,3]", ""),
     GOES_ON DREW("true", "8", "[2,3]", "[0,1,2,3,4,5,6,7]", "1", "3"), LS_PASS, ""},
    {"/a/", CUT_BEHIND("[0,3]", STEP("0.2") ";" DREW("false", "2", "[0,0]", "[0,1]", "5", "5") ";"),
     GOES_ON OTHER_ORDER, LS_PASS, ""},
    {"/a/",
     "4x (F b b O Z);" DREW("false", "8", "[0,3]", "[0,1,2,3,4,5,6,7]", "1",
                            "4") ";" SAVED("last.pt", "3"),
     GOES_ON OTHER_ORDER, LS_PASS, ""},
    {"/a/", CUT_BEHIND("[0,3]", "") HOLDS("55"), GIVEN_BITS GOES_ON OTHER_ORDER, LS_FAIL, "4 of 8"},
    {"/a/", CUT_BEHIND("[0,3]", "") HOLDS("56"), GIVEN_BITS GOES_ON OTHER_ORDER, LS_PASS, ""},
    /* a loader that fetches a batch ahead, in a pass that is drawn from its begin */
    {"/a/", CUT_AHEAD, GOES_ON AHEAD("true", "8", "[3,3]", "[4,5,6,7,0,1,2,3]"), LS_FAIL,
     "and 4 never come"},
    {"/a/", CUT_AHEAD, GOES_ON AHEAD("true", "8", "[3,3]", "[0,1,2,3,4,5,6,7]"), LS_PASS, ""},
    /* later passes leave out as many batches, all of them; some; a single batch; as the job that
     * wrote the file did */
    {"/a/", CUT("[0,1,2,3]"), ON_AT("[2,3]") ";2x " STEP("0.2") ";" SKIPS("[2,3]"), LS_FAIL,
     "rank 0: the first pass leaves out 4 samples, which were trained on before last.pt was "
     "written, and each of the 1 passes behind it as many | the batches with which the job skips "
     "what was trained on are skipped in each later pass as well"},
    {"/a/", CUT("[0,1,2,3]"), ON_AT("[2,3]") ";2x " STEP("0.2") ";" SKIPS("[0,3]"), LS_PASS, ""},
    {"/a/", CUT("[0,1,2,3]"),
     ON_AT("[2,3]") ";2x " STEP("0.2") ";" SKIPS("[2,3]") ";" SKIPS("[0,3]"), LS_PASS, ""},
    {"/a/", CUT_AT("2", "[0,0]", ""), ON_AT("[1,3]") ";2x " STEP("0.2") ";" SKIPS("[1,3]"), LS_PASS,
     ""},
    {"/a/", FIRST_THEN_CUT("[2,3]", "4", "[0,1]"),
     ON_AT("[2,3]") ";2x " STEP("0.2") ";" SKIPS("[2,3]"), LS_PASS, ""},
    /* the same of a job that was killed: by the number in the file; of another number; as it did */
    {"/a/", "2x " STEP("0.2") ";" SAVED("last.pt", "2"), KILLED_ON("\"in_epoch\":2"), CALLS_HINT,
     "which were trained on before last.pt was written, and each of the 1 passes behind it as "
     "many"},
    {"/a/", "2x " STEP("0.2") ";" SAVED("last.pt", "2"), KILLED_ON("\"in_epoch\":3"), LS_PASS, ""},
    {"/a/", "6x " STEP("0.2") ";" SKIPS("[2,3]") ";" SAVED("last.pt", "6"),
     KILLED_ON("\"in_epoch\":2"), LS_PASS, ""},
    /* passes behind it that are as short, and whole ones */
    {"/a/", CUT("[0,1,2,3]"),
     GOES_ON DREW("true", "4", "[0,1]", "[4,5,6,7]", "1",
                  "3") ";" STEP("0.2") ";" DREW("true", "4", "[0,1]", "[1,3,5,7]", "3", "4"),
     LS_FAIL,
     "1 passes behind the first one have 4 samples, as the rest of the one that last.pt cut, and "
     "not 8"},
    /* the same of a loader that fetches a batch ahead; a later pass that is whole */
    {"/a/", CUT_AHEAD,
     GOES_ON AHEAD("true", "4", "[1,1]",
                   "[4,5,6,7]") ";" STEP("0.2") ";" AHEAD("true", "4", "[1,1]", "[1,3,5,7]"),
     LS_FAIL, "1 passes behind the first one have 4 samples, as the rest of the one that last.pt"},
    {"/a/", CUT_AHEAD,
     GOES_ON AHEAD("true", "4", "[1,1]", "[4,5,6,7]") ";" STEP("0.2") ";" AHEAD(
         "true", "8", "[1,3]", "[1,3,5,7,0,2,4,6]"),
     LS_PASS, ""},
    {"/a/", CUT("[0,1,2,3]"),
     GOES_ON DREW("true", "4", "[0,1]", "[4,5,6,7]", "1", "3") ";" STEP("0.2") ";" DREW(
         "true", "8", "[0,3]", "[1,3,5,7,0,2,4,6]", "3", "4"),
     LS_PASS, ""},
    /* none of the file's weights, though its optimizer; those of the file, given in another way */
    {"/a/", HELD, GIVEN_OWN("5"), LS_FAIL, "it changes nothing | no name of the file fits"},
    {"/a/", HELD, GIVEN_OWN("9"), CALLS_HINT, "it changes nothing | no name of the file fits"},
    /* moments of another parameter; two alike; of one that has another name now */
    {"/a/", WROTE("[\"a\",\"b\"]", "[\"1\",\"2\"]"), READS("[\"b\",\"a\"]", "[\"1\",\"2\"]"),
     LS_FAIL,
     "2 parameters have the moments of another one: b those that the file has of a | "
     "an optimizer's state is matched by position, and its parameters come in another order than "
     "in the job that wrote the file | train.py:10"},
    {"/a/", WROTE("[\"a\",\"b\"]", "[\"1\",\"2\"]"), READS("[\"b\",\"a\"]", "[\"2\",\"1\"]"),
     LS_PASS, ""},
    {"/a/", WROTE("[\"a\",\"b\"]", "[\"1\",\"1\"]"), READS("[\"b\",\"a\"]", "[\"1\",\"1\"]"),
     LS_PASS, ""},
    {"/a/", WROTE("[\"a\",\"b\"]", "[\"1\",\"2\"]"), READS("[\"c\",\"d\"]", "[\"1\",\"2\"]"),
     LS_PASS, ""},
    /* what the file lacks: as it was drawn; as the writer had it; another's; one that is trained */
    {"/a/", LACKS("stem", "6"), LEFT("stem", ""), LS_FAIL,
     "last.pt was written (train.py:50) without stem, which nothing gave the value that it had "
     "then "
     "before it was used | the file has only what an optimizer trains: the rest of the model is "
     "used as it was drawn | train.py:11"},
    {"/a/", LACKS("stem", "5"), LEFT("stem", ""), LS_PASS, ""},
    {"/a/", LACKS("stem", "6"), LEFT_AS("bf16", "stem", ""), LS_PASS, ""},
    /* the moments of a file are left out: certain where all else goes on; other weights, settings,
     * rate, epoch or data, or no file to go on from again */
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.1", "0.1", "1", "d", ALL_SAVED("2")), LS_FAIL,
     "rank 0: the job goes on with the epoch behind the file's, and its optimizer (Adam) begins "
     "without state; last.pt holds one | optimizer.load_state_dict is not called | train.py:9"},
    {"/a/", TWO_SHORT("2,2"), NEXT_EPOCH("55", "0.1", "0.1", "2", "d", ALL_SAVED("2")), LS_FAIL,
     "goes on with the epoch behind the file's"},
    {"/a/", TWO_SHORT("3,3"), NEXT_EPOCH("55", "0.1", "0.1", "1", "d", ALL_SAVED("2")), LS_FAIL,
     "goes on with the epoch behind the file's"},
    {"/a/", TWO_SHORT("2,4"), NEXT_EPOCH("55", "0.1", "0.1", "2", "d", ALL_SAVED("2")), LS_PASS,
     ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("56", "0.1", "0.1", "1", "d", ALL_SAVED("2")), LS_PASS, ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.2", "0.1", "1", "d", ALL_SAVED("2")), LS_PASS, ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.1", "0.2", "1", "d", ALL_SAVED("2")), LS_PASS, ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.1", "0.1", "0", "d", ALL_SAVED("2")), LS_PASS, ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.1", "0.1", "1", "e", ALL_SAVED("2")), LS_PASS, ""},
    {"/a/", FIRST_EPOCH_OF("null"), NEXT_EPOCH("55", "0.1", "0.1", "1", "d", ALL_SAVED("2")),
     LS_PASS, ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.1", "0.1", "null", "d", ALL_SAVED("2")), LS_PASS, ""},
    {"/a/", FIRST_EPOCH, NEXT_EPOCH("55", "0.1", "0.1", "1", "d", ""), LS_SKIP, ""},
    /* the shares of an average: anew, though it is the file's; by the count; of another average;
     * constant; and anew within the first job, too */
    {"/a/", AVERAGED("0.9", "0.8", "0.7", ""), AVERAGES_ON("9", "0.9", "0.8", "0.7"), LS_FAIL,
     "rank 0: the average that last.pt holds moves 0.9, then 0.8 of the way to the weights in its "
     "first updates, as it did when the job that wrote it began | the decay of an average"},
    {"/a/", AVERAGED("0.9", "0.8", "0.7", ""), AVERAGES_ON("9", "0.6", "0.5", "0.4"), LS_PASS, ""},
    {"/a/", AVERAGED("0.9", "0.8", "0.7", ""), AVERAGES_ON("8", "0.9", "0.8", "0.7"), CALLS_HINT,
     "begins neither with what the average of the job that wrote it held then, nor with weights "
     "that were loaded | the average is made before"},
    {"/a/", AVERAGED("0.1", "0.1", "0.1", ""), AVERAGES_ON("1", "0.1", "0.1", "0.1"), LS_FAIL,
     "that were loaded, but as that one began, to the bit"},
    {"/a/", AVERAGED("0.1", "0.1", "0.1", ""), AVERAGES_ON("1", "0", "0", "0"), LS_PASS, ""},
    /* it begins as the weights that were loaded, and the file holds it */
    {"/a/", AVERAGED_AS("[0,\"7\",true]", "0.1", "0.1", "0.1", ""),
     AVERAGES_ON("9", "0.1", "0.1", "0.1"), LS_FAIL,
     "which holds the average of the weights, and its own begins with the weights | the average is "
     "made again, of the weights that were loaded"},
    {"/a/", AVERAGED_AS("[0,\"7\",false]", "0.1", "0.1", "0.1", ""),
     AVERAGES_ON("9", "0.1", "0.1", "0.1"), LS_PASS, ""},
    {"/a/", AVERAGED_AS("[0,\"7\",true]", "0.1", "0.1", "0.1", ""), AVERAGES_ON("9", "0", "0", "0"),
     LS_PASS, ""},
    {"/a/", AVERAGED("0.1", "0.1", "0.1", ""), AVERAGES_ON("9", "0.1", "0.1", "0.1"), LS_PASS, ""},
    /* the average's bits in the model: of one that followed it, or that was a copy of it */
    {"/a/", AVERAGED("0.1", "0.1", "0.1", ""), IN_MODEL("9") AVERAGES_ON("9", "0.1", "0.1", "0.1"),
     CALLS_HINT, "from the bits of the average"},
    {"/a/", PUTS_BACK("7", "7", "0000000000000002"),
     IN_MODEL("9") AVERAGES_ON("9", "0.1", "0.1", "0.1"), LS_FAIL,
     "in last.pt, not from the weights that were trained, as the job that wrote it did behind step "
     "2 | the file was written while the average was in the model"},
    {"/a/", PUTS_BACK("7", "7", "7"), IN_MODEL("9") AVERAGES_ON("9", "0.1", "0.1", "0.1"),
     CALLS_HINT, "from the bits of the average"},
    {"/a/", PUTS_BACK("6", "7", "0000000000000002"),
     IN_MODEL("9") AVERAGES_ON("9", "0.1", "0.1", "0.1"), CALLS_HINT, "from the bits"},
    {"/a/", PUTS_BACK("0000000000000002", "0000000000000002", "0000000000000002"),
     IN_MODEL("9") AVERAGES_ON("9", "0.1", "0.1", "0.1"), CALLS_HINT, "from the bits"},
    {"/a/", AVERAGED("0.1", "0.1", "0.1", ""), IN_MODEL("8") AVERAGES_ON("9", "0.1", "0.1", "0.1"),
     LS_PASS, ""},
    {"/a/", AVERAGED("1", "1", "1", ""), IN_MODEL("9") AVERAGES_ON("9", "1", "1", "1"), LS_PASS,
     ""},
    {"/a/", AVERAGED("0.9", "0.8", "0.7", MOVED_BY("5", "0.9", "")),
     AVERAGES_ON("9", "0.9", "0.8", "0.7"), LS_PASS, ""},
    /* settings of a position that other parameters have, and of the same ones */
    {"/a/", GROUPED("fc.weight", "fc.bias") STEP("0.2") ";" ALL_SAVED("1"),
     REGROUPED("fc.bias", "fc.weight"), LS_FAIL,
     "rank 0: decay 0.1 of fc.bias, which had 0 when the file was written | an optimizer's "
     "settings are matched by position, and its groups have other parameters than in the job that "
     "wrote the file | train.py:10"},
    {"/a/", GROUPED("fc.weight", "fc.bias") STEP("0.2") ";" ALL_SAVED("1"),
     REGROUPED("fc.weight", "fc.bias"), LS_PASS, ""},
    /* weights that are drawn again behind the load; of an average, of few elements, of no
     * optimizer; those that the first job began with */
    {"/a/", ALL_SAVED("1"), OVERWRITTEN("fc.weight", "5", "256", "0.37"), LS_FAIL,
     "rank 0: 1 parameters (fc.weight) do not hold what the file gave them when training begins, "
     "nor anything like it | between load_state_dict and the first step the weights are drawn "
     "again, while the optimizer goes on with the state of the old ones | train.py:11 | load"},
    {"/a/", ALL_SAVED("1"), OVERWRITTEN("fc.weight", "5", "256", "-0.37"), LS_FAIL, "fc.weight"},
    {"/a/", ALL_SAVED("1"), OVERWRITTEN("fc.weight", "5", "256", "0.38"), LS_PASS, ""},
    {"/a/", ALL_SAVED("1"), OVERWRITTEN("fc.weight", "5", "255", "0.01"), LS_PASS, ""},
    {"/a/", ALL_SAVED("1"), OVERWRITTEN("other", "5", "256", "0.37"), LS_PASS, ""},
    {"/a/", ALL_SAVED("1"), UNLIKE("\"step\":0,\"entries\":0"), LS_SKIP, ""},
    {"/a/", ALL_SAVED("1"), UNLIKE("\"step\":1,\"entries\":3"), LS_SKIP, ""},
    {"/a/", ALL_SAVED("1"), UNLIKE("\"step\":0,\"entries\":3,\"which\":1"), LS_PASS, ""},
    {"/a/", ALL_SAVED("1"), UNLIKE("\"step\":0,\"entries\":3,\"which\":0"), LS_FAIL, "fc.weight"},
    {"/a/", BEGAN_WITH("5") STEP("0.2") ";" ALL_SAVED("1"),
     OVERWRITTEN("fc.weight", "5", "256", "0.99"), LS_FAIL, "1 parameters (fc.weight)"},
    {"/a/", BEGAN_WITH("5") STEP("0.2") ";" ALL_SAVED("1"),
     OVERWRITTEN("fc.weight", "5", "255", "0.99"), LS_PASS, ""},
    {"/a/", BEGAN_WITH("5") STEP("0.2") ";" ALL_SAVED("1"), OTHERS("2", "1"), LS_FAIL,
     "2 parameters (fc.bias, fc.weight)"},
    {"/a/", BEGAN_WITH("5") STEP("0.2") ";" ALL_SAVED("1"), OTHERS("3", "1"), LS_PASS, ""},
    {"/a/", BEGAN_WITH("5") STEP("0.2") ";" ALL_SAVED("1"), OTHERS("2", "2"), LS_PASS, ""},
    {"/a/", BEGAN_WITH("5") STEP("0.2") ";" ALL_SAVED("1"),
     OVERWRITTEN("fc.bias", "5", "256", "0.99"), LS_PASS, ""},
    /* a schedule: anew; by the count; with its state; in another epoch; a course that came back,
     * and one that never falls */
    {"/a/", SCHEDULE_OF("0.08", "0.06"), SCHEDULE_ON("", "1", "0.06", "0.08", "0.06", "1"), LS_FAIL,
     "rank 0: the file's rate is 0.06, and the job goes on with 0.08 and 0.06, the rates of the "
     "first job's begin | the schedule's state is neither saved nor restored: its course begins "
     "anew while weights, moments and epochs go on | train.py:14"},
    {"/a/", SCHEDULE_OF("0.08", "0.06"), SCHEDULE_ON("", "1", "0.06", "0.04", "0.02", "1"), LS_PASS,
     ""},
    {"/a/", SCHEDULE_OF("0.08", "0.06"), SCHEDULE_ON(STATE, "1", "0.06", "0.08", "0.06", "1"),
     LS_PASS, ""},
    {"/a/", SCHEDULE_OF("0.08", "0.06"), SCHEDULE_ON("", "1", "0.06", "0.08", "0.06", "2"), LS_PASS,
     ""},
    {"/a/", SCHEDULE_OF("0.2", "0.1"), SCHEDULE_ON("", "1", "0.1", "0.2", "0.1", "1"), LS_PASS, ""},
    {"/a/", SCHEDULE_OF("0.2", "0.3"), SCHEDULE_ON("", "1", "0.15", "0.2", "0.3", "1"), LS_PASS,
     ""},
    /* one that takes the rate down from the file's, by the first job's factors; not its count, the
     * factors of its middle, and a factor that is the same everywhere */
    {"/a/", SCHEDULE_OF("0.08", "0.04"), SCHEDULE_ON("", "1", "0.04", "0.032", "0.016", "1"),
     LS_FAIL,
     "rank 0: the file's rate is 0.04, and the job multiplies it by 0.8 and 0.5, the factors of "
     "the first job's begin | the schedule's state is neither saved nor restored: its course "
     "begins anew while weights, moments and epochs go on | train.py:14"},
    {"/a/", SCHEDULE_OF("0.08", "0.04"), SCHEDULE_ON("", "3", "0.04", "0.032", "0.016", "1"),
     LS_PASS, ""},
    {"/a/", SCHEDULE_OF("0.08", "0.04"), SCHEDULE_ON("", "1", "0.04", "0.02", "0.005", "1"),
     LS_PASS, ""},
    {"/a/", SCHEDULE_OF("0.08", "0.064"), SCHEDULE_ON("", "1", "0.064", "0.0512", "0.04096", "1"),
     LS_PASS, ""},
    {"/a/", LACKS("other", "6"), LEFT("stem", ""), LS_PASS, ""},
    {"/a/", LACKS("stem", "6"), LEFT("stem", "fc.weight"), LS_PASS, ""},
};

/* The start event of calls_open_with has no folder: this one comes before it. */
static void open_in(calls_job *job, const char *work)
{
    calls_open_with(job, 1, "");
    rewind(job->rank[0].file);
    fprintf(
        job->rank[0].file,
        "{\"event\":\"start\",\"schema\":1,\"observed\":1,\"rank\":0,\"local_rank\":0,\"world\":1,"
        "\"work\":\"%s\",\"options\":{}}\n"
        "{\"event\":\"model\",\"model\":0,\"kind\":\"plain\",\"at\":\"train.py:5\",\"name\":"
        "\"Net\","
        "\"params\":[[\"fc.weight\",8,\"f32\",true],[\"fc.bias\",2,\"f32\",true],[\"head.weight\","
        "4,"
        "\"f32\",true]],\"buffers\":[],\"norm_params\":[]}\n",
        work);
}

/* Judges a job after the one before it; linked: it went on from that one's file. */
static void read_after(calls_job *job, const calls_job *before, bool linked)
{
    fprintf(job->rank[0].file, "{\"event\":\"end\",\"steps\":%d,\"why\":\"exit\"}\n",
            job->rank[0].step);
    fclose(job->rank[0].file);
    ck_assert_int_eq(ls_observe_read(job->folder, &job->trace), LS_OK);
    ck_assert_int_eq(ls_observe_continue(job->trace, before->folder), linked);
    ls_observe_judge_all(job->trace, &job->result);
}

ROWS_TEST(what_comes_again_is_caught, pairs)
{
    calls_job before, job;
    open_in(&before, "/a/");
    if (strstr(pairs[_i].before, "\"optimizer\":0,") == NULL) {
        calls_script(&before, UNNAMED("0.2", "0"));
    }
    calls_script(&before, pairs[_i].before);
    calls_judge(&before);
    open_in(&job, pairs[_i].work);
    calls_script(&job, pairs[_i].now);
    read_after(&job, &before,
               strcmp(pairs[_i].work, "/a/") == 0 &&
                   strstr(pairs[_i].before, "\"last.pt\"") != NULL);
    calls_expect(&job, "checkpoint.resume", pairs[_i].code, pairs[_i].words);
    calls_close(&job);
    calls_close(&before);
}

#define MADE_FOR(steps)                                                              \
    "{\"event\":\"schedule\",\"schedule\":0,\"class\":\"CosineAnnealingLR\",\"at\":" \
    "\"train.py:8\",\"step\":0,\"holds\":[],\"span\":" steps "};"                    \
    "8x (F S B F S B K P L{\"schedule\":0,\"optimizer\":0,\"epoch\":8} Z);" ALL_SAVED("8")
#define LOADS_FILE(path) \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"" path "\",\"step\":0,\"what\":{}};"

#define COUNTS(epoch) "F S B K P L{\"schedule\":0,\"epoch\":" epoch "} Z;"
#define GIVEN(what) "{\"event\":\"restore\",\"step\":0," what "};"

/* A schedule's course ends in the job that goes on: with its file, with another, or with one of
 * another name that gave it the same moments or weights, or with its schedule. */
static const struct {
    const char *loads;
    bool linked, goes_on;
} later[] = {
    {LOADS_FILE("last.pt"), true},
    {LOADS_FILE("other.pt"), false},
    {LOADS_FILE("other.pt") GIVEN("\"what\":\"optimizer\",\"marks\":[\"1\"]"), true},
    {LOADS_FILE("other.pt") GIVEN("\"what\":\"optimizer\",\"marks\":[\"2\"]"), false},
    {LOADS_FILE("other.pt") GIVEN("\"what\":\"optimizer\",\"marks\":[]"), false},
    {LOADS_FILE("other.pt") GIVEN("\"what\":\"model\",\"bits\":\"55\""), true},
    {LOADS_FILE("other.pt") GIVEN("\"what\":\"model\",\"bits\":\"56\""), false},
    {GIVEN("\"what\":\"model\",\"bits\":\"55\""), false},
    {GIVEN("\"what\":\"schedule\"") COUNTS("9") COUNTS("10"), false, true},
    {GIVEN("\"what\":\"schedule\"") COUNTS("1") COUNTS("9"), false},
    {GIVEN("\"what\":\"model\"") COUNTS("9"), false},
};

ROWS_TEST(a_schedule_may_end_in_a_later_job, later)
{
    calls_job job, next;
    open_in(&next, "/a/");
    calls_script(&next, later[_i].loads);
    calls_judge(&next);
    open_in(&job, "/a/");
    calls_script(&job, MADE_FOR("16"));
    calls_judge(&job);
    ls_observe_result_free(&job.result);
    bool goes_on = later[_i].linked || later[_i].goes_on;
    ck_assert_int_eq(ls_observe_goes_on(job.trace, next.folder), goes_on);
    ck_assert_int_eq(ls_observe_continue(next.trace, job.folder), later[_i].linked);
    ls_observe_judge_all(job.trace, &job.result);
    calls_expect(&job, "order.schedule", goes_on ? LS_PASS : LS_WEAK, "");
    if (later[_i].linked) {
        const ls_event *save = ls_trace_last(&next.trace->before->rank[0], save);
        const ls_event *load = ls_trace_last(&next.trace->rank[0], load);
        ck_assert_str_eq(ls_event_text(save, path, ""), ls_event_text(load, path, "?"));
    }
    calls_close(&job);
    calls_close(&next);
}

TEST_MAIN("observe_restored", .timeout_s = 120)
