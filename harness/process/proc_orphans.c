/* What children leave behind in sessions of their own. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "proc.h"

enum {
    ROUNDS = 64,   /* generations of processes that each start another in a new session */
    DIE_MS = 5000, /* from KILL to the end; only a process stuck in the kernel takes longer */
};

/* Parent of a process, 0 when it is gone. /proc/<pid>/stat: "pid (name) state ppid ...", and the
 * name may hold anything. */
static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    char *end = text + bytes;
    while (end > text && *end != ')') {
        end--;
    }
    char state;
    int parent;
    return sscanf(end, ") %c %d", &state, &parent) == 2 ? (pid_t)parent : 0;
}

/* Our children as malloc'ed list; returns their number. */
static int list_children(pid_t **out)
{
    *out = NULL;
    DIR *folder = opendir("/proc");
    if (folder == NULL) {
        return 0;
    }
    int count = 0;
    pid_t self = getpid();
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || parent_of(pid) != self) {
            continue;
        }
        *out = realloc(*out, (size_t)(count + 1) * sizeof **out);
        LS_ASSERT(*out != NULL);
        (*out)[count++] = pid;
    }
    closedir(folder);
    return count;
}

void ls_proc_strays_begin(ls_proc_strays *strays)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        ls_log_warn("what a rank leaves behind cannot be found: %s",
                    errno == EINVAL ? "old kernel" : "no permission");
    }
    strays->count = list_children(&strays->known);
}

static bool is_known(const ls_proc_strays *strays, pid_t pid)
{
    for (int i = 0; i < strays->count; i++) {
        if (strays->known[i] == pid) {
            return true;
        }
    }
    return false;
}

/* It is our child and not reaped, so its number is nobody else's. */
void ls_proc_strays_end_one(pid_t pid)
{
    kill(pid, SIGKILL);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    if (fd >= 0) {
        while (poll(&ended, 1, DIE_MS) < 0 && errno == EINTR) {
        }
        close(fd);
    }
    (void)waitpid(pid, NULL, fd >= 0 ? WNOHANG : 0);
}

int ls_proc_strays_end(ls_proc_strays *strays)
{
    int ended = 0, fresh = 1;
    for (int round = 0; fresh > 0 && round < ROUNDS; round++) {
        pid_t *child = NULL;
        int count = list_children(&child);
        fresh = 0;
        for (int i = 0; i < count; i++) {
            if (!is_known(strays, child[i])) {
                ls_proc_strays_end_one(
                    child[i]); /* its own children become ours, for the next round */
                fresh++;
            }
        }
        free(child);
        ended += fresh;
    }
    free(strays->known);
    strays->known = NULL;
    strays->count = 0;
    return ended;
}
