#include "findings.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

enum { BUSY_MIN = 3 }; /* samples under load that are needed to judge the generation of a link */

typedef struct seen {
    bool lost;
    double first[LS_NVML_READING_COUNT], last[LS_NVML_READING_COUNT];
    int samples, busy, held, capped;
    long long reasons; /* all reasons seen */
    double gen_most, width_least;
} seen;

struct ls_watch_gpu {
    ls_nvml *nvml;
    ls_findings *findings;
    int count;
    ls_nvml_device *device; /* [count] */
    seen *seen;             /* [count] */
    bool events;            /* Xids come from NVML, not from the kernel's log */
    int kernel_log;         /* -1: not readable */
    int file;               /* gpu.jsonl; -1: none */
    char path[700];
};

#define FOUND(w, code, i, ...)                                                                   \
    ls_findings_add((w)->findings, LS_FINDING_##code, (w)->device[i].index, (w)->device[i].uuid, \
                    (w)->device[i].address, __VA_ARGS__)

/* ---- Xid ------------------------------------------------------------------------------------- */

static void found_xid(ls_watch_gpu *watch, int index, int xid)
{
    FOUND(watch, XID, index, "Xid-%d while jobs ran", xid);
}

/* "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the bus." (Linux driver's log). */
static void read_kernel_log(ls_watch_gpu *watch)
{
    char text[8192];
    ssize_t got;
    while (watch->kernel_log >= 0 && (got = read(watch->kernel_log, text, sizeof text - 1)) > 0) {
        text[got] = '\0';
        for (char *at = strstr(text, "NVRM: Xid (PCI:"); at != NULL;
             at = strstr(at + 1, "NVRM: Xid (PCI:")) {
            unsigned domain, bus, slot;
            int xid;
            if (sscanf(at, "NVRM: Xid (PCI:%x:%x:%x): %d", &domain, &bus, &slot, &xid) != 4) {
                continue;
            }
            LS_TEXT(address, 32, "%04x:%02x:%02x.", domain, bus, slot);
            for (int i = 0; i < watch->count; i++) {
                if (strncmp(watch->device[i].address, address, strlen(address)) == 0) {
                    found_xid(watch, i, xid);
                }
            }
        }
    }
}

static void read_xids(ls_watch_gpu *watch)
{
    int index, xid;
    while (watch->events && ls_nvml_next_xid(watch->nvml, &index, &xid)) {
        found_xid(watch, index, xid);
    }
    read_kernel_log(watch);
}

