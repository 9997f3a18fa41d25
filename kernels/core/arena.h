/* One allocation, carved at start. A sizing pass calls ls_arena_reserve for every row of the table
 * and keeps the offsets; then one block of `bytes` is allocated (host or backend memory) and the
 * addresses are base + offset. Every reservation starts on a 64-byte boundary unless packed. */
#ifndef LS_CORE_ARENA_H
#define LS_CORE_ARENA_H

#include <stddef.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_ARENA_ALIGN = 64 };

typedef struct ls_arena {
    char *base;   /* NULL until there is memory behind it */
    size_t bytes; /* reserved so far */
} ls_arena;

/* Offset of a fresh region of `bytes` bytes, 64-byte aligned. */
size_t ls_arena_reserve(ls_arena *arena, size_t bytes);
/* Offset of a region that follows the last one without a gap (buckets: plain and unpadded). */
size_t ls_arena_reserve_packed(ls_arena *arena, size_t bytes);
/* Host memory for everything reserved, zeroed. Logs and returns LS_ERR_INFRA when there is none. */
ls_status ls_arena_commit_host(ls_arena *arena, const char *purpose);
void ls_arena_free_host(ls_arena *arena);

static inline void *ls_arena_at(const ls_arena *arena, size_t offset)
{
    LS_ASSERT(arena->base != NULL && offset <= arena->bytes);
    return arena->base + offset;
}

#ifdef __cplusplus
}
#endif
#endif
