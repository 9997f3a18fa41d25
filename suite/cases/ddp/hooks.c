/* Communication hooks (torch's register_comm_hook): a hook takes over division, type and sum of a
 * bucket. */
#include "suite/cases/rows.h"

#include <math.h>

#include "suite/judge/judges.h"

/* ---- gradients that stay local --------------------------------------------------------------- */

/* Returns the number of parameters compared. */
static int compare_rank(const ls_record *job, int rank, const ls_dumpfile *first, ls_verdict *out)
{
    int at = 0, params = 0, alike = 0;
    ls_dumpfile *file = ls_dumps_open(job, 1, rank, out);
    for (const char *name; file != NULL && (name = ls_dumps_next_param(file, &at)) != NULL;) {
        const ls_dumpfile_entry *own = ls_dumpfile_findf(file, "local/%s", name);
        const ls_dumpfile_entry *grad = ls_dumpfile_findf(file, "grad/%s", name);
        if (own == NULL || grad == NULL) {
            ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d: no local/%s in the dump", rank, name);
            break;
        }
        params++;
        alike += rank > 0 && ls_dumpfile_equal(grad, ls_dumpfile_findf(first, "grad/%s", name));
        if (!ls_dumpfile_equal(own, grad)) {
            ls_verdict_fail(out, "rank=%d %s: the gradient is not the rank's own", rank, name);
        }
    }
    if (alike == params && params > 0) {
        ls_verdict_fail(out, "rank=%d has rank 0's gradients", rank);
    }
    ls_dumpfile_close(file);
    return params;
}

static void judge_local(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int params = 0;
    (void)row;
    ls_dumpfile *first = ls_dumps_open(job, 1, 0, out);
    for (int rank = 0; first != NULL && rank < job->world; rank++) {
        params += compare_rank(job, rank, first, out);
    }
    ls_dumpfile_close(first);
    ls_verdict_pass(out, params, "%d gradients of %d ranks are the ranks' own, bit for bit", params,
                    job->world);
}

/* ---- cast, then divide ----------------------------------------------------------------------- */

/* Rank 0 has a gradient of 98256 in the last bias, the other rank 0: half of it fits into fp16, it
 * does not (torch's own example). */
enum { ODD_STEP = 2 };
static const struct cast {
    ls_tol limit;
    bool lost;
} in_fp16 = {LS_TOL(0, "an infinity, compared as one"), true},
  in_bf16 = {LS_TOL(0x1p-7, "bf16 keeps 8 bits: two roundings of half a unit"), false},
  in_f32 = {LS_TOL(0x1p-20, "f32 roundings of softmax, sum, average and unscaling"), false};

