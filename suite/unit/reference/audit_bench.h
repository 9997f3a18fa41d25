/* Test helper: one rank, set up like the trainer, whose plan is audited; between an operation and
 * its check, the first or the last element of each output of each kind is made wrong once. */
#ifndef LS_UNIT_AUDIT_BENCH_H
#define LS_UNIT_AUDIT_BENCH_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/train/audit/audit.h"
#include "reference/train/ways/join.h"
#include "reference/train/step/step.h"

enum { WORDS = 32, OUTPUTS = 16, KINDS = LS_OBSERVED_KINDS, FOUND = 1 << 12 };

/* One rank, set up like the trainer, and the errors injected. */
typedef struct bench {
    ls_trainer trainer;
    ls_audit *audit;
    bool last;                    /* corrupt the last element, else the first */
    int done[KINDS][2 * OUTPUTS]; /* outputs of a kind that were corrupted */
    bool wrong[FOUND];
    int count;
} bench;

static inline void open_bench(bench *b, const char *device, const char *options)
{
    char text[512], *word[WORDS], *save = NULL;
    int count = 0;
    snprintf(text, sizeof text,
             "trainer --device=%s --batch-size=2 --audit=3:1 --workers=0 --print-freq=0 %s", device,
             options);
    for (char *at = strtok_r(text, " ", &save); at != NULL; at = strtok_r(NULL, " ", &save)) {
        word[count++] = at;
    }
    word[count] = NULL;
    memset(b, 0, sizeof *b);
    ck_assert_int_eq(ls_setup_read(count, word, &b->trainer), LS_OK);
    ck_assert_int_eq(ls_setup_device(&b->trainer), LS_OK);
    ck_assert_int_eq(ls_join_open(&b->trainer), LS_OK);
    ck_assert_int_eq(ls_setup_memory(&b->trainer), LS_OK);
    ck_assert_int_eq(ls_setup_values(&b->trainer), LS_OK);
    ck_assert_int_eq(ls_setup_data(&b->trainer), LS_OK);
    ck_assert_int_eq(ls_audit_open(&b->trainer, &b->audit), LS_OK);
    ck_assert_ptr_nonnull(b->audit);
}

static inline void close_bench(bench *b)
{
    ls_audit_close(b->audit);
    ls_setup_close(&b->trainer, false);
}

static inline ls_tensor plain(const void *data, ls_dtype type, int64_t count)
{
    return (ls_tensor){(void *)data, type, count};
}

/* Outputs in the judge's order; data NULL: none. */
static inline int outputs_of(const ls_observed *w, ls_tensor *to)
{
    int64_t in = (int64_t)w->images * w->in_height * w->in_width * w->in_channels;
    int64_t out = (int64_t)w->images * w->out_height * w->out_width * w->out_channels;
    int64_t packed = (int64_t)w->out_channels * w->kernel * w->kernel * w->in_channels;
    int n = 0;
    switch (w->kind) {
    case LS_OBSERVED_IMAGE:
        to[n++] = plain(w->y, w->type, in);
        return n;
    case LS_OBSERVED_WEIGHT:
        to[n++] = plain(w->w, w->type, packed);
        return n;
    case LS_OBSERVED_CONV_WEIGHTS:
        to[n++] = w->dw != NULL ? plain(w->dw, w->type, packed) : w->weight_grad;
        return n;
    case LS_OBSERVED_UNPACK:
        to[n++] = w->weight_grad;
        return n;
    case LS_OBSERVED_BIAS:
        to[n++] = w->bias_grad;
        return n;
    case LS_OBSERVED_GATE:
        to[n++] = plain(w->g, w->type, out);
        return n;
    case LS_OBSERVED_LOSS:
        to[n++] = plain(&w->state->loss, LS_F32, 1);
        return n;
    case LS_OBSERVED_NORM:
        if (w->y != NULL) {
            to[n++] = plain(w->y, w->type, in);
        }
        for (int k = 0; k < (w->dual ? 2 : 1); k++) {
            if (w->norm[k].mean != NULL) {
                to[n++] = plain(w->norm[k].mean, LS_F32, w->in_channels);
            }
            to[n++] = plain(w->norm[k].inv_std, LS_F32, w->in_channels);
            to[n++] = w->norm[k].running_mean;
            to[n++] = w->norm[k].running_var;
        }
        if (w->norm[0].half_scale != NULL) {
            to[n++] = plain(w->norm[0].half_scale, w->type, w->in_channels);
            to[n++] = plain(w->norm[0].half_bias, w->type, w->in_channels);
        }
        return n;
    case LS_OBSERVED_NORM_BACK:
        for (int k = 0; k < (w->dual ? 2 : 1); k++) {
            const void *dx = k == 0 ? w->dx : w->dx2;
            if (k == 0 && w->g != NULL && w->g != w->dx && w->g != w->dx2) {
                to[n++] = plain(w->g, w->type, in);
            }
            if (dx != NULL) {
                to[n++] = plain(dx, w->type, in);
            }
            to[n++] = w->norm[k].weight_grad;
            to[n++] = w->norm[k].bias_grad;
        }
        return n;
    case LS_OBSERVED_POOL:
        to[n++] = plain(w->y, w->type, out);
        to[n++] = plain(w->tap, LS_U8, out);
        return n;
    case LS_OBSERVED_CONV_DATA:
    case LS_OBSERVED_POOL_BACK:
    case LS_OBSERVED_SHORTCUT_BACK:
    case LS_OBSERVED_AVERAGE_BACK:
    case LS_OBSERVED_LOSS_BACK:
        to[n++] = plain(w->dx, w->type, in);
        return n;
    default:
        to[n++] = plain(w->y, w->type, out);
        return n;
    }
}

