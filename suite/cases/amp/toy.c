#include "toy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/oracle/bits.h"

const ls_toy_poison ls_toy_clean = {-1, 0, 0.0f};

/* The library's options of a setup. */
static ls_amp_options options_of(const ls_toy_setup *setup)
{
    return (ls_amp_options){
        .enabled = !setup->disabled,
        .masters = setup->level == 2,
        .loss_count = setup->losses > 0 ? setup->losses : 1,
        .scaler = {.dynamic = !setup->fixed && (setup->level == 1 || setup->level == 2),
                   .growth_factor = 2.0f,
                   .backoff_factor = 0.5f,
                   .growth_interval = setup->interval > 0 ? setup->interval : 2000,
                   .min_scale = setup->lowest,
                   .max_scale = setup->highest > 0 ? setup->highest : 16777216.0f},
        .initial_scale = setup->scale > 0 ? setup->scale : 4.0f,
        .moment_count = setup->moments > 0 ? setup->moments : 1,
        .verbosity = setup->mute ? 0 : 1,
    };
}

static void listen(void *context, const char *line)
{
    ls_toy *toy = context;
    if (toy->said_count < LS_TOY_SAID) {
        ls_text_put(toy->said[toy->said_count], sizeof toy->said[0], "%s", line);
    }
    toy->said_count++;
}

static void make_models(ls_toy *toy, const ls_toy_setup *setup)
{
    for (int i = 0; i < setup->optimizers || (i == 0 && setup->models > 0); i++) {
        ls_toy_optimizer(toy);
    }
    for (int m = 0; m < setup->models; m++) {
        ls_toy_make(toy, m, (float)m + 1);
        if (m < setup->models - setup->unowned) {
            ls_toy_own(toy, setup->optimizers == 2 ? m : 0, m, &setup->rule, setup->lr);
        }
    }
}

bool ls_toy_open(ls_toy *toy, const ls_toy_setup *setup, ls_verdict *verdict)
{
    memset(toy, 0, sizeof *toy);
    toy->verdict = verdict;
    if (!ls_inside_open(&toy->device, verdict)) {
        return false;
    }
    ls_amp_options options = options_of(setup);
    options.warn = listen;
    options.context = toy;
    ls_status status = ls_amp_create(&toy->device, &options, &toy->amp);
    if (status != LS_OK) {
        ls_verdict_fail(verdict, "ls_amp_create: %s", ls_status_name(status));
        ls_device_close(&toy->device);
        return false;
    }
    make_models(toy, setup);
    return true;
}

void ls_toy_must(ls_toy *toy, ls_status status, const char *call)
{
    if (status != LS_OK) {
        ls_verdict_fail(toy->verdict, "%s failed: %s", call, ls_status_name(status));
    }
}

void ls_toy_close(ls_toy *toy)
{
    ls_amp_destroy(toy->amp);
    for (int m = 0; m < LS_TOY_MODELS; m++) {
        for (int w = 0; w < 2 && toy->model[m].weight[w].data != NULL; w++) {
            ls_inside_free(&toy->device, &toy->model[m].weight[w]);
            ls_inside_free(&toy->device, &toy->model[m].grad[w]);
        }
    }
    ls_device_close(&toy->device);
}

void ls_toy_make(ls_toy *toy, int model, float u)
{
    static const ls_dtype dtype[2] = {LS_F32, LS_F16};
    ls_toy_model *made = &toy->model[model];
    made->optimizer = made->group = -1;
    for (int w = 0; w < 2; w++) {
        float value[LS_TOY_WIDTH] = {u + (float)w, u + (float)w + 1.0f};
        made->weight[w] = ls_inside_tensor(&toy->device, dtype[w], LS_TOY_WIDTH);
        made->grad[w] = ls_inside_tensor(&toy->device, dtype[w], LS_TOY_WIDTH);
        ls_inside_write(&toy->device, &made->weight[w], value);
    }
}

int ls_toy_optimizer(ls_toy *toy)
{
    int optimizer = -1;
    ls_toy_must(toy, ls_amp_add_optimizer(toy->amp, &optimizer), "ls_amp_add_optimizer");
    return optimizer;
}

