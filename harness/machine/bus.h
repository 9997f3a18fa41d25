/* Whether this machine has NVIDIA devices, as the kernel shows it, without any library: all
 * programs choose between GPU and CPU here, so that a broken driver never causes a slow run on the
 * CPU. */
#ifndef LS_BUS_H
#define LS_BUS_H

#include <stdbool.h>
#include <stddef.h>

enum { LS_MACHINE_DEVICES_MAX = 64 };

typedef struct ls_machine_device {
    char address[32]; /* "0000:17:00.0" */
    char model[16];   /* PCI device id: "0x2335" */
    bool usable;
    char failure[200]; /* why it is not usable */
} ls_machine_device;

/* Lists the NVIDIA (vendor 0x10de) display and 3D controllers (class 0x0300, 0x0302) on the PCI bus
 * under `sysfs` by address, and returns their number. */
int ls_bus_list(const char *sysfs, ls_machine_device *device, int most);
/* Whether the bus shows anything: a sandbox may hide all of it, even its bridges. */
bool ls_bus_is_visible(const char *sysfs);
/* A file that only a machine with an NVIDIA driver has, where the bus shows no device: a sandbox,
 * or a GPU that is not on the bus. False: there is none. */
bool ls_bus_doubt(char *path, size_t bytes);
/* The device of a program that uses no more than one: "cuda" or "cpu"; `wanted` where that is not
 * "auto". With an NVIDIA device on the bus, or in doubt, which it says, "cuda". */
const char *ls_bus_choose(const char *wanted);
/* Why the CPU was chosen: "no GPU on the PCI bus", "--device cpu". */
const char *ls_bus_why_cpu(const char *wanted);

#endif
