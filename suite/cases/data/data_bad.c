/* Pictures that cannot be read, with --on-bad-image skip: what takes their places, and what is
 * counted. */
#include "data.h"
#include "suite/cases/rows.h"
#include "suite/judge/judges.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "reference/data/make.h"

enum { EACH = 5, IMAGES = EACH * LS_MAKE_CLASSES, BATCH = 4, VALIDATED = 30 };

/* Ten classes of five pictures to train and of three to validate. The last of circle, the first of
 * the class behind it and the last of all cannot be read; of the others, one of blobs. */
#define MAKE(dir, images, seed)                                                           \
    "{bin}/lockstep data make " dir " --images " #images " --image-size 16 --seed " #seed \
    " >/dev/null || exit 3; "
#define TREE                                                                             \
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
    ls_dumpfile *file = ls_dumps_open(job, step, rank, out);
    const ls_dumpfile_entry *entry = file == NULL ? NULL : ls_dumpfile_find(file, "target");
    if (entry == NULL || entry->count != BATCH || !ls_dumpfile_read_i64(entry, target)) {
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
    ls_dumpfile_close(file);
}

static void check_counts(const ls_record *job, int expected, ls_verdict *out)
{
    for (int rank = 0; rank < job->world; rank++) {
        const cJSON *event = cJSON_GetArrayItem(job->rank[rank].epochs, 0);
        const cJSON *train = cJSON_GetObjectItemCaseSensitive(event, "train");
        const cJSON *val = cJSON_GetObjectItemCaseSensitive(event, "val");
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
    {"data.bad.skip.w1", "I25", judge_skipped, ONE "--workers=0 | " ONE "--workers=3",
     .script = TREE},
    {"data.bad.skip.w2", "I25", judge_skipped, TWO "--workers=0 | " TWO "--workers=2",
     .script = TREE},
    /* without skip, and where nothing is left to take */
    {"data.bad.fail", "I25", ls_endings_row, END, BAD("00005.jpg"), TREE, .judges_outcome = true},
    {"data.bad.all", "I25", ls_endings_row, END "--on-bad-image=skip",
     BAD("nor can the 19 pictures behind it be read"),
     "D={self}/data; " MAKE("$D", 2, 1) "for F in $D/*/*.jpg; do truncate -s 100 $F; done; "
                                        "exec \"$0\" \"$@\"",
     .judges_outcome = true},
};

void ls_data_bad_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
