/* Small networks built by hand and a plain double interpreter of them, for the tests of the CPU
 * backend. The interpreter shares nothing with what it judges: direct loops over NCHW, every stored
 * value rounded where `type` says so. Branches (ReLU, max pool) can be forced to what the subject
 * took. */
#ifndef LS_UNIT_CPU_NET_H
#define LS_UNIT_CPU_NET_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/core/half.h"
#include "../../kernels/core/rng.h"
#include "../../kernels/kernels.h"

enum { NET_LAYERS = 64, NET_PARAMS = 96, NET_BUFFERS = 96 };

typedef struct net {
    ls_network network;
    ls_layer layer[NET_LAYERS];
    ls_param param[NET_PARAMS];
    ls_buffer buffer[NET_BUFFERS];
} net;

static inline void net_start(net *n)
{
    memset(n, 0, sizeof *n);
    n->network.layer = n->layer;
    n->network.param = n->param;
    n->network.buffer = n->buffer;
    snprintf(n->network.arch, sizeof n->network.arch, "test");
    n->layer[0] = (ls_layer){.kind = LS_LAYER_INPUT,
                             .input = {-1, -1},
                             .channels = 3,
                             .weight = -1,
                             .bias = -1,
                             .running_mean = -1,
                             .running_var = -1,
                             .branch = -1};
    n->network.layer_count = 1;
}

static inline int net_add_layer(net *n, ls_layer_kind kind, int in, int in2, int channels)
{
    int index = n->network.layer_count++;
    ls_layer *l = &n->layer[index];
    *l = (ls_layer){.kind = kind,
                    .input = {in, in2},
                    .channels = channels,
                    .kernel = 1,
                    .stride = 1,
                    .weight = -1,
                    .bias = -1,
                    .running_mean = -1,
                    .running_var = -1,
                    .branch = -1};
    if (kind == LS_LAYER_RELU || kind == LS_LAYER_MAX_POOL) {
        l->branch = n->network.branch_count++;
    }
    snprintf(l->name, sizeof l->name, "l%d", index);
    return index;
}

static inline int net_param(net *n, ls_param_role role, int rank, int64_t a, int64_t b, int64_t k)
{
    int index = n->network.param_count++;
    n->param[index].role = role;
    n->param[index].shape = (ls_shape){rank, {a, b, k, k, 0}};
    snprintf(n->param[index].name, sizeof n->param[index].name, "p%d", index);
    return index;
}

static inline int net_channels(const net *n, int layer)
{
    return n->layer[layer].channels;
}

static inline int net_conv(net *n, int in, int channels, int kernel, int stride, int pad)
{
    int l = net_add_layer(n, LS_LAYER_CONV, in, -1, channels);
    n->layer[l].kernel = kernel;
    n->layer[l].stride = stride;
    n->layer[l].pad = pad;
    n->layer[l].weight =
        net_param(n, LS_PARAM_CONV_WEIGHT, 4, channels, net_channels(n, in), kernel);
    return l;
}

static inline int net_norm(net *n, int in)
{
    int channels = net_channels(n, in), l = net_add_layer(n, LS_LAYER_BATCH_NORM, in, -1, channels);
    n->layer[l].weight = net_param(n, LS_PARAM_NORM_WEIGHT, 1, channels, 0, 0);
    n->layer[l].bias = net_param(n, LS_PARAM_NORM_BIAS, 1, channels, 0, 0);
    n->layer[l].epsilon = 1e-5f;
    n->layer[l].momentum = 0.1f;
    for (int k = 0; k < 3; k++) {
        int b = n->network.buffer_count++;
        n->buffer[b].role = (ls_buffer_role)k;
        n->buffer[b].count = k == 2 ? 1 : channels;
        if (k == 0) {
            n->layer[l].running_mean = b;
        } else if (k == 1) {
            n->layer[l].running_var = b;
        }
    }
    return l;
}

static inline int net_relu(net *n, int in)
{
    return net_add_layer(n, LS_LAYER_RELU, in, -1, net_channels(n, in));
}

static inline int net_sum(net *n, int a, int b)
{
    return net_add_layer(n, LS_LAYER_ADD, a, b, net_channels(n, a));
}

static inline int net_pool(net *n, int in, int kernel, int stride, int pad)
{
    int l = net_add_layer(n, LS_LAYER_MAX_POOL, in, -1, net_channels(n, in));
    n->layer[l].kernel = kernel;
    n->layer[l].stride = stride;
    n->layer[l].pad = pad;
    return l;
}

