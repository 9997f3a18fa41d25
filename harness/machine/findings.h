/* Findings about this machine's GPUs. Each has a code word that scripts can rely on, a device, a
 * severity, the observation and an advice. A finding of severity `fail` makes MACHINE not ready. */
#ifndef LS_FINDINGS_H
#define LS_FINDINGS_H

#include <stdio.h>

#include "kernels/core/json.h"
#include "nvml.h"

typedef enum ls_severity { LS_SEVERITY_INFO, LS_SEVERITY_WARNING, LS_SEVERITY_FAIL } ls_severity;

/* Code, severity, advice. */
#define LS_FINDINGS_CODES(X)                                                                       \
    X(NVML_MISSING, WARNING,                                                                       \
      "install the driver's libnvidia-ml.so.1 in this container or machine: nothing of the GPUs' " \
      "health can be seen without it")                                                             \
    X(NVML_PARTIAL, INFO, "a newer driver reports more")                                           \
    X(GPU_COUNT, WARNING,                                                                          \
      "look for the device in `nvidia-smi` and in the kernel log (NVRM); reseat or replace it")    \
    X(GPU_UNREADABLE, FAIL,                                                                        \
      "reset it (nvidia-smi --gpu-reset) or reboot; if it stays so it has to be replaced")         \
    X(GPU_KINDS, WARNING, "compare only GPUs of one model: ranks wait for the slowest")            \
    X(CUDA_INIT, FAIL,                                                                             \
      "start nvidia-fabricmanager where there are NVSwitches (systemctl status "                   \
      "nvidia-fabricmanager), else look into the kernel log for NVRM and reboot")                  \
    X(CUDA_HIDDEN, INFO, "CUDA_VISIBLE_DEVICES or the container shows fewer devices than NVML")    \
    X(DRIVER, INFO, "keep it with the results: timings differ between drivers")                    \
    X(ECC_OFF, WARNING, "nvidia-smi --ecc-config=1 and reboot: bits may flip unnoticed")           \
    X(ECC_CHANGE_PENDING, INFO, "reboot: the next start changes the ECC mode")                     \
    X(ECC_UNCORRECTED, FAIL, "drain the machine, reset the GPU, run the vendor's memory test")     \
    X(ECC_UNCORRECTED_EVER, WARNING, "monitor it: it has had uncorrectable memory errors before")  \
    X(ECC_CORRECTED, INFO, "monitor whether the count grows")                                      \
    X(ROW_REMAP_PENDING, FAIL, "reset the GPU or reboot, so that the bad row is replaced")         \
    X(ROW_REMAP_FAILED, FAIL, "replace the GPU: it has no spare rows left")                        \
    X(ROWS_REMAPPED, INFO, "monitor it: rows of its memory were replaced by spare ones")           \
    X(PAGE_RETIREMENT_PENDING, FAIL, "reset the GPU or reboot, so that the bad page is retired")   \
    X(PAGES_RETIRED, WARNING, "monitor it: with 60 pages it has to be replaced")                   \
    X(MIG_ON, FAIL, "nvidia-smi --multi-instance-gpu=0: jobs would run on a slice of it")          \
    X(OTHER_PROCESSES, FAIL, "end them or wait: they take time and memory from the jobs")          \
    X(MEMORY_IN_USE, WARNING, "find the process that holds it (fuser -v /dev/nvidia*)")            \
    X(PCIE_WIDTH, FAIL, "reseat the card or the riser, check the slot's bifurcation in the BIOS")  \
    X(PCIE_GENERATION, WARNING, "check the slot's link speed in the BIOS, the riser and the card") \
    X(NVLINK_DOWN, FAIL, "reseat the bridge or baseboard, restart nvidia-fabricmanager")           \
    X(NVLINK_NONE, INFO, "gradients travel over PCIe: expect more exposed communication")          \
    X(THROTTLED_IDLE, FAIL,                                                                        \
      "check cooling, power supply and power cables: it is throttled while idle")                  \
    X(CLOCKS_SET, WARNING, "nvidia-smi --reset-gpu-clocks unless they were set on purpose")        \
    X(POWER_LIMIT, WARNING,                                                                        \
      "nvidia-smi --power-limit with its default unless it was lowered on "                        \
      "purpose")                                                                                   \
    X(PERSISTENCE_OFF, INFO,                                                                       \
      "run nvidia-persistenced: else the driver is loaded at the start of each job")               \
    X(COMPUTE_MODE, WARNING,                                                                       \
      "nvidia-smi --compute-mode=0: several processes may not share it now")                       \
    X(P2P_OFF, WARNING, "check IOMMU, ACS and topology (nvidia-smi topo --p2p r)")                 \
    X(XID, FAIL, "look the number up in NVIDIA's Xid list; the kernel log has the whole line")     \
    X(GPU_LOST, FAIL, "power-cycle the machine; check the power and the seat of the card")         \
    X(COUNTER_ROSE, FAIL, "repeat the run; if it rises again drain the machine")                   \
    X(THROTTLED, FAIL, "check cooling and power: clocks were throttled while jobs ran")            \
    X(POWER_CAPPED, INFO, "usual at the power limit; compare it with the other GPUs")              \
    X(PCIE_WIDTH_FELL, FAIL, "reseat the card: its link lost lanes while jobs ran")                \
    X(SLOW_COPY, WARNING, "compare clocks, ECC and temperature with the other GPUs")               \
    X(SLOW_MATRIX, WARNING, "compare clocks, power and temperature with the other GPUs")           \
    X(SILENT_CORRUPTION, FAIL,                                                                     \
      "drain the machine: this GPU computes different bits from the others")                       \
    X(NOT_REPEATABLE, WARNING,                                                                     \
      "find the operation: the second run of the same job gave different bits")

