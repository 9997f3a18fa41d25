#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "remote_session.h"
#include "kernels/core/text.h"

enum { WORDS_MAX = 24 }; /* of LS_SSH */

/* ---- the command of a channel --------------------------------------------------------------- */

/* For the shell that sshd starts: each word in single quotes. malloc'ed. */
static char *quoted(char *const *words)
{
    size_t bytes = sizeof "exec";
    for (int i = 0; words[i] != NULL; i++) {
        bytes += 4 * strlen(words[i]) + 3;
    }
    char *text = malloc(bytes), *at = text;
    LS_ASSERT(text != NULL);
    at = stpcpy(at, "exec");
    for (int i = 0; words[i] != NULL; i++) {
        at = stpcpy(at, " '");
        for (const char *c = words[i]; *c != '\0'; c++) {
            if (*c == '\'') {
                at = stpcpy(at, "'\\''");
            } else {
                *at++ = *c;
            }
        }
        at = stpcpy(at, "'");
    }
    return text;
}

static char *copied(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *copied(const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    LS_ASSERT(vasprintf(&text, format, arguments) >= 0);
    va_end(arguments);
    return text;
}

/* LS_SSH's options come first: of two equal ones ssh takes the first. */
static char **ssh_words(const char *host, char *const *words)
{
    char **out = calloc(WORDS_MAX + 16, sizeof *out), *rest = NULL;
    const char *given = getenv("LS_SSH");
    char *ssh = strdup(given != NULL && given[strspn(given, " ")] != '\0' ? given : "ssh");
    LS_ASSERT(out != NULL && ssh != NULL);
    int count = 0;
    for (char *word = strtok_r(ssh, " ", &rest); word != NULL && count < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest)) {
        out[count++] = copied("%s", word);
    }
    free(ssh);
    static const char *const options[] = {
        "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        out[count++] = copied("%s", options[i]);
    }
    out[count++] = copied("-oConnectTimeout=%d", LS_REMOTE_CONNECT_S);
    out[count++] = copied("--");
    out[count++] = copied("%s", host);
    out[count++] = quoted(words);
    return out;
}

/* A step of one task on that node which shares the allocation with nobody else's, so it may have
 * all of it. */
static char **srun_words(const char *host, char *const *words)
{
    int command = 0, count = 0;
    while (words[command] != NULL) {
        command++;
    }
    char **out = calloc((size_t)command + 16, sizeof *out);
    LS_ASSERT(out != NULL);
    static const char *const options[] = {"srun",      "--nodes=1",       "--ntasks=1",
                                          "--overlap", "--cpu-bind=none", "--unbuffered"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        out[count++] = copied("%s", options[i]);
    }
    out[count++] = copied("--nodelist=%s", host);
    for (int i = 0; i < command; i++) {
        out[count++] = copied("%s", words[i]);
    }
    return out;
}

void ls_remote_launcher(char *path, size_t bytes)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    ls_text_put(path, bytes, "%s/lockstep-launch", program);
    if (access(path, X_OK) != 0) { /* a unit test is in a subfolder of the programs' folder */
        ls_text_put(path, bytes, "%s/../lockstep-launch", program);
    }
}

/* ---- channels ------------------------------------------------------------------------------- */

/* A pipe with the order in it. Our write end blocks nobody: a channel that reads no more is noticed
 * by its process, not by us. */
static ls_status open_input(const char *line, int *write_end, int *read_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        ls_log_error("cannot make a pipe: %s", strerror(errno));
        return LS_ERR_INFRA;
    }
    size_t bytes = strlen(line);
    bool fits = write(ends[1], line, bytes) == (ssize_t)bytes && write(ends[1], "\n", 1) == 1;
    (void)fcntl(ends[0], F_SETFL, 0); /* the child reads in its own time */
    *write_end = ends[1];
    *read_end = ends[0];
    if (!fits) {
        ls_log_error("the environment for other machines has %zu bytes, allowed: %d", bytes,
                     LS_REMOTE_SESSION_ORDER_BYTES_MAX);
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

ls_status ls_remote_open(const ls_hosts *hosts, int count, char *const *const *words,
                         const cJSON *order, const char *folder, ls_remote *out)
{
    *out = (ls_remote){.count = count,
                       .spec = calloc((size_t)count, sizeof *out->spec),
                       .input_end = calloc((size_t)count, sizeof(int)),
                       .order = calloc((size_t)count, sizeof(int))};
    LS_ASSERT(out->spec != NULL && out->input_end != NULL && out->order != NULL);
    for (int k = 0; k < count; k++) {
        out->input_end[k] = out->order[k] = -1;
    }
    char *line = cJSON_PrintUnformatted(order);
    LS_ASSERT(line != NULL);
    ls_status status = LS_OK;
    for (int k = 0; k < count && status == LS_OK; k++) {
        const char *host = hosts->host[k].name;
        status = open_input(line, &out->input_end[k], &out->order[k]);
        out->spec[k] =
            (ls_proc_spec){.argv = hosts->by == LS_HOSTS_SRUN ? srun_words(host, words[k])
                                                              : ssh_words(host, words[k]),
                           .environment = environ,
                           .log_path = copied("%s/node%d.log", folder, k),
                           .input = out->order[k]};
    }
    free(line);
    if (status != LS_OK) {
        ls_remote_close(out);
    }
    return status;
}

void ls_remote_beat(ls_remote *remote)
{
    for (int k = 0; k < remote->count; k++) {
        if (remote->input_end[k] >= 0) {
            (void)!write(remote->input_end[k], "\n", 1); /* full: it has beats enough */
        }
    }
}

static void close_all(int *descriptor, int count)
{
    for (int k = 0; k < count; k++) {
        if (descriptor[k] >= 0) {
            close(descriptor[k]);
            descriptor[k] = -1;
        }
    }
}

void ls_remote_hang_up(ls_remote *remote)
{
    close_all(remote->input_end, remote->count);
}

void ls_remote_close(ls_remote *remote)
{
    close_all(remote->input_end, remote->count);
    close_all(remote->order, remote->count);
    for (int k = 0; k < remote->count; k++) {
        char **argv = (char **)remote->spec[k].argv;
        for (int i = 0; argv != NULL && argv[i] != NULL; i++) {
            free(argv[i]);
        }
        free(argv);
        free((char *)remote->spec[k].log_path);
    }
    free(remote->spec);
    free(remote->input_end);
    free(remote->order);
    *remote = (ls_remote){.count = 0};
}

cJSON *ls_remote_report(const char *folder, int host, const char *event, char *said, size_t bytes)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/node%d.log", folder, host);
    char *text = ls_text_read(path), *rest = NULL;
    cJSON *report = NULL;
    said[0] = '\0';
    for (char *line = text == NULL ? NULL : strtok_r(text, "\r\n", &rest); line != NULL;
         line = strtok_r(NULL, "\r\n", &rest)) {
        cJSON *found = line[0] == '{' ? cJSON_Parse(line) : NULL;
        if (found != NULL && strcmp(ls_json_string(found, "event", ""), event) == 0) {
            cJSON_Delete(report);
            report = found;
        } else {
            cJSON_Delete(found);
            ls_text_put(said, bytes, "%s", line);
        }
    }
    free(text);
    return report;
}
