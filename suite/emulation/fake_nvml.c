/* NVIDIA's management library and the few functions of the driver that we ask, played from a text
 * file that the environment's LS_FAKE_NVML names and that is read anew at every question:
 *
 *   driver 575.57.08          the driver's version
 *   cuda 12090                the CUDA version it offers
 *   init 9                    what nvmlInit_v2 returns
 *   cuinit 802                what cuInit returns
 *   hidden 1                  so many of the last GPUs CUDA does not list
 *   gpu 0 address 0000:17:00.0
 *   gpu 0 KEY VALUE [FROM]    a number; FROM: only from that sample on (power readings are counted)
 *   peers 0                   GPUs cannot read each other's memory
 *
 * A number that no line gives is not supported, but for those that a healthy H200 has below. Built
 * with LS_FAKE_OLD it is a library of years ago, which lacks entries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/machine/nvml.h"

enum { GPUS_MAX = 64 };
static int samples[GPUS_MAX];
static char handles[GPUS_MAX];

static ls_nvml_handle handle_of(unsigned gpu)
{
    return (ls_nvml_handle)(void *)&handles[gpu];
}

static int gpu_of(ls_nvml_handle handle)
{
    return (int)((char *)(void *)handle - handles);
}

/* The last matching line decides. gpu -1: a line of the machine. */
static int find_text(int gpu, const char *key, char *text, size_t bytes)
{
    char line[256], word[64], value[128];
    int found = 0, number, from;
    const char *path = getenv("LS_FAKE_NVML");
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        from = 0;
        int fits = gpu < 0
                       ? sscanf(line, "%63s %127s", word, value) == 2
                       : sscanf(line, "gpu %d %63s %127s %d", &number, word, value, &from) >= 3 &&
                             number == gpu;
        if (fits && strcmp(word, key) == 0 && (gpu < 0 || samples[gpu] >= from)) {
            snprintf(text, bytes, "%s", value);
            found = 1;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

static const struct usual {
    const char *key;
    double value;
} usual[] = {
    {"ecc", 1},           {"ecc_next", 1},
    {"corrected", 0},     {"uncorrected", 0},
    {"ever", 0},          {"rows", 0},
    {"remap_pending", 0}, {"remap_failed", 0},
    {"mig", 0},           {"processes", 0},
    {"pcie_gen", 1},      {"pcie_gen_max", 5},
    {"pcie_width", 16},   {"pcie_width_max", 16},
    {"replays", 0},       {"links", 18},
    {"links_up", 18},     {"link_errors", 0},
    {"reasons", 1},       {"persistence", 1},
    {"compute_mode", 0},  {"power", 75},
    {"power_limit", 700}, {"power_default", 700},
    {"temperature", 30},  {"memory_c", 35},
    {"sm", 345},          {"memory_clock", 2619},
    {"sm_max", 1980},     {"memory_max", 3201},
    {"used", 600e6},      {"total", 150e9},
    {"bits", 6144},       {"capability", 90},
};

/* -1: not supported. */
static double number(int gpu, const char *key)
{
    char text[128];
    double value = -1;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        value = strcmp(usual[i].key, key) == 0 ? usual[i].value : value;
    }
    return find_text(gpu, key, text, sizeof text) ? atof(text) : value;
}

static ls_nvml_return give(ls_nvml_handle handle, const char *key, double factor, unsigned *out)
{
    int gpu = gpu_of(handle);
    double value = number(gpu, key);
    if (number(gpu, "lost") > 0) {
        return LS_NVML_GPU_IS_LOST;
    }
    if (value < 0) {
        return LS_NVML_NOT_SUPPORTED;
    }
    *out = (unsigned)(value * factor);
    return LS_NVML_SUCCESS;
}

static ls_nvml_return give_long(ls_nvml_handle handle, const char *key, unsigned long long *out)
{
    unsigned value = 0;
    ls_nvml_return code = give(handle, key, 1, &value);
    *out = value;
    return code;
}

static ls_nvml_return give_mode(ls_nvml_handle handle, const char *key, int *out)
{
    unsigned value = 0;
    ls_nvml_return code = give(handle, key, 1, &value);
    *out = (int)value;
    return code;
}

/* ---- NVML ------------------------------------------------------------------------------------ */

ls_nvml_return nvmlInit_v2(void)
{
    char text[128];
    return find_text(-1, "init", text, sizeof text) ? atoi(text) : 0;
}

ls_nvml_return nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(ls_nvml_return code)
{
    return code == LS_NVML_GPU_IS_LOST ? "GPU is lost"
           : code == 9                 ? "Driver Not Loaded"
           : code == 18                ? "Driver/library version mismatch"
                                       : "Unknown Error";
}

ls_nvml_return nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    return find_text(-1, "driver", text, bytes) ? 0 : LS_NVML_NOT_SUPPORTED;
}

