/* One allocation that holds many objects. A sizing pass calls ls_arena_reserve for each object and
 * keeps the offsets; then the caller allocates one block of `bytes`, in host or backend memory, and
 * the addresses are base + offset. Each reservation starts on a 64-byte boundary. */
#ifndef LS_CORE_ARENA_H
#define LS_CORE_ARENA_H

#include <stddef.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_ARENA_ALIGN = 64 };

typedef struct ls_arena {
    char *base;   /* NULL until the block is allocated */
    size_t bytes; /* reserved so far */
} ls_arena;

/* Offset of a fresh region of `bytes` bytes, 64-byte aligned. */
static inline size_t ls_arena_reserve(ls_arena *arena, size_t bytes)
{
    LS_ASSERT(arena->base == NULL);
    arena->bytes = (arena->bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
    size_t offset = arena->bytes;
    arena->bytes += bytes;
    return offset;
}

static inline void *ls_arena_at(const ls_arena *arena, size_t offset)
{
    LS_ASSERT(arena->base != NULL && offset <= arena->bytes);
    return arena->base + offset;
}

#ifdef __cplusplus
}
#endif
#endif
