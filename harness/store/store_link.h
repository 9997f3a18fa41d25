/* One connection of a store's client: sends whole requests and receives whole replies, each with a
 * deadline. Used by store.c only. Functions that return int return 1 when done, 0 when the deadline
 * has passed, -1 when the connection has ended (errno). */
#ifndef LS_STORE_LINK_H
#define LS_STORE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "kernels/core/status.h"
#include "store_wire.h"

typedef struct ls_store_answer {
    ls_status status;
    int64_t number;
    char *value; /* malloc'ed, 0 at the end */
    size_t bytes;
} ls_store_answer;

/* Nanoseconds until then; 0 when it has passed. */
int64_t ls_store_link_rest_ns(int64_t deadline_ns);
/* Connects and checks the server's greeting. False, with the reason in `why`, when either fails. */
bool ls_store_link_reach(const struct sockaddr *at, socklen_t at_bytes, int64_t deadline_ns,
                         int *out, char *why, size_t why_bytes);
int ls_store_link_ask(int fd, const ls_store_header *header, const char *key, const void *value,
                      int64_t deadline_ns);
int ls_store_link_answer(int fd, int64_t deadline_ns, ls_store_answer *out);

#endif
