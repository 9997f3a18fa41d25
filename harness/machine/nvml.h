/* Queries NVIDIA's management library about the GPUs of this machine. The library is loaded at run
 * time (libnvidia-ml.so.1, or the file in the variable LS_NVML). Any of its functions may be
 * missing, and a device may not support a query: such a number is NaN, never zero. */
#ifndef LS_NVML_H
#define LS_NVML_H

#include <stddef.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

/* ---- the used part of the library ------------------------------------------------------------ */

/* It is declared here because some toolkits lack its header, and a program linked with it would not
 * start without a driver. Values and layouts are those of nvml.h of CUDA 12.9;
 * suite/unit/harness/test_nvml.c compares them with a header if there is one. Versioned symbols are
 * loaded by their versioned names. */

typedef int ls_nvml_return; /* nvmlReturn_t, an enum */
typedef struct ls_nvml_handle_st *ls_nvml_handle;
typedef struct ls_nvml_event_set_st *ls_nvml_event_set;

enum {
    LS_NVML_SUCCESS = 0,
    LS_NVML_NOT_SUPPORTED = 3,
    LS_NVML_NO_PERMISSION = 4,
    LS_NVML_INSUFFICIENT_SIZE = 7,
    LS_NVML_TIMEOUT = 10,
    LS_NVML_GPU_IS_LOST = 15,

    LS_NVML_CLOCK_SM = 1,
    LS_NVML_CLOCK_MEMORY = 2,
    LS_NVML_TEMPERATURE_GPU = 0,
    LS_NVML_ERROR_CORRECTED = 0,
    LS_NVML_ERROR_UNCORRECTED = 1,
    LS_NVML_ECC_VOLATILE = 0,
    LS_NVML_ECC_AGGREGATE = 1,
    LS_NVML_RETIRED_SINGLE_BIT = 0,
    LS_NVML_RETIRED_DOUBLE_BIT = 1,
    LS_NVML_COMPUTE_PROHIBITED = 2,
    LS_NVML_COMPUTE_EXCLUSIVE = 3,
    LS_NVML_P2P_READ = 0,
    LS_NVML_P2P_OK = 0,
    LS_NVML_LINKS_MAX = 18,
    LS_NVML_LINK_REPLAY = 0,
    LS_NVML_LINK_RECOVERY = 1,
    LS_NVML_LINK_CRC_FLIT = 2,
    LS_NVML_LINK_CRC_DATA = 3,
    LS_NVML_FIELD_MEMORY_TEMPERATURE = 82,
    LS_NVML_FIELD_LINK_RECEIVE_ERRORS = 208,  /* NVLink 5, scope: the link */
    LS_NVML_FIELD_LINK_RECOVERY_EVENTS = 215, /* NVLink 5, scope: the link */
    LS_NVML_EVENT_XID = 8,
};

/* Bits of the clocks event (throttle) reasons. */
enum {
    LS_NVML_REASON_IDLE = 0x1,
    LS_NVML_REASON_SETTING = 0x2, /* application clocks, set by a user */
    LS_NVML_REASON_POWER_CAP = 0x4,
    LS_NVML_REASON_HW_SLOWDOWN = 0x8,
    LS_NVML_REASON_SYNC_BOOST = 0x10,
    LS_NVML_REASON_SW_THERMAL = 0x20,
    LS_NVML_REASON_HW_THERMAL = 0x40,
    LS_NVML_REASON_POWER_BRAKE = 0x80,
    LS_NVML_REASON_DISPLAY = 0x100,
    /* not set by a user: heat and power supply reduce the clocks */
    LS_NVML_REASONS_HELD = LS_NVML_REASON_HW_SLOWDOWN | LS_NVML_REASON_SW_THERMAL |
                           LS_NVML_REASON_HW_THERMAL | LS_NVML_REASON_POWER_BRAKE,
};

typedef struct ls_nvml_pci {
    char legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char address[32]; /* "00000000:17:00.0" */
} ls_nvml_pci;

typedef struct ls_nvml_process {
    unsigned int pid;
    unsigned long long memory_bytes;
    unsigned int gpu_instance, compute_instance;
} ls_nvml_process;

typedef struct ls_nvml_memory {
    unsigned long long total, free, used;
} ls_nvml_memory;

