/* The state of a run of ls_oracle_run, shared by forward.c, backward.c and oracle.c; private to
 * them. */
#ifndef LS_ORACLE_RUN_H
#define LS_ORACLE_RUN_H

#include "loops.h"
#include "norm.h"
#include "oracle.h"
#include "planes.h"
#include "bits.h"

/* Rounds whole arrays to a storage type, as a level stores them. */

/* Random errors added before the rounding; none with seed 0. Each array of a step has its own
 * number. */
typedef struct ls_run_noise {
    uint64_t seed, array;
} ls_run_noise;

/* value = round(type, value), in place. With noise, adds 2^-24 * (|value| + rms of the array) * u
 * first, u uniform in -1..1 and a pure function of (seed, array, index): about the difference that
 * another order of f32 summation makes. F64 leaves the array as it is. */
void ls_run_store(ls_bits_type type, ls_run_noise noise, int64_t count, double *value);
/* Sum of squares over 256 parts, then over the parts: independent of the number of threads. */
double ls_run_square_sum(int64_t count, const double *value);

/* One run of ls_oracle_run. */
typedef struct ls_run {
    const ls_oracle_step *step;
    const ls_oracle_mode *mode;
    const ls_nettab *net;
    ls_oracle_result *result;
    const ls_loops *products, *norms; /* the CPU's or the device's */
    ls_shards shards;
    int samples;                /* of all ranks and micro-steps */
    ls_bits_type stored;        /* activations and their gradients; F64 unless ideal */
    ls_bits_type single;        /* type of values that are f32 at every level; F64 unless ideal */
    ls_branch_set own;          /* filled unless forced */
    const ls_branch_set *taken; /* own or forced */
    uint64_t arrays;            /* rounded so far: the noise's number */
    double *weight; /* [largest parameter] one product's weights as the operation reads them */
    double *chunk;  /* [A*W][largest parameter] gradients of one parameter */
    int last_reader[LS_NETTAB_NODES_MAX];
    bool read_backward[LS_NETTAB_NODES_MAX]; /* a reader's backward needs this node's value */
    ls_planes value[LS_NETTAB_NODES_MAX];
    ls_planes grad[LS_NETTAB_NODES_MAX];
    ls_norm_stats stats[LS_NETTAB_NODES_MAX];
} ls_run;

ls_run_noise ls_run_next_noise(ls_run *r);
/* Rounds an array that is complete to `type`. */
void ls_run_round_stored(ls_run *r, ls_bits_type type, ls_planes *planes);
/* Of `node`'s shape, all samples. */
ls_status ls_run_allocate_like(const ls_run *r, int node, ls_planes *out);
ls_loops_shape ls_run_products_of(const ls_nettab_node *node);
/* A product's weights: O1 casts them to half for the operation, at the other levels they have the
 * type. Valid until the next call. */
const double *ls_run_weights_of(ls_run *r, int param);

/* forward.c */
/* Fills value, statistics and own branches of every node. */
ls_status ls_forward_run(ls_run *r);
/* Fills the loss, the logits, and the gradient of the last node. */
ls_status ls_forward_loss(ls_run *r);

/* backward.c */
/* Fills result->grad from the logits' gradient; frees values when their last reader is done. */
ls_status ls_backward_run(ls_run *r);

#endif
