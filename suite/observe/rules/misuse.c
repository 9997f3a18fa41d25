/* Settings and arguments that nothing refuses and that mean something else than they say, and
 * losses that are not given what they are made for, as the end of their graph shows. */
#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

/* A sentence in which the words in braces are members of the event. */
static void describe(const char *sentence, const ls_event *event, char *text, size_t bytes)
{
    text[0] = '\0';
    while (*sentence != '\0') {
        int plain = (int)strcspn(sentence, "{"), end = (int)strcspn(sentence, "}");
        ls_text_add(text, bytes, "%.*s", plain, sentence);
        if (sentence[plain] == '\0') {
            return;
        }
        LS_TEXT(member, 24, "%.*s", end - plain - 1, sentence + plain + 1);
        const ls_event *value = ls_event_find(event, member);
        if (ls_event_is_number(value)) {
            ls_text_add(text, bytes, "%.0f", value->number);
        } else if (strcmp(member, "mode") == 0) {
            bool most = strcmp(ls_event_to_text(value, ""), "max") == 0;
            ls_text_add(text, bytes, "%s", most ? "highest" : "lowest");
        } else {
            ls_text_add(text, bytes, "%.60s", ls_event_to_text(value, ""));
        }
        sentence += end + 1;
    }
}

/* Whether a score is better the higher it is, by the words of its name: 1, -1, or 0: not known, as
 * where one of them is none of these (acc_gap, forget_acc). */
static int better_high(const char *name)
{
    int high = 0, low = 0;
    while (*name != '\0') {
        char word[24];
        size_t length = 0;
        for (; isalpha((unsigned char)*name); name++) {
            if (length + 1 < sizeof word) {
                word[length++] = (char)tolower((unsigned char)*name);
            }
        }
        word[length] = '\0';
        bool up = ls_text_choice(
                      word, "acc|accuracy|auc|auroc|f|bleu|recall|dice|iou|miou|psnr|ssim") >= 0;
        bool down =
            ls_text_choice(word, "loss|err|error|perplexity|ppl|mse|mae|rmse|nll|wer|cer") >= 0;
        bool plain =
            ls_text_choice(word,
                           "val|valid|validation|eval|test|dev|mean|avg|average|epoch|top|macro|"
                           "micro|metrics|metric|self|scores|results|stats|logs|item|at") >= 0;
        if (!up && !down && !plain && length > 0) {
            return 0;
        }
        high += up;
        low += down;
        name += *name != '\0';
    }
    return high > 0 && low == 0 ? 1 : low > 0 && high == 0 ? -1 : 0;
}

static bool is_turned_round(const ls_event *event)
{
    int high = better_high(ls_event_text(event, by, ""));
    bool most = strcmp(ls_event_text(event, mode, ""), "max") == 0;
    return most ? high < 0 : high > 0;
}

