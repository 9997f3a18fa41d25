#include "carry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

enum { PIECE_BYTES = 1 << 20, NAME_BYTES = 1024 };

typedef struct ls_carry_sent {
    char *name;
    ino_t inode;
    int64_t bytes, changed_ns;
} ls_carry_sent;

/* ---- sending -------------------------------------------------------------------------------- */

static ls_status put(ls_carry_out *out, const char *data, size_t bytes)
{
    int64_t deadline_ns = ls_clock_after(out->limit_s);
    while (bytes > 0) {
        bool ended = out->ended != NULL && out->ended(out->of);
        int64_t soon_ns = ls_clock_after(0.5);
        int ready =
            ended ? 0
                  : ls_clock_poll(out->to, POLLOUT, soon_ns < deadline_ns ? soon_ns : deadline_ns);
        size_t part = bytes < PIPE_BUF ? bytes : PIPE_BUF; /* which then does not block */
        ssize_t written = ready == 1 ? write(out->to, data, part) : 0;
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
            deadline_ns = ls_clock_after(out->limit_s);
        } else if (ended || ready < 0 || ls_clock_ns() >= deadline_ns ||
                   (written < 0 && errno != EAGAIN && errno != EINTR)) {
            return ls_log_fail(LS_ERR_INFRA, "cannot send files: %s",
                               ended         ? "the other side has ended"
                               : written < 0 ? strerror(errno)
                                             : "the other side takes none");
        }
    }
    return LS_OK;
}

static ls_status put_line(ls_carry_out *out, cJSON *line)
{
    char *text = cJSON_PrintUnformatted(line);
    LS_MEMORY(text != NULL);
    ls_status status = put(out, text, strlen(text));
    LS_THEN(status, put(out, "\n", 1));
    free(text);
    cJSON_Delete(line);
    return status;
}

static cJSON *line_of(const char *what, const char *name)
{
    cJSON *line = cJSON_CreateObject();
    LS_MEMORY(line != NULL);
    cJSON_AddStringToObject(line, "carry", what);
    if (name != NULL) {
        cJSON_AddStringToObject(line, "name", name);
    }
    return line;
}

/* The bytes from `at` on to where the file ends now; *at: there. Each piece is read before its
 * length is sent, because a trainer may still write the file. */
static ls_status put_file(ls_carry_out *out, const char *path, const char *name, int64_t *at)
{
    ls_file_source file;
    if (ls_file_open(path, INT64_MAX, &file) != LS_OK) {
        return LS_OK; /* it was removed meanwhile, or is no regular file */
    }
    char *piece = ls_list_make(1, PIECE_BYTES);
    ls_status status = LS_OK;
    bool first = *at == 0;
    ssize_t got;
    while (status == LS_OK &&
           ((got = pread(file.descriptor, piece, PIECE_BYTES, (off_t)*at)) > 0 || first)) {
        got = got > 0 ? got : 0; /* an empty file is a piece without bytes */
        cJSON *line = line_of("file", name);
        cJSON_AddNumberToObject(line, "at", (double)*at);
        cJSON_AddNumberToObject(line, "bytes", (double)got);
        status = put_line(out, line);
        LS_THEN(status, put(out, piece, (size_t)got));
        *at += got;
        out->bytes += got;
        out->pieces++;
        first = false;
    }
    free(piece);
    close(file.descriptor);
    return status;
}

static ls_carry_sent *find_sent(ls_carry_out *out, const char *name)
{
    for (int i = 0; i < out->count; i++) {
        if (strcmp(out->sent[i].name, name) == 0) {
            return &out->sent[i];
        }
    }
    out->sent = ls_list_grow(out->sent, out->count, &out->capacity, sizeof *out->sent);
    ls_carry_sent *added = &out->sent[out->count++];
    *added = (ls_carry_sent){.name = strdup(name), .bytes = -1};
    LS_MEMORY(added->name != NULL);
    return added;
}

static bool only_grows(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".log") == 0);
}

