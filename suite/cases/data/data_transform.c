/* What becomes of one image: where it is cropped, how often it is flipped, how it is normalised. */
#include "data.h"

#include <math.h>

#include "kernels/core/sort.h"
#include "kernels/core/list.h"
#include "reference/data/transform.h"

enum { SIZE = 8, DRAWS = 20000, MODEL_DRAWS = 200000, FEATURES = 4 };

static const ls_tol apart = LS_TOL(
    0.0185, "Kolmogorov-Smirnov distance of 20000 and 200000 draws of one distribution: above "
            "2.5 * sqrt(1/20000 + 1/200000) once in 100000 times");

static double draw_unit(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) * 0x1p-53;
}

/* torchvision's RandomResizedCrop as its documentation says it, with xorshift numbers. */
static void model_crop(uint64_t *state, int width, int height, double *feature)
{
    int w = width, h = height, top, left; /* what ten failed tries end in, centred */
    if ((double)width / height < 3.0 / 4) {
        h = (int)nearbyint(width / (3.0 / 4));
    } else if ((double)width / height > 4.0 / 3) {
        w = (int)nearbyint(height * (4.0 / 3));
    }
    top = (height - h) / 2;
    left = (width - w) / 2;
    for (int attempt = 0; attempt < 10; attempt++) {
        double area = (0.08 + 0.92 * draw_unit(state)) * width * height;
        double ratio = exp(log(3.0 / 4) + (log(4.0 / 3) - log(3.0 / 4)) * draw_unit(state));
        int try_w = (int)nearbyint(sqrt(area * ratio)), try_h = (int)nearbyint(sqrt(area / ratio));
        if (try_w > 0 && try_w <= width && try_h > 0 && try_h <= height) {
            w = try_w;
            h = try_h;
            top = (int)(draw_unit(state) * (height - h + 1));
            left = (int)(draw_unit(state) * (width - w + 1));
            break;
        }
    }
    feature[0] = (double)w * h;
    feature[1] = (double)w / h;
    feature[2] = top;
    feature[3] = left;
}

static double distance(double *a, int a_count, double *b, int b_count)
{
    double largest = 0;
    ls_sort_doubles(a, a_count);
    ls_sort_doubles(b, b_count);
    for (int i = 0, j = 0; i < a_count && j < b_count;) {
        double at = a[i] < b[j] ? a[i] : b[j];
        while (i < a_count && a[i] <= at) {
            i++;
        }
        while (j < b_count && b[j] <= at) {
            j++;
        }
        largest = fmax(largest, fabs((double)i / a_count - (double)j / b_count));
    }
    return largest;
}

static const char *const feature_name[FEATURES] = {"area", "ratio", "top", "left"};

/* One feature of crops out of pictures of one size. */
struct crop {
    int feature, width, height;
};

static void judge_crop(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct crop *crop = row->data;
    int which = crop->feature, width = crop->width, height = crop->height;
    uint64_t state = 88172645463325252ull;
    double *ours = ls_list_make(DRAWS + MODEL_DRAWS, sizeof *ours);
    for (int i = 0; i < DRAWS; i++) {
        ls_transform_crop c = ls_transform_draw(11, i / 1000, i % 1000, width, height);
        double feature[FEATURES] = {(double)c.width * c.height, (double)c.width / c.height, c.top,
                                    c.left};
        ours[i] = feature[which];
        if (c.top < 0 || c.left < 0 || c.width < 1 || c.height < 1 || c.top + c.height > height ||
            c.left + c.width > width) {
            ls_verdict_fail(out, "crop %d leaves the image: %dx%d at %d,%d", i, c.width, c.height,
                            c.left, c.top);
        }
    }
    for (int i = 0; i < MODEL_DRAWS; i++) {
        double feature[FEATURES];
        model_crop(&state, width, height, feature);
        ours[DRAWS + i] = feature[which];
    }
    double d = distance(ours, DRAWS, ours + DRAWS, MODEL_DRAWS);
    free(ours);
    if (!ls_verdict_worst(out, d, &apart, "")) {
        ls_verdict_fail(out, "%s of %d crops is %.4f from RandomResizedCrop's, limit %.4f",
                        feature_name[which], DRAWS, d, apart.value);
    }
    ls_verdict_pass(out, DRAWS, "%s of %d crops is %.4f from RandomResizedCrop's, limit %.4f",
                    feature_name[which], DRAWS, d, apart.value);
}

