/* Convolution as plain loops: operands as f32; sums in f32, as in the hardware (over images in
 * double for the weights, as exact as a tree of partial sums); one rounding at the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "suite/emulation/runtime/emulate.h"
#include "emulated_cudnn.h"

static int64_t count_of(const emulated_tensor *t)
{
    return t->images * t->channels * t->height * t->width;
}

static void *room(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    if (!memory) {
        emulate_abort("cuDNN: no memory to compute in");
    }
    return memory;
}

/* TF32 has 10 bits behind the point; f32 has 23. */
static float to_tf32(float value)
{
    uint32_t bits = ls_half_bits_of_f32(value);
    return ls_half_f32_of_bits((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

static float *load(const emulated_tensor *t, const void *from, bool tf32)
{
    int64_t count = count_of(t);
    float *to = room(count, sizeof *to);
    for (int64_t i = 0; i < count; i++) {
        switch ((int)t->type) {
        case CUDNN_DATA_FLOAT:
            to[i] = tf32 ? to_tf32(((const float *)from)[i]) : ((const float *)from)[i];
            break;
        case CUDNN_DATA_HALF:
            to[i] = ls_half_fp16_to_f32(((const uint16_t *)from)[i]);
            break;
        default:
            to[i] = ls_half_bf16_to_f32(((const uint16_t *)from)[i]);
        }
    }
    return to;
}

static float rounded(const emulated_tensor *t, float value)
{
    return t->type == CUDNN_DATA_FLOAT  ? value
           : t->type == CUDNN_DATA_HALF ? ls_half_fp16_to_f32(ls_half_f32_to_fp16(value))
                                        : ls_half_bf16_to_f32(ls_half_f32_to_bf16(value));
}

static void store(const emulated_tensor *t, void *to, const float *from, bool wrong)
{
    int64_t count = count_of(t);
    for (int64_t i = 0; i < count; i++) {
        float value = wrong ? 2 * from[i] + 1 : from[i];
        switch ((int)t->type) {
        case CUDNN_DATA_FLOAT:
            ((float *)to)[i] = value;
            break;
        case CUDNN_DATA_HALF:
            ((uint16_t *)to)[i] = ls_half_f32_to_fp16(value);
            break;
        default:
            ((uint16_t *)to)[i] = ls_half_f32_to_bf16(value);
        }
    }
}

/* sum[i] += factor * row[i] */
static void add_row(float *restrict sum, const float *restrict row, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += factor * row[i];
    }
}

/* ---- the three passes ------------------------------------------------------------------------ */

/* Offset of the pixel of x under tap (ky, kx) of pixel (row, column) of y; -1 in the padding. */
static int64_t seen(const emulated_problem *p, int64_t image, int64_t row, int64_t column,
                    int64_t ky, int64_t kx)
{
    int64_t h = row * p->stride[0] - p->pad[0] + ky, w = column * p->stride[1] - p->pad[1] + kx;
    if (h < 0 || w < 0 || h >= p->x.height || w >= p->x.width) {
        return -1;
    }
    return ((image * p->x.height + h) * p->x.width + w) * p->x.channels;
}

/* [out][taps][in] to [taps][in][out], so that the innermost loop runs over outputs. */
static float *transposed(const emulated_problem *p, const float *w)
{
    int64_t taps = p->w.height * p->w.width, in = p->w.channels, out = p->w.images;
    float *to = room(out * taps * in, sizeof *to);
    for (int64_t k = 0; k < out; k++) {
        for (int64_t i = 0; i < taps * in; i++) {
            to[i * out + k] = w[k * taps * in + i];
        }
    }
    return to;
}

/* padding: the values of a pixel there. */
static void forward(const emulated_execution *e, const float *x, const float *padding,
                    const float *w, float *y)
{
    const emulated_problem *p = &e->problem;
    int64_t in = p->x.channels, out = p->y.channels;
    float *by_tap = transposed(p, w);
    for (int64_t pixel = 0; pixel < p->y.images * p->y.height * p->y.width; pixel++) {
        int64_t column = pixel % p->y.width, row = pixel / p->y.width % p->y.height;
        int64_t image = pixel / p->y.width / p->y.height;
        for (int64_t tap = 0; tap < p->w.height * p->w.width; tap++) {
            int64_t at = seen(p, image, row, column, tap / p->w.width, tap % p->w.width);
            const float *from = at >= 0 ? x + at : padding;
            for (int64_t i = 0; from != NULL && i < in; i++) {
                int64_t c = e->backward ? in - 1 - i : i;
                add_row(y + pixel * out, by_tap + (tap * in + c) * out, from[c], out);
            }
        }
    }
    free(by_tap);
}

static void backward_data(const emulated_execution *e, float *dx, const float *w, const float *dy)
{
    const emulated_problem *p = &e->problem;
    int64_t in = p->x.channels, out = p->y.channels, taps = p->w.height * p->w.width;
    for (int64_t pixel = 0; pixel < p->y.images * p->y.height * p->y.width; pixel++) {
        int64_t column = pixel % p->y.width, row = pixel / p->y.width % p->y.height;
        int64_t image = pixel / p->y.width / p->y.height;
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t at = seen(p, image, row, column, tap / p->w.width, tap % p->w.width);
            for (int64_t i = 0; at >= 0 && i < out; i++) {
                int64_t k = e->backward ? out - 1 - i : i;
                add_row(dx + at, w + (k * taps + tap) * in, dy[pixel * out + k], in);
            }
        }
    }
}

static void backward_weights(const emulated_execution *e, const float *x, const float *padding,
                             float *dw, const float *dy)
{
    const emulated_problem *p = &e->problem;
    int64_t in = p->x.channels, out = p->y.channels, taps = p->w.height * p->w.width;
    int64_t pixels = p->y.height * p->y.width, count = count_of(&p->w);
    float *sum = room(count, sizeof *sum);
    double *total = room(count, sizeof *total);
    for (int64_t image = 0; image < p->y.images; image++) {
        memset(sum, 0, (size_t)count * sizeof *sum);
        for (int64_t i = 0; i < pixels; i++) {
            int64_t pixel = e->backward ? pixels - 1 - i : i;
            const float *g = dy + (image * pixels + pixel) * out;
            for (int64_t tap = 0; tap < taps; tap++) {
                int64_t at = seen(p, image, pixel / p->y.width, pixel % p->y.width,
                                  tap / p->w.width, tap % p->w.width);
                const float *from = at >= 0 ? x + at : padding;
                for (int64_t k = 0; from != NULL && k < out; k++) {
                    add_row(sum + (k * taps + tap) * in, from, g[k], in);
                }
            }
        }
        for (int64_t i = 0; i < count; i++) {
            total[i] += (double)sum[i];
        }
    }
    for (int64_t i = 0; i < count; i++) {
        dw[i] = (float)total[i];
    }
    free(total);
    free(sum);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Whether an engine that applies a norm has the mistake of that name, in any pass or in this one.
 */
static bool apply_wrong(const emulated_execution *e, const char *what)
{
    const char *asked = getenv("LS_EMULATED_CONV_WRONG");
    const char *own = e->problem.pass == 0 ? "apply-forward:" : "apply-weights:";
    return asked && ((strncmp(asked, "apply:", 6) == 0 && strcmp(asked + 6, what) == 0) ||
                     (strncmp(asked, own, 14) == 0 && strcmp(asked + 14, what) == 0));
}

/* Scale or bias as f32, or with the mistake `stale` those of the first execution. */
static float *coefficients_of(const emulated_execution *e, emulated_apply which)
{
    static struct {
        const void *at;
        float *first;
    } kept[128];
    int64_t channels = e->problem.x.channels;
    float *now = load(&e->problem.extra[which], e->extra[which], false);
    int i = 0;
    if (!apply_wrong(e, "stale")) {
        return now;
    }
    while (i < 127 && kept[i].at != NULL && kept[i].at != e->extra[which]) {
        i++;
    }
    if (kept[i].at != e->extra[which] || (!e->repeated && e->problem.pass == 0)) {
        free(kept[i].first);
        kept[i].at = e->extra[which];
        kept[i].first = room(channels, sizeof *now);
        memcpy(kept[i].first, now, (size_t)channels * sizeof *now);
    }
    memcpy(now, kept[i].first, (size_t)channels * sizeof *now);
    return now;
}

/* relu(scale * x + bias) in f32, rounded once to f16. */
static float applied(const emulated_execution *e, float x, float scale, float bias)
{
    float scaled = scale * x;
    float value =
        (apply_wrong(e, "twice") ? ls_half_fp16_to_f32(ls_half_f32_to_fp16(scaled)) : scaled) +
        bias;
    value = value <= 0 && !apply_wrong(e, "relu") ? 0 : value;
    return ls_half_fp16_to_f32(ls_half_f32_to_fp16(value));
}

/* The operand as the engine computes it; padding: with the mistake `padding` what it computes of
 * zeros, else NULL. */
static float *apply(const emulated_execution *e, float **padding)
{
    int64_t count = count_of(&e->problem.x), channels = e->problem.x.channels;
    float *x = load(&e->problem.extra[APPLY_X], e->extra[APPLY_X], false);
    float *scale = coefficients_of(e, APPLY_SCALE), *bias = coefficients_of(e, APPLY_BIAS);
    for (int64_t i = 0; i < count; i++) {
        x[i] = applied(e, x[i], scale[i % channels], bias[i % channels]);
    }
    if (apply_wrong(e, "last")) {
        x[count - 1] = 2 * x[count - 1] + 1;
    }
    if (apply_wrong(e, "padding")) {
        *padding = room(channels, sizeof **padding);
        for (int64_t c = 0; c < channels; c++) {
            (*padding)[c] = applied(e, 0, scale[c], bias[c]);
        }
    }
    free(bias);
    free(scale);
    return x;
}

/* Whether an engine that also sums has the mistake of that name: LS_EMULATED_CONV_WRONG=sums:WHAT.
 */
static bool sums_wrong(const char *what)
{
    const char *asked = getenv("LS_EMULATED_CONV_WRONG");
    return asked && strncmp(asked, "sums:", 5) == 0 && strcmp(asked + 5, what) == 0;
}

/* An engine with a mistake, for tests of detection: LS_EMULATED_CONV_WRONG=PASS:WHAT. */
static void spoil(const emulated_execution *e, const emulated_tensor *result, float *sums)
{
    static const char *const pass[] = {"forward", "data", "weights"};
    const char *asked = getenv("LS_EMULATED_CONV_WRONG");
    const char *name = pass[e->problem.pass];
    size_t length = strlen(name);
    if (!asked || strncmp(asked, name, length) != 0 || asked[length] != ':') {
        return;
    }
    int64_t count = count_of(result), from = count - 1, to = count;
    if (strcmp(asked + length + 1, "tile") == 0) { /* a sixty-fourth, in the middle */
        from = count / 2;
        to = from + (count + 63) / 64;
    }
    for (int64_t i = from; i < to; i++) {
        sums[i] = 2 * sums[i] + 1;
    }
}

/* result = convolution + beta * result, in f32; a beta of 0 reads nothing, not even a NaN. Only the
 * last of several runs writes it: until then the old values are needed. */
static void finish(const emulated_execution *e, const emulated_tensor *result, void *to,
                   float *sums, bool last)
{
    const char *asked = getenv("LS_EMULATED_CONV_WRONG");
    bool stale = asked && strcmp(asked, "beta:stale") == 0 && e->repeated;
    bool ignored = stale || (asked && strcmp(asked, "beta") == 0);
    if (!last) {
        return;
    }
    spoil(e, result, sums);
    if (e->problem.pass == 0 && e->problem.fusion != EMULATED_ALONE && sums_wrong("result")) {
        sums[count_of(result) - 1] += 64;
    }
    if (e->problem.beta != 0 && !ignored) {
        float *prior = load(result, to, false);
        for (int64_t i = 0; e->rounds_first && i < count_of(result); i++) {
            sums[i] = rounded(result, sums[i]);
        }
        add_row(sums, prior, e->problem.beta, count_of(result));
        free(prior);
    }
    store(result, to, sums, e->wrong);
}

enum { TILE_ROWS = 128, LANES = 16 };

/* Of one tile of rows: lanes in f32, then a tree, as the threads of a tile add. */
static void add_tile(const float *y, int64_t rows, int64_t channels, float *sum, float *square)
{
    float lane[LANES][2] = {{0}};
    for (int64_t r = 0; r < rows; r++) {
        float value = y[r * channels];
        lane[r % LANES][0] += value;
        lane[r % LANES][1] += value * value;
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i][0] += lane[i + half][0];
            lane[i][1] += lane[i + half][1];
        }
    }
    *sum += lane[0][0];
    *square += lane[0][1];
}

