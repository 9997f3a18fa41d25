#include "optim_facts.h"

#include <stdio.h>
#include <string.h>

#include "../../harness/text.h"
#include "../compare_optim.h"

bool ls_optim_facts_open(const ls_record *job, int64_t step, ls_dumpfile **file, int64_t *update,
                         bool *skipped, ls_verdict *out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/dump/step%06d.rank0.safetensors", job->directory, (int)step);
    *update = 0;
    for (int64_t s = 1; s <= step; s++) {
        const ls_record_step *event = ls_record_find_step(&job->rank[0], s);
        if (event == NULL) {
            ls_verdict_set(out, LS_FAIL, "rank 0 has no event of step %d", (int)s);
            return false;
        }
        *skipped = event->skipped;
        *update += event->skipped ? 0 : 1;
    }
    if (ls_dumpfile_open(path, file) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "the dump of step %d is missing or broken", (int)step);
        return false;
    }
    return true;
}

typedef void change(ls_update_rule *rule);

static void one_step_late(ls_update_rule *rule)
{
    rule->step++;
}

static void one_step_early(ls_update_rule *rule)
{
    rule->step--;
}

static void no_correction(ls_update_rule *rule)
{
    rule->uncorrected = true;
}

static void epsilon_inside(ls_update_rule *rule)
{
    rule->epsilon_inside = true;
}

static void no_decay(ls_update_rule *rule)
{
    rule->weight_decay = 0;
}

static void other_decay(ls_update_rule *rule)
{
    rule->kind = rule->kind == LS_UPDATE_ADAM    ? LS_UPDATE_ADAMW
                 : rule->kind == LS_UPDATE_ADAMW ? LS_UPDATE_ADAM
                                                 : rule->kind;
    rule->l2 = rule->kind == LS_UPDATE_LAMB;
}

static void other_momentum(ls_update_rule *rule)
{
    rule->nesterov = !rule->nesterov;
}

static void damped(ls_update_rule *rule)
{
    rule->dampening = rule->momentum;
}

static void default_constants(ls_update_rule *rule)
{
    rule->momentum = rule->momentum != 0 ? 0.9 : 0;
    rule->beta1 = 0.9;
    rule->beta2 = 0.999;
    rule->epsilon = rule->kind == LS_UPDATE_LAMB ? 1e-6 : 1e-8;
}

static void float_betas(ls_update_rule *rule)
{
    rule->beta1 = (double)(float)rule->beta1;
    rule->beta2 = (double)(float)rule->beta2;
}

static void no_clipping(ls_update_rule *rule)
{
    rule->max_grad_norm = 0;
}

static void no_adaptation(ls_update_rule *rule)
{
    rule->kind = rule->kind == LS_UPDATE_LARS ? LS_UPDATE_SGD : rule->kind;
    rule->nvlamb = !rule->nvlamb;
}

static void clipped_ratio(ls_update_rule *rule)
{
    rule->clip = true;
}

static const struct mistake {
    const char *text;
    change *make;
} mistakes[] = {
    {"bias correction counts one step too many", one_step_late},
    {"bias correction counts one step too few", one_step_early},
    {"no bias correction", no_correction},
    {"eps stands inside the root", epsilon_inside},
    {"weight decay is left out", no_decay},
    {"decoupled and L2 weight decay are exchanged", other_decay},
    {"Nesterov's momentum where plain is asked for, or the other way round", other_momentum},
    {"dampening equal to momentum", damped},
    {"momentum, betas and eps are the defaults, not what was asked for", default_constants},
    {"betas are f32: 0.999 as float", float_betas},
    {"gradients are not clipped to the norm asked for", no_clipping},
    {"the trust ratio of another rule", no_adaptation},
    {"the ratio is clipped (LARC, not LARS)", clipped_ratio},
};

static bool follows(const ls_dumpfile *file, const ls_update_rule *rule)
{
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    return ls_compare_optim_step(file, rule, false, &checks, &result) == LS_OK && result.judged &&
           checks.count == 0;
}

void ls_optim_facts_explain(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                            ls_verdict *out)
{
    if (skipped) {
        if (follows(file, rule)) {
            ls_text_put(out->cause, sizeof out->cause, "the step was taken although it is skipped");
        }
        return;
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && out->cause[0] == '\0'; i++) {
        ls_update_rule wrong = *rule;
        mistakes[i].make(&wrong);
        if (wrong.step >= 1 && follows(file, &wrong)) {
            ls_text_put(out->cause, sizeof out->cause, "%s", mistakes[i].text);
        }
    }
}
