/* Samples by content on invented jobs: ranks whose data sets are in another order, streams that are
 * not split, validations that read what is trained on or run in training mode, and the practices
 * that look like them. */
#include "observe_calls.h"
#include "suite/unit/run_suite.h"

/* A pass over a loader: samples first, first + stride, ... (their contents), `count` of them. */
typedef struct reading {
    bool trained;
    const char *at;
    int length, first, stride, count;
    int index; /* of the first sample; -1: no indices */
} reading;

static void write_pass(calls_job *job, int rank, const reading *r)
{
    static char line[20000];
    ls_text_put(
        line, sizeof line,
        "{\"event\":\"data\",\"loader\":0,\"pass\":0,\"at\":\"%s\",\"sampler\":\"%s\",\"replicas\":"
        "2,\"sampler_rank\":%d,\"shuffle\":true,\"drop_last\":false,\"sampler_epoch\":%d,"
        "\"length\":%d,\"batch\":4,\"workers\":0,\"count\":%d,\"whole\":true,\"trained\":%s,"
        "\"steps\":[1,8],\"cut_at\":\"split.py:3\",\"key_modulus\":1,\"keys\":[",
        r->at, r->index < 0 ? "" : "DistributedSampler", rank, r->first, r->length, r->count,
        r->trained ? "true" : "false");
    for (int i = 0; i < r->count; i++) {
        ls_text_add(line, sizeof line, "%s%d", i > 0 ? "," : "",
                    1000 + 7919 * (r->first + i * r->stride));
    }
    ls_text_add(line, sizeof line, "],%s", r->index < 0 ? "\"indices\":false}" : "\"kept\":[");
    for (int i = 0; r->index >= 0 && i < r->count; i++) {
        ls_text_add(line, sizeof line, "%s%d", i > 0 ? "," : "", r->index + 2 * i);
    }
    ls_text_add(line, sizeof line, "%s", r->index < 0 ? "" : "]}");
    calls_event(job, rank, line);
}

enum { PASSES = 3 };

#define RANK(...)   \
    {               \
        __VA_ARGS__ \
    }
#define TRAIN(length, first, stride, count, index)               \
    {                                                            \
        true, "train.py:18", length, first, stride, count, index \
    }
#define VAL(length, first, stride, count, index)               \
    {                                                          \
        false, "val.py:4", length, first, stride, count, index \
    }
#define STREAM(first, stride, count) TRAIN(-1, first, stride, count, -1)