static inline ls_tensor edge_of(const bench *b, const ls_tensor *whole)
{
    int64_t at = b->last ? whole->count - 1 : 0;
    return (ls_tensor){(char *)whole->data + at * (int64_t)ls_dtype_bytes(whole->dtype),
                       whole->dtype, 1};
}

/* Twice the value plus a half: beyond any bound for the values of this network. Returns the old
 * value. */
static inline float make_wrong(const bench *b, const ls_tensor *whole)
{
    const ls_device *device = &b->trainer.device;
    ls_tensor one = edge_of(b, whole);
    float value, wrong;
    if (whole->dtype == LS_U8) { /* a position in a window of nine */
        uint8_t byte = 0;
        ck_assert_int_eq(ls_device_read(device, &byte, one.data, 1), LS_OK);
        byte = (uint8_t)((byte + 1) % 9);
        ck_assert_int_eq(device->api->copy_in(device->backend, device->stream, one.data, &byte, 1),
                         LS_OK);
        return 0;
    }
    ck_assert_int_eq(ls_device_read_f32(device, &one, &value), LS_OK);
    wrong = 2 * value + 0.5f;
    ck_assert_int_eq(ls_device_write_f32(device, &one, &wrong), LS_OK);
    return value;
}

/* Values that forward stores for backward, and on the CPU a norm's output, by whose sign the judge
 * gates gradients while the backend decides again: there the error would be reported a second
 * time. The same holds for results of fused products, whose sums were taken before. */
static inline bool is_kept(const bench *b, const ls_observed *what, int output)
{
    bool device = what->norm[0].mean != NULL;
    int kept = device ? 4 : 3;
    if (what->kind == LS_OBSERVED_NORM && what->y == NULL) {
        return output < 2 || output > 3;
    }
    if (b->trainer.options.fuse && (what->kind == LS_OBSERVED_CONV || what->normed != NULL)) {
        return true;
    }
    return what->kind == LS_OBSERVED_NORM &&
           (output > 0 ? (output - 1) % kept < kept - 2 : !device);
}

/* Between an operation and its check, corrupts each output of each kind once; those around a norm
 * that a product applies are of their own kinds. */
