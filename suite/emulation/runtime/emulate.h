/* A CUDA device emulated on the CPU, for tests: the runtime's functions with their real prototypes,
 * streams as queues of work, graphs, and kernels run block after block with their threads as
 * fibers. Other files of this folder emulate cuDNN, cuBLASLt and NCCL on the same queues.
 *
 * Environment:
 *   LS_EMULATED_DEVICES=N       how many devices there are [8]; 0: cudaErrorNoDevice
 *   LS_EMULATED_DRIVER=12020    the driver is for that CUDA; older than the toolkit's major
 *                               version it is insufficient
 *   LS_EMULATED_CAPABILITY=75   compute capability 7.5 [90]
 *   LS_EMULATED_LATE=1          work runs when a caller waits for it, not when it is enqueued; a
 *                               larger number is the seed of a draw: now and then all work of some
 *                               stream runs, and a graph runs its branches in another order
 *   LS_EMULATED_GUARD=1         device memory is out of the host's reach while no work runs
 *   LS_EMULATED_ORDER=backward  blocks, and threads of a block, begin in the opposite order; a
 *                               number is the seed of an order that is drawn, also of threads that
 *                               go on after they have waited
 *   LS_EMULATED_UNRECORDED=W    W cannot be recorded into a graph: convolutions of pass forward,
 *                               data or weights, which wait for the stream; nccl's operations; the
 *                               end of a recording, or its instantiate. W:R: on the rank R
 *   LS_EMULATED_PEDANTIC=0      pedantic products with an epilogue are an invalid value
 *   LS_EMULATED_CONV_WRONG=P:W  convolutions of pass P (forward, data, weights) have W wrong: the
 *                               last element, or a tile of a sixty-fourth. beta: sums leave out
 *                               what they should be added to
 *   LS_EMULATED_NETWORK=IB      NCCL's log says that network [Socket]
 *   LS_EMULATED_FLAGS=all       every algorithm of cuBLASLt lists all kinds of arithmetic, every
 *                               engine of cuDNN a note of a newer library
 *   LS_EMULATED_CONV_WRONG=sums:W
 *                               engines of graphs that also sum the result's channels have W wrong:
 *                               `unrounded` values are summed, not the stored ones; `tile`: the
 *                               last rows are left out; `last`, `square`: one sum of the last
 *                               channel; `result`: the last element; `stale`: from the second
 *                               execution with the same pointers on the sums are left alone
 *   LS_EMULATED_CONV_WRONG=gate:W
 *                               engines of gradients that go on into ReLU and batch norm: `mask`:
 *                               every element passes; `result`: the last element; `tile`: a
 *                               sixty-fourth of them; `last`, `weighted`: one sum of the last
 *                               channel; `rows`: the last ones are left out of the sums;
 *                               `unrounded` values are summed, not the stored ones; `stale`: from
 *                               the second execution with the same pointers on the sums are left
 *                               alone; `scale`: then the scale is that of the first one. At
 *                              joins `other`: the second gradient is not added; `residual`: the
 *                              ReLU is that of the norm alone; `second`: the last weighted sum of
 *                              the second norm. `ties`, which is no mistake: near 0 the ReLU
 * decides otherwise LS_EMULATED_CONV_WRONG=apply:W engines that apply a norm before the product
 * (apply-forward:W, apply-weights:W: of that pass): `relu`: values below 0 pass; `padding` is
 * applied, too; `last`: the last element of the operand; `twice`: the scaled x is rounded, too,
 * before the bias is added; `stale`: from the second execution with the same pointers on scale and
 * bias are those of the first LS_EMULATED_UNFUSED=K       no engine for graphs of more than a KxK
 * convolution (all: any); K:R: on the rank R LS_EMULATED_UNADDED=K       no engine adds
 * convolutions of kernels KxK (all: any) to old values
 */
#ifndef LS_EMULATE_H
#define LS_EMULATE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Work of a stream. False: not finished (it waits for another process), call again. Runs while
 * device memory is accessible; must not call the runtime. */
typedef bool emulate_work(void *arguments);

/* Enqueues work with a copy of its arguments; while the stream is being captured it is recorded
 * into the graph instead and runs at each launch, with the same arguments. */
cudaError_t emulate_enqueue(cudaStream_t stream, emulate_work *work, const void *arguments,
                            size_t bytes);
/* Whether [memory, memory + bytes) lies in one allocation of the device. */
bool emulate_is_device(const void *memory, size_t bytes);
/* The same for memory of cudaHostAlloc. */
bool emulate_is_pinned(const void *memory, size_t bytes);
/* cudaSuccess, or cudaErrorStreamCaptureUnsupported (which invalidates the capture) while a stream
 * is being captured: for functions that are forbidden then. */
cudaError_t emulate_not_capturing(void);
/* Whether LS_EMULATED_UNRECORDED names this. */
bool emulate_unrecorded(const char *what);
/* Runs all work that can run, on all streams. */
void emulate_progress(void);
/* Keeps the error for cudaGetLastError, and returns it. */
cudaError_t emulate_error(cudaError_t error);
/* Reports a mistake of the code under test that a device would punish with wrong results or worse:
 * prints it with its place (kernel, block, thread) and aborts. */
void emulate_abort(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- kernels: what launch.h is made of ------------------------------------------------------- */

typedef struct emulate_thread {
    uint3 index;
    unsigned flat, warp, lane;
    int waits; /* reason */
    int kind;  /* of the warp's operation */
    unsigned mask;
    uint64_t bits, result; /* input and result of the operation */
    int operand, width;
    void *fiber;
    bool begun, exited;
    bool waited; /* for the kernel before; in kernels that start early */
} emulate_thread;

typedef struct emulate_kernel {
    const char *name;
    dim3 grid, block;
    void (*run)(const void *arguments);
    const void *arguments;
    uint3 block_index;
    emulate_thread *now; /* the running thread */
    bool early;          /* launched to start before the kernel before it has ended */
} emulate_kernel;

/* The running kernel of this process; one at a time. */
emulate_kernel *emulate_running(void);
/* `early`: programmatic dependent launch; aborts unless another kernel was launched directly before
 * on that stream. */
cudaError_t emulate_launch(const char *name, bool early, dim3 grid, dim3 block, cudaStream_t stream,
                           void (*run)(const void *arguments), const void *arguments, size_t bytes);

/* Launches of the kernel of that name so far, recorded ones included; NULL: of all kernels. */
int64_t emulate_launches(const char *name);

enum { EMULATE_DOWN, EMULATE_XOR, EMULATE_INDEX, EMULATE_BALLOT, EMULATE_SYNC_WARP };

void emulate_sync_threads(void);
/* Of a kernel that starts early: no thread may touch memory of the device, return or let the next
 * kernel start before it has waited for the kernel before. In other kernels they do nothing. */
void emulate_launch_wait(void);
void emulate_launch_next(void);
uint64_t emulate_warp(int kind, unsigned mask, uint64_t bits, int operand, int width);
/* The block's shared array with that key; initially NaN bytes, guarded on both sides. */
void *emulate_shared(const void *key, size_t bytes, size_t alignment);

/* memory.c */
void emulate_memory_open(void);
void emulate_memory_close(void);
/* While kernels run: takes all memory of the device away from them, and gives it back. An access in
 * between ends with emulate_abort(text). */
void emulate_memory_forbid(const char *text);
void emulate_memory_permit(void);

#ifdef __cplusplus
}
#endif
#endif
