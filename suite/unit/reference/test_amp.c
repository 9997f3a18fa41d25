/* The amp library on a device of plain memory that records what the library asks of it: each
 * refused call in one whole line, the tensors of a group, the arguments of a step, and that a
 * handle gives back what it took, whichever call failed. */
#include "kernels/math/scaler.h"
#include "reference/amp/amp.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "host_device.h"

/* ---- the device ------------------------------------------------------------------------------ */

typedef struct recorded_step {
    int values, grads, first_moments, second_moments, copies;
    int64_t taken;
    float lr;
    bool dynamic;
} recorded_step;

static struct {
    int held;      /* blocks of memory */
    int64_t bytes; /* of the last one */
    int calls, fails_at;
    int steps, bad; /* bad: what the next step reports as its first bad state */
    recorded_step step[8];
    const void *tensor[5][3]; /* of the last step: values, gradients, moments, copies */
} device_log;

/* LS_ERR_INFRA at the call that a test chose. */
static ls_status next_call(void)
{
    return ++device_log.calls == device_log.fails_at ? LS_ERR_INFRA : LS_OK;
}

static ls_status counted_alloc(ls_backend *backend, int64_t bytes, const char *purpose, void **out)
{
    LS_TRY(next_call());
    LS_TRY(host_memory_alloc(backend, bytes, purpose, out));
    device_log.held++;
    device_log.bytes = bytes;
    return LS_OK;
}

static void counted_free(ls_backend *backend, void *memory)
{
    device_log.held -= memory != NULL;
    host_memory_free(backend, memory);
}

static ls_status counted_copy(ls_backend *backend, ls_stream *stream, void *to, const void *from,
                              int64_t bytes)
{
    LS_TRY(next_call());
    return host_copy(backend, stream, to, from, bytes);
}

static ls_status counted_convert(ls_backend *backend, ls_stream *stream, ls_tensor to,
                                 ls_tensor from, float factor)
{
    LS_TRY(next_call());
    return host_convert(backend, stream, to, from, factor);
}

static ls_status unscale_check(ls_backend *backend, ls_stream *stream, ls_tensor_list to,
                               ls_tensor_list from, ls_step_state *state)
{
    LS_TRY(next_call());
    state->overflow = 0;
    state->first_bad_grad = -1;
    ck_assert_int_eq(to.count, from.count);
    for (int t = 0; t < from.count; t++) {
        for (int64_t i = 0; i < from.tensor[t].count; i++) {
            if (!isfinite(host_get(&from.tensor[t], i)) && state->overflow == 0) {
                state->overflow = 1;
                state->first_bad_grad = t;
            }
        }
        (void)host_convert(backend, stream, to.tensor[t], from.tensor[t], state->inv_loss_scale);
    }
    return LS_OK;
}

static ls_status accumulate(ls_backend *backend, ls_stream *stream, ls_tensor sum, ls_tensor from,
                            bool first)
{
    (void)backend, (void)stream;
    LS_TRY(next_call());
    for (int64_t i = 0; i < sum.count; i++) {
        host_set(&sum, i, (first ? 0 : host_get(&sum, i)) + host_get(&from, i));
    }
    return LS_OK;
}

static ls_status scaler_update(ls_backend *backend, ls_stream *stream,
                               const ls_scaler_config *config, ls_step_state *state)
{
    (void)backend, (void)stream;
    LS_TRY(next_call());
    ls_scaler_update(config, state);
    return LS_OK;
}

/* value -= lr * grad, and the copies. */
static ls_status optimizer_step(ls_backend *backend, ls_stream *stream,
                                const ls_optimizer_config *config, const ls_optimizer_args *args,
                                bool dynamic, ls_step_state *state)
{
    (void)config;
    LS_TRY(next_call());
    device_log.step[device_log.steps++ % 8] = (recorded_step){
        args->value.count, args->grad.count,  args->moment1.count, args->moment2.count,
        args->copy.count,  state->step_count, state->lr,           dynamic};
    ck_assert(state->loss_scale == 1 && state->overflow == 0);
    for (int t = 0; t < args->value.count && t < 3; t++) {
        const ls_tensor_list *lists[] = {&args->value, &args->grad, &args->moment1, &args->moment2,
                                         &args->copy};
        for (int k = 0; k < 5; k++) {
            device_log.tensor[k][t] = lists[k]->count > 0 ? lists[k]->tensor[t].data : NULL;
        }
    }
    for (int t = 0; t < args->value.count; t++) {
        const ls_tensor *value = &args->value.tensor[t];
        for (int64_t i = 0; i < value->count; i++) {
            host_set(value, i, host_get(value, i) - state->lr * host_get(&args->grad.tensor[t], i));
        }
        if (args->copy.tensor[t].data != value->data) {
            (void)host_convert(backend, stream, args->copy.tensor[t], *value, 1.0f);
        }
    }
    state->first_bad_state = device_log.bad;
    state->step_count++;
    return LS_OK;
}

