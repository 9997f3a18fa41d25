/* --save-dir: the newest and the best state, signals that end a run, and runs that are killed while
 * they save. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "suite/judge/diagnose.h"
#include "suite/judge/judges.h"

/* Ten classes of 4 pictures for training: epochs of 10, 5 and 3 steps on 1, 2 and 3 ranks. */
#define TREE                                                                                    \
    "D={self}/data; mkdir -p $D; {bin}/lockstep data make $D/train --images 4 --image-size 16 " \
    ">/dev/null && {bin}/lockstep data make $D/val --images 7 --image-size 16 --seed 5 "        \
    ">/dev/null || exit 3; exec \"$0\" \"$@\""

/* ---- resumed in an epoch --------------------------------------------------------------------- */

/* The epoch events of a resumed run, against those of the uninterrupted one. Returns how many. */
static int compare_epochs(const ls_record *whole, const ls_record *resumed, ls_verdict *out)
{
    int compared = 0;
    for (int k = 0; k < whole->world; k++) {
        int all = cJSON_GetArraySize(whole->rank[k].epochs);
        int some = cJSON_GetArraySize(resumed->rank[k].epochs);
        if (some == 0 || some > all) {
            ls_verdict_fail(out, "rank=%d resumed has %d epoch events, uninterrupted %d", k, some,
                            all);
        }
        for (int i = 0; i < some && some <= all; i++, compared++) {
            cJSON *a =
                cJSON_Duplicate(cJSON_GetArrayItem(whole->rank[k].epochs, all - some + i), 1);
            cJSON *b = cJSON_Duplicate(cJSON_GetArrayItem(resumed->rank[k].epochs, i), 1);
            cJSON_DeleteItemFromObject(a, "seconds");
            cJSON_DeleteItemFromObject(b, "seconds");
            if (!cJSON_Compare(a, b, true)) {
                ls_verdict_fail(out, "rank=%d: the epoch that ends at step %lld has other sums", k,
                                (long long)ls_json_integer(a, "step", -1));
            }
            cJSON_Delete(a);
            cJSON_Delete(b);
        }
    }
    return compared;
}

/* job: 0 uninterrupted, 1 killed after it has saved in the midst of an epoch, 2 resumed. */
enum { SAVED_AT = 8 };

static void judge_resumed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    for (int i = 0; i < 3; i += 2) {
        if (job[i].state != LS_RECORD_DONE) {
            char line[300];
            ls_record_last_line(&job[i], 0, line, (int)sizeof line);
            ls_verdict_fail(out, "job %d ended with code %d: %s", i, job[i].code, line);
            return;
        }
    }
    if (ls_record_find_step(&job[2].rank[0], SAVED_AT) != NULL) {
        ls_verdict_fail(out, "rank=0 did step %d again after resume", (int)SAVED_AT);
    }
    int epochs = compare_epochs(&job[0], &job[2], out);
    int compared = ls_judge_runs(&job[0], &job[2], SAVED_AT, LS_JUDGE_EVERYTHING, out);
    for (int k = 0; k < job[0].world && out->code == LS_FAIL && out->cause[0] == '\0'; k++) {
        ls_diagnose_resume(&job[0].rank[k], &job[2].rank[k], SAVED_AT + 1, out->cause,
                           (int)sizeof out->cause);
    }
    ls_verdict_pass(out, compared + epochs,
                    "saved at step %d: %d digests and all epochs' sums are equal", (int)SAVED_AT,
                    compared);
}

/* ---- the best -------------------------------------------------------------------------------- */

typedef struct best {
    int64_t step, images, top1;
} best;

/* What follows from the events of rank 0 where `before` was the best: the first of equal ones. */
static best best_after(best before, const ls_record *job)
{
    best found = before;
    const cJSON *event;
    ls_json_each(event, job->rank[0].epochs) {
        const cJSON *val = ls_json_get(event, "val");
        best now = {ls_json_integer(event, "step", -1), ls_json_integer(val, "images", 0),
                    ls_json_integer(val, "top1", 0)};
        if (now.images > 0 && (found.step == 0 || now.top1 > found.top1)) {
            found = now;
        }
    }
    return found;
}

/* A file of the folder {self}/keep: its step, and the score it holds. */
static void check_file(const ls_record *job, const char *name, int64_t step, const best *want,
                       ls_verdict *out)
{
    int64_t holds = -1;
    LS_TEXT(path, 64, "keep/%s.safetensors", name);
    ls_dumpfile *file = ls_dumps_open_file(job, path, LS_FAIL, out);
    if (file == NULL) {
        return;
    }
    const ls_dumpfile_entry *entry = ls_dumpfile_find(file, "data/step");
    if (entry == NULL || !ls_dumpfile_read_i64(entry, &holds) || holds != step) {
        ls_verdict_fail(out, "%s is of step %lld, expected %lld", path, (long long)holds,
                        (long long)step);
    }
    best got = {ls_dumpfile_integer(file, "best_step", 0),
                ls_dumpfile_integer(file, "best_images", 0),
                ls_dumpfile_integer(file, "best_top1", 0)};
    if (memcmp(&got, want, sizeof got) != 0) {
        ls_verdict_fail(out,
                        "%s says the best is %lld of %lld after step %lld, expected %lld of "
                        "%lld after step %lld",
                        path, (long long)got.top1, (long long)got.images, (long long)got.step,
                        (long long)want->top1, (long long)want->images, (long long)want->step);
    }
    ls_dumpfile_close(file);
}

