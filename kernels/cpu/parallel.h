/* Whole-tensor versions of the loops, over all threads of the backend. */
#ifndef LS_CPU_PARALLEL_H
#define LS_CPU_PARALLEL_H

#include "backend.h"

/* from (type) -> to (f32), and back with one rounding. */
void ls_parallel_widen(ls_backend *backend, ls_dtype type, const void *from, float *to,
                       int64_t count);
void ls_parallel_narrow(ls_backend *backend, ls_dtype type, const float *from, void *to,
                        int64_t count);
/* value = f32(type(value)). */
void ls_parallel_round(ls_backend *backend, ls_dtype type, float *value, int64_t count);
/* sum = a + b, then ReLU where `relu`; sum may be a or b. */
void ls_parallel_add(ls_backend *backend, ls_dtype type, const void *a, const void *b, void *sum,
                     bool relu, int64_t count);
void ls_parallel_relu(ls_backend *backend, ls_dtype type, const void *x, void *y, int64_t count);
/* dx = dy where y > 0, else 0; dx may be dy. */
void ls_parallel_relu_back(ls_backend *backend, ls_dtype type, const void *dy, const void *y,
                           void *dx, int64_t count);
/* Images from [images][channels][pixels] (f32) to channels last (type), rounded once; few channels:
 * at most 64. */
void ls_parallel_interleave(ls_backend *backend, ls_dtype type, const float *from, void *to,
                            int images, int channels, int pixels);
/* Changes the block of activations of `bytes` (2 or 4) each, [images][channels/from][pixels][from]
 * -> the same with `to`. */
void ls_parallel_reblock(ls_backend *backend, size_t bytes, const void *from, int from_block,
                         void *to, int to_block, int images, int channels, int pixels);
/* Whether no value is infinite or NaN. */
bool ls_parallel_is_finite(ls_backend *backend, ls_dtype type, const void *data, int64_t count);
/* Stores f32 values, rounded to the type `rounded`, in a tensor of any floating type. from is
 * overwritten. */
void ls_parallel_store(ls_backend *backend, ls_dtype rounded, float *from, const ls_tensor *to);
/* The same of `count` values from `start` on of the tensor, in the calling thread. */
void ls_parallel_store_part(const ls_backend *backend, ls_dtype rounded, float *from,
                            const ls_tensor *to, int64_t start, int64_t count);

#endif