ls_nvml_return nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    char text[128];
    *version = find_text(-1, "cuda", text, sizeof text) ? atoi(text) : 12090;
    return 0;
}

ls_nvml_return nvmlDeviceGetCount_v2(unsigned *count)
{
    char text[128];
    for (*count = 0; *count < GPUS_MAX; (*count)++) {
        if (!find_text((int)*count, "address", text, sizeof text)) {
            break;
        }
    }
    return 0;
}

ls_nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned gpu, ls_nvml_handle *handle)
{
    if (number((int)gpu, "lost") > 0) {
        return LS_NVML_GPU_IS_LOST;
    }
    *handle = handle_of(gpu);
    return 0;
}

ls_nvml_return nvmlDeviceGetHandleByPciBusId_v2(const char *address, ls_nvml_handle *handle)
{
    char text[64];
    for (int gpu = 0; gpu < GPUS_MAX && find_text(gpu, "address", text, sizeof text); gpu++) {
        if (strcmp(text, address) == 0) {
            return nvmlDeviceGetHandleByIndex_v2((unsigned)gpu, handle);
        }
    }
    return 6; /* NVML_ERROR_NOT_FOUND */
}

ls_nvml_return nvmlDeviceGetName(ls_nvml_handle handle, char *text, unsigned bytes)
{
    if (!find_text(gpu_of(handle), "name", text, bytes)) {
        snprintf(text, bytes, "NVIDIA H200");
    }
    return 0;
}

ls_nvml_return nvmlDeviceGetUUID(ls_nvml_handle handle, char *text, unsigned bytes)
{
    snprintf(text, bytes, "GPU-%08d-fake", gpu_of(handle));
    return 0;
}

ls_nvml_return nvmlDeviceGetPciInfo_v3(ls_nvml_handle handle, ls_nvml_pci *pci)
{
    char text[64] = "";
    if (number(gpu_of(handle), "pci_lost") > 0) {
        return LS_NVML_GPU_IS_LOST;
    }
    (void)find_text(gpu_of(handle), "address", text, sizeof text);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "0000%.20s", text); /* eight digits of domain */
    for (char *c = pci->address; *c != '\0'; c++) {
        *c = (char)(*c >= 'a' && *c <= 'f' ? *c - 'a' + 'A' : *c);
    }
    return 0;
}

ls_nvml_return nvmlDeviceGetCudaComputeCapability(ls_nvml_handle handle, int *major, int *minor)
{
    int value = (int)number(gpu_of(handle), "capability");
    *major = value / 10;
    *minor = value % 10;
    return 0;
}

ls_nvml_return nvmlDeviceGetEccMode(ls_nvml_handle handle, int *now, int *next)
{
    ls_nvml_return code = give_mode(handle, "ecc", now);
    return code != 0 ? code : give_mode(handle, "ecc_next", next);
}

ls_nvml_return nvmlDeviceGetTotalEccErrors(ls_nvml_handle handle, int error, int counter,
                                           unsigned long long *count)
{
    return give_long(handle,
                     error == LS_NVML_ERROR_CORRECTED   ? "corrected"
                     : counter == LS_NVML_ECC_AGGREGATE ? "ever"
                                                        : "uncorrected",
                     count);
}

ls_nvml_return nvmlDeviceGetRetiredPages(ls_nvml_handle handle, int cause, unsigned *count,
                                         unsigned long long *addresses)
{
    (void)addresses;
    unsigned pages = 0, room = *count;
    ls_nvml_return code = give(handle, cause == 0 ? "pages_single" : "pages_double", 1, &pages);
    *count = pages;
    return code != 0 ? code : pages > room ? LS_NVML_INSUFFICIENT_SIZE : 0;
}

ls_nvml_return nvmlDeviceGetRetiredPagesPendingStatus(ls_nvml_handle handle, int *pending)
{
    return give_mode(handle, "pages_pending", pending);
}

ls_nvml_return nvmlDeviceGetMigMode(ls_nvml_handle handle, unsigned *now, unsigned *next)
{
    *next = 0;
    return give(handle, "mig", 1, now);
}

