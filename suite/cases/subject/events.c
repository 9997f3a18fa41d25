/* What a run reports in addition to its steps' events: digests now and then, and spans of what it
 * was busy with. */
#include "subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"

enum { STEPS = 7, EVERY = 3 };

/* ---- digests every few steps ----------------------------------------------------------------- */

static void judge_every(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int digests = 0;
    (void)row;
    for (int k = 0; k < job->world; k++) {
        for (int64_t step = 1; step <= STEPS; step++) {
            const ls_record_step *seen = ls_record_find_step(&job->rank[k], step);
            bool due = step % EVERY == 0 || step == STEPS;
            bool has = seen != NULL && seen->digest_mask != 0;
            digests += has;
            if (seen == NULL || has != due) {
                ls_verdict_fail(out, "rank=%d step %d: %s, digests were asked for %s", k, (int)step,
                                seen == NULL ? "no event"
                                : has        ? "has digests"
                                             : "has no digests",
                                "every third step and the last");
            }
        }
    }
    ls_verdict_pass(out, "%d of %d steps have digests: each third and the last", digests,
                    STEPS * job->world);
}

/* ---- spans ----------------------------------------------------------------------------------- */

typedef struct spans {
    int rank, traced;
    double ended_ns; /* of the step before; NAN */
    ls_verdict *out;
} spans;

static const cJSON *find_span(const cJSON *list, const char *name)
{
    const cJSON *span = NULL;
    cJSON_ArrayForEach(span, list)
    {
        if (strcmp(ls_json_string(span, "name", ""), name) == 0) {
            return span;
        }
    }
    return NULL;
}

static double at(const cJSON *span, const char *end)
{
    return ls_json_number(span, end, NAN);
}

/* Forward, then backward, then the optimizer, and the buckets between backward's begin and the
 * optimizer's. */
static void judge_spans(spans *s, const cJSON *event)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(event, "spans"), *span = NULL;
    const cJSON *forward = find_span(list, "forward"), *backward = find_span(list, "backward");
    const cJSON *optimizer = find_span(list, "optimizer");
    int step = ls_json_int(event, "step", -1), buckets = 0;
    bool ordered = at(forward, "from_ns") < at(forward, "to_ns") &&
                   at(forward, "to_ns") <= at(backward, "from_ns") &&
                   at(backward, "from_ns") < at(backward, "to_ns") &&
                   at(backward, "to_ns") <= at(optimizer, "from_ns") &&
                   at(optimizer, "from_ns") < at(optimizer, "to_ns");
    if (!ordered || at(forward, "from_ns") < s->ended_ns) {
        ls_verdict_fail(s->out,
                        "rank=%d step %d: forward, backward and optimizer do not follow each other "
                        "and the step before",
                        s->rank, step);
    }
    cJSON_ArrayForEach(span, list)
    {
        if (strcmp(ls_json_string(span, "lane", ""), "communication") != 0) {
            continue;
        }
        LS_TEXT(name, 24, "bucket %d", buckets++);
        if (strcmp(ls_json_string(span, "name", ""), name) != 0 ||
            !(at(span, "from_ns") >= at(backward, "from_ns") &&
              at(span, "from_ns") <= at(span, "to_ns") &&
              at(span, "to_ns") <= at(optimizer, "from_ns"))) {
            ls_verdict_fail(s->out,
                            "rank=%d step %d: %s is %s, or not between backward's begin and the "
                            "optimizer's",
                            s->rank, step, name, ls_json_string(span, "name", "(nothing)"));
        }
    }
    if (buckets == 0) {
        ls_verdict_fail(s->out, "rank=%d step %d: no bucket's span", s->rank, step);
    }
    s->ended_ns = at(optimizer, "to_ns");
    s->traced++;
}

static ls_status visit_trace(void *opaque, const cJSON *event, int line)
{
    (void)line;
    judge_spans(opaque, event);
    return LS_OK;
}

static void judge_trace(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    spans s = {.out = out};
    for (s.rank = 0; s.rank < job->world; s.rank++) {
        int before = s.traced;
        s.ended_ns = 0;
        if (ls_record_each_event(job, s.rank, "trace", visit_trace, &s) != LS_OK) {
            ls_verdict_fail(out, "rank=%d: its events cannot be read", s.rank);
        } else if (s.traced - before != row->job[0].steps) {
            ls_verdict_fail(out, "rank=%d: %d trace events, expected %d", s.rank, s.traced - before,
                            row->job[0].steps);
        }
    }
    ls_verdict_pass(out, "%d steps: forward, backward, optimizer in order, buckets between",
                    s.traced);
}

/* ---- the same folder after a resume ---------------------------------------------------------- */

/* A run of two steps and its continuation, with one folder. */
#define TWICE                                                                                \
    "\"$0\" \"$@\" --steps=2 --save={self}/c.safetensors >/dev/null || exit 9; exec \"$0\" " \
    "\"$@\" "                                                                                \
    "--resume={self}/c.safetensors"

