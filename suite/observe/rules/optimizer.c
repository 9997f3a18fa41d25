/* Which parameters the optimizers hold, and at which rate they step. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/text.h"
#include "rules.h"

/* ---- every parameter in one group ------------------------------------------------------------ */

/* What detailed steps of rank 0 show of a parameter's gradient: 0 nothing, 1 zeros, or what was
 * reduced alone, 2 others. */
static int gradient_of(const ls_observe_trace *trace, const char *name, ls_observe_finding *out)
{
    int found = 0;
    for (int64_t n = 0; found < 2 && (n = ls_samples_next(trace, n)) != 0;) {
        ls_dumpfile *file = ls_trace_samples(trace, 0, ls_trace_step(&trace->rank[0], n), out);
        ls_values local = ls_samples_read(file, "local", name, NULL);
        if (!ls_samples_zero(&local)) {
            found = 2;
        } else if (local.v != NULL || ls_samples_find(file, "reduced", name, NULL) != NULL) {
            found = 1;
        }
        ls_samples_free(&local);
        ls_dumpfile_close(file);
    }
    return found;
}

static int count_foreign(const ls_observe_rank *rank, const char **at)
{
    int foreign = 0;
    const ls_event *event, *group, *param;
    ls_event_each(event, ls_trace_events(rank, optimizer)) {
        ls_event_each(group, ls_event_list(event, groups)) {
            ls_event_each(param, ls_event_list(group, params)) {
                if (ls_event_is_text(param) && strcmp(param->text, "?") == 0) {
                    foreign++;
                    *at = ls_event_text(event, at, "");
                }
            }
        }
    }
    return foreign;
}

/* Two optimizers that hold it and stepped in the same step; which the second is. */
static bool is_stepped_by_two(const ls_observe_rank *rank, const char *name, int *which)
{
    int first, second, index;
    const ls_call *call = NULL;
    if (ls_job_group(rank, name, -1, &first, &index) == NULL ||
        ls_job_group(rank, name, first, &second, &index) == NULL) {
        return false;
    }
    for (int i = 0; i < rank->step_count; i++) {
        if (ls_job_steps_of(&rank->step[i], first, &call) > 0 &&
            ls_job_steps_of(&rank->step[i], second, &call) > 0) {
            *which = second;
            return true;
        }
    }
    return false;
}

/* Whether a parameter has other values in a detailed step than in the first one. */
static bool moves(const ls_observe_trace *trace, const char *name, ls_observe_finding *out)
{
    ls_values first = {0};
    bool moved = false;
    for (int64_t n = 0; !moved && (n = ls_samples_next(trace, n)) != 0;) {
        ls_dumpfile *file = ls_trace_samples(trace, 0, ls_trace_step(&trace->rank[0], n), out);
        ls_values now = ls_samples_read(file, "param", name, NULL);
        for (int64_t i = 0; i < now.count && now.v != NULL && first.v != NULL; i++) {
            moved = moved || now.v[i] != first.v[i];
        }
        if (first.v == NULL) {
            first = now;
        } else {
            ls_samples_free(&now);
        }
        ls_dumpfile_close(file);
    }
    ls_samples_free(&first);
    return moved;
}

typedef struct cover {
    int covered;
    ls_job_names lost, moved, idle, doubled, other_model; /* moved: by the script itself */
    int second; /* of the two optimizers that hold those doubled */
    int torn;   /* of those lost: others of the same module are covered */
    int64_t lost_elements, covered_elements;
} cover;

/* By an optimizer of any rank: parameters may be dealt to the ranks. */
static bool is_held(const ls_observe_trace *trace, const char *name)
{
    int optimizer, index;
    bool held = false;
    for (int k = 0; k < trace->world && !held; k++) {
        held = ls_job_group(&trace->rank[k], name, -1, &optimizer, &index) != NULL;
    }
    return held;
}

