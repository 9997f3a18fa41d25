#include "compare.h"

/* "seen" is the largest value over all correct steps of results/bounds/bounds.tsv: 947 at half
 * levels and 454 at O0, of 18 networks, levels and worlds. */
static const ls_compare_bound half_bounds[LS_COMPARE_PARTS] = {
    [LS_COMPARE_WHOLE] = {2, "two correct subjects differ by rounding that is as large as the "
                             "ideal's own; 1.1 seen"},
    [LS_COMPARE_TENSOR] = {4, "a tensor's error is a sum of few correlated ones; 2.3 seen"},
    [LS_COMPARE_SMALL] = {8, "below 64 elements a norm scatters; 5.1 seen"},
    [LS_COMPARE_BLOCK] = {8, "the largest of up to 2e5 blocks of 64 elements; 4.2 seen"},
    [LS_COMPARE_EDGE] = {8, "the largest of some hundred edges of 8 elements; 4.2 seen"},
};

/* An f32 sum of n terms whose partial sums stay as large as their terms has an error of sqrt(n)
 * units. If the input of a convolution has a mean of many standard deviations, the partial sums of
 * its weight gradient grow with that mean and cancel at the end: 300 r was measured at a mean of 10
 * deviations and more, with any plain f32 sum, so such cases show nothing here. No input in the
 * suite is like that: images are normalised, and the output of a ReLU has a mean of about one
 * deviation. */
static const ls_compare_bound single_bounds[LS_COMPARE_PARTS] = {
    [LS_COMPARE_WHOLE] = {32, "f32 sums of n terms err by up to sqrt(n) units, the ideal by one; "
                              "5.6 seen, 7.2 at 128 pixels"},
    [LS_COMPARE_TENSOR] = {32, "as the whole; 8.0 seen, 8.6 at 128 pixels"},
    [LS_COMPARE_SMALL] = {32, "as the whole; 12 seen"},
    [LS_COMPARE_BLOCK] = {32, "as the whole, and the largest of up to 2e5 blocks; 18 seen"},
    [LS_COMPARE_EDGE] = {32, "as the whole, and eight elements only; 17 seen"},
};

const ls_compare_bound *ls_compare_bounds_of(int level)
{
    return level == 0 ? single_bounds : half_bounds;
}

/* At O0 the errors of the sums, several times those of the stores (e/r of 4 to 6 is measured), are
 * added. */
ls_compare_bound ls_compare_bounds_tie(int level)
{
    return level == 0 ? (ls_compare_bound){64, "as at half levels, and f32 sums err by 4 to 6 "
                                               "stores; 30 seen"}
                      : (ls_compare_bound){16, "the largest of 1e6 normal values is 5 RMS; 14 "
                                               "seen"};
}

ls_compare_bound ls_compare_bounds_coarse(void)
{
    return (ls_compare_bound){2, "twice the largest of 8 ideal runs with different noise"};
}

ls_compare_bound ls_compare_bounds_weak_ideal_error(void)
{
    return (ls_compare_bound){0.1, "an ideal that is 10 % off shows nothing of a subject"};
}

ls_compare_bound ls_compare_bounds_weak_share(void)
{
    return (ls_compare_bound){1.0 / 16, "an error 16 times below the ideal's: half was not in use"};
}
