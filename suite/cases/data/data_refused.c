/* Data that a run refuses, by name and before a step: folders, pictures, given batches; and
 * pictures that it leaves out. */
#include "data.h"
#include "suite/judge/judges.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reference/data/make.h"

/* ---- folders and what is in them ------------------------------------------------------------- */

#define TREE                                                                                      \
    "D={self}/data; {bin}/lockstep data make $D --images 2 --image-size 8 >/dev/null || exit 3; " \
    "rm $D/.lockstep-data; "
#define GO "; exec \"$0\" \"$@\""

/* Nothing may be written before the data are looked at. */
#define REFUSED(id, script, data, named)                                                      \
    {                                                                                         \
        "data.refuse." id, "I3", ls_endings_row,                                              \
            "resnet8 O0 batch=16 steps=1 dump=1 data=" data " shell",                         \
            LS_ENDING({LS_ERR_USAGE}, 1, named, true, "dump"), script, .judges_outcome = true \
    }
#define BROKEN(id, commands, named) REFUSED(id, TREE commands GO, "{self}/data", named)

/* ---- the first of many ----------------------------------------------------------------------- */

/* Every file is broken, in a way that only decoding it shows: the one that is named is the first of
 * the batch, whichever decoder reads it. */
static void judge_first(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t *order = NULL;
    (void)ls_data_order(2 * LS_MAKE_CLASSES, 0, 1, true, false, row->job[0].seed, 0, &order);
    LS_TEXT(name, 64, "%s/%05d.jpg", ls_make_class_name((int)(order[0] / 2)),
            (int)(order[0] % 2) + 1);
    free(order);
    ls_endings_judge(LS_ENDING({LS_ERR_USAGE}, 1, name, .unstepped = true), job, out);
}

/* ---- batches that are wrong inside ----------------------------------------------------------- */

/* One file of the given header (filled up to 256 bytes), 4 black images and 4 targets, of which the
 * last is given as eight bytes. */
#define BATCHES(input, type, target, last)                                                       \
    "D={self}/data; mkdir -p $D; for S in 1 2; do { printf '\\000\\001\\000\\000\\000\\000\\000" \
    "\\000'; printf '%-256s' '{\"input\":{\"dtype\":\"F32\",\"shape\":" input                    \
    ",\"data_offsets\":[0,12288]},\"" target "\":{\"dtype\":\"" type "\",\"shape\":[4],"         \
    "\"data_offsets\":[12288,12320]}}'; head -c 12312 /dev/zero; printf '" last                  \
    "'; } > $D/step00000$S.rank0.safetensors; done" GO
#define IMAGES_4 "[4,3,16,16]"
#define CLASS(digit) "\\00" digit "\\000\\000\\000\\000\\000\\000\\000"

#define INSIDE(id, batches, ...)                                                                \
    {                                                                                           \
        "data.batches." id, "I14", ls_endings_row,                                              \
            "resnet8 O0 b0.05 data=batches:{self}/data shell", LS_ENDING(__VA_ARGS__), batches, \
            .judges_outcome = true                                                              \
    }
#define WRONG(id, batches, says) INSIDE(id, batches, {LS_ERR_USAGE}, 1, says, .unstepped = true)

/* ---- pictures that cannot be read, with --on-bad-image skip -----------------------------------
 */

/* What takes their places, and what is counted. */
enum { EACH = 5, IMAGES = EACH * LS_MAKE_CLASSES, BATCH = 4, VALIDATED = 30 };

/* Ten classes of five pictures to train and of three to validate. The last of circle, the first of
 * the class behind it and the last of all cannot be read; of the others, one of blobs. */
#define MAKE(dir, images, seed)                                                           \
    "{bin}/lockstep data make " dir " --images " #images " --image-size 16 --seed " #seed \
    " >/dev/null || exit 3; "
#define BAD_TREE                                                                         \
    "D={self}/data; mkdir -p $D; " MAKE("$D/train", 5, 1)                                \
        MAKE("$D/val", 3,                                                                \
             5) "A=$(ls -d $D/train/* | sed -n 2p); B=$(ls -d $D/train/* | sed -n 3p); " \
                "truncate -s 300 $A/00005.jpg; echo hello > $B/00001.jpg; "              \
                "Z=$(ls -d $D/train/* | sed -n 10p); : > $Z/00005.jpg; "                 \
                "truncate -s 200 $(ls -d $D/val/* | sed -n 4p)/00002.jpg; exec \"$0\" \"$@\""