/* Whether an optimizer holds the weight of a module whose bias this is, or the other way round: a
 * parameter of another name may be left out on purpose, as a temperature. */
static bool is_torn(const ls_observe_trace *trace, const char *name)
{
    const char *dot = strrchr(name, '.');
    bool weight = dot != NULL && strcmp(dot, ".weight") == 0;
    if (!weight && (dot == NULL || strcmp(dot, ".bias") != 0)) {
        return false;
    }
    LS_TEXT(other, 256, "%.*s%s", (int)(dot - name), name, weight ? ".bias" : ".weight");
    const ls_observe_tensor *tensor = ls_job_tensor(&trace->rank[0], other);
    return tensor != NULL && tensor->trainable && is_held(trace, other);
}

static void add_lost(const ls_observe_trace *trace, const ls_observe_tensor *tensor, cover *c)
{
    ls_job_add_name(&c->lost, tensor->name);
    c->lost_elements += tensor->elements;
    c->torn += is_torn(trace, tensor->name);
}

static cover cover_of(const ls_observe_trace *trace, ls_observe_finding *out)
{
    cover c = {0};
    const ls_observe_rank *rank = &trace->rank[0];
    for (int i = 0; i < rank->tensor_count; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        if (!tensor->trainable) {
            continue;
        }
        if (is_held(trace, tensor->name)) {
            c.covered++;
            c.covered_elements += tensor->elements;
            if (is_stepped_by_two(rank, tensor->name, &c.second)) {
                ls_job_add_name(&c.doubled, tensor->name);
            }
            continue;
        }
        bool trained = gradient_of(trace, tensor->name, out) > 0;
        if (!ls_job_is_trained(rank, tensor->model, false)) {
            if (trained) {
                ls_job_add_name(&c.other_model, tensor->name);
            }
        } else if (!trained || moves(trace, tensor->name, out)) {
            ls_job_add_name(trained ? &c.moved : &c.idle, tensor->name);
        } else {
            add_lost(trace, tensor, &c);
        }
    }
    return c;
}

static const ls_tol idle_steps =
    LS_TOL(12, "steps of others: an optimizer may have its turn after some of them, as a critic's "
               "partner has");

/* An optimizer that was built and never steps, while its parameters get gradients and no other one
 * steps them. */
static bool report_idle(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    const ls_event *event, *name;
    ls_event_each(event, ls_trace_events(rank, idle)) {
        ls_job_names names = {0};
        ls_event_each(name, ls_event_member(event, params)) {
            const ls_observe_tensor *tensor = ls_job_tensor(rank, name->text);
            int optimizer, index;
            if (tensor != NULL && tensor->trainable &&
                ls_job_group(rank, tensor->name, -1, &optimizer, &index) == NULL &&
                gradient_of(trace, tensor->name, out) == 2) {
                ls_job_add_name(&names, tensor->name);
            }
        }
        if (names.count == 0 || rank->step_count < idle_steps.value) {
            continue;
        }
        ls_finding_set(
            out, LS_FAIL, ls_event_text(event, at, ""),
            "step() of one of several optimizers is missing: its parameters are never trained",
            "call step() of this optimizer, too, or freeze its parameters",
            "an optimizer is never asked to step in %d steps of others, and %d of its parameters "
            "get gradients: %s",
            rank->step_count, names.count, ls_job_names_text(&names));
        return true;
    }
    return false;
}

/* Layers in a plain list: the model does not know them, so that nothing sends, reduces, steps or
 * saves them. */
static bool report_hidden(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *event = ls_event_at(ls_trace_events(rank, hidden), 0), *name;
    ls_job_names names = {0};
    if (event == NULL) {
        return false;
    }
    ls_event_each(name, ls_event_list(event, names)) {
        ls_job_add_name(&names, name->text);
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(event, at, ""),
        "layers are kept in a plain list or dict of a module: they are never trained, each rank "
        "has its own, and no file has them",
        "keep layers in nn.ModuleList or nn.ModuleDict, parameters in nn.ParameterList",
        "%d parameters get gradients and are in no optimizer, nor parameters of the model: %s",
        ls_event_int(event, count, 0), ls_job_names_text(&names));
    return true;
}

