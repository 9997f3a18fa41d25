/* The state of a comparison, shared by compare*.c. */
#ifndef LS_COMPARE_JUDGEMENT_H
#define LS_COMPARE_JUDGEMENT_H

#include "reference/oracle/evidence.h"
#include "reference/oracle/ideal_error.h"
#include "compare.h"

typedef struct ls_compare_judgement {
    const ls_compare_facts *facts;
    ls_evidence *evidence;
    ls_compare_spans spans;
    ls_ideal_error_cost cost;
    ls_oracle_result forced;
    double *tie_limit; /* [branches] */
    int level;         /* as requested; evidence->step.level is that of the stored types */
    bool nesterov, skipped, finite;
    const ls_compare_bound *bounds; /* [LS_COMPARE_PARTS] */
    ls_compare_checks checks;
    ls_compare_verdict *verdict;
    char weak[200]; /* why the evidence is weak; "" if it is not */
} ls_compare_judgement;

static inline const char *ls_compare_judgement_type(const ls_compare_judgement *j)
{
    return j->level == 0 ? "fp32" : j->evidence->step.half == LS_BITS_BF16 ? "bf16" : "fp16";
}

/* The kind whose factor applies to a span: tensors of less than 64 elements have their own. */
static inline ls_compare_part ls_compare_judgement_part(const ls_compare_judgement *j, int64_t span)
{
    if (j->spans.kind[span] == LS_COMPARE_SPANS_TENSOR) {
        return j->spans.span[span].count >= 64 ? LS_COMPARE_TENSOR : LS_COMPARE_SMALL;
    }
    return j->spans.kind[span] == LS_COMPARE_SPANS_BLOCK ? LS_COMPARE_BLOCK : LS_COMPARE_EDGE;
}

/* compare_applied.c: reads from the dumps' metadata which batch norms the next convolution has
 * applied with scale and bias in fp16 (numerics.md section 4, point 8), into the step of the
 * evidence: those that every rank names. LS_ERR_USAGE, with a line, for a name that is no such norm
 * of the network, and for a job that was not asked for it or does not compute in fp16. */
ls_status ls_compare_applied_read(ls_compare_judgement *j);

/* compare_gradient.c: gradient and logits against the oracle (numerics.md section 4).
 * Adds failures to j->checks, or writes to j->weak why the evidence is weak; fills the verdict's
 * numbers. */
ls_status ls_compare_gradient_judge(ls_compare_judgement *j);

/* compare_buffers.c: running statistics after the forward passes of a step.
 * buffer/ must equal last_buffer/ updated with FP64's batch statistics on the subject's branches: v
 * += 0.1 * (batch - v) once per micro-step, variances unbiased; the counter goes up by one each
 * time. The bound is that of a tensor: a factor on the ideal error of these statistics, plus the
 * rounding of the stored result in f32 or half. Needs j->forced and j->cost; judges nothing if a
 * rank's dump lacks a whole group, and fails if one lacks a part. */
ls_status ls_compare_buffers_judge(ls_compare_judgement *j);

#endif
