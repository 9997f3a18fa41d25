/* The events of one rank, line by line, held against the subject protocol (suite/design.md section
 * 4): whole JSON objects, the start first, steps counted one by one, every member of its type. What
 * breaks that is described with its line, and is a finding about the subject, not an error here. */
#ifndef LS_RECORD_LINES_H
#define LS_RECORD_LINES_H

#include <stddef.h>

#include "kernels/core/json.h"

typedef void ls_record_lines_visit(void *context, const cJSON *event);

/* Calls visit for each event up to the first that breaks the protocol. `broken` gets one line then
 * ("rank0.jsonl line 3 is no JSON: '{"event": "st'"), else "". LS_ERR_INFRA when the file cannot be
 * read. */
ls_status ls_record_lines_read(const char *path, ls_record_lines_visit *visit, void *context,
                               char *broken, size_t broken_bytes);

#endif
