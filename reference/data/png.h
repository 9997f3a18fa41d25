/* Reads PNG files with libpng, as Pillow's convert("RGB") gives them: grey and palettes become RGB,
 * 16 bits become their upper 8, alpha is dropped. */
#ifndef LS_PNG_H
#define LS_PNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

bool ls_png_is(const uint8_t *file, size_t bytes);

/* Decodes a file in memory to rgb [height][width][3] in *pixels, which is reallocated where it is
 * too small (*capacity bytes). LS_ERR_USAGE with the reason, without the path, in why[why_bytes]
 * for a file that is not whole or too large, LS_ERR_INFRA without memory. */
ls_status ls_png_decode(const uint8_t *file, size_t bytes, uint8_t **pixels, size_t *capacity,
                        int *width, int *height, char *why, size_t why_bytes);

#endif
