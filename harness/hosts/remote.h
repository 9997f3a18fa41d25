/* Commands on other machines. One channel per host, ssh or srun, runs `lockstep-launch
 * --env-from-stdin`: this program owns the channels, each launcher owns the ranks of its machine.
 *   - A rank dies: its launcher ends the other ranks of its machine and reports. Ranks elsewhere
 * lose their peer and exit; the channels of those that remain are hung up.
 *   - A host or its connection dies: the channel ends without a report, the others are hung up.
 *   - This program is interrupted or dies: the launchers' input ends, and they end their ranks
 *     (remote_session.h).
 * <job>/node<k>.log has the standard output and error of a channel; the report is its last line of
 * JSON. All hosts share the file system of the job's folder (probe.h checks this). */
#ifndef LS_REMOTE_H
#define LS_REMOTE_H

#include "kernels/core/json.h"
#include "kernels/core/words.h"
#include "harness/process/proc.h"
#include "hosts.h"

enum {
    LS_REMOTE_CONNECT_S = 10, /* for ssh to reach a host */
    LS_REMOTE_HANG_UP_S = 8,  /* for a launcher to send TERM, wait 5 s, send KILL and report */
};

/* Channels to the first `count` hosts. */
typedef struct ls_remote {
    int count;
    ls_proc_spec *spec;     /* [count] */
    ls_words *words, logs;  /* [count] commands with ssh or srun; paths of the logs */
    int *input_end, *order; /* [count] write and read ends of their standard input; -1: closed */
} ls_remote;

/* Prepares command[k] for host k, whose first word is an absolute path. Its output is appended to
 * <folder>/node<k>.log, and the order waits in its standard input. Then start the specs with
 * ls_proc_start and call ls_remote_beat once a second. */
ls_status ls_remote_open(const ls_hosts *hosts, int count, const ls_words *command,
                         const cJSON *order, const char *folder, ls_remote *out);
void ls_remote_beat(ls_remote *remote);
void ls_remote_hang_up(ls_remote *remote);
void ls_remote_close(ls_remote *remote);

/* The last line of <folder>/node<k>.log that is a JSON object with that "event"; NULL: none.
 * said[bytes] gets the last other line (an error of ssh or of the launcher). */
cJSON *ls_remote_report(const char *folder, int host, const char *event, char *said, size_t bytes);
/* Path of lockstep-launch, which is next to this program. */
void ls_remote_launcher(char *path, size_t bytes);

#endif
