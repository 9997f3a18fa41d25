/* Causes that records show: the first digest that differs, between ranks and after a resume; last
 * messages and end events; a loss scale and its mistakes. */
#include "suite/judge/diagnose.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

enum { STEPS = 3 };

typedef struct run {
    ls_record_rank rank;
    ls_record_step step[STEPS];
} run;

static void make(run *r, int64_t first)
{
    memset(r, 0, sizeof *r);
    r->rank.step_count = STEPS;
    r->rank.step = r->step;
    for (int i = 0; i < STEPS; i++) {
        ls_record_step *s = &r->step[i];
        *s = (ls_record_step){.step = first + i, .loss_scale = 128, .lr = 0.1, .skip_given = true};
        s->digest_mask = (1u << LS_RECORD_DIGESTS) - 1;
        snprintf(s->loss_bits, sizeof s->loss_bits, "0x%08x", 0x3f800000u + (unsigned)i);
        for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
            snprintf(s->digest[d], sizeof s->digest[d], "%016x", (unsigned)(100 * i + d));
        }
    }
}

/* From step `at` on that digest is another. */
static void change(run *r, ls_record_digest digest, int at)
{
    for (int i = at; i < STEPS; i++) {
        r->step[i].digest[digest][0] = 'f';
    }
}

/* What differs on the second side: digests from a step on, and numbers of one step. */
static const struct difference {
    bool resumed; /* compared with an uninterrupted run, not with another rank */
    int at;       /* index of the step */
    unsigned digests;
    double scale, lr; /* 0: as on the other side */
    bool skipped, loss;
    const char *words; /* the cause; "": there is none */
    int64_t from;      /* the first step of a resumed run, where that is not 4 */
} differences[] = {
#define BIT(digest) 1u << LS_RECORD_##digest
#define STEP_DIFFERS \
    "gradients are equal, the step's result differs: learning rate, moments or a skip"
    {false, 0, 0, .words = ""},
    {false, 0, BIT(PARAM),
     .words = "gradients are equal, parameters differ from the start: they were not broadcast, or "
              "masters were made before they were (first at step 1)"},
    {false, 0, BIT(MASTER),
     .words = "gradients are equal, parameters differ from the start: they were not broadcast, or "
              "masters were made before they were (first at step 1)"},
    {false, 0, BIT(PARAM) | BIT(GRAD), .words = LS_DIAGNOSE_DIGESTS_GRADIENTS " (first at step 1)"},
    {false, 1, BIT(PARAM), .words = STEP_DIFFERS " (first at step 2)"},
    {false, 2, BIT(MASTER), .words = STEP_DIFFERS " (first at step 3)"},
    {false, 0, BIT(STATE), .words = STEP_DIFFERS " (first at step 1)"},
    {false, 1, 0, .skipped = true,
     .words = "ranks decide about a skip each for itself (first at step 2)"},
    {false, 1, BIT(GRAD), .skipped = true,
     .words =
         "ranks decide about a skip from different gradients: the decision must come after the "
         "reduction (first at step 2)"},
    {false, 2, BIT(BUFFER),
     .words = "running statistics differ: SyncBN's moments are not those of all "
              "ranks (first at step 3)"},
    {false, 1, BIT(BUFFER),
     .words = "running statistics differ: SyncBN's moments are not those of all "
              "ranks (first at step 2)"},
    {false, 0, 0, .scale = 64, .words = "ranks begin with different loss scales (first at step 1)"},
    {false, 2, 0, .scale = 256,
     .words = "each rank counts its clean steps for itself: the same steps were skipped (first at "
              "step 3)"},
    {true, 0, 0, .words = ""},
    {true, 0, 0, .scale = 65536, .words = "the loss scale was not restored (first seen at step 4)"},
    {true, 1, 0, .scale = 64,
     .words = "the count of clean steps was not restored (first seen at step 5)"},
    {true, 0, BIT(SCALER),
     .words = "the count of clean steps was not restored (first seen at step 4)"},
    {true, 0, BIT(SCALER) | BIT(PARAM),
     .words = "gradients are equal, the step's result is not: the optimizer's count of "
              "steps was not restored (first seen at step 4)"},
    {true, 0, BIT(SCALER) | BIT(PARAM) | BIT(GRAD),
     .words = "the count of clean steps was not restored (first seen at step 4)"},
    {true, 1, BIT(SCALER) | BIT(PARAM),
     .words = "the count of clean steps was not restored (first seen at step 5)"},
    {true, 0, 0, .loss = true,
     .words =
         "the forward differs at once: parameters, or the place in the data, were not restored "
         "(first seen at step 4)"},
    {true, 1, 0, .loss = true, .words = ""},
    {true, 0, 0, .lr = 0.01,
     .words = "the learning rate's schedule was not restored (first seen at step 4)"},
    {true, 0, BIT(STATE) | BIT(PARAM),
     .words = "gradients are equal, moments are not: momentum was not restored, or the masters "
              "that weight decay reads (first seen at step 4)"},
    {true, 0, BIT(MASTER),
     .words = "gradients and moments are equal, values are not: masters were made again from half "
              "weights, or the count of steps was not restored (first seen at step 4)"},
    {true, 2, BIT(PARAM),
     .words = "gradients and moments are equal, values are not: masters were made again from half "
              "weights, or the count of steps was not restored (first seen at step 6)"},
    {true, 0, BIT(GRAD),
     .words = "the loss is equal, the gradient is not: another bucket layout sums in another order "
              "(first seen at step 4)"},
    {true, 1, BIT(GRAD), .words = ""},
    {true, 0, BIT(BUFFER), .words = "running statistics were not restored (first seen at step 4)"},
    {true, 0, BIT(BUFFER), .from = 3,
     .words = "the count of steps is behind: step 3 was done again after the resume"},
};

