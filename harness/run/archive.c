#include "manifest.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

static const char ending[] = ".tar.xz";
enum { FOLDER_MOST = 350 /* bytes, as of a run's folder */, UNPACK_S = 600 };

/* The length of the part of the path that names an archive; 0: none does. */
static size_t archive_length(const char *given)
{
    size_t length = 0, tail = strlen(ending);
    while (given[length] != '\0') {
        length += 1 + strcspn(given + length + 1, "/");
        LS_TEXT(path, PATH_MAX, "%.*s", (int)length, given);
        struct stat about;
        if (length > tail && strcmp(path + length - tail, ending) == 0 && stat(path, &about) == 0 &&
            S_ISREG(about.st_mode)) {
            return length;
        }
    }
    return 0;
}

static ls_status unpack(const char *archive, const char *folder, const char *log)
{
    char why[400] = "";
    char *argv[] = {"tar", "-xJf", (char *)archive, "--no-same-owner", "--no-same-permissions",
                    NULL};
    const ls_proc_spec spec = {
        .argv = argv, .environment = environ, .log_path = log, .directory = folder};
    if (ls_path_check_program("tar", why, sizeof why) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot unpack %s: tar: %s", archive, why);
    }
    ls_proc tar = {0};
    LS_TRY(ls_proc_start(&spec, &tar));
    int ended = ls_proc_wait_any(&tar, 1, ls_clock_after(UNPACK_S));
    ls_proc_end_all(&tar, 1, 1);
    if (ended == 0 && tar.code == 0) {
        return LS_OK;
    }
    char *said = ls_text_read(log);
    ls_text_put(why, sizeof why, "%.*s", said == NULL ? 0 : (int)strcspn(said, "\n"),
                said == NULL ? "" : said);
    free(said);
    return ls_log_fail(LS_ERR_INFRA, "cannot unpack %s: %s", archive,
                       ended == -1  ? "tar takes longer than 10 minutes"
                       : ended != 0 ? "stopped"
                                    : why);
}

static ls_status make_scratch(ls_archive *out)
{
    const char *base = getenv("TMPDIR");
    ls_text_put(out->scratch, sizeof out->scratch, "%s/lockstep-archive-XXXXXX",
                base != NULL && base[0] == '/' ? base : "/tmp");
    if (mkdtemp(out->scratch) == NULL) {
        ls_log_error("cannot make the folder %s: %s; TMPDIR= names another place", out->scratch,
                     strerror(errno));
        out->scratch[0] = '\0';
        (void)pthread_sigmask(SIG_SETMASK, &out->before, NULL);
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

static ls_status unpack_below(ls_archive *out, const char *archive)
{
    LS_TEXT(log, 220, "%s/tar.log", out->scratch);
    ls_text_put(out->folder, sizeof out->folder, "%s%s", out->scratch, archive);
    if (strlen(out->scratch) + strlen(archive) > FOLDER_MOST) {
        return ls_log_fail(LS_ERR_USAGE, "the path is too long to be unpacked: %s", archive);
    }
    LS_TRY(ls_path_make_folder(out->folder));
    return unpack(archive, out->folder, log);
}

ls_status ls_archive_open(const char *given, ls_archive *out)
{
    size_t length = archive_length(given);
    *out = (ls_archive){.scratch = ""};
    ls_text_put(out->folder, sizeof out->folder, "%s", given);
    if (length == 0) {
        return LS_OK;
    }
    LS_TEXT(archive, PATH_MAX, "%.*s", (int)length, given);
    char whole[PATH_MAX];
    if (realpath(archive, whole) == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "cannot find %s: %s", archive, strerror(errno));
    }
    (void)pthread_sigmask(SIG_BLOCK, NULL, &out->before);
    LS_TRY(ls_proc_catch_signals());
    ls_status status = make_scratch(out);
    LS_THEN(status, unpack_below(out, whole));
    ls_text_add(out->folder, sizeof out->folder, "%s", given + length);
    if (status != LS_OK) {
        ls_archive_close(out);
    }
    return status;
}

const char *ls_archive_shown(const ls_archive *archive, const char *path)
{
    return path + strlen(archive->scratch);
}

void ls_archive_close(ls_archive *archive)
{
    if (archive->scratch[0] != '\0') {
        ls_path_remove_tree(archive->scratch);
        (void)pthread_sigmask(SIG_SETMASK, &archive->before, NULL);
    }
    archive->scratch[0] = '\0';
}
