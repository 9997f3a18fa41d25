/* What is wrong or worth knowing about this machine's GPUs: each finding has a word that stays the
 * same (scripts look for it), a device, a severity, what was seen and what to do. With one of
 * severity `fail` MACHINE is not ready. */
#ifndef LS_FINDINGS_H
#define LS_FINDINGS_H

#include <stdio.h>

#include "kernels/core/json.h"

typedef enum ls_severity { LS_SEVERITY_INFO, LS_SEVERITY_WARNING, LS_SEVERITY_FAIL } ls_severity;

/* Code, its severity, what to do. */
#define LS_FINDINGS_CODES(X)                                                                       \
    X(NVML_MISSING, WARNING,                                                                       \
      "install the driver's libnvidia-ml.so.1 in this container or machine: nothing of the GPUs' " \
      "health can be seen without it")                                                             \
    X(NVML_PARTIAL, INFO, "a newer driver tells more")                                             \
    X(GPU_COUNT, WARNING,                                                                          \
      "look for the device in `nvidia-smi` and in the kernel log (NVRM), reseat or replace it")    \
    X(GPU_UNREADABLE, FAIL,                                                                        \
      "reset it (nvidia-smi --gpu-reset) or reboot; if it stays so it has to be replaced")         \
    X(GPU_KINDS, WARNING, "compare only GPUs of one model: ranks wait for the slowest")            \
    X(CUDA_INIT, FAIL,                                                                             \
      "start nvidia-fabricmanager where there are NVSwitches (systemctl status "                   \
      "nvidia-fabricmanager), else look into the kernel log for NVRM and reboot")                  \
    X(CUDA_HIDDEN, INFO, "CUDA_VISIBLE_DEVICES or the container shows fewer than NVML knows")      \
    X(DRIVER, INFO, "keep it with the results: other drivers give other times")                    \
    X(ECC_OFF, WARNING, "nvidia-smi --ecc-config=1 and reboot: bits may flip unnoticed")           \
    X(ECC_CHANGE_PENDING, INFO, "reboot: another ECC mode is set for the next start")              \
    X(ECC_UNCORRECTED, FAIL, "drain the machine, reset the GPU, run the vendor's memory test")     \
    X(ECC_UNCORRECTED_EVER, WARNING, "watch it: it has had uncorrectable memory errors before")    \
    X(ECC_CORRECTED, INFO, "watch whether the count grows")                                        \
    X(ROW_REMAP_PENDING, FAIL, "reset the GPU or reboot, so that the bad row is replaced")         \
    X(ROW_REMAP_FAILED, FAIL, "replace the GPU: it has no spare rows left")                        \
    X(ROWS_REMAPPED, INFO, "watch it: rows of its memory were replaced by spare ones")             \
    X(PAGE_RETIREMENT_PENDING, FAIL, "reset the GPU or reboot, so that the bad page is retired")   \
    X(PAGES_RETIRED, WARNING, "watch it: from 60 pages on it has to be replaced")                  \
    X(MIG_ON, FAIL, "nvidia-smi --multi-instance-gpu=0: jobs would run on a slice of it")          \
    X(OTHER_PROCESSES, FAIL, "end them or wait: they take time and memory from the jobs")          \
    X(MEMORY_IN_USE, WARNING, "find out who holds it (fuser -v /dev/nvidia*)")                     \
    X(PCIE_WIDTH, FAIL, "reseat the card or the riser, check the slot's bifurcation in the BIOS")  \
    X(PCIE_GENERATION, WARNING, "check the slot's link speed in the BIOS, the riser and the card") \
    X(NVLINK_DOWN, FAIL, "reseat the bridge or baseboard, restart nvidia-fabricmanager")           \
    X(NVLINK_NONE, INFO, "gradients travel over PCIe: expect more exposed communication")          \
    X(THROTTLED_IDLE, FAIL, "check cooling, power supply and power cables: it is held back idle")  \
    X(CLOCKS_SET, WARNING, "nvidia-smi --reset-gpu-clocks unless they were set on purpose")        \
    X(POWER_LIMIT, WARNING,                                                                        \
      "nvidia-smi --power-limit with its default unless it was lowered on "                        \
      "purpose")                                                                                   \
    X(PERSISTENCE_OFF, INFO, "run nvidia-persistenced: else the driver loads at each job's start") \
    X(COMPUTE_MODE, WARNING,                                                                       \
      "nvidia-smi --compute-mode=0: several processes may not share it now")                       \
    X(P2P_OFF, WARNING, "check IOMMU, ACS and topology (nvidia-smi topo --p2p r)")                 \
    X(XID, FAIL, "look the number up in NVIDIA's Xid list; the kernel log has the whole line")     \
    X(GPU_LOST, FAIL, "power-cycle the machine; look for its power and its seat")                  \
    X(COUNTER_ROSE, FAIL, "repeat the run; if it rises again drain the machine")                   \
    X(THROTTLED, FAIL, "check cooling and power: clocks were held down while jobs ran")            \
    X(POWER_CAPPED, INFO, "usual at the power limit; compare it with the other GPUs")              \
    X(PCIE_WIDTH_FELL, FAIL, "reseat the card: its link lost lanes while jobs ran")                \
    X(SLOW_COPY, WARNING, "compare clocks, ECC and temperature with the other GPUs")               \
    X(SLOW_MATRIX, WARNING, "compare clocks, power and temperature with the other GPUs")           \
    X(SILENT_CORRUPTION, FAIL, "drain the machine: this GPU computes other bits than the others")  \
    X(NOT_REPEATABLE, WARNING, "find the operation: the same job gave other bits the second time")

typedef enum ls_finding_code {
#define LS_FINDINGS_CODE(name, severity, advice) LS_FINDING_##name,
    LS_FINDINGS_CODES(LS_FINDINGS_CODE)
#undef LS_FINDINGS_CODE
        LS_FINDING_CODES
} ls_finding_code;

typedef struct ls_finding {
    ls_finding_code code;
    ls_severity severity;
    int gpu; /* index on this machine; -1: all of it */
    char uuid[96], address[32];
    char what[240]; /* what was seen, with numbers */
} ls_finding;

typedef struct ls_findings {
    int count, capacity;
    ls_finding *list; /* owned */
} ls_findings;

/* Adds one, or replaces the text of one with equal code, device and first word (up to the first
 * blank): a counter that rises again says its new sum. uuid and address may be NULL. */
void ls_findings_add(ls_findings *findings, ls_finding_code code, int gpu, const char *uuid,
                     const char *address, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void ls_findings_free(ls_findings *findings);

const char *ls_findings_word(ls_finding_code code); /* "PCIE_WIDTH" */
const char *ls_findings_advice(ls_finding_code code);
const char *ls_findings_severity(ls_severity severity); /* "info", "warning", "fail" */
/* The first of the highest severity; NULL when there is none. */
const ls_finding *ls_findings_worst(const ls_findings *findings);
int ls_findings_fails(const ls_findings *findings);
/* "GPU 5 (0000:5e:00.0)", "all GPUs". */
const char *ls_findings_where(const ls_finding *finding, char *text, size_t bytes);

/* [{"code","severity","gpu","uuid","address","what","do"}], the worst first. */
cJSON *ls_findings_json(const ls_findings *findings);
/* Adds those of such an array; unknown codes (of a newer version) are left out. */
void ls_findings_read(const cJSON *array, ls_findings *findings);
/* A line each for warnings and fails, and how many are only information. */
void ls_findings_print(const ls_findings *findings, FILE *to);

#endif
