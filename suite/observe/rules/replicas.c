/* Whether the ranks hold the same values where data-parallel training promises it. */
#include <string.h>

#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/mean.h"

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const char *class = ls_job_sharded(trace);
    if (class != NULL && !ls_trace_is_ddp(trace)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s: each rank holds a part of the model",
                       class);
        return false;
    }
    const char *apart = ls_job_apart(trace);
    if (apart != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s", apart);
    }
    return apart == NULL;
}

/* ---- the start ------------------------------------------------------------------------------- */

/* The names of a model's tensors whose digests differ between rank 0 and rank k; false where the
 * two cannot be compared. */
static bool compare_digests(const ls_event *a, const ls_event *b, ls_event_member tensors,
                            ls_event_member digests, ls_job_names *names)
{
    const ls_event *list = ls_event_get(a, tensors);
    const ls_event *first = ls_event_get(a, digests);
    const ls_event *second = ls_event_get(b, digests);
    int count = ls_event_count(first);
    if (!ls_event_is_list(first) || !ls_event_is_list(second) || ls_event_count(second) != count) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        const ls_event *x = ls_event_at(first, i), *y = ls_event_at(second, i);
        const ls_event *name = ls_event_at(ls_event_at(list, i), 0);
        if (!ls_event_is_text(x) || !ls_event_is_text(y)) {
            return false;
        }
        if (strcmp(x->text, y->text) != 0) {
            ls_job_add_name(names, ls_event_is_text(name) ? name->text : "?");
        }
    }
    return true;
}

static void fail_start(const ls_observe_trace *trace, const ls_event *model, int rank,
                       ls_job_names *names, ls_observe_finding *out)
{
    bool ddp = ls_job_model_is_ddp(model);
    const char *at = ls_event_text(model, at, "");
    ls_verdict_fail(&out->verdict,
                    "rank %d starts with other values than rank 0 in %d of %s's "
                    "parameters: %s",
                    rank, names->count, ls_event_text(model, name, "the model"),
                    ls_job_names_text(names));
    if (ddp) {
        ls_finding_explain(
            out, at,
            "DistributedDataParallel did not send these from rank 0: they are on its list of "
            "parameters to ignore, or its first synchronisation was switched off",
            "let DistributedDataParallel send all parameters at its start");
    } else if (ls_trace_is_ddp(trace)) {
        ls_finding_explain(out, at,
                           "this model is outside DistributedDataParallel, and each rank drew its "
                           "values from a seed of its own",
                           "wrap this model in DistributedDataParallel, too");
    } else {
        ls_finding_explain(
            out, at,
            "no DistributedDataParallel, and each rank drew its values from a seed of its own",
            "wrap the model in DistributedDataParallel, or give all ranks the same start and "
            "reduce the gradients");
    }
}

/* Reduced by hand, and never equal: the tensors whose gradients are common differ in the last
 * detailed step, too. False where the script has sent them meanwhile, or keeps parts local. */
static bool fail_start_by_hand(const ls_observe_trace *trace, const ls_event *model,
                               ls_observe_finding *out)
{
    ls_by_hand hand;
    ls_by_hand_look(trace, &hand);
    ls_job_names names = {0};
    int64_t last = 0, next = 0;
    while ((next = ls_samples_next(trace, next)) != 0) {
        last = next;
    }
    int64_t at = ls_by_hand_split(trace, &hand, last > 0 ? last - 1 : 0, "param", &names);
    if (at != 0) {
        ls_finding_set(out, LS_FAIL, ls_event_text(model, at, ""), NULL,
                       "broadcast parameters and buffers from rank 0 before the first step, or "
                       "seed all ranks alike while the model is built",
                       "the ranks step by one gradient and hold other values, from the start up to "
                       "step %lld, in %d of %d tensors: %s",
                       (long long)at, names.count, hand.common, ls_job_names_text(&names));
        ls_verdict_cause(&out->verdict,
                         "the script reduces gradients by hand (%.80s), each rank drew its "
                         "parameters from a seed of its own, and no rank's were sent to the "
                         "others: the gradients of different models are averaged",
                         hand.at[0] != '\0' ? hand.at : "between backward and step");
    }
    ls_by_hand_free(&hand);
    return at != 0;
}

