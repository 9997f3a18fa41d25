/* Augmentation, synthetic images, folders and the pictures made for them. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/digest.h"
#include "kernels/core/rng.h"
#include "reference/data/dataset.h"
#include "reference/data/make.h"
#include "reference/data/transform.h"
#include "data_root.h"

/* ---- crops ----------------------------------------------------------------------------------- */

START_TEST(crop_rounding)
{
    int w, h;
    /* sqrt(A a) and sqrt(A / a) round half to even: 2.5 -> 2, 3.5 -> 4, 0.5 -> 0 (refused) */
    ck_assert(ls_transform_rectangle(2.5 * 3.5, 2.5 / 3.5, 10, 10, &w, &h));
    ck_assert(w == 2 && h == 4);
    ck_assert(!ls_transform_rectangle(0.25, 1.0, 10, 10, &w, &h));
    ck_assert(ls_transform_rectangle(100.0, 1.0, 10, 10, &w, &h));
    ck_assert(w == 10 && h == 10);
    ck_assert(!ls_transform_rectangle(100.0, 1.2, 10, 10, &w, &h)); /* 11 wide */
    ck_assert(!ls_transform_rectangle(100.0, 0.8, 10, 10, &w, &h)); /* 11 high */
    /* torchvision: 10x1000 (w x h) -> (493,0,13,10); 1000x10 -> (0,493,10,13) */
    ls_transform_crop crop = ls_transform_fallback(10, 1000);
    ck_assert(crop.top == 493 && crop.left == 0 && crop.height == 13 && crop.width == 10);
    crop = ls_transform_fallback(1000, 10);
    ck_assert(crop.top == 0 && crop.left == 493 && crop.height == 10 && crop.width == 13);
    crop = ls_transform_fallback(40, 33);
    ck_assert(crop.top == 0 && crop.left == 0 && crop.height == 33 && crop.width == 40);
}
END_TEST

START_TEST(crop_draws)
{
    enum { DRAWS = 4000 };
    int flips = 0, distinct = 0;
    double area = 0;
    ls_transform_crop last = {0};
    for (int i = 0; i < DRAWS; i++) {
        ls_transform_crop crop = ls_transform_draw(7, 2, i, 500, 375);
        ck_assert(crop.top >= 0 && crop.left >= 0 && crop.width > 0 && crop.height > 0);
        ck_assert(crop.top + crop.height <= 375 && crop.left + crop.width <= 500);
        double ratio = (double)crop.width / crop.height;
        /* half a pixel of rounding on sides of at least 100 */
        ck_assert(ratio > 0.75 * 0.99 && ratio < 4.0 / 3.0 * 1.01);
        area += (double)crop.width * crop.height / (500.0 * 375.0);
        flips += crop.flip;
        distinct += memcmp(&crop, &last, sizeof crop) != 0;
        last = crop;
        ls_transform_crop again = ls_transform_draw(7, 2, i, 500, 375);
        ck_assert(again.top == crop.top && again.left == crop.left && again.width == crop.width);
    }
    /* 5 standard deviations of a fair coin */
    ck_assert_int_le(abs(flips - DRAWS / 2), (int)(5 * 0.5 * sqrt(DRAWS)));
    /* 0.54 is the mean of uniform(0.08, 1); rectangles of more than the image's height are refused,
     * which takes from the large ones */
    ck_assert_double_gt(area / DRAWS, 0.40);
    ck_assert_double_lt(area / DRAWS, 0.54);
    ck_assert_int_gt(distinct, DRAWS * 99 / 100);
    ls_transform_crop a = ls_transform_draw(7, 3, 0, 500, 375);
    ls_transform_crop b = ls_transform_draw(7, 2, 0, 500, 375);
    ck_assert(a.top != b.top || a.left != b.left || a.width != b.width);
}
END_TEST

