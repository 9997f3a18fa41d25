/* What goes wrong while a job runs or ends, and when it goes on from a checkpoint that is not whole
 * or not its own. A rank fails on request (--fault-at STEP:RANK:PHASE:HOW); disks are full by a
 * limit on the size of files. */
#include "suite/cases/rows.h"
#include "suite/judge/judges.h"

#include <dirent.h>
#include <signal.h>
#include <string.h>

#include "kernels/core/text.h"
#include "reference/options/options.h"

enum { WORLD = 3, AT = 2 };

#define GO "exec \"$0\" \"$@\""

/* ---- a rank that dies, leaves, stops, is late or cut off, or holds other bits ---------------- */

/* By ls_fault_phase. */
static const char *const phases[] = {"join",      "meet", "forward", "backward", "reduction",
                                     "optimizer", "dump", "save",    "end"};
enum { PHASES = sizeof phases / sizeof *phases };

/* The others find out by themselves: at the rendezvous by its deadline, later by the connection. */
static int code_of_others(int phase)
{
    return phase <= LS_FAULT_MEET ? LS_ERR_RENDEZVOUS : LS_ERR_PEER_LOST;
}

/* The rank that fails, in which phase, and what it leaves with. */
struct victim {
    int phase, rank, code;
};

static void judge_gone(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct victim *victim = row->data;
    ls_ending want = {.code = {0}};
    for (int rank = 0; rank < job->world; rank++) {
        want.code[rank] = rank == victim->rank ? victim->code : code_of_others(victim->phase);
    }
    /* only rank 0 writes the checkpoint, and it died before that */
    bool may =
        victim->phase == LS_FAULT_END || (victim->phase == LS_FAULT_SAVE && victim->rank > 0);
    want.absent = may ? NULL : "checkpoint.safetensors";
    ls_endings_judge(&want, job, out);
    for (int rank = 0; rank < job->world; rank++) {
        int steps = job->rank[rank].step_count;
        int most = victim->phase >= LS_FAULT_OPTIMIZER ? AT : AT - 1; /* its reduction was done */
        if (steps > most && victim->phase >= LS_FAULT_FORWARD) {
            ls_verdict_fail(out, "rank=%d finished %d steps although a rank was gone in %d", rank,
                            steps, AT);
        }
    }
}

/* A rank that stands still, or is cut off, is found by the deadline, and named. */
static void judge_silent(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct victim *v = row->data;
    int victim = v->rank;
    bool named = false;
    ls_ending want = {.code = {0}, .clean = true};
    LS_TEXT(name, 16, "rank %d", victim);
    for (int rank = 0; rank < job->world; rank++) {
        want.code[rank] = rank == victim && v->code != 0 ? v->code : code_of_others(v->phase);
        named = named || (rank != victim && ls_endings_says(job, rank, name));
    }
    ls_endings_judge(&want, job, out);
    if (!named) {
        ls_verdict_fail(out, "no other rank names %s", name);
    }
}

static void judge_stopped(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int victim = ((const struct victim *)row->data)->rank;
    judge_silent(row, job, out);
    if (job->state != LS_RECORD_DONE && job->first_rank == victim) {
        ls_verdict_fail(out, "rank %d is said to have failed first; it only stood still", victim);
    }
}

/* job 0 has no fault. */
static void judge_late(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_case same = *row;
    same.data = LS_JUDGE_SAME("a rank that is late once");
    ls_judge_same(&same, job, out);
    if (job[1].seconds < LS_FAULT_SLOW_S) {
        ls_verdict_fail(out, "the job took %.2g s: no rank was late by %d", job[1].seconds,
                        LS_FAULT_SLOW_S);
    }
}

/* The digests name the rank, which is not the first, and the step in which the bit changed. */
static void judge_corrupt(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct victim *victim = row->data;
    ls_verdict found = {0};
    ls_judge_lockstep(row, job, &found);
    LS_TEXT(who, 32, "rank=%d step %d", victim->rank, (int)AT);
    if (found.code == LS_FAIL && strstr(found.evidence, who) != NULL) {
        ls_verdict_pass(out, job->world, "found: %.200s", found.evidence);
    } else {
        ls_verdict_fail(out, "a changed bit on rank %d was not found in step %d: %.160s",
                        victim->rank, AT, found.evidence);
    }
}