ROWS_TEST(the_first_difference_is_the_cause, differences)
{
    const struct difference *row = &differences[_i];
    run a, b;
    char text[240];
    make(&a, row->resumed ? 4 : 1);
    make(&b, row->from > 0 ? row->from : row->resumed ? 4 : 1);
    ls_record_step *step = &b.step[row->at];
    for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
        if ((row->digests >> d & 1u) != 0) {
            change(&b, (ls_record_digest)d, row->at);
        }
    }
    step->loss_scale = row->scale > 0 ? row->scale : step->loss_scale;
    step->lr = row->lr > 0 ? row->lr : step->lr;
    step->skipped = row->skipped;
    step->loss_bits[2] = row->loss ? 'f' : step->loss_bits[2];
    if (row->resumed) {
        ls_diagnose_resume(&a.rank, &b.rank, 4, text, sizeof text);
    } else {
        ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text);
    }
    ck_assert_str_eq(text, row->words);
}

/* Digests that `missing` names are on neither side. */
static void hide(run *a, run *b, unsigned missing)
{
    for (int i = 0; i < STEPS; i++) {
        a->step[i].digest_mask &= ~missing;
        b->step[i].digest_mask &= ~missing;
    }
}

/* A cause says what the digests show, and nothing of those that are not there. */
TEST(without_its_data_there_is_no_cause)
{
    static const struct {
        ls_record_digest changed, missing;
    } gap[] = {{LS_RECORD_PARAM, LS_RECORD_GRAD},   {LS_RECORD_MASTER, LS_RECORD_GRAD},
               {LS_RECORD_STATE, LS_RECORD_GRAD},   {LS_RECORD_PARAM, LS_RECORD_STATE},
               {LS_RECORD_MASTER, LS_RECORD_STATE}, {LS_RECORD_BUFFER, LS_RECORD_PARAM}};
    for (size_t i = 0; i < sizeof gap / sizeof *gap; i++) {
        for (int at = 0; at < STEPS; at++) {
            run a, b;
            char replicas[240], resumed[240];
            make(&a, 1);
            make(&b, 1);
            change(&b, gap[i].changed, at);
            change(&b, LS_RECORD_BUFFER, at);
            hide(&a, &b, 1u << gap[i].missing);
            ls_diagnose_replicas(&a.rank, &b.rank, false, replicas, sizeof replicas);
            ls_diagnose_resume(&a.rank, &b.rank, 1, resumed, sizeof resumed);
            ck_assert_msg(gap[i].missing != LS_RECORD_GRAD || replicas[0] == '\0', "%s", replicas);
            ck_assert_msg(gap[i].changed != LS_RECORD_BUFFER || replicas[0] == '\0', "%s",
                          replicas);
            ck_assert_msg(resumed[0] == '\0', "%s", resumed);
        }
    }
}

