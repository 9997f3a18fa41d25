/* Accumulation over micro-steps (numerics.md section 2): the mean of the micro-gradients in an f32
 * sum, converted once, reduced once, decided once; with --no-sync False reduced in each micro-step.
 */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>

#include "suite/judge/judges.h"

/* ---- equal runs ------------------------------------------------------------------------------ */

/* The same losses, gradients and parameters; A micro-steps see A times the images. Running
 * statistics and the scaler's count move with each micro-step. */
static void judge_same(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_judge_same(row, job, out);
    for (int k = 0; k < job[0].world; k++) {
        for (int i = 0; i < job[0].rank[k].step_count && i < job[1].rank[k].step_count; i++) {
            const ls_record_step *one = &job[0].rank[k].step[i], *many = &job[1].rank[k].step[i];
            int64_t images = one->images * row->job[1].accumulate / row->job[0].accumulate;
            if (many->images != images) {
                ls_verdict_fail(out, "rank=%d step %d: %d images, in micro-steps %d", k,
                                (int)one->step, (int)one->images, (int)many->images);
            }
        }
    }
}

/* ---- a sum that overflows -------------------------------------------------------------------- */

/* Every micro-gradient is S/4, finite in fp16; their sum is S, beyond 65504 at 2^17 and 2^16. Where
 * gradients are half (O2) the converted sum is infinite, and two steps are skipped; where they are
 * f32 (O1) none is. */
static void judge_sum(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const double scale[2][4] = {{131072, 131072, 131072, 131072},
                                       {131072, 65536, 32768, 32768}};
    int half = row->job[0].level == 2;
    for (int64_t step = 1; step <= 3; step++) {
        const ls_record_step *seen = ls_record_find_step(&job->rank[0], step);
        bool skips = half && step < 3;
        if (seen == NULL || seen->skipped != skips || seen->loss_scale != scale[half][step - 1] ||
            seen->loss_scale_next != scale[half][step]) {
            ls_verdict_fail(out, "step %d: scale %g, then %g, %s; expected %g, then %g, %s",
                            (int)step, seen != NULL ? seen->loss_scale : NAN,
                            seen != NULL ? seen->loss_scale_next : NAN,
                            seen != NULL && seen->skipped ? "skipped" : "taken",
                            scale[half][step - 1], scale[half][step], skips ? "skipped" : "taken");
        }
    }
    ls_verdict_pass(out, 3,
                    half ? "a half sum beyond 65504 is an overflow, though no part of it is"
                         : "an f32 sum beyond 65504 is none");
}

/* ---- reduced in each micro-step -------------------------------------------------------------- */

static const ls_tol two_sums =
    LS_TOL(0x1p-21, "f32 sums of two micro-steps in both runs, and their average over ranks: fewer "
                    "than eight roundings, of the largest value that takes part");

/* The tensors of one parameter in the dumps of step 1 of a rank. */
typedef struct locals {
    double *each, *once, *first, *mean; /* of A = 2, each reduced and only the last; of A = 1 */
    int64_t count;
} locals;

static double *values_of(const ls_dumpfile *file, const char *group, const char *name,
                         int64_t *count)
{
    const ls_dumpfile_entry *entry = ls_dumpfile_findf(file, "%s/%s", group, name);
    bool fits = entry != NULL && (*count == 0 || entry->count == *count);
    *count = fits ? entry->count : *count;
    return fits ? ls_dumps_values(entry) : NULL;
}

static void free_locals(locals *l)
{
    free(l->each);
    free(l->once);
    free(l->first);
    free(l->mean);
}

/* What a rank reduces last is, of two micro-steps, the average of the first and its own second.
 * Without the first reduction it is its own first and second. The first one is, but for the factor
 * 1/2, the whole step of the run without accumulation: the difference of the two is half of what
 * that run's reduction changed. */
static void judge_param(const ls_dumpfile *const file[3], const char *name, int rank,
                        double *largest, double *worst, ls_verdict *out)
{
    locals l = {.count = 0};
    l.each = values_of(file[0], "local", name, &l.count);
    l.once = values_of(file[1], "local", name, &l.count);
    l.first = values_of(file[2], "local", name, &l.count);
    l.mean = values_of(file[2], "grad", name, &l.count);
    if (l.each == NULL || l.once == NULL || l.first == NULL || l.mean == NULL) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d: no local/%s in the dumps", rank, name);
    }
    for (int64_t i = 0; i < l.count && ls_verdict_good(out->code); i++) {
        double moved = 0.5 * (l.mean[i] - l.first[i]), size = fabs(l.once[i]) + fabs(l.each[i]);
        double off = fabs(l.each[i] - l.once[i] - moved);
        double limit = two_sums.value * (size + fabs(l.mean[i]) + fabs(l.first[i])) + 0x1p-126;
        *largest = fmax(*largest, fabs(moved) / limit);
        *worst = fmax(*worst, off / limit);
        if (!(off <= limit)) {
            ls_verdict_fail(out,
                            "rank=%d %s element %lld: the second micro-step adds to %.9g more than "
                            "without the first one's reduction, expected %.9g",
                            rank, name, (long long)i, l.each[i] - l.once[i], moved);
            ls_verdict_cause(out, "%s",
                             l.each[i] == l.once[i]
                                 ? "each rank goes on from its own sum: the first "
                                   "micro-step was not reduced, or its average not kept"
                                 : "");
        }
    }
    free_locals(&l);
}

