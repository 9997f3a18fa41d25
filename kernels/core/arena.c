#include "arena.h"

size_t ls_arena_reserve(ls_arena *arena, size_t bytes)
{
    LS_ASSERT(arena->base == NULL);
    arena->bytes = (arena->bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
    size_t offset = arena->bytes;
    arena->bytes += bytes;
    return offset;
}
