/* A convolution on an image of few pixels as one matrix over whole images: row = element of the
 * output image, column = element of the input image, both in the activations' order in memory. */
#ifndef LS_CPU_MATRIX_H
#define LS_CPU_MATRIX_H

#include "backend.h"
#include "dnn.h"

/* Images up to this many input pixels x output pixels run as one matrix product: at 4 x 4 (a 3x3 on
 * 2x2 pixels) the matrix has 16 blocks where direct code multiplies 36 taps, 20 of them with
 * padding. */
enum { LS_MATRIX_PIXELS = 16 };

typedef struct ls_matrix_map {
    ls_dnn_shape shape;
    int in_block, out_block; /* channels that lie together */
    int run;                 /* input channels that lie side by side wherever they are, a divisor */
    int rows, columns;       /* out_channels x output pixels, in_channels x input pixels */
    /* [output pixels][input pixels]: the kernel position between two pixels; negative: none */
    int8_t tap_between[LS_MATRIX_PIXELS];
} ls_matrix_map;

bool ls_matrix_pays(const ls_dnn_shape *shape);
/* Only for a shape that pays. */
ls_matrix_map ls_matrix_make(const ls_dnn_shape *shape, int in_block, int out_block);
/* kernel [out,in,k,k] -> matrix [rows][columns]; cells that no tap reaches are zero. */
void ls_matrix_expand(ls_backend *backend, const ls_matrix_map *map, const float *kernel,
                      float *matrix);
/* The transposed map, for gradients: each tap is the sum of its cells; taps that cover only padding
 * are 0. */
void ls_matrix_fold(ls_backend *backend, const ls_matrix_map *map, float *matrix, float *kernel);

#endif
