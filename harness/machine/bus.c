#include "machine.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

static void read_word(const char *folder, const char *entry, const char *file, char *word,
                      size_t bytes)
{
    LS_TEXT(path, 1100, "%s/%s/%s", folder, entry, file);
    char *all = ls_text_read(path);
    ls_text_put(word, bytes, "%.*s", all == NULL ? 0 : (int)strcspn(all, "\r\n"),
                all == NULL ? "" : all);
    free(all);
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const ls_machine_device *)a)->address, ((const ls_machine_device *)b)->address);
}

int ls_bus_list(const char *sysfs, ls_machine_device *device, int most)
{
    LS_TEXT(folder, 700, "%s/bus/pci/devices", sysfs);
    int count = 0;
    DIR *entries = ls_path_open_folder(folder);
    for (struct dirent *e; entries != NULL && count < most && (e = readdir(entries)) != NULL;) {
        char vendor[16], class[16];
        if (e->d_name[0] == '.') {
            continue;
        }
        read_word(folder, e->d_name, "vendor", vendor, sizeof vendor);
        read_word(folder, e->d_name, "class", class, sizeof class);
        /* 0x0300: VGA controller, 0x0302: 3D controller (PCI class codes); the last two digits are
         * the programming interface */
        bool display = strncmp(class, "0x0300", 6) == 0 || strncmp(class, "0x0302", 6) == 0;
        if (strcmp(vendor, "0x10de") != 0 || !display) {
            continue;
        }
        ls_machine_device *found = &device[count++];
        memset(found, 0, sizeof *found);
        ls_text_put(found->address, sizeof found->address, "%s", e->d_name);
        read_word(folder, e->d_name, "device", found->model, sizeof found->model);
    }
    if (entries != NULL) {
        closedir(entries);
    }
    qsort(device, (size_t)count, sizeof *device, by_address);
    return count;
}

bool ls_bus_is_visible(const char *sysfs)
{
    LS_TEXT(folder, 700, "%s/bus/pci/devices", sysfs);
    DIR *entries = ls_path_open_folder(folder);
    int count = 0;
    while (ls_path_next(&entries) != NULL) {
        count++;
    }
    return count > 2; /* "." and ".." */
}

/* Files of NVIDIA's driver, and of WSL 2, whose GPU is on no bus that Linux sees. */
bool ls_bus_doubt(char *path, size_t bytes)
{
    static const char *const files[] = {"nvidia0", "nvidiactl", "dxg"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        ls_text_put(path, bytes, "%s/%s", ls_path_devfs(), files[i]);
        if (access(path, F_OK) == 0) {
            return true;
        }
    }
    ls_text_put(path, bytes, "%s/driver/nvidia", ls_path_procfs());
    return access(path, F_OK) == 0;
}

const char *ls_bus_choose(const char *wanted)
{
    ls_machine_device device[1];
    char file[700];
    if (strcmp(wanted, "auto") != 0) {
        return wanted;
    }
    if (ls_bus_list(ls_path_sysfs(), device, 1) > 0) {
        return "cuda";
    }
    if (!ls_bus_doubt(file, sizeof file)) {
        return "cpu";
    }
    ls_log_warn("the PCI bus (%s) shows no NVIDIA device, but %s exists: this program uses the GPU "
                "or ends; --device cpu insists on the CPU",
                ls_path_sysfs(), file);
    return "cuda";
}

const char *ls_bus_why_cpu(const char *wanted)
{
    return strcmp(wanted, "auto") != 0          ? "--device cpu"
           : ls_bus_is_visible(ls_path_sysfs()) ? "no NVIDIA GPU on the PCI bus"
                                                : "no PCI bus and no NVIDIA driver here";
}
