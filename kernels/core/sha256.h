/* SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104): the proofs by which the ranks of a job recognise
 * each other. */
#ifndef LS_CORE_SHA256_H
#define LS_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
