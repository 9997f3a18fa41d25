/* A finished job as it is read back from its folder: job.json and every rank's events. It is the
 * one model of a job that has ended: the judge and the report read nothing else of its folder but
 * dumps and GPU readings. A launcher that is not ours leaves the same record, without job.json. */
#ifndef LS_RECORD_H
#define LS_RECORD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"
#include "spec.h"

/* The newest schema of a rank's events that is read, of those from 1. */
enum { LS_RECORD_SCHEMA = 2 };

typedef enum ls_record_digest {
    LS_RECORD_PARAM,
    LS_RECORD_MASTER,
    LS_RECORD_STATE,
    LS_RECORD_SCALER,
    LS_RECORD_BUFFER,
    LS_RECORD_GRAD,
    LS_RECORD_DIGESTS,
} ls_record_digest;

/* One step event. Members that the subject leaves out: numbers NaN, images 0, loss_bits "", skipped
 * false, digests absent. */
typedef struct ls_record_step {
    int64_t step; /* from 1, global over resumes */
    double loss, loss_scale, loss_scale_next, lr;
    char loss_bits[16];
    bool loss_lost; /* the loss is given, and is infinite or not a number */
    bool skipped, skip_given;
    bool joined;  /* the rank's data had ended: it took part with zeros, and has no loss */
    int active;   /* ranks that had a batch; 0: all */
    bool audited; /* on this or another rank: its time is part of no figure */
    int64_t images;
    int64_t bad_images; /* of them, those that others took the places of */
    int64_t top1, top5; /* of them; -1: not given */
    double grad_norm;   /* before clipping; NaN: not given, or no number */
    bool norm_given;
    double at_ns; /* when it ended, ls_clock_ns */
    double total_ms, data_ms, forward_ms, backward_ms, comm_ms, exposed_ms, optimizer_ms;
    double instrument_ms; /* digests and dumps, which are no part of total_ms */
    unsigned digest_mask; /* bit ls_record_digest: it was given */
    char digest[LS_RECORD_DIGESTS][20];
} ls_record_step;

typedef struct ls_record_rank {
    bool has_events;
    cJSON *start;       /* the start event, or NULL */
    cJSON *buckets;     /* the last layout that took effect, or NULL */
    cJSON *unsupported; /* or NULL */
    cJSON *epochs;      /* a list of the epoch events, or NULL */
    /* From the start event: */
    int threads;     /* 0: not reported */
    char device[96]; /* "NVIDIA H200 (GPU-...)" */
    char level[8];   /* the options' own: jobs of independent runs have several */
    /* On a device that can launch steps as graphs, the latest report of whether they were: */
    bool graph_reported;
    char no_graph[80];      /* why not; "": they were */
    double reduced_bytes;   /* in one step, by the last layout; NaN without one */
    int audits, bad_audits; /* audited steps, and those in which an element was wrong, or
                               none or not every part was looked at */
    int step_count;
    ls_record_step *step;
    bool ended;           /* wrote its end event */
    int end_code;         /* as that says; -1: it does not */
    int code, signal;     /* of the process, from job.json; code -1: unknown */
    double rss_bytes_max; /* from job.json, or NaN */
} ls_record_rank;

typedef enum ls_record_state {
    LS_RECORD_UNKNOWN, /* no job.json: another launcher ran it, or the run was cut short */
    LS_RECORD_DONE,
    LS_RECORD_FAILED,
    LS_RECORD_KILLED,
    LS_RECORD_TIMED_OUT,
    LS_RECORD_STOPPED,
    LS_RECORD_NOT_STARTED,
} ls_record_state;

typedef struct ls_record {
    char directory[PATH_MAX];
    char id[128]; /* the folder's name */
    char label[96];
    ls_spec spec; /* from the facts of job.json */
    /* Further facts: of the place, and of the judgement once there was one. */
    bool oversubscribed, half_emulated;
    char half_products[128]; /* "bf16 on AMX", as the run says at its start; "": it does not */
    bool judged;             /* `checked` says something */
    bool checked;            /* its checks passed: its speed is a result */
    int gradient_check;      /* check of numerics.md section 5 that its own shape passed; 0: none */
    bool audited;            /* and check 3, FP64 samples */
    ls_record_state state;
    int first_rank, code, signal;
    long memory_kills;          /* by the kernel, for lack of memory, while it ran */
    double seconds, started_ns; /* started_ns: ls_clock_ns; NaN: not reported */
    int world;                  /* ranks that are read, at most LS_HOSTS_RANKS_MAX */
    ls_record_rank *rank;       /* [world] */
    cJSON *job;                 /* the whole of job.json, or NULL */
    char why[360]; /* of a host that started no rank or was lost: the last line it wrote; or "" */
    char broken[360]; /* the first line of events that may not stand there; "": none */
} ls_record;