void ls_toy_own(ls_toy *toy, int optimizer, int model, const ls_optimizer_config *config, float lr)
{
    ls_toy_model *owned = &toy->model[model];
    ls_amp_param param[2];
    memset(param, 0, sizeof param);
    for (int w = 0; w < 2; w++) {
        snprintf(param[w].name, sizeof param[w].name, "m%d.w%d", model, w);
        param[w].param = owned->weight[w];
        param[w].grad = owned->grad[w];
    }
    ls_toy_must(toy, ls_amp_add_group(toy->amp, optimizer, config, lr, param, 2, &owned->group),
                "ls_amp_add_group");
    owned->optimizer = optimizer;
}

void ls_toy_begin(ls_toy *toy, int loss, const int *optimizer, int count, bool delay)
{
    ls_toy_must(toy, ls_amp_begin(toy->amp, loss, optimizer, count, delay, &toy->state),
                "ls_amp_begin");
}

static float scale_of(ls_toy *toy)
{
    ls_step_state state;
    ls_toy_must(toy, ls_device_read(&toy->device, &state, toy->state, (int64_t)sizeof state),
                "ls_device_read");
    return state.loss_scale;
}

void ls_toy_backward(ls_toy *toy, unsigned models, ls_toy_poison poison)
{
    float scale = scale_of(toy);
    for (int m = 0; m < LS_TOY_MODELS; m++) {
        float weight[4];
        if ((models >> m & 1u) == 0) {
            continue;
        }
        ls_toy_weights(toy, m, weight);
        for (int w = 0; w < 2; w++) {
            float grad[LS_TOY_WIDTH];
            for (int i = 0; i < LS_TOY_WIDTH; i++) {
                grad[i] = weight[(1 - w) * LS_TOY_WIDTH + i] * scale;
            }
            grad[0] = poison.model == m && poison.weight == w ? poison.value : grad[0];
            ls_inside_write(&toy->device, &toy->model[m].grad[w], grad);
            ls_toy_must(toy,
                        ls_amp_ready(toy->amp, toy->model[m].optimizer, toy->model[m].group, w),
                        "ls_amp_ready");
        }
    }
}

void ls_toy_give(ls_toy *toy, int model, int weight, const float grad[LS_TOY_WIDTH])
{
    float scale = scale_of(toy), scaled[LS_TOY_WIDTH];
    for (int i = 0; i < LS_TOY_WIDTH; i++) {
        scaled[i] = grad[i] * scale;
    }
    ls_inside_write(&toy->device, &toy->model[model].grad[weight], scaled);
    ls_toy_must(
        toy, ls_amp_ready(toy->amp, toy->model[model].optimizer, toy->model[model].group, weight),
        "ls_amp_ready");
}

bool ls_toy_step(ls_toy *toy, int optimizer)
{
    bool skipped = false;
    ls_toy_must(toy, ls_amp_step(toy->amp, optimizer, &skipped), "ls_amp_step");
    return skipped;
}

void ls_toy_zero(ls_toy *toy, int optimizer)
{
    ls_toy_must(toy, ls_amp_zero_grad(toy->amp, optimizer), "ls_amp_zero_grad");
}

bool ls_toy_iterate(ls_toy *toy, int loss, int optimizer, unsigned models, ls_toy_poison poison)
{
    ls_toy_begin(toy, loss, &optimizer, 1, false);
    ls_toy_backward(toy, models, poison);
    ls_toy_must(toy, ls_amp_end(toy->amp), "ls_amp_end");
    bool skipped = ls_toy_step(toy, optimizer);
    ls_toy_zero(toy, optimizer);
    return skipped;
}

void ls_toy_weights(ls_toy *toy, int model, float out[4])
{
    ls_inside_read(&toy->device, &toy->model[model].weight[0], out);
    ls_inside_read(&toy->device, &toy->model[model].weight[1], out + LS_TOY_WIDTH);
}

void ls_toy_expect(ls_toy *toy, int model, const float expected[4], const char *when)
{
    float seen[4];
    ls_toy_weights(toy, model, seen);
    for (int i = 0; i < 4; i++) {
        if (!(seen[i] == expected[i])) {
            ls_verdict_fail(toy->verdict, "%s: m%d.w%d[%d] is %.9g, expected %.9g", when, model,
                            i / 2, i % 2, (double)seen[i], (double)expected[i]);
        }
    }
}

