/* A job that goes on from a file, next to the job that wrote it: data that were trained on before
 * the file was written and come again, moments and weights that came to others, schedules and
 * averages that restart. */

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "suite/observe/trace/job.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/pass.h"

/* ---- batches and passes that come again ------------------------------------------------------ */

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
        const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[k], load), 0);
        ls_finding_set(
            out, LS_FAIL, ls_event_text(load, at, ""),
            "the same seed at each start, and no random state of the file restored: a job that "
            "goes on draws what it has drawn before",
            "save and restore the random states, or seed by the count of steps",
            "rank %d: the first %d batches are those with which the job that wrote %.100s began", k,
            same, ls_event_text(load, path, ""));
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
    /* a pass whose first batches are skipped is the rest of one: judge_rest */
    if (saved < 0 || now == NULL || before == NULL || !ls_event_bool(now, shuffle, false) ||
        ls_event_to_int(ls_event_at(ls_event_list(now, used), 0), 0) > 0 ||
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

/* Whether a pass of the job before is of that epoch or order, or none was for steps either. */
static bool is_accounted(const ls_observe_rank *before, const ls_event *pass)
{
    const ls_event *data;
    int trained = 0;
    ls_event_each(data, ls_trace_events(before, data)) {
        bool again = ls_event_same(data, pass, order) ||
                     ls_event_int(data, sampler_epoch, -1) == ls_event_int(pass, sampler_epoch, -1);
        trained += ls_pass_is_trained(data);
        if (again || (!ls_pass_is_trained(data) && ls_event_same(data, pass, at))) {
            return true;
        }
    }
    return trained == 0;
}

/* Before its first step the job goes through a whole pass of an epoch of the sampler that none had
 * before: as a pass that was cut would be, but none was. */
static void judge_skipped_pass(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *on = ls_pass_trained(&trace->rank[0], 0), *data, *load, *last = NULL;
    ls_event_each(data, ls_trace_events(&trace->rank[0], data)) {
        if (on == NULL || data == on) {
            return;
        }
        if (ls_event_int(data, loader, -1) == ls_event_int(on, loader, -1) &&
            ls_event_same(data, on, at) && ls_event_bool(data, whole, false) &&
            ls_event_bool(data, shuffle, false) && ls_event_int(data, count, 0) >= few.value &&
            ls_pass_last_step(data) <= 1 && ls_event_int(data, sampler_epoch, -1) >= 0 &&
            !is_accounted(&trace->before->rank[0], data)) {
            break;
        }
    }
    ls_event_each(load, ls_trace_events(&trace->rank[0], load)) {
        last = ls_event_int(load, step, 0) == 0 ? load : last;
    }
    if (data == NULL || last == NULL) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(last, at, ""),
        "the file was written at the end of a pass, and its place in the data is that of "
        "the end: the pass behind it is skipped to its end",
        "begin a new pass at its first sample: skip batches only within the pass that "
        "the file cut",
        "the job goes through the %d samples of epoch %d of rank 0 without a step, and "
        "the job before it made no step with any of that epoch",
        ls_event_int(data, count, 0), ls_event_int(data, sampler_epoch, 0));
}

static const ls_event *last_restore(const ls_observe_rank *rank, const char *what)
{
    const ls_event *restore, *last = NULL;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(restore, what, ""), what) == 0) {
            last = restore;
        }
    }
    return last;
}

/* The writer's event of the file, by the rank that wrote it. */
static const ls_event *written_by(const ls_observe_trace *writer, const char *path, int *rank)
{
    const ls_event *save, *last = NULL;
    for (int k = 0; k < writer->world && last == NULL && path[0] != '\0'; k++) {
        ls_event_each(save, ls_trace_events(&writer->rank[k], save)) {
            if (strcmp(ls_event_text(save, path, ""), path) == 0) {
                last = save;
                *rank = k;
            }
        }
    }
    return last;
}

/* ---- the rest of a pass ---------------------------------------------------------------------- */

/* What was trained of a pass that was cut, on this rank, and of the pass that goes on with it. */
typedef struct rest {
    const ls_event *cut, *on;
    int skipped, trained, left, whole; /* samples */
    int steps;                         /* of the pass that was cut */
    bool within; /* by the sampler's epoch the pass that goes on is the one that was cut */
} rest;

/* Samples of a batch, also of a batch sampler that does not say it; 0: unknown. */
static int batch_of(const ls_event *pass)
{
    int batch = ls_job_count(pass, batch), given = ls_job_count(pass, given);
    return batch > 0 || given < 1 ? batch : (ls_job_count(pass, count) + given - 1) / given;
}

/* The indices of the batches of a pass that were trained on: [*count] from the first. */
static int trained_of(const ls_event *pass, int *count)
{
    const ls_event *used = ls_event_list(pass, used);
    int batch = batch_of(pass), all = ls_event_count(ls_event_list(pass, kept));
    int first = ls_event_to_int(ls_event_at(used, 0), 0) * batch;
    int last = (ls_event_to_int(ls_event_at(used, 1), -1) + 1) * batch;
    last = last > all ? all : last;
    *count = first < last ? last - first : 0;
    return first;
}

