/* A job that goes on from a file, next to the job that wrote it: moments and weights that came to
 * others, schedules and averages that restart. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/job.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"

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
            double then = ls_event_number(was, weight_decay, NAN);
            if (was == NULL || optimizer != number || then == decay) {
                continue;
            }
            gives = moved.count == 0 ? decay : gives;
            had = moved.count == 0 ? then : had;
            if (decay == gives && then == had) { /* others may have moved the other way */
                ls_job_add_name(&moved, name->text);
            }
        }
    }
    if (moved.count > 0) {
        ls_finding_set(out, LS_FAIL, ls_event_text(restore, at, ""),
                       "an optimizer's settings are matched by position, and its groups have other "
                       "parameters than in the job that wrote the file",
                       "build the groups in the same order, or load their state by names",
                       "rank %d: decay %g of %s, which had %g when the file was written", k, gives,
                       ls_job_names_text(&moved), had);
    }
}

void ls_restored_judge_places(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world && ls_verdict_good(out->verdict.code); k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_event *load = ls_event_at(ls_trace_events(rank, load), 0);
        const ls_event *restore = ls_saved_last_restored(rank, "optimizer");
        int writer = 0;
        const ls_event *save = ls_saved_by(trace->before, ls_event_text(load, path, ""), &writer);
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
    const ls_event *save = ls_saved_by(trace, path, &rank);
    return save != NULL || trace->before == NULL ? save : ls_saved_by(trace->before, path, &rank);
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

/* ---- what was loaded, and drawn again -------------------------------------------------------- */

static const ls_tol unlike =
    LS_TOL(6, "standard deviations, 1 / sqrt(n), of the cosine of a vector of n elements with one "
              "that was drawn without it");
static const ls_tol compared =
    LS_TOL(256, "elements: of fewer, those of an average may be as unlike, and a job may set a few "
                "again on purpose");

/* Whether the writer's training began with these bits in the parameter of that name. */
static bool began_with(const ls_observe_trace *writer, const ls_event *overwritten)
{
    const ls_event *model, *param;
    ls_event_each(model, writer != NULL ? ls_trace_events(&writer->rank[0], model) : NULL) {
        int place = 0;
        for (param = ls_event_first(ls_event_list(model, params)); param != NULL;
             param = ls_event_after(param), place++) {
            const ls_event *bits = ls_event_at(ls_event_list(model, param_digests), place);
            if (strcmp(ls_event_to_text(ls_event_at(param, 0), ""),
                       ls_event_text(overwritten, full, "?")) == 0 &&
                strcmp(ls_event_to_text(bits, ""), ls_event_text(overwritten, bits, "?")) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Whether the optimizer was given moments before the first step. */
static bool goes_on(const ls_observe_rank *rank, int optimizer)
{
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(one, what, ""), "optimizer") == 0 && ls_saved_step(one) == 0 &&
            ls_event_int(one, entries, 0) > 0 && ls_event_int(one, which, optimizer) == optimizer) {
            return true;
        }
    }
    return false;
}

static const ls_tol several = LS_TOL(
    2, "parameters with the bits that the first job began with, where all that were loaded hold "
       "others: an average has those of none");

/* Whether all parameters that a file gave to a model hold others when training begins; of more than
 * are written, all that are. */
static bool all_overwritten(const ls_observe_rank *rank)
{
    enum { WRITTEN = 64 };
    int taken = ls_event_int(ls_saved_last_restored(rank, "model"), taken, WRITTEN);
    int count = ls_event_count(ls_trace_events(rank, overwritten));
    return count > 0 && count >= (taken < WRITTEN ? taken : WRITTEN);
}

/* An optimizer's state goes on; weights that it belongs to do not. What puts an average's raw
 * weights back, or normalises them, leaves them much as they were. */
void ls_restored_judge_overwritten(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world && ls_verdict_good(out->verdict.code); k++) {
        const ls_event *one, *place = NULL;
        ls_job_names names = {0};
        double most = 0;
        ls_event_each(one, ls_trace_events(&trace->rank[k], overwritten)) {
            double count = ls_event_number(one, count, 0), cosine = ls_event_number(one, cosine, 1);
            bool drawn = count >= compared.value && fabs(cosine) * sqrt(count) < unlike.value;
            int optimizer, group;
            if ((drawn || began_with(trace->before, one)) &&
                ls_job_group(&trace->rank[k], ls_event_text(one, full, ""), -1, &optimizer,
                             &group) != NULL &&
                goes_on(&trace->rank[k], optimizer)) {
                place = place == NULL ? one : place;
                most = fmax(most, count);
                ls_job_add_name(&names, ls_event_text(one, name, ""));
            }
        }
        if (most >= compared.value ||
            (names.count >= several.value && all_overwritten(&trace->rank[k]))) {
            ls_finding_set(
                out, LS_FAIL, ls_event_text(place, at, ""),
                "between load_state_dict and the first step the weights are drawn again, "
                "while the optimizer goes on with the state of the old ones",
                "load the file after all that initialises the model",
                "rank %d: %d parameters (%s) do not hold what the file gave them when "
                "training begins, nor anything like it",
                k, names.count, ls_job_names_text(&names));
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
    return same || ls_saved_last_restored(rank, "schedule") != NULL;
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
                               ? ls_saved_by(before, ls_event_text(load, path, ""), &writer)
                               : NULL;
    const ls_observe_rank *rank = &trace->rank[k];
    if (save == NULL || ls_event_count(ls_event_list(save, moments)) == 0) {
        return false;
    }
    int64_t saved = ls_saved_step(save);
    return writes_moments(trace, load) && has_weights(rank, save) &&
           is_same_optimizer(rank, &before->rank[writer]) &&
           keeps_rate(rank, &before->rank[writer], saved) &&
           ls_restored_follows_pass(rank, &before->rank[k], saved);
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
    return same && ls_saved_last_restored(rank, "schedule") == NULL ? ls_event_at(now, 0) : NULL;
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
    const ls_event *load = ls_saved_last_restored(rank, "optimizer"), *file;
    const ls_event *schedule = same_schedule(rank, before);
    const ls_event *optimizer = ls_event_at(ls_trace_events(rank, optimizer), 0);
    double rate = ls_event_number_at(ls_event_list(ls_event_object(optimizer, restored), lr), 0);
    double now[RATES], then[RATES], most = 0;
    int64_t saved = -1;
    ls_event_each(file, ls_trace_events(rank, load)) {
        int64_t own = ls_saved_last(&trace->before->rank[0], ls_event_text(file, path, ""));
        saved = own > saved ? own : saved;
    }
    if (load == NULL || schedule == NULL || saved < 1 || !(rate > 0) ||
        !ls_restored_follows_pass(rank, before, saved)) {
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

/* By more than rounding. */
static bool moves(const ls_event *averaged)
{
    return ls_event_number(averaged, share, 0) > ls_event_number(averaged, bound, INFINITY);
}

static int count_moving(const ls_observe_rank *rank)
{
    const ls_event *one;
    int count = 0;
    ls_event_each(one, ls_trace_events(rank, averaged)) {
        count += ls_event_has(one, bits) && moves(one);
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
    const ls_event *save = ls_saved_by(trace->before, path, &writer);
    const ls_event *was = moved_in(before, 0, 1);
    bool drawn = was != NULL && ls_event_same(was, first, bits);
    if (ls_saved_last_restored(rank, "optimizer") == NULL || save == NULL || !moves(first) ||
        was_given(rank, bits) || count_moving(rank) != 1 || count_moving(before) != 1 ||
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

/* The only average of a job that goes on begins as weights that were loaded, though the file holds
 * the average: what was loaded of it is not the one that is kept. */
static void judge_replaced(const ls_observe_trace *trace, int k, const ls_event *first,
                           ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k], *before = &trace->before->rank[k];
    const ls_event *load = ls_event_at(ls_trace_events(rank, load), 0);
    const char *path = ls_event_text(load, path, "");
    int writer = 0;
    const ls_event *save = ls_saved_by(trace->before, path, &writer);
    const ls_event *averages = ls_event_list(save, averages);
    if (ls_saved_last_restored(rank, "optimizer") == NULL || save == NULL || !moves(first) ||
        !was_given(rank, ls_event_text(first, bits, "")) || count_moving(rank) != 1 ||
        count_moving(before) != 1 || ls_event_count(averages) != 1 ||
        !ls_event_to_bool(ls_event_at(ls_event_at(averages, 0), 2), false)) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(load, at, ""),
        "the average is made again, of the weights that were loaded: what the file holds "
        "of it is not loaded, or is replaced after that",
        "load the average from the file after it is made, and keep it",
        "rank %d: the job goes on from %.100s, which holds the average of the weights, "
        "and its own begins with the weights",
        k, path);
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
        judge_replaced(trace, k, first, out);
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

static const ls_tol copied = LS_TOL(0.7, "of the way to the weights: an average that goes more of "
                                         "it may be the weights themselves, as where it begins");

/* What a model was last given before its training began, where it still holds that then. */
static const ls_event *loaded_into(const ls_observe_rank *rank, int model)
{
    const ls_event *one, *last = NULL;
    ls_event_each(one, ls_trace_events(rank, restore)) {
        bool own = ls_event_int(one, which, -1) == model && ls_saved_step(one) == 0;
        last = own && strcmp(ls_event_text(one, what, ""), "model") == 0 ? one : last;
    }
    return ls_event_count(ls_trace_events(rank, overwritten)) == 0 ? last : NULL;
}

/* The step of an earlier file that holds an average's bits as the model's, behind which the job
 * trained on from the weights that its optimizer had left; 0: none. */
static int64_t put_back(const ls_observe_rank *rank, int64_t before)
{
    const ls_event *save, *validated;
    ls_event_each(save, ls_trace_events(rank, save)) {
        int64_t step = ls_saved_step(save);
        const ls_event *file = ls_event_at(ls_event_at(ls_event_list(save, digests), 0), 1);
        const char *left = ls_trace_digest(ls_trace_step(rank, step), LS_RECORD_PARAM);
        ls_event_each(validated, step < before ? ls_trace_events(rank, validated) : NULL) {
            const char *own = ls_event_text(validated, param, "");
            if (ls_saved_step(validated) == step && left != NULL && strcmp(own, left) != 0 &&
                strcmp(ls_event_to_text(file, "?"), own) == 0 &&
                strcmp(ls_event_text(validated, param_next, ""), left) == 0) {
                return step;
            }
        }
    }
    return 0;
}

/* Training goes on, with the optimizer's state, from the weights of the average: it was in the
 * model when the file was written. The average followed the weights in smaller steps by then. */
static void judge_exchanged(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *load = ls_event_at(ls_trace_events(rank, load), 0), *model, *one, *last = NULL;
    const char *path = ls_event_text(load, path, "");
    int writer = 0, number = -1;
    const ls_event *save = ls_saved_by(trace->before, path, &writer);
    ls_event_each(model, ls_trace_events(rank, model)) {
        const char *bits = ls_event_text(ls_event_object(model, digest), param, "");
        int index = ls_event_int(model, model, -1);
        bool trained = ls_job_is_trained(rank, index, true);
        number = trained && number < 0 ? average_of(trace->before, path, bits) : number;
        /* of a wrapper the event is older than what was loaded into it */
        const ls_event *given = loaded_into(rank, index);
        number = trained && number < 0 && given != NULL
                     ? average_of(trace->before, path, ls_event_text(given, bits, ""))
                     : number;
    }
    ls_event_each(one, ls_trace_events(&trace->before->rank[writer], averaged)) {
        bool then =
            ls_event_int(one, average, -1) == number && ls_saved_step(one) <= ls_saved_step(save);
        last = then ? one : last;
    }
    if (save == NULL || number < 0 || last == NULL || !moves(last) ||
        ls_event_number(last, share, 1) > copied.value ||
        ls_saved_last_restored(rank, "optimizer") == NULL) {
        return;
    }
    int64_t trained = put_back(&trace->before->rank[writer], ls_saved_step(save));
    LS_TEXT(as, 100, ", as the job that wrote it did behind step %lld", (long long)trained);
    ls_observe_finding found = {0};
    ls_finding_set(&found, LS_FAIL, ls_event_text(load, at, ""),
                   "the file was written while the average was in the model, and the weights that "
                   "were trained are not put back",
                   "put the trained weights back before the file is written, or save both and "
                   "load the trained ones into the model",
                   "rank %d: the job goes on, with the optimizer's state, from the bits of the "
                   "average of the weights in %.100s, not from the weights that were trained%s",
                   k, path, trained > 0 ? as : "");
    (trained > 0 ? ls_calls_keep_worst : ls_finding_guess)(out, &found);
}

void ls_restored_judge_averages(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *one;
        judge_exchanged(trace, k, out);
        ls_event_each(one, ls_trace_events(&trace->rank[k], averaged)) {
            if (ls_event_has(one, bits) && ls_verdict_good(out->verdict.code)) {
                judge_average(trace, k, one, out);
            }
        }
    }
}
