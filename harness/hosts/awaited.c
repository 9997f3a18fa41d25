#include "awaited.h"

#include <limits.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "launchers.h"

enum { SHOWN = 4 /* processes or ranks in one line */ };

ls_awaited ls_awaited_begin(const char *directory, const char *second)
{
    return (ls_awaited){.directory = {directory, second}, .idle_s = 60, .seen_ns = ls_clock_ns()};
}

/* The first bytes of a file, as text; "" where there are none. */
static size_t read_some(const char *path, char *text, size_t bytes)
{
    ls_file_source file;
    size_t used = 0;
    if (ls_file_open(path, INT64_MAX, &file) == LS_OK) {
        if (ls_file_fill_some(&file, path, text, bytes - 1, &used) != LS_OK) {
            used = 0;
        }
        close(file.descriptor);
    }
    text[used] = '\0';
    return used;
}

/* ---- processes ------------------------------------------------------------------------------- */

typedef struct process {
    int pid, parent;
    char state, name[32];
} process;

/* All processes of this machine; *count of them. */
static process *read_processes(int *count)
{
    process *all = NULL;
    int capacity = 0;
    DIR *entries = opendir("/proc");
    *count = 0;
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        char stat[512];
        LS_TEXT(path, 300, "/proc/%s/stat", e);
        process one = {.pid = atoi(e)};
        const char *name =
            one.pid > 0 && read_some(path, stat, sizeof stat) > 0 ? strchr(stat, '(') : NULL;
        const char *end = name == NULL ? NULL : strrchr(name, ')');
        if (end != NULL && sscanf(end + 1, " %c %d", &one.state, &one.parent) == 2) {
            ls_text_put(one.name, sizeof one.name, "%.*s", (int)(end - name - 1), name + 1);
            all = ls_list_grow(all, *count, &capacity, sizeof *all);
            all[(*count)++] = one;
        }
    }
    return all;
}

static bool is_below(const process *all, int count, int pid, int root)
{
    for (int hops = 0; hops < 64 && pid > 1 && pid != root; hops++) {
        int i = 0;
        while (i < count && all[i].pid != pid) {
            i++;
        }
        pid = i < count ? all[i].parent : 0;
    }
    return pid == root;
}

/* The rank that its launcher gave a process; -1: it gave none. */
static int rank_of(int pid)
{
    int64_t rank = -1;
    char *text = ls_list_make(1 << 17, 1);
    LS_TEXT(path, 64, "/proc/%d/environ", pid);
    size_t bytes = read_some(path, text, 1 << 17);
    for (int i = 0; i < LS_LAUNCHERS && rank < 0; i++) {
        size_t name = strlen(ls_launchers[i].rank);
        for (const char *at = text; at < text + bytes && rank < 0; at += strlen(at) + 1) {
            if (strncmp(at, ls_launchers[i].rank, name) == 0 && at[name] == '=') {
                (void)ls_text_integer(at + name + 1, 0, INT_MAX, &rank);
            }
        }
    }
    free(text);
    return (int)rank;
}

static double find_stopped(void *context, char *text, size_t bytes)
{
    (void)context;
    int count = 0, found = 0;
    process *all = read_processes(&count);
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        bool held = all[i].state == 't';
        if ((all[i].state != 'T' && !held) || !is_below(all, count, all[i].pid, getpid())) {
            continue;
        }
        int rank = rank_of(all[i].pid), pid = all[i].pid;
        LS_TEXT(of, 32, "rank %d", rank);
        if (found++ < SHOWN) {
            ls_text_add(text, bytes, "%s%s (pid %d, %s) is %s", found > 1 ? "; " : "",
                        rank < 0 ? "a process" : of, pid, all[i].name,
                        held ? "held by a debugger" : "stopped by a signal");
            LS_TEXT(let, 48, ": `kill -CONT %d` lets it go on", pid);
            ls_text_add(text, bytes, "%s", held ? "" : let);
        }
    }
    if (found > SHOWN) {
        ls_text_add(text, bytes, "; and %d more", found - SHOWN);
    }
    free(all);
    return found > 0 ? 0 : -1;
}

/* ---- joining --------------------------------------------------------------------------------- */

