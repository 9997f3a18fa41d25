/* `lockstep preflight`: the checks of the GPUs that a run makes before its jobs, a line per GPU and
 * the findings; of several nodes, side by side. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "harness/hosts/probe.h"
#include "harness/run/job.h"
#include "kernels/core/path.h"
#include "harness/machine/machine.h"
#include "harness/machine/findings.h"
#include "kernels/core/list.h"
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

/* ---- this machine ---------------------------------------------------------------------------- */

/* Also writes the findings for the bench of several nodes, if `record`. */
static ls_status look_here(bool share, const char *record)
{
    const char *device = NULL;
    int usable = 0;
    LS_TRY(ls_machine_choose_among("cuda", 1, share, &device, &usable));
    const ls_preflight_question question = {.sysfs = ls_path_sysfs(), .oversubscribe = share};
    ls_findings findings = {0, 0, NULL};
    cJSON *gpus = cJSON_CreateArray();
    const cJSON *gpu;
    ls_preflight_look(&question, &findings, gpus);
    ls_json_each(gpu, gpus) {
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
    ls_status status =
        record == NULL ? LS_OK : ls_json_write_and_free(record, ls_findings_json(&findings));
    ls_findings_free(&findings);
    cJSON_Delete(gpus);
    return status != LS_OK ? status : fails > 0 ? LS_ERR_CHECK : whole ? LS_OK : LS_ERR_INFRA;
}

/* ---- other machines -------------------------------------------------------------------------- */

static void print_node(const ls_job *job, int k)
{
    LS_TEXT(path, 700, "%s/rank%d.log", job->directory, k);
    char *text = ls_text_read(path), *rest = NULL;
    printf("node %s\n", job->hosts->host[k].name);
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        printf("  %s\n", line);
    }
    free(text);
}

static void take_findings(const ls_job *job, int k, ls_findings *findings)
{
    cJSON *list = NULL, *one;
    LS_TEXT(path, 700, "%s/findings%d.json", job->directory, k);
    if (access(path, R_OK) == 0 && ls_json_read_file(path, &list) == LS_OK) {
        ls_json_each(one, list) {
            LS_TEXT(address, 200, "%.60s %.60s", job->hosts->host[k].name,
                    ls_json_string(one, "address", ""));
            cJSON_DeleteItemFromObjectCaseSensitive(one, "address");
            cJSON_AddStringToObject(one, "address", address);
        }
        ls_findings_read(list, findings);
    }
    cJSON_Delete(list);
}

int ls_preflight_nodes(ls_hosts *hosts, const char *folder, bool share, ls_findings *findings)
{
    enum { LIMIT_S = 120 };
    char program[PATH_MAX];
    ls_job job = {.id = "preflight", .label = "preflight", .limit_s = LIMIT_S, .grace_s = LIMIT_S};
    job.world = job.host_count = hosts->count;
    job.local_nodes = 1;
    job.hosts = hosts;
    ls_text_put(job.directory, sizeof job.directory, "%s/preflight", folder);
    ls_path_program(program, sizeof program);
    ls_words_add(&job.command, "%s/lockstep", program);
    ls_words_add(&job.command, "preflight");
    ls_words_add(&job.command, "--record");
    if (share) {
        ls_words_add(&job.command, "--oversubscribe");
    }
    ls_outcome outcome;
    bool resumed;
    ls_status status = ls_job_run(&job, NULL, NULL, &outcome, &resumed);
    int code = (int)status;
    for (int k = 0; status == LS_OK && k < hosts->count; k++) {
        print_node(&job, k);
        take_findings(&job, k, findings);
        code = outcome.rank[k].code > code ? outcome.rank[k].code : code;
    }
    if (status == LS_OK) {
        ls_outcome_free(&outcome);
    }
    ls_job_free(&job);
    return code;
}

static int look_at_nodes(const char *nodes, const char *hostfile, const char *out, bool share)
{
    char folder[512];
    ls_hosts *hosts = ls_list_make(1, sizeof *hosts);
    ls_findings findings = {0, 0, NULL};
    ls_status status = ls_hosts_read(nodes, hostfile, hosts);
    ls_probe *probe = ls_list_make(LS_HOSTS_MAX, sizeof *probe);
    LS_THEN(status, ls_command_run_folder(out, "preflight", folder, sizeof folder));
    const ls_probe_question question = {.folder = folder, .device = "auto", .ranks = 1};
    LS_THEN(status, ls_probe_hosts(hosts, &question, probe));
    int code = status != LS_OK ? (int)status : ls_preflight_nodes(hosts, folder, share, &findings);
    ls_findings_free(&findings);
    free(probe);
    free(hosts);
    return code;
}

int ls_preflight_main(int count, char **argument)
{
    bool share = false, record = false;
    const char *nodes = NULL, *hostfile = NULL, *out = "results/runs";
    const ls_command_option options[] = {
        {"--oversubscribe", NULL, &share, NULL, "ranks share GPUs"},
        {"--nodes", &nodes, NULL, NULL, "of hosts by ssh: a,b,c, or slurm"},
        {"--hostfile", &hostfile, NULL, NULL, "file with a host a line"},
        {"--out", &out, NULL, NULL, "folder of what nodes say (results/runs)"},
        {"--record", NULL, &record, NULL, "write findings<RANK>.json to LS_RUN_DIR"}};
    LS_TRY(
        ls_command_parse("preflight", options, sizeof options / sizeof *options, &count, argument));
    LS_TRY(ls_command_no_operands("preflight", count, argument, ""));
    if (nodes != NULL || hostfile != NULL) {
        return look_at_nodes(nodes, hostfile, out, share);
    }
    const char *folder = getenv("LS_RUN_DIR"), *rank = getenv("RANK");
    LS_TEXT(path, 700, "%.600s/findings%.20s.json", folder == NULL ? "." : folder,
            rank == NULL ? "0" : rank);
    return look_here(share, record ? path : NULL);
}