static bool is_same_data(const ls_event *a, const ls_event *b)
{
    return ls_job_count(a, length) == ls_job_count(b, length);
}

static bool is_known(const ls_event *pass)
{
    int batch = batch_of(pass), given = ls_job_count(pass, given);
    return pass != NULL && batch > 0 && given < (1 << 24) / batch &&
           ls_event_count(ls_event_list(pass, used)) == 2 && ls_event_int(pass, modulus, 0) == 1;
}

/* The pass that the file cut: nothing was trained on behind it. */
static const ls_event *cut_pass(const ls_observe_rank *rank, int64_t saved)
{
    const ls_event *data, *last = NULL;
    ls_event_each(data, ls_trace_events(rank, data)) {
        last = ls_pass_is_trained(data) && ls_pass_first_step(data) <= (double)saved ? data : last;
    }
    bool behind = rank->step_count > 0 && rank->step[rank->step_count - 1].step->step > saved;
    return last == NULL || behind || ls_event_bool(last, whole, false) ? NULL : last;
}

/* Whether two passes draw the same indices, as far as both have gone. */
static bool is_one_order(const ls_event *a, const ls_event *b)
{
    const ls_event *one = ls_event_first(ls_event_list(a, kept));
    const ls_event *other = ls_event_first(ls_event_list(b, kept));
    for (; one != NULL && other != NULL; one = ls_event_after(one), other = ls_event_after(other)) {
        if (one->number != other->number) {
            return false;
        }
    }
    return true;
}

/* Whether a pass is the one that was cut, drawn from its beginning, or its rest; batches are left
 * out at its beginning. */
static bool is_within(const rest *r)
{
    int epoch = ls_event_int(r->cut, sampler_epoch, -1), batch = batch_of(r->on);
    bool less = r->skipped > 0 ? is_one_order(r->cut, r->on)
                               : ls_job_count(r->on, count) + batch <= r->whole;
    return less && epoch >= 0 && ls_event_int(r->on, sampler_epoch, -1) == epoch &&
           ls_event_same(r->on, r->cut, source);
}

/* Whether that pass leaves out as many of its first samples: a look at the data, say. */
static bool leaves_out(const ls_event *pass, int samples)
{
    int trained;
    return is_known(pass) && trained_of(pass, &trained) == samples && trained > 0;
}

/* Whether the job that wrote the file begins its first pass, or the one that was cut, as the job
 * that goes on does: then these samples are not left out since they were trained on. */
static bool is_usual(const ls_observe_rank *writer, const rest *r)
{
    return leaves_out(r->cut, r->skipped) || leaves_out(ls_pass_trained(writer, 0), r->skipped);
}

/* The most batches that a step takes. */
static int most_backwards(const ls_observe_rank *rank)
{
    int most = 1;
    ls_trace_each_step(step, rank) {
        int own = 0;
        ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
            own += call->times;
        }
        most = own > most ? own : most;
    }
    return most;
}

/* The job goes on within the pass: what it takes is what was left, or both passes are of one epoch.
 */
static bool find_rest(const ls_observe_trace *trace, int k, int64_t saved, rest *out)
{
    const ls_event *on = ls_pass_trained(&trace->rank[k], 0);
    const ls_event *cut = cut_pass(&trace->before->rank[k], saved), *data;
    if (!is_known(on) || !is_known(cut) || !ls_event_bool(on, whole, false) ||
        batch_of(on) != batch_of(cut) || !is_same_data(on, cut)) {
        return false;
    }
    int batch = batch_of(on);
    out->skipped = trained_of(on, &out->left);
    trained_of(cut, &out->trained);
    out->whole = out->skipped > 0
                     ? ls_job_count(on, count)
                     : ls_job_count(on, length) / (trace->world > 0 ? trace->world : 1);
    ls_event_each(data, ls_trace_events(&trace->before->rank[k], data)) {
        bool same = ls_pass_is_trained(data) && is_same_data(data, on);
        if (same && ls_event_bool(data, whole, false)) {
            out->whole = ls_job_count(data, count);
        }
    }
    out->cut = cut;
    out->on = on;
    out->within = is_within(out);
    return out->trained > 0 && out->left > 0 &&
           !(out->skipped > 0 && is_usual(&trace->before->rank[k], out)) &&
           (out->within || abs(out->trained + out->left - out->whole) < batch);
}

/* Adds to `times` how often each index was trained on; false: one is none of the data set. */
static bool add_trained(const ls_event *pass, int length, unsigned char *times)
{
    const ls_event *one;
    int count, place = 0, first = trained_of(pass, &count);
    ls_event_each(one, ls_event_list(pass, kept)) {
        if (place >= first && place < first + count) {
            double index = one->number;
            if (!ls_event_is_number(one) || !(index >= 0 && index < length)) {
                return false;
            }
            times[(int)index] += times[(int)index] < UCHAR_MAX;
        }
        place++;
    }
    return true;
}

