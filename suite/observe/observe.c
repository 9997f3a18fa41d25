#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "observe.h"
#include "suite/observe/rules/rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/trace.h"

ls_status ls_observe_read(const char *directory, ls_observe_trace **out)
{
    return ls_trace_load(directory, out);
}

void ls_observe_free(ls_observe_trace *trace)
{
    ls_trace_unload(trace);
}

static bool saved(const ls_observe_trace *trace, const char *path)
{
    const ls_event *save;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            if (strcmp(ls_event_text(save, path, ""), path) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* A path says where a file is only together with the folder that the job ran in. */
static bool same_folder(const ls_observe_trace *a, const ls_observe_trace *b, const char *path)
{
    const char *one = ls_event_text(a->rank[0].start, work, "");
    const char *other = ls_event_text(b->rank[0].start, work, "");
    return !a->attached || path[0] == '/' || (one[0] != '\0' && strcmp(one, other) == 0);
}

/* Those of a job that an earlier version observed name bits otherwise. */
static bool same_digests(const ls_observe_trace *a, const ls_observe_trace *b)
{
    return ls_event_int(a->rank[0].start, digest_bits, 32) ==
           ls_event_int(b->rank[0].start, digest_bits, 32);
}

/* Whether a restore gave a job what the file holds: a model's weights behind some step, or the
 * moments of an optimizer. */
static bool is_restored(const ls_event *restore, const ls_event *save)
{
    const ls_event *one, *marks = ls_event_list(restore, marks);
    if (ls_event_count(marks) > 0 && ls_event_equal(marks, ls_event_list(save, marks))) {
        return true;
    }
    ls_event_each(one, ls_saved_step(save) > 0 ? ls_event_list(save, digests) : NULL) {
        if (ls_event_has(restore, bits) &&
            ls_event_equal(ls_event_at(one, 1), ls_event_get(restore, LS_TEXT_MEMBER(bits)))) {
            return true;
        }
    }
    return false;
}

/* Whether a job was given what the other one saved, by another name: a file that was renamed, or
 * that the script wrote from a buffer. `path`: the name that such files have from now on, or NULL.
 */
static bool find_content(const ls_observe_trace *after, const ls_observe_trace *before,
                         const char *path)
{
    const ls_event *restore, *save;
    bool found = false;
    ls_event_each(restore, ls_trace_events(&after->rank[0], restore)) {
        for (int k = 0; k < before->world; k++) {
            ls_event_each(save, ls_trace_events(&before->rank[k], save)) {
                ls_event *name = (ls_event *)ls_event_get(save, LS_TEXT_MEMBER(path));
                bool same = name != NULL && is_restored(restore, save);
                found = found || same;
                if (same && path != NULL) {
                    name->text = path; /* of the trace that holds this one as the one before it */
                }
            }
        }
    }
    return found;
}

/* Whether a job loaded a file that the other one saved; `rename`: as of find_content. */
static bool goes_on_from(const ls_observe_trace *after, const ls_observe_trace *before, bool rename)
{
    const ls_event *load =
        after->world > 0 ? ls_event_at(ls_trace_events(&after->rank[0], load), 0) : NULL;
    const char *path = ls_event_text(load, path, "");
    if (path[0] == '\0' || before->world == 0 || !same_digests(after, before)) {
        return false;
    }
    return (saved(before, path) && same_folder(after, before, path)) ||
           find_content(after, before, rename ? path : NULL);
}

bool ls_observe_continue(ls_observe_trace *trace, const char *directory)
{
    ls_observe_trace *before = NULL;
    if (trace->before != NULL || ls_trace_load(directory, &before) != LS_OK) {
        return false;
    }
    if (!goes_on_from(trace, before, true)) {
        ls_trace_unload(before);
        return false;
    }
    trace->before = before;
    return true;
}

/* The count of a rank's schedule at its first call, or its last; NaN: none is seen. */
static double schedule_count(const ls_observe_rank *rank, bool first)
{
    double count = NAN;
    ls_trace_each_call_of(walk, rank) {
        if (walk.call->kind == LS_CALL_SCHEDULE && !(first && count == count)) {
            count = ls_event_number(walk.call->json, epoch, NAN);
        }
    }
    return count;
}

/* Whether a job's schedule goes on where that of the other one stopped, with its state. */
static bool schedule_goes_on(const ls_observe_trace *after, const ls_observe_trace *before)
{
    const ls_event *restore;
    bool known = after->world > 0 && before->world > 0;
    ls_event_each(restore, known ? ls_trace_events(&after->rank[0], restore) : NULL) {
        if (strcmp(ls_event_text(restore, what, ""), "schedule") == 0) {
            return schedule_count(&after->rank[0], true) ==
                   schedule_count(&before->rank[0], false) + 1;
        }
    }
    return false;
}

bool ls_observe_goes_on(ls_observe_trace *trace, const char *directory)
{
    ls_observe_trace *after = NULL;
    if (ls_trace_load(directory, &after) == LS_OK) {
        trace->goes_on =
            trace->goes_on || goes_on_from(after, trace, false) || schedule_goes_on(after, trace);
        ls_trace_unload(after);
    }
    return trace->goes_on;
}

/* Where the events of a rank end, if it did not say so itself. */
static void describe_ends(const ls_observe_trace *trace, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int k = 0; k < trace->world; k++) {
        const ls_record_rank *rank = trace->rank[k].record;
        if (!rank->has_events) {
            ls_text_add(text, bytes, "; rank %d left no events", k);
        } else if (!rank->ended && trace->record.state != LS_RECORD_DONE) { /* else os._exit */
            long long last =
                rank->step_count > 0 ? (long long)rank->step[rank->step_count - 1].step : 0LL;
            ls_text_add(text, bytes, "; rank %d ended without a word after step %lld", k, last);
        }
    }
}

/* Where the attach module met an error of its own and looked no further. */
static void describe_quiet(const ls_observe_trace *trace, char *text, size_t bytes)
{
    const ls_event *event;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(event, ls_trace_events(&trace->rank[k], attach)) {
            if (ls_event_bool(event, quiet, false)) {
                ls_text_add(text, bytes, "; rank %d was not seen to its end: %.80s", k,
                            ls_event_text(event, error, ""));
            }
        }
    }
}

