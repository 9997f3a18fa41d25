/* Data of a job that goes on from a file, next to those of the job that wrote it: batches or a
 * whole epoch that were trained on before the file was written and come again. */
#include <string.h>

#include "restored.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"
#include "suite/observe/trace/saved.h"

/* Inputs of the first training forwards: digests, in order. */
static int first_inputs(const ls_observe_rank *rank, int most, const char **input)
{
    int count = 0;
    for (int i = 0; i < rank->step_count && count < most; i++) {
        const ls_observe_step *step = &rank->step[i];
        for (int c = ls_trace_find(step, LS_CALL_FORWARD, 0); c >= 0 && count < most;
             c = ls_trace_find(step, LS_CALL_FORWARD, c + 1)) {
            const char *digest = ls_calls_text(&step->call[c], input);
            if (digest[0] != '\0' && ls_calls_flag(&step->call[c], training) == 1) {
                input[count++] = digest;
            }
        }
    }
    return count;
}

static int64_t last_save(const ls_observe_rank *rank, const char *path)
{
    const ls_event *save;
    int64_t step = -1;
    ls_event_each(save, ls_trace_events(rank, save)) {
        if (strcmp(ls_event_text(save, path, ""), path) == 0) {
            step = ls_saved_step(save);
        }
    }
    return step;
}

static bool was_whole(const ls_event *pass, int64_t saved)
{
    return ls_event_bool(pass, whole, false) && ls_pass_last_step(pass) <= (double)saved + 1;
}

/* Batches that come again by themselves (in one order in each pass, or in turn), and those of an
 * epoch that was not whole when the file was written, which is begun again. */
static bool may_come_again(const ls_observe_trace *trace, int k, const char *first)
{
    const ls_observe_rank *before = &trace->before->rank[k];
    const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[k], load), 0),
                   *pass = ls_pass_trained(before, 0);
    int64_t saved = last_save(&trace->before->rank[0], ls_event_text(load, path, ""));
    int times = 0;
    ls_trace_each_step(step, before) {
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            times += strcmp(ls_calls_text(call, input), first) == 0;
        }
    }
    bool ordered = pass != NULL && !ls_event_bool(pass, shuffle, false);
    bool part = pass != NULL && !was_whole(pass, saved);
    return times > 1 || ordered || part;
}

static const ls_tol batches =
    LS_TOL(4, "batches with the bits of the first job's: fewer may be of a data set of a few");
static const ls_tol few = LS_TOL(8, "samples: orders of fewer are equal by chance");

/* The job that wrote the file began with the same batches: they come again, and those after them
 * never do. */
static void judge_batches(const ls_observe_trace *trace, ls_observe_finding *out)
{
    enum { MOST = 16 };
    const char *before[MOST], *now[MOST];
    for (int k = 0; k < trace->world; k++) {
        int count = first_inputs(&trace->rank[k], MOST, now);
        int earlier = first_inputs(&trace->before->rank[k], MOST, before), same = 0;
        while (same < count && same < earlier && strcmp(now[same], before[same]) == 0) {
            same++;
        }
        if (same < batches.value || same < count || strcmp(now[0], now[1]) == 0 ||
            may_come_again(trace, k, now[0])) {
            continue;
        }
        ls_verdict_fail(
            &out->verdict,
            "rank %d: the first %d batches are those with which the job that wrote "
            "%.100s began",
            k, same,
            ls_event_text(ls_event_at(ls_trace_events(&trace->rank[k], load), 0), path, ""));
        ls_verdict_cause(&out->verdict,
                         "the same seed at each start, and no random state of the file restored: "
                         "a job that goes on draws what it has drawn before");
        ls_finding_blame(
            out, ls_event_text(ls_event_at(ls_trace_events(&trace->rank[k], load), 0), at, ""),
            "save and restore the random states, or seed by the count of steps");
        return;
    }
}

/* The last pass that was whole when the file was written; NULL: there is none, or another pass of
 * the same data has its order. */
static const ls_event *last_pass(const ls_observe_rank *rank, int64_t saved)
{
    const ls_event *data, *last = NULL;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (!ls_pass_is_trained(data) || !was_whole(data, saved)) {
            continue;
        }
        if (last != NULL && ls_event_same(data, last, order)) {
            return NULL;
        }
        last = data;
    }
    return last;
}

/* The job's first pass has the order of the last one before the file. */
static void judge_pass_again(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[0], load), 0);
    const char *path = ls_event_text(load, path, "");
    int64_t saved = last_save(&trace->before->rank[0], path);
    const ls_event *now = ls_pass_trained(&trace->rank[0], 0);
    const ls_event *before = last_pass(&trace->before->rank[0], saved);
    if (saved < 0 || now == NULL || before == NULL || !ls_event_bool(now, shuffle, false) ||
        ls_event_int(now, count, 0) < few.value || !ls_event_bool(now, indices, true) ||
        ls_event_text(now, order, "")[0] == '\0' || !ls_event_same(now, before, order)) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(load, at, ""),
        "the job goes on with the epoch that the file ended with: it is trained on twice",
        "save epoch + 1, or begin with the epoch after the file's",
        "the first pass has the order of pass %d of the job that wrote %.100s, which was whole by "
        "then",
        ls_job_count(before, pass) + 1, path);
}

void ls_restored_judge_data(const ls_observe_trace *trace, ls_observe_finding *out)
{
    judge_batches(trace, out);
    if (ls_verdict_good(out->verdict.code)) {
        judge_pass_again(trace, out);
    }
}
