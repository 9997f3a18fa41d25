/* A convolution on an image of few pixels as one matrix over whole images: row = element of the
 * output image, column = element of the input image, both in the activations' order in memory. */
#ifndef LS_CPU_MATRIX_H
#define LS_CPU_MATRIX_H

#include "backend.h"
#include "dnn.h"

typedef struct ls_matrix_map {
    ls_dnn_shape shape;
    int in_block, out_block;
    int rows, columns; /* out_channels x output pixels, in_channels x input pixels */
} ls_matrix_map;

/* kernel [out,in,k,k] -> matrix [rows][columns]; cells that no tap reaches are zero. */
void ls_matrix_expand(ls_backend *backend, const ls_matrix_map *map, const float *kernel,
                      float *matrix);
/* The transposed map, for gradients: each tap is the sum of its cells; taps that cover only padding
 * are 0. */
void ls_matrix_fold(ls_backend *backend, const ls_matrix_map *map, const float *matrix,
                    float *kernel);

#endif
