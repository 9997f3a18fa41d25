#include "diagnose_step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/core/log.h"
#include "../reference/oracle/bits.h"

/* A mistake turns the right rule into the wrong one; false where it changes nothing here. */
typedef bool mistake(ls_update_rule *rule);

static bool counts_steps(const ls_update_rule *rule)
{
    return rule->kind == LS_UPDATE_ADAM || rule->kind == LS_UPDATE_ADAMW ||
           rule->kind == LS_UPDATE_LAMB;
}

static bool no_decay(ls_update_rule *rule)
{
    bool had = rule->weight_decay != 0;
    rule->weight_decay = 0;
    return had;
}

static bool decay_twice(ls_update_rule *rule)
{
    rule->weight_decay *= 2;
    return rule->weight_decay != 0;
}

static bool no_momentum(ls_update_rule *rule)
{
    bool had = rule->momentum != 0 && !counts_steps(rule);
    rule->momentum = 0;
    return had;
}

static bool dampened(ls_update_rule *rule)
{
    rule->dampening = rule->momentum;
    return rule->momentum != 0 && !counts_steps(rule);
}

static bool other_nesterov(ls_update_rule *rule)
{
    rule->nesterov = !rule->nesterov;
    return rule->momentum != 0 && !counts_steps(rule);
}

static bool step_more(ls_update_rule *rule)
{
    rule->step++;
    return counts_steps(rule);
}

static bool step_less(ls_update_rule *rule)
{
    rule->step--;
    return counts_steps(rule) && rule->step > 0;
}

static bool not_corrected(ls_update_rule *rule)
{
    rule->uncorrected = true;
    return counts_steps(rule);
}

static bool other_decay(ls_update_rule *rule)
{
    if (rule->kind == LS_UPDATE_LAMB) {
        rule->l2 = !rule->l2;
    } else if (rule->kind == LS_UPDATE_ADAM || rule->kind == LS_UPDATE_ADAMW) {
        rule->kind = rule->kind == LS_UPDATE_ADAM ? LS_UPDATE_ADAMW : LS_UPDATE_ADAM;
    } else {
        return false;
    }
    return rule->weight_decay != 0;
}

static bool not_clipped(ls_update_rule *rule)
{
    bool had = rule->kind == LS_UPDATE_LAMB && rule->max_grad_norm != 0;
    rule->max_grad_norm = 0;
    return had;
}

static bool plain_sgd(ls_update_rule *rule)
{
    bool other = rule->kind == LS_UPDATE_LARS;
    rule->kind = LS_UPDATE_SGD;
    return other;
}

static bool betas_swapped(ls_update_rule *rule)
{
    double kept = rule->beta1;
    rule->beta1 = rule->beta2;
    rule->beta2 = kept;
    return counts_steps(rule);
}

static bool no_epsilon(ls_update_rule *rule)
{
    rule->epsilon = 0;
    return counts_steps(rule);
}

static bool twice_the_rate(ls_update_rule *rule)
{
    rule->lr *= 2;
    return true;
}

static bool tenth_of_the_rate(ls_update_rule *rule)
{
    rule->lr /= 10;
    return true;
}

static bool ten_times_the_rate(ls_update_rule *rule)
{
    rule->lr *= 10;
    return true;
}

static const struct {
    mistake *make;
    const char *text;
} mistakes[] = {
    {no_decay, "weight decay was left out"},
    {decay_twice, "weight decay was applied twice"},
    {other_nesterov, "Nesterov is on where it was not asked for, or off where it was"},
    {dampened, "the gradient is dampened by 1 - momentum"},
    {no_momentum, "momentum was left out"},
    {step_more, "bias correction counts one step too many: skipped steps must not count"},
    {step_less, "bias correction counts one step too few"},
    {not_corrected, "bias correction was left out"},
    {other_decay, "weight decay is decoupled where it belongs into the gradient, or the reverse"},
    {not_clipped, "the gradient norm was not clipped"},
    {plain_sgd, "the layer-wise rate (trust ratio) was left out"},
    {betas_swapped, "beta1 and beta2 have changed places"},
    {no_epsilon, "epsilon was left out"},
    {twice_the_rate, "the learning rate used is twice the one told: stepped twice?"},
    {tenth_of_the_rate, "the learning rate used is a tenth of the one told: a decay too early"},
    {ten_times_the_rate, "the learning rate used is ten times the one told: a decay too late"},
};

static ls_status fits(const ls_dumpfile *file, const ls_update_rule *rule, bool *out)
{
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    LS_TRY(ls_compare_optim_step(file, rule, false, &checks, &result));
    *out = result.judged && checks.count == 0;
    return LS_OK;
}

/* Reads a whole tensor; NULL where it is not there. */
static double *read_all(const ls_dumpfile_entry *entry)
{
    double *value = entry == NULL ? NULL : malloc((size_t)entry->count * sizeof *value + 8);
    if (value != NULL) {
        ls_dumpfile_read(entry, value);
    }
    return value;
}

/* What stands in next/ beside what stood there before. */
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
        double *a = read_all(next), *b = read_all(before);
        for (int64_t k = 0;
             a != NULL && b != NULL && before->count == next->count && k < next->count; k++) {
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

ls_status ls_diagnose_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                           char *text, int text_bytes)
{
    text[0] = '\0';
    if (skipped) {
        ls_update_rule taken = *rule;
        bool was_taken = false;
        LS_TRY(fits(file, &taken, &was_taken));
        snprintf(text, (size_t)text_bytes, "%s",
                 was_taken ? "the optimizer stepped although the step was to be skipped" : "");
        return LS_OK;
    }
    moved m = look(file, ls_dumpfile_text(file, "half", "fp16"));
    if (m.elements > 0 && m.still == m.elements) {
        snprintf(text, (size_t)text_bytes, "no value moved: the optimizer holds other tensors");
        return LS_OK;
    }
    /* one f32 value in 8192 is a half by chance */
    if (m.elements > 64 && 2 * m.half > m.elements) {
        snprintf(text, (size_t)text_bytes,
                 "f32 values of next/ are rounded to half: the masters "
                 "were lost on the way");
        return LS_OK;
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && text[0] == '\0'; i++) {
        ls_update_rule wrong = *rule;
        bool found = false;
        if (mistakes[i].make(&wrong)) {
            LS_TRY(fits(file, &wrong, &found));
        }
        if (found) {
            snprintf(text, (size_t)text_bytes, "the step fits if %s", mistakes[i].text);
        }
    }
    return LS_OK;
}
