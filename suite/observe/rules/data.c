/* Whether the ranks divide the data as data-parallel training assumes: no sample on two ranks,
 * every one once an epoch, another order each epoch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/pass.h"
#include "suite/observe/trace/job.h"
#include "harness/hosts/hosts.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "rules.h"

/* A pass over a loader in which the model was trained, on every rank. */
typedef struct pass {
    const ls_event *event[LS_HOSTS_RANKS_MAX]; /* [ranks] */
    int ranks;
    bool whole, indexed;
    int64_t length, batch;
} pass;

static const ls_tol few =
    LS_TOL(8, "indices: fewer may be in the same order by chance, 8 are once in 8! = 40,320 times");
static const ls_tol steps_of_a_batch =
    LS_TOL(8, "two networks make two steps of a batch, some schemes a few more");
static const ls_tol samples =
    LS_TOL(32, "samples: of fewer a share of a tenth is three, which a data set may hold twice");
static const ls_tol duplicates =
    LS_TOL(0.1, "of the samples: public data sets hold up to some hundredths of them twice");
static const ls_tol repeated = LS_TOL(
    0.01, "of a rank's samples: one that has more of them again holds samples several times, "
          "and may share them with another rank");
static const ls_tol sorted_samples = LS_TOL(
    16, "samples in the order of their classes: fewer, or fewer than four of each class, are "
        "so by chance");
static const ls_tol sorted_classes =
    LS_TOL(3, "classes: two may lie one behind the other in any list of two files");
static const ls_tol small_batches =
    LS_TOL(4, "batches of a pass: larger ones hold several classes each");
static const ls_tol forwards =
    LS_TOL(2, "forwards: a single batch may be a look at the data that all ranks take");

/* Whether ranks that hold parts of a model divide the data among all of them. */
static bool divides(const ls_observe_trace *trace)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(&trace->rank[0], data)) {
        if (ls_pass_is_trained(data) && ls_event_int(data, replicas, 0) == trace->world) {
            return ls_job_sharded(trace) != NULL;
        }
    }
    return false;
}

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    bool replicated = ls_trace_is_ddp(trace) || ls_by_hand_replicates(trace) || divides(trace);
    if (!replicated || ls_calls_in_part(trace)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       trace->world < 2 ? "one rank" : "no model is replicated over all ranks");
        return false;
    }
    if (!trace->attached && ls_event_count(ls_trace_events(&trace->rank[0], data)) == 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "the trainer's own events name no indices");
        return false;
    }
    return true;
}

/* A pass that was left open while others trained drew far fewer batches than there were steps: a
 * look at a validation's first batch, say. */
static bool is_trained(const ls_event *data)
{
    double batches =
        ceil(ls_event_number(data, count, 0) / fmax(ls_event_number(data, batch, 1), 1));
    double given = ls_event_bool(data, indices, true) ? 0 : ls_event_number(data, given, 0);
    double made = ls_pass_last_step(data) - ls_pass_first_step(data);
    return ls_pass_is_trained(data) &&
           (isnan(made) || steps_of_a_batch.value * fmax(given, batches) >= made);
}

/* A pass in which each rank of a replicated job trains a model that is in no wrapper, by itself: a
 * part that all train in the same way, before it is wrapped. */
static bool is_alone(const ls_observe_rank *rank, const ls_event *data)
{
    int count, forwards = 0;
    const ls_observe_step *step = ls_pass_steps(rank, data, &count);
    for (int i = 0; i < count; i++) {
        ls_trace_each_call(call, &step[i]) {
            bool training = ls_calls_is_training(call);
            if ((training && ls_job_model_is_ddp(ls_job_model(rank, call->model))) ||
                (call->kind == LS_CALL_COLLECTIVE && ls_calls_combine(call))) {
                return false;
            }
            forwards += training;
        }
    }
    return forwards > 0;
}

/* `apart`: passes in which ranks train alone are no part of the job's data. */
static const ls_event *trained_pass(const ls_observe_rank *rank, int index, bool apart)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (is_trained(data) && !(apart && is_alone(rank, data)) && index-- == 0) {
            return data;
        }
    }
    return NULL;
}

/* The pass of that number on all ranks; false: a rank has none of it. */
static bool read_pass(const ls_observe_trace *trace, int index, pass *out)
{
    *out = (pass){.ranks = trace->world, .whole = true, .indexed = true};
    for (int k = 0; k < trace->world; k++) {
        bool ddp = ls_trace_is_ddp(trace);
        const ls_event *event = trained_pass(&trace->rank[k], index, ddp);
        if (event == NULL) {
            return false;
        }
        out->event[k] = event;
        out->whole = out->whole && ls_event_bool(event, whole, false);
        out->indexed = out->indexed && ls_event_bool(event, indices, true) &&
                       ls_event_is_list(ls_event_list(event, kept));
    }
    out->length = ls_event_integer(out->event[0], length, -1);
    out->batch = ls_event_integer(out->event[0], batch, 1);
    out->batch = out->batch < 1 ? 1 : out->batch;
    return true;
}