static ls_backend_api API;

static ls_device recording_device(void)
{
    memset(&device_log, 0, sizeof device_log);
    device_log.bad = -1;
    API = HOST_API;
    API.memory_alloc = counted_alloc;
    API.memory_free = counted_free;
    API.copy_in = API.copy_out = counted_copy;
    API.convert = counted_convert;
    API.unscale_check = unscale_check;
    API.accumulate = accumulate;
    API.scaler_update = scaler_update;
    API.optimizer_step = optimizer_step;
    ls_device device = host_device();
    device.api = &API;
    return device;
}

/* ---- lines ----------------------------------------------------------------------------------- */

#define REFUSED(call, line)                                    \
    do {                                                       \
        catch_lines();                                         \
        ls_status refused_ = (call);                           \
        const char *lines_ = caught_lines();                   \
        ck_assert_str_eq(lines_, "error: " line "\n");         \
        ck_assert_msg(refused_ == LS_ERR_USAGE, "%s", (line)); \
    } while (0)
#define GOOD(call) ck_assert_int_eq((call), LS_OK)

/* ---- handles --------------------------------------------------------------------------------- */

static const ls_scaler_config dynamic_scale = {.dynamic = true,
                                               .growth_factor = 2,
                                               .backoff_factor = 0.5f,
                                               .growth_interval = 2000,
                                               .max_scale = 16777216};
static const ls_optimizer_config sgd = {.kind = LS_OPTIMIZER_SGD};

static ls_amp_options options_of(int losses, int moments)
{
    return (ls_amp_options){.enabled = true,
                            .masters = true,
                            .loss_count = losses,
                            .scaler = dynamic_scale,
                            .initial_scale = 8,
                            .moment_count = moments,
                            .verbosity = 1};
}

enum { PARAMS = 6, MOST = 257 };

/* Parameters of every float type, with gradients; element i of parameter p is p + i % 8 / 64. */
typedef struct params {
    ls_amp_param param[PARAMS];
    double memory[2][PARAMS][MOST];
} params;

static void make_params(params *p)
{
    static const ls_dtype type[PARAMS] = {LS_F16, LS_F32, LS_BF16, LS_F16, LS_F32, LS_F16};
    static const int64_t count[PARAMS] = {64, 3, MOST, 1, 64, 0};
    memset(p, 0, sizeof *p);
    for (int k = 0; k < PARAMS; k++) {
        ls_amp_param *one = &p->param[k];
        snprintf(one->name, sizeof one->name, "p%d", k);
        one->param = (ls_tensor){p->memory[0][k], type[k], count[k]};
        one->grad = (ls_tensor){p->memory[1][k], type[k], count[k]};
        for (int64_t i = 0; i < count[k]; i++) {
            host_set(&one->param, i, (float)k + (float)(i % 8) / 64);
        }
    }
}

/* Of each test: a fresh recording device, and the handle on it that is open, which is destroyed
 * behind the test; then nothing may be held. */
static ls_device device;
static ls_amp *amp;
static params p;

static void open_device(void)
{
    device = recording_device();
}

static void close_amp(void)
{
    ls_amp_destroy(amp);
    amp = NULL;
    ck_assert_int_eq(device_log.held, 0);
}

static void open_amp(const ls_amp_options *options)
{
    GOOD(ls_amp_create(&device, options, &amp));
}

/* With optimizer 0, whose group 0 has the first `count` parameters. */
static void open_group(const ls_amp_options *options, const ls_optimizer_config *config, float lr,
                       int count)
{
    int optimizer, group;
    open_amp(options);
    make_params(&p);
    GOOD(ls_amp_add_optimizer(amp, &optimizer));
    GOOD(ls_amp_add_group(amp, 0, config, lr, p.param, count, &group));
}

/* A block of optimizer 0 alone. */
static ls_step_state *begin_block(int loss)
{
    static const int only[] = {0};
    ls_step_state *state;
    GOOD(ls_amp_begin(amp, loss, only, 1, false, &state));
    return state;
}

