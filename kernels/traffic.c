#include "traffic.h"

/* What the rules below ask about one network. */
typedef struct model {
    const ls_lower *lower;
    int image_channels, ways;
    ls_traffic *list;
    int count;
} model;

bool ls_traffic_is_product(ls_traffic_part part)
{
    return part == LS_TRAFFIC_PRODUCT || part == LS_TRAFFIC_PRODUCT_WEIGHTS ||
           part == LS_TRAFFIC_PRODUCT_DATA;
}

bool ls_traffic_is_forward(ls_traffic_part part)
{
    return part == LS_TRAFFIC_IMAGE || part == LS_TRAFFIC_PRODUCT ||
           part == LS_TRAFFIC_STATISTICS || part == LS_TRAFFIC_APPLY || part == LS_TRAFFIC_SIMPLE;
}

const char *ls_traffic_part_name(ls_traffic_part part)
{
    static const char *const name[LS_TRAFFIC_PARTS] = {
        [LS_TRAFFIC_IMAGE] = "image",
        [LS_TRAFFIC_PRODUCT] = "forward",
        [LS_TRAFFIC_PRODUCT_WEIGHTS] = "backward weights",
        [LS_TRAFFIC_PRODUCT_DATA] = "backward data",
        [LS_TRAFFIC_STATISTICS] = "statistics",
        [LS_TRAFFIC_APPLY] = "apply",
        [LS_TRAFFIC_SUMS] = "sums",
        [LS_TRAFFIC_NORM_BACK] = "gradient",
        [LS_TRAFFIC_SIMPLE] = "forward",
        [LS_TRAFFIC_SIMPLE_BACK] = "backward",
    };
    return name[part];
}

