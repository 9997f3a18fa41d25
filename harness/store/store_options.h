/* How a rank joins the store, and the store's limits. */
#ifndef LS_STORE_OPTIONS_H
#define LS_STORE_OPTIONS_H

#include <stdbool.h>

enum {
    LS_STORE_KEY_BYTES_MAX = 256,
    LS_STORE_VALUE_BYTES_MAX = 4 << 20,
    LS_STORE_CLIENTS_MAX = 4096,
    LS_STORE_PORT_PROBES = 16, /* under torchrun: MASTER_PORT+1 .. MASTER_PORT+16 */
};

typedef struct ls_store_options {
    int rank, world;
    const char *address; /* MASTER_ADDR: name or number, IPv4 or IPv6 */
    int port;            /* MASTER_PORT; 0 only for a lone server in tests (see ls_store_port) */
    bool probe; /* another program owns the port (torchrun's agent): rank 0 takes the first free one
                   of port+1..port+16, and clients search these for magic and run id */
    const char *run_id; /* LS_TOKEN, TORCHELASTIC_RUN_ID, ...; "" when there is none */
    double timeout_s;   /* of the rendezvous, and the default of every wait */
} ls_store_options;

#endif