static int count_above(const unsigned char *times, int length, int most)
{
    int count = 0;
    for (int i = 0; i < length; i++) {
        count += times[i] > most;
    }
    return count;
}

/* Later passes that are as short as the rest of the one that was cut. */
static void judge_offset(const rest *r, const ls_event *load, int k, ls_observe_finding *out)
{
    const ls_event *data = r->on;
    int batch = batch_of(data), short_ones = 0;
    while ((data = ls_event_after(data)) != NULL) {
        bool same = ls_pass_is_trained(data) && ls_event_bool(data, whole, false) &&
                    is_same_data(data, r->on);
        short_ones += same && ls_job_count(data, count) == ls_job_count(r->on, count);
    }
    if (short_ones > 0 && ls_job_count(r->on, count) + batch <= r->whole) {
        ls_finding_set(
            out, LS_FAIL, ls_event_text(load, at, ""),
            "the place in the data with which the job goes on is kept for the passes behind it",
            "begin each pass but the first one at its first sample",
            "rank %d: %d passes behind the first one have %d samples, as the rest of the one that "
            "%.100s cut, and not %d",
            k, short_ones, ls_job_count(r->on, count), ls_event_text(load, path, ""), r->whole);
    }
}

/* The rest is of another order than the pass that was cut. Samplers that tell an epoch draw by it.
 */
static void report_rest(const rest *r, const char *at, ls_observe_finding *out)
{
    int had = ls_event_int(r->cut, sampler_epoch, -1), has = ls_event_int(r->on, sampler_epoch, -1);
    int batch = batch_of(r->on);
    if (r->within && r->skipped > 0) {
        ls_verdict_cause(
            &out->verdict,
            "the job skips %d batches of the pass that the file cut, and %d of it were "
            "trained on: a count of steps taken as one of batches, say",
            r->skipped / batch, (r->trained + batch - 1) / batch);
        ls_finding_blame(out, ls_event_text(r->on, at, ""),
                         "skip as many batches as were trained on: optimizer steps times the "
                         "batches of a step, within the epoch");
        return;
    }
    if (had < 0 || has < 0 || had == has) {
        ls_finding_explain(
            out, at,
            "the job goes on within a pass, and draws its rest from another order than the one "
            "that was cut",
            "restore the random state with which the pass began before its order is drawn, or "
            "save the order");
        return;
    }
    const char *set = ls_event_text(r->on, epoch_at, "");
    ls_finding_blame(out, set[0] != '\0' ? set : ls_event_text(r->on, at, ""),
                     "call set_epoch with the epoch that the file cut before its rest is drawn, "
                     "also on a loader or sampler that is built to skip batches");
    ls_verdict_cause(&out->verdict,
                     "the sampler's epoch is not that of the pass that was cut: the job goes on "
                     "within epoch %d, and draws its rest in the order of epoch %d",
                     had, has);
}

/* A pass that is trained on again from its beginning, whose first batches the job takes for another
 * purpose, leaves out some, too: not by a count of steps, of which each takes several. */
static bool may_begin_anew(const rest *r, int backwards, bool lost)
{
    int steps = r->trained / (batch_of(r->on) * backwards);
    bool by_steps = backwards > 1 && steps > 1 && r->skipped == steps * batch_of(r->on);
    return r->within && r->skipped > 0 && r->skipped < r->trained && !lost && !by_steps;
}

/* What was trained of a pass before the file, and behind it, is the data set: no sample twice, but
 * for those that fill up each rank's last batch. */
static void judge_rest(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[0], load), 0);
    const char *path = ls_event_text(load, path, "");
    int writer = 0;
    const ls_event *save = written_by(trace->before, path, &writer);
    const ls_event *rng = last_restore(&trace->rank[0], "rng");
    int length = 0, batch = 0;
    unsigned char *early = NULL, *late = NULL;
    bool known = save != NULL;
    rest r = {0};
    for (int k = 0; k < trace->world && known; k++) {
        r = (rest){0};
        known = find_rest(trace, k, ls_saved_step(save), &r);
        if (known && k == 0) {
            length = ls_job_count(r.on, length);
            early = ls_list_make((size_t)length + 1, 1);
            late = ls_list_make((size_t)length + 1, 1);
        }
        known = known && ls_job_count(r.on, length) == length &&
                add_trained(r.cut, length, early) && add_trained(r.on, length, late);
        batch = known ? batch_of(r.on) : 0;
        if (known) {
            judge_offset(&r, load, k, out);
        }
    }
    int fill = batch * trace->world, again = 0, never = 0;
    int backwards = known ? most_backwards(&trace->before->rank[0]) : 1;
    int slack = r.within ? fill * backwards : fill;
    if (known && ls_verdict_good(out->verdict.code) && count_above(early, length, 1) <= fill &&
        count_above(late, length, 1) <= fill) {
        for (int i = 0; i < length; i++) {
            again += early[i] > 0 && late[i] > 0;
            never += early[i] == 0 && late[i] == 0;
        }
        if (again > slack || (r.within && never > slack)) {
            ls_observe_finding one = {0};
            ls_verdict_fail(&one.verdict,
                            "%d of %d samples were trained on before %.100s was written and come "
                            "again in the rest of the pass, and %d never come",
                            again, length, path, never);
            report_rest(&r, ls_event_text(rng != NULL ? rng : load, at, ""), &one);
            (may_begin_anew(&r, backwards, never > slack) ? ls_finding_guess
                                                          : ls_calls_keep_worst)(out, &one);
        }
    }
    free(early);
    free(late);
}

