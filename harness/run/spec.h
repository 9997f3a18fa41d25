/* The specification of a job: its role in the run and its factors. It is written into the facts of
 * job.json and read back from there, so that a report needs no other source. */
#ifndef LS_SPEC_H
#define LS_SPEC_H

#include <stdbool.h>
#include <stdint.h>

struct cJSON;

typedef enum ls_role {
    LS_ROLE_EVIDENCE,   /* small, dumped, judged by the oracle */
    LS_ROLE_THROUGHPUT, /* the real network and batch, timed */
    LS_ROLE_PHASES,     /* short, with marks around the parts of a step */
    LS_ROLE_REFERENCE,  /* FP32, one process, micro-batch form */
    /* Jobs that a timed one is compared with; they are no rows of the matrix. */
    LS_ROLE_NO_COMM,    /* the same world without reduction; the difference in step time is exposed
                           communication */
    LS_ROLE_DDP_WORLD1, /* one rank with DDP in use: the cost of DDP itself */
    LS_ROLE_STRONG_SCALING, /* the largest world's global batch, split over fewer ranks */
    LS_ROLE_LOADER,         /* on a GPU: the same with images that are decoded from files */
    LS_ROLE_UNFUSED,        /* on a GPU, where rows have fused products: the same without */
    LS_ROLE_WAY,            /* another way to train the same images on the same cores (ls_way) */
    LS_ROLE_CURVES,         /* several independent runs of a small network, for their losses */
    LS_ROLE_SDC,     /* every rank trains the same, alone on its device: their bits are compared */
    LS_ROLE_UNKNOWN, /* read back from a folder without job.json, or from a later version */
    LS_ROLE_COUNT,
} ls_role;

/* What PROFILE=baselines compares, the same images a step on the same cores. */
typedef enum ls_way {
    LS_WAY_NONE,
    LS_WAY_DDP,         /* the row of the matrix: a process a device, Apex's rules */
    LS_WAY_DDP_TORCH,   /* torch's rules */
    LS_WAY_ONE_PROCESS, /* one device with all cores */
    LS_WAY_REPLICAS,    /* torch.nn.DataParallel */
    LS_WAY_STAGES,      /* two stages, one after the other */
    LS_WAY_PIPELINE,    /* two stages at once, on parts of the batch */
    LS_WAY_SGD_UNFUSED, /* DDP; the update is a pass for each operation on each tensor */
    LS_WAY_ADAM,        /* DDP with FusedAdam */
    LS_WAY_ADAM_UNFUSED,
    LS_WAYS,
} ls_way;

/* The wrapper in which each rank is started. */
typedef enum ls_wrap {
    LS_WRAP_NONE,
    LS_WRAP_ALONE, /* none of torchrun's variables is set: the trainer runs without DDP */
    LS_WRAP_KILL,  /* SIGKILL to `kill_rank` once it has written step `kill_step` */
    LS_WRAP_SHELL, /* every rank runs `script`, in which "$0" "$@" is the subject */
    LS_WRAP_EACH,  /* every rank is a run of its own, alone, with its options from `each` */
} ls_wrap;

/* The plots a job is a point of. */
enum { LS_SWEEP_LEVEL = 1, LS_SWEEP_BUCKET = 2, LS_SWEEP_WORLD = 4, LS_SWEEP_NODES = 8 };

enum { LS_SPEC_CLASSES = 10 }; /* of a job, where its data do not say another number */

#define LS_BUCKET_OWN (-1.0)  /* the dialect's own rule: no option is given */
#define LS_BUCKET_DELAYED 0.0 /* one reduction after the whole backward */

typedef struct ls_spec {
    ls_role role;
    ls_way way; /* of a row of PROFILE=baselines; else LS_WAY_NONE */
    char arch[32];
    int image_size, batch_size; /* batch: images per rank and step (per micro-step with accumulate);
                                   0: none given */
    int num_classes;
    int level;    /* 0 to 3; -1: no option is given */
    char half[8]; /* "fp16", "bf16" */
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
    int parts;     /* way of one process: of its batch, each with batch statistics of its own; else
                      0 */
    int threads;   /* 0: cores / ranks */
    int resident;  /* synthetic batches that stay on the device; 0: each step's is loaded */
    int gpus;      /* of a machine, that ranks use; 0: cores, or a GPU that is emulated on them */
    bool deterministic;
    bool fuse;    /* products of the device's library that also sum (lockstep-train --fuse) */
    bool engines; /* of the device's library: chosen by time and kept in the run's engines.txt */
    double lr;
    char extra[512]; /* further options, blank between; {self} is this job's folder, {run} the
                        run's, {job:ID} another job's, {bin} our programs' */
    ls_wrap wrap;
    char each[1024]; /* LS_WRAP_EACH: further options of rank 0, 1, ..., divided by '|' */
    int kill_rank, kill_step;
    const char *script; /* for sh -c; a literal; {bin} is our programs' folder */
    int repeat;         /* a number, for equal jobs that must run more than once */
    unsigned sweep;
    double limit_s; /* 0: from the estimate */
    double
        grace_s; /* time for the others to leave after the first failure; 0: the launcher's 5 s */
} ls_spec;

/* "no_comm", as job.json, summary.json and the tables have it; "" for LS_ROLE_UNKNOWN. */
const char *ls_spec_role_name(ls_role role);
/* The role of that name. The names of schema 1 (twin, self, strong) are read until schema 3. */
ls_role ls_spec_role_of(const char *name);
/* "data-parallel", "" for LS_WAY_NONE. */
const char *ls_spec_way_name(ls_way way);
/* Several devices in its one process. */
bool ls_spec_is_team(const ls_spec *spec);
/* "O2"; "" for -1, no level. */
const char *ls_spec_level_name(int level);
/* Whether its nodes are simulated on one machine. */
bool ls_spec_is_simulated(const ls_spec *spec);
/* Whether its steps are timed: a row of the matrix, or a baseline of one. */
bool ls_spec_is_timed(const ls_spec *spec);
/* Timed, and its images per second are a result once its checks have passed: all but no_comm, whose
 * ranks drift apart. */
bool ls_spec_has_rate(const ls_spec *spec);
/* Whether it is no row of the matrix, but run for rows to be compared with. */
bool ls_spec_is_baseline(const ls_spec *spec);

/* A new object with the members of job.json's facts that follow from the spec. */
struct cJSON *ls_spec_facts(const ls_spec *spec);
/* The spec as far as facts hold it (`facts` may be NULL); the rest is 0 or "", level -1 and bucket
 * LS_BUCKET_OWN where none was given. */
void ls_spec_read(const struct cJSON *facts, ls_spec *out);

#endif