typedef enum ls_finding_code {
#define LS_FINDINGS_CODE(name, severity, advice) LS_FINDING_##name,
    LS_FINDINGS_CODES(LS_FINDINGS_CODE)
#undef LS_FINDINGS_CODE
        LS_FINDING_CODES
} ls_finding_code;

typedef struct ls_finding {
    ls_finding_code code;
    ls_severity severity;
    int gpu; /* index on this machine; -1: all GPUs */
    char uuid[96], address[32];
    char what[240]; /* the observation, with numbers */
} ls_finding;

typedef struct ls_findings {
    int count, capacity;
    ls_finding *list; /* owned */
} ls_findings;

/* Adds a finding, or replaces the text of one with equal code, device and first word, so that a
 * counter that rises again shows its new sum. uuid and address may be NULL. */
void ls_findings_add(ls_findings *findings, ls_finding_code code, int gpu, const char *uuid,
                     const char *address, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void ls_findings_free(ls_findings *findings);

const char *ls_findings_word(ls_finding_code code); /* "PCIE_WIDTH" */
const char *ls_findings_advice(ls_finding_code code);
const char *ls_findings_severity(ls_severity severity); /* "info", "warning", "fail" */
/* The first finding of the highest severity; NULL: none. */
const ls_finding *ls_findings_worst(const ls_findings *findings);
int ls_findings_fails(const ls_findings *findings);
/* "GPU 5 (0000:5e:00.0)", "all GPUs". */
const char *ls_findings_where(const ls_finding *finding, char *text, size_t bytes);

/* [{"code","severity","gpu","uuid","address","what","do"}], by falling severity. */
cJSON *ls_findings_json(const ls_findings *findings);
/* Adds the findings of such an array, without unknown codes (of a newer version). */
void ls_findings_read(const cJSON *array, ls_findings *findings);
/* Prints a line per warning and fail, and the number of those for information. */
void ls_findings_print(const ls_findings *findings, FILE *to);

/* ---- preflight.c, watch_gpu.c -----------------------------------------------------------------
 */

/* Checks the GPUs before anything is timed. It takes seconds and changes nothing. The result is a
 * list of findings (findings.h) and a record of the values read. */

typedef struct ls_preflight_question {
    const char *sysfs;  /* where the PCI bus is listed: "/sys" */
    bool oversubscribe; /* several ranks on one GPU */
} ls_preflight_question;

/* Adds to `findings`; a missing library is one finding. `gpus`: an array that gets the facts of
 * each device, or NULL. */
void ls_preflight_look(const ls_preflight_question *question, ls_findings *findings, cJSON *gpus);

/* Monitors the GPUs of this machine while jobs run. About once a second it reads power,
 * temperatures, clocks, throttle reasons and error counters and writes them next to the job's
 * events (jobs/<id>/gpu.jsonl, one object per device and second: {"at_ns", "gpu", known readings of
 * nvml.h}). Rising counters, lost links and throttling become findings. A query takes about a
 * millisecond of one core of the harness and no time of a rank. */

typedef struct ls_watch_gpu ls_watch_gpu;

/* Reads the counters to compare with. NULL without NVML or devices. `findings` is not owned. */
ls_watch_gpu *ls_watch_gpu_open(ls_findings *findings);
/* Writes further readings to a new <folder>/gpu.jsonl; NULL: to no file. */
ls_status ls_watch_gpu_job(ls_watch_gpu *watch, const char *folder);
/* Reads all devices once. `watch` may be NULL. */
void ls_watch_gpu_tick(ls_watch_gpu *watch);
/* Takes a last reading and adds the findings of the whole time: throttling, links that were slow
 * under load. */
void ls_watch_gpu_close(ls_watch_gpu *watch);

#endif
