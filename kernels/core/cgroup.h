/* The control groups that bind this process (cgroups(7)). */
#ifndef LS_CORE_CGROUP_H
#define LS_CORE_CGROUP_H

#include <stdbool.h>

typedef void ls_cgroup_visit(const char *folder, bool second, void *context);
/* Calls visit for the folders of the process's cgroup and those above it, below ls_path_sysfs(): in
 * the hierarchies of v1 that hold the controller ("cpu"), and (second) in that of v2. A folder need
 * not exist: in a container the path may be the host's, and only the root is there, which is the
 * container's own. */
void ls_cgroup_each(const char *controller, ls_cgroup_visit *visit, void *context);

#endif
