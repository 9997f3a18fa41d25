/* Images: JPEG files, baseline and progressive, and such as repeat their scans. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "kernels/core/log.h"
#include "reference/data/jpeg.h"

enum { SIDE = 48, SCANS_END = 2 };

/* A progressive image of side x side pixels, every one the same but for noise in the first row. */
static void add_progressive(fuzz *f, int side, bool cmyk)
{
    struct jpeg_error_mgr manager;
    struct jpeg_compress_struct encoder = {.err = jpeg_std_error(&manager)};
    unsigned char *memory = NULL, *row = calloc((size_t)side, 4);
    unsigned long count = 0;
    LS_ASSERT(row != NULL);
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &memory, &count);
    encoder.image_width = encoder.image_height = (unsigned)side;
    encoder.input_components = cmyk ? 4 : 3;
    encoder.in_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&encoder);
    jpeg_simple_progression(&encoder);
    jpeg_start_compress(&encoder, TRUE);
    for (int y = 0; y < side; y++) {
        row[0] = y < SIDE ? (unsigned char)fuzz_draw(f) : 0;
        jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    fuzz_add_seed(f, memory, count);
    free(memory);
    free(row);
}

static void seed_jpeg(fuzz *f)
{
    char path[PATH_BYTES];
    unsigned char rgb[17 * 13 * 3];
    for (size_t i = 0; i < sizeof rgb; i++) {
        rgb[i] = (unsigned char)fuzz_draw(f);
    }
    LS_ASSERT(ls_jpeg_write(fuzz_path(f, "seed", path), rgb, 17, 13, 80) == LS_OK);
    fuzz_add_seed_file(f, path);
    LS_ASSERT(ls_jpeg_write(path, rgb, 8, 8, 20) == LS_OK);
    fuzz_add_seed_file(f, path);
    add_progressive(f, SIDE, false);
    add_progressive(f, 8 * SIDE, false);
    add_progressive(f, SIDE, true);
    LS_ASSERT(ls_picture_create(&f->picture) == LS_OK);
}

/* Half of the inputs get, before their end, one of their scans again and again: cheap to send, slow
 * to decode. Some claim to be larger than they are. */
static void make_jpeg(fuzz *f, bytes *b)
{
    fuzz_make(f, b);
    unsigned char *scan = NULL, *frame = NULL;
    for (size_t i = 0; i + 8 < b->count; i++) {
        if (b->at[i] == 0xff && b->at[i + 1] == 0xda && (scan == NULL || fuzz_below(f, 3) == 0)) {
            scan = b->at + i;
        }
        if (b->at[i] == 0xff && (b->at[i + 1] == 0xc0 || b->at[i + 1] == 0xc2)) {
            frame = b->at + i;
        }
    }
    if (frame != NULL && fuzz_below(f, 8) == 0) { /* height and width / 256 */
        frame[5] = (unsigned char)fuzz_draw(f);
        frame[7] = (unsigned char)fuzz_draw(f);
    }
    if (scan == NULL || fuzz_below(f, 2) == 0) {
        return;
    }
    unsigned char *end = scan + 2;
    while (end + 1 < b->at + b->count && !(end[0] == 0xff && end[1] >= 0xc0 && end[1] != 0xff)) {
        end++;
    }
    size_t count = (size_t)(end - scan);
    size_t times = 1 + fuzz_below(f, fuzz_below(f, 16) == 0 ? 10000 : 20);
    static unsigned char copy[INPUT_BYTES_MAX];
    memcpy(copy, scan, count);
    b->count = (size_t)(end - b->at);
    for (; times > 0 && b->count + count + SCANS_END <= (1 << 16); times--) {
        memcpy(b->at + b->count, copy, count);
        b->count += count;
    }
    if (b->count + SCANS_END <= INPUT_BYTES_MAX) {
        memcpy(b->at + b->count, "\xff\xd9", SCANS_END);
        b->count += SCANS_END;
    }
}

static void read_jpeg(fuzz *f, const bytes *b)
{
    char path[PATH_BYTES], why[300];
    int width, height;
    const uint8_t *rgb = NULL;
    volatile unsigned sum = 0;
    fuzz_put_file(f, "file", b->at, b->count);
    fuzz_path(f, "file", path);
    (void)ls_picture_check(f->picture, path, why, sizeof why);
    if (ls_picture_read(f->picture, path, &rgb, &width, &height, why, sizeof why) == LS_OK) {
        for (int64_t i = 0; i < (int64_t)width * height * 3; i++) {
            sum += rgb[i];
        }
    }
}

static void end_jpeg(fuzz *f)
{
    ls_picture_destroy(f->picture);
}

const reader fuzz_image_readers[] = {
    {"jpeg", seed_jpeg, make_jpeg, read_jpeg, end_jpeg},
    {0},
};