void ls_restored_judge_data(const ls_observe_trace *trace, ls_observe_finding *out)
{
    judge_batches(trace, out);
    if (ls_verdict_good(out->verdict.code)) {
        judge_pass_again(trace, out);
    }
    if (ls_verdict_good(out->verdict.code)) {
        judge_skipped_pass(trace, out);
    }
    if (ls_verdict_good(out->verdict.code)) {
        judge_rest(trace, out);
    }
}

/* ---- moments and settings of other parameters ------------------------------------------------ */

/* One model of the same class in both jobs: names mean the same in both. */
static bool is_one_model(const ls_observe_rank *a, const ls_observe_rank *b)
{
    const ls_event *one = ls_trace_last(a, model), *other = ls_trace_last(b, model);
    return ls_job_models(a) == 1 && ls_job_models(b) == 1 && ls_event_same(one, other, name);
}

/* The place of a text in a list; -1: none, or several. */
static int place_of(const ls_event *list, const char *text)
{
    const ls_event *one;
    int place = 0, found = -1, times = 0;
    ls_event_each(one, list) {
        if (ls_event_is_text(one) && strcmp(one->text, text) == 0) {
            found = place;
            times++;
        }
        place++;
    }
    return times == 1 ? found : -1;
}

/* A parameter with the moments that the file has of another one. */
static void judge_marks(const ls_event *save, const ls_event *restore, int k,
                        ls_observe_finding *out)
{
    const ls_event *had = ls_event_list(save, moments), *has = ls_event_list(restore, moments);
    const ls_event *wrote = ls_event_list(save, marks), *reads = ls_event_list(restore, marks);
    const ls_event *name, *other = NULL, *first = NULL;
    int place = 0, wrong = 0;
    ls_event_each(name, has) {
        const char *mark = ls_event_to_text(ls_event_at(reads, place++), "");
        const char *text = ls_event_to_text(name, "?");
        int own = place_of(had, text), from = place_of(wrote, mark);
        const char *source = from < 0 ? "" : ls_event_to_text(ls_event_at(had, from), "");
        if (own >= 0 && from >= 0 && own != from && place_of(has, source) >= 0) {
            first = wrong == 0 ? name : first;
            other = wrong == 0 ? ls_event_at(had, from) : other;
            wrong++;
        }
    }
    if (wrong > 0) {
        ls_finding_set(
            out, LS_FAIL, ls_event_text(restore, at, ""),
            "an optimizer's state is matched by position, and its parameters come in another "
            "order than in the job that wrote the file",
            "build the parameters in the same order, or load the state by names",
            "rank %d: %d parameters have the moments of another one: %s those that the file has "
            "of %s",
            k, wrong, first->text, other->text);
    }
}

/* Groups with the file's settings in their order, that have one another's parameters. */
static void judge_members(const ls_observe_rank *now, const ls_observe_rank *before,
                          const ls_event *restore, int k, ls_observe_finding *out)
{
    int number = ls_event_int(restore, which, -1), place = 0;
    const ls_event *own = ls_event_list(ls_job_optimizer(now, number), groups), *group, *name;
    const ls_event *old = ls_event_list(ls_job_optimizer(before, number), groups);
    ls_job_names moved = {0};
    double gives = NAN, had = NAN;
    ls_event_each(group, own) {
        const ls_event *same = ls_event_at(old, place++);
        if (ls_event_number(group, weight_decay, NAN) != ls_event_number(same, weight_decay, NAN)) {
            return; /* set by the script, or matched by names */
        }
    }
    ls_event_each(group, place == ls_event_count(old) ? own : NULL) {
        ls_event_each(name, ls_event_list(group, params)) {
            int optimizer, at;
            const ls_event *was =
                ls_job_group(before, ls_event_to_text(name, "?"), number - 1, &optimizer, &at);
            double decay = ls_event_number(group, weight_decay, NAN);
            if (was != NULL && optimizer == number &&
                ls_event_number(was, weight_decay, NAN) != decay) {
                ls_job_add_name(&moved, name->text);
                gives = decay;
                had = ls_event_number(was, weight_decay, NAN);
            }
        }
    }
    if (moved.count > 0) {
        ls_finding_set(out, LS_FAIL, ls_event_text(restore, at, ""),
                       "an optimizer's settings are matched by position, and its groups have other "
                       "parameters than in the job that wrote the file",
                       "build the groups in the same order, or load their state by names",
                       "rank %d: %s have the decay %g, and had %g when the file was written", k,
                       ls_job_names_text(&moved), gives, had);
    }
}