START_TEST(normalisation)
{
    /* the goldens have 8 digits after the point; f32 near 2.25 has steps of 2.4e-7, three roundings
     */
    const double limit = 3 * 2.4e-7;
    ck_assert_double_eq_tol(ls_transform_normalise(255.0f, 0), 2.2489083, limit);
    ck_assert_double_eq_tol(ls_transform_normalise(127.5f, 1), 0.1964286, limit);
    ck_assert_double_eq_tol(ls_transform_normalise(0.0f, 2), -1.8044445, limit);
}
END_TEST

/* f32 resampling: two passes of a few roundings of values up to 255 / 57 = 4.5, weights that sum to
 * 1 within 3 ulp: 32 ulp of 4.5 are generous and 300 times below one level. */
#define RESAMPLE_LIMIT (32 * 4.5 * FLT_EPSILON)

static void apply(const uint8_t *rgb, int width, int height, ls_transform_crop crop, int size,
                  float *out)
{
    ls_transform_scratch scratch = {0};
    ck_assert_int_eq(
        ls_transform_apply(&scratch, rgb, width, height, width, height, &crop, size, out), LS_OK);
    ls_transform_release(&scratch);
}

START_TEST(resampling)
{
    enum { W = 12, H = 9, S = 4 };
    uint8_t rgb[W * H * 3];
    float out[3 * W * W];
    for (int i = 0; i < W * H * 3; i++) {
        rgb[i] = (uint8_t)ls_rng_below(1, 2, (uint64_t)i, 256);
    }
    /* same size: the pixels themselves, flipped or not */
    for (int flip = 0; flip < 2; flip++) {
        ls_transform_crop crop = {.top = 3, .left = 5, .height = S, .width = S, .flip = flip != 0};
        apply(rgb, W, H, crop, S, out);
        for (int c = 0; c < 3; c++) {
            for (int y = 0; y < S; y++) {
                for (int x = 0; x < S; x++) {
                    int from = flip ? S - 1 - x : x;
                    float byte = rgb[((3 + y) * W + 5 + from) * 3 + c];
                    ck_assert_float_eq_tol(out[(c * S + y) * S + x],
                                           ls_transform_normalise(byte, c), RESAMPLE_LIMIT);
                }
            }
        }
    }
    /* half the size of an 8x8 crop, inner pixels: the triangle over 4 samples, 1 3 3 1 over 8 */
    ls_transform_crop crop = {.top = 1, .left = 2, .height = 8, .width = 8};
    apply(rgb, W, H, crop, S, out);
    static const float weight[4] = {0.125f, 0.375f, 0.375f, 0.125f};
    for (int y = 1; y < S - 1; y++) {
        for (int x = 1; x < S - 1; x++) {
            float sum = 0;
            for (int v = 0; v < 4; v++) {
                for (int u = 0; u < 4; u++) {
                    int row = 1 + 2 * y - 1 + v, column = 2 + 2 * x - 1 + u;
                    sum += weight[v] * weight[u] * (float)rgb[(row * W + column) * 3 + 1];
                }
            }
            ck_assert_float_eq_tol(out[(S + y) * S + x], ls_transform_normalise(sum, 1),
                                   RESAMPLE_LIMIT);
        }
    }
    /* a flat image stays flat at any scale, and nothing outside the crop is read */
    memset(rgb, 200, sizeof rgb);
    for (int side = 1; side <= H; side++) {
        for (int size = 1; size <= W; size++) {
            uint8_t framed[W * H * 3];
            memset(framed, 0, sizeof framed);
            for (int y = 0; y < side; y++) {
                memset(framed + y * W * 3, 200, (size_t)side * 3);
            }
            apply(framed, W, H, (ls_transform_crop){.height = side, .width = side}, size, out);
            for (int i = 0; i < 3 * size * size; i++) {
                ck_assert_float_eq_tol(out[i], ls_transform_normalise(200, i / (size * size)),
                                       RESAMPLE_LIMIT);
            }
        }
    }
}
END_TEST

/* ---- synthetic ------------------------------------------------------------------------------- */

enum { SIZE = 16, PIXELS = 3 * SIZE * SIZE, CLASSES = 10, IMAGES = 2000 };

