/* Decodes and writes JPEG files with libjpeg-turbo. A defect that loses pixels is an error here,
 * even if the library would only warn and fill the rest with grey. */
#ifndef LS_JPEG_H
#define LS_JPEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_jpeg ls_jpeg; /* a decoder, reused from file to file; one thread at a time */

ls_status ls_jpeg_create(ls_jpeg **out);
void ls_jpeg_destroy(ls_jpeg *jpeg);

bool ls_jpeg_is(const uint8_t *file, size_t bytes);

/* Decodes a file in memory to rgb [height][width][3] in *pixels, which is reallocated where it is
 * too small (*capacity bytes). Grey becomes RGB; CMYK and YCCK become RGB as in Pillow, which takes
 * their values as Adobe stores them, inverted. LS_ERR_USAGE with the reason, without the path, in
 * why[why_bytes] for a file that is not whole or too large, LS_ERR_INFRA without memory. */
ls_status ls_jpeg_decode(ls_jpeg *jpeg, const uint8_t *file, size_t bytes, uint8_t **pixels,
                         size_t *capacity, int *width, int *height, char *why, size_t why_bytes);

/* Writes rgb [height][width][3]; quality 1 to 100. Logs. */
ls_status ls_jpeg_write(const char *path, const uint8_t *rgb, int width, int height, int quality);

#endif