bool ls_observe_is_whole(const ls_observe_trace *trace, char *why, size_t bytes)
{
    const ls_record *record = &trace->record;
    describe_ends(trace, why, bytes);
    describe_quiet(trace, why, bytes);
    if (record->state == LS_RECORD_FAILED) {
        ls_text_add(why, bytes, "; the job ended with exit code %d", record->code);
    } else if (record->state == LS_RECORD_KILLED) {
        ls_text_add(why, bytes, "; the job was ended by signal %d", record->signal);
    } else if (record->state != LS_RECORD_DONE && record->state != LS_RECORD_UNKNOWN) {
        ls_text_add(why, bytes, "; the job did not end by itself");
    }
    return why[0] == '\0';
}

/* What could not be read may hold what the rule asks for. */
static void limit_to_what_was_read(const ls_observe_trace *trace, ls_verdict *verdict)
{
    char ends[120];
    if (verdict->code == LS_SKIP) {
        return;
    }
    if (trace->record.broken[0] != '\0' && verdict->code != LS_FAIL) {
        *verdict = (ls_verdict){.code = LS_PASS}; /* the attach module's lines are not the job's */
        ls_verdict_set(verdict, trace->attached ? LS_INFRA : LS_FAIL, "%s", trace->record.broken);
        return;
    }
    describe_ends(trace, ends, sizeof ends);
    ls_text_add(verdict->evidence, sizeof verdict->evidence, "%s", ends);
}

/* Within join() a rank whose data have ended makes no steps: those of the same number are then not
 * the same step. */
static void allow_join(const ls_observe_trace *trace, const ls_observe_rule *rule,
                       ls_verdict *verdict)
{
    bool uneven = false;
    for (int k = 1; k < trace->world; k++) {
        uneven = uneven || trace->rank[k].step_count != trace->rank[0].step_count;
    }
    bool by_steps = strcmp(rule->id, "replicas.step") == 0 ||
                    strcmp(rule->id, "replicas.state") == 0 ||
                    strcmp(rule->id, "reduction.mean") == 0;
    if (uneven && by_steps && verdict->code == LS_FAIL && ls_job_ended_well(trace)) {
        verdict->code = LS_UNSUPPORTED;
        verdict->cause[0] = '\0';
        ls_text_add(verdict->evidence, sizeof verdict->evidence,
                    "; the ranks made different numbers of steps and ended well, as with join()");
    }
}

/* Of a job with several models the worst of them. */
static void judge_parts(const ls_observe_trace *trace, const ls_observe_rule *rule,
                        ls_observe_finding *out)
{
    if (trace->part_count == 0) {
        rule->judge(trace, out);
        ls_verdict_close(&out->verdict);
        return;
    }
    for (int i = 0; i < trace->part_count; i++) {
        ls_observe_finding one = {.rule = rule};
        rule->judge(trace->part[i], &one);
        ls_verdict_close(&one.verdict);
        if (i == 0) {
            *out = one;
        } else {
            ls_calls_keep_worst(out, &one);
        }
    }
}

int ls_observe_unused(const ls_observe_trace *trace)
{
    return ls_thrown_lost(trace);
}

