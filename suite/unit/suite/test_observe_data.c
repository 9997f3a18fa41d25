/* The rules of data on invented jobs: right practices pass, mistakes are caught with their cause,
 * and where nothing shows it they say so. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

/* ---- data ------------------------------------------------------------------------------------ */

/* Samples of eight indices, the same on both ranks. */
#define CONTENT                                                                              \
    "\"content\":[[0,\"a\"],[1,\"b\"],[2,\"c\"],[3,\"d\"],[4,\"e\"],[5,\"f\"],[6,\"g\"],[7," \
    "\"h\"]],"

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

/* Passes of two ranks, a rule and what it says. */
static const calls_row drawings[] = {
    {OWN HALVES("7", ""), "data.disjoint", LS_PASS, "2 passes"},
    {OWN HALVES("7", ""), "data.covered", LS_PASS, "2 whole passes"},
    {OWN HALVES("7", ""), "data.shuffled", LS_PASS, "1 passes"},
    {OWN PASSES("DistributedSampler", "39 20 0 2", "3", "39 20 1 2", "3", "7", ""), "data.disjoint",
     LS_PASS, "2 passes"}, /* padded: 0 is drawn twice */
    {OWN PASSES("DistributedSampler", "41 20 0 2", "3", "41 20 1 2", "3", "7", ""), "data.covered",
     LS_PASS, "2 whole"}, /* drop_last */
    {SAME PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "7",
                 "\"sampler_rank\":0,"),
     "data.disjoint", LS_FAIL, "rank=0 on ranks 0 and 1"},
    {OWN "0: =DistributedSampler 40 20 0 2 3 ; 1: =DistributedSampler 40 20 0 2 9 "
         "\"sampler_epoch\":4,; 0: =DistributedSampler 40 20 0 2 7 ; 1: =DistributedSampler 40 20 "
         "0 2 7 \"sampler_epoch\":4,",
     "data.disjoint", LS_FAIL, "set_epoch was called with different values"},
    {OWN PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "9", "7", ""), "data.disjoint",
     LS_FAIL, "different seeds"},
    {OWN PASSES("DistributedSampler", "80 20 0 4", "3", "80 20 1 4", "3", "7", "\"replicas\":4,"),
     "data.covered", LS_FAIL, "num_replicas=4"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "9", ""), "data.disjoint",
     LS_WEAK, "if all ranks open the same data"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "9", CONTENT), "data.disjoint",
     LS_FAIL, "no DistributedSampler"},
    {SAME PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "3", "9", ""), "data.disjoint",
     LS_FAIL, "no DistributedSampler"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "3", "9", ""), "data.disjoint",
     LS_WEAK, "data set of its own"},
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
    {OWN HALVES("3", ""), "data.shuffled", LS_FAIL, "set_epoch was not called"},
    {OWN HALVES("3", "\"shuffle\":false,"), "data.shuffled", LS_WEAK,
     "not shuffled: every epoch has the same batches"},
    {OWN HALVES("7", "\"shuffle\":false,"), "data.shuffled", LS_SKIP, "not asked to shuffle"},
    {OWN HALVES("7", SORTED), "data.shuffled", CALLS_HINT, "each batch has samples of one class"},
    {OWN HALVES("7", MIXED), "data.shuffled", LS_SKIP, "not asked to shuffle"},
    {OWN HALF_PASS, "data.shuffled", LS_WEAK, "one pass"},
    {OWN PASSES("RandomSampler", "20 20 0 1", "3", "20 20 0 1", "7", "3", ""), "data.shuffled",
     LS_FAIL, "seeded alike"},
    {OWN PASSES("DistributedSampler", "80 20 0 2", "3", "80 20 1 2", "3", "7", "\"whole\":false,"),
     "data.covered", LS_WEAK, "reached its end"},
    {OWN PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "3",
                "\"trained\":false,"),
     "data.disjoint", LS_UNSUPPORTED, "no pass over a DataLoader"},
    {SAME ONCE("RandomSampler", "40 20 0 1", "3", "40 20 0 1", "3",
               "\"steps\":[1,40],\"count\":2,"),
     "data.disjoint", LS_UNSUPPORTED, "no pass over a DataLoader"}, /* a look at one batch */
    {OWN PASSES("DistributedSampler", "40 20 0 2", "3", "40 20 0 2", "3", "3",
                "\"indices\":false,"),
     "data.disjoint", LS_SKIP, "no indices"},
    {SAME HALVES("7", ""), "data.distinct", LS_FAIL, "same batches"},
    {OWN HALVES("7", ""), "data.distinct", LS_PASS, "inputs differ"},
    {OWN HALVES("7", "\"workers\":2,\"base_seed\":5,"), "data.distinct", LS_PASS, "seed by rank"},
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

static const calls_row others[] = {
    /* made up data */
    {"4x F{\"input\":\"11\"} S B K P Z", "data.distinct", LS_WEAK, "never changes"},
    {"2x F{\"input\":\"11\"} S B K P Z; 2x F{\"input\":\"22\"} S B K P Z", "data.distinct", LS_FAIL,
     "from the same seed"},
    /* the noise of a generator is drawn alike on all ranks, the data are not: no fault */
    {"2x (F{\"model\":1,\"input\":\"11\"} F S B K P Z; F{\"model\":1,\"input\":\"22\"} F S B K P "
     "Z)",
     "data.distinct", LS_PASS, "drawn (noise)"},
    /* ranks of a group that share a model's parts have the same data by design */
    {"!\"world\":1,; 2x F{\"input\":\"11\"} b O Z; 2x F{\"input\":\"22\"} b O Z", "data.distinct",
     LS_SKIP, "over all ranks"},
    /* one process shuffles, too */
    {OWN "2x =RandomSampler 20 20 0 1 3 ", "data.shuffled", LS_FAIL, "seeded alike", 1},
};

CALLS_TEST(other_data_are_judged, others)

TEST_MAIN("observe_data", .timeout_s = 120)
