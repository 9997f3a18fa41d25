#include "transform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/rng.h"

/* torchvision: RandomResizedCrop(scale=(0.08, 1), ratio=(3/4, 4/3)), ten tries; ImageNet's
 * statistics. */
enum { TRIES = 10 };
static const double LEAST_RATIO = 3.0 / 4.0, MOST_RATIO = 4.0 / 3.0;
static const float MEAN[3] = {0.485f, 0.456f, 0.406f}, DEVIATION[3] = {0.229f, 0.224f, 0.225f};

/* One try of the rule: width and height for `area` and `ratio`, rounded half to even. False if the
 * rectangle does not fit. */
static bool choose_rectangle(double area, double ratio, int width, int height, int *crop_width,
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

/* The result after ten failed tries: the largest centred rectangle within the ratios. */
static ls_transform_crop largest_crop(int width, int height)
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

ls_transform_resize ls_transform_centre(int width, int height, int shorter, int size)
{
    LS_ASSERT(size <= shorter);
    /* int(size * long / short), in Python's division of whole numbers */
    double longer = (double)((int64_t)shorter * (width > height ? width : height)) /
                    (double)(width > height ? height : width);
    ls_transform_resize to = {.width = width > height ? (int)longer : shorter,
                              .height = width > height ? shorter : (int)longer};
    to.left = (int)nearbyint((to.width - size) / 2.0);
    to.top = (int)nearbyint((to.height - size) / 2.0);
    return to;
}

uint32_t ls_transform_key(uint64_t seed, int64_t epoch, int64_t index)
{
    return (uint32_t)((seed * 1000003 + (uint64_t)epoch) * 1000003 + (uint64_t)index);
}

ls_transform_crop ls_transform_draw(uint64_t seed, int64_t epoch, int64_t index, int width,
                                    int height)
{
    /* torch.log of the ratios in f32, as RandomResizedCrop takes them: the first is the f32 above
     * the nearest */
    const double least = -0x1.26962p-2, most = 0x1.269624p-2;
    ls_rng_torch generator;
    ls_rng_torch_seed(&generator,
                      ls_transform_key(seed, LS_PLANT(crops_alike_in_epochs, epoch, 0), index));
    ls_transform_crop crop = largest_crop(width, height);
    for (int try = 0; try < TRIES; try++) {
        double area =
            (double)width * (double)height * (double)ls_rng_torch_uniform(&generator, 0.08, 1.0);
        double ratio = (double)(float)exp((double)ls_rng_torch_uniform(&generator, least, most));
        int w, h;
        if (choose_rectangle(area, ratio, width, height, &w, &h)) {
            crop.top = (int)ls_rng_torch_below(&generator, (uint32_t)(height - h + 1));
            crop.left = (int)ls_rng_torch_below(&generator, (uint32_t)(width - w + 1));
            crop.height = h;
            crop.width = w;
            break;
        }
    }
    crop.flip = ls_rng_torch_uniform(&generator, 0.0, 1.0) < 0.5f;
    return crop;
}

ls_transform_crop ls_transform_draw_padded(uint64_t seed, int64_t epoch, int64_t index, int size,
                                           int pad)
{
    ls_rng_torch generator;
    ls_rng_torch_seed(&generator, ls_transform_key(seed, epoch, index));
    ls_transform_crop crop = {.height = size, .width = size};
    uint32_t places = (uint32_t)(2 * pad + LS_PLANT(cifar_last_place_lost, 1, 0));
    crop.top = (int)ls_rng_torch_below(&generator, places);
    crop.left = (int)ls_rng_torch_below(&generator, places);
    crop.flip = ls_rng_torch_uniform(&generator, 0.0, 1.0) < 0.5f;
    return crop;
}

void ls_transform_apply_padded(const uint8_t *planes, int size, int pad,
                               const ls_transform_crop *crop, uint8_t *out)
{
    for (int row = 0; row < 3 * size; row++) {
        int plane = row / size, y = row % size + crop->top - pad;
        for (int x = 0; x < size; x++) {
            int at = (crop->flip ? size - 1 - x : x) + crop->left - pad;
            bool inside = y >= 0 && y < size && at >= 0 && at < size;
            *out++ = inside ? planes[(plane * size + y) * size + at] : 0;
        }
    }
}

void ls_transform_apply(ls_resample_scratch *scratch, const uint8_t *rgb, int row_pixels,
                        const ls_transform_crop *crop, int size, uint8_t *out)
{
    const ls_resample_job job = {.rgb = rgb,
                                 .row_pixels = row_pixels,
                                 .left = crop->left,
                                 .top = crop->top,
                                 .width = crop->width,
                                 .height = crop->height,
                                 .to_width = size,
                                 .to_height = size,
                                 .window_width = size,
                                 .window_height = size,
                                 .flip = crop->flip};
    ls_transform_resample(scratch, &job, out);
}

void ls_transform_apply_centre(ls_resample_scratch *scratch, const uint8_t *rgb, int width,
                               int height, int shorter, int size, uint8_t *out)
{
    ls_transform_resize to = ls_transform_centre(width, height, shorter, size);
    const ls_resample_job job = {.rgb = rgb,
                                 .row_pixels = width,
                                 .width = width,
                                 .height = height,
                                 .to_width = to.width,
                                 .to_height = to.height,
                                 .window_left = to.left,
                                 .window_top = to.top,
                                 .window_width = size,
                                 .window_height = size};
    ls_transform_resample(scratch, &job, out);
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

enum { PRECISION = 22 }; /* Pillow's PRECISION_BITS: 32 - 8 - 2 */

void ls_transform_release(ls_resample_scratch *scratch)
{
    free(scratch->rows);
    free(scratch->sums);
    free(scratch->weights);
    free(scratch->first);
    free(scratch->count);
    *scratch = (ls_resample_scratch){0};
}

/* One side: output i of `length` is the weighted sum of count[i] samples from first[i] on. */
typedef struct filter {
    int length, taps; /* taps: the most samples */
    int *first, *count;
    int32_t *weight; /* [length][taps] */
} filter;

static int most_taps(int from, int to)
{
    double scale = (double)from / to;
    return 2 * (int)ceil(scale > 1.0 ? scale : 1.0) + 1;
}

static double triangle(double distance)
{
    return fabs(distance) < 1.0 ? 1.0 - fabs(distance) : 0.0;
}

/* Outputs begin .. begin + length - 1 of `from` samples resized to `to`. */
static void make_filter(filter *out, int from, int to, int begin)
{
    double scale = (double)from / to, support = scale > 1.0 ? scale : 1.0;
    double inverse = 1.0 / support;
    for (int i = 0; i < out->length; i++) {
        double centre = (begin + i + 0.5) * scale, sum = 0.0;
        int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
        first = first > 0 ? first : 0;
        end = end < from ? end : from;
        for (int x = first; x < end; x++) {
            sum += triangle((x - centre + 0.5) * inverse);
        }
        for (int x = first; x < end; x++) {
            double share = triangle((x - centre + 0.5) * inverse) / sum;
            out->weight[(int64_t)i * out->taps + x - first] =
                (int32_t)(0.5 + share * (1 << PRECISION));
        }
        out->first[i] = first;
        out->count[i] = end - first;
    }
}

static uint8_t to_byte(int32_t sum)
{
    int32_t value = sum >> PRECISION;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* One row of the source to out[3][length]; `flip` writes it from the right. */
static void across(const uint8_t *pixels, const filter *filter, bool flip, uint8_t *out)
{
    int length = filter->length;
    for (int i = 0; i < length; i++) {
        const uint8_t *pixel = pixels + 3 * (int64_t)filter->first[i];
        const int32_t *weight = filter->weight + (int64_t)i * filter->taps;
        int32_t red = 1 << (PRECISION - 1), green = red, blue = red;
        for (int t = 0; t < filter->count[i]; t++) {
            red += weight[t] * pixel[3 * t];
            green += weight[t] * pixel[3 * t + 1];
            blue += weight[t] * pixel[3 * t + 2];
        }
        int at = flip ? length - 1 - i : i;
        out[at] = to_byte(red);
        out[length + at] = to_byte(green);
        out[2 * length + at] = to_byte(blue);
    }
}

/* Output row i, [3][width], from the rows that are resized across. */
static void down(const uint8_t *rows, const filter *filter, int i, int width, int32_t *sums)
{
    int values = 3 * width;
    const int32_t *weight = filter->weight + (int64_t)i * filter->taps;
    for (int x = 0; x < values; x++) {
        sums[x] = 1 << (PRECISION - 1);
    }
    for (int t = 0; t < filter->count[i]; t++) {
        const uint8_t *row = rows + (int64_t)(filter->first[i] + t) * values;
#pragma omp simd
        for (int x = 0; x < values; x++) {
            sums[x] += weight[t] * row[x];
        }
    }
}

static void reserve(ls_resample_scratch *scratch, int64_t row_bytes, int64_t weight_count,
                    int64_t sides)
{
    if (row_bytes > scratch->row_bytes || weight_count > scratch->weight_count ||
        sides > scratch->sides) {
        row_bytes = row_bytes > scratch->row_bytes ? row_bytes : scratch->row_bytes;
        weight_count = weight_count > scratch->weight_count ? weight_count : scratch->weight_count;
        sides = sides > scratch->sides ? sides : scratch->sides;
        ls_transform_release(scratch);
        *scratch = (ls_resample_scratch){
            .rows = malloc((size_t)row_bytes),
            .sums = malloc(3 * (size_t)sides * sizeof *scratch->sums),
            .weights = malloc((size_t)weight_count * sizeof *scratch->weights),
            .first = malloc((size_t)sides * sizeof *scratch->first),
            .count = malloc((size_t)sides * sizeof *scratch->count),
            .row_bytes = row_bytes,
            .weight_count = weight_count,
            .sides = sides,
        };
        LS_MEMORY(scratch->rows != NULL && scratch->sums != NULL && scratch->weights != NULL &&
                  scratch->first != NULL && scratch->count != NULL);
    }
}

void ls_transform_resample(ls_resample_scratch *scratch, const ls_resample_job *job, uint8_t *out)
{
    int wide = job->window_width, high = job->window_height;
    filter columns = {.length = wide, .taps = most_taps(job->width, job->to_width)};
    filter rows = {.length = high, .taps = most_taps(job->height, job->to_height)};
    int64_t column_weights = (int64_t)wide * columns.taps;
    reserve(scratch, (int64_t)job->height * 3 * wide, column_weights + (int64_t)high * rows.taps,
            wide + high);
    columns.first = scratch->first;
    columns.count = scratch->count;
    columns.weight = scratch->weights;
    rows.first = scratch->first + wide;
    rows.count = scratch->count + wide;
    rows.weight = scratch->weights + column_weights;
    make_filter(&columns, job->width, job->to_width, job->window_left);
    make_filter(&rows, job->height, job->to_height, job->window_top);
    int end = rows.first[high - 1] + rows.count[high - 1];
    for (int y = rows.first[0]; y < end; y++) {
        const uint8_t *row = job->rgb + 3 * ((int64_t)(job->top + y) * job->row_pixels + job->left);
        across(row, &columns, job->flip, scratch->rows + (int64_t)y * 3 * wide);
    }
    for (int y = 0; y < high; y++) {
        down(scratch->rows, &rows, y, wide, scratch->sums);
        for (int channel = 0; channel < 3; channel++) {
            const int32_t *sums = scratch->sums + (int64_t)channel * wide;
            uint8_t *to = out + ((int64_t)channel * high + y) * wide;
            for (int x = 0; x < wide; x++) {
                to[x] = to_byte(sums[x]);
            }
        }
    }
}
