#include "supervise.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/list.h"
#include "harness/machine/machine.h"
#include "launchers.h"

/* ---- environment ---------------------------------------------------------------------------- */

/* Variables that identify a rank: inherited values would be those of another one. */
static bool is_replaced(const char *entry, const ls_supervise_rank_info *info)
{
    static const char *const names[] = {"MASTER_ADDR", "LS_NODE_ADDR", "MASTER_PORT", "LS_TOKEN"};
    size_t name_bytes = strcspn(entry, "=");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == name_bytes && strncmp(entry, names[i], name_bytes) == 0) {
            return true;
        }
    }
    return ls_launchers_is_place(entry) || strncmp(entry, "TORCHELASTIC_", 13) == 0 ||
           (info->run_directory != NULL && strncmp(entry, "LS_RUN_DIR=", 11) == 0) ||
           (info->share_devices && strncmp(entry, "LS_OVERSUBSCRIBE=", 17) == 0) ||
           (info->threads > 0 && strncmp(entry, "OMP_NUM_THREADS=", 16) == 0) ||
           (info->simulated && strncmp(entry, "NCCL_HOSTID=", 12) == 0);
}

ls_words ls_supervise_environment(const ls_supervise_rank_info *info)
{
    ls_words list = {0, 0, NULL};
    for (int i = 0; environ[i] != NULL; i++) {
        if (!is_replaced(environ[i], info)) {
            ls_words_add(&list, "%s", environ[i]);
        }
    }
    ls_words_add(&list, "RANK=%d", info->rank);
    ls_words_add(&list, "WORLD_SIZE=%d", info->world);
    ls_words_add(&list, "LOCAL_RANK=%d", info->local_rank);
    ls_words_add(&list, "LOCAL_WORLD_SIZE=%d", info->local_world);
    ls_words_add(&list, "GROUP_RANK=%d", info->node);
    ls_words_add(&list, "MASTER_ADDR=%s", info->master_address);
    ls_words_add(&list, "MASTER_PORT=%d", info->port);
    ls_words_add(&list, "TORCHELASTIC_RESTART_COUNT=%d", info->restart);
    ls_words_add(&list, "TORCHELASTIC_MAX_RESTARTS=%d", info->restarts_max);
    if (info->token != NULL) {
        ls_words_add(&list, "LS_TOKEN=%s", info->token);
    }
    if (info->run_directory != NULL) {
        ls_words_add(&list, "LS_RUN_DIR=%s", info->run_directory);
    }
    if (info->simulated && info->node_address != NULL) {
        ls_words_add(&list, "LS_NODE_ADDR=%s", info->node_address);
    } else if (info->simulated) { /* all of 127.0.0.0/8 is this machine */
        ls_words_add(&list, "LS_NODE_ADDR=127.0.%d.%d", (info->node + 1) / 250,
                     (info->node + 1) % 250);
    }
    if (info->share_devices) {
        ls_words_add(&list, "LS_OVERSUBSCRIBE=1");
    }
    if (info->simulated) {
        ls_words_add(&list, "NCCL_HOSTID=lockstep-node-%d", info->node);
    }
    if (info->threads > 0 || getenv("OMP_NUM_THREADS") == NULL) {
        int shared = ls_cores_share(ls_cores_usable(), info->ranks_here);
        ls_words_add(&list, "OMP_NUM_THREADS=%d", info->threads > 0 ? info->threads : shared);
    }
    return list;
}

