/* The oracle's own reader of safetensors dumps: read into memory, which a trainer that still runs
 * cannot change; every length and offset, the alignment, and that names differ are checked before
 * use. */
#ifndef LS_ORACLE_DUMPFILE_H
#define LS_ORACLE_DUMPFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

enum { LS_DUMPFILE_RANK_MAX = 8 };

typedef struct ls_dumpfile_entry {
    const char *name;
    char dtype[8]; /* "F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL" */
    int rank;
    int64_t dim[LS_DUMPFILE_RANK_MAX];
    int64_t count, bytes;      /* elements, and their size in all */
    const unsigned char *data; /* little-endian, aligned to the elements */
} ls_dumpfile_entry;

typedef struct ls_dumpfile ls_dumpfile;

/* LS_ERR_USAGE with path and reason for a broken file, LS_ERR_INFRA for one that cannot be read. */
ls_status ls_dumpfile_open(const char *path, ls_dumpfile **out);
/* The same without a message: path and reason are in `why`. */
enum { LS_DUMPFILE_WHY = 1400 };
ls_status ls_dumpfile_try(const char *path, char why[LS_DUMPFILE_WHY], ls_dumpfile **out);
void ls_dumpfile_close(ls_dumpfile *file);
const char *ls_dumpfile_path(const ls_dumpfile *file);
int ls_dumpfile_count(const ls_dumpfile *file);
const ls_dumpfile_entry *ls_dumpfile_at(const ls_dumpfile *file, int index);
/* NULL when absent. */
const ls_dumpfile_entry *ls_dumpfile_find(const ls_dumpfile *file, const char *name);
/* The same with a printf-style name. */
const ls_dumpfile_entry *ls_dumpfile_findf(const ls_dumpfile *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether a tensor of that name begins so: "branch/". */
bool ls_dumpfile_has(const ls_dumpfile *file, const char *prefix);
/* Whether the entry, which may be NULL, holds `count` numbers of a floating type. */
bool ls_dumpfile_floats(const ls_dumpfile_entry *entry, int64_t count);
/* Whether neither is NULL and both hold the same bytes of the same type. */
bool ls_dumpfile_equal(const ls_dumpfile_entry *a, const ls_dumpfile_entry *b);
/* Text of a metadata entry, or fallback. */
const char *ls_dumpfile_text(const ls_dumpfile *file, const char *name, const char *fallback);
/* NaN for text that is no number. */
double ls_dumpfile_number(const ls_dumpfile *file, const char *name, double fallback);
/* INT64_MIN for text that is no whole number of at most 2^53 in size. */
int64_t ls_dumpfile_integer(const ls_dumpfile *file, const char *name, int64_t fallback);
/* "1", "true", "True" are true. */
bool ls_dumpfile_flag(const ls_dumpfile *file, const char *name, bool fallback);

/* Elements as doubles (any type but I64 beyond 2^53) into value[count]. */
void ls_dumpfile_read(const ls_dumpfile_entry *entry, double *value);
/* The same as floats, exact for F32, F16 and BF16. */
void ls_dumpfile_read_f32(const ls_dumpfile_entry *entry, float *value);
/* Integers of an I64, I32, U8 or BOOL entry. False for another type. */
bool ls_dumpfile_read_i64(const ls_dumpfile_entry *entry, int64_t *value);

#endif
