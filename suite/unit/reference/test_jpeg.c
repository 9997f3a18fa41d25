/* Reading JPEG files: right pixels, and a named error for every file that is not whole. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jpeglib.h>

#include "kernels/core/rng.h"
#include "reference/data/jpeg.h"
#include "data_root.h"

enum { WIDTH = 53, HEIGHT = 37, WHY = 1400 };

static char PATH[128];

static void paint(uint8_t *rgb)
{
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            uint8_t *pixel = rgb + (y * WIDTH + x) * 3;
            pixel[0] = (uint8_t)(40 + 3 * x);
            pixel[1] = (uint8_t)(60 + 4 * y);
            pixel[2] = (uint8_t)(200 - x - y);
        }
    }
}

static void write_bytes(const void *bytes, size_t count)
{
    FILE *stream = fopen(PATH, "wb");
    ck_assert(stream != NULL && fwrite(bytes, 1, count, stream) == count);
    ck_assert_int_eq(fclose(stream), 0);
}

static size_t read_bytes(uint8_t *bytes, size_t most)
{
    FILE *stream = fopen(PATH, "rb");
    ck_assert(stream != NULL);
    size_t count = fread(bytes, 1, most, stream);
    fclose(stream);
    return count;
}

/* Opens and decodes PATH; why is filled on failure. */
static ls_status decode(ls_jpeg *jpeg, int reduction, const uint8_t **rgb, int *width, int *height,
                        char *why)
{
    why[0] = '\0';
    LS_TRY(ls_jpeg_open(jpeg, PATH, width, height, why, WHY));
    return ls_jpeg_decode(jpeg, reduction, rgb, width, height, why, WHY);
}

START_TEST(round_trip)
{
    uint8_t rgb[WIDTH * HEIGHT * 3];
    const uint8_t *out;
    int width, height;
    char why[WHY];
    ls_jpeg *jpeg;
    paint(rgb);
    ck_assert_int_eq(ls_jpeg_write(PATH, rgb, WIDTH, HEIGHT, 100), LS_OK);
    ck_assert_int_eq(ls_jpeg_create(&jpeg), LS_OK);
    ck_assert_int_eq(decode(jpeg, 1, &out, &width, &height, why), LS_OK);
    ck_assert(width == WIDTH && height == HEIGHT);
    double sum = 0;
    for (int i = 0; i < WIDTH * HEIGHT * 3; i++) {
        sum += abs(out[i] - rgb[i]);
    }
    /* quality 100 quantises by 1; colour conversion rounds thrice, and halved chroma moves a ramp
     * of 4 levels a pixel by at most 2 */
    ck_assert_double_lt(sum / (WIDTH * HEIGHT * 3), 3.0);
    for (int reduction = 2; reduction <= 8; reduction *= 2) {
        ck_assert_int_eq(decode(jpeg, reduction, &out, &width, &height, why), LS_OK);
        ck_assert_int_eq(width, (WIDTH + reduction - 1) / reduction);
        ck_assert_int_eq(height, (HEIGHT + reduction - 1) / reduction);
        int want = rgb[0] + 3 * (reduction - 1) / 2; /* the mean over the block, +- the same 3 */
        ck_assert_int_le(abs(out[0] - want), 3 + reduction);
    }
    ls_jpeg_destroy(jpeg);
}
END_TEST

/* An image of `components` samples a pixel in the library's colour space. */
static void write_other(int components, J_COLOR_SPACE space)
{
    struct jpeg_compress_struct encoder;
    struct jpeg_error_mgr manager;
    unsigned char *memory = NULL;
    unsigned long bytes = 0;
    encoder.err = jpeg_std_error(&manager);
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &memory, &bytes);
    encoder.image_width = 16;
    encoder.image_height = 16;
    encoder.input_components = components;
    encoder.in_color_space = space;
    jpeg_set_defaults(&encoder);
    jpeg_start_compress(&encoder, TRUE);
    uint8_t samples[16 * 4];
    memset(samples, 77, sizeof samples);
    for (int y = 0; y < 16; y++) {
        JSAMPROW row = samples;
        jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    write_bytes(memory, bytes);
    free(memory);
}

START_TEST(grey_and_cmyk)
{
    const uint8_t *out;
    int width, height;
    char why[WHY];
    ls_jpeg *jpeg;
    ck_assert_int_eq(ls_jpeg_create(&jpeg), LS_OK);
    write_other(1, JCS_GRAYSCALE);
    ck_assert_int_eq(decode(jpeg, 1, &out, &width, &height, why), LS_OK);
    for (int i = 0; i < 16 * 16 * 3; i++) {
        ck_assert_int_eq(out[i], 77);
    }
    write_other(4, JCS_CMYK);
    ck_assert_int_eq(decode(jpeg, 1, &out, &width, &height, why), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "CMYK"));
    ck_assert_ptr_nonnull(strstr(why, PATH));
    /* the decoder is good for the next file */
    write_other(1, JCS_GRAYSCALE);
    ck_assert_int_eq(decode(jpeg, 1, &out, &width, &height, why), LS_OK);
    ls_jpeg_destroy(jpeg);
}
END_TEST