START_TEST(synthetic_is_pure)
{
    static float a[PIXELS], b[PIXELS], waves[2 * SIZE];
    int64_t first, second;
    ls_dataset_synthetic_image(3, 41, CLASSES, SIZE, waves, a, &first);
    ls_dataset_synthetic_image(3, 42, CLASSES, SIZE, waves, b, &second);
    ck_assert_mem_ne(a, b, sizeof a);
    ls_dataset_synthetic_image(4, 41, CLASSES, SIZE, waves, b, &second);
    ck_assert_mem_ne(a, b, sizeof a);
    memset(b, 0xff, sizeof b);
    ls_dataset_synthetic_image(3, 41, CLASSES, SIZE, waves, b, &second);
    ck_assert_mem_eq(a, b, sizeof a);
    ck_assert_int_eq(first, second);
}
END_TEST

/* The nearest class mean, learned from half of the images, must classify the other half far above
 * chance (a tenth), or there would be nothing to learn; values must have the range of normalised
 * ones. */
START_TEST(synthetic_is_learnable)
{
    static float image[PIXELS], waves[2 * SIZE];
    static double mean[CLASSES][PIXELS];
    int count[CLASSES] = {0}, right = 0;
    int64_t target;
    double sum = 0, squares = 0;
    for (int i = 0; i < IMAGES; i++) {
        ls_dataset_synthetic_image(1, i, CLASSES, SIZE, waves, image, &target);
        ck_assert(target >= 0 && target < CLASSES);
        count[target]++;
        for (int p = 0; p < PIXELS; p++) {
            mean[target][p] += (double)image[p];
            sum += (double)image[p];
            squares += (double)image[p] * (double)image[p];
        }
    }
    for (int k = 0; k < CLASSES; k++) {
        /* 200 expected, deviation sqrt(180): 6 of them */
        ck_assert_int_le(abs(count[k] - IMAGES / CLASSES), 6 * 14);
        for (int p = 0; p < PIXELS; p++) {
            mean[k][p] /= count[k];
        }
    }
    for (int i = IMAGES; i < 2 * IMAGES; i++) {
        ls_dataset_synthetic_image(1, i, CLASSES, SIZE, waves, image, &target);
        double least = INFINITY;
        int best = -1;
        for (int k = 0; k < CLASSES; k++) {
            double distance = 0;
            for (int p = 0; p < PIXELS; p++) {
                distance += ((double)image[p] - mean[k][p]) * ((double)image[p] - mean[k][p]);
            }
            if (distance < least) {
                least = distance;
                best = k;
            }
        }
        right += best == target;
    }
    ck_assert_int_gt(right, IMAGES / 2);
    double n = (double)IMAGES * PIXELS, spread = sqrt(squares / n - sum / n * (sum / n));
    ck_assert(fabs(sum / n) < 0.5 && spread > 0.3 && spread < 1.5);
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

START_TEST(folder_order)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/order", ROOT);
    /* code points: C < a10 < a2 < b < é */
    shell("mkdir -p %s/b/sub %s/a2 %s/C %s/a10", dir);
    shell("mkdir %s/\303\251 %s/.hidden && touch %s/\303\251/1.jpg %s/note.txt", dir);
    shell("cd %s && touch b/z.jpg b/sub/a.jpg b/readme.txt a2/10.JPG a2/9.jpeg", dir);
    shell("cd %s && touch a2/.x.jpg C/q.Jpeg a10/1.jpg", dir);
    ls_dataset_files folder;
    ck_assert_int_eq(ls_dataset_files_scan(dir, &folder), LS_OK);
    static const char *const name[] = {"C", "a10", "a2", "b", "\303\251"};
    static const char *const file[] = {"C/q.Jpeg", "a10/1.jpg",   "a2/10.JPG",     "a2/9.jpeg",
                                       "b/z.jpg",  "b/sub/a.jpg", "\303\251/1.jpg"};
    static const int target[] = {0, 1, 2, 2, 3, 3, 4};
    ck_assert_int_eq(folder.class_count, 5);
    ck_assert_int_eq(folder.count, 7);
    for (int i = 0; i < 5; i++) {
        ck_assert_str_eq(folder.class_name[i], name[i]);
    }
    for (int i = 0; i < 7; i++) {
        ck_assert_str_eq(folder.path[i] + strlen(dir) + 1, file[i]);
        ck_assert_int_eq(folder.target[i], target[i]);
    }
    ls_dataset_files_free(&folder);
    shell("ln -s .. %s/b/sub/up", dir); /* a link that leads back up ends in an error */
    ck_assert_int_eq(ls_dataset_files_scan(dir, &folder), LS_ERR_USAGE);
}
END_TEST

