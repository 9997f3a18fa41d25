#include "planes.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

ls_status ls_planes_allocate(int samples, int height, int width, int channels, ls_planes *out)
{
    ls_planes planes = {.samples = samples, .height = height, .width = width, .channels = channels};
    planes.pitch = ls_planes_round_up(channels, LS_PLANES_LANES);
    size_t bytes = (size_t)ls_planes_count(&planes) * sizeof(double);
    planes.value = aligned_alloc(64, bytes); /* a multiple of 16 doubles */
    LS_TRY_MEMORY(planes.value != NULL, "%zu bytes for %dx%dx%dx%d", bytes, samples, channels,
                  height, width);
    memset(planes.value, 0, bytes);
    *out = planes;
    return LS_OK;
}

void ls_planes_free(ls_planes *planes)
{
    free(planes->value);
    planes->value = NULL;
}
