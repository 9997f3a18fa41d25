/* The session between a bench and its launcher on another machine. The bench writes to the
 * launcher's standard input through ssh or srun: first the order, a line with one JSON object
 * (working directory and environment; the job's token is in it and so on no command line), then a
 * newline every second. When the input ends or is silent, the bench is lost, and the launcher ends
 * its ranks as on SIGHUP. */
#ifndef LS_REMOTE_SESSION_H
#define LS_REMOTE_SESSION_H

#include "kernels/core/json.h"
#include "kernels/core/status.h"

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
 * missing directory. */
ls_status ls_remote_session_apply(const char *line);
/* Reads the order from `input` and applies it. */
ls_status ls_remote_session_read_order(int input);
/* Starts a thread that reads `input` and sends this process one SIGHUP when it ends or is silent.
 * SIGHUP must be blocked in the calling thread. */
ls_status ls_remote_session_monitor(int input);

#endif
