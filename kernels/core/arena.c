#include "arena.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

size_t ls_arena_reserve(ls_arena *arena, size_t bytes)
{
    LS_ASSERT(arena->base == NULL);
    arena->bytes = (arena->bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
    return ls_arena_reserve_packed(arena, bytes);
}

size_t ls_arena_reserve_packed(ls_arena *arena, size_t bytes)
{
    LS_ASSERT(arena->base == NULL);
    size_t offset = arena->bytes;
    arena->bytes += bytes;
    return offset;
}

ls_status ls_arena_commit_host(ls_arena *arena, const char *purpose)
{
    size_t bytes = (arena->bytes + LS_ARENA_ALIGN) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
    char *base = aligned_alloc(LS_ARENA_ALIGN, bytes);
    if (base == NULL) {
        ls_log_error("cannot allocate %zu bytes for %s", bytes, purpose);
        return LS_ERR_INFRA;
    }
    memset(base, 0, bytes);
    arena->base = base;
    return LS_OK;
}

void ls_arena_free_host(ls_arena *arena)
{
    free(arena->base);
    arena->base = NULL;
    arena->bytes = 0;
}
