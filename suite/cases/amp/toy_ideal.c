#include "toy_ideal.h"

#include <string.h>

#include "reference/oracle/bits.h"

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

void ls_toy_ideal_expect(ls_toy *toy, int model, const ls_toy_ideal *m, const char *when,
                         ls_verdict *out)
{
    float weight[4];
    for (int i = 0; i < 4; i++) {
        weight[i] = (float)m->copy[i / 2][i % 2];
    }
    ls_toy_expect(toy, model, weight, when, out);
}

void ls_toy_ideal_blocks(ls_toy *toy, ls_toy_ideal *m, int models, int count)
{
    static const int only[] = {0};
    for (int k = 0; k < count; k++) {
        ls_toy_begin(toy, 0, only, 1, false);
        ls_toy_backward(toy, models == 2 ? 3u : 1u, 1.0f, ls_toy_clean);
        ls_status status = ls_toy_end(toy);
        ls_toy_must(toy, status, "ls_toy_end");
        for (int i = 0; i < models; i++) {
            ls_toy_ideal_backward(&m[i], 4.0);
        }
    }
}
