/* How much processor time this process may use. A container is often bound by a quota of its cgroup
 * instead of by an affinity mask: 0.5 cores is 50 ms in each 100 ms, on any core. */
#ifndef LS_CORE_CORES_H
#define LS_CORE_CORES_H

#include <stddef.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_cores {
    int machine;   /* that are online */
    int mask;      /* in the affinity mask (sched_setaffinity, taskset, cpusets) */
    double quota;  /* the smallest of the process's cgroup and those above it; infinite: none */
    double usable; /* the least of the three */
} ls_cores;

/* Reads the mask and, below ls_path_sysfs() and ls_path_procfs(), the quotas of cgroup v2 (cpu.max)
 * and v1 (cpu.cfs_quota_us over cpu.cfs_period_us). */
ls_cores ls_cores_read(void);
double ls_cores_usable(void);
/* Threads of each of `parts` processes that share the usable cores: at least one. */
int ls_cores_share(double usable, int parts);
/* "2 cores", "1 of 2 cores (affinity mask)", "0.5 of 2 cores (CPU quota)". Returns text. */
const char *ls_cores_text(const ls_cores *cores, char *text, size_t bytes);
/* "2 cores", "1 core", "0.5 cores". Returns text. */
const char *ls_cores_number(double cores, char *text, size_t bytes);

/* The control groups that bind this process (cgroups(7)). */

typedef void ls_cores_visit(const char *folder, bool second, void *context);
/* Calls visit for the folders of the process's cgroup and those above it, below ls_path_sysfs(): in
 * the hierarchies of v1 that hold the controller ("cpu"), and (second) in that of v2. A folder need
 * not exist: in a container the path may be the host's, and only the root is there, which is the
 * container's own. */
void ls_cores_each_cgroup(const char *controller, ls_cores_visit *visit, void *context);

#ifdef __cplusplus
}
#endif

#endif
