/* Whether the loss is given what it is made for, as the end of its graph shows. */
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "misuse.h"
#include "rules.h"

static const struct {
    const char *given, *what, *cause, *advice;
} ways[] = {
    {"probabilities", "a cross entropy is given the result of a softmax",
     "softmax before cross_entropy, which takes the softmax itself: gradients are a small part of "
     "what they should be",
     "give cross_entropy the scores, and take the softmax for predictions only"},
    {"scores", "nll_loss is given scores or probabilities, not their logarithms",
     "nll_loss without log_softmax", "use cross_entropy, or log_softmax before nll_loss"},
    {"sigmoid", "binary_cross_entropy_with_logits is given the result of a sigmoid or softmax",
     "a sigmoid before a loss that takes the sigmoid itself",
     "give the loss the scores, and take the sigmoid for predictions only"},
    {"crossed", "outputs of N x 1 are compared with N targets: each with all of them",
     "outputs and targets differ in shape and are broadcast to N x N",
     "give both the same shape: outputs.squeeze(1)"},
};

/* A loss of what was gathered from all ranks, none of which gets a gradient. */
static bool report_gathered(const ls_call *call, long long step, ls_observe_finding *out)
{
    const char *at = ls_calls_text(call, loss_gathered);
    if (at[0] == '\0') {
        return false;
    }
    ls_finding_set(out, LS_FAIL, at,
                   "all_gather of torch.distributed hands on no gradient: its results are new "
                   "tensors without a graph",
                   "use torch.distributed.nn.functional.all_gather, or put this rank's own tensor "
                   "back in its place; detach() it first where no gradient is meant",
                   "step %lld: the loss uses what was gathered from all ranks, as a constant: no "
                   "gradient reaches what this rank gave",
                   step);
    return true;
}

void ls_rules_gradient_loss(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int losses = 0;
    ls_misuse_judge(trace, "gradient.loss", out);
    ls_trace_each_step(step, &trace->rank[0]) {
        ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
            losses += ls_event_has(call->json, loss_times) ? call->times : 0;
            if (report_gathered(call, (long long)step->step->step, out)) {
                return;
            }
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                if (strcmp(ls_calls_text(call, loss_given), ways[w].given) == 0) {
                    ls_finding_set(out, LS_FAIL, call->at, ways[w].cause, ways[w].advice,
                                   "step %lld: %s", (long long)step->step->step, ways[w].what);
                    return;
                }
            }
        }
    }
    if (losses == 0) {
        ls_finding_missing(trace, "no loss's graph was looked at", out);
    }
    ls_verdict_pass(&out->verdict, losses, "%d losses, and nothing odd at the ends of their graphs",
                    losses);
}
