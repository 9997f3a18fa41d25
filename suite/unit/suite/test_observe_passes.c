/* Passes over data on invented jobs: parts that are divided twice, streams that each worker reads,
 * validations that change, count what fills up a batch or choose by a part, and what looks like
 * them. */
#include "observe_calls.h"
#include "suite/observe/rules/rules.h"
#include "suite/unit/run_suite.h"

#define AT(line) "\"at\":\"train.py:" line "\","

/* Numbers first, first + stride, ..., as a list behind `name`. */
static void add_list(char *line, size_t bytes, const char *name, int first, int stride, int count)
{
    ls_text_add(line, bytes, ",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        ls_text_add(line, bytes, "%s%d", i > 0 ? "," : "", first + i * stride);
    }
    ls_text_add(line, bytes, "]");
}

/* ---- data.once, data.disjoint ---------------------------------------------------------------- */

typedef struct reading {
    const char *members; /* in place of the usual ones */
    int part, stride;    /* of the indices that the rank's Subset of 200 has; stride 0: none */
    int drawn;           /* the first of 50 indices that are drawn */
    int keys, times;     /* contents, and how often each comes */
} reading;

static void write_reading(calls_job *job, int rank, const reading *r)
{
    static char line[20000];
    ls_text_put(
        line, sizeof line,
        "{\"event\":\"data\",%s\"loader\":0,\"pass\":0," AT(
            "18") "\"sampler\":"
                  "\"DistributedSampler\",\"replicas\":2,\"sampler_rank\":%d,\"shuffle\":true,"
                  "\"sampler_epoch\":0,\"length\":100,\"batch\":4,\"workers\":2,\"count\":50,"
                  "\"whole\":true,\"trained\":true,\"modulus\":1,\"steps\":[1,8]",
        r->members, rank);
    add_list(line, sizeof line, "kept", r->drawn, 2, 50);
    if (r->stride > 0) {
        ls_text_add(line, sizeof line, ",\"part\":{\"length\":200,\"modulus\":1");
        add_list(line, sizeof line, "kept", r->part, r->stride, 100);
        ls_text_add(line, sizeof line, "}");
    }
    ls_text_add(line, sizeof line, ",\"key_modulus\":1,\"keys\":[");
    for (int i = 0; i < r->keys * r->times; i++) {
        ls_text_add(line, sizeof line, "%s%d", i > 0 ? "," : "",
                    1000 + 7919 * (rank + 2 * (i % r->keys)));
    }
    ls_text_add(line, sizeof line, "]}");
    calls_event(job, rank, line);
}

#define STREAM "\"indices\":false,\"sampler\":\"\","
/* Every rank draws all of a set of pictures that change at random, from a seed of its own. */
#define PLAIN "\"sampler\":\"RandomSampler\","
#define CLASSES(digest)                                                                            \
    "\"content\":[[0,\"a" digest "\",3],[2,\"b" digest "\",1],[4,\"c" digest "\",0],[6,\"d" digest \
    "\",2],[8,\"e" digest "\",2],[10,\"f" digest "\",1],[12,\"g" digest "\",3],[14,\"h" digest     \
    "\",0]],"
#define ONE_CLASS(digest)                                                                          \
    "\"content\":[[0,\"a" digest "\",2],[2,\"b" digest "\",2],[4,\"c" digest "\",2],[6,\"d" digest \
    "\",2],[8,\"e" digest "\",2],[10,\"f" digest "\",2],[12,\"g" digest "\",2],[14,\"h" digest     \
    "\",2]],"
#define OTHERS                                                                                   \
    "\"content\":[[0,\"a\",1],[2,\"b\",1],[4,\"c\",2],[6,\"d\",0],[8,\"e\",3],[10,\"f\",0],[12," \
    "\"g\",2],[14,\"h\",1]],"

/* Of rank 0 and rank 1: a data set of which each draws a half; all of it; a part of it; a stream.
 */
#define WHOLE(zero, one)   \
    {zero, 0, 0, 0, 0, 0}, \
    {                      \
        one, 0, 0, 1, 0, 0 \
    }
#define ALL(zero, one)     \
    {zero, 0, 0, 0, 0, 0}, \
    {                      \
        one, 0, 0, 0, 0, 0 \
    }
#define PARTS(members, zero_stride, one_part, one_stride) \
    {members, 0, zero_stride, 0, 0, 0},                   \
    {                                                     \
        members, one_part, one_stride, 1, 0, 0            \
    }
#define NESTED(count, given, kept)                                                \
    "\"sampler\":\"BatchSamplerShard\",\"inner\":\"OwnSampler\",\"count\":" count \
    ",\"inner_count\":" given ",\"inner_kept\":[" kept "],"
#define EVEN "4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38"
#define ODD "5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39"
#define GIVES(zero, one) WHOLE(NESTED("26", "52", zero), NESTED("26", "52", one))
#define STREAMS(keys, times)         \
    {STREAM, 0, 0, 0, keys, times},  \
    {                                \
        STREAM, 0, 0, 0, keys, times \
    }

static const struct {
    reading zero, one;
    const char *id;
    ls_verdict_code code;
    const char *words;
} readings[] = {
    /* one data set */
    {WHOLE("", ""), "data.once", LS_PASS, "twice in 1 passes, or read by each of several workers"},
    /* one split */
    {PARTS("", 2, 0, 2), "data.once", LS_PASS, "1 passes"},
    /* divided twice */
    {PARTS("", 2, 1, 2), "data.once", CALLS_HINT,
     "pass 0: the part of the data set that rank 0 holds has 0 of 100 indices in common with that "
     "of rank 1, and DistributedSampler divides each of them among the ranks | the data are "
     "divided twice: by the script, which gives each rank a part, and by the sampler, which takes "
     "1/2 of it | train.py:18"},
    /* divided by the script alone */
    {PARTS(PLAIN "\"count\":100,", 2, 1, 2), "data.once", LS_PASS, "in 1 passes"},
    /* split by each rank */
    {PARTS("", 2, 0, 1), "data.once", CALLS_HINT,
     "has 50 of 100 indices in common with that of rank 1, and DistributedSampler divides each of "
     "them among the ranks | the data are split differently on each rank"},
    /* parts that each rank has filtered: nine tenths are one and the same, or fewer */
    {PARTS("", 1, 10, 1), "data.once", LS_PASS, "1 passes"},
    {PARTS("", 1, 11, 1), "data.once", CALLS_HINT, "has 89 of 100 indices in common"},
    /* divided by the script and by a library */
    {PARTS("\"sampler\":\"Shard\",", 2, 1, 2), "data.once", CALLS_HINT,
     "divided twice: by the script"},
    /* divided by the script, and all of it drawn */
    {PARTS("\"sampler\":\"Shard\",\"count\":100,", 2, 1, 2), "data.once", LS_PASS, ""},
    /* a sampler that divides, below one that does; but for the last batches; a part of a pass */
    {GIVES(EVEN ",0,2", ODD ",1,3"), "data.once", LS_FAIL,
     "pass 0: OwnSampler gives ranks 0 and 1 52 and 52 indices, others on each, and "
     "BatchSamplerShard takes 26 of them on each | the data are divided twice: by the sampler "
     "below, and by the loader that was prepared again | train.py:18"},
    {WHOLE(NESTED("26", "59", EVEN), NESTED("26", "59", ODD)), "data.once", LS_FAIL, "59 and 59"},
    {WHOLE(NESTED("26", "60", EVEN), NESTED("26", "52", ODD)), "data.once", LS_PASS, "1 passes"},
    {WHOLE(NESTED("26", "52", EVEN), NESTED("26", "44", ODD)), "data.once", LS_PASS, "1 passes"},
    {WHOLE("\"whole\":false," NESTED("26", "52", EVEN), NESTED("26", "52", ODD)), "data.once",
     LS_PASS, "1 passes"},
    {WHOLE(NESTED("4", "7", EVEN), NESTED("4", "8", ODD)), "data.once", LS_PASS, "1 passes"},
    /* the same indices on both ranks; but for some; with repeats, as where they are drawn */
    {GIVES(EVEN ",0,2", EVEN ",0,2"), "data.once", LS_PASS, "1 passes"},
    {GIVES(EVEN ",0,2", EVEN ",0,1"), "data.once", LS_PASS, "1 passes"},
    {GIVES(EVEN ",0,2", EVEN ",3,1"), "data.once", CALLS_HINT, "divided twice"},
    {GIVES(EVEN ",0,2", ODD ",0,1"), "data.once", LS_FAIL, "divided twice"},
    {GIVES(EVEN ",0,2", ODD ",0,2"), "data.once", CALLS_HINT, "divided twice"},
    {GIVES(EVEN ",4,6", ODD ",0,1"), "data.once", CALLS_HINT, "divided twice"},
    /* each worker reads the stream */
    {STREAMS(20, 2), "data.once", LS_FAIL,
     "rank 0: each sample of the stream comes 2 times in a pass, and the loader has 2 workers | "
     "every worker reads the whole stream"},
    {STREAMS(8, 2), "data.once", LS_FAIL, "each sample of the stream comes 2 times"},
    {STREAMS(7, 2), "data.once", LS_PASS, "twice in 1 passes, or read by each of several"},
    {{STREAM, 0, 0, 0, 20, 1}, {STREAM, 0, 0, 0, 20, 2}, "data.once", LS_FAIL, "rank 1: each"},
    {{STREAM "\"workers\":1,", 0, 0, 0, 20, 2}, {STREAM, 0, 0, 0, 20, 1}, "data.once", LS_PASS, ""},
    {{STREAM "\"whole\":false,", 0, 0, 0, 20, 2},
     {STREAM, 0, 0, 0, 20, 1},
     "data.once",
     LS_PASS,
     ""},
    /* workers share the stream */
    {STREAMS(40, 1), "data.once", LS_PASS, "twice in 1 passes, or read by each worker |"},
    /* a stream that comes three times */
    {STREAMS(20, 3), "data.once", LS_PASS, ""},
    /* all of a set of pictures that change */
    {ALL(PLAIN CLASSES("1") "\"source\":\"aa\",", PLAIN CLASSES("2") "\"source\":\"aa\","),
     "data.disjoint", CALLS_HINT, "no DistributedSampler"},
    /* each rank draws from a part of its own, in the same order; from parts that overlap */
    {{PLAIN CLASSES("1"), 0, 2, 0, 0, 0},
     {PLAIN CLASSES("2"), 1, 2, 0, 0, 0},
     "data.disjoint",
     LS_PASS,
     "indices of 2 ranks disjoint in 1 passes"},
    {{PLAIN CLASSES("1"), 0, 2, 0, 0, 0},
     {PLAIN CLASSES("2"), 1, 1, 0, 0, 0},
     "data.disjoint",
     LS_WEAK,
     "its own data set"},
    /* files of each rank, of the same classes */
    {ALL(PLAIN CLASSES("1") "\"source\":\"aa\",", PLAIN CLASSES("2") "\"source\":\"bb\","),
     "data.disjoint", LS_WEAK, "its own data set"},
    /* samples that are drawn whatever the index */
    {ALL(PLAIN CLASSES("1") "\"source\":\"aa\",", PLAIN OTHERS "\"source\":\"aa\","),
     "data.disjoint", LS_WEAK, "its own data set"},
};

