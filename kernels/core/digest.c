#include "digest.h"

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
