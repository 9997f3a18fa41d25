/* What goes wrong while a job runs or ends, and when it goes on from a checkpoint that is not whole
 * or not its own. A rank fails on request (--fault-at STEP:RANK:PHASE:HOW); disks are full by a
 * limit on the size of files. */
#include "suite/cases/endings.h"
#include "suite/cases/rows.h"
#include "suite/cases/ddp/syncbn.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/text.h"
#include "reference/files/safetensors.h"

enum { WORLD = 3, AT = 2 };

#define GO "exec \"$0\" \"$@\""

/* ---- a rank that dies, leaves or stops ------------------------------------------------------- */

static const char *const phases[] = {"join",      "forward", "backward", "reduction",
                                     "optimizer", "dump",    "save"};
enum { PHASES = sizeof phases / sizeof *phases, JOIN = 0, OPTIMIZER = 4, SAVE = 6 };

/* The others find out by themselves: at the rendezvous by its deadline, later by the connection. */
static int code_of_others(int phase)
{
    return phase == JOIN ? LS_ERR_RENDEZVOUS : LS_ERR_PEER_LOST;
}

/* row->number: phase, victim, what the victim leaves with. */
static void judge_gone(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_ending want = {.code = {0}};
    for (int rank = 0; rank < job->world; rank++) {
        want.code[rank] = rank == row->number[1] ? row->number[2] : code_of_others(row->number[0]);
    }
    /* only rank 0 writes the checkpoint, and it died before that */
    want.absent = row->number[0] != SAVE || row->number[1] == 0 ? "checkpoint.safetensors" : NULL;
    ls_endings_judge(&want, job, out);
    for (int rank = 0; rank < job->world; rank++) {
        int steps = job->rank[rank].step_count;
        int most = row->number[0] >= OPTIMIZER ? AT : AT - 1; /* its reduction was done */
        if (steps > most && row->number[0] != JOIN) {
            ls_verdict_fail(out, "rank=%d finished %d steps although a rank was gone in %d", rank,
                            steps, AT);
        }
    }
}

static ls_spec failing_job(const ls_case_settings *settings, int phase, int victim, const char *how,
                           const char *timeout)
{
    char options[256];
    ls_text_put(options, sizeof options,
                "--fault-at=%d:%d:%s:%s --timeout=%s --save={self}/checkpoint.safetensors", AT,
                victim, phases[phase], how, timeout);
    ls_spec spec = ls_endings_job(settings, WORLD, NULL, options);
    if (strcmp(phases[phase], "dump") == 0) {
        ls_text_put(spec.dump_steps, sizeof spec.dump_steps, "%d", AT);
    }
    return spec;
}

static void add_gone(const ls_case_settings *settings, ls_case_list *list)
{
    for (int phase = 0; phase < PHASES; phase++) {
        for (int victim = 0; victim < WORLD; victim++) {
            ls_case *row =
                ls_rows_add(list, judge_gone, "F1", "faults.kill.%s.rank%d", phases[phase], victim);
            row->job_count = 1;
            row->judges_outcome = true;
            row->job[0] = failing_job(settings, phase, victim, "kill", phase == JOIN ? "2" : "60");
            row->number[0] = phase;
            row->number[1] = victim;
            row->number[2] = LS_ENDINGS_KILLED;
        }
    }
    static const int leaves[] = {2, 3, 6}; /* backward, reduction, save */
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++) {
        int victim = (int)i;
        ls_case *row = ls_rows_add(list, judge_gone, "F2", "faults.exit0.%s.rank%d",
                                   phases[leaves[i]], victim);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = failing_job(settings, leaves[i], victim, "exit", "60");
        row->number[0] = leaves[i];
        row->number[1] = victim;
        row->number[2] = 0;
    }
}