/* Every shorter file is an error that names it, the one that lacks but its last byte, too. */
START_TEST(every_truncation)
{
    uint8_t rgb[WIDTH * HEIGHT * 3], whole[1 << 14];
    const uint8_t *out;
    int width, height;
    char why[WHY];
    ls_jpeg *jpeg;
    paint(rgb);
    ck_assert_int_eq(ls_jpeg_write(PATH, rgb, WIDTH, HEIGHT, 90), LS_OK);
    size_t bytes = read_bytes(whole, sizeof whole);
    ck_assert_uint_lt(bytes, sizeof whole);
    ck_assert_int_eq(ls_jpeg_create(&jpeg), LS_OK);
    for (size_t cut = 0; cut < bytes; cut++) {
        write_bytes(whole, cut);
        ck_assert_msg(decode(jpeg, 1, &out, &width, &height, why) == LS_ERR_USAGE,
                      "%zu of %zu bytes pass as an image", cut, bytes);
        ck_assert_ptr_nonnull(strstr(why, PATH));
        if (cut == 0) {
            ck_assert_ptr_nonnull(strstr(why, "empty"));
        } else if (cut == bytes / 2 || cut == bytes - 1) {
            ck_assert_ptr_nonnull(strstr(why, "truncated"));
        }
    }
    write_bytes(whole, bytes);
    ck_assert_int_eq(decode(jpeg, 1, &out, &width, &height, why), LS_OK);
    write_bytes("GIF89a, and not a JPEG at all", 29);
    ck_assert_int_eq(decode(jpeg, 1, &out, &width, &height, why), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "not a JPEG"));
    ck_assert_int_eq(ls_jpeg_open(jpeg, "/nowhere/x.jpg", &width, &height, why, WHY), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "/nowhere/x.jpg"));
    ls_jpeg_destroy(jpeg);
}
END_TEST

/* A grey progressive image of side x side pixels with its last scan `times` times more. */
static void write_scans(unsigned side, int times)
{
    struct jpeg_error_mgr manager;
    struct jpeg_compress_struct encoder = {.err = jpeg_std_error(&manager)};
    unsigned char *memory = NULL, *row = calloc(side, 1);
    unsigned long bytes = 0, scan = 0;
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &memory, &bytes);
    encoder.image_width = encoder.image_height = side;
    encoder.input_components = 1;
    encoder.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&encoder);
    jpeg_simple_progression(&encoder);
    jpeg_start_compress(&encoder, TRUE);
    while (encoder.next_scanline < side) {
        jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    for (unsigned long i = 0; i + 1 < bytes; i++) {
        scan = memory[i] == 0xff && memory[i + 1] == 0xda ? i : scan;
    }
    FILE *stream = fopen(PATH, "wb");
    ck_assert(stream != NULL && fwrite(memory, 1, bytes - 2, stream) == bytes - 2);
    for (int i = 0; i < times; i++) {
        ck_assert_uint_eq(fwrite(memory + scan, 1, bytes - 2 - scan, stream), bytes - 2 - scan);
    }
    ck_assert(fwrite("\xff\xd9", 1, 2, stream) == 2 && fclose(stream) == 0);
    free(memory);
    free(row);
}

/* A small file may ask for much memory or time: 51 KB took 22 s before scans were counted. */
START_TEST(costly_files)
{
    const uint8_t *out;
    int width, height;
    char why[WHY];
    ls_jpeg *jpeg;
    ck_assert_int_eq(ls_jpeg_create(&jpeg), LS_OK);
    write_scans(2048, 10);
    ck_assert_int_eq(decode(jpeg, 8, &out, &width, &height, why), LS_OK);
    ck_assert(width == 256 && height == 256);
    write_scans(2048, 400);
    ck_assert_int_eq(decode(jpeg, 8, &out, &width, &height, why), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "more than 256 scans of 2048 x 2048 pixels"));
    write_scans(8200, 0);
    ck_assert_int_eq(decode(jpeg, 8, &out, &width, &height, why), LS_ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(why, "more than 2^26 pixels in several scans"));
    ls_jpeg_destroy(jpeg);
}
END_TEST

/* Flipped bytes must do nothing worse than an error or other pixels. */
START_TEST(broken_bytes)
{
    uint8_t rgb[WIDTH * HEIGHT * 3], whole[1 << 14], broken[1 << 14];
    const uint8_t *out;
    int width, height;
    char why[WHY];
    ls_jpeg *jpeg;
    paint(rgb);
    ck_assert_int_eq(ls_jpeg_write(PATH, rgb, WIDTH, HEIGHT, 90), LS_OK);
    uint32_t bytes = (uint32_t)read_bytes(whole, sizeof whole);
    ck_assert_int_eq(ls_jpeg_create(&jpeg), LS_OK);
    int failed = 0;
    for (uint64_t i = 0; i < 400; i++) {
        memcpy(broken, whole, bytes);
        for (uint64_t n = 0; n < 3; n++) {
            broken[ls_rng_below(1, n, i, bytes)] = (uint8_t)ls_rng_below(2, n, i, 256);
        }
        write_bytes(broken, bytes);
        ls_status status = decode(jpeg, 1 << (i % 4), &out, &width, &height, why);
        ck_assert(status == LS_OK || status == LS_ERR_USAGE);
        ck_assert((status == LS_OK) == (why[0] == '\0'));
        failed += status != LS_OK;
    }
    ck_assert_int_gt(failed, 10);
    ls_jpeg_destroy(jpeg);
}
END_TEST

int main(void)
{
    make_root();
    snprintf(PATH, sizeof PATH, "%s/image.jpg", ROOT);
    Suite *suite = suite_create("jpeg");
    TCase *tests = tcase_create("jpeg");
    tcase_add_test(tests, round_trip);
    tcase_add_test(tests, grey_and_cmyk);
    tcase_add_test(tests, every_truncation);
    tcase_add_test(tests, costly_files);
    tcase_add_test(tests, broken_bytes);
    suite_add_tcase(suite, tests);
    return run_in_root(suite);
}
