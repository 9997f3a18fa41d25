#include "place.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/text.h"

void ls_place_program(char *path, size_t bytes)
{
    char self[1024];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    ls_text_put(path, bytes, "%s", slash == NULL ? "." : self);
}

bool ls_place_find(const char *name, char *path, size_t bytes)
{
    char program[1024];
    ls_place_program(program, sizeof program);
    /* installed; built in <tree>/build, <tree>/build/asan, <tree>/build/unit; started in the tree
     */
    static const char *const way[] = {"", "/..", "/../..", "/../../.."};
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        ls_text_put(path, bytes, "%s%s/%s", program, way[i], name);
        if (access(path, R_OK) == 0) {
            return true;
        }
    }
    ls_text_put(path, bytes, "%s", name);
    return access(path, R_OK) == 0;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    (void)remove(path);
    return 0;
}

void ls_place_remove(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
