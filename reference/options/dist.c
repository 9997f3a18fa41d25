#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "world.h"
#include "harness/hosts/launchers.h"
#include "harness/hosts/supervise.h"
#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/path.h"
#include "kernels/core/plant.h"

/* Set for the ranks that --multiprocessing-distributed has started. */
#define SPAWNED "LS_SPAWNED"

enum { MEETING_BYTES = 4096 }; /* more than a line of such a file has */

/* ---- variables ------------------------------------------------------------------------------- */

static ls_status set(const char *name, const char *value)
{
    return setenv(name, value, 1) == 0 ? LS_OK
                                       : ls_log_fail(LS_ERR_INFRA, "no memory for %s", name);
}

ls_status ls_dist_stand_for(const char *option, int given, const char *name)
{
    const char *value = ls_launchers_value(name);
    LS_TEXT(text, 16, "%d", given);
    if (given < 0) {
        return LS_OK;
    }
    LS_REFUSE_IF(value != NULL && strcmp(value, text) != 0,
                 "%s %s, but %s is %s: allowed: the same", option, text, name, value);
    return set(name, text);
}

/* Which rank of how many: a URL other than env:// needs both. */
static ls_status take_place(const ls_options *options, bool needed)
{
    LS_TRY(ls_dist_stand_for("--world-size", options->world_size, "WORLD_SIZE"));
    LS_TRY(ls_dist_stand_for("--rank", options->rank, "RANK"));
    if (needed &&
        (ls_launchers_value("WORLD_SIZE") == NULL || ls_launchers_value("RANK") == NULL)) {
        const char *missing = ls_launchers_value("RANK") == NULL ? "--rank" : "--world-size";
        return ls_log_fail(LS_ERR_USAGE, "--dist-url %s needs %s, or torchrun's variables",
                           options->dist_url, missing);
    }
    return LS_OK;
}

/* Ranks that meet at a loopback address are on one machine; of others nothing is known, and each
 * counts as alone on its own. */
static ls_status meet_at(const char *host, const char *port)
{
    LS_TRY(set("MASTER_ADDR", host));
    LS_TRY(set("MASTER_PORT", port));
    if (ls_launchers_is_loopback(host, false) || ls_launchers_value("LOCAL_WORLD_SIZE") != NULL) {
        return LS_OK;
    }
    LS_TRY(set("LOCAL_WORLD_SIZE", "1"));
    LS_TRY(set("LOCAL_RANK", "0"));
    return set("GROUP_RANK", getenv("RANK"));
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* An address of this host that a listener here and its peers understand. */
static void own_address(char *host, size_t bytes)
{
    struct addrinfo *found = NULL;
    if (gethostname(host, bytes) != 0 || getaddrinfo(host, NULL, NULL, &found) != 0) {
        ls_text_put(host, bytes, "127.0.0.1");
    }
    if (found != NULL) {
        freeaddrinfo(found);
    }
}

static ls_status write_meeting(const char *path, const char *host, int port)
{
    unsigned char secret[16];
    char hex[2 * sizeof secret + 1], line[400];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret) {
        return ls_log_fail(LS_ERR_INFRA, "no random bytes for the job's secret: %s",
                           strerror(errno));
    }
    for (size_t i = 0; i < sizeof secret; i++) {
        snprintf(hex + 2 * i, 3, "%02x", secret[i]);
    }
    int length = snprintf(line, sizeof line, "lockstep %s %d %s\n", host, port, hex);
    LS_TRY(set("LS_TOKEN", hex));
    mode_t mask = umask(077); /* the secret is this user's */
    ls_status status = ls_file_replace(path, line, (size_t)length);
    (void)umask(mask);
    return status;
}

/* Whether a store listens there: what an earlier job left is not taken for this one's. */
static bool answers(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    bool open = false;
    if (getaddrinfo(host, port, &hints, &found) != 0) {
        return false;
    }
    for (struct addrinfo *at = found; at != NULL && !open; at = at->ai_next) {
        int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0);
        open = fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0;
        if (fd >= 0) {
            close(fd);
        }
    }
    freeaddrinfo(found);
    return open;
}

static double find_file(void *context, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "rank 0, which writes --dist-url file://%s", (const char *)context);
    return 0;
}

static ls_waiting_probe *const probes[] = {find_file, NULL};

static ls_status read_meeting(const char *path, double timeout_s)
{
    ls_waiting waiting = ls_waiting_begin(probes, (void *)path, timeout_s);
    static const struct timespec nap = {0, 50000000};
    int64_t begun_ns = ls_clock_ns();
    while (ls_clock_ms_between(begun_ns, ls_clock_ns()) < timeout_s * 1e3) {
        char host[256], port[8], secret[64], *text = NULL;
        size_t bytes = 0;
        ls_file_source file = {.descriptor = -1};
        bool whole = ls_file_load(path, MEETING_BYTES, &file, &text, &bytes) == LS_OK &&
                     sscanf(text, "lockstep %255s %7s %63s", host, port, secret) == 3;
        free(text);
        /* its time would say nothing: a job that ended in this second may have left it */
        if (whole && (LS_PLANT(dist_file_unproved, false, true) || answers(host, port))) {
            LS_TRY(set("LS_TOKEN", secret));
            return meet_at(host, port);
        }
        (void)ls_waiting_look(&waiting);
        (void)ppoll(NULL, 0, &nap, NULL); /* what we wait for has no descriptor */
    }
    return ls_log_fail(LS_ERR_RENDEZVOUS,
                       "--dist-url file://%s: no rank 0 that answers was found there in %g s "
                       "(--timeout)",
                       path, timeout_s);
}