/* Whether what its optimizers hold beside the models' never has a gradient: nothing runs it. */
static bool is_foreign_bare(const ls_observe_rank *rank)
{
    int looks = 0;
    ls_trace_each_call_of(walk, rank) {
        int bare = ls_event_int(walk.call->json, bare_foreign, -1);
        const ls_event *event = ls_job_optimizer(rank, walk.call->optimizer), *group, *param;
        if (walk.call->kind != LS_CALL_OPTIMIZER_STEP || bare < 0) {
            continue;
        }
        ls_event_each(group, ls_event_list(event, groups)) {
            ls_event_each(param, ls_event_list(group, params)) {
                bare -= ls_event_is_text(param) && strcmp(param->text, "?") == 0;
            }
        }
        if (bare != 0) {
            return false;
        }
        looks++;
    }
    return looks > 1;
}

/* True: it is sure, as the optimizer holds what nothing runs in their place, or the larger part of
 * the same modules' weights and biases. */
static bool report_cover(const ls_observe_trace *trace, cover *c, ls_observe_finding *out)
{
    const char *at =
        ls_event_text(ls_event_at(ls_trace_events(&trace->rank[0], optimizer), 0), at, "");
    const char *foreign_at = at;
    int foreign = count_foreign(&trace->rank[0], &foreign_at);
    if (c->lost.count > 0) {
        ls_finding_set(
            out, LS_FAIL, at,
            foreign > 0 ? "the optimizer was made before these parameters were replaced"
                        : "these were not given to the optimizer",
            foreign > 0 ? "make the optimizer after the model is complete"
                        : "give them to the optimizer, or freeze them with requires_grad_(False)",
            "%d trainable parameters get gradients and are in no group of an optimizer: %s%s",
            c->lost.count, ls_job_names_text(&c->lost),
            foreign > 0 ? "; its groups hold others, of no model" : "");
    } else if (foreign > 0 && trace->world > 1 && !ls_job_calls_collectives(trace) &&
               ls_job_sharded(trace) == NULL) {
        ls_finding_set(
            out, LS_FAIL, foreign_at, "outside DistributedDataParallel",
            "make them parameters of the wrapped model",
            "%d parameters of an optimizer are of no model: no gradient of theirs is reduced",
            foreign);
    } else if (c->moved.count > 0) {
        ls_finding_set(
            out, LS_WEAK, at, NULL, "give them to an optimizer, unless the script steps them",
            "%d trainable parameters are in no group, and the script moves them itself: %s",
            c->moved.count, ls_job_names_text(&c->moved));
    } else if (c->idle.count > 0) {
        ls_finding_set(
            out, LS_WEAK, at, NULL, "freeze them with requires_grad_(False), or remove them",
            "%d trainable parameters are in no group and got no gradient in detailed steps: %s",
            c->idle.count, ls_job_names_text(&c->idle));
    } else if (c->other_model.count > 0) {
        ls_finding_set(
            out, LS_WEAK, at, NULL, "give them to an optimizer, or freeze them",
            "a model gets gradients in %d parameters and no optimizer that holds them stepped: %s",
            c->other_model.count, ls_job_names_text(&c->other_model));
    } else if (c->doubled.count > 0) {
        ls_finding_set(
            out, LS_WEAK, "",
            "two optimizers hold the same parameters: each step moves them twice, by one gradient",
            NULL, "two optimizers step %d parameters in one step: %s", c->doubled.count,
            ls_job_names_text(&c->doubled));
        const ls_event *second = ls_job_optimizer(&trace->rank[0], c->second);
        ls_finding_blame(out, ls_event_text(second, at, at),
                         "hold each parameter in one optimizer, unless one wraps the "
                         "other");
    }
    ls_verdict_pass(&out->verdict, c->covered,
                    "%d trainable parameters, each in a group of an optimizer%s", c->covered,
                    foreign > 0 ? "; some of its parameters are of no model" : "");
    return c->lost.count > 0 &&
           ((foreign > 0 && is_foreign_bare(&trace->rank[0])) ||
            (c->torn == c->lost.count && c->lost_elements < c->covered_elements));
}

