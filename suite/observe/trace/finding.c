#include <stdarg.h>

#include "calls.h"
#include "kernels/core/plain.h"
#include "kernels/core/text.h"
#include "trace.h"

void ls_finding_blame(ls_observe_finding *out, const char *at, const char *advice, ...)
{
    if (out->where[0] == '\0') {
        ls_plain_copy(out->where, sizeof out->where, at == NULL ? "" : at);
    }
    if (out->advice[0] == '\0') {
        va_list arguments;
        va_start(arguments, advice);
        vsnprintf(out->advice, sizeof out->advice, advice, arguments);
        va_end(arguments);
        ls_plain_replace(out->advice, sizeof out->advice);
    }
}

void ls_finding_explain(ls_observe_finding *out, const char *at, const char *cause,
                        const char *advice)
{
    if (cause != NULL) {
        ls_verdict_cause(&out->verdict, "%s", cause);
    }
    if (advice != NULL) {
        ls_finding_blame(out, at, "%s", advice);
    }
}

void ls_finding_set(ls_observe_finding *out, ls_verdict_code code, const char *at,
                    const char *cause, const char *advice, const char *evidence, ...)
{
    char text[sizeof out->verdict.evidence];
    va_list arguments;
    va_start(arguments, evidence);
    vsnprintf(text, sizeof text, evidence, arguments);
    va_end(arguments);
    ls_verdict_set(&out->verdict, code, "%s", text);
    ls_finding_explain(out, at, cause, advice);
}

void ls_finding_close(ls_observe_finding *out, int64_t compared, ls_verdict_code none,
                      const char *why, const char *evidence, ...)
{
    char text[sizeof out->verdict.evidence];
    va_list arguments;
    va_start(arguments, evidence);
    vsnprintf(text, sizeof text, evidence, arguments);
    va_end(arguments);
    if (compared == 0) {
        ls_verdict_set(&out->verdict, none, "%s", why);
    }
    ls_verdict_pass(&out->verdict, compared, "%s", text);
}

void ls_finding_missing(const ls_observe_trace *trace, const char *what, ls_observe_finding *out)
{
    ls_verdict_set(&out->verdict, trace->attached ? LS_WEAK : LS_UNSUPPORTED, "%s", what);
}

void ls_finding_guess(ls_observe_finding *out, const ls_observe_finding *one)
{
    if (one->verdict.code != LS_FAIL) {
        ls_calls_keep_worst(out, one);
    } else if (out->hint.verdict.code == LS_PASS) {
        out->hint.verdict = one->verdict;
        ls_text_put(out->hint.where, sizeof out->hint.where, "%s", one->where);
        ls_text_put(out->hint.advice, sizeof out->hint.advice, "%s", one->advice);
    }
}
