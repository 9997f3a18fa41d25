/* Paths: creating and removing folders, and finding this program's own files. */
#ifndef LS_PATH_H
#define LS_PATH_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>

#include "status.h"

/* Where the kernel describes the machine: "/sys", "/proc" and "/dev", or for tests the folders in
 * LS_SYSFS, LS_PROCFS and LS_DEVFS. Only what decides about devices and cores is read there. */
const char *ls_path_sysfs(void);
const char *ls_path_procfs(void);
const char *ls_path_devfs(void);
/* Creates the folder and its missing parents. LS_ERR_INFRA with the system's text, also if the
 * folder exists but is not writable. */
ls_status ls_path_make_folder(const char *path);
/* The same of a folder that the user chose, or may: `hint` follows the text, "OUT= names another".
 */
ls_status ls_path_make_chosen(const char *path, const char *hint);
/* Creates the folder if it is absent, but no parents: an absent parent is a mistyped path. */
ls_status ls_path_make_last(const char *path);
/* Removes a folder and everything in it; files that cannot be removed stay, without a message. */
void ls_path_remove_tree(const char *path);
/* opendir(3), which ends the program without memory or descriptors (ls_status_check_lack): to its
 * callers NULL is a folder that is not there. */
DIR *ls_path_open_folder(const char *path);
/* The next name in an open folder; after the last one NULL, and the folder is closed. *folder: NULL
 * has none. */
const char *ls_path_next(DIR **folder);
/* The folder of the running program, without a slash at the end. */
void ls_path_program(char *path, size_t bytes);
/* Finds a file that comes with the program, such as "suite/claims" or "plots/x.gp": next to the
 * program (installed) or in the tree it was built in. False if it is in neither. */
bool ls_path_find(const char *name, char *path, size_t bytes);
/* Whether a program can be started by that name, in a folder of PATH, or by that path. 0: it can;
 * else a shell's code, and why not in a few words: LS_PATH_NOT_FOUND where it is absent,
 * LS_PATH_NOT_RUNNABLE where it is there (a folder, not executable, its interpreter absent). */
enum { LS_PATH_NOT_RUNNABLE = 126, LS_PATH_NOT_FOUND = 127 };
int ls_path_check_program(const char *program, char *why, size_t bytes);
bool ls_path_is_program(const char *program);

#endif