typedef struct ls_nvml_field {
    unsigned int id, scope;
    long long timestamp, latency_us;
    int type; /* nvmlValueType_t */
    ls_nvml_return status;
    union {
        double f64;
        int s32;
        unsigned int u32;
        unsigned long ul;
        unsigned long long u64;
        long long s64;
        unsigned short u16;
    } value;
} ls_nvml_field;

typedef struct ls_nvml_event {
    ls_nvml_handle device;
    unsigned long long type, data; /* data: the Xid */
    unsigned int gpu_instance, compute_instance;
} ls_nvml_event;

/* All functions: member, symbol, arguments. They return ls_nvml_return, except for the text of an
 * error. */
#define LS_NVML_ENTRIES(X)                                                                         \
    X(init, nvmlInit_v2, (void))                                                                   \
    X(shutdown, nvmlShutdown, (void))                                                              \
    X(driver_version, nvmlSystemGetDriverVersion, (char *, unsigned int))                          \
    X(cuda_version, nvmlSystemGetCudaDriverVersion_v2, (int *))                                    \
    X(count, nvmlDeviceGetCount_v2, (unsigned int *))                                              \
    X(by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned int, ls_nvml_handle *))                   \
    X(by_address, nvmlDeviceGetHandleByPciBusId_v2, (const char *, ls_nvml_handle *))              \
    X(name, nvmlDeviceGetName, (ls_nvml_handle, char *, unsigned int))                             \
    X(uuid, nvmlDeviceGetUUID, (ls_nvml_handle, char *, unsigned int))                             \
    X(pci, nvmlDeviceGetPciInfo_v3, (ls_nvml_handle, ls_nvml_pci *))                               \
    X(capability, nvmlDeviceGetCudaComputeCapability, (ls_nvml_handle, int *, int *))              \
    X(ecc_mode, nvmlDeviceGetEccMode, (ls_nvml_handle, int *, int *))                              \
    X(ecc_errors, nvmlDeviceGetTotalEccErrors, (ls_nvml_handle, int, int, unsigned long long *))   \
    X(remapped, nvmlDeviceGetRemappedRows,                                                         \
      (ls_nvml_handle, unsigned int *, unsigned int *, unsigned int *, unsigned int *))            \
    X(retired, nvmlDeviceGetRetiredPages,                                                          \
      (ls_nvml_handle, int, unsigned int *, unsigned long long *))                                 \
    X(retired_pending, nvmlDeviceGetRetiredPagesPendingStatus, (ls_nvml_handle, int *))            \
    X(mig_mode, nvmlDeviceGetMigMode, (ls_nvml_handle, unsigned int *, unsigned int *))            \
    X(processes, nvmlDeviceGetComputeRunningProcesses_v3,                                          \
      (ls_nvml_handle, unsigned int *, ls_nvml_process *))                                         \
    X(pcie_gen, nvmlDeviceGetCurrPcieLinkGeneration, (ls_nvml_handle, unsigned int *))             \
    X(pcie_width, nvmlDeviceGetCurrPcieLinkWidth, (ls_nvml_handle, unsigned int *))                \
    X(pcie_gen_max, nvmlDeviceGetMaxPcieLinkGeneration, (ls_nvml_handle, unsigned int *))          \
    X(pcie_width_max, nvmlDeviceGetMaxPcieLinkWidth, (ls_nvml_handle, unsigned int *))             \
    X(pcie_replays, nvmlDeviceGetPcieReplayCounter, (ls_nvml_handle, unsigned int *))              \
    X(link_state, nvmlDeviceGetNvLinkState, (ls_nvml_handle, unsigned int, int *))                 \
    X(link_errors, nvmlDeviceGetNvLinkErrorCounter,                                                \
      (ls_nvml_handle, unsigned int, int, unsigned long long *))                                   \
    X(reasons, nvmlDeviceGetCurrentClocksEventReasons, (ls_nvml_handle, unsigned long long *))     \
    X(throttle, nvmlDeviceGetCurrentClocksThrottleReasons, (ls_nvml_handle, unsigned long long *)) \
    X(persistence, nvmlDeviceGetPersistenceMode, (ls_nvml_handle, int *))                          \
    X(compute_mode, nvmlDeviceGetComputeMode, (ls_nvml_handle, int *))                             \
    X(power, nvmlDeviceGetPowerUsage, (ls_nvml_handle, unsigned int *))                            \
    X(power_limit, nvmlDeviceGetEnforcedPowerLimit, (ls_nvml_handle, unsigned int *))              \
    X(power_default, nvmlDeviceGetPowerManagementDefaultLimit, (ls_nvml_handle, unsigned int *))   \
    X(temperature, nvmlDeviceGetTemperature, (ls_nvml_handle, int, unsigned int *))                \
    X(fields, nvmlDeviceGetFieldValues, (ls_nvml_handle, int, ls_nvml_field *))                    \
    X(clock, nvmlDeviceGetClockInfo, (ls_nvml_handle, int, unsigned int *))                        \
    X(clock_max, nvmlDeviceGetMaxClockInfo, (ls_nvml_handle, int, unsigned int *))                 \
    X(memory, nvmlDeviceGetMemoryInfo, (ls_nvml_handle, ls_nvml_memory *))                         \
    X(bus_width, nvmlDeviceGetMemoryBusWidth, (ls_nvml_handle, unsigned int *))                    \
    X(p2p, nvmlDeviceGetP2PStatus, (ls_nvml_handle, ls_nvml_handle, int, int *))                   \
    X(event_set, nvmlEventSetCreate, (ls_nvml_event_set *))                                        \
    X(event_register, nvmlDeviceRegisterEvents,                                                    \
      (ls_nvml_handle, unsigned long long, ls_nvml_event_set))                                     \
    X(event_wait, nvmlEventSetWait_v2, (ls_nvml_event_set, ls_nvml_event *, unsigned int))         \
    X(event_free, nvmlEventSetFree, (ls_nvml_event_set))