static const char *sampler_of(const pass *p, int rank)
{
    return ls_event_text(p->event[rank], sampler, "");
}

/* All ranks have this class of sampler. */
static bool all_have(const pass *p, const char *class)
{
    for (int k = 0; k < p->ranks; k++) {
        if (strcmp(sampler_of(p, k), class) != 0) {
            return false;
        }
    }
    return true;
}

static bool all_equal(const pass *p, ls_event_member member)
{
    for (int k = 1; k < p->ranks; k++) {
        if (ls_event_to_number(ls_event_get(p->event[k], member), NAN) !=
            ls_event_to_number(ls_event_get(p->event[0], member), NAN)) {
            return false;
        }
    }
    return true;
}

/* ---- indices of all ranks -------------------------------------------------------------------- */

typedef struct drawn {
    int64_t index;
    int rank;
} drawn;

typedef struct overlap {
    int64_t entries, distinct;
    int64_t across; /* times that an index is on a further rank */
    int64_t own;    /* times that a rank has an index again */
    int a, b;       /* two ranks that share one, and which */
    int64_t index;
} overlap;

static int by_index(const void *a, const void *b)
{
    const drawn *x = a, *y = b;
    if (x->index != y->index) {
        return x->index < y->index ? -1 : 1;
    }
    return x->rank - y->rank;
}

