#include "diagnose.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/list.h"
#include "suite/suite.h"

static const ls_tol same_factor =
    LS_TOL(1e-2, "the factors stand farther apart, and the rounding of halves moves less");
/* A model must explain the error clearly better than "nothing is wrong" does, whatever rounding
 * allows. */
static const ls_tol better = LS_TOL(0.25, "an explanation leaves a quarter of the error at most");
static const ls_tol alike = LS_TOL(3, "two precisions that are one bit apart differ by two");

/* The chosen elements in consecutive arrays, for the fits. */
typedef struct chosen {
    const ls_diagnose_wrong *wrong;
    int64_t count;
    double *value, *expected, *param, *moment, *former; /* [count] */
    double *rank[LS_DIAGNOSE_FIT_MAX];                  /* [count] each, NULL if unknown */
    bool has_moment, has_former;
    double noise, off, norm; /* |noise|, |value - expected|, |value| */
    const char *name;        /* "every gradient is", "the last 3 elements of 21 tensors are" */
    double *memory;
} chosen;

/* index NULL: all elements. At least one is chosen. */
static void choose(const ls_diagnose_wrong *wrong, const int64_t *index, int64_t count,
                   const char *name, const ls_diagnose_past *past, chosen *out)
{
    const ls_evidence *e = wrong->evidence;
    int ranks = wrong->rank_grad != NULL && e->world <= LS_DIAGNOSE_FIT_MAX ? e->world : 0;
    memset(out, 0, sizeof *out);
    out->wrong = wrong;
    out->count = count;
    out->name = name;
    out->memory = ls_list_make((size_t)(5 + ranks) * (size_t)count, sizeof(double));
    out->value = out->memory;
    out->expected = out->value + count;
    out->param = out->expected + count;
    out->moment = out->param + count;
    out->former = out->moment + count;
    for (int k = 0; k < ranks; k++) {
        out->rank[k] = out->former + (k + 1) * count;
    }
    out->has_moment = past->moment != NULL;
    out->has_former = past->grad != NULL;
    int p = 0;
    double noise2 = 0, off2 = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = index == NULL ? i : index[i];
        while (at >= e->net.param[p].offset + e->net.param[p].count) {
            p++;
        }
        out->value[i] = e->grad[at];
        out->expected[i] = wrong->expected[at];
        out->param[i] = e->param[at];
        out->moment[i] = out->has_moment ? past->moment[at] : 0;
        out->former[i] = out->has_former ? past->grad[at] : 0;
        for (int k = 0; k < ranks; k++) {
            out->rank[k][i] = wrong->rank_grad[k * e->net.elements + at];
        }
        noise2 += wrong->noise[p] * wrong->noise[p];
        off2 += (out->value[i] - out->expected[i]) * (out->value[i] - out->expected[i]);
    }
    out->noise = sqrt(noise2);
    out->off = sqrt(off2);
    out->norm = ls_diagnose_fit_norm(count, out->value);
}

/* Rounding is proportional to the rounded value: `growth` is how much larger that was. */
static bool explains(const chosen *c, double rest, double growth)
{
    return rest <= fmax(1, growth) * c->noise && rest <= better.value * c->off;
}

/* ---- sums of known gradients ----------------------------------------------------------------- */

/* Whether a norm is --clip-grad-norm's, where a dump's gradients are those before clipping. */
static bool is_clipped_to(const chosen *c, double norm, double divisor)
{
    double limit = ls_dumpfile_number(c->wrong->evidence->file[0], "clip_grad_norm", 0) / divisor;
    return limit > 0 && fabs(norm / limit - 1) <= same_factor.value;
}

/* The meaning of a factor on the gradient: a step of the recipe forgotten or done twice. */
static const char *factor_meaning(const ls_oracle_step *step, double factor)
{
    double world = ls_oracle_divisor(step), scale = step->loss_scale, micro = step->accumulate;
    const struct {
        double factor;
        const char *meaning;
    } known[] = {
        {world, "summed over ranks, not averaged"},
        {world / step->world, "divided by the number of ranks that have a batch, not of all"},
        {1 / world, "averaged over ranks twice"},
        {scale, "not unscaled"},
        {1 / scale, "unscaled twice, or the loss was not scaled"},
        {scale * world, "neither averaged nor unscaled"},
        {micro, "micro-steps summed, not averaged"},
        {1 / micro, "micro-steps averaged twice"},
        {2, "counted twice"},
        {-1, "the sign is turned"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].factor != 1 &&
            fabs(factor - known[i].factor) <= same_factor.value * fabs(known[i].factor)) {
            return known[i].meaning;
        }
    }
    return NULL;
}

