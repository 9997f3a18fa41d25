/* The memory node that a GPU is attached to. */
#ifndef LS_CUDA_NUMA_H
#define LS_CUDA_NUMA_H

#include <stddef.h>

/* Binds the calling thread, and those it starts later, to the cores of the node of the PCI device
 * (address as CUDA prints it) that they may use, and prefers its memory. Does nothing if the node
 * is unknown. `text` receives the result: "NUMA node 1, 32 cores", or the reason for doing nothing.
 * LS_SYSFS replaces /sys. */
void ls_numa_bind(const char *pci, char *text, size_t bytes);

#endif
