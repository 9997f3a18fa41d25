#include "picture.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"

/* An image of one scan takes at least a bit for each 64 pixels; one of several is kept in memory as
 * 2 bytes for each of 3 values of a pixel, and a scan of 31 bytes may visit all of them. More than
 * this is a mistake or an attack. */
static const int64_t PIXELS_MAX = 1 << 28, SCANNED_WHOLE_MAX = 1 << 26; /* of several scans */
static const int64_t VISITS_MAX = 1 << 30;                              /* pixels x scans: 0.4 s */

/* libjpeg requires that `raise_error` does not return. */
typedef struct guard {
    struct jpeg_error_mgr manager; /* must be first: libjpeg holds a pointer to it */
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    char message[JMSG_LENGTH_MAX];
    bool truncated;
} guard;

struct ls_jpeg {
    struct jpeg_decompress_struct decoder;
    guard guard;
    uint8_t *ink; /* [width][4]: a row of CMYK */
    size_t ink_bytes;
};

static void raise_error(j_common_ptr common)
{
    guard *guard = (struct guard *)common->err;
    common->err->format_message(common, guard->message);
    longjmp(guard->escape, 1);
}

/* Warnings have level -1. Two of them mean that pixels are missing, which ends the decoding; others
 * (extra bytes before a marker, for example) are common in real data sets and lose nothing. */
static void note_message(j_common_ptr common, int level)
{
    guard *guard = (struct guard *)common->err;
    int code = common->err->msg_code;
    if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) {
        guard->truncated = true;
        raise_error(common);
    }
}

static int64_t pixels_of(const struct jpeg_decompress_struct *decoder)
{
    return (int64_t)decoder->image_width * decoder->image_height;
}

/* Called for each row of blocks of a scan. */
static void count_scans(j_common_ptr common)
{
    const struct jpeg_decompress_struct *decoder = (j_decompress_ptr)common;
    if (decoder->input_scan_number > VISITS_MAX / pixels_of(decoder)) {
        guard *guard = (struct guard *)common->err;
        snprintf(guard->message, sizeof guard->message, "more than %d scans of %u x %u pixels",
                 decoder->input_scan_number - 1, decoder->image_width, decoder->image_height);
        longjmp(guard->escape, 1);
    }
}

static void print_nothing(j_common_ptr common)
{
    (void)common;
}

static struct jpeg_error_mgr *guard_set(guard *guard)
{
    jpeg_std_error(&guard->manager);
    guard->manager.error_exit = raise_error;
    guard->manager.emit_message = note_message;
    guard->manager.output_message = print_nothing;
    guard->truncated = false;
    return &guard->manager;
}

ls_status ls_jpeg_create(ls_jpeg **out)
{
    ls_jpeg *jpeg = calloc(1, sizeof *jpeg);
    LS_TRY_MEMORY(jpeg != NULL, "a JPEG decoder");
    jpeg->decoder.err = guard_set(&jpeg->guard);
    if (setjmp(jpeg->guard.escape) != 0) {
        ls_log_error("libjpeg: %s", jpeg->guard.message);
        free(jpeg);
        return LS_ERR_INFRA;
    }
    jpeg_create_decompress(&jpeg->decoder);
    jpeg->guard.progress.progress_monitor = count_scans;
    jpeg->decoder.progress = &jpeg->guard.progress;
    *out = jpeg;
    return LS_OK;
}

void ls_jpeg_destroy(ls_jpeg *jpeg)
{
    if (jpeg == NULL) {
        return;
    }
    jpeg_destroy_decompress(&jpeg->decoder);
    free(jpeg->ink);
    free(jpeg);
}

/* Makes room for `bytes` in *buffer; false without memory. */
static bool reserve(uint8_t **buffer, size_t *capacity, size_t bytes)
{
    if (bytes <= *capacity) {
        return true;
    }
    uint8_t *larger = realloc(*buffer, bytes);
    if (larger == NULL) {
        return false;
    }
    *buffer = larger;
    *capacity = bytes;
    return true;
}

static const char TRUNCATED[] = "truncated: the file ends before the image does";

/* The reason why libjpeg stopped: the end of the file, if it met that first. */
static const char *failure(const ls_jpeg *jpeg)
{
    if (jpeg->guard.manager.msg_code == JERR_NO_SOI) {
        return "not a JPEG file";
    }
    return jpeg->guard.truncated ? TRUNCATED : jpeg->guard.message;
}

/* Writes the reason of a failed decoding and resets the decoder for the next file. */
static ls_status give_up(ls_jpeg *jpeg, const char *reason, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "%s", reason);
    jpeg_abort_decompress(&jpeg->decoder);
    return LS_ERR_USAGE;
}

