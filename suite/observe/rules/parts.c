/* What is divided among ranks. Whether the data are split alike on all ranks and divided once:
 * among the ranks, and among the workers of a loader that read a stream. Whether ranks keep equal
 * what they hold in common of a model in parts. */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/pass.h"
#include "suite/observe/trace/job.h"
#include "rules.h"

static const ls_tol few = LS_TOL(8, "samples: fewer are too few to compare two lists of them");
static const ls_tol common_share =
    LS_TOL(0.9, "of the indices: what two ranks have filtered by themselves may differ a little");
static const ls_tol dropped =
    LS_TOL(0.05, "of the repeats: the last batches of a stream may be dropped");

/* ---- parts of a data set --------------------------------------------------------------------- */

/* What rank k does not train on, though it evaluates on it, that rank 0 trains on; of one split
 * into two parts on each. */
static int held_back(const ls_observe_trace *trace, int k, const ls_event *a, const ls_event *b)
{
    const ls_event *data;
    int own, of, common = 0;
    ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
        bool held = !ls_pass_is_trained(data) && ls_pass_parts_common(b, data, &own, &of) &&
                    own == 0 && ls_event_same(b, data, cut_at);
        if (held && ls_pass_parts_common(a, data, &common, &of) && common >= few.value) {
            return common;
        }
    }
    return 0;
}

static void judge_parts(const ls_observe_trace *trace, int number, int k, const ls_event *a,
                        const ls_event *b, ls_observe_finding *out, ls_observe_finding *guessed)
{
    int common, of;
    int held = held_back(trace, k, a, b);
    if (!ls_pass_is_divided(a, trace->world) || !ls_pass_is_divided(b, trace->world) ||
        !ls_pass_parts_common(a, b, &common, &of) || common >= common_share.value * of) {
        return;
    }
    LS_TEXT(back, 100, "; it trains on %d that rank %d holds back for its evaluation", held, k);
    out = held > 0 ? out : guessed;
    ls_verdict_fail(&out->verdict,
                    "pass %d: the part of the data set that rank 0 holds has %d of %d indices in "
                    "common with that of rank %d, and %s divides each of them among the ranks%s",
                    number, common, of, k, ls_event_text(a, sampler, ""), held > 0 ? back : "");
    if (common == 0) {
        ls_verdict_cause(&out->verdict,
                         "the data are divided twice: by the script, which gives each rank a part, "
                         "and by the sampler, which takes 1/%d of it",
                         trace->world);
        ls_finding_blame(out, ls_job_data_place(a, cut_at),
                         "give the sampler the whole data set, or leave the sampler away");
        return;
    }
    ls_finding_explain(
        out, ls_job_data_place(a, cut_at),
        "the data are split differently on each rank: what one rank holds back, another one trains "
        "on",
        "split alike everywhere: random_split(..., generator=torch.Generator().manual_seed(0))");
}

/* How many of the indices that a sampler gave first come again in what it, or that of another rank,
 * gave first. */
static int count_again(const ls_event *given, const ls_event *others)
{
    int again = 0;
    for (int i = 0; i < ls_event_count(given); i++) {
        bool found = false;
        for (int j = 0; j < (given == others ? i : ls_event_count(others)) && !found; j++) {
            found = ls_event_number_at(given, i) == ls_event_number_at(others, j);
        }
        again += found;
    }
    return again;
}

/* Of a sampler below one that gives each rank a part of its indices. */
static bool takes_a_part(const ls_observe_trace *trace, const ls_event *data)
{
    double batch = ls_event_number(data, batch, 1), count = ls_event_number(data, count, NAN);
    double given = ls_event_number(data, inner_count, NAN);
    return ls_event_bool(data, whole, false) && given >= few.value && trace->world > 1 &&
           fabs(given - trace->world * count) < trace->world * batch;
}

/* A sampler that gives each rank other indices, below one that takes a part of what is the same on
 * all ranks: what it leaves out on a rank comes to no other one. Ranks may draw at random, with
 * repeats: then as much is left out, but no sample for certain. */
