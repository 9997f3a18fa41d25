#include "apart.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"

enum { STALLED_S = 30 /* of the other side of a stream of files */ };

/* ---- programs ------------------------------------------------------------------------------- */

static ls_status add_file(uint64_t *digest, const char *path)
{
    char *data = NULL;
    size_t bytes = 0;
    LS_TRY(ls_file_read(path, LS_FILE_TEXT_BYTES, &data, &bytes));
    const char *name = strrchr(path, '/');
    *digest = ls_digest_xxh64(*digest, name, strlen(name));
    *digest = ls_digest_xxh64(*digest, data, bytes);
    free(data);
    return LS_OK;
}

ls_status ls_apart_digest(const char *programs, char text[LS_APART_DIGEST_BYTES])
{
    static const char *const names[] = {"lockstep", "lockstep-train", "lockstep-launch",
                                        "lockstep-collectives"};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        LS_TEXT(path, PATH_MAX, "%s/%s", programs, names[i]);
        LS_TRY(add_file(&digest, path));
    }
    glob_t engines;
    LS_TEXT(pattern, PATH_MAX, "%s/lib/ls_*.so", programs);
    ls_status status = LS_OK;
    if (glob(pattern, 0, NULL, &engines) == 0) {
        for (size_t i = 0; i < engines.gl_pathc; i++) {
            LS_THEN(status, add_file(&digest, engines.gl_pathv[i]));
        }
        globfree(&engines);
    }
    ls_text_put(text, LS_APART_DIGEST_BYTES, "%016llx", (unsigned long long)digest);
    return status;
}

ls_words ls_apart_unpack_words(const char *digest)
{
    /* Two hosts that are one machine unpack at once: the first to have finished gives the folder
     * its name. */
    static const char script[] =
        "d=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep}/$1; p=$d.part$$; "
        "if [ ! -x \"$d/lockstep-launch\" ]; then "
        "[ \"$3\" = unpack ] || exit 9; trap 'rm -rf \"$p\"' EXIT; trap 'exit 3' HUP INT TERM; "
        "e=$(mkdir -p \"$p\" 2>&1 && "
        "tar -xzf - -C \"$p\" --strip-components=2 --wildcards '*/libexec' 2>&1) || "
        "{ echo \"$e\" | head -n 1 >&2; exit 3; }; "
        "mv -T \"$p\" \"$d\" 2>/dev/null || [ -x \"$d/lockstep-launch\" ] || exit 3; fi; "
        "printf '{\"event\":\"carried\",\"programs\":\"%s\"}\\n' \"$d\"";
    const char *folder = getenv("LS_NODE_DIR");
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "sh");
    ls_words_add(&words, "-c");
    ls_words_add(&words, "%s", script);
    ls_words_add(&words, "sh");
    ls_words_add(&words, "%s", digest);
    ls_words_add(&words, "%s", folder == NULL ? "" : folder);
    return words;
}

ls_status ls_apart_tarball(const char *programs, const char *scratch, int *file, int64_t *bytes)
{
    char script[PATH_MAX];
    LS_TEXT(tarball, PATH_MAX, "%s/programs.tar.gz", scratch);
    bool found = ls_path_find("harness/dist.sh", script, sizeof script);
    /* of a folder with its libraries, name/libexec; else dist.sh prints where the tarball is */
    char *const argv[] = {
        "sh",
        "-c",
        "if [ -d \"$1/bundled\" ]; then cd \"$1/../..\" && p=${1%/*} && "
        "tar -czf \"$2\" \"${p##*/}/libexec\"; "
        "else cd \"$3\" && f=$(sh harness/dist.sh \"$1\" 2>&1) && mv \"$f\" \"$2\" || "
        "{ echo \"$f\" | tail -n 1; exit 3; }; fi",
        "sh",
        (char *)(intptr_t)programs,
        tarball,
        found ? script : (char[]){'.', '\0'},
        NULL};
    if (found) {
        *strrchr(script, '/') = '\0'; /* <tree>/harness */
        ls_text_add(script, sizeof script, "%s", "/..");
    }
    int code = 0;
    char *said = ls_proc_isolated_output(argv, 300, &code);
    ls_file_source made = {.descriptor = -1};
    if (code != 0 || ls_file_open(tarball, INT64_MAX, &made) != LS_OK) {
        said[strcspn(said, "\n")] = '\0';
        ls_log_error("cannot make a tarball of %s for the nodes that lack it (make dist): %s",
                     programs, said);
        free(said);
        return LS_ERR_INFRA;
    }
    *file = made.descriptor;
    *bytes = made.bytes;
    (void)unlink(tarball);
    free(said);
    return LS_OK;
}