static void judge_each(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    double largest = 0, worst = 0;
    int params = 0;
    (void)row;
    for (int rank = 0; rank < job->world; rank++) {
        ls_dumpfile *file[3];
        for (int k = 0; k < 3; k++) {
            file[k] = ls_dumps_open(&job[k], 1, rank, out);
        }
        int at = 0;
        bool all = file[0] != NULL && file[1] != NULL && file[2] != NULL;
        for (const char *name; all && (name = ls_dumps_next_param(file[0], &at)) != NULL;) {
            judge_param((const ls_dumpfile *const *)file, name, rank, &largest, &worst, out);
            params++;
        }
        for (int k = 0; k < 3; k++) {
            ls_dumpfile_close(file[k]);
        }
    }
    ls_verdict_measured(out, worst, 1, "of the limit", two_sums.why);
    if (largest < 1000) {
        ls_verdict_set(out, LS_WEAK, "the reduction moves no gradient by more than %.0f limits",
                       largest);
    }
    ls_verdict_pass(out, params, "%d gradients go on from the average of the first micro-step",
                    params);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Against the oracle, and all ranks alike. */
#define VARIANTS                                                     \
    "o1.a2.w2=O1 w2 accumulate=2 b0.02|"                             \
    "o1.torch.a2.w3=O1 w3 accumulate=2 torch|"                       \
    "o2.torch.a2.w2=O2 w2 accumulate=2 torch|"                       \
    "o2.delay.a3.w2=O2 w2 accumulate=3 delay|"                       \
    "o2.reduce-f32.a4.w2=O2 w2 accumulate=4 b0.02 --allreduce-fp32|" \
    "o2.predivide.a2.w3=O2 w3 accumulate=2 b0.02 --predivide=2|"     \
    "o2.bf16.a3.w2=O2 bf16 w2 accumulate=3 b0.02|"                   \
    "o0.compress.a2.w2=O0 w2 accumulate=2 b0.02 --compress=fp16|"    \
    "o3.a3.w2=O3 w2 accumulate=3 b0.02|"                             \
    "o0.uneven.a2.w3=O0 w3 accumulate=2 b0.02 --batch-sizes=4,2,3|"  \
    "o2.uneven.a3.w2=O2 w2 accumulate=3 b0.02 --batch-sizes=3,5"
#define SHARED_STATISTICS                          \
    "o0.sync.a2.w2=O0 sync w2 accumulate=2 b0.02|" \
    "o2.sync.a3.w2=O2 sync w2 accumulate=3 b0.02|" \
    "o2.sync-uneven.a2.w3=O2 sync w3 accumulate=2 b0.02 --batch-sizes=4,1,2"
#define JUDGED "resnet8 dump=1,2 $1"

/* A power of two of equal micro-steps, in f32 and in bf16 (whose range leaves out subnormals): the
 * mean is exactly the gradient of one. Up to 4 the rounding of the third sum is lost in the fourth,
 * in any type; at O3 all gradients have 8 bits, an f32 sum of 8 or 16 is exact, and a half sum is
 * not. */
#define MOVES(text) LS_JUDGE_DIFFERENCE(1u << LS_RECORD_BUFFER | 1u << LS_RECORD_SCALER, text)
#define SAME(id, job, many)                                                             \
    {                                                                                   \
        "accumulation.same." id, "R1", judge_same,                                      \
            job " b0.02 batches=same | " job " b0.02 accumulate=" many " batches=same", \
            MOVES(many " equal micro-steps and one")                                    \
    }

/* Each micro-step reduced, under every rule of the reduction. */
#define EACH                                                         \
    "o0.a2.w2=O0 w2 accumulate=2 b0.02|"                             \
    "o1.torch.a3.w3=O1 w3 accumulate=3 torch|"                       \
    "o2.torch.a2.w2=O2 w2 accumulate=2 torch|"                       \
    "o2.delay.a3.w2=O2 w2 accumulate=3 delay|"                       \
    "o2.reduce-f32.a4.w2=O2 w2 accumulate=4 b0.02 --allreduce-fp32|" \
    "o2.predivide.a2.w3=O2 w3 accumulate=2 b0.02 --predivide=2|"     \
    "o2.bf16.a3.w2=O2 bf16 w2 accumulate=3 b0.02|"                   \
    "o0.compress.a2.w2=O0 w2 accumulate=2 b0.02 --compress=fp16|"    \
    "o3.a3.w2=O3 w2 accumulate=3 b0.02|"                             \
    "o0.sync.a2.w2=O0 sync w2 accumulate=2 b0.02|"                   \
    "o2.uneven.a3.w2=O2 w2 accumulate=3 b0.02 --batch-sizes=3,5|"    \
    "o0.rebuilt.a2.w3=O0 w3 accumulate=2 b0.02 undetermined"
#define EACH_JUDGED JUDGED " --no-sync=False"
#define TWO "resnet8 O0 w$2 b0.02 $1 steps=1 dump=1 accumulate=2 "

#define THREE "resnet8 O$1 b0.02 accumulate=3 steps=3 "
#define RESUMED "resnet8 O2 w2 accumulate=3 b0.02 "

static const ls_row rows[] = {
    {"accumulation.gradient.[o0.a2.w1=O0 accumulate=2 b0.02|o2.a5.w1=O2 accumulate=5 "
     "b0.02|" VARIANTS "]",
     "G3", ls_judge_gradients, JUDGED},
    {"accumulation.gradient.[" SHARED_STATISTICS "]", "G2", ls_judge_gradients, JUDGED},
    {"accumulation.lockstep.[" VARIANTS "|" SHARED_STATISTICS "]", "D1", ls_judge_lockstep, JUDGED},
    SAME("o0.a4.w1", "O0 w1", "4"),
    SAME("o0.a2.w2", "O0 w2", "2"),
    SAME("o0.a4.w3", "O0 w3", "4"),
    SAME("o1.a4.w2", "O1 bf16 w2", "4"),
    SAME("o2.a4.w1", "O2 bf16 w1", "4"),
    SAME("o3.a8.w2", "O3 bf16 w2", "8"),
    SAME("o3.a16.w3", "O3 bf16 w3", "16"),
    /* other ways to the same bits: no DDP at all, other buckets, the batch of all ranks and
     * micro-steps given as one number (2 x 2 x 4) */
    {"accumulation.alone.o[0|1|2]", "D3", judge_same, THREE "--comm=self | " THREE "alone",
     MOVES("3 micro-steps, with DDP and without")},
    {"accumulation.buckets.o[0|1|2]", "D2", judge_same, THREE "w2 | " THREE "w2 delay",
     MOVES("3 micro-steps, small buckets and none")},
    {"accumulation.global-batch.o0.w2", "R3", judge_same,
     "resnet8 w2 accumulate=2 b0.02 | "
     "resnet8 w2 accumulate=2 b0.02 batch=0 --global-batch=16",
     MOVES("--global-batch and --batch-size, 2 micro-steps")},
    {"accumulation.sum-overflow.o[1|2]", "R2", judge_sum,
     "O$1 accumulate=4 steps=3 scale=dynamic batches=at@1:0,2:0,3:0 --init-scale=131072"},
    {"accumulation.each.gradient.[" EACH "]", "R4", ls_judge_gradients, EACH_JUDGED},
    {"accumulation.each.lockstep.[" EACH "]", "R4", ls_judge_lockstep, EACH_JUDGED},
    {"accumulation.each.local.[apex=|torch].o0.w[2|3]", "R4", judge_each,
     TWO "--no-sync=False | " TWO "--no-sync=True | resnet8 O0 w$2 b0.02 $1 steps=1 dump=1"},
    {"accumulation.each.alone.o[0|2]", "D3", judge_same,
     THREE "--comm=self --no-sync=False | " THREE "alone --no-sync=False",
     MOVES("3 micro-steps, each reduced, with DDP and without")},
    {"accumulation.each.spelt-out.o[2].w2", "R4", judge_same,
     THREE "w2 --no-sync=True | " THREE "w2", MOVES("--no-sync True and nothing said")},
    {"accumulation.each.sum-overflow.o[1|2]", "R2", judge_sum,
     "O$1 w2 torch accumulate=4 steps=3 scale=dynamic "
     "batches=at@1:0,1:1,2:0,2:1,3:0,3:1 --init-scale=131072 --no-sync=False"},
    {"accumulation.each.resume.o2", "C1", ls_judge_resume,
     RESUMED "steps=4 --no-sync=False | " RESUMED
             "steps=2 --no-sync=False --save={self}/checkpoint.safetensors | " RESUMED
             "steps=4 --no-sync=False --resume={job:1}/checkpoint.safetensors"},
    {"accumulation.resume.o2", "C1", ls_judge_resume,
     RESUMED "steps=4 | " RESUMED "steps=2 --save={self}/checkpoint.safetensors | " RESUMED
             "steps=4 --resume={job:1}/checkpoint.safetensors"},
};

void ls_accumulation_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
