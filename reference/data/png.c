#include "picture.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

/* Every pixel of a file may cost less than a thousandth of a byte: more than this is a mistake or
 * an attack. */
static const int64_t PIXELS_MAX = 1 << 26;

typedef struct reader {
    const uint8_t *at;
    size_t left;
    bool truncated;
    char message[128];
} reader;

static void raise_error(png_structp png, png_const_charp message)
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

bool ls_png_is(const uint8_t *file, size_t bytes)
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
static bool decode(png_structp png, png_infop info, uint8_t **pixels, size_t *capacity, int *width,
                   int *height, png_bytep **rows, bool *no_memory)
{
    reader *from = png_get_io_ptr(png);
    if (setjmp(png_jmpbuf(png)) != 0) {
        return false;
    }
    png_read_info(png, info);
    int64_t wide = png_get_image_width(png, info), high = png_get_image_height(png, info);
    if (wide * high > PIXELS_MAX) {
        snprintf(from->message, sizeof from->message, "more than 2^26 pixels");
        return false;
    }
    bool wide_grey = set_transforms(png, info);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, info);
    size_t bytes = 3 * (size_t)wide * (size_t)high;
    *no_memory = true;
    if (bytes > *capacity) {
        uint8_t *larger = realloc(*pixels, bytes);
        if (larger == NULL) {
            return false;
        }
        *pixels = larger;
        *capacity = bytes;
    }
    *rows = malloc((size_t)high * sizeof **rows);
    if (*rows == NULL) {
        return false;
    }
    *no_memory = false;
    for (int64_t y = 0; y < high; y++) {
        (*rows)[y] = *pixels + 3 * y * wide;
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

ls_status ls_png_decode(const uint8_t *file, size_t bytes, uint8_t **pixels, size_t *capacity,
                        int *width, int *height, char *why, size_t why_bytes)
{
    reader from = {.at = file, .left = bytes};
    bool no_memory = true;
    png_bytep *rows = NULL;
    png_structp png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, &from, raise_error, ignore_warning);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    bool done = false;
    if (info != NULL) {
        no_memory = false;
        png_set_read_fn(png, &from, take_bytes);
        done = decode(png, info, pixels, capacity, width, height, &rows, &no_memory);
    }
    png_destroy_read_struct(&png, &info, NULL);
    free(rows);
    if (done) {
        return LS_OK;
    }
    snprintf(why, why_bytes, "%s",
             no_memory        ? "no memory for its pixels"
             : from.truncated ? "truncated: the file ends before the image does"
                              : from.message);
    return no_memory ? LS_ERR_INFRA : LS_ERR_USAGE;
}