static ls_status meet_by_file(const char *path, double timeout_s)
{
    char host[256];
    if (strcmp(getenv("RANK"), "0") != 0) {
        return read_meeting(path, timeout_s);
    }
    own_address(host, sizeof host);
    int port = ls_supervise_free_port();
    if (port == 0) {
        return ls_log_fail(LS_ERR_INFRA, "no free port to meet at: %s", strerror(errno));
    }
    LS_TEXT(number, 8, "%d", port);
    LS_TRY(write_meeting(path, host, port));
    return meet_at(host, number);
}

/* ---- a process for each device --------------------------------------------------------------- */

/* Becomes lockstep-launch; returns only where that fails. */
static ls_status spawn(const ls_options *options, const ls_dist_url *url, char **argv)
{
    int nodes = options->world_size > 0 ? options->world_size : 1;
    int node = options->rank >= 0 ? options->rank : 0;
    const char *host = url->kind == 't' ? url->host : ls_launchers_value("MASTER_ADDR");
    const char *port = url->kind == 'e' ? ls_launchers_value("MASTER_PORT") : NULL;
    LS_TEXT(number, 8, "%d", url->port);
    port = url->kind == 't' && url->port > 0 ? number : port;
    LS_REFUSE_IF(ls_launchers_value("RANK") != NULL,
                 "--multiprocessing-distributed starts the ranks itself, "
                 "but RANK is set; leave one of them out");
    LS_REFUSE_IF(node >= nodes, "--rank %d: allowed: nodes 0 to %d (--world-size %d)", node,
                 nodes - 1, nodes);
    LS_REFUSE_IF(nodes > 1 && (host == NULL || port == NULL),
                 "--world-size %d nodes with --dist-url %s: allowed: tcp://HOST:PORT of "
                 "node 0, or env:// with MASTER_ADDR and MASTER_PORT",
                 nodes, options->dist_url);
    char program[1024], launcher[1100];
    ls_path_program(program, sizeof program);
    ls_text_put(launcher, sizeof launcher, "%s/lockstep-launch", program);
    ls_words line = {0, 0, NULL};
    ls_words_add(&line, "%s", launcher);
    ls_words_add(&line, "--nproc-per-node=%s",
                 ls_launchers_value("LS_DEVICES") != NULL ? ls_launchers_value("LS_DEVICES")
                                                          : "auto");
    if (nodes > 1) {
        ls_words_add(&line, "--nnodes=%d", nodes);
        ls_words_add(&line, "--node-rank=%d", node);
        ls_words_add(&line, "--master-addr=%s", host);
    }
    if (port != NULL) {
        ls_words_add(&line, "--master-port=%s", port);
    }
    ls_words_add(&line, "--");
    ls_words_add(&line, "%s/lockstep-train", program);
    for (int i = 1; argv[i] != NULL; i++) {
        ls_words_add(&line, "%s", argv[i]);
    }
    LS_TRY(set(SPAWNED, "1"));
    execv(launcher, line.word);
    return ls_log_fail(LS_ERR_INFRA, "%s cannot be started: %s", launcher, strerror(errno));
}

/* -b is the node's, and each of its ranks takes the whole part of its share, as in main.py. */
static ls_status share_batch(ls_options *options)
{
    const char *text = ls_launchers_value("LOCAL_WORLD_SIZE");
    int ranks = text != NULL ? atoi(text) : 1;
    if (options->global_batch > 0) {
        return LS_OK;
    }
    LS_REFUSE_IF(options->batch_size < ranks,
                 "--batch-size %d with --multiprocessing-distributed: allowed: %d and "
                 "more, the node's %d ranks share it",
                 options->batch_size, ranks, ranks);
    options->batch_size /= LS_PLANT(spawned_batch_whole, ranks, 1);
    return LS_OK;
}

ls_status ls_dist_apply(ls_options *options, char **argv)
{
    ls_dist_url url;
    LS_TRY(ls_dist_url_parse(options->dist_url, &url));
    if (options->multiprocessing_distributed) {
        return ls_launchers_value(SPAWNED) != NULL ? share_batch(options)
                                                   : spawn(options, &url, argv);
    }
    LS_REFUSE_IF(url.kind == 't' && url.port == 0,
                 "--dist-url %s: FREEPORT is allowed with --multiprocessing-distributed; "
                 "give a port",
                 options->dist_url);
    LS_TRY(take_place(options, url.kind != 'e'));
    LS_TEXT(port, 8, "%d", url.port);
    return url.kind == 't'   ? meet_at(url.host, port)
           : url.kind == 'f' ? meet_by_file(url.path, options->timeout_s)
                             : LS_OK;
}

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
    LS_REFUSE_IF(!good, "--dist-url %s: allowed: env://, tcp://HOST:PORT, file:///absolute/path",
                 text);
    if (out != NULL) {
        *out = url;
    }
    return LS_OK;
}
