#include "unfold.h"

#include <omp.h>
#include <string.h>

#include "kernels/core/plant.h"
#include "loops.h"
#include "parallel.h"

/* One output pixel: kernel rows of input pixels that lie side by side. */
static void unfold_pixel(const ls_dnn_shape *s, const char *image, int h, int w, size_t pixel,
                         char *row)
{
    int kernel = s->kernel;
    size_t line = (size_t)kernel * pixel;
    int left = w < 0 ? -w : 0, right = w + kernel > s->in_width ? w + kernel - s->in_width : 0;
    left = left > kernel ? kernel : left;
    right = right > kernel - left ? kernel - left : right;
    for (int k = 0; k < kernel; k++, row += line) {
        bool out = h + k < 0 || h + k >= s->in_height;
        size_t before = out ? line : (size_t)left * pixel, after = out ? 0 : (size_t)right * pixel;
        memset(row, LS_PLANT(unfolded_padding_kept, 0, 0x3c), before);
        memset(row + line - after, LS_PLANT(unfolded_padding_kept, 0, 0x3c), after);
        if (line > before + after) {
            memcpy(row + before, image + (size_t)((h + k) * s->in_width + w + left) * pixel,
                   line - before - after);
        }
    }
}

void ls_unfold(const ls_backend *backend, const ls_dnn_shape *s, const void *in, void *rows,
               size_t element)
{
    size_t pixel = (size_t)s->in_channels * element;
    size_t image = (size_t)s->in_height * (size_t)s->in_width * pixel;
    size_t row = (size_t)s->kernel * (size_t)s->kernel * pixel;
    int64_t lines = (int64_t)s->batch * s->out_height;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t line = 0; line < lines; line++) {
        const char *from = (const char *)in + (size_t)(line / s->out_height) * image;
        char *to = (char *)rows + (size_t)(line * s->out_width) * row;
        int h = (int)(line % s->out_height) * s->stride - s->pad;
        for (int i = 0; i < s->out_width; i++, to += row) {
            unfold_pixel(s, from, h, i * s->stride - s->pad, pixel, to);
        }
    }
}

/* The output position whose tap k covers position `in`: negative for none. */
static int covering(const ls_dnn_shape *s, int in, int k, int outputs)
{
    int at = in + s->pad - k;
    return at >= 0 && at % s->stride == 0 && at / s->stride < outputs ? at / s->stride : -1;
}

static void fold_line(const ls_backend *backend, const ls_dnn_shape *s, const float *rows, int h,
                      ls_dtype type, char *to)
{
    int64_t channels = s->in_channels, taps = (int64_t)s->kernel * s->kernel;
    for (int w = 0; w < s->in_width; w++) {
        for (int64_t c = 0; c < channels; c += LS_LOOPS_STRIP) {
            int64_t count = channels - c < LS_LOOPS_STRIP ? channels - c : LS_LOOPS_STRIP;
            float sum[LS_LOOPS_STRIP];
            const float *result = NULL;
            for (int64_t tap = 0; tap < taps; tap++) {
                int oh = covering(s, h, (int)(tap / s->kernel), s->out_height);
                int ow = covering(s, w, (int)(tap % s->kernel), s->out_width);
                if (oh < 0 || ow < 0) {
                    continue;
                }
                const float *row =
                    rows + (((int64_t)oh * s->out_width + ow) * taps + tap) * channels + c;
                for (int64_t i = 0; result != NULL && i < count; i++) {
                    sum[i] = result[i] + row[i];
                }
                result = result != NULL ? sum : row;
            }
            if (result == NULL) {
                memset(sum, 0, sizeof sum);
                result = sum;
            }
            backend->loops->narrow(type, result,
                                   to + (size_t)(w * channels + c) * ls_dtype_bytes(type), count);
        }
    }
}

void ls_unfold_back(const ls_backend *backend, const ls_dnn_shape *s, int images, const float *rows,
                    ls_dtype type, void *in)
{
    int64_t taps = (int64_t)s->kernel * s->kernel, lines = (int64_t)images * s->in_height;
    int64_t per_image = (int64_t)s->out_height * s->out_width * taps * s->in_channels;
    size_t bytes = (size_t)s->in_width * (size_t)s->in_channels * ls_dtype_bytes(type);
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t line = 0; line < lines; line++) {
        fold_line(backend, s, rows + line / s->in_height * per_image, (int)(line % s->in_height),
                  type, (char *)in + (size_t)line * bytes);
    }
}

void ls_unfold_store(const ls_backend *backend, const ls_dnn_shape *s, ls_dtype rounded,
                     const float *sums, float *row, const ls_tensor *grad)
{
    int64_t taps = (int64_t)s->kernel * s->kernel, channels = s->in_channels;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t oc = 0; oc < s->out_channels; oc++) {
        const float *from = sums + oc * taps * channels;
        float *to = row + omp_get_thread_num() * taps * channels;
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t t = 0; t < taps; t++) {
                to[c * taps + t] = from[t * channels + c];
            }
        }
        ls_parallel_store_part(backend, rounded, to, grad, oc * taps * channels, taps * channels);
    }
}

void ls_unfold_turn(const ls_backend *backend, const ls_dnn_shape *s, const float *plain,
                    float *turned)
{
    int64_t taps = (int64_t)s->kernel * s->kernel, columns = taps * s->in_channels;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t row = 0; row < columns; row++) {
        const float *from = plain + row % s->in_channels * taps + row / s->in_channels;
        for (int64_t o = 0; o < s->out_channels; o++) {
            turned[row * s->out_channels + o] = from[o * columns];
        }
    }
}
