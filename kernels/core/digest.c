#include "digest.h"

#include <string.h>

#include "status.h"

uint64_t ls_digest_update(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) {
        digest = (digest ^ byte[i]) * LS_DIGEST_PRIME;
    }
    return digest;
}

void ls_digest_update_many(int count, uint64_t *digest, const void *const *data,
                           const size_t *bytes)
{
    LS_ASSERT(count >= 0 && count <= LS_DIGEST_STREAMS);
    if (count == LS_DIGEST_STREAMS) {
        const unsigned char *a = data[0], *b = data[1], *c = data[2], *d = data[3];
        uint64_t da = digest[0], db = digest[1], dc = digest[2], dd = digest[3];
        size_t common = bytes[0];
        for (int i = 1; i < count; i++) {
            common = bytes[i] < common ? bytes[i] : common;
        }
        for (size_t i = 0; i < common; i++) {
            da = (da ^ a[i]) * LS_DIGEST_PRIME;
            db = (db ^ b[i]) * LS_DIGEST_PRIME;
            dc = (dc ^ c[i]) * LS_DIGEST_PRIME;
            dd = (dd ^ d[i]) * LS_DIGEST_PRIME;
        }
        digest[0] = ls_digest_update(da, a + common, bytes[0] - common);
        digest[1] = ls_digest_update(db, b + common, bytes[1] - common);
        digest[2] = ls_digest_update(dc, c + common, bytes[2] - common);
        digest[3] = ls_digest_update(dd, d + common, bytes[3] - common);
        return;
    }
    for (int i = 0; i < count; i++) {
        digest[i] = ls_digest_update(digest[i], data[i], bytes[i]);
    }
}

/* ---- XXH64, names as in its specification ---------------------------------------------------- */

#define PRIME_1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME_3 UINT64_C(0x165667B19E3779F9)
#define PRIME_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME_5 UINT64_C(0x27D4EB2F165667C5)

static uint64_t rotate(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

static uint64_t lane(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t mix(uint64_t accumulator, uint64_t value)
{
    return rotate(accumulator + value * PRIME_2, 31) * PRIME_1;
}

static uint64_t merge(uint64_t digest, uint64_t accumulator)
{
    return (digest ^ mix(0, accumulator)) * PRIME_1 + PRIME_4;
}

ls_digest_parts ls_digest_xxh64_begin(uint64_t seed)
{
    return (ls_digest_parts){
        .seed = seed, .lane = {seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1}};
}

void ls_digest_xxh64_add(ls_digest_parts *parts, const void *data, size_t bytes)
{
    const unsigned char *at = data, *end = at + bytes;
    uint64_t a = parts->lane[0], b = parts->lane[1], c = parts->lane[2], d = parts->lane[3];
    LS_ASSERT(bytes % 32 == 0);
    for (; at < end; at += 32) {
        a = mix(a, lane(at));
        b = mix(b, lane(at + 8));
        c = mix(c, lane(at + 16));
        d = mix(d, lane(at + 24));
    }
    *parts = (ls_digest_parts){parts->seed, {a, b, c, d}, parts->bytes + bytes};
}

uint64_t ls_digest_xxh64_end(ls_digest_parts *parts, const void *last, size_t bytes)
{
    const unsigned char *at = last, *end = at + bytes;
    uint64_t digest = parts->seed + PRIME_5;
    ls_digest_xxh64_add(parts, at, bytes / 32 * 32);
    at += bytes / 32 * 32;
    if (parts->bytes > 0) {
        uint64_t a = parts->lane[0], b = parts->lane[1], c = parts->lane[2], d = parts->lane[3];
        digest = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        digest = merge(merge(merge(merge(digest, a), b), c), d);
    }
    digest += parts->bytes + (size_t)(end - at);
    for (; end - at >= 8; at += 8) {
        digest = rotate(digest ^ mix(0, lane(at)), 27) * PRIME_1 + PRIME_4;
    }
    if (end - at >= 4) {
        uint32_t half;
        memcpy(&half, at, sizeof half);
        digest = rotate(digest ^ half * PRIME_1, 23) * PRIME_2 + PRIME_3;
        at += 4;
    }
    for (; at < end; at++) {
        digest = rotate(digest ^ *at * PRIME_5, 11) * PRIME_1;
    }
    digest = (digest ^ digest >> 33) * PRIME_2;
    digest = (digest ^ digest >> 29) * PRIME_3;
    return digest ^ digest >> 32;
}

uint64_t ls_digest_xxh64(uint64_t seed, const void *data, size_t bytes)
{
    ls_digest_parts parts = ls_digest_xxh64_begin(seed);
    return ls_digest_xxh64_end(&parts, data, bytes);
}
