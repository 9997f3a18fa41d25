/* The memory node of a machine that a GPU hangs on. */
#ifndef LS_CUDA_NUMA_H
#define LS_CUDA_NUMA_H

#include <stddef.h>

/* Binds the calling thread, and those it starts later, to the cores of the node of the PCI device
 * (address as CUDA prints it), as far as they were allowed before, and prefers its memory. Does
 * nothing where the node is unknown. What was done goes into text: "NUMA node 1, 32 cores", or why
 * not. The root of /sys is LS_SYSFS where that is set. */
void ls_numa_bind(const char *pci, char *text, size_t bytes);

#endif
