#include "optim_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../harness/text.h"
#include "../../reference/oracle/bits.h"
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
    /* not by two casts: GCC 12 drops a pair of them side by side (-ftree-slp-vectorize) */
    rule->beta1 = ls_bits_round(LS_BITS_F32, rule->beta1);
    rule->beta2 = ls_bits_round(LS_BITS_F32, rule->beta2);
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
    change *make; /* NULL: `mistake` alone */
    ls_update_mistake mistake;
} mistakes[] = {
    {"bias correction counts one step too many", one_step_late, LS_UPDATE_RIGHT},
    {"bias correction counts one step too few", one_step_early, LS_UPDATE_RIGHT},
    {"no bias correction", no_correction, LS_UPDATE_RIGHT},

    {"weight decay is left out", no_decay, LS_UPDATE_RIGHT},
    {"decoupled and L2 weight decay are exchanged", other_decay, LS_UPDATE_RIGHT},
    {"Nesterov's momentum where plain is asked for, or the other way round", other_momentum,
     LS_UPDATE_RIGHT},
    {"dampening equal to momentum", damped, LS_UPDATE_RIGHT},
    {"momentum, betas and eps are the defaults, not what was asked for", default_constants,
     LS_UPDATE_RIGHT},
    {"betas are f32: 0.999 as float", float_betas, LS_UPDATE_RIGHT},
    {"gradients are not clipped to the norm asked for", no_clipping, LS_UPDATE_RIGHT},
    {"the trust ratio of another rule", no_adaptation, LS_UPDATE_RIGHT},
    {"the ratio is clipped (LARC, not LARS)", clipped_ratio, LS_UPDATE_RIGHT},
    {"eps stands inside the root", NULL, LS_UPDATE_EPSILON_INSIDE},
    {"eps is added before the bias correction", NULL, LS_UPDATE_EPSILON_FIRST},
    {"decoupled weight decay is not multiplied by the rate", NULL, LS_UPDATE_DECAY_WITHOUT_LR},
    {"weight decay is added after the momentum buffer", NULL, LS_UPDATE_DECAY_AFTER_MOMENTUM},
    {"the first momentum buffer is dampened", NULL, LS_UPDATE_FIRST_DAMPED},
    {"the update is not scaled by the trust ratio", NULL, LS_UPDATE_NO_RATIO},
    {"weight decay is missing in the ratio's denominator", NULL, LS_UPDATE_RATIO_WITHOUT_DECAY},
};

static bool follows(const ls_dumpfile *file, const ls_update_rule *rule)
{
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    return ls_compare_optim_step(file, rule, false, &checks, &result) == LS_OK && result.judged &&
           checks.count == 0;
}

/* Whether every moment after the step is a value of fp16, and there are some. */
static bool moments_are_half(const ls_dumpfile *file)
{
    int64_t looked = 0, half = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        if (strncmp(entry->name, "next_state/", 11) != 0) {
            continue;
        }
        double *value = malloc((size_t)entry->count * sizeof *value + 1);
        LS_ASSERT(value != NULL);
        ls_dumpfile_read(entry, value);
        for (int64_t k = 0; k < entry->count; k++) {
            looked += value[k] != 0;
            half += value[k] != 0 && ls_bits_round(LS_BITS_F16, value[k]) == value[k];
        }
        free(value);
    }
    return looked > 0 && half == looked;
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
    if (moments_are_half(file)) {
        ls_text_put(out->cause, sizeof out->cause, "moments are kept in half");
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && out->cause[0] == '\0'; i++) {
        ls_update_rule wrong = *rule;
        wrong.mistake = mistakes[i].mistake;
        if (mistakes[i].make != NULL) {
            mistakes[i].make(&wrong);
        }
        if (wrong.step >= 1 && follows(file, &wrong)) {
            ls_text_put(out->cause, sizeof out->cause, "%s", mistakes[i].text);
        }
    }
}
