/* The options, kinds and verdict of a comparison. */
#ifndef LS_COMPARE_TYPES_H
#define LS_COMPARE_TYPES_H

#include <stdbool.h>
#include <stdint.h>

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
    bool sync_bn;          /* statistics over sync_bn_group ranks */
    int sync_bn_group;     /* 0: the metadata's sync_bn_group, else the world */
    bool dialect_torch;    /* divide, then sum; else sum, then divide */
    bool average_none;     /* --average none: the sum of the ranks' gradients is expected */
    double predivide;      /* 0: 1 */
    const char *reduce; /* NULL: each gradient's own type; "fp32", "fp16", "bf16" (--allreduce-fp32,
                           --compress) */
    bool nesterov;
    bool coarse;       /* use FP64's own branches even if the dump has them (section 4, point 4) */
    const char *cache; /* folder for the oracle's results; NULL: none */
} ls_compare_facts;

typedef struct ls_compare_verdict {
    ls_compare_code code;
    char evidence[320];         /* one line: "layer1.0.conv2.weight elements 64..127 rel=3.1e-2
                                   limit=6.0e-3 (4 x ideal fp16)" */
    char cause[320];            /* one line, "" if no known cause fits */
    char tensor[64];            /* first wrong one in backward order, or "" */
    int failures;               /* checks that failed */
    bool coarse;                /* judged on FP64's own branches, whole gradient only */
    double error, ideal, limit; /* e, r and the bound of the whole gradient */
    double tie_ratio;           /* farthest turned branch, in units of its layer's RMS rounding */
    double ratio[LS_COMPARE_PARTS]; /* largest e/r of each kind, with the floors of the bound */
    double ideal_error[LS_COMPARE_PARTS]; /* the ideal's own largest error of each kind, see
                                             compare_spans.h */
    double logits_ratio;
    double reduce_ratio, next_ratio; /* largest error of an element in units of its limit */
    double buffer_ratio;             /* largest e/r of a batch norm's running statistics */
    int64_t turned, forced;          /* branches that differ from FP64's, and all */
    bool next_judged, reduce_judged; /* the dump has what the optimizer step and local/ need */
    bool buffers_judged;             /* it has what the running statistics need */
} ls_compare_verdict;

#endif
