/* MLPerf's training log: lines ":::MLLOG {...}" as mlperf_logging.mllog writes them, one write
 * each: namespace, time_ms, event_type, key, value and metadata. Rank 0 writes them. A full disk is
 * LS_ERR_INFRA. */
#ifndef LS_MLLOG_H
#define LS_MLLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_mllog ls_mllog;

/* path "-": standard output. append: lines are added, as a resumed run does; else the file is begun
 * anew. LS_ERR_USAGE, logged, where it cannot be written. */
ls_status ls_mllog_open(const char *path, bool append, ls_mllog **out);
void ls_mllog_close(ls_mllog *log); /* NULL is allowed */

/* Every call does nothing where log is NULL. epoch: metadata's epoch_num; 0: none. */
ls_status ls_mllog_start(ls_mllog *log, const char *key, int64_t epoch);
ls_status ls_mllog_end(ls_mllog *log, const char *key, int64_t epoch);
ls_status ls_mllog_number(ls_mllog *log, const char *key, double value, int64_t epoch);
ls_status ls_mllog_text(ls_mllog *log, const char *key, const char *value);
/* The end of the run: metadata's status is "success" or "aborted". */
ls_status ls_mllog_stop(ls_mllog *log, bool success);

#endif
