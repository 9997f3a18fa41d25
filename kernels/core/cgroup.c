#define _GNU_SOURCE
#include "cgroup.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "path.h"
#include "text.h"

static void climb(const char *mount, const char *path, bool second, ls_cgroup_visit *visit,
                  void *context)
{
    LS_TEXT(folder, PATH_MAX, "%s/fs/cgroup/%s%s", ls_path_sysfs(), mount, path);
    size_t root = strlen(folder) - strlen(path);
    for (char *slash = folder; slash != NULL; *slash = '\0') {
        visit(folder, second, context);
        slash = strlen(folder) > root ? strrchr(folder, '/') : NULL;
        if (slash == NULL) {
            return;
        }
    }
}

/* Of v1 a hierarchy is mounted under the names of its controllers, in the order of the kernel's
 * table or of the distribution; of v2 as the whole folder, or next to v1. */
void ls_cgroup_each(const char *controller, ls_cgroup_visit *visit, void *context)
{
    LS_TEXT(file, PATH_MAX, "%s/self/cgroup", ls_path_procfs());
    char *text = ls_text_read(file), *rest = NULL;
    LS_TEXT(wanted, 40, ",%s,", controller);
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) { /* "0::/path" of v2, "3:cpu,cpuacct:/path" of v1 */
        char *names = strchr(line, ':'), *path = names == NULL ? NULL : strchr(names + 1, ':');
        if (path == NULL) {
            continue;
        }
        *path++ = '\0';
        path += path[0] == '/' && path[1] == '\0';
        LS_TEXT(listed, 300, ",%s,", ++names);
        if (strcmp(line, "0:") == 0) {
            climb("", path, true, visit, context);
            climb("unified", path, true, visit, context);
        } else if (strstr(listed, wanted) != NULL) {
            climb(names, path, false, visit, context);
            if (strcmp(names, controller) != 0) {
                climb(controller, path, false, visit, context);
            }
        }
    }
    free(text);
}