cJSON *ls_apart_order(const cJSON *order)
{
    static const char *const of_disk[] = {"PATH", "LD_", "PYTHON", "VIRTUAL_ENV", "CONDA_"};
    cJSON *own = cJSON_Duplicate(order, true);
    LS_MEMORY(own != NULL);
    cJSON_DeleteItemFromObjectCaseSensitive(own, "directory");
    cJSON *environment = ls_json_get(own, "environment");
    for (cJSON *entry = environment == NULL ? NULL : environment->child; entry != NULL;) {
        cJSON *next = entry->next;
        bool drop = false;
        for (size_t i = 0; i < sizeof of_disk / sizeof *of_disk; i++) {
            drop = drop || strncmp(entry->string, of_disk[i], strlen(of_disk[i])) == 0;
        }
        if (drop) {
            cJSON_Delete(cJSON_DetachItemViaPointer(environment, entry));
        }
        entry = next;
    }
    return own;
}

void ls_apart_add(cJSON *order, const char *run, const char *programs, bool shared)
{
    cJSON *apart = cJSON_AddObjectToObject(order, "apart");
    cJSON_AddStringToObject(apart, "run", run);
    cJSON_AddStringToObject(apart, "programs", programs);
    cJSON_AddBoolToObject(apart, "shared", shared);
}

/* ---- a channel of the bench ----------------------------------------------------------------- */

static bool is_stopped(void *of)
{
    return atomic_load(&((ls_apart_channel *)of)->stopped);
}

static void *serve(void *of)
{
    enum { BYTES = 1 << 16, LEFT_OPEN_S = 10 };
    ls_apart_channel *c = of;
    char *data = ls_list_make(1, BYTES);
    ls_status status = LS_OK;
    for (int i = 0; c->inputs != NULL && i < c->inputs->count; i++) {
        LS_THEN(status, ls_carry_send(&c->out, c->inputs->word[i], false));
    }
    LS_THEN(status, ls_carry_send_end(&c->out));
    (void)close(c->out.to);
    atomic_store(&c->sending, false);
    int64_t quiet_ns = ls_clock_after(LEFT_OPEN_S);
    while (ls_clock_ns() < quiet_ns) { /* what ssh left behind may have the pipe open */
        int ready = ls_clock_poll(c->from, POLLIN, ls_clock_after(0.5));
        ssize_t got = ready == 1 ? read(c->from, data, BYTES) : 0;
        if (got > 0) {
            ls_carry_take(&c->in, data, (size_t)got);
        } else if (ready != 0 && !(got < 0 && errno == EINTR)) {
            break;
        }
        quiet_ns = got > 0 || !is_stopped(c) ? ls_clock_after(LEFT_OPEN_S) : quiet_ns;
    }
    ls_carry_in_close(&c->in);
    free(data);
    return NULL;
}

ls_apart_channel *ls_apart_channel_open(const char *run, const ls_words *inputs, const char *log,
                                        int input)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ls_log_error("cannot make a pipe: %s", strerror(errno));
        return NULL;
    }
    ls_apart_channel *c = ls_list_make(1, sizeof *c);
    c->from = ends[0];
    c->child = ends[1];
    c->inputs = inputs;
    c->in = ls_carry_in_begin(run, ls_file_open_to_write(log, O_APPEND));
    c->out = (ls_carry_out){
        .to = fcntl(input, F_DUPFD_CLOEXEC, 0), .limit_s = STALLED_S, .ended = is_stopped, .of = c};
    ls_text_put(c->out.root, sizeof c->out.root, "%s", run);
    atomic_init(&c->sending, true);
    atomic_init(&c->stopped, false);
    int failed = c->in.log < 0 || c->out.to < 0 ? errno : 0;
    failed = failed != 0 ? failed : pthread_create(&c->thread, NULL, serve, c);
    c->started = failed == 0;
    if (failed != 0) {
        ls_log_error("cannot take a node's files: %s", strerror(failed));
        if (c->out.to >= 0) {
            close(c->out.to);
        }
        ls_apart_channel_free(c);
        return NULL;
    }
    return c;
}