static overlap overlap_of(const pass *p)
{
    overlap o = {.a = -1};
    int capacity = 0, count = 0;
    drawn *list = NULL;
    for (int k = 0; k < p->ranks; k++) {
        const ls_event *entry;
        ls_event_each(entry, ls_event_list(p->event[k], kept)) {
            int64_t index;
            if (ls_event_is_number(entry) &&
                ls_json_whole(entry->number, 0, INT64_C(1) << 53, &index)) {
                list = ls_list_grow(list, count, &capacity, sizeof *list);
                list[count++] = (drawn){index, k};
            }
        }
    }
    if (count > 0) {
        qsort(list, (size_t)count, sizeof *list, by_index);
    }
    o.entries = count;
    for (int i = 0; i < count; i++) {
        bool again = i > 0 && list[i].index == list[i - 1].index;
        o.distinct += !again;
        o.own += again && list[i].rank == list[i - 1].rank;
        if (again && list[i].rank != list[i - 1].rank) {
            o.across++;
            if (o.a < 0) {
                o.a = list[i - 1].rank;
                o.b = list[i].rank;
                o.index = list[i].index;
            }
        }
    }
    free(list);
    return o;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Inputs of the training forwards of two ranks, compared in order; per model, too: the noise of a
 * generator may be equal where the data are not. */
enum { MODELS = 16 };

typedef struct inputs {
    int compared, equal; /* forwards */
    bool vary;           /* over the forwards of a rank */
    int of[MODELS], equal_of[MODELS];
    bool vary_of[MODELS];
    const ls_call *forward[MODELS]; /* the first of each */
    const char *before[MODELS];
} inputs;

static const ls_call *input_at(const ls_observe_step *step, int index, const char **input)
{
    for (int c = 0; step != NULL && c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        *input = ls_calls_text(call, input);
        if (ls_calls_is_training(call) && (*input)[0] != '\0' && index-- == 0) {
            return call;
        }
    }
    return NULL;
}

static void compare_step(const ls_observe_step *a, const ls_observe_step *b, inputs *in)
{
    const char *x, *y;
    for (int i = 0;; i++) {
        const ls_call *one = input_at(a, i, &x), *other = input_at(b, i, &y);
        if (one == NULL || other == NULL) {
            return;
        }
        int m = one->model >= 0 && one->model < MODELS ? one->model : MODELS - 1;
        bool equal = strcmp(x, y) == 0;
        in->compared++;
        in->of[m]++;
        in->equal += equal;
        in->equal_of[m] += equal;
        in->vary_of[m] = in->vary_of[m] || (in->before[m] != NULL && strcmp(in->before[m], x) != 0);
        in->vary = in->vary || in->vary_of[m];
        in->before[m] = x;
        in->forward[m] = in->forward[m] == NULL ? one : in->forward[m];
    }
}

static inputs compare_inputs(const ls_observe_trace *trace, int a, int b)
{
    inputs in = {0};
    ls_trace_each_step(step, &trace->rank[a]) {
        compare_step(step, ls_trace_step(&trace->rank[b], step->step->step), &in);
    }
    return in;
}

/* Replicas that the script reduces by itself may share a batch on purpose, each computing a part of
 * it: of the sequence, of the outputs. Ranks that compute the same gradients share the work, too,
 * and dropout makes equal work differ. */
static bool may_share(const ls_observe_trace *trace, int a, int b)
{
    return !ls_trace_is_ddp(trace) && ls_by_hand_same_work(trace, a, b) != 1 &&
           ls_event_int(ls_job_model(&trace->rank[a], 0), dropout, 0) == 0;
}

/* Without a wrapper, and of parameters that no module has: each rank may hold its classes. */
static bool may_hold_parts(const ls_observe_trace *trace)
{
    int optimizer, group;
    return !ls_trace_is_ddp(trace) &&
           ls_job_group(&trace->rank[0], "?", -1, &optimizer, &group) != NULL;
}

/* Whether the rank gathers floating numbers of all ranks between a forward and its backward. */
static bool gathers_for_loss(const ls_observe_rank *rank)
{
    ls_trace_each_step(step, rank) {
        bool made = false, gathered = false;
        ls_trace_each_call(call, step) {
            made = made || ls_calls_is_training(call);
            gathered = gathered ||
                       (made && call->kind == LS_CALL_COLLECTIVE && ls_event_has(call->json, gave));
            if (gathered && call->kind == LS_CALL_BACKWARD) {
                return true;
            }
        }
    }
    return false;
}

/* What ranks make of equal batches, and gather, may be members of an ensemble, which the loss
 * compares. */
static bool may_be_members(const ls_observe_trace *trace, int a, int b)
{
    inputs in = compare_inputs(trace, a, b);
    return in.compared > 0 && in.equal == in.compared && gathers_for_loss(&trace->rank[a]) &&
           gathers_for_loss(&trace->rank[b]);
}

static void excuse_shared(const ls_observe_trace *trace, int a, int b, ls_observe_finding *out)
{
    bool parts = may_hold_parts(trace), shares = may_share(trace, a, b);
    if (out->verdict.code == LS_FAIL && (parts || shares || may_be_members(trace, a, b))) {
        out->verdict.code = LS_WEAK;
        ls_text_add(out->verdict.evidence, sizeof out->verdict.evidence, "%s",
                    parts ? "; an optimizer has parameters that no module has: a mistake, unless "
                            "they are each rank's part of a layer"
                    : shares ? "; the script reduces gradients by itself, and those of the ranks "
                               "differ: a mistake, unless each computes a part of one batch"
                             : "; the loss is of what all ranks gathered: a mistake, unless they "
                               "are members of an ensemble for the same samples");
    }
}

/* ---- data.disjoint --------------------------------------------------------------------------- */

/* torch's own sampler promises disjoint parts: why they are not. */
static void blame_distributed(const pass *p, const overlap *o, ls_observe_finding *out)
{
    int replicas = ls_event_int(p->event[0], replicas, p->ranks);
    const char *sampler = ls_job_data_place(p->event[0], sampler_at);
    if (!all_equal(p, LS_NUMBER(replicas)) || replicas != p->ranks) {
        ls_verdict_cause(&out->verdict,
                         "DistributedSampler was given num_replicas=%d, the job has "
                         "%d ranks",
                         replicas, p->ranks);
        ls_finding_blame(out, sampler, "leave num_replicas and rank to DistributedSampler");
    } else if (ls_event_number(p->event[o->a], sampler_rank, NAN) ==
               ls_event_number(p->event[o->b], sampler_rank, NAN)) {
        ls_verdict_cause(&out->verdict, "DistributedSampler was given rank=%d on ranks %d and %d",
                         ls_event_int(p->event[o->a], sampler_rank, -1), o->a, o->b);
        ls_finding_blame(out, sampler,
                         "leave num_replicas and rank to DistributedSampler, or pass the global "
                         "rank, not the local one");
    } else if (!all_equal(p, LS_NUMBER(sampler_epoch))) {
        ls_verdict_cause(&out->verdict, "set_epoch was called with different values: %d and %d",
                         ls_event_int(p->event[o->a], sampler_epoch, -1),
                         ls_event_int(p->event[o->b], sampler_epoch, -1));
        ls_finding_blame(out, ls_event_text(p->event[0], at, ""),
                         "call sampler.set_epoch(epoch) alike on every rank");
    } else {
        ls_finding_explain(out, sampler,
                           "the samplers shuffle by different seeds: DistributedSampler's seed "
                           "must be equal on all ranks",
                           "pass the same seed to DistributedSampler everywhere");
    }
}

static void fail_overlap(int number, const pass *p, const overlap *o, ls_observe_finding *out)
{
    ls_verdict_fail(&out->verdict,
                    "pass %d: %lld of %lld indices are on a further rank, too (index %lld on ranks "
                    "%d and %d; %s)",
                    number, (long long)o->across, (long long)o->entries, (long long)o->index, o->a,
                    o->b, sampler_of(p, o->a));
}

/* A loader without a sampler of the job's: each rank goes through the whole data set, or through
 * one of its own: a part that the script cut for it, files of its own. */
static void judge_plain(const ls_observe_trace *trace, int number, const pass *p, const overlap *o,
                        ls_observe_finding *out)
{
    const ls_event *a = p->event[o->a], *b = p->event[o->b];
    inputs in = compare_inputs(trace, o->a, o->b);
    /* Augmentation makes equal samples differ, so that others show nothing. */
    ls_pass_common c = ls_pass_compare(a, b);
    bool ordered = ls_event_text(a, order, "")[0] != '\0' && ls_event_same(a, b, order);
    bool same =
        (ordered && in.equal > 0) || (c.digests >= few.value && c.vary && c.equal == c.digests);
    /* Both ranks' data sets are made of the same lists, and the samples that both drew have the
     * same classes, which differ: one data set, whose samples change at random. Lists alone are not
     * enough: an index may be ignored, and the sample be drawn at random; nor are classes alone: a
     * part of each class may be the rank's. */
    bool source = ls_event_text(a, source, "")[0] != '\0' && ls_event_same(a, b, source) &&
                  c.classes >= few.value && c.alike == c.classes && c.several;
    if (!all_equal(p, LS_NUMBER(length))) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       "data sets of different lengths: each rank has its own");
        return;
    }
    bool plain = all_have(p, "RandomSampler") || all_have(p, "SequentialSampler");
    ls_observe_finding one = {0};
    fail_overlap(number, p, o, &one);
    ls_finding_explain(&one, ls_job_data_place(p->event[0], built),
                       "no DistributedSampler: each rank goes through the whole data set",
                       "DataLoader(..., sampler=DistributedSampler(dataset), shuffle=False)");
    if (same) {
        ls_calls_keep_worst(out, &one);
    } else {
        if (plain && source && !may_share(trace, o->a, o->b)) {
            ls_finding_guess(out, &one);
        }
        ls_finding_set(
            out, LS_WEAK, ls_job_data_place(p->event[0], built), NULL,
            "if all ranks open the same data: DataLoader(..., sampler=DistributedSampler(dataset))",
            "pass %d: %lld of %lld indices are on several ranks (%s), but batches differ: it is "
            "not known whether each rank has its own data set",
            number, (long long)o->across, (long long)o->entries, sampler_of(p, o->a));
    }
}

