/* Where a picture is cropped, and how its bytes become numbers, by torchvision's rules. As there, a
 * picture has 8 bits a channel until it is normalised, which a device may do. */
#ifndef LS_TRANSFORM_H
#define LS_TRANSFORM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

/* Pillow's Image.resize with BILINEAR, bit for bit: the triangle filter, widened where a picture
 * gets smaller (antialiased), across and then down, with weights of 22 bits and a byte between the
 * two (src/libImaging/Resample.c up to version 12; 13 goes down first where a picture gets more
 * than twice as much shorter as narrower, and then differs by at most one level). torchvision's
 * Resize and resized_crop of PIL images call it. */

typedef struct ls_resample_scratch { /* grows as needed; zero-initialise it */
    uint8_t *rows;                   /* [height of the source][3][width of the window] */
    int32_t *sums;                   /* [3 * width of the window] */
    int32_t *weights;                /* of each output column, then of each output row */
    int *first, *count;              /* the same: their first sample, and how many */
    int64_t row_bytes, weight_count, sides;
} ls_resample_scratch;

void ls_transform_release(ls_resample_scratch *scratch);

/* A rectangle of a picture, resized as a picture of its own, of which a window is wanted. */
typedef struct ls_resample_job {
    const uint8_t *rgb; /* [..][row_pixels][3] */
    int row_pixels;
    int left, top, width, height; /* the rectangle */
    int to_width, to_height;      /* its size after the resizing */
    int window_left, window_top, window_width, window_height;
    bool flip; /* the window is mirrored left and right */
} ls_resample_job;

/* out[3][window_height][window_width]. */
void ls_transform_resample(ls_resample_scratch *scratch, const ls_resample_job *job, uint8_t *out);

typedef struct ls_transform_crop {
    int top, left, height, width; /* in pixels of the full image */
    bool flip;                    /* mirror left and right, half of the images */
} ls_transform_crop;

/* ((seed * 1000003 + epoch) * 1000003 + index) mod 2^32. */
uint32_t ls_transform_key(uint64_t seed, int64_t epoch, int64_t index);
/* RandomResizedCrop's rectangle, scale 0.08 to 1 and ratio 3/4 to 4/3, then RandomHorizontalFlip's
 * coin, bit for bit as torchvision draws them after torch.manual_seed(ls_transform_key(...)): a
 * PyTorch data set whose __getitem__ begins with that line gives the same crops. */
ls_transform_crop ls_transform_draw(uint64_t seed, int64_t epoch, int64_t index, int width,
                                    int height);
/* RandomCrop(size, padding=pad) of a square picture of `size` pixels, then RandomHorizontalFlip's
 * coin, by the same rule. top and left count from the corner of the padding. */
ls_transform_crop ls_transform_draw_padded(uint64_t seed, int64_t epoch, int64_t index, int size,
                                           int pad);

typedef struct ls_transform_resize {
    int width, height; /* of the whole picture after Resize */
    int left, top;     /* of CenterCrop's square in it */
} ls_transform_resize;

/* Validation: Resize(`shorter`), which keeps the ratio of the sides, then CenterCrop(size).
 * size <= shorter. */
ls_transform_resize ls_transform_centre(int width, int height, int shorter, int size);

/* ImageNet's mean and deviation of each channel, in units of the largest byte. */
void ls_transform_statistics(float mean[3], float deviation[3]);
/* Byte b of channel c becomes (b / 255 - mean[c]) / deviation[c], each operation rounded to f32, as
 * torchvision's ToTensor and Normalize compute it. out[count] is what byte[count] becomes, both
 * from element `first` of [N][3][pixels] on. */
void ls_transform_normalise(const uint8_t *byte, int64_t first, int64_t count, int64_t pixels,
                            float *out);

/* Resamples a crop of rgb [..][row_pixels][3] to out[3][size][size]. */
void ls_transform_apply(ls_resample_scratch *scratch, const uint8_t *rgb, int row_pixels,
                        const ls_transform_crop *crop, int size, uint8_t *out);
/* A crop of planes [3][size][size] with `pad` black pixels around them, as drawn above. */
void ls_transform_apply_padded(const uint8_t *planes, int size, int pad,
                               const ls_transform_crop *crop, uint8_t *out);
/* Validation: rgb [height][width][3], resized and cropped as ls_transform_centre. */
void ls_transform_apply_centre(ls_resample_scratch *scratch, const uint8_t *rgb, int width,
                               int height, int shorter, int size, uint8_t *out);

#endif
