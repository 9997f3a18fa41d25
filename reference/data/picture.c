#include "picture.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"

enum { FILE_BYTES_MAX = 1 << 30, START_BYTES = 8, REASON_BYTES = 256 };

/* Memory that grows from file to file. */
typedef struct buffer {
    uint8_t *bytes;
    size_t capacity;
} buffer;

/* False without memory. */
static bool reserve(buffer *buffer, size_t bytes)
{
    uint8_t *larger = bytes > buffer->capacity ? realloc(buffer->bytes, bytes) : NULL;
    if (larger != NULL) {
        buffer->bytes = larger;
        buffer->capacity = bytes;
    }
    return bytes <= buffer->capacity;
}

static const char TRUNCATED[] = "truncated: the file ends before the image does";

/* Both decoders write rgb [height][width][3] to `pixels`: LS_ERR_USAGE with the reason, without the
 * path, for a file that is not whole or too large, LS_ERR_INFRA without memory. */

/* ---- JPEG, with libjpeg-turbo; a defect that loses pixels is an error, of which it only warns  */

/* An image of one scan takes at least a bit for each 64 pixels; one of several is kept in memory as
 * 2 bytes for each of 3 values of a pixel, and a scan of 31 bytes may visit all of them. More than
 * this is a mistake or an attack. */
static const int64_t JPEG_PIXELS_MAX = 1 << 28, SCANNED_WHOLE_MAX = 1 << 26; /* of several scans */
static const int64_t VISITS_MAX = 1 << 30; /* pixels x scans: 0.4 s */

/* libjpeg requires that `raise_jpeg_error` does not return. */
typedef struct guard {
    struct jpeg_error_mgr manager; /* must be first: libjpeg holds a pointer to it */
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    char message[JMSG_LENGTH_MAX];
    bool truncated;
} guard;

typedef struct jpeg_reader {
    struct jpeg_decompress_struct decoder;
    guard guard;
    buffer ink; /* [width][4]: a row of CMYK */
} jpeg_reader;

static void raise_jpeg_error(j_common_ptr common)
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
        raise_jpeg_error(common);
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
    guard->manager.error_exit = raise_jpeg_error;
    guard->manager.emit_message = note_message;
    guard->manager.output_message = print_nothing;
    guard->truncated = false;
    return &guard->manager;
}

static ls_status jpeg_create(jpeg_reader *jpeg)
{
    jpeg->decoder.err = guard_set(&jpeg->guard);
    if (setjmp(jpeg->guard.escape) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "libjpeg: %s", jpeg->guard.message);
    }
    jpeg_create_decompress(&jpeg->decoder);
    jpeg->guard.progress.progress_monitor = count_scans;
    jpeg->decoder.progress = &jpeg->guard.progress;
    return LS_OK;
}

/* The reason why libjpeg stopped: the end of the file, if it met that first. */
static const char *failure(const jpeg_reader *jpeg)
{
    if (jpeg->guard.manager.msg_code == JERR_NO_SOI) {
        return "not a JPEG file";
    }
    return jpeg->guard.truncated ? TRUNCATED : jpeg->guard.message;
}

/* Writes the reason of a failed decoding and resets the decoder for the next file. */
static ls_status give_up(jpeg_reader *jpeg, const char *reason, char why[REASON_BYTES])
{
    snprintf(why, REASON_BYTES, "%s", reason);
    jpeg_abort_decompress(&jpeg->decoder);
    return LS_ERR_USAGE;
}

static bool is_jpeg(const uint8_t *file, size_t bytes)
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

static void read_rows(jpeg_reader *jpeg, uint8_t *pixels)
{
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    bool inks = decoder->out_color_space == JCS_CMYK;
    while (decoder->output_scanline < decoder->output_height) {
        uint8_t *to = pixels + (size_t)decoder->output_scanline * decoder->output_width * 3;
        JSAMPROW row = inks ? jpeg->ink.bytes : to;
        if (jpeg_read_scanlines(decoder, &row, 1) == 1 && inks) {
            print_row(jpeg->ink.bytes, (int)decoder->output_width, to);
        }
    }
}

static ls_status decode_jpeg(jpeg_reader *jpeg, const uint8_t *file, size_t bytes, buffer *pixels,
                             int *width, int *height, char why[REASON_BYTES])
{
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    guard_set(&jpeg->guard);
    if (setjmp(jpeg->guard.escape) != 0) {
        return give_up(jpeg, failure(jpeg), why);
    }
    jpeg_mem_src(decoder, file, (unsigned long)bytes);
    jpeg_read_header(decoder, TRUE);
    if (pixels_of(decoder) > JPEG_PIXELS_MAX) {
        return give_up(jpeg, "more than 2^28 pixels", why);
    }
    if (jpeg_has_multiple_scans(decoder) && pixels_of(decoder) > SCANNED_WHOLE_MAX) {
        return give_up(jpeg, "more than 2^26 pixels in several scans", why);
    }
    decoder->out_color_space = decoder->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(decoder);
    size_t row_pixels = decoder->output_width;
    if (!reserve(pixels, 3 * row_pixels * decoder->output_height) ||
        !reserve(&jpeg->ink, 4 * row_pixels)) {
        (void)give_up(jpeg, "no memory for its pixels", why);
        return LS_ERR_INFRA;
    }
    read_rows(jpeg, pixels->bytes);
    *width = (int)decoder->output_width;
    *height = (int)decoder->output_height;
    jpeg_finish_decompress(decoder);
    return LS_OK;
}

