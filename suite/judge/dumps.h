/* The files of a job that hold tensors, read with the oracle's reader, so that no code under test
 * reads for the judge. */
#ifndef LS_DUMPS_H
#define LS_DUMPS_H

#include "reference/oracle/bits.h"
#include "reference/oracle/dumpfile.h"
#include "suite/suite.h"

/* Path of one rank's dump of a step. */
void ls_dumps_path(const ls_record *job, int64_t step, int rank, char *path, size_t bytes);
/* The open file, or NULL with FAIL set if it is missing or broken. To be closed by
 * ls_dumpfile_close, which accepts NULL. */
ls_dumpfile *ls_dumps_open(const ls_record *job, int64_t step, int rank, ls_verdict *out);
/* The same for any file, named relative to the job's folder: "checkpoint.safetensors"; sets
 * `missing` instead of FAIL. */
ls_dumpfile *ls_dumps_open_file(const ls_record *job, const char *name, ls_verdict_code missing,
                                ls_verdict *out);
/* Rank 0's dump of a step. *update: the steps that the events say were taken up to it, so that a
 * skipped one does not count. NULL with FAIL set where the dump or an event is missing. */
ls_dumpfile *ls_dumps_open_update(const ls_record *job, int64_t step, int64_t *update,
                                  bool *skipped, ls_verdict *out);
ls_bits_type ls_dumps_type(const ls_dumpfile_entry *entry);
int64_t ls_dumps_bytes(const ls_dumpfile_entry *entry);
/* Whether both exist and hold the same bytes of the same type. */
bool ls_dumps_equal(const ls_dumpfile_entry *a, const ls_dumpfile_entry *b);
/* The elements in place, of type "F32" or "I64"; NULL for another type, for data that are not
 * aligned to it, and for no entry. */
const void *ls_dumps_data(const ls_dumpfile_entry *entry, const char *type);
/* The elements; the caller frees them. */
double *ls_dumps_values(const ls_dumpfile_entry *entry);
/* The names below "param/", one after another, then NULL. *at starts at 0. */
const char *ls_dumps_next_param(const ls_dumpfile *file, int *at);

#endif