static const int64_t bad[] = {9, 10, 49};

static bool is_bad(int64_t index)
{
    return index == bad[0] || index == bad[1] || index == bad[2];
}

/* The class of what stands for a picture: the next one that can be read, around the end. */
static int64_t class_for(int64_t index)
{
    while (is_bad(index)) {
        index = (index + 1) % IMAGES;
    }
    return index / EACH;
}

/* The classes of a rank's images in one dumped step. */
static void check_classes(const ls_record *job, int rank, int step, const int64_t *order,
                          ls_verdict *out)
{
    int64_t target[BATCH];
    if (!ls_dumps_targets(job, step, rank, BATCH, target)) {
        ls_verdict_fail(out, "rank=%d step %d has no dump with %d targets", rank, step, BATCH);
    }
    for (int i = 0; i < BATCH && out->code == LS_PASS; i++) {
        int64_t index = order[(step - 1) * BATCH + i];
        if (target[i] != class_for(index)) {
            ls_verdict_fail(out,
                            "rank=%d step %d: for picture %lld there is one of class %lld, "
                            "expected %lld",
                            rank, step, (long long)index, (long long)target[i],
                            (long long)class_for(index));
        }
    }
}

static void check_counts(const ls_record *job, int expected, ls_verdict *out)
{
    for (int rank = 0; rank < job->world; rank++) {
        const cJSON *event = cJSON_GetArrayItem(job->rank[rank].epochs, 0);
        const cJSON *train = ls_json_get(event, "train");
        const cJSON *val = ls_json_get(event, "val");
        if (ls_json_integer(train, "bad_images", 0) != expected) {
            ls_verdict_fail(out, "rank=%d reports %lld bad pictures of an epoch, expected %d", rank,
                            (long long)ls_json_integer(train, "bad_images", 0), expected);
        }
        if (ls_json_integer(val, "images", -1) != VALIDATED - 1 ||
            ls_json_integer(val, "bad_images", 0) != 1) {
            ls_verdict_fail(out,
                            "rank=%d: %lld pictures are validated and %lld bad, expected %d "
                            "and 1",
                            rank, (long long)ls_json_integer(val, "images", -1),
                            (long long)ls_json_integer(val, "bad_images", 0), VALIDATED - 1);
        }
    }
}

/* Jobs without loader threads and with some: each against the list, and their bits. */
static void judge_skipped(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int expected = 0;
    for (int rank = 0; rank < job->world; rank++) {
        int64_t *order = NULL;
        (void)ls_data_order(IMAGES, rank, job->world, true, false, row->job[0].seed, 0, &order);
        for (int step = 1; step <= row->job[0].steps; step++) {
            for (int i = 0; i < BATCH; i++) {
                expected += is_bad(order[(step - 1) * BATCH + i]);
            }
            check_classes(&job[0], rank, step, order, out);
            const ls_record_step *a = ls_record_find_step(&job[0].rank[rank], step);
            const ls_record_step *b = ls_record_find_step(&job[1].rank[rank], step);
            if (a != NULL && a->loss_bits[0] == '\0' && a->digest[LS_RECORD_PARAM][0] == '\0') {
                ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d step %d: neither loss_bits nor digest",
                               rank, step);
            }
            if (a == NULL || b == NULL || strcmp(a->loss_bits, b->loss_bits) != 0 ||
                strcmp(a->digest[LS_RECORD_PARAM], b->digest[LS_RECORD_PARAM]) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: loader threads change the bits", rank, step);
            }
        }
        free(order);
    }
    check_counts(&job[0], expected, out);
    check_counts(&job[1], expected, out);
    if (expected < 2) {
        ls_verdict_set(out, LS_WEAK, "%d bad pictures come in the epoch", expected);
    }
    ls_verdict_pass(out, (int64_t)row->job[0].steps * job->world * BATCH,
                    "%d bad pictures of %d ranks are replaced by the next of the list, alike "
                    "with and without threads",
                    expected, job->world);
}

