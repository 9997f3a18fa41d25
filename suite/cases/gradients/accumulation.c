/* Accumulation over micro-steps (numerics.md section 2): the mean of the micro-gradients in an f32
 * sum, converted once, reduced once, decided once. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/judges.h"
#include "suite/cases/overflow.h"

/* Against the oracle, and all ranks alike. */
static const struct variant {
    const char *name, *dialect, *half, *extra;
    int level, world, accumulate;
    double bucket_mb;
    bool sync;
} variants[] = {
    {"o0.a2.w1", "apex", "fp16", "", 0, 1, 2, 0.02, false},
    {"o1.a2.w2", "apex", "fp16", "", 1, 2, 2, 0.02, false},
    {"o2.a5.w1", "apex", "fp16", "", 2, 1, 5, 0.02, false},
    {"o3.a3.w2", "apex", "fp16", "", 3, 2, 3, 0.02, false},
    {"o1.torch.a2.w3", "torch", "fp16", "", 1, 3, 2, LS_BUCKET_OWN, false},
    {"o2.torch.a2.w2", "torch", "fp16", "", 2, 2, 2, LS_BUCKET_OWN, false},
    {"o2.delay.a3.w2", "apex", "fp16", "", 2, 2, 3, LS_BUCKET_DELAYED, false},
    {"o2.reduce-f32.a4.w2", "apex", "fp16", "--allreduce-fp32", 2, 2, 4, 0.02, false},
    {"o2.predivide.a2.w3", "apex", "fp16", "--predivide=2", 2, 3, 2, 0.02, false},
    {"o0.compress.a2.w2", "apex", "fp16", "--compress=fp16", 0, 2, 2, 0.02, false},
    {"o2.bf16.a3.w2", "apex", "bf16", "", 2, 2, 3, 0.02, false},
    {"o0.uneven.a2.w3", "apex", "fp16", "--batch-sizes=4,2,3", 0, 3, 2, 0.02, false},
    {"o2.uneven.a3.w2", "apex", "fp16", "--batch-sizes=3,5", 2, 2, 3, 0.02, false},
    {"o0.sync.a2.w2", "apex", "fp16", "", 0, 2, 2, 0.02, true},
    {"o2.sync.a3.w2", "apex", "fp16", "", 2, 2, 3, 0.02, true},
    {"o2.sync-uneven.a2.w3", "apex", "fp16", "--batch-sizes=4,1,2", 2, 3, 2, 0.02, true},
};

static ls_spec variant_spec(const ls_case_settings *settings, const struct variant *v)
{
    ls_spec spec = ls_rows_evidence(settings, v->level, v->world, 1, v->bucket_mb);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    ls_text_put(spec.dialect, sizeof spec.dialect, "%s", v->dialect);
    ls_text_put(spec.half, sizeof spec.half, "%s", v->half);
    ls_text_put(spec.extra, sizeof spec.extra, "%s", v->extra);
    spec.accumulate = v->accumulate;
    spec.sync_bn = v->sync;
    return spec;
}

/* ---- equal micro-steps ----------------------------------------------------------------------- */

/* Every rank's losses, gradients and parameters, step by step; A micro-steps see A times the
 * images.
 */
