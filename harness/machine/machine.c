#include "machine.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "nvml.h"
#include "kernels/core/clock.h"
#include "kernels/core/cores.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"
#include "harness/process/proc.h"

extern char **environ;

static void read_word(const char *path, char *text, size_t bytes)
{
    char *all = ls_text_read(path);
    ls_text_put(text, bytes, "%.*s", all == NULL ? 0 : (int)strcspn(all, "\r\n"),
                all == NULL ? "" : all);
    free(all);
}

/* The path of ls_cuda.so that kernels/load.c uses. */
static void backend_path(char *path, size_t bytes)
{
    char program[1024];
    const char *folder = getenv("LS_LIB_DIR");
    if (folder != NULL && folder[0] != '\0') {
        ls_text_put(path, bytes, "%s/ls_cuda.so", folder);
        return;
    }
    ls_path_program(program, sizeof program);
    ls_text_put(path, bytes, "%s/lib/ls_cuda.so", program);
}

bool ls_machine_emulated(void)
{
    char path[1100];
    backend_path(path, sizeof path);
    void *library = access(path, R_OK) == 0 ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
    bool emulated = library != NULL && dlsym(library, "emulate_launch") != NULL;
    if (library != NULL) {
        dlclose(library);
    }
    return emulated;
}

/* Sets which devices on the bus NVML can query. */
static void ask_nvml(ls_machine_device *device, int count)
{
    char why[200], library[1100];
    ls_nvml *nvml = NULL;
    bool open = count > 0 && ls_nvml_open(&nvml, why, sizeof why) == LS_OK;
    bool driver = open || access("/proc/driver/nvidia", F_OK) == 0;
    ls_nvml_device *known = ls_list_make(LS_NVML_DEVICES_MAX, sizeof *known);
    int known_count = open ? ls_nvml_devices(nvml, known) : 0;
    backend_path(library, sizeof library);
    bool built = access(library, R_OK) == 0;
    for (int i = 0; i < count; i++) {
        ls_machine_device *d = &device[i];
        const ls_nvml_device *same = NULL;
        for (int k = 0; k < known_count; k++) {
            same = strcmp(known[k].address, d->address) == 0 ? &known[k] : same;
        }
        char *failure = d->failure;
        failure[0] = '\0';
        if (!driver) {
            ls_text_add(failure, sizeof d->failure, "no driver: /proc/driver/nvidia absent; %s",
                        why);
        } else if (open && same == NULL && !ls_nvml_answers(nvml, d->address, why, sizeof why)) {
            ls_text_add(failure, sizeof d->failure, "the driver does not list it; NVML: %s", why);
        } else if (open && same->handle == NULL) {
            ls_text_add(failure, sizeof d->failure, "NVML: %s", same->failure);
        }
        if (!built) {
            ls_text_add(failure, sizeof d->failure, "%sls_cuda.so not built",
                        failure[0] == '\0' ? "" : "; ");
        }
        d->usable = failure[0] == '\0';
    }
    free(known);
    ls_nvml_close(nvml);
}

int ls_machine_devices(const char *sysfs, ls_machine_device device[LS_MACHINE_DEVICES_MAX])
{
    int count = ls_bus_list(sysfs, device, LS_MACHINE_DEVICES_MAX);
    ask_nvml(device, count);
    return count;
}

/* ---- CUDA's driver ----------------------------------------------------------------------------
 */

/* Functions of cuda.h; CUresult and CUdevice are int. */
typedef struct entries {
    int (*init)(unsigned int flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*device)(int *device, int ordinal);
    int (*address)(char *text, int bytes, int device);
    int (*error_text)(int error, const char **text);
} entries;

