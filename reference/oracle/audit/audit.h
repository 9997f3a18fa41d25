/* The audit of a timed job (numerics.md section 5, gradient check: FP64 samples): random elements
 * of every output of an operation (always the first and last eight) are recomputed in FP64 from the
 * operands that it read, by kernels that share nothing with those that ran. The same sources become
 * kernels of a device (ls_oracle_cuda.so) and loops of a CPU (ls_oracle_cpu.so); see launch.h.
 *
 * `before` is enqueued in front of the operation, while its operands are valid: it draws the
 * elements and stores their expected values and error bounds. `after` compares and writes a verdict
 * per output.
 *
 * The bound of an element: half an ulp of its storage type, plus the cost of f32 arithmetic, u =
 * 2^-24. Take a sum of n products, exactly s, with the sum of their squares q and of their
 * magnitudes a. No order of f32 additions has an error above 2 n u a (a tensor core aligns and
 * truncates: an ulp instead of half of one). For the 3 * 10^6 products of a weight's gradient that
 * would let zeros pass. But partial sums are a walk that stays within w = |s| + 4 sqrt(q). Rounding
 * errors have no direction and make a walk themselves: 16 sqrt(n) u w is more than 10^9 elements
 * show. Truncation errors have a direction: at most an ulp of the partial sum for every 16
 * products, and twice that makes n u w / 4. The smaller of both bounds is used, and 2^-126 for each
 * product is added: values below that lose digits or become 0. */
#ifndef LS_ORACLE_AUDIT_H
#define LS_ORACLE_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LS_AUDIT_ABI = 7,
    LS_AUDIT_EDGE = 8,       /* first and last elements, always */
    LS_AUDIT_SAMPLES = 1016, /* of an output, including both edges; all of a smaller one */
    LS_AUDIT_RUN = 8, /* gradients of weights are drawn in runs of consecutive elements: each sums
                         over all pixels, and neighbours share the loaded values */
    LS_AUDIT_OUTPUTS = 12, /* of one operation, at most */
};

typedef enum ls_audit_type {
    LS_AUDIT_F32,
    LS_AUDIT_F16,
    LS_AUDIT_BF16,
    LS_AUDIT_U8,
} ls_audit_type;

typedef struct ls_audit_tensor {
    void *data; /* backend memory; NULL: none */
    int64_t count;
    ls_audit_type type;
} ls_audit_tensor;

typedef enum ls_audit_kind {
    LS_AUDIT_IMAGE,
    LS_AUDIT_WEIGHT,
    LS_AUDIT_CONV,
    LS_AUDIT_CONV_DATA,
    LS_AUDIT_CONV_WEIGHTS,
    LS_AUDIT_UNPACK,
    LS_AUDIT_BIAS,
    LS_AUDIT_NORM,
    LS_AUDIT_NORM_BACK,
    LS_AUDIT_ADD,
    LS_AUDIT_GATE,
    LS_AUDIT_POOL,
    LS_AUDIT_POOL_BACK,
    LS_AUDIT_SHORTCUT,
    LS_AUDIT_SHORTCUT_BACK,
    LS_AUDIT_AVERAGE,
    LS_AUDIT_AVERAGE_BACK,
    LS_AUDIT_LOSS,
    LS_AUDIT_LOSS_BACK,
    LS_AUDIT_PLAN_KINDS, /* kinds below belong to a plan, kinds above to the trainer */
    LS_AUDIT_UNSCALE = LS_AUDIT_PLAN_KINDS,
    LS_AUDIT_SGD,
    LS_AUDIT_ADAM,
    LS_AUDIT_NONE, /* an update that is not audited */
} ls_audit_kind;

typedef struct ls_audit_norm {
    ls_audit_tensor weight, bias, running_mean, running_var, weight_grad, bias_grad;
    ls_audit_tensor mean, inv_std;         /* stored for backward */
    ls_audit_tensor half_scale, half_bias; /* as in ls_observed_norm */
    double *stats; /* from forward on, in FP64, [2 * channels + 1]: mean[channels], 1/sqrt(var +
                      epsilon)[channels], and the number of rows of all ranks that share them */
    double epsilon, momentum;
} ls_audit_norm;

/* An optimizer's hyperparameters, and the state it reads. */
typedef struct ls_audit_rule {
    double momentum, weight_decay, beta1, beta2, epsilon;
    bool nesterov, decoupled, uncorrected, dynamic;
    double lr_factor; /* of the parameter's group; the product with *lr is an f32 */
    const float *lr, *inv_scale;
    const int32_t *overflow;
    const int64_t *step_count;
} ls_audit_rule;

