/* Consecutive elements as one access, kept in their stored form until they are used: loads of
 * several packets can be in flight at once, whatever branches are between them. */
#ifndef LS_CUDA_PACKET_H
#define LS_CUDA_PACKET_H

#include "launch.h"

#include "element.h"

/* LS_GLOBAL(pointer): declares that it points to global memory, which the compiler cannot infer for
 * a pointer loaded from memory. LS_BOUNDS(threads per block, resident blocks per multiprocessor),
 * after LS_KERNEL: limits the registers that the compiler uses. LS_UNROLL, LS_NO_UNROLL: before a
 * loop. */
#ifdef LS_CUDA_EMULATED
#define LS_BOUNDS(threads, blocks)
#define LS_UNROLL
#define LS_NO_UNROLL
#define LS_GLOBAL(pointer) ((void)0)
#else
#define LS_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define LS_UNROLL _Pragma("unroll")
#define LS_NO_UNROLL _Pragma("unroll 1")
#define LS_GLOBAL(pointer) __builtin_assume(__isGlobal(pointer))
#endif

/* 8 bytes, at an address that is a multiple of 8. */
typedef struct alignas(8) ls_pair {
    uint32_t word[2];
} ls_pair;

LS_DEVICE ls_pair ls_pair_load(const void *from)
{
#ifdef LS_CUDA_EMULATED
    return *(const ls_pair *)from;
#else
    uint2 both = *(const uint2 *)from;
    return {{both.x, both.y}};
#endif
}

LS_DEVICE void ls_pair_store(void *to, ls_pair value)
{
#ifdef LS_CUDA_EMULATED
    *(ls_pair *)to = value;
#else
    __stwb((uint2 *)to, make_uint2(value.word[0], value.word[1]));
#endif
}

/* V elements: 16 bytes' worth at an address that is a multiple of 16, or one element. */
template <typename T, int V> struct ls_packet {
    ls_vector raw;
};

template <typename T> struct ls_packet<T, 1> {
    T raw;
};

template <typename T, int V> LS_DEVICE void ls_packet_load(ls_packet<T, V> *packet, const T *from)
{
    packet->raw = ls_vector_load(from);
}

template <typename T> LS_DEVICE void ls_packet_load(ls_packet<T, 1> *packet, const T *from)
{
    packet->raw = *from;
}

template <typename T, int V> LS_DEVICE void ls_packet_store(T *to, const ls_packet<T, V> &packet)
{
    ls_vector_store(to, packet.raw);
}

template <typename T> LS_DEVICE void ls_packet_store(T *to, const ls_packet<T, 1> &packet)
{
    *to = packet.raw;
}

/* The stored elements as value[V]. */
template <typename T, int V>
LS_DEVICE void ls_packet_get(float *value, const ls_packet<T, V> &packet)
{
    T stored[V];
    memcpy(stored, &packet.raw, sizeof stored);
    LS_UNROLL
    for (int i = 0; i < V; i++) {
        value[i] = ls_element_float(stored[i]);
    }
}

/* Rounds value[V] to the stored type. */
template <typename T, int V>
LS_DEVICE void ls_packet_set(ls_packet<T, V> *packet, const float *value)
{
    T stored[V];
    LS_UNROLL
    for (int i = 0; i < V; i++) {
        ls_element_set(&stored[i], value[i]);
    }
    memcpy(&packet->raw, stored, sizeof stored);
}

#endif
