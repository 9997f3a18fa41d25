/* The machine a run is on: which accelerators the PCI bus shows and which can be used, its
 * fingerprint for run.json, and whether it is fit for a measurement. */
#ifndef LS_MACHINE_H
#define LS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

enum { LS_MACHINE_DEVICES_MAX = 64 };

typedef struct ls_machine_device {
    char address[32]; /* "0000:17:00.0" */
    char model[16];   /* PCI device id: "0x2335" */
    bool usable;
    char failure[200]; /* why not */
} ls_machine_device;

/* Where the PCI bus is seen: "/sys", or what the environment's LS_SYSFS says. */
const char *ls_machine_sysfs(void);
/* NVIDIA (vendor 0x10de) display and 3D controllers (class 0x0300, 0x0302) under `sysfs`. Usable
 * are those that NVML knows and can ask, where ls_cuda.so lies beside the program (or in
 * LS_LIB_DIR); without NVML all that a loaded driver may drive. Returns how many there are. */
int ls_machine_devices(const char *sysfs, ls_machine_device *device, int most);

/* The rule of design.md section 6. wanted: "auto", "cuda" or "cpu". Where the bus cannot be seen at
 * all (a sandbox), or "cuda" is wanted and it shows none, CUDA's driver says what there is. With
 * any NVIDIA device on the bus, fewer usable ones than ranks is LS_ERR_INFRA, a line per missing
 * device; only with none is the answer "cpu". `oversubscribe` lets ranks share devices. *device is
 * "cpu" or "cuda". */
ls_status ls_machine_choose(const char *wanted, int ranks, bool oversubscribe, const char **device);
/* The same; *usable: how many devices ranks can have, 0 on the CPU, be it that it plays a GPU. What
 * CUDA itself answers is asked before "cuda" is the answer (driver.h). */
ls_status ls_machine_choose_among(const char *wanted, int ranks, bool oversubscribe,
                                  const char **device, int *usable);

/* Whether ls_cuda.so, as it would be loaded, is the one that plays a GPU on the CPU, for tests. */
bool ls_machine_emulated(void);

int ls_machine_cores(void); /* that this process may run on */
int64_t ls_machine_memory_bytes(void);
int64_t ls_machine_available_bytes(void);
/* Pages swapped out since boot; -1 where /proc does not say. */
int64_t ls_machine_swapped_pages(void);
/* CPU, cores, memory, kernel, governor, load, devices, variables NCCL_ CUDA_ CUDNN_ CUBLAS_ OMP_.
 */
cJSON *ls_machine_fingerprint(void);
/* The commit that `folder` is at ("" outside git) and whether its files differ from it. Reads .git
 * through the git program; silent where there is none. */
void ls_machine_commit(const char *folder, char *commit, int bytes, bool *dirty);

#endif
