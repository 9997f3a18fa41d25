/* A job's dumps, rank by rank. */
#ifndef LS_DUMPS_H
#define LS_DUMPS_H

#include "reference/files/safetensors.h"
#include "suite/suite.h"

/* Path of one rank's dump of a step. */
void ls_dumps_path(const ls_record *job, int64_t step, int rank, char *path, size_t bytes);
/* The open file, or NULL with FAIL set where it is missing or broken. */
ls_safetensors *ls_dumps_open(const ls_record *job, int64_t step, int rank, ls_verdict *out);

#endif
