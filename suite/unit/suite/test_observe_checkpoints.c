/* The rules of checkpoints, and of jobs that go on from one, on invented jobs. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

/* ---- checkpoints ----------------------------------------------------------------------------- */

#define MODEL "\"model\":[\"fc.weight\"]"
#define SAVE "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":3,"

#define WRONG "\"wrong\":[\"fc.weight\",\"fc.bias\",\"head.weight\"]"

#define EPOCHS_BY(rule)                                                                     \
    "!; {\"event\":\"optimizer\",\"optimizer\":0,\"rule\":\"" rule                          \
    "\",\"groups\":[{\"params\":[\"fc.weight\"]}]}; " SAVE "\"path\":\"\",\"what\":{" MODEL \
    ",\"epoch\":[\"epoch\"]}}; 3x F b O Z"

static const calls_row files[] = {
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]}}; 3x F S B K P Z",
     "checkpoint.resume", LS_PASS, "2 files to go on from; the job itself began anew |  |  | "},
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]}}; 3x F S B K P Z",
     "checkpoint.content", LS_PASS, "2 files hold the model's values"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}}; 3x F S B K P Z",
     "checkpoint.resume", LS_FAIL,
     "rank 0, step 3:  holds the optimizer, but not the scaler that is in use | "
     "scaler.state_dict() is not saved .. | train.py:50 | add"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "}}; 3x F S B K P Z", "checkpoint.resume", LS_SKIP,
     "weights alone"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          "},\"wrong\":[\"fc.weight\",\"fc.bias\",\"head.weight\"]}; 3x F S B K P Z",
     "checkpoint.content", LS_PASS, "0 files hold the model's values, 2 hold other weights"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"wrong\":[\"fc.bias\"]}; 3x F S B K P Z",
     "checkpoint.content", LS_FAIL,
     "rank 0, step 3:  holds 1 of 3 parameters with other values than the model: fc.bias | the "
     "parts of the file are of different steps .. | train.py:50 | take"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          "},\"params_missing\":[\"head.weight\"]}; 3x F S B K P Z",
     "checkpoint.content", LS_PASS, "2 files"},
    {SAVE
     "\"path\":\"\",\"what\":{" MODEL
     ",\"optimizer\":[\"o\"]},\"params_missing\":[\"fc.weight\",\"head.weight\"]}; 3x F S B K P Z",
     "checkpoint.content", LS_FAIL,
     "rank 0, step 3:  holds an optimizer, but not 2 of the parameters that it trains: fc.weight, "
     "head.weight | only a part of the model .. | train.py:50 | save"},
    {SAVE "\"path\":\"last.pt\",\"what\":{" MODEL "}}; 3x F S B K P Z", "checkpoint.content",
     LS_FAIL, "step 3: 2 ranks write the file last.pt | torch.save on .. | train.py:50 | if"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"params\":0}; 3x F S B K P Z", "checkpoint.content",
     LS_UNSUPPORTED, "2 files hold weights of no model that was alive"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":3}; 3x F S B K P Z", "checkpoint.content",
     LS_PASS, ""},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"made\":0}; 3x F S B K P Z", "checkpoint.content",
     LS_PASS, ""},
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          "},\"made\":2,\"made_at\":\"train.py:41\"}; 3x F S B K P Z",
     "checkpoint.content", CALLS_HINT,
     "rank 0, step 3:  holds the weights of this step, and state_dict() was called for it after "
     "step 2 | state_dict() does not copy: weights that were to be kept are trained on | "
     "train.py:41"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]},\"stale\":[\"optimizer\"]}; 3x F S B K P Z",
     "checkpoint.content", LS_FAIL,
     "and an optimizer's state of an earlier one | optimizer.state_dict() was called before the "
     "loop"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL "},\"stale\":[\"schedule\"]}; 3x F S B K P Z",
     "checkpoint.content", LS_FAIL,
     "and a schedule's state of an earlier one | the schedule .. | train.py:50 | call"},
    /* the best weights with the optimizer of their step */
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"]},\"stale\":[\"optimizer\"]," WRONG "}; 3x F S B K P Z",
     "checkpoint.content", LS_PASS, "0 files hold the model's values, 2 hold other weights"},
    /* an average with the optimizer of now */
    {SAVE "\"path\":\"\",\"what\":{" MODEL
          ",\"optimizer\":[\"o\"]},\"fresh\":[\"optimizer\"],\"digests\":[[0,\"bb\"]]," WRONG
          "}; 3x F S B K P Z",
     "checkpoint.content", LS_PASS, "0 files hold the model's values, 2 hold other weights"},
    {SAVE "\"path\":\"\",\"what\":{" MODEL ",\"epoch\":[\"epoch\"]}}; 3x F S B K P Z",
     "checkpoint.resume", LS_SKIP, "weights alone"}, /* its optimizer keeps nothing */
    {EPOCHS_BY("adam"), "checkpoint.resume", LS_WEAK, "optimizer.state_dict() is not saved"},
    {EPOCHS_BY(""), "checkpoint.resume", LS_SKIP, "weights alone"}, /* what it keeps is not known */
    {"{\"event\":\"cost\"}; 3x F S B K P Z", "checkpoint.content", LS_SKIP, "no torch.save"},
    {"{\"event\":\"cost\"}; 3x F S B K P Z", "checkpoint.resume", LS_SKIP, "nothing was saved"},
};

