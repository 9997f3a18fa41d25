/* Whole files, and writes that are not cut short. */
#ifndef LS_FILE_H
#define LS_FILE_H

#include <stddef.h>
#include <stdio.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why an open file cannot be read into memory, such as "no regular file"; NULL when it can. A
 * trainer may leave a device or an endless file in its folder. */
const char *ls_file_unreadable(FILE *file);
/* Reads the whole file; *data is malloc'ed and ends with a 0 that *bytes does not count. Logs the
 * path and the reason: LS_ERR_USAGE for an unreadable file (see above), LS_ERR_INFRA
 * otherwise. */
ls_status ls_file_read(const char *path, char **data, size_t *bytes);
/* Opens a new file for text; NULL and the reason logged when it cannot be created. */
FILE *ls_file_create(const char *path);
/* Relays to the caller that it could not be created. */
#define LS_TRY_FILE(file) LS_TRY((file) != NULL ? LS_OK : LS_ERR_INFRA)
/* Closes it. LS_ERR_INFRA, logged with the path, when some of it was not written. */
ls_status ls_file_close(FILE *file, const char *path);
/* Writes all bytes to the descriptor. LS_ERR_INFRA is logged with `path` and the system's text. */
ls_status ls_file_write(int descriptor, const char *path, const void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
