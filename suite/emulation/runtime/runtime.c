/* Devices and errors of the runtime. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulate.h"

static _Thread_local cudaError_t last_error;
static _Thread_local int device_now;

cudaError_t emulate_error(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

static int number(const char *name, int otherwise)
{
    const char *set = getenv(name);
    return set != NULL ? atoi(set) : otherwise;
}

static int driver_version(void)
{
    return number("LS_EMULATED_DRIVER", CUDART_VERSION);
}

static int capability(void)
{
    return number("LS_EMULATED_CAPABILITY", 90);
}

static int device_count(void)
{
    return number("LS_EMULATED_DEVICES", 8);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    if (driver_version() / 1000 < CUDART_VERSION / 1000) {
        return emulate_error(cudaErrorInsufficientDriver);
    }
    *count = device_count();
    return *count > 0 ? cudaSuccess : emulate_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= device_count()) {
        return emulate_error(cudaErrorInvalidDevice);
    }
    device_now = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_now;
    return cudaSuccess;
}

/* Properties of the device, as in a data sheet: small, so that work for several waves of blocks is
 * common. */
enum { PROCESSORS = 4 };

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    if (device < 0 || device >= device_count()) {
        return emulate_error(cudaErrorInvalidDevice);
    }
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated on the CPU, no GPU");
    for (int i = 0; i < 16; i++) {
        prop->uuid.bytes[i] = (char)(i < 15 ? 0xee : device);
    }
    prop->major = capability() / 10;
    prop->minor = capability() % 10;
    prop->multiProcessorCount = PROCESSORS;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->sharedMemPerBlock = 48 << 10;
    prop->totalGlobalMem = (size_t)64 << 30;
    prop->pciBusID = 0x10 + device;
    return cudaSuccess;
}

/* Every kernel was compiled for this device. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel)
{
    (void)kernel;
    memset(out, 0, sizeof *out);
    out->binaryVersion = out->ptxVersion = capability();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    if (device < 0 || device >= device_count()) {
        return emulate_error(cudaErrorInvalidDevice);
    }
    switch (attr) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability() / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = capability() % 10;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = PROCESSORS;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
    default:
        return emulate_error(cudaErrorInvalidValue);
    }
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    if (device < 0 || device >= device_count()) {
        return emulate_error(cudaErrorInvalidDevice);
    }
    snprintf(text, (size_t)bytes, "0000:%02X:00.0", 0x10 + device);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver_version();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

#define NAMED(error)  \
    {                 \
        error, #error \
    }

const char *cudaGetErrorName(cudaError_t error)
{
    static const struct {
        cudaError_t error;
        const char *name;
    } rows[] = {
        NAMED(cudaSuccess),
        NAMED(cudaErrorInvalidValue),
        NAMED(cudaErrorMemoryAllocation),
        NAMED(cudaErrorInvalidConfiguration),
        NAMED(cudaErrorNoDevice),
        NAMED(cudaErrorInvalidDevice),
        NAMED(cudaErrorInvalidResourceHandle),
        NAMED(cudaErrorIllegalState),
        NAMED(cudaErrorNotReady),
        NAMED(cudaErrorIllegalAddress),
        NAMED(cudaErrorLaunchFailure),
        NAMED(cudaErrorNotSupported),
        NAMED(cudaErrorStreamCaptureUnsupported),
        NAMED(cudaErrorStreamCaptureInvalidated),
        NAMED(cudaErrorStreamCaptureUnmatched),
        NAMED(cudaErrorStreamCaptureUnjoined),
        NAMED(cudaErrorStreamCaptureIsolation),
        NAMED(cudaErrorStreamCaptureImplicit),
        NAMED(cudaErrorCapturedEvent),
        NAMED(cudaErrorStreamCaptureWrongThread),
        NAMED(cudaErrorInsufficientDriver),
        NAMED(cudaErrorECCUncorrectable),
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].error == error) {
            return rows[i].name;
        }
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}
