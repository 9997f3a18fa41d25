#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "remote_session.h"
#include "kernels/core/text.h"

/* ---- the command of a channel --------------------------------------------------------------- */

/* The command as one word for the shell that sshd starts: each word in single quotes. */
static void add_quoted(ls_words *out, const ls_words *command)
{
    size_t bytes = sizeof "exec";
    for (int i = 0; i < command->count; i++) {
        bytes += 4 * strlen(command->word[i]) + 3;
    }
    char *text = malloc(bytes), *at = text;
    LS_ASSERT(text != NULL);
    at = stpcpy(at, "exec");
    for (int i = 0; i < command->count; i++) {
        at = stpcpy(at, " '");
        for (const char *c = command->word[i]; *c != '\0'; c++) {
            if (*c == '\'') {
                at = stpcpy(at, "'\\''");
            } else {
                *at++ = *c;
            }
        }
        at = stpcpy(at, "'");
    }
    ls_words_add(out, "%s", text);
    free(text);
}

/* The options of LS_SSH come first: ssh uses the first of two equal ones. */
static ls_words ssh_words(const char *host, const ls_words *command)
{
    static const char options[] =
        "-T -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3";
    const char *given = getenv("LS_SSH");
    ls_words out = {0, 0, NULL};
    ls_words_split(&out, given != NULL && given[strspn(given, " ")] != '\0' ? given : "ssh");
    ls_words_split(&out, options);
    ls_words_add(&out, "-oConnectTimeout=%d", LS_REMOTE_CONNECT_S);
    ls_words_add(&out, "--");
    ls_words_add(&out, "%s", host);
    add_quoted(&out, command);
    return out;
}

/* A step of one task on that node. No other step of the allocation runs there, so it may use all of
 * the node. */
static ls_words srun_words(const char *host, const ls_words *command)
{
    ls_words out = {0, 0, NULL};
    ls_words_split(&out, "srun --nodes=1 --ntasks=1 --overlap --cpu-bind=none --unbuffered");
    ls_words_add(&out, "--nodelist=%s", host);
    for (int i = 0; i < command->count; i++) {
        ls_words_add(&out, "%s", command->word[i]);
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

/* A pipe with the order in it. The write end does not block: a channel that stops reading is
 * noticed through its process. */
static ls_status open_input(const char *line, int *write_end, int *read_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot make a pipe: %s", strerror(errno));
    }
    size_t bytes = strlen(line);
    bool fits = write(ends[1], line, bytes) == (ssize_t)bytes && write(ends[1], "\n", 1) == 1;
    (void)fcntl(ends[0], F_SETFL, 0); /* the child reads with blocking */
    *write_end = ends[1];
    *read_end = ends[0];
    if (!fits) {
        return ls_log_fail(LS_ERR_INFRA,
                           "the environment for other machines has %zu bytes, allowed: %d", bytes,
                           LS_REMOTE_SESSION_ORDER_BYTES_MAX);
    }
    return LS_OK;
}

ls_status ls_remote_open(const ls_hosts *hosts, int count, const ls_words *command,
                         const cJSON *order, const char *folder, ls_remote *out)
{
    *out = (ls_remote){.count = count,
                       .spec = calloc((size_t)count, sizeof *out->spec),
                       .words = calloc((size_t)count, sizeof *out->words),
                       .input_end = calloc((size_t)count, sizeof(int)),
                       .order = calloc((size_t)count, sizeof(int))};
    LS_ASSERT(out->spec != NULL && out->words != NULL && out->input_end != NULL &&
              out->order != NULL);
    for (int k = 0; k < count; k++) {
        out->input_end[k] = out->order[k] = -1;
    }
    char *line = cJSON_PrintUnformatted(order);
    LS_ASSERT(line != NULL);
    ls_status status = LS_OK;
    for (int k = 0; k < count && status == LS_OK; k++) {
        const char *host = hosts->host[k].name;
        status = open_input(line, &out->input_end[k], &out->order[k]);
        out->words[k] = hosts->by == LS_HOSTS_SRUN ? srun_words(host, &command[k])
                                                   : ssh_words(host, &command[k]);
        ls_words_add(&out->logs, "%s/node%d.log", folder, k);
        out->spec[k] = (ls_proc_spec){.argv = out->words[k].word,
                                      .environment = environ,
                                      .log_path = out->logs.word[k],
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
            (void)!write(remote->input_end[k], "\n", 1); /* a full pipe has beats enough */
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
        ls_words_free(&remote->words[k]);
    }
    ls_words_free(&remote->logs);
    free(remote->words);
    free(remote->spec);
    free(remote->input_end);
    free(remote->order);
    *remote = (ls_remote){.count = 0};
}

cJSON *ls_remote_report(const char *folder, int host, const char *event, char *said, size_t bytes)
{
    LS_TEXT(path, 700, "%s/node%d.log", folder, host);
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