/* Of the stored y, per channel, in f32: the sum, and the sum of squares. */
static void channel_sums(const emulated_execution *e, const float *unrounded)
{
    const emulated_problem *p = &e->problem;
    int64_t channels = p->y.channels, rows = p->y.images * p->y.height * p->y.width;
    float *stored = load(&p->y, e->y, false);
    const float *from = sums_wrong("unrounded") ? unrounded : stored;
    int64_t end = sums_wrong("tile") ? (rows - 1) / TILE_ROWS * TILE_ROWS : rows;
    for (int64_t c = 0; c < channels && !(sums_wrong("stale") && e->repeated); c++) {
        float sum = 0, square = 0;
        for (int64_t row = 0; row < end; row += TILE_ROWS) {
            int64_t rest = end - row < TILE_ROWS ? end - row : TILE_ROWS;
            add_tile(from + row * channels + c, rest, channels, &sum, &square);
        }
        ((float *)e->extra[0])[c] = c == channels - 1 && sums_wrong("last") ? 2 * sum + 1 : sum;
        ((float *)e->extra[1])[c] =
            e->wrong || (c == channels - 1 && sums_wrong("square")) ? 2 * square + 1 : square;
    }
    free(stored);
}

static const float *values_of(const emulated_execution *e, int which)
{
    return e->extra[which];
}