static inline int net_shortcut(net *n, int in, int channels, int stride)
{
    int l = net_add_layer(n, LS_LAYER_SHORTCUT_PAD, in, -1, channels);
    n->layer[l].stride = stride;
    return l;
}

static inline void net_finish(net *n, int in, int classes)
{
    int a = net_add_layer(n, LS_LAYER_AVG_POOL, in, -1, net_channels(n, in));
    int l = net_add_layer(n, LS_LAYER_LINEAR, a, -1, classes);
    n->layer[l].weight = net_param(n, LS_PARAM_LINEAR_WEIGHT, 2, classes, net_channels(n, a), 0);
    n->layer[l].bias = net_param(n, LS_PARAM_LINEAR_BIAS, 1, classes, 0, 0);
    net_add_layer(n, LS_LAYER_CROSS_ENTROPY, l, -1, classes);
    n->network.num_classes = classes;
}

/* conv-norm-relu-conv-norm, shortcut as told (0: none or projection where sizes change, 'A':
 * padded). */
static inline int net_block(net *n, int in, int channels, int stride, char shortcut)
{
    int a = net_relu(n, net_norm(n, net_conv(n, in, channels, 3, stride, 1)));
    int b = net_norm(n, net_conv(n, a, channels, 3, 1, 1)), skip = in;
    if (stride != 1 || net_channels(n, in) != channels) {
        skip = shortcut == 'A' ? net_shortcut(n, in, channels, stride)
                               : net_norm(n, net_conv(n, in, channels, 1, stride, 0));
    }
    return net_relu(n, net_sum(n, b, skip));
}

/* 1x1, 3x3 with the stride, 1x1 to four times the channels. */
static inline int net_bottleneck(net *n, int in, int channels, int stride)
{
    int a = net_relu(n, net_norm(n, net_conv(n, in, channels, 1, 1, 0)));
    int b = net_relu(n, net_norm(n, net_conv(n, a, channels, 3, stride, 1)));
    int c = net_norm(n, net_conv(n, b, 4 * channels, 1, 1, 0)), skip = in;
    if (stride != 1 || net_channels(n, in) != 4 * channels) {
        skip = net_norm(n, net_conv(n, in, 4 * channels, 1, stride, 0));
    }
    return net_relu(n, net_sum(n, c, skip));
}

/* ---- the interpreter ------------------------------------------------------------------------- */

typedef enum rounding { ROUND_NONE, ROUND_F32, ROUND_F16, ROUND_BF16 } rounding;

typedef struct plane_size {
    int channels, height, width;
    int64_t count;
} plane_size;

typedef struct interpreter {
    const net *n;
    int batch;
    rounding type;
    plane_size size[NET_LAYERS];
    double *value[NET_LAYERS], *grad[NET_LAYERS];
    double *param[NET_PARAMS], *param_grad[NET_PARAMS];
    double *mean[NET_LAYERS], *variance[NET_LAYERS]; /* of batch norms */
    uint8_t *bits[NET_LAYERS];                       /* forced ReLUs, or NULL */
    int32_t *index[NET_LAYERS];                      /* chosen or forced pool indices */
    bool force;
    double loss;
} interpreter;

static inline double net_round(double x, rounding type)
{
    switch (type) {
    case ROUND_F32:
        return (double)(float)x;
    case ROUND_F16:
        return (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)x));
    case ROUND_BF16:
        return (double)ls_half_bf16_to_f32(ls_half_f32_to_bf16((float)x));
    default:
        return x;
    }
}

static inline double *net_doubles(int64_t count)
{
    double *d = calloc((size_t)(count > 0 ? count : 1), sizeof *d);
    LS_ASSERT(d != NULL);
    return d;
}

