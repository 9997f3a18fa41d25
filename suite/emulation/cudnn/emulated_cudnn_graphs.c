/* Graphs of more than one operation, as far as they are emulated: what cuDNN documents about their
 * parts and how these fit together. */
#include <string.h>

#include "emulated_cudnn.h"

/* Zeros where the operation lacks it. */
static emulated_tensor tensor_of(const emulated_descriptor *d, cudnnBackendAttributeName_t name)
{
    if (!emulated_cudnn_find(d, name)) {
        return (emulated_tensor){0};
    }
    return emulated_cudnn_tensor(((emulated_descriptor **)emulated_cudnn_find(d, name)->values)[0]);
}

static bool all_tensors(const emulated_descriptor *d)
{
    bool all = true;
    for (int i = 0; i < d->attribute_count; i++) {
        const emulated_attribute *a = &d->attribute[i];
        for (int64_t j = 0; a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && j < a->count; j++) {
            all = all &&
                  (a->name == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR ||
                   ((emulated_descriptor **)a->values)[j]->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR);
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

/* ---- pointwise operations, and the sums of a batch norm's gradient ----------------------------
 */

static int64_t mode_of(const emulated_descriptor *pointwise)
{
    const emulated_attribute *a =
        emulated_cudnn_find(pointwise, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    return emulated_cudnn_number(((emulated_descriptor **)a->values)[0], CUDNN_ATTR_POINTWISE_MODE);
}

cudnnStatus_t emulated_graphs_finalize_pointwise(emulated_descriptor *d)
{
    const emulated_descriptor *how = ((emulated_descriptor **)emulated_cudnn_find(
                                          d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                                          ->values)[0];
    if (!all_tensors(d) || how->type != CUDNN_BACKEND_POINTWISE_DESCRIPTOR) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                                    "of a pointwise operation");
    }
    bool backward = mode_of(d) == CUDNN_POINTWISE_RELU_BWD;
    bool alone = mode_of(d) == CUDNN_POINTWISE_RELU_FWD;
    bool result = emulated_cudnn_find(d, backward ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC
                                                  : CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    bool second = emulated_cudnn_find(d, backward ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
                                                  : CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    if (!result || second == alone) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "too few or many operands of mode %d",
                                    (int)mode_of(d));
    }
    return CUDNN_STATUS_SUCCESS;
}

static const struct {
    emulated_gate gate;
    cudnnBackendAttributeName_t name;
} norm_tensors[] = {
    {GATE_X, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC},
    {GATE_GRADIENT, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC},
    {GATE_MEAN, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC},
    {GATE_INV_STD, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC},
    {GATE_SCALE, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC},
    {GATE_SCALE_GRADIENT, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC},
    {GATE_BIAS_GRADIENT, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC},
    {GATE_DY_FACTOR, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC},
    {GATE_X_FACTOR, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC},
    {GATE_OFFSET, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS},
};

cudnnStatus_t emulated_graphs_finalize_norm_sums(emulated_descriptor *d)
{
    if (!all_tensors(d)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                                    "of a batch norm's sums");
    }
    d->problem.fusion = EMULATED_GATE;
    d->problem.extra_count = GATE_TENSORS;
    for (size_t i = 0; i < sizeof norm_tensors / sizeof *norm_tensors; i++) {
        d->problem.extra[norm_tensors[i].gate] = tensor_of(d, norm_tensors[i].name);
    }
    const emulated_tensor *extra = d->problem.extra;
    for (int i = GATE_MEAN; i < GATE_TENSORS; i++) {
        if (i != GATE_BIAS && !per_channel(&extra[i], &extra[GATE_X])) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                                        "values of channels are f32, one per channel");
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static bool ids_differ(const emulated_problem *p)
{
    int64_t id[3 + EMULATED_EXTRAS] = {p->x.id, p->w.id, p->y.id};
    int count = 3;
    bool differ = true;
    for (int i = 0; i < p->extra_count; i++) {
        if (p->extra[i].images > 0) {
            id[count++] = p->extra[i].id;
        }
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            differ = differ && id[i] != id[j];
        }
    }
    return differ;
}

static cudnnStatus_t refuse(const char *what)
{
    return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s", what);
}

/* Forward -> GenStats. */
static cudnnStatus_t join_sums(const emulated_problem *convolution,
                               const emulated_descriptor *operation, emulated_problem *joined)
{
    const emulated_problem *other = &operation->problem;
    if (operation->type != CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR || convolution->pass != 0 ||
        convolution->beta != 0) {
        return refuse("statistics of a forward convolution's result only");
    }
    if (other->y.id != convolution->y.id) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "statistics of another tensor");
    }
    joined->fusion = other->fusion;
    joined->extra_count = other->extra_count;
    memcpy(joined->extra, other->extra, sizeof joined->extra);
    return CUDNN_STATUS_SUCCESS;
}