/* ---- full disks ------------------------------------------------------------------------------ */

/* Files of more than `blocks` x 512 bytes cannot be written; the signal for that is ignored, so
 * that write(2) fails as on a full disk. */
#define FULL(blocks) "trap '' XFSZ; ulimit -f " blocks "; "

#define OLD "echo old >{self}/checkpoint.safetensors; "

/* ---- checkpoints that are not whole, or not this run's --------------------------------------- */

/* One checkpoint of one rank for all rows, made by the first that needs it; C: this job's copy. */
#define WHOLE                                                                                 \
    "K={run}/whole.safetensors; C={self}/c.safetensors; export K C; "                         \
    "flock {run}/whole.lock sh -c 'IFS=; [ -e $K ] || env -u RANK -u WORLD_SIZE LS_RUN_DIR= " \
    "\"$0\" \"$@\" --arch=resnet8 --opt-level=O0 --optimizer=sgd --loss-scale=1 "             \
    "--num-classes=10 --half=fp16 --steps=2 --save=$K >/dev/null' \"$0\" \"$@\" || exit 9; "
/* Only one rank makes the copy, by `command` from $K to $C. */
#define COPY(command) \
    WHOLE "flock {self}/copy.lock sh -c 'IFS=; [ -e $C ] || { " command "; }'; " CONTINUE
/* The same by a script of sed, without the digests, which would find the edit first. */
#define EDITED(script) COPY("sed \"s/xxh64/none0/g; " script "\" $K >$C")
/* The first element of a tensor is NaN. */
#define SPOILT(name)                                                                      \
    COPY("sed \"s/xxh64/none0/g\" $K >$C; from=$(grep -ao \"" name                        \
         "\\\":{[^[]*[^:]*:[[][0-9]*\" $C | grep -ao \"[0-9]*$\"); printf "               \
         "\"\\377\\377\\377\\177\" | dd of=$C bs=1 conv=notrunc status=none seek=$((8 + " \
         "$(od -An -tu8 -N8 $C) + from))")
#define CONTINUE "exec \"$0\" \"$@\" --resume={self}/c.safetensors"

/* ---- another world --------------------------------------------------------------------------- */

/* Parameters of the step after the checkpoint are the checkpoint's, on every rank; every rank
 * counts its batches on. */
