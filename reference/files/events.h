/* LS_RUN_DIR/rank<k>.jsonl: a rank's reports to the harness (protocol.md). Each event is
 * one whole line, written with one write. Without LS_RUN_DIR every call does nothing and succeeds.
 * A full disk is LS_ERR_INFRA: a run whose record is incomplete must not end with 0. */
#ifndef LS_EVENTS_H
#define LS_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "reference/ddp/buckets.h"
#include "reference/options/options.h"
#include "reference/state/digest.h"

typedef struct ls_events ls_events;

/* run_directory: the value of LS_RUN_DIR; NULL or "": no events. It is created if it is absent, its
 * parent is not. The file begins empty; with `append` (a resumed run in the same directory) lines
 * are added. */
ls_status ls_events_open(const char *run_directory, int rank, bool append, ls_events **out);
void ls_events_close(ls_events *events); /* NULL is allowed */
bool ls_events_enabled(const ls_events *events);

typedef struct ls_events_start {
    int rank, world, local_rank, local_world, node;
    const char *backend;         /* "cpu", "cuda" */
    const ls_backend_info *info; /* device and libraries in use */
    const char *engine;          /* "self", "gloo", "nccl" */
    const char *engine_text;     /* the engine's description, or NULL */
    const char *transport;       /* comm.h, or NULL */
    const ls_options *options;
    int64_t first_step; /* 1, or where a resumed run goes on */
    int64_t param_elements;
    uint64_t network_digest; /* 0: left out */
    const char *fusions;     /* of the plan, or NULL */
    const char *products;    /* of the plan, or NULL or "" */
    const char *layout;      /* of the plan's activations, or NULL */
    bool tells_graph;        /* the device could launch steps as graphs, and does so or not: */
    const char *no_graph;    /* why not, or NULL */
    int64_t activation_bytes, workspace_bytes;
    const struct cJSON *memory; /* bytes by kind of tensor (memory.h), copied; or NULL */
} ls_events_start;
/* The first line: {"event":"start","schema":1, "version", "rank", "world", ..., "options":{...}}.
 */
ls_status ls_events_write_start(ls_events *events, const ls_events_start *start);

/* Whenever a layout takes effect:
 * {"event":"buckets","iteration":N,"delayed":b,"digest":"..","buckets":
 * [{"bytes","elements","type","names":[..]}]}. `iteration` is the first step that uses it. */
ls_status ls_events_write_buckets(ls_events *events, int64_t iteration,
                                  const ls_bucket_layout *layout, const ls_network *network);

/* From this step on they are not launched as graphs, other than the start event said:
 * {"event":"graph","step":N,"cuda_graph":"why"}. */
ls_status ls_events_write_graph(ls_events *events, int64_t step, const char *why);

typedef enum ls_events_ms {
    LS_EVENTS_MS_TOTAL, /* wall time since the previous step ended, data included */
    LS_EVENTS_MS_DATA,
    LS_EVENTS_MS_FORWARD,
    LS_EVENTS_MS_BACKWARD,
    LS_EVENTS_MS_COMM,
    LS_EVENTS_MS_OPTIMIZER,
    LS_EVENTS_MS_COMM_EXPOSED, /* waiting for the last reductions after its own backward has ended
                                */
    LS_EVENTS_MS_INSTRUMENT,   /* digests and dumps; not part of total */
    LS_EVENTS_MS_COUNT,
} ls_events_ms;

/* One of several losses (an example's). */
typedef struct ls_events_loss {
    float loss, loss_scale, loss_scale_next;
} ls_events_loss;

