#include "digest.h"

#include <string.h>

/* FIPS 180-4, 4.2.2: the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, int bits)
{
    return word >> bits | word << (32 - bits);
}

static void compress(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choice +
                         rounds[i] + w[i];
        uint32_t second = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += s[i];
    }
}

void ls_sha256_start(ls_sha256 *hash)
{
    /* FIPS 180-4, 5.3.3 */
    *hash = (ls_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                  0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void ls_sha256_update(ls_sha256 *hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        size_t used = hash->bytes % LS_SHA256_BLOCK_BYTES;
        size_t part = LS_SHA256_BLOCK_BYTES - used < bytes ? LS_SHA256_BLOCK_BYTES - used : bytes;
        memcpy(hash->block + used, at, part);
        hash->bytes += part;
        at += part;
        bytes -= part;
        if (used + part == LS_SHA256_BLOCK_BYTES) {
            compress(hash->state, hash->block);
        }
    }
}

void ls_sha256_end(ls_sha256 *hash, unsigned char digest[LS_SHA256_BYTES])
{
    static const unsigned char padding[LS_SHA256_BLOCK_BYTES] = {0x80};
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(hash->bytes * 8 >> (56 - 8 * i));
    }
    size_t used =
        hash->bytes % LS_SHA256_BLOCK_BYTES; /* 8 bytes of the last block are the length */
    ls_sha256_update(hash, padding, (used < 56 ? 56 : 120) - used);
    ls_sha256_update(hash, length, sizeof length);
    for (int i = 0; i < LS_SHA256_BYTES; i++) {
        digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void ls_sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    unsigned char mac[LS_SHA256_BYTES])
{
    unsigned char inner[LS_SHA256_BLOCK_BYTES] = {0}, outer[LS_SHA256_BLOCK_BYTES];
    ls_sha256 hash;
    ls_sha256_start(&hash);
    if (key_bytes > sizeof inner) {
        ls_sha256_update(&hash, key, key_bytes);
        ls_sha256_end(&hash, inner);
        ls_sha256_start(&hash);
    } else if (key_bytes > 0) {
        memcpy(inner, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof inner; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    ls_sha256_update(&hash, inner, sizeof inner);
    ls_sha256_update(&hash, data, bytes);
    ls_sha256_end(&hash, mac);
    ls_sha256_start(&hash);
    ls_sha256_update(&hash, outer, sizeof outer);
    ls_sha256_update(&hash, mac, LS_SHA256_BYTES);
    ls_sha256_end(&hash, mac);
}
