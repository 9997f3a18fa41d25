/* What a job's machine did not give it: memory, threads, descriptors, room on a disk. A job that
 * ended for such a lack has shown nothing about its subject. */
#ifndef LS_LACK_H
#define LS_LACK_H

#include <stdbool.h>
#include <stddef.h>

#include "record.h"

/* Whether a rank ended for a lack: it left with code 3 (126, 127: its command could not be loaded)
 * and its end event says no other code, or badly and with a line in its log that is of such a lack
 * (the table in lack.c), or was killed while the kernel killed for memory, or the job was not
 * started. text: "rank=1 out of memory: LINE". takes_disk: the job's own case lets a disk be full,
 * and only other lacks count, by their words. */
bool ls_lack_find(const ls_record *job, bool takes_disk, char *text, size_t bytes);
/* Processes that the kernel has killed so far because this process's cgroup, or one above it, had
 * no memory left; 0: none, or unknown. */
long ls_lack_kills(void);

#endif
