/* Weights from the plain layout to oneDNN's layouts for AVX512-BF16 and for f32 on AVX-512, at the
 * speed of memory; oneDNN's own reorders need f32 and take three to eight times as long. */
#ifndef LS_CPU_PACK_H
#define LS_CPU_PACK_H

#include "dnn.h"
#include "kernels/core/tensor.h"

typedef struct ls_pack_target {
    ls_dnn_layout layout; /* not LS_DNN_OTHER */
    void *packed;         /* NULL: not written */
} ls_pack_target;

typedef struct ls_pack_weight {
    const void *plain; /* [out,in,taps] */
    ls_dtype type;     /* f32, which is rounded to bf16, or bf16 */
    ls_dtype rounded;  /* f32 layouts: what values are rounded to; `type` may be any */
    int out_channels, in_channels, taps;
    /* The matrix layouts only: a row is an element of an output image, a column one of an input
     * image, both in blocks of 16 channels. tap_between: [out_pixels][in_pixels], negative for
     * none; such values are not written and have to be zero already. */
    int out_pixels, in_pixels;
    const int8_t *tap_between;
} ls_pack_weight;

/* Whether a weight can be packed here: whole blocks of 16 channels, 1 or 9 taps, known layouts. */
bool ls_pack_takes(const ls_pack_weight *weight, ls_dnn_layout layout);
/* On a processor with AVX-512. The values are those of bf16 rounded to nearest even. */
void ls_pack_run(const ls_pack_weight *weight, const ls_pack_target target[2], int threads);
/* The same for layouts of f32. */
bool ls_pack_wide_takes(const ls_pack_weight *weight, ls_dnn_layout layout);
void ls_pack_wide_run(const ls_pack_weight *weight, const ls_pack_target target[2], int threads);

#endif
