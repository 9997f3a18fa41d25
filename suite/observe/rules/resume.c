/* What a job needs that goes on from files: whether they hold it, and whether a job that does go on
 * takes all of it. */
#define _GNU_SOURCE /* strcasestr */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "suite/observe/trace/calls.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"
#include "suite/observe/trace/job.h"

/* ---- what the job uses ----------------------------------------------------------------------- */

/* Whether the optimizer's rule keeps moments; of unknown rules that is not known. */
static bool keeps_moments(const ls_event *optimizer)
{
    const char *rule = ls_event_text(optimizer, rule, "");
    const ls_event *group;
    if (strcmp(rule, "sgd") != 0) {
        return strcmp(rule, "") != 0;
    }
    ls_event_each(group, ls_event_list(optimizer, groups)) {
        if (ls_event_number(group, momentum, 0) > 0) {
            return true;
        }
    }
    return false;
}

/* Optimizers of the job's beginning: each has its turn within as many steps as there are. */
static bool is_asked_first(const ls_observe_rank *rank, int optimizer)
{
    int steps = ls_event_count(ls_trace_events(rank, optimizer));
    for (int i = 0; i < rank->step_count && i < steps; i++) {
        ls_trace_each_call(call, &rank->step[i]) {
            bool asks = call->kind == LS_CALL_OPTIMIZER_STEP || call->kind == LS_CALL_SCALER_STEP ||
                        call->kind == LS_CALL_UNSCALE;
            if (asks && call->optimizer == optimizer) {
                return true;
            }
        }
    }
    return false;
}

/* ---- files that are written ------------------------------------------------------------------ */

/* Files that hold an optimizer, hence are for going on. `bare`: the first without a schedule. */
static int judge_saves(const ls_observe_trace *trace, const ls_event **bare,
                       ls_observe_finding *out)
{
    int files = 0;
    bool scaled = ls_calls_use_scaler(trace);
    for (int k = 0; k < trace->world; k++) {
        const ls_event *save;
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            if (!ls_saved_has(save, "optimizer")) {
                continue;
            }
            files++;
            if (*bare == NULL && !ls_saved_checkpoint_has(trace, ls_saved_step(save), "schedule")) {
                *bare = save;
            }
            if (scaled && !ls_saved_checkpoint_has(trace, ls_saved_step(save), "scaler")) {
                ls_finding_set(out, LS_FAIL, ls_event_text(save, at, ""),
                               "scaler.state_dict() is not saved: a job that goes on starts with "
                               "the first scale and skips steps",
                               "add \"scaler\": scaler.state_dict() to the checkpoint",
                               "rank %d, step %lld: %.120s holds the optimizer, but not the scaler "
                               "that is in use",
                               k, (long long)ls_saved_step(save), ls_event_text(save, path, ""));
            }
        }
    }
    return files;
}

/* A model and the number of its epoch, as files to go on from have them, and no optimizer in any
 * file of the job. */
static void judge_lost_moments(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    const ls_event *optimizer, *save;
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        if (!keeps_moments(optimizer)) {
            continue;
        }
        ls_event_each(save, ls_trace_events(rank, save)) {
            if (ls_saved_has(save, "model") && ls_saved_has(save, "epoch")) {
                ls_finding_set(out, LS_WEAK, ls_event_text(save, at, ""),
                               "optimizer.state_dict() is not saved: a job that goes on begins "
                               "without its moments",
                               "add \"optimizer\": optimizer.state_dict() where a job is to go on "
                               "from the file: its moments would begin at 0",
                               "%.120s holds a model and its epoch, and no file holds the "
                               "optimizer: enough to evaluate, not to go on",
                               ls_event_text(save, path, ""));
                return;
            }
        }
    }
}

/* ---- what a job restores --------------------------------------------------------------------- */

static bool restores(const ls_event *restore, const char *what)
{
    return strcmp(ls_event_text(restore, what, ""), what) == 0;
}

/* Steps that were done when the first backward ran. A state is also restored in two phases: PyTorch
 * steps an optimizer that has none by gradients of 0, and fills in what that made. */
static int64_t begun(const ls_observe_rank *rank)
{
    ls_trace_each_call_of(walk, rank) {
        if (walk.call->kind == LS_CALL_BACKWARD) {
            return walk.step->step->step - 1;
        }
    }
    return 0;
}

