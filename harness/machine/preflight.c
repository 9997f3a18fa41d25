#include "findings.h"

#include <math.h>
#include <string.h>

#include "machine.h"
#include "kernels/core/text.h"
#include "kernels/core/list.h"

typedef struct preflight {
    const ls_preflight_question *question;
    const ls_nvml *nvml;
    int count; /* devices that NVML lists */
    ls_nvml_device *device;
    ls_findings *findings;
} preflight;

#define FOUND(p, code, d, ...)                                                             \
    ls_findings_add((p)->findings, LS_FINDING_##code, (d)->index, (d)->uuid, (d)->address, \
                    __VA_ARGS__)

static bool is_set(const ls_nvml_device *device, ls_nvml_fact fact)
{
    return device->fact[fact] > 0; /* false for NaN, which is unknown */
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void look_at_ecc(const preflight *p, const ls_nvml_device *d)
{
    const double *fact = d->fact;
    if (fact[LS_NVML_ECC] == 0) {
        FOUND(p, ECC_OFF, d, "ECC is off");
    }
    if (isfinite(fact[LS_NVML_ECC]) && fact[LS_NVML_ECC] != fact[LS_NVML_ECC_NEXT]) {
        FOUND(p, ECC_CHANGE_PENDING, d, "ECC is %s now and will be %s after a reboot",
              is_set(d, LS_NVML_ECC) ? "on" : "off", is_set(d, LS_NVML_ECC_NEXT) ? "on" : "off");
    }
    if (is_set(d, LS_NVML_ECC_UNCORRECTED)) {
        FOUND(p, ECC_UNCORRECTED, d, "%.0f uncorrectable memory errors since the driver was loaded",
              fact[LS_NVML_ECC_UNCORRECTED]);
    }
    if (is_set(d, LS_NVML_ECC_UNCORRECTED_EVER) &&
        fact[LS_NVML_ECC_UNCORRECTED_EVER] != fact[LS_NVML_ECC_UNCORRECTED]) {
        FOUND(p, ECC_UNCORRECTED_EVER, d, "%.0f uncorrectable memory errors in its life",
              fact[LS_NVML_ECC_UNCORRECTED_EVER]);
    }
    if (is_set(d, LS_NVML_ECC_CORRECTED)) {
        FOUND(p, ECC_CORRECTED, d, "%.0f corrected memory errors since the driver was loaded",
              fact[LS_NVML_ECC_CORRECTED]);
    }
}

static void look_at_rows(const preflight *p, const ls_nvml_device *d)
{
    const double *fact = d->fact;
    if (is_set(d, LS_NVML_ROWS_FAILED)) {
        FOUND(p, ROW_REMAP_FAILED, d, "a row of memory could not be replaced");
    }
    if (is_set(d, LS_NVML_ROWS_PENDING)) {
        FOUND(p, ROW_REMAP_PENDING, d, "a row of memory is to be replaced at the next reset");
    }
    if (is_set(d, LS_NVML_ROWS_UNCORRECTED) || is_set(d, LS_NVML_ROWS_CORRECTED)) {
        FOUND(p, ROWS_REMAPPED, d,
              "%.0f rows replaced after uncorrectable errors, %.0f after "
              "corrected ones",
              fact[LS_NVML_ROWS_UNCORRECTED], fact[LS_NVML_ROWS_CORRECTED]);
    }
    if (is_set(d, LS_NVML_PAGES_PENDING)) {
        FOUND(p, PAGE_RETIREMENT_PENDING, d, "a page of memory is to be retired at the next reset");
    }
    if (is_set(d, LS_NVML_PAGES_SINGLE) || is_set(d, LS_NVML_PAGES_DOUBLE)) {
        FOUND(p, PAGES_RETIRED, d,
              "%.0f pages retired after corrected errors, %.0f after an "
              "uncorrectable one",
              fact[LS_NVML_PAGES_SINGLE], fact[LS_NVML_PAGES_DOUBLE]);
    }
}

/* ---- links ----------------------------------------------------------------------------------- */

/* An idle link may run at a lower generation, so only the width is checked; watch_gpu.c checks the
 * generation under load. */
static void look_at_pcie(const preflight *p, const ls_nvml_device *d)
{
    const double *fact = d->fact;
    if (fact[LS_NVML_PCIE_WIDTH] < fact[LS_NVML_PCIE_WIDTH_MAX]) {
        FOUND(p, PCIE_WIDTH, d, "PCIe x%.0f instead of x%.0f", fact[LS_NVML_PCIE_WIDTH],
              fact[LS_NVML_PCIE_WIDTH_MAX]);
    }
}

/* A link that is down on all GPUs is not wired; one that is up on another GPU is missing. */
static void look_at_links(const preflight *p)
{
    double most = 0;
    int linked = 0;
    for (int i = 0; i < p->count; i++) {
        const double *fact = p->device[i].fact;
        most = fact[LS_NVML_LINKS_UP] > most ? fact[LS_NVML_LINKS_UP] : most;
        linked += fact[LS_NVML_LINKS] > 0;
    }
    for (int i = 0; i < p->count && most > 0; i++) {
        const ls_nvml_device *d = &p->device[i];
        if (d->fact[LS_NVML_LINKS_UP] < most) {
            FOUND(p, NVLINK_DOWN, d, "%.0f NVLinks up, other GPUs here have %.0f",
                  d->fact[LS_NVML_LINKS_UP], most);
        }
    }
    if (most == 0 && linked > 1) {
        ls_findings_add(p->findings, LS_FINDING_NVLINK_NONE, -1, NULL, NULL,
                        "no NVLink is up on any of %d GPUs that have some", linked);
    }
}

static void look_at_peers(const preflight *p)
{
    int apart = 0, pairs = 0, first[2] = {0, 0};
    for (int a = 0; a < p->count; a++) {
        for (int b = a + 1; b < p->count; b++) {
            int reads = ls_nvml_peer(p->nvml, &p->device[a], &p->device[b]);
            pairs += reads >= 0;
            if (reads == 0 && apart++ == 0) {
                first[0] = a;
                first[1] = b;
            }
        }
    }
    if (apart > 0) {
        ls_findings_add(p->findings, LS_FINDING_P2P_OFF, -1, NULL, NULL,
                        "%d of %d pairs of GPUs cannot read each other's memory, GPU %d and %d "
                        "among them",
                        apart, pairs, first[0], first[1]);
    }
}

/* ---- state ----------------------------------------------------------------------------------- */

static void look_at_users(const preflight *p, const ls_nvml_device *d)
{
    enum { PIDS_BYTES = 100 };
    char pids[PIDS_BYTES] = "";
    for (int i = 0; i < d->pid_count; i++) {
        ls_text_add(pids, sizeof pids, "%s%u", i == 0 ? ", pid " : " ", d->pid[i]);
    }
    double used = d->fact[LS_NVML_MEMORY_USED], total = d->fact[LS_NVML_MEMORY_BYTES];
    if (is_set(d, LS_NVML_PROCESSES)) {
        FOUND(p, OTHER_PROCESSES, d, "%.0f other %s%s", d->fact[LS_NVML_PROCESSES],
              d->fact[LS_NVML_PROCESSES] == 1 ? "process" : "processes", pids);
    } else if (used > 0.05 * total) { /* driver and ECC take 1 to 3 % of a data centre GPU */
        FOUND(p, MEMORY_IN_USE, d, "%.1f of %.1f GB in use, by no visible process", used * 1e-9,
              total * 1e-9);
    }
}

static void look_at_clocks(const preflight *p, const ls_nvml_device *d)
{
    char words[160];
    double reasons = d->fact[LS_NVML_REASONS];
    long long held = LS_NVML_REASONS_HELD;
    if (isfinite(reasons) && ((long long)reasons & LS_NVML_REASON_IDLE) == 0) {
        held |= LS_NVML_REASON_POWER_CAP; /* an idle GPU with this reason is not throttled */
    }
    if (isfinite(reasons) && ((long long)reasons & held) != 0) {
        FOUND(p, THROTTLED_IDLE, d, "clocks are throttled before anything runs: %s",
              ls_nvml_reasons_text((double)((long long)reasons & held), words, sizeof words));
    }
    if (isfinite(reasons) &&
        ((long long)reasons & (LS_NVML_REASON_SETTING | LS_NVML_REASON_SYNC_BOOST)) != 0) {
        FOUND(p, CLOCKS_SET, d, "clocks are limited: %s",
              ls_nvml_reasons_text(reasons, words, sizeof words));
    }
    double limit = d->fact[LS_NVML_POWER_LIMIT], usual = d->fact[LS_NVML_POWER_DEFAULT];
    if (limit < usual) {
        FOUND(p, POWER_LIMIT, d, "power limit %.0f W, its default is %.0f W", limit, usual);
    }
}

static void look_at_modes(const preflight *p, const ls_nvml_device *d)
{
    const double *fact = d->fact;
    if (is_set(d, LS_NVML_MIG)) {
        FOUND(p, MIG_ON, d, "it is divided into MIG instances");
    }
    if (fact[LS_NVML_PERSISTENCE] == 0) {
        FOUND(p, PERSISTENCE_OFF, d, "persistence mode is off");
    }
    if (fact[LS_NVML_COMPUTE_MODE] == LS_NVML_COMPUTE_PROHIBITED) {
        FOUND(p, COMPUTE_MODE, d, "compute mode prohibited: no process may use it");
    } else if (fact[LS_NVML_COMPUTE_MODE] == LS_NVML_COMPUTE_EXCLUSIVE &&
               p->question->oversubscribe) {
        FOUND(p, COMPUTE_MODE, d, "compute mode exclusive, but ranks are to share it");
    }
}

static void look_at_device(const preflight *p, ls_nvml_device *d)
{
    if (d->handle == NULL) {
        FOUND(p, GPU_UNREADABLE, d, "NVML cannot query it: %s", d->failure);
        return;
    }
    ls_nvml_read_facts(p->nvml, d);
    look_at_ecc(p, d);
    look_at_rows(p, d);
    look_at_pcie(p, d);
    look_at_users(p, d);
    look_at_clocks(p, d);
    look_at_modes(p, d);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void look_at_bus(const preflight *p)
{
    ls_machine_device *bus = ls_list_make(LS_MACHINE_DEVICES_MAX, sizeof *bus);
    int count = ls_machine_devices(p->question->sysfs, bus), good = 0;
    for (int i = 0; i < count; i++) {
        good += bus[i].usable;
    }
    for (int i = 0; i < count; i++) {
        if (!bus[i].usable) {
            ls_findings_add(p->findings, LS_FINDING_GPU_COUNT, -1, NULL, bus[i].address,
                            "%s: %d of %d GPUs on the bus are usable, this one is not: %s",
                            bus[i].address, good, count, bus[i].failure);
        }
    }
    free(bus);
    for (int i = 1; i < p->count; i++) {
        if (strcmp(p->device[i].name, p->device[0].name) != 0 && p->device[i].handle != NULL) {
            ls_findings_add(p->findings, LS_FINDING_GPU_KINDS, i, p->device[i].uuid,
                            p->device[i].address, "it is a %s, GPU 0 is a %s", p->device[i].name,
                            p->device[0].name);
        }
    }
}

static void report_versions(const preflight *p)
{
    char driver[80] = "";
    int cuda = 0;
    ls_nvml_versions(p->nvml, driver, sizeof driver, &cuda);
    ls_findings_add(p->findings, LS_FINDING_DRIVER, -1, NULL, NULL,
                    "driver %s, which supports CUDA %d.%d", driver[0] == '\0' ? "unknown" : driver,
                    cuda / 1000, cuda % 1000 / 10);
    if (ls_nvml_missing(p->nvml)[0] != '\0') {
        ls_findings_add(p->findings, LS_FINDING_NVML_PARTIAL, -1, NULL, NULL,
                        "NVML lacks functions, so that these are unknown: %s",
                        ls_nvml_missing(p->nvml));
    }
}

void ls_preflight_look(const ls_preflight_question *question, ls_findings *findings, cJSON *gpus)
{
    char why[200];
    ls_nvml *nvml = NULL;
    if (ls_nvml_open(&nvml, why, sizeof why) != LS_OK) {
        ls_findings_add(findings, LS_FINDING_NVML_MISSING, -1, NULL, NULL, "NVML: %s", why);
        return;
    }
    preflight p = {.question = question, .nvml = nvml, .findings = findings};
    p.device = ls_list_make(LS_NVML_DEVICES_MAX, sizeof *p.device);
    p.count = ls_nvml_devices(nvml, p.device);
    report_versions(&p);
    look_at_bus(&p);
    for (int i = 0; i < p.count; i++) {
        look_at_device(&p, &p.device[i]);
        if (gpus != NULL) {
            cJSON_AddItemToArray(gpus, ls_nvml_device_json(&p.device[i]));
        }
    }
    look_at_links(&p);
    look_at_peers(&p);
    free(p.device);
    ls_nvml_close(nvml);
}
