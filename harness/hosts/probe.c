#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/machine/machine.h"
#include "kernels/core/clock.h"
#include "kernels/core/cores.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "launchers.h"
#include "remote.h"
#include "supervise.h"

int ls_probe_usual_ranks(int devices, double cores)
{
    return devices > 0 ? devices : cores < 8 ? ls_cores_share(cores, 1) : 8;
}

/* ---- on the host ---------------------------------------------------------------------------- */

/* Ports below the range that Linux uses for outgoing connections (32768 and up), so that a port
 * stays free between the probe and the job. */
static void add_free_ports(cJSON *answer)
{
    enum { FIRST = 20000, COUNT = 12000 };
    cJSON *list = cJSON_AddArrayToObject(answer, "ports");
    int start = (int)((ls_clock_ns() / 1000 + getpid()) % COUNT), found = 0;
    for (int i = 0; i < COUNT && found < LS_HOSTS_PORTS_MAX; i++) {
        int port = FIRST + (start + i) % COUNT;
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_ANY)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0) {
            cJSON_AddItemToArray(list, cJSON_CreateNumber(port));
            found++;
        }
        if (fd >= 0) {
            close(fd);
        }
    }
}

static bool sees(const char *marker)
{
    const char *token = getenv("LS_TOKEN");
    char *text = ls_text_read(marker);
    bool same = text != NULL && token != NULL && strcmp(text, token) == 0;
    free(text);
    return same;
}

ls_status ls_probe_answer(const char *marker, const char *device, int ranks, bool oversubscribe)
{
    char hostname[64] = "", address[LS_HOSTS_NAME_BYTES] = "", programs[1024];
    char build[LS_APART_DIGEST_BYTES];
    ls_remote_programs(programs, sizeof programs);
    LS_TRY(ls_apart_digest(programs, build));
    const char *chosen = NULL, *connection = getenv("SSH_CONNECTION");
    ls_machine_device found[LS_MACHINE_DEVICES_MAX];
    int devices = ls_machine_devices(ls_path_sysfs(), found);
    double cores = ls_cores_usable();
    LS_TRY(ls_machine_choose(device, ranks > 0 ? ranks : ls_probe_usual_ranks(devices, cores),
                             oversubscribe, &chosen));
    (void)gethostname(hostname, sizeof hostname - 1);
    if (connection != NULL) { /* "client port server port", sshd(8) */
        (void)sscanf(connection, "%*s %*s %127s", address);
    }
    cJSON *answer = cJSON_CreateObject(), *machine = ls_machine_fingerprint();
    LS_MEMORY(answer != NULL);
    cJSON_AddStringToObject(answer, "event", "probe");
    cJSON_AddStringToObject(answer, "hostname", hostname);
    cJSON_AddBoolToObject(answer, "shared", sees(marker));
    cJSON_AddStringToObject(answer, "build", build);
    cJSON_AddStringToObject(answer, "address", address);
    cJSON_AddStringToObject(answer, "cpu", ls_json_string(machine, "cpu", ""));
    cJSON_AddNumberToObject(answer, "cores", cores);
    cJSON_AddNumberToObject(answer, "devices", devices);
    cJSON_AddStringToObject(answer, "device", chosen);
    add_free_ports(answer);
    ls_status status = ls_json_append_line(STDOUT_FILENO, "standard output", answer);
    cJSON_Delete(answer);
    cJSON_Delete(machine);
    return status;
}

/* ---- asking --------------------------------------------------------------------------------- */

typedef struct probing {
    char folder[700], marker[740], token[33];
    ls_remote remote;
} probing;

static void beat(void *context)
{
    ls_remote_beat(&((probing *)context)->remote);
}

static void hang_up(void *context)
{
    ls_remote_hang_up(&((probing *)context)->remote);
}

