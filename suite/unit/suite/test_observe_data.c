/* The rules of data on invented jobs: right practices pass, mistakes are caught with their cause,
 * and where nothing shows it they say so. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

/* ---- data ------------------------------------------------------------------------------------ */

/* Samples of eight indices, the same on both ranks. */
#define CONTENT                                                                              \
    "\"content\":[[0,\"a\"],[1,\"b\"],[2,\"c\"],[3,\"d\"],[4,\"e\"],[5,\"f\"],[6,\"g\"],[7," \
    "\"h\"]],"
#define ALL_ONE                                                                              \
    "\"content\":[[0,\"a\"],[1,\"a\"],[2,\"a\"],[3,\"a\"],[4,\"a\"],[5,\"a\"],[6,\"a\"],[7," \
    "\"a\"]],"

/* Sixteen samples: of four classes in turn, and of one after the other. */
#define CLASS(first, a, b, c, d)                                                                \
    "[" #first "0,\"x\"," #a "],[" #first "1,\"x\"," #b "],[" #first "2,\"x\"," #c "],[" #first \
    "3,\"x\"," #d "]"
#define SORTED                                                                            \
    "\"shuffle\":false,\"classified\":true,\"content\":[" CLASS(1, 0, 0, 0, 0) "," CLASS( \
        2, 1, 1, 1, 1) "," CLASS(3, 2, 2, 2, 2) "," CLASS(4, 3, 3, 3, 3) "],"
#define MIXED                                                                             \
    "\"shuffle\":false,\"classified\":true,\"content\":[" CLASS(1, 0, 1, 2, 3) "," CLASS( \
        2, 0, 1, 2, 3) "," CLASS(3, 0, 1, 2, 3) "," CLASS(4, 0, 1, 2, 3) "],"

/* Ranks with equal inputs, and with others. */
#define SAME "2x (F{\"input\":\"11\"} S B K P Z; F{\"input\":\"22\"} S B K P Z);"
#define OWN "4x F S B K P Z;"
#define IN_PARTS "!\"kind\":\"plain\",\"name\":\"FSDPNet\",;"
/* A pass of two ranks: what each draws. */
#define ONCE(sampler, zero, mix, one, other, members) \
    "0: =" sampler " " zero " " mix " " members "; 1: =" sampler " " one " " other " " members ";"
/* And a second pass, whose mix is `next`. */
#define PASSES(sampler, zero, mix, one, other, next, members) \
    ONCE(sampler, zero, mix, one, other, members) ONCE(sampler, zero, next, one, next, members)
/* Of two ranks that share 40 samples. */
#define HALVES(next, members) \
    PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 1 2", "3", next, members)
#define HALF_PASS ONCE("DistributedSampler", "40 20 0 2", "3", "40 20 1 2", "3", "")

#define GAVE "A{\"op\":\"all_gather\",\"elements\":8,\"gave\":\"a\"}"
#define GATHERED_OF(rank, input) "2x (" rank ": F{\"input\":\"" input "\"} " GAVE " b O Z);"
#define GATHERED(backward) "2x (F{\"input\":\"11\"} " GAVE " " backward " O Z);"