/* A rank that stands still is found by the deadline, and named. */
static void judge_stopped(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char name[16];
    int victim = row->number[1];
    bool named = false;
    ls_ending want = {.code = {0}};
    ls_text_put(name, sizeof name, "rank %d", victim);
    for (int rank = 0; rank < job->world; rank++) {
        want.code[rank] = rank == victim ? LS_ENDINGS_ANY : code_of_others(row->number[0]);
        named = named || (rank != victim && ls_endings_says(job, rank, name));
    }
    ls_endings_judge(&want, job, out);
    if (!named) {
        ls_verdict_fail(out, "no other rank names %s", name);
    }
    if (job->state != LS_RECORD_DONE && job->first_rank == victim) {
        ls_verdict_fail(out, "%s is said to have failed first; it only stood still", name);
    }
}

static void add_stopped(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        int phase, victim;
    } stopped[] = {{JOIN, 2}, {3, 1}, {4, 0}};
    for (size_t i = 0; i < sizeof stopped / sizeof *stopped; i++) {
        ls_case *row = ls_rows_add(list, judge_stopped, "F3", "faults.stop.%s.rank%d",
                                   phases[stopped[i].phase], stopped[i].victim);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = failing_job(settings, stopped[i].phase, stopped[i].victim, "stop", "2");
        row->number[0] = stopped[i].phase;
        row->number[1] = stopped[i].victim;
    }
}

/* ---- full disks ------------------------------------------------------------------------------ */

/* Files of more than `blocks` x 512 bytes cannot be written; the signal for that is ignored, so
 * that write(2) fails as on a full disk. */
#define FULL(blocks) "trap '' XFSZ; ulimit -f " blocks "; "

#define TEN "checkpoint"

static const struct full {
    const char *id, *script, *options, *dump;
    ls_ending end;
} full[] = {
    {"dump",
     "[ $RANK != 1 ] || { " FULL("200") "}; " GO,
     "",
     "1",
     {{10, 3}, 2, "dump/step000001.rank1", false, "dump/step000001.rank1.safetensors"}},
    {"save",
     FULL("200") GO,
     "--save={self}/checkpoint.safetensors",
     "",
     {{3, LS_ENDINGS_ANY}, 1, "checkpoint.safetensors", false, "checkpoint.safetensors"}},
    {"save-again",
     "echo old >{self}/checkpoint.safetensors; " FULL("200") GO,
     "--save={self}/checkpoint.safetensors",
     "",
     {{3, LS_ENDINGS_ANY}, 1, "checkpoint.safetensors", false, NULL}},
    {"events",
     "[ $RANK != 0 ] || { ln -s /dev/full {self}/rank0.jsonl; trap 'rm {self}/rank0.jsonl' EXIT; "
     "\"$0\" \"$@\"; exit $?; }; " GO,
     "",
     "",
     {{3, 10}, 1, "rank0.jsonl", false, NULL}},
    {"save-nowhere",
     GO,
     "--save={self}/nowhere/checkpoint.safetensors",
     "",
     {{2, LS_ENDINGS_ANY}, 1, "nowhere", false, "nowhere"}},
    {"save-folder",
     "mkdir -p {self}/checkpoint.safetensors; " GO,
     "--save={self}/checkpoint.safetensors",
     "",
     {{2, LS_ENDINGS_ANY}, 1, "checkpoint.safetensors: it is a folder", true, NULL}},
    {"save-name", /* the file's own name fits, that of the file which is renamed to it does not */
     GO,
     "--save={self}/" TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
         TEN TEN TEN TEN TEN TEN,
     "",
     {{2, LS_ENDINGS_ANY}, 1, "File name too long", true, NULL}},
};

static bool has_leftovers(const ls_record *job, ls_verdict *out)
{
    static const char *const what[] = {"", "/dump"};
    char command[900], line[300] = "";
    for (int i = 0; i < 2; i++) {
        ls_text_put(command, sizeof command, "ls '%s%s' 2>/dev/null | grep '[.]tmp'",
                    job->directory, what[i]);
        FILE *list = popen(command, "r");
        bool found = list != NULL && fgets(line, sizeof line, list) != NULL;
        if (list != NULL) {
            (void)pclose(list);
        }
        if (found) {
            line[strcspn(line, "\n")] = '\0';
            ls_verdict_fail(out, "%s was left behind", line);
            return true;
        }
    }
    return false;
}