static ls_status visit_step(void *opaque, const cJSON *event, int line)
{
    int *steps = opaque; /* reported so far, in order; -1: out of order */
    (void)line;
    bool next = *steps >= 0 && ls_json_integer(event, "step", -1) == *steps + 1;
    *steps = next ? *steps + 1 : -1;
    return LS_OK;
}

static void judge_kept(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int steps = 0;
    if (ls_record_each_event(job, 0, "step", visit_step, &steps) != LS_OK ||
        steps != row->job[0].steps) {
        ls_verdict_fail(out, "the folder has steps 1 to %d, expected 1 to %d", steps,
                        row->job[0].steps);
    } else {
        ls_verdict_pass(out, "steps 1 to %d of a run and its continuation", steps);
    }
}

/* ---- the end event --------------------------------------------------------------------------- */

typedef struct ending {
    int64_t last, step, code, skipped; /* last, skips: of the steps' events; the rest: as it says */
    int skips, ends;
    char status[40];
} ending;

static ls_status visit_ending(void *opaque, const cJSON *event, int line)
{
    ending *e = opaque;
    (void)line;
    e->ends++;
    e->step = ls_json_integer(event, "step", -1);
    e->code = ls_json_integer(event, "code", -1);
    e->skipped = ls_json_integer(event, "skipped", -1);
    ls_text_put(e->status, sizeof e->status, "%s", ls_json_string(event, "status", ""));
    return LS_OK;
}

static ending read_ending(const ls_record *job, int rank)
{
    ending e = {.step = -1};
    const ls_record_rank *seen = &job->rank[rank];
    for (int i = 0; i < seen->step_count; i++) {
        e.last = seen->step[i].step;
        e.skips += seen->step[i].skipped;
    }
    (void)ls_record_each_event(job, rank, "end", visit_ending, &e);
    return e;
}

/* How a run is to end. */
typedef struct expected_end {
    ls_status code;
    int silent; /* the rank that is not looked at; -1: none */
    int skips;  /* at least */
    bool whole; /* all steps are taken */
} expected_end;

static void judge_end(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const expected_end *want = row->data;
    ending e = {0};
    int code = (int)want->code;
    for (int k = 0; k < job->world; k++) {
        if (k == want->silent) {
            continue;
        }
        e = read_ending(job, k);
        if (e.ends != 1 || e.code != code || job->rank[k].code != code ||
            strcmp(e.status, ls_status_name((ls_status)code)) != 0) {
            ls_verdict_fail(out,
                            "rank=%d left with code %d; %d end events, the last says code %d (%s), "
                            "expected %d (%s)",
                            k, job->rank[k].code, e.ends, (int)e.code, e.status, code,
                            ls_status_name((ls_status)code));
        } else if (e.step != e.last || e.skipped != e.skips) {
            ls_verdict_fail(out,
                            "rank=%d ends after step %d with %d skipped, says its end event; its "
                            "steps end with %d, %d of them skipped",
                            k, (int)e.step, (int)e.skipped, (int)e.last, e.skips);
        }
    }
    bool whole = e.last == row->job[0].steps;
    if (whole != want->whole || e.skips < want->skips) {
        ls_verdict_set(out, LS_WEAK, "the run ended after step %d, %d skipped", (int)e.last,
                       e.skips);
    }
    ls_verdict_pass(out, "ends after step %d with code %d (%s)", (int)e.last, code, e.status);
}

static const expected_end good = {LS_OK, -1, 2, true}, floored = {LS_ERR_NON_FINITE, -1, 2, false},
                          lost = {LS_ERR_PEER_LOST, 1, 0, false},
                          unsaved = {LS_ERR_INFRA, 1, 0, true};

/* ---- rows ------------------------------------------------------------------------------------ */

#define SMALL "resnet8 w2 b0.05 steps=7 "

static const ls_row rows[] = {
    {"told.digest-every.o0.w2", "Q31", judge_every, SMALL "--digest-every=3"},
    {"told.trace.o0.w2", "Q32", judge_trace, SMALL "--trace"},
    {"told.lines.o0.w2", "Q33", ls_subject_printed, SMALL "--print-freq=2", &(const int){2}},
    {"told.resumed.o0.w1", "Q35", judge_kept, "resnet8 steps=5 shell", .script = TWICE,
     .judges_outcome = true},
    {"told.end.good.o2.w2", "Q36", judge_end,
     SMALL "O2 scale=dynamic --init-scale=1024 --overflow-at=2,4:1", &good, .judges_outcome = true},
    {"told.end.floor.o2.w2", "Q36", judge_end,
     SMALL "O2 scale=dynamic --init-scale=1024 --min-loss-scale=512 --overflow-at=2,3", &floored,
     .judges_outcome = true},
    {"told.end.lost.o0.w2", "Q36", judge_end, SMALL "--fault-at=4:1:forward:kill --timeout=20",
     &lost, .judges_outcome = true},
    /* a disk that is full when rank 0 saves; rank 1 has no file to write, and may end well */
    {"told.end.unsaved.o0.w2", "Q36", judge_end, SMALL "shell --save={self}/checkpoint.safetensors",
     &unsaved, .script = "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\"", .judges_outcome = true},
};

void ls_events_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
