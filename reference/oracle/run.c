#include "run.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

ls_run_noise ls_run_next_noise(ls_run *r)
{
    return (ls_run_noise){r->mode->noise_seed, ++r->arrays};
}

void ls_run_round_stored(ls_run *r, ls_bits_type type, ls_planes *planes)
{
    ls_run_store(type, ls_run_next_noise(r), ls_planes_count(planes), planes->value);
}

ls_status ls_run_allocate_like(const ls_run *r, int node, ls_planes *out)
{
    const ls_nettab_node *shape = &r->net->node[node];
    return ls_planes_allocate(r->samples, shape->height, shape->width, shape->channels, out);
}

ls_loops_shape ls_run_products_of(const ls_nettab_node *node)
{
    return node->kind == LS_NETTAB_LINEAR ? (ls_loops_shape){1, 1, 0}
                                          : (ls_loops_shape){node->kernel, node->stride, node->pad};
}

const double *ls_run_weights_of(ls_run *r, int param)
{
    const double *held = r->step->param + r->net->param[param].offset;
    if (!r->mode->ideal || r->step->level == 0) {
        return held;
    }
    memcpy(r->weight, held, (size_t)r->net->param[param].count * sizeof *held);
    ls_run_store(r->step->half, (ls_run_noise){0, 0}, r->net->param[param].count, r->weight);
    return r->weight;
}

/* ---- storing --------------------------------------------------------------------------------- */

enum { PARTS = 256, WORTH_THREADS = 1 << 15 };

double ls_run_square_sum(int64_t count, const double *value)
{
    double part[PARTS];
#pragma omp parallel for if (count > WORTH_THREADS)
    for (int p = 0; p < PARTS; p++) {
        double sum = 0;
        for (int64_t i = count * p / PARTS; i < count * (p + 1) / PARTS; i++) {
            sum += value[i] * value[i];
        }
        part[p] = sum;
    }
    double total = 0;
    for (int p = 0; p < PARTS; p++) {
        total += part[p];
    }
    return total;
}

/* splitmix64 (Steele, Lea, Flood 2014): a good mix of 64 bits. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void ls_run_store(ls_bits_type type, ls_run_noise noise, int64_t count, double *value)
{
    if (type == LS_BITS_F64 || count == 0) {
        return;
    }
    double rms = 0;
    uint64_t key = mix(noise.seed ^ mix(noise.array));
    if (noise.seed != 0) {
        rms = sqrt(ls_run_square_sum(count, value) / (double)count);
    }
#pragma omp parallel for if (count > WORTH_THREADS)
    for (int64_t i = 0; i < count; i++) {
        double x = value[i];
        if (noise.seed != 0) {
            double u = (double)(int64_t)mix(key ^ (uint64_t)i) * 0x1p-63;
            x += 0x1p-24 * (fabs(x) + rms) * u;
        }
        value[i] = ls_bits_round(type, x);
    }
}