/* What the job restored before its first step. An optimizer's state without entries is none: of one
 * that has not stepped, as packages load it to move it to a device. */
static const ls_event *restored(const ls_observe_rank *rank, const char *what)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (restores(restore, what) && ls_saved_step(restore) <= begun(rank) &&
            ls_event_int(restore, entries, 1) != 0) {
            return restore;
        }
    }
    return NULL;
}

/* ---- models that are loaded ------------------------------------------------------------------ */

/* The first file with a model that was loaded before that; NULL: none. */
static const ls_event *loaded_before(const ls_observe_rank *rank, const ls_event *restore)
{
    const ls_event *load;
    ls_event_each(load, ls_trace_events(rank, load)) {
        if (ls_saved_has(load, "model") && ls_saved_step(load) <= ls_saved_step(restore)) {
            return load;
        }
    }
    return NULL;
}

/* Whether the job that wrote the file had other weights in all files of that path. */
static bool has_others(const ls_observe_trace *trace, const ls_event *load, const char *bits)
{
    const ls_observe_trace *writer = trace->before;
    const ls_event *save, *pair;
    int known = 0;
    for (int k = 0; k < (writer != NULL ? writer->world : 0); k++) {
        ls_event_each(save, ls_trace_events(&writer->rank[k], save)) {
            ls_event_each(pair, ls_event_list(save, digests)) {
                bool own = ls_event_same(save, load, path);
                if (own && strcmp(ls_event_to_text(ls_event_at(pair, 1), ""), bits) == 0) {
                    return false;
                }
                known += own;
            }
        }
    }
    return known > 0 && bits[0] != '\0';
}

/* Weights that state_dict() gave behind a validation are loaded once, after steps and more
 * validations, as they are since the last step: a choice among validated weights that is none. */
static bool is_chosen(const ls_observe_rank *rank, const ls_event *restore)
{
    const char *bits = ls_event_text(restore, bits, "");
    int64_t made = ls_event_integer(restore, made, -1), step = ls_saved_step(restore);
    const ls_event *one;
    bool then = false, later = false;
    int times = 0;
    ls_event_each(one, ls_trace_events(rank, validated)) {
        int64_t at = ls_saved_step(one);
        bool other = ls_event_has(one, param) && strcmp(ls_event_text(one, param, ""), bits) != 0;
        then = then || (at == made && other);
        later = later || (at > made && at <= step);
    }
    ls_event_each(one, ls_trace_events(rank, restore)) {
        times += ls_event_int(one, own, 0) > 0 && ls_event_integer(one, made, -1) == made;
    }
    bool last = false;
    ls_trace_each_step(own, rank) {
        const char *digest = ls_trace_digest(own, LS_RECORD_PARAM);
        last = last || (own->step->step == step && digest != NULL && strcmp(digest, bits) == 0);
    }
    return bits[0] != '\0' && made > 0 && then && later && last && times == 1 &&
           ls_job_models(rank) == 1;
}

/* Weights of which a model takes none, or its own. */
static void judge_taken(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        int params = ls_job_count(restore, params), taken = ls_job_count(restore, taken);
        int unexpected = ls_job_count(restore, unexpected);
        int renamed = ls_job_count(restore, renamed), own = ls_job_count(restore, own);
        const char *at = ls_event_text(restore, at, "");
        if (!restores(restore, "model") || params == 0 || ls_event_int(restore, which, -1) < 0) {
            continue;
        }
        if ((taken == 0 && unexpected > 0) || 2 * renamed > params) {
            ls_finding_set(
                out, LS_FAIL, at,
                "names with \"module.\" (or another prefix) and without it, and strict=False: "
                "nothing is loaded",
                "load with strict=True, into model.module where the names have no \"module.\"",
                "rank %d: load_state_dict found %d of the %d parameters, and %d names that the "
                "model does not have",
                k, taken, params, unexpected);
            return;
        }
        int64_t step = ls_saved_step(restore) > begun(rank) ? ls_saved_step(restore) : 0;
        if (own == params && step > 0 && ls_event_integer(restore, made, -1) == step) {
            continue; /* nothing was trained since: harmless, where values were changed in place */
        }
        const ls_event *load = loaded_before(rank, restore);
        if (own == params && (step > 0 || load != NULL)) {
            bool certain = step > 0 ? is_chosen(rank, restore)
                                    : restored(rank, "optimizer") != NULL &&
                                          has_others(trace, load, ls_event_text(restore, bits, ""));
            ls_observe_finding one = {0};
            ls_finding_set(&one, LS_FAIL, "",
                           step > 0 ? "state_dict() does not copy: weights that were kept to come "
                                      "back to are trained on"
                                    : "no name of the file fits one of the model's, and the "
                                      "model's own state_dict is loaded in its place",
                           NULL,
                           "rank %d, step %lld: load_state_dict is given the model's own %d "
                           "parameters: it changes nothing",
                           k, (long long)step, own);
            ls_finding_blame(
                &one, at,
                step > 0 ? "keep a copy: copy.deepcopy(model.state_dict())"
                         : "compare the names: the file's with those of model.state_dict()");
            (certain ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
        }
    }
}