static inline ls_status watch(void *context, ls_stream *stream, const ls_observed *what, bool after)
{
    bench *b = context;
    ls_tensor output[OUTPUTS];
    float was[OUTPUTS];
    bool wrong[OUTPUTS] = {false};
    int first = b->audit->count;
    int count = after ? outputs_of(what, output) : 0;
    for (int i = 0; i < count; i++) {
        if (b->done[what->kind][i + (what->norm[0].half_scale != NULL ? OUTPUTS : 0)]++ == 0) {
            was[i] = make_wrong(b, &output[i]);
            wrong[i] = b->wrong[first + i] = true;
            b->count++;
        }
    }
    ls_status status = ls_audit_observe(b->audit, stream, what, after);
    ck_assert_int_eq(b->audit->count - first, count);
    for (int i = 0; i < count; i++) {
        ls_tensor one = edge_of(b, &output[i]);
        if (wrong[i] && is_kept(b, what, i)) {
            ck_assert_int_eq(ls_device_write_f32(&b->trainer.device, &one, &was[i]), LS_OK);
        }
    }
    return status;
}

/* Plans that may be forced: the first forward's decisions, of ReLUs all turned. */
static inline void force(bench *b)
{
    ls_trainer *t = &b->trainer;
    const ls_device *device = &t->device;
    for (int i = 0; i < t->network.layer_count; i++) {
        const ls_layer *layer = &t->network.layer[i];
        bool relu = layer->kind == LS_LAYER_RELU;
        if (!relu && layer->kind != LS_LAYER_MAX_POOL) {
            continue;
        }
        ls_layer_extent extent[256];
        ls_model_extents(&t->network, t->options.image_size, extent);
        int64_t count = (int64_t)t->options.batch_size * extent[i].channels * extent[i].height *
                        extent[i].width;
        int64_t bytes = relu ? (count + 7) / 8 : count * 4;
        uint8_t *host = malloc((size_t)bytes);
        ck_assert_int_eq(device->api->plan_export(t->plan, device->stream,
                                                  relu ? LS_EXPORT_RELU_BITS : LS_EXPORT_POOL_INDEX,
                                                  layer->branch, host, bytes),
                         LS_OK);
        for (int64_t k = 0; relu && k < bytes; k++) {
            host[k] = (uint8_t)~host[k];
        }
        ck_assert_int_eq(
            device->api->plan_force(t->plan, device->stream, layer->branch, host, bytes), LS_OK);
        free(host);
    }
}

/* Forward and backward of an audited step. */
static inline void begin_step(bench *b, ls_observe_fn *observer, void *context)
{
    ls_trainer *t = &b->trainer;
    const ls_device *device = &t->device;
    ls_loader_batch batch;
    ls_step_observers observers = {0};
    ck_assert_int_eq(ls_loader_next(t->loader, &batch), LS_OK);
    if (t->options.force_branches[0] != '\0') {
        ck_assert_int_eq(device->api->plan_params_changed(t->plan, device->stream), LS_OK);
        ck_assert_int_eq(
            device->api->plan_forward(t->plan, device->stream, batch.input, batch.target), LS_OK);
        force(b);
    }
    ck_assert_int_eq(ls_audit_begin(b->audit, 1, &observers), LS_OK);
    device->api->plan_observe(t->plan, observer, context);
    ck_assert_int_eq(device->api->plan_params_changed(t->plan, device->stream), LS_OK);
    ck_assert_int_eq(device->api->plan_forward(t->plan, device->stream, batch.input, batch.target),
                     LS_OK);
    ck_assert_int_eq(device->api->plan_backward(t->plan, device->stream, 1, NULL, NULL), LS_OK);
}

static inline void end_step(bench *b)
{
    const ls_device *device = &b->trainer.device;
    ck_assert_int_eq(ls_audit_end(b->audit), LS_OK);
    ck_assert_int_eq(device->api->stream_wait(device->stream), LS_OK);
}

/* A step on a bench of these options, with errors; every one is found, and nothing else. */
static inline void find_wrong_elements(const char *device, const char *options, bool last,
                                       int done[KINDS])
{
    bench *b = calloc(1, sizeof *b);
    open_bench(b, device, options);
    b->last = last;
    begin_step(b, watch, b);
    end_step(b);
    ck_assert_int_ge(b->count, 19);
    for (int i = 0; i < b->audit->count; i++) {
        const ls_audit_verdict *v = &b->audit->found[i];
        ck_assert_msg(
            (v->bad > 0) == b->wrong[i],
            "%s, %s: %lld elements reported as wrong, element %lld is %g, wanted %g within %g",
            b->audit->name[i].operation, b->audit->name[i].output, (long long)v->bad,
            (long long)v->index, v->got, v->wanted, v->limit);
        ck_assert_int_gt(v->elements, 0);
    }
    ck_assert_int_eq(ls_audit_judge(b->audit, 1, 1.0), LS_ERR_CHECK);
    for (int k = 0; done != NULL && k < KINDS; k++) {
        done[k] += b->done[k][0] > 0;
    }
    close_bench(b);
    free(b);
}

