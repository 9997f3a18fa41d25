#include "simnet.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

static const char named_in[] = "/run/netns"; /* ip-netns(8) */

void ls_simnet_name(const ls_simnet *net, int node, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "ls-%d-%d", net->owner, node);
}

void ls_simnet_address(int node, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "10.213.0.%d", node + 1);
}

/* ---- making --------------------------------------------------------------------------------- */

static void line(char **script, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(char **script, const char *format, ...)
{
    char *added = NULL, *whole = NULL;
    va_list arguments;
    va_start(arguments, format);
    LS_MEMORY(vasprintf(&added, format, arguments) >= 0);
    va_end(arguments);
    LS_MEMORY(asprintf(&whole, "%s%s\n", *script == NULL ? "" : *script, added) >= 0);
    free(added);
    free(*script);
    *script = whole;
}

static ls_link link_of(const ls_simnet *net)
{
    const ls_link usual = {LS_SIMNET_GBIT_PER_S * 1e9 / 8, LS_SIMNET_DELAY_US * 1e-6, true};
    return net->link.bytes_per_s > 0 ? net->link : usual;
}

char *ls_simnet_script(const ls_simnet *net)
{
    char *script = NULL, hub[32], node[32], address[32];
    ls_link link = link_of(net);
    double gbit_per_s = link.bytes_per_s * 8e-9;
    ls_text_put(hub, sizeof hub, "ls-%d-hub", net->owner);
    line(&script, "ip netns add %s", hub);
    line(&script, "ip -n %s link add br0 type bridge", hub);
    line(&script, "ip -n %s link set br0 up", hub);
    for (int k = 0; k < net->nodes; k++) {
        ls_simnet_name(net, k, node, sizeof node);
        ls_simnet_address(k, address, sizeof address);
        line(&script, "ip netns add %s", node);
        line(&script, "ip -n %s link add eth0 type veth peer name port%d netns %s", node, k, hub);
        line(&script, "ip -n %s link set port%d master br0 up", hub, k);
        line(&script, "ip -n %s addr add %s/24 dev eth0", node, address);
        line(&script, "ip -n %s link set lo up", node);
        line(&script, "ip -n %s link set eth0 up", node);
        /* the limit of netem's queue is many times bandwidth x delay; a kernel without netem still
         * limits the rate */
        line(&script,
             "if tc -n %s qdisc add dev eth0 root netem rate %ggbit delay %gus limit 10000 "
             "2>/dev/null",
             node, gbit_per_s, link.delay_s * 1e6);
        line(&script, "then echo netem");
        line(&script,
             "else tc -n %s qdisc add dev eth0 root tbf rate %ggbit burst %gmb latency 10ms; "
             "echo tbf; fi",
             node, gbit_per_s, fmax(0.125, gbit_per_s / 5)); /* 2 ms, or two packets of 64 KB */
    }
    return script;
}

/* Runs a shell script until its first error; *said is the last line that it printed. */
static int run_script(const char *script, char *said, size_t bytes)
{
    enum { SCRIPT_S = 120 };
    char *command = NULL;
    LS_MEMORY(asprintf(&command, "exec 2>&1; set -e\n%s", script) >= 0);
    char *argv[] = {"sh", "-c", command, NULL};
    int code;
    char *text = ls_proc_isolated_output(argv, SCRIPT_S, &code), *rest = NULL;
    said[0] = '\0';
    for (char *one = strtok_r(text, "\n", &rest); one != NULL; one = strtok_r(NULL, "\n", &rest)) {
        ls_text_put(said, bytes, "%s", one);
    }
    free(text);
    free(command);
    return code;
}

static ls_status check_means(void)
{
    char said[300];
    if (geteuid() != 0) {
        return ls_log_fail(
            LS_ERR_INFRA,
            "SIM_NET=1 makes network namespaces and needs root (SIM_NODES alone does not)");
    }
    if (run_script("command -v ip >/dev/null && command -v tc >/dev/null && command -v nsenter "
                   ">/dev/null",
                   said, sizeof said) != 0) {
        return ls_log_fail(
            LS_ERR_INFRA,
            "SIM_NET=1 needs the programs ip, tc (iproute2) and nsenter (util-linux)");
    }
    return LS_OK;
}

ls_status ls_simnet_open(int nodes, const ls_link *link, ls_simnet *out)
{
    LS_TRY(check_means());
    ls_simnet_clean(0);
    if (nodes > LS_SIMNET_NODES_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "SIM_NET=1 with %d nodes, allowed: %d", nodes,
                           LS_SIMNET_NODES_MAX);
    }
    ls_simnet net = {.nodes = nodes, .owner = (int)getpid(), .link = *link};
    char said[300], *script = ls_simnet_script(&net);
    int failed = run_script(script, said, sizeof said);
    free(script);
    if (failed != 0) {
        ls_log_error("SIM_NET=1: cannot make the nodes' network: %s", said);
        ls_simnet_close(&net);
        return LS_ERR_INFRA;
    }
    bool delayed = strcmp(said, "netem") == 0;
    double gbit_per_s = link_of(&net).bytes_per_s * 8e-9;
    if (delayed) {
        ls_text_put(net.text, sizeof net.text, "%g Gbit/s, %g us each way", gbit_per_s,
                    link_of(&net).delay_s * 1e6);
    } else {
        ls_text_put(net.text, sizeof net.text, "%g Gbit/s, no delay: no netem in this kernel",
                    gbit_per_s);
    }
    *out = net;
    return LS_OK;
}

