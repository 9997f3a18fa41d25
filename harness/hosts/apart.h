/* Nodes that do not share the disk of the bench. Their programs come once, as the tarball of
 * `make dist`, into <folder>/<digest of the programs>, where folder is LS_NODE_DIR or
 * ~/.cache/lockstep of the node. Each job gets <folder>/runs/<token>.<node> in place of the run's
 * folder: the files that its command names are sent there before it starts, what it writes comes
 * back over its channel while it runs (carry.h), and the folder is removed at its end. All nodes of
 * such a job, also one that shares the disk, start in their run's folder and name it ".", because
 * ranks compare their options. */
#ifndef LS_APART_H
#define LS_APART_H

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "carry.h"
#include "hosts.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"

/* ---- on the bench --------------------------------------------------------------------------- */

/* Digest of lockstep, lockstep-train, lockstep-launch, lockstep-collectives and lib/ls_*.so in a
 * folder, 16 hexadecimal digits. LS_ERR_INFRA, logged, where one cannot be read. */
enum { LS_APART_DIGEST_BYTES = 17 };
ls_status ls_apart_digest(const char *programs, char text[LS_APART_DIGEST_BYTES]);
/* The command that finds the programs on a node, or unpacks them there from its standard input, and
 * prints {"event":"carried","programs"}. Exit code LS_APART_LACKS: they are not there, and nothing
 * was read. */
enum { LS_APART_LACKS = 9 };
ls_words ls_apart_unpack_words(const char *digest);
/* A tarball of this program's folder, with the libraries that it needs: of the folder itself where
 * it is one of `make dist`, else made by it. The caller closes *file; *bytes: its size. */
ls_status ls_apart_tarball(const char *programs, const char *scratch, int *file, int64_t *bytes);
/* An order without the variables that describe this machine's disk. */
cJSON *ls_apart_order(const cJSON *order);
/* Adds the run's folder here, in place of which the node makes one, unless it is `shared`. */
void ls_apart_add(cJSON *order, const char *run, const char *programs, bool shared);

/* One node's channel: a thread sends the input files, then takes the files that come back. */
typedef struct ls_apart_channel {
    ls_carry_in in;
    ls_carry_out out;
    int from, child;        /* ends of the pipe of the channel's output; child's is given to it */
    const ls_words *inputs; /* names below the run's folder; not owned */
    pthread_t thread;
    atomic_bool sending, stopped;
    bool started;
} ls_apart_channel;

/* `input` is the write end of the channel's standard input, of which the thread keeps a copy; `log`
 * gets what is no file. NULL, logged, without descriptors or threads. */
ls_apart_channel *ls_apart_channel_open(const char *run, const ls_words *inputs, const char *log,
                                        int input);
/* Nothing more is sent. */
void ls_apart_channel_stop(ls_apart_channel *channel);
/* Waits until all that its process wrote has been taken; the process has ended. */
void ls_apart_channel_finish(ls_apart_channel *channel);
void ls_apart_channel_free(ls_apart_channel *channel);

/* ---- on the node ---------------------------------------------------------------------------- */

typedef struct ls_apart {
    bool is, shared;                       /* a job with such nodes; this one has the disk */
    char run[PATH_MAX], program[PATH_MAX]; /* the run's and the programs' folder on the bench */
    char root[PATH_MAX], own[PATH_MAX];    /* and here */
    ls_carry_out out;
    pthread_t thread;
    DIR *lock; /* on the root, as long as this program lives */
    int wake;  /* ends the thread */
    bool started;
    ls_status sent;
} ls_apart;

/* Makes the root, takes the input files from `input`, and sets LS_RUN_DIR and the working
 * directory. Removes the roots of launchers that were killed. */
ls_status ls_apart_open(const cJSON *order, const char *name, int input, ls_apart *out);
/* The text with the bench's folders replaced by this node's, `run` in place of the run's;
 * malloc'ed.
 */
char *ls_apart_map(const ls_apart *apart, const char *text, const char *run);
/* Of each word of a command; not freed. A script may change its folder and gets the whole path. */
void ls_apart_map_words(const ls_apart *apart, char **word);
/* Starts to send what the ranks write to standard output. */
ls_status ls_apart_begin(ls_apart *apart);
/* Sends the rest. */
ls_status ls_apart_finish(ls_apart *apart);
/* A disk without room leaves no message of its ranks: fills why[bytes] if that is so. */
void ls_apart_find_full(const ls_apart *apart, char *why, size_t bytes);
/* Removes the root. */
void ls_apart_close(ls_apart *apart);

#endif
