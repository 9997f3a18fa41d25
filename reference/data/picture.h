/* Picture files as RGB, 8 bits a channel, as Pillow's open(path).convert("RGB") gives them: JPEG
 * (grey, YCbCr, RGB, CMYK, YCCK; baseline and progressive; inks are inverted, as Adobe stores them)
 * and PNG (grey and palettes become RGB, 16 bits their upper 8, alpha is dropped), told apart by
 * their first bytes and not by their names. A defect that loses pixels is an error here. */
#ifndef LS_PICTURE_H
#define LS_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_picture ls_picture; /* a reader, reused from file to file; one thread at a time */

ls_status ls_picture_create(ls_picture **out);
void ls_picture_destroy(ls_picture *picture);

/* Reads and decodes a file. rgb: [height][width][3], the reader's, valid until the next call. A
 * failure writes one line with the path into why[why_bytes]: LS_ERR_USAGE for a bad file (missing,
 * empty, truncated, of another format), LS_ERR_INFRA without memory. */
ls_status ls_picture_read(ls_picture *picture, const char *path, const uint8_t **rgb, int *width,
                          int *height, char *why, size_t why_bytes);

/* Checks that the file is complete with as little reading as possible: only a file without an end
 * marker is decoded. Failures as above. */
ls_status ls_picture_check(ls_picture *picture, const char *path, char *why, size_t why_bytes);

/* Whether a file begins as a picture that can be read; false where it cannot be opened. */
bool ls_picture_known(const char *path);

/* Writes rgb [height][width][3] as JPEG; quality 1 to 100. Logs. */
ls_status ls_picture_write_jpeg(const char *path, const uint8_t *rgb, int width, int height,
                                int quality);

#endif