static void check_old(const ls_record *job, ls_verdict *out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/checkpoint.safetensors", job->directory);
    char *text = ls_text_read(path);
    if (text == NULL || strcmp(text, "old\n") != 0) {
        ls_verdict_fail(out, "the older checkpoint is not what it was");
    }
    free(text);
}

static void judge_full(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct full *f = &full[row->number[0]];
    ls_endings_judge(&f->end, job, out);
    (void)has_leftovers(job, out);
    if (strcmp(f->id, "save-again") == 0) {
        check_old(job, out);
    }
}

static void add_full(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof full / sizeof *full; i++) {
        ls_case *row = ls_rows_add(list, judge_full, "F4", "faults.full.%s", full[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = ls_endings_job(settings, 2, full[i].script, full[i].options);
        ls_text_put(row->job[0].dump_steps, sizeof row->job[0].dump_steps, "%s", full[i].dump);
        row->number[0] = (int)i;
    }
}

/* ---- runs that fail in their arithmetic -------------------------------------------------------
 */

#define OLD "echo old >{self}/checkpoint.safetensors; " GO
#define SAVED "--save={self}/checkpoint.safetensors "

/* They end before their last step, which is the one that would be saved. Under SyncBN rank 0 needs
 * nobody to save. */
static const struct spoilt {
    const char *id, *script, *options;
    int level, world;
} spoilts[] = {
    {"floor", GO, SAVED "--init-scale=2 --min-loss-scale=1.5 --overflow-at=1", 2, 1},
    {"floor-again", OLD, SAVED "--init-scale=2 --min-loss-scale=1.5 --overflow-at=1", 2, 2},
    {"parameter", GO, SAVED "--loss-scale=1 --overflow-at=1", 0, 2},
    {"parameter-again", OLD, SAVED "--loss-scale=1 --overflow-at=1", 0, 1},
};

static void judge_spoilt(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct spoilt *s = &spoilts[row->number[0]];
    bool again = strstr(s->id, "-again") != NULL;
    ls_ending want = {.code = {LS_ERR_NON_FINITE, LS_ERR_NON_FINITE},
                      .absent = again ? NULL : "checkpoint.safetensors"};
    ls_endings_judge(&want, job, out);
    (void)has_leftovers(job, out);
    if (again) {
        check_old(job, out);
    }
}

static void add_spoilt(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof spoilts / sizeof *spoilts; i++) {
        ls_case *row = ls_rows_add(list, judge_spoilt, "F7", "faults.spoilt.%s", spoilts[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] =
            ls_endings_job(settings, spoilts[i].world, spoilts[i].script, spoilts[i].options);
        row->job[0].level = spoilts[i].level;
        row->job[0].sync_bn = spoilts[i].world > 1;
        if (spoilts[i].level > 0) {
            ls_text_put(row->job[0].loss_scale, sizeof row->job[0].loss_scale, "dynamic");
        }
        row->number[0] = (int)i;
    }
}

/* ---- checkpoints that are not whole, or not this run's --------------------------------------- */

/* One checkpoint of one rank for all rows, made by the first that needs it; C: this job's copy. */
#define WHOLE                                                                                    \
    "K={run}/whole.safetensors; C={self}/c.safetensors; "                                        \
    "flock {run}/whole.lock sh -c '[ -e '$K' ] || env -u RANK -u WORLD_SIZE LS_RUN_DIR= \"$0\" " \
    "\"$@\" --arch=resnet8 --opt-level=O0 --optimizer=sgd --loss-scale=1 --num-classes=10 "      \
    "--half=fp16 --steps=2 --save='$K' >/dev/null' \"$0\" \"$@\" || exit 9; "
/* Only one rank makes the copy, by `command` from $K to $C. */
#define COPY(command) \
    WHOLE "export K C; flock {self}/copy.lock sh -c '[ -e $C ] || { " command "; }'; " CONTINUE
#define CONTINUE "exec \"$0\" \"$@\" --resume={self}/c.safetensors"

static const struct broken {
    const char *id, *script, *options, *says;
} broken[] = {
    {"half", COPY("head -c 200000 $K >$C"), "", "c.safetensors"},
    {"header", COPY("head -c 40 $K >$C"), "", "c.safetensors"},
    {"last-byte", COPY("head -c -1 $K >$C"), "", "c.safetensors"},
    {"longer", COPY("{ cat $K; echo; } >$C"), "", "c.safetensors"},
    {"empty", COPY(": >$C"), "", "c.safetensors"},
    {"text", COPY("echo no checkpoint >$C"), "", "c.safetensors"},
    {"missing", WHOLE CONTINUE, "", "c.safetensors"},
    {"length", COPY("{ printf \"\\377\\377\\377\\377\\377\\377\\377\\177\"; tail -c +9 $K; } >$C"),
     "", "c.safetensors"},
    {"version", COPY("sed \"s/\\\"version\\\":\\\"./\\\"version\\\":\\\"9/\" $K >$C"), "",
     "version"},
    {"format", COPY("sed \"s/\\\"format\\\":\\\"./\\\"format\\\":\\\"x/\" $K >$C"), "", "format"},
    {"other-name", COPY("sed \"s/param.layer1.0.conv1/param\\/layer1.0.conv9/\" $K >$C"), "",
     "layer1.0.conv1"},
    {"type", COPY("sed \"s/\\\"dtype\\\":\\\"F32\\\"/\\\"dtype\\\":\\\"I32\\\"/\" $K >$C"), "",
     "I32"},
    {"arch", COPY("cp $K $C"), "--arch=resnet20", "resnet20"},
    {"classes", COPY("cp $K $C"), "--num-classes=7", "num_classes"},
    {"level", COPY("cp $K $C"), "--opt-level=O2", "opt_level"},
    {"optimizer", COPY("cp $K $C"), "--optimizer=adam", "optimizer"},
    {"scaler", COPY("cp $K $C"), "--loss-scale=dynamic", "scaler"},
    {"shape", COPY("sed \"s/\\[16,3,3,3\\]/[3,16,3,3]/\" $K >$C"), "", "shape"},
    {"half-type", COPY("cp $K $C"), "--half=bf16", "half"},
    {"left-over", COPY("cp $K $C"), "--momentum=0", "momentum_buffer has no place"},
    {"not-equal", /* one command line, two machines with another file each */
     "mkdir -p {self}/r$RANK; cd {self}/r$RANK; env -u RANK -u WORLD_SIZE LS_RUN_DIR= \"$0\" "
     "\"$@\" --steps=2 --seed=$RANK --save=c.safetensors >/dev/null || exit 9; "
     "exec \"$0\" \"$@\" --resume=c.safetensors",
     "", "--resume"},
    {"not-equal-moments", /* a step too small to move a parameter, with a decay for each rank */
     "mkdir -p {self}/r$RANK; cd {self}/r$RANK; env -u RANK -u WORLD_SIZE LS_RUN_DIR= \"$0\" "
     "\"$@\" --steps=1 --lr=1e-30 --weight-decay=0.$RANK --save=c.safetensors >/dev/null || exit "
     "9; exec \"$0\" \"$@\" --resume=c.safetensors",
     "", "--resume"},
};

static void judge_broken(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct broken *b = &broken[row->number[0]];
    ls_ending want = {.code = {2, 2}, .says = 3, .text = b->says, .unwritten = true};
    ls_endings_judge(&want, job, out);
}

static void add_broken(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        ls_case *row = ls_rows_add(list, judge_broken, "F5", "faults.resume.%s", broken[i].id);
        row->job_count = 1;
        row->judges_outcome = true;
        row->job[0] = ls_endings_job(settings, 2, broken[i].script, broken[i].options);
        row->job[0].steps = 4;
        row->number[0] = (int)i;
    }
}