/* Whether the script has sent the parameters between the first forward and the first step. */
static bool starts_by_hand(const ls_observe_trace *trace)
{
    ls_by_hand hand;
    ls_job_names names = {0};
    ls_by_hand_look(trace, &hand);
    bool equal = hand.common > 0 && hand.apart == 0 &&
                 ls_by_hand_split(trace, &hand, 0, "param", &names) == 0;
    ls_by_hand_free(&hand);
    return equal;
}

/* A plain model that is trained is judged too: the wrapper may be missing. */
static void judge_models(const ls_observe_trace *trace, int *compared, ls_observe_finding *out)
{
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const ls_event *first = ls_job_model(&trace->rank[0], m);
        for (int k = 1; k < trace->world && first != NULL; k++) {
            ls_job_names names = {0};
            const ls_event *other = ls_job_model(&trace->rank[k], m);
            if (!(ls_job_model_is_ddp(first) || ls_job_is_trained(&trace->rank[0], m, false)) ||
                ls_event_int(first, world, trace->world) != trace->world ||
                !compare_digests(first, other, LS_LIST(params), LS_LIST(param_digests), &names)) {
                continue;
            }
            *compared += ls_event_count(ls_event_list(first, params));
            if (names.count > 0 && !ls_job_model_is_ddp(first) && ls_job_calls_collectives(trace)) {
                if (fail_start_by_hand(trace, first, out)) {
                    return;
                }
                if (starts_by_hand(trace)) {
                    continue;
                }
                ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                               "%s is not in DistributedDataParallel and starts with other values "
                               "on rank %d; the script calls collectives of its own, which may "
                               "send them",
                               ls_event_text(first, name, "a model"), k);
                return;
            }
            if (names.count > 0) {
                fail_start(trace, first, k, &names, out);
                return;
            }
        }
    }
}

static void judge_first_dump(const ls_observe_trace *trace, int *compared, ls_observe_finding *out)
{
    ls_samples samples;
    ls_job_names names = {0};
    ls_samples_open(trace, 1, &samples, out);
    *compared += ls_job_compare_samples(&samples, "param", &names);
    if (names.count > 0) {
        ls_verdict_fail(&out->verdict,
                        "before step 1 the ranks hold other values in %d tensors: %s", names.count,
                        ls_job_names_text(&names));
    }
    ls_samples_close(&samples);
}

void ls_rules_replicas_start(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    if (trace->attached) {
        judge_models(trace, &compared, out);
    } else {
        judge_first_dump(trace, &compared, out);
    }
    if (compared == 0) {
        ls_finding_missing(trace, "no model has values of its start on two ranks", out);
    }
    ls_verdict_pass(&out->verdict, compared, "%d tensors compared on %d ranks", compared,
                    trace->world);
}

/* ---- every step ------------------------------------------------------------------------------ */

/* The last step that every rank has. */
static int64_t last_step(const ls_observe_trace *trace)
{
    int64_t last = INT64_MAX;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        int64_t own = rank->step_count == 0 ? 0 : rank->step[rank->step_count - 1].step->step;
        last = own < last ? own : last;
    }
    return last;
}

/* Steps after which all ranks' digests are known. */
typedef struct compared {
    int64_t steps, of; /* those with digests of anything, and all */
    int64_t last;      /* the last one whose digests are equal; 0: none */
    int64_t put_in;    /* the last one behind which one rank put other parameters in; 0: none */
    ls_split split;    /* the first one whose digests differ */
} compared;

/* Between the step and its digests one of the two ranks alone changed parameters: rank 0 puts
 * averaged weights in to save them, say. If they stay in, the next step differs. Or one alone has
 * freed a model, or made one, by then. */
static bool moved_alone(const ls_observe_trace *trace, ls_record_digest which, int64_t n, int a,
                        int b)
{
    const ls_observe_step *one = ls_trace_step(&trace->rank[a], n);
    const ls_observe_step *other = ls_trace_step(&trace->rank[b], n);
    return one->digested != other->digested ||
           (which == LS_RECORD_PARAM && one->moved != other->moved);
}