/* The kernel's log, for when NVML does not report Xids. Older lines are skipped. */
static int open_kernel_log(void)
{
    const char *path = getenv("LS_KMSG"); /* for tests */
    int log = open(path == NULL ? "/dev/kmsg" : path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (log >= 0) {
        (void)lseek(log, 0, SEEK_END);
    }
    return log;
}

/* ---- readings -------------------------------------------------------------------------------- */

/* Adds a finding for a counter that has risen since the start. */
static void look_at_counters(ls_watch_gpu *watch, int i)
{
    const seen *s = &watch->seen[i];
    for (int r = LS_NVML_FIRST_COUNTER; r < LS_NVML_READING_COUNT; r++) {
        if (s->last[r] > s->first[r]) {
            FOUND(watch, COUNTER_ROSE, i, "%s rose by %.0f, from %.0f, while jobs ran",
                  ls_nvml_reading_name((ls_nvml_reading)r), s->last[r] - s->first[r], s->first[r]);
        }
    }
    double most = watch->device[i].fact[LS_NVML_PCIE_WIDTH];
    if (s->width_least < most) {
        FOUND(watch, PCIE_WIDTH_FELL, i, "PCIe went from x%.0f to x%.0f while jobs ran", most,
              s->width_least);
    }
}

static void take(ls_watch_gpu *watch, int i, const double *reading)
{
    seen *s = &watch->seen[i];
    if (s->samples++ == 0) {
        memcpy(s->first, reading, sizeof s->first);
        s->width_least = INFINITY;
        s->gen_most = 0;
    }
    for (int r = 0; r < LS_NVML_READING_COUNT; r++) {
        s->last[r] = isfinite(reading[r]) ? reading[r] : s->last[r];
        s->first[r] = isfinite(s->first[r]) ? s->first[r] : reading[r];
    }
    long long reasons = isfinite(reading[LS_NVML_THROTTLE]) ? (long long)reading[LS_NVML_THROTTLE]
                                                            : LS_NVML_REASON_IDLE;
    if ((reasons & LS_NVML_REASON_IDLE) == 0) {
        s->busy++;
        s->held += (reasons & LS_NVML_REASONS_HELD) != 0;
        s->capped += (reasons & LS_NVML_REASON_POWER_CAP) != 0;
        s->reasons |= reasons & LS_NVML_REASONS_HELD;
        s->gen_most = fmax(s->gen_most, reading[LS_NVML_GEN_NOW]);
    }
    s->width_least = fmin(s->width_least, reading[LS_NVML_WIDTH_NOW]);
}

static void write_line(ls_watch_gpu *watch, int i, int64_t at_ns, const double *reading)
{
    cJSON *line = cJSON_CreateObject();
    LS_MEMORY(line != NULL);
    cJSON_AddNumberToObject(line, "at_ns", (double)at_ns);
    cJSON_AddNumberToObject(line, "gpu", watch->device[i].index);
    for (int r = 0; r < LS_NVML_READING_COUNT; r++) {
        if (isfinite(reading[r])) {
            cJSON_AddNumberToObject(line, ls_nvml_reading_name((ls_nvml_reading)r), reading[r]);
        }
    }
    if (ls_json_append_line(watch->file, watch->path, line) != LS_OK) {
        close(watch->file); /* a full disk is reported once */
        watch->file = -1;
    }
    cJSON_Delete(line);
}

void ls_watch_gpu_tick(ls_watch_gpu *watch)
{
    if (watch == NULL) {
        return;
    }
    for (int i = 0; i < watch->count; i++) {
        double reading[LS_NVML_READING_COUNT];
        char why[200];
        if (watch->seen[i].lost) {
            continue;
        }
        int64_t at_ns = ls_clock_ns();
        if (!ls_nvml_sample(watch->nvml, &watch->device[i], reading, why, sizeof why)) {
            watch->seen[i].lost = true;
            FOUND(watch, GPU_LOST, i, "it has stopped answering: %s", why);
            continue;
        }
        take(watch, i, reading);
        look_at_counters(watch, i);
        if (watch->file >= 0) {
            write_line(watch, i, at_ns, reading);
        }
    }
    read_xids(watch);
}

/* ---- from begin to end ----------------------------------------------------------------------- */

ls_watch_gpu *ls_watch_gpu_open(ls_findings *findings)
{
    char why[200];
    ls_watch_gpu *watch = ls_list_make(1, sizeof *watch);
    watch->file = watch->kernel_log = -1;
    watch->findings = findings;
    if (ls_nvml_open(&watch->nvml, why, sizeof why) != LS_OK) {
        free(watch);
        return NULL;
    }
    watch->device = calloc(LS_NVML_DEVICES_MAX, sizeof *watch->device);
    watch->seen = calloc(LS_NVML_DEVICES_MAX, sizeof *watch->seen);
    LS_MEMORY(watch->device != NULL && watch->seen != NULL);
    int all = ls_nvml_devices(watch->nvml, watch->device);
    for (int i = 0; i < all; i++) {
        if (watch->device[i].handle != NULL) { /* the others have been reported */
            watch->device[watch->count] = watch->device[i];
            ls_nvml_read_facts(watch->nvml, &watch->device[watch->count++]);
        }
    }
    if (watch->count == 0) {
        ls_watch_gpu_close(watch);
        return NULL;
    }
    watch->events = ls_nvml_events_begin(watch->nvml, watch->device, watch->count);
    watch->kernel_log = watch->events ? -1 : open_kernel_log();
    ls_watch_gpu_tick(watch);
    return watch;
}

ls_status ls_watch_gpu_job(ls_watch_gpu *watch, const char *folder)
{
    if (watch == NULL) {
        return LS_OK;
    }
    if (watch->file >= 0) {
        close(watch->file);
        watch->file = -1;
    }
    if (folder == NULL) {
        return LS_OK;
    }
    ls_text_put(watch->path, sizeof watch->path, "%s/gpu.jsonl", folder);
    watch->file = ls_file_open_to_write(watch->path, O_TRUNC | O_APPEND);
    if (watch->file < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", watch->path, strerror(errno));
    }
    ls_watch_gpu_tick(watch);
    return LS_OK;
}

static void sum_up(ls_watch_gpu *watch, int i)
{
    const seen *s = &watch->seen[i];
    char words[160];
    if (s->held > 0) {
        FOUND(watch, THROTTLED, i, "clocks were throttled in %d of %d readings under load: %s",
              s->held, s->busy, ls_nvml_reasons_text((double)s->reasons, words, sizeof words));
    }
    if (s->capped > 0) {
        FOUND(watch, POWER_CAPPED, i, "at its power limit in %d of %d readings under load",
              s->capped, s->busy);
    }
    double most = watch->device[i].fact[LS_NVML_PCIE_GEN_MAX];
    if (s->busy >= BUSY_MIN && s->gen_most > 0 && s->gen_most < most) {
        FOUND(watch, PCIE_GENERATION, i, "PCIe generation %.0f under load, it supports %.0f",
              s->gen_most, most);
    }
}

void ls_watch_gpu_close(ls_watch_gpu *watch)
{
    if (watch == NULL) {
        return;
    }
    ls_watch_gpu_tick(watch);
    for (int i = 0; i < watch->count; i++) {
        sum_up(watch, i);
    }
    (void)ls_watch_gpu_job(watch, NULL);
    if (watch->kernel_log >= 0) {
        close(watch->kernel_log);
    }
    ls_nvml_close(watch->nvml);
    free(watch->device);
    free(watch->seen);
    free(watch);
}
