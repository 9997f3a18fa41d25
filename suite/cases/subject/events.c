/* What a run reports in addition to its steps' events: digests now and then, and spans of what it
 * was busy with. */
#include "subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 7, EVERY = 3 };

/* ---- digests every few steps ----------------------------------------------------------------- */

static void judge_every(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int digests = 0, compared = 0;
    (void)row;
    for (int k = 0; k < job->world; k++) {
        for (int64_t step = 1; step <= STEPS; step++, compared++) {
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
    ls_verdict_pass(out, compared, "%d of %d steps have digests: each third and the last", digests,
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
    ls_json_each(span, list) {
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
    const cJSON *list = ls_json_get(event, "spans"), *span = NULL;
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
    ls_json_each(span, list) {
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
    ls_verdict_pass(out, s.traced,
                    "%d steps: forward, backward, optimizer in order, buckets between", s.traced);
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
        ls_verdict_pass(out, steps, "steps 1 to %d of a run and its continuation", steps);
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
    int code = (int)want->code, compared = 0;
    for (int k = 0; k < job->world; k++) {
        if (k == want->silent) {
            continue;
        }
        e = read_ending(job, k);
        compared++;
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
    ls_verdict_pass(out, compared, "ends after step %d with code %d (%s)", (int)e.last, code,
                    e.status);
}

static const expected_end good = {LS_OK, -1, 2, true}, floored = {LS_ERR_NON_FINITE, -1, 2, false},
                          lost = {LS_ERR_PEER_LOST, 1, 0, false},
                          unsaved = {LS_ERR_INFRA, 1, 0, true};

/* ---- MLPerf's log ---------------------------------------------------------------------------- */

enum { TRAINED = 40, VALIDATED = 70 };
#define MLLOG_TREE                                                                              \
    "D={self}/data; mkdir -p $D; {bin}/lockstep data make $D/train --images 4 --image-size 16 " \
    ">/dev/null && {bin}/lockstep data make $D/val --images 7 --image-size 16 --seed 5 "        \
    ">/dev/null "                                                                               \
    "|| exit 3; exec \"$0\" \"$@\""

static const ls_tol accuracy = LS_TOL(1e-12, "a quotient of two counts in double");

/* The next line of the log that begins as MLPerf's, as JSON that the caller deletes; FAIL where it
 * is none. NULL at the end. */
static cJSON *next_mllog(char **rest, double *last_ms, ls_verdict *out)
{
    static const char mark[] = ":::MLLOG ";
    char *line = strsep(rest, "\n");
    while (line != NULL && strncmp(line, mark, sizeof mark - 1) != 0) {
        line = strsep(rest, "\n");
    }
    cJSON *event = line != NULL ? cJSON_Parse(line + sizeof mark - 1) : NULL;
    if (line == NULL) {
        return NULL;
    }
    double ms = ls_json_number(event, "time_ms", NAN);
    if (event == NULL || !(ms >= *last_ms) || ms != floor(ms) ||
        strcmp(ls_json_string(event, "namespace", "?"), "") != 0 ||
        !cJSON_HasObjectItem(event, "value") ||
        !cJSON_HasObjectItem(ls_json_get(event, "metadata"), "lineno")) {
        ls_verdict_fail(out, "not a line of an MLPerf log: %.200s", line);
    }
    *last_ms = ms;
    return event;
}

/* What a line must be: its key, how it begins ('<', '>' or '.'), epoch and value. */
struct logged {
    const char *key;
    char type;
    int epoch;
    double value; /* NAN: null, or a text */
};

static void check_logged(const cJSON *event, const struct logged *want, ls_verdict *out)
{
    const char *type = ls_json_string(event, "event_type", "");
    const char *wanted = want->type == '<'   ? "INTERVAL_START"
                         : want->type == '>' ? "INTERVAL_END"
                                             : "POINT_IN_TIME";
    const cJSON *metadata = ls_json_get(event, "metadata");
    double value = ls_json_number(event, "value", NAN);
    if (strcmp(ls_json_string(event, "key", ""), want->key) != 0 || strcmp(type, wanted) != 0 ||
        ls_json_integer(metadata, "epoch_num", 0) != want->epoch ||
        (isnan(want->value) ? !isnan(value) : !(fabs(value - want->value) <= accuracy.value))) {
        char *text = cJSON_PrintUnformatted(event);
        ls_verdict_fail(out, "expected %s %s, epoch %d, value %.9g: %.200s", wanted, want->key,
                        want->epoch, want->value, text != NULL ? text : "");
        cJSON_free(text);
    }
}

static void check_log(const char *path, const struct logged *want, int count, ls_verdict *out)
{
    char *text = ls_text_read(path), *rest = text;
    double last_ms = 0;
    int found = 0;
    cJSON *event = NULL;
    while (out->code == LS_PASS && rest != NULL &&
           (event = next_mllog(&rest, &last_ms, out)) != NULL) {
        if (found < count) {
            check_logged(event, &want[found], out);
        }
        if (strcmp(ls_json_string(event, "key", ""), "run_stop") == 0 &&
            strcmp(ls_json_string(ls_json_get(event, "metadata"), "status", ""), "success") != 0) {
            ls_verdict_fail(out, "run_stop has not the status success");
        }
        found++;
        cJSON_Delete(event);
    }
    if (out->code == LS_PASS && found != count) {
        ls_verdict_fail(out, "%d lines of MLPerf's log, expected %d", found, count);
    }
    free(text);
    ls_verdict_pass(out, found, "%d lines as mlperf_logging writes them", found);
}

/* Two epochs of 5 steps and 2 steps of a third: validated after the epochs and at the end. */
static void judge_mllog(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    double top1[3] = {0};
    (void)row;
    for (int i = 0; i < 3; i++) {
        const cJSON *event = cJSON_GetArrayItem(job->rank[0].epochs, i);
        top1[i] = ls_json_number(ls_json_get(event, "val"), "top1", NAN) / VALIDATED;
    }
    const struct logged want[] = {
        {"init_start", '<', 0, NAN},
        {"submission_benchmark", '.', 0, NAN},
        {"global_batch_size", '.', 0, 8},
        {"gradient_accumulation_steps", '.', 0, 1},
        {"seed", '.', 0, (double)row->job[0].seed},
        {"train_samples", '.', 0, TRAINED},
        {"eval_samples", '.', 0, VALIDATED},
        {"opt_name", '.', 0, NAN},
        {"opt_base_learning_rate", '.', 0, 0.05},
        {"opt_weight_decay", '.', 0, 0.01},
        {"opt_momentum", '.', 0, 0.9},
        {"init_stop", '>', 0, NAN},
        {"run_start", '<', 0, NAN},
        {"epoch_start", '<', 1, NAN},
        {"epoch_stop", '>', 1, NAN},
        {"eval_start", '<', 1, NAN},
        {"eval_accuracy", '.', 1, top1[0]},
        {"eval_stop", '>', 1, NAN},
        {"epoch_start", '<', 2, NAN},
        {"epoch_stop", '>', 2, NAN},
        {"eval_start", '<', 2, NAN},
        {"eval_accuracy", '.', 2, top1[1]},
        {"eval_stop", '>', 2, NAN},
        {"epoch_start", '<', 3, NAN},
        {"eval_start", '<', 3, NAN},
        {"eval_accuracy", '.', 3, top1[2]},
        {"eval_stop", '>', 3, NAN},
        {"run_stop", '>', 0, NAN},
    };
    LS_TEXT(path, 700, "%s/mllog.txt", job->directory);
    check_log(path, want, (int)(sizeof want / sizeof *want), out);
}

/* On standard output, among the printed lines; data without epochs. */
static void judge_mllog_endless(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct logged want[] = {
        {"init_start", '<', 0, NAN},
        {"submission_benchmark", '.', 0, NAN},
        {"global_batch_size", '.', 0, 8},
        {"gradient_accumulation_steps", '.', 0, 2},
        {"seed", '.', 0, (double)row->job[0].seed},
        {"opt_name", '.', 0, NAN},
        {"lars_opt_base_learning_rate", '.', 0, 0.05},
        {"lars_opt_weight_decay", '.', 0, 1e-4},
        {"lars_opt_momentum", '.', 0, 0.9},
        {"lars_epsilon", '.', 0, 1e-8},
        {"init_stop", '>', 0, NAN},
        {"run_start", '<', 0, NAN},
        {"run_stop", '>', 0, NAN},
    };
    LS_TEXT(path, 700, "%s/rank0.log", job->directory);
    check_log(path, want, (int)(sizeof want / sizeof *want), out);
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define SMALL "resnet8 w2 b0.05 steps=7 "

static const ls_row rows[] = {
    {"events.digest-every.o0.w2", "Q31", judge_every, SMALL "--digest-every=3"},
    {"events.trace.o0.w2", "Q32", judge_trace, SMALL "--trace"},
    {"events.lines.o0.w2", "Q33", ls_subject_printed, SMALL "--print-freq=2",
     &(const ls_subject_lines){2, true}},
    /* some 50 ms a step, so that seconds are left */
    {"events.left.o0", "Q33", ls_subject_printed,
     "resnet20 O0 image=32 batch=32 steps=30 --print-freq=10", &(const ls_subject_lines){10, true}},
    {"events.mllog.w2", "Q37", judge_mllog,
     "resnet8 w2 O0 b0.05 image=16 steps=12 data={self}/data shell --val={self}/data/val "
     "--weight-decay=0.01 --mllog={self}/mllog.txt",
     .script = MLLOG_TREE},
    {"events.mllog.endless", "Q37", judge_mllog_endless,
     "resnet8 O2 steps=3 accumulate=2 --optimizer=lars --mllog=-"},
    {"events.resumed.o0.w1", "Q35", judge_kept, "resnet8 steps=5 shell", .script = TWICE,
     .judges_outcome = true},
    {"events.end.good.o2.w2", "Q36", judge_end,
     SMALL "O2 scale=dynamic --init-scale=1024 --overflow-at=2,4:1", &good, .judges_outcome = true},
    {"events.end.floor.o2.w2", "Q36", judge_end,
     SMALL "O2 scale=dynamic --init-scale=1024 --min-loss-scale=512 --overflow-at=2,3", &floored,
     .judges_outcome = true},
    {"events.end.lost.o0.w2", "Q36", judge_end, SMALL "--fault-at=4:1:forward:kill --timeout=20",
     &lost, .judges_outcome = true},
    /* a disk that is full when rank 0 saves; rank 1 has no file to write, and may end well */
    {"events.end.unsaved.o0.w2", "Q36", judge_end,
     SMALL "shell --save={self}/checkpoint.safetensors", &unsaved,
     .script = "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\"", .judges_outcome = true,
     .takes_disk = true},
};

void ls_events_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