static compared compare_steps(const ls_observe_trace *trace, ls_record_digest which)
{
    static const char nothing[] = "0000000000000000"; /* of no tensors */
    compared c = {0};
    for (int64_t n = ls_split_next_step(trace, 0); n != INT64_MAX && c.split.step == 0;
         n = ls_split_next_step(trace, n + 1)) {
        const char *first = NULL;
        int a = 0, known = 0;
        for (int k = 0; k < trace->world && c.split.step == 0; k++) {
            const char *digest = ls_trace_digest(ls_trace_step(&trace->rank[k], n), which);
            if (digest != NULL && first != NULL && strcmp(first, digest) != 0) {
                if (moved_alone(trace, which, n, a, k)) {
                    c.put_in = n;
                    break;
                }
                c.split = (ls_split){n, a, k};
            }
            known += digest != NULL;
            a = first == NULL ? k : a;
            first = first == NULL ? digest : first;
        }
        bool equal = known == trace->world && c.split.step == 0;
        c.of++;
        c.steps += equal && strcmp(first, nothing) != 0;
        c.last = equal ? n : c.last;
    }
    return c;
}

/* The detailed step at or after n, else the last before it; 0: none. */
static int64_t nearest_detail(const ls_observe_trace *trace, int64_t n)
{
    int64_t before = 0, step = 0;
    while ((step = ls_samples_next(trace, step)) != 0) {
        if (step >= n) {
            return step;
        }
        before = step;
    }
    return before;
}

/* Models that are trained and started with other values on other ranks. */
static bool blame_start(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_observe_finding start = {0};
    int compared = 0;
    judge_models(trace, &compared, &start);
    if (start.verdict.code != LS_FAIL) {
        return false;
    }
    ls_verdict_cause(&out->verdict, "the ranks started from different parameters: %s",
                     start.verdict.cause);
    ls_finding_blame(out, start.where, "%s", start.advice);
    return true;
}

static void blame(const ls_observe_trace *trace, ls_split at, const ls_samples *samples,
                  const char *what, ls_observe_finding *out)
{
    if (!blame_start(trace, out)) {
        ls_split_blame(trace, at, samples, what, out);
    }
}

/* All differing tensors belong to models that are not wrapped. */
static const ls_event *plain_model_of(const ls_observe_trace *trace, const ls_samples *samples,
                                      const char *group)
{
    const ls_event *plain = NULL;
    const ls_observe_rank *rank = &trace->rank[0];
    for (int i = 0; i < rank->tensor_count; i++) {
        const char *name = rank->tensor[i].name;
        const ls_event *model = ls_job_model(rank, rank->tensor[i].model);
        const ls_dumpfile_entry *first = ls_samples_find(samples->file[0], group, name, NULL);
        bool differs = false;
        for (int k = 1; k < samples->world && first != NULL; k++) {
            const ls_dumpfile_entry *other = ls_samples_find(samples->file[k], group, name, NULL);
            differs = differs || (other != NULL && !ls_dumpfile_equal(first, other));
        }
        if (differs && ls_job_model_is_ddp(model)) {
            return NULL;
        }
        plain = differs ? model : plain;
    }
    return plain;
}

/* "after step 9" where they were equal after the one before, else "between steps 8 and 12". */
static void when_split(const ls_observe_trace *trace, ls_split at, int64_t equal, char *text,
                       size_t bytes)
{
    bool next = equal >= at.step || ls_split_next_step(trace, equal + 1) == at.step;
    ls_text_put(text, bytes, "after step %lld", (long long)at.step);
    if (!next) {
        ls_text_put(text, bytes, "between steps %lld and %lld", (long long)equal,
                    (long long)at.step);
    }
}

