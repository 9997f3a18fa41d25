/* The parts of `lockstep plan`. What becomes of a run's files:
 *
 *   run.json, jobs/  -> harness/report: medians of the phases of one job, of its no_comm job, spans
 *   facts of the job -> the network's gradients, each with its share of backward
 *   bucket times     -> least squares: seconds a message and a byte (or both are given)
 *   N, way, size     -> ls_buckets_rebuild's layout -> a queue during backward -> exposed, step
 *   all of these     -> the terminal, plan.json, tables/plan.tsv, plots/plan.svg
 */
#ifndef LS_PLAN_INTERNAL_H
#define LS_PLAN_INTERNAL_H

#include "harness/report/job.h"
#include "reference/ddp/buckets.h"

/* ---- plan_model.c: pure functions ------------------------------------------------------------ */

/* A link as a bucket meets it: what reaches its end. bytes_per_s INFINITY: none is in the way. */
typedef struct ls_plan_link {
    double bytes_per_s, message_s;
} ls_plan_link;

typedef struct ls_plan_cluster {
    ls_plan_link between; /* all adapters of a node together */
    ls_plan_link inside;  /* of each GPU, to the others of its node */
    int gpus_per_node;
} ls_plan_cluster;

typedef enum ls_plan_way {
    LS_PLAN_RING,
    LS_PLAN_TREE,
    LS_PLAN_HIERARCHICAL,
    LS_PLAN_WAYS
} ls_plan_way;

const char *ls_plan_model_way_name(ls_plan_way way);
/* An all-reduce of `bytes` over `gpus` in full nodes, alone on its links; 0 for one GPU. */
double ls_plan_model_reduce_ms(const ls_plan_cluster *cluster, ls_plan_way way, int gpus,
                               double bytes);

/* The parts of a step on one GPU that reduces nothing, in ms. */
typedef struct ls_plan_parts {
    double data_ms, forward_ms, backward_ms, optimizer_ms, rest_ms;
    double overlapped; /* share of backward in which buckets become full: of its last micro-step */
    double core_ms_per_byte; /* that a reduced byte takes from the cores of backward */
    double waited_ms;        /* for ranks that come later, on several GPUs */
} ls_plan_parts;

double ls_plan_model_alone_ms(const ls_plan_parts *parts);

typedef struct ls_plan_bucket {
    double ready; /* when it is full: share of backward, 0 to 1 */
    double bytes, reduce_ms;
} ls_plan_bucket;

typedef struct ls_plan_step {
    double step_ms, backward_ms, exposed_ms;
} ls_plan_step;

/* Buckets are reduced in their order, one at a time, each when it is full and the one before is
 * done. While one is reduced, backward loses the cores' time that its bytes take. */
ls_plan_step ls_plan_model_step(const ls_plan_parts *parts, const ls_plan_bucket *bucket,
                                int count);

/* A measured time of `messages` all-reduces, of `bytes` together. */
typedef struct ls_plan_time {
    double messages, bytes, ms;
} ls_plan_time;

typedef struct ls_plan_fit {
    ls_plan_link link;
    int count;
    double error; /* median |fitted / measured - 1| */
} ls_plan_fit;

/* Least squares of the relative errors of ring all-reduces over `world` ranks; message_s is at
 * least 0. False with fewer than two sizes. */
bool ls_plan_model_fit(const ls_plan_time *time, int count, int world, ls_plan_fit *out);

/* ---- plan_run.c: what a run has measured ----------------------------------------------------- */

typedef struct ls_plan_run {
    ls_report_run report;
    const ls_report_job *job;
    ls_network network;
    ls_bucket_item *item; /* [param_count] */
    int *order;           /* [param_count] as gradients become ready */
    double *ready;        /* [param_count] shares of backward */
    int anchors;          /* traced buckets that `ready` follows */
    ls_plan_parts parts;
    bool gloo, has_alone; /* has_alone: backward without reductions was measured */
    double exposed_ms;    /* as measured */
    ls_plan_fit fit;      /* fitted to its own bucket times; count 0: none */
} ls_plan_run;

/* `name`: of a timed job, with * and ?, or NULL. LS_ERR_USAGE where none has times of its phases,
 * LS_ERR_UNSUPPORTED where its buckets are not those of its options. */
ls_status ls_plan_run_read(const char *directory, const char *name, ls_plan_run *out);
void ls_plan_run_free(ls_plan_run *run);
/* The layout of a bucket size in MiB; NaN: the job's own. */
void ls_plan_run_layout(const ls_plan_run *run, double bucket_mb, ls_bucket_layout *out);
/* Fills bucket[layout->bucket_count], but for reduce_ms; returns their number. */
int ls_plan_run_buckets(const ls_plan_run *run, const ls_bucket_layout *layout,
                        ls_plan_bucket *bucket);
/* The all-reduces that lockstep-collectives measured into this folder. */
ls_status ls_plan_run_read_link(const char *directory, ls_plan_fit *out);

#endif
