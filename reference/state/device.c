#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "harness/machine/machine.h"
#include "kernels/core/half.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"

ls_status ls_device_open(const char *name, const ls_backend_options *options, ls_device *out)
{
    ls_device device = {0};
    name = ls_bus_choose(name);
    /* Must come before libgomp is loaded with the backend: by default its threads spin for
     * milliseconds at the end of every loop, and on a busy machine that takes time from the thread
     * that they wait for. Two threads, ResNet-18 at 32: 300000 (libgomp's) 1110 img/s alone and 12
     * next to four busy loops; 10000: 1100 and 90 to 260; 1000: 360 and 70 to 140. */
    setenv("GOMP_SPINCOUNT", "10000", 0);
    LS_TRY(ls_load_backend(name, &device.api));
    LS_TRY(device.api->open(options, &device.backend));
    ls_status status = device.api->stream_create(device.backend, &device.stream);
    if (status != LS_OK) {
        device.api->close(device.backend);
        return status;
    }
    device.api->describe(device.backend, &device.info);
    *out = device;
    return LS_OK;
}

void ls_device_close(ls_device *device)
{
    if (device->api == NULL) {
        return;
    }
    device->api->stream_destroy(device->stream);
    device->api->close(device->backend);
    memset(device, 0, sizeof *device);
}

bool ls_device_cpu_has(ls_dtype half, bool asked)
{
    ls_device cpu;
    const ls_backend_options options = {.threads = 1, .local_ranks = 1, .native_half = asked};
    if (ls_device_open("cpu", &options, &cpu) != LS_OK) {
        return false;
    }
    bool emulated = ls_device_emulates(&cpu.info, half);
    ls_device_close(&cpu);
    return !emulated;
}

ls_status ls_device_read(const ls_device *device, void *host, const void *from, int64_t bytes)
{
    LS_TRY(device->api->copy_out(device->backend, device->stream, host, from, bytes));
    return device->api->stream_wait(device->stream);
}

ls_status ls_device_read_f32(const ls_device *device, const ls_tensor *tensor, float *host)
{
    LS_ASSERT(tensor->dtype == LS_F32 || tensor->dtype == LS_F16 || tensor->dtype == LS_BF16);
    /* 16-bit values are read into the upper half of the result and widened upwards in place */
    bool half = tensor->dtype != LS_F32;
    uint16_t *narrow = (uint16_t *)(void *)host + (half ? tensor->count : 0);
    LS_TRY(ls_device_read(device, half ? (void *)narrow : (void *)host, tensor->data,
                          (int64_t)ls_tensor_bytes(tensor)));
    for (int64_t i = 0; half && i < tensor->count; i++) {
        uint16_t bits;
        memcpy(&bits, &narrow[i], sizeof bits);
        float value =
            tensor->dtype == LS_F16 ? ls_half_fp16_to_f32(bits) : ls_half_bf16_to_f32(bits);
        memcpy(&host[i], &value, sizeof value);
    }
    return LS_OK;
}

ls_status ls_device_write_f32(const ls_device *device, const ls_tensor *tensor, const float *host)
{
    LS_ASSERT(tensor->dtype == LS_F32 || tensor->dtype == LS_F16 || tensor->dtype == LS_BF16);
    const void *from = host;
    uint16_t *narrow = NULL;
    if (tensor->dtype != LS_F32) {
        narrow = ls_list_make((size_t)tensor->count, sizeof *narrow);
        for (int64_t i = 0; i < tensor->count; i++) {
            narrow[i] = tensor->dtype == LS_F16 ? ls_half_f32_to_fp16(host[i])
                                                : ls_half_f32_to_bf16(host[i]);
        }
        from = narrow;
    }
    ls_status status = device->api->copy_in(device->backend, device->stream, tensor->data, from,
                                            (int64_t)ls_tensor_bytes(tensor));
    LS_THEN(status, device->api->stream_wait(device->stream));
    free(narrow);
    return status;
}

ls_status ls_device_write_float(const ls_device *device, const ls_tensor *tensor, ls_dtype dtype,
                                const void *host, float *scratch)
{
    const uint16_t *half = host;
    if (dtype == LS_F32) {
        return ls_device_write_f32(device, tensor, host);
    }
    for (int64_t i = 0; i < tensor->count; i++) {
        scratch[i] = dtype == LS_F16 ? ls_half_fp16_to_f32(half[i]) : ls_half_bf16_to_f32(half[i]);
    }
    return ls_device_write_f32(device, tensor, scratch);
}
