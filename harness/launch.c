/* `lockstep-launch`: starts one process per rank, like torchrun, for any command. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/cores.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/usage.h"
#include "kernels/core/path.h"
#include "kernels/core/plant.h"
#include "harness/hosts/awaited.h"
#include "harness/hosts/launchers.h"
#include "harness/hosts/probe.h"
#include "harness/hosts/remote.h"
#include "harness/machine/machine.h"
#include "harness/hosts/supervise.h"
#include "harness/process/proc.h"

enum { EXIT_TIMED_OUT = 124 }; /* as timeout(1) */

typedef struct arguments {
    int nproc, nnodes, node_rank, local_nodes, master_port, restarts_max;
    double grace_s, limit_s;
    int probe_ranks;
    int64_t file_bytes_max;
    bool env_from_stdin, probe_oversubscribed, pass_local_rank;
    const char *master_addr, *log_dir, *probe, *probe_device;
    char **command;
    ls_apart apart; /* of a job with nodes that do not share the bench's disk */
} arguments;

enum option_key {
    OPTION_NPROC = 256,
    OPTION_NNODES,
    OPTION_NODE_RANK,
    OPTION_MASTER_ADDR,
    OPTION_MASTER_PORT,
    OPTION_LOCAL_NODES,
    OPTION_GRACE,
    OPTION_TIMEOUT,
    OPTION_LOG_DIR,
    OPTION_MAX_RESTARTS,
    OPTION_ENV_FROM_STDIN,
    OPTION_FILE_BYTES,
    OPTION_PROBE,
    OPTION_PROBE_DEVICE,
    OPTION_PROBE_RANKS,
    OPTION_PROBE_OVERSUBSCRIBED,
    OPTION_PASS_LOCAL_RANK,
};

/* torchrun's spelling with underscores */
#define ALIAS(name)                                          \
    {                                                        \
        name, 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0 \
    }

static const struct argp_option options[] = {
    {"nproc-per-node", OPTION_NPROC, "N|auto", 0,
     "Ranks on this machine [1]; auto: one per NVIDIA device, else one per core", 0},
    ALIAS("nproc_per_node"),
    {"nnodes", OPTION_NNODES, "N", 0, "Machines, each with its own launcher [1]", 0},
    {"node-rank", OPTION_NODE_RANK, "K", 0, "This machine's number, from 0 [0]", 0},
    ALIAS("node_rank"),
    {"master-addr", OPTION_MASTER_ADDR, "ADDR", 0, "Address of rank 0 [127.0.0.1]", 0},
    ALIAS("master_addr"),
    {"master-port", OPTION_MASTER_PORT, "PORT", 0, "Port of rank 0 [a free one]", 0},
    ALIAS("master_port"),
    {"local-nodes", OPTION_LOCAL_NODES, "M", 0,
     "Simulate M nodes on this machine: each gets N/M of the ranks, a loopback address and an NCCL "
     "host id of its own [1]",
     0},
    ALIAS("local_nodes"),
    {"grace", OPTION_GRACE, "S", 0,
     "Seconds for the other ranks to exit by themselves after the first failure, and, if more than "
     "5, for all after a signal [5]",
     0},
    {"timeout", OPTION_TIMEOUT, "S", 0, "Seconds for the whole job [no limit]", 0},
    {"log-dir", OPTION_LOG_DIR, "DIR", 0,
     "Write the output of rank k to DIR/rank<k>.log, not to the terminal", 0},
    ALIAS("log_dir"),
    {"max-restarts", OPTION_MAX_RESTARTS, "N", 0,
     "When a rank fails, end all and start them again, up to N times; the command continues from "
     "its own checkpoint (lockstep-train: --save-dir DIR --resume auto). With --nnodes, the same "
     "on all machines [0]",
     0},
    ALIAS("max_restarts"),
    {"pass-local-rank", OPTION_PASS_LOCAL_RANK, NULL, 0,
     "Add --local_rank=K to the end of the command, as torch.distributed.launch does without "
     "--use_env",
     0},
    ALIAS("pass_local_rank"),
    {"env-from-stdin", OPTION_ENV_FROM_STDIN, NULL, 0,
     "For a bench on another machine: read working directory and environment from standard input "
     "(one line of JSON), report on standard output, and end the ranks when the input ends or is "
     "silent for 30 s",
     0},
    ALIAS("env_from_stdin"),
    {"file-bytes", OPTION_FILE_BYTES, "N", OPTION_HIDDEN, NULL, 0},
    {"probe", OPTION_PROBE, "FILE", OPTION_HIDDEN, NULL, 0},
    {"probe-device", OPTION_PROBE_DEVICE, "DEVICE", OPTION_HIDDEN, NULL, 0},
    {"probe-ranks", OPTION_PROBE_RANKS, "N", OPTION_HIDDEN, NULL, 0},
    {"probe-oversubscribed", OPTION_PROBE_OVERSUBSCRIBED, NULL, OPTION_HIDDEN, NULL, 0},
    {0},
};

