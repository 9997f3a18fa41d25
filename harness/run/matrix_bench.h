/* The jobs of `lockstep bench`: which throughput, phases, baseline and curves jobs a profile has.
 */
#ifndef LS_MATRIX_BENCH_H
#define LS_MATRIX_BENCH_H

#include "matrix.h"

typedef enum ls_profile {
    LS_PROFILE_SMOKE,
    LS_PROFILE_QUICK,
    LS_PROFILE_FULL,
    LS_PROFILE_RATED,
    LS_PROFILE_BASELINES,
} ls_profile;

enum { LS_MATRIX_LIST_MAX = 16 };

typedef struct ls_matrix_bench {
    ls_profile profile;
    int ranks;     /* all of them: NGPUS on each host */
    int hosts;     /* real nodes; 0 or 1: one machine */
    int sim_nodes; /* nodes of the row with simulated nodes; 1: no such row */
    int level_count, level[4];
    int bucket_count;
    double bucket_mb[LS_MATRIX_LIST_MAX]; /* LS_BUCKET_DELAYED is one of them */
    char arch[32];
    char half[8]; /* "fp16" or "bf16": of timed jobs and loss curves */
    int image_size, batch_size;
    int num_classes; /* of the data; 0: LS_SPEC_CLASSES */
    int steps;       /* 0: chosen so that the profile keeps its time */
    int gpus;        /* that ranks can use; 0: they run on cores */
    bool device;     /* ranks run on a GPU, real or emulated */
    bool emulated;   /* on cores, at their speed */
    bool fuse;       /* fused products in timed jobs at O1 and above; fp16, on a device */
    double cores;
    char data[512];
    char files[512]; /* on a device with synthetic data: images for the loader job; "": none */
    uint64_t seed;
} ls_matrix_bench;

/* O0 runs of the curves job, which make the band; one run of each other level follows. */
enum { LS_MATRIX_BAND_RUNS = 10 };

/* Runs of each way of PROFILE=baselines. A round has one of each, so that a machine whose speed
 * drifts slows all ways of a round alike; ways are compared round by round. */
enum { LS_MATRIX_ROUNDS = 5 };

/* Adds the jobs of the profile: one factor at a time around O2, 25 MB, all ranks, one node (quick,
 * rated); the corners of that (smoke); every possible pair of settings (full); DDP against other
 * ways to use the same cores, in rounds (baselines). The baselines of a timed job follow it
 * directly, so that the machine changes little between them. */
void ls_matrix_bench_jobs(const ls_matrix_bench *bench, ls_matrix *matrix);

#endif
