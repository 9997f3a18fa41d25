/* Whether the workers of a loader draw random numbers of their own: not those of another worker,
 * nor those of the pass before. */
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

/* A generator that two workers, or a worker in two passes, used from the same state on. */
static const char *shared(const ls_event *a, const ls_event *b)
{
    const ls_event *state;
    ls_event_each(state, ls_event_at(a, 1)) {
        const ls_event *other = ls_event_find(ls_event_at(b, 1), ls_event_key(state));
        if (ls_event_is_text(state) && ls_event_is_text(other) &&
            strcmp(state->text, other->text) == 0) {
            return ls_event_key(state);
        }
    }
    return NULL;
}

static int number_of(const ls_event *worker)
{
    const ls_event *number = ls_event_at(worker, 0);
    return ls_event_is_number(number) ? ls_event_to_int(number, -1) : -1;
}

/* A generator of the process: else the data set has one of its own. */
static bool is_global(const char *name)
{
    return strcmp(name, "random") == 0 || strcmp(name, "torch") == 0 ||
           strcmp(name, "numpy.random") == 0;
}

static void judge_pass(int rank, const ls_event *data, int *compared, ls_observe_finding *out)
{
    const ls_event *a, *b, *workers = ls_event_list(data, random);
    ls_event_each(a, workers) {
        for (b = ls_event_after(a); b != NULL; b = ls_event_after(b)) {
            const char *name = shared(a, b);
            *compared += number_of(a) != number_of(b);
            if (name == NULL || number_of(a) == number_of(b)) {
                continue;
            }
            ls_finding_set(
                out, LS_FAIL, ls_job_data_place(data, built),
                is_global(name) ? "all workers are seeded alike (worker_init_fn, or a seed in the "
                                  "data set): their samples are changed in the same way"
                                : "the data set has a generator of its own, of which each worker "
                                  "has a copy: their samples are changed in the same way",
                "seed each worker by torch.initial_seed(), which differs between workers and "
                "passes",
                "rank %d, pass %d: workers %d and %d draw the same random numbers (%.60s)", rank,
                ls_event_int(data, pass, 0), number_of(a), number_of(b), name);
        }
    }
}

static void judge_passes(int rank, const ls_event *before, const ls_event *data, int *compared,
                         ls_observe_finding *out)
{
    const ls_event *a, *b;
    ls_event_each(a, ls_event_list(before, random)) {
        ls_event_each(b, ls_event_list(data, random)) {
            const char *name = number_of(a) == number_of(b) ? shared(a, b) : NULL;
            *compared += number_of(a) == number_of(b);
            if (name == NULL || !ls_verdict_good(out->verdict.code)) {
                continue;
            }
            ls_finding_set(
                out, LS_FAIL, ls_job_data_place(data, built), NULL,
                "seed each worker by torch.initial_seed(), which differs between workers and "
                "passes",
                "rank %d: worker %d draws in pass %d the random numbers of pass %d (%.60s)", rank,
                number_of(a), ls_event_int(data, pass, 0), ls_event_int(before, pass, 0), name);
            ls_verdict_cause(&out->verdict,
                             "the workers begin each pass with the same %s: samples are changed in "
                             "the same way in every epoch",
                             is_global(name) ? "seed"
                                             : "state of the data set's own generator, which they "
                                               "get as the process has it");
        }
    }
}

void ls_rules_data_random(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data, *before = NULL;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (!ls_pass_is_trained(data) || ls_event_list(data, random) == NULL) {
                continue;
            }
            judge_pass(k, data, &compared, out);
            if (before != NULL && ls_event_same(before, data, at)) {
                judge_passes(k, before, data, &compared, out);
            }
            before = data;
        }
    }
    ls_finding_close(out, compared, LS_SKIP, "no two workers of a training loader were seen",
                     "random numbers of their own in %d workers and passes", compared);
}
