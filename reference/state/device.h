/* A rank's device: the backend's table, the opened device, its one compute stream, and copies
 * between the host and tensors on it. */
#ifndef LS_DEVICE_H
#define LS_DEVICE_H

#include "kernels/kernels.h"

typedef struct ls_device {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    ls_backend_info info;
} ls_device;

/* name: "cpu", "cuda" or "auto", which ls_bus_choose decides. LS_ERR_INFRA, one line, if backend or
 * device cannot be opened. */
ls_status ls_device_open(const char *name, const ls_backend_options *options, ls_device *out);
void ls_device_close(ls_device *device);

/* Whether the device computes products of that 16-bit type in f32. */
static inline bool ls_device_emulates(const ls_backend_info *info, ls_dtype half)
{
    return half == LS_F16 ? info->f16_emulated : info->bf16_emulated;
}

/* How the device computes products of that 16-bit type, "bf16 on AMX"; "" where it does not say. */
static inline const char *ls_device_products(const ls_backend_info *info, ls_dtype half)
{
    return half == LS_F16 ? info->f16_products : info->bf16_products;
}

/* Whether the CPU backend multiplies that 16-bit type on the processor's units for it, by itself or
 * (asked) with --half-math native; false without the backend. Opens and closes it. */
bool ls_device_cpu_has(ls_dtype half, bool asked);

/* Copies device memory to the host and waits for it. */
ls_status ls_device_read(const ls_device *device, void *host, const void *from, int64_t bytes);
/* A named range of the host's work, for profilers; ranges may nest. */
static inline void ls_device_range_push(const ls_device *device, const char *name)
{
    if (device->api->range_push != NULL) {
        device->api->range_push(device->backend, name);
    }
}

static inline void ls_device_range_pop(const ls_device *device)
{
    if (device->api->range_pop != NULL) {
        device->api->range_pop(device->backend);
    }
}

/* A tensor's elements as f32 (exact for 16-bit types); host: [tensor->count]. Waits. */
ls_status ls_device_read_f32(const ls_device *device, const ls_tensor *tensor, float *host);
/* Host f32 into a tensor of any float type, rounded once; waits, so `host` may be reused. */
ls_status ls_device_write_f32(const ls_device *device, const ls_tensor *tensor, const float *host);
/* The same of host data in f32, fp16 or bf16; scratch: [tensor->count]. */
ls_status ls_device_write_float(const ls_device *device, const ls_tensor *tensor, ls_dtype dtype,
                                const void *host, float *scratch);

#endif
