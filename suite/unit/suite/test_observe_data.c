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

/* A pass of one rank; those of two that share 40 samples. */
#define DRAW(...)   \
    {               \
        __VA_ARGS__ \
    }
#define HALVES(members)                                \
    DRAW(calls_distributed, members, 40, 20, 0, 2, 3), \
        DRAW(calls_distributed, members, 40, 20, 1, 2, 3)

/* Two passes of two ranks, a rule and what it says. `same`: ranks have equal inputs. */
static const struct {
    calls_drawing zero, one;
    int mix; /* of the second pass; 0: none */
    bool same;
    const char *id;
    ls_verdict_code code;
    const char *words;
} drawings[] = {
    {HALVES(""), 7, false, "data.disjoint", LS_PASS, "2 passes"},
    {HALVES(""), 7, false, "data.covered", LS_PASS, "2 whole passes"},
    {HALVES(""), 7, false, "data.shuffled", LS_PASS, "1 passes"},
    {DRAW(calls_distributed, "", 39, 20, 0, 2, 3), DRAW(calls_distributed, "", 39, 20, 1, 2, 3), 7,
     false, "data.disjoint", LS_PASS, "2 passes"}, /* padded: 0 is drawn twice */
    {DRAW(calls_distributed, "", 41, 20, 0, 2, 3), DRAW(calls_distributed, "", 41, 20, 1, 2, 3), 7,
     false, "data.covered", LS_PASS, "2 whole"}, /* drop_last */
    {DRAW(calls_distributed, "\"sampler_rank\":0,", 40, 20, 0, 2, 3),
     DRAW(calls_distributed, "\"sampler_rank\":0,", 40, 20, 0, 2, 3), 7, true, "data.disjoint",
     LS_FAIL, "rank=0 on ranks 0 and 1"},
    {DRAW(calls_distributed, "", 40, 20, 0, 2, 3),
     DRAW(calls_distributed, "\"sampler_epoch\":4,", 40, 20, 0, 2, 9), 7, false, "data.disjoint",
     LS_FAIL, "set_epoch was called with different values"},
    {DRAW(calls_distributed, "", 40, 20, 0, 2, 3), DRAW(calls_distributed, "", 40, 20, 0, 2, 9), 7,
     false, "data.disjoint", LS_FAIL, "different seeds"},
    {DRAW(calls_distributed, "\"replicas\":4,", 80, 20, 0, 4, 3),
     DRAW(calls_distributed, "\"replicas\":4,", 80, 20, 1, 4, 3), 7, false, "data.covered", LS_FAIL,
     "num_replicas=4"},
    {DRAW("RandomSampler", "", 20, 20, 0, 1, 3), DRAW("RandomSampler", "", 20, 20, 0, 1, 7), 9,
     false, "data.disjoint", LS_WEAK, "if all ranks open the same data"},
    {DRAW("RandomSampler", CONTENT, 20, 20, 0, 1, 3),
     DRAW("RandomSampler", CONTENT, 20, 20, 0, 1, 7), 9, false, "data.disjoint", LS_FAIL,
     "no DistributedSampler"},
    {DRAW("RandomSampler", "", 20, 20, 0, 1, 3), DRAW("RandomSampler", "", 20, 20, 0, 1, 3), 9,
     true, "data.disjoint", LS_FAIL, "no DistributedSampler"},
    {DRAW("RandomSampler", "", 20, 20, 0, 1, 3), DRAW("RandomSampler", "", 20, 20, 0, 1, 3), 9,
     false, "data.disjoint", LS_WEAK, "data set of its own"},
    {DRAW("RandomSampler", "", 20, 20, 0, 1, 3), DRAW("RandomSampler", "", 24, 24, 0, 1, 7), 9,
     false, "data.disjoint", LS_SKIP, "different lengths"},
    {DRAW("WeightedRandomSampler", "", 11, 20, 0, 1, 3),
     DRAW("WeightedRandomSampler", "", 11, 20, 0, 1, 7), 9, false, "data.disjoint", LS_SKIP,
     "with replacement"},
    {DRAW("RASampler", "", 60, 20, 0, 2, 3), DRAW("RASampler", "", 60, 20, 0, 3, 3), 7, false,
     "data.disjoint", LS_WEAK, "(RASampler)"},
    {DRAW("OwnSampler", "", 40, 20, 0, 1, 3), DRAW("OwnSampler", "", 40, 20, 20, 1, 3), 7, false,
     "data.disjoint", LS_PASS, "2 passes"},
    {DRAW("OwnSampler", "", 40, 10, 0, 1, 3), DRAW("OwnSampler", "", 40, 10, 20, 1, 3), 7, false,
     "data.covered", LS_SKIP, "script's own"},
    {HALVES(""), 3, false, "data.shuffled", LS_FAIL, "set_epoch was not called"},
    {HALVES("\"shuffle\":false,"), 3, false, "data.shuffled", LS_WEAK,
     "not shuffled: every epoch has the same batches"},
    {HALVES("\"shuffle\":false,"), 7, false, "data.shuffled", LS_SKIP, "not asked to shuffle"},
    {HALVES(SORTED), 7, false, "data.shuffled", CALLS_HINT, "each batch has samples of one class"},
    {HALVES(MIXED), 7, false, "data.shuffled", LS_SKIP, "not asked to shuffle"},
    {HALVES(""), 0, false, "data.shuffled", LS_WEAK, "one pass"},
    {DRAW("RandomSampler", "", 20, 20, 0, 1, 3), DRAW("RandomSampler", "", 20, 20, 0, 1, 7), 3,
     false, "data.shuffled", LS_FAIL, "seeded alike"},
    {DRAW(calls_distributed, "\"whole\":false,", 80, 20, 0, 2, 3),
     DRAW(calls_distributed, "\"whole\":false,", 80, 20, 1, 2, 3), 7, false, "data.covered",
     LS_WEAK, "reached its end"},
    {DRAW(calls_distributed, "\"trained\":false,", 40, 20, 0, 2, 3),
     DRAW(calls_distributed, "\"trained\":false,", 40, 20, 0, 2, 3), 3, false, "data.disjoint",
     LS_UNSUPPORTED, "no pass over a DataLoader"},
    {DRAW("RandomSampler", "\"steps\":[1,40],\"count\":2,", 40, 20, 0, 1, 3),
     DRAW("RandomSampler", "\"steps\":[1,40],\"count\":2,", 40, 20, 0, 1, 3), 0, true,
     "data.disjoint", LS_UNSUPPORTED, "no pass over a DataLoader"}, /* a look at one batch */
    {DRAW(calls_distributed, "\"indices\":false,", 40, 20, 0, 2, 3),
     DRAW(calls_distributed, "\"indices\":false,", 40, 20, 0, 2, 3), 3, false, "data.disjoint",
     LS_SKIP, "no indices"},
    {HALVES(""), 7, true, "data.distinct", LS_FAIL, "same batches"},
    {HALVES(""), 7, false, "data.distinct", LS_PASS, "inputs differ"},
    {HALVES("\"workers\":2,\"base_seed\":5,"), 7, false, "data.distinct", LS_PASS, "seed by rank"},
};