void ls_toy_expect_scale(ls_toy *toy, int loss, float scale, int unskipped, const char *when)
{
    cJSON *dict = NULL;
    ls_toy_must(toy, ls_amp_state_dict(toy->amp, &dict), "ls_amp_state_dict");
    LS_TEXT(key, 32, "loss_scaler%d", loss);
    const cJSON *entry = ls_json_get(dict, key);
    double seen = ls_json_number(entry, "loss_scale", -1);
    int64_t count = ls_json_integer(entry, "unskipped", -1);
    if (seen != (double)scale || count != unskipped) {
        ls_verdict_fail(toy->verdict,
                        "%s: loss %d has scale %g after %d clean blocks, expected %g after %d",
                        when, loss, seen, (int)count, (double)scale, unskipped);
    }
    cJSON_Delete(dict);
}

ls_status ls_toy_load(ls_toy *toy, const char *text)
{
    cJSON *state = cJSON_Parse(text);
    LS_ASSERT(state != NULL);
    ls_status status = ls_amp_load_state_dict(toy->amp, state);
    cJSON_Delete(state);
    return status;
}

ls_amp_view ls_toy_view(ls_toy *toy, int model, int weight)
{
    int optimizer = toy->model[model].optimizer;
    for (int i = 0; i < ls_amp_param_count(toy->amp, optimizer); i++) {
        ls_amp_view view = ls_amp_param_at(toy->amp, optimizer, i);
        if (view.param.data == toy->model[model].weight[weight].data) {
            return view;
        }
    }
    LS_ASSERT(false);
    return (ls_amp_view){0};
}

/* ---- the ideal ------------------------------------------------------------------------------- */

static double f32(double value)
{
    return ls_bits_round(LS_BITS_F32, value);
}

double ls_toy_ideal_half(double value)
{
    return ls_bits_round(LS_BITS_F16, value);
}

ls_toy_ideal ls_toy_ideal_make(double u, bool masters, double lr, double momentum, double decay)
{
    ls_toy_ideal m = {.masters = masters, .lr = lr, .momentum = momentum, .decay = decay};
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 2; i++) {
            m.value[w][i] = m.copy[w][i] = u + w + i;
        }
    }
    return m;
}

void ls_toy_ideal_backward(ls_toy_ideal *m, double scale)
{
    for (int i = 0; i < 2; i++) {
        m->total[0][i] = f32(m->total[0][i] + f32(m->copy[1][i] * scale) / scale);
        m->total[1][i] = f32(m->total[1][i] + ls_toy_ideal_half(m->copy[0][i] * scale) / scale);
    }
}

void ls_toy_ideal_step(ls_toy_ideal *m)
{
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 2; i++) {
            double d = f32(m->total[w][i] + f32(m->decay * m->value[w][i]));
            m->buffer[w][i] = m->started ? f32(f32(m->momentum * m->buffer[w][i]) + d) : d;
            m->value[w][i] = f32(m->value[w][i] - f32(m->lr * m->buffer[w][i]));
            m->copy[w][i] = w == 1 ? ls_toy_ideal_half(m->value[w][i]) : m->value[w][i];
            if (w == 1 && !m->masters) {
                m->value[w][i] = m->copy[w][i];
            }
        }
    }
    m->started = true;
}

void ls_toy_ideal_zero(ls_toy_ideal *m)
{
    memset(m->total, 0, sizeof m->total);
}

void ls_toy_ideal_expect(ls_toy *toy, int model, const ls_toy_ideal *m, const char *when)
{
    float weight[4];
    for (int i = 0; i < 4; i++) {
        weight[i] = (float)m->copy[i / 2][i % 2];
    }
    ls_toy_expect(toy, model, weight, when);
}