CALLS_TEST(files_are_judged, files)

#define READ(members)                                                                        \
    "3x F S B K P Z; 0:" SAVE "\"path\":\"a\",\"shared\":3,\"begun_ns\":50,\"what\":{" MODEL \
    "}}; 1: {\"event\":\"load\",\"at\":\"train.py:60\",\"path\":\"a\",\"what\":{}," members "}"
#define LOADED                                                                                   \
    "{\"event\":\"load\",\"at\":\"train.py:9\",\"path\":\"last.pt\",\"step\":0,\"what\":{" MODEL \
    ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"],\"epoch\":[\"epoch\"]}};"
#define RESTORED(what) "{\"event\":\"restore\",\"what\":\"" what "\",\"step\":0};"
#define TRAINED "3x F S B K P Z; =DistributedSampler 40 20 0 2 3 "
#define ONE(step, fresh, digest)                                                                 \
    "F S B K P Z; 0: {\"event\":\"save\",\"at\":\"train.py:50\",\"step\":" step                  \
    ",\"path\":\"last." step "\",\"what\":{" MODEL                                               \
    ",\"optimizer\":[\"o\"],\"scaler\":[\"s\"]},\"fresh\":[" fresh "],\"digests\":[[0,\"" digest \
    "\"]]," WRONG "};"
#define BEGUN(members)                                                                       \
    "!\"digest\":{\"param\":\"aa\"},; 0:" SAVE "\"path\":\"\",\"what\":{" MODEL "}," members \
    "\"digests\":[[0,\"aa\"]]," WRONG "}; 3x F{\"autocast\":null} b O Z"

static const calls_row others[] = {
    /* one rank writes a file, and another one reads it: a barrier lies between, or not; an older
     * file, and meant; a step lies between */
    {READ("\"step\":3,\"shared\":4,\"begun_ns\":60"), "checkpoint.content", LS_PASS, ""},
    {READ("\"step\":3,\"shared\":3,\"begun_ns\":60"), "checkpoint.content", LS_FAIL,
     "step 3: rank 1 reads a, which rank 0 writes in the same step | no barrier .. | train.py:60 "
     "|"},
    {READ("\"step\":3,\"shared\":3,\"begun_ns\":50"), "checkpoint.content", LS_PASS, ""},
    {READ("\"step\":3,\"shared\":3,\"begun_ns\":40"), "checkpoint.content", LS_PASS, ""},
    {READ("\"step\":3,\"shared\":3,\"begun_ns\":40,\"failed\":true"), "checkpoint.content", LS_FAIL,
     "which rank 0 writes in the same step, and fails | no barrier between"},
    {"1: {\"event\":\"save\",\"path\":\"a\",\"step\":2,\"what\":{}}; " READ(
         "\"step\":3,\"shared\":3,\"begun_ns\":60"),
     "checkpoint.content", LS_PASS, ""},
    {READ("\"step\":4,\"shared\":3,\"begun_ns\":60"), "checkpoint.content", LS_PASS, ""},
    /* nothing was loaded, and what the job saves lacks the scaler: the first is the worse */
    {"{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"missing\":3,\"unexpected\":3,"
     "\"params\":3,\"taken\":0,\"own\":0,\"renamed\":3,\"at\":\"train.py:9\",\"step\":0}; F S B K "
     "P Z; {\"event\":\"save\",\"step\":1,\"path\":\"a.pt\",\"what\":{\"optimizer\":[\"o\"]}}",
     "checkpoint.resume", LS_FAIL, "nothing is loaded | train.py:9"},
    {LOADED TRAINED, "checkpoint.resume", LS_SKIP, "nothing was saved"},
    {LOADED RESTORED("optimizer") TRAINED, "checkpoint.resume", LS_FAIL,
     "rank 0: last.pt holds a scaler, and the job goes on from its optimizer without it | "
     "scaler.load_state_dict is not called | train.py:9 | call"},
    {LOADED RESTORED("optimizer") RESTORED("scaler") TRAINED, "checkpoint.resume", LS_PASS,
     "0 files to go on from; the job restored what its file holds |  |  | "},
    /* files of two steps with one and the same copy of weights; the best ones, twice */
    {ONE("1", "\"optimizer\"", "aa") ONE("2", "\"optimizer\"", "aa"), "checkpoint.content", LS_FAIL,
     "rank 0, step 2: last.2 holds the optimizer or schedule of this step, and weights that the "
     "job had at step 1 | the weights .. | train.py:50 | take"},
    {ONE("1", "\"optimizer\"", "aa") ONE("2", "\"optimizer\"", "bb"), "checkpoint.content", LS_PASS,
     "hold other weights"},
    {ONE("1", "", "aa") ONE("2", "", "aa"), "checkpoint.content", LS_PASS, "hold other weights"},
    /* weights that are those of the start, after steps: FAIL with an optimizer of now, else weak */
    {BEGUN("\"fresh\":[\"optimizer\"],"), "checkpoint.content", LS_FAIL,
     "weights that the job had at step 0 | the weights are a copy that was made once"},
    {BEGUN(""), "checkpoint.content", LS_WEAK,
     "rank 0, step 3:  holds the weights that the job began with |  | train.py:50 | right"},
};