static ls_status make_marker(const char *folder, probing *p)
{
    ls_supervise_token(p->token);
    ls_text_put(p->folder, sizeof p->folder, "%s/.probe-%.16s", folder, p->token);
    ls_text_put(p->marker, sizeof p->marker, "%s/marker", p->folder);
    LS_TRY(ls_path_make_folder(p->folder));
    ls_supervise_token(
        p->token); /* others see the folder's name, so the content of the marker is another token */
    int fd = open(p->marker, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, p->token, 32) == 32 && fsync(fd) == 0;
    if (!written) {
        ls_log_error("cannot write %s: %s", p->marker, strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
    return written ? LS_OK : LS_ERR_INFRA;
}

static void remove_logs(const probing *p, int hosts)
{
    for (int k = 0; k < hosts; k++) {
        LS_TEXT(path, 740, "%s/node%d.log", p->folder, k);
        (void)unlink(path);
    }
}

static void remove_marker(const probing *p, int hosts)
{
    (void)unlink(p->marker);
    remove_logs(p, hosts);
    (void)rmdir(p->folder);
}

static ls_status run_channels(probing *p, double limit_s, ls_outcome *channels)
{
    ls_supervise supervise = {
        .count = p->remote.count,
        .spec = p->remote.spec,
        .limit_s = limit_s,
        .grace_s = limit_s, /* a host that fails does not shorten the time of the others */
        .on_tick = beat,
        .hang_up = hang_up,
        .hang_up_s = 1,
        .context = p};
    ls_status status = ls_supervise_run(&supervise, channels);
    ls_remote_close(&p->remote);
    status = status == LS_ERR_USAGE ? LS_ERR_INFRA : status; /* ssh or srun could not be started */
    if (status == LS_OK && channels->state == LS_OUTCOME_STOPPED) {
        status = ls_log_fail(LS_ERR_INFRA, "stopped by signal %d while the hosts were probed",
                             ls_proc_caught_signal());
    }
    return status;
}

static ls_status ask_all(ls_hosts *hosts, const ls_probe_question *question, probing *p,
                         ls_outcome *channels)
{
    char launcher[1024];
    ls_words *words = ls_list_make((size_t)hosts->count, sizeof *words);
    for (int k = 0; k < hosts->count; k++) {
        ls_remote_launcher(&hosts->host[k], launcher, sizeof launcher);
        ls_words_add(&words[k], "%s", launcher);
        ls_words_add(&words[k], "--env-from-stdin");
        ls_words_add(&words[k], "--probe=%s", p->marker);
        ls_words_add(&words[k], "--probe-device=%s", question->device);
        ls_words_add(&words[k], "--probe-ranks=%d", question->ranks);
        if (question->oversubscribe) {
            ls_words_add(&words[k], "--probe-oversubscribed");
        }
    }
    remove_logs(p, hosts->count);
    cJSON *order = ls_remote_session_order(p->token, NULL, 0, hosts->by == LS_HOSTS_SSH);
    cJSON_DeleteItemFromObjectCaseSensitive(order,
                                            "directory"); /* the marker is an absolute path */
    ls_status status =
        ls_remote_open(hosts, hosts->count, words, order, p->folder, NULL, &p->remote);
    cJSON_Delete(order);
    for (int k = 0; k < hosts->count; k++) {
        ls_words_free(&words[k]);
    }
    free(words);
    LS_TRY(status);
    return run_channels(p, LS_PROBE_LIMIT_S, channels);
}

/* Logs one line per host. Exit codes 126 and 127 mean that the shell could not run the program
 * (POSIX 2.8.2). */
static void report_failed(const ls_host *host, const ls_proc *channel, const char *said, bool late)
{
    char launcher[1024];
    ls_remote_launcher(host, launcher, sizeof launcher);
    const char *text = strncmp(said, "lockstep-launch: error: ", 24) == 0 ? said + 24 : said;
    if (late) {
        ls_log_error("host %s gave no answer within %d s%s%s", host->name, LS_PROBE_LIMIT_S,
                     text[0] == '\0' ? "" : ": ", text);
    } else if (channel->code == 126 || channel->code == 127) {
        ls_log_error("host %s cannot run %s: %s", host->name, launcher, text);
    } else if (text != said) {
        ls_log_error("host %s: %s", host->name, text);
    } else {
        ls_log_error("host %s cannot be reached: %s", host->name,
                     text[0] == '\0' ? "no output" : text);
    }
}

/* ---- hosts that do not share this disk ------------------------------------------------------ */

/* Those whose launcher answers that it does not see the marker, or that have none where this one
 * is; index[]: which they are. None where any other failed, of which take_answers reports. */
static void choose_apart(const ls_hosts *hosts, const probing *p, const ls_outcome *channels,
                         ls_hosts *apart, int *index)
{
    char said[500];
    *apart = (ls_hosts){.by = hosts->by};
    for (int k = 0; k < hosts->count; k++) {
        cJSON *answer = ls_remote_report(p->folder, k, "probe", said, sizeof said);
        int code = channels->rank[k].code;
        bool absent = answer == NULL && (code == 126 || code == 127);
        bool failed = answer == NULL && !absent;
        if (absent || (answer != NULL && !ls_json_bool(answer, "shared", true))) {
            index[apart->count] = k;
            apart->host[apart->count++] = hosts->host[k];
        }
        cJSON_Delete(answer);
        if (failed) {
            apart->count = 0;
            return;
        }
    }
}

/* Runs the command that finds or unpacks the programs on these hosts; tarball: -1 to find only. */
static ls_status run_unpack(ls_hosts *apart, const char *digest, int tarball, double limit_s,
                            probing *p, ls_outcome *channels)
{
    ls_words words = ls_apart_unpack_words(digest);
    ls_words *same = ls_list_make((size_t)apart->count, sizeof *same);
    if (tarball >= 0) {
        ls_words_add(&words, "unpack");
    }
    for (int k = 0; k < apart->count; k++) {
        same[k] = words;
    }
    cJSON *none = cJSON_CreateObject();
    remove_logs(p, apart->count);
    ls_status status = ls_remote_open(apart, apart->count, same, none, p->folder, NULL, &p->remote);
    cJSON_Delete(none);
    ls_words_free(&words);
    free(same);
    int *file = ls_list_make((size_t)apart->count, sizeof *file);
    for (int k = 0; status == LS_OK && tarball >= 0 && k < apart->count; k++) {
        LS_TEXT(path, 64, "/proc/self/fd/%d", tarball);
        ls_file_source own; /* each host reads it from its beginning */
        status = ls_file_open(path, INT64_MAX, &own);
        file[k] = own.descriptor;
        p->remote.spec[k].input = file[k];
    }
    LS_THEN(status, run_channels(p, limit_s, channels));
    for (int k = 0; k < apart->count; k++) {
        if (file[k] > 0) {
            close(file[k]);
        }
    }
    free(file);
    return status;
}

/* Fills host->programs of those that have them, and keeps the others, whose number is returned; -1:
 * one failed, and is reported. */
static int take_programs(ls_hosts *hosts, ls_hosts *apart, int *index, const probing *p,
                         const ls_outcome *channels)
{
    int left = 0;
    bool failed = false;
    for (int k = 0; k < apart->count; k++) {
        char said[500];
        cJSON *answer = ls_remote_report(p->folder, k, "carried", said, sizeof said);
        ls_host *host = &hosts->host[index[k]];
        const ls_proc *channel = &channels->rank[k];
        if (answer != NULL) {
            ls_text_put(host->programs, sizeof host->programs, "%s",
                        ls_json_string(answer, "programs", ""));
        } else if (channel->signal == 0 && channel->code == LS_APART_LACKS) {
            index[left] = index[k];
            apart->host[left++] = apart->host[k];
        } else {
            ls_log_error("host %s did not take the programs: %s", host->name,
                         said[0] != '\0' ? said : "no output");
            failed = true;
        }
        cJSON_Delete(answer);
    }
    apart->count = left;
    return failed ? -1 : left;
}

/* Gives the hosts that do not share this disk this program's build. *any: there are such. */
static ls_status supply(ls_hosts *hosts, probing *p, const ls_outcome *channels, bool *any)
{
    enum { BYTES_PER_S = 1000000 };
    char programs[1024], digest[LS_APART_DIGEST_BYTES];
    ls_hosts *apart = ls_list_make(1, sizeof *apart);
    int *index = ls_list_make((size_t)hosts->count, sizeof *index), tarball = -1, lack = 0;
    int64_t bytes = 0;
    ls_outcome found = {0}, unpacked = {0};
    choose_apart(hosts, p, channels, apart, index);
    *any = apart->count > 0;
    ls_status status = LS_OK;
    if (*any) {
        ls_remote_programs(programs, sizeof programs);
        status = ls_apart_digest(programs, digest);
        LS_THEN(status, run_unpack(apart, digest, -1, LS_PROBE_LIMIT_S, p, &found));
        lack = status == LS_OK ? take_programs(hosts, apart, index, p, &found) : 0;
    }
    if (lack > 0) {
        status = ls_apart_tarball(programs, p->folder, &tarball, &bytes);
        double limit_s = LS_PROBE_LIMIT_S + (double)bytes * apart->count / BYTES_PER_S;
        LS_THEN(status, run_unpack(apart, digest, tarball, limit_s, p, &unpacked));
        for (int k = 0; status == LS_OK && k < apart->count; k++) {
            ls_log_note("host %s does not share this disk: %.1f MB of programs go there",
                        apart->host[k].name, (double)bytes * 1e-6);
        }
        lack = status == LS_OK ? take_programs(hosts, apart, index, p, &unpacked) : 0;
        if (tarball >= 0) {
            close(tarball);
        }
    }
    ls_outcome_free(&found);
    ls_outcome_free(&unpacked);
    free(apart);
    free(index);
    return status == LS_OK && lack != 0 ? LS_ERR_INFRA : status;
}

/* The address at which the others reach host 0: its name if it resolves here (an alias of the ssh
 * configuration does not), else the address to which ssh connected. */
static void choose_master(ls_hosts *hosts, const cJSON *answer)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    const char *at = strrchr(hosts->host[0].name, '@');
    const char *name = at == NULL ? hosts->host[0].name : at + 1;
    const char *address = ls_json_string(answer, "address", "");
    bool known = getaddrinfo(name, NULL, &hints, &found) == 0;
    if (known) {
        freeaddrinfo(found);
    }
    bool use_name = address[0] == '\0' ||
                    (known && (!ls_launchers_is_loopback(name, true) || hosts->count == 1 ||
                               ls_launchers_is_loopback(address, true)));
    ls_text_put(hosts->master_address, sizeof hosts->master_address, "%s",
                use_name ? name : address);
    const cJSON *port;
    hosts->port_count = hosts->port_next = 0;
    ls_json_each(port, ls_json_get(answer, "ports")) {
        if (cJSON_IsNumber(port) && port->valueint > 0 && port->valueint < 65536 &&
            hosts->port_count < LS_HOSTS_PORTS_MAX) {
            hosts->port[hosts->port_count++] = port->valueint;
        }
    }
}

/* One build on all nodes, or what is compared and judged is not one program's. */
static ls_status check_build(const ls_host *host, const cJSON *answer, const char *own)
{
    char launcher[1024];
    const char *build = ls_json_string(answer, "build", "an unknown one");
    if (strcmp(build, own) == 0) {
        return LS_OK;
    }
    ls_remote_launcher(host, launcher, sizeof launcher);
    *strrchr(launcher, '/') = '\0';
    return ls_log_fail(LS_ERR_INFRA, "host %s has another build in %s: %s, here %s%s", host->name,
                       launcher, build, own,
                       host->programs[0] != '\0' ? "; remove that folder there" : "");
}

static ls_status take_answers(ls_hosts *hosts, const probing *p, const ls_outcome *channels,
                              ls_probe *probe)
{
    char programs[1024], build[LS_APART_DIGEST_BYTES];
    ls_remote_programs(programs, sizeof programs);
    ls_status status = ls_apart_digest(programs, build);
    for (int k = 0; k < hosts->count; k++) {
        char said[500];
        cJSON *answer = ls_remote_report(p->folder, k, "probe", said, sizeof said);
        if (answer == NULL) {
            bool late = channels->state == LS_OUTCOME_TIMED_OUT && channels->rank[k].signal != 0;
            report_failed(&hosts->host[k], &channels->rank[k], said, late);
            status = LS_ERR_INFRA;
            continue;
        }
        ls_probe *one = &probe[k];
        ls_status same = check_build(&hosts->host[k], answer, build);
        status = status != LS_OK ? status : same;
        ls_text_put(one->hostname, sizeof one->hostname, "%s",
                    ls_json_string(answer, "hostname", ""));
        ls_text_put(one->cpu, sizeof one->cpu, "%s", ls_json_string(answer, "cpu", ""));
        ls_text_put(one->device, sizeof one->device, "%s", ls_json_string(answer, "device", ""));
        one->cores = ls_json_number(answer, "cores", 1);
        one->devices = ls_json_int(answer, "devices", 0);
        if (k == 0) {
            choose_master(hosts, answer);
        }
        cJSON_Delete(answer);
    }
    if (status == LS_OK && hosts->port_count == 0) {
        status = ls_log_fail(LS_ERR_INFRA, "host %s has no free port from 20000 to 31999",
                             hosts->host[0].name);
    }
    return status;
}

/* A report has one device and one number of ranks per node. */
static ls_status check_alike(const ls_hosts *hosts, const ls_probe_question *question,
                             const ls_probe *probe)
{
    for (int k = 1; k < hosts->count; k++) {
        if (strcmp(probe[k].device, probe[0].device) != 0) {
            return ls_log_fail(
                LS_ERR_INFRA, "host %s would run on %s, host %s on %s (DEVICE=cpu forces the CPU)",
                hosts->host[0].name, probe[0].device, hosts->host[k].name, probe[k].device);
        }
        int first = ls_probe_usual_ranks(probe[0].devices, probe[0].cores);
        int other = ls_probe_usual_ranks(probe[k].devices, probe[k].cores);
        if (question->ranks == 0 && first != other) {
            return ls_log_fail(LS_ERR_USAGE,
                               "host %s would run %d ranks, host %s %d; set the number with NGPUS",
                               hosts->host[0].name, first, hosts->host[k].name, other);
        }
    }
    return LS_OK;
}

ls_status ls_probe_hosts(ls_hosts *hosts, const ls_probe_question *question, ls_probe *probe)
{
    probing p = {0};
    ls_outcome channels = {.state = LS_OUTCOME_NOT_STARTED};
    LS_TRY(
        ls_proc_catch_signals()); /* on SIGINT the marker is removed and the channels are ended */
    bool apart = false;
    ls_status status = make_marker(question->folder, &p);
    for (int k = 0; k < hosts->count; k++) {
        hosts->host[k].programs[0] = '\0';
    }
    LS_THEN(status, ask_all(hosts, question, &p, &channels));
    LS_THEN(status, supply(hosts, &p, &channels, &apart));
    if (status == LS_OK && apart) {
        ls_outcome_free(&channels);
        status = ask_all(hosts, question, &p, &channels);
    }
    LS_THEN(status, take_answers(hosts, &p, &channels, probe));
    LS_THEN(status, check_alike(hosts, question, probe));
    ls_outcome_free(&channels);
    remove_marker(&p, hosts->count);
    return status;
}