static void check_no_best(const ls_record *job, ls_verdict *out)
{
    LS_TEXT(path, 700, "%s/keep/best.safetensors", job->directory);
    struct stat found;
    if (stat(path, &found) == 0) {
        ls_verdict_fail(out, "a run that validated nothing better has written best.safetensors");
    }
}

/* job: 0 from the start; 1 resumed without validation; 2 resumed with it. Each keeps a folder. */
static void judge_best(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    best first = best_after((best){0}, &job[0]), second = best_after(first, &job[2]);
    if (first.step == 0 || cJSON_GetArraySize(job[0].rank[0].epochs) < 4) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=0 wrote no epoch events with validations");
        return;
    }
    check_file(&job[0], "last", row->job[0].steps, &first, out);
    check_file(&job[0], "best", first.step, &first, out);
    check_file(&job[1], "last", row->job[1].steps, &first, out);
    check_no_best(&job[1], out);
    check_file(&job[2], "last", row->job[2].steps, &second, out);
    if (second.step == first.step) {
        check_no_best(&job[2], out);
    } else {
        check_file(&job[2], "best", second.step, &second, out);
    }
    ls_verdict_pass(out, 6,
                    "top-1 %lld of %lld after step %lld is the best of %d validations; resumed "
                    "runs know it",
                    (long long)first.top1, (long long)first.images, (long long)first.step,
                    cJSON_GetArraySize(job[0].rank[0].epochs));
}

/* ---- signals --------------------------------------------------------------------------------- */

/* The last rank's trainer gets the signals, one after the other, when it has done some steps. */
#define SIGNALLED(signals)                                                                        \
    "[ $RANK = $((WORLD_SIZE - 1)) ] || exec \"$0\" \"$@\"; \"$0\" \"$@\" & p=$!; "               \
    "while kill -0 $p && [ $(cat {self}/rank$RANK.jsonl 2>/dev/null | wc -l) -lt 25 ]; do sleep " \
    "0.01; done; for s in " signals "; do kill -$s $p; done; wait $p; exit $?"

static int64_t steps_done(const ls_record *job, int rank)
{
    const ls_record_rank *of = &job->rank[rank];
    return of->step_count > 0 ? of->step[of->step_count - 1].step : 0;
}

/* job: 0 uninterrupted, 1 stopped by a signal, 2 resumed from what it saved. */
static void judge_stopped(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_ending want = {
        .code = {LS_STOPPED, LS_STOPPED, LS_STOPPED}, .says = 1, .text = "stopped by signal"};
    int64_t at = steps_done(&job[1], 0);
    ls_endings_judge(&want, &job[1], out);
    for (int k = 1; k < job[1].world; k++) {
        if (steps_done(&job[1], k) != at) {
            ls_verdict_fail(out, "rank=%d stopped after step %lld, rank=0 after %lld", k,
                            (long long)steps_done(&job[1], k), (long long)at);
        }
    }
    const best none = {0};
    check_file(&job[1], "last", at, &none, out);
    for (int i = 0; i < 3; i += 2) {
        if (job[i].state != LS_RECORD_DONE) {
            char line[300];
            ls_record_last_line(&job[i], 0, line, (int)sizeof line);
            ls_verdict_fail(out, "job %d ended with code %d: %s", i, job[i].code, line);
        }
    }
    if (out->code == LS_PASS && at >= row->job[0].steps) {
        ls_verdict_set(out, LS_WEAK, "the signal came after the last step");
    }
    if (out->code == LS_PASS) {
        int compared = ls_judge_runs(&job[0], &job[2], at, LS_JUDGE_EVERYTHING, out);
        out->evidence[0] = '\0';
        ls_verdict_pass(out, compared,
                        "%d ranks stopped after step %lld with code 14; resumed: %d digests "
                        "equal to the last bit",
                        job[1].world, (long long)at, compared);
    }
}

/* ---- kill -9 --------------------------------------------------------------------------------- */

/* Saves after every step and is killed again and again; kills.txt: "CODE NAMES STEP" of each, CODE
 * that of a run that reads `last` and takes no step, NAMES how many names of other files lie in the
 * folder. */