static void fail_step(const ls_observe_trace *trace, const compared *c, ls_split at,
                      const char *word, const char *group, const char *what, bool by_hand,
                      ls_observe_finding *out)
{
    char when[64];
    ls_samples samples;
    ls_job_names names = {0};
    int64_t detail = nearest_detail(trace, at.step);
    ls_samples_open(trace, detail, &samples, out);
    int compared = ls_job_compare_samples(&samples, group, &names);
    LS_TEXT(tensors, 400, ": no samples from that step on");
    if (compared > 0 && detail >= at.step) {
        ls_text_put(tensors, sizeof tensors, ": %d of %d sampled tensors of step %lld%s%s",
                    names.count, compared / (samples.count > 1 ? samples.count - 1 : 1),
                    (long long)detail, names.count > 0 ? ", " : "", ls_job_names_text(&names));
    }
    when_split(trace, at, c->last, when, sizeof when);
    ls_verdict_fail(&out->verdict, "%s ranks %d and %d hold different %s%s", when, at.a, at.b, word,
                    tensors);
    const ls_event *plain = plain_model_of(trace, &samples, group);
    if (by_hand) {
        blame(trace, at, &samples, what, out);
    } else if (plain != NULL && ls_trace_is_ddp(trace)) {
        ls_verdict_cause(&out->verdict,
                         "these parameters are of %s, which is outside "
                         "DistributedDataParallel: each rank trains its own",
                         ls_event_text(plain, name, "a model"));
        ls_finding_blame(out, ls_event_text(plain, at, ""),
                         "make this module a part of the model that is wrapped, or wrap it, too");
    } else if (plain != NULL && !ls_trace_is_ddp(trace)) {
        ls_finding_explain(
            out, ls_event_text(plain, at, ""),
            "no model is wrapped in DistributedDataParallel: each rank trains its own",
            "wrap the model in DistributedDataParallel");
    } else {
        blame(trace, at, &samples, what, out);
    }
    ls_samples_close(&samples);
}

/* Digests are over all models. One that no optimizer trains and that started with other values on
 * each rank (a drawn projection, say) makes them differ without any fault. */
static bool has_untrained_difference(const ls_observe_trace *trace)
{
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const ls_event *first = ls_job_model(&trace->rank[0], m);
        for (int k = 1; k < trace->world && first != NULL; k++) {
            ls_job_names names = {0};
            if (!ls_job_model_is_ddp(first) && !ls_job_is_trained(&trace->rank[0], m, false) &&
                compare_digests(first, ls_job_model(&trace->rank[k], m), LS_LIST(params),
                                LS_LIST(param_digests), &names) &&
                names.count > 0) {
                return true;
            }
        }
    }
    return false;
}

/* In place of digests: the first detailed step whose samples differ. */
static ls_split find_sampled_split(const ls_observe_trace *trace, const char *group, int *compared,
                                   ls_observe_finding *out)
{
    ls_split found = {0};
    ls_samples_each(samples, trace, 0, found.step == 0, out) {
        ls_job_names names = {0};
        *compared += ls_job_compare_samples(&samples, group, &names) > 0;
        if (names.count > 0) {
            found = (ls_split){samples.number, 0, trace->world - 1};
        }
    }
    return found;
}

static bool is_by_hand(const ls_observe_trace *trace)
{
    return trace->attached && !ls_trace_is_ddp(trace) && ls_job_calls_collectives(trace);
}

/* A job that reduces by hand: whether those tensors differ whose gradients the ranks share. */
static bool splits_by_hand(const ls_observe_trace *trace, const char *group, ls_split *at)
{
    ls_by_hand hand;
    ls_job_names names = {0};
    if (!is_by_hand(trace)) {
        return false;
    }
    ls_by_hand_look(trace, &hand);
    int64_t step = ls_by_hand_split(trace, &hand, 0, group, &names);
    bool all = hand.apart == 0;
    ls_by_hand_free(&hand);
    if (step != 0 && (!all || step < at->step)) {
        *at = (ls_split){step, 0, trace->world - 1}; /* digests are over other tensors, too */
    }
    return step != 0;
}

