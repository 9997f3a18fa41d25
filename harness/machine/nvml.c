#include "nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "kernels/core/text.h"
#include "kernels/core/list.h"

struct ls_nvml {
    void *library;
    ls_nvml_entries entry;
    char missing[2048];
    ls_nvml_event_set events; /* NULL: none */
    int watched;
    ls_nvml_handle watch[LS_NVML_DEVICES_MAX];
};

/* ---- the library ----------------------------------------------------------------------------- */

static void find(ls_nvml *nvml, const char *symbol, void *to)
{
    void *found = dlsym(nvml->library, symbol);
    memcpy(to, &found, sizeof found);
    if (found == NULL) {
        ls_text_add(nvml->missing, sizeof nvml->missing, "%s%s",
                    nvml->missing[0] == '\0' ? "" : " ", symbol);
    }
}

static const char *text_of(const ls_nvml *nvml, ls_nvml_return code)
{
    return nvml->entry.error_text == NULL ? "no text" : nvml->entry.error_text(code);
}

ls_status ls_nvml_open(ls_nvml **out, char *why, size_t bytes)
{
    const char *path = getenv("LS_NVML");
    if (path == NULL || path[0] == '\0') {
        path = "libnvidia-ml.so.1";
    }
    ls_nvml *nvml = ls_list_make(1, sizeof *nvml);
    nvml->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        ls_text_put(why, bytes, "%s", dlerror());
        free(nvml);
        return LS_ERR_INFRA;
    }
#define LS_NVML_FIND(member, symbol, arguments) find(nvml, #symbol, &nvml->entry.member);
    LS_NVML_ENTRIES(LS_NVML_FIND)
#undef LS_NVML_FIND
    find(nvml, "nvmlErrorString", &nvml->entry.error_text);
    const ls_nvml_entries *e = &nvml->entry;
    ls_nvml_return code = LS_NVML_SUCCESS;
    if (e->init == NULL || e->count == NULL || e->by_index == NULL) {
        ls_text_put(why, bytes, "%s lacks %s", path, nvml->missing);
    } else if ((code = e->init()) != LS_NVML_SUCCESS) {
        ls_text_put(why, bytes, "nvmlInit_v2: %s", text_of(nvml, code));
    } else {
        *out = nvml;
        return LS_OK;
    }
    dlclose(nvml->library);
    free(nvml);
    return LS_ERR_INFRA;
}

void ls_nvml_close(ls_nvml *nvml)
{
    if (nvml == NULL) {
        return;
    }
    if (nvml->events != NULL && nvml->entry.event_free != NULL) {
        (void)nvml->entry.event_free(nvml->events);
    }
    if (nvml->entry.shutdown != NULL) {
        (void)nvml->entry.shutdown();
    }
    dlclose(nvml->library);
    free(nvml);
}

const char *ls_nvml_missing(const ls_nvml *nvml)
{
    return nvml->missing;
}

void ls_nvml_versions(const ls_nvml *nvml, char *driver, size_t bytes, int *cuda)
{
    const ls_nvml_entries *e = &nvml->entry;
    if (e->driver_version == NULL ||
        e->driver_version(driver, (unsigned)bytes) != LS_NVML_SUCCESS) {
        driver[0] = '\0';
    }
    if (e->cuda_version == NULL || e->cuda_version(cuda) != LS_NVML_SUCCESS) {
        *cuda = 0;
    }
}

/* ---- devices --------------------------------------------------------------------------------- */