/* ---- another world --------------------------------------------------------------------------- */

/* Parameters of the step after the checkpoint are the checkpoint's, on every rank; every rank
 * counts its batches on. */
static void judge_world(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char path[700];
    int compared = 0;
    ls_safetensors *saved, *dump;
    ls_text_put(path, sizeof path, "%s/checkpoint.safetensors", job[0].directory);
    if (ls_safetensors_open(path, &saved) != LS_OK) {
        ls_verdict_fail(out, "the checkpoint is missing or broken");
        return;
    }
    for (int rank = 0; rank < job[1].world; rank++) {
        ls_text_put(path, sizeof path, "%s/dump/step000003.rank%d.safetensors", job[1].directory,
                    rank);
        if (ls_safetensors_open(path, &dump) != LS_OK) {
            ls_verdict_fail(out, "rank=%d: the dump of step 3 is missing or broken", rank);
            break;
        }
        for (int i = 0; i < ls_safetensors_count(saved); i++) {
            const ls_safetensors_entry *a = ls_safetensors_at(saved, i);
            const ls_safetensors_entry *b = ls_safetensors_find(dump, a->name);
            bool param = strncmp(a->name, "param/", 6) == 0;
            bool state = strncmp(a->name, "state/", 6) == 0;
            compared += param;
            if ((param && b == NULL) ||
                ((param || state) && b != NULL &&
                 (b->bytes != a->bytes || memcmp(a->data, b->data, (size_t)a->bytes) != 0))) {
                ls_verdict_fail(out, "rank=%d goes on with another %s", rank, a->name);
            }
        }
        const ls_safetensors_entry *count =
            ls_safetensors_find(dump, "buffer/bn1.num_batches_tracked");
        if (count == NULL || count->bytes != 8 || *(const int64_t *)count->data != 3) {
            ls_verdict_fail(out, "rank=%d has not counted 3 batches", rank);
        }
        ls_safetensors_close(dump);
    }
    const ls_safetensors_entry *mean = ls_safetensors_find(saved, "buffer/bn1.running_mean");
    const ls_safetensors_entry *var = ls_safetensors_find(saved, "buffer/bn1.running_var");
    if (mean == NULL || var == NULL) {
        ls_verdict_fail(out, "the checkpoint has no running statistics");
    } else if (out->code == LS_PASS) { /* rank 0's go to all, and on from there */
        ls_syncbn_check(&job[1], 3, row->job[0].sync_bn ? job[1].world : 1, mean->data, var->data,
                        out);
    }
    if (!ls_endings_says(&job[1], 0, "ranks, this run has") ||
        (ls_safetensors_find(saved, "rank1/buffer/bn1.running_mean") != NULL &&
         !ls_endings_says(&job[1], 0, "not used: rank<k>"))) {
        ls_verdict_fail(out, "rank 0 does not say what it does not use of the checkpoint");
    }
    ls_safetensors_close(saved);
    ls_verdict_pass(out, "%d tensors of %d ranks are those that %d ranks saved", compared,
                    job[1].world, job[0].world);
}

