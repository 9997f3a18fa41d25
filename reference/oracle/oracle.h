/* THE JUDGE: one training step in FP64, plain loops, sharing no arithmetic with what it judges
 * (numerics.md section 4). One call computes forward, mean softmax cross entropy, backward and the
 * averaged gradient of all ranks and micro-steps of one step (each rank's loss is the mean over its
 * own samples and all ranks weigh the same, however many they have), as one of
 *
 *   FP64, own branches      what the network's gradient is
 *   FP64, forced branches   the same on the ReLU and max-pool branches of a dump
 *   ideal                   FP64 inside each operation, one rounding where the level stores a value
 *                           (numerics.md section 1), own branches, the dump's loss scale,
 * micro-gradients, reduction and unscaling in the types of the level
 *
 * Results do not depend on the number of threads: every output is summed by one thread in one
 * order.
 *
 * What an ideal stores, and how: input, activations and their gradients in f32 (O0) or half;
 * batch-norm mean, 1/sqrt(var + eps) and parameter sums in f32; gradients of products in f32 (O0)
 * or half, of batch norm in f32 (O3: half); (p - y)*S/(N*A) in f32, then in the type of the logits;
 * sums of two gradients at a fork, in the activation type. FP64 and ideal alike take the weights of
 * the dump as they are; O1 rounds the product's weights (and the bias) to half for the operation.
 */
#ifndef LS_ORACLE_H
#define LS_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "bits.h"
#include "branch.h"
#include "nettab.h"
#include "norm.h"
#include "shards.h"

typedef enum ls_oracle_average {
    LS_ORACLE_SUM_THEN_DIVIDE, /* dialect apex */
    LS_ORACLE_DIVIDE_THEN_SUM, /* dialect torch */
    LS_ORACLE_SUM, /* --average none: the sum of the ranks' gradients is what is expected */
} ls_oracle_average;

/* What went in. Pointers are borrowed. */
typedef struct ls_oracle_step {
    const ls_nettab *net;
    int world, accumulate; /* W ranks, A micro-steps */
    const int *batch;      /* [world] N, samples of one rank's micro-step */
    int stat_ranks; /* neighbouring ranks that share batch-norm statistics: 1 local, world for
                       SyncBN */
    const float *const *input;    /* [world] each [A,N,3,H,W], its own N */
    const int64_t *const *target; /* [world] each [A,N] */
    const double *param;          /* [net->elements] in the table's order; values the model holds */
    /* of the ideal only */
    int level;         /* 0..3 */
    ls_bits_type half; /* of O1..O3 */
    double loss_scale;
    ls_oracle_average average;
    double predivide;    /* apex: the part of W divided before the sum; 1: none */
    ls_bits_type reduce; /* type reduced in, F64: each gradient's own (allreduce-fp32: F32;
                            compress: half) */
} ls_oracle_step;

/* How to run it. All zero: FP64 on its own branches. */
typedef struct ls_oracle_mode {
    bool ideal;
    uint64_t
        noise_seed; /* ideal: not 0: before every rounding a random error of f32 size, as another
                       order of summation would make (so two correct subjects differ) */
    const ls_branch_set *forced; /* NULL: own */
    const double *tie_limit; /* [branches], with forced: a turned branch farther than this from its
                                tie is a violation; NULL: not looked at */
    const float *const
        *ideal_input;   /* [branches], with forced: what the ideal run had at the input of each
                           ReLU and pool (its kept_input); gives result.branch_rms */
    bool keep_input;    /* fill result.kept_input */
    bool keep_branches; /* fill result.branches */
    bool forward_only;  /* no backward: grad stays zero */
    bool rank_grads;    /* FP64: fill result.rank_grad */
    ls_norm_form norm;  /* a batch norm with a mistake, to find causes; `stats` of the result are
                           those of the right one only */
} ls_oracle_mode;

enum { LS_ORACLE_VIOLATIONS_MAX = 8 };

/* A forced branch that FP64 would have taken otherwise and that is no near-tie. */
typedef struct ls_oracle_violation {
    int branch, rank, micro, sample, channel, row, column;
    double value; /* ReLU: x64; pool: gap between the FP64 maximum and the chosen element */
    double limit;
    bool outside; /* pool: the index is not even in the window */
} ls_oracle_violation;

typedef struct ls_oracle_result {
    double *grad;   /* [net->elements], averaged over ranks, summed over micro-steps, unscaled */
    double *logits; /* rank after rank, each [A][N][classes] */
    double *loss;   /* [W], mean over the rank's own A*N samples */
    double *stats;  /* [ls_oracle_stats_count] batch statistics, see ls_oracle_stats_of */
    double *branch_rms; /* [branches] RMS over the layer of (ideal_input - x64), else NULL */
    int64_t turned;     /* forced branches that FP64 would have taken otherwise */
    double tie_ratio; /* largest distance of a turned branch from its tie, in units of its limit */
    int64_t violation_count;
    ls_oracle_violation
        violation[LS_ORACLE_VIOLATIONS_MAX]; /* the first ones, in order of execution */
    float **kept_input;                      /* [branches] */
    ls_branch_set branches;                  /* own, where asked for */
    float *rank_grad;                        /* [W][net->elements] where asked for */
} ls_oracle_result;

/* The step. LS_ERR_INFRA without memory; on failure nothing is left to free. */
ls_status ls_oracle_run(const ls_oracle_step *step, const ls_oracle_mode *mode,
                        ls_oracle_result *out);
/* The step's samples: whose each is. */
ls_shards ls_oracle_shards(const ls_oracle_step *step);
/* Samples that share statistics with one micro-step of `rank`. */
int64_t ls_oracle_stats_samples(const ls_oracle_step *step, int rank);
/* Statistics of all batch norms: for each, in order of execution, the mean of every group [groups]
 * [channels], then the biased variance alike. Groups are A micro-steps of W / stat_ranks. */
int64_t ls_oracle_stats_count(const ls_oracle_step *step);
int ls_oracle_stats_groups(const ls_oracle_step *step);
/* Where those of the norm `node` begin. */
int64_t ls_oracle_stats_of(const ls_oracle_step *step, int node);
void ls_oracle_free(const ls_nettab *net, ls_oracle_result *result);

#endif
