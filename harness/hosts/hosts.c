#include "hosts.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "harness/process/proc.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

static const char blanks[] = " \t\r";

/* A name becomes a word of the command of ssh or srun: it must not look like an option or contain
 * characters that a shell interprets. */
static ls_status add_host(ls_hosts *hosts, const char *where, const char *name, size_t bytes,
                          int slots)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@%-";
    char one[LS_HOSTS_NAME_BYTES];
    if (bytes == 0 || bytes >= sizeof one || name[0] == '-' || strspn(name, allowed) < bytes) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "%s: '%.*s' is not a host name, allowed: letters, digits and ._:@%%-, at most "
            "%d bytes",
            where, (int)(bytes < 60 ? bytes : 60), name, LS_HOSTS_NAME_BYTES - 1);
    }
    ls_text_put(one, sizeof one, "%.*s", (int)bytes, name);
    for (int i = 0; i < hosts->count; i++) {
        if (strcmp(hosts->host[i].name, one) == 0) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s: host %s is listed twice (slots=N gives it more ranks)", where,
                               one);
        }
    }
    if (hosts->count == LS_HOSTS_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "%s: more than %d hosts", where, LS_HOSTS_MAX);
    }
    ls_host *host = &hosts->host[hosts->count++];
    ls_text_put(host->name, sizeof host->name, "%s", one);
    host->slots = slots;
    return LS_OK;
}

ls_status ls_hosts_parse_list(const char *text, ls_hosts *out)
{
    memset(out, 0, sizeof *out);
    LS_TEXT(where, 80, "NODES=%s", text);
    for (const char *name = text;; name++) {
        size_t bytes = strcspn(name, ",");
        LS_TRY(add_host(out, where, name, bytes, 0));
        name += bytes;
        if (*name == '\0') {
            return LS_OK;
        }
    }
}

static ls_status parse_line(const char *where, char *line, ls_hosts *out)
{
    line[strcspn(line, "#")] = '\0';
    char *rest = NULL, *name = strtok_r(line, blanks, &rest);
    char *slots = strtok_r(NULL, blanks, &rest), *more = strtok_r(NULL, blanks, &rest);
    if (name == NULL) {
        return LS_OK;
    }
    int64_t number = 0;
    bool good = slots == NULL ||
                (strncmp(slots, "slots=", 6) == 0 && slots[6] >= '0' && slots[6] <= '9' &&
                 ls_text_integer(slots + 6, 1, LS_HOSTS_RANKS_MAX, &number) && more == NULL);
    if (!good) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: '%.60s' after the host, allowed: slots=N, N from 1 to %d", where,
                           more != NULL ? more : slots, LS_HOSTS_RANKS_MAX);
    }
    return add_host(out, where, name, strlen(name), (int)number);
}

ls_status ls_hosts_parse_text(const char *path, const char *text, ls_hosts *out)
{
    memset(out, 0, sizeof *out);
    int number = 1;
    for (const char *line = text; *line != '\0'; number++) {
        char copy[512], where[600];
        size_t bytes = strcspn(line, "\n");
        ls_text_put(where, sizeof where, "%s line %d", path, number);
        if (bytes >= sizeof copy) {
            return ls_log_fail(LS_ERR_USAGE, "%s: %zu bytes, allowed: %zu", where, bytes,
                               sizeof copy - 1);
        }
        memcpy(copy, line, bytes);
        copy[bytes] = '\0';
        LS_TRY(parse_line(where, copy, out));
        line += bytes + (line[bytes] == '\n');
    }
    if (out->count == 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s contains no host", path);
    }
    return LS_OK;
}

ls_status ls_hosts_read_file(const char *path, ls_hosts *out)
{
    char *text = NULL;
    size_t bytes;
    ls_file_source file;
    if (ls_file_load(path, LS_FILE_TEXT_BYTES, &file, &text, &bytes) != LS_OK) {
        return ls_log_fail(LS_ERR_USAGE, "HOSTFILE: %s", file.why);
    }
    ls_status status = ls_hosts_parse_text(path, text, out);
    free(text);
    return status;
}

ls_status ls_hosts_read_slurm(ls_hosts *out)
{
    memset(out, 0, sizeof *out);
    out->by = LS_HOSTS_SRUN;
    if (getenv("SLURM_JOB_ID") == NULL) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "NODES=slurm: not inside an allocation (SLURM_JOB_ID is not set; see salloc)");
    }
    enum { SCONTROL_S = 60 };
    const char *nodes = getenv("SLURM_JOB_NODELIST");
    char *argv[] = {"scontrol", "show", "hostnames", nodes == NULL ? "" : (char *)(uintptr_t)nodes,
                    NULL};
    int code;
    char *names = ls_proc_isolated_output(argv, SCONTROL_S, &code), *rest = NULL;
    ls_status status = LS_OK;
    for (char *name = strtok_r(names, "\n", &rest); status == LS_OK && name != NULL;
         name = strtok_r(NULL, "\n", &rest)) {
        status = add_host(out, "scontrol show hostnames", name, strlen(name), 0);
    }
    free(names);
    if (status == LS_OK && (code != 0 || out->count == 0)) {
        status =
            ls_log_fail(LS_ERR_INFRA,
                        "NODES=slurm: `scontrol show hostnames` gave no node (exit code %d)", code);
    }
    return status;
}

ls_status ls_hosts_ranks(const ls_hosts *hosts, int wanted, int *ranks)
{
    *ranks = wanted;
    for (int i = 0; i < hosts->count; i++) {
        const ls_host *first = &hosts->host[0], *one = &hosts->host[i];
        if (wanted > 0 && one->slots > 0 && one->slots < wanted) {
            return ls_log_fail(LS_ERR_USAGE,
                               "host %s has slots=%d, but NGPUS asks for %d ranks on each host",
                               one->name, one->slots, wanted);
        }
        if (wanted == 0 && one->slots != first->slots) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "host %s has slots=%d, host %s has slots=%d (0: not given): all hosts get "
                "the same number of ranks; set it with NGPUS",
                first->name, first->slots, one->name, one->slots);
        }
    }
    if (wanted == 0) {
        *ranks = hosts->host[0].slots;
    }
    return LS_OK;
}

ls_status ls_hosts_read(const char *names, const char *file, ls_hosts *out)
{
    return file != NULL                  ? ls_hosts_read_file(file, out)
           : strcmp(names, "slurm") == 0 ? ls_hosts_read_slurm(out)
                                         : ls_hosts_parse_list(names, out);
}

bool ls_hosts_any_apart(const ls_hosts *hosts)
{
    for (int k = 0; k < hosts->count; k++) {
        if (hosts->host[k].programs[0] != '\0') {
            return true;
        }
    }
    return false;
}

void ls_hosts_describe(const ls_hosts *hosts, char *text, size_t bytes)
{
    int shown = hosts->count <= 3 ? hosts->count : 2;
    text[0] = '\0';
    for (int i = 0; i < shown; i++) {
        const char *at = strrchr(hosts->host[i].name, '@');
        ls_text_add(text, bytes, "%s%.30s", i > 0 ? ", " : "",
                    at == NULL ? hosts->host[i].name : at + 1);
    }
    if (shown < hosts->count) {
        ls_text_add(text, bytes, " and %d more", hosts->count - shown);
    }
}
