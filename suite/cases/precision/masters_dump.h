/* Rank 0's dumps as the cases of family `masters` compare them: element by element, to the last
 * bit. */
#ifndef LS_MASTERS_DUMP_H
#define LS_MASTERS_DUMP_H

#include "reference/oracle/bits.h"
#include "reference/oracle/dumpfile.h"
#include "suite/cases/rows.h"

/* A file below the job's folder, or the dump of a step; false, with FAIL set, where it is missing
 * or broken. */
bool ls_masters_dump_open_file(const ls_record *job, const char *name, ls_dumpfile **file,
                               ls_verdict *out);
bool ls_masters_dump_open_step(const ls_record *job, int step, ls_dumpfile **file, ls_verdict *out);
ls_bits_type ls_masters_dump_type(const ls_dumpfile_entry *entry);
/* The elements, for the caller to free. */
double *ls_masters_dump_values(const ls_dumpfile_entry *entry);
/* The names below "param/", one after another; NULL behind the last. *at starts at 0. */
const char *ls_masters_dump_next_name(const ls_dumpfile *file, int *at);

typedef double ls_masters_dump_conversion(ls_bits_type type, double value);

double ls_masters_dump_as_it_is(ls_bits_type type, double value);
/* Whether every element of `have` is `convert`(that of `from`); counts what was compared. */
void ls_masters_dump_compare(const ls_dumpfile_entry *have, const ls_dumpfile_entry *from,
                             ls_masters_dump_conversion *convert, const char *what,
                             int64_t *compared, ls_verdict *out);
/* Nothing compared is UNSUPPORTED; else the number and `text` become a pass's evidence. */
void ls_masters_dump_conclude(int64_t compared, const char *text, ls_verdict *out);

#endif
