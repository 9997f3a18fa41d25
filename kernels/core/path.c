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

#include "file.h"
#include "log.h"
#include "text.h"

static const char *root_of(const char *variable, const char *usual)
{
    const char *root = getenv(variable);
    return root == NULL || root[0] == '\0' ? usual : root;
}

const char *ls_path_sysfs(void)
{
    return root_of("LS_SYSFS", "/sys");
}

const char *ls_path_procfs(void)
{
    return root_of("LS_PROCFS", "/proc");
}

const char *ls_path_devfs(void)
{
    return root_of("LS_DEVFS", "/dev");
}

static ls_status make_one(const char *path, const char *hint)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return ls_log_fail(LS_ERR_INFRA, "cannot make the folder %s: %s%s", path, strerror(errno),
                           hint);
    }
    return LS_OK;
}

ls_status ls_path_make_last(const char *path)
{
    return make_one(path, "");
}

ls_status ls_path_make_folder(const char *path)
{
    return ls_path_make_chosen(path, "");
}

ls_status ls_path_make_chosen(const char *path, const char *hint)
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
        LS_TRY(make_one(part, hint));
        if (slash != NULL) {
            *slash = '/';
        }
    }
    /* a file is not a folder, whatever its permissions are */
    struct stat found;
    bool folder = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    if (!folder || access(path, W_OK | X_OK) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write into %s: %s%s", path,
                           strerror(folder ? errno : ENOTDIR), hint);
    }
    return LS_OK;
}

DIR *ls_path_open_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (folder == NULL) {
        ls_status_check_lack(path);
    }
    return folder;
}

const char *ls_path_next(DIR **folder)
{
    struct dirent *entry = *folder == NULL ? NULL : readdir(*folder);
    if (entry == NULL && *folder != NULL) {
        closedir(*folder);
        *folder = NULL;
    }
    return entry == NULL ? NULL : entry->d_name;
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

/* The file behind "#!" in a script's first line; "" for other files. */
static void interpreter_of(const char *path, char *name, size_t bytes)
{
    char line[256] = "";
    ls_file_source file;
    if (ls_file_open(path, INT64_MAX, &file) == LS_OK) {
        size_t used;
        (void)ls_file_fill_some(&file, path, line, sizeof line - 1, &used);
        close(file.descriptor);
    }
    const char *at = strncmp(line, "#!", 2) == 0 ? line + 2 : "";
    at += strspn(at, " \t");
    ls_text_put(name, bytes, "%.*s", (int)strcspn(at, " \t\r\n"), at);
}

static int check_file(const char *path, char *why, size_t bytes)
{
    struct stat status;
    char interpreter[256];
    if (stat(path, &status) != 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        ls_text_put(why, bytes, "%s", absent ? "no such program" : strerror(errno));
        return absent ? LS_PATH_NOT_FOUND : LS_PATH_NOT_RUNNABLE;
    }
    if (!S_ISREG(status.st_mode)) {
        ls_text_put(why, bytes, "it is %s",
                    S_ISDIR(status.st_mode) ? "a folder" : "no regular file");
        return LS_PATH_NOT_RUNNABLE;
    }
    if (access(path, X_OK) != 0) {
        ls_text_put(why, bytes, "it exists, but is not executable: %s", strerror(errno));
        return LS_PATH_NOT_RUNNABLE;
    }
    interpreter_of(path, interpreter, sizeof interpreter);
    if (interpreter[0] != '\0' && access(interpreter, X_OK) != 0) {
        ls_text_put(why, bytes, "it exists, but its interpreter %s %s", interpreter,
                    errno == ENOENT ? "does not" : "is not executable");
        return LS_PATH_NOT_RUNNABLE;
    }
    return 0;
}

int ls_path_check_program(const char *program, char *why, size_t bytes)
{
    if (program[0] == '\0' || strchr(program, '/') != NULL) {
        return check_file(program, why, bytes);
    }
    int code = LS_PATH_NOT_FOUND;
    ls_text_put(why, bytes, "no such program in PATH");
    for (const char *path = getenv("PATH"); path != NULL && code != 0;) {
        char whole[PATH_MAX], why_here[400];
        size_t length = strcspn(path, ":");
        ls_text_put(whole, sizeof whole, "%.*s/%s", (int)length, path, program);
        int here = check_file(whole, why_here, sizeof why_here);
        if (here < code) { /* as a shell, which goes on to one that can be started */
            code = here;
            ls_text_put(why, bytes, "%s: %s", whole, why_here);
        }
        path = path[length] == ':' ? path + length + 1 : NULL;
    }
    return code;
}

bool ls_path_is_program(const char *program)
{
    char why[PATH_MAX];
    return ls_path_check_program(program, why, sizeof why) == 0;
}