/* ---- a job that goes on ---------------------------------------------------------------------- */

/* A file loaded before the first step that has the part. */
static const ls_event *loaded(const ls_observe_rank *rank, const char *part)
{
    const ls_event *load;
    ls_event_each(load, ls_trace_events(rank, load)) {
        if (ls_saved_has(load, part) && ls_saved_step(load) == 0) {
            return load;
        }
    }
    return NULL;
}

/* Passes that had begun when a file was written. */
static int passes_until(const ls_observe_rank *rank, int64_t step)
{
    const ls_event *data;
    int count = 0;
    ls_event_each(data, ls_trace_events(rank, data)) {
        count += ls_pass_is_trained(data) && ls_pass_first_step(data) <= (double)step;
    }
    return count;
}

static bool has_word(const char *name, const char *const *word)
{
    for (; *word != NULL; word++) {
        if (strcasestr(name, *word) != NULL) {
            return true;
        }
    }
    return false;
}

/* A number of epochs, not of the best one, nor of steps within one. */
static bool counts_epochs(const ls_event *number)
{
    static const char *const best[] = {"best", "step", "iter", "batch", NULL};
    static const char *const epochs[] = {"epoch", NULL};
    const char *name = ls_event_key(number);
    return ls_event_is_number(number) && has_word(name, epochs) && !has_word(name, best);
}

/* The same of steps. */
static bool counts_steps(const ls_event *number)
{
    static const char *const other[] = {"best",  "max",      "total", "num_", "warm",
                                        "every", "interval", "per_",  NULL};
    static const char *const steps[] = {"step", "iter", NULL};
    const char *name = ls_event_key(number);
    bool own = strcasecmp(name, "iter_num") == 0 || strcasecmp(name, "step_num") == 0;
    return ls_event_is_number(number) && (own || (has_word(name, steps) && !has_word(name, other)));
}

/* The first file that the job writes has an epoch that no job which began at 0 would have. */
static bool counts_on(const ls_observe_rank *rank, double epoch)
{
    const ls_event *save, *number;
    ls_event_each(save, ls_trace_events(rank, save)) {
        int passes = passes_until(rank, ls_saved_step(save));
        ls_event_each(number, ls_event_object(save, numbers)) {
            if (counts_epochs(number) && passes > 0) {
                return number->number >= epoch && number->number > passes + 1;
            }
        }
    }
    return false;
}

/* Whether the job goes on with the epoch of a file that it loaded. */
static bool continues_epoch(const ls_observe_rank *rank)
{
    const ls_event *load = loaded(rank, "epoch"), *number, *data = ls_pass_trained(rank, 0);
    ls_event_each(number, ls_event_object(load, numbers)) {
        double epoch = counts_epochs(number) ? number->number : 0;
        double begins = ls_event_number(data, sampler_epoch, -1);
        if (epoch >= 1 && (begins == epoch || begins == epoch + 1 || counts_on(rank, epoch))) {
            return true;
        }
    }
    return false;
}

/* Whether the job counts its steps from where a file that it loaded has them: the first file that
 * it writes after a step has more, and more than it has made. */
