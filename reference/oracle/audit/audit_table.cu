/* The audit's table: the outputs of each operation, the memory between before and after, and the
 * comparison. */
#include "audit_kernels.h"

enum { THREADS = LS_THREADS(128) };

/* ---- outputs --------------------------------------------------------------------------------- */

static ls_audit_tensor tensor_of(const void *data, int64_t count, ls_audit_type type)
{
    ls_audit_tensor tensor = {(void *)data, count, type};
    return tensor;
}

static int put(ls_audit_output *to, int count, const char *name, int side, ls_audit_tensor tensor)
{
    if (tensor.data == NULL) {
        return count;
    }
    LS_ASSERT(count < LS_AUDIT_OUTPUTS);
    to[count].name = name;
    to[count].side = side;
    to[count].tensor = tensor;
    return count + 1;
}

static int norm_outputs(const ls_audit_op *op, int64_t in, ls_audit_output *to)
{
    int n = 0, sides = op->dual ? 2 : 1;
    if (op->kind == LS_AUDIT_NORM) {
        n = put(to, n, "output", 0, tensor_of(op->y, in, op->type));
        for (int k = 0; k < sides; k++) {
            n = put(to, n, "mean", k, op->norm[k].mean);
            n = put(to, n, "inverse deviation", k, op->norm[k].inv_std);
            n = put(to, n, "running_mean", k, op->norm[k].running_mean);
            n = put(to, n, "running_var", k, op->norm[k].running_var);
            n = put(to, n, "scale in f16", k, op->norm[k].half_scale);
            n = put(to, n, "bias in f16", k, op->norm[k].half_bias);
        }
        return n;
    }
    for (int k = 0; k < sides; k++) {
        if (k == 0 && audit_keeps_joined(op)) {
            n = put(to, n, "joined gradient", 0, tensor_of(op->g, in, op->type));
        }
        n = put(to, n, "gradient of the input", k,
                tensor_of(k == 0 ? op->dx : op->dx2, in, op->type));
        n = put(to, n, "gradient of the weight", k, op->norm[k].weight_grad);
        n = put(to, n, "gradient of the bias", k, op->norm[k].bias_grad);
    }
    return n;
}

static int outputs(const ls_audit_op *op, ls_audit_output *to)
{
    int64_t in = (int64_t)op->images * op->in_height * op->in_width * op->in_channels;
    int64_t out = (int64_t)op->images * op->out_height * op->out_width * op->out_channels;
    int64_t packed = (int64_t)op->out_channels * op->kernel * op->kernel * op->in_channels;
    switch (op->kind) {
    case LS_AUDIT_IMAGE:
        return put(to, 0, "images", 0, tensor_of(op->y, in, op->type));
    case LS_AUDIT_WEIGHT:
        return put(to, 0, "packed weight", 0, tensor_of(op->w, packed, op->type));
    case LS_AUDIT_CONV_WEIGHTS:
        return put(to, 0, "gradient of the weight", 0,
                   op->dw != NULL ? tensor_of(op->dw, packed, op->type) : op->weight_grad);
    case LS_AUDIT_UNPACK:
        return put(to, 0, "unpacked gradient of the weight", 0, op->weight_grad);
    case LS_AUDIT_BIAS:
        return put(to, 0, "gradient of the bias", 0, op->bias_grad);
    case LS_AUDIT_NORM:
    case LS_AUDIT_NORM_BACK:
        return norm_outputs(op, in, to);
    case LS_AUDIT_GATE:
        return put(to, 0, "joined gradient", 0, tensor_of(op->g, out, op->type));
    case LS_AUDIT_POOL:
        return put(to, put(to, 0, "output", 0, tensor_of(op->y, out, op->type)), "position", 0,
                   tensor_of(op->tap, out, LS_AUDIT_U8));
    case LS_AUDIT_CONV_DATA:
    case LS_AUDIT_POOL_BACK:
    case LS_AUDIT_SHORTCUT_BACK:
    case LS_AUDIT_AVERAGE_BACK:
    case LS_AUDIT_LOSS_BACK:
        return put(to, 0, "gradient of the input", 0, tensor_of(op->dx, in, op->type));
    case LS_AUDIT_LOSS:
        return put(to, 0, "loss", 0, tensor_of(op->loss, 1, LS_AUDIT_F32));
    case LS_AUDIT_UNSCALE:
        return put(to, 0, "unscaled gradient", 0, op->unscaled);
    case LS_AUDIT_SGD:
    case LS_AUDIT_ADAM:
        return put(to,
                   put(to, put(to, put(to, 0, "value", 0, op->value), "copy", 0, op->copy),
                       "first moment", 0, op->moment[0]),
                   "second moment", 0, op->moment[1]);
    default:
        return put(to, 0, "output", 0, tensor_of(op->y, out, op->type));
    }
}