static bool gate_wrong(const char *what)
{
    const char *asked = getenv("LS_EMULATED_CONV_WRONG");
    return asked && strncmp(asked, "gate:", 5) == 0 && strcmp(asked + 5, what) == 0;
}

/* The scale, or with the mistake `scale` the one of the first execution. */
static const float *scale_of(const emulated_execution *e)
{
    static struct {
        const void *at;
        float *first;
    } kept[64];
    const float *now = values_of(e, GATE_SCALE);
    int64_t channels = e->problem.x.channels;
    int i = 0;
    if (!gate_wrong("scale")) {
        return now;
    }
    while (i < 63 && kept[i].at != NULL && kept[i].at != now) {
        i++;
    }
    if (kept[i].at != now || !e->repeated) {
        free(kept[i].first);
        kept[i].at = now;
        kept[i].first = room(channels, sizeof *now);
        memcpy(kept[i].first, now, (size_t)channels * sizeof *now);
    }
    return kept[i].first;
}

/* What is added to a norm's output at element i: nothing, the residual, or the second norm's. */
static float joined_with(const emulated_execution *e, const float *residual, int64_t i, int64_t c)
{
    if (residual == NULL || gate_wrong("residual")) {
        return 0;
    }
    if (e->problem.extra_count < JOIN_TENSORS) {
        return residual[i];
    }
    float mean = values_of(e, JOIN_SECOND + GATE_MEAN)[c];
    float inv_std = values_of(e, JOIN_SECOND + GATE_INV_STD)[c];
    float scale = values_of(e, JOIN_SECOND + GATE_SCALE)[c];
    return (residual[i] - mean) * inv_std * scale + values_of(e, JOIN_SECOND + GATE_BIAS)[c];
}