void ls_restored_judge_places(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world && ls_verdict_good(out->verdict.code); k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_event *load = ls_event_at(ls_trace_events(rank, load), 0);
        const ls_event *restore = last_restore(rank, "optimizer");
        int writer = 0;
        const ls_event *save = written_by(trace->before, ls_event_text(load, path, ""), &writer);
        const ls_observe_rank *before = &trace->before->rank[writer];
        if (save == NULL || restore == NULL || !is_one_model(rank, before)) {
            continue;
        }
        judge_marks(save, restore, k, out);
        if (ls_verdict_good(out->verdict.code)) {
            judge_members(rank, before, restore, k, out);
        }
    }
}

/* ---- what a file lacks ----------------------------------------------------------------------- */

/* The digest that the writer had of a parameter of that type which its file lacks, "" otherwise. */
static const char *lacked(const ls_event *save, const char *name, const char *type)
{
    const ls_event *pair;
    ls_event_each(pair, ls_event_list(save, lacks)) {
        if (strcmp(ls_event_to_text(ls_event_at(pair, 0), ""), name) == 0 &&
            strcmp(ls_event_to_text(ls_event_at(pair, 2), ""), type) == 0) {
            return ls_event_to_text(ls_event_at(pair, 1), "");
        }
    }
    return "";
}

static const ls_event *writes(const ls_observe_trace *trace, const char *path)
{
    int rank;
    const ls_event *save = written_by(trace, path, &rank);
    return save != NULL || trace->before == NULL ? save : written_by(trace->before, path, &rank);
}

static void judge_used(const ls_observe_trace *trace, int k, const ls_event *left,
                       ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const char *name = ls_event_text(left, name, ""), *bits = ls_event_text(left, bits, "");
    int optimizer, group;
    const ls_event *load;
    if (ls_job_group(rank, ls_event_text(left, full, ""), -1, &optimizer, &group) != NULL) {
        return; /* a new part, which is trained from here on */
    }
    ls_event_each(load, ls_trace_events(rank, load)) {
        const ls_event *save = writes(trace, ls_event_text(load, path, ""));
        const char *had = lacked(save, name, ls_event_text(left, type, "?"));
        if (had[0] != '\0' && bits[0] != '\0' && strcmp(had, bits) != 0) {
            ls_finding_set(
                out, LS_FAIL, ls_event_text(left, at, ""),
                "the file has only what an optimizer trains: the rest of the model is used as it "
                "was drawn",
                "save model.state_dict() of the whole model, and load it with strict=True",
                "rank %d: %.100s was written (%s) without %.80s, which nothing gave the value "
                "that it had then before it was used",
                k, ls_event_text(load, path, ""), ls_event_text(save, at, ""), name);
            return;
        }
    }
}

void ls_restored_judge_left(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *left;
        ls_event_each(left, ls_trace_events(&trace->rank[k], left)) {
            if (ls_verdict_good(out->verdict.code)) {
                judge_used(trace, k, left, out);
            }
        }
    }
}

/* ---- a job that goes on without the file's moments ------------------------------------------- */

/* One optimizer in each job, of the same class, as it was built, of the same parameters. */
static bool is_same_optimizer(const ls_observe_rank *a, const ls_observe_rank *b)
{
    const ls_event *all = ls_trace_events(a, optimizer), *others = ls_trace_events(b, optimizer);
    const ls_event *one = ls_event_at(all, 0), *other = ls_event_at(others, 0), *group;
    const ls_event *groups = ls_event_list(other, groups);
    int place = 0;
    if (ls_event_count(all) != 1 || ls_event_count(others) != 1 ||
        !ls_event_same(one, other, class)) {
        return false;
    }
    ls_event_each(group, ls_event_list(one, groups)) {
        const ls_event *was = ls_event_at(groups, place++), *name;
        double rate = ls_event_number(group, built_lr, NAN);
        double decay = ls_event_number(group, weight_decay, 0);
        const ls_event *names = ls_event_list(was, params);
        int at = 0;
        ls_event_each(name, ls_event_list(group, params)) {
            if (strcmp(ls_event_to_text(name, ""),
                       ls_event_to_text(ls_event_at(names, at++), "?")) != 0) {
                return false;
            }
        }
        if (at != ls_event_count(names) || rate != ls_event_number(was, built_lr, NAN) ||
            decay != ls_event_number(was, weight_decay, 0)) {
            return false;
        }
    }
    return place > 0 && place == ls_event_count(groups);
}