static void add_worlds(const ls_case_settings *settings, ls_case_list *list)
{
    static const int pair[][2] = {{1, 2}, {2, 1}, {2, 3}, {3, 2}};
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        for (int sync = 0; sync < 2; sync++) {
            char id[96], options[256];
            ls_case *row = ls_rows_add(list, judge_world, "F6", "faults.resume.world%s.w%d-to-w%d",
                                       sync ? ".sync" : "", pair[i][0], pair[i][1]);
            row->job_count = 2;
            row->job[0] =
                ls_endings_job(settings, pair[i][0], NULL, "--save={self}/checkpoint.safetensors");
            row->job[0].sync_bn = sync != 0;
            ls_matrix_id(&row->job[0], id);
            ls_text_put(options, sizeof options, "--resume={job:%s}/checkpoint.safetensors", id);
            row->job[1] = ls_endings_job(settings, pair[i][1], NULL, options);
            row->job[1].sync_bn = sync != 0;
            row->job[1].steps = 3;
            ls_text_put(row->job[1].dump_steps, sizeof row->job[1].dump_steps, "3");
        }
    }
}

void ls_faults_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_gone(settings, list);
    add_stopped(settings, list);
    add_full(settings, list);
    add_spoilt(settings, list);
    add_broken(settings, list);
    add_worlds(settings, list);
}