static bool continues_steps(const ls_observe_rank *rank)
{
    const ls_event *load, *number, *save;
    ls_event_each(load, ls_trace_events(rank, load)) {
        ls_event_each(number, ls_event_object(load, numbers)) {
            bool counts = counts_steps(number) && number->number >= 1 && ls_saved_step(load) == 0;
            ls_event_each(save, ls_trace_events(rank, save)) {
                const ls_event *own =
                    ls_event_find(ls_event_object(save, numbers), ls_event_key(number));
                double made = (double)ls_saved_step(save);
                if (counts && made > 0 && ls_event_is_number(own) && own->number > number->number &&
                    own->number > made + 1) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* What shows that the job goes on, NULL: nothing. Weights alone may be the start of a new job. */
static const char *evidence_of(const ls_observe_rank *rank)
{
    return restored(rank, "scaler") != NULL     ? "the scaler's state"
           : restored(rank, "schedule") != NULL ? "the schedule's state"
           : continues_epoch(rank)              ? "the file's epoch"
           : continues_steps(rank)              ? "the file's count of steps"
                                                : NULL;
}

/* Whether moments came into that optimizer by a file's state behind its first step. */
static bool filled_later(const ls_observe_rank *rank, int optimizer)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (restores(restore, "optimizer") && ls_event_int(restore, which, -1) == optimizer &&
            ls_event_int(restore, entries, 0) > 0 && ls_saved_step(restore) > 0 &&
            ls_saved_step(restore) <= begun(rank)) {
            return true;
        }
    }
    return false;
}

/* Optimizers that keep moments and step from the beginning: with any at their first step, and
 * without. */
typedef struct moments {
    int with, without;
    const ls_event *bare; /* the first one without */
} moments;

static moments count_moments(const ls_observe_rank *rank)
{
    const ls_event *optimizer;
    moments found = {0};
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        int number = ls_event_int(optimizer, optimizer, -1);
        int state = filled_later(rank, number) ? 1 : ls_event_int(optimizer, state, -1);
        bool counts = state >= 0 && keeps_moments(optimizer) && is_asked_first(rank, number);
        found.with += counts && state > 0;
        found.without += counts && state == 0;
        found.bare = counts && state == 0 && found.bare == NULL ? optimizer : found.bare;
    }
    return found;
}

/* Files that hold states of that many optimizers, at least. */
static int count_states(const ls_observe_rank *rank)
{
    const ls_event *load;
    int most = 0;
    ls_event_each(load, ls_trace_events(rank, load)) {
        const ls_event *what = ls_event_object(load, what);
        int count = ls_event_count(ls_event_find(what, "optimizer"));
        most = count > most && ls_saved_step(load) == 0 ? count : most;
    }
    return most;
}

/* Files written before the first step hold an optimizer without state: nothing is lost. */
static bool has_moments(const ls_event *load)
{
    const ls_event *entries = ls_event_list(load, entries), *count;
    bool any = entries == NULL;
    ls_event_each(count, entries) {
        any = any || (ls_event_is_number(count) && count->number > 0);
    }
    return any;
}

/* Whether the file's optimizers have other settings than this one: it could not take their state.
 */
static bool is_another_kind(const ls_event *load, const ls_event *optimizer)
{
    static const char *const setting[] = {"betas", "momentum"};
    const ls_event *settings = ls_event_list(load, settings), *one;
    const ls_event *group = ls_event_at(ls_event_list(optimizer, groups), 0);
    int others = 0;
    ls_event_each(one, settings) {
        bool unlike = false;
        for (size_t i = 0; i < sizeof setting / sizeof *setting; i++) {
            unlike = unlike ||
                     ls_event_holds(one, setting[i]) != (ls_event_find(group, setting[i]) != NULL);
        }
        others += unlike;
    }
    return others > 0 && others == ls_event_count(settings);
}

/* A state without entries that is loaded into an optimizer behind the weights; NULL: none is. */
static const ls_event *loaded_empty(const ls_observe_rank *rank)
{
    const ls_event *restore;
    bool weights = false;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        weights = weights || restores(restore, "model");
        if (weights && restores(restore, "optimizer") && ls_event_int(restore, entries, 1) == 0 &&
            ls_saved_step(restore) <= begun(rank)) {
            return restore;
        }
    }
    return NULL;
}

/* Whether the job before wrote all its files behind a step. */
static bool had_stepped(const ls_observe_trace *before, int k)
{
    const ls_event *save;
    int files = 0, early = 0;
    if (before == NULL || k >= before->world) {
        return false;
    }
    ls_event_each(save, ls_trace_events(&before->rank[k], save)) {
        files++;
        early += ls_saved_step(save) == 0;
    }
    return files > 0 && early == 0;
}