ROWS_TEST(data_are_judged, drawings)
{
    calls_job job;
    calls_open(&job, 2);
    static const char *const same[] = {"F{\"input\":\"11\"} S B K P Z",
                                       "F{\"input\":\"22\"} S B K P Z"};
    for (int i = 0; i < 4; i++) {
        calls_step(&job, drawings[_i].same ? same[i % 2] : "F S B K P Z");
    }
    calls_drawing d[2] = {drawings[_i].zero, drawings[_i].one};
    for (int k = 0; k < 2; k++) {
        calls_write_pass(&job, k, &d[k]);
        d[k].mix = drawings[_i].mix;
        if (d[k].mix != 0) {
            calls_write_pass(&job, k, &d[k]);
        }
    }
    calls_end(&job, drawings[_i].id, drawings[_i].code, drawings[_i].words);
}

/* Places of what a pass draws from, and the rule that names one of them. */
static const struct {
    calls_drawing zero, one;
    const char *id, *place;
} built[] = {
#define BUILT "\"built\":\"train.py:12\",\"sampler_at\":\"train.py:11\",\"cut_at\":\"train.py:10\","
    {{"RandomSampler", BUILT CONTENT, 40, 40, 0, 1, 3},
     {"RandomSampler", BUILT CONTENT, 40, 40, 0, 1, 7},
     "data.disjoint",
     "train.py:12"},
    {{calls_distributed, BUILT "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     {calls_distributed, BUILT "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     "data.disjoint",
     "train.py:11"},
    {{calls_distributed, BUILT "\"replicas\":1,\"sampler_rank\":0,", 40, 40, 0, 1, 3},
     {calls_distributed, BUILT "\"replicas\":1,\"sampler_rank\":0,", 40, 40, 0, 1, 3},
     "data.disjoint",
     "num_replicas=1, the job has 2 ranks | train.py:11"},
    {{calls_distributed, BUILT "\"replicas\":4,", 40, 10, 0, 4, 3},
     {calls_distributed, BUILT "\"replicas\":4,", 40, 10, 1, 4, 3},
     "data.covered",
     "train.py:11"},
    /* a framework builds them anew: its own file says nothing of the script */
    {{calls_distributed,
      "\"built\":\"/lib/frame.py:3\",\"sampler_at\":\"/lib/frame.py:2\","
      "\"sampler_rank\":0,",
      40, 20, 0, 2, 3},
     {calls_distributed, "\"sampler_rank\":0,", 40, 20, 0, 2, 3},
     "data.disjoint",
     "train.py:18"},
#undef BUILT
};

ROWS_TEST(data_are_named_where_they_are_built, built)
{
    calls_job job;
    calls_open(&job, 2);
    calls_repeat(&job, 4, "F S B K P Z");
    calls_write_pass(&job, 0, &built[_i].zero);
    calls_write_pass(&job, 1, &built[_i].one);
    calls_end(&job, built[_i].id, LS_FAIL, built[_i].place);
}

TEST(made_up_data_are_weak)
{
    calls_job job;
    calls_open(&job, 2);
    calls_repeat(&job, 4, "F{\"input\":\"11\"} S B K P Z");
    calls_end(&job, "data.distinct", LS_WEAK, "never changes");
    calls_open(&job, 2);
    calls_repeat(&job, 2, "F{\"input\":\"11\"} S B K P Z");
    calls_repeat(&job, 2, "F{\"input\":\"22\"} S B K P Z");
    calls_end(&job, "data.distinct", LS_FAIL, "from the same seed");
}

/* The noise of a generator is drawn alike on all ranks, the data are not: no fault. */
TEST(equal_noise_is_advice)
{
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 4; i++) {
        calls_step(&job, i % 2 == 0 ? "F{\"model\":1,\"input\":\"11\"} F S B K P Z"
                                    : "F{\"model\":1,\"input\":\"22\"} F S B K P Z");
    }
    calls_end(&job, "data.distinct", LS_PASS, "drawn (noise)");
}

/* Ranks of a group that share a model's parts have the same data by design. */
TEST(models_on_a_part_of_the_ranks_are_skipped)
{
    calls_job job;
    calls_open_with(&job, 2, "\"world\":1,");
    calls_repeat(&job, 2, "F{\"input\":\"11\"} b O Z");
    calls_repeat(&job, 2, "F{\"input\":\"22\"} b O Z");
    calls_end(&job, "data.distinct", LS_SKIP, "over all ranks");
}

TEST(one_process_shuffles_too)
{
    calls_job job;
    const calls_drawing d = {"RandomSampler", "", 20, 20, 0, 1, 3};
    calls_open(&job, 1);
    calls_repeat(&job, 4, "F S B K P Z");
    calls_write_pass(&job, 0, &d);
    calls_write_pass(&job, 0, &d);
    calls_end(&job, "data.shuffled", LS_FAIL, "seeded alike");
}

TEST_MAIN("observe_data", .timeout_s = 120)
