/* Whether a validation runs in eval mode, and what the ranks find in their parts is put together.
 */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

/* A pass over a loader in which no backward ran, and what the rank did meanwhile. */
typedef struct validation {
    double batches;
    int in_training;        /* forwards without autograd of one model in training mode */
    int in_eval;            /* of any model */
    bool collectives;       /* of the script's own */
    const ls_call *forward; /* in training mode, the first */
} validation;

/* The steps that were open while the pass ran: the last one may have taken in what came before the
 * next training forward. */
static validation look(const ls_observe_rank *rank, const ls_event *data, int model)
{
    validation v = {0};
    int count;
    const ls_observe_step *step = ls_pass_steps(rank, data, &count);
    v.batches = ceil(ls_event_number(data, count, 0) / fmax(ls_event_number(data, batch, 1), 1));
    for (int i = 0; i < count; i++) {
        ls_trace_each_call(call, &step[i]) {
            v.collectives = v.collectives || ls_calls_combine(call);
            if (call->kind != LS_CALL_FORWARD || ls_calls_flag(call, grad) != 0) {
                continue;
            }
            if (ls_calls_flag(call, training) != 1) {
                v.in_eval += call->times;
            } else if (call->model == model) {
                v.forward = v.forward == NULL ? call : v.forward;
                v.in_training += call->times;
            }
        }
    }
    return v;
}

/* The same data are gone through again before the next step, as by Monte Carlo dropout. */
static bool is_repeated(const ls_observe_rank *rank, const ls_event *pass)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (data != pass && ls_pass_is_validation(data) && ls_event_same(data, pass, at) &&
            ls_pass_last_step(data) == ls_pass_last_step(pass)) {
            return true;
        }
    }
    return false;
}

/* Statistics that are measured in training mode are used in eval mode. */
static bool is_run_in_eval(const ls_observe_rank *rank, int model)
{
    ls_trace_each_step(step, rank) {
        ls_trace_each_call(call, step) {
            if (call->kind == LS_CALL_FORWARD && call->model == model &&
                ls_calls_flag(call, training) == 0) {
                return true;
            }
        }
    }
    return false;
}

static void judge_mode(const ls_observe_trace *trace, int k, const ls_event *data, int *seen,
                       ls_observe_finding *out, ls_observe_finding *guessed)
{
    const ls_observe_rank *rank = &trace->rank[k];
    for (int m = 0; m < ls_job_models(rank); m++) {
        const ls_event *model = ls_job_model(rank, m);
        int norms = ls_job_count(model, bn) + ls_job_count(model, sync_bn);
        int modes = ls_job_count(model, dropout) + norms;
        validation v = look(rank, data, m);
        *seen += v.in_eval + v.in_training > 0;
        /* A forward for each batch, but for one that others than a validation may have made. */
        if (modes == 0 || v.in_eval > 0 || v.in_training < 2 || v.in_training < v.batches - 1) {
            continue;
        }
        /* Statistics of batch norm are measured anew by forwards in training mode over training
         * data (torch.optim.swa_utils.update_bn). */
        if (ls_pass_is_over_training_data(rank, data) ||
            strcmp(v.forward->at, ls_event_text(data, at, "")) == 0) {
            ls_finding_blame(out, v.forward->at,
                             "forwards in training mode over data of the training set's length: "
                             "right where statistics of batch norm are measured anew");
            continue;
        }
        bool measured = norms > 0 && is_run_in_eval(rank, m);
        bool once = v.in_training <= v.batches + 1 && !is_repeated(rank, data);
        ls_finding_set(once && !measured ? out : guessed, LS_FAIL, v.forward->at,
                       "no model.eval() before the validation: dropout is on, batch norms use the "
                       "batch, and their running statistics take in validation data",
                       "model.eval() before the validation, model.train() after it",
                       "rank %d: %s runs in training mode over %g batches that are not trained on",
                       k, ls_event_text(model, name, "the model"), v.batches);
    }
}

enum { COPIES = 8 };

/* A forward of that average, or copy, of a model while all models are in eval mode. */
static bool is_of_copy(const ls_call *call, int number)
{
    return call->kind == LS_CALL_OTHER && strcmp(ls_calls_text(call, call), "average") == 0 &&
           ls_event_int(call->json, average, -1) == number && ls_event_has(call->json, training);
}

/* In how many steps a copy ran in training mode, and in eval mode; whether that is ever meant. */
typedef struct modes {
    int training, eval;
    bool meant;
} modes;

static modes modes_of(const ls_observe_rank *rank, int number)
{
    modes m = {0};
    ls_trace_each_step(step, rank) {
        bool training = false, eval = false;
        ls_trace_each_call(call, step) {
            bool of = is_of_copy(call, number), on = ls_event_bool(call->json, training, false);
            training = training || (of && on);
            eval = eval || (of && !on);
            m.meant = m.meant || (of && ls_event_bool(call->json, meant, false));
        }
        m.training += training;
        m.eval += eval;
    }
    return m;
}

