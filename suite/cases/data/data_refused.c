/* Data that a run refuses, by name and before a step: folders, pictures, given batches. */
#include "data.h"
#include "suite/cases/endings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/text.h"
#include "reference/data/draw.h"

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
    {"png", TREE "cp $D/ring/00001.jpg $D/ring/x.png" GO, "{self}/data", "ring/x.png"},
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
    const struct refusal *r = &refusals[row->number[0]];
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
    ls_verdict_pass(out, "refused: %s", line);
}

static void add_refusals(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        ls_case *row = ls_rows_add(list, judge_refusal, "I3", "data.refuse.%s", refusals[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->number[0] = (int)i;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, 0, 1, 1, LS_BUCKET_OWN);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
        spec->batch_size = 16;
        spec->steps = 1;
        ls_text_put(spec->dump_steps, sizeof spec->dump_steps, "1");
        ls_text_put(spec->data, sizeof spec->data, "%s", refusals[i].data);
        spec->wrap = LS_WRAP_SHELL;
        spec->script = refusals[i].script;
    }
}

/* ---- the first of many ----------------------------------------------------------------------- */

/* Every file is broken, in a way that only decoding it shows: the one that is named is the first of
 * the batch, whoever decodes it. */
static void judge_first(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    enum { EACH = 2 };
    char name[64];
    int64_t *order = NULL;
    (void)ls_data_order(EACH * LS_DRAW_CLASSES, 0, 1, true, false, row->job[0].seed, 0, &order);
    ls_text_put(name, sizeof name, "%s/%05d.jpg", ls_draw_class_name((int)(order[0] / EACH)),
                (int)(order[0] % EACH) + 1);
    free(order);
    ls_ending want = {{LS_ERR_USAGE}, 1, name, false, NULL};
    ls_endings_judge(&want, job, out);
    if (job->rank[0].step_count > 0) {
        ls_verdict_fail(out, "a step was taken on it");
    }
}

static void add_first(const ls_case_settings *settings, ls_case_list *list)
{
    for (int workers = 0; workers <= 3; workers += 3) {
        ls_case *row =
            ls_rows_add(list, judge_first, "I16", "data.refuse.first.workers%d", workers);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = ls_endings_job(
            settings, 1, TREE "for F in $D/*/*.jpg; do printf 'hello\\377\\331' > $F; done" GO, "");
        row->job[0].batch_size = 16;
        ls_text_put(row->job[0].extra, sizeof row->job[0].extra, "--workers=%d", workers);
        ls_text_put(row->job[0].data, sizeof row->job[0].data, "{self}/data");
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
    const struct inside *one = &insides[row->number[0]];
    ls_ending want = {{one->code}, one->says != NULL, one->says, false, NULL};
    ls_endings_judge(&want, job, out);
    if (job->rank[0].step_count > (one->code == 0 ? 2 : 0)) {
        ls_verdict_fail(out, "a step was taken on it");
    }
}

static void add_insides(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof insides / sizeof *insides; i++) {
        ls_case *row = ls_rows_add(list, judge_inside, "I14", "data.batches.%s", insides[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->number[0] = (int)i;
        row->job[0] = ls_endings_job(settings, 1, insides[i].script, "");
        row->job[0].image_size = 16;
        row->job[0].batch_size = 4;
        ls_text_put(row->job[0].data, sizeof row->job[0].data, "batches:{self}/data");
    }
}

void ls_data_refused_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_refusals(settings, list);
    add_first(settings, list);
    add_insides(settings, list);
}
