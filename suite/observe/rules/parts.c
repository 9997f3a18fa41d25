/* Whether the data are split alike on all ranks and divided once: among the ranks, and among the
 * workers of a loader that read a stream. */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
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

static void judge_parts(const ls_observe_trace *trace, int number, int k, const ls_event *a,
                        const ls_event *b, ls_observe_finding *out)
{
    int common, of;
    if (!ls_pass_is_divided(a, trace->world) || !ls_pass_is_divided(b, trace->world) ||
        !ls_pass_parts_common(a, b, &common, &of) || common >= common_share.value * of) {
        return;
    }
    ls_verdict_fail(&out->verdict,
                    "pass %d: the part of the data set that rank 0 holds has %d of %d indices in "
                    "common with that of rank %d, and %s divides each of them among the ranks",
                    number, common, of, k, ls_event_text(a, sampler, ""));
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
                judge_parts(trace, i, k, a, b, &guessed);
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
