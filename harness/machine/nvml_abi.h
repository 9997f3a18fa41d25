/* The used part of NVIDIA's management library. It is declared here because some toolkits lack its
 * header, and a program linked with it would not start without a driver. Values and layouts are
 * those of nvml.h of CUDA 12.9; suite/unit/harness/test_nvml.c compares them with a header if there
 * is one. Versioned symbols are loaded by their versioned names. */
#ifndef LS_NVML_ABI_H
#define LS_NVML_ABI_H

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

#endif