/* NVML writes eight digits of the domain, in capitals; sysfs writes four, in small letters. */
static void plain_address(const char *given, char *out, size_t bytes)
{
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    if (sscanf(given, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4) {
        ls_text_put(out, bytes, "%04x:%02x:%02x.%x", domain, bus, device, function);
    } else {
        ls_text_put(out, bytes, "%s", given);
    }
}

static void identify(const ls_nvml *nvml, ls_nvml_device *device)
{
    const ls_nvml_entries *e = &nvml->entry;
    ls_nvml_pci pci = {0};
    if (e->name == NULL ||
        e->name(device->handle, device->name, sizeof device->name) != LS_NVML_SUCCESS) {
        ls_text_put(device->name, sizeof device->name, "unknown");
    }
    if (e->uuid == NULL ||
        e->uuid(device->handle, device->uuid, sizeof device->uuid) != LS_NVML_SUCCESS) {
        device->uuid[0] = '\0';
    }
    ls_nvml_return code = e->pci == NULL ? LS_NVML_NOT_SUPPORTED : e->pci(device->handle, &pci);
    if (code == LS_NVML_SUCCESS) {
        pci.address[sizeof pci.address - 1] = '\0';
        plain_address(pci.address, device->address, sizeof device->address);
    } else if (code == LS_NVML_GPU_IS_LOST) {
        ls_text_put(device->failure, sizeof device->failure, "%s", text_of(nvml, code));
        device->handle = NULL;
    }
}

int ls_nvml_devices(const ls_nvml *nvml, ls_nvml_device device[LS_NVML_DEVICES_MAX])
{
    unsigned count = 0;
    if (nvml->entry.count(&count) != LS_NVML_SUCCESS) {
        count = 0;
    }
    int listed = count < LS_NVML_DEVICES_MAX ? (int)count : LS_NVML_DEVICES_MAX;
    for (int i = 0; i < listed; i++) {
        memset(&device[i], 0, sizeof device[i]);
        device[i].index = i;
        for (int f = 0; f < LS_NVML_FACT_COUNT; f++) {
            device[i].fact[f] = NAN;
        }
        ls_nvml_return code = nvml->entry.by_index((unsigned)i, &device[i].handle);
        if (code != LS_NVML_SUCCESS) {
            ls_text_put(device[i].failure, sizeof device[i].failure, "%s", text_of(nvml, code));
            device[i].handle = NULL;
        } else {
            identify(nvml, &device[i]);
        }
    }
    return listed;
}

bool ls_nvml_answers(const ls_nvml *nvml, const char *address, char *why, size_t bytes)
{
    ls_nvml_handle handle = NULL;
    ls_nvml_return code = nvml->entry.by_address == NULL ? LS_NVML_NOT_SUPPORTED
                                                         : nvml->entry.by_address(address, &handle);
    if (code != LS_NVML_SUCCESS) {
        ls_text_put(why, bytes, "%s", text_of(nvml, code));
    }
    return code == LS_NVML_SUCCESS;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static double unsigned_fact(ls_nvml_return (*entry)(ls_nvml_handle, unsigned int *),
                            ls_nvml_handle handle, double factor)
{
    unsigned value = 0;
    return entry != NULL && entry(handle, &value) == LS_NVML_SUCCESS ? value * factor : NAN;
}

static double mode_fact(ls_nvml_return (*entry)(ls_nvml_handle, int *), ls_nvml_handle handle)
{
    int value = 0;
    return entry != NULL && entry(handle, &value) == LS_NVML_SUCCESS ? value : NAN;
}

static double clock_fact(ls_nvml_return (*entry)(ls_nvml_handle, int, unsigned int *),
                         ls_nvml_handle handle, int kind)
{
    unsigned value = 0;
    return entry != NULL && entry(handle, kind, &value) == LS_NVML_SUCCESS ? value : NAN;
}

static double ecc_fact(const ls_nvml *nvml, ls_nvml_handle handle, int error, int counter)
{
    unsigned long long value = 0;
    return nvml->entry.ecc_errors != NULL &&
                   nvml->entry.ecc_errors(handle, error, counter, &value) == LS_NVML_SUCCESS
               ? (double)value
               : NAN;
}

/* Drivers before 535 have only the older name. */
static double reasons_fact(const ls_nvml *nvml, ls_nvml_handle handle)
{
    const ls_nvml_entries *e = &nvml->entry;
    unsigned long long value = 0;
    if ((e->reasons != NULL && e->reasons(handle, &value) == LS_NVML_SUCCESS) ||
        (e->throttle != NULL && e->throttle(handle, &value) == LS_NVML_SUCCESS)) {
        return (double)value;
    }
    return NAN;
}

static void read_rows(const ls_nvml *nvml, ls_nvml_device *device)
{
    unsigned corrected, uncorrected, pending, failed;
    if (nvml->entry.remapped != NULL &&
        nvml->entry.remapped(device->handle, &corrected, &uncorrected, &pending, &failed) ==
            LS_NVML_SUCCESS) {
        device->fact[LS_NVML_ROWS_CORRECTED] = corrected;
        device->fact[LS_NVML_ROWS_UNCORRECTED] = uncorrected;
        device->fact[LS_NVML_ROWS_PENDING] = pending != 0;
        device->fact[LS_NVML_ROWS_FAILED] = failed != 0;
    }
}

/* With a count of 0 the library only returns the number. */
static double retired_fact(const ls_nvml *nvml, ls_nvml_handle handle, int cause)
{
    unsigned count = 0;
    unsigned long long none = 0;
    if (nvml->entry.retired == NULL) {
        return NAN;
    }
    ls_nvml_return code = nvml->entry.retired(handle, cause, &count, &none);
    return code == LS_NVML_SUCCESS || code == LS_NVML_INSUFFICIENT_SIZE ? count : NAN;
}

static void read_links(const ls_nvml *nvml, ls_nvml_device *device)
{
    int links = 0, up = 0, active = 0;
    for (unsigned link = 0; nvml->entry.link_state != NULL && link < LS_NVML_LINKS_MAX; link++) {
        if (nvml->entry.link_state(device->handle, link, &active) == LS_NVML_SUCCESS) {
            links++;
            up += active != 0;
        }
    }
    if (nvml->entry.link_state != NULL) {
        device->fact[LS_NVML_LINKS] = links;
        device->fact[LS_NVML_LINKS_UP] = up;
    }
}

static void read_processes(const ls_nvml *nvml, ls_nvml_device *device)
{
    ls_nvml_process process[64];
    unsigned count = sizeof process / sizeof *process;
    ls_nvml_return code = nvml->entry.processes == NULL
                              ? LS_NVML_NOT_SUPPORTED
                              : nvml->entry.processes(device->handle, &count, process);
    if (code != LS_NVML_SUCCESS && code != LS_NVML_INSUFFICIENT_SIZE) {
        return;
    }
    device->fact[LS_NVML_PROCESSES] = count;
    for (unsigned i = 0; code == LS_NVML_SUCCESS && i < count && i < LS_NVML_PIDS_MAX; i++) {
        device->pid[device->pid_count++] = process[i].pid;
    }
}

static void read_modes(const ls_nvml *nvml, ls_nvml_device *device)
{
    const ls_nvml_entries *e = &nvml->entry;
    double *fact = device->fact;
    int now = 0, next = 0;
    unsigned mig = 0, mig_next = 0;
    if (e->ecc_mode != NULL && e->ecc_mode(device->handle, &now, &next) == LS_NVML_SUCCESS) {
        fact[LS_NVML_ECC] = now;
        fact[LS_NVML_ECC_NEXT] = next;
    }
    if (e->mig_mode != NULL && e->mig_mode(device->handle, &mig, &mig_next) == LS_NVML_SUCCESS) {
        fact[LS_NVML_MIG] = mig;
    }
    fact[LS_NVML_PAGES_PENDING] = mode_fact(e->retired_pending, device->handle);
    fact[LS_NVML_PERSISTENCE] = mode_fact(e->persistence, device->handle);
    fact[LS_NVML_COMPUTE_MODE] = mode_fact(e->compute_mode, device->handle);
    fact[LS_NVML_REASONS] = reasons_fact(nvml, device->handle);
}

static void read_sizes(const ls_nvml *nvml, ls_nvml_device *device)
{
    const ls_nvml_entries *e = &nvml->entry;
    double *fact = device->fact;
    ls_nvml_memory memory;
    int major = 0, minor = 0;
    if (e->memory != NULL && e->memory(device->handle, &memory) == LS_NVML_SUCCESS) {
        fact[LS_NVML_MEMORY_BYTES] = (double)memory.total;
        fact[LS_NVML_MEMORY_USED] = (double)memory.used;
    }
    if (e->capability != NULL && e->capability(device->handle, &major, &minor) == LS_NVML_SUCCESS) {
        fact[LS_NVML_CAPABILITY] = major + minor / 10.0;
    }
    fact[LS_NVML_BUS_BITS] = unsigned_fact(e->bus_width, device->handle, 1);
    fact[LS_NVML_SM_MHZ_MAX] = clock_fact(e->clock_max, device->handle, LS_NVML_CLOCK_SM);
    fact[LS_NVML_MEMORY_MHZ_MAX] = clock_fact(e->clock_max, device->handle, LS_NVML_CLOCK_MEMORY);
    fact[LS_NVML_POWER_LIMIT] = unsigned_fact(e->power_limit, device->handle, 1e-3);
    fact[LS_NVML_POWER_DEFAULT] = unsigned_fact(e->power_default, device->handle, 1e-3);
}

void ls_nvml_read_facts(const ls_nvml *nvml, ls_nvml_device *device)
{
    const ls_nvml_entries *e = &nvml->entry;
    ls_nvml_handle handle = device->handle;
    double *fact = device->fact;
    if (handle == NULL) {
        return;
    }
    read_sizes(nvml, device);
    read_modes(nvml, device);
    fact[LS_NVML_ECC_CORRECTED] =
        ecc_fact(nvml, handle, LS_NVML_ERROR_CORRECTED, LS_NVML_ECC_VOLATILE);
    fact[LS_NVML_ECC_UNCORRECTED] =
        ecc_fact(nvml, handle, LS_NVML_ERROR_UNCORRECTED, LS_NVML_ECC_VOLATILE);
    fact[LS_NVML_ECC_UNCORRECTED_EVER] =
        ecc_fact(nvml, handle, LS_NVML_ERROR_UNCORRECTED, LS_NVML_ECC_AGGREGATE);
    read_rows(nvml, device);
    fact[LS_NVML_PAGES_SINGLE] = retired_fact(nvml, handle, LS_NVML_RETIRED_SINGLE_BIT);
    fact[LS_NVML_PAGES_DOUBLE] = retired_fact(nvml, handle, LS_NVML_RETIRED_DOUBLE_BIT);
    read_processes(nvml, device);
    fact[LS_NVML_PCIE_GEN] = unsigned_fact(e->pcie_gen, handle, 1);
    fact[LS_NVML_PCIE_GEN_MAX] = unsigned_fact(e->pcie_gen_max, handle, 1);
    fact[LS_NVML_PCIE_WIDTH] = unsigned_fact(e->pcie_width, handle, 1);
    fact[LS_NVML_PCIE_WIDTH_MAX] = unsigned_fact(e->pcie_width_max, handle, 1);
    read_links(nvml, device);
}

int ls_nvml_peer(const ls_nvml *nvml, const ls_nvml_device *a, const ls_nvml_device *b)
{
    int status = 0;
    if (nvml->entry.p2p == NULL || a->handle == NULL || b->handle == NULL ||
        nvml->entry.p2p(a->handle, b->handle, LS_NVML_P2P_READ, &status) != LS_NVML_SUCCESS) {
        return -1;
    }
    return status == LS_NVML_P2P_OK;
}

/* ---- readings -------------------------------------------------------------------------------- */

static double field_of(const ls_nvml *nvml, ls_nvml_handle handle, int id, unsigned scope)
{
    ls_nvml_field field = {0};
    field.id = (unsigned)id;
    field.scope = scope;
    if (nvml->entry.fields == NULL || nvml->entry.fields(handle, 1, &field) != LS_NVML_SUCCESS ||
        field.status != LS_NVML_SUCCESS) {
        return NAN;
    }
    switch (field.type) {
    case 0:
        return field.value.f64;
    case 1:
        return field.value.u32;
    case 2:
        return (double)field.value.ul;
    case 3:
        return (double)field.value.u64;
    case 4:
        return (double)field.value.s64;
    case 5:
        return field.value.s32;
    case 6:
        return field.value.u16;
    default:
        return NAN;
    }
}

/* The sum over the links that answer; from `field` on generations without the counter (NVLink 5).
 * field 0: none. */
static double link_sum(const ls_nvml *nvml, const ls_nvml_device *device, int counter, int field)
{
    double sum = NAN;
    for (unsigned link = 0; link < LS_NVML_LINKS_MAX; link++) {
        unsigned long long errors = 0;
        double value = NAN;
        if (device->fact[LS_NVML_LINKS] == 0) {
            return NAN; /* an earlier query has failed */
        }
        if (nvml->entry.link_errors != NULL &&
            nvml->entry.link_errors(device->handle, link, counter, &errors) == LS_NVML_SUCCESS) {
            value = (double)errors;
        } else if (field != 0) {
            value = field_of(nvml, device->handle, field, link);
        }
        if (isfinite(value)) {
            sum = isfinite(sum) ? sum + value : value;
        }
    }
    return sum;
}

bool ls_nvml_sample(const ls_nvml *nvml, const ls_nvml_device *device, double *reading, char *why,
                    size_t bytes)
{
    const ls_nvml_entries *e = &nvml->entry;
    ls_nvml_handle handle = device->handle;
    for (int i = 0; i < LS_NVML_READING_COUNT; i++) {
        reading[i] = NAN;
    }
    if (handle == NULL) {
        ls_text_put(why, bytes, "%s", device->failure);
        return false;
    }
    unsigned value = 0;
    ls_nvml_return code = e->power == NULL ? LS_NVML_NOT_SUPPORTED : e->power(handle, &value);
    if (code == LS_NVML_GPU_IS_LOST) {
        ls_text_put(why, bytes, "%s", text_of(nvml, code));
        return false;
    }
    reading[LS_NVML_POWER] = code == LS_NVML_SUCCESS ? value * 1e-3 : NAN;
    reading[LS_NVML_GPU_C] = clock_fact(e->temperature, handle, LS_NVML_TEMPERATURE_GPU);
    reading[LS_NVML_MEMORY_C] = field_of(nvml, handle, LS_NVML_FIELD_MEMORY_TEMPERATURE, 0);
    reading[LS_NVML_SM_MHZ] = clock_fact(e->clock, handle, LS_NVML_CLOCK_SM);
    reading[LS_NVML_MEMORY_MHZ] = clock_fact(e->clock, handle, LS_NVML_CLOCK_MEMORY);
    reading[LS_NVML_THROTTLE] = reasons_fact(nvml, handle);
    reading[LS_NVML_GEN_NOW] = unsigned_fact(e->pcie_gen, handle, 1);
    reading[LS_NVML_WIDTH_NOW] = unsigned_fact(e->pcie_width, handle, 1);
    reading[LS_NVML_PCIE_REPLAYS] = unsigned_fact(e->pcie_replays, handle, 1);
    reading[LS_NVML_LINK_REPLAYS] = link_sum(nvml, device, LS_NVML_LINK_REPLAY, 0);
    reading[LS_NVML_LINK_RECOVERIES] =
        link_sum(nvml, device, LS_NVML_LINK_RECOVERY, LS_NVML_FIELD_LINK_RECOVERY_EVENTS);
    double flits = link_sum(nvml, device, LS_NVML_LINK_CRC_FLIT, LS_NVML_FIELD_LINK_RECEIVE_ERRORS);
    double data = link_sum(nvml, device, LS_NVML_LINK_CRC_DATA, 0);
    reading[LS_NVML_LINK_CRC] = isfinite(data) ? flits + data : flits;
    reading[LS_NVML_CORRECTED] =
        ecc_fact(nvml, handle, LS_NVML_ERROR_CORRECTED, LS_NVML_ECC_VOLATILE);
    reading[LS_NVML_UNCORRECTED] =
        ecc_fact(nvml, handle, LS_NVML_ERROR_UNCORRECTED, LS_NVML_ECC_VOLATILE);
    ls_nvml_device rows = {.handle = handle};
    rows.fact[LS_NVML_ROWS_CORRECTED] = rows.fact[LS_NVML_ROWS_UNCORRECTED] = NAN;
    read_rows(nvml, &rows);
    reading[LS_NVML_ROWS] = rows.fact[LS_NVML_ROWS_CORRECTED] + rows.fact[LS_NVML_ROWS_UNCORRECTED];
    return true;
}

bool ls_nvml_events_begin(ls_nvml *nvml, const ls_nvml_device *device, int count)
{
    const ls_nvml_entries *e = &nvml->entry;
    if (e->event_set == NULL || e->event_register == NULL || e->event_wait == NULL ||
        e->event_set(&nvml->events) != LS_NVML_SUCCESS) {
        nvml->events = NULL;
        return false;
    }
    nvml->watched = count < LS_NVML_DEVICES_MAX ? count : LS_NVML_DEVICES_MAX;
    int registered = 0;
    for (int i = 0; i < nvml->watched; i++) {
        nvml->watch[i] = device[i].handle;
        registered +=
            device[i].handle != NULL &&
            e->event_register(device[i].handle, LS_NVML_EVENT_XID, nvml->events) == LS_NVML_SUCCESS;
    }
    return registered > 0 && registered == count;
}

bool ls_nvml_next_xid(ls_nvml *nvml, int *index, int *xid)
{
    ls_nvml_event event = {0};
    while (nvml->events != NULL &&
           nvml->entry.event_wait(nvml->events, &event, 0) == LS_NVML_SUCCESS) {
        if (event.type != LS_NVML_EVENT_XID) {
            continue;
        }
        *xid = (int)event.data;
        for (*index = 0; *index < nvml->watched; (*index)++) {
            if (nvml->watch[*index] == event.device) {
                return true;
            }
        }
    }
    return false;
}

/* ---- words ----------------------------------------------------------------------------------- */

static const char *fact_name(ls_nvml_fact fact)
{
    static const char *const name[] = {
#define LS_NVML_NAME(symbol, text) text,
        LS_NVML_FACTS(LS_NVML_NAME)};
    return name[fact];
}

const char *ls_nvml_reading_name(ls_nvml_reading reading)
{
    static const char *const name[] = {LS_NVML_READINGS(LS_NVML_NAME)};
#undef LS_NVML_NAME
    return name[reading];
}

const char *ls_nvml_reasons_text(double reasons, char *text, size_t bytes)
{
    static const struct {
        int bit;
        const char *words;
    } known[] = {{LS_NVML_REASON_SETTING, "clocks set by a user"},
                 {LS_NVML_REASON_POWER_CAP, "power cap"},
                 {LS_NVML_REASON_HW_SLOWDOWN, "hardware slowdown"},
                 {LS_NVML_REASON_SYNC_BOOST, "sync boost"},
                 {LS_NVML_REASON_SW_THERMAL, "software thermal slowdown"},
                 {LS_NVML_REASON_HW_THERMAL, "hardware thermal slowdown"},
                 {LS_NVML_REASON_POWER_BRAKE, "power brake"},
                 {LS_NVML_REASON_DISPLAY, "display clocks"}};
    if (!isfinite(reasons)) {
        ls_text_put(text, bytes, "unknown");
        return text;
    }
    text[0] = '\0';
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (((long long)reasons & known[i].bit) != 0) {
            ls_text_add(text, bytes, "%s%s", text[0] == '\0' ? "" : ", ", known[i].words);
        }
    }
    if (text[0] == '\0') {
        ls_text_put(text, bytes, "none");
    }
    return text;
}

cJSON *ls_nvml_device_json(const ls_nvml_device *device)
{
    cJSON *out = cJSON_CreateObject();
    LS_MEMORY(out != NULL);
    cJSON_AddNumberToObject(out, "index", device->index);
    cJSON_AddStringToObject(out, "name", device->name);
    cJSON_AddStringToObject(out, "uuid", device->uuid);
    cJSON_AddStringToObject(out, "address", device->address);
    if (device->failure[0] != '\0') {
        cJSON_AddStringToObject(out, "failure", device->failure);
    }
    for (int f = 0; f < LS_NVML_FACT_COUNT; f++) {
        if (isfinite(device->fact[f])) {
            cJSON_AddNumberToObject(out, fact_name((ls_nvml_fact)f), device->fact[f]);
        }
    }
    return out;
}
