/* The names of launch.h for kernels on the CPU. */
#ifndef LS_EMULATED_LAUNCH_H
#define LS_EMULATED_LAUNCH_H

#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#include "emulate.h"

#define LS_KERNEL static void
#define LS_DEVICE static inline
#define LS_HOST_DEVICE static inline
#define LS_UNIFIED(type) type

#define threadIdx (emulate_running()->now->index)
#define blockIdx (emulate_running()->block_index)
#define blockDim (emulate_running()->block)
#define gridDim (emulate_running()->grid)

#define LS_SHARED(type, name, count)  \
    static const char name##_key = 0; \
    type(&name)[count] =              \
        *(type(*)[count])emulate_shared(&name##_key, sizeof(type) * (count), alignof(type))

#define __syncthreads() emulate_sync_threads()
#define __threadfence() ((void)0)

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulate_warp(EMULATE_SYNC_WARP, mask, 0, 0, 32);
}

template <typename T>
static inline T emulate_shuffle(int kind, unsigned mask, T value, int operand, int width)
{
    static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "shuffles take numbers");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emulate_warp(kind, mask, bits, operand, width);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    return emulate_shuffle(EMULATE_DOWN, mask, value, (int)delta, width);
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    return emulate_shuffle(EMULATE_XOR, mask, value, lanes, width);
}

template <typename T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    return emulate_shuffle(EMULATE_INDEX, mask, value, lane, width);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return (unsigned)emulate_warp(EMULATE_BALLOT, mask, predicate != 0, 0, 32);
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

/* Threads run one at a time. */
template <typename T> static inline T atomicOr(T *at, T value)
{
    T before = *at;
    *at = before | value;
    return before;
}

template <typename T> static inline T atomicAdd(T *at, T value)
{
    static_assert(std::is_integral<T>::value, "a sum of floats by atomics depends on their order");
    T before = *at;
    *at = before + value;
    return before;
}

template <typename T> static inline T atomicMin(T *at, T value)
{
    T before = *at;
    *at = value < before ? value : before;
    return before;
}

template <typename T> static inline T atomicMax(T *at, T value)
{
    T before = *at;
    *at = value > before ? value : before;
    return before;
}

/* Counts up to `limit` and then from 0 on. */
static inline unsigned atomicInc(unsigned *at, unsigned limit)
{
    unsigned before = *at;
    *at = before >= limit ? 0 : before + 1;
    return before;
}

template <typename T> static inline T __ldcg(const T *at)
{
    return *at;
}

static inline void ls_vector_check(const void *memory)
{
    if (((uintptr_t)memory & 15) != 0) {
        emulate_abort("a vector of 16 bytes at address %p, which is not aligned to 16", memory);
    }
}

/* The kernel and its arguments, converted to its parameters' types, as one block of bytes. */
template <typename... P> struct emulate_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    static void run(const void *memory)
    {
        const emulate_call *call = (const emulate_call *)memory;
        std::apply(call->kernel, call->arguments);
    }
};

template <typename... P, typename... A>
static inline cudaError_t emulate_start(const char *name, bool early, void (*kernel)(P...),
                                        dim3 grid, dim3 block, cudaStream_t stream, A... arguments)
{
    static_assert(sizeof...(P) == sizeof...(A), "a kernel takes as many arguments as it has");
    static_assert((std::is_trivially_copyable<P>::value && ...), "arguments are copied as bytes");
    emulate_call<P...> call{kernel, std::tuple<P...>((P)arguments...)};
    return emulate_launch(name, early, grid, block, stream, emulate_call<P...>::run, &call,
                          sizeof call);
}

static inline void ls_launch_wait(void)
{
    emulate_launch_wait();
}

static inline void ls_launch_next(void)
{
    emulate_launch_next();
}

#define LS_LAUNCH_BEHIND(early, kernel, grid, block, stream, ...)                                \
    LS_TRY(                                                                                      \
        ls_cuda_check(emulate_start(#kernel, early, kernel, grid, block, stream, ##__VA_ARGS__), \
                      #kernel, __FILE__, __LINE__))

#define LS_LAUNCH(kernel, grid, block, stream, ...) \
    LS_LAUNCH_BEHIND(false, kernel, grid, block, stream, ##__VA_ARGS__)

#endif
