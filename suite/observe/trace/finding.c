#include <stdarg.h>

#include "kernels/core/plain.h"
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