CALLS_TEST(other_files_are_judged, others)

/* Files of a checkpoint in parts: the scaler lies in one of its own. */
static const calls_row parts[] = {
    {"F S B K P Z; 0:" SAVE "\"path\":\"a\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}}; 0:" SAVE
     "\"path\":\"b\",\"what\":{\"scaler\":[\"s\"]}}",
     "checkpoint.resume", LS_PASS, "1 files"},
};

CALLS_CLEAN_TEST(a_checkpoint_in_parts_passes, parts)

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
#define RESTORE(members) "{\"event\":\"restore\",\"at\":\"train.py:10\",\"step\":0," members "}"
#define OF_OPTIMIZER RESTORE("\"what\":\"optimizer\",\"entries\":3")
#define OF_MODEL RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3")
#define OF_SCHEDULE RESTORE("\"what\":\"schedule\"")
#define NEXT "F{\"autocast\":null} b O Z L{\"epoch\":3}"
#define ANEW "F{\"autocast\":null} b O Z L{\"epoch\":1}"

#define DRAWN(epoch) "=DistributedSampler 40 20 0 2 3 \"sampler_epoch\":" epoch ","

/* A file with other members, what is restored, the optimizer's state, a step, the first epoch. */
#define GOES_ON(members, restored, state, step, epoch) \
    "!;" LOAD(members WHOLE) "; " OF_MODEL "; " restored MOMENTUM(state) "; " step "; " DRAWN(epoch)
