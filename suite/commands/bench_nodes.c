#include "bench_nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/machine/machine.h"
#include "kernels/core/text.h"
#include "kernels/core/log.h"
#include "suite/run/command_line.h"

static int usual_ranks(int cores)
{
    ls_machine_device device[LS_MACHINE_DEVICES_MAX];
    int devices = ls_machine_devices(ls_machine_sysfs(), device, LS_MACHINE_DEVICES_MAX);
    return ls_probe_usual_ranks(devices, cores);
}

ls_status ls_bench_nodes_read(const ls_variables *given, ls_bench_nodes *nodes)
{
    ls_hosts *out = &nodes->hosts;
    const char *names = ls_variables_text(given, "NODES", NULL);
    const char *file = ls_variables_text(given, "HOSTFILE", NULL);
    out->count = 0;
    if (names == NULL && file == NULL) {
        bool alone = ls_variables_integer(given, "SIM_NODES", 2) < 2;
        if (alone && ls_variables_integer(given, "SIM_NET", 0) != 0) {
            return ls_log_fail(LS_ERR_USAGE,
                               "SIM_NET=1 connects simulated nodes, and SIM_NODES=1 has none");
        }
        return LS_OK;
    }
    static const char *const simulated[] = {"SIM_NODES", "SIM_NET"};
    for (int i = 0; i < 2; i++) {
        const char *value = ls_variables_text(given, simulated[i], NULL);
        if (value != NULL && strcmp(value, i == 0 ? "1" : "0") != 0) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "%s=%s simulates nodes on this machine, and %s names real ones: give only one",
                simulated[i], value, names != NULL ? "NODES" : "HOSTFILE");
        }
    }
    if (names != NULL && file != NULL) {
        return ls_log_fail(LS_ERR_USAGE, "NODES=%s and HOSTFILE=%s both name nodes: give only one",
                           names, file);
    }
    return file != NULL                  ? ls_hosts_read_file(file, out)
           : strcmp(names, "slurm") == 0 ? ls_hosts_read_slurm(out)
                                         : ls_hosts_parse_list(names, out);
}

ls_status ls_bench_nodes_place(ls_bench_nodes *nodes, const ls_variables *given, ls_matrix_bench *m,
                               const char **device, int *devices)
{
    const char *wanted = ls_variables_text(given, "DEVICE", "auto");
    bool share = ls_variables_integer(given, "OVERSUBSCRIBE", 0) != 0;
    int ranks = ls_variables_integer(given, "NGPUS", 0);
    if (nodes->hosts.count == 0) {
        m->cores = ls_machine_cores();
        m->ranks = ranks > 0 ? ranks : usual_ranks(m->cores);
        m->hosts = 1;
        return ls_machine_choose_among(wanted, m->ranks, share, device, devices);
    }
    char folder[512];
    ls_command_absolute(ls_variables_text(given, "OUT", "results/runs"), folder, sizeof folder);
    LS_TRY(ls_hosts_ranks(&nodes->hosts, ranks, &ranks));
    nodes->look = calloc((size_t)nodes->hosts.count, sizeof *nodes->look);
    LS_ASSERT(nodes->look != NULL);
    ls_probe_question question = {
        .folder = folder, .device = wanted, .ranks = ranks, .oversubscribe = share};
    LS_TRY(ls_probe_at(&nodes->hosts, &question, nodes->look));
    m->cores = nodes->look[0].cores;
    ranks = ranks > 0 ? ranks : ls_probe_usual_ranks(nodes->look[0].devices, nodes->look[0].cores);
    m->hosts = nodes->hosts.count;
    m->ranks = ranks * m->hosts;
    *device = nodes->look[0].device;
    *devices = strcmp(*device, "cuda") == 0 ? nodes->look[0].devices : 0;
    return LS_OK;
}

void ls_bench_nodes_use(const ls_bench_nodes *nodes, ls_case_list *cases)
{
    for (int c = 0; c < cases->count; c++) {
        ls_case *row = &cases->row[c];
        for (int j = 0; j < row->job_count; j++) {
            ls_spec *spec = &row->job[j];
            spec->real_nodes = spec->nodes > 1 && spec->nodes <= nodes->hosts.count;
        }
    }
}

void ls_bench_nodes_describe(const ls_bench_nodes *nodes, const ls_matrix_bench *m,
                             const char *device, char *where)
{
    if (nodes->hosts.count == 0) {
        ls_command_where(device, m->ranks, m->cores, where);
        return;
    }
    char names[64], cores[40] = "";
    ls_hosts_describe(&nodes->hosts, names, sizeof names);
    bool cpu = strcmp(device, "cpu") == 0;
    if (cpu) {
        ls_text_put(cores, sizeof cores, " of %d cores", m->cores);
    }
    ls_text_put(where, 96, "%s: %d x %d ranks, %d %s%s (%.24s)%s", cpu ? "CPU" : "CUDA", m->hosts,
                m->ranks / m->hosts, m->hosts, m->hosts == 1 ? "node" : "nodes", cores, names,
                cpu ? ", no GPU was tested" : "");
}

void ls_bench_nodes_record(const ls_bench_nodes *nodes, cJSON *options)
{
    cJSON *list = nodes->hosts.count == 0 ? NULL : cJSON_AddArrayToObject(options, "nodes");
    for (int k = 0; k < nodes->hosts.count; k++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "host", nodes->hosts.host[k].name);
        cJSON_AddStringToObject(one, "hostname", nodes->look[k].hostname);
        cJSON_AddStringToObject(one, "cpu", nodes->look[k].cpu);
        cJSON_AddNumberToObject(one, "cores", nodes->look[k].cores);
        cJSON_AddNumberToObject(one, "devices", nodes->look[k].devices);
        cJSON_AddItemToArray(list, one);
    }
}

ls_status ls_bench_nodes_connect(ls_bench_nodes *nodes, const ls_variables *given, ls_run *run)
{
    int most = 1;
    for (int i = 0; i < run->jobs.count; i++) {
        const ls_spec *spec = &run->jobs.spec[i];
        most = !spec->real_nodes && spec->nodes > most ? spec->nodes : most;
    }
    if (ls_variables_integer(given, "SIM_NET", 0) == 0) {
        return LS_OK;
    }
    if (most < 2) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "SIM_NET=1: no job of this run has simulated nodes (PROFILE=smoke has none; an "
            "even NGPUS or SIM_NODES makes some)");
    }
    LS_TRY(ls_simnet_open(most, &nodes->net));
    run->site.net = &nodes->net;
    cJSON_AddStringToObject(run->options, "sim_net", nodes->net.text);
    ls_text_add(run->where, sizeof run->where, "; simulated nodes: %s", nodes->net.text);
    printf("simulated nodes have a network of their own: %s\n", nodes->net.text);
    return LS_OK;
}

void ls_bench_nodes_free(ls_bench_nodes *nodes)
{
    if (nodes->net.nodes > 0) {
        ls_simnet_close(&nodes->net);
    }
    free(nodes->look);
    nodes->look = NULL;
}