/* ---- the comparison -------------------------------------------------------------------------- */

typedef struct compared {
    ls_audit_tensor tensor[LS_AUDIT_OUTPUTS];
    ls_audit_type
        rounded; /* the type that the values are rounded to, if it is coarser than the tensor's */
    bool gated;  /* samples have or_zero */
    const uint32_t *mask; /* bits that mark which elements of the first output are above zero */
} compared;

/* The part of its bound that an element uses beyond the rounding of the store: more than 1 is
 * wrong, infinite if there is no excuse. *limit: bound and rounding together. */
LS_DEVICE double ratio_of(ls_audit_type type, ls_audit_type rounded, const ls_audit_sample &s,
                          double got, double *limit)
{
    double reach = fabs(s.wanted) + s.bound, ulp = audit_ulp(type, reach);
    double coarse = rounded != type ? audit_ulp(rounded, reach) : 0;
    double store = (ulp > coarse ? ulp : coarse) / 2;
    *limit = s.bound + store;
    if (!isfinite(s.bound)) {
        return 0; /* an operand was not finite, or it cancels: no statement is possible */
    }
    if (!isfinite(s.wanted)) {
        return isfinite(got) ? (double)INFINITY : 0;
    }
    if (isinf(got) && reach >= fmin(audit_overflow(type), audit_overflow(rounded)) &&
        got * s.wanted > 0) {
        return 0;
    }
    double off = fabs(got - s.wanted) - store - LS_AUDIT_TINY;
    if (off <= 0) {
        return 0;
    }
    return s.bound > 0 && isfinite(off) ? off / s.bound : (double)INFINITY;
}

/* Of both the worse element, and what they count together. */
LS_DEVICE void join_verdicts(ls_audit_verdict *to, const ls_audit_verdict &other)
{
    int64_t elements = to->elements + other.elements, bad = to->bad + other.bad;
    if (other.ratio > to->ratio) {
        *to = other;
    }
    to->elements = elements;
    to->bad = bad;
}