/* Events before the first step, a step, the sampler's epoch in the first pass. */
static const calls_row resumed[] = {
    {GOES_ON("", OF_OPTIMIZER ";", "3", NEXT, "2"), "checkpoint.resume", LS_PASS, "restored"},
    {GOES_ON("", OF_OPTIMIZER ";", "3", NEXT, "0"), "checkpoint.resume", CALLS_HINT,
     "rank 0: the job goes on from last.pt with epoch 2, and its sampler draws the order of epoch "
     "0 | set_epoch is not called with the epoch .. | train.py:18 | begin"},
    {"!;" LOAD(
         "\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"],\"epoch\":[\"epoch\"]},\"numbers\":"
         "{\"epoch\":0,\"step_in_epoch\":8},\"entries\":[3]") "; " OF_MODEL "; " OF_OPTIMIZER
                                                              ";" MOMENTUM("3") "; " NEXT
                                                                                "; " DRAWN("0"),
     "checkpoint.resume", NO_HINT, ""},
    /* weights of another job, which begins anew */
    {GOES_ON("", "", "0", ANEW, "0"), "checkpoint.resume", LS_SKIP, ""},
    {GOES_ON("", OF_SCHEDULE ";", "0", NEXT, "2"), "checkpoint.resume", CALLS_HINT,
     "rank 0: the job goes on with the schedule's state, and its optimizer (torch.optim.sgd.SGD) "
     "begins without state; last.pt holds one | optimizer.load_state_dict is not called | "
     "train.py:9 | call"},
    {GOES_ON("", "", "0", NEXT, "2"), "checkpoint.resume", CALLS_HINT,
     "goes on with the file's epoch"},
    /* by an optimizer of another kind than the file's, on purpose; of the same kind */
    {GOES_ON("\"settings\":[[\"betas\"]],", "", "0", NEXT, "2"), "checkpoint.resume", LS_WEAK,
     "holds one of another kind"},
    {GOES_ON("\"settings\":[[\"momentum\"]],", "", "0", NEXT, "2"), "checkpoint.resume", CALLS_HINT,
     "goes on with the file's epoch"},
    /* weights of a training job to begin another one */
    {GOES_ON("", "", "0", ANEW, "0"), "checkpoint.resume", LS_SKIP, "nothing was saved"},
    /* restored by other means: it has state */
    {GOES_ON("", OF_SCHEDULE ";", "3", NEXT, "2"), "checkpoint.resume", LS_SKIP,
     "nothing was saved"},
    {GOES_ON("", OF_OPTIMIZER ";", "0", NEXT, "2"), "checkpoint.resume", LS_FAIL,
     "rank 0: an optimizer's state was loaded, and optimizer 0 (torch.optim.sgd.SGD) begins "
     "without any | the optimizer that steps is not the one whose state was loaded: it was built "
     "afterwards | train.py:7"},
    /* a package moves the state of a new optimizer, and another job begins with the weights
     */
    {"!;" LOAD(WHOLE) "; " OF_MODEL "; " RESTORE(
         "\"what\":\"optimizer\",\"entries\":0") "; " MOMENTUM("0") "; " ANEW "; " DRAWN("0"),
     "checkpoint.resume", LS_SKIP, "nothing was saved"},
    {"!;" LOAD("\"what\":{\"model\":[\"m\"],\"epoch\":[\"epoch\"]},\"numbers\":{\"epoch\":"
               "2}") "; " OF_MODEL "; " MOMENTUM("0") "; " NEXT "; " DRAWN("2"),
     "checkpoint.resume", CALLS_HINT,
     "last.pt holds none | the file that the job goes on from has no optimizer.state_dict() | "
     "train.py:9 | save"},
    {GOES_ON("", OF_OPTIMIZER ";", "3", ANEW, "2"), "checkpoint.resume", CALLS_HINT,
     "rank 0: the schedule in last.pt stands at 2, and the job's own at 1 after its first step | "
     "the schedule's load_state_dict is not called: the rate begins anew | train.py:9"},
    {"!;" LOAD(WHOLE) "; " OF_SCHEDULE "; " OF_OPTIMIZER "; " MOMENTUM("3") "; " ANEW
                                                                            "; " DRAWN("2"),
     "checkpoint.resume", CALLS_HINT, "loaded: it was built afterwards | train.py:27"},
    /* stepped up to where it was; as a new one would begin in another job */
    {"!;" LOAD(WHOLE) "; " OF_MODEL "; " OF_OPTIMIZER "; " MOMENTUM(
         "3") "; L{\"epoch\":1} L{\"epoch\":2} F{\"autocast\":null} b O Z "
              "L{\"epoch\":3}; " DRAWN("2"),
     "checkpoint.resume", LS_PASS, ""},
    {"!;" LOAD(WHOLE) "; " OF_OPTIMIZER "; " RESTORE("\"what\":\"model\",\"like\":0") "; " MOMENTUM(
         "3") "; " NEXT "; " DRAWN("2"),
     "checkpoint.resume", CALLS_HINT,
     "rank 0: weights were loaded into a model that is not trained, and none into model 0, which "
     "has the same parameters | the model .. | train.py:10 | load"},
    {"!;" LOAD(WHOLE) "; " OF_OPTIMIZER "; " RESTORE("\"what\":\"model\"") "; " MOMENTUM(
         "3") "; " NEXT "; " DRAWN("2"),
     "checkpoint.resume", LS_PASS, ""},
    {"!;" RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":0,\"missing\":3,"
                  "\"unexpected\":3") "; " ANEW "; " DRAWN("0"),
     "checkpoint.resume", LS_FAIL, "strict=False"},
    {"!;" RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":1,\"missing\":2,"
                  "\"unexpected\":2,\"renamed\":2") "; " ANEW "; " DRAWN("0"),
     "checkpoint.resume", LS_FAIL,
     "rank 0: load_state_dict found 1 of the 3 parameters, and 2 names that the model does not "
     "have | names with \"module.\" (or another prefix) and without it"},
    /* a new head; a part of another model's file */
    {"!;" RESTORE("\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":2,\"missing\":1,"
                  "\"unexpected\":1") "; " ANEW "; " DRAWN("0"),
     "checkpoint.resume", LS_SKIP, ""},
    {"!;" LOAD(WHOLE) "; " RESTORE(
         "\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"own\":3") "; " ANEW
                                                                              "; " DRAWN("0"),
     "checkpoint.resume", CALLS_HINT,
     "rank 0, step 0: load_state_dict is given the model's own 3 parameters: it changes nothing | "
     "no name of the file fits .. | train.py:10 | compare"},
    {"!;" LOAD(WHOLE) "; " RESTORE(
         "\"what\":\"model\",\"which\":0,\"params\":3,\"taken\":3,\"own\":1") "; " ANEW
                                                                              "; " DRAWN("0"),
     "checkpoint.resume", LS_SKIP, ""},
};

