/* The events of one rank, line by line. Strict reading checks them against the subject protocol
 * (suite/design.md section 4): whole JSON objects, the start first, steps counted one by one, every
 * member of its type. A breach is described with its line; it is a finding about the subject, not
 * an error here. Lenient reading takes every JSON object, and leaves out a last line without its
 * newline: the rank may have been killed while it wrote. */
#ifndef LS_RECORD_LINES_H
#define LS_RECORD_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/core/json.h"

typedef void ls_record_lines_visit(void *context, const cJSON *event);

/* Calls visit for each event up to the first line that may not stand there. `broken` gets that line
 * ("rank0.jsonl line 3 is no JSON: '{"event": "st'"), else "". LS_ERR_INFRA when the file cannot be
 * read. */
ls_status ls_record_lines_read(const char *path, bool strict, ls_record_lines_visit *visit,
                               void *context, char *broken, size_t broken_bytes);

#endif
