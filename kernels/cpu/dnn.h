/* oneDNN's primitives. 2.6 and 3.x create descriptors differently, and only dnn.c handles that
 * (cpu_bound.c calls the plain matrix product, which is the same in both). A `ls_dnn_product` is
 * one primitive: a convolution or an inner product, forward or one of its two backward passes, on
 * activations laid out as "N x C/B x HW x B". Sums are f32 whatever the operands' types. */
#ifndef LS_CPU_DNN_H
#define LS_CPU_DNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "kernels/core/tensor.h"

typedef struct ls_dnn ls_dnn;
typedef struct ls_dnn_product ls_dnn_product;

typedef enum ls_dnn_pass {
    LS_DNN_FORWARD,          /* out = in * weight */
    LS_DNN_BACKWARD_DATA,    /* in (gradient) = out (gradient) * weight */
    LS_DNN_BACKWARD_WEIGHTS, /* weight (gradient) = in * out (gradient) */
} ls_dnn_pass;

typedef struct ls_dnn_shape {
    int batch, in_channels, in_height, in_width;
    int out_channels, out_height, out_width;
    int kernel, stride, pad;
    bool matrix; /* inner product: in [batch,in_channels], out [batch,out_channels]; rest unused */
} ls_dnn_shape;

/* Types of the three tensors of a pass; weight: its gradient in the pass that computes it. */
typedef struct ls_dnn_types {
    ls_dtype in, weight, out;
} ls_dnn_types;

/* How 16 x 16 channels of one tap of a weight lie: element (o, i) of a block, with steps in
 * elements. */
typedef enum ls_dnn_order {
    LS_DNN_OTHER,     /* none of these, or padded */
    LS_DNN_PAIRS_IN,  /* bf16: 2 o + i % 2 + i / 2 step */
    LS_DNN_PAIRS_OUT, /* bf16: 2 i + o % 2 + o / 2 step */
    LS_DNN_OUT,       /* f32: o + i step */
    LS_DNN_IN,        /* f32: i + o step */
} ls_dnn_order;

/* Where the blocks lie: block (b, .) begins at b % many * near + b / many * far, and so for inputs,
 * and tap t adds t * tap. */
typedef struct ls_dnn_side {
    int many;
    int64_t near, far;
} ls_dnn_side;

typedef struct ls_dnn_layout {
    ls_dnn_order order;
    int64_t step, tap;
    ls_dnn_side out, in;
} ls_dnn_layout;

static inline int64_t ls_dnn_side_at(const ls_dnn_side *side, int64_t block)
{
    return block % side->many * side->near + block / side->many * side->far;
}

typedef struct ls_dnn_product_info {
    const char *engine;                 /* oneDNN's name of the implementation */
    size_t weight_bytes, scratch_bytes; /* of the weight in the primitive's own layout, and of its
                                           scratchpad */
    ls_dnn_layout layout;               /* of the weight; not of a gradient */
    bool weight_is_plain; /* the primitive's weight is plain f32, so that packing is unnecessary */
} ls_dnn_product_info;

/* Opens the engine and its stream. LS_ERR_INFRA, logged. */
ls_status ls_dnn_open(ls_dnn **out);
void ls_dnn_close(ls_dnn *dnn);
/* The widest block of channels for which oneDNN has vector code here: 16, 8, or 1 for none.
 * ONEDNN_MAX_CPU_ISA can make it less than the processor's. */
int ls_dnn_block(void);
/* The processor's units for products of this type, as oneDNN uses them: "AMX", "AVX512-BF16"; NULL:
 * none, or f32. ONEDNN_MAX_CPU_ISA can hide them. */
const char *ls_dnn_half_units(ls_dtype type);
/* "bf16 on AMX", or why products of this half type run in f32: "bf16 emulated: this CPU has neither
 * AMX nor AVX512-BF16". asked: f32 was asked for; native: the units in use, or NULL. */
void ls_dnn_half_products(ls_dtype type, bool asked, const char *native, char *text, size_t bytes);
/* "oneDNN 2.6.3 (path of the library)". */
void ls_dnn_describe(char *text, size_t bytes);

/* A block of all channels: pixels first, channels last. */
enum { LS_DNN_CHANNELS_LAST = 0 };
/* Whether oneDNN, asked with any layout, convolves this half type in channels last, by code for
 * AMX, or has no code for blocks of channels. In blocks it never uses AMX; on AVX512-BF16 blocks
 * are measured to be faster. */
ls_status ls_dnn_wants_channels_last(ls_dnn *dnn, ls_dtype type, bool *out);
/* The units by which it convolves that type in that layout, as its implementation's name says;
 * NULL: it names none. */
const char *ls_dnn_units_in(ls_dnn *dnn, ls_dtype type, bool last);
/* The units that an implementation's name has: "AMX"; NULL: none of those for half types. */
const char *ls_dnn_units(const char *engine);

/* One primitive for activations of block in_block and out_block (1: plain NCHW; 8, 16; or
 * LS_DNN_CHANNELS_LAST).
 * LS_ERR_UNSUPPORTED, without a message, if oneDNN has no implementation or only one named
 * "ref...". */
ls_status ls_dnn_product_create(ls_dnn *dnn, const ls_dnn_shape *shape, ls_dnn_pass pass,
                                int in_block, int out_block, const ls_dnn_types *types,
                                ls_dnn_product **out);
/* The primitive weight[rows][columns] (f32) = sum over k below `depth` of out[k][rows] *
 * in[k][columns], both of `type` in rows one after the other: a gradient of weights as one matrix
 * product. LS_ERR_UNSUPPORTED as above; ls_dnn_product_run runs it. */
ls_status ls_dnn_outer_create(ls_dnn *dnn, int rows, int columns, int64_t depth, ls_dtype type,
                              ls_dnn_product **out);
void ls_dnn_product_destroy(ls_dnn_product *product);
const ls_dnn_product_info *ls_dnn_product_about(const ls_dnn_product *product);
/* The layout that oneDNN gives a weight of these types and this format tag (dnnl_format_tag_t). */
ls_status ls_dnn_layout_of_tag(const ls_dnn_shape *shape, ls_dtype type, int tag,
                               ls_dnn_layout *layout);
/* f32, plain [out,in,k,k] (matrix: [out,in]) -> the primitive's layout and type; with
 * BACKWARD_WEIGHTS from the primitive's layout to the plain one. Not for a weight that is plain. */
ls_status ls_dnn_product_reorder(ls_dnn_product *product, const float *plain, const void *packed);
/* Runs the primitive; the pass decides which of the three is written. scratch: scratch_bytes,
 * 64-byte aligned. */
ls_status ls_dnn_product_run(ls_dnn_product *product, void *in, void *weight, void *out,
                             void *scratch);

#endif