/* Each rank's data set is a part of the same one, and no two have a sample in common. */
static bool are_parted(const pass *p)
{
    bool parted = p->ranks > 1;
    for (int a = 0; a < p->ranks; a++) {
        for (int b = a + 1; b < p->ranks && parted; b++) {
            int common, of;
            parted = ls_pass_parts_common(p->event[a], p->event[b], &common, &of) && common == 0;
        }
    }
    return parted;
}

static void judge_overlap(const ls_observe_trace *trace, int number, const pass *p,
                          int *drawn_again, ls_observe_finding *out)
{
    overlap o = overlap_of(p);
    bool distributed = all_have(p, "DistributedSampler");
    /* DistributedSampler pads to a multiple of the ranks; others may pad their last batches. */
    bool plain = all_have(p, "RandomSampler") || all_have(p, "SequentialSampler");
    if (o.across <= (distributed ? p->ranks - 1
                     : plain     ? 0
                                 : p->ranks * p->batch) ||
        are_parted(p)) {
        return;
    }
    if (distributed) {
        fail_overlap(number, p, &o, out);
        blame_distributed(p, &o, out);
    } else if (o.own > p->ranks) {
        ++*drawn_again; /* with replacement: a repeat says nothing */
    } else {
        judge_plain(trace, number, p, &o, out);
    }
}

static const char one_stream[] =
    "all ranks read the same stream: a data set without indices is not split among them";
static const char split_stream[] = "let each rank read its own part of the stream";

/* Disjoint indices, or none, of data that each rank has in another order: the same samples come on
 * two ranks. A data set that holds samples several times gives some of them on one rank, too; last
 * batches may be filled up with samples of the first ones, which are another rank's. */
static void judge_contents(int number, const pass *p, ls_observe_finding *out)
{
    ls_contents *of_rank = ls_list_make((size_t)p->ranks, sizeof *of_rank);
    for (int k = 0; k < p->ranks; k++) {
        ls_pass_contents_add(&of_rank[k], p->event[k]);
    }
    for (int a = 0; a < p->ranks && out->verdict.code == LS_PASS; a++) {
        const ls_contents *x = &of_rank[a];
        for (int b = a + 1; b < p->ranks && x->repeated <= repeated.value * x->count; b++) {
            const ls_contents *y = &of_rank[b];
            int of, common = ls_pass_contents_common(x, y, &of);
            if (of >= samples.value && y->count >= samples.value &&
                y->repeated <= repeated.value * y->count && common > duplicates.value * of &&
                common > p->ranks * p->batch) {
                ls_finding_set(out, LS_FAIL, ls_job_data_place(p->event[0], cut_at),
                               p->indexed ? "the ranks' data sets are not in the same order: files "
                                            "are listed, shuffled or split differently on each rank"
                                          : one_stream,
                               p->indexed ? "build the same data set on every rank: sort lists of "
                                            "files, and seed what shuffles or splits them"
                                          : split_stream,
                               "pass %d: %d of %d samples of rank %d are on rank %d, too%s", number,
                               common, of, a, b, p->indexed ? ", under other indices" : "");
                break;
            }
        }
    }
    for (int k = 0; k < p->ranks; k++) {
        ls_pass_contents_free(&of_rank[k]);
    }
    free(of_rank);
}

