#include "remote_session.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

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
    LS_ASSERT(order != NULL);
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
    cJSON_ArrayForEach(entry, environment)
    {
        if (entry->string == NULL || !is_name(entry->string) || !cJSON_IsString(entry)) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "the order on standard input: variable '%.60s' is not a name with a text",
                entry->string == NULL ? "" : entry->string);
        }
    }
    cJSON_ArrayForEach(entry, environment)
    {
        if (setenv(entry->string, entry->valuestring, 1) != 0) {
            return ls_log_fail(LS_ERR_INFRA, "cannot set %s: %s", entry->string, strerror(errno));
        }
    }
    return LS_OK;
}

ls_status ls_remote_session_apply(const char *line)
{
    cJSON *order = cJSON_Parse(line);
    const cJSON *environment = cJSON_GetObjectItemCaseSensitive(order, "environment");
    const char *directory = ls_json_string(order, "directory", NULL);
    ls_status status = LS_OK;
    if (ls_json_integer(order, "schema", 0) != 1 || !cJSON_IsObject(environment)) {
        ls_log_error("the first line of standard input is not an order: expected a JSON object "
                     "with schema 1 and environment");
        status = LS_ERR_USAGE;
    }
    if (status == LS_OK && directory != NULL && chdir(directory) != 0) {
        ls_log_error("cannot change to %s on this machine: %s", directory, strerror(errno));
        status = LS_ERR_INFRA;
    }
    if (status == LS_OK) {
        status = set_variables(environment);
    }
    cJSON_Delete(order);
    return status;
}

/* ---- the input ------------------------------------------------------------------------------ */

ls_status ls_remote_session_read_order(int input)
{
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
        status = ls_remote_session_apply(line);
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
