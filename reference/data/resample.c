#include "transform.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/core/log.h"

enum { PRECISION = 22 }; /* Pillow's PRECISION_BITS: 32 - 8 - 2 */

void ls_resample_release(ls_resample_scratch *scratch)
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

static ls_status reserve(ls_resample_scratch *scratch, int64_t row_bytes, int64_t weight_count,
                         int64_t sides)
{
    if (row_bytes > scratch->row_bytes || weight_count > scratch->weight_count ||
        sides > scratch->sides) {
        row_bytes = row_bytes > scratch->row_bytes ? row_bytes : scratch->row_bytes;
        weight_count = weight_count > scratch->weight_count ? weight_count : scratch->weight_count;
        sides = sides > scratch->sides ? sides : scratch->sides;
        ls_resample_release(scratch);
        scratch->rows = malloc((size_t)row_bytes);
        scratch->sums = malloc(3 * (size_t)sides * sizeof *scratch->sums);
        scratch->weights = malloc((size_t)weight_count * sizeof *scratch->weights);
        scratch->first = malloc((size_t)sides * sizeof *scratch->first);
        scratch->count = malloc((size_t)sides * sizeof *scratch->count);
        LS_TRY_MEMORY(scratch->rows != NULL && scratch->sums != NULL && scratch->weights != NULL &&
                          scratch->first != NULL && scratch->count != NULL,
                      "the scratch to resample a picture, %lld bytes", (long long)row_bytes);
        scratch->row_bytes = row_bytes;
        scratch->weight_count = weight_count;
        scratch->sides = sides;
    }
    return LS_OK;
}

ls_status ls_resample(ls_resample_scratch *scratch, const ls_resample_job *job, uint8_t *out)
{
    int wide = job->window_width, high = job->window_height;
    filter columns = {.length = wide, .taps = most_taps(job->width, job->to_width)};
    filter rows = {.length = high, .taps = most_taps(job->height, job->to_height)};
    int64_t column_weights = (int64_t)wide * columns.taps;
    LS_TRY(reserve(scratch, (int64_t)job->height * 3 * wide,
                   column_weights + (int64_t)high * rows.taps, wide + high));
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
    return LS_OK;
}
