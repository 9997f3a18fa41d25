/* A job that goes on from a file, next to the job that wrote it: data that were trained on before
 * the file was written and come again, or never come. */

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
    int64_t saved = ls_saved_last(&trace->before->rank[0], ls_event_text(load, path, ""));
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

/* How many batches, from the first, are those with which the job that wrote the file began, to the
 * bit; 0: other ones come among the first, or they are too few, or all equal. */
static int inputs_again(const ls_observe_trace *trace, int k)
{
    enum { MOST = 16 };
    const char *before[MOST], *now[MOST];
    int count = first_inputs(&trace->rank[k], MOST, now);
    int earlier = first_inputs(&trace->before->rank[k], MOST, before), same = 0;
    while (same < count && same < earlier && strcmp(now[same], before[same]) == 0) {
        same++;
    }
    return same < batches.value || same < count || strcmp(now[0], now[1]) == 0 ? 0 : same;
}

/* The job that wrote the file began with the same batches: they come again, and those after them
 * never do. */
static void judge_batches(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const char *first;
        int same = inputs_again(trace, k);
        if (same == 0 || first_inputs(&trace->rank[k], 1, &first) == 0 ||
            may_come_again(trace, k, first)) {
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
    int64_t saved = ls_saved_last(&trace->before->rank[0], path);
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

/* ---- the rest of a pass ---------------------------------------------------------------------- */

/* What was trained of a pass that was cut, on this rank, and of the pass that goes on with it. */
typedef struct rest {
    const ls_event *cut, *on;
    int skipped, trained, left, whole; /* samples */
    int ahead;   /* batches that the loader fetches before the loop trains on them */
    int later;   /* batches of the cut pass that were trained on behind the file */
    bool within; /* by the sampler's epoch the pass that goes on is the one that was cut */
    bool usual;  /* both leave out as many first batches: a look, or a loader that fetches ahead */
} rest;

/* Samples of a batch, also of a batch sampler that does not say it; 0: unknown. */
static int batch_of(const ls_event *pass)
{
    int batch = ls_job_count(pass, batch), given = ls_job_count(pass, given);
    return batch > 0 || given < 1 ? batch : (ls_job_count(pass, count) + given - 1) / given;
}

static int used_of(const ls_event *pass, int end)
{
    return ls_event_to_int(ls_event_at(ls_event_list(pass, used), end), -end);
}

/* The indices of the batches of a pass that were trained on, but for the last `later` ones:
 * [*count] from the first. The loop is `ahead` batches behind the loader, and catches up at a
 * pass's end. */
static int trained_of(const ls_event *pass, int ahead, int later, int *count)
{
    int batch = batch_of(pass), all = ls_event_count(ls_event_list(pass, kept));
    int behind = later + (ls_event_bool(pass, whole, false) ? 0 : ahead);
    int first = (used_of(pass, 0) - ahead) * batch;
    int last = (used_of(pass, 1) + 1 - behind) * batch;
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

static int backwards_of(const ls_observe_step *step)
{
    int count = 0;
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        count += call->times;
    }
    return count;
}

/* The most batches that a step takes. */
static int most_backwards(const ls_observe_rank *rank)
{
    int most = 1;
    ls_trace_each_step(step, rank) {
        int own = backwards_of(step);
        most = own > most ? own : most;
    }
    return most;
}

/* In the steps behind one, until another one. */
static int backwards_in(const ls_observe_rank *rank, double behind, double until)
{
    int count = 0;
    ls_trace_each_step(step, rank) {
        double number = (double)step->step->step;
        count += number > behind && number <= until ? backwards_of(step) : 0;
    }
    return count;
}

/* The pass that the file cut, in which the job ended; [*later]: batches of it that were trained on
 * behind the file. Of a pass without one backward for each batch, that is not known. */
static const ls_event *cut_pass(const ls_observe_rank *rank, int64_t saved, int *later)
{
    const ls_event *data, *last = NULL;
    ls_event_each(data, ls_trace_events(rank, data)) {
        last = ls_pass_is_trained(data) ? data : last;
    }
    double begin = ls_pass_first_step(last); /* which may be of the pass before */
    if (!(begin <= (double)saved) || ls_event_bool(last, whole, false)) {
        return NULL;
    }
    *later = backwards_in(rank, (double)saved, INFINITY);
    int used = used_of(last, 1) + 1 - used_of(last, 0), own = backwards_in(rank, begin, INFINITY);
    bool each = own <= used && own + most_backwards(rank) >= used;
    return *later == 0 || each ? last : NULL;
}

/* Batches that the loader of the job's first pass fetches before the loop trains on them: so many
 * more have a backward than are followed by one before the next is given. */
static int ahead_of(const ls_observe_rank *rank)
{
    const ls_event *pass = ls_pass_trained(rank, 0), *next = ls_pass_trained(rank, 1);
    double until = next == NULL ? INFINITY : ls_pass_first_step(next);
    int first = used_of(pass, 0);
    int more = backwards_in(rank, 0, until) - (used_of(pass, 1) + 1 - first);
    return more > 0 && more <= first ? more : 0;
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
    return is_known(pass) && trained_of(pass, 0, 0, &trained) == samples && trained > 0;
}

/* Whether the job that wrote the file begins its first pass, or the one that was cut, as the job
 * that goes on does: then these samples are not left out since they were trained on. */
static bool is_usual(const ls_observe_rank *writer, const rest *r)
{
    int drawn = r->skipped + r->ahead * batch_of(r->on);
    return leaves_out(r->cut, drawn) || leaves_out(ls_pass_trained(writer, 0), drawn);
}

/* The job goes on within the pass: what it takes is what was left, or both passes are of one epoch.
 */
static bool find_rest(const ls_observe_trace *trace, int k, int64_t saved, rest *out)
{
    const ls_event *on = ls_pass_trained(&trace->rank[k], 0);
    const ls_event *cut = cut_pass(&trace->before->rank[k], saved, &out->later), *data;
    if (!is_known(on) || !is_known(cut) || !ls_event_bool(on, whole, false) ||
        batch_of(on) != batch_of(cut) || !is_same_data(on, cut)) {
        return false;
    }
    int batch = batch_of(on);
    out->cut = cut;
    out->on = on;
    out->ahead = ahead_of(&trace->rank[k]);
    out->ahead = out->ahead <= used_of(cut, 0) ? out->ahead : 0;
    out->skipped = trained_of(on, out->ahead, 0, &out->left);
    trained_of(cut, out->ahead, out->later, &out->trained);
    out->usual = out->skipped > 0 && is_usual(&trace->before->rank[k], out);
    out->whole = out->skipped > 0 && !out->usual
                     ? ls_job_count(on, count)
                     : ls_job_count(on, length) / (trace->world > 0 ? trace->world : 1);
    ls_event_each(data, ls_trace_events(&trace->before->rank[k], data)) {
        bool same = ls_pass_is_trained(data) && is_same_data(data, on);
        if (same && ls_event_bool(data, whole, false)) {
            out->whole = ls_job_count(data, count);
        }
    }
    out->within = is_within(out);
    return out->trained > 0 && out->left > 0 && !out->usual &&
           (out->within || abs(out->trained + out->left - out->whole) < batch);
}

/* Adds to `times` how often each index was trained on; false: one is none of the data set. */
static bool add_trained(const ls_event *pass, int ahead, int later, int length,
                        unsigned char *times)
{
    const ls_event *one;
    int count, place = 0, first = trained_of(pass, ahead, later, &count);
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

static const ls_tol skipped =
    LS_TOL(2, "batches: a single one may be drawn for a look at the data in each pass");

/* The next pass over the same data that is trained on to its end. */
static const ls_event *pass_behind(const ls_event *data, const ls_event *on)
{
    while ((data = ls_event_after(data)) != NULL) {
        if (ls_pass_is_trained(data) && ls_event_bool(data, whole, false) &&
            is_same_data(data, on)) {
            return data;
        }
    }
    return NULL;
}

/* All passes behind the first one leave out as many of their first samples. */
static void judge_skips(const ls_event *on, int drawn, int samples, const char *file, int k,
                        ls_observe_finding *out)
{
    const ls_event *data = on;
    int skips = 0;
    while ((data = pass_behind(data, on)) != NULL) {
        if (!leaves_out(data, drawn)) {
            return;
        }
        skips++;
    }
    if (skips == 0 || samples < skipped.value * batch_of(on)) {
        return;
    }
    ls_finding_set(out, LS_FAIL, ls_event_text(on, at, ""),
                   "the batches with which the job skips what was trained on are skipped in each "
                   "later pass as well",
                   "skip batches in the first pass alone: set their number to 0 behind it",
                   "rank %d: the first pass leaves out %d samples, which were trained on before "
                   "%.100s was written, and each of the %d passes behind it as many",
                   k, samples, file, skips);
}

/* Later passes that are as short as the rest of the one that was cut, or all leave out what the job
 * left out of that one. */
static void judge_offset(const rest *r, const ls_event *load, int k, ls_observe_finding *out)
{
    const ls_event *data = r->on;
    int batch = batch_of(data), short_ones = 0;
    const char *file = ls_event_text(load, path, "");
    if (!r->usual && abs(r->trained - r->skipped) < batch) {
        judge_skips(r->on, r->skipped + r->ahead * batch, r->skipped, file, k, out);
    }
    while ((data = pass_behind(data, r->on)) != NULL) {
        short_ones += ls_job_count(data, count) == ls_job_count(r->on, count);
    }
    if (short_ones > 0 && ls_job_count(r->on, count) + batch <= r->whole) {
        ls_finding_set(
            out, LS_FAIL, ls_event_text(load, at, ""),
            "the place in the data with which the job goes on is kept for the passes behind it",
            "begin each pass but the first one at its first sample",
            "rank %d: %d passes behind the first one have %d samples, as the rest of the one that "
            "%.100s cut, and not %d",
            k, short_ones, ls_job_count(r->on, count), file, r->whole);
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

/* Whether the file may be the one that was loaded, by the weights: another one may have had its
 * path. */
static bool may_hold(const ls_event *save, const ls_event *restore)
{
    const char *bits = ls_event_text(restore, bits, "");
    const ls_event *pair, *digests = ls_event_list(save, digests);
    ls_event_each(pair, digests) {
        if (strcmp(ls_event_to_text(ls_event_at(pair, 1), ""), bits) == 0) {
            return true;
        }
    }
    return bits[0] == '\0' || ls_event_count(digests) == 0;
}

/* What was trained of a pass before the file, and behind it, is the data set: no sample twice, but
 * for those that fill up each rank's last batch. */
static void judge_rest(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[0], load), 0);
    const char *path = ls_event_text(load, path, "");
    int writer = 0;
    const ls_event *save = ls_saved_by(trace->before, path, &writer);
    const ls_event *rng = ls_saved_last_restored(&trace->rank[0], "rng");
    int length = 0, batch = 0;
    unsigned char *early = NULL, *late = NULL;
    bool known = save != NULL && may_hold(save, ls_saved_restored(&trace->rank[0], "model"));
    rest r = {0};
    for (int k = 0; k < trace->world && known; k++) {
        known = find_rest(trace, k, ls_saved_step(save), &r);
        if (r.usual && abs(r.trained + ls_job_count(r.on, count) - r.whole) < batch_of(r.on)) {
            judge_offset(&r, load, k, out);
        }
        if (known && k == 0) {
            length = ls_job_count(r.on, length);
            early = ls_list_make((size_t)length + 1, 1);
            late = ls_list_make((size_t)length + 1, 1);
        }
        known = known && ls_job_count(r.on, length) == length &&
                add_trained(r.cut, r.ahead, r.later, length, early) &&
                add_trained(r.on, r.ahead, 0, length, late);
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

/* The samples of the pass that a file cut which the job trains on from the first again; 0: none. */
static int samples_again(const ls_event *cut, const ls_event *on)
{
    int trained, again;
    bool ordered = is_known(on) && is_known(cut) && batch_of(on) == batch_of(cut) &&
                   ls_event_bool(on, shuffle, false) && is_one_order(cut, on) &&
                   trained_of(on, 0, 0, &again) == 0 && trained_of(cut, 0, 0, &trained) == 0;
    return !ordered || trained < few.value || again < few.value ? 0
           : trained < again                                    ? trained
                                                                : again;
}

/* A file that counts steps within a pass, which the job trains on from its first batch again: by
 * the order of the samples, or of a stream, which has none, by the bits of the batches. */
static void judge_begun_again(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[0], load), 0), *number;
    const char *path = ls_event_text(load, path, "");
    int64_t saved = ls_saved_last(&trace->before->rank[0], path);
    const ls_event *on = ls_pass_trained(&trace->rank[0], 0);
    int later = 0;
    const ls_event *cut = cut_pass(&trace->before->rank[0], saved, &later);
    bool counts = false;
    ls_event_each(number, ls_event_object(load, numbers)) {
        counts = counts || number->number == (double)saved;
    }
    if (saved < 1 || !counts || later > 0 || on == NULL || cut == NULL || !is_same_data(on, cut) ||
        !ls_event_same(on, cut, source) ||
        ls_event_int(on, sampler_epoch, -1) != ls_event_int(cut, sampler_epoch, -1)) {
        return;
    }
    bool stream = !ls_event_bool(on, indices, true) && !ls_event_bool(cut, indices, true);
    int again = stream ? inputs_again(trace, 0) : samples_again(cut, on);
    if (again == 0) {
        return;
    }
    ls_observe_finding one = {0};
    ls_finding_set(&one, LS_FAIL, ls_event_text(on, at, ""),
                   "the place in the data is neither saved nor restored: the pass that the file "
                   "cut is begun again, and the count of steps goes on",
                   "skip the batches that were trained on (accelerate.skip_first_batches, "
                   "torchdata's StatefulDataLoader), or write files where a pass ends",
                   "the first %d %s of the job are those that were trained on before %.100s "
                   "was written, in one order",
                   again, stream ? "batches" : "samples", path);
    ls_finding_guess(out, &one);
}

/* The same of a job that was killed within the pass, which says nothing of it: the file has the
 * number of the batches. */
static void judge_counted_skips(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *load = ls_event_at(ls_trace_events(&trace->rank[0], load), 0), *number;
    const ls_event *on = ls_pass_trained(&trace->rank[0], 0), *data;
    int batches = used_of(on, 0), drawn = batches * batch_of(on);
    bool known = ls_verdict_good(out->verdict.code) && is_known(on) &&
                 ls_event_bool(on, whole, false) && ahead_of(&trace->rank[0]) < batches;
    bool counts = false;
    ls_event_each(number, ls_event_object(load, numbers)) {
        counts = counts || number->number == batches;
    }
    ls_event_each(data, ls_trace_events(&trace->before->rank[0], data)) {
        known = known && !leaves_out(data, drawn);
    }
    if (known && counts) {
        ls_observe_finding one = {0};
        judge_skips(on, drawn, drawn, ls_event_text(load, path, ""), 0, &one);
        ls_finding_guess(out, &one);
    }
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
        judge_begun_again(trace, out);
        judge_counted_skips(trace, out);
    }
}

bool ls_restored_follows_pass(const ls_observe_rank *rank, const ls_observe_rank *before,
                              int64_t saved)
{
    const ls_event *now = ls_pass_trained(rank, 0), *data, *last = NULL;
    ls_event_each(data, ls_trace_events(before, data)) {
        last = ls_pass_is_trained(data) && ls_pass_first_step(data) <= (double)saved ? data : last;
    }
    if (now == NULL || last == NULL || !is_same_data(now, last) ||
        !ls_event_same(now, last, source)) {
        return false;
    }
    int epoch = ls_event_int(now, sampler_epoch, 0), was = ls_event_int(last, sampler_epoch, -1);
    return epoch >= 1 && epoch == was + was_whole(last, saved);
}
