/* Jobs on other machines. One channel a host, ssh or srun, runs `lockstep-launch --env-from-stdin`
 * there: this program owns the channels, each launcher owns the ranks of its machine.
 *   - A rank dies: its launcher ends the others of its machine and reports; ranks elsewhere lose
 *     their peer and leave, what remains is hung up on.
 *   - A host or its connection dies: the channel ends without a report, the others are hung up on.
 *   - We are interrupted or die: the launchers' input ends, and they end their ranks
 * (remote_session.h). Standard output and error of a channel are kept in <job>/node<k>.log, the
 * report as its last line of JSON. The job's folder lies on a file system that all hosts share
 * (probe.h checks). */
#ifndef LS_REMOTE_H
#define LS_REMOTE_H

#include "kernels/core/json.h"
#include "harness/process/proc.h"
#include "hosts.h"

enum {
    LS_REMOTE_CONNECT_S = 10, /* for ssh to reach a host */
    LS_REMOTE_HANG_UP_S = 8,  /* a launcher's TERM, 5 s, KILL, and its report */
};

/* Channels to the first `count` hosts. */
typedef struct ls_remote {
    int count;
    ls_proc_spec *spec;     /* [count] */
    int *input_end, *order; /* [count] write and read ends of their standard input; -1: closed */
} ls_remote;

/* words[k]: the command of host k, NULL at the end; an absolute path first. Its output is appended
 * to logs[k] in `folder`, named node<k>.log. The order waits in each channel's input. Start the
 * specs with ls_proc_start, then beat once a second. */
ls_status ls_remote_open(const ls_hosts *hosts, int count, char *const *const *words,
                         const cJSON *order, const char *folder, ls_remote *out);
void ls_remote_beat(ls_remote *remote);
void ls_remote_hang_up(ls_remote *remote);
void ls_remote_close(ls_remote *remote);

/* The last line of <folder>/node<k>.log that is a JSON object with that "event"; NULL: none. What
 * else it says last (a text of ssh, an error message) goes to said[bytes]. */
cJSON *ls_remote_report(const char *folder, int host, const char *event, char *said, size_t bytes);
/* Path of lockstep-launch beside this program. */
void ls_remote_launcher(char *path, size_t bytes);

#endif