static uint64_t folder_digest(const char *dir)
{
    ls_dataset_files folder;
    uint64_t digest = LS_DIGEST_START;
    static char bytes[1 << 16];
    ck_assert_int_eq(ls_dataset_files_scan(dir, &folder), LS_OK);
    for (int64_t i = 0; i < folder.count; i++) {
        FILE *stream = fopen(folder.path[i], "rb");
        ck_assert_ptr_nonnull(stream);
        digest = ls_digest_update(digest, bytes, fread(bytes, 1, sizeof bytes, stream));
        fclose(stream);
    }
    ls_dataset_files_free(&folder);
    return digest;
}

START_TEST(made_folders)
{
    char a[128], b[128], c[128];
    snprintf(a, sizeof a, "%s/made/a/", ROOT);
    snprintf(b, sizeof b, "%s/made/b", ROOT);
    snprintf(c, sizeof c, "%s/made/c", ROOT);
    ck_assert_int_eq(ls_make_folder(a, 3, 32, 5), LS_OK);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 5), LS_OK);
    ck_assert_int_eq(ls_make_folder(c, 3, 32, 6), LS_OK);
    uint64_t digest = folder_digest(a);
    ck_assert_uint_eq(digest, folder_digest(b));
    ck_assert_uint_ne(digest, folder_digest(c));
    ls_dataset_files folder;
    ck_assert_int_eq(ls_dataset_files_scan(b, &folder), LS_OK);
    ck_assert_int_eq(folder.class_count, LS_MAKE_CLASSES);
    ck_assert_int_eq(folder.count, 3 * LS_MAKE_CLASSES);
    for (int k = 0; k < LS_MAKE_CLASSES; k++) {
        ck_assert_str_eq(folder.class_name[k], ls_make_class_name(k));
    }
    ls_dataset_files_free(&folder);
    /* equal and complete: at once, nothing written (a missing image stays missing) */
    shell("rm %s/ring/00001.jpg", b);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 5), LS_OK);
    shell("test ! -e %s/ring/00001.jpg", b);
    /* interrupted: made again */
    shell("sed -i s/complete/making/ %s/.lockstep-data", b);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 5), LS_OK);
    ck_assert_uint_eq(digest, folder_digest(b));
    /* other settings, or someone's own folder */
    ck_assert_int_eq(ls_make_folder(b, 4, 32, 5), LS_ERR_USAGE);
    ck_assert_int_eq(ls_make_folder(b, 3, 32, 6), LS_ERR_USAGE);
    ck_assert_int_eq(ls_make_folder(ROOT, 3, 32, 5), LS_ERR_USAGE);
    ck_assert_uint_eq(digest, folder_digest(b));
    ck_assert_int_eq(ls_make_folder(c, 0, 32, 6), LS_ERR_USAGE);
    ck_assert_int_eq(ls_make_folder(c, 3, 5000, 6), LS_ERR_USAGE);
}
END_TEST

int main(void)
{
    make_root();
    Suite *suite = suite_create("data");
    TCase *tests = tcase_create("data");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, crop_rounding);
    tcase_add_test(tests, crop_draws);
    tcase_add_test(tests, normalisation);
    tcase_add_test(tests, resampling);
    tcase_add_test(tests, synthetic_is_pure);
    tcase_add_test(tests, synthetic_is_learnable);
    tcase_add_test(tests, folder_order);
    tcase_add_test(tests, made_folders);
    suite_add_tcase(suite, tests);
    return run_in_root(suite);
}
