#include "compare_cause.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "suite.h"

enum { RANKS_MAX = 8 };

static const ls_tol same_factor =
    LS_TOL(1e-2, "the factors stand farther apart, and the rounding of halves moves less");

/* What multiplies a gradient when one step of the recipe is forgotten or done twice. */
static const char *factor_meaning(const ls_oracle_step *step, double factor)
{
    double world = step->world, scale = step->loss_scale, micro = step->accumulate;
    const struct {
        double factor;
        const char *meaning;
    } known[] = {
        {world, "summed over ranks, not averaged"},
        {1 / world, "averaged over ranks twice"},
        {scale, "not unscaled"},
        {1 / scale, "unscaled twice"},
        {scale * world, "neither averaged nor unscaled"},
        {micro, "micro-steps summed, not averaged"},
        {1 / micro, "micro-steps averaged twice"},
        {0, "it is zero"},
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

static bool find_zeros(const ls_evidence *evidence, const double *g64, ls_price_span span,
                       const char *part, char *text, int text_bytes)
{
    int64_t zeros = 0, run = 0, longest = 0, end = 0;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        run = evidence->grad[i] == 0 && g64[i] != 0 ? run + 1 : 0;
        zeros += run > 0;
        if (run > longest) {
            longest = run;
            end = i;
        }
    }
    /* eight zeros in a row do not happen by rounding where FP64 has none */
    if (longest < 8 || zeros < 8) {
        return false;
    }
    snprintf(text, (size_t)text_bytes,
             "%s: %lld elements are zero, %lld of them in a row up to element %lld", part,
             (long long)zeros, (long long)longest, (long long)(end - span.from));
    return true;
}

static bool find_factor(const ls_evidence *evidence, const double *g64, ls_price_span span,
                        const char *part, double residual, char *text, int text_bytes)
{
    double dot = 0, g2 = 0, rest2 = 0;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        dot += evidence->grad[i] * g64[i];
        g2 += g64[i] * g64[i];
    }
    double factor = dot / g2;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        double difference = evidence->grad[i] - factor * g64[i];
        rest2 += difference * difference;
    }
    double rest = sqrt(rest2 / g2) / fabs(factor);
    /* a factor closer to 1 than twice the residual explains nothing */
    if (!(rest <= residual) || fabs(factor - 1) <= 2 * residual) {
        return false;
    }
    const char *meaning = factor_meaning(&evidence->step, factor);
    snprintf(text, (size_t)text_bytes, "%s is %.*f x the expected one (residual %.0e)%s%s", part,
             fabs(factor) < 0.1 ? 6 : 3, factor, rest, meaning != NULL ? ": " : "",
             meaning != NULL ? meaning : "");
    return true;
}

/* Solves matrix * x = right by elimination with the largest pivot; false when it is singular. */
static bool solve(int size, double matrix[RANKS_MAX][RANKS_MAX], double *right)
{
    for (int k = 0; k < size; k++) {
        int pivot = k;
        for (int i = k + 1; i < size; i++) {
            pivot = fabs(matrix[i][k]) > fabs(matrix[pivot][k]) ? i : pivot;
        }
        if (matrix[pivot][k] == 0) {
            return false;
        }
        for (int j = 0; j < size; j++) {
            double swap = matrix[k][j];
            matrix[k][j] = matrix[pivot][j];
            matrix[pivot][j] = swap;
        }
        double swap = right[k];
        right[k] = right[pivot];
        right[pivot] = swap;
        for (int i = 0; i < size; i++) {
            double factor = i == k ? 0 : matrix[i][k] / matrix[k][k];
            for (int j = k; j < size; j++) {
                matrix[i][j] -= factor * matrix[k][j];
            }
            right[i] -= factor * right[k];
        }
    }
    for (int k = 0; k < size; k++) {
        right[k] /= matrix[k][k];
    }
    return true;
}

/* Least squares: gradient = sum of weight[rank] * rank's gradient; returns the residual. */
static double fit_ranks(const ls_evidence *evidence, const float *rank_grad, ls_price_span span,
                        double *weight)
{
    int world = evidence->world;
    double matrix[RANKS_MAX][RANKS_MAX] = {{0}}, norm2 = 0, rest2 = 0;
    memset(weight, 0, RANKS_MAX * sizeof *weight);
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        for (int a = 0; a < world; a++) {
            double x = rank_grad[a * evidence->net.elements + i];
            weight[a] += x * evidence->grad[i];
            for (int b = 0; b < world; b++) {
                matrix[a][b] += x * rank_grad[b * evidence->net.elements + i];
            }
        }
    }
    if (!solve(world, matrix, weight)) {
        return INFINITY;
    }
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        double rest = evidence->grad[i];
        norm2 += rest * rest;
        for (int a = 0; a < world; a++) {
            rest -= weight[a] * rank_grad[a * evidence->net.elements + i];
        }
        rest2 += rest * rest;
    }
    return norm2 > 0 ? sqrt(rest2 / norm2) : INFINITY;
}

static bool find_ranks(const ls_evidence *evidence, const float *rank_grad, ls_price_span span,
                       const char *part, double residual, char *text, int text_bytes)
{
    int world = evidence->world, used = 0, odd = 0;
    if (rank_grad == NULL || world < 2 || world > RANKS_MAX) {
        return false;
    }
    double weight[RANKS_MAX];
    double rest = fit_ranks(evidence, rank_grad, span, weight);
    /* a weight is known to about the residual; a rank counts as missing below a tenth of its share
     */
    for (int a = 0; a < world; a++) {
        used += fabs(weight[a]) > 0.1 / world;
        odd += fabs(weight[a] * world - 1) > 0.1;
    }
    if (!(rest <= residual) || odd == 0) {
        return false;
    }
    char sum[200];
    int length = 0;
    for (int a = 0; a < world && length < (int)sizeof sum - 24; a++) {
        if (fabs(weight[a]) > 0.1 / world) {
            length += snprintf(sum + length, sizeof sum - (size_t)length, "%s%.3f x rank %d's",
                               length > 0 ? " + " : "", weight[a], a);
        }
    }
    snprintf(text, (size_t)text_bytes, "%s is %s (residual %.0e)%s", part,
             used == 0 ? "nobody's" : sum, rest,
             used == 1      ? ": it was not reduced"
             : used < world ? ": a rank is missing from the reduction"
                            : ": the ranks have unequal weights");
    return true;
}

bool ls_compare_cause_find(const ls_evidence *evidence, const double *g64, const float *rank_grad,
                           ls_price_span span, const char *part, double residual, char *text,
                           int text_bytes)
{
    text[0] = '\0';
    return find_factor(evidence, g64, span, part, residual, text, text_bytes) ||
           find_ranks(evidence, rank_grad, span, part, residual, text, text_bytes) ||
           find_zeros(evidence, g64, span, part, text, text_bytes);
}
