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

static const struct refusal {
    const char *id, *script, *data, *named; /* named: in the last line of the log */
} refusals[] = {
    {"cut", TREE "truncate -s 300 $D/circle/00002.jpg" GO, "{self}/data", "circle/00002.jpg"},
    {"cut-tail", TREE "truncate -s -60 $D/circle/00002.jpg" GO, "{self}/data", "circle/00002.jpg"},
    {"empty-file", TREE ": > $D/ring/00001.jpg" GO, "{self}/data", "ring/00001.jpg"},
    {"no-jpeg", TREE "echo hello > $D/ring/00002.jpg" GO, "{self}/data", "ring/00002.jpg"},
    {"no-picture", TREE "echo hello > $D/ring/x.webp" GO, "{self}/data", "ring/x.webp"},
    {"empty-class", TREE "rm $D/ring/*" GO, "{self}/data", "ring"},
    {"too-many-classes", TREE "cp -r $D/ring $D/another" GO, "{self}/data", "11"},
    {"too-few-classes", TREE "rm -r $D/ring" GO, "{self}/data", "9"},
    {"too-few-images", TREE "for c in $D/*; do rm $c/00002.jpg; done" GO, "{self}/data",
     "10 images"},
    {"no-classes", "mkdir -p {self}/data" GO, "{self}/data", "no class"},
    {"a-file", "echo > {self}/data" GO, "{self}/data", "data"},
    {"batches.none", "mkdir -p {self}/data" GO, "batches:{self}/data", "rank0"},
    {"batches.missing", "true" GO, "batches:{self}/nowhere", "nowhere"},
};

static void judge_refusal(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct refusal *r = row->data;
    char line[400], path[700];
    struct stat status;
    ls_record_last_line(job, 0, line, (int)sizeof line);
    int code = job->state == LS_RECORD_DONE ? 0 : job->code;
    if (job->state != LS_RECORD_FAILED || code != LS_ERR_USAGE) {
        ls_verdict_fail(out, "exit code %d, expected 2: %s", code, line);
    }
    if (strstr(line, r->named) == NULL) {
        ls_verdict_fail(out, "the message does not name '%s': %s", r->named, line);
    }
    ls_text_put(path, sizeof path, "%s/dump", job->directory);
    if (job->rank[0].has_events || stat(path, &status) == 0) {
        ls_verdict_fail(out, "something was written before the data were looked at");
    }
    ls_verdict_pass(out, 1, "refused: %s", line);
}

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
    ls_ending want = {{LS_ERR_USAGE}, 1, name, false, NULL};
    ls_endings_judge(&want, job, out);
    if (job->rank[0].step_count > 0) {
        ls_verdict_fail(out, "a step was taken on it");
    }
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

static const struct inside {
    const char *id, *script;
    int code;
    const char *says;
} insides[] = {
    {"last-class", BATCHES(IMAGES_4, "I64", "target", "\\011\\000\\000\\000\\000\\000\\000\\000"),
     0, NULL},
    {"class-10", BATCHES(IMAGES_4, "I64", "target", "\\012\\000\\000\\000\\000\\000\\000\\000"), 2,
     "target 10"},
    {"class-negative",
     BATCHES(IMAGES_4, "I64", "target", "\\377\\377\\377\\377\\377\\377\\377\\377"), 2,
     "target -1"},
    {"shape", BATCHES("[4,3,8,32]", "I64", "target", CLASS("1")), 2, "[4,3,8,32]"},
    {"type", BATCHES(IMAGES_4, "F64", "target", CLASS("0")), 2, "target"},
    {"name", BATCHES(IMAGES_4, "I64", "targets", CLASS("1")), 2, "target"},
};

static void judge_inside(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inside *one = row->data;
    ls_ending want = {{one->code}, one->says != NULL, one->says, false, NULL};
    ls_endings_judge(&want, job, out);
    if (job->rank[0].step_count > (one->code == 0 ? 2 : 0)) {
        ls_verdict_fail(out, "a step was taken on it");
    }
}

static const ls_row rows[] = {
    {"data.refuse.first.workers[0|3]", "I16", judge_first,
     "resnet8 O0 b0.05 batch=16 data={self}/data shell --workers=$1",
     .script = TREE "for F in $D/*/*.jpg; do printf '\\377\\330\\377hello\\377\\331' > $F; done" GO,
     .judges_outcome = true},
};

void ls_data_refused_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        ls_rows_format(list, settings,
                       &(ls_row){.requirement = "I3",
                                 .judge = judge_refusal,
                                 .data = r,
                                 .script = r->script,
                                 .judges_outcome = true},
                       "data.refuse.%s: resnet8 O0 batch=16 steps=1 dump=1 data=%s shell", r->id,
                       r->data);
    }
    for (size_t i = 0; i < sizeof insides / sizeof *insides; i++) {
        ls_rows_format(list, settings,
                       &(ls_row){.requirement = "I14",
                                 .judge = judge_inside,
                                 .data = &insides[i],
                                 .script = insides[i].script,
                                 .judges_outcome = true},
                       "data.batches.%s: resnet8 O0 b0.05 data=batches:{self}/data shell",
                       insides[i].id);
    }
}