typedef struct joining {
    int rank, world;
    char address[200], port[16];
} joining;

/* joining.<pid>, which the attach module keeps while the process waits in init_process_group. */
static bool read_joining(const char *directory, const char *name, joining *out)
{
    int pid = 0, end = 0;
    char line[300];
    LS_TEXT(path, PATH_MAX, "%s/%s", directory, name);
    return sscanf(name, "joining.%9d%n", &pid, &end) == 1 && name[end] == '\0' &&
           getpgid(pid) >= 0 && read_some(path, line, sizeof line) > 0 &&
           sscanf(line, "%9d %9d %199s %15s", &out->rank, &out->world, out->address, out->port) ==
               4;
}

/* Whether a socket of this machine listens on the port: found without a connection to it. */
static bool is_listening(int port)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) {
        char *text = ls_text_read(tables[i]), *rest = NULL;
        for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL && !found;
             line = strtok_r(NULL, "\n", &rest)) {
            unsigned have = 0, state = 0;
            found =
                sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &have, &state) == 2 &&
                have == (unsigned)port && state == 10; /* TCP_LISTEN */
        }
        free(text);
    }
    return found;
}

/* Why a rank cannot reach the place where its group meets; "": nothing is known to be wrong. */
static void add_place(const joining *one, char *text, size_t bytes)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int64_t port = 0;
    int failed =
        strcmp(one->address, "-") == 0 ? 0 : getaddrinfo(one->address, NULL, &hints, &found);
    if (failed != 0) {
        ls_text_add(text, bytes, "; %s (MASTER_ADDR) does not resolve: %s", one->address,
                    gai_strerror(failed));
    } else if (ls_launchers_is_loopback(one->address, true) &&
               ls_text_integer(one->port, 1, 65535, &port) && !is_listening((int)port)) {
        ls_text_add(text, bytes, "; nothing listens at %s:%s (MASTER_ADDR, MASTER_PORT) here",
                    one->address, one->port);
    }
    if (found != NULL) {
        freeaddrinfo(found);
    }
}

static void add_number(char *text, size_t bytes, int *listed, int number)
{
    if (*listed <= 16) {
        ls_text_add(text, bytes, *listed == 16 ? ", ..." : "%s%d", *listed == 0 ? " " : ", ",
                    number);
    }
    (*listed)++;
}

static double find_joining(void *context, char *text, size_t bytes)
{
    const ls_awaited *awaited = context;
    joining one, first = {0};
    char here[LS_HOSTS_RANKS_MAX] = "";
    int count = 0, listed = 0;
    DIR *entries = awaited->directory[0] == NULL ? NULL : opendir(awaited->directory[0]);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        if (read_joining(awaited->directory[0], e, &one) && one.rank >= 0 &&
            one.rank < LS_HOSTS_RANKS_MAX) {
            first = count++ == 0 ? one : first;
            here[one.rank] = 1;
        }
    }
    if (count == 0) {
        return -1;
    }
    ls_text_put(text, bytes, "%d of %d ranks wait in init_process_group", count, first.world);
    int world = first.world < LS_HOSTS_RANKS_MAX ? first.world : LS_HOSTS_RANKS_MAX;
    for (int rank = 0; rank < world; rank++) {
        if (!here[rank]) {
            ls_text_add(text, bytes, "%s", listed == 0 ? "; not there: rank" : "");
            add_number(text, bytes, &listed, rank);
        }
    }
    add_place(&first, text, bytes);
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool is_of_rank(const char *name, const char *form, int *rank)
{
    int end = 0;
    return sscanf(name, form, rank, &end) == 1 && end > 0 && name[end] == '\0' && *rank >= 0 &&
           *rank < LS_HOSTS_RANKS_MAX;
}

/* Of the sizes of events and the contents of open steps, which are mapped and have no time of a
 * last change; *ranks: files of events. */
