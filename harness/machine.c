#include "machine.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../kernels/core/log.h"
#include "text.h"

extern char **environ;

static void read_word(const char *path, char *text, size_t bytes)
{
    char *all = ls_text_read(path);
    ls_text_put(text, bytes, "%.*s", all == NULL ? 0 : (int)strcspn(all, "\r\n"),
                all == NULL ? "" : all);
    free(all);
}

/* Why no device of this machine can be used; "" when driver and backend are there. */
static void common_failure(char *text, size_t bytes)
{
    char library[1100], self[1024];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    ls_text_put(library, sizeof library, "%.*s/lib/ls_cuda.so",
                slash == NULL ? 0 : (int)(slash - self), self);
    text[0] = '\0';
    if (access("/proc/driver/nvidia", F_OK) != 0) {
        ls_text_add(text, bytes, "no driver: /proc/driver/nvidia absent");
    }
    if (access(library, R_OK) != 0) {
        ls_text_add(text, bytes, "%sls_cuda.so not built", text[0] == '\0' ? "" : "; ");
    }
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const ls_machine_device *)a)->address, ((const ls_machine_device *)b)->address);
}

int ls_machine_devices(const char *sysfs, ls_machine_device *device, int most)
{
    char folder[700], failure[200];
    ls_text_put(folder, sizeof folder, "%s/bus/pci/devices", sysfs);
    common_failure(failure, sizeof failure);
    int count = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries != NULL && count < most && (e = readdir(entries)) != NULL;) {
        char path[1100], vendor[16], class[16];
        if (e->d_name[0] == '.') {
            continue;
        }
        ls_text_put(path, sizeof path, "%s/%s/vendor", folder, e->d_name);
        read_word(path, vendor, sizeof vendor);
        ls_text_put(path, sizeof path, "%s/%s/class", folder, e->d_name);
        read_word(path, class, sizeof class);
        /* 0x0300: VGA controller, 0x0302: 3D controller (PCI class codes); the last two digits are
         * the programming interface */
        bool display = strncmp(class, "0x0300", 6) == 0 || strncmp(class, "0x0302", 6) == 0;
        if (strcmp(vendor, "0x10de") != 0 || !display) {
            continue;
        }
        ls_machine_device *found = &device[count++];
        memset(found, 0, sizeof *found);
        ls_text_put(found->address, sizeof found->address, "%s", e->d_name);
        ls_text_put(path, sizeof path, "%s/%s/device", folder, e->d_name);
        read_word(path, found->model, sizeof found->model);
        ls_text_put(found->failure, sizeof found->failure, "%s", failure);
        found->usable = failure[0] == '\0';
    }
    if (entries != NULL) {
        closedir(entries);
    }
    qsort(device, (size_t)count, sizeof *device, by_address);
    return count;
}

static const char *sysfs_root(void)
{
    const char *root = getenv("LS_SYSFS");
    return root == NULL || root[0] == '\0' ? "/sys" : root;
}

ls_status ls_machine_choose(const char *wanted, int ranks, bool oversubscribe, const char **device)
{
    ls_machine_device found[LS_MACHINE_DEVICES_MAX];
    int count = ls_machine_devices(sysfs_root(), found, LS_MACHINE_DEVICES_MAX), usable = 0;
    for (int i = 0; i < count; i++) {
        usable += found[i].usable;
    }
    if (strcmp(wanted, "cpu") == 0 || (strcmp(wanted, "auto") == 0 && count == 0)) {
        *device = "cpu";
        return LS_OK;
    }
    if (count == 0) {
        ls_log_error("DEVICE=cuda, but the PCI bus (%s) shows no NVIDIA device", sysfs_root());
        return LS_ERR_INFRA;
    }
    if (usable >= ranks || (usable > 0 && oversubscribe)) {
        *device = "cuda";
        return LS_OK;
    }
    for (int i = 0; i < count; i++) {
        if (!found[i].usable) {
            ls_log_error("%s (NVIDIA %s) cannot be used: %s", found[i].address, found[i].model,
                         found[i].failure);
        }
    }
    ls_log_error(
        "the PCI bus shows %d NVIDIA %s, %d usable, for %d %s (DEVICE=cpu insists on the CPU%s)",
        count, count == 1 ? "device" : "devices", usable, ranks, ranks == 1 ? "rank" : "ranks",
        usable > 0 ? ", OVERSUBSCRIBE=1 shares devices" : "");
    return LS_ERR_INFRA;
}

int ls_machine_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    return cores > 0 ? cores : 1;
}

