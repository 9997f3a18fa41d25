/* Descriptions of devices for the real cuDNN, which then builds everything up to plans; only
 * execution needs the device. */
#ifndef LS_UNIT_CUDNN_DESCRIBED_H
#define LS_UNIT_CUDNN_DESCRIBED_H

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/conv/conv_internal.h"
#include "kernels/lowered.h"
#include "reference/model/model.h"

/* The backend's other files need a device. */
ls_status ls_cuda_check_dnn(cudnnStatus_t status, const char *call, const char *file, int line)
{
    if (status == CUDNN_STATUS_SUCCESS) {
        return LS_OK;
    }
    char text[512] = "";
    cudnnGetLastErrorString(text, sizeof text);
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, cudnnGetErrorString(status), text);
    return LS_ERR_INFRA;
}

/* From the data sheets and the CUDA programming guide's table of compute capabilities. */
typedef struct device {
    const char *name;
    int version, processors, shared_kb, l2_mb;
    double memory_gb;
} device;

static const device devices[] = {
    {"A100", 800, 108, 163, 40, 80},
    {"H200", 900, 132, 227, 60, 141},
    {"B200", 1000, 148, 227, 126, 180},
};

enum { DEVICES = sizeof devices / sizeof devices[0] };

/* The members are those that cuDNN 9.19 reports as missing, by name. */
static inline ls_status describe_device(const device *d, cudnnBackendDescriptor_t *out)
{
    char text[1024];
    int bytes = snprintf(
        text, sizeof text,
        "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
        "\"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"warpSize\": 32, "
        "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d, "
        "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
        "\"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, "
        "\"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
        "\"totalGlobalMem\": %.0f, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, "
        "\"l2CacheSize\": %d, \"cudaDeviceId\": 0, \"deviceVer\": %d, \"driverVer\": 13000, "
        "\"deviceName\": \"NVIDIA %s\"}",
        d->processors, d->shared_kb * 1024, d->memory_gb * 1e9, d->l2_mb << 20, d->version,
        d->name);
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, out));
    LS_CUDNN(cudnnBackendSetAttribute(*out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, bytes, text));
    LS_CUDNN(cudnnBackendFinalize(*out));
    return LS_OK;
}

static inline const device *find_device(const char *name)
{
    for (int i = 0; i < DEVICES; i++) {
        if (strcmp(devices[i].name, name) == 0) {
            return &devices[i];
        }
    }
    fprintf(stderr, "devices: A100 H200 B200; not %s\n", name);
    return NULL;
}

static inline size_t slot_bytes(void *context, const ls_plan_options *options, int channels,
                                int height, int width, bool is_input)
{
    (void)context;
    (void)is_input;
    return (size_t)options->batch * (size_t)channels * (size_t)height * (size_t)width *
           ls_dtype_bytes(options->activation);
}

/* A network as lowered by a backend. */
typedef struct lowered {
    ls_network network;
    ls_lower lower;
    ls_plan_options options;
} lowered;

static inline ls_status lower_network(const char *arch, int batch, int size, ls_dtype type,
                                      lowered *out)
{
    out->options =
        (ls_plan_options){.batch = batch, .height = size, .width = size, .activation = type};
    LS_TRY(ls_model_build(arch, 1000, size, &out->network));
    const ls_lower_backend backend = {.slot_bytes = slot_bytes};
    return ls_lower_create(&out->network, &out->options, &backend, &out->lower);
}

static inline void lowered_free(lowered *l)
{
    ls_lower_free(&l->lower);
    ls_model_free(&l->network);
}

/* The shape of operation `i` if it is a convolution, else NULL. `image`: the gradient of its input
 * is not needed. */
static inline const char *conv_at(const lowered *l, int i, ls_conv_shape *shape, bool *image)
{
    const ls_op *op = &l->lower.op[i];
    if (op->kind != LS_OP_CONV) {
        return NULL;
    }
    const ls_layer *layer = &l->network.layer[op->layer];
    const ls_slot *in = &l->lower.slot[op->in], *out = &l->lower.slot[op->out];
    *image = l->network.layer[in->layer].kind == LS_LAYER_INPUT;
    int stored = *image ? 16 / (int)ls_dtype_bytes(l->options.activation) : in->channels;
    *shape =
        (ls_conv_shape){l->options.batch, stored,     in->height,    in->width,     out->channels,
                        out->height,      out->width, layer->kernel, layer->stride, layer->pad};
    if (*image && l->options.activation != LS_F32 &&
        ls_lower_stem_blocks(&l->network, &l->options)) {
        *shape = ls_conv_stem_blocks(shape);
    }
    return layer->name;
}

#endif
