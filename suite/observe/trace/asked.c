#include "asked.h"

#include <string.h>
#include <strings.h>

bool ls_asked_known(const ls_observe_trace *trace)
{
    return !trace->attached && cJSON_GetArraySize(trace->command) > 0;
}

/* The option's own text: "--no_sync=False" is "--no-sync=False". */
static bool is_option(const char *word, const char *name, const char **value)
{
    size_t length = strlen(name);
    if (strncmp(word, "--", 2) != 0) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char c = word[2 + i] == '_' ? '-' : word[2 + i];
        if (c != name[i]) {
            return false;
        }
    }
    *value = word[2 + length] == '=' ? word + 3 + length : "";
    return word[2 + length] == '=' || word[2 + length] == '\0';
}

const char *ls_asked_value(const ls_observe_trace *trace, const char *name, int number)
{
    const cJSON *word;
    const char *value;
    if (trace->attached) {
        return NULL;
    }
    cJSON_ArrayForEach(word, trace->command)
    {
        if (!cJSON_IsString(word) || !is_option(word->valuestring, name, &value) || number-- > 0) {
            continue;
        }
        bool apart =
            value[0] == '\0' && cJSON_IsString(word->next) && word->next->valuestring[0] != '-';
        return apart ? word->next->valuestring : value;
    }
    return NULL;
}

bool ls_asked_flag(const ls_observe_trace *trace, const char *name, bool fallback)
{
    const char *value = ls_asked_value(trace, name, 0);
    return value == NULL ? fallback : strcasecmp(value, "false") != 0;
}
