/* Medians, and the statements that they support. Step times have a long right tail and drift
 * slowly, so nothing here assumes a normal distribution or independent steps: intervals are 95 %
 * percentile intervals of a circular block bootstrap (Politis and Romano 1992) with blocks of about
 * count^(1/3) neighbours. Resampling is a pure function of the name given, so a report made again
 * is the same to the last digit. */
#ifndef LS_STATS_H
#define LS_STATS_H

#include <stdbool.h>

struct cJSON;

enum {
    LS_STATS_RESAMPLES = 1000,
    /* Below six values no 95 % interval of a median exists: even [least, greatest] misses it with
     * probability 2 / 2^5 = 6 %. With four or five that range is given instead (88 and 94 %); below
     * four it would hold the median less than 7 times in 8, and nothing is given. */
    LS_STATS_COUNT_MIN = 6,
    LS_STATS_RANGE_COUNT_MIN = 4,
};

typedef struct ls_stats_interval {
    double value, low, high; /* low and high NaN: too few values; value NaN: no value at all */
} ls_stats_interval;

typedef enum ls_stats_halves {
    LS_STATS_HALVES_AGREE,
    LS_STATS_HALVES_DIFFER,
    LS_STATS_HALVES_UNKNOWN, /* fewer than two times LS_STATS_COUNT_MIN values */
} ls_stats_halves;

/* The value below which `fraction` (0 to 1) of the values lie, linear between neighbours
 * (definition 7 of Hyndman and Fan 1996, numpy's default). NaN for no values. `value` is in any
 * order and not changed. */
double ls_stats_percentile(const double *value, int count, double fraction);

/* Median of values in order of time, with its interval. `name` chooses the resampling stream. */
ls_stats_interval ls_stats_median(const double *value, int count, const char *name);

/* Median of `over` divided by the median of `under`, both resampled, with the interval of the
 * ratio. Where one has a range only, the quotients of opposite ends, which are farther apart than
 * needed. */
ls_stats_interval ls_stats_ratio(const double *over, int over_count, const double *under,
                                 int under_count, const char *name);

/* The same from two intervals alone, when the values are no longer there: the method of variance
 * estimates recovery on logarithms (Donner and Zou 2012). Values and bounds must be positive. */
ls_stats_interval ls_stats_ratio_of(ls_stats_interval over, ls_stats_interval under);

/* The centre of differences of pairs measured in turn, which are symmetric about it where both of a
 * pair meet the same disturbances: the median of the averages of all two of them (Hodges and
 * Lehmann 1963), with the exact interval of Wilcoxon's signed ranks, of at least 95 % for any such
 * distribution (Hollander, Wolfe and Chicken 2014, 3.3). A quarter of the values may be disturbed
 * without bounds. low and high are NaN below LS_STATS_COUNT_MIN values. */
ls_stats_interval ls_stats_paired(const double *difference, int count);

/* Where one more value drawn like these would fall with probability `confidence`: mean and
 * Student's interval of prediction, mean +- t * s * sqrt(1 + 1 / count) with count - 1 degrees of
 * freedom (Hahn 1969). low and high are NaN below three values. */
ls_stats_interval ls_stats_prediction(const double *value, int count, double confidence);

/* Value and bounds divided by a number above 0. */
ls_stats_interval ls_stats_divided(ls_stats_interval interval, double by);

/* A ratio of speeds (this one / that one) in words: "slower by 3.1 % [2.4, 3.9]", "faster by ...",
 * "no difference seen above 0.8 %" when the interval holds 1, or that there are too few steps. */
void ls_stats_sentence(ls_stats_interval speed_ratio, char *text, int bytes);

/* Adds the members <name>, <name>_low and <name>_high; and reads them back, NaN where absent. */
void ls_stats_add_json(struct cJSON *to, const char *name, ls_stats_interval value);
ls_stats_interval ls_stats_read_json(const struct cJSON *from, const char *name);

/* Whether the two halves of a window have the same median. They differ when the
 * interval of the ratio (second / first, stored in *ratio) leaves out 1 and the medians are more
 * than 5 % apart: less drift than that changes no sentence of a report, and long windows resolve
 * drifts that do not matter. */
ls_stats_halves ls_stats_compare_halves(const double *value, int count, const char *name,
                                        ls_stats_interval *ratio);

#endif