static void judge_nested(const ls_observe_trace *trace, int number, int k, const ls_event *mine,
                         const ls_event *theirs, ls_observe_finding *out)
{
    const ls_event *own = ls_event_list(mine, inner_kept);
    const ls_event *others = ls_event_list(theirs, inner_kept);
    if (!takes_a_part(trace, mine) || !takes_a_part(trace, theirs) || ls_event_equal(own, others)) {
        return;
    }
    int of = ls_event_count(own), common = count_again(own, others);
    if (common > common_share.value * of) {
        return;
    }
    bool apart = common <= dropped.value * of && count_again(own, own) <= dropped.value * of;
    ls_observe_finding one = {0};
    ls_finding_set(
        &one, LS_FAIL, ls_job_data_place(mine, sampler_at),
        "the data are divided twice: by the sampler below, and by the loader that was "
        "prepared again",
        "let the sampler give all ranks the same indices where a library divides them, or "
        "leave that away",
        "pass %d: %s gives ranks 0 and %d %g and %g indices, others on each, and %s "
        "takes %g of them on each",
        number, ls_event_text(mine, inner, "sampler"), k, ls_event_number(mine, inner_count, 0),
        ls_event_number(theirs, inner_count, 0), ls_event_text(mine, sampler, "sampler"),
        ls_event_number(mine, count, 0));
    (apart ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* ---- workers of a stream --------------------------------------------------------------------- */

/* Each worker of a loader has a copy of the stream: every sample comes as often as there are
 * workers. */
static void judge_workers(int rank, const ls_event *data, int *streams, ls_observe_finding *out)
{
    int workers = ls_event_int(data, workers, 0);
    if (ls_event_bool(data, indices, true) || workers < 2 || !ls_event_bool(data, whole, false)) {
        return;
    }
    ls_contents contents = {0};
    ls_pass_contents_add(&contents, data);
    int distinct = contents.count, more = contents.repeated;
    ls_pass_contents_free(&contents);
    if (distinct < few.value) {
        return;
    }
    ++*streams;
    double wanted = (workers - 1.0) * distinct;
    if (fabs(more - wanted) > dropped.value * wanted) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_job_data_place(data, built),
        "every worker reads the whole stream: an IterableDataset is not split among the workers",
        "in __iter__, take every n-th sample: torch.utils.data.get_worker_info() says which worker "
        "of how many it is",
        "rank %d: each sample of the stream comes %d times in a pass, and the loader has %d "
        "workers",
        rank, workers, workers);
}

void ls_rules_data_once(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int passes = 0, streams = 0;
    ls_observe_finding guessed = {0};
    ls_misuse_judge(trace, "data.once", &guessed);
    for (int k = 0; k < trace->world; k++) {
        const ls_event *a, *b, *data;
        for (int i = 0; (a = ls_pass_trained(&trace->rank[0], i)) != NULL && k > 0; i++) {
            b = ls_pass_trained(&trace->rank[k], i);
            if (b != NULL) {
                judge_parts(trace, i, k, a, b, out, &guessed);
                judge_nested(trace, i, k, a, b, out);
                passes++;
            }
        }
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            judge_workers(k, data, &streams, out);
        }
    }
    ls_finding_guess(out, &guessed);
    if (passes + streams == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       trace->world < 2 ? "one rank, and no stream that several workers read"
                                        : "no pass over a loader was seen on every rank");
    }
    ls_verdict_pass(&out->verdict, passes + streams,
                    "nothing is divided twice in %d passes, or read by %s", passes,
                    streams > 0 ? "each worker" : "each of several workers");
}

/* ---- models in parts ------------------------------------------------------------------------- */

static const ls_tol most_elements =
    LS_TOL(64, "elements of what ranks tell each other within steps (losses, counts, flags): more "
               "may be what is trained, or what experts exchange");

/* Whether the data are divided among all ranks and the script moves nothing large between them
 * within steps: then all ranks that hold the same part of the model are replicas. */
static bool divides_data_alone(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *pass = ls_pass_trained(&trace->rank[k], 0);
        if (pass == NULL || !ls_pass_is_divided(pass, trace->world)) {
            return false;
        }
        ls_trace_each_call_of(walk, &trace->rank[k]) {
            bool last = walk.step_index + 1 >= trace->rank[k].step_count; /* behind the training */
            if (walk.call->kind == LS_CALL_COLLECTIVE && !last &&
                ls_event_int(walk.call->json, elements, 0) > most_elements.value) {
                return false;
            }
        }
    }
    return true;
}

/* What the rank holds of that part before that step, or NULL. */
static const ls_event *find_part(const ls_observe_rank *rank, const ls_event *part, int64_t step)
{
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, parts)) {
        if (ls_event_same(one, part, part) && ls_event_integer(one, step, 0) == step &&
            ls_event_int(one, optimizer, -1) == ls_event_int(part, optimizer, -1) &&
            ls_event_int(one, count, 0) == ls_event_int(part, count, 0)) {
            return one;
        }
    }
    return NULL;
}

static const ls_tol same_scale =
    LS_TOL(1e-3, "of the factor of one gradient, whose norm ranks sum in f32 or half types");