/* All gradients of a parameter become `value`, times the scale of 8. */
static void give(int param, float value, int group, int index)
{
    for (int64_t i = 0; i < p.param[param].grad.count; i++) {
        host_set(&p.param[param].grad, i, value * 8);
    }
    GOOD(ls_amp_ready(amp, 0, group, index));
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(settings)
{
    ls_precision precision = {.masters = true, .scaler = dynamic_scale, .initial_scale = 32};
    ls_amp_options options = ls_amp_defaults(&precision);
    ck_assert(options.enabled && options.masters && options.loss_count == 1 &&
              options.scaler.dynamic && options.initial_scale == 32 && options.moment_count == 1 &&
              options.verbosity == 1 && options.warn == NULL && options.context == NULL);
    static const struct {
        bool disabled, fixed;
        float initial, least, most, want;
    } rows[] = {{false, false, 8, 0, 16, 8},   {false, false, 32, 0, 16, 16},
                {false, false, 8, 16, 64, 16}, {false, true, 32, 0, 16, 32},
                {true, false, 8, 2, 16, 1},    {true, true, 8, 0, 16, 1}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        options = options_of(3, 0);
        options.enabled = !rows[r].disabled;
        options.scaler.dynamic = !rows[r].fixed;
        options.scaler.min_scale = rows[r].least;
        options.scaler.max_scale = rows[r].most;
        options.initial_scale = rows[r].initial;
        open_amp(&options);
        for (int loss = 0; loss < 3; loss++) {
            float scale = 0;
            GOOD(ls_amp_loss_scale(amp, loss, &scale));
            ck_assert_msg(scale == rows[r].want, "row %zu, loss %d: %g", r, loss, (double)scale);
        }
        ck_assert_int_eq(device_log.bytes, 4 * (int64_t)sizeof(ls_step_state));
        close_amp();
    }
    ls_amp_destroy(NULL);
}

TEST(refused_handles)
{
    ls_amp_options options = options_of(0, 1);
    REFUSED(ls_amp_create(&device, &options, &amp), "amp for 0 losses; allowed: 1 and more");
    options = options_of(1, -1);
    REFUSED(ls_amp_create(&device, &options, &amp), "-1 moments a parameter; allowed: 0 to 2");
    options = options_of(1, 3);
    REFUSED(ls_amp_create(&device, &options, &amp), "3 moments a parameter; allowed: 0 to 2");
    options = options_of(1, 2);
    options.initial_scale = 0;
    REFUSED(ls_amp_create(&device, &options, &amp),
            "a loss scale of 0; allowed: positive and finite");
    options.initial_scale = INFINITY;
    REFUSED(ls_amp_create(&device, &options, &amp),
            "a loss scale of inf; allowed: positive and finite");
    ck_assert(amp == NULL && device_log.calls == 0);
}

TEST(refused_numbers)
{
    ls_amp_options options = options_of(2, 1);
    open_amp(&options);
    make_params(&p);
    int optimizer = -1, group = -1;
    float scale;
    ls_step_state *state;
    REFUSED(ls_amp_set_lr(amp, 0, 0, 1), "amp has no optimizer 0; allowed: 0 to -1");
    GOOD(ls_amp_add_optimizer(amp, &optimizer));
    ck_assert_int_eq(optimizer, 0);
    GOOD(ls_amp_add_optimizer(amp, &optimizer));
    ck_assert_int_eq(optimizer, 1);
    GOOD(ls_amp_add_group(amp, 0, &sgd, 1, p.param, 2, &group));
    ck_assert_int_eq(group, 0);
    GOOD(ls_amp_add_group(amp, 0, &sgd, 1, p.param + 2, 1, &group));
    ck_assert_int_eq(group, 1);
    ck_assert_int_eq(ls_amp_param_count(amp, 0), 3);
    ck_assert_int_eq(ls_amp_param_count(amp, 1), 0);
    REFUSED(ls_amp_loss_scale(amp, -1, &scale), "amp has no loss -1; allowed: 0 to 1");
    REFUSED(ls_amp_loss_scale(amp, 2, &scale), "amp has no loss 2; allowed: 0 to 1");
    REFUSED(ls_amp_add_group(amp, 2, &sgd, 1, p.param, 1, &group),
            "amp has no optimizer 2; allowed: 0 to 1");
    REFUSED(ls_amp_weights_changed(amp, -1), "amp has no optimizer -1; allowed: 0 to 1");
    REFUSED(ls_amp_set_lr(amp, 0, 2, 1), "amp has no group of that optimizer 2; allowed: 0 to 1");
    REFUSED(ls_amp_set_lr(amp, 0, -1, 1), "amp has no group of that optimizer -1; allowed: 0 to 1");
    REFUSED(ls_amp_set_grad(amp, 0, 0, 2, p.param[0].grad),
            "amp has no parameter of that group 2; allowed: 0 to 1");
    REFUSED(ls_amp_zero_param(amp, 0, 1, -1),
            "amp has no parameter of that group -1; allowed: 0 to 0");
    REFUSED(ls_amp_ready(amp, 0, 0, 0),
            "the gradient of p0 came outside a block of its optimizer 0");
    REFUSED(ls_amp_end(amp), "ls_amp_end without an open block");
    static const int none[] = {2}, twice[] = {0, 1, 0}, second[] = {1}, first[] = {0};
    REFUSED(ls_amp_begin(amp, 2, first, 1, false, &state), "amp has no loss 2; allowed: 0 to 1");
    REFUSED(ls_amp_begin(amp, 0, none, 1, false, &state),
            "amp has no optimizer 2; allowed: 0 to 1");
    REFUSED(ls_amp_begin(amp, 1, twice, 3, false, &state),
            "optimizer 0 stands twice in the block of loss 1");
    GOOD(ls_amp_begin(amp, 1, second, 1, false, &state));
    REFUSED(ls_amp_ready(amp, 0, 0, 1),
            "the gradient of p1 came outside a block of its optimizer 0");
    bool skipped;
    cJSON *dict = NULL;
    GOOD(ls_amp_state_dict(amp, &dict));
#define OPEN " inside the block of loss 1; allowed: after ls_amp_end"
    REFUSED(ls_amp_add_optimizer(amp, &optimizer), "an optimizer is added" OPEN);
    REFUSED(ls_amp_add_group(amp, 1, &sgd, 1, p.param, 1, &group),
            "a parameter group is added" OPEN);
    REFUSED(ls_amp_set_grad(amp, 0, 0, 0, p.param[0].grad), "a gradient is moved" OPEN);
    REFUSED(ls_amp_begin(amp, 0, first, 1, false, &state), "a block is opened" OPEN);
    REFUSED(ls_amp_step(amp, 0, &skipped), "an optimizer steps" OPEN);
    REFUSED(ls_amp_zero_grad(amp, 0), "gradients are zeroed" OPEN);
    REFUSED(ls_amp_zero_param(amp, 0, 0, 0), "a gradient is zeroed" OPEN);
    REFUSED(ls_amp_load_state_dict(amp, dict), "a state dict is loaded" OPEN);
    cJSON_Delete(dict);
    GOOD(ls_amp_end(amp));
    GOOD(ls_amp_begin(amp, 0, first, 1, true, &state));
    REFUSED(ls_amp_step(amp, 1, &skipped),
            "an optimizer steps inside the block of loss 0; allowed: after ls_amp_end");
    GOOD(ls_amp_ready(amp, 0, 0, 0));
    GOOD(ls_amp_end(amp));
    REFUSED(ls_amp_step(amp, 0, &skipped),
            "optimizer 0 would step on gradients that are still scaled; allowed: after a block of "
            "loss 0 without delay, or after ls_amp_zero_grad");
    REFUSED(ls_amp_begin(amp, 1, first, 1, false, &state),
            "optimizer 0 holds back gradients at the scale of loss 0; a block of loss 1 would "
            "unscale them by its own; allowed: loss 0, or ls_amp_zero_grad first");
    GOOD(ls_amp_zero_param(amp, 0, 0, 0));
    GOOD(ls_amp_begin(amp, 1, first, 1, false, &state));
    ls_amp_cancel(amp);
    GOOD(ls_amp_step(amp, 0, &skipped));
}

TEST(refused_groups)
{
    ls_amp_options options = options_of(1, 1);
    open_amp(&options);
    make_params(&p);
    int optimizer, group = -1, held = device_log.held;
    GOOD(ls_amp_add_optimizer(amp, &optimizer));
    ls_amp_param wrong[3] = {p.param[0], p.param[1], p.param[0]};
#define ADD(config, param, count) ls_amp_add_group(amp, 0, config, 1, param, count, &group)
    snprintf(wrong[2].name, sizeof wrong[2].name, "again");
    REFUSED(ADD(&sgd, wrong, 3), "again is in two parameter groups of one optimizer");
    wrong[1].param.dtype = LS_I64;
    REFUSED(ADD(&sgd, wrong, 2),
            "amp cannot train p1: it is I64 with gradients in F32; allowed: f32, f16, bf16");
    wrong[1] = p.param[1];
    wrong[1].grad.dtype = LS_F64;
    REFUSED(ADD(&sgd, wrong, 2),
            "amp cannot train p1: it is F32 with gradients in F64; allowed: f32, f16, bf16");
    wrong[1] = p.param[1];
    wrong[1].grad.count = 2;
    REFUSED(ADD(&sgd, wrong, 2), "p1 has 3 elements and its gradient 2");
    wrong[1].grad.count = wrong[1].param.count = -1;
    REFUSED(ADD(&sgd, wrong, 2), "p1 has -1 elements and its gradient -1");
    const ls_optimizer_config adam = {.kind = LS_OPTIMIZER_ADAM};
    REFUSED(ADD(&adam, p.param, 1), "adam needs 2 moments a parameter, amp keeps 1");
    ck_assert(group == -1 && device_log.held == held && ls_amp_param_count(amp, 0) == 0);
    GOOD(ADD(&sgd, p.param, 2));
    REFUSED(ADD(&sgd, wrong + 2, 1), "again is in two parameter groups of one optimizer");
    wrong[1] = wrong[2] = p.param[3]; /* of one element */
    REFUSED(ADD(&sgd, wrong + 1, 2), "p3 is in two parameter groups of one optimizer");
    wrong[1] = p.param[5]; /* without elements: as often as one likes */
    wrong[2] = p.param[5];
    GOOD(ADD(&sgd, wrong + 1, 2));
    GOOD(ADD(&sgd, wrong + 1, 1));
    GOOD(ls_amp_add_optimizer(amp, &optimizer));
    GOOD(ls_amp_add_group(amp, optimizer, &sgd, 1, p.param, 1, &group)); /* another optimizer's */
    close_amp();
    /* LAMB's norm: of one group only, in whichever order they come */
    options.moment_count = 2;
    const ls_optimizer_config clips = {.kind = LS_OPTIMIZER_LAMB, .max_grad_norm = 1};
    const ls_optimizer_config lamb = {.kind = LS_OPTIMIZER_LAMB};
    for (int order = 0; order < 2; order++) {
        open_amp(&options);
        GOOD(ls_amp_add_optimizer(amp, &optimizer));
        GOOD(ADD(order == 0 ? &clips : &lamb, p.param, 1));
        REFUSED(ADD(order == 0 ? &sgd : &clips, p.param + 1, 1),
                "lamb with max_grad_norm in several groups: the norm is of all gradients, a step "
                "sees one group; allowed: one group, or max_grad_norm 0 and clipping through "
                "ls_amp_param_at");
        if (order == 1) {
            GOOD(ADD(&lamb, p.param + 1, 1));
            GOOD(ADD(&adam, p.param + 2, 1));
        }
        close_amp();
    }
}

LOOP_TEST(tensors_of_a_group, 9)
{
    const int form = _i; /* moments 0, 1, 2; masters, none, amp off */
    ls_amp_options options = options_of(1, form % 3);
    options.masters = form < 3 || form >= 6;
    options.enabled = form < 6;
    open_group(&options, &sgd, 1, PARAMS);
    bool masters = form < 3;
    ck_assert_int_eq(ls_amp_param_count(amp, 0), PARAMS);
    int64_t bytes = 0;
    const char *least = NULL;
    for (int k = 0; k < PARAMS; k++) {
        ls_amp_view view = ls_amp_param_at(amp, 0, k);
        const ls_tensor *param = &p.param[k].param;
        bool half = param->dtype != LS_F32;
        int64_t wide = (4 * param->count + 255) / 256 * 256;
        int64_t own = ((half ? 2 : 4) * param->count + 255) / 256 * 256;
        /* the master, the sum, a block's own, the moments; what is held back */
        bytes += wide * ((masters && half) + 2 + options.moment_count) + own;
        ck_assert_str_eq(view.name, p.param[k].name);
        ck_assert(view.param.data == param->data && view.param.dtype == param->dtype &&
                  view.param.count == param->count);
        ck_assert(!view.has_grad && *view.steps == 0);
        ck_assert(param->count == 0 || view.has_master == (masters && half));
        ck_assert(view.has_master || view.value.data == param->data);
        ck_assert_int_eq(view.value.dtype, view.has_master ? LS_F32 : param->dtype);
        ck_assert(view.grad.dtype == LS_F32 && view.grad.count == param->count);
        for (int64_t i = 0; i < param->count; i++) {
            ck_assert(host_get(&view.value, i) == host_get(param, i));
        }
        for (int m = 0; m < 2; m++) {
            ck_assert((view.moment[m].data != NULL) == (m < options.moment_count));
        }
        ls_tensor list[] = {view.value, view.grad, view.moment[0], view.moment[1]};
        for (int t = view.has_master ? 0 : 1; t < 2 + options.moment_count; t++) {
            least = least == NULL ? list[t].data : least;
            ck_assert_int_eq(((const char *)list[t].data - least) % 256, 0);
            for (int64_t i = 0; i < list[t].count; i++) {
                host_set(&list[t], i, (float)(k * 10 + t));
            }
        }
    }
    ck_assert_int_eq(device_log.bytes, bytes);
    for (int k = 0; k < PARAMS; k++) { /* none lies in another */
        ls_amp_view view = ls_amp_param_at(amp, 0, k);
        ls_tensor list[] = {view.value, view.grad, view.moment[0], view.moment[1]};
        for (int t = view.has_master ? 0 : 1; t < 2 + options.moment_count; t++) {
            for (int64_t i = 0; i < list[t].count; i++) {
                ck_assert(host_get(&list[t], i) == (float)(k * 10 + t));
            }
        }
    }
    GOOD(ls_amp_weights_changed(amp, 0));
    for (int k = 0; k < PARAMS; k++) {
        ls_amp_view view = ls_amp_param_at(amp, 0, k);
        for (int64_t i = 0; i < view.param.count; i++) {
            ck_assert(host_get(&view.value, i) == host_get(&view.param, i));
        }
    }
}

/* Two groups with three parameters that take their first steps at different times: one call of the
 * backend for those that have taken equally many, from the most to the least. */
LOOP_TEST(calls_of_a_step, 3)
{
    const int moments = _i;
    ls_amp_options options = options_of(1, moments);
    open_group(&options, &sgd, 0.5f, 3);
    int group;
    bool skipped = true;
    GOOD(ls_amp_add_group(amp, 0, &sgd, 0.25f, p.param + 3, 1, &group));
    GOOD(ls_amp_set_lr(amp, 0, 1, 0.125f));
    device_log.steps = 0;
    for (int block = 0; block < 3; block++) { /* p0 in all, p1 and p3 in two, p2 in one */
        const ls_step_state *state = begin_block(0);
        ck_assert(state->loss_scale == 8);
        give(0, 1, 0, 0);
        if (block > 0) {
            give(1, 2, 0, 1);
            give(3, 4, 1, 0);
        }
        if (block == 2) {
            give(2, 8, 0, 2);
        }
        GOOD(ls_amp_end(amp));
        ck_assert_int_eq(ls_amp_param_at(amp, 0, 2).has_grad, block == 2);
        GOOD(ls_amp_step(amp, 0, &skipped));
        ck_assert(!skipped);
        GOOD(ls_amp_zero_grad(amp, 0));
    }
    static const struct {
        int count, taken;
        float lr;
    } want[] = {{1, 0, 0.5f}, {1, 1, 0.5f}, {1, 0, 0.5f}, {1, 0, 0.125f},
                {1, 2, 0.5f}, {1, 1, 0.5f}, {1, 0, 0.5f}, {1, 1, 0.125f}};
    ck_assert_int_eq(device_log.steps, 8);
    for (int i = 0; i < 8; i++) {
        const recorded_step *have = &device_log.step[i];
        int count = want[i].count;
        ck_assert_msg(have->values == count && have->grads == count && have->copies == count &&
                          have->first_moments == (moments > 0 ? count : 0) &&
                          have->second_moments == (moments > 1 ? count : 0) &&
                          have->taken == want[i].taken && have->lr == want[i].lr && !have->dynamic,
                      "call %d", i);
    }
    static const float lost[] = {1.5f, 2, 4, 1};
    static const int64_t steps[] = {3, 2, 1, 2};
    for (int k = 0; k < 4; k++) {
        ls_amp_view view = ls_amp_param_at(amp, 0, k);
        ck_assert(host_get(&view.value, 0) == (float)k - lost[k]);
        ck_assert(host_get(&view.param, 0) == (float)k - lost[k]);
        ck_assert_int_eq(*view.steps, steps[k]);
    }
}

/* All parameters with the same count go in one call; what the backend reports names its parameter.
 */
TEST(a_bad_state_is_named)
{
    ls_amp_options options = options_of(1, 2);
    open_group(&options, &sgd, 0.5f, 3);
    bool skipped;
    for (int bad = -1; bad < 3; bad++) {
        begin_block(0);
        for (int k = 0; k < 3; k++) {
            give(k, 0, 0, k);
        }
        GOOD(ls_amp_end(amp));
        device_log.bad = bad;
        char want[160] = "";
        if (bad >= 0) {
            snprintf(want, sizeof want,
                     "error: p%d (its value, master or moment) is not finite after its step %d; "
                     "learning rate 0.5\n",
                     bad, bad + 2);
        }
        catch_lines();
        ls_status status = ls_amp_step(amp, 0, &skipped);
        ck_assert_str_eq(caught_lines(), want);
        ck_assert_int_eq(status, bad < 0 ? LS_OK : LS_ERR_NON_FINITE);
        ck_assert_int_eq(device_log.step[device_log.steps - 1].values, 3);
        for (int k = 0; k < 3; k++) {
            ls_amp_view view = ls_amp_param_at(amp, 0, k);
            const ls_tensor want[] = {view.value, view.grad, view.moment[0], view.moment[1],
                                      view.param};
            for (int l = 0; l < 5; l++) {
                ck_assert_ptr_eq(device_log.tensor[l][k], want[l].data);
            }
        }
        GOOD(ls_amp_zero_grad(amp, 0));
    }
}

/* LAMB's norm is of one call: parameters that have taken unequally many steps are refused. */
LOOP_TEST(a_norm_of_unequal_steps_is_refused, 3)
{
    static const struct {
        ls_optimizer_config config;
        bool refused;
    } rows[] = {{{.kind = LS_OPTIMIZER_LAMB, .max_grad_norm = 1}, true},
                {{.kind = LS_OPTIMIZER_LAMB}, false},
                {{.kind = LS_OPTIMIZER_ADAM, .max_grad_norm = 1}, false}};
    ls_amp_options options = options_of(1, 2);
    open_group(&options, &rows[_i].config, 0.5f, 2);
    bool skipped;
    for (int block = 0; block < 2; block++) {
        begin_block(0);
        give(0, 1, 0, 0);
        if (block == 1) {
            give(1, 1, 0, 1);
        }
        GOOD(ls_amp_end(amp));
        if (block == 1 && rows[_i].refused) {
            REFUSED(ls_amp_step(amp, 0, &skipped),
                    "lamb with max_grad_norm: parameters of one group have taken 1 and 0 steps, "
                    "and one call cannot take the norm of both; allowed: max_grad_norm 0");
            ck_assert_int_eq(device_log.steps, 1);
        } else {
            GOOD(ls_amp_step(amp, 0, &skipped));
            ck_assert_int_eq(device_log.steps, block == 0 ? 1 : 3);
        }
        GOOD(ls_amp_zero_grad(amp, 0));
    }
}

static char heard[4][200];
static int heard_count;

static void collect(void *context, const char *line)
{
    ck_assert_ptr_eq(context, heard);
    snprintf(heard[heard_count++ % 4], sizeof heard[0], "%s", line);
}

/* The block that ends a training, and the gradient that did, by name; the first loss that overflows
 * is the one that the skip names. */
LOOP_TEST(overflows_that_end_a_run, 2)
{
    const int form = _i; /* the floor; LS_AMP_STREAK_MAX in a row */
    ls_amp_options options = options_of(2, 0);
    options.scaler.min_scale = form == 0 ? 4 : 1;
    options.scaler.max_scale = 8;
    options.verbosity = 0;
    if (form == 1) {
        options.scaler.backoff_factor = 1;
    }
    open_group(&options, &sgd, 1, 3);
    int last = form == 0 ? 3 : 51;
    bool skipped;
    for (int block = 1; block <= last; block++) {
        int loss = block == 1 ? 0 : 1; /* the first is clean, and of another loss */
        begin_block(loss);
        give(0, 1, 0, 0);
        if (block > 1) {
            give(2, NAN, 0, 2);
        }
        char want[200] = "";
        if (block == last && form == 0) {
            snprintf(want, sizeof want,
                     "error: step 3: an overflow took the loss scale to 4, past its floor; "
                     "first gradient with inf or NaN: p2\n");
        } else if (block == last) {
            snprintf(want, sizeof want,
                     "error: step 51: 50 overflows in a row, loss scale now 8; first gradient "
                     "with inf or NaN: p2\n");
        }
        catch_lines();
        ls_status status = ls_amp_end(amp);
        ck_assert_str_eq(caught_lines(), want);
        ck_assert_int_eq(status, block == last ? LS_ERR_NON_FINITE : LS_OK);
        GOOD(ls_amp_step(amp, 0, &skipped));
        ck_assert_int_eq(skipped, block > 1);
    }
}

TEST(state_dicts)
{
    ls_amp_options options = options_of(2, 1);
    options.warn = collect;
    options.context = heard;
    open_amp(&options);
    static const struct {
        const char *text, *refused, *after, *warned[2];
    } rows[] = {
        {"{\"loss_scaler1\":{\"loss_scale\":4,\"unskipped\":2147483647},"
         "\"loss_scaler0\":{\"loss_scale\":0.5,\"unskipped\":0}}",
         "",
         "{\"loss_scaler0\":{\"loss_scale\":0.5,\"unskipped\":0},"
         "\"loss_scaler1\":{\"loss_scale\":4,\"unskipped\":2147483647}}",
         {NULL}},
        {"{\"loss_scaler1\":{\"loss_scale\":2,\"unskipped\":3}}",
         "",
         "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":0},"
         "\"loss_scaler1\":{\"loss_scale\":2,\"unskipped\":3}}",
         {"Warning: state_dict contains 1 entries, while 2 loss_scalers are used"}},
        {"{\"loss_scaler0\":{\"loss_scale\":2,\"unskipped\":3},\"loss_scaler1\":{\"loss_scale\":1,"
         "\"unskipped\":1},\"loss_scaler2\":{\"loss_scale\":2,\"unskipped\":3}}",
         "",
         "{\"loss_scaler0\":{\"loss_scale\":2,\"unskipped\":3},"
         "\"loss_scaler1\":{\"loss_scale\":1,\"unskipped\":1}}",
         {"Warning: state_dict contains 3 entries, while 2 loss_scalers are used",
          "Skipping loss_scaler[2], since num_losses was set to 2"}},
#define BAD_KEY(key)                                                                       \
    {.text = "{\"" key "\":{\"loss_scale\":4,\"unskipped\":0}}",                           \
     .refused = "error: amp's state dict has the key \"" key "\"; allowed: loss_scaler0, " \
                "loss_scaler1, ...\n"}
        BAD_KEY("loss_scaler"),
        BAD_KEY("loss_scalar0"),
        BAD_KEY("loss_scaler0x"),
        BAD_KEY("loss_scaler-1"),
        BAD_KEY("loss_scaler1234567890"),
        BAD_KEY(""),
#define BAD(member, line)                                                                       \
    {.text =                                                                                    \
         "{\"loss_scaler0\":{\"loss_scale\":4,\"unskipped\":1},\"loss_scaler1\":{" member "}}", \
     .refused = "error: amp's state dict: loss_scaler1 has " line "\n"}
        BAD("\"unskipped\":0", "the loss scale nan; allowed: positive and finite"),
        BAD("\"loss_scale\":0,\"unskipped\":0", "the loss scale 0; allowed: positive and finite"),
        BAD("\"loss_scale\":1e39,\"unskipped\":0",
            "the loss scale 1e+39; allowed: positive and finite"),
        BAD("\"loss_scale\":1", "unskipped nan; allowed: 0 to 2147483647, whole"),
        BAD("\"loss_scale\":1,\"unskipped\":-1", "unskipped -1; allowed: 0 to 2147483647, whole"),
        BAD("\"loss_scale\":1,\"unskipped\":2147483648",
            "unskipped 2.14748e+09; allowed: 0 to 2147483647, whole"),
        BAD("\"loss_scale\":1,\"unskipped\":0.5", "unskipped 0.5; allowed: 0 to 2147483647, whole"),
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        static const char start[] = "{\"loss_scaler0\":{\"loss_scale\":8,\"unskipped\":0},"
                                    "\"loss_scaler1\":{\"loss_scale\":8,\"unskipped\":0}}";
        cJSON *given = cJSON_Parse(start), *have = NULL;
        GOOD(ls_amp_load_state_dict(amp, given));
        cJSON_Delete(given);
        given = cJSON_Parse(rows[r].text);
        ck_assert_ptr_nonnull(given);
        heard_count = 0;
        catch_lines();
        ls_status status = ls_amp_load_state_dict(amp, given);
        ck_assert_str_eq(caught_lines(), rows[r].refused);
        ck_assert_int_eq(status, rows[r].after == NULL ? LS_ERR_USAGE : LS_OK);
        ck_assert_int_eq(heard_count, (rows[r].warned[0] != NULL) + (rows[r].warned[1] != NULL));
        for (int i = 0; i < heard_count; i++) {
            ck_assert_str_eq(heard[i], rows[r].warned[i]);
        }
        GOOD(ls_amp_state_dict(amp, &have));
        char *text = cJSON_PrintUnformatted(have);
        ck_assert_str_eq(text, rows[r].after == NULL ? start : rows[r].after);
        free(text);
        cJSON_Delete(have);
        cJSON_Delete(given);
    }
}