ROWS_TEST(readings_are_judged, readings)
{
    calls_job job;
    calls_open(&job, 2);
    calls_script(&job, "4x F S B K P Z");
    write_reading(&job, 0, &readings[_i].zero);
    write_reading(&job, 1, &readings[_i].one);
    calls_end(&job, readings[_i].id, readings[_i].code, readings[_i].words);
}

/* ---- validations ----------------------------------------------------------------------------- */

/* Two passes over a loader, after steps 4 and 8, and a file. */
typedef struct validated {
    const char *name;
    const char *calls;          /* of those steps, behind the training's */
    const char *first, *second; /* members of the passes in place of the usual ones */
    int length, zero, one;      /* samples; the first index that each rank draws, of 32 */
    int stride;
    const char *path; /* of the file */
    const char *id;
    ls_verdict_code code;
    const char *words;
} validated;

#define EVAL " E F{\"grad\":false,\"training\":false,\"times\":8} T"
#define GATHERED(times, cut)                                                                       \
    " E F{\"grad\":false,\"training\":false,\"times\":8} A{\"op\":\"all_gather\",\"times\":" times \
    "," cut "\"grad\":false} T"
#define GATHER(cut) GATHERED("8", cut)
#define DECISION EVAL " A{\"elements\":1,\"use\":\"decision\"}"

#define UNEVEN "\"batch\":12,\"given\":3,"
#define SUMMED(values) " A{\"elements\":2,\"values\":[" values "]}"

#define STORED "\"source\":\"aa\","