/* ---- PNG, with libpng ------------------------------------------------------------------------ */

/* Every pixel of a file may cost less than a thousandth of a byte: more than this is a mistake or
 * an attack. */
static const int64_t PNG_PIXELS_MAX = 1 << 26;

typedef struct reader {
    const uint8_t *at;
    size_t left;
    bool truncated;
    char message[128];
} reader;

static void raise_png_error(png_structp png, png_const_charp message)
{
    reader *from = png_get_error_ptr(png);
    snprintf(from->message, sizeof from->message, "%s", message);
    png_longjmp(png, 1);
}

/* Of what a file says of itself, such as its colour profile: no pixel depends on it. */
static void ignore_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void take_bytes(png_structp png, png_bytep to, size_t bytes)
{
    reader *from = png_get_io_ptr(png);
    if (bytes > from->left) {
        from->truncated = true;
        png_error(png, "truncated");
    }
    memcpy(to, from->at, bytes);
    from->at += bytes;
    from->left -= bytes;
}

static bool is_png(const uint8_t *file, size_t bytes)
{
    return bytes >= 8 && png_sig_cmp(file, 0, 8) == 0;
}

/* Samples of 16 bits without colour saturate at 255, as Pillow's "I;16" does; all others become
 * their upper 8 bits. Values of fewer bits are spread over 0 to 255. */
static bool set_transforms(png_structp png, png_infop info)
{
    int type = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
    bool wide_grey = type == PNG_COLOR_TYPE_GRAY && depth == 16;
    if (type == PNG_COLOR_TYPE_PALETTE) {
        png_set_palette_to_rgb(png);
    } else if (type == PNG_COLOR_TYPE_GRAY && depth < 8) {
        png_set_expand_gray_1_2_4_to_8(png);
    }
    if (wide_grey) {
        return true;
    }
    if (depth == 16) {
        png_set_strip_16(png);
    }
    png_set_strip_alpha(png);
    if ((type & PNG_COLOR_MASK_COLOR) == 0) {
        png_set_gray_to_rgb(png);
    }
    return false;
}

static void saturate(uint8_t *row, int width)
{
    for (int x = width - 1; x >= 0; x--) { /* in place: 2 bytes a pixel become 3 */
        uint8_t value = row[2 * x] != 0 ? 255 : row[2 * x + 1];
        memset(row + 3 * x, value, 3);
    }
}

/* NULL with a reason in from->message. */
static bool decode_rows(png_structp png, png_infop info, buffer *pixels, int *width, int *height,
                        png_bytep **rows, bool *no_memory)
{
    reader *from = png_get_io_ptr(png);
    if (setjmp(png_jmpbuf(png)) != 0) {
        return false;
    }
    png_read_info(png, info);
    int64_t wide = png_get_image_width(png, info), high = png_get_image_height(png, info);
    if (wide * high > PNG_PIXELS_MAX) {
        snprintf(from->message, sizeof from->message, "more than 2^26 pixels");
        return false;
    }
    bool wide_grey = set_transforms(png, info);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, info);
    *no_memory = true;
    if (!reserve(pixels, 3 * (size_t)wide * (size_t)high)) {
        return false;
    }
    *rows = malloc((size_t)high * sizeof **rows);
    if (*rows == NULL) {
        return false;
    }
    *no_memory = false;
    for (int64_t y = 0; y < high; y++) {
        (*rows)[y] = pixels->bytes + 3 * y * wide;
    }
    png_read_image(png, *rows);
    png_read_end(png, NULL);
    for (int64_t y = 0; wide_grey && y < high; y++) {
        saturate((*rows)[y], (int)wide);
    }
    *width = (int)wide;
    *height = (int)high;
    return true;
}

static ls_status decode_png(const uint8_t *file, size_t bytes, buffer *pixels, int *width,
                            int *height, char why[REASON_BYTES])
{
    reader from = {.at = file, .left = bytes};
    bool no_memory = true;
    png_bytep *rows = NULL;
    png_structp png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, &from, raise_png_error, ignore_warning);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    bool done = false;
    if (info != NULL) {
        no_memory = false;
        png_set_read_fn(png, &from, take_bytes);
        done = decode_rows(png, info, pixels, width, height, &rows, &no_memory);
    }
    png_destroy_read_struct(&png, &info, NULL);
    free(rows);
    if (done) {
        return LS_OK;
    }
    snprintf(why, REASON_BYTES, "%s",
             no_memory        ? "no memory for its pixels"
             : from.truncated ? TRUNCATED
                              : from.message);
    return no_memory ? LS_ERR_INFRA : LS_ERR_USAGE;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct ls_picture {
    jpeg_reader jpeg;
    buffer file, pixels;
};