void ls_toy_ideal_blocks(ls_toy *toy, ls_toy_ideal *m, int models, int count)
{
    static const int only[] = {0};
    for (int k = 0; k < count; k++) {
        ls_toy_begin(toy, 0, only, 1, false);
        ls_toy_backward(toy, models == 2 ? 3u : 1u, ls_toy_clean);
        ls_toy_must(toy, ls_amp_end(toy->amp), "ls_amp_end");
        for (int i = 0; i < models; i++) {
            ls_toy_ideal_backward(&m[i], 4.0);
        }
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

static ls_status begin(ls_toy *toy, const ls_toy_op *op, unsigned optimizers)
{
    int list[2], count = 0;
    for (int o = 0; o < 2; o++) {
        if ((optimizers >> o & 1u) != 0) {
            list[count++] = o;
        }
    }
    return ls_amp_begin(toy->amp, op->loss, list, count, op->delay, &toy->state);
}

static ls_status block(ls_toy *toy, const ls_toy_op *op)
{
    LS_TRY(begin(toy, op, 1));
    for (int w = 0; w < 2; w++) {
        if (op->weight == BOTH || op->weight == w) {
            ls_toy_give(toy, 0, w, op->value);
        }
    }
    return ls_amp_end(toy->amp);
}

static ls_status round_of(ls_toy *toy, const ls_toy_op *op)
{
    LS_TRY(begin(toy, op, op->optimizers));
    ls_toy_backward(toy, op->models, op->poison.value != 0 ? op->poison : ls_toy_clean);
    return ls_amp_end(toy->amp);
}

static int first_of(unsigned mask)
{
    return (mask & 1u) != 0 ? 0 : 1;
}

static ls_status step(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    bool skipped = !op->skipped;
    LS_TRY(ls_amp_step(toy->amp, first_of(op->optimizers), &skipped));
    if (skipped != op->skipped) {
        ls_verdict_fail(toy->verdict, "%s: the step of optimizer %d was %s", when,
                        first_of(op->optimizers), skipped ? "skipped" : "taken");
    }
    return LS_OK;
}

static ls_status create(ls_toy *toy, const ls_toy_op *op)
{
    ls_amp_options options = options_of(&(ls_toy_setup){.level = 2});
    ls_amp *made = NULL;
    options.initial_scale = op->value[0];
    options.loss_count = op->count;
    ls_status status = ls_amp_create(&toy->device, &options, &made);
    ls_amp_destroy(made);
    return status;
}

/* ---- expectations ---------------------------------------------------------------------------- */

static void expect_grad(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    for (int w = 0; w < 2; w++) {
        ls_amp_view view = ls_toy_view(toy, 0, w);
        float seen[2] = {NAN, NAN}, expected = op->value[w];
        if (view.has_grad) {
            ls_inside_read(&toy->device, &view.grad, seen);
        }
        bool none = isnan(expected) && !view.has_grad;
        if (!none && !(seen[0] == expected && seen[1] == expected)) {
            ls_verdict_fail(toy->verdict, "%s: the gradient of w%d is %.9g, %.9g, expected %.9g",
                            when, w, (double)seen[0], (double)seen[1], (double)expected);
        }
    }
}

static void expect_state(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    ls_amp_view view = ls_toy_view(toy, 0, op->weight);
    float moment[2];
    ls_inside_read(&toy->device, &view.moment[0], moment);
    if (moment[0] != op->value[0] || *view.steps != op->count) {
        ls_verdict_fail(
            toy->verdict, "%s: w%d has %d steps and momentum %.9g, expected %d and %.9g", when,
            op->weight, (int)*view.steps, (double)moment[0], op->count, (double)op->value[0]);
    }
}

/* Whether every word of "a|b" stands in the text. */
static bool has_words(const char *text, const char *words)
{
    char copy[200], *rest = NULL;
    ls_text_put(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, "|", &rest); word != NULL; word = strtok_r(NULL, "|", &rest)) {
        if (strstr(text, word) == NULL) {
            return false;
        }
    }
    return true;
}

static void expect_said(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    char all[LS_TOY_SAID * 161] = "";
    for (int i = 0; i < toy->said_count && i < LS_TOY_SAID; i++) {
        ls_text_add(all, sizeof all, "%s\n", toy->said[i]);
    }
    if (toy->said_count != op->count || !has_words(all, op->text)) {
        ls_verdict_fail(toy->verdict, "%s: %d lines, expected %d with \"%s\": %s", when,
                        toy->said_count, op->count, op->text, all);
    }
}

static void expect_dict(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    cJSON *state = NULL;
    ls_toy_must(toy, ls_amp_state_dict(toy->amp, &state), "ls_amp_state_dict");
    char *text = cJSON_PrintUnformatted(state);
    if (strcmp(text, op->text) != 0) {
        ls_verdict_fail(toy->verdict, "%s: the state dict is %s", when, text);
    }
    free(text);
    cJSON_Delete(state);
}

/* ---- scripts --------------------------------------------------------------------------------- */

static ls_status run_op(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    switch (op->kind) {
    case LS_TOY_BEGIN:
        return begin(toy, op, op->optimizers);
    case LS_TOY_GIVE:
        ls_toy_give(toy, 0, op->weight, op->value);
        return LS_OK;
    case LS_TOY_END_BLOCK:
        return ls_amp_end(toy->amp);
    case LS_TOY_CANCEL:
        ls_amp_cancel(toy->amp);
        return LS_OK;
    case LS_TOY_BLOCK:
        return block(toy, op);
    case LS_TOY_ROUND:
        return round_of(toy, op);
    case LS_TOY_STEP:
        return step(toy, op, when);
    case LS_TOY_ZERO:
        return ls_amp_zero_grad(toy->amp, first_of(op->optimizers));
    case LS_TOY_ZERO_PARAM:
        return ls_amp_zero_param(toy->amp, 0, 0, op->weight);
    case LS_TOY_WRITE:
        ls_inside_write(&toy->device, &toy->model[0].weight[op->weight], op->value);
        return LS_OK;
    case LS_TOY_CHANGED:
        return ls_amp_weights_changed(toy->amp, 0);
    case LS_TOY_LOAD:
        return ls_toy_load(toy, op->text);
    case LS_TOY_CALL:
        return op->call(toy);
    case LS_TOY_CREATE:
        return create(toy, op);
    case LS_TOY_EXPECT_GRAD:
        expect_grad(toy, op, when);
        return LS_OK;
    case LS_TOY_EXPECT_WEIGHTS:
        ls_toy_expect(toy, op->model, op->value, when);
        return LS_OK;
    case LS_TOY_EXPECT_SCALE:
        ls_toy_expect_scale(toy, op->loss, op->value[0], op->count, when);
        return LS_OK;
    case LS_TOY_EXPECT_STATE:
        expect_state(toy, op, when);
        return LS_OK;
    case LS_TOY_EXPECT_SAID:
        expect_said(toy, op, when);
        return LS_OK;
    case LS_TOY_EXPECT_DICT:
        expect_dict(toy, op, when);
        return LS_OK;
    case LS_TOY_END:
    case LS_TOY_AGAIN:
        break;
    }
    LS_ASSERT(false);
    return LS_OK;
}

/* The operation must fail with its status and one line that has its words. */
static void run_refused(ls_toy *toy, const ls_toy_op *op, const char *when)
{
    char text[400];
    ls_inside_capture capture = ls_inside_capture_begin();
    ls_status status = run_op(toy, op, when);
    int lines = ls_inside_capture_end(&capture, text, (int)sizeof text);
    text[strcspn(text, "\n")] = '\0';
    if (status != op->status || lines != 1 || !has_words(text, op->names)) {
        ls_verdict_fail(toy->verdict, "%s: expected %s, one line with \"%s\"; got %s, %d lines: %s",
                        when, ls_status_name(op->status), op->names, ls_status_name(status), lines,
                        text);
    }
}

/* Returns how many operations ended as they must. */
static int run_script(const ls_toy_script *script, int level, ls_verdict *out)
{
    int operations = 0;
    ls_toy_setup setup = script->setup;
    ls_toy toy;
    setup.level = level;
    if (!ls_toy_open(&toy, &setup, out)) {
        return operations;
    }
    for (int i = 0; script->op[i].kind != LS_TOY_END; i++) {
        const ls_toy_op *op = &script->op[i];
        LS_TEXT(when, 48, "O%d, operation %d", level, i + 1);
        if (op->kind == LS_TOY_AGAIN) {
            ls_toy_close(&toy);
            if (!ls_toy_open(&toy, &setup, out)) {
                return operations;
            }
            continue;
        }
        for (int k = 0; k < op->times || k == 0; k++, operations++) {
            if (op->names != NULL) {
                run_refused(&toy, op, when);
            } else {
                ls_toy_must(&toy, run_op(&toy, op, when), when);
            }
        }
    }
    ls_toy_close(&toy);
    return operations;
}

static void judge_script(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_toy_script *script = row->data;
    int operations = 0;
    (void)job;
    for (int level = 0; level < 4; level++) {
        if (script->levels == 0 ? level == script->setup.level
                                : (script->levels >> level & 1u) != 0) {
            operations += run_script(script, level, out);
        }
    }
    ls_verdict_pass(out, operations, "%s", script->shows);
}

void ls_toy_script_cases(const ls_case_settings *settings, ls_case_list *list,
                         const ls_toy_script *script, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ls_row row = {
            .requirement = script[i].requirement, .judge = judge_script, .data = &script[i]};
        ls_rows_format(list, settings, &row, "amp.%s", script[i].id);
    }
}