typedef struct ls_events_step {
    int64_t step; /* from 1, global over resumes */
    float loss;   /* this rank's mean, unscaled */
    float loss_scale, loss_scale_next;
    bool skipped;
    bool audited; /* its time is that of the audit, too, and no figure contains it */
    float lr;     /* used in this step */
    bool scored;
    int64_t top1, top5; /* of its images; where `scored` */
    bool joined;        /* its data has ended (--join): there is no loss */
    int active;         /* ranks that had a batch, where that is not all; else 0 */
    int64_t images;     /* this rank's, */
    int64_t bad_images; /* and of them those that could not be read: others took their places */
    bool norm_given;
    float grad_norm; /* of all unscaled gradients, before they are clipped; where `norm_given` */
    int64_t at_ns;   /* when the step ended, ls_clock_ns; 0: left out */
    ls_digest_set digest;
    bool ms_given[LS_EVENTS_MS_COUNT];
    double ms[LS_EVENTS_MS_COUNT];
    /* of examples: loss_scale is that of losses[0], skipped: every optimizer skipped */
    int loss_count, optimizer_count;
    const ls_events_loss *losses;
    const bool *optimizer_skipped;
} ls_events_step;
/* Where `joined`, "joined" is true and loss, loss_bits, top1 and top5 are left out; loss_bits is
 * the f32's bits as "0x3f8ccccd"; digests are strings of 16 hexadecimal digits; a loss that is inf
 * or NaN is null (JSON has neither), its bits say which. */
ls_status ls_events_write_step(ls_events *events, const ls_events_step *step);

/* Means and counts over pictures. */
typedef struct ls_events_score {
    int64_t images, top1, top5; /* whose class has the largest logit, one of the five largest */
    int64_t bad;                /* that could not be read */
    double loss;                /* the mean */
} ls_events_score;
/* After the last step of an epoch, and after every validation. train: of the steps since the event
 * before, of all ranks; val: of all ranks, own: of this one; NULL: left out.
 * {"event":"epoch","epoch":passes over the data that are
 * complete,"step":S,"train":{"images","loss", "top1","top5"},"val":{..},"val_own":{..},"seconds":of
 * the validation}. Where some could not be read, their number is "bad_images". */
ls_status ls_events_write_epoch(ls_events *events, int64_t epoch, int64_t step,
                                const ls_events_score *train, const ls_events_score *val,
                                const ls_events_score *own, double seconds);

/* {"event":"unsupported","option":"--sync-bn-group","why":".."}; the caller then leaves with exit
 * code 4. */
ls_status ls_events_write_unsupported(ls_events *events, const char *option, const char *why);

typedef struct ls_events_span {
    const char *name;       /* "forward", "backward", "bucket 0" */
    bool communication;     /* lane "communication", else "compute" */
    int64_t from_ns, to_ns; /* ls_clock_ns */
} ls_events_span;
/* {"event":"trace","step":N,"spans":[{"name","lane","from_ns","to_ns"}]}: harness/report/report.h
 */
ls_status ls_events_write_trace(ls_events *events, int64_t step, const ls_events_span *span,
                                int count);

/* What an audited step has shown (audit.h). */
typedef struct ls_events_audit {
    int64_t step, outputs, elements, bad;
    const char *unaudited; /* "update, compression": parts of the step that it cannot judge */
    char operation[64], output[48]; /* of the element that was nearest to its limit, or past it */
    int64_t index;
    double ratio, got, wanted, limit;
    bool has_batch;
    uint64_t batch;      /* ls_loader_digest of the step's micro-batches, from 0 */
    double ms, usual_ms; /* this step's, and what others took; 0: not known */
} ls_events_audit;
/* {"event":"audit","step":N,"outputs":..,"elements":..,"bad":0,"unaudited":"","worst":{"operation",
 * "output","index","ratio","got","wanted","limit"},"batch":"..","ms":..,"usual_ms":..}; numbers
 * that are not finite are null; no "batch" where the host does not hold it (--resident). */
ls_status ls_events_write_audit(ls_events *events, const ls_events_audit *audit);

/* A line of a job under `lockstep observe` (train/journal.h), which is freed. */
struct cJSON;
ls_status ls_events_write_observed(ls_events *events, struct cJSON *event);

/* The last line: {"event":"end","step":last step done,"code":0,"status":"ok","skipped":how many}.
 */
ls_status ls_events_write_end(ls_events *events, int64_t step, ls_status status, int64_t skipped);

#endif