int ls_traffic_most(const ls_lower *lower)
{
    return 5 * lower->op_count + 1; /* a dual norm: two statistics, apply, sums, gradient */
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static double element(const model *m)
{
    return (double)ls_dtype_bytes(m->lower->options.activation);
}

static bool is_image(const model *m, int slot)
{
    return m->lower->network->layer[m->lower->slot[slot].layer].kind == LS_LAYER_INPUT;
}

static double slot_bytes(const model *m, int slot)
{
    if (slot < 0) {
        return 0;
    }
    const ls_slot *s = &m->lower->slot[slot];
    double channels = is_image(m, slot) ? m->image_channels : s->channels;
    return (double)s->count / s->channels * channels * element(m);
}

static double mask_bytes(const model *m, const ls_op *op)
{
    return m->ways & LS_TRAFFIC_ON_CPU ? 0
           : op->relu && op->out >= 0  ? (double)m->lower->slot[op->out].count / 8
                                       : 0;
}

/* ---- who reads what -------------------------------------------------------------------------- */

/* The convolution that writes this slot and does not read the image, or NULL. */
static const ls_op *inner_conv_of(const model *m, int slot)
{
    const ls_op *op = ls_lower_writer(m->lower, slot);
    return op != NULL && op->kind == LS_OP_CONV && !is_image(m, op->in) ? op : NULL;
}

/* A norm between two convolutions, of which the second is the only reader. */
static bool is_between_convs(const model *m, const ls_op *norm)
{
    if (norm->kind != LS_OP_NORM || norm->residual >= 0 || !norm->relu ||
        inner_conv_of(m, norm->in) == NULL || ls_lower_readers(m->lower, norm->out) != 1) {
        return false;
    }
    for (int i = 0; i < m->lower->op_count; i++) {
        if (m->lower->op[i].in == norm->out) {
            return m->lower->op[i].kind == LS_OP_CONV;
        }
    }
    return false;
}

/* The convolution of stride 1 whose gradient completes that of a join's output: the first of its
 * readers, which backward reaches last. cuDNN has no engine for strided ones
 * (results/cudnn/README.md). */
static const ls_op *completing_conv(const model *m, const ls_op *norm)
{
    if (norm->kind != LS_OP_NORM || norm->residual < 0 || !norm->relu) {
        return NULL;
    }
    for (int i = 0; i < m->lower->op_count; i++) {
        const ls_op *op = &m->lower->op[i];
        if (op->in != norm->out && op->residual != norm->out) {
            continue;
        }
        const ls_layer *layer = &m->lower->network->layer[op->layer];
        return op->kind == LS_OP_CONV && layer->stride == 1 ? op : NULL;
    }
    return NULL;
}

/* Whether the sums of this norm are taken by a convolution's gradient of its input. */
static bool sums_are_fused(const model *m, const ls_op *norm)
{
    return ((m->ways & LS_TRAFFIC_FUSE_INNER) && is_between_convs(m, norm)) ||
           ((m->ways & LS_TRAFFIC_FUSE_JOINS) && completing_conv(m, norm) != NULL);
}

/* The norm whose sums the gradient of this convolution's input takes, or NULL. */
static const ls_op *norm_summed_by(const model *m, const ls_op *conv)
{
    for (int i = 0; i < m->lower->op_count; i++) {
        const ls_op *norm = &m->lower->op[i];
        if (norm->kind != LS_OP_NORM || !sums_are_fused(m, norm)) {
            continue;
        }
        if (norm->residual < 0 ? norm->out == conv->in : completing_conv(m, norm) == conv) {
            return norm;
        }
    }
    return NULL;
}

/* ---- one operation --------------------------------------------------------------------------- */

static void add(model *m, ls_traffic_part part, const ls_op *op, double bytes)
{
    m->list[m->count++] =
        (ls_traffic){.part = part, .op = (int)(op - m->lower->op), .bytes = bytes};
}

static bool is_blocked_stem(const model *m, const ls_op *op)
{
    return (m->ways & LS_TRAFFIC_BLOCKED_STEM) && is_image(m, op->in) &&
           ls_lower_stem_blocks(m->lower->network, &m->lower->options);
}

/* A product as it runs: its input in memory, and the terms of one output. */
typedef struct product {
    double in_bytes, taps;
    int channels;
} product;

static product product_of(const model *m, const ls_op *op)
{
    enum { STEM_CHANNELS = 16, STEM_TAPS = 4 * 4 }; /* 4 pixels of 3 channels, padded to 16 */
    const ls_layer *layer = &m->lower->network->layer[op->layer];
    const ls_slot *in = &m->lower->slot[op->in];
    if (is_blocked_stem(m, op)) { /* 3 pixels of padding on each side, in blocks of 2 */
        return (product){.in_bytes = (double)m->lower->options.batch * (in->height / 2.0 + 3) *
                                     (in->width / 2.0 + 3) * STEM_CHANNELS * element(m),
                         .channels = STEM_CHANNELS,
                         .taps = STEM_TAPS};
    }
    return (product){.in_bytes = slot_bytes(m, op->in),
                     .channels = is_image(m, op->in) ? m->image_channels : in->channels,
                     .taps = op->kind == LS_OP_CONV ? (double)layer->kernel * layer->kernel : 1};
}

/* Each of the three reads two of input, weight and output and writes the third. */
static void add_product(model *m, ls_traffic_part part, const ls_op *op)
{
    product p = product_of(m, op);
    const ls_slot *out = &m->lower->slot[op->out];
    double weight = p.taps * p.channels * out->channels * element(m);
    double epilogue = 0;
    if (part == LS_TRAFFIC_PRODUCT_DATA) {
        const ls_op *norm = norm_summed_by(m, op);
        epilogue += op->onto ? p.in_bytes : 0; /* the values that the result is added to */
        if (norm != NULL) {                    /* their x, for the masks and the sums */
            epilogue += slot_bytes(m, norm->in) + slot_bytes(m, norm->residual);
        }
    }
    add(m, part, op, p.in_bytes + weight + slot_bytes(m, op->out) + epilogue);
    m->list[m->count - 1].epilogue = epilogue;
    m->list[m->count - 1].channels = p.channels;
    m->list[m->count - 1].flops = 2 * p.taps * p.channels * (double)out->count;
}

static void add_norm_forward(model *m, const ls_op *op)
{
    const int side[] = {op->in, op->dual ? op->residual : -1};
    for (int k = 0; k < (op->dual ? 2 : 1); k++) {
        bool fused = (m->ways & LS_TRAFFIC_FUSE_STATISTICS) && inner_conv_of(m, side[k]) != NULL;
        add(m, LS_TRAFFIC_STATISTICS, op, fused ? 0 : slot_bytes(m, side[k]));
        m->list[m->count - 1].norm = k;
    }
    bool fused = (m->ways & LS_TRAFFIC_FUSE_APPLY) && is_between_convs(m, op);
    if (m->ways & LS_TRAFFIC_ON_CPU) {
        double added = op->dual ? 0 : slot_bytes(m, op->residual);
        add(m, LS_TRAFFIC_APPLY, op, added + slot_bytes(m, op->out));
        return;
    }
    add(m, LS_TRAFFIC_APPLY, op,
        fused ? 0
              : slot_bytes(m, op->in) + slot_bytes(m, op->residual) + slot_bytes(m, op->out) +
                    mask_bytes(m, op));
}

/* g, the masked sum of the contributions, is stored by the first sweep if the second one cannot
 * recompute it (grad_layout.c). */
static void add_norm_backward(model *m, const ls_op *op)
{
    double in = slot_bytes(m, op->in), out = slot_bytes(m, op->out), mask = mask_bytes(m, op);
    double residual = op->dual ? slot_bytes(m, op->residual) : 0;
    double second = op->dy[1] == LS_NO_BUFFER ? 0 : out;
    bool fused = sums_are_fused(m, op);
    if (m->ways & LS_TRAFFIC_ON_CPU) {
        double output = op->relu && op->residual >= 0 ? out : 0;
        add(m, LS_TRAFFIC_SUMS, op,
            in + residual + out + second + output + (op->store_g ? out : 0));
        add(m, LS_TRAFFIC_NORM_BACK, op, in + residual);
        return;
    }
    double again = fused || op->store_g ? out : out + second + mask;
    add(m, LS_TRAFFIC_SUMS, op,
        fused ? 0 : in + residual + out + second + mask + (op->store_g ? out : 0));
    add(m, LS_TRAFFIC_NORM_BACK, op, in + residual + again + in + (op->dual ? residual : 0));
}

static double simple_bytes(const model *m, const ls_op *op, bool forward)
{
    double both = slot_bytes(m, op->in) + slot_bytes(m, op->out);
    bool own_pass = (m->ways & LS_TRAFFIC_ON_CPU) != 0;
    double second = op->dy[1] == LS_NO_BUFFER || own_pass ? 0 : slot_bytes(m, op->out);
    switch (op->kind) {
    case LS_OP_ADD:
    case LS_OP_RELU:
        return both + slot_bytes(m, op->residual) + mask_bytes(m, op) + (forward ? 0 : second);
    case LS_OP_POOL: /* one byte per output stores the chosen input */
        return both + (double)m->lower->slot[op->out].count + (forward ? 0 : second);
    default:
        return both;
    }
}

int ls_traffic_list(const ls_lower *lower, int image_channels, int ways, ls_traffic *list)
{
    model m = {.lower = lower, .image_channels = image_channels, .ways = ways, .list = list};
    const ls_op *first = &lower->op[0];
    add(&m, LS_TRAFFIC_IMAGE, first,
        4 * (double)lower->slot[first->in].count + product_of(&m, first).in_bytes);
    for (int i = 0; i < lower->op_count; i++) {
        const ls_op *op = &lower->op[i];
        if (op->kind == LS_OP_CONV || op->kind == LS_OP_LINEAR) {
            add_product(&m, LS_TRAFFIC_PRODUCT, op);
        } else if (op->kind == LS_OP_NORM) {
            add_norm_forward(&m, op);
        } else {
            add(&m, LS_TRAFFIC_SIMPLE, op, simple_bytes(&m, op, true));
        }
    }
    for (int i = lower->op_count - 1; i >= 0; i--) {
        const ls_op *op = &lower->op[i];
        if (op->kind == LS_OP_CONV || op->kind == LS_OP_LINEAR) {
            add_product(&m, LS_TRAFFIC_PRODUCT_WEIGHTS, op);
            if (op->dx != LS_NO_BUFFER) {
                add_product(&m, LS_TRAFFIC_PRODUCT_DATA, op);
            }
        } else if (op->kind == LS_OP_NORM) {
            add_norm_backward(&m, op);
        } else {
            add(&m, LS_TRAFFIC_SIMPLE_BACK, op, simple_bytes(&m, op, false));
        }
    }
    LS_ASSERT(m.count <= ls_traffic_most(lower));
    return m.count;
}