/* Passes of rank 0 and of rank 1. */
static const struct {
    reading zero[PASSES], one[PASSES];
    const char *id;
    ls_verdict_code code;
    const char *words;
} jobs[] = {
    /* the ranks divide one order */
    {RANK(TRAIN(200, 0, 2, 100, 0)), RANK(TRAIN(200, 1, 2, 100, 1)), "data.disjoint", LS_PASS,
     "disjoint"},
    /* each rank has an order of its own */
    {RANK(TRAIN(200, 0, 2, 100, 0)), RANK(TRAIN(200, 50, 1, 100, 1)), "data.disjoint", LS_FAIL,
     "pass 0: 50 of 100 samples of rank 0 are on rank 1, too, under other indices | the ranks' "
     "data sets are not in the same order"},
    /* samples come several times, on one rank as on two */
    {RANK(TRAIN(200, 0, 0, 50, 0), TRAIN(200, 0, 0, 50, 0)),
     RANK(TRAIN(200, 0, 0, 50, 1), TRAIN(200, 0, 0, 50, 1)), "data.disjoint", LS_PASS, "disjoint"},
    /* the last batches are filled up with samples of the first ones; eight are rank 0's */
    {RANK(TRAIN(72, 0, 1, 40, 0)), RANK(TRAIN(72, 32, 1, 40, 1)), "data.disjoint", LS_PASS,
     "disjoint"},
    {RANK(TRAIN(71, 0, 1, 40, 0)), RANK(TRAIN(71, 31, 1, 40, 1)), "data.disjoint", LS_FAIL,
     "pass 0: 9 of 40 samples of rank 0 are on rank 1, too, under other indices | the ranks' data "
     ".. | split.py:3 | build"},
    {RANK(TRAIN(64, 0, 1, 32, 0)), RANK(TRAIN(64, 23, 1, 32, 1)), "data.disjoint", LS_FAIL,
     "9 of 32"},
    {RANK(TRAIN(62, 0, 1, 31, 0)), RANK(TRAIN(62, 22, 1, 31, 1)), "data.disjoint", LS_PASS,
     "disjoint"},
    {RANK(TRAIN(64, 0, 1, 33, 0)), RANK(TRAIN(64, 23, 1, 31, 1)), "data.disjoint", LS_PASS,
     "disjoint"},
    {RANK(TRAIN(200, 0, 1, 100, 0)), RANK(TRAIN(200, 90, 1, 100, 1)), "data.disjoint", LS_PASS,
     "disjoint"},
    {RANK(TRAIN(200, 0, 1, 100, 0)), RANK(TRAIN(200, 89, 1, 100, 1)), "data.disjoint", LS_FAIL,
     "11 of 100"},
    /* a stream that is not split; batches differ: each rank may draw from all of it */
    {RANK(STREAM(0, 1, 100)), RANK(STREAM(20, 1, 100)), "data.disjoint", LS_WEAK,
     "pass 0: 80 of 100 samples of rank 0 are on rank 1, too; batches differ .. | all ranks read "
     "the same stream .. | split.py:3 | let"},
    /* a stream that is split */
    {RANK(STREAM(0, 2, 100)), RANK(STREAM(1, 2, 100)), "data.disjoint", LS_SKIP, "no indices"},
    /* a split of each rank's own */
    {RANK(TRAIN(160, 0, 1, 80, 0), VAL(40, 160, 1, 40, 0)),
     RANK(TRAIN(160, 80, 1, 80, 1), VAL(40, 20, 1, 40, 1)), "data.held_out", LS_FAIL,
     "40 of 80 samples of the validation are trained on, by this or another rank | training and "
     "validation are split differently on each rank or after a resume .. | split.py:3 | split"},
    /* one split */
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 160, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 160, 1, 40, 1)), "data.held_out", LS_PASS,
     "40 samples of validations are not trained on |"},
    /* as many as a tenth, and one more */
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 156, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 156, 1, 40, 1)), "data.held_out", LS_PASS,
     "40 samples of validations are not trained on"},
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 155, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 155, 1, 40, 1)), "data.held_out", CALLS_HINT,
     "5 of 40 samples of the validation are trained on"},
    /* of few samples; of nineteen twentieths; of a training that saw nine tenths, and less */
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 100, 1, 31, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 100, 1, 31, 1)), "data.held_out", LS_SKIP, "too few"},
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 128, 1, 32, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 128, 1, 32, 1)), "data.held_out", LS_WEAK,
     "32 of 32 samples of the validation at val.py:4 are trained on"},
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 122, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 122, 1, 40, 1)), "data.held_out", LS_WEAK, "38 of 40"},
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 123, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 123, 1, 40, 1)), "data.held_out", CALLS_HINT,
     "37 of 40"},
    {RANK(TRAIN(160, 0, 2, 72, 0), VAL(40, 123, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 72, 1), VAL(40, 123, 1, 40, 1)), "data.held_out", CALLS_HINT,
     "21 of 40"},
    {RANK(TRAIN(160, 0, 2, 71, 0), VAL(40, 123, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 72, 1), VAL(40, 123, 1, 40, 1)), "data.held_out", LS_WEAK, "20 of 40"},
    /* a few duplicates */
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(40, 158, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(40, 158, 1, 40, 1)), "data.held_out", LS_PASS,
     "not trained on"},
    /* a training score */
    {RANK(TRAIN(160, 0, 2, 80, 0), VAL(160, 0, 2, 80, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), VAL(160, 1, 2, 80, 1)), "data.held_out", LS_WEAK,
     "training score"},
    /* a first batch builds the model, at the place of all passes: no validation */
    {RANK(VAL(160, 0, 1, 40, 0), TRAIN(160, 0, 2, 80, 0), VAL(40, 160, 1, 40, 0)),
     RANK(VAL(160, 0, 1, 40, 1), TRAIN(160, 1, 2, 80, 1), VAL(40, 160, 1, 40, 1)), "data.held_out",
     LS_PASS, "40 samples of validations are not trained on |"},
    /* half of the data trained on so far */
    {RANK(TRAIN(160, 0, 1, 40, 0), VAL(150, 0, 1, 80, 0)),
     RANK(TRAIN(160, 40, 1, 40, 1), VAL(150, 80, 1, 80, 1)), "data.held_out", LS_WEAK,
     "training score"},
    /* pictures that change from pass to pass */
    {RANK(TRAIN(160, 0, 2, 80, 0), TRAIN(160, 1000, 2, 80, 0), VAL(40, 160, 1, 40, 0)),
     RANK(TRAIN(160, 1, 2, 80, 1), TRAIN(160, 1001, 2, 80, 1), VAL(40, 160, 1, 40, 1)),
     "data.held_out", LS_UNSUPPORTED, "from pass to pass"},
    /* no validation */
    {RANK(TRAIN(160, 0, 2, 80, 0)), RANK(TRAIN(160, 1, 2, 80, 1)), "data.held_out", LS_SKIP,
     "no pass"},
};