static ls_status send_entry(ls_carry_out *out, const char *path, const char *name, bool settled,
                            const struct stat *now)
{
    ls_carry_sent *sent = find_sent(out, name);
    int64_t changed_ns = now->st_mtim.tv_sec * INT64_C(1000000000) + now->st_mtim.tv_nsec;
    struct timespec clock;
    (void)clock_gettime(CLOCK_REALTIME, &clock);
    bool same = sent->inode == now->st_ino && sent->bytes >= 0;
    bool grows = only_grows(name), early = settled && now->st_mtim.tv_sec >= clock.tv_sec - 1;
    if ((same && sent->bytes == now->st_size && sent->changed_ns == changed_ns) ||
        (early && !grows)) {
        return LS_OK;
    }
    int64_t at = same && grows && now->st_size >= sent->bytes ? sent->bytes : 0;
    ls_status status = LS_OK;
    if (out->to < 0) {
        at = now->st_size;
    } else if (S_ISLNK(now->st_mode)) {
        char to[NAME_BYTES];
        ssize_t length = readlink(path, to, sizeof to - 1);
        to[length > 0 ? length : 0] = '\0';
        cJSON *line = line_of("link", name);
        cJSON_AddStringToObject(line, "to", to);
        status = put_line(out, line);
        out->pieces++;
        at = now->st_size;
    } else if (S_ISREG(now->st_mode)) {
        status = put_file(out, path, name, &at);
    }
    sent = find_sent(out, name);
    sent->inode = now->st_ino;
    sent->bytes = at;
    sent->changed_ns = changed_ns;
    return status;
}

ls_status ls_carry_send(ls_carry_out *out, const char *name, bool settled)
{
    char path[PATH_MAX], below[NAME_BYTES];
    struct stat now;
    ls_text_put(path, sizeof path, "%s%s%s", out->root, name[0] == '\0' ? "" : "/", name);
    if (lstat(path, &now) != 0) {
        return LS_OK;
    }
    if (!S_ISDIR(now.st_mode)) {
        return send_entry(out, path, name, settled, &now);
    }
    DIR *folder = ls_path_open_folder(path);
    ls_status status = LS_OK;
    for (struct dirent *e; folder != NULL && status == LS_OK && (e = readdir(folder)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            ls_text_put(below, sizeof below, "%s%s%s", name, name[0] == '\0' ? "" : "/", e->d_name);
            status = ls_carry_send(out, below, settled);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return status;
}

ls_status ls_carry_send_end(ls_carry_out *out)
{
    cJSON *line = line_of("end", NULL);
    cJSON_AddNumberToObject(line, "pieces", (double)out->pieces);
    cJSON_AddNumberToObject(line, "bytes", (double)out->bytes);
    return put_line(out, line);
}

void ls_carry_out_free(ls_carry_out *out)
{
    for (int i = 0; i < out->count; i++) {
        free(out->sent[i].name);
    }
    free(out->sent);
    out->sent = NULL;
    out->count = out->capacity = 0;
}

/* ---- receiving ------------------------------------------------------------------------------ */

ls_carry_in ls_carry_in_begin(const char *root, int log)
{
    ls_carry_in in = {.log = log, .file = -1};
    ls_text_put(in.root, sizeof in.root, "%s", root);
    return in;
}

static void fail(ls_carry_in *in, const char *name, const char *why)
{
    if (in->why[0] == '\0') {
        ls_text_put(in->why, sizeof in->why, "%.200s: %.150s", name, why);
    }
}

/* Relative, and nowhere up. */
static bool stays_below(const char *name)
{
    if (name[0] == '\0' || name[0] == '/') {
        return false;
    }
    for (const char *part = name; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0')) {
            return false;
        }
    }
    return true;
}

/* Its path, with the folders above it; false where it has none. */
static bool place(ls_carry_in *in, const char *name, char path[PATH_MAX])
{
    if (!stays_below(name)) {
        fail(in, name, "not a name below the run's folder");
        return false;
    }
    ls_text_put(path, PATH_MAX, "%s/%s", in->root, name);
    for (char *slash = path + strlen(in->root); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) {
            fail(in, name, strerror(errno));
            return false;
        }
    }
    return true;
}