static bool is_excused(const ls_observe_trace *trace, bool by_hand, ls_observe_finding *out)
{
    const char *why = ls_job_averages_later(trace);
    if (why == NULL && ls_trace_is_ddp(trace) && ls_by_hand_averages_later(trace)) {
        why = "the script averages parameters from time to time";
    }
    if (why != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "%s: replicas differ between two averagings on purpose", why);
        return true;
    }
    if (is_by_hand(trace) && !by_hand) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "no model is in DistributedDataParallel, and the script calls collectives "
                       "of its own: what they promise is not known");
        return true;
    }
    return ls_reduction_is_partial(trace, out);
}

/* Equal digests, or none: a pass only where the last step is among them. */
static void pass_steps(const ls_observe_trace *trace, const compared *c, const char *word,
                       ls_observe_finding *out)
{
    int64_t last = last_step(trace);
    if (c->steps == 0 && c->last != 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no tensor is part of the %s", word);
    } else if (c->steps == 0) {
        LS_TEXT(what, 80, "no step has digests of the %s on all ranks", word);
        ls_finding_missing(trace, what, out);
    } else if (c->last < last && c->put_in != last) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "equal on %d ranks after %lld of %lld steps, up to step %lld: of step %lld, "
                       "the last one, not all ranks have digests",
                       trace->world, (long long)c->steps, (long long)c->of, (long long)c->last,
                       (long long)last);
    }
    LS_TEXT(put_in, 120, "up to step %lld: behind the last one, some ranks alone put other %s in",
            (long long)c->last, word);
    ls_verdict_pass(&out->verdict, c->steps, "equal on %d ranks after %lld of %lld steps, %s",
                    trace->world, (long long)c->steps, (long long)c->of,
                    c->last < last ? put_in : "the last among them");
}

static bool is_held(const ls_observe_rank *rank, const char *name)
{
    int optimizer, group;
    return ls_job_group(rank, name, -1, &optimizer, &group) != NULL;
}

/* Whether a rank's optimizers hold state of parameters that another rank's do not: they are dealt
 * to the ranks by name, or as parts of copies that no model knows, while its own are in no
 * optimizer. common: parameters whose state several ranks hold, or may hold. */
static bool holds_other_state(const ls_observe_trace *trace, int *common)
{
    const ls_observe_rank *first = &trace->rank[0];
    bool dealt = false;
    *common = 0;
    for (int k = 0; k < trace->world; k++) {
        dealt = dealt || is_held(&trace->rank[k], "?"); /* each rank's classes, say */
    }
    for (int i = 0; i < first->tensor_count; i++) {
        const char *name = first->tensor[i].name;
        int holders = 0;
        for (int k = 0; k < trace->world; k++) {
            holders += is_held(&trace->rank[k], name);
        }
        bool copied = holders == 0 && first->tensor[i].trainable && is_held(first, "?");
        dealt = dealt || copied || (holders > 0 && holders < trace->world);
        *common += copied || holders > 1;
    }
    return dealt;
}

/* The same where each optimizer has all parameters, and steps those that are dealt to its rank: two
 * ranks at least have state in that step that another one lacks. */
static bool fills_other_state(const ls_observe_trace *trace, int64_t step, int *common,
                              ls_observe_finding *out)
{
    static const char group[] = "next_state/";
    int owners = 0;
    ls_samples samples;
    ls_samples_open(trace, step, &samples, out);
    *common = 0;
    for (int k = 0; k < samples.world && samples.count == samples.world; k++) {
        int own = 0;
        for (int i = 0; i < ls_dumpfile_count(samples.file[k]); i++) {
            const char *name = ls_dumpfile_at(samples.file[k], i)->name;
            int holders = 0;
            for (int j = 0; j < samples.world && strncmp(name, group, strlen(group)) == 0; j++) {
                holders += ls_dumpfile_find(samples.file[j], name) != NULL;
            }
            own += holders > 0 && holders < samples.world;
            *common += k == 0 && holders == samples.world;
        }
        owners += own > 0;
    }
    ls_samples_close(&samples);
    return owners > 1;
}