/* ---- removing ------------------------------------------------------------------------------- */

static void remove_named(const char *name)
{
    char command[300], said[300];
    ls_text_put(command, sizeof command, "ip netns del %s", name);
    if (run_script(command, said, sizeof said) != 0) {
        ls_log_warn("cannot remove the network namespace %s: %s", name, said);
    }
}

void ls_simnet_clean(int owner)
{
    char names[2 * LS_SIMNET_NODES_MAX][32];
    int count = 0;
    DIR *folder = opendir(named_in);
    for (const char *e; (e = ls_path_next(&folder)) != NULL;) {
        int pid = 0, end = 0, node = 0;
        bool ours = (sscanf(e, "ls-%d-%d%n", &pid, &node, &end) == 2 ||
                     sscanf(e, "ls-%d-hub%n", &pid, &end) == 1) &&
                    end > 0 && e[end] == '\0' && pid > 0 && strlen(e) < 32;
        bool meant = owner == 0 ? kill(pid, 0) != 0 && errno == ESRCH : pid == owner;
        if (ours && meant && count < 2 * LS_SIMNET_NODES_MAX) {
            ls_text_put(names[count++], 32, "%s", e);
        }
    }
    for (int i = 0; i < count; i++) {
        remove_named(names[i]);
    }
}

void ls_simnet_close(ls_simnet *net)
{
    if (net->owner != 0) {
        ls_simnet_clean(net->owner);
    }
    *net = (ls_simnet){.nodes = 0};
}

/* ---- links in words ---------------------------------------------------------------------------
 */

bool ls_simnet_link(const char *text, ls_link *out)
{
    static const struct {
        const char *name;
        double bytes_per_s, s;
    } units[] = {{"Gbit", 1e9 / 8, 0}, {"Mbit", 1e6 / 8, 0}, {"GB/s", 1e9, 0},
                 {"MB/s", 1e6, 0},     {"us", 0, 1e-6},      {"ms", 0, 1e-3}};
    char rate_unit[8] = "", time_unit[8] = "";
    double rate = 0, time = 0;
    int end = 0;
    ls_link link = {0, -1, false};
    (void)sscanf(text, "%lf%7[A-Za-z/],%lf%7[a-z]%n", &rate, rate_unit, &time, time_unit, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (units[i].s == 0 && strcmp(rate_unit, units[i].name) == 0) {
            link.bytes_per_s = rate * units[i].bytes_per_s;
            link.in_bits = rate_unit[1] == 'b';
        } else if (units[i].s > 0 && strcmp(time_unit, units[i].name) == 0) {
            link.delay_s = time * units[i].s;
        }
    }
    if (!(link.bytes_per_s > 0 && isfinite(link.bytes_per_s)) ||
        !(link.delay_s >= 0 && isfinite(link.delay_s)) || end == 0 || text[end] != '\0') {
        return false;
    }
    *out = link;
    return true;
}
