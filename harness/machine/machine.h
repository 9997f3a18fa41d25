/* The machine of a run: the accelerators on its PCI bus, which of them are usable, and its
 * fingerprint for run.json. */
#ifndef LS_MACHINE_H
#define LS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

/* Whether this machine has NVIDIA devices, as the kernel shows it, without any library: all
 * programs choose between GPU and CPU here, so that a broken driver never causes a slow run on the
 * CPU. */

enum { LS_MACHINE_DEVICES_MAX = 64 };

typedef struct ls_machine_device {
    char address[32]; /* "0000:17:00.0" */
    char model[16];   /* PCI device id: "0x2335" */
    bool usable;
    char failure[200]; /* why it is not usable */
} ls_machine_device;

/* Lists the NVIDIA (vendor 0x10de) display and 3D controllers (class 0x0300, 0x0302) on the PCI bus
 * under `sysfs` by address, and returns their number. */
int ls_bus_list(const char *sysfs, ls_machine_device *device, int most);
/* Whether the bus shows anything: a sandbox may hide all of it, even its bridges. */
bool ls_bus_is_visible(const char *sysfs);
/* A file that only a machine with an NVIDIA driver has, where the bus shows no device: a sandbox,
 * or a GPU that is not on the bus. False: there is none. */
bool ls_bus_doubt(char *path, size_t bytes);
/* The device of a program that uses no more than one: "cuda" or "cpu"; `wanted` where that is not
 * "auto". With an NVIDIA device on the bus, or in doubt, which it says, "cuda". */
const char *ls_bus_choose(const char *wanted);
/* Why the CPU was chosen: "no GPU on the PCI bus", "--device cpu". */
const char *ls_bus_why_cpu(const char *wanted);

/* Lists the devices of ls_bus_list. A device is usable if NVML can query it, or without NVML if a
 * driver is loaded, and if ls_cuda.so is next to the program (or in LS_LIB_DIR). */
int ls_machine_devices(const char *sysfs, ls_machine_device device[LS_MACHINE_DEVICES_MAX]);

/* Chooses the device by the rule of suite/commands/README.md. wanted: "auto", "cuda" or "cpu". If
 * the bus is hidden (a sandbox), or shows no device and "cuda" is wanted or the driver has left a
 * file (ls_bus_doubt), CUDA's driver lists the devices; in doubt an empty list is LS_ERR_INFRA.
 * With an NVIDIA device on the bus, fewer usable devices than ranks is LS_ERR_INFRA, with a line
 * per missing device; only without any is *device "cpu". `oversubscribe` lets ranks share devices.
 * *device is "cpu" or "cuda". */
ls_status ls_machine_choose(const char *wanted, int ranks, bool oversubscribe, const char **device);
/* The same. *usable: the number of devices for ranks, 0 on the CPU and with an emulated GPU. Before
 * "cuda" is chosen, CUDA itself is asked. */
ls_status ls_machine_choose_among(const char *wanted, int ranks, bool oversubscribe,
                                  const char **device, int *usable);

/* Whether the ls_cuda.so that would be loaded emulates a GPU on the CPU, for tests. */
bool ls_machine_emulated(void);

int64_t ls_machine_memory_bytes(void);
int64_t ls_machine_available_bytes(void);
/* Pages swapped out since boot; -1: unknown. */
int64_t ls_machine_swapped_pages(void);
/* CPU, cores, memory, kernel, governor, load, devices; NCCL_ CUDA_ CUDNN_ CUBLAS_ OMP_ variables */
cJSON *ls_machine_fingerprint(void);
/* The commit of the work tree `folder` ("" outside git) and whether its files differ from it; of a
 * packed tree, what commit.txt in it says. Calls the git program; logs nothing when it is missing.
 */
void ls_machine_commit(const char *folder, char *commit, int bytes, bool *dirty);

/* Processor time that other programs use while a run measures. The statistics of a job cannot show
 * it: on a machine that is always busy, both halves of a job agree. */
typedef struct ls_machine_load_times {
    double others_s; /* processor seconds since boot of all but this process and its ended children,
                         including time that a hypervisor took; NaN: unknown */
    int processors;  /* of the machine; may be more than this process may use */
    int64_t at_ns;
} ls_machine_load_times;

/* Reads /proc/stat and the times of this process. */
void ls_machine_load(ls_machine_load_times *out);
/* The average number of the `cores` of this process that others used between two readings, 0 to
 * cores: their use of other processors does not count. NaN: unknown. */
double ls_machine_load_taken(const ls_machine_load_times *from, const ls_machine_load_times *to,
                             double cores);

/* Queries CUDA's driver in a process of its own: the driver may hang on a broken device, and a
 * process that has initialised it holds memory on every GPU. NVML may work where CUDA does not (no
 * fabric manager, CUDA_VISIBLE_DEVICES). */

enum { LS_DRIVER_LIMIT_S = 60 };

typedef struct ls_driver {
    int version;                              /* 12090: CUDA 12.9 */
    int count;                                /* devices in CUDA's order, the one of LOCAL_RANK */
    char address[LS_MACHINE_DEVICES_MAX][32]; /* "0000:17:00.0"; "" unknown */
    char failure[200];                        /* "" or why there are none, with the driver's text */
} ls_driver;

/* Loads libcuda.so.1 or the file in the variable LS_LIBCUDA. */
void ls_machine_driver(ls_driver *out);

#endif
