/* The audit of a step on the emulated device: a clean step passes at every level; a wrong first or
 * last element of any output of any operation is found, and nothing else; convolution engines with
 * a mistake end a run with exit code 1, by name. */
#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reference/train/audit.h"
#include "reference/train/audit_private.h"
#include "reference/train/join.h"
#include "reference/train/setup.h"
#include "suite/unit/run_suite.h"
#include "emulated_run.h"
#include "use_emulation.h"

/* ---- one element of each output -------------------------------------------------------------- */

enum { WORDS = 32, OUTPUTS = 16, KINDS = LS_OBSERVED_KINDS, FOUND = 1 << 12 };

/* One rank, set up like the trainer, and the errors injected. */
typedef struct bench {
    ls_trainer trainer;
    ls_audit *audit;
    bool last;                /* corrupt the last element, else the first */
    int done[KINDS][OUTPUTS]; /* outputs of a kind that were corrupted */
    bool wrong[FOUND];
    int count;
} bench;

static void open_bench(bench *b, const char *options)
{
    char text[512], *word[WORDS], *save = NULL;
    int count = 0;
    snprintf(text, sizeof text,
             "trainer --device=cuda --batch-size=2 --audit=3:1 --workers=0 --print-freq=0 %s",
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

static void close_bench(bench *b)
{
    ls_audit_close(b->audit);
    ls_setup_close(&b->trainer, false);
}

static ls_tensor plain(const void *data, ls_dtype type, int64_t count)
{
    return (ls_tensor){(void *)data, type, count};
}

/* Outputs in the judge's order; data NULL: none. */
static int outputs_of(const ls_observed *w, ls_tensor *to)
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
        to[n++] = plain(w->dw, w->type, packed);
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
        to[n++] = plain(w->y, w->type, in);
        for (int k = 0; k < (w->dual ? 2 : 1); k++) {
            to[n++] = plain(w->norm[k].mean, LS_F32, w->in_channels);
            to[n++] = plain(w->norm[k].inv_std, LS_F32, w->in_channels);
            to[n++] = w->norm[k].running_mean;
            to[n++] = w->norm[k].running_var;
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

static ls_tensor edge_of(const bench *b, const ls_tensor *whole)
{
    int64_t at = b->last ? whole->count - 1 : 0;
    return (ls_tensor){(char *)whole->data + at * (int64_t)ls_dtype_bytes(whole->dtype),
                       whole->dtype, 1};
}

/* Twice the value plus a half: beyond any bound for the values of this network. Returns the old
 * value. */
static float make_wrong(const bench *b, const ls_tensor *whole)
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

/* Values stored by forward for backward: there the error would be reported a second time, because
 * the judge keeps its own. */
static bool is_kept(const ls_observed *what, int output)
{
    return what->kind == LS_OBSERVED_NORM && output > 0 && (output - 1) % 4 < 2;
}

/* Between an operation and its check, corrupts each output of each kind once. */
static ls_status watch(void *context, ls_stream *stream, const ls_observed *what, bool after)
{
    bench *b = context;
    ls_tensor output[OUTPUTS];
    float was[OUTPUTS];
    bool wrong[OUTPUTS] = {false};
    int first = b->audit->count;
    int count = after ? outputs_of(what, output) : 0;
    for (int i = 0; i < count; i++) {
        if (b->done[what->kind][i]++ == 0) {
            was[i] = make_wrong(b, &output[i]);
            wrong[i] = b->wrong[first + i] = true;
            b->count++;
        }
    }
    ls_status status = ls_audit_observe(b->audit, stream, what, after);
    ck_assert_int_eq(b->audit->count - first, count);
    for (int i = 0; i < count; i++) {
        ls_tensor one = edge_of(b, &output[i]);
        if (wrong[i] && is_kept(what, i)) {
            ck_assert_int_eq(ls_device_write_f32(&b->trainer.device, &one, &was[i]), LS_OK);
        }
    }
    return status;
}

static void step(bench *b, ls_observe_fn *observer)
{
    ls_trainer *t = &b->trainer;
    const ls_device *device = &t->device;
    ls_loader_batch batch;
    ls_step_observers observers = {0};
    ck_assert_int_eq(ls_loader_next(t->loader, &batch), LS_OK);
    ck_assert_int_eq(ls_audit_begin(b->audit, 1, &observers), LS_OK);
    if (observer != NULL) {
        device->api->plan_observe(t->plan, observer, b);
    }
    ck_assert_int_eq(device->api->plan_params_changed(t->plan, device->stream), LS_OK);
    ck_assert_int_eq(device->api->plan_forward(t->plan, device->stream, batch.input, batch.target),
                     LS_OK);
    ck_assert_int_eq(device->api->plan_backward(t->plan, device->stream, 1, NULL, NULL), LS_OK);
    ck_assert_int_eq(ls_audit_end(b->audit), LS_OK);
    ck_assert_int_eq(device->api->stream_wait(device->stream), LS_OK);
}

/* These runs cover all kinds of operations, and all types. */
static const char *const runs[] = {
    "--arch=resnet18 --image-size=33 --opt-level=O0",
    "--arch=resnet8 --image-size=8 --opt-level=O2 --half=bf16",
    "--arch=resnet8 --image-size=8 --opt-level=O1 --loss-scale=128",
    "--arch=resnet8 --image-size=8 --opt-level=O3 --loss-scale=128",
};
enum { RUNS = sizeof runs / sizeof runs[0] };

START_TEST(wrong_elements_are_found_and_no_others)
{
    bench *b = calloc(1, sizeof *b);
    open_bench(b, runs[_i / 2]);
    b->last = _i % 2 == 1;
    step(b, watch);
    ck_assert_int_gt(b->count, 20);
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
    close_bench(b);
    free(b);
}
END_TEST

/* Nothing wrong, nothing said. */
/* The room for verdicts grows with the micro-steps of a step. */
START_TEST(many_micro_steps_have_room)
{
    enum { MICRO_STEPS = 200 };
    bench b;
    char options[160];
    snprintf(options, sizeof options, "%s --accumulate=%d", runs[_i], MICRO_STEPS);
    open_bench(&b, options);
    step(&b, NULL);
    ck_assert_int_gt(b.audit->count, 0);
    ck_assert_int_ge(b.audit->most, MICRO_STEPS * b.audit->count);
    close_bench(&b);
}
END_TEST

START_TEST(a_clean_step_is_silent)
{
    bench *b = calloc(1, sizeof *b);
    open_bench(b, runs[_i]);
    step(b, NULL);
    ck_assert_int_gt(b->audit->count, 80);
    ck_assert_int_eq(ls_audit_judge(b->audit, 1, 1.0), LS_OK);
    close_bench(b);
    free(b);
}
END_TEST

/* ---- which steps ----------------------------------------------------------------------------- */

/* ---- sums over ranks ------------------------------------------------------------------------- */

enum { SUMMED = 5 };

static const struct summed {
    double rank[SUMMED];
    uint16_t got; /* as f16 */
    bool wrong;
} summed[] = {
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

START_TEST(sums_over_ranks)
{
    const struct summed *row = &summed[_i];
    bench b;
    open_bench(&b, runs[1]);
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
    void *stream = device->api->stream_native(device->stream);
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
END_TEST

START_TEST(one_step_of_every_period)
{
    ls_options options;
    ls_options_defaults(&options);
    ck_assert(!ls_audit_due(&options, 5)); /* no --audit */
    options.audit = true;
    for (uint64_t seed = 0; seed < 20; seed++) {
        for (int64_t every = 3; every < 40; every += 6) {
            int due = 0;
            options.audit_seed = seed;
            options.audit_every = every;
            for (int64_t i = 1; i <= 4 * every; i++) {
                due += ls_audit_due(&options, i);
                ck_assert(!ls_audit_due(&options, i) || (i - 1) % every >= 2);
            }
            ck_assert_int_eq(due, 4);
        }
    }
    options.audit_every = 1;
    ck_assert(ls_audit_due(&options, 1) && ls_audit_due(&options, 2));
}
END_TEST

/* ---- whole runs ------------------------------------------------------------------------------ */

/* Returns the exit code; output in `log`. */
static int train(const char *environment, const char *options, char *log, size_t bytes)
{
    char command[4 * PATH_MAX];
    snprintf(command, sizeof command,
             "%s timeout 60 '%s/lockstep-train' -a resnet8 --image-size 16 -b 2 --loss-scale 128 "
             "--print-freq 0 %s 2>&1",
             environment, build, options);
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    log[fread(log, 1, bytes - 1, out)] = '\0';
    return exit_code(pclose(out));
}

static const struct wrong_engine {
    const char *what, *output;
} wrong_engines[] = {
    {"forward:last", ": output: element"},
    {"forward:tile", ": output: element"},
    {"data:last", ": gradient of the input: element"},
    {"data:tile", ": gradient of the input: element"},
    {"weights:last", ": gradient of the weight: element"},
    {"weights:tile", ": gradient of the weight: element"},
    {"beta", ": gradient of the input: element"}, /* resnet8 has joins of gradients */
};

START_TEST(a_wrong_engine_ends_the_run)
{
    char environment[64], log[8192];
    snprintf(environment, sizeof environment, "LS_EMULATED_CONV_WRONG=%s", wrong_engines[_i].what);
    int code =
        train(environment, "--device cuda --opt-level O2 --steps 3 --audit 5:3", log, sizeof log);
    ck_assert_msg(code == 1, "exit code %d: %s", code, log);
    ck_assert_msg(strstr(log, wrong_engines[_i].output) != NULL, "%s", log);
    ck_assert_msg(strstr(log, "audit: step 3: ") != NULL, "%s", log);
}
END_TEST

START_TEST(graphs_go_on_around_an_audited_step)
{
    char log[8192];
    int code = train("A=1", "--device cuda --opt-level O2 --steps 8 --audit 5:8 --cuda-graph on",
                     log, sizeof log);
    ck_assert_msg(code == 0, "exit code %d: %s", code, log);
    ck_assert_msg(strstr(log, "audit: 1 steps") != NULL, "%s", log);
}
END_TEST

START_TEST(unaudited_parts_are_named)
{
    char log[8192];
    ck_assert_int_eq(train("A=1", "--device cuda --steps 1 --audit 1:1", log, sizeof log), 0);
    ck_assert_msg(strstr(log, "not audited") == NULL, "%s", log);
    ck_assert_int_eq(
        train("A=1", "--device cuda --steps 1 --audit 1:1 --optimizer lamb", log, sizeof log), 0);
    ck_assert_msg(strstr(log, "; not audited: update\n") != NULL, "%s", log);
}
END_TEST

START_TEST(wrong_values_are_refused)
{
    char log[8192];
    ck_assert_int_eq(train("A=1", "--device cpu --steps 1 --audit 1:0", log, sizeof log), 2);
    ck_assert_msg(strstr(log, "SEED:EVERY") != NULL, "%s", log);
}
END_TEST

int main(void)
{
    use_emulation();
    find_build();
    Suite *suite = suite_create("cuda_audit");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, wrong_elements_are_found_and_no_others, 0, 2 * RUNS);
    tcase_add_loop_test(tests, a_clean_step_is_silent, 1, RUNS);
    tcase_add_loop_test(tests, many_micro_steps_have_room, 1, RUNS);
    tcase_add_loop_test(tests, sums_over_ranks, 0, (int)(sizeof summed / sizeof summed[0]));
    tcase_add_test(tests, one_step_of_every_period);
    tcase_add_loop_test(tests, a_wrong_engine_ends_the_run, 0,
                        (int)(sizeof wrong_engines / sizeof wrong_engines[0]));
    tcase_add_test(tests, graphs_go_on_around_an_audited_step);
    tcase_add_test(tests, unaudited_parts_are_named);
    tcase_add_test(tests, wrong_values_are_refused);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