typedef struct ls_nvml_entries {
#define LS_NVML_MEMBER(member, symbol, arguments) ls_nvml_return(*member) arguments;
    LS_NVML_ENTRIES(LS_NVML_MEMBER)
#undef LS_NVML_MEMBER
    const char *(*error_text)(ls_nvml_return); /* nvmlErrorString */
} ls_nvml_entries;

/* ---- queries --------------------------------------------------------------------------------- */

enum { LS_NVML_DEVICES_MAX = 64, LS_NVML_PIDS_MAX = 8 };

/* Facts of a device, queried once. Modes are 0 or 1 unless noted. */
#define LS_NVML_FACTS(X)                                                     \
    X(CAPABILITY, "compute_capability") /* major + minor/10 */               \
    X(MEMORY_BYTES, "memory_bytes")                                          \
    X(MEMORY_USED, "memory_used_bytes")                                      \
    X(BUS_BITS, "memory_bus_bits")                                           \
    X(SM_MHZ_MAX, "sm_mhz_max")                                              \
    X(MEMORY_MHZ_MAX, "memory_mhz_max")                                      \
    X(POWER_LIMIT, "power_limit_w")                                          \
    X(POWER_DEFAULT, "power_default_w")                                      \
    X(ECC, "ecc_mode")                                                       \
    X(ECC_NEXT, "ecc_mode_after_reboot")                                     \
    X(ECC_CORRECTED, "ecc_corrected") /* since the driver was loaded */      \
    X(ECC_UNCORRECTED, "ecc_uncorrected")                                    \
    X(ECC_UNCORRECTED_EVER, "ecc_uncorrected_ever")                          \
    X(ROWS_CORRECTED, "rows_remapped_corrected")                             \
    X(ROWS_UNCORRECTED, "rows_remapped_uncorrected")                         \
    X(ROWS_PENDING, "row_remap_pending")                                     \
    X(ROWS_FAILED, "row_remap_failed")                                       \
    X(PAGES_SINGLE, "pages_retired_single_bit")                              \
    X(PAGES_DOUBLE, "pages_retired_double_bit")                              \
    X(PAGES_PENDING, "page_retirement_pending")                              \
    X(MIG, "mig_mode")                                                       \
    X(PROCESSES, "other_processes")                                          \
    X(PCIE_GEN, "pcie_generation") /* an idle link may run at a lower one */ \
    X(PCIE_GEN_MAX, "pcie_generation_max")                                   \
    X(PCIE_WIDTH, "pcie_width")                                              \
    X(PCIE_WIDTH_MAX, "pcie_width_max")                                      \
    X(LINKS, "nvlinks") /* of the device */                                  \
    X(LINKS_UP, "nvlinks_up")                                                \
    X(REASONS, "throttle_reasons") /* bits, LS_NVML_REASON_* */              \
    X(PERSISTENCE, "persistence_mode")                                       \
    X(COMPUTE_MODE, "compute_mode") /* nvmlComputeMode_t */