/* What the script multiplies one gradient by, of which each rank holds a part, is one number. */
static bool judge_scales(const ls_observe_trace *trace, int rank, const ls_event *part,
                         ls_observe_finding *out)
{
    const ls_event *other;
    double factor = ls_event_number(part, factor, NAN);
    int64_t step = ls_event_integer(part, step, 0);
    ls_event_each(other, ls_trace_events(&trace->rank[rank], parts)) {
        double its = ls_event_number(other, factor, NAN);
        if (ls_event_integer(other, step, 0) != step ||
            ls_event_int(other, optimizer, -1) != ls_event_int(part, optimizer, -1) ||
            !(fabs(factor - its) > same_scale.value * fmax(factor, its))) {
            continue;
        }
        const ls_observe_step *at = ls_trace_step(&trace->rank[0], step);
        const char *clip = at == NULL ? "" : ls_trace_place(at, LS_CALL_CLIP);
        const char *place = at == NULL ? "" : ls_trace_place(at, LS_CALL_OPTIMIZER_STEP);
        ls_finding_set(out, LS_FAIL, clip[0] != '\0' ? clip : place,
                       "each rank clips by the norm of what it holds: parts of one gradient are "
                       "scaled differently",
                       "sum the squares of the parts' norms over the ranks (FSDP: "
                       "model.clip_grad_norm_()), so that all have one factor",
                       "step %lld: the parts of one model's gradients are multiplied by %.6g on "
                       "rank 0, by %.6g on rank %d",
                       (long long)step, factor, its, rank);
        return true;
    }
    return false;
}

/* Parts that two ranks begin with in common, to the bit, and then hold with other values. */
bool ls_parts_judge_models(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *part, *first, *other, *other_first;
    ls_event_each(part, ls_trace_events(&trace->rank[0], parts)) {
        for (int k = 1; k < trace->world; k++) {
            if (judge_scales(trace, k, part, out)) {
                return true;
            }
        }
    }
    ls_event_each(part, ls_trace_events(&trace->rank[0], parts)) {
        int64_t step = ls_event_integer(part, step, 0);
        first = find_part(&trace->rank[0], part, 1);
        for (int k = 1; k < trace->world && step > 1 && first != NULL; k++) {
            other_first = find_part(&trace->rank[k], part, 1);
            other = find_part(&trace->rank[k], part, step);
            if (other_first == NULL || !ls_event_same(first, other_first, bits) || other == NULL ||
                ls_event_same(part, other, bits) || !divides_data_alone(trace)) {
                continue;
            }
            bool whole = strcmp(ls_event_text(part, part, ""), "whole") == 0;
            const ls_event *optimizer =
                ls_job_optimizer(&trace->rank[0], ls_event_int(part, optimizer, -1));
            ls_finding_set(
                out, LS_FAIL, ls_event_text(optimizer, at, ""),
                whole ? "parameters that came to the model behind fully_shard, or that it was told "
                        "to ignore: nothing reduces their gradients"
                      : "the mesh that the model is sharded over leaves ranks out: nothing reduces "
                        "gradients between those that hold the same part",
                whole ? "add them before fully_shard(), or reduce their gradients before the step"
                      : "shard over a mesh of all ranks that the data are divided among: "
                        "(\"replicate\", \"shard\")",
                "before step %lld ranks 0 and %d hold other values in %d parameters (%.60s) that "
                "they began with in common, and the data are divided among all %d ranks",
                (long long)step, k, ls_event_int(part, count, 0), ls_event_text(part, part, ""),
                trace->world);
            return true;
        }
    }
    return false;
}

/* A sample that all ranks have: whether it is the same on all; -1: not all have it. */
static int is_same(const ls_samples *samples, const char *group, const char *name)
{
    const ls_dumpfile_entry *first = ls_samples_find(samples->file[0], group, name, NULL);
    bool same = true;
    for (int k = 1; k < samples->world; k++) {
        const ls_dumpfile_entry *other = ls_samples_find(samples->file[k], group, name, NULL);
        if (first == NULL || other == NULL) {
            return -1;
        }
        same = same && ls_dumpfile_equal(first, other);
    }
    return first == NULL ? -1 : same;
}

/* What the script multiplies the gradient by that autograd gave; NaN: no one factor. */
static double multiple_of(const ls_samples *samples, int rank, const char *name)
{
    ls_values own = ls_samples_read(samples->file[rank], "local", name, NULL);
    ls_values used = ls_samples_read(samples->file[rank], "used", name, NULL);
    double product = 0, square = 0;
    for (int64_t i = 0; i < own.count && i < used.count; i++) {
        product += own.v[i] * used.v[i];
        square += own.v[i] * own.v[i];
    }
    ls_samples_free(&own);
    ls_samples_free(&used);
    return square > 0 ? product / square : NAN;
}

