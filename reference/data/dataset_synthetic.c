#include "dataset.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/rng.h"

/* Each channel of class k is a product of two cosines with the class's frequencies and phases and
 * with the image's own strength, position and brightness, plus noise. One row and one column of
 * cosines make the image, so that a pixel costs one product and one hash. */

typedef struct synthetic {
    ls_dataset base;
    uint64_t seed;
    int classes, image_size, batch_size, largest_batch, rank, world;
} synthetic;

enum { FREQUENCIES = 4 }; /* 1 to 4 half cycles: coarse enough for an image of 16 pixels */

static float unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f; /* [0, 1) */
}

/* wave[i] = cos(pi (frequency (i + 0.5) / size + phase)) */
static void fill_wave(int size, double frequency, double phase, float *wave)
{
    const double pi = 3.14159265358979323846;
    for (int i = 0; i < size; i++) {
        wave[i] = (float)cos(pi * (frequency * ((double)i + 0.5) / (double)size + phase));
    }
}

/* A 32-bit mix (Wellons' "lowbias32"): a pixel's noise from its number and the image's key. */
static inline uint32_t mix(uint32_t value)
{
    value ^= value >> 16;
    value *= 0x7feb352du;
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ (value >> 16);
}

/* row[x] = light + strength * wave[x] + noise; noise is triangular on (-1, 1), deviation 0.41. */
static void fill_row(int size, float light, float strength, const float *wave, uint32_t key,
                     uint32_t first, float *row)
{
#pragma omp simd
    for (int x = 0; x < size; x++) {
        uint32_t word = mix((first + (uint32_t)x) ^ key);
        float noise = (float)((int32_t)(word >> 16) + (int32_t)(word & 0xffffu) - 65535) * 0x1p-16f;
        row[x] = light + strength * wave[x] + noise;
    }
}

void ls_dataset_synthetic_image(uint64_t seed, int64_t index, int classes, int size, float *waves,
                                float *input, int64_t *target)
{
    ls_rng_block own = ls_rng_philox(seed, ls_rng_stream("synthetic image"), (uint64_t)index);
    ls_rng_block more = ls_rng_philox(seed, ls_rng_stream("synthetic place"), (uint64_t)index);
    uint32_t kind = (uint32_t)(((uint64_t)own.word[0] * (uint64_t)classes) >> 32);
    float light = 0.5f * (unit(own.word[1]) - 0.5f);
    float strength = 0.75f + 0.75f * unit(own.word[2]);
    uint32_t key = own.word[3];
    double shift_x = 0.25 * (double)unit(more.word[0]);
    double shift_y = 0.25 * (double)unit(more.word[1]);
    float *across = waves, *down = waves + size;
    for (int channel = 0; channel < 3; channel++) {
        ls_rng_block look = ls_rng_philox(seed, ls_rng_stream("synthetic class"),
                                          (uint64_t)kind * 3 + (uint64_t)channel);
        double frequency_x = 1.0 + (double)(look.word[0] % FREQUENCIES);
        double frequency_y = 1.0 + (double)(look.word[1] % FREQUENCIES);
        fill_wave(size, frequency_x, shift_x + 2.0 * (double)unit(look.word[2]), across);
        fill_wave(size, frequency_y, shift_y + 2.0 * (double)unit(look.word[3]), down);
        for (int y = 0; y < size; y++) {
            uint32_t first = (uint32_t)((channel * size + y) * size);
            fill_row(size, light, strength * down[y], across, key, first, input + first);
        }
    }
    *target = (int64_t)kind;
}

static ls_status plan(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index)
{
    const synthetic *set = (const synthetic *)dataset;
    *epoch = 0;
    for (int i = 0; i < set->batch_size; i++) {
        index[i] = (batch * set->world + set->rank) * set->largest_batch + i;
    }
    return LS_OK;
}

static ls_status fill(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const synthetic *set = (const synthetic *)dataset;
    ls_dataset_synthetic_image(set->seed, item->index, set->classes, set->image_size, item->scratch,
                               item->input, item->target);
    return LS_OK;
}

static ls_status scratch_create(const ls_dataset *dataset, void **out)
{
    const synthetic *set = (const synthetic *)dataset;
    *out = malloc(2 * (size_t)set->image_size * sizeof(float));
    LS_MEMORY(*out != NULL);
    return LS_OK;
}

static void destroy(ls_dataset *dataset)
{
    free(dataset);
}

ls_status ls_dataset_synthetic_open(const ls_loader_options *options, ls_dataset **out)
{
    synthetic *set = malloc(sizeof *set);
    LS_MEMORY(set != NULL);
    *set = (synthetic){
        .base = {.items = options->batch_size,
                 .plan = plan,
                 .fill = fill,
                 .scratch_create = scratch_create,
                 .scratch_destroy = free,
                 .destroy = destroy},
        .seed = options->seed,
        .classes = options->num_classes,
        .image_size = options->image_size,
        .batch_size = options->batch_size,
        .largest_batch = options->largest_batch,
        .rank = options->rank,
        .world = options->world,
    };
    *out = &set->base;
    return LS_OK;
}
