#include "stats.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/sort.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

static const double HALVES_DRIFT_MAX = 0.05; /* see ls_stats_compare_halves */

static double *sorted_copy(const double *value, int count)
{
    double *copy = ls_list_make(1, (size_t)count * sizeof *copy);
    memcpy(copy, value, (size_t)count * sizeof *copy);
    ls_sort_doubles(copy, count);
    return copy;
}

static double percentile_of_sorted(const double *sorted, int count, double fraction)
{
    double position = fraction * (count - 1);
    int below = (int)floor(position);
    if (below >= count - 1) {
        return sorted[count - 1];
    }
    double weight = position - below;
    return sorted[below] + weight * (sorted[below + 1] - sorted[below]);
}

double ls_stats_percentile(const double *value, int count, double fraction)
{
    if (count <= 0) {
        return NAN;
    }
    double *sorted = sorted_copy(value, count);
    double result = percentile_of_sorted(sorted, count, fraction);
    free(sorted);
    return result;
}

/* A sample prepared for many resamples: a resample is a count per place in the sorted order, so its
 * median is found by one walk instead of a sort. */
typedef struct sample {
    int count, block;
    double *sorted; /* [count] */
    int *place;     /* [count]: where value i stands in `sorted` */
    int *drawn;     /* [count]: how often each place was drawn */
    uint64_t stream;
} sample;