/* One block per output. */
LS_KERNEL compare_kernel(LS_BLOCK compared what, const ls_audit_sample *sample,
                         ls_audit_verdict *verdict)
{
    LS_SHARED(ls_audit_verdict, part, THREADS);
    ls_audit_tensor tensor = what.tensor[blockIdx.x];
    ls_audit_verdict mine = {};
    mine.ratio = -1;
    for (int i = (int)threadIdx.x; i < LS_AUDIT_SAMPLES; i += THREADS) {
        ls_audit_sample s = sample[blockIdx.x * LS_AUDIT_SAMPLES + i];
        if (s.index < 0) {
            continue;
        }
        double got = audit_value(tensor.data, tensor.type, s.index), limit;
        double ratio =
            ratio_of(tensor.type, blockIdx.x == 0 ? what.rounded : tensor.type, s, got, &limit);
        if (what.gated && s.or_zero && got == 0) {
            ratio = 0;
        }
        if (blockIdx.x == 0 && what.mask != NULL &&
            (what.mask[s.index >> 5] >> (s.index & 31) & 1u) != (got > 0)) {
            ratio = (double)INFINITY;
        }
        mine.elements++;
        mine.bad += ratio > 1;
        if (ratio > mine.ratio) {
            mine.ratio = ratio;
            mine.index = s.index;
            mine.got = got;
            mine.wanted = s.wanted;
            mine.limit = limit;
        }
    }
    part[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            join_verdicts(&part[threadIdx.x], part[threadIdx.x + half]);
        }
    }
    if (threadIdx.x == 0) {
        verdict[blockIdx.x] = part[0];
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static int64_t sample_bytes(void)
{
    return (int64_t)sizeof(ls_audit_sample) * LS_AUDIT_OUTPUTS * LS_AUDIT_SAMPLES;
}

static int64_t channel_bytes(int channels)
{
    return (int64_t)sizeof(double) * AUDIT_CHANNEL_LISTS * channels;
}

/* Divides the memory; the lists of ranks come last and take the rest. */
static audit_room room_of(void *memory, int channels)
{
    char *at = (char *)memory;
    audit_room room;
    room.sample = (ls_audit_sample *)at;
    room.partial = (double *)(at + sample_bytes());
    room.channel = room.partial + AUDIT_PARTIAL;
    room.gathered = room.channel + (int64_t)AUDIT_CHANNEL_LISTS * channels;
    return room;
}

static int64_t room_bytes(int most_channels, int group)
{
    return sample_bytes() + (int64_t)sizeof(double) * AUDIT_PARTIAL +
           (1 + (int64_t)group) * channel_bytes(most_channels);
}

static ls_status before(void *stream, const ls_audit_op *op, ls_audit_draw draw, void *memory)
{
    audit_room room = room_of(memory, op->in_channels);
    ls_audit_output output[LS_AUDIT_OUTPUTS];
    int count;
    switch (op->kind) {
    case LS_AUDIT_CONV:
    case LS_AUDIT_CONV_DATA:
    case LS_AUDIT_CONV_WEIGHTS:
        return ls_audit_products((audit_stream)stream, op, draw, &room);
    case LS_AUDIT_NORM:
    case LS_AUDIT_NORM_BACK:
        return ls_audit_norms((audit_stream)stream, op, draw, &room);
    case LS_AUDIT_UNSCALE:
    case LS_AUDIT_SGD:
    case LS_AUDIT_ADAM:
        return ls_audit_steps((audit_stream)stream, op, draw, &room);
    default:
        count = outputs(op, output);
        return ls_audit_simple((audit_stream)stream, op, draw, count, output[0].tensor.count,
                               &room);
    }
}

static ls_status after(void *stream, const ls_audit_op *op, void *memory, ls_audit_verdict *verdict)
{
    audit_room room = room_of(memory, op->in_channels);
    ls_audit_output output[LS_AUDIT_OUTPUTS];
    compared what = {};
    int count = outputs(op, output);
    for (int i = 0; i < count; i++) {
        what.tensor[i] = output[i].tensor;
    }
    bool gates = op->kind == LS_AUDIT_NORM || op->kind == LS_AUDIT_ADD;
    /* computed in the activations' type (kernels.h), whatever the tensor's */
    bool product = op->kind == LS_AUDIT_BIAS || op->kind == LS_AUDIT_CONV_WEIGHTS;
    what.rounded = product ? op->type : output[0].tensor.type;
    what.gated = op->normed != NULL;
    what.mask = gates && op->relu && !op->given ? op->mask : NULL;
    LS_LAUNCH(compare_kernel, (unsigned)count, THREADS, (audit_stream)stream, what, room.sample,
              verdict);
    return LS_OK;
}

static ls_status sum(void *stream, ls_audit_tensor tensor, const double *all, int world,
                     double before_factor, double behind, ls_audit_sample *sample,
                     ls_audit_verdict *verdict)
{
    compared what = {};
    what.tensor[0] = tensor;
    what.rounded = tensor.type;
    LS_TRY(ls_audit_total((audit_stream)stream, tensor, all, world, before_factor, behind, sample));
    LS_LAUNCH(compare_kernel, 1, THREADS, (audit_stream)stream, what, sample, verdict);
    return LS_OK;
}

extern "C" const ls_audit_api *ls_audit_entry(void)
{
    static const ls_audit_api api = {LS_AUDIT_ABI, room_bytes,    outputs, before,
                                     after,        ls_audit_pick, sum};
    return &api;
}