/* What torchvision 0.29 with torch 2.15 draws after torch.manual_seed(ls_transform_key(...)). */
typedef struct drawn {
    uint64_t seed;
    int64_t epoch, index;
    int width, height;
    ls_transform_crop crop;
} drawn;

typedef struct draws {
    int count, pad; /* pad 0: none */
    const drawn *draw;
} draws;

/* RandomResizedCrop.get_params, then torch.rand(1) < 0.5. */
static const drawn resized[] = {
    {0, 0, 0, 500, 375, {17, 80, 294, 343, true}},
    {4, 0, 52, 10, 1000, {493, 0, 13, 10, true}},
    {2, 0, 117, 64, 64, {15, 20, 49, 40, false}},
    {2, 0, 208, 10, 1000, {493, 0, 13, 10, false}},
    {5, 0, 520, 10, 1000, {493, 0, 13, 10, true}},
    {3, 0, 1040, 640, 260, {1, 231, 211, 216, false}},
    {1, 0, 1560, 500, 375, {28, 208, 251, 213, true}},
    {6, 0, 2080, 10, 1000, {493, 0, 13, 10, false}},
    {4, 0, 2600, 640, 260, {74, 26, 185, 179, true}},
    {2, 0, 3120, 500, 375, {3, 101, 368, 303, true}},
    {0, 0, 3640, 10, 1000, {493, 0, 13, 10, true}},
    {5, 0, 4160, 640, 260, {6, 138, 247, 261, false}},
    {3, 0, 4680, 500, 375, {8, 147, 362, 292, false}},
    {1, 0, 5200, 10, 1000, {493, 0, 13, 10, false}},
    {6, 0, 5720, 640, 260, {11, 83, 214, 173, false}},
    {4, 0, 6240, 500, 375, {68, 37, 299, 361, true}},
    {2, 1, 6760, 10, 1000, {493, 0, 13, 10, true}},
    {0, 1, 7280, 640, 260, {12, 314, 237, 297, true}},
    {5, 1, 7800, 500, 375, {14, 190, 254, 235, true}},
    {3, 1, 8320, 10, 1000, {493, 0, 13, 10, true}},
    {1, 1, 8840, 640, 260, {61, 3, 134, 153, true}},
    {6, 1, 9360, 500, 375, {155, 51, 181, 144, false}},
    {4, 1, 9880, 10, 1000, {493, 0, 13, 10, false}},
    {2, 1, 10400, 640, 260, {10, 91, 157, 175, false}},
};

/* RandomCrop(32, padding=4) and RandomHorizontalFlip, on an image whose pixels say their places. */
#define OF_32(seed, epoch, index, top, left, flip) \
    {                                              \
        seed, epoch, index, 32, 32,                \
        {                                          \
            top, left, 32, 32, flip                \
        }                                          \
    }
static const drawn padded[] = {
    OF_32(0, 0, 0, 8, 0, true),     OF_32(4, 0, 780, 7, 1, false),   OF_32(1, 0, 1560, 8, 4, false),
    OF_32(5, 0, 2340, 7, 3, true),  OF_32(2, 0, 3120, 3, 8, false),  OF_32(6, 0, 3900, 7, 3, true),
    OF_32(3, 0, 4680, 0, 3, true),  OF_32(0, 0, 5460, 8, 0, true),   OF_32(4, 0, 6240, 8, 6, true),
    OF_32(1, 1, 7020, 4, 8, true),  OF_32(5, 1, 7800, 2, 2, true),   OF_32(2, 1, 8580, 7, 8, true),
    OF_32(6, 1, 9360, 7, 0, false), OF_32(3, 1, 10140, 7, 1, false), OF_32(0, 1, 10920, 4, 8, true),
    OF_32(4, 1, 11700, 3, 8, true), OF_32(1, 1, 12480, 5, 5, false),
};

static void judge_draws(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const draws *all = row->data;
    (void)job;
    for (int i = 0; i < all->count; i++) {
        const drawn *d = &all->draw[i];
        ls_transform_crop have =
            all->pad > 0 ? ls_transform_draw_padded(d->seed, d->epoch, d->index, d->width, all->pad)
                         : ls_transform_draw(d->seed, d->epoch, d->index, d->width, d->height);
        if (have.top != d->crop.top || have.left != d->crop.left || have.height != d->crop.height ||
            have.width != d->crop.width || have.flip != d->crop.flip) {
            ls_verdict_fail(out,
                            "image %lld of %dx%d, seed %llu, epoch %lld: %dx%d at %d,%d, flip %d; "
                            "torchvision: %dx%d at %d,%d, flip %d",
                            (long long)d->index, d->width, d->height, (unsigned long long)d->seed,
                            (long long)d->epoch, have.width, have.height, have.left, have.top,
                            have.flip, d->crop.width, d->crop.height, d->crop.left, d->crop.top,
                            d->crop.flip);
        }
    }
    ls_verdict_pass(out, all->count, "%d crops and flips are torchvision's", all->count);
}