/* Passes of two ranks, a rule and what it says. */
static const calls_row drawings[] = {
    {OWN HALVES("7", ""), "data.disjoint", LS_PASS, "indices of 2 ranks disjoint in 2 passes |"},
    {OWN "=DistributedSampler 132 2 0 66 1 ", "data.disjoint", LS_FAIL,
     "pass 0: 130 of 132 indices are on a further rank", CALLS_RANKS},
    {OWN HALVES("7", ""), "data.covered", LS_PASS, "all indices were drawn in 2 whole passes |"},
    {OWN HALVES("7", ""), "data.shuffled", LS_PASS,
     "1 passes in another order than the one before |"},
    {OWN PASSES("DistributedSampler", "39 20 0 2", "3", "39 20 1 2", "3", "7", ""), "data.disjoint",
     LS_PASS, "2 passes"}, /* padded: 0 is drawn twice */
    {OWN PASSES("DistributedSampler", "41 20 0 2", "3", "41 20 1 2", "3", "7", ""), "data.covered",
     LS_PASS, "2 whole"}, /* drop_last */
    {SAME PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "7",
                 "\"sampler_rank\":0,"),
     "data.disjoint", LS_FAIL,
     "pass 0: 20 of 40 indices are on a further rank, too (index 0 on ranks 0 and 1; "
     "DistributedSampler) | DistributedSampler was given rank=0 on ranks 0 and 1 .. | train.py:18 "
     "| leave"},
    /* members of an ensemble, whose outputs the loss compares; a gather behind the backward */
    {GATHERED("b")
         PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "7", "\"replicas\":1,"),
     "data.disjoint", LS_WEAK, "unless they are members of an ensemble for the same samples"},
    {GATHERED_OF("0", "11") GATHERED_OF("1", "12")
         PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "7", "\"replicas\":1,"),
     "data.disjoint", LS_FAIL, "num_replicas=1"},
    {"2x (F{\"input\":\"11\"} b " GAVE " O Z);" PASSES("DistributedSampler", "40 20 0 2", "3",
                                                       "40 20 0 2", "3", "7", "\"replicas\":1,"),
     "data.disjoint", LS_FAIL, "num_replicas=1"},
    {OWN "0: =DistributedSampler 40 20 0 2 3 ; 1: =DistributedSampler 40 20 0 2 9 "
         "\"sampler_epoch\":4,; 0: =DistributedSampler 40 20 0 2 7 ; 1: =DistributedSampler 40 20 "
         "0 2 7 \"sampler_epoch\":4,",
     "data.disjoint", LS_FAIL,
     "set_epoch was called with different values: 0 and 4 | train.py:18 | call"},
    {OWN PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "9", "7", ""), "data.disjoint",
     LS_FAIL, "different seeds"},
    {OWN PASSES("DistributedSampler", "80 20 0 4", "3", "80 20 1 4", "3", "7", "\"replicas\":4,"),
     "data.covered", LS_FAIL,
     "pass 0: 40 of 80 indices (those that are 0 modulo 1) are on no rank | DistributedSampler was "
     "given num_replicas=4, the job has 2 ranks | train.py:18 | leave"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "9", ""), "data.disjoint",
     LS_WEAK,
     "pass 0: 20 of 40 indices are on several ranks (RandomSampler), but batches differ .. | "
     "train.py:18 | if all ranks open the same data"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "9", CONTENT), "data.disjoint",
     LS_FAIL, "no DistributedSampler"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "9", ALL_ONE), "data.disjoint",
     LS_WEAK, "its own data set"}, /* all samples are one: made up */
    {SAME PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "3", "9", ""), "data.disjoint",
     LS_FAIL, "no DistributedSampler"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "3", "9", ""), "data.disjoint",
     LS_WEAK, "its own data set"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "24 24 0 1", "7", "9", ""), "data.disjoint",
     LS_SKIP, "different lengths"},
    {OWN PASSES("WeightedRandomSampler", "11 20 0 1", "3", "11 20 0 1", "7", "9", ""),
     "data.disjoint", LS_SKIP, "with replacement"},
    {OWN PASSES("RASampler", "60 20 0 2", "3", "60 20 0 3", "3", "7", ""), "data.disjoint", LS_WEAK,
     "(RASampler)"},
    {OWN PASSES("OwnSampler", "40 20 0 1", "3", "40 20 20 1", "3", "7", ""), "data.disjoint",
     LS_PASS, "2 passes"},
    {OWN PASSES("OwnSampler", "40 10 0 1", "3", "40 10 20 1", "3", "7", ""), "data.covered",
     LS_SKIP, "script's own"},
    /* ranks that hold parts of a model and divide the data among all of them, or do not */
    {IN_PARTS OWN HALVES("3", "\"replicas\":2,"), "data.shuffled", LS_FAIL, "set_epoch"},
    {IN_PARTS OWN HALVES("3", "\"replicas\":1,"), "data.shuffled", LS_SKIP, "no model"},
    {OWN HALVES("3", ""), "data.shuffled", LS_FAIL,
     "rank 0: pass 1 draws its indices in the order of the pass before, although "
     "DistributedSampler shuffles | set_epoch was not called between the passes: the sampler's "
     "epoch is 0 in both | train.py:18 | call"},
    {OWN HALVES("3", "\"whole\":false,\"given\":1,"), "data.shuffled", LS_FAIL,
     "| both passes were left after their first batch: iter(loader) begins a pass again at each "
     "call | train.py:18 | call iter(loader) once"},
    /* a pass that was cut, and begun again behind a restore; one that was whole */
    {OWN "{\"event\":\"restore\",\"what\":\"model\",\"step\":2};" HALVES(
         "3", "\"whole\":false,\"steps\":[3,3],"),
     "data.shuffled", LS_WEAK, "one pass"},
    {OWN "{\"event\":\"restore\",\"what\":\"model\",\"step\":2};" HALVES("3", "\"steps\":[3,3],"),
     "data.shuffled", LS_FAIL, "set_epoch was not called"},
    {OWN HALVES("3", "\"shuffle\":false,"), "data.shuffled", LS_WEAK,
     "rank 0: 1 of 1 passes draw their indices in the order of the pass before "
     "(DistributedSampler) | the training data are not shuffled .. | train.py:18 | if it is not "
     "meant: DistributedSampler"},
    {OWN HALVES("7", "\"shuffle\":false,"), "data.shuffled", LS_SKIP, "not asked to shuffle"},
    {OWN HALVES("7", SORTED), "data.shuffled", CALLS_HINT,
     "rank 0: a pass that is trained on has the order of the data set, which is sorted by class: "
     "16 samples of 4 classes, one after the other | nothing shuffles: each batch has samples of "
     "one class .. | train.py:18 | shuffle=True"},
    {OWN HALVES("7", MIXED), "data.shuffled", LS_SKIP, "not asked to shuffle"},
    {OWN HALF_PASS, "data.shuffled", LS_WEAK, "one pass"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "3", ""), "data.shuffled",
     LS_FAIL,
     "although RandomSampler shuffles | the sampler's generator is seeded alike before each pass, "
     "its epoch stays the same | train.py:18 | seed"},
    {OWN PASSES("DistributedSampler", "80 20 0 2", "3", "80 20 1 2", "3", "7", "\"whole\":false,"),
     "data.covered", LS_WEAK, "reached its end"},
    {OWN PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "3",
                "\"trained\":false,"),
     "data.disjoint", LS_UNSUPPORTED, "no pass over a DataLoader"},
    {SAME ONCE("RandomSampler", "40 20 0 1", "3", "40 20 0 1", "3",
               "\"steps\":[1,40],\"count\":2,"),
     "data.disjoint", LS_UNSUPPORTED, "no pass over a DataLoader"}, /* a look at one batch */
    /* each rank trains another model by itself, which is in no wrapper; then one that is */
    {"3x F{\"model\":1,\"input\":\"1\"} S B K P Z; F S B K P Z;" PASSES(
         "RandomSampler", "20 20 0 1", "3", "20 20 0 1", "3", "9", "\"steps\":[1,3],"),
     "data.disjoint", LS_UNSUPPORTED, "no pass over a DataLoader"},
    {"3x F{\"model\":1,\"input\":\"1\"} S B K P Z; F S B K P Z;" PASSES(
         "RandomSampler", "20 20 0 1", "3", "20 20 0 1", "3", "9", "\"steps\":[1,4],"),
     "data.disjoint", LS_FAIL, "no DistributedSampler"},
    {OWN PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "3",
                "\"indices\":false,"),
     "data.disjoint", LS_SKIP, "no indices"},
    {SAME HALVES("7", ""), "data.distinct", LS_FAIL,
     "ranks 0 and 1 have the same inputs in all of 4 training forwards | all ranks train on the "
     "same batches: no DistributedSampler .. | train.py:18 | give"},
    {OWN HALVES("7", ""), "data.distinct", LS_PASS, "inputs differ"},
    {OWN HALVES("7", "\"workers\":2,\"base_seed\":5,"), "data.distinct", LS_PASS,
     "inputs differ between 2 ranks |  | train.py:18 | the workers of all ranks have the same"},
    {OWN
     "0: =DistributedSampler 40 20 0 2 3 \"workers\":2,\"base_seed\":5,\"at\":\"train.py:16\",; "
     "1: =DistributedSampler 40 20 1 2 3 \"workers\":2,\"base_seed\":5,",
     "data.distinct", LS_PASS, "| train.py:16 | the workers of all ranks have the same"},
};