static bool is_step(const emulated_descriptor *d, int64_t mode, int64_t first, int64_t second)
{
    return d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR && mode_of(d) == mode &&
           tensor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC).id == first &&
           tensor_of(d, mode == CUDNN_POINTWISE_RELU_BWD ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
                                                         : CUDNN_ATTR_OPERATION_POINTWISE_BDESC)
                   .id == second;
}

/* Whether four operations compute ((x - mean) * inv_std) * scale + bias from the tensors of `sums`;
 * *value: the id of the result. The bias, which the sums do not have, is added to `extra`. */
static bool is_norm(emulated_descriptor *const *part, const emulated_problem *sums,
                    emulated_tensor *extra, int64_t *value)
{
    const int64_t modes[] = {CUDNN_POINTWISE_SUB, CUDNN_POINTWISE_MUL, CUDNN_POINTWISE_MUL,
                             CUDNN_POINTWISE_ADD};
    const emulated_gate second[] = {GATE_MEAN, GATE_INV_STD, GATE_SCALE, GATE_BIAS};
    memcpy(extra, sums->extra, GATE_TENSORS * sizeof *extra);
    extra[GATE_BIAS] = tensor_of(part[3], CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    *value = extra[GATE_X].id;
    for (int i = 0; i < 4; i++) {
        if (!is_step(part[i], modes[i], *value, extra[second[i]].id)) {
            return false;
        }
        *value = tensor_of(part[i], CUDNN_ATTR_OPERATION_POINTWISE_YDESC).id;
    }
    return per_channel(&extra[GATE_BIAS], &extra[GATE_X]);
}

static bool is_sums(const emulated_descriptor *d, int64_t gradient)
{
    return d->type == CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR &&
           d->problem.extra[GATE_GRADIENT].id == gradient;
}

/* Backward data [-> ADD] -> RELU_BWD -> BN_BWD_WEIGHTS [twice], the ReLU by ((x - mean) * inv_std)
 * * scale + bias [+ the residual, or the same of another norm]. */
static cudnnStatus_t join_gate(emulated_descriptor *const *part, int64_t count,
                               emulated_problem *joined)
{
    enum { GATED = 7, JOINED = 9, TWICE = 14, STEPS = 4 };
    bool joins = count != GATED, twice = count == TWICE;
    emulated_descriptor *const *at = part + 1, *const *sums = part + count - (twice ? 2 : 1);
    emulated_tensor *extra = joined->extra, second[GATE_TENSORS];
    int64_t dx = joined->x.id, value = 0, other = 0;
    if (sums[0]->type != CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR || joined->pass != 1 ||
        joined->beta != 0 || !joined->x.within) {
        return refuse("no gradient of an input that goes on into a batch norm");
    }
    joined->fusion = joins ? EMULATED_JOIN : EMULATED_GATE;
    joined->extra_count = twice ? JOIN_TENSORS : joins ? JOIN_RESIDUAL + 1 : GATE_TENSORS;
    if (joins) {
        extra[JOIN_OTHER] = tensor_of(*at, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        if (!is_step(*at, CUDNN_POINTWISE_ADD, dx, extra[JOIN_OTHER].id) ||
            extra[JOIN_OTHER].within) {
            return refuse("no second gradient");
        }
        dx = tensor_of(*at++, CUDNN_ATTR_OPERATION_POINTWISE_YDESC).id;
    }
    if (!is_norm(at, &sums[0]->problem, extra, &value)) {
        return refuse("the batch norm's output is not computed from its input");
    }
    at += STEPS;
    if (twice) {
        if (!is_norm(at, &sums[1]->problem, second, &other)) {
            return refuse("the second batch norm's output is not computed from its input");
        }
        for (int i = 0; i < GATE_TENSORS; i++) {
            extra[JOIN_SECOND + i] = i == GATE_GRADIENT ? (emulated_tensor){0} : second[i];
        }
        at += STEPS;
    }
    if (joins) {
        if (!twice) {
            extra[JOIN_RESIDUAL] = tensor_of(*at, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
            other = extra[JOIN_RESIDUAL].id;
        }
        if (!is_step(*at, CUDNN_POINTWISE_ADD, value, other)) {
            return refuse("the outputs of both branches are not added");
        }
        value = tensor_of(*at++, CUDNN_ATTR_OPERATION_POINTWISE_YDESC).id;
    }
    int64_t gradient = tensor_of(*at, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC).id;
    if (at + 1 != sums || !is_step(*at, CUDNN_POINTWISE_RELU_BWD, value, dx) ||
        !is_sums(sums[0], gradient) || (twice && !is_sums(sums[1], gradient))) {
        return refuse("the gradient does not pass the ReLU into the sums");
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool half_per_channel(const emulated_tensor *t, const emulated_tensor *of)
{
    emulated_tensor other = *t;
    other.type = CUDNN_DATA_FLOAT;
    return t->type == CUDNN_DATA_HALF && per_channel(&other, of);
}

static bool same_size(const emulated_tensor *a, const emulated_tensor *b)
{
    return a->images == b->images && a->channels == b->channels && a->height == b->height &&
           a->width == b->width;
}

/* MUL scale, ADD bias, RELU_FWD -> forward -> GenStats, or -> backward weights: with compute
 * capability 9.0 the whole of it alone. */
static cudnnStatus_t join_apply(emulated_descriptor *const *part, int64_t count,
                                emulated_problem *joined)
{
    enum { MUL, ADD, RELU, PRODUCT, SUMS };
    *joined = part[PRODUCT]->problem;
    bool forward = joined->pass == 0;
    if (forward ? count != SUMS + 1 : joined->pass != 2 || count != SUMS) {
        return refuse("a norm is applied before forward with statistics, or before the weights");
    }
    if (forward) {
        cudnnStatus_t status = join_sums(joined, part[SUMS], joined);
        if (status != CUDNN_STATUS_SUCCESS) {
            return status;
        }
    }
    joined->fusion = EMULATED_APPLY;
    joined->extra_count = APPLY_TENSORS;
    emulated_tensor *extra = joined->extra;
    extra[APPLY_X] = tensor_of(part[MUL], CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    extra[APPLY_SCALE] = tensor_of(part[MUL], CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    extra[APPLY_BIAS] = tensor_of(part[ADD], CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    int64_t scaled = tensor_of(part[MUL], CUDNN_ATTR_OPERATION_POINTWISE_YDESC).id;
    int64_t moved = tensor_of(part[ADD], CUDNN_ATTR_OPERATION_POINTWISE_YDESC).id;
    if (!is_step(part[MUL], CUDNN_POINTWISE_MUL, extra[APPLY_X].id, extra[APPLY_SCALE].id) ||
        !is_step(part[ADD], CUDNN_POINTWISE_ADD, scaled, extra[APPLY_BIAS].id) ||
        !is_step(part[RELU], CUDNN_POINTWISE_RELU_FWD, moved, 0) ||
        tensor_of(part[RELU], CUDNN_ATTR_OPERATION_POINTWISE_YDESC).id != joined->x.id ||
        !joined->x.within) {
        return refuse("the operand is not relu(scale * x + bias)");
    }
    if (extra[APPLY_X].type != CUDNN_DATA_HALF || extra[APPLY_X].within || joined->beta != 0 ||
        joined->x.type != CUDNN_DATA_FLOAT || !same_size(&extra[APPLY_X], &joined->x) ||
        !half_per_channel(&extra[APPLY_SCALE], &joined->x) ||
        !half_per_channel(&extra[APPLY_BIAS], &joined->x)) {
        return refuse("x, scale and bias in f16, values between them in f32");
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t emulated_graphs_join(emulated_descriptor *const *operation, int64_t count,
                                   emulated_problem *out)
{
    enum { WITH_SUMS = 2, WITH_GATE = 7, WITH_JOIN = 9, WITH_JOINS = 14, APPLIED = 4 };
    emulated_problem joined = operation[0]->problem;
    bool applies = operation[0]->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    cudnnStatus_t status = applies && count >= APPLIED ? join_apply(operation, count, &joined)
                           : count == WITH_SUMS        ? join_sums(&joined, operation[1], &joined)
                           : count == WITH_GATE || count == WITH_JOIN || count == WITH_JOINS
                               ? join_gate(operation, count, &joined)
                               : refuse("another number of operations");
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (!ids_differ(&joined)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                                    "tensors share an id");
    }
    *out = joined;
    return CUDNN_STATUS_SUCCESS;
}