static int64_t parse_integer(struct argp_state *state, const char *name, const char *text,
                             int64_t least, int64_t most)
{
    int64_t value = 0;
    if (!ls_text_integer(text, least, most, &value)) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %s '%s': allowed: %lld to %lld", name, text,
                     (long long)least, (long long)most);
    }
    return value;
}

static double parse_seconds(struct argp_state *state, const char *name, const char *text)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value <= 1e6)) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %s '%s': allowed: 0 to 1e6 seconds", name,
                     text);
    }
    return value;
}

static int ranks_for_this_machine(void)
{
    glob_t found;
    int devices = 0;
    LS_TEXT(files, 700, "%s/nvidia[0-9]*", ls_path_devfs());
    if (glob(files, 0, NULL, &found) == 0) {
        devices = (int)found.gl_pathc;
        globfree(&found);
    }
    return devices > 0 ? devices : ls_cores_share(ls_cores_usable(), 1);
}

static void check_together(struct argp_state *state, const arguments *given)
{
    if (given->probe != NULL) {
        return; /* starts no ranks */
    }
    if (given->command == NULL) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: no command (after the options, or after --)");
    }
    if (given->node_rank >= given->nnodes) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: --node-rank %d: allowed: 0 to %d (--nnodes %d)", given->node_rank,
                     given->nnodes - 1, given->nnodes);
    }
    if (given->nnodes > 1 && given->local_nodes > 1) {
        argp_failure(
            state, LS_ERR_USAGE, 0,
            "error: --local-nodes %d simulates nodes on one machine and excludes --nnodes %d",
            given->local_nodes, given->nnodes);
    }
    if (given->nnodes > 1 && (given->master_addr == NULL || given->master_port == 0)) {
        argp_failure(
            state, LS_ERR_USAGE, 0,
            "error: --nnodes %d needs --master-addr and --master-port, equal on all machines",
            given->nnodes);
    }
    if (given->nnodes > 1 && getenv("LS_NODE_ADDR") == NULL &&
        ls_launchers_is_loopback(given->master_addr, given->node_rank > 0)) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: --nnodes %d with --master-addr %s, a loopback, at which each machine "
                     "meets itself; allowed: an address of node 0 (on one machine: --local-nodes)",
                     given->nnodes, given->master_addr);
    }
    const ls_launcher *outer = ls_launchers_next_world(&ls_launchers[0]);
    if (given->nproc == 1 && given->nnodes == 1 && outer != NULL) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: %s=%s and %s=%s, but --nproc-per-node 1 and --nnodes 1 start a world "
                     "of one; start the command without lockstep-launch, or say --nnodes",
                     outer->rank, ls_launchers_value(outer->rank), outer->world,
                     ls_launchers_value(outer->world));
    }
    if (given->nproc % given->local_nodes != 0) {
        argp_failure(state, LS_ERR_USAGE, 0,
                     "error: --nproc-per-node %d cannot be split evenly over --local-nodes %d",
                     given->nproc, given->local_nodes);
    }
    if ((int64_t)given->nproc * given->nnodes > LS_HOSTS_RANKS_MAX) {
        argp_failure(state, LS_ERR_USAGE, 0, "error: %d x %d ranks: allowed: at most %d",
                     given->nproc, given->nnodes, LS_HOSTS_RANKS_MAX);
    }
}

