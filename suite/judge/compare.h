/* Compares the gradients of one step with the FP64 oracle's on the subject's own branches
 * (numerics.md section 4). Needs only dump files, from any trainer. */
#ifndef LS_COMPARE_H
#define LS_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "reference/oracle/dumpfile.h"
#include "reference/oracle/evidence.h"
#include "reference/oracle/ideal_error.h"
#include "reference/oracle/update.h"

/* The options, kinds and verdict of a comparison. */
typedef enum ls_compare_code {
    LS_COMPARE_PASS,
    LS_COMPARE_WEAK, /* the evidence is too weak: it shows nothing for or against */
    LS_COMPARE_FAIL,
} ls_compare_code;

/* The kinds of parts of a gradient; each has its factor on r. */
typedef enum ls_compare_part {
    LS_COMPARE_WHOLE,
    LS_COMPARE_TENSOR, /* of 64 elements and more */
    LS_COMPARE_SMALL,  /* tensors below */
    LS_COMPARE_BLOCK,  /* 64 elements */
    LS_COMPARE_EDGE,   /* the first and last 8 of a tensor */
    LS_COMPARE_PARTS,
} ls_compare_part;

/* The options of the job. A zeroed field takes its value from the dump's metadata, else the default
 * in its comment. */
typedef struct ls_compare_facts {
    const char *arch;      /* NULL; "resnet20" */
    const char *opt_level; /* NULL; "O0".."O3" */
    const char *half;      /* NULL: "fp16"; "fp16" or "bf16" */
    int step;              /* 0: not known */
    bool sync_bn;          /* statistics over sync_bn_group ranks */
    int sync_bn_group;     /* 0: the metadata's sync_bn_group, else the world */
    bool dialect_torch;    /* divide, then sum; else sum, then divide */
    bool average_none;     /* --average none: the sum of the ranks' gradients is expected */
    double predivide;      /* 0: 1 */
    const char *reduce; /* NULL: each gradient's own type; "fp32", "fp16", "bf16" (--allreduce-fp32,
                           --compress) */
    bool reduces_each;  /* --no-sync False: every micro-step's sum is reduced */
    bool sends_buffers; /* rank 0's go to all before a forward that follows a reduction, */
    bool joins;         /* or with --join those of the last rank that has a batch */
    bool nesterov;
    bool fused;        /* --fuse: the dump may name batch norms as `applied` */
    int world;         /* 0: the files are of all ranks; else of those that had a batch, and */
    const int *rank;   /* [file_count] their numbers */
    double divisor;    /* of the average; 0: the number of files */
    bool coarse;       /* use FP64's own branches even if the dump has them (section 4, point 4) */
    const char *cache; /* folder for the oracle's results; NULL: none */
} ls_compare_facts;

typedef struct ls_compare_verdict {
    ls_compare_code code;
    char evidence[320];         /* one line: "layer1.0.conv2.weight elements 64..127 rel=3.1e-2
                                   limit=6.0e-3 (4 x ideal fp16)" */
    char cause[320];            /* one line, "" if no known cause fits */
    char tensor[64];            /* first wrong one in backward order, or "" */
    int64_t elements;           /* of the gradient and of the optimizer's step that were compared */
    bool coarse;                /* judged on FP64's own branches, whole gradient only */
    double error, ideal, limit; /* e, r and the bound of the whole gradient */
    double tie_ratio;           /* farthest turned branch, in units of its layer's RMS rounding */
    double ratio[LS_COMPARE_PARTS]; /* largest e/r of each kind, with the floors of the bound */
    double ideal_error[LS_COMPARE_PARTS]; /* the ideal's own largest error of each kind */
    double logits_ratio;
    double reduce_ratio, next_ratio; /* largest error of an element in units of its limit */
    double buffer_ratio;             /* largest e/r of a batch norm's running statistics */
    int64_t turned, forced;          /* branches that differ from FP64's, and all */
    bool next_judged, reduce_judged; /* the dump has what the optimizer step and local/ need */
    bool buffers_judged;             /* it has what the running statistics need */
} ls_compare_verdict;

/* path[file_count]: dump/step%06d.rank%d.safetensors of one step, all ranks, in order of rank (the
 * oracle needs every rank's input, target and branches). json_path: path of compare.json
 * (harness/report/report.h), NULL: none. LS_ERR_USAGE for dumps that cannot be judged
 * (a missing rank, an unknown network, a broken file). */
ls_status ls_compare_step(const ls_compare_facts *facts, int file_count, const char *const *path,
                          const char *json_path, ls_compare_verdict *out);

/* How far a correct subject may be from the oracle: each bound is a factor on the level's ideal
 * error, with its reason (numerics.md section 4). results/bounds/ confirms the factors.
 *
 * A factor on r (or on s, for ties), and its reason. */
typedef struct ls_compare_bound {
    double factor;
    const char *why;
} ls_compare_bound;

/* [LS_COMPARE_PARTS] for opt level 0 to 3. */
const ls_compare_bound *ls_compare_bounds_of(int level);
/* The largest distance of a turned branch from its tie, in RMS roundings of its layer. */
ls_compare_bound ls_compare_bounds_tie(int level);

/* Coarse: the number of ideal runs with different noise; the bound is twice their largest error. */
enum { LS_COMPARE_COARSE_RUNS = 8 };
ls_compare_bound ls_compare_bounds_coarse(void);
/* With r of the whole gradient above this, the evidence is weak. */
ls_compare_bound ls_compare_bounds_weak_ideal_error(void);
/* With e below this share of r on most tensors, half was not in use. */
ls_compare_bound ls_compare_bounds_weak_share(void);

/* compare_checks.c: checks of a dump that need no oracle: equal replicas, a loss that follows from
 * its logits, a reduction that follows from local/. Failed ones: the first one's line, and their
 * number. */
