/* A convolution as one matrix product: the input as rows that hold the taps of one output pixel
 * each, and such rows folded back into an input. Activations are in channels last. */
#ifndef LS_CPU_UNFOLD_H
#define LS_CPU_UNFOLD_H

#include "backend.h"
#include "dnn.h"

/* rows [batch][output pixels][taps][in_channels]: what each tap covers, zeros where that is
 * padding. in, rows: `element` bytes a value. */
void ls_unfold(const ls_backend *backend, const ls_dnn_shape *shape, const void *in, void *rows,
               size_t element);
/* in [images][input pixels][in_channels] of `type`: for each value the sum of what all taps that
 * cover it have in `rows` (f32, as above), in f32 and in the order of the taps, rounded once; 0
 * where none does. */
void ls_unfold_back(const ls_backend *backend, const ls_dnn_shape *shape, int images,
                    const float *rows, ls_dtype type, void *in);
/* sums [out][tap][in] (f32) -> grad [out][in][tap], rounded as by ls_parallel_store. row: one
 * output channel's values for each thread. */
void ls_unfold_store(const ls_backend *backend, const ls_dnn_shape *shape, ls_dtype rounded,
                     const float *sums, float *row, const ls_tensor *grad);
/* A weight, f32: plain [out][in][tap] -> turned [tap][in][out]. */
void ls_unfold_turn(const ls_backend *backend, const ls_dnn_shape *shape, const float *plain,
                    float *turned);

#endif
