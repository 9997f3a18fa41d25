#include "gpus.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/machine/machine.h"
#include "harness/machine/preflight.h"
#include "kernels/core/text.h"
#include "harness/machine/watch_gpu.h"
#include "kernels/core/log.h"
#include "suite/commands/commands.h"
#include "suite/judge/sdc.h"

/* What an interrupted run found belongs to its jobs, which are not run again. */
static void take_over(ls_run *run)
{
    char path[700];
    cJSON *before = NULL;
    ls_text_put(path, sizeof path, "%s/run.json", run->directory);
    if (access(path, R_OK) == 0 && ls_json_read_file(path, &before) == LS_OK) {
        ls_findings_read(cJSON_GetObjectItemCaseSensitive(before, "findings"), &run->findings);
    }
    cJSON_Delete(before);
}

void ls_gpus_begin(ls_run *run, int ranks)
{
    if (strcmp(run->site.device, "cuda") != 0 || run->site.devices == 0) {
        return;
    }
    take_over(run);
    const ls_preflight_question question = {.sysfs = ls_machine_sysfs(),
                                            .oversubscribe = ranks > run->site.devices};
    run->gpus = cJSON_CreateArray();
    ls_preflight_look(&question, &run->findings, run->gpus);
    ls_findings_print(&run->findings, stdout);
    run->site.gpus = ls_watch_gpu_open(&run->findings);
}

void ls_gpus_end(ls_run *run)
{
    ls_watch_gpu_close(run->site.gpus);
    run->site.gpus = NULL;
}

static void print_gpu(const cJSON *gpu)
{
    printf("GPU %d  %s  %s  %s\n", (int)ls_json_integer(gpu, "index", 0),
           ls_json_string(gpu, "address", ""), ls_json_string(gpu, "name", ""),
           ls_json_string(gpu, "uuid", ""));
    printf("       PCIe x%g of x%g, %g NVLinks up, ECC %s, %.1f GB of memory, %g W\n",
           ls_json_number(gpu, "pcie_width", NAN), ls_json_number(gpu, "pcie_width_max", NAN),
           ls_json_number(gpu, "nvlinks_up", NAN),
           ls_json_number(gpu, "ecc_mode", NAN) == 0   ? "off"
           : ls_json_number(gpu, "ecc_mode", NAN) == 1 ? "on"
                                                       : "unknown",
           ls_json_number(gpu, "memory_bytes", NAN) * 1e-9,
           ls_json_number(gpu, "power_limit_w", NAN));
}

int ls_gpus_preflight_main(int count, char **argument)
{
    bool share = false;
    const ls_command_option options[] = {
        {"--oversubscribe", NULL, &share, NULL, "ranks are to share GPUs"}};
    ls_status status = ls_commands_parse("preflight", options, 1, &count, argument);
    if (status == LS_OK && count > 0) {
        ls_log_error("lockstep preflight: what is %s?", argument[0]);
        status = LS_ERR_USAGE;
    }
    const char *device = NULL;
    int usable = 0;
    if (status == LS_OK) {
        status = ls_machine_choose_among("cuda", 1, share, &device, &usable);
    }
    if (status != LS_OK) {
        return (int)status;
    }
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

static int index_of(const ls_run *run, int rank, const char *device, const char **address)
{
    const cJSON *entry;
    *address = "";
    cJSON_ArrayForEach(entry, run->gpus)
    {
        const char *uuid = ls_json_string(entry, "uuid", "");
        if (uuid[0] != '\0' && strstr(device, uuid) != NULL) {
            *address = ls_json_string(entry, "address", "");
            return (int)ls_json_integer(entry, "index", rank);
        }
    }
    return rank;
}

static void found_bits(ls_run *run, const ls_sdc *sdc)
{
    char text[240];
    ls_sdc_text(sdc, text, sizeof text);
    if (sdc->result == LS_SDC_UNREPEATED || sdc->result == LS_SDC_UNDECIDED) {
        ls_findings_add(&run->findings, LS_FINDING_NOT_REPEATABLE, -1, NULL, NULL, "%s", text);
    }
    for (int k = 0; k < sdc->ranks && sdc->result == LS_SDC_ODD; k++) {
        const ls_sdc_rank *rank = &sdc->rank[k];
        int64_t step = rank->odd_at != 0 ? rank->odd_at : rank->odd_again_at;
        const char *address;
        int gpu = index_of(run, k, rank->device, &address);
        if (!rank->left_out && step != 0) {
            ls_findings_add(&run->findings, LS_FINDING_SILENT_CORRUPTION, gpu, rank->device,
                            address,
                            "other bits than %d GPUs that trained the same steps, from "
                            "step %lld on%s",
                            sdc->agree, (long long)step,
                            rank->odd_at != 0 && rank->odd_again_at != 0 ? ", both times" : "");
        }
    }
}

void ls_gpus_compare_bits(ls_run *run)
{
    for (int c = 0; c < run->cases.count; c++) {
        const ls_case *row = &run->cases.row[c];
        const int *job = run->case_job[c];
        if (row->counts != LS_COUNTS_BITS || row->job_count != 2 || run->site.devices == 0 ||
            run->record[job[0]].rank == NULL || run->record[job[1]].rank == NULL) {
            continue;
        }
        ls_sdc *sdc = malloc(sizeof *sdc);
        LS_ASSERT(sdc != NULL);
        ls_sdc_compare(&run->record[job[0]], &run->record[job[1]], sdc);
        found_bits(run, sdc);
        free(sdc);
    }
}
