/* Activations of the oracle: doubles in the order sample, row, column, channel. The channels of
 * each pixel are padded with zeros to a multiple of 16, so that loops over channels consist of
 * whole vectors. */
#ifndef LS_ORACLE_PLANES_H
#define LS_ORACLE_PLANES_H

#include <stdint.h>

#include "kernels/core/status.h"

enum { LS_PLANES_LANES = 16 };

typedef struct ls_planes {
    double *value; /* NULL: not allocated */
    int samples, height, width, channels;
    int pitch; /* doubles per pixel: channels rounded up */
} ls_planes;

/* Zeroed memory for the shape; logs and returns LS_ERR_INFRA without memory. */
ls_status ls_planes_allocate(int samples, int height, int width, int channels, ls_planes *out);
void ls_planes_free(ls_planes *planes);

static inline int ls_planes_round_up(int count, int multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

static inline int64_t ls_planes_pixels(const ls_planes *planes)
{
    return (int64_t)planes->samples * planes->height * planes->width;
}

static inline int64_t ls_planes_count(const ls_planes *planes)
{
    return ls_planes_pixels(planes) * planes->pitch;
}

#endif