/* A stream has no order that is known: each rank may draw from all of it by itself. */
static void judge_stream(const ls_observe_trace *trace, int number, const pass *p,
                         ls_observe_finding *out)
{
    ls_observe_finding one = {0};
    inputs in = compare_inputs(trace, 0, p->ranks - 1);
    judge_contents(number, p, &one);
    if (one.verdict.code == LS_FAIL && in.compared > 0 && in.equal < in.compared) {
        one.verdict.code = LS_WEAK;
        ls_text_add(one.verdict.evidence, sizeof one.verdict.evidence,
                    "; batches differ: a mistake, unless each rank draws from all of it");
    }
    ls_calls_keep_worst(out, &one);
}

void ls_rules_data_disjoint(const ls_observe_trace *trace, ls_observe_finding *out)
{
    pass p;
    int passes = 0, drawn_again = 0, i = 0;
    if (!concerns(trace, out)) {
        return;
    }
    for (; read_pass(trace, i, &p); i++) {
        if (p.indexed) {
            ls_observe_finding one = {0};
            int before = drawn_again;
            judge_overlap(trace, i, &p, &drawn_again, &one);
            if (one.verdict.code == LS_PASS && drawn_again == before) {
                judge_contents(i, &p, &one);
            }
            excuse_shared(trace, 0, 1, &one);
            ls_calls_keep_worst(out, &one);
            passes++;
        } else {
            judge_stream(trace, i, &p, out);
        }
    }
    if (passes == 0) {
        ls_verdict_set(&out->verdict, i > 0 ? LS_SKIP : LS_UNSUPPORTED, "%s",
                       i > 0 ? "the data set has no indices"
                             : "no pass over a DataLoader was seen on every rank");
    } else if (drawn_again == passes) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       "samples are drawn with replacement: parts are not disjoint by design");
    }
    ls_verdict_pass(&out->verdict, passes, "indices of %d ranks disjoint in %d passes",
                    trace->world, passes);
}

/* ---- data.covered ---------------------------------------------------------------------------- */

static void judge_missing(int number, const pass *p, ls_observe_finding *out)
{
    overlap o = overlap_of(p);
    int64_t modulus = ls_event_integer(p->event[0], modulus, 1);
    modulus = modulus < 1 ? 1 : modulus;
    int64_t expected = (p->length + modulus - 1) / modulus, missing = expected - o.distinct;
    /* drop_last of the sampler leaves out fewer than ranks, that of the loader fewer than a batch
     * of each rank. */
    int64_t dropped = p->ranks * p->batch;
    if (missing <= dropped) {
        return;
    }
    int replicas = ls_event_int(p->event[0], replicas, p->ranks);
    ls_verdict_fail(&out->verdict,
                    "pass %d: %lld of %lld indices (those that are 0 modulo %lld) are on no rank",
                    number, (long long)missing, (long long)expected, (long long)modulus);
    if (replicas != p->ranks) {
        ls_verdict_cause(&out->verdict,
                         "DistributedSampler was given num_replicas=%d, the job has %d ranks",
                         replicas, p->ranks);
    } else if (o.across > p->ranks) {
        ls_verdict_cause(&out->verdict, "several ranks read the same part: the sampler was given a "
                                        "wrong rank or different seeds");
    } else {
        ls_verdict_cause(&out->verdict, "the sampler leaves a part of the data set out");
    }
    ls_finding_blame(out, ls_job_data_place(p->event[0], sampler_at),
                     "leave num_replicas and rank to DistributedSampler");
}

void ls_rules_data_covered(const ls_observe_trace *trace, ls_observe_finding *out)
{
    pass p;
    int whole = 0, indexed = 0, own = 0;
    ls_misuse_judge(trace, "data.covered", out);
    if (!concerns(trace, out)) {
        return;
    }
    for (int i = 0; read_pass(trace, i, &p); i++) {
        bool known = all_have(&p, "DistributedSampler") || all_have(&p, "RandomSampler") ||
                     all_have(&p, "SequentialSampler");
        indexed += p.indexed;
        own += p.indexed && !known;
        /* A RandomSampler with num_samples or replacement leaves out what it does not draw. */
        if (p.indexed && p.whole && p.length > 0 && all_have(&p, "DistributedSampler")) {
            judge_missing(i, &p, out);
        }
        whole += p.indexed && p.whole && known;
    }
    if (indexed == 0 || own == indexed) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       indexed == 0 ? "no pass with indices"
                                    : "a sampler of the script's own chooses what it draws");
    }
    ls_finding_close(out, whole, LS_WEAK, "no pass over the data reached its end",
                     "all indices were drawn in %d whole passes", whole);
}