/* The weights in the file are given to a model before the first step, to the bit. */
static bool has_weights(const ls_observe_rank *rank, const ls_event *save)
{
    const ls_event *restore, *pair;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        const char *bits = ls_event_text(restore, bits, "");
        ls_event_each(pair, ls_event_list(save, digests)) {
            if (ls_saved_step(restore) == 0 && bits[0] != '\0' &&
                strcmp(bits, ls_event_to_text(ls_event_at(pair, 1), "")) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* The rate of the first step is that of the last one before the file, or a schedule's state was
 * restored. */
static bool keeps_rate(const ls_observe_rank *rank, const ls_observe_rank *before, int64_t saved)
{
    const ls_call *first = NULL, *last = NULL;
    for (int i = 0; i < rank->step_count && first == NULL; i++) {
        ls_job_steps_of(&rank->step[i], 0, &first);
    }
    for (int i = 0; i < before->step_count && before->step[i].step->step <= saved; i++) {
        const ls_call *own = NULL;
        last = ls_job_steps_of(&before->step[i], 0, &own) > 0 ? own : last;
    }
    bool same = first != NULL && last != NULL && ls_calls_rate(first, 0) == ls_calls_rate(last, 0);
    return same || last_restore(rank, "schedule") != NULL;
}

/* The pass of the first steps has the same data as the last one before the file, and the sampler's
 * epoch behind it, or its own where the file cut it. */
static bool follows_pass(const ls_observe_rank *rank, const ls_observe_rank *before, int64_t saved)
{
    const ls_event *now = ls_pass_trained(rank, 0), *data, *last = NULL;
    ls_event_each(data, ls_trace_events(before, data)) {
        last = ls_pass_is_trained(data) && ls_pass_first_step(data) <= (double)saved ? data : last;
    }
    if (now == NULL || last == NULL || !is_same_data(now, last) ||
        !ls_event_same(now, last, source)) {
        return false;
    }
    int epoch = ls_event_int(now, sampler_epoch, -1), was = ls_event_int(last, sampler_epoch, -1);
    return epoch >= 1 && epoch == was + was_whole(last, saved);
}

/* The job writes the file again with the optimizer's state. */
static bool writes_moments(const ls_observe_trace *trace, const ls_event *load)
{
    const ls_event *save;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            if (ls_saved_step(save) > 0 && ls_saved_has(save, "optimizer") &&
                strcmp(ls_event_text(save, path, ""), ls_event_text(load, path, "?")) == 0) {
                return true;
            }
        }
    }
    return false;
}

bool ls_restored_goes_on(const ls_observe_trace *trace, int k, const ls_event *load)
{
    const ls_observe_trace *before = trace->before;
    int writer = 0;
    const ls_event *save = before != NULL && before->world == trace->world
                               ? written_by(before, ls_event_text(load, path, ""), &writer)
                               : NULL;
    const ls_observe_rank *rank = &trace->rank[k];
    if (save == NULL || ls_event_count(ls_event_list(save, moments)) == 0) {
        return false;
    }
    int64_t saved = ls_saved_step(save);
    return writes_moments(trace, load) && has_weights(rank, save) &&
           is_same_optimizer(rank, &before->rank[writer]) &&
           keeps_rate(rank, &before->rank[writer], saved) &&
           follows_pass(rank, &before->rank[k], saved);
}

/* ---- a schedule that begins anew ------------------------------------------------------------- */

enum { RATES = 256 };

/* The rates that calls of schedules give behind the first attempt of a step, up to step `until`; a
 * script may step them many times before that, to come back to where they were. */
static int rates_of(const ls_observe_rank *rank, int64_t until, double rate[RATES])
{
    int count = 0;
    bool begun = false;
    ls_trace_each_call_of(walk, rank) {
        begun = begun || ls_calls_is_attempt(walk.call);
        if (begun && walk.call->kind == LS_CALL_SCHEDULE && count < RATES &&
            walk.step->step->step <= until) {
            rate[count++] = ls_event_number_at(ls_event_list(walk.call->json, lr), 0);
        }
    }
    return count;
}

/* One schedule of one class in both jobs, whose state neither file nor job has. */
static const ls_event *same_schedule(const ls_observe_rank *rank, const ls_observe_rank *before)
{
    const ls_event *now = ls_trace_events(rank, schedule), *was = ls_trace_events(before, schedule);
    bool same = ls_event_count(now) == 1 && ls_event_count(was) == 1 &&
                ls_event_same(ls_event_at(now, 0), ls_event_at(was, 0), class);
    return same && last_restore(rank, "schedule") == NULL ? ls_event_at(now, 0) : NULL;
}

static const ls_tol same_factor =
    LS_TOL(0x1p-40, "of a factor of two rates, which are products and quotients in FP64");
static const ls_tol other_factor =
    LS_TOL(0x1p-20, "of a factor: less is a course with one factor, which may restart anywhere");

/* Whether the schedule's first steps multiply the file's rate as those of the first job multiplied
 * its first rate, and not as the last one before the file did: schedules that compute a rate from
 * the one before. */
static bool is_course_anew(double file, const double *now, int count, double first,
                           const double *then, int all)
{
    double begin = then[0] / first, last = then[all - 1] / then[all - 2];
    bool same = fabs(last - begin) > other_factor.value * fabs(begin);
    for (int i = 0; i < count && i < all; i++) {
        double was = then[i] / (i > 0 ? then[i - 1] : first);
        double is = now[i] / (i > 0 ? now[i - 1] : file);
        same = same && fabs(is - was) <= same_factor.value * fabs(was);
    }
    return same;
}

/* The count of the schedule's first step in a job; NaN: it has none. */
static double first_count(const ls_observe_rank *rank)
{
    const ls_call *call = ls_trace_first(rank, LS_CALL_SCHEDULE);
    return call == NULL ? NAN : ls_event_number(call->json, epoch, NAN);
}

/* The passes go on where the file's job was and the optimizer has the file's state, but the rates
 * are, to the bit, those of that job's begin, and fall once more from above the file's rate; or
 * the schedule counts from 1 and takes the rate down from the file's as it did at that begin. */
static void judge_anew_schedule(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k], *before = &trace->before->rank[k];
    const ls_event *load = last_restore(rank, "optimizer"), *file;
    const ls_event *schedule = same_schedule(rank, before);
    const ls_event *optimizer = ls_event_at(ls_trace_events(rank, optimizer), 0);
    double rate = ls_event_number_at(ls_event_list(ls_event_object(optimizer, restored), lr), 0);
    double now[RATES], then[RATES], most = 0;
    int64_t saved = -1;
    ls_event_each(file, ls_trace_events(rank, load)) {
        int64_t own = last_save(&trace->before->rank[0], ls_event_text(file, path, ""));
        saved = own > saved ? own : saved;
    }
    if (load == NULL || schedule == NULL || saved < 1 || !(rate > 0) ||
        !follows_pass(rank, before, saved)) {
        return;
    }
    int count = rates_of(rank, INT64_MAX, now), all = rates_of(before, saved, then);
    bool falls = false, same_bits = count >= 2 && all >= 2;
    for (int i = 0; i < count && i < all; i++) {
        same_bits = same_bits && now[i] == then[i];
        falls = falls || (i > 0 && now[i] < now[i - 1]);
        most = fmax(most, now[i]);
    }
    const ls_call *first = NULL;
    for (int i = 0; i < before->step_count && first == NULL; i++) {
        ls_job_steps_of(&before->step[i], 0, &first);
    }
    double used = first == NULL ? rate : ls_calls_rate(first, 0);
    /* a course that had come back to its begin goes on with the same rates */
    bool from_start = same_bits && falls && most > rate;
    bool from_file = count >= 2 && all >= 2 && first_count(rank) == 1 &&
                     is_course_anew(rate, now, count, used, then, all);
    if (used != rate && (from_start || from_file)) {
        ls_finding_set(out, LS_FAIL, ls_event_text(schedule, at, ""),
                       "the schedule's state is neither saved nor restored: its course begins anew "
                       "while weights, moments and epochs go on",
                       "save schedule.state_dict() with the optimizer's, and load it",
                       "rank %d: the file's rate is %g, and the job %s %g and %g, the %s of the "
                       "first job's begin",
                       k, rate, from_start ? "goes on with" : "multiplies it by",
                       from_start ? now[0] : now[0] / rate, from_start ? now[1] : now[1] / now[0],
                       from_start ? "rates" : "factors");
    }
}

