/* The audit's data. */
#ifndef LS_AUDIT_INTERNAL_H
#define LS_AUDIT_INTERNAL_H

#include "reference/oracle/audit/audit.h"
#include "reference/state/step_observer.h"
#include "reference/train/trainer.h"

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

typedef struct ls_audit {
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
} ls_audit;

/* The callback of plan_observe. */
ls_status ls_audit_observe(void *context, ls_stream *stream, const ls_observed *what, bool after);

#endif