static const ls_tol coin = LS_TOL(0.016, "4.5 standard deviations of the mean of 20000 coins");

/* Half are flipped, alike in every epoch, at every parity of image and epoch. */
static void judge_flip(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    (void)job;
    double worst = 0;
    for (int way = 0; way < 4; way++) {
        int flips = 0;
        for (int i = 0; i < DRAWS; i++) {
            int epoch = way / 2 + 2 * (i / 1000), index = way % 2 + 2 * (i % 1000);
            flips += ls_transform_draw(11, epoch, index, 40, 30).flip;
        }
        worst = fmax(worst, fabs((double)flips / DRAWS - 0.5));
    }
    if (!ls_verdict_worst(out, worst, &coin, "")) {
        ls_verdict_fail(out, "the share of flips is %.4f away from a half", worst);
    } else {
        ls_verdict_pass(out, 4 * DRAWS, "the share of flips is within %.4f of a half", worst);
    }
}

/* An image's flip in one epoch says nothing of it in the next, nor under another seed. */
static void judge_flip_again(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    bool seeds = *(const bool *)row->data;
    int same = 0;
    for (int i = 0; i < DRAWS; i++) {
        bool one = ls_transform_draw(11, 0, i, 40, 30).flip;
        same += one == ls_transform_draw(seeds ? 12 : 11, seeds ? 0 : 1, i, 40, 30).flip;
    }
    double off = fabs((double)same / DRAWS - 0.5);
    if (!ls_verdict_worst(out, off, &coin, "")) {
        ls_verdict_fail(out, "%d of %d images are flipped as in the %s before", same, DRAWS,
                        seeds ? "seed" : "epoch");
    } else {
        ls_verdict_pass(out, DRAWS, "%d of %d images are flipped as before", same, DRAWS);
    }
}

/* Flipped output is the mirrored output; without resampling, values are torchvision's. */
static void judge_apply(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const double mean[3] = {0.485, 0.456, 0.406}, deviation[3] = {0.229, 0.224, 0.225};
    static const ls_tol rounding = {
        0x1p-20,
        "three f32 roundings of values up to 2.7: byte/255, minus the mean, over the deviation"};
    bool flip = *(const bool *)row->data;
    (void)job;
    uint8_t rgb[SIZE * SIZE * 3], bytes[3 * SIZE * SIZE];
    float got[3 * SIZE * SIZE];
    ls_resample_scratch scratch = {0};
    for (int i = 0; i < SIZE * SIZE * 3; i++) {
        rgb[i] = (uint8_t)(i * 37 + i / 7);
    }
    ls_transform_crop whole = {0, 0, SIZE, SIZE, flip};
    ls_transform_apply(&scratch, rgb, SIZE, &whole, SIZE, bytes);
    ls_transform_normalise(bytes, 0, 3 * SIZE * SIZE, SIZE * SIZE, got);
    for (int i = 0; i < 3 * SIZE * SIZE && out->code == LS_PASS; i++) {
        int c = i / (SIZE * SIZE), y = i / SIZE % SIZE, x = i % SIZE;
        int from = flip ? SIZE - 1 - x : x;
        double want = (rgb[(y * SIZE + from) * 3 + c] / 255.0 - mean[c]) / deviation[c];
        if (!(fabs(got[i] - want) <= rounding.value)) {
            ls_verdict_fail(out, "channel %d at %d,%d is %.7f, expected %.7f", c, x, y, got[i],
                            want);
        }
    }
    ls_transform_release(&scratch);
    ls_verdict_pass(out, 3 * SIZE * SIZE, "%d values as expected", 3 * SIZE * SIZE);
}

/* ---- resampling ------------------------------------------------------------------------------ */

enum { WIDE = 48, HIGH = 32 };

/* A picture that rises evenly: red to the right, green downwards, blue both ways. Widened by a
 * whole number, or not at all, the triangle keeps such a slope, so that a sample is the picture's
 * value at its place. */
static double slope(int channel, double x, double y)
{
    return channel == 0 ? 10 + 4 * x : channel == 1 ? 20 + 6 * y : 10 + 2 * x + 3 * y;
}