ls_nvml_return nvmlDeviceGetCurrPcieLinkGeneration(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "pcie_gen", 1, value);
}

ls_nvml_return nvmlDeviceGetCurrPcieLinkWidth(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "pcie_width", 1, value);
}

ls_nvml_return nvmlDeviceGetMaxPcieLinkGeneration(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "pcie_gen_max", 1, value);
}

ls_nvml_return nvmlDeviceGetMaxPcieLinkWidth(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "pcie_width_max", 1, value);
}

ls_nvml_return nvmlDeviceGetPcieReplayCounter(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "replays", 1, value);
}

ls_nvml_return nvmlDeviceGetNvLinkState(ls_nvml_handle handle, unsigned link, int *active)
{
    int gpu = gpu_of(handle);
    *active = link < (unsigned)number(gpu, "links_up");
    return link < (unsigned)number(gpu, "links") ? 0 : LS_NVML_NOT_SUPPORTED;
}

ls_nvml_return nvmlDeviceGetNvLinkErrorCounter(ls_nvml_handle handle, unsigned link, int counter,
                                               unsigned long long *value)
{
    *value = 0;
    if (number(gpu_of(handle), "link_fields") >= 0) { /* NVLink 5 has fields instead */
        return LS_NVML_NOT_SUPPORTED;
    }
    return link == 2 && counter == LS_NVML_LINK_REPLAY ? give_long(handle, "link_errors", value)
           : link < (unsigned)number(gpu_of(handle), "links") ? 0
                                                              : LS_NVML_NOT_SUPPORTED;
}

ls_nvml_return nvmlDeviceGetCurrentClocksThrottleReasons(ls_nvml_handle handle,
                                                         unsigned long long *reasons)
{
    return give_long(handle, "reasons", reasons);
}

ls_nvml_return nvmlDeviceGetPersistenceMode(ls_nvml_handle handle, int *mode)
{
    return give_mode(handle, "persistence", mode);
}

ls_nvml_return nvmlDeviceGetComputeMode(ls_nvml_handle handle, int *mode)
{
    return give_mode(handle, "compute_mode", mode);
}

ls_nvml_return nvmlDeviceGetPowerUsage(ls_nvml_handle handle, unsigned *value)
{
    samples[gpu_of(handle)]++;
    return give(handle, "power", 1000, value);
}

ls_nvml_return nvmlDeviceGetEnforcedPowerLimit(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "power_limit", 1000, value);
}

ls_nvml_return nvmlDeviceGetPowerManagementDefaultLimit(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "power_default", 1000, value);
}

ls_nvml_return nvmlDeviceGetTemperature(ls_nvml_handle handle, int sensor, unsigned *value)
{
    (void)sensor;
    return give(handle, "temperature", 1, value);
}

ls_nvml_return nvmlDeviceGetClockInfo(ls_nvml_handle handle, int kind, unsigned *value)
{
    return give(handle, kind == LS_NVML_CLOCK_SM ? "sm" : "memory_clock", 1, value);
}

ls_nvml_return nvmlDeviceGetMaxClockInfo(ls_nvml_handle handle, int kind, unsigned *value)
{
    return give(handle, kind == LS_NVML_CLOCK_SM ? "sm_max" : "memory_max", 1, value);
}

ls_nvml_return nvmlDeviceGetMemoryInfo(ls_nvml_handle handle, ls_nvml_memory *memory)
{
    int gpu = gpu_of(handle);
    memory->total = (unsigned long long)number(gpu, "total");
    memory->used = (unsigned long long)number(gpu, "used");
    memory->free = memory->total - memory->used;
    return 0;
}

ls_nvml_return nvmlDeviceGetMemoryBusWidth(ls_nvml_handle handle, unsigned *value)
{
    return give(handle, "bits", 1, value);
}

#ifndef LS_FAKE_OLD /* added later */
ls_nvml_return nvmlDeviceGetRemappedRows(ls_nvml_handle handle, unsigned *corrected,
                                         unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    *corrected = 0;
    ls_nvml_return code = give(handle, "rows", 1, uncorrected);
    return code != 0 ? code
                     : give(handle, "remap_pending", 1, pending) |
                           give(handle, "remap_failed", 1, failed);
}

ls_nvml_return nvmlDeviceGetComputeRunningProcesses_v3(ls_nvml_handle handle, unsigned *count,
                                                       ls_nvml_process *process)
{
    unsigned running = 0, room = *count;
    ls_nvml_return code = give(handle, "processes", 1, &running);
    for (unsigned i = 0; code == 0 && i < running && i < room; i++) {
        memset(&process[i], 0, sizeof process[i]);
        process[i].pid = 4000 + i;
    }
    *count = running;
    return code != 0 ? code : running > room ? LS_NVML_INSUFFICIENT_SIZE : 0;
}