ROWS_TEST(contents_are_judged, jobs)
{
    calls_job job;
    calls_open(&job, 2);
    calls_script(&job, "4x F S B K P Z");
    for (int i = 0; i < PASSES && jobs[_i].zero[i].at != NULL; i++) {
        write_pass(&job, 0, &jobs[_i].zero[i]);
        write_pass(&job, 1, &jobs[_i].one[i]);
    }
    calls_end(&job, jobs[_i].id, jobs[_i].code, jobs[_i].words);
}

/* Forwards of an average, or a copy, in training mode while the model is in eval mode. */
#define AVERAGE(what, times, more)                                                       \
    "A{\"call\":\"average\",\"what\":\"" what "\",\"average\":0,\"training\":true," more \
    "\"dropout\":2,\"at\":\"train.py:20\",\"norms\":1,\"times\":" times "}"

/* One more step, in which a validation of ten batches was made, divided between two ranks. */
static const struct {
    const char *calls;
    int length; /* of the data */
    const char *at;
    const char *id;
    ls_verdict_code code;
    const char *words;
} validations[] = {
    {"F S B K P Z E F{\"grad\":false,\"training\":false,\"times\":10} T A", 80, "val.py:4",
     "validation.mode", LS_PASS, "2 validations: nothing draws"},
    {"F S B K P Z F{\"grad\":false,\"times\":10} A", 80, "val.py:4", "validation.mode", LS_FAIL,
     "rank 0: Net runs in training mode over 10 batches that are not trained on | no model.eval() "
     ".. | train.py:20 | model.eval()"},
    {"F S B K P Z F{\"grad\":false,\"times\":9} A", 80, "val.py:4", "validation.mode", LS_FAIL,
     "10 batches"},
    /* several masks for each batch; norms that are run in eval mode elsewhere */
    {"F S B K P Z F{\"grad\":false,\"times\":12} A", 80, "val.py:4", "validation.mode", CALLS_HINT,
     "10 batches"},
    {"F{\"training\":false} F S B K P Z F{\"grad\":false,\"times\":10} A", 80, "val.py:4",
     "validation.mode", CALLS_HINT, "10 batches"},
    {"F S B K P Z F{\"grad\":false,\"times\":8} A", 80, "val.py:4", "validation.mode", LS_PASS,
     "2 valid"},
    /* statistics of batch norm over the training data, or by a loop of a library */
    {"F S B K P Z F{\"grad\":false,\"times\":10} A", 160, "val.py:4", "validation.mode", LS_PASS,
     "measured anew"},
    {"F S B K P Z F{\"grad\":false,\"times\":10} A", 80, "train.py:20", "validation.mode", LS_PASS,
     "measured anew"},
    /* an average, and a copy that is validated twice; one that its train() was called of; norms run
     * in eval mode elsewhere, and over training data; a teacher, or MC dropout, of a copy */
    {"F S B K P Z E " AVERAGE("forward", "10", "") " T", 80, "val.py:4", "validation.mode", LS_FAIL,
     "rank 0: an AveragedModel runs in training mode over 10 batches that are not trained on, "
     "while "
     "the model is in eval mode (dropouts: 2, norms: 1) | model.eval() does not reach the average"},
    {"F S B K P Z E " AVERAGE("copy", "10", "") " T; F S B K P Z E " AVERAGE("copy", "10", "") " T",
     80, "val.py:4", "validation.mode", LS_FAIL, "a copy of a model runs in training mode"},
    {"F S B K P Z E " AVERAGE("copy", "10", "") " T; F S B K P Z E " AVERAGE(
         "copy", "10", "\"meant\":true,") " T",
     80, "val.py:4", "validation.mode", CALLS_HINT, "a copy of a model"},
    {"F S B K P Z E " AVERAGE("copy", "10", "") " T", 80, "val.py:4", "validation.mode", CALLS_HINT,
     "a copy of a model"},
    {"F S B K P Z E " AVERAGE("forward", "10", "\"meant\":true,") " T", 80, "val.py:4",
     "validation.mode", CALLS_HINT, "an AveragedModel"},
    {"A{\"call\":\"average\",\"what\":\"forward\",\"average\":0,\"training\":false} F S B K P Z "
     "E " AVERAGE("forward", "10", "") " T",
     80, "val.py:4", "validation.mode", CALLS_HINT, ""},
    {"F S B K P Z E " AVERAGE("forward", "10", "") " T", 160, "val.py:4", "validation.mode",
     LS_SKIP, ""},
    {"F S B K P Z E " AVERAGE("forward", "10", "") " T", 80, "train.py:20", "validation.mode",
     LS_SKIP, ""},
    {"F S B K P Z E " AVERAGE("forward", "8", "") " T", 80, "val.py:4", "validation.mode", LS_SKIP,
     ""},
    {"F S B K P Z E " AVERAGE("forward", "10", "\"norms\":0,") " T", 80, "val.py:4",
     "validation.mode", LS_FAIL, "norms: 0"},
    {"F S B K P Z E " AVERAGE("forward", "20", "\"norms\":0,") " T", 80, "val.py:4",
     "validation.mode", CALLS_HINT, ""},
    /* a generator that draws once without gradients */
    {"F S B K P Z F{\"grad\":false} A", 80, "val.py:4", "validation.mode", LS_PASS, ""},
    {"F S B K P Z A", 80, "val.py:4", "validation.mode", LS_SKIP, "no forward"},
    {"F S B K P Z E F{\"grad\":false,\"training\":false,\"times\":10} T A", 80, "val.py:4",
     "validation.whole", LS_PASS, "collectives in 1 of 1"},
    {"F S B K P Z E F{\"grad\":false,\"training\":false,\"times\":10} T A", 79, "val.py:4",
     "validation.whole", LS_PASS, "1 of 79 count twice"},
    {"F S B K P Z E F{\"grad\":false,\"training\":false,\"times\":10} T", 80, "val.py:4",
     "validation.whole", LS_WEAK,
     "what a rank prints or chooses by is of 1/2 of the data .. | val.py:4 | all_reduce"},
    {"F S B K P Z E F{\"grad\":false,\"training\":false,\"times\":10} T", 80, "val.py:4",
     "validation.whole", LS_WEAK, "nothing sums"},
};