CALLS_TEST(data_are_judged, drawings)

/* Places of what a pass draws from, and the rule that names one of them. */
static const calls_row built[] = {
#define BUILT "\"built\":\"train.py:12\",\"sampler_at\":\"train.py:11\",\"cut_at\":\"train.py:10\","
    {OWN ONCE("RandomSampler", "40 40 0 1", "3", "40 40 0 1", "7", BUILT CONTENT), "data.disjoint",
     LS_FAIL, "train.py:12"},
    {OWN ONCE("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3",
              BUILT "\"sampler_rank\":0,"),
     "data.disjoint", LS_FAIL, "train.py:11"},
    {OWN ONCE("DistributedSampler", "40 40 0 1", "3", "40 40 0 1", "3",
              BUILT "\"replicas\":1,\"sampler_rank\":0,"),
     "data.disjoint", LS_FAIL, "num_replicas=1, the job has 2 ranks | train.py:11"},
    {OWN ONCE("DistributedSampler", "40 10 0 4", "3", "40 10 1 4", "3", BUILT "\"replicas\":4,"),
     "data.covered", LS_FAIL, "train.py:11"},
    /* a framework builds them anew: its own file says nothing of the script */
    {OWN "0: =DistributedSampler 40 20 0 2 3 "
         "\"built\":\"/lib/frame.py:3\",\"sampler_at\":\"/lib/frame.py:2\",\"sampler_rank\":0,; 1: "
         "=DistributedSampler 40 20 0 2 3 \"sampler_rank\":0,",
     "data.disjoint", LS_FAIL, "train.py:18"},
#undef BUILT
};

CALLS_TEST(data_are_named_where_they_are_built, built)

#define ORDER(length, zero, mix, one, next) \
    OWN PASSES("DistributedSampler", length zero, mix, length one, mix, next, "")
#define OF(sampler, zero, one, members) OWN ONCE(sampler, zero, "1", one, "1", members)
#define SORT_OF(members, a, b, c) \
    members "\"shuffle\":false,\"classified\":true,\"content\":[" a "," b "," c "],"

#define NO_EPOCH "\"sampler_epoch\":null,"

