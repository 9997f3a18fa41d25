/* Whether a finished run's folder still holds what the run left there. When a run ends, files.xxh64
 * gets a line "<XXH64, 16 digits>  <file>" for each of its files, run.json's last (`xxhsum -c`
 * reads it, too), and run.json a member "files", so that a folder without the list is noticed.
 * Every command that reads a finished run asks here first: what is missing, empty, cut or another
 * run's is refused. */
#ifndef LS_MANIFEST_H
#define LS_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <signal.h>

#include "kernels/core/status.h"

/* Which files: a reader asks for those that it uses. */
typedef enum ls_manifest_part {
    LS_MANIFEST_VERDICTS = 1, /* run.json, verdicts.jsonl */
    LS_MANIFEST_SUMMARY = 2,  /* summary.json */
    LS_MANIFEST_REPORT = 4,   /* tables, junit.xml: `lockstep report` writes them again */
    LS_MANIFEST_RECORDS = 8,  /* of each job job.json, events, logs, all but its dumps */
    LS_MANIFEST_DUMPS = 16,
    LS_MANIFEST_REST = 32, /* batches, engines.txt and all others */
    LS_MANIFEST_ALL = 63,
    /* of no files: */
    LS_MANIFEST_FINISHED = 64, /* ls_manifest_check refuses a run that has not ended */
    LS_MANIFEST_PRESENT = 128  /* ls_manifest_compare passes over files that are missing */
} ls_manifest_part;

typedef enum ls_manifest_state {
    LS_MANIFEST_WHOLE,      /* there is a list, and it is a whole one */
    LS_MANIFEST_UNFINISHED, /* the run has not ended */
    LS_MANIFEST_OLD,        /* an earlier version's run: no list was written */
    LS_MANIFEST_BROKEN      /* run.json or the list is missing or broken */
} ls_manifest_state;

typedef struct ls_manifest {
    ls_manifest_state state;
    char directory[700];
    char why[800]; /* BROKEN: a sentence that names the file */
    char *text;    /* of the list; its lines end with 0 */
    int count;
    struct ls_manifest_line *line;
} ls_manifest;

/* Whether the folder is a run's: it holds run.json or the list. */
bool ls_manifest_is_run(const char *directory);
/* Reads a run's list. LS_ERR_USAGE where the folder is no run; then there is nothing to free. */
ls_status ls_manifest_read(const char *run, ls_manifest *out);
void ls_manifest_free(ls_manifest *manifest);
/* Compares the listed files of these parts whose name begins with `prefix` ("": any). Returns how
 * many are not as the run left them, *compared how many were looked at, and in `why` a sentence
 * about the first. */
int ls_manifest_compare(const ls_manifest *manifest, const char *prefix, unsigned parts,
                        int *compared, char *why, size_t bytes);
/* Both, for readers of a run. LS_ERR_INFRA, logged in one line with the first file that is not as
 * the run left it; LS_ERR_USAGE where it is no run, or has not ended and FINISHED is asked for. A
 * run of an earlier version is read with a warning; only what is empty or cut is noticed. */
ls_status ls_manifest_check(const char *run, unsigned parts);
/* At the end of a run: lists the files of these parts; the lines of other parts stay. With all
 * parts the list is made and run.json gets "files"; else only an existing one changes. */
ls_status ls_manifest_write(const char *run, unsigned parts);
/* The run goes on: it is unfinished until the list is written again. */
void ls_manifest_remove(const char *run);

/* ---- archive.c --------------------------------------------------------------------------------
 */

/* A recorded run in one file. What reads a run also reads NAME.tar.xz, into which its folder was
 * packed, and a folder inside it (NAME.tar.xz/jobs/x), as `lockstep judge`, `diff`, `report` and
 * BASELINE= do. The system's tar unpacks it into a private folder, below which the unpacked one has
 * the archive's whole path: messages about its files name the archive. */

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