static const struct {
    const char *rule, *kind;
    const char *what; /* with members of the event in braces */
    const char *cause, *advice;
    enum { SURE, GUESSED, MAY_BE_MEANT } tier; /* the last: WEAK */
} kinds[] = {
    {"gradient.loss", "kl_of_probabilities",
     "kl_div is given probabilities where it takes their logarithms",
     "softmax in place of log_softmax for the first argument of kl_div",
     "kl_div(log_softmax(student / T), softmax(teacher / T), reduction=\"batchmean\")"},
    {"gradient.loss", "kl_to_logarithms",
     "kl_div is given a target with negative values, and log_target is not set",
     "logarithms, or scores, as the target of kl_div: terms below 0 count as 0",
     "softmax of the target, or log_target=True"},
    {"gradient.loss", "target_0_ahead",
     "the target of a cross entropy is the model's own input, token by token",
     "the targets are not shifted: the model learns to hand on the token that it sees",
     "the target of place i is the token at i + 1", MAY_BE_MEANT},
    {"gradient.loss", "target_2_ahead",
     "the target of a cross entropy is the token two places ahead of the model's input",
     "the targets are shifted twice, by the script and by the model or its loss",
     "shift them once: hand the model labels as they are, or compute the loss yourself", GUESSED},
    {"gradient.loss", "targets_of_others",
     "{count} rows have targets among the rows that were gathered from all ranks, and these are "
     "another rank's",
     "the targets do not follow the order of what is gathered: this rank's rows stand elsewhere",
     "torch.arange(n) + rank * n; of several kinds of rows, gather each kind by itself"},
    {"gradient.loss", "targets_first",
     "{count} rows have the targets 0, 1, ... among as many rows of each rank: rank 0's, where "
     "they are in the order of ranks",
     "the targets are not moved by the rank: its own rows stand further on in what is gathered",
     "torch.arange(n) + rank * n", GUESSED},
    {"gradient.loss", "labels_of_padding",
     "of {count} labels where the attention mask is 0, none is -100: they are trained on",
     "labels are a copy of the padded input: the model is trained to predict padding",
     "set the labels to -100 where the attention mask is 0", GUESSED},
    {"gradient.loss", "end_as_padding",
     "token {one} is padding and stands for itself, too: in {count} places where the attention "
     "mask "
     "is 1 its label is -100",
     "the end of a text has the padding's token, and all of that token is left out: the model does "
     "not learn to end",
     "leave out labels where the attention mask is 0, or pad with another token", GUESSED},
    {"gradient.loss", "kl_of_scores",
     "kl_div is given scores where it takes logarithms of probabilities",
     "no log_softmax of the first argument of kl_div",
     "kl_div(log_softmax(student / T), softmax(teacher / T), reduction=\"batchmean\")",
     MAY_BE_MEANT},
    {"validation.mode", "dropout_in_eval",
     "a dropout is on while the model is in eval mode and autograd is off",
     "functional dropout whose training argument is left out, or True: eval() does not reach it",
     "F.dropout(x, p, training=self.training), or nn.Dropout"},
    {"validation.mode", "attention_in_eval",
     "attention drops out while the model is in eval mode and autograd is off: the same batch "
     "gives "
     "another result each time",
     "dropout_p of scaled_dot_product_attention is a number that eval() does not reach",
     "dropout_p=self.p if self.training else 0.0"},
    {"validation.mode", "choice_in_eval",
     "forwards in eval mode and without autograd draw a few random numbers for a whole batch "
     "({name}): the same batch gives another result each time",
     "a choice that eval() does not reach: layers that are skipped, or a masked input",
     "choose at random where self.training is set, and nowhere else", GUESSED},
    {"validation.mode", "noise_in_eval",
     "validations draw random numbers for each sample ({name}) between a batch and its forward, "
     "others "
     "each time: the same weights give another score",
     "noise or times of the validation are drawn from the generator that the training draws from",
     "torch.Generator().manual_seed(0) for each validation, handed to what draws", GUESSED},
    {"replicas.outside", "reduced_unread",
     "an all_reduce of {count} numbers is given a tensor that nothing else holds: what it gives is "
     "lost, and the rank goes on with its own numbers",
     "a copy is reduced: that of contiguous(), clone(), a cast or an expression",
     "keep the tensor that is reduced, and read it after the call: x = x.contiguous(); "
     "all_reduce(x)"},
    {"precision.integers", "integers_in_half",
     "of consecutive whole numbers that become {name} {count} equal the one before: {one} is "
     "{other}",
     "positions, or counts, become half as they are: numbers that differ are one and the same to "
     "the model",
     "compute with them in f32 (autocast off, arange without the model's type), and cast what "
     "they give"},
    {"precision.integers", "angles_in_half",
     "a sine or cosine of angles is off by {by}: what they are computed from was rounded to {name}",
     "frequencies, positions or times are rounded to half before their product: the angle is off "
     "by as many times more",
     "keep them in f32: buffers that model.to(dtype) rounds too, computed again behind it; angles "
     "with autocast off; cast the sine and cosine"},
    {"optimizer.covered", "frozen_by_name",
     "{name} of {part} is set, which nothing reads: it is trained",
     "requires_grad is misspelled, or set on a module: an attribute that nothing reads",
     "module.requires_grad_(False), or p.requires_grad = False for each of its parameters"},
    {"optimizer.covered", "vectors_alone",
     "norms and biases alone are trained: all {count} matrices that an optimizer has are frozen",
     "a condition on names or types freezes more than it should: the head, too, stays as it is",
     "freeze the part by its module, and give the optimizer what is trained", GUESSED},
    {"evaluation.best", "score", "{what} takes the {mode} \"{by}\" for the best",
     "the mode is the wrong way round for this score: what is kept or waited for is the worst",
     "mode=\"max\" for accuracies and the like, \"min\" for losses and errors"},
    {"data.covered", "weights_of_classes",
     "a WeightedRandomSampler has {weights} weights for {samples} samples: it draws the first "
     "{weights} only",
     "the sampler is given a weight for each class in place of one for each sample",
     "weights[targets], as many as there are samples"},
    {"data.once", "transform_replaced",
     "the training's part of a data set draws nothing: the transform of the data set was set for "
     "the part that is held out, too",
     "both parts share one data set: a transform that is set for the validation's replaces the "
     "training's",
     "a data set of its own for each part, with the same indices"},
    {"validation.alike", "normalized_apart",
     "two data sets of one kind are normalized by {one} ({other_at}) and by {other} ({at})",
     "training and validation normalize differently: the score is of inputs that the model has "
     "not seen",
     "the same Normalize in both", MAY_BE_MEANT},
    {"validation.alike", "classes_apart",
     "class \"{name}\" is number {one} in one data set and {other} in the other",
     "the folders of training and validation hold different classes, which are numbered apart",
     "hand the training's class_to_idx to both, or add the missing folders", MAY_BE_MEANT},
};