void ls_rules_optimizer_covered(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const char *sharded = ls_job_sharded_optimizer(trace);
    if (sharded != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s", sharded);
        return;
    }
    if (ls_event_count(ls_trace_events(&trace->rank[0], optimizer)) == 0 ||
        trace->rank[0].tensor_count == 0) {
        ls_finding_missing(trace, "no optimizer with its groups, or no model, is reported", out);
        return;
    }
    ls_observe_finding guessed = {0}, one = {0};
    cover c = cover_of(trace, &one);
    if (report_hidden(&trace->rank[0], &guessed) || report_idle(trace, &guessed)) {
        ls_finding_guess(out, &guessed);
        ls_verdict_pass(&out->verdict, c.covered, "%d parameters are in groups of optimizers",
                        c.covered);
        return;
    }
    ls_misuse_judge(trace, "optimizer.covered", out);
    bool sure = report_cover(trace, &c, &one) && trace->rank[0].step_count >= idle_steps.value;
    (sure || one.verdict.code == LS_PASS ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static const ls_tol same_rate =
    LS_TOL(0x1p-23, "a rate that is kept as an f32 tensor is rounded once, and once more when a "
                    "schedule multiplies it");

static bool is_same(double a, double b)
{
    return a == b || fabs(a - b) <= same_rate.value * fmax(fabs(a), fabs(b));
}

static void compare_ranks(const ls_observe_trace *trace, int64_t *compared, ls_observe_finding *out)
{
    const ls_observe_rank *first = &trace->rank[0];
    for (int i = 0; i < first->step_count; i++) {
        const ls_observe_step *a = &first->step[i];
        for (int k = 1; k < trace->world; k++) {
            const ls_observe_step *b = ls_trace_step(&trace->rank[k], a->step->step);
            if (b == NULL || isnan(a->step->lr) || isnan(b->step->lr)) {
                continue;
            }
            ++*compared;
            if (a->step->lr != b->step->lr) {
                bool built = i == 0 && ls_job_built_with_rates(trace, 0, k);
                const char *schedule = ls_trace_place(a, LS_CALL_SCHEDULE);
                const char *at =
                    built ? ls_event_text(ls_job_optimizer(first, 0), at, "") : schedule;
                ls_finding_set(out, LS_FAIL,
                               at[0] != '\0' ? at : ls_trace_place(a, LS_CALL_OPTIMIZER_STEP),
                               built ? "the optimizers are built with other rates"
                                     : "the schedule follows a value of each rank's own, or is "
                                       "stepped on some ranks only",
                               built ? "compute the rate from values that are equal on all ranks"
                                     : "step the schedule on all ranks alike; reduce a metric over "
                                       "all ranks before ReduceLROnPlateau takes it",
                               "step %lld: the rate is %g on rank 0 and %g on rank %d",
                               (long long)a->step->step, a->step->lr, b->step->lr, k);
                return;
            }
        }
    }
}

/* What the schedule of a rank gave, against what its optimizer used in the next step. */
typedef struct follow {
    const ls_call *last; /* the schedule's last call */
    const ls_call *step; /* the last step behind one, by another rate */
    double given_first, used_first;
    bool given_moves, used_moves;
    int checked, missed;
} follow;

static void follow_step(const ls_observe_step *step, follow *f)
{
    ls_trace_each_call(call, step) {
        if (call->kind == LS_CALL_OPTIMIZER_STEP) {
            double used = ls_calls_rate(call, 0);
            f->used_moves = f->used_moves || (!isnan(f->used_first) && used != f->used_first);
            f->used_first = isnan(f->used_first) ? used : f->used_first;
            double asked = f->last == NULL ? NAN : ls_calls_rate(f->last, 0);
            if (!isnan(used) && !isnan(asked)) {
                f->checked++;
                f->missed += !is_same(used, asked);
                f->step = is_same(used, asked) ? f->step : call;
            }
        } else if (call->kind == LS_CALL_SCHEDULE) {
            double given = ls_calls_rate(call, 0);
            f->given_moves = f->given_moves || (!isnan(f->given_first) && given != f->given_first);
            f->given_first = isnan(f->given_first) ? given : f->given_first;
            f->last = call;
        }
    }
}

/* Where a schedule was built; where that is not known, where it is stepped. */
static const char *schedule_place(const ls_observe_rank *rank, const ls_call *call)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, schedule)) {
        if (ls_event_int(event, schedule, -1) == ls_event_int(call->json, schedule, -2)) {
            return ls_event_text(event, at, call->at);
        }
    }
    return call->at;
}

