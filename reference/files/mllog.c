#include "events.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"

struct ls_mllog {
    int descriptor;
    char path[512];
};

ls_status ls_mllog_open(const char *path, bool append, ls_mllog **out)
{
    ls_mllog *log = ls_list_make(1, sizeof *log);
    ls_text_put(log->path, sizeof log->path, "%s", path);
    log->descriptor = strcmp(path, "-") == 0
                          ? STDOUT_FILENO
                          : ls_file_open_to_write(path, append ? O_APPEND : O_TRUNC);
    if (log->descriptor < 0) {
        ls_log_error("--mllog %s: cannot write it: %s", path, strerror(errno));
        free(log);
        return LS_ERR_USAGE;
    }
    *out = log;
    return LS_OK;
}

void ls_mllog_close(ls_mllog *log)
{
    if (log != NULL && log->descriptor != STDOUT_FILENO) {
        close(log->descriptor);
    }
    free(log);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Nothing where log is NULL. Takes `value`. status NULL: no such metadata. */
static ls_status write_line(ls_mllog *log, const char *type, const char *key, cJSON *value,
                            int64_t epoch, const char *status)
{
    if (log == NULL) {
        cJSON_Delete(value);
        return LS_OK;
    }
    cJSON *event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "namespace", "");
    cJSON_AddNumberToObject(event, "time_ms", (double)now_ms());
    cJSON_AddStringToObject(event, "event_type", type);
    cJSON_AddStringToObject(event, "key", key);
    cJSON_AddItemToObject(event, "value", value);
    cJSON *metadata = cJSON_AddObjectToObject(event, "metadata");
    cJSON_AddStringToObject(metadata, "file", "lockstep-train");
    cJSON_AddNumberToObject(metadata, "lineno", 0);
    if (epoch > 0) {
        cJSON_AddNumberToObject(metadata, "epoch_num", (double)epoch);
    }
    if (status != NULL) {
        cJSON_AddStringToObject(metadata, "status", status);
    }
    char *text = cJSON_PrintUnformatted(event), *line = NULL;
    cJSON_Delete(event);
    LS_MEMORY(text != NULL);
    int bytes = asprintf(&line, ":::MLLOG %s\n", text);
    cJSON_free(text);
    LS_TRY_MEMORY(bytes >= 0, "a line of the MLPerf log");
    ls_status written = ls_file_write(log->descriptor, log->path, line, (size_t)bytes);
    free(line);
    return written;
}

ls_status ls_mllog_interval(ls_mllog *log, const char *key, bool begins, int64_t epoch)
{
    return write_line(log, begins ? "INTERVAL_START" : "INTERVAL_END", key, cJSON_CreateNull(),
                      epoch, NULL);
}

ls_status ls_mllog_number(ls_mllog *log, const char *key, double value, int64_t epoch)
{
    return write_line(log, "POINT_IN_TIME", key, cJSON_CreateNumber(value), epoch, NULL);
}

ls_status ls_mllog_text(ls_mllog *log, const char *key, const char *value)
{
    return write_line(log, "POINT_IN_TIME", key, cJSON_CreateString(value), 0, NULL);
}

ls_status ls_mllog_stop(ls_mllog *log, bool success)
{
    return write_line(log, "INTERVAL_END", "run_stop", cJSON_CreateNull(), 0,
                      success ? "success" : "aborted");
}
