/* The store's server: one thread inside rank 0 that polls all connections. Used by store.c only. */
#ifndef LS_STORE_SERVER_H
#define LS_STORE_SERVER_H

#include "kernels/core/sha256.h"
#include "kernels/core/status.h"
#include "store_options.h"

typedef struct ls_store_server ls_store_server;

/* The key of a job: its token or run id, and its MASTER_PORT, so that jobs without an id of their
 * own do not mix. */
void ls_store_server_key(const ls_store_options *options, unsigned char key[LS_SHA256_BYTES]);

/* Listens at options->address and port (probe: the first free one of port+1..port+16) and starts
 * the thread. LS_ERR_INFRA with address, port and the system's text. */
ls_status ls_store_server_start(const ls_store_options *options, ls_store_server **out);
int ls_store_server_port(const ls_store_server *server);
/* The address at which other machines reached this one; false when all connections came over
 * loopback. */
bool ls_store_server_address(ls_store_server *server, char *text, int text_bytes);
/* Ends when the other ranks have said goodbye or died, after linger_s at the latest. Frees. */
void ls_store_server_stop(ls_store_server *server, double linger_s);

#endif
