/* Types and functions shared by the CUDA backend. One `ls_backend` is one GPU: its handles and the
 * options it was opened with. C files call the runtime and the libraries; .cu files hold kernels
 * and the functions that launch them (ops.h), which take the native stream. */
#ifndef LS_CUDA_BACKEND_H
#define LS_CUDA_BACKEND_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "kernels/kernels.h"
#include "check.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ls_multi_tables; /* multi_table.cu: tables of tensor lists, kept on the device */
struct ls_conv_plans;   /* conv_plans.c: engines of convolutions found so far */

struct ls_backend {
    int device;                   /* CUDA's index */
    int major, minor, processors; /* compute capability, multiprocessors */
    char name[96];                /* "NVIDIA H200 (GPU-uuid)" */
    char numa[64];                /* "NUMA node 1, 32 cores" */
    bool deterministic, tf32;
    bool benchmark;          /* of the latest plan (ls_plan_options) */
    int64_t workspace_limit; /* bytes that one product may use */
    cudnnHandle_t dnn;
    cublasLtHandle_t blas;
    cudaStream_t copy; /* host to device, concurrent with the computing stream */
    struct ls_multi_tables *tables;
    struct ls_conv_plans *plans; /* created at the first use; NULL before */
    /* A description of an absent device: plans of convolutions are then built for it, without dnn,
     * and cannot be executed. NULL except in a test. */
    cudnnBackendDescriptor_t described;
    ls_status (*on_wait)(void *context, double waited_s); /* called while the host waits, or NULL */
    void *on_wait_context;
};

struct ls_stream {
    ls_backend *backend;
    cudaStream_t native;
};

struct ls_event {
    ls_backend *backend;
    cudaEvent_t native;
};

struct ls_graph {
    cudaGraphExec_t native;
};

/* Like ls_cuda_check, for the other libraries. */
ls_status ls_cuda_check_dnn(cudnnStatus_t status, const char *call, const char *file, int line);
ls_status ls_cuda_check_blas(cublasStatus_t status, const char *call, const char *file, int line);

#define LS_CUDNN(call) LS_TRY(ls_cuda_check_dnn((call), #call, __FILE__, __LINE__))
#define LS_CUBLAS(call) LS_TRY(ls_cuda_check_blas((call), #call, __FILE__, __LINE__))

ls_backend_entry_fn ls_backend_entry;

/* numa.c: binds the calling thread, and those it starts later, to the cores of the memory node of
 * the PCI device (address as CUDA prints it) that they may use, and prefers the node's memory. Does
 * nothing if the node is unknown. `text` receives the result: "NUMA node 1, 32 cores", or the
 * reason for doing nothing. LS_SYSFS replaces /sys. */
void ls_numa_bind(const char *pci, char *text, size_t bytes);

/* cuda_memory.c: device memory, 256-byte aligned and zeroed; pinned host memory. */
ls_status ls_cuda_take(int64_t bytes, const char *purpose, void **out);
void ls_cuda_give(void *memory);
/* Values from -0.5 to 0.5 for a timing, f32, f16 or bf16: on zeros a processor draws less power and
 * clocks higher. Waits for the stream. */
ls_status ls_cuda_fill_pattern(cudaStream_t stream, void *memory, ls_dtype type, int64_t count);
ls_status ls_cuda_take_host(int64_t bytes, const char *purpose, void **out);
void ls_cuda_give_host(void *memory);

/* cuda_wait.c: the host waits for the device and calls the hook (kernels.h, set_wait_hook). */
ls_status ls_cuda_wait_event(ls_backend *backend, cudaEvent_t event);
ls_status ls_cuda_wait_stream(ls_backend *backend, cudaStream_t stream);
/* Records the event on the stream; captured into a graph, each launch records it. */
ls_status ls_cuda_mark_event(cudaStream_t stream, cudaEvent_t event);

#ifdef __cplusplus
}
#endif
#endif
