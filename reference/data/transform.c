#include "transform.h"

#include <math.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/rng.h"

/* torchvision: RandomResizedCrop(scale=(0.08, 1), ratio=(3/4, 4/3)), ten tries; ImageNet's
 * statistics. */
enum { TRIES = 10 };
static const double LEAST_RATIO = 3.0 / 4.0, MOST_RATIO = 4.0 / 3.0;
static const float MEAN[3] = {0.485f, 0.456f, 0.406f}, DEVIATION[3] = {0.229f, 0.224f, 0.225f};

bool ls_transform_rectangle(double area, double ratio, int width, int height, int *crop_width,
                            int *crop_height)
{
    double w = nearbyint(sqrt(area * ratio)), h = nearbyint(sqrt(area / ratio));
    if (!(w > 0 && w <= width && h > 0 && h <= height)) {
        return false;
    }
    *crop_width = (int)w;
    *crop_height = (int)h;
    return true;
}

ls_transform_crop ls_transform_fallback(int width, int height)
{
    ls_transform_crop crop = {.height = height, .width = width};
    double ratio = (double)width / (double)height;
    if (ratio < LEAST_RATIO) {
        crop.height = (int)nearbyint(width / LEAST_RATIO);
    } else if (ratio > MOST_RATIO) {
        crop.width = (int)nearbyint(height * MOST_RATIO);
    }
    crop.top = (height - crop.height) / 2;
    crop.left = (width - crop.width) / 2;
    return crop;
}

ls_transform_resize ls_transform_centre(int width, int height, int shorter, int size)
{
    LS_ASSERT(size <= shorter);
    /* int(size * long / short), in Python's division of whole numbers */
    double longer = (double)((int64_t)shorter * (width > height ? width : height)) /
                    (double)(width > height ? height : width);
    ls_transform_resize to = {.width = width > height ? (int)longer : shorter,
                              .height = width > height ? shorter : (int)longer};
    to.left = (int)nearbyint((to.width - size) / 2.0);
    to.top = (int)nearbyint((to.height - size) / 2.0);
    return to;
}

uint32_t ls_transform_key(uint64_t seed, int64_t epoch, int64_t index)
{
    return (uint32_t)((seed * 1000003 + (uint64_t)epoch) * 1000003 + (uint64_t)index);
}

ls_transform_crop ls_transform_draw(uint64_t seed, int64_t epoch, int64_t index, int width,
                                    int height)
{
    /* torch.log of the ratios in f32, as RandomResizedCrop takes them: the first is the f32 above
     * the nearest */
    const double least = -0x1.26962p-2, most = 0x1.269624p-2;
    ls_rng_torch generator;
    ls_rng_torch_seed(&generator,
                      ls_transform_key(seed, LS_PLANT(crops_alike_in_epochs, epoch, 0), index));
    ls_transform_crop crop = ls_transform_fallback(width, height);
    for (int try = 0; try < TRIES; try++) {
        double area =
            (double)width * (double)height * (double)ls_rng_torch_uniform(&generator, 0.08, 1.0);
        double ratio = (double)(float)exp((double)ls_rng_torch_uniform(&generator, least, most));
        int w, h;
        if (ls_transform_rectangle(area, ratio, width, height, &w, &h)) {
            crop.top = (int)ls_rng_torch_below(&generator, (uint32_t)(height - h + 1));
            crop.left = (int)ls_rng_torch_below(&generator, (uint32_t)(width - w + 1));
            crop.height = h;
            crop.width = w;
            break;
        }
    }
    crop.flip = ls_rng_torch_uniform(&generator, 0.0, 1.0) < 0.5f;
    return crop;
}

ls_transform_crop ls_transform_draw_padded(uint64_t seed, int64_t epoch, int64_t index, int size,
                                           int pad)
{
    ls_rng_torch generator;
    ls_rng_torch_seed(&generator, ls_transform_key(seed, epoch, index));
    ls_transform_crop crop = {.height = size, .width = size};
    uint32_t places = (uint32_t)(2 * pad + LS_PLANT(cifar_last_place_lost, 1, 0));
    crop.top = (int)ls_rng_torch_below(&generator, places);
    crop.left = (int)ls_rng_torch_below(&generator, places);
    crop.flip = ls_rng_torch_uniform(&generator, 0.0, 1.0) < 0.5f;
    return crop;
}

void ls_transform_apply_padded(const uint8_t *planes, int size, int pad,
                               const ls_transform_crop *crop, uint8_t *out)
{
    for (int row = 0; row < 3 * size; row++) {
        int plane = row / size, y = row % size + crop->top - pad;
        for (int x = 0; x < size; x++) {
            int at = (crop->flip ? size - 1 - x : x) + crop->left - pad;
            bool inside = y >= 0 && y < size && at >= 0 && at < size;
            *out++ = inside ? planes[(plane * size + y) * size + at] : 0;
        }
    }
}

ls_status ls_transform_apply(ls_resample_scratch *scratch, const uint8_t *rgb, int row_pixels,
                             const ls_transform_crop *crop, int size, uint8_t *out)
{
    const ls_resample_job job = {.rgb = rgb,
                                 .row_pixels = row_pixels,
                                 .left = crop->left,
                                 .top = crop->top,
                                 .width = crop->width,
                                 .height = crop->height,
                                 .to_width = size,
                                 .to_height = size,
                                 .window_width = size,
                                 .window_height = size,
                                 .flip = crop->flip};
    return ls_resample(scratch, &job, out);
}

ls_status ls_transform_apply_centre(ls_resample_scratch *scratch, const uint8_t *rgb, int width,
                                    int height, int shorter, int size, uint8_t *out)
{
    ls_transform_resize to = ls_transform_centre(width, height, shorter, size);
    const ls_resample_job job = {.rgb = rgb,
                                 .row_pixels = width,
                                 .width = width,
                                 .height = height,
                                 .to_width = to.width,
                                 .to_height = to.height,
                                 .window_left = to.left,
                                 .window_top = to.top,
                                 .window_width = size,
                                 .window_height = size};
    return ls_resample(scratch, &job, out);
}

void ls_transform_statistics(float mean[3], float deviation[3])
{
    memcpy(mean, MEAN, sizeof MEAN);
    memcpy(deviation, DEVIATION, sizeof DEVIATION);
}

void ls_transform_normalise(const uint8_t *byte, int64_t first, int64_t count, int64_t pixels,
                            float *out)
{
    for (int64_t i = 0; i < count;) {
        int channel = (int)((first + i) / pixels % 3);
        int64_t left = pixels - (first + i) % pixels, end = left < count - i ? i + left : count;
        for (; i < end; i++) {
            out[i] = ((float)byte[i] / 255.0f - MEAN[channel]) / DEVIATION[channel];
        }
    }
}
