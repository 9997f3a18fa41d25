/* Where the store's server listens, and under which number it is reached. Used by store_server.c
 * only. */
#ifndef LS_STORE_LISTEN_H
#define LS_STORE_LISTEN_H

#include "store.h"

/* Listens at options->address and port (probe: the first free one of port+1..port+16).
 * LS_ERR_INFRA with address, port and the system's text. */
ls_status ls_store_listen(const ls_store_options *options, int *listener, int *port);
/* The number by which the peer of an accepted connection reached us; false when that is a loopback
 * one. */
bool ls_store_listen_reached_as(int fd, char *text, size_t text_bytes);

#endif
