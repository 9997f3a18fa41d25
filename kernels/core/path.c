#define _GNU_SOURCE
#include "path.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "text.h"

ls_status ls_path_make_folder(const char *path)
{
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part) {
        return ls_log_fail(LS_ERR_INFRA, "path too long: %.100s...", path);
    }
    strcpy(part, path);
    for (char *slash = part; slash != NULL;) {
        slash = strchr(slash + 1, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            return ls_log_fail(LS_ERR_INFRA, "cannot make the folder %s: %s", part,
                               strerror(errno));
        }
        if (slash != NULL) {
            *slash = '/';
        }
    }
    /* a file is not a folder, whatever its permissions are */
    struct stat found;
    bool folder = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    if (!folder || access(path, W_OK | X_OK) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write into %s: %s", path,
                           strerror(folder ? errno : ENOTDIR));
    }
    return LS_OK;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    (void)remove(path);
    return 0;
}

void ls_path_remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void ls_path_program(char *path, size_t bytes)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    ls_text_put(path, bytes, "%s", slash == NULL ? "." : self);
}

bool ls_path_find(const char *name, char *path, size_t bytes)
{
    /* relative to the program: installed, or built in <tree>/build, <tree>/build/asan,
     * <tree>/build/unit */
    static const char *const ways[] = {"", "/..", "/../..", "/../../.."};
    char program[PATH_MAX];
    ls_path_program(program, sizeof program);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        ls_text_put(path, bytes, "%s%s/%s", program, ways[i], name);
        if (access(path, R_OK) == 0) {
            return true;
        }
    }
    ls_text_put(path, bytes, "%s", name); /* relative to the current folder */
    return access(path, R_OK) == 0;
}

static bool is_executable(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

bool ls_path_is_program(const char *program)
{
    const char *path = strchr(program, '/') == NULL ? getenv("PATH") : NULL;
    bool found = path == NULL && is_executable(program);
    while (path != NULL && !found) {
        char whole[PATH_MAX];
        size_t length = strcspn(path, ":");
        ls_text_put(whole, sizeof whole, "%.*s/%s", (int)length, path, program);
        found = is_executable(whole);
        path = path[length] == ':' ? path + length + 1 : NULL;
    }
    return found;
}