static bool is_zero(const chosen *c, char *text, int bytes)
{
    if (c->norm > 0 || ls_diagnose_fit_norm(c->count, c->expected) == 0) {
        return false;
    }
    snprintf(text, (size_t)bytes, "%s zero: nothing arrived there", c->name);
    return true;
}

static bool is_factor(const chosen *c, char *text, int bytes)
{
    const double *basis[] = {c->expected};
    double factor;
    double rest = ls_diagnose_fit(c->count, c->value, 1, basis, &factor);
    if (!explains(c, rest, fabs(factor)) || c->norm == 0) {
        return false;
    }
    const ls_oracle_step *step = &c->wrong->evidence->step;
    bool scaled = step->loss_scale > 1 && is_clipped_to(c, c->norm, step->loss_scale);
    const char *meaning = scaled ? "clipped while still scaled, to the limit divided by the scale"
                          : is_clipped_to(c, c->norm, 1) ? "clipped before it was reported"
                                                         : factor_meaning(step, factor);
    double exponent =
        log2(fabs(factor)); /* one bit of the exponent: a power of two of powers of two */
    if (c->count == 1 && fabs(exponent) > 0.5 &&
        fabs(exponent - round(exponent)) <= same_factor.value) {
        meaning = "a bit of its exponent is flipped";
    }
    snprintf(text, (size_t)bytes, "%s %.*f x the expected one (residual %.0e)%s%s", c->name,
             fabs(factor) < 0.1 ? 6 : 3, factor, rest / c->norm, meaning != NULL ? ": " : "",
             meaning != NULL ? meaning : "");
    return true;
}

/* The meaning of the ranks' weights, in shares of 1 / world; a tenth of a share is rounding. */
static const char *weights_meaning(const chosen *c, int world, const double *weight)
{
    int used = 0, odd = 0, late = 0;
    bool clipped = true;
    double scale = c->wrong->evidence->step.loss_scale;
    for (int k = 0; k < world; k++) {
        double share = weight[k] * ls_oracle_divisor(&c->wrong->evidence->step);
        double own = ls_diagnose_fit_norm(c->count, c->rank[k]);
        clipped =
            clipped && (fabs(share - 1) <= same_factor.value || is_clipped_to(c, share * own, 1));
        used += fabs(share) > 0.1;
        odd += fabs(share - 1) > 0.1;
        late += scale > 2 && fabs(share / scale - 1) <= 0.1;
    }
    return odd == 0       ? NULL
           : clipped      ? "each rank's was clipped by its own norm, before the reduction"
           : used == 0    ? NULL
           : late > 0     ? "shares that came after unscaling: the reduction was not awaited"
           : used == 1    ? "it was not reduced"
           : used < world ? "a rank is missing from the reduction"
                          : "the ranks have unequal weights";
}

static bool is_of_ranks(const chosen *c, char *text, int bytes)
{
    int world = c->wrong->evidence->world;
    if (c->rank[0] == NULL || world < 2 || c->count < world) {
        return false;
    }
    double weight[LS_DIAGNOSE_FIT_MAX], sum_weight = 0, most = 0;
    double rest =
        ls_diagnose_fit(c->count, c->value, world, (const double *const *)c->rank, weight);
    for (int k = 0; k < world; k++) {
        sum_weight += fabs(weight[k]);
        most = fmax(most, fabs(weight[k]));
    }
    const char *meaning = explains(c, rest, sum_weight) ? weights_meaning(c, world, weight) : NULL;
    if (meaning == NULL) {
        return false;
    }
    char sum[200] = "";
    for (int k = 0; k < world; k++) {
        if (fabs(weight[k]) > 0.1 * fmin(1.0 / world, most)) {
            ls_text_add(sum, sizeof sum, "%s%.*f x rank %d's", sum[0] != '\0' ? " + " : "",
                        most < 0.1 ? 6 : 3, weight[k], k);
        }
    }
    snprintf(text, (size_t)bytes, "%s %s (residual %.0e): %s", c->name, sum, rest / c->norm,
             meaning);
    return true;
}