ls_status ls_picture_create(ls_picture **out)
{
    ls_picture *picture = calloc(1, sizeof *picture);
    LS_TRY_MEMORY(picture != NULL, "a reader of pictures");
    ls_status status = jpeg_create(&picture->jpeg);
    if (status != LS_OK) {
        free(picture);
        return status;
    }
    *out = picture;
    return LS_OK;
}

void ls_picture_destroy(ls_picture *picture)
{
    if (picture == NULL) {
        return;
    }
    jpeg_destroy_decompress(&picture->jpeg.decoder);
    free(picture->jpeg.ink.bytes);
    free(picture->file.bytes);
    free(picture->pixels.bytes);
    free(picture);
}

static ls_status read_file(ls_picture *picture, const char *path, size_t *bytes, char *why,
                           size_t why_bytes)
{
    ls_file_source file;
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        snprintf(why, why_bytes, "%s", file.why);
        return LS_ERR_USAGE;
    }
    ls_status result = LS_OK;
    *bytes = (size_t)file.bytes;
    if (file.bytes == 0) {
        snprintf(why, why_bytes, "%s is empty", path);
        result = LS_ERR_USAGE;
    } else if (!reserve(&picture->file, *bytes)) {
        snprintf(why, why_bytes, "%s: no memory for its %zu bytes", path, *bytes);
        result = LS_ERR_INFRA;
    } else if (ls_file_fill(&file, path, picture->file.bytes, *bytes) != LS_OK) {
        snprintf(why, why_bytes, "%s", file.why);
        result = LS_ERR_USAGE;
    }
    close(file.descriptor);
    return result;
}

ls_status ls_picture_read(ls_picture *picture, const char *path, const uint8_t **rgb, int *width,
                          int *height, char *why, size_t why_bytes)
{
    size_t bytes;
    char reason[REASON_BYTES] = "not a JPEG or PNG file";
    LS_TRY(read_file(picture, path, &bytes, why, why_bytes));
    const uint8_t *file = picture->file.bytes;
    ls_status status = LS_ERR_USAGE;
    if (is_jpeg(file, bytes)) {
        status = decode_jpeg(&picture->jpeg, file, bytes, &picture->pixels, width, height, reason);
    } else if (is_png(file, bytes)) {
        status = decode_png(file, bytes, &picture->pixels, width, height, reason);
    }
    if (status != LS_OK) {
        snprintf(why, why_bytes, "%s: %s", path, reason);
        return status;
    }
    *rgb = picture->pixels.bytes;
    return LS_OK;
}

static void look_at_start(const ls_file_source *file, bool *png, bool *jpeg)
{
    uint8_t start[START_BYTES];
    ssize_t count = pread(file->descriptor, start, sizeof start, 0);
    size_t bytes = count > 0 ? (size_t)count : 0;
    *png = is_png(start, bytes);
    *jpeg = is_jpeg(start, bytes);
}

/* Searches the file's last bytes for the end of a JPEG or PNG file; some writers append a few bytes
 * after it. */
static bool has_end_marker(const char *path)
{
    enum { TAIL_BYTES = 4096 };
    uint8_t tail[TAIL_BYTES];
    ls_file_source file;
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        return false;
    }
    bool png, jpeg;
    look_at_start(&file, &png, &jpeg);
    int64_t from = file.bytes > TAIL_BYTES ? file.bytes - TAIL_BYTES : 0;
    ssize_t count = pread(file.descriptor, tail, sizeof tail, from);
    close(file.descriptor);
    if (!png && !jpeg) {
        return false;
    }
    const char *end = png ? "IEND\xae\x42\x60\x82" : "\xff\xd9";
    size_t bytes = png ? 8 : 2;
    for (ssize_t i = count - (ssize_t)bytes; i >= 0; i--) {
        if (memcmp(tail + i, end, bytes) == 0) {
            return true;
        }
    }
    return false;
}

ls_status ls_picture_check(ls_picture *picture, const char *path, char *why, size_t why_bytes)
{
    int width, height;
    const uint8_t *rgb;
    if (has_end_marker(path)) {
        return LS_OK;
    }
    return ls_picture_read(picture, path, &rgb, &width, &height, why, why_bytes);
}

bool ls_picture_known(const char *path)
{
    ls_file_source file;
    bool png, jpeg;
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        return false;
    }
    look_at_start(&file, &png, &jpeg);
    close(file.descriptor);
    return png || jpeg;
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

ls_status ls_picture_write_jpeg(const char *path, const uint8_t *rgb, int width, int height,
                                int quality)
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