static bool is_in_parts(const ls_observe_rank *rank)
{
    const ls_event *model;
    ls_event_each(model, ls_trace_events(rank, model)) {
        if (rank->tensor_count == 0 && ls_event_int(model, parts, 0) > 0) {
            return true;
        }
    }
    return false;
}

/* Why more steps, or more of them in detail, would show no more; false: they may. */
static bool is_hidden(const ls_observe_trace *trace, char *text, size_t bytes)
{
    const ls_observe_rank *rank = &trace->rank[0];
    const ls_event *event = ls_event_at(ls_trace_events(rank, attach), 0);
    bool forwards = false, details = false, graded = false;
    ls_trace_each_step(step, rank) {
        details = details || (step->detail && step->step->step > 1);
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            forwards = forwards || ls_calls_is_training(call);
            graded = graded || ls_calls_flag(call, grad) == 1;
        }
    }
    bool closure = !details && ls_thrown_closure(trace), parts = is_in_parts(rank);
    bool eval = graded && !forwards;
    if (!trace->attached || (!parts && !eval && (event == NULL || (forwards && !closure)))) {
        return false;
    }
    ls_text_put(text, bytes,
                parts     ? "; each rank holds a part of the parameters"
                : closure ? "; no step can be looked at in detail (%s)"
                : eval    ? "; all forwards with autograd are in eval mode"
                          : "; no training forward of a known model was seen (%s)",
                event == NULL ? "" : ls_event_text(event, error, ""));
    return true;
}

void ls_observe_judge_one(const ls_observe_trace *trace, const ls_observe_rule *rule,
                          ls_observe_finding *out)
{
    out->rule = rule;
    if (!trace->attached && rule->own != LS_PASS) {
        ls_verdict_set(&out->verdict, rule->own, "%s", rule->own_why);
    } else if (trace->world < rule->ranks) {
        ls_verdict_set(&out->verdict, LS_SKIP, "one rank");
    } else {
        judge_parts(trace, rule, out);
    }
    allow_join(trace, rule, &out->verdict);
    limit_to_what_was_read(trace, &out->verdict);
    char why[400];
    if (out->verdict.code == LS_WEAK && out->advice[0] == '\0' &&
        is_hidden(trace, why, sizeof why)) {
        ls_text_add(out->verdict.evidence, sizeof out->verdict.evidence, "%s", why);
    } else if (out->verdict.code == LS_WEAK) { /* one that suspects something says what to change */
        ls_finding_blame(out, "", "%s", rule->show);
    }
}

bool ls_observe_is_hint(const ls_observe_finding *finding)
{
    return finding->rule->sure[0] == '\0';
}

#define LS_OBSERVE_RULE(id, claim, requirement, judge, jobs, sentence, sure, wrong_if, show) \
    {id, claim, requirement, jobs, sentence, sure, wrong_if, show, judge},
static const ls_observe_rule rules[] = {
#include "suite/observe/rules/rules.def"
};
#undef LS_OBSERVE_RULE

const ls_observe_rule *ls_observe_rules(int *count)
{
    *count = (int)(sizeof rules / sizeof *rules);
    return rules;
}

void ls_observe_judge_all(const ls_observe_trace *trace, ls_observe_result *out)
{
    int count;
    const ls_observe_rule *rule = ls_observe_rules(&count);
    out->count = count;
    out->finding = ls_list_make((size_t)count, sizeof *out->finding);
    for (int i = 0; i < count; i++) {
        ls_observe_judge_one(trace, &rule[i], &out->finding[i]);
    }
}

#define LS_FOLLOWS(law, from) {law, from},
static const struct {
    const char *law, *from;
} follows[] = {
#include "suite/observe/rules/follows.def"
};
#undef LS_FOLLOWS

static const ls_observe_finding *failed(const ls_observe_result *result, const char *id)
{
    for (int i = 0; i < result->count; i++) {
        const ls_observe_finding *one = &result->finding[i];
        if (strcmp(one->rule->id, id) == 0 && one->verdict.code == LS_FAIL) {
            return one;
        }
    }
    return NULL;
}

const char *ls_observe_root(const ls_observe_result *result, const ls_observe_finding *finding)
{
    const ls_observe_finding *from;
    for (size_t i = 0; i < sizeof follows / sizeof *follows; i++) {
        if (finding->verdict.code == LS_FAIL && strcmp(follows[i].law, finding->rule->id) == 0 &&
            (from = failed(result, follows[i].from)) != NULL) {
            const char *root = ls_observe_root(result, from);
            return root != NULL ? root : follows[i].from;
        }
    }
    return NULL;
}

void ls_observe_result_free(ls_observe_result *result)
{
    free(result->finding);
    memset(result, 0, sizeof *result);
}
