#include "run.h"

#include <string.h>
#include <unistd.h>

#include "kernels/core/path.h"
#include "harness/machine/findings.h"
#include "kernels/core/list.h"
#include "suite/judge/judges.h"

/* Keeps the findings of an interrupted run, whose finished jobs are not run again. */
static void take_over(ls_run *run)
{
    cJSON *before = NULL;
    LS_TEXT(path, 700, "%s/run.json", run->directory);
    if (access(path, R_OK) == 0 && ls_json_read_file(path, &before) == LS_OK) {
        ls_findings_read(ls_json_get(before, "findings"), &run->findings);
    }
    cJSON_Delete(before);
}

void ls_gpus_begin(ls_run *run, int ranks)
{
    if (strcmp(run->site.device, "cuda") != 0 || run->site.devices == 0) {
        return;
    }
    take_over(run);
    const ls_preflight_question question = {.sysfs = ls_path_sysfs(),
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

static int index_of(const ls_run *run, int rank, const char *device, const char **address)
{
    const cJSON *entry;
    *address = "";
    ls_json_each(entry, run->gpus) {
        const char *uuid = ls_json_string(entry, "uuid", "");
        if (uuid[0] != '\0' && strstr(device, uuid) != NULL) {
            *address = ls_json_string(entry, "address", "");
            return ls_json_int(entry, "index", rank);
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
            ls_findings_add(
                &run->findings, LS_FINDING_SILENT_CORRUPTION, gpu, rank->device, address,
                "different bits from %d GPUs that trained the same steps, from step %lld on%s",
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
        ls_sdc *sdc = ls_list_make(1, sizeof *sdc);
        ls_sdc_compare(&run->record[job[0]], &run->record[job[1]], sdc);
        found_bits(run, sdc);
        free(sdc);
    }
}
