#include "diagnose.h"

#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/list.h"

/* A tail or head is a vector's remainder or a bucket's edge: shorter than this. */
enum { EDGE_MAX = 64 };

/* The pattern of the wrong elements of one tensor. */
typedef struct shape {
    int64_t wrong, first, last; /* local indices */
} shape;

static bool is_bias(const ls_nettab *net, int param)
{
    const char *dot = strrchr(net->param[param].name, '.');
    return dot != NULL && strcmp(dot, ".bias") == 0;
}

static bool name_edges(const ls_nettab *net, const shape *shapes, ls_diagnose_place *out)
{
    int64_t tail = 0, head = 0;
    bool short_part = true;
    for (int p = 0; p < net->param_count; p++) {
        if (shapes[p].wrong > 0) {
            int64_t from_end = net->param[p].count - shapes[p].first;
            tail = from_end > tail ? from_end : tail;
            head = shapes[p].last + 1 > head ? shapes[p].last + 1 : head;
            short_part = short_part && shapes[p].wrong * 2 <= net->param[p].count;
        }
    }
    if (!short_part || (tail > EDGE_MAX && head > EDGE_MAX)) {
        return false;
    }
    bool at_end = tail <= head;
    int64_t length = at_end ? tail : head;
    ls_text_put(out->text, sizeof out->text, "the %s %lld element%s of %d tensor%s",
                at_end ? "last" : "first", (long long)length, length == 1 ? "" : "s", out->tensors,
                out->tensors == 1 ? "" : "s");
    return true;
}

static bool name_one(const ls_nettab *net, const shape *shapes, ls_diagnose_place *out)
{
    for (int p = 0; p < net->param_count && out->tensors == 1; p++) {
        const shape *s = &shapes[p];
        if (s->wrong == 0) {
            continue;
        }
        if (s->wrong == 1) {
            ls_text_put(out->text, sizeof out->text, "%s[%lld] alone", net->param[p].name,
                        (long long)s->first);
        } else if (s->wrong * 2 > net->param[p].count) {
            ls_text_put(out->text, sizeof out->text, "%s alone", net->param[p].name);
        } else {
            ls_text_put(out->text, sizeof out->text, "%s[%lld..%lld] alone", net->param[p].name,
                        (long long)s->first, (long long)s->last);
        }
        return true;
    }
    return false;
}

/* "batch-norm weights": a kind to which every wrong tensor belongs and of which most are wrong. */
static bool name_kind(const ls_nettab *net, const shape *shapes, ls_diagnose_place *out)
{
    static const char *const name[] = {"the batch-norm weights",
                                       "the batch-norm biases",
                                       "the convolution and linear weights",
                                       "the last bias",
                                       "the batch-norm weights and biases",
                                       "the biases"};
    int all[6] = {0}, wrong[6] = {0};
    for (int p = 0; p < net->param_count; p++) {
        bool norm = net->node[net->param[p].node].kind == LS_NETTAB_NORM;
        bool bias = is_bias(net, p), bad = shapes[p].wrong > 0;
        const bool member[6] = {norm && !bias, norm && bias, !norm && !bias,
                                !norm && bias, norm,         bias};
        for (int k = 0; k < 6; k++) {
            all[k] += member[k];
            wrong[k] += member[k] && bad;
        }
    }
    for (int k = 0; k < 6; k++) {
        if (wrong[k] == out->tensors && 4 * wrong[k] >= 3 * all[k]) {
            ls_text_put(out->text, sizeof out->text, "%s alone (%d of %d)", name[k], wrong[k],
                        all[k]);
            return true;
        }
    }
    return false;
}

/* From one tensor on, everything that backward reaches later: a propagated error. */
static bool name_chain(const ls_nettab *net, const shape *shapes, ls_diagnose_place *out)
{
    int order[LS_NETTAB_PARAMS_MAX], first = -1, behind = 0, hit = 0;
    ls_evidence_backward_order(net, order);
    for (int i = 0; i < net->param_count; i++) {
        bool bad = shapes[order[i]].wrong > 0;
        first = first < 0 && bad ? i : first;
        behind += first >= 0;
        hit += bad;
    }
    if (first <= 0 || behind < 4 || 4 * hit < 3 * behind) {
        return false;
    }
    ls_text_put(out->text, sizeof out->text,
                "%s and what backward reaches after it (%d of %d tensors)",
                net->param[order[first]].name, hit, net->param_count);
    return true;
}

static void name_place(const ls_nettab *net, const shape *shapes, ls_diagnose_place *out)
{
    if (out->count == 0) {
        return;
    }
    out->pattern = name_one(net, shapes, out) || name_edges(net, shapes, out) ||
                   name_kind(net, shapes, out) || name_chain(net, shapes, out);
    if (!out->pattern) {
        ls_text_put(out->text, sizeof out->text, "%lld elements of %d tensors",
                    (long long)out->count, out->tensors);
    }
}

void ls_diagnose_place_find(const ls_diagnose_wrong *wrong, ls_diagnose_place *out)
{
    const ls_nettab *net = &wrong->evidence->net;
    memset(out, 0, sizeof *out);
    out->index = ls_list_make((size_t)net->elements, sizeof *out->index);
    shape *shapes = ls_list_make((size_t)net->param_count, sizeof *shapes);
    for (int p = 0; p < net->param_count; p++) {
        const ls_nettab_param *param = &net->param[p];
        for (int64_t i = 0; i < param->count; i++) {
            int64_t at = param->offset + i;
            double off = fabs(wrong->evidence->grad[at] - wrong->expected[at]);
            if (off <= 4 * wrong->noise[p]) {
                continue;
            }
            shapes[p].first = shapes[p].wrong == 0 ? i : shapes[p].first;
            shapes[p].last = i;
            shapes[p].wrong++;
            out->index[out->count++] = at;
        }
        out->tensors += shapes[p].wrong > 0;
    }
    out->most = 2 * out->count > net->elements;
    name_place(net, shapes, out);
    free(shapes);
}

void ls_diagnose_place_free(ls_diagnose_place *place)
{
    free(place->index);
    memset(place, 0, sizeof *place);
}
