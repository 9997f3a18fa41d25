/* The protocol between the store's clients and its server. The server greets each connection with 8
 * bytes, by which a client recognises it; then requests and replies alternate, one at a time, each
 * a little-endian header of 24 bytes followed by key and value. */
#ifndef LS_STORE_WIRE_H
#define LS_STORE_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "store_options.h"

#define LS_STORE_GREETING "LSSTORE1"

enum {
    LS_STORE_GREETING_BYTES = 8,
    LS_STORE_HEADER_BYTES = 24,
    LS_STORE_HELLO_BYTES = 12,   /* ls_store_hello on the wire */
    LS_STORE_MAGIC = 0x3153534c, /* "LSS1" */
};

typedef enum ls_store_verb {
    LS_STORE_HELLO = 1, /* key: run id; value: ls_store_hello; number: timeout, ms; the reply to a
                           rank's first connection comes when all ranks have joined */
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

typedef struct ls_store_hello {
    int32_t rank, world;
    int32_t further; /* 1: another connection of a rank that has joined */
} ls_store_hello;

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

static inline void ls_store_wire_put_hello(const ls_store_hello *hello, unsigned char *bytes)
{
    uint32_t word[3] = {htole32((uint32_t)hello->rank), htole32((uint32_t)hello->world),
                        htole32((uint32_t)hello->further)};
    memcpy(bytes, word, sizeof word);
}

static inline ls_store_hello ls_store_wire_get_hello(const unsigned char *bytes)
{
    uint32_t word[3];
    memcpy(word, bytes, sizeof word);
    return (ls_store_hello){.rank = (int32_t)le32toh(word[0]),
                            .world = (int32_t)le32toh(word[1]),
                            .further = (int32_t)le32toh(word[2])};
}

#endif