static inline void interpreter_make(interpreter *t, const net *n, int batch, int height, int width,
                                    rounding type)
{
    memset(t, 0, sizeof *t);
    t->n = n;
    t->batch = batch;
    t->type = type;
    for (int i = 0; i < n->network.layer_count; i++) {
        const ls_layer *l = &n->layer[i];
        plane_size in = i > 0 ? t->size[l->input[0]] : (plane_size){3, height, width, 0}, s = in;
        s.channels = l->channels;
        if (l->kind == LS_LAYER_CONV || l->kind == LS_LAYER_MAX_POOL) {
            s.height = (in.height + 2 * l->pad - l->kernel) / l->stride + 1;
            s.width = (in.width + 2 * l->pad - l->kernel) / l->stride + 1;
        } else if (l->kind == LS_LAYER_SHORTCUT_PAD) {
            s.height = (in.height + l->stride - 1) / l->stride;
            s.width = (in.width + l->stride - 1) / l->stride;
        } else if (l->kind == LS_LAYER_AVG_POOL) {
            s.height = s.width = 1;
        }
        s.count = (int64_t)batch * s.channels * s.height * s.width;
        t->size[i] = s;
        t->value[i] = net_doubles(s.count);
        t->grad[i] = net_doubles(s.count);
        t->mean[i] = net_doubles(s.channels);
        t->variance[i] = net_doubles(s.channels);
        t->bits[i] = calloc((size_t)s.count / 8 + 1, 1);
        t->index[i] = calloc((size_t)s.count, sizeof *t->index[i]);
    }
    for (int p = 0; p < n->network.param_count; p++) {
        int64_t count = ls_shape_count(&n->param[p].shape);
        t->param[p] = net_doubles(count);
        t->param_grad[p] = net_doubles(count);
    }
}

static inline void interpreter_free(interpreter *t)
{
    for (int i = 0; i < t->n->network.layer_count; i++) {
        free(t->value[i]);
        free(t->grad[i]);
        free(t->mean[i]);
        free(t->variance[i]);
        free(t->bits[i]);
        free(t->index[i]);
    }
    for (int p = 0; p < t->n->network.param_count; p++) {
        free(t->param[p]);
        free(t->param_grad[p]);
    }
}