/* Numbers that neither gives do not differ. */
TEST(without_numbers_there_is_no_cause)
{
    run a, b;
    char text[240];
    make(&a, 1);
    make(&b, 1);
    for (int i = 0; i < STEPS; i++) {
        a.step[i].loss_scale = b.step[i].loss_scale = a.step[i].lr = b.step[i].lr = NAN;
        b.step[i].loss_bits[0] = '\0';
        a.step[i].skip_given = false;
        b.step[i].skipped = i == 1;
    }
    ls_diagnose_replicas(&a.rank, &b.rank, true, text, sizeof text);
    ck_assert_str_eq(text, "");
    ls_diagnose_resume(&a.rank, &b.rank, 1, text, sizeof text);
    ck_assert_str_eq(text, "");
}

/* ---- endings --------------------------------------------------------------------------------- */

static void write_log(const char *folder, int rank, const char *engine, int number,
                      const char *label, int bytes)
{
    char name[32];
    ls_text_put(name, sizeof name, "rank%d.log", rank);
    FILE *file = fake_open(folder, name);
    fprintf(file,
            "step 1/2  loss 1.2\nlockstep-train[%d]: error: %s 'gradients': all_reduce, operation "
            "%d '%s' of %d bytes, failed after 15 s, waiting for rank %d: it's late\n",
            rank, engine, number, label, bytes, 1 - rank);
    fclose(file);
}

static const char *waits(const char *engine, int number, const char *label, int bytes, char *text,
                         int text_bytes)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    const int codes[2] = {10, 10};
    fake_outcome(folder, "failed", 0, 10, 0, codes);
    write_log(folder, 0, engine, 7, "bucket 0", 4096);
    write_log(folder, 1, engine, number, label, bytes);
    ls_record record = fake_read(folder);
    ls_diagnose_endings_waits(&record, text, text_bytes);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
    return text;
}

TEST(unlike_operations_are_named)
{
    char text[320];
    waits("gloo", 7, "bucket 5", 512, text, sizeof text);
    ck_assert_msg(strstr(text, "operation 7 of 'gradients' is 'bucket 0' (4096 bytes) on rank 0, "
                               "'bucket 5' (512 bytes) on rank 1") != NULL,
                  "%s", text);
    waits("nccl", 7, "bucket 0", 512, text, sizeof text);
    ck_assert_msg(strstr(text, "different orders") != NULL, "%s", text);
    /* the same operation, then another number: no rank was in a different operation */
    ck_assert_str_eq(waits("gloo", 7, "bucket 0", 4096, text, sizeof text), "");
    ck_assert_str_eq(waits("gloo", 8, "bucket 1", 512, text, sizeof text), "");
}

LOOP_TEST(a_code_changed_on_the_way_out_is_named, 4)
{
    static const struct {
        const char *end;
        int code;
        const char *words;
    } row[] = {
        {"{\"event\":\"end\",\"step\":1,\"code\":10}\n", 3,
         "rank 0 ends with code 10 by its own end event, and its process leaves with code 3"},
        {"{\"event\":\"end\",\"step\":1,\"code\":10}\n", 10, ""},
        {"{\"event\":\"end\",\"step\":1}\n", 3, ""},
        {"", 3, ""}};
    char text[320];
    const int codes[2] = {row[_i].code, 0};
    fake_outcome(folder, "failed", 0, row[_i].code, 0, codes);
    FILE *file = fake_open(folder, "rank0.jsonl");
    fprintf(file, "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{}}\n%s", row[_i].end);
    fclose(file);
    ls_record record = fake_read(folder);
    ls_diagnose_endings_codes(&record, text, sizeof text);
    ck_assert_str_eq(text, row[_i].words);
    ls_record_free(&record);
}

/* ---- loss scales: traces of trainers with one mistake each, by a scaler written here --------- */

enum { TRACED = 14 };

