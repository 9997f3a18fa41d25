/* FNV-1a, 64 bit (Fowler, Noll, Vo): the fingerprint that compares ranks and runs. XXH64: the
 * checksum of stored files. */
#ifndef LS_CORE_DIGEST_H
#define LS_CORE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_DIGEST_START UINT64_C(14695981039346656037)
#define LS_DIGEST_PRIME UINT64_C(1099511628211)

/* Continues `digest` over `bytes` bytes. */
uint64_t ls_digest_update(uint64_t digest, const void *data, size_t bytes);

enum { LS_DIGEST_STREAMS = 4 };
/* Continues up to LS_DIGEST_STREAMS independent digests at once: the latency of one multiplication
 * is hidden by the other streams, which makes it about three times as fast as one stream after the
 * other. */
void ls_digest_update_many(int count, uint64_t *digest, const void *const *data,
                           const size_t *bytes);

/* XXH64 (Collet, github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), at the speed of memory.
 */
uint64_t ls_digest_xxh64(uint64_t seed, const void *data, size_t bytes);

/* The same of data in parts: all but the last are multiples of 32 bytes. */
typedef struct ls_digest_parts {
    uint64_t seed, lane[4];
    size_t bytes; /* so far */
} ls_digest_parts;

ls_digest_parts ls_digest_xxh64_begin(uint64_t seed);
void ls_digest_xxh64_add(ls_digest_parts *parts, const void *data, size_t bytes);
uint64_t ls_digest_xxh64_end(ls_digest_parts *parts, const void *last, size_t bytes);

/* SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104): the proofs by which the ranks of a job recognise
 * each other. */

enum { LS_SHA256_BYTES = 32, LS_SHA256_BLOCK_BYTES = 64 };

typedef struct ls_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* hashed so far */
    unsigned char block[LS_SHA256_BLOCK_BYTES];
} ls_sha256;

void ls_sha256_start(ls_sha256 *hash);
void ls_sha256_update(ls_sha256 *hash, const void *data, size_t bytes);
void ls_sha256_end(ls_sha256 *hash, unsigned char digest[LS_SHA256_BYTES]);
void ls_sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    unsigned char mac[LS_SHA256_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