static const validated validations[] = {
    {"the same samples", EVAL " A", STORED CLASSES("1"), STORED CLASSES("1"), 64, 0, 1, 2,
     "last.pt", "validation.fixed", LS_PASS, "in 2 validations as"},
    {"samples that change", EVAL " A", STORED CLASSES("1"), STORED CLASSES("2"), 64, 0, 1, 2,
     "last.pt", "validation.fixed", LS_FAIL,
     "rank 0: 8 of 8 samples of the validation at val.py:4 are not what they were in the pass "
     "before, with the same classes | validation samples are changed at random: the training's "
     "augmentation"},
    {"three that change", EVAL, STORED CLASSES("1"),
     STORED "\"content\":[[0,\"a1\",3],[2,\"b1\",1],[4,\"c1\",0],[6,\"d1\",2],[8,\"e1\",2],[10,"
            "\"f2\",1],[12,\"g2\",3],[14,\"h2\",0]],",
     64, 0, 1, 2, "last.pt", "validation.fixed", LS_PASS, "in 2 validations"},
    {"four that change", EVAL, STORED CLASSES("1"),
     STORED "\"content\":[[0,\"a1\",3],[2,\"b1\",1],[4,\"c1\",0],[6,\"d1\",2],[8,\"e2\",2],[10,"
            "\"f2\",1],[12,\"g2\",3],[14,\"h2\",0]],",
     64, 0, 1, 2, "last.pt", "validation.fixed", LS_FAIL, "rank 0: 4 of 8 samples"},
    {"seven samples", EVAL, STORED CLASSES("1"),
     STORED "\"content\":[[0,\"a2\",3],[2,\"b2\",1],[4,\"c2\",0],[6,\"d2\",2],[8,\"e2\",2],[10,"
            "\"f2\",1],[12,\"g2\",3]],",
     64, 0, 1, 2, "last.pt", "validation.fixed", LS_SKIP, ""},
    {"samples of one class that change", EVAL, STORED ONE_CLASS("1"), STORED ONE_CLASS("2"), 64, 0,
     1, 2, "last.pt", "validation.fixed", LS_FAIL, "rank 0: 8 of 8 samples"},
    {"of another data set", EVAL, STORED ONE_CLASS("1"), "\"source\":\"bb\"," ONE_CLASS("2"), 64, 0,
     1, 2, "last.pt", "validation.fixed", LS_SKIP, ""},
    {"of one that holds nothing", EVAL, ONE_CLASS("1"), ONE_CLASS("2"), 64, 0, 1, 2, "last.pt",
     "validation.fixed", LS_SKIP, ""},
    {"another place", EVAL, STORED CLASSES("1"), STORED CLASSES("2") "\"at\":\"val.py:5\",", 64, 0,
     1, 2, "last.pt", "validation.fixed", LS_SKIP, ""},
    {"samples that are simulated", EVAL " A", CLASSES("1"), CLASSES("2"), 64, 0, 1, 2, "last.pt",
     "validation.fixed", LS_WEAK, "its data set holds nothing"},
    {"other samples", EVAL " A", CLASSES("1"), OTHERS, 64, 0, 1, 2, "last.pt", "validation.fixed",
     LS_SKIP, ""},
    {"a training score", EVAL " A", CLASSES("1") "\"length\":160,", CLASSES("2") "\"length\":160,",
     64, 0, 1, 2, "last.pt", "validation.fixed", LS_WEAK, "training score"},
    {"two loaders", EVAL " A", CLASSES("1"), CLASSES("2") "\"loader\":2,", 64, 0, 1, 2, "last.pt",
     "validation.fixed", LS_SKIP, ""},
    {"padding is gathered", GATHER("\"cut\":false,"), "", "", 60, 0, 28, 1, "last.pt",
     "validation.padding", LS_FAIL,
     "the ranks draw 4 of 60 samples of a validation again, so that all have as many, gather what "
     "they find in 8 calls and cut nothing off | what fills up .. | train.py:28 | gather"},
    {"padding in one call", GATHERED("1", "\"cut\":false,\"elements\":32,"), "", "", 60, 0, 28, 1,
     "last.pt", "validation.padding", LS_FAIL, "in 1 calls and cut nothing off"},
    {"padding of less than a batch", GATHERED("7", "\"cut\":false,"), "", "", 60, 0, 28, 1,
     "last.pt", "validation.padding", LS_PASS, "2 validations put together what ranks find"},
    {"padding that moves no score", GATHER("\"cut\":false,"), "\"length\":400,", "", 60, 0, 28, 1,
     "last.pt", "validation.padding", LS_WEAK, "4 of 400 samples"},
    {"padding that is known of some", GATHER("\"cut\":false,"), "\"length\":399,", "", 60, 0, 28, 1,
     "last.pt", "validation.padding", LS_FAIL, "4 of 399 samples"},
    {"padding is cut off", GATHER("\"cut\":true,"), "", "", 60, 0, 28, 1, "last.pt",
     "validation.padding", LS_PASS,
     "2 validations put together what ranks find, and count none twice"},
    {"by the library", GATHER("\"use\":\"metrics\","), "", "", 60, 0, 28, 1, "last.pt",
     "validation.padding", LS_PASS, "count none twice"},
    {"nothing is padded", GATHER("\"cut\":false,"), "", "", 64, 0, 32, 1, "last.pt",
     "validation.padding", LS_PASS, "count none twice"},
    {"padding is summed", EVAL SUMMED("3,4"), "", "", 60, 0, 28, 1, "last.pt", "validation.padding",
     LS_FAIL,
     "the ranks draw 4 of 60 samples of a validation again, and sum what they find over all of "
     "them | samples that a sampler adds"},
    {"a sum that padding does not move", EVAL SUMMED("3,4"), "\"length\":400,", "\"length\":400,",
     60, 0, 28, 1, "last.pt", "validation.padding", LS_PASS, "count none twice"},
    {"sums of samples once each", EVAL SUMMED("3,4"), "", "", 64, 0, 32, 1, "last.pt",
     "validation.padding", LS_PASS, "count none twice"},
    {"sums of many numbers", EVAL " A{\"elements\":17}", "", "", 60, 0, 28, 1, "last.pt",
     "validation.padding", LS_SKIP, ""},
    {"sums are gathered", GATHER("\"cut\":false,\"elements\":2,"), "", "", 60, 0, 28, 1, "last.pt",
     "validation.padding", LS_SKIP, ""},
    {"the best by a part", EVAL, "", "", 64, 0, 1, 2, "out/model_best.pt", "validation.choice",
     LS_FAIL,
     "rank 0: out/model_best.pt is chosen by a validation that is divided among 2 ranks, and "
     "nothing is put together after any of 2 | the best weights are chosen by the score of the "
     "rank's own part of the samples | train.py:50"},
    {"the best by a part of one of both", EVAL, "\"replicas\":1,", "", 64, 0, 1, 2, "Best.pt",
     "validation.choice", LS_PASS, "all ranks"},
    {"in training mode", " F{\"grad\":false,\"times\":8}", "", "", 64, 0, 1, 2, "best.pt",
     "validation.choice", LS_PASS, "all ranks"},
    {"with autograd", " E F{\"training\":false,\"times\":8} T", "", "", 64, 0, 1, 2, "best.pt",
     "validation.choice", LS_PASS, "all ranks"},
    {"the best by all", EVAL " A", "", "", 64, 0, 1, 2, "out/model_best.pt", "validation.choice",
     LS_PASS, "what is chosen follows the scores of all ranks |"},
    {"a broadcast puts nothing together", EVAL " A{\"op\":\"broadcast\"}", "", "", 64, 0, 1, 2,
     "best.pt", "validation.choice", LS_FAIL, "own part of the samples"},
    {"a sum of the training is none of the validation", " A" EVAL, "", "", 64, 0, 1, 2, "best.pt",
     "validation.choice", LS_FAIL, "own part of the samples"},
    {"the last one", EVAL, "", "", 64, 0, 1, 2, "best/last.pt", "validation.choice", LS_SKIP,
     "nothing is seen to be chosen by a validation"},
    {"the best by a whole validation", EVAL, "\"replicas\":1,", "\"replicas\":1,", 64, 0, 0, 1,
     "best.pt", "validation.choice", LS_SKIP, "no validation is divided among the ranks"},
    {"a part next to a whole validation", EVAL, "\"replicas\":1,", "", 64, 0, 0, 1, "best.pt",
     "validation.choice", LS_PASS, ""},
    {"a callback's vote puts nothing together", DECISION, "", "", 64, 0, 1, 2, "best.pt",
     "validation.choice", LS_FAIL, "own part of the samples"},
    {"a callback's vote puts nothing together", DECISION, "", "", 64, 0, 1, 2, "last.pt",
     "validation.whole", LS_WEAK,
     "no collective follows: what a rank prints or chooses by is of 1/2 of the data | each .. | "
     "val.py:4 | all_reduce"},
    {"one of both is put together", EVAL " A", "\"steps\":[2,2],", "", 64, 0, 1, 2, "last.pt",
     "validation.whole", LS_PASS, "collectives in 1 of 2 validations that are divided |  |  | "},
    {"three of padding", EVAL " A", "", "\"replicas\":4,", 61, 0, 1, 2, "last.pt",
     "validation.whole", LS_PASS,
     "| val.py:4 | the sampler repeats samples so that all ranks have as many: 3 of 61 count"},
    {"dropped ends", EVAL " A", "\"drop_last\":true,", "\"drop_last\":true,", 61, 0, 1, 2,
     "last.pt", "validation.whole", LS_PASS, "in 2 of 2 validations that are divided |  |  | "},
    {"one replica", EVAL " A", "\"replicas\":1,", "\"replicas\":1,", 61, 0, 1, 2, "last.pt",
     "validation.whole", LS_SKIP, "no validation is divided by a DistributedSampler"},
    {"a mean of batches", EVAL SUMMED("0.5,3") SUMMED("2.5,3"), UNEVEN, UNEVEN, 64, 0, 1, 2,
     "last.pt", "evaluation.counted", LS_FAIL,
     "the ranks sum the number of batches in 4 of 4 validations, and none of samples: of 32 "
     "samples in batches of 12 the last one has 8 | the score is a mean of batches .. | "
     "train.py:28 | sum what each sample gives"},
    {"a mean of batches, once", EVAL SUMMED("0.5,3"), UNEVEN, "\"given\":8,", 64, 0, 1, 2,
     "last.pt", "evaluation.counted", LS_WEAK, "in 2 of 2 validations"},
    {"whole batches", EVAL SUMMED("20,36"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt",
     "evaluation.counted", LS_FAIL, "batches as if all were whole .. more samples than there are"},
    {"the data set on each rank", EVAL SUMMED("20,64"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt",
     "evaluation.counted", LS_FAIL, "samples of the whole data set on each rank"},
    {"samples", EVAL SUMMED("3,32"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt", "evaluation.counted",
     LS_PASS, "4 counts"},
    {"batches of a loss, and samples", EVAL SUMMED("0.5,3") SUMMED("20,32"), UNEVEN, UNEVEN, 64, 0,
     1, 2, "last.pt", "evaluation.counted", LS_SKIP, ""},
    {"pixels", EVAL SUMMED("100,2048"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt",
     "evaluation.counted", LS_SKIP, ""},
    {"sums of sums", EVAL SUMMED("0.5,4") SUMMED("1,12") SUMMED("2,28"), "", "", 64, 0, 1, 2,
     "last.pt", "evaluation.counted", LS_FAIL,
     "number 1 of what the ranks sum holds the last sum on every rank when it is summed again: 24 "
     "of 28 on rank 0 | each rank goes on counting from the sum of all ranks .. | train.py:28 | "
     "sum once"},
    {"a sum of a sum", EVAL SUMMED("0.5,4") SUMMED("1,12") SUMMED("2,29"), "", "", 64, 0, 1, 2,
     "last.pt", "evaluation.counted", LS_SKIP, ""},
    {"sums that begin again", EVAL SUMMED("4,0") SUMMED("12,0") SUMMED("4,0") SUMMED("12,0"), "",
     "", 64, 0, 1, 2, "last.pt", "evaluation.counted", LS_SKIP, ""},
    {"sums of fractions", EVAL SUMMED("0.5,1") SUMMED("1.5,1") SUMMED("3.5,1"), "", "", 64, 0, 1, 2,
     "last.pt", "evaluation.counted", LS_SKIP, ""},
    {"totals, summed as copies", EVAL SUMMED("4,4") SUMMED("8,8") SUMMED("12,12"), "", "", 64, 0, 1,
     2, "last.pt", "evaluation.counted", LS_SKIP, ""},
    {"one number", EVAL SUMMED("3"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt", "evaluation.counted",
     LS_SKIP, ""},
    {"a mean of batches' shares", EVAL SUMMED("0.583333313"), UNEVEN, UNEVEN, 64, 0, 1, 2,
     "last.pt", "evaluation.counted", LS_FAIL,
     "means of their batches' shares after 2 validations .. | the score is a mean of batches .. | "
     "train.py:28"},
    {"a share of the samples", EVAL SUMMED("0.59375"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt",
     "evaluation.counted", LS_SKIP, ""},
    {"a loss", EVAL SUMMED("0.5833"), UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt", "evaluation.counted",
     LS_SKIP, ""},
    {"equal batches", EVAL SUMMED("0.5,8"), "\"given\":8,", "\"given\":8,", 64, 0, 1, 2, "last.pt",
     "evaluation.counted", LS_SKIP, ""},
    {"behind the training", SUMMED("0.5,3") EVAL, UNEVEN, UNEVEN, 64, 0, 1, 2, "last.pt",
     "evaluation.counted", LS_SKIP, ""},
};

static void write_validation(calls_job *job, int rank, const validated *v, int number)
{
    char line[4000];
    ls_text_put(line, sizeof line,
                "{\"event\":\"data\",%s\"loader\":1,\"pass\":%d,\"at\":\"val.py:4\",\"sampler\":"
                "\"DistributedSampler\",\"replicas\":2,\"sampler_rank\":%d,\"shuffle\":false,"
                "\"length\":%d,\"batch\":4,\"workers\":0,\"count\":32,\"whole\":true,\"trained\":"
                "false,\"modulus\":1,\"steps\":[%d,%d]",
                number == 0 ? v->first : v->second, number, rank, v->length, 4 + 4 * number,
                4 + 4 * number);
    add_list(line, sizeof line, "kept", rank == 0 ? v->zero : v->one, v->stride, 32);
    ls_text_add(line, sizeof line, "}");
    calls_event(job, rank, line);
}

ROWS_TEST(validations_are_judged, validations)
{
    const validated *v = &validations[_i];
    calls_job job;
    calls_open(&job, 2);
    for (int i = 0; i < 8; i++) {
        LS_TEXT(calls, 600, "F S B K P Z%s", i % 4 == 3 ? v->calls : "");
        calls_step(&job, calls);
    }
    for (int k = 0; k < 2; k++) {
        static const reading training[] = {{"\"length\":160,", 0, 0, 0, 0, 0},
                                           {"\"length\":160,", 0, 0, 1, 0, 0}};
        write_reading(&job, k, &training[k]);
        write_validation(&job, k, v, 0);
        write_validation(&job, k, v, 1);
    }
    LS_TEXT(save, 200,
            "{\"event\":\"save\",\"at\":\"train.py:50\",\"step\":4,\"path\":\"%s\",\"what\":{"
            "\"model\":[\"m\"]},\"params\":3}",
            v->path);
    calls_event(&job, 0, save);
    calls_end(&job, v->id, v->code, v->words);
}

/* Validations of 40 samples on one rank, of 30 on the other, and what they put together. */
#define PART(rank, number, count, of)                                              \
    rank ": {\"event\":\"data\",\"trained\":false,\"whole\":true,\"batch\":10," of \
         "\"given\":4,\"count\":" count ",\"steps\":[" number "," number "]}; "
#define SHARED(zero, one) "0: F S B K P Z" SUMMED(zero) "; 1: F S B K P Z" SUMMED(one)
#define UNEQUAL_OF(a, b, zero, one) \
    PART("0", "1", "40", a)         \
    PART("1", "1", "30", b)         \
    PART("0", "2", "40", a) PART("1", "2", "30", b) SHARED(zero, one) "; " SHARED(zero, one)
#define ONE_SET "\"part\":{\"length\":70},"
#define UNEQUAL(zero, one) UNEQUAL_OF(ONE_SET, ONE_SET, zero, one)

static const calls_row parts[] = {
    {UNEQUAL("0.775", "0.633333325"), "evaluation.counted", LS_FAIL,
     "shares of their own samples after 2 validations: of 30 on one rank, of 40 on another .. "
     "train.py:28"},
    {UNEQUAL("77.5", "63.3333321"), "evaluation.counted", LS_FAIL, "of 30 on one rank"},
    {UNEQUAL_OF("\"length\":40,", "\"length\":30,", "0.775", "0.633333325"), "evaluation.counted",
     LS_WEAK, "right where each rank has its own data set"},
    /* of the samples of both; counts; a loss */
    {UNEQUAL("0.442857146", "0.271428585"), "evaluation.counted", LS_SKIP, ""},
    {UNEQUAL("30,40", "20,30"), "evaluation.counted", LS_SKIP, ""},
    {UNEQUAL("0.7754", "0.6331"), "evaluation.counted", LS_SKIP, ""},
};

CALLS_TEST(shares_of_unequal_parts, parts)

TEST(shares_of_many_ranks)
{
    calls_job job;
    calls_open(&job, CALLS_RANKS);
    for (int k = 0; k < job.world; k++) {
        bool less = k == job.world - 1;
        for (int i = 1; i <= 2; i++) {
            LS_TEXT(script, 400,
                    "%d: {\"event\":\"data\",\"trained\":false,\"whole\":true," ONE_SET
                    "\"batch\":10,\"given\":4,\"count\":%d,\"steps\":[%d,%d]}; "
                    "%d: F S B K P Z" SUMMED("%s"),
                    k, less ? 30 : 40, i, i, k, less ? "0.633333325" : "0.775");
            calls_script(&job, script);
        }
    }
    calls_end(&job, "evaluation.counted", LS_FAIL, "of 30 on one rank, of 40 on another");
}

/* ---- workers --------------------------------------------------------------------------------- */

/* What two workers drew from in two passes, and the verdict on it. */
static const struct {
    const char *first, *second;
    ls_verdict_code code;
    const char *words;
} drew[] = {
    {"[0,{\"torch\":\"a\",\"random\":\"b\"}],[1,{\"torch\":\"c\"}]",
     "[0,{\"torch\":\"d\"}],[1,{\"torch\":\"e\"}]", LS_PASS,
     "random numbers of their own in 8 workers"},
    {"[0,{\"torch\":\"a\"}],[1,{\"torch\":\"a\"}]", "", LS_FAIL,
     "rank 0, pass 0: workers 0 and 1 draw the same random numbers (torch) | all workers are "
     "seeded alike"},
    {"[0,{\"torch\":\"a\"}],[1,{\"torch\":\"b\"}],[2,{\"random\":\"c\",\"torch\":\"b\"}]", "",
     LS_FAIL, "workers 1 and 2 draw the same random numbers (torch)"},
    {"[0,{\"torch\":\"a\"}],[0,{\"torch\":\"a\"}]", "", LS_SKIP, "no two workers"},
    {"[0,{\"dataset.rng\":\"a\"}],[1,{\"dataset.rng\":\"a\"}]", "", LS_FAIL,
     "(dataset.rng) | the data set has a generator of its own"},
    /* seeded again for each sample, or left equal */
    {"[0,{\"dataset.rng\":\"a\"},true,{\"dataset.rng\":\"b\"}]",
     "[0,{\"dataset.rng\":\"a\"},true,{\"dataset.rng\":\"c\"}]", LS_PASS, ""},
    {"[0,{\"dataset.rng\":\"a\"},true,{\"dataset.rng\":\"b\"}]",
     "[0,{\"dataset.rng\":\"a\"},true,{\"dataset.rng\":\"b\"}]", LS_FAIL, "(dataset.rng)"},
    {"[0,{\"dataset.rng\":\"a\"}]", "[0,{\"dataset.rng\":\"a\"}]", LS_FAIL,
     "begin each pass with the same state of the data set's own generator"},
    {"[0,{\"torch\":\"a\"}],[1,{\"torch\":\"c\"}]", "[0,{\"torch\":\"a\"}],[1,{\"torch\":\"c\"}]",
     LS_FAIL,
     "rank 0: worker 0 draws in pass 0 the random numbers of pass 0 (torch) | the workers begin "
     "each pass with the same seed"},
    /* one worker after the other of a loader that is built anew */
    {"[0,{\"torch\":\"a\"}]", "[1,{\"torch\":\"a\"}]", LS_SKIP, ""},
    {"[0,{}],[1,{}]", "[0,{}],[1,{}]", LS_PASS, ""},
};

ROWS_TEST(workers_draw_their_own, drew)
{
    calls_job job;
    calls_open(&job, 2);
    calls_step(&job, "F S B K P Z");
    for (int pass = 0; pass < 2; pass++) {
        const char *random = pass == 0 ? drew[_i].first : drew[_i].second;
        LS_TEXT(members, 300, "\"random\":[%s],", random);
        reading r = {members, 0, 0, 0, 0, 0};
        for (int k = 0; k < 2; k++) {
            write_reading(&job, k, &r);
        }
    }
    calls_end(&job, "data.random", drew[_i].code, drew[_i].words);
}

/* What each of two ranks draws for a batch of 16: from a generator's state, so many numbers. */
#define DREW(state, numbers) \
    "F{\"drawn\":[[\"torch\",\"" state "\"," numbers "]],\"samples\":16} S B K P Z"
#define RANKS(zero, one) "0:" zero "; 1:" one
#define NOISE(a, b, numbers) \
    RANKS(DREW(a, numbers), DREW(b, numbers)) "; " RANKS(DREW(a "2", numbers), DREW(b "2", numbers))
/* Forwards that begin in these states, and normal numbers that the model draws in each. */
#define BEGAN(state) "F{\"begins\":\"" state "\"} S B K P Z"
#define BEGUN(a, b) "; " RANKS(BEGAN(a), BEGAN(b))
#define ALIKE BEGUN("a", "a") BEGUN("b", "b") BEGUN("c", "c")
#define MASK                                                                                     \
    "{\"event\":\"noise\",\"at\":\"net.py:9\",\"function\":\"rand\",\"numbers\":32,\"samples\":" \
    "16}"
#define NORMAL(numbers)                                                                    \
    "{\"event\":\"noise\",\"at\":\"net.py:9\",\"function\":\"randn\",\"numbers\":" numbers \
    ",\"samples\":16}"
#define SEED(seed) "{\"event\":\"seed\",\"at\":\"train.py:3\",\"seed\":" seed "}; "
#define WORKERS(a, b, many)                                                                    \
    "F S B K P Z; 0:=DistributedSampler 64 8 0 2 1 \"random\":[[0,{\"torch\":\"" a "\"}," many \
    "]],; "                                                                                    \
    "1:=DistributedSampler 64 8 1 2 1 \"random\":[[0,{\"torch\":\"" b "\"}," many "]],"
#define OF_RANKS(a, b) WORKERS(a, b, "true")
/* Without workers; the states after the first batch. */
#define ALONE(rank, left)                                                                  \
    rank ":=DistributedSampler 64 8 " rank " 2 1 \"random\":[[-1,{\"random\":\"a\"},true," \
         "{\"random\":\"" left "\"}]],"
#define DATA_SET(a, b) "F S B K P Z; " ALONE("0", a) "; " ALONE("1", b)
#define MIXED(numbers) \
    "F{\"drawn\":[[\"random\",\"a\",1],[\"torch\",\"b\"," numbers "]],\"samples\":4} S B K P Z"
#define FEW(a, b) WORKERS(a, b, "false")

/* Masks of the first two batches, of other samples on both ranks. */
#define MASKS(rank, a, b, rows, more)                                                          \
    rank ":=DistributedSampler 64 8 " rank " 2 1 " more "\"masks\":[[1,2," rows ",\"" a "\"]," \
         "[2,2,4,\"" b "\"]],"
#define MASKED(b, its, rows, more) \
    "F S B K P Z; " MASKS("0", "a", b, rows, more) "; " MASKS("1", "a", its, rows, more)

/* A step of one rank that draws from that state for the samples of that name. */
#define ONE_DREW(state, input, numbers, model)                                              \
    "F{\"drawn\":[[\"torch\",\"" state "\"," numbers "]],\"samples\":16,\"input\":\"" input \
    "\",\"model\":" model "} S B K P Z; "
#define OF_PASS(input, numbers, model) \
    ONE_DREW("a", input "1", numbers, model) ONE_DREW("b", input "2", numbers, model)
#define BACK(what, step) "{\"event\":\"restore\",\"what\":\"" what "\",\"step\":" step "}; "

static const calls_row drawn_again[] = {
    {SEED("7") SEED("7") OF_PASS("x", "32", "0") OF_PASS("y", "32", "0") "F S B K P Z",
     "data.random", LS_FAIL,
     "rank 0: step 3 draws 32 numbers for its samples from the state of the generator (torch) from "
     "which step 1 drew for others, and so in 2 of 4 .. in each pass .. train.py:3",
     1},
    {OF_PASS("x", "32", "0") OF_PASS("y", "32", "0") "F S B K P Z", "data.random", LS_FAIL,
     "train.py:20", 1},
    {SEED("7") SEED("8") OF_PASS("x", "32", "0") OF_PASS("y", "32", "0") "F S B K P Z",
     "data.random", LS_FAIL, "train.py:20", 1},
    {OF_PASS("x", "32", "0") ONE_DREW("a", "y", "32", "0") "F S B K P Z", "data.random", LS_SKIP,
     "", 1},
    {OF_PASS("x", "32", "0") OF_PASS("x", "32", "0") "F S B K P Z", "data.random", LS_SKIP, "", 1},
    {OF_PASS("x", "31", "0") OF_PASS("y", "31", "0") "F S B K P Z", "data.random", LS_SKIP, "", 1},
    {OF_PASS("x", "32", "0") OF_PASS("y", "32", "1") "F S B K P Z", "data.random", LS_SKIP, "", 1},
    {OF_PASS("x", "32", "0") BACK("rng", "1") OF_PASS("y", "32", "0") "F S B K P Z", "data.random",
     LS_SKIP, "", 1},
    {OF_PASS("x", "32", "0") BACK("model", "2") OF_PASS("y", "32", "0") "F S B K P Z",
     "data.random", LS_SKIP, "", 1},
    {BACK("rng", "0") OF_PASS("x", "32", "0") OF_PASS("y", "32", "0") "F S B K P Z", "data.random",
     LS_FAIL, "", 1},
    {OF_PASS("x", "32", "0") BACK("optimizer", "1") OF_PASS("y", "32", "0") "F S B K P Z",
     "data.random", LS_FAIL, "", 1},
};

CALLS_TEST(each_pass_draws_its_own, drawn_again)

/* From a generator that an object holds, in two steps: from that state, so many numbers. */
#define OF_HELD(kind, state, numbers)                                                              \
    "F{\"drawn_held\":[[\"" kind "\",\"" state "\"," numbers ",\"Net.rng\"]],\"samples\":16} S B " \
    "K P Z"
#define BOTH_HELD(kind, a, b, numbers)                          \
    RANKS(OF_HELD(kind, a, numbers), OF_HELD(kind, b, numbers)) \
    "; " RANKS(OF_HELD(kind, a "2", numbers), OF_HELD(kind, b "2", numbers))

static const calls_row drawn[] = {
    {BOTH_HELD("PCG64", "a", "a", "16"), "data.random", CALLS_HINT,
     "ranks 0 and 1 draw 16 numbers for 16 samples from one state of a generator (PCG64, Net.rng), "
     "and so in all of 2 forwards .. | seed it by the rank"},
    {BOTH_HELD("torch", "a", "a", "32"), "data.random", CALLS_HINT, "(torch, Net.rng)"},
    /* seeded by the rank; a permutation of the batch; a GPU's; equal samples, as where a model is
     * in parts; alike in one of two steps, and one step */
    {BOTH_HELD("PCG64", "a", "b", "16"), "data.random", LS_PASS, "2 workers, passes and steps"},
    {BOTH_HELD("PCG64", "a", "a", "15"), "data.random", LS_SKIP, ""},
    {BOTH_HELD("torch", "a", "a", "31"), "data.random", LS_SKIP, ""},
    {BOTH_HELD("torch", "a", "a", "null"), "data.random", LS_SKIP, ""},
    {"2x F{\"drawn_held\":[[\"PCG64\",\"a\",32,\"\"]],\"samples\":16,\"input\":\"e\"} S B K P Z",
     "data.random", LS_SKIP, ""},
    {RANKS(OF_HELD("PCG64", "a", "16"), OF_HELD("PCG64", "a", "16")) "; " RANKS(
         OF_HELD("PCG64", "b", "16"), OF_HELD("PCG64", "c", "16")),
     "data.random", LS_PASS, ""},
    {RANKS(OF_HELD("PCG64", "a", "16"), OF_HELD("PCG64", "a", "16")), "data.random", LS_PASS, ""},
    {MASKED("b", "b", "4", "\"collate_at\":\"masks.py:4\","), "data.random", LS_FAIL,
     "pass 0 of train.py:18: field 2 of the batches masks the same places of each row on ranks 0 "
     "and 1, in 8 different rows of its first batches | a generator of the data set's .. | "
     "masks.py:4 | seed it by the rank"},
    {MASKED("b", "b", "4", "\"random\":[[-1,{\"torch\":\"a\"},false]],"), "data.random", CALLS_HINT,
     "all ranks draw the same random numbers: what batches mask is equal on them"},
    {MASKED("b", "b", "4", "\"random\":[[-1,{\"dataset.rng\":\"a\"},false]],"), "data.random",
     LS_FAIL, "masks the same places"},
    {MASKED("b", "c", "4", ""), "data.random", LS_SKIP, ""},
    {MASKED("b", "b", "3", ""), "data.random", LS_SKIP, ""},
    {MASKED("a", "a", "4", ""), "data.random", LS_SKIP, ""}, /* as those of positions are */
    {MASKED("b", "b", "4", "\"order\":\"1\","), "data.random", LS_SKIP, ""},
    {SEED("7") NOISE("a", "a", "32"), "data.random", LS_FAIL,
     "in 2 of 2 steps .. noise or masks are equal .. train.py:3"},
    {NOISE("a", "a", "32"), "data.random", LS_FAIL, "train.py:20"},
    {SEED("7") NOISE("a", "b", "32"), "data.random", LS_PASS, "2 workers, passes and steps"},
    /* a permutation of the batch, and a choice; numbers of a GPU are not counted; one step */
    {NOISE("a", "a", "31"), "data.random", LS_PASS, ""},
    {NOISE("a", "a", "null"), "data.random", LS_PASS, ""},
    {RANKS(DREW("a", "32"), DREW("a", "32")), "data.random", LS_PASS, ""},
    /* equal in one of three; equal batches */
    {NOISE("a", "a", "32") "; " RANKS(DREW("a3", "32"), DREW("b3", "32")), "data.random", LS_PASS,
     ""},
    {"2x F{\"drawn\":[[\"torch\",\"a\",32]],\"samples\":16,\"input\":\"e\"} S B K P Z",
     "data.random", LS_SKIP, ""},
    /* seeded alike in the middle of the job; once; few numbers in all, from one of two */
    {RANKS(DREW("a3", "32"), DREW("b3", "32")) "; " SEED("7") NOISE("a", "a", "32"), "data.random",
     LS_FAIL, "step 2: .. in 2 of 3 steps .. train.py:3"},
    {RANKS(DREW("a3", "32"), DREW("b3", "32")) "; " RANKS(DREW("a", "32"), DREW("a", "32")),
     "data.random", LS_PASS, ""},
    {RANKS(MIXED("12"), MIXED("12")) "; " RANKS(MIXED("12"), MIXED("12")), "data.random", LS_PASS,
     ""},
    {RANKS(MIXED("16"), MIXED("16")) "; " RANKS(MIXED("16"), MIXED("16")), "data.random", LS_FAIL,
     "generator (torch)"},
    /* noise of the model's own: of samples; one number each; a step that differs; one step */
    {SEED("7") NORMAL("32") ALIKE, "data.random", LS_FAIL,
     "begin 2 of 2 forwards in one state .. draws 32 normal numbers for 16 samples (randn) | .. | "
     "train.py:3"},
    {NORMAL("32") ALIKE, "data.random", LS_FAIL, "| net.py:9"},
    {NORMAL("31") ALIKE, "data.random", LS_SKIP, ""},
    /* forwards that draw nothing */
    {NORMAL("32") BEGUN("a", "a") BEGUN("a", "a") BEGUN("a", "a"), "data.random", LS_SKIP, ""},
    {SEED("7") MASK ALIKE, "data.random", CALLS_HINT,
     "draws 32 numbers for 16 samples (rand) .. masks or times .. train.py:3"},
    {MASK BEGUN("a", "b") BEGUN("c", "d"), "data.random", LS_PASS, "1 workers"},
    {NORMAL("32") BEGUN("a", "a") BEGUN("b", "b") BEGUN("c", "d"), "data.random", LS_PASS,
     "2 workers, passes and steps"},
    {NORMAL("32") BEGUN("a", "a"), "data.random", LS_SKIP, ""},
    {NORMAL("32") BEGUN("d", "e") ALIKE, "data.random", LS_FAIL, "begin 2 of 3"},
    {OF_RANKS("a", "a"), "data.random", LS_FAIL, "the workers of ranks 0 and 1 .. train.py:18"},
    /* a choice for the batch */
    {FEW("a", "a"), "data.random", LS_PASS, ""},
    {OF_RANKS("a", "b"), "data.random", LS_PASS, "1 workers, passes and steps"},
    /* in the process of the loop; seeded by each index */
    {DATA_SET("b", "b"), "data.random", LS_FAIL, "the data sets of ranks 0 and 1 .. (random)"},
    {DATA_SET("b", "c"), "data.random", LS_PASS, "1 workers, passes and steps"},
};

CALLS_TEST(ranks_draw_their_own, drawn)

/* A job, and one that goes on from what it wrote. */
#define FIRST_STEP "F S B K P Z"
#define OWN_STATES FIRST_STEP BEGUN("a", "d") BEGUN("b", "e") BEGUN("c", "f")
#define GIVEN_TO(ranks) ranks "{\"event\":\"restore\",\"what\":\"rng\",\"at\":\"train.py:8\"}"

static const struct {
    const char *before, *now;
    ls_verdict_code code;
    const char *words;
} given[] = {
    {OWN_STATES, GIVEN_TO("") ALIKE, LS_FAIL,
     "ranks 0 and 1 began 3 of 3 forwards in states of their own before the file was written, and "
     "begin 3 of 3 in one since it was restored"},
    {OWN_STATES, GIVEN_TO("0: ") ALIKE, LS_SKIP, ""},
    {OWN_STATES, GIVEN_TO("") "; " OWN_STATES, LS_SKIP, ""},
    {OWN_STATES, GIVEN_TO("") ALIKE BEGUN("d", "e"), LS_SKIP, ""}, /* seeded meanwhile */
    {FIRST_STEP ALIKE, GIVEN_TO("") ALIKE, LS_SKIP, ""},
    {OWN_STATES BEGUN("g", "g"), GIVEN_TO("") ALIKE, LS_SKIP, ""},
    {"2x F S B K P Z", GIVEN_TO("") ALIKE, LS_SKIP, ""},
    /* nothing is drawn */
    {OWN_STATES, GIVEN_TO("") BEGUN("a", "a") BEGUN("a", "a"), LS_SKIP, ""},
};

ROWS_TEST(states_are_given_to_their_ranks, given)
{
    calls_job before, job;
    ls_observe_finding found = {0};
    calls_open_script(&before, 2, given[_i].before);
    calls_judge(&before);
    calls_open_script(&job, 2, given[_i].now);
    calls_judge(&job);
    job.trace->before = before.trace;
    ls_rules_data_random(job.trace, &found);
    ck_assert_int_eq(found.verdict.code, given[_i].code);
    ck_assert_ptr_nonnull(strstr(found.verdict.evidence, given[_i].words));
    job.trace->before = NULL;
    calls_close(&job);
    calls_close(&before);
}

/* ---- data.used ------------------------------------------------------------------------------- */

/* Batches that a collate function made again, of one pass of each rank. */
#define COLLATED(zero, one)                                                           \
    "4x F S B K P Z; 0:=DistributedSampler 64 8 0 2 1 \"collate_at\":\"train.py:9\"," \
    "\"collated\":[" zero "],; "                                                      \
    "1:=DistributedSampler 64 8 1 2 1 \"collate_at\":\"train.py:9\",\"collated\":[" one "],"
#define FIRST "[8,[0],[1,2,3,4,5,6,7]]"
#define ALL_OF "[8,[0,1,2,3,4,5,6,7],[]]"
#define MOST_OF "[8,[0,1,2,3,4,5],[6,7]]"
#define FIRST_TEXT "[8,[0],[1,2,3,4,5,6,7],true,\"text\"]"
#define OTHER_TEXT "[8,[7,6,5,4,3,2,1],[0],true,\"text\"]"
/* Of a loader: of each batch its pass, indices, rows, backward passes, rows that were trained on,
 * and runs of what became of its rows. */
#define ROWS_OF(batches) \
    "{\"event\":\"rows\",\"loader\":0,\"at\":\"train.py:12\",\"batches\":[" batches "]}"
#define LOOP(batches) "4x F S B K P Z; =DistributedSampler 64 8 0 2 1 ; " ROWS_OF(batches)
#define X4(batch) batch "," batch "," batch "," batch
#define SLICED "[0,8,8,1,2,[3,2,0,6]]"
#define PART_OF(runs) "[0,8,8,1,4,[" runs "]]"
/* In micro-batches, whose losses are made with these members. */
#define MICRO_OF(backwards, reached, runs) "[0,20,20," backwards "," reached ",[" runs "]]"
#define MICRO MICRO_OF("2", "16", "3,16,0,4")
#define TRAINED_BY(members, batch) \
    "4x F S B{" members "} K P Z; =DistributedSampler 64 8 0 2 1 ; " ROWS_OF(X4(batch))
#define WEIGHED(times) "\"loss_of\":\"sum\",\"loss_first\":8,\"loss_times\":" times
#define SUM(times) WEIGHED(times) ",\"loss_divided\":true"
#define MEAN(times) "\"loss_of\":\"mean\",\"loss_times\":" times
#define WHOLE_BATCH "[0,8,8,1,8,[3,8]]"
#define DROPPED "[0,8,8,0,0,[2,8]]"
#define KEPT "[0,8,8,0,0,[0,8]]"
#define FOUR_TIMES "[0,8,8,4,32,[6,8]]"
#define TURN DROPPED "," DROPPED "," DROPPED "," WHOLE_BATCH
#define OF(pass, runs) "[" pass ",8,8,1,8,[" runs "]]"
#define SHIFTED(pass) OF(pass, "4,8") "," OF(pass, "3,8") "," OF(pass, "3,8") "," OF(pass, "0,8")
#define THRICE(pass) OF(pass, "3,8") "," OF(pass, "3,8") "," OF(pass, "3,8")
#define NO_LAST(pass) THRICE(pass) "," OF(pass, "0,8")
#define NO_FIRST(pass) OF(pass, "0,8") "," THRICE(pass)
#define LESS(pass) THRICE(pass) ",[" pass ",4,4,1,8,[0,4]]"
#define PASS_OF(number, whole) \
    "=DistributedSampler 64 8 0 2 1 \"loader\":0,\"pass\":" number ",\"whole\":" whole ","
#define TWO_PASSES(whole, first, second)                                          \
    "4x F S B K P Z; " PASS_OF("0", whole) "; " PASS_OF("1", whole) "; " ROWS_OF( \
        first "," second "," OF("2", "3,8"))
#define LABELS(counts)                                                                   \
    "4x F S B K P Z; =DistributedSampler 64 8 0 2 1 ; {\"event\":\"rows\",\"loader\":0," \
    "\"at\":\"train.py:12\",\"batches\":[" WHOLE_BATCH "],\"labels\":" counts "}"

static const calls_row unused[] = {
    {COLLATED(FIRST, FIRST ",[5,[0,1,2,3,4],[]]"), "data.used", LS_FAIL,
     "7 of 8 samples of a batch, from the one at place 1 on .. in all of 2 batches .. train.py:9"},
    {COLLATED(ALL_OF "," ALL_OF, ALL_OF), "data.used", LS_PASS, "3 batches"},
    {COLLATED(ALL_OF "," FIRST_TEXT, ALL_OF "," FIRST_TEXT), "data.used", LS_FAIL,
     "7 of 8 samples of a batch (\"text\" of them), from .. train.py:9"},
    {COLLATED(ALL_OF "," FIRST_TEXT, ALL_OF "," OTHER_TEXT), "data.used", LS_PASS, ""},
    /* some were not tried */
    {COLLATED("[8,[0],[6,7]]", "[8,[0],[5,7]],[8,[0],[5,6]]"), "data.used", LS_FAIL, "3 of 4"},
    /* a remainder; the ranks' parts of what both draw; one batch; a choice */
    {COLLATED(MOST_OF "," MOST_OF, MOST_OF), "data.used", CALLS_HINT, "2 of 8 samples"},
    {COLLATED("[8,[1,3,5,7],[0,2,4,6]]", "[8,[0,2,4,6],[1,3,5,7]]"), "data.used", LS_PASS, ""},
    {COLLATED(FIRST, ""), "data.used", LS_PASS, ""},
    {LOOP(X4(SLICED)), "data.used", LS_FAIL, "6 of 8 rows .. a slice .. train.py:12"},
    {LOOP(X4(PART_OF("2,4,3,4"))), "data.used", LS_FAIL,
     "4 of 8 rows .. no backward comes to .. losses of the others are overwritten .. train.py:21"},
    {LOOP(X4(SLICED)) "; {\"event\":\"outside\",\"step\":2,\"name\":\"Style\"}", "data.used",
     LS_PASS, ""},
    {LOOP(X4(PART_OF("3,6,2,2"))), "data.used", CALLS_HINT, "2 of 8 rows"},
    {LOOP(X4(PART_OF("3,6,0,2"))), "data.used", LS_PASS, ""},
    /* last rows that fill no micro-batch, and count in its loss; that do not, or it is not known */
    {TRAINED_BY(SUM("0.05"), MICRO), "data.used", LS_FAIL,
     "4 of 20 rows of a batch, always those at the same places, go into no forward: so in 4 "
     "batches "
     "| the number of micro-batches of a batch is rounded down: its last rows fill none | "
     "train.py:12 | round up"},
    {TRAINED_BY(MEAN("0.4"), MICRO), "data.used", LS_FAIL, "rounded down"},
    {TRAINED_BY(SUM("0.0625"), MICRO), "data.used", CALLS_HINT, "rounded down"},
    {TRAINED_BY(MEAN("0.5"), MICRO), "data.used", CALLS_HINT, "rounded down"},
    {TRAINED_BY("\"loss_of\":\"sum\",\"loss_first\":4,\"loss_divided\":true,\"loss_times\":0.05",
                MICRO),
     "data.used", CALLS_HINT, "rounded down"},
    {TRAINED_BY(WEIGHED("0.05"), MICRO), "data.used", CALLS_HINT, "rounded down"},
    {LOOP(X4(MICRO)), "data.used", CALLS_HINT, "rounded down"},
    /* a single part; others that are not equal; rows that a forward without a gradient gets, as to
     * validate by; the first ones; as many as a part; a module that is not known */
    {TRAINED_BY(SUM("0.05"), MICRO_OF("1", "16", "3,16,0,4")), "data.used", NO_HINT, ""},
    {TRAINED_BY(SUM("0.05"), MICRO_OF("3", "16", "3,16,0,4")), "data.used", NO_HINT, ""},
    {TRAINED_BY(SUM("0.05"), MICRO_OF("2", "16", "3,16,1,4")), "data.used", NO_HINT, ""},
    {TRAINED_BY(SUM("0.05"), MICRO_OF("2", "16", "0,4,3,16")), "data.used", NO_HINT, ""},
    {TRAINED_BY(SUM("0.05"), MICRO_OF("4", "16", "3,16,0,4")), "data.used", NO_HINT, ""},
    {TRAINED_BY(SUM("0.05"), MICRO_OF("2", "20", "3,20")), "data.used", NO_HINT, ""},
    {TRAINED_BY(SUM("0.05"), MICRO) "; {\"event\":\"outside\",\"step\":2,\"name\":\"Style\"}",
     "data.used", NO_HINT, ""},
    /* a rank that draws for the other */
    {"4x F S B K P Z; 0: " ROWS_OF(X4(SLICED)), "data.used", LS_PASS, ""},
    {"4x F S B K P Z; 0: " ROWS_OF(X4(SLICED)) "; 1: " ROWS_OF(X4(PART_OF("0,6,3,2"))), "data.used",
     LS_PASS, ""},
    /* once; by content; some rows were changed on their way; a smaller last batch */
    {LOOP(SLICED), "data.used", LS_PASS, ""},
    {LOOP(X4(PART_OF("3,4,0,4")) "," PART_OF("0,4,3,4")), "data.used", LS_PASS, ""},
    {LOOP(X4("[0,8,8,1,8,[3,4,0,4]]")), "data.used", LS_PASS, ""},
    {LOOP(X4(SLICED) ",[0,2,2,1,2,[3,2]]"), "data.used", LS_FAIL, "in 4 batches"},
    {LOOP(X4(TURN) "," TURN), "data.used", LS_FAIL,
     "15 of 20 .. of each 4 in a row one .. train.py:21"},
    {LOOP(X4(TURN) "," X4(DROPPED "," WHOLE_BATCH)), "data.used", LS_PASS, ""},
    {LOOP(X4("[0,8,8,1,0,[2,8]]," WHOLE_BATCH) "," X4("[0,8,8,1,0,[2,8]]," WHOLE_BATCH)),
     "data.used", LS_PASS, ""}, /* another network's steps */
    {LOOP(X4(KEPT "," KEPT "," KEPT "," FOUR_TIMES)), "data.used", LS_FAIL,
     "trained on 4 times, the others never: 12 of 16 .. overwritten .. train.py:18"},
    {LOOP(X4(KEPT "," KEPT "," KEPT "," WHOLE_BATCH)), "data.used", LS_PASS, ""},
    {LOOP(SHIFTED("0") "," SHIFTED("1")), "data.used", LS_FAIL,
     "the last batch of a pass is never trained on, and the first one twice .. 1 whole passes .. "
     "train.py:18"},
    {LOOP(SHIFTED("0")), "data.used", LS_PASS, ""},
    /* whole passes; left at their last batch; a smaller one; not each time */
    {TWO_PASSES("true", NO_LAST("0"), NO_LAST("1")), "data.used", CALLS_HINT,
     "the last batch of a pass goes into no forward .. in 2 whole passes .. train.py:18"},
    {TWO_PASSES("false", NO_LAST("0"), NO_LAST("1")), "data.used", NO_HINT, ""},
    {TWO_PASSES("true", LESS("0"), LESS("1")), "data.used", NO_HINT, ""},
    {TWO_PASSES("true", NO_LAST("0"), THRICE("1") "," OF("1", "3,8")), "data.used", NO_HINT, ""},
    {TWO_PASSES("true", NO_FIRST("0"), NO_FIRST("1")), "data.used", CALLS_HINT,
     "the first batch of a pass goes into no forward .. in 2 whole passes"},
    {TWO_PASSES("true", NO_FIRST("0"), NO_LAST("1")), "data.used", NO_HINT, ""},
    {TWO_PASSES("true", THRICE("0") "," OF("0", "3,8"), THRICE("1") "," OF("1", "3,8")),
     "data.used", NO_HINT, ""},
    {TWO_PASSES("true", NO_FIRST("0") "," OF("0", "0,8"), NO_FIRST("1") "," OF("1", "0,8")),
     "data.used", NO_HINT, ""},
    {LABELS("[8,0,8,0]"), "data.used", LS_FAIL, "in 8 of 8 .. of another batch .. train.py:21"},
    {LABELS("[8,0,0,8]"), "data.used", LS_FAIL, "in 8 of 8 .. are shifted .. train.py:21"},
    /* mixed with those of the batch; by chance; a few */
    {LABELS("[8,1,7,0]"), "data.used", LS_PASS, ""},
    {LABELS("[32,0,4,4]"), "data.used", LS_PASS, ""},
    {LABELS("[3,0,3,0]"), "data.used", LS_PASS, ""},
    {"4x F S B K P Z", "data.used", LS_SKIP, "no forward got rows"},
};

CALLS_TEST(steps_train_on_what_is_drawn, unused)

/* ---- modules outside of the models ----------------------------------------------------------- */

#define RAN(rank, step, digests)                                                                   \
    rank ": {\"event\":\"outside\",\"step\":" step ",\"name\":\"Teacher\",\"at\":\"train.py:19\"," \
         "\"params\":2,\"digests\":[" digests "]}; "
#define THREE "3x F S B K P Z"
#define RUNS(zero, later, one, its) \
    RAN("0", "2", zero) RAN("0", "3", later) RAN("1", "2", one) RAN("1", "3", its) THREE
#define SEEDS(zero, one)                                          \
    "0: {\"event\":\"seed\",\"at\":\"train.py:3\",\"seed\":" zero \
    "}; 1: {\"event\":\"seed\",\"at\":\"train.py:3\",\"seed\":" one "}; "
#define GIVEN(rank, line, value) \
    rank ": {\"event\":\"seed\",\"at\":\"train.py:" line "\",\"seed\":" value "}; "
#define BUFFERS(rank, step, digests)                                                            \
    rank ": {\"event\":\"outside\",\"step\":" step ",\"name\":\"Loss\",\"at\":\"train.py:19\"," \
         "\"params\":0,\"digests\":[" digests "]}; "
#define KEEPS(zero, one) \
    BUFFERS("0", "2", zero) BUFFERS("0", "3", zero) BUFFERS("1", "2", one) BUFFERS("1", "3", one)
#define A_B "\"a\",\"b\""
#define A_C "\"a\",\"c\""

static const calls_row outside[] = {
    {RUNS(A_B, A_B, A_B, A_B), "replicas.outside", LS_PASS, "2 tensors"},
    {RUNS(A_B, A_B, A_C, A_C), "replicas.outside", LS_FAIL,
     "step 3: a Teacher .. other values on rank 1 .. train.py:19"},
    {SEEDS("7", "8") RUNS(A_B, A_B, A_C, A_C), "replicas.outside", LS_FAIL, "train.py:3"},
    {SEEDS("7", "7") RUNS(A_B, A_B, A_C, A_C), "replicas.outside", LS_FAIL, "train.py:19"},
    /* a rank is given seeds that the others are not */
    {GIVEN("0", "2", "1") GIVEN("0", "2", "2") SEEDS("7", "8") RUNS(A_B, A_B, A_C, A_C),
     "replicas.outside", LS_FAIL, "train.py:3"},
    {KEEPS(A_B, A_B) THREE, "replicas.outside", LS_PASS, ""},
    {KEEPS(A_B, A_C) THREE, "replicas.outside", LS_WEAK,
     "step 3: a buffer of a Loss .. other values on rank 1 .. train.py:19"},
    /* statistics of each rank's own; other shapes; seen once */
    {RUNS(A_B, A_C, A_C, A_B), "replicas.outside", LS_PASS, "1 tensors"},
    {RUNS(A_B, A_B, "\"c\"", "\"c\""), "replicas.outside", LS_SKIP, ""},
    {RAN("0", "2", A_B) RAN("1", "2", A_C) THREE, "replicas.outside", LS_SKIP, ""},
};

#define HOLDS(rank, value)                                                                        \
    rank ": "                                                                                     \
         "{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"at\":\"train.py:6\",\"name\":"      \
         "\"Net\","                                                                               \
         "\"params\":[[\"w\",4,\"f32\",true]],\"fractions\":[[\"m1.p\",0.5],[\"m1.shift\"," value \
         "]]}; "

#define REGISTERS(rank, a, b)                                                                      \
    rank ": "                                                                                      \
         "{\"event\":\"model\",\"model\":1,\"kind\":\"ddp\",\"at\":\"train.py:6\",\"name\":"       \
         "\"Net\","                                                                                \
         "\"broadcast_buffers\":true,\"params\":[[\"m1.w\",4,\"f32\",true]],\"buffers\":[[\"m1." a \
         "\",8,\"f32\"],[\"m1." b "\",8,\"f32\"]]}; "

static const calls_row kept_by_name[] = {
    {REGISTERS("0", "sin", "cos") REGISTERS("1", "cos", "sin") "2x F S B K P Z", "replicas.buffers",
     LS_FAIL,
     "rank 1's buffers have another order: number 0 is m1.sin on rank 0, m1.cos on rank 1 | "
     "buffers "
     "are registered in the order of a set, say .. | train.py:6"},
    {REGISTERS("0", "sin", "cos") REGISTERS("1", "up", "down") "2x F S B K P Z", "replicas.buffers",
     NO_HINT, ""}, /* another model */
    {REGISTERS("0", "sin", "cos") REGISTERS("1", "sin", "cos") "2x F S B K P Z", "replicas.buffers",
     NO_HINT, ""},
};
CALLS_TEST(buffers_have_one_order, kept_by_name)

static const calls_row numbers[] = {
    {HOLDS("0", "2.5") HOLDS("1", "5.25") "2x F S B K P Z", "replicas.outside", CALLS_HINT,
     "1 numbers of Net differ between ranks: m1.shift is 2.5 on rank 0, 5.25 on rank 1 | each rank "
     "computed them .. | train.py:6"},
    {HOLDS("0", "2.5") HOLDS("1", "2.5") "2x F S B K P Z", "replicas.outside", NO_HINT, ""},
    {HOLDS("0", "2.5") "2x F S B K P Z", "replicas.outside", NO_HINT, ""},
};

CALLS_TEST(modules_outside_are_equal, outside)
CALLS_TEST(numbers_of_models_are_equal, numbers)

/* ---- losses of all ranks -------------------------------------------------------------------- */

/* A step whose loss is that value, and whose graph stays on its rank; `members`: of the backward.
 * The collective before it is of a tensor that has a graph. */
#define LOSS(value, members)                                         \
    "F A{\"graph\":true,\"at\":\"train.py:19\"} A b{\"loss\":" value \
    ",\"loss_alone\":true" members "} O Z"
#define COMMON(a, b) LOSS(a, "") "; " LOSS(b, "")
#define TIMES(n) ",\"loss_times\":" n
#define HALVES(weight) TIMES("1") ",\"loss_weight\":" weight

/* A gather between a forward and its backward, of what the ranks gave. */
#define GATHERS(numbers, gave)                                                               \
    "F A{\"op\":\"all_gather\",\"reduce\":\"\",\"at\":\"train.py:34\",\"elements\":" numbers \
    ",\"gave\":\"" gave "\"} b O Z"

static const calls_row common[] = {
    {GATHERS("8", "a") "; " GATHERS("8", "b"), "reduction.loss", LS_FAIL,
     "step 1: 2 ranks give the same 8 numbers to all_gather, and so in 2 of 2 steps | all ranks "
     "make the same values .. | train.py:34 | give each rank"},
    {GATHERS("7", "a") "; " GATHERS("7", "b"), "reduction.loss", LS_SKIP, ""},
    {GATHERS("8", "a") "; " GATHERS("8", "a"), "reduction.loss", LS_SKIP, ""},
    {GATHERS("8", "a"), "reduction.loss", LS_SKIP, ""},
    {GATHERS("8", "a") "; " GATHERS("8", "b") "; " RANKS(GATHERS("8", "c"), GATHERS("8", "d")),
     "reduction.loss", LS_SKIP, ""},
    /* behind the backward, or before the forward */
    {"2x F b A{\"op\":\"all_gather\",\"elements\":8,\"gave\":\"a\"} O Z; F b A{\"op\":"
     "\"all_gather\",\"elements\":8,\"gave\":\"b\"} O Z",
     "reduction.loss", LS_SKIP, ""},
    {"A{\"op\":\"all_gather\",\"elements\":8,\"gave\":\"a\"} F b O Z; A{\"op\":"
     "\"all_gather\",\"elements\":8,\"gave\":\"b\"} F b O Z",
     "reduction.loss", LS_SKIP, ""},
    {COMMON("0.5", "0.75"), "reduction.loss", LS_FAIL,
     "0.5 on all 2 ranks .. in 2 of 2 .. 1/ranks .. train.py:19"},
    {"F b{\"loss\":1,\"loss_alone\":true} O Z; F b{\"loss\":2,\"loss_alone\":true} O Z",
     "reduction.loss", LS_SKIP, ""},
    /* the loss itself, reduced for a log */
    {"2x F A{\"elements\":1} b{\"loss\":1,\"loss_alone\":true} O Z", "reduction.loss", LS_SKIP, ""},
    /* ranks of their own in one of them; the same value in each step; one step */
    {COMMON("0.5", "0.75") "; " RANKS(LOSS("1", ""), LOSS("2", "")), "reduction.loss", LS_PASS,
     "3 losses"},
    {COMMON("0.5", "0.5"), "reduction.loss", LS_PASS, "2 losses"},
    {LOSS("0.5", ""), "reduction.loss", LS_PASS, "1 losses"},
    /* times the ranks; times another number; a collective in the graph; equal samples; no number */
    {LOSS("0.5", TIMES("2")) "; " LOSS("0.75", TIMES("2")), "reduction.loss", LS_SKIP, ""},
    {LOSS("0.5", HALVES("2")) "; " LOSS("0.75", HALVES("2")), "reduction.loss", LS_SKIP, ""},
    {LOSS("0.5", HALVES("1")) "; " LOSS("0.75", HALVES("1")), "reduction.loss", LS_FAIL, ""},
    {LOSS("0.5", TIMES("3")) "; " LOSS("0.75", TIMES("3")), "reduction.loss", LS_FAIL, ""},
    {"F b{\"loss\":1} O Z; F b{\"loss\":2} O Z", "reduction.loss", LS_SKIP, "no loss whose graph"},
    {"F{\"input\":\"e\"} b{\"loss\":1,\"loss_alone\":true} O Z; F{\"input\":\"f\"} "
     "b{\"loss\":2,\"loss_alone\":true} O Z",
     "reduction.loss", LS_SKIP, ""},
    {COMMON("null", "null"), "reduction.loss", LS_PASS, ""},
};

CALLS_TEST(losses_are_of_their_ranks, common)

/* A step whose loss uses what all ranks gave, with that digest of its gradient. */
#define JOINS(grad, members) \
    "F b{\"loss_joined\":[{\"at\":\"train.py:18\",\"grad\":\"" grad "\"," members "}]} O Z"
#define JOINED_LOSS(grad, loss)                                                       \
    "F b{\"loss\":" loss ",\"loss_joined\":[{\"at\":\"train.py:18\",\"grad\":\"" grad \
    "\",\"times\":"                                                                   \
    "null}]} O Z"
#define JOINED(a, b, members) JOINS(a, members) "; " JOINS(b, members)
#define ONCE "\"times\":1"
#define BY_HAND "\"times\":1,\"own\":true"

static const calls_row joined[] = {
    {JOINED("a", "b", ONCE), "reduction.loss", LS_FAIL,
     "in 2 of 2 .. made of all ranks' values, and only each rank's own .. train.py:18"},
    {JOINED("a", "b", BY_HAND), "reduction.loss", LS_FAIL, "train.py:18"},
    /* times the ranks, also of a sum of two losses; by a weight; not known */
    {"F b{\"loss_weight\":2,\"loss_joined\":[{\"at\":\"train.py:18\",\"grad\":\"a\"," ONCE
     "}]} O Z",
     "reduction.loss", LS_SKIP, ""},
    {JOINED("a", "b", "\"times\":2"), "reduction.loss", LS_PASS, ""},
    {JOINED("a", "b", "\"times\":0.5"), "reduction.loss", LS_WEAK, "multiplied by 0.5"},
    {JOINED("a", "b", "\"times\":null"), "reduction.loss", CALLS_HINT,
     "the loss's gradient by the values of all ranks is equal .. in 2 of 2 .. train.py:18"},
    {RANKS(JOINS("a", "\"times\":null"), JOINS("b", "\"times\":null")), "reduction.loss", NO_HINT,
     ""},
    /* a sum of such parts is the whole loss: equal on both ranks, and another in each step */
    {JOINED_LOSS("a", "2") "; " JOINED_LOSS("b", "3"), "reduction.loss", LS_FAIL,
     "in 2 of 2 .. only each rank's own"},
    {JOINED_LOSS("a", "2") "; " JOINED_LOSS("b", "2"), "reduction.loss", CALLS_HINT, "in 2 of 2"},
    {JOINED_LOSS("a", "2") "; " RANKS(JOINED_LOSS("b", "3"), JOINED_LOSS("b", "4")),
     "reduction.loss", CALLS_HINT, "in 2 of 2"},
    /* a loss of each rank's own rows; the same in each step; a hook of the script's own */
    {RANKS(JOINS("a", ONCE), JOINS("b", ONCE)) "; " JOINS("c", ONCE), "reduction.loss", LS_PASS,
     ""},
    {JOINED("a", "a", ONCE), "reduction.loss", LS_PASS, ""},
    {"{\"event\":\"hook\",\"model\":0,\"name\":\"f\",\"at\":\"train.py:4\"}; " JOINED("a", "b",
                                                                                      ONCE),
     "reduction.loss", LS_PASS, ""},
    {RANKS(JOINS("a", BY_HAND), JOINS("b", BY_HAND)), "reduction.loss", LS_WEAK,
     "drops their gradients"},
};

CALLS_TEST(losses_of_joined_values, joined)

/* ---- jobs without passes --------------------------------------------------------------------- */

/* A callback's decision, on which all ranks vote, each by the value that it has. */
#define VOTE(value)                                                                               \
    "F S B K P Z A{\"elements\":1,\"use\":\"decision\",\"monitor\":\"val_loss\",\"value\":" value \
    "}"
#define VOTES(zero, one) "F S B K P Z; 0:" VOTE(zero) "; 1:" VOTE(one)
/* Validations on batches that the script draws, in each fifth step. */
#define DROPOUT "\"bn\":0,\"buffers\":[],"
#define DRAWN(model, calls) \
    "!" model "; 2x (4x F{\"autocast\":null} b O Z; F{\"autocast\":null} b O Z " calls ")"
#define MISSING "no model.eval() before the validation"
/* Norms that are frozen, or trained in eval mode with the statistics that they were built with. */
#define NORMS(members)                                                                          \
    "{\"event\":\"optimizer\",\"optimizer\":0,\"class\":\"SGD\",\"rule\":\"sgd\",\"groups\":[{" \
    "\"params\":[\"fc.weight\"],\"lr\":0.1}]}; 3x F{" members "} S B K P Z"
#define UNMEASURED "\"eval_norms\":2,\"unmeasured\":2,\"unmeasured_at\":\"train.py:12\""

static const calls_row others[] = {
    {VOTES("0.5", "0.5"), "validation.choice", LS_PASS, "all ranks"},
    {VOTES("0.5", "null"), "validation.choice", LS_SKIP, "no validation"},
    {"F S B K P Z; 0:" VOTE("0.5") "; 1: F S B K P Z", "validation.choice", LS_SKIP,
     "no validation"},
    {VOTES("0.5", "0.50001"), "validation.choice", LS_FAIL, "is 0.5 on rank 0"},
    {VOTES("0.5", "0.500001"), "validation.choice", LS_PASS, "all ranks"},
    {VOTES("0.5", "0.6"), "validation.choice", LS_FAIL,
     "chooses by \"val_loss\", which is 0.5 on rank 0 and 0.6 on rank 1 | the score is logged "
     "without sync_dist=True .. | train.py:28 | self.log(\"val_loss\", ..., sync_dist=True)"},
    {VOTES("0.5", "0.5") ";" VOTES("0.5", "0.6"), "validation.choice", LS_FAIL, "on rank 1"},
    {DRAWN(DROPOUT, "F{\"grad\":false,\"times\":4}"), "validation.mode", CALLS_HINT,
     "rank 0: Net runs in training mode and without autograd in 8 forwards, in 2 of 10 steps "
     "| " MISSING " .. | train.py:20 | model"},
    {"!" DROPOUT
     "; 6x F{\"autocast\":null} b O Z; F{\"autocast\":null} b O Z F{\"grad\":false,\"times\":4}",
     "validation.mode", LS_PASS, "1 validations", 1},
    {"!" DROPOUT
     "; 7x F{\"autocast\":null} b O Z; F{\"autocast\":null} b O Z F{\"grad\":false,\"times\":2}",
     "validation.mode", CALLS_HINT, "in 2 forwards, in 1 of 8 steps", 1},
    {"!" DROPOUT "; 2x F{\"grad\":false,\"times\":4} F b O Z; 7x F b O Z", "validation.mode",
     LS_PASS, "", 1},
    {DRAWN(DROPOUT, "F{\"grad\":false} F{\"grad\":false}"), "validation.mode", CALLS_HINT, MISSING},
    {DRAWN(DROPOUT, "E F{\"grad\":false,\"training\":false,\"times\":4} T"), "validation.mode",
     LS_SKIP, ""},
    /* one, as a look at shapes; a teacher; statistics measured anew */
    {DRAWN(DROPOUT, "F{\"grad\":false}"), "validation.mode", LS_SKIP, ""},
    {"!" DROPOUT "; 10x F{\"autocast\":null} b O Z F{\"grad\":false,\"times\":4}",
     "validation.mode", LS_PASS, ""},
    {DRAWN("", "F{\"grad\":false,\"times\":4}"), "validation.mode", LS_PASS, ""},
    {DRAWN(DROPOUT "\"dropout\":0,", "F{\"grad\":false,\"times\":4}"), "validation.mode", LS_PASS,
     ""},
    {NORMS("\"eval_norms\":2"), "mode.training", LS_PASS, "(frozen)"},
    {NORMS("\"thawed\":2,\"thawed_at\":\"train.py:12\""), "mode.training", CALLS_HINT,
     "rank 0: 2 norms of Net whose parameters are frozen, and that were put in eval mode, are in "
     "training mode where it is trained | model.train() turns frozen batch norms on again .. | "
     "train.py:12 |"},
    {NORMS(UNMEASURED), "mode.training", CALLS_HINT,
     "rank 0: 2 norms of Net are in eval mode in training forwards and normalize by the statistics "
     "that they were built with | a part .. its dropouts are off | train.py:12 | train()"},
    {NORMS(UNMEASURED ",\"unmeasured_by_model\":true"), "mode.training", LS_WEAK,
     "the model's own train() leaves them"},
};

CALLS_TEST(modes_and_votes_are_judged, others)

TEST_MAIN("observe_passes", .timeout_s = 120)