static const struct resampled {
    const char *id;
    ls_transform_crop crop;
} resamples[] = {
    {"whole", {.top = 0, .left = 0, .height = 32, .width = 48}},
    {"smaller", {.top = 5, .left = 9, .height = 16, .width = 24}},
    {"larger", {.top = 13, .left = 30, .height = 5, .width = 6}},
    {"mirrored", {.top = 5, .left = 9, .height = 16, .width = 24, .flip = true}},
};

static const ls_tol level = LS_TOL(
    1.01, "of 255: rounded to a whole number across and again down, with weights of 22 bits; "
          "a pixel is 2 to 6 apart from the next");

static void judge_resample(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct resampled *r = row->data;
    const ls_transform_crop *crop = &r->crop;
    double left = crop->left, top = crop->top, wide = crop->width, high = crop->height;
    double step_x = wide / SIZE, step_y = high / SIZE, worst = 0;
    double reach_x = fmax(step_x, 1), reach_y = fmax(step_y, 1);
    uint8_t rgb[WIDE * HIGH * 3], got[3 * SIZE * SIZE];
    ls_resample_scratch scratch = {0};
    int compared = 0;
    for (int i = 0; i < WIDE * HIGH; i++) { /* pixels outside the crop must not be read */
        int x = i % WIDE, y = i / WIDE;
        bool inside = x >= left && x < left + wide && y >= top && y < top + high;
        for (int c = 0; c < 3; c++) {
            rgb[3 * i + c] = inside ? (uint8_t)slope(c, x, y) : (uint8_t)(255 * ((x + y) % 2));
        }
    }
    ls_transform_apply(&scratch, rgb, WIDE, crop, SIZE, got);
    for (int i = 0; i < 3 * SIZE * SIZE && out->code == LS_PASS; i++) {
        int c = i / (SIZE * SIZE), v = i / SIZE % SIZE, u = i % SIZE;
        double x = left + ((crop->flip ? SIZE - 1 - u : u) + 0.5) * step_x;
        double y = top + (v + 0.5) * step_y;
        double value = got[i];
        bool cut = x - reach_x < left || x + reach_x > left + wide || y - reach_y < top ||
                   y + reach_y > top + high; /* the triangle ends at the crop's edge */
        double want = slope(c, x - 0.5, y - 0.5), off = fabs(value - want);
        double most = cut ? (4 * reach_x + 6 * reach_y) / 2 : level.value;
        worst = cut ? worst : fmax(worst, off);
        compared += !cut;
        if (!(off <= most)) {
            ls_verdict_fail(out, "channel %d at %d,%d is %.3f of 255, expected %.3f", c, v, u,
                            value, want);
        }
    }
    ls_transform_release(&scratch);
    ls_verdict_measured(out, worst, level.value, "of 255", level.why);
    if (compared == 0) {
        ls_verdict_set(out, LS_WEAK, "no value lies within the crop");
    }
    ls_verdict_pass(out, compared, "%d values lie where the crop does", compared);
}

#define COUNT(table) (sizeof(table) / sizeof *(table))

static const ls_row rows[] = {
    {"data.crop.torch", "I9", judge_draws, NULL, &(const draws){COUNT(resized), 0, resized}},
    {"data.cifar.crop", "I23", judge_draws, NULL, &(const draws){COUNT(padded), 4, padded}},
    {"data.flip.share", "I9", judge_flip},
    {"data.flip.epochs", "I10", judge_flip_again, NULL, &(const bool){false}},
    {"data.flip.seeds", "I10", judge_flip_again, NULL, &(const bool){true}},
    {"data.normalise", "I9", judge_apply, NULL, &(const bool){false}},
    {"data.flip.mirror", "I9", judge_apply, NULL, &(const bool){true}},
};

void ls_data_transform_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const int shape[3][2] = {{500, 375}, {64, 64}, {90, 300}};
    LS_ROWS(list, settings, rows);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "I13", .judge = judge_resample}),
                 "data.resample.%s", resamples);
    for (int i = 0; i < 3 * FEATURES; i++) {
        struct crop *crop = ls_rows_memory(list, sizeof *crop);
        const ls_row row = {.requirement = "I9", .judge = judge_crop, .data = crop};
        *crop = (struct crop){i % FEATURES, shape[i / FEATURES][0], shape[i / FEATURES][1]};
        ls_rows_format(list, settings, &row, "data.crop.%s.%dx%d", feature_name[crop->feature],
                       crop->width, crop->height);
    }
}