static void judge_empty(const ls_observe_trace *trace, int k, const ls_event *optimizer,
                        const char *evidence, ls_observe_finding *out)
{
    const ls_event *empty = loaded_empty(&trace->rank[k]);
    ls_observe_finding one = {0};
    if (empty == NULL) {
        return;
    }
    ls_finding_set(
        &one, LS_FAIL, ls_event_text(empty, at, ""),
        "the state that is loaded is that of an optimizer which has not stepped: nothing "
        "of the file was read into it",
        "get_optimizer_state_dict and set_optimizer_state_dict of "
        "torch.distributed.checkpoint.state_dict, which make the entries first",
        "rank %d: the job goes on with %s, and load_state_dict gives its optimizer "
        "(%.60s) a state without entries",
        k, evidence, ls_event_text(optimizer, class, ""));
    (had_stepped(trace->before, k) ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

static void judge_moments(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    moments found = count_moments(rank);
    const ls_event *own = restored(rank, "optimizer"), *file = loaded(rank, "optimizer");
    if (found.without == 0) {
        return;
    }
    const char *built = ls_event_text(found.bare, at, "");
    if (own != NULL && (found.with == 0 || count_states(rank) >= found.with + found.without)) {
        ls_finding_set(
            out, LS_FAIL, built, NULL, "call load_state_dict on the optimizer that steps",
            "rank %d: an optimizer's state was loaded, and optimizer %d (%.60s) begins without any",
            k, ls_event_int(found.bare, optimizer, 0), ls_event_text(found.bare, class, ""));
        ls_verdict_cause(&out->verdict, found.with == 0
                                            ? "the optimizer that steps is not the one whose state "
                                              "was loaded: it was built afterwards"
                                            : "the state of one of several optimizers is loaded");
        return;
    }
    const ls_event *load = file != NULL ? file : loaded(rank, "model");
    bool proven = file != NULL && begun(rank) == 0 && ls_restored_goes_on(trace, k, file);
    const char *evidence = evidence_of(rank);
    evidence = evidence == NULL && proven ? "the epoch behind the file's" : evidence;
    if (own != NULL || found.with > 0 || evidence == NULL || (file != NULL && !has_moments(file))) {
        return;
    }
    if (load == NULL) {
        judge_empty(trace, k, found.bare, evidence, out);
        return;
    }
    ls_observe_finding one = {0};
    bool other = file != NULL && is_another_kind(file, found.bare);
    ls_finding_set(&one, other ? LS_WEAK : LS_FAIL, ls_event_text(load, at, ""), NULL,
                   file != NULL ? "call optimizer.load_state_dict(checkpoint[...])"
                                : "save optimizer.state_dict() with the model, and load both",
                   "rank %d: the job goes on with %s, and its optimizer (%.60s) begins without "
                   "state; %.100s %s",
                   k, evidence, ls_event_text(found.bare, class, ""), ls_event_text(load, path, ""),
                   other          ? "holds one of another kind"
                   : file != NULL ? "holds one"
                                  : "holds none");
    ls_verdict_cause(&one.verdict, file != NULL ? "optimizer.load_state_dict is not called"
                                                : "the file that the job goes on from has no "
                                                  "optimizer.state_dict()");
    (proven && !other ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* The weights went into a model of the same shape that is not the one that is trained. */
static void judge_model(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *restore, *other = NULL;
    if (restored(rank, "optimizer") == NULL) {
        return;
    }
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (!restores(restore, "model") || ls_saved_step(restore) > 0) {
            continue;
        }
        if (ls_event_int(restore, which, -1) >= 0) {
            return;
        }
        other = ls_event_int(restore, like, -1) >= 0 ? restore : other;
    }
    if (other != NULL) {
        ls_finding_set(out, LS_FAIL, ls_event_text(other, at, ""),
                       "the model that is trained is not the one that was loaded: it was built or "
                       "copied before",
                       "load the weights into the model that is wrapped and trained",
                       "rank %d: weights were loaded into a model that is not trained, and none "
                       "into model %d, which has the same parameters",
                       k, ls_event_int(other, like, 0));
    }
}

/* Whether a call names the scaler; -1: any one that is enabled. */
static bool is_used(const ls_observe_rank *rank, int scaler)
{
    ls_trace_each_call_of(walk, rank) {
        int own = walk.call->scaler;
        if (own >= 0 && (scaler < 0 || own == scaler)) {
            return true;
        }
    }
    return false;
}

static void judge_scaler(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *load = loaded(rank, "scaler"), *own = restored(rank, "scaler");
    if (!is_used(rank, -1)) {
        return;
    }
    if (own != NULL && ls_event_int(own, which, -1) >= 0 &&
        !is_used(rank, ls_event_int(own, which, -1))) {
        ls_finding_set(out, LS_FAIL, ls_event_text(own, at, ""),
                       "the GradScaler was built anew after load_state_dict, or was not enabled "
                       "when it was called",
                       "call load_state_dict on the scaler that scales the losses",
                       "rank %d: a scaler's state was loaded, and another scaler is used", k);
    } else if (own == NULL && load != NULL && restored(rank, "optimizer") != NULL) {
        ls_finding_set(
            out, LS_FAIL, ls_event_text(load, at, ""), "scaler.load_state_dict is not called",
            "call scaler.load_state_dict(checkpoint[...])",
            "rank %d: %.120s holds a scaler, and the job goes on from its optimizer without it", k,
            ls_event_text(load, path, ""));
    }
}

/* ---- the schedule ---------------------------------------------------------------------------- */

/* The schedule's first step of the script after the first step of an optimizer; a script may step
 * it many times before that, to come back to where it was. NULL: none, or there are schedules of
 * several classes. */
static const ls_call *first_schedule(const ls_observe_rank *rank)
{
    bool asked = false;
    const ls_call *first = NULL;
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (asked && call->kind == LS_CALL_SCHEDULE) {
            first = first == NULL ? call : first;
            if (strcmp(ls_calls_text(call, class), ls_calls_text(first, class)) != 0) {
                return NULL;
            }
        }
        asked = asked || ls_calls_is_attempt(call);
    }
    return first;
}

/* Counts where the file's schedule stands and where the job's one goes on: by whatever means it was
 * brought there. */
static void judge_schedule(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *load = loaded(rank, "schedule");
    const ls_event *counts = ls_event_list(load, schedules);
    const ls_call *call = first_schedule(rank);
    bool goes_on = restored(rank, "optimizer") != NULL || evidence_of(rank) != NULL;
    if (call == NULL || !goes_on || ls_event_count(counts) != 1) {
        return;
    }
    double file = ls_event_number_at(counts, 0);
    double own = ls_event_number(call->json, epoch, NAN);
    if (!(file >= 1 && own <= file)) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, restored(rank, "schedule") != NULL ? call->at : ls_event_text(load, at, ""),
        NULL, "call schedule.load_state_dict(checkpoint[...]) on the schedule that steps",
        "rank %d: the schedule in %.120s stands at %g, and the job's own at %g after its first "
        "step",
        k, ls_event_text(load, path, ""), file, own);
    ls_verdict_cause(&out->verdict,
                     restored(rank, "schedule") != NULL
                         ? "the schedule that steps is not the one whose state was loaded: it was "
                           "built afterwards"
                         : "the schedule's load_state_dict is not called: the rate begins anew");
}

/* ---- the epoch ------------------------------------------------------------------------------- */

/* The job writes the file that it was loaded from again: it is to go on, whatever the file has. */
static bool writes_again(const ls_observe_rank *rank, const ls_event *load)
{
    const char *path = ls_event_text(load, path, "");
    const ls_event *save;
    ls_event_each(save, ls_trace_events(rank, save)) {
        if (path[0] != '\0' && strcmp(path, ls_event_text(save, path, "")) == 0) {
            return restored(rank, "model") != NULL;
        }
    }
    return false;
}

/* The same number in the first file that the job writes after a step, NULL: none. */
static const ls_event *written(const ls_observe_rank *rank, const char *name)
{
    const ls_event *save;
    ls_event_each(save, ls_trace_events(rank, save)) {
        const ls_event *numbers = ls_event_object(save, numbers);
        const ls_event *number = ls_event_find(numbers, name);
        if (ls_saved_step(save) > 0 && ls_event_is_number(number)) {
            return number;
        }
    }
    return NULL;
}

/* A job that takes up an optimizer's state, or the file that it writes, and begins with the first
 * epoch all the same. True: it is sure, as it does both, and writes a lower number. */
static bool look_at_epoch(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *load = loaded(rank, "epoch"), *number, *data = ls_pass_trained(rank, 0);
    bool distributed = strcmp(ls_event_text(data, sampler, ""), "DistributedSampler") == 0;
    bool with_state = restored(rank, "optimizer") != NULL;
    if (load == NULL || !(with_state || writes_again(rank, load))) {
        return false;
    }
    ls_event_each(number, ls_event_object(load, numbers)) {
        if (!counts_epochs(number) || number->number < 1) {
            continue;
        }
        const ls_event *own = written(rank, ls_event_key(number));
        bool anew = own != NULL && own->number < number->number;
        bool order = distributed && ls_event_bool(data, shuffle, false) &&
                     ls_event_int(data, sampler_epoch, -1) == 0;
        if (!anew && !order) {
            continue;
        }
        LS_TEXT(file, 60, "%.30s %g in the next file", ls_event_key(number),
                own == NULL ? NAN : own->number);
        ls_finding_set(
            out, LS_FAIL, ls_event_text(anew ? load : data, at, ""),
            anew ? "the epoch of the file is not taken up: the job counts from the first one "
                   "again, and its sampler and schedule with it"
                 : "set_epoch is not called with the epoch that the job goes on with: batches of "
                   "the first epochs come again in their order",
            "begin the loop at the epoch after the file's, and call sampler.set_epoch(epoch) in it",
            "rank %d: the job goes on from %.100s with %.30s %g, and %s", k,
            ls_event_text(load, path, ""), ls_event_key(number), number->number,
            anew ? file : "its sampler draws the order of epoch 0");
        return anew && with_state && writes_again(rank, load);
    }
    return false;
}

static void judge_epoch(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    look_at_epoch(trace, k, out);
}

static void judge_epoch_again(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    ls_observe_finding one = {0};
    if (look_at_epoch(trace, k, &one)) {
        *out = one;
    }
}

/* ---- the rate -------------------------------------------------------------------------------- */

static void judge_rate(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *load = loaded(rank, "optimizer");
    ls_restored_rate_judge(rank, k, load != NULL && writes_again(rank, load),
                           continues_steps(rank) || continues_epoch(rank), out);
}

/* ---- a job that goes on in the process that wrote the file ----------------------------------- */

/* Another object of the same line takes over from the optimizer of that step, without moments. */
static const ls_event *took_over(const ls_observe_rank *rank, int64_t step)
{
    int before = -1, now = -1;
    ls_trace_each_step(at, rank) {
        ls_trace_each_call(call, at) {
            bool asks = ls_calls_is_attempt(call) && call->optimizer >= 0;
            before = asks && at->step->step <= step ? call->optimizer : before;
            now = asks && now < 0 && at->step->step > step ? call->optimizer : now;
        }
    }
    const ls_event *old = ls_job_optimizer(rank, before), *bare = ls_job_optimizer(rank, now);
    bool taken = before != now && old != NULL && bare != NULL && ls_event_same(old, bare, at) &&
                 keeps_moments(bare) && ls_event_int(bare, state, -1) == 0;
    return taken ? bare : NULL;
}

/* Whether another loader goes on behind that step with the epoch behind the last one's. */
static bool goes_on_behind(const ls_observe_rank *rank, int64_t step)
{
    const ls_event *data, *last = NULL;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (!ls_pass_is_trained(data) || ls_event_int(data, sampler_epoch, -1) < 0) {
            continue;
        }
        if (ls_pass_first_step(data) > (double)step) {
            return last != NULL &&
                   ls_event_int(data, loader, -1) != ls_event_int(last, loader, -1) &&
                   ls_event_same(data, last, at) &&
                   ls_event_int(data, sampler_epoch, -1) ==
                       ls_event_int(last, sampler_epoch, -1) + 1;
        }
        last = data;
    }
    return false;
}

