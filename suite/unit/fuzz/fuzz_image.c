/* Images: JPEG files, baseline and progressive, and such as repeat their scans; PNG files of
 * several kinds; CIFAR's binary files. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "reference/data/picture.h"
#include "reference/data/loader.h"

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
    LS_ASSERT(ls_picture_write_jpeg(fuzz_path(f, "seed", path), rgb, 17, 13, 80) == LS_OK);
    fuzz_add_seed_file(f, path);
    LS_ASSERT(ls_picture_write_jpeg(path, rgb, 8, 8, 20) == LS_OK);
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

/* ---- PNG ------------------------------------------------------------------------------------- */

static void add_png(fuzz *f, png_uint_32 format, int side)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (unsigned)side,
                       .height = (unsigned)side,
                       .format = format};
    static unsigned char pixels[SIDE * SIDE * 8], colours[256 * 8], file[1 << 16];
    png_alloc_size_t bytes = sizeof file;
    for (size_t i = 0; i < sizeof pixels; i++) {
        pixels[i] = (unsigned char)fuzz_draw(f);
    }
    memcpy(colours, pixels, sizeof colours);
    image.colormap_entries = (format & PNG_FORMAT_FLAG_COLORMAP) != 0 ? 256 : 0;
    LS_ASSERT(png_image_write_to_memory(&image, file, &bytes, 0, pixels, 0, colours) != 0);
    fuzz_add_seed(f, file, bytes);
}

static void seed_png(fuzz *f)
{
    add_png(f, PNG_FORMAT_RGB, 17);
    add_png(f, PNG_FORMAT_GRAY, 9);
    add_png(f, PNG_FORMAT_GA, 8);
    add_png(f, PNG_FORMAT_RGBA, SIDE);
    add_png(f, PNG_FORMAT_RGB_COLORMAP, 16);
    add_png(f, PNG_FORMAT_LINEAR_RGB, 7);
    LS_ASSERT(ls_picture_create(&f->picture) == LS_OK);
}

static uint32_t crc_of(const unsigned char *at, size_t count)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc % 2 != 0 ? 0xedb88320u : 0);
        }
    }
    return ~crc;
}

/* Most inputs get right checksums, or nothing behind the first change would be read. */
static void make_png(fuzz *f, bytes *b)
{
    fuzz_make(f, b);
    size_t at = 8;
    while (fuzz_below(f, 16) != 0 && at + 12 <= b->count) {
        size_t length = (size_t)b->at[at] << 24 | (size_t)b->at[at + 1] << 16 |
                        (size_t)b->at[at + 2] << 8 | b->at[at + 3];
        if (length > b->count || at + 12 + length > b->count) {
            return;
        }
        uint32_t crc = crc_of(b->at + at + 4, length + 4);
        for (int i = 0; i < 4; i++) {
            b->at[at + 8 + length + (size_t)i] = (unsigned char)(crc >> (24 - 8 * i));
        }
        at += 12 + length;
    }
}

/* ---- CIFAR ----------------------------------------------------------------------------------- */

enum { RECORD_10 = 3073, RECORD_100 = 3074 };

static void seed_cifar(fuzz *f)
{
    static unsigned char file[3 * RECORD_100];
    for (size_t i = 0; i < sizeof file; i++) {
        file[i] = (unsigned char)fuzz_draw(f);
    }
    for (int labels = 1; labels <= 2; labels++) {
        size_t record = labels == 1 ? RECORD_10 : RECORD_100;
        for (size_t i = 0; i < 3; i++) {
            file[i * record] = file[i * record + 1] = (unsigned char)fuzz_below(f, 10);
        }
        fuzz_add_seed(f, file, 2 * record);
        fuzz_add_seed(f, file, 3 * record);
    }
}

/* Most inputs are cut to whole records. */
static void make_cifar(fuzz *f, bytes *b)
{
    fuzz_make(f, b);
    size_t record = fuzz_below(f, 2) == 0 ? RECORD_10 : RECORD_100;
    b->count -= fuzz_below(f, 8) != 0 ? b->count % record : 0;
}

static void read_cifar(fuzz *f, const bytes *b)
{
    bool ten = b->count % RECORD_10 == 0 || fuzz_below(f, 4) == 0;
    char path[PATH_BYTES];
    volatile float sum = 0;
    ls_loader *loader;
    fuzz_put_file(f, ten ? "test_batch.bin" : "test.bin", b->at, b->count);
    ls_loader_options options = {.data = f->folder,
                                 .world = 1,
                                 .batch_size = 2,
                                 .image_size = 32,
                                 .num_classes = ten ? 10 : 100,
                                 .accumulate = 1,
                                 .first_step = 1,
                                 .validates = true,
                                 .resize = 32};
    if (ls_loader_open(&options, &loader) == LS_OK) {
        ls_loader_batch batch;
        for (int n = 0; n < 3 && ls_loader_next(loader, &batch) == LS_OK; n++) {
            for (int i = 0; i < 2 * 3 * 32 * 32; i++) {
                sum += batch.input[i];
            }
            LS_ASSERT(batch.target[0] >= 0 && batch.target[0] < options.num_classes);
        }
        ls_loader_close(loader);
    }
    (void)unlink(fuzz_path(f, "test_batch.bin", path));
    (void)unlink(fuzz_path(f, "test.bin", path));
}

const reader fuzz_image_readers[] = {
    {"jpeg", seed_jpeg, make_jpeg, read_jpeg, end_jpeg},
    {"png", seed_png, make_png, read_jpeg, end_jpeg},
    {"cifar", seed_cifar, make_cifar, read_cifar, NULL},
    {0},
};
