/* Lists of tensors on the device: one record per tensor with its address in every list of a call,
 * and the list of chunks that the blocks of a launch process. Four consecutive elements are
 * processed at a time (a quad), whatever their types and alignment: views into buckets need not be
 * aligned to more than an element. */
#ifndef LS_CUDA_MULTI_LISTS_H
#define LS_CUDA_MULTI_LISTS_H

#include "kernels/cuda/launch.h"

#include "kernels/kernels.h"
#include "kernels/math/rules.h"
#include "kernels/cuda/packet.h"

enum {
    LS_MULTI_CHUNK = 16384, /* elements; equal to the CPU's chunks for norms */
    LS_MULTI_SPLIT = 2,     /* blocks that share a chunk if no order of sums matters */
    LS_MULTI_THREADS = 256,
};

/* Lists of a call. */
enum { LS_MULTI_TO, LS_MULTI_FROM, LS_MULTI_LISTS = 5 };
enum { LS_MULTI_VALUE, LS_MULTI_GRAD, LS_MULTI_MOMENT1, LS_MULTI_MOMENT2, LS_MULTI_COPY };

/* One tensor of a list. */
typedef struct ls_multi_view {
    void *data; /* NULL: none */
    int32_t type;
    int32_t parts; /* accesses per quad: 1, 2 or 4 */
} ls_multi_view;

typedef struct ls_multi_entry {
    ls_multi_view view[LS_MULTI_LISTS];
    int64_t count;
    int32_t first_chunk, chunks;
    int32_t group;
    int32_t whole; /* each view reads a quad in one access; all but FROM and COPY are f32 */
} ls_multi_entry;

typedef struct ls_multi_chunk {
    int32_t tensor, index; /* the index-th chunk of that tensor */
} ls_multi_chunk;

/* Constants of a step, computed on the device. */
typedef struct ls_multi_rule {
    int32_t skip;
    float lr;
    int64_t number;                          /* of the step, from 1 */
    ls_rules rules[LS_OPTIMIZER_GROUPS_MAX]; /* of each group */
    float clip;                              /* a clip's factor */
} ls_multi_rule;

/* A table on the device; chunks in order of tensor and offset. */
typedef struct ls_multi_table {
    const ls_multi_entry *entry;
    const ls_multi_chunk *chunk;
    int32_t entry_count, chunk_count;
    ls_multi_rule *rule;
    double *first, *second; /* with norms: sums of squares per chunk */
    ls_rule_tensor *own;    /* with norms: per tensor */
} ls_multi_table;

/* multi_table.cu */
ls_multi_view ls_multi_view_of(ls_tensor tensor);
/* The table for list[LS_MULTI_LISTS], missing lists with count 0, and the groups of its tensors
 * (NULL: all 0): the one created at their first
 * use, or a new one, which allocates memory and waits for the stream: LS_ERR_USAGE while a graph is
 * recorded. norms: with memory for their sums. Tables live as long as the backend. */
ls_status ls_multi_table_of(ls_stream *stream, const ls_tensor_list *list, const uint8_t *group,
                            bool norms, ls_multi_table *out);
/* One thread: the rules of all groups; squares: of all gradients (rule.h). */
LS_DEVICE void ls_multi_prepare(ls_multi_rule *rule, const ls_optimizer_config *config,
                                double squares)
{
    for (int g = 0; g < (config->group_count > 0 ? config->group_count : 1); g++) {
        float lr = rule->lr;
        ls_optimizer_config own = ls_rules_of_group(config, g, &lr);
        ls_rules_prepare(&rule->rules[g], &own, lr, rule->number, squares);
    }
}

/* Computes every tensor's rule (LS_NORMS_UPDATE: and moves the moments), between the preparation of
 * the common rule and the step (multi_norm.cu). */
ls_status ls_multi_norm_prepare(cudaStream_t stream, const ls_optimizer_config *config,
                                const ls_multi_table *table);

/* Of the list GRAD: state->grad_norm, and the table's rule, of which only skip and clip are set
 * (multi_norm.cu). */
ls_status ls_multi_norm_clip(cudaStream_t stream, const ls_clip_config *config, bool dynamic,
                             const ls_multi_table *table, ls_step_state *state);

/* ---- quads ----------------------------------------------------------------------------------- */

/* Four elements as stored; half types use the first two words. */
typedef struct ls_multi_quad {
    uint32_t word[4];
} ls_multi_quad;

/* `count` elements (1 to 4) from `index` on. */
LS_DEVICE void ls_multi_load(ls_multi_quad *quad, const ls_multi_view &view, int64_t index,
                             int count)
{
    uint32_t *word = quad->word;
    word[0] = word[1] = word[2] = word[3] = 0;
    LS_GLOBAL(view.data);
    int parts = count == 4 ? view.parts : 4;
    if (view.type == LS_F32) {
        const uint32_t *from = (const uint32_t *)view.data + index;
        if (parts == 1) {
            ls_vector all = ls_vector_load(from);
            word[0] = all.word[0];
            word[1] = all.word[1];
            word[2] = all.word[2];
            word[3] = all.word[3];
        } else if (parts == 2) {
            ls_pair low = ls_pair_load(from);
            ls_pair high = ls_pair_load(from + 2);
            word[0] = low.word[0];
            word[1] = low.word[1];
            word[2] = high.word[0];
            word[3] = high.word[1];
        } else {
            LS_UNROLL
            for (int k = 0; k < 4; k++) {
                if (k < count) {
                    word[k] = from[k];
                }
            }
        }
        return;
    }
    const uint16_t *from = (const uint16_t *)view.data + index;
    if (parts == 1) {
        ls_pair both = ls_pair_load(from);
        word[0] = both.word[0];
        word[1] = both.word[1];
    } else if (parts == 2) {
        word[0] = *(const uint32_t *)from;
        word[1] = *(const uint32_t *)(from + 2);
    } else {
        LS_UNROLL
        for (int k = 0; k < 4; k++) {
            if (k < count) {
                word[k / 2] |= (uint32_t)from[k] << (16 * (k % 2));
            }
        }
    }
}

