/* The protocol between the store's clients and its server. A connection passes the gate (gate.h);
 * the first reply answers its claim. Then requests and replies alternate, one at a time, each a
 * little-endian header of 24 bytes followed by key and value. */
#ifndef LS_STORE_SERVER_H
#define LS_STORE_SERVER_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "store.h"

enum {
    LS_STORE_HEADER_BYTES = 24,
    LS_STORE_MAGIC = 0x3253534c, /* "LSS2" */
};

typedef enum ls_store_verb {
    LS_STORE_HELLO = 1, /* not sent: the claim at the gate; the reply to a rank's first connection
                           comes when all ranks have joined */
    LS_STORE_SET,       /* key, value */
    LS_STORE_GET,       /* key; number: timeout, ms; the reply has the value */
    LS_STORE_WAIT,      /* as GET, the reply has no value */
    LS_STORE_ADD,       /* key; number: amount; the reply's number is the sum */
    LS_STORE_BYE,       /* no reply */
    LS_STORE_WHO_LEFT,  /* the reply's number is a rank that has left, or -1 */
} ls_store_verb;

typedef struct ls_store_header {
    uint32_t magic;
    uint32_t verb; /* in a reply: ls_status */
    uint32_t key_bytes;
    uint32_t value_bytes; /* in the reply to a request that failed: the message */
    int64_t number;
} ls_store_header;

static inline void ls_store_wire_put(const ls_store_header *header, unsigned char *bytes)
{
    uint32_t word[4] = {htole32(header->magic), htole32(header->verb), htole32(header->key_bytes),
                        htole32(header->value_bytes)};
    uint64_t number = htole64((uint64_t)header->number);
    memcpy(bytes, word, sizeof word);
    memcpy(bytes + sizeof word, &number, sizeof number);
}

static inline ls_store_header ls_store_wire_get(const unsigned char *bytes)
{
    uint32_t word[4];
    uint64_t number;
    memcpy(word, bytes, sizeof word);
    memcpy(&number, bytes + sizeof word, sizeof number);
    return (ls_store_header){.magic = le32toh(word[0]),
                             .verb = le32toh(word[1]),
                             .key_bytes = le32toh(word[2]),
                             .value_bytes = le32toh(word[3]),
                             .number = (int64_t)le64toh(number)};
}

/* The store's server: one thread inside rank 0 that polls all connections. Used by store.c only. */

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