static uint64_t look_at_files(const char *directory, int *ranks)
{
    enum { OPEN_BYTES = 1 << 16 };
    uint64_t sum = 0; /* of each file: folders have no order */
    DIR *entries = directory == NULL ? NULL : opendir(directory);
    char *open_step = ls_list_make(OPEN_BYTES, 1);
    for (const char *e; (e = ls_path_next(&entries)) != NULL;) {
        struct stat status;
        int rank;
        LS_TEXT(path, PATH_MAX, "%s/%s", directory, e);
        bool events = is_of_rank(e, "rank%9d.jsonl%n", &rank);
        if (!events && !is_of_rank(e, "open.rank%9d%n", &rank)) {
            continue;
        }
        *ranks += events;
        uint64_t digest = ls_digest_update(LS_DIGEST_START, path, strlen(path));
        if (events && stat(path, &status) == 0) {
            digest = ls_digest_update(digest, &status.st_size, sizeof status.st_size);
        } else if (!events) {
            digest = ls_digest_update(digest, open_step, read_some(path, open_step, OPEN_BYTES));
        }
        sum += digest;
    }
    free(open_step);
    return sum;
}

static ls_status keep_last(void *context, const cJSON *event, int line)
{
    char *text = context;
    int64_t step = ls_json_integer(event, "step", -1);
    LS_TEXT(of, 40, " %lld", (long long)step);
    (void)line;
    ls_text_put(text, 100, "%.40s%s", ls_json_string(event, "event", "?"), step >= 0 ? of : "");
    return LS_OK;
}

static void describe_last(const char *directory, int rank, char *text, size_t bytes)
{
    char last[100] = "nothing";
    LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", directory, rank);
    (void)ls_json_each_line(path, keep_last, last);
    ls_text_put(text, bytes, "after '%s'", last);
}

/* Reads events whole, so it is done once after the last change. */
static void describe_ranks(ls_awaited *awaited)
{
    int shown = 0;
    awaited->ranks[0] = '\0';
    for (int i = 0; i < 2; i++) {
        for (int rank = 0; awaited->directory[i] != NULL && rank < LS_HOSTS_RANKS_MAX; rank++) {
            char does[200];
            LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", awaited->directory[i], rank);
            if (access(path, R_OK) == 0 && shown++ < SHOWN) {
                (awaited->describe != NULL ? awaited->describe : describe_last)(
                    awaited->directory[i], rank, does, sizeof does);
                ls_text_add(awaited->ranks, sizeof awaited->ranks, "%s rank %d %s",
                            shown > 1 ? "," : ":", rank, does);
            }
        }
    }
    ls_text_add(awaited->ranks, sizeof awaited->ranks, "%s", shown > SHOWN ? ", ..." : "");
    awaited->described = awaited->seen;
}

static double find_idle(void *context, char *text, size_t bytes)
{
    ls_awaited *awaited = context;
    int ranks = 0;
    uint64_t seen = 0;
    char shared[200];
    for (int i = 0; i < 2; i++) {
        seen += look_at_files(awaited->directory[i], &ranks);
    }
    int64_t now_ns = ls_clock_ns();
    awaited->seen_ns = seen != awaited->seen ? now_ns : awaited->seen_ns;
    awaited->seen = seen;
    double idle_s = ls_clock_ms_between(awaited->seen_ns, now_ns) * 1e-3;
    if (ranks == 0 || idle_s < awaited->idle_s) {
        return -1;
    }
    if (awaited->described != seen) {
        describe_ranks(awaited);
    }
    bool small = ls_awaited_shared_memory(shared, sizeof shared);
    ls_text_put(text, bytes, "no step for %.0f s%s%s%s", idle_s, awaited->ranks, small ? "; " : "",
                small ? shared : "");
    return idle_s;
}

bool ls_awaited_shared_memory(char *text, size_t bytes)
{
    static const uint64_t LEAST = 64
                                  << 20; /* docker's default, which PyTorch's manual calls small */
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) != 0) {
        return false;
    }
    uint64_t all = (uint64_t)shm.f_blocks * shm.f_frsize,
             left = (uint64_t)shm.f_bavail * shm.f_frsize;
    ls_text_put(text, bytes,
                "/dev/shm has %.4g of %.4g MB left, through which workers of a DataLoader pass "
                "batches (docker: --shm-size)",
                (double)left / (1 << 20), (double)all / (1 << 20));
    return left < LEAST;
}

ls_waiting_probe *const ls_awaited_probes[] = {find_stopped, find_joining, find_idle, NULL};