ls_nvml_return nvmlDeviceGetCurrentClocksEventReasons(ls_nvml_handle handle,
                                                      unsigned long long *reasons)
{
    return give_long(handle, "reasons", reasons);
}

ls_nvml_return nvmlDeviceGetFieldValues(ls_nvml_handle handle, int count, ls_nvml_field *field)
{
    for (int i = 0; i < count; i++) {
        int gpu = gpu_of(handle), type = (int)number(gpu, "field_type");
        double value = field[i].id == LS_NVML_FIELD_MEMORY_TEMPERATURE ? number(gpu, "memory_c")
                       : number(gpu, "link_fields") < 0                ? -1
                       : field[i].id == LS_NVML_FIELD_LINK_RECEIVE_ERRORS
                           ? number(gpu, "link_fields") + (field[i].scope == 2)
                       : field[i].id == LS_NVML_FIELD_LINK_RECOVERY_EVENTS ? 1
                                                                           : -1;
        field[i].status = value < 0 ? LS_NVML_NOT_SUPPORTED : 0;
        field[i].type = type < 0 ? 1 : type; /* unsigned int */
        memset(&field[i].value, 0xee, sizeof field[i].value);
        switch (field[i].type) {
        case 0:
            field[i].value.f64 = value;
            break;
        case 2:
            field[i].value.ul = (unsigned long)value;
            break;
        case 3:
            field[i].value.u64 = (unsigned long long)value;
            break;
        case 4:
            field[i].value.s64 = (long long)value;
            break;
        case 5:
            field[i].value.s32 = (int)value;
            break;
        case 6:
            field[i].value.u16 = (unsigned short)value;
            break;
        default:
            field[i].value.u32 = (unsigned)value;
        }
    }
    return 0;
}

ls_nvml_return nvmlDeviceGetP2PStatus(ls_nvml_handle a, ls_nvml_handle b, int index, int *status)
{
    char text[128];
    (void)a;
    (void)b;
    (void)index;
    *status = find_text(-1, "peers", text, sizeof text) && atoi(text) == 0 ? 5 : 0;
    return 0;
}

ls_nvml_return nvmlEventSetCreate(ls_nvml_event_set *set)
{
    *set = (ls_nvml_event_set)(void *)handles;
    return 0;
}

ls_nvml_return nvmlDeviceRegisterEvents(ls_nvml_handle handle, unsigned long long types,
                                        ls_nvml_event_set set)
{
    (void)handle;
    (void)set;
    return (types & LS_NVML_EVENT_XID) != 0 ? 0 : LS_NVML_NOT_SUPPORTED;
}

static int xids_told[GPUS_MAX];

/* Each GPU's "xid" is reported once. */
ls_nvml_return nvmlEventSetWait_v2(ls_nvml_event_set set, ls_nvml_event *event, unsigned limit_ms)
{
    (void)set;
    (void)limit_ms;
    for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
        double xid = number(gpu, "xid");
        if (xid > 0 && !xids_told[gpu]) {
            xids_told[gpu] = 1;
            *event = (ls_nvml_event){.device = handle_of((unsigned)gpu),
                                     .type = LS_NVML_EVENT_XID,
                                     .data = (unsigned long long)xid};
            return 0;
        }
    }
    return LS_NVML_TIMEOUT;
}

ls_nvml_return nvmlEventSetFree(ls_nvml_event_set set)
{
    (void)set;
    return 0;
}
#endif

/* ---- the driver ------------------------------------------------------------------------------ */

int cuInit(unsigned flags)
{
    char text[128];
    (void)flags;
    return find_text(-1, "cuinit", text, sizeof text) ? atoi(text) : 0;
}

int cuDriverGetVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

int cuDeviceGetCount(int *count)
{
    char text[128];
    unsigned all = 0;
    (void)nvmlDeviceGetCount_v2(&all);
    *count = (int)all - (find_text(-1, "hidden", text, sizeof text) ? atoi(text) : 0);
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

int cuDeviceGetPCIBusId(char *text, int bytes, int device)
{
    return find_text(device, "address", text, (size_t)bytes) ? 0 : 1;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == 802 ? "system not yet initialized" : "unknown error";
    return 0;
}