/* What is just allowed, and one more. */
#define GIVEN(rank, batches, from) \
    rank ": =DistributedSampler 16 8 0 2 3 \"given\":" batches ",\"steps\":[" from ",20],"
/* Two loaders that a loop goes through side by side. */
#define SIDES(one, mix, other, mix_of_other, steps)                                    \
    "=DistributedSampler 16 8 0 2 " mix " \"loader\":" one ",\"steps\":[" steps "],; " \
    "=DistributedSampler 16 8 0 2 " mix_of_other " \"loader\":" other ",\"steps\":[" steps "],"

static const calls_row limits[] = {
    {OF("DistributedSampler", "40 20 0 1", "40 20 19 1", ""), "data.disjoint", LS_PASS,
     "disjoint in 1 passes"},
    {OF("DistributedSampler", "40 20 0 1", "40 20 18 1", ""), "data.disjoint", LS_FAIL,
     "pass 0: 2 of 40 indices are on a further rank, too (index 18 on ranks 0 and 1"},
    {OF("OwnSampler", "40 20 0 1", "40 20 16 1", ""), "data.disjoint", LS_PASS, "in 1 passes"},
    {OF("OwnSampler", "40 20 0 1", "40 20 15 1", ""), "data.disjoint", LS_WEAK, "5 of 40 indices"},
    {OF("RandomSampler", "40 20 0 1", "40 20 19 1", ""), "data.disjoint", LS_WEAK, "1 of 40"},
    {OF("RandomSampler", "40 20 0 1", "40 20 20 1", ""), "data.disjoint", LS_PASS, "in 1 passes"},
    {OF("OwnSampler", "18 20 0 1", "18 20 0 1", ""), "data.disjoint", LS_SKIP, "replacement"},
    {OF("OwnSampler", "19 20 0 1", "19 20 0 1", ""), "data.disjoint", LS_WEAK, "on several ranks"},
    {OF("DistributedSampler", "44 20 0 1", "44 20 20 1", ""), "data.covered", LS_PASS, "1 whole"},
    {OF("DistributedSampler", "45 20 0 1", "45 20 20 1", ""), "data.covered", LS_FAIL,
     "5 of 45 indices (those that are 0 modulo 1) are on no rank | the sampler leaves a part"},
    {OF("DistributedSampler", "40 20 0 1", "40 20 0 1", ""), "data.covered", LS_FAIL,
     "20 of 40 indices (those that are 0 modulo 1) are on no rank | several ranks read the same"},
    {OF("DistributedSampler", "90 20 0 2", "90 20 1 2", "\"modulus\":2,"), "data.covered", LS_FAIL,
     "5 of 45 indices (those that are 0 modulo 2)"},
    {OF("DistributedSampler", "45 20 0 1", "45 20 20 1", "\"batch\":3,"), "data.covered", LS_PASS,
     "1 whole"},
    {OF("DistributedSampler", "40 20 0 2", "40 20 1 2", "\"steps\":[1,81],"), "data.disjoint",
     LS_PASS, "1 passes"},
    {OF("DistributedSampler", "40 20 0 2", "40 20 1 2", "\"steps\":[1,82],"), "data.disjoint",
     LS_UNSUPPORTED, "no pass over a DataLoader"},
    {OF("DistributedSampler", "42 20 0 1", "42 20 20 1", "\"batch\":0,"), "data.covered", LS_PASS,
     "1 whole"},
    {OF("DistributedSampler", "43 20 0 1", "43 20 20 1", "\"batch\":0,"), "data.covered", LS_FAIL,
     "3 of 43 indices"},
    {OWN "=RandomSampler 40 20 0 1 3 ", "data.disjoint", LS_SKIP, "one rank", 1},
    {OWN "=RandomSampler 40 20 0 1 3 ", "data.once", LS_SKIP, "one rank, and no stream", 1},
    {OWN "0: =RandomSampler 40 20 0 1 3 ", "data.once", LS_SKIP, "seen on every rank"},
    {ORDER("16 ", "8 0 2", "3", "8 1 2", "3"), "data.shuffled", LS_FAIL, "rank 0: pass 1 draws"},
    /* passes that end on one rank before the other, and go on; that wait; the last; equal ones */
    {OWN GIVEN("0", "6", "1") "; " GIVEN("1", "5", "1") "; " GIVEN("0", "6", "7") "; " GIVEN(
         "1", "5", "6") "; 11x F S B K P Z",
     "order.steps", CALLS_HINT,
     "rank 0's pass 0 has 6 batches, rank 1's 5: from then on the ranks are in other passes .. | "
     "the data are not divided evenly"},
    {OWN GIVEN("0", "6", "1") "; " GIVEN("1", "5", "1") "; " GIVEN("0", "6", "7") "; " GIVEN(
         "1", "5", "7") "; 11x F S B K P Z",
     "order.steps", NO_HINT, ""},
    {OWN GIVEN("0", "6", "1") "; " GIVEN("1", "5", "1") "; 11x F S B K P Z", "order.steps", NO_HINT,
     ""},
    {OWN "2x (" GIVEN("0", "6", "1") "; " GIVEN("1", "6", "1") "); 11x F S B K P Z", "order.steps",
     NO_HINT, ""},
    /* two loaders in zip() */
    {OWN "=DistributedSampler 16 8 0 2 3 \"steps\":[1,4],; "
         "=DistributedSampler 16 8 0 2 3 \"loader\":1,\"steps\":[1,4],",
     "data.shuffled", LS_WEAK, "one pass"},
    {OWN SIDES("0", "3", "1", "5", "1,4") "; " SIDES("0", "5", "1", "7", "4,8"), "data.shuffled",
     LS_PASS, "2 passes"},
    {OWN SIDES("0", "3", "1", "5", "1,4") "; " SIDES("2", "5", "3", "7", "4,8"), "data.shuffled",
     LS_PASS, "2 passes"},
    {OWN SIDES("0", "3", "1", "5", "1,4") "; " SIDES("2", "3", "3", "7", "4,8"), "data.shuffled",
     LS_FAIL, "rank 0: pass 2 draws"},
    {OWN SIDES("0", "3", "1", "5", "1,4") "; " SIDES("0", "7", "1", "5", "4,8"), "data.shuffled",
     LS_FAIL, "rank 0: pass 3 draws"},
    {OWN "=DistributedSampler 14 7 0 2 3 ; =DistributedSampler 14 7 0 2 3 ", "data.shuffled",
     LS_PASS, "1 passes"},
    {OWN "2x =DistributedSampler 14 7 0 2 3 \"count\":8,", "data.shuffled", LS_FAIL,
     "pass 1 draws"},
    /* the epoch of both passes, of one, and of the other */
    {OWN "2x =RandomSampler 40 20 0 2 3 ", "data.shuffled", LS_FAIL,
     "seeded alike before each pass, its epoch stays the same | train.py:18 | seed"},
    {OWN "=RandomSampler 40 20 0 2 3 " NO_EPOCH "; =RandomSampler 40 20 0 2 3 ", "data.shuffled",
     LS_FAIL, "seeded alike before each pass | train.py:18 | seed"},
    {OWN "=RandomSampler 40 20 0 2 3 ; =RandomSampler 40 20 0 2 3 " NO_EPOCH, "data.shuffled",
     LS_FAIL, "seeded alike before each pass | train.py:18 | seed"},
    {OWN "2x =DistributedSampler 14 7 0 2 3 \"count\":8,\"order\":\"\",", "data.shuffled", LS_PASS,
     ""},
    {OWN "2x =DistributedSampler 40 20 0 2 3 \"order\":\"\",", "data.shuffled", LS_FAIL, "pass 1"},
    {"F{\"model\":16,\"input\":\"11\"} F S B K P Z; F{\"model\":16,\"input\":\"22\"} F S B K P Z",
     "data.distinct", LS_PASS, "the inputs of this model are the same on all ranks"},
    {OWN "=DistributedSampler 40 20 0 2 3 ; =DistributedSampler 40 20 0 2 3 \"at\":\"train.py:9\",",
     "data.shuffled", LS_WEAK, "one pass"},
    {OWN "2x =DistributedSampler 40 20 0 2 3 ; =DistributedSampler 40 20 0 2 7 ", "data.shuffled",
     LS_FAIL, "rank 0: pass 1 draws"},
    {OWN "=DistributedSampler 40 20 0 2 3 ; 2x =DistributedSampler 40 20 0 2 7 ", "data.shuffled",
     LS_FAIL, "rank 0: pass 2 draws"},
    {OWN "2x (0: =DistributedSampler 40 20 0 2 3 ); 1: =DistributedSampler 40 20 0 2 3 ; 1: "
         "=DistributedSampler 40 20 0 2 7 ",
     "data.shuffled", LS_FAIL, "rank 0: pass 1 draws"},
    {OWN "2x (1: =DistributedSampler 40 20 0 2 3 ); 0: =DistributedSampler 40 20 0 2 3 ; 0: "
         "=DistributedSampler 40 20 0 2 7 ",
     "data.shuffled", LS_FAIL, "rank 1: pass 1 draws"},
#define BETWEEN "=RandomSampler 20 20 0 1 3 \"at\":\"train.py:9\",; "
    {OWN "=RandomSampler 40 20 0 2 3 ; " BETWEEN "=RandomSampler 40 20 0 2 7 ", "data.shuffled",
     LS_PASS, "1 passes in another order"},
    {OWN "=RandomSampler 40 20 0 2 3 ; " BETWEEN "=RandomSampler 40 20 0 2 3 ", "data.shuffled",
     LS_FAIL, "rank 0: pass 2 draws"},
#undef BETWEEN
    {OWN "3x =RandomSampler 40 20 0 2 3 \"shuffle\":false,", "data.shuffled", LS_WEAK,
     "2 of 2 passes draw their indices in the order of the pass before (RandomSampler) .. | if it "
     "is not meant: DataLoader(..., shuffle=True)"},
    {OWN "2x =RandomSampler 40 20 0 2 3 \"shuffle\":false,; =RandomSampler 40 20 0 2 7 "
         "\"shuffle\":false,",
     "data.shuffled", LS_SKIP, "not asked to shuffle"},
    /* sorted by class: the batch's size, fewer classes or samples, other orders, one pass */
    {OWN HALVES("7", "\"batch\":5," SORTED), "data.shuffled", CALLS_HINT, "16 samples of 4"},
    {OWN HALVES("7", "\"batch\":6," SORTED), "data.shuffled", LS_SKIP, ""},
    {OWN ONCE("DistributedSampler", "40 20 0 2", "3", "40 20 1 2", "3", SORTED), "data.shuffled",
     LS_SKIP, "not asked"},
    {OWN HALVES("7", "\"classified\":null," SORTED), "data.shuffled", LS_SKIP, ""},
    {OWN HALVES("7", "\"indices\":false," SORTED), "data.shuffled", LS_SKIP,
     "no pass with indices"},
    {OWN HALVES("7", SORT_OF("", CLASS(1, 0, 0, 0, 0), CLASS(2, 1, 1, 1, 1),
                             CLASS(3, 2, 2, 2, 2) "," CLASS(4, 2, 2, 2, 2))),
     "data.shuffled", CALLS_HINT, "16 samples of 3 classes"},
    {OWN HALVES("7", SORT_OF("", CLASS(1, 0, 0, 0, 0), CLASS(2, 1, 1, 1, 1),
                             CLASS(3, 1, 1, 1, 1) "," CLASS(4, 1, 1, 1, 1))),
     "data.shuffled", LS_SKIP, ""},
    {OWN HALVES("7", SORT_OF("", CLASS(1, 0, 0, 0, 0), CLASS(2, 1, 1, 1, 1),
                             CLASS(3, 2, 2, 2, 2) ",[40,\"x\",2],[41,\"x\",2],[42,\"x\",2]")),
     "data.shuffled", LS_SKIP, ""},
    {OWN HALVES("7", SORT_OF("", CLASS(1, 0, 0, 0, 1), CLASS(2, 1, 1, 2, 2),
                             CLASS(3, 2, 2, 3, 3) "," CLASS(4, 3, 3, 3, 4))),
     "data.shuffled", LS_SKIP, ""},
    {OWN HALVES("7", SORT_OF("", CLASS(2, 0, 0, 0, 0), CLASS(1, 1, 1, 1, 1),
                             CLASS(3, 2, 2, 2, 2) "," CLASS(4, 3, 3, 3, 3))),
     "data.shuffled", LS_SKIP, ""},
    {OWN HALVES("7", "\"sampler_at\":\"train.py:8\"," SORTED), "data.shuffled", CALLS_HINT,
     "| train.py:8 |"},
    {OWN HALVES("7", "\"workers\":0,\"base_seed\":5,"), "data.distinct", LS_PASS,
     "2 ranks |  |  | "},
    {OWN
     "0: =RandomSampler 40 20 0 1 3 \"workers\":2,\"base_seed\":5,; 1: =RandomSampler 40 20 20 1 3 "
     "\"workers\":2,\"base_seed\":6,",
     "data.distinct", LS_PASS, "2 ranks |  |  | "},
};