void ls_apart_channel_stop(ls_apart_channel *channel)
{
    atomic_store(&channel->stopped, true);
}

void ls_apart_channel_finish(ls_apart_channel *channel)
{
    if (channel->started) {
        ls_apart_channel_stop(channel);
        close(channel->child); /* the last one: the thread reads to the end */
        channel->child = -1;
        pthread_join(channel->thread, NULL);
        channel->started = false;
    }
}

void ls_apart_channel_free(ls_apart_channel *channel)
{
    ls_apart_channel_finish(channel);
    close(channel->from);
    if (channel->child >= 0) {
        close(channel->child);
    }
    if (channel->in.log >= 0) {
        close(channel->in.log);
    }
    ls_carry_out_free(&channel->out);
    free(channel);
}

/* ---- on the node ---------------------------------------------------------------------------- */

/* Roots whose launcher is gone. One that was just made may not be locked yet. */
static void remove_stale(const char *runs)
{
    enum { NEW_S = 60 };
    glob_t found;
    LS_TEXT(pattern, PATH_MAX, "%s/*", runs);
    if (glob(pattern, 0, NULL, &found) != 0) {
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat status;
        DIR *folder = ls_path_open_folder(found.gl_pathv[i]);
        if (folder != NULL && fstat(dirfd(folder), &status) == 0 &&
            status.st_mtime < time(NULL) - NEW_S && flock(dirfd(folder), LOCK_EX | LOCK_NB) == 0) {
            ls_path_remove_tree(found.gl_pathv[i]);
        }
        if (folder != NULL) {
            closedir(folder);
        }
    }
    globfree(&found);
}

static ls_status take_inputs(ls_apart *apart, int input)
{
    enum { BYTES = 1 << 16 };
    char *data = ls_list_make(1, BYTES);
    ls_carry_in in = ls_carry_in_begin(apart->root, -1);
    ssize_t got = 1;
    while (!in.ended && got > 0) {
        got = ls_clock_poll(input, POLLIN, ls_clock_after(STALLED_S)) == 1
                  ? read(input, data, BYTES)
                  : 0;
        ls_carry_take(&in, data, got > 0 ? (size_t)got : 0);
    }
    ls_carry_in_close(&in);
    free(data);
    if (in.why[0] != '\0' || !in.ended) {
        return ls_log_fail(LS_ERR_INFRA, "the files that the job needs did not come: %s",
                           in.why[0] != '\0' ? in.why : "the bench has ended or is silent");
    }
    return LS_OK;
}

/* The root, locked, with the input files in it. */
static ls_status make_root(ls_apart *apart, const char *name, int input)
{
    char runs[PATH_MAX];
    ls_text_put(runs, sizeof runs, "%.3000s", apart->own);
    char *slash = strrchr(runs, '/');
    ls_text_put(slash, sizeof runs - (size_t)(slash - runs), "/runs");
    ls_text_put(apart->root, sizeof apart->root, "%.3000s/%.100s", runs, name);
    LS_TRY(ls_path_make_folder(runs));
    remove_stale(runs);
    LS_TRY(ls_path_make_folder(apart->root));
    apart->lock = ls_path_open_folder(apart->root);
    if (apart->lock == NULL || flock(dirfd(apart->lock), LOCK_EX | LOCK_NB) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot use %s: %s", apart->root, strerror(errno));
    }
    return take_inputs(apart, input);
}

ls_status ls_apart_open(const cJSON *order, const char *name, int input, ls_apart *out)
{
    *out = (ls_apart){.is = true, .wake = -1};
    out->shared = ls_json_bool(order, "shared", false);
    ls_text_put(out->run, sizeof out->run, "%s", ls_json_string(order, "run", ""));
    ls_text_put(out->program, sizeof out->program, "%s", ls_json_string(order, "programs", ""));
    ls_path_program(out->own, sizeof out->own);
    ls_text_put(out->root, sizeof out->root, "%s", out->run);
    if (out->run[0] != '/' || out->program[0] != '/' || out->own[0] != '/') {
        return ls_log_fail(
            LS_ERR_USAGE,
            "the order on standard input: run '%.60s' and programs '%.60s' are no folders",
            out->run, out->program);
    }
    LS_TRY(out->shared ? LS_OK : make_root(out, name, input));
    if (chdir(out->root) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot change to %s: %s", out->root, strerror(errno));
    }
    const char *folder = getenv("LS_RUN_DIR");
    if (folder != NULL) {
        char *here = ls_apart_map(out, folder, out->root);
        (void)setenv("LS_RUN_DIR", here, 1);
        free(here);
    }
    if (!out->shared) {
        (void)signal(SIGPIPE, SIG_IGN); /* the bench may end first; ranks get the default back */
        out->out = (ls_carry_out){.to = -1, .limit_s = STALLED_S};
        ls_text_put(out->out.root, sizeof out->out.root, "%s", out->root);
        LS_TRY(ls_carry_send(&out->out, "", false)); /* what came is not sent back */
        out->out.to = STDOUT_FILENO;
    }
    return LS_OK;
}