/* Training data are gone through without a backward before the next step, as by update_bn. */
static bool are_measured(const ls_observe_rank *rank, const ls_event *pass)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_pass_is_validation(data) && ls_pass_is_over_training_data(rank, data) &&
            ls_pass_last_step(data) == ls_pass_last_step(pass)) {
            return true;
        }
    }
    return false;
}

/* An average, or a copy of a model, is validated in training mode. Nobody asked for that where the
 * script never called its train() and it runs at no other time. One that runs so once may be a
 * teacher whose forwards in training steps were not seen: classes are watched from the first eval()
 * on. An AveragedModel is always seen. */
static void judge_copy(const ls_observe_rank *rank, int k, const ls_event *data, int number,
                       ls_observe_finding *out, ls_observe_finding *guessed)
{
    int count, times = 0;
    const ls_call *first = NULL;
    const ls_observe_step *step = ls_pass_steps(rank, data, &count);
    double batches =
        ceil(ls_event_number(data, count, 0) / fmax(ls_event_number(data, batch, 1), 1));
    for (int i = 0; i < count; i++) {
        ls_trace_each_call(call, &step[i]) {
            if (is_of_copy(call, number) && ls_event_bool(call->json, training, false) &&
                ls_event_int(call->json, dropout, 0) + ls_event_int(call->json, norms, 0) > 0) {
                first = first == NULL ? call : first;
                times += call->times;
            }
        }
    }
    if (times < 2 || times < batches - 1 || are_measured(rank, data) ||
        strcmp(first->at, ls_event_text(data, at, "")) == 0) {
        return;
    }
    bool average = strcmp(ls_calls_text(first, what), "forward") == 0;
    bool norms = ls_event_int(first->json, norms, 0) > 0;
    bool once = times <= batches + 1 && !is_repeated(rank, data);
    modes m = modes_of(rank, number);
    bool sure = (norms ? m.eval == 0 : once) && !m.meant && (average || m.training > 1);
    ls_finding_set(sure ? out : guessed, LS_FAIL, first->at,
                   average ? "model.eval() does not reach the average: its dropout is on, its "
                             "norms use the batch and take in validation data"
                           : "model.eval() does not reach a copy of the model: its dropout is on, "
                             "its norms use the batch and take in validation data",
                   average ? "eval() of the AveragedModel before the validation"
                           : "eval() of the copy where it is made",
                   "rank %d: %s runs in training mode over %g batches that are not trained on, "
                   "while the model is in eval mode (dropouts: %d, norms: %d)",
                   k, average ? "an AveragedModel" : "a copy of a model", batches,
                   ls_event_int(first->json, dropout, 0), ls_event_int(first->json, norms, 0));
}

static const ls_tol few_steps =
    LS_TOL(8, "steps: in fewer nothing tells a validation from a part of each step");
static const ls_tol seldom = LS_TOL(
    0.2, "of the steps: a model that is run so in more of them is a teacher, a generator or a "
         "policy");

/* Forwards in training mode without autograd, some of them in a row, in a few steps of many: a
 * validation on batches that the script draws itself. A model that is run so in most steps is a
 * teacher, a generator or a policy; where norms keep statistics these may be measured anew. */
static void judge_drawn(const ls_observe_rank *rank, int k, int *seen, ls_observe_finding *out)
{
    const ls_event *model = ls_job_model(rank, 0), *data;
    const ls_call *first = NULL;
    int with = 0, forwards = 0;
    bool in_eval = false;
    ls_event_each(data, ls_trace_events(rank, data)) {
        in_eval = in_eval || ls_pass_is_validation(data);
    }
    for (int i = 0; i < rank->step_count; i++) {
        int row = 0, before = forwards;
        ls_trace_each_call(call, &rank->step[i]) {
            bool bare = call->kind == LS_CALL_FORWARD && ls_calls_flag(call, grad) == 0;
            in_eval = in_eval || (bare && ls_calls_flag(call, training) != 1);
            row = bare ? row + call->times : call->kind == LS_CALL_FORWARD ? 0 : row;
            if (bare && row > 1) {
                first = first == NULL ? call : first;
                forwards += row > call->times ? 1 : call->times;
            }
        }
        with += forwards > before;
    }
    if (ls_job_models(rank) != 1 || in_eval || with == 0) {
        return;
    }
    ++*seen;
    if (ls_job_count(model, dropout) == 0 ||
        ls_job_count(model, bn) + ls_job_count(model, sync_bn) > 0 ||
        rank->step_count < few_steps.value || with > seldom.value * rank->step_count) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, first->at, "no model.eval() before the validation: dropout is on",
        "model.eval() before the validation, model.train() after it",
        "rank %d: %s runs in training mode and without autograd in %d forwards, in %d of %d steps",
        k, ls_event_text(model, name, "the model"), forwards, with, rank->step_count);
}

