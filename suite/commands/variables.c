#include "bench_internal.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/usage.h"

#define LS_VARIABLE(name, targets, pattern, words, text) \
    {#name, targets, "^(" pattern ")$", words, text},
static const struct variable {
    const char *name, *targets, *pattern, *words, *text;
} variable[] = {
#include "suite/make/variables.def"
};
#undef LS_VARIABLE

enum { COUNT = sizeof variable / sizeof *variable };

static bool is_of_bench(const struct variable *v)
{
    return strstr(v->targets, "bench") != NULL;
}

static ls_status unknown(const char *argument)
{
    const char *names[COUNT];
    int count = 0;
    for (int i = 0; i < COUNT; i++) {
        names[count] = variable[i].name;
        count += is_of_bench(&variable[i]);
    }
    LS_TEXT(name, 64, "%.*s", (int)strcspn(argument, "="), argument);
    bool variable_given = strchr(argument, '=') != NULL && argument[0] != '-';
    char hint[160];
    ls_text_suggest(hint, sizeof hint, name + strspn(name, "-"), names, count,
                    variable_given ? "`lockstep bench --help` lists all"
                                   : "allowed: NAME=value, --budget, --dry-run, --help");
    return ls_log_fail(LS_ERR_USAGE, "%s '%s'; %s",
                       variable_given ? "unknown variable" : "unexpected argument", argument, hint);
}

static ls_status check(const char *argument, cJSON *values)
{
    const char *equal = strchr(argument, '=');
    size_t length = equal == NULL ? strlen(argument) : (size_t)(equal - argument);
    for (int i = 0; i < COUNT; i++) {
        const struct variable *v = &variable[i];
        if (!is_of_bench(v) || strlen(v->name) != length ||
            strncmp(v->name, argument, length) != 0) {
            continue;
        }
        regex_t pattern;
        LS_ASSERT(regcomp(&pattern, v->pattern, REG_EXTENDED | REG_NOSUB) == 0);
        int match = equal == NULL ? REG_NOMATCH : regexec(&pattern, equal + 1, 0, NULL, 0);
        regfree(&pattern);
        if (match != 0) {
            return ls_log_fail(LS_ERR_USAGE, "%s: allowed: %s", argument, v->words);
        }
        cJSON_DeleteItemFromObjectCaseSensitive(values, v->name);
        cJSON_AddStringToObject(values, v->name, equal + 1);
        return LS_OK;
    }
    return unknown(argument);
}

ls_status ls_variables_parse(int count, char *const *argument, ls_variables *out)
{
    cJSON *values = cJSON_CreateObject();
    LS_MEMORY(values != NULL);
    for (int i = 0; i < count; i++) {
        const char *given = argument[i];
        char budget[80] = "";
        if (strcmp(given, "--dry-run") == 0) {
            given = "DRYRUN=1";
        } else if (strncmp(given, "--budget=", 9) == 0) {
            ls_text_put(budget, sizeof budget, "BUDGET=%s", given + 9);
        } else if (strcmp(given, "--budget") == 0 && i + 1 < count) {
            ls_text_put(budget, sizeof budget, "BUDGET=%s", argument[++i]);
        }
        given = budget[0] != '\0' ? budget : given;
        ls_status status = check(given, values);
        if (status != LS_OK) {
            cJSON_Delete(values);
            return status;
        }
    }
    out->value = values;
    return LS_OK;
}

void ls_variables_free(ls_variables *variables)
{
    cJSON_Delete(variables->value);
    variables->value = NULL;
}

const char *ls_variables_text(const ls_variables *variables, const char *name, const char *fallback)
{
    return ls_json_string(variables->value, name, fallback);
}

int ls_variables_integer(const ls_variables *variables, const char *name, int fallback)
{
    const char *text = ls_variables_text(variables, name, NULL);
    return text == NULL ? fallback : atoi(text);
}

int ls_variables_numbers(const ls_variables *variables, const char *name, double *number, int most)
{
    const char *text = ls_variables_text(variables, name, NULL);
    int count = 0;
    while (text != NULL && *text != '\0') {
        char *end;
        text += *text == 'O'; /* opt levels: O0,O2 */
        double value = strtod(text, &end);
        if (count < most) {
            number[count] = value;
        }
        count++;
        text = *end == ',' ? end + 1 : end + strlen(end);
    }
    return count;
}

void ls_variables_help(void)
{
    for (int i = 0; i < COUNT; i++) {
        if (is_of_bench(&variable[i])) {
            LS_TEXT(name, 64, "  %s", variable[i].name);
            LS_TEXT(text, 200, "%s (%s)", variable[i].text, variable[i].words);
            ls_usage_entry(stdout, name, text);
        }
    }
}