static sample sample_open(const double *value, int count, const char *name)
{
    sample s = {.count = count, .stream = ls_rng_stream(name)};
    s.block = (int)lround(cbrt((double)count));
    s.block = s.block < 1 ? 1 : s.block;
    s.sorted = sorted_copy(value, count);
    s.place = malloc((size_t)count * sizeof *s.place);
    s.drawn = malloc((size_t)count * sizeof *s.drawn);
    LS_MEMORY(s.place != NULL && s.drawn != NULL);
    for (int i = 0; i < count; i++) {
        int low = 0, high = count - 1;
        while (low < high) {
            int middle = (low + high) / 2;
            if (s.sorted[middle] < value[i]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        s.place[i] = low; /* equal values share a place: they are the same value */
    }
    return s;
}

static void sample_close(sample *s)
{
    free(s->sorted);
    free(s->place);
    free(s->drawn);
}

/* The value at place `index` (from 0) of the drawn values in order. */
static double drawn_at(const sample *s, int index)
{
    int seen = 0;
    for (int place = 0; place < s->count; place++) {
        seen += s->drawn[place];
        if (seen > index) {
            return s->sorted[place];
        }
    }
    return s->sorted[s->count - 1];
}

static double resampled_median(sample *s, int resample)
{
    memset(s->drawn, 0, (size_t)s->count * sizeof *s->drawn);
    int blocks = (s->count + s->block - 1) / s->block, taken = 0;
    for (int b = 0; b < blocks; b++) {
        uint64_t index = (uint64_t)resample * (uint64_t)blocks + (uint64_t)b;
        int start = (int)ls_rng_below(0, s->stream, index, (uint32_t)s->count);
        for (int i = 0; i < s->block && taken < s->count; i++, taken++) {
            s->drawn[s->place[(start + i) % s->count]]++;
        }
    }
    if (s->count % 2 == 1) {
        return drawn_at(s, s->count / 2);
    }
    return 0.5 * (drawn_at(s, s->count / 2 - 1) + drawn_at(s, s->count / 2));
}

static void interval_from(double *resampled, ls_stats_interval *interval)
{
    ls_sort_doubles(resampled, LS_STATS_RESAMPLES);
    interval->low = percentile_of_sorted(resampled, LS_STATS_RESAMPLES, 0.025);
    interval->high = percentile_of_sorted(resampled, LS_STATS_RESAMPLES, 0.975);
}

ls_stats_interval ls_stats_median(const double *value, int count, const char *name)
{
    ls_stats_interval interval = {ls_stats_percentile(value, count, 0.5), NAN, NAN};
    if (count < LS_STATS_COUNT_MIN) {
        if (count >= LS_STATS_RANGE_COUNT_MIN) {
            interval.low = ls_stats_percentile(value, count, 0);
            interval.high = ls_stats_percentile(value, count, 1);
        }
        return interval;
    }
    double resampled[LS_STATS_RESAMPLES];
    sample s = sample_open(value, count, name);
    for (int r = 0; r < LS_STATS_RESAMPLES; r++) {
        resampled[r] = resampled_median(&s, r);
    }
    sample_close(&s);
    interval_from(resampled, &interval);
    return interval;
}

ls_stats_interval ls_stats_ratio(const double *over, int over_count, const double *under,
                                 int under_count, const char *name)
{
    ls_stats_interval interval = {NAN, NAN, NAN};
    if (over_count <= 0 || under_count <= 0) {
        return interval;
    }
    interval.value =
        ls_stats_percentile(over, over_count, 0.5) / ls_stats_percentile(under, under_count, 0.5);
    if (over_count < LS_STATS_COUNT_MIN || under_count < LS_STATS_COUNT_MIN) {
        ls_stats_interval a = ls_stats_median(over, over_count, name);
        ls_stats_interval b = ls_stats_median(under, under_count, name);
        interval.low = a.low / b.high; /* NaN where one has none */
        interval.high = a.high / b.low;
        return interval;
    }
    double resampled[LS_STATS_RESAMPLES];
    sample a = sample_open(over, over_count, name);
    sample b = sample_open(under, under_count, name);
    b.stream ^= 0x9e3779b97f4a7c15u; /* any constant: the two samples are drawn independently */
    for (int r = 0; r < LS_STATS_RESAMPLES; r++) {
        resampled[r] = resampled_median(&a, r) / resampled_median(&b, r);
    }
    sample_close(&a);
    sample_close(&b);
    interval_from(resampled, &interval);
    return interval;
}

ls_stats_interval ls_stats_divided(ls_stats_interval interval, double by)
{
    return (ls_stats_interval){interval.value / by, interval.low / by, interval.high / by};
}

ls_stats_interval ls_stats_ratio_of(ls_stats_interval over, ls_stats_interval under)
{
    ls_stats_interval ratio = {over.value / under.value, NAN, NAN};
    bool positive = over.value > 0 && over.low > 0 && under.value > 0 && under.low > 0;
    if (!positive || !isfinite(over.high) || !isfinite(under.high)) {
        return ratio;
    }
    double down[] = {log(over.value / over.low), log(under.high / under.value)};
    double up[] = {log(over.high / over.value), log(under.value / under.low)};
    ratio.low = ratio.value * exp(-sqrt(down[0] * down[0] + down[1] * down[1]));
    ratio.high = ratio.value * exp(sqrt(up[0] * up[0] + up[1] * up[1]));
    return ratio;
}

/* How many of the least averages an interval of 95 % leaves out at each end, and one: the largest k
 * for which a sum of signed ranks is below k with a probability of at most 2.5 %. Of count values
 * all 2^count choices of signs are as likely; ways[w] of them have the sum w. */
static int signed_ranks_left_out(int count)
{
    int sums = count * (count + 1) / 2 + 1, k = 0;
    double *ways = ls_list_make((size_t)sums, sizeof *ways), below = 0;
    ways[0] = 1;
    for (int rank = 1; rank <= count; rank++) {
        for (int w = sums - 1; w >= rank; w--) {
            ways[w] += ways[w - rank];
        }
    }
    /* 2.5 % at each end */
    while (k < sums && (below + ways[k]) * exp2(-count) <= 0.025) {
        below += ways[k++];
    }
    free(ways);
    return k;
}

ls_stats_interval ls_stats_paired(const double *difference, int count)
{
    int averages = 0, k = count < LS_STATS_COUNT_MIN ? 0 : signed_ranks_left_out(count);
    double *average = ls_list_make((size_t)(count * (count + 1) / 2), sizeof *average);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j <= i; j++) {
            average[averages++] = (difference[i] + difference[j]) / 2;
        }
    }
    ls_sort_doubles(average, averages);
    ls_stats_interval centre = {ls_stats_percentile(average, averages, 0.5), NAN, NAN};
    if (k > 0) {
        centre.low = average[k - 1];
        centre.high = average[averages - k];
    }
    free(average);
    return centre;
}