static void judge_same(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int compared = 0;
    for (int k = 0; k < job[0].world; k++) {
        for (int64_t step = 1; step <= row->job[0].steps; step++) {
            const ls_record_step *one = ls_record_find_step(&job[0].rank[k], step);
            const ls_record_step *many = ls_record_find_step(&job[1].rank[k], step);
            if (one == NULL || many == NULL) {
                ls_verdict_fail(out, "rank=%d has no event of step %d", k, (int)step);
                return;
            }
            int64_t images = one->images * row->job[1].accumulate / row->job[0].accumulate;
            if (strcmp(one->loss_bits, many->loss_bits) != 0 || many->images != images) {
                ls_verdict_fail(
                    out, "rank=%d step %d: loss %.9g of %d images, in micro-steps %.9g of %d", k,
                    (int)step, one->loss, (int)one->images, many->loss, (int)many->images);
            }
            static const ls_record_digest equal[] = {LS_RECORD_GRAD, LS_RECORD_PARAM,
                                                     LS_RECORD_MASTER, LS_RECORD_STATE};
            for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
                bool both = (one->digest_mask & many->digest_mask & 1u << equal[i]) != 0;
                compared += both;
                if (both && strcmp(one->digest[equal[i]], many->digest[equal[i]]) != 0) {
                    ls_verdict_fail(out, "rank=%d step %d: %s differs (%s, %s)", k, (int)step,
                                    ls_record_digest_name(equal[i]), one->digest[equal[i]],
                                    many->digest[equal[i]]);
                }
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no step has digests");
    }
    ls_verdict_pass(out, "%s: %d digests equal to the last bit", row->text, compared);
}

static ls_spec same_spec(const ls_case_settings *settings, int level, const char *half, int world,
                         int accumulate)
{
    ls_spec spec = ls_rows_evidence(settings, level, world, 1, 0.02);
    spec.dump_steps[0] = '\0';
    spec.threads = 1;
    spec.accumulate = accumulate;
    ls_text_put(spec.half, sizeof spec.half, "%s", half);
    ls_overflow_spec_of(&spec, LS_OVERFLOW_SAME, "", 1);
    spec.extra[0] = '\0'; /* weights by the seed */
    return spec;
}

/* A power of two of equal micro-steps, in f32 and in bf16 (whose range leaves out subnormals): the
 * mean is exactly the gradient of one. Up to 4 the rounding of the third sum is lost in the fourth,
 * in any type; at O3 all gradients have 8 bits, an f32 sum of 8 or 16 is exact, and a half sum is
 * not. */
static void add_same(const ls_case_settings *settings, ls_case_list *list)
{
    static const struct {
        int level, world, accumulate;
        const char *half;
    } same[] = {{0, 1, 4, "fp16"}, {0, 2, 2, "fp16"}, {0, 3, 4, "fp16"}, {1, 2, 4, "bf16"},
                {2, 1, 4, "bf16"}, {3, 2, 8, "bf16"}, {3, 3, 16, "bf16"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        ls_case *row = ls_rows_add(list, judge_same, "R1", "accumulation.same.o%d.a%d.w%d",
                                   same[i].level, same[i].accumulate, same[i].world);
        row->job_count = 2;
        row->job[0] = same_spec(settings, same[i].level, same[i].half, same[i].world, 1);
        row->job[1] =
            same_spec(settings, same[i].level, same[i].half, same[i].world, same[i].accumulate);
        ls_text_put(row->text, sizeof row->text, "%d equal micro-steps and one",
                    same[i].accumulate);
    }
}

/* Other ways to the same bits: no DDP at all, other buckets, the same command again. */
static void add_pairs(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level <= 2; level++) {
        static const char *const names[] = {"alone", "buckets"};
        for (int what = 0; what < 2; what++) {
            struct variant v = {"", "apex", "fp16", "", level, what + 1, 3, 0.02, false};
            ls_case *row = ls_rows_add(list, judge_same, what == 0 ? "D3" : "D2",
                                       "accumulation.%s.o%d", names[what], level);
            row->job_count = 2;
            row->job[0] = row->job[1] = variant_spec(settings, &v);
            for (int j = 0; j < 2; j++) {
                row->job[j].dump_steps[0] = '\0';
                row->job[j].steps = 3;
                row->job[j].threads = 1;
            }
            if (what == 0) {
                ls_text_put(row->job[0].extra, sizeof row->job[0].extra, "--comm=self");
                row->job[1].wrap = LS_WRAP_ALONE;
            } else {
                row->job[1].bucket_mb = LS_BUCKET_DELAYED;
            }
            ls_text_put(row->text, sizeof row->text, "3 micro-steps, %s",
                        what == 0 ? "with DDP and without" : "small buckets and none");
        }
    }
}

/* A batch of 16 over 2 ranks and 2 micro-steps is 4 on each. */
static void add_global_batch(const ls_case_settings *settings, ls_case_list *list)
{
    ls_case *row = ls_rows_add(list, judge_same, "R3", "accumulation.global-batch.o0.w2");
    struct variant v = {"", "apex", "fp16", "", 0, 2, 2, 0.02, false};
    row->job_count = 2;
    row->job[0] = row->job[1] = variant_spec(settings, &v);
    for (int j = 0; j < 2; j++) {
        row->job[j].dump_steps[0] = '\0';
        row->job[j].threads = 1;
        row->job[j].batch_size = 4;
    }
    row->job[1].batch_size = 0; /* left out of the command */
    ls_text_put(row->job[1].extra, sizeof row->job[1].extra, "--global-batch=16");
    ls_text_put(row->text, sizeof row->text, "--global-batch and --batch-size, 2 micro-steps");
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

static void add_sums(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 1; level <= 2; level++) {
        ls_case *row = ls_rows_add(list, judge_sum, "R2", "accumulation.sum-overflow.o%d", level);
        row->job_count = 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, level, 1, 1, LS_BUCKET_OWN);
        spec->dump_steps[0] = '\0';
        spec->steps = 3;
        spec->accumulate = 4;
        ls_text_put(spec->loss_scale, sizeof spec->loss_scale, "dynamic");
        ls_overflow_spec(spec, "1:0,2:0,3:0");
        ls_text_put(spec->extra, sizeof spec->extra,
                    "--init={run}/overflow/init.safetensors --init-scale=131072");
    }
}

static void add_resumed(const ls_case_settings *settings, ls_case_list *list)
{
    struct variant v = {"", "apex", "fp16", "", 2, 2, 3, 0.02, false};
    ls_case *row = ls_rows_add(list, ls_judge_resume, "C1", "accumulation.resume.o2");
    ls_spec straight = variant_spec(settings, &v);
    straight.dump_steps[0] = '\0';
    straight.steps = 4;
    ls_spec saved = straight, resumed = straight;
    char id[96];
    saved.steps = 2;
    ls_text_put(saved.extra, sizeof saved.extra, "--save={self}/checkpoint.safetensors");
    ls_matrix_id(&saved, id);
    ls_text_put(resumed.extra, sizeof resumed.extra, "--resume={job:%s}/checkpoint.safetensors",
                id);
    row->job_count = 3;
    row->job[0] = straight;
    row->job[1] = saved;
    row->job[2] = resumed;
}

void ls_accumulation_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        ls_spec spec = variant_spec(settings, v);
        ls_case *row = ls_rows_add(list, ls_judge_gradients, v->sync ? "G2" : "G3",
                                   "accumulation.gradient.%s", v->name);
        row->job_count = 1;
        row->job[0] = spec;
        if (v->world > 1) {
            row = ls_rows_add(list, ls_judge_lockstep, "D1", "accumulation.lockstep.%s", v->name);
            row->job_count = 1;
            row->job[0] = spec;
        }
    }
    add_same(settings, list);
    add_pairs(settings, list);
    add_global_batch(settings, list);
    add_sums(settings, list);
    add_resumed(settings, list);
}