/* The value nearest to one element that a reduction concurrent with backward can leave: the shares
 * of some ranks, none, or one rank's own gradient. The sum of all shares is the right one. */
static double nearest_part(const chosen *c, int64_t i, int world)
{
    double least = fabs(c->value[i]), divisor = ls_oracle_divisor(&c->wrong->evidence->step);
    for (int set = 1; set < (1 << world) - 1; set++) {
        double sum = 0;
        for (int k = 0; k < world; k++) {
            sum += (set >> k & 1) != 0 ? c->rank[k][i] : 0;
        }
        least = fmin(least, fabs(c->value[i] - sum / divisor));
    }
    for (int k = 0; k < world; k++) {
        least = fmin(least, fabs(c->value[i] - c->rank[k][i]));
    }
    return least;
}

static const ls_tol nearest =
    LS_TOL(0.05, "the nearest of the 18 parts of four ranks leaves a tenth of a random error");

/* Whether each element is some other sum, as a race leaves it. */
static bool is_of_some_ranks(const chosen *c, char *text, int bytes)
{
    enum { RANKS_MAX = 4, COUNT_MIN = 64 };
    int world = c->wrong->evidence->world;
    if (c->rank[0] == NULL || world < 2 || world > RANKS_MAX || c->count < COUNT_MIN) {
        return false;
    }
    double rest2 = 0;
    for (int64_t i = 0; i < c->count; i++) {
        double part = nearest_part(c, i, world);
        rest2 += part * part;
    }
    if (!explains(c, sqrt(rest2), 1) || sqrt(rest2) > nearest.value * c->off) {
        return false;
    }
    snprintf(text, (size_t)bytes,
             "%s made of some ranks' shares, not everywhere the same ones (residual %.0e): the "
             "reduction ran before every gradient was there, or was not awaited",
             c->name, sqrt(rest2) / c->norm);
    return true;
}

/* value = expected + weight * other, for a term that does not belong there. */
static bool is_with(const chosen *c, const double *other, const char *what, char *text, int bytes)
{
    const double *basis[] = {c->expected, other};
    double weight[2];
    double rest = ls_diagnose_fit(c->count, c->value, 2, basis, weight);
    if (!explains(c, rest, fabs(weight[0])) || c->count < 16) {
        return false;
    }
    snprintf(text, (size_t)bytes, "%s %.3f x the expected one + %.3g x %s (residual %.0e)", c->name,
             weight[0], weight[1], what, rest / c->norm);
    return true;
}

/* Whether each element is the expected one within --clip-grad-value, where a dump's gradients are
 * those before clipping: within the value, or within it divided by the loss scale. */
static bool is_limited(const chosen *c, char *text, int bytes)
{
    const ls_evidence *e = c->wrong->evidence;
    double value = ls_dumpfile_number(e->file[0], "clip_grad_value", 0);
    double divisor[] = {e->step.loss_scale, 1};
    for (int k = e->step.loss_scale > 1 ? 0 : 1; k < 2 && value > 0; k++) {
        double limit = value / divisor[k], rest2 = 0;
        for (int64_t i = 0; i < c->count; i++) {
            double off = c->value[i] - fmax(-limit, fmin(c->expected[i], limit));
            rest2 += off * off;
        }
        if (explains(c, sqrt(rest2), 1)) {
            snprintf(text, (size_t)bytes, "%s limited to %.2g: %s", c->name, limit,
                     k == 0 ? "clipped while still scaled, to the value divided by the scale"
                            : "clipped before it was reported");
            return true;
        }
    }
    return false;
}

static bool try_sums(const chosen *c, char *text, int bytes)
{
    return is_zero(c, text, bytes) || is_limited(c, text, bytes) || is_factor(c, text, bytes) ||
           is_of_ranks(c, text, bytes) || is_of_some_ranks(c, text, bytes) ||
           (c->has_former &&
            is_with(c, c->former, "the step before's: it was not cleared", text, bytes)) ||
           (c->has_moment &&
            is_with(c, c->moment, "the momentum buffer: an earlier gradient was not cleared", text,
                    bytes)) ||
           is_with(c, c->param, "the weights: weight decay is in the gradient already", text,
                   bytes);
}

