/* Results cached in a folder under a digest of the input. A file that is missing, short, of another
 * version or damaged counts as absent; one that cannot be written causes a warning only, because
 * the result itself is valid. */
#ifndef LS_ORACLE_CACHE_H
#define LS_ORACLE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ls_cache_key {
    uint64_t word[2];
} ls_cache_key;

typedef struct ls_cache_part {
    void *data;
    size_t bytes;
} ls_cache_part;

/* The initial key for one kind of result. Includes the oracle's version. */
ls_cache_key ls_cache_start(const char *kind);
void ls_cache_add(ls_cache_key *key, const void *data, size_t bytes);
/* Fills all parts, or none (false). folder may be NULL. */
bool ls_cache_load(const char *folder, ls_cache_key key, int count, const ls_cache_part *part);
/* Writes a temporary file in the folder and renames it; creates the folder (its parent must exist).
 */
void ls_cache_save(const char *folder, ls_cache_key key, int count, const ls_cache_part *part);

#endif
