#include "gpus.h"

#include <string.h>
#include <unistd.h>

#include "../harness/machine.h"
#include "../harness/preflight.h"
#include "../harness/text.h"
#include "../harness/watch_gpu.h"

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
    const ls_preflight_question question = {
        .sysfs = ls_machine_sysfs(), .ranks = ranks, .oversubscribe = ranks > run->site.devices};
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
