/* Commands on other machines. One channel per host, ssh or srun, runs `lockstep-launch
 * --env-from-stdin`: this program owns the channels, each launcher owns the ranks of its machine.
 *   - A rank dies: its launcher ends the other ranks of its machine and reports. Ranks elsewhere
 * lose their peer and exit; the channels of those that remain are hung up.
 *   - A host or its connection dies: the channel ends without a report, the others are hung up.
 *   - This program is interrupted or dies: the launchers' input ends, and they end their ranks
 *     (ls_remote_session_monitor).
 * <job>/node<k>.log has the standard output and error of a channel; the report is its last line of
 * JSON. To a host that does not share the file system of the job's folder (ls_probe_hosts finds
 * out) programs and files travel over its channels (apart.h). */
#ifndef LS_REMOTE_H
#define LS_REMOTE_H

#include <stdbool.h>

#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "harness/process/proc.h"
#include "apart.h"
#include "hosts.h"

enum {
    LS_REMOTE_CONNECT_S = 10, /* for ssh to reach a host */
    LS_REMOTE_HANG_UP_S = 8,  /* for a launcher to send TERM, wait 5 s, send KILL and report */
};

/* Channels to the first `count` hosts. */
typedef struct ls_remote {
    int count;
    ls_proc_spec *spec;       /* [count] */
    ls_words *words, logs;    /* [count] commands with ssh or srun; paths of the logs */
    int *input_end, *order;   /* [count] write and read ends of their standard input; -1: closed */
    ls_apart_channel **apart; /* [count] of hosts that do not share this disk; NULL: it does */
} ls_remote;

/* The files of a job, for hosts that do not share this disk. */
typedef struct ls_remote_files {
    const char *run;        /* the run's folder, absolute */
    const ls_words *inputs; /* names below it: files and folders that the job reads */
} ls_remote_files;

/* Prepares command[k] for host k, whose first word is an absolute path. Its output is appended to
 * <folder>/node<k>.log, and the order waits in its standard input. Then start the specs with
 * ls_proc_start and call ls_remote_beat once a second. files: NULL where the commands are no job.
 */
ls_status ls_remote_open(const ls_hosts *hosts, int count, const ls_words *command,
                         const cJSON *order, const char *folder, const ls_remote_files *files,
                         ls_remote *out);
void ls_remote_beat(ls_remote *remote);
void ls_remote_hang_up(ls_remote *remote);
/* Takes the files that are still on their way, after all channels have ended. */
void ls_remote_finish(ls_remote *remote);
/* Why not all files of a host have come, or NULL. */
const char *ls_remote_lacks(const ls_remote *remote, int host);
void ls_remote_close(ls_remote *remote);

/* The last line of <folder>/node<k>.log that is a JSON object with that "event"; NULL: none.
 * said[bytes] gets the last other line (an error of ssh or of the launcher). */
cJSON *ls_remote_report(const char *folder, int host, const char *event, char *said, size_t bytes);
/* Path of lockstep-launch: next to this program, or on a host that does not share this disk. NULL:
 * here. */
void ls_remote_launcher(const ls_host *host, char *path, size_t bytes);
/* Its folder here. */
void ls_remote_programs(char *path, size_t bytes);

/* The session between a bench and its launcher on another machine. The bench writes to the
 * launcher's standard input through ssh or srun: first the order, a line with one JSON object
 * (working directory and environment; the job's token is in it and so on no command line), then a
 * newline every second. When the input ends or is silent, the bench is lost, and the launcher ends
 * its ranks as on SIGHUP. */
enum {
    LS_REMOTE_SESSION_ORDER_BYTES_MAX = 60000, /* fits into the buffer of a pipe */
    LS_REMOTE_SESSION_ORDER_S = 30,            /* for the order to arrive */
    LS_REMOTE_SESSION_SILENCE_S = 30,          /* of a bench that is stopped or disconnected */
};

/* The order of a job: this program's working directory, the variables that a run depends on and
 * that are the same on all nodes, LS_TOKEN, LS_RUN_DIR, and OMP_NUM_THREADS if threads > 0. token
 * and run_directory may be NULL. */
cJSON *ls_remote_session_order(const char *token, const char *run_directory, int threads,
                               bool same_devices);
/* Applies an order with setenv and chdir. LS_ERR_USAGE for a malformed order, LS_ERR_INFRA for a
 * missing directory. *apart: what of it is for a node without the bench's disk, or NULL; the caller
 * deletes it. */
ls_status ls_remote_session_apply(const char *line, cJSON **apart);
/* Reads the order from `input` and applies it. */
ls_status ls_remote_session_read_order(int input, cJSON **apart);
/* Starts a thread that reads `input` and sends this process one SIGHUP when it ends or is silent.
 * SIGHUP must be blocked in the calling thread. */
ls_status ls_remote_session_monitor(int input);

#endif
