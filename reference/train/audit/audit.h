/* The audit inside a job (numerics.md section 5, FP64 samples): at seeded steps, elements of
 * everything that the step writes in backend memory are computed once more in FP64 from the
 * operands it read, by kernels of the judge (oracle/audit/audit.h): every operation of the plan,
 * unscaling, the update, and every bucket against the sum of all ranks' elements. An audited step
 * is enqueued piece by piece, not launched as a graph; its event says `audited`, and its time is in
 * no figure.
 *
 * All calls but ls_audit_due do nothing where audit is NULL. Between begin and end of a step that
 * is not due they do nothing either. */
#ifndef LS_AUDIT_H
#define LS_AUDIT_H

#include "reference/oracle/audit/audit.h"
#include "reference/state/step_observer.h"
#include "reference/train/trainer.h"

typedef struct ls_audit ls_audit;

/* One step of each `audit_every`, drawn from the seed, the same on all ranks. Counted from the
 * first step never the first two of them (of a run: buckets settle there; with `audit_every` 1 or 2
 * every step); from `audit_from` any of them, and none before it. */
bool ls_audit_due(const ls_options *options, int64_t step);

/* *out is NULL where no audit was asked for. */
ls_status ls_audit_open(ls_trainer *trainer, ls_audit **out);
void ls_audit_close(ls_audit *audit);

/* Subscribes to a step that is due, and to the plan's operations, until ls_audit_end. */
ls_status ls_audit_begin(ls_audit *audit, int64_t step, ls_step_observers *observers);
/* The verdicts are copied to the host, ahead of the step's state. */
ls_status ls_audit_end(ls_audit *audit);

/* When the step's state has arrived: writes the event of an audited step. LS_ERR_CHECK after a line
 * for each output (at most 8) that holds what it may not. ms: the step's. */
ls_status ls_audit_judge(ls_audit *audit, int64_t step, double ms);
/* Rank 0 logs one line: the audited steps and elements, and their share of the job's time. */
void ls_audit_print(const ls_audit *audit);

/* The audit's data. */

enum {
    LS_AUDIT_STEP_OUTPUTS = 4,
};

/* Whose a verdict is. */
typedef struct ls_audit_name {
    char operation[64], output[48];
} ls_audit_name;

/* A bucket on its way. */
typedef struct ls_audit_bucket {
    double *mine, *all; /* [samples], [world][samples] */
    ls_audit_sample *sample;
    ls_event *picked;
    ls_comm_handle handle;
    char label[32];
} ls_audit_bucket;

struct ls_audit {
    ls_trainer *trainer;
    const ls_audit_api *judge;
    /* backend memory */
    void *room;                  /* of one operation after the other */
    char *rooms;                 /* of operations on many tensors: all before, then all after */
    double *stats;               /* of batch norms, by stats_at */
    ls_audit_verdict *verdict;   /* [most] */
    int64_t *stats_at;           /* [layer_count] doubles before a layer's */
    ls_audit_verdict *found;     /* on the host; for a device pinned */
    ls_audit_name *name;         /* [most] */
    int count, most;             /* verdicts of a step */
    int many_before, many_after; /* rooms in use */
    uint64_t number;             /* of operations looked at */
    bool active;
    int64_t step;
    ls_audit_bucket *bucket; /* [bucket_count] */
    int bucket_count;
    void *bucket_memory;
    ls_step_observer observer;
    bool has_batch;
    uint64_t batch; /* digest of what the step trains on */
    /* of the whole run */
    int64_t steps, outputs, elements;
    double worst, audited_ms, other_ms, total_ms;
    int64_t others;
    ls_audit_name worst_name;
    char unaudited[128];
};

/* The callback of plan_observe. */
ls_status ls_audit_observe(void *context, ls_stream *stream, const ls_observed *what, bool after);

#endif
