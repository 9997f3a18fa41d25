/* Pillow's Image.resize with BILINEAR, bit for bit: the triangle filter, widened where a picture
 * gets smaller (antialiased), across and then down, with weights of 22 bits and a byte between the
 * two (src/libImaging/Resample.c up to version 12; 13 goes down first where a picture gets more
 * than twice as much shorter as narrower, and then differs by at most one level). torchvision's
 * Resize and resized_crop of PIL images call it. */
#ifndef LS_RESAMPLE_H
#define LS_RESAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_resample_scratch { /* grows as needed; zero-initialise it */
    uint8_t *rows;                   /* [height of the source][3][width of the window] */
    int32_t *sums;                   /* [3 * width of the window] */
    int32_t *weights;                /* of each output column, then of each output row */
    int *first, *count;              /* the same: their first sample, and how many */
    int64_t row_bytes, weight_count, sides;
} ls_resample_scratch;

void ls_resample_release(ls_resample_scratch *scratch);

/* A rectangle of a picture, resized as a picture of its own, of which a window is wanted. */
typedef struct ls_resample_job {
    const uint8_t *rgb; /* [..][row_pixels][3] */
    int row_pixels;
    int left, top, width, height; /* the rectangle */
    int to_width, to_height;      /* its size after the resizing */
    int window_left, window_top, window_width, window_height;
    bool flip; /* the window is mirrored left and right */
} ls_resample_job;

/* out[3][window_height][window_width]. Fails only without memory. */
ls_status ls_resample(ls_resample_scratch *scratch, const ls_resample_job *job, uint8_t *out);

#endif