/* Visits every multiply-add of a convolution: out += in * weight in one of three directions. */
static inline void net_conv_loops(interpreter *t, int i, int direction)
{
    const ls_layer *l = &t->n->layer[i];
    int from = l->input[0];
    plane_size in = t->size[from], out = t->size[i];
    int k = l->kernel;
    for (int n = 0; n < t->batch; n++) {
        for (int oc = 0; oc < out.channels; oc++) {
            for (int oh = 0; oh < out.height; oh++) {
                for (int ow = 0; ow < out.width; ow++) {
                    int64_t o =
                        (((int64_t)n * out.channels + oc) * out.height + oh) * out.width + ow;
                    for (int ic = 0; ic < in.channels; ic++) {
                        for (int kh = 0; kh < k; kh++) {
                            for (int kw = 0; kw < k; kw++) {
                                int h = oh * l->stride - l->pad + kh,
                                    w = ow * l->stride - l->pad + kw;
                                if (h < 0 || h >= in.height || w < 0 || w >= in.width) {
                                    continue;
                                }
                                int64_t x =
                                    (((int64_t)n * in.channels + ic) * in.height + h) * in.width +
                                    w;
                                int64_t q = (((int64_t)oc * in.channels + ic) * k + kh) * k + kw;
                                if (direction == 0) {
                                    t->value[i][o] += t->value[from][x] * t->param[l->weight][q];
                                } else if (direction == 1) {
                                    t->grad[from][x] += t->grad[i][o] * t->param[l->weight][q];
                                } else {
                                    t->param_grad[l->weight][q] +=
                                        t->grad[i][o] * t->value[from][x];
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

static inline void net_norm_forward(interpreter *t, int i)
{
    const ls_layer *l = &t->n->layer[i];
    plane_size s = t->size[i];
    const double *x = t->value[l->input[0]];
    int64_t pixels = (int64_t)s.height * s.width;
    double count = (double)(t->batch * pixels);
    for (int c = 0; c < s.channels; c++) {
        double mean = 0, m2 = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int n = 0; n < t->batch; n++) {
                for (int64_t p = 0; p < pixels; p++) {
                    double v = x[((int64_t)n * s.channels + c) * pixels + p];
                    mean += pass == 0 ? v / count : 0;
                    m2 += pass == 1 ? (v - mean) * (v - mean) : 0;
                }
            }
        }
        t->mean[i][c] = mean;
        t->variance[i][c] = m2 / count;
        double inv = 1 / sqrt(m2 / count + (double)l->epsilon);
        for (int n = 0; n < t->batch; n++) {
            for (int64_t p = 0; p < pixels; p++) {
                int64_t at = ((int64_t)n * s.channels + c) * pixels + p;
                t->value[i][at] =
                    (x[at] - mean) * inv * t->param[l->weight][c] + t->param[l->bias][c];
            }
        }
    }
}

static inline void net_norm_backward(interpreter *t, int i)
{
    const ls_layer *l = &t->n->layer[i];
    plane_size s = t->size[i];
    const double *x = t->value[l->input[0]], *g = t->grad[i];
    int64_t pixels = (int64_t)s.height * s.width;
    double count = (double)(t->batch * pixels);
    for (int c = 0; c < s.channels; c++) {
        double inv = 1 / sqrt(t->variance[i][c] + (double)l->epsilon), sum = 0, sum_xhat = 0;
        for (int n = 0; n < t->batch; n++) {
            for (int64_t p = 0; p < pixels; p++) {
                int64_t at = ((int64_t)n * s.channels + c) * pixels + p;
                sum += g[at];
                sum_xhat += g[at] * (x[at] - t->mean[i][c]) * inv;
            }
        }
        t->param_grad[l->weight][c] += sum_xhat;
        t->param_grad[l->bias][c] += sum;
        for (int n = 0; n < t->batch; n++) {
            for (int64_t p = 0; p < pixels; p++) {
                int64_t at = ((int64_t)n * s.channels + c) * pixels + p;
                double xhat = (x[at] - t->mean[i][c]) * inv;
                t->grad[l->input[0]][at] +=
                    t->param[l->weight][c] * inv * (g[at] - sum / count - xhat * sum_xhat / count);
            }
        }
    }
}

static inline void net_pool_forward(interpreter *t, int i)
{
    const ls_layer *l = &t->n->layer[i];
    plane_size in = t->size[l->input[0]], out = t->size[i];
    const double *x = t->value[l->input[0]];
    for (int64_t o = 0; o < out.count; o++) {
        int64_t plane = o / ((int64_t)out.height * out.width);
        int oh = (int)(o / out.width % out.height), ow = (int)(o % out.width);
        int best = -1;
        for (int kh = 0; kh < l->kernel && !t->force; kh++) {
            for (int kw = 0; kw < l->kernel; kw++) {
                int h = oh * l->stride - l->pad + kh, w = ow * l->stride - l->pad + kw;
                if (h < 0 || h >= in.height || w < 0 || w >= in.width) {
                    continue;
                }
                const double *p = x + plane * in.height * in.width;
                if (best < 0 || p[h * in.width + w] > p[best]) {
                    best = h * in.width + w;
                }
            }
        }
        if (!t->force) {
            t->index[i][o] = best;
        }
        t->value[i][o] = x[plane * in.height * in.width + t->index[i][o]];
    }
}

static inline void net_loss(interpreter *t, int i, const int64_t *target, bool backward,
                            double scale)
{
    int from = t->n->layer[i].input[0], classes = t->size[from].channels;
    t->loss = 0;
    for (int n = 0; n < t->batch; n++) {
        const double *row = t->value[from] + (int64_t)n * classes;
        double most = row[0], sum = 0;
        for (int j = 1; j < classes; j++) {
            most = row[j] > most ? row[j] : most;
        }
        for (int j = 0; j < classes; j++) {
            sum += exp(row[j] - most);
        }
        t->loss += (log(sum) - (row[target[n]] - most)) / t->batch;
        for (int j = 0; j < classes && backward; j++) {
            double p = exp(row[j] - most) / sum;
            t->grad[from][(int64_t)n * classes + j] =
                (p - (j == target[n] ? 1 : 0)) * scale / t->batch;
        }
    }
}

static inline void net_linear(interpreter *t, int i, bool backward)
{
    const ls_layer *l = &t->n->layer[i];
    int from = l->input[0], in = t->size[from].channels, out = t->size[i].channels;
    for (int n = 0; n < t->batch; n++) {
        for (int o = 0; o < out; o++) {
            int64_t at = (int64_t)n * out + o;
            if (backward) {
                t->param_grad[l->bias][o] += t->grad[i][at];
            } else {
                t->value[i][at] = net_round(t->param[l->bias][o], t->type);
            }
            for (int c = 0; c < in; c++) {
                int64_t x = (int64_t)n * in + c, q = (int64_t)o * in + c;
                if (backward) {
                    t->param_grad[l->weight][q] += t->grad[i][at] * t->value[from][x];
                    t->grad[from][x] += t->grad[i][at] * t->param[l->weight][q];
                } else {
                    t->value[i][at] += t->value[from][x] * t->param[l->weight][q];
                }
            }
        }
    }
}

static inline void net_moves(interpreter *t, int i, bool backward)
{
    const ls_layer *l = &t->n->layer[i];
    plane_size s = t->size[i], in = t->size[l->input[0]];
    double *x = t->value[l->input[0]], *dx = t->grad[l->input[0]];
    int64_t pixels = (int64_t)s.height * s.width, in_pixels = (int64_t)in.height * in.width;
    for (int64_t o = 0; o < s.count; o++) {
        double *y = &t->value[i][o], dy = t->grad[i][o];
        int64_t plane = o / pixels;
        if (l->kind == LS_LAYER_RELU) {
            bool on = t->force ? (t->bits[i][o / 8] >> (o % 8) & 1) != 0 : x[o] > 0;
            if (backward) {
                dx[o] += on ? dy : 0;
            } else {
                *y = on ? x[o] : 0;
            }
        } else if (l->kind == LS_LAYER_ADD) {
            if (backward) {
                dx[o] += dy;
                t->grad[l->input[1]][o] += dy;
            } else {
                *y = x[o] + t->value[l->input[1]][o];
            }
        } else if (l->kind == LS_LAYER_MAX_POOL) { /* forward is net_pool_forward */
            dx[plane * in_pixels + t->index[i][o]] += dy;
        } else if (l->kind == LS_LAYER_AVG_POOL) {
            for (int64_t p = 0; p < in_pixels; p++) {
                if (backward) {
                    dx[plane * in_pixels + p] += dy / (double)in_pixels;
                } else {
                    *y += x[plane * in_pixels + p] / (double)in_pixels;
                }
            }
        } else if (l->kind == LS_LAYER_SHORTCUT_PAD) {
            int64_t n = plane / s.channels, c = plane % s.channels;
            int64_t h = o / s.width % s.height * l->stride, w = o % s.width * l->stride;
            int64_t from = ((n * in.channels + c) * in.height + h) * in.width + w;
            if (c < in.channels && backward) {
                dx[from] += dy;
            } else if (!backward) {
                *y = c < in.channels ? x[from] : 0;
            }
        }
    }
}

static inline void net_round_all(double *value, int64_t count, rounding type)
{
    for (int64_t i = 0; i < count; i++) {
        value[i] = net_round(value[i], type);
    }
}

static inline void interpreter_forward(interpreter *t, const int64_t *target)
{
    const ls_network *w = &t->n->network;
    net_round_all(t->value[0], t->size[0].count, t->type);
    for (int i = 1; i < w->layer_count; i++) {
        memset(t->value[i], 0, (size_t)t->size[i].count * sizeof(double));
        switch (t->n->layer[i].kind) {
        case LS_LAYER_CONV:
            net_conv_loops(t, i, 0);
            break;
        case LS_LAYER_BATCH_NORM:
            net_norm_forward(t, i);
            break;
        case LS_LAYER_MAX_POOL:
            net_pool_forward(t, i);
            break;
        case LS_LAYER_LINEAR:
            net_linear(t, i, false);
            break;
        case LS_LAYER_CROSS_ENTROPY:
            net_loss(t, i, target, false, 0);
            break;
        default:
            net_moves(t, i, false);
        }
        net_round_all(t->value[i], t->size[i].count, t->type);
    }
}

static inline void interpreter_backward(interpreter *t, const int64_t *target, double scale)
{
    const ls_network *w = &t->n->network;
    for (int i = 0; i < w->layer_count; i++) {
        memset(t->grad[i], 0, (size_t)t->size[i].count * sizeof(double));
    }
    for (int p = 0; p < w->param_count; p++) {
        memset(t->param_grad[p], 0, (size_t)ls_shape_count(&t->n->param[p].shape) * sizeof(double));
    }
    for (int i = w->layer_count - 1; i > 0; i--) {
        const ls_layer *l = &t->n->layer[i];
        net_round_all(t->grad[i], t->size[i].count, t->type); /* all contributions are in */
        switch (l->kind) {
        case LS_LAYER_CONV:
            net_conv_loops(t, i, 2);
            if (l->input[0] != 0) {
                net_conv_loops(t, i, 1);
            }
            break;
        case LS_LAYER_BATCH_NORM:
            net_norm_backward(t, i);
            break;
        case LS_LAYER_LINEAR:
            net_linear(t, i, true);
            break;
        case LS_LAYER_CROSS_ENTROPY:
            net_loss(t, i, target, true, scale);
            break;
        default:
            net_moves(t, i, true);
        }
    }
    for (int p = 0; p < w->param_count; p++) {
        bool norm = t->n->param[p].role == LS_PARAM_NORM_WEIGHT ||
                    t->n->param[p].role == LS_PARAM_NORM_BIAS;
        rounding type = norm && t->type != ROUND_NONE ? ROUND_F32 : t->type;
        net_round_all(t->param_grad[p], ls_shape_count(&t->n->param[p].shape), type);
    }
}

#endif
