/* What ties a launcher on another machine to the bench that asked for it. The bench holds the
 * launcher's standard input through ssh or srun: the first line is the order (one JSON object:
 * working directory and environment, the job's token among it, so that no command line shows it),
 * then comes a newline a second. When the input ends or falls silent, whoever asked is gone, and
 * the launcher ends its ranks as if the line had been hung up (SIGHUP). */
#ifndef LS_REMOTE_SESSION_H
#define LS_REMOTE_SESSION_H

#include "kernels/core/json.h"
#include "kernels/core/status.h"

enum {
    LS_REMOTE_SESSION_ORDER_BYTES_MAX = 60000, /* fits the pipe that it waits in */
    LS_REMOTE_SESSION_ORDER_S = 30,            /* for the order to arrive */
    LS_REMOTE_SESSION_SILENCE_S = 30,          /* a bench that is stopped or cut off */
};

/* The order of a job: our working directory, the variables a run depends on (those that are the
 * same on every node), LS_TOKEN, LS_RUN_DIR, and OMP_NUM_THREADS where threads > 0. token and
 * run_directory may be NULL. */
cJSON *ls_remote_session_order(const char *token, const char *run_directory, int threads,
                               bool same_devices);
/* Takes an order over: setenv, chdir. LS_ERR_USAGE for one that is none, LS_ERR_INFRA for a
 * directory that is not there. */
ls_status ls_remote_session_apply(const char *line);
/* Reads the order from `input` and applies it. */
ls_status ls_remote_session_read_order(int input);
/* A thread that follows `input` and sends this process SIGHUP once when it ends or is silent.
 * SIGHUP must be blocked in the calling thread. */
ls_status ls_remote_session_follow(int input);

#endif