CALLS_TEST(jobs_that_go_on_are_judged, resumed)

#define TAKEN(members) "!;" RESTORE("\"what\":\"model\"," members) "; " ANEW "; " DRAWN("0")
#define NUMBER(epoch) "\"numbers\":{\"epoch\":" epoch "},"
#define STANDS(at) "\"schedules\":[" at "],"
#define STEPS_TO(epoch) "F{\"autocast\":null} b O Z L{\"epoch\":" epoch "}"
#define ON_OF "goes on with the file's epoch"
#define LATER_STEP "F{\"autocast\":null} b Z; F{\"autocast\":null} b O Z"

static const calls_row limits[] = {
    {TAKEN("\"which\":0,\"params\":4,\"taken\":2,\"unexpected\":2,\"renamed\":2"),
     "checkpoint.resume", LS_SKIP, "nothing"},
    {TAKEN("\"which\":0,\"params\":3,\"taken\":0,\"unexpected\":0"), "checkpoint.resume", LS_SKIP,
     "nothing"},
    {TAKEN("\"params\":3,\"taken\":0,\"unexpected\":1"), "checkpoint.resume", LS_SKIP, "nothing"},
    {TAKEN("\"which\":0,\"params\":0,\"taken\":0,\"unexpected\":1"), "checkpoint.resume", LS_SKIP,
     "nothing"},
    {TAKEN("\"which\":0,\"params\":3,\"taken\":0,\"unexpected\":1"), "checkpoint.resume", LS_FAIL,
     "found 0 of the 3 parameters, and 1 names"},
    {TAKEN("\"which\":0,\"params\":3,\"taken\":3,\"own\":3"), "checkpoint.resume", NO_HINT, ""},
    /* which epoch a job begins with that has a file of epoch 2, 1 or 0 */
    {GOES_ON("", "", "0", NEXT, "3"), "checkpoint.resume", CALLS_HINT, ON_OF},
    {GOES_ON("", "", "0", NEXT, "4"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON(NUMBER("1"), "", "0", NEXT, "1"), "checkpoint.resume", CALLS_HINT, ON_OF},
    {GOES_ON(NUMBER("0"), "", "0", NEXT, "0"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON(NUMBER("\"2\""), "", "0", NEXT, "2"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON("\"numbers\":{\"best_epoch\":2},", "", "0", NEXT, "2"), "checkpoint.resume", NO_HINT,
     ""},
    {"!;{\"event\":\"load\",\"path\":\"last.pt\",\"step\":1," WHOLE
     "};" MOMENTUM("0") ";" NEXT ";" DRAWN("2"),
     "checkpoint.resume", NO_HINT, ""},
    /* an optimizer that has its turn later, and one that a scaler asks first */
    {GOES_ON("", "", "0", LATER_STEP, "2"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON("", "", "0", "F S B K P Z", "2"), "checkpoint.resume", CALLS_HINT, ON_OF},
    {GOES_ON("", "", "0", "F S B U Z", "2"), "checkpoint.resume", CALLS_HINT, ON_OF},
    {GOES_ON("", RESTORED("scaler"), "0", NEXT, "0"), "checkpoint.resume", CALLS_HINT,
     "goes on with the scaler's state"},
    /* a file of an optimizer that has not stepped; of two, of which one has; of two kinds */
    {GOES_ON("\"entries\":[0],", "", "0", NEXT, "2"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON("\"entries\":[0,1],", "", "0", NEXT, "2"), "checkpoint.resume", CALLS_HINT, ON_OF},
    {GOES_ON("\"settings\":[[\"betas\"],[\"momentum\"]],", "", "0", NEXT, "2"), "checkpoint.resume",
     CALLS_HINT, ON_OF},
    /* where the schedule of the file stands */
    {GOES_ON(STANDS("1"), OF_OPTIMIZER ";", "3", STEPS_TO("1"), "2"), "checkpoint.resume",
     CALLS_HINT, "stands at 1, and the job's own at 1"},
    {GOES_ON(STANDS("1"), OF_OPTIMIZER ";", "3", STEPS_TO("2"), "2"), "checkpoint.resume", NO_HINT,
     ""},
    {GOES_ON(STANDS("0"), OF_OPTIMIZER ";", "3", STEPS_TO("0"), "2"), "checkpoint.resume", NO_HINT,
     ""},
    {GOES_ON(STANDS("2,2"), OF_OPTIMIZER ";", "3", ANEW, "2"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON("", "", "3", ANEW, "0"), "checkpoint.resume", NO_HINT, ""},
    {GOES_ON("", "", "3", ANEW, "2"), "checkpoint.resume", CALLS_HINT, "the job's own at 1"},
    {GOES_ON("", OF_OPTIMIZER ";", "3", ANEW "; F{\"autocast\":null} b O Z L{\"class\":\"A\"}",
             "2"),
     "checkpoint.resume", NO_HINT, ""},
    /* the order of the first epoch: of a sampler that does not shuffle, of a file of epoch 1 or 0
     */
    {GOES_ON("", OF_OPTIMIZER ";", "3", NEXT, "0,\"shuffle\":false"), "checkpoint.resume", NO_HINT,
     ""},
    {GOES_ON(NUMBER("1"), OF_OPTIMIZER ";", "3", NEXT, "0"), "checkpoint.resume", CALLS_HINT,
     "with epoch 1, and its sampler draws the order of epoch 0"},
    {GOES_ON(NUMBER("0"), OF_OPTIMIZER ";", "3", NEXT, "0"), "checkpoint.resume", NO_HINT, ""},
    /* weights that came into another model later, or where the optimizer began anew */
    {"!;" LOAD(WHOLE) "; " RESTORE("\"what\":\"model\",\"like\":0") "; " MOMENTUM(
         "3") "; " NEXT "; " DRAWN("2"),
     "checkpoint.resume", NO_HINT, ""},
    {"!;" LOAD(WHOLE) "; " OF_OPTIMIZER "; " MOMENTUM("3") "; " NEXT "; " DRAWN(
         "2") ";"
              "{\"event\":\"restore\",\"step\":1,\"what\":\"model\",\"like\":0}",
     "checkpoint.resume", NO_HINT, ""},
    {GOES_ON("", OF_OPTIMIZER "; " RESTORE("\"what\":\"model\",\"like\":0") ";", "3", NEXT, "2"),
     "checkpoint.resume", NO_HINT, ""},
    /* the second rank alone */
    {"!;" LOAD(WHOLE) "; " OF_MODEL "; " OF_OPTIMIZER
                      "; 0:" MOMENTUM("3") "; 1:" MOMENTUM("0") "; " NEXT "; " DRAWN("2"),
     "checkpoint.resume", LS_FAIL, "rank 1: an optimizer's state was loaded, and optimizer 0"},
};

CALLS_TEST(jobs_go_on_up_to_a_limit, limits)

/* Weights alone, and a count of steps that goes on from the file's, or anew. */
#define COUNTS(name, file, next)                                                                  \
    "!;" LOAD(                                                                                    \
        "\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"entries\":[3],\"numbers\":{\"" name \
        "\":" file                                                                                \
        "}") ";" OF_MODEL                                                                         \
             ";" MOMENTUM(                                                                        \
                 "0") "; 4x F{\"autocast\":null} b O Z; "                                         \
                      "{\"event\":\"save\",\"at\":\"train.py:50\",\"path\":\"next.pt\",\"step\":" \
                      "4,\"what\":{\"model\":[\"m\"],\"optimizer\":[\"o\"]},\"numbers\":{\"" name \
                      "\":" next "}}"
/* Of a job without a sampler, what it writes says which epoch it is in. */
#define EPOCH(restore, state, path, numbers)                               \
    "!;" LOAD(WHOLE) ";" restore ";" MOMENTUM(                             \
        state) "; F{\"autocast\":null} b O Z; =RandomSampler 40 20 0 1 3 " \
               "\"sampler_epoch\":null,\"steps\":[1,1],; "                 \
               "{\"event\":\"save\",\"step\":1,\"path\":\"" path           \
               "\",\"what\":{\"optimizer\":[\"o\"]},\"numbers\":{" numbers "}}"
#define TAKEN_UP(restore, path, epoch) \
    EPOCH(restore, "3", path, "\"best_epoch\":0,\"epoch\":" epoch)
#define WEIGHTS                                                            \
    "!;" MOMENTUM("0") "; 0:" SAVE "\"path\":\"best.pt\",\"what\":{" MODEL \
                       ",\"epoch\":[\"epoch\"]}};"
#define SCALER_LOADED(which)                                      \
    "{\"event\":\"restore\",\"what\":\"scaler\",\"which\":" which \
    ",\"step\":0,\"at\":\"train.py:11\"}; 2x F S B K P Z"

/* A job that goes on in its own process: optimizers of that line with that state, the file that is
 * loaded, what is restored, the second loader and its epoch. */
#define OPTIMIZER_OF(number, line, state)                                                         \
    "{\"event\":\"optimizer\",\"optimizer\":" number ",\"class\":\"torch.optim.AdamW\",\"rule\":" \
    "\"adamw\",\"at\":\"train.py:" line "\",\"state\":" state                                     \
    ",\"groups\":[{\"params\":[\"fc.weight\"]}]};"
#define PASS_OF(loader, epoch, first, last)                                              \
    "{\"event\":\"data\",\"loader\":" loader ",\"trained\":true,\"at\":\"train.py:30\"," \
    "\"sampler_epoch\":" epoch ",\"steps\":[" first "," last "]};"
#define AGAIN(line, state, path, entries, restored, loader, epoch)                             \
    "!;" OPTIMIZER_OF("0", "7", "0") "3x F b O Z; " PASS_OF(                                   \
        "0", "2", "1",                                                                         \
        "3") "0: " SAVE "\"path\":\"last.pt\",\"what\":{" MODEL ",\"optimizer\":[\"o\"]}};"    \
             "{\"event\":\"load\",\"at\":\"train.py:60\",\"path\":\"" path                     \
             "\",\"step\":3,\"entries\":[" entries "],\"what\":{" MODEL                        \
             ",\"optimizer\":[\"o\"]}};"                                                       \
             "{\"event\":\"restore\",\"what\":\"model\",\"step\":3};" restored OPTIMIZER_OF(   \
                 "1", line, state) "3x F b O{\"optimizer\":1} Z; " PASS_OF(loader, epoch, "4", \
                                                                           "6")

static const calls_row again[] = {
    {AGAIN("7", "0", "last.pt", "3", "", "1", "3"), "checkpoint.resume", LS_FAIL,
     "rank 0, step 3: the job goes on from last.pt with its weights and epoch, and its new "
     "optimizer "
     "(torch.optim.AdamW) begins without the state that the file holds | .. | train.py:60 | call"},
    /* restored; with state; another line, file, loader, epoch; a file without moments */
    {AGAIN("7", "0", "last.pt", "3", "{\"event\":\"restore\",\"what\":\"optimizer\",\"step\":3};",
           "1", "3"),
     "checkpoint.resume", LS_PASS, ""},
    {AGAIN("7", "3", "last.pt", "3", "", "1", "3"), "checkpoint.resume", LS_PASS, ""},
    {AGAIN("8", "0", "last.pt", "3", "", "1", "3"), "checkpoint.resume", LS_PASS, ""},
    {AGAIN("7", "0", "best.pt", "3", "", "1", "3"), "checkpoint.resume", LS_PASS, ""},
    {AGAIN("7", "0", "last.pt", "0", "", "1", "3"), "checkpoint.resume", LS_PASS, ""},
    {AGAIN("7", "0", "last.pt", "3", "", "0", "3"), "checkpoint.resume", LS_PASS, ""},
    {AGAIN("7", "0", "last.pt", "3", "", "1", "2"), "checkpoint.resume", LS_PASS, ""},
};

CALLS_TEST(a_process_goes_on_from_its_file, again)

static const calls_row counts[] = {
    {COUNTS("iter_num", "40", "44"), "checkpoint.resume", CALLS_HINT,
     "goes on with the file's count of steps", 1},
    {COUNTS("global_step", "40", "44"), "checkpoint.resume", CALLS_HINT,
     "goes on with the file's count of steps", 1},
    {COUNTS("iter_num", "40", "4"), "checkpoint.resume", LS_PASS, "", 1},
    {COUNTS("iter_num", "40", "40"), "checkpoint.resume", LS_PASS, "", 1},
    {COUNTS("iter_num", "40", "41"), "checkpoint.resume", CALLS_HINT, "count of steps", 1},
    {COUNTS("iter_num", "1", "6"), "checkpoint.resume", CALLS_HINT, "count of steps", 1},
    {COUNTS("iter_num", "1", "5"), "checkpoint.resume", NO_HINT, "", 1},
    {COUNTS("iter_num", "0", "6"), "checkpoint.resume", NO_HINT, "", 1},
    {COUNTS("iter_num", "40", "\"44\""), "checkpoint.resume", NO_HINT, "", 1},
    {COUNTS("config.max_iters", "40", "44"), "checkpoint.resume", LS_PASS, "", 1},
    {COUNTS("best_step", "40", "44"), "checkpoint.resume", LS_PASS, "", 1},
    {COUNTS("warmup_steps", "40", "44"), "checkpoint.resume", LS_PASS, "", 1},
    {COUNTS("size", "40", "44"), "checkpoint.resume", LS_PASS, "", 1},
    /* a job that takes up an optimizer, or the file that it writes itself, and counts from 1 again
     */
    {TAKEN_UP(OF_OPTIMIZER, "other.pt", "1"), "checkpoint.resume", CALLS_HINT,
     "with epoch 2, and epoch 1 in the next file | the epoch of the file is not taken up .. | "
     "train.py:9 | begin",
     1},
    {TAKEN_UP(OF_MODEL, "last.pt", "1"), "checkpoint.resume", CALLS_HINT, "not taken up", 1},
    {TAKEN_UP(OF_MODEL, "other.pt", "1"), "checkpoint.resume", LS_PASS, "", 1},
    {TAKEN_UP(OF_OPTIMIZER, "other.pt", "3"), "checkpoint.resume", LS_PASS, "", 1},
    /* the epoch that ended, and that which begins */
    {TAKEN_UP(OF_OPTIMIZER, "other.pt", "2"), "checkpoint.resume", LS_PASS, "", 1},
    {EPOCH(OF_MODEL, "0", "a", "\"epoch\":1"), "checkpoint.resume", LS_PASS, "", 1},
    {EPOCH(OF_MODEL, "0", "a", "\"epoch\":3"), "checkpoint.resume", CALLS_HINT, "", 1},
    {EPOCH(OF_MODEL, "0", "a", "\"best_epoch\":9,\"epoch\":1"), "checkpoint.resume", NO_HINT, "",
     1},
    /* files without moments, and files to go on from */
    {WEIGHTS "3x F{\"autocast\":null} b O Z", "checkpoint.resume", LS_WEAK,
     "best.pt holds a model and its epoch, and no file holds the optimizer: enough to evaluate, "
     "not to go on | optimizer.state_dict() is not saved .. | train.py:50 | add"},
    {WEIGHTS
     "0:" SAVE
     "\"path\":\"last.pt\",\"what\":{\"optimizer\":[\"o\"]}}; 3x F{\"autocast\":null} b O Z",
     "checkpoint.resume", LS_PASS, ""},
    /* a scaler whose state was loaded, and another one that scales */
    {SCALER_LOADED("0"), "checkpoint.resume", LS_SKIP, ""},
    {SCALER_LOADED("1"), "checkpoint.resume", LS_FAIL,
     "rank 0: a scaler's state was loaded, and another scaler is used | the GradScaler was built "
     "anew .. | train.py:11 | call"},
};

CALLS_TEST(counts_and_parts_go_on, counts)

/* Weights that were to be kept, and were trained on; those of the same step may have been changed
 * in place, averaged over the ranks, say. */
#define KEPT(made) "2x F S B K P Z; " OWN(made)
#define VALIDATED(step, param) \
    "{\"event\":\"validated\",\"step\":" step ",\"model\":0,\"param\":\"" param "\"}; "
#define CHOSEN(a, b) "!; " VALIDATED(a, "77") VALIDATED(b, "78")
#define AS_STEPPED "\"made\":1,\"bits\":\"0000000000000002\","
#define OWN(made)                                                                                \
    "{\"event\":\"restore\",\"what\":\"model\",\"which\":0,\"step\":2,\"params\":3,\"taken\":3," \
    "\"own\":3," made "\"at\":\"train.py:70\"}"

static const calls_row own_weights[] = {
    {KEPT(""), "checkpoint.resume", CALLS_HINT,
     "rank 0, step 2: load_state_dict is given the model's own 3 parameters .. come back to are "
     "trained on | train.py:70 | keep"},
    {KEPT("\"made\":1,"), "checkpoint.resume", CALLS_HINT,
     "come back to are trained on | train.py:70"},
    {KEPT("\"made\":2,"), "checkpoint.resume", LS_SKIP, "nothing was saved or resumed"},
    /* filled in place behind the step that makes an optimizer's state */
    {"2x O Z; " OWN("\"made\":0,") "; 2x F S B K P Z", "checkpoint.resume", LS_SKIP, "nothing was"},
    /* chosen behind a validation, and loaded once as they are: certain; changed since the last
     * step, of no validation, or loaded again and again */
    {CHOSEN("1", "2") KEPT(AS_STEPPED), "checkpoint.resume", LS_FAIL, "come back to are trained on",
     1},
    {CHOSEN("1", "2") KEPT("\"made\":1,\"bits\":\"5\","), "checkpoint.resume", CALLS_HINT, "", 1},
    {CHOSEN("1", "1") KEPT(AS_STEPPED), "checkpoint.resume", CALLS_HINT, "", 1},
    {CHOSEN("2", "2") KEPT(AS_STEPPED), "checkpoint.resume", CALLS_HINT, "", 1},
    {CHOSEN("1", "2") KEPT(AS_STEPPED) "; " OWN(AS_STEPPED), "checkpoint.resume", CALLS_HINT, "",
     1},
};

CALLS_TEST(a_model_given_its_own_weights_is_caught, own_weights)

TEST_MAIN("observe_checkpoints", .timeout_s = 120)