void ls_restored_judge_schedules(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        if (ls_verdict_good(out->verdict.code)) {
            judge_anew_schedule(trace, k, out);
        }
    }
}

/* ---- an average that begins anew ------------------------------------------------------------- */

/* The number of the copy that had these bits when the file was written; -1: none. */
static int average_of(const ls_observe_trace *writer, const char *path, const char *bits)
{
    const ls_event *one, *pair;
    for (int k = 0; k < writer->world && bits[0] != '\0'; k++) {
        ls_event_each(one, ls_trace_events(&writer->rank[k], save)) {
            ls_event_each(pair, ls_event_list(one, averages)) {
                if (strcmp(ls_event_text(one, path, "?"), path) == 0 &&
                    strcmp(ls_event_to_text(ls_event_at(pair, 1), ""), bits) == 0) {
                    return ls_event_to_int(ls_event_at(pair, 0), -1);
                }
            }
        }
    }
    return -1;
}

/* How the copy moved in that step, or in the first one behind it that is known; NULL: in none. */
static const ls_event *moved_in(const ls_observe_rank *rank, int number, int64_t step)
{
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, averaged)) {
        if (ls_event_int(one, average, -1) == number && ls_saved_step(one) >= step) {
            return one;
        }
    }
    return NULL;
}

/* Shares that rounding may make unequal. */
static bool is_share(const ls_event *a, const ls_event *b)
{
    double bound = ls_event_number(a, bound, NAN) + ls_event_number(b, bound, NAN);
    return fabs(ls_event_number(a, share, NAN) - ls_event_number(b, share, NAN)) <= bound;
}

