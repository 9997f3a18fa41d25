/* LS_RUN_DIR/rank<k>.jsonl: a rank's reports to the harness (protocol.md). Each event is one whole
 * line, written with one write. Without LS_RUN_DIR every call does nothing and succeeds. A full
 * disk is LS_ERR_INFRA: a run whose record is incomplete must not end with 0. */
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
    int restart;        /* how often the launcher had started the ranks again; 0: left out */
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
/* The first line. */
ls_status ls_events_write_start(ls_events *events, const ls_events_start *start);

/* Whenever a layout takes effect; `iteration` is the first step that uses it. */
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

/* Sums over pictures. */
typedef struct ls_events_score {
    int64_t images, top1, top5; /* whose class has the largest logit, one of the five largest */
    int64_t bad;                /* that could not be read; validation counts them in no other sum */
    double loss; /* of softmax cross entropy, as it is trained; the event has the mean */
} ls_events_score;
/* After the last step of an epoch, and after every validation. epoch: passes over the data that are
 * complete; train: of the steps since the event before, of all ranks; val: of all ranks, own: of
 * this one; NULL: left out. seconds: of the validation. */
ls_status ls_events_write_epoch(ls_events *events, int64_t epoch, int64_t step,
                                const ls_events_score *train, const ls_events_score *val,
                                const ls_events_score *own, double seconds);

/* The caller then leaves with exit code 4. */
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
    const char *operation, *output; /* of the element that was nearest to its limit, or past it */
    int64_t index;
    double ratio, got, wanted, limit;
    bool has_batch;
    uint64_t batch;      /* ls_loader_digest of the step's micro-batches, from 0 */
    double ms, usual_ms; /* this step's, and what others took; 0: not known */
} ls_events_audit;
/* {"event":"audit","step","outputs","elements","bad","unaudited","worst":{"operation","output",
 * "index","ratio","got","wanted","limit"},"batch","ms","usual_ms"}; numbers that are not finite are
 * null; no "batch" where the host does not hold it (--resident). */
ls_status ls_events_write_audit(ls_events *events, const ls_events_audit *audit);

/* A line of its own, such as those of a job under `lockstep observe` (train/journal.h); frees it.
 */
struct cJSON;
struct cJSON *ls_events_begin(const char *name); /* {"event":name} */
/* As 16 hexadecimal digits. */
void ls_events_add_hex(struct cJSON *object, const char *name, uint64_t value);
ls_status ls_events_write_line(ls_events *events, struct cJSON *event);
/* "param", "master", ...: the names of groups of digests. */
const char *ls_events_group_name(ls_digest_group group);

/* The last line: of the last step done, and how many were skipped. */
ls_status ls_events_write_end(ls_events *events, int64_t step, ls_status status, int64_t skipped);

/* ---- training curves ------------------------------------------------------------------------- */

/* Training curves for TensorBoard: <directory>/events.out.tfevents.<seconds>.<host>.<pid>, written
 * by rank 0. A TFRecord file: each record is {u64 length, u32 masked crc32c of the length, data,
 * u32 masked crc32c of the data}, little-endian, mask(c) = rotate_right(c, 15) + 0xa282ead8; the
 * data is a tensorflow.Event in protobuf wire format. */

typedef struct ls_tensorboard ls_tensorboard;

/* Makes the directory where it is missing and writes the version record. */
ls_status ls_tensorboard_open(const char *directory, ls_tensorboard **out);
void ls_tensorboard_close(ls_tensorboard *board); /* NULL is allowed */

typedef struct ls_tensorboard_scalar {
    const char *tag; /* NULL: left out */
    float value;
} ls_tensorboard_scalar;
/* One event with the scalars, one write. NULL board: does nothing. A full disk is LS_ERR_INFRA. */
ls_status ls_tensorboard_write(ls_tensorboard *board, int64_t step,
                               const ls_tensorboard_scalar *scalar, int count);

/* CRC-32C (Castagnoli, reflected 0x82f63b78) and its mask, for readers. */
uint32_t ls_tensorboard_crc32c(const void *data, size_t bytes);
uint32_t ls_tensorboard_mask(uint32_t crc);

/* ---- MLPerf's log ---------------------------------------------------------------------------- */

/* MLPerf's training log: lines ":::MLLOG {...}" as mlperf_logging.mllog writes them, one write
 * each: namespace, time_ms, event_type, key, value and metadata. Rank 0 writes them. A full disk is
 * LS_ERR_INFRA. */

typedef struct ls_mllog ls_mllog;

/* path "-": standard output. append: lines are added, as a resumed run does; else the file is begun
 * anew. LS_ERR_USAGE, logged, where it cannot be written. */
ls_status ls_mllog_open(const char *path, bool append, ls_mllog **out);
void ls_mllog_close(ls_mllog *log); /* NULL is allowed */

/* Every call does nothing where log is NULL. epoch: metadata's epoch_num; 0: none. */
ls_status ls_mllog_interval(ls_mllog *log, const char *key, bool begins, int64_t epoch);
ls_status ls_mllog_number(ls_mllog *log, const char *key, double value, int64_t epoch);
ls_status ls_mllog_text(ls_mllog *log, const char *key, const char *value);
/* The end of the run: metadata's status is "success" or "aborted". */
ls_status ls_mllog_stop(ls_mllog *log, bool success);

#endif