/* A number of a /proc file of "Name: value" or "name value" lines; -1 when it is not there. */
static int64_t proc_number(const char *path, const char *name)
{
    char *text = ls_text_read(path);
    int64_t value = -1;
    size_t length = strlen(name);
    char *rest = NULL;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, name, length) == 0 && strchr(": \t", line[length]) != NULL) {
            value = atoll(line + length + strspn(line + length, ": \t"));
        }
    }
    free(text);
    return value;
}

int64_t ls_machine_memory_bytes(void)
{
    return proc_number("/proc/meminfo", "MemTotal") * 1024;
}

int64_t ls_machine_available_bytes(void)
{
    return proc_number("/proc/meminfo", "MemAvailable") * 1024;
}

int64_t ls_machine_swapped_pages(void)
{
    return proc_number("/proc/vmstat", "pswpout");
}

static void add_cpu_model(cJSON *out)
{
    char *text = ls_text_read("/proc/cpuinfo");
    char *found = text == NULL ? NULL : strstr(text, "model name");
    found = found == NULL ? NULL : strchr(found, ':');
    if (found != NULL) {
        found += 1 + strspn(found + 1, " ");
        found[strcspn(found, "\n")] = '\0';
    }
    cJSON_AddStringToObject(out, "cpu", found == NULL ? "unknown" : found);
    free(text);
}

static void add_devices(cJSON *out)
{
    ls_machine_device device[LS_MACHINE_DEVICES_MAX];
    int count = ls_machine_devices(sysfs_root(), device, LS_MACHINE_DEVICES_MAX);
    cJSON *list = cJSON_AddArrayToObject(out, "gpus");
    for (int i = 0; i < count; i++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "address", device[i].address);
        cJSON_AddStringToObject(entry, "model", device[i].model);
        cJSON_AddBoolToObject(entry, "usable", device[i].usable);
        cJSON_AddItemToArray(list, entry);
    }
}

static void add_environment(cJSON *out)
{
    static const char *const prefix[] = {"NCCL_", "CUDA_", "CUDNN_", "CUBLAS_", "OMP_"};
    cJSON *list = cJSON_AddObjectToObject(out, "environment");
    for (char **entry = environ; *entry != NULL; entry++) {
        for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++) {
            if (strncmp(*entry, prefix[i], strlen(prefix[i])) == 0) {
                char name[128];
                size_t length = strcspn(*entry, "=");
                ls_text_put(name, sizeof name, "%.*s", (int)length, *entry);
                cJSON_AddStringToObject(list, name, *entry + length + ((*entry)[length] == '='));
            }
        }
    }
}

cJSON *ls_machine_fingerprint(void)
{
    cJSON *out = cJSON_CreateObject();
    LS_ASSERT(out != NULL);
    add_cpu_model(out);
    cJSON_AddNumberToObject(out, "cores", ls_machine_cores());
    cJSON_AddNumberToObject(out, "memory_bytes", (double)ls_machine_memory_bytes());
    cJSON_AddNumberToObject(out, "memory_available_bytes", (double)ls_machine_available_bytes());
    struct utsname name;
    if (uname(&name) == 0) {
        char kernel[300];
        ls_text_put(kernel, sizeof kernel, "%s %s %s", name.sysname, name.release, name.machine);
        cJSON_AddStringToObject(out, "kernel", kernel);
    }
    char governor[64];
    read_word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor);
    if (governor[0] != '\0') {
        cJSON_AddStringToObject(out, "governor", governor);
    }
    double load[3];
    if (getloadavg(load, 3) == 3) {
        cJSON_AddItemToObject(out, "load", cJSON_CreateDoubleArray(load, 3));
    }
    add_devices(out);
    add_environment(out);
    return out;
}

static bool first_line(const char *folder, const char *arguments, char *text, int bytes)
{
    char command[1400];
    if (strchr(folder, '\'') != NULL) {
        return false;
    }
    ls_text_put(command, sizeof command, "git -C '%s' %s 2>/dev/null", folder, arguments);
    FILE *pipe = popen(command, "r");
    bool got = pipe != NULL && fgets(text, bytes, pipe) != NULL;
    if (pipe != NULL) {
        (void)pclose(pipe);
    }
    if (got) {
        text[strcspn(text, "\n")] = '\0';
    }
    return got;
}

void ls_machine_commit(const char *folder, char *commit, int bytes, bool *dirty)
{
    char line[300];
    *dirty = false;
    if (!first_line(folder, "rev-parse --short=12 HEAD", commit, bytes)) {
        commit[0] = '\0';
        return;
    }
    *dirty = first_line(folder, "status --porcelain --untracked-files=no", line, (int)sizeof line);
}