/* ---- fewer bits ------------------------------------------------------------------------------ */

/* The error of a step done at `level` in `half`. */
static ls_status cost_of(const ls_diagnose_wrong *wrong, int level, ls_bits_type half, double *out)
{
    ls_oracle_step step = wrong->evidence->step;
    ls_ideal_error_span whole = {0, wrong->evidence->net.elements};
    ls_ideal_error_cost cost;
    step.level = level;
    step.half = half;
    step.loss_scale = level == 0 ? 1 : step.loss_scale;
    LS_TRY(ls_ideal_error_measure(&step, &whole, 1, NULL, &cost));
    *out = sqrt(cost.whole_error2 / cost.whole_grad2);
    ls_ideal_error_cost_free(&cost);
    return LS_OK;
}

static ls_status try_precision(const ls_diagnose_wrong *wrong, char *text, int bytes)
{
    static const struct {
        ls_bits_type half;
        const char *name;
    } type[] = {{LS_BITS_F16, "10 bits (fp16, TF32)"}, {LS_BITS_BF16, "7 bits (bf16)"}};
    const ls_oracle_step *step = &wrong->evidence->step;
    for (int i = 0; i < 2 && text[0] == '\0' && wrong->branches != NULL; i++) {
        if (step->level > 0 && (step->half == type[i].half || type[i].half == LS_BITS_F16)) {
            continue;
        }
        double cost;
        LS_TRY(cost_of(wrong, step->level > 0 ? step->level : 1, type[i].half, &cost));
        double ratio = wrong->error / cost;
        if (ratio > 1 / alike.value && ratio < alike.value) {
            snprintf(text, (size_t)bytes,
                     "the gradient errs as a step with %s would (%.0e against %.0e): something "
                     "computes with fewer bits than the level says",
                     type[i].name, wrong->error, cost);
        }
    }
    return LS_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void try_elements(const ls_diagnose_wrong *wrong, const ls_diagnose_place *place,
                         const ls_diagnose_past *past, char *text, int bytes)
{
    chosen c;
    bool many = strncmp(place->text, "the ", 4) == 0 || !place->pattern;
    LS_TEXT(name, 192, "%s %s", place->text, many ? "are" : "is");
    choose(wrong, place->index, place->count, name, past, &c);
    /* sums that fit most elements have been tried on all of them */
    if (!(place->most ? is_of_some_ranks(&c, text, bytes) : try_sums(&c, text, bytes))) {
        text[0] = '\0';
    }
    free(c.memory);
}

static ls_status diagnose(const ls_diagnose_wrong *wrong, const ls_diagnose_place *place,
                          const ls_diagnose_past *past, char *text, int bytes)
{
    chosen whole;
    choose(wrong, NULL, wrong->evidence->net.elements, "every gradient is", past, &whole);
    /* if few elements are wrong the whole fits "1.000 x the expected", which is no information */
    if (!place->most || !try_sums(&whole, text, bytes)) {
        text[0] = '\0';
    }
    free(whole.memory);
    if (text[0] == '\0' && place->count > 0) {
        try_elements(wrong, place, past, text, bytes);
    }
    if (text[0] == '\0') {
        LS_TRY(ls_diagnose_models(wrong, past, text, bytes));
    }
    if (text[0] == '\0' && place->pattern && !place->most) {
        snprintf(text, (size_t)bytes, "wrong: %s", place->text);
        return LS_OK;
    }
    if (text[0] == '\0') {
        LS_TRY(try_precision(wrong, text, bytes));
    }
    return LS_OK;
}

ls_status ls_diagnose_gradient(const ls_diagnose_wrong *wrong, char *text, int text_bytes)
{
    text[0] = '\0';
    ls_diagnose_past past;
    ls_diagnose_place place;
    ls_diagnose_past_read(wrong->evidence, &past);
    ls_diagnose_place_find(wrong, &place);
    ls_status status = diagnose(wrong, &place, &past, text, text_bytes);
    ls_diagnose_place_free(&place);
    ls_diagnose_past_free(&past);
    return status;
}
