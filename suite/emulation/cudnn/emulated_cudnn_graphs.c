/* Graphs of more than one operation, as far as they are emulated: what cuDNN documents about their
 * parts and how these fit together. */
#include "emulated_cudnn.h"

static emulated_tensor tensor_of(const emulated_descriptor *d, cudnnBackendAttributeName_t name)
{
    return emulated_cudnn_tensor(((emulated_descriptor **)emulated_cudnn_find(d, name)->values)[0]);
}

static bool all_tensors(const emulated_descriptor *d)
{
    bool all = true;
    for (int i = 0; i < d->attribute_count; i++) {
        const emulated_attribute *a = &d->attribute[i];
        for (int64_t j = 0; a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && j < a->count; j++) {
            all = all &&
                  ((emulated_descriptor **)a->values)[j]->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR;
        }
    }
    return all;
}

/* One value per channel of `of`. */
static bool per_channel(const emulated_tensor *t, const emulated_tensor *of)
{
    return t->type == CUDNN_DATA_FLOAT && t->images == 1 && t->channels == of->channels &&
           t->height == 1 && t->width == 1;
}

cudnnStatus_t emulated_graphs_finalize_sums(emulated_descriptor *d)
{
    if (!all_tensors(d)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "of statistics");
    }
    if (emulated_cudnn_number(d, CUDNN_ATTR_OPERATION_GENSTATS_MODE) != CUDNN_GENSTATS_SUM_SQSUM ||
        emulated_cudnn_number(d, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC) != CUDNN_DATA_FLOAT) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "statistics of another kind");
    }
    d->problem.y = tensor_of(d, CUDNN_ATTR_OPERATION_GENSTATS_XDESC);
    d->problem.fusion = EMULATED_SUMS;
    d->problem.extra_count = 2;
    d->problem.extra[0] = tensor_of(d, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC);
    d->problem.extra[1] = tensor_of(d, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC);
    if (!per_channel(&d->problem.extra[0], &d->problem.y) ||
        !per_channel(&d->problem.extra[1], &d->problem.y)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                                    "sums are f32, one per channel");
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool ids_differ(const emulated_problem *p)
{
    int64_t id[3 + EMULATED_EXTRAS] = {p->x.id, p->w.id, p->y.id};
    int count = 3;
    bool differ = true;
    for (int i = 0; i < p->extra_count; i++) {
        id[count++] = p->extra[i].id;
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            differ = differ && id[i] != id[j];
        }
    }
    return differ;
}

cudnnStatus_t emulated_graphs_join(const emulated_problem *convolution,
                                   const emulated_descriptor *operation, emulated_problem *out)
{
    const emulated_problem *other = &operation->problem;
    if (operation->type != CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR || convolution->pass != 0 ||
        convolution->beta != 0) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                    "statistics of a forward convolution's result only");
    }
    if (other->y.id != convolution->y.id) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "statistics of another tensor");
    }
    emulated_problem joined = *convolution;
    joined.fusion = other->fusion;
    joined.extra_count = other->extra_count;
    for (int i = 0; i < other->extra_count; i++) {
        joined.extra[i] = other->extra[i];
    }
    if (!ids_differ(&joined)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                                    "tensors share an id");
    }
    *out = joined;
    return CUDNN_STATUS_SUCCESS;
}
