/* Files over a byte stream that also has lines: a bench and a node that does not share its disk
 * exchange them so over the node's channel. A file, or its next bytes, is a line of JSON
 * {"carry":"file","name","at","bytes"} and then that many bytes; a symbolic link is
 * {"carry":"link","name","to"}; {"carry":"end","pieces","bytes"} counts what was sent. Names are
 * relative to the root of each side. */
#ifndef LS_CARRY_H
#define LS_CARRY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

/* ---- sending -------------------------------------------------------------------------------- */

typedef struct ls_carry_out {
    int to;                  /* a descriptor; not owned. -1: what is there counts as sent */
    char root[PATH_MAX];     /* of the names */
    double limit_s;          /* for the other side to take some bytes */
    bool (*ended)(void *of); /* the other side is gone: nothing more is sent; may be NULL */
    void *of;
    int64_t pieces, bytes;
    int count, capacity;
    struct ls_carry_sent *sent; /* [count] names and what of them has been sent; owned */
} ls_carry_out;

/* Sends a file, or all files of a folder, of which something is new since the last call: of a
 * .jsonl or a .log, which only grow, its new bytes, of any other file the whole. `settled`: only
 * what was last written more than a second ago. An absent name is nothing. LS_ERR_INFRA, logged,
 * when the other side takes nothing for limit_s. */
ls_status ls_carry_send(ls_carry_out *out, const char *name, bool settled);
ls_status ls_carry_send_end(ls_carry_out *out);
void ls_carry_out_free(ls_carry_out *out);

/* ---- receiving ------------------------------------------------------------------------------ */

typedef struct ls_carry_in {
    char root[PATH_MAX];
    int log;       /* gets all other lines; -1: they are dropped. Not owned */
    bool ended;    /* the end has arrived, and what it counts before it */
    char why[400]; /* the first reason why something has not arrived; or "" */
    int64_t pieces, bytes;
    int file;        /* the one whose bytes come, or -1; closed by ls_carry_in_close */
    int64_t missing; /* of its bytes */
    size_t used;
    char line[8192];
} ls_carry_in;

ls_carry_in ls_carry_in_begin(const char *root, int log);
/* Takes the next bytes of the stream, and makes folders and files of them. A name that leaves the
 * root, and an error of the disk, are kept in `why`; the rest of the stream is still taken. */
void ls_carry_take(ls_carry_in *in, const char *data, size_t bytes);
void ls_carry_in_close(ls_carry_in *in);

#endif