/* The last file that rank 0 had written by then. */
static bool is_last_written(const ls_observe_rank *first, const ls_event *load)
{
    const ls_event *save, *last = NULL;
    ls_event_each(save, ls_trace_events(first, save)) {
        last = ls_saved_step(save) <= ls_saved_step(load) ? save : last;
    }
    return last != NULL && ls_event_same(last, load, path);
}

static bool is_restored_at(const ls_observe_rank *rank, const char *what, int64_t step)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (restores(restore, what) && ls_saved_step(restore) == step) {
            return true;
        }
    }
    return false;
}

/* Model, loader and optimizer are built anew, and the file's weights and epoch are taken up. */
static void judge_again(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    const ls_event *load;
    ls_event_each(load, ls_trace_events(rank, load)) {
        int64_t step = ls_saved_step(load);
        const ls_event *bare = step > 0 ? took_over(rank, step) : NULL;
        if (bare == NULL || !ls_saved_has(load, "optimizer") || !has_moments(load) ||
            !is_last_written(&trace->rank[0], load) || !is_restored_at(rank, "model", step) ||
            is_restored_at(rank, "optimizer", step) || !goes_on_behind(rank, step)) {
            continue;
        }
        ls_finding_set(
            out, LS_FAIL, ls_event_text(load, at, ""),
            "optimizer.load_state_dict is not called, or before there is an optimizer",
            "call optimizer.load_state_dict(checkpoint[...]) behind its constructor",
            "rank %d, step %lld: the job goes on from %.100s with its weights and epoch, "
            "and its new optimizer (%.60s) begins without the state that the file holds",
            k, (long long)step, ls_event_text(load, path, ""), ls_event_text(bare, class, ""));
        return;
    }
}

