#include "diagnose.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "judges.h"

/* Turns the right rule into a wrong one. */
typedef void change(ls_update_rule *rule);

/* Constants missing in the dump are judged as 0; a trainer may have used the protocol's defaults.
 */
static bool assume_defaults(const ls_dumpfile *file, ls_update_rule *rule)
{
    bool momentum = ls_dumpfile_text(file, "momentum", NULL) == NULL;
    bool decay = ls_dumpfile_text(file, "weight_decay", NULL) == NULL;
    rule->momentum = momentum ? 0.9 : rule->momentum;
    rule->weight_decay = decay ? 1e-4 : rule->weight_decay;
    return momentum || decay;
}

/* Only the correction of a bias counts steps: SGD's first step would be another step, too. */
static void one_step_late(ls_update_rule *rule)
{
    rule->step += ls_update_counts_steps(rule->kind);
}

static void one_step_early(ls_update_rule *rule)
{
    rule->step -= ls_update_counts_steps(rule->kind) && rule->step > 1;
}

static void other_decay(ls_update_rule *rule)
{
    rule->l2 = !rule->l2;
    rule->kind = rule->kind == LS_UPDATE_ADAM    ? LS_UPDATE_ADAMW
                 : rule->kind == LS_UPDATE_ADAMW ? LS_UPDATE_ADAM
                                                 : rule->kind;
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
    rule->epsilon = ls_update_epsilon(rule->kind);
}

static void float_betas(ls_update_rule *rule)
{
    /* not by two casts: GCC 12 drops a pair of them side by side (-ftree-slp-vectorize) */
    rule->beta1 = ls_bits_round(LS_BITS_F32, rule->beta1);
    rule->beta2 = ls_bits_round(LS_BITS_F32, rule->beta2);
}

static void betas_swapped(ls_update_rule *rule)
{
    double kept = rule->beta1;
    rule->beta1 = rule->beta2;
    rule->beta2 = kept;
}

static void not_clipped(ls_update_rule *rule)
{
    rule->clip_norm = rule->clip_value = 0;
}

static void other_ratio(ls_update_rule *rule)
{
    rule->kind = rule->kind == LS_UPDATE_LARS ? LS_UPDATE_SGD : rule->kind;
    rule->nvlamb = !rule->nvlamb;
}

/* A number of the rule, times a factor. */
#define TIMES(member, by) .of = offsetof(ls_update_rule, member), .factor = by
/* A flag of the rule. */
#define SET(member, to) .flag = offsetof(ls_update_rule, member), .value = to
#define NESTEROV "Nesterov's momentum where plain is asked for, or the other way round"

static const struct {
    const char *text;
    change
        *make; /* NULL: `factor` where `of` is not 0, `value` where `flag` is not, and `mistake` */
    size_t of, flag;
    double factor;
    bool value;
    ls_update_mistake mistake;
} mistakes[] = {
    {"bias correction counts one step too many", one_step_late},
    {"bias correction counts one step too few", one_step_early},
    {"no bias correction", SET(uncorrected, true)},
    {"weight decay is left out", TIMES(weight_decay, 0)},
    {"weight decay is applied twice", TIMES(weight_decay, 2)},
    {"decoupled and L2 weight decay are exchanged", other_decay},
    {NESTEROV, SET(nesterov, true)},
    {NESTEROV, SET(nesterov, false)},
    {"dampening equal to momentum", damped},
    {"momentum is left out", TIMES(momentum, 0)},
    {"momentum, betas and eps are the defaults, not the requested values", default_constants},
    {"betas are f32: 0.999 as float", float_betas},
    {"beta1 and beta2 have changed places", betas_swapped},
    {"eps is left out", TIMES(epsilon, 0)},
    {"gradients are not clipped to the requested norm", TIMES(max_grad_norm, 0)},
    {"gradients are not clipped before the step", not_clipped},
    {"each tensor is clipped by its own norm, not by that of all", .mistake = LS_UPDATE_CLIP_EACH},
    {"the trust ratio of another rule", other_ratio},
    {"the ratio is clipped (LARC, not LARS)", SET(clip, true)},
    {"the ratio is not clipped (LARS, not LARC)", SET(clip, false)},
    {"eps stands inside the root", .mistake = LS_UPDATE_EPSILON_INSIDE},
    {"eps is added before the bias correction", .mistake = LS_UPDATE_EPSILON_FIRST},
    {"decoupled weight decay is not multiplied by the rate", .mistake = LS_UPDATE_DECAY_WITHOUT_LR},
    {"weight decay is added after the momentum buffer", .mistake = LS_UPDATE_DECAY_AFTER_MOMENTUM},
    {"the first momentum buffer is dampened", .mistake = LS_UPDATE_FIRST_DAMPED},
    {"the update is not scaled by the trust ratio", .mistake = LS_UPDATE_NO_RATIO},
    {"weight decay is missing in the ratio's denominator",
     .mistake = LS_UPDATE_RATIO_WITHOUT_DECAY},
    {"the rate is twice the reported one: stepped twice?", TIMES(lr, 2)},
    {"the rate is a tenth of the reported one: a decay too early", TIMES(lr, 0.1)},
    {"the rate is ten times the reported one: a decay too late", TIMES(lr, 10)},
};

