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

#include "cgroup.h"
#include "text.h"

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
    ls_cgroup_each("cpu", take_least, &cores.quota);
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