static void judge_digests(const ls_observe_trace *trace, ls_record_digest which, const char *word,
                          const char *group, const char *what, ls_observe_finding *out)
{
    compared c = compare_steps(trace, which);
    ls_split at = c.split;
    bool by_hand = at.step != 0 && splits_by_hand(trace, group, &at);
    if (at.step != 0 && which == LS_RECORD_PARAM && is_by_hand(trace) &&
        ls_parts_judge_replicated(trace, out)) {
        return;
    }
    if (at.step != 0 && is_excused(trace, by_hand, out)) {
        if (which == LS_RECORD_PARAM && is_by_hand(trace)) {
            ls_parts_guess_norms(trace, out);
        }
        return;
    }
    bool untrained = which == LS_RECORD_PARAM && has_untrained_difference(trace);
    if (at.step != 0 && trace->attached && ls_job_models(&trace->rank[0]) == 0 &&
        ls_job_has_no_tensors(trace, out)) {
        return; /* its state may be of parts */
    }
    int common = 0;
    bool dealt = which == LS_RECORD_STATE && at.step != 0 &&
                 (holds_other_state(trace, &common) ||
                  fills_other_state(trace, nearest_detail(trace, at.step), &common, out));
    if (at.step != 0 && !by_hand && (untrained || dealt)) {
        int sampled = 0;
        at = find_sampled_split(trace, group, &sampled, out);
        if (at.step == 0 && dealt && common == 0) {
            ls_verdict_set(&out->verdict, LS_SKIP, "no two ranks hold state of one parameter");
        } else if (at.step == 0 && dealt) {
            ls_verdict_set(&out->verdict, sampled > 0 ? LS_WEAK : LS_UNSUPPORTED,
                           "each rank's optimizer holds state of parameters that others do not, or "
                           "that no model has; of what several hold, samples are equal after %d "
                           "detailed steps",
                           sampled);
        } else if (at.step == 0) {
            ls_verdict_set(&out->verdict, LS_WEAK,
                           "a model that is not trained differs by rank, and digests are of all "
                           "models: samples of the others are equal after %d detailed steps",
                           sampled);
        }
    }
    if (at.step != 0) {
        fail_step(trace, &c, at, word, group, what, by_hand, out);
    }
    pass_steps(trace, &c, word, out);
}

void ls_rules_replicas_step(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (ls_parts_judge_models(trace, out)) {
        return;
    }
    if (concerns(trace, out) && !ls_job_has_no_tensors(trace, out)) {
        judge_digests(trace, LS_RECORD_PARAM, "parameters", "next", "model", out);
    }
}

