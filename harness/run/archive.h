/* A recorded run in one file. What reads a run also reads NAME.tar.xz, into which its folder was
 * packed, and a folder inside it (NAME.tar.xz/jobs/x), as `lockstep judge`, `diff`, `report` and
 * BASELINE= do. The system's tar unpacks it into a private folder, below which the unpacked one has
 * the archive's whole path: messages about its files name the archive. */
#ifndef LS_ARCHIVE_H
#define LS_ARCHIVE_H

#include <signal.h>

#include "kernels/core/status.h"

typedef struct ls_archive {
    char folder[700]; /* to be read: the unpacked one, or what was given where that is no archive */
    char scratch[200]; /* the private folder, below TMPDIR or /tmp; "": nothing was unpacked */
    sigset_t before;   /* the signals that were blocked */
} ls_archive;

/* Signals that end a program wait from here until ls_archive_close has removed the private folder.
 * LS_ERR_INFRA, logged with the archive's name and the first line of what tar says, when it cannot
 * be unpacked; then there is nothing to close. */
ls_status ls_archive_open(const char *given, ls_archive *out);
/* A path that begins with archive->folder as the user may give it: inside the archive. */
const char *ls_archive_shown(const ls_archive *archive, const char *path);
/* Removes what was unpacked. Several are closed in the reverse order of their opening. */
void ls_archive_close(ls_archive *archive);

#endif