typedef enum ls_nvml_fact {
#define LS_NVML_FACT(name, text) LS_NVML_##name,
    LS_NVML_FACTS(LS_NVML_FACT)
#undef LS_NVML_FACT
        LS_NVML_FACT_COUNT
} ls_nvml_fact;

/* Readings that change while a job runs. Counters start when the driver is loaded. */
#define LS_NVML_READINGS(X)                 \
    X(POWER, "power_w")                     \
    X(GPU_C, "gpu_c")                       \
    X(MEMORY_C, "memory_c")                 \
    X(SM_MHZ, "sm_mhz")                     \
    X(MEMORY_MHZ, "memory_mhz")             \
    X(THROTTLE, "throttle_reasons")         \
    X(GEN_NOW, "pcie_generation")           \
    X(WIDTH_NOW, "pcie_width")              \
    X(PCIE_REPLAYS, "pcie_replays")         \
    X(LINK_REPLAYS, "nvlink_replays")       \
    X(LINK_RECOVERIES, "nvlink_recoveries") \
    X(LINK_CRC, "nvlink_crc_errors")        \
    X(CORRECTED, "ecc_corrected")           \
    X(UNCORRECTED, "ecc_uncorrected")       \
    X(ROWS, "rows_remapped")

typedef enum ls_nvml_reading {
#define LS_NVML_READING(name, text) LS_NVML_##name,
    LS_NVML_READINGS(LS_NVML_READING)
#undef LS_NVML_READING
        LS_NVML_READING_COUNT,
    LS_NVML_FIRST_COUNTER = LS_NVML_PCIE_REPLAYS
} ls_nvml_reading;

typedef struct ls_nvml_device {
    ls_nvml_handle handle; /* NULL: not available, `failure` says why */
    int index;             /* of NVML, in the order of the bus */
    char name[96], uuid[96];
    char address[32]; /* as in sysfs: "0000:17:00.0" */
    char failure[200];
    double fact[LS_NVML_FACT_COUNT];
    int pid_count; /* the first processes of fact[LS_NVML_PROCESSES] */
    unsigned int pid[LS_NVML_PIDS_MAX];
} ls_nvml_device;

typedef struct ls_nvml ls_nvml;

/* Loads and initialises the library. LS_ERR_INFRA, not logged, with the text of the loader or of
 * NVML in why[bytes]. */
ls_status ls_nvml_open(ls_nvml **out, char *why, size_t bytes);
void ls_nvml_close(ls_nvml *nvml);
/* Names of the functions that this library lacks, separated by blanks; "" when it has all. */
const char *ls_nvml_missing(const ls_nvml *nvml);
/* "575.57.08"; "": unknown. The CUDA version of the driver, 12090 for 12.9; 0: unknown. */
void ls_nvml_versions(const ls_nvml *nvml, char *driver, size_t bytes, int *cuda);
/* Lists all devices of NVML, also unavailable ones with their failure. Does not read facts. */
int ls_nvml_devices(const ls_nvml *nvml, ls_nvml_device device[LS_NVML_DEVICES_MAX]);
/* Whether a device on the bus answers; if not, NVML's text. */
bool ls_nvml_answers(const ls_nvml *nvml, const char *address, char *why, size_t bytes);
void ls_nvml_read_facts(const ls_nvml *nvml, ls_nvml_device *device);
/* Fills reading[LS_NVML_READING_COUNT]. False, with NVML's text, when the device is lost, which the
 * error of the power reading shows. */
bool ls_nvml_sample(const ls_nvml *nvml, const ls_nvml_device *device, double *reading, char *why,
                    size_t bytes);
/* Whether device a can read the memory of b: 1, 0, or -1 unknown. */
int ls_nvml_peer(const ls_nvml *nvml, const ls_nvml_device *a, const ls_nvml_device *b);

/* Subscribes to Xid errors. False when the library or the driver does not support them. */
bool ls_nvml_events_begin(ls_nvml *nvml, const ls_nvml_device *device, int count);
/* The next Xid, without waiting: the index of its device and its number; false: none. */
bool ls_nvml_next_xid(ls_nvml *nvml, int *index, int *xid);

const char *ls_nvml_reading_name(ls_nvml_reading reading);
/* The reasons for reduced clocks, separated by ", ", or "none"; being idle is not a reason. */
const char *ls_nvml_reasons_text(double reasons, char *text, size_t bytes);
/* {"index", "name", "uuid", "address", "failure" if there is one, known facts}. */
cJSON *ls_nvml_device_json(const ls_nvml_device *device);

#endif
