/* Queries NVIDIA's management library about the GPUs of this machine. The library is loaded at run
 * time (libnvidia-ml.so.1, or the file in the variable LS_NVML). Any of its functions may be
 * missing, and a device may not support a query: such a number is NaN, never zero. */
#ifndef LS_NVML_H
#define LS_NVML_H

#include <stddef.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"
#include "nvml_abi.h"

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
int ls_nvml_devices(const ls_nvml *nvml, ls_nvml_device *device, int most);
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

const char *ls_nvml_fact_name(ls_nvml_fact fact);
const char *ls_nvml_reading_name(ls_nvml_reading reading);
/* The reasons for reduced clocks, separated by ", ", or "none"; being idle is not a reason. */
const char *ls_nvml_reasons_text(double reasons, char *text, size_t bytes);
/* {"index", "name", "uuid", "address", "failure" if there is one, known facts}. */
cJSON *ls_nvml_device_json(const ls_nvml_device *device);

#endif