/* Whether the norm's output, computed once more in f32, plus `more` is above 0. `ties`: another
 * order of roundings, which may decide otherwise near 0. */
static bool opens(const emulated_execution *e, const float *scale, float x, float more, int64_t c)
{
    float inv_std = values_of(e, GATE_INV_STD)[c], bias = values_of(e, GATE_BIAS)[c];
    float value = (x - values_of(e, GATE_MEAN)[c]) * inv_std * scale[c];
    float output = value + bias + more;
    float tie = 0x1p-24f * (fabsf(value) + fabsf(bias) + fabsf(more));
    bool near = output != 0 && fabsf(output) < tie;
    return gate_wrong("mask") || (gate_wrong("ties") && near ? output < 0 : output > 0);
}

/* Mistakes of the gradient itself: the last element, or a tile of a sixty-fourth. */
static void spoil_gradient(float *gradient, int64_t count)
{
    bool tile = gate_wrong("tile");
    int64_t from = tile ? count / 2 : count - 1, to = tile ? from + (count + 63) / 64 : count;
    for (int64_t i = from; i < to && (tile || gate_wrong("result")); i++) {
        gradient[i] = 2 * gradient[i] + 1;
    }
}

/* The gradient passes where the ReLU is open. */
static void gate(const emulated_execution *e, float *gradient, const float *x,
                 const float *residual)
{
    int64_t count = count_of(&e->problem.x), channels = e->problem.x.channels;
    const float *scale = scale_of(e);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = i % channels;
        bool open = opens(e, scale, x[i], joined_with(e, residual, i, c), c);
        gradient[i] = open ? gradient[i] : 0;
    }
    spoil_gradient(gradient, count);
    store(&e->problem.extra[GATE_GRADIENT], e->extra[GATE_GRADIENT], gradient, e->wrong);
}

/* Sums of the stored gradient, and of it times the normalised x; the coefficients of dx. Of the
 * norm whose tensors begin at `first`. */