/* A schedule whose rates the steps do not use: it has another optimizer, or the script writes over
 * what it gave to this one. */
static void blame_schedule(const ls_observe_rank *rank, const follow *f, ls_observe_finding *out)
{
    if (f->last->optimizer >= 0 && f->last->optimizer == f->step->optimizer) {
        ls_verdict_cause(&out->verdict,
                         "the script sets the rate itself (param_groups[...][\"lr\"]) between "
                         "scheduler.step() at %.80s and this step: what the schedule gave is "
                         "written over",
                         f->last->at);
        const ls_event *optimizer = ls_job_optimizer(rank, f->step->optimizer);
        const char *set = ls_event_text(optimizer, set_at, "");
        ls_finding_blame(out, set[0] != '\0' ? set : f->step->at,
                         "set the rate in one place: here or by the schedule");
        return;
    }
    ls_finding_explain(out, schedule_place(rank, f->last),
                       "the schedule was made for another optimizer",
                       "make the schedule with the optimizer that steps, after it is final");
}

/* Whether an optimizer that never steps, as the schedule's, has the parameters that others step. */
static bool is_twin_idle(const ls_observe_rank *rank)
{
    const ls_event *event, *name;
    ls_event_each(event, ls_trace_events(rank, idle)) {
        int held = 0, of = 0, optimizer, index;
        ls_event_each(name, ls_event_member(event, params)) {
            held += ls_job_group(rank, name->text, -1, &optimizer, &index) != NULL;
            of++;
        }
        if (of > 0 && held == of) {
            return true;
        }
    }
    return false;
}

/* With several optimizers it is not known whose rate a schedule gives. True: it is sure. */
static bool compare_schedule(const ls_observe_rank *rank, ls_observe_finding *out, follow *f)
{
    *f = (follow){.given_first = NAN, .used_first = NAN};
    for (int i = 0; i < rank->step_count; i++) {
        follow_step(&rank->step[i], f);
    }
    if (f->given_moves && !f->used_moves && f->checked > 0 && f->missed > 0) {
        ls_verdict_fail(&out->verdict,
                        "the schedule gives other rates than the optimizer uses in %d "
                        "of %d steps: it stays at %g",
                        f->missed, f->checked, f->used_first);
        blame_schedule(rank, f, out);
        return f->last->optimizer < 0 && is_twin_idle(rank);
    }
    return false;
}

/* A schedule against the steps since its own optimizer's last one. */
typedef struct idle {
    const ls_call *last; /* its last call */
    int checked;         /* steps of others since, none at a rate that it gave */
    bool stepped, moved; /* its optimizer has stepped before; the rates that it gave since */
} idle;

