/* The command line of `lockstep-train` (design.md section 4), parsed with argp: every option of the
 * subject protocol, long options also with underscores. A wrong value is one line that names the
 * option, the value and what is allowed, exit code 2, before anything is written. */
#ifndef LS_OPTIONS_H
#define LS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define LS_VERSION "0.1.0"

typedef enum ls_opt_level { LS_O0, LS_O1, LS_O2, LS_O3 } ls_opt_level;
typedef enum ls_dialect { LS_DIALECT_APEX, LS_DIALECT_TORCH } ls_dialect;
typedef enum ls_average { LS_AVERAGE_POST, LS_AVERAGE_PRE, LS_AVERAGE_NONE } ls_average;
typedef enum ls_tristate { LS_UNSET = -1, LS_FALSE = 0, LS_TRUE = 1 } ls_tristate;

/* Which ranks dump. Branches: rank 0 all of it, the others what a reference needs to follow them:
 * input, target, logits, loss and branches. */
typedef enum ls_dump_scope { LS_DUMP_RANK_0, LS_DUMP_ALL_RANKS, LS_DUMP_BRANCHES } ls_dump_scope;

/* Which digests a step's event carries (digest.h). */
typedef enum ls_digest_scope { LS_DIGEST_ALL, LS_DIGEST_PARAM, LS_DIGEST_NONE } ls_digest_scope;

/* Where a rank can be made to fail. */
typedef enum ls_fault_phase {
    LS_FAULT_JOIN, /* before it meets its peers, whatever the step */
    LS_FAULT_FORWARD,
    LS_FAULT_BACKWARD,
    LS_FAULT_REDUCTION, /* its first gradients are on their way */
    LS_FAULT_OPTIMIZER,
    LS_FAULT_DUMP,
    LS_FAULT_SAVE, /* everything for the checkpoint of that step is gathered, nothing written */
} ls_fault_phase;
typedef enum ls_fault_how { LS_FAULT_KILL, LS_FAULT_STOP, LS_FAULT_EXIT } ls_fault_how;
typedef struct ls_fault_at {
    int64_t step; /* 0: none */
    int rank;
    ls_fault_phase phase;
    ls_fault_how how;
} ls_fault_at;

/* What is trained through the amp library instead (reference/examples). */
typedef enum ls_example_kind {
    LS_EXAMPLE_NONE,
    LS_EXAMPLE_TWO_ENCODERS,
    LS_EXAMPLE_TWO_LOSSES,
} ls_example_kind;

/* Whether steps are recorded and launched as graphs (graph.h). */
typedef enum ls_graph_mode { LS_GRAPH_AUTO, LS_GRAPH_ON, LS_GRAPH_OFF } ls_graph_mode;

typedef struct ls_overflow_at {
    int64_t step;
    int rank; /* -1: every rank */
} ls_overflow_at;

/* What --overflow-at puts into a gradient, and where. */
typedef struct ls_overflow_as {
    float value;    /* INFINITY, -INFINITY or NAN */
    char param[64]; /* "": the parameter whose gradient is ready first */
    char place;     /* 'f'irst, 'm'iddle or 'l'ast element */
    int micro;      /* micro-step, from 0; -1: the last */
} ls_overflow_as;

enum { LS_OPTIONS_LIST_MAX = 64 };