/* Whether a backward ran in a pass over that loader. */
static bool is_trained_on(const ls_observe_rank *rank, int loader)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_event_int(data, loader, -1) == loader && ls_pass_is_trained(data)) {
            return true;
        }
    }
    return false;
}

/* Whether forwards without autograd ran in a pass over that loader: it may also be measured. */
static bool has_forwards(const ls_observe_rank *rank, int loader)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        int count;
        const ls_observe_step *step = ls_pass_steps(rank, data, &count);
        bool own = ls_event_int(data, loader, -1) == loader;
        for (int i = 0; own && i < count; i++) {
            ls_trace_each_call(call, &step[i]) {
                if (call->kind == LS_CALL_FORWARD && ls_calls_flag(call, grad) == 0) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* A number of a list of loaders; -2, which no pass has: there is none at that place. */
static int loader_at(const ls_event *loaders, int place)
{
    const ls_event *item = ls_event_at(loaders, place);
    int64_t number = -1;
    return ls_event_is_number(item) && ls_json_whole(item->number, 0, INT_MAX, &number)
               ? (int)number
               : -2;
}

/* Data of two kinds may both be trained on, or both be validated; of one, the loader must be
 * trained on. */
static bool is_of_both(const ls_observe_rank *rank, const ls_event *event)
{
    const ls_event *loaders = ls_event_list(event, loaders);
    if (loaders == NULL) {
        return true; /* of a kind that compares none */
    }
    if (ls_event_count(loaders) == 1) {
        return is_trained_on(rank, loader_at(loaders, 0));
    }
    bool one = is_trained_on(rank, loader_at(loaders, 0));
    bool other = is_trained_on(rank, loader_at(loaders, 1));
    return one != other && has_forwards(rank, loader_at(loaders, one));
}

static const ls_event *find(const ls_observe_rank *rank, const char *kind)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, misuse)) {
        if (strcmp(ls_event_text(event, kind, ""), kind) == 0 && is_of_both(rank, event) &&
            (strcmp(kind, "score") != 0 || is_turned_round(event))) {
            return event;
        }
    }
    return NULL;
}

void ls_misuse_judge(const ls_observe_trace *trace, const char *rule, ls_observe_finding *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const ls_event *event = NULL;
        int rank = 0;
        for (; event == NULL && rank < trace->world && strcmp(kinds[i].rule, rule) == 0; rank++) {
            event = find(&trace->rank[rank], kinds[i].kind);
        }
        if (event == NULL) {
            continue;
        }
        char text[400];
        describe(kinds[i].what, event, text, sizeof text);
        ls_observe_finding one = {0};
        ls_finding_set(&one, kinds[i].tier == MAY_BE_MEANT ? LS_WEAK : LS_FAIL,
                       ls_event_text(event, at, ""), kinds[i].cause, kinds[i].advice, "rank %d: %s",
                       rank - 1, text);
        (kinds[i].tier == GUESSED ? ls_finding_guess : ls_calls_keep_worst)(out, &one);
        return;
    }
}

