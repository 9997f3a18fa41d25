#include "jpeg.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jpeglib.h>
#include <jerror.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"

enum { PATH_BYTES = 1024, FILE_BYTES_MAX = 1 << 30 };

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
    char path[PATH_BYTES];
    uint8_t *file, *pixels;
    size_t file_bytes, file_capacity, pixel_capacity;
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
    free(jpeg->file);
    free(jpeg->pixels);
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

static ls_status read_file(ls_jpeg *jpeg, char *why, size_t why_bytes)
{
    ls_file_source file;
    if (ls_file_open(jpeg->path, FILE_BYTES_MAX, &file) != LS_OK) {
        snprintf(why, why_bytes, "%s", file.why);
        return LS_ERR_USAGE;
    }
    ls_status result = LS_OK;
    jpeg->file_bytes = (size_t)file.bytes;
    if (file.bytes == 0) {
        snprintf(why, why_bytes, "%s is empty", jpeg->path);
        result = LS_ERR_USAGE;
    } else if (!reserve(&jpeg->file, &jpeg->file_capacity, jpeg->file_bytes)) {
        snprintf(why, why_bytes, "%s: no memory for its %zu bytes", jpeg->path, jpeg->file_bytes);
        result = LS_ERR_INFRA;
    } else if (ls_file_fill(&file, jpeg->path, jpeg->file, jpeg->file_bytes) != LS_OK) {
        snprintf(why, why_bytes, "%s", file.why);
        result = LS_ERR_USAGE;
    }
    close(file.descriptor);
    return result;
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
    snprintf(why, why_bytes, "%s: %s", jpeg->path, reason);
    jpeg_abort_decompress(&jpeg->decoder);
    return LS_ERR_USAGE;
}

ls_status ls_jpeg_open(ls_jpeg *jpeg, const char *path, int *width, int *height, char *why,
                       size_t why_bytes)
{
    if (strlen(path) >= sizeof jpeg->path) {
        snprintf(why, why_bytes, "%.200s...: a path of more than %zu bytes", path,
                 sizeof jpeg->path - 1);
        return LS_ERR_USAGE;
    }
    strcpy(jpeg->path, path);
    LS_TRY(read_file(jpeg, why, why_bytes));
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    jpeg_abort_decompress(decoder); /* the last file was opened but not decoded */
    guard_set(&jpeg->guard);
    if (setjmp(jpeg->guard.escape) != 0) {
        return give_up(jpeg, failure(jpeg), why, why_bytes);
    }
    jpeg_mem_src(decoder, jpeg->file, (unsigned long)jpeg->file_bytes);
    jpeg_read_header(decoder, TRUE);
    if (decoder->num_components != 1 && decoder->num_components != 3) {
        return give_up(jpeg, "a CMYK image; convert it to RGB or grey", why, why_bytes);
    }
    if (pixels_of(decoder) > PIXELS_MAX) {
        return give_up(jpeg, "more than 2^28 pixels", why, why_bytes);
    }
    if (jpeg_has_multiple_scans(decoder) && pixels_of(decoder) > SCANNED_WHOLE_MAX) {
        return give_up(jpeg, "more than 2^26 pixels in several scans", why, why_bytes);
    }
    *width = (int)decoder->image_width;
    *height = (int)decoder->image_height;
    return LS_OK;
}

ls_status ls_jpeg_decode(ls_jpeg *jpeg, int reduction, const uint8_t **rgb, int *width, int *height,
                         char *why, size_t why_bytes)
{
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    if (setjmp(jpeg->guard.escape) != 0) {
        return give_up(jpeg, failure(jpeg), why, why_bytes);
    }
    decoder->scale_num = 1;
    decoder->scale_denom = (unsigned)reduction;
    decoder->out_color_space = JCS_RGB;
    jpeg_start_decompress(decoder);
    size_t row_bytes = (size_t)decoder->output_width * 3;
    if (!reserve(&jpeg->pixels, &jpeg->pixel_capacity, row_bytes * decoder->output_height)) {
        give_up(jpeg, "no memory for its pixels", why, why_bytes);
        return LS_ERR_INFRA;
    }
    while (decoder->output_scanline < decoder->output_height) {
        JSAMPROW row = jpeg->pixels + decoder->output_scanline * row_bytes;
        jpeg_read_scanlines(decoder, &row, 1);
    }
    *width = (int)decoder->output_width;
    *height = (int)decoder->output_height;
    jpeg_finish_decompress(decoder);
    *rgb = jpeg->pixels;
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

/* Searches the file's last bytes for the end marker; some writers append a few bytes after it. */
static bool has_end_marker(const char *path)
{
    enum { TAIL_BYTES = 4096 };
    uint8_t tail[TAIL_BYTES];
    ls_file_source file;
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        return false;
    }
    int64_t from = file.bytes > TAIL_BYTES ? file.bytes - TAIL_BYTES : 0;
    ssize_t count = pread(file.descriptor, tail, sizeof tail, from);
    close(file.descriptor);
    for (ssize_t i = count; i >= 2; i--) {
        if (tail[i - 2] == 0xff && tail[i - 1] == 0xd9) {
            return true;
        }
    }
    return false;
}

ls_status ls_jpeg_check(ls_jpeg *jpeg, const char *path, char *why, size_t why_bytes)
{
    int width, height;
    const uint8_t *rgb;
    if (has_end_marker(path)) {
        return LS_OK;
    }
    LS_TRY(ls_jpeg_open(jpeg, path, &width, &height, why, why_bytes));
    return ls_jpeg_decode(jpeg, 8, &rgb, &width, &height, why, why_bytes);
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
