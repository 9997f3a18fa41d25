#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"

/* ---- the command of a channel --------------------------------------------------------------- */

/* The command as one word for the shell that sshd starts. */
static void add_quoted(ls_words *out, const ls_words *command)
{
    char *text = NULL;
    size_t bytes;
    FILE *line = open_memstream(&text, &bytes);
    LS_MEMORY(line != NULL);
    fputs("exec", line);
    for (int i = 0; i < command->count; i++) {
        char *word = ls_words_quoted(command->word[i]);
        fprintf(line, " %s", word);
        free(word);
    }
    LS_ASSERT(fclose(line) == 0);
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

void ls_remote_launcher(const ls_host *host, char *path, size_t bytes)
{
    char program[1024];
    if (host != NULL && host->programs[0] != '\0') {
        ls_text_put(path, bytes, "%s/lockstep-launch", host->programs);
        return;
    }
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
    bool fits = bytes < LS_REMOTE_SESSION_ORDER_BYTES_MAX && /* with the end of its line */
                write(ends[1], line, bytes) == (ssize_t)bytes && write(ends[1], "\n", 1) == 1;
    (void)fcntl(ends[0], F_SETFL, 0); /* the child reads with blocking */
    *write_end = ends[1];
    *read_end = ends[0];
    if (!fits) {
        return ls_log_fail(LS_ERR_INFRA,
                           "the environment for other machines has %zu bytes, allowed: %d", bytes,
                           LS_REMOTE_SESSION_ORDER_BYTES_MAX - 1);
    }
    return LS_OK;
}

void ls_remote_programs(char *path, size_t bytes)
{
    ls_remote_launcher(NULL, path, bytes);
    *strrchr(path, '/') = '\0';
}

/* mixed: some host of the job does not share this disk. */
static ls_status open_channel(const ls_host *host, const cJSON *order, const char *log, bool mixed,
                              const ls_remote_files *files, ls_remote *out, int k)
{
    char programs[1024];
    bool apart = host->programs[0] != '\0';
    ls_remote_programs(programs, sizeof programs);
    cJSON *own = apart ? ls_apart_order(order) : cJSON_Duplicate(order, true);
    if (mixed && files != NULL) {
        ls_apart_add(own, files->run, programs, !apart);
    }
    char *line = cJSON_PrintUnformatted(own);
    LS_MEMORY(line != NULL);
    ls_status status = open_input(line, &out->input_end[k], &out->order[k]);
    free(line);
    cJSON_Delete(own);
    if (status == LS_OK && apart && files != NULL) {
        out->apart[k] = ls_apart_channel_open(files->run, files->inputs, log, out->input_end[k]);
        status = out->apart[k] != NULL ? LS_OK : LS_ERR_INFRA;
    }
    return status;
}

ls_status ls_remote_open(const ls_hosts *hosts, int count, const ls_words *command,
                         const cJSON *order, const char *folder, const ls_remote_files *files,
                         ls_remote *out)
{
    *out = (ls_remote){.count = count,
                       .spec = calloc((size_t)count, sizeof *out->spec),
                       .words = calloc((size_t)count, sizeof *out->words),
                       .input_end = calloc((size_t)count, sizeof(int)),
                       .order = calloc((size_t)count, sizeof(int)),
                       .apart = ls_list_make((size_t)count, sizeof *out->apart)};
    LS_MEMORY(out->spec != NULL && out->words != NULL && out->input_end != NULL &&
              out->order != NULL);
    for (int k = 0; k < count; k++) {
        out->input_end[k] = out->order[k] = -1;
    }
    ls_status status = LS_OK;
    for (int k = 0; k < count && status == LS_OK; k++) {
        const char *host = hosts->host[k].name;
        ls_words_add(&out->logs, "%s/node%d.log", folder, k);
        status = open_channel(&hosts->host[k], order, out->logs.word[k], ls_hosts_any_apart(hosts),
                              files, out, k);
        out->words[k] = hosts->by == LS_HOSTS_SRUN ? srun_words(host, &command[k])
                                                   : ssh_words(host, &command[k]);
        out->spec[k] = (ls_proc_spec){.argv = out->words[k].word,
                                      .environment = environ,
                                      .log_path = out->logs.word[k],
                                      .output = out->apart[k] == NULL ? 0 : out->apart[k]->child,
                                      .input = out->order[k]};
    }
    if (status != LS_OK) {
        ls_remote_close(out);
    }
    return status;
}

void ls_remote_beat(ls_remote *remote)
{
    for (int k = 0; k < remote->count; k++) {
        bool sending = remote->apart[k] != NULL && atomic_load(&remote->apart[k]->sending);
        if (remote->input_end[k] >= 0 && !sending) {     /* files are signs of life, too */
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
    for (int k = 0; k < remote->count; k++) {
        if (remote->apart[k] != NULL) {
            ls_apart_channel_stop(remote->apart[k]);
        }
    }
    close_all(remote->input_end, remote->count);
}

void ls_remote_finish(ls_remote *remote)
{
    for (int k = 0; k < remote->count; k++) {
        if (remote->apart[k] != NULL) {
            ls_apart_channel_finish(remote->apart[k]);
        }
    }
}

const char *ls_remote_lacks(const ls_remote *remote, int host)
{
    const ls_carry_in *in = remote->apart[host] == NULL ? NULL : &remote->apart[host]->in;
    return in == NULL           ? NULL
           : in->why[0] != '\0' ? in->why
           : in->ended          ? NULL
                                : "the connection ended before its files had come";
}

void ls_remote_close(ls_remote *remote)
{
    close_all(remote->input_end, remote->count);
    close_all(remote->order, remote->count);
    for (int k = 0; k < remote->count; k++) {
        ls_words_free(&remote->words[k]);
        if (remote->apart[k] != NULL) {
            ls_apart_channel_free(remote->apart[k]);
        }
    }
    free(remote->apart);
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
        cJSON *found = line[0] == '{' ? ls_json_parse(line, NULL) : NULL;
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

/* ---- the order ------------------------------------------------------------------------------ */

static bool is_sent(const char *entry, bool same_devices)
{
    static const char *const prefixes[] = {"PATH=",  "LD_",     "PYTHON", "VIRTUAL_ENV=", "CONDA_",
                                           "LS_",    "OMP_",    "NCCL_",  "CUDA_",        "CUDNN",
                                           "TORCH_", "CUBLAS_", "GLOO_",  "DNNL_",        "ONEDNN_",
                                           "KMP_",   "GOMP_",   "MKL_",   "MALLOC_"};
    static const char *const own[] = {
        "LS_TOKEN=", "LS_RUN_DIR=", "LS_NODE_ADDR=", "LS_SSH=", "OMP_NUM_THREADS="};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strncmp(entry, own[i], strlen(own[i])) == 0) {
            return false;
        }
    }
    if (!same_devices && strncmp(entry, "CUDA_VISIBLE_DEVICES=", 21) == 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(entry, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

cJSON *ls_remote_session_order(const char *token, const char *run_directory, int threads,
                               bool same_devices)
{
    char here[1024], text[16];
    cJSON *order = cJSON_CreateObject();
    LS_MEMORY(order != NULL);
    cJSON_AddNumberToObject(order, "schema", 1);
    if (getcwd(here, sizeof here) != NULL) {
        cJSON_AddStringToObject(order, "directory", here);
    }
    cJSON *environment = cJSON_AddObjectToObject(order, "environment");
    for (char **entry = environ; *entry != NULL; entry++) {
        char name[128];
        size_t bytes = strcspn(*entry, "=");
        if (is_sent(*entry, same_devices) && bytes < sizeof name && (*entry)[bytes] == '=') {
            ls_text_put(name, sizeof name, "%.*s", (int)bytes, *entry);
            cJSON_AddStringToObject(environment, name, *entry + bytes + 1);
        }
    }
    if (token != NULL) {
        cJSON_AddStringToObject(environment, "LS_TOKEN", token);
    }
    if (run_directory != NULL) {
        cJSON_AddStringToObject(environment, "LS_RUN_DIR", run_directory);
    }
    if (threads > 0) {
        ls_text_put(text, sizeof text, "%d", threads);
        cJSON_AddStringToObject(environment, "OMP_NUM_THREADS", text);
    }
    return order;
}

static bool is_name(const char *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    return name[0] != '\0' && !(name[0] >= '0' && name[0] <= '9') &&
           name[strspn(name, allowed)] == '\0';
}

static ls_status set_variables(const cJSON *environment)
{
    const cJSON *entry;
    ls_json_each(entry, environment) {
        if (entry->string == NULL || !is_name(entry->string) || !cJSON_IsString(entry)) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "the order on standard input: variable '%.60s' is not a name with a text",
                entry->string == NULL ? "" : entry->string);
        }
    }
    ls_json_each(entry, environment) {
        if (setenv(entry->string, entry->valuestring, 1) != 0) {
            return ls_log_fail(LS_ERR_INFRA, "cannot set %s: %s", entry->string, strerror(errno));
        }
    }
    return LS_OK;
}

ls_status ls_remote_session_apply(const char *line, cJSON **apart)
{
    cJSON *order = cJSON_Parse(line); /* the bench's own words, unchanged */
    const cJSON *environment = ls_json_get(order, "environment");
    const char *directory = ls_json_string(order, "directory", NULL);
    ls_status status = LS_OK;
    if (ls_json_integer(order, "schema", 0) != 1 || !cJSON_IsObject(environment)) {
        status =
            ls_log_fail(LS_ERR_USAGE,
                        "the first line of standard input is not an order: expected a JSON object "
                        "with schema 1 and environment");
    }
    if (status == LS_OK && directory != NULL && chdir(directory) != 0) {
        status = ls_log_fail(LS_ERR_INFRA, "cannot change to %s on this machine: %s", directory,
                             strerror(errno));
    }
    if (status == LS_OK) {
        status = set_variables(environment);
    }
    *apart = status == LS_OK ? cJSON_DetachItemFromObjectCaseSensitive(order, "apart") : NULL;
    cJSON_Delete(order);
    return status;
}

/* ---- the input ------------------------------------------------------------------------------ */

ls_status ls_remote_session_read_order(int input, cJSON **apart)
{
    *apart = NULL;
    char *line = ls_list_make(1, LS_REMOTE_SESSION_ORDER_BYTES_MAX + 1);
    int64_t deadline_ns = ls_clock_after(LS_REMOTE_SESSION_ORDER_S);
    size_t used = 0;
    bool whole = false;
    /* byte by byte, so that the bytes after the newline are left to ls_remote_session_monitor */
    while (!whole && used < LS_REMOTE_SESSION_ORDER_BYTES_MAX &&
           ls_clock_poll(input, POLLIN, deadline_ns) == 1 && read(input, line + used, 1) == 1) {
        whole = line[used] == '\n';
        used++;
    }
    ls_status status = LS_ERR_USAGE;
    if (whole) {
        line[used - 1] = '\0';
        status = ls_remote_session_apply(line, apart);
    } else {
        ls_log_error("no complete order on standard input: %zu bytes without a newline (allowed: "
                     "%d within %d s)",
                     used, LS_REMOTE_SESSION_ORDER_BYTES_MAX, LS_REMOTE_SESSION_ORDER_S);
    }
    free(line);
    return status;
}

static void *monitor(void *argument)
{
    int input = (int)(intptr_t)argument;
    char beats[256];
    int ready;
    ssize_t got = 0;
    do {
        ready = ls_clock_poll(input, POLLIN, ls_clock_after(LS_REMOTE_SESSION_SILENCE_S));
        got = ready == 1 ? read(input, beats, sizeof beats) : 0;
    } while (got > 0 || (got < 0 && errno == EINTR));
    ls_log_error("the bench %s: its ranks are ended",
                 ready == 0 ? "has been silent for 30 s" : "has ended");
    (void)kill(getpid(), SIGHUP);
    return NULL;
}

ls_status ls_remote_session_monitor(int input)
{
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, monitor, (void *)(intptr_t)input);
    if (failed != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot start a thread: %s", strerror(failed));
    }
    pthread_detach(thread);
    return LS_OK;
}
