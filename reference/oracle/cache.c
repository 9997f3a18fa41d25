#include "cache.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/log.h"

/* The program is part of every key, because a changed oracle must not find results of an older one.
 * Size and modification time of its file identify it. */
static void add_program(ls_cache_key *key)
{
    struct stat self;
    if (stat("/proc/self/exe", &self) == 0) {
        const int64_t identity[] = {(int64_t)self.st_size, (int64_t)self.st_mtim.tv_sec,
                                    (int64_t)self.st_mtim.tv_nsec};
        ls_cache_add(key, identity, sizeof identity);
    }
}

typedef struct head {
    char magic[8];
    ls_cache_key key;
    uint64_t bytes;
    ls_cache_key content;
} head;

/* Two chains of multiply and rotate over 8-byte words (wyhash's idea): fast, and collisions are not
 * provoked on purpose. */
void ls_cache_add(ls_cache_key *key, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t a = key->word[0] ^ bytes, b = key->word[1] + bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, from + i, bytes - i < 8 ? bytes - i : 8);
        a = (a ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        a ^= a >> 29;
        b = (b + word) * UINT64_C(0xd6e8feb86659fd93);
        b ^= b >> 32;
    }
    key->word[0] = a;
    key->word[1] = b;
}

ls_cache_key ls_cache_start(const char *kind)
{
    ls_cache_key key = {{UINT64_C(0x243f6a8885a308d3), UINT64_C(0x13198a2e03707344)}};
    add_program(&key);
    ls_cache_add(&key, kind, strlen(kind) + 1);
    return key;
}

static bool path_of(const char *folder, ls_cache_key key, char *path)
{
    return snprintf(path, PATH_MAX, "%s/%016llx%016llx", folder, (unsigned long long)key.word[0],
                    (unsigned long long)key.word[1]) < PATH_MAX;
}

static head head_of(ls_cache_key key, int count, const ls_cache_part *part)
{
    head h = {.magic = "LSKEEP1", .key = key, .content = ls_cache_start("content")};
    for (int i = 0; i < count; i++) {
        h.bytes += part[i].bytes;
        ls_cache_add(&h.content, part[i].data, part[i].bytes);
    }
    return h;
}

bool ls_cache_load(const char *folder, ls_cache_key key, int count, const ls_cache_part *part)
{
    char path[PATH_MAX];
    if (folder == NULL || !path_of(folder, key, path)) {
        return false;
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return false;
    }
    head stored;
    bool whole = fread(&stored, sizeof stored, 1, file) == 1;
    for (int i = 0; i < count && whole; i++) {
        whole = fread(part[i].data, 1, part[i].bytes, file) == part[i].bytes;
    }
    fclose(file);
    if (!whole) {
        return false;
    }
    head wanted = head_of(key, count, part);
    return memcmp(&stored, &wanted, sizeof stored) == 0;
}

static bool write_file(const char *path, const head *h, int count, const ls_cache_part *part)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return false;
    }
    bool whole = fwrite(h, sizeof *h, 1, file) == 1;
    for (int i = 0; i < count && whole; i++) {
        whole = fwrite(part[i].data, 1, part[i].bytes, file) == part[i].bytes;
    }
    return fclose(file) == 0 && whole;
}

void ls_cache_save(const char *folder, ls_cache_key key, int count, const ls_cache_part *part)
{
    char path[PATH_MAX], temporary[PATH_MAX + 32];
    if (folder == NULL || !path_of(folder, key, path)) {
        return;
    }
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        ls_log_warn("cannot make the folder %s: %s; the oracle's results are not kept", folder,
                    strerror(errno));
        return;
    }
    head h = head_of(key, count, part);
    snprintf(temporary, sizeof temporary, "%s.tmp%d", path, (int)getpid());
    if (!write_file(temporary, &h, count, part) || rename(temporary, path) != 0) {
        ls_log_warn("cannot write %s: %s; this result of the oracle is not kept", temporary,
                    strerror(errno));
        unlink(temporary);
    }
}
