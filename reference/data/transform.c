#include "transform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"
#include "kernels/core/log.h"
#include "kernels/core/rng.h"

/* torchvision: RandomResizedCrop(scale=(0.08, 1), ratio=(3/4, 4/3)), ten tries; ImageNet's
 * statistics. */
enum { TRIES = 10 };
static const double LEAST_RATIO = 3.0 / 4.0, MOST_RATIO = 4.0 / 3.0;
static const float MEAN[3] = {0.485f, 0.456f, 0.406f}, DEVIATION[3] = {0.229f, 0.224f, 0.225f};

static double unit(uint32_t word)
{
    return (double)(word >> 8) * 0x1p-24; /* [0, 1) */
}

static int below(uint32_t word, int bound)
{
    return (int)(((uint64_t)word * (uint64_t)bound) >> 32);
}

bool ls_transform_rectangle(double area, double ratio, int width, int height, int *crop_width,
                            int *crop_height)
{
    double w = nearbyint(sqrt(area * ratio)), h = nearbyint(sqrt(area / ratio));
    if (!(w > 0 && w <= width && h > 0 && h <= height)) {
        return false;
    }
    *crop_width = (int)w;
    *crop_height = (int)h;
    return true;
}

ls_transform_crop ls_transform_fallback(int width, int height)
{
    ls_transform_crop crop = {.height = height, .width = width};
    double ratio = (double)width / (double)height;
    if (ratio < LEAST_RATIO) {
        crop.height = (int)nearbyint(width / LEAST_RATIO);
    } else if (ratio > MOST_RATIO) {
        crop.width = (int)nearbyint(height * MOST_RATIO);
    }
    crop.top = (height - crop.height) / 2;
    crop.left = (width - crop.width) / 2;
    return crop;
}

ls_transform_crop ls_transform_draw(uint64_t seed, int64_t epoch, int64_t index, int width,
                                    int height)
{
    uint64_t stream = ls_digest_update(ls_rng_stream("crop"), &epoch, sizeof epoch);
    ls_transform_crop crop = ls_transform_fallback(width, height);
    for (int try = 0; try < TRIES; try++) {
        ls_rng_block block = ls_rng_philox(seed, stream + (uint64_t)try, (uint64_t)index);
        double area = (double)width * (double)height * (0.08 + 0.92 * unit(block.word[0]));
        double ratio =
            exp(log(LEAST_RATIO) + (log(MOST_RATIO) - log(LEAST_RATIO)) * unit(block.word[1]));
        int w, h;
        if (ls_transform_rectangle(area, ratio, width, height, &w, &h)) {
            crop = (ls_transform_crop){.top = below(block.word[2], height - h + 1),
                                       .left = below(block.word[3], width - w + 1),
                                       .height = h,
                                       .width = w};
            break;
        }
    }
    stream = ls_digest_update(ls_rng_stream("flip"), &epoch, sizeof epoch);
    crop.flip = ls_rng_uniform(seed, stream, (uint64_t)index) < 0.5f;
    return crop;
}

void ls_transform_statistics(float mean[3], float deviation[3])
{
    memcpy(mean, MEAN, sizeof MEAN);
    memcpy(deviation, DEVIATION, sizeof DEVIATION);
}

void ls_transform_normalise(const uint8_t *byte, int64_t first, int64_t count, int64_t pixels,
                            float *out)
{
    for (int64_t i = 0; i < count;) {
        int channel = (int)((first + i) / pixels % 3);
        int64_t left = pixels - (first + i) % pixels, end = left < count - i ? i + left : count;
        for (; i < end; i++) {
            out[i] = ((float)byte[i] / 255.0f - MEAN[channel]) / DEVIATION[channel];
        }
    }
}

/* ---- resampling ------------------------------------------------------------------------------ */

void ls_transform_release(ls_transform_scratch *scratch)
{
    free(scratch->rows);
    free(scratch->sums);
    free(scratch->weights);
    free(scratch->first);
    *scratch = (ls_transform_scratch){0};
}

/* The triangle filter along one side: output i is the weighted sum of `taps` samples from first[i]
 * on. The side covers [start, start + extent); only its samples, low to high-1, are read. */
typedef struct filter {
    double start, extent;
    int low, high;
    int taps;
    int *first;     /* [size] */
    float *weights; /* [size][taps], each row sums to 1 */
} filter;

static filter plan_filter(double start, double extent, int size, int length)
{
    double step = extent / size > 1.0 ? extent / size : 1.0;
    filter plan = {.start = start, .extent = extent, .taps = 2 * (int)ceil(step) + 1};
    plan.low = (int)floor(start + 1e-6); /* rounding may move a bound that should be whole */
    plan.high = (int)ceil(start + extent - 1e-6);
    plan.low = plan.low < length - 1 ? plan.low : length - 1;
    plan.high = plan.high < length ? plan.high : length;
    plan.high = plan.high > plan.low ? plan.high : plan.low + 1;
    plan.taps = plan.taps < plan.high - plan.low ? plan.taps : plan.high - plan.low;
    return plan;
}