/* Probability that Student's t with `freedom` degrees lies in [0, t], by Simpson's rule. */
static double student_half(double t, int freedom)
{
    enum { PANELS = 400 }; /* even; the error is below 1e-9 for t up to 30 */
    double n = freedom, step = t / PANELS, sum = 0;
    for (int i = 0; i <= PANELS; i++) {
        double x = i * step;
        double weight = i == 0 || i == PANELS ? 1 : i % 2 == 1 ? 4 : 2;
        sum += weight * pow(1 + x * x / n, -(n + 1) / 2);
    }
    return sum * step / 3 * exp(lgamma((n + 1) / 2) - lgamma(n / 2)) / sqrt(n * acos(-1));
}

/* The t that [-t, t] holds with probability `confidence`. */
static double student_quantile(double confidence, int freedom)
{
    double low = 0, high = 40; /* beyond it lies less than 0.07 % even with two degrees */
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (2 * student_half(middle, freedom) < confidence) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (low + high) / 2;
}

ls_stats_interval ls_stats_prediction(const double *value, int count, double confidence)
{
    ls_stats_interval out = {NAN, NAN, NAN};
    double mean = 0, squares = 0;
    for (int i = 0; i < count; i++) {
        mean += value[i] / count;
    }
    out.value = count > 0 ? mean : NAN;
    if (count < 3) {
        return out;
    }
    for (int i = 0; i < count; i++) {
        squares += (value[i] - mean) * (value[i] - mean);
    }
    double reach = student_quantile(confidence, count - 1) * sqrt(squares / (count - 1)) *
                   sqrt(1 + 1.0 / count);
    out.low = mean - reach;
    out.high = mean + reach;
    return out;
}

void ls_stats_sentence(ls_stats_interval speed_ratio, char *text, int bytes)
{
    double r = speed_ratio.value, low = speed_ratio.low, high = speed_ratio.high;
    if (!isfinite(r)) {
        snprintf(text, (size_t)bytes, "cannot be compared: one of the two has no number");
    } else if (!isfinite(low) || !isfinite(high)) {
        snprintf(text, (size_t)bytes, "%s by %.1f %%, too few steps for an interval",
                 r < 1 ? "slower" : "faster", fabs(r - 1) * 100);
    } else if (high < 1) {
        snprintf(text, (size_t)bytes, "slower by %.1f %% [%.1f, %.1f]", (1 - r) * 100,
                 (1 - high) * 100, (1 - low) * 100);
    } else if (low > 1) {
        snprintf(text, (size_t)bytes, "faster by %.1f %% [%.1f, %.1f]", (r - 1) * 100,
                 (low - 1) * 100, (high - 1) * 100);
    } else {
        snprintf(text, (size_t)bytes, "no difference seen above %.1f %%",
                 fmax(high - 1, 1 - low) * 100);
    }
}

ls_stats_halves ls_stats_compare_halves(const double *value, int count, const char *name,
                                        ls_stats_interval *ratio)
{
    int half = count / 2;
    *ratio = ls_stats_ratio(value + (count - half), half, value, half, name);
    if (half < LS_STATS_COUNT_MIN) {
        return LS_STATS_HALVES_UNKNOWN;
    }
    bool resolved = ratio->low > 1 || ratio->high < 1;
    return resolved && fabs(ratio->value - 1) > HALVES_DRIFT_MAX ? LS_STATS_HALVES_DIFFER
                                                                 : LS_STATS_HALVES_AGREE;
}

void ls_stats_add_json(cJSON *to, const char *name, ls_stats_interval value)
{
    LS_TEXT(low, 64, "%s_low", name);
    LS_TEXT(high, 64, "%s_high", name);
    ls_json_add_number(to, name, value.value);
    ls_json_add_number(to, low, value.low);
    ls_json_add_number(to, high, value.high);
}

ls_stats_interval ls_stats_read_json(const cJSON *from, const char *name)
{
    LS_TEXT(low, 64, "%s_low", name);
    LS_TEXT(high, 64, "%s_high", name);
    return (ls_stats_interval){ls_json_number(from, name, NAN), ls_json_number(from, low, NAN),
                               ls_json_number(from, high, NAN)};
}