/* False: it is no idle one, or not known which it is. */
static bool follow_idle(idle *f, const ls_call *call)
{
    if (call->kind == LS_CALL_SCHEDULE) {
        bool other = f->last != NULL && ls_event_int(call->json, schedule, -1) !=
                                            ls_event_int(f->last->json, schedule, -1);
        if (other && (call->optimizer >= 0 || f->last->optimizer >= 0)) {
            return false;
        }
        f->moved = f->moved ||
                   (f->last != NULL && !is_same(ls_calls_rate(call, 0), ls_calls_rate(f->last, 0)));
        f->last = call;
    } else if (call->kind == LS_CALL_OPTIMIZER_STEP && f->last != NULL &&
               !isnan(ls_calls_rate(f->last, 0)) && !isnan(ls_calls_rate(call, 0))) {
        if (f->last->optimizer >= 0 && call->optimizer == f->last->optimizer) {
            *f = (idle){.last = f->last, .stepped = true};
            return true;
        }
        f->checked++;
        for (int g = 0; g < ls_event_count(ls_event_list(call->json, lr)); g++) {
            if (is_same(ls_calls_rate(call, g), ls_calls_rate(f->last, 0))) {
                return false;
            }
        }
    }
    return true;
}

/* Of several optimizers: a schedule whose own one never steps, or no more, and whose rates no other
 * one uses. An optimizer that holds another may step in its place, by the same groups. */
static void judge_idle_optimizer(const ls_observe_rank *rank, ls_observe_finding *out)
{
    idle f = {0};
    ls_trace_each_call_of(walk, rank) {
        if (!follow_idle(&f, walk.call)) {
            return;
        }
    }
    bool known = f.last != NULL && f.last->optimizer >= 0; /* it has stepped */
    if (f.last == NULL || f.checked < (known ? idle_steps.value : 2) || (known && !f.moved) ||
        (known && !f.stepped)) {
        return;
    }
    ls_finding_set(out, LS_FAIL, f.last->at, "the schedule was made for another optimizer",
                   "make the schedule with the optimizer that steps, after it is final",
                   "the optimizer of a %s %s, and none of %d steps of others is at a rate that it "
                   "gave",
                   ls_event_text(f.last->json, class, "schedule"),
                   known ? "steps no more" : "never steps", f.checked);
}

/* The highest rate of the groups in a step; NaN: it has none. */
static double highest_rate(const ls_observe_step *step, const char **at)
{
    double highest = NAN;
    ls_trace_each_kind(call, step, LS_CALL_OPTIMIZER_STEP) {
        const ls_event *rate;
        ls_event_each(rate, ls_event_member(call->json, lr)) {
            if (!ls_event_is_number(rate)) {
                return INFINITY; /* a group's rate is not known */
            }
            highest = isnan(highest) || rate->number > highest ? rate->number : highest;
        }
        *at = call->at;
    }
    return highest;
}

/* The last or the first steps whose rates are at most that; those that no optimizer took do not
 * count. */
static int count_end(const ls_observe_rank *rank, bool last, double limit, const char **at)
{
    int count = 0;
    for (int i = 0; i < rank->step_count; i++) {
        const ls_observe_step *step = &rank->step[last ? rank->step_count - 1 - i : i];
        double rate = highest_rate(step, at);
        if (rate > limit) {
            break;
        }
        count += !isnan(rate);
    }
    return count;
}

/* ReduceLROnPlateau lowers the rate for as long as nothing improves. */
static bool by_value(const ls_observe_rank *rank)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, schedule)) {
        if (strstr(ls_event_text(event, class, ""), "Plateau") != NULL) {
            return true;
        }
    }
    return false;
}

static const ls_tol next_to_nothing = LS_TOL(
    1e-4, "of the highest rate: a cosine is below it for 0.6 % of its steps, a polynomial of "
          "the fourth power for 10 %, and four steps of a tenth come to it at the end of a "
          "training");

static const ls_tol idle_end =
    LS_TOL(3, "steps at the rate 0: the last or first one of a schedule has it, and one more by "
              "rounding");
static const ls_tol idle_share =
    LS_TOL(0.1, "of all steps: a schedule that is some steps short costs no training");
