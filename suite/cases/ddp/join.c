/* Uneven inputs (torch's Join): what becomes of a run in which the data of some ranks end before
 * that of others. */
#include "suite/cases/rows.h"

#include "kernels/core/text.h"
#include "kernels/core/status.h"
#include "suite/judge/judges.h"

/* Steps for which each rank has batches: in the run, or in each of its epochs. */
struct inputs {
    int own[4];
    int epoch; /* steps; 0: no epochs */
};

static bool has_batch(const struct inputs *in, int rank, int step)
{
    return (in->epoch > 0 ? (step - 1) % in->epoch + 1 : step) <= in->own[rank];
}

/* The last rank that has a batch. */
static int last_active(const struct inputs *in, int world, int step)
{
    int last = 0;
    for (int rank = 0; rank < world; rank++) {
        last = has_batch(in, rank, step) ? rank : last;
    }
    return last;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* A rank's events say where it had no batch, and how many ranks had one. */
static void judge_events(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inputs *in = row->data;
    int steps = job->rank[0].step_count, joined = 0, compared = 0;
    for (int rank = 0; rank < job->world; rank++) {
        if (job->rank[rank].step_count != steps) {
            ls_verdict_fail(out, "rank=%d reports %d steps, rank 0 %d", rank,
                            job->rank[rank].step_count, steps);
        }
        for (int i = 0; i < job->rank[rank].step_count; i++, compared++) {
            const ls_record_step *event = &job->rank[rank].step[i];
            int step = (int)event->step, active = 0;
            for (int k = 0; k < job->world; k++) {
                active += has_batch(in, k, step);
            }
            bool gone = !has_batch(in, rank, step);
            joined += gone;
            int said = active < job->world ? active : 0;
            if (event->joined != gone || event->active != said || (event->images == 0) != gone ||
                (event->loss_bits[0] == '\0') != gone) {
                ls_verdict_fail(out,
                                "rank=%d step %d: joined %d, active %d, %d images, loss '%s'; "
                                "expected joined %d, active %d",
                                rank, step, event->joined, event->active, (int)event->images,
                                event->loss_bits, gone, said);
            }
        }
    }
    if (joined == 0) {
        ls_verdict_set(out, LS_WEAK, "every rank had a batch in every step");
    }
    ls_verdict_pass(out, compared, "%d of %d steps without a batch are reported as such", joined,
                    steps * job->world);
}

/* ---- running statistics ---------------------------------------------------------------------- */

#define OTHER "is not that of the rank whose it should be"

/* In torch's dialect every step but the first begins with the running statistics of the last rank
 * that has a batch, as they are after the step before. */
static void judge_sent(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inputs *in = row->data;
    int compared = 0;
    for (int step = 2; step <= row->job[0].steps; step++) {
        int source = last_active(in, job->world, step);
        ls_dumpfile *before = ls_dumps_open(job, step - 1, source, out);
        for (int rank = 0; before != NULL && rank < job->world; rank++) {
            LS_TEXT(who, 48, "rank=%d step %d", rank, step);
            if (has_batch(in, rank, step)) {
                ls_dumpfile *now = ls_dumps_open(job, step, rank, out);
                compared += ls_dumps_same(before, "buffer/", now, "last_buffer/", who, OTHER, out);
                ls_dumpfile_close(now);
            }
        }
        ls_dumpfile_close(before);
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no running statistics in the dumps");
    }
    ls_verdict_pass(out, compared, "%d running statistics come from the last rank with a batch",
                    compared);
}

/* The checkpoint after the last step: all ranks have parameters and running statistics of the rank
 * that had batches longest, of several the last one. */
static void judge_end(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inputs *in = row->data;
    int steps = row->job[0].steps, last = last_active(in, job->world, steps), compared = 0;
    ls_dumpfile *saved = ls_dumps_open_file(job, "checkpoint.safetensors", LS_FAIL, out);
    ls_dumpfile *dump = saved != NULL ? ls_dumps_open(job, steps, last, out) : NULL;
    for (int rank = 0; dump != NULL && rank < job->world; rank++) {
        LS_TEXT(group, 48, "rank%d/buffer/", rank);
        LS_TEXT(who, 48, "rank=%d at the end", rank);
        compared +=
            ls_dumps_same(dump, "buffer/", saved, rank == 0 ? "buffer/" : group, who, OTHER, out);
    }
    if (saved != NULL && !ls_dumpfile_has(saved, "master/")) { /* next/ holds the masters */
        compared += ls_dumps_same(dump, "next/", saved, "param/", "parameters", OTHER, out);
    }
    ls_dumpfile_close(dump);
    ls_dumpfile_close(saved);
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "nothing to compare");
    }
    ls_verdict_pass(out, compared, "%d tensors of all ranks are those of rank %d", compared, last);
}