static ls_status fits(const ls_dumpfile *file, const ls_update_rule *rule, bool *out)
{
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    LS_TRY(ls_compare_optim_step(file, rule, false, &checks, &result));
    *out = result.judged && checks.count == 0;
    return LS_OK;
}

/* Statistics of next/ compared with the values before the step. */
typedef struct moved {
    int64_t elements, still, half; /* all; unchanged; f32 values that are halves */
} moved;

static moved look(const ls_dumpfile *file, const char *half_type)
{
    moved m = {0, 0, 0};
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *next = ls_dumpfile_at(file, i);
        if (strncmp(next->name, "next/", 5) != 0 || strcmp(next->dtype, "F32") != 0) {
            continue;
        }
        const ls_dumpfile_entry *before = ls_compare_optim_before(file, next->name + 5);
        if (before == NULL) {
            continue;
        }
        double *a = ls_dumps_values(next), *b = ls_dumps_values(before);
        for (int64_t k = 0; before->count == next->count && k < next->count; k++) {
            ls_bits_type type = strcmp(half_type, "bf16") == 0 ? LS_BITS_BF16 : LS_BITS_F16;
            m.elements++;
            m.still += a[k] == b[k];
            m.half += ls_bits_round(type, a[k]) == a[k];
        }
        free(a);
        free(b);
    }
    return m;
}

/* Whether there are moments after the step and all of them are fp16 values. */
static bool moments_are_half(const ls_dumpfile *file)
{
    int64_t looked = 0, half = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        if (strncmp(entry->name, "next_state/", 11) != 0) {
            continue;
        }
        double *value = ls_dumps_values(entry);
        for (int64_t k = 0; k < entry->count; k++) {
            looked += value[k] != 0;
            half += value[k] != 0 && ls_bits_round(LS_BITS_F16, value[k]) == value[k];
        }
        free(value);
    }
    return looked > 0 && half == looked;
}

ls_status ls_diagnose_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                           char *text, int text_bytes)
{
    moved m = look(file, ls_dumpfile_text(file, "half", "fp16"));
    const char *why = "";
    bool found = false;
    text[0] = '\0';
    if (skipped) {
        LS_TRY(fits(file, rule, &found));
        why = found ? "the step was taken although it is skipped" : "";
    } else if (m.elements > 0 && m.still == m.elements) {
        why = "no value moved: the optimizer holds other tensors";
    } else if (m.elements > 64 && 2 * m.half > m.elements) {
        /* one f32 value in 8192 is an fp16 value by chance */
        why = "f32 values of next/ are rounded to half: the masters were lost on the way";
    } else if (moments_are_half(file)) {
        why = "moments are kept in half";
    }
    ls_update_rule assumed = *rule;
    if (!skipped && why[0] == '\0' && assume_defaults(file, &assumed)) {
        LS_TRY(fits(file, &assumed, &found));
        why = found ? "momentum and weight_decay are 0.9 and 1e-4, which the dump does not record"
                    : "";
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && !skipped && why[0] == '\0'; i++) {
        ls_update_rule wrong = *rule;
        wrong.mistake = mistakes[i].mistake;
        if (mistakes[i].make != NULL) {
            mistakes[i].make(&wrong);
        } else if (mistakes[i].of != 0) {
            *(double *)((char *)&wrong + mistakes[i].of) *= mistakes[i].factor;
        } else if (mistakes[i].flag != 0) {
            *(bool *)((char *)&wrong + mistakes[i].flag) = mistakes[i].value;
        }
        if (memcmp(&wrong, rule, sizeof wrong) != 0) {
            LS_TRY(fits(file, &wrong, &found));
            why = found ? mistakes[i].text : "";
        }
    }
    snprintf(text, (size_t)text_bytes, "%s", why);
    return LS_OK;
}