static const ls_tol small_end =
    LS_TOL(8, "steps: fewer at next to nothing are the end of a short trial run");
static const ls_tol small_share =
    LS_TOL(1.0 / 3, "of all steps: schedules end low, but for less than that");

/* A schedule that ends at 0 does so in its last step, one that begins there in its first. Other
 * steps at 0 train nothing. */
static void judge_idle_end(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const char *at = "";
    double highest = 0;
    for (int i = 0; i < rank->step_count; i++) {
        highest = fmax(highest, highest_rate(&rank->step[i], &at));
    }
    int first = count_end(rank, false, 0, &at), idle = count_end(rank, true, 0, &at);
    int small = count_end(rank, true, next_to_nothing.value * highest, &at);
    bool late = first > idle; /* it begins at 0 and stays there for a while */
    idle = late ? first : idle;
    if (highest > 0 && idle >= idle_end.value && idle > idle_share.value * rank->step_count) {
        ls_verdict_fail(&out->verdict, "the rate is 0 in the %s %d of %d steps",
                        late ? "first" : "last", idle, rank->step_count);
    } else if (!by_value(rank) && isfinite(highest) && highest > 0 && small >= small_end.value &&
               small > small_share.value * rank->step_count) {
        ls_verdict_fail(&out->verdict,
                        "in the last %d of %d steps the rate is below %g of the highest one, %g",
                        small, rank->step_count, next_to_nothing.value, highest);
    } else {
        return;
    }
    ls_verdict_cause(&out->verdict,
                     late ? "a warm-up that divides whole numbers, or one counted in epochs: steps "
                            "at the rate 0 train nothing"
                          : "a schedule made for fewer steps than the job makes, or one of epochs "
                            "that is stepped with each batch");
    const ls_call *schedule = NULL;
    ls_trace_each_step(step, rank) {
        const ls_call *call = ls_trace_next_kind(step, LS_CALL_SCHEDULE, NULL);
        schedule = call != NULL ? call : schedule;
    }
    ls_finding_blame(out, schedule != NULL ? schedule_place(rank, schedule) : at,
                     late ? "let the warm-up rise with each step: (step + 1) / steps"
                          : "give the schedule the number of optimizer steps of one rank, or "
                            "step it with each epoch where it counts epochs");
}

void ls_rules_optimizer_rate(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_observe_finding one[2] = {0};
    bool sure = false;
    int64_t compared = 0;
    follow f = {0};
    const char *apart = ls_job_apart(trace);
    if (apart != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s", apart);
    } else {
        compare_ranks(trace, &compared, out);
    }
    if (trace->world > 0) {
        judge_idle_end(&trace->rank[0], &one[0]);
    }
    if (trace->world > 0 && ls_event_count(ls_trace_events(&trace->rank[0], optimizer)) == 1) {
        sure = compare_schedule(&trace->rank[0], &one[1], &f) && !ls_job_is_left_alone(trace);
    } else if (trace->world > 0) {
        judge_idle_optimizer(&trace->rank[0], &one[1]);
    }
    for (int i = 0; i < 2 && trace->world > 0; i++) {
        (sure && i == 1 ? ls_calls_keep_worst : ls_finding_guess)(out, &one[i]);
    }
    if (compared == 0 && f.checked == 0) {
        if (trace->world == 1 && trace->rank[0].step_count > 0) {
            ls_verdict_set(&out->verdict, LS_SKIP, "one rank, and no schedule");
        } else {
            ls_finding_missing(trace, "no step reports a rate", out);
        }
    }
    LS_TEXT(schedule, 120, "; %d of %d are those of the schedule%s", f.checked - f.missed,
            f.checked, f.missed > 0 ? ", others are set by the script" : "");
    ls_verdict_pass(&out->verdict, compared + f.checked, "%lld rates equal on all ranks%s",
                    (long long)compared, f.checked > 0 ? schedule : "");
}
