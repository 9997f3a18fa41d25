/* The entry points of ls_oracle_cuda.so. */
#include "launch.h"

#include <stdio.h>

#include "loops.h"

static bool ready(char *why, int why_bytes)
{
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        snprintf(why, (size_t)why_bytes, "%s",
                 error != cudaSuccess ? cudaGetErrorString(error) : "no device");
        return false;
    }
    cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, 0) == cudaSuccess) {
        snprintf(why, (size_t)why_bytes, "%s", device.name);
    }
    return true;
}

extern "C" const ls_loops *ls_loops_entry(void)
{
    static const ls_loops loops = {LS_LOOPS_ABI,
                                   "cuda",
                                   ready,
                                   ls_products_cuda_forward,
                                   ls_products_cuda_input_grad,
                                   ls_products_cuda_weight_grad,
                                   ls_norm_cuda_forward,
                                   ls_norm_cuda_backward};
    return &loops;
}