/* Whether the text at `at` names the folder, or what is below it. */
static bool is_at(const char *text, const char *at, const char *folder)
{
    size_t bytes = strlen(folder);
    bool begins = at == text || strchr("'\"= :;,(", at[-1]) != NULL;
    return begins && strncmp(at, folder, bytes) == 0 &&
           strchr("/'\" ;:,)", at[bytes]) != NULL; /* its end, too */
}

char *ls_apart_map(const ls_apart *apart, const char *text, const char *run)
{
    char *mapped = NULL;
    size_t bytes;
    FILE *out = open_memstream(&mapped, &bytes);
    LS_MEMORY(out != NULL);
    for (const char *at = text; *at != '\0';) {
        if (is_at(text, at, apart->run)) {
            fputs(run, out);
            at += strlen(apart->run);
        } else if (is_at(text, at, apart->program)) {
            fputs(apart->own, out);
            at += strlen(apart->program);
        } else {
            fputc(*at++, out);
        }
    }
    LS_ASSERT(fclose(out) == 0);
    return mapped;
}

void ls_apart_map_words(const ls_apart *apart, char **word)
{
    for (int i = 0; word[i] != NULL; i++) {
        bool script = strpbrk(word[i], " ;'\"") != NULL;
        word[i] = ls_apart_map(apart, word[i], script ? apart->root : ".");
    }
}

static void *send_new(void *of)
{
    ls_apart *apart = of;
    while (apart->sent == LS_OK && ls_clock_poll(apart->wake, POLLIN, ls_clock_after(1)) == 0) {
        apart->sent = ls_carry_send(&apart->out, "", true);
    }
    return NULL;
}

ls_status ls_apart_begin(ls_apart *apart)
{
    if (!apart->is || apart->shared) {
        return LS_OK;
    }
    apart->wake = eventfd(0, EFD_CLOEXEC);
    int failed = apart->wake < 0 ? errno : pthread_create(&apart->thread, NULL, send_new, apart);
    apart->started = failed == 0;
    return failed == 0 ? LS_OK
                       : ls_log_fail(LS_ERR_INFRA, "cannot start a thread: %s", strerror(failed));
}

ls_status ls_apart_finish(ls_apart *apart)
{
    if (!apart->started) {
        return LS_OK;
    }
    const uint64_t one = 1;
    (void)!write(apart->wake, &one, sizeof one);
    pthread_join(apart->thread, NULL);
    apart->started = false;
    LS_THEN(apart->sent, ls_carry_send(&apart->out, "", false));
    LS_THEN(apart->sent, ls_carry_send_end(&apart->out));
    return apart->sent;
}

void ls_apart_find_full(const ls_apart *apart, char *why, size_t bytes)
{
    enum { FULL_BYTES = 1 << 16 };
    struct statvfs disk;
    if (apart->is && statvfs(apart->root, &disk) == 0 &&
        (uint64_t)disk.f_bavail * disk.f_frsize < FULL_BYTES) {
        ls_text_put(why, bytes, "No space left on device: %.200s", apart->root);
    }
}

void ls_apart_close(ls_apart *apart)
{
    if (!apart->is || apart->shared) {
        return;
    }
    if (apart->started) { /* no rank was started */
        const uint64_t one = 1;
        (void)!write(apart->wake, &one, sizeof one);
        pthread_join(apart->thread, NULL);
    }
    (void)chdir("/");
    ls_path_remove_tree(apart->root);
    if (apart->lock != NULL) {
        closedir(apart->lock);
    }
    if (apart->wake >= 0) {
        close(apart->wake);
    }
    ls_carry_out_free(&apart->out);
    apart->is = false;
}
