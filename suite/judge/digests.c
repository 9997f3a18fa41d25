#include "judges.h"

#include <string.h>

int ls_judge_digests(const ls_record_step *a, const ls_record_step *b, unsigned mask,
                     const char *who, ls_verdict *out)
{
    int compared = 0;
    for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
        if ((mask & a->digest_mask & b->digest_mask & 1u << d) == 0) {
            continue;
        }
        compared++;
        if (strcmp(a->digest[d], b->digest[d]) != 0) {
            ls_verdict_fail(out, "%s step %d: %s is %s, expected %s", who, (int)a->step,
                            ls_record_digest_name((ls_record_digest)d), b->digest[d], a->digest[d]);
        }
    }
    return compared;
}