bool ls_jpeg_is(const uint8_t *file, size_t bytes)
{
    return bytes >= 3 && file[0] == 0xff && file[1] == 0xd8 && file[2] == 0xff;
}

/* Pillow's MULDIV255: a * b / 255, rounded. */
static int times(int a, int b)
{
    int product = a * b + 128;
    return ((product >> 8) + product) >> 8;
}

/* Pillow's "CMYK;I", then its cmyk2rgb: stored values are 255 minus the ink. */
static void print_row(const uint8_t *ink, int width, uint8_t *rgb)
{
    for (int x = 0; x < width; x++) {
        int white = LS_PLANT(cmyk_not_inverted, ink[4 * x + 3], 255 - ink[4 * x + 3]);
        for (int c = 0; c < 3; c++) {
            rgb[3 * x + c] = (uint8_t)(white - times(255 - ink[4 * x + c], white));
        }
    }
}

static void read_rows(ls_jpeg *jpeg, uint8_t *pixels)
{
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    bool inks = decoder->out_color_space == JCS_CMYK;
    while (decoder->output_scanline < decoder->output_height) {
        uint8_t *to = pixels + (size_t)decoder->output_scanline * decoder->output_width * 3;
        JSAMPROW row = inks ? jpeg->ink : to;
        if (jpeg_read_scanlines(decoder, &row, 1) == 1 && inks) {
            print_row(jpeg->ink, (int)decoder->output_width, to);
        }
    }
}

ls_status ls_jpeg_decode(ls_jpeg *jpeg, const uint8_t *file, size_t bytes, uint8_t **pixels,
                         size_t *capacity, int *width, int *height, char *why, size_t why_bytes)
{
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    guard_set(&jpeg->guard);
    if (setjmp(jpeg->guard.escape) != 0) {
        return give_up(jpeg, failure(jpeg), why, why_bytes);
    }
    jpeg_mem_src(decoder, file, (unsigned long)bytes);
    jpeg_read_header(decoder, TRUE);
    if (pixels_of(decoder) > PIXELS_MAX) {
        return give_up(jpeg, "more than 2^28 pixels", why, why_bytes);
    }
    if (jpeg_has_multiple_scans(decoder) && pixels_of(decoder) > SCANNED_WHOLE_MAX) {
        return give_up(jpeg, "more than 2^26 pixels in several scans", why, why_bytes);
    }
    decoder->out_color_space = decoder->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(decoder);
    size_t row_pixels = decoder->output_width;
    if (!reserve(pixels, capacity, 3 * row_pixels * decoder->output_height) ||
        !reserve(&jpeg->ink, &jpeg->ink_bytes, 4 * row_pixels)) {
        (void)give_up(jpeg, "no memory for its pixels", why, why_bytes);
        return LS_ERR_INFRA;
    }
    read_rows(jpeg, *pixels);
    *width = (int)decoder->output_width;
    *height = (int)decoder->output_height;
    jpeg_finish_decompress(decoder);
    return LS_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Encodes into *memory, which the caller frees. False with guard->message. */
static bool encode(guard *guard, const uint8_t *rgb, int width, int height, int quality,
                   unsigned char **memory, unsigned long *bytes)
{
    struct jpeg_compress_struct encoder = {.err = guard_set(guard)};
    if (setjmp(guard->escape) != 0) {
        jpeg_destroy_compress(&encoder);
        return false;
    }
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, memory, bytes);
    encoder.image_width = (unsigned)width;
    encoder.image_height = (unsigned)height;
    encoder.input_components = 3;
    encoder.in_color_space = JCS_RGB;
    jpeg_set_defaults(&encoder);
    jpeg_set_quality(&encoder, quality, TRUE);
    jpeg_start_compress(&encoder, TRUE);
    while (encoder.next_scanline < encoder.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(rgb + (size_t)encoder.next_scanline * width * 3);
        jpeg_write_scanlines(&encoder, &row, 1);
    }
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    return true;
}

ls_status ls_jpeg_write(const char *path, const uint8_t *rgb, int width, int height, int quality)
{
    guard guard;
    unsigned char *memory = NULL;
    unsigned long bytes = 0;
    if (!encode(&guard, rgb, width, height, quality, &memory, &bytes)) {
        ls_log_error("cannot encode %s: %s", path, guard.message);
        free(memory);
        return LS_ERR_INFRA;
    }
    FILE *file = ls_file_create(path);
    if (file != NULL) {
        (void)fwrite(memory, 1, bytes, file);
    }
    free(memory);
    return file == NULL ? LS_ERR_INFRA : ls_file_close(file, path);
}