void ls_rules_validation_mode(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int seen = 0;
    ls_observe_finding guessed = {0};
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (ls_pass_is_validation(data)) {
                judge_mode(trace, k, data, &seen, out, &guessed);
                for (int n = 0; n < COPIES; n++) {
                    judge_copy(&trace->rank[k], k, data, n, out, &guessed);
                }
            }
        }
    }
    ls_misuse_judge(trace, "validation.mode", out);
    for (int k = 0; k < trace->world; k++) {
        judge_drawn(&trace->rank[k], k, &seen, &guessed);
    }
    ls_finding_guess(out, &guessed);
    ls_finding_close(out, seen, LS_SKIP,
                     "no forward of a known model in a pass over data that were not trained on",
                     "%d validations: nothing draws in eval mode", seen);
}

/* ---- validation.whole ------------------------------------------------------------------------ */

/* Each rank validates a part of the data, and no collective follows: not on any rank. */
void ls_rules_validation_whole(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int divided = 0, gathered = 0;
    double again = 0, of = 0;
    const ls_event *data, *first = NULL, *padded = NULL;
    ls_event_each(data, ls_trace_events(&trace->rank[0], data)) {
        int replicas = ls_event_int(data, replicas, 1);
        if (!ls_pass_is_validation(data) ||
            strcmp(ls_event_text(data, sampler, ""), "DistributedSampler") != 0 || replicas < 2) {
            continue;
        }
        validation v = look(&trace->rank[0], data, -1);
        divided++;
        gathered += v.collectives;
        first = first == NULL ? data : first;
        double length = ls_event_number(data, length, 0), rest = fmod(length, replicas);
        if (!ls_event_bool(data, drop_last, false) && rest != 0) {
            padded = data;
            again = replicas - rest;
            of = length;
        }
    }
    if (divided == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no validation is divided by a DistributedSampler");
    } else if (gathered == 0) {
        ls_finding_set(out, LS_WEAK, ls_event_text(first, at, ""),
                       "each rank's score is of its own part: nothing sums what the ranks counted",
                       "all_reduce the sums and counts of the ranks before they are divided",
                       "each rank validates its own part, and no collective follows: what a rank "
                       "prints or chooses by is of 1/%d of the data",
                       trace->world);
    } else if (padded != NULL) {
        ls_finding_blame(out, ls_event_text(padded, at, ""),
                         "the sampler repeats samples so that all ranks have as many: "
                         "%g of %g count twice in the score",
                         again, of);
    }
    ls_verdict_pass(&out->verdict, divided, "collectives in %d of %d validations that are divided",
                    gathered, divided);
}

/* ---- data.held_out --------------------------------------------------------------------------- */

/* Whether a validation reads samples that the job trains on: compared by content, as splits that
 * are drawn anew on each rank or in each run have the right sizes and indices. */

static const ls_tol few =
    LS_TOL(32, "samples: of fewer a share of a tenth is three, which a data set may hold twice");
static const ls_tol duplicates =
    LS_TOL(0.1, "of the samples: text and pictures of public data sets hold up to some hundredths "
                "of them twice");
static const ls_tol almost_all =
    LS_TOL(0.95, "of the samples: a validation wholly on training data is a training score");
static const ls_tol whole =
    LS_TOL(0.9, "of the data set, drawn once by all ranks: a sampler may drop its last batches");

static bool are_as_long(const ls_event *a, const ls_event *b)
{
    return ls_event_number(a, length, NAN) == ls_event_number(b, length, NAN);
}

/* Both begin at one place. A library's one place begins the passes over all of its data sets. */
static bool are_same_place(const ls_event *a, const ls_event *b)
{
    return ls_event_same(a, b, at) && are_as_long(a, b);
}

/* Of all ranks' passes that were trained on, or of those of one place that were not. */
static ls_contents gather(const ls_observe_trace *trace, const ls_event *validation)
{
    ls_contents all = {0};
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (validation == NULL
                    ? ls_pass_is_trained(data)
                    : !ls_pass_is_trained(data) && are_same_place(data, validation)) {
                ls_pass_contents_add(&all, data);
            }
        }
    }
    return all;
}

/* A data set of that length is trained on: a pass over it is none over held-out data. */
static bool same_length(const ls_observe_trace *trace, const ls_event *validation)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (ls_pass_is_trained(data) && are_as_long(data, validation)) {
                return true;
            }
        }
    }
    return false;
}

