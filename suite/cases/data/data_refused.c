/* Data that a run refuses, by name and before a step: folders, pictures, given batches. */
#include "data.h"
#include "suite/cases/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/text.h"
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
    enum { EACH = 2 };
    int64_t *order = NULL;
    (void)ls_data_order(EACH * LS_MAKE_CLASSES, 0, 1, true, false, row->job[0].seed, 0, &order);
    LS_TEXT(name, 64, "%s/%05d.jpg", ls_make_class_name((int)(order[0] / EACH)),
            (int)(order[0] % EACH) + 1);
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
};

void ls_data_refused_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
