/* Makes jobs from specs (spec.h): a readable id, the subject's command, the facts of job.json and
 * an estimate of the duration. A matrix is the list of the jobs of a run, without duplicates. This
 * file knows the options of the subject protocol (protocol.md), but no case and no verdict.
 */
#ifndef LS_MATRIX_H
#define LS_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "job.h"
#include "spec.h"

/* A spec with default values: resnet20 at 16 pixels, batch 4, one rank, synthetic data. */
ls_spec ls_matrix_spec(ls_role role);

/* The same deterministic steps on `ranks` devices, each rank alone; `repeat` 1 is the second run.
 */
ls_spec ls_matrix_sdc(const char *arch, int image_size, int batch_size, int ranks);

/* The job that dumps the first step of a timed one for the judge: itself, where its batches are
 * loaded; else one of its own with the same first step, because a batch that stays on the device is
 * not on the host, and a dump is no part of what is timed. */
ls_spec ls_matrix_first_step(const ls_spec *timed);
/* The same training on engines that give the same bits every time, which those of a device need not
 * do; `steps` of it, without dumps. */
ls_spec ls_matrix_deterministic(const ls_spec *timed, int steps);

/* How a timed job of ours is audited (numerics.md section 5, FP64 samples): --audit's SEED, which
 * follows from the run's seed and from the job, so that jobs draw unlike steps, EVERY and FROM. One
 * step of the steady window, one in each half of a window of 16 and more. */
enum { LS_MATRIX_AUDITED_TWICE = 16 };
typedef struct ls_matrix_audit {
    unsigned seed;
    int every, from;
} ls_matrix_audit;
ls_matrix_audit ls_matrix_audit_of(const ls_spec *spec);

/* "o2.w4.n2.b5mb.s30-1f3a09bc": the main factors, then a digest of everything that changes the job.
 * text[96]. */
void ls_matrix_id(const ls_spec *spec, char *text);
/* "O2, 4 ranks, 2 nodes, 5 MB". text[64]. */
void ls_matrix_label(const ls_spec *spec, char *text);

typedef struct ls_matrix_site {
    const char *subject; /* words of a command, separated by blanks; NULL: lockstep-train next to
                            this program */
    const char *run_directory;   /* absolute; jobs go to <run>/jobs/<id> */
    const char *device;          /* "cpu", "cuda" */
    double cores;                /* of a machine that runs ranks */
    ls_hosts *hosts;             /* where ranks run; NULL: here. Not owned */
    const ls_simnet *net;        /* of simulated nodes; NULL: the loopback. Not owned */
    struct ls_watch_gpu *gpus;   /* monitored while jobs run here; NULL: none. Not owned */
    int devices;                 /* GPUs of a machine that ranks can use; 0: they run on cores */
    bool share_devices;          /* several ranks may share one; those of jobs that are not timed
                                    share where there are more ranks than GPUs */
    ls_fork_server *fork_server; /* of the subject; NULL: none. Not owned */
    double start_s;              /* a subject's own start-up, measured; 0: not measured */
    bool oversubscribed, half_emulated;
} ls_matrix_site;

/* The job of a spec: directory, deadline, facts, and the command with {self}, {run}, {bin} and
 * {job:ID} replaced. The caller frees it with ls_job_free. */
ls_status ls_matrix_job(const ls_spec *spec, const ls_matrix_site *site, ls_job *out);

/* The estimated duration of the job on `cores` cores, or on its GPUs: start of the ranks, steps,
 * reduction. For cores the model was fitted on a 2-core machine and is right within a factor of
 * two; for GPUs it is as rough (one H200: 6 min predicted, 3 taken). It serves the plan, the time
 * left and deadlines only. */
double ls_matrix_estimate_s(const ls_spec *spec, double cores);
/* The same with the start-up that was measured there, if it was: for the plan and the time left. */
double ls_matrix_estimate_at(const ls_spec *spec, const ls_matrix_site *site);

/* Whether the job is a row of the matrix, and not only a baseline or a reference of one. */
bool ls_matrix_is_row(const ls_spec *spec);

typedef struct ls_matrix {
    int count, capacity;
    ls_spec *spec;
    char (*id)[96]; /* [count] computed once, because they digest the whole command */
} ls_matrix;

/* Adds the spec, or joins its sweeps with those of an equal one; returns its index. */
int ls_matrix_add(ls_matrix *matrix, const ls_spec *spec);
void ls_matrix_free(ls_matrix *matrix);

/* ---- matrix_bench.c ---------------------------------------------------------------------------
 */

/* The jobs of `lockstep bench`: which throughput, phases, baseline and curves jobs a profile has.
 */

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