/* ---- data.shuffled --------------------------------------------------------------------------- */

/* Whether the shorter of two passes has the order of the other's beginning; false where too few
 * indices were kept to say so. */
static bool repeats(const ls_event *a, const ls_event *b)
{
    const ls_event *x = ls_event_first(ls_event_list(a, kept));
    const ls_event *y = ls_event_first(ls_event_list(b, kept));
    int count = 0;
    for (; x != NULL && y != NULL; x = ls_event_after(x), y = ls_event_after(y), count++) {
        if (x->number != y->number) {
            return false;
        }
    }
    const char *order = ls_event_text(a, order, "");
    return count >= few.value ||
           ((double)ls_event_integer(a, count, 0) >= few.value && order[0] != '\0' &&
            strcmp(order, ls_event_text(b, order, "")) == 0);
}

static bool is_same_loader(const ls_event *a, const ls_event *b)
{
    return ls_event_int(a, loader, -1) == ls_event_int(b, loader, -1);
}

/* Whether a loop goes through two loaders at once, as by zip(). */
static bool are_side_by_side(const ls_event *a, const ls_event *b)
{
    return !is_same_loader(a, b) && ls_pass_first_step(b) < ls_pass_last_step(a);
}

/* The same loop again: a loader may be rebuilt for each epoch. */
static bool same_loop(const ls_event *a, const ls_event *b)
{
    if (are_side_by_side(a, b)) {
        return false;
    }
    return ls_event_same(a, b, at) && ls_event_same(a, b, sampler) &&
           ls_event_number(a, length, -1) == ls_event_number(b, length, -1);
}

/* A state was restored between the passes: the second may be the first, which was cut, again. */
static bool is_resumed(const ls_observe_rank *rank, const ls_event *a, const ls_event *b)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        double step = (double)ls_saved_step(restore);
        if (step + 1 >= ls_pass_last_step(a) && step <= ls_pass_first_step(b)) {
            return !ls_event_bool(a, whole, false);
        }
    }
    return false;
}

/* The last pass of its loader before this one, or of one in its place: of loaders that a loop goes
 * through side by side, and rebuilds, the first follows the first. Others may lie between. */
static const ls_event *before_in_loop(const ls_observe_rank *rank, const ls_event *pass)
{
    enum { PLACES = 8 };
    const ls_event *data, *own = NULL, *last = NULL, *other[PLACES] = {NULL};
    int place = 0;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (!is_trained(data)) {
            continue;
        }
        place = last != NULL && are_side_by_side(last, data) ? (place + 1) % PLACES : 0;
        last = data;
        if (data == pass) {
            break;
        }
        if (same_loop(data, pass)) {
            own = is_same_loader(data, pass) ? data : own;
            other[place] = data;
        }
    }
    const ls_event *found = own != NULL ? own : other[place];
    return found != NULL && is_resumed(rank, found, pass) ? NULL : found;
}

/* Left after its first batch, as by next(iter(loader)). */
static bool is_first_batch(const ls_event *pass)
{
    return !ls_event_bool(pass, whole, true) && ls_event_int(pass, given, -1) == 1;
}

static void fail_order(int rank, int index, const ls_event *a, const ls_event *b,
                       ls_observe_finding *out)
{
    int first = ls_event_int(a, sampler_epoch, -1), second = ls_event_int(b, sampler_epoch, -1);
    ls_verdict_fail(&out->verdict,
                    "rank %d: pass %d draws its indices in the order of the pass before, although "
                    "%s shuffles",
                    rank, index, ls_event_text(a, sampler, "the sampler"));
    if (is_first_batch(a) && is_first_batch(b)) {
        ls_verdict_cause(&out->verdict,
                         "both passes were left after their first batch: iter(loader) "
                         "begins a pass again at each call");
        ls_finding_blame(out, ls_event_text(b, at, ""),
                         "call iter(loader) once for each epoch, or loop over the loader");
    } else if (strcmp(ls_event_text(a, sampler, ""), "DistributedSampler") == 0) {
        ls_verdict_cause(&out->verdict,
                         "set_epoch was not called between the passes: the sampler's "
                         "epoch is %d in both",
                         first);
        ls_finding_blame(out, ls_event_text(b, at, ""),
                         "call sampler.set_epoch(epoch) before each pass");
    } else {
        ls_verdict_cause(&out->verdict,
                         "the sampler's generator is seeded alike before each pass%s",
                         first >= 0 && first == second ? ", its epoch stays the same" : "");
        ls_finding_blame(out, ls_event_text(b, at, ""),
                         "seed the generator once, or by the number of the epoch");
    }
}