/* One update, with the mistake by number. */
static void update(int mistake, bool bad, int *clean, double *now)
{
    if (bad) {
        *now = mistake == 6 ? *now : mistake == 7 ? *now / 4 : mistake == 16 ? *now * 2 : *now / 2;
        *clean = mistake == 5 ? *clean : mistake == 15 ? 1 : 0;
    } else if (++*clean, *clean >= (mistake == 4 ? 4 : mistake == 13 ? 2 : 3)) {
        *now = mistake == 8 ? *now : mistake == 16 ? *now / 2 : mistake == 17 ? *now * 4 : *now * 2;
        *clean = mistake == 14 ? *clean : 0;
    }
}

/* A scaler as a trainer would write it, with the mistake by number. */
static void train(int mistake, const bool *overflow, const bool *own, double *scale, double *next,
                  bool *skipped)
{
    double now = mistake == 9 ? 2048 : 1024;
    int clean = 0;
    for (int i = 0; i < TRACED; i++) {
        bool bad = mistake == 1 ? false : mistake == 2 ? own[i] : overflow[i];
        scale[i] = now;
        skipped[i] = bad && mistake != 3;
        skipped[i] = skipped[i] && mistake != 12;
        for (int time = 0; time < (mistake == 10 || mistake == 11 ? 2 : 1) && mistake != 12;
             time++) {
            update(mistake == 20 ? 6 + 2 * !bad : mistake, bad && (mistake != 11 || time == 0),
                   &clean, &now);
        }
        next[i] = now;
    }
}

static const char *const mistakes[] = {
    "",
    "no overflow is seen: every step is taken and counts as clean",
    "each rank decides for itself, from its own gradients: look after the reduction",
    "the scale is halved, but the step is taken all the same",
    "the scale grows one clean step too late (> for >=)",
    "an overflow does not restart the count of clean steps",
    "the scale is not lowered on overflow",
    "the scale is quartered on overflow: updated twice",
    "the scale never grows",
    "the scale starts at 2048, not at 1024",
    "the scale is updated twice a step",
    "the scale is updated twice a step, the second time without the step's overflow",
    "the scale is never updated, and no skip is reported",
    "the scale grows one clean step too early",
    "growth does not restart the count of clean steps",
    "skipped steps count as clean ones",
    "the scale is updated the wrong way round",
    "the scale grows by 4: updated twice",
    "the floor of the scale is not kept",
    "the ceiling of the scale is not kept",
    "the scale is never updated"};

LOOP_TEST(mistakes_are_named, 21)
{
    bool overflow[TRACED] = {[2] = true, [7] = true, [8] = true}, own[TRACED] = {[2] = true};
    bool skipped[TRACED];
    double scale[TRACED], next[TRACED];
    train(_i, overflow, own, scale, next, skipped);
    ls_diagnose_scaler trace = {1024,
                                _i == 18 ? 300 : 0,
                                _i == 19 ? 1000 : INFINITY,
                                3,
                                TRACED,
                                overflow,
                                own,
                                scale,
                                next,
                                skipped};
    char text[200];
    bool found = ls_diagnose_scaler_find(&trace, text, sizeof text);
    ck_assert_int_eq(found, _i > 0);
    ck_assert_str_eq(text, mistakes[_i]);
}

TEST(a_stale_scale_is_named)
{
    bool overflow[TRACED] = {[2] = true}, skipped[TRACED];
    double scale[TRACED], next[TRACED];
    train(0, overflow, overflow, scale, next, skipped);
    scale[3] = scale[2];
    ls_diagnose_scaler trace = {1024, 0, INFINITY, 3, TRACED, overflow, NULL, scale, next, skipped};
    char text[200];
    ck_assert(ls_diagnose_scaler_find(&trace, text, sizeof text));
    ck_assert_str_eq(text, "a step uses another scale (1024) than the update before it gave (512)");
    trace.own = overflow;
    scale[3] = 512;
    scale[1] = next[0] = 2048; /* grows at once, which no machine does, and uses what it says */
    ck_assert(!ls_diagnose_scaler_find(&trace, text, sizeof text));
    ck_assert_str_eq(text, "");
}

TEST_MAIN("diagnose_records", .before = fake_begin, .after = fake_end)