/* ---- endings --------------------------------------------------------------------------------- */

/* All ranks leave with a code of its own after the last step that all had a batch for: one says
 * that its data have ended, the others that another's have. */
static void judge_throw(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inputs *in = row->data;
    int least = in->own[0];
    for (int rank = 1; rank < job->world; rank++) {
        least = in->own[rank] < least ? in->own[rank] : least;
    }
    for (int rank = 0; rank < job->world; rank++) {
        const ls_record_rank *seen = &job->rank[rank];
        const char *says = in->own[rank] == least ? "data of this rank has ended" : "has no batch";
        if (seen->code != LS_ERR_UNEVEN || seen->step_count != least) {
            ls_verdict_fail(out, "rank=%d left with code %d after %d steps, expected %d after %d",
                            rank, seen->code, seen->step_count, LS_ERR_UNEVEN, least);
        }
        if (!ls_endings_says(job, rank, says) || !ls_endings_says(job, rank, "--join throw")) {
            ls_verdict_fail(out, "rank=%d does not say \"%s\"", rank, says);
        }
    }
    ls_verdict_pass(out, job->world,
                    "all %d ranks end after step %d with code %d and say whose data ended",
                    job->world, least, LS_ERR_UNEVEN);
}

/* Without --join: no rank hangs, each names what is missing. */
static void judge_without(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inputs *in = row->data;
    ls_endings_judge(LS_ENDING({LS_ERR_PEER_LOST, LS_ERR_PEER_LOST, LS_ERR_PEER_LOST},
                               (1u << job->world) - 1, "--join initial or active"),
                     job, out);
    for (int rank = 0; rank < job->world; rank++) {
        if (job->rank[rank].step_count > in->own[rank]) {
            ls_verdict_fail(out, "rank=%d reports %d steps, its data are for %d", rank,
                            job->rank[rank].step_count, in->own[rank]);
        }
    }
    ls_verdict_pass(out, job->world,
                    "each of %d ranks leaves with code %d and names the uneven inputs", job->world,
                    LS_ERR_PEER_LOST);
}

/* ---- pictures -------------------------------------------------------------------------------- */

enum { PICTURES = 10, WORLD = 3 };

/* One picture of each of ten classes, one a step: without padding each class comes once an epoch.
 */