ROWS_TEST(validations_are_judged, validations)
{
    calls_job job;
    calls_open(&job, 2);
    calls_script(&job, "7x F S B K P Z");
    calls_script(&job, validations[_i].calls);
    for (int k = 0; k < 2; k++) {
        LS_TEXT(line, 600,
                "{\"event\":\"data\",\"loader\":1,\"pass\":0,\"at\":\"%s\",\"sampler\":"
                "\"DistributedSampler\",\"replicas\":2,\"length\":%d,\"batch\":4,\"count\":40,"
                "\"whole\":true,\"trained\":false,\"steps\":[8,8]}",
                validations[_i].at, validations[_i].length);
        reading training = {true, "train.py:18", 160, k, 2, 80, k};
        write_pass(&job, k, &training);
        calls_event(&job, k, line);
    }
    calls_end(&job, validations[_i].id, validations[_i].code, validations[_i].words);
}

/* Both ranks get the same batches of a stream, or each its own. */
#define OF_STREAM(steps, given)                                                             \
    steps "{\"event\":\"data\",\"loader\":0,\"pass\":0,\"at\":\"train.py:18\",\"batch\":4," \
          "\"built\":\"train.py:12\",\"count\":0,\"given\":" given                          \
          ",\"indices\":false,\"trained\":true,\"steps\":[1,4]}"
#define SAME "2x (F{\"input\":\"11\"} S B K P Z; F{\"input\":\"22\"} S B K P Z);"
#define OWN "4x F S B K P Z;"

static const calls_row streams[] = {
    {OF_STREAM(SAME, "4"), "data.distinct", LS_FAIL, "the same stream .. train.py:12"},
    {OF_STREAM(SAME, "4"), "data.disjoint", LS_SKIP, "no indices"},
    {OF_STREAM(OWN, "4"), "data.distinct", LS_PASS, "inputs differ"},
    {OF_STREAM(OWN, "4"), "data.disjoint", LS_SKIP, "no indices"},
    {OF_STREAM(OWN, "0"), "data.distinct", LS_PASS, "inputs differ"},
    /* a pass of which no batch came while others trained is none of theirs */
    {OF_STREAM(OWN, "0"), "data.disjoint", LS_UNSUPPORTED, "no pass over"},
};

CALLS_TEST(streams_are_split, streams)

TEST_MAIN("observe_contents", .timeout_s = 120)