static void judge_world(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int compared = 0;
    ls_dumpfile *saved = ls_dumps_open_file(&job[0], "checkpoint.safetensors", LS_FAIL, out);
    if (saved == NULL) {
        return;
    }
    for (int rank = 0; rank < job[1].world; rank++) {
        ls_dumpfile *dump = ls_dumps_open(&job[1], 3, rank, out);
        if (dump == NULL) {
            break;
        }
        for (int i = 0; i < ls_dumpfile_count(saved); i++) {
            const ls_dumpfile_entry *a = ls_dumpfile_at(saved, i);
            const ls_dumpfile_entry *b = ls_dumpfile_find(dump, a->name);
            bool param = strncmp(a->name, "param/", 6) == 0;
            bool state = strncmp(a->name, "state/", 6) == 0;
            compared += param;
            if ((param && b == NULL) ||
                ((param || state) && b != NULL && !ls_dumpfile_equal(a, b))) {
                ls_verdict_fail(out, "rank=%d goes on with another %s", rank, a->name);
            }
        }
        ls_dumpfile_close(dump);
    }
    if (compared == 0) {
        ls_verdict_fail(out, "the checkpoint holds no parameters");
    }
    ls_judge_running running[LS_JUDGE_RUNNING_RANKS];
    ls_judge_statistics_start(running);
    if (!ls_judge_statistics_read(saved, &running[0])) {
        ls_verdict_fail(out, "the checkpoint has no running statistics");
    } else if (out->code == LS_PASS) { /* rank 0's go to all, and on from there */
        const ls_judge_statistics_facts facts = {
            .step = 3, .size = row->job[0].sync_bn ? job[1].world : 1, .from_rank_0 = true};
        compared += ls_judge_statistics(&job[1], &facts, running, out);
    }
    if (!ls_endings_says(&job[1], 0, "ranks, this run has") ||
        (ls_dumpfile_find(saved, "rank1/buffer/bn1.running_mean") != NULL &&
         !ls_endings_says(&job[1], 0, "not used: rank<k>"))) {
        ls_verdict_fail(out, "rank 0 does not say what it does not use of the checkpoint");
    }
    ls_dumpfile_close(saved);
    ls_verdict_pass(out, compared, "%d tensors of %d ranks are those that %d ranks saved", compared,
                    job[1].world, job[0].world);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define JOB "resnet8 O0 b0.05 "
#define SAVE " --save={self}/checkpoint.safetensors "
#define ENDS(...) LS_ENDING(__VA_ARGS__, .clean = true)
#define CHECKPOINT "checkpoint.safetensors"
/* Ends before its last step, which is the one that would be saved. */
#define SPOILT_RUN(...) ENDS({LS_ERR_NON_FINITE, LS_ERR_NON_FINITE}, __VA_ARGS__)
#define TEN "checkpoint"
/* Every rank says it and leaves with 2. */
#define BROKEN(id, options, says, script)                                           \
    {                                                                               \
        "faults.resume." id, "F5", ls_endings_row, JOB "w2 steps=4 shell " options, \
            LS_ENDING({2, 2}, 3, says, true), script, .judges_outcome = true        \
    }

#define IN_TIME "--timeout=60"
/* Ten pictures for each rank. */
#define TREE \
    "{bin}/lockstep data make {self}/data --images 3 --image-size 16 >/dev/null || exit 3; " GO

static const ls_row rows[] = {
    /* under SyncBN nothing but the epoch's sums is gathered for a checkpoint */
    {"faults.kill.epoch[|.sync=sync].rank1", "F1", judge_gone,
     JOB "w3 $1 image=16 data={self}/data shell --fault-at=2:1:optimizer:kill " IN_TIME SAVE,
     &(const struct victim){LS_FAULT_OPTIMIZER, 1, LS_ENDINGS_KILLED}, TREE,
     .judges_outcome = true},
    {"faults.full.dump", "F4", ls_endings_row, JOB "w2 dump=1 shell",
     ENDS({10, 3}, 2, "dump/step000001.rank1", false, "dump/step000001.rank1.safetensors"),
     "[ $RANK != 1 ] || { " FULL("200") "}; " GO, .judges_outcome = true, .takes_disk = true},
    {"faults.full.save", "F4", ls_endings_row, JOB "w2 shell" SAVE,
     ENDS({3, LS_ENDINGS_ANY}, 1, "checkpoint.safetensors", false, "checkpoint.safetensors"),
     FULL("200") GO, .judges_outcome = true, .takes_disk = true},
    {"faults.full.save-again", "F4", ls_endings_row, JOB "w2 shell" SAVE,
     ENDS({3, LS_ENDINGS_ANY}, 1, CHECKPOINT, .kept = CHECKPOINT), OLD FULL("200") GO,
     .judges_outcome = true, .takes_disk = true},
    /* the limit's own signal, which the others ignore, must not end a rank */
    {"faults.full.save-limit", "F4", ls_endings_row, JOB "w2 shell" SAVE,
     ENDS({3, LS_ENDINGS_ANY}, 1, "checkpoint.safetensors: File too large", false,
          "checkpoint.safetensors"),
     "ulimit -f 200; " GO, .judges_outcome = true, .takes_disk = true},
    {"faults.full.events", "F4", ls_endings_row, JOB "w2 shell",
     ENDS({3, 10}, 1, "rank0.jsonl", false, NULL),
     "[ $RANK != 0 ] || { ln -s /dev/full {self}/rank0.jsonl; trap 'rm {self}/rank0.jsonl' EXIT; "
     "\"$0\" \"$@\"; exit $?; }; " GO,
     .judges_outcome = true, .takes_disk = true},
    {"faults.full.save-nowhere", "F4", ls_endings_row,
     JOB "w2 shell --save={self}/nowhere/checkpoint.safetensors",
     ENDS({2, 2}, 1, "nowhere", false, "nowhere"), GO, .judges_outcome = true},
    {"faults.full.save-folder", "F4", ls_endings_row, JOB "w2 shell" SAVE,
     ENDS({2, 2}, 1, "checkpoint.safetensors: it is a folder", true, NULL),
     "mkdir -p {self}/checkpoint.safetensors; " GO, .judges_outcome = true},
    /* the file's own name fits, that of the file which is renamed to it does not */
    {"faults.full.save-name", "F4", ls_endings_row,
     JOB "w2 shell --save={self}/" TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
         TEN TEN TEN TEN TEN TEN TEN TEN TEN,
     ENDS({2, 2}, 1, "File name too long", true, NULL), GO, .judges_outcome = true},
    {"faults.full.save-dir", "F4", ls_endings_row,
     JOB "w2 steps=4 shell --save-dir={self}/keep --save-every-steps=2",
     ENDS({3, LS_ENDINGS_ANY}, 1, "keep/last.safetensors", false, "keep/best.safetensors",
          .kept = "keep/last.safetensors"),
     "mkdir -p {self}/keep; echo old >{self}/keep/last.safetensors; " FULL("200") GO,
     .judges_outcome = true, .takes_disk = true},
    {"faults.full.save-dir-file", "F4", ls_endings_row, JOB "w2 shell --save-dir={self}/keep",
     ENDS({2, 2}, 1, "keep: Not a directory", true, NULL), "echo old >{self}/keep; " GO,
     .judges_outcome = true},
    {"faults.full.save-dir-folder", "F4", ls_endings_row, JOB "w2 shell --save-dir={self}/keep",
     ENDS({2, 2}, 1, "best.safetensors: it is a folder", true, NULL),
     "mkdir -p {self}/keep/best.safetensors; " GO, .judges_outcome = true},
    {"faults.spoilt.floor", "F7", ls_endings_row,
     "resnet8 O2 b0.05 w1 scale=dynamic shell" SAVE
     "--init-scale=2 --min-loss-scale=1.5 --overflow-at=1",
     SPOILT_RUN(.absent = CHECKPOINT), GO, .judges_outcome = true},
    {"faults.spoilt.floor-again", "F7", ls_endings_row,
     "resnet8 O2 b0.05 w2 sync scale=dynamic shell" SAVE
     "--init-scale=2 --min-loss-scale=1.5 --overflow-at=1",
     SPOILT_RUN(.kept = CHECKPOINT), OLD GO, .judges_outcome = true},
    {"faults.spoilt.parameter", "F7", ls_endings_row,
     JOB "w2 sync shell" SAVE "--loss-scale=1 --overflow-at=1", SPOILT_RUN(.absent = CHECKPOINT),
     GO, .judges_outcome = true},
    {"faults.spoilt.parameter-again", "F7", ls_endings_row,
     JOB "w1 shell" SAVE "--loss-scale=1 --overflow-at=1", SPOILT_RUN(.kept = CHECKPOINT), OLD GO,
     .judges_outcome = true},
    BROKEN("half", "", "c.safetensors", COPY("head -c 200000 $K >$C")),
    BROKEN("header", "", "c.safetensors", COPY("head -c 40 $K >$C")),
    BROKEN("last-byte", "", "c.safetensors", COPY("head -c -1 $K >$C")),
    BROKEN("longer", "", "c.safetensors", COPY("{ cat $K; echo; } >$C")),
    BROKEN("empty", "", "c.safetensors", COPY(": >$C")),
    BROKEN("text", "", "c.safetensors", COPY("echo no checkpoint >$C")),
    BROKEN("missing", "", "c.safetensors", WHOLE CONTINUE),
    BROKEN("length", "", "c.safetensors",
           COPY("{ printf \"\\377\\377\\377\\377\\377\\377\\377\\177\"; tail -c +9 $K; } >$C")),
    BROKEN("version", "", "version", EDITED("s/\\\"version\\\":\\\"./\\\"version\\\":\\\"9/")),
    BROKEN("format", "", "format", EDITED("s/\\\"format\\\":\\\"./\\\"format\\\":\\\"x/")),
    BROKEN("other-name", "", "layer1.0.conv1",
           EDITED("s/param.layer1.0.conv1/param\\/layer1.0.conv9/")),
    BROKEN("type", "", "I32", EDITED("s/\\\"dtype\\\":\\\"F32\\\"/\\\"dtype\\\":\\\"I32\\\"/")),
    BROKEN("arch", "--arch=resnet20", "resnet20", COPY("cp $K $C")),
    BROKEN("classes", "--num-classes=7", "num_classes", COPY("cp $K $C")),
    BROKEN("level", "--opt-level=O2", "opt_level", COPY("cp $K $C")),
    BROKEN("optimizer", "--optimizer=adam", "optimizer", COPY("cp $K $C")),
    BROKEN("scaler", "--loss-scale=dynamic", "scaler", COPY("cp $K $C")),
    BROKEN("shape", "", "shape", EDITED("s/\\[16,3,3,3\\]/[3,16,3,3]/")),
    BROKEN("half-type", "--half=bf16", "half", COPY("cp $K $C")),
    BROKEN("left-over", "--momentum=0", "momentum_buffer has no place", COPY("cp $K $C")),
    BROKEN("nan-parameter", "", "param/fc.bias is not finite at element 0",
           SPOILT("param/fc.bias")),
    BROKEN("nan-moment", "", "state/conv1.weight/momentum_buffer is not finite at element 0",
           SPOILT("state/conv1.weight/momentum_buffer")),
    /* one command line, two machines with another file each */
    BROKEN("not-equal", "", "--resume",
           "mkdir -p {self}/r$RANK; cd {self}/r$RANK; env -u RANK -u WORLD_SIZE LS_RUN_DIR= \"$0\" "
           "\"$@\" --steps=2 --seed=$RANK --save=c.safetensors >/dev/null || exit 9; "
           "exec \"$0\" \"$@\" --resume=c.safetensors"),
    /* a step too small to move a parameter, with a decay for each rank */
    BROKEN("not-equal-moments", "", "--resume",
           "mkdir -p {self}/r$RANK; cd {self}/r$RANK; env -u RANK -u WORLD_SIZE LS_RUN_DIR= \"$0\" "
           "\"$@\" --steps=1 --lr=1e-30 --weight-decay=0.$RANK --save=c.safetensors >/dev/null || "
           "exit "
           "9; exec \"$0\" \"$@\" --resume=c.safetensors"),
    {"faults.resume.world[|.sync=sync].w1-to-w2", "F6", judge_world,
     JOB "w1 $1" SAVE "| " JOB "w2 $1 steps=3 dump=3 --resume={job:0}/checkpoint.safetensors"},
    {"faults.resume.world[|.sync=sync].w2-to-w1", "F6", judge_world,
     JOB "w2 $1" SAVE "| " JOB "w1 $1 steps=3 dump=3 --resume={job:0}/checkpoint.safetensors"},
    {"faults.resume.world[|.sync=sync].w2-to-w3", "F6", judge_world,
     JOB "w2 $1" SAVE "| " JOB "w3 $1 steps=3 dump=3 --resume={job:0}/checkpoint.safetensors"},
    {"faults.resume.world[|.sync=sync].w3-to-w2", "F6", judge_world,
     JOB "w3 $1" SAVE "| " JOB "w2 $1 steps=3 dump=3 --resume={job:0}/checkpoint.safetensors"},
};

/* One rank of three, in the second step, which is the last. */
typedef struct failing {
    const char *how;
    int phase, rank;
} failing;

static const failing failings[] = {
    {"exit", LS_FAULT_MEET, 1},         {"exit", LS_FAULT_BACKWARD, 0},
    {"exit", LS_FAULT_REDUCTION, 1},    {"exit", LS_FAULT_SAVE, 2},
    {"exit", LS_FAULT_END, 1},          {"stop", LS_FAULT_JOIN, 2},
    {"stop", LS_FAULT_MEET, 1},         {"stop", LS_FAULT_REDUCTION, 1},
    {"stop", LS_FAULT_OPTIMIZER, 0},    {"stop", LS_FAULT_END, 2},
    {"slow", LS_FAULT_MEET, 1},         {"slow", LS_FAULT_FORWARD, 0},
    {"slow", LS_FAULT_REDUCTION, 1},    {"slow", LS_FAULT_OPTIMIZER, 2},
    {"slow", LS_FAULT_SAVE, 0},         {"slow", LS_FAULT_END, 1},
    {"cut", LS_FAULT_MEET, 1},          {"cut", LS_FAULT_FORWARD, 2},
    {"cut", LS_FAULT_BACKWARD, 0},      {"cut", LS_FAULT_REDUCTION, 1},
    {"cut", LS_FAULT_SAVE, 1},          {"cut", LS_FAULT_END, 2},
    {"corrupt", LS_FAULT_FORWARD, 1},   {"corrupt", LS_FAULT_BACKWARD, 2},
    {"corrupt", LS_FAULT_REDUCTION, 1}, {"corrupt", LS_FAULT_OPTIMIZER, 2},
};

/* What a way to fail makes of a job. */
static const struct way {
    const char *how, *family, *requirement, *with; /* with: words of the job */
    ls_case_judge *judge;
    int code; /* of the rank; cut off, it leaves as the others do */
} ways[] = {
    {"kill", "kill", "F1", IN_TIME, judge_gone, LS_ENDINGS_KILLED},
    {"exit", "exit0", "F2", IN_TIME, judge_gone, 0},
    /* the stopped rank does not use its grace */
    {"stop", "stop", "F3", "grace=2 --timeout=2", judge_stopped, LS_ENDINGS_ANY},
    {"slow", "slow", "F9", IN_TIME, judge_late, 0},
    /* nodes of one rank: over TCP alone */
    {"cut", "cut", "F10", "n3 --timeout=2", judge_silent, 0},
    {"corrupt", "corrupt", "F11", IN_TIME, judge_corrupt, 0},
};

static void add_failing(const ls_case_settings *settings, ls_case_list *list, failing one)
{
    const struct way *way = ways;
    while (strcmp(way->how, one.how) != 0) {
        way++;
    }
    struct victim *victim = ls_rows_memory(list, sizeof *victim);
    *victim = (struct victim){one.phase, one.rank, way->code};
    bool pair = way->judge == judge_late;
    const ls_row row = {.requirement = way->requirement,
                        .judge = way->judge,
                        .data = victim,
                        .judges_outcome = !pair && way->judge != judge_corrupt};
    bool waits = one.phase <= LS_FAULT_MEET && way->judge == judge_gone; /* for its deadline */
    ls_rows_format(
        list, settings, &row, "faults.%s.%s.rank%d: %s" JOB "w%d %s %s --fault-at=%d:%d:%s:%s" SAVE,
        way->family, phases[one.phase], one.rank, pair ? JOB "w3" SAVE "| " : "", (int)WORLD,
        one.phase == LS_FAULT_DUMP ? "dump=2" : "", waits ? "--timeout=1" : way->with, (int)AT,
        one.rank, phases[one.phase], one.how);
}

void ls_faults_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int phase = 0; phase < PHASES; phase++) {
        for (int rank = 0; rank < WORLD; rank++) {
            add_failing(settings, list, (failing){"kill", phase, rank});
        }
    }
    for (size_t i = 0; i < sizeof failings / sizeof *failings; i++) {
        add_failing(settings, list, failings[i]);
    }
    LS_ROWS(list, settings, rows);
}
