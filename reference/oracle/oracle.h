/* THE JUDGE: one training step in FP64, plain loops, sharing no arithmetic with the code under test
 * (numerics.md section 4). One call computes forward, mean softmax cross entropy (smoothed where
 * the step says so), backward and the averaged gradient of all ranks and micro-steps of one step
 * (each rank's loss is the mean over its own samples and all ranks weigh the same, however many
 * they have), as one of
 *
 *   FP64, own branches      the network's gradient
 *   FP64, forced branches   the same on the ReLU and max-pool branches of a dump
 *   ideal                   FP64 inside each operation, one rounding where the level stores a value
 *                           (numerics.md section 1), own branches, the dump's loss scale,
 * micro-gradients, reduction and unscaling in the types of the level
 *
 * Results do not depend on the number of threads: every output is summed by one thread in one
 * order.
 *
 * An ideal run stores: input, activations and their gradients in f32 (O0) or half;
 * batch-norm mean, 1/sqrt(var + eps) and parameter sums in f32; gradients of products in f32 (O0)
 * or half, of batch norm in f32 (O3: half); (p - y)*S/(N*A) in f32, then in the type of the logits;
 * sums of two gradients at a fork, in the activation type; of batch norms that the next convolution
 * applies, scale and offset of forward in fp16. FP64 and ideal both use the weights of
 * the dump unchanged; O1 rounds the product's weights (and the bias) to half for the operation. */
#ifndef LS_ORACLE_H
#define LS_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "bits.h"
#include "branch.h"
#include "nettab.h"
#include "norm.h"
#include "shards.h"

typedef enum ls_oracle_average {
    LS_ORACLE_SUM_THEN_DIVIDE, /* dialect apex */
    LS_ORACLE_DIVIDE_THEN_SUM, /* dialect torch */
    LS_ORACLE_SUM, /* --average none: the expected result is the sum of the ranks' gradients */
} ls_oracle_average;

/* The input of a step. Pointers are borrowed. */
typedef struct ls_oracle_step {
    const ls_nettab *net;
    int world, accumulate; /* W ranks, A micro-steps */
    const int *batch;      /* [world] N, samples of one rank's micro-step */
    int stat_ranks;        /* consecutive ranks that share batch-norm statistics: 1 local, world for
                              SyncBN */
    const float *const *input;    /* [world] each [A,N,3,H,W], its own N */
    const int64_t *const *target; /* [world] each [A,N] */
    double label_smoothing;       /* 0: none */
    const double *param;          /* [net->elements] in the table's order; as stored by the model */
    /* only for the ideal */
    int level;                         /* 0..3 */
    ls_bits_type half;                 /* of O1..O3 */
    bool applied[LS_NETTAB_NODES_MAX]; /* batch norms with scale and offset in fp16 */
    double loss_scale;
    ls_oracle_average average;
    double divisor;      /* of the average, where that is not the number of ranks; else 0 */
    double predivide;    /* apex: the part of W divided before the sum; 1: none */
    ls_bits_type reduce; /* type of the reduction; F64: each gradient's own (allreduce-fp32: F32;
                            compress: half) */
    bool reduces_each;   /* each micro-step's sum so far is reduced and goes on as the average
                            (--no-sync False); else the last one's */
} ls_oracle_step;

/* How to run a step. All zero: FP64 on its own branches. */
typedef struct ls_oracle_mode {
    bool ideal;
    uint64_t
        noise_seed; /* ideal, not 0: adds a random error of f32 size before every rounding, like
                       that of another order of summation (so two correct subjects differ) */
    const ls_branch_set *forced; /* NULL: own */
    const double *tie_limit; /* [branches], with forced: a turned branch farther than this from its
                                tie is a violation; NULL: not checked */
    const float *const *ideal_input; /* [branches], with forced: the ideal run's input of each ReLU
                                        and pool (its kept_input); fills result.branch_rms */
    bool keep_input;                 /* fill result.kept_input */
    bool keep_branches;              /* fill result.branches */
    bool forward_only;               /* no backward: grad stays zero */
    bool rank_grads;                 /* FP64: fill result.rank_grad */
    ls_norm_form norm; /* a batch norm with a mistake, for diagnosis; `stats` of the result are only
                          filled by the right form */
} ls_oracle_mode;

enum { LS_ORACLE_VIOLATIONS_MAX = 8 };

/* A forced branch that differs from FP64's and is not a near-tie. */
typedef struct ls_oracle_violation {
    int branch, rank, micro, sample, channel, row, column;
    double value; /* ReLU: x64; pool: gap between the FP64 maximum and the chosen element */
    double limit;
    bool outside; /* pool: the index is outside the window */
} ls_oracle_violation;

typedef struct ls_oracle_result {
    double *grad;   /* [net->elements], averaged over ranks, summed over micro-steps, unscaled */
    double *logits; /* rank after rank, each [A][N][classes] */
    double *loss;   /* [W], mean over the rank's own A*N samples */
    double *stats;  /* [ls_oracle_stats_count] batch statistics, see ls_oracle_stats_of */
    double *branch_rms; /* [branches] RMS over the layer of (ideal_input - x64), else NULL */
    int64_t turned;     /* forced branches that differ from FP64's */
    double tie_ratio; /* largest distance of a turned branch from its tie, in units of its limit */
    int64_t violation_count;
    ls_oracle_violation
        violation[LS_ORACLE_VIOLATIONS_MAX]; /* the first ones, in order of execution */
    float **kept_input;                      /* [branches] */
    ls_branch_set branches;                  /* own, with mode.keep_branches */
    float *rank_grad;                        /* [W][net->elements] with mode.rank_grads */
} ls_oracle_result;

/* What a sum over the ranks is divided by. */
static inline double ls_oracle_divisor(const ls_oracle_step *step)
{
    return step->divisor > 0 ? step->divisor : step->world;
}
/* The distribution of the step's samples. */
static inline ls_shards ls_oracle_shards(const ls_oracle_step *step)
{
    return (ls_shards){step->world, step->accumulate, step->batch};
}
/* Samples that share statistics with one micro-step of `rank`. */
static inline int64_t ls_oracle_stats_samples(const ls_oracle_step *step, int rank)
{
    ls_shards shards = ls_oracle_shards(step);
    return ls_shards_batches(&shards, rank / step->stat_ranks * step->stat_ranks, step->stat_ranks);
}
/* Statistics of all batch norms: for each, in order of execution, the mean of every group [groups]
 * [channels], then the biased variance alike. Groups are A micro-steps of W / stat_ranks. */
static inline int ls_oracle_stats_groups(const ls_oracle_step *step)
{
    return step->accumulate * (step->world / step->stat_ranks);
}
/* The offset of the statistics of the norm `node`. */
static inline int64_t ls_oracle_stats_of(const ls_oracle_step *step, int node)
{
    int64_t channels = 0;
    for (int i = 0; i < node; i++) {
        channels += step->net->node[i].kind == LS_NETTAB_NORM ? step->net->node[i].channels : 0;
    }
    return 2 * ls_oracle_stats_groups(step) * channels;
}
static inline int64_t ls_oracle_stats_count(const ls_oracle_step *step)
{
    return ls_oracle_stats_of(step, step->net->node_count);
}

/* The step. LS_ERR_INFRA without memory; on failure nothing is left to free. */
ls_status ls_oracle_run(const ls_oracle_step *step, const ls_oracle_mode *mode,
                        ls_oracle_result *out);
void ls_oracle_free(const ls_nettab *net, ls_oracle_result *result);

#endif