int ls_supervise_free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof at;
    int port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &bytes) == 0) {
        port = ntohs(at.sin_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

ls_status ls_supervise_check_loopback(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(9), /* any: a datagram socket only looks for a way */
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    return error == 0 ? LS_OK
                      : ls_log_fail(LS_ERR_INFRA,
                                    "ranks on this machine cannot meet: 127.0.0.1: %s; `ip link "
                                    "set lo up` turns the loopback on",
                                    strerror(error));
}

void ls_supervise_token(char text[33])
{
    unsigned char bytes[16];
    LS_ASSERT(getrandom(bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
    for (int i = 0; i < 16; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
}

/* ---- running -------------------------------------------------------------------------------- */

static bool is_victim(const ls_proc *rank)
{
    return rank->signal == 0 && (rank->code == LS_ERR_PEER_LOST || rank->code == LS_ERR_RENDEZVOUS);
}

/* A rank that failed by itself replaces one that only lost its peer as the first failure. */
static void note_failure(ls_outcome *outcome, int index)
{
    const ls_proc *rank = &outcome->rank[index];
    if (rank->code == 0 ||
        (outcome->first_rank >= 0 &&
         !(is_victim(&outcome->rank[outcome->first_rank]) && !is_victim(rank)))) {
        return;
    }
    outcome->first_rank = index;
    outcome->code = rank->code;
    outcome->signal = rank->signal;
    outcome->state = rank->signal != 0 ? LS_OUTCOME_KILLED : LS_OUTCOME_FAILED;
}

static ls_status start_all(const ls_supervise *supervise, ls_outcome *outcome)
{
    for (int i = 0; i < supervise->count; i++) {
        const ls_proc_spec *spec = &supervise->spec[i];
        ls_status status = ls_fork_server_start(supervise->fork_server, spec, &outcome->rank[i])
                               ? LS_OK
                               : ls_proc_start(spec, &outcome->rank[i]);
        if (status != LS_OK) {
            outcome->first_rank = i;
            outcome->code = status;
            ls_proc_end_all(outcome->rank, supervise->count, 0);
            outcome->ended_ns = ls_clock_ns();
            return status;
        }
    }
    return LS_OK;
}

/* Waits until no rank is running or the running ones must be ended. */
static void wait_all(const ls_supervise *supervise, ls_outcome *outcome)
{
    int64_t end_ns = supervise->limit_s > 0
                         ? outcome->started_ns + (int64_t)(supervise->limit_s * 1e9)
                         : INT64_MAX;
    double tick_s = supervise->tick_s > 0 ? supervise->tick_s : 1;
    int64_t tick_ns = ls_clock_after(tick_s);
    bool in_grace = false, ticks = supervise->on_tick != NULL || supervise->gpus != NULL;
    for (;;) {
        int64_t until_ns = ticks && tick_ns < end_ns ? tick_ns : end_ns;
        if (supervise->waiting != NULL) {
            int64_t look_ns = ls_waiting_look(supervise->waiting);
            until_ns = look_ns < until_ns ? look_ns : until_ns;
        }
        int ended = ls_proc_wait_any(outcome->rank, supervise->count,
                                     until_ns == INT64_MAX ? -1 : until_ns);
        if (ended >= 0) {
            note_failure(outcome, ended);
            if (outcome->first_rank >= 0 && !in_grace) {
                in_grace = true;
                int64_t grace_end_ns = ls_clock_after(supervise->grace_s);
                end_ns = grace_end_ns < end_ns ? grace_end_ns : end_ns;
            }
        } else if (ended == -2) {
            outcome->state = LS_OUTCOME_STOPPED;
            if (supervise->hang_up == NULL) {
                ls_proc_signal_all(outcome->rank, supervise->count, ls_proc_caught_signal());
            }
            return;
        } else if (ended == -3) {
            return;
        }
        int64_t now_ns = ls_clock_ns();
        if (now_ns >= end_ns) {
            outcome->state = in_grace ? outcome->state : LS_OUTCOME_TIMED_OUT;
            if (supervise->waiting != NULL) {
                (void)ls_waiting_cause(supervise->waiting);
            }
            return;
        }
        if (ticks && now_ns >= tick_ns) {
            ls_watch_gpu_tick(supervise->gpus);
            if (supervise->on_tick != NULL) {
                supervise->on_tick(supervise->context);
            }
            tick_ns = ls_clock_after(tick_s);
        }
    }
}

ls_status ls_supervise_run(const ls_supervise *supervise, ls_outcome *outcome)
{
    *outcome = (ls_outcome){.state = LS_OUTCOME_NOT_STARTED,
                            .first_rank = -1,
                            .started_ns = ls_clock_ns(),
                            .rank_count = supervise->count};
    outcome->rank = ls_list_make((size_t)supervise->count, sizeof *outcome->rank);
    ls_proc_orphans orphans;
    ls_proc_orphans_begin(&orphans);
    ls_status status = start_all(supervise, outcome);
    if (status != LS_OK) {
        (void)ls_proc_orphans_end(&orphans);
        return status;
    }
    outcome->state = LS_OUTCOME_DONE;
    wait_all(supervise, outcome);
    if (supervise->hang_up != NULL) {
        supervise->hang_up(supervise->context);
        (void)ls_proc_wait_all(outcome->rank, supervise->count,
                               ls_clock_after(supervise->hang_up_s));
    }
    bool longer = outcome->state == LS_OUTCOME_STOPPED &&
                  supervise->grace_s > (double)LS_SUPERVISE_END_GRACE_S;
    ls_proc_end_all(outcome->rank, supervise->count,
                    longer ? supervise->grace_s : (double)LS_SUPERVISE_END_GRACE_S);
    (void)ls_proc_orphans_end(&orphans);
    outcome->ended_ns = ls_clock_ns();
    ls_outcome_add_up(outcome);
    return LS_OK;
}
