#include "record.h"

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

ls_verdict_code ls_verdict_code_in(const cJSON *line)
{
    ls_verdict_code code = ls_verdict_code_of(ls_json_string(line, "verdict", ""));
    bool counted = cJSON_HasObjectItem(line, "compared");
    return code == LS_PASS && counted && ls_json_integer(line, "compared", 0) <= 0 ? LS_WEAK : code;
}

bool ls_verdict_good(ls_verdict_code code)
{
    return code == LS_PASS || code == LS_WAIVED;
}