static void make_filter(const filter *plan, int size)
{
    double step = plan->extent / size;
    double support = step > 1.0 ? step : 1.0;
    for (int i = 0; i < size; i++) {
        double centre = plan->start + ((double)i + 0.5) * step;
        int first = (int)floor(centre - support + 0.5);
        first = first < plan->high - plan->taps ? first : plan->high - plan->taps;
        first = first > plan->low ? first : plan->low;
        float *weight = plan->weights + (int64_t)i * plan->taps;
        double sum = 0.0;
        for (int t = 0; t < plan->taps; t++) {
            double distance = fabs((double)(first + t) + 0.5 - centre) / support;
            double value = distance < 1.0 ? 1.0 - distance : 0.0;
            weight[t] = (float)value;
            sum += value;
        }
        for (int t = 0; t < plan->taps; t++) {
            weight[t] = (float)((double)weight[t] / sum);
        }
        plan->first[i] = first;
    }
}

static ls_status reserve(ls_transform_scratch *scratch, int64_t row_floats, int64_t weight_floats,
                         int size)
{
    if (row_floats > scratch->row_floats || weight_floats > scratch->weight_floats ||
        size > scratch->size) {
        row_floats = row_floats > scratch->row_floats ? row_floats : scratch->row_floats;
        weight_floats =
            weight_floats > scratch->weight_floats ? weight_floats : scratch->weight_floats;
        size = size > scratch->size ? size : scratch->size;
        ls_transform_release(scratch);
        scratch->rows = malloc((size_t)row_floats * sizeof *scratch->rows);
        scratch->sums = malloc((size_t)size * sizeof *scratch->sums);
        scratch->weights = malloc((size_t)weight_floats * sizeof *scratch->weights);
        scratch->first = malloc(2 * (size_t)size * sizeof *scratch->first);
        LS_TRY_MEMORY(scratch->rows != NULL && scratch->sums != NULL && scratch->weights != NULL &&
                          scratch->first != NULL,
                      "the scratch to resample an image to %d pixels", size);
        scratch->row_floats = row_floats;
        scratch->weight_floats = weight_floats;
        scratch->size = size;
    }
    return LS_OK;
}

/* One row of pixels to out[3][size]; `flip` writes it from the right. */
static void resample_row(const uint8_t *pixels, const filter *across, int size, bool flip,
                         float *out)
{
    for (int i = 0; i < size; i++) {
        const uint8_t *pixel = pixels + 3 * (int64_t)across->first[i];
        const float *weight = across->weights + (int64_t)i * across->taps;
        float red = 0.0f, green = 0.0f, blue = 0.0f;
        for (int t = 0; t < across->taps; t++) {
            red += weight[t] * (float)pixel[3 * t];
            green += weight[t] * (float)pixel[3 * t + 1];
            blue += weight[t] * (float)pixel[3 * t + 2];
        }
        int at = flip ? size - 1 - i : i;
        out[at] = red;
        out[size + at] = green;
        out[2 * size + at] = blue;
    }
}

/* One channel of an output row from the horizontally resampled rows, in which the three channels
 * are side by side. Weights sum to 1 but for rounding, so a sum may be a little above 255. */
static void combine_rows(const float *rows, const float *weight, int taps, int size, float *sums,
                         uint8_t *out)
{
    for (int x = 0; x < size; x++) {
        sums[x] = 0.5f;
    }
    for (int t = 0; t < taps; t++) {
        const float *row = rows + (int64_t)t * 3 * size;
#pragma omp simd
        for (int x = 0; x < size; x++) {
            sums[x] += weight[t] * row[x];
        }
    }
#pragma omp simd
    for (int x = 0; x < size; x++) {
        out[x] = (uint8_t)(sums[x] < 255.0f ? (int)sums[x] : 255);
    }
}

ls_status ls_transform_apply(ls_transform_scratch *scratch, const uint8_t *rgb, int width,
                             int height, int full_width, int full_height,
                             const ls_transform_crop *crop, int size, uint8_t *out)
{
    double reduce_x = (double)width / full_width, reduce_y = (double)height / full_height;
    double extent_x = crop->width * reduce_x, extent_y = crop->height * reduce_y;
    filter across = plan_filter(crop->left * reduce_x, extent_x, size, width);
    filter down = plan_filter(crop->top * reduce_y, extent_y, size, height);
    int64_t across_weights = (int64_t)size * across.taps, down_weights = (int64_t)size * down.taps;
    LS_TRY(reserve(scratch, (int64_t)height * 3 * size, across_weights + down_weights, size));
    across.first = scratch->first;
    across.weights = scratch->weights;
    down.first = scratch->first + size;
    down.weights = scratch->weights + across_weights;
    make_filter(&across, size);
    make_filter(&down, size);
    int first_row = down.first[0], last_row = down.first[size - 1] + down.taps;
    for (int y = first_row; y < last_row; y++) {
        resample_row(rgb + (int64_t)y * width * 3, &across, size, crop->flip,
                     scratch->rows + (int64_t)y * 3 * size);
    }
    for (int y = 0; y < size; y++) {
        for (int channel = 0; channel < 3; channel++) {
            const float *rows = scratch->rows + ((int64_t)down.first[y] * 3 + channel) * size;
            combine_rows(rows, down.weights + (int64_t)y * down.taps, down.taps, size,
                         scratch->sums, out + ((int64_t)channel * size + y) * size);
        }
    }
    return LS_OK;
}