static void norm_sums(const emulated_execution *e, int first, const float *gradient, const float *x)
{
    int64_t channels = e->problem.x.channels, rows = count_of(&e->problem.x) / channels;
    int64_t end = gate_wrong("rows") ? (rows - 1) / TILE_ROWS * TILE_ROWS : rows;
    for (int64_t c = 0; c < channels && !(gate_wrong("stale") && e->repeated); c++) {
        float mean = values_of(e, first + GATE_MEAN)[c],
              inv_std = values_of(e, first + GATE_INV_STD)[c];
        float scale = values_of(e, first + GATE_SCALE)[c] * inv_std, sum = 0, weighted = 0;
        for (int64_t row = 0; row < end; row += TILE_ROWS) {
            float part[2] = {0, 0};
            for (int64_t i = row; i < end && i < row + TILE_ROWS; i++) {
                float g = gradient[i * channels + c];
                part[0] += g;
                part[1] += g * ((x[i * channels + c] - mean) * inv_std);
            }
            sum += part[0];
            weighted += part[1];
        }
        sum = gate_wrong("last") && c == channels - 1 ? 2 * sum + 1 : sum;
        bool spoiled = first == 0 ? gate_wrong("weighted") : gate_wrong("second");
        weighted *= spoiled && c == channels - 1 ? 1.01f : 1;
        float slope = -scale * inv_std * weighted / (float)rows;
        ((float *)e->extra[first + GATE_SCALE_GRADIENT])[c] = weighted;
        ((float *)e->extra[first + GATE_BIAS_GRADIENT])[c] = sum;
        ((float *)e->extra[first + GATE_DY_FACTOR])[c] = scale;
        ((float *)e->extra[first + GATE_X_FACTOR])[c] = slope;
        ((float *)e->extra[first + GATE_OFFSET])[c] = -scale * sum / (float)rows - slope * mean;
    }
}

static void run_gate(const emulated_execution *e, float *gradient)
{
    const emulated_tensor *tensor = e->problem.extra;
    bool joins = e->problem.fusion == EMULATED_JOIN;
    float *x = load(&tensor[GATE_X], e->extra[GATE_X], false), *residual = NULL;
    if (joins) {
        float *other = load(&tensor[JOIN_OTHER], e->extra[JOIN_OTHER], false);
        add_row(gradient, other, gate_wrong("other") ? 0 : 1, count_of(&tensor[JOIN_OTHER]));
        residual = load(&tensor[JOIN_RESIDUAL], e->extra[JOIN_RESIDUAL], false);
        free(other);
    }
    gate(e, gradient, x, residual);
    float *stored = load(&tensor[GATE_GRADIENT], e->extra[GATE_GRADIENT], false);
    const float *summed = gate_wrong("unrounded") ? gradient : stored;
    norm_sums(e, 0, summed, x);
    if (e->problem.extra_count == JOIN_TENSORS) {
        norm_sums(e, JOIN_SECOND, summed, residual);
    }
    free(stored);
    free(residual);
    free(x);
}

static void run_once(const emulated_execution *e, bool last)
{
    const emulated_problem *p = &e->problem;
    const emulated_tensor *result = p->pass == 0 ? &p->y : p->pass == 1 ? &p->x : &p->w;
    float *padding = NULL;
    float *x = p->pass == 1                  ? NULL
               : p->fusion == EMULATED_APPLY ? apply(e, &padding)
                                             : load(&p->x, e->x, e->tf32);
    float *w = p->pass == 2 ? NULL : load(&p->w, e->w, e->tf32);
    float *y = p->pass == 0 ? NULL : load(&p->y, e->y, e->tf32);
    float *sums = room(count_of(result), sizeof *sums);
    if (e->workspace_bytes > 0) {
        memset(e->workspace, 0xff,
               (size_t)e->workspace_bytes); /* the caller must not keep anything there */
    }
    switch (p->pass) {
    case 0:
        forward(e, x, padding, w, sums);
        finish(e, result, e->y, sums, last);
        if (p->fusion != EMULATED_ALONE && last) {
            channel_sums(e, sums);
        }
        break;
    case 1:
        backward_data(e, sums, w, y);
        if (p->fusion == EMULATED_ALONE) {
            finish(e, result, e->x, sums, last);
        } else if (last) {
            run_gate(e, sums);
        }
        break;
    default:
        backward_weights(e, x, padding, sums, y);
        finish(e, result, e->w, sums, last);
    }
    free(sums);
    free(y);
    free(w);
    free(x);
    free(padding);
}

bool emulated_loops_run(void *execution)
{
    const emulated_execution *e = execution;
    for (int i = 0; i < e->times; i++) {
        run_once(e, i == e->times - 1);
    }
    return true;
}
