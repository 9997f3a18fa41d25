#include "compare.h"

#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/sort.h"

enum { BLOCK = 64, EDGE = 8 };

static void add(ls_compare_spans *spans, int param, ls_compare_spans_kind kind, int64_t from,
                int64_t count)
{
    if (spans->span != NULL) {
        spans->span[spans->count] = (ls_ideal_error_span){from, count};
        spans->param[spans->count] = param;
        spans->kind[spans->count] = kind;
    }
    spans->count++;
}

/* A last block that would be short starts earlier instead. A tensor too small for two edges has
 * none. */
static void add_tensor(ls_compare_spans *spans, const ls_nettab *net, int param)
{
    int64_t offset = net->param[param].offset, count = net->param[param].count;
    add(spans, param, LS_COMPARE_SPANS_TENSOR, offset, count);
    for (int64_t at = 0; at < count && count >= 2 * BLOCK; at += BLOCK) {
        int64_t from = at + BLOCK <= count ? at : count - BLOCK;
        add(spans, param, LS_COMPARE_SPANS_BLOCK, offset + from, BLOCK);
    }
    if (count >= 2 * EDGE) {
        add(spans, param, LS_COMPARE_SPANS_EDGE, offset, EDGE);
        add(spans, param, LS_COMPARE_SPANS_EDGE, offset + count - EDGE, EDGE);
    }
}

static void add_all(ls_compare_spans *spans, const ls_nettab *net)
{
    int order[LS_NETTAB_PARAMS_MAX];
    ls_evidence_backward_order(net, order);
    spans->count = 0;
    for (int i = 0; i < net->param_count; i++) {
        add_tensor(spans, net, order[i]);
    }
}

void ls_compare_spans_build(const ls_nettab *net, ls_compare_spans *out)
{
    ls_compare_spans spans = {0};
    add_all(&spans, net);
    size_t count = (size_t)spans.count;
    spans.span = ls_list_make(count, sizeof *spans.span);
    spans.param = ls_list_make(count, sizeof *spans.param);
    spans.kind = ls_list_make(count, sizeof *spans.kind);
    spans.error = ls_list_make(count, sizeof *spans.error);
    spans.ideal = ls_list_make(count, sizeof *spans.ideal);
    spans.scale = ls_list_make(count, sizeof *spans.scale);
    add_all(&spans, net);
    *out = spans;
}

void ls_compare_spans_free(ls_compare_spans *spans)
{
    free(spans->span);
    free(spans->param);
    free(spans->kind);
    free(spans->error);
    free(spans->ideal);
    free(spans->scale);
    memset(spans, 0, sizeof *spans);
}

double ls_compare_spans_scale(double grad2, double whole_grad2, int64_t count, int64_t all)
{
    double floor = 1e-3 * sqrt(whole_grad2) * sqrt((double)count / (double)all);
    return fmax(sqrt(grad2), floor);
}

static double median_of(int64_t count, double *value)
{
    ls_sort_doubles(value, count);
    return count > 0 ? value[count / 2] : 0;
}

/* r of a tensor's blocks and edges is at least the median of its blocks (of its edges if it has no
 * blocks), and at least the median block's rounding, for as many elements, relative to the part's
 * own scale: a part that the ideal happens to hit exactly, or whose gradient happens to be small,
 * must not be the bound. */
static void raise_to_median(ls_compare_spans *spans, int64_t from, int64_t to, const double *noise,
                            double *scratch)
{
    ls_compare_spans_kind kind = LS_COMPARE_SPANS_EDGE;
    double *per_element = scratch + spans->count;
    int64_t count = 0;
    for (int64_t i = from; i < to; i++) {
        kind = spans->kind[i] == LS_COMPARE_SPANS_BLOCK ? LS_COMPARE_SPANS_BLOCK : kind;
    }
    for (int64_t i = from; i < to; i++) {
        if (spans->kind[i] == kind) {
            per_element[count] = noise[i] / sqrt((double)spans->span[i].count);
            scratch[count++] = spans->ideal[i];
        }
    }
    double median = median_of(count, scratch), usual_rounding = median_of(count, per_element);
    for (int64_t i = from; i < to; i++) {
        if (spans->kind[i] != LS_COMPARE_SPANS_TENSOR) {
            double usual = usual_rounding * sqrt((double)spans->span[i].count) / spans->scale[i];
            spans->ideal[i] = fmax(fmax(spans->ideal[i], median), usual);
        }
    }
}

void ls_compare_spans_measure(const ls_nettab *net, const double *grad, const double *g64,
                              const ls_ideal_error_cost *cost, ls_compare_spans *spans)
{
    ls_ideal_error_span whole = {0, net->elements};
    double whole_grad2 = ls_ideal_error_square(g64, whole);
    double *scratch = ls_list_make(3 * (size_t)spans->count, sizeof *scratch);
    double *noise = scratch + 2 * spans->count;
    for (int64_t i = 0; i < spans->count; i++) {
        ls_ideal_error_span span = spans->span[i];
        double scale = ls_compare_spans_scale(ls_ideal_error_square(g64, span), whole_grad2,
                                              span.count, net->elements);
        double own_scale =
            ls_compare_spans_scale(cost->grad2[i], cost->whole_grad2, span.count, net->elements);
        spans->error[i] = sqrt(ls_ideal_error_squared(grad, g64, span)) / scale;
        noise[i] = sqrt(cost->error2[i]);
        spans->ideal[i] = noise[i] / own_scale;
        spans->scale[i] = scale;
    }
    for (int64_t from = 0, to; from < spans->count; from = to) {
        for (to = from + 1; to < spans->count && spans->kind[to] != LS_COMPARE_SPANS_TENSOR; to++) {
        }
        raise_to_median(spans, from, to, noise, scratch);
    }
    free(scratch);
}

void ls_compare_spans_ideal_error(const ls_nettab *net, const ls_ideal_error_cost *cost,
                                  const ls_compare_spans *spans,
                                  double ideal_error[LS_COMPARE_PARTS])
{
    memset(ideal_error, 0, LS_COMPARE_PARTS * sizeof *ideal_error);
    ideal_error[LS_COMPARE_WHOLE] = sqrt(cost->whole_error2 / cost->whole_grad2);
    double tensor2 = 0;
    int64_t elements = 1;
    for (int64_t i = 0; i < spans->count; i++) {
        int64_t count = spans->span[i].count;
        double scale =
            ls_compare_spans_scale(cost->grad2[i], cost->whole_grad2, count, net->elements);
        ls_compare_part part = count >= 64 ? LS_COMPARE_TENSOR : LS_COMPARE_SMALL;
        if (spans->kind[i] == LS_COMPARE_SPANS_TENSOR) {
            tensor2 = scale * scale;
            elements = count;
        } else {
            part = spans->kind[i] == LS_COMPARE_SPANS_BLOCK ? LS_COMPARE_BLOCK : LS_COMPARE_EDGE;
            scale = fmax(scale, sqrt(tensor2 * (double)count / (double)elements));
        }
        ideal_error[part] = fmax(ideal_error[part], sqrt(cost->error2[i]) / scale);
    }
}