/* Options that only set a member of `arguments`. */
static const struct plain_option {
    int key;
    size_t field;
    enum { FLAG, TEXT, SECONDS, COUNT } kind;
    const char *name;
    int least, most; /* of a count */
} plain_options[] = {
    {OPTION_NPROC, offsetof(arguments, nproc), COUNT, "--nproc-per-node", 1, LS_HOSTS_RANKS_MAX},
    {OPTION_NNODES, offsetof(arguments, nnodes), COUNT, "--nnodes", 1, LS_HOSTS_RANKS_MAX},
    {OPTION_NODE_RANK, offsetof(arguments, node_rank), COUNT, "--node-rank", 0,
     LS_HOSTS_RANKS_MAX - 1},
    {OPTION_MASTER_PORT, offsetof(arguments, master_port), COUNT, "--master-port", 1, 65535},
    {OPTION_LOCAL_NODES, offsetof(arguments, local_nodes), COUNT, "--local-nodes", 1,
     LS_HOSTS_RANKS_MAX},
    {OPTION_MAX_RESTARTS, offsetof(arguments, restarts_max), COUNT, "--max-restarts", 0, 1000000},
    {OPTION_PROBE_RANKS, offsetof(arguments, probe_ranks), COUNT, "--probe-ranks", 0,
     LS_HOSTS_RANKS_MAX},
    {OPTION_GRACE, offsetof(arguments, grace_s), SECONDS, "--grace", 0, 0},
    {OPTION_TIMEOUT, offsetof(arguments, limit_s), SECONDS, "--timeout", 0, 0},
    {OPTION_MASTER_ADDR, offsetof(arguments, master_addr), TEXT, NULL, 0, 0},
    {OPTION_LOG_DIR, offsetof(arguments, log_dir), TEXT, NULL, 0, 0},
    {OPTION_PROBE, offsetof(arguments, probe), TEXT, NULL, 0, 0},
    {OPTION_PROBE_DEVICE, offsetof(arguments, probe_device), TEXT, NULL, 0, 0},
    {OPTION_ENV_FROM_STDIN, offsetof(arguments, env_from_stdin), FLAG, NULL, 0, 0},
    {OPTION_PASS_LOCAL_RANK, offsetof(arguments, pass_local_rank), FLAG, NULL, 0, 0},
    {OPTION_PROBE_OVERSUBSCRIBED, offsetof(arguments, probe_oversubscribed), FLAG, NULL, 0, 0},
};