/* ---- sums over ranks ------------------------------------------------------------------------- */

enum { SUMMED = 5, SUMS = 9 };

static const struct summed {
    double rank[SUMMED];
    uint16_t got; /* as f16 */
    bool wrong;
} summed[SUMS] = {
    {{1, 2, 3, 4, 5}, 0x4b80, false},                       /* 15 */
    {{1, 2, 3, 4, 5}, 0x4b90, true},                        /* 15.125 */
    {{30000, 30000, 30000, -30000, -30000}, 0x7753, false}, /* 30000 */
    {{30000, 30000, 30000, -30000, -30000}, 0x4500, true},  /* 5 */
    {{30000, 30000, 30000, -30000, -30000}, 0x7c00, false}, /* a partial sum overflowed */
    {{30000, 30000, 30000, -30000, -30000}, 0x7e00, false}, /* and met its negative */
    {{1, 2, 3, 4, 5}, 0x7c00, true},                        /* nothing can have overflowed */
    {{30000, 30000, 30000, 30000, 30000}, 0x7bff, true},    /* 65504: infinite in truth */
    {{10000, 10000, 10000, -10000, -10000}, 0x7c00, true},  /* 50000 in all */
};

static inline void check_sum(const char *device_name, const char *options, int index)
{
    const struct summed *row = &summed[index];
    bench b;
    open_bench(&b, device_name, options);
    const ls_device *device = &b.trainer.device;
    double all[SUMMED][LS_AUDIT_SAMPLES] = {{0}};
    ls_audit_verdict verdict;
    void *memory = NULL;
    char *at = NULL;
    int64_t bytes = 256 + (int64_t)sizeof all + (int64_t)sizeof verdict +
                    LS_AUDIT_SAMPLES * (int64_t)(sizeof(ls_audit_sample) + sizeof(double));
    ck_assert_int_eq(device->api->memory_alloc(device->backend, bytes, "sums", &memory), LS_OK);
    at = memory;
    ls_audit_tensor tensor = {at, 1, LS_AUDIT_F16};
    double *list = (double *)(void *)(at + 256), *mine = list + SUMMED * LS_AUDIT_SAMPLES;
    ls_audit_sample *sample = (ls_audit_sample *)(void *)(mine + LS_AUDIT_SAMPLES);
    ls_audit_verdict *found = (ls_audit_verdict *)(void *)(sample + LS_AUDIT_SAMPLES);
    for (int rank = 0; rank < SUMMED; rank++) {
        all[rank][0] = row->rank[rank];
    }
    void *stream =
        device->api->stream_native != NULL ? device->api->stream_native(device->stream) : NULL;
    ck_assert_int_eq(device->api->copy_in(device->backend, device->stream, at, &row->got, 2),
                     LS_OK);
    ck_assert_int_eq(device->api->copy_in(device->backend, device->stream, list, all, sizeof all),
                     LS_OK);
    ls_audit_draw draw = {1, 1};
    ck_assert_int_eq(b.audit->judge->pick(stream, tensor, draw, mine, sample), LS_OK);
    ck_assert_int_eq(b.audit->judge->sum(stream, tensor, list, SUMMED, 1, 1, sample, found), LS_OK);
    ck_assert_int_eq(ls_device_read(device, &verdict, found, sizeof verdict), LS_OK);
    ck_assert_int_eq(verdict.elements, 1);
    ck_assert_msg((verdict.bad == 1) == row->wrong, "%g, wanted %g within %g", verdict.got,
                  verdict.wanted, verdict.limit);
    device->api->memory_free(device->backend, memory);
    close_bench(&b);
}

#endif
