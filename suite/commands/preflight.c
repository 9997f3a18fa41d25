/* `lockstep preflight`: the checks of the GPUs that a run makes before its jobs, a line per GPU and
 * the findings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "kernels/core/path.h"
#include "harness/machine/machine.h"
#include "harness/machine/preflight.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "suite/run/command_line.h"

/* The value in a unit of `scale`; NVML may not offer it. */
static const char *shown(const cJSON *gpu, const char *name, double scale, char text[32])
{
    double value = ls_json_number(gpu, name, NAN);
    if (isnan(value)) {
        ls_text_put(text, 32, "unknown");
    } else {
        ls_text_put(text, 32, "%g", value * scale);
    }
    return text;
}

static void print_gpu(const cJSON *gpu)
{
    char text[5][32];
    double ecc = ls_json_number(gpu, "ecc_mode", NAN);
    printf("GPU %d  %s  %s  %s\n", ls_json_int(gpu, "index", 0), ls_json_string(gpu, "address", ""),
           ls_json_string(gpu, "name", ""), ls_json_string(gpu, "uuid", ""));
    printf("       PCIe x%s of x%s, %s NVLinks up, ECC %s, %s GB of memory, %s W\n",
           shown(gpu, "pcie_width", 1, text[0]), shown(gpu, "pcie_width_max", 1, text[1]),
           shown(gpu, "nvlinks_up", 1, text[2]),
           ecc == 0   ? "off"
           : ecc == 1 ? "on"
                      : "unknown",
           shown(gpu, "memory_bytes", 1e-9, text[3]), shown(gpu, "power_limit_w", 1, text[4]));
}

/* GPUs on the bus, usable or not; `usable` where it shows none. */
static int count_on_bus(int usable)
{
    ls_machine_device *bus = ls_list_make(LS_MACHINE_DEVICES_MAX, sizeof *bus);
    int count = ls_machine_devices(ls_path_sysfs(), bus);
    free(bus);
    return count > usable ? count : usable;
}

int ls_preflight_main(int count, char **argument)
{
    bool share = false;
    const ls_command_option options[] = {
        {"--oversubscribe", NULL, &share, NULL, "ranks share GPUs"}};
    LS_TRY(ls_command_parse("preflight", options, 1, &count, argument));
    LS_TRY(ls_command_no_operands("preflight", count, argument, ""));
    const char *device = NULL;
    int usable = 0;
    LS_TRY(ls_machine_choose_among("cuda", 1, share, &device, &usable));
    const ls_preflight_question question = {.sysfs = ls_path_sysfs(), .oversubscribe = share};
    ls_findings findings = {0, 0, NULL};
    cJSON *gpus = cJSON_CreateArray();
    const cJSON *gpu;
    ls_preflight_look(&question, &findings, gpus);
    cJSON_ArrayForEach(gpu, gpus)
    {
        print_gpu(gpu);
    }
    ls_findings_print(&findings, stdout);
    int fails = ls_findings_fails(&findings);
    int looked_at = cJSON_GetArraySize(gpus), there = count_on_bus(usable);
    bool whole = looked_at >= there;
    printf("MACHINE  %s (%d of %d GPUs looked at)\n",
           fails > 0 ? "not ready"
           : whole   ? "ready"
                     : "not shown",
           looked_at, whole ? looked_at : there);
    ls_findings_free(&findings);
    cJSON_Delete(gpus);
    return fails > 0 ? LS_ERR_CHECK : whole ? LS_OK : LS_ERR_INFRA;
}
