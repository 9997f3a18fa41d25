#include "launchers.h"

#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"

const ls_launcher ls_launchers[LS_LAUNCHERS] = {
#define LAUNCHER(...) {__VA_ARGS__},
#include "launchers.def"
#undef LAUNCHER
};

const char *ls_launchers_value(const char *name)
{
    const char *value = name == NULL ? NULL : getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

bool ls_launchers_is_place(const char *entry)
{
    size_t bytes = strcspn(entry, "=");
    for (int i = 0; i < LS_LAUNCHERS; i++) {
        const ls_launcher *l = &ls_launchers[i];
        const char *const name[] = {l->rank, l->world, l->local_rank, l->local_world, l->node};
        for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
            if (name[k] != NULL && strlen(name[k]) == bytes &&
                strncmp(entry, name[k], bytes) == 0) {
                return true;
            }
        }
    }
    return false;
}

const ls_launcher *ls_launchers_next_world(const ls_launcher *after)
{
    ptrdiff_t i = after == NULL ? 0 : after - ls_launchers + 1;
    for (; i < LS_LAUNCHERS; i++) {
        const char *world = ls_launchers_value(ls_launchers[i].world);
        int64_t ranks = 0;
        if (world != NULL && ls_launchers_value(ls_launchers[i].rank) != NULL &&
            ls_text_integer(world, 2, INT_MAX / 2, &ranks)) {
            return &ls_launchers[i];
        }
    }
    return NULL;
}

bool ls_launchers_is_loopback(const char *address, bool resolve)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0 ||
        strcmp(address, "::1") == 0) {
        return true;
    }
    if (!resolve || getaddrinfo(address, NULL, &hints, &found) != 0) {
        return false;
    }
    uint32_t number = ntohl(((struct sockaddr_in *)found->ai_addr)->sin_addr.s_addr);
    freeaddrinfo(found);
    return number >> 24 == 127;
}
