/* What jobs are: a spec is a role and its factors; from a spec follow a readable id, the subject's
 * command, the facts of job.json and an estimate of its seconds. A matrix is the list of a run's
 * jobs, in which equal specs stand once. Knows the subject protocol's options (design.md section
 * 4), no case and no verdict. */
#ifndef LS_MATRIX_H
#define LS_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "job.h"

typedef enum ls_role {
    LS_ROLE_EVIDENCE,   /* small, dumped, judged by the oracle */
    LS_ROLE_THROUGHPUT, /* the real network and batch, timed */
    LS_ROLE_PHASES,     /* short, with marks around the parts of a step */
    LS_ROLE_REFERENCE,  /* FP32, one process, micro-batch form */
    /* Jobs that a timed one is compared with; they are no rows of the matrix. */
    LS_ROLE_TWIN,   /* the same world without reduction: what is missing is exposed communication */
    LS_ROLE_SELF,   /* a world of one with DDP in use: what DDP itself costs */
    LS_ROLE_STRONG, /* the largest world's global batch, split over fewer ranks */
    LS_ROLE_CURVES, /* a small network trained several times beside each other, for their losses */
    LS_ROLE_SDC,    /* every rank trains the same, alone on its device: their bits are compared */
} ls_role;

/* What is done to the ranks from outside. */
typedef enum ls_wrap {
    LS_WRAP_NONE,
    LS_WRAP_ALONE, /* none of torchrun's variables is set: the trainer runs without DDP */
    LS_WRAP_KILL,  /* SIGKILL to `kill_rank` once it has written step `kill_step` */
    LS_WRAP_SHELL, /* every rank runs `script`, in which "$0" "$@" is the subject */
    LS_WRAP_EACH,  /* every rank is a run of its own, alone, with its options from `each` */
} ls_wrap;

/* The plots a job is a point of. */
enum { LS_SWEEP_LEVEL = 1, LS_SWEEP_BUCKET = 2, LS_SWEEP_WORLD = 4, LS_SWEEP_NODES = 8 };

#define LS_BUCKET_OWN (-1.0)  /* the dialect's own rule: no option is given */
#define LS_BUCKET_DELAYED 0.0 /* one reduction after the whole backward */

typedef struct ls_spec {
    ls_role role;
    char arch[32];
    int image_size, batch_size; /* batch: images per rank and step (per micro-step with accumulate);
                                   0: none given */
    int level;                  /* 0 to 3; -1: no option is given */
    char half[8];               /* "fp16", "bf16" */
    int world, nodes;
    bool real_nodes; /* nodes > 1 are hosts of the site, else simulated on one machine */
    double bucket_mb;
    char dialect[8]; /* "apex", "torch" */
    bool sync_bn;
    char loss_scale[16]; /* "" leaves it to the level */
    int accumulate;
    int warmup_steps, steps; /* steps: timed ones; the job runs both */
    uint64_t seed;
    char data[512];      /* "synthetic", "batches:DIR", DIR; DIR may hold {run} */
    char dump_steps[64]; /* "1,3"; "" none */
    bool dump_all;
    bool followed; /* timed: its FP32 reference takes its branches, which every rank dumps */
    int threads;   /* 0: cores / ranks */
    bool deterministic;
    double lr;
    char extra[512]; /* further options, blank between; {self} is this job's folder, {run} the
                        run's, {job:ID} another job's, {bin} our programs' */
    ls_wrap wrap;
    char each[1024]; /* LS_WRAP_EACH: further options of rank 0, 1, ..., divided by '|' */
    int kill_rank, kill_step;
    const char *script; /* for sh -c; a literal; {bin} is our programs' folder */
    int repeat;         /* tells equal jobs apart that must really run more than once */
    unsigned sweep;
    double limit_s; /* 0: from the estimate */
} ls_spec;

/* A spec with every field at its default: resnet20 at 16 pixels, batch 4, one rank, synthetic data.
 */
ls_spec ls_matrix_spec(ls_role role);

/* The same deterministic steps on `ranks` devices, each rank alone; with `repeat` 1, again. */
ls_spec ls_matrix_sdc(const char *arch, int image_size, int batch_size, int ranks);

/* "o2.w4.n2.b5mb.s30-1f3a09bc": factors that people look for, then the digest of everything that
 * changes what is run. text[96]. */
void ls_matrix_id(const ls_spec *spec, char *text);
/* "O2, 4 ranks, 2 nodes, 5 MB". text[64]. */
void ls_matrix_label(const ls_spec *spec, char *text);
/* "25 MB", "delayed", "own rule". text[24]. */
void ls_matrix_bucket_text(double bucket_mb, char *text);
const char *ls_matrix_role_name(ls_role role);

typedef struct ls_matrix_site {
    const char
        *subject; /* command words, blank between; NULL: lockstep-train beside this program */
    const char *run_directory; /* absolute; jobs go to <run>/jobs/<id> */
    const char *device;        /* "cpu", "cuda" */
    int cores;                 /* of a machine that runs ranks */
    ls_hosts *hosts;           /* where ranks run; NULL: here. Not owned */
    const ls_simnet *net;      /* of simulated nodes; NULL: the loopback. Not owned */
    struct ls_watch_gpu *gpus; /* watched while jobs run here; NULL: none. Not owned */
    int devices;               /* GPUs of a machine that ranks can have; 0: they run on cores */
    bool share_devices;        /* several ranks may share one */
    bool oversubscribed, half_emulated;
} ls_matrix_site;

/* The job of a spec: command with {self}, {run}, {bin} and {job:ID} filled in, directory, deadline,
 * facts. The caller frees it with ls_job_free. LS_ERR_USAGE for more arguments than a job holds. */
ls_status ls_matrix_job(const ls_spec *spec, const ls_matrix_site *site, ls_job *out);

/* Seconds that the job takes on `cores` cores: start of the ranks, steps, reduction. A model fitted
 * on a 2-core machine, good to a factor of two; used for the plan, the time left and deadlines
 * only. */
double ls_matrix_estimate_s(const ls_spec *spec, int cores);

/* Whether the job is a row of the matrix, and not only a baseline or a reference of one. */
bool ls_matrix_is_row(const ls_spec *spec);

typedef struct ls_matrix {
    int count, capacity;
    ls_spec *spec;
    char (*id)[96]; /* of each spec: a digest of its whole command, made once */
} ls_matrix;

/* Adds the spec unless an equal one is there (then their sweeps are joined); returns its index. */
int ls_matrix_add(ls_matrix *matrix, const ls_spec *spec);
/* Index of the job with that id, or -1. */
int ls_matrix_find(const ls_matrix *matrix, const char *id);
void ls_matrix_free(ls_matrix *matrix);

#endif
