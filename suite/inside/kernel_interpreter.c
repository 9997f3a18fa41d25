#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "kernels/core/list.h"

double ls_kernel_interpreter_round(double x, ls_kernel_rounding type)
{
    switch (type) {
    case LS_KERNEL_ROUND_F32:
        return (double)(float)x;
    case LS_KERNEL_ROUND_F16:
        return (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)x));
    case LS_KERNEL_ROUND_BF16:
        return (double)ls_half_bf16_to_f32(ls_half_f32_to_bf16((float)x));
    default:
        return x;
    }
}

static double *doubles(int64_t count)
{
    double *d = ls_list_make((size_t)(count > 0 ? count : 1), sizeof *d);
    return d;
}

void ls_kernel_interpreter_make(ls_kernel_interpreter *t, const ls_kernel_net *n, int batch,
                                int height, int width, ls_kernel_rounding type)
{
    memset(t, 0, sizeof *t);
    t->n = n;
    t->batch = batch;
    t->type = type;
    for (int i = 0; i < n->network.layer_count; i++) {
        const ls_layer *l = &n->layer[i];
        ls_kernel_plane in = i > 0 ? t->size[l->input[0]] : (ls_kernel_plane){3, height, width, 0},
                        s = in;
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
        t->value[i] = doubles(s.count);
        t->grad[i] = doubles(s.count);
        t->mean[i] = doubles(s.channels);
        t->variance[i] = doubles(s.channels);
        t->bits[i] = calloc((size_t)s.count / 8 + 1, 1);
        t->index[i] = calloc((size_t)s.count, sizeof *t->index[i]);
    }
    for (int p = 0; p < n->network.param_count; p++) {
        int64_t count = ls_shape_count(&n->param[p].shape);
        t->param[p] = doubles(count);
        t->param_grad[p] = doubles(count);
    }
}

void ls_kernel_interpreter_free(ls_kernel_interpreter *t)
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
static void conv_loops(ls_kernel_interpreter *t, int i, int direction)
{
    const ls_layer *l = &t->n->layer[i];
    int from = l->input[0];
    ls_kernel_plane in = t->size[from], out = t->size[i];
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

static void norm_forward(ls_kernel_interpreter *t, int i)
{
    const ls_layer *l = &t->n->layer[i];
    ls_kernel_plane s = t->size[i];
    const double *x = t->value[l->input[0]];
    int64_t pixels = (int64_t)s.height * s.width;
    double count = (double)(t->batch * pixels);
    for (int c = 0; c < s.channels; c++) {
        double mean = 0, m2 = 0;
        for (int pass = 0; pass < (t->evaluates ? 0 : 2); pass++) {
            for (int n = 0; n < t->batch; n++) {
                for (int64_t p = 0; p < pixels; p++) {
                    double v = x[((int64_t)n * s.channels + c) * pixels + p];
                    mean += pass == 0 ? v / count : 0;
                    m2 += pass == 1 ? (v - mean) * (v - mean) : 0;
                }
            }
        }
        if (!t->evaluates) {
            t->mean[i][c] = mean;
            t->variance[i][c] = m2 / count;
        }
        mean = t->mean[i][c];
        double inv = 1 / sqrt(t->variance[i][c] + (double)l->epsilon);
        for (int n = 0; n < t->batch; n++) {
            for (int64_t p = 0; p < pixels; p++) {
                int64_t at = ((int64_t)n * s.channels + c) * pixels + p;
                t->value[i][at] =
                    (x[at] - mean) * inv * t->param[l->weight][c] + t->param[l->bias][c];
            }
        }
    }
}

static void norm_backward(ls_kernel_interpreter *t, int i)
{
    const ls_layer *l = &t->n->layer[i];
    ls_kernel_plane s = t->size[i];
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

static void pool_forward(ls_kernel_interpreter *t, int i)
{
    const ls_layer *l = &t->n->layer[i];
    ls_kernel_plane in = t->size[l->input[0]], out = t->size[i];
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

void ls_kernel_interpreter_loss(ls_kernel_interpreter *t, int i, const int64_t *target,
                                bool backward, double scale)
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

static void linear(ls_kernel_interpreter *t, int i, bool backward)
{
    const ls_layer *l = &t->n->layer[i];
    int from = l->input[0], in = t->size[from].channels, out = t->size[i].channels;
    for (int n = 0; n < t->batch; n++) {
        for (int o = 0; o < out; o++) {
            int64_t at = (int64_t)n * out + o;
            if (backward) {
                t->param_grad[l->bias][o] += t->grad[i][at];
            } else {
                t->value[i][at] = ls_kernel_interpreter_round(t->param[l->bias][o], t->type);
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

static void moves(ls_kernel_interpreter *t, int i, bool backward)
{
    const ls_layer *l = &t->n->layer[i];
    ls_kernel_plane s = t->size[i], in = t->size[l->input[0]];
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
        } else if (l->kind == LS_LAYER_MAX_POOL) { /* forward is pool_forward */
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

static void round_all(double *value, int64_t count, ls_kernel_rounding type)
{
    for (int64_t i = 0; i < count; i++) {
        value[i] = ls_kernel_interpreter_round(value[i], type);
    }
}

void ls_kernel_interpreter_forward(ls_kernel_interpreter *t, const int64_t *target)
{
    const ls_network *w = &t->n->network;
    round_all(t->value[0], t->size[0].count, t->type);
    for (int i = 1; i < w->layer_count; i++) {
        memset(t->value[i], 0, (size_t)t->size[i].count * sizeof(double));
        switch (t->n->layer[i].kind) {
        case LS_LAYER_CONV:
            conv_loops(t, i, 0);
            break;
        case LS_LAYER_BATCH_NORM:
            norm_forward(t, i);
            break;
        case LS_LAYER_MAX_POOL:
            pool_forward(t, i);
            break;
        case LS_LAYER_LINEAR:
            linear(t, i, false);
            break;
        case LS_LAYER_CROSS_ENTROPY:
            ls_kernel_interpreter_loss(t, i, target, false, 0);
            break;
        default:
            moves(t, i, false);
        }
        round_all(t->value[i], t->size[i].count, t->type);
    }
}

void ls_kernel_interpreter_backward(ls_kernel_interpreter *t, const int64_t *target, double scale)
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
        round_all(t->grad[i], t->size[i].count, t->type); /* all contributions are in */
        switch (l->kind) {
        case LS_LAYER_CONV:
            conv_loops(t, i, 2);
            if (l->input[0] != 0) {
                conv_loops(t, i, 1);
            }
            break;
        case LS_LAYER_BATCH_NORM:
            norm_backward(t, i);
            break;
        case LS_LAYER_LINEAR:
            linear(t, i, true);
            break;
        case LS_LAYER_CROSS_ENTROPY:
            ls_kernel_interpreter_loss(t, i, target, true, scale);
            break;
        default:
            moves(t, i, true);
        }
    }
    for (int p = 0; p < w->param_count; p++) {
        bool norm = t->n->param[p].role == LS_PARAM_NORM_WEIGHT ||
                    t->n->param[p].role == LS_PARAM_NORM_BIAS;
        ls_kernel_rounding type =
            norm && t->type != LS_KERNEL_ROUND_NONE ? LS_KERNEL_ROUND_F32 : t->type;
        round_all(t->param_grad[p], ls_shape_count(&t->n->param[p].shape), type);
    }
}