#define RUN(world)                                                                      \
    "resnet8 O0 " world " b0.05 image=16 data={self}/data shell --val={self}/data/val " \
    "--on-bad-image=skip "
#define ONE RUN("w1 steps=12 dump=1,2,3,4,5,6,7,8,9,10,11,12")
#define TWO RUN("w2 steps=6 dump=1,2,3,4,5,6")

#define END "resnet8 O0 image=16 steps=1 data={self}/data shell "
#define BAD(text) LS_ENDING({LS_ERR_USAGE}, 1, text, .unstepped = true)

static const ls_row rows[] = {
    {"data.refuse.first.workers[0|3]", "I16", judge_first,
     "resnet8 O0 b0.05 batch=16 data={self}/data shell --workers=$1",
     .script = TREE "for F in $D/*/*.jpg; do printf '\\377\\330\\377hello\\377\\331' > $F; done" GO,
     .judges_outcome = true},
    BROKEN("cut", "truncate -s 300 $D/circle/00002.jpg", "circle/00002.jpg"),
    BROKEN("cut-tail", "truncate -s -60 $D/circle/00002.jpg", "circle/00002.jpg"),
    BROKEN("empty-file", ": > $D/ring/00001.jpg", "ring/00001.jpg"),
    BROKEN("no-jpeg", "echo hello > $D/ring/00002.jpg", "ring/00002.jpg"),
    BROKEN("no-picture", "echo hello > $D/ring/x.webp", "ring/x.webp"),
    BROKEN("empty-class", "rm $D/ring/*", "data/ring has no image"),
    BROKEN("too-many-classes", "cp -r $D/ring $D/another", "data has 11 classes"),
    BROKEN("too-few-classes", "rm -r $D/ring", "data has 9 classes"),
    BROKEN("too-few-images", "for c in $D/*; do rm $c/00002.jpg; done", "10 images"),
    REFUSED("no-classes", "mkdir -p {self}/data" GO, "{self}/data", "no class"),
    REFUSED("a-file", "echo > {self}/data" GO, "{self}/data", "data: Not a directory"),
    REFUSED("batches.none", "mkdir -p {self}/data" GO, "batches:{self}/data", "rank0"),
    REFUSED("batches.missing", "true" GO, "batches:{self}/nowhere", "nowhere"),
    INSIDE("last-class",
           BATCHES(IMAGES_4, "I64", "target", "\\011\\000\\000\\000\\000\\000\\000\\000"), {0}),
    WRONG("class-10",
          BATCHES(IMAGES_4, "I64", "target", "\\012\\000\\000\\000\\000\\000\\000\\000"),
          "target 10"),
    WRONG("class-negative",
          BATCHES(IMAGES_4, "I64", "target", "\\377\\377\\377\\377\\377\\377\\377\\377"),
          "target -1"),
    WRONG("shape", BATCHES("[4,3,8,32]", "I64", "target", CLASS("1")), "[4,3,8,32]"),
    WRONG("type", BATCHES(IMAGES_4, "F64", "target", CLASS("0")), "target"),
    WRONG("name", BATCHES(IMAGES_4, "I64", "targets", CLASS("1")), "target"),
    {"data.bad.skip.w1", "I25", judge_skipped, ONE "--workers=0 | " ONE "--workers=3",
     .script = BAD_TREE},
    {"data.bad.skip.w2", "I25", judge_skipped, TWO "--workers=0 | " TWO "--workers=2",
     .script = BAD_TREE},
    /* without skip, and where nothing is left to take */
    {"data.bad.fail", "I25", ls_endings_row, END, BAD("00005.jpg"), BAD_TREE,
     .judges_outcome = true},
    {"data.bad.all", "I25", ls_endings_row, END "--on-bad-image=skip",
     BAD("nor can the 19 pictures behind it be read"),
     "D={self}/data; " MAKE("$D", 2, 1) "for F in $D/*/*.jpg; do truncate -s 100 $F; done; "
                                        "exec \"$0\" \"$@\"",
     .judges_outcome = true},
};

void ls_data_refused_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