static void judge_once(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct inputs *in = row->data;
    int epochs = job->rank[0].step_count / in->epoch;
    for (int epoch = 0; epoch < epochs; epoch++) {
        int seen[PICTURES] = {0}, total = 0;
        for (int step = epoch * in->epoch + 1; step <= (epoch + 1) * in->epoch; step++) {
            for (int rank = 0; rank < job->world; rank++) {
                if (!has_batch(in, rank, step)) {
                    continue;
                }
                int64_t target = -1;
                if (ls_dumps_targets(job, step, rank, 1, &target) && target >= 0 &&
                    target < PICTURES) {
                    seen[target]++;
                    total++;
                } else {
                    ls_verdict_fail(out, "rank=%d step %d: no single target", rank, step);
                }
            }
        }
        for (int k = 0; k < PICTURES; k++) {
            if (seen[k] != 1) {
                ls_verdict_fail(out, "epoch %d: the picture of class %d comes %d times", epoch + 1,
                                k, seen[k]);
            }
        }
        if (total != PICTURES) {
            ls_verdict_fail(out, "epoch %d has %d pictures of %d", epoch + 1, total, (int)PICTURES);
        }
    }
    ls_verdict_pass(out, epochs * PICTURES, "each of %d pictures comes once in each of %d epochs",
                    (int)PICTURES, epochs);
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define SMALL "resnet8 b0.05 "
/* Against the oracle: the sum over the ranks that have a batch, over all ranks or over those. */
#define VARIANTS                                                                                \
    "initial.o0.w2=O0 w2 --join=initial --steps-of-rank=1,3|"                                   \
    "initial.o0.w3=O0 w3 --join=initial --steps-of-rank=3,1,2|"                                 \
    "initial.o1.torch.w3=O1 w3 torch --join=initial --steps-of-rank=1,3,2|"                     \
    "initial.o2.w2=O2 w2 --join=initial --steps-of-rank=3,2|"                                   \
    "initial.predivide.o2.w3=O2 w3 --predivide=2 --join=initial --steps-of-rank=2,3,1|"         \
    "initial.accumulated.o0.w3=O0 w3 accumulate=2 --join=initial --steps-of-rank=1,2,3|"        \
    "initial.hook.o0.w3=O0 w3 --comm-hook=fp16_compress --join=initial --steps-of-rank=3,2,1|"  \
    "initial.rebuilt.o2.w3=O2 w3 undetermined --join=initial --steps-of-rank=1,3,2|"            \
    "active.o0.w2=O0 w2 --join=active --steps-of-rank=3,1|"                                     \
    "active.o0.torch.w3=O0 w3 torch --join=active --steps-of-rank=2,1,3|"                       \
    "active.o1.w3=O1 w3 --join=active --steps-of-rank=1,3,2|"                                   \
    "active.o2.delay.w3=O2 w3 delay --join=active --steps-of-rank=3,2,2|"                       \
    "active.o3.w2=O3 w2 --join=active --steps-of-rank=2,3|"                                     \
    "active.bf16.o2.w2=O2 bf16 w2 --join=active --steps-of-rank=3,2|"                           \
    "active.compress.o0.w3=O0 w3 --compress=fp16 --join=active --steps-of-rank=1,3,3|"          \
    "active.each.o0.w3=O0 w3 accumulate=2 --no-sync=False --join=active --steps-of-rank=1,3,2|" \
    "active.each.torch.o0.w3=O0 w3 torch accumulate=3 --no-sync=False --join=active "           \
    "--steps-of-rank=1,3,2|"                                                                    \
    "active.uneven.o0.w3=O0 w3 --batch-sizes=4,2,3 --join=active --steps-of-rank=1,2,3"
#define JUDGED SMALL "steps=3 dump=1,2,3 $1"
/* What else may change on a rank must change on those without a batch, too. */
#define LOCKSTEP                                                                              \
    "overflow.o2.w3=O2 w3 steps=6 scale=dynamic --overflow-at=3:1,5:1 --growth-interval=2 "   \
    "--join=initial --steps-of-rank=2,6,4|"                                                   \
    "overflow.o1.torch.w2=O1 w2 torch steps=5 scale=dynamic --overflow-at=4:1 --join=active " \
    "--steps-of-rank=2,5|"                                                                    \
    "clip.o0.w3=O0 w3 steps=4 --clip-grad-norm=0.1 --join=active --steps-of-rank=4,1,2|"      \
    "adam.o2.w2=O2 w2 steps=4 --optimizer=adam --join=initial --steps-of-rank=1,4|"           \
    "lamb.o1.w2=O1 w2 steps=4 --optimizer=lamb --join=initial --steps-of-rank=4,2|"           \
    "schedule.o0.w2=O0 w2 steps=5 --schedule=cosine:5s --join=active --steps-of-rank=2,5|"    \
    "unused.o0.w3=O0 w3 steps=4 torch accumulate=2 --find-unused --aux-head=1:0,2:1,3,4:2 "   \
    "--join=initial --steps-of-rank=4,2,4|"                                                   \
    "buffers.o2.w3=O2 w3 steps=5 --broadcast-buffers=True undetermined accumulate=2 "         \
    "--no-sync=False --join=active --steps-of-rank=5,1,3"
#define ENDED SMALL "O0 w3 steps=3 dump=3 --join=initial --save={self}/checkpoint.safetensors "
#define THROW SMALL "O0 w3 steps=4 --join=throw "
#define FEW SMALL "O0 w3 batch=1 data={run}/ten shell "
#define TEN                                                                               \
    "flock {run}/ten.lock {bin}/lockstep data make {run}/ten --images 1 --image-size 16 " \
    ">/dev/null || exit 3; exec \"$0\" \"$@\""
#define RESUMED SMALL "O2 w3 $1 --join=initial --steps-of-rank=1,4,2 "
#define EPOCHS FEW "--no-pad --join=active --epochs=2 $1 "
#define INPUTS(...)            \
    &(const struct inputs)     \
    {                          \
        .own = { __VA_ARGS__ } \
    }

/* Running statistics apart. */
#define EVEN                                    \
    LS_JUDGE_DIFFERENCE(1u << LS_RECORD_BUFFER, \
                        "with --join they are the last rank's, not rank 0's")

static const ls_row rows[] = {
    {"join.gradient.[" VARIANTS "]", "D16", ls_judge_gradients, JUDGED},
    {"join.lockstep.[" VARIANTS "]", "D17", ls_judge_lockstep, JUDGED},
    {"join.lockstep.[" LOCKSTEP "]", "D17", ls_judge_lockstep, SMALL "$1"},
    {"join.events.[initial|active].o0.w3", "D17", judge_events,
     SMALL "O0 w3 steps=5 --join=$1 --steps-of-rank=2,5,3", INPUTS(2, 5, 3)},
    {"join.sent.o[0|2].w3", "D18", judge_sent,
     SMALL "O$1 w3 torch steps=5 dump=1,2,3,4,5 --join=initial --steps-of-rank=5,2,3",
     INPUTS(5, 2, 3)},
    {"join.end.first.[apex=|torch].o0.w3", "D18", judge_end, ENDED "$1 --steps-of-rank=3,1,2",
     INPUTS(3, 1, 2)},
    {"join.end.tie.[apex=|torch].o2.w3", "D18", judge_end, ENDED "$1 O2 --steps-of-rank=3,3,1",
     INPUTS(3, 3, 1)},
    {"join.resume.[apex=|torch].o2.w3", "C1", ls_judge_resume,
     RESUMED "steps=4 | " RESUMED "steps=2 --save={self}/checkpoint.safetensors | " RESUMED
             "steps=4 --resume={job:1}/checkpoint.safetensors"},
    /* all ranks have as many batches: nothing changes */
    {"join.even.[initial|active|throw].[apex=|torch].o2.w3", "D17", ls_judge_same,
     SMALL "O2 w3 $2 steps=3 | " SMALL "O2 w3 $2 steps=3 --join=$1", EVEN},
    {"join.even.sync.o0.w2", "D17", ls_judge_same,
     SMALL "O0 w2 sync steps=3 | " SMALL "O0 w2 sync steps=3 --join=throw", EVEN},
    {"join.throw.first.w3", "D19", judge_throw, THROW "--steps-of-rank=2,4,4", INPUTS(2, 4, 4),
     .judges_outcome = true},
    {"join.throw.last.w3", "D19", judge_throw, THROW "torch --steps-of-rank=3,3,1", INPUTS(3, 3, 1),
     .judges_outcome = true},
    {"join.throw.sync.w3", "D19", judge_throw, THROW "sync --steps-of-rank=2,3,4", INPUTS(2, 3, 4),
     .judges_outcome = true},
    {"join.without.[apex=|torch].w3", "D20", judge_without,
     SMALL "O0 w3 $1 steps=4 --timeout=5 --steps-of-rank=2,4,4", INPUTS(2, 4, 4),
     .judges_outcome = true},
    {"join.without.last.w2", "D20", judge_without,
     SMALL "O2 w2 steps=4 --timeout=5 --steps-of-rank=4,3", INPUTS(4, 3), .judges_outcome = true},
    {"join.without.no-pad.w3", "D20", judge_without,
     FEW "batch=2 steps=4 --epochs=2 --timeout=5 --no-pad", INPUTS(4, 2, 2), .script = TEN,
     .judges_outcome = true},
    /* a rank dies while another one has no batch, or itself has none */
    {"join.killed.active", "F1", ls_endings_row,
     SMALL "O0 w3 steps=6 --timeout=20 --join=initial --steps-of-rank=6,1,6 "
           "--fault-at=3:0:backward:kill",
     LS_ENDING({LS_ENDINGS_KILLED, LS_ERR_PEER_LOST, LS_ERR_PEER_LOST}), .judges_outcome = true},
    {"join.killed.joined", "F1", ls_endings_row,
     SMALL "O0 w3 steps=6 --timeout=20 --join=active --steps-of-rank=6,1,6 "
           "--fault-at=3:1:optimizer:kill",
     LS_ENDING({LS_ERR_PEER_LOST, LS_ENDINGS_KILLED, LS_ERR_PEER_LOST}), .judges_outcome = true},
    /* ten pictures on three ranks: four, three and three of them */
    {"join.no-pad.once.w3", "I27", judge_once,
     FEW "steps=8 dump=1,2,3,4,5,6,7,8 --no-pad --join=initial --epochs=2",
     &(const struct inputs){{4, 3, 3}, 4}, .script = TEN},
    {"join.no-pad.events.w3", "I27", judge_events, FEW "steps=8 --no-pad --join=initial --epochs=2",
     &(const struct inputs){{4, 3, 3}, 4}, .script = TEN},
    {"join.no-pad.uneven.w3", "I27", judge_events,
     FEW "steps=8 --batch-sizes=1,2,1 --no-pad --join=active --epochs=2",
     &(const struct inputs){{4, 1, 3}, 4}, .script = TEN},
    {"join.no-pad.lockstep.w3", "D17", ls_judge_lockstep,
     FEW "torch steps=8 --no-pad --join=active --epochs=2 --schedule=step:1:0.1", .script = TEN},
    {"join.no-pad.resume.[apex=|torch].w3", "I27", ls_judge_resume,
     EPOCHS "steps=8 | " EPOCHS "steps=4 --save={self}/checkpoint.safetensors | " EPOCHS
            "steps=8 --resume={job:1}/checkpoint.safetensors",
     .script = TEN},
};

void ls_join_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
