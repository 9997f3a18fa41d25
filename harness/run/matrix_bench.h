/* The jobs of `lockstep bench`: which throughput, phases, baseline and curves jobs a profile has.
 */
#ifndef LS_MATRIX_BENCH_H
#define LS_MATRIX_BENCH_H

#include "matrix.h"

/* The bench's choice of throughput and phases jobs. */
typedef enum ls_profile {
    LS_PROFILE_SMOKE,
    LS_PROFILE_QUICK,
    LS_PROFILE_FULL,
    LS_PROFILE_RATED,
} ls_profile;

enum { LS_MATRIX_LIST_MAX = 16 };

typedef struct ls_matrix_bench {
    ls_profile profile;
    int ranks;     /* all of them: NGPUS on each host */
    int hosts;     /* real nodes; 0 or 1: one machine */
    int sim_nodes; /* nodes of the simulated row; 1: no such row */
    int level_count, level[4];
    int bucket_count;
    double bucket_mb[LS_MATRIX_LIST_MAX]; /* LS_BUCKET_DELAYED is one of them */
    char arch[32];
    int image_size, batch_size;
    int steps;   /* 0: chosen so that the profile keeps its time */
    int gpus;    /* that ranks can have; 0: they run on cores */
    bool device; /* ranks run on one that is not the CPU, be it an emulated one */
    int cores;
    char data[512];
    uint64_t seed;
} ls_matrix_bench;

/* O0 runs of the curves job, which make the band, before one run of each other level. */
enum { LS_MATRIX_BAND_RUNS = 10 };

/* One factor at a time around O2, 25 MB, all ranks, one node (quick, rated); its corners (smoke);
 * every pair of settings that can stand together (full). The jobs that timed ones are compared with
 * follow the job that they belong to, so that little time passes between the two. */
void ls_matrix_bench_jobs(const ls_matrix_bench *bench, ls_matrix *matrix);

#endif