static error_t parse_plain(int key, char *text, struct argp_state *state)
{
    for (size_t i = 0; i < sizeof plain_options / sizeof *plain_options; i++) {
        const struct plain_option *option = &plain_options[i];
        void *field = (char *)state->input + option->field;
        if (option->key != key) {
            continue;
        }
        if (option->kind == COUNT) {
            *(int *)field =
                (int)parse_integer(state, option->name, text, option->least, option->most);
        } else if (option->kind == SECONDS) {
            *(double *)field = parse_seconds(state, option->name, text);
        } else if (option->kind == TEXT) {
            *(const char **)field = text;
        } else {
            *(bool *)field = true;
        }
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static error_t parse_one(int key, char *text, struct argp_state *state)
{
    arguments *given = state->input;
    switch (key) {
    case OPTION_FILE_BYTES:
        given->file_bytes_max = parse_integer(state, "--file-bytes", text, 1, INT64_MAX);
        return 0;
    case ARGP_KEY_ARG: /* the first word of the command; the rest belongs to it */
        given->command = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        check_together(state, given);
        return 0;
    default:
        break;
    }
    if (key == OPTION_NPROC && strcmp(text, "auto") == 0) {
        given->nproc = ranks_for_this_machine();
        return 0;
    }
    return parse_plain(key, text, state);
}

static ls_supervise_rank_info rank_info_of(const arguments *given, int index, int port,
                                           const char *token, int restart)
{
    int per_node = given->nproc / given->local_nodes;
    const char *own = given->nnodes > 1 ? getenv("LS_NODE_ADDR") : NULL; /* a node that is played */
    return (ls_supervise_rank_info){
        .rank = given->node_rank * given->nproc + index,
        .world = given->nnodes * given->nproc,
        .local_rank = index % per_node,
        .local_world = per_node,
        .node = given->local_nodes > 1 ? index / per_node : given->node_rank,
        .simulated = given->local_nodes > 1 || own != NULL,
        .node_address = own,
        .master_address = given->master_addr != NULL ? given->master_addr : "127.0.0.1",
        .port = port,
        .token = token,
        .ranks_here = given->nproc,
        .restart = LS_PLANT(restart_count_stays, restart, 0),
        .restarts_max = given->restarts_max,
    };
}

/* The meaning of an exit code in the subject protocol (protocol.md). Other commands have
 * codes of their own, so only codes that are unlikely elsewhere are named. */
static const char *protocol_meaning(int code)
{
    static const char *const meaning[] = {
        [LS_ERR_PEER_LOST] = " (in the subject protocol: peer lost)",
        [LS_ERR_RENDEZVOUS] = " (in the subject protocol: rendezvous timed out)",
        [LS_ERR_NON_FINITE] = " (in the subject protocol: non-finite state)",
        [LS_ERR_DEVICE_LOST] = " (in the subject protocol: device lost)",
        [LS_ERR_UNEVEN] = " (in the subject protocol: uneven inputs)",
        [LS_STOPPED] = " (in the subject protocol: stopped by a signal, its state saved)",
    };
    bool known = code >= 0 && code < (int)(sizeof meaning / sizeof *meaning);
    return known && meaning[code] != NULL ? meaning[code] : "";
}

/* Logs the first failure in one line, `then` at its end. Returns the exit code. */
static int log_outcome(const arguments *given, const ls_outcome *outcome, const char *cause,
                       const char *then)
{
    int rank = given->node_rank * given->nproc + outcome->first_rank;
    int signal = ls_proc_caught_signal();
    int pid = outcome->first_rank >= 0 ? (int)outcome->rank[outcome->first_rank].started_pid : 0;
    switch (outcome->state) {
    case LS_OUTCOME_DONE:
        return 0;
    case LS_OUTCOME_FAILED:
        ls_log_error("rank %d (pid %d) failed first, with exit code %d%s%s", rank, pid,
                     outcome->code, protocol_meaning(outcome->code), then);
        return outcome->code;
    case LS_OUTCOME_KILLED:
        ls_log_error("rank %d (pid %d) failed first, killed by signal %d (%s)%s", rank, pid,
                     outcome->signal, strsignal(outcome->signal), then);
        return 128 + outcome->signal;
    case LS_OUTCOME_TIMED_OUT:
        ls_log_error("the ranks were ended after the deadline of %g s%s%s", given->limit_s,
                     cause[0] != '\0' ? ": " : "", cause);
        return EXIT_TIMED_OUT;
    case LS_OUTCOME_STOPPED:
        ls_log_error("stopped by signal %d (%s)", signal, strsignal(signal));
        return 128 + signal;
    case LS_OUTCOME_NOT_STARTED:
        break;
    }
    return outcome->code;
}

/* Prints the outcome of each rank for the bench, after the files of a node without its disk. */
static void report(arguments *given, ls_outcome *outcome)
{
    if (outcome->state != LS_OUTCOME_DONE) {
        ls_apart_find_full(&given->apart, outcome->why, sizeof outcome->why);
    }
    if (ls_apart_finish(&given->apart) != LS_OK) {
        return; /* the bench takes nothing more */
    }
    cJSON *line = cJSON_CreateObject();
    LS_MEMORY(line != NULL);
    cJSON_AddStringToObject(line, "event", "node");
    cJSON_AddNumberToObject(line, "node", given->node_rank);
    cJSON_AddItemToObject(line, "outcome",
                          ls_outcome_json(outcome, given->node_rank * given->nproc));
    (void)ls_json_append_line(STDOUT_FILENO, "standard output", line);
    cJSON_Delete(line);
}

static ls_words with_local_rank(char *const *command, const ls_supervise_rank_info *info)
{
    ls_words words = {0, 0, NULL};
    for (int i = 0; command[i] != NULL; i++) {
        ls_words_add(&words, "%s", command[i]);
    }
    ls_words_add(&words, "--local_rank=%d",
                 LS_PLANT(passes_rank_as_local, info->local_rank, info->local_world));
    return words;
}

/* Appends how a start ended that another one follows to LS_RUN_DIR/restarts.jsonl, which the judge
 * reads. */
static ls_status note_restart(const arguments *given, const ls_outcome *outcome, int restart)
{
    const char *folder = getenv("LS_RUN_DIR");
    if (folder == NULL || folder[0] == '\0' || given->node_rank > 0) {
        return LS_OK;
    }
    LS_TRY(ls_path_make_last(folder));
    LS_TEXT(path, PATH_MAX, "%s/restarts.jsonl", folder);
    int file = ls_file_open_to_write(path, restart == 1 ? O_TRUNC | O_APPEND : O_APPEND);
    if (file < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", path, strerror(errno));
    }
    cJSON *line = ls_outcome_json(outcome, given->node_rank * given->nproc);
    cJSON_AddStringToObject(line, "event", "restart");
    cJSON_AddNumberToObject(line, "restart", restart);
    ls_status status = ls_json_append_line(file, path, line);
    cJSON_Delete(line);
    (void)close(file);
    return status;
}

/* Starts the ranks and waits for their end. *again: they failed, and the next start is due. */
static int run_once(arguments *given, const char *token, double limit_s, int restart, bool *again)
{
    int port = given->master_port != 0 ? given->master_port : ls_supervise_free_port();
    if (port == 0) {
        return ls_log_fail(LS_ERR_INFRA, "no free port for MASTER_PORT: %s", strerror(errno));
    }
    ls_proc_spec *spec = calloc((size_t)given->nproc, sizeof *spec);
    ls_words *environment = calloc((size_t)given->nproc, sizeof *environment);
    ls_words *command = calloc((size_t)given->nproc, sizeof *command);
    ls_words logs = {0, 0, NULL};
    LS_MEMORY(spec != NULL && environment != NULL && command != NULL);
    for (int i = 0; i < given->nproc; i++) {
        ls_supervise_rank_info info = rank_info_of(given, i, port, token, restart);
        environment[i] = ls_supervise_environment(&info);
        spec[i].argv = given->command;
        if (given->pass_local_rank) {
            command[i] = with_local_rank(given->command, &info);
            spec[i].argv = command[i].word;
        }
        spec[i].file_bytes_max = given->file_bytes_max;
        spec[i].environment = environment[i].word;
        if (given->log_dir != NULL) {
            ls_words_add(&logs, "%s/rank%d.log", given->log_dir, info.rank);
            spec[i].log_path = logs.word[i];
        }
    }
    ls_awaited awaited = ls_awaited_begin(getenv("LS_RUN_DIR"), NULL);
    ls_waiting waiting = ls_waiting_begin(ls_awaited_probes, &awaited, limit_s);
    ls_supervise supervise = {.count = given->nproc,
                              .spec = spec,
                              .limit_s = limit_s,
                              .grace_s = given->grace_s,
                              .waiting = &waiting};
    ls_outcome outcome;
    ls_status status = ls_supervise_run(&supervise, &outcome);
    bool failed = outcome.state == LS_OUTCOME_FAILED || outcome.state == LS_OUTCOME_KILLED;
    *again = status == LS_OK && failed && restart < given->restarts_max;
    LS_TEXT(then, 64, *again ? "; restart %d of %d" : "", restart + 1, given->restarts_max);
    int code = status != LS_OK ? (int)status : log_outcome(given, &outcome, waiting.cause, then);
    *again = *again && note_restart(given, &outcome, restart + 1) == LS_OK;
    if (given->env_from_stdin && !*again) {
        report(given, &outcome);
    }
    ls_outcome_free(&outcome);
    for (int i = 0; i < given->nproc; i++) {
        ls_words_free(&environment[i]);
        ls_words_free(&command[i]);
    }
    ls_words_free(&logs);
    free(environment);
    free(command);
    free(spec);
    return code;
}

static int run(arguments *given)
{
    char token_text[33];
    const char *token = getenv("LS_TOKEN");
    if (given->nproc > 1) {
        LS_TRY(ls_supervise_check_loopback());
    }
    if (token == NULL && given->nnodes == 1) { /* several launchers need a common one */
        ls_supervise_token(token_text);
        token = token_text;
    }
    if (given->log_dir != NULL) {
        LS_TRY(ls_path_make_folder(given->log_dir));
    }
    int64_t end_ns = ls_clock_after(given->limit_s);
    double limit_s = given->limit_s;
    bool again = true;
    int code = 0;
    for (int restart = 0; again; restart++) {
        code = run_once(given, token, limit_s, restart, &again);
        double left_s = (double)(end_ns - ls_clock_ns()) * 1e-9;
        left_s = left_s > 0 ? left_s : DBL_MIN; /* 0 is no limit */
        limit_s = given->limit_s > 0 ? left_s : 0;
    }
    return code;
}

/* Reads the order. On a node without the bench's disk the command gets this node's folders. */
static ls_status obey(arguments *given)
{
    cJSON *apart = NULL;
    (void)unsetenv("OMP_NUM_THREADS"); /* srun passes on that of the machine it was started on */
    ls_status status = ls_remote_session_read_order(STDIN_FILENO, &apart);
    if (status == LS_OK && apart != NULL) {
        const char *token = getenv("LS_TOKEN");
        LS_TEXT(name, 100, "%.40s.%d", token == NULL ? "" : token, given->node_rank);
        status = ls_apart_open(apart, name, STDIN_FILENO, &given->apart);
        if (status == LS_OK) {
            ls_apart_map_words(&given->apart, given->command);
            given->log_dir = given->log_dir == NULL
                                 ? NULL
                                 : ls_apart_map(&given->apart, given->log_dir, given->apart.root);
        }
    }
    cJSON_Delete(apart);
    (void)signal(SIGHUP, SIG_DFL); /* an ignored SIGHUP could not report the end of the input */
    return status;
}

static int run_given(arguments *given)
{
    if (given->env_from_stdin) {
        LS_TRY(obey(given));
    }
    if (ls_proc_catch_signals() != LS_OK || ls_proc_pass_signals() != LS_OK ||
        (given->env_from_stdin && ls_remote_session_monitor(STDIN_FILENO) != LS_OK) ||
        ls_apart_begin(&given->apart) != LS_OK) {
        return LS_ERR_INFRA;
    }
    if (given->probe != NULL) {
        return (int)ls_probe_answer(given->probe, given->probe_device, given->probe_ranks,
                                    given->probe_oversubscribed);
    }
    return run(given);
}

static int run_program(int argc, char **argv)
{
    arguments given = {
        .nproc = 1, .nnodes = 1, .local_nodes = 1, .grace_s = 5, .probe_device = "auto"};
    const struct argp parser = {
        .options = options,
        .parser = parse_one,
        .args_doc = "[--] COMMAND [ARGUMENT...]",
        .doc = "Starts COMMAND once per rank with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
               "GROUP_RANK, MASTER_ADDR, MASTER_PORT and LS_TOKEN set. Says on standard error "
               "when ranks get no further, and why: a process that is stopped, no new event in "
               "LS_RUN_DIR for a minute.\v"
               "Exit code: 0; that of the first rank that failed, or 128 + signal when it was "
               "killed; 124 at the deadline; 2 for wrong arguments.",
    };
    if (!ls_usage_check(&parser, true, argc, argv)) {
        return LS_ERR_USAGE;
    }
    ls_file_survive_limit();
    argp_err_exit_status = LS_ERR_USAGE;
    if (argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &given) != 0) {
        return LS_ERR_INFRA;
    }
    if (ls_guard_begin(false) != LS_OK) {
        return LS_ERR_INFRA;
    }
    int code = run_given(&given);
    ls_apart_close(&given.apart);
    return code;
}

int main(int argc, char **argv)
{
    ls_program_main(run_program, argc, argv);
}
