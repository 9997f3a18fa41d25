#include "findings.h"

#include <stdarg.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"

static const struct code {
    const char *word, *advice;
    ls_severity severity;
} table[] = {
#define LS_FINDINGS_CODE(name, severity, advice) {#name, advice, LS_SEVERITY_##severity},
    LS_FINDINGS_CODES(LS_FINDINGS_CODE)
#undef LS_FINDINGS_CODE
};

static bool same_subject(const ls_finding *finding, ls_finding_code code, int gpu, const char *what)
{
    size_t first = strcspn(what, " ");
    return finding->code == code && finding->gpu == gpu && strcspn(finding->what, " ") == first &&
           strncmp(finding->what, what, first) == 0;
}

static ls_finding *place_for(ls_findings *findings, ls_finding_code code, int gpu, const char *what)
{
    for (int i = 0; i < findings->count; i++) {
        if (same_subject(&findings->list[i], code, gpu, what)) {
            return &findings->list[i];
        }
    }
    findings->list =
        ls_list_grow(findings->list, findings->count, &findings->capacity, sizeof *findings->list);
    return &findings->list[findings->count++];
}

void ls_findings_add(ls_findings *findings, ls_finding_code code, int gpu, const char *uuid,
                     const char *address, const char *format, ...)
{
    char what[240];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    ls_finding *finding = place_for(findings, code, gpu, what);
    memset(finding, 0, sizeof *finding);
    finding->code = code;
    finding->severity = table[code].severity;
    finding->gpu = gpu;
    ls_text_put(finding->uuid, sizeof finding->uuid, "%s", uuid == NULL ? "" : uuid);
    ls_text_put(finding->address, sizeof finding->address, "%s", address == NULL ? "" : address);
    memcpy(finding->what, what, sizeof what);
}

void ls_findings_free(ls_findings *findings)
{
    free(findings->list);
    memset(findings, 0, sizeof *findings);
}

const char *ls_findings_word(ls_finding_code code)
{
    return table[code].word;
}

const char *ls_findings_advice(ls_finding_code code)
{
    return table[code].advice;
}

const char *ls_findings_severity(ls_severity severity)
{
    static const char *const word[] = {"info", "warning", "fail"};
    return word[severity];
}

const ls_finding *ls_findings_worst(const ls_findings *findings)
{
    const ls_finding *worst = NULL;
    for (int i = 0; i < findings->count; i++) {
        if (worst == NULL || findings->list[i].severity > worst->severity) {
            worst = &findings->list[i];
        }
    }
    return worst;
}

int ls_findings_fails(const ls_findings *findings)
{
    int fails = 0;
    for (int i = 0; i < findings->count; i++) {
        fails += findings->list[i].severity == LS_SEVERITY_FAIL;
    }
    return fails;
}

const char *ls_findings_where(const ls_finding *finding, char *text, size_t bytes)
{
    if (finding->gpu < 0 && finding->address[0] == '\0') {
        ls_text_put(text, bytes, "all GPUs");
    } else if (finding->gpu < 0) {
        ls_text_put(text, bytes, "%s", finding->address);
    } else if (finding->address[0] == '\0') {
        ls_text_put(text, bytes, "GPU %d", finding->gpu);
    } else {
        ls_text_put(text, bytes, "GPU %d (%s)", finding->gpu, finding->address);
    }
    return text;
}

cJSON *ls_findings_json(const ls_findings *findings)
{
    cJSON *array = cJSON_CreateArray();
    LS_MEMORY(array != NULL);
    for (int severity = LS_SEVERITY_FAIL; severity >= 0; severity--) {
        for (int i = 0; i < findings->count; i++) {
            const ls_finding *f = &findings->list[i];
            if ((int)f->severity != severity) {
                continue;
            }
            cJSON *one = ls_json_append_object(array);
            cJSON_AddStringToObject(one, "code", table[f->code].word);
            cJSON_AddStringToObject(one, "severity", ls_findings_severity(f->severity));
            cJSON_AddNumberToObject(one, "gpu", f->gpu);
            cJSON_AddStringToObject(one, "uuid", f->uuid);
            cJSON_AddStringToObject(one, "address", f->address);
            cJSON_AddStringToObject(one, "what", f->what);
            cJSON_AddStringToObject(one, "do", table[f->code].advice);
        }
    }
    return array;
}

void ls_findings_read(const cJSON *array, ls_findings *findings)
{
    const cJSON *one;
    ls_json_each(one, array) {
        const char *word = ls_json_string(one, "code", "");
        for (int code = 0; code < LS_FINDING_CODES; code++) {
            if (strcmp(word, table[code].word) == 0) {
                ls_findings_add(findings, (ls_finding_code)code, ls_json_int(one, "gpu", -1),
                                ls_json_string(one, "uuid", ""), ls_json_string(one, "address", ""),
                                "%s", ls_json_string(one, "what", ""));
            }
        }
    }
}

void ls_findings_print(const ls_findings *findings, FILE *to)
{
    int quiet = 0;
    for (int severity = LS_SEVERITY_FAIL; severity >= 0; severity--) {
        for (int i = 0; i < findings->count; i++) {
            const ls_finding *f = &findings->list[i];
            char where[64];
            if ((int)f->severity != severity) {
                continue;
            }
            if (f->severity == LS_SEVERITY_INFO) {
                quiet++;
                continue;
            }
            fprintf(to, "%-7s %s: %s: %s\n        %s\n", ls_findings_severity(f->severity),
                    table[f->code].word, ls_findings_where(f, where, sizeof where), f->what,
                    table[f->code].advice);
        }
    }
    if (quiet > 0) {
        fprintf(to, "%d more for information, in the report\n", quiet);
    }
}