/* Data in a fixed order, pass after pass: meant for sequences and curricula, seldom else. */
static void judge_fixed(int rank, int fixed, int passes, const ls_event *data,
                        ls_observe_finding *out)
{
    bool distributed = strcmp(ls_event_text(data, sampler, ""), "DistributedSampler") == 0;
    ls_finding_set(
        out, LS_WEAK, "",
        "the training data are not shuffled: every epoch has the same batches; meant only where "
        "their order matters, or where the data set shuffles by itself",
        NULL, "rank %d: %d of %d passes draw their indices in the order of the pass before (%s)",
        rank, fixed, passes, ls_event_text(data, sampler, "the sampler"));
    ls_finding_blame(out, ls_job_data_place(data, sampler_at), "if it is not meant: %s",
                     distributed ? "DistributedSampler(dataset), and set_epoch(epoch) before each "
                                   "pass"
                                 : "DataLoader(..., shuffle=True), or a sampler that shuffles");
}

/* A pass in the order of the data set, which is sorted by class: batches of one class each. Of the
 * samples that were looked at, each with its index and its class. */
static void judge_sorted(int k, int number, const ls_event *pass, ls_observe_finding *out)
{
    const ls_event *one;
    double index = -1, class = NAN;
    int seen = 0, classes = 0;
    if (ls_event_bool(pass, shuffle, true) || !ls_event_bool(pass, indices, true) ||
        !ls_event_bool(pass, classified, false)) {
        return;
    }
    ls_event_each(one, ls_event_list(pass, content)) {
        const ls_event *at = ls_event_at(one, 0), *of = ls_event_at(one, 2);
        if (!ls_event_is_number(at) || !ls_event_is_number(of) || at->number <= index ||
            of->number < class) {
            return;
        }
        classes += !(of->number == class);
        index = at->number;
        class = of->number;
        seen++;
    }
    /* One pass over a stream of classes, or batches that hold several of them, may be meant. */
    double batch = ls_event_number(pass, batch, INFINITY);
    bool small = small_batches.value * batch <= ls_event_number(pass, count, 0);
    if (seen < sorted_samples.value || classes < sorted_classes.value || seen < 4 * classes ||
        number == 0 || !small) {
        return;
    }
    ls_finding_set(out, LS_FAIL, "",
                   "nothing shuffles: each batch has samples of one class, and the model follows "
                   "the last of them",
                   NULL,
                   "rank %d: a pass that is trained on has the order of the data set, which is "
                   "sorted by class: %d samples of %d classes, one after the other",
                   k, seen, classes);
    const char *at = ls_event_text(pass, sampler_at, "");
    ls_finding_blame(out, at[0] != '\0' ? at : ls_event_text(pass, at, ""),
                     "shuffle=True of the loader, or of the DistributedSampler");
}

void ls_rules_data_shuffled(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int pairs = 0, shuffled = 0, indexed = 0;
    if (trace->world > 1 || !trace->attached) { /* one process shuffles, too */
        if (!concerns(trace, out)) {
            return;
        }
    }
    for (int k = 0; k < trace->world; k++) {
        const ls_event *now, *last = NULL;
        int again = 0, fixed = 0;
        for (int i = 0; (now = trained_pass(&trace->rank[k], i, false)) != NULL; i++) {
            indexed += ls_event_bool(now, indices, true);
            ls_observe_finding one = {0};
            judge_sorted(k, i, now, &one);
            ls_finding_guess(out, &one);
            bool shuffles = ls_event_bool(now, shuffle, false) && ls_event_bool(now, indices, true);
            const ls_event *before = before_in_loop(&trace->rank[k], now);
            shuffled += shuffles;
            if (before != NULL && shuffles) {
                pairs++;
                if (repeats(before, now)) {
                    fail_order(k, i, before, now, out);
                }
            }
            if (before != NULL && !shuffles) {
                again++;
                fixed += repeats(before, now);
                last = now;
            }
        }
        if (fixed > 0 && fixed == again && out->verdict.code != LS_FAIL) {
            judge_fixed(k, fixed, again, last, out);
        }
    }
    if (shuffled == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       indexed == 0
                           ? "no pass with indices"
                           : "the sampler was not asked to shuffle, or is the script's own");
    }
    ls_finding_close(out, pairs, LS_WEAK,
                     "one pass over the data: nothing shows that the next has another order",
                     "%d passes in another order than the one before",
                     (pairs + trace->world - 1) / trace->world);
}

/* ---- data.distinct --------------------------------------------------------------------------- */