typedef struct ls_options {
    /* network and batch */
    char arch[32];        /* resnet50 */
    int batch_size;       /* per rank, 32; from --global-batch / world where that is given */
    int64_t global_batch; /* 0: not given */
    int image_size;       /* 224 */
    int num_classes;      /* 10 */
    int64_t steps;        /* the step to stop after, also when resumed; 0: as many as epochs has */
    int64_t epochs; /* 0: no limit. With both the run ends at whichever comes first; with neither
                       given a folder of images is trained for 1 epoch, other data for 10 steps */
    /* precision */
    ls_opt_level opt_level; /* O1 */
    ls_dtype half;          /* LS_F16 */
    bool loss_scale_given;
    bool loss_scale_dynamic;
    float loss_scale;     /* the static value */
    float init_scale;     /* 65536 */
    int growth_interval;  /* 2000 */
    float min_loss_scale; /* 0: none */
    float max_loss_scale; /* 0: the dialect's */
    ls_tristate keep_batchnorm_fp32, master_weights;
    bool tf32;
    /* optimizer and schedule */
    ls_optimizer_kind optimizer;
    double lr; /* 0.1 */
    bool lr_scaling_linear;
    char schedule[64]; /* "constant", "step:30:0.1", "warmup:5,cosine:90", ...: schedule.h */
    double momentum, weight_decay; /* 0.9, 1e-4 */
    bool nesterov;
    double beta1, beta2;  /* 0.9, 0.999 */
    double epsilon;       /* 1e-8; lamb 1e-6 (Apex's) */
    double max_grad_norm; /* lamb: 1 */
    double trust;         /* lars: 0.02 */
    /* data parallel */
    ls_dialect dialect;
    double bucket_cap_mb; /* 0: the dialect's own rule; else MiB as reduced */
    int64_t message_size; /* elements; 0: the dialect's own rule */
    bool delay_allreduce, sync_bn, find_unused, allreduce_fp32;
    bool no_reduce; /* gradients stay local: what a step costs without the reduction */
    ls_tristate broadcast_buffers;        /* unset: the dialect's */
    int sync_bn_group;                    /* ranks that share statistics; 0: the world */
    int batch_size_count;                 /* 0: every rank has batch_size */
    int batch_sizes[LS_OPTIONS_LIST_MAX]; /* each rank's, in order of rank */
    int accumulate;                       /* 1 */
    bool compress;                        /* cast f32 gradients for the reduction */
    ls_dtype compress_type;
    bool average_given;
    ls_average average;
    double predivide; /* 1 */
    /* data */
    char data[512]; /* "synthetic", "batches:DIR", DIR */
    uint64_t seed;
    int workers;  /* loader threads, 2; 0: in the trainer's own */
    int resident; /* synthetic batches that stay on the device and take turns; 0: batches come anew
                   */
    /* running */
    ls_example_kind example; /* none */
    char device[8];          /* "cpu", "cuda", "auto" */
    bool deterministic;
    bool cudnn_benchmark; /* engines of products are timed at start, the fastest taken */
    ls_graph_mode graph;  /* auto */
    int threads;          /* 0: cores / local ranks */
    char init[512], save[512], resume[512]; /* "" where not given */
    int dump_step_count;
    int64_t dump_step[LS_OPTIONS_LIST_MAX]; /* steps that are not run are not dumped */
    ls_dump_scope dump_ranks;               /* rank 0 */
    char force_branches[512];               /* folder of another run's dumps; "": none */
    char comm[8];           /* "auto" (none in a world of one, else gloo or nccl), "self", "gloo" */
    double timeout_s;       /* deadline of the rendezvous and of every collective, 300 */
    ls_digest_scope digest; /* all */
    int64_t digest_every;   /* 1: after every step; else after each K-th and the last */
    bool audit;             /* elements of what a step writes are computed once more (audit.h) */
    uint64_t audit_seed;
    int64_t audit_every; /* one step of so many, 200 */
    bool trace;          /* events of what each step was busy with */
    int print_freq;      /* steps between two lines of rank 0; 0: none; 10 */
    int overflow_count;
    ls_overflow_at overflow[LS_OPTIONS_LIST_MAX];
    ls_fault_at fault;
    int aux_count; /* 0: there is no auxiliary head */
    ls_overflow_at aux[LS_OPTIONS_LIST_MAX];
    ls_overflow_as overflow_as;
} ls_options;

/* Parses argv, argv[0] being the program's name. argv itself is left as it is. Returns LS_ERR_USAGE
 * after one line on stderr, LS_ERR_UNSUPPORTED for something understood but not offered
 * (`unsupported_option` and `why` filled for the event). --help and --version print and exit 0
 * (argp). Values are checked one by one and against each other: opt level against overrides as
 * numerics.md section 7, world-independent rules only. */
ls_status ls_options_parse(int argc, char **argv, ls_options *out, char *unsupported_option,
                           char *why, int text_bytes);
/* The checks that need the environment: --global-batch is divided by world and accumulation into
 * batch_size, the ranks of --overflow-at exist, dumps have somewhere to go (run_directory:
 * LS_RUN_DIR, NULL where unset). */
ls_status ls_options_resolve(ls_options *options, int rank, int world, const char *run_directory);
/* Every value as without any argument, but for the two that parsing fills in (steps or epochs). */
void ls_options_defaults(ls_options *out);
/* The options as the `options` object of the start event, effective values, every field by its long
 * name. */
struct cJSON *ls_options_json(const ls_options *options);
const char *ls_options_level_name(ls_opt_level level); /* "O2" */

#endif