typedef struct ls_compare_checks {
    int count;
    char line[320];
    char tensor[64];     /* of the first failure that concerns a tensor */
    double reduce_ratio; /* largest error of an element in units of its limit */
    bool unsmoothed;     /* every loss that is wrong is that of labels that are not smoothed */
} ls_compare_checks;

/* tensor may be NULL. */
void ls_compare_checks_fail(ls_compare_checks *checks, const char *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* All ranks must have the same bits of <prefix>/; what: "parameters", for the line. */
void ls_compare_checks_replicas(const ls_evidence *evidence, const char *prefix, const char *what,
                                ls_compare_checks *checks);
/* False for a name that begins like a judged group's ("next/") and is no tensor of the network. */
bool ls_compare_checks_belongs(const ls_nettab *net, const char *name);
/* Every name below a judged group ("next/") must be a tensor of the network: another one would go
 * unjudged. */
void ls_compare_checks_names(const ls_evidence *evidence, ls_compare_checks *checks);
/* Masters and moments, before and after the step, must be rank 0's, bit for bit, where a rank dumps
 * them. */
void ls_compare_checks_states(const ls_evidence *evidence, ls_compare_checks *checks);
/* Each rank's loss must be the mean cross entropy of its own logits, up to f32 arithmetic; both may
 * be infinite only where the gradient is (finite: it is not). */
void ls_compare_checks_loss(const ls_evidence *evidence, bool finite, ls_compare_checks *checks);
/* |g - mean(local)| <= (W-1)*u*sum|local|/W + u*|g| per element, u of the type of the reduction;
 * one more rounding per rank if each gradient is divided or converted first. False: a rank lacks
 * local/; one with a part of it fails. */
bool ls_compare_checks_reduce(const ls_evidence *evidence, int level, ls_compare_checks *checks);

/* compare_optim.c: recomputes the optimizer step of a dump in FP64 from the value, gradient and
 * moments in the dump, and compares next/ and next_state/. Needs one rank's dump and no network;
 * another check establishes that all ranks are equal. Every parameter is judged: one without next/,
 * or a next/ of another name, is a failure. Results besides failures: */
typedef struct ls_compare_optim_result {
    bool judged;       /* the dump has everything needed */
    const char *why;   /* else what it lacks */
    bool state_judged; /* also for next_state/ */
    int64_t elements;  /* compared elements of next/ */
    int64_t moved;     /* those among them that differ from the value before the step */
    int64_t unlimited; /* those whose limit is infinite; then the step is not judged */
    double ratio;      /* largest error of next/, in units of its limit */
} ls_compare_optim_result;

/* The rule that follows from the dump's metadata. *skipped: the step was. False, with *rule unset,
 * if the metadata is insufficient (optimizer, lr; optimizer_steps for rules with bias correction).
 */
bool ls_compare_optim_rule(const ls_dumpfile *file, bool nesterov, ls_update_rule *rule,
                           bool *skipped);
/* Judges one dump by `rule`, whose grad_squares and grad_elements are filled in here. With
 * `skipped` every bit must be unchanged. */
ls_status ls_compare_optim_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                                ls_compare_checks *checks, ls_compare_optim_result *out);
/* The value before the step: master/<name>, else param/<name>; NULL if the dump has neither. */
const ls_dumpfile_entry *ls_compare_optim_before(const ls_dumpfile *file, const char *name);
/* The error of `got` in units of its limit, for a value stored like `next`. */
double ls_compare_optim_ratio(const ls_dumpfile_entry *next, double got, double expected,
                              double error);

/* The parts of a gradient that are judged separately (numerics.md section 4): every tensor, every
 * 64 consecutive elements, the first and last 8 of every tensor. Buckets hold whole tensors without
 * padding, so their edges are edges of tensors too. */
typedef enum ls_compare_spans_kind {
    LS_COMPARE_SPANS_TENSOR,
    LS_COMPARE_SPANS_BLOCK,
    LS_COMPARE_SPANS_EDGE,
} ls_compare_spans_kind;

typedef struct ls_compare_spans {
    int64_t count;
    ls_ideal_error_span
        *span;  /* in backward order of tensors; a tensor, then its blocks, then its edges */
    int *param; /* [count] */
    ls_compare_spans_kind *kind;
    double *error, *ideal; /* [count] e and r, r with its floors */
    double *scale;         /* [count] D of the subject's g64 */
} ls_compare_spans;

void ls_compare_spans_build(const ls_nettab *net, ls_compare_spans *out);
void ls_compare_spans_free(ls_compare_spans *spans);
/* Fills error and ideal: the errors of the gradient against g64, and the ideal errors of the level.
 */
void ls_compare_spans_measure(const ls_nettab *net, const double *grad, const double *g64,
                              const ls_ideal_error_cost *cost, ls_compare_spans *spans);
/* The level's largest ideal error of each kind, for comparisons without an oracle: r of the whole,
 * the largest r of tensors of 64 elements and more and of smaller ones; for blocks and edges the
 * largest error in units of max(|g64|, their tensor's norm for as many elements): their own norm
 * may be small by chance and is then no scale. */
void ls_compare_spans_ideal_error(const ls_nettab *net, const ls_ideal_error_cost *cost,
                                  const ls_compare_spans *spans,
                                  double ideal_error[LS_COMPARE_PARTS]);
/* D = max(|g64|, 1e-3 * |whole g64| * sqrt(elements / all elements)). */
double ls_compare_spans_scale(double grad2, double whole_grad2, int64_t count, int64_t all);

/* The state of a comparison, shared by compare*.c. */
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
void ls_compare_buffers_judge(ls_compare_judgement *j);

#endif