enum { KILLS = 8 };
#define KILLED(count)                                                                      \
    "unset RANK WORLD_SIZE LS_RUN_DIR; cd {self}; "                                        \
    "\"$0\" \"$@\" --steps=1 --save-dir=keep >/dev/null || exit $?; i=0; "                 \
    "while [ $i -lt " count " ]; do i=$((i + 1)); "                                        \
    "\"$0\" \"$@\" --steps=100000 --resume=keep/last.safetensors --save-dir=keep "         \
    "--save-every-steps=1 >/dev/null 2>&1 & p=$!; sleep 0.$((3 + i % 4))$((i * 7 % 10)); " \
    "kill -9 $p; wait $p; "                                                                \
    "said=$(\"$0\" \"$@\" --steps=1 --resume=keep/last.safetensors 2>&1 >/dev/null); "     \
    "echo $? $(ls keep | grep -cv '^last.safetensors$') "                                  \
    "$(echo \"$said\" | grep -o 'step [0-9]*' | head -1); done >kills.txt; "               \
    "LS_RUN_DIR={self} exec \"$0\" \"$@\""

static void judge_killed(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int kills = 0;
    long long before = 1, first = 1;
    LS_TEXT(path, 700, "%s/kills.txt", job->directory);
    char *text = ls_text_read(path), *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && line[0] != '\0'; kills++) {
        int code = -1, names = -1;
        long long step = -1;
        if (sscanf(line, "%d %d step %lld", &code, &names, &step) != 3 || code != 0 || names != 0 ||
            step < before) {
            ls_verdict_fail(out, "kill %d (code, other names, step): %s; it was at step %lld",
                            kills + 1, line, before);
        }
        before = step;
    }
    free(text);
    if (kills != KILLS) {
        ls_verdict_fail(out, "%d kills of %d were made", kills, KILLS);
    }
    if (before == first) {
        ls_verdict_set(out, LS_WEAK, "no run had saved anything when it was killed");
    }
    ls_verdict_pass(out, kills,
                    "%d times killed while it saved, to step %lld: `last` is whole each time",
                    kills, before);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define KEEP \
    "image=16 data={self}/data shell --val={self}/data/val --workers=2 --save-dir={self}/keep "
#define LAST "/keep/last.safetensors"
#define KILLED_AT_10(job)                                                                   \
    "resnet8 b0.05 " job " " KEEP "steps=17 | resnet8 b0.05 " job " " KEEP                  \
    "steps=17 --save-every=9 --save-every-steps=8 --fault-at=10:0:backward:kill grace=2 | " \
    "resnet8 b0.05 " job " " KEEP "steps=17 "                                               \
    "--resume={job:1}" LAST
#define STOPPED(job)                                                            \
    "resnet8 b0.05 " job " steps=300 | resnet8 b0.05 " job                      \
    " steps=300 shell --timeout=10 --save-dir={self}/keep | resnet8 b0.05 " job \
    " steps=300 --resume={job:1}" LAST

static const ls_row rows[] = {
    {"saving.epoch.o[0|3].w[1|2|3]", "C7", judge_resumed, KILLED_AT_10("O$1 w$2"), .script = TREE,
     .judges_outcome = true},
    {"saving.epoch.o[1|2].w[1|2|3]", "C7", judge_resumed,
     KILLED_AT_10("scale=dynamic --init-scale=1024 --growth-interval=3 --overflow-at=4 O$1 w$2"),
     .script = TREE, .judges_outcome = true},
    {"saving.epoch.bf16.w2", "C7", judge_resumed, KILLED_AT_10("O2 bf16 scale= w2"), .script = TREE,
     .judges_outcome = true},
    {"saving.best.w[1|2]", "C8", judge_best,
     "resnet8 b0.05 O0 lr=0.02 w$1 " KEEP "steps=60 | resnet8 b0.05 O0 lr=0.02 w$1 image=16 "
     "data={self}/data shell steps=63 --save-dir={self}/keep --resume={job:0}" LAST
     " | resnet8 b0.05 O0 lr=0.02 w$1 " KEEP "steps=70 --resume={job:0}" LAST,
     .script = TREE},
    {"saving.stopped.usr1.w[1|2|3]", "C9", judge_stopped, STOPPED("O2 scale=dynamic w$1"),
     .script = SIGNALLED("USR1"), .judges_outcome = true},
    {"saving.stopped.term.w[1|2]", "C9", judge_stopped, STOPPED("O0 w$1"),
     .script = SIGNALLED("TERM"), .judges_outcome = true},
    {"saving.stopped.twice.w2", "C9", judge_stopped, STOPPED("O1 w2"),
     .script = SIGNALLED("TERM USR1 TERM"), .judges_outcome = true},
    {"saving.killed", "C10", judge_killed, "resnet8 O0 w1 b0.05 steps=1 shell",
     .script = KILLED("8")},
};

void ls_saving_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