LS_DEVICE void ls_multi_store(const ls_multi_view &view, int64_t index, int count,
                              const ls_multi_quad &quad)
{
    const uint32_t *word = quad.word;
    LS_GLOBAL(view.data);
    int parts = count == 4 ? view.parts : 4;
    if (view.type == LS_F32) {
        uint32_t *to = (uint32_t *)view.data + index;
        if (parts == 1) {
            ls_vector all = {{word[0], word[1], word[2], word[3]}};
            ls_vector_store(to, all);
        } else if (parts == 2) {
            ls_pair low = {{word[0], word[1]}}, high = {{word[2], word[3]}};
            ls_pair_store(to, low);
            ls_pair_store(to + 2, high);
        } else {
            LS_UNROLL
            for (int k = 0; k < 4; k++) {
                if (k < count) {
                    to[k] = word[k];
                }
            }
        }
        return;
    }
    uint16_t *to = (uint16_t *)view.data + index;
    if (parts == 1) {
        ls_pair both = {{word[0], word[1]}};
        ls_pair_store(to, both);
    } else if (parts == 2) {
        *(uint32_t *)to = word[0];
        *(uint32_t *)(to + 2) = word[1];
    } else {
        LS_UNROLL
        for (int k = 0; k < 4; k++) {
            if (k < count) {
                to[k] = (uint16_t)(word[k / 2] >> (16 * (k % 2)));
            }
        }
    }
}

LS_DEVICE void ls_multi_get(float *value, const ls_multi_quad &quad, int type)
{
    LS_UNROLL
    for (int k = 0; k < 4; k++) {
        uint16_t half = (uint16_t)(quad.word[k / 2] >> (16 * (k % 2)));
        if (type == LS_F32) {
            value[k] = ls_half_f32_of_bits(quad.word[k]);
        } else if (type == LS_F16) {
            ls_f16 stored = {half};
            value[k] = ls_element_float(stored);
        } else {
            ls_bf16 stored = {half};
            value[k] = ls_element_float(stored);
        }
    }
}

/* Rounds the values; returns whether a half became inf or NaN. */
LS_DEVICE uint32_t ls_multi_set(ls_multi_quad *quad, const float *value, int type)
{
    if (type == LS_F32) {
        LS_UNROLL
        for (int k = 0; k < 4; k++) {
            quad->word[k] = ls_half_bits_of_f32(value[k]);
        }
        return 0;
    }
    uint32_t exponent = type == LS_F16 ? 0x7c00u : 0x7f80u, bad = 0, half[4];
    LS_UNROLL
    for (int k = 0; k < 4; k++) {
        if (type == LS_F16) {
            ls_f16 stored;
            ls_element_set(&stored, value[k]);
            half[k] = stored.bits;
        } else {
            ls_bf16 stored;
            ls_element_set(&stored, value[k]);
            half[k] = stored.bits;
        }
        bad |= (half[k] & exponent) == exponent ? 1u : 0u;
    }
    quad->word[0] = half[0] | half[1] << 16;
    quad->word[1] = half[2] | half[3] << 16;
    return bad;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* A view with the properties that the code was specialised for. */
LS_DEVICE ls_multi_view ls_multi_known(ls_multi_view view, int type)
{
    view.type = type;
    view.parts = 1;
    return view;
}

/* The view from element `begin` on, a multiple of a quad. */
LS_DEVICE ls_multi_view ls_multi_from(ls_multi_view view, int64_t begin)
{
    if (view.data != NULL) {
        view.data = (char *)view.data + begin * (view.type == LS_F32 ? 4 : 2);
    }
    return view;
}

/* The elements [begin, end) of a tensor that this block processes. */
typedef struct ls_multi_part {
    int tensor;
    int64_t begin, end;
} ls_multi_part;

/* `split` blocks share a chunk. */
LS_DEVICE ls_multi_part ls_multi_part_of(const ls_multi_table &table, int split)
{
    ls_multi_chunk chunk = table.chunk[blockIdx.x / (unsigned)split];
    int64_t count = table.entry[chunk.tensor].count, size = LS_MULTI_CHUNK / split;
    ls_multi_part part;
    part.tensor = chunk.tensor;
    part.begin = (int64_t)chunk.index * LS_MULTI_CHUNK + blockIdx.x % (unsigned)split * size;
    part.end = part.begin + size < count ? part.begin + size : count;
    return part;
}

/* *lowest = min(*lowest, tensor) if any lane of this warp reports one. *lowest starts at -1, the
 * largest unsigned number. Every lane must call this. */
LS_DEVICE void ls_multi_report(int32_t *lowest, int tensor, uint32_t bad)
{
    if (__ballot_sync(0xffffffffu, bad != 0) != 0 && threadIdx.x % LS_WARP == 0) {
        atomicMin((uint32_t *)lowest, (uint32_t)tensor);
    }
}

#endif