/* An operation as described by ls_observed (kernels.h). Activations are [N][C/block][H][W][block]
 * of `type`; block = C is NHWC. */
typedef struct ls_audit_op {
    ls_audit_kind kind;
    ls_audit_type type;
    int images, in_channels, plain_channels, in_height, in_width;
    int out_channels, out_height, out_width, kernel, stride, pad;
    int in_block, out_block;
    bool relu, dual, given, tf32;
    bool stem_blocks; /* as in ls_observed */
    const void *x, *residual;
    const void *normed;   /* as in ls_observed; norm[0] then has no statistics but mean and inv_std,
                             as in CONV and CONV_WEIGHTS where it has half_scale */
    ls_audit_type x_type; /* of the host's image: f32, or bytes that are normalised by the next two
                           */
    float x_mean[3], x_deviation[3];
    void *y, *w;
    const void *bias;
    const uint32_t *mask;
    uint8_t *tap; /* where given, a ReLU's: 1 is open */
    const void *dy, *dy2;
    void *g, *dx, *dx2, *dw;
    ls_audit_tensor weight, plain_bias, weight_grad, bias_grad;
    ls_audit_norm norm[2];
    const int64_t *target;
    double smoothing; /* of the loss's classes; 0: none */
    float *loss;
    const float *loss_scale;
    double factor;
    /* ranks that share statistics: 1, or the function that gathers `count` doubles of each, in
     * order */
    int group;
    ls_status (*gather)(void *context, const double *mine, double *all, int64_t count);
    void *gather_context;
    /* for the trainer's kinds: one parameter */
    ls_audit_tensor value, grad, unscaled, moment[2], copy;
    ls_audit_rule rule;
} ls_audit_op;

typedef struct ls_audit_sample {
    int64_t index; /* in memory; -1: none */
    double wanted;
    double bound; /* in addition to the rounding of the store; inf: no statement is possible */
    bool or_zero; /* gated gradients, near a tie of the ReLU: 0 is right, too */
} ls_audit_sample;

/* For one output. */
typedef struct ls_audit_verdict {
    int64_t elements, bad;
    double ratio; /* the worst element's error beyond the rounding of its store, in units of its
                     bound */
    int64_t index;
    double got, wanted, limit; /* of that element */
} ls_audit_verdict;

/* The source of a draw: equal numbers draw equal elements. */
typedef struct ls_audit_draw {
    uint64_t seed, number;
} ls_audit_draw;

typedef struct ls_audit_output {
    const char *name; /* "y", "running_mean" */
    int side;         /* of norms: first or second */
    ls_audit_tensor tensor;
} ls_audit_output;

typedef struct ls_audit_api {
    int abi; /* LS_AUDIT_ABI */
    /* Bytes of backend memory that before and after share for an operation of that many channels in
     * a group: samples, partial sums. */
    int64_t (*room_bytes)(int most_channels, int group);
    /* Lists the audited outputs of an operation; output[LS_AUDIT_OUTPUTS]. */
    int (*outputs)(const ls_audit_op *op, ls_audit_output *output);
    ls_status (*before)(void *stream, const ls_audit_op *op, ls_audit_draw draw, void *room);
    /* verdict: backend memory, one per output. */
    ls_status (*after)(void *stream, const ls_audit_op *op, void *room, ls_audit_verdict *verdict);
    /* Sums over ranks. Draws elements of `tensor` and copies them to mine[LS_AUDIT_SAMPLES] as
     * doubles, which hold every value exactly. */
    ls_status (*pick)(void *stream, ls_audit_tensor tensor, ls_audit_draw draw, double *mine,
                      ls_audit_sample *sample);
    /* After the reduction: all[world][LS_AUDIT_SAMPLES] are the picked elements; each is multiplied
     * by `before` in front of the sum, and the sum by `behind`. */
    ls_status (*sum)(void *stream, ls_audit_tensor tensor, const double *all, int world,
                     double before, double behind, ls_audit_sample *sample,
                     ls_audit_verdict *verdict);
} ls_audit_api;

/* The symbol exported by ls_oracle_cuda.so and ls_oracle_cpu.so. */
#define LS_AUDIT_ENTRY "ls_audit_entry"
typedef const ls_audit_api *ls_audit_entry_fn(void);

#ifdef __cplusplus
}
#endif
#endif
