#include "dist_url.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"

static const char *after(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

ls_status ls_dist_url_parse(const char *text, ls_dist_url *out)
{
    ls_dist_url url = {.kind = 'e'};
    const char *tcp = after(text, "tcp://"), *file = after(text, "file://");
    const char *colon = tcp != NULL ? strrchr(tcp, ':') : NULL;
    int64_t port = 0;
    bool good = text[0] == '\0' || strcmp(text, "env://") == 0;
    if (tcp != NULL && colon != NULL && colon > tcp) {
        url.kind = 't';
        snprintf(url.host, sizeof url.host, "%.*s", (int)(colon - tcp), tcp);
        good = (size_t)(colon - tcp) < sizeof url.host &&
               (strcmp(colon + 1, "FREEPORT") == 0 || ls_text_integer(colon + 1, 1, 65535, &port));
        url.port = (int)port;
    } else if (file != NULL && file[0] == '/') {
        url.kind = 'f';
        good = strlen(file) < sizeof url.path;
        snprintf(url.path, sizeof url.path, "%s", file);
    }
    if (!good) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--dist-url %s: allowed: env://, tcp://HOST:PORT, file:///absolute/path",
                           text);
    }
    if (out != NULL) {
        *out = url;
    }
    return LS_OK;
}
