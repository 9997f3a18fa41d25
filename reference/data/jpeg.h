/* Reads JPEG files with libjpeg-turbo. A defect that loses pixels is an error here, even if the
 * library would only warn and fill the rest with grey. */
#ifndef LS_JPEG_H
#define LS_JPEG_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_jpeg ls_jpeg; /* a decoder, reused from file to file; one thread at a time */

ls_status ls_jpeg_create(ls_jpeg **out);
void ls_jpeg_destroy(ls_jpeg *jpeg);

/* Reads the file and its header: size of the full image. A failure writes one line with the path
 * into why[why_bytes]: LS_ERR_USAGE for a bad file (missing, empty, not a JPEG, CMYK), LS_ERR_INFRA
 * without memory. */
ls_status ls_jpeg_open(ls_jpeg *jpeg, const char *path, int *width, int *height, char *why,
                       size_t why_bytes);
/* Decodes the open file, reduced by 1, 2, 4 or 8 on each side; grey becomes RGB.
 * rgb: [height][width][3], the decoder's, valid until the next call. */
ls_status ls_jpeg_decode(ls_jpeg *jpeg, int reduction, const uint8_t **rgb, int *width, int *height,
                         char *why, size_t why_bytes);

/* Checks that the file is complete with as little reading as possible: only a file without an end
 * marker is decoded. Failures as above. */
ls_status ls_jpeg_check(ls_jpeg *jpeg, const char *path, char *why, size_t why_bytes);

/* Writes rgb [height][width][3]; quality 1 to 100. Logs. */
ls_status ls_jpeg_write(const char *path, const uint8_t *rgb, int width, int height, int quality);

#endif
