/* Accumulation over micro-steps (numerics.md section 2): the mean of the micro-gradients in an f32
 * sum, converted once, reduced once, decided once. */
#include "suite/cases/rows.h"

#include <math.h>

#include "suite/judge/judges.h"

/* ---- equal runs ------------------------------------------------------------------------------ */

/* The same losses, gradients and parameters; A micro-steps see A times the images. Running
 * statistics and the scaler's count move with each micro-step. */
static void judge_same(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const unsigned mask = 1u << LS_RECORD_GRAD | 1u << LS_RECORD_PARAM | 1u << LS_RECORD_MASTER |
                          1u << LS_RECORD_STATE;
    int compared = ls_judge_runs(&job[0], &job[1], 0, mask, out);
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
    ls_verdict_pass(out, "%s: %d digests equal to the last bit", (const char *)row->data, compared);
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
    ls_verdict_pass(out, half ? "a half sum beyond 65504 is an overflow, though no part of it is"
                              : "an f32 sum beyond 65504 is none");
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
#define SAME(id, job, many)                                                             \
    {                                                                                   \
        "accumulation.same." id, "R1", judge_same,                                      \
            job " b0.02 batches=same | " job " b0.02 accumulate=" many " batches=same", \
            many " equal micro-steps and one"                                           \
    }

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
     "3 micro-steps, with DDP and without"},
    {"accumulation.buckets.o[0|1|2]", "D2", judge_same, THREE "w2 | " THREE "w2 delay",
     "3 micro-steps, small buckets and none"},
    {"accumulation.global-batch.o0.w2", "R3", judge_same,
     "resnet8 w2 accumulate=2 b0.02 | "
     "resnet8 w2 accumulate=2 b0.02 batch=0 --global-batch=16",
     "--global-batch and --batch-size, 2 micro-steps"},
    {"accumulation.sum-overflow.o[1|2]", "R2", judge_sum,
     "O$1 accumulate=4 steps=3 scale=dynamic batches=at@1:0,2:0,3:0 --init-scale=131072"},
    {"accumulation.resume.o2", "C1", ls_judge_resume,
     RESUMED "steps=4 | " RESUMED "steps=2 --save={self}/checkpoint.safetensors | " RESUMED
             "steps=4 --resume={job:1}/checkpoint.safetensors"},
};

void ls_accumulation_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
