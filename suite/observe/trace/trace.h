/* An observed job in memory: every rank's events, and the samples of its detailed steps
 * (events.md says what each member means). Members that an event leaves out: numbers NaN,
 * counts and indices -1, texts "", flags false with their `_given` false where a rule cares. */
#ifndef LS_OBSERVE_TRACE_H
#define LS_OBSERVE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "harness/run/record.h"
#include "reference/oracle/dumpfile.h"
#include "event.h"
#include "finding.h"

typedef enum ls_call_kind {
    LS_CALL_FORWARD,
    LS_CALL_SCALE,
    LS_CALL_BACKWARD,
    LS_CALL_UNSCALE,
    LS_CALL_CLIP,
    LS_CALL_SCALER_STEP,
    LS_CALL_OPTIMIZER_STEP,
    LS_CALL_UPDATE,
    LS_CALL_ZERO_GRAD,
    LS_CALL_SCHEDULE,
    LS_CALL_COLLECTIVE,
    LS_CALL_MODE,  /* sync_module */
    LS_CALL_OTHER, /* a word that this reader does not know */
} ls_call_kind;

/* One entry of a step's `calls`. */
typedef struct ls_call {
    ls_call_kind kind;
    int16_t times, model, scaler, optimizer; /* -1: none */
    const char *at;                          /* "train.py:41" */
    const ls_event *json;                    /* all: ls_event_number(call->json, limit, NAN) */
} ls_call;

typedef struct ls_observe_step {
    const ls_record_step *step; /* the members of the subject protocol */
    bool detail;
    bool moved;   /* its digest is of parameters that changed behind the step */
    int digested; /* models that it is of */
    int call_count;
    ls_call *call;
    const char *samples;        /* the file, or "" */
    const ls_event *losses;     /* of a trainer of the protocol with several, and */
    const ls_event *skips;      /* which of its optimizers skipped; else NULL */
    const ls_event *statistics; /* digests of running statistics by model, or NULL */
} ls_observe_step;

/* A parameter or buffer of a model event. */
typedef struct ls_observe_tensor {
    const char *name; /* as in samples: "m1.fc.weight" of model 1 */
    int model;
    int64_t elements;
    const char *type; /* "f32" */
    bool trainable, norm;
} ls_observe_tensor;

/* Events in the order of the file. */
typedef struct ls_event_list {
    ls_event list;
    int capacity;
} ls_event_list;

typedef struct ls_observe_rank {
    ls_record_rank *record; /* start, step and end events as the subject protocol has them */
    int64_t first;          /* number of the first step */
    int step_count, step_capacity;
    ls_observe_step *step;
    ls_observe_step *open; /* begun and not closed: its calls and number alone; or NULL */
    ls_event_store *store; /* what all events are in */
    ls_event_list event[LS_EVENT_none]; /* but for steps: ls_trace_events */
    const ls_event *start, *cost;       /* the events, or NULL */
    int tensor_count;
    ls_observe_tensor *tensor; /* parameters of all models; without model events: of a dump */
    int with_shards; /* of `tensor`: behind its tensor_count, the rank's parts of divided ones */
} ls_observe_rank;

struct ls_observe_trace {
    ls_record record;      /* world, broken, state: how the job ended */
    bool attached;         /* by the attach module; false: a trainer that speaks the protocol */
    int world;             /* as the start events say; a rank may have left no events */
    ls_observe_rank *rank; /* [world] */
    /* A trainer of the protocol with several models writes the dumps of each into a folder of its
     * own (protocol.md, --example): the same job with those of one model, [part_count]. */
    const char *model; /* of a part; else NULL */
    struct ls_observe_trace **part;
    int part_count;
    char wrong[200];                 /* the first value that events.def does not have; "": none */
    cJSON *command;                  /* of the job, from job.json, or NULL: asked.h */
    struct ls_observe_trace *before; /* the job that saved what this one went on from, or NULL */
    bool goes_on;                    /* a later job went on from what this one saved */
};

/* The events of a name of events.def, as a list: ls_trace_events(rank, model). */
#define ls_trace_events(rank, name) (&(rank)->event[LS_EVENT_##name].list)
#define ls_trace_last(rank, name) ls_event_last(ls_trace_events(rank, name)) /* or NULL */

/* What ls_observe_read and ls_observe_free do. */
ls_status ls_trace_load(const char *directory, ls_observe_trace **out);
void ls_trace_unload(ls_observe_trace *trace);
/* Whether the models are wrapped in DistributedDataParallel on more than one rank. */
bool ls_trace_is_ddp(const ls_observe_trace *trace);
/* Whether an enabled GradScaler was used, or a trainer of the protocol has a loss scale. */
bool ls_trace_is_scaled(const ls_observe_trace *trace);
/* Whether a training forward ran under autocast, or the trainer of the protocol is at O1 to O3. */
bool ls_trace_is_mixed(const ls_observe_trace *trace);
/* The samples of a rank's step, read once and owned by the caller (ls_dumpfile_close); NULL where
 * there are none, or where the file is broken (out->verdict is set then). Of a trainer that speaks
 * the protocol: its dump of that step, whole tensors under the protocol's names. */
ls_dumpfile *ls_trace_samples(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                              ls_observe_finding *out);
/* The first call of that kind at or after index `from`; -1: none. */
int ls_trace_find(const ls_observe_step *step, ls_call_kind kind, int from);
/* The first call of that kind of a rank, or NULL; the place of a step's first one, or "". */
const ls_call *ls_trace_first(const ls_observe_rank *rank, ls_call_kind kind);
const char *ls_trace_place(const ls_observe_step *step, ls_call_kind kind);
/* The next call of that kind after `call`, of NULL the first; NULL: none. */
const ls_call *ls_trace_next_kind(const ls_observe_step *step, ls_call_kind kind,
                                  const ls_call *call);
/* A place in all calls of a rank: {.rank = rank} is before the first. False: there is none after
 * it.
 */
typedef struct ls_trace_walk {
    const ls_observe_rank *rank;
    int step_index, call_index; /* of the next */
    const ls_observe_step *step;
    const ls_call *call;
} ls_trace_walk;
bool ls_trace_walk_next(ls_trace_walk *walk);
/* The steps of a rank, the calls of a step, those of one kind, all calls of a rank (walk.step,
 * walk.call). */
#define ls_trace_each_step(one, of) \
    for (const ls_observe_step *one = (of)->step; one < (of)->step + (of)->step_count; one++)
#define ls_trace_each_call(one, of) \
    for (const ls_call *one = (of)->call; one < (of)->call + (of)->call_count; one++)
#define ls_trace_each_kind(one, of, kind)                                      \
    for (const ls_call *one = ls_trace_next_kind(of, kind, NULL); one != NULL; \
         one = ls_trace_next_kind(of, kind, one))
#define ls_trace_each_call_of(walk, of) \
    for (ls_trace_walk walk = {.rank = (of)}; ls_trace_walk_next(&walk);)
/* The call that an event of the store is. */
ls_call ls_trace_call(const ls_event *event);
/* The step of that number of a rank, or NULL. */
const ls_observe_step *ls_trace_step(const ls_observe_rank *rank, int64_t number);

/* The digest of a step's tensors of that kind, or NULL; of NULL, too. */
const char *ls_trace_digest(const ls_observe_step *step, ls_record_digest which);
/* The step of that number, closed or open, or NULL. */
const ls_observe_step *ls_trace_open_step_of(const ls_observe_rank *rank, int64_t number);

#endif