/* A training that ends at the n-th call of the device, for every n: its status comes back, and
 * nothing is left. */
static ls_status train(void)
{
    static const int only[] = {0};
    ls_amp_options options = options_of(2, 1);
    ls_step_state *state;
    int optimizer, group;
    bool skipped;
    cJSON *dict = NULL;
    make_params(&p);
    ls_status status;
    LS_TRY(ls_amp_create(&device, &options, &amp));
    LS_TRY_GOTO(status, ls_amp_add_optimizer(amp, &optimizer), close);
    LS_TRY_GOTO(status, ls_amp_add_group(amp, 0, &sgd, 1, p.param, 2, &group), close);
    LS_TRY_GOTO(status, ls_amp_add_group(amp, 0, &sgd, 1, p.param + 2, 2, &group), close);
    for (int block = 0; block < 3; block++) {
        LS_TRY_GOTO(status, ls_amp_begin(amp, 0, only, 1, block == 0, &state), close);
        LS_TRY_GOTO(status, ls_amp_ready(amp, 0, 0, 0), close);
        LS_TRY_GOTO(status, ls_amp_ready(amp, 0, 1, 1), close);
        LS_TRY_GOTO(status, ls_amp_end(amp), close);
    }
    LS_TRY_GOTO(status, ls_amp_step(amp, 0, &skipped), close);
    LS_TRY_GOTO(status, ls_amp_weights_changed(amp, 0), close);
    LS_TRY_GOTO(status, ls_amp_state_dict(amp, &dict), close);
    status = ls_amp_load_state_dict(amp, dict);
close:
    cJSON_Delete(dict);
    ls_amp_destroy(amp);
    amp = NULL;
    return status;
}

TEST(every_failure_comes_back)
{
    GOOD(train());
    int calls = device_log.calls;
    ck_assert_int_gt(calls, 20);
    for (int i = 1; i <= calls; i++) {
        device = recording_device();
        device_log.fails_at = i;
        ck_assert_msg(train() == LS_ERR_INFRA, "call %d of %d", i, calls);
        ck_assert_msg(device_log.calls == i, "call %d was not the last: %d", i, device_log.calls);
        ck_assert_msg(device_log.held == 0, "call %d: %d blocks are left", i, device_log.held);
    }
}

TEST_MAIN("amp", .before = open_device, .after = close_amp)
