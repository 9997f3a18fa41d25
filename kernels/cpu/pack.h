/* Weights from the plain layout to oneDNN's layouts for AMX, AVX512-BF16 and for f32 on AVX-512, at
 * the speed of memory; oneDNN's own reorders need f32 and take three to eight times as long. */
#ifndef LS_CPU_PACK_H
#define LS_CPU_PACK_H

#include "dnn.h"

typedef struct ls_pack_target {
    const ls_dnn_layout *layout;
    void *packed; /* NULL: not written */
} ls_pack_target;

typedef struct ls_pack_weight {
    const void *plain; /* [out,in,taps] */
    ls_dtype type;     /* f32, which is rounded to bf16, or bf16 */
    ls_dtype rounded;  /* f32 layouts: what values are rounded to; `type` may be any */
    int out_channels, in_channels, taps;
    /* A matrix over whole images only: a row is an element of an output image, a column one of an
     * input image, in blocks of out_block and in_block channels. tap_between:
     * [out_pixels][in_pixels], negative for none; such values are not written and have to be zero
     * already; NULL: no matrix. */
    int out_pixels, in_pixels, out_block, in_block;
    const int8_t *tap_between;
} ls_pack_weight;

/* Whether a weight can be packed here, for layouts of f32 (wide) or of bf16: whole blocks of 16
 * channels, 1 or 9 taps, known orders. */
bool ls_pack_takes(const ls_pack_weight *weight, const ls_dnn_layout *layout, bool wide);
/* On a processor with AVX-512, into layouts of one kind; the first is there also where it is not
 * written. Values of bf16 are rounded to nearest even. */
void ls_pack_run(const ls_pack_weight *weight, const ls_pack_target target[2], int threads);

typedef void ls_pack_store_fn(void *to, int64_t step, const void *vectors);

/* Stores a block of 16 x 16 channels of one tap: once, or in a matrix wherever it is the tap
 * between two pixels. element: bytes of a value. Inlined with a constant `store`. */
static inline void ls_pack_store(const ls_pack_weight *w, const ls_pack_target *target,
                                 size_t element, int tap, int out_block, int in_block,
                                 const void *vectors, ls_pack_store_fn *store)
{
    enum { LANES = 16 };
    const ls_dnn_layout *l = target->layout;
    char *packed = target->packed;
    if (w->tap_between == NULL) {
        int64_t at =
            ls_dnn_side_at(&l->out, out_block) + ls_dnn_side_at(&l->in, in_block) + tap * l->tap;
        store(packed + (size_t)at * element, l->step, vectors);
        return;
    }
    int out_near = w->out_block / LANES, in_near = w->in_block / LANES;
    for (int out = 0; out < w->out_pixels; out++) {
        int64_t row =
            (out_block / out_near * w->out_pixels + out) * out_near + out_block % out_near;
        for (int in = 0; in < w->in_pixels; in++) {
            if (w->tap_between[out * w->in_pixels + in] == tap) {
                int64_t column =
                    (in_block / in_near * w->in_pixels + in) * in_near + in_block % in_near;
                int64_t at = ls_dnn_side_at(&l->out, row) + ls_dnn_side_at(&l->in, column);
                store(packed + (size_t)at * element, l->step, vectors);
            }
        }
    }
}

#endif