CALLS_TEST(data_are_judged_up_to_a_limit, limits)

static const calls_row others[] = {
    /* made up data */
    {"4x F{\"input\":\"11\"} S B K P Z", "data.distinct", LS_WEAK,
     "ranks 0 and 1 have the same input in all of 4 training forwards, and it never changes"},
    {"F{\"input\":\"11\"} S B K P Z; F{\"input\":\"22\"} S B K P Z", "data.distinct", LS_FAIL,
     "in all of 2 training forwards"},
    {"F{\"input\":\"11\"} S B K P Z", "data.distinct", LS_WEAK, "in all of 1 training forwards"},
    {"2x (0: F S B K P Z; 1: F{\"input\":\"2\"} S B K P Z; 2: F{\"input\":\"2\"} S B K P Z); (0: F "
     "S B K P Z; 1: F{\"input\":\"3\"} S B K P Z; 2: F{\"input\":\"3\"} S B K P Z)",
     "data.distinct", LS_FAIL, "ranks 1 and 2 have the same inputs in all of 3", 3},
    {"2x F{\"input\":\"11\"} S B K P Z; 2x F{\"input\":\"22\"} S B K P Z", "data.distinct", LS_FAIL,
     "the script draws them from the same seed .. | train.py:20 | seed"},
    /* the noise of a generator is drawn alike on all ranks, the data are not: no fault */
    {"2x (F{\"model\":1,\"input\":\"11\"} F S B K P Z; F{\"model\":1,\"input\":\"22\"} F S B K P "
     "Z)",
     "data.distinct", LS_PASS,
     "| train.py:20 | the inputs of this model are the same on all ranks: if they are drawn "
     "(noise)"},
    {"F{\"model\":1,\"input\":\"11\"} F S B K P Z; F{\"model\":2,\"input\":\"22\"} F S B K P Z",
     "data.distinct", LS_PASS, "inputs differ between 2 ranks |  |  | "},
    /* no forward is seen: equal losses, also of data that never change; one that differs; a sum */
    {"<\"loss\":9,> A b O Z; 2x <\"loss\":2,> b O Z; <\"loss\":3,> b O Z", "data.distinct", LS_WEAK,
     "losses of all ranks are equal to the bit in all of 3 steps | .. | train.py:21 | seed"},
    {"3x <\"loss\":2,> b O Z", "data.distinct", LS_WEAK, "no step has inputs on two ranks"},
    {"0: <\"loss\":2,> b O Z; 1: <\"loss\":3,> b O Z; <\"loss\":4,> b O Z", "data.distinct",
     LS_WEAK, "no step has inputs on two ranks"},
    {"2x <\"loss\":2,> A b O Z; <\"loss\":3,> A b O Z", "data.distinct", LS_WEAK, "no step has"},
    /* ranks of a group that share a model's parts have the same data by design */
    {"!\"world\":1,; 2x F{\"input\":\"11\"} b O Z; 2x F{\"input\":\"22\"} b O Z", "data.distinct",
     LS_SKIP, "over all ranks"},
    /* one process shuffles, too */
    {OWN "2x =RandomSampler 20 20 0 1 3 ", "data.shuffled", LS_FAIL, "seeded alike", 1},
};