void ls_rules_replicas_state(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!concerns(trace, out)) {
        return;
    }
    const char *class = ls_job_sharded_optimizer(trace);
    if (class != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s: each rank holds a part of the state",
                       class);
        return;
    }
    judge_digests(trace, LS_RECORD_STATE, "optimizer state", "next_state", "optimizer", out);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static bool is_statistic(const char *name)
{
    static const char *const ends[] = {"running_mean", "running_var", "num_batches_tracked"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t bytes = strlen(ends[i]);
        if (length >= bytes && strcmp(name + length - bytes, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* What is known of the buffers of all models together. */
typedef struct buffers {
    int count, others; /* others: no running statistics of a norm */
    int local, shared; /* batch norms with statistics of a rank, of all ranks */
    bool wrapped, sent;
} buffers;

static buffers count_buffers(const ls_observe_rank *rank)
{
    buffers b = {0};
    for (int m = 0; m < ls_job_models(rank); m++) {
        const ls_event *model = ls_job_model(rank, m), *buffer;
        ls_event_each(buffer, ls_event_list(model, buffers)) {
            const ls_event *name = ls_event_at(buffer, 0);
            b.count++;
            b.others += !(ls_event_is_text(name) && is_statistic(name->text));
        }
        b.local += ls_job_count(model, bn);
        b.shared += ls_job_count(model, sync_bn);
        b.wrapped = b.wrapped || ls_job_model_is_ddp(model);
        b.sent = b.sent || ls_event_bool(model, broadcast_buffers, false);
    }
    return b;
}

/* As the constructor left them: DistributedDataParallel sends those that it broadcasts later. */
static void judge_first_buffers(const ls_observe_trace *trace, int *compared,
                                ls_observe_finding *out)
{
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const ls_event *first = ls_job_model(&trace->rank[0], m);
        if (!ls_job_model_is_ddp(first) || !ls_event_bool(first, broadcast_buffers, false) ||
            ls_event_int(first, world, trace->world) != trace->world) {
            continue;
        }
        for (int k = 1; k < trace->world; k++) {
            ls_job_names names = {0};
            if (!compare_digests(first, ls_job_model(&trace->rank[k], m), LS_LIST(buffers),
                                 LS_LIST(buffer_digests), &names)) {
                continue;
            }
            *compared += ls_event_count(ls_event_list(first, buffers));
            if (names.count > 0) {
                ls_finding_set(out, LS_FAIL, ls_event_text(first, at, ""), NULL,
                               "let DistributedDataParallel send these buffers at its start",
                               "rank %d starts with other buffers than rank 0: %s", k,
                               ls_job_names_text(&names));
            }
        }
    }
}

/* After a step only statistics that all ranks share are the same everywhere: others are rank 0's
 * again before the next forward, or stay a rank's own. */
static void judge_shared_statistics(const ls_observe_trace *trace, ls_observe_finding *out)
{
    compared c = compare_steps(trace, LS_RECORD_BUFFER);
    ls_split at = c.split;
    if (at.step != 0) {
        ls_verdict_fail(&out->verdict,
                        "after step %lld ranks %d and %d hold different statistics "
                        "of SyncBatchNorm",
                        (long long)at.step, at.a, at.b);
        const ls_event *model = ls_job_model(&trace->rank[0], 0);
        ls_finding_blame(out, ls_event_text(model, at, ""),
                         "let all ranks run the same training forwards, and none in eval mode");
    }
    pass_steps(trace, &c, "shared statistics", out);
}

/* A codebook that each rank moves by its own samples, say: the forwards of ranks are not those of
 * one model. A queue of the rank's own samples is none. */
static void judge_own_buffers(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_split at = compare_steps(trace, LS_RECORD_BUFFER).split;
    if (at.step != 0) {
        ls_finding_set(out, LS_WEAK, ls_event_text(ls_job_model(&trace->rank[0], 0), at, ""), NULL,
                       "all_reduce what they are updated by, or let DistributedDataParallel send "
                       "them (broadcast_buffers=True)",
                       "after step %lld ranks %d and %d hold other buffers, which are no "
                       "statistics of a norm, and nothing sends them: a mistake, unless they are "
                       "to hold the rank's own samples",
                       (long long)at.step, at.a, at.b);
    }
}

/* The same where DistributedDataParallel sends rank 0's at each forward; or where ranks that reduce
 * gradients by themselves hold the same parameters after all steps. */
static void guess_moved_buffers(const ls_observe_trace *trace, bool sent, ls_observe_finding *out)
{
    ls_split at = compare_steps(trace, LS_RECORD_BUFFER).split;
    ls_observe_finding one = {0};
    if (at.step != 0) {
        ls_finding_set(&one, LS_FAIL, ls_event_text(ls_job_model(&trace->rank[0], 0), at, ""),
                       sent ? "each rank moves a buffer by its own samples, and rank 0's replaces "
                              "it at the next forward: what the other ranks counted is lost"
                            : "each rank moves a buffer by its own samples: ranks with the same "
                              "parameters are different functions",
                       "all_reduce what the buffer is moved by, as SyncBatchNorm does",
                       "after step %lld ranks %d and %d hold other buffers, which are no "
                       "statistics of a norm",
                       (long long)at.step, at.a, at.b);
        ls_finding_guess(out, &one);
    }
}

static const ls_tol enough_steps =
    LS_TOL(3, "steps after which parameters are equal, in which each rank trained by other data");

/* Ranks that keep one model without the wrapper. */
static bool is_kept_equal(const ls_observe_trace *trace)
{
    compared c = compare_steps(trace, LS_RECORD_PARAM);
    return c.split.step == 0 && c.steps >= enough_steps.value;
}

/* A trainer of the protocol says in its dumps whether statistics are shared. */
static void judge_dumped_statistics(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int64_t number = ls_samples_next(trace, 0);
    ls_dumpfile *file = ls_trace_samples(trace, 0, ls_trace_step(&trace->rank[0], number), out);
    if (file == NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "no dump of rank 0 says what buffers are");
    } else if (ls_dumpfile_flag(file, "sync_bn", false)) {
        judge_shared_statistics(trace, out);
    } else {
        ls_verdict_set(&out->verdict, LS_SKIP, "running statistics are each rank's own");
    }
    ls_dumpfile_close(file);
}

static bool has_buffer(const ls_event *buffers, const ls_event *name)
{
    const ls_event *one;
    ls_event_each(one, buffers) {
        if (ls_event_equal(ls_event_at(one, 0), name)) {
            return true;
        }
    }
    return false;
}

/* The wrapper sends buffers by their place in named_buffers(), not by their names. */
static void judge_buffer_order(const ls_observe_trace *trace, int rank, ls_observe_finding *out)
{
    const ls_event *model;
    ls_event_each(model, ls_trace_events(&trace->rank[0], model)) {
        const ls_event *its = ls_job_model(&trace->rank[rank], ls_event_int(model, model, -1));
        const ls_event *mine = ls_event_list(model, buffers), *theirs = NULL;
        theirs = its == NULL ? NULL : ls_event_list(its, buffers);
        int count = ls_event_count(mine);
        if (!ls_job_model_is_ddp(model) || !ls_event_bool(model, broadcast_buffers, true) ||
            ls_event_int(model, world, trace->world) != trace->world || theirs == NULL ||
            ls_event_count(theirs) != count) {
            continue;
        }
        for (int i = 0; i < count; i++) {
            const ls_event *a = ls_event_at(ls_event_at(mine, i), 0);
            const ls_event *b = ls_event_at(ls_event_at(theirs, i), 0);
            if (!ls_event_equal(a, b) && has_buffer(theirs, a) && has_buffer(mine, b)) {
                ls_finding_set(out, LS_FAIL, ls_event_text(model, at, ""),
                               "buffers are registered in the order of a set, say, which each "
                               "process has its own: DistributedDataParallel sends them by their "
                               "place, and names get what another one holds",
                               "register them in one order: sorted(names), or a list",
                               "rank %d's buffers have another order: number %d is %.60s on rank "
                               "0, %.60s on rank %d",
                               rank, i, ls_event_to_text(a, "?"), ls_event_to_text(b, "?"), rank);
                return;
            }
        }
    }
}

void ls_rules_replicas_buffers(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    buffers b = count_buffers(&trace->rank[0]);
    if (!trace->attached) {
        judge_dumped_statistics(trace, out);
        return;
    }
    if (b.count > 0 && !b.wrapped && b.others > 0 && b.local == 0 && is_kept_equal(trace)) {
        guess_moved_buffers(trace, false, out);
    }
    if (b.count == 0 || !b.wrapped) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       b.count == 0 ? "no buffers"
                                    : "no model in "
                                      "DistributedDataParallel");
        return;
    }
    for (int k = 1; k < trace->world && ls_verdict_good(out->verdict.code); k++) {
        judge_buffer_order(trace, k, out);
    }
    judge_first_buffers(trace, &compared, out);
    if (b.shared > 0 && b.local == 0 && b.others == 0) {
        judge_shared_statistics(trace, out);
    } else if (!b.sent && b.others > 0 && b.local == 0) {
        judge_own_buffers(trace, out);
    } else if (b.others > 0 && b.local == 0) {
        guess_moved_buffers(trace, true, out);
    }
    if (compared + out->verdict.compared == 0) {
        ls_verdict_set(&out->verdict, b.sent ? LS_UNSUPPORTED : LS_SKIP, "%s",
                       b.sent ? "no model has digests of its buffers on two ranks"
                              : "broadcast_buffers is off: buffers stay a rank's own");
    } else if (compared > 0) {
        ls_verdict_pass(&out->verdict, compared,
                        "%d buffers equal at the start; a rank's own "
                        "statistics may differ after a step",
                        compared);
    }
}
