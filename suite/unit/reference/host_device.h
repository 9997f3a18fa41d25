/* Test helper: the part of a backend that moves and scales tensors, in plain host memory. Events
 * and streams are tokens. */
#ifndef LS_UNIT_HOST_DEVICE_H
#define LS_UNIT_HOST_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "reference/state/device.h"

static inline ls_status host_memory_alloc(ls_backend *backend, int64_t bytes, const char *purpose,
                                          void **out)
{
    (void)backend, (void)purpose;
    size_t padded = ((size_t)bytes + 63) / 64 * 64;
    *out = aligned_alloc(64, padded);
    LS_ASSERT(*out != NULL);
    memset(*out, 0, padded);
    return LS_OK;
}

static inline void host_memory_free(ls_backend *backend, void *memory)
{
    (void)backend;
    free(memory);
}

static inline ls_status host_copy(ls_backend *backend, ls_stream *stream, void *to,
                                  const void *from, int64_t bytes)
{
    (void)backend, (void)stream;
    memcpy(to, from, (size_t)bytes);
    return LS_OK;
}

static inline ls_status host_stream_wait(ls_stream *stream)
{
    (void)stream;
    return LS_OK;
}

static inline ls_status host_event_create(ls_backend *backend, ls_event **out)
{
    (void)backend;
    *out = malloc(1);
    return LS_OK;
}

static inline void host_event_destroy(ls_event *event)
{
    free(event);
}

static inline ls_status host_event_record(ls_event *event, ls_stream *stream)
{
    (void)event, (void)stream;
    return LS_OK;
}

static inline float host_get(const ls_tensor *tensor, int64_t i)
{
    const char *at = (const char *)tensor->data + (size_t)i * ls_dtype_bytes(tensor->dtype);
    uint16_t bits;
    float value;
    if (tensor->dtype == LS_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&bits, at, sizeof bits);
    return tensor->dtype == LS_F16 ? ls_half_fp16_to_f32(bits) : ls_half_bf16_to_f32(bits);
}

static inline void host_set(const ls_tensor *tensor, int64_t i, float value)
{
    char *at = (char *)tensor->data + (size_t)i * ls_dtype_bytes(tensor->dtype);
    if (tensor->dtype == LS_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    uint16_t bits =
        tensor->dtype == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
    memcpy(at, &bits, sizeof bits);
}

static inline ls_status host_convert(ls_backend *backend, ls_stream *stream, ls_tensor to,
                                     ls_tensor from, float factor)
{
    (void)backend, (void)stream;
    LS_ASSERT(to.count == from.count);
    for (int64_t i = 0; i < to.count; i++) {
        host_set(&to, i, host_get(&from, i) * factor);
    }
    return LS_OK;
}

static inline ls_status host_scale(ls_backend *backend, ls_stream *stream, ls_tensor tensor,
                                   float factor)
{
    return host_convert(backend, stream, tensor, tensor, factor);
}

static const ls_backend_api HOST_API = {
    .abi = LS_BACKEND_ABI,
    .name = "host",
    .memory_alloc = host_memory_alloc,
    .memory_free = host_memory_free,
    .copy_in = host_copy,
    .copy_out = host_copy,
    .stream_wait = host_stream_wait,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .convert = host_convert,
    .scale = host_scale,
};

static inline ls_device host_device(void)
{
    return (ls_device){.api = &HOST_API, .info = {.device = "host", .host_memory = true}};
}

#endif
