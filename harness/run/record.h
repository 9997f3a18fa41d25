/* A finished job as it can be read back from its folder: job.json and every rank's events. Whoever
 * ran it, our harness or somebody else's launcher, the judge sees the same record. */
#ifndef LS_RECORD_H
#define LS_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

typedef enum ls_record_digest {
    LS_RECORD_PARAM,
    LS_RECORD_MASTER,
    LS_RECORD_STATE,
    LS_RECORD_SCALER,
    LS_RECORD_BUFFER,
    LS_RECORD_GRAD,
    LS_RECORD_DIGESTS,
} ls_record_digest;

/* One step event. What the subject left out: loss and scales NaN, loss_bits "", digests absent. */
typedef struct ls_record_step {
    int64_t step; /* from 1, global over resumes */
    double loss, loss_scale, loss_scale_next, lr;
    char loss_bits[16];
    bool skipped;
    int64_t images;
    double total_ms;
    unsigned digest_mask; /* bit ls_record_digest: it was given */
    char digest[LS_RECORD_DIGESTS][20];
} ls_record_step;

typedef struct ls_record_rank {
    bool has_events;
    cJSON *start;       /* the start event, or NULL */
    cJSON *buckets;     /* the last layout that took effect, or NULL */
    cJSON *unsupported; /* or NULL */
    int step_count;
    ls_record_step *step;
    bool ended;       /* wrote its end event */
    int end_code;     /* as that says; -1: it does not */
    int code, signal; /* of the process, from job.json; code -1: unknown */
} ls_record_rank;

typedef enum ls_record_state {
    LS_RECORD_UNKNOWN, /* no job.json: somebody else's launcher ran it */
    LS_RECORD_DONE,
    LS_RECORD_FAILED,
    LS_RECORD_KILLED,
    LS_RECORD_TIMED_OUT,
    LS_RECORD_STOPPED,
    LS_RECORD_NOT_STARTED,
} ls_record_state;

typedef struct ls_record {
    char directory[512];
    ls_record_state state;
    int first_rank, code, signal;
    double seconds;
    int world;
    ls_record_rank *rank; /* [world] */
    cJSON *job;           /* the whole of job.json, or NULL */
    char why[360];        /* of a host that started no rank or was lost: its last words; or "" */
    char broken[360];     /* the first line of events that is none, shown; "" where all are */
} ls_record;

/* Reads a job's folder. LS_ERR_USAGE when there is neither job.json nor any rank's events, or
 * job.json is broken (named). Events that break the protocol are told in `broken`. `world` of a
 * folder without job.json: the number of rank<k>.jsonl files in a row. */
ls_status ls_record_read(const char *directory, ls_record *out);
void ls_record_free(ls_record *record);
/* The facts of job.json, or NULL. */
const cJSON *ls_record_facts(const ls_record *record);
/* The step event of that number, or NULL. */
const ls_record_step *ls_record_find_step(const ls_record_rank *rank, int64_t step);
/* The last line of a rank's log that is not empty, cut to bytes; "" when there is none. */
void ls_record_last_line(const ls_record *record, int rank, char *text, int bytes);
const char *ls_record_digest_name(ls_record_digest which); /* "param" */

#endif