/* Workers of all ranks that draw the same numbers augment alike: no fault, but seldom meant. */
static void advise_seeds(const ls_observe_trace *trace, ls_observe_finding *out)
{
    pass p;
    if (!read_pass(trace, 0, &p) || ls_event_int(p.event[0], workers, 0) == 0 ||
        isnan(ls_event_number(p.event[0], base_seed, NAN)) ||
        !all_equal(&p, LS_NUMBER(base_seed))) {
        return;
    }
    ls_finding_blame(out, ls_event_text(p.event[0], at, ""),
                     "the workers of all ranks have the same seed: random augmentation is alike on "
                     "all ranks; seed by rank, or pass worker_init_fn");
}

/* A model all of whose inputs are equal on two ranks, where those of another are not. */
static void advise_inputs(const inputs *in, ls_observe_finding *out)
{
    for (int m = 0; m < MODELS; m++) {
        if (in->of[m] > 1 && in->equal_of[m] == in->of[m] && in->vary_of[m]) {
            ls_finding_blame(out, in->forward[m]->at,
                             "the inputs of this model are the same on all ranks: if they are "
                             "drawn (noise), seed the ranks differently");
        }
    }
}

/* Two ranks of which every batch is the same. */
static void judge_pair(const ls_observe_trace *trace, int a, int b, int *compared,
                       ls_observe_finding *out)
{
    inputs in = compare_inputs(trace, a, b);
    *compared += in.compared;
    if (in.compared == 0 || in.equal < in.compared) {
        advise_inputs(&in, out);
        return;
    }
    if (!in.vary || in.compared < forwards.value) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "ranks %d and %d have the same input in all of %d training forwards%s", a, b,
                       in.compared, in.vary ? "" : ", and it never changes: made-up data");
        return;
    }
    ls_verdict_fail(&out->verdict,
                    "ranks %d and %d have the same inputs in all of %d training forwards", a, b,
                    in.compared);
    const ls_event *pass = trained_pass(&trace->rank[a], 0, ls_trace_is_ddp(trace));
    if (pass == NULL) {
        int m = 0; /* the first model that was compared */
        while (in.forward[m] == NULL) {
            m++;
        }
        ls_finding_explain(out, in.forward[m]->at,
                           "all ranks train on the same batches: the script draws them from the "
                           "same seed on every rank",
                           "seed by rank where batches are drawn, after the model is built");
        return;
    }
    if (!ls_event_bool(pass, indices, true)) {
        ls_verdict_cause(&out->verdict, "all ranks train on the same batches: %s", one_stream);
        ls_finding_blame(out, ls_job_data_place(pass, built), "%s", split_stream);
        return;
    }
    ls_finding_explain(
        out, ls_job_data_place(pass, sampler_at),
        "all ranks train on the same batches: no DistributedSampler, or one that was given the "
        "same rank",
        "give each rank its own part: DataLoader(..., sampler=DistributedSampler(dataset))");
}

/* The first call of a step that makes gradients, where no collective comes before it; or NULL. */
static const ls_call *backward_alone(const ls_observe_step *step)
{
    ls_trace_each_call(call, step) {
        if (call->kind == LS_CALL_BACKWARD) {
            return call;
        }
        if (call->kind == LS_CALL_COLLECTIVE) {
            return NULL;
        }
    }
    return NULL;
}

/* Where no forward shows its inputs: losses that each rank makes alone, and that are equal to the
 * bit. Of data that never change, as of a look at one batch, they are, too. */
static void judge_losses(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int steps = 0;
    double first = NAN;
    bool vary = false;
    const ls_call *call = NULL;
    ls_trace_each_step(step, &trace->rank[0]) {
        const ls_call *own = backward_alone(step);
        for (int k = 1; k < trace->world && own != NULL; k++) {
            const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
            if (other == NULL || step->step->loss != other->step->loss) {
                return; /* also of a loss that is not known */
            }
        }
        call = call == NULL ? own : call;
        vary = vary || (steps > 0 && own != NULL && step->step->loss != first);
        first = own != NULL ? step->step->loss : first;
        steps += own != NULL;
    }
    if (vary && steps >= forwards.value) {
        ls_finding_set(
            out, LS_WEAK, call->at,
            "all ranks do the same: the script draws what they train on from the same "
            "seed on every rank, unless it never changes",
            "seed by rank where batches are drawn, after the model is built",
            "no forward of a known model was seen, and the losses of all ranks are equal "
            "to the bit in all of %d steps",
            steps);
    }
}

void ls_rules_data_distinct(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    for (int a = 0; a < trace->world; a++) {
        for (int b = a + 1; b < trace->world; b++) {
            ls_observe_finding one = {0};
            judge_pair(trace, a, b, &compared, &one);
            excuse_shared(trace, a, b, &one);
            ls_calls_keep_worst(out, &one);
        }
    }
    if (compared == 0) {
        judge_losses(trace, out);
        ls_finding_missing(trace, "no step has inputs on two ranks", out);
    }
    if (out->verdict.code == LS_PASS) {
        advise_seeds(trace, out);
    }
    ls_verdict_pass(&out->verdict, compared, "inputs differ between %d ranks", trace->world);
}