/* ---- precision.integers ---------------------------------------------------------------------- */

void ls_rules_precision_integers(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_verdict_set(&out->verdict, LS_SKIP, "the first step's forwards cast no whole numbers so");
    ls_misuse_judge(trace, "precision.integers", out);
}

/* ---- validation.alike ------------------------------------------------------------------------ */

void ls_rules_validation_alike(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_misuse_judge(trace, "validation.alike", out);
    if (ls_event_count(ls_trace_events(&trace->rank[0], data)) < 2) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no pass over other data than the training's");
    }
    ls_verdict_pass(&out->verdict, ls_event_count(ls_trace_events(&trace->rank[0], data)),
                    "no difference seen between the data sets' transforms and classes");
}

/* ---- gradient.loss --------------------------------------------------------------------------- */

static const struct {
    const char *given;
    bool guessed;
    const char *what, *cause, *advice;
} ways[] = {
    {"softmax", false, "a cross entropy is given the result of a softmax",
     "softmax before cross_entropy, which takes the softmax itself: gradients are a small part of "
     "what they should be",
     "give cross_entropy the scores, and take the softmax for predictions only"},
    {"probabilities", true, "the softmax of the result of a softmax is taken",
     "softmax before log_softmax, which takes the softmax itself: gradients are a small part of "
     "what they should be",
     "give it the scores, and take the softmax for predictions only"},
    {"scores", true, "nll_loss is given scores or probabilities, not their logarithms",
     "nll_loss without log_softmax", "use cross_entropy, or log_softmax before nll_loss"},
    {"sigmoid", false,
     "binary_cross_entropy_with_logits is given the result of a sigmoid or softmax",
     "a sigmoid before a loss that takes the sigmoid itself",
     "give the loss the scores, and take the sigmoid for predictions only"},
    {"crossed", false, "outputs of N x 1 are compared with N targets: each with all of them",
     "outputs and targets differ in shape and are broadcast to N x N",
     "give both the same shape: outputs.squeeze(1)"},
};

/* A loss of what was gathered from all ranks, none of which gets a gradient. */
static void report_gathered(const ls_call *call, long long step, ls_observe_finding *out)
{
    const char *at = ls_calls_text(call, loss_gathered);
    ls_observe_finding one = {0};
    if (at[0] == '\0') {
        return;
    }
    ls_finding_set(
        &one, LS_FAIL, at,
        "all_gather of torch.distributed hands on no gradient: its results are new "
        "tensors without a graph",
        "use torch.distributed.nn.functional.all_gather (Lightning: sync_grads=True), or put "
        "this rank's own tensor back in its place; detach() it first where no gradient "
        "is meant",
        "step %lld: the loss uses what was gathered from all ranks, as a constant: no "
        "gradient by it reaches what this rank gave",
        step);
    ls_finding_guess(out, &one);
}

void ls_rules_gradient_loss(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int losses = 0;
    ls_misuse_judge(trace, "gradient.loss", out);
    ls_trace_each_step(step, &trace->rank[0]) {
        ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
            losses += ls_event_has(call->json, loss_times) ? call->times : 0;
            report_gathered(call, (long long)step->step->step, out);
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                if (strcmp(ls_calls_text(call, loss_given), ways[w].given) == 0) {
                    ls_observe_finding one = {0};
                    ls_finding_set(&one, LS_FAIL, call->at, ways[w].cause, ways[w].advice,
                                   "step %lld: %s", (long long)step->step->step, ways[w].what);
                    (ways[w].guessed ? ls_finding_guess : ls_calls_keep_worst)(out, &one);
                }
            }
        }
    }
    if (losses == 0) {
        ls_finding_missing(trace, "no loss's graph was looked at", out);
    }
    ls_verdict_pass(&out->verdict, losses,
                    "%d losses, and no mistake that is sure at the ends of their graphs", losses);
}