/* ---- checkpoint.resume ----------------------------------------------------------------------- */

typedef void judge_rank(const ls_observe_trace *trace, int k, ls_observe_finding *out);

/* The first mistake found is the one that is named: those behind it may follow from it. Guessed:
 * what shows that the job goes on is a name or a number, or the weights may have come otherwise. */
static int judge_loads(const ls_observe_trace *trace, ls_observe_finding *out)
{
    static const struct {
        judge_rank *judge;
        bool guesses;
    } judges[] = {{judge_taken, false},  {judge_moments, false}, {judge_model, true},
                  {judge_scaler, false}, {judge_schedule, true}, {judge_epoch_again, false},
                  {judge_epoch, true},   {judge_rate, true},     {judge_again, false}};
    int resumed = 0;
    for (int k = 0; k < trace->world; k++) {
        for (size_t i = 0; i < sizeof judges / sizeof *judges; i++) {
            ls_observe_finding one = {0};
            if (ls_verdict_good(out->verdict.code)) {
                judges[i].judge(trace, k, &one);
                (judges[i].guesses ? ls_finding_guess : ls_calls_keep_worst)(out, &one);
            }
        }
        resumed += restored(&trace->rank[k], "optimizer") != NULL;
    }
    return resumed;
}

void ls_rules_checkpoint_resume(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!ls_saved_concerns(trace, out)) {
        return;
    }
    /* What this job lost comes before what a later one will lose. */
    ls_observe_finding later = {.rule = out->rule};
    int resumed = judge_loads(trace, out);
    bool has_writer = trace->before != NULL && trace->before->world == trace->world;
    if (ls_verdict_good(out->verdict.code) && trace->attached && has_writer &&
        restored(&trace->rank[0], "optimizer") != NULL) {
        ls_restored_judge_data(trace, out);
        ls_restored_judge_places(trace, out);
        ls_restored_judge_schedules(trace, out);
    }
    if (ls_verdict_good(out->verdict.code) && trace->attached && has_writer) {
        ls_restored_judge_averages(trace, out);
    }
    if (ls_verdict_good(out->verdict.code)) {
        ls_restored_judge_overwritten(trace, out);
        ls_restored_judge_left(trace, out);
    }
    const ls_event *bare = NULL;
    int files = judge_saves(trace, &bare, out->verdict.code == LS_FAIL ? &later : out);
    if (files == 0) {
        judge_lost_moments(trace, out);
    }
    if (bare != NULL && ls_trace_first(&trace->rank[0], LS_CALL_SCHEDULE) != NULL) {
        ls_finding_blame(out, ls_event_text(bare, at, ""),
                         "the checkpoint has no state of the learning rate's schedule: "
                         "right where it is set from the epoch");
    }
    if (files + resumed == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       ls_saved_count(trace, "model") > 0
                           ? "files of weights alone: none is for going on from"
                           : "nothing was saved or resumed");
    }
    ls_verdict_pass(&out->verdict, files + resumed, "%d files to go on from; %s", files,
                    resumed > 0 ? "the job restored what its file holds"
                                : "the job itself began anew");
}
