#include "verdict_code.h"

#include <string.h>

const char *ls_verdict_name(ls_verdict_code code)
{
    static const char *const names[LS_VERDICT_CODES + 1] = {
        "PASS", "WEAK", "SKIP", "WAIVED", "FAIL", "CRASH", "TIMEOUT", "UNSUPPORTED", "INFRA", "?"};
    return names[code];
}

ls_verdict_code ls_verdict_code_of(const char *name)
{
    int code = 0;
    while (code < LS_VERDICT_CODES && strcmp(ls_verdict_name((ls_verdict_code)code), name) != 0) {
        code++;
    }
    return (ls_verdict_code)code;
}

bool ls_verdict_good(ls_verdict_code code)
{
    return code == LS_PASS || code == LS_WAIVED;
}
