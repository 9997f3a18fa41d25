#include "settle.h"

#include <math.h>
#include <stddef.h>

enum { CHUNK = 4096 };

static int64_t chunk_end(int64_t chunk, int64_t count)
{
    int64_t end = (chunk + 1) * CHUNK;
    return end < count ? end : count;
}

double ls_settle_square_sum(int64_t count, const double *value)
{
    double total = 0;
    int64_t chunks = (count + CHUNK - 1) / CHUNK;
#pragma omp parallel for ordered schedule(static, 1)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        double sum = 0;
        for (int64_t i = chunk * CHUNK; i < chunk_end(chunk, count); i++) {
            sum += value[i] * value[i];
        }
#pragma omp ordered
        total += sum;
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

void ls_settle_values(ls_bits_type type, ls_settle_noise noise, int64_t count, double *value)
{
    if (type == LS_BITS_F64 || count == 0) {
        return;
    }
    double rms = 0;
    uint64_t key = mix(noise.seed ^ mix(noise.array));
    if (noise.seed != 0) {
        rms = sqrt(ls_settle_square_sum(count, value) / (double)count);
    }
#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        double x = value[i];
        if (noise.seed != 0) {
            double u = (double)(int64_t)mix(key ^ (uint64_t)i) * 0x1p-63;
            x += 0x1p-24 * (fabs(x) + rms) * u;
        }
        value[i] = ls_bits_round(type, x);
    }
}