static void close_file(ls_carry_in *in)
{
    if (in->file >= 0 && close(in->file) != 0) {
        fail(in, "a file", strerror(errno));
    }
    in->file = -1;
}

static void begin_file(ls_carry_in *in, const cJSON *line)
{
    char path[PATH_MAX];
    const char *name = ls_json_string(line, "name", "");
    int64_t at = ls_json_integer(line, "at", 0);
    in->missing = ls_json_integer(line, "bytes", 0);
    in->pieces++;
    if (!place(in, name, path)) {
        return;
    }
    in->file = ls_file_open_to_write(path, at == 0 ? O_TRUNC : 0);
    if (in->file < 0 || lseek(in->file, (off_t)at, SEEK_SET) < 0) {
        fail(in, name, strerror(errno));
    }
    if (in->missing == 0) {
        close_file(in);
    }
}

static void make_link(ls_carry_in *in, const cJSON *line)
{
    char path[PATH_MAX];
    const char *name = ls_json_string(line, "name", ""), *to = ls_json_string(line, "to", "");
    in->pieces++;
    if (!stays_below(to)) {
        fail(in, name, "a link to a place that is not carried");
    } else if (place(in, name, path) && symlink(to, path) != 0 && errno != EEXIST) {
        fail(in, name, strerror(errno));
    }
}

static void end(ls_carry_in *in, const cJSON *line)
{
    int64_t pieces = ls_json_integer(line, "pieces", -1);
    int64_t bytes = ls_json_integer(line, "bytes", -1);
    in->ended = true;
    if (pieces != in->pieces || bytes != in->bytes) {
        LS_TEXT(why, 150, "%lld pieces of %lld bytes were sent, %lld of %lld arrived",
                (long long)pieces, (long long)bytes, (long long)in->pieces, (long long)in->bytes);
        fail(in, "files", why);
    }
}

/* A line, with its newline. */
static void take_line(ls_carry_in *in)
{
    cJSON *line = NULL;
    if (strncmp(in->line, "{\"carry\":", 9) == 0) {
        in->line[in->used - 1] = '\0';
        line = ls_json_parse(in->line, NULL);
        in->line[in->used - 1] = '\n';
    }
    const char *what = ls_json_string(line, "carry", "");
    if (strcmp(what, "file") == 0) {
        begin_file(in, line);
    } else if (strcmp(what, "link") == 0) {
        make_link(in, line);
    } else if (strcmp(what, "end") == 0) {
        end(in, line);
    } else if (in->log >= 0 && write(in->log, in->line, in->used) != (ssize_t)in->used) {
        fail(in, "a message", strerror(errno));
    }
    cJSON_Delete(line);
    in->used = 0;
}

static size_t take_bytes(ls_carry_in *in, const char *data, size_t bytes)
{
    size_t own = (int64_t)bytes < in->missing ? bytes : (size_t)in->missing;
    for (size_t done = 0; in->file >= 0 && done < own;) {
        ssize_t written = write(in->file, data + done, own - done);
        if (written < 0 && errno != EINTR) {
            fail(in, "a file of the run", strerror(errno));
            close_file(in);
        }
        done += written > 0 ? (size_t)written : 0;
    }
    in->bytes += (int64_t)own;
    in->missing -= (int64_t)own;
    if (in->missing == 0) {
        close_file(in);
    }
    return own;
}

void ls_carry_take(ls_carry_in *in, const char *data, size_t bytes)
{
    while (bytes > 0) {
        size_t own = 0;
        if (in->missing > 0) {
            own = take_bytes(in, data, bytes);
        } else {
            const char *newline = memchr(data, '\n', bytes);
            size_t room = sizeof in->line - in->used;
            own = newline != NULL ? (size_t)(newline - data) + 1 : bytes;
            own = own < room ? own : room;
            memcpy(in->line + in->used, data, own);
            in->used += own;
            if (in->line[in->used - 1] == '\n' || in->used == sizeof in->line) {
                take_line(in);
            }
        }
        data += own;
        bytes -= own;
    }
}

void ls_carry_in_close(ls_carry_in *in)
{
    if (in->used > 0) {
        take_line(in);
    }
    close_file(in);
}