typedef enum ls_record_mode {
    LS_RECORD_STRICT, /* for judging: events that break the protocol are reported in `broken`, and
                         what follows them is not read; a folder without anything is an error */
    LS_RECORD_LENIENT /* for reporting: whatever can be read of a run that may have been cut short
                       */
} ls_record_mode;

/* Reads a job's folder. Strict: LS_ERR_USAGE when there is neither job.json nor any rank's events,
 * or job.json is broken (named); LS_ERR_INFRA when a file cannot be read. Lenient: always LS_OK; a
 * file that is broken or cannot be read is logged and counts as none. `world` of a folder without
 * job.json: as the start events say, or the highest rank<k>.jsonl. */
ls_status ls_record_read(const char *directory, ls_record_mode mode, ls_record *out);
/* The same; visit(context, rank, event, line) is called for each event that the rank's file may
 * have there, in its order. Reading ends with its error. */
typedef ls_status ls_record_visit(void *context, int rank, const cJSON *event, int line);
ls_status ls_record_read_with(const char *directory, ls_record_mode mode, ls_record_visit *visit,
                              void *context, ls_record *out);
void ls_record_free(ls_record *record);
/* The facts of job.json, or NULL. */
const cJSON *ls_record_facts(const ls_record *record);
/* The step event of that number, or NULL. */
const ls_record_step *ls_record_find_step(const ls_record_rank *rank, int64_t step);
/* Calls visit for every event of that name, in the order of the file: for events that the record
 * does not hold (`trace`, `collective`, ...). LS_ERR_INFRA when the file cannot be read or a line
 * is no JSON. */
ls_status ls_record_each_event(const ls_record *record, int rank, const char *event,
                               ls_json_visit *visit, void *context);
/* The last line of a rank's log that is not empty, cut to bytes; "" when there is none. */
void ls_record_last_line(const ls_record *record, int rank, char *text, int bytes);
/* The last `count` of them. */
void ls_record_last_lines(const ls_record *record, int rank, int count, char *text, size_t bytes);
const char *ls_record_digest_name(ls_record_digest which); /* "param" */

/* What a job's machine did not give it: memory, threads, descriptors, room on a disk. A job that
 * ended for such a lack has shown nothing about its subject. */

/* Whether a rank ended for a lack: it left with code 3 (126, 127: its command could not be loaded)
 * and its end event says no other code, or badly and with a line in its log that is of such a lack
 * (the table in record.c), or was killed while the kernel killed for memory, or the job was not
 * started. text: "rank=1 out of memory: LINE". takes_disk: the job's own case lets a disk be full,
 * and only other lacks count, by their words. */
bool ls_record_lack(const ls_record *job, bool takes_disk, char *text, size_t bytes);
/* Processes that the kernel has killed so far because this process's cgroup, or one above it, had
 * no memory left; 0: none, or unknown. */
long ls_record_kills(void);

/* ---- verdict_code.c ---------------------------------------------------------------------------
 */

/* The closed set of verdicts on a case, and the words of verdicts.jsonl for them. */

/* Inside a claim everything but PASS and WAIVED fails. */
typedef enum ls_verdict_code {
    LS_PASS,
    LS_WEAK,   /* the evidence does not carry */
    LS_SKIP,   /* not judged: the run was stopped before its jobs had run */
    LS_WAIVED, /* would not pass, and lists/waivers.txt says why that is accepted */
    LS_FAIL,
    LS_CRASH,
    LS_TIMEOUT,
    LS_UNSUPPORTED, /* the subject refused with exit code 4, or left out what the case needs */
    LS_INFRA,       /* machine, disk, port: not the subject */
    LS_VERDICT_CODES,
} ls_verdict_code;

const char *ls_verdict_name(ls_verdict_code code); /* "PASS"; "?" for LS_VERDICT_CODES */
/* The code of that name, or LS_VERDICT_CODES. */
ls_verdict_code ls_verdict_code_of(const char *name);
/* That of a line of verdicts.jsonl: a PASS that says that nothing was compared is WEAK; older lines
 * do not say what was. */
ls_verdict_code ls_verdict_code_in(const cJSON *line);
bool ls_verdict_good(ls_verdict_code code); /* PASS, WAIVED */

#endif