static const ls_tol apart = LS_TOL(16, "bounds: a decay that changes from step to step");
enum { FIRST = 3 }; /* steps, which are looked at in detail in both jobs */

/* Whether a load_state_dict gave these bits. */
static bool was_given(const ls_observe_rank *rank, const char *bits)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(restore, bits, "?"), bits) == 0) {
            return true;
        }
    }
    return false;
}

/* Averages that move by more than rounding. */
static int count_moving(const ls_observe_rank *rank)
{
    const ls_event *one;
    int count = 0;
    ls_event_each(one, ls_trace_events(rank, averaged)) {
        count += ls_event_has(one, bits) &&
                 ls_event_number(one, share, 0) > ls_event_number(one, bound, INFINITY);
    }
    return count;
}

/* The only average of a job that goes on begins neither as the writer left its own, nor as weights
 * of a file, nor as those of the model are: with the bits that the writer's began with, it holds
 * what was drawn. */
static void judge_anew(const ls_observe_trace *trace, int k, const ls_event *first,
                       ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k], *before = &trace->before->rank[k];
    const ls_event *load = ls_event_at(ls_trace_events(rank, load), 0);
    const char *bits = ls_event_text(first, bits, ""), *path = ls_event_text(load, path, "");
    int writer = 0;
    const ls_event *save = written_by(trace->before, path, &writer);
    const ls_event *was = moved_in(before, 0, 1);
    bool drawn = was != NULL && ls_event_same(was, first, bits);
    if (last_restore(rank, "optimizer") == NULL || save == NULL || was_given(rank, bits) ||
        count_moving(rank) != 1 || count_moving(before) != 1 ||
        ls_event_count(ls_event_list(save, averages)) != 1) {
        return;
    }
    ls_observe_finding one = {0};
    ls_finding_set(&one, LS_FAIL, ls_event_text(load, at, ""),
                   "the average is made before the file's weights are loaded, and nothing is "
                   "loaded into it: it begins with weights as they were drawn",
                   "save the average and load it, or make it of the weights that were loaded",
                   "rank %d: the average of the job that goes on from %.100s begins neither with "
                   "what the average of the job that wrote it held then, nor with weights that "
                   "were loaded%s",
                   k, path, drawn ? ", but as that one began, to the bit" : "");
    (drawn ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* The share of the way that an average moves changes from step to step, by a count of them. In a
 * job that has it from a file, the shares of the first steps are those of the job that wrote it. */
static void judge_average(const ls_observe_trace *trace, int k, const ls_event *first,
                          ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k], *before = &trace->before->rank[k];
    const ls_event *load = ls_event_at(ls_trace_events(rank, load), 0), *restore, *place = load;
    const char *bits = ls_event_text(first, bits, ""), *path = ls_event_text(load, path, "");
    int number = ls_event_int(first, average, -1), was = average_of(trace->before, path, bits);
    const ls_event *begin = moved_in(before, was, 1), *end = NULL, *later;
    if (was < 0) {
        judge_anew(trace, k, first, out);
        return;
    }
    for (int step = 1; step <= FIRST; step++) {
        const ls_event *now = moved_in(rank, number, step), *then = moved_in(before, was, step);
        if (now == NULL || then == NULL || ls_saved_step(now) != step ||
            ls_saved_step(then) != step || !is_share(now, then)) {
            return;
        }
        end = then;
    }
    double change = fabs(ls_event_number(begin, share, NAN) - ls_event_number(end, share, NAN));
    double bound = ls_event_number(begin, bound, NAN) + ls_event_number(end, bound, NAN);
    if (!(change > apart.value * bound)) {
        return;
    }
    /* a course that the script begins anew within a job, too, is its own */
    for (later = moved_in(before, was, FIRST + 1); later != NULL;
         later = moved_in(before, was, ls_saved_step(later) + 1)) {
        if (is_share(later, begin)) {
            return;
        }
    }
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        place = strcmp(ls_event_text(restore, bits, ""), bits) == 0 ? restore : place;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(place, at, ""),
        "the decay of an average of the weights follows a count of its updates, which the job that "
        "goes on begins anew: its first updates take most of the average away",
        "save the count of updates with the average (as a buffer), and restore it",
        "rank %d: the average that %.100s holds moves %.3g, then %.3g of the way to the weights in "
        "its first updates, as it did when the job that wrote it began",
        k, path, ls_event_number(begin, share, NAN),
        ls_event_number(moved_in(before, was, 2), share, NAN));
}

void ls_restored_judge_averages(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *one;
        ls_event_each(one, ls_trace_events(&trace->rank[k], averaged)) {
            if (ls_event_has(one, bits) && ls_verdict_good(out->verdict.code)) {
                judge_average(trace, k, one, out);
            }
        }
    }
}
