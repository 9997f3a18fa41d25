/* Training augmentation: random resized crop, flip, normalisation by torchvision's rules. As there,
 * a picture has 8 bits a channel until it is normalised, which a device may do. The random numbers
 * are our own, a pure function of seed, epoch and image. */
#ifndef LS_TRANSFORM_H
#define LS_TRANSFORM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_transform_crop {
    int top, left, height, width; /* in pixels of the full image */
    bool flip;                    /* mirror left and right, half of the images */
} ls_transform_crop;

/* RandomResizedCrop's rectangle, scale 0.08 to 1 and ratio 3/4 to 4/3, and a random flip. */
ls_transform_crop ls_transform_draw(uint64_t seed, int64_t epoch, int64_t index, int width,
                                    int height);
/* One try of the rule: width and height for `area` and `ratio`, rounded half to even. False if the
 * rectangle does not fit. */
bool ls_transform_rectangle(double area, double ratio, int width, int height, int *crop_width,
                            int *crop_height);
/* The result after ten failed tries: the largest centred rectangle within the ratios. */
ls_transform_crop ls_transform_fallback(int width, int height);

/* ImageNet's mean and deviation of each channel, in units of the largest byte. */
void ls_transform_statistics(float mean[3], float deviation[3]);
/* Byte b of channel c becomes (b / 255 - mean[c]) / deviation[c], each operation rounded to f32, as
 * torchvision's ToTensor and Normalize compute it. out[count] is what byte[count] becomes, both
 * from element `first` of [N][3][pixels] on. */
void ls_transform_normalise(const uint8_t *byte, int64_t first, int64_t count, int64_t pixels,
                            float *out);

typedef struct ls_transform_scratch { /* grows as needed; zero-initialise it */
    float *rows;                      /* [rows of the image][3][size]: resampled horizontally */
    float *sums;                      /* [size]: of an output row */
    float *weights;                   /* of each output column, then of each output row */
    int *first;                       /* [2 * size]: index of their first sample */
    int64_t row_floats, weight_floats;
    int size;
} ls_transform_scratch;

void ls_transform_release(ls_transform_scratch *scratch);

/* Resamples the crop of an image to out[3][size][size]: bilinear, with the triangle widened by the
 * reduction (antialiased), as PIL does, but with f32 sums, rounded to a byte once, half up. rgb:
 * [height][width][3], possibly a reduced decoding of an image of full_width x full_height, whose
 * pixels are the crop's unit. */
ls_status ls_transform_apply(ls_transform_scratch *scratch, const uint8_t *rgb, int width,
                             int height, int full_width, int full_height,
                             const ls_transform_crop *crop, int size, uint8_t *out);

#endif
