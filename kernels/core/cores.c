#define _GNU_SOURCE
#include "cores.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text.h"
#include "path.h"

/* The quota that a file says, in cores; infinite where there is no such file or it sets none. */
static double read_quota(const char *folder, bool second)
{
    double quota = INFINITY, period = 100000; /* us; 100 ms is the kernel's default */
    LS_TEXT(path, PATH_MAX, "%s/%s", folder, second ? "cpu.max" : "cpu.cfs_quota_us");
    char *text = ls_text_read(path), *other = NULL;
    int numbers = text == NULL ? 0 : sscanf(text, "%lf %lf", &quota, &period);
    if (numbers == 1 && !second) {
        ls_text_put(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        other = ls_text_read(path);
        (void)(other != NULL && sscanf(other, "%lf", &period));
    }
    free(text);
    free(other);
    return numbers >= 1 && quota > 0 && period > 0 ? quota / period
                                                   : INFINITY; /* "max", -1: none */
}

static void take_least(const char *folder, bool second, void *context)
{
    *(double *)context = fmin(*(double *)context, read_quota(folder, second));
}

/* A machine may have more cores than cpu_set_t holds. */
static int cores_in_mask(int machine)
{
    for (int room = CPU_SETSIZE; room <= 1 << 20; room *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)room);
        size_t bytes = CPU_ALLOC_SIZE((size_t)room);
        int count =
            set != NULL && sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) {
            return count;
        }
    }
    return machine;
}

ls_cores ls_cores_read(void)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    ls_cores cores = {.machine = online > 0 ? (int)online : 1, .quota = INFINITY};
    ls_cores_each_cgroup("cpu", take_least, &cores.quota);
    cores.mask = cores_in_mask(cores.machine);
    cores.machine = cores.mask > cores.machine ? cores.mask : cores.machine;
    cores.usable = fmin(cores.mask, cores.quota);
    return cores;
}

double ls_cores_usable(void)
{
    return ls_cores_read().usable;
}

int ls_cores_share(double usable, int parts)
{
    int share = (int)(usable / (parts > 0 ? parts : 1));
    return share > 1 ? share : 1;
}

const char *ls_cores_number(double cores, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "%.3g core%s", cores, cores == 1 ? "" : "s");
    return text;
}

const char *ls_cores_text(const ls_cores *cores, char *text, size_t bytes)
{
    if (cores->usable >= cores->machine) {
        return ls_cores_number(cores->machine, text, bytes);
    }
    bool quota = cores->quota < cores->mask, mask = cores->mask < cores->machine;
    char both[40] = "";
    if (quota && mask) {
        ls_text_put(both, sizeof both, ", affinity mask of %d", cores->mask);
    }
    ls_text_put(text, bytes, "%.3g of %d cores (%s%s)", cores->usable, cores->machine,
                quota ? "CPU quota" : "affinity mask", both);
    return text;
}

#define _GNU_SOURCE

static void climb(const char *mount, const char *path, bool second, ls_cores_visit *visit,
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
void ls_cores_each_cgroup(const char *controller, ls_cores_visit *visit, void *context)
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
