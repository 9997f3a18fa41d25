#include "toy.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/json.h"
#include "reference/oracle/bits.h"

const ls_toy_poison ls_toy_clean = {-1, 0, 0.0f};

ls_amp_options ls_toy_options(const ls_toy_setup *setup)
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
    ls_amp_options options = ls_toy_options(setup);
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
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(dict, key);
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
