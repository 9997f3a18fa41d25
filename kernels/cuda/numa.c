#include "backend.h"
#include "kernels/core/path.h"

#include <ctype.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads one short line of a file below the root of /sys. */
static bool read_line(const char *path, char *line, size_t bytes)
{
    char full[PATH_MAX];
    if (snprintf(full, sizeof full, "%s/%s", ls_path_sysfs(), path) >= (int)sizeof full) {
        return false;
    }
    FILE *file = fopen(full, "r");
    bool read = file != NULL && fgets(line, (int)bytes, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    return read;
}

/* Parses "0-15,32-47", the kernel's format of CPU lists. */
static void parse_cores(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (isdigit((unsigned char)*text)) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-') {
            last = strtol(end + 1, &end, 10);
        }
        for (long core = first; core <= last && core < CPU_SETSIZE; core++) {
            CPU_SET((size_t)core, set);
        }
        text = *end == ',' ? end + 1 : end;
    }
}

/* MPOL_PREFERRED: this node first, others when it is full. The constant is not in every C library's
 * headers. */
static void prefer_memory(int node)
{
#ifdef SYS_set_mempolicy
    enum { PREFERRED = 1 };
    unsigned long mask[16] = {0};
    const unsigned long bits = 8 * sizeof mask[0];
    if (node >= 0 && (unsigned long)node < bits * 16) {
        mask[(unsigned long)node / bits] = 1ul << ((unsigned long)node % bits);
        (void)syscall(SYS_set_mempolicy, PREFERRED, mask, bits * 16);
    }
#else
    (void)node;
#endif
}

void ls_numa_bind(const char *pci, char *text, size_t bytes)
{
    char path[128], line[4096], address[32];
    snprintf(address, sizeof address, "%s", pci);
    for (char *c = address; *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c); /* CUDA prints upper case, sysfs uses lower case */
    }
    snprintf(path, sizeof path, "bus/pci/devices/%s/numa_node", address);
    int node = read_line(path, line, sizeof line) ? atoi(line) : -1;
    if (node < 0) {
        snprintf(text, bytes, "NUMA node unknown");
        return;
    }
    snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", node);
    cpu_set_t near, allowed, both;
    if (!read_line(path, line, sizeof line) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        snprintf(text, bytes, "NUMA node %d, cores unknown", node);
        return;
    }
    parse_cores(line, &near);
    CPU_AND(&both, &near, &allowed);
    if (CPU_COUNT(&both) == 0) {
        snprintf(text, bytes, "not on NUMA node %d: none of its cores is allowed", node);
        return;
    }
    if (sched_setaffinity(0, sizeof both, &both) != 0) {
        snprintf(text, bytes, "not on NUMA node %d: refused", node);
        return;
    }
    prefer_memory(node);
    snprintf(text, bytes, "NUMA node %d, %d cores", node, CPU_COUNT(&both));
}
