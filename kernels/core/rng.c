#include "rng.h"

#include <math.h>
#include <string.h>

#include "digest.h"
#include "log.h"

ls_rng_block ls_rng_philox(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    ls_rng_block block = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * block.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * block.word[2];
        ls_rng_block next = {
            {(uint32_t)(product1 >> 32) ^ block.word[1] ^ key[0], (uint32_t)product1,
             (uint32_t)(product0 >> 32) ^ block.word[3] ^ key[1], (uint32_t)product0}};
        block = next;
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return block;
}

uint64_t ls_rng_stream(const char *name)
{
    return ls_digest_update(LS_DIGEST_START, name, strlen(name));
}

float ls_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (float)(ls_rng_philox(seed, stream, index).word[0] >> 8) *
           5.9604644775390625e-8f; /* 2^-24 */
}

float ls_rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const double two_pi = 6.283185307179586476925;
    ls_rng_block block = ls_rng_philox(seed, stream, index);
    /* (word + 1) / 2^32 lies in (0, 1], so the logarithm is finite */
    double radius = sqrt(-2.0 * log(((double)block.word[0] + 1.0) * 2.3283064365386963e-10));
    return (float)(radius * cos(two_pi * (double)block.word[1] * 2.3283064365386963e-10));
}

uint32_t ls_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint32_t bound)
{
    LS_ASSERT(bound > 0);
    return (uint32_t)(((uint64_t)ls_rng_philox(seed, stream, index).word[0] * bound) >> 32);
}

enum { MT_SHIFT = 397 };

void ls_rng_torch_seed(ls_rng_torch *generator, uint64_t seed)
{
    generator->word[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < LS_RNG_TORCH_WORDS; i++) {
        uint32_t last = generator->word[i - 1];
        generator->word[i] = 1812433253u * (last ^ (last >> 30)) + i;
    }
    generator->next = LS_RNG_TORCH_WORDS;
}

uint32_t ls_rng_torch_draw(ls_rng_torch *generator)
{
    uint32_t *word = generator->word;
    if (generator->next == LS_RNG_TORCH_WORDS) {
        for (int i = 0; i < LS_RNG_TORCH_WORDS; i++) {
            uint32_t joined =
                (word[i] & 0x80000000u) | (word[(i + 1) % LS_RNG_TORCH_WORDS] & 0x7fffffffu);
            word[i] = word[(i + MT_SHIFT) % LS_RNG_TORCH_WORDS] ^ (joined >> 1) ^
                      ((joined & 1u) != 0 ? 0x9908b0dfu : 0u);
        }
        generator->next = 0;
    }
    uint32_t value = word[generator->next++];
    value ^= value >> 11;
    value ^= (value << 7) & 0x9d2c5680u;
    value ^= (value << 15) & 0xefc60000u;
    return value ^ (value >> 18);
}

float ls_rng_torch_uniform(ls_rng_torch *generator, double from, double to)
{
    float low = (float)from, high = (float)to;
    double unit = (double)(ls_rng_torch_draw(generator) & 0xffffffu) * 0x1p-24;
    return (float)(unit * (double)(high - low) + (double)low);
}

uint32_t ls_rng_torch_below(ls_rng_torch *generator, uint32_t bound)
{
    LS_ASSERT(bound > 0 && bound < (UINT32_C(1) << 28));
    return ls_rng_torch_draw(generator) % bound;
}

void ls_rng_permutation(uint64_t seed, int64_t count, int64_t *order)
{
    ls_rng_torch generator;
    ls_rng_torch_seed(&generator, seed);
    for (int64_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (int64_t i = 0; i + 1 < count; i++) {
        int64_t other = i + (int64_t)(ls_rng_torch_draw(&generator) % (uint64_t)(count - i));
        int64_t value = order[i];
        order[i] = order[other];
        order[other] = value;
    }
}