/* A pass over training data that ends early, e.g. to build the model from a batch. */
static bool is_look(const ls_observe_trace *trace, const ls_event *pass)
{
    return same_length(trace, pass) && trace->world * ls_event_number(pass, count, 0) <
                                           whole.value * ls_event_number(pass, length, NAN);
}

/* The job went through all of the data that it trains on, once at least: else a look at training
 * data would be a validation on a part of them. */
static bool drew_all(const ls_observe_trace *trace)
{
    for (int i = 0;; i++) {
        double count = 0, length = NAN;
        for (int k = 0; k < trace->world; k++) {
            const ls_event *data = ls_pass_trained(&trace->rank[k], i);
            count += ls_event_number(data, count, 0);
            length = data != NULL ? ls_event_number(data, length, NAN) : length;
        }
        if (count == 0) {
            return false;
        }
        if (count >= whole.value * length) {
            return true;
        }
    }
}

/* Whether the contents of a data set come again in its next pass: random changes of pictures make
 * them differ each time. True for one pass. */
static bool comes_again(const ls_observe_trace *trace, const ls_contents *training)
{
    return ls_pass_trained(&trace->rank[0], 1) == NULL ||
           training->repeated > duplicates.value * training->count;
}

/* No validation of that place comes before this pass of rank k: its place is still to be judged. */
static bool is_first(const ls_observe_trace *trace, int rank, const ls_event *validation)
{
    for (int k = 0; k <= rank; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (data == validation) {
                return true;
            }
            if (!ls_pass_is_trained(data) && are_same_place(data, validation)) {
                return false;
            }
        }
    }
    return true;
}

static ls_contents gather_rank(const ls_observe_rank *rank, const ls_event *validation)
{
    ls_contents all = {0};
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (validation == NULL ? ls_pass_is_trained(data)
                               : !ls_pass_is_trained(data) && are_same_place(data, validation)) {
            ls_pass_contents_add(&all, data);
        }
    }
    return all;
}

/* Whether each rank holds back samples of its own: it trains on none of them, and other ranks of
 * the same model do. */
static bool is_split_by_rank(const ls_observe_trace *trace, const ls_event *validation)
{
    int own = 0, others = 0;
    for (int k = 0; k < trace->world; k++) {
        ls_contents held = gather_rank(&trace->rank[k], validation);
        for (int j = 0; j < trace->world; j++) {
            ls_contents training = gather_rank(&trace->rank[j], NULL);
            int of, common = ls_pass_contents_common(&held, &training, &of);
            *(j == k ? &own : &others) += common;
            ls_pass_contents_free(&training);
        }
        ls_pass_contents_free(&held);
    }
    return own == 0 && others >= few.value && ls_trace_is_ddp(trace);
}

/* True: it is sure. */
static bool judge_place(const ls_observe_trace *trace, const ls_event *validation,
                        const ls_contents *training, int *compared, ls_observe_finding *out)
{
    const char *at = ls_event_text(validation, at, "");
    ls_contents held = gather(trace, validation);
    int of, common = ls_pass_contents_common(&held, training, &of);
    ls_pass_contents_free(&held);
    if (of < few.value) {
        return false;
    }
    *compared += of;
    if (common <= duplicates.value * of) {
        return false;
    }
    if (common >= almost_all.value * of || same_length(trace, validation) || !drew_all(trace) ||
        ls_event_count(ls_trace_events(&trace->rank[0], model)) > 1) {
        ls_finding_set(out, LS_WEAK, at, NULL, "validate on samples that no rank trains on",
                       "%d of %d samples of the validation at %s are trained on: fine for a "
                       "training score, or where each model has a split of its own",
                       common, of, at);
        return false;
    }
    ls_finding_set(out, LS_FAIL, ls_job_data_place(validation, cut_at),
                   "training and validation are split differently on each rank or after a resume: "
                   "the score is of samples that the model has seen",
                   "split alike everywhere: random_split(..., "
                   "generator=torch.Generator().manual_seed(0)), and sort lists of files",
                   "%d of %d samples of the validation are trained on, by this or another rank",
                   common, of);
    return is_split_by_rank(trace, validation);
}

void ls_rules_data_held_out(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_contents training = gather(trace, NULL);
    int compared = 0, passes = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (!ls_pass_is_trained(data) && !is_look(trace, data) && is_first(trace, k, data)) {
                ls_observe_finding one = {0};
                bool sure = judge_place(trace, data, &training, &compared, &one);
                (sure ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
                passes++;
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       passes == 0 ? "no pass over data that were not trained on"
                                   : "too few samples whose content can be compared");
    } else if (!comes_again(trace, &training)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "samples change from pass to pass: their contents cannot be compared");
    }
    ls_pass_contents_free(&training);
    ls_verdict_pass(&out->verdict, compared, "%d samples of validations are not trained on",
                    compared);
}