CALLS_TEST(other_data_are_judged, others)

/* ---- models in parts ------------------------------------------------------------------------- */

/* What ranks 0 and 1 hold of a part before steps 1 and 2, of data that are divided or not. */
#define HELD(rank, step, part, bits)                                                 \
    rank ": {\"event\":\"parts\",\"optimizer\":0,\"step\":" step ",\"part\":\"" part \
         "\",\"count\":6,\"bits\":\"" bits "\"};"
#define SCALED(rank, factor)                                                         \
    rank ": {\"event\":\"parts\",\"optimizer\":0,\"step\":2,\"part\":\"0 of S(0)\"," \
         "\"count\":6,\"bits\":\"a\",\"factor\":" factor "};"
#define DIVIDED(replicas)                                                           \
    "{\"event\":\"data\",\"sampler\":\"DistributedSampler\",\"replicas\":" replicas \
    ",\"trained\":true,\"length\":64,\"count\":32};"
#define BY_PARTS(part, a, b, later, other) \
    HELD("0", "1", part, a)                \
    HELD("1", "1", part, b) HELD("0", "2", part, later) HELD("1", "2", part, other)
#define TELLS(elements) " A{\"elements\":" elements "}"

#define SPLIT(rank, trained, kept)                                                              \
    rank ": {\"event\":\"data\",\"at\":\"train.py:30\",\"cut_at\":\"train.py:9\","              \
         "\"sampler\":\"DistributedSampler\",\"replicas\":2,\"length\":20,\"trained\":" trained \
         ",\"part\":{\"length\":40,\"modulus\":1,\"kept\":[" kept "]}};"