static bool find_symbol(void *library, const char *symbol, void *to)
{
    void *found = dlsym(library, symbol);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static bool find_symbols(void *library, entries *e)
{
    return find_symbol(library, "cuInit", &e->init) &&
           find_symbol(library, "cuDriverGetVersion", &e->version) &&
           find_symbol(library, "cuDeviceGetCount", &e->count) &&
           find_symbol(library, "cuDeviceGet", &e->device) &&
           find_symbol(library, "cuDeviceGetPCIBusId", &e->address) &&
           find_symbol(library, "cuGetErrorString", &e->error_text);
}

static void add_error(const entries *e, const char *call, int error, cJSON *answer)
{
    const char *text = NULL;
    LS_TEXT(line, 200, "%s: error %d, %s", call, error,
            e->error_text(error, &text) == 0 && text != NULL ? text : "no text");
    cJSON_AddStringToObject(answer, "failure", line);
}

static void ask_cuda(cJSON *answer)
{
    entries e;
    const char *path = getenv("LS_LIBCUDA");
    void *library = dlopen(path == NULL || path[0] == '\0' ? "libcuda.so.1" : path, RTLD_NOW);
    if (library == NULL) {
        cJSON_AddStringToObject(answer, "failure", dlerror());
        return;
    }
    if (!find_symbols(library, &e)) {
        cJSON_AddStringToObject(answer, "failure", dlerror());
        return;
    }
    int error = e.init(0), version = 0, count = 0;
    if (error != 0) {
        add_error(&e, "cuInit", error, answer);
        return;
    }
    (void)e.version(&version);
    cJSON_AddNumberToObject(answer, "version", version);
    error = e.count(&count);
    if (error != 0) {
        add_error(&e, "cuDeviceGetCount", error, answer);
        return;
    }
    cJSON *list = cJSON_AddArrayToObject(answer, "addresses");
    for (int i = 0; i < count; i++) {
        char text[32] = "";
        int device = 0;
        if (e.device(&device, i) != 0 || e.address(text, sizeof text, device) != 0) {
            text[0] = '\0';
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
}

static ls_status in_child(void *context, FILE *to)
{
    (void)context;
    cJSON *answer = cJSON_CreateObject();
    LS_MEMORY(answer != NULL);
    ask_cuda(answer);
    char *text = cJSON_PrintUnformatted(answer);
    LS_MEMORY(text != NULL);
    ls_status status = fputs(text, to) < 0 ? LS_ERR_INFRA : LS_OK;
    cJSON_free(text);
    cJSON_Delete(answer);
    return status;
}

/* The driver writes addresses in capitals. */
static void small_letters(char *text)
{
    for (; *text != '\0'; text++) {
        *text = (char)(*text >= 'A' && *text <= 'F' ? *text - 'A' + 'a' : *text);
    }
}

void ls_machine_driver(ls_driver *out)
{
    memset(out, 0, sizeof *out);
    ls_proc_isolated isolated;
    char why[120] = "";
    if (ls_proc_isolated_start(in_child, NULL, &isolated) != LS_OK) {
        ls_text_put(out->failure, sizeof out->failure, "cannot start a process for the driver");
        return;
    }
    char *text =
        ls_proc_isolated_answer(&isolated, ls_clock_after(LS_DRIVER_LIMIT_S), why, sizeof why);
    cJSON *answer = text == NULL ? NULL : ls_json_parse(text, NULL);
    free(text);
    if (answer == NULL) {
        ls_text_put(out->failure, sizeof out->failure, "cuInit: %s (%d s)",
                    why[0] == '\0' ? "no answer" : why, LS_DRIVER_LIMIT_S);
        return;
    }
    ls_text_put(out->failure, sizeof out->failure, "%s", ls_json_string(answer, "failure", ""));
    out->version = ls_json_int(answer, "version", 0);
    const cJSON *entry;
    ls_json_each(entry, ls_json_get(answer, "addresses")) {
        if (out->count < LS_MACHINE_DEVICES_MAX && cJSON_IsString(entry)) {
            char *address = out->address[out->count++];
            ls_text_put(address, sizeof out->address[0], "%s", entry->valuestring);
            small_letters(address);
        }
    }
    cJSON_Delete(answer);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Asks CUDA, as a rank would: a device that CUDA does not list is unusable, even if NVML has it. */
static int ask_driver(ls_machine_device *device, int count)
{
    ls_driver *driver = ls_list_make(1, sizeof *driver);
    ls_machine_driver(driver);
    int usable = 0;
    for (int i = 0; i < count; i++) {
        ls_machine_device *d = &device[i];
        bool listed = false;
        for (int k = 0; k < driver->count; k++) {
            listed = listed || strcmp(driver->address[k], d->address) == 0;
        }
        if (d->usable && driver->failure[0] != '\0') {
            ls_text_put(d->failure, sizeof d->failure, "%s", driver->failure);
        } else if (d->usable && !listed) {
            ls_text_put(d->failure, sizeof d->failure, "CUDA does not list it%s%s",
                        getenv("CUDA_VISIBLE_DEVICES") == NULL ? "" : " with CUDA_VISIBLE_DEVICES=",
                        getenv("CUDA_VISIBLE_DEVICES") == NULL ? ""
                                                               : getenv("CUDA_VISIBLE_DEVICES"));
        }
        d->usable = d->failure[0] == '\0';
        usable += d->usable;
    }
    free(driver);
    return usable;
}

/* Where the bus shows no device only the driver can be asked, if it has left a file. */
static int ask_driver_alone(ls_machine_device device[LS_MACHINE_DEVICES_MAX])
{
    char library[1100], file[700];
    const char *asked = getenv("LS_LIBCUDA"); /* for tests */
    if (!ls_bus_doubt(file, sizeof file) && (asked == NULL || asked[0] == '\0')) {
        return 0;
    }
    ls_driver *driver = ls_list_make(1, sizeof *driver);
    ls_machine_driver(driver);
    backend_path(library, sizeof library);
    bool built = access(library, R_OK) == 0;
    int count = driver->count; /* no more than LS_MACHINE_DEVICES_MAX */
    for (int i = 0; i < count; i++) {
        memset(&device[i], 0, sizeof device[i]);
        ls_text_put(device[i].address, sizeof device[i].address, "%s", driver->address[i]);
        ls_text_put(device[i].failure, sizeof device[i].failure, "%s",
                    built ? "" : "ls_cuda.so not built");
        device[i].usable = built;
    }
    if (count > 0) {
        ls_log_note("the PCI bus shows no NVIDIA device; CUDA lists %d %s", count,
                    count == 1 ? "GPU" : "GPUs");
    } else if (driver->failure[0] != '\0') {
        ls_log_warn("the PCI bus shows no NVIDIA device, and CUDA reports: %s", driver->failure);
    }
    free(driver);
    return count;
}

static ls_status refuse(const ls_machine_device *device, int count, int usable, int ranks)
{
    for (int i = 0; i < count; i++) {
        if (!device[i].usable) {
            ls_log_error("%s (NVIDIA %s) cannot be used: %s", device[i].address, device[i].model,
                         device[i].failure);
        }
    }
    return ls_log_fail(
        LS_ERR_INFRA,
        "the PCI bus shows %d NVIDIA %s, %d usable, for %d %s (DEVICE=cpu forces the CPU%s)", count,
        count == 1 ? "device" : "devices", usable, ranks, ranks == 1 ? "rank" : "ranks",
        usable > 0 ? ", OVERSUBSCRIBE=1 shares devices" : "");
}

ls_status ls_machine_choose_among(const char *wanted, int ranks, bool oversubscribe,
                                  const char **device, int *usable)
{
    ls_machine_device found[LS_MACHINE_DEVICES_MAX];
    *usable = 0;
    if (strcmp(wanted, "cpu") == 0) {
        *device = "cpu";
        return LS_OK;
    }
    int count = ls_machine_devices(ls_path_sysfs(), found);
    bool automatic = strcmp(wanted, "auto") == 0, emulated = ls_machine_emulated();
    char file[700];
    bool doubt = count == 0 && !emulated && ls_bus_doubt(file, sizeof file);
    if (count == 0 && !emulated && (!automatic || doubt || !ls_bus_is_visible(ls_path_sysfs()))) {
        count = ask_driver_alone(found);
    }
    if (count == 0 && automatic && doubt) {
        return ls_log_fail(LS_ERR_INFRA,
                           "the PCI bus (%s) shows no NVIDIA device and CUDA lists none, but %s "
                           "exists: a GPU may be hidden (DEVICE=cpu forces the CPU)",
                           ls_path_sysfs(), file);
    }
    if (count == 0 && automatic) {
        *device = "cpu";
        return LS_OK;
    }
    if (count == 0 && emulated) {
        ls_log_note("DEVICE=cuda: a GPU emulated on the CPU, for tests; no GPU is used");
        *device = "cuda";
        return LS_OK;
    }
    if (count == 0) {
        return ls_log_fail(LS_ERR_INFRA,
                           "no NVIDIA device: the PCI bus (%s) shows none, and CUDA lists none",
                           ls_path_sysfs());
    }
    for (int i = 0; i < count; i++) {
        *usable += found[i].usable;
    }
    if (*usable > 0 && found[0].model[0] != '\0') {
        *usable = ask_driver(found, count);
    }
    if (*usable < ranks && (*usable == 0 || !oversubscribe)) {
        return refuse(found, count, *usable, ranks);
    }
    *device = "cuda";
    return LS_OK;
}

ls_status ls_machine_choose(const char *wanted, int ranks, bool oversubscribe, const char **device)
{
    int usable;
    return ls_machine_choose_among(wanted, ranks, oversubscribe, device, &usable);
}

/* A number in a /proc file with lines "Name: value" or "name value"; -1 when it is absent. */
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

static void add_cores(cJSON *out)
{
    ls_cores cores = ls_cores_read();
    cJSON_AddNumberToObject(out, "cores", cores.usable);
    cJSON_AddNumberToObject(out, "cores_online", cores.machine);
    cJSON_AddNumberToObject(out, "cores_in_mask", cores.mask);
    ls_json_add_number(out, "cpu_quota", cores.quota); /* null: none */
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Tue ...": the word with a point. */
static void add_driver(cJSON *out)
{
    LS_TEXT(path, 700, "%s/driver/nvidia/version", ls_path_procfs());
    char *text = ls_text_read(path), *rest = NULL;
    for (char *word = text == NULL ? NULL : strtok_r(text, " \t\n", &rest); word != NULL;
         word = strtok_r(NULL, " \t\n", &rest)) {
        if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.') != NULL) {
            cJSON_AddStringToObject(out, "driver", word);
            break;
        }
    }
    free(text);
}

static void add_devices(cJSON *out)
{
    ls_machine_device device[LS_MACHINE_DEVICES_MAX];
    int count = ls_machine_devices(ls_path_sysfs(), device);
    cJSON *list = cJSON_AddArrayToObject(out, "gpus");
    for (int i = 0; i < count; i++) {
        cJSON *entry = ls_json_append_object(list);
        cJSON_AddStringToObject(entry, "address", device[i].address);
        cJSON_AddStringToObject(entry, "model", device[i].model);
        cJSON_AddBoolToObject(entry, "usable", device[i].usable);
    }
}

static void add_environment(cJSON *out)
{
    static const char *const prefix[] = {"NCCL_", "CUDA_", "CUDNN_", "CUBLAS_", "OMP_", "LS_SHM"};
    cJSON *list = cJSON_AddObjectToObject(out, "environment");
    for (char **entry = environ; *entry != NULL; entry++) {
        for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++) {
            if (strncmp(*entry, prefix[i], strlen(prefix[i])) == 0) {
                size_t length = strcspn(*entry, "=");
                LS_TEXT(name, 128, "%.*s", (int)length, *entry);
                cJSON_AddStringToObject(list, name, *entry + length + ((*entry)[length] == '='));
            }
        }
    }
}

cJSON *ls_machine_fingerprint(void)
{
    cJSON *out = cJSON_CreateObject();
    LS_MEMORY(out != NULL);
    add_cpu_model(out);
    add_cores(out);
    cJSON_AddNumberToObject(out, "memory_bytes", (double)ls_machine_memory_bytes());
    cJSON_AddNumberToObject(out, "memory_available_bytes", (double)ls_machine_available_bytes());
    struct utsname name;
    if (uname(&name) == 0) {
        LS_TEXT(kernel, 300, "%s %s %s", name.sysname, name.release, name.machine);
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
    add_driver(out);
    add_devices(out);
    add_environment(out);
    return out;
}

/* The first line that git writes about the folder; empty when it fails. */
static void git_line(const char *folder, const char *arguments, char *line, size_t bytes)
{
    enum { GIT_S = 60 };
    ls_words words = {0, 0, NULL};
    ls_words_add(&words, "git");
    ls_words_add(&words, "-C");
    ls_words_add(&words, "%s", folder);
    ls_words_split(&words, arguments);
    int code;
    char *text = ls_proc_isolated_output(words.word, GIT_S, &code);
    ls_text_put(line, bytes, "%.*s", code == 0 ? (int)strcspn(text, "\n") : 0, text);
    free(text);
    ls_words_free(&words);
}

/* As harness/dist.sh writes it: "1a2b3c4d5e6f", " dirty" behind it where files differed. */
static bool packed_commit(const char *folder, char *commit, int bytes, bool *dirty)
{
    LS_TEXT(path, 1100, "%s/commit.txt", folder);
    char *text = NULL;
    size_t length = 0;
    if (access(path, R_OK) != 0 || ls_file_read(path, 200, &text, &length) != LS_OK) {
        return false;
    }
    ls_text_put(commit, (size_t)bytes, "%.*s", (int)strspn(text, "0123456789abcdef"), text);
    *dirty = strstr(text, "dirty") != NULL;
    free(text);
    return commit[0] != '\0';
}

void ls_machine_commit(const char *folder, char *commit, int bytes, bool *dirty)
{
    char line[300] = "";
    if (packed_commit(folder, commit, bytes, dirty)) {
        return;
    }
    git_line(folder, "rev-parse --short=12 HEAD", commit, (size_t)bytes);
    if (commit[0] != '\0') {
        git_line(folder, "status --porcelain --untracked-files=no", line, sizeof line);
    }
    *dirty = line[0] != '\0';
}

/* ---- load of other programs ------------------------------------------------------------------ */

static double seconds_of(const struct timeval *value)
{
    return (double)value->tv_sec + (double)value->tv_usec * 1e-6;
}

static double own_s(void)
{
    struct rusage self, children;
    if (getrusage(RUSAGE_SELF, &self) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0) {
        return NAN;
    }
    return seconds_of(&self.ru_utime) + seconds_of(&self.ru_stime) +
           seconds_of(&children.ru_utime) + seconds_of(&children.ru_stime);
}

void ls_machine_load(ls_machine_load_times *out)
{
    *out = (ls_machine_load_times){.others_s = NAN, .processors = 0, .at_ns = ls_clock_ns()};
    char *text = ls_text_read("/proc/stat"), *rest = NULL;
    /* proc(5): user nice system idle iowait irq softirq steal guest ...; guest is within user */
    double field[8] = {0}, own = own_s();
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "cpu ", 4) == 0 &&
            sscanf(line, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &field[0], &field[1], &field[2],
                   &field[3], &field[4], &field[5], &field[6], &field[7]) == 8) {
            double busy =
                field[0] + field[1] + field[2] + field[5] + field[6] + field[7]; /* clock ticks */
            out->others_s = busy / (double)sysconf(_SC_CLK_TCK) - own;
        } else if (strncmp(line, "cpu", 3) == 0) {
            out->processors++;
        }
    }
    free(text);
}

double ls_machine_load_taken(const ls_machine_load_times *from, const ls_machine_load_times *to,
                             double cores)
{
    double seconds = (double)(to->at_ns - from->at_ns) * 1e-9;
    if (!(seconds > 0) || to->processors < 1) {
        return NAN;
    }
    double others = (to->others_s - from->others_s) / seconds;
    double taken = others - (to->processors > cores ? to->processors - cores : 0);
    return taken < 0 ? 0 : taken > cores ? cores : taken;
}
