#include "compare_spans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/core/log.h"
#include "../reference/oracle/evidence.h"

enum { BLOCK = 64, EDGE = 8 };

static void add(ls_compare_spans *spans, int param, ls_compare_spans_kind kind, int64_t from,
                int64_t count)
{
    if (spans->span != NULL) {
        spans->span[spans->count] = (ls_price_span){from, count};
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

ls_status ls_compare_spans_build(const ls_nettab *net, ls_compare_spans *out)
{
    ls_compare_spans spans = {0};
    add_all(&spans, net);
    size_t count = (size_t)spans.count;
    spans.span = calloc(count, sizeof *spans.span);
    spans.param = calloc(count, sizeof *spans.param);
    spans.kind = calloc(count, sizeof *spans.kind);
    spans.error = calloc(count, sizeof *spans.error);
    spans.ideal = calloc(count, sizeof *spans.ideal);
    if (spans.span == NULL || spans.param == NULL || spans.kind == NULL || spans.error == NULL ||
        spans.ideal == NULL) {
        ls_log_error("cannot allocate %zu parts of a gradient", count);
        ls_compare_spans_free(&spans);
        return LS_ERR_INFRA;
    }
    add_all(&spans, net);
    *out = spans;
    return LS_OK;
}

void ls_compare_spans_free(ls_compare_spans *spans)
{
    free(spans->span);
    free(spans->param);
    free(spans->kind);
    free(spans->error);
    free(spans->ideal);
    memset(spans, 0, sizeof *spans);
}

double ls_compare_spans_scale(double grad2, double whole_grad2, int64_t count, int64_t all)
{
    double floor = 1e-3 * sqrt(whole_grad2) * sqrt((double)count / (double)all);
    return fmax(sqrt(grad2), floor);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* r of a tensor's blocks and edges is at least the median of its blocks (of its edges, where it has
 * no blocks): one part that the ideal happened to hit well must not be a bound. */
static void raise_to_median(ls_compare_spans *spans, int64_t from, int64_t to, double *scratch)
{
    int64_t count = 0;
    ls_compare_spans_kind kind = LS_COMPARE_SPANS_BLOCK;
    for (int pass = 0; pass < 2 && count == 0; pass++) {
        for (int64_t i = from; i < to; i++) {
            if (spans->kind[i] == kind) {
                scratch[count++] = spans->ideal[i];
            }
        }
        kind = LS_COMPARE_SPANS_EDGE;
    }
    if (count == 0) {
        return;
    }
    qsort(scratch, (size_t)count, sizeof *scratch, by_value);
    double median = scratch[count / 2];
    for (int64_t i = from; i < to; i++) {
        if (spans->kind[i] != LS_COMPARE_SPANS_TENSOR) {
            spans->ideal[i] = fmax(spans->ideal[i], median);
        }
    }
}

ls_status ls_compare_spans_measure(const ls_nettab *net, const double *grad, const double *g64,
                                   const ls_price_cost *cost, ls_compare_spans *spans)
{
    ls_price_span whole = {0, net->elements};
    double whole_grad2 = ls_price_square(g64, whole);
    double *scratch = malloc((size_t)spans->count * sizeof *scratch);
    if (scratch == NULL) {
        ls_log_error("cannot allocate %lld blocks", (long long)spans->count);
        return LS_ERR_INFRA;
    }
    for (int64_t i = 0; i < spans->count; i++) {
        ls_price_span span = spans->span[i];
        double scale = ls_compare_spans_scale(ls_price_square(g64, span), whole_grad2, span.count,
                                              net->elements);
        double own_scale =
            ls_compare_spans_scale(cost->grad2[i], cost->whole_grad2, span.count, net->elements);
        spans->error[i] = sqrt(ls_price_error2(grad, g64, span)) / scale;
        spans->ideal[i] = sqrt(cost->error2[i]) / own_scale;
    }
    for (int64_t from = 0, to; from < spans->count; from = to) {
        for (to = from + 1; to < spans->count && spans->kind[to] != LS_COMPARE_SPANS_TENSOR; to++) {
        }
        raise_to_median(spans, from, to, scratch);
    }
    free(scratch);
    return LS_OK;
}