static bool has_gradient(const ls_samples *samples, const char *name)
{
    ls_values own = ls_samples_read(samples->file[0], "local", name, NULL);
    bool some = own.v != NULL && !ls_samples_zero(&own) && !ls_samples_overflow(&own);
    ls_samples_free(&own);
    return some;
}

static void fail_replicated(const ls_samples *samples, ls_job_names *names, const char *first,
                            bool made, ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[0], *last = samples->step[samples->world - 1];
    int clip = ls_trace_find(step, LS_CALL_CLIP, 0), other = ls_trace_find(last, LS_CALL_CLIP, 0);
    double a = clip < 0 ? NAN : ls_event_number(step->call[clip].json, norm, NAN);
    double b = other < 0 ? NAN : ls_event_number(last->call[other].json, norm, NAN);
    const char *advice =
        "sum the squares of the norm over the ranks, those of replicated parameters "
        "once, so that all ranks have one factor";
    ls_verdict_fail(&out->verdict,
                    "step %lld: the ranks hold equal values and %s equal gradients of %d "
                    "parameters, and step by different ones: %s",
                    (long long)samples->number, made ? "make" : "share", names->count,
                    ls_job_names_text(names));
    if (a == a && b == b && a != b) {
        ls_verdict_cause(&out->verdict,
                         "each rank clips by the norm of what it holds, %.6g and %.6g: replicated "
                         "parameters are scaled differently, and drift apart",
                         a, b);
        ls_finding_blame(out, step->call[clip].at, "%s", advice);
        return;
    }
    if (made) {
        ls_verdict_cause(&out->verdict,
                         "between backward and step each rank changes them by itself: times %.6g "
                         "on rank 0, %.6g on rank %d: by a norm of what it holds, or numbers it "
                         "drew",
                         multiple_of(samples, 0, first),
                         multiple_of(samples, samples->world - 1, first), samples->world - 1);
    } else {
        ls_verdict_cause(&out->verdict, "behind the reduction each rank multiplies them by a "
                                        "number of its own: by a norm of what it holds");
    }
    ls_finding_blame(out, ls_trace_place(step, LS_CALL_OPTIMIZER_STEP), "%s", advice);
}

/* Norms of a model that the script divides, as those beside or within tensor parallel layers, are
 * replicated: ranks begin with them in common, and reduce gradients of others, not theirs; or
 * gradients of others are equal as they are made, beside matrices that ranks hold parts of. */
static void guess_norms_of(const ls_samples *samples, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    ls_job_names names = {0};
    int reduced = 0, made = 0, divided = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        const char *name = rank->tensor[i].name;
        int held = is_same(samples, "param", name), own = is_same(samples, "local", name);
        bool begins = held == 1 && has_gradient(samples, name);
        int used = is_same(samples, "used", name);
        divided += held == 0;
        reduced += begins && own == 0 && used == 1;
        made += begins && own == 1 && used == 1;
        if (begins && own == 0 && used == 0 && rank->tensor[i].norm) {
            ls_job_add_name(&names, name);
        }
    }
    made = divided > 0 ? made : 0;
    if (names.count == 0 || reduced + made == 0) {
        return;
    }
    ls_observe_finding one = {0};
    ls_finding_set(
        &one, LS_FAIL, ls_trace_place(samples->step[0], LS_CALL_OPTIMIZER_STEP),
        "each rank's gradient of a replicated norm is that of its part of the tokens, heads or "
        "channels: the norms drift apart",
        "all_reduce the gradients of norms, as of the other replicated parameters",
        "step %lld: the ranks begin with equal norms and step them by gradients of their "
        "own (%s), while those of %d other parameters are %s",
        (long long)samples->number, ls_job_names_text(&names), reduced > 0 ? reduced : made,
        reduced > 0 ? "reduced" : "equal");
    ls_finding_guess(out, &one);
}

void ls_parts_guess_norms(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_samples_each(samples, trace, 0, out->hint.verdict.code == LS_PASS, out) {
        if (samples.count == trace->world) {
            guess_norms_of(&samples, out);
        }
    }
}

/* A model that the script divides by itself: what is equal on all ranks before a step, and gets
 * equal gradients there, of each rank's own or by a reduction, is replicated, and stays equal. */
