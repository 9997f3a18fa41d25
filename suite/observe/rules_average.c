/* Whether an average of weights is kept where it is run. */
#include <string.h>

#include "calls.h"
#include "rules.h"

typedef struct average {
    int updates, forwards;
    const ls_call *update; /* the first */
} average;

static average average_of(const ls_observe_rank *rank, int number)
{
    average a = {0};
    for (int i = 0; i < rank->step_count; i++) {
        for (int c = 0; c < rank->step[i].call_count; c++) {
            const ls_call *call = &rank->step[i].call[c];
            if (call->kind != LS_CALL_OTHER ||
                strcmp(ls_calls_text(call, "call"), "average") != 0 ||
                ls_json_int(call->json, "average", -1) != number) {
                continue;
            }
            if (strcmp(ls_calls_text(call, "what"), "update") == 0) {
                a.update = a.update == NULL ? call : a.update;
                a.updates += call->times;
            } else {
                a.forwards += call->times;
            }
        }
    }
    return a;
}

/* A rank may keep an average alone, and then it runs it alone. */
void ls_rules_replicas_average(const ls_observe_trace *trace, ls_observe_finding *out)
{
    enum { AVERAGES = 8 };
    int updates = 0;
    if (trace->world < 2 || !trace->attached) {
        ls_verdict_set(&out->verdict, trace->attached ? LS_SKIP : LS_UNSUPPORTED, "%s",
                       trace->attached ? "one rank" : "the trainer's own events hold no calls");
        return;
    }
    for (int n = 0; n < AVERAGES; n++) {
        int most = 0, of = 0;
        for (int k = 0; k < trace->world; k++) {
            average a = average_of(&trace->rank[k], n);
            of = a.updates > most ? k : of;
            most = a.updates > most ? a.updates : most;
        }
        updates += most;
        for (int k = 0; k < trace->world; k++) {
            average a = average_of(&trace->rank[k], n);
            /* One less: a rank that ended between two updates. */
            if (a.forwards == 0 || a.updates >= most - 1) {
                continue;
            }
            ls_verdict_fail(&out->verdict,
                            "rank %d runs an average of weights that it updated %d times, rank %d "
                            "%d times",
                            k, a.updates, of, most);
            ls_verdict_cause(&out->verdict, "the average is updated on some ranks and run on all: "
                                            "the others run weights of the start");
            ls_finding_blame(out, average_of(&trace->rank[of], n).update->at,
                             "update the average on every rank, or run it where it is updated");
        }
    }
    if (updates == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no AveragedModel was updated");
    }
    ls_verdict_pass(&out->verdict, "averages were updated %d times, on each rank that runs them",
                    updates);
}