#define LOW "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19"
#define HIGH "20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39"
#define MIDDLE "10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29"
#define ENDS "0,1,2,3,4,5,6,7,8,9,30,31,32,33,34,35,36,37,38,39"

static const calls_row splits[] = {
    {SPLIT("0", "true", LOW) SPLIT("0", "false", HIGH) SPLIT("1", "true", MIDDLE)
         SPLIT("1", "false", ENDS) "2x F S B K P Z",
     "data.once", LS_FAIL,
     "has 10 of 20 indices in common with that of rank 1, and DistributedSampler divides each of "
     "them among the ranks; it trains on 10 that rank 1 holds back for its evaluation | the data "
     "are split differently on each rank: what one rank holds back, another one trains on | "
     "train.py:9"},
    /* nothing is held back: parts that are filtered by each rank; or it is of another split */
    {SPLIT("0", "true", LOW) SPLIT("1", "true", MIDDLE) "2x F S B K P Z", "data.once", CALLS_HINT,
     "has 10 of 20"},
    {SPLIT("0", "true", LOW) SPLIT("1", "true", MIDDLE)
         SPLIT("1", "false", MIDDLE) "2x F S B K P Z",
     "data.once", CALLS_HINT, "has 10 of 20"},
    {SPLIT("0", "true", LOW) SPLIT("0", "false", HIGH) SPLIT("1", "true", LOW)
         SPLIT("1", "false", HIGH) "2x F S B K P Z",
     "data.once", LS_PASS, ""},
};

CALLS_TEST(splits_are_equal_on_all_ranks, splits)