bool ls_parts_judge_replicated(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_samples_each(samples, trace, 0, out->verdict.code != LS_FAIL, out) {
        ls_job_names names = {0};
        const char *first = NULL;
        bool made = false;
        for (int i = 0; i < trace->rank[0].tensor_count && samples.count == trace->world; i++) {
            const char *name = trace->rank[0].tensor[i].name;
            bool own = is_same(&samples, "local", name) == 1;
            if (is_same(&samples, "param", name) == 1 &&
                (own || ls_by_hand_is_scaled(&samples, name)) &&
                is_same(&samples, "used", name) == 0 && is_same(&samples, "next", name) == 0 &&
                has_gradient(&samples, name)) {
                first = first == NULL || (own && !made) ? name : first;
                made = made || own;
                ls_job_add_name(&names, name);
            }
        }
        if (names.count > 0) {
            fail_replicated(&samples, &names, first, made, out);
        }
    }
    return out->verdict.code == LS_FAIL;
}

/* ---- the norm of a model in parts ------------------------------------------------------------ */

static const ls_tol least_common =
    LS_TOL(0.01, "of the squares: less held in common changes no clipping that anyone sees");
static const ls_tol written =
    LS_TOL(1e-5, "of a limit: the roundings of a norm and of a factor in f32");
static const ls_tol beside_norm = LS_TOL(1e-6, "that clipping adds to the norm");

/* A limit as scripts write one: two digits. */
static bool is_written(double limit, double norm)
{
    double unit = pow(10, floor(log10(limit)) - 1);
    return fabs(limit - unit * round(limit / unit)) <=
           written.value * limit + beside_norm.value * limit / norm;
}

/* The same sum on another rank, of gradients that were multiplied by the same number; or NULL. */
static const ls_event *find_sum(const ls_observe_rank *rank, const ls_event *sum)
{
    const ls_event *one;
    double factor = ls_event_number(sum, factor, NAN);
    ls_event_each(one, ls_trace_events(rank, squares)) {
        if (ls_event_integer(one, step, 0) == ls_event_integer(sum, step, -1) &&
            strcmp(ls_event_text(one, at, ""), ls_event_text(sum, at, "")) == 0 &&
            fabs(ls_event_number(one, factor, NAN) - factor) <= same_scale.value * factor) {
            return one;
        }
    }
    return NULL;
}

/* Of the squares that the ranks up to k have summed, those of gradients that no rank before holds
 * to the bit. */
static double squares_first_held(const ls_observe_trace *trace, const ls_event *sum, int k)
{
    const ls_event *own = find_sum(&trace->rank[k], sum);
    const ls_event *hash, *squares = ls_event_list(own, grad_squares);
    double held = 0;
    int i = 0;
    ls_event_each(hash, ls_event_list(own, grad_hashes)) {
        bool again = false;
        for (int j = 0; j < k && !again; j++) {
            again = ls_event_holds(ls_event_list(find_sum(&trace->rank[j], sum), grad_hashes),
                                   ls_event_to_text(hash, ""));
        }
        held += again ? 0 : ls_event_number_at(squares, i);
        i++;
    }
    return held;
}

static double sum_of(const ls_event *squares)
{
    double sum = 0;
    for (int i = 0; i < ls_event_count(squares); i++) {
        sum += ls_event_number_at(squares, i);
    }
    return sum;
}

/* Clips by a norm that counts what ranks hold in common once for each of them. */
bool ls_parts_judge_norm(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_event *sum;
    ls_event_each(sum, ls_trace_events(&trace->rank[0], squares)) {
        double all = 0, once = 0, factor = ls_event_number(sum, factor, NAN);
        bool found = true;
        for (int k = 0; k < trace->world && found; k++) {
            const ls_event *own = find_sum(&trace->rank[k], sum);
            found = own != NULL;
            all += found ? sum_of(ls_event_list(own, grad_squares)) : 0;
            once += found ? squares_first_held(trace, sum, k) : 0;
        }
        double norm = sqrt(all), held = sqrt(once);
        if (!found || !(factor < 1 - same_scale.value) || all - once < least_common.value * all ||
            !is_written(factor * norm, norm) || is_written(factor * held, held)) {
            continue; /* or the script may have divided the sum */
        }
        ls_observe_finding one = {0};
        ls_finding_set(&one, LS_FAIL, ls_event_text(sum, at, ""),
                       "the squares of what each rank holds are summed over all ranks: what "
                       "several hold in common counts once for each of them",
                       "count it once: sum over the ranks that hold different parts, or divide its "
                       "squares by the ranks that hold it",
                       "step %lld: gradients are clipped to %.4g by a norm of %.6g; the model's is "
                       "%.6g, so that %.4g is left of it",
                       (long long)ls_event_integer(sum, step, 0), factor * norm, norm, held,
                       factor * held);
        ls_calls_keep_worst(out, &one);
    }
    return out->verdict.code == LS_FAIL;
}
