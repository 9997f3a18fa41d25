/* `lockstep preflight`: the checks of the GPUs that a run makes before its jobs, a line per GPU and
 * the findings. */
#include <math.h>
#include <stdio.h>

#include "commands.h"
#include "harness/machine/machine.h"
#include "harness/machine/preflight.h"
#include "suite/run/command_line.h"

static void print_gpu(const cJSON *gpu)
{
    printf("GPU %d  %s  %s  %s\n", ls_json_int(gpu, "index", 0), ls_json_string(gpu, "address", ""),
           ls_json_string(gpu, "name", ""), ls_json_string(gpu, "uuid", ""));
    printf("       PCIe x%g of x%g, %g NVLinks up, ECC %s, %.1f GB of memory, %g W\n",
           ls_json_number(gpu, "pcie_width", NAN), ls_json_number(gpu, "pcie_width_max", NAN),
           ls_json_number(gpu, "nvlinks_up", NAN),
           ls_json_number(gpu, "ecc_mode", NAN) == 0   ? "off"
           : ls_json_number(gpu, "ecc_mode", NAN) == 1 ? "on"
                                                       : "unknown",
           ls_json_number(gpu, "memory_bytes", NAN) * 1e-9,
           ls_json_number(gpu, "power_limit_w", NAN));
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
    const ls_preflight_question question = {.sysfs = ls_machine_sysfs(), .oversubscribe = share};
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
    printf("MACHINE  %s\n", fails == 0 ? "ready" : "not ready");
    ls_findings_free(&findings);
    cJSON_Delete(gpus);
    return fails > 0 ? LS_ERR_CHECK : LS_OK;
}