static const calls_row held[] = {
    {SCALED("0", "0.5") SCALED("1", "0.4") "3x F b K O Z", "replicas.step", LS_FAIL,
     "step 2: the parts of one model's gradients are multiplied by 0.5 on rank 0, by 0.4 on rank 1 "
     "| each rank clips by the norm of what it holds: parts .. | train.py:24"},
    {SCALED("0", "0.5") SCALED("1", "0.4999") "3x F b O Z", "replicas.step", LS_PASS, ""},
    {SCALED("0", "0.5") HELD("1", "2", "0 of S(0)", "b") "3x F b O Z", "replicas.step", LS_PASS,
     ""},
    {DIVIDED("2") BY_PARTS("whole", "a", "a", "b", "c") "3x F b O Z", "replicas.step", LS_FAIL,
     "before step 2 ranks 0 and 1 hold other values in 6 parameters (whole) .. | parameters that "
     "came to the model behind fully_shard .. train.py"},
    {DIVIDED("2") BY_PARTS("0 of S(0)", "a", "a", "b", "c") "3x F b O Z", "replicas.step", LS_FAIL,
     "(0 of S(0)) .. | the mesh that the model is sharded over leaves ranks out"},
    {DIVIDED("2") BY_PARTS("whole", "a", "a", "b", "b") "3x F b O Z", "replicas.step", LS_PASS, ""},
    {DIVIDED("2") BY_PARTS("whole", "a", "b", "c", "d") "3x F b O Z", "replicas.step", LS_PASS, ""},
    {DIVIDED("4") BY_PARTS("whole", "a", "a", "b", "c") "3x F b O Z", "replicas.step", LS_PASS, ""},
    {BY_PARTS("whole", "a", "a", "b", "c") "3x F b O Z", "replicas.step", LS_PASS, ""},
    /* what the ranks exchange: losses, or what may be trained; behind the last step */
    {DIVIDED("2") BY_PARTS("whole", "a", "a", "b", "c") "3x (F b" TELLS("64") " O Z)",
     "replicas.step", LS_FAIL, ""},
    {DIVIDED("2") BY_PARTS("whole", "a", "a", "b", "c") "3x (F b" TELLS("65") " O Z)",
     "replicas.step", LS_PASS, ""},
    {DIVIDED("2") BY_PARTS("whole", "a", "a", "b", "c") "F b O Z; F b O Z" TELLS("65"),
     "replicas.step", LS_FAIL, ""},
};

CALLS_TEST(parts_of_models_stay_equal, held)

/* Sums over both ranks of squares of gradients, before the first step. */
#define SQUARED(rank, squares, hashes, factor)                                         \
    rank ": {\"event\":\"squares\",\"optimizer\":0,\"step\":1,\"at\":\"train.py:26\"," \
         "\"grad_squares\":[" squares "],\"grad_hashes\":[" hashes "],\"factor\":" factor "};"
#define HASHES "\"a\",\"b\""
#define SUMMED(squares, hashes, other, factor) \
    SQUARED("0", squares, hashes, factor) SQUARED("1", squares, other, factor) "3x F b K O Z"

#define FOUR(rank) SQUARED(rank, "4", "\"a\"", "0.25")

static const calls_row norms[] = {
    {SUMMED("1,1", HASHES, HASHES, "0.25"), "optimizer.clip", LS_FAIL,
     "step 1: gradients are clipped to 0.5 by a norm of 2; the model's is 1.41421, so that 0.3536 "
     "is left of it | .. what several hold in common counts once for each of them | train.py:26 | "
     "count it once"},
    {SUMMED("1,1", HASHES, "\"a\",\"c\"", "0.25"), "optimizer.clip", LS_FAIL,
     "by a norm of 2; the model's is 1.73205"},
    /* each rank holds other parts; the sum is divided; all that is in common is a bias */
    {SUMMED("1,1", HASHES, "\"c\",\"d\"", "0.25"), "optimizer.clip", LS_SKIP, ""},
    {SUMMED("1,1", HASHES, HASHES, "0.35355339"), "optimizer.clip", LS_SKIP, ""},
    {SUMMED("199,1", HASHES, "\"c\",\"b\"", "0.025"), "optimizer.clip", LS_SKIP, ""},
    {SUMMED("195,5", HASHES, "\"c\",\"b\"", "0.025"), "optimizer.clip", LS_FAIL, ""},
    /* nothing exceeds the limit; each rank by its own number; of another step */
    {SUMMED("1,1", HASHES, HASHES, "1"), "optimizer.clip", LS_SKIP, ""},
    {SQUARED("0", "1,1", HASHES, "0.25") SQUARED("1", "1,1", HASHES, "0.5") "F b O Z",
     "optimizer.clip", LS_SKIP, ""},
    {SQUARED("0", "1,1", HASHES, "0.25") "F b O Z", "optimizer.clip", LS_SKIP, ""},
    /* four times the squares: the sum may have been divided */
    {FOUR("0") FOUR("1") FOUR("2") FOUR("3") "3x F b K O Z", "optimizer.clip", LS_SKIP, "", 4},
};

CALLS_TEST(norms_count_what_is_in_common_once, norms)

TEST_MAIN("observe_data", .timeout_s = 120)