static void judge_cast(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct cast *c = row->data;
    for (int rank = 0; rank < job->world; rank++) {
        for (int step = 1; step <= 3; step++) {
            const ls_record_step *seen = ls_record_find_step(&job->rank[rank], step);
            bool skips = c->lost && step == ODD_STEP;
            if (seen == NULL || seen->skipped != skips) {
                ls_verdict_fail(out, "rank=%d step %d is %s", rank, step,
                                skips ? "taken: the gradient was divided before it was cast, or "
                                        "not cast"
                                      : "skipped or missing");
            }
        }
        ls_dumpfile *file = ls_dumps_open(job, ODD_STEP, rank, out);
        const ls_dumpfile_entry *bias =
            file != NULL ? ls_dumpfile_find(file, "grad/fc.bias") : NULL;
        const float *grad = ls_dumps_data(bias, "F32");
        if (grad == NULL) {
            ls_verdict_fail(out, "rank=%d dumps no grad/fc.bias", rank);
        } else if (c->lost ? !isinf(grad[0])
                           : !(fabs((double)grad[0] - 0.125) <= 0.125 * c->limit.value)) {
            ls_verdict_fail(out, "rank=%d: fc.bias has gradient %.9g, expected %s", rank,
                            (double)grad[0], c->lost ? "an infinity" : "0.125");
        }
        ls_dumpfile_close(file);
    }
    ls_verdict_pass(out, 4 * job->world, "98256 on one of two ranks is %s on both",
                    c->lost ? "infinite in fp16" : "49128, times 1/S");
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Against the oracle; all ranks alike. */
#define VARIANTS                                                                    \
    "allreduce.o0.w3=O0 w3 b0.1 --comm-hook=allreduce|"                             \
    "allreduce.o2.torch.w2=O2 w2 torch --comm-hook=allreduce|"                      \
    "allreduce.o3.f32.w2=O3 w2 delay --comm-hook=allreduce --allreduce-fp32|"       \
    "fp16.o0.w2=O0 w2 b0.1 --comm-hook=fp16_compress|"                              \
    "fp16.o1.w3=O1 w3 torch --comm-hook=fp16_compress|"                             \
    "fp16.o2.w2=O2 w2 b0.1 --comm-hook=fp16_compress|"                              \
    "bf16.o0.w3=O0 w3 b0.1 --comm-hook=bf16_compress|"                              \
    "bf16.o2.w2=O2 bf16 w2 b0.1 --comm-hook=bf16_compress|"                         \
    "sum.o0.w2=O0 w2 b0.1 lr=0.01 --comm-hook=sum|"                                 \
    "sum.o2.torch.w3=O2 w3 torch lr=0.01 --comm-hook=sum|"                          \
    "accumulated.o1.w2=O1 w2 accumulate=3 b0.1 --comm-hook=allreduce|"              \
    "each.o0.w2=O0 w2 accumulate=2 b0.1 --no-sync=False --comm-hook=fp16_compress|" \
    "rebuilt.o2.w3=O2 w3 b0.1 undetermined --comm-hook=allreduce"
#define RUN "resnet8 O$1 w3 b0.05 steps=4 "
#define ODD "resnet8 O0 w2 steps=3 dump=2 scale=dynamic batches=sum@2:0 --init-scale=393024 "

static const ls_row rows[] = {
    {"hooks.gradient.[" VARIANTS "]", "D13", ls_judge_gradients, "resnet8 dump=1,2 $1"},
    {"hooks.lockstep.[" VARIANTS "]", "D13", ls_judge_lockstep, "resnet8 dump=1,2 $1"},
    /* each hook is what single options ask for */
    {"hooks.same.allreduce.torch.o[0|2]", "D13", ls_judge_same,
     RUN "torch | " RUN "torch --comm-hook=allreduce",
     LS_JUDGE_SAME("allreduce and torch's own reduction")},
    {"hooks.same.allreduce.apex.o[0|2]", "D13", ls_judge_same,
     RUN "--average=pre | " RUN "--comm-hook=allreduce",
     LS_JUDGE_SAME("allreduce and --average pre")},
    {"hooks.same.fp16.o[0|1|2]", "D13", ls_judge_same,
     RUN "--average=pre --compress=fp16 | " RUN "--comm-hook=fp16_compress",
     LS_JUDGE_SAME("fp16_compress and --average pre --compress fp16")},
    {"hooks.same.bf16.o[0|1]", "D13", ls_judge_same,
     RUN "torch --compress=bf16 | " RUN "torch --comm-hook=bf16_compress",
     LS_JUDGE_SAME("bf16_compress and --compress bf16 in torch's dialect")},
    {"hooks.same.sum.[apex=|torch].o0", "D13", ls_judge_same,
     "resnet8 w3 b0.05 steps=4 lr=0.01 $1 --average=none | "
     "resnet8 w3 b0.05 steps=4 lr=0.01 $1 --comm-hook=sum",
     LS_JUDGE_SAME("sum and --average none")},
    {"hooks.same.none.o[0|2]", "D13", ls_judge_same, RUN "| " RUN "--comm-hook=none",
     LS_JUDGE_SAME("no hook and nothing said")},
    {"hooks.same.accumulated.[last=|each=--no-sync=False].w3", "D13", ls_judge_same,
     "resnet8 O0 w3 b0.05 steps=4 accumulate=4 torch $1 | "
     "resnet8 O0 w3 b0.05 steps=4 accumulate=4 torch $1 --comm-hook=allreduce",
     LS_JUDGE_SAME("allreduce and no hook, 4 micro-steps")},
    {"hooks.local.o[0|2].w[2|3]", "D14", judge_local,
     "resnet8 O$1 w$2 b0.05 dump=1 --comm-hook=noop"},
    {"hooks.cast.fp16.o0.w2", "D15", judge_cast, ODD "--comm-hook=fp16_compress", &in_fp16},
    {"hooks.cast.bf16.o0.w2", "D15", judge_cast, ODD "--comm-hook=bf16_compress", &in_bf16},
    {"hooks.cast.f32.o0.w2", "D15", judge_cast, ODD "--comm-hook=allreduce", &in_f32},
    {"hooks.cast.alias.[pre=--average=pre|torch=torch].o0.w2", "D15", judge_cast,
     ODD "$1 --compress=fp16", &in_fp16},
};

void ls_hooks_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
